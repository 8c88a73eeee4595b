"""A cheap part of the golden transcripts, and all bad inputs; `make golden` plays the whole set."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

_SPEC = importlib.util.spec_from_file_location("golden_transcripts", Path(__file__).parent / "transcripts.py")
assert _SPEC is not None
assert _SPEC.loader is not None
golden = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = golden
_SPEC.loader.exec_module(golden)

STORE = golden.load()
CASES = golden.all_cases()
BAD = golden.all_bad()
SLOW = {"sgd/rows/squared/paper/zero-out", "sgd/central/squared/paper/zero-out"}  # seconds of accounting


def in_subset(name: str) -> bool:
    """One case for each solver, split and calibration, labels shared, zero-out; and a few of several fits."""
    parts = name.split("/")
    if parts[0] in ("auto", "predict"):
        return True
    chosen = parts[0] in golden.SOLVERS and parts[-1] == "zero-out" and "squared" in parts
    return chosen and "public" not in parts and "held" not in parts and name not in SLOW


CONTROL = "newton/central/squared/tight/zero-out"
SUBSET = [name for name in CASES if in_subset(name)]


def compare(name: str, played: Any = None) -> list[str]:
    strict, loose = golden.differences(STORE["cases"][name], CASES[name].play() if played is None else played, name)
    if (strict or loose) and STORE["arithmetic"] != golden.arithmetic():
        pytest.skip("the numerical libraries are not those of the record")
    return [*strict, *loose]


def test_the_record_has_every_case() -> None:
    assert list(STORE["cases"]) == list(CASES)
    assert list(STORE["bad"]) == list(BAD)
    assert {name.split("/")[0] for name in SUBSET} >= set(golden.SOLVERS)


@pytest.mark.parametrize("name", SUBSET)
def test_a_transcript_is_what_it_was(name: str) -> None:
    assert compare(name) == []


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_is_answered_as_it_was(name: str) -> None:
    assert BAD[name].play() == STORE["bad"][name]


# Negative controls: what must not go unnoticed.


def nudged(data: bytes) -> bytes:
    """A frame whose weights are a little larger."""
    frame = golden.frame_of(data)
    if "weights" not in frame.arrays:
        return data
    fields = {"plan": frame.plan, "round": frame.round, "query": frame.query, "text": frame.text}
    arrays = {**frame.arrays, "weights": frame.arrays["weights"] + 1e-12}
    return golden.frame_bytes(frame.kind, frame.serial, **fields, arrays=arrays)  # type: ignore[no-any-return]


def test_other_noise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = golden.SeededRandomness.bytes
    monkeypatch.setattr(golden.SeededRandomness, "bytes", lambda self, count: drawn(self, count)[::-1])
    found = set(compare(CONTROL))
    assert found == {"frames", "bytes", "model"}


def test_another_share_of_the_budget_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    golden.perturb(monkeypatch.setattr)
    assert {"frames", "releases", "events", "model"} <= set(compare(CONTROL))


def test_a_nudge_of_one_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = golden.Tape.__call__

    def nudging(self: Any, messages: Any) -> Any:
        return exchange(self, {party: nudged(data) for party, data in messages.items()})

    monkeypatch.setattr(golden.Tape, "__call__", nudging)
    assert {"frames", "bytes"} <= set(compare(CONTROL))
