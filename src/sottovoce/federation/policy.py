"""What a party demands of a plan before it charges it and touches its rows.

No row is looked at, so a refusal may say why. Guarantee: a plan that passes releases what its algorithm declares, by
mechanisms that each query is made for, at the price that this party's own code computes, within the holder's policy. A
plan of secure sums that assumes of others what its holder has not agreed to is refused, and the text names the key of
the policy. What is assumed is declared in `plan/split.py`; each key there has its demand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from sottovoce import algorithms
from sottovoce.algorithms import Algorithm, check_sums, served
from sottovoce.algorithms.description import Described
from sottovoce.data.block import RecordRows, SumRows, kind_of_rows
from sottovoce.data.bounds import Bounds
from sottovoce.data.dataset import Dataset
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.federation.answering import check_answer_sizes
from sottovoce.federation.run_keys import check_pinned
from sottovoce.gate.gate import fits_mechanism
from sottovoce.gate.query import Query
from sottovoce.plan.plan import FAMILIES, Plan
from sottovoce.plan.release import Release
from sottovoce.plan.split import ASSUMPTIONS, COORDINATOR, Coalition, SecureSums, made_assumptions
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import Event, Gaussian, Relation, Unbounded, distance, inside
from sottovoce.privacy.ledger import Account, FitPart
from sottovoce.queries.pricing import coalition_epsilon, queries_of
from sottovoce.transports.identity import Identity

if TYPE_CHECKING:
    from sottovoce.federation.party import Party

Cost = Callable[[Relation], tuple[Event, ...]]  # the events of a plan under a relation of neighbours


class Known(NamedTuple):
    """What a party knows by itself: keys of other ends, and whether it has identifiers that were not aligned."""

    identity: Identity | None = None
    unaligned: bool = False


NOTHING: Final = Known()


@dataclass(frozen=True)
class Policy:
    """What a party demands of each plan before it touches its rows; a ledger limits what all plans cost together.

    A limit on epsilon holds at the plan's delta, and at 1/N at most where delta has no limit: above it any leak is
    cheap. The cost is taken under `relation` (None: the plan's own), of secure sums against the worst adversary that
    the plan declares. `tell_classes` lets a coordinator ask which labels occur, without noise; `tell_budget` lets it
    report what the account had before a plan and has after it. `tell_records` is for columns, where people have several
    records: it lets a party tell whoever asks how many there are and, over columns, the other parties how many each
    person has. Where parties have whole rows these numbers are private: such a party takes no plan about people there.

    `predict_for` names who may learn joint predictions about the people here: parties, or "coordinator". No epsilon
    covers them, and counts of them leave under a plan alone. With `trains=False` these people are predicted for and
    never trained or evaluated on. Rows that may be trained on are predicted for only with `predict_training`. A model
    is used once its holder approved it (`sottovoce models approve`); with `approve_models` every model that a run left
    is used, for holders who trust the coordinator.

    `secure` lets it take part in secure sums, which rest on more than noise. A plan of them may assume no more than
    this: `dealer` deals, "coordinator" or the name of a dealer ("": the coordinator or a pinned dealer, and no pinned
    end is left out); at most `colluding` parties collude with one another (None: its noise holds against all others);
    by columns, records that have identifiers were aligned, unless `unaligned`; the keys of all other ends are pinned.
    By rows a finite `max_epsilon_colluding` replaces all pins but a dealer's: it limits what a plan costs against the
    coordinator (or the dealer that tops up) together with all other parties; by columns they learn everything.

    `align` names the parties with which, all together, the records may be aligned by private set intersection, matched
    by `align_matched_by` alone ("": by whom the coordinator says); `count_shared` names parties with each of which
    shared people may be counted. No epsilon covers what these reveal. Both together happen at most `align_times`, with
    no list longer than `align_ratio` times the own one: a party can make up identifiers to test.
    """

    max_epsilon: float = math.inf
    max_delta: float = 1.0
    allow_without_privacy: bool = False
    bounds: Bounds | None = None
    relation: Relation | None = None
    tell_classes: bool = False
    tell_records: bool = False
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

    def needs_pins(self, plan: Plan) -> bool:
        """Whether the keys of all other ends of a plan of secure sums have to be pinned.

        By rows a limit on what everybody else together may learn does in their place, however many are made up.
        """
        limit = self.max_epsilon_colluding
        return plan.split.same_people or limit is None or not limit < math.inf

    def refuse(self, plan: Plan, form: Algorithm, party: str, known: Known = NOTHING) -> str | None:
        """The reason to refuse, or None. The cost is computed from the plan's releases, never taken from its claim."""
        if isinstance(plan.channel, SecureSums):
            proposal = Proposal(self, plan, plan.channel, party, known)
            keys = set(map(ASSUMPTIONS.__getitem__, made_assumptions(plan)))  # by which a holder agrees to them
            for key, demand in DEMANDS.items():
                if key in keys and (reason := demand(proposal)):
                    return reason
        if self.tell_records and plan.most_records is not None and not plan.split.same_people:
            return "where parties have whole rows it is private how many records people have, and tell_records tells it"
        counted = isinstance(plan.numbers, Described)  # codes, in cells: nothing is cut by the plan's bounds
        named = (plan.bounds, plan.part(party).preparation.bounds)
        if self.bounds is not None and not counted and self.bounds not in named:
            return "the plan's bounds are not the ones this party declared for its data"
        relation = self.relation or plan.relation
        events = form.pricing.events(form, plan, relation, party)
        if Unbounded in map(type, events):
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
        return None if self.max_epsilon_colluding is None else self._refuse_colluding(plan, form, relation, delta)

    def _refuse_colluding(self, plan: Plan, form: Algorithm, relation: Relation, delta: float) -> str | None:
        """The reason to refuse what is left where everybody else colludes, or None; an infinite limit is none."""
        limit = self.max_epsilon_colluding
        if limit is None or not limit < math.inf:
            return None
        everybody = Coalition(len(plan.parties) - 1, dealer=True)
        epsilon = coalition_epsilon([(form, plan, form.pricing)], relation, everybody, delta)
        if plan.within is not None:
            mu = plan.within.mu * max(distance(relation) / distance(plan.relation), 1.0)
            mu /= math.sqrt(plan.channel.share)
            epsilon = max(epsilon, epsilon_of((Gaussian(mu),), inside(delta), relation))
        if epsilon <= limit:
            return None
        costs = f"epsilon {epsilon:.4g} at delta {delta:.3g}" if math.isfinite(epsilon) else "everything"
        return (
            f"against {plan.channel.everybody_else} the plan costs {costs}, above this party's limit "
            f"max_epsilon_colluding={limit:.4g}; give shares of the noise for more that collude "
            "(secure_aggregation(colluding_with_dealer=...), by rows), or raise the limit"
        )


class Proposal(NamedTuple):
    """A plan of secure sums, as it comes to a party."""

    policy: Policy
    plan: Plan
    channel: SecureSums
    party: str
    known: Known


def left_out(policy: Policy, members: Iterable[str], party: str, identity: Identity | None) -> str | None:
    """Why a run without some end is refused, or None: one that has to deal, or that is pinned and may have to."""
    pinned = frozenset[str]() if identity is None else identity.pinned
    wanted = pinned if not policy.dealer else {policy.dealer} - {COORDINATOR}
    if missing := sorted(wanted - {*members, party}):
        why = "has to deal here, by policy.dealer" if policy.dealer else "is pinned, so that it may have to deal"
        return (
            f"{missing[0]} {why}, and is left out; if another is to deal, the holder of {party} names it, with "
            f"Policy(dealer={COORDINATOR!r}) or a dealer's name"
        )
    return None


def _demand_consent(proposal: Proposal) -> str | None:
    if proposal.policy.secure:
        return None
    return (
        "the plan secures its sums, whose promise rests on encryption and on who colludes with whom; its holder can "
        "allow that with Policy(secure=True)"
    )


def _demand_dealer(proposal: Proposal) -> str | None:
    wanted, dealer = proposal.policy.dealer, proposal.channel.aggregation.dealer
    if wanted and dealer != wanted:
        return (
            f"{proposal.channel.dealer} deals in the plan, and here {wanted!r} does alone; its holder can allow it "
            f"with Policy(dealer={dealer!r})"
        )
    if proposal.channel.aggregation.separate_dealer is not None:
        try:
            check_pinned(proposal.party, (proposal.channel.aggregation.separate_dealer,), proposal.known.identity)
        except RefusedError as error:
            return f"{error}".removesuffix(".")
    return left_out(proposal.policy, proposal.channel.signers, proposal.party, proposal.known.identity)


def _demand_noise(proposal: Proposal) -> str | None:
    others, allowed, assumed = proposal.channel.parties - 1, proposal.policy.colluding, proposal.channel.aggregation
    least = others if allowed is None else min(allowed, others)
    if assumed.colluding >= least:
        return None
    return (
        f"the plan assumes that parties collude with one another in groups of {assumed.colluding} at most, and here "
        f"its noise has to hold against {least} of {others}; its holder can allow it with "
        f"Policy(colluding={assumed.colluding})"
    )


def _demand_pins(proposal: Proposal) -> str | None:
    if not proposal.policy.needs_pins(proposal.plan):
        return None
    try:
        check_pinned(proposal.party, proposal.channel.signers, proposal.known.identity)
    except RefusedError as error:
        rows = " By rows a limit on what all others together may learn does too: Policy(max_epsilon_colluding=...)."
        return f"{error}{'' if proposal.channel.products else rows}".removesuffix(".")
    return None


def _demand_alignment(proposal: Proposal) -> str | None:
    if proposal.policy.unaligned or not proposal.known.unaligned:
        return None
    return (
        f"{proposal.party} has identifiers, and they were not aligned with those of the other parties: nothing shows "
        "whether the records belong together. Align them first, each with `id` (`sottovoce align`); its holder can "
        "allow it without, with Policy(unaligned=True). Nothing was charged"
    )


def _demand_records(proposal: Proposal) -> str | None:
    if proposal.policy.tell_records or proposal.plan.label_party_name != proposal.party:
        return None
    return "the plan tells the other parties how many records each person has; Policy(tell_records=True) allows it"


DEMANDS: Final[Mapping[str, Callable[[Proposal], str | None]]] = {
    "secure": _demand_consent,
    "dealer": _demand_dealer,
    "colluding": _demand_noise,
    "max_epsilon_colluding": _demand_pins,
    "unaligned": _demand_alignment,
    "tell_records": _demand_records,
}


def check_plan(plan: Plan, own: Party, known: Known) -> tuple[Algorithm, Mapping[str, Query]]:
    """The plan's form and queries, or a refusal; no row is looked at, so its text may say why."""
    name, rows, by_pieces = own.name, own.rows, isinstance(own.rows, Dataset)
    try:
        form = algorithms.of(plan)
        form.check_loss(plan.scaled_loss)
        form.check_weights(plan)
        kind = kind_of_rows(own.resources, by_pieces=by_pieces)
        check_place(plan, name, kind, by_pieces=by_pieces, clustered=by_pieces and rows.cluster is not None)
        if plan.layout != form.layout or not form.serves(plan.split, secure=plan.channel.secure):
            raise RefusedError(f"{plan.algorithm} does not take rows as {plan.layout!r} split as {plan.split!r}.")
        queries = queries_of(form, plan, name)
        for release in plan.releases:
            if release.query not in queries:
                raise RefusedError(f"the plan releases {release.query!r}, which {plan.algorithm} does not have.")
            _check_release(release, queries[release.query], plan.records)
        for query in queries:
            if not plan.has(query):
                raise RefusedError(f"the plan has no release of {query!r}, which {plan.algorithm} cannot do without.")
        check_answer_sizes(plan, queries)
        if plan.channel.secure:
            check_sums(form, plan, queries)
        form.pricing.check_served(form, plan, name)
        recipe, groups = plan.part(name).preparation, getattr(plan.numbers, "groups", None)
        beside = set() if own.beside is None else {*own.beside} - ({"group"} if groups is not None else set())
        if own.beside is not None and own.records and plan.layout != "raw" and beside | recipe.beside:
            recipe.check_beside(beside)  # whatever the cells are
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
    elif rows is SumRows and plan.most_records is not None:
        reason = 'the records of a person are summed on the processor; take device="cpu"'
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
    if not fits_mechanism(query, release.mechanism):
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
            part = min(terms.price("", cost, plan.delta, "").cost / terms.largest_capacity, 1.0) if several else 1.0
            delta, epsilon = min(plan.delta, terms.delta) * part, terms.epsilon if several else 0.0
            form.pricing.check_samplers(form, plan, terms.relation, delta, epsilon)
    except InputError as error:
        raise RefusedError(f"{name} refuses: {error}") from None
