"""ADMM sharing (Hu, Liu, Kong and Niu 2019): Algorithm 1 as printed, and what the paper proves of it.

The problem (1): l(sum_m D_m x_m) + lambda sum_m R(x_m), with l(z) the sum of a loss over the records. Regularisers are
sums over the coordinates of a smooth function, convex or not (Assumption 1.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.losses import Logistic, Loss

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SmoothRegulariser:
    """R(x) = sum_j r(x_j) with least <= r'' <= most; `prox`(v, a) = argmin a R(x) + |x - v|^2 / 2 where R is convex."""

    value: Callable[[Array], float]
    slope: Callable[[Array], Array]
    least: float
    most: float
    prox: Callable[[Array, float], Array] | None = None


HALF_SQUARE: Final = SmoothRegulariser(
    lambda x: float(x @ x) / 2, lambda x: x, least=1.0, most=1.0, prox=lambda v, a: v / (1 + a)
)
SATURATING: Final = SmoothRegulariser(  # x^2 / (1 + x^2), smooth and not convex
    lambda x: float((x**2 / (1 + x**2)).sum()), lambda x: 2 * x / (1 + x**2) ** 2, least=-0.5, most=2.0
)


@dataclass(frozen=True)
class SharedProblem:
    """Problem (1) with the augmented Lagrangian (5) of a penalty rho."""

    parts: Sequence[Any]  # D_m, dense or sparse
    labels: Array
    loss: Loss
    weight: float  # lambda
    rho: float
    regulariser: SmoothRegulariser = HALF_SQUARE
    box: float = math.inf  # compact X_m of parts of one column, without a regulariser: |x_m| <= box

    def lagrangian(self, state: SharedState) -> float:
        """(5): l(z) + lambda sum_m R(x_m) + <y, S - z> + (rho / 2) |S - z|^2, S = sum_m D_m x_m."""
        gap = self.scores(state) - state.copies
        value = float(self.loss.value(state.copies, self.labels).sum())
        value += self.weight * sum(self.regulariser.value(own) for own in state.weights)
        return value + float(state.duals @ gap) + self.rho / 2 * float(gap @ gap)

    def scores(self, state: SharedState) -> Array:
        """S."""
        return np.asarray(sum(part @ own for part, own in zip(self.parts, state.weights, strict=True)))


@dataclass(frozen=True)
class SharedState:
    """x, z and y of a round."""

    weights: tuple[Array, ...]
    copies: Array
    duals: Array


def iterate_sharing(
    problem: SharedProblem, noise: Callable[[int], Array] | None = None, *, in_turn: bool = False, factor: float = 1.0
) -> Iterator[SharedState]:
    """Rounds of Algorithm 1, (6) to (8), from 0; with `noise`(m) on each message D_m x_m, of (16).

    x_m <- argmin lambda R(x_m) + <y, D_m x_m> + (rho / 2) |sum_{k != m} D_k x_k + D_m x_m - z|^2
    z <- argmin l(z) - <y, z> + (factor rho / 2) |S - z|^2,   y <- y + rho (S - z)

    All x_m move from the messages of the round before; `in_turn`, each from those just made: the Gauss-Seidel form
    (Hong, Luo and Razaviyayn 2016). The printed factor is 1. Weights are told without their noise.
    """
    rho, weight, regulariser = problem.rho, problem.weight, problem.regulariser
    squares = [rho * square_of_part(part) for part in problem.parts]
    factors = [sl.cho_factor(square + weight * regulariser.most * np.eye(len(square))) for square in squares]
    weights = [np.zeros(part.shape[1]) for part in problem.parts]
    copies = duals = np.zeros(len(problem.labels))
    messages = [copies for _ in problem.parts]
    while True:
        before = np.sum(messages, axis=0)
        for m, part in enumerate(problem.parts):
            others = (np.sum(messages, axis=0) if in_turn else before) - messages[m]
            pull = part.T @ (duals + rho * (others - copies))
            for _ in range(500):  # steps below a bound of curvature `most`; the first is exact for a square
                move = sl.cho_solve(factors[m], pull + squares[m] @ weights[m] + weight * regulariser.slope(weights[m]))
                weights[m] = np.clip(weights[m] - move, -problem.box, problem.box)
                if regulariser.least == regulariser.most or np.abs(move).max() <= 1e-13:
                    break
            messages[m] = part @ weights[m] + (noise(m) if noise else 0.0)
        scores = np.sum(messages, axis=0)
        copies = problem.loss.proximal(scores + duals / (factor * rho), problem.labels, factor * rho, copies)
        duals = duals + rho * (scores - copies)
        yield SharedState(tuple(weights), copies, duals)


def assumed_rho(problem: SharedProblem) -> float:
    """Above this rho Assumption 1.2 holds: gamma_m >= 2 sigma_max(D_m'D_m), rho gamma(rho) > 2 L^2 and rho >= L.

    gamma_m = lambda min r'' + rho sigma_min(D_m'D_m); gamma(rho) = rho + min l'': rho + L for the square, rho for
    another convex loss, rho - L else. So (c) asks for rho above L, sqrt(2) L or 2 L. Infinite where a part has not full
    column rank.
    """
    least, curved = problem.weight * problem.regulariser.least, problem.loss.curvature_bound
    needed = (1.0 if problem.loss.quadratic else math.sqrt(2) if problem.loss.convex else 2.0) * curved
    for part in problem.parts:
        low, high = np.linalg.eigvalsh(square_of_part(part))[[0, -1]]
        if not low > 1e-12 * high:
            return math.inf
        needed = max(needed, (2 * high - least) / low)
    return needed


def equal_parties_rho(parties: int, curvature: float) -> float:
    """(3 M - 4) L / 2: below it Algorithm 1 diverges for M equal parts, R = 0 and l(z) = L |z - b|^2 / 2.

    Along D_m x_m = s / M for all m a round is s <- M (1 - q) z - (M - 1) s, z <- (q z + s) / (1 + q) with q = L / rho
    and the new s. Its determinant is -(M - 1) q / (1 + q) and its trace (1 - 2 (M - 1) q) / (1 + q), so both
    eigenvalues are within the unit circle if and only if (3 M - 4) q < 2. Assumption 1.2 (c) asks for rho > L of the
    squared loss, and (b) for rho >= 2 at orthonormal columns: (c) is equal to this for two parties, and both are less
    from three on where L is large enough: there Theorem 1 is false.
    """
    return (3 * parties - 4) * curvature / 2


def lyapunov(problem: SharedProblem, state: SharedState) -> float:
    """(13): V = sum_m |grad_{x_m} L|^2 + |grad_z L|^2 + |S - z|^2.

    For convex R the first is x_m - prox_{lambda R}(x_m - D_m'v), v = y + rho (S - z), else lambda R'(x_m) + D_m'v.
    """
    gap = problem.scores(state) - state.copies
    pull = state.duals + problem.rho * gap
    of_copies = problem.loss.derivative(state.copies, problem.labels) - pull
    total = float(of_copies @ of_copies) + float(gap @ gap)
    for part, own in zip(problem.parts, state.weights, strict=True):
        slope = part.T @ pull
        if problem.regulariser.prox is None:
            slope = slope + problem.weight * problem.regulariser.slope(own)
        else:
            slope = own - problem.regulariser.prox(own - slope, problem.weight)
        total += float(slope @ slope)
    return total


def least_constant(values: Sequence[float], first: float, lower: float) -> float:
    """Theorem 2: the least C with T(epsilon) = min {t: V^t <= epsilon} <= C (L^1 - f) / epsilon, for V^1, V^2, ... run.

    It is max_t t min_{s < t} V^s / (L^1 - f). (14) is printed without the 1 / epsilon that the text around it has.
    """
    lowest = np.minimum.accumulate(np.asarray(values))
    return float((np.arange(2, len(lowest) + 2) * lowest).max() / (first - lower))


def sharing_sensitivity(columns: int, parties: int, rho: float, bend: float, norm: float) -> float:
    """C = 3 / (d_m rho) [lambda c_1 + (1 + M rho) b_1], Lemma 1; `bend` is lambda c_1, `norm` b_1."""
    return 3 / (columns * rho) * (bend + (1 + parties * rho) * norm)


def break_sharing_lemma(rho: float = 60.0, norm: float = 10.0) -> tuple[float, ...]:
    """(C of Lemma 1, how far D x moves, the largest norm of x and z, the least rho of Assumption 1.2).

    One of 100 columns changes, on 400 rows of norm 1. Its entries are +-1/20, and a quarter of their signs change: by
    1 in norm, and it turns by 60 degrees. y = 0, and z lies where the change takes most.
    """
    rng, columns, weight = np.random.default_rng(0), 100, 1e-3
    rest = rng.standard_normal((400, columns - 1))
    rest *= math.sqrt(1 - 1 / 400) / np.linalg.norm(rest, axis=1, keepdims=True)
    column = np.where(rng.random(400) < 0.5, 1.0, -1.0) / 20
    pair = [np.column_stack([rest, np.r_[sign * column[:100], column[100:]]]) for sign in (1, -1)]
    solved = [np.linalg.solve(rho * D.T @ D + weight * np.eye(columns), rho * D.T) for D in pair]  # x = this times z
    change = pair[0] @ solved[0] - pair[1] @ solved[1]
    z = 0.85 * norm * np.linalg.svd(change)[2][0]
    longest = max(float(np.linalg.norm(vector)) for vector in (z, solved[0] @ z, solved[1] @ z))
    asked = assumed_rho(SharedProblem(pair, np.ones(400), Logistic(), weight, rho))
    claimed = sharing_sensitivity(columns, 2, rho, weight, norm)
    return claimed, float(np.linalg.norm(change @ z)), longest, asked


def sharing_noise(epsilon: float, delta: float, sensitivity: float) -> float:
    """Theorem 3: sigma = sqrt(2 ln(1.25 / delta)) C / epsilon, for epsilon in (0, 1]."""
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def sharing_epsilon(epsilon: float, rounds: int, rest: float) -> float:
    """(17): epsilon' = sqrt(2 T ln(1 / delta')) epsilon + T epsilon (e^epsilon - 1), at T delta + delta'."""
    return math.sqrt(2 * rounds * math.log(1 / rest)) * epsilon + rounds * epsilon * math.expm1(epsilon)


def records_told(s: float) -> tuple[float, float]:
    """Of 5 messages with printed noise about 200 rows of norm 1, 5 columns: the error of all inner products of people.

    And the least share of a message's length outside the span of the columns of a neighbour, one record changed.
    """
    rng = np.random.default_rng(0)
    D = rng.standard_normal((200, 5))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    messages = D @ rng.standard_normal((5, 5)) + s * np.linalg.qr(D)[0] @ rng.standard_normal((5, 5))
    basis, upper = np.linalg.qr(messages)[0], np.triu_indices(5)
    system = np.array([np.outer(row, row)[upper] * np.where(upper[0] == upper[1], 1, 2) for row in basis])
    square = np.zeros((5, 5))
    square[upper] = np.linalg.lstsq(system, np.ones(200), rcond=None)[0]  # q_i'S q_i = 1
    square += np.triu(square, 1).T
    near = np.linalg.qr(np.vstack([-D[:1, ::-1], D[1:]]))[0]
    apart = np.linalg.norm(messages - near @ (near.T @ messages), axis=0) / np.linalg.norm(messages, axis=0)
    return float(np.abs(basis @ square @ basis.T - D @ D.T).max()), float(apart.min())


def square_of_part(part: Any) -> Array:
    """D'D, dense."""
    square = part.T @ part
    return np.asarray(square.toarray() if sp.issparse(part) else square)
