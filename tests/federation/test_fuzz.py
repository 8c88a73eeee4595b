"""A short run of `programs/fuzz.py`, in processes of its own: the first has a limit on its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FUZZ = Path(__file__).parents[1] / "programs" / "fuzz.py"


def fuzz(what: str, count: int, *options: str) -> tuple[int, str]:
    arguments = [sys.executable, str(FUZZ), what, "--count", str(count), *options]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("what", "count"), [("frames", 800), ("replies", 150)])
def test_nothing_wrong_is_taken_or_ends_either_side(what: str, count: int) -> None:
    code, said = fuzz(what, count)
    assert code == 0, said
    assert said.startswith(f"{count} tried"), said


@pytest.mark.parametrize(
    ("what", "count", "planted", "sign"),
    [
        ("frames", 400, "a plan that allocates before it compares", "MemoryError"),
        ("replies", 60, "an unchecked reply", "got through"),
    ],
)
def test_a_planted_fault_is_found(what: str, count: int, planted: str, sign: str) -> None:
    code, said = fuzz(what, count, "--only", "newton, private, rows", "--plant", planted)
    assert code == 1, said
    assert sign in said
