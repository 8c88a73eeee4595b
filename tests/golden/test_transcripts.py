"""A cheap part of the golden transcripts, and all bad inputs; `make golden` plays the whole set."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "transcripts.py"
_SPEC = importlib.util.spec_from_file_location("golden_transcripts", SCRIPT)
assert _SPEC is not None
assert _SPEC.loader is not None
golden = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = golden
_SPEC.loader.exec_module(golden)

STORE = golden.load()
BITS = golden.load_bits()
CASES = golden.all_cases()
BAD = golden.all_bad()
SLOW = {"sgd/rows/squared/paper/zero-out", "sgd/central/squared/paper/zero-out"}  # seconds of accounting


def in_subset(name: str) -> bool:
    """One case for each solver, split and calibration, labels shared, zero-out; secure sums; a few of several fits."""
    parts = name.split("/")
    if parts[0] in ("auto", "predict", "classes", "bought"):
        return True
    if parts[0] == "secure":
        several = parts[1] in ("leaving", "ledger", "predict", "people", "counts")
        return several or (parts[-1] == "zero-out" and "public" not in parts)
    chosen = parts[0] in golden.SOLVERS and parts[-1] == "zero-out" and "squared" in parts
    return chosen and "public" not in parts and "held" not in parts and name not in SLOW


CONTROL = "newton/central/squared/tight/zero-out"
BY_ROWS = "newton/rows/squared/tight/zero-out"
SECURE = "secure/newton/columns3/shared/logistic/zero-out"
SUBSET = [name for name in CASES if in_subset(name)]


@functools.cache
def bits_here(name: str) -> Any:
    """The bits of an unchanged case on this processor, recorded or not."""
    return golden.bits_of(CASES[name].play(), name)


def compare(name: str, bits: Any) -> set[str]:
    found = golden.difference(name, CASES[name].play(), STORE.cases[name], bits)
    return {*found.strict, *found.loose}


def changed(name: str, way: str) -> set[str]:
    """What is noticed of a change: to the last bit of this processor, or by tolerance."""
    return compare(name, bits_here(name) if way == "bits" else None)


BOTH = pytest.mark.parametrize("way", ["bits", "tolerance"])


def test_the_record_has_every_case() -> None:
    assert list(STORE.cases) == list(CASES)
    assert list(STORE.bad) == list(BAD)
    assert {name.split("/")[0] for name in SUBSET} >= {*golden.SOLVERS, "secure"}
    for path in SCRIPT.parent.glob("bits-*.json"):
        assert set(golden.Store(path, golden.BITS).cases) <= set(CASES)


@pytest.mark.parametrize("name", SUBSET)
def test_a_transcript_is_what_it_was(name: str) -> None:
    assert compare(name, BITS.cases.get(name)) == set()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_is_answered_as_it_was(name: str) -> None:
    assert BAD[name].play() == STORE.bad[name]


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["Haswell", "Sandybridge", "Nehalem"])
def test_another_processor_agrees_by_tolerance(processor: str) -> None:
    # Linear algebra as on another x86 processor; other processors do not read it, and then the bits agree as well.
    environment = {**os.environ, "OPENBLAS_CORETYPE": processor}
    command = [sys.executable, str(SCRIPT), "--check", "--only", "/rows/squared/tight/zero-out"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1].endswith("; 0 differ."), done.stdout
    assert done.returncode == 0


# Negative controls: what must not go unnoticed.


@pytest.fixture(autouse=True)
def unchanged() -> None:
    """Have the bits before anything is changed."""
    for name in (CONTROL, BY_ROWS, SECURE):
        bits_here(name)


@BOTH
@pytest.mark.parametrize("name", [CONTROL, BY_ROWS, SECURE])
def test_nothing_is_noticed_where_nothing_changes(name: str, way: str) -> None:
    assert changed(name, way) == set()


@BOTH
def test_other_noise_is_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = golden.SeededRandomness.bytes
    monkeypatch.setattr(golden.SeededRandomness, "bytes", lambda self, count: drawn(self, count)[::-1])
    found = changed(CONTROL, way)
    assert found - {"bytes"} == {"frames", "model"}
    assert {"frames", "model", "opened"} <= changed(SECURE, way)


@BOTH
def test_another_share_of_the_budget_is_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    golden.perturb(monkeypatch.setattr)
    assert {"frames", "releases", "events", "model"} <= changed(CONTROL, way)


@BOTH
def test_another_order_of_messages_is_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = golden.Tape.__call__

    def backwards(self: Any, messages: Any) -> Any:
        return exchange(self, dict(reversed(messages.items())))

    monkeypatch.setattr(golden.Tape, "__call__", backwards)
    found = changed(BY_ROWS, way)
    assert "frames" in found
    assert "model" not in found


@BOTH
def test_another_name_is_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(golden.NAMES, "gradient", "slope")
    assert changed(BY_ROWS, way) == {"frames", "releases"}


def nudged(data: bytes, by: float) -> bytes:
    """A frame one of whose weights is a little larger."""
    frame = golden.frame_of(data)
    if "weights" not in frame.arrays or frame.round != 2:
        return data
    fields = {"plan": frame.plan, "round": frame.round, "query": frame.query, "text": frame.text}
    arrays = {name: array.copy() for name, array in frame.arrays.items()}
    arrays["weights"][0] += by
    return golden.frame_bytes(frame.kind, frame.serial, **fields, arrays=arrays)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("by", "way"), [(1e-12, "bits"), (1e-4, "tolerance")])
@pytest.mark.parametrize("name", [CONTROL, SECURE])
def test_a_nudge_of_one_weight_is_noticed(name: str, by: float, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = golden.Tape.__call__

    def nudging(self: Any, messages: Any) -> Any:
        return exchange(self, {party: nudged(data, by) for party, data in messages.items()})

    monkeypatch.setattr(golden.Tape, "__call__", nudging)
    assert "frames" in changed(name, way)


def number_in(value: Any) -> float:
    return float(golden.sketch(value).split()[1])


@pytest.mark.parametrize("count", [1, 7, 100, 2400])
def test_a_sketch_moves_with_every_number(count: int) -> None:
    numbers = np.random.default_rng(count).uniform(-1, 1, count)
    before = number_in({"weights": numbers})
    for place in range(0, count, 1 + count // 20):
        moved = numbers.copy()
        moved[place] += 1e-4
        assert abs(number_in({"weights": moved}) - before) > golden.TOLERANCE
    assert abs(number_in({"weights": numbers * (1 + 1e-4)}) - before) > golden.TOLERANCE
    assert abs(number_in({"weights": numbers * (1 + 1e-15)}) - before) < golden.TOLERANCE


def test_a_sketch_is_exact_where_rounding_has_no_part() -> None:
    record = {"std": 0.5, "count": 3, "places": np.array([1, 4]), "least": np.array([-1e300, 0.5])}
    same = golden.sketch(record | {"std": 0.5 * (1 + 1e-12)})
    assert golden.near(golden.sketch(record), same)
    changes: list[dict[str, Any]] = [
        {"std": 0.5 * (1 + 1e-4)},
        {"std": -0.5},
        {"std": 0.0},
        {"count": 4},
        {"places": np.array([4, 1])},
        {"places": np.array([1, 5])},
        {"places": np.array([1.0, 4.0])},
        {"places": np.array([[1, 4]])},
        {"least": np.array([-1e299, 0.5])},
        {"more": "text"},
    ]
    for change in changes:
        assert not golden.near(golden.sketch(record), golden.sketch(record | change)), change
