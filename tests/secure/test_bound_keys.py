"""A key of a run is for one account and one set of rows, and a label has all public numbers of its content."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from secure_fits import Watched, by_columns, by_rows, model
from sottovoce.algorithms.cd import walk
from sottovoce.data.block import Block
from sottovoce.data.block_parts import PartsInMemory
from sottovoce.errors import InputError
from sottovoce.federation import journal
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.privacy import ledger_file
from sottovoce.privacy.mechanisms import SystemRandomness
from sottovoce.secure import sums
from sottovoce.secure.sums import Call
from sottovoce.solvers import by_name
from sottovoce.transports.identity import PLAN

sys.path.insert(0, str(Path(__file__).parent))
from hostile import Hostile, secure_plan

WHO, TOLD = "party 1", {"weights": np.array([0.3, -0.2])}


def other(X: Any, y: Any, what: str) -> tuple[Any, Any]:
    """The table as a holder may have changed it between two lives."""
    X, y = X.copy(), y.copy()
    if what == "one value":
        X[7, 0] = -X[7, 0]
    elif what == "one label":
        y[7] = -y[7]
    elif what == "the order":
        X, y = X[::-1], y[::-1]
    elif what == "a null row":
        X[7] = 0.0
        X[8, 0] = np.nan
    return X, y


def lives(folder: Path, what: str, *, set_back: bool) -> tuple[Frame, Frame]:
    """The share of a party, and what a second life of it answers to the same question under the same plan."""
    generator, plan = np.random.default_rng(0), secure_plan("gradient", "rows", 3, records=20, rounds=3)
    data = {name: (X := generator.uniform(-0.5, 0.5, (20, 2)), X[:, 0].copy()) for name in plan.names}
    ledger = sv.Ledger.create(folder / "one.db")
    account = ledger.open("people", epsilon=50.0, delta=1e-3)
    run = Hostile(plan, data, accounts={WHO: account})
    for party in run.parties.values():
        party.randomness = SystemRandomness()
    run.open()
    copy, call = (folder / "one.db").read_bytes(), Call(plan.names, said=("weights",))
    first = run.ask(WHO, "gradient", 0, call, TOLD)
    if set_back:
        (folder / "one.db").write_bytes(copy)
        ledger_file._KNOWN.clear()  # another process
    if what == "the account":
        account = ledger.open("people, again", epsilon=50.0, delta=1e-3)
    if what == "no file":
        next((folder / "one.db.secure").glob("*.rows")).unlink()
    life = run.parties[WHO] = Party(WHO, *other(*data[WHO], what), account=account)
    life.identify(run.identities[WHO])
    life.permit(without_privacy=False)
    for query in ("check", ""):
        run.said(WHO, Frame("plan", 0, run.plan.digest, query=query, text=run.plan.to_json()))
    signatures = {name: identity.sign(PLAN, run.plan.digest) for name, identity in run.identities.items()}
    run.said(WHO, Frame("plan", 0, run.plan.digest, query="start", text=json.dumps(signatures)))
    return first, run.ask(WHO, "gradient", 0, call, TOLD)


@pytest.mark.parametrize("set_back", [False, True])
def test_a_life_with_the_same_rows_and_account_gives_the_same_share(set_back: bool, tmp_path: Path) -> None:
    first, second = lives(tmp_path, "nothing", set_back=set_back)
    assert second.kind == "answer"
    assert first.arrays["share"].tobytes() == second.arrays["share"].tobytes()


CHANGES = ["one value", "one label", "the order", "a null row", "the account", "no file"]


@pytest.mark.parametrize("set_back", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_a_life_with_other_rows_or_another_account_has_lost_the_key(what: str, set_back: bool, tmp_path: Path) -> None:
    first, second = lives(tmp_path, what, set_back=set_back)
    assert (first.kind, second.kind) == ("answer", "unknown-plan")


def test_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    said = list[Frame]()
    plain = Hostile.said

    def kept(self: Hostile, name: str, frame: Frame) -> Frame:
        said.append(plain(self, name, frame))
        return said[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hostile, "said", kept)
        lives(tmp_path, "one value", set_back=False)
    refusals = [frame.text for frame in said if frame.kind == "refuse"]
    assert len(refusals) == 1
    assert "Serve what the run was begun with, or start a new fit" in refusals[0]


def difference(folder: Path) -> Any:
    """Of two shares under one label whose rows differ in one value, in steps of the grid."""
    folder.mkdir()
    first, second = lives(folder, "one value", set_back=True)
    return first.arrays["share"] - second.arrays["share"]


def test_planted_a_key_for_whatever_rows_shows_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the digest both answers have one mask and one noise: what is left is the record, the same in any run.

    Noise that is drawn for the rows is a second line: where a key is not bound, that of two shares is left.
    """
    with monkeypatch.context() as patch:
        patch.setattr(Block, "digest", lambda _: b"")
        shown = [difference(tmp_path / "one"), difference(tmp_path / "two")]
    release = secure_plan("gradient", "rows", 3, records=20, rounds=3).release("gradient")
    assert shown[0].tolist() == shown[1].tolist()
    assert 0 < np.abs(shown[0] * release.step).max() < release.charged_zero_out * 2
    monkeypatch.setattr("sottovoce.federation.run_keys.RunKeys.bind", lambda *_, **__: None)
    hidden = difference(tmp_path / "three")
    assert hidden.tolist() != shown[0].tolist()  # two entries by chance: below 1e-6, of a noise of many steps
    assert np.abs(hidden * release.step).max() < 64 * release.std  # the masks cancel


def test_rows_in_parts_have_a_digest_of_all_that_a_value_follows_from() -> None:
    plan = secure_plan("gradient", "rows", 3, records=20, rounds=3)
    X = np.random.default_rng(0).uniform(-0.5, 0.5, (20, 2))
    y, recipe, seen = X[:, 0].copy(), plan.part(WHO).preparation, set[bytes]()
    for what in ("nothing", *CHANGES[:4]):
        block = Block.prepare(*other(X, y, what), recipe)
        parts = PartsInMemory(block, [block])
        assert parts.digest() == PartsInMemory(block, [Block.prepare(*other(X, y, what), recipe)]).digest()
        seen |= {block.digest(), parts.digest()}
    assert len(seen) == 10


# ----- Public numbers -----


class Values:
    """The exact values of each label, and labels that have two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, bytes] = {}
        self.twice: list[str] = []
        plain = sums.Masker.masked_share

        def masked_share(end: Any, values: Any, noise: Any, label: Any, randomness: Any) -> Any:
            if end.name == "a":
                known = self.seen.setdefault(json.dumps(label), values.tobytes())
                self.twice += [json.dumps(label)] if known != values.tobytes() else []
            return plain(end, values, noise, label, randomness)

        monkeypatch.setattr(sums.Masker, "masked_share", masked_share)


def replay_with_other_numbers(folder: Path, solver: str) -> int:
    """A party's run, replayed by copies of it, each told one array otherwise in one message: how many copies."""
    accounts = []
    for name in "abc":
        (folder / name).mkdir()
        accounts.append(sv.Ledger.create(folder / name / "l.db").open("people", epsilon=50.0, delta=1e-3))
    federation = by_rows(ledgers=accounts)
    victim, wire = federation._parties[0], Watched(federation)
    wire.connected = wire.parties
    plain: Callable[..., Any] = wire.exchange

    def exchange(messages: Any) -> Any:
        if decode(next(iter(messages.values()))).kind == "ask" and not (folder / "copy").exists():
            shutil.copytree(folder / "a", folder / "copy")
        return plain(messages)

    wire.exchange = exchange  # type: ignore[method-assign]
    options = {"inner": 3, "clip": 0.3} if solver == "cd" else {}
    model().set_params(solver=by_name(solver, rounds=2, **options)).fit(federation)
    told = [said for name, said, _ in wire.passed if name == "a" and said.kind in ("plan", "ask")]
    opening = [said for said in told if said.kind == "plan" and said.query in ("", "start")]
    asks, first = [said for said in told if said.kind == "ask"], dict[tuple[str, str], int]()
    for place, ask in enumerate(asks):
        for name in ask.arrays:
            first.setdefault((ask.query, name), place)
    for number, ((_, name), changed) in enumerate(first.items()):
        shutil.copytree(folder / "copy", folder / f"life {number}")
        account = sv.Ledger(folder / f"life {number}" / "l.db").account()
        life = Party("a", *victim.all_rows, account=account, policy=victim.policy)
        life.identify(victim.identity)
        for said in opening:
            assert decode(life.handle(encode(said)).data).kind == "accept"
        for place, said in enumerate(asks):
            arrays = dict(said.arrays)
            if place == changed:
                arrays[name] = arrays[name] // 2 if arrays[name].dtype == np.int64 else arrays[name] + 2.0**60
            life.handle(encode(dataclasses.replace(said, arrays=arrays)))
    return len(first)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["newton", "gradient", "sgd", "whitened", "cd"])
def test_a_label_has_all_numbers_that_its_value_follows_from(
    solver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an earlier message told, no label has two values."""
    values = Values(monkeypatch)
    assert replay_with_other_numbers(tmp_path, solver) >= 1
    assert len(values.seen) > 2
    assert values.twice == []


@pytest.mark.parametrize("solver", ["whitened", "cd"])
def test_planted_numbers_that_are_not_in_a_label_are_found(
    solver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P and C that were told before, and scores that were followed from weights of before."""
    values, kept, fresh, plain = Values(monkeypatch), dict[int, Any](), walk.HeldScores, sums.hash_of
    if solver == "cd":
        monkeypatch.setattr(walk, "HeldScores", lambda rows: kept.setdefault(id(rows), (rows, fresh(rows)))[1])
    else:
        before = ("projection", "unit", "cut")
        monkeypatch.setattr(sums, "hash_of", lambda told: plain({n: a for n, a in told.items() if n not in before}))
    replay_with_other_numbers(tmp_path, solver)
    assert values.twice


# ----- The coordinator's keys -----


@pytest.mark.parametrize("make", [by_rows, by_columns])
def test_keys_of_a_coordinator_are_gone_when_the_run_is_over(make: Any, tmp_path: Path) -> None:
    """In the library too, where the journal stays; the fit is read from it again."""
    seen = set[str]()

    def fit() -> Any:
        accounts = [sv.Ledger(tmp_path / f"{k}.db").account() for k in range(3)]
        federation = make(ledgers=accounts, journal=tmp_path / "fit.run")
        wire = Watched(federation)
        wire.connected = wire.parties
        plain: Callable[..., Any] = wire.exchange

        def exchange(messages: Any) -> Any:
            seen.update(path.name for path in tmp_path.glob("fit.run.keys*"))
            return plain(messages)

        wire.exchange = exchange  # type: ignore[method-assign]
        return model(solver="gradient").fit(federation).coef_.tolist()

    for k in range(3):
        sv.Ledger.create(tmp_path / f"{k}.db").open("people", epsilon=50.0, delta=1e-3)
    found = fit()
    assert seen == {"fit.run.keys"}
    assert not list(tmp_path.glob("fit.run.keys*"))
    assert b'"key"' not in (tmp_path / "fit.run").read_bytes()
    assert b"pairs" not in (tmp_path / "fit.run").read_bytes()
    assert fit() == found
    assert not list(tmp_path.glob("fit.run.keys*"))


class StopError(BaseException):
    """In the place of the end of the process."""


def test_a_state_without_its_keys_is_refused(tmp_path: Path) -> None:
    """A new key would top sums up a second time."""
    accounts = [sv.Ledger.create(tmp_path / f"{k}.db").open("people", epsilon=50.0, delta=1e-3) for k in range(3)]

    def fit(*, stop: bool) -> None:
        federation = by_rows(ledgers=accounts, journal=tmp_path / "fit.run")
        wire: Any = federation.transport
        plain = wire.exchange

        def exchange(messages: Any) -> Any:
            frame = decode(next(iter(messages.values())))
            if stop and (frame.kind, frame.round) == ("ask", 1):
                raise StopError
            return plain(messages)

        wire.exchange = exchange
        model(solver="gradient", rounds=3).fit(federation)

    with pytest.raises(StopError):
        fit(stop=True)
    keys = tmp_path / "fit.run.keys"
    assert keys.stat().st_mode & 0o777 == 0o600
    data = keys.read_bytes()
    for lost in (None, b"", b"{}", data[:-5]):
        keys.unlink(missing_ok=True)
        if lost is not None:
            keys.write_bytes(lost)
        with pytest.raises(InputError, match="keys of that run, is lost"):
            fit(stop=False)
    keys.write_bytes(data)
    fit(stop=False)
    assert not keys.exists()
    assert journal.Journal(tmp_path / "fit.run").ended
