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


def test_killed_fits(tmp_path: Path) -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "80", "11"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["kills"] == 80
    assert seen["killed_inside_a_fit"] >= 16
    assert seen["told"] >= 80
    assert seen["told_but_not_in_the_ledger"] == 0
    assert seen["released_without_an_earlier_charge"] == 0
    assert seen["released_twice"] == 0
    # every reserved plan stays charged, whole, whether its fit lived or not
    assert seen["spent"] == pytest.approx(gaussian_epsilon(seen["should_be_spent_mu_squared"] ** 0.5, 1e-5), rel=1e-3)
