"""What data split by columns cost without cryptography: `python benchmarks/columns.py`.

a9a (66 + 57 columns), phishing (34 + 34) and the California houses (4 + 4, ridge), labels known to both parties,
zero-out, delta 1e-5. For each epsilon against the coordinator: test log-loss (California: mean squared error) of the
solvers over columns, beside the better of the parties alone (its own columns, without privacy and with the whole
budget) and the model of all columns in one place (private `newton`, and without privacy). Means over `--runs` seeds.

Bounds are what the encodings say: a row of a9a has one 1 for each of 14 attributes, 8 with the first party; a row of
phishing has 30 equal entries and length 1, and each party declares half of its square; houses have public ranges.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import sottovoce as sv

Array = NDArray[np.float64]

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
DELTA = 1e-5
SOLVERS: dict[str, dict[str, Any]] = {
    "persistent": {"solver": "admm"},
    "fresh": {"solver": sv.solvers.ADMM(rows="fresh")},
    "fdml": {"solver": "fdml"},
    "score": {"solver": "score"},
}


@dataclass(frozen=True)
class Case:
    """A data set, split by columns."""

    name: str
    parts: tuple[Any, ...]
    y: Array
    test_parts: tuple[Any, ...]
    test_y: Array
    declared: dict[str, Any]
    norms: tuple[float, ...] | None

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Each party's rows, of the training and of the test set."""
        rows = [tuple(X.tocsr() if sp.issparse(X) else X for X in parts) for parts in (self.parts, self.test_parts)]
        return list(zip(*rows, strict=True))

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers."""
        return "label_bound" in self.declared

    def model(self, epsilon: float, seed: int | None, **options: Any) -> Any:
        """An estimator with the declared bounds."""
        kind = sv.PrivateRidge if self.regression else sv.PrivateLogisticRegression
        declared = self.declared | options | ({} if self.regression else {"classes": (-1, 1)})
        return kind(epsilon=epsilon, delta=DELTA, insecure_seed=seed, **declared)

    def loss(self, model: Any, X: Any) -> float:
        """On the test set."""
        if self.regression:
            return float(np.mean((model.predict(X) - self.test_y) ** 2))
        return float(np.mean(np.logaddexp(0, -self.test_y * model.decision_function(X))))


def case(name: str) -> Case:
    """The data, with bounds that the encoding gives."""
    if name == "a9a":
        train, test = sv.load("a9a", split="train"), sv.load("a9a", split="test")
        X, y, Xt, yt, width = train.X.tocsc(), train.y, test.X.tocsc(), test.y, 66
        declared: dict[str, Any] = {"row_norm": math.sqrt(14), "entry_bound": 1.0}
        norms: tuple[float, ...] | None = (math.sqrt(8), math.sqrt(6))
    else:
        data = sv.load(name, split="all")
        order = np.random.default_rng(0).permutation(len(data.y))
        cut = int(0.8 * len(order))
        X, y, Xt, yt = data.X[order[:cut]], data.y[order[:cut]], data.X[order[cut:]], data.y[order[cut:]]
        if name == "phishing":
            width, norms = 34, (math.sqrt(0.5), math.sqrt(0.5))
            declared = {"row_norm": 1.0, "entry_bound": 1 / math.sqrt(30) * (1 + 1e-3)}
            X, Xt = X.tocsc(), Xt.tocsc()
        else:
            width, norms = 4, None
            lows, highs = [0, 0, 0, 0, 0, 0, 32, -125], [15, 52, 20, 5, 5000, 10, 42, -114]
            declared = {"feature_ranges": (lows, highs), "label_bound": (0.0, 5.0)}
    if name != "california_housing":
        y, yt = np.where(np.asarray(y) > 0, 1, -1), np.where(np.asarray(yt) > 0, 1, -1)
    return Case(name, (X[:, :width], X[:, width:]), y, (Xt[:, :width], Xt[:, width:]), yt, declared, norms)


def stacked(parts: tuple[Any, ...]) -> Any:
    """All columns in one place."""
    return sp.hstack(parts, format="csr") if sp.issparse(parts[0]) else np.hstack(parts)


def part_bounds(data: Case, place: int) -> dict[str, Any]:
    """What one party would declare for its own columns."""
    declared = dict(data.declared)
    if data.norms is not None:
        declared["row_norm"] = data.norms[place]
    if "feature_ranges" in declared:
        start = sum(part.shape[1] for part in data.parts[:place])
        stop = start + data.parts[place].shape[1]
        lows, highs = declared["feature_ranges"]
        declared["feature_ranges"] = (lows[start:stop], highs[start:stop])
    return declared


def references(data: Case, epsilons: list[float], runs: int) -> dict[str, list[float]]:
    """The better party alone, and all columns in one place."""
    alone = [by_newton(data, X, Xt, part_bounds(data, k), epsilons, runs) for k, (X, Xt) in enumerate(data.pairs)]
    central = by_newton(data, stacked(data.parts), stacked(data.test_parts), data.declared, epsilons, runs)
    found = {
        f"alone, {line}": [min(values) for values in zip(*(party[line] for party in alone), strict=True)]
        for line in central
    }
    return found | {f"central, {line}": values for line, values in central.items()}


def by_newton(
    data: Case, X: Any, Xt: Any, declared: dict[str, Any], epsilons: list[float], runs: int
) -> dict[str, list[float]]:
    """Test losses of `newton` on whole rows."""
    bounded = replace(data, declared=declared)
    exact = bounded.loss(bounded.model(math.inf, None, solver="newton", alpha=1e-6).fit(X, data.y), Xt)
    private = [
        [bounded.loss(bounded.model(epsilon, seed, solver="newton").fit(X, data.y), Xt) for seed in range(runs)]
        for epsilon in epsilons
    ]
    return {"not private": [exact] * len(epsilons), "private": [float(np.mean(losses)) for losses in private]}


def measured(data: Case, epsilons: list[float], runs: int, names: list[str], labels: str) -> dict[str, list[float]]:
    """The solvers over columns."""
    federation = sv.Federation.by_columns(list(data.parts), data.y, labels=labels, norms=data.norms)  # type: ignore[arg-type]
    whole = stacked(data.test_parts)
    found: dict[str, list[float]] = {}
    for name in names:
        row = []
        for epsilon in epsilons:
            models = [data.model(epsilon, seed, **SOLVERS[name]).fit(federation) for seed in range(runs)]
            row.append(float(np.mean([data.loss(model, whole) for model in models])))
        found[name] = row
    return found


def plot(everything: dict[str, Any], path: str) -> None:
    """A panel for each data set; lines without privacy are level."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(everything), figsize=(4.6 * len(everything), 4.2), squeeze=False)
    for axis, (name, found) in zip(axes[0], everything.items(), strict=True):
        for line, values in found["loss"].items():
            level = line.endswith("not private")
            style: dict[str, Any] = {"linestyle": "--" if level else "-", "linewidth": 1.2 if level else 1.8}
            if line.startswith(("alone", "central")):
                style["color"] = "tab:gray" if line.startswith("alone") else "black"
            axis.plot(found["epsilon"], values, label=line, marker=None if level else "o", markersize=4, **style)
        axis.set_xscale("log")
        axis.set_xticks(found["epsilon"], [f"{epsilon:g}" for epsilon in found["epsilon"]])
        axis.minorticks_off()
        axis.set_title(name)
        axis.set_xlabel("epsilon against the coordinator")
    axes[0][0].set_ylabel("test log-loss (California: mean squared error)")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["a9a", "phishing", "california_housing"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--labels", default="shared", choices=["shared", "public", "held"])
    parser.add_argument("--json", help="write the figures to a file")
    parser.add_argument("--plot", help="draw them to a file (needs matplotlib)")
    arguments = parser.parse_args()
    everything: dict[str, Any] = {}
    for name in arguments.data:
        data, start = case(name), time.perf_counter()
        table = references(data, arguments.epsilon, arguments.runs)
        table |= measured(data, arguments.epsilon, arguments.runs, arguments.solvers, arguments.labels)
        everything[name] = {"epsilon": arguments.epsilon, "loss": table}
        what = "mean squared error" if data.regression else "log-loss"
        print(f"\n{name}: test {what}, {arguments.runs} runs, labels {arguments.labels}")
        print(f"{'epsilon':24}" + "".join(f"{epsilon:>9g}" for epsilon in arguments.epsilon))
        for line, values in table.items():
            print(f"{line:24}" + "".join(f"{value:9.4f}" for value in values))
        print(f"({time.perf_counter() - start:.0f} s)", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(everything, indent=1), encoding="utf-8")
    if arguments.plot:
        plot(everything, arguments.plot)


if __name__ == "__main__":
    main()
