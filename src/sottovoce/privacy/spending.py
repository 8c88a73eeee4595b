"""How the costs of plans add in one account, though each plan was chosen after looking at the last.

composition   what adds over plans                              takes
"renyi"       mu^2 while all releases are Gaussian, then the    every plan
              Renyi divergence at one order, fixed at opening
"gaussian"    mu^2                                              plans of Gaussian releases alone; tightest
"basic"       epsilon and delta                                 every plan, which then needs its own delta

The privacy loss distributions of the plans must NOT be composed: that holds only for events fixed in advance.
Proof: proofs/ledger.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from sottovoce.errors import BudgetError, InputError, LedgerError
from sottovoce.notebooks import html_table
from sottovoce.privacy import accounting
from sottovoce.privacy.calibration import mu_for, renyi_budget, renyi_order_for
from sottovoce.privacy.events import (
    SMALLEST_DELTA,
    Event,
    Gaussian,
    Relation,
    Unbounded,
    check_relation,
    distance,
    inside,
)

Composition = Literal["renyi", "gaussian", "basic"]
Period = Literal["day", "week", "month", "year"]
Events = Callable[[Relation], Sequence[Event]] | Sequence[Event]

# Sums of rounded numbers are compared to this relative precision: ten plans of epsilon 0.1 make epsilon 1.
SLACK: Final = 1e-9


@dataclass(frozen=True)
class Reservation:
    """A plan's cost: its events, what they add to the account, and the plan's (epsilon, delta) on its own.

    `about` is what was said of the plan, by name. `account` is the account below this one that the plan runs on, "" if
    it is this one.

    `fit` names the fit that the plan is a part of, where a fit has several plans, and `part` is its own mu. With a
    `whole` the plan was charged that mu, for itself and for all further plans of the fit: these are `covered`, and
    charged nothing.

    `rests_on` is what the plan assumes besides its noise, where sums are secure: the first text says who is apart. A
    plan about `people` is charged for them.
    """

    plan: str
    events: tuple[Event, ...]
    cost: float
    epsilon: float
    delta: float
    summary: str
    about: tuple[tuple[str, str], ...] = ()
    account: str = ""
    fit: str = ""
    part: float = 0.0
    whole: float = 0.0
    covered: bool = False
    rests_on: tuple[str, ...] = ()
    people: bool = False  # it bounds all records of a person, and not each of them


@dataclass(frozen=True)
class AccountTerms:
    """What is fixed when an account is opened; `capacity` is the budget in the unit that adds over plans.

    A "renyi" account has two, each at half of delta: `capacity` for plans of all kinds, and the larger
    `gaussian_capacity` for as long as all releases are Gaussian, in the same unit, order mu^2 / 2.

    `under` names the account that pays as well. With an `allowance` the capacity is released in parts, one a `period`,
    the first at the opening: a part is what one plan of Gaussian releases of that epsilon costs.
    """

    epsilon: float
    delta: float
    relation: Relation
    composition: Composition
    order: float | None
    capacity: float
    under: str = ""
    allowance: float | None = None
    period: Period | None = None
    gaussian_capacity: float | None = None

    def price(self, plan: str, events: Events, delta: float | None, summary: str) -> Reservation:
        """What a plan with these events would be charged."""
        listed = tuple(events(self.relation) if callable(events) else events)
        for event in listed:
            if isinstance(event, Unbounded):
                raise BudgetError(
                    f"the plan releases something without noise ({event.reason}): its epsilon is infinite "
                    "and no account can pay for it. Plan it with a finite epsilon, or without a ledger."
                )
        if self.composition == "basic":
            if delta is None or not 0 < delta < 1:
                raise InputError(
                    f"delta={delta!r}: epsilons and deltas add on this account, so a plan needs its own, "
                    f"above 0 and at most the account's {self.delta:g}. Pass reserve(..., delta=...)."
                )
            epsilon = accounting.epsilon_of(listed, inside(delta), self.relation)
            return Reservation(plan, listed, epsilon, epsilon, delta, summary)
        if self.composition == "gaussian":
            squares = []
            for event in listed:
                if not isinstance(event, Gaussian):
                    raise BudgetError(
                        f"this account adds mu^2 and takes plans of Gaussian releases alone; the plan has a "
                        f"{type(event).__name__}. Open an account with composition='renyi' for such plans."
                    )
                squares.append(event.mu * event.mu)  # ** would raise where * gives infinity
            cost = math.fsum(squares)
        else:
            cost = accounting.renyi_of(listed, self.fixed_order, self.relation)
        epsilon = accounting.epsilon_of(listed, inside(self.delta), self.relation)
        return Reservation(plan, listed, cost, epsilon, self.delta, summary)

    def released(self, opened: datetime, now: datetime) -> float:
        """How much of the budget may be spent by now, as far as it goes; unspent parts stay."""
        if self.allowance is None or self.period is None:
            return math.inf
        part = self.allowance
        if self.composition != "basic":
            part = mu_for(self.allowance, inside(self.delta)) ** 2
        if self.composition == "renyi":
            part *= self.fixed_order / 2
        return part * (1 + periods_between(opened, now, self.period))

    @property
    def largest_capacity(self) -> float:
        """What all plans add up to at most, whatever their kinds."""
        return max(self.capacity, self.gaussian_capacity or 0.0)

    @property
    def fixed_order(self) -> float:
        """The Renyi order of a "renyi" account."""
        assert self.order is not None, "only renyi accounts have an order"  # noqa: S101
        return self.order


def open_terms(epsilon: float, delta: float, relation: Relation, composition: Composition) -> AccountTerms:
    """The terms of a new account; the Renyi order is chosen here, from public numbers, once."""
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InputError(f"epsilon={epsilon!r} must be a finite number above 0, for example 1.0.")
    if not SMALLEST_DELTA <= delta < 1:
        raise InputError(f"delta={delta!r} must lie strictly between 0 and 1, from 1e-300 on, for example 1e-5.")
    check_relation(relation)
    if composition not in get_args(Composition):
        raise InputError(f"composition={composition!r} must be one of {', '.join(get_args(Composition))}.")
    epsilon, delta = float(epsilon), float(delta)
    if composition == "basic":
        return AccountTerms(epsilon, delta, relation, composition, None, epsilon)
    if composition == "gaussian":
        return AccountTerms(epsilon, delta, relation, composition, None, mu_for(epsilon, inside(delta)) ** 2)
    half = inside(delta) / 2
    order = renyi_order_for(epsilon, half)
    capacity, alone = renyi_budget(epsilon, half, order), order * mu_for(epsilon, half) ** 2 / 2
    return AccountTerms(epsilon, delta, relation, composition, order, capacity, gaussian_capacity=alone)


def periods_between(opened: datetime, now: datetime, period: Period) -> int:
    """How many whole periods have passed; a month ends on the day of the month of the opening, or after its last."""
    if period in ("day", "week"):
        return max((now - opened).days // (1 if period == "day" else 7), 0)
    months = 12 * (now.year - opened.year) + now.month - opened.month
    months -= (now.day, now.time()) < (opened.day, opened.time())
    return max(months // (1 if period == "month" else 12), 0)


@dataclass(frozen=True)
class Balance:
    """What an account has, as epsilons: `spent` and `total` at `delta`, `left` at `delta_left`.

    Guarantee: that of `total`, however the plans were chosen. `spent` is what they cost had they been fixed in advance.
    `left` is the largest plan of Gaussian releases that would fit. `spent` and `left` do not add up to
    `total`, since composition is not a sum; `share`, the used part of the budget, does add up over plans, and
    `released` is the part of the budget that may be used by now. `rests_on` is all that the plans assume besides noise:
    what is spent holds as long as that does, and no budget that is left repairs it.
    """

    total: float
    spent: float
    left: float
    delta: float
    delta_left: float
    share: float
    plans: int
    released: float = 1.0
    rests_on: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        numbers = (f"{self.total:g}", f"{self.spent:.4g}", f"{self.left:.4g}", f"{self.delta:g}", f"{self.plans}")
        heads = ("", "total epsilon", "spent", "left", "delta", "plans", "used")
        return html_table(heads, [("account", *numbers, f"{self.share:.0%}")], below="; ".join(self.rests_on))


@dataclass(frozen=True)
class Book:
    """An account's terms and all its reservations, in order; `released` is how much may be spent by now."""

    terms: AccountTerms
    reservations: tuple[Reservation, ...] = ()
    released: float = math.inf

    @property
    def all_gaussian(self) -> bool:
        """True if every release that was charged is Gaussian, so that mu^2 adds."""
        return all(isinstance(event, Gaussian) for known in self.reservations for event in known.events)

    @property
    def limit(self) -> float:
        """The bound of what all plans may ever add up to, if no plan of another kind follows."""
        alone = self.terms.gaussian_capacity
        return alone if alone is not None and self.all_gaussian else self.terms.capacity

    @property
    def available(self) -> float:
        """The bound of what all plans may add up to by now."""
        return min(self.released, self.limit)

    def find(self, plan: str) -> Reservation | None:
        """The reservation of a plan, if it has one."""
        return next((known for known in self.reservations if known.plan == plan), None)

    def cost(self) -> float:
        """What all plans add up to, in the unit of `AccountTerms.capacity`."""
        return math.fsum(known.cost for known in self.reservations)

    def fits(self, asked: Reservation) -> bool:
        """True if the plan may be reserved.

        Guarantee: if every plan is admitted by this rule, all their releases together are
        (epsilon, delta)-differentially private. A "renyi" account admits Gaussian plans by mu^2 at half of delta, as
        long as there are no others, and all kinds by the Renyi divergence at half of delta. Its first plan is also
        admitted on its own exact epsilon: it depends on no output, and if it overfills the account no other plan
        follows. That is for
        an account whose whole budget is released. What was charged for a fit as a whole covers plans of that fit, all
        Gaussian, as long as the squares of their mu sum to its square.
        """
        if asked.covered:
            known = self.of_fit(asked.fit)
            paid = (each for each in known if not each.covered and each.events == (Gaussian(each.whole),))
            whole = max((each.whole for each in paid), default=0.0)
            free = asked.cost == asked.whole == 0.0 and not asked.events
            return free and whole > 0 and _at_most(math.fsum(each.part**2 for each in (*known, asked)), whole**2)
        after = self.after(asked)
        within = _at_most(after.cost(), after.available)
        if self.terms.composition == "basic":
            return within and _at_most(math.fsum(known.delta for known in after.reservations), self.terms.delta)
        if self.terms.composition == "renyi" and not self.reservations and self.released >= after.limit:
            return within or _at_most(asked.epsilon, self.terms.epsilon)
        return within

    def of_fit(self, name: str) -> tuple[Reservation, ...]:
        """The plans of a fit that have been charged, or covered."""
        return tuple(known for known in self.reservations if name and known.fit == name)

    def after(self, asked: Reservation) -> Book:
        return replace(self, reservations=(*self.reservations, asked))

    def balance(self) -> Balance:
        terms, cost, plans = self.terms, self.cost(), len(self.reservations)
        rest = max(self.available - cost, 0.0)
        share = min(cost / self.limit, 1.0)
        delta_left = terms.delta
        if plans == 0 and self.available == self.limit:
            spent, left = 0.0, terms.epsilon
        elif terms.composition == "basic":
            delta_left = max(terms.delta - math.fsum(known.delta for known in self.reservations), 0.0)
            share = max(share, 1 - delta_left / terms.delta)
            spent, left = cost, rest if delta_left > 0 else 0.0
        elif terms.composition == "gaussian":
            spent = accounting.gaussian_epsilon(math.sqrt(cost), inside(terms.delta))
            left = accounting.gaussian_epsilon(math.sqrt(rest), inside(terms.delta))
        else:
            # The Renyi divergence of a Gaussian release at this order is order * mu^2 / 2.
            if self.all_gaussian:
                spent = accounting.gaussian_epsilon(math.sqrt(2 * cost / terms.fixed_order), inside(terms.delta))
            else:
                spent = accounting.renyi_to_epsilon(cost, terms.fixed_order, inside(terms.delta))
            if sum(not known.covered for known in self.reservations) <= 1:
                spent = min(spent, math.fsum(known.epsilon for known in self.reservations))
            left = accounting.gaussian_epsilon(math.sqrt(2 * rest / terms.fixed_order), inside(terms.delta))
        rests_on = tuple(dict.fromkeys(text for known in self.reservations for text in known.rests_on))
        released = self.available / self.limit
        return Balance(terms.epsilon, spent, left, terms.delta, delta_left, share, plans, released, rests_on)

    def refusal(self, asked: Reservation) -> str:
        """Why a plan that does not fit was refused, and what would fit."""
        terms, balance = self.terms, self.balance()
        largest = _round_down(balance.left)
        kind = "same delta, Gaussian releases"
        if terms.composition == "basic":
            kind = f"delta at most {_round_down(balance.delta_left):g}"
        part = "" if balance.released == 1 else f" of the {100 * balance.released:.0f}% released by now"
        remedy = f"A plan of epsilon at most {largest:g} ({kind}) would fit." if largest else "Nothing would fit."
        return (
            f"the plan asks for epsilon {asked.epsilon:.4g} at delta {asked.delta:g}; of epsilon "
            f"{terms.epsilon:g} at delta {terms.delta:g} ({terms.relation}), {balance.spent:.4g} is spent "
            f"(plans: {balance.plans}) and {largest:g} is left{part}. {remedy}"
        )


class FitPart(NamedTuple):
    """Of which fit a plan is a part: its name, the mu of all its plans together, and the relation that it is of."""

    fit: str
    mu: float
    relation: Relation


class Offers(NamedTuple):
    """What a plan would be charged: by itself, with all that is to follow, and what follows by itself."""

    own: Reservation
    whole: Reservation | None = None
    rest: Reservation | None = None


def make_offers(terms: AccountTerms, asked: tuple[str, Events, float | None, str], within: FitPart | None) -> Offers:
    """What an account with these terms could charge for a plan (name, events, delta, summary) of a fit."""
    plan, events, delta, summary = asked
    own = terms.price(plan, events, delta, summary)
    mu = accounting.gaussian_mu(own.events, terms.relation)
    if within is None or mu is None:
        return Offers(own)
    # To replace a record is to blank it, and to blank the new one.
    most = within.mu * max(distance(terms.relation) / distance(within.relation), 1.0)
    if mu > most * (1 + SLACK):
        return Offers(own)
    most = max(most, mu)
    own = replace(own, fit=within.fit, part=mu)
    all_of_it = terms.price(plan, (Gaussian(most),), delta, f"{summary}, with all of its fit")
    rest = terms.price(f"{plan} and more", (Gaussian(math.sqrt(most * most - mu * mu)),), delta, "")
    return Offers(own, replace(all_of_it, fit=within.fit, part=mu, whole=most), rest)


def price_line(line: Sequence[tuple[str, Book]], offers: Mapping[str, Offers]) -> dict[str, Reservation]:
    """What each account of a line is charged for a plan: nothing if its fit was charged, else its own cost.

    Where the first plan of a fit leaves no room for the others, though all of them have room at once, all are charged
    with it. That is decided before anything of the fit is released, so what was charged depends on no output.
    """
    own = {name: offers[name].own for name, _ in line}
    known = line[0][1].of_fit(own[line[0][0]].fit)
    if any(each.whole for each in known):
        free: dict[str, Any] = {"events": (), "cost": 0.0, "epsilon": 0.0, "delta": 0.0, "covered": True}
        return {
            name: replace(each, summary=f"{each.summary}, charged with its fit", **free) for name, each in own.items()
        }
    wholes = {name: each.whole for name, each in offers.items() if each.whole is not None}
    if known or any(name not in wholes for name, _ in line):
        return own
    # Where epsilons and deltas add, each further plan costs more than a part of one; nobody knows how many there are.
    basic = any(book.terms.composition == "basic" for _, book in line)
    if not (basic and all(book.fits(wholes[name]) for name, book in line)) and all(
        book.fits(own[name]) and book.after(own[name]).fits(rest)
        for name, book in line
        if (rest := offers[name].rest) is not None
    ):
        return own
    return wholes


def check_fits(name: str, book: Book, asked: Reservation) -> None:
    """Refuse a plan that was charged before, and one that the account of that name has no room for.

    Costs of records and of people do not add: a person with k records pays up to k times what is charged for one.
    """
    if any(each.people != asked.people for each in book.reservations):
        mine, others = ("people", "records") if asked.people else ("records", "people")
        raise BudgetError(
            f"account {name!r} has charges that protect {others}, and the plan protects {mine}: they do not add up to "
            "a promise. Open an account of its own for it; what each of the two promises holds by itself alone."
        )
    known = book.find(asked.plan)
    if known is not None:
        raise LedgerError(
            f"plan={asked.plan!r} is charged on account {name!r} already, for a run on account "
            f"{known.account or name!r}. A plan runs on one account: another run is another plan."
        )
    if asked.covered and not book.fits(asked):
        raise BudgetError(f"account {name!r}: the plans of this fit would cost more than was charged for all of it.")
    if not book.fits(asked):
        raise BudgetError(f"account {name!r}: {book.refusal(asked)}")


def _at_most(value: float, bound: float) -> bool:
    return value <= bound * (1 + SLACK)  # False for NaN


def _round_down(value: float) -> float:
    """Four significant digits, never more than `value`."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.floor(value / unit) * unit
