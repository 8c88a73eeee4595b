"""Frank-Wolfe without privacy over columns: dFW (Bellet et al. 2015), with pairwise steps. Raw columns are sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Array, Coordination, Solution, answer, answers, given, how_far
from sottovoce.algorithms.frank_wolfe.central import BallAlgorithm, RadiusNumbers, radius_of
from sottovoce.data.bounds import LARGEST
from sottovoce.gate.query import MessageArrays, Plain, Query, Reals, Round, Turn, Wholes, label_party
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.solvers import FrankWolfe

ROUNDS = 5000
NOWHERE = -1e300  # the slope of the worst atom of a party that has none
TOLERANCE = 1e-6  # of the first duality gap


class ExactFrankWolfe(BallAlgorithm):
    """Every party offers the column of its steepest coordinate; the steepest of all moves the point, and is sent once.

    The point is a mean of atoms +-radius e_j and 0. A round moves weight from the worst atom of the mean to the best of
    all (pairwise steps, Lacoste-Julien and Jaggi 2015), as far as decreases the objective most. Two numbers per party,
    the steepest slope and the sum of w_j g_j, give the duality gap sum_j w_j g_j + radius max_j |g_j|, the certificate.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "Frank-Wolfe with pairwise steps on the l1 ball, without privacy"
    splits = ("central", "columns")
    private: ClassVar[bool | None] = False
    options: ClassVar[tuple[str, ...] | None] = ("rounds",)
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
        point, radius, first = AtomMean(plan), plan.numbers.radius, math.inf
        for t in range(plan.rounds):
            message = point.message
            if plan.held_labels:
                message["slopes"] = yield from answer("slopes", scores=point.scores)
            offers = yield from answers("gap", **message)
            pair = point.choose(offers)
            gap = sum(offer[2] for offer in offers.values()) + radius * pair.steepest
            first = gap if t == 0 else first
            if gap <= TOLERANCE * first:
                break
            if pair.best not in point.columns:
                place = offers[pair.party][:1].astype(np.int64)
                point.add(pair.best, (yield from answer(pair.party, "column", round=t, place=place)))
            point.move(pair)
        half = plan.preparation.label_scale[1] if plan.scaled_loss.kind == "regression" else 1.0
        share = gap / first if first > 0.0 else 0.0
        far = how_far(t + 1, share, "the duality gap, as a share of the first,", TOLERANCE)
        return Solution(point.weights, {"duality_gap": float(gap * half**2)}, unfinished=far)


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
