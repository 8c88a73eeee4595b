"""What sealed sums cost against data in one place, in loss, CPU and bytes: `python benchmarks/sealed.py`.

    loss    test log-loss (California: mean squared error) of the default solver at the same epsilon: in one place, with
            sealed sums, and by rows as parties do it that add all of their noise themselves; delta 1e-5, zero-out
    cuts    rows that the parties' public norms cut, and what that costs: norms by attributes and by columns
    cost    CPU of all roles over that of one place, and bytes of each; newton and the default solver
    exact   the same sums without noise, against those of data in one place

Bounds are what the encodings say: a record has one value of each attribute. By columns attributes are in M neighbouring
groups, a part's norm goes by its number of attributes, and the last party has the labels; "adult, schema" is fitted by
its schema alone. By rows people are dealt out. Excess is the loss over that of the model without privacy. Results are
kept in a file; what is there is not run again. `--beside` prints those of another file too, as of a form before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import argparse
import contextlib
import functools
import itertools
import math
import multiprocessing
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from default import ends
from numpy.typing import NDArray
from peers import results
from peers.data import CASES, Case, by_attribute
from sklearn.preprocessing import StandardScaler
from tables import ADULT, scored

import sottovoce as sv
from opening import Sum, watched
from sottovoce.data.block import Block
from sottovoce.data.readers import read_columns
from sottovoce.door.query import Round
from sottovoce.federation.sealed_columns.dealer import LocalDeals
from sottovoce.queries.gradient import GradientSum
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointGradient
from sottovoce.transports.base import Transport

Array = NDArray[np.float64]

DELTA = 1e-5
SCHEMA = "adult, schema"
SETS = ("a9a", "phishing", "electricity", "california", SCHEMA)
CUT = ("a9a", "phishing")  # rows of the others are within the norms of any split
PARTIES = {"rows": (2, 8, 50), "columns": (2, 4, 8)}
LIMITS = {  # excess over that in one place, or else the loss itself that far from it; by columns also by epsilon
    "rows, sealed": (2.2, 0.003),
    "rows, sealed, curious=1": (1.5, 0.002),
    "columns, sealed": (2.0, 0.002),
    "columns, sealed, 0.1": (2.2, 0.01),
}
MADE_UP = "1,000,000 x 50"
COSTS = [("a9a", 2), ("a9a", 8), ("a9a", 16), (MADE_UP, 2)]
MIB = 2**20


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
        made = sv.Federation.by_rows(case.parts(parties), sums="secure" if "sealed" in way else "plain")
        return made.sealing(curious=1) if "curious=1" in way else made
    stops, norms = split_of(widths, parties)
    return sv.Federation.by_columns(
        np.split(case.X, stops[:-1], axis=1),
        case.y,
        labels="held",
        label_party=parties - 1,
        norms=None if "norms by columns" in way else norms,
        products="secure" if "sealed" in way else "none",
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
                for way in ("rows", "rows, sealed", "rows, sealed, curious=1"):
                    yield Fit(problem, way, parties, epsilon, seed)
        if arguments.columns:
            for parties in arguments.parties or PARTIES["columns"]:
                yield Fit(problem, "columns, sealed", parties, epsilon, seed)
                if "cuts" in arguments.tables and problem in CUT:
                    yield Fit(problem, "columns, sealed, norms by columns", parties, epsilon, seed)


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


def rows_table(table: Table, arguments: argparse.Namespace) -> str:
    """A line for each set, epsilon and number of parties."""
    header = ["set", "epsilon", "M", "not private", "one place", "**sealed**", "curious=1", "not sealed"]
    header += ["sealed: excess over one place's, loss over it", "the same, curious=1"]
    lines = []
    for problem, epsilon in itertools.product(arguments.only, arguments.epsilon):
        for parties in arguments.parties or PARTIES["rows"]:
            if problem == SCHEMA:
                continue
            ways = ("one place", "rows, sealed", "rows, sealed, curious=1", "rows")
            line = [problem, f"{epsilon:g}", str(parties), f"{table.best(problem):.4f}"]
            line += [table.shown(problem, way, 1 if way == "one place" else parties, epsilon) for way in ways]
            line += [table.ratio(problem, way, parties, epsilon) for way in ways[1:3]]
            lines.append(line)
    limits = "; ".join(f"{way}: {LIMITS[way][0]:g} times, or within {LIMITS[way][1]:g}" for way in ways[1:3])
    about = f"By rows, means and deviations of {arguments.runs} runs. Limits: {limits}."
    return about + "\n\n" + results.table(header, lines)


def columns_table(table: Table, arguments: argparse.Namespace) -> str:
    """The same by columns; with another file of results its figures beside."""
    way, ratio = "columns, sealed", "excess over one place's, loss over it"
    header = ["set", "epsilon", "M", "not private", "one place", "**sealed**", "excess: one place", "sealed", ratio]
    before = Table(results.Results(arguments.beside).cells, arguments) if arguments.beside else None
    header += [f"{arguments.beside.stem}: sealed", "excess", ratio] if before else []
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
    about = f"By columns, means and deviations of {arguments.runs} runs. Limits: {limits}."
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
                ways = ("columns, sealed", "columns, sealed, norms by columns" if problem in CUT else "columns, sealed")
                losses = [table.shown(problem, way, parties, epsilon) for way in ways]
                lines.append(
                    [problem, str(parties), f"{epsilon:g}", *itertools.chain(*zip(shares, losses, strict=True))]
                )
    header = ["set", "M", "epsilon", "norms by attributes: rows cut", "loss", "by columns: rows cut", "loss"]
    return results.table(header, lines)


# Cost


class Metered:
    """A wire that knows of each party its CPU and its bytes, and the largest message."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.parties, self.communication = inner, inner.parties, inner.communication
        self.seconds = dict.fromkeys(inner.parties, 0.0)
        self.up, self.down = Counter[str](), Counter[str]()
        self.largest = 0

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        replies: dict[str, bytes] = {}
        for name, message in messages.items():
            began = time.process_time()
            replies |= self._inner.exchange({name: message})
            self.seconds[name] += time.process_time() - began
            self.up[name] += len(replies[name])
            self.down[name] += len(message)
            self.largest = max(self.largest, len(message), len(replies[name]))
        return replies

    def close(self) -> None:
        self._inner.close()


@contextlib.contextmanager
def dealing() -> Iterator[list[float]]:
    """CPU seconds of what is dealt."""
    spent: list[float] = []

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            began = time.process_time()
            found = method(*given)
            spent.append(time.process_time() - began)
            return found

        return call

    with contextlib.ExitStack() as stack:
        for name in ("gram", "own", "lookup"):
            stack.enter_context(mock.patch.object(LocalDeals, name, timed(getattr(LocalDeals, name))))
        yield spent


def made_up(records: int = 1_000_000, features: int = 50) -> tuple[Array, Array]:
    """Entries in [-1, 1], logistic labels."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (records, features))
    return X, np.where(X @ rng.standard_normal(features) + rng.logistic(size=records) > 0, 1, -1)


def peak() -> float:
    """The largest memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cost(problem: str, solver: str, parties: int) -> dict[str, Any]:
    """One fit in one place and one with sealed columns, epsilon 1; everything is compiled before."""
    warnings.simplefilter("ignore")
    bounds: dict[str, Any] = {"row_norm": 1.0}
    if problem == MADE_UP:
        X, y = made_up()
        stops, norms, bounds = [25, 50], None, {"entry_bound": 1.0}
    else:
        case, widths = prepared(problem)
        X, y, (stops, norms) = case.X, case.y, split_of(widths, parties)

    def both(count: int) -> list[sv.Federation]:
        parts = np.split(X[:count], stops[:-1], axis=1)
        held: dict[str, Any] = {"labels": "held", "label_party": parties - 1, "norms": norms, "products": "secure"}
        return [sv.Federation.central(X[:count], y[:count]), sv.Federation.by_columns(parts, y[:count], **held)]

    def fitted(made: sv.Federation) -> float:
        model = sv.PrivateLogisticRegression(
            1.0, delta=DELTA, alpha=0.0, classes=(-1, 1), solver=solver, insecure_seed=0, **bounds
        )
        began = time.process_time()
        model.fit(made)
        return time.process_time() - began

    for made in both(500):
        fitted(made)
    central, sealed = both(len(y))
    one, before = fitted(central), peak()
    wire = sealed.transport = Metered(sealed.transport)
    with dealing() as dealt:
        whole = fitted(sealed)
    communication = wire.communication
    assert communication.uplink_bytes == sum(wire.up.values())
    return {
        "one place": one,
        "all roles": whole,
        "parties": list(wire.seconds.values()),
        "dealer": sum(dealt),
        "up": list(wire.up.values()),
        "down": list(wire.down.values()),
        "largest": wire.largest,
        "memory before": before,
        "memory": peak(),
    }


def costs_table(cells: Mapping[str, Any]) -> str:
    header = [
        "records x columns",
        "solver",
        "M",
        "CPU in one place, s",
        "all roles, s",
        "times",
        "a party / the dealer, s",
    ]
    header += ["a party: MB up / down, mean (most)", "largest message, MiB", "peak memory, MiB (before)"]
    lines = []
    for (problem, parties), solver in itertools.product(COSTS, ("newton", "auto")):
        cell = cells.get(f"cost / {problem} / {solver} / {parties}")
        if cell is None:
            continue
        sizes = [f"{np.mean(cell[way]) / 1e6:.0f} ({max(cell[way]) / 1e6:.0f})" for way in ("up", "down")]
        one, whole, largest = cell["one place"], cell["all roles"], cell["largest"] / MIB
        line = [problem, solver, str(parties), f"{one:.2f}", f"{whole:.1f}", f"{whole / one:.0f}"]
        line += [f"{np.mean(cell['parties']):.2f} / {cell['dealer']:.2f}", " / ".join(sizes)]
        line += [f"{largest:.1f}" + ("" if largest < 64 else " **over 64**")]
        line += [f"{cell['memory']:.0f} ({cell['memory before']:.0f})"]
        lines.append(line)
    return results.table(header, lines)


# Without noise


def exact(problem: str, split: str, parties: int) -> dict[str, Any]:
    """Sums of `newton` without noise, against those of data in one place at the same weights."""
    warnings.simplefilter("ignore")
    case, widths = prepared(problem)
    central = model_of(case, 1.0, 0, solver="newton").fit(federation(case, widths, "one place", 1)).plan_
    with watched(noise=False) as seen:
        model_of(case, 1.0, 0, solver="newton").fit(federation(case, widths, f"{split}, sealed", parties))
    whole = Block.prepare(case.X, case.y, central.preparation)
    found: dict[str, Any] = {"gram": False, "equal": 0, "sums": len(seen), "off": 0.0}
    for one in seen:
        value = value_of(one, central, whole)
        found["equal"] += int(np.array_equal(value, one.value))
        if one.query.name == "gram":
            found["gram"] = bool(np.array_equal(value, one.value))
        elif split == "columns":
            found["off"] = max(
                found["off"], float(np.max(np.abs(one.value - value) / table_error(one, central, whole)))
            )
    return found


def value_of(one: Sum, plan: Any, rows: Block) -> Array:
    """The same sum of rows that are in one place."""
    if one.query.name == "gram":
        return GramMatrix(plan.dimension).value(Round(plan, 0, {}, rows))
    query = GradientSum(plan.dimension, plan.numbers.slope_bound, plan.scaled_loss)
    return query.value(Round(plan, 0, {"weights": one.told["weights"]}, rows))


SUP_ERROR = 0.0003  # of the mean logistic slope; cut residuals are exact in the mean
DEVIATIONS = 6.0


def table_error(one: Sum, plan: Any, rows: Block) -> Array:
    """By entry: the error of the mean slope and six deviations of rounding; beyond the table's range all of a slope."""
    X = rows.dense_rows(plan.dimension)
    assert isinstance(one.query, JointGradient)
    scores, X = X @ one.told["weights"], np.abs(X)
    widen = one.query.widened(plan, one.told["weights"], rows.gram())
    lookup = one.query.lookup(plan, {"widen": np.array([widen])})
    residuals = plan.scaled_loss.kind == "regression"
    sup, steepness = (0.0, 1.0) if residuals else (SUP_ERROR if widen == 1 else 0.5, 0.25)
    deviation = math.sqrt((lookup.order + 1) / 12) * lookup.level * steepness
    far = np.abs(scores) > lookup.level * (lookup.nodes.shape[1] / 2 - 2)
    within = sup * X.sum(axis=0) + DEVIATIONS * deviation * np.sqrt((X**2).sum(axis=0))
    beyond = 2 * plan.numbers.slope_bound * X[far].sum(axis=0)
    return np.asarray(within + beyond + 2.0**-plan.preparation.bits * X.sum(axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=[*CASES, SCHEMA], metavar="SET")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--parties", type=int, nargs="+", help="other numbers of parties")
    parser.add_argument("--rows", action="store_true", help="by rows alone")
    parser.add_argument("--columns", action="store_true", help="by columns alone")
    tables = ["loss", "cuts", "cost", "exact"]
    parser.add_argument("--tables", nargs="+", default=tables, choices=tables)
    parser.add_argument("--jobs", type=int, default=1, help="processes; CPU is measured in one")
    parser.add_argument("--results", type=Path, default=results.FOLDER / "sealed.json")
    parser.add_argument("--beside", type=Path, help="another file of results, to print beside")
    parser.add_argument("--print", action="store_true", help="run nothing; print what is kept")
    parser.add_argument("--pages", action="store_true", help="put the tables into the documentation too")
    arguments = parser.parse_args()
    if not (arguments.rows or arguments.columns):
        arguments.rows = arguments.columns = True
    splits = [split for split in ("rows", "columns") if getattr(arguments, split)]
    sums = list(itertools.product((p for p in arguments.only if p != SCHEMA), splits, arguments.parties or (2, 8)))
    kept = results.Results(arguments.results)
    if not arguments.print:
        make(arguments, sums, kept)
    texts: dict[str, str] = {}
    if "loss" in arguments.tables:
        tables = {"rows": rows_table, "columns": columns_table}
        texts |= {f"sealed-{split}": tables[split](Table(kept.cells, arguments), arguments) for split in splits}
    if "cuts" in arguments.tables and arguments.columns:
        texts["sealed-cuts"] = cuts_table(Table(kept.cells, arguments), arguments)
    if "cost" in arguments.tables:
        texts["sealed-cost"] = costs_table(kept.cells)
    if "exact" in arguments.tables:
        texts["sealed-exact"] = exact_table(kept.cells, sums)
    for name, text in texts.items():
        print(f"\n{TITLES[name]}\n\n{text}", flush=True)
        if arguments.pages:
            results.into_page(name, text, DOCS / ("benchmarks.md" if name == "sealed-rows" else "columns-cost.md"))


DOCS = results.ROOT / "docs"
TITLES = {
    "sealed-rows": "Test loss by rows",
    "sealed-columns": "Test loss by columns, labels with one party",
    "sealed-cuts": "Rows cut by the norms of the parts, and test loss",
    "sealed-cost": "CPU and bytes by columns, epsilon 1, one process",
    "sealed-exact": "Noise off, `newton`: opened sums that are those of data in one place, bit for bit",
}


def make(arguments: argparse.Namespace, sums: list[tuple[str, str, int]], kept: results.Results) -> None:
    """Run what is not kept."""
    calls: dict[str, Any] = {}
    if {"loss", "cuts"} & set(arguments.tables):
        calls |= {f"ends / {problem}": (best_of, (problem,)) for problem in arguments.only}
        calls |= {fit.key: (loss, (fit,)) for fit in fits(arguments)}
    if "exact" in arguments.tables:
        calls |= {"exact / " + " / ".join(map(str, one)): (exact, one) for one in sums}
    run_all(calls, kept, arguments.jobs)
    if "cost" in arguments.tables:
        for (problem, parties), solver in itertools.product(COSTS, ("newton", "auto")):
            alone(f"cost / {problem} / {solver} / {parties}", (cost, (problem, solver, parties)), kept)


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


def alone(key: str, call: tuple[Callable[..., Any], tuple[Any, ...]], kept: results.Results) -> None:
    """A cell made in a process of its own, with nothing beside it: its CPU and its memory are measured."""
    if key not in kept.cells:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            kept.put(key, pool.submit(call[0], *call[1]).result())


def exact_table(cells: Mapping[str, Any], sums: list[tuple[str, str, int]]) -> str:
    lines = []
    for problem, split, parties in sums:
        cell = cells.get(f"exact / {problem} / {split} / {parties}")
        if cell is None:
            continue
        line = [problem, split, str(parties), "yes" if cell["gram"] else "**no**", f"{cell['equal']} of {cell['sums']}"]
        lines.append([*line, results.NONE if split == "rows" else f"{cell['off']:.2f}"])
    header = ["set", "split", "M", "Gram matrix equal", "sums equal", "gradients: off by, of the table's error"]
    return results.table(header, lines)


if __name__ == "__main__":
    main()
