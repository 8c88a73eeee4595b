"""Curves in the place of lines, by a schema alone: `python benchmarks/shapes.py`, with `SOTTOVOCE_DATA` set.

adult (the official split), electricity and california housing (a fifth of the records for the test), each with loose
public ranges: every number a line, then every number a curve (`shape="smooth"`), of adult also with the two amounts of
capital by their logarithms, from 1 dollar. The default solver, nothing tuned.
Points are 0 for the best linear model without privacy and 100 for a constant, of the test log-loss or squared error;
below 0 is better than any linear model. Means over the seeds. With `--pairs K` also, beside the curves, products of K
hats of one number with K of another, which a schema does not have: a grid over the two, plain or of smooth bases.
`--rows P` deals the records out to P parties with secure sums, where `--colluding K` of them may collude (all others),
`--columns` the columns to two with secure products.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import itertools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression
from tables import ADULT

import sottovoce as sv
from sottovoce.data.column_kinds import Number
from sottovoce.data.curves import at_steps, smooth_basis
from sottovoce.data.files import read_columns

ELECTRICITY = sv.Schema(
    {"date": {"range": (0, 1)}, "day": {"range": (1, 7)}, "period": {"range": (0, 1)}}
    | {name: {"range": (0, 1)} for name in ("nswprice", "nswdemand", "vicprice", "vicdemand", "transfer")}
    | {"class": {"levels": ["DOWN", "UP"]}},
    label="class",
)
CALIFORNIA = sv.Schema(
    {
        "MedInc": {"range": (0, 15)},
        "HouseAge": {"range": (0, 52)},
        "AveRooms": {"range": (0, 15)},
        "AveBedrms": {"range": (0, 3)},
        "Population": {"range": (0, 6000)},
        "AveOccup": {"range": (0, 8)},
        "Latitude": {"range": (32.5, 42)},
        "Longitude": {"range": (-124.5, -114)},
        "MedHouseVal": {"range": (0, 5.00001)},
    },
    label="MedHouseVal",
)
Array = NDArray[np.float64]
Cells = Mapping[str, Any]


def split(path: Path) -> tuple[Cells, Cells]:
    """The records of one file, a fifth of them for the test."""
    cells = read_columns(path)
    count = len(next(iter(cells.values())))
    order = np.random.default_rng(0).permutation(count)
    return tuple({name: column[part] for name, column in cells.items()} for part in np.split(order, [4 * count // 5]))


def smooth(schema: sv.Schema, **changed: Any) -> sv.Schema:
    """The same with every number a curve, and with these entries in the place of theirs."""
    columns = schema.table()["columns"] | changed
    return sv.Schema(columns, label=schema.label, identifiers=schema.identifiers, shape="smooth")


def best_linear(schema: sv.Schema, train: Cells, test: Cells) -> float:
    """The test loss of a linear model without privacy or penalty, by scikit-learn."""
    low, high = (np.array(ends) for ends in schema.feature_ranges)
    own, other = ((schema.encode(cells) - (low + high) / 2) * 2 / (high - low) for cells in (train, test))
    labels, true = (np.asarray(cells[schema.label]) for cells in (train, test))
    if schema.classes is None:
        fitted = LinearRegression().fit(own, labels.astype(float))
        return float(np.mean((fitted.predict(other) - true.astype(float)) ** 2))
    logs = LogisticRegression(C=1e4, max_iter=5000).fit(own, labels).predict_log_proba(other)
    return float(-np.where(true == schema.classes[1], logs[:, 1], logs[:, 0]).mean())


def loss_of(model: Any, cells: Cells) -> float:
    """Test log-loss, or squared error."""
    labels = np.asarray(cells[model.schema_.label])
    if not hasattr(model, "classes_"):
        return float(np.mean((model.predict(cells) - labels.astype(float)) ** 2))
    logs = model.predict_log_proba(cells)
    return float(-np.where(labels == model.classes_[1], logs[:, 1], logs[:, 0]).mean())


def loss_of_constant(train: Cells, test: Cells, schema: sv.Schema) -> float:
    """Of the mean label, or of the share of the second class."""
    own, other = (np.asarray(cells[schema.label]) for cells in (train, test))
    if schema.classes is None:
        return float(np.mean((other.astype(float) - own.astype(float).mean()) ** 2))
    share, found = np.mean(own == schema.classes[1]), np.mean(other == schema.classes[1])
    return float(-found * np.log(share) - (1 - found) * np.log(1 - share))


def deal(cells: Cells, schema: sv.Schema, rows: int, *, columns: bool, colluding: int | None) -> Any:
    """The training records as the parties have them."""
    if columns:
        names = list(schema.columns)
        parts = [{name: cells[name] for name in names[place::2]} for place in (0, 1)]
        parts[0][str(schema.label)] = cells[str(schema.label)]
        return sv.Federation.by_columns(parts, schema=schema, products="secure")
    if rows > 1:
        parts = [{name: column[place::rows] for name, column in cells.items()} for place in range(rows)]
        return sv.Federation.by_rows(parts, schema=schema, sums="secure").secure_aggregation(colluding=colluding)
    return cells


LOGARITHMS = smooth(
    ADULT,
    **{"capital-gain": {"range": (1, 99_999), "scale": "log"}, "capital-loss": {"range": (1, 9_999), "scale": "log"}},
)


PAIRS = {
    "california": [("Latitude", "Longitude")],
    "adult": [("age", "hours-per-week")],
    "electricity": [("period", "nswprice"), ("period", "day")],
}


def print_pairs(name: str, schema: sv.Schema, parts: tuple[Cells, Cells], epsilon: float, arguments: Any) -> None:
    """What a pair changes, in points: of rows as arrays, whose squared norm is longer by 1, since hats sum to 1."""
    bases = {"hats": np.eye(arguments.pairs), "smooth": smooth_basis(arguments.pairs)}
    best, constant = best_linear(schema, *parts), loss_of_constant(*parts, schema)
    rows, labels = [smooth(schema).encode(cells) for cells in parts], [schema.labels(cells) for cells in parts]
    (low, high), norm = smooth(schema).feature_ranges, smooth(schema).row_norm

    def steps(cells: Cells, column: str) -> Array:
        low, high = schema.columns[column].ranges[0]
        return np.clip((np.asarray(cells[column], dtype=float) - low) / (high - low), 0, 1) * (arguments.pairs - 1)

    def points(products: list[Array], pairs: int) -> float:
        own, other = (np.hstack([part, more]) for part, more in zip(rows, products, strict=True))
        wide, losses = products[0].shape[1], []
        declared: dict[str, Any] = {"feature_ranges": (low + [-1.0] * wide, high + [1.0] * wide)}
        declared["row_norm"] = float(np.sqrt(norm**2 + pairs))
        for seed in range(arguments.runs):
            if schema.classes is None:
                ridge = sv.PrivateRidge(epsilon, label_bound=schema.label_bound, insecure_seed=seed, **declared)
                losses.append(np.mean((ridge.fit(own, labels[0]).predict(other) - labels[1]) ** 2))
                continue
            model = sv.PrivateLogisticRegression(epsilon, classes=schema.classes, insecure_seed=seed, **declared)
            logs = model.fit(own, labels[0]).predict_log_proba(other)
            losses.append(-np.where(labels[1] == model.classes_[1], logs[:, 1], logs[:, 0]).mean())
        return float(100 * (np.mean(losses) - best) / (constant - best))

    curves = points([part[:, :0] for part in rows], 0)
    for (one, two), (basis, hats) in itertools.product(PAIRS[name], bases.items()):
        products = []
        for cells in parts:
            first, second = at_steps(steps(cells, one), hats), at_steps(steps(cells, two), hats)
            products.append((first[:, :, None] * second[:, None, :]).reshape(len(first), -1))
        print(f"    epsilon {epsilon:g}, {one} x {two}, {basis}: {points(products, 1) - curves:+.1f} points")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pairs", type=int, metavar="K")
    parser.add_argument("--rows", type=int, default=1, metavar="P")
    parser.add_argument("--colluding", type=int, metavar="K")
    parser.add_argument("--columns", action="store_true")
    parser.add_argument("--sets", nargs="+", default=["adult", "electricity", "california"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # a seed voids the guarantee, and says so
    folder = Path(os.environ["SOTTOVOCE_DATA"])
    sets: dict[str, tuple[sv.Schema, Callable[[], tuple[Cells, Cells]]]] = {
        "adult": (
            ADULT,
            lambda: tuple(read_columns(folder / "adult" / f"{part}.csv.xz") for part in ("train", "test")),
        ),
        "electricity": (ELECTRICITY, lambda: split(folder / "electricity" / "data.csv.xz")),
        "california": (CALIFORNIA, lambda: split(folder / "california_housing" / "data.csv.xz")),
    }
    for name in arguments.sets:
        lines, read = sets[name]
        train, test = read()
        kind = sv.PrivateLogisticRegression if lines.classes is not None else sv.PrivateRidge

        def fitted(schema: sv.Schema, epsilon: float, seed: int, kind: Any = kind, train: Cells = train) -> Any:
            how = {"columns": arguments.columns, "colluding": arguments.colluding}
            dealt = deal(train, schema, arguments.rows, **how)
            own = None if isinstance(dealt, sv.Federation) else schema
            return kind(epsilon, schema=own, insecure_seed=seed).fit(dealt)

        if arguments.pairs:
            print(name)
            for epsilon in arguments.epsilon:
                print_pairs(name, lines, (train, test), epsilon, arguments)
            continue
        best, constant = best_linear(lines, train, test), loss_of_constant(train, test, lines)
        print(f"{name}: linear without privacy {best:.4f}, constant {constant:.4f}")
        schemas = {"linear": lines, "smooth": smooth(lines)} | (
            {"smooth, logarithms": LOGARITHMS} if lines is ADULT else {}
        )
        for shape, schema in schemas.items():
            numbers = sum(isinstance(column, Number) for column in schema.columns.values())
            print(f"  {shape}: {numbers} numbers, {len(schema.feature_names)} features, row norm {schema.row_norm:.3g}")
            for epsilon in arguments.epsilon:
                models = [fitted(schema, epsilon, seed) for seed in range(arguments.runs)]
                loss = float(np.mean([loss_of(model, test) for model in models]))
                points = 100 * (loss - best) / (constant - best)
                print(f"    epsilon {epsilon:g}, {models[0].plan_.algorithm}: loss {loss:.4f}, {points:.1f} points")


if __name__ == "__main__":
    main()
