"""Bytes and rounds to reach an excess risk, over rows and over columns: `python benchmarks/communication.py`.

Logistic regression on a9a and on the 30,000 x 100 job, delta = 1e-5; 4 parties by rows, 2 by columns (labels shared).
Excess risk is the mean training loss over that of the optimum without privacy. Each solver runs with its own number of
rounds and with others; for a target the cheapest of those whose median reaches it counts. Bytes are those of all
frames, to the parties and from them, headers included, of the training alone. Results are kept in a file; what is
there is not run again.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers import baselines, results
from peers.data import Case, a9a, synthetic

import sottovoce as sv
from sottovoce.errors import InputError

DELTA = 1e-5
EPSILONS = (1.0, 8.0)
ROUNDS = (None, 2, 4, 16, 64, 256)
TARGETS = (0.1, 0.03, 0.01, 0.003)
CASES = {"a9a": a9a, "30,000 x 100": synthetic}
SLOW = ("scd-sequential", "cd")  # a round of theirs is many messages; their own number is small
BALL = {"l1_ratio": 1, "radius": 50.0}  # for solvers on an l1 ball
SOLVERS: dict[str, dict[str, dict[str, Any]]] = {
    "rows": {
        "newton": {},
        "gradient": {},
        "sgd": {},
        "scd": {"alpha": 1e-4},
        "scd-sequential": {"alpha": 1e-4},
        "cd": {},
        "greedy-cd": {},
    },
    "columns": {
        "score": {},
        "admm, persistent": {"solver": sv.solvers.ADMM(rows="persistent")},
        "admm, fresh": {"solver": sv.solvers.ADMM(rows="fresh")},
        "fdml": {},
        "frank-wolfe": BALL,
    },
}


def measure(case: Case, least: float, split: str, name: str, epsilon: float, rounds: int | None, runs: int) -> Any:
    """Medians over runs: excess risk, bytes, rounds."""
    options: dict[str, Any] = {"row_norm": 1.0, "entry_bound": case.entry_bound} | SOLVERS[split][name]
    options["solver"] = options.get("solver", sv.solvers.by_name(name.split(",")[0])).replace(rounds=rounds)
    if split == "rows":
        federation = sv.Federation.by_rows(case.parts(4))
    else:
        federation = sv.Federation.by_columns(case.columns(), case.y, norms=case.norms)
    found = []
    for seed in range(runs):
        model = sv.PrivateLogisticRegression(
            epsilon=epsilon, delta=DELTA, classes=(-1, 1), insecure_seed=seed, **options
        ).fit(federation)
        margins = (case.X @ model.coef_.ravel() + model.intercept_[0]) * case.y
        said = model.communication_
        excess = float(np.mean(np.logaddexp(0, -margins))) - least
        found.append((excess, said.uplink_bytes + said.downlink_bytes, said.uplink_bytes, said.rounds))
    excess, total, uplink, asked = np.median(found, axis=0)
    return {"excess": float(f"{excess:.4g}"), "bytes": int(total), "uplink": int(uplink), "rounds": int(asked)}


def run(arguments: argparse.Namespace, kept: results.Results) -> None:
    for data in arguments.data:
        case = CASES[data]()
        X = baselines.extended(case.X)
        w = baselines.optimum(X, case.y, baselines.Loss(regression=False))
        least = float(np.mean(np.logaddexp(0, -case.y * (X @ w))))
        zero = float(np.log(2.0)) - least
        kept.put(f"{data} / zero model", {"excess": float(f"{zero:.4g}"), "least": least})
        for split, solvers in SOLVERS.items():
            for name in solvers:
                for epsilon in arguments.epsilon:
                    for rounds in (None,) if name in SLOW else ROUNDS:
                        key = f"{data} / {split} / {name} / {epsilon:g} / {'default' if rounds is None else rounds}"
                        if key in kept.cells:
                            continue
                        start = time.perf_counter()
                        try:
                            cell = measure(case, least, split, name, epsilon, rounds, arguments.runs)
                        except InputError as error:  # it takes no rounds, or not so many
                            print(f"{key}: {str(error)[:100]}")
                            continue
                        kept.put(key, cell)
                        print(f"{key:52s} {cell}  ({time.perf_counter() - start:.0f} s)", flush=True)


def reached(cells: dict[str, Any], data: str, split: str, name: str, epsilon: float, target: float) -> Any:
    """The cheapest run that is at most the target from the optimum."""
    start = f"{data} / {split} / {name} / {epsilon:g} / "
    found = [cell for key, cell in cells.items() if key.startswith(start) and cell["excess"] <= target]
    return min(found, key=lambda cell: cell["bytes"], default=None)


def size(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def tables(cells: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The first problem for the page, and the others."""
    text = []
    for data in CASES:
        for epsilon in EPSILONS:
            rows = []
            targets = [
                target
                for target in TARGETS
                if any(
                    reached(cells, data, split, name, epsilon, target) for split in SOLVERS for name in SOLVERS[split]
                )
            ]
            for split, solvers in SOLVERS.items():
                for name in solvers:
                    own = cells.get(f"{data} / {split} / {name} / {epsilon:g} / default")
                    if own is None:
                        continue
                    told = []
                    for target in targets:
                        cell = reached(cells, data, split, name, epsilon, target)
                        told.append(results.NONE if cell is None else f"{size(cell['bytes'])} / {cell['rounds']}")
                    rows.append(
                        [split, f"`{name}`", *told, f"{own['excess']:.4f}", f"{size(own['bytes'])} / {own['rounds']}"]
                    )
            zero = cells[f"{data} / zero model"]["excess"]
            header = [
                "split",
                "solver",
                *(f"excess {target:g}" for target in targets),
                "default: excess",
                "bytes / rounds",
            ]
            title = (
                f"**{data}, epsilon {epsilon:g}: bytes / rounds to an excess risk (the zero model's is {zero:.2f})**"
            )
            text.append(title + "\n\n" + results.table(header, rows))
    return text[:1], text[1:]


def plot(cells: dict[str, Any], path: Path) -> None:
    """Excess risk against bytes; a ring is a solver's own number of rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    sheet, axes = pyplot.subplots(2, 2, figsize=(12.5, 8.4), sharex=True)
    for line, data in zip(axes, CASES, strict=True):
        for axis, epsilon in zip(line, EPSILONS, strict=True):
            for split, solvers in SOLVERS.items():
                for name in solvers:
                    start = f"{data} / {split} / {name} / {epsilon:g} / "
                    points = sorted(
                        (cell["bytes"], cell["excess"]) for key, cell in cells.items() if key.startswith(start)
                    )
                    if not points:
                        continue
                    (drawn,) = axis.plot(
                        *zip(*points, strict=True),
                        "-" if split == "rows" else "--",
                        marker="o" if split == "rows" else "s",
                        markersize=3.5,
                        linewidth=1.2,
                        label=f"{name} ({split})",
                    )
                    own = cells[start + "default"]
                    axis.plot(
                        own["bytes"], own["excess"], "o", markersize=10, fillstyle="none", color=drawn.get_color()
                    )
            axis.axhline(cells[f"{data} / zero model"]["excess"], color="gray", linestyle=":")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_ylim(3e-4, 1.0)
            axis.set_title(f"{data}, epsilon {epsilon:g}", fontsize=10)
            axis.set_ylabel("excess risk")
    for axis in axes[1]:
        axis.set_xlabel("bytes, all parties, both ways")
    handles, names = axes[0][0].get_legend_handles_labels()
    sheet.legend(handles, names, loc="lower center", ncols=6, fontsize=8)
    sheet.tight_layout(rect=(0, 0.06, 1, 1))
    sheet.savefig(path, dpi=120)


def main() -> None:
    parser = results.parser(__doc__, "communication")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    arguments = parser.parse_args()
    kept = results.Results(arguments.results)
    if not results.shown("communication", arguments, kept, tables, plot):
        run(arguments, kept)


if __name__ == "__main__":
    main()
