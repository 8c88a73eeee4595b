"""The wire between organisations, the coordinator's end: one gRPC stream per party, which the party opens.

    party  -- opens one stream, says its name ------>  coordinator's server
           <-- request -- (the stream stays open) --
           -- reply -------------------------------->

A party needs no inbound port. Both ends show certificates of one authority; the coordinator takes a party at
its word only when the certificate's common name is the name it claims and the name is on its list. The party's end is
in `grpc_party.py`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue
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
    check_requests,
    check_wire,
    list_names,
    quoted,
    read_refusal,
    refusal_error,
)
from sottovoce.transports.certificates import Credentials, check_other_end

_LOG: Final = logging.getLogger(__name__)
SERVICE: Final = "sottovoce.Wire"
METHOD: Final = "Rounds"
GREETING: Final = "Greeting"
NAME_KEY: Final = "sottovoce-party"
# Said by a party that failed, in place of an answer. The mere end of a stream cannot say it: to the reader of a
# stream a party that was killed looks like one that closed its side.
GOODBYE: Final = b"goodbye"

# How many connections may have shown no certificate yet, and for how many seconds each.
_HANDSHAKES: Final = 256
_HANDSHAKE_TIME: Final = 5.0

_STANDING: Final = {"connected": "has connected", "back": "is back", "lost": "was lost", "left": "left"}
# Seconds that a stream may take to end once it was told to.
CLOSING_TIME: Final = 1.0


def channel_options(limit: int) -> list[tuple[str, int]]:
    """What both ends tell gRPC."""
    return [
        ("grpc.max_send_message_length", limit),
        ("grpc.max_receive_message_length", limit),
        # A peer that vanished without a word is noticed within half a minute, also between rounds.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


@dataclass(eq=False)
class _Connection:
    """One stream of one party at the coordinator. `None` in the outbox ends the stream."""

    name: str
    outbox: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)
    refusal: tuple[grpc.StatusCode, str] | None = None

    def end(self, code: grpc.StatusCode | None = None, why: str = "") -> None:
        if code is not None:
            self.refusal = code, why
        self.outbox.put(None)


@dataclass(eq=False)
class _Pending:
    """A request that waits for its reply."""

    message: bytes
    serial: int
    reply: bytes | None = None
    party_left: bool = False
    refusal: str | None = None  # of a party that has another version


class _DaemonThreads(futures.ThreadPoolExecutor):
    """A thread for each task, and none that keeps the interpreter alive.

    A stream holds its thread as long as it lives: a pool of fixed size could be used up, and the threads of
    a pool are joined at exit, so that a program which forgot to close its wire would never end.
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
        self._timeout, self._limit = timeout, limit
        self._changed, self._one_exchange = threading.Condition(), threading.Lock()
        self._credentials, self._on_change = credentials, on_change
        self._known: set[str] = set()  # parties that were connected once
        self._done: set[str] = set()  # parties that were told that nothing more will be asked
        self._connections: dict[str, _Connection] = {}
        self._pending: dict[str, _Pending] = {}
        self._unanswered = 0  # of the pending requests
        self._closed = False
        if resource is not None:  # where parties at once, and what else is open, exceed the limit of open files
            needed, (soft, hard) = len(self.parties) + _HANDSHAKES, resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft != resource.RLIM_INFINITY and soft < needed:
                if hard != resource.RLIM_INFINITY and hard < needed:
                    raise InputError(
                        f"parties: {len(self.parties)} of them take {needed} open files, and this process may have "
                        f"{hard}; raise its limit (ulimit -Hn, or LimitNOFILE of its service)."
                    )
                resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        self._server = grpc.server(
            _DaemonThreads(),
            options=[
                *channel_options(limit),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.max_ping_strikes", 0),
                # Each party may have an old connection and a new one; whoever says nothing has to go.
                ("grpc.max_allowed_incoming_connections", 2 * len(self.parties) + _HANDSHAKES),
                ("grpc.server_handshake_timeout_ms", int(1000 * _HANDSHAKE_TIME)),
                ("grpc.max_connection_idle_ms", int(1000 * _HANDSHAKE_TIME)),
            ],
        )
        handlers: dict[str, Any] = {  # without serializers: both sides are raw bytes
            METHOD: grpc.stream_stream_rpc_method_handler(self._serve),
            GREETING: grpc.unary_unary_rpc_method_handler(self._greet),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        own = [(credentials.key, credentials.certificate)]
        tls = grpc.ssl_server_credentials(own, root_certificates=credentials.ca, require_client_auth=True)
        try:
            self.port = self._server.add_secure_port(address, tls)
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
        """At the same time; a `WireError` if a party did not answer in time, or ended its side instead of answering."""
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
                    self._changed.wait_for(
                        lambda: (
                            self._closed
                            or not self._unanswered
                            or any(request.party_left or request.refusal for request in self._pending.values())
                        ),
                        self._timeout,
                    )
                    replies = {name: request.reply for name, request in pending.items() if request.reply is not None}
                    if len(replies) == len(pending):
                        return replies
                    raise self._missing(pending, [name for name in pending if name not in replies])
                finally:
                    self._pending = {}

    def _missing(self, pending: Mapping[str, _Pending], missing: list[str]) -> WireError:
        """Why there is no answer of some parties."""
        self._require_open()
        for name in missing:
            if why := pending[name].refusal:
                return refusal_error(name, why)
        if left := [name for name in missing if pending[name].party_left]:
            return WireError(f"{quoted(left)} ended the connection instead of answering; its own log says why.", left)
        absent = [name for name in missing if name not in self._connections]
        return WireError(
            f"waited {self._timeout:g} s for an answer of {quoted(missing)}"
            f" ({quoted(absent) + ' not connected' if absent else 'connected'});"
            " see what the party is doing, or give the wire a longer timeout.",
            missing,
        )

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
        self._server.stop(CLOSING_TIME).wait()

    def _require_open(self) -> None:
        if self._closed:
            raise WireError("the wire is closed; open a new one.")

    @property
    def connected(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(name for name in self.parties if name in self._connections)

    def _absent(self) -> list[str]:
        return [name for name in self.parties if name not in self._connections]

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
        claimed = [str(value) for key, value in context.invocation_metadata() if key == NAME_KEY]
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
        missing = f"missing: {list_names(absent)}" if absent else "all parties are connected"
        text = f"{name} {_STANDING[kind]}; {missing}"
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
                if reply == GOODBYE:
                    left = True
                    break
                self._accept(connection, reply)
        except grpc.RpcError:
            _LOG.info("lost the connection of party %r", connection.name)
        except WireError as error:
            _LOG.warning("ended the connection of party %r: %s", connection.name, error)
            connection.end(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
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

    def _accept(self, connection: _Connection, reply: bytes) -> None:
        why = read_refusal(reply)
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
