"""One budget on one federation: every fit, evaluation and trial is planned, run and reported here."""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from sottovoce import algorithms
from sottovoce.algorithms import Algorithm, Solution
from sottovoce.data.resources import NO_RESOURCES, Resources
from sottovoce.errors import InputError, LedgerError, WireError
from sottovoce.estimators import repeats
from sottovoce.estimators.declarations import Facts
from sottovoce.estimators.report import privacy_report
from sottovoce.federation.coordinator import Progress
from sottovoce.federation.federation import Federation
from sottovoce.plan.plan import Plan, Whole
from sottovoce.plan.problem import Problem
from sottovoce.privacy.accounting import gaussian_mu
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.transports.base import Communication

if TYPE_CHECKING:
    from sottovoce.estimators.fits import Fit


class Session:
    """One budget on one federation: what is public, plans, runs, and what they promise together.

    `with session:` gives the parties of this process its resources, and raises what went wrong inside one of them in
    the place of what it answered.
    A `resumable` session goes on with one that was interrupted, where the federation has a journal of it.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        insecure_seed: int | None = None,
        without_privacy: bool = False,
        resumable: bool = False,
        resources: Resources = NO_RESOURCES,
    ) -> None:
        self.federation, self.seed = federation, insecure_seed
        self.coordinator = federation.coordinator(
            insecure_seed=insecure_seed, without_privacy=without_privacy, fits=resumable
        )
        self.resources = resources
        self.within: Whole | None = None  # what several plans may cost together
        self.plans: tuple[Plan, ...] = ()  # of which something may have been released

    def __enter__(self) -> Self:
        self._lent = self.federation.lend(self.resources)
        self._lent.__enter__()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._lent.__exit__(None, None, None)
        if isinstance(error, WireError | LedgerError):
            self.federation.raise_failure()

    def close(self) -> None:
        """Let go of the journal, which stays if something was charged."""
        self.coordinator.journal.close()

    def facts(self, *, classes: bool = False) -> Facts:
        """What each party declares public, asked for unless it is known."""
        return self.federation.declared or self.coordinator.facts(classes=classes)

    def draft(self, form: Algorithm, problem: Problem, options: Any) -> Plan:
        """A plan with a run and a coin of its own, to be looked at."""
        coin = secrets.token_hex(16) if self.seed is None else f"seed {self.seed}"
        plan = algorithms.plan_by(form, problem, options, run=secrets.token_hex(16), coin=coin)
        about = self.federation.about
        fields = ({"about": about} if about.texts() else {}) | ({} if self.within is None else {"within": self.within})
        if fields:
            plan = plan.model_copy(update=fields)
        if self.within is not None:
            check_gaussian(plan, form)
        return plan

    def plan(self, form: Algorithm, problem: Problem, options: Any) -> Plan:
        """A plan to be run, or the one that an interrupted session had in its place; nothing is charged."""
        plan = self.draft(form, problem, options)
        if (stored := self.coordinator.stored_plan(plan)) is None:
            stored = self.coordinator.settle(self.coordinator.with_keys(plan))
        self.within = stored.within
        return stored

    def run(self, plan: Plan, form: Algorithm, progress: Progress | None = None, *, last: bool = True) -> Solution:
        """Run a plan, which every party charges before its first release. It counts also if it stops midway."""
        before = self.plans
        self.plans = (*before, plan)
        try:
            return self.coordinator.run(plan, form, progress, last=last)[0]
        except BaseException:
            if plan.digest not in self.coordinator.begun:  # nothing was asked, so nothing released
                self.plans = before
            raise

    def report(self, plan: Plan) -> PrivacyReport:
        """What all that ran promises together, in the words of this plan."""
        return privacy_report(
            plan,
            seeded=self.seed is not None,
            beside=[other for other in self.plans if other is not plan],
            left=[(name, f"round {number}") for name, number in self.coordinator.left.items()],
        )

    def note(self, plan: Plan, report: PrivacyReport, family: int | None = None) -> None:
        """Where no ledger counts: warn of what this run and earlier ones add up to."""
        guarantee = report.weakest
        if not (self.federation.counted or guarantee.void is not None or math.isinf(guarantee.epsilon)):
            repeats.note(plan, guarantee, family=family)

    @property
    def communication(self) -> Communication:
        """Bytes and rounds of all plans, answers by their kind."""
        named = {query: kind for plan in self.plans for query, kind in algorithms.kinds(plan).items()}
        kinds = Counter[str]()
        for query, count in self.coordinator.uplink.items():
            kinds[named.get(query, query)] += count
        return Communication(*self.coordinator.byte_counts, self.coordinator.asked.total(), dict(kinds))


class Purchase(ABC):
    """One more plan after a fit's own, on the same people: for an epsilon, which is a `share` of the fit's mu squared.

    `refused` says what remains if a party has no room for it.
    """

    form: Algorithm
    share: float
    refused: str

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def check(self, fit: Fit, problem: Problem) -> None:  # noqa: B027
        """Refuse a fit that it does not serve, before anything is charged."""

    def problem(self, plan: Plan) -> Problem:
        """That of the fit's plan, with its own epsilon."""
        return plan.changed_problem(epsilon=self.epsilon)

    @abstractmethod
    def options(self, fit: Fit) -> Any:
        """What its plan is designed by. Before the fit has run numbers stand in on which no cost depends."""

    @abstractmethod
    def use(self, fit: Fit, solution: Solution) -> None:
        """Give the model what was bought."""


def check_gaussian(plan: Plan, form: Algorithm) -> None:
    """Refuse a solver whose releases do not add up as Gaussian ones do, where something is bought beside the fit."""
    mu = gaussian_mu(form.pricing.events(form, plan, plan.relation, plan.names[0]), plan.relation)
    if mu is None or not math.isfinite(mu):
        raise InputError(
            f"solver={plan.algorithm!r}: what is bought beside a fit shares mu squared with it, which needs a solver "
            "with Gaussian releases alone, such as 'whitened' or 'newton'."
        )
