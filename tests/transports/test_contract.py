"""What every wire must do. A new wire adds a subclass of `TransportContract` at the end of this file."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import flare
from sottovoce.errors import InputError, LeakError, WireError
from sottovoce.formats import FRAME
from sottovoce.gate import frames
from sottovoce.gate.frames import MAX_BYTES, Frame, decode, encode
from sottovoce.transports import grpc_wire
from sottovoce.transports.base import InProcess, Transport
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_wire import GrpcCoordinator

PARTIES = ("anna", "ben", "cleo")
LIMIT = 10_000_000
serials = itertools.count(1)


def request(query: str, **content: object) -> bytes:
    return encode(Frame("ask", next(serials), b"p" * 32, 4, query, **content))  # type: ignore[arg-type]


def echo_of(message: bytes) -> bytes:
    frame = decode(message)
    kind = "done" if frame.kind == "done" else "answer"
    return encode(Frame(kind, frame.serial, frame.plan, frame.round, frame.query, frame.arrays, frame.text))


class TransportContract:
    """Subclasses give `opened`: a function that opens a wire to parties of the given names."""

    # What the coordinator sees of a party that tried to send something else than Outgoing.
    leak_error: type[Exception]
    # Whether parties are processes of their own, and so may be of another version.
    apart = False

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls) -> Iterator[Callable[..., Transport]]:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def wire(cls, opened: Callable[..., Transport]) -> Transport:
        return opened(PARTIES)

    @pytest.mark.parametrize(
        "content",
        [
            {},
            {"text": "é" * 1000},
            {"arrays": {"empty": np.zeros((0, 3)), "none": np.zeros(0, dtype=np.int64)}},
            {"arrays": {"scalar": np.array(-0.0), "n": np.array([[np.iinfo(np.int64).min]])}},
            {"arrays": {"w": np.random.default_rng(0).normal(size=1_000_000)}},
        ],
        ids=["nothing", "text", "empty", "scalar", "million"],
    )
    def test_bytes_arrive_unchanged(self, wire: Transport, content: dict[str, object]) -> None:
        messages = {name: request("echo", **content) for name in PARTIES}
        replies = wire.exchange(messages)
        assert replies == {name: echo_of(message) for name, message in messages.items()}

    def test_each_exchange_gets_its_own_replies_in_the_order_asked(self, wire: Transport) -> None:
        for round_ in range(50):
            order = PARTIES[round_ % 3 :] + PARTIES[: round_ % 3]
            messages = {name: request("echo", text=f"{round_} {name}") for name in order}
            replies = wire.exchange(messages)
            assert list(replies) == list(order)
            assert replies == {name: echo_of(message) for name, message in messages.items()}

    def test_only_the_named_parties_are_asked(self, wire: Transport) -> None:
        def echoes() -> list[int]:
            replies = wire.exchange({name: request("count") for name in PARTIES})
            return [json.loads(decode(replies[name]).text)["records"] for name in PARTIES]

        before = echoes()
        assert list(wire.exchange({"ben": request("echo")})) == ["ben"]
        assert [now - then for now, then in zip(echoes(), before, strict=True)] == [0, 1, 0]
        assert wire.exchange({}) == {}

    def test_an_unknown_party_is_refused_and_nobody_is_asked(self, wire: Transport) -> None:
        before = wire.communication.downlink_bytes
        with pytest.raises(InputError, match=r"'dora'.*anna, ben, cleo"):
            wire.exchange({"anna": request("echo"), "dora": request("echo")})
        assert wire.communication.downlink_bytes == before

    def test_bytes_are_counted_once_on_each_way(self, wire: Transport) -> None:
        up, down = wire.communication.uplink_bytes, wire.communication.downlink_bytes
        messages = {name: request("echo", arrays={"w": np.zeros(size)}) for size, name in enumerate(PARTIES)}
        wire.exchange(messages)
        assert wire.communication.downlink_bytes - down == sum(map(len, messages.values()))
        assert wire.communication.uplink_bytes - up == sum(len(echo_of(message)) for message in messages.values())
        assert wire.communication.rounds == 0

    def test_a_request_that_is_too_large_is_refused(self, wire: Transport) -> None:
        with pytest.raises(WireError, match=rf"'anna' is too large.*at most {LIMIT}"):
            wire.exchange({"anna": request("echo", text="x" * LIMIT)})

    def test_a_request_that_is_no_frame_is_refused(self, wire: Transport) -> None:
        with pytest.raises(WireError, match="truncated"):
            wire.exchange({"anna": b"good morning"})

    def test_an_answer_to_another_request_is_never_delivered(self, opened: Callable[..., Transport]) -> None:
        wire = opened(("anna",), timeout=1.0)
        with pytest.raises(WireError, match="'anna'"):
            wire.exchange({"anna": request("stale")})
        assert wire.communication.uplink_bytes == 0

    def test_only_outgoing_leaves_a_party(self, opened: Callable[..., Transport], party_module: ModuleType) -> None:
        wire = opened(("anna",))
        with pytest.raises(self.leak_error) as error:
            wire.exchange({"anna": request("leak-bytes")})
        assert party_module.SECRET not in str(error.value)
        assert wire.communication.uplink_bytes == 0

    def test_a_frame_of_another_version_is_refused_by_both_numbers(
        self, opened: Callable[..., Transport], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not self.apart:
            pytest.skip("one process has one version")
        wire = opened(("anna",))
        wire.exchange({"anna": request("echo")})
        monkeypatch.setattr(frames, "FRAME", FRAME._replace(number=FRAME.number + 1))  # of this process alone
        both = rf"'anna' has another version .* format {FRAME.number + 1}, .* format {FRAME.number}\..*same version"
        with pytest.raises(WireError, match=both) as error:
            wire.exchange({"anna": request("echo")})
        assert not error.value.parties  # nobody goes on without it
        monkeypatch.undo()
        message = request("echo")
        assert wire.exchange({"anna": message}) == {"anna": echo_of(message)}

    def test_close_is_idempotent_and_final(self, opened: Callable[..., Transport]) -> None:
        wire = opened(("anna",))
        wire.exchange({"anna": request("echo")})
        wire.close()
        wire.close()
        with pytest.raises(WireError, match="closed"):
            wire.exchange({"anna": request("echo")})


class TestInProcess(TransportContract):
    leak_error = LeakError

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, party_module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Transport]:
        def opened(names: tuple[str, ...], timeout: float = 60.0) -> Transport:
            folder = tmp_path_factory.mktemp("markers")
            return InProcess([party_module.ScriptedEndpoint(name, folder) for name in names], limit=LIMIT)

        return opened

    @pytest.mark.parametrize("query", ["leak-bytes", "leak-array", "leak-nothing", "leak-subclass"])
    def test_no_type_but_outgoing_leaves_a_party(self, wire: Transport, party_module: ModuleType, query: str) -> None:
        with pytest.raises(LeakError, match="takes only Outgoing") as error:
            wire.exchange({"anna": request(query)})
        assert party_module.SECRET not in str(error.value)

    def test_an_answer_that_is_too_large_is_refused(self, party_module: ModuleType, tmp_path: Path) -> None:
        wire = InProcess([party_module.ScriptedEndpoint("anna", tmp_path)], limit=70)
        message = encode(Frame("ask", 1, query="count"))
        assert len(message) < 70
        assert wire.exchange({"anna": message})
        wire = InProcess([party_module.ScriptedEndpoint("anna", tmp_path)], limit=len(message))
        with pytest.raises(WireError, match="answer of party 'anna' is too large"):
            wire.exchange({"anna": message})

    def test_two_parties_of_one_name_are_refused(self, party_module: ModuleType, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="share a name"):
            InProcess([party_module.ScriptedEndpoint("anna", tmp_path)] * 2)


class TestGrpc(TransportContract):
    """Real TLS, and every party a process of its own."""

    leak_error = WireError
    apart = True

    def test_a_wire_that_does_not_know_a_refusal_is_found_out(
        self, opened: Callable[..., Transport], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A planted fault: the coordinator of before, which takes a refusal for nothing and waits."""
        wire = opened(("anna",), timeout=1.0)
        monkeypatch.setattr(frames, "FRAME", FRAME._replace(number=FRAME.number + 1))
        monkeypatch.setattr(grpc_wire, "read_refusal", lambda reply: None)
        with pytest.raises(WireError, match="waited 1 s"):
            wire.exchange({"anna": request("echo")})

    @pytest.fixture(scope="class")
    @classmethod
    def opened(
        cls, certificates: Path, start_party_of_class: Callable[..., object]
    ) -> Iterator[Callable[..., Transport]]:
        wires: list[GrpcCoordinator] = []

        def opened(names: tuple[str, ...], timeout: float = 60.0) -> Transport:
            credentials = Credentials.load(certificates, "coordinator")
            wire = GrpcCoordinator("localhost:0", names, credentials, timeout=timeout, limit=LIMIT)
            wires.append(wire)
            for name in names:
                start_party_of_class(name, wire.port, limit=MAX_BYTES)
            wire.wait_for_parties(60.0)
            return wire

        yield opened
        for wire in wires:
            wire.close()


class NvflareContract(TransportContract):
    """Over NVIDIA FLARE: what a wire must do, and a party answers the coordinator of its job alone."""

    leak_error = WireError
    way: Callable[..., contextlib.AbstractContextManager[flare.Wires]]

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Transport]]:
        with cls.way(tmp_path_factory.mktemp("flare"), PARTIES) as wires:
            yield wires.opened

    @pytest.mark.parametrize("numbers", [1, 300_000], ids=["one message", "streamed"])
    def test_a_party_answers_no_other_party(self, wire: flare.RemoteWire, numbers: int) -> None:
        message = request("echo", arrays={"w": np.zeros(numbers)})
        code, frame = wire.crossed("ben", "anna", message)
        assert frame is None
        assert code != "OK"
        assert wire.exchange({"anna": message}) == {"anna": echo_of(message)}


@flare.needs_flare
class TestNvflareSimulated(NvflareContract):
    """In its simulator: no TLS, and every client a process of its own."""

    way = staticmethod(flare.simulated)


@flare.needs_flare
class TestNvflareProvisioned(NvflareContract):
    """As it is run: provisioned, mutual TLS, a server, clients and a submitted job."""

    way = staticmethod(flare.provisioned)
