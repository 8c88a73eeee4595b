"""ADMM sharing over columns without privacy: `python benchmarks/admm.py`.

published: a9a at two parties (66 + 57 columns), rho 1, lambda 0.001 as Hu et al. (2019) scale it: the sum of the losses
plus lambda |x|^2, which is alpha = 2 lambda / N here. Their bias is a column of the first party and is penalised; here
it is not, which moves the least objective by 5e-8. A gap is F(w) - F* of a record, F* by Newton's method. An epoch of
theirs updates x, z and y in this order from 0 on, so their first leaves x = 0: after their epoch t, x was updated t - 1
times, and that many are run. The log-loss on the test set stands beside the one their code wrote down.
similar: eight parties, whose columns are every eighth; the published update, and the rule.
central: the same model as one holder of all columns finds, at two and eight parties.
speed: an epoch through the coordinator, beside the products D_m x, D_m'r of all parties and one vectorised Newton step
for z: processor time of the one thread that does everything. Parties are asked one after the other, so their times add;
each sends a number for every record, which is written, framed, checked and added whatever its columns are.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import json
import math
import time
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.algorithms import Solution, make_plan, of
from sottovoce.data.bounds import Bounds
from sottovoce.federation.coordinator import Progress
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.solvers import ADMM

Array = NDArray[np.float64]
LAMBDA = 0.001
PUBLISHED = {"rho": 1.0, "proximal": 0.0, "relaxation": 1.0, "tolerance": 0.0}
THEIRS = {50: 0.3251, 100: 0.3243}  # log-loss on the test set
GAPS = {50: 3e-3, 100: 7e-4}
RELAXED_GAP, SIMILAR_GAP, CENTRAL_ERROR = 2e-4, 1e-4, 1e-6
SLOWEST = 2.5  # times the floor


def fit(
    parts: list[Any],
    y: Array,
    loss: str,
    penalty: str,
    parameters: dict[str, float],
    progress: Progress | None = None,
    **options: float,
) -> tuple[Plan, Solution, int]:
    """(plan, solution, epochs) of parties with these columns."""
    classification = loss == "logistic"
    federation = sv.Federation.by_columns(parts, y)
    problem = Problem(
        loss=Named(name=loss),
        regulariser=Named(name=penalty, parameters=parameters),
        split="columns",
        parties=tuple((name, len(y)) for name in federation.transport.parties),
        features=sum(part.shape[1] for part in parts),
        columns=tuple(part.shape[1] for part in parts),
        bounds=Bounds.declare(),
        epsilon=math.inf,
        delta=1e-5,
        classes=(-1, 1) if classification else None,
    )
    plan = make_plan(problem, ADMM(**options), run=f"{time.time_ns()}", coin="coin")
    coordinator = federation.coordinator(without_privacy=True)
    solution, _ = coordinator.run(plan, of(plan), progress)
    return plan, solution, coordinator.asked["scores"]


class A9a:
    """The data and the objective."""

    def __init__(self) -> None:
        train, test = sv.load("a9a"), sv.load("a9a", split="test")
        self.X, self.y = sp.csr_matrix(train.X), np.where(np.asarray(train.y) > 0, 1.0, -1.0)
        self.X_test, self.y_test = sp.csr_matrix(test.X), np.where(np.asarray(test.y) > 0, 1.0, -1.0)
        self.records, self.features = self.X.shape
        self.alpha = 2 * LAMBDA / self.records
        model = sv.PrivateLogisticRegression(math.inf, alpha=self.alpha, solver="newton").fit(self.X, self.y)
        self.coef, self.intercept = model.coef_.ravel(), float(model.intercept_[0])
        self.least = self.objective(self.coef, self.intercept)

    def objective(self, coef: Array, intercept: float) -> float:
        loss = np.logaddexp(0, -self.y * (self.X @ coef + intercept)).mean()
        return float(loss + self.alpha / 2 * coef @ coef)

    def interleaved(self, parties: int) -> tuple[list[Any], NDArray[np.int64]]:
        """Every so-manieth column to each party, and the columns in the order of the parties."""
        order = [np.arange(self.features)[m::parties] for m in range(parties)]
        return [self.X[:, columns] for columns in order], np.concatenate(order)

    def row(self, part: str, form: str, parts: list[Any], order: NDArray[np.int64], **options: float) -> dict[str, Any]:
        """One run and its figures."""
        plan, solution, epochs = fit(parts, self.y, "logistic", "l2", {"alpha": self.alpha}, **options)
        found, intercept = plan.preparation.unprepare(solution.weights)
        coef = np.empty(self.features)
        coef[order] = found
        scores = self.X_test @ coef + intercept
        return {
            "part": part,
            "form": form,
            "epochs": epochs,
            "gap": self.objective(coef, intercept) - self.least,
            "log_loss": float(np.logaddexp(0, -self.y_test * scores).mean()),
            **solution.certificates,
        }


def published(data: A9a, _: argparse.Namespace) -> list[dict[str, Any]]:
    """Two parties, as published, with over-relaxation, and by the rule."""
    parts, order = [data.X[:, :66], data.X[:, 66:]], np.arange(data.features)
    rows = []
    for epoch in (50, 100):
        row = data.row("published", f"published, epoch {epoch}", parts, order, **PUBLISHED, rounds=epoch - 1)
        rows.append(row | {"limit": GAPS[epoch], "theirs": THEIRS[epoch]})
    relaxed = PUBLISHED | {"relaxation": 1.6, "rounds": 99}
    rows.append(data.row("published", "relaxed, epoch 100", parts, order, **relaxed) | {"limit": RELAXED_GAP})
    rows.append(data.row("published", "rule, 100 epochs", parts, order, rounds=100, tolerance=0.0))
    return rows


def similar(data: A9a, _: argparse.Namespace) -> list[dict[str, Any]]:
    """Eight parties."""
    parts, order = data.interleaved(8)
    return [
        data.row("similar", "published, epoch 250", parts, order, **PUBLISHED, rounds=249),
        data.row("similar", "rule, 250 epochs", parts, order, rounds=250, tolerance=0.0) | {"limit": SIMILAR_GAP},
    ]


def central(data: A9a, _: argparse.Namespace) -> list[dict[str, Any]]:
    """The largest difference of a score from the central solver's, and of the objective on a9a."""
    rows = []
    for parties in (2, 8):
        parts, order = data.interleaved(parties)
        row = data.row("central", f"a9a, logistic, {parties} parties", parts, order)
        rows.append(row | {"limit": CENTRAL_ERROR})
    housing = sv.load("california_housing", split="all")
    X, y = np.asarray(housing.X, dtype=np.float64), np.asarray(housing.y, dtype=np.float64)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    alpha = 1e-3
    models: dict[str, tuple[Any, str, dict[str, float]]] = {
        "ridge": (sv.PrivateRidge(math.inf, alpha=alpha), "l2", {"alpha": alpha}),
        "lasso": (sv.PrivateLasso(math.inf, alpha=10 * alpha), "l1", {"alpha": 10 * alpha}),
        "elastic net": (
            sv.PrivateElasticNet(math.inf, alpha=10 * alpha),
            "elastic_net",
            {"alpha": 10 * alpha, "l1_ratio": 0.5},
        ),
    }
    for name, (model, penalty, parameters) in models.items():
        model.set_params(solver="newton").fit(X, y)
        for parties in (2, 8):
            plan, solution, epochs = fit(np.array_split(X, parties, axis=1), y, "squared", penalty, parameters)
            coef, intercept = plan.preparation.unprepare(solution.weights)
            error = float(np.abs(X @ coef + intercept - model.predict(X)).max())
            row = {"part": "central", "form": f"california, {name}, {parties} parties", "epochs": epochs}
            rows.append(row | {"error": error, "limit": CENTRAL_ERROR, **solution.certificates})
    return rows


def speed(data: A9a, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The median of an epoch and of the floor, taken in turns so that both see the same machine."""
    parties = (1, 2, 4, 8)
    floors: dict[int, list[float]] = {count: [] for count in parties}
    epochs: dict[int, list[float]] = {count: [] for count in parties}
    rng = np.random.default_rng(0)
    slopes = rng.standard_normal(data.records)
    for _ in range(arguments.repeats):
        for count in parties:
            parts, _ = data.interleaved(count)
            columns = [sp.csc_matrix(part) for part in parts]
            back = [part.T for part in columns]
            weights = [rng.standard_normal(part.shape[1]) for part in parts]
            for _ in range(40):
                began = time.thread_time()
                for part, own in zip(columns, weights, strict=True):
                    part @ own
                for part in back:
                    part @ slopes
                newton_step(slopes, data.y)
                floors[count].append(time.thread_time() - began)
            ends: list[float] = []
            options = {"rounds": 50, "tolerance": 0.0}
            fit(
                parts,
                data.y,
                "logistic",
                "l2",
                {"alpha": data.alpha},
                lambda *_, ends=ends: ends.append(time.thread_time()),  # type: ignore[misc]
                **options,
            )
            epochs[count] += np.diff(ends[1:100:2])[5:].tolist()  # an epoch has two asks; the first ones factorise
    rows = []
    for count in parties:
        times, floor = np.quantile(epochs[count], [0.1, 0.5]), np.quantile(floors[count], [0.1, 0.5])
        row = {"part": "speed", "form": f"{count} parties", "epoch_ms": 1e3 * times[1], "floor_ms": 1e3 * floor[1]}
        row |= {"fast_epoch_ms": 1e3 * times[0], "fast_floor_ms": 1e3 * floor[0], "share": times[1] / floor[1]}
        rows.append(row | ({"limit": SLOWEST} if count == 2 else {}))
    return rows


def newton_step(z: Array, y: Array) -> Array:
    """One step for all records, at rho 1 and S = y = 0."""
    q = 1 / (1 + np.exp(y * z))
    return np.asarray(z - (z - y * q) / (1 + q * (1 - q)))


PARTS = {"published": published, "similar": similar, "central": central, "speed": speed}


def show(row: dict[str, Any]) -> None:
    """A line for each run."""
    line = f"{row['part']:10s} {row['form']:36s}"
    if "epochs" in row:
        line += f" epochs {row['epochs']:5d}"
    if "gap" in row:
        line += f"   gap {row['gap']:8.1e}   test log-loss {row['log_loss']:.4f}"
        line += f" (theirs {row['theirs']:.4f})" if "theirs" in row else ""
    if "error" in row:
        line += f"   largest error of a score {row['error']:8.1e}"
    if "share" in row:
        line += f" epoch {row['epoch_ms']:5.2f} ms (a tenth below {row['fast_epoch_ms']:5.2f})"
        line += f"   floor {row['floor_ms']:5.2f} ({row['fast_floor_ms']:5.2f})   times the floor {row['share']:4.2f}"
    if "limit" in row:
        line += f"   at most {row['limit']:g}"
    if "primal_residual" in row:
        line += f"   residuals {row['primal_residual']:.0e} {row['dual_residual']:.0e}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=6, help="of the measurement of speed")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    data = A9a()
    found: list[dict[str, Any]] = []
    for part in arguments.parts:
        rows = PARTS[part](data, arguments)
        found += rows
        if not arguments.json:
            for row in rows:
                show(row)
    if arguments.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
