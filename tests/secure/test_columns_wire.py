"""Secure columns over wires: messages that come twice, pieces, ends that nobody knows, processes that are killed."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from processes import Program
from secure_fits import NOTARY, RECORDS, Watched, by_columns, by_rows, data, doubled, model
from sottovoce.data.block import Block
from sottovoce.data.identifiers import fingerprint, identifiers
from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.alignment import AlignmentFile
from sottovoce.federation.party import Party
from sottovoce.federation.run_keys import check_pinned
from sottovoce.federation.secure_columns.dealer import Dealer
from sottovoce.federation.secure_columns.party import ColumnRun
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.secure import streams
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_wire import GrpcCoordinator
from support import renewed

PROGRAM = Path(__file__).parent.parent / "programs" / "serve_secure.py"


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> int:
    """Records go in several pieces."""
    monkeypatch.setattr(streams, "FRAME", 240 * 25)
    return 128 * 25


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often each party made its part of a sum over a piece."""
    found: Counter[Any] = Counter()
    whole = ColumnRun._end

    def counted(self: Any, turn: Any, sent: Any) -> None:
        before = turn.message
        whole(self, turn, sent)
        if turn.message > before and turn.work.program == "look-up":
            found[self._masker.name, turn.work.number, turn.work.piece] += 1

    monkeypatch.setattr(ColumnRun, "_end", counted)
    return found


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("dealer", [None, NOTARY])
@pytest.mark.parametrize("solver", ["newton", "whitened"])
def test_a_message_that_comes_twice_is_answered_by_the_same_bytes(
    solver: str, dealer: str | None, parts: Counter[Any]
) -> None:
    """A piece that all parties added twice would move a sum twice as far, and nobody would notice."""
    federation = by_columns(dealer=None if dealer is None else Dealer(dealer), ids=[range(RECORDS)] * 3)
    ends = doubled(federation)
    fitted = model(solver=solver).fit(federation)
    assert np.isfinite(fitted.coef_).all()
    assert all(end.repeated > 6 for end in ends)
    assert len(parts) >= 3 * 2 * 3  # parties, rounds, pieces
    assert set(parts.values()) == {1}


@pytest.mark.parametrize("split", [by_columns, by_rows])
def test_without_pieces_too(split: Any) -> None:
    federation = split(dealer=Dealer(NOTARY))
    doubled(federation)
    model().fit(federation)


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("fault", ["added twice by all", "added twice by one", "left out"])
def test_a_piece_that_is_added_twice_or_left_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above, and what a party says to a coordinator that leaves records out."""
    whole = ColumnRun._end

    def end(self: Any, turn: Any, sent: Any) -> None:
        again = turn.message == turn.messages
        if turn.work.program != "look-up" or fault != "left out":
            whole(self, turn, sent)
        if again and turn.work.piece in self._parts[1]:  # once more, as if it were new
            self._parts[1][turn.work.piece] = 2 * self._parts[1][turn.work.piece]

    monkeypatch.setattr(ColumnRun, "_end", end)
    plain = model(insecure_seed=1).fit(by_columns()).coef_ if fault == "added twice by all" else None
    federation = by_columns()
    ends = doubled(federation)
    for each in ends if fault == "added twice by one" else []:
        each.again = each.name == "a"
    if plain is not None:
        assert np.abs(model(insecure_seed=1).fit(federation).coef_ - plain).max() > 1e-3
        return
    reason = "lacks the parts of some records" if fault == "left out" else "do not add up"
    with pytest.raises((WireError, RefusedError), match=reason):
        model().fit(federation)


def test_messages_are_as_long_as_pieces_are(small_frames: int) -> None:
    wire = Watched(federation := by_columns(dealer=Dealer(NOTARY)))
    fitted = model().fit(federation)
    assert len(fitted.plan_.to_json()) < small_frames
    assert small_frames / 4 < wire.longest < small_frames + 1000
    assert sum(said.query == "gradient" for said, _ in wire.of(NOTARY, "secure")) == 2 * 3  # rounds and pieces


class Shy:
    """An end that knows some of the others by the word of an authority alone."""

    def __init__(self, identity: Any, known: str) -> None:
        self.sign, self.verify, self.pinned = identity.sign, identity.verify, frozenset(known.split())


@pytest.mark.parametrize(("known", "unknown"), [("a b notary", "c"), ("a b c", NOTARY)])
def test_an_end_that_is_not_pinned_is_refused_before_data_are_touched(
    known: str, unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = by_columns(dealer=Dealer(NOTARY))
    fitted = model().fit(federation)
    party = federation._parties[0]
    party.identify(Shy(party.identity, known))
    monkeypatch.setattr(Block, "prepare", None)
    with pytest.raises(RefusedError, match=f"has not pinned the key of {unknown}"):
        model().fit(federation)
    asked = Frame("plan", 1, fitted.plan_.digest, 0, "check", {}, fitted.plan_.to_json())
    party.training.seen.clear()
    assert b"has not pinned" in party.handle(encode(asked)).data  # also where it had told a key


def test_who_was_not_told_who_it_is_knows_nobody() -> None:
    with pytest.raises(RefusedError, match="has not pinned the key of b"):
        check_pinned("a", ["a", "b"], None)
    check_pinned("a", ["a"], None)
    fitted = model().fit(by_rows())  # by rows the curve says what a made-up party would learn
    assert fitted.plan_.aggregation is not None


def test_where_it_was_left_open_columns_are_not_secure_with_whom_is_not_known() -> None:
    federation = by_columns(products="auto", labels="shared")
    for party in federation._parties:
        party.identify(Shy(party.identity, "a b"))
    fitted = model(solver="auto").fit(federation)
    assert fitted.plan_.aggregation is None
    assert "has not pinned the key of c" in federation.why


@pytest.mark.parametrize("who", ["c", NOTARY])
@pytest.mark.parametrize("at", [1, 4, 9])
def test_who_does_not_come_back_ends_the_run(who: str, at: int) -> None:
    """In the set-up, in the Gram matrix, in a gradient."""
    federation = by_columns(dealer=Dealer(NOTARY))
    end: Any = next(end for end in federation._ends if end.name == who)
    whole, count = end.handle, 0

    def gone(request: bytes) -> Any:
        nonlocal count
        count += decode(request).kind in ("secure", "ask")
        if count >= (at if who == "c" else 1 + at // 4):
            raise ConnectionError
        return whole(request)

    end.handle = gone
    with pytest.raises(WireError, match=r"The run is lost; what was charged stays charged") as lost:
        model().fit(federation)
    assert lost.value.parties == (who,)


class Restarting:
    """A wire on which a party is started anew before the so-manieth exchange, with its keys or without."""

    def __init__(self, federation: sv.Federation, account: sv.Account, at: int, *, keys: bool) -> None:
        wire: Any = federation.transport
        plain, self.count = wire.exchange, 0

        def exchange(messages: Any) -> Any:
            self.count += 1
            if self.count == at:
                X, _ = data()
                for path in [] if keys else account.path.with_name(f"{account.path.name}.secure").glob("*.key"):
                    path.unlink()
                renewed(wire, Party("a", X[:, :1], None, account=account, policy=sv.Policy(secure=True)))
            return plain(messages)

        wire.exchange = exchange


def check_told(said: str, accounts: list[sv.Account], state: Path) -> None:
    """What the end of a run says about charges is true, and what it says to do can be done."""
    plans = [account.balance().plans for account in accounts]
    assert ("stays charged" in said) == (sum(plans) > 0), (said, plans)
    assert ("charged nothing" in said) == (plans[0] == 0), (said, plans)
    if not sum(plans):
        assert not state.exists()  # the same command is a new fit
        assert "start the fit again" in said
    elif not plans[0]:
        assert "sottovoce fit --restart" in said


def restarted(folder: Path, at: int, *, keys: bool = True) -> bool:
    """Whether a fit in which the first party is restarted at an exchange goes on; what it said is checked."""
    folder.mkdir()
    accounts = [sv.Ledger.create(folder / f"{n}.db").open(n, epsilon=50.0, delta=1e-4) for n in ("a", "b", "c")]
    federation = by_columns(ledgers=accounts, journal=folder / "fit.run")
    Restarting(federation, accounts[0], at, keys=keys)
    try:
        model().fit(federation)
    except (RefusedError, WireError) as error:
        check_told(str(error), accounts, folder / "fit.run")
        if not (folder / "fit.run").exists():
            assert model().fit(federation).plan_.aggregation is not None
            assert [account.balance().plans for account in accounts] == [1, 1, 1]
        return False
    assert [account.balance().plans for account in accounts] == [1, 1, 1]
    return True


@pytest.mark.slow
def test_what_is_said_of_a_restarted_party_is_true(tmp_path: Path) -> None:
    """Before the check, before and after offers of keys, before the charge, before the start, and in the middle."""
    places = (3, 4, 5, 6, 7, 8, 11)
    assert [restarted(tmp_path / str(at), at) for at in places] == [False, *[True] * 6]
    assert not any(restarted(tmp_path / f"{at} lost", at, keys=False) for at in (5, 7, 11))


@pytest.mark.parametrize(("fault", "at"), [(True, 3), (False, 9)])
def test_planted_charges_that_are_said_wrongly_are_found(
    fault: bool, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Party, "charged", lambda self, plan: fault)
    with pytest.raises(AssertionError):
        restarted(tmp_path / "run", at, keys=False)


def laid_out(folder: Path, table: Any = None, **terms: Any) -> list[sv.Account]:
    """Certificates of all ends, the columns, the alignment and the accounts of two holders."""
    X, y, *beside = table or data()
    create_authority(folder)
    for name in ("coordinator", *Sites.names):
        issue(folder, name)
    ids, digest = np.arange(len(y)), secrets.token_bytes(32)
    np.savez(folder / "a.npz", X=X[:, :2], y=y, ids=ids, **dict(zip(("person",), beside, strict=False)))
    np.savez(folder / "b.npz", X=X[:, 2:], ids=ids.astype(float))
    for name in ("a", "b"):
        listed = fingerprint(identifiers(ids, len(ids), name), "usual")
        AlignmentFile(folder / f"{name}.aligned").keep(("a", "b"), digest, ids, listed)
    return [sv.Ledger.create(folder / f"{name}.db").open(name, **terms) for name in ("a", "b")]


def connected(wire: Any) -> sv.Federation:
    """The two holders and the dealer, as the coordinator has them."""
    norms = np.sqrt([0.5, 0.5]).tolist()
    return sv.Federation.connect(wire, split="columns", labels="held", norms=norms, products="secure", dealer=NOTARY)


class Sites:
    """Two holders of columns and a dealer, each a process, and the coordinator's end of the wire."""

    names = ("a", "b", NOTARY)
    wire: Any  # what has the port

    def __init__(self, folder: Path, timeout: float = 60.0, table: Any = None) -> None:
        self.folder, self.processes = folder, dict[str, Program]()
        self.accounts = laid_out(folder, table, epsilon=9.0, delta=1e-4)
        credentials = Credentials.load(folder, "coordinator")
        self.wire = GrpcCoordinator("localhost:0", self.names, credentials, timeout=timeout)
        for name in self.names:
            self.start(name)
        self.wire.wait_for_parties(30)

    def start(self, name: str) -> None:
        """The process of an end."""
        own = [] if name == NOTARY else [self.folder / f"{name}.npz", self.folder / f"{name}.db"]
        self.processes[name] = Program(PROGRAM, name, f"localhost:{self.wire.port}", self.folder, *own)

    def kill(self, name: str) -> None:
        """At once."""
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def federation(self) -> sv.Federation:
        """As the coordinator has it."""
        return connected(self.wire)

    def releases(self) -> int:
        """Of the second holder."""
        return sum(entry.kind == "release" for entry in self.accounts[1].history())

    def stop(self) -> None:
        """The end of all."""
        self.wire.close()
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_every_role_a_process(sites: Sites) -> None:
    fitted = model().fit(sites.federation())
    assert fitted.plan_.aggregation.dealer == NOTARY
    assert fitted.plan_.aggregation.aligned
    assert np.isfinite(fitted.coef_).all()
    assert [account.balance().plans for account in sites.accounts] == [1, 1]
    assert fitted.missing_parts_ == {}
    for process in sites.processes.values():
        assert process.wait(10) == 0


@pytest.mark.slow
@pytest.mark.parametrize("who", ["b", NOTARY])
def test_who_is_killed_in_the_middle_goes_on_or_has_lost_the_run(sites: Sites, who: str) -> None:
    """A party has its ledger, and what it goes on with beside it; a dealer that keeps nothing has lost the run."""

    def kill_in_the_middle() -> None:
        while sites.releases() < 5:
            time.sleep(0.002)
        sites.kill(who)
        sites.start(who)

    watcher = threading.Thread(target=kill_in_the_middle, daemon=True)
    watcher.start()
    federation = sites.federation()
    estimator = model(rounds=60)
    if who == NOTARY:
        with pytest.raises(RefusedError, match=r"--keep.*stays charged"):
            estimator.fit(federation)
        assert 5 <= sites.releases() < 61, "the kill must fall inside the fit"
    else:
        assert np.isfinite(estimator.fit(federation).coef_).all()
        assert sites.releases() == 61
    watcher.join()
    assert [account.balance().plans for account in sites.accounts] == [1, 1]
