"""What else there is, in one table: `python benchmarks/field.py` with `SOTTOVOCE_DATA` set; `--table` for the page.

Test log-loss (California: mean squared error) at epsilon 1, delta 1e-5: medians of 10 runs, of the slow ones 3; for
diffprivlib and Opacus `utility.py` has stored them. All have the same people and the same test part. Linear methods get
the rows of `utility.py`, of norm 1; curves and DP-EBM the columns themselves, with the public ranges of `shapes.py`.
Settings are defaults; "tuned" is as in `utility.py`, and not charged. CPU seconds: the median fit of adult (if it has
none: of California). What is there is not run again; `--only` runs some methods.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapes
from numpy.typing import NDArray
from peers import baselines, process, results
from peers.data import A9A, CASES, Case, by_attribute, dense
from secure_aggregation import federation
from tables import ADULT
from utility import DELTA, OPTIMUM, ORDINARY, key

import sottovoce as sv
from sottovoce.data.column_kinds import Number
from sottovoce.data.files import read_columns

Array = NDArray[np.float64]
Fit = dict[str, Any]

EPSILON, RUNS, SLOW_RUNS = 1.0, 10, 3
SLOW = ("by columns", "DP-EBM", "JAX Privacy")
FIRST = 1000  # seeds of the fits that settings are chosen by, as in `utility.py`
SETS = ("adult", "a9a", "electricity", "california")
SCHEMAS = {"adult": ADULT, "electricity": shapes.ELECTRICITY, "california": shapes.CALIFORNIA}
PLACES = {"in one place": ("one place", 1), "by rows": ("rows, secure", 4), "by columns": ("columns, secure", 2)}
UTILITY = results.Results(results.FOLDER / "utility.json")
GRIDS: dict[str, list[Fit]] = {
    "boosted AdaSSP": [{"rounds": rounds} for rounds in (1, 10, 100)],
    "JAX Privacy": [{"rate": rate} for rate in (0.5, 2.0, 8.0, 24.0)],
}


@functools.lru_cache(maxsize=1)
def case_of(data: str) -> tuple[Case, list[int]]:
    """The rows of a set, dense, and how many columns each attribute has."""
    return by_attribute(CASES[data]())


@functools.lru_cache(maxsize=1)
def cells_of(data: str) -> tuple[shapes.Cells, shapes.Cells]:
    """The columns of a set as they come: of training and of test people."""
    folder = Path(os.environ["SOTTOVOCE_DATA"])
    if data == "adult":
        return read_columns(folder / data / "train.csv.xz"), read_columns(folder / data / "test.csv.xz")
    return shapes.split(folder / ("california_housing" if data == "california" else data) / "data.csv.xz")


def seeds(method: str) -> range:
    return range(SLOW_RUNS if any(name in method for name in SLOW) else RUNS)


def timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the CPU seconds of all its threads."""
    start = time.process_time()
    return fit(), time.process_time() - start


def lines(data: str, place: str) -> list[tuple[float, float]]:
    """(loss, CPU seconds) of each run: our default on the rows that every linear method gets."""
    case, widths = case_of(data)
    kind: Any = sv.PrivateRidge if case.regression else sv.PrivateLogisticRegression
    labels: Fit = {"label_bound": 1.0} if case.regression else {"classes": (-1, 1)}
    found = []
    for seed in seeds(place):
        dealt = federation(case, widths, *PLACES[place])
        model = kind(EPSILON, delta=DELTA, row_norm=1.0, insecure_seed=seed, **labels)
        _, used = timed(functools.partial(model.fit, dealt))
        found.append((case.test(np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]))[0], used))
    return found


def curves(data: str, place: str) -> list[tuple[float, float]]:
    """The same with a curve for each number, from the columns themselves."""
    schema, (train, test) = shapes.smooth(SCHEMAS[data]), cells_of(data)
    kind: Any = sv.PrivateRidge if schema.classes is None else sv.PrivateLogisticRegression
    parties = PLACES[place][1]
    found = []
    for seed in seeds(place):
        dealt = shapes.deal(train, schema, parties, columns=place == "by columns", colluding=None)
        own = {} if isinstance(dealt, sv.Federation) else {"schema": schema}
        model = kind(EPSILON, delta=DELTA, insecure_seed=seed, **own)
        _, used = timed(functools.partial(model.fit, dealt))
        found.append((shapes.loss_of(model, test), used))
    return found


def dp_ebm(data: str) -> list[tuple[float, float]]:
    """DP-EBM of interpret-core: levels as whole numbers, numbers within their public ranges."""
    case, _ = case_of(data)
    ranges: list[tuple[float, float] | None]
    if data == "a9a":  # 14 attributes by their levels; none of them is a level too
        edges = np.cumsum((0, *A9A))
        both = np.vstack([dense(case.X), dense(case.X_test)]) > 0
        parts = [both[:, low:high] for low, high in itertools.pairwise(edges)]
        X = np.column_stack([np.where(part.any(axis=1), part.argmax(axis=1), part.shape[1]) for part in parts])
        y, ranges = case.y > 0, [None] * len(A9A)
        true = case.y_test
    else:
        schema, both_cells, columns, ranges = SCHEMAS[data], cells_of(data), [], []
        for name, column in schema.columns.items():
            values = np.concatenate([np.asarray(cells[name]) for cells in both_cells])
            if isinstance(column, Number):
                (low, high), values = column.ranges[0], values.astype(float)
                columns.append(np.clip(values, low, high))
                ranges.append((low, high))
            else:
                columns.append(np.unique(values.astype(str), return_inverse=True)[1].astype(float))
                ranges.append(None)
        X = np.column_stack(columns)
        labels = [np.asarray(cells[str(schema.label)]) for cells in both_cells]
        if schema.classes is None:
            y, true = labels[0].astype(float), labels[1].astype(float)
        else:
            y, true = labels[0] == schema.classes[1], np.where(labels[1] == schema.classes[1], 1.0, -1.0)
    settings = [{"epsilon": EPSILON, "delta": DELTA, "seed": seed} for seed in seeds("DP-EBM")]
    facts = {"train": len(y), "ranges": ranges, "labels": (0.0, 5.00001) if case.regression else None}
    answer = process.ask("interpret", X, y.astype(float), settings, **facts)
    found = []
    for fit in answer["fits"]:
        scores = np.array(fit["scores"])
        wrong = (scores - true) ** 2 if case.regression else np.logaddexp(0, -true * scores)
        found.append((float(wrong.mean()), fit["cpu"]))
    return found


def ask(peer: str, case: Case, settings: list[Fit]) -> list[Fit]:
    """Fits of a peer, which takes dense rows."""
    answer = process.ask(
        peer, dense(case.X), case.y, settings, regression=case.regression, entry_bound=case.entry_bound
    )
    return list(answer["fits"])


def ada_ssp(case: Case, settings: list[Fit]) -> list[Fit]:
    X, found = baselines.extended(case.X), []
    for setting in settings:
        rows, generator = setting.get("rows", len(case.y)), np.random.default_rng(setting["seed"])
        rounds = setting.get("rounds", 1)
        fit = functools.partial(baselines.ada_ssp, X[:rows], case.y[:rows], EPSILON, DELTA, generator, rounds=rounds)
        weights, used = timed(fit)
        coef, intercept = baselines.model(weights)
        found.append({"coef": coef, "intercept": intercept, "cpu": used})
    return found


def chosen_by(name: str, case: Case, fits: Callable[[list[Fit]], list[Fit]], common: Fit) -> Fit:
    """The setting with the least loss on the last fifth of the training rows, by two fits each."""
    pairs = [(setting, seed) for setting in GRIDS[name] for seed in (FIRST, FIRST + 1)]
    found = fits([common | setting | {"seed": seed, "rows": case.judged_from} for setting, seed in pairs])
    losses = [case.judge(np.array(fit["coef"]), fit["intercept"]) for fit in found]
    return GRIDS[name][int(np.argmin(np.reshape(losses, (-1, 2)).mean(axis=1)))]


def linear_peer(data: str, method: str) -> tuple[list[tuple[float, float]], Fit]:
    """(loss, CPU seconds) of each run, and what was chosen."""
    case, _ = case_of(data)
    name = method.removesuffix(", tuned")
    common: Fit = {"epsilon": EPSILON, "delta": DELTA}
    common |= {"JAX Privacy": {"clip": 1.0, "rate": 0.5}, "boosted AdaSSP": {"rounds": 100}}.get(name, {})
    fits = functools.partial(ask, "jax_privacy", case) if name == "JAX Privacy" else functools.partial(ada_ssp, case)
    chosen = {} if name == method else chosen_by(name, case, fits, common)
    found = fits([common | chosen | {"seed": seed} for seed in seeds(method)])
    return [(case.test(np.array(fit["coef"]), fit["intercept"])[0], fit["cpu"]) for fit in found], chosen


def stored_peer(data: str, method: str) -> tuple[list[tuple[float, float]], Fit]:
    """Losses as `utility.py` has them; CPU seconds by a fit more of adult, of other sets not a number."""
    cell, name = UTILITY.cells[key(data, EPSILON, method)], method.removesuffix(", tuned")
    chosen, used = cell.get("chosen", {}), math.nan
    if data == "adult":
        common: Fit = {"epsilon": EPSILON, "delta": DELTA, "seed": 0} | (ORDINARY if name == "Opacus" else {})
        used = ask(name.lower(), case_of(data)[0], [common | chosen])[0]["cpu"]
    return [(loss, used) for loss in cell["loss"]], chosen


def measured(data: str, method: str) -> tuple[list[tuple[float, float]], Fit] | None:
    """(loss, CPU seconds) of each run, and what was chosen; None where a method cannot take a set."""
    name = method.removesuffix(", tuned")
    if method.startswith("sottovoce"):
        _, shape, place = method.split(", ")
        if shape == "curves":
            return (curves(data, place), {}) if data in SCHEMAS else None
        return lines(data, place), {}
    if name == "DP-EBM":
        return dp_ebm(data), {}
    if "AdaSSP" in name and not case_of(data)[0].regression:
        return None
    if name in ("diffprivlib", "Opacus"):
        return stored_peer(data, method) if key(data, EPSILON, method) in UTILITY.cells else None
    return linear_peer(data, method)


class Row(NamedTuple):
    """What a row of the page says. No `methods`: told and not run, and then `time` is what they publish."""

    methods: tuple[str, ...]
    guarantee: str
    splits: str
    cannot: str
    time: str = ""


def both(name: str) -> tuple[str, str]:
    return name, f"{name}, tuned"


ONE, SAME = "one place", "the same"
BLANKED, ADDED = "(ε, δ), a record blanked", "(ε, δ), a record added or removed"
OTHERS = "also against the coordinator and all other parties; rests on encryption too"
FATE = "https://github.com/FederatedAI/FATE/blob/master/doc/2.0/fate/performance/performance_multi_engines.md"
SECRETFLOW = "https://github.com/secretflow/secretflow/blob/main/docs/developer/benchmark/overall_benchmark.md"
NVFLARE = "https://github.com/NVIDIA/NVFlare/blob/main/nvflare/app_common/filters/svt_privacy.py"
QUESTIONED = "[questioned](https://github.com/interpretml/interpret/issues/523)"
ROWS: dict[str, Row] = {
    "**sottovoce**": Row(
        ("sottovoce, lines, in one place",), f"{BLANKED} (or replaced)", ONE, "hide the number of rows"
    ),
    "with curves": Row(("sottovoce, curves, in one place",), SAME, ONE, "interactions"),
    "4 parties": Row(("sottovoce, lines, by rows",), OTHERS, "rows", "withstand parties that lie"),
    "4 parties, curves": Row(("sottovoce, curves, by rows",), SAME, "rows", SAME),
    "2 parties": Row(
        ("sottovoce, lines, by columns",),
        f"{OTHERS}; dealer and one party together read all",
        "columns",
        "the same; more than two classes",
    ),
    "2 parties, curves": Row(("sottovoce, curves, by columns",), SAME, "columns", SAME),
    "[diffprivlib](https://github.com/IBM/differential-privacy-library) 0.6.6": Row(
        both("diffprivlib"), "pure ε; a record replaced (squares: added or removed)", ONE, "do well untuned"
    ),
    "[Opacus](https://opacus.ai) 1.6.0": Row(both("Opacus"), ADDED, ONE, "do well untuned"),
    "[JAX Privacy](https://github.com/google-deepmind/jax_privacy) 2.0.0": Row(
        both("JAX Privacy"), BLANKED, ONE, "fit without a loop of your own"
    ),
    "[DP-EBM](https://github.com/interpretml/interpret) 0.7.8": Row(
        ("DP-EBM",), f"{ADDED}; of squares {QUESTIONED}", ONE, "interactions; scores of the right size"
    ),
    "AdaSSP": Row(("AdaSSP",), BLANKED, ONE, "classes"),
    "boosted AdaSSP": Row(both("boosted AdaSSP"), BLANKED, ONE, "classes"),
    "without privacy, lines": Row((OPTIMUM,), "none", ONE, results.NONE),
    "[OpenDP](https://github.com/opendp/opendp) 0.16.0": Row((), "formal, a record", ONE, "more than one feature"),
    f"[FATE]({FATE}) 2.0": Row(
        (), "no DP; encrypted on the way", "rows, columns", "limit what the model tells", "141 an epoch"
    ),
    f"[SecretFlow]({SECRETFLOW})": Row(
        (), "by columns no DP; secret shares", "rows, columns", "limit what the model tells", "694 a fit"
    ),
    f"[NVFlare]({NVFLARE})": Row((), "noise filters on updates", "rows", "tell a record's ε of a fit"),
    "[DataSHIELD](https://github.com/datashield/dsBase/issues/251)": Row(
        (), "no DP; exact sums, disclosure rules", "rows", "withstand differences of queries"
    ),
}
METHODS = [method for row in ROWS.values() for method in row.methods if method != OPTIMUM]


def shown_losses(cells: Fit, data: str, methods: tuple[str, ...]) -> str:
    """Medians: of the default, and behind a stroke of the tuned one."""
    told = []
    for method in methods:
        cell = UTILITY.cells.get(key(data, math.inf, OPTIMUM)) if method == OPTIMUM else None
        cell = cell or cells.get(key(data, EPSILON, method))
        if cell is not None:
            loss = float(np.median(cell["loss"]))
            told.append(f"{loss:.3f}" if loss < 100 else f"{loss:.0e}")
    return " / ".join(told) or results.NONE


def shown_seconds(cells: Fit, row: Row) -> str:
    for data, method in itertools.product(("adult", "california"), reversed(row.methods)):
        cell = cells.get(key(data, EPSILON, method), {})
        if "cpu" in cell:
            seconds = float(np.median(cell["cpu"]))
            return f"{seconds:.1f}" if seconds >= 0.1 else f"{seconds:.3f}"
    return row.time or results.NONE


def tables(cells: Fit) -> tuple[list[str], list[str]]:
    """The table of the page, and what was chosen for the tuned."""
    header = ["at epsilon 1", *SETS, "CPU s", "guarantee", "data", "cannot"]
    lines_of = [
        [
            name,
            *(shown_losses(cells, data, row.methods) for data in SETS),
            shown_seconds(cells, row),
            row.guarantee,
            row.splits,
            row.cannot,
        ]
        for name, row in ROWS.items()
    ]
    chosen = [f"{name}: {cell['chosen']}" for name, cell in cells.items() if cell.get("chosen")]
    return [results.table(header, lines_of)], ["\n".join(chosen)]


def main() -> None:
    parser = results.parser(__doc__, "field")
    parser.add_argument("--only", nargs="+", default=METHODS, choices=METHODS, metavar="METHOD")
    parser.add_argument("--data", nargs="+", default=list(SETS), choices=SETS)
    arguments = parser.parse_args()
    kept = results.Results(arguments.results)
    if results.shown("field", arguments, kept, tables):
        return
    warnings.simplefilter("ignore")  # a seed voids the guarantee, and says so
    for data, method in itertools.product(arguments.data, arguments.only):
        name = key(data, EPSILON, method)
        if name in kept.cells:
            continue
        try:
            found = measured(data, method)
        except process.MissingPeerError as error:
            print(f"{method}: left out, {error}")
            continue
        if found is None:
            continue
        runs, chosen = found
        cell: Fit = {"loss": results.shorter([loss for loss, _ in runs])}
        cell |= {"cpu": seconds} if (seconds := results.shorter([used for _, used in runs if used >= 0])) else {}
        kept.put(name, cell | ({"chosen": chosen} if chosen else {}))
        print(f"{name:48s} loss {np.median(cell['loss']):.4f}  {chosen}", flush=True)


if __name__ == "__main__":
    main()
