"""`evaluation`: one noisy release of cells of scores, or of residuals, from which all metrics are computed."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Need, Solution, Weight, public_model, total
from sottovoce.algorithms.evaluation.queries import REACH, ClassCells, ResidualCells, ScoreCells, TwoSides
from sottovoce.data.bounds import LARGEST, Bounds
from sottovoce.data.preparation import Preparation
from sottovoce.errors import RefusedError
from sottovoce.gate.query import Query, label_party
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.plan import ModelsOf

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


class Evaluated(Numbers):
    """The model, public, and who the test people are.

    `scores` is the plan of a model over columns. There are no weights then: the rows of the holder of the labels are
    the scores that it received as the recipient of joint predictions, one number for each person. It alone answers.
    """

    evaluates: ClassVar[bool] = True

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

    @abstractmethod
    def cells(self, problem: Problem, numbers: Evaluated, weights: Array) -> Query:
        """What is counted of a model of these weights."""

    def nodes(self, _problem: Problem, _subject: Subject) -> dict[str, float]:
        """What else the numbers of a plan have."""
        return {}

    def design(self, problem: Problem, options: Subject) -> Design:
        """One release; nobody is told a model at the end."""
        weights = () if options.scores else tuple(options.weights.ravel().tolist())
        subject = {"weights": weights, "people": options.people, "scores": options.scores}
        numbers = cast("Evaluated", self.numbers(**subject, **self.nodes(problem, options)))
        query = self.cells(problem, numbers, options.weights)
        releases = (Release.at_mu(query, 0, 1, problem.mu, problem.relation),)
        models: ModelsOf = "kept" if problem.split.same_people else "shared"
        return Design(rounds=1, numbers=numbers, releases=releases, models=models)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        """On the plan's model and a party's own rows, or by columns on the scores of a model that the plan names.

        Then the holder of the labels answers; a record is with all parties, so all of them are charged for it.
        """
        by_columns, numbers = plan.split.same_people, plan.numbers
        if not by_columns == bool(numbers.scores) == (not numbers.weights):
            raise RefusedError(
                "an evaluation by columns, and no other, names the plan of its model and has no weights."
            )
        query = self.cells(plan, numbers, score_weights(plan) if by_columns else public_model(plan))
        if by_columns:
            query.answered_by = label_party
        return (query,)

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

    def nodes(self, problem: Problem, subject: Subject) -> dict[str, float]:
        """8 nodes, or more where the noise is small for the number of records."""
        weights = subject.weights
        widest = float(np.linalg.norm(weights)) if problem.private else WIDE  # no score of a prepared row is beyond
        mean, deviation = subject.spread or (0.0, min(WIDE, widest) / REACH)
        query = ScoreCells(TwoSides(-1.0, 1.0, 2, 2), weights)
        release = Release.at_mu(query, 0, 1, problem.mu, problem.relation)
        noise = release.std * math.sqrt(problem.channel.variance)  # in the sum of the parties' cells
        count = 8 if problem.records < FEW * noise else 12 if problem.records < MANY * noise else 16
        return asdict(TwoSides.about(mean, max(deviation, 1e-3), count))

    def cells(self, _problem: Problem, numbers: Evaluated, weights: Array) -> Query:
        return ScoreCells(nodes_of(numbers), weights)


class EvaluatedSeveral(_Evaluation):
    """Records counted by class and predicted class and, of a model with probabilities, their losses in cells.

    Guarantee: mu = (sensitivity sqrt 2, replace-one 2) / std, without losses (1, sqrt 2) / std, whatever the model
    (`proof.md`).
    """

    form: ClassVar[str] = "several"
    title: ClassVar[str] = "private evaluation: records counted by class and predicted class, their losses in cells"
    several: ClassVar[bool] = True

    def cells(self, problem: Problem, _numbers: Evaluated, weights: Array) -> Query:
        own = weights.reshape(problem.scaled_loss.outputs, problem.dimension)
        return ClassCells(own, losses=problem.loss.name == "softmax")


class EvaluatedNumbers(_Evaluation):
    """Residuals and labels counted in cells: mean squared and absolute error and R^2 from one release.

    The nodes are those of the declared range of the label.

    Guarantee: mu = (sensitivity 2, replace-one sqrt 8) / std, whatever the model (`proof.md`).
    """

    form: ClassVar[str] = "numbers"
    title: ClassVar[str] = "private evaluation: residuals and labels counted in cells"
    splits = ("central", "rows", "columns")
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: loss.kind == "regression", "tells numbers, not {!r}"),)

    def cells(self, _problem: Problem, _numbers: Evaluated, weights: Array) -> Query:
        return ResidualCells(weights)


def nodes_of(numbers: Numbers) -> TwoSides:
    """The nodes of the scores."""
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
