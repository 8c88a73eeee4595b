"""Parts of a row norm, and what they cut."""

import warnings

import numpy as np
import pytest

import sottovoce as sv

RNG = np.random.default_rng(5)
CODES = np.eye(4)[RNG.integers(0, 4, 400)]  # one attribute, one-hot
NUMBERS = RNG.uniform(0, 1, (400, 2))
LABELS = (CODES[:, 0] + NUMBERS[:, 0] > 0.7).astype(int)


def fit(**options: object) -> list[str]:
    bounds = options.pop("bounds", {"row_norm": 2.0, "entry_bound": 1.0})
    federation = sv.Federation.by_columns([CODES, NUMBERS], LABELS, products="secure", **options)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sv.PrivateLogisticRegression(epsilon=2.0, delta=1e-4, solver="newton", **bounds).fit(federation)  # type: ignore[arg-type]
    return [str(warning.message) for warning in said if "row_norm" in str(warning.message)]


def test_shares_by_the_number_of_columns_are_warned_of() -> None:
    (text,) = fit()
    assert "party-1 1.63, party-2 1.15" in text
    assert "cut there" in text


@pytest.mark.parametrize(
    "options",
    [{"norms": [2**0.5, 2**0.5]}, {"bounds": {"entry_bound": 1.0}}],
    ids=["norms by attributes", "no row norm"],
)
def test_nothing_is_said_where_nothing_is_left_to_chance(options: dict[str, object]) -> None:
    assert fit(**options) == []
