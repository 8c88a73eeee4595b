"""`frank-wolfe` in one place: noisy choices of atoms, after Talwar, Thakurta and Zhang (2015).

An atom +-radius e_j of the l1 ball is a code: j + 1 for +radius e_j, -(j + 1) for -radius e_j, and 0 for "stay".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import (
    MOST_ROUNDS,
    SMOOTH,
    Algorithm,
    Array,
    Coordination,
    Need,
    answer,
    given,
    limited,
    slope_bound,
)
from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Choice, Integers, Query, Reals, Round, Wholes, World
from sottovoce.penalties.sets import SparsePoint
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Mechanism
from sottovoce.privacy.calibration import rho_for
from sottovoce.privacy.events import distance, inside
from sottovoce.queries.sums import clipped_derivative
from sottovoce.solvers import FrankWolfe

Size = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]

ROOM = 1.0 + 2.0**-20  # in a sensitivity, for the floating point of the sampler (`privacy/proofs/noise.md`)


class RadiusNumbers(Numbers):
    """The radius of the ball in the units of prepared data."""

    radius: Size


class BallNumbers(RadiusNumbers):
    """Also what the slopes of the loss are clipped to at most."""

    slope_bound: Size


class BallAlgorithm(Algorithm):
    """What the forms of Frank-Wolfe share: entries of at most 1, and how a plan has them choose atoms."""

    name: ClassVar[str] = "frank-wolfe"
    layout: ClassVar[Layout] = "entries"
    needs: ClassVar[tuple[Need, ...]] = (SMOOTH,)
    mechanism: ClassVar[Mechanism] = "selection"
    most_rounds: ClassVar[int] = MOST_ROUNDS

    def check_choices(self, plan: Plan) -> None:
        """Refuse choices made otherwise than this form makes them, and those after the last round, which has no step.

        `most_rounds` bounds what a holder draws because a plan says so.
        """
        release = plan.release("atom")
        if release.mechanism != self.mechanism:
            raise InputError(f"the plan makes choices by {release.mechanism!r}, and this form by {self.mechanism!r}.")
        if plan.rounds > self.most_rounds or release.first + release.count > plan.rounds:
            raise InputError(
                f"rounds={plan.rounds}: the plan has choices beyond its rounds, or more than {self.most_rounds} rounds."
            )


class AtomChoice(Choice):
    """The choice of an atom by scores that one record moves by at most 1 each."""

    name = "atom"
    title = "which feature to move, up or down, or none"
    kind: ClassVar[str] = "indices"
    world_sees: ClassVar[World] = "each"  # the model tells the choices
    signed: ClassVar[bool] = True
    candidate: ClassVar[str] = "atoms"
    largest_std = 2.0**20
    bound = ROOM

    def __init__(self, problem: Problem) -> None:
        self.candidates, self.places = 2 * problem.dimension + 1, problem.dimension


def radius_of(problem: Problem) -> float:
    """The radius of the l1 ball in the units of prepared data."""
    if problem.regulariser.name != "l1_ball":
        raise InputError(
            f"solver='frank-wolfe' needs the l1 ball, not {problem.regulariser.name!r}: pass radius (the largest sum "
            "of absolute coefficients, 1.0 say) to PrivateLasso, or radius and l1_ratio=1 to "
            "PrivateLogisticRegression."
        )
    given = problem.regulariser.parameters["radius"]
    radius = float(given / problem.scaled_regulariser.scale)
    if not SMALLEST <= radius <= LARGEST:
        raise InputError(
            f"radius={given!r} is {radius:.3g} in units of the declared bounds; it must be from {SMALLEST:g} to "
            f"{LARGEST:g} there."
        )
    return radius


def check_block(rows: Block) -> None:
    """Refuse rows whose entries may exceed 1, which the bounds of scores and sketches count on."""
    if rows.layout != "entries" or rows.chosen is not None:
        raise LeakError("the rows were not prepared for steps on the l1 ball.")


MOST_DEFAULT = 10_000  # rounds; only a radius far beyond the labels asks for more


class CentralNumbers(BallNumbers):
    """Also the sum of all steps."""

    total_step: float = Field(ge=0.0, le=LARGEST)


class PrivateFrankWolfe(BallAlgorithm):
    """w <- w + a_t atom while that stays in the ball, else (1 - a_t) w + a_t atom, by public coins and in the mean.

    The atom is the +-radius e_j of the largest -<atom, gradient> + Gumbel noise; the gradient sum_i r_i x_i has
    r_i = l'(x_i'w, y_i) clipped to |r_i| <= G_t, entries |x_ij| <= 1. Steps a_t = total 2 (T - t) / (T (T + 1)) sum to
    total = max(1.2, 0.4 log T). Adding loses at most half of the decrease of a Frank-Wolfe step, which shrinks w, and
    none of what was found. With h_t the error after t steps and C = 4 radius^2 kappa, without noise and in the mean
    over the coins, h_T <= exp(-total / 2) h_0 + sum_t a_t^2 C / 2 for T > 1.

    Guarantee: one record moves each score by at most G_t (replace-one: 2 G_t), so a choice among the 2 d atoms costs
    rho = (Delta / std)^2 / 2 (`proof.md`).
    Edges: a null row adds 0; the intercept is a column of ones inside the ball.
    """

    form: ClassVar[str] = "private"
    title: ClassVar[str] = "Frank-Wolfe on the l1 ball, one signed feature a round"
    splits = ("central",)
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "slope_bound")
    numbers: ClassVar[type[Numbers]] = CentralNumbers

    def design(self, problem: Problem, options: FrankWolfe) -> Design:
        radius, slope = radius_of(problem), slope_bound(problem, options)
        rounds = given(options.rounds, default_rounds(problem, radius, slope))
        numbers = CentralNumbers(radius=radius, slope_bound=slope, total_step=max(1.2, 0.4 * math.log(rounds)))
        mu = math.sqrt(2 * rho_for(problem.epsilon, inside(problem.delta)))
        release = Release.at_mu(AtomScores(problem), 0, rounds, mu, problem.relation, self.mechanism)
        return Design(rounds=rounds, numbers=numbers, releases=(release,))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        self.check_choices(plan)
        return (AtomScores(plan),)

    def remember(self, plan: Plan, rows: Block) -> GradientOnPath:
        return GradientOnPath(self.path(plan), rows)

    def path(self, plan: Plan) -> Path:
        return Path(plan)

    def coordinate(self, plan: Plan) -> Coordination:
        """Choose, move, and once more."""
        atoms, path = np.zeros(plan.rounds, dtype=np.int64), self.path(plan)
        for t in range(plan.rounds):
            (atoms[t],) = yield from answer("atom", atoms=atoms[:t])
            path.move(int(atoms[t]))
        return path.point.dense(plan.dimension)


class AtomScores(AtomChoice):
    """-sum_i r_i x_ij / G_t for every column j: the scores of the atoms +e_j; those of -e_j are the negatives.

    Guarantee: |r_i| <= G_t and |x_ij| <= 1, so zero-out moves each by at most 1, replace-one by 2. Sums are exact.
    """

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        """The atoms so far: they say which point the scores are of."""
        return {"atoms": Wholes((number,), least=-self.places, most=self.places)}

    def value(self, round: Round) -> Array:
        gradient, bound = round.memory.follow(round.rows, round.told["atoms"])
        return np.asarray(gradient / -bound)


class Path:
    """The points that atoms lead to, the same wherever they are followed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.restart()

    def restart(self) -> None:
        self.point, self.round = SparsePoint(self.plan.numbers.radius), 0
        self._coins = self.plan.public_coin("exchange")

    def step(self, t: int) -> float:
        rounds = self.plan.rounds
        return float(min(self.plan.numbers.total_step * 2.0 * (rounds - t) / (rounds * (rounds + 1.0)), 1.0))

    def move(self, code: int) -> tuple[float, list[tuple[int, float]]]:
        """One atom further: what all values were multiplied by, then what was added where."""
        step, share = self.step(self.round), float(self._coins.random())
        self.round += 1
        return 1.0, self.point.exchange(code, step, share)

    def slope_bound(self, norm: float) -> float:
        """What bounds the slopes at a point of this l1 norm, which its scores do not exceed."""
        natural = self.plan.scaled_loss.slope_bound_within(min(norm, self.plan.numbers.radius))
        return float(min(natural * ROOM, self.plan.numbers.slope_bound))


class GradientOnPath:
    """sum_i r_i x_i at the point that the atoms lead to. Only records whose slope has changed are visited again.

    Slopes and entries lie on grids, so the sum of the changes is the sum of the slopes, bit for bit. A round changes
    the scores of the records that have one of a few features, and costs the entries of their rows.
    """

    def __init__(self, path: Path, rows: Block) -> None:
        check_block(rows)
        self.path, self.loss = path, path.plan.scaled_loss
        self.bits = None if rows.bits is None else rows.bits - 1  # a change is as large as two slopes
        self.limit = path.slope_bound(path.plan.numbers.radius)
        self.restart(rows)

    def restart(self, rows: Block) -> None:
        self.path.restart()
        self.bound = self.path.slope_bound(0.0)
        self.scores = np.zeros(len(rows))
        self.slopes = self._slopes(self.scores, rows.labels)
        self.sum = rows.column_dots(self.slopes)
        self.atoms = np.zeros(0, dtype=np.int64)

    def follow(self, rows: Block, atoms: Integers) -> tuple[Array, float]:
        """The gradient after these atoms and G_t, from where it stands if it stands on their way."""
        known = len(self.atoms)
        if known > len(atoms) or not np.array_equal(self.atoms, atoms[:known]):
            self.restart(rows)
            known = 0
        for code in atoms[known:]:
            shrink, changes = self.path.move(int(code))
            if self.bound < self.limit:
                self.bound = max(self.bound, self.path.slope_bound(self.path.point.norm))
            if shrink != 1.0:
                self.scores *= shrink
            touched = rows.add_chosen_columns(changes, self.scores)
            if touched is None:
                self.slopes = self._slopes(self.scores, rows.labels)
                self.sum = rows.column_dots(self.slopes)
                continue
            if shrink != 1.0:
                touched = np.arange(len(rows))
            slopes = self._slopes(self.scores[touched], rows.labels[touched])
            moved = slopes - self.slopes[touched]
            self.slopes[touched] = slopes
            rows.add_rows(touched, moved, self.sum)
        self.atoms = np.array(atoms, dtype=np.int64)
        return self.sum, self.bound

    def _slopes(self, scores: Array, labels: Array) -> Array:
        """Cut to G_t; on one grid for all rounds, that of the largest G_t."""
        slopes = np.asarray(clipped_derivative(self.loss, self.limit, self.bits)(scores.copy(), labels))
        grid = 2.0 ** (0 if self.bits is None else self.bits - math.ceil(math.log2(self.limit)))
        bound = math.inf if self.bits is None else math.floor(self.bound * grid) / grid
        return np.clip(slopes, -bound, bound, out=slopes)


def default_rounds(problem: Problem, radius: float, slope: float) -> int:
    """T = c sqrt(kappa radius N mu / (G log 2d)), mu halved for replace-one, from 3 to MOST_DEFAULT.

    Chosen on twelve synthetic problems and a9a; half or twice as many lose little.
    """
    mu = math.sqrt(2 * rho_for(problem.epsilon, problem.delta)) / distance(problem.relation)
    loss = problem.scaled_loss
    constant = 1.1 if loss.kind == "regression" else 0.8
    signal = loss.curvature_bound * radius * problem.records * min(mu, 1e100)
    rounds = constant * math.sqrt(signal / (slope * math.log(2 * problem.dimension)))
    return round(min(max(rounds, 3.0), MOST_DEFAULT))


class PublishedPath(Path):
    """(1 - a_t) w + a_t atom with a_t = 2 / (t + 2), and slopes clipped to L at every point."""

    def step(self, t: int) -> float:
        return 2.0 / (t + 2.0)

    def move(self, code: int) -> tuple[float, list[tuple[int, float]]]:
        """From one atom to the next: all values shrink."""
        shrink, change = self.point.move(code, self.step(self.round))
        self.round += 1
        return shrink, [(abs(code) - 1, change)] if code else []

    def slope_bound(self, _norm: float) -> float:
        return float(self.plan.numbers.slope_bound)


class PublishedFrankWolfe(PrivateFrankWolfe):
    """The atom of the smallest <atom, gradient> + Laplace noise L radius sqrt(8 T log(1/delta)) / (n epsilon).

    L is the Lipschitz constant, T = (curvature n epsilon / (L radius))^(2/3), the curvature 4 radius^2 kappa of the
    ball.

    Guarantee: a noisy maximum is 2 Delta / scale-DP, so rho = T (2 Delta / scale)^2 / 2 (`proof.md`).
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "Frank-Wolfe on the l1 ball with its published noise"
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds",)
    numbers: ClassVar[type[Numbers]] = BallNumbers  # L is the slope bound
    mechanism: ClassVar[Mechanism] = "noisy-max"

    def design(self, problem: Problem, options: FrankWolfe) -> Design:
        radius, loss = radius_of(problem), problem.scaled_loss
        lipschitz = loss.lipschitz() if loss.kind == "classification" else 1.0 + radius
        curvature = 4 * radius**2 * loss.curvature_bound
        printed = math.ceil((curvature * problem.records * problem.epsilon / (lipschitz * radius)) ** (2 / 3))
        rounds = limited("rounds", given(options.rounds, max(printed, 1)), 1, MOST_ROUNDS)
        query = AtomScores(problem)
        scale = math.sqrt(8 * rounds * math.log(1 / problem.delta)) / problem.epsilon
        release = Release.of(query, 0, rounds, scale, mechanism=self.mechanism)
        numbers = BallNumbers(radius=radius, slope_bound=lipschitz)
        return Design(rounds=rounds, numbers=numbers, releases=(release,))

    def path(self, plan: Plan) -> Path:
        return PublishedPath(plan)
