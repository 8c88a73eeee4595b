"""Samplings: which set T of the d blocks moves in a round, drawn anew and independently each time."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.arguments import is_whole
from sottovoce.errors import InputError

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = NDArray[np.float64]

MOST_SETS = 200_000
ROUNDING = 1e-9


class Sampling(ABC):
    """A random set T of the blocks 0 .. blocks - 1; proper if every p_i = Pr(i in T) is positive.

    Subclasses give `blocks`, `draw` and `probabilities`; `pairs` serves bounds of the expected curvature, `sets` exact
    expectations. The draws of different rounds are independent. T may be empty.
    """

    blocks: int

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> Integers:
        """The blocks of one round, each once."""

    def drawn(self, generator: np.random.Generator) -> Integers:
        """`draw`, refused where it gives something else."""
        chosen = np.asarray(self.draw(generator))
        if not are_blocks(chosen, self.blocks):
            raise InputError(
                f"draw() of {type(self).__name__} gave {chosen.tolist()}; "
                f"it must give different block numbers from 0 to {self.blocks - 1}"
            )
        return chosen.astype(np.int64, copy=False)

    @abstractmethod
    def probabilities(self) -> Vector:
        """p_i = Pr(i in T)."""

    def pairs(self) -> Matrix:
        """P_ij = Pr(i in T and j in T), with P_ii = p_i; from `sets`, where a sampling lists them."""
        matrix = np.zeros((self.blocks, self.blocks))
        for chosen, probability in self.sets():
            matrix[np.ix_(chosen, chosen)] += probability
        return matrix

    def sets(self) -> list[tuple[Integers, float]]:
        """Every set that can be drawn, with its probability."""
        raise InputError(
            f"{type(self).__name__} gives neither pairs() nor sets(), which the expected curvature is computed from; "
            "define one of them"
        )

    @property
    def smallest(self) -> float:
        """p_min, the least p_i."""
        return float(check_proper(self).min())

    @property
    def size(self) -> float:
        """The mean size of T, sum_i p_i."""
        return float(check_proper(self).sum())

    def _number(self, count: int) -> None:
        if count > MOST_SETS:
            raise InputError(f"{type(self).__name__} has {count} sets, too many to list (at most {MOST_SETS})")


def check_proper(sampling: Sampling) -> Vector:
    """The probabilities of a sampling, checked; InputError if a block is never drawn."""
    p = np.asarray(sampling.probabilities(), dtype=np.float64)
    if p.shape != (sampling.blocks,) or not bool(np.all((p >= 0) & (p <= 1 + ROUNDING))):
        raise InputError(
            f"probabilities() of {type(sampling).__name__} must be {sampling.blocks} numbers from 0 to 1, "
            "one for each block: Pr(i in T)"
        )
    if bool(np.any(p == 0)):
        raise InputError(
            f"the sampling is not proper: block {int(np.argmin(p))} is never drawn (probability 0) and would stay "
            "where it starts; give every block a positive probability, or take the block out of the problem"
        )
    return np.minimum(p, 1.0)


def are_blocks(chosen: ArrayLike, blocks: int) -> bool:
    """Whether these are numbers of different blocks."""
    found = np.asarray(chosen)
    numbers = found.tolist()
    whole = found.ndim == 1 and (not numbers or found.dtype.kind in "iu")
    return whole and len(set(numbers)) == len(numbers) and all(0 <= i < blocks for i in numbers)


def check_probability(p_min: float) -> None:
    """Refuse what is no least probability of a block."""
    if not 0 < p_min <= 1:
        raise InputError(f"p_min={p_min!r} must be above 0 and at most 1; it is the least probability of a block")


def check_pairs(sampling: Sampling) -> Matrix:
    """The matrix P of a sampling, checked against its probabilities."""
    p, pairs = check_proper(sampling), np.asarray(sampling.pairs(), dtype=np.float64)
    if pairs.shape != (len(p), len(p)):
        raise InputError(f"pairs() of {type(sampling).__name__} must be a {len(p)} x {len(p)} matrix: Pr(i, j in T)")
    most, least = np.minimum.outer(p, p), np.maximum(np.add.outer(p, p) - 1, 0)
    within = bool(np.all((pairs <= most + ROUNDING) & (pairs >= least - ROUNDING)))
    alike = bool(np.allclose(np.diag(pairs), p, rtol=0, atol=ROUNDING) and np.allclose(pairs, pairs.T, atol=ROUNDING))
    if not (within and alike):
        raise InputError(
            f"pairs() of {type(sampling).__name__} cannot be Pr(i, j in T): it must be symmetric with the "
            "probabilities p on its diagonal and max(0, p_i + p_j - 1) <= P_ij <= min(p_i, p_j)"
        )
    return pairs


class Distributed(Sampling):
    """Each of K users draws tau of its own d/K blocks: user k holds the blocks from k d/K to (k + 1) d/K - 1.

    p_i = K tau/d; P_ij = tau (tau - 1) / ((d/K) (d/K - 1)) for blocks of one user, (K tau/d)^2 for those of two.
    """

    def __init__(self, blocks: int, users: int, tau: int) -> None:
        self.blocks = check_whole("blocks", blocks, 1)
        self.users = check_whole("users", users, 1, self.blocks, "every user holds a block")
        if self.blocks % self.users:
            raise InputError(
                f"users={users} does not divide blocks={blocks}; every user must hold equally many blocks: "
                "change one of the two, or describe the sampling by a class of your own"
            )
        self.held = self.blocks // self.users
        self.tau = check_whole("tau", tau, 1, self.held, "every user draws so many of the blocks it holds")
        self._first = self.held * np.arange(self.users)[:, None]

    def draw(self, generator: np.random.Generator) -> Integers:
        if self.held > 1000:  # where a number for every block costs more than a call for every user
            local = [generator.choice(self.held, self.tau, replace=False, shuffle=False) for _ in range(self.users)]
            return np.asarray((self._first + np.array(local)).ravel(), dtype=np.int64)
        if self.tau == 1:
            return np.asarray(self._first[:, 0] + generator.integers(self.held, size=self.users))
        order = generator.random((self.users, self.held)).argpartition(self.tau - 1, axis=1)
        return np.asarray((self._first + order[:, : self.tau]).ravel())

    def probabilities(self) -> Vector:
        return np.full(self.blocks, self.tau / self.held)

    def pairs(self) -> Matrix:
        p = self.probabilities()
        matrix = np.multiply.outer(p, p)
        same = np.equal.outer(self.owners(), self.owners())
        matrix[same] = self.tau * (self.tau - 1) / (self.held * max(self.held - 1, 1))
        return _with_diagonal(matrix, p)

    def sets(self) -> list[tuple[Integers, float]]:
        count = math.comb(self.held, self.tau) ** self.users
        self._number(count)
        local = [np.array(chosen) for chosen in itertools.combinations(range(self.held), self.tau)]
        choices = itertools.product(local, repeat=self.users)
        return [((self._first + np.array(choice)).ravel(), 1 / count) for choice in choices]

    def owners(self) -> Integers:
        """The user that holds each block."""
        return np.repeat(np.arange(self.users), self.held)


class Nice(Distributed):
    """tau of the blocks, every such set alike: p_i = tau/d, P_ij = tau (tau - 1) / (d (d - 1)); that is one user."""

    def __init__(self, blocks: int, tau: int) -> None:
        super().__init__(blocks, 1, tau)

    def draw(self, generator: np.random.Generator) -> Integers:
        if self.tau == 1:
            return np.array([generator.integers(self.blocks)])
        return np.asarray(generator.choice(self.blocks, self.tau, replace=False, shuffle=False), dtype=np.int64)


class Elementary(Nice):
    """T = all blocks, always: the classical Frank-Wolfe method (Jaggi 2013)."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks, blocks)
        self._all = np.arange(self.blocks)

    def draw(self, _generator: np.random.Generator) -> Integers:
        return self._all


class UniformSerial(Nice):
    """One block, each with p_i = 1/d (Lacoste-Julien et al. 2013)."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks, 1)


class IndependentImportance(Sampling):
    """Every block on its own with probability p_i, so P_ij = p_i p_j; T may be empty."""

    def __init__(self, probabilities: ArrayLike) -> None:
        self._p = _check_vector("probabilities", probabilities)
        self.blocks = len(self._p)
        check_proper(self)

    def draw(self, generator: np.random.Generator) -> Integers:
        return np.flatnonzero(generator.random(self.blocks) < self._p)

    def probabilities(self) -> Vector:
        return self._p.copy()

    def pairs(self) -> Matrix:
        return _with_diagonal(np.multiply.outer(self._p, self._p), self._p)

    def sets(self) -> list[tuple[Integers, float]]:
        self._number(2 ** min(self.blocks, 64))
        found = []
        for coins in itertools.product((False, True), repeat=self.blocks):
            fallen = np.array(coins)
            probability = float(np.where(fallen, self._p, 1 - self._p).prod())
            if probability > 0:
                found.append((np.flatnonzero(fallen), probability))
        return found


class Listed(Sampling):
    """Any sampling, by its sets of blocks and their probabilities."""

    def __init__(self, blocks: int, sets: Iterable[ArrayLike], probabilities: ArrayLike) -> None:
        self.blocks = check_whole("blocks", blocks, 1)
        self._sets: list[Integers] = []
        for chosen in sets:
            if not are_blocks(chosen, blocks):
                raise InputError(f"the set {chosen!r} must have different whole numbers from 0 to {blocks - 1}")
            self._sets.append(np.array(chosen, dtype=np.int64))
        weights = _check_vector("probabilities", probabilities)
        sums_to_one = abs(weights.sum() - 1) <= ROUNDING
        if len(weights) != len(self._sets) or not bool(np.all(weights >= 0)) or not sums_to_one:
            raise InputError(
                f"probabilities must be {len(self._sets)} numbers, one for each set, not negative and of sum 1; "
                f"there are {len(weights)} of sum {weights.sum():g}"
            )
        self._weights = weights / weights.sum()
        self._cumulated = _cumulate(self._weights)
        check_proper(self)

    def draw(self, generator: np.random.Generator) -> Integers:
        return self._sets[int(np.searchsorted(self._cumulated, generator.random(), side="right"))]

    def probabilities(self) -> Vector:
        p = np.zeros(self.blocks)
        for chosen, weight in zip(self._sets, self._weights, strict=True):
            p[chosen] += weight
        return p

    def sets(self) -> list[tuple[Integers, float]]:
        return [(chosen, float(weight)) for chosen, weight in zip(self._sets, self._weights, strict=True)]


class SerialImportance(Listed):
    """One block, block i with p_i = weights_i / sum of the weights; P_ij = 0."""

    def __init__(self, weights: ArrayLike) -> None:
        found = _check_vector("weights", weights)
        if not bool(np.all((found >= 0) & (found < math.inf))) or not 0 < found.sum() < math.inf:
            raise InputError("weights must be finite and not negative; block i is drawn in proportion to its weight")
        super().__init__(len(found), np.arange(len(found))[:, None], found / found.sum())


def _cumulate(p: Vector) -> Vector:
    """The distribution function, with its last positive step at 1 exactly: rounding can choose no impossible one."""
    total = np.cumsum(p)
    total[int(np.flatnonzero(p)[-1]) :] = 1.0
    return total


def _with_diagonal(matrix: Matrix, diagonal: Vector) -> Matrix:
    np.fill_diagonal(matrix, diagonal)
    return matrix


def _check_vector(argument: str, values: ArrayLike) -> Vector:
    found = np.array(values, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise InputError(f"{argument} has shape {found.shape}; give one number for each block")
    return found


def check_whole(argument: str, value: Any, least: int, most: int | None = None, remedy: str = "") -> int:
    """The value as an int; refused unless it is a whole number in the range."""
    good = is_whole(value) and value >= least
    if not good or (most is not None and value > most):
        allowed = f"a whole number from {least} to {most}" if most is not None else f"a whole number, {least} or more"
        raise InputError(f"{argument}={value!r} must be {allowed}" + (f"; {remedy}" if remedy else ""))
    return int(value)
