"""`evaluation`: one noisy release of cells of scores, or of residuals, from which all metrics are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Need, Solution, Weight, public_model, total
from sottovoce.algorithms.evaluation.nodes import REACH, TwoSides
from sottovoce.algorithms.evaluation.queries import ClassCells, ResidualCells, ScoreCells
from sottovoce.data.bounds import LARGEST, Bounds
from sottovoce.data.preparation import Preparation
from sottovoce.errors import RefusedError
from sottovoce.gate.query import Query, label_party
from sottovoce.plan.plan import Design, ModelsOf, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release

Side = Annotated[int, Field(ge=2, le=64)]
People = Literal["others", "same"]  # whether test people are others than those of the fit, as declared

FEW, MANY = 1_000, 10_000  # records in units of the noise: up to which 8 nodes, and 12, tell most; then 16
WIDE = 4.0  # scores up to which nodes go where nothing is known of their spread


@dataclass(frozen=True)
class Subject:
    """What is evaluated: weights on prepared rows, and mean and deviation of the training scores where known.

    Of several classes the weights have a row for each. By columns `scores` names the plan of the model, and the weights
    are those on the prepared scores (`score_recipe`), which the plan need not say.
    """

    weights: Array
    spread: tuple[float, float] | None = None
    people: People = "others"
    scores: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """What every plan says of it."""
        weights = () if self.scores else tuple(self.weights.ravel().tolist())
        return {"weights": weights, "people": self.people, "scores": self.scores}


class Evaluated(Numbers):
    """The model, public, and who the test people are.

    `scores` is the plan of a model over columns. There are no weights then: the rows of the holder of the labels are
    the scores that it received as the recipient of joint predictions, one number for each person. It alone answers.
    """

    weights: tuple[Weight, ...]
    people: People
    scores: str = Field(pattern="^([0-9a-f]{64})?$")


class EvaluatedClassesNumbers(Evaluated):
    """And the nodes of the scores."""

    low: float = Field(ge=-LARGEST, le=-1e-9, allow_inf_nan=False)
    high: float = Field(ge=1e-9, le=LARGEST, allow_inf_nan=False)
    left: Side
    right: Side


class _Evaluation(Algorithm):
    """One release of cells; the plan has the model, so every party knows what it answers before it is charged."""

    name: ClassVar[str] = "evaluation"
    private: ClassVar[bool | None] = None
    options: ClassVar[tuple[str, ...] | None] = ()
    numbers: ClassVar[type[Numbers]] = Evaluated

    def coordinate(self, plan: Plan) -> Coordination:
        """The sum of the parties' cells, as the solution's model; by columns those of the holder of the labels."""
        return Solution(np.array(plan.numbers.weights), model=(yield from total("cells")))


class EvaluatedClasses(_Evaluation):
    """Scores counted in cells by class: accuracy, AUC, log-loss, Brier, confusion, calibration from one release.

    Guarantee: mu = (sensitivity 1, replace-one sqrt 2) / std, whatever the model and the nodes (`proof.md`).
    """

    form: ClassVar[str] = "classes"
    title: ClassVar[str] = "private evaluation: scores counted in cells by class"
    splits = ("central", "rows", "columns")
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: loss.kind == "classification", "tells classes, not {!r}"),)
    numbers: ClassVar[type[Numbers]] = EvaluatedClassesNumbers

    def design(self, problem: Problem, options: Subject) -> Design:
        """8 nodes, or more where the noise is small for the number of records."""
        weights = options.weights
        widest = float(np.linalg.norm(weights)) if problem.private else WIDE  # no score of a prepared row is beyond
        mean, deviation = options.spread or (0.0, min(WIDE, widest) / REACH)
        noise = total_noise(problem, _release(ScoreCells(TwoSides(-1.0, 1.0, 2, 2), weights), problem))
        count = 8 if problem.records < FEW * noise else 12 if problem.records < MANY * noise else 16
        nodes = TwoSides.about(mean, max(deviation, 1e-3), count)
        numbers = EvaluatedClassesNumbers(
            **options.told, low=nodes.low, high=nodes.high, left=nodes.left, right=nodes.right
        )
        return _design(problem, numbers, ScoreCells(nodes, weights))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (_asked(plan, ScoreCells(nodes_of(plan), _weights(plan))),)


class EvaluatedSeveral(_Evaluation):
    """Records counted by class and predicted class and, of a model with probabilities, their losses in cells.

    Guarantee: mu = (sensitivity sqrt 2, replace-one 2) / std, without losses (1, sqrt 2) / std, whatever the model
    (`proof.md`).
    """

    form: ClassVar[str] = "several"
    title: ClassVar[str] = "private evaluation: records counted by class and predicted class, their losses in cells"
    several: ClassVar[bool] = True

    def design(self, problem: Problem, options: Subject) -> Design:
        return _design(problem, Evaluated(**options.told), _class_cells(problem, options.weights))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (_class_cells(plan, _weights(plan).reshape(plan.scaled_loss.outputs, plan.dimension)),)


class EvaluatedNumbers(_Evaluation):
    """Residuals and labels counted in cells: mean squared and absolute error and R^2 from one release.

    Guarantee: mu = (sensitivity 2, replace-one sqrt 8) / std, whatever the model (`proof.md`).
    """

    form: ClassVar[str] = "numbers"
    title: ClassVar[str] = "private evaluation: residuals and labels counted in cells"
    splits = ("central", "rows", "columns")
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: loss.kind == "regression", "tells numbers, not {!r}"),)

    def design(self, problem: Problem, options: Subject) -> Design:
        """The nodes are those of the declared range of the label."""
        return _design(problem, Evaluated(**options.told), ResidualCells(options.weights))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (_asked(plan, ResidualCells(_weights(plan))),)


def nodes_of(plan: Plan) -> TwoSides:
    """The nodes of the scores."""
    numbers = plan.numbers
    return TwoSides(numbers.low, numbers.high, numbers.left, numbers.right)


def score_recipe(problem: Problem) -> Preparation:
    """By columns: how the holder of the labels prepares the scores, as rows of one column.

    What is beyond the bound counts as at it in any case: scores at the end nodes, residuals of the label's half-width.
    """
    low, high, declared = problem.bounds.label_low, problem.bounds.label_high, Bounds.declare(row_norm=WIDE)
    if problem.classes is None and low is not None and high is not None:
        declared = Bounds.declare(row_norm=max(-low, high) + high - low, label_bound=(low, high))
    return replace(problem.preparation, bounds=declared, features=1)


def score_weights(problem: Problem) -> Array:
    """The weights on such a row, by which its score is the score."""
    return score_recipe(problem).weights_of(np.ones(1), 0.0)


def total_noise(problem: Problem, release: Release) -> float:
    """The standard deviation of the noise in the sum of the cells; by columns one party answers."""
    return release.std * math.sqrt(problem.channel.variance)


def _weights(plan: Plan) -> Array:
    """On what a party counts: the plan's model on its own rows, or by columns the scores of a model that it names."""
    by_columns, numbers = plan.split.same_people, plan.numbers
    if not by_columns == bool(numbers.scores) == (not numbers.weights):
        raise RefusedError("an evaluation by columns, and no other, names the plan of its model and has no weights.")
    return score_weights(plan) if by_columns else public_model(plan)


def _asked(plan: Plan, query: Query) -> Query:
    """By columns the holder of the labels answers; a record is with all parties, so all of them are charged for it."""
    if plan.split.same_people:
        query.answered_by = label_party
    return query


def _design(problem: Problem, numbers: Evaluated, query: Query) -> Design:
    """One release; nobody is told a model at the end."""
    models: ModelsOf = "kept" if problem.split.same_people else "shared"
    return Design(rounds=1, numbers=numbers, releases=(_release(query, problem),), models=models)


def _release(query: Query, problem: Problem) -> Release:
    return Release.at_mu(query, 0, 1, problem.mu, problem.relation)


def _class_cells(problem: Problem, weights: Array) -> ClassCells:
    return ClassCells(weights, losses=problem.loss.name == "softmax")
