"""adult from its raw table with a schema alone: `python benchmarks/tables.py`, with `SOTTOVOCE_DATA` set.

Numbers with loose public ranges, categories with the levels of the documentation, missing cells a level of their own,
the sampling weight no feature. The default solver, nothing tuned; test log-loss and accuracy, means over the seeds.
Then the same with the range of every number bought from the same budget, and what the worst of them cuts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import sottovoce as sv
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # a seed voids the guarantee, and says so
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
