"""One budget on one federation: a session plans, runs and reports; a fit is what an estimator runs in one."""

from __future__ import annotations

import contextlib
import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sklearn.exceptions import ConvergenceWarning

from sottovoce import algorithms, losses
from sottovoce.algorithms import NEWTON_FEATURES, Algorithm, Solution
from sottovoce.algorithms.ranges import CountedRanges, Range, share_of, wanted
from sottovoce.data.bounds import Bounds, party_norms
from sottovoce.data.column_kinds import Number
from sottovoce.data.resources import CALM, NO_RESOURCES, Resources, plain_blas
from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError, WireError, warn
from sottovoce.estimators.declarations import (
    Facts,
    check_estimator,
    common_names,
    unknown_columns,
    warn_of,
    warn_of_norms,
)
from sottovoce.estimators.prior import prior_for
from sottovoce.estimators.report import privacy_report
from sottovoce.estimators.shapes import check_monotone
from sottovoce.federation.coordinator import Progress
from sottovoce.federation.federation import Federation
from sottovoce.plan.plan import Plan, Whole
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import MOST_PARTIES
from sottovoce.privacy.accounting import gaussian_mu
from sottovoce.privacy.calibration import mu_for, part_of
from sottovoce.privacy.events import inside
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.queries.joint import can_look_up
from sottovoce.solvers import Options, Whitened, by_name
from sottovoce.transports.base import Communication

if TYPE_CHECKING:
    from sottovoce.estimators.base import PrivateLinearModel

STAND_IN: Range = (-1.0, 1.0)
RANGES = CountedRanges()
_TAILS = 0.10  # the share that is wanted above which tails are cut


class Session:
    """One budget on one federation: what is public, plans, runs, and what they promise together.

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
        self.plans: tuple[Plan, ...] = ()  # that may have released something

    @contextlib.contextmanager
    def lending(self) -> Iterator[None]:
        """The parties of this process have its resources; what went wrong inside one is raised for what it answered."""
        try:
            with self.federation.lend(self.resources):
                yield
        except (WireError, LedgerError):
            self.federation.raise_failure()
            raise

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
        plan = self.coordinator.settle(self.draft(form, problem, options))
        self.within = plan.within
        return plan

    def run(self, plan: Plan, form: Algorithm, progress: Progress | None = None, *, last: bool = True) -> Solution:
        """Run a plan, which every party charges before its first release. It counts also if it stops midway."""
        before = self.plans
        self.plans = (*before, plan)
        try:
            # elsewhere its threads would spin beside those that share rows
            with plain_blas() if plan.dimension <= CALM else contextlib.nullcontext():
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


@dataclass(eq=False)
class Purchase(ABC):
    """One more plan after a fit's own, on the same people: for an epsilon, which is a `share` of the fit's mu squared.

    `refused` says what remains if a party has no room for it.
    """

    form: ClassVar[Algorithm]
    share: ClassVar[float]
    refused: ClassVar[str]
    what: ClassVar[str] = ""  # what asks for it, in errors
    epsilon: float

    def check(self, fit: Fit, problem: Problem) -> None:  # noqa: B027
        """Refuse a fit that it does not serve, before anything is charged."""

    def form_for(self, problem: Problem) -> Algorithm:  # noqa: ARG002
        """The form that serves a problem."""
        return self.form

    def problem(self, fit: Fit) -> Problem:
        """That of the fit's plan, with its own epsilon."""
        return fit.plan.changed_problem(epsilon=self.epsilon)

    @abstractmethod
    def options(self, fit: Fit) -> Any:
        """What its plan is designed by; before the fit has run, placeholders, on which no cost depends."""

    @abstractmethod
    def use(self, fit: Fit, solution: Solution) -> None:
        """Give the model what was bought."""


def check_gaussian(plan: Plan, form: Algorithm) -> float:
    """The mu of a plan; a solver with others than Gaussian releases is refused, as mu squared is what is shared."""
    mu = gaussian_mu(form.pricing.events(form, plan, plan.relation, plan.names[0]), plan.relation)
    if mu is None or not math.isfinite(mu):
        raise InputError(
            f"solver={plan.algorithm!r}: what is bought beside a fit shares mu squared with it, which needs a solver "
            "with Gaussian releases alone, such as 'whitened' or 'newton'."
        )
    return mu


@dataclass(frozen=True)
class EstimatedRanges:
    """The columns with a range that nobody knows, by number, the plan that estimates them, and the fit's problem.

    That plan runs before the fit's own, on the same people and in one budget. What is estimated, its share of the
    budget and what it costs follow from public numbers. A fit's noise does not depend on the ranges: until they are
    there its plan has [-1, 1] in their place.
    """

    columns: Mapping[int, Number]
    plan: Plan
    problem: Problem

    @property
    def share(self) -> float:
        """Of mu squared of both plans."""
        mine, theirs = self.plan.mu**2, self.problem.mu**2
        return mine / (mine + theirs) if math.isfinite(mine + theirs) else 0.0

    def __str__(self) -> str:
        names = ", ".join(column.name for column in self.columns.values())
        return f"ranges are estimated, before the fit: {names}"

    def named(self, ranges: Mapping[int, Range | None]) -> dict[int, Number]:
        """The columns with their ranges. One that stays unknown is an error: nothing goes on with a guess."""
        ranged = {place: column.within(ranges[place]) for place, column in self.columns.items()}
        unknown = [self.columns[place].name for place, column in ranged.items() if column is None]
        if unknown:
            raise InputError(
                f"the range of {', '.join(map(repr, unknown))} is unknown: no value is common enough to stand out of "
                f"the noise. Declare it from public knowledge, or leave the column out. Epsilon "
                f"{algorithms.epsilons(self.plan)['coordinator']:.3g} of the budget was spent on ranges, and is spent."
            )
        return {place: column for place, column in ranged.items() if column is not None}


def share_budget(problem: Problem, columns: Mapping[int, Number]) -> tuple[Problem, Problem]:
    """(the fit's problem, that of its ranges), each with its share of mu squared; or why not, before any charge."""
    asked = wanted(len(columns), problem.signal)
    if problem.calibration == "paper":
        raise InputError("calibration='paper': ranges are estimated with calibration='tight' alone; declare them.")
    if problem.most_records is not None and problem.split.same_people:
        raise InputError("ranges over columns are bought of records, and people have several here; declare them.")
    if asked > 1:
        raise InputError(
            f"the ranges of {len(columns)} columns cannot be bought: with {problem.records} records at epsilon "
            f"{problem.epsilon:g} they would take more than the whole budget. Declare them from public knowledge, or "
            "take a larger epsilon. Nothing was charged."
        )
    if asked > _TAILS:
        warn(
            f"epsilon={problem.epsilon:g}: the ranges of {len(columns)} columns get a tenth of the budget, and "
            f"{asked:.2g} of it would tell them well. Tails will be cut, of sparse columns first; declare what is "
            "publicly known."
        )
    share = share_of(len(columns), problem.signal)
    fit, ranges = (part_of(problem.epsilon, inside(problem.delta), part) for part in (1 - share, share))
    bare = {"bounds": Bounds(), "norms": (), "regulariser": Named(name="none"), "fit_intercept": False}
    return problem.changed(epsilon=fit), problem.changed(epsilon=ranges, **bare)


class Fit:
    """A fit before its first release: the parties were asked once for what is public, and its plan was made of it.

    `plan` is the fit's own. Ranges that are to be estimated are [-1, 1] in it until `run` has them; no cost depends on
    them. With `runs` the parties of this process may also be asked for what the plan releases, without privacy if that
    is what the user wants.
    """

    def __init__(self, model: PrivateLinearModel, federation: Federation, *, runs: bool = False) -> None:
        check_estimator(model)
        model._take_schema(federation)
        self.model, self.federation = model, federation
        self.purchases = model._purchases()
        self.ranges: EstimatedRanges | None = None
        self.solution: Solution | None = None
        # the user asks, by name, for a run that does not protect a person's record
        exposed = model.epsilon == math.inf or model.calibration == "paper"
        exposed = exposed or getattr(model.solver, "unit", None) == "feature"
        name: Any = getattr(model.solver, "name", model.solver)
        named = model._loss()
        loss = losses.get(named.name, **named.parameters)
        if name != "auto" and not (federation.undecided and algorithms.serves(name, loss, secure=True)):
            # one that does not serve the loss is refused before anybody is asked
            algorithms.check(name, loss, federation.split, secure=federation.secure and not exposed)
        self.session = session = Session(
            federation,
            insecure_seed=model.insecure_seed,
            without_privacy=runs and exposed,
            resumable=runs and model.epsilon != math.inf,
            resources=model.resources or NO_RESOURCES,
        )
        with contextlib.ExitStack() as unless_made, session.lending():
            unless_made.callback(session.coordinator.journal.close)
            asked: Any = {"classes": model.known_classes is None, "columns": federation.split.same_people}
            facts = federation.declared or session.coordinator.facts(**asked)
            names = federation.feature_names
            self.names = common_names(facts, federation.split) if names is None else names
            problem = model.problem(federation, facts, self.names)
            if federation.undecided:
                federation.secure_where_allowed(session.coordinator, self._plain_columns(problem))
                problem = problem.changed(aggregation=federation.aggregation())
            if problem.bounds.row_norm is not None and problem.norms:  # which may overlap if products are secure
                overlap = problem.secure_columns
                party_norms(problem.bounds.row_norm, problem.columns, problem.norms, overlap=overlap)
            for purchase in self.purchases:
                if problem.most_records is not None:
                    raise InputError(
                        f"{purchase.what}: it is of records, and has no rule for people with several; leave it out."
                    )
                purchase.form.check_weights(problem)
                purchase.check(self, problem)
            warn_of(problem, model.schema_)
            if problem.channel.secure and problem.norms and federation.norms is None and model.schema_ is None:
                warn_of_norms(problem)
            columns = unknown_columns(model, self.names, problem.features)
            if columns:
                problem, ranged = share_budget(problem, columns)
            self.solver = self._choose_solver(problem, facts)
            if getattr(self.solver, "prior", None) is not None:
                self.solver = prior_for(self.solver, problem, self.names)
            self.form = algorithms.find(self.solver.name, problem, self.solver.given())
            if problem.epsilon < model.epsilon:
                session.within = Whole(name=secrets.token_hex(16), mu=mu_for(float(model.epsilon), inside(model.delta)))
            self.plan = session.plan(self.form, problem, self.solver)
            if model.schema_ is not None:
                check_monotone(model.schema_, self.plan)
            if columns:
                first = session.plan(RANGES, ranged, tuple(columns))
                self.ranges = EstimatedRanges(columns, first, problem)
            unless_made.pop_all()

    def _choose_solver(self, problem: Problem, facts: Facts) -> Options:
        """The solver that was given, or the one of that name, or by the rule of "auto" among those that rows serve."""
        solver = self.model.solver
        if isinstance(solver, Options):
            return solver
        if solver == "auto" and self.model.alpha == "auto":
            return Whitened()
        if solver != "auto":
            return by_name(solver)
        served: set[str] | None = None
        for fact in facts.values():
            if (names := fact.get("solvers")) is not None:
                served = set(names) if served is None else served & set(names)
        return by_name(algorithms.choose(problem, served))

    def _plain_columns(self, problem: Problem) -> str | None:
        """Why a fit over columns is better without secure products, from public numbers; None if it may have them."""
        parties, loss = len(problem.parties), problem.scaled_loss
        name: Any = getattr(self.model.solver, "name", self.model.solver)
        if not problem.private:
            return "nothing is protected"
        if problem.calibration != "tight":
            return "a paper's calibration was asked for"
        if name != "auto" and algorithms.mismatch(name, loss, "columns") is None:
            return f"solver={name!r} was asked for"
        if not 2 <= parties <= MOST_PARTIES["columns"]:
            return f"{parties} parties, and 2 to {MOST_PARTIES['columns']} can be secure"
        if problem.features > NEWTON_FEATURES:
            return f"{problem.features} features, and products of at most {NEWTON_FEATURES} are made"
        return None if can_look_up(problem) else f"slopes of {loss.name!r} with these classes cannot be looked up"

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All that this fit charges, in the order in which it runs; what follows the fit as far as it is known."""
        before = () if self.ranges is None else (self.ranges.plan,)
        after = (
            self.session.draft(purchase.form_for(self.plan), purchase.problem(self), purchase.options(self))
            for purchase in self.purchases
        )
        return (*before, self.plan, *after)

    def run(self, progress: Progress | None = None) -> Solution:
        """Run all plans and have the model keep what they gave. Every party charges a plan before its first release."""
        model, session, coordinator = self.model, self.session, self.session.coordinator
        coordinator.restart_counts()
        model.__dict__.pop("ranges_", None)
        with session.lending():
            if self.ranges is not None:
                self._estimate_ranges(self.ranges)
            with contextlib.ExitStack() as shown:
                if progress is None and session.resources.verbose:
                    from sottovoce.estimators.progress import progress_bar

                    title = f"{type(model).__name__} by {self.plan.algorithm}"
                    progress = shown.enter_context(progress_bar(title, lend=self.federation.lend))
                self.solution = solution = session.run(self.plan, self.form, progress, last=not self.purchases)
            if solution.unfinished and not self.plan.private:
                warn(
                    f"solver={self.plan.algorithm!r} has not converged: {solution.unfinished}. Give it more rounds, or "
                    "take another solver.",
                    ConvergenceWarning,
                )
            model._keep(self, solution)
            for purchase in self.purchases:
                try:
                    purchase.use(self, self.buy(purchase))
                except (BudgetError, RefusedError) as refusal:
                    coordinator.leave(self.plan, solution)
                    warn(f"{purchase.refused}: {refusal}")
        model.budgets_ = dict(coordinator.budgets)
        model.receipts_ = {name: coordinator.receipts[name] for name in self.plan.names if name in coordinator.receipts}
        named, kinds = dict[str, str](), Counter[str]()  # bytes of all plans, answers by their kind
        for plan in session.plans:
            for asked in algorithms.of(plan).queries(plan, plan.names[0]):
                named[asked.name] = asked.kind or asked.name
        for query, count in coordinator.uplink.items():
            kinds[named.get(query, query)] += count
        model.communication_ = Communication(*coordinator.byte_counts, coordinator.asked.total(), dict(kinds))
        model.transcript_ = coordinator.transcript
        model.missing_parts_ = dict(coordinator.missing)
        if model.missing_parts_:
            reasons = "; ".join(f"{name} ({why.rstrip('.')})" for name, why in model.missing_parts_.items())
            warn(
                "the model is here, but not every party has its part of it, so that joint predictions over columns are "
                f"not possible: {reasons}. Predict where all columns are, or fit again."
            )
        return solution

    def buy(self, purchase: Purchase) -> Solution:
        """Run a plan after the fit's; the model's report counts it, also if it stops midway."""
        form = purchase.form_for(self.plan)
        plan = self.session.plan(form, purchase.problem(self), purchase.options(self))
        try:
            return self.session.run(plan, form)
        finally:
            self.model.plans_, self.model.privacy_ = self.session.plans, self.session.report(self.plan)

    def _estimate_ranges(self, estimated: EstimatedRanges) -> None:
        """Run the plan of the ranges and make the fit's own with them, where there is room for all that follows."""
        model, session, coordinator = self.model, self.session, self.session.coordinator
        if not coordinator.journal.begun:
            coordinator.check(self.plan)
        solution = session.run(estimated.plan, RANGES, last=False)
        try:
            columns = estimated.named(solution.model)
        except InputError:  # what was charged is spent, and is counted
            coordinator.dismiss()
            model.privacy_ = session.report(estimated.plan)
            raise
        model.ranges_ = {column.name: (column.low, column.high) for column in columns.values()}
        if (schema := model.schema_) is not None:
            own = set(schema.columns) | {schema.label}
            model.schema_ = schema.with_ranges(column for column in columns.values() if column.name in own)
        bounds, features = estimated.problem.bounds, estimated.problem.features
        lows, highs = list(bounds.feature_low or ()), list(bounds.feature_high or ())
        label = (bounds.label_low, bounds.label_high)
        for place, column in columns.items():
            if place == features:
                label = (column.low, column.high)
            else:
                lows[place], highs[place] = column.low, column.high
        ends = {"feature_low": tuple(lows) or None, "feature_high": tuple(highs) or None}
        changed = bounds.model_dump() | ends | {"label_low": label[0], "label_high": label[1]}
        problem = estimated.problem.changed(bounds=Bounds.model_validate(changed))
        self.plan = session.plan(self.form, problem, self.solver)
