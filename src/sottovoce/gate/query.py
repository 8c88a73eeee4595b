"""What a party may be asked: a function of private rows that says all about itself.

A query declares its name, its title in reports, how far one record moves it, what it must be told, which parties answer
it and what the world sees of the answers. What a party serves and what it is charged both follow from this one
declaration (`queries/pricing.py`). Fields are public; private data come in a `Round`. Proofs: `proofs/queries.md`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block, RecordRows
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import RefusedError
from sottovoce.privacy.events import Relation, distance, either

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.problem import Problem

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MessageArrays = Mapping[str, NDArray[Any]]
World = Literal["sum", "each", "nothing"]


class Round(NamedTuple):
    """All that one answer of a party may touch."""

    plan: Plan  # public
    number: int  # public: with the query's name, the key of the release
    told: MessageArrays  # public: what the coordinator said, checked against `Query.takes` before
    rows: Block  # PRIVATE: the party's prepared rows, or the batch that the gate drew
    memory: Any = None  # PRIVATE: what `Algorithm.remember` made; it never leaves
    randomness: Any = None  # PRIVATE: the party's, from the gate; for a published form that draws noise of its own


@dataclass(frozen=True)
class Reals:
    """float64 numbers of a shape (None: any length), all of them finite and none outside [least, most].

    `longest` is the largest length that a run has where any is allowed.
    """

    shape: tuple[int | None, ...]
    least: float = -LARGEST
    most: float = LARGEST
    longest: int = 0
    dtype: ClassVar[type] = np.float64

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest shape that a run has."""
        return tuple(self.longest if length is None else length for length in self.shape)

    def example(self) -> NDArray[Any]:
        """An array that fits, of the largest shape: the number nearest to 0 within the limits."""
        return np.full(self.largest, min(max(self.least, 0.0), self.most), dtype=self.dtype)

    def fits(self, array: NDArray[Any]) -> bool:
        if array.dtype != self.dtype or array.ndim != len(self.shape):
            return False
        if array.shape != self.shape:
            pairs = zip(self.shape, array.shape, strict=True)
            if not all(own is None or own == length for own, length in pairs):
                return False
        if array.size == 0:
            return True
        low, high = float(np.minimum.reduce(array, axis=None)), float(np.maximum.reduce(array, axis=None))
        return self.least <= low and high <= self.most and -math.inf < low and high < math.inf  # a NaN is both

    def __str__(self) -> str:
        size = " x ".join("any number of" if length is None else str(length) for length in self.shape)
        return f"{size} {self.dtype.__name__} numbers, none below {self.least:g} or above {self.most:g}"


@dataclass(frozen=True)
class Wholes(Reals):
    """int64 numbers likewise."""

    dtype: ClassVar[type] = np.int64


@dataclass(frozen=True)
class Codes(Wholes):
    """int64 numbers likewise, none of which is 0: signs and places in one."""

    def fits(self, array: NDArray[Any]) -> bool:
        return super().fits(array) and bool(np.all(array != 0))


def misfit(takes: Mapping[str, Reals], told: MessageArrays) -> str | None:
    """Why a message does not carry what a query takes and nothing else, or None. Made of public limits alone."""
    for name, wanted in takes.items():
        array = told.get(name)
        if array is None or not wanted.fits(array):
            return f"needs {name!r}: {wanted}"
    if len(told) > len(takes):
        return f"takes no {', '.join(repr(name) for name in told if name not in takes)}"
    return None


class ForgottenError(RefusedError):
    """A value needs what an earlier message told, and the holder has lost it; the coordinator tells it again.

    Raised before anything is drawn, by public numbers alone (`Ask.reminder`).
    """


class Turn:
    """Which parties answer a query, and in which of its rounds: a public rule."""

    one_a_round: ClassVar[bool] = False

    def __init__(self, words: str, answers: Callable[[Problem, str], bool] | None = None) -> None:
        self.words = words
        self.answers = answers  # whether a party of a problem has a turn at all; None: each has

    def __call__(self, plan: Plan, party: str, number: int) -> bool:  # noqa: ARG002
        """Whether the party answers in that round."""
        return self.answers is None or self.answers(plan, party)

    def rounds(self, plan: Plan, party: str, first: int, count: int) -> int:
        """In how many of the rounds first, ..., first + count - 1 the party answers."""
        return count if self(plan, party, first) else 0

    def parties(self, plan: Plan, number: int) -> tuple[str, ...]:
        return plan.names if self is everyone else tuple(name for name in plan.names if self(plan, name, number))


class Scheduled(Turn):
    """One party a round: `places` has for every round its place among the parties."""

    one_a_round: ClassVar[bool] = True

    def __init__(self, words: str, places: Callable[[Plan], Integers]) -> None:
        super().__init__(words)
        self._places = places

    def __call__(self, plan: Plan, party: str, number: int) -> bool:
        places = self._places(plan)
        return 0 <= number < len(places) and plan.names.index(party) == int(places[number])

    def rounds(self, plan: Plan, party: str, first: int, count: int) -> int:
        return int((self._places(plan)[first : first + count] == plan.names.index(party)).sum())


class InTurn(Turn):
    """One party a round, the first again after the last, from the first round of the release on."""

    one_a_round: ClassVar[bool] = True

    def __init__(self, query: str) -> None:
        super().__init__("one party after the other")
        self._query = query

    def __call__(self, plan: Plan, party: str, number: int) -> bool:
        return plan.names[(number - plan.release(self._query).first) % len(plan.names)] == party

    def rounds(self, plan: Plan, party: str, first: int, count: int) -> int:
        place = plan.names.index(party) + plan.release(self._query).first - first
        return max(0, -(-(count - place % len(plan.names)) // len(plan.names)))


everyone = Turn("every party")
label_party = Turn("the party that has the labels", lambda plan, party: party == plan.label_party_name)
all_but_label_party = Turn("every party but that with the labels", lambda plan, party: party != plan.label_party_name)


class Query(ABC):
    """A function of private rows that carries its bound, made for one party of a plan.

    `bound` is the most that one record adds to the value, in the l2 norm weighted by `noise_weights`; entry k gets
    noise of standard deviation std / noise_weights[k]. `rounding_entries` is the sum of the squared weights of the
    entries that one record can move: what rounding to a grid can add. Of a choice the bound is that of one score.
    A replaced record moves the value by twice the bound, as the two terms may be opposite, by sqrt 2 of it where no two
    terms have an inner product below 0, and by the bound where that holds for any two data sets or terms are in [0, 1].
    """

    name: str  # on the wire, in the plan, in the ledger
    title: ClassVar[str]  # in reports
    kind: ClassVar[str] = ""  # what its answers are called where bytes are counted; "" is the name
    needs: ClassVar[type] = RecordRows  # what the rows must answer: where they may lie
    answered_by: Turn = everyone
    world_sees: ClassVar[World] = "sum"  # of the answers: their sum over the parties, each of them, or nothing
    together: ClassVar[bool] = False  # by columns: whether a release is charged for all parties' answers at once
    each_person: ClassVar[bool] = False  # whether an answer has numbers about single people, not sums over all
    samples: ClassVar[bool] = False  # whether it may be asked of a secret batch
    by_person: ClassVar[bool] = False  # whether its bound is of all records of a person, where people have several
    unordered: bool = False  # whether its rounds may come in any order
    one_by_one: ClassVar[bool] = False  # whether each party is asked on its own, told what those before it said
    most_asked: int | None = None  # how often a run asks a party at most, where released values decide when
    bound: float
    replacement: ClassVar[float | None] = None  # in bounds, how far a replaced record moves it at most; None: 2
    noise_weights: Array | float = 1.0
    rounding_entries: float
    length: int  # how many numbers an answer has
    limits: ClassVar[tuple[float, float]] = (-LARGEST, LARGEST)  # of the numbers of an exact answer
    takes: Mapping[str, Reals] = {}  # what a message must carry: names, shapes and limits

    def takes_at(self, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """What the message of that round must carry, where rounds differ."""
        return self.takes

    def objection(self, number: int, told: MessageArrays) -> str | None:
        """Why a message is refused, or None. Made of the plan and the message alone."""
        return misfit(self.takes_at(number), told)

    def check_message(self, number: int, told: MessageArrays) -> None:
        """Refuse a message that does not have what the query takes."""
        if (reason := self.objection(number, told)) is not None:
            raise RefusedError(f"query {self.name!r} in round {number} {reason}.")

    def follows_from(self, told: MessageArrays, memory: Any) -> MessageArrays:  # noqa: ARG002
        """All public numbers that the value follows from: those of the message, and of earlier ones what is in memory.

        A secure sum has the hash of them in its label: one that was left out here would leave two values under one
        mask. What the coordinator has of them is `Ask.arrays` and `Ask.reminder`.
        """
        return told

    @property
    def gives(self) -> Reals:
        """Type, shape and limits of the exact value."""
        return Reals((self.length,), *self.limits)

    def gives_at(self, number: int, told: MessageArrays) -> Reals:  # noqa: ARG002
        """The same in the round of that number, where the message said `told`."""
        return self.gives

    def rejection(self, number: int, told: MessageArrays, value: NDArray[Any]) -> str | None:
        """Why an answer without noise, or a choice, cannot be one, or None: for who gets it, from public numbers."""
        wanted = self.gives_at(number, told)
        return None if wanted.fits(value) else f"has to be {wanted}"

    def uses(self, times: int) -> int:
        """In how many of `times` releases under this name one record takes part at most."""
        return times

    def sensitivity(self, relation: Relation) -> float:
        """The largest weighted l2 distance between the values on two neighbours."""
        if self.replacement is None:
            return distance(relation) * self.bound
        return either(relation, zero_out=1.0, replace_one=self.replacement) * self.bound

    def joint_step(self, bits: int) -> float | None:  # noqa: ARG002
        """The grid on which it is exact, rows and slopes having so many bits; None: each party rounds its part."""
        return None

    @abstractmethod
    def value(self, round: Round) -> Array:
        """The exact value on private rows. Only the gate calls this."""

    def follow(self, released: Array, round: Round) -> Round | None:  # noqa: ARG002
        """The round of the next batch of a message, from the value just released; None if there is one batch only."""
        return None


class Walk(Query):
    """A sequence of numbers, each a function of the rows and of the noisy numbers before it."""

    @abstractmethod
    def walk(self, round: Round, noise: Integers | None, step: float) -> NDArray[Any]:
        """round(value_k / step) + noise_k for k = 0, 1, ...; without noise the values. Only the gate calls this."""

    def value(self, round: Round) -> Array:
        return np.asarray(self.walk(round, None, 0.0))


class Choice(Query):
    """Scores of candidates, of which the best is named, under noise.

    With `signed` a value stands for two candidates, it and its negative: the answer is j + 1 or -(j + 1). With `stays`
    the last value has no sign and is the score of the answer 0.
    """

    signed: ClassVar[bool] = False
    stays: ClassVar[bool] = False
    candidate: ClassVar[str]  # what is chosen, in errors
    candidates: int  # how many there are at most
    places: int  # of its values, a pair of signs counted once
    largest_std: float  # noise up to which the sensitivity's room for floating point suffices
    rounding_entries = 1.0
    length = 1

    @property
    def gives(self) -> Wholes:
        """The place of a candidate, or its code."""
        return self.place_among(self.places)

    def place_among(self, places: int) -> Wholes:
        """One of so many places, or its code."""
        if not self.signed:
            return Wholes((1,), 0, places - 1)
        return (Wholes if self.stays else Codes)((1,), -places, places)


class NoisyRows(Query):
    """A row of numbers for each record. It gets noise once and stays with the party: only a `Derived` of it leaves."""


class Derived(Query):
    """A function of rows that carry noise already, and of public numbers: it costs nothing more."""

    bound = 0.0
    rounding_entries = 0.0
    source: NoisyRows

    @abstractmethod
    def derive(self, rows: NDArray[Any], told: MessageArrays) -> Array:
        """The value on noisy rows, records x columns. Only the gate calls this."""

    def value(self, round: Round) -> Array:
        """On the rows without noise, in a run without privacy."""
        return self.derive(self.source.value(round), round.told)


class Plain(Query):
    """A query of unlimited sensitivity: the gate lets it out only in a run planned without privacy."""

    bound = math.inf
    rounding_entries = math.inf
    length = 1


class Together:
    """What the queries of several parties move by together: the root of the sum of squares.

    Guarantee: with std and step of a release calibrated on this, all parties' answers together cost what the release
    says, since sqrt(sum_m (s_m + step sqrt e_m)^2) <= sqrt(sum s_m^2) + step sqrt(sum e_m).
    """

    def __init__(self, queries: list[Query]) -> None:
        self.queries = tuple(queries)
        self.name = queries[0].name
        self.rounding_entries = math.fsum(query.rounding_entries for query in queries)

    def sensitivity(self, relation: Relation) -> float:
        """Of all parties' answers to one round."""
        return math.sqrt(math.fsum(query.sensitivity(relation) ** 2 for query in self.queries))
