"""The solvers, as objects that an estimator takes: `sv.PrivateLasso(..., solver=sv.solvers.CD(inner=80))`.

A name, `solver="cd"`, is that solver with its own rules; `solver="auto"` chooses one by public quantities. Each class
documents its options; one that is left out follows its rule, so there is nothing to tune.

>>> CD(inner=80)
CD(inner=80)
>>> by_name("cd", inner=80).given()
{'inner': 80}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from numpy.typing import ArrayLike

from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.errors import InputError
from sottovoce.solvers.names import meant_solver
from sottovoce.solvers.options import Options as Options
from sottovoce.solvers.options import PerFeature, above, declare_option, number, one_of, whole
from sottovoce.solvers.prior import PriorModel, as_prior

Schedule = Literal["all", "one-party"]
DualStep = Literal["slope", "exact", "newton"]
Order = Literal["cyclic", "shuffled", "random"]
Counted = Literal["all", "outer"]
Rule = Literal["GS-r", "GS-s", "GS-q"]
Sketch = Literal["count", "rademacher"]
AtomStep = Literal["pairwise", "printed"]
Rows = Literal["persistent", "fresh"]
Unit = Literal["record", "feature"]
Models = Literal["shared", "kept"]
People = Literal["others", "same"]


class Newton(Options):
    """One noisy Gram matrix, then noisy gradients in its metric.

    Parameters
    ----------
    rounds : int from 1
        Gradients after the Gram matrix, at least 2 of them; without privacy the most Newton steps. Default: 64, or 100
        without privacy.
    gram_share : float from 1e-06 to 0.999999
        Share of the budget (of mu squared) that the Gram matrix gets. Default: 0.1 for classes, 0.15 for numbers.
    slope_bound : float above 0
        Clips the slope of one record's loss, in units of the label's half-width. Default: the largest slope of a
        loss for classes; 0.5 for residuals, or less where the loss itself bounds them.
    """

    name: ClassVar[str] = "newton"

    rounds: int | None = whole(1)
    gram_share: float | None = number(1e-6, 1 - 1e-6)
    slope_bound: float | None = above(0.0)


class Gradient(Options):
    """A noisy gradient sum of all records each round.

    Parameters
    ----------
    rounds : int from 1
        Gradients. Default: as many, from 10 to 1000, as keep the random walk of the noise short; 1000 without privacy.
    step : float from 1e-12
        Length of a step. Default: 1 / the curvature of the loss, or 1 where it has none.
    slope_bound : float above 0
        Clips the slope of one record's loss, in units of the label's half-width. Default: the largest slope of a
        loss for classes; 0.5 for residuals, or less where the loss itself bounds them.
    """

    name: ClassVar[str] = "gradient"

    rounds: int | None = whole(1)
    step: float | None = number(1e-12)
    slope_bound: float | None = above(0.0)


class SGD(Options):
    """Noisy gradients of secret random samples.

    Parameters
    ----------
    rounds : int from 1
        Gradients. Default: 200; records squared for the published calibration.
    rate : float from 1e-09 to 1
        Probability with which a record is in a round's sample. Default: 0.1.
    step : float from 1e-12
        Length of a step. Default: as long as the curvature of the loss allows, less where the random walk of the noise
        would be long.
    schedule : 'all' or 'one-party'
        Who answers a round: every party, or one that a public coin names. Default: 'all'.
    slope_bound : float above 0
        Clips the slope of one record's loss, in units of the label's half-width. Default: the largest slope of a
        loss for classes; 0.5 for residuals, or less where the loss itself bounds them.
    """

    name: ClassVar[str] = "sgd"

    rounds: int | None = whole(1)
    rate: float | None = number(1e-9, 1.0)
    step: float | None = number(1e-12)
    schedule: Schedule | None = one_of(Schedule)
    slope_bound: float | None = above(0.0)


class Whitened(Options):
    """Second moments, gradients of whitened rows, a rescale.

    Rows are whitened as far as the budget lets anything be learned, so that noise does not drown small directions; one
    rule serves every signal and dimension. Above 2,000 features each column is scaled by itself.

    Parameters
    ----------
    rounds : int from 1
        Gradients of whitened rows, at least 2 of them; without privacy the most Newton steps. Default: 32, or 100
        without privacy.
    prior : path of a saved model, fitted model or (coef, intercept)
        What is known before these records are looked at, such as the model of last year. The fit rescales it and starts
        there; it becomes public with the plan. For two classes and for numbers. Default: none.
    prior_people : 'others' or 'same'
        Whether people of this fit were among those of the prior. Then the prior must be private, and both charges add.
        Default: 'others'.
    weight_bound : float above 0
        The ceiling of `fit(..., sample_weight=)`: larger weights are cut. Two to four mean weights are a good choice;
        the noise grows in proportion to it. Default: no weights.
    """

    name: ClassVar[str] = "whitened"

    rounds: int | None = whole(1)
    prior: Any = declare_option(PriorModel())
    prior_people: People | None = one_of(People)
    weight_bound: float | None = above(0.0)

    def __post_init__(self) -> None:
        if self.prior is not None:  # at once, as a clone of a fitted model is not fitted
            object.__setattr__(self, "prior", as_prior(self.prior))
        super().__post_init__()


class SCD(Options):
    """Dual coordinate descent; the duals stay hidden at their holders.

    It needs an l2 penalty with alpha > 0, and penalises the intercept too.

    Parameters
    ----------
    rounds : int from 1
        Samples of records whose duals move; without privacy the most epochs. Default: from 100 to 2000, as the budget
        allows; 2000 without privacy.
    rate : float from 1e-09 to 1
        Probability with which a record's dual moves in a round: L / N of the paper's mini-batches of L. Default: all
        records of small data, down to 0.1.
    clip : float from 1e-90 to 1024
        The most that one record moves the sum. Default: the dual step of an ordinary slope.
    dual_step : 'slope' or 'exact' or 'newton'
        For the logistic loss: part of the way to the current slope, the exact minimiser, or the published single Newton
        step. Default: 'slope', or 'exact' without privacy.
    """

    name: ClassVar[str] = "scd"
    penalties: ClassVar[tuple[str, ...]] = ("l2",)

    rounds: int | None = whole(1)
    rate: float | None = number(1e-9, 1.0)
    clip: float | None = number(1e-90, 1024.0)
    dual_step: DualStep | None = one_of(DualStep)


class PrimalSCD(Options):
    """Clipped minimisers along coordinates; for comparison.

    Nothing but the clip bounds a step, so its noise does not fall with the number of records.

    Parameters
    ----------
    rounds : int from 1
        Releases. Default: ten passes over the coordinates, 2000 without privacy.
    lot : int from 1
        Coordinates that move at once, at most all of them. Default: 1.
    clip : float from 1e-100 to 1e+100
        The most that a coordinate moves in a release. Default: 1, or less so that it can travel 4 in all.
    """

    name: ClassVar[str] = "scd-primal"
    penalties: ClassVar[tuple[str, ...]] = ("none", "l2")

    rounds: int | None = whole(1)
    lot: int | None = whole(1)
    clip: float | None = number(SMALLEST, LARGEST)


class SequentialSCD(Options):
    """Dual steps one after another in public lots; for comparison.

    It needs an l2 penalty with alpha > 0, and penalises the intercept too.

    Parameters
    ----------
    rounds : int from 1
        Epochs, the most of them without privacy. Default: 5, or 2000 without privacy.
    lot : int from 1
        Records in a lot, at most those of the largest party. Default: so many that a party has at most 1000 lots.
    clip : float from 1e-90 to 1024
        The most that one record moves the sum. Default: 1, or less so that the random walk of the noise is short.
    dual_step : 'slope' or 'exact' or 'newton'
        For the logistic loss: part of the way to the current slope, the exact minimiser, or the published single Newton
        step. Default: 'slope', or 'exact' without privacy.
    """

    name: ClassVar[str] = "scd-sequential"
    penalties: ClassVar[tuple[str, ...]] = ("l2",)

    rounds: int | None = whole(1)
    lot: int | None = whole(1)
    clip: float | None = number(1e-90, 1024.0)
    dual_step: DualStep | None = one_of(DualStep)


class CD(Options):
    """Proximal coordinate descent, one noisy number a step.

    Each coordinate is clipped by itself, in proportion to its column, so columns of different scales do not hurt it.

    Parameters
    ----------
    rounds : int from 1
        Outer loops, after each of which the model is a mean of iterates; without privacy the most passes. Default: 1,
        or 10000 without privacy.
    inner : int from 1
        Steps of a loop, each along one coordinate. Default: from 1 to 80 passes over the coordinates, as the signal of
        a visit allows.
    step : float from 1e-100 to 1e+100
        Length of a step in units of 1 / the curvature along the coordinate. Default: 1, less where one pass is more
        than the budget pays for.
    clip : float from 1e-100 to 1e+100
        One record's slope along a coordinate is clipped to it, in units of the column's bound and of the label's
        half-width. Default: 1.5 for classes; for numbers 0.5, more where the signal is large.
    order : 'cyclic' or 'shuffled' or 'random'
        The public order of the coordinates: one after the other, a new permutation for each pass, or drawn with
        replacement. Default: 'cyclic'.
    averaged : float from 0 to 1
        The last share of a loop's iterates whose mean the model is; 0 is the last one alone. Default: 0.5, or 0 for
        loops of at most two passes.
    curvatures : list of float above 0
        The mean square of each column, where it is public knowledge; then nothing is spent on it. Default: it is
        estimated.
    curvature_share : float from 0 to 0.9
        Share of the budget (of mu squared) for that estimate; 0 takes the bounds instead. Default: 0.1, or 0 for the
        published calibration.
    counted : 'all' or 'outer'
        What the published calibration counts as T: all steps, or the outer loops alone. Default: 'all'.
    """

    name: ClassVar[str] = "cd"
    penalties: ClassVar[tuple[str, ...]] = ("none", "l1", "l2", "elastic_net")

    rounds: int | None = whole(1)
    inner: int | None = whole(1)
    step: float | None = number(SMALLEST, LARGEST)
    clip: float | None = number(SMALLEST, LARGEST)
    order: Order | None = one_of(Order)
    averaged: float | None = number(0.0, 1.0)
    curvatures: ArrayLike | None = declare_option(PerFeature())
    curvature_share: float | None = number(0.0, 0.9)
    counted: Counted | None = one_of(Counted)


class GreedyCD(Options):
    """Coordinate descent on the coordinate that promises most.

    Parameters
    ----------
    rounds : int from 1
        Steps, each a noisy choice and a noisy number. Default: the square root of the signal; 100000 without privacy.
    step : float from 1e-100 to 1e+100
        Length of a step in units of 1 / the curvature along the coordinate. Default: 1, less where there is little
        signal.
    clip : float from 1e-100 to 1e+100
        One record's slope along a coordinate is clipped to it, in units of the column's bound and of the label's
        half-width. Default: 1.2 for classes, 0.9 for numbers; 1 without privacy.
    rule : 'GS-r' or 'GS-s' or 'GS-q'
        What promises most: the longest step, the largest distance to a stationary point, or the largest decrease of the
        quadratic model. Default: 'GS-r'.
    curvatures : list of float above 0
        The mean square of each column, where it is public knowledge; then nothing is spent on it. Default: it is
        estimated.
    curvature_share : float from 0 to 0.9
        Share of the budget (of mu squared) for that estimate; 0 takes the bounds instead. Default: 0.1.
    choice_share : float from 0.01 to 0.99
        Share of the rest that the choices get. Default: 0.75.
    """

    name: ClassVar[str] = "greedy-cd"
    penalties: ClassVar[tuple[str, ...]] = ("none", "l1", "l2", "elastic_net")

    rounds: int | None = whole(1)
    step: float | None = number(SMALLEST, LARGEST)
    clip: float | None = number(SMALLEST, LARGEST)
    rule: Rule | None = one_of(Rule)
    curvatures: ArrayLike | None = declare_option(PerFeature())
    curvature_share: float | None = number(0.0, 0.9)
    choice_share: float | None = number(0.01, 0.99)


class FrankWolfe(Options):
    """One signed feature a round on the l1 ball.

    It needs `radius`, and bounds of entries. The intercept counts inside the ball. Over columns it serves the squared
    and the logistic loss.

    Parameters
    ----------
    rounds : int from 1
        Choices; over columns at most 2^24; without privacy the most of them. Default: central 3 to 10000 and over
        columns 4 or more, as the budget allows; 5000 without privacy; the printed number for a published calibration.
    slope_bound : float from 1e-100 to 1e+100
        Clips the slope of one record's loss, in units of the label's half-width; private forms of our own alone.
        Default: the largest slope of a loss for classes; for numbers 0.5, and 1 over columns.
    choice_share : float from 0.01 to 0.99
        Over columns: share of the budget for the choices, the rest is for the features sent. Default: 0.4, or 0.5 where
        one party holds the labels.
    cap : int from 1
        Over columns: the most features that a party sends, unless a row norm bounds them more tightly. Default: 20
        divided among the parties.
    sketch : 'count' or 'rademacher'
        Over columns: how a feature is made short. Default: 'count'.
    sketch_size : int from 1
        Over columns: numbers of a sketch, at least 16 and 8 log rounds, at most the records. Default: 16 for each
        round; as printed for the published calibration.
    candidates : int from 1
        Over columns, published calibration: columns that each party draws for a choice. Default: those of the smallest
        party.
    step : 'pairwise' or 'printed'
        Without privacy: weight goes from the worst atom to the best, or all atoms shrink by 2 / (t + 2), the published
        dFW. Default: 'pairwise'.
    """

    name: ClassVar[str] = "frank-wolfe"
    penalties: ClassVar[tuple[str, ...]] = ("l1_ball",)

    rounds: int | None = whole(1)
    slope_bound: float | None = number(SMALLEST, LARGEST)
    choice_share: float | None = number(0.01, 0.99)
    cap: int | None = whole(1)
    sketch: Sketch | None = one_of(Sketch)
    sketch_size: int | None = whole(1)
    candidates: int | None = whole(1)
    step: AtomStep | None = one_of(AtomStep)


class OneShot(Options):
    """One noisy sketched row for every person and party; for comparison.

    What it sends grows with the number of people.

    Parameters
    ----------
    sketch_size : int from 1
        Numbers for each person and party; a party with fewer columns sends them as they are. Default: 16.
    sketch : 'count' or 'rademacher'
        How a row is made short. Default: 'count'.
    """

    name: ClassVar[str] = "one-shot"

    sketch_size: int | None = whole(1)
    sketch: Sketch | None = one_of(Sketch)


class ADMM(Options):
    """ADMM sharing: parties exchange scores of the records, in one of several forms.

    With `unit="feature"` it needs public labels, an l2 penalty with alpha > 0 and bounds of entries.

    Parameters
    ----------
    rows : 'persistent' or 'fresh'
        How parties hear each other: by rows that get noise once a fit, or by clipped scores sent once, half way.
        Default: 'persistent'.
    unit : 'record' or 'feature'
        What is protected: a person's record, or a column of a party and nothing of a person. Default: 'record'.
    rounds : int from 1
        Gradients of each party, at least 2; without privacy the most epochs. Default: 64; 5 for a feature, 50 for the
        published calibration, 2000 without privacy.
    slope_bound : float above 0
        Clips the slope of one record's loss, in units of the label's half-width. Default: the largest slope of a
        loss for classes; 0.5 for residuals, or less where the loss itself bounds them.
    row_share : float from 0.01 to 0.99
        Share of the budget (of mu squared) for what conveys the scores. Default: 0.6, or 0.5 for rows='fresh'.
    world_epsilon : float from 1e-06
        Instead of row_share: what the model may cost against the world, below epsilon. Default: row_share says it.
    clip : float from 1e-06 to 1e+06
        For rows='fresh': the clip of a centred score, in units of the label's half-width. Default: 2 for classes, 0.5
        for numbers.
    column_norm : float from 1e-09
        For unit='feature': the largest Euclidean norm of a column. Default: what the bound of its entries implies.
    rho : float from 1e-09 to 1e+09
        For unit='feature', the published calibration and without privacy: the penalty of disagreement. Default: a share
        of the loss's curvature; 1 for the published calibration, or twice the loss's curvature where that is more.
    feasible_norm : float from 1e-09
        For the published calibration: b_1, below which its Assumption 2.1 takes the norms of weights, copies and duals
        to be, of features divided by their bound. Default: the largest slope of the loss times the root of the records,
        as for the duals.
    proximal : float from 0 to 1e+06
        Without privacy: the weight that holds a party where it was, in units of rho; 0 is the published update.
        Default: parties - 1.
    relaxation : float from 0.1 to 1.99
        Without privacy: over-relaxation above 1; 1 is the published update. Default: 1.6, or 1 for a loss that is not
        convex.
    tolerance : float from 0
        Without privacy: both residuals, root mean squares over the records, at which it ends. Default: 1e-8.
    models : 'shared' or 'kept'
        Without privacy: whether the coordinator learns all coefficients, or each party keeps those of its columns and
        predictions are joint. Default: 'shared'; always 'kept' for unit='feature'.
    """

    name: ClassVar[str] = "admm"

    rows: Rows | None = one_of(Rows)
    unit: Unit | None = one_of(Unit)
    rounds: int | None = whole(1)
    slope_bound: float | None = above(0.0)
    row_share: float | None = number(0.01, 0.99)
    world_epsilon: float | None = number(1e-6)
    clip: float | None = number(1e-6, 1e6)
    column_norm: float | None = number(1e-9)
    rho: float | None = number(1e-9, 1e9)
    feasible_norm: float | None = number(1e-9)
    proximal: float | None = number(0.0, 1e6)
    relaxation: float | None = number(0.1, 1.99)
    tolerance: float | None = number(0.0)
    models: Models | None = one_of(Models)


class FDML(Options):
    """Gradient steps over columns; a baseline.

    Parameters
    ----------
    rounds : int from 1
        Gradients of each party, at least 2; without privacy steps on batches. Default: from 16 to 256, as the budget
        allows; 2000 without privacy.
    rate : float above 0 to 1
        Without privacy: the share of the records in a batch, at least one of them. Default: 0.01, and 32 records.
    step : float from 1e-12
        Without privacy: length of a step in units of 1 / (curvature x mean squared norm of the rows). Default: 1.
    slope_bound : float above 0
        Clips the slope of one record's loss, in units of the label's half-width. Default: the largest slope of a
        loss for classes; 0.5 for residuals, or less where the loss itself bounds them.
    row_share : float from 0.01 to 0.99
        Share of the budget (of mu squared) for the rows that get noise once. Default: 0.6.
    world_epsilon : float from 1e-06
        Instead of row_share: what the model may cost against the world, below epsilon. Default: row_share says it.
    """

    name: ClassVar[str] = "fdml"

    rounds: int | None = whole(1)
    rate: float | None = above(0.0, 1.0)
    step: float | None = number(1e-12)
    slope_bound: float | None = above(0.0)
    row_share: float | None = number(0.01, 0.99)
    world_epsilon: float | None = number(1e-6)


class Score(Options):
    """Each party fits its own columns and sends one noisy score of everybody.

    Parameters
    ----------
    rounds : int from 2
        Gradients of each party's own fit. Default: 64, or 200 without privacy.
    slope_bound : float above 0
        Clips the slope of one record's loss, in units of the label's half-width. Default: the largest slope of a
        loss for classes; 0.5 for residuals; at least 1 where one party holds the labels.
    """

    name: ClassVar[str] = "score"

    rounds: int | None = whole(2)
    slope_bound: float | None = above(0.0)


SOLVERS: Final[Mapping[str, type[Options]]] = {kind.name: kind for kind in Options.__subclasses__()}
__all__ = ["SOLVERS", "Options", "by_name", *(kind.__name__ for kind in SOLVERS.values())]
_LINES = (f"| `{kind.__name__}` | {name} | {kind.summary()} |" for name, kind in SOLVERS.items())
__doc__ = "\n".join([__doc__ or "", "| class | name | what it does |", "|---|---|---|", *_LINES])


def by_name(name: str, **options: Any) -> Options:
    """The solver of that name; an unknown name or option is answered with those there are."""
    if name not in SOLVERS:
        raise InputError(f"solver={name!r} is unknown{meant_solver(name, SOLVERS)} There are: {', '.join(SOLVERS)}.")
    return SOLVERS[name]().replace(**options) if options else SOLVERS[name]()
