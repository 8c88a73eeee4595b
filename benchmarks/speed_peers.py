"""Fit time and memory against the peers and against memory bandwidth, in one run: `python benchmarks/speed_peers.py`.

Every fit is in a process of its own kind, one thread, from arrays in memory to a model: "first" is the first fit of a
process, with calibration and compiled loops loaded, "again" the shortest of the others. Memory is the largest resident
size of the process; "over loading" is what the fits added to libraries and data. epsilon = 1, delta = 1e-5.
Seconds are those of the processor, which on an idle machine are those of the clock: other programs matter less.

The floor is reading the rows from memory once for each round, at the bandwidth that a sum over a large array reaches in
the same run. Opacus runs 20 epochs with batches of 1,000, rate 4 (linear: 1) and clip 1, the best setting known
here: with the loader of its tutorials ("plain"), and with a loader written for it here that hands over whole batches.
diffprivlib's C = 0.01 is the best of those tried on the test part.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from peers import process, results
from peers.data import Case, dense, synthetic

from sottovoce.data.block import is_sparse

Row = dict[str, Any]

COMMON = {"epsilon": 1.0, "delta": 1e-5}
OPACUS = COMMON | {"rate": 4.0, "clip": 1.0, "batch": 1000, "epochs": 20}
JOB: dict[str, tuple[str, Row]] = {
    "ours, central": ("sottovoce", COMMON),
    "ours, central, `rounds=16`": ("sottovoce", COMMON | {"rounds": 16}),
    "ours, central, `rounds=8`": ("sottovoce", COMMON | {"rounds": 8}),
    "ours, 4 parties by rows": ("sottovoce", COMMON | {"split": "rows", "parties": 4}),
    "ours, 2 parties by columns": ("sottovoce", COMMON | {"split": "columns", "parties": 2}),
    "diffprivlib": ("diffprivlib", COMMON),
    "diffprivlib, C = 0.01": ("diffprivlib", COMMON | {"C": 0.01}),
    "Opacus, plain loader": ("opacus", OPACUS | {"loader": "plain"}),
    "Opacus, whole batches": ("opacus", OPACUS),
}
SCALED = {
    "ours": ("sottovoce", COMMON),
    "diffprivlib": ("diffprivlib", COMMON),
    "Opacus, whole batches": ("opacus", OPACUS),
}


COLOURS = {"diffprivlib": "tab:red", "Opacus": "tab:orange", "rows": "tab:blue", "columns": "tab:cyan"}


def bandwidth() -> float:
    """Bytes a second of a sum over 400 MB, one thread: the best of five."""
    big, times = np.ones(50_000_000), []
    for _ in range(5):
        start = time.process_time()
        big.sum()
        times.append(time.process_time() - start)
    return float(big.nbytes / min(times))


def measure(case: Case, peer: str, fit: Row, repeats: int) -> Row:
    """Times, memory, and the median figures on the test part."""
    settings = [fit | {"seed": seed} for seed in range(repeats)]
    facts = {"regression": case.regression, "entry_bound": case.entry_bound}
    answer = process.ask(peer, case.X, case.y, settings, **facts)
    fits = answer["fits"]
    figures = [case.test(np.array(each["coef"]), each["intercept"]) for each in fits]
    seconds = [each["cpu"] for each in fits]
    row: Row = {
        "wall_s": min(each["seconds"] for each in fits),
        "first_s": seconds[0],
        "again_s": min(seconds[1:] or seconds),
        "peak_mb": answer["peak_mb"],
        "added_mb": answer["peak_mb"] - answer["loaded_mb"],
        "loss": float(np.median([loss for loss, _ in figures])),
        "score": float(np.median([score for _, score in figures])),
    }
    return row | {name: fits[0][name] for name in ("solver", "rounds", "bytes") if name in fits[0]}


def bytes_of(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if is_sparse(X) else int(X.nbytes)


def sparse_case(records: int, features: int, per_row: int) -> Case:
    """Rows with so many ones at random places, divided by the norm; labels from 50 of the columns."""
    r = np.random.default_rng(0)
    columns = np.sort(r.integers(features, size=(records, per_row), dtype=np.int32), axis=1)
    X = sp.csr_matrix(
        (np.ones(columns.size), columns.ravel(), np.arange(0, columns.size + 1, per_row)), (records, features)
    )
    X.sum_duplicates()
    X.data = np.full(X.nnz, per_row**-0.5)
    w = np.zeros(features)
    w[:: max(1, features // 50)] = 20 * r.standard_normal(len(w[:: max(1, features // 50)]))
    y = np.where(r.random(records) < 1 / (1 + np.exp(-np.asarray(X @ w))), 1.0, -1.0)
    stop = int(0.8 * records)
    norms = (0.5**0.5, 0.5**0.5)
    bound = per_row**-0.5
    return Case(f"{per_row} a row", X[:stop], y[:stop], X[stop:], y[stop:], False, bound, features // 2, norms)


def run(arguments: argparse.Namespace, kept: results.Results) -> None:
    kept.put("bandwidth", {"bytes_per_second": bandwidth()})
    print(f"bandwidth {kept.cells['bandwidth']['bytes_per_second'] / 1e9:.1f} GB/s")

    def add(table: str, at: str, name: str, case: Case, peer: str, fit: Row, repeats: int) -> None:
        if arguments.only and not any(word in (table, peer) for word in arguments.only):
            return
        try:
            row = measure(case, peer, fit, repeats)
        except process.MissingPeerError as error:
            print(f"{name}: left out, {error}")
            return
        row |= {"records": case.X.shape[0], "features": case.X.shape[1], "bytes_of_rows": bytes_of(case.X)}
        kept.put(f"{table} / {at} / {name}", row)
        print(
            f"{table:10s} {at:12s} {name:52s} first {row['first_s']:7.3f} s  again {row['again_s']:7.3f} s  "
            f"peak {row['peak_mb']:6.0f} MB (+{row['added_mb']:.0f})  loss {row['loss']:.4f}  score {row['score']:.4f}",
            flush=True,
        )

    for regression in (False, True):
        job = synthetic(regression=regression)
        for name, (peer, fit) in JOB.items():
            if not (regression and "C" in fit):
                fit = fit | ({"rate": 1.0} if regression and peer == "opacus" else {})  # it diverges at 4
                add("job", "linear" if regression else "logistic", name, job, peer, fit, 5)
    for records in (3_000, 10_000, 30_000, 100_000, 300_000):
        case = synthetic(records, 100)
        for name, (peer, fit) in SCALED.items():
            if records <= 100_000 or peer != "opacus":
                add("N", str(records), name, case, peer, fit, 2 if peer == "opacus" else 3)
    for features in (10, 30, 100, 300, 1_000):
        case = synthetic(10_000, features)
        for name, (peer, fit) in SCALED.items():
            add("d", str(features), name, case, peer, fit, 2 if peer == "opacus" else 3)
    for per_row in (3, 10, 30, 100, 300):
        case = sparse_case(30_000, 1_000, per_row)
        add("non-zeros", str(per_row), "ours", case, *SCALED["ours"], 3)
        full = replace(case, X=dense(case.X))  # diffprivlib 0.6.6 refuses sparse rows where it clips them
        add("non-zeros", str(per_row), "diffprivlib", full, *SCALED["diffprivlib"], 3)
    case = synthetic()
    for parties in (1, 2, 4, 8, 16):
        for split in ("rows", "columns"):
            if parties > 1 or split == "rows":
                add("parties", str(parties), split, case, "sottovoce", COMMON | {"split": split, "parties": parties}, 3)


def tables(cells: dict[str, Row]) -> tuple[list[str], list[str]]:
    """The logistic job for the page; the linear one, growth and parties."""
    text = [f"Memory bandwidth in this run: {cells['bandwidth']['bytes_per_second'] / 1e9:.1f} GB/s, one thread."]
    for kind, figure in (("logistic", ("log-loss", "accuracy")), ("linear", ("mean squared error", "R²"))):
        mine = cells[f"job / {kind} / ours, central"]
        rows = []
        for name in JOB:
            row = cells.get(f"job / {kind} / {name}")
            if row is not None:
                rows.append(
                    [
                        name,
                        short(row["loss"]),
                        short(row["score"]),
                        f"{row['first_s']:.2f} s",
                        f"{row['again_s']:.3f} s",
                        f"{row['again_s'] / mine['again_s']:.1f}",
                        f"{row['peak_mb']:.0f} MB",
                    ]
                )
        header = ["method", *figure, "first fit", "again", "again / ours", "peak memory"]
        text.append(f"**The 30,000 x 100 job, {kind} regression, epsilon 1**\n\n" + results.table(header, rows))
    titles = {
        "N": "Records, 100 features",
        "d": "Features, 8,000 training records",
        "non-zeros": "Non-zeros in a row of 1,000 features, 24,000 training records",
    }
    growth = [f"**{title}**\n\n" + scaling(cells, name) for name, title in titles.items()]
    rows = []
    for parties in (1, 2, 4, 8, 16):
        both = [cells.get(f"parties / {parties} / {split}") for split in ("rows", "columns")]
        told = [
            [f"{row['again_s']:.2f} s", f"{row['bytes'] / 1e6:.2f} MB", short(row["loss"])]
            if row
            else [results.NONE] * 3
            for row in both
        ]
        rows.append([str(parties), *told[0], *told[1]])
    header = ["parties", "by rows", "sent", "log-loss", "by columns", "sent", "log-loss"]
    parties_table = "**Parties, the logistic job, all in one process**\n\n" + results.table(header, rows)
    bandwidth, logistic, linear = text
    return [logistic], [bandwidth, linear, *growth, parties_table]


def scaling(cells: dict[str, Row], table: str) -> str:
    """Time again of every method, and ours over its floor."""
    speed = cells["bandwidth"]["bytes_per_second"]
    found = {tuple(name.split(" / ")[1:]): row for name, row in cells.items() if name.startswith(f"{table} / ")}
    names = [name for name in SCALED if any(name == other for _, other in found)]
    rows = []
    for at in sorted({at for at, _ in found}, key=int):
        mine = found[at, "ours"]
        floor = mine["rounds"] * mine["bytes_of_rows"] / speed
        rows.append(
            [
                f"{mine['records'] if table == 'N' else int(at):,}",
                *(f"{found[at, name]['again_s']:.3f} s" if (at, name) in found else results.NONE for name in names),
                *(f"+{found[at, name]['added_mb']:.0f}" if (at, name) in found else results.NONE for name in names),
                *(short(found[at, name]["loss"]) if (at, name) in found else results.NONE for name in names),
                f"`{mine['solver']}`, {mine['rounds']}",
                f"{floor * 1e3:.1f} ms",
                f"{mine['again_s'] / floor:.1f}",
            ]
        )
    header = [
        table,
        *names,
        *(f"{name}, MB over loading" for name in names),
        *(f"{name}, log-loss" for name in names),
        "our solver, rounds",
        "floor",
        "ours / floor",
    ]
    return results.table(header, rows)


def short(value: float) -> str:
    return f"{value:.1e}" if abs(value) > 100 else f"{value:.4f}"


def plot(cells: dict[str, Row], path: Path) -> None:
    """Time against size, all methods and the floor."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    sheet, axes = pyplot.subplots(1, 4, figsize=(15, 3.9))
    speed = cells["bandwidth"]["bytes_per_second"]
    labels = {"N": "training records (100 features)", "d": "features (8,000 records)"}
    labels |= {"non-zeros": "non-zeros a row (24,000 x 1,000)", "parties": "parties (24,000 x 100)"}
    for axis, (table, label) in zip(axes, labels.items(), strict=True):
        lines: dict[str, list[tuple[float, float]]] = {}
        for name, row in cells.items():
            if not name.startswith(f"{table} / "):
                continue
            _, at, method = name.split(" / ")
            place = row["records"] if table == "N" else float(at)
            lines.setdefault(method, []).append((place, row["again_s"]))
            if method == "ours":
                lines.setdefault("floor of ours", []).append((place, row["rounds"] * row["bytes_of_rows"] / speed))
        for method, points in lines.items():
            style = ":" if method.startswith("floor") else "o-"
            colour = COLOURS.get(method.split(",")[0], "black")
            axis.plot(*zip(*sorted(points), strict=True), style, color=colour, markersize=4, label=method)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("CPU seconds a fit, again")
    sheet.tight_layout()
    sheet.savefig(path, dpi=120)


def main() -> None:
    parser = results.parser(__doc__, "speed")
    parser.add_argument("--only", nargs="+", help="job, N, d, non-zeros, parties, or the name of a library")
    arguments = parser.parse_args()
    kept = results.Results(arguments.results)
    if not results.shown("speed", arguments, kept, tables, plot):
        run(arguments, kept)


if __name__ == "__main__":
    main()
