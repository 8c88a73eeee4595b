"""SGD1 and SGD2, stochastic gradients of several agents and a coordinator (a write-up without experiments).

What it claims is measured. SGD1: the coordinator draws a record in each of n^2 rounds and calls its owner; the claim
counts on sampling to hide who was used, but the coordinator knows. SGD2: every agent sends a noisy gradient sum in each
of T rounds; excess of the sum of the losses at most 8 m p (sigma^2 + n^2 L^2) / (n Delta T), Delta the strong
convexity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

import sottovoce as sv
from sottovoce.federation.federation import Federation
from sottovoce.lab.reproduce import Paper, PaperTable, Row, Setup, true_epsilon
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.calibration import sampled_one_epsilon
from sottovoce.privacy.events import inside

Array = NDArray[np.float64]

GIVEN: dict[str, Any] = {"row_norm": 1.0, "classes": (0, 1), "fit_intercept": False}


def data(records: int, features: int = 3, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Rows of norm at most 1 and labels of a logistic model."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, features))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    scores = X @ (3.0 * np.sign(np.arange(features) - 0.5))
    return X, (rng.random(records) < 1 / (1 + np.exp(-scores))).astype(np.int64)


def first(n: int, claimed: float) -> tuple[float, float]:
    """True epsilon of SGD1 against the coordinator and the world: replace-one, delta = 0.1 / n^3.

    The coordinator has the coin: the most named record counts, here with as many rounds as the median of coins gives.
    """
    delta = 0.1 * n**-3.0
    times = 4 * math.log(1.25 * n * n / delta) / claimed  # noise in n L; a record moves a gradient by 2 n L
    most_named = float(binom.ppf(0.5 ** (1 / n), n * n, 1 / n))
    seen = gaussian_epsilon(2 * math.sqrt(most_named) / times, inside(delta))
    return seen, min(seen, sampled_one_epsilon(n, times / 2, n * n, inside(delta)))


def compare_sgd_claims(setup: Setup) -> PaperTable:
    """The true epsilon of SGD1, by its formulas, and of SGD2, by plans of `calibration="paper"`."""
    rows = []
    for n in (100, 1_000, 10_000, 100_000):
        setup.say(f"claims: SGD1 at n = {n:,}")
        seen, hidden = first(n, 1.0)
        how = "n^2 rounds, delta = 0.1/n^3, replace-one"
        rows.append(Row("SGD1, coordinator", f"n = {n:,}", 1.0, seen, how))
        rows.append(Row("SGD1, world (certified)", f"n = {n:,}", 1.0, hidden, how))
    federation = Federation.central(*data(1000))
    for rounds in (50, 200):
        options = GIVEN | {"relation": "replace-one", "solver": sv.solvers.Gradient(rounds=rounds)}
        model = sv.PrivateLogisticRegression(1.0, delta=1e-5, calibration="paper", **options)
        true = true_epsilon(model, federation, "coordinator")
        rows.append(Row("SGD2", f"{rounds} rounds", 1.0, true, "solver='gradient', calibration='paper', delta = 1e-5"))
    return PaperTable("True epsilon", "Epsilon", "setting", tuple(rows), ("claimed", "true"), log=True)


def noise(setup: Setup) -> PaperTable:
    """Noise of the gradient sum averaged over all rounds, in units of L: SGD1 as printed, and the sound forms."""
    del setup
    n, delta = 10_000, 1e-5
    federation = Federation.central(*data(n))
    forms: list[tuple[str, dict[str, Any]]] = [
        ("all records, 50 rounds", {"solver": sv.solvers.Gradient(rounds=50)}),
        ("secret tenths, 200 rounds", {"solver": sv.solvers.SGD(rate=0.1, rounds=200)}),
        ("secret hundredths, 1,000 rounds", {"solver": sv.solvers.SGD(rate=0.01, rounds=1000)}),
    ]
    rows = []
    for epsilon in (0.5, 1.0):
        printed = 4 * math.log(1.25 * n * n / delta) / epsilon
        for series, options in forms:
            plan = sv.PrivateLogisticRegression(epsilon, delta=delta, **GIVEN, **options).plan(federation)
            (release,) = plan.releases
            ours = release.std / (math.sqrt(plan.rounds) * (release.rate or 1.0))
            how = ", ".join(f"{name}={value!r}" for name, value in options.items())
            rows.append(Row(series, f"epsilon {epsilon:g}", printed, ours, how))
    note = f"n = {n:,}, delta = {delta:g}, zero-out; SGD1 has {n * n:,} rounds of one record."
    title, heads = "Noise of the averaged gradient sum, in units of L", ("SGD1 as printed", "sound")
    return PaperTable(title, "Standard deviation / L", "epsilon", tuple(rows), heads, True, note)


def measure_sgd_excess(setup: Setup) -> PaperTable:
    """Excess of the sum of the losses: SGD1 and SGD2 as printed beside SGD2's bound, `sgd` and `newton`."""
    n, alpha, rounds, parties, delta = setup.of(300, 60), 0.01, 50, 2, 1e-5
    X, y = data(n)
    signs = np.where(y == 1, 1.0, -1.0)

    def total(w: Array) -> float:
        return float(np.logaddexp(0, -signs * (X @ w)).sum() + n * alpha / 2 * w @ w)

    given = GIVEN | {"alpha": alpha}
    least = total(sv.PrivateLogisticRegression(math.inf, solver="newton", **given).fit(X, y).coef_.ravel())
    half = n // parties
    sigma = 2 * math.sqrt(2 * math.log(1.25 * rounds / delta)) * math.sqrt(rounds * math.log(1 / delta))
    bound = 8 * parties * X.shape[1] * (sigma**2 + n * n) / (n * alpha * rounds)
    sgd2 = sv.solvers.Gradient(rounds=rounds)
    forms: list[tuple[str, float | None, dict[str, Any]]] = [
        ("SGD1 as printed", None, {"solver": "sgd", "calibration": "paper", "delta": 0.1 * n**-3.0}),
        ("SGD2 as printed", bound, {"solver": sgd2, "calibration": "paper", "delta": delta}),
        ("sgd", None, {"solver": "sgd", "delta": delta}),
        ("newton", None, {"solver": "newton", "delta": delta}),
    ]
    rows = []
    for at, published, options in forms:
        runs, found = 1 if at == "SGD1 as printed" else setup.of(5, 1), []
        for seed in range(runs):
            setup.say(f"excess: {at}, run {seed + 1} of {runs}")
            federation = Federation.by_rows([(X[:half], y[:half]), (X[half:], y[half:])])
            model = sv.PrivateLogisticRegression(1.0, insecure_seed=1000 + seed, **given, **options).fit(federation)
            found.append(total(model.coef_.ravel()) - least)
        how = ", ".join(
            f"{name}={value:.3g}" if name == "delta" else f"{name}={value!r}" for name, value in options.items()
        )
        spread = float(np.std(found)) if runs > 1 else None
        how += f"; {model.n_iter_:,} rounds, {runs} runs"
        rows.append(Row("", at, published, float(np.mean(found)), how, spread))
    zero = total(np.zeros(X.shape[1])) - least
    note = f"n = {n}, {parties} agents, 3 features, Delta = {alpha:g}, epsilon = 1. The zero model has {zero:.3g}."
    heads = ("claimed bound", "measured")
    return PaperTable("Excess of the sum of the losses", "Excess", "method", tuple(rows), heads, True, note)


PAPER = Paper(
    "An unpublished write-up on multi-party stochastic gradient descent (SGD1 and SGD2).",
    {"claims": compare_sgd_claims, "noise": noise, "excess": measure_sgd_excess},
    (
        "There is no experiment to reproduce. What it claims is measured instead.",
        "SGD1's excess bound: it has no constants. SGD1 at large n: it takes n^2 rounds.",
    ),
)
