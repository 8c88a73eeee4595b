"""`evaluation`: one noisy release of cells of scores, or of residuals, from which all metrics are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Ask, Coordination, Need, Solution, Weight, public_model, summed
from sottovoce.algorithms.evaluation.nodes import REACH, TwoSides
from sottovoce.algorithms.evaluation.queries import ClassCells, ResidualCells, ScoreCells
from sottovoce.data.bounds import LARGEST
from sottovoce.door.query import Query
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release

Array = NDArray[np.float64]
Side = Annotated[int, Field(ge=2, le=64)]
People = Literal["others", "same"]  # whether test people are others than those of the fit, as declared

FEW, MANY = 1_000, 10_000  # records in units of the noise: up to which 8 nodes, and 12, tell most; then 16
WIDE = 4.0  # scores up to which nodes go where nothing is known of their spread


@dataclass(frozen=True)
class Subject:
    """What is evaluated: weights on prepared rows, and mean and deviation of the training scores where known.

    Of several classes the weights have a row for each.
    """

    weights: Array
    spread: tuple[float, float] | None = None
    people: People = "others"
    scores: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """What every plan says of it."""
        return {"weights": tuple(self.weights.ravel().tolist()), "people": self.people, "scores": self.scores}


class Evaluated(Numbers):
    """The model, public, and who the test people are.

    `scores` is the plan of a model over columns: rows are then the scores by it that the party received as the
    recipient of joint predictions, one number for each person.
    """

    weights: tuple[Weight, ...]
    people: People
    scores: str = Field(pattern="^([0-9a-f]{64})?$")


class EvaluatedNumbersNumbers(Evaluated, solver="evaluation", form="numbers"):
    """No more."""


class EvaluatedSeveralNumbers(Evaluated, solver="evaluation", form="several"):
    """Of one class after the other."""


class EvaluatedClassesNumbers(Evaluated, solver="evaluation", form="classes"):
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

    def coordinate(self, plan: Plan) -> Coordination:
        """The sum of the parties' cells, as the solution's model."""
        found = summed((yield Ask("cells")))
        return Solution(np.array(plan.numbers.weights), model=found)


class EvaluatedClasses(_Evaluation):
    """Scores counted in cells by class: accuracy, AUC, log-loss, Brier, confusion, calibration from one release.

    Guarantee: mu = (sensitivity 1, replace-one sqrt 2) / std, whatever the model and the nodes (`proof.md`).
    """

    form: ClassVar[str] = "classes"
    title: ClassVar[str] = "private evaluation: scores counted in cells by class"
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: loss.kind == "classification", "tells classes, not {!r}"),)

    def design(self, problem: Problem, options: Subject) -> Design:
        """8 nodes, or more where the noise is small for the number of records."""
        weights = options.weights
        widest = float(np.linalg.norm(weights)) if problem.private else WIDE  # no score of a prepared row is beyond
        mean, deviation = options.spread or (0.0, min(WIDE, widest) / REACH)
        noise = _release(ScoreCells(TwoSides(-1.0, 1.0, 2, 2), weights), problem).std * len(problem.parties) ** 0.5
        count = 8 if problem.records < FEW * noise else 12 if problem.records < MANY * noise else 16
        nodes = TwoSides.about(mean, max(deviation, 1e-3), count)
        numbers = EvaluatedClassesNumbers(
            **options.told, low=nodes.low, high=nodes.high, left=nodes.left, right=nodes.right
        )
        return Design(rounds=1, numbers=numbers, releases=(_release(ScoreCells(nodes, weights), problem),))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:  # noqa: ARG002
        """The cells."""
        return (ScoreCells(nodes_of(plan), public_model(plan)),)


class EvaluatedSeveral(_Evaluation):
    """Records counted by class and predicted class and, of a model with probabilities, their losses in cells.

    Guarantee: mu = (sensitivity sqrt 2, replace-one 2) / std, without losses (1, sqrt 2) / std, whatever the model
    (`proof.md`).
    """

    form: ClassVar[str] = "several"
    title: ClassVar[str] = "private evaluation: records counted by class and predicted class, their losses in cells"
    several: ClassVar[bool] = True

    def design(self, problem: Problem, options: Subject) -> Design:
        """Nothing to choose."""
        numbers = EvaluatedSeveralNumbers(**options.told)
        return Design(rounds=1, numbers=numbers, releases=(_release(_class_cells(problem, options.weights), problem),))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:  # noqa: ARG002
        """The cells."""
        return (_class_cells(plan, public_model(plan).reshape(plan.scaled_loss.outputs, plan.dimension)),)


class EvaluatedNumbers(_Evaluation):
    """Residuals and labels counted in cells: mean squared and absolute error and R^2 from one release.

    Guarantee: mu = (sensitivity 2, replace-one sqrt 8) / std, whatever the model (`proof.md`).
    """

    form: ClassVar[str] = "numbers"
    title: ClassVar[str] = "private evaluation: residuals and labels counted in cells"
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: loss.kind == "regression", "tells numbers, not {!r}"),)

    def design(self, problem: Problem, options: Subject) -> Design:
        """The nodes are those of the declared range of the label."""
        numbers = EvaluatedNumbersNumbers(**options.told)
        return Design(rounds=1, numbers=numbers, releases=(_release(ResidualCells(options.weights), problem),))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:  # noqa: ARG002
        """The cells."""
        return (ResidualCells(public_model(plan)),)


def nodes_of(plan: Plan) -> TwoSides:
    """The nodes of the scores."""
    numbers = plan.numbers
    return TwoSides(numbers.low, numbers.high, numbers.left, numbers.right)


def _release(query: Query, problem: Problem) -> Release:
    return Release.at_mu(query, 0, 1, problem.mu, problem.relation)


def _class_cells(problem: Problem, weights: Array) -> ClassCells:
    return ClassCells(weights, losses=problem.loss.name == "softmax")
