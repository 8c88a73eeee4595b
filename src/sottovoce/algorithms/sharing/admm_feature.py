"""ADMM sharing that protects a feature and no person: what the published guarantee is about, made to hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    draft,
    option,
    problem_loss,
    slope_bound,
)
from sottovoce.algorithms.frank_wolfe.atoms import column_dots
from sottovoce.algorithms.sharing.parts import PartQuery, usable
from sottovoce.algorithms.sharing.updates import nearest
from sottovoce.data.block import Block, Layout, toward_zero
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Part, Plan, Release, Split
from sottovoce.privacy.accounting import SAMPLER_SHARE, Event, Relation, Unbounded, epsilon_of

Array = NDArray[np.float64]

ROUNDS = 5
SMALL = 1e-30
RHO = 0.2  # of the loss's curvature
ROUNDING = 1.0 + 2.0**-16  # in the sensitivity, for the floating point of the solution
CONDITION = 2.0**32  # d^2 (1 + A^2 / k) at most: so far that room suffices


class FeatureSharing(Algorithm):
    """x_m = argmin (lam/2) |x|^2 + <y, D_m x> + (rho/2) |D_m x + c_m|^2; the message D_m x_m has noise on all N scores.

    c_m = (the other parties' messages) - z; z, y and the labels are public. With k = lam / rho and r = c_m + y / rho,
    cut to |r| <= G sqrt(N) / rho, the message is -K (K + k)^-1 r, K = D_m D_m'. One column a of D_m, |a| <= A, that is
    taken out or replaced moves it by at most t |r|, t = A^2 / (A^2 + k) (`proof.md`).

    Guarantee: mu = sqrt(T) t G sqrt(N) / (rho std) for the columns of each party; a column is with one party, so the
    parties' costs do not add. Nothing is promised to a person, nor for labels. The parties keep their weights: a model
    tells of its columns, and so does a prediction, to whom it is made for.
    Edges: needs public labels, the squared norm with alpha > 0, and bounds of columns, not of rows: what is cut by a
    row norm depends on every column. For the same reason it is public which records have entries that are no numbers:
    they are null rows. t is small, and the noise useful, only where N alpha is well above rho A^2. The intercept is
    penalised like the other weights.
    """

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "ADMM sharing with noise for one feature of a party"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    options: ClassVar[tuple[str, ...]] = ("rounds", "rho", "slope_bound", "column_norm", "unit", "models")
    kinds: ClassVar[Mapping[str, str]] = {"scores": "scores"}
    resumes: ClassVar[bool] = False
    layout: ClassVar[Layout] = "entries"
    samples: ClassVar[bool] = False

    def design(self, problem: Problem) -> Design:
        """A few rounds; the noise is that of the budget."""
        if problem.labels != "public":
            raise InputError(
                f"labels={problem.labels!r}: unit='feature' protects columns and no labels; it needs labels='public'."
            )
        if problem.bounds.row_norm is not None:
            raise InputError(
                f"row_norm={problem.bounds.row_norm!r}: unit='feature' bounds each column on its own; declare "
                "entry_bound or feature_ranges instead."
            )
        if problem.options.get("models") == "shared":
            raise InputError(
                "models='shared': unit='feature' protects no weights, so the parties keep them; leave it out."
            )
        plan = draft(problem, layout="entries")
        loss, ridge = problem_loss(problem), plan.scaled_regulariser.ridge
        if not ridge:
            raise InputError(
                f"penalty={problem.regulariser.name!r}: unit='feature' needs the squared norm with alpha > 0; its "
                "noise is in proportion to A^2 / (A^2 + N alpha / rho), A the norm of a column."
            )
        rho = option(problem, "rho", RHO * min(loss.curvature_bound, 1.0), low=1e-9, high=1e9)
        largest = math.sqrt(problem.records)
        norm = option(problem, "column_norm", largest * plan.unit, low=1e-9) / plan.unit
        numbers = {
            "rho": rho,
            "ridge": problem.records * ridge,
            "column_norm": min(norm, largest),
            "slope_bound": slope_bound(problem),
        }
        check_numbers(loss, numbers, max(problem.columns) + 1)
        rounds = option(problem, "rounds", ROUNDS, low=1, whole=True)
        made = draft(problem, numbers, "entries")
        scores = LocalScores(made, made.part(made.parties[0][0]))
        release = Release.at_mu(scores, 0, rounds, problem.mu, problem.relation)
        return Design(rounds, numbers, (release,), layout="entries", protects="feature")

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.holder_name)

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:
        """Scores alone."""
        if plan.labels != "public" or plan.bounds.row_norm is not None:
            raise InputError("unit='feature' needs labels='public' and bounds of columns, not of rows.")
        check_numbers(plan.scaled_loss, plan.number_of, max(plan.columns) + 1)
        return {"scores": LocalScores(plan, plan.part(party))}

    def coordinate(self, plan: Plan) -> Coordination:
        """Messages of all parties to all parties; nobody else learns the weights."""
        said = {name: np.zeros(plan.records) for name, _ in plan.parties}
        scale = LocalScores(plan, plan.part(plan.parties[0][0])).scale
        for t in range(plan.rounds):
            total = sum(said.values(), np.zeros(plan.records))
            others = {name: {"others": total - own} for name, own in said.items()}
            found = yield Ask("scores", {"sum": total}, round=t, each=others)
            said = {name: scale * values for name, values in found.items()}
        return Solution(np.zeros(0))

    def remember(self, plan: Plan, block: Block) -> Local:
        """z, y and the party's columns, cut to the norm."""
        return Local(plan, block)

    def kept_weights(self, plan: Plan, memory: Any) -> Array:  # noqa: ARG002
        """The weights of the last round."""
        return np.asarray(memory.shrink * memory.weights)

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
        """Update z and y from the sum, then the party's own scores."""
        del plan
        return gate.gaussian(query, round_, block, arrays["sum"], arrays["others"], memory)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """Two numbers of each record."""
        if all(usable(arrays, name, plan.records) for name in ("sum", "others")):
            return None
        return f"query {query!r} in round {round_} needs two float64 numbers of each record, 'sum' and 'others'."

    def example(self, plan: Plan, query: str) -> Ask:
        """What an ask carries."""
        return Ask(query, {"sum": np.zeros(plan.records), "others": np.zeros(plan.records)})

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """Of a record: nothing limits it."""
        return (Unbounded(reason="a feature of a party is protected, and no record"),)

    def epsilons(self, plan: Plan, relation: Relation) -> dict[str, float]:
        """Of a feature."""
        event = plan.release("scores").event(relation)
        epsilon = epsilon_of((event,), plan.delta * (1 - SAMPLER_SHARE), relation)
        return {"world": epsilon, "coordinator": epsilon, "parties": epsilon}


class Local:
    """What a party keeps: z and y, by how much its columns are shortened, the eigenvectors of D'D, and its weights.

    The columns are shortened after all sums over records, which so are exact, as the sum that is shortened is.
    """

    def __init__(self, plan: Plan, block: Block) -> None:
        square = block.gram()
        self.shrink = np.minimum(1.0, plan["column_norm"] / np.sqrt(np.maximum(np.diag(square), 1e-300)))
        self.values, self.vectors = np.linalg.eigh(square * np.outer(self.shrink, self.shrink))
        self.copies, self.duals = np.zeros(len(block)), np.zeros(len(block))
        self.weights = np.zeros(block.dimension)


class LocalScores(PartQuery):
    """D_m x_m of the argmin, in units of its sensitivity.

    Guarantee: a column of norm A at most that is taken out or replaced moves it by at most 1, whatever the other
    columns are: every entry may move. The relation says nothing here: both count alike.
    Edges: floating point is covered while d^2 (1 + A^2 / k) is at most CONDITION.
    """

    name = "scores"

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, part)
        self.length, self.entries = plan.records, float(plan.records)
        stiffness = plan["ridge"] / plan["rho"]
        self.reach = plan["slope_bound"] * math.sqrt(plan.records) / plan["rho"]
        self.scale = plan["column_norm"] ** 2 / (plan["column_norm"] ** 2 + stiffness) * self.reach
        self.stiffness, self.loss = stiffness, plan.scaled_loss
        self.bits = 52 - part.preparation.bits - math.ceil(math.log2(plan.records) / 2)  # sums below sqrt(N): exact

    def sensitivity(self, relation: Relation) -> float:  # noqa: ARG002
        """1."""
        return ROUNDING

    def value(self, block: Block, *arguments: Any) -> Array:
        """z, y, x_m and its scores."""
        total, others, state = arguments
        rho = self.plan["rho"]
        points = total + state.duals / rho
        state.copies = nearest(self.loss, points, block.labels, rho, state.copies)
        state.duals = rho * (points - state.copies)
        pull = others - state.copies + state.duals / rho
        pull = np.nan_to_num(pull, copy=False, nan=0.0, posinf=0.0, neginf=0.0)  # else it would show where x is not 0
        pull /= max(float(np.linalg.norm(pull)), self.reach)
        turned = state.vectors.T @ (state.shrink * column_dots(block, toward_zero(pull, self.bits)))
        state.weights = -self.reach * (state.vectors @ (turned / (np.maximum(state.values, 0.0) + self.stiffness)))
        return np.asarray(block.rows @ (state.shrink * state.weights), dtype=np.float64) / self.scale


def check_numbers(loss: Loss, numbers: Mapping[str, float], columns: int) -> None:
    """Refuse numbers for which the sensitivity is not proved."""
    names = ("rho", "ridge", "column_norm", "slope_bound")
    if not all(SMALL <= numbers[name] <= 1 / SMALL for name in names):
        raise InputError(
            f"rho, N alpha, column_norm and slope_bound must be from {SMALL:g} to {1 / SMALL:g} for unit='feature'; "
            "take a larger or a smaller alpha."
        )
    steep = numbers["column_norm"] ** 2 * numbers["rho"] / numbers["ridge"]
    if not columns**2 * (1 + steep) <= CONDITION:
        raise InputError(
            f"alpha is too small for unit='feature': d^2 (1 + rho A^2 / (N alpha)) = {columns**2 * (1 + steep):.3g} "
            f"must be at most {CONDITION:.3g}; take a larger alpha, a smaller rho or a smaller column_norm."
        )
    if not loss.convex and not numbers["rho"] > loss.curvature_bound:
        raise InputError(
            f"rho={numbers['rho']:.4g} must be above {loss.curvature_bound:.4g}, the curvature of the loss."
        )
