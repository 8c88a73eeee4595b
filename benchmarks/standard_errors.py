"""Coverage of the intervals of `coefficients()`: `python benchmarks/standard_errors.py`.

Made-up records first: 20,000 rows of 10 normal columns, independent or correlated by 0.7, labels by a model whose
coefficients are known; every fit draws its records anew. Then real ones (California, adult's numbers, electricity): the
truth is the model without privacy on all rows as the bounds cut them, and each fit draws as many rows with replacement.
For each case: the share of 95% intervals that hold the truth, that of the worst coefficient, the share of coefficients
that are told, their mean width against that of intervals without privacy, and the root mean square errors of the
one-step estimate and of the model in units of the standard error.

`--sets clinical` has made-up tables of 20 columns as a clinic has them: 7 correlated numbers in wide ranges, and
categories with rare levels, some of which nearly follow from others; all columns are asked for, or those of `--names`.

`--sets ratios` has counts that vary more than Poisson's, with and without years of exposure, amounts, and times to an
event, also where few have one: 14 covariates, two of them correlated, seven of two values, one of these rarely the
second. Widths are against those without privacy, of times against Cox's partial likelihood.

`--columns` has the made-up records over the columns of two parties. The model is fitted in one place with the same
budget, and the openings of standard errors are played in one process: rows, levels, bits and noise as the plan has
them, without the protocol. First one real run shows what it takes, and how far its table is from the played one.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from survival import cox

import sottovoce as sv
from sottovoce.algorithms import plan_by
from sottovoce.algorithms.standard_errors import ColumnsStandardErrors, Start
from sottovoce.data.block import Block
from sottovoce.estimators.coefficients import tabulate
from sottovoce.estimators.fits import Fit
from sottovoce.lab import datasets
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure import ring

Array = NDArray[np.float64]
RECORDS, FEATURES = 20_000, 10
RATIOS = ("times", "rare times", "counts by years", "counts", "heavy counts", "amounts")


def made_up(rng: np.random.Generator, coef: Array, correlation: float, loss: str) -> tuple[Array, Array]:
    """Rows and labels; the intercept is 0.3."""
    X = rng.standard_normal((RECORDS, FEATURES)) * math.sqrt(1 - correlation)
    X += math.sqrt(correlation) * rng.standard_normal((RECORDS, 1))
    scores = X @ coef + 0.3
    if loss == "logistic":
        return X, (rng.random(RECORDS) < 1 / (1 + np.exp(-scores))).astype(float)
    return X, scores + rng.standard_normal(RECORDS)


def estimator(loss: str, epsilon: float, **bounds: Any) -> Any:
    if loss == "logistic":
        return sv.PrivateLogisticRegression(epsilon=epsilon, classes=(0, 1), standard_errors=True, **bounds)
    return sv.PrivateRidge(epsilon=epsilon, standard_errors=True, **bounds)


def report(name: str, tables: list[Any], truth: Array, plain: Array) -> None:
    """One line of figures over all fits of a case."""
    told = np.array([[row.identified for row in table] for table, _ in tables])
    numbers = np.array(
        [[(row.estimate or 0.0, row.standard_error or 1.0) for row in table] for table, _ in tables], dtype=float
    )
    estimates, errors = numbers[..., 0], numbers[..., 1]
    off = (estimates - truth) / errors
    held = np.abs(off) <= 1.96
    each = [held[told[:, j], j].mean() for j in range(len(truth)) if told[:, j].sum() >= len(tables) / 4]
    model = (np.array([weights for _, weights in tables]) - truth) / errors
    cells = [
        f"{held[told].mean():.3f}" if told.any() else "-",
        f"{min(each):.3f}" if each else "-",
        f"{told.mean():.2f}",
        f"{(errors / plain)[told].mean():.2f}" if told.any() else "-",
        f"{math.sqrt(float((off[told] ** 2).mean())):.2f}" if told.any() else "-",
        f"{math.sqrt(float((model[told] ** 2).mean())):.2f}" if told.any() else "-",
    ]
    print(f"{name:48}" + "".join(f"{cell:>9}" for cell in cells), flush=True)


def fitted(model: Any, X: Array, y: Array) -> tuple[Any, Array]:
    """The table of a fit, and its model."""
    model.fit(X, y)
    return list(model.coefficients()), np.append(model.coef_.ravel(), model.intercept_)


NUMBERS = {  # range, mean and deviation
    "age": (0, 100, 65, 16),
    "days": (0, 60, 4.4, 3),
    "labs": (0, 300, 43, 19.7),
    "procedures": (0, 6, 1.3, 1.7),
    "drugs": (1, 81, 16, 8),
    "visits": (0, 100, 0.6, 1.3),
    "diagnoses": (1, 16, 7.4, 1.9),
}
LEVELS = {  # how frequent they are
    "sex": [0.54, 0.46],
    "race": [0.76, 0.195, 0.022, 0.015, 0.006, 0.002],
    "admission": [0.53, 0.2, 0.18, 0.05, 0.03, 0.01],
    "discharge": [0.6, 0.13, 0.12, 0.08, 0.04, 0.02, 0.006, 0.003, 0.001],
    "payer": [0.4, 0.3, 0.14, 0.06, 0.05, 0.03, 0.02],
    "specialty": [0.49, 0.2, 0.12, 0.1, 0.05, 0.03, 0.007, 0.002, 0.001],
    "insulin": [0.47, 0.3, 0.12, 0.11],
    "metformin": [0.8, 0.183, 0.01, 0.007],
    "glipizide": [0.875, 0.11, 0.008, 0.007],
    "change": [0.54, 0.46],
    "treated": [0.77, 0.23],
    "a1c": [0.83, 0.08, 0.05, 0.04],
    "glucose": [0.95, 0.03, 0.015, 0.005],
}


class Clinical:
    """Tables by one law: columns share three hidden causes, and labels follow a logistic model of all columns."""

    def __init__(self) -> None:
        law = np.random.default_rng(3)
        self._loads = law.standard_normal((20, 3)) * 0.6
        self._own = np.sqrt(np.maximum(1 - (self._loads**2).sum(axis=1), 0.3))
        self.slopes = {name: law.normal() * 0.25 / spread for name, (*_, spread) in NUMBERS.items()}
        self.effects = {name: np.append(0.0, law.normal(size=len(p) - 1) * 0.4) for name, p in LEVELS.items()}
        columns: dict[str, Any] = {name: {"range": (low, high)} for name, (low, high, *_) in NUMBERS.items()}
        columns |= {name: {"levels": list(range(len(p)))} for name, p in LEVELS.items()}
        self.schema = sv.Schema(columns | {"ill": {"levels": ["no", "yes"]}}, label="ill")

    def truth(self, name: str) -> float:
        """The coefficient of a row of the table."""
        if name == "intercept":
            return -0.6 - sum(slope * NUMBERS[column][2] for column, slope in self.slopes.items())
        column, _, level = name.split(" against ")[0].partition("=")
        return float(self.effects[column][int(level)]) if level else self.slopes[column]

    def draw(self, rng: np.random.Generator, records: int) -> dict[str, Any]:
        hidden = rng.standard_normal((records, 3)) @ self._loads.T + rng.standard_normal((records, 20)) * self._own
        sizes, cells = np.sqrt((self._loads**2).sum(axis=1) + self._own**2), dict[str, Any]()
        for place, (name, (low, high, mean, spread)) in enumerate(NUMBERS.items()):
            values = np.round(mean + spread * hidden[:, place])
            cells[name] = np.clip(
                np.floor(np.exp(0.9 * hidden[:, place]) - 0.4) if name == "visits" else values, low, high
            )
        for place, (name, shares) in enumerate(LEVELS.items(), len(NUMBERS)):
            cells[name] = np.searchsorted(norm.ppf(np.cumsum(shares)[:-1]) * sizes[place], hidden[:, place])
        drugs = (cells["insulin"] > 0) | (cells["metformin"] > 0) | (cells["glipizide"] > 0)
        cells["treated"] = np.where(rng.random(records) < 0.98, drugs, cells["treated"])
        changed = (cells["insulin"] > 1) | (cells["metformin"] > 1)
        cells["change"] = np.where(rng.random(records) < 0.9, changed, cells["change"])
        scores = -0.6 + sum(slope * (cells[name] - NUMBERS[name][2]) for name, slope in self.slopes.items())
        scores += sum(effects[cells[name]] for name, effects in self.effects.items())
        return cells | {"ill": np.where(rng.random(records) < 1 / (1 + np.exp(-scores)), "yes", "no")}


def clinical(options: argparse.Namespace, epsilon: float) -> None:
    law, rng = Clinical(), np.random.default_rng(options.seed)
    given = {"schema": law.schema, "delta": 1e-6, "standard_errors": options.names or True}
    free = sv.PrivateLogisticRegression(math.inf, **given).fit(law.draw(rng, options.records)).coefficients()
    plain, names = np.array([row.standard_error for row in free]), [row.name for row in free]
    model, tables = sv.PrivateLogisticRegression(epsilon, **given), []
    for _ in range(options.fits):
        table = list(model.fit(law.draw(rng, options.records)).coefficients())
        tables.append((table, np.zeros(len(table))))
    asked = f"{', '.join(options.names)} of 20" if options.names else "20"
    report(
        f"{options.records} rows, {asked} columns, epsilon {epsilon:g}",
        tables,
        np.array([*map(law.truth, names)]),
        plain,
    )


class OfRatios:
    """Made-up people with 14 covariates, and counts, amounts or times by a law of their scores."""

    PERIODS = (0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5)

    def __init__(self, name: str) -> None:
        law = np.random.default_rng(1)
        self.name, self.coef = name, law.standard_normal(14)
        X = self.covariates(law)
        self.coef /= X.std(axis=0)
        self.coef *= (0.5 if "amounts" in name else 0.8) / (X @ self.coef).std()
        self.middle = float((X @ self.coef).mean())

    def covariates(self, rng: np.random.Generator) -> Array:
        """Seven numbers, two of them correlated, and seven that are one of two; the last is rarely the second."""
        X = rng.uniform(-1, 1, (RECORDS, 14))
        X[:, 1] = 0.7 * X[:, 0] + 0.3 * X[:, 1]
        X[:, 7:] = np.where(X[:, 7:] > 0.3, 1.0, -1.0)
        X[:, 13] = np.where(rng.random(RECORDS) < 0.05, 1.0, -1.0)
        return X

    def draw(self, rng: np.random.Generator) -> tuple[Array, Any, dict[str, Any]]:
        """Rows, labels, and what stands beside them. Times are Weibull's, counts negative binomial, amounts gamma's."""
        X = self.covariates(rng)
        rates = np.exp(X @ self.coef - self.middle)
        if "times" in self.name:
            hazard = (0.01 if "rare" in self.name else 0.1) * rates
            event = (rng.exponential(size=RECORDS) / hazard) ** (1 / 1.3)
            left = np.minimum(rng.exponential(8.0, RECORDS), 5)
            y = np.zeros(RECORDS, dtype=[("event", bool), ("time", float)])
            y["event"], y["time"] = event <= left, np.minimum(event, left)
            return X, y, {}
        if "amounts" in self.name:
            return X, rates * rng.gamma(0.8, 1 / 0.8, RECORDS), {}
        exposure = rng.uniform(0.1, 1, RECORDS) if "years" in self.name else np.ones(RECORDS)
        means, size = (0.2 if "years" in self.name else 4.0) * exposure * rates, 0.3 if "heavy" in self.name else 2.0
        given = {"exposure": exposure} if "years" in self.name else {}
        return X, rng.negative_binomial(size, size / (size + means)).astype(float), given

    def estimator(self, epsilon: float) -> Any:
        given: dict[str, Any] = {"delta": 1e-6, "feature_ranges": ([-1.0] * 14, [1.0] * 14), "standard_errors": True}
        if "times" in self.name:
            return sv.PrivateCoxRegressor(epsilon, periods=self.PERIODS, **given)
        if "amounts" in self.name:
            return sv.PrivateGammaRegressor(epsilon, label_bound=(0, 30), **given)
        most = {"exposure_bound": 1.0, "label_bound": (0, 10)} if "years" in self.name else {"label_bound": (0, 400)}
        return sv.PrivatePoissonRegressor(epsilon, **most, **given)

    @property
    def truth(self) -> Array:
        if "times" in self.name:
            return self.coef
        mean = {"years": 0.2, "amounts": 1.0}.get(self.name.split()[-1], 4.0)
        return np.append(self.coef, math.log(mean) - self.middle)

    def plain(self, rng: np.random.Generator) -> Array:
        X, y, given = self.draw(rng)
        if "times" in self.name:
            return cox(X, y)[1]
        return np.array([row.standard_error for row in self.estimator(math.inf).fit(X, y, **given).coefficients()])


def of_ratios(options: argparse.Namespace, epsilon: float) -> None:
    for name in RATIOS:
        law, rng, tables = OfRatios(name), np.random.default_rng(options.seed), list[Any]()
        plain = law.plain(np.random.default_rng(options.seed + 1))
        model = law.estimator(epsilon)
        for _ in range(options.fits):
            X, y, given = law.draw(rng)
            table = list(model.fit(X, y, **given).coefficients())
            tables.append((table, np.append(model.coef_, model.intercept_)[: len(table)]))
        report(f"{name}, epsilon {epsilon:g}", tables, law.truth, plain)


class Played:
    """What secure columns open of rows and labels: bits looked up at rounded scores, factors by levels, and noise."""

    def __init__(self, plan: Any, X: Array, y: Array, rng: np.random.Generator) -> None:
        block = Block.prepare(X, y, plan.preparation)
        self.plan, self.rows, self.positive, self.rng = plan, np.asarray(block.rows, dtype=float), y > 0, rng
        self.factors = self.projection = np.zeros(0)

    def table(self) -> list[Any]:
        """What the form makes of the openings."""
        text, values = ColumnsStandardErrors().coordinate(self.plan), {}
        ask = next(text)
        while True:
            noise = self.plan.release(ask.query).std * math.sqrt(self.plan.channel.variance)
            values = self.gram() if ask.query == "gram" else self.gradient(dict(ask.arrays))
            weights = GramMatrix(self.plan.dimension).noise_weights if ask.query == "gram" else 1.0
            try:
                ask = text.send({"sum": values + noise / weights * self.rng.standard_normal(len(values))})
            except StopIteration as stop:
                return list(tabulate(self.plan, stop.value.model, ()))

    def gram(self) -> Array:
        return np.asarray((self.rows.T @ self.rows)[np.triu_indices(self.plan.dimension)])

    def gradient(self, told: dict[str, Any]) -> Array:
        if "projection" in told:
            self.projection = np.zeros((self.plan.dimension,) * 2)
            self.projection[np.tril_indices(self.plan.dimension)] = told["projection"]
            self.projection *= 2.0 ** (ring.ROW_BITS - ring.exponent_of(self.plan) // 2 - 1)  # 1: where rows are cut
            lengths = ((self.rows @ self.projection) ** 2).sum(axis=1) * ring.CLIP_LEVELS
            self.factors = ring.factors()[np.minimum(lengths, 15 * ring.CLIP_LEVELS).astype(int)] * (lengths < 112)
        fine, half, level = 2**ring.FINE, ring.LEVELS // 2, float(told["level"][0])
        index = np.floor(self.rows @ told["weights"] / level * fine + self.rng.random(len(self.rows)))
        levels = (index + self.rng.integers(fine, size=len(index))) // fine + half // 2
        chances = told["chances"].ravel()[levels.astype(int) % half + np.where(self.positive, 0, half)]
        bits = self.rng.random(len(index)) * 2.0**ring.CHANCE_BITS < chances
        slopes = self.factors * (bits.astype(float) - self.positive) / 2.0**ring.FACTOR_BITS
        return np.asarray((self.rows.T @ slopes) @ self.projection)


def by_columns(options: argparse.Namespace, epsilon: float) -> None:
    for correlation in (0.0, 0.7):
        rng = np.random.default_rng(options.seed)
        coef, tables = rng.standard_normal(FEATURES) / math.sqrt(FEATURES), []
        for number in range(options.fits):
            X, y = made_up(rng, coef, correlation, "logistic")
            parties = sv.Federation.by_columns([X[:, :5], X[:, 5:]], y, products="secure")
            whole = estimator("logistic", epsilon, entry_bound=4.0)
            if number == 0:
                fit = Fit(whole, parties)
                problem = fit.purchases[0].problem(fit)
            model = sv.PrivateLogisticRegression(epsilon=fit.plan.epsilon, classes=(0, 1), entry_bound=4.0)
            if number == 0 and options.real:
                start = time.perf_counter()
                model = whole.fit(parties)
                print(f"a real run: {time.perf_counter() - start:.0f} s, {whole.communication_}")
            else:
                model.fit(X, y)
            found = model.coef_.ravel(), float(model.intercept_[0])
            start = Start(problem.preparation.weights_of(*found))
            plan = plan_by(ColumnsStandardErrors(), problem, start, run="run", coin="coin")
            tables.append((Played(plan, X, y, rng).table(), np.append(*found)))
            if number == 0 and options.real:
                pairs = zip(whole.coefficients(), tables[0][0], strict=True)
                off = [(one.estimate - other.estimate) / one.standard_error for one, other in pairs]
                print("real less played estimates, in standard errors:", np.round(off, 2))
        free = estimator("logistic", math.inf, entry_bound=4.0).fit(*made_up(rng, coef, correlation, "logistic"))
        plain = np.array([row.standard_error for row in free.coefficients()])
        name = f"by columns, correlated {correlation:g}, epsilon {epsilon:g}"
        report(name, tables, np.append(coef, 0.3), plain)


def real(name: str) -> tuple[str, Array, Array, dict[str, Any]]:
    """Loss, rows, labels and declared bounds of a set of real rows."""
    if name == "california":
        data = datasets.load("california_housing", split="all")
        ranges = ([0, 1, 0, 0, 0, 0, 32, -125], [15, 52, 20, 5, 10_000, 10, 42, -114])
        return "squares", data.X, data.y, {"feature_ranges": ranges, "label_bound": (0.0, 5.0)}
    if name == "electricity":
        data = datasets.load("electricity", split="all")
        return "logistic", data.X, (data.y == "UP").astype(float), {"feature_ranges": data.feature_ranges}
    data = datasets.load("adult")
    ranges = ([17, 0, 1, 0, 0, 1], [90, 1_500_000, 16, 100_000, 5_000, 99])
    return "logistic", np.asarray(data.X[:, :6]), (data.y == ">50K").astype(float), {"feature_ranges": ranges}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--sets", nargs="+", default=["made-up", "california", "adult", "electricity"])
    parser.add_argument("--names", nargs="+", default=[], help="columns of the clinical tables that are asked for")
    parser.add_argument("--records", type=int, default=55_000, help="of a clinical table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--columns", action="store_true", help="made-up records over the columns of two parties")
    parser.add_argument("--real", action="store_true", help="with --columns, one run of the protocol for each case")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    titles = ("held", "least", "told", "width", "rmse", "model's")
    print(" " * 48 + "".join(f"{title:>9}" for title in titles))
    for epsilon in options.epsilon:
        if options.columns:
            by_columns(options, epsilon)
            continue
        for loss in ("logistic", "squares") if "made-up" in options.sets else ():
            for correlation in (0.0, 0.7):
                rng = np.random.default_rng(options.seed)
                coef = rng.standard_normal(FEATURES) / math.sqrt(FEATURES)
                bounds: dict[str, Any] = {"entry_bound": 4.0}
                bounds |= {"label_bound": 8.0} if loss == "squares" else {}
                model = estimator(loss, epsilon, **bounds)
                tables = [fitted(model, *made_up(rng, coef, correlation, loss)) for _ in range(options.fits)]
                free = estimator(loss, math.inf, **bounds).fit(*made_up(rng, coef, correlation, loss))
                plain = np.array([row.standard_error for row in free.coefficients()])
                name = f"{loss}, correlated {correlation:g}, epsilon {epsilon:g}"
                report(name, tables, np.append(coef, 0.3), plain)
        if "clinical" in options.sets:
            clinical(options, epsilon)
        if "ratios" in options.sets:
            of_ratios(options, epsilon)
        for name in [name for name in options.sets if name not in ("made-up", "clinical", "ratios")]:
            loss, X, y, bounds = real(name)
            rng = np.random.default_rng(options.seed)
            free = estimator(loss, math.inf, **bounds).fit(X, y)
            truth = np.append(free.coef_.ravel(), free.intercept_)
            plain = np.array([row.standard_error for row in free.coefficients()])
            model, tables = estimator(loss, epsilon, **bounds), []
            for _ in range(options.fits):
                drawn = rng.integers(len(y), size=len(y))
                tables.append(fitted(model, X[drawn], y[drawn]))
            report(f"{name}, epsilon {epsilon:g}", tables, truth, plain)


if __name__ == "__main__":
    main()
