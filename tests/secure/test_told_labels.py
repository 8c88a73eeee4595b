"""Whatever is told otherwise, in whichever round: no mask, envelope or dealt word of secure columns has two
contents.

Lives of one run, all with the same keys and without memory of one another, as copies of all ends have: each is told one
array of one round otherwise, and all else alike, in later rounds too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.algorithms import Ask
from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.secure_columns import coordinator as coordinator_side
from sottovoce.federation.secure_columns import dealer as dealing_side
from sottovoce.federation.secure_columns import party as party_side
from sottovoce.lab.audit.secure import Keys, SecureColumns, _Protocol, with_keys
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.mechanisms import SeededRandomness, SystemRandomness
from sottovoce.secure import dealer, streams, sums
from sottovoce.secure.streams import pack_fields

sys.path.insert(0, str(Path(__file__).parent))
from hostile import secure_plan

pytestmark = pytest.mark.slow

RECORDS = 6
SOLVERS = ("newton", "whitened")  # gradients of rows; a projection that is told rounds before its use


class Contents:
    """What was made under each key and label, by all lives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[tuple[str, ...], set[bytes]] = {}
        envelope, masked, share, rest = (
            sums.seal_envelope,
            sums.ColumnMasker.masked,
            sums.Masker.masked_share,
            dealer.ColumnDealer._rest,
        )

        def on_envelope(key: bytes, label: Any, sender: str, data: bytes) -> bytes:
            self.note("envelope", key.hex(), label, sender, content=data)
            return envelope(key, label, sender, data)

        def on_masked(end: Any, label: Any, fields: Any) -> Any:
            self.note("mask", end.name, label, content=pack_fields(fields, 64))
            return masked(end, label, fields)

        def on_secure(end: Any, values: Any, noise: Any, label: Any, randomness: Any) -> Any:
            found = share(end, values, noise, label, randomness)
            self.note("mask", end.name, label, content=found)
            return found

        def on_rest(end: Any, of: Any, asked: Any, exact: Any) -> Any:
            self.note("dealt", of, content=pack_fields(exact, 64))
            return rest(end, of, asked, exact)

        for module in (sums, dealing_side):
            monkeypatch.setattr(module, "seal_envelope", on_envelope)
        monkeypatch.setattr(sums.ColumnMasker, "masked", on_masked)
        monkeypatch.setattr(sums.Masker, "masked_share", on_secure)
        monkeypatch.setattr(dealer.ColumnDealer, "_rest", on_rest)

    def note(self, *label: Any, content: Any) -> None:
        data = content if isinstance(content, bytes) else content.tobytes()
        self.seen.setdefault(tuple(json.dumps(one) for one in label), set()).add(data)

    def check(self) -> None:
        """One content each."""
        twice = [label for label, contents in self.seen.items() if len(contents) > 1]
        assert not twice, f"two contents of {twice}"


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> Contents:
    return Contents(monkeypatch)


@functools.cache
def run_of(solver: str) -> tuple[Plan, Keys, SecureColumns, tuple[Ask, ...]]:
    """A plan with keys, its data, and all that is asked in an honest run."""
    plan = secure_plan(solver, features=1, rounds=3, records=RECORDS, label_party=1)
    plan, keys = with_keys(plan, lambda name: SeededRandomness(1, name))
    generator = np.random.default_rng(1)
    data = {name: (generator.uniform(-1, 1, (RECORDS, 1)), generator.uniform(-1, 1, RECORDS)) for name in plan.names}
    side = SecureColumns(plan, data, "world")
    run, text, asks = began(plan, keys, side), side.text(), list[Ask]()
    with contextlib.suppress(StopIteration):
        ask = next(text)
        while True:
            asks.append(ask)
            ask = text.send({"sum": run.sum(len(asks) - 1, ask)})
    return plan, keys, side, tuple(asks)


def began(plan: Plan, keys: Keys, side: SecureColumns) -> _Protocol:
    """The ends of a life; noise is by key and label, as in a run."""
    run = _Protocol(side, plan, keys, {name: SystemRandomness() for name in (*plan.names, COORDINATOR)})
    run.sums._deals = dealing_side.LocalDeals(plan, keys[COORDINATOR], SystemRandomness())
    return run


def life(solver: str, changed: tuple[int, str] | None = None) -> list[tuple[int, str]]:
    """All rounds of the honest run, one array of one of them changed; what was told in which round."""
    plan, keys, side, asks = run_of(solver)
    run, said = began(plan, keys, side), list[tuple[int, str]]()
    for number, ask in enumerate(asks):
        told = {name: altered(array) if (number, name) == changed else array for name, array in ask.arrays.items()}
        said.extend((number, name) for name in told)
        with contextlib.suppress(RefusedError, WireError):
            run.sum(number, dataclasses.replace(ask, arrays=told))
    return said


def altered(array: Any) -> Any:
    found = np.array(array)
    found.flat[0] = found.flat[0] - 1 if found.dtype.kind == "i" else found.flat[0] * (1 - 2.0**-6) + 2.0**-6
    if found.dtype.kind == "i":
        found.flat[0] = max(found.flat[0], 1 - found.flat[0])
    return found


def check_lives(solver: str, contents: Contents) -> set[str]:
    """Each array of each round otherwise, in turn; the names of all arrays."""
    told = life(solver)
    for changed in told:
        life(solver, changed)
        contents.check()
    return {name for _, name in told}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_label_has_one_content_whatever_is_told_otherwise(solver: str, contents: Contents) -> None:
    told = check_lives(solver, contents)
    assert {"weights"} < told
    assert (solver == "whitened") == ("projection" in told)
    kinds = {json.loads(label[-1 if label[0] == '"dealt"' else 2])[0] for label in contents.seen if len(label) > 1}
    programs = ["look-up"] if solver == "newton" else ["look-up", "length", "factor"]
    assert {f"{program} {what}" for program in programs for what in (0, 2, "dealt")} | {"columns", "sum"} <= kinds


def without_told(kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant labels of some kinds that lack what was told."""
    whole = streams.RoundLabels.label

    def planted(self: streams.RoundLabels, name: str, piece: Any = streams.WHOLE) -> list[Any]:
        return whole(self._replace(said="") if name in kinds else self, name, piece)

    monkeypatch.setattr(streams.RoundLabels, "label", planted)


@pytest.mark.parametrize(
    ("kind", "solver"),
    [
        ("look-up 0", "newton"),
        ("look-up 1", "newton"),
        ("look-up 2", "newton"),
        ("look-up dealt", "newton"),
        ("length 1", "whitened"),
        ("factor 0", "whitened"),
        ("factor dealt", "whitened"),
        ("sum", "whitened"),
        ("earlier rounds", "whitened"),
    ],
)
def test_planted_labels_without_what_was_told_are_found(
    kind: str, solver: str, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(solver)
    if kind == "sum":
        for side in (party_side, coordinator_side):
            monkeypatch.setattr(side, "asked_after", lambda call, told, _: (call, told))
    elif kind == "earlier rounds":
        own = streams.TranscriptHash.after

        def after(self: Any, query: str, number: int, told: Any) -> Any:
            self._said = ""
            return own(self, query, number, told)

        monkeypatch.setattr(streams.TranscriptHash, "after", after)
    else:
        without_told({kind}, monkeypatch)
    with pytest.raises(AssertionError, match="two contents of"):
        check_lives(solver, contents)


def test_a_round_is_told_one_set_of_numbers() -> None:
    transcript, told = streams.TranscriptHash(), {"weights": np.ones(2)}
    one = transcript.after("gradient", 1, told)
    two = transcript.after("gradient", 2, told)
    assert (transcript.after("gradient", 1, told), transcript.after("gradient", 2, told)) == (one, two)
    assert one.said != two.said
    with pytest.raises(RefusedError, match="was told other numbers before"):
        transcript.after("gradient", 1, {"weights": np.zeros(2)})
    other = streams.TranscriptHash()
    other.after("gradient", 1, {"weights": np.zeros(2)})
    assert other.after("gradient", 2, told) != two
