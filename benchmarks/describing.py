"""Error, width and coverage of private descriptions on adult: `python benchmarks/describing.py`.

Records are drawn with replacement from all 48,842 of adult and described by `sottovoce.describe` at epsilon 0.2, with
the noise of fixed seeds. For each kind of number the table has the share of the 95% intervals that hold the value of
all records, their mean width and the mean size of the error: of means, deviations and quantiles as shares of the
column's range. Intervals of shares are cut to [0, 1], so one that is 0 is held more often. A quantile lies between two
edges of cells: its interval is a cell wide at least, and holds more often too. With `--jitter` whole numbers are spread
over [x, x + 1), so that no value has many records. The last line has epsilon as the package charges it, and as it
follows from the normal distribution and the sensitivity alone, without a line of the package.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import norm

import sottovoce as sv
from sottovoce.algorithms.description.estimates import QUANTILES
from sottovoce.errors import RepeatedFitWarning

RANGES = {
    "age": (17, 100),
    "fnlwgt": (0, 1_500_000),
    "education_num": (1, 17),
    "capital_gain": (0, 100_000),
    "capital_loss": (0, 5_000),
    "hours_per_week": (0, 100),
}


def people(*, jitter: bool) -> tuple[pd.DataFrame, sv.Schema]:
    """All of adult, and what a code book says of it."""
    parts = [sv.load("adult", split=split) for split in ("train", "test")]
    table = pd.concat([pd.DataFrame({**part.columns, "income": part.y}) for part in parts], ignore_index=True)
    table.columns = [name.replace("-", "_") for name in table.columns]
    columns: dict[str, Any] = {}
    for name in table.columns:
        if name in RANGES:
            table[name] = table[name].astype(float)
            columns[name] = {"range": RANGES[name]}
        else:
            columns[name] = {"levels": sorted(set(table[name]) - {"?"})}
    if jitter:
        rng = np.random.default_rng(0)
        for name in ("age", "education_num", "hours_per_week"):
            table[name] += rng.random(len(table))
    table.loc[np.random.default_rng(1).random(len(table)) < 0.03, "hours_per_week"] = math.nan
    return table, sv.Schema(columns, label="income")


def truth(table: pd.DataFrame, exact: sv.Description) -> dict[tuple[str, str, str], float]:
    """The value of every number of a description: shares as they are counted without noise, the others by NumPy."""
    found = {(column, group, what): metric.value for column, group, what, metric in exact.rows()}
    for column, group, what in found:
        if column in RANGES and what in ("mean", "standard deviation", *QUANTILES):
            own = table if group == "all records" else table[table["income"] == group]
            values = own[column].dropna().clip(*RANGES[column]).to_numpy()
            if what in QUANTILES:
                found[column, group, what] = float(np.quantile(values, QUANTILES[what], method="inverted_cdf"))
            else:
                found[column, group, what] = float(values.mean() if what == "mean" else values.std())
    return found


def kind_of(column: str, what: str) -> str:
    if what in ("mean", "standard deviation", "records"):
        return what
    if what in QUANTILES:
        return "quantiles"
    if what in ("missing", "none of the levels", "beyond the range"):
        return "shares missing and unmatched"
    return "shares of the range" if column in RANGES else "shares of levels"


def cost(description: sv.Description) -> float:
    """Epsilon of this noise where a record moves the counts by sqrt(columns + numbers / 2), of two normal laws."""
    plan = description.plan_
    moved = math.sqrt(len(plan.numbers.columns) + 0.5 * sum(column.summed for column in plan.numbers.columns))
    mu = moved / plan.releases[0].std

    def over(epsilon: float) -> float:
        ends = norm.cdf(mu / 2 - epsilon / mu), math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(ends[0] - ends[1]) - plan.delta

    return float(brentq(over, 0.0, 50.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--records", type=int, default=48_842)
    parser.add_argument("--epsilon", type=float, default=0.2)
    parser.add_argument("--by", default=None)
    parser.add_argument("--parties", type=int, default=1)
    parser.add_argument("--jitter", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RepeatedFitWarning)
    table, schema = people(jitter=arguments.jitter)
    true = truth(table, sv.describe(table, epsilon=math.inf, schema=schema, by=arguments.by))
    found: dict[str, list[tuple[bool, float, float]]] = defaultdict(list)
    for seed in range(arguments.repeats):
        rng = np.random.default_rng(seed)
        drawn = table.iloc[rng.integers(len(table), size=arguments.records)]
        data: Any = drawn
        if arguments.parties > 1:
            parts = [drawn.iloc[part] for part in np.array_split(np.arange(len(drawn)), arguments.parties)]
            data = sv.Federation.by_rows(parts, schema=schema)
        told = sv.describe(data, epsilon=arguments.epsilon, schema=schema, by=arguments.by, insecure_seed=seed)
        for column, group, what, metric in told.rows():
            kind, value = kind_of(column, what), true.get((column, group, what))
            if value is None or kind == "records" or not math.isfinite(metric.value):
                continue  # ranges are cut otherwise without noise; how many are of a class follows from the draw
            unit = float(np.ptp(RANGES[column])) if kind in ("mean", "standard deviation", "quantiles") else 1.0
            error = abs(metric.value - value) / unit
            found[kind].append((metric.low <= value <= metric.high, metric.width / unit, error))
    budget = f"epsilon {arguments.epsilon:g}, delta {told.plan_.delta:g}"
    print(f"{arguments.records:,} records, {budget}, noise of a count {told.noise:.3g}")
    print(f"{'':30} coverage   width   error  numbers")
    found["all of them"] = [row for rows in found.values() for row in rows]
    for kind, rows in found.items():
        held, width, error = np.array(rows, dtype=float).mean(axis=0)
        print(f"{kind:30} {held:8.3f} {width:7.4f} {error:7.4f} {len(rows):8}")
    print(f"epsilon as charged {told.privacy_.epsilon:.5f}, by an independent accountant {cost(told):.5f}")


if __name__ == "__main__":
    main()
