"""`whitened` for times to an event: counts in hazards whose baseline is renewed between rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, cast

import numpy as np

from sottovoce.algorithms.base import Array, Asking, Solution, total
from sottovoce.algorithms.whitened.private import ConstantModel, PrivateWhitened
from sottovoce.algorithms.whitened.rule import Descent, Moments, Units, White
from sottovoce.errors import InputError
from sottovoce.gate.query import Query
from sottovoce.losses import Hazard, Kind, KnownLabels
from sottovoce.plan import Plan, Problem
from sottovoce.queries.counts import EventCounts, RiskSums

EVENTS, RISK = 0.01, 0.05  # shares of mu^2: of the counts of events, and of all Breslow steps
AGAIN = (6 / 32, 12 / 32, 20 / 32)  # of the rounds, after which the baseline is renewed
BEYOND = 2.0  # beyond the mean score, at least: hazards that are larger count as this one
STEEPEST = 6.0


@dataclass(frozen=True)
class EventModel(ConstantModel):
    """With how many events each period has."""

    events: Array = field(kw_only=True)


@dataclass
class EventDescent(Descent):
    """Likewise."""

    events: Array = field(kw_only=True)

    @property
    def steps(self) -> int:
        """That were taken."""
        return self._count


class PrivateHazards(PrivateWhitened):
    """One row for each person: an event is a count in the exposure Lambda_0(t), which is told (Aitkin, Clayton 1980).

    Events are counted by period once. Before the first gradient, three times between them, and before the rescale
    a Breslow step renews the baseline: rate_j = events_j / sum_i E_ij exp(score_i). All else is as of counts.

    Guarantee: as of counts; events move by 1 and sqrt 2, a Breslow step by 1 (`proof.md`).
    """

    form: ClassVar[str] = "hazards"
    title: ClassVar[str] = "whitened descent for times to an event, the baseline renewed by Breslow steps"
    kinds: ClassVar[tuple[Kind, ...]] = ("time",)
    takes_weights: ClassVar[bool] = False
    asks: ClassVar[tuple[type[Query], ...]] = (*PrivateWhitened.asks, EventCounts, RiskSums)
    renewed: ClassVar[bool] = True

    def repeats(self, rounds: int) -> dict[str, int]:
        return {"risk": 2 + len(renewals(rounds))}

    def shares(self, signal: float, names: list[str]) -> dict[str, float]:
        own = {"events": EVENTS, "risk": RISK}
        others = super().shares(signal, [name for name in names if name not in own])
        return own | {name: (1 - EVENTS - RISK) * share for name, share in others.items()}

    def label_numbers(self, plan: Problem) -> list[Query]:
        if not plan.fit_intercept:
            raise InputError("fit_intercept=False: the baseline hazard is an intercept; leave it out.")
        return [EventCounts(hazard_of(plan).periods), RiskSums(hazard_of(plan), plan.dimension)]

    def start(self, plan: Plan) -> Asking[ConstantModel]:
        """At one hazard for everybody within each period."""
        std = self.deviation(plan, "events")
        events = np.maximum((yield from total("events")), 2 * std)
        mean = min(max(float(events.sum()) / plan.records, 1e-6), 1.0)
        units = Units.of(plan.scaled_loss, KnownLabels(0.0, mean, mean, STEEPEST * (1 + math.sqrt(mean))))
        weights = np.zeros(plan.dimension)
        units = yield from self.baseline(plan, units, events, weights)
        return EventModel(weights, np.zeros(1), units, events=events)

    def baseline(
        self, plan: Plan, units: Units, events: Array, weights: Array, moments: Moments | None = None
    ) -> Asking[Units]:
        """A Breslow step at these weights: its rates are those of the loss from here on."""
        loss, top = cast("Hazard", units.loss), 0.0
        if moments is not None:
            along = moments.into(weights)
            mean = 0.0 if moments.mean is None else float(moments.mean @ along)
            top = mean + max(BEYOND, 2 * math.sqrt(max(float(moments.values @ along**2) - mean**2, 0.0)))
        most, widths = math.exp(min(max(top, -200.0), 200.0)), np.diff(loss.periods)
        found = yield from total("risk", weights=weights, range=np.array([most]))
        risk = np.maximum(found, 4 * self.deviation(plan, "risk")) * math.sqrt(len(widths)) * most * widths
        return replace(units, loss=replace(loss, rates=tuple((events / risk).tolist())))

    def descent(self, plan: Plan, white: White, start: ConstantModel, left: float, noise: float) -> Descent:
        one = super().descent(plan, white, start, left, noise)
        events = start.events if isinstance(start, EventModel) else np.zeros(0)
        return EventDescent(**{each.name: getattr(one, each.name) for each in fields(Descent)}, events=events)

    def renew(self, plan: Plan, descent: Descent) -> Asking[None]:
        """A Breslow step where it is time."""
        if isinstance(descent, EventDescent) and descent.white and descent.steps in renewals(plan.rounds):
            white, point = descent.white, descent.along_columns(descent.point)
            weights = white.matrix @ point if white.matrix.ndim > 1 else white.matrix * point
            units = yield from self.baseline(plan, descent.units, descent.events, weights, white.moments)
            descent.units = white.units = units

    def rescale(self, plan: Plan, white: White, descent: Descent, start: ConstantModel) -> Asking[Solution]:
        """The last Breslow step, at the weights that the descent gives; then as of counts."""
        weights = white.weights(np.mean(descent.taken, axis=0), descent.stiffness, plan.scaled_regulariser)
        if isinstance(descent, EventDescent):
            white.units = yield from self.baseline(plan, white.units, descent.events, weights, white.moments)
        found = yield from super().rescale(plan, white, descent, start)
        return replace(found, baseline=cast("Hazard", white.units.loss).rates)

    def deviation(self, plan: Plan, query: str) -> float:
        """Of the noise of one sum over the parties."""
        return plan.release(query).std * math.sqrt(plan.channel.variance)


def renewals(rounds: int) -> tuple[int, ...]:
    """After how many gradients the baseline is renewed."""
    return tuple(sorted({max(1, round(share * rounds)) for share in AGAIN}))


def hazard_of(problem: Problem) -> Hazard:
    """Of times, as `Algorithm.check_loss` has seen."""
    return cast("Hazard", problem.scaled_loss)
