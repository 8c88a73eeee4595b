"""The code stays as simple as it is: files are short, and a fit takes no longer way through them."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv

SOURCE = Path(sv.__file__).parent
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))]
BY_VALUE = re.compile(r"split (==|!=) [\"']|split in \(|secure aggregation is (not )?None")


def test_splits_and_channels_are_rarely_compared_by_value() -> None:
    assert sum(len(BY_VALUE.findall(text)) for text in TEXTS) <= 20


def test_files_are_short() -> None:
    assert sum(len(text.splitlines()) > 500 for text in TEXTS) <= 12


@pytest.mark.parametrize("name", [name for name in sv.__all__ if name.startswith("Private")])
def test_no_estimator_has_more_than_twenty_parameters(name: str) -> None:
    assert len(getattr(sv, name)._get_param_names()) <= 20


def walk(work: Any) -> tuple[int, int]:
    """How many functions of the package, in how many files, work runs through."""
    seen = set[tuple[str, str]]()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len(seen), len({path for path, _ in seen})


def test_a_fit_in_one_place_takes_no_longer_way() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (200, 4)), rng.integers(0, 2, 200)

    def fit() -> None:
        sv.PrivateLogisticRegression(epsilon=1.0, row_norm=2.0, classes=(0, 1)).fit(X, y)

    fit()  # what is imported and compiled once is not of the walk
    with warnings.catch_warnings(action="ignore"):
        functions, files = walk(fit)
    assert functions <= 760
    assert files <= 110
