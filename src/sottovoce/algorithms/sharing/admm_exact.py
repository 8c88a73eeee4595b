"""`admm` without privacy: ADMM sharing over columns (Hu et al. 2019).

Party m has the columns D_m and their weights x_m. With the scores S = sum_m D_m x_m, a copy z of them and duals y,

    min sum_i l(z_i, label_i) + N sum_m pen_m(x_m)   such that   S = z

is solved by turns: z and then y at the party that has the labels, all x_m at once at their parties. Of z and y a party
needs no more than v = y + rho (S - z):

    x_m <- argmin_u N pen_m(u) + <v, D_m (u - x_m)> + (rho (1 + p) / 2) |D_m (u - x_m)|^2.

p = 0 is the published update. There all parties move at once by what would be right for one of them, and M similar ones
overshoot M times. The term with p, a proximal one, restrains them: at p = M - 1, M |D_m u_m|^2 summed over m is at
least |sum_m D_m u_m|^2, and the method is ADMM with two blocks in a metric, which converges for every rho and every
relaxation below 2 if the loss is convex.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import (
    Z_UPDATE,
    Algorithm,
    Array,
    Coordination,
    Need,
    Solution,
    answer,
    answers,
    given,
    how_far,
    total,
)
from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST
from sottovoce.data.matrix import Products
from sottovoce.errors import InputError
from sottovoce.gate.query import Plain, Query, Reals, Round, label_party
from sottovoce.losses import Loss
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import PenalisedStep
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.plan import ModelsOf
from sottovoce.privacy.events import Event, Unbounded
from sottovoce.queries.pricing import Pricing
from sottovoce.solvers import ADMM

GRAM = 2000  # columns up to which a party makes its Gram matrix; beyond, it works with products
MOMENTUM = 0.9
ANY = (-math.inf, math.inf)  # limits of what is told without privacy: that it is a number


def square_of(products: Products) -> Any:
    """D'D: a matrix up to GRAM columns; beyond, the products themselves."""
    return products.square(GRAM)


def momentum_step(weights: Array, before: Array, move: Array) -> Array:
    """A step, and a share of the last one. Where it leads nowhere, there was nothing to move: so a prox may follow."""
    return np.asarray(weights - move + MOMENTUM * (weights - before))


def curvature(loss: Loss) -> float:
    """The curvature that steps reckon with: the loss's, at most 1."""
    return min(loss.curvature_bound, 1.0)


def join_weights(plan: Plan, values: Mapping[str, Array]) -> Array:
    """All weights, of each party those of its own columns; the intercept is with the constant column."""
    weights = np.zeros(plan.dimension)
    for name, own in values.items():
        part = plan.part(name)
        weights[part.start : part.stop] = own[: part.stop - part.start]
        if part.constant:
            weights[plan.features] = own[-1]
    return weights


def check_exact(problem: Problem, solver: str) -> None:
    """Refuse what a run that tells everybody the slopes of all records cannot have."""
    if problem.labels == "held":
        raise InputError(
            f"labels='held': without privacy solver={solver!r} tells every party the slope of each record's loss, "
            "whose sign is the label; choose a finite epsilon, or labels='shared' if all parties may know them."
        )
    check_one_set(problem, solver)


def check_one_set(problem: Problem, solver: str) -> None:
    """Refuse a product of sets, which has no part for a party."""
    if problem.regulariser.name == "product":
        raise InputError(
            f"penalty='product': solver={solver!r} bounds each party's weights by one set; choose a ball or a box."
        )


def check_rho(loss: Loss, rho: float) -> None:
    """Refuse a rho for which the minimum over z need not be one."""
    if not loss.convex and not rho > loss.curvature_bound:
        raise InputError(
            f"rho={rho:.4g} must be above {loss.curvature_bound:.4g}, the curvature of the loss {loss.name!r}, which "
            "is not convex; leave it out for the default rule."
        )


ROUNDS = 2000
TOLERANCE = 1e-8  # of scores and slopes, root mean square
CHECK = 10  # epochs from one look at the residuals to the next
PATIENCE = 50  # looks without a fall of the Lyapunov function by a hundredth
RELAXATION = 1.6
MARGIN, RESIDUAL, NOT_CONVEX = 0.2, 0.5, 4.0  # what rho is of the loss's curvature


class ADMMNumbers(Numbers):
    """rho, p, the relaxation, and what both residuals are to come down to."""

    rho: float = Field(gt=0)
    proximal: float = Field(ge=0)
    relaxation: float = Field(gt=0, lt=2)
    tolerance: float = Field(ge=0)

    @property
    def factor(self) -> float:
        """What a squared step counts in an x-update, rho (1 + p)."""
        return self.rho * (1 + self.proximal)


class ADMMState:
    """What a party keeps from round to round: its part of the model and, where the labels are, z and y."""

    def __init__(self, rows: Block) -> None:
        self.products = rows.products
        self.update: PenalisedStep | None = None  # made for the first round
        self.weights = self.weights_before = self.gradient = np.zeros(rows.dimension)
        self.told = self.copies = self.carried = np.zeros(len(rows))  # S, z and y / rho + (1 - relaxation) z


class ExactADMM(Algorithm):
    """An epoch: the party with the labels updates z and y and says v = y + rho (S - z); every party says D_m x_m.

    The updates are those above, with S replaced by relaxation S + (1 - relaxation) z in those of z and y. One
    vector of N numbers goes to every party and one comes back from each. rho=1, proximal=0, relaxation=1, tolerance=0
    is the published method; its first epoch, which leaves x at 0 or where a box is nearest to it, is not run.

    It ends when both residuals, root mean squares over the records, are at most `tolerance`: |S - z| (scores) and
    rho (1 + p) |D_m x_m - D_m x_m before| over all parties (slopes). At 0 each x_m is optimal for the true slopes. It
    also ends when the Lyapunov function of the paper, sum_m |x_m - prox(x_m - D_m'v)|^2 + (1 + rho^2) |S - z|^2, has
    not fallen for long: the published update of many similar parties stalls so. The last values are the certificates.

    Guarantee: none; a party answers only where its holder allows runs without privacy. Labels that one party alone
    knows are refused: y_i = l'(z_i, label_i) is told to all, and its sign is the label.
    Edges: a ball or a box bounds the weights of each party on its own; a record that is unusable at one party counts
    there as zeros. With models="kept" no party says its weights. For a regression the tolerance is relative to the
    first slopes, so the units of the label decide nothing; certificates are in units of labels scaled to [-1, 1].
    """

    name: ClassVar[str] = "admm"
    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "ADMM sharing over columns, without privacy"
    splits = ("columns",)
    needs: ClassVar[tuple[Need, ...]] = (Z_UPDATE,)
    private: ClassVar[bool | None] = False
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "rho", "proximal", "relaxation", "tolerance", "models")
    layout: ClassVar[Layout] = "entries"
    lasts: ClassVar[tuple[str, ...]] = ("weights", "weights_before", "gradient", "told", "copies", "carried")
    numbers: ClassVar[type[Numbers]] = ADMMNumbers
    state: ClassVar[type[ADMMState]] = ADMMState

    def design(self, problem: Problem, options: ADMM) -> Design:
        """The rule of `defaults`, unless options say otherwise."""
        check_exact(problem, self.name)
        loss = problem.scaled_loss
        rho, proximal, relaxation = defaults(loss, len(problem.parties))
        numbers = ADMMNumbers(
            rho=given(options.rho, rho),
            proximal=given(options.proximal, proximal),
            relaxation=given(options.relaxation, relaxation),
            tolerance=given(options.tolerance, TOLERANCE),
        )
        check_rho(loss, numbers.rho)
        return admm_design(problem, numbers, given(options.rounds, ROUNDS), options.models or "shared")

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        return admm_queries(plan, party, plan.numbers, plan.models)

    def remember(self, _plan: Plan, rows: Block) -> ADMMState:
        return self.state(rows)

    def own_weights(self, memory: Any) -> Array:
        return np.asarray(memory.weights)

    def coordinate(self, plan: Plan) -> Coordination:
        """Epochs until both residuals are small, or the Lyapunov function falls no more; the first x-update leaves 0.

        z_i <- argmin l_i(z) - y_i z + (rho/2) (S_i - z)^2,   y <- y + rho (S - z)       where the labels are
        x_m <- argmin N pen(x) + <v, D_m x> + (rho (1 + p) / 2) |D_m (x - x_m)|^2        at all parties at once
        """
        scores, ending = np.zeros(plan.records), Ending(plan)
        for t in range(plan.rounds):
            dual = yield from answer("dual", scores=scores)  # v = y + rho (S - z), after z and y
            scores = yield from total("scores", dual=dual)  # S = sum_m D_m x_m, after all x_m
            ending.check(t, scores, dual)
            if ending.looks(t) and ending.reached(t, (yield from total("residuals", round=t))):
                break
        weights = np.zeros(0)
        if plan.models == "shared":
            weights = join_weights(plan, (yield from answers("weights")))
        return Solution(weights, ending.certificates, unfinished=ending.far)


class Ending:
    """When the epochs end, by what parties say of their residuals, and how far from the solution that is."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.certificates, self.far = plan, dict[str, float](), ""
        self._unit, self._least, self._waited = 1.0, math.inf, 0

    def check(self, t: int, scores: Array, dual: Array) -> None:
        """Refuse scores that diverge. The first slopes are the unit of the residuals of a regression."""
        numbers, plan = self.plan.numbers, self.plan
        if t == 0 and plan.classes is None and not plan.private:
            self._unit = math.sqrt(float(dual @ dual) / plan.records) or 1.0
        if not max(scores.max(), -scores.min()) <= LARGEST:
            raise InputError(
                f"rho={numbers.rho:.4g}, proximal={numbers.proximal:.4g}, relaxation={numbers.relaxation:.4g}: the "
                f"scores diverge; leave proximal out, or take {len(plan.parties) - 1}, the parties less one."
            )

    def looks(self, t: int) -> bool:
        """Whether residuals are asked for after an epoch."""
        return t == self.plan.rounds - 1 or (self.plan.numbers.tolerance > 0.0 and t % CHECK == CHECK - 1)

    def reached(self, t: int, squares: Array) -> bool:
        """Whether it has come, by the sums of the parties' squared residuals."""
        records, numbers, tolerance = self.plan.records, self.plan.numbers, self.plan.numbers.tolerance
        steps, moves, apart = squares.tolist()
        residuals = {  # root mean squares over the records, and the Lyapunov function
            "primal_residual": math.sqrt(apart / records),
            "dual_residual": numbers.factor * math.sqrt(moves / records),
            "lyapunov": steps + (1 + numbers.rho**2) * apart,
        }
        fell = residuals["lyapunov"] < 0.99 * self._least
        self._least, self._waited = (residuals["lyapunov"], 0) if fell else (self._least, self._waited + 1)
        residual = max(residuals["primal_residual"], residuals["dual_residual"]) / self._unit
        self.certificates = residuals
        self.far = "" if tolerance == 0.0 else how_far(t + 1, residual, "the residual", max(tolerance, 1e-6))
        return self._waited >= PATIENCE or residual <= tolerance


def admm_design(problem: Problem, numbers: ADMMNumbers, rounds: int, models: ModelsOf) -> Design:
    """Every query once an epoch, and the weights once; nothing has noise."""
    queries = admm_queries(problem, problem.names[0], numbers, models)
    counts = (1 if query.name == "weights" else rounds for query in queries)
    releases = (Release.of(query, 0, count, 0.0, 1.0) for query, count in zip(queries, counts, strict=True))
    return Design(rounds=rounds, numbers=numbers, releases=tuple(releases), models=models)


def admm_queries(problem: Problem, party: str, numbers: Numbers, models: ModelsOf) -> tuple[Query, ...]:
    """The queries of a party; scores last, as they count the epochs."""
    weights = (FinalPartWeights(problem.part(party).preparation.dimension),) if models == "shared" else ()
    residuals = Residuals(problem.part_regulariser(party))
    return DualUpdate(problem, numbers), residuals, *weights, WeightUpdate(problem, numbers, party)


class DualUpdate(Plain):
    """The z-update and the dual update; it says v = y + rho (S - z).

    z minimises l(z) + (rho / 2) (z - t)^2 at t = relaxation S + (1 - relaxation) z + y / rho, and then y = rho (t - z).
    So the last two terms of the next t are t - relaxation z.
    """

    name = "dual"
    title: ClassVar[str] = "the slope of every person"
    each_person: ClassVar[bool] = True
    kind: ClassVar[str] = "slopes"
    answered_by = label_party

    limits: ClassVar[tuple[float, float]] = ANY

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        self.rho, self.relaxation, self.length = numbers.rho, numbers.relaxation, problem.records
        self.takes = {"scores": Reals((problem.records,), *ANY)}  # S

    def value(self, round: Round) -> Array:
        state: ADMMState = round.memory
        points = self.relaxation * round.told["scores"]
        points += state.carried
        state.told = round.told["scores"]
        state.copies = round.plan.scaled_loss.proximal(points, round.rows.labels, self.rho, state.copies)  # z
        state.carried = points - self.relaxation * state.copies  # y = rho (points - z)
        points -= state.copies
        points += state.told
        points -= state.copies
        points *= self.rho
        return np.asarray(points)


class WeightUpdate(Plain):
    """The x-update; it says D_m x_m."""

    name = "scores"
    title: ClassVar[str] = "the score of every person"
    each_person: ClassVar[bool] = True

    limits: ClassVar[tuple[float, float]] = ANY

    def __init__(self, problem: Problem, numbers: Numbers, party: str) -> None:
        self.regulariser, self.factor = problem.part_regulariser(party), numbers.factor
        self.length, self.takes = problem.records, {"dual": Reals((problem.records,), *ANY)}  # v

    def value(self, round: Round) -> Array:
        state: ADMMState = round.memory
        if state.update is None:
            square = square_of(round.rows.products)
            state.update = PenalisedStep(square, self.regulariser, round.plan.records, self.factor)
        state.weights_before = state.weights
        state.gradient = state.products.sums(round.told["dual"])
        state.weights = state.update(state.weights, state.gradient)  # x_m
        return np.asarray(state.products.scores(state.weights))


class Residuals(Plain):
    """|x_m - prox(x_m - D_m'v)|^2 before the last update, |D_m (x_m - x_m before)|^2 and, with labels, |S - z|^2."""

    name = "residuals"
    title: ClassVar[str] = "residuals"
    length = 3
    limits: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def __init__(self, regulariser: ScaledRegulariser) -> None:
        self.regulariser = regulariser

    def value(self, round: Round) -> Array:
        state: ADMMState = round.memory
        near = self.regulariser.prox(state.weights_before - state.gradient, float(round.plan.records))
        moved = state.products.scores(state.weights - state.weights_before)
        vectors = (state.weights_before - near, moved, state.told - state.copies)
        return np.array([float(vector @ vector) for vector in vectors])


class FinalPartWeights(Plain):
    """x_m."""

    name = "weights"
    title: ClassVar[str] = "the weights of a party"

    def __init__(self, dimension: int) -> None:
        self.length = dimension

    def value(self, round: Round) -> Array:
        """A copy, since the party goes on to change its own."""
        return np.array(round.memory.weights)


def defaults(loss: Loss, parties: int) -> tuple[float, float, float]:
    """(rho, p, relaxation): rho (1 + p) is a share of the loss's curvature, p = M - 1.

    A loss that is not convex has a rho above twice its curvature, as its convergence needs, and no relaxation.
    """
    if not loss.convex:
        return NOT_CONVEX * loss.curvature_bound, parties - 1.0, 1.0
    share = MARGIN if loss.kind == "classification" else RESIDUAL
    return share * curvature(loss) / parties, parties - 1.0, RELAXATION


class NoLimit(Pricing):
    """Nothing limits what a record pays, against the world and against everybody else."""

    def __init__(self, reason: str) -> None:
        self.price: tuple[Event, ...] = (Unbounded(reason=reason),)

    def events(self, *_: Any) -> tuple[Event, ...]:
        return self.price

    def world_events(self, *_: Any) -> tuple[Event, ...]:
        """Against whoever sees the model; as published, a record may change its noise's covariance without limit."""
        return self.price
