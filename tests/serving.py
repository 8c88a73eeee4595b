"""What real parties serve of a plan when they are asked for everything, and what their accounts were charged.

The price of what was served is added up here from each query's own sensitivity and the noise of its release, message
by message. It knows nothing of `Pricing`, `Query.uses` or `Turn.rounds`, which it fences.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import algorithms
from sottovoce.algorithms import Algorithm
from sottovoce.algorithms.sgd import named_records
from sottovoce.data.beside import labels_with
from sottovoce.data.block import Block
from sottovoce.data.schema import TableCodes
from sottovoce.errors import BudgetError
from sottovoce.federation.models import Models
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, encode
from sottovoce.gate.query import Query
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.accounting import renyi_of
from sottovoce.privacy.events import Event, Gaussian, PoissonGaussian, Relation, Selection, Unbounded
from sottovoce.privacy.ledger import Account, Receipt
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.privacy.spending import AccountTerms, Book, Events, Reservation
from sottovoce.queries.pricing import queries_of
from support import give_scores, handle, kind_of, plan_in

Data = Mapping[str, tuple[np.ndarray, np.ndarray]]
MANY = 40  # rounds of a release that are all asked for; of more, those at both ends
ORDER = 4.0  # the Renyi order at which costs are compared

serials = itertools.count(1)


class Renyi(AccountTerms):
    """Terms of a "renyi" account that say what a plan adds to it, and not what it would cost on its own."""

    def price(self, plan: str, events: Events, delta: float | None, summary: str) -> Reservation:
        listed = tuple(events(self.relation) if callable(events) else events)
        if any(isinstance(event, Unbounded) for event in listed):
            raise BudgetError("the plan releases something without noise.")
        return Reservation(plan, listed, renyi_of(listed, self.fixed_order, self.relation), 0.0, delta or 1.0, summary)


@dataclass(frozen=True)
class InMemory(Account):
    """An account that takes every plan at its price and forgets it with the process; on disk this takes an hour."""

    relation: Relation = "zero-out"
    reservations: list[Reservation] = field(default_factory=list, compare=False)
    released: dict[tuple[str, str, int, str], bytes] = field(default_factory=dict, compare=False)

    def line(self) -> list[tuple[str, Book]]:
        terms = Renyi(1.0, 1e-3, self.relation, "renyi", ORDER, 1.0)
        return [(self.dataset, Book(terms, tuple(self.reservations)))]

    def receipt(self) -> Receipt:
        return Receipt(len(self.reservations), "0" * 64)

    def reserve(self, plan: str, events: Events, *, delta: float | None = None, **said: Any) -> Reservation:
        self.reservations.append(self.terms().price(plan, events, delta, said["summary"]))
        return self.reservations[-1]

    def check(self, plan: str, events: Events, *, delta: float | None = None, **said: Any) -> None:  # type: ignore[override]
        self.terms().price(plan, events, delta, "")  # raises what `reserve` would

    def release(self, plan: str, round: int, query: str, payload: bytes, *, kind: str = "release") -> bytes:
        return self.released.setdefault((kind, plan, round, query), payload)

    def stored(self, plan: str, round: int, query: str, *, kind: str = "release") -> bytes | None:
        return self.released.get((kind, plan, round, query))

    def last_release(self, plan: str) -> None:
        """Nobody is started again."""

    def answers(self, plan: str) -> Counter[str]:
        return Counter(query for _, known, _, query in self.released if known == plan)


@dataclass(frozen=True)
class Answer:
    """One message that a party let out, and which of its records it is about where it names one."""

    party: str
    query: Query
    release: Release
    number: int
    record: int | None = None


def draw_data(plan: Plan, seed: int = 0) -> Data:
    """Rows and labels for each party of a plan."""
    rng = np.random.default_rng(seed)
    y = rng.choice(plan.classes, size=plan.records) if plan.classes else rng.uniform(-1, 1, size=plan.records)
    X = rng.normal(size=(plan.records, plan.features))
    y = y if plan.most_records is None else labels_with(y, person=np.arange(len(y)))
    if plan.preparation.until is not None:
        y = labels_with(rng.integers(0, 2, len(y)), time=rng.uniform(0, 5, len(y)))
    if plan.split == "columns":
        return {name: (X[:, plan.part(name).start : plan.part(name).stop], y) for name in plan.names}
    starts = np.cumsum([0, *(count for _, count in plan.parties)])
    return {name: (X[a:b], y[a:b]) for name, (a, b) in zip(plan.names, itertools.pairwise(starts), strict=True)}


class Holders:
    """The parties of a plan, each with an account of its own, and whatever plan they are sent next."""

    def __init__(self, plan: Plan, folder: Path, relation: Relation | None = None) -> None:
        self.data = draw_data(plan)
        self.relation = relation or plan.relation
        self.first = plan
        self.labelled = {name: plan.part(name).preparation.labelled for name in plan.names}
        self.folder = folder
        self.plans = itertools.count()

    def serve(self, text: str) -> tuple[dict[str, Account], list[Answer], Plan | None]:
        """(accounts of those who took the plan, all that they answered, the plan) for the text of a plan."""
        plan = plan_in(text)
        accounts, answers, place = dict[str, Account](), list[Answer](), next(self.plans)
        for name, (X, y) in self.data.items():
            account = InMemory(self.folder, f"{name} {place}", self.relation)
            randomness = SeededRandomness(place, name)
            known = y if self.labelled[name] else None
            codes: dict[str, Any] = {"codes": _codes_of(X)}  # of a description: any numbers will do
            party = ForTheRun(name, X, known, account=account, randomness=randomness, models=Models(), **codes)
            give_scores(party, self.first)
            digest = bytes(32) if plan is None else plan.digest
            proposed = handle(party, encode(Frame("plan", next(serials), digest, text=text)))
            if kind_of(proposed) == "accept":
                assert plan is not None, "a text that is no plan was accepted"
                accounts[name] = account
                answers += answered(party, plan)
        return accounts, answers, plan


def _codes_of(X: np.ndarray) -> TableCodes:
    """The numbers themselves; with and without a label."""
    return TableCodes(lambda _: X, (X.shape[1], X.shape[1]))


class ForTheRun(Party):
    """A party whose rows with noise, and what it remembers, are kept for the run alone, as without a ledger."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.training.recall_memory = self._remember  # type: ignore[method-assign]

    def _remember(self, form: Algorithm, plan: Plan, rows: Block) -> tuple[Any, Any]:
        return form.remember(plan, rows), InProcess()


class InProcess:
    """Where what a party remembers is in its process alone."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Any] = {}

    def write(self, *_: Any) -> None:
        """Nothing is read again."""

    def settle(self) -> None:
        """Nothing is deleted."""

    def follows(self, *_: Any) -> bool:
        return True

    def write_rows(self, rows: Any) -> bytes:
        self._rows[b"rows"] = rows
        return b"rows"

    def read_rows(self, digest: bytes) -> Any:
        return self._rows.get(digest)


def answered(party: Party, plan: Plan) -> Iterator[Answer]:
    """Everything that a party lets out under a plan, asked for in every round of it and around them."""
    queries = queries_of(algorithms.of(plan), plan, party.name)
    releases = {release.query: release for release in plan.releases}
    for name, query in queries.items():
        first, count = (releases[name].first, releases[name].count) if name in releases else (0, 4)
        last = first + count
        rounds = range(first - 2, last + 3)
        some = rounds if count <= MANY else (*rounds[: MANY // 2], *rounds[-MANY // 2 :])
        for number in (number for number in some if -(2**31) <= number < 2**31):
            for told in messages(plan, query, number):
                frame = Frame("ask", next(serials), plan.digest, number, name, told)
                if kind_of(handle(party, encode(frame))) == "answer":
                    assert name in releases, f"{name!r} was answered, which the plan does not release"
                    record = int(told["index"][0]) if type(query).__name__ == "RecordGradient" else None
                    yield Answer(party.name, query, releases[name], number, record)
                    break


def messages(plan: Plan, query: Query, number: int) -> Iterator[dict[str, Any]]:
    """Messages that the query might take in that round: as short as it takes them, and as long."""
    try:
        takes = query.takes_at(number)
        long = {name: wanted.example() for name, wanted in takes.items()}
        sizes = {name: [size or 0 for size in wanted.shape] for name, wanted in takes.items()}
        short = {name: np.resize(array, sizes[name]) for name, array in long.items()}
    except (IndexError, ValueError):  # a round that the plan does not have
        short = long = {}
    if type(query).__name__ == "RecordGradient" and 0 <= number < plan.rounds:
        named = {"index": named_records(plan)[1][number : number + 1]}
        short, long = short | named, long | named
    yield short
    if any(short[name].shape != long[name].shape for name in short):
        yield long


# How many of the rounds answered have one record in them. Whoever declares `uses` says here, in other words, why.
Taking = Callable[[Plan, list[Answer]], int]


def most_named(plan: Plan, answers: list[Answer]) -> int:
    """A round is about one record, which its message names."""
    del plan
    named = [(answer.party, answer.record) for answer in answers]
    return max(named.count(key) for key in set(named))


def most_in_a_lot(plan: Plan, answers: list[Answer]) -> int:
    """Round t has the lot t mod lots, and a record is in one lot."""
    turns = [answer.number % plan.numbers.lots for answer in answers]
    return max(turns.count(key) for key in set(turns))


def most_drawn_lots(plan: Plan, answers: list[Answer]) -> int:
    """Round t has the L records that the public coin of round t draws."""
    rounds = [answer.number for answer in answers]
    drawn = [plan.public_coin(f"lot {t}").choice(plan.records, plan.numbers.lot, replace=False) for t in rounds]
    return int(np.bincount(np.concatenate(drawn)).max())


def one_vector(plan: Plan, answers: list[Answer]) -> int:
    """All columns of all parties are parts of one vector, whose norm the query bounds; each of them leaves once."""
    del plan
    seen = [(answer.party, answer.number) for answer in answers]
    return max(seen.count(key) for key in set(seen))


TAKING: Mapping[str, Taking] = {
    "RecordGradient": most_named,
    "LotSteps": most_in_a_lot,
    "SequentialState": most_drawn_lots,
    "FeatureWithinNorm": one_vector,
}


def spent(plan: Plan, answers: list[Answer], relation: Relation) -> list[Event]:
    """What the answers cost a record that is in all of them, each by its own sensitivity and its own noise."""
    events: list[Event] = []
    by_query: dict[tuple[str, ...], list[Answer]] = {}
    for answer in answers:
        joint = TAKING.get(type(answer.query).__name__) is one_vector
        by_query.setdefault((answer.query.name,) if joint else (answer.query.name, answer.party), []).append(answer)
    for several in by_query.values():
        query, release = several[0].query, several[0].release
        if type(query).uses is not Query.uses:
            assert type(query).__name__ in TAKING, f"{type(query).__name__}: say in TAKING why it counts fewer rounds"
        times = TAKING.get(type(query).__name__, lambda _, found: len(found))(plan, several) * release.batches
        moved = query.sensitivity(relation) + release.step * math.sqrt(query.rounding_entries)
        if release.mechanism == "derived":
            continue
        if release.std == 0.0:
            events.append(Unbounded("no noise"))
        elif release.mechanism in ("selection", "noisy-max"):
            factor = 2.0 if release.mechanism == "noisy-max" else 1.0
            events.append(Selection(times * (factor * moved / release.std) ** 2 / 2))
        elif release.rate is not None and release.rate < 1.0:
            once = query.sensitivity("zero-out") + release.step * math.sqrt(query.rounding_entries)
            events.append(PoissonGaussian(release.rate, release.std / once, times))
        else:
            events.append(Gaussian(moved * math.sqrt(times) / release.std))
    return events


def kept(plan: Plan, parties: Mapping[str, Any], relation: Relation) -> list[Event]:
    """What the rows cost that these parties keep with noise; they are rounded toward zero, which adds nothing."""
    found: list[Event] = []
    for release in plan.releases:
        if release.mechanism == "kept":
            for name in parties:
                query = queries_of(algorithms.of(plan), plan, name)[release.query]
                found.append(Gaussian(query.sensitivity(relation) / release.std) if release.std else Unbounded("rows"))
    return found


def check(holders: Holders, text: str) -> tuple[int, int]:
    """Whoever took the plan was charged at least what is served; how many took it, and how many answers there were.

    By rows a record is with one party. By columns it is with all of them, so each pays for the answers of all.
    """
    accounts, answers, plan = holders.serve(text)
    if plan is None:
        return 0, 0
    for name, account in accounts.items():
        shared = plan.split == "columns"
        mine = [answer for answer in answers if shared or answer.party == name]
        events = spent(plan, mine, holders.relation)
        events += kept(plan, accounts if shared else {name: account}, holders.relation)
        (reservation,) = account.book().reservations
        assert not any(isinstance(event, Unbounded) for event in events), f"{name} serves values without noise"
        price = account.terms().price("", events, plan.delta, "").cost
        assert price <= reservation.cost * (1 + 1e-9), (
            f"{name} serves {len(mine)} answers that cost {price:.6g}, and was charged {reservation.cost:.6g}"
        )
    return len(accounts), len(answers)
