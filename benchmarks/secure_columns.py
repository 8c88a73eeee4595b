"""`whitened` and `newton` over secure columns beside one place: `python benchmarks/secure_columns.py --only phishing`.

Excess of the test loss over the model without privacy, and in brackets points, of which the constant model has 100, as
in `default.py`. Over columns the texts run on sums with the coins of the protocol and noise of the variance that opened
sums have; nothing is secure. Attributes are in M neighbouring groups, the last party holds the labels; delta 1e-5,
zero-out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import argparse
import math
import warnings
from typing import Any

import numpy as np
from default import ends
from numpy.typing import NDArray
from peers.data import CASES, Case, by_attribute

import sottovoce as sv
from clear import Clear, parts_of
from sottovoce.algorithms import plan_by
from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.newton import PrivateNewton
from sottovoce.algorithms.whitened.columns import ColumnsWhitened
from sottovoce.data.bounds import Bounds
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SecureAggregation
from sottovoce.solvers import Newton, Whitened

Array = NDArray[np.float64]

DELTA = 1e-5


def problem_of(case: Case, widths: list[int], parties: int, epsilon: float) -> Problem:
    groups = np.array_split(np.arange(len(widths)), parties)
    names = [f"p{place}" for place in range(parties)]
    norms = [math.sqrt(len(group) / len(widths)) for group in groups]
    label = {"label_bound": 1.0} if case.regression else {}
    return Problem(
        loss=Named(name="squared" if case.regression else "logistic"),
        regulariser=Named(name="none"),
        split="columns",
        parties=tuple((name, len(case.y)) for name in names),
        features=case.X.shape[1],
        bounds=Bounds.declare(row_norm=1.0, **label),
        epsilon=epsilon,
        delta=DELTA,
        classes=None if case.regression else (-1, 1),
        columns=tuple(int(sum(widths[k] for k in group)) for group in groups),
        norms=tuple(norms),
        labels="held",
        label_party=parties - 1,
        aggregation=SecureAggregation(colluding=parties - 1),
    )


FORMS: dict[str, tuple[Algorithm, Any]] = {
    "newton": (PrivateNewton(), Newton()),
    "columns": (ColumnsWhitened(), Whitened()),
}


def fitted(case: Case, plan: Plan, name: str, seed: int, noise: float) -> float:
    form, _ = FORMS[name]
    clear = Clear(plan, form, parts_of(plan, case.X, case.y), np.random.default_rng(seed), noise=noise)
    coef, intercept = plan.unprepare(clear.run().weights)
    return case.test(coef, intercept)[0]


def in_one_place(case: Case, epsilon: float, seed: int) -> float:
    settings: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "row_norm": 1.0, "insecure_seed": seed}
    if case.regression:
        model: Any = sv.PrivateRidge(label_bound=1.0, alpha=0.0, **settings)
    else:
        model = sv.PrivateLogisticRegression(classes=(-1, 1), alpha=0.0, **settings)
    model.set_params(solver="whitened").fit(case.X, case.y)
    return case.test(np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]))[0]


def figure(losses: list[float], best: float, constant: float) -> str:
    excess = np.array(losses) - best
    return f"{excess.mean():.4f} ± {excess.std():.4f} ({100 * excess.mean() / (constant - best):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--parties", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--noise", type=float, default=1.0, help="0 is none: what clips and bits cost")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    heads = [f"{form}, M = {m}" for m in arguments.parties for form in arguments.forms]
    print("| set | epsilon | one place | " + " | ".join(heads) + " |")
    print("|" + "---|" * (3 + len(heads)))
    for name in arguments.only:
        case, widths = by_attribute(CASES[name]())
        best, constant = ends(case)
        for epsilon in arguments.epsilon:
            cells, seeds = list[str](), range(arguments.runs)
            cells.append(figure([in_one_place(case, epsilon, seed) for seed in seeds], best, constant))
            for parties in arguments.parties:
                problem = problem_of(case, widths, parties, epsilon)
                for form in arguments.forms:
                    plan = plan_by(*FORMS[form][:1], problem, FORMS[form][1], run="0" * 16, coin="0")
                    losses = [fitted(case, plan, form, seed, arguments.noise) for seed in seeds]
                    cells.append(figure(losses, best, constant))
            print(f"| {name} | {epsilon:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
