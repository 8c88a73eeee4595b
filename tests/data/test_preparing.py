"""The loops that prepare dense rows: the same bits as NumPy step by step, on every path, and no row longer than one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.data import preparation
from sottovoce.data.block import Block, Preparation
from sottovoce.data.bounds import Bounds
from sottovoce.data.kernels.preparing_loops import HIGH, LOW
from sottovoce.data.matrix import row_squares
from sottovoce.data.resources import Resources

HOSTILE = [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1e-160, 1e-154, 0.25, 1.0, 1e16, 1e150, -1e155, 1e308, -1.7e308]
LOST = [math.nan, math.inf, -math.inf]
RANGES = ([-1.0, 0.0, 5.0, -4.0], [1.0, 1e-100, 1e90, 7.0])
DECLARED: list[dict[str, Any]] = [
    {"row_norm": 1.0},
    {"row_norm": 1e-100},
    {"row_norm": 3.0, "entry_bound": 0.1},
    {"entry_bound": [2.0, 1e-90, 0.3, 5.0]},
    {"feature_ranges": RANGES},
    {"feature_ranges": RANGES, "entry_bound": 0.25, "row_norm": 0.4},
    {"feature_ranges": ([0.0, -3.0, 2.0, 1.0], [1.0, 8.0, 2.5, 4.0]), "rescale": "unit", "row_norm": 0.7},
]


def recipe(declared: dict[str, Any], layout: str, *, filled: bool = False, **more: Any) -> Preparation:
    bounds = Bounds.declare(**declared)
    if filled:
        bounds = Bounds.model_validate(bounds.model_dump() | {"filled": (1, 3)})
    options = {"fit_intercept": True, "records": 3000, "classes": (0, 1), "layout": layout} | more
    return Preparation(bounds, 4, **options)


def wild_rows() -> np.ndarray:
    """Rows of all lengths; a fifth with hostile entries, some of them lost, and some a bit beside the bound."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((3000, 4)) * 10.0 ** rng.integers(-3, 3, (3000, 1))
    hostile = rng.random(X.shape) < 0.1
    X[hostile] = rng.choice(HOSTILE, hostile.sum())
    lost = rng.random(X.shape) < 0.01
    X[lost] = rng.choice(LOST, lost.sum())
    for place, direction in enumerate(np.eye(4)):
        for steps in range(-3, 4):
            X[10 * place + steps + 3] = direction * (1.0 + steps * 2.0**-52)
    return X


def step_by_step(X: np.ndarray, made: Preparation, usable: np.ndarray) -> np.ndarray:
    """What is promised of every entry, one NumPy operation after the other, all rows at once."""
    rows = np.array(X, dtype=np.float64, order="C")
    bounds, how = made.bounds, made.arrangement
    for place in bounds.filled or ():
        low, high = bounds.feature_low[place], bounds.feature_high[place]  # type: ignore[index]
        middle, column = (low + high) / 2, rows[:, place]
        rows[:, place] = np.where(np.isfinite(column), np.clip(column, low, high), middle)
    shift, stretch = made.affine()
    if stretch is not None:
        rows += shift
        rows *= stretch
    usable &= np.isfinite(rows).all(axis=1)
    rows[~np.isfinite(rows)] = 0.0
    np.clip(rows, made.columns[LOW], made.columns[HIGH], out=rows)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    factor, by_column = (1.0, made.scale) if isinstance(made.scale, np.ndarray) else (made.scale, None)
    if by_column is not None:
        rows *= by_column
    scale, limit = np.where(usable, factor, 0.0), bounds.row_norm
    if made.layout == "rows":
        limit = bounds.norm(made.features)
    if limit is not None:
        scale[norms > limit] *= limit / norms[norms > limit]
    rows *= scale[:, None]
    if made.exact and how.on_grid:
        rows = np.trunc(rows * 2.0**made.bits) * 2.0**-made.bits
    if made.fit_intercept:
        rows = np.column_stack([rows, np.where(usable, made.intercept_entry, 0.0)])
    return rows.astype(np.float32 if made.exact and (made.bits <= 24 or not how.on_grid) else np.float64)


def bits_of(rows: np.ndarray) -> np.ndarray:
    """Zeros of either sign are told apart."""
    rows = np.ascontiguousarray(rows)
    return rows.view(np.uint32 if rows.dtype == np.float32 else np.uint64)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("layout", ["rows", "columns", "entries"])
def test_the_loops_do_what_numpy_does_to_the_last_bit(declared: dict[str, Any], layout: str) -> None:
    X, y = wild_rows(), np.arange(3000) % 50 % 3  # a class that was not declared
    whole = np.where(np.isfinite(X), np.clip(X, -1e9, 1e9), 0.0).astype(np.int64)
    forms = [X, X.astype(np.float32), np.asfortranarray(X), X.astype(np.longdouble), whole, whole % 2 == 1, X[::-1]]
    frozen = X.copy()
    frozen.flags.writeable = False
    chances = [{}, {"exact": False}, {"exact": False, "units": True}, {"fit_intercept": False}, {"most_bits": 9}]
    chances += [{"filled": True}] * ("feature_ranges" in declared)
    for form in [*forms, frozen, X.astype(">f8"), X.astype(object)]:
        for chance in chances if form is X else [{}]:
            made = recipe(declared, layout, **chance)
            usable = y < 2
            expected = step_by_step(form, made, usable)
            block = Block.prepare(form, y, made)
            np.testing.assert_array_equal(bits_of(block.rows), bits_of(expected))
            np.testing.assert_array_equal(block.usable, usable)
            assert 0 < usable.sum() < 3000


def test_few_records_keep_more_bits_than_float32() -> None:
    made = recipe(DECLARED[0], "rows", records=8)
    X = wild_rows()[:8]
    block = Block.prepare(X, np.zeros(8, dtype=int), made)
    assert block.rows.dtype == np.float64
    np.testing.assert_array_equal(bits_of(block.rows), bits_of(step_by_step(X, made, np.ones(8, dtype=bool))))


def test_any_number_of_threads_prepares_the_same_rows() -> None:
    X = np.tile(wild_rows(), (100, 1))
    y, made = np.zeros(len(X), dtype=int), recipe(DECLARED[0], "rows", records=300_000)
    alone = Block.prepare(X, y, made)
    shared = Block.prepare(X, y, made, resources=Resources(3))
    np.testing.assert_array_equal(bits_of(shared.rows), bits_of(alone.rows))
    np.testing.assert_array_equal(shared.usable, alone.usable)


@pytest.mark.parametrize("features", [1, 7, 9, 130, 700])
@pytest.mark.parametrize("layout", ["rows", "columns", "entries"])
def test_sparse_rows_have_the_norms_that_numpy_adds(features: int, layout: str) -> None:
    """Without a grid, which would hide a last bit; rows have from none to all of the entries, and some are lost."""
    rng = np.random.default_rng(features)
    X = rng.standard_normal((200, features)) * 10.0 ** rng.integers(-3, 3, (200, 1))
    X[rng.random(X.shape) > rng.random((200, 1))] = 0.0
    X[::50, 0] = math.nan
    made = Preparation(Bounds.declare(row_norm=1.0), features, True, 200, (0, 1), False, layout=layout, units=True)
    rows, usable = sp.csr_matrix(X), np.isfinite(X).all(axis=1)
    data = np.where(np.isfinite(rows.data), rows.data, 0.0)
    squares, some = np.zeros(200), np.flatnonzero(np.diff(rows.indptr))
    squares[some] = np.add.reduceat(data * data, rows.indptr[some])
    by_column, factors = (made.scale, 1.0) if isinstance(made.scale, np.ndarray) else (np.ones(features), made.scale)
    factors = np.where(usable, factors, 0.0)
    long = np.sqrt(squares) > 1.0
    factors[long] *= 1.0 / np.sqrt(squares[long])
    expected = data * by_column[rows.indices] * np.repeat(factors, np.diff(rows.indptr))
    found = made.prepared(rows, known := np.ones(200, dtype=bool))
    np.testing.assert_array_equal(found[:, :features].tocsr().data, expected)
    np.testing.assert_array_equal(found[:, [features]].toarray().ravel(), np.where(usable, made.intercept_entry, 0.0))
    np.testing.assert_array_equal(known, usable)


def edge_rows(features: int) -> np.ndarray:
    """Norms within some last bits of the bound, and norms that are rounded down: one large entry and many small."""
    rng = np.random.default_rng(features)
    near = rng.standard_normal((300, features))
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    near[:200] *= 1.0 + np.arange(-100, 100)[:, None] * 2.0**-53
    small = np.full((50, features), 2.0**-27)
    small[:, 0] = 1.0 + np.arange(50) * 2.0**-52
    hostile = rng.choice(HOSTILE, (50, features))
    return np.concatenate([near, small, hostile])


def longest(features: int, records: int) -> Fraction:
    """The largest squared norm of an edge row, exactly."""
    made = Preparation(Bounds.declare(row_norm=1.0), features, False, records, (0, 1))
    rows = Block.prepare(edge_rows(features), np.zeros(400, dtype=int), made).rows
    scaled = np.ldexp(np.asarray(rows, dtype=np.float64), made.bits)
    assert (scaled == np.rint(scaled)).all()
    return max(Fraction(sum(int(entry) ** 2 for entry in row), 4**made.bits) for row in scaled)


@pytest.mark.parametrize("features", [1, 2, 5, 90])
@pytest.mark.parametrize("records", [400, 2**30])
def test_a_row_at_the_bound_is_no_longer_than_one(features: int, records: int) -> None:
    assert Fraction(99, 100) < longest(features, records) <= 1


@pytest.mark.parametrize("fault", ["nearest", "longer"])
def test_a_row_that_is_longer_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: rounding to the nearest, and the norm of a row taken for a bit less than it is."""
    real = preparation.prepare_dense

    def faulty(raw: Any, columns: Any, numbers: Any, usable: Any, made: Any, *rows: int) -> None:
        (scale, limit, grid, constant), exact = numbers, np.empty(made.shape)
        if fault == "longer":
            real(raw, columns, (scale * (1.0 + 2.0**-18), limit, grid, constant), usable, made, *rows)
            return
        real(raw, columns, (scale, limit, 0.0, constant), usable, exact, *rows)
        made[slice(*rows)] = np.rint(exact[slice(*rows)] * grid) / grid

    monkeypatch.setattr(preparation, "prepare_dense", faulty)
    assert max(longest(features, 400) for features in (1, 2, 5, 90)) > 1


def test_the_norm_of_a_long_row_does_not_depend_on_the_rows_around_it() -> None:
    rows = np.random.default_rng(4).standard_normal((9, 8200))
    expected = row_squares(rows)
    for place in range(9):
        assert row_squares(rows[place : place + 1])[0] == expected[place]
        assert row_squares(rows[place:])[0] == expected[place]
