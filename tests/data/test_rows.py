"""Sums over rows: fused loops, chunks, threads and rows in several places arrive at the same bits."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

import sottovoce as sv
from sottovoce import losses
from sottovoce.algorithms.whitened import rule
from sottovoce.data import dataset, resources
from sottovoce.data.block import Block
from sottovoce.data.block_parts import PartsInMemory
from sottovoce.data.bounds import Bounds
from sottovoce.data.kernels import row_loops as kernels
from sottovoce.data.matrix import Slope, Slopes, exact_weights
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError, LeakError
from sottovoce.losses.kernels import fill_terms, logistic_weight, logistic_weights
from sottovoce.transports.base import InProcess

CODED = ["hinge", "huber", "logistic", "sigmoid", "smoothed_hinge", "squared"]
FORMS = {"dense": np.asarray, "sparse": sp.csr_matrix}


def block_of(form: Any, seed: int, records: int = 301, features: int = 7, *, classes: int = 0) -> Block:
    """Rows of every length, some of them zero or not usable."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, features)) * 10.0 ** rng.integers(-3, 2, (records, 1))
    X[rng.random(X.shape) < 0.4] = 0.0
    X[::17, 0] = math.nan
    y = rng.integers(0, max(classes, 2), records)
    kinds = tuple(range(classes or 2))
    return Block.prepare(form(X), y, Preparation(Bounds(row_norm=2.0), features, True, records, kinds))


def slope_of(loss: str, bits: Any, *, bound: float = 0.3, weighted: bool = False, **more: Any) -> Slope:
    made = losses.get(loss)
    return Slope(losses.weighted(made, (0.25, 1.0)) if weighted else made, bound, bits, **more)


def by_chunks(block: Block) -> Block:
    """The same rows, which no fused loop takes."""
    found = copy.copy(block)
    found._fused = False
    return found


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every loop, however short, is shared out; which parts there were is listed."""
    seen: list[int] = []
    real = resources.run_parts

    def run_parts(work: Any, cuts: Any, *, blas: int = 0) -> Any:
        seen.append(len(cuts) - 1)
        return real(work, cuts, blas=blas)

    monkeypatch.setattr(resources, "LEAST", 1)
    for module in ("resources", "block", "projection", "preparation"):
        monkeypatch.setattr(f"sottovoce.data.{module}.run_parts", run_parts)
    return seen


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", CODED)
def test_fused_loops_chunks_and_threads_agree(form: str, loss: str, many: list[int]) -> None:
    block, rng = block_of(FORMS[form], 1), np.random.default_rng(2)
    two = losses.get(loss).kind == "classification"
    weights, shares = rng.standard_normal(8) * 4, rng.random(len(block))
    for made in (block, block.take(rng.integers(0, 301, 150)), block.take(np.zeros(0, dtype=np.int64))):
        own = shares[: len(made)]
        for more in ({}, {"bound": 2.5}, {"bound": 1.0, "most": 0.2, "offset": -0.1}, {"weighted": two}):
            slope = slope_of(loss, block.bits, **more)
            for told in ((), (own,)):
                expected = (
                    by_chunks(made).weighted_sum(weights, slope, *told) if made.chosen is None or not told else None
                )
                for jobs in (1, 2, 5):
                    with joblib.parallel_config("threading", n_jobs=jobs):
                        found = made.weighted_sum(weights, slope, *told)
                    expected = found if expected is None else expected + 0.0
                    assert found.tobytes() == expected.tobytes()
    assert {1, 2, 5} <= set(many)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    records=st.integers(1, 40),
    features=st.integers(1, 9),
    loss=st.sampled_from(CODED),
    form=st.sampled_from(sorted(FORMS)),
    bound=st.sampled_from([1e-3, 0.3, 1.0, 70.0]),
    jobs=st.integers(1, 4),
)
def test_sums_are_those_of_rational_arithmetic(
    seed: int, records: int, features: int, loss: str, form: str, bound: float, jobs: int
) -> None:
    block, rng = block_of(FORMS[form], seed, records, features), np.random.default_rng(seed)
    weights = rng.standard_normal(features + 1) * 10.0 ** rng.integers(-3, 3)
    slope = slope_of(loss, block.bits, bound=bound)
    least, resources.LEAST = resources.LEAST, 1
    try:
        with joblib.parallel_config("threading", n_jobs=jobs):
            found, gram = block.weighted_sum(weights, slope), block.gram()
            scores = block.scores(weights)
    finally:
        resources.LEAST = least
    rows = np.asarray(block.rows.toarray() if form == "sparse" else block.rows, dtype=np.float64)
    used = [Fraction(w) for w in exact_weights(weights, block.bits or 0)]
    exact = [[Fraction(x) for x in row] for row in rows]
    assert [sum((x * w for x, w in zip(row, used, strict=True)), Fraction(0)) for row in exact] == scores.tolist()
    terms = [Fraction(term) for term in slope(scores, block.labels)]
    for j in range(features + 1):
        assert sum((t * row[j] for t, row in zip(terms, exact, strict=True)), Fraction(0)) == Fraction(found[j])
        assert sum((row[0] * row[j] for row in exact), Fraction(0)) == Fraction(gram[0, j]) == Fraction(gram[j, 0])


def terms_at(slope: Slope, scores: Any, labels: Any, shares: Any = ()) -> Any:
    """What a fused loop makes of scores, whatever they are."""
    found, retries = np.empty(len(scores)), np.empty(len(scores))
    given = np.array(scores, dtype=np.float64), np.array(labels, dtype=np.float64), np.array(shares, dtype=np.float64)
    fill_terms(slope.code, slope.numbers, *given, retries, found)
    return found


@pytest.mark.parametrize("loss", CODED)
@pytest.mark.parametrize("more", [{"bound": 0.2}, {"bound": 1.0, "most": 0.1}, {"bound": 3.0}])
def test_no_term_is_above_the_bound_whatever_the_score(loss: str, more: dict[str, float]) -> None:
    slope, rng = slope_of(loss, 20, **more), np.random.default_rng(3)
    wild = np.array([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0, -0.0, 5e-324, 1.0])
    scores = np.concatenate([wild, rng.standard_normal(200) * 10.0 ** rng.integers(-5, 6, 200)])
    labels = np.where(rng.random(len(scores)) < 0.5, 1.0, -1.0)
    terms = terms_at(slope, scores, labels)
    assert np.all(np.abs(terms) <= slope.bound)
    grid = slope.bits - math.ceil(math.log2(slope.bound))
    assert np.all(terms * 2.0**grid == np.trunc(terms * 2.0**grid))
    assert terms[0] == np.trunc(slope.bound * 2.0**grid) / 2.0**grid  # a NaN counts as the bound
    shares = rng.random(len(scores))
    assert np.all(np.abs(terms_at(slope, scores, labels, shares)) <= np.abs(slope.bound * shares))
    # rounded toward zero, never away from it
    fine = terms_at(slope_of(loss, 45, **more), scores, labels)
    assert np.all(np.abs(terms) <= np.abs(fine))
    assert np.all(np.abs(terms - fine) < 2.0**-grid)


def test_a_loop_that_is_told_another_bound_passes_it() -> None:
    """Negative control of the test above: it is the loop that cuts."""
    slope = slope_of("squared", 20, bound=0.2)
    slope.numbers[4] = 50.0
    assert np.abs(terms_at(slope, [9.0, -7.0], [1.0, 1.0])).max() > slope.bound


@pytest.mark.parametrize("loss", CODED)
def test_terms_are_the_slopes_of_the_loss(loss: str) -> None:
    made, rng = losses.get(loss), np.random.default_rng(4)
    scores, labels = rng.standard_normal(500) * 5, np.where(rng.random(500) < 0.5, 1.0, -1.0)
    expected = np.clip(made.derivative(scores.copy(), labels), -4.0, 4.0)
    np.testing.assert_allclose(terms_at(Slope(made, 4.0, 40), scores, labels), expected, atol=2.0**-37)
    for most in (0.1, 0.7):
        own, other = made.derivative(scores.copy(), labels), made.derivative(scores.copy(), -labels)
        largest = np.maximum(np.maximum(np.abs(own), np.abs(other)), most) if made.kind == "classification" else most
        found = terms_at(Slope(made, 1.0, 40, most), scores, labels)
        np.testing.assert_allclose(found, np.clip(own / largest, -1.0, 1.0), atol=2.0**-37)


@pytest.mark.parametrize("loss", CODED)
@pytest.mark.parametrize("most", [None, 0.3])
def test_a_term_does_not_know_where_its_record_stands(loss: str, most: float | None) -> None:
    slope, rng = slope_of(loss, 45, bound=1.0, most=most, offset=0.25), np.random.default_rng(5)
    scores = np.concatenate([rng.standard_normal(40) * scale for scale in (1e-3, 1.0, 30.0, 1e5)])
    labels = np.where(rng.random(len(scores)) < 0.5, 1.0, -1.0)
    whole = terms_at(slope, scores, labels)
    alone = [terms_at(slope, scores[i : i + 1], labels[i : i + 1])[0] for i in range(len(scores))]
    assert whole.tobytes() == np.array(alone).tobytes()
    for start in range(1, 9):
        assert terms_at(slope, scores[start:-start], labels[start:-start]).tobytes() == whole[start:-start].tobytes()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", CODED)
def test_one_record_moves_a_sum_by_at_most_the_bound(form: str, loss: str) -> None:
    block = block_of(FORMS[form], 6)
    slope, weights = slope_of(loss, block.bits, bound=0.05), np.random.default_rng(7).standard_normal(8) * 100
    each = np.array([block.take(np.array([i])).weighted_sum(weights, slope) for i in range(len(block))])
    lengths = [sum(Fraction(entry) ** 2 for entry in row) for row in each]
    assert max(lengths) <= Fraction(0.05) ** 2
    assert not each[block.null_rows].any()
    np.testing.assert_array_equal(each.sum(axis=0), block.weighted_sum(weights, slope))
    assert loss in ("sigmoid", "hinge") or max(lengths) > Fraction(0.045) ** 2  # the bound is reached


def test_a_class_that_inherits_a_code_is_asked_for_its_own_slopes() -> None:
    class Steeper(losses.Logistic):
        def derivative(self, u: Any, y: Any, out: Any = None) -> Any:
            return 2.0 * super().derivative(u, y)

    assert Slope(losses.get("logistic"), 4.0, 20).code is not None
    slope = Slope(Steeper(), 4.0, 20)
    assert slope.code is None
    np.testing.assert_allclose(slope(np.zeros(2), np.ones(2)), [-1.0, -1.0], atol=2.0**-17)


@pytest.mark.parametrize("form", FORMS)
def test_every_other_sum_is_the_same_for_any_number_of_threads(form: str, many: list[int]) -> None:
    several = Slopes(losses.get("softmax", classes=3.0), 0.7, 18)

    def everything(jobs: int) -> list[bytes]:
        with joblib.parallel_config("threading", n_jobs=jobs):
            block = block_of(FORMS[form], 9)
            classes = block_of(FORMS[form], 9, classes=3)
        found, draw = [block.rows.toarray() if form == "sparse" else block.rows], np.random.default_rng(10)
        with joblib.parallel_config("threading", n_jobs=jobs):
            w, W, P = draw.standard_normal(8), draw.standard_normal((8, 3)), np.tril(draw.standard_normal((8, 8)))
            found += [block.gram(), block.scores(w), block.gram_diagonal(), classes.weighted_sum(W, several)]
            found += [block.take(np.arange(40, 9, -1)).gram(), block.take(np.arange(99)).scores(w)]
            found.append(np.array(block.number_sum(lambda u, y: u * u, weights=w)))
            for matrix, made in ((P, False), (np.diag(P).copy(), False), (P[:, :2], True)):
                rows = block.projected(matrix, made=made)
                rows.cut(0.4)
                found += [
                    rows.lengths,
                    rows.weighted_sum(w[: matrix.shape[-1]], slope_of("logistic", rows.bits, bound=1.0)),
                ]
        return [np.ascontiguousarray(each).tobytes() for each in found]

    one = everything(1)
    for jobs in (2, 3):
        assert everything(jobs) == one
    assert max(many) == 3


@pytest.mark.parametrize("features", [1, 63, 64, 150])
def test_lengths_are_added_in_the_order_of_the_columns(features: int) -> None:
    block, rng = block_of(np.asarray, 11, features=features), np.random.default_rng(12)
    rows = block.projected(rng.standard_normal((features + 1, features + 1)))
    squares = (block.rows.astype(np.float64) @ rows._matrix) ** 2  # products are exact in any order
    assert not np.triu(rows._matrix, 1).any()
    orders = (squares.T, squares.T[::-1])
    found, other = (np.sqrt(np.add.accumulate(np.ascontiguousarray(each), axis=0)[-1]) for each in orders)
    assert rows.lengths.tobytes() == found.tobytes()
    assert features == 1 or other.tobytes() != found.tobytes()  # the order is seen


@pytest.mark.parametrize("loss", CODED)
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_loop_over_few_columns_gives_what_chunks_give(loss: str, columns: int, many: list[int]) -> None:
    rng = np.random.default_rng(14)
    block = block_of(np.asarray, 15, records=2500)
    P, point = rng.standard_normal((8, columns)), rng.standard_normal(columns)
    for shares in (None, rng.random(len(block))):
        block.shares = shares
        rows = block.projected(P, made=True)
        rows.cut(0.4)
        for more in ({}, {"most": 0.2, "offset": -0.1}):
            slope = slope_of(loss, rows.bits, bound=1.0, **more)
            expected = rows.exact_sum(point, lambda *told, slope=slope: slope(*told))
            for jobs in (1, 3):
                with joblib.parallel_config("threading", n_jobs=jobs):
                    assert rows.exact_sum(point, slope).tobytes() == expected.tobytes()
    assert {1, 3} <= set(many)


def test_numbers_are_cut_and_rounded_toward_zero() -> None:
    block = block_of(np.asarray, 16)
    numbers = np.random.default_rng(17).standard_normal(len(block)) * 2
    numbers[1:4] = math.nan, math.inf, -math.inf
    for shares in (None, np.random.default_rng(18).random(len(block))):
        block.shares = shares
        for low in (0.0, -1.0):
            cut = [1.0 if x != x else min(max(x, low), 1.0) for x in numbers.tolist()]
            cut = cut if shares is None else (np.array(cut) * shares).tolist()
            grid = [Fraction(math.trunc(Fraction(x) * 2**block.sum_bits), 2**block.sum_bits) for x in cut]
            expected = sum(x for x, usable in zip(grid, block.usable_rows.tolist(), strict=True) if usable)
            assert Fraction(block.number_sum(lambda given, _: given, low, numbers=numbers)) == expected
    assert block.null_rows[0]


def test_both_labels_have_the_bits_that_each_has_alone() -> None:
    rng = np.random.default_rng(19)
    halves = np.log(2) * (np.arange(3000) / 2 - 750)  # near where the whole part changes
    scores = np.concatenate([rng.standard_normal(4000) * 10.0 ** rng.integers(-3, 4, 4000), halves, [0.0, math.inf]])
    for t in scores.tolist():
        assert logistic_weights(t) == (logistic_weight(t), logistic_weight(-t))


def blas_threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_the_last_to_leave_gives_blas_its_threads_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        with resources.plain_blas(-1):  # there is no limit to lift
            assert blas_threads() == {2}
        first, second = resources.plain_blas(), resources.plain_blas()
        first.close()
        assert blas_threads() == {1}
        lifted = resources.plain_blas(-1)
        assert blas_threads() == {2}
        second.close()
        with resources.plain_blas():
            assert blas_threads() == {2}  # while another has lifted it
        lifted.close()
        with pytest.raises(KeyError), resources.plain_blas():
            raise KeyError
        assert blas_threads() == {2}


@pytest.mark.parametrize(("calm", "light", "threads"), [(1000, 1e9, (1, 1)), (1000, 10, (2, 1)), (5, 1e9, (2, 2))])
def test_blas_has_one_thread_but_where_many_are_worth_it(
    calm: int, light: float, threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[int]] = {}
    step = rule.Descent.step
    monkeypatch.setattr("sottovoce.estimators.fits.CALM", calm)
    monkeypatch.setattr(resources, "LIGHT", light)
    monkeypatch.setattr(kernels, "add_squares", lambda *_: seen.__setitem__("lengths", blas_threads()))
    monkeypatch.setattr(rule.Descent, "step", lambda *told: (seen.__setitem__("step", blas_threads()), step(*told))[1])
    X = np.random.default_rng(20).standard_normal((300, 6))
    with threadpool_limits(2, user_api="blas"):
        sv.PrivateLogisticRegression(row_norm=3.0, classes=(0, 1)).fit(X, X[:, 0] > 0)
        assert blas_threads() == {2}
    assert seen == {"lengths": {threads[0]}, "step": {threads[1]}}


def test_a_batch_is_not_projected() -> None:
    block = block_of(np.asarray, 13)
    parts = PartsInMemory(block.take(np.zeros(0, dtype=np.int64)), [block])
    for batch in (block.take(np.arange(5)), parts.take(np.arange(5))):
        with pytest.raises(LeakError, match="never as a batch"):
            batch.projected(np.eye(8)).number_sum(lambda lengths, labels: lengths)
    with pytest.raises(LeakError, match="batch of a batch"):
        parts.take(np.arange(5)).take(np.arange(2)).gram()


# The number of threads.


def threads(given: resources.Resources, entries: int) -> int:
    return len(given.cuts(entries, entries)) - 1


def test_n_jobs_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "LEAST", 10)
    nothing, three = resources.Resources(), resources.Resources(3)
    assert threads(nothing, 1000) == 1
    assert threads(three, 1000) == 3
    assert threads(three, 25) == 2  # a thread for every ten entries at most
    assert threads(three, 19) == 1
    assert threads(nothing.over(three), 1000) == threads(three.over(nothing), 1000) == 3
    with joblib.parallel_config(n_jobs=2):
        assert threads(nothing, 1000) == 2
        assert threads(three, 1000) == 3
    assert threads(resources.Resources(-1), 1000) == min(joblib.cpu_count(), 100)
    assert resources.Resources(-2).jobs == max(joblib.cpu_count() - 1, 1)
    assert threads(nothing, 1000) == 1
    for wrong in (0, 1.5, "all", True):
        with pytest.raises(InputError, match="n_jobs="):
            sv.PrivateRidge(resources=sv.Resources(n_jobs=wrong)).fit(np.ones((3, 1)), np.ones(3))
        with pytest.raises(InputError, match="n_jobs="):
            sv.Party("anna", np.ones((3, 1)), np.ones(3), n_jobs=wrong)


def test_a_party_has_threads_of_its_own(many: list[int]) -> None:
    """Also where a wire calls it in a thread that no estimator knows of."""
    rng = np.random.default_rng(12)
    X = rng.standard_normal((60, 3))
    holder = sv.Party("data", X, X[:, 0], n_jobs=3)
    real = holder.handle

    def elsewhere(request: bytes) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(real, request).result()

    holder.handle = elsewhere  # type: ignore[method-assign]
    federation = sv.Federation("central", InProcess([holder]), parties=[holder])
    model = sv.PrivateRidge(**COMMON, label_bound=2.0, solver="gradient")
    with joblib.parallel_config("threading", n_jobs=2):
        expected = model.fit(X, X[:, 0]).coef_
    assert max(many) == 2
    assert model.fit(federation).coef_.tobytes() == expected.tobytes()
    assert max(many) == 3


def test_what_a_part_raises_is_raised_once_all_have_ended() -> None:
    ended: list[int] = []

    def work(start: int, stop: int) -> int:
        if start == 2:
            raise LeakError("no")
        ended.append(start)
        return stop

    assert resources.run_parts(work, [0, 1, 2]) == [1, 2]
    with pytest.raises(LeakError, match="no"):
        resources.run_parts(work, [0, 1, 2, 3, 4])
    assert sorted(ended) == [0, 0, 1, 1, 3]


def _forked(place: Any) -> None:
    place.put(resources.run_parts(lambda start, stop: stop - start, [0, 1, 2, 3]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_threads_of_its_own() -> None:
    assert resources.run_parts(lambda start, stop: stop - start, [0, 1, 2, 3]) == [1, 1, 1]
    context = multiprocessing.get_context("fork")
    place = context.Queue()
    child = context.Process(target=_forked, args=(place,))
    child.start()
    assert place.get(timeout=30) == [1, 1, 1]
    child.join()


# Rows in several parts.


COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "row_norm": 2.0, "insecure_seed": 3}
MODELS = {
    "newton": lambda: sv.PrivateLogisticRegression(**COMMON, solver="newton"),
    "newton, weights": lambda: sv.PrivateLogisticRegression(
        **COMMON, solver="newton", classes=(0, 1), class_weight={0: 1.0, 1: 3.0}
    ),
    "gradient": lambda: sv.PrivateRidge(**COMMON, label_bound=2.0, solver="gradient"),
    "gradient, classes": lambda: sv.PrivateLogisticRegression(**COMMON, solver="gradient"),
    "sgd": lambda: sv.PrivateLinearSVC(**COMMON, solver=sv.solvers.SGD(rate=0.3, rounds=10)),
    "whitened": lambda: sv.PrivateLogisticRegression(**COMMON, solver="whitened"),
    "whitened, numbers": lambda: sv.PrivateRidge(**COMMON, label_bound=2.0, solver="whitened"),
    "whitened, classes": lambda: sv.PrivateLogisticRegression(**COMMON, solver="whitened"),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_the_same_wherever_its_rows_lie(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one place and in several; which of them has which rows, and by how many threads, nobody can tell."""
    rng = np.random.default_rng(11)
    X = rng.standard_normal((400, 5))
    X[7, 2] = math.nan
    labels = {"newton, weights": 2, "newton": 2, "sgd": 2, "whitened": 2}.get(name, 3)
    y: Any = X[:, 0] + 0.1 * rng.standard_normal(400)
    y = (
        np.nan_to_num(y)
        if "numbers" in name or name == "gradient"
        else np.digitize(y, np.linspace(-1, 1, labels + 1)[1:-1])
    )
    rows = FORMS[form](X)
    expected = MODELS[name]().fit(rows, y).coef_
    monkeypatch.setattr(resources, "LEAST", 1)
    assert (
        MODELS[name]().set_params(resources=sv.Resources(n_jobs=3)).fit(rows, y).coef_.tobytes() == expected.tobytes()
    )
    monkeypatch.setattr(dataset, "ENTRIES", 5 * 150)
    assert MODELS[name]().fit(sv.Dataset.from_arrays(rows, y)).coef_.tobytes() == expected.tobytes()
