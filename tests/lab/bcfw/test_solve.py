from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from curvature_estimate import estimate_curvature
from sottovoce import losses
from sottovoce.errors import InputError
from sottovoce.lab import bcfw
from sottovoce.lab.bcfw import objectives
from sottovoce.lab.bcfw.objectives import Blocks
from sottovoce.penalties import BoxSet, L1Ball, L2Ball, Product, Simplex


def reference(f, M, sampling, rounds, start, seed):
    """Algorithm 1 as it is written."""
    generator, x = np.random.default_rng(seed), start.copy()
    owner = np.repeat(np.arange(len(M.sizes)), M.sizes)
    p_min = sampling.probabilities().min()
    for t in range(rounds):
        moved = np.isin(owner, sampling.draw(generator))
        x[moved] += 2 / (p_min * t + 2) * (M.linear_oracle(f.gradient(x)) - x)[moved]
    return x


class Plain(bcfw.Objective):
    """A user's own function, by value and gradient alone; it notes which parts were asked for."""

    def __init__(self, f):
        self.f, self.dimension, self.asked = f, f.dimension, []

    def value(self, x):
        return self.f.value(x)

    def gradient(self, x, part=slice(None)):
        self.asked.append(part)
        return self.f.gradient(x, part)


def mixed(seed=0, rows=20, density=1.0):
    rng = np.random.default_rng(seed)
    M = Product((BoxSet(-1, 0.5), L1Ball(1.0), Simplex(2.0), L2Ball(1.5), BoxSet(0, 1)), (3, 4, 5, 3, 1))
    A = rng.standard_normal((rows, 16)) * (rng.random((rows, 16)) < density)
    return A, np.sign(rng.standard_normal(rows)), M


@pytest.mark.parametrize("model", [bcfw.least_squares, bcfw.logistic])
def test_every_form_follows_the_written_algorithm(model):
    A, y, M = mixed(density=0.4)
    dense, sparse = model(A, y), model(sp.csr_array(A), y)
    start = M.linear_oracle(np.ones(16))
    for sampling in (bcfw.Nice(5, 2), bcfw.Elementary(5), bcfw.UniformSerial(5), bcfw.IndependentImportance([0.3] * 5)):
        expected = reference(dense, M, sampling, 60, start, 4)
        for f in (dense, sparse, Plain(dense)):
            found = bcfw.solve(f, M, sampling, rounds=60, start=start, generator=4)
            np.testing.assert_allclose(found.x, expected, atol=1e-9)
            assert found.value == pytest.approx(dense.value(expected))
            assert M.contains(found.x)


def test_a_block_is_asked_for_its_own_gradient():
    A, y, M = mixed()
    f = Plain(bcfw.least_squares(A, y))
    found = bcfw.solve(f, M, bcfw.UniformSerial(5), rounds=30, generator=0)
    *blocks, last = f.asked
    assert last == slice(None)
    assert {(part.start, part.stop) for part in blocks} <= {(0, 3), (3, 7), (7, 12), (12, 15), (15, 16)}
    assert found.updates == len(blocks) == 30


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", [bcfw.least_squares, bcfw.logistic])
def test_line_search_solves(model, sparse):
    A, y, M = mixed(rows=40)
    f = model(sp.csc_array(A) if sparse else A, y)
    found = bcfw.solve(f, M, bcfw.Nice(5, 3), rounds=3000, step="line-search", tolerance=1e-3, generator=1)
    bounds = Blocks(M, 16)
    assert found.gap <= 1e-3
    assert found.rounds < 3000
    # SciPy, with x = u - v for the l1 ball left out: the boxes alone, the other blocks held fixed.
    free = np.r_[bounds.slice(0), bounds.slice(4)]

    def value(z):
        x = found.x.copy()
        x[free] = z
        return f.value(x)

    best = minimize(value, found.x[free], bounds=[(-1, 0.5)] * 3 + [(0, 1)])
    assert found.value - best.fun <= 1e-3


def test_the_gap_certifies_the_value(problems):
    for problem in problems.values():
        trace = bcfw.solve(problem.f, problem.M, bcfw.Nice(6, 2), rounds=200, every=10, generator=2).trace
        assert trace.rounds.tolist() == list(range(0, 201, 10))
        assert np.all(trace.values - problem.least <= trace.gaps + 1e-9)
        assert trace.gaps[-1] < 0.5 * trace.gaps[0]


def test_recording_without_gaps_changes_nothing_else(problems):
    problem = problems["mixed"]
    one, two = (
        bcfw.solve(problem.f, problem.M, bcfw.Nice(6, 2), rounds=25, every=10, gaps=gaps, generator=2)
        for gaps in (True, False)
    )
    np.testing.assert_array_equal(one.trace.values, two.trace.values)
    assert two.trace.rounds.tolist() == [0, 10, 20, 25]
    assert np.isnan(two.trace.gaps[:-1]).all()
    assert two.gap == two.trace.gaps[-1] == one.gap


def test_line_search_is_never_worse_than_the_universal_step(problems):
    """From the same point, round by round."""
    for name in ("mixed", "l2 balls"):
        problem = problems[name]
        A, y = problem.f.matrix, np.sign(problem.f.g.y)
        for f in (problem.f, bcfw.logistic(A, y), Plain(bcfw.logistic(A, y))):
            x = problem.start
            for seed in range(8):
                values = [
                    bcfw.solve(f, problem.M, bcfw.Nice(6, 2), rounds=1, start=x, step=step, generator=seed)
                    for step in ("universal", "line-search")
                ]
                assert values[1].value <= values[0].value + 1e-12
                x = values[1].x


def test_the_best_step():
    for least in (0.0, 0.3, 1 / 3, 0.9, 1.0, 1.7, -0.4):
        found = objectives.best_step(lambda u, least=least: (u - least) ** 2, 0.5)
        assert found == pytest.approx(min(max(least, 0), 1), abs=2e-6)
    assert objectives.best_step(lambda u: 0.0 if u == 0.25 else 1.0, 0.25) == 0.25


def test_products_stay_exact_in_long_runs(monkeypatch):
    """q = A x is moved along; after 10,000 moves it is still A x, and computing it anew each time changes nothing."""
    A, y, M = mixed()
    f = bcfw.least_squares(A, y)
    kept = bcfw.solve(f, M, bcfw.UniformSerial(5), rounds=10_000, generator=0)
    assert kept.value == pytest.approx(f.value(kept.x), rel=1e-12)
    monkeypatch.setattr(objectives, "REFRESH", 1)
    anew = bcfw.solve(f, M, bcfw.UniformSerial(5), rounds=10_000, generator=0)
    assert anew.value == pytest.approx(kept.value, rel=1e-9)


def test_sets_of_a_user_are_asked_themselves():
    class Half(L1Ball):
        """Only its positive part."""

        def linear_oracle(self, gradient):
            vertex = np.zeros_like(gradient)
            if gradient.min() < 0:
                vertex[gradient.argmin()] = self.radius
            return vertex

    M = Product((Half(1.0), L1Ball(1.0)), (2, 2))
    f = bcfw.least_squares(np.eye(4), [-1.0, 0.2, -0.5, 0.2])
    found = bcfw.solve(f, M, bcfw.UniformSerial(2), rounds=300, step="line-search", generator=0)
    np.testing.assert_allclose(found.x, [0, 0.2, -0.5, 0.2], atol=0.02)


def test_oracles_of_many_blocks_are_those_of_the_sets():
    rng = np.random.default_rng(7)
    _, _, M = mixed()
    blocks = Blocks(M, 16)
    gradients = [*rng.standard_normal((50, 16)), np.zeros(16), -np.zeros(16)]
    for gradient in gradients:
        np.testing.assert_allclose(blocks.oracle(blocks.all, gradient), M.linear_oracle(gradient), rtol=1e-12)
    for size in (1e200, 1e-200):
        np.testing.assert_allclose(blocks.oracle(blocks.all, size * np.ones(16)), M.linear_oracle(np.ones(16)))
    chosen = np.array([3, 0])
    columns = blocks.columns(chosen)
    assert columns.tolist() == [12, 13, 14, 0, 1, 2]
    g = gradients[0]
    np.testing.assert_allclose(blocks.oracle(chosen, g[columns]), M.linear_oracle(g)[columns], rtol=1e-12)


def test_gradients_and_values_of_the_models():
    A, y, _ = mixed()
    x = np.linspace(-1, 1, 16)
    for f, expected in (
        (bcfw.least_squares(A, y), 0.5 * np.mean((A @ x - y) ** 2)),
        (bcfw.logistic(A, y), np.mean(np.log1p(np.exp(-y * (A @ x))))),
        (bcfw.Composite(A, bcfw.MeanLoss(losses.get("huber", threshold=0.5), y)), None),
    ):
        if expected is not None:
            assert f.value(x) == pytest.approx(expected)
        for j in range(16):
            e = 1e-6 * np.eye(16)[j]
            slope = (f.value(x + e) - f.value(x - e)) / 2e-6
            assert f.gradient(x)[j] == pytest.approx(slope, abs=1e-7)
            assert f.gradient(x, slice(j, j + 1)) == pytest.approx([slope], abs=1e-7)


def test_any_smooth_function_of_the_products():
    class LogSumExp(bcfw.Smooth):
        smoothness = 1.0

        def value(self, q):
            return float(np.log(np.exp(q - q.max()).sum()) + q.max())

        def gradient(self, q):
            weights = np.exp(q - q.max())
            return weights / weights.sum()

    A, _, M = mixed(density=0.4)
    for matrix in (A, sp.csr_array(A)):
        f = bcfw.Composite(matrix, LogSumExp())
        found = bcfw.solve(f, M, bcfw.UniformSerial(5), rounds=2000, step="line-search", tolerance=1e-2, generator=0)
        assert found.gap <= 1e-2
        assert estimate_curvature(f, M, bcfw.Nice(5, 2), generator=0) <= bcfw.curvature_bound(f, M, bcfw.Nice(5, 2))


def test_one_set_is_one_block():
    f = bcfw.least_squares(np.eye(3), [1.0, 2.0, 3.0])
    found = bcfw.solve(f, Simplex(1.0), bcfw.Elementary(1), rounds=2000, tolerance=1e-2)
    np.testing.assert_allclose(found.x, [0, 0, 1], atol=0.05)


@pytest.mark.slow
def test_the_start_is_by_default_nearest_to_zero():
    _, y, M = mixed()
    f = bcfw.least_squares(np.eye(16)[:, :16], np.zeros(16))
    del y
    found = bcfw.solve(f, M, bcfw.Elementary(5), rounds=0)
    np.testing.assert_allclose(found.x, M.project(np.zeros(16)))
    assert (found.rounds, found.updates, len(found.trace.rounds)) == (0, 0, 0)


@pytest.mark.slow
def test_seeds_repeat_a_run_and_leave_the_data_alone():
    A, y, M = mixed()
    kept, start = A.copy(), M.linear_oracle(np.ones(16))
    before = start.copy()
    f = bcfw.least_squares(A, y)
    one, two = (bcfw.solve(f, M, bcfw.Nice(5, 2), rounds=50, start=start, generator=9).x for _ in range(2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(A, kept)
    np.testing.assert_array_equal(start, before)


class _Draws(bcfw.Sampling):
    blocks = 5

    def __init__(self, answer):
        self.answer = answer

    def draw(self, generator):
        return self.answer

    def probabilities(self):
        return np.full(5, 0.5)


def test_bad_input_is_explained():
    A, y, M = mixed()
    f, nice = bcfw.least_squares(A, y), bcfw.Nice(5, 2)

    def run(objective=f, constraint=M, sampling=nice, rounds=5, **options):
        return bcfw.solve(objective, constraint, sampling, rounds=rounds, generator=0, **options)

    class WrongShape(Plain):
        def gradient(self, x, part=slice(None)):
            return np.zeros(2)

    hooks = bcfw.Inexact(1.0, gradient=lambda i, g, tolerance: g + 1.0, rho_gradient=0.1)
    far = bcfw.Inexact(1.0, oracle=lambda i, g, tolerance: -M.parts[i].linear_oracle(g), rho_oracle=0.01)
    outside = bcfw.Inexact(1.0, oracle=lambda i, g, tolerance: np.full(len(g), 9.0))
    for call, message in (
        (lambda: run(sampling=bcfw.Nice(4, 2)), "4 blocks and the constraint 5"),
        (lambda: run(sampling="nice"), "must be a Sampling"),
        (lambda: run(sampling=_Draws([0, 0])), r"gave \[0, 0\]; it must give different block numbers from 0 to 4"),
        (lambda: run(sampling=_Draws([5])), r"gave \[5\]"),
        (lambda: run(sampling=_Draws([0.5])), r"gave \[0.5\]"),
        (lambda: run(constraint=Product((BoxSet(0, 1),) * 5, (1,) * 5)), "sum to 5 and the objective has 16"),
        (lambda: run(constraint="box"), "must be a bounded set"),
        (lambda: run(rounds=-1), "rounds=-1"),
        (lambda: run(rounds=2.5), "rounds=2.5 must be a whole number"),
        (lambda: run(every=-1), "every=-1"),
        (lambda: run(tolerance=math.nan), "tolerance=nan"),
        (lambda: run(step="exact"), "step='exact' must be 'universal'"),
        (lambda: run(step=lambda t: 1.5), r"step\(0\)=1.5 must be from 0 to 1"),
        (lambda: run(start=np.full(16, 9.0)), "start is outside the set of block 0.*project it"),
        (lambda: run(start=np.zeros(3)), "start has shape"),
        (lambda: run(objective=WrongShape(f)), r"shape \(2,\), not"),
        (lambda: run(inexact=hooks), "gradient hook erred by .* raise rho_gradient"),
        (lambda: run(inexact=far), "oracle hook erred by .* raise rho_oracle"),
        (lambda: run(inexact=outside), "outside block"),
        (lambda: bcfw.Inexact(-1.0), "curvature=-1.0"),
        (lambda: bcfw.Inexact(1.0, rho_oracle=math.inf), "rho_oracle=inf"),
        (lambda: bcfw.Inexact(1.0, norm="l1"), "norm='l1' must be"),
        (lambda: L1Ball(0.0), "radius=0.0 must be a positive finite number"),
        (lambda: Product((L2Ball(-1.0),), (2,)), "radius=-1.0"),
        (lambda: bcfw.least_squares(A, y[:3]), "y has 3 entries and A 20 rows"),
        (lambda: bcfw.least_squares(np.full((2, 2), math.nan), [0, 1]), "A has an entry that is not finite"),
        (lambda: bcfw.least_squares(A[0], y), "A has shape"),
        (lambda: bcfw.least_squares(A, y[:, None]), "y has shape"),
        (lambda: bcfw.least_squares([["a"]], y), "A must be numbers"),
        (lambda: bcfw.logistic(A, y + 1), "y must be -1 or \\+1"),
        (lambda: bcfw.Composite(A, bcfw.MeanLoss(losses.get("hinge"), y)), "must be smooth and convex"),
        (lambda: run(objective=bcfw.least_squares(1e200 * A, 1e200 * y)), "gradient is not finite; scale"),
    ):
        with pytest.raises(InputError, match=message), np.errstate(all="ignore"):
            call()
