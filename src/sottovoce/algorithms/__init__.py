"""Solvers: a folder for each family, its forms and their proof. Here: forms by name and the rule of `solver="auto"`."""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sottovoce.algorithms.base import Algorithm as Algorithm
from sottovoce.algorithms.base import Ask as Ask
from sottovoce.algorithms.base import Need
from sottovoce.algorithms.base import Solution as Solution
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Query, everyone
from sottovoce.losses import Loss
from sottovoce.plan import Plan, Problem, Release
from sottovoce.plan.plan import FAMILIES, family
from sottovoce.plan.split import SPLITS, SecureSums
from sottovoce.privacy.accounting import gaussian_mu
from sottovoce.privacy.events import Gaussian, Relation
from sottovoce.privacy.guarantee import Profile
from sottovoce.privacy.mechanisms import LEAST_SHARE, MAX_WIDE
from sottovoce.queries.pricing import Run, coalition_epsilon, epsilons_at, joint_profiles, queries_of
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.ring import TAIL, grid_bits, ring_bits
from sottovoce.solvers.names import meant_solver

SOLVERS = FAMILIES  # by name
FEWEST_BITS = 6  # that rows and slopes may have


def forms(solver: str) -> tuple[Algorithm, ...]:
    """The forms of a solver, in the order in which they are tried."""
    found = family(solver)
    return () if found is None else tuple(form for form in found.FORMS if form.name == solver)


def every_form() -> tuple[Algorithm, ...]:
    """The forms of all solvers."""
    return tuple(form for name in SOLVERS for form in forms(name))


def of(plan: Plan) -> Algorithm:
    """The form that a plan names; a plan for one that there is not is refused."""
    for form in forms(plan.algorithm):
        if form.form == plan.form and form.people in (None, plan.most_records is not None):
            return form
        if form.form == plan.form:
            of_what = "records, each a person's only one" if not form.people else "people with several records"
            raise RefusedError(f"the form {plan.form!r} of {plan.algorithm!r} is for {of_what}; the plan is not.")
    raise RefusedError(f"the plan is for {plan.algorithm!r} in the form {plan.form!r}, which there is not.")


def profiles(plan: Plan, relation: Relation | None = None, *, beside: Sequence[Plan] = ()) -> dict[str, Profile]:
    """What a plan, with plans beside it on the same people, costs against each adversary, at every delta."""
    form, relation = of(plan), relation or plan.relation
    if not beside:
        return form.pricing.profiles(form, plan, relation)
    runs = [(form := of(each), each, form.pricing) for each in (plan, *beside)]
    if any(form.published for form, _, _ in runs):
        raise InputError("calibration='paper': a published form has a price of its own; nothing is bought beside it.")
    return joint_profiles(runs, relation)


def epsilons(plan: Plan, relation: Relation | None = None) -> dict[str, float]:
    """The true epsilon of a plan against each adversary."""
    return epsilons_at(profiles(plan, relation), plan.delta)


def colluding(plan: Plan, *, beside: Sequence[Plan] = ()) -> dict[str, float]:
    """The epsilon of a plan, with plans beside it, against those who collude, by name; empty where none secures.

    Of plans that sample a few sizes of coalitions alone: each takes a while to account for.
    """
    channel, runs = None, list[Run]()
    for each in (plan, *beside):
        runs.append((form := of(each), each, form.pricing))
        if channel is None and isinstance(each.channel, SecureSums):
            channel = each.channel
    if channel is None:
        return {}
    plain = True
    for own, each, pricing in runs:
        events = pricing.events(own, each, plan.relation, each.names[0])
        plain = plain and gaussian_mu(events, plan.relation) is not None
    counts = range(1, channel.parties) if plain else sorted({1, channel.parties // 2, channel.parties - 1})
    coalitions = channel.coalitions(counts)
    return {name: coalition_epsilon(runs, plan.relation, who, plan.delta) for name, who in coalitions}


def titles(plan: Plan) -> dict[str, str]:
    """What each release of a plan is called in reports."""
    return {query.name: query.title for query in of(plan).queries(plan, plan.names[0])}


def mismatch(solver: str, loss: Loss, split: str, *, secure: bool = False) -> str | None:
    """Why a solver cannot serve, whatever the rest of the problem, or None."""
    serving, fitting = False, list[Algorithm]()
    for form in forms(solver):
        if form.serves(split, secure=secure):
            serving = True
            if form.takes_scores(loss):
                fitting.append(form)
    if secure and not serving:
        return f"solver={solver!r} uses more than sums over the parties, and only sums can be secure"
    if serving and not fitting:
        if loss.kind in ("count", "time"):
            return f"solver={solver!r} does not take the loss {loss.name!r}"
        few = f"tells two classes apart, not {loss.outputs}"
        return f"solver={solver!r} {'has no thresholds between ordered classes' if loss.ordered else few}"
    if not fitting:
        return f"solver={solver!r} does not serve {SPLITS[split].data}{SPLITS[split].refusal}"
    if loss.weighted and not any(form.weighted for form in fitting):
        return f"solver={solver!r} takes no class_weight"
    unmet = list[Need]()
    for form in fitting:
        for need in form.needs:
            if not need.met(loss):
                unmet.append(need)
                break
        else:
            return None
    return f"solver={solver!r} {unmet[0].words.format(loss.name)}"


def serves(solver: str, loss: Loss, *, secure: bool) -> bool:
    """Whether a solver serves columns so."""
    return solver in SOLVERS and mismatch(solver, loss, "columns", secure=secure) is None


@functools.cache
def served(rows: type) -> tuple[str, ...]:
    """The solvers whose private forms, in one place and by rows, ask for nothing but what rows of this type answer."""

    def asked(solver: str) -> list[type[Query]]:
        own = [form for form in forms(solver) if form.private is not False and {"central", "rows"} & {*form.splits}]
        return [query for form in own if not form.people for query in form.asks]

    found = {solver: asked(solver) for solver in SOLVERS}
    return tuple(name for name, own in found.items() if own and all(query.needs in rows.__mro__ for query in own))


def check(solver: str, loss: Loss, split: str, *, secure: bool = False) -> None:
    """Refuse a solver that is unknown or does not fit; the error lists those that do."""
    if solver not in SOLVERS:
        fitting = _fitting(loss, split, secure=secure)
        meant = meant_solver(solver, SOLVERS)
        raise InputError(
            f"solver={solver!r} is unknown{meant} For the loss {loss.name!r} and a {split} split: {fitting}."
        )
    reason = mismatch(solver, loss, split, secure=secure)
    if reason is not None:
        raise InputError(f"{reason}; solvers that fit: {_fitting(loss, split, secure=secure)}.")


def _fitting(loss: Loss, split: str, *, secure: bool) -> str:
    return ", ".join(name for name in SOLVERS if mismatch(name, loss, split, secure=secure) is None) or "none yet"


def find(solver: str, problem: Problem, options: Mapping[str, Any]) -> Algorithm:
    """The first form of a solver that fits the problem; refused if it does not take the loss or an option."""
    loss, secure, published = problem.scaled_loss, problem.channel.secure, problem.calibration == "paper"
    check(solver, loss, problem.split, secure=secure)
    private = math.isfinite(problem.epsilon)
    for form in forms(solver):
        fits = form.serves(problem.split, secure=secure) and form.published == published
        fits = fits and form.takes_scores(loss) and (form.weighted or not loss.weighted)
        fits = fits and form.people in (None, problem.most_records is not None)
        fits = fits and (private if published else form.private in (None, private))
        if fits and form.when.items() <= options.items():
            form.check_loss(loss)
            form.check_weights(problem)
            for name, value in options.items():
                if form.options is not None and name not in form.options:
                    known = ", ".join(form.options)
                    raise InputError(f"{name}={value!r} means nothing to solver={solver!r} here; it takes {known}.")
            return form
    raise _without_form(solver, problem)


def _without_form(solver: str, problem: Problem) -> InputError:
    """Why no form of a solver fits a problem."""
    published, exact = problem.calibration == "paper", math.isinf(problem.epsilon)
    if problem.most_records is not None:
        return _without_people(solver, problem)
    if problem.scaled_loss.kind == "count" and not published and not exact:
        return InputError(f"solver={solver!r} takes counts without privacy alone; with it: 'whitened'.")
    if problem.scaled_loss.kind == "time" and exact:
        return InputError("epsilon=inf: times are fitted with privacy alone; without it take a Cox model elsewhere.")
    if published and not any(form.published for form in forms(solver)):
        others = ", ".join(name for name in SOLVERS if any(form.published for form in forms(name)))
        return InputError(f"solver={solver!r} has no published calibration; those that have: {others}.")
    if published and exact:
        return InputError("epsilon=inf: calibration='paper' needs a finite epsilon, such as 1.0.")
    if exact:
        fitting = [name for name in SOLVERS if mismatch(name, problem.scaled_loss, problem.split) is None]
        free = {f.name for f in every_form() if f.private is not True and not f.published and problem.split in f.splits}
        others = ", ".join(name for name in fitting if name in free)
        return InputError(f"epsilon=inf: solver={solver!r} has no form without noise; solvers that have: {others}.")
    where = f"calibration={problem.calibration!r} and data split as {problem.split!r}"
    return InputError(f"solver={solver!r} has no form for {where}.")


def _without_people(solver: str, problem: Problem) -> InputError:
    """Why a problem about people with several records is not served."""
    what = f"most_records={problem.most_records} (a person has several records)"
    if problem.split.same_people and not problem.channel.secure:
        return InputError(
            f"{what}: over columns records are weighed within secure products alone; take products='secure', give one "
            "record of each person, or data by rows."
        )
    if math.isinf(problem.epsilon):
        return InputError(f"{what} with epsilon=inf: nothing is protected, of whom a record is; leave person out.")
    if problem.scaled_loss.kind in ("count", "time"):
        loss = problem.scaled_loss.name
        return InputError(f"{what}: the loss {loss!r} has no rule for people; give one record of each person.")
    others = ", ".join(dict.fromkeys(form.name for form in every_form() if form.people))
    return InputError(
        f"{what}: solver={solver!r} with calibration={problem.calibration!r} bounds records, and not people; those "
        f"that bound people, with calibration='tight': {others}."
    )


def make_plan(problem: Problem, solver: Any, *, run: str, coin: str) -> Plan:
    """The plan of a problem by a solver's object: its form is found, designs, and is checked once."""
    return plan_by(find(solver.name, problem, solver.given()), problem, solver, run=run, coin=coin)


def plan_by(form: Algorithm, problem: Problem, options: Any, *, run: str, coin: str) -> Plan:
    """The plan of a problem by a form that was found, with what its design is told.

    A design of secure sums has all their bits, and room for the releases that may be asked again: such a retry costs as
    much as the dearest release. Shares of mu^2 follow the budget, which the retries make smaller: so it is designed
    again until there is room.
    """
    if not form.serves(problem.split, secure=problem.channel.secure):
        problem = problem.changed(aggregation=None)  # what is bought beside a fit and is no sum
    if form.people not in (None, problem.most_records is not None):
        raise _without_people(form.name, problem)
    problem = problem.changed(layout=form.layout)
    design = form.design(problem, options)
    retries = problem.channel.retries
    for _ in range(8 if problem.channel.secure and retries else 0):
        dearest = 0.0
        for release in design.releases:
            event = release.event(problem.relation, count=1)
            if not isinstance(event, Gaussian):
                raise InputError(f"retries={retries}: solver={form.name!r} samples, and has no retries.")
            dearest = max(dearest, event.mu)
        retried = retries * (dearest / problem.mu) ** 2
        if retried / (1 + retried) <= problem.channel.reserve:
            break
        reserve = retried / (1 + retried) * (1 + 2.0**-20)
        problem = problem.changed(aggregation=problem.channel.aggregation.changed(reserve=reserve))
        design = form.design(problem, options)
    if problem.channel.secure:
        design = design.changed(releases=tuple(each.model_copy(update={"dropped": 0}) for each in design.releases))
    if form.published:
        design = design.changed(claimed_epsilon=problem.epsilon)
    if problem.most_records is not None:
        design = design.changed(protects="person")
    plan = Plan(**problem.fields(), **design.fields(), run=run, coin=coin, algorithm=form.name, form=form.form)
    if isinstance(plan.channel, SecureSums):
        plan = on_the_ring(form, plan, options, plan.channel)
    form.pricing.check_samplers(form, plan, plan.relation, plan.delta)
    return plan


def on_the_ring(form: Algorithm, plan: Plan, options: Any, channel: SecureSums) -> Plan:
    """A plan whose secure sums are opened on the grid on which they are exact.

    So no party rounds its part, and by rows the sum is that of data in one place, bit for bit, but for noise. Where it
    is too wide for its sampler on a grid so fine, rows and slopes have fewer bits. By columns they always have few, and
    no share of the noise is below 8 steps.
    """
    bits, too_wide = grid_bits(plan), 0.0
    releases, queries = list[Release](), queries_of(form, plan, plan.names[0])
    for release in plan.releases:
        query = queries[release.query]
        step = query.joint_step(bits) or release.step
        times = (release.first, release.count)
        finer = Release.of(query, *times, release.std, step, release.rate)  # rounds less, and costs less
        charged = "zero-out" if release.rate is not None else plan.relation
        std = release.std * finer.charged(charged) / release.charged(charged)
        if channel.products:  # its grid is not finer where epsilon is large: then noise is what a grid can have
            least = LEAST_SHARE * float(np.max(query.noise_weights)) * step / math.sqrt(channel.share)
            std = max(std, least * (1 + 2.0**-30))
        releases.append(Release.of(query, *times, std, step, release.rate))
        part = max(channel.share, channel.aggregation.top_up(channel.parties))
        scale = release.std * math.sqrt(part) / step / float(np.min(query.noise_weights))
        too_wide = max(too_wide, scale / MAX_WIDE)
    found = plan.model_copy(update={"releases": tuple(releases)})
    ring_bits(found)  # refuses sums that no ring element holds
    if too_wide <= 1.0 or channel.products:
        return found
    fewer = bits - math.ceil(math.log2(too_wide) / 2)
    if fewer < FEWEST_BITS:
        raise InputError(
            f"epsilon={plan.epsilon:g} with {plan.records} records: noise would drown everything; take a larger "
            "epsilon, or more records."
        )
    problem = plan.changed_problem(aggregation=channel.aggregation.changed(bits=fewer))
    return plan_by(form, problem, options, run=plan.run, coin=plan.coin)


def check_sums(form: Algorithm, plan: Plan, queries: Mapping[str, Query]) -> None:
    """Refuse a plan of secure sums that secures what is no sum over all parties."""
    ring_bits(plan)
    for release in plan.releases:
        query = queries[release.query]
        if query.world_sees != "sum" or query.answered_by is not everyone or query.each_person or query.unordered:
            raise RefusedError(f"the plan secures {release.query!r} of {form.name}, which is no sum over all parties.")
        bound, std = release.charged_zero_out, release.std * math.sqrt(plan.channel.variance)
        std /= float(np.min(query.noise_weights))  # of the sum
        if not (plan.records * bound + TAIL * std) / release.step < 2.0**63:  # else what is opened wraps around
            raise InputError(
                f"the grid {release.step:g} leaves no room in 64 bits for {plan.records} records of at most {bound:g} "
                f"and noise of std={std:g}; take fewer bits, which is coarser and not less private."
            )
        step = query.joint_step(grid_bits(plan)) if plan.channel.products else None
        if step is not None and release.step != step:
            raise RefusedError(
                f"the plan opens {release.query!r} on the grid {release.step!r}, and products of secure columns are "
                f"whole numbers of {step!r}: its noise would be another than was charged."
            )
        if isinstance(query, GramMatrix) and plan.channel.products and release.count > 1:
            raise RefusedError(
                f"the plan opens {release.query!r} of secure columns {release.count} times; once is all."
            )


UNEVEN = 4.0  # columns whose bounds differ by more are drowned by the largest in a common row norm
MANY, SCARCE = 300, 7.0  # with so many features and less signal for each, only a few of them can be learned
SPARSE = 100  # features from which an l1 ball means that few of them matter
SCORES = 4  # parties up to which one noisy score from each says enough
NEWTON_FEATURES = 2000  # beyond it a Gram matrix costs more than it gains

WHY: Final[Mapping[str, str]] = {  # `choose` takes a solver
    "whitened": "no other was better on problems of this kind, whatever the signal and the number of features",
    "cd": f"the declared bounds of the columns differ by more than a factor of {UNEVEN:g}",
    "scd": "the loss has a kink and the penalty is l2",
    "greedy-cd": "there are too many features for this budget to learn more than a few of them",
    "frank-wolfe": "the weights are in an l1 ball",
    "newton": "it needs the fewest rounds without noise",
    "gradient": "without noise it needs no matrix of all pairs of features",
    "sgd": "no other serves this problem",
    "score": "one noisy score of everybody from each party says as much as many rounds",
    "admm": "by columns it serves every loss, any number of parties and labels that one of them holds",
}


def choose(problem: Problem, served: Container[str] | None = None) -> str:
    """`solver="auto"`: a rule of public numbers; the first of its list that fits and that the rows of all `served`.

    signal = N mu / sqrt(d K), mu the Gaussian budget (halved for replace-one), K parties: how far the mean gradient of
    a record stands above its noise. The constants come from `benchmarks/solvers.py`.
    """
    found = preferences(problem)
    for name in found:
        reason = mismatch(name, problem.scaled_loss, problem.split, secure=problem.channel.secure)
        if reason is None and (served is None or name in served):
            return name
    return found[0]


def preferences(problem: Problem) -> tuple[str, ...]:
    """Solvers, best first."""
    if problem.most_records is not None:
        return ("whitened",)
    if problem.split.same_people and problem.channel.secure:
        return ("whitened", "newton", "gradient")
    if problem.split.same_people:
        if problem.regulariser.name == "l1_ball":
            return ("frank-wolfe", "admm")
        several = 2 <= len(problem.parties) <= SCORES  # one noisy score of everybody says as much as many rounds
        alone = math.isinf(problem.epsilon) or problem.labels == "held" or not several
        return ("admm", "score") if alone else ("score", "admm")
    loss, penalty, d = problem.scaled_loss, problem.regulariser.name, problem.dimension
    if loss.outputs > 1:
        return ("gradient",) if math.isinf(problem.epsilon) and not loss.smooth else ("whitened", "gradient")
    few = problem.features <= NEWTON_FEATURES
    if loss.kind in ("count", "time") or problem.bounds.weight_bound is not None:
        return ("newton",) if math.isinf(problem.epsilon) and loss.kind != "time" else ("whitened",)
    exact = ("newton", "gradient", "sgd") if loss.smooth and few else ("gradient", "sgd", "newton")
    if math.isinf(problem.epsilon):
        return exact
    general = ("whitened", *exact)
    columns = problem.bounds.columns(problem.features)
    if loss.smooth and penalty in ("none", "l1", "l2", "elastic_net") and columns.max() > UNEVEN * columns.min():
        return ("cd", *general)
    if penalty == "l2" and not loss.smooth:
        return ("scd", *general)
    if penalty == "l1_ball" and loss.smooth and problem.bounds.row_norm is None and problem.features >= SPARSE:
        return ("frank-wolfe", *general)
    scarce = problem.features >= MANY and problem.signal < SCARCE * d
    if penalty in ("l1", "elastic_net") and loss.smooth and scarce:
        return ("greedy-cd", *general)
    return general
