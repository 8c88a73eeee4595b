"""Defaults, nothing tuned: test error of the estimators on public data, `python benchmarks/accuracy.py`.

Data sets come from the folder named by SOTTOVOCE_DATA, else they are downloaded. Each figure is the mean over runs with
fresh noise, delta = 1e-5, zero-out. The non-private figure is the same estimator with epsilon = inf.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import sottovoce as sv
from sottovoce.errors import InputError
from sottovoce.lab.datasets import PublicDataset

Array = NDArray[Any]
Job = tuple[Any, Array, Any, Array, dict[str, Any]]


def split(data: PublicDataset, **declared: Any) -> Job:
    """80/20, random state 0, for sets without an official split."""
    train, test, y, y_test = train_test_split(data.X, data.y, test_size=0.2, random_state=0)
    return train, y, test, y_test, declared


def a9a() -> Job:
    """Rows have at most 14 ones."""
    train, test = sv.load("a9a", split="train"), sv.load("a9a", split="test")
    return train.X, train.y, test.X, test.y, {"row_norm": math.sqrt(14)}


def adult() -> Job:
    """One-hot columns by public categories; numeric columns by public ranges."""
    train, test = sv.load("adult", split="train"), sv.load("adult", split="test")
    return (
        train.X,
        train.y,
        test.X,
        test.y,
        {"feature_ranges": train.feature_ranges, "rescale": "unit", "row_norm": math.sqrt(14)},
    )


def phishing() -> Job:
    """Rows have unit norm."""
    data = sv.load("phishing", split="all")
    return split(data, row_norm=1.0)


def electricity() -> Job:
    """Ranges are public."""
    data = sv.load("electricity", split="all")
    return split(data, feature_ranges=data.feature_ranges)


def california() -> Job:
    """Ranges a geographer would declare; labels up to 500,000 USD."""
    data = sv.load("california_housing", split="all")
    lows, highs = [0, 1, 0, 0, 0, 0, 32, -125], [15, 52, 20, 5, 10000, 10, 42, -114]
    return split(data, feature_ranges=(lows, highs), label_bound=(0, 5))


def synthetic(linear: bool) -> Callable[[], Job]:
    """30,000 x 100 unit rows with decaying columns; the first 80% train."""

    def make() -> Job:
        r = np.random.default_rng(0)
        X = r.standard_normal((30000, 100)) / np.sqrt(1 + np.arange(100))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        w = r.standard_normal(100)
        z = X @ (w * 8 / np.linalg.norm(w))
        if linear:
            y = np.clip(z / 8 + 0.1 * r.standard_normal(30000), -1, 1)
            return X[:24000], y[:24000], X[24000:], y[24000:], {"row_norm": 1.0, "label_bound": 1.0}
        y = np.where(r.random(30000) < 1 / (1 + np.exp(-1.5 * z)), 1, -1)
        return X[:24000], y[:24000], X[24000:], y[24000:], {"row_norm": 1.0}

    return make


JOBS: dict[str, tuple[Callable[[], Job], type]] = {
    "a9a": (a9a, sv.PrivateLogisticRegression),
    "adult": (adult, sv.PrivateLogisticRegression),
    "electricity": (electricity, sv.PrivateLogisticRegression),
    "phishing": (phishing, sv.PrivateLogisticRegression),
    "30,000 x 100": (synthetic(linear=False), sv.PrivateLogisticRegression),
    "california_housing": (california, sv.PrivateRidge),
    "30,000 x 100, linear": (synthetic(linear=True), sv.PrivateRidge),
}


def measure(model: Any, X: Any, y: Array) -> tuple[float, float]:
    """(log-loss, accuracy) or (mean squared error, R2)."""
    if hasattr(model, "predict_proba"):
        return float(log_loss(y, model.predict_proba(X), labels=list(model.classes_))), float(model.score(X, y))
    return float(np.mean((model.predict(X) - y) ** 2)), float(model.score(X, y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, math.inf])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--relation", default="zero-out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="draw loss against epsilon to this PNG file (needs the extra `plots`)")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.jobs:
        make, estimator = JOBS[name]
        try:
            X, y, X_test, y_test, declared = make()
        except InputError as error:
            print(f"{name}: skipped, {error}")
            continue
        for epsilon in arguments.epsilon:
            figures = [
                measure(
                    estimator(
                        epsilon=epsilon, delta=1e-5, solver=arguments.solver, relation=arguments.relation, **declared
                    ).fit(X, y),
                    X_test,
                    y_test,
                )
                for _ in range(1 if math.isinf(epsilon) else arguments.runs)
            ]
            (loss, score), spread = np.mean(figures, axis=0), np.std(figures, axis=0)[0]
            rows.append({"job": name, "epsilon": epsilon, "loss": loss, "loss_std": spread, "score": score})
            kind = ("log-loss", "accuracy") if estimator is sv.PrivateLogisticRegression else ("MSE", "R2")
            if not arguments.json:
                print(
                    f"{name:22s} epsilon {epsilon:5g}  {kind[0]} {loss:.4f} (sd {spread:.4f})  {kind[1]} {score:.4f}",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(rows, indent=2))
    if arguments.plot:
        draw(rows, arguments.plot)


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """One panel a data set: the private figure with its spread over runs, and the one without privacy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["job"] for row in rows))
    columns = min(4, len(names))
    figure, axes = plt.subplots(
        -(-len(names) // columns), columns, figsize=(3.2 * columns, 2.8 * -(-len(names) // columns)), squeeze=False
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        private = [row for row in rows if row["job"] == name and math.isfinite(row["epsilon"])]
        axis.errorbar(
            [row["epsilon"] for row in private],
            [row["loss"] for row in private],
            yerr=[row["loss_std"] for row in private],
            marker="o",
            capsize=3,
            label="private, nothing tuned",
        )
        for row in rows:
            if row["job"] == name and math.isinf(row["epsilon"]):
                axis.axhline(row["loss"], color="black", linestyle="--", label="without privacy")
        axis.set_xscale("log")
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("epsilon")
        axis.set_ylabel("test MSE" if JOBS[name][1] is sv.PrivateRidge else "test log-loss")
    axes.flat[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
