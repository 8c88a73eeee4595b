"""`sgd`: stochastic gradients with secret sampling at the holder (SGD1 made sound; one party alone is DP-SGD)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    WALK,
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    TailAverage,
    gradient_query,
    option,
    public_coin,
    public_gradient,
)
from sottovoce.data.block import Block
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import GradientSum, Query
from sottovoce.errors import InputError, RefusedError
from sottovoce.plan.plan import Plan, Release, grid_step
from sottovoce.privacy.accounting import (
    SAMPLER_SHARE,
    Event,
    Relation,
    noise_multiplier_for,
    sampled_one_epsilon,
    visible_uses_epsilon,
)

PAPER_RADIUS = 10.0  # |C| of the published step size, where no set is given


class SGD(Algorithm):
    """w <- prox(w - step G / (rate N), step), G = sum over sampled records of clip(l'_i) x_i + N(0, std^2).

    Every record flips a secret coin of probability `rate` each round, at its holder. `schedule="all"`: every party
    answers every round. `schedule="one-party"`: a public coin, drawn before the budget is reserved, names one party a
    round (party m with probability n_m / N); there is no amplification from that choice.

    Guarantee: T Poisson-subsampled Gaussians, T the number of rounds in which the party answers (`proof.md`).
    Edges: an empty batch is answered with noise alone; the batch size is never revealed.
    """

    name: ClassVar[str] = "sgd"
    title: ClassVar[str] = "stochastic gradients with secret Poisson sampling (SGD1, DP-SGD)"
    has_paper: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("rounds", "rate", "step", "schedule", "slope_bound")

    def design(self, problem: Problem) -> Design:
        """A rate of 0.1 and 200 rounds; the step keeps the noise's random walk below WALK."""
        query = public_gradient(problem)
        curvature = query.loss.curvature_bound
        longest = 1 / curvature if math.isfinite(curvature) else 1.0
        schedule = problem.options.get("schedule") or "all"
        if schedule not in ("all", "one-party"):
            raise InputError(f"schedule={schedule!r} must be 'all' or 'one-party'.")
        if problem.calibration == "paper":
            return self._paper(problem, query)
        rate = option(problem, "rate", 0.1, low=1e-9, high=1.0)
        rounds = option(problem, "rounds", 200, low=1, whole=True)
        if math.isinf(problem.epsilon):
            release = Release.of(query, 0, rounds, 0.0, 1.0, rate)
            walk = 0.0
        else:
            multiplier = noise_multiplier_for(
                problem.epsilon, problem.delta * (1 - SAMPLER_SHARE), problem.relation, rate, rounds
            )
            sensitivity = query.sensitivity("zero-out")
            step = grid_step(query, multiplier * sensitivity)
            std = multiplier * (sensitivity + step * math.sqrt(query.entries))
            release = Release.of(query, 0, rounds, std, step, rate)
            parties = 1 if schedule == "one-party" else len(problem.parties)
            walk = std * math.sqrt(parties * rounds * problem.dimension) / (rate * problem.records)
        step_size = option(problem, "step", min(longest, WALK / walk if walk else longest), low=1e-12)
        numbers = {
            "slope_bound": query.slope_bound,
            "step": step_size,
            "rate": rate,
            "one_party": schedule == "one-party",
        }
        return Design(rounds, numbers, (release,))

    def _paper(self, problem: Problem, query: GradientSum) -> Design:
        """One record a round, named by the coordinator: n^2 rounds, std = 4 L n ln(1.25 n^2/delta) / epsilon."""
        n = problem.records
        rounds = option(problem, "rounds", n * n, low=1, whole=True)
        std = 4 * query.slope_bound * n * math.log(1.25 * n * n / problem.delta) / problem.epsilon
        scaled = _Record(query, n)
        release = Release.of(scaled, 0, rounds, std, grid_step(scaled, std))
        numbers = {
            "slope_bound": query.slope_bound,
            "named_records": 1.0,
            "radius": PAPER_RADIUS,
            "one_party": 0.0,
            "rate": 1 / n,
        }
        return Design(rounds, numbers, (release,), claimed_epsilon=problem.epsilon)

    def queries(self, plan: Plan) -> dict[str, Query]:
        """The gradient sum of a secret batch; in the paper's form n times one named record's gradient."""
        query = gradient_query(plan)
        return {"record": _Record(query, plan.records)} if _named(plan) else {"gradient": query}

    def coordinate(self, plan: Plan) -> Coordination:
        """Descend on noisy batches; return the mean of the second half of the iterates."""
        if _named(plan):
            return (yield from self._coordinate_paper(plan))
        weights = np.zeros(plan.dimension)
        tail = TailAverage(plan.dimension, plan.rounds // 2)
        called = _called(plan) if plan["one_party"] else None
        for t in range(plan.rounds):
            name, count = plan.parties[called[t]] if called is not None else ("", plan.records)
            gradients = yield Ask("gradient", {"weights": weights}, to=(name,) if name else None)
            step = plan["step"] / (plan["rate"] * count)
            weights = plan.scaled_regulariser.prox(weights - step * sum(gradients.values()), plan["step"])
            tail.add(t, weights)
        return tail.value

    def _coordinate_paper(self, plan: Plan) -> Coordination:
        """Steps w <- Proj(w - eta(t) G_t), eta(t) = |C| / sqrt(t (n^2 L^2 + p std^2)); the last iterate, as printed."""
        weights = np.zeros(plan.dimension)
        spread = math.sqrt((plan.records * plan["slope_bound"]) ** 2 + plan.dimension * plan.releases[0].std ** 2)
        owners, inside = _named_records(plan)
        for t in range(plan.rounds):
            ask = Ask("record", {"weights": weights, "index": inside[t : t + 1]}, to=(plan.parties[owners[t]][0],))
            (gradient,) = (yield ask).values()
            step = plan["radius"] / (spread * math.sqrt(t + 1))
            weights = plan.scaled_regulariser.prox(weights - step * gradient, step)
            weights *= min(1.0, plan["radius"] / max(float(np.linalg.norm(weights)), 1e-300))
        return weights

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
        """The batch is drawn inside the gate; a named record must be the one the public coin named."""
        if not _named(plan):
            return super().answer(plan, query, block, gate, round_, arrays, memory)
        index = _named_records(plan)[1][round_ : round_ + 1]
        if not np.array_equal(index, arrays.get("index", ())):
            raise RefusedError(f"round {round_} names a record that the plan's public coin did not name.")
        return gate.gaussian(query, round_, block.take(index), arrays["weights"])

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """Only the party that the public coin named, where one is named."""
        if not super().serves(plan, party, query, round_):
            return False
        if not (_named(plan) or plan["one_party"]):
            return True
        owner = _named_records(plan)[0][round_] if _named(plan) else _called(plan)[round_]
        return bool(plan.parties[owner][0] == party)

    def example(self, plan: Plan, query: str) -> Ask:
        """One party is asked where one is named, and in the paper's form for one record."""
        arrays: dict[str, NDArray[Any]] = {"weights": np.zeros(plan.dimension)}
        if _named(plan):
            arrays["index"] = np.zeros(1, dtype=np.int64)
        return Ask(query, arrays, to=(plan.parties[0][0],) if _named(plan) or plan["one_party"] else None)

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        """Poisson rounds of this party; in the paper's form the uses of its most used record, unamplified."""
        if [(release.first, release.count) for release in plan.releases] != [(0, plan.rounds)]:
            raise RefusedError("a plan of sgd has one release, in each of its rounds.")
        place = [name for name, _ in plan.parties].index(party)
        uses = plan.rounds
        if _named(plan):
            owners, inside = _named_records(plan)
            uses = int(np.bincount(inside[owners == place], minlength=1).max())
        elif plan["one_party"]:
            uses = int((_called(plan) == place).sum())
        return (plan.releases[0].event(relation, count=uses),) if uses else ()

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """With one party a round nothing is summed, so the world's view is the worst party's."""
        if plan["one_party"] or _named(plan):
            return ()
        return super().world_events(plan, relation)

    def epsilons(self, plan: Plan, relation: Relation) -> dict[str, float]:
        """In the paper's form the coordinator names the records: no amplification against whoever has its coin."""
        if not _named(plan):
            each = super().epsilons(plan, relation)
            return dict.fromkeys(each, each["coordinator"]) if plan["one_party"] else each
        delta = plan.delta * (1 - SAMPLER_SHARE)
        release, n = plan.releases[0], plan.records
        once = release.charged(relation) / release.std
        seen = visible_uses_epsilon(once, 1 / n, plan.rounds, delta)
        hidden = sampled_one_epsilon(n, release.std / release.charged("replace-one"), plan.rounds, delta)
        return {"world": min(hidden, seen), "coordinator": seen, "parties": seen}


class _Record:
    """n times the gradient of one named record: zero-out moves it by n G B, replace-one by 2 n G B."""

    name = "record"

    def __init__(self, gradient: GradientSum, records: int) -> None:
        self.gradient = gradient
        self.records = records

    def sensitivity(self, relation: Relation) -> float:
        return self.records * self.gradient.sensitivity(relation)

    @property
    def weights(self) -> float:
        return 1.0

    @property
    def entries(self) -> float:
        return self.gradient.entries

    def value(self, block: Block, *arguments: Any) -> NDArray[np.float64]:
        return self.records * self.gradient.value(block, *arguments)


def _named(plan: Plan) -> bool:
    return "named_records" in plan.number_of


@functools.lru_cache(maxsize=8)
def _called(plan: Plan) -> NDArray[np.int64]:
    """Which party answers each round."""
    counts = np.array([count for _, count in plan.parties], dtype=np.float64)
    return np.asarray(public_coin(plan, "party").choice(len(counts), size=plan.rounds, p=counts / counts.sum()))


@functools.lru_cache(maxsize=4)
def _named_records(plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(owner, place inside the owner) of the record of each round."""
    starts = np.cumsum([0] + [count for _, count in plan.parties])
    drawn = public_coin(plan, "record").integers(plan.records, size=plan.rounds)
    owners = np.searchsorted(starts, drawn, side="right") - 1
    return owners, drawn - starts[owners]
