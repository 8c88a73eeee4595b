"""What a party demands of a plan before it touches its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce.algorithms import Algorithm
from sottovoce.data.bounds import Bounds
from sottovoce.federation.demands import NOTHING, Known, refusal
from sottovoce.plan.channel import Coalition
from sottovoce.plan.plan import Plan
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import Gaussian, Unbounded
from sottovoce.privacy.relation import Relation, distance, inside
from sottovoce.queries.pricing import coalition_epsilon


@dataclass(frozen=True)
class Policy:
    """What a party demands of each plan before it touches its rows; what all plans together may cost is a ledger's.

    A limit on epsilon holds at the plan's delta, without a limit on delta at 1/N at most: above it any leak is cheap.
    The cost is taken under `relation`; None leaves the choice to the plan. Of secure sums it is that against the worst
    of those whom the plan declares. `tell_classes` lets a coordinator ask which labels occur, without noise.
    `predict_for` names who may learn joint predictions about the people here: parties, or
    "coordinator"; no epsilon covers them, and counts of them leave under a plan alone. `trains=False`: these people are
    predicted for and never trained or evaluated on. Rows that may be trained on are predicted for only with
    `predict_training`. A model is used once its holder approved it (`sottovoce models approve`); with `approve_models`
    every one that a run left: for whoever trusts the coordinator.
    `secure` lets it take part in secure sums, whose promise rests on more than noise. What a plan of them may assume:
    `dealer` deals, "coordinator" or the name of a dealer ("": the coordinator or a dealer that is pinned, and no end
    that is pinned is left out); as few as `colluding` parties collude with one another (None: its noise holds against
    all others); by columns records with identifiers were not aligned, only with `unaligned`; the keys of all other ends
    are pinned. By rows `max_epsilon_colluding`, where it is finite, does in the place of all pins but a dealer's: it
    limits what a plan costs against the coordinator (or the dealer that tops up) with all other parties; by columns
    that is all.
    `align` names the parties with which, all together, the records may be aligned by private set intersection,
    matched by `align_matched_by` alone ("": by whom the coordinator says), `count_shared` those with each of which
    shared people may be counted; no epsilon covers what these tell. So often as `align_times` in all, and with no list
    of more than `align_ratio` times the own identifiers: a party can make up some to test.
    `tell_budget` lets the coordinator know, for its report, what the account had before a plan and has after it.
    """

    max_epsilon: float = math.inf
    max_delta: float = 1.0
    allow_without_privacy: bool = False
    bounds: Bounds | None = None
    relation: Relation | None = None
    tell_classes: bool = False
    predict_for: tuple[str, ...] = ()
    predict_training: bool = False
    tell_budget: bool = False
    approve_models: bool = False
    trains: bool = True
    secure: bool = False
    dealer: str = ""
    colluding: int | None = None
    unaligned: bool = False
    max_epsilon_colluding: float | None = None
    align: tuple[str, ...] = ()
    align_matched_by: str = ""
    count_shared: tuple[str, ...] = ()
    align_times: int = 3
    align_ratio: float = 10.0

    @property
    def _limits_colluding(self) -> bool:
        """Whether there is a limit on what everybody else together may learn; infinity is none."""
        return self.max_epsilon_colluding is not None and self.max_epsilon_colluding < math.inf

    def needs_pins(self, plan: Plan) -> bool:
        """Whether the keys of all other ends of a plan of secure sums have to be pinned.

        By rows a limit on what everybody else together may learn does in their place, however many are made up.
        """
        return plan.split.same_people or not self._limits_colluding

    def refuse(self, plan: Plan, form: Algorithm, party: str, known: Known = NOTHING) -> str | None:
        """The reason to refuse, or None. The cost is computed from the plan's releases, never taken from its claim."""
        if (reason := refusal(self, plan, party, known)) is not None:
            return reason
        if self.bounds is not None and self.bounds not in (plan.bounds, plan.part(party).preparation.bounds):
            return "the plan's bounds are not the ones this party declared for its data"
        relation = self.relation or plan.relation
        events = form.pricing.events(form, plan, relation, party)
        if any(isinstance(event, Unbounded) for event in events):
            return None if self.allow_without_privacy else "the plan releases values without noise"
        if plan.delta > self.max_delta:
            return f"the plan's delta {plan.delta:.3g} is above this party's limit {self.max_delta:.3g}"
        delta = plan.delta if self.max_delta < 1 else min(plan.delta, 1 / plan.records)
        if math.isfinite(self.max_epsilon):
            epsilon = epsilon_of(events, inside(delta), relation)
            if plan.within is not None:  # the whole of it may be charged with this plan
                mu = plan.within.mu * max(distance(relation) / distance(plan.relation), 1.0)
                epsilon = max(epsilon, epsilon_of((Gaussian(mu),), inside(delta), relation))
            if not epsilon <= self.max_epsilon:
                what = "the plan" if plan.within is None else "the plan, with all of its fit,"
                return (
                    f"{what} costs epsilon {epsilon:.4g} at delta {delta:.3g}, above this party's limit "
                    f"{self.max_epsilon:.4g}"
                )
        return self._refuse_colluding(plan, form, relation, delta)

    def _refuse_colluding(self, plan: Plan, form: Algorithm, relation: Relation, delta: float) -> str | None:
        """The reason to refuse what is left where everybody else colludes, or None."""
        if self.max_epsilon_colluding is None or not self._limits_colluding:
            return None
        everybody = Coalition(len(plan.parties) - 1, dealer=True)
        epsilon = coalition_epsilon([(form, plan, form.pricing)], relation, everybody, delta)
        if plan.within is not None:
            mu = plan.within.mu * max(distance(relation) / distance(plan.relation), 1.0)
            mu /= math.sqrt(plan.channel.share)
            epsilon = max(epsilon, epsilon_of((Gaussian(mu),), inside(delta), relation))
        if epsilon <= self.max_epsilon_colluding:
            return None
        costs = f"epsilon {epsilon:.4g} at delta {delta:.3g}" if math.isfinite(epsilon) else "everything"
        return (
            f"against {plan.channel.everybody_else} the plan costs {costs}, above this party's limit "
            f"max_epsilon_colluding={self.max_epsilon_colluding:.4g}; give shares of the noise for more that collude "
            "(secure_aggregation(colluding_with_dealer=...), by rows), or raise the limit"
        )
