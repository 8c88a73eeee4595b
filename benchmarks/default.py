"""What each stage of `whitened` earns: `python benchmarks/default.py --only adult phishing --epsilon 0.1 1`.

Points: 0 is the model without privacy (the best of several small penalties, judged on the test part), 100 the constant
model. A column is the rule with one part of it left out; means over `--runs` seeds, delta = 1e-5, zero-out. `--beside`
takes other solvers instead, `--parties` deals the rows out.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import contextlib
import math
import warnings
from collections.abc import Generator
from typing import Any
from unittest import mock

import numpy as np
from peers import data
from peers.data import Case
from peers.made_up import PROBLEMS
from sklearn.linear_model import LogisticRegression, Ridge

import sottovoce as sv
from sottovoce.algorithms import Solution
from sottovoce.algorithms.whitened import private, rule
from sottovoce.queries import sums

DELTA = 1e-5


def unmoved(self: Any, plan: Any, white: Any, descent: Any, start: Any) -> Generator[Any, Any, Any]:  # noqa: ARG001
    """The weights as the gradients left them; the budget of the rescale is not given back."""
    yield from ()
    return Solution(
        start.weights + white.weights(np.mean(descent.taken, axis=0), descent.stiffness, plan.scaled_regulariser)
    )


def plain_eigenvalues(gram: Any, noise: float) -> rule.Moments:
    found, vectors = np.linalg.eigh(gram)
    values = np.maximum(found, 0.5 * noise)
    return rule.Moments(values / max(1.0, values.sum()), vectors, noise * math.sqrt(len(found) / 2))


def without_prior(**fields: Any) -> rule.Descent:
    return rule.Descent(**{**fields, "prior": 1e12})


def windowed(descent: rule.Descent, window: float, made: Any = rule.Descent.__post_init__) -> None:
    made(descent)
    descent._window = window


def one_by_one(loss: Any, scores: Any, labels: Any, most: float) -> Any:
    return np.clip(loss.derivative(scores, labels) / most, -1.0, 1.0)


LEFT_OUT: dict[str, tuple[Any, str, Any]] = {
    "whole": (rule, "CUT", rule.CUT),
    "no whitening": (rule, "whitening", lambda moments, units, noise: np.ones(len(moments.values))),  # noqa: ARG005
    "columns alone": (private, "NEWTON_FEATURES", 0),
    "eigenvalues as released": (rule, "of_gram", plain_eigenvalues),
    "slopes cut one by one": (sums, "cut", one_by_one),
    "clips stay": (rule.Clips, "widened", lambda self, *_: self),
    "no window": (rule.Descent, "__post_init__", lambda self: windowed(self, 1.0)),
    "one window": (rule.Descent, "__post_init__", lambda self: windowed(self, float(self.rounds))),
    "no damping": (rule, "DAMPING", 0.0),
    "curvature not learned": (rule.Descent, "_learn", lambda self, gradient, model: None),  # noqa: ARG005
    "no prior": (private, "Descent", without_prior),
    "no rescale": (private.PrivateWhitened, "rescale", unmoved),
}


def fitted(case: Case, epsilon: float, seed: int, solver: str, parties: int) -> float:
    """The test loss of one fit."""
    kind = sv.PrivateRidge if case.regression else sv.PrivateLogisticRegression
    labels: dict[str, Any] = {"label_bound": 1.0} if case.regression else {"classes": (-1, 1)}
    model = kind(epsilon, delta=DELTA, row_norm=1.0, alpha=0.0, solver=solver, insecure_seed=seed, **labels)
    model.fit(sv.Federation.central(case.X, case.y) if parties == 1 else sv.Federation.by_rows(case.parts(parties)))
    return case.test(np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]))[0]


def ends(case: Case) -> tuple[float, float]:
    """The losses of the model without privacy and of the constant model."""
    if case.regression:
        models: list[Any] = [Ridge(alpha=1e-6 * len(case.y)).fit(case.X, case.y)]
        constant = case.measure(np.full(len(case.y_test), case.y.mean()), case.y_test)[0]
    else:
        weights = (1e2, 1e3, 1e4, 1e5)
        models = [LogisticRegression(C=c, max_iter=2000).fit(case.X, case.y) for c in weights]
        share = float(np.mean(case.y > 0))
        constant = case.measure(np.full(len(case.y_test), math.log(share / (1 - share))), case.y_test)[0]
    losses = [case.test(np.ravel(m.coef_), float(np.ravel(m.intercept_)[0]))[0] for m in models]
    return min(losses), constant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 8.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--parties", type=int, default=1)
    parser.add_argument("--parts", nargs="*", default=list(LEFT_OUT), choices=list(LEFT_OUT), metavar="PART")
    parser.add_argument("--beside", nargs="*", default=[], metavar="SOLVER")
    parser.add_argument("--loss", action="store_true", help="losses, not points")
    parser.add_argument("--split", type=int, default=0, help="another division of sets that come whole")
    arguments = parser.parse_args()
    data.SPLIT = arguments.split
    warnings.simplefilter("ignore")  # a delta of 1e-5 is kept for the small problems too
    names = [*arguments.parts, *arguments.beside]
    print("| problem | epsilon | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    for problem in arguments.only:
        case = PROBLEMS[problem]()
        best, constant = ends(case)
        for epsilon in arguments.epsilon:
            cells = []
            for name in names:
                patch = mock.patch.object(*LEFT_OUT[name]) if name in LEFT_OUT else contextlib.nullcontext()
                solver = "whitened" if name in LEFT_OUT else name
                with patch:
                    losses = np.array(
                        [fitted(case, epsilon, s, solver, arguments.parties) for s in range(arguments.runs)]
                    )
                shown, digits = (losses, 4) if arguments.loss else (100 * (losses - best) / (constant - best), 1)
                cells.append(f"{shown.mean():.{digits}f} ± {shown.std():.{digits}f}")
            print(f"| {problem} | {epsilon:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
