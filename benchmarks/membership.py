"""Membership inference with and without privacy: `python benchmarks/membership.py --plot membership.png`.

400 people; three features make the label, 600 others are noise, rows of norm 1. A model is trained on each person with
probability 1/2 (the others are blank rows, which is what `zero-out` compares) and published: scikit-learn's logistic
regression with a weak penalty (C = 100), or `PrivateLogisticRegression` as it comes, at epsilon 8 and 1, delta 1e-5.

The attacker knows everybody's record and label and asks who was in the training. It is a likelihood-ratio attack with
shadow models (Carlini et al. 2022): half of the models, whose members the attacker chose, tell the mean of each
person's margin y x'w in and out of the training, and the variances, colluding over people; on each other model the
score of a person is log N(margin; in) - log N(margin; out). A threshold on the score gives true and false positives.

Whatever the attack: true positives <= e^epsilon false positives + delta, and the same for the complements. The curves
pool people and models; given the shadow models, the mean over people of one model's excess over the bound is
independent of the other models', which is what `worst` tests: the largest Student statistic over FALSE_POSITIVES.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import json
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import sottovoce as sv

Array = NDArray[np.float64]

PEOPLE, SIGNAL, NOISE, SHARE, SLOPE = 400, 3, 600, 0.25, 5.0
DELTA = 1e-5
EPSILONS = (math.inf, 8.0, 1.0)
FALSE_POSITIVES = (0.001, 0.01, 0.1)


class Attack(NamedTuple):
    """Scores of the attacked models, who was in each, and the accuracy of all models on new people."""

    scores: Array
    members: NDArray[np.bool_]
    accuracy: float


def population(people: int, noise: int, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """Rows of norm 1: a share of it in the features that make the label, the rest in noise."""
    rng = np.random.default_rng(seed)

    def directions(width: int) -> Array:
        rows = rng.standard_normal((people, width))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    signal = directions(SIGNAL)
    odds = SLOPE * signal.sum(axis=1) / math.sqrt(SIGNAL)
    labels = (rng.random(people) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    return np.hstack([math.sqrt(SHARE) * signal, math.sqrt(1 - SHARE) * directions(noise)]), labels


def trained(X: Array, y: NDArray[np.int64], members: NDArray[np.bool_], epsilon: float, seed: int) -> Array:
    """The weights of a model of the members."""
    if math.isinf(epsilon):
        model: Any = LogisticRegression(C=100.0, fit_intercept=False, max_iter=2000, tol=1e-3)
        return np.ravel(model.fit(X[members], y[members]).coef_)
    model = sv.PrivateLogisticRegression(
        epsilon, delta=DELTA, row_norm=1.0, classes=(0, 1), fit_intercept=False, alpha=1e-3, insecure_seed=seed
    )
    return np.ravel(model.fit(X * members[:, None], y).coef_)  # a row of zeros moves nothing


def attack(epsilon: float, models: int, *, people: int = PEOPLE, noise: int = NOISE, seed: int = 0) -> Attack:
    """Train so many models, learn from the first half of them, attack the second."""
    X, y = population(people, noise, seed)
    X_new, y_new = population(2000, noise, seed + 1)
    members = np.random.default_rng([seed, 2]).random((models, people)) < 0.5
    margins, right = np.empty((models, people)), np.empty(models)
    for place in range(models):
        weights = trained(X, y, members[place], epsilon, seed=place)
        margins[place] = (2 * y - 1) * (X @ weights)
        right[place] = np.mean((X_new @ weights > 0) == (y_new == 1))
    shadows = models // 2
    return Attack(ratio(margins, members, shadows), members[shadows:], float(right.mean()))


def ratio(margins: Array, members: NDArray[np.bool_], shadows: int) -> Array:
    """log N(margin; in) - log N(margin; out) of the models after the shadows."""
    known, seen = margins[:shadows], members[:shadows]
    logs = []
    for side in (seen, ~seen):
        count = np.maximum(side.sum(axis=0), 1)
        mean = (known * side).sum(axis=0) / count
        variance = (((known - mean) ** 2) * side).sum() / max((side.sum() - side.shape[1]), 1)
        logs.append(-((margins[shadows:] - mean) ** 2) / (2 * variance) - math.log(variance) / 2)
    return np.asarray(logs[0] - logs[1])


def curve(found: Attack) -> tuple[Array, Array]:
    """False and true positives at every threshold."""
    order = np.argsort(-found.scores, axis=None)
    hits = found.members.ravel()[order]
    return np.cumsum(~hits) / (~hits).sum(), np.cumsum(hits) / hits.sum()


def bound(false: Array, epsilon: float) -> Array:
    """The most true positives that (epsilon, DELTA) allows at these false ones."""
    factor = math.exp(epsilon)
    return np.minimum(np.minimum(factor * false + DELTA, 1 - (1 - DELTA - false) / factor), 1.0)


def true_positives(found: Attack, false: float) -> float:
    """At this share of false positives."""
    x, y = curve(found)
    return float(y[np.searchsorted(x, false, side="right") - 1]) if x[0] <= false else 0.0


def area(found: Attack) -> float:
    """Under the curve: the chance that a member scores above somebody who was not."""
    return float(np.trapezoid(*curve(found)[::-1]))


def worst(found: Attack, epsilon: float) -> float:
    """The largest Student statistic of (true - e^epsilon false - delta) over the thresholds and both directions.

    Of every model the mean over people of 2 b 1{hit} - e^epsilon 2 (1 - b) 1{hit}, b a fair coin, has expectation at
    most delta if the bound holds; the models are independent given the shadows and the thresholds are taken as given.
    """
    factor, largest = math.exp(epsilon), -math.inf
    for false in FALSE_POSITIVES:
        cut = np.quantile(found.scores[~found.members], 1 - false)
        for hit, inside in ((found.scores > cut, found.members), (found.scores <= cut, ~found.members)):
            each = (2.0 * (hit & inside) - factor * 2.0 * (hit & ~inside)).mean(axis=1) - DELTA
            error = each.std(ddof=1) / math.sqrt(len(each))
            largest = max(largest, float(each.mean() / error))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200, help="at each epsilon; half of them are shadows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="draw the curves to this PNG file (needs the extra `plots`)")
    arguments = parser.parse_args()
    found, rows = {}, []
    for epsilon in EPSILONS:
        found[epsilon] = made = attack(epsilon, arguments.models, seed=arguments.seed)
        row: dict[str, Any] = {"epsilon": epsilon if math.isfinite(epsilon) else "inf", "accuracy": made.accuracy}
        row |= {"area": area(made)} | {f"at {false:g}": true_positives(made, false) for false in FALSE_POSITIVES}
        rows.append(row)
        if not arguments.json:
            print(
                "  ".join(
                    f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
                ),
                flush=True,
            )
    if arguments.json:
        print(json.dumps(rows, indent=2))
    if arguments.plot:
        draw(found, arguments.plot)


def draw(found: dict[float, Attack], path: str) -> None:
    """True against false positives on logarithmic axes, with the bound of each epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.2, 5.2))
    grid = np.geomspace(1e-4, 1, 400)
    axis.plot(grid, grid, color="grey", lw=0.8, ls=":", label="guessing")
    for color, (epsilon, made) in zip(("C3", "C1", "C0"), found.items(), strict=True):
        x, y = curve(made)
        shown = (x >= 1e-4) & (y > 0)
        name = "without privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
        axis.plot(x[shown], y[shown], color=color, label=f"{name} (accuracy {100 * made.accuracy:.0f}%)")
        if math.isfinite(epsilon):
            axis.plot(
                grid, bound(grid, epsilon), color=color, ls="--", lw=1, label=f"most that epsilon {epsilon:g} allows"
            )
    axis.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.05))
    axis.set_xlabel("false positives: called members, but were not")
    axis.set_ylabel("true positives: members found")
    axis.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
