"""Each planted fault is found by each check that is named for it, and by none of them without the fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import faults

pytestmark = pytest.mark.slow

PLANTED = [(name, check) for name, fault in faults.FAULTS.items() for check in fault.found_by]


@pytest.mark.parametrize(("name", "check"), PLANTED)
def test_a_planted_fault_is_caught(name: str, check: str) -> None:
    fault = faults.FAULTS[name]
    with pytest.raises(faults.CAUGHT), fault.plant():
        fault.found_by[check]()
    fault.found_by[check]()  # after the fault, so that nothing of it is left


def test_the_catalogue_is_complete() -> None:
    asked = {
        "noise halved",
        "clipping dropped",
        "sensitivity of the wrong relation",
        "row noise redrawn every round",
        "duals visible",
        "sampled set visible in sizes",
        "empty batch skipped",
        "N taken from the data",
        "nonsense not refused",
        "labels broadcast",
        "composition over parties forgotten",
        "inner steps not counted",
        "float noise instead of the grid",
        "budget not charged on retry",
        "seed reused between parties",
        "rounds not counted",
        "batches not counted",
        "uses undercounted",
        "named records undercounted",
        "coin averaged",
        "curve without the samplers",
        "scores taken for sums",
        "everybody's turn",
        "one party's answer taken for a sum",
        "world told nothing",
        "answers not priced together",
        "together dropped",
        "distance of the wrong relation",
        "samplers' share spent",
        "NaN taken for a number",
        "integrity check skipped",
        "index trusted",
        "chain not checked",
        "an unsigned plan",
        "signatures not verified",
        "a plan signed before it is charged",
        "a model that nobody earned",
        "a model that nobody approved",
        "keys of the coordinator's choice",
    }
    assert asked <= set(faults.FAULTS)
    assert all(fault.found_by for fault in faults.FAULTS.values())
    print(faults.table())  # noqa: T201
