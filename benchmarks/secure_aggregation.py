"""What secure sums cost in loss, against data in one place: `python benchmarks/secure_aggregation.py`.

    loss    test log-loss (California: mean squared error) of the default solver at the same epsilon: in one place, with
            secure sums, and by rows as parties do it that add all of their noise themselves; delta 1e-5, zero-out
    cuts    rows that the parties' public norms cut, and what that costs: norms by attributes and by columns

Bounds are what the encodings say: a record has one value of each attribute. By columns attributes are in M neighbouring
groups, a part's norm goes by its number of attributes, and the last party has the labels; "adult, schema" is fitted by
its schema alone. By rows people are dealt out. Excess is the loss over that of the model without privacy. Results are
kept in a file; what is there is not run again. `--beside` prints those of another file too, as of a form before.
"""

from __future__ import annotations

import os
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import functools
import itertools
import math
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import numpy as np
from default import ends
from numpy.typing import NDArray
from peers import results
from peers.data import CASES, Case, by_attribute
from sklearn.preprocessing import StandardScaler
from tables import ADULT, scored

import sottovoce as sv
from sottovoce.data.files import read_columns

Array = NDArray[np.float64]

DELTA = 1e-5
SCHEMA = "adult, schema"
SETS = ("a9a", "phishing", "electricity", "california", SCHEMA)
CUT = ("a9a", "phishing")  # rows of the others are within the norms of any split
PARTIES = {"rows": (2, 8, 50), "columns": (2, 4, 8)}
LIMITS = {  # excess over that in one place, or else the loss itself that far from it; by columns also by epsilon
    "rows, secure": (2.2, 0.003),
    "rows, secure, colluding=1": (1.5, 0.002),
    "columns, secure": (2.0, 0.002),
    "columns, secure, 0.1": (2.2, 0.01),
}


class Fit(NamedTuple):
    """One fit of the table of losses."""

    problem: str
    way: str
    parties: int
    epsilon: float
    seed: int

    @property
    def key(self) -> str:
        return f"loss / {self.problem} / {self.way} / {self.parties} / {self.epsilon:g} / {self.seed}"


@functools.lru_cache(maxsize=len(CASES))
def prepared(problem: str) -> tuple[Case, list[int]]:
    """The set and the columns of its attributes."""
    return by_attribute(CASES[problem]())


def split_of(widths: list[int], parties: int) -> tuple[list[int], list[float]]:
    """By party: where its columns end, and the norm of its attributes in a row of norm 1.

    More parties than attributes share them by columns.
    """
    widths = widths if parties <= len(widths) else [1] * sum(widths)
    groups = np.array_split(np.arange(len(widths)), parties)
    ends = np.cumsum([sum(widths[k] for k in group) for group in groups])
    return [int(end) for end in ends], [math.sqrt(len(group) / len(widths)) for group in groups]


def limits_of(way: str, epsilon: float) -> tuple[float, float]:
    """How often the excess of one place, and how far from its loss."""
    return LIMITS.get(f"{way}, {epsilon:g}", LIMITS[way])


def federation(case: Case, widths: list[int], way: str, parties: int) -> sv.Federation:
    """Who holds what."""
    if way.startswith("one place"):
        return sv.Federation.central(case.X, case.y)
    if way.startswith("rows"):
        made = sv.Federation.by_rows(case.parts(parties), sums="secure" if "secure" in way else "plain")
        return made.secure_aggregation(colluding=1) if "colluding=1" in way else made
    stops, norms = split_of(widths, parties)
    return sv.Federation.by_columns(
        np.split(case.X, stops[:-1], axis=1),
        case.y,
        labels="held",
        label_party=parties - 1,
        norms=None if "norms by columns" in way else norms,
        products="secure" if "secure" in way else "none",
    )


def model_of(case: Case, epsilon: float, seed: int, **options: Any) -> Any:
    """The default model of a set, without a penalty."""
    kind = sv.PrivateRidge if case.regression else sv.PrivateLogisticRegression
    labels: dict[str, Any] = {"label_bound": 1.0} if case.regression else {"classes": (-1, 1)}
    return kind(epsilon, delta=DELTA, alpha=0.0, insecure_seed=seed, **{"row_norm": 1.0, **labels, **options})


def loss(fit: Fit) -> float:
    """The test loss of one fit."""
    warnings.simplefilter("ignore")  # a delta of 1e-5 is kept for the small sets too
    if fit.problem == SCHEMA:
        return loss_by_schema(fit)
    case, widths = prepared(fit.problem)
    model = model_of(case, fit.epsilon, fit.seed)
    model.fit(federation(case, widths, fit.way, fit.parties))
    return case.test(np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]))[0]


@functools.lru_cache(maxsize=2)
def adult(part: str) -> dict[str, Any]:
    """The table as it comes, without the column that is no feature."""
    cells = read_columns(Path(os.environ["SOTTOVOCE_DATA"]) / "adult" / f"{part}.csv.xz")
    return {name: cells[name] for name in cells if name not in ADULT.identifiers}


def loss_by_schema(fit: Fit) -> float:
    """The same of adult: each party has some columns of the table, the last of them the label."""
    cells = adult("train")
    model = sv.PrivateLogisticRegression(fit.epsilon, delta=DELTA, alpha=0.0, insecure_seed=fit.seed)
    if fit.way == "one place":
        made = sv.Federation.central(cells, schema=ADULT)
    else:
        groups = [list(group) for group in np.array_split(list(ADULT.columns), fit.parties)]
        groups[-1].append(ADULT.label)
        made = sv.Federation.by_columns(
            [{name: cells[name] for name in group} for group in groups],
            labels="held",
            label_party=fit.parties - 1,
            schema=ADULT,
            products="secure",
        )
    return scored(model.fit(made), adult("test"))[0]


def fits(arguments: argparse.Namespace) -> Iterator[Fit]:
    """All that the tables need, seed by seed: a run that is stopped has some of everything."""
    for seed, epsilon, problem in itertools.product(range(arguments.runs), arguments.epsilon, arguments.only):
        yield Fit(problem, "one place", 1, epsilon, seed)
        for parties in arguments.parties or PARTIES["rows"]:
            if arguments.rows and problem != SCHEMA:
                for way in ("rows", "rows, secure", "rows, secure, colluding=1"):
                    yield Fit(problem, way, parties, epsilon, seed)
        if arguments.columns:
            for parties in arguments.parties or PARTIES["columns"]:
                yield Fit(problem, "columns, secure", parties, epsilon, seed)
                if "cuts" in arguments.tables and problem in CUT:
                    yield Fit(problem, "columns, secure, norms by columns", parties, epsilon, seed)


def run_all(calls: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], kept: results.Results, jobs: int) -> None:
    """Make and keep the cells that are not there, in so many processes."""
    missing = {key: call for key, call in calls.items() if key not in kept.cells}
    if jobs == 1:
        for key, (function, given) in missing.items():
            kept.put(key, function(*given))
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(function, *given): key for key, (function, given) in missing.items()}
        for done in as_completed(running):
            kept.put(running[done], done.result())


class Table:
    """The losses of fits, looked up."""

    def __init__(self, cells: Mapping[str, Any], arguments: argparse.Namespace) -> None:
        self._cells, self._runs = cells, arguments.runs

    def losses(self, problem: str, way: str, parties: int, epsilon: float) -> Array:
        keys = [Fit(problem, way, parties, epsilon, seed).key for seed in range(self._runs)]
        return np.array([self._cells[key] for key in keys if key in self._cells])

    def best(self, problem: str) -> float:
        """The loss of the model without privacy."""
        return float(self._cells[f"ends / {problem}"][0])

    def shown(self, problem: str, way: str, parties: int, epsilon: float) -> str:
        found = self.losses(problem, way, parties, epsilon)
        return f"{found.mean():.4f} ± {found.std():.4f}" if len(found) else results.NONE

    def excess(self, problem: str, way: str, parties: int, epsilon: float) -> str:
        """The mean loss over that of the model without privacy."""
        found = self.losses(problem, way, parties, epsilon)
        return f"{found.mean() - self.best(problem):.4f}" if len(found) else results.NONE

    def ratio(self, problem: str, way: str, parties: int, epsilon: float) -> str:
        """Excess over that in one place, and whether it is within the limits."""
        central, found = self.losses(problem, "one place", 1, epsilon), self.losses(problem, way, parties, epsilon)
        if not (len(central) and len(found)):
            return results.NONE
        best = self.best(problem)
        excess, gap = (found.mean() - best) / (central.mean() - best), found.mean() - central.mean()
        most, near = limits_of(way, epsilon)
        within = gap <= near or 0 <= excess <= most
        shown = f"{excess:.2f}" if central.mean() > best else "one place is at the optimum"
        return f"{shown}, {gap:+.4f}" + ("" if within else " **over**")


def page_table(table: Table, arguments: argparse.Namespace, split: str) -> str:
    """A line for each set and epsilon, with a mean for each number of parties."""
    counts = arguments.parties or PARTIES[split]
    ways = {"secure": f"{split}, secure"}
    if split == "rows":
        ways |= {"secure, no two collude": "rows, secure, colluding=1", "not secure": "rows"}
    header = ["set", "epsilon", "not private", "one place", *ways, "secure: excess ratio"]
    lines = []
    for problem, epsilon in itertools.product(arguments.only, arguments.epsilon):
        if split == "rows" and problem == SCHEMA:
            continue
        best, central = table.best(problem), table.losses(problem, "one place", 1, epsilon).mean()
        means = {
            name: [table.losses(problem, way, parties, epsilon).mean() for parties in counts]
            for name, way in ways.items()
        }
        ratios = [(loss - best) / (central - best) for loss in means["secure"]]
        line = [problem, f"{epsilon:g}", f"{best:.4f}", f"{central:.4f}"]
        line += [" / ".join(f"{loss:.4f}" for loss in found) for found in means.values()]
        lines.append([*line, " / ".join(f"{ratio:.2f}" for ratio in ratios)])
    return f"**M = {' / '.join(map(str, counts))}**\n\n" + results.table(header, lines)


def rows_table(table: Table, arguments: argparse.Namespace) -> str:
    """A line for each set, epsilon and number of parties."""
    header = ["set", "epsilon", "M", "not private", "one place", "**secure**", "colluding=1", "not secure"]
    header += ["secure: excess over one place's, loss over it", "the same, colluding=1"]
    lines = []
    for problem, epsilon in itertools.product(arguments.only, arguments.epsilon):
        for parties in arguments.parties or PARTIES["rows"]:
            if problem == SCHEMA:
                continue
            ways = ("one place", "rows, secure", "rows, secure, colluding=1", "rows")
            line = [problem, f"{epsilon:g}", str(parties), f"{table.best(problem):.4f}"]
            line += [table.shown(problem, way, 1 if way == "one place" else parties, epsilon) for way in ways]
            line += [table.ratio(problem, way, parties, epsilon) for way in ways[1:3]]
            lines.append(line)
    limits = "; ".join(f"{way}: {LIMITS[way][0]:g} times, or within {LIMITS[way][1]:g}" for way in ways[1:3])
    about = f"By rows, means and deviations of {arguments.runs} runs. Limits: {limits}."
    return about + "\n\n" + results.table(header, lines)


def columns_table(table: Table, arguments: argparse.Namespace) -> str:
    """The same by columns; with another file of results its figures beside."""
    way, ratio = "columns, secure", "excess over one place's, loss over it"
    header = ["set", "epsilon", "M", "not private", "one place", "**secure**", "excess: one place", "secure", ratio]
    before = Table(results.Results(arguments.beside).cells, arguments) if arguments.beside else None
    header += [f"{arguments.beside.stem}: secure", "excess", ratio] if before else []
    lines = []
    for problem, epsilon in itertools.product(arguments.only, arguments.epsilon):
        for parties in arguments.parties or PARTIES["columns"]:
            asked = (problem, way, parties, epsilon)
            central = (problem, "one place", 1, epsilon)
            line = [problem, f"{epsilon:g}", str(parties), f"{table.best(problem):.4f}", table.shown(*central)]
            line += [table.shown(*asked), table.excess(*central), table.excess(*asked), table.ratio(*asked)]
            line += [before.shown(*asked), before.excess(*asked), before.ratio(*asked)] if before else []
            lines.append(line)
    limits = "; ".join(
        f"epsilon {epsilon:g}: {limits_of(way, epsilon)[0]:g} times, or within {limits_of(way, epsilon)[1]:g}"
        for epsilon in arguments.epsilon
    )
    runs = {
        len(table.losses(problem, way, parties, epsilon))
        for problem, epsilon in itertools.product(arguments.only, arguments.epsilon)
        for parties in arguments.parties or PARTIES["columns"]
    }
    counted = " to ".join(str(count) for count in sorted({min(runs), max(runs)}))
    about = f"By columns, means and deviations of {counted} runs. Limits: {limits}."
    return about + "\n\n" + results.table(header, lines)


def cuts_table(table: Table, arguments: argparse.Namespace) -> str:
    """Rows that are longer at some party than its public norm."""
    lines = []
    for problem in arguments.only:
        if problem == SCHEMA:  # its norms follow from the encoding
            continue
        case, widths = prepared(problem)
        for parties in arguments.parties or PARTIES["columns"]:
            stops, norms = split_of(widths, parties)
            counts = np.diff([0, *stops])
            shares = []
            for given in (norms, [math.sqrt(count / case.X.shape[1]) for count in counts]):
                parts = zip(np.split(case.X, stops[:-1], axis=1), given, strict=True)
                cut = np.any([np.linalg.norm(part, axis=1) > norm * (1 + 1e-9) for part, norm in parts], axis=0)
                shares.append(f"{100 * cut.mean():.0f}%")
            for epsilon in arguments.epsilon:
                ways = ("columns, secure", "columns, secure, norms by columns" if problem in CUT else "columns, secure")
                losses = [table.shown(problem, way, parties, epsilon) for way in ways]
                lines.append(
                    [problem, str(parties), f"{epsilon:g}", *itertools.chain(*zip(shares, losses, strict=True))]
                )
    header = ["set", "M", "epsilon", "norms by attributes: rows cut", "loss", "by columns: rows cut", "loss"]
    return results.table(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=[*CASES, SCHEMA], metavar="SET")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--parties", type=int, nargs="+", help="other numbers of parties")
    parser.add_argument("--rows", action="store_true", help="by rows alone")
    parser.add_argument("--columns", action="store_true", help="by columns alone")
    tables = ["loss", "cuts"]
    parser.add_argument("--tables", nargs="+", default=tables, choices=tables)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--results", type=Path, default=results.FOLDER / "secure.json")
    parser.add_argument("--beside", type=Path, help="another file of results, to print beside")
    parser.add_argument("--print", action="store_true", help="run nothing; print what is kept")
    parser.add_argument("--pages", action="store_true", help="update the tables of the documentation too")
    arguments = parser.parse_args()
    if not (arguments.rows or arguments.columns):
        arguments.rows = arguments.columns = True
    splits = [split for split in ("rows", "columns") if getattr(arguments, split)]
    kept = results.Results(arguments.results)
    if not arguments.print:
        calls: dict[str, Any] = {f"ends / {problem}": (best_of, (problem,)) for problem in arguments.only}
        run_all(calls | {fit.key: (loss, (fit,)) for fit in fits(arguments)}, kept, arguments.jobs)
    texts: dict[str, str] = {}
    if "loss" in arguments.tables:
        tables = {"rows": rows_table, "columns": columns_table}
        texts |= {f"secure-{split}": tables[split](Table(kept.cells, arguments), arguments) for split in splits}
    if "cuts" in arguments.tables and arguments.columns:
        texts["secure-cuts"] = cuts_table(Table(kept.cells, arguments), arguments)
    for name, text in texts.items():
        print(f"\n{TITLES[name]}\n\n{text}", flush=True)
    if arguments.pages and "loss" in arguments.tables:
        for split in splits:
            results.into_page(f"secure-{split}", page_table(Table(kept.cells, arguments), arguments, split))


TITLES = {
    "secure-rows": "Test loss by rows",
    "secure-columns": "Test loss by columns, labels with one party",
    "secure-cuts": "Rows cut by the norms of the parts, and test loss",
}


def best_of(problem: str) -> tuple[float, float]:
    """The losses of the model without privacy and of the constant model."""
    if problem != SCHEMA:
        return ends(prepared(problem)[0])
    tables = [adult(part) for part in ("train", "test")]
    X, X_test = (ADULT.encode(cells) for cells in tables)
    y, y_test = (np.where(cells[ADULT.label] == ">50K", 1.0, -1.0) for cells in tables)
    scale = StandardScaler(with_mean=False).fit(X)
    scaled = Case("adult", scale.transform(X), y, scale.transform(X_test), y_test, False, 1.0, 1, (1.0, 1.0))
    return ends(scaled)


if __name__ == "__main__":
    main()
