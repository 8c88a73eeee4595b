"""Private Frank-Wolfe over columns, after Lou and Cheung (2018): a sound form with few messages up."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import SMOOTH, Array, Coordination, Need, answer, given, limited
from sottovoce.algorithms.frank_wolfe.central import (
    AtomChoice,
    BallAlgorithm,
    BallNumbers,
    Size,
    check_block,
    radius_of,
)
from sottovoce.data.block import Block, toward_zero
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError
from sottovoce.gate.query import Integers, MessageArrays, Query, Reals, Round, Scheduled, Wholes
from sottovoce.losses import Loss
from sottovoce.penalties.sets import SparsePoint
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.split import RowPart
from sottovoce.privacy.calibration import rho_for
from sottovoce.privacy.events import distance, inside
from sottovoce.queries.parts import FeatureSketch, LabelSketch, Sketch, sketch_of
from sottovoce.queries.sums import clipped_derivative
from sottovoce.solvers import FrankWolfe

SHORTEST = 40  # a step is at most that of a run of so many rounds
MOST = 2**24  # rounds, and numbers of a sketch: what a holder will draw because a plan says so
AFFINE = Need(lambda loss: loss.affine_in_label, "over columns needs the squared or the logistic loss, not {!r}")


class SketchNumbers(BallNumbers):
    """What both forms over columns have: also how many numbers a sketch has."""

    sketch_size: int = Field(ge=1, le=MOST)


class ColumnNumbers(SketchNumbers):
    """`slope_bound` is omega of parties that know the labels, `noisy_slope_bound` of those that are told a sketch.

    Without a `cap` the row norm pays for the features.
    """

    sketch: Literal["count", "rademacher"]
    total_step: float = Field(ge=0.0, le=LARGEST)
    noisy_slope_bound: Size
    cap: int | None = Field(ge=1, lt=2**31)


class ColumnAlgorithm(BallAlgorithm):
    """What both forms over columns share."""

    splits = ("columns",)
    most_rounds: ClassVar[int] = MOST

    def remember(self, plan: Plan, rows: Block) -> Sketch:
        check_block(rows)
        return sketch_of(plan)


class PrivateColumnFrankWolfe(ColumnAlgorithm):
    """Each round a public coin names a party; it chooses one of its atoms +-radius e_j, or to stay where the point is.

    An atom is added, w + a atom, while that stays in the ball; else w is shrunk for it, (1 - a) w + a atom. The choice
    is by the exponential mechanism on -<atom, g> / radius; staying has the score 0 while the ball has room for any
    atom, and -<w, g> / radius where it has not. Here g_j = sum_i r_i x_ij and r_i = l'(score_i, y_i) clipped to
    |r_i| <= omega. The scores are the party's own columns times their weights plus theta J'q, q the sum of the other
    parties' released sketches times theirs and theta <= 1 a public factor that keeps their noise near omega. A feature
    chosen for the first time is released once, as J a_j + N(0, tau^2), and kept. Since a party may stay, no party has
    to move the point where that does not help, and the limit is the solution on the whole ball:
    E h_T <= exp(-total / (2 K)) h_0 + sum_t a_t^2 C / 2 for exact scores.

    Guarantee: a person is in every party, so the costs of all parties add: rho = T (omega / std)^2 / 2 for T choices,
    plus what the features cost: with a cap of S for each of K parties K S / (2 tau^2), with a row norm B at most
    B^2 / (2 tau^2), whichever is smaller, plus 1 / (2 tau_y^2) if one party alone holds the labels and releases
    J y + N(0, tau_y^2) (`proof.md`). Replace-one doubles every sensitivity.
    Edges: a party whose cap is used up chooses among what it has released; the intercept is a column of ones inside
    the ball, with the party that has the labels, and its sketch is public.
    """

    form: ClassVar[str] = "private-columns"
    title: ClassVar[str] = "Frank-Wolfe on the l1 ball over columns, one signed feature a round"
    options = ("rounds", "slope_bound", "choice_share", "cap", "sketch", "sketch_size")
    needs: ClassVar[tuple[Need, ...]] = (SMOOTH, AFFINE)
    numbers: ClassVar[type[Numbers]] = ColumnNumbers

    def design(self, problem: Problem, options: FrankWolfe) -> Design:
        """From public numbers; N mu is the signal, mu halved for replace-one.

        T = (N mu)^(2/3) / 4 rounds, 20 features in all (a party's cap at most its columns), sketches of 16 T numbers;
        0.4 of the budget for the choices (held labels: 0.2 for their sketch). The constants were chosen on synthetic
        problems (`benchmarks/frank_wolfe.py`).
        """
        rho = rho_for(problem.epsilon, inside(problem.delta))
        parties, party, mu = len(problem.parties), problem.label_party_name, math.sqrt(2 * rho)
        signal = problem.records * min(mu / distance(problem.relation), 1e100)
        label_share = 0.2 if problem.labels == "held" and parties > 1 else 0.0
        rounds = limited("rounds", given(options.rounds, max(4, math.ceil(signal ** (2 / 3) / 4))), 1, MOST)
        cap = given(options.cap, min(math.ceil(20 / parties), max(problem.columns)))
        norm = problem.bounds.row_norm
        by_norm = norm is not None and (norm / problem.preparation.unit) ** 2 < cap * parties
        least = least_size(rounds)
        most = min(max(problem.records, least), MOST)
        size = given(options.sketch_size, min(max(16 * rounds, least), most))
        numbers = ColumnNumbers(
            radius=radius_of(problem),
            total_step=max(2.0, 0.4 * math.log(rounds)) / max(rounds, SHORTEST) * rounds,
            sketch=options.sketch or "count",
            sketch_size=limited("sketch_size", size, least, most),
            slope_bound=given(options.slope_bound, 1.0),
            noisy_slope_bound=1.0,
            cap=None if by_norm else cap,
        )
        share = given(options.choice_share, 0.5 if problem.labels == "held" else 0.4) * (1 - label_share)
        mus = [math.sqrt(2 * rho * part) for part in (share, 1 - label_share - share, label_share)]
        scores, feature = PartScores(problem, numbers, party), feature_of(problem, numbers, party)
        times, slots = (1, max(problem.columns)) if by_norm else (cap * parties, cap)
        releases = [
            Release.at_mu(scores, 0, rounds, mus[0], problem.relation, self.mechanism),
            Release.at_mu(feature, 0, times, mus[1], problem.relation).times(slots),
        ]
        if label_share:
            releases.append(Release.at_mu(LabelSketch(problem, numbers), 0, 1, mus[2], problem.relation))
            noise = releases[-1].std ** 2 + 0.3 * problem.records / numbers.sketch_size
            numbers = numbers.changed(noisy_slope_bound=max(1.0, math.sqrt(noise)))
        return Design(rounds=rounds, numbers=numbers, releases=tuple(releases))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        self.check_choices(plan)
        numbers = plan.numbers
        labels = (LabelSketch(plan, numbers),) if plan.held_labels else ()
        return PartScores(plan, numbers, party), feature_of(plan, numbers, party), *labels

    def coordinate(self, plan: Plan) -> Coordination:
        """W <- w + a atom while that stays in the ball, else (1 - a) w + a atom; a public coin names who chooses it."""
        point = SketchedPoint(plan)
        if plan.held_labels:
            point.labels = yield from answer("labels")
        for turn in turns(plan):
            party = plan.names[turn]
            atom = point.atom(party, (yield from answer(party, "atom", **point.seen_by(party))))
            if atom is None:  # it stays
                continue
            if atom.feature not in point.sketches:  # J a_j + N(0, tau^2), released once, then known
                place, slot = np.array([atom.local]), point.slot(party, atom)
                point.sketches[atom.feature] = yield from answer(party, "feature", round=slot, place=place)
            point.move(atom)
        return point.weights


class Atom(NamedTuple):
    """+-radius e_j: the feature j among all, and among its party's own."""

    feature: int
    local: int
    sign: int


class SketchedPoint:
    """A point of the ball, and the released sketches of its features; that of the constant column is public.

    No other code knows how the features of all parties and of one, atoms and slots of releases are numbered.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self._ball = plan, SparsePoint(plan.numbers.radius)
        self.labels: Array | None = None  # a sketch of them, for parties that do not know them
        self.sketches: dict[int, Array] = {}
        if plan.fit_intercept:
            self.sketches[plan.features] = sketch_of(plan).apply(np.ones(plan.records))
        self._parts = {name: plan.part(name) for name in plan.names}
        self._used = dict.fromkeys(plan.names, 0)

    def seen_by(self, party: str) -> dict[str, NDArray[Any]]:
        """Where the point is, and the sketch of the scores that the other parties' features give it."""
        sketch = np.zeros(self.plan.numbers.sketch_size)
        for feature, value in zip(self._ball.places, self._ball.values, strict=True):
            if self._parts[party].local(feature, self.plan.features) is None:
                sketch = sketch + value * self.sketches[feature]
        message: dict[str, NDArray[Any]] = {"places": self._places, "values": self._ball.values, "sketch": sketch}
        if self.labels is None or party == self.plan.label_party_name:
            return message
        return {**message, "labels": self.labels}

    def atom(self, party: str, answer: Array) -> Atom | None:
        """The atom that a party's answer names; None if it stays."""
        code, part = int(answer[0]), self._parts[party]
        if code == 0:
            return None
        local = int(candidates(self.plan, part, self._places)[abs(code) - 1])
        return Atom(part.place(local, self.plan.features), local, 1 if code > 0 else -1)

    def slot(self, party: str, atom: Atom) -> int:
        """The round of a feature's release: the party's next that the cap allows, or the feature's place."""
        self._used[party] += 1
        return atom.local if self.plan.numbers.cap is None else self._used[party] - 1

    def move(self, atom: Atom) -> None:
        self._ball.move((atom.feature + 1) * atom.sign, step_length(self.plan), added=True)

    @property
    def weights(self) -> Array:
        return self._ball.dense(self.plan.dimension)

    @property
    def _places(self) -> Integers:
        return np.array(self._ball.places, dtype=np.int64)


@functools.lru_cache(maxsize=4)
def turns(plan: Plan) -> Integers:
    """The place of the party of each round, by a public coin."""
    return np.asarray(plan.public_coin("turns").integers(len(plan.parties), size=plan.rounds))


class PartScores(AtomChoice):
    """-sum_i r_i x_ij / omega for a party's candidates j, then the score of staying.

    That is -sum_i r_i p_i / omega with p_i = score_i / radius clipped to +-1 or, while there is room in the ball, 0;
    plus std (log(2 candidates) + log T), so that noise alone moves the point about once in a run. r_i = l'(score_i,
    y_i).

    Guarantee: |r_i| <= omega, |x_ij| <= 1 and |p_i| <= 1, each a function of record i, of public numbers and of
    released ones; so zero-out moves each by at most 1, replace-one by 2. All sums are exact.
    Edges: a null row adds 0 everywhere.
    """

    stays: ClassVar[bool] = True
    answered_by = Scheduled("the party that a public coin names", turns)

    def __init__(self, problem: Problem, numbers: Numbers, party: str) -> None:
        super().__init__(problem)
        self.part = problem.part(party)
        self.labelled = self.part.preparation.labelled
        self.slope_bound = numbers.slope_bound if self.labelled else numbers.noisy_slope_bound
        self.plan = cast("Plan", problem)

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        """A point, the sketch of the other parties' part of its scores and, for who does not know them, of the labels.

        No point has more places than features were released before.
        """
        plan = self.plan
        longest = min(number, sum(features_sent(plan, name) for name in plan.names) + plan.fit_intercept)
        sketched = Reals((plan.numbers.sketch_size,))
        return {
            "places": Wholes((None,), least=0, most=plan.dimension - 1, longest=longest),
            "values": Reals((None,), longest=longest),
            "sketch": sketched,
            **({} if self.labelled else {"labels": sketched}),
        }

    def objection(self, number: int, told: MessageArrays) -> str | None:
        reason = super().objection(number, told)
        if reason is not None:
            return reason
        places, values = told["places"], told["values"]
        if not len(np.unique(places)) == len(places) == len(values):
            return "needs as many values as places, and no place twice"
        if np.abs(values).sum() > self.plan.numbers.radius * (1 + 1e-9):
            return "needs a point of the ball"
        return None

    def gives_at(self, _number: int, told: MessageArrays) -> Wholes:
        """Among the party's columns, or what is left of them."""
        return self.place_among(len(candidates(self.plan, self.part, told["places"])))

    def value(self, round: Round) -> Array:
        plan, told, rows, sketch = round.plan, round.told, round.rows, round.memory
        radius, places, values = plan.numbers.radius, told["places"], told["values"]
        mine = [self.part.local(place, plan.features) for place in places.tolist()]
        others = float(sum(v**2 for v, local in zip(values.tolist(), mine, strict=True) if local is None))
        noise = (plan.release("feature").std ** 2 + plan.records / plan.numbers.sketch_size) * others  # of J'q, sigma^2
        theta = min(1.0, 0.7 * self.slope_bound / math.sqrt(noise)) if noise > 0 else 1.0
        scores = sketch.back(theta * told["sketch"])
        for local, value in zip(mine, values.tolist(), strict=True):
            if local is not None:
                rows.add_column(scores, local, value)
        labels = None if self.labelled else sketch.back(told["labels"])
        slopes = clipped_slopes(plan.scaled_loss, rows, scores, labels, self.slope_bound)
        stay = 0.0
        if np.abs(values).sum() + step_length(plan) * radius > radius:
            ratio = toward_zero(np.clip(scores / radius, -1.0, 1.0), rows.bits or 0)
            ratio[rows.null_rows] = 0.0
            stay = float(slopes @ ratio)
        chosen = candidates(plan, self.part, places)
        found: Array = np.append(rows.column_dots(slopes)[chosen], stay) / -self.slope_bound
        found[-1] += plan.release("atom").std * (math.log(2 * len(chosen)) + math.log(plan.rounds))
        return found


def clipped_slopes(loss: Loss, rows: Block, scores: Array, noisy_labels: Array | None, bound: float) -> Array:
    """l'(score_i, y_i) clipped to +-omega, on the grid; from noisy labels where a party does not know them.

    The losses served have slopes that are affine in the label.
    """
    if noisy_labels is None:
        return np.asarray(clipped_derivative(loss, bound, rows.bits)(scores, rows.labels))
    slopes = loss.noisy_label_slope(scores, noisy_labels)
    np.clip(slopes, -bound, bound, out=slopes)
    return toward_zero(slopes, (rows.bits or 0) - math.ceil(math.log2(bound)))


def candidates(plan: Plan, part: RowPart, places: Integers) -> Integers:
    """The columns a party may choose, by their place with it: all, or what it has released once its cap is used up."""
    width, cap = part.stop - part.start, plan.numbers.cap
    mine = [local for place in places.tolist() if (local := part.local(place, plan.features)) is not None]
    if cap is None or len([local for local in mine if local < width]) < cap:
        return np.arange(width + part.constant)
    return np.array(sorted({*mine, *([width] if part.constant else [])}), dtype=np.int64)


class NewFeature(FeatureSketch):
    """A feature that was chosen for the first time, in the party's next slot of those that its cap allows."""

    one_by_one: ClassVar[bool] = True

    def __init__(self, problem: Problem, numbers: Numbers, party: str, columns: int = 1) -> None:
        super().__init__(problem, numbers, party, columns)
        if isinstance(problem, Plan):  # at most once for each column; the sketch of the constant one is public
            self.most_asked = features_sent(problem, party)


class FeatureWithinNorm(NewFeature):
    """Likewise without a cap, in the slot of its place.

    Guarantee: all sketches of all parties together move by at most the row norm B (2 B), each released once, so in any
    order. The constant column is no part of that norm, and is not released.
    """

    unordered = True

    def __init__(self, problem: Problem, numbers: Numbers, party: str) -> None:
        if problem.bounds.row_norm is None:
            raise InputError("cap=None: features without a cap need a declared row_norm.")
        super().__init__(problem, numbers, party, problem.features)
        self.bound *= min(problem.bounds.row_norm / problem.preparation.unit, math.sqrt(problem.features))
        self.width -= problem.part(party).constant

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        return {"place": Wholes((1,), least=number, most=min(number, self.width - 1))}

    def uses(self, times: int) -> int:
        """All sketches are one release of one vector."""
        return min(times, 1)


def feature_of(problem: Problem, numbers: Numbers, party: str) -> FeatureSketch:
    """Features by the cap, or by the row norm."""
    return (FeatureWithinNorm if numbers.cap is None else NewFeature)(problem, numbers, party)


def features_sent(plan: Plan, party: str) -> int:
    """How many features a party sends at most."""
    width = plan.columns[plan.names.index(party)]
    return min(plan.rounds, width, plan.numbers.cap or width)


def step_length(plan: Plan) -> float:
    """The same in every round."""
    return float(min(plan.numbers.total_step / plan.rounds, 1.0))


def least_size(rounds: int) -> int:
    """A smaller sketch tells the inner products of columns with errors as large as themselves."""
    return max(16, math.ceil(8 * math.log(rounds + 1)))
