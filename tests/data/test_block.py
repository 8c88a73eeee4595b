from __future__ import annotations

import gc
import itertools
import logging
import math
import weakref
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sottovoce import losses
from sottovoce.data import matrix
from sottovoce.data.block import Block, Preparation, exact_bits, exact_weights
from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import label_array
from sottovoce.errors import InputError, LeakError
from sottovoce.queries.sums import GradientSum, GramMatrix, clipped_derivative
from support import at

ABSURD = st.one_of(
    st.floats(width=64),  # NaN, infinities, subnormals and all
    st.floats(-2.0, 2.0),
    st.sampled_from([0.0, -0.0, 1.0, 1e300, -1e300, 1e-300, 5e-324, math.inf, -math.inf, math.nan, 1e150, 1e155]),
)
BOUNDS = [
    {"row_norm": 1.0},
    {"row_norm": 1e-100},
    {"row_norm": 1e100},
    {"row_norm": 3.0, "entry_bound": 0.1},
    {"entry_bound": 1e-90},
    {"entry_bound": 2.0},
    {"feature_ranges": ([-1.0, 0.0, 5.0], [1.0, 1e-100, 1e90])},
    {"feature_ranges": ([0.0, -3.0, 2.0], [1.0, 8.0, 2.5]), "rescale": "unit", "row_norm": 0.7},
    {"feature_ranges": ([0.0, -1.0, 0.0], [1.0, 1.0, 1.0]), "entry_bound": 0.25},
]


def recipe(
    features: int, *, records: int = 100, intercept: bool = True, exact: bool = True, **declared: Any
) -> Preparation:
    return Preparation(Bounds.declare(**declared), features, intercept, records, (0, 1), exact)


def prepare(X: Any, made: Preparation) -> Block:
    return Block.prepare(X, np.zeros(X.shape[0], dtype=int), made)


def dense(block: Block) -> np.ndarray:
    return block.rows.toarray() if sp.issparse(block.rows) else np.asarray(block.rows, dtype=np.float64)


def exact_square_norms(block: Block) -> list[Fraction]:
    """The squared norms without a rounding: rows are multiples of 2^-bits."""
    scaled = np.ldexp(dense(block), block.bits)
    assert (scaled == np.rint(scaled)).all()
    return [
        Fraction(sum(int(value) ** 2 for value in row), 4**block.bits)  # type: ignore[operator]
        for row in scaled
    ]


@pytest.mark.parametrize("declared", BOUNDS)
@pytest.mark.parametrize("intercept", [True, False])
@settings(max_examples=60, deadline=None)
@given(
    X=hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.just(3)), elements=ABSURD),
    records=st.sampled_from([8, 10**5, 2**40]),
)
@example(X=np.array([[1e155, 1.0, math.nan], [5e-324, 1e308, -1e308]]), records=8)
def test_no_prepared_row_is_longer_than_one(
    X: np.ndarray, records: int, declared: dict[str, Any], intercept: bool
) -> None:
    before = X.copy()
    block = prepare(X, recipe(3, records=records, intercept=intercept, **declared))
    assert all(norm <= 1 for norm in exact_square_norms(block))
    np.testing.assert_array_equal(X, before)
    broken = ~np.isfinite(X).all(axis=1)
    assert (dense(block)[broken] == 0).all()


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_a_norm_that_is_rounded_down_makes_no_row_longer_than_one(form: Any) -> None:
    """|(2^26, 1)| is 2^26 in float64; scaled by that alone, the row would keep its true length, 1 + 2^-53."""
    block = prepare(form(np.array([[2.0**26, 1.0]])), recipe(2, records=2, intercept=False, row_norm=1.0))
    assert block.bits == 26
    assert exact_square_norms(block)[0] <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**32 - 1), st.sampled_from([1e-100, 1e-3, 1.0, 7.3, 1e100]))
def test_long_rows_land_just_below_one(features: int, seed: int, row_norm: float) -> None:
    X = np.random.default_rng(seed).standard_normal((5, features)) * row_norm * 40
    norms = exact_square_norms(prepare(X, recipe(features, records=5, row_norm=row_norm)))
    assert all(norm <= 1 for norm in norms)
    full = [norm for norm, row in zip(norms, X, strict=True) if np.linalg.norm(row) > row_norm * (1 + 1e-9)]
    assert all(norm > 1 - 1e-4 for norm in full)


@pytest.mark.parametrize("declared", [b for b in BOUNDS if "feature_ranges" not in b])
@settings(max_examples=40, deadline=None)
@given(X=hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(4)), elements=ABSURD))
def test_dense_and_sparse_are_equal_to_the_last_bit(X: np.ndarray, declared: dict[str, Any]) -> None:
    made = recipe(4, **declared)
    expected = dense(prepare(X, made))
    for form in (sp.csr_matrix, sp.csc_matrix, sp.coo_matrix, sp.csr_array):
        np.testing.assert_array_equal(dense(prepare(form(X), made)), expected)


def unsorted_with_duplicates(X: np.ndarray) -> sp.csr_matrix:
    """The same matrix with every entry in two exact halves and the columns in reverse order."""
    count, features = X.shape
    columns = np.tile(np.repeat(np.arange(features)[::-1], 2), count)
    halves = np.repeat(X[:, ::-1] / 2, 2, axis=1).ravel()
    return sp.csr_matrix((halves, columns, np.arange(0, 2 * X.size + 1, 2 * features)), shape=X.shape)


def test_layouts_and_types_are_prepared_alike() -> None:
    X = np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32).astype(np.float64) * 0.5
    X[X < -0.4] = 0.0
    made = recipe(7, records=300, row_norm=1.0)
    expected = dense(prepare(X, made))
    odd = unsorted_with_duplicates(X)
    assert not odd.has_canonical_format
    before = odd.copy()
    for form in (
        np.asfortranarray(X),
        X.astype(np.float32),
        np.ascontiguousarray(X[:, ::-1])[:, ::-1],
        np.repeat(X, 2, axis=0)[::2],
        X.astype(object).astype(np.longdouble),
        sp.csr_matrix(X.astype(np.float32)),
        sp.csc_matrix(X),
        sp.coo_matrix(X),
        odd,
    ):
        np.testing.assert_array_equal(dense(prepare(form, made)), expected)
    assert (before.indices == odd.indices).all()
    assert (before.data == odd.data).all()
    whole = np.arange(21).reshape(3, 7)
    np.testing.assert_array_equal(dense(prepare(whole, made)), dense(prepare(whole.astype(np.float64), made)))
    flags = whole % 2 == 1
    np.testing.assert_array_equal(dense(prepare(flags, made)), dense(prepare(flags.astype(np.float64), made)))


def test_sparse_entries_that_add_up_to_nan_make_a_null_row() -> None:
    odd = sp.csr_matrix((np.array([math.inf, -math.inf, 0.5]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    rows = dense(prepare(odd, recipe(2, row_norm=1.0)))
    assert (rows[0] == 0).all()
    assert rows[1, 1] > 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308])
@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_a_bad_row_becomes_null_and_changes_nothing_else(bad: float, form: Any) -> None:
    X = np.random.default_rng(1).standard_normal((50, 3))
    made = recipe(3, feature_ranges=([-2e-3] * 3, [2e-3] * 3))
    before = dense(prepare(form(X), made))
    X[17, 1] = bad
    after = dense(prepare(form(X), made))
    expected = before.copy()
    expected[17] = 0.0
    np.testing.assert_array_equal(after, expected)


def test_a_label_outside_the_classes_makes_a_null_row() -> None:
    X = np.full((5, 2), 0.3)
    made = recipe(2, row_norm=1.0)
    block = Block.prepare(X, [0, 1, 7, math.nan, 1], made)
    assert (dense(block)[[2, 3]] == 0).all()
    assert (dense(block)[[0, 1, 4]] != 0).all()
    assert block.labels.tolist() == [-1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array(["no", "yes", "maybe"]), [-1, 1, 0]),
        (np.array(["no", "yes", None], dtype=object), [-1, 1, 0]),
        (np.array([True, "yes", "no"], dtype=object), [0, 1, -1]),
        (np.array([1, 2, 3]), [0, 0, 0]),
    ],
)
def test_labels_of_any_type_are_compared_in_silence(labels: np.ndarray, expected: list[int]) -> None:
    made = Preparation(Bounds.declare(row_norm=1), 1, True, 10, ("no", "yes"))
    signs, usable = made.labels(labels)
    assert np.where(usable, signs, 0).tolist() == expected


def test_a_missing_value_of_pandas_is_a_null_row() -> None:
    pandas = pytest.importorskip("pandas")
    labels = np.asarray(pandas.Series([1, 0, pandas.NA], dtype="Int64"))
    made = Preparation(Bounds.declare(row_norm=1), 1, True, 10, (0, 1))
    assert made.labels(labels)[1].tolist() == [True, True, False]
    made = Preparation(Bounds.declare(row_norm=1, label_bound=1), 1, True, 10)
    assert made.labels(labels)[1].tolist() == [True, True, False]


def test_regression_labels_are_cut_and_those_that_are_no_numbers_are_null() -> None:
    made = Preparation(Bounds.declare(row_norm=1, label_bound=(2, 6)), 1, True, 10)
    labels, usable = made.labels([2, 6, -1e300, 1e300, 4, math.inf, math.nan])
    assert labels[:5].tolist() == [-1, 1, -1, 1, 0]
    assert usable.tolist() == [True] * 5 + [False] * 2
    assert made.labels(np.array(["3", "x", None], dtype=object))[1].tolist() == [True, False, False]
    assert made.labels(np.array(["3", "x"]))[1].tolist() == [True, False]
    block = Block.prepare(np.full((3, 1), 0.5), [3.0, math.nan, 5.0], made)
    assert (dense(block)[1] == 0).all()
    assert block.labels[1] == 0


def test_the_holder_alone_is_told_and_no_value_is_in_the_message(caplog: pytest.LogCaptureFixture) -> None:
    X = np.full((9, 2), 0.123456)
    X[4, 1] = math.nan
    X[5, 0] = math.inf
    with caplog.at_level(logging.DEBUG):
        Block.prepare(X, [0, 1, 54321, 0, 1, 0, 1, 0, 1], recipe(2, row_norm=1.0))
    (record,) = caplog.records
    assert record.name == "sottovoce.holder"
    assert record.getMessage().startswith("3 of 9 rows cannot be used")
    assert "123456" not in record.getMessage()
    assert "54321" not in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        prepare(np.full((9, 2), 0.1), recipe(2, row_norm=1.0))
    assert not caplog.records


def test_wrong_shapes_are_refused_without_values() -> None:
    made = recipe(2, records=3, row_norm=1.0)
    for X, y, fault in (
        (np.full((2, 3), 0.777), [0, 1], "3 features but the plan is for 2"),
        (np.full((4, 2), 0.777), [0] * 4, "4 rows but the plan is for 3"),
        (np.full((3, 2), 0.777), [0] * 2, "one label per row"),
        (np.full((3, 2), 0.777), [[0]] * 3, "one label per row"),
    ):
        with pytest.raises(InputError, match=fault) as error:
            Block.prepare(X, y, made)
        assert "777" not in str(error.value)
    shifted = recipe(2, feature_ranges=([1, 1], [2, 2]))
    with pytest.raises(InputError, match="shift the zeros of a sparse matrix"):
        prepare(sp.csr_matrix(np.full((3, 2), 0.777)), shifted)


def test_sparse_rows_take_ranges_that_keep_their_zeros() -> None:
    X = np.random.default_rng(2).random((20, 2)) * (np.random.default_rng(3).random((20, 2)) < 0.5)
    for ranges in ({"feature_ranges": ([0, 0], [2, 0.5]), "rescale": "unit"}, {"feature_ranges": ([-1, -2], [1, 2])}):
        made = recipe(2, **ranges)
        np.testing.assert_array_equal(dense(prepare(sp.csr_matrix(X), made)), dense(prepare(X, made)))


def test_bits_leave_room_for_every_sum() -> None:
    for records in (1, 2, 3, 7, 10**5, 2**23, 2**23 + 1, 10**9):
        assert records * 4 ** exact_bits(records) <= 2**53
    assert exact_bits(2**23) == 15


# Exactness: with weights and rows on their grids nothing below is rounded, so order and company do not matter.


def batch(count: int, features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, features))
    X[rng.random((count, features)) < 0.3] = 0.0
    return X, rng.integers(0, 2, count)


def gradient(block: Block, weights: np.ndarray, loss: str = "logistic") -> np.ndarray:
    return block.weighted_sum(weights, clipped_derivative(losses.get(loss), 1.0, block.bits))


@pytest.mark.parametrize("loss", ["logistic", "hinge", "smoothed_hinge", "sigmoid", "squared"])
@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_sums_are_the_same_in_any_order_split_and_chunk(loss: str, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = batch(1001, 9, 4)
    made = recipe(9, records=1001, row_norm=2.0)
    weights = np.random.default_rng(5).standard_normal(10) * 3
    block = Block.prepare(form(X), y, made)
    expected, gram = gradient(block, weights, loss), block.gram()
    order = np.random.default_rng(6).permutation(1001)
    parts = [slice(0, 1), slice(1, 350), slice(350, 1001)]
    shuffled = Block.prepare(form(X[order]), y[order], made)
    np.testing.assert_array_equal(gradient(shuffled, weights, loss), expected)
    np.testing.assert_array_equal(shuffled.gram(), gram)
    split = [Block.prepare(form(X[part]), y[part], made) for part in parts]
    np.testing.assert_array_equal(sum(gradient(part, weights, loss) for part in split), expected)
    np.testing.assert_array_equal(sum(part.gram() for part in split), gram)
    for chunk in (1, 700, 10**9):
        monkeypatch.setattr(matrix, "CHUNK", chunk)
        again = Block.prepare(form(X), y, made)
        np.testing.assert_array_equal(gradient(again, weights, loss), expected)
        np.testing.assert_array_equal(again.gram(), gram)


def test_dense_and_sparse_sums_are_equal_to_the_last_bit() -> None:
    X, y = batch(800, 40, 7)
    made = recipe(40, records=800, row_norm=3.0)
    full, thin = Block.prepare(X, y, made), Block.prepare(sp.csr_matrix(X), y, made)
    for seed in range(20):
        weights = np.random.default_rng(seed).standard_normal(41) * 10.0 ** (seed - 10)
        np.testing.assert_array_equal(gradient(full, weights), gradient(thin, weights))
    np.testing.assert_array_equal(full.gram(), thin.gram())


def test_the_sums_are_those_of_rational_arithmetic() -> None:
    X, y = batch(60, 4, 8)
    made = recipe(4, records=60, row_norm=1.0)
    block = Block.prepare(X, y, made)
    weights = np.array([1.5, -0.3, 2.0, 1 / 3, 0.1])
    term = clipped_derivative(losses.get("logistic"), 1.0, block.bits)
    rows = dense(block)
    used = exact_weights(weights, block.bits)  # type: ignore[arg-type]
    slopes = [
        term(np.array([float(score)]), block.labels[i : i + 1])[0] for i, score in enumerate(exact_scores(rows, used))
    ]
    for column in range(5):
        exact = sum(Fraction(slope) * Fraction(row[column]) for slope, row in zip(slopes, rows, strict=True))
        assert Fraction(gradient(block, weights)[column]) == exact
        exact = sum(Fraction(row[column]) * Fraction(row[0]) for row in rows)
        assert Fraction(block.gram()[column, 0]) == exact


def exact_scores(rows: np.ndarray, weights: np.ndarray) -> list[Fraction]:
    return [sum((Fraction(x) * Fraction(w) for x, w in zip(row, weights, strict=True)), Fraction(0)) for row in rows]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    features=st.integers(1, 40),
    records=st.sampled_from([2, 1000, 10**6, 2**30]),
    scale=st.sampled_from([1e-320, 1e-200, 1e-5, 1.0, 1e5, 1e100]),
)
def test_scores_are_exact_so_a_row_does_not_know_where_it_stands(
    seed: int, features: int, records: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((7, features)) * 10.0 ** rng.integers(-4, 2, (7, features))
    block = prepare(X, recipe(features, records=max(records, 7), row_norm=1.0))
    weights = rng.standard_normal(features + 1) * 10.0 ** rng.integers(-6, 1, features + 1) * scale
    used = exact_weights(weights, block.bits)  # type: ignore[arg-type]
    assert np.abs(used).max() <= np.abs(weights).max()
    rounding = 2.0 ** (block.bits - 51) * np.linalg.norm(weights)  # type: ignore[operator]
    assert np.abs(used - weights).max() <= rounding + 2.0**-400
    rows = dense(block)
    assert [Fraction(score) for score in rows @ used] == exact_scores(rows, used)


def test_without_the_grid_a_score_does_depend_on_its_company() -> None:
    """Why weights are rounded: plain products of the same row differ in the last bit between batches."""
    rng = np.random.default_rng(0)
    differ = 0
    for _ in range(20):
        X, w = rng.standard_normal((101, 50)), rng.standard_normal(50)
        differ += int(((X @ w)[1:] != X[1:] @ w).sum())
    assert differ > 0


def test_a_sampled_batch_moves_by_its_records_alone() -> None:
    """The hinge's slope jumps at 1: scores put there would flip if they depended on who else was drawn."""
    rng = np.random.default_rng(11)
    count, features = 400, 33
    X = rng.standard_normal((count, features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    made = recipe(features, records=count, row_norm=1.0, intercept=False)
    block = Block.prepare(X, np.ones(count, dtype=int), made)
    rows = dense(block)
    term = clipped_derivative(losses.get("hinge"), 1.0, block.bits)
    for trial in range(30):
        weights = np.random.default_rng(trial).standard_normal(features)
        weights /= rows[trial] @ weights  # one score is 1 up to its last bits
        kept = np.flatnonzero(rng.random(count) < 0.3)
        for other in range(5):
            joined = np.union1d(kept, [other])
            alone = block.take(np.array([other])).weighted_sum(weights, term)
            less = block.take(np.setdiff1d(kept, [other])).weighted_sum(weights, term)
            np.testing.assert_array_equal(block.take(joined).weighted_sum(weights, term), less + alone)


@pytest.mark.parametrize("loss", losses.base.names())
def test_slopes_do_not_depend_on_their_place(loss: str) -> None:
    made = losses.get(loss)
    rng = np.random.default_rng(12)
    scores = np.concatenate([rng.standard_normal(120) * scale for scale in (1e-3, 1.0, 30.0, 1e5)])
    labels = np.where(rng.random(scores.size) < 0.5, 1.0, -1.0)
    whole = made.derivative(scores.copy(), labels)
    one_by_one = [made.derivative(scores[i : i + 1].copy(), labels[i : i + 1])[0] for i in range(scores.size)]
    np.testing.assert_array_equal(whole, one_by_one)
    for start, stop in itertools.product(range(5), range(scores.size - 5, scores.size)):
        np.testing.assert_array_equal(made.derivative(scores[start:stop].copy(), labels[start:stop]), whole[start:stop])


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_replacing_a_record_changes_the_sum_by_exactly_its_terms(form: Any) -> None:
    X, y = batch(500, 6, 9)
    made = recipe(6, records=500, row_norm=1.5)
    weights = np.random.default_rng(10).standard_normal(7) * 4
    changed, labels = X.copy(), y.copy()
    changed[123] = [9, -9, 0, 1, 0, 3]
    labels[123] = 1 - y[123]
    before, after = Block.prepare(form(X), y, made), Block.prepare(form(changed), labels, made)
    old, new = before.take(np.array([123])), after.take(np.array([123]))
    np.testing.assert_array_equal(
        gradient(after, weights) - gradient(before, weights), gradient(new, weights) - gradient(old, weights)
    )
    np.testing.assert_array_equal(after.gram() - before.gram(), new.gram() - old.gram())


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_an_empty_block_sums_to_zero(form: Any) -> None:
    block = Block.prepare(form(np.ones((3, 2))), [0, 1, 1], recipe(2, row_norm=1.0)).take(np.zeros(0, dtype=np.int64))
    assert len(block) == 0
    np.testing.assert_array_equal(gradient(block, np.ones(3)), np.zeros(3))
    np.testing.assert_array_equal(block.gram(), np.zeros((3, 3)))
    assert block.scalar_sum(np.ones(3), losses.get("logistic").value) == 0.0


@pytest.mark.parametrize(
    "declared",
    [
        {"row_norm": 5.0},
        {"entry_bound": 4.0},
        {"feature_ranges": ([-4.0, -5.0, -4.5], [5.0, 4.0, 4.0])},
        {"feature_ranges": ([-4.0, -5.0, -4.5], [5.0, 4.0, 4.0]), "rescale": "unit"},
        {"feature_ranges": ([-4.0, -5.0, -4.5], [5.0, 4.0, 4.0]), "rescale": "unit", "row_norm": 1.7},
    ],
)
@pytest.mark.parametrize("label_bound", [None, 3.0, (-1.0, 7.0)])
@pytest.mark.parametrize("intercept", [True, False])
def test_coefficients_speak_of_raw_features_and_labels(
    declared: dict[str, Any], label_bound: Any, intercept: bool
) -> None:
    rng = np.random.default_rng(13)
    X = rng.uniform(-1, 1, (40, 3))
    X[:, 2] += 0.5
    bounds = Bounds.declare(**declared, label_bound=label_bound)
    made = Preparation(bounds, 3, intercept, 40, None if label_bound else (0, 1), exact=False)
    block = Block.prepare(X, np.zeros(40), made)
    weights = rng.standard_normal(made.dimension)
    centre, half = made.label_scale
    coef, constant = made.unprepare(weights)
    predicted = dense(block) @ weights * half + centre
    np.testing.assert_allclose(X @ coef + constant, predicted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(made.scores(X, coef, constant), predicted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(made.scores(sp.csr_matrix(X), coef, constant), predicted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix, unsorted_with_duplicates])
def test_rows_beyond_the_bounds_score_as_the_rows_they_are_cut_to(form: Any) -> None:
    made = recipe(2, feature_ranges=([0.0, -1.0], [2.0, 5.0]), row_norm=1.0, exact=False)
    coef, constant = np.array([1.3, -0.4]), 0.2
    cut = (np.array([2.0, -1.0]) - [1, 2]) / [1, 3]
    cut = cut / np.linalg.norm(cut) * [1, 3] + [1, 2]
    np.testing.assert_allclose(made.scores(form(np.array([[1e9, -1e9]])), coef, constant), [cut @ coef + constant])


def test_a_run_without_privacy_keeps_every_digit() -> None:
    X, y = batch(50, 3, 14)
    made = Preparation(Bounds(), 3, True, 50, (0, 1), exact=False)
    block = Block.prepare(X, y, made)
    assert block.bits is None
    np.testing.assert_allclose(dense(block)[:, :3], X * made.scale, rtol=1e-15)
    Xw = dense(block) @ np.ones(4)
    slope = losses.get("squared").derivative(Xw.copy(), block.labels)
    query = GradientSum(4, 0.01, losses.get("squared"))
    np.testing.assert_allclose(at(query, block, weights=np.ones(4)), dense(block).T @ slope, rtol=1e-12)


def test_a_missing_bound_is_told_before_rows_are_seen() -> None:
    with pytest.raises(InputError, match="row_norm=None"):
        Preparation(Bounds(), 3, True, 50, (0, 1))
    with pytest.raises(InputError, match="label_bound=None"):
        Preparation(Bounds.declare(row_norm=1), 3, True, 50)


CLASSES_AND_LABELS = [
    ((0, 1), [1, 0, 1, 0], ["x", None, 7, float("nan"), 10**400]),
    ((0, 1), ["1", "0", "1.0", " 0"], ["x", "", "nan"]),
    (("0", "1"), [1.0, 0.0, 1.0, 0.0], ["x", None]),
    ((False, True), [True, False, True, False], ["x", None, 2]),
    (("no", "yes"), ["yes", "no", "yes", "no"], [1, None, "maybe"]),
]


@pytest.mark.parametrize(("classes", "labels", "odd"), CLASSES_AND_LABELS)
def test_one_odd_label_changes_no_other_record(classes: Any, labels: list[Any], odd: list[Any]) -> None:
    """A column has one NumPy type, so one text among numbers makes text of them all: the match must not notice."""
    X = np.full((5, 1), 0.5)
    recipe = Preparation(Bounds(row_norm=1.0), 1, False, 5, classes)
    for label in [labels[0], *odd]:
        block = Block.prepare(X, label_array([*labels, label]), recipe)
        np.testing.assert_array_equal(block.labels[:4], [1.0, -1.0, 1.0, -1.0])
        assert (block.rows[:4] != 0).all()
        assert (block.rows[4] != 0).all() == (label is labels[0])


def test_a_column_that_became_text_is_still_matched() -> None:
    recipe = Preparation(Bounds(row_norm=1.0), 1, False, 3, (0, 1))
    block = Block.prepare(np.full((3, 1), 0.5), np.array(["1", "0", "x"]), recipe)
    np.testing.assert_array_equal(block.rows[:, 0] != 0, [True, True, False])


def test_regression_labels_that_are_no_numbers_are_null_rows() -> None:
    recipe = Preparation(Bounds(row_norm=1.0, label_low=-1.0, label_high=1.0), 1, False, 6)
    labels = label_array([0.5, "0.5", "x", None, 10**400, float("inf")])
    block = Block.prepare(np.full((6, 1), 0.5), labels, recipe)
    np.testing.assert_array_equal(block.rows[:, 0] != 0, [True, True, False, False, False, False])


def test_integer_weights_do_not_wrap_around() -> None:
    huge = np.full(4, 2**62, dtype=np.int64)
    np.testing.assert_array_equal(exact_weights(huge, 16), exact_weights(huge.astype(np.float64), 16))


# The layout "columns": every column is divided by its own bound.

COLUMN_BOUNDS: list[dict[str, Any]] = [
    {"row_norm": 1.5},
    {"entry_bound": 0.8},
    {"entry_bound": [0.5, 2.0, 1e-3, 40.0]},
    {"entry_bound": [0.5, 2.0, 1e-3, 40.0], "row_norm": 1.0},
    {"feature_ranges": ([-1.0, -2.0, -0.5, -3.0], [1.0, 2.0, 0.5, 3.0])},
    {"feature_ranges": ([0.0] * 4, [1.0, 2.0, 0.5, 3.0]), "rescale": "unit", "entry_bound": [0.9, 0.1, 1.0, 3.0]},
    {"feature_ranges": ([0.0] * 4, [1.0, 2.0, 0.5, 3.0]), "rescale": "unit", "row_norm": 0.7},
]
SHIFTED: list[dict[str, Any]] = [{"feature_ranges": ([0.0, 1.0, -2.0, 5.0], [1.0, 2.0, 2.0, 9.0]), "row_norm": 1.1}]


def by_columns(declared: dict[str, Any], *, records: int = 400, intercept: bool = True, exact: bool = True) -> Any:
    return Preparation(Bounds.declare(**declared), 4, intercept, records, (0, 1), exact, "columns")


def cut_by_hand(X: np.ndarray, declared: dict[str, Any]) -> np.ndarray:
    """Ranges, entries and norms one after another, entry by entry, then each column over its bound."""
    bounds = Bounds.declare(**declared)
    out = np.zeros_like(X)
    for i, row in enumerate(X):
        if not np.isfinite(row).all():
            continue
        made = list(row)
        for j in range(4):
            low = -math.inf
            high = math.inf if bounds.entry_bound is None else float(np.broadcast_to(bounds.entry_bound, 4)[j])
            if bounds.feature_low is not None and bounds.feature_high is not None:
                a, b = bounds.feature_low[j], bounds.feature_high[j]
                unit = bounds.rescale == "unit"
                made[j] = (row[j] - a) / (b - a) if unit else (2 * row[j] - a - b) / (b - a)
                high, low = min(high, 1.0), 0.0 if unit else low
            made[j] = min(max(made[j], max(low, -high)), high)
        norm = math.sqrt(math.fsum(x * x for x in made))
        if bounds.row_norm is not None and norm > bounds.row_norm:
            made = [x * (bounds.row_norm / norm) for x in made]
        out[i] = np.array(made) / bounds.columns(4)
    return out


def wild_rows(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, 4)) * 10.0 ** rng.integers(-3, 3, (count, 1))
    X[rng.random(X.shape) < 0.3] = 0.0
    X[7, 2], X[8, 0], X[9, 1] = math.nan, math.inf, -1e140
    return X


@pytest.mark.parametrize("declared", COLUMN_BOUNDS + SHIFTED)
@pytest.mark.parametrize("intercept", [True, False])
def test_every_column_is_cut_and_divided_by_its_bound(declared: dict[str, Any], intercept: bool) -> None:
    X = wild_rows(400, 20)
    y = np.where(np.arange(400) == 11, 7, 0)
    for exact in (True, False):
        block = Block.prepare(X, y, by_columns(declared, intercept=intercept, exact=exact))
        rows = dense(block)
        expected = cut_by_hand(X, declared)
        expected[11] = 0.0  # an undeclared label
        if not exact:  # without privacy it is cut alone
            bounds = Bounds.declare(**declared).columns(4)
            expected *= np.where(np.isfinite(bounds), bounds, 1.0)
        np.testing.assert_allclose(rows[:, :4], expected, rtol=2.0**-23 if exact else 1e-14, atol=1e-15)
        assert not exact or np.abs(rows).max() <= 1.0
        for null in (7, 8, 11):
            assert not rows[null].any()
        if intercept:
            np.testing.assert_array_equal(rows[:, 4], np.where(np.isin(np.arange(400), [7, 8, 11]), 0.0, 1.0))
        assert block.row_norm == math.inf
        assert block.layout == "columns"
        assert block.rows.flags.f_contiguous
        assert block.rows.dtype == (np.float32 if exact else np.float64)
        assert (block.bits is None) == (not exact)


@pytest.mark.parametrize("declared", COLUMN_BOUNDS)
@pytest.mark.parametrize("intercept", [True, False])
def test_sparse_columns_are_the_dense_ones_bit_for_bit(declared: dict[str, Any], intercept: bool) -> None:
    X, y = wild_rows(400, 21), np.arange(400) % 2
    made = by_columns(declared, intercept=intercept)
    expected = dense(Block.prepare(X, y, made))
    for form in (sp.csr_matrix, sp.csc_matrix, sp.coo_matrix, unsorted_with_duplicates):
        block = Block.prepare(form(X), y, made)
        assert block.rows.format == "csc"
        assert block.rows.dtype == np.float32
        assert block.rows.has_sorted_indices
        np.testing.assert_array_equal(dense(block), expected)


def test_a_record_changes_its_own_row_alone_by_columns() -> None:
    X, y = wild_rows(400, 22), np.arange(400) % 2
    made = by_columns(COLUMN_BOUNDS[3])
    before = dense(Block.prepare(X, y, made))
    for row in (np.full(4, 1e300), np.full(4, math.nan), np.array([0.4, -1.0, 2e-3, 0.0])):
        changed = X.copy()
        changed[100] = row
        after = dense(Block.prepare(changed, y, made))
        np.testing.assert_array_equal(np.delete(after, 100, axis=0), np.delete(before, 100, axis=0))


@pytest.mark.parametrize("declared", COLUMN_BOUNDS + SHIFTED)
@pytest.mark.parametrize("intercept", [True, False])
def test_predictions_by_columns_are_those_of_the_training_rows(declared: dict[str, Any], intercept: bool) -> None:
    X = wild_rows(400, 23)
    X = X[np.isfinite(X).all(axis=1)]
    made = by_columns(declared, intercept=intercept, exact=False)
    weights = np.random.default_rng(24).standard_normal(made.dimension)
    coef, constant = made.unprepare(weights)
    expected = dense(Block.prepare(X, np.zeros(len(X), dtype=int), made)) @ weights
    np.testing.assert_allclose(made.scores(X, coef, constant), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(made.scores(sp.csr_matrix(X), coef, constant), expected, rtol=1e-10, atol=1e-10)


def test_labels_are_scaled_by_columns_as_by_rows() -> None:
    bounds = Bounds.declare(entry_bound=[2.0, 3.0], label_bound=(1.0, 5.0))
    made = Preparation(bounds, 2, True, 10, None, True, "columns")
    block = Block.prepare(np.array([[4.0, -6.0], [1.0, 1.5]]), [9.0, 3.0], made)
    np.testing.assert_array_equal(dense(block), [[1.0, -1.0, 1.0], [0.5, 0.5, 1.0]])
    np.testing.assert_array_equal(block.labels, [1.0, 0.0])
    coef, constant = made.unprepare(np.array([1.0, 3.0, 0.25]))
    np.testing.assert_allclose(coef, [2.0 / 2, 2.0 * 3 / 3])
    assert constant == 3.0 + 2.0 * 0.25


def test_without_bounds_columns_stay_as_they_are_and_privacy_needs_bounds() -> None:
    X, y = batch(50, 4, 25)
    made = Preparation(Bounds(), 4, True, 50, (0, 1), False, "columns")
    np.testing.assert_array_equal(dense(Block.prepare(X, y, made))[:, :4], X)
    with pytest.raises(InputError, match="row_norm=None"):
        Preparation(Bounds(), 4, True, 50, (0, 1), True, "columns")


@pytest.mark.parametrize("query", [GradientSum(5, 1.0, losses.get("logistic")), GramMatrix(5)])
@pytest.mark.parametrize("exact", [True, False])
def test_a_query_of_row_norms_takes_no_columns(query: Any, exact: bool) -> None:
    X, y = batch(50, 4, 26)
    made = Preparation(Bounds.declare(row_norm=1.0), 4, True, 50, (0, 1), exact, "columns")
    block = Block.prepare(X, y, made)
    for rows in (block, block.take(np.arange(3))):
        with pytest.raises(LeakError, match="longer than the query's sensitivity"):
            at(query, rows, weights=np.zeros(5))


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_a_batch_of_a_batch_names_rows_of_the_whole(form: Any) -> None:
    X, y = batch(60, 5, 27)
    block = Block.prepare(form(X), y, recipe(5, records=60, row_norm=1.0))
    np.testing.assert_array_equal(block.places, np.arange(60))
    assert block.whole is block
    first = np.array([50, 3, 3, 17, 9, 0])
    second = np.array([4, 0, 2])
    one = block.take(first)
    two = one.take(second)
    assert two.whole is block
    assert two.chosen is not None
    np.testing.assert_array_equal(two.places, first[second])
    np.testing.assert_array_equal(two.labels, block.labels[first[second]])
    weights = np.random.default_rng(28).standard_normal(6)
    again = Block.prepare(form(X[first[second]]), y[first[second]], recipe(5, records=60, row_norm=1.0))
    np.testing.assert_array_equal(gradient(two, weights), gradient(again, weights))
    np.testing.assert_array_equal(two.gram(), again.gram())
    empty = two.take(np.zeros(0, dtype=np.int64))
    assert len(empty) == 0
    assert empty.whole is block
    assert empty.take(np.zeros(0, dtype=np.int64)).whole is block


def test_batches_of_dense_and_sparse_rows_are_equal() -> None:
    X, y = batch(300, 6, 29)
    made = recipe(6, records=300, row_norm=2.0)
    full, thin = Block.prepare(X, y, made), Block.prepare(sp.csr_matrix(X), y, made)
    rng = np.random.default_rng(30)
    for size in (0, 1, 40, 300):
        drawn = np.sort(rng.choice(300, size, replace=False))
        weights = rng.standard_normal(7) * 3
        np.testing.assert_array_equal(gradient(full.take(drawn), weights), gradient(thin.take(drawn), weights))
        np.testing.assert_array_equal(full.take(drawn).gram(), thin.take(drawn).gram())


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize("records", [40, 2**30])
def test_squares_of_rows_are_exact(form: Any, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = batch(40, 5, 31)
    X[3] = math.nan
    block = Block.prepare(form(X), y, recipe(5, records=records, row_norm=2.0))
    assert [Fraction(square) for square in block.squares] == exact_square_norms(block)
    assert block.squares[3] == 0.0
    monkeypatch.setattr(matrix, "CHUNK", 1)
    again = Block.prepare(form(X), y, recipe(5, records=records, row_norm=2.0))
    np.testing.assert_array_equal(again.squares, block.squares)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_given_back_when_nobody_holds_them(sparse: bool) -> None:
    """A block in a cycle of references would keep its rows until the collector comes by, which few objects call."""
    X = np.ones((50, 3))
    recipe = Preparation(Bounds(row_norm=2.0, label_low=-1.0, label_high=1.0), 3, True, 50)
    gc.disable()
    try:
        block = Block.prepare(sp.csr_matrix(X) if sparse else X, np.zeros(50), recipe)
        batch, rows = block.take(np.arange(5)), weakref.ref(block)
        assert batch.whole is block
        assert block.whole is block
        del batch, block
        assert rows() is None
    finally:
        gc.enable()


def test_a_batch_refuses_to_say_which_rows_are_null() -> None:
    """Of the parts of a row (admm), of labels with noise (score) and of sketches (frank-wolfe) alike."""
    recipe = Preparation(Bounds.declare(entry_bound=1.0), 2, True, 8, classes=(0, 1), layout="entries")
    X = np.ones((4, 2))
    X[1] = np.nan
    block = Block.prepare(X, np.array([0, 1, 1, 7]), recipe)
    np.testing.assert_array_equal(block.usable_rows, [True, False, True, False])
    np.testing.assert_array_equal(block.null_rows, [False, True, False, True])
    batch = block.take(np.array([0, 1]))
    for ask in (lambda: batch.usable_rows, lambda: batch.null_rows):
        with pytest.raises(LeakError, match="which of its rows are null rows"):
            ask()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_rows_and_columns_are_added_alike(form: Any) -> None:
    rng = np.random.default_rng(3)
    recipe = Preparation(Bounds.declare(entry_bound=2.0), 5, False, 64, classes=(0, 1), layout="entries")
    X = rng.uniform(-1, 1, (60, 5)) * (rng.random((60, 5)) < 0.4)
    block = Block.prepare(form(X), rng.integers(0, 2, 60), recipe)
    rows = dense(block).astype(np.float64)
    scores, touched = np.zeros(60), np.nonzero(rows[:, [0, 3]].any(axis=1))[0]
    found = block.add_chosen_columns([(0, 0.5), (3, -2.0)], scores)
    np.testing.assert_allclose(scores, 0.5 * rows[:, 0] - 2.0 * rows[:, 3], atol=1e-15)
    if found is not None:
        np.testing.assert_array_equal(np.sort(found), touched)
    total, places = np.ones(5), np.array([4, 9, 9], dtype=np.int64)
    block.add_rows(places, np.array([1.0, 0.25, -2.0]), total)
    np.testing.assert_array_equal(total, 1.0 + rows[4] + 0.25 * rows[9] - 2.0 * rows[9])
    np.testing.assert_array_equal(block.dense_rows(3), rows[:, :3])
    P = rng.standard_normal((4, 2))
    np.testing.assert_allclose(block.times(P), rows[:, :4] @ P, atol=1e-14)
    batch = block.take(np.arange(3))
    with pytest.raises(LeakError, match="never of a batch"):
        batch.products  # noqa: B018
    with pytest.raises(LeakError, match="not prepared for steps by coordinates"):
        batch.column_dots(np.ones(3))
