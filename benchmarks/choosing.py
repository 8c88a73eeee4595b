"""What choosing a penalty costs and earns: `python benchmarks/choosing.py --epsilon 0.1 0.3 1`.

Test log-loss, means over `--runs` seeds, delta = 1e-5, zero-out, all at the same total epsilon: the default (no
penalty), `alpha="auto"` with penalty l1, and the best model of the same path, which nobody knows without looking. With
`--search` also the best of a search of mean 10 over the penalty of l2, whose trials have half of the epsilon each.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from peers.data import Case, a9a, adult, phishing
from scipy.stats import loguniform

import sottovoce as sv


def sparse(seed: int, records: int = 20_000, features: int = 100, used: int = 8) -> Case:
    """Unit rows without structure; a few columns say all there is to say. As many records again test."""
    r = np.random.default_rng([seed, records, features])
    X = r.standard_normal((2 * records, features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    scores = math.sqrt(features) * X[:, :used] @ (r.choice([-1, 1], used) * r.uniform(0.6, 1.4, used))
    y = np.where(r.random(2 * records) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    half, norms = features // 2, (0.5**0.5, 0.5**0.5)
    return Case("sparse", X[:records], y[:records], X[records:], y[records:], False, 1.0, half, norms)


CASES: dict[str, Callable[[int], Case]] = {
    "sparse": sparse,
    "few": lambda seed: sparse(seed, 5_000, 300),
    "phishing": lambda seed: phishing(),  # noqa: ARG005
    "a9a": lambda seed: a9a(),  # noqa: ARG005
    "adult": lambda seed: adult(),  # noqa: ARG005
}


def losses(case: Case, epsilon: float, seed: int, search: bool) -> dict[str, float]:
    """Test losses of one run, and the penalty that was chosen."""

    def model(**changes: Any) -> sv.PrivateLogisticRegression:
        return sv.PrivateLogisticRegression(epsilon, row_norm=1.0, classes=(-1, 1), insecure_seed=seed, **changes)

    def loss(coef: Any, intercept: Any) -> float:
        return case.test(np.ravel(coef), float(np.ravel(intercept)[0]))[0]

    plain = model().fit(case.X, case.y)
    chosen = model(alpha="auto", l1_ratio=1).fit(case.X, case.y)
    path = chosen.path_
    found = {
        "default": loss(plain.coef_, plain.intercept_),
        "chosen": loss(chosen.coef_, chosen.intercept_),
        "best of path": min(map(loss, path.coefs, path.intercepts)),
        "alpha": chosen.alpha_,
    }
    if search:
        grid = {"alpha": loguniform(1e-6, 1e-2)}
        best = sv.PrivateRandomizedSearch(model(), grid, epsilon=epsilon, insecure_seed=seed).fit(case.X, case.y)
        found["search"] = loss(best.best_estimator_.coef_, best.best_estimator_.intercept_)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=["sparse", "phishing"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.1, 0.3, 1.0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--search", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.only:
        for epsilon in given.epsilon:
            seeds = range(given.seed, given.seed + given.runs)
            runs = [losses(CASES[name](seed), epsilon, seed, given.search) for seed in seeds]
            means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0] if key != "alpha"}
            each = np.array([run["chosen"] - run["default"] for run in runs])
            error = each.std(ddof=1) / math.sqrt(len(each)) if len(each) > 1 else math.nan
            told = "  ".join(f"{key} {value:.4f}" for key, value in means.items())
            alphas = " ".join(f"{run['alpha']:.0e}" for run in runs)
            print(f"{name:9} epsilon {epsilon:<4g} {told}  chosen - default {each.mean():+.4f} +- {error:.4f}")
            print(f"{'':9} alphas {alphas}", flush=True)


if __name__ == "__main__":
    main()
