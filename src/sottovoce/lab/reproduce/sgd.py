"""SGD1 and SGD2, stochastic gradients of several agents and a coordinator (a write-up without experiments).

What it claims is measured. SGD1: the coordinator draws a record in each of n^2 rounds and calls its owner; the claim
counts on sampling to hide who was used, but the coordinator knows. SGD2: every agent sends a noisy gradient sum in each
of T rounds. The bounds of both stand beside runs, as curves.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

import sottovoce as sv
from sottovoce.federation.federation import Federation
from sottovoce.gate.query import Round
from sottovoce.lab.audit.transcript import Side, play_rounds
from sottovoce.lab.reproduce import Claim, Paper, PaperTable, Row, Setup, true_epsilon
from sottovoce.lab.theorems import sgd as theorems
from sottovoce.plan.plan import Plan
from sottovoce.privacy.accounting import gaussian_delta, gaussian_epsilon
from sottovoce.privacy.calibration import sampled_one_epsilon
from sottovoce.privacy.events import inside

Array = NDArray[np.float64]

TEXTS = Paper.of("sgd")
AGENTS = 2
SGD2 = sv.solvers.Gradient(rounds=50)
GIVEN: dict[str, Any] = {"row_norm": 1.0, "classes": (0, 1), "fit_intercept": False}


def data(records: int, features: int = 3, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Rows of norm at most 1 and labels of a logistic model."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, features))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    scores = X @ (3.0 * np.sign(np.arange(features) - 0.5))
    return X, (rng.random(records) < 1 / (1 + np.exp(-scores))).astype(np.int64)


def first(n: int, claimed: float) -> tuple[float, float]:
    """True epsilon of SGD1 against the coordinator and who sees the last iterate alone: replace-one, delta = 0.1 / n^3.

    The coordinator has the coin: the most named record counts, here with as many rounds as the median of coins gives.
    """
    delta = 0.1 * n**-3.0
    times = theorems.sgd1_noise(n, claimed, delta) / n  # noise in n L; a record moves a gradient by 2 n L
    most_named = float(binom.ppf(0.5 ** (1 / n), n * n, 1 / n))
    seen = gaussian_epsilon(2 * math.sqrt(most_named) / times, inside(delta))
    return seen, min(seen, sampled_one_epsilon(n, times / 2, n * n, inside(delta)))


def compare_sgd_epsilons(setup: Setup) -> PaperTable:
    """The true epsilon of SGD1, by its formulas, and of SGD2, by plans of `calibration="paper"`."""
    rows = []
    for n in (100, 1_000, 10_000, 100_000):
        setup.say(f"epsilons: SGD1 at n = {n:,}")
        seen, hidden = first(n, 1.0)
        how = "n^2 rounds, delta = 0.1/n^3, replace-one"
        rows.append(Row("SGD1, coordinator", f"n = {n:,}", 1.0, seen, how))
        rows.append(Row("SGD1, last iterate alone (certified)", f"n = {n:,}", 1.0, hidden, how))
    federation = Federation.central(*data(1000))
    for rounds in (50, 200):
        options = GIVEN | {"relation": "replace-one", "solver": sv.solvers.Gradient(rounds=rounds)}
        model = sv.PrivateLogisticRegression(1.0, delta=1e-5, calibration="paper", **options)
        true = true_epsilon(model, federation, "coordinator")
        rows.append(Row("SGD2", f"{rounds} rounds", 1.0, true, "solver='gradient', calibration='paper', delta = 1e-5"))
    return TEXTS.table("epsilons", rows)


def noise(_setup: Setup) -> PaperTable:
    """Noise of the gradient sum averaged over all rounds, in units of L: SGD1 as printed, and the sound forms."""
    n = 10_000
    federation, delta = Federation.central(*data(n)), 0.1 * n**-3.0  # within the stated domain
    forms = {
        "all records, 50 rounds": SGD2,
        "secret tenths, 200 rounds": sv.solvers.SGD(rate=0.1, rounds=200),
        "secret hundredths, 1,000 rounds": sv.solvers.SGD(rate=0.01, rounds=1000),
    }
    rows = []
    for epsilon, (series, solver) in itertools.product((0.5, 0.9), forms.items()):
        plan = sv.PrivateLogisticRegression(epsilon, delta=delta, solver=solver, **GIVEN).plan(federation)
        ours = plan.releases[0].std / (math.sqrt(plan.rounds) * (plan.releases[0].rate or 1.0))
        printed = theorems.sgd1_noise(n, epsilon, delta) / n
        rows.append(Row(series, f"epsilon {epsilon:g}", printed, ours, f"{solver}"))
    return TEXTS.table("noise", rows, n=n, delta=delta, rounds=n * n)


@dataclass(frozen=True)
class Trial:
    """Logistic losses with a ridge of `convexity`, or without on the ball of radius 1, at two agents.

    A published form runs by its own text and queries over values with the plan's noise, without gates, so that n^2
    rounds take seconds. The bounds have the noise of the run's own plan and L = 1, the ridge's part of L left out.
    """

    solver: Any
    records: int
    epsilon: float = 0.9
    convexity: float = 1.0
    calibration: Any = "paper"
    features: int = 3

    @functools.cached_property
    def parts(self) -> list[tuple[Array, NDArray[np.int64]]]:
        return list(zip(*(np.array_split(each, AGENTS) for each in data(self.records, self.features)), strict=True))

    def model(self, epsilon: float, **options: Any) -> sv.PrivateLogisticRegression:
        place: Any = {"alpha": self.convexity} if self.convexity else {"radius": 1.0}
        return sv.PrivateLogisticRegression(epsilon, delta=0.1 * self.records**-3.0, **GIVEN, **place, **options)

    @functools.cached_property
    def plan(self) -> Plan:
        model = self.model(self.epsilon, solver=self.solver, calibration=self.calibration)
        return model.plan(Federation.by_rows(self.parts))

    def total(self, w: Array) -> float:
        X, y = data(self.records, self.features)
        losses = np.logaddexp(0, np.where(y == 1, -1.0, 1.0) * (X @ w))
        return float(losses.sum() + self.records * self.convexity / 2 * w @ w)

    @functools.cached_property
    def least(self) -> float:
        return self.total(self.model(math.inf, solver="gradient").fit(*data(self.records, self.features)).coef_.ravel())

    def run(self, seed: int) -> float:
        """The excess of one run."""
        if self.calibration == "tight":
            model = self.model(self.epsilon, solver=self.solver, insecure_seed=1000 + seed)
            return self.total(model.fit(Federation.by_rows(self.parts)).coef_.ravel()) - self.least
        plan, rng = self.plan.model_copy(update={"coin": f"{seed}"}), np.random.default_rng(seed)
        side = Side(plan, dict(zip(plan.names, self.parts, strict=True)))

        def answer(ask: Any, number: int, parties: Iterable[str]) -> dict[str, Array]:
            asked = ((name, Round(plan, number, ask.arrays, side.blocks[name], None)) for name in parties)
            exact = {name: side.queries[name][ask.query].value(round) for name, round in asked}
            return {
                name: value + plan.noise_of(ask.query) * rng.standard_normal(len(value))
                for name, value in exact.items()
            }

        return self.total(play_rounds(plan, side.form, side.form.coordinate(plan), answer).weights) - self.least

    def mean_excess(self, runs: int) -> float:
        """Of so many runs."""
        return float(np.mean([self.run(seed) for seed in range(runs)]))

    def row(self, series: str, at: float | str, runs: int) -> Row:
        """The mean of some runs, of a published form beside its bound: Theorem 2 with constants, or Theorem 4."""
        found = [self.run(seed) for seed in range(runs)]
        how = f"{self.plan.algorithm}, {self.calibration}, n = {self.records}, Delta = {self.convexity:g}, {runs} runs"
        bound, spread = self.bound if self.calibration == "paper" else None, float(np.std(found)) if runs > 1 else None
        return Row(series, at, bound, float(np.mean(found)), how, spread)

    @functools.cached_property
    def bound(self) -> float:
        std, rounds = self.plan.releases[0].std, self.plan.rounds
        sizes = theorems.Agents(self.records, self.features, AGENTS, convexity=self.convexity, diameter=2.0)
        if self.plan.numbers.names_records:
            return sizes.last_iterate(std, rounds)[self.convexity > 0]
        return sizes.sgd2(std, rounds)


def run_trials(setup: Setup, name: str, runs: int, trials: Any, more: str = "") -> PaperTable:
    """A row for each of {(series, place): trial}."""
    rows = []
    for (series, at), trial in trials.items():
        setup.say(f"{name}: {series} {at}")
        rows.append(trial.row(series, at, runs))
    about = f"{AGENTS} agents, 3 features, epsilon = 0.9 if not told, delta = 0.1/n^3, zero-out."
    return TEXTS.table(name, rows, about=about + more)


def measure_sgd_excess(setup: Setup) -> PaperTable:
    """Excess of the sum of the losses: SGD1 and SGD2 as printed beside their bounds, `sgd` and `newton`."""
    forms = {"SGD1 as printed": "sgd", "SGD2 as printed": SGD2, "sgd": "sgd", "newton": "newton"}
    n = setup.of(300, 60)
    trials = {
        ("", at): Trial(solver, n, convexity=0.01, calibration="paper" if "printed" in at else "tight")
        for at, solver in forms.items()
    }
    zero = (trial := trials["", "newton"]).total(np.zeros(3)) - trial.least
    return run_trials(setup, "excess", setup.of(3, 1), trials, f" The zero model has {zero:.3g}.")


def follow_records(setup: Setup) -> PaperTable:
    """Excess of SGD1 against n, beside Theorem 2 with constants."""
    series = {"Theorem 2.1, ball": 0.0, "Theorem 2.2, ridge": 1.0}
    places = itertools.product(series, setup.of((25, 50, 100, 200), (15, 30)))
    trials = {(name, n): Trial("sgd", n, convexity=series[name]) for name, n in places}
    return run_trials(setup, "records", setup.of(4, 2), trials)


def follow_rounds(setup: Setup) -> PaperTable:
    """Excess of SGD2 against T, beside Theorem 4."""
    counts = setup.of((5, 10, 20, 50, 100, 200, 500), (5, 20, 50))
    trials = {("SGD2, n = 1,000", T): Trial(sv.solvers.Gradient(rounds=T), 1000) for T in counts}
    return run_trials(setup, "rounds", setup.of(10, 3), trials)


def follow_epsilon(setup: Setup) -> PaperTable:
    """Excess of SGD2 and of `newton` against epsilon, beside Theorem 4."""
    places = (0.1, 0.2, 0.5, 1.0, 2.0)
    trials = {("SGD2, n = 1,000, T = 50", at): Trial(SGD2, 1000, at) for at in places}
    trials |= {("newton", at): Trial("newton", 1000, at, calibration="tight") for at in places}
    return run_trials(setup, "epsilon", setup.of(10, 3), trials)


def _judge_lemmas(_setup: Setup) -> Iterator[Claim]:
    coins = []
    for epsilon, times, slack in itertools.product((0.01, 0.1, 0.5, 0.9), (1, 10, 100, 1000), (1e-3, 1e-9)):
        total, _ = theorems.strong_composition(epsilon, 0.0, times, slack)
        coins.append(theorems.composed_coins(epsilon, times, total) / slack)
    yield TEXTS.claim("lemma 1", max(coins) <= 1, most=max(coins))

    def exceeds(epsilon: float) -> float:
        """The true delta of Lemma 2's noise as a share of the delta it is for, the largest of some."""
        return max(gaussian_delta(1 / theorems.gaussian_lemma(epsilon, d), epsilon) / d for d in (1e-2, 1e-5, 1e-10))

    below = max(map(exceeds, (0.01, 0.1, 0.5, 0.99)))
    yield TEXTS.claim("lemma 2", below <= 1, below=below, above=exceeds(20.0))


def _judge_sgd1(_setup: Setup) -> Iterator[Claim]:
    seen, hidden = first(1000, 1.0)
    yield TEXTS.claim("theorem 1", max(seen, hidden) <= 1, seen=seen, hidden=hidden)
    sums = {k: theorems.sgd1_composed(k, 0.999, 0.99 / k**3)[0] / 0.999 for k in range(2, 1001)}
    since = max((k for k in sums if sums[k] > 1), default=1) + 1
    yield TEXTS.claim("epsilons add up", since <= 2 or None, since=since, two=sums[2], then=sums[since])
    _, total = theorems.sgd1_composed(1000, 1.0, 1e-10)
    yield TEXTS.claim("deltas add up", total <= 1e-10, total=total)

    def speaks(n: int) -> bool:
        """Whether Theorem 2.1 with constants is below n L |C|, which no excess is above."""
        noise = theorems.sgd1_noise(n, 0.9, 0.1 * n**-3.0)
        return theorems.Agents(n, 3, diameter=2.0).last_iterate(noise, n * n)[0] < 2.0 * n

    ball, ridge = Trial("sgd", 40, convexity=0.0), Trial("sgd", 40, convexity=4.0)
    convex, strong = (each.mean_excess(4) for each in (ball, ridge))
    spoken = bisect.bisect_left(range(10**8), True, lo=2, key=speaks)
    yield TEXTS.claim("convex bound", convex <= ball.bound, share=convex / ball.bound, spoken=spoken)
    growth = replace(ridge, epsilon=0.3).mean_excess(4) / strong
    holds = strong <= ridge.bound and growth <= 10
    yield TEXTS.claim("strongly convex bound", holds, share=strong / ridge.bound, growth=growth)


def _judge_sgd2(_setup: Setup) -> Iterator[Claim]:
    n, T = 1000, 50
    true = gaussian_epsilon(math.sqrt(T) / theorems.gaussian_lemma(*theorems.sgd2_share(1.0, 1e-5, T)), inside(1e-5))
    yield TEXTS.claim("theorem 3", true <= 1, T=T, true=true)
    epsilon, delta = theorems.sgd2_composed(1.0, 1e-5, T)
    yield TEXTS.claim("step 5", epsilon <= 1, epsilon=epsilon, delta=delta / 1e-5)
    trial = Trial(SGD2, n)
    share = trial.mean_excess(4) / trial.bound
    yield TEXTS.claim("theorem 4", share <= 1, n=n, T=T, share=share)
    noises = np.random.default_rng(0).standard_normal((10_000, AGENTS, 3)).sum(axis=1)
    last = float((noises**2).sum(axis=1).mean()) / 2  # F = |theta|^2 / 2, steps of 1: the last iterate is a noise
    last /= theorems.descent_bound(0.0, 1.0, 1.0, T)
    yield TEXTS.claim("constant steps", last <= 1, last=last, agents=AGENTS, told=last / 3 / AGENTS)


PAPER = Paper(
    TEXTS.told,
    {
        "epsilons": compare_sgd_epsilons,
        "noise": noise,
        "excess": measure_sgd_excess,
        "records": follow_records,
        "rounds": follow_rounds,
        "epsilon": follow_epsilon,
    },
    (_judge_lemmas, _judge_sgd1, _judge_sgd2),
)
