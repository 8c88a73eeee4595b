"""Test error against everything a user could pick instead: `python benchmarks/utility.py`.

Every method gets the same rows, prepared once by public constants (norm 1 at most), and the same test part, which
nothing is chosen on. Ours are the defaults. delta = 1e-5. Results are kept in a file; what is there is not run again,
so that the command can be stopped, and run in pieces by --data, --epsilon and --methods.

"tuned" means that settings were chosen for the peer on the last fifth of the training rows, by two noisy fits for each
setting, and that this choice was not charged to its budget. The grids are in TUNED below.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peers import baselines, process, results
from peers.data import CASES, Case, dense

import sottovoce as sv

Array = NDArray[np.float64]
Fit = dict[str, Any]

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
PARTIES = 4
OURS = ("central", "by rows", "by columns")
SOLVERS = {
    "central": ("newton", "gradient", "sgd", "scd", "cd", "greedy-cd"),
    "by rows": ("newton", "gradient", "sgd", "scd", "cd", "greedy-cd"),
    "by columns": ("score", "admm", "fdml"),
}
ORDINARY = {"rate": 1.0, "clip": 1.0, "batch": 1000, "epochs": 20, "delta": DELTA}
TUNED: dict[str, dict[str, tuple[float, ...]]] = {
    "diffprivlib": {"C": (0.001, 0.01, 0.1, 1.0)},
    "Opacus": {"rate": (1.0, 4.0, 12.0), "clip": (0.3, 1.0)},
    "noisy gradient descent": {"step": (1.0, 3.0, 9.0), "rounds": (30, 100, 300)},
    "objective perturbation": {"weight": (1.0, 3.0, 10.0, 30.0)},
}
PEERS = (
    "diffprivlib",
    "diffprivlib, tuned",
    "Opacus",
    "Opacus, tuned",
    "noisy gradient descent",
    "noisy gradient descent, tuned",
    "objective perturbation",
    "objective perturbation, tuned",
    "AdaSSP",
)
OPTIMUM = "without privacy"
METHODS = (*OURS, *PEERS, OPTIMUM)
SLOW = {"Opacus": (0.1, 1.0, 8.0), "Opacus, tuned": (1.0,)}  # epsilons where none are asked for: seconds a fit
COLOURS = dict(zip(METHODS, ("black", "tab:blue", "tab:cyan", *(["tab:red"] * 2), *(["tab:orange"] * 2)), strict=False))
COLOURS |= dict(zip(METHODS[7:], (*(["tab:green"] * 2), *(["tab:purple"] * 2), "tab:brown"), strict=False))


def applies(method: str, case: Case) -> bool:
    """Objective perturbation is for bounded slopes, AdaSSP for squares; diffprivlib's regression has no setting."""
    if case.regression:
        return not method.startswith("objective") and method != "diffprivlib, tuned"
    return method != "AdaSSP"


def ours(case: Case, method: str) -> Callable[[Fit], tuple[Array, float]]:
    """Our estimators: the defaults, or "SPLIT: SOLVER"."""
    split, _, solver = method.partition(": ")
    options: dict[str, Any] = {"row_norm": 1.0, "entry_bound": case.entry_bound, "delta": DELTA}
    if solver:
        options |= {"solver": solver} | ({"alpha": 1e-4} if solver == "scd" else {})  # it needs a penalty
    if split == "central":
        federation = sv.Federation.central(case.X, case.y)
    elif split == "by rows":
        federation = sv.Federation.by_rows(case.parts(PARTIES))
    else:
        federation = sv.Federation.by_columns(case.columns(), case.y, norms=case.norms)

    def fit(setting: Fit) -> tuple[Array, float]:
        common = options | {"epsilon": setting["epsilon"], "insecure_seed": setting["seed"]}
        model: Any = (
            sv.PrivateRidge(**common, label_bound=1.0)
            if case.regression
            else sv.PrivateLogisticRegression(**common, classes=(-1, 1))
        )
        model.fit(federation)
        return model.coef_.ravel(), float(np.ravel(model.intercept_)[0])

    return fit


def baseline(case: Case, name: str) -> Callable[[Fit], tuple[Array, float]]:
    """A baseline; a fit with "rows" is on that many first rows."""
    X, loss = baselines.extended(case.X), baselines.Loss(case.regression)

    def fit(setting: Fit) -> tuple[Array, float]:
        rows = setting.get("rows", len(case.y))
        part, y, generator = X[:rows], case.y[:rows], np.random.default_rng(setting["seed"])
        chosen = {key: setting[key] for key in TUNED.get(name, {}) if key in setting}
        epsilon = setting["epsilon"]
        if name == OPTIMUM:
            return baselines.model(baselines.optimum(part, y, loss))
        if name == "AdaSSP":
            return baselines.model(baselines.ada_ssp(part, y, epsilon, DELTA, generator))
        if name == "objective perturbation":
            return baselines.model(baselines.objective_perturbation(part, y, epsilon, DELTA, generator, **chosen))
        if "rounds" in chosen:
            chosen["rounds"] = int(chosen["rounds"])
        return baselines.model(baselines.noisy_gradient_descent(part, y, loss, epsilon, DELTA, generator, **chosen))

    return fit


def fitted(case: Case, name: str, settings: list[Fit]) -> list[Fit]:
    """[{coef, intercept, seconds}] of a method with each of the settings."""
    if name in ("diffprivlib", "Opacus"):
        facts = {"regression": case.regression, "entry_bound": case.entry_bound}
        answer = process.ask(name.lower(), dense(case.X), case.y, settings, **facts)
        return list(answer["fits"])
    run = ours(case, name) if name.startswith(OURS) else baseline(case, name)
    found = []
    for setting in settings:
        start = time.perf_counter()
        coef, intercept = run(setting)
        found.append({"coef": coef, "intercept": intercept, "seconds": time.perf_counter() - start})
    return found


def run(case: Case, method: str, epsilon: float, runs: int) -> Fit:
    """A cell: figures of every run, and what was chosen for a tuned peer."""
    name = method.removesuffix(", tuned")
    common: Fit = {"epsilon": epsilon} | (ORDINARY if name == "Opacus" else {})
    chosen: Fit = {}
    if name != method:
        grid = TUNED[name]
        settings = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        tried = [
            common | setting | {"seed": 1000 + k, "rows": case.judged_from} for setting in settings for k in (0, 1)
        ]
        losses = [case.judge(np.array(fit["coef"]), fit["intercept"]) for fit in fitted(case, name, tried)]
        chosen = settings[int(np.argmin(np.reshape(losses, (-1, 2)).mean(axis=1)))]
    fits = fitted(case, name, [common | chosen | {"seed": seed} for seed in range(runs)])
    figures = [case.test(np.array(fit["coef"]), fit["intercept"]) for fit in fits]
    cell = {
        "loss": results.shorter([loss for loss, _ in figures]),
        "score": results.shorter([score for _, score in figures]),
        "seconds": results.shorter([fit["seconds"] for fit in fits]),
    }
    return cell | ({"chosen": chosen} if chosen else {})


def key(data: str, epsilon: float, method: str) -> str:
    return f"{data} / {epsilon:g} / {method}"


def figure(values: list[float]) -> str:
    """median (quartiles), or what is left of it if the values are out of all proportion."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    if abs(middle) > 100:
        return f"{middle:.1e}"
    return f"{middle:.3f}" if len(values) == 1 else f"{middle:.3f} ({low:.3f} to {high:.3f})"


def median(cells: dict[str, Fit], data: str, epsilon: float, method: str, what: str) -> float:
    cell = cells.get(key(data, epsilon, method))
    return math.nan if cell is None else float(np.median(cell[what]))


def tables(cells: dict[str, Fit]) -> tuple[list[str], list[str]]:
    """None for the page, and those that are printed."""
    text = []
    for what, title in (
        ("loss", "Test log-loss (California: mean squared error)"),
        ("score", "Accuracy (California: R²)"),
    ):
        rows = []
        for method in METHODS:
            epsilon = math.inf if method == OPTIMUM else 1.0
            found = [cells.get(key(data, epsilon, method)) for data in CASES]
            told = []
            for data, cell in zip(CASES, found, strict=True):
                shown = results.NONE if cell is None else figure(cell[what])
                mine = median(cells, data, 1.0, "central", what)
                gap = 0.0 if cell is None else float(np.median(cell[what])) - mine
                ahead = method in PEERS and (gap < 0 if what == "loss" else gap > 0)
                told.append(f"**{shown}**" if ahead else shown)
            rows.append([method, *told])
        text.append(
            f"**{title}, epsilon 1: median (quartiles); bold where a peer is ahead of ours, central**\n\n"
            + results.table(["method", *CASES], rows)
        )
    rows = []
    for data in CASES:
        for epsilon in EPSILONS:
            medians = [median(cells, data, epsilon, name, "loss") for name in METHODS[:-1]]
            medians.append(median(cells, data, math.inf, OPTIMUM, "loss"))
            rows.append([data, f"{epsilon:g}", *(short(value) for value in medians)])
    every = "**Test loss at every epsilon, medians**\n\n" + results.table(["data", "epsilon", *METHODS], rows)
    return [], [page_table(cells), *text, comparison(cells), every, solver_table(cells)]


def page_table(cells: dict[str, Fit]) -> str:
    """Loss and score of every method at epsilon 1."""
    rows = []
    for method in METHODS:
        told = []
        for data in CASES:
            epsilon = math.inf if method == OPTIMUM else 1.0
            loss, score = (median(cells, data, epsilon, method, what) for what in ("loss", "score"))
            shown = results.NONE if math.isnan(loss) else f"{short(loss)} / {short(score)}"
            ahead = method in PEERS and loss < median(cells, data, 1.0, "central", "loss")
            told.append(f"**{shown}**" if ahead else shown)
        rows.append([method, *told])
    title = "**Test log-loss / accuracy (California: mean squared error / R²) at epsilon 1, medians of 10 runs**"
    return f"{title}\n\n" + results.table(["method", *CASES], rows)


def short(value: float) -> str:
    return results.NONE if math.isnan(value) else f"{value:.1e}" if abs(value) > 100 else f"{value:.3f}"


def comparison(cells: dict[str, Fit]) -> str:
    """Where a peer is better than the central default at epsilon 1, and by how much; both figures of the test part."""
    rows = []
    for data in CASES:
        mine = cells.get(key(data, 1.0, "central"))
        if mine is None:
            continue
        better = []
        for method in PEERS:
            theirs = cells.get(key(data, 1.0, method))
            if theirs is None:
                continue
            gaps = {
                "loss": float(np.median(mine["loss"]) - np.median(theirs["loss"])),
                "score": float(np.median(theirs["score"]) - np.median(mine["score"])),
            }
            names = {"loss": "loss", "score": "R²" if data == "california" else "accuracy"}
            found = [
                f"{names[what]} by {gap:.4f}" + ("" if apart(mine[what], theirs[what]) else " (inside the quartiles)")
                for what, gap in gaps.items()
                if gap > 0
            ]
            if found:
                better.append(f"{method}: {', '.join(found)}")
        rows.append([data, "; ".join(better) or "nobody"])
    return "**Who is better than ours, central, at epsilon 1**\n\n" + results.table(["data", "better"], rows)


def apart(first: list[float], second: list[float]) -> bool:
    """Whether the ranges from quartile to quartile do not meet."""
    low, high = np.percentile(first, [25, 75]), np.percentile(second, [25, 75])
    return bool(low[1] < high[0] or high[1] < low[0])


def solver_table(cells: dict[str, Fit]) -> str:
    rows = []
    for split, names in SOLVERS.items():
        for name in names:
            found = [cells.get(key(data, 1.0, f"{split}: {name}")) for data in CASES]
            if any(found):
                rows.append(
                    [split, f"`{name}`", *(results.NONE if cell is None else figure(cell["loss"]) for cell in found)]
                )
    if not rows:
        return ""
    return "**Every solver's defaults, epsilon 1, test loss**\n\n" + results.table(["split", "solver", *CASES], rows)


def plot(cells: dict[str, Fit], path: Path) -> None:
    """A panel a data set: medians against epsilon with quartiles for ours; panels end at twice our largest excess."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    sheet, axes = pyplot.subplots(2, 3, figsize=(13, 7.6))
    lines: dict[str, Any] = {}
    for axis, name in zip(axes.flat, CASES, strict=False):
        case = CASES[name]()
        ceiling = case.measure(np.zeros(len(case.y_test)), case.y_test)[0]
        for method in METHODS[:-1]:
            known = [e for e in EPSILONS if key(name, e, method) in cells]
            if not known:
                continue
            quartiles = np.array([np.percentile(cells[key(name, e, method)]["loss"], [25, 50, 75]) for e in known])
            mine, tuned = method in OURS, method.endswith("tuned")
            (line,) = axis.plot(
                known,
                quartiles[:, 1],
                "--" if tuned else "-",
                marker="o" if mine else "^" if tuned else "s",
                markersize=4,
                linewidth=2.2 if mine else 1.2,
                color=COLOURS[method],
            )
            lines.setdefault(f"ours, {method}" if mine else method, line)
            if mine:
                axis.fill_between(
                    known, quartiles[:, 0], quartiles[:, 2], color=COLOURS[method], alpha=0.15, linewidth=0
                )
        level_at = median(cells, name, math.inf, OPTIMUM, "loss")
        lines.setdefault(OPTIMUM, axis.axhline(level_at, color="gray", linestyle=":"))
        worst = max(median(cells, name, min(EPSILONS), method, "loss") for method in OURS)
        if worst > level_at:
            axis.set_ylim(level_at - 0.1 * (worst - level_at), min(1.02 * ceiling, level_at + 2.2 * (worst - level_at)))
        axis.set_xscale("log")
        axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS], minor=False)
        axis.minorticks_off()
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("epsilon")
        axis.set_ylabel("test MSE" if case.regression else "test log-loss")
    axes.flat[5].axis("off")
    axes.flat[5].legend(list(lines.values()), list(lines), loc="center", fontsize=9)
    sheet.tight_layout()
    sheet.savefig(path, dpi=120)


def main() -> None:
    parser = results.parser(__doc__, "utility")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--data", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--epsilon", nargs="+", type=float, help="default: all, of the slow peers some")
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), help='also "SPLIT: SOLVER", or "solvers" for all'
    )
    arguments = parser.parse_args()
    kept = results.Results(arguments.results)
    if results.shown("utility", arguments, kept, tables, plot):
        return
    methods = list(arguments.methods)
    if "solvers" in methods:
        methods.remove("solvers")
        methods += [f"{split}: {name}" for split, names in SOLVERS.items() for name in names]
    absent: set[str] = set()
    for data in arguments.data:
        case = CASES[data]()
        for method in methods:
            epsilons = arguments.epsilon or SLOW.get(method, (1.0,) if ": " in method else EPSILONS)
            runs = 1 if method == OPTIMUM else arguments.runs
            for epsilon in [math.inf] if method == OPTIMUM else epsilons:
                name = key(data, epsilon, method)
                enough = len(kept.cells.get(name, {"loss": ()})["loss"]) >= runs
                if enough or method in absent or not applies(method, case):
                    continue
                start = time.perf_counter()
                try:
                    cell = run(case, method, epsilon, runs)
                except process.MissingPeerError as error:
                    print(f"{method}: left out, {error}")
                    absent.add(method)
                    continue
                kept.put(name, cell)
                spent = time.perf_counter() - start
                told = f"loss {figure(cell['loss'])}  score {figure(cell['score'])}"
                print(f"{name:48s} {told}  {cell.get('chosen', '')}  ({spent:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
