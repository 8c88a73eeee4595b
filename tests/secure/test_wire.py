"""Secure sums over gRPC with mutual TLS: a party that hangs, and pins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sottovoce as sv
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.training import Training
from sottovoce.gate.frames import decode
from sottovoce.gate.outgoing import Outgoing
from sottovoce.solvers import by_name
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials, pin_in
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator
from sottovoce.transports.identity import Certified, local_identities
from summing import data_of

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "east")


class Hanging(sv.Party):
    """Answers nothing from a round on, until it is let go on."""

    until: threading.Event | None = None
    late: list[int]

    def handle(self, request: bytes) -> Outgoing:
        frame = decode(request)
        if self.until is not None and frame.kind == "ask" and frame.round >= 2:
            self.until.wait(30)
            self.late.append(frame.round)
        return super().handle(request)


class Ends:
    """A wire, and parties in threads at their ends of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stop = folder, threading.Event()
        create_authority(folder)
        for name in ("coordinator", *NAMES):
            issue(folder, name)
        self.credentials = Credentials.load(folder, "coordinator")
        self.wire = GrpcCoordinator("localhost:0", NAMES, self.credentials, timeout=60.0)
        self.threads: list[threading.Thread] = []
        self.parties = {name: self.party(name, place) for place, name in enumerate(NAMES)}

    def party(self, name: str, place: int) -> Hanging:
        party = Hanging(name, *data_of(place), policy=sv.Policy(secure=True))
        party.late = []
        return party

    def serve(self, pins: dict[str, dict[str, str]] | None = None) -> sv.Federation:
        pinned = dict(pin_in(self.folder / f"{name}.pem") for name in NAMES)
        for name, party in self.parties.items():
            arguments = {"stop": self.stop, "pins": (pins or {}).get(name, pinned)}
            address, own = f"localhost:{self.wire.port}", Credentials.load(self.folder, name)
            thread = threading.Thread(target=serve_party, args=(party, address, own), kwargs=arguments, daemon=True)
            thread.start()
            self.threads.append(thread)
        self.wire.wait_for_parties(30.0)
        return sv.Federation.connect(self.wire, sums="secure", record=True)

    def end(self) -> None:
        self.stop.set()
        self.wire.close()
        for thread in self.threads:
            thread.join(10.0)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path)
    yield made
    made.end()


def model() -> sv.PrivateLogisticRegression:
    solver = by_name("newton", rounds=4)
    return sv.PrivateLogisticRegression(epsilon=5.0, delta=1e-5, row_norm=1.0, classes=(0, 1), solver=solver)


@pytest.fixture
def coordinators(monkeypatch: pytest.MonkeyPatch) -> list[Coordinator]:
    """Those that were made, in order."""
    found: list[Coordinator] = []
    plain = Coordinator.__init__

    def init(self: Coordinator, *arguments: Any, **named: Any) -> None:
        plain(self, *arguments, **named)
        found.append(self)

    monkeypatch.setattr(Coordinator, "__init__", init)
    return found


def test_a_run_goes_on_without_a_party_that_hangs_and_its_late_answer_is_not_used(
    ends: Ends, coordinators: list[Coordinator]
) -> None:
    federation = ends.serve().secure_aggregation(dropouts=1, retries=1)
    hanging = ends.parties["south"]
    hanging.until = threading.Event()
    ends.wire._timeout = 3.0
    plain = ends.wire.exchange

    def exchange(messages: Any) -> dict[str, bytes]:
        asked = decode(next(iter(messages.values())))
        if hanging.until is not None and asked.round == 3:  # two rounds on it wakes, and answers the old question
            hanging.until.set()
            for _ in range(100):
                if hanging.late:
                    break
                threading.Event().wait(0.02)
        return plain(messages)

    ends.wire.exchange = exchange  # type: ignore[method-assign]
    fitted = model().fit(federation)
    (coordinator,) = [each for each in coordinators if each.left]
    assert coordinator.left == {"south": 2}
    assert hanging.late == [2]
    assert [message.round for message in fitted.transcript_ if message.sender == "sum"] == [0, 1, 2, 3, 4]


def test_without_spare_releases_the_wire_names_who_did_not_answer(ends: Ends) -> None:
    federation = ends.serve()
    ends.parties["south"].until = until = threading.Event()
    ends.wire._timeout = 1.0
    with pytest.raises(
        WireError, match=r"waited 1 s .* round 2: south left.* epsilon 5 at delta 1e-05, stays"
    ) as error:
        model().fit(federation)
    until.set()
    assert error.value.parties == ("south",)


class TestPins:
    @pytest.fixture
    def pins(self, ends: Ends) -> dict[str, str]:
        return dict(pin_in(ends.folder / f"{name}.pem") for name in NAMES)

    def test_parties_that_pinned_one_another_fit(self, ends: Ends, pins: dict[str, str]) -> None:
        assert set(pins) == set(NAMES)
        federation = ends.serve(dict.fromkeys(NAMES, pins))
        assert model().fit(federation).coef_.shape == (1, 3)

    def test_a_certificate_that_the_authority_made_for_another_key_is_refused(
        self, ends: Ends, pins: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing was answered: whoever has the authority's key could have taken the place of a party."""
        issue(ends.folder, "south")  # by whoever has authority.key
        assert pin_in(ends.folder / "south.pem") != ("south", pins["south"])
        federation = ends.serve({"north": pins})
        answer = Training.answer

        def ended(self: Training, frame: Any) -> Any:
            return answer(self, frame) if frame.kind == "done" else pytest.fail("something was asked")

        monkeypatch.setattr(Training, "answer", ended)
        with pytest.raises(RefusedError, match=r"north: the certificate of south has the key sha256:.* another one is"):
            model().fit(federation)

    def test_who_is_pinned(self, ends: Ends, pins: dict[str, str]) -> None:
        own = Credentials.load(ends.folder, "north")
        assert Certified(own).pinned == {"north"}
        some = Certified(own, {"south": pins["south"]})
        assert some.pinned == {"north", "south"}
        here = local_identities(NAMES)["north"]
        assert here.pinned == set(NAMES)
        with pytest.raises(InputError, match=r"peers.south='sha256:12' is no pin; `sottovoce pin south.pem`"):
            Certified(own, {"south": "sha256:12"})

    def test_two_names_have_two_keys(self, ends: Ends, pins: dict[str, str]) -> None:
        own, one = Credentials.load(ends.folder, "north"), pins["south"]
        with pytest.raises(InputError, match=r"south and east have one key, sha256:.*: one organisation would be two"):
            Certified(own, {"south": one, "east": one})
        with pytest.raises(InputError, match=r"peers\.south is the key of north itself"):
            Certified(own, {"south": pin_in(ends.folder / "north.pem")[1]})
