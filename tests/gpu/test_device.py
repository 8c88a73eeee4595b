"""FitRows on a CUDA device give the sums of rows in memory, bit for bit: `make gpu`, on a machine that has one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import algorithms, losses
from sottovoce.app.previews import FitRows, cost_of
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.dataset import Dataset
from sottovoce.data.device import device_block as device
from sottovoce.data.device import pieces
from sottovoce.data.matrix import Slope, Slopes
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError, LeakError, RefusedError

try:
    xp = pieces.cupy()
except InputError as error:
    pytest.skip(str(error), allow_module_level=True)

FORMS = {"dense": np.asarray, "sparse": sp.csr_matrix}
SHAPES = [(301, 7), (5000, 31), (20_000, 90), (9001, 127), (3000, 200), (2000, 500), (500, 700)]
CUDA = sv.Resources(device="cuda")
CODED = ["hinge", "huber", "logistic", "sigmoid", "smoothed_hinge", "squared"]


def rows_of(records: int, features: int) -> Any:
    """FitRows of every length, some of them zero or not usable, and labels of two classes."""
    rng = np.random.default_rng(records)
    X = rng.standard_normal((records, features)) * 10.0 ** rng.integers(-3, 2, (records, 1))
    X[rng.random(X.shape) < 0.4] = 0.0
    X[::17, 0] = math.nan
    return X, rng.integers(0, 2, records)


def both(form: str, records: int, features: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Block, Any]:
    """The same rows in memory, and on the device, where half of them find no room and stay on the host in pieces."""
    X, y = rows_of(records, features)
    recipe = Preparation(Bounds(row_norm=2.0), features, True, records, (0, 1))
    return Block.prepare(FORMS[form](X), y, recipe), half_there(FORMS[form](X), y, recipe, monkeypatch)


def half_there(X: Any, y: Any, recipe: Preparation, monkeypatch: pytest.MonkeyPatch) -> Any:
    records, entries = X.shape[0], X.nnz + X.shape[0] if sp.issparse(X) else X.size + X.shape[0]
    size = 8 * entries + 45 * records if sp.issparse(X) else 4 * entries + 18 * records
    free = xp.cuda.runtime.memGetInfo()[0] + xp.get_default_memory_pool().free_bytes()
    monkeypatch.setattr(pieces, "CHUNK", max(1, entries // 9))
    monkeypatch.setattr(pieces, "LEAST_ROWS", 1)
    monkeypatch.setattr(device, "WIDE", max(1, entries // 5))
    monkeypatch.setattr(pieces, "RESERVE", 1.0 - 0.5 * size / free)
    there = device.DeviceBlock.prepare(X, y, recipe)
    assert sum(map(len, there._pieces)) > 0
    assert len(there._host) > 2
    assert len(there) == records
    return there


@contextmanager
def little_memory(more: int) -> Iterator[None]:
    """CuPy may take so many bytes more, and no others."""
    pool = xp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.get_limit()
    pool.set_limit(size=pool.total_bytes() + more)
    try:
        yield
    finally:
        pool.set_limit(size=before)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_those_of_rows_in_memory(form: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = both(form, *shape, monkeypatch)
    rng = np.random.default_rng(1)
    weights, chosen = rng.standard_normal(shape[1] + 1) * 4, rng.integers(0, len(here), len(here) // 3)
    for loss in CODED if shape in SHAPES[:1] else ["logistic"]:  # each is compiled
        for bound, most, offset in ((0.3, None, 0.0), (2.5, None, 0.0), (1.0, 0.2, -0.1)):
            slope = Slope(losses.get(loss), bound, here.bits, most, offset)
            assert np.array_equal(here.weighted_sum(weights, slope), there.weighted_sum(weights, slope))
            few = there.take(chosen).weighted_sum(weights, slope)
            assert np.array_equal(here.take(chosen).weighted_sum(weights, slope), few)
            other = Slope(losses.get(loss), bound, here.bits, most, offset + 0.25)
            assert loss == "hinge" or not np.array_equal(few, there.take(chosen).weighted_sum(weights, other))
    for term in (lambda scores, _: scores * scores, lambda scores, labels: abs(scores - labels)):
        assert here.number_sum(term, 0.0, weights) == there.number_sum(term, 0.0, weights)
    assert here.number_sum(lambda _, labels: labels, -1.0) == there.number_sum(lambda _, labels: labels, -1.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_rows_in_memory(
    form: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = both(form, *shape, monkeypatch)
    chosen = np.random.default_rng(2).integers(0, len(here), len(here) // 3)
    for one, two in ((here, there), (here.take(chosen), there.take(chosen))):
        assert np.array_equal(one.gram(), two.gram())
        assert np.array_equal(one.gram_diagonal(), two.gram_diagonal())
    assert not np.array_equal(there.gram(), there.take(np.arange(2, len(there))).gram())


@pytest.mark.parametrize("features", [124, 125, 126, 127])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_device_with_little_shared_memory_has_smaller_tiles(
    features: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = both("dense", 1001, features, monkeypatch)
    room = 3 * (4 * 2 * pieces.fours(rows * (features + 1)) * 4 + 1024)
    monkeypatch.setattr(device, "shared_memory", lambda: room)
    assert pieces.loop_shape(features + 1, room)[1] == rows
    weights, slope = np.linspace(-3, 3, features + 1), Slope(losses.get("logistic"), 1.0, here.bits)
    chosen = np.arange(1000, 0, -3)
    for one, two in ((here, there), (here.take(chosen), there.take(chosen))):
        assert np.array_equal(one.weighted_sum(weights, slope), two.weighted_sum(weights, slope))


@pytest.mark.parametrize("form", FORMS)
def test_batches_are_those_of_rows_in_memory(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows in any order, named twice, of a batch of a batch, and of none."""
    here, there = both(form, 301, 7, monkeypatch)
    weights, slope = np.linspace(-1, 1, 8), Slope(losses.get("logistic"), 1.0, here.bits)
    rng = np.random.default_rng(3)
    some = rng.permutation(301)[:200]
    for names in (some, np.repeat(some, 3), np.array([5, 5, 300, 0]), np.zeros(0, dtype=np.int64)):
        one, two = here.take(names), there.take(names)
        assert len(one) == len(two) == two.records
        assert two.whole is there
        assert np.array_equal(one.weighted_sum(weights, slope), two.weighted_sum(weights, slope))
        if len(names) > 1:
            inner = rng.integers(0, len(names), 150)
            one, two = one.take(inner), two.take(inner)
            assert np.array_equal(one.weighted_sum(weights, slope), two.weighted_sum(weights, slope))
            assert np.array_equal(one.gram(), two.gram())
    for wrong in ([301], [-1]):
        with pytest.raises(IndexError, match="from 0 to 300"):
            there.take(np.array(wrong))
    batch = there.take(some)
    with pytest.raises(LeakError, match="null rows"):
        batch.number_sum(lambda scores, _: scores)
    with pytest.raises(LeakError, match="never of a batch"):
        batch.projected(np.eye(8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("features", [7, 520])
def test_weights_that_are_no_numbers_change_no_bound(form: str, features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = both(form, 301, features, monkeypatch)
    for loss in CODED:
        slope = Slope(losses.get(loss), 0.05, here.bits)
        for wild in (math.nan, math.inf, -math.inf):
            weights = np.full(features + 1, 100.0)
            weights[1] = wild
            assert np.array_equal(here.weighted_sum(weights, slope), there.weighted_sum(weights, slope))
    each = [there.take(np.array([i])).weighted_sum(np.full(features + 1, 100.0), slope) for i in range(40)]
    longest = max(sum(Fraction(entry) ** 2 for entry in row) for row in each)
    assert Fraction(0.045) ** 2 < longest <= Fraction(0.05) ** 2
    slope.numbers[4] = 50.0  # a loop that is told another bound passes it
    assert np.abs(there.weighted_sum(np.full(features + 1, 100.0), slope)).max() > 301 * 0.05


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["triangular", "diagonal", "vectors"])
@pytest.mark.parametrize("shape", [(5000, 31), (4001, 90), (3000, 127), (2000, 140)])
def test_projected_rows_are_those_of_rows_in_memory(
    form: str, kind: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = both(form, *shape, monkeypatch)
    rng, width = np.random.default_rng(2), shape[1] + 1
    matrix = np.tril(rng.standard_normal((width, width)))
    told = {"triangular": matrix, "diagonal": np.abs(matrix.diagonal()) + 0.1, "vectors": matrix[:, :2].copy()}[kind]
    one, two = (block.projected(told, made=kind == "vectors") for block in (here, there))
    lengths = np.concatenate([xp.asnumpy(two.lengths[place]) for place in sorted(two.lengths)])
    assert np.array_equal(one.lengths, lengths)
    assert one.number_sum(lambda lengths, _: lengths / 3.0) == two.number_sum(lambda lengths, _: lengths / 3.0)
    one.cut(0.7)
    two.cut(0.7)
    slope, point = Slope(losses.get("logistic"), 1.0, here.bits, 0.3, 0.05), rng.standard_normal(told.shape[-1])
    assert np.array_equal(one.weighted_sum(point, slope), two.weighted_sum(point, slope))
    with pytest.raises(LeakError, match="cut already"):
        two.cut(0.5)
    with pytest.raises(LeakError, match="sensitivity"):
        two.weighted_sum(point, Slope(losses.get("logistic"), 1.5, here.bits))


@pytest.mark.parametrize("form", FORMS)
def test_terms_that_no_loop_knows_are_computed_by_the_host(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several classes, of a loss without a code, and of labels that are numbers."""

    class Steeper(losses.Logistic):
        def derivative(self, u: Any, y: Any, out: Any = None) -> Any:
            return 2.0 * super().derivative(u, y)

    rng = np.random.default_rng(4)
    X, _ = rows_of(400, 7)
    y = rng.integers(0, 3, 400)
    recipe = Preparation(Bounds(row_norm=2.0), 7, True, 400, (0, 1, 2))
    here, there = Block.prepare(FORMS[form](X), y, recipe), half_there(FORMS[form](X), y, recipe, monkeypatch)
    several, weights = Slopes(losses.get("softmax", classes=3.0), 0.7, here.bits or 0), rng.standard_normal((8, 3))
    assert np.array_equal(here.weighted_sum(weights, several), there.weighted_sum(weights, several))
    one, two = (block.projected(np.linspace(0.5, 2.0, 8)) for block in (here, there))
    one.cut(0.7)
    two.cut(0.7)
    several = Slopes(losses.get("softmax", classes=3.0), 1.0, here.bits or 0, 0.3, (0.1, 0.0, -0.1))
    assert np.array_equal(one.weighted_sum(weights, several), two.weighted_sum(weights, several))

    numbers = Preparation(Bounds(row_norm=2.0, label_low=-1.0, label_high=3.0), 7, True, 400)
    y = rng.standard_normal(400)
    here, there = Block.prepare(FORMS[form](X), y, numbers), half_there(FORMS[form](X), y, numbers, monkeypatch)
    for loss in (losses.get("squared"), losses.get("huber"), Steeper()):
        slope = Slope(loss, 0.6, here.bits)
        assert np.array_equal(here.weighted_sum(weights[:, 0], slope), there.weighted_sum(weights[:, 0], slope))


@pytest.mark.parametrize("form", FORMS)
def test_no_sum_reads_a_piece_before_it_is_there_or_after_the_next_one_came(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large pieces, so that copies take time, and sums without a rest between them; also after one that broke off."""
    X, y = np.random.default_rng(5).standard_normal((200_000, 90)), np.tile([0, 1], 100_000)
    recipe = Preparation(Bounds(row_norm=20.0), 90, True, 200_000, (0, 1))
    here, there = Block.prepare(FORMS[form](X), y, recipe), half_there(FORMS[form](X), y, recipe, monkeypatch)
    slope = Slope(losses.get("logistic"), 1.0, here.bits)
    points = np.random.default_rng(6).standard_normal((8, 91))
    for turn, weights in enumerate(np.concatenate([points, points])):
        if turn % 4 == 3:
            with pytest.raises(ZeroDivisionError):
                there.number_sum(lambda scores, _: scores * (1 / 0), 0.0, weights)
        assert np.array_equal(there.weighted_sum(weights, slope), here.weighted_sum(weights, slope))


class Pieces:
    """A source of rows that has no array, in pieces of uneven sizes; it may not give all that it says."""

    def __init__(self, X: Any, y: Any, said: int) -> None:
        self._X, self._y, self.shape = X, y, (said, X.shape[1])

    def pieces(self, rows: int) -> Iterator[tuple[Any, Any]]:
        start, size = 0, rows
        while start < len(self._y):
            yield self._X[start : start + size], self._y[start : start + size]
            start, size = start + size, max(1, size // 2)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_come_in_pieces_are_those_of_an_array(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows_of(2000, 31)
    X = FORMS[form](X)
    recipe = Preparation(Bounds(row_norm=2.0), 31, True, 2000, (0, 1))
    monkeypatch.setattr(pieces, "LEAST_ROWS", 300)
    monkeypatch.setattr(pieces, "CHUNK", 1)
    monkeypatch.setattr(pieces, "READ", 1)
    slope, weights = Slope(losses.get("logistic"), 1.0, recipe.bits), np.linspace(-2, 2, 32)
    expected = Block.prepare(X, y, recipe).weighted_sum(weights, slope)
    for given in ((X, y), (Pieces(X, y, 2000), None), (Dataset.from_arrays(X, y), None)):
        there = device.DeviceBlock.prepare(*given, recipe)
        assert np.array_equal(there.weighted_sum(weights, slope), expected)
    for said in (1999, 2000 - 500):
        with pytest.raises(InputError, match=f"said to have {said} rows but gave"):
            device.DeviceBlock.prepare(Pieces(X, y, said), None, recipe)
    with pytest.raises(InputError, match="gave 1999"):
        device.DeviceBlock.prepare(Pieces(X[:1999], y[:1999], 2000), None, recipe)
    with pytest.raises(InputError, match="give one label per row"):
        device.DeviceBlock.prepare(X[:1500], y, recipe)
    fewer = Preparation(Bounds(row_norm=2.0), 31, True, 1000, (0, 1))
    with pytest.raises(InputError, match="the plan is for 1000 records"):
        device.DeviceBlock.prepare(X, y, fewer)
    with pytest.raises(InputError, match="X has 31 features but the plan is for 30"):
        device.DeviceBlock.prepare(X, y, Preparation(Bounds(row_norm=2.0), 30, True, 2000, (0, 1)))


@pytest.mark.parametrize("form", FORMS)
def test_a_device_without_memory_leaves_rows_on_the_host_or_says_so(form: str) -> None:
    X, y = np.random.default_rng(7).standard_normal((30_000, 90)), np.tile([0, 1], 15_000)
    recipe = Preparation(Bounds(row_norm=20.0), 90, True, 30_000, (0, 1))
    slope, weights = Slope(losses.get("logistic"), 1.0, recipe.bits), np.linspace(-2, 2, 91)
    expected = Block.prepare(FORMS[form](X), y, recipe).weighted_sum(weights, slope)
    with little_memory(8 << 20):
        there = device.DeviceBlock.prepare(FORMS[form](X), y, recipe)
        assert there._host
    assert np.array_equal(there.weighted_sum(weights, slope), expected)
    with little_memory(1 << 10), pytest.raises(InputError, match="too little free memory"):
        there.gram_diagonal()


def test_memory_is_given_back_with_the_last_name_of_a_block() -> None:
    X, y = rows_of(20_000, 90)
    before = xp.get_default_memory_pool().used_bytes()
    there = device.DeviceBlock.prepare(X, y, Preparation(Bounds(row_norm=2.0), 90, True, 20_000, (0, 1)))
    assert xp.get_default_memory_pool().used_bytes() > before + 20_000 * 90 * 4
    del there
    assert xp.get_default_memory_pool().used_bytes() == before


@pytest.mark.parametrize("form", FORMS)
def test_a_digest_is_of_rows_labels_and_null_rows(form: str) -> None:
    X, y = rows_of(301, 7)
    recipe = Preparation(Bounds(row_norm=2.0), 7, True, 301, (0, 1))
    row, label, null = X.copy(), y.copy(), X.copy()
    row[300, 1] += 0.25
    label[300] = 1 - label[300]
    null[299, 0] = math.nan
    with pytest.MonkeyPatch.context() as patch:
        parted = half_there(FORMS[form](X), y, recipe, patch).digest()
    found = [device.DeviceBlock.prepare(FORMS[form](A), b, recipe).digest() for A, b in ((X, y), (row, y), (X, label))]
    found.append(device.DeviceBlock.prepare(FORMS[form](null), y, recipe).digest())
    assert len(set(found)) == 4
    assert device.DeviceBlock.prepare(FORMS[form](X), y, recipe).digest() == found[0]
    assert len(parted) == 32


def test_what_a_block_has_not_is_told() -> None:
    there = device.DeviceBlock.prepare(*rows_of(100, 3), Preparation(Bounds(row_norm=2.0), 3, True, 100, (0, 1)))
    assert not hasattr(there, "column_dots")
    assert not hasattr(there, "over")
    with pytest.raises(InputError, match="private runs"):
        device.DeviceBlock.prepare(*rows_of(100, 3), Preparation(Bounds(), 3, True, 100, (0, 1), exact=False))


SERVED = {
    "newton": ("two", "weights"),
    "gradient": ("two", "three"),
    "whitened": ("two", "weights", "three"),
    "sgd": ("two",),
}


@pytest.mark.parametrize(
    ("solver", "classes"), [(solver, each) for solver, served in SERVED.items() for each in served]
)
@pytest.mark.parametrize("form", FORMS)
def test_a_fit_is_that_of_the_processor(solver: str, form: str, classes: str) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((4000, 12)) * (rng.random((4000, 12)) < 0.5)
    score = X @ rng.standard_normal(12) + rng.logistic(size=4000)
    y = np.digitize(score, [-1.0, 1.0]) if classes == "three" else np.where(score > 0, 1, -1)
    options = {"sgd": sv.solvers.SGD(rate=0.05, rounds=30)}
    models = [
        sv.PrivateLogisticRegression(
            epsilon=1.0,
            row_norm=3.0,
            classes=(0, 1, 2) if classes == "three" else (-1, 1),
            class_weight={-1: 1.0, 1: 3.0} if classes == "weights" else None,
            solver=options.get(solver, solver),
            insecure_seed=5,
            resources=sv.Resources(device=where),
        ).fit(FORMS[form](X), y)
        for where in ("cpu", "cuda")
    ]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert np.array_equal(models[0].intercept_, models[1].intercept_)


def test_a_solver_that_a_device_does_not_serve_is_told() -> None:
    X, y = np.eye(40), np.tile([-1, 1], 20)
    bounds = {"row_norm": 1.0, "classes": (-1, 1)}
    model = sv.PrivateLogisticRegression(epsilon=1.0, alpha=0.1, solver="scd", resources=CUDA, **bounds)
    with pytest.raises(RefusedError, match='device="cuda" serves newton, gradient, sgd, whitened'):
        model.fit(X, y)


def test_a_pass_is_measured_on_the_device() -> None:
    X, y = np.eye(400), np.tile([-1, 1], 200)
    model = sv.PrivateLogisticRegression(epsilon=1.0, row_norm=1.0, classes=(-1, 1), solver="newton", resources=CUDA)
    plan = model.plan(sv.Federation.central(X, y))
    wide = plan.model_copy(update={"parties": (("data", 10_000_000),)})
    form, rows = algorithms.of(plan), FitRows(10_000_000, 400, device="cuda")
    here, there = (cost_of(wide, form, FitRows(10_000_000, 400, device=device)) for device in (None, "cuda"))
    assert 0.0 < (there.seconds or 0.0) < (here.seconds or 0.0)
    assert [part.where for part in rows.prepared(wide)] == ["device"]
