"""`whitened` by blocks of sealed columns, beside `newton`: `python benchmarks/blocks.py --only phishing`.

Points: 0 is the model without privacy, 100 the constant model, as in `default.py`. The texts run on exact sums, table
look-ups and noise of the variance that opened sums have; nothing is sealed. Attributes are in M neighbouring groups,
the last party holds the labels; delta 1e-5, zero-out.
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
import time
import warnings
from typing import Any

import numpy as np
from default import ends
from numpy.typing import NDArray
from peers.data import CASES, Case, by_attribute

from clear import Clear, parts_of
from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.newton.private import PrivateNewton
from sottovoce.algorithms.registry import plan_by
from sottovoce.algorithms.whitened.blocks import BlockWhitened
from sottovoce.data.bounds import Bounds
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.sealing import Sealing
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
        sealing=Sealing(curious=parties - 1),
    )


FORMS: dict[str, tuple[Algorithm, Any]] = {
    "newton": (PrivateNewton(), Newton()),
    "blocks": (BlockWhitened(), Whitened()),
}


def fitted(case: Case, plan: Plan, name: str, seed: int, noise: float) -> float:
    form, _ = FORMS[name]
    clear = Clear(plan, form, parts_of(plan, case.X, case.y), np.random.default_rng(seed), noise=noise)
    coef, intercept = plan.unprepare(clear.run().weights)
    return case.test(coef, intercept)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--parties", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--noise", type=float, default=1.0, help="0 is none: what clips and tables cost")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| set | epsilon | " + " | ".join(f"M = {m}: {' / '.join(arguments.forms)}" for m in arguments.parties) + " |"
    )
    print("|---|---|" + "---|" * len(arguments.parties))
    for name in arguments.only:
        case, widths = by_attribute(CASES[name]())
        best, constant = ends(case)
        for epsilon in arguments.epsilon:
            cells, began = [], time.perf_counter()
            for parties in arguments.parties:
                figures = []
                for form in arguments.forms:
                    algorithm, options = FORMS[form]
                    plan = plan_by(
                        algorithm, problem_of(case, widths, parties, epsilon), options, run="0" * 16, coin="0"
                    )
                    losses = [fitted(case, plan, form, seed, arguments.noise) for seed in range(arguments.runs)]
                    points = 100 * (np.array(losses) - best) / (constant - best)
                    figures.append(f"{points.mean():.1f} ± {points.std():.1f}")
                cells.append(" / ".join(figures))
            print(
                f"| {name} | {epsilon:g} | " + " | ".join(cells) + f" | {time.perf_counter() - began:.0f} s", flush=True
            )


if __name__ == "__main__":
    main()
