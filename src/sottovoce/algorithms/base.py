"""What an algorithm is: a public design, a coordinator's text and a party's answer. No transport in sight."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST, Bounds
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import GradientSum, Query, Walk
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Calibration, Labels, Named, Plan, Release, Split
from sottovoce.privacy.accounting import SAMPLER_SHARE, Event, Relation, epsilon_of, mu_for
from sottovoce.privacy.guarantee import Unit
from sottovoce.privacy.mechanisms import selection_error

WALK = 8.0  # how far, in prepared units, the noise of all rounds may carry the weights of a plain descent
MOST_ROUNDS = 2**31 - 1  # a frame's round has 31 bits

Array = NDArray[np.float64]
Coordination = Generator["Ask", dict[str, Array], "Array | Solution"]


@dataclass(frozen=True)
class Solution:
    """Weights, what certifies them in a run without privacy, and what else the released values say of the loss."""

    weights: Array
    certificates: Mapping[str, float] = field(default_factory=dict)
    model: Any = None


@dataclass(frozen=True)
class Ask:
    """One round: a query for all parties (or those in `to`), with one payload of public arrays.

    `each` has what is said to one party alone. Rounds are numbered as they come, unless the ask says its own: two
    queries may share a round; a query's go up.
    """

    query: str
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    to: tuple[str, ...] | None = None
    round: int | None = None
    each: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """What is asked for, public throughout: the model, the split, the bounds and the budget."""

    loss: Named
    regulariser: Named
    split: Split
    parties: tuple[tuple[str, int], ...]
    features: int
    bounds: Bounds
    epsilon: float
    delta: float
    relation: Relation = "zero-out"
    calibration: Calibration = "tight"
    fit_intercept: bool = True
    classes: tuple[Any, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[int, ...] = ()
    norms: tuple[float, ...] = ()
    labels: Labels = "shared"
    holder: int = 0

    @property
    def records(self) -> int:
        """N."""
        return self.parties[0][1] if self.split == "columns" else sum(count for _, count in self.parties)

    @property
    def dimension(self) -> int:
        """Columns of a prepared row."""
        return self.features + self.fit_intercept

    @property
    def mu(self) -> float:
        """The Gaussian budget of (epsilon, delta), less the samplers' share of delta."""
        return mu_for(self.epsilon, self.delta * (1 - SAMPLER_SHARE))


@dataclass(frozen=True)
class Design:
    """The numbers an algorithm chose for a problem, from public quantities alone."""

    rounds: int
    numbers: Mapping[str, float]
    releases: tuple[Release, ...]
    claimed_epsilon: float | None = None
    layout: Layout = "rows"
    vectors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    protects: Unit = "record"


class Solver(ABC):
    """A solver by name, before there is a plan. A mismatch is told before data is touched."""

    name: ClassVar[str]
    title: ClassVar[str]
    splits: ClassVar[tuple[Split, ...]] = ("central", "rows")
    needs_smooth: ClassVar[bool] = False
    has_paper: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ("rounds",)

    def mismatch(self, loss: Loss, split: Split) -> str | None:
        """Why this solver cannot serve, or None."""
        if split not in self.splits:
            what = "data in one place" if split == "central" else f"data split by {split}"
            why = " (every record's score would need noise of its own: worse than one party alone)"
            return f"solver={self.name!r} does not serve {what}{why if split == 'columns' else ''}"
        if self.needs_smooth and not loss.smooth:
            return f"solver={self.name!r} needs a smooth loss and {loss.name!r} is not"
        return None

    @abstractmethod
    def design(self, problem: Problem) -> Design:
        """Rounds, steps and noise from public quantities."""

    @abstractmethod
    def of(self, plan: Plan) -> Algorithm:
        """The algorithm that serves a plan."""


class Family(Solver):
    """A solver with several forms, each an algorithm of its own: which one serves follows from problem or plan."""

    @abstractmethod
    def form(self, about: Plan | Problem, *, private: bool) -> Algorithm:
        """The form that serves a plan or a problem."""

    def of(self, plan: Plan) -> Algorithm:
        """The form of a plan."""
        return self.form(plan, private=plan.private)

    def design(self, problem: Problem) -> Design:
        """By the form; an option of another form is refused."""
        form = self.form(problem, private=math.isfinite(problem.epsilon))
        given = [name for name in problem.options if problem.options[name] is not None and name not in form.options]
        if given:
            raise InputError(
                f"{given[0]}={problem.options[given[0]]!r} means nothing to solver={self.name!r} here; it takes "
                f"{', '.join(form.options)}."
            )
        return form.design(problem)


class Algorithm(Solver):
    """A solver with one form: a public design, a coordinator's text and a party's answer."""

    kinds: ClassVar[Mapping[str, str]] = {}  # what a query's answers are called when bytes are counted
    resumes: ClassVar[bool] = True  # False if a holder that was stopped in a run has lost what the run needs
    layout: ClassVar[Layout] = "rows"  # how its queries need the rows prepared
    samples: ClassVar[bool] = True  # False if its queries need all rows of a holder
    keeps_rows: ClassVar[bool] = False  # True if a holder keeps rows with noise for later runs

    def of(self, plan: Plan) -> Algorithm:  # noqa: ARG002
        """Itself."""
        return self

    @abstractmethod
    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """The queries a party may be asked, public parts only."""

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:  # noqa: ARG002
        """The queries of one party, where they differ: by columns."""
        return self.queries(plan)

    @abstractmethod
    def coordinate(self, plan: Plan) -> Coordination:
        """The coordinator's text: yields an `Ask`, is sent {party: value}, returns the weights."""

    def remember(self, plan: Plan, block: Block) -> Any:  # noqa: ARG002
        """What a party keeps from round to round; it never leaves the party."""
        return None

    def kept_weights(self, plan: Plan, memory: Any) -> Array | None:  # noqa: ARG002
        """At the end of a run with models="kept": the party's weights on its own prepared rows. They stay with it."""
        return None

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Any,
    ) -> Released:
        """A party's text: the query on its own rows, through its gate."""
        del plan, memory  # most queries are said whole by their public part and the weights
        return gate.gaussian(query, round_, block, arrays["weights"])

    def objection(
        self,
        plan: Plan,
        query: str,
        round_: int,  # noqa: ARG002
        arrays: Mapping[str, NDArray[Any]],
    ) -> str | None:
        """Why a party does not answer such a message, or None. Made from the plan and the message alone."""
        weights = arrays.get("weights")
        usable = weights is not None and weights.dtype == np.float64 and weights.shape == (plan.dimension,)
        if weights is not None and usable and bool(np.all(np.abs(weights) <= LARGEST)):
            return None
        return (
            f"query {query!r} needs {plan.dimension} float64 weights, none above {LARGEST:g} in absolute value: scores "
            "that overflow would depend on a record without bound."
        )

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:  # noqa: ARG002
        """Whether the plan's public schedule has this party answer that query in that round."""
        return any(
            r.query == query and r.first <= round_ < r.first + r.count and r.mechanism != "kept" for r in plan.releases
        )

    def check_samplers(self, plan: Plan, relation: Relation, delta: float, epsilon: float = 0.0) -> None:
        """Refuse a plan whose samplers' own errors exceed, under this relation, the share of delta set aside.

        They are multiplied by exp(epsilon): the plan's own, or `epsilon` if a larger statement is made of it.
        """
        del plan, relation, delta, epsilon  # the samplers of Gaussian noise and of coins are exact

    def example(self, plan: Plan, query: str) -> Ask:
        """A round that asks `query`, as far as its size on the wire goes."""
        return Ask(query, {"weights": np.zeros(plan.dimension)})

    def conversation(self, plan: Plan) -> Iterable[tuple[Ask, int]]:
        """What a private run asks, by size on the wire and how often: exactly, or at most where the data decide."""
        said = [release for release in plan.releases if release.mechanism != "kept"]
        return [(self.example(plan, release.query), release.count) for release in said]

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """What one party's releases cost against whoever sees each of them."""
        return tuple(release.event(relation) for release in plan.releases)

    def dues(self, plan: Plan, relation: Relation, party: str, owed: Mapping[str, float]) -> tuple[Event, ...]:
        """What a party's ledger is charged: `events`, less what it paid before for rows that are kept.

        `owed` has for each party the precision 1 / std^2 of its kept rows that this ledger has not paid for yet.
        """
        del owed
        return self.events(plan, relation, party)

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """What the final model costs: only the sum over parties is used, so it carries every party's noise."""
        return tuple(release.event(relation, parties=len(plan.parties)) for release in plan.releases)

    def epsilons(self, plan: Plan, relation: Relation) -> dict[str, float]:
        """The true epsilon at the plan's delta against each adversary."""
        delta = plan.delta * (1 - SAMPLER_SHARE)
        each = max(epsilon_of(self.events(plan, relation, name), delta, relation) for name, _ in plan.parties)
        world = epsilon_of(self.world_events(plan, relation), delta, relation)
        return {"world": min(world, each), "coordinator": each, "parties": each}


def gradient_query(plan: Plan) -> GradientSum:
    """The clipped gradient sum of the plan's loss."""
    return GradientSum(plan.dimension, plan["slope_bound"], plan.scaled_loss)


def problem_loss(problem: Problem) -> Loss:
    """The loss on scaled labels, before there is a plan."""
    return draft(problem).scaled_loss


def draft(problem: Problem, numbers: Mapping[str, float] | None = None, layout: Layout = "rows") -> Plan:
    """A plan without releases, for what a design must know of its own queries."""
    return make_plan("draft", problem, Design(1, numbers or {}, (), layout=layout), run="draft", coin="draft")


def public_coin(plan: Plan, purpose: str) -> np.random.Generator:
    """Public randomness that everybody derives from the plan alone."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{purpose}:{plan.coin}".encode()).digest(), "big"))


def choice(problem: Problem, name: str, allowed: tuple[str, ...]) -> str:
    """An option with a name; None means the first."""
    value = problem.options.get(name)
    if value is None:
        return allowed[0]
    if value not in allowed:
        raise InputError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}.")
    return str(value)


def slope_bound(problem: Problem) -> float:
    """G. Classification losses have slopes of at most 1; residuals are clipped to half the label's half-width."""
    loss = problem_loss(problem)
    given = problem.options.get("slope_bound")
    if given is not None:
        if not (isinstance(given, int | float) and math.isfinite(given) and given > 0):
            raise InputError(f"slope_bound={given!r} must be a positive finite number.")
        return float(given)
    return loss.lipschitz() if loss.kind == "classification" else min(loss.lipschitz(), 0.5)


def public_gradient(problem: Problem) -> GradientSum:
    """The gradient query, before there is a plan."""
    return GradientSum(problem.dimension, slope_bound(problem), problem_loss(problem))


def option(
    problem: Problem, name: str, default: float, *, low: float, high: float = math.inf, whole: bool = False
) -> Any:
    """An option of the solver, checked; None means the default rule."""
    value = problem.options.get(name)
    if value is None:
        value = default
    if whole:
        high = min(high, MOST_ROUNDS)
    ok = (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and low <= value <= high
    )
    if not ok or (whole and int(value) != value):
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name}={value!r} must be {kind} from {low} to {high}; leave it out for the default rule.")
    return int(value) if whole else float(value)


def make_plan(algorithm: str, problem: Problem, design: Design, *, run: str, coin: str) -> Plan:
    """The frozen plan of a problem and an algorithm's design."""
    return Plan(
        run=run,
        coin=coin,
        algorithm=algorithm,
        calibration=problem.calibration,
        split=problem.split,
        parties=problem.parties,
        features=problem.features,
        fit_intercept=problem.fit_intercept,
        classes=problem.classes,
        loss=problem.loss,
        regulariser=problem.regulariser,
        bounds=problem.bounds,
        epsilon=problem.epsilon,
        delta=problem.delta,
        relation=problem.relation,
        rounds=design.rounds,
        numbers=tuple(sorted((name, float(value)) for name, value in design.numbers.items())),
        releases=design.releases,
        claimed_epsilon=design.claimed_epsilon,
        layout=design.layout,
        vectors=tuple(sorted(design.vectors.items())),
        protects=design.protects,
        columns=problem.columns,
        norms=problem.norms,
        labels=problem.labels,
        holder=problem.holder,
        models="kept" if design.protects == "feature" else choice(problem, "models", ("shared", "kept")),
    )


def is_held(about: Plan | Problem) -> bool:
    """Whether one of several parties alone knows the labels."""
    return about.labels == "held" and len(about.parties) > 1


def usable_numbers(values: NDArray[Any], size: int) -> bool:
    """Whether these are so many float64 numbers, none too large for exact arithmetic."""
    return values.dtype == np.float64 and values.shape == (size,) and bool(np.all(np.abs(values) <= LARGEST))


def check_choice_errors(count: int, candidates: int, what: str, epsilon: float, delta: float) -> None:
    """Refuse more choices than half of the share of delta set aside for samplers covers."""
    error = (1 + math.exp(min(epsilon, 700.0))) * count * selection_error(candidates)
    if error > SAMPLER_SHARE * delta / 2:
        raise InputError(
            f"rounds={count}: so many choices among {candidates} {what} leave an error of {error:.1g} in "
            f"delta={delta:.3g}; take fewer rounds, a larger delta or a smaller epsilon."
        )


def summed(values: Mapping[str, Array]) -> Array:
    """The sum over the parties."""
    return np.asarray(sum(values.values()), dtype=np.float64)


class TailAverage:
    """The mean of the iterates from round `start` on; a function of released values only."""

    def __init__(self, dimension: int, start: int) -> None:
        self._sum = np.zeros(dimension)
        self._count = 0
        self._start = start

    def add(self, round_: int, weights: Array) -> None:
        """Take in one iterate."""
        if round_ >= self._start:
            self._sum += weights
            self._count += 1

    @property
    def value(self) -> Array:
        """The mean so far."""
        return self._sum / max(self._count, 1)
