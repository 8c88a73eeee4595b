"""The wire between organisations: one gRPC stream per party, which the party opens.

    party  -- opens one stream, says its name ------>  coordinator's server
           <-- request -- (the stream stays open) --
           -- reply -------------------------------->

A party needs no inbound port. Both ends show certificates of one authority; the coordinator takes a party at
its word only when the certificate's common name is the name it claims and the name is on its list.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Final

# gRPC writes notes about ordinary shutdowns to the terminal; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

from sottovoce.errors import InputError, WireError
from sottovoce.gate.frames import MAX_BYTES, peek
from sottovoce.transports.base import (
    Change,
    Communication,
    Endpoint,
    answer,
    check_requests,
    check_wire,
    listed,
    quoted,
    refusal_error,
    refusal_of,
    refused,
)
from sottovoce.transports.certificates import Credentials, check_other_end
from sottovoce.transports.certified import Certified
from sottovoce.transports.probe import coordinator_at
from sottovoce.transports.proxies import grpc_options, proxy_for

_LOG: Final = logging.getLogger(__name__)
_SERVICE: Final = "sottovoce.Wire"
_METHOD: Final = "Rounds"
_GREETING: Final = "Greeting"
_LONGEST_GREETING: Final = 1024  # bytes
_NAME_KEY: Final = "sottovoce-party"
# Said by a party that failed, in place of an answer. The mere end of a stream cannot say it: to the reader of a
# stream a party that was killed looks like one that closed its side.
_GOODBYE: Final = b"goodbye"

# Connections of a coordinator that have shown no certificate yet: so many, each for so many seconds.
_HANDSHAKES: Final = 256
_HANDSHAKE_TIME: Final = 5.0

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_STANDING: Final = {"connected": "has connected", "back": "is back", "lost": "was lost", "left": "left"}
# Seconds that a stream may take to end once it was told to.
_CLOSING_TIME: Final = 1.0
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


def _options(limit: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", limit),
        ("grpc.max_receive_message_length", limit),
        # A peer that vanished without a word is noticed within half a minute, also between rounds.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _allow_connections(parties: int) -> None:
    """Raise this process's own limit of open files, where so many parties at once, and what else is open, exceed it."""
    if resource is None:
        return
    needed = parties + _HANDSHAKES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"parties: {parties} of them take {needed} open files, and this process may have {hard}; raise its limit "
            "(ulimit -Hn, or LimitNOFILE of its service)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _Connection:
    """One stream of one party at the coordinator. `None` in the outbox ends the stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.refusal: tuple[grpc.StatusCode, str] | None = None

    def end(self, code: grpc.StatusCode | None = None, why: str = "") -> None:
        if code is not None:
            self.refusal = code, why
        self.outbox.put(None)


class _Pending:
    """A request that waits for its reply."""

    def __init__(self, message: bytes, serial: int) -> None:
        self.message = message
        self.serial = serial
        self.reply: bytes | None = None
        self.party_left = False
        self.refusal: str | None = None  # of a party that has another version


class _DaemonThreads(futures.ThreadPoolExecutor):
    """A thread for each task, and none that keeps the interpreter alive.

    A stream holds its thread as long as it lives: a coalition of fixed size could be used up, and the threads of
    a coalition are joined at exit, so that a program which forgot to close its wire would never end.
    """

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(task(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="sottovoce-wire", daemon=True).start()
        return future


class GrpcCoordinator:
    """The coordinator's end: a server that the parties on the list connect to.

    `address` is `host:port`; port 0 takes a free one, which `port` then tells. `timeout` is how long an
    exchange waits for its replies, the return of a party that dropped included: the pending request is sent
    again when the party is back.

    Guarantee: a reply is delivered only if it came over mutually authenticated TLS from a peer whose
    certificate is that of the party that was asked (`check_other_end`), and carries the serial of the pending request;
    stale and repeated replies are dropped. A party's newest connection replaces its older one. A peer that is refused,
    or that sends something else than frames, loses its own stream and disturbs no other; it is reported in the log.
    Connections that show no certificate are few and end soon. `on_change` is told, in words, who has connected, who
    is missing, who was lost and who came back; so is the log.
    """

    def __init__(  # noqa: PLR0913
        self,
        address: str,
        parties: Iterable[str],
        credentials: Credentials,
        *,
        timeout: float = 60.0,
        limit: int = MAX_BYTES,
        on_change: Callable[[Change], None] | None = None,
    ) -> None:
        self.parties = tuple(parties)
        check_wire(self.parties, timeout)
        self.communication = Communication()
        self._timeout = timeout
        self._limit = limit
        self._changed = threading.Condition()
        self._one_exchange = threading.Lock()
        self._credentials = credentials
        self._on_change = on_change
        self._known: set[str] = set()  # parties that were connected once
        self._done: set[str] = set()  # parties that were told that nothing more will be asked
        self._connections: dict[str, _Connection] = {}
        self._pending: dict[str, _Pending] = {}
        self._unanswered = 0  # of the pending requests
        self._closed = False
        _allow_connections(len(self.parties))

        self._server = grpc.server(
            _DaemonThreads(),
            options=[
                *_options(limit),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.max_ping_strikes", 0),
                # Each party may have an old connection and a new one; whoever says nothing has to go.
                ("grpc.max_allowed_incoming_connections", 2 * len(self.parties) + _HANDSHAKES),
                ("grpc.server_handshake_timeout_ms", int(1000 * _HANDSHAKE_TIME)),
                ("grpc.max_connection_idle_ms", int(1000 * _HANDSHAKE_TIME)),
            ],
        )
        # Neither serializer is given, so both sides of the handler are raw bytes.
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    _SERVICE,
                    {
                        _METHOD: grpc.stream_stream_rpc_method_handler(self._serve),
                        _GREETING: grpc.unary_unary_rpc_method_handler(self._greet),
                    },
                ),
            )
        )
        try:
            self.port = self._server.add_secure_port(
                address,
                grpc.ssl_server_credentials(
                    [(credentials.key, credentials.certificate)],
                    root_certificates=credentials.ca,
                    require_client_auth=True,
                ),
            )
        except RuntimeError:
            raise InputError(
                f"address={address!r} cannot be listened on; give host:port with a free port, or port 0."
            ) from None
        self._server.start()

    def wait_for_parties(self, timeout: float | None = None, among: Iterable[str] | None = None) -> None:
        """Return when every party, or each `among` them, is connected; after `timeout` seconds (the wire's) raise."""
        patience = self._timeout if timeout is None else timeout
        awaited = set(self.parties if among is None else among)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not awaited & set(self._absent()), patience)
            self._require_open()
            if absent := [name for name in self._absent() if name in awaited]:
                raise WireError(f"waited {patience:g} s for {quoted(absent)} to connect; start them, or wait longer.")

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send one request to each named party at the same time and wait for one reply from each.

        Raises `WireError` when a party did not answer in time, or ended its side instead of answering.
        """
        with self._one_exchange:
            serials = check_requests(self.parties, messages, self._limit)
            pending = {name: _Pending(message, serials[name]) for name, message in messages.items()}
            with self._changed:
                self._require_open()
                self._pending, self._unanswered = pending, len(pending)
                try:
                    for name, request in pending.items():
                        self.communication.downlink_bytes += len(request.message)
                        if connection := self._connections.get(name):
                            connection.outbox.put(request.message)
                    self._changed.wait_for(self._settled, self._timeout)
                    return self._replies(pending)
                finally:
                    self._pending = {}

    def close(self) -> None:
        """End all streams and the server; a second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            connections, self._connections = self._connections, {}
            self._changed.notify_all()
        for connection in connections.values():
            connection.end()
        self._server.stop(_CLOSING_TIME).wait()

    def _require_open(self) -> None:
        if self._closed:
            raise WireError("the wire is closed; open a new one.")

    @property
    def connected(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(name for name in self.parties if name in self._connections)

    def _absent(self) -> list[str]:
        return [name for name in self.parties if name not in self._connections]

    def _settled(self) -> bool:
        over = any(request.party_left or request.refusal for request in self._pending.values())
        return self._closed or over or not self._unanswered

    def _replies(self, pending: Mapping[str, _Pending]) -> dict[str, bytes]:
        replies = {name: request.reply for name, request in pending.items() if request.reply is not None}
        missing = [name for name in pending if name not in replies]
        if not missing:
            return replies
        self._require_open()
        for name in missing:
            if why := pending[name].refusal:
                raise refusal_error(name, why)
        if left := [name for name in missing if pending[name].party_left]:
            ended = f"{quoted(left)} ended the connection instead of answering; its own log says why."
            raise WireError(ended, left)
        absent = [name for name in missing if name not in self._connections]
        raise WireError(
            f"waited {self._timeout:g} s for an answer of {quoted(missing)}"
            f" ({quoted(absent) + ' not connected' if absent else 'connected'});"
            " see what the party is doing, or give the wire a longer timeout.",
            missing,
        )

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """One stream, from its acceptance to its end; gRPC sends what is yielded."""
        connection = _Connection(self._authenticated_name(context))
        if not context.add_callback(connection.end):
            return
        context.send_initial_metadata(())
        self._attach(connection)
        threading.Thread(
            target=self._receive, args=(connection, requests), name="sottovoce-wire-reader", daemon=True
        ).start()
        yield from iter(connection.outbox.get, None)
        if connection.refusal:
            context.abort(*connection.refusal)

    def _greet(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        """Whoever would be taken as a party is told the time; nothing of a run, and no stream is touched."""
        self._authenticated_name(context)
        return datetime.now(UTC).isoformat().encode()

    def _authenticated_name(self, context: grpc.ServicerContext) -> str:
        claimed = [str(value) for key, value in context.invocation_metadata() if key == _NAME_KEY]
        shown: Any = context.auth_context().get("x509_pem_cert", [])
        code = grpc.StatusCode.UNAUTHENTICATED
        try:
            if len(claimed) != 1 or len(shown) != 1:
                raise InputError("a party says one name and shows one certificate.")
            check_other_end(shown[0], self._credentials, claimed[0])
            if claimed[0] in self.parties:
                return claimed[0]
            code, why = grpc.StatusCode.PERMISSION_DENIED, "the party is not on the coordinator's list"
        except InputError as error:
            why = str(error).removesuffix(".")
        said = f"refused a peer at {context.peer()} that says it is {', '.join(map(repr, claimed)) or 'nobody'}: {why}"
        _LOG.warning("%s", said)
        self._tell(Change("turned-away", ", ".join(claimed), said))
        context.abort(code, why)
        raise AssertionError("abort does not return")

    def _tell(self, change: Change) -> None:
        if self._on_change is not None:
            self._on_change(change)

    def _standing(self, name: str, kind: str) -> None:
        """Say what became of a party's connection, and who is missing; with the lock held."""
        absent = self._absent()
        text = f"{name} {_STANDING[kind]}; {'missing: ' + listed(absent) if absent else 'all parties are connected'}"
        _LOG.info("%s", text)
        self._tell(Change(kind, name, text))

    def _attach(self, connection: _Connection) -> None:
        with self._changed:
            if self._closed:
                connection.end()
                return
            if older := self._connections.get(connection.name):
                _LOG.warning("party %r connected again; its older connection is ended", connection.name)
                older.end(grpc.StatusCode.ABORTED, "a newer connection of this party replaced this one")
            self._connections[connection.name] = connection
            self._standing(connection.name, "back" if connection.name in self._known else "connected")
            self._known.add(connection.name)
            self._done.discard(connection.name)
            request = self._pending.get(connection.name)
            if request and request.reply is None:
                connection.outbox.put(request.message)
            self._changed.notify_all()

    def _receive(self, connection: _Connection, replies: Iterator[bytes]) -> None:
        """Take the replies of one stream until it ends, is cut, or says something that is no frame."""
        left = False
        try:
            for reply in replies:
                if reply == _GOODBYE:
                    left = True
                    break
                self._accept(connection, reply)
        except grpc.RpcError:
            _LOG.info("lost the connection of party %r", connection.name)
        except WireError as error:
            _LOG.warning("ended the connection of party %r: %s", connection.name, error)
            connection.end(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._detach(connection, left=left)

    def _accept(self, connection: _Connection, reply: bytes) -> None:
        why = refused(reply)
        serial = peek(reply)[1] if why is None else None
        with self._changed:
            if self._connections.get(connection.name) is not connection:
                return
            request = self._pending.get(connection.name)
            if request is not None and why is not None:
                request.refusal = why
                self._changed.notify_all()
                return
            if request is None or request.serial != serial or request.reply is not None:
                _LOG.warning("dropped a stale or repeated reply of party %r", connection.name)
                return
            request.reply = reply
            if peek(request.message)[0] == "done":
                self._done.add(connection.name)
            self.communication.uplink_bytes += len(reply)
            self._unanswered -= 1
            if not self._unanswered:  # whoever waits looks at all parties: once a round, and not once a reply
                self._changed.notify_all()

    def _detach(self, connection: _Connection, *, left: bool) -> None:
        with self._changed:
            if self._connections.get(connection.name) is connection:
                del self._connections[connection.name]
                request = self._pending.get(connection.name)
                if left and request and request.reply is None:
                    request.party_left = True
                if not self._closed and connection.name not in self._done:
                    self._standing(connection.name, "left" if left else "lost")
                self._changed.notify_all()
        connection.end()


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
    twice (its answer may have
    been lost with a connection); the wire passes on both, and it is the endpoint that answers the second
    with the stored bytes of the first.
    """
    endpoint.identify(Certified(credentials, pins))
    lost_at, pause, tell = time.monotonic(), _FIRST_PAUSE, _Telling(endpoint.name, on_change)
    while True:
        by = f" by {proxy}" if (proxy := proxy_for(_host(address))) else ""
        there = f"connected to {address}{by}, waiting for what it asks"
        session = _Session(endpoint, limit, functools.partial(tell, "connected", there))
        try:
            fault = _connected(session, address, credentials, stop)
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


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _connected(session: _Session, address: str, credentials: Credentials, stop: threading.Event | None) -> str:
    """Look who is there, then serve it; the text says why the connection ended."""
    with _channel(address, credentials, session.limit) as channel:
        return session.run(channel, stop)


@contextlib.contextmanager
def _channel(address: str, credentials: Credentials, limit: int) -> Iterator[grpc.Channel]:
    """A channel to the coordinator at an address, which trusts the certificate that it showed and no other."""
    trusted = coordinator_at(address, credentials)
    channel = grpc.secure_channel(
        address,
        grpc.ssl_channel_credentials(trusted, credentials.key, credentials.certificate),
        options=[
            *_options(limit),
            # Each attempt stands alone: gRPC's own waiting between attempts starts at a second.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", 5_000),
            *grpc_options(_host(address)),
        ],
    )
    try:
        yield channel
    finally:
        _apart(channel.close).join(_CLOSING_TIME)


def greet(address: str, credentials: Credentials) -> datetime:
    """The time at the coordinator, which would take this party; a `WireError` says why it would not.

    Nothing is sent but the name and the certificate, and a run that goes on is not disturbed.
    """
    with _channel(address, credentials, _LONGEST_GREETING) as channel:
        call: Any = channel.unary_unary(f"/{_SERVICE}/{_GREETING}", None, None)
        try:
            said = call(b"", timeout=_PATIENCE, metadata=((_NAME_KEY, credentials.name),))
            return datetime.fromisoformat(said.decode()).astimezone(UTC)
        except grpc.RpcError as error:
            raise WireError(
                f"the coordinator at {address} does not take {credentials.name!r}: "
                f"{error.details()} ({error.code().name})."
            ) from None
        except (ValueError, OverflowError):  # of a year that no calendar has
            raise WireError(f"{address} says something that is no time; is it a coordinator of sottovoce?") from None


class _Telling:
    """Says what changed, and nothing twice in a row."""

    def __init__(self, name: str, on_change: Callable[[Change], None] | None) -> None:
        self._name, self._on_change, self._last = name, on_change, ""

    def __call__(self, kind: str, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        _LOG.info("party %r: %s", self._name, text)
        if self._on_change is not None:
            self._on_change(Change(kind, "coordinator", text))


class _Session:
    """One connection of a party, from its opening to its end.

    A thread of its own waits for the stream. A stream that a closing server neither accepts nor refuses can keep its
    reader waiting for ever, also after it was cancelled; then the reader is left behind and this side goes on.
    """

    def __init__(self, endpoint: Endpoint, limit: int, on_accepted: Callable[[], None]) -> None:
        self.opened = False  # whether the coordinator was one to trust, and the stream was opened
        self.connected = False
        self.done = False
        self.limit = limit
        self._endpoint = endpoint
        self._on_accepted = on_accepted
        self._inbox: SimpleQueue[bytes | None] = SimpleQueue()  # None: the stream ended
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()

    def run(self, channel: grpc.Channel, stop: threading.Event | None) -> str:
        """Answer requests until the stream ends; the text says why it ended."""
        self.opened = True
        stream: Any = channel.stream_stream(f"/{_SERVICE}/{_METHOD}", None, None)
        call = stream(iter(self._outbox.get, None), metadata=((_NAME_KEY, self._endpoint.name),))
        reader = _apart(self._read, call)
        try:
            accepted = self._next(stop, _PATIENCE)
            self.connected = accepted == _ACCEPTED
            if self.connected:
                self._on_accepted()
            while self.connected and (request := self._next(stop)) is not None:
                kind = _kind(request)
                if kind is None:
                    self._refuse(request)
                    continue
                reply = answer(self._endpoint, request, self.limit)
                self._outbox.put(reply)
                if kind == peek(reply)[0] == "done":
                    self.done = True
                    break
        except Exception:
            self._outbox.put(_GOODBYE)
            raise
        finally:
            # Ends this side in an orderly way; the coordinator, having read all of it, ends its own.
            self._outbox.put(None)
            if stop is None or not stop.is_set():
                reader.join(_PATIENCE if self.connected else 0.0)
            call.cancel()
        reader.join(_CLOSING_TIME)
        if reader.is_alive():
            return f"the coordinator did not accept the connection within {_PATIENCE:g} s"
        if call.code() in _FINAL:
            raise WireError(
                f"the coordinator refused party {self._endpoint.name!r}: {call.details()} ({call.code().name})."
            )
        return str(call.details() or "the coordinator closed the connection")

    def _refuse(self, request: bytes) -> None:
        """Say that a frame is of another version; what is none at all is dropped."""
        if (said := refusal_of(request)) is None:
            _LOG.warning("party %r dropped a message that is no frame", self._endpoint.name)
            return
        _LOG.warning("party %r refused a message: %s", self._endpoint.name, refused(said))
        self._outbox.put(said)

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


def _kind(request: bytes) -> str | None:
    """The kind of a frame; None if it is none."""
    try:
        return peek(request)[0]
    except WireError:
        return None


def _apart(task: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a task in a thread that nobody need wait for."""
    thread = threading.Thread(target=task, args=arguments, name="sottovoce-wire", daemon=True)
    thread.start()
    return thread
