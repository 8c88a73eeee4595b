from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sottovoce.data.bounds import LARGEST, SMALLEST, Bounds, party_norms
from sottovoce.errors import InputError


def test_a_number_stands_for_a_symmetric_label_range() -> None:
    bounds = Bounds.declare(label_bound=3)
    assert (bounds.label_low, bounds.label_high) == (-3.0, 3.0)
    assert Bounds.declare(label_bound=np.float64(3)) == Bounds.declare(label_bound=np.array(3)) == bounds
    assert Bounds.declare(row_norm=np.float32(2), entry_bound=np.int64(3)).entry_bound == 3.0
    bounds = Bounds.declare(label_bound=(1, 5))
    assert (bounds.label_low, bounds.label_high) == (1.0, 5.0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"row_norm": 0.0}, "row_norm=0.0"),
        ({"row_norm": -1.0}, "row_norm=-1.0"),
        ({"row_norm": math.nan}, "row_norm=nan"),
        ({"row_norm": math.inf}, "row_norm=inf"),
        ({"row_norm": SMALLEST / 2}, "row_norm"),
        ({"row_norm": LARGEST * 2}, "row_norm"),
        ({"entry_bound": math.nan}, "entry_bound=nan"),
        ({"entry_bound": 0.0}, "entry_bound=0.0"),
        ({"label_bound": 0.0}, "label_bound"),
        ({"label_bound": math.nan}, "label_bound"),
        ({"label_bound": math.inf}, "label_bound"),
        ({"label_bound": (5, 1)}, "label_bound"),
        ({"label_bound": (1, 1)}, "label_bound"),
        ({"label_bound": (1, 2, 3)}, "label_bound"),
        ({"label_bound": "tall"}, "label_bound='tall'"),
        ({"label_bound": (1, "tall")}, "label_bound"),
        ({"label_bound": [[1, 2]]}, "label_bound"),
        ({"row_norm": "long"}, "row_norm='long'"),
        ({"entry_bound": [1, 0]}, "entry_bound"),
        ({"entry_bound": [1, math.nan]}, "entry_bound"),
        ({"entry_bound": []}, "entry_bound"),
        ({"entry_bound": [[1, 2]]}, "entry_bound"),
        ({"entry_bound": ["a"]}, "entry_bound"),
        ({"entry_bound": ["1"]}, "entry_bound"),
        ({"entry_bound": "1"}, "entry_bound"),
        ({"entry_bound": True}, "entry_bound"),
        ({"entry_bound": [1.0, True]}, "entry_bound"),
        ({"entry_bound": [[1], [1, 2]]}, "entry_bound"),
        ({"entry_bound": 10**400}, "entry_bound"),
        ({"entry_bound": [1.0, 1e101]}, "entry_bound"),
        ({"entry_bound": [1.0, -1.0]}, "entry_bound"),
        ({"entry_bound": {"a": 1}}, "entry_bound"),
        ({"rescale": "log"}, "rescale='log'"),
        ({"feature_ranges": ([0, 1], [1, 1])}, "feature_ranges"),
        ({"feature_ranges": ([0], [1, 1])}, "feature_ranges"),
        ({"feature_ranges": ([math.nan], [1])}, "feature_ranges"),
        ({"feature_ranges": ([0], [math.inf])}, "feature_ranges"),
        ({"feature_ranges": 5}, "feature_ranges"),
        ({"feature_ranges": (["a"], ["b"])}, "feature_ranges"),
    ],
)
def test_a_bad_declaration_names_the_argument(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Bounds.declare(**arguments)  # type: ignore[arg-type]


def test_entries_may_have_a_bound_for_each_feature() -> None:
    bounds = Bounds.declare(entry_bound=[3.0, 4.0])
    assert bounds.norm(2) == 5.0
    np.testing.assert_array_equal(bounds.columns(2), [3.0, 4.0])
    np.testing.assert_array_equal(Bounds.declare(entry_bound=[3.0, 4.0], row_norm=3.5).columns(2), [3.0, 3.5])
    with pytest.raises(InputError, match="entry_bound has 2 numbers but the data have 3 features"):
        bounds.require(3, labels=False)
    bounds.require(2, labels=False)
    for form in ((3, 4), np.array([3, 4]), np.array([3.0, 4.0], dtype=np.float32), [np.int64(3), 4.0]):
        again = Bounds.declare(entry_bound=form)  # type: ignore[arg-type]
        assert again == bounds
        assert hash(again) == hash(bounds)
    assert Bounds.model_validate_json(bounds.model_dump_json()) == bounds
    assert Bounds.declare(entry_bound=np.float64(3.0)).entry_bound == 3.0
    assert Bounds.declare(entry_bound=[3.0]) != Bounds.declare(entry_bound=3.0)  # one feature, or any number


def test_the_bound_of_a_column_is_the_least_that_is_declared() -> None:
    def columns(**declared: Any) -> list[float]:
        return Bounds.declare(**declared).columns(3).tolist()

    assert Bounds().columns(3).tolist() == [math.inf] * 3
    assert columns(row_norm=2.0) == [2.0, 2.0, 2.0]
    assert columns(entry_bound=0.5) == [0.5, 0.5, 0.5]
    assert columns(entry_bound=0.5, row_norm=0.25) == [0.25, 0.25, 0.25]
    assert columns(entry_bound=[0.5, 3.0, 1.0], row_norm=2.0) == [0.5, 2.0, 1.0]
    ranges = ([0, 0, 0], [9, 9, 9])
    assert columns(feature_ranges=ranges) == [1.0, 1.0, 1.0]
    assert columns(feature_ranges=ranges, entry_bound=[0.5, 3.0, 1.0]) == [0.5, 1.0, 1.0]
    assert columns(feature_ranges=ranges, row_norm=0.1) == [0.1, 0.1, 0.1]


def test_bounds_are_frozen_and_compared_by_value() -> None:
    bounds = Bounds.declare(row_norm=1, label_bound=2, feature_ranges=([0, 0], [1, 2]))
    assert bounds == Bounds.declare(row_norm=1.0, label_bound=(-2, 2), feature_ranges=((0, 0), (1, 2)))
    assert hash(bounds) == hash(Bounds.model_validate_json(bounds.model_dump_json()))
    with pytest.raises(ValidationError):
        bounds.row_norm = 5.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Bounds.model_validate({"row_norm": 1.0, "inferred_from_data": True})


def test_halves_of_a_range_are_declared_together() -> None:
    for half in ({"label_low": 0.0}, {"label_high": 1.0}, {"feature_low": (0.0,)}, {"feature_high": (1.0,)}):
        with pytest.raises(ValidationError, match="together"):
            Bounds.model_validate(half)


@pytest.mark.parametrize(
    ("arguments", "norm"),
    [
        ({"row_norm": 2.5}, 2.5),
        ({"row_norm": 2.5, "entry_bound": 1.0}, 2.5),
        ({"entry_bound": 2.0}, 4.0),
        ({"feature_ranges": ([0] * 4, [9] * 4)}, 2.0),
        ({"label_bound": 1}, None),
    ],
)
def test_the_norm_that_declarations_imply(arguments: dict[str, object], norm: float | None) -> None:
    assert Bounds.declare(**arguments).norm(4) == norm  # type: ignore[arg-type]


def test_a_missing_bound_is_explained() -> None:
    with pytest.raises(InputError, match=r"row_norm=None.*largest Euclidean.*not from these data"):
        Bounds.declare(label_bound=1).require(3, labels=True)
    with pytest.raises(InputError, match=r"label_bound=None.*labels in \[-b, b\].*not from these data"):
        Bounds.declare(row_norm=1).require(3, labels=True)
    Bounds.declare(row_norm=1).require(3, labels=False)
    with pytest.raises(InputError, match="2 pairs but the data have 3 features"):
        Bounds.declare(feature_ranges=([0, 0], [1, 1])).require(3, labels=False)


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (1.0, 5.0), (-7.0, -3.0), (0.0, 1e-9)])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_label_scale_maps_the_range_into_the_unit_interval(low: float, high: float, fit_intercept: bool) -> None:
    centre, half = Bounds.declare(label_bound=(low, high)).label_scale(fit_intercept=fit_intercept)
    ends = (np.array([low, high]) - centre) / half
    assert np.abs(ends).max() == pytest.approx(1.0)
    if fit_intercept:
        assert ends == pytest.approx([-1, 1])
    else:
        assert centre == 0.0


@given(st.floats(1e-50, 1e50), st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_squares_of_the_party_norms_sum_to_the_whole(row_norm: float, columns: list[int]) -> None:
    norms = party_norms(row_norm, columns)
    assert math.fsum(norm**2 for norm in norms) == pytest.approx(row_norm**2, rel=1e-12)
    shares = [norm**2 / row_norm**2 for norm in norms]
    assert shares == pytest.approx([count / sum(columns) for count in columns], rel=1e-9)


def test_filled_columns_are_written_only_where_there_are_some() -> None:
    """Bounds without them are written as ever, so that no plan of another kind has another digest."""
    plain = Bounds.declare(feature_ranges=([0, 0, 0], [1, 2, 3]))
    assert "filled" not in plain.model_dump()
    filled = plain.model_copy(update={"filled": (0, 2)})
    assert Bounds.model_validate(filled.model_dump()) == filled
    assert [filled.part(start, 3, None).filled for start in (0, 1)] == [(0, 2), (1,)]
    assert filled.part(1, 2, None).filled is None
    for wrong in ((3,), (-1,), (), (0, 0), (1, 0)):
        with pytest.raises(ValidationError, match="filled must be places"):
            Bounds.model_validate(plain.model_dump() | {"filled": wrong})
