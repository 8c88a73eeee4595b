"""Rows on a CUDA device give the sums of rows in memory, bit for bit: `make gpu`, on a machine that has one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import losses
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.preparation import Preparation
from sottovoce.data.slopes import Slope
from sottovoce.errors import InputError, RefusedError

device = pytest.importorskip("sottovoce.data.device.block")
try:
    device.cupy()
except InputError as error:
    pytest.skip(str(error), allow_module_level=True)

FORMS = {"dense": np.asarray, "sparse": sp.csr_matrix}
SHAPES = [(301, 7), (5000, 31), (20_000, 90), (3000, 200), (2000, 500), (500, 700)]
CODED = ["hinge", "huber", "logistic", "sigmoid", "smoothed_hinge", "squared"]


def both(form: str, records: int, features: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Block, Any]:
    """The same rows in memory, and on the device in several pieces, one of which stays on the host."""
    rng = np.random.default_rng(records)
    X = rng.standard_normal((records, features)) * 10.0 ** rng.integers(-3, 2, (records, 1))
    X[rng.random(X.shape) < 0.4] = 0.0
    X[::17, 0] = math.nan
    y = rng.integers(0, 2, records)
    recipe = Preparation(Bounds(row_norm=2.0), features, True, records, (0, 1))
    monkeypatch.setattr(device, "PIECE", max(1, records * features // 4))
    there = device.DeviceBlock.prepare(FORMS[form](X), y, recipe)
    there._host = [device._pinned(device.cupy(), _on_host(there._pieces.pop()))]
    return Block.prepare(FORMS[form](X), y, recipe), there


def _on_host(piece: Any) -> Any:
    xp = device.cupy()
    sparse = None if piece.sparse is None else tuple(map(xp.asnumpy, piece.sparse))
    rows = None if piece.rows is None else xp.asnumpy(piece.rows)
    return device.Piece(rows, xp.asnumpy(piece.labels), xp.asnumpy(piece.null), sparse=sparse)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_those_of_rows_in_memory(form: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = both(form, *shape, monkeypatch)
    rng = np.random.default_rng(1)
    weights, chosen = (
        rng.standard_normal(shape[1] + 1) * 4,
        np.sort(rng.choice(len(here), len(here) // 3, replace=False)),
    )
    for loss in CODED:
        for bound, most, offset in ((0.3, None, 0.0), (2.5, None, 0.0), (1.0, 0.2, -0.1)):
            slope = Slope(losses.get(loss), bound, here.bits, most, offset)
            assert np.array_equal(here.weighted_sum(weights, slope), there.weighted_sum(weights, slope))
            few = there.take(chosen).weighted_sum(weights, slope)
            assert np.array_equal(here.take(chosen).weighted_sum(weights, slope), few)
            other = Slope(losses.get(loss), bound, here.bits, most, offset + 0.25)
            assert loss == "hinge" or not np.array_equal(few, there.take(chosen).weighted_sum(weights, other))
    assert np.array_equal(here.gram(), there.gram())
    assert np.array_equal(here.gram_diagonal(), there.gram_diagonal())
    for term in (lambda scores, _: scores * scores, lambda scores, labels: abs(scores - labels)):
        assert here.number_sum(term, 0.0, weights) == there.number_sum(term, 0.0, weights)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["triangular", "diagonal", "vectors"])
def test_projected_rows_are_those_of_rows_in_memory(form: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = both(form, 5000, 31, monkeypatch)
    rng = np.random.default_rng(2)
    matrix = np.tril(rng.standard_normal((32, 32)))
    told = {"triangular": matrix, "diagonal": np.abs(matrix.diagonal()) + 0.1, "vectors": matrix[:, :2].copy()}[kind]
    one, two = (block.projected(told, made=kind == "vectors") for block in (here, there))
    assert one.number_sum(lambda lengths, _: lengths / 3.0) == two.number_sum(lambda lengths, _: lengths / 3.0)
    one.cut(0.7)
    two.cut(0.7)
    slope, point = Slope(losses.get("logistic"), 1.0, here.bits, 0.3, 0.05), rng.standard_normal(told.shape[-1])
    assert np.array_equal(one.weighted_sum(point, slope), two.weighted_sum(point, slope))


@pytest.mark.parametrize("solver", ["newton", "gradient", "whitened", "sgd"])
@pytest.mark.parametrize("form", FORMS)
def test_a_fit_is_that_of_the_processor(solver: str, form: str) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((4000, 12)) * (rng.random((4000, 12)) < 0.5)
    y = np.where(X @ rng.standard_normal(12) + rng.logistic(size=4000) > 0, 1, -1)
    options = {"sgd": sv.solvers.SGD(rate=0.05, rounds=30)}
    models = [
        sv.PrivateLogisticRegression(
            epsilon=1.0,
            row_norm=3.0,
            classes=(-1, 1),
            solver=options.get(solver, solver),
            insecure_seed=5,
            device=where,
        ).fit(FORMS[form](X), y)
        for where in ("cpu", "cuda")
    ]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert np.array_equal(models[0].intercept_, models[1].intercept_)


def test_a_solver_that_a_device_does_not_serve_is_told() -> None:
    X, y = np.eye(40), np.tile([-1, 1], 20)
    bounds = {"row_norm": 1.0, "classes": (-1, 1)}
    model = sv.PrivateLogisticRegression(epsilon=1.0, alpha=0.1, solver="scd", device="cuda", **bounds)
    with pytest.raises(RefusedError, match='device="cuda" serves newton, gradient, sgd, whitened'):
        model.fit(X, y)
