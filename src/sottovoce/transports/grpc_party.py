"""The wire between organisations, the party's end: it connects to the coordinator and answers its requests."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # as at the coordinator's end

import grpc

from sottovoce.errors import WireError
from sottovoce.gate.frames import MAX_BYTES, peek
from sottovoce.transports.base import Change, Endpoint, answer_request, read_refusal, refuse_version
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_wire import CLOSING_TIME, GOODBYE, GREETING, METHOD, NAME_KEY, SERVICE, channel_options
from sottovoce.transports.identity import Certified
from sottovoce.transports.probe import coordinator_at, grpc_options, proxy_for

_LOG: Final = logging.getLogger(__name__)
_LONGEST_GREETING: Final = 1024  # bytes
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
# Seconds that a coordinator may take to accept a stream, its TLS handshake included, or to end one.
_PATIENCE: Final = 5.0
_ACCEPTED: Final = b"accepted"
# What will not get better by connecting again.
_FINAL: Final = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.ABORTED,
}


def serve_party(  # noqa: PLR0913
    endpoint: Endpoint,
    address: str,
    credentials: Credentials,
    *,
    reconnect: bool = True,
    stop: threading.Event | None = None,
    give_up_after: float = 60.0,
    limit: int = MAX_BYTES,
    on_change: Callable[[Change], None] | None = None,
    pins: Mapping[str, str] | None = None,
) -> None:
    """The party's end: connect to the coordinator at `address` and answer its requests until it says done.

    The endpoint signs, and knows others, by `credentials`, and by `pins` of their keys (`pin_of`). Returns after the
    endpoint has answered a "done" frame with "done" (one that lacks what it should end with asks for it), or soon after
    `stop` is set. A lost connection is opened again, at once and then at growing intervals; `WireError` is raised when
    there was none for `give_up_after` seconds, at the first loss with `reconnect=False`, and at once when the
    coordinator refuses this party. An error of the endpoint ends the connection and is raised here: the coordinator
    learns that the party left, and nothing of the error.

    `on_change` is told, in words and once each, that there is a connection, that it was lost, and why there is none;
    so is the log. A message that is no frame is dropped, one of another version refused, and the party goes on.

    Guarantee: the coordinator showed a certificate that `check_other_end` takes, and the connection trusts that one
    alone. Only `Outgoing`, which the gate makes, is sent, and that a frame is of another version. A request may arrive
    twice (its answer may have been lost with a connection); the wire passes on both, and the endpoint answers the
    second with the stored bytes of the first.
    """
    endpoint.identify(Certified(credentials, pins))
    lost_at, pause, last = time.monotonic(), _FIRST_PAUSE, ""

    def tell(kind: str, text: str) -> None:
        """Say what changed, and nothing twice in a row."""
        nonlocal last
        if text != last:
            last = text
            _LOG.info("party %r: %s", endpoint.name, text)
            if on_change is not None:
                on_change(Change(kind, "coordinator", text))

    while True:
        by = f" by {proxy}" if (proxy := proxy_for(address.rpartition(":")[0].strip("[]"))) else ""
        there = f"connected to {address}{by}, waiting for what it asks"
        session = _Session(endpoint, limit, functools.partial(tell, "connected", there))
        try:
            with _open_channel(address, credentials, limit) as channel:
                fault = session.run(channel, stop)
        except WireError as error:
            if session.opened:
                raise
            fault = str(error).removesuffix(".")
        if session.done or (stop is not None and stop.is_set()):
            return
        if session.connected:
            lost_at, pause = time.monotonic(), _FIRST_PAUSE
            tell("lost", f"lost the connection to {address}{by}: {fault}; connecting again")
        else:
            tell("absent", f"no connection: {fault}; trying again for at most {give_up_after:g} s")
        waited = time.monotonic() - lost_at
        if not reconnect or waited >= give_up_after:
            raise WireError(
                f"party {endpoint.name!r} had no connection to the coordinator at {address}{by}"
                f" for {waited:.1f} s: {fault}; see that it runs, and that both certificates are of one authority."
            )
        if stop is None:
            time.sleep(pause)
        elif stop.wait(pause):
            return
        pause = min(2 * pause, _LONGEST_PAUSE)


@contextlib.contextmanager
def _open_channel(address: str, credentials: Credentials, limit: int) -> Iterator[grpc.Channel]:
    """A channel to the coordinator at an address, which trusts the certificate that it showed and no other."""
    trusted = coordinator_at(address, credentials)
    channel = grpc.secure_channel(
        address,
        grpc.ssl_channel_credentials(trusted, credentials.key, credentials.certificate),
        options=[
            *channel_options(limit),
            # Each attempt stands alone: gRPC's own waiting between attempts starts at a second.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", 5_000),
            *grpc_options(address.rpartition(":")[0].strip("[]")),
        ],
    )
    try:
        yield channel
    finally:
        _start_thread(channel.close).join(CLOSING_TIME)


def greet(address: str, credentials: Credentials) -> datetime:
    """The time at the coordinator, which would take this party; a `WireError` says why it would not.

    Nothing is sent but the name and the certificate, and a run that goes on is not disturbed.
    """
    with _open_channel(address, credentials, _LONGEST_GREETING) as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/{GREETING}", None, None)
        try:
            said = call(b"", timeout=_PATIENCE, metadata=((NAME_KEY, credentials.name),))
            return datetime.fromisoformat(said.decode()).astimezone(UTC)
        except grpc.RpcError as error:
            raise WireError(
                f"the coordinator at {address} does not take {credentials.name!r}: "
                f"{error.details()} ({error.code().name})."
            ) from None
        except (ValueError, OverflowError):  # of a year that no calendar has
            raise WireError(f"{address} says something that is no time; is it a coordinator of sottovoce?") from None


@dataclass(eq=False)
class _Session:
    """One connection of a party, from its opening to its end.

    A thread of its own waits for the stream. A stream that a closing server neither accepts nor refuses can keep its
    reader waiting for ever, also after it was cancelled; then the reader is left behind and this side goes on.
    """

    _endpoint: Endpoint
    _limit: int
    _on_accepted: Callable[[], None]
    opened: bool = False  # whether the coordinator was one to trust, and the stream was opened
    connected: bool = False
    done: bool = False
    _inbox: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)  # None: the stream ended
    _outbox: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)

    def run(self, channel: grpc.Channel, stop: threading.Event | None) -> str:
        """Answer requests until the stream ends; the text says why it ended."""
        self.opened = True
        stream: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)
        call = stream(iter(self._outbox.get, None), metadata=((NAME_KEY, self._endpoint.name),))
        reader = _start_thread(self._read, call)
        try:
            accepted = self._next(stop, _PATIENCE)
            self.connected = accepted == _ACCEPTED
            if self.connected:
                self._on_accepted()
            while self.connected and (request := self._next(stop)) is not None:
                try:
                    kind, *_ = peek(request)
                except WireError:  # what is no frame at all is dropped, one of another version refused
                    if (said := refuse_version(request)) is None:
                        _LOG.warning("party %r dropped a message that is no frame", self._endpoint.name)
                    else:
                        _LOG.warning("party %r refused a message: %s", self._endpoint.name, read_refusal(said))
                        self._outbox.put(said)
                    continue
                reply = answer_request(self._endpoint, request, self._limit)
                self._outbox.put(reply)
                if kind == peek(reply)[0] == "done":
                    self.done = True
                    break
        except Exception:
            self._outbox.put(GOODBYE)
            raise
        finally:
            # Ends this side in an orderly way; the coordinator, having read all of it, ends its own.
            self._outbox.put(None)
            if stop is None or not stop.is_set():
                reader.join(_PATIENCE if self.connected else 0.0)
            call.cancel()
        reader.join(CLOSING_TIME)
        if reader.is_alive():
            return f"the coordinator did not accept the connection within {_PATIENCE:g} s"
        if call.code() in _FINAL:
            raise WireError(
                f"the coordinator refused party {self._endpoint.name!r}: {call.details()} ({call.code().name})."
            )
        return str(call.details() or "the coordinator closed the connection")

    def _read(self, call: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            call.initial_metadata()
            if call.is_active():
                self._inbox.put(_ACCEPTED)
            for request in call:
                self._inbox.put(request)
        self._inbox.put(None)

    def _next(self, stop: threading.Event | None, patience: float = math.inf) -> bytes | None:
        """What the stream says next; None when it ended, when nothing came in time, and when told to stop."""
        deadline = time.monotonic() + patience
        pause = 1.0 if stop is None else 0.1  # where nothing but an interrupt can come between
        while (stop is None or not stop.is_set()) and time.monotonic() < deadline:
            with contextlib.suppress(Empty):
                return self._inbox.get(timeout=pause)
        return None


def _start_thread(task: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a task in a thread that nobody need wait for."""
    thread = threading.Thread(target=task, args=arguments, name="sottovoce-wire", daemon=True)
    thread.start()
    return thread
