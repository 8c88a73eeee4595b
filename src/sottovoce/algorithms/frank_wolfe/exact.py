"""Frank-Wolfe over columns for comparison, with raw columns or with a claim that fails.

Without privacy dFW (Bellet et al. 2015), with pairwise steps or with its own; Algorithm 2 of Lou and Cheung (2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import Array, Coordination, Solution, answer, answers, given, how_far, limited
from sottovoce.algorithms.frank_wolfe.central import AtomChoice, BallAlgorithm, RadiusNumbers, radius_of
from sottovoce.algorithms.frank_wolfe.columns import MOST, ColumnAlgorithm, SketchNumbers, clipped_slopes, least_size
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError
from sottovoce.gate.query import Integers, MessageArrays, Plain, Query, Reals, Round, Turn, Wholes, label_party
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Mechanism
from sottovoce.plan.split import RowPart
from sottovoce.queries.parts import FeatureSketch, leading_value
from sottovoce.solvers import FrankWolfe

ROUNDS = 5000
NOWHERE = -1e300  # the slope of the worst atom of a party that has none
TOLERANCE = 1e-6  # of the first duality gap


class ExactFrankWolfe(BallAlgorithm):
    """Every party offers the column of its steepest coordinate; the steepest of all moves the point, and is sent once.

    The point is a mean of atoms +-radius e_j and 0. A round moves weight from the worst atom of the mean to the best of
    all (pairwise steps, Lacoste-Julien and Jaggi 2015), as far as decreases the objective most. Two numbers per party,
    the steepest slope and the sum of w_j g_j, give the duality gap sum_j w_j g_j + radius max_j |g_j|, the certificate;
    where no round is left to measure it, that before the last move and what the move can have added.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "Frank-Wolfe with pairwise steps on the l1 ball, without privacy"
    splits = ("central", "columns")
    private: ClassVar[bool | None] = False
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "step")
    numbers: ClassVar[type[Numbers]] = RadiusNumbers

    def design(self, problem: Problem, options: FrankWolfe) -> Design:
        rounds, numbers = given(options.rounds, ROUNDS), RadiusNumbers(radius=radius_of(problem))
        queries = self.queries(problem, problem.label_party_name)
        releases = tuple(Release.of(query, 0, rounds, 0.0, 1.0) for query in queries)
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    def queries(self, plan: Problem, party: str) -> tuple[Query, ...]:
        slopes = (RecordSlopes(plan),) if plan.held_labels else ()
        return *slopes, WholeColumn(plan, party), Offer(plan, party)

    def coordinate(self, plan: Plan) -> Coordination:
        """Every party offers its steepest column; weight goes from the worst atom to the best, until the gap closes."""
        point, radius, first, change = AtomMean(plan), plan.numbers.radius, math.inf, 0.0
        for t in range(plan.rounds):
            message = point.message
            if plan.held_labels:
                message["slopes"] = yield from answer("slopes", scores=point.scores)
            offers = yield from answers("gap", **message)
            pair = point.choose(offers)
            gap = sum(offer[2] for offer in offers.values()) + radius * pair.steepest
            first, change = gap if t == 0 else first, 0.0
            if gap <= TOLERANCE * first:
                break
            if pair.best not in point.columns:
                place = offers[pair.party][:1].astype(np.int64)
                point.add(pair.best, (yield from answer(pair.party, "column", round=t, place=place)))
            change = self.move(point, pair, gap, t)
        half = plan.preparation.label_scale[1] if plan.scaled_loss.kind == "regression" else 1.0
        share = gap / first if first > 0.0 else 0.0
        far = how_far(t + 1, share, "the duality gap, as a share of the first,", TOLERANCE)
        return Solution(point.weights, {"duality_gap": float((gap + change) * half**2)}, unfinished=far)

    def move(self, point: AtomMean, pair: Pair, gap: float, t: int) -> float:  # noqa: ARG002
        """Move the point; the objective grows by no more than what is returned."""
        point.move(pair)
        return 0.0


class DistributedFrankWolfe(ExactFrankWolfe):
    """dFW (Bellet et al. 2015): w <- (1 - a_t) w + a_t atom, a_t = 2 / (t + 2), the best atom of all parties.

    Every party offers its best atom and its part of the duality gap; the coordinator is sent the column of the best of
    all, once, and tells the parties the scores.
    F(w_t) - F* <= 2 C / (t + 2) from t = 1 on (Jaggi 2013), C at most 4 radius^2 max_j mean_i x_ij^2 times kappa.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact-printed"
    title: ClassVar[str] = "dFW, Frank-Wolfe with its published step on the l1 ball, without privacy"
    when: ClassVar[Mapping[str, str]] = {"step": "printed"}

    def move(self, point: AtomMean, pair: Pair, gap: float, t: int) -> float:
        step = 2.0 / (t + 2.0)
        return step * (step * point.shrink_toward(pair.best, step) / 2 - gap)


class Pair(NamedTuple):
    """The best atom of all and the worst of the mean, by their codes, and how steep the objective is along them."""

    party: str  # that has the best
    best: int
    steepest: float  # |g_j| of the best
    worst: int
    ascent: float  # <atom, g> of the worst


class AtomMean:
    """A mean of atoms +-radius e_j, by their codes, and of the origin, which has the code 0; and its scores."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.radius = plan, plan.numbers.radius
        self.shares: dict[int, float] = {0: 1.0}
        self.columns = {0: np.zeros(plan.records)}  # scores of the atoms that were sent
        self.scores = np.zeros(plan.records)

    @property
    def message(self) -> dict[str, NDArray[Any]]:
        """The point, for parties that know its scores."""
        places = np.array([abs(code) - 1 for code in self.shares if code], dtype=np.int64)
        values = [math.copysign(self.radius, code) * share for code, share in self.shares.items() if code]
        return {"scores": self.scores, "places": places, "values": np.array(values, dtype=np.float64)}

    def choose(self, offers: Mapping[str, Array]) -> Pair:
        """The best atom that is offered, and the worst of the mean."""
        steepest, slope, party = max((abs(offer[1]), offer[1], name) for name, offer in offers.items())
        place = self.plan.part(party).place(int(offers[party][0]), self.plan.features)
        ascent, worst = max([(offer[3], int(offer[4])) for offer in offers.values()])
        if self.shares.get(0, 0.0) > 0.0 and ascent <= 0.0:
            ascent, worst = 0.0, 0
        return Pair(party, (place + 1) * (-1 if slope > 0 else 1), steepest, worst, ascent)

    def add(self, code: int, entries: Array) -> None:
        """Take in the column of an atom, and of its negative."""
        self.columns[code], self.columns[-code] = (math.copysign(self.radius, sign) * entries for sign in (code, -code))

    def move(self, pair: Pair) -> None:
        """As far as decreases a quadratic bound of the objective most."""
        move, most = self.columns[pair.best] - self.columns[pair.worst], self.shares[pair.worst]
        curvature = self.plan.scaled_loss.curvature_bound * float(move @ move) / self.plan.records
        step = min(most, (pair.ascent + self.radius * pair.steepest) / curvature) if curvature > 0 else most
        self.shares[pair.worst] = most - step if step < most else 0.0
        self.shares[pair.best] = self.shares.get(pair.best, 0.0) + step
        self.shares = {code: share for code, share in self.shares.items() if share > 0.0}
        self.scores = self.scores + step * move

    def shrink_toward(self, best: int, step: float) -> float:
        """The step of every other atom's share to the best; how much the objective bends at most along the way."""
        move = self.columns[best] - self.scores
        self.shares = {code: (1 - step) * share for code, share in self.shares.items() if (1 - step) * share > 0.0}
        self.shares[best] = self.shares.get(best, 0.0) + step
        self.scores = (1 - step) * self.scores + step * self.columns[best]
        return float(self.plan.scaled_loss.curvature_bound * (move @ move) / self.plan.records)

    @property
    def weights(self) -> Array:
        weights, point = np.zeros(self.plan.dimension), self.message
        np.add.at(weights, point["places"], point["values"])
        return weights


class Offer(Plain):
    """Of a party's columns: the steepest j, its slope g_j, sum_j w_j g_j, the worst atom's <atom, g> and its code.

    g is the gradient of the mean loss.
    """

    name = "gap"
    title = "a party's steepest feature, its slope, and its part of the duality gap"

    length = 5
    limits: ClassVar[tuple[float, float]] = (NOWHERE, LARGEST)  # the first for the worst atom where a party has none

    def __init__(self, problem: Problem, party: str) -> None:
        self.held, self.part, self.features = problem.held_labels, problem.part(party), problem.features
        people, places = Reals((problem.records,)), Wholes((None,), least=0, most=problem.dimension - 1)
        slopes = {"slopes": people} if self.held else {}
        self.takes = {"scores": people, **slopes, "places": places, "values": Reals((None,))}

    def objection(self, number: int, told: MessageArrays) -> str | None:
        reason = super().objection(number, told)
        uneven = reason is None and len(told["places"]) != len(told["values"])
        return "needs as many values as places" if uneven else reason

    def rejection(self, number: int, told: MessageArrays, value: NDArray[Any]) -> str | None:
        """A column of the party, and an atom of the point that is there; only where none is, none."""
        reason = super().rejection(number, told, value)
        if reason is not None:
            return reason
        signs = np.where(told["values"] > 0, 1, -1)
        here = [self.part.local(place, self.features) is not None for place in told["places"].tolist()]
        codes = ((told["places"] + 1) * signs)[here].tolist()
        known = float(value[4]) in codes if codes else value[3:].tolist() == [NOWHERE, 0.0]
        if known and float(value[0]) in range(self.part.preparation.dimension):
            return None
        return "has to name a column of the party and an atom of the point"

    def value(self, round: Round) -> Array:
        plan, told = round.plan, round.told
        slopes = told["slopes"] if self.held else plan.scaled_loss.derivative(told["scores"], round.rows.labels)
        gradient = round.rows.column_dots(np.ascontiguousarray(slopes)) / plan.records
        best = int(np.argmax(np.abs(gradient)))
        along, worst, bad = 0.0, -math.inf, 0
        for place, value in zip(told["places"].tolist(), told["values"].tolist(), strict=True):
            local = self.part.local(place, plan.features)
            if local is None:
                continue
            along += value * gradient[local]
            here = math.copysign(plan.numbers.radius, value) * gradient[local]
            if here > worst:
                worst, bad = here, (place + 1) * (1 if value > 0 else -1)
        return np.array([best, gradient[best], along, max(worst, NOWHERE), bad])


class WholeColumn(Plain):
    """The entries of one column, as they are prepared."""

    name = "column"
    title = "the entries of one feature, for all people"
    kind: ClassVar[str] = "features"

    def __init__(self, problem: Problem, party: str) -> None:
        self.length = problem.records
        self.takes = {"place": Wholes((1,), least=0, most=problem.part(party).preparation.dimension - 1)}

    def value(self, round: Round) -> Array:
        values, records = round.rows.column(int(round.told["place"][0]))
        found = np.zeros(len(round.rows))
        found[slice(None) if records is None else records] = values
        return found


class RecordSlopes(Plain):
    """l'(score_i, y_i) of every record; null rows have labels of their own and no entries."""

    name = "slopes"
    title = "the slope of the loss of every person"
    answered_by: Turn = label_party

    def __init__(self, problem: Problem) -> None:
        self.length, self.takes = problem.records, {"scores": Reals((problem.records,))}

    def value(self, round: Round) -> Array:
        return round.plan.scaled_loss.derivative(round.told["scores"], round.rows.labels)


ZETA = 0.1  # the published sketch keeps inner products to about this share


class PublishedColumnNumbers(SketchNumbers):
    """Also how many of its columns each party considers for a choice."""

    sketch: Literal["gaussian"]
    candidates: int = Field(ge=1, lt=2**31)


class PublishedColumnFrankWolfe(ColumnAlgorithm):
    """Algorithm 2 as printed: in every round all K parties send an index and a sketched feature.

    Party k draws `candidates` of its columns by the public coin and sends the signed one of the largest +-g_j + Laplace
    noise of scale b = (2 G radius / (K n)) sqrt(32 T log(2/delta)) / epsilon (g the gradient of the mean loss), and
    J a_j + N(0, pi^2), pi = s(J) sqrt(K T) sqrt(2 (log(1/delta) + epsilon / 2)) / (epsilon / 2), s(J) the leading
    singular value of the J that is drawn (parts A and B of the analysis). The point moves to (1 - step) w + step
    (radius / K) sum_k atom_k (lines 3 to 5, eq. 15) with step = 2 / (p t + 2) of Theorem 1, p the least probability of
    a column: candidates / the most columns of a party, K candidates / d for equal parts. Its limit is the solution on
    the product of K balls of radius / K, not on the ball.

    Departures: T = (n epsilon)^(2/3) leaves out the factor (C / (C_g + C_l))^(2/3) of Theorem 3, whose C_g counts the
    entries that are not 0, which is private; the draw of the candidates is public; zeta and the constant of m are ours;
    the point is not sent down, as no party uses it.

    Guarantee: that of all K T choices and all K T features, whose costs add; the printed b leaves that K out, divides
    by it once more, and has the units of a step. The slopes are clipped to G = 1 + radius, without which nothing finite
    holds.
    """

    form: ClassVar[str] = "published-columns"
    title: ClassVar[str] = "Frank-Wolfe over columns as published: every party moves in every round"
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "sketch_size", "candidates")
    mechanism: ClassVar[Mechanism] = "noisy-max"
    numbers: ClassVar[type[Numbers]] = PublishedColumnNumbers

    def design(self, problem: Problem, options: FrankWolfe) -> Design:
        """T = (n epsilon)^(2/3), m = log(sqrt T) / zeta^2 with zeta = 0.1 (Theorem 3, Table 2)."""
        if not problem.scaled_loss.quadratic or problem.labels == "held":
            raise InputError(
                f"solver={self.name!r}, calibration='paper' over columns is published for the squared loss and labels "
                "that all parties know; take PrivateLasso and labels='shared', or calibration='tight'."
            )
        radius, parties = radius_of(problem), len(problem.parties)
        printed = math.ceil((problem.records * problem.epsilon) ** (2 / 3))
        rounds = limited("rounds", given(options.rounds, printed), 1, MOST)
        size = given(options.sketch_size, math.ceil(max(math.log(math.sqrt(rounds)), 0.16) / ZETA**2))
        narrowest = min(problem.part(name).preparation.dimension for name in problem.names)
        numbers = PublishedColumnNumbers(
            radius=radius,
            slope_bound=1.0 + radius,
            sketch="gaussian",
            sketch_size=limited("sketch_size", size, least_size(rounds), MOST),
            candidates=limited("candidates", given(options.candidates, narrowest), 1, narrowest),
        )
        # b in the units of the scores, which are sums divided by G
        scale = 2 * radius / parties * math.sqrt(32 * rounds * math.log(2 / problem.delta)) / problem.epsilon
        half = problem.epsilon / 2
        std = (
            leading_value(numbers.sketch_size, problem.records)
            * math.sqrt(parties * rounds)
            * math.sqrt(2 * (math.log(1 / problem.delta) + half))
            / half
        )
        scores = PublishedScores(problem, numbers, problem.label_party_name)
        feature = FeatureSketch(problem, numbers, problem.label_party_name)
        releases = (Release.of(scores, 0, rounds, scale, mechanism=self.mechanism), Release.of(feature, 0, rounds, std))
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        self.check_choices(plan)
        return PublishedScores(plan, plan.numbers, party), FeatureSketch(plan, plan.numbers, party)

    def coordinate(self, plan: Plan) -> Coordination:
        """All parties choose, all send their feature; the sketch of the scores follows the point."""
        parts = {name: plan.part(name) for name in plan.names}
        weights, sketched = np.zeros(plan.dimension), np.zeros(plan.numbers.sketch_size)
        each, widest = plan.numbers.radius / len(parts), max(part.preparation.dimension for part in parts.values())
        for t in range(plan.rounds):
            codes = yield from answers("atom", sketch=sketched)
            chosen = {name: considered(plan, parts[name], t)[abs(int(code[0])) - 1] for name, code in codes.items()}
            places = {name: {"place": np.array([local], dtype=np.int64)} for name, local in chosen.items()}
            features = yield from answers("feature", each=places)
            length = 2.0 / (plan.numbers.candidates / widest * t + 2.0)
            weights, sketched = (1 - length) * weights, (1 - length) * sketched
            for name, feature in features.items():
                move = length * each * (1.0 if codes[name][0] > 0 else -1.0)
                weights[parts[name].place(int(chosen[name]), plan.features)] += move
                sketched += move * feature
        return weights


class PublishedScores(AtomChoice):
    """-sum_i r_i x_ij / G for the columns drawn for this round, r_i = (J'q)_i - y_i clipped to +-G.

    Guarantee: as of every choice of an atom, zero-out moves each by at most 1, replace-one by 2.
    """

    def __init__(self, problem: Problem, numbers: Numbers, party: str) -> None:
        super().__init__(problem)
        self.part, self.slope_bound = problem.part(party), float(numbers.slope_bound)
        self.places = min(int(numbers.candidates), self.part.preparation.dimension)
        self.takes = {"sketch": Reals((numbers.sketch_size,))}

    def value(self, round: Round) -> Array:
        scores = round.memory.back(round.told["sketch"])
        slopes = clipped_slopes(round.plan.scaled_loss, round.rows, scores, None, self.slope_bound)
        drawn = considered(round.plan, self.part, round.number)
        return round.rows.column_dots(slopes)[drawn] / -self.slope_bound


def considered(plan: Plan, part: RowPart, number: int) -> Integers:
    """The columns of a party that are considered in a round."""
    width, count = part.preparation.dimension, plan.numbers.candidates
    if count >= width:
        return np.arange(width)
    return np.sort(plan.public_coin(f"columns {part.start} {number}").permutation(width)[:count])
