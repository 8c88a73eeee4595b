from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import losses, penalties
from sottovoce.arguments import is_number, is_whole
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError
from sottovoce.privacy.events import Gaussian

WHOLE = [0, -3, 10**300, np.int8(2), np.uint64(2**63)]
NUMBERS = [*WHOLE, 0.5, -math.inf, np.float32(0.1), np.float64(2.0), np.longdouble(1.0), Fraction(1, 3)]
NEITHER = [True, np.True_, "1", b"1", None, math.nan, np.float32("nan"), 1j, [1], np.array(1.0), Decimal(1)]


def test_what_a_number_is() -> None:
    assert all(map(is_number, NUMBERS))
    assert not any(map(is_number, [*NEITHER, 10**400]))
    assert all(map(is_whole, [*WHOLE, 10**400]))
    assert not any(map(is_whole, [*NEITHER, 1.0, np.float64(1.0), Fraction(1, 1)]))


@pytest.mark.parametrize("value", [True, "1", math.nan, 10**400], ids=["truth", "text", "nan", "huge"])
def test_every_part_of_the_package_means_the_same_by_a_number(value: Any) -> None:
    X, y = np.array([[0.1], [0.2]]), np.array([0, 1])
    calls = {
        "epsilon": lambda: sv.PrivateLogisticRegression(epsilon=value, row_norm=1.0).fit(X, y),
        "row_norm": lambda: sv.PrivateLogisticRegression(epsilon=1.0, row_norm=value).fit(X, y),
        "alpha": lambda: sv.PrivateLogisticRegression(epsilon=1.0, row_norm=1.0, alpha=value).fit(X, y),
        "entry_bound": lambda: Bounds.declare(row_norm=1.0, entry_bound=value),
        "threshold": lambda: losses.get("huber", threshold=value),
        "high": lambda: penalties.get_penalty("box", low=0.0, high=value),
        "mu": lambda: Gaussian(value),
    }
    for argument, call in calls.items():
        with pytest.raises(InputError, match=rf"\b{argument}="):
            call()
