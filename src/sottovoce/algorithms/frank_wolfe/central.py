"""`frank-wolfe`: private Frank-Wolfe on the l1 ball, in one place (Talwar, Thakurta and Zhang 2015) or over columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Algorithm,
    Ask,
    Coordination,
    Design,
    Family,
    Problem,
    Solution,
    draft,
    make_plan,
    option,
    problem_loss,
    public_coin,
)
from sottovoce.algorithms.frank_wolfe.atoms import (
    ROOM,
    BallAlgorithm,
    Iterate,
    add_column,
    check_choices,
    column_dots,
    radius_of,
)
from sottovoce.algorithms.frank_wolfe.columns import SketchedFrankWolfe
from sottovoce.algorithms.frank_wolfe.exact import DistributedFrankWolfe
from sottovoce.algorithms.frank_wolfe.published import PublishedFrankWolfe
from sottovoce.data.block import Block, is_sparse
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.kernels import atoms as kernels
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk, clipped_derivative
from sottovoce.errors import InputError, LeakError
from sottovoce.plan.plan import Plan, Release, grid_step
from sottovoce.privacy.accounting import SAMPLER_SHARE, Relation, rho_for

MOST_DEFAULT = 10_000  # rounds; only a radius far beyond the labels asks for more

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class CentralFrankWolfe(BallAlgorithm):
    """w <- w + a_t atom while that stays in the ball, else (1 - a_t) w + a_t atom, by public coins and in the mean.

    The atom is the +-radius e_j of the largest -<atom, gradient> + Gumbel noise; the gradient sum_i r_i x_i has
    r_i = l'(x_i'w, y_i) cut to |r_i| <= G_t, entries |x_ij| <= 1. Steps a_t = reach 2 (T - t) / (T (T + 1)) sum to
    reach = max(1.2, 0.4 log T). Adding loses at most half of the decrease of a Frank-Wolfe step, which shrinks w, and
    none of what was found. With h_t the error after t steps and C = 4 radius^2 kappa, without noise and in the mean
    over the coins, h_T <= exp(-reach / 2) h_0 + sum_t a_t^2 C / 2 for T > 1.

    Guarantee: one record moves each score by at most G_t (replace-one: 2 G_t), so a choice among the 2 d atoms costs
    rho = (Delta / std)^2 / 2 (`proof.md`). `calibration="paper"` is Talwar, Thakurta and Zhang's: steps
    2 / (t + 2) from one atom to the next, Laplace noise on each score by their formula.
    Edges: a null row adds 0; the intercept is a column of ones inside the ball.
    """

    options: ClassVar[tuple[str, ...]] = ("rounds", "slope_bound")

    def design(self, problem: Problem) -> Design:
        """Rounds and G by public rules."""
        numbers = {"radius": radius_of(self.name, problem)}
        if problem.calibration == "paper":
            return self._paper(problem, numbers)
        loss = problem_loss(problem)
        bound = min(loss.lipschitz(), 0.5) if loss.kind == "regression" else loss.lipschitz()
        numbers["slope_bound"] = option(problem, "slope_bound", bound, low=SMALLEST, high=LARGEST)
        rounds = option(problem, "rounds", default_rounds(problem, numbers), low=1, whole=True)
        numbers["reach"] = max(1.2, 0.4 * math.log(rounds))
        query = AtomScores(draft(problem, numbers, "entries"))
        mu = math.sqrt(2 * rho_for(problem.epsilon, problem.delta * (1 - SAMPLER_SHARE)))
        release = Release.at_mu(query, 0, rounds, mu, problem.relation, "selection")
        design = Design(rounds, numbers, (release,), layout="entries")
        self.check_samplers(
            make_plan(self.name, problem, design, run="draft", coin="draft"), problem.relation, problem.delta
        )
        return design

    def _paper(self, problem: Problem, numbers: dict[str, float]) -> Design:
        """Laplace noise L radius sqrt(8 T log(1/delta)) / (n epsilon) on <atom, gradient>, L the Lipschitz constant.

        T = (curvature n epsilon / (L radius))^(2/3), the curvature 4 radius^2 kappa of the ball.
        """
        radius, loss = numbers["radius"], problem_loss(problem)
        lipschitz = loss.lipschitz() if loss.kind == "classification" else 1.0 + radius
        curvature = 4 * radius**2 * loss.curvature_bound
        printed = math.ceil((curvature * problem.records * problem.epsilon / (lipschitz * radius)) ** (2 / 3))
        rounds = option(problem, "rounds", max(printed, 1), low=1, whole=True)
        numbers |= {"slope_bound": lipschitz, "reach": 0.0}
        query = AtomScores(draft(problem, numbers, "entries"))
        scale = math.sqrt(8 * rounds * math.log(1 / problem.delta)) / problem.epsilon
        release = Release.of(query, 0, rounds, scale, grid_step(query, scale), mechanism="noisy-max")
        return Design(rounds, numbers, (release,), claimed_epsilon=problem.epsilon, layout="entries")

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """The scores of the atoms."""
        return {"atom": AtomScores(plan)}

    def coordinate(self, plan: Plan) -> Coordination:
        """Choose, move, and once more."""
        atoms, path = np.zeros(plan.rounds, dtype=np.int64), Path(plan)
        for t in range(plan.rounds):
            (code,) = (yield Ask("atom", {"atoms": atoms[:t]})).values()
            atoms[t] = int(code[0])
            path.move(int(atoms[t]))
        return Solution(path.point.dense(plan.dimension))

    def remember(self, plan: Plan, block: Block) -> Gradient:
        """The gradient at the last point."""
        return Gradient(plan, block)

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Any,
    ) -> Released:
        """The choice of an atom."""
        door = gate.noisy_max if plan.calibration == "paper" else gate.select_signed
        return door(query, round_, block, arrays["atoms"], memory)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """The atoms so far say which point the scores are of."""
        atoms = arrays.get("atoms")
        usable = atoms is not None and atoms.dtype == np.int64 and atoms.shape == (round_,)
        if atoms is not None and usable and bool(np.all((atoms >= -plan.dimension) & (atoms <= plan.dimension))):
            return None
        return f"query {query!r} in round {round_} needs the {round_} atoms chosen before it, as whole numbers."

    def check_samplers(self, plan: Plan, relation: Relation, delta: float, epsilon: float = 0.0) -> None:
        """The Gumbel variables of all choices."""
        if plan.private and plan.calibration == "tight":
            check_choices(plan, self.events(plan, relation, plan.parties[0][0]), relation, delta, epsilon)

    def conversation(self, plan: Plan) -> Iterable[tuple[Ask, int]]:
        """A message has 8 bytes more than the one before: two from the two ends are as long as any other two."""
        pairs, left = divmod(plan.rounds, 2)
        lengths = ((0, pairs), (plan.rounds - 1, pairs), (plan.rounds // 2, left))
        return [(Ask("atom", {"atoms": np.zeros(length, dtype=np.int64)}), count) for length, count in lengths]


class AtomScores:
    """-sum_i r_i x_ij / G_t for every column j: the scores of the atoms +e_j; those of -e_j are the negatives.

    Guarantee: |r_i| <= G_t and |x_ij| <= 1, so zero-out moves each by at most 1, replace-one by 2. Sums are exact.
    """

    name = "atom"
    weights = 1.0
    entries = 1.0
    stays = False

    def __init__(self, plan: Plan) -> None:
        if not SMALLEST <= plan["slope_bound"] <= LARGEST or not SMALLEST <= plan["radius"] <= LARGEST:
            raise InputError("slope_bound and radius must be positive finite numbers.")
        if not 0.0 <= plan["reach"] <= LARGEST or plan.layout != "entries":
            raise InputError(f"reach={plan['reach']!r} must be a finite number from 0, and the layout 'entries'.")
        if any(release.first + release.count > plan.rounds for release in plan.releases):
            raise InputError(f"the plan has {plan.rounds} rounds and releases atoms after them.")

    def sensitivity(self, relation: Relation) -> float:
        """1, or 2."""
        return (2.0 if relation == "replace-one" else 1.0) * ROOM

    def value(self, block: Block, *arguments: Any) -> Array:
        """From the gradient that the holder keeps."""
        atoms, memory = arguments
        gradient, bound = memory.follow(block, atoms)
        return np.asarray(gradient / -bound)


class Path:
    """The points that atoms lead to, the same wherever they are followed."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.point, self.round = plan, Iterate(plan["radius"]), 0
        self._coins = public_coin(plan, "exchange")

    def move(self, code: int) -> tuple[float, list[tuple[int, float]]]:
        """One atom further: what all values were multiplied by, then what was added where."""
        step, share = step_of(self.plan, self.round), float(self._coins.random())
        self.round += 1
        if self.plan.calibration == "paper":
            shrink, change = self.point.move(code, step)
            return shrink, [(abs(code) - 1, change)] if code else []
        return 1.0, self.point.exchange(code, step, share)


class Gradient:
    """sum_i r_i x_i at the point that the atoms lead to. Only records whose slope has changed are visited again.

    Slopes and entries lie on grids, so the sum of the changes is the sum of the slopes, bit for bit. A round changes
    the scores of the records that have one of a few features, and costs the entries of their rows.
    """

    def __init__(self, plan: Plan, block: Block) -> None:
        if block.layout != "entries" or block.chosen is not None:
            raise LeakError("the rows were not prepared for steps on the l1 ball.")
        self.plan, self.loss = plan, plan.scaled_loss
        self.by_row = block.rows.tocsr() if is_sparse(block.rows) else None
        self.bits = None if block.bits is None else block.bits - 1  # a change is as large as two slopes
        self.limit = self._bound(plan["radius"])
        self.restart(block)

    def restart(self, block: Block) -> None:
        """At w = 0."""
        self.path = Path(self.plan)
        self.bound = self._bound(0.0)
        self.scores = np.zeros(len(block))
        self.slopes = self._slopes(self.scores, block.labels)
        self.sum = column_dots(block, self.slopes)
        self.atoms = np.zeros(0, dtype=np.int64)
        self.marks, self.touched = np.zeros(len(block), dtype=np.int8), np.zeros(len(block), dtype=np.int64)

    def follow(self, block: Block, atoms: Integers) -> tuple[Array, float]:
        """The gradient after these atoms and G_t, from where it stands if it stands on their way."""
        known = len(self.atoms)
        if known > len(atoms) or not np.array_equal(self.atoms, atoms[:known]):
            self.restart(block)
            known = 0
        for code in atoms[known:]:
            self._move(block, int(code))
        self.atoms = np.array(atoms, dtype=np.int64)
        return self.sum, self.bound

    def _move(self, block: Block, code: int) -> None:
        shrink, changes = self.path.move(code)
        if self.bound < self.limit:
            self.bound = max(self.bound, self._bound(self.path.point.norm))
        if shrink != 1.0:
            self.scores *= shrink
        if self.by_row is None:
            for place, change in changes:
                add_column(self.scores, block, place, change)
            self.slopes = self._slopes(self.scores, block.labels)
            self.sum = column_dots(block, self.slopes)
            return
        rows, matrix = block.rows, self.by_row
        places, factors = np.array([place for place, _ in changes], dtype=np.int64), np.array([c for _, c in changes])
        count = kernels.add_columns_sparse(
            rows.indptr, rows.indices, rows.data, places, factors, self.scores, self.marks, self.touched
        )
        touched = self.touched[:count] if shrink == 1.0 else np.arange(len(block))
        slopes = self._slopes(self.scores[touched], block.labels[touched])
        moved = slopes - self.slopes[touched]
        self.slopes[touched] = slopes
        kernels.add_rows_sparse(matrix.indptr, matrix.indices, matrix.data, touched, moved, self.sum)

    def _slopes(self, scores: Array, labels: Array) -> Array:
        """Cut to G_t; on one grid for all rounds, that of the largest G_t."""
        slopes = np.asarray(clipped_derivative(self.loss, self.limit, self.bits)(scores.copy(), labels))
        grid = 2.0 ** (0 if self.bits is None else self.bits - math.ceil(math.log2(self.limit)))
        bound = math.inf if self.bits is None else math.floor(self.bound * grid) / grid
        return np.clip(slopes, -bound, bound, out=slopes)

    def _bound(self, norm: float) -> float:
        """What bounds the slopes at a point of this l1 norm, which its scores do not exceed; as published, always L."""
        if self.plan.calibration == "paper":
            return self.plan["slope_bound"]
        norm = min(norm, self.plan["radius"])
        if self.loss.name == "logistic":
            natural = 1.0 / (1.0 + math.exp(-norm))
        else:
            natural = self.loss.lipschitz() if self.loss.kind == "classification" else 1.0 + norm
        return float(min(natural * ROOM, self.plan["slope_bound"]))


def step_of(plan: Plan, t: int) -> float:
    """a_t."""
    if plan.calibration == "paper":
        return 2.0 / (t + 2.0)
    return min(plan["reach"] * 2.0 * (plan.rounds - t) / (plan.rounds * (plan.rounds + 1.0)), 1.0)


def default_rounds(problem: Problem, numbers: Mapping[str, float]) -> int:
    """T = c sqrt(kappa radius N mu / (G log 2d)), mu halved for replace-one, from 3 to MOST_DEFAULT.

    Chosen on twelve synthetic problems and a9a; half or twice as many lose little.
    """
    mu = math.sqrt(2 * rho_for(problem.epsilon, problem.delta)) / (2.0 if problem.relation == "replace-one" else 1.0)
    loss = problem_loss(problem)
    constant = 1.1 if loss.kind == "regression" else 0.8
    signal = loss.curvature_bound * numbers["radius"] * problem.records * min(mu, 1e100)
    rounds = constant * math.sqrt(signal / (numbers["slope_bound"] * math.log(2 * problem.dimension)))
    return round(min(max(rounds, 3.0), MOST_DEFAULT))


class FrankWolfe(Family):
    """Frank-Wolfe on the l1 ball: each form of it, with its paper, is a class of its own.

    Central: `CentralFrankWolfe`. By columns: `SketchedFrankWolfe`, as published `PublishedFrankWolfe`. Without privacy:
    `DistributedFrankWolfe`.
    """

    name: ClassVar[str] = BallAlgorithm.name
    title: ClassVar[str] = "Frank-Wolfe on the l1 ball, one signed feature a round"
    splits = ("central", "columns")
    needs_smooth: ClassVar[bool] = True
    has_paper: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = (
        "rounds",
        "slope_bound",
        "choice_share",
        "cap",
        "sketch",
        "sketch_size",
        "candidates",
    )

    def form(self, about: Plan | Problem, *, private: bool) -> Algorithm:
        """The form that serves a plan or a problem."""
        if not private:
            return DistributedFrankWolfe()
        if about.split == "central":
            return CentralFrankWolfe()
        return PublishedFrankWolfe() if about.calibration == "paper" else SketchedFrankWolfe()
