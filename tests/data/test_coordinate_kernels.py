from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import expit

from sottovoce import losses
from sottovoce.data.block import exact_weights, toward_zero
from sottovoce.data.kernels import column_loops as kernels
from sottovoce.data.kernels import dual_loops as dual_kernels
from sottovoce.data.kernels import row_loops, selection
from sottovoce.losses import kernels as codes
from sottovoce.penalties import quadratic as sharing

BITS = 17
DUAL = {
    codes.SQUARED: losses.get("squared"),
    codes.HUBER: losses.get("huber", threshold=0.4),
    codes.HINGE: losses.get("hinge"),
    codes.SMOOTHED_HINGE: losses.get("smoothed_hinge", smoothing=0.7),
    codes.LOGISTIC: losses.get("logistic"),
    codes.LOGISTIC_EXACT: losses.get("logistic"),
}
PARAMETER = {codes.HUBER: 0.4, codes.SMOOTHED_HINGE: 0.7}
PRIMAL = [codes.SQUARED, codes.HUBER, codes.SMOOTHED_HINGE, codes.LOGISTIC]


def problem(records: int = 150, dimension: int = 21, seed: int = 0) -> dict[str, Any]:
    """Rows on the grid of BITS with norms up to 1, half of their entries zero; rows 3 and 7 are null."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((records, dimension)) * (rng.random((records, dimension)) < 0.5)
    rows /= np.maximum(np.linalg.norm(rows, axis=1), 1e-9)[:, None] * (1 + rng.random(records))[:, None]
    rows[[3, 7]] = 0.0
    toward_zero(rows, BITS)
    labels = np.where(rng.random(records) < 0.5, 1.0, -1.0)
    return {
        "rows": rows,
        "csr": sp.csr_matrix(rows),
        "csc": sp.csc_matrix(rows),
        "labels": labels,
        "squares": np.einsum("ij,ij->i", rows, rows),
        "weights": exact_weights(3 * rng.standard_normal(dimension), BITS),
        "duals": toward_zero(labels * rng.random(records), BITS),
        "chosen": np.sort(rng.permutation(records)[: 2 * records // 3]).astype(np.int64),
    }


def slopes_of(code: int, parameter: float, scores: Any, labels: Any) -> Any:
    slopes = np.empty(len(scores))
    codes.fill_slopes_from(code, parameter, scores, labels, 0, len(slopes), slopes)
    return slopes


def dual_rows(p: dict[str, Any], kind: str, duals: Any, code: int, *settings: float, weights: Any = None) -> Any:
    steps = (code, PARAMETER.get(code, 0.0), *settings)
    rest = (p["chosen"], p["labels"], p["squares"], p["weights"] if weights is None else weights, duals, steps)
    if kind == "sparse":
        return dual_kernels.dual_rows_sparse(p["csr"].indptr, p["csr"].indices, p["csr"].data, *rest)
    return dual_kernels.dual_rows_dense(p["rows"].astype(kind), *rest)


def reference_step(p: dict[str, Any], code: int, i: Any, weights: Any, factor: float) -> Any:
    loss, a, y, m = DUAL[code], p["duals"][i], p["labels"][i], p["rows"][i] @ weights
    step = loss.dual_step_exact if code == codes.LOGISTIC_EXACT else loss.dual_step
    start = y * np.clip(a * y, codes.BOX, 1 - codes.BOX) if code == codes.LOGISTIC else a
    return start + step(a, y, m, factor * p["squares"][i]) - a


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "float64", "sparse"])
@pytest.mark.parametrize("code", DUAL)
def test_dual_rows_take_the_steps_of_the_loss(code: int, kind: str) -> None:
    p = problem()
    duals = p["duals"].copy()
    total = dual_rows(p, kind, duals, code, 5.0, math.inf, -1, 0.0)
    steps = np.zeros(len(duals))
    steps[p["chosen"]] = reference_step(p, code, p["chosen"], p["weights"], 5.0)
    steps[p["squares"] == 0.0] = 0.0
    np.testing.assert_allclose(duals - p["duals"], steps, atol=1e-13)
    np.testing.assert_allclose(total, steps @ p["rows"], atol=1e-12)


@pytest.mark.parametrize("code", DUAL)
def test_dual_rows_are_exact_and_alike_in_every_layout(code: int) -> None:
    p, found = problem(), []
    for kind in ("float32", "float64", "sparse"):
        duals = p["duals"].copy()
        found.append((dual_rows(p, kind, duals, code, 5.0, 0.05, BITS, 0.0), duals))
    for total, duals in found:
        np.testing.assert_array_equal(total, found[0][0])
        np.testing.assert_array_equal(duals, found[0][1])
    steps = found[0][1] - p["duals"]
    np.testing.assert_array_equal(steps, toward_zero(steps.copy(), BITS))
    np.testing.assert_array_equal(found[0][0], steps @ p["rows"])
    assert np.any(steps != 0.0)
    for step, row in zip(steps, p["rows"], strict=True):
        square = sum((Fraction(float(entry)) ** 2 for entry in row), Fraction(0))
        assert Fraction(float(step)) ** 2 * square <= Fraction(0.05) ** 2


def test_the_clip_holds_without_rounding_to_a_grid() -> None:
    p = problem(2000)
    for clip in (0.1, 1 / 3, 1e-5, 0.7):
        duals = np.zeros(2000)
        dual_rows(p, "float64", duals, codes.SQUARED, 0.0, clip, -1, 0.0)
        for step, square in zip(duals, p["squares"], strict=True):
            assert Fraction(float(step)) ** 2 * Fraction(float(square)) <= Fraction(clip) ** 2


@pytest.mark.parametrize("kind", ["float32", "sparse"])
@pytest.mark.parametrize("code", DUAL)
def test_rows_that_hold_no_numbers_take_no_step(code: int, kind: str) -> None:
    p = problem()
    clean = p["duals"].copy()
    kept = p["chosen"][2:]
    total = dual_rows({**p, "chosen": kept}, kind, clean, code, 5.0, 0.05, BITS, 0.0)
    for bad in (math.nan, math.inf, -math.inf):
        rows = p["rows"].copy()
        rows[p["chosen"][:2], 0] = bad
        dirty = {**p, "rows": rows, "csr": sp.csr_matrix(rows), "squares": np.einsum("ij,ij->i", rows, rows)}
        duals = p["duals"].copy()
        np.testing.assert_array_equal(dual_rows(dirty, kind, duals, code, 5.0, 0.05, BITS, 0.0), total)
        np.testing.assert_array_equal(duals, clean)
        for weights in (np.full_like(p["weights"], bad), np.full_like(p["weights"], 1e308)):
            duals = p["duals"].copy()
            found = dual_rows(p, kind, duals, code, 5.0, 0.05, BITS, 0.0, weights=weights)
            assert np.isfinite(found).all()
            assert np.isfinite(duals).all()


@pytest.mark.parametrize("kind", ["float64", "sparse"])
@pytest.mark.parametrize("code", DUAL)
def test_sequential_steps_see_the_weights_of_the_steps_before(code: int, kind: str) -> None:
    p = problem()
    p["chosen"] = np.random.default_rng(1).permutation(p["chosen"])
    weights, duals = p["weights"].copy(), p["duals"].copy()
    total = dual_rows(p, kind, duals, code, 0.1, math.inf, -1, 0.3, weights=weights)
    w, z = p["weights"].copy(), np.zeros(len(duals))
    for i in p["chosen"]:
        if p["squares"][i] > 0.0:
            z[i] = reference_step(p, code, i, w, 0.1)
            w += 0.3 * z[i] * p["rows"][i]
    np.testing.assert_allclose(duals - p["duals"], z, atol=1e-11)
    np.testing.assert_allclose(weights, w, atol=1e-11)
    np.testing.assert_allclose(total, z @ p["rows"], atol=1e-11)


@pytest.mark.parametrize("s", [0.0, 1e-8, 1.0, 1e4, 1e12])
def test_the_exact_logistic_step_is_stationary(s: float) -> None:
    for m in (-800.0, -30.0, -1.0, 0.0, 1.0, 30.0, 800.0):
        for a in (0.0, 1e-9, 0.3, 1.0):
            z = codes.dual_step(codes.LOGISTIC_EXACT, a, 1.0, m, s, 0.0)
            expected = losses.get("logistic").dual_step_exact(*np.array([[a], [1.0], [m], [s]]))
            np.testing.assert_allclose(z, expected[0], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("code", PRIMAL)
def test_a_slope_is_that_of_the_loss_wherever_its_record_stands(code: int) -> None:
    rng = np.random.default_rng(2)
    scores = np.concatenate(
        [rng.standard_normal(1500) * 10.0 ** rng.integers(-3, 3, 1500), [0.0, 1e4, -1e4, 700, -700]]
    )
    labels = np.where(rng.random(len(scores)) < 0.5, 1.0, -1.0)
    found = slopes_of(code, PARAMETER.get(code, 0.0), scores, labels)
    expected = DUAL[code].derivative(scores, labels)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-299)
    for start in (0, 1, 2, 3, 5, 700):
        for count in (1, 2, 3, 4, 7, 15, 16, 17, 33, 64, 101):
            part = slice(start, start + count)
            alone = slopes_of(code, PARAMETER.get(code, 0.0), scores[part], labels[part])
            np.testing.assert_array_equal(alone, found[part])


def test_a_loss_without_slopes_here_has_none() -> None:
    assert np.isnan(slopes_of(codes.HINGE, 0.0, np.zeros(3), np.ones(3))).all()


def test_the_logistic_slope_is_accurate_everywhere() -> None:
    t = np.linspace(-690, 690, 100_001)
    np.testing.assert_allclose(-slopes_of(codes.LOGISTIC, 0.0, t, np.ones_like(t)), expit(-t), rtol=2e-15)


def settings(dimension: int, seed: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "order": rng.integers(0, dimension, 60),
        "clip": rng.uniform(0.05, 0.5, dimension),
        "steps": rng.uniform(0.1, 5.0, dimension),
        "l1": rng.uniform(0.0, 0.01, dimension),
        "l2": rng.uniform(0.0, 0.1, dimension),
        "low": np.full(dimension, -0.5),
        "high": np.full(dimension, 0.75),
    }


def walk(p: dict[str, Any], kind: str, v: dict[str, Any], code: int, noise: Any, grid_step: float, bits: int) -> Any:
    scores, weights = p["rows"] @ p["weights"], p["weights"].copy()
    order, *arrays = v.values()
    how = (*arrays, code, PARAMETER.get(code, 0.0), float(len(scores)))
    rest = (p["labels"], scores, weights, order, how, noise, grid_step, bits)
    if kind == "sparse":
        return kernels.coordinate_walk_sparse(p["csc"].indptr, p["csc"].indices, p["csc"].data, *rest), weights, scores
    return kernels.coordinate_walk_dense(np.ascontiguousarray(p["rows"].T.astype(kind)), *rest), weights, scores


def clipped_sums(p: dict[str, Any], slopes: Any, clip: Any, bits: int) -> Any:
    terms = p["rows"] * slopes[:, None] * (2.0**bits / clip)
    return np.trunc(np.clip(terms, -(2.0**bits), 2.0**bits)).sum(axis=0) / 2.0**bits


def prox(u: float, v: dict[str, Any], j: int) -> float:
    shrunk = np.sign(u) * max(abs(u) - v["steps"][j] * v["l1"][j], 0.0)
    return float(np.clip(shrunk / (1 + v["steps"][j] * v["l2"][j]), v["low"][j], v["high"][j]))


@pytest.mark.slow
@pytest.mark.parametrize("records", [150, 2500])
@pytest.mark.parametrize("code", PRIMAL)
def test_a_walk_can_be_replayed_from_what_it_released(code: int, records: int) -> None:
    p = problem(records)
    v, grid_step, bits = settings(p["rows"].shape[1]), 2.0**-6, 30
    noise = np.random.default_rng(4).integers(-200, 200, len(v["order"]))
    released, weights, scores = walk(p, "float32", v, code, noise, grid_step, bits)
    assert released.dtype == np.int64
    for kind in ("float64", "sparse"):
        for one, other in zip(walk(p, kind, v, code, noise, grid_step, bits), (released, weights, scores), strict=True):
            np.testing.assert_array_equal(one, other)
    w, u = p["weights"].copy(), p["rows"] @ p["weights"]
    for k, j in enumerate(v["order"]):
        slopes = slopes_of(code, PARAMETER.get(code, 0.0), u, p["labels"])
        total = clipped_sums(p, slopes, v["clip"], bits)[j]
        assert released[k] - noise[k] == np.rint(total / grid_step)
        gradient = released[k] * grid_step * v["clip"][j] / records
        new = prox(w[j] - v["steps"][j] * gradient, v, j)
        u += (new - w[j]) * p["rows"][:, j]
        w[j] = new
    np.testing.assert_array_equal(weights, w)
    np.testing.assert_array_equal(scores, u)


@pytest.mark.parametrize("kind", ["float64", "sparse"])
@pytest.mark.parametrize("code", PRIMAL)
def test_a_walk_without_privacy_follows_the_gradient(code: int, kind: str) -> None:
    p = problem()
    v = settings(p["rows"].shape[1])
    sums, weights, scores = walk(p, kind, v, code, np.zeros(len(v["order"])), 0.0, -1)
    w = p["weights"].copy()
    for k, j in enumerate(v["order"]):
        expected = DUAL[code].derivative(p["rows"] @ w, p["labels"]) @ p["rows"][:, j]
        np.testing.assert_allclose(sums[k], expected, atol=1e-12)
        w[j] = prox(w[j] - v["steps"][j] * expected / len(scores), v, j)
    np.testing.assert_allclose(weights, w, atol=1e-12)
    np.testing.assert_allclose(scores, p["rows"] @ w, atol=1e-12)


@pytest.mark.parametrize("code", PRIMAL)
def test_what_a_record_adds_to_a_walk_does_not_depend_on_its_place(code: int) -> None:
    p = problem(1031)
    v = settings(p["rows"].shape[1])
    noise = np.zeros(len(v["order"]), dtype=np.int64)
    released, weights, scores = walk(p, "float32", v, code, noise, 2.0**-30, 30)
    for seed in range(3):
        turn = np.random.default_rng(seed).permutation(1031)
        moved = {**p, "rows": p["rows"][turn], "labels": p["labels"][turn]}
        again = walk(moved, "float32", v, code, noise, 2.0**-30, 30)
        np.testing.assert_array_equal(again[0], released)
        np.testing.assert_array_equal(again[1], weights)
        np.testing.assert_array_equal(again[2], scores[turn])


@pytest.mark.parametrize("code", PRIMAL)
@pytest.mark.parametrize("kind", ["float32", "sparse"])
def test_a_record_that_holds_no_numbers_moves_a_release_by_its_bound_at_most(code: int, kind: str) -> None:
    p = problem()
    v = {**settings(p["rows"].shape[1]), "steps": np.zeros(p["rows"].shape[1])}  # all releases at the same weights
    noise = np.zeros(len(v["order"]), dtype=np.int64)
    clean = walk(p, kind, v, code, noise, 2.0**-20, 30)[0]
    for bad in (math.nan, math.inf, -math.inf, 1e300):
        rows = p["rows"].copy()
        rows[5] = bad
        with np.errstate(all="ignore"):
            dirty = {**p, "rows": rows, "csc": sp.csc_matrix(rows)}
            released, weights, _ = walk(dirty, kind, v, code, noise, 2.0**-20, 30)
        assert np.abs(released - clean).max() <= 2**21
        assert np.isfinite(weights).all()


@pytest.mark.parametrize("records", [150, 2500])
def test_all_sums_are_those_of_the_walk(records: int) -> None:
    p, bits = problem(records), 30
    slopes = np.random.default_rng(5).standard_normal(records)
    clip = settings(p["rows"].shape[1])["clip"]
    expected = clipped_sums(p, slopes, clip, bits)
    sparse = (p["csc"].indptr, p["csc"].indices, p["csc"].data)
    for kind in ("float32", "float64"):
        columns = np.ascontiguousarray(p["rows"].T.astype(kind))
        np.testing.assert_array_equal(kernels.clipped_column_sums_dense(columns, slopes, clip, bits), expected)
        plain = kernels.clipped_column_sums_dense(columns, slopes, clip, -1)
        np.testing.assert_allclose(plain, slopes @ p["rows"], atol=1e-11)
    np.testing.assert_array_equal(kernels.clipped_column_sums_sparse(*sparse, slopes, clip, bits), expected)
    plain = kernels.clipped_column_sums_sparse(*sparse, slopes, clip, -1)
    np.testing.assert_allclose(plain, slopes @ p["rows"], atol=1e-11)


def test_nothing_chosen_and_no_steps_change_nothing() -> None:
    p = {**problem(), "chosen": np.empty(0, dtype=np.int64)}
    for kind in ("float32", "sparse"):
        duals = p["duals"].copy()
        assert not dual_rows(p, kind, duals, codes.SQUARED, 1.0, 1.0, BITS, 0.0).any()
        np.testing.assert_array_equal(duals, p["duals"])
        v = {**settings(p["rows"].shape[1]), "order": np.empty(0, dtype=np.int64)}
        released, weights, _ = walk(p, kind, v, codes.SQUARED, np.empty(0, dtype=np.int64), 1.0, 30)
        assert len(released) == 0
        np.testing.assert_array_equal(weights, p["weights"])


@pytest.mark.parametrize(
    "module", [kernels, dual_kernels, row_loops, sharing, selection, codes], ids=lambda m: m.__name__
)
def test_every_compiled_loop_says_what_it_may_reorder(module: Any) -> None:
    """A loop that says nothing is compiled with its first caller's leave, and results would depend on the order."""
    compiled = {name: loop for name, loop in vars(module).items() if hasattr(loop, "targetoptions")}
    assert compiled
    for name, loop in compiled.items():
        assert "fastmath" in loop.targetoptions, name
