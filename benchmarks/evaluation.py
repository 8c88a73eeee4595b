"""Coverage, width and bias of private evaluations: `python benchmarks/evaluation.py`.

A model is fitted to a9a at epsilon 1, or to a9a with 5% positives. Test parts are drawn with replacement from a9a's
test part, with 5% positives likewise; each is evaluated by `sottovoce.evaluate`, with its own noise. For every metric
the table has the share of 95% intervals that hold the value of the whole test part, their mean width (in brackets the
prototype's), and the bias with its standard error, NaN where a share could not be told in every repeat. The bias is
the mean of the errors less their linear parts in the cells, which are 0 in the mean: so 300 repeats tell it where the
errors themselves would not.

With `--classes` the model is that of `benchmarks/classes.py` at epsilon 1, of seven classes. Recall, precision and
confusion are means over the classes, and over the cells of the confusion matrix; of a recall that cannot be told there
is no error, and the bias is the mean of the plain errors.
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
from scipy.special import log_softmax
from sklearn.metrics import roc_auc_score

import sottovoce as sv
from sottovoce.algorithms.evaluation import nodes_of
from sottovoce.algorithms.evaluation.estimates import LARGEST_LOSS, ClassEstimates, Metric
from sottovoce.errors import RepeatedFitWarning

Array = NDArray[np.float64]
METRICS = ("accuracy", "auc", "log_loss", "brier", "recall")
PROTOTYPE = {  # widths, by positives, records and epsilon
    (None, 2_000, 0.1): (0.125, 0.247, 0.525, 0.104, 0.398),
    (None, 2_000, 0.5): (0.042, 0.094, 0.130, 0.029, 0.123),
    (None, 2_000, 1.0): (0.035, 0.058, 0.080, 0.021, 0.100),
    (None, 16_000, 0.1): (0.019, 0.048, 0.067, 0.014, 0.056),
    (None, 16_000, 0.5): (0.012, 0.017, 0.025, 0.007, 0.034),
    (None, 16_000, 1.0): (0.011, 0.013, 0.019, 0.006, 0.032),
    (0.05, 2_000, 0.1): (0.123, 0.861, 0.570, 0.102, 0.887),
    (0.05, 2_000, 0.5): (math.nan,) * 5,  # not tried
    (0.05, 2_000, 1.0): (0.024, 0.195, 0.084, 0.018, 0.233),
    (0.05, 16_000, 0.1): (0.016, 0.184, 0.073, 0.013, 0.195),
    (0.05, 16_000, 0.5): (math.nan,) * 5,
    (0.05, 16_000, 1.0): (0.007, 0.041, 0.019, 0.005, 0.057),
}


def thinned(data: Any, positives: float | None, rng: np.random.Generator) -> tuple[Any, Array]:
    """Rows and labels, of the positive ones so many left out that their share is `positives`."""
    keep = np.arange(len(data.y))
    if positives is not None:
        negative, positive = np.flatnonzero(data.y < 0), np.flatnonzero(data.y > 0)
        count = round(len(negative) * positives / (1 - positives))
        keep = np.concatenate([negative, rng.choice(positive, count, replace=False)])
    return data.X[keep], data.y[keep]


def chances(labels: Array, positives: float | None) -> Array:
    """Of each test record, to be drawn."""
    found = np.ones(len(labels))
    if positives is not None:
        found = np.where(labels > 0, positives / np.mean(labels > 0), (1 - positives) / np.mean(labels < 0))
    return found / found.sum()


def truth(scores: Array, labels: Array, weights: Array) -> dict[str, float]:
    """The metrics of the whole test part, its records weighted."""
    signs = np.where(labels > 0, 1.0, -1.0)
    loss = np.logaddexp(0.0, -signs * scores)
    right, positive = (scores > 0) == (labels > 0), labels > 0
    return {
        "accuracy": float(weights @ right),
        "auc": float(roc_auc_score(positive, scores, sample_weight=weights)),
        "log_loss": float(weights @ np.minimum(loss, LARGEST_LOSS)),
        "brier": float(weights @ (1 - np.exp(-loss)) ** 2),
        "recall": float(weights[positive] @ right[positive] / weights[positive].sum()),
    }


class Linear:
    """The linear parts of the metrics about the cells that test parts have in the mean."""

    def __init__(self, result: sv.Evaluation, scores: Array, labels: Array, drawn: Array) -> None:
        self.nodes, self.records = nodes_of(result.plan_.numbers), result.plan_.records
        places, t = self.nodes.shares(scores)
        places, size = np.where(labels > 0, places + len(self.nodes), places), 2 * len(self.nodes)
        self.mean = (
            np.bincount(places, drawn * (1 - t), size) + np.bincount(places + 1, drawn * t, size)
        ) * self.records
        step = 1e-4 * self.records
        both = [(self.values(self.mean + step * way), self.values(self.mean - step * way)) for way in np.eye(size)]
        self.slopes = np.array([(up - down) / (2 * step) for up, down in both])

    def values(self, cells: Array) -> Array:
        metrics = ClassEstimates(cells, 1.0, self.records, self.nodes).metrics(probabilities=True)
        return np.array([metrics[name].value for name in METRICS])

    def of(self, cells: Array) -> Array:
        """What is 0 in the mean of the errors of an evaluation with these cells."""
        return np.asarray((cells - self.mean) @ self.slopes)


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
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parties", type=int, default=1, help="split each test part among so many parties by rows")
    parser.add_argument("--classes", action="store_true", help="seven classes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RepeatedFitWarning)
    if arguments.classes:
        several(arguments, np.random.default_rng(arguments.seed))
        return
    training, test = sv.load("a9a"), sv.load("a9a", split="test")
    rng = np.random.default_rng(arguments.seed)
    models = dict[float | None, Any]()
    for positives in (None, 0.05):
        model = sv.PrivateLogisticRegression(epsilon=1.0, row_norm=training.row_norm, classes=(-1, 1), insecure_seed=1)
        models[positives] = model.fit(*thinned(training, positives, rng))
    print("for " + ", ".join(METRICS) + ": coverage, mean width [prototype], bias (its error)")
    for (positives, records, epsilon), widths in PROTOTYPE.items():
        model, drawn = models[positives], chances(test.y, positives)
        scores = model.decision_function(test.X)
        true = np.array(list(truth(scores, test.y, drawn).values()))
        found, linear = list[Array](), None
        for _ in range(arguments.repeats):
            chosen = rng.choice(len(test.y), records, p=drawn)
            parts = [(test.X[part], test.y[part]) for part in np.array_split(chosen, arguments.parties)]
            data = parts[0] if len(parts) == 1 else (sv.Federation.by_rows(parts),)
            result = sv.evaluate(model, *data, epsilon=epsilon)
            linear = linear or Linear(result, scores, test.y, drawn)
            metrics = [result[name] for name in METRICS]
            values, low, high = (np.array([getattr(m, name) for m in metrics]) for name in ("value", "low", "high"))
            found.append(
                np.array([(low <= true) & (true <= high), high - low, values - true - linear.of(result.cells)])
            )
        coverage, width, bias = np.mean(found, axis=0)
        error = np.std([each[2] for each in found], axis=0) / math.sqrt(len(found))
        print(f"{'24%' if positives is None else '5%'} positives, n = {records}, epsilon {epsilon}")
        for each in zip(METRICS, coverage, width, widths, bias, error, strict=True):
            print("   {:9s} {:.3f}  {:.3f} [{:.3f}]  {:+.4f} ({:.4f})".format(*each), flush=True)


if __name__ == "__main__":
    main()
