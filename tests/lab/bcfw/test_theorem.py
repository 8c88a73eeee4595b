"""The bound of the theorem: exactly, by going through all draws, and on average over runs of the solver.

The test on averages is a bet against the bound B. If E h <= B then the evidence, prod_r (1 + c (h_r / B - 1)) over the
runs r and averaged over some c in (0, 1], has mean at most 1, so that it exceeds 1e6 with probability at most 1e-6
(Markov), whatever the distribution. The threshold is 1e6 times the number of checks: all of them together give a
false alarm with probability below 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest

from curvature_estimate import estimate_curvature
from sottovoce.errors import InputError
from sottovoce.lab import bcfw
from sottovoce.penalties import BoxSet, L1Ball, Product, Simplex

pytestmark = pytest.mark.slow

PROBLEMS = ["scalars", "boxes", "l1 balls", "l2 balls", "simplices", "mixed"]
HARD = ["simplices", "coupled simplices", "l1 balls"]
RUNS = 24
ROUNDS = 80
LOOKS = np.array([1, 3, 10, 30, ROUNDS])
CHECKS = 1000  # more than there are


def evidence(gaps: np.ndarray, bound: np.ndarray) -> float:
    """Against a mean of at most the bound; runs are rows."""
    ratio = np.maximum(gaps, 0) / bound - 1
    bets = [np.prod(1 + c * ratio, axis=0) for c in (0.1, 0.3, 1.0)]
    return float(np.mean(bets, axis=0).max())


def violated(gaps: np.ndarray, bound: np.ndarray) -> bool:
    return evidence(gaps, bound) > 1e6 * CHECKS


def gaps_of(problem, sampling, rounds=ROUNDS, runs=RUNS, **options) -> np.ndarray:
    """f(x_t) - min f for t = 0, 1, ..., one run a row."""
    start = options.pop("start", problem.start)
    traces = [
        bcfw.solve(
            problem.f, problem.M, sampling, rounds=rounds, start=start, generator=seed, every=1, gaps=False, **options
        ).trace.values
        for seed in range(runs)
    ]
    return np.array(traces) - problem.least


# Exactly


def expected_value(f, M, sampling, x, step) -> float:
    """E f after one round, through all sets."""
    direction = M.linear_oracle(f.gradient(x)) - x
    owner = np.repeat(np.arange(len(M.sizes)), M.sizes)
    return sum(p * f.value(x + step * direction * np.isin(owner, chosen)) for chosen, p in sampling.sets())


def excesses(problem, sampling, curvature, p_min) -> list[float]:
    """How far one round stays above (1 - p u) h + u^2 C / 2 at points of a run and at vertices, if positive."""
    f, M = problem.f, problem.M
    rng = np.random.default_rng(9)
    points = [bcfw.solve(f, M, sampling, rounds=t, start=problem.start, generator=t).x for t in (0, 2, 9, 40)]
    points += [M.linear_oracle(rng.standard_normal(f.dimension)) for _ in range(4)]
    found = []
    for x in points:
        h = problem.gap(x)
        for u in (1.0, 0.6, 0.2, 0.02):
            allowed = (1 - p_min * u) * h + u**2 * curvature / 2
            found.append((expected_value(f, M, sampling, x, u) - problem.least - allowed) / (1 + h))
    return found


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_round_in_expectation(problems, samplings, name):
    for sampling in samplings.values():
        curvature = bcfw.curvature_bound(problems[name].f, problems[name].M, sampling)
        assert max(excesses(problems[name], sampling, curvature, sampling.smallest)) < 1e-9


def test_one_round_notices_a_curvature_too_small_and_a_probability_too_large(problems, samplings):
    linear = Linear(np.arange(1.0, 7.0))
    for name, sampling in samplings.items():
        problem = problems["simplices"]
        estimate = estimate_curvature(problem.f, problem.M, sampling, generator=0)
        assert max(excesses(problem, sampling, 0.1 * estimate, sampling.smallest)) > 1e-3, name
        if sampling.smallest < 1:
            assert max(excesses(linear, sampling, 0.0, 1.2 * sampling.probabilities().max())) > 1e-3, name


def tree(f, M, sampling, x, rounds: int, step) -> list[float]:
    """E f(x_t) for t = 0 .. rounds, through all sequences of sets."""
    owner = np.repeat(np.arange(len(M.sizes)), M.sizes)
    sets = [(np.isin(owner, chosen), p) for chosen, p in sampling.sets()]
    states, found = [(x, 1.0)], [f.value(x)]
    for t in range(rounds):
        after = []
        for y, weight in states:
            direction = step(t) * (M.linear_oracle(f.gradient(y)) - y)
            after += [(y + direction * moved, weight * p) for moved, p in sets]
        states = after
        found.append(sum(weight * f.value(y) for y, weight in states))
    return found


@pytest.mark.parametrize(
    ("sampling", "rounds"),
    [
        (bcfw.Elementary(3), 12),
        (bcfw.UniformSerial(3), 6),
        (bcfw.Nice(3, 2), 6),
        (bcfw.SerialImportance([1, 2, 3]), 6),
        (bcfw.IndependentImportance([0.3, 0.6, 0.9]), 3),
        (bcfw.Listed(3, [[0, 1], [2]], [0.4, 0.6]), 9),
    ],
    ids=["elementary", "uniform serial", "2-nice", "serial importance", "independent importance", "listed"],
)
@pytest.mark.parametrize("part", [BoxSet(-1, 1), L1Ball(1.0), Simplex(1.0)], ids=["boxes", "l1 balls", "simplices"])
def test_the_bound_against_the_exact_expectation(part, sampling, rounds):
    M = Product((part,) * 3, (3,) * 3)
    f = bcfw.least_squares(3 * np.eye(9), 3 * np.full(9, 1 / 3))  # |x - 1/3|^2 / 2, least 0 in all three
    p, C = sampling.smallest, bcfw.curvature_bound(f, M, sampling)
    start = M.linear_oracle(np.tile([-1.0, -0.5, -0.3], 3))
    found = np.array(tree(f, M, sampling, start, rounds, bcfw.universal_step(p)))
    bound = bcfw.theorem_bound(np.arange(rounds + 1), found[0], C, p)
    recursion = bcfw.recursion_bound(map(bcfw.universal_step(p), range(rounds)), found[0], C, p)
    assert np.all(found <= recursion + 1e-12)
    assert np.all(recursion <= bound + 1e-12)
    runs = [bcfw.solve(f, M, sampling, rounds=2, start=start, generator=seed).value for seed in range(400)]
    assert np.mean(runs) == pytest.approx(found[2], abs=5.5 * np.std(runs) / 20 + 1e-12)  # 4e-8 for a normal mean


# On average


@pytest.mark.parametrize("name", PROBLEMS)
def test_runs_stay_below_the_bound(problems, samplings, name):
    problem = problems[name]
    for sampling in samplings.values():
        gaps = gaps_of(problem, sampling, runs=1 if isinstance(sampling, bcfw.Elementary) else RUNS)
        C = bcfw.curvature_bound(problem.f, problem.M, sampling)
        bound = bcfw.theorem_bound(LOOKS, gaps[0, 0], C, sampling.smallest)
        assert not violated(gaps[:, LOOKS], bound)
        searched = gaps_of(problem, sampling, runs=6, step="line-search")
        assert not violated(searched[:, LOOKS], bound)


def five(problem) -> dict[str, bcfw.Sampling]:
    weights = np.sqrt(bcfw.block_curvatures(problem.f, problem.M))
    return {
        "elementary": bcfw.Elementary(6),
        "uniform serial": bcfw.UniformSerial(6),
        "3-nice": bcfw.Nice(6, 3),
        "(3, 1)-distributed": bcfw.Distributed(6, 3, 1),
        "serial importance": bcfw.SerialImportance(weights),
        "independent importance": bcfw.IndependentImportance(0.5 * weights / weights.max()),
    }


@pytest.mark.parametrize("name", HARD)
def test_the_bound_is_within_a_factor_20_of_the_truth(hard_problems, name):
    """After 1, 3 and 10 passes; the mean counts less five standard errors (3e-7 for a normal mean)."""
    problem = hard_problems[name]
    for sampling in five(problem).values():
        p = sampling.smallest
        looks = np.round(np.array([1, 3, 10]) / p).astype(int)
        gaps = gaps_of(problem, sampling, rounds=looks[-1], runs=8)
        bound = bcfw.theorem_bound(looks, gaps[0, 0], bcfw.curvature_bound(problem.f, problem.M, sampling), p)
        found = gaps[:, looks]
        assert not violated(found, bound)
        truth = found.mean(axis=0) - 5 * found.std(axis=0, ddof=1) / np.sqrt(len(found))
        assert np.all(bound <= 20 * truth), (name, sampling, bound / found.mean(axis=0))


def test_wrong_constants_are_noticed_on_average(hard_problems):
    problem = hard_problems["simplices"]
    for name, sampling in five(problem).items():
        p = sampling.smallest
        looks = np.round(np.array([3, 10]) / p).astype(int)
        gaps = gaps_of(problem, sampling, rounds=looks[-1], runs=1 if p == 1 else 2 * RUNS)
        gaps = np.repeat(gaps, RUNS, axis=0) if p == 1 else gaps  # nothing is random there
        C = bcfw.curvature_bound(problem.f, problem.M, sampling)
        assert not violated(gaps[:, looks], bcfw.theorem_bound(looks, gaps[0, 0], C, p))
        assert violated(gaps[:, looks], bcfw.theorem_bound(looks, 0.0, 0.05 * C, p)), name
        if p < 0.3:
            assert violated(gaps[:, looks], bcfw.theorem_bound(looks, gaps[0, 0], C, 1.0)), name


# Special cases


def test_all_blocks_are_the_classical_method(problems):
    """Steps 2/(t + 2) and the bound 2 C / (t + 2) of Jaggi (2013), from the first round on."""
    sampling = bcfw.Elementary(6)
    assert [bcfw.universal_step(1.0)(t) for t in range(4)] == [1.0, 2 / 3, 2 / 4, 2 / 5]
    t = np.arange(1, 201)
    for problem in problems.values():
        (gaps,) = gaps_of(problem, sampling, rounds=200, runs=1)
        C = bcfw.curvature_bound(problem.f, problem.M, sampling)
        assert np.all(gaps[1:] <= 2 * C / (t + 2))
        recursion = bcfw.recursion_bound(map(bcfw.universal_step(1.0), range(200)), gaps[0], C, 1.0)
        assert np.all(recursion[1:] <= 2 * C / (t + 2))
        x = problem.start
        for k in range(200):
            x = x + 2 / (k + 2) * (problem.M.linear_oracle(problem.f.gradient(x)) - x)
        assert problem.gap(x) == pytest.approx(gaps[-1], rel=1e-6, abs=1e-9)


def test_one_block_is_the_method_of_lacoste_julien(problems):
    """Steps 2d/(t + 2d) and the bound (2d/(t + 2d)) (C_prod + h_0)."""
    d, t = 6, np.arange(50)
    sampling = bcfw.UniformSerial(d)
    np.testing.assert_allclose([bcfw.universal_step(sampling.smallest)(k) for k in t], 2 * d / (t + 2 * d))
    for problem in problems.values():
        product = bcfw.block_curvatures(problem.f, problem.M).sum()
        C = bcfw.curvature_bound(problem.f, problem.M, sampling)
        assert d * C <= product * (1 + 1e-12)
        h = problem.gap(problem.start)
        np.testing.assert_allclose(
            bcfw.theorem_bound(t, h, product / d, sampling.smallest), 2 * d / (t + 2 * d) * (product + h)
        )


class Linear(bcfw.Objective):
    """<c, x> over boxes [0, 1] of one coordinate; from x = 1 the least value, 0, is far. Its curvature is 0."""

    def __init__(self, c) -> None:
        self.c, self.dimension, self.f, self.least = np.asarray(c), len(c), self, 0.0
        self.M = Product((BoxSet(0, 1),) * len(c), (1,) * len(c))
        self.start = np.ones(len(c))

    def value(self, x):
        return float(self.c @ x)

    def gradient(self, x, part=slice(None)):
        return self.c[part]

    def majorant(self):
        return np.zeros((1, self.dimension))

    def gap(self, x):
        return self.value(x)


def test_steps_of_wang(problems):
    """2 d tau / (tau^2 k + 2 d), at most 1; one block at a time it is Lacoste-Julien's, and it bounds by recursion."""
    d, tau = 6, 3
    k = np.arange(60)
    np.testing.assert_allclose([bcfw.parallel_step(d, 1)(i) for i in k], 2 * d / (k + 2 * d))
    wang = 2 * d * tau / (tau**2 * k + 2 * d)
    np.testing.assert_allclose([bcfw.parallel_step(d, tau)(i) for i in k], np.minimum(1, wang))
    universal = [bcfw.universal_step(tau / d)(i) for i in k]
    np.testing.assert_allclose(universal, 2 * d / (tau * k + 2 * d))
    assert not np.allclose(universal, np.minimum(1, wang))
    sampling = bcfw.Nice(d, tau)
    for problem in problems.values():
        C = bcfw.curvature_bound(problem.f, problem.M, sampling)
        gaps = gaps_of(problem, sampling, rounds=60, runs=20, step=bcfw.parallel_step(d, tau))
        bound = bcfw.recursion_bound(map(bcfw.parallel_step(d, tau), range(60)), gaps[0, 0], C, tau / d)
        assert not violated(gaps[:, [1, 5, 20, 60]], bound[[1, 5, 20, 60]])


def test_the_bound_printed_for_wang_s_steps_fails_for_a_linear_function():
    """Its value falls by the factor 1 - tau/d a round, exactly, while steps of 1 are taken."""
    d, tau = 100, 10
    problem = Linear(np.ones(d))
    k = np.arange(19)
    printed = 2 * d * d / (tau**2 * k + 2 * d)
    found = gaps_of(problem, bcfw.Nice(d, tau), rounds=18, runs=80, step=bcfw.parallel_step(d, tau))
    exact = d * (1 - tau / d) ** k
    assert exact[18] > 1.4 * printed[18]
    assert np.abs(found.mean(axis=0) - exact).max() < 5
    assert violated(found[:, [18]], printed[[18]])
    np.testing.assert_allclose(bcfw.recursion_bound(map(bcfw.parallel_step(d, tau), k[:-1]), d, 0.0, tau / d), exact)


# Inexact oracles


class Adversary:
    """Errors of the largest size allowed: a gradient moved against descent, a vertex mixed with the worst one."""

    def __init__(self, M: Product, norm: str = "euclidean") -> None:
        self.parts, self.norm = M.parts, norm

    def length(self, block, error):
        """The largest <s - t, error> over the block, or the Euclidean norm."""
        if self.norm == "euclidean":
            return float(np.linalg.norm(error))
        best, worst = self.parts[block].linear_oracle(error), self.parts[block].linear_oracle(-error)
        return float((worst - best) @ error)

    def gradient(self, block, exact, tolerance):
        toward = self.parts[block].linear_oracle(-exact) - self.parts[block].linear_oracle(exact)
        size = self.length(block, toward)
        return exact - tolerance * toward / size if size > 0 else exact

    def oracle(self, block, gradient, tolerance):
        best, worst = self.parts[block].linear_oracle(gradient), self.parts[block].linear_oracle(-gradient)
        loss = float((worst - best) @ gradient)
        share = min(1.0, tolerance / loss) if loss > 0 else 0.0
        return best + share * (worst - best)


@pytest.mark.parametrize("norm", ["euclidean", "dual"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_inexact_oracles_stay_below_their_bound(problems, samplings, name, norm):
    problem = problems[name]
    adversary = Adversary(problem.M, norm)
    for key in ("elementary", "3-nice", "serial importance", "independent importance"):
        sampling = samplings[key]
        C = bcfw.curvature_bound(problem.f, problem.M, sampling)
        hooks = bcfw.Inexact(C, adversary.gradient, adversary.oracle, rho_gradient=0.3, rho_oracle=0.5, norm=norm)
        rho = hooks.rho(problem.M, sampling)
        gaps = gaps_of(problem, sampling, rounds=40, runs=12, inexact=hooks)
        bound = bcfw.theorem_bound(np.array([1, 10, 40]), gaps[0, 0], C, sampling.smallest, rho)
        assert not violated(gaps[:, [1, 10, 40]], bound)


def test_errors_are_felt_and_the_bound_without_them_fails():
    """The bound with rho = 0 does not hold for large errors, that with rho does: <c, x> and a stand-in for C."""
    problem = Linear(np.ones(8))
    adversary = Adversary(problem.M)
    hooks = bcfw.Inexact(1.0, oracle=adversary.oracle, rho_oracle=1.0)
    gaps = gaps_of(problem, bcfw.Elementary(8), rounds=50, runs=1, inexact=hooks)[0]
    t = np.arange(51)
    assert np.all(gaps <= bcfw.theorem_bound(t, gaps[0], 1.0, 1.0, hooks.rho(problem.M, bcfw.Elementary(8))))
    assert np.any(gaps[1:] > bcfw.recursion_bound(map(bcfw.universal_step(1.0), t[:-1]), gaps[0], 1.0, 1.0)[1:])


def test_the_dual_norm_is_that_of_the_set():
    """Of an l1 ball of radius r it is 2 r times the largest entry, so the diameter is 1; a larger error is refused."""
    M = Product((L1Ball(1.5), BoxSet(0, 2)), (3, 1))
    f, sampling = bcfw.least_squares(np.eye(4), np.ones(4)), bcfw.Elementary(2)

    def run(share: float) -> None:
        def hook(block, exact, tolerance):
            return exact + share * tolerance / 3 * np.array([1.0, -1.0, 1.0]) if block == 0 else exact

        hooks = bcfw.Inexact(1.0, hook, rho_gradient=0.5, rho_oracle=0.25, norm="dual")
        assert hooks.rho(M, sampling) == pytest.approx(1.5)
        bcfw.solve(f, M, sampling, rounds=3, inexact=hooks)

    run(0.999)
    with pytest.raises(InputError, match="gradient hook erred"):
        run(1.001)


def test_rho_weighs_each_block_by_its_probability_and_diameter():
    M = Product((BoxSet(0, 2), L1Ball(1.5)), (1, 3))
    hooks = bcfw.Inexact(1.0, rho_gradient=0.1, rho_oracle=0.01)
    assert hooks.rho(M, bcfw.IndependentImportance([0.5, 1.0])) == pytest.approx(
        0.5 * (0.1 * 2 + 0.01) + 1.0 * (0.1 * 3 + 0.01)
    )


def test_rho_counts_the_sum_of_diameters():
    """A gradient of 1/400 in 25 wide blocks, turned around while errors are larger: D_M + |T| for rho is too little."""
    d, width, t = 25, 20.0, 390
    problem, sampling = Linear(np.full(d, 1 / 400)), bcfw.Elementary(d)
    problem.M, problem.start = Product((BoxSet(0, width),) * d, (1,) * d), np.full(d, width)
    hooks = bcfw.Inexact(1.0, Adversary(problem.M).gradient, rho_gradient=1.0)
    assert hooks.rho(problem.M, sampling) == d * width
    gap = gaps_of(problem, sampling, rounds=t, runs=1, inexact=hooks)[0, -1]
    h = problem.gap(problem.start)
    assert gap <= bcfw.theorem_bound(t, h, 1.0, 1.0, d * width)
    assert gap > bcfw.theorem_bound(t, h, 1.0, 1.0, problem.M.diameter(d) + d)
