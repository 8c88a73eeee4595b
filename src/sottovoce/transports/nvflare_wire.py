"""The wire over NVIDIA FLARE: frames as bytes in requests of its auxiliary channel.

    FLARE server, a job's process                              FLARE client, a job's process
    CoordinatorEnd (a Controller)  -- send_aux_request ----->  PartyEnd (an Executor)
    NvflareCoordinator.exchange    <-- reply ----------------  answer_request(endpoint, frame)

A client opens the connection, so a party needs no inbound port; FLARE's own provisioning makes both ends known to one
another. FLARE's task queue is not used: it polls.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sottovoce.errors import SottovoceError, WireError
from sottovoce.gate.frames import MAX_BYTES, peek
from sottovoce.transports.base import (
    Communication,
    Endpoint,
    answer_request,
    check_requests,
    check_wire,
    quoted,
    read_refusal,
    refusal_error,
    refuse_version,
)
from sottovoce.transports.identity import Identity

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_constant import FLContextKey, ReturnCode
    from nvflare.apis.impl.controller import Controller
    from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellCode
    from nvflare.fuel.f3.cellnet.fqcn import FQCN
    from nvflare.fuel.f3.message import Message
    from nvflare.private.defs import CellChannel
except ImportError:
    raise ImportError("this wire needs NVIDIA FLARE; install the extra, sottovoce[nvflare].") from None

_TOPIC: Final = "sottovoce"
_FRAME: Final = "frame"  # bytes both ways; empty ones ask, and say, whether a party is there
_LEFT: Final = "left"  # said by a party that failed, in place of an answer
# What is no larger goes out as one message, which takes FLARE a sixth of the time of a stream, its way for all others.
_ONE_MESSAGE: Final = 2**20
_PAUSE: Final = 0.2  # seconds between two requests to a party that could not be reached


@dataclass(frozen=True)
class Site:
    """Where a job of FLARE runs: the site's name, and folders of its workspace. A job writes into `run` alone."""

    name: str
    root: Path
    run: Path
    app: Path

    @property
    def local(self) -> Path:
        return self.root / "local"

    @property
    def startup(self) -> Path:
        """What provisioning made for the site: its certificate and key."""
        return self.root / "startup"

    @classmethod
    def of(cls, context: Any) -> Site:
        """The site of FLARE's context of a job."""
        workspace, job = context.get_prop(FLContextKey.WORKSPACE_OBJECT), context.get_job_id()
        folders = workspace.get_root_dir(), workspace.get_run_dir(job), workspace.get_app_config_dir(job)
        return cls(context.get_identity_name(), *map(Path, folders))


class NvflareCoordinator:
    """The coordinator's end: a transport to the clients of a FLARE job, for use in the process of that job.

    `timeout` is how long an exchange waits for its replies. A party that cannot be reached is asked again until then.

    Guarantee: a reply is delivered only if FLARE says that it came from the client of the party's name, and if it
    carries the serial of the request. FLARE authenticates its clients by the certificates that it provisioned; the
    wire adds nothing to that, and what a party signs is signed by its own key.
    """

    def __init__(self, engine: Any, parties: Iterable[str], *, timeout: float = 60.0, limit: int = MAX_BYTES) -> None:
        self.parties = tuple(parties)
        self.connected: tuple[str, ...] = ()  # FLARE does not tell
        check_wire(self.parties, timeout)
        self.communication = Communication()
        self._engine = engine
        self._timeout = timeout
        self._limit = limit
        self._one_exchange = threading.Lock()
        self._pool = ThreadPoolExecutor(len(self.parties), "sottovoce-wire")
        self._closed = False

    def wait_for_parties(self, timeout: float | None = None) -> None:
        """Return when every party has opened its data; after `timeout` seconds (default: the wire's) raise."""
        patience = self._timeout if timeout is None else timeout
        # A client whose process of the job is not there yet says nothing; so ask again soon, and then less often.
        replies, left = self._asked(dict.fromkeys(self.parties, b""), patience, first=1.0)
        if left:
            raise WireError(f"{quoted(left)} could not start; its own log says why.", left)
        if absent := [name for name in self.parties if name not in replies]:
            raise WireError(f"waited {patience:g} s for {quoted(absent)}; see that these clients run.", absent)

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send one request to each named party at the same time and wait for one reply from each.

        Raises `WireError` when a party did not answer in time, or failed instead of answering.
        """
        with self._one_exchange:
            serials = check_requests(self.parties, messages, self._limit)
            if self._closed:
                raise WireError("the wire is closed; open a new one.")
            self.communication.downlink_bytes += sum(map(len, messages.values()))
            found, left = self._asked(messages, self._timeout)
            if left:
                raise WireError(f"{quoted(left)} failed instead of answering; its own log says why.", left)
            for name, reply in found.items():
                if (why := read_refusal(reply)) is not None:
                    raise refusal_error(name, why)
            replies = {name: found[name] for name in messages if _answers(found.get(name), serials[name], self._limit)}
            self.communication.uplink_bytes += sum(map(len, replies.values()))
            if missing := [name for name in messages if name not in replies]:
                raise WireError(
                    f"waited {self._timeout:g} s for an answer of {quoted(missing)}; see what the party is doing, or "
                    "give the wire a longer timeout.",
                    missing,
                )
            return replies

    def close(self) -> None:
        """Ask nothing more; a second call does nothing. The job ends when its coordinator has ended."""
        self._closed = True
        self._pool.shutdown(wait=False)

    def _asked(
        self, messages: Mapping[str, bytes], patience: float, first: float = math.inf
    ) -> tuple[dict[str, bytes], list[str]]:
        """What the parties said, asked again while they cannot be reached, and which of them have failed.

        The first attempt lasts so many seconds, and each that follows twice as many.
        """
        deadline = time.monotonic() + patience
        found: dict[str, bytes] = {}
        left: list[str] = []
        while waiting := {name: message for name, message in messages.items() if name not in found}:
            if (time_left := deadline - time.monotonic()) <= 0:
                break
            for name, reply in self._sent(waiting, min(first, time_left)).items():
                if reply.get(_LEFT):
                    left.append(name)
                elif type(data := reply.get(_FRAME)) is bytes:
                    found[name] = data
            if left or len(found) == len(messages):
                break
            first *= 2
            time.sleep(min(_PAUSE, max(0.0, deadline - time.monotonic())))
        return found, left

    def _sent(self, messages: Mapping[str, bytes], patience: float) -> dict[str, Any]:
        """One request to each; what is the same for several is encoded once."""
        groups: dict[bytes, list[str]] = {}
        for name, message in messages.items():
            groups.setdefault(message, []).append(name)
        if len(groups) == 1:
            return self._broadcast(*groups.popitem(), patience)
        calls = [self._pool.submit(self._broadcast, message, names, patience) for message, names in groups.items()]
        return {name: reply for call in calls for name, reply in call.result().items()}

    def _broadcast(self, message: bytes, names: list[str], patience: float) -> dict[str, Any]:
        request = Shareable()
        request[_FRAME] = message
        with self._engine.new_context() as context:
            if (signal := context.get_run_abort_signal()) is not None and signal.triggered:
                raise WireError("the job was aborted.", names)
            if len(message) <= _ONE_MESSAGE:
                replies = self._in_one_message(request, names, patience, context)
            else:
                replies = self._engine.send_aux_request(names, _TOPIC, request, patience, context, optional=True) or {}
        return {name: reply for name, reply in replies.items() if reply.get_return_code() == ReturnCode.OK}

    def _in_one_message(self, request: Any, names: list[str], patience: float, context: Any) -> dict[str, Any]:
        """What `multicast_aux_requests` is for, which FLARE 2.9.0 calls with an argument that nobody takes."""
        request.set_header(ReservedHeaderKey.TOPIC, _TOPIC)
        request.set_peer_props(context.get_all_public_props())
        job, wanted = context.get_job_id(), set(names)
        cells = {
            FQCN.join([client.get_fqcn(), job]): client.name
            for client in self._engine.get_clients()
            if client.name in wanted
        }
        if not cells:
            return {}
        replies = self._engine.get_cell().core_cell.broadcast_request(
            channel=CellChannel.AUX_COMMUNICATION,
            topic=_TOPIC,
            targets=list(cells),
            request=Message(payload=request),
            timeout=patience,
            optional=True,
        )
        return {cells[cell]: reply.payload for cell, reply in replies.items() if isinstance(reply.payload, Shareable)}


class CoordinatorEnd(Controller):  # type: ignore[misc]
    """FLARE's controller of a job: it runs `coordinate`, and nothing is asked but over the auxiliary channel."""

    @abstractmethod
    def coordinate(self, site: Site, wire: Callable[..., NvflareCoordinator]) -> None:
        """Do what the job is for; `wire` takes the arguments of `NvflareCoordinator` but for the engine."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:  # noqa: ARG002
        """Called by FLARE when the job has started; an error of ours ends the job, and FLARE reports it."""
        engine = fl_ctx.get_engine()
        try:
            self.coordinate(Site.of(fl_ctx), lambda parties, **said: NvflareCoordinator(engine, parties, **said))
        except SottovoceError as error:
            self.system_panic(str(error), fl_ctx)

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing to clear."""


class PartyEnd(Executor):  # type: ignore[misc]
    """FLARE's executor at a party: it answers requests of the auxiliary channel, one at a time.

    It has no arguments: a job can name it, and tell it nothing. An error is told to the holder (`failed`) and to nobody
    else: not to FLARE's log, which a site may stream to the server. From then on every request of the job is answered
    with the word that the party failed.

    Guarantee: nobody is answered but the server, by its process of the same job. FLARE lets its clients ask one
    another, and passes on where a request comes from, which its server holds against the client's token.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answer: Callable[[bytes], bytes] | None = None
        self._one_request = threading.Lock()

    @abstractmethod
    def opened(self, site: Site) -> Callable[[bytes], bytes]:
        """What answers here, from what the site itself has configured: `answering` of a party, or a way to one."""

    @abstractmethod
    def failed(self, site: Site, error: Exception) -> None:
        """Tell the holder why the party does not answer."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Called by FLARE; the job starts with the opening of the party."""
        if event_type == EventType.START_RUN:
            site = Site.of(fl_ctx)
            server = (FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()]), FQCN.ROOT_SERVER)  # the latter simulated
            with self._one_request:  # what comes while the party is being opened waits for it
                fl_ctx.get_engine().get_cell().register_request_cb(
                    channel=CellChannel.AUX_COMMUNICATION,
                    topic=_TOPIC,
                    cb=lambda message: self._handle(message, server, site),
                )
                with self._failing(site):
                    self._answer = self.opened(site)

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:  # noqa: ARG002
        """No task of FLARE's queue is served."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _handle(self, message: Any, server: tuple[str, ...], site: Site) -> Any:
        """A request as FLARE's cells pass it on, before its own runner would answer it, whoever asks."""
        if message.get_header(MessageHeaderKey.ORIGIN) not in server or not isinstance(message.payload, Shareable):
            return Message({MessageHeaderKey.RETURN_CODE: CellCode.UNAUTHENTICATED}, None)
        reply = make_reply(ReturnCode.OK)
        with self._one_request:
            said = self._answered(site, message.payload.get(_FRAME))
        reply.update({_LEFT: True} if said is None else {_FRAME: said})
        return Message({MessageHeaderKey.RETURN_CODE: CellCode.OK}, reply)

    def _answered(self, site: Site, frame: object) -> bytes | None:
        """The answer to a frame; None of a party that failed, now or before."""
        if frame == b"" and self._answer is not None:
            return b""
        with self._failing(site):
            if self._answer is not None and type(frame) is bytes:
                return self._answer(frame)
        return None

    @contextlib.contextmanager
    def _failing(self, site: Site) -> Any:
        try:
            yield
        except Exception as error:
            self._answer = None
            with contextlib.suppress(Exception):
                self.failed(site, error)


def answering(endpoint: Endpoint, identity: Identity) -> Callable[[bytes], bytes]:
    """What answers for an endpoint of this process.

    Guarantee: only `Outgoing`, which the gate makes, is sent, and that a frame is of another version. A request may
    arrive twice; the endpoint answers the second with the stored bytes of the first.
    """
    endpoint.identify(identity)
    return lambda frame: refuse_version(frame) or answer_request(endpoint, frame, MAX_BYTES)


def _answers(reply: bytes | None, serial: int, limit: int) -> bool:
    """Whether it is a frame of allowed size with that serial."""
    if reply is None or len(reply) > limit:
        return False
    try:
        return peek(reply)[1] == serial
    except WireError:
        return False
