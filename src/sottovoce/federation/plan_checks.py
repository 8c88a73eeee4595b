"""What a party checks of a plan before it charges it, and what it then charges.

No row is looked at, so a refusal may say why. Guarantee: a plan that passes releases what its algorithm declares, by
mechanisms that each query is made for, at the price that this party's own code computes, within the holder's policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sottovoce import algorithms
from sottovoce.algorithms import Algorithm, check_sums, served
from sottovoce.data import devices
from sottovoce.data.block import RecordRows, SumRows
from sottovoce.data.dataset import Dataset
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.federation import limits
from sottovoce.federation.demands import Known
from sottovoce.federation.holder import Holder
from sottovoce.gate.gate import fits
from sottovoce.gate.query import Query
from sottovoce.plan.families import FAMILIES
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.events import Event
from sottovoce.privacy.ledger import Account, FitPart
from sottovoce.privacy.relation import Relation
from sottovoce.queries.pricing import queries_of

Cost = Callable[[Relation], tuple[Event, ...]]  # the events of a plan under a relation of neighbours


def checked(plan: Plan, own: Holder, known: Known) -> tuple[Algorithm, Mapping[str, Query]]:
    """The plan's form and queries, or a refusal; no row is looked at, so its text may say why."""
    name, rows, by_pieces = own.name, own.rows, isinstance(own.rows, Dataset)
    try:
        form = algorithms.of(plan)
        form.check_loss(plan.scaled_loss)
        kind = devices.kind_of_rows(own.resources, by_pieces=by_pieces)
        check_place(plan, name, kind, by_pieces=by_pieces, clustered=by_pieces and rows.cluster is not None)
        if plan.layout != form.layout or not form.serves(plan.split, secure=plan.channel.secure):
            raise RefusedError(f"{plan.algorithm} does not take rows as {plan.layout!r} split as {plan.split!r}.")
        queries = queries_of(form, plan, name)
        for release in plan.releases:
            if release.query not in queries:
                raise RefusedError(f"the plan releases {release.query!r}, which {plan.algorithm} does not have.")
            _check_release(release, queries[release.query], plan.records)
        missing = [name for name in queries if not plan.has(name)]
        if missing:
            raise RefusedError(f"the plan has no release of {missing[0]!r}, which {plan.algorithm} cannot do without.")
        limits.check_answers(plan, queries)
        check_sums(form, plan, queries)
        form.pricing.check_served(form, plan, name)
        if plan.private:
            form.pricing.check_samplers(form, plan, own.policy.relation or plan.relation, plan.delta)
        reason = own.policy.refuse(plan, form, name, known)
    except (InputError, LeakError) as error:
        raise RefusedError(f"{name} refuses: {error}") from None
    if reason is not None:
        raise RefusedError(f"{name} refuses: {reason}.")
    return form, queries


def check_place(plan: Plan, name: str, rows: type, *, by_pieces: bool, clustered: bool) -> None:
    """Refuse a fit if its queries need more than the rows answer where they are, such as in a `Dataset`."""
    if by_pieces and plan.split.same_people:
        raise RefusedError(f"{name} refuses: a Dataset serves data in one place and by rows; give arrays.")
    reason = ""
    if plan.algorithm not in FAMILIES or rows is RecordRows:
        return
    if rows is SumRows and clustered:
        reason = (
            'device="cuda" is for rows of this process, and those of the Dataset are on a cluster; take device="cpu"'
        )
    elif rows is SumRows and not plan.private:
        reason = 'device="cuda" is for runs with privacy; take device="cpu"'
    elif not all(query.needs in rows.__mro__ for query in algorithms.of(plan).queries(plan, name)):
        where, other = ("a Dataset", "arrays") if by_pieces else ('device="cuda"', 'device="cpu"')
        reason = f"{where} serves {', '.join(served(rows))}, and not {plan.algorithm}; take one of them, or {other}"
    if reason:
        raise RefusedError(f"{name} refuses: {reason}.")


def _check_release(release: Release, query: Query, records: int) -> None:
    if release.rate is not None and not query.samples:
        raise RefusedError(f"the plan samples records for {query.name!r}, which needs all of them.")
    if not fits(query, release.mechanism):
        raise RefusedError(f"the plan releases {query.name!r} as {release.mechanism!r}, which it is not made for.")
    if release.mechanism == "derived" and release.std > 0.0:
        raise RefusedError(f"the plan has noise on {query.name!r}, which is a function of noisy rows.")
    if release.batches > 1 and type(query).follow is Query.follow:
        raise RefusedError(f"the plan has batches of {query.name!r}, which follows no released value.")
    if release.std > 0.0:
        release.check(query, records)


def part_of_fit(plan: Plan) -> FitPart | None:
    """The fit that a plan is a part of, as an account is told."""
    return None if plan.within is None else FitPart(plan.within.name, plan.within.mu, plan.relation)


def charge_of(form: Algorithm, plan: Plan, party: str) -> Cost:
    """What a party's account is charged for a plan."""
    return lambda relation: form.pricing.events(form, plan, relation, party)


def check_samplers(account: Account, form: Algorithm, plan: Plan, name: str, cost: Cost) -> None:
    """Refuse a plan whose samplers would take more of the accounts' delta than they may."""
    try:
        for terms in (book.terms for _, book in account.line()):
            # Of several plans on an account each has the part of the samplers' share that it has of the budget.
            several = terms.composition != "basic"
            part = min(terms.price("", cost, plan.delta, "").cost / terms.capacity, 1.0) if several else 1.0
            delta, epsilon = min(plan.delta, terms.delta) * part, terms.epsilon if several else 0.0
            form.pricing.check_samplers(form, plan, terms.relation, delta, epsilon)
    except InputError as error:
        raise RefusedError(f"{name} refuses: {error}") from None
