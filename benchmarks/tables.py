"""adult from its raw table with a schema alone: `python benchmarks/tables.py`, with `SOTTOVOCE_DATA` set.

Numbers with loose public ranges, categories with the levels of the documentation, missing cells a level of their own,
the sampling weight no feature. The default solver, nothing tuned; test log-loss and accuracy, means over the seeds.
Then the same with the range of every number bought from the same budget, and what the worst of them cuts.
`--wide 100000` has 40 columns of 100 levels each, 4,000 features: the memory that a fit, predictions and the encoded
matrix take (the peak of what Python and NumPy allocate beyond the table) as multiples of the codes, four bytes for each
cell, and the time of a second run that is not watched. With `--dense` the same of rows with all their zeros.
`--codes` has, of 1,000,000 codes and 5,000 levels, the time to find each one's level beside `pandas.Categorical`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import timeit
import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.data import schema as schemas
from sottovoce.data.column_kinds import Number
from sottovoce.data.files import read_columns
from sottovoce.lab.datasets import ADULT_CATEGORIES, ADULT_NUMBERS

ADULT = sv.Schema(
    {name: {"range": pair} for name, pair in ADULT_NUMBERS.items() if name != "fnlwgt"}
    | {name: {"levels": listed.split(), "missing": True} for name, listed in ADULT_CATEGORIES.items()}
    | {"sex": {"yes": "Male", "no": "Female"}, "income": {"levels": ["<=50K", ">50K"]}},
    label="income",
    identifiers=["fnlwgt"],
)


BOUGHT = ADULT.with_ranges(Number(name) for name, column in ADULT.columns.items() if isinstance(column, Number))


def most_cut(model: sv.PrivateLogisticRegression, table: Path) -> float:
    """Of the columns whose ranges were bought, the largest share of test cells outside."""
    cells = read_columns(table)
    values = {name: np.asarray(cells[name], dtype=np.float64) for name in model.ranges_}
    return max(float(np.mean((values[n] < low) | (values[n] > high))) for n, (low, high) in model.ranges_.items())


def scored(model: sv.PrivateLogisticRegression, cells: Mapping[str, Any]) -> tuple[float, float]:
    """Test log-loss and accuracy."""
    positive = cells["income"] == model.classes_[1]
    logs = model.predict_log_proba(cells)
    loss = -np.where(positive, logs[:, 1], logs[:, 0]).mean()
    return float(loss), float(np.mean((logs[:, 1] > logs[:, 0]) == positive))


def compare_codes(count: int = 1_000_000, most: int = 5_000) -> None:
    """Best of three: the level of each cell, and the same by pandas; codes are texts or whole numbers."""
    drawn = np.random.default_rng(0).integers(0, most, count)
    codes = [f"{chr(65 + place // 200)}{place % 200:03d}" for place in range(most)]
    texts = np.array([f"{code}.{tail}" for code in codes for tail in range(4)], dtype=object)
    groups = {f"g{first}": [f"{codes[first]}-{codes[first + 9]}"] for first in range(0, most, 10)}
    whole = np.array(codes, dtype=object)[drawn]
    cases: dict[str, tuple[dict[str, Any], Any, Any]] = {
        "levels of texts": ({"levels": codes}, whole, codes),
        "levels of whole numbers": ({"levels": list(range(most))}, drawn, range(most)),
        "prefixes of 20,000 codes": ({"levels": codes, "prefix": 4}, texts[4 * drawn + np.arange(count) % 4], texts),
        "500 groups by ranges": ({"groups": groups}, whole, codes),
    }
    for name, (entry, cells, known) in cases.items():
        book = sv.Schema({"code": entry}).columns["code"].book
        assert (book.places(cells) >= 0).all()
        own = min(timeit.repeat(lambda book=book, cells=cells: book.places(cells), number=1, repeat=3))
        peer = min(timeit.repeat(lambda k=known, c=cells: pd.Categorical(c, categories=list(k)), number=1, repeat=3))
        print(f"{name}: {own:.3f} s, {own / peer:.2f} of pandas.Categorical ({peer:.3f} s)")


def one_hot(records: int, *, dense: bool) -> None:
    """Memory as multiples of the codes, and seconds."""
    width, most = 40, 100
    if dense:
        schemas.MOST_FILLED = 0.0
    rng = np.random.default_rng(0)
    weights, codes = rng.standard_normal((width, most)) * 0.3, rng.integers(0, most, (width, records), dtype=np.int16)
    score = sum(own[level] for own, level in zip(weights, codes, strict=True))
    labels = (score + rng.logistic(size=records) > 0).astype(np.int64)
    table = pd.DataFrame({f"c{place}": pd.Categorical(own) for place, own in enumerate(codes)} | {"y": labels})
    entries = {name: {"levels": list(range(most))} for name in table if name != "y"}
    schema = sv.Schema(entries | {"y": {"levels": [0, 1]}}, label="y")
    model = sv.PrivateLogisticRegression(1.0, schema=schema, insecure_seed=1)
    schema.encode(table.iloc[:3000])  # compiles
    model.fit(table.iloc[:3000])
    size = 4 * width * records
    print(f"{records:,} x {len(schema.feature_names):,}, {width} columns; codes of four bytes {size / 1e6:.1f} MB")
    works: dict[str, Callable[[], Any]] = {
        "fit": lambda: model.fit(table),
        "predict_proba": lambda: model.predict_proba(table),
        "encode": lambda: schema.encode(table),
    }
    for name, work in works.items():
        tracemalloc.start()
        work()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        seconds = timeit.timeit(work, number=1)
        print(f"{name}: peak {peak / 1e6:.1f} MB, {peak / size:.2f} of the codes; {seconds:.2f} s")
    encoded = schema.encode(table)
    if sp.issparse(encoded):
        held = sum(array.nbytes for array in (encoded.data, encoded.indices, encoded.indptr))
        kept = schema.rows(table).nbytes
        print(f"encoded: a CSR matrix {held / size:.2f} of the codes; what a party keeps {kept / size:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--codes", action="store_true")
    parser.add_argument("--wide", type=int, metavar="RECORDS")
    parser.add_argument("--dense", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # a seed voids the guarantee, and says so
    if arguments.wide is not None:
        one_hot(arguments.wide, dense=arguments.dense)
        return
    if arguments.codes:
        compare_codes()
        return
    folder = Path(os.environ["SOTTOVOCE_DATA"]) / "adult"
    print(f"{len(ADULT.columns)} columns, {len(ADULT.feature_names)} features, row norm {ADULT.row_norm:.3g}")
    for epsilon, ranges in itertools.product(arguments.epsilon, ("declared", "bought")):
        found, cut, schema = [], [], ADULT if ranges == "declared" else BOUGHT
        for seed in range(arguments.runs):
            model = sv.PrivateLogisticRegression(epsilon, schema=schema, insecure_seed=seed)
            found.append(scored(model.fit(folder / "train.csv.xz"), read_columns(folder / "test.csv.xz")))
            if schema is BOUGHT:
                cut.append(most_cut(model, folder / "test.csv.xz"))
        loss, accuracy = np.mean(found, axis=0)
        said = f"epsilon {epsilon:g}, {model.plan_.algorithm}, ranges {ranges}"
        worst = f", worst column cut {np.mean(cut):.4f}" if cut else ""
        print(f"{said}: test log-loss {loss:.4f}, accuracy {accuracy:.4f}{worst}")


if __name__ == "__main__":
    main()
