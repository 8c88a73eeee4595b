"""Fits killed at random instants leave no release without a durable charge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.privacy.accounting import gaussian_epsilon

PROGRAM = Path(__file__).parent.parent / "programs" / "kill_fits.py"


def test_two_hundred_killed_fits(tmp_path: Path) -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "200", "11"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["kills"] == 200
    assert seen["killed_inside_a_fit"] >= 40
    assert seen["told"] >= 200
    assert seen["told_but_not_in_the_ledger"] == 0
    assert seen["released_without_an_earlier_charge"] == 0
    assert seen["released_twice"] == 0
    # every reserved plan stays charged, whole, whether its fit lived or not
    assert seen["spent"] == pytest.approx(gaussian_epsilon(seen["should_be_spent_mu_squared"] ** 0.5, 1e-5), rel=1e-3)


@pytest.mark.parametrize(("case", "kills", "seed"), [("scd", 4, 3)])
def test_a_fit_whose_processes_are_killed_is_an_unbroken_one(case: str, kills: int, seed: int, tmp_path: Path) -> None:
    """Coordinator and parties, over TLS, each started again by its own command: the same model, charged once."""
    program = PROGRAM.with_name("resume_fits.py")
    run = subprocess.run(
        [sys.executable, str(program), str(tmp_path), case, str(kills), str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["same_model"]
    assert seen["same_ledgers"]
    assert seen["same_rounds"]
    assert seen["went_on"] >= 1
    assert seen["left_behind"] == []
