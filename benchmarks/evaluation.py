"""Coverage, width and bias of private evaluations: `python benchmarks/evaluation.py`.

Of each set of records a model is fitted to one half at epsilon 1. The other half is the population: test parts are
drawn from it with replacement, and `sottovoce.evaluate` evaluates one. Cells are sums over records, so those of the
next parts are made of how often each record was drawn, with noise of the same size, and estimated as the first one's;
the command stops if the first one's are no such sums. For every metric the table has the share of 95% intervals that
hold the value of the whole population, their mean width, and the bias in widths; and in how many parts a value was
outside its own interval, or scores were said to lie beyond the nodes.

With `--classes` the model is that of `benchmarks/classes.py` at epsilon 1, of seven classes. Recall, precision and
confusion are means over the classes, and over the cells of the confusion matrix; of a recall that cannot be told there
is no error, and the bias is the mean of the plain errors.

With `--times` the model is that of `benchmarks/survival.py` at epsilon 1, of times to an event; `--rare` has few
events, `--often` many. The concordance of the population is Harrell's, over its exact times.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from typing import Any

import numpy as np
from classes import CLASSES, TRAINING, people
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack
from scipy.special import log_softmax
from sklearn.metrics import roc_auc_score
from survival import COVARIATES, PEOPLE, PERIODS, made_up

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms.evaluation import LABELS, RESIDUALS, nodes_of
from sottovoce.algorithms.evaluation.estimates import LARGEST_LOSS, Metric
from sottovoce.errors import RepeatedFitWarning
from sottovoce.estimators.evaluation import estimate_metrics
from sottovoce.estimators.times import concordance

Array = NDArray[np.float64]
CALIFORNIA = ([0, 1, 0, 0, 0, 0, 32, -125], [15, 52, 20, 5, 10_000, 10, 42, -114])


def fitted(name: str, rng: np.random.Generator) -> tuple[Any, Any, NDArray[Any]]:
    """A model of one half of a set, and the other half."""
    data = sv.load(name, split="all")
    order = rng.permutation(len(data.y))
    training, test = np.array_split(order, 2)
    if name == "california_housing":
        model: Any = sv.PrivateRidge(1.0, 1e-6, feature_ranges=CALIFORNIA, label_bound=(0.0, 5.0), insecure_seed=1)
    else:
        bounds: dict[str, Any] = {"row_norm": data.row_norm}
        if data.feature_ranges is not None:
            bounds = {"feature_ranges": data.feature_ranges}
        model = sv.PrivateLogisticRegression(1.0, 1e-6, classes=np.unique(data.y), insecure_seed=1, **bounds)
    return model.fit(data.X[training], data.y[training]), data.X[test], data.y[test]


def spread_out(places: NDArray[np.int64], t: Array, size: int, weights: Array | float = 1.0) -> Any:
    """The cells of each record by itself, a column for each."""
    records = np.tile(np.arange(len(t)), 2)
    shares = np.concatenate([(1 - t) * weights, t * weights])
    return csr_matrix((shares, (np.concatenate([places, places + 1]), records)), shape=(size, len(t)))


def of_classes(result: sv.Evaluation, model: Any, scores: Array, y: NDArray[Any]) -> tuple[dict[str, float], Any]:
    """The metrics of the population, and the cells of each of its records."""
    positive, right = y == model.classes_[1], (scores > 0) == (y == model.classes_[1])
    loss = np.logaddexp(0.0, -np.where(positive, scores, -scores))
    nodes = nodes_of(result.plan_.numbers)
    places, t = nodes.shares(scores)
    true = {
        "accuracy": right.mean(),
        "auc": roc_auc_score(positive, scores),
        "log_loss": np.minimum(loss, LARGEST_LOSS).mean(),
        "brier": ((1 - np.exp(-loss)) ** 2).mean(),
        "recall": right[positive].mean(),
        "precision": right[scores > 0].mean(),
        "specificity": right[~positive].mean(),
    }
    return true, spread_out(np.where(positive, places + len(nodes), places), t, 2 * len(nodes))


def of_numbers(scores: Array, y: Array, low: float, high: float) -> tuple[dict[str, float], Any]:
    """The same of a regression whose labels are between these."""
    half = (high - low) / 2
    y = (np.clip(y, low, high) - low) / half - 1
    residuals = np.minimum(np.abs((scores - low) / half - 1 - y), 1.0)
    square = residuals**2
    true = {
        "mean_squared_error": half**2 * square.mean(),
        "mean_absolute_error": half * residuals.mean(),
        "r2": 1 - square.mean() / y.var(),
    }
    labels = [spread_out(*LABELS.shares(y), len(LABELS), weights) for weights in (1 - square, square)]
    sizes = spread_out(*RESIDUALS.shares(residuals), len(RESIDUALS))
    return true, vstack([sizes, *labels, csr_matrix(y), csr_matrix(y**2)]).tocsr()


def cover(name: str, arguments: argparse.Namespace, rng: np.random.Generator) -> None:
    """A line for each size of test parts, epsilon and metric."""
    model, X, y = fitted(name, rng)
    scores, count = np.ravel(model.scores(X)), len(y)
    for records, epsilon in itertools.product(arguments.records, arguments.epsilon):
        chosen = rng.integers(count, size=records)
        result = sv.evaluate(model, X[chosen], y[chosen], epsilon=epsilon, delta=1e-6)
        plan = result.plan_
        numbers = (plan.bounds.label_low, plan.bounds.label_high)
        true, cells = of_numbers(scores, y, *numbers) if plan.classes is None else of_classes(result, model, scores, y)
        drawn = cells @ np.bincount(chosen, minlength=count)
        assert (np.abs(result.cells - drawn[: len(result.cells)]) < 7 * result.noise).all(), "other cells"
        print(f"{name}, n = {records}, epsilon {epsilon:g}: {cells.shape[0]} cells", end="")
        tell(result, true, cells, arguments.repeats, rng)


def tell(result: sv.Evaluation, true: dict[str, float], cells: Any, repeats: int, rng: np.random.Generator) -> None:
    """Coverage, width and bias of test parts whose cells are sums over records drawn from those of the population."""
    found: dict[str, list[tuple[float, ...]]] = {metric: [] for metric in true}
    plan, count, beyond = result.plan_, cells.shape[1], 0
    noise = plan.releases[0].std * math.sqrt(plan.channel.variance)
    for _ in range(repeats):
        drawn = cells @ rng.multinomial(plan.records, np.full(count, 1 / count))
        told = estimate_metrics(plan, drawn + noise * rng.standard_normal(len(drawn)), result.privacy_)
        beyond += bool(told.beyond)
        for metric, value in true.items():
            own = told[metric]
            outside = not (math.isnan(own.value) or own.low <= own.value <= own.high)
            found[metric].append((own.low <= value <= own.high, own.width, own.value - value, outside))
    print(f", said to lie beyond in {beyond}" if beyond else "")
    for metric, rows in found.items():
        held, width, error, outside = np.array(rows, dtype=float).T
        bias = np.nanmean(error) / width.mean()
        print(
            f"   {metric:22}{held.mean():7.3f}{width.mean():9.4f}{bias:+7.2f}"
            + (f"   outside its interval in {outside.sum():.0f}" if outside.any() else ""),
            flush=True,
        )


def times(arguments: argparse.Namespace, rng: np.random.Generator) -> None:
    """Of times to an event, at both sizes of test parts."""
    X, y, _ = made_up(0.01 if arguments.rare else 1.0 if arguments.often else 0.1, test=20_000)
    ranges = ([-1.0] * COVARIATES, [1.0] * COVARIATES)
    model = sv.PrivateCoxRegressor(1.0, 1e-6, periods=PERIODS, feature_ranges=ranges, insecure_seed=1)
    model.fit(X[:PEOPLE], y[:PEOPLE])
    X, y = X[PEOPLE:], y[PEOPLE:]
    scores, until = model.predict(X), np.minimum(y["time"], PERIODS[-1])
    event = y["event"] & (y["time"] <= PERIODS[-1])
    true = {
        "concordance": concordance(scores, event.astype(float), until),
        "observed_to_predicted": event.sum() / (np.exp(scores) * model.cumulative_hazard(until)).sum(),
        "events": event.mean(),
    }
    print(f"{event.mean():.1%} with an event, concordance {true['concordance']:.4f}")
    for records, epsilon in itertools.product(arguments.records, arguments.epsilon):
        chosen = rng.integers(len(y), size=records)
        result = sv.evaluate(model, X[chosen], y[chosen], epsilon=epsilon, delta=1e-6)
        plan = result.plan_
        query = algorithms.of(plan).queries(plan, plan.names[0])[0]
        steps = 2 * np.clip(np.searchsorted(query.cuts, until) - 1, 0, len(query.cuts) - 2) + event
        steps = np.where(~event & (until >= query.cuts[-1]), 2 * len(query.cuts) - 2, steps)
        places, t = query.scores.shares(scores)
        cells = spread_out(places + len(query.scores) * steps, t, query.length)
        sums = np.asarray(cells @ np.bincount(chosen, minlength=len(y))).reshape(-1, len(query.scores)).sum(axis=1)
        assert (np.abs(result.cells - sums[1::2]) < 7 * result.noise).all(), "other cells"
        print(f"times, n = {records}, epsilon {epsilon:g}: {query.length} cells", end="")
        tell(result, true, cells, arguments.repeats, rng)


def several_truth(model: Any, X: Array, y: NDArray[np.int64]) -> dict[str, Array]:
    """The metrics of all test people."""
    logs = log_softmax(model.decision_function(X), axis=1)
    counts = np.zeros((CLASSES, CLASSES))
    np.add.at(counts, (y, logs.argmax(axis=1)), 1 / len(y))
    right = np.diag(counts)
    return {
        "accuracy": np.array([right.sum()]),
        "log_loss": np.array([np.minimum(-logs[np.arange(len(y)), y], LARGEST_LOSS).mean()]),
        "recall": right / counts.sum(axis=1),
        "precision": right / counts.sum(axis=0),
        "confusion": counts.ravel(),
    }


def several_found(result: sv.Evaluation) -> dict[str, list[Metric]]:
    """The same of an evaluation."""
    each = result.by_class.values()
    return {
        **{name: [result[name]] for name in ("accuracy", "log_loss")},
        **{name: [metrics[name] for metrics in each] for name in ("recall", "precision")},
        "confusion": [metric for row in result.confusion for metric in row],
    }


def several(arguments: argparse.Namespace, rng: np.random.Generator) -> None:
    """Coverage, width and bias of seven classes."""
    X, y = people(np.random.default_rng(0))
    model = sv.PrivateLogisticRegression(
        1.0, 1e-6, row_norm=math.sqrt(12), classes=range(CLASSES), insecure_seed=1
    ).fit(X[:TRAINING], y[:TRAINING])
    X, y = X[TRAINING:], y[TRAINING:]
    true = several_truth(model, X, y)
    print("coverage, mean width, bias (its error), share that is told")
    for records, epsilon in itertools.product((2_000, 16_000), (0.1, 0.5, 1.0)):
        found: dict[str, list[Array]] = {name: [] for name in true}
        for _ in range(arguments.repeats):
            chosen = rng.integers(len(y), size=records)
            parts = [(X[part], y[part]) for part in np.array_split(chosen, arguments.parties)]
            data = parts[0] if len(parts) == 1 else (sv.Federation.by_rows(parts),)
            for name, metrics in several_found(sv.evaluate(model, *data, epsilon=epsilon)).items():
                values, low, high = (np.array([getattr(m, n) for m in metrics]) for n in ("value", "low", "high"))
                held = (low <= true[name]) & (true[name] <= high)
                found[name].append(np.array([held, high - low, values - true[name]]))
        print(f"{CLASSES} classes, n = {records}, epsilon {epsilon}")
        for name, numbers in found.items():
            held, width, error = np.transpose(numbers, (1, 0, 2))
            told = np.isfinite(error)
            bias = error[told].mean() if told.any() else math.nan
            spread = np.std(error[told]) / math.sqrt(max(told.sum(), 1))
            print(
                f"   {name:9s} {held.mean():.3f} (least {held.mean(axis=0).min():.3f})  {width.mean():.3f}  "
                f"{bias:+.4f} ({spread:.4f})  {told.mean():.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["adult", "electricity", "phishing", "california_housing"])
    parser.add_argument("--records", type=int, nargs="+", default=[2_000, 20_000, 200_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--repeats", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parties", type=int, default=1, help="of classes: split each test part by rows")
    parser.add_argument("--classes", action="store_true", help="seven classes")
    parser.add_argument("--times", action="store_true", help="times to an event")
    parser.add_argument("--rare", action="store_true", help="of times: few events")
    parser.add_argument("--often", action="store_true", help="of times: few without")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RepeatedFitWarning)
    rng = np.random.default_rng(arguments.seed)
    if arguments.classes:
        several(arguments, rng)
        return
    print("coverage, mean width, bias in widths")
    if arguments.times:
        arguments.records = arguments.records[:2]
        times(arguments, rng)
        return
    for name in arguments.sets:
        cover(name, arguments, rng)


if __name__ == "__main__":
    main()
