from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

from curvature_estimate import estimate_curvature
from sottovoce.errors import InputError
from sottovoce.lab import bcfw
from sottovoce.penalties import BoxSet, ConstraintSet, L1Ball, L2Ball, Product, Simplex


def corners(part: ConstraintSet, size: int) -> np.ndarray:
    """The extreme points of a polytope, one a row."""
    if isinstance(part, BoxSet):
        return np.array(list(itertools.product([part.low, part.high], repeat=size)))
    if isinstance(part, L1Ball):
        return part.radius * np.vstack([np.eye(size), -np.eye(size)])
    return part.radius * np.eye(size)


def differences(M: Product) -> list[np.ndarray]:
    """s - x over the corners of each block, one a row."""
    found = []
    for part, size in zip(M.parts, M.sizes, strict=True):
        points = corners(part, size)
        found.append(np.unique((points[:, None] - points[None]).reshape(-1, size), axis=0))
    return found


def split(M: Product, A: np.ndarray) -> list[np.ndarray]:
    return np.split(A, np.cumsum(M.sizes)[:-1], axis=1)


def exact(f: bcfw.Objective, M: Product, sampling: bcfw.Sampling) -> float:
    """The expected curvature of a quadratic, block after block through all corners."""
    vectors = [d @ a.T for d, a in zip(differences(M), split(M, f.majorant()), strict=True)]
    P = sampling.pairs()
    best = 0.0
    *others, last = vectors
    for choice in itertools.product(*others):
        u = np.array(choice)
        fixed = float((P[:-1, :-1] * (u @ u.T)).sum())
        mixed = last @ (P[-1, :-1] @ u)
        best = max(best, float((fixed + 2 * mixed + P[-1, -1] * np.square(last).sum(axis=1)).max()))
    return best


def small(name: str) -> tuple[bcfw.Composite, Product]:
    """Four blocks, few corners."""
    rng = np.random.default_rng(len(name))
    parts: dict[str, tuple[list[ConstraintSet], list[int]]] = {
        "scalars": ([BoxSet(-1, r) for r in (1, 2, 0.5, 1)], [1] * 4),
        "boxes": ([BoxSet(-1, r) for r in (1, 2, 0.5, 1)], [2, 1, 2, 1]),
        "l1 balls": ([L1Ball(r) for r in (1, 2, 0.5, 1)], [2, 1, 2, 2]),
        "simplices": ([Simplex(r) for r in (1, 2, 0.5, 1)], [3, 2, 3, 2]),
        "mixed": ([Simplex(1.0), L1Ball(0.7), BoxSet(0, 1), Simplex(2.0)], [3, 2, 2, 2]),
    }
    sets, sizes = parts[name]
    A = rng.standard_normal((7, sum(sizes))) + 0.3
    return bcfw.least_squares(A, rng.standard_normal(7)), Product(tuple(sets), tuple(sizes))


SMALL = ["scalars", "boxes", "l1 balls", "simplices", "mixed"]
FOUR = {
    "elementary": bcfw.Elementary(4),
    "uniform serial": bcfw.UniformSerial(4),
    "2-nice": bcfw.Nice(4, 2),
    "3-nice": bcfw.Nice(4, 3),
    "(2, 1)-distributed": bcfw.Distributed(4, 2, 1),
    "serial importance": bcfw.SerialImportance([1, 2, 3, 4]),
    "independent importance": bcfw.IndependentImportance([0.2, 0.9, 0.5, 1.0]),
    "listed": bcfw.Listed(4, [[0, 1, 3], [2], [1, 2]], [0.5, 0.2, 0.3]),
}


def bounds(f: bcfw.Objective, M: Product, sampling: bcfw.Sampling) -> dict[str, float]:
    found = {
        g.__name__: g(f, M, sampling)
        for g in (bcfw.eso_bound, bcfw.separable_bound, bcfw.pairwise_bound, bcfw.curvature_bound)
    }
    if isinstance(sampling, bcfw.Nice):
        found["nice_bound"] = bcfw.nice_bound(f, M, sampling)
    if isinstance(sampling, bcfw.Distributed):
        found["distributed_bound"] = bcfw.distributed_bound(f, M, sampling)
    return found


@pytest.mark.parametrize("sampling", FOUR.values(), ids=FOUR)
@pytest.mark.parametrize("name", SMALL)
def test_estimate_below_truth_below_every_bound(name, sampling):
    f, M = small(name)
    truth = exact(f, M, sampling)
    estimate = estimate_curvature(f, M, sampling, generator=1)
    found = bounds(f, M, sampling)
    assert 0.9 * truth <= estimate <= truth * (1 + 1e-9)
    assert truth <= min(found.values()) * (1 + 1e-9)
    assert found["curvature_bound"] == pytest.approx(min(found.values()))
    assert found["curvature_bound"] <= 3 * truth
    if np.count_nonzero(sampling.pairs()) == 4:  # drawn one by one
        assert found["pairwise_bound"] == pytest.approx(truth)


@pytest.mark.parametrize("name", SMALL)
def test_exact_and_set_curvatures_and_proposition_2(name):
    """C = C_f with all blocks, C <= C_prod / d with one, C <= C^tau with tau of d, strictly where blocks disagree."""
    f, M = small(name)
    for sampling in FOUR.values():
        assert bcfw.exact_curvature(f, M, sampling) == pytest.approx(exact(f, M, sampling))
    whole = bcfw.exact_curvature(f, M, bcfw.Elementary(4))
    assert bcfw.set_curvature(f, M, range(4)) == pytest.approx(whole)
    assert bcfw.expected_set_curvature(f, M, 4) == pytest.approx(whole)
    product = bcfw.block_curvatures(f, M)
    assert [bcfw.set_curvature(f, M, [i]) for i in range(4)] == pytest.approx(product)
    assert bcfw.exact_curvature(f, M, bcfw.UniformSerial(4)) == pytest.approx(product.sum() / 4)
    for tau in (1, 2, 3):
        found, means = bcfw.exact_curvature(f, M, bcfw.Nice(4, tau)), bcfw.expected_set_curvature(f, M, tau)
        assert found <= means * (1 + 1e-12)
        assert means <= bcfw.pairwise_bound(f, M, bcfw.Nice(4, tau)) * (1 + 1e-12)


def test_what_has_too_many_corners_is_refused():
    f, M = bcfw.least_squares(np.eye(30), np.zeros(30)), Product((BoxSet(0, 1),) * 30, (1,) * 30)
    with pytest.raises(InputError, match=r"too many corners .* curvature_bound"):
        bcfw.exact_curvature(f, M, bcfw.Nice(30, 2))
    assert bcfw.set_curvature(f, M, [3, 4]) == pytest.approx(2 / 30)
    balls = Product((L2Ball(1.0),) * 2, (15, 15))
    with pytest.raises(InputError, match="too many corners"):
        bcfw.exact_curvature(f, balls, bcfw.Elementary(2))


@pytest.mark.parametrize("name", ["scalars", "boxes", "l1 balls", "l2 balls", "simplices", "mixed"])
def test_estimate_below_every_bound_on_the_test_problems(problems, samplings, name):
    problem = problems[name]
    for sampling in samplings.values():
        estimate = estimate_curvature(problem.f, problem.M, sampling, tries=6, generator=2)
        assert 0 < estimate <= min(bounds(problem.f, problem.M, sampling).values()) * (1 + 1e-9)


def test_a_bound_a_little_too_small_is_noticed():
    f, M = small("simplices")
    for sampling in (FOUR["uniform serial"], FOUR["serial importance"]):
        assert estimate_curvature(f, M, sampling, generator=1) > 0.95 * bcfw.pairwise_bound(f, M, sampling)


@pytest.mark.parametrize("name", SMALL)
def test_blocks_and_pairs_against_all_corners(name):
    f, M = small(name)
    vectors = [d @ a.T for d, a in zip(differences(M), split(M, f.majorant()), strict=True)]
    expected = np.array([[(u @ v.T).max() for v in vectors] for u in vectors])
    np.fill_diagonal(expected, [np.square(u).sum(axis=1).max() for u in vectors])
    np.testing.assert_allclose(bcfw.pair_curvatures(f, M), expected, rtol=1e-10)
    np.testing.assert_allclose(bcfw.block_curvatures(f, M), np.diag(expected), rtol=1e-10)


def test_pairs_of_l2_balls():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((9, 5))
    f, M = bcfw.least_squares(A, np.zeros(9)), Product((L2Ball(1.0), L2Ball(2.0)), (2, 3))
    found = bcfw.pair_curvatures(f, M)
    assert found[0, 1] == pytest.approx(4 * 2 * np.linalg.norm(A[:, :2].T @ A[:, 2:], 2) / 9)
    np.testing.assert_allclose(np.diag(found), [4 * np.linalg.norm(a, 2) ** 2 / 9 for a in (A[:, :2], 2 * A[:, 2:])])


def test_large_boxes_and_other_sets_are_bounded_from_above():
    rng = np.random.default_rng(1)

    class Shifted(L2Ball):
        def diameter(self, dimension):
            return 2 * self.radius

    A = rng.standard_normal((10, 21))
    f = bcfw.least_squares(A, np.zeros(10))
    M = Product((BoxSet(-1, 1), L1Ball(1.0), Shifted(1.5)), (14, 3, 4))
    pairs = bcfw.pair_curvatures(f, M)
    points = [M.linear_oracle(g) - M.linear_oracle(-g) for g in rng.standard_normal((300, 21))]
    for d in points:
        u = np.stack([a @ part for a, part in zip(split(M, A), np.split(d, [14, 17]), strict=True)])
        assert np.all(u @ u.T / 10 <= pairs * (1 + 1e-12))


def test_expected_squares_are_the_pairs(samplings):
    rng = np.random.default_rng(2)
    A = rng.standard_normal((5, 6))
    for sampling in samplings.values():
        total = sum(p * np.sum(A[:, chosen].sum(axis=1) ** 2) for chosen, p in sampling.sets())
        assert total == pytest.approx((sampling.pairs() * (A.T @ A)).sum())


def test_separable_functions_add_up(hard_problems):
    """Without coupling the expected curvature is sum_i p_i u_i, whatever the sampling."""
    hard = hard_problems["simplices"]
    for sampling in (bcfw.Elementary(6), bcfw.Nice(6, 4), bcfw.Distributed(6, 2, 2)):
        expected = sampling.smallest * bcfw.block_curvatures(hard.f, hard.M).sum()
        assert bcfw.curvature_bound(hard.f, hard.M, sampling) == pytest.approx(expected)
        assert estimate_curvature(hard.f, hard.M, sampling, tries=2, generator=0) == pytest.approx(expected)


def test_coupled_blocks_reach_the_pairwise_bound(hard_problems):
    hard = hard_problems["coupled simplices"]
    sampling = bcfw.Nice(6, 3)
    e = np.eye(60)
    d = np.concatenate([part.radius * (e[0] - e[1]) for part in hard.M.parts])
    A = hard.f.majorant()
    squares = [
        np.sum((A[:, np.repeat(np.isin(range(6), T), 60)] @ d[np.repeat(np.isin(range(6), T), 60)]) ** 2)
        for T, _ in sampling.sets()
    ]
    assert np.mean(squares) == pytest.approx(bcfw.pairwise_bound(hard.f, hard.M, sampling))


def test_propositions_3_and_4_by_hand():
    A = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0]]) * math.sqrt(3)
    f, M = bcfw.least_squares(A, np.zeros(3)), Product((BoxSet(0, 1),) * 4, (1,) * 4)
    # |A_i|^2 = 1, 2, 5, 1; products: blocks 0 and 1: 1; 1 and 2: 2; 2 and 3: 1.
    assert bcfw.nice_bound(f, M, bcfw.Nice(4, 3)) == pytest.approx(3 * 5 + 3 * 2 * 2)
    assert bcfw.distributed_bound(f, M, bcfw.Distributed(4, 2, 2)) == pytest.approx(2 * 2 * 5 + 4 * 1 + 2 * 4 * 2)
    assert bcfw.nice_bound(f, M, bcfw.UniformSerial(4)) == pytest.approx(5)
    assert bcfw.pairwise_bound(f, M, bcfw.UniformSerial(4)) == pytest.approx(9 / 4)
    assert bcfw.eso_bound(f, M, bcfw.UniformSerial(4)) == pytest.approx(9 / 4)


def test_sparse_and_dense_agree():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((8, 9)) * (rng.random((8, 9)) < 0.5)
    M = Product((Simplex(1.0), L2Ball(2.0), BoxSet(-1, 1)), (3, 3, 3))
    dense, sparse = (bcfw.logistic(matrix, np.ones(8)) for matrix in (A, sp.csr_array(A)))
    for bound in (bcfw.eso_bound, bcfw.separable_bound, bcfw.pairwise_bound):
        assert bound(sparse, M, bcfw.Nice(3, 2)) == pytest.approx(bound(dense, M, bcfw.Nice(3, 2)))


@pytest.mark.parametrize("draws", [512, 40], ids=["all sets", "random sets"])
def test_estimate_of_a_function_that_is_not_quadratic(draws):
    rng = np.random.default_rng(4)
    A = rng.standard_normal((30, 12))
    f = bcfw.logistic(A, np.sign(rng.standard_normal(30)))
    M = Product((L1Ball(0.3), Simplex(0.5), BoxSet(-0.2, 0.2)) * 2, (2,) * 6)
    for sampling in (bcfw.Elementary(6), bcfw.Nice(6, 3), bcfw.SerialImportance([1, 2, 3, 4, 5, 6])):
        estimate = estimate_curvature(f, M, sampling, draws=draws, tries=200, generator=5)
        bound = bcfw.curvature_bound(f, M, sampling)
        assert 0.1 * bound < estimate <= bound


def test_blocks_of_zeros_and_points_have_no_curvature():
    f = bcfw.least_squares(np.zeros((4, 5)), np.ones(4))
    M = Product((Simplex(1.0), Simplex(1.0), BoxSet(0, 1)), (1, 3, 1))
    for bound in (bcfw.eso_bound, bcfw.separable_bound, bcfw.pairwise_bound, estimate_curvature):
        assert bound(f, M, bcfw.Nice(3, 2)) == 0


def test_many_blocks_take_the_cheap_bounds(monkeypatch):
    f, M = small("mixed")
    tight = bcfw.separable_bound(f, M, FOUR["3-nice"])
    monkeypatch.setattr("sottovoce.lab.bcfw.curvature.LARGE", 2)
    assert bcfw.separable_bound(f, M, FOUR["3-nice"]) >= tight


def test_bad_input_is_explained():
    f, M = small("scalars")

    class Plain(bcfw.Objective):
        dimension = 4

        def value(self, x):
            return 0.0

        def gradient(self, x, part=slice(None)):
            return np.zeros(4)[part]

    for call, message in (
        (lambda: bcfw.curvature_bound(f, M, bcfw.Nice(5, 2)), "5 blocks and the constraint 4"),
        (lambda: estimate_curvature(f, M, bcfw.Nice(5, 2)), "5 blocks and the constraint 4"),
        (lambda: bcfw.nice_bound(f, M, bcfw.Distributed(4, 2, 1)), "not Distributed; use pairwise_bound"),
        (lambda: bcfw.distributed_bound(f, M, bcfw.SerialImportance(np.ones(4))), "not Serial.*; use pairwise_bound"),
        (lambda: bcfw.eso_bound(Plain(), M, bcfw.Nice(4, 1)), "Plain has no majorant.*define it"),
        (lambda: bcfw.theorem_bound(1, 1.0, 1.0, 0.0), "p_min=0.0 must be above 0"),
        (lambda: bcfw.theorem_bound(1, -1.0, 1.0, 0.5), "gap0=-1.0"),
        (lambda: bcfw.theorem_bound(1, 1.0, math.inf, 0.5), "curvature=inf"),
        (lambda: bcfw.recursion_bound([1.5], 1.0, 1.0, 0.5), "step 1.5 must be from 0 to 1"),
        (lambda: bcfw.universal_step(1.2), "p_min=1.2"),
    ):
        with pytest.raises(InputError, match=message):
            call()
