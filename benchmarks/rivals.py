"""`whitened` beside what it replaces and beside rivals, some of them tuned on the test part: `benchmarks/rivals.py`.

Points: 0 is the model without privacy, 100 the constant model, as `benchmarks/default.py` has them; delta = 1e-5,
zero-out. An "oracle" is a rival whose settings were chosen on the test part, by two fits each with seeds of their own,
and not charged for it: nobody can have it.

Every cell is kept in `benchmarks/results/default.json` as soon as it is there, and only what is missing is run, so that
an interrupted run goes on. `--again whitened` forgets the cells of a method first: rivals need not run when the rule
changes. `--table` prints the tables and updates docs/evidence.md.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from default import DELTA, ends, fitted
from numpy.typing import NDArray
from peers import baselines, results
from peers.data import Case
from peers.made_up import PROBLEMS
from utility import applies, baseline, key

Array = NDArray[np.float64]
Cells = dict[str, Any]
Setting = dict[str, float]
Task = tuple[str, float, str, int]  # problem, epsilon, method, runs

EPSILONS = (0.1, 1.0, 3.0, 8.0)
OURS, BEFORE = "whitened", "newton or gradient"
DESCENT, PERTURBATION, ORACLE = "noisy gradient descent", "objective perturbation", ", oracle"
UNTUNED = (DESCENT, PERTURBATION, "AdaSSP")
RIVALS = (*UNTUNED, DESCENT + ORACLE, PERTURBATION + ORACLE)
METHODS = (OURS, BEFORE, *RIVALS)
COLUMNS: dict[str, tuple[str, ...]] = {
    OURS: (OURS,),
    BEFORE: (BEFORE,),
    "best untuned rival": UNTUNED,
    "best rival, oracles included": RIVALS,
}
ENDS = "without privacy, and the constant model"
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    DESCENT: {"rounds": (10, 50, 200), "step": (0.5, 1, 2, 4, 8, 16, 32), "clip": (0.25, 0.5, 1)},
    PERTURBATION: {"weight": (1, 3, 10, 30, 100)},
}
UNTOUCHED: dict[str, Setting] = {DESCENT: {"rounds": 50, "step": 1.0, "clip": 1.0}}
WORST = 150.0  # of a cell in a mean of cells


@functools.lru_cache(maxsize=1)
def problem_of(name: str) -> Case:
    return PROBLEMS[name]()


def losses(case: Case, name: str, epsilon: float, settings: list[Setting], seeds: range) -> Array:
    """Test losses of a rival, settings x seeds."""
    if name != DESCENT:
        fit = baseline(case, name)
        fits = [fit(setting | {"epsilon": epsilon, "seed": seed}) for setting in settings for seed in seeds]
        return np.reshape([case.test(*found)[0] for found in fits], (len(settings), len(seeds)))
    rows, loss, found = baselines.extended(case.X), baselines.Loss(case.regression), {}
    for rounds in {setting["rounds"] for setting in settings}:
        columns = [(k, s) for k, setting in enumerate(settings) if setting["rounds"] == rounds for s in seeds]
        weights = baselines.noisy_gradient_descents(
            rows,
            case.y,
            loss,
            epsilon,
            DELTA,
            [np.random.default_rng(seed) for _, seed in columns],
            rounds=int(rounds),
            steps=np.array([settings[k]["step"] for k, _ in columns]),
            clips=np.array([settings[k]["clip"] for k, _ in columns]),
        )
        found |= {column: case.test(*baselines.model(w))[0] for column, w in zip(columns, weights.T, strict=True)}
    return np.array([[found[k, seed] for seed in seeds] for k in range(len(settings))])


def measured(task: Task) -> Any:
    """A cell: the test losses of every run, and what an oracle chose; None where the method is not for the problem."""
    problem, epsilon, method, runs = task
    warnings.simplefilter("ignore")  # a delta of 1e-5 is kept for the small problems too
    case = problem_of(problem)
    if not applies(method, case):
        return None
    if method == ENDS:
        return {"loss": list(ends(case))}
    if method in (OURS, BEFORE):
        solver = OURS if method == OURS else "newton" if case.X.shape[1] <= baselines.WIDE else "gradient"
        return {"loss": results.shorter([fitted(case, epsilon, seed, solver, 1) for seed in range(runs)])}
    name = method.removesuffix(ORACLE)
    chosen, told = UNTOUCHED.get(name, {}), {}
    if name != method:
        settings = [dict(zip(GRIDS[name], values, strict=True)) for values in itertools.product(*GRIDS[name].values())]
        tried = losses(case, name, epsilon, settings, range(1000, 1002))
        chosen = settings[int(np.argmin(tried.mean(axis=1)))]
        told = {"chosen": chosen}
    return {"loss": results.shorter(list(losses(case, name, epsilon, [chosen], range(runs))[0])), **told}


class Gap(NamedTuple):
    """Points of a method in a cell: mean over the runs, its standard error, and the runs' deviation."""

    mean: float
    error: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.1f}±{self.deviation:.1f}" if self.mean < 1000 else f"{self.mean:.0e}"

    def behind(self, other: Gap, noise: bool) -> bool:
        """By more than a point; with `noise` also by two standard errors of the difference."""
        return self.mean - other.mean > 1 + 2 * noise * math.hypot(self.error, other.error)

    def above(self, noise: bool) -> bool:
        """Worse than the constant model; with `noise` by two standard errors."""
        return self.mean > 100 + 2 * noise * self.error


class Row(NamedTuple):
    """A cell of the table, with a gap for each of COLUMNS."""

    problem: str
    epsilon: float
    gaps: dict[str, Gap]


def gap(cells: Cells, problem: str, epsilon: float, method: str) -> Gap | None:
    cell, scale = cells.get(key(problem, epsilon, method)), cells.get(key(problem, math.inf, ENDS))
    if cell is None or scale is None:
        return None
    best, constant = scale["loss"]
    points = 100 * (np.array(cell["loss"]) - best) / (constant - best)
    deviation = float(points.std(ddof=1)) if len(points) > 1 else math.nan
    return Gap(float(points.mean()), deviation / math.sqrt(len(points)), deviation)


def rows_of(cells: Cells) -> list[Row]:
    """The cells for which every column has been measured."""
    found = []
    for problem, epsilon in itertools.product(PROBLEMS, EPSILONS):
        gaps = {}
        for column, names in COLUMNS.items():
            known = [g for name in names if (g := gap(cells, problem, epsilon, name)) is not None]
            gaps |= {column: min(known)} if known else {}
        if len(gaps) == len(COLUMNS):
            found.append(Row(problem, epsilon, gaps))
    return found


def summary(rows: list[Row]) -> str:
    """Medians, means, and how many cells are lost and won."""

    def line(what: str, figure: Callable[[list[Gap], list[Gap]], str], *, beside: bool = False) -> list[str]:
        ours = [row.gaps[OURS] for row in rows]
        columns = {name: [row.gaps[name] for row in rows] for name in COLUMNS}
        told = [results.NONE if beside and name == OURS else figure(ours, gaps) for name, gaps in columns.items()]
        return [what, *told]

    def medians(_: list[Gap], gaps: list[Gap]) -> str:
        means = {e: [g.mean for g, row in zip(gaps, rows, strict=True) if row.epsilon == e] for e in EPSILONS}
        return " / ".join(f"{np.median(found):.1f}" if found else results.NONE for found in means.values())

    def twice(count: Callable[[bool], int]) -> str:
        return f"{count(False)} / {count(True)}"

    def lost(ours: list[Gap], gaps: list[Gap]) -> str:
        return twice(lambda noise: sum(a.behind(b, noise) for a, b in zip(ours, gaps, strict=True)))

    lines = [
        line("median gap at " + " / ".join(f"{epsilon:g}" for epsilon in EPSILONS), medians),
        line(f"mean gap, clipped at {WORST:g}", lambda _, gaps: f"{np.mean([min(g.mean, WORST) for g in gaps]):.1f}"),
        line("cells where `whitened` is over a point behind: all / beyond noise", lost, beside=True),
        line("cells where it is over a point ahead", lambda ours, gaps: lost(gaps, ours), beside=True),
        line("cells above 100 points", lambda _, gaps: twice(lambda noise: sum(g.above(noise) for g in gaps))),
    ]
    return results.table([f"{len(rows)} cells", *COLUMNS], lines)


def lost_cells(rows: list[Row]) -> str:
    """Which cells they are."""
    lines = []
    for row in rows:
        ours, noise = row.gaps[OURS], " (within noise)"
        told = [
            f"{name} {theirs}" + ("" if ours.behind(theirs, True) else noise)
            for name, theirs in row.gaps.items()
            if ours.behind(theirs, False)
        ]
        if ours.above(False):
            told.append("the constant model" + ("" if ours.above(True) else noise))
        if told:
            lines.append([row.problem, f"{row.epsilon:g}", str(ours), "; ".join(told)])
    title = "**Cells where `whitened` is over a point behind, or worse than the constant model**"
    return f"{title}\n\n" + results.table(["problem", "epsilon", OURS, "behind"], lines or [[results.NONE] * 4])


def all_cells(rows: list[Row]) -> str:
    found = {(row.problem, row.epsilon): " / ".join(map(str, row.gaps.values())) for row in rows}
    lines = [[name, *(found.get((name, epsilon), results.NONE) for epsilon in EPSILONS)] for name in PROBLEMS]
    title = f"**Every cell: {' / '.join(COLUMNS)}; mean ± deviation over the runs**"
    return f"{title}\n\n" + results.table(["problem", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
    parser.add_argument("--again", nargs="+", default=[], choices=METHODS, metavar="METHOD", help="forget these first")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--results", type=Path, default=results.FOLDER / "default.json")
    parser.add_argument("--table", action="store_true", help="run nothing; print the tables and update the page")
    arguments = parser.parse_args()
    kept = results.Results(arguments.results)
    if arguments.table:
        rows = rows_of(kept.cells)
        print("\n\n".join([summary(rows), lost_cells(rows), all_cells(rows)]))
        results.into_page("rivals", summary(rows))
        return
    tasks: list[Task] = []
    for problem in arguments.only:
        tasks.append((problem, math.inf, ENDS, 1))
        tasks += [
            (problem, epsilon, name, arguments.runs) for epsilon in arguments.epsilon for name in arguments.methods
        ]
    for *name, _ in tasks:
        if name[-1] in arguments.again:
            kept.cells.pop(key(*name), None)
    tasks = [task for task in tasks if len(kept.cells.get(key(*task[:3]), {}).get("loss", ())) < task[3]]
    start = time.perf_counter()
    with ProcessPoolExecutor(arguments.jobs) as pool:  # which starts nothing before it is asked
        answers = pool.map(measured, tasks) if arguments.jobs > 1 else map(measured, tasks)
        for (*name, _), cell in zip(tasks, answers, strict=True):
            if cell is None:
                continue
            kept.put(key(*name), cell)
            shown = "" if name[-1] == ENDS else gap(kept.cells, *name)
            seconds = time.perf_counter() - start
            print(f"{key(*name):64s} {shown}  {cell.get('chosen', '')}  ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
