"""What an algorithm is: a public design, the queries that parties answer, and the coordinator's text."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Query, Turn
from sottovoce.losses import Kind, Loss
from sottovoce.plan import Design, Numbers, Plan, Problem
from sottovoce.queries.pricing import Pricing

WALK = 8.0  # how far, in prepared units, the noise of all rounds may carry the weights of a plain descent
MOST_ROUNDS = 2**31 - 1  # a frame's round has 31 bits

Array = NDArray[np.float64]
Number = TypeVar("Number")
Weight = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]  # of a model that a plan carries
T = TypeVar("T")
Asking = Generator["Ask", dict[str, Array], T]  # a part of a coordinator's text that ends with a T


@dataclass(frozen=True)
class Solution:
    """Weights, what certifies them in a run without privacy, and what else the released values say of the loss."""

    weights: Array
    certificates: Mapping[str, float] = field(default_factory=dict)
    model: Any = None
    spread: tuple[float, float] | None = None  # mean and deviation of the training scores, where moments tell them
    labels: tuple[float, float] | None = None  # of counts: their mean, and the mean size of residuals from it
    baseline: tuple[float, ...] | None = None  # of times: the hazard in each period
    unfinished: str = ""  # where a run without privacy has not converged: how far it is


@dataclass(frozen=True)
class Ask:
    """One round of a query, with one payload of public arrays.

    It is the next round of the query, for all parties whose turn that is, unless the ask names a round or parties.
    `each` has what is said to one party alone, `reminder` what is said besides to one that lost what earlier rounds
    told it: all of that which the value follows from.
    """

    query: str
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    to: tuple[str, ...] = ()
    round: int | None = None
    each: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    reminder: Mapping[str, NDArray[Any]] = field(default_factory=dict)


Coordination = Asking[Array | Solution]

# The three ways to ask. Arrays of the message are arguments by name; `round` is an int, `each` {party: arrays} and
# `reminder` arrays. Their type is Any, as arguments by name may come from a mapping of arrays.


def total(query: str, /, *, round: Any = None, reminder: Any = None, **message: NDArray[Any]) -> Asking[Array]:
    """The sum of the parties' answers."""
    values = yield Ask(query, message, round=round, reminder=reminder or {})
    return np.asarray(sum(values.values()), dtype=np.float64)


def answer(*party_and_query: str, round: Any = None, **message: NDArray[Any]) -> Asking[Array]:
    """The answer of one party: `answer(party, query)`, or `answer(query)` of the one whose turn it is."""
    *party, query = party_and_query
    (value,) = (yield Ask(query, message, tuple(party), round)).values()
    return value


def answers(query: str, /, *, each: Any = None, **message: NDArray[Any]) -> Asking[dict[str, Array]]:
    """Each party's answer by its name; `each` has what one party alone is told."""
    return (yield Ask(query, message, each=each or {}))


@dataclass(frozen=True)
class Rounds:
    """Which round each ask of a text is, and whom it is for."""

    plan: Plan
    form: Algorithm
    asked: Counter[str] = field(default_factory=Counter)
    turns: dict[str, Turn] = field(default_factory=dict)

    def assign(self, ask: Ask) -> tuple[int, tuple[str, ...]]:
        """(round, parties): those that it names, or the next of its query's release and all whose turn that is."""
        if not self.turns:
            for query in self.form.queries(self.plan, self.plan.names[0]):
                self.turns[query.name] = query.answered_by
        number = self.plan.release(ask.query).first + self.asked[ask.query] if ask.round is None else ask.round
        self.asked[ask.query] += 1
        return number, ask.to or self.turns[ask.query].parties(self.plan, number)


@dataclass(frozen=True)
class Need:
    """What an algorithm needs of a loss, and how that is said of one that lacks it."""

    met: Callable[[Loss], bool]
    words: str  # with the loss's name in place of {}


SMOOTH = Need(operator.attrgetter("smooth"), "needs a smooth loss and {!r} is not")
CONVEX = Need(operator.attrgetter("convex"), "needs a convex loss and {!r} is not")
Z_UPDATE = Need(operator.attrgetter("has_proximal"), "needs a loss with a z-update and {!r} has none")


class NoNumbers(Numbers):
    """Those of a form that chooses none: the noise of its releases says all."""


class Algorithm(ABC):
    """One form of a solver: `design` picks public numbers, `queries` says what parties may be asked, `coordinate` asks.

    A family is a folder. `algorithms.find` takes the first form of a solver that fits the problem and the options.
    """

    name: ClassVar[str]  # of the solver
    form: ClassVar[str]  # of this form of it; the plan names both
    title: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = ("central", "rows")
    private: ClassVar[bool | None] = True  # False: without privacy; None: both, without noise where epsilon is infinite
    several: ClassVar[bool] = False  # True: for more than two classes, False: for one score
    ordered: ClassVar[bool | None] = False  # True: for ordered classes, with thresholds; None: these and others
    weighted: ClassVar[bool] = False  # True: takes class weights
    people: ClassVar[bool | None] = False  # True: for people with several records, None: also for them
    kinds: ClassVar[tuple[Kind, ...]] = ("classification", "regression")  # of labels
    takes_weights: ClassVar[bool] = False  # True: takes weights of records
    published: ClassVar[bool] = False  # True: a paper's own calibration, with its true epsilon
    when: ClassVar[Mapping[str, str]] = {}  # options that choose this form
    options: ClassVar[tuple[str, ...] | None] = None  # that this form takes; None: all of the solver's
    needs: ClassVar[tuple[Need, ...]] = ()  # of the loss
    layout: ClassVar[Layout] = "rows"  # how its queries need the rows prepared
    secure: ClassVar[tuple[str, ...]] = ()  # where its sums may be secure: it uses nothing but sums over all parties
    pricing: ClassVar[Pricing] = Pricing()  # a published form may have a true price of its own
    numbers: ClassVar[type[Numbers]] = NoNumbers  # that its plans have
    asks: ClassVar[tuple[type[Query], ...]] = (Query,)  # classes of its queries; `Query`: may look at single records
    lasts: ClassVar[tuple[str, ...]] = ()  # of the memory, what neither the rows nor a later message give again

    @abstractmethod
    def design(self, problem: Problem, options: Any) -> Design:
        """Rounds, numbers and noise from public quantities; a mismatch is told before data is touched."""

    @abstractmethod
    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        """What a party may be asked under the plan, public parts only."""

    @abstractmethod
    def coordinate(self, plan: Plan) -> Coordination:
        """The coordinator's text: yields an `Ask`, is sent {party: value}, returns the weights."""

    @classmethod
    def serves(cls, split: str, *, secure: bool = False) -> bool:
        """Whether it serves data split so, and with secure sums."""
        return split in (cls.secure if secure and not cls.published else () if secure else cls.splits)

    @classmethod
    def takes_scores(cls, loss: Loss) -> bool:
        """Whether its queries have as many scores and thresholds as the loss, of labels of its kind."""
        fits = cls.several == (loss.outputs > 1) and cls.ordered in (None, loss.ordered)
        return fits and loss.kind in cls.kinds

    @classmethod
    def check_loss(cls, loss: Loss) -> None:
        """Refuse a loss that lacks what this form needs, or has another number of scores than its queries."""
        if not cls.takes_scores(loss):
            raise InputError(f"solver={cls.name!r} in the form {cls.form!r} does not take the loss {loss.name!r}.")
        if loss.weighted and not cls.weighted:
            raise InputError(f"solver={cls.name!r} in the form {cls.form!r} takes no class_weight.")
        if loss.kind not in cls.kinds:
            raise InputError(f"solver={cls.name!r} in the form {cls.form!r} does not take the loss {loss.name!r}.")
        for need in cls.needs:
            if not need.met(loss):
                raise InputError(f"solver={cls.name!r} {need.words.format(loss.name)}.")

    @classmethod
    def check_weights(cls, problem: Problem) -> None:
        """Refuse weights of records where the form's sums do not carry them."""
        people = getattr(problem, "most_records", None) is not None  # a person's sum is cut after its weights
        if problem.bounds.weight_bound is not None and (people or not cls.takes_weights):
            raise InputError(f"solver={cls.name!r} takes no sample_weight; solvers that do: 'whitened'.")

    def remember(self, plan: Plan, rows: Block) -> Any:  # noqa: ARG002
        """What a party keeps from round to round; it never leaves the party."""
        return None

    def lasting(self, memory: Any) -> dict[str, NDArray[Any]]:
        """What of the memory a party stores with each release; what is None is left out."""
        found = {name: getattr(memory, name) for name in self.lasts}
        return {name: np.asarray(value) for name, value in found.items() if value is not None}

    def recall(self, memory: Any, lasting: Mapping[str, NDArray[Any]]) -> Any:
        """A new memory with what lasted put back; numbers are numbers again."""
        for name, value in lasting.items():
            setattr(memory, name, value.item() if value.ndim == 0 else value)
        return memory

    def own_weights(self, memory: Any) -> Array | None:  # noqa: ARG002
        """At the end of a run with models="kept": the party's weights on its own prepared rows. They stay with it."""
        return None


def given(value: Number | None, default: Number) -> Number:
    """An option, or what the default rule says where it was left out."""
    kind: Any = type(default)
    return default if value is None else kind(value) if isinstance(default, int | float) else value


def limited(name: str, value: Number, low: float, high: float) -> Number:
    """An option whose limits follow from the problem."""
    if not low <= value <= high:  # type: ignore[operator]
        raise InputError(f"{name}={value!r} must be from {low} to {high} here; leave it out for the default rule.")
    return value


def slope_bound(problem: Problem, options: Any) -> float:
    """G. Classification losses have slopes of at most 1; residuals are clipped to half the label's half-width."""
    loss = problem.scaled_loss
    bound = loss.lipschitz() if loss.kind == "classification" else min(loss.lipschitz(), 0.5)
    return float(given(getattr(options, "slope_bound", None), bound))


def public_model(plan: Plan) -> Array:
    """The weights on prepared rows of the model that a plan carries; of several classes one after the other."""
    weights, outputs = np.array(plan.numbers.weights), plan.scaled_loss.outputs
    if len(weights) != plan.dimension * outputs:
        each = f" and {outputs} classes" if outputs > 1 else ""
        raise RefusedError(
            f"the plan has a model of {len(weights)} weights for rows of {plan.dimension} columns{each}."
        )
    return weights


def spread_of(gram: Array, weights: Array, constant: float) -> tuple[float, float]:
    """Mean and standard deviation of the scores x'w, by a mean Gram matrix whose last column is the constant's.

    Without a constant column (0) the mean is taken as 0. Noise can make a variance negative: then it counts as 0.
    """
    moved = gram @ weights
    mean = float(moved[-1]) / constant if constant else 0.0
    return mean, math.sqrt(max(float(weights @ moved) - mean**2, 0.0))


def how_far(rounds: int, share: float, what: str, most: float = 1e-6) -> str:
    """Of a run without privacy that ended with a `share` above `most`: how far it is. Shares have no units."""
    if share <= most:
        return ""
    return f"after {rounds} rounds {what} is {share:.2g}, and {most:g} would count as converged"


class TailAverage:
    """The mean of the iterates from round `start` on; a function of released values only."""

    def __init__(self, shape: int | tuple[int, ...], start: int) -> None:
        self._sum = np.zeros(shape)
        self._count = 0
        self._start = start

    def add(self, number: int, weights: Array) -> None:
        if number >= self._start:
            self._sum += weights
            self._count += 1

    @property
    def state(self) -> Array:
        return np.append(self._sum, self._count)

    @state.setter
    def state(self, state: Array) -> None:
        self._sum, self._count = np.array(state[:-1]), int(state[-1])

    @property
    def value(self) -> Array:
        return self._sum / max(self._count, 1)
