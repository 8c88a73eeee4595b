"""`admm` with unit="feature": what the published guarantee is about, made to hold. It protects no person."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sottovoce.algorithms.base import Z_UPDATE, Algorithm, Coordination, Need, Solution, answers, given, slope_bound
from sottovoce.algorithms.sharing.admm_exact import NoLimit, check_rho, curvature
from sottovoce.data.block import Block, Layout, toward_zero
from sottovoce.errors import InputError
from sottovoce.gate.query import Array, Query, Reals, Round
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.privacy.events import Relation
from sottovoce.privacy.guarantee import Profile, profile_of
from sottovoce.queries.parts import PartQuery
from sottovoce.queries.pricing import Form, Pricing
from sottovoce.solvers import ADMM

ROUNDS = 5
SMALL = 1e-30
RHO = 0.2  # of the loss's curvature
ROUNDING = 1.0 + 2.0**-16  # in the sensitivity, for the floating point of the solution
CONDITION = 2.0**32  # d^2 (1 + A^2 / k) at most: so far that room suffices


class FeatureNumbers(Numbers):
    """rho, N alpha, A and G. `LocalScores` refuses those for which the sensitivity is not proved."""

    rho: float
    ridge: float
    column_norm: float
    slope_bound: float


class FeaturePricing(NoLimit):
    """A column is with one party, so the parties' costs do not add. Of a record nothing is limited."""

    def profiles(self, form: Form, plan: Plan, relation: Relation) -> dict[str, Profile]:
        """Of a feature: what one party's messages cost, against everybody alike."""
        del form
        found = profile_of((plan.release("scores").event(relation),), relation)
        return {"world": found, "coordinator": found, "parties": found}


class FeatureADMM(Algorithm):
    """x_m = argmin (lam/2) |x|^2 + <y, D_m x> + (rho/2) |D_m x + c_m|^2; the message D_m x_m has noise on all N scores.

    c_m = (the other parties' messages) - z; z, y and the labels are public. With k = lam / rho and r = c_m + y / rho,
    clipped to |r| <= G sqrt(N) / rho, the message is -K (K + k)^-1 r, K = D_m D_m'. One column a of D_m, |a| <= A, that
    is taken out or replaced moves it by at most t |r|, t = A^2 / (A^2 + k) (`proof.md`).

    Guarantee: mu = sqrt(T) t G sqrt(N) / (rho std) for the columns of each party; a column is with one party, so the
    parties' costs do not add. Nothing is promised to a person, nor for labels. The parties keep their weights: a model
    tells of its columns, and so does a prediction, to whom it is made for.
    Edges: needs public labels, the squared norm with alpha > 0, and bounds of columns, not of rows: what is cut by a
    row norm depends on every column. For the same reason it is public which records have entries that are no numbers:
    they are null rows. t is small, and the noise useful, only where N alpha is well above rho A^2. The intercept is
    penalised like the other weights.
    """

    name: ClassVar[str] = "admm"
    form: ClassVar[str] = "feature"
    title: ClassVar[str] = "ADMM sharing with noise for one feature of a party"
    splits = ("columns",)
    needs: ClassVar[tuple[Need, ...]] = (Z_UPDATE,)
    when: ClassVar[Mapping[str, str]] = {"unit": "feature"}
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "rho", "slope_bound", "column_norm", "unit", "models")
    layout: ClassVar[Layout] = "entries"
    lasts: ClassVar[tuple[str, ...]] = ("copies", "duals", "weights")
    numbers: ClassVar[type[Numbers]] = FeatureNumbers
    pricing: ClassVar[Pricing] = FeaturePricing("a feature of a party is protected, and no record")

    def design(self, problem: Problem, options: ADMM) -> Design:
        check_problem(problem)
        if options.models == "shared":
            raise InputError(
                "models='shared': unit='feature' protects no weights, so the parties keep them; leave it out."
            )
        largest = math.sqrt(problem.records)
        norm = given(options.column_norm, largest * problem.preparation.unit) / problem.preparation.unit
        numbers = FeatureNumbers(
            rho=given(options.rho, RHO * curvature(problem.scaled_loss)),
            ridge=problem.records * (problem.scaled_regulariser.ridge or 0.0),
            column_norm=min(norm, largest),
            slope_bound=slope_bound(problem, options),
        )
        rounds, scores = given(options.rounds, ROUNDS), LocalScores(problem, problem.names[0], numbers)
        release = Release.at_mu(scores, 0, rounds, problem.mu, problem.relation)
        return Design(rounds=rounds, numbers=numbers, releases=(release,), protects="feature", models="kept")

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        check_problem(plan)
        return (LocalScores(plan, party, plan.numbers),)

    def remember(self, plan: Plan, rows: Block) -> FeatureState:
        return FeatureState(rows, plan.numbers.column_norm)

    def own_weights(self, memory: Any) -> Array:
        return np.asarray(memory.shrink * memory.weights)

    def coordinate(self, plan: Plan) -> Coordination:
        """Messages of all parties to all parties; nobody else learns the weights."""
        scores = {name: np.zeros(plan.records) for name in plan.names}
        scale = LocalScores(plan, plan.names[0], plan.numbers).scale
        for _ in range(plan.rounds):
            everyone = sum(scores.values(), np.zeros(plan.records))
            others = {name: {"others": everyone - own} for name, own in scores.items()}
            messages = yield from answers("scores", sum=everyone, each=others)  # after z, y and x_m
            scores = {name: scale * values for name, values in messages.items()}
        return Solution(np.zeros(0))


class FeatureState:
    """What a party keeps: z and y, by how much its columns are shortened, the eigenvectors of D'D, and its weights.

    The columns are shortened after all sums over records, which so are exact, as the sum that is shortened is.
    """

    def __init__(self, rows: Block, column_norm: float) -> None:
        square = rows.gram()
        self.shrink = np.minimum(1.0, column_norm / np.sqrt(np.maximum(np.diag(square), 1e-300)))
        self.values, self.vectors = np.linalg.eigh(square * np.outer(self.shrink, self.shrink))
        self.copies, self.duals = np.zeros(len(rows)), np.zeros(len(rows))
        self.weights = np.zeros(rows.dimension)


class LocalScores(PartQuery):
    """D_m x_m of the argmin, in units of its sensitivity.

    Guarantee: a column of norm A at most that is taken out or replaced moves it by at most 1, whatever the other
    columns are: every entry may move. The relation says nothing here: both count alike.
    Edges: floating point is covered while d^2 (1 + A^2 / k) is at most CONDITION; else the query is refused.
    """

    name = "scores"
    title: ClassVar[str] = "scores of all people"
    each_person: ClassVar[bool] = True
    bound = ROUNDING
    replacement: ClassVar[float | None] = 1.0  # taken out or replaced, Lemma 3 has one bound

    def __init__(self, problem: Problem, party: str, numbers: Numbers) -> None:
        check_numbers(problem, numbers)
        super().__init__(problem, party)
        self.length, self.rounding_entries = problem.records, float(problem.records)
        self.rho, self.stiffness = numbers.rho, numbers.ridge / numbers.rho
        self.largest = numbers.slope_bound * math.sqrt(problem.records) / numbers.rho
        self.scale = numbers.column_norm**2 / (numbers.column_norm**2 + self.stiffness) * self.largest
        bits = problem.part(party).preparation.bits
        self.bits = 52 - bits - math.ceil(math.log2(problem.records) / 2)  # sums below sqrt(N): exact
        people = Reals((problem.records,))
        self.takes = {"sum": people, "others": people}  # of all messages, and of those of the other parties

    def value(self, round: Round) -> Array:
        state: FeatureState = round.memory
        points = round.told["sum"] + state.duals / self.rho
        state.copies = round.plan.scaled_loss.proximal(points, round.rows.labels, self.rho, state.copies)  # z
        state.duals = self.rho * (points - state.copies)  # y
        force = round.told["others"] - state.copies + state.duals / self.rho
        force = np.nan_to_num(force, copy=False, nan=0.0, posinf=0.0, neginf=0.0)  # else it would show where x is not 0
        force /= max(float(np.linalg.norm(force)), self.largest)
        turned = state.vectors.T @ (state.shrink * round.rows.column_dots(toward_zero(force, self.bits)))
        state.weights = -self.largest * (state.vectors @ (turned / (np.maximum(state.values, 0.0) + self.stiffness)))
        return np.asarray(round.rows.products.scores(state.shrink * state.weights) / self.scale)


def check_problem(problem: Problem) -> None:
    """Refuse what lets a column move more than its own part of a message."""
    if problem.labels != "public":
        raise InputError(
            f"labels={problem.labels!r}: unit='feature' protects columns and no labels; it needs labels='public'."
        )
    if problem.bounds.row_norm is not None:
        raise InputError(
            f"row_norm={problem.bounds.row_norm!r}: unit='feature' bounds each column on its own; declare "
            "entry_bound or feature_ranges instead."
        )
    if not problem.scaled_regulariser.ridge:
        raise InputError(
            f"penalty={problem.regulariser.name!r}: unit='feature' needs the squared norm with alpha > 0; its "
            "noise is in proportion to A^2 / (A^2 + N alpha / rho), A the norm of a column."
        )


def check_numbers(problem: Problem, numbers: Numbers) -> None:
    """Refuse numbers for which the sensitivity is not proved."""
    if not all(SMALL <= value <= 1 / SMALL for value in numbers.fields().values()):
        raise InputError(
            f"rho, N alpha, column_norm and slope_bound must be from {SMALL:g} to {1 / SMALL:g} for unit='feature'; "
            "take a larger or a smaller alpha."
        )
    columns = max(problem.columns) + 1
    condition = columns**2 * (1 + numbers.column_norm**2 * numbers.rho / numbers.ridge)
    if not condition <= CONDITION:
        raise InputError(
            f"alpha is too small for unit='feature': d^2 (1 + rho A^2 / (N alpha)) = {condition:.3g} "
            f"must be at most {CONDITION:.3g}; take a larger alpha, a smaller rho or a smaller column_norm."
        )
    check_rho(problem.scaled_loss, numbers.rho)
