"""What enters an opened value is a function of a key and a label: one content in every life of every role.

A life is a process; a copy, a fork or a state that was set back starts another one with the same keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from secure_fits import NOTARY, by_columns, by_rows, model
from sottovoce import algorithms
from sottovoce.errors import LeakError, RefusedError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.journal import Journal
from sottovoce.federation.party import Party
from sottovoce.federation.secure_columns import dealer
from sottovoce.federation.secure_columns.dealer import Dealer
from sottovoce.gate import secure_gate
from sottovoce.gate.frames import decode
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy import ledger_file
from sottovoce.privacy.mechanisms import SystemRandomness
from sottovoce.secure import streams, sums
from sottovoce.secure.pair_keys import NOISE, RunKey
from sottovoce.secure.streams import KeyedRandomness
from sottovoce.transports.base import InProcess
from summing import Holder, made

pytestmark = pytest.mark.slow

Seen = dict[tuple[str, ...], bytes]


class Contents:
    """What was made under each label by each end; a second content of a label fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Seen = {}
        secure, masked, enveloped, opened = (
            sums.Masker.masked_share,
            sums.ColumnMasker.enveloped,
            dealer.LocalDeals._enveloped,
            sums.Opener.open,
        )

        def on_secure(end: Any, values: Any, noise: Any, label: Any, randomness: Any) -> Any:
            found = secure(end, values, noise, label, randomness)
            self.note((end._digest.hex(), end.name, "share", json.dumps(label)), found)
            return found

        def on_masked(end: Any, label: Any, fields: Any) -> Any:
            found = masked(end, label, fields)
            self.note((end._digest.hex(), end.name, "mask", json.dumps(label)), found)
            return found

        def on_enveloped(end: Any, receiver: str, label: Any, fields: Any) -> Any:
            found = enveloped(end, receiver, label, fields)
            self.note((end._plan.digest.hex(), "dealer", receiver, json.dumps(label[:-1])), found)  # whatever was told
            return found

        def on_opened(end: Any, shares: Any, noise: Any, label: Any) -> Any:
            found = opened(end, shares, noise, label)
            self.note((end.plan.digest.hex(), "opened", json.dumps(label)), found)
            return found

        monkeypatch.setattr(sums.Masker, "masked_share", on_secure)
        monkeypatch.setattr(sums.ColumnMasker, "enveloped", on_masked)
        monkeypatch.setattr(dealer.LocalDeals, "_enveloped", on_enveloped)
        monkeypatch.setattr(sums.Opener, "open", on_opened)

    def note(self, label: tuple[str, ...], content: Any) -> None:
        assert self.seen.setdefault(label, content.tobytes()) == content.tobytes(), f"two contents of {label[1:]}"


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> Contents:
    return Contents(monkeypatch)


def lives(fit: Callable[[], Any], place: int, contents: Contents, file: Path) -> list[tuple[Any, Seen]]:
    """A fit whose process is copied at the so-manieth message: the model of each of the two, and what it made."""
    plain, count, copy = InProcess.exchange, 0, -1

    def exchange(self: InProcess, messages: Any) -> Any:
        nonlocal count, copy
        if (count := count + 1) == place:
            copy = os.fork()
        return plain(self, messages)

    InProcess.exchange = exchange  # type: ignore[method-assign]
    try:
        ended = fit()
    except BaseException as error:
        if copy != 0:
            raise
        ended = repr(error)
    finally:
        InProcess.exchange = plain  # type: ignore[method-assign]
    if copy == 0:
        file.write_bytes(pickle.dumps((ended, contents.seen)))
        os._exit(0)
    assert copy > 0, "the copy must fall inside the fit"
    os.waitpid(copy, 0)
    return [(ended, contents.seen), pickle.loads(file.read_bytes())]


def check_one_content(found: list[tuple[Any, Seen]]) -> None:
    """No label has two contents, and both lives have one model."""
    (one, seen), (other, again) = found
    assert len(seen) > 5
    assert set(seen) == set(again)
    assert [label[1:] for label in seen if seen[label] != again[label]] == []
    assert one == other


ROLES: dict[str, tuple[Any, dict[str, Any]]] = {  # who deals, and a solver whose parties draw all that they can
    "rows, the coordinator tops up": (by_rows, {"solver": "sgd"}),
    "rows, a dealer tops up": (lambda: by_rows(dealer=Dealer(NOTARY)), {"solver": "newton"}),
    "columns, the coordinator deals": (by_columns, {"solver": "newton"}),
    "columns, a dealer deals": (lambda: by_columns(dealer=Dealer(NOTARY)), {"solver": "whitened"}),
}


def fit_of(role: str) -> Callable[[], Any]:
    make, options = ROLES[role]
    federation = make()
    return lambda: model(rounds=4, **options).fit(federation).coef_.tolist()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("place", [4, 7])
def test_a_process_that_is_copied_makes_the_same_of_every_label(
    role: str, place: int, contents: Contents, tmp_path: Path
) -> None:
    """All roles in one process: copies of all of them, at once, from a message on."""
    check_one_content(lives(fit_of(role), place, contents, tmp_path / "copy"))


PLANTED = {  # where a label is left out, and the role that shows it
    "top-up": (sums, "Opener", "rows, the coordinator tops up"),
    "share": (secure_gate, "SecureGate", "rows, the coordinator tops up"),
    "dealer": (secure_gate, "DealingGate", "rows, a dealer tops up"),
    "dealt, and coins": (dealer, "LocalDeals", "columns, the coordinator deals"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_noise_that_is_drawn_anew_is_found(
    fault: str, contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, maker, role = PLANTED[fault]
    whole = module.labelled

    def planted(source: Any, label: Any) -> Any:
        there = sys._getframe(1).f_code.co_qualname.startswith(f"{maker}.")
        return SystemRandomness() if there else whole(source, label)

    monkeypatch.setattr(module, "labelled", planted)
    with pytest.raises(AssertionError):
        check_one_content(lives(fit_of(role), 4, contents, tmp_path / "copy"))


def test_what_enters_an_opened_value_has_no_other_source() -> None:
    """Neither the operating system nor a key without a label: who forgets the label releases nothing."""
    plan, keys = made(3)
    with pytest.raises(LeakError, match="by a key and a label"):
        streams.labelled(SystemRandomness(), ["sum"])
    with pytest.raises(LeakError, match="drawn by its label"):
        keys["p00"].key.noise(plan.digest, SystemRandomness()).bytes(8)


def test_streams_of_noise_differ_by_key_plan_rows_and_label() -> None:
    one, other, source = RunKey(), RunKey(), SystemRandomness()
    each = [
        streams.labelled(key.noise(digest, source, records), label).bytes(64)
        for key in (one, other)
        for digest in (b"1", b"2")
        for records in (b"", b"1")
        for label in (["sum", 1], ["sum", 2], ["sum1"])
    ]
    assert len(set(each)) == len(each)
    same = KeyedRandomness(one.own(NOISE, [b"1".hex(), ""]), ["sum", 1])
    assert same.bytes(24) + same.bytes(40) == each[0]
    assert streams.stream(one.own(NOISE, [b"1".hex(), ""]), ["sum", 1], 8).tobytes() != each[0]


class StoppedError(BaseException):
    """In the place of the end of the process."""


class Tap:
    """A wire that copies the coordinator's state at each message, and ends the process at the so-manieth."""

    def __init__(self, parties: list[Party], state: Path) -> None:
        self._wire, self._state = InProcess(parties), state
        self.parties, self.communication = self._wire.parties, self._wire.communication
        self.connected = self._wire.connected
        self.copies: list[bytes] = []
        self.asked: dict[tuple[bytes, int], set[bytes]] = {}
        self.left, self.refused = 0, 0

    def exchange(self, messages: Any) -> Any:
        """Pass them on."""
        if (frame := decode(next(iter(messages.values())))).kind == "ask":
            self.asked.setdefault((frame.plan, frame.round), set()).add(frame.arrays["weights"].tobytes())
            self.copies.append(self._state.read_bytes())
        if (left := self.left - 1) == 0:
            raise StoppedError
        self.left = left
        replies = self._wire.exchange(messages)
        self.refused += sum(decode(reply).kind == "refuse" for reply in replies.values())
        return replies

    def close(self) -> None:
        """Pass it on."""
        self._wire.close()


def set_back_at_random(folder: Path, seed: int) -> Tap:
    """Lives of a coordinator by rows, each from a copy of the state of an earlier one; the last comes to its end."""
    generator = np.random.default_rng(seed)
    plan = audit_plan(
        "gradient", "rows", 3, 2, records=20, rounds=6, epsilon=1.0, aggregation=SecureAggregation(colluding=2)
    )
    parties = []
    for name, count in plan.parties:
        account = sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=50.0, delta=1e-3)
        X = generator.uniform(-0.5, 0.5, (count, 2))
        parties.append(Party(name, X, X[:, 0], account=account, policy=sv.Policy(secure=True)))
    tap = Tap(parties, folder / "fit.run")
    for life in range(12):
        if tap.copies:
            (folder / "fit.run").write_bytes(tap.copies[int(generator.integers(len(tap.copies)))])
        tap.left = 0 if life == 11 else 7 if life == 0 else int(generator.integers(2, 5))
        coordinator = Coordinator(tap, journal=Journal(folder / "fit.run"))
        with contextlib.suppress(StoppedError):
            own = coordinator.settle(plan)
            coordinator.run(own, algorithms.of(own))
        coordinator.journal.close()
    return tap


@pytest.mark.parametrize("seed", range(3))
def test_a_coordinator_that_is_set_back_shows_one_sum_with_one_top_up(
    seed: int, contents: Contents, tmp_path: Path
) -> None:
    """Whatever state it goes on from: each plan has one w in each round, and no party has anything to refuse."""
    tap = set_back_at_random(tmp_path, seed)
    assert {len(each) for each in tap.asked.values()} == {1}
    assert len(tap.copies) > 2 * len(tap.asked) == 12
    assert tap.refused == 0
    assert sum(label[1] == "opened" for label in contents.seen) == 6


def test_planted_top_ups_that_a_set_back_state_draws_again_are_found(
    contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "labelled", lambda source, label: SystemRandomness())
    with pytest.raises(AssertionError, match="two contents of"):
        set_back_at_random(tmp_path, 0)


def shares_of_lives(folder: Path, seed: int) -> int:
    """A party by rows whose ledger is set back at random, asked at random: how many shares left."""
    generator = np.random.default_rng(seed)
    plan, keys = made(3, dropouts=1, retries=2)
    path = folder / "ledger.db"
    account = sv.Ledger.create(path).open("p01", epsilon=9.0, delta=1e-4)
    account.reserve(plan.digest.hex(), lambda _: (), delta=plan.delta, summary="")
    copies, given = [path.read_bytes()], 0
    for _ in range(100):
        if generator.random() < 0.4:
            path.write_bytes(copies[int(generator.integers(len(copies)))])
            ledger_file._KNOWN.clear()  # another process
        holder = Holder(plan, "p01", keys["p01"], account=account, randomness=SystemRandomness())
        roster = [("p00", "p01", "p02"), ("p00", "p01"), ("p01", "p02")][int(generator.integers(3))]
        with contextlib.suppress(RefusedError):
            attempt, number = int(generator.integers(3)), int(generator.integers(3))
            holder.share(roster, attempt, number=number, weights=float(generator.integers(2)))
            given += 1
            copies.append(path.read_bytes())
    return given


def test_a_party_whose_ledger_is_set_back_gives_the_same_share(contents: Contents, tmp_path: Path) -> None:
    """To the same question; another question is another label."""
    given = shares_of_lives(tmp_path, 0)
    assert given > len(contents.seen) > 5


def test_planted_shares_that_a_set_back_ledger_draws_again_are_found(
    contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_gate, "labelled", lambda source, label: SystemRandomness())
    with pytest.raises(AssertionError, match="two contents of"):
        shares_of_lives(tmp_path, 0)
