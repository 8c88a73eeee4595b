"""What only the gRPC wire can get wrong: identity, lost connections, replays, garbage and hanging ends.

Honest parties are processes of their own; hostile ones are raw gRPC clients.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import grpc
import pytest

from processes import Program
from sottovoce.errors import InputError, WireError
from sottovoce.gate.frames import Frame, decode, encode, peek
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator

serials = itertools.count(1)
StartParty = Callable[..., Program]
Open = Callable[..., GrpcCoordinator]
# Seconds after which what should have happened has not: a failing test ends instead of hanging.
PATIENCE = 60.0


def request(query: str, kind: str = "ask", text: str = "") -> bytes:
    return encode(Frame(kind, next(serials), query=query, text=text))


def echo_of(message: bytes, text: str | None = None) -> bytes:
    frame = decode(message)
    kind = "done" if frame.kind == "done" else "answer"
    return encode(Frame(kind, frame.serial, query=frame.query, text=frame.text if text is None else text))


@pytest.fixture
def coordinator(certificates: Path) -> Credentials:
    return Credentials.load(certificates, "coordinator")


@pytest.fixture
def opened(coordinator: Credentials) -> Iterator[Open]:
    wires: list[GrpcCoordinator] = []

    def opened(*parties: str, address: str = "localhost:0", **options: Any) -> GrpcCoordinator:
        wires.append(GrpcCoordinator(address, parties, coordinator, **{"timeout": PATIENCE} | options))
        return wires[-1]

    yield opened
    for wire in wires:
        wire.close()


class RawClient:
    """A peer that says what it likes."""

    def __init__(self, port: int, credentials: Credentials | None, name: str | None) -> None:
        shown = (credentials.ca, credentials.key, credentials.certificate) if credentials else ()
        self.channel = grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*shown))
        self.outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.call: Any = self.channel.stream_stream("/sottovoce.Wire/Rounds", None, None)(
            iter(self.outbox.get, None), metadata=(("sottovoce-party", name),) if name else (), timeout=PATIENCE
        )

    def status(self) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError):
            for _ in self.call:
                pass
        return self.call.code(), self.call.details()

    def close(self) -> None:
        self.outbox.put(None)
        self.call.cancel()
        self.channel.close()


@pytest.fixture
def raw(certificates: Path) -> Iterator[Callable[..., RawClient]]:
    clients: list[RawClient] = []

    def raw(wire: GrpcCoordinator, name: str | None, shown: str = "") -> RawClient:
        credentials = Credentials.load(certificates, shown or name or "anna")
        clients.append(RawClient(wire.port, credentials, name))
        return clients[-1]

    yield raw
    for client in clients:
        client.close()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Silent:
    """An endpoint that is never reached."""

    def __init__(self, name: str) -> None:
        self.name = name

    def identify(self, identity: Any) -> None: ...

    def handle(self, message: bytes) -> Any:
        raise AssertionError("no request was expected")


def serve_silent(name: str, port: int, credentials: Credentials, **options: Any) -> None:
    stop = threading.Event()
    timer = threading.Timer(PATIENCE, stop.set)
    timer.start()
    try:
        serve_party(Silent(name), f"localhost:{port}", credentials, stop=stop, **options)
    finally:
        timer.cancel()


def finished(process: Program) -> tuple[int | None, str]:
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


class TestIdentity:
    def test_an_impostor_with_its_own_certificate_is_refused(
        self, opened: Open, certificates: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        wire = opened("anna", "ben")
        with pytest.raises(WireError, match=r"refused party 'anna'.*names 'ben', not 'anna'.*UNAUTHENTICATED"):
            serve_silent("anna", wire.port, Credentials.load(certificates, "ben"))
        assert "says it is 'anna': the certificate shown names 'ben', not 'anna'" in caplog.text
        with pytest.raises(WireError, match=r"waited 0.05 s for parties 'anna', 'ben' to connect"):
            wire.wait_for_parties(0.05)

    def test_a_party_that_is_not_on_the_list_is_refused(self, opened: Open, certificates: Path) -> None:
        wire = opened("anna")
        with pytest.raises(WireError, match=r"'mallory'.*not on the coordinator's list.*PERMISSION_DENIED"):
            serve_silent("mallory", wire.port, Credentials.load(certificates, "mallory"))

    def test_a_peer_without_a_name_is_refused(self, opened: Open, raw: Callable[..., RawClient]) -> None:
        assert raw(opened("anna"), None).status()[0] is grpc.StatusCode.UNAUTHENTICATED

    def test_a_peer_without_a_certificate_is_refused(self, opened: Open, coordinator: Credentials) -> None:
        wire = opened("anna")
        channel = grpc.secure_channel(f"localhost:{wire.port}", grpc.ssl_channel_credentials(coordinator.ca))
        with channel:
            call: Any = channel.stream_stream("/sottovoce.Wire/Rounds", None, None)(
                iter([encode(Frame("hello", 1))]), metadata=(("sottovoce-party", "anna"),), timeout=PATIENCE
            )
            with pytest.raises(grpc.RpcError):
                next(call)
            assert call.code() is grpc.StatusCode.UNAVAILABLE

    def test_a_certificate_of_another_authority_is_refused_by_either_side(
        self, opened: Open, certificates: Path, tmp_path: Path
    ) -> None:
        create_authority(tmp_path)
        for name in ("coordinator", "anna"):
            issue(tmp_path, name)
        ours, theirs = Credentials.load(certificates, "anna"), Credentials.load(tmp_path, "anna")
        wire = opened("anna")
        foreign_party = Credentials(ca=ours.ca, certificate=theirs.certificate, key=theirs.key)
        trusting_another = Credentials(ca=theirs.ca, certificate=ours.certificate, key=ours.key)
        for credentials in (foreign_party, trusting_another):
            with pytest.raises(WireError, match=r"'anna' had no connection .*one authority"):
                serve_silent("anna", wire.port, credentials, give_up_after=0.3)
        with pytest.raises(WireError, match="'anna' to connect"):
            wire.wait_for_parties(0.05)

    def test_a_party_does_not_take_another_party_for_the_coordinator(self, certificates: Path) -> None:
        wire = GrpcCoordinator("localhost:0", ["anna"], Credentials.load(certificates, "ben"))
        try:
            with pytest.raises(WireError, match="had no connection"):
                serve_silent("anna", wire.port, Credentials.load(certificates, "anna"), reconnect=False)
        finally:
            wire.close()


@pytest.mark.slow
def test_parties_outlive_coordinators_that_come_and_go(
    opened: Open, certificates: Path, party_module: ModuleType, tmp_path: Path
) -> None:
    """A party that reconnects while a coordinator is closing must not wait for ever on a stream nobody accepts."""
    names, stop = ("anna", "ben", "cleo"), threading.Event()
    first = opened(*names)
    address = f"localhost:{first.port}"

    def live(name: str) -> None:
        while not stop.is_set():
            endpoint = party_module.ScriptedEndpoint(name, tmp_path)
            serve_party(endpoint, address, Credentials.load(certificates, name), stop=stop, give_up_after=PATIENCE)

    threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    try:
        for turn in range(25):
            wire = first if turn == 0 else opened(*names, address=address)
            wire.wait_for_parties(PATIENCE)
            wire.exchange({name: request("echo", kind="done") for name in names})
            time.sleep(0.004 * (turn % 10))
            wire.close()
    finally:
        stop.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


class TestLostConnections:
    def test_a_killed_party_comes_back_and_the_exchange_completes(
        self, opened: Open, start_party: StartParty, tmp_path: Path, background: ThreadPoolExecutor
    ) -> None:
        wire = opened("anna", "ben")
        first = start_party("anna", wire.port, markers=tmp_path)
        start_party("ben", wire.port, markers=tmp_path)
        wire.wait_for_parties()
        messages = {"anna": request("once", text="round 5"), "ben": request("echo")}
        marker = tmp_path / f"anna-{peek(messages['anna'])[1]}"

        replies = background.submit(wire.exchange, messages)
        wait_until(marker.exists)
        first.kill()
        start_party("anna", wire.port, markers=tmp_path)
        assert replies.result() == {name: echo_of(message) for name, message in messages.items()}

        messages = {"anna": request("echo"), "ben": request("echo")}
        assert wire.exchange(messages) == {name: echo_of(message) for name, message in messages.items()}

    def test_a_stream_that_merely_ends_is_waited_for(
        self, opened: Open, raw: Callable[..., RawClient], background: ThreadPoolExecutor
    ) -> None:
        wire = opened("anna")
        first = raw(wire, "anna")
        message = request("echo")
        replies = background.submit(wire.exchange, {"anna": message})
        assert next(first.call) == message
        first.outbox.put(None)
        assert list(first.call) == []
        second = raw(wire, "anna")
        assert next(second.call) == message
        second.outbox.put(echo_of(message))
        assert replies.result() == {"anna": echo_of(message)}

    def test_a_party_may_come_after_the_request(
        self, opened: Open, start_party: StartParty, background: ThreadPoolExecutor
    ) -> None:
        wire = opened("anna")
        message = request("echo")
        replies = background.submit(wire.exchange, {"anna": message})
        start_party("anna", wire.port)
        assert replies.result() == {"anna": echo_of(message)}

    def test_parties_find_a_coordinator_that_was_restarted(self, opened: Open, start_party: StartParty) -> None:
        wire = opened("anna")
        process = start_party("anna", wire.port)
        wire.wait_for_parties()
        wire.close()
        again = opened("anna", address=f"localhost:{wire.port}")
        message = request("echo")
        assert again.exchange({"anna": message}) == {"anna": echo_of(message)}
        assert process.poll() is None

    def test_the_newest_connection_of_a_party_wins(
        self, opened: Open, start_party: StartParty, raw: Callable[..., RawClient], background: ThreadPoolExecutor
    ) -> None:
        wire = opened("anna")
        process = start_party("anna", wire.port)
        wire.wait_for_parties()
        message = request("sleep")
        replies = background.submit(wire.exchange, {"anna": message})
        newer = raw(wire, "anna")
        assert next(newer.call) == message
        newer.outbox.put(echo_of(message))
        assert replies.result() == {"anna": echo_of(message)}
        assert process.poll() is None
        process.kill()

    def test_the_older_process_of_a_party_is_told_and_ends(
        self, opened: Open, start_party: StartParty, raw: Callable[..., RawClient]
    ) -> None:
        wire = opened("anna")
        process = start_party("anna", wire.port)
        wire.wait_for_parties()
        newer = raw(wire, "anna")
        code, output = finished(process)
        assert code != 0
        assert "a newer connection of this party replaced this one (ABORTED)" in output
        assert newer.call.is_active()

    def test_a_timeout_names_the_party_and_how_long(self, opened: Open, start_party: StartParty) -> None:
        wire = opened("anna", "ben", timeout=0.5)
        start_party("anna", wire.port)
        wait_until(lambda: "anna" in wire._connections)
        with pytest.raises(WireError, match=r"waited 0.05 s for party 'ben' to connect"):
            wire.wait_for_parties(0.05)
        with pytest.raises(WireError, match=r"waited 0.5 s for an answer of party 'anna' \(connected\)"):
            wire.exchange({"anna": request("sleep")})
        with pytest.raises(WireError, match=r"waited 0.5 s for an answer of party 'ben' \(party 'ben' not connected\)"):
            wire.exchange({"ben": request("echo")})

    def test_a_party_that_cannot_find_the_coordinator_gives_up(self, certificates: Path) -> None:
        credentials = Credentials.load(certificates, "anna")
        for options in ({"give_up_after": 0.2}, {"reconnect": False}):
            with pytest.raises(WireError, match=r"'anna' had no connection to the coordinator at localhost:1 for"):
                serve_silent("anna", 1, credentials, **options)

    def test_a_party_stops_when_told(self, opened: Open, certificates: Path, background: ThreadPoolExecutor) -> None:
        wire = opened("anna")
        credentials = Credentials.load(certificates, "anna")
        for address in (f"localhost:{wire.port}", "localhost:1"):
            stop = threading.Event()
            serving = background.submit(serve_party, Silent("anna"), address, credentials, stop=stop)
            if address != "localhost:1":
                wire.wait_for_parties()
            stop.set()
            assert serving.result(timeout=PATIENCE) is None


class TestHostileReplies:
    def test_stale_and_repeated_replies_are_dropped(
        self,
        opened: Open,
        raw: Callable[..., RawClient],
        background: ThreadPoolExecutor,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        wire = opened("anna")
        client = raw(wire, "anna")
        first, second = request("echo", text="1"), request("echo", text="2")

        replies = background.submit(wire.exchange, {"anna": first})
        assert next(client.call) == first
        client.outbox.put(echo_of(second, "too early"))
        client.outbox.put(echo_of(first))
        client.outbox.put(echo_of(first, "a second answer"))
        assert replies.result() == {"anna": echo_of(first)}

        client.outbox.put(echo_of(first, "between rounds"))
        replies = background.submit(wire.exchange, {"anna": second})
        assert next(client.call) == second
        client.outbox.put(echo_of(first))
        client.outbox.put(echo_of(second))
        assert replies.result() == {"anna": echo_of(second)}
        assert wire.communication.uplink_bytes == len(echo_of(first)) + len(echo_of(second))
        dropped = [record for record in caplog.records if "stale or repeated" in record.message]
        assert len(dropped) == 4

    def test_the_first_of_two_answers_stands(
        self,
        opened: Open,
        raw: Callable[..., RawClient],
        background: ThreadPoolExecutor,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        wire = opened("anna", "ben")
        anna, ben = raw(wire, "anna"), raw(wire, "ben")
        messages = {name: request("echo") for name in wire.parties}
        replies = background.submit(wire.exchange, messages)
        for client in (anna, ben):
            next(client.call)
        anna.outbox.put(echo_of(messages["anna"]))
        anna.outbox.put(echo_of(messages["anna"], "on second thoughts"))
        wait_until(lambda: "stale or repeated reply of party 'anna'" in caplog.text)
        ben.outbox.put(echo_of(messages["ben"]))
        assert replies.result() == {name: echo_of(message) for name, message in messages.items()}

    def test_a_party_cannot_answer_for_another(
        self, opened: Open, raw: Callable[..., RawClient], background: ThreadPoolExecutor
    ) -> None:
        wire = opened("anna", "ben", timeout=1.0)
        anna, ben = raw(wire, "anna"), raw(wire, "ben")
        message = request("echo")
        replies = background.submit(wire.exchange, {"anna": message})
        assert next(anna.call) == message
        ben.outbox.put(echo_of(message))
        with pytest.raises(WireError, match="'anna'"):
            replies.result()

    @pytest.mark.parametrize("garbage", [b"", b"garbage", b"sotv\x01\xff" + bytes(40), bytes(100)])
    def test_garbage_ends_that_stream_alone_and_is_reported(
        self,
        opened: Open,
        raw: Callable[..., RawClient],
        background: ThreadPoolExecutor,
        caplog: pytest.LogCaptureFixture,
        garbage: bytes,
    ) -> None:
        wire = opened("anna", "ben")
        anna, ben = raw(wire, "anna"), raw(wire, "ben")
        wire.wait_for_parties()
        anna.outbox.put(garbage)
        code, _ = anna.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "ended the connection of party 'anna'" in caplog.text
        message = request("echo")
        replies = background.submit(wire.exchange, {"ben": message})
        assert next(ben.call) == message
        ben.outbox.put(echo_of(message))
        assert replies.result() == {"ben": echo_of(message)}

    def test_a_message_above_the_limit_ends_that_stream_alone(
        self, opened: Open, raw: Callable[..., RawClient], background: ThreadPoolExecutor
    ) -> None:
        wire = opened("anna", "ben", limit=10_000)
        anna, ben = raw(wire, "anna"), raw(wire, "ben")
        wire.wait_for_parties()
        anna.outbox.put(encode(Frame("answer", 1, text="x" * 20_000)))
        code, details = anna.status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "10000" in details
        assert ben.call.is_active()


class TestEndings:
    def test_a_party_answers_done_and_returns(self, opened: Open, start_party: StartParty) -> None:
        wire = opened("anna", "ben")
        processes = [start_party(name, wire.port) for name in wire.parties]
        messages = {name: request("echo", kind="done") for name in wire.parties}
        assert wire.exchange(messages) == {name: echo_of(message) for name, message in messages.items()}
        wire.close()
        assert [finished(process) for process in processes] == [(0, ""), (0, "")]

    def test_one_party_done_does_not_end_the_wait_for_another(
        self, opened: Open, start_party: StartParty, raw: Callable[..., RawClient], background: ThreadPoolExecutor
    ) -> None:
        wire = opened("anna", "ben")
        process = start_party("anna", wire.port)
        ben = raw(wire, "ben")
        messages = {name: request("echo", kind="done") for name in wire.parties}
        replies = background.submit(wire.exchange, messages)
        assert finished(process) == (0, "")
        assert next(ben.call) == messages["ben"]
        ben.outbox.put(echo_of(messages["ben"]))
        assert replies.result() == {name: echo_of(message) for name, message in messages.items()}

    @pytest.mark.parametrize("query", ["raise", "leak-bytes"])
    def test_a_failing_party_is_told_apart_at_once_and_its_error_stays_at_home(
        self,
        opened: Open,
        start_party: StartParty,
        party_module: ModuleType,
        caplog: pytest.LogCaptureFixture,
        query: str,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        wire = opened("anna")
        process = start_party("anna", wire.port)
        with pytest.raises(WireError, match="party 'anna' ended the connection") as error:
            wire.exchange({"anna": request(query)})
        code, output = finished(process)
        assert code != 0
        assert {"raise": "ValueError", "leak-bytes": "LeakError"}[query] in output
        assert party_module.SECRET not in str(error.value) + caplog.text
        assert wire.communication.uplink_bytes == 0

    def test_an_answer_above_the_party_s_limit_is_not_sent(self, opened: Open, start_party: StartParty) -> None:
        wire = opened("anna")
        process = start_party("anna", wire.port, limit=40)
        with pytest.raises(WireError, match="party 'anna' ended the connection"):
            wire.exchange({"anna": request("count")})
        assert "answer of party 'anna' is too large" in finished(process)[1]

    def test_closing_interrupts_a_waiting_exchange(self, opened: Open, background: ThreadPoolExecutor) -> None:
        wire = opened("anna")
        waiting = background.submit(wire.exchange, {"anna": request("echo")})
        background.submit(wire.close)
        with pytest.raises(WireError, match="closed"):
            waiting.result(timeout=PATIENCE)

    @pytest.mark.slow
    def test_a_program_that_forgets_to_close_still_ends(self, certificates: Path, start_party: StartParty) -> None:
        program = (
            "import sys; from sottovoce.transports.grpc_wire import GrpcCoordinator;"
            "from sottovoce.transports.certificates import Credentials;"
            "wire = GrpcCoordinator('localhost:0', ['anna'], Credentials.load(sys.argv[1], 'coordinator'));"
            "print(wire.port, flush=True); wire.wait_for_parties(60)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program, certificates], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            start_party("anna", int(process.stdout.readline()))
            _, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, errors) == (0, "")
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("parties", "options", "fault"),
    [
        ((), {}, "at least one"),
        (("anna", "anna"), {}, "once"),
        (("anna/..",), {}, "name="),
        (("anna",), {"timeout": 0.0}, "timeout=0.0"),
        (("anna",), {"timeout": float("nan")}, "timeout=nan"),
        (("anna",), {"address": "no-such-host.invalid:1"}, "address="),
    ],
)
def test_bad_arguments_are_told(opened: Open, parties: tuple[str, ...], options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        opened(*parties, **options)


def test_a_port_in_use_is_told(opened: Open) -> None:
    wire = opened("anna")
    with pytest.raises(InputError, match="free port"):
        opened("anna", address=f"localhost:{wire.port}")


def test_the_limit_of_open_files_is_raised_for_many_parties_and_what_is_above_it_is_refused(opened: Open) -> None:
    resource = pytest.importorskip("resource")
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        opened(*(f"p{place}" for place in range(200)))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (200 + 256, hard)
        if hard != resource.RLIM_INFINITY:
            with pytest.raises(InputError, match=rf"this process may have {hard}; raise its limit"):
                opened(*(f"p{place}" for place in range(hard)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
