"""DP-SCD (Damaskinos, Mendler-Duenner, Guerraoui, Papandreou and Parnell 2021): what it claims, and its experiment.

The claims: noise by the moments accountant, as if nobody could tell who was sampled. The paper publishes the duals, and
only those of sampled records move; so whoever sees them pays for every use.

The experiment: ridge regression on YearPredictionMSD, logistic regression and SVM on Phishing and Adult, delta = 1e-3,
epsilon 0.1 and 1. Columns are divided by their largest absolute value, rows by their norm; this reads the data, as in
the paper. Adult is without `fnlwgt` and `education`, its categories one-hot by the documentation. Phishing is split
75/25 with seed 42. The published figures are curves whose values were not recovered, so what can be compared is what
the text says of them: DP-SCD beats DP-SGD for ridge regression and the SVM and loses to it for logistic regression, and
SeqDP-SCD is worst. Penalties and grids of logistic regression and SVM were not found: lambda = 1e-4 and the settings
below stand in. DP-SGD and SeqDP-SCD have the rules of this package.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.federation.federation import Federation
from sottovoce.lab.datasets import PublicDataset
from sottovoce.lab.reproduce import Paper, PaperTable, Row, Setup, true_epsilon

Array = NDArray[np.float64]
Data = tuple[Any, NDArray[Any], Any, NDArray[Any]]  # training rows and labels, then those of the test

DELTA = 1e-3
LAMBDA = 1e-4
SEED = 1000
NOTE = f"delta = {DELTA:g} (above 1/N, as in the paper), zero-out. No published value was recovered."
CLAIMS = (  # rate, rounds, delta, claimed
    (0.01, 1000, 1e-5, 0.5),
    (0.01, 1000, 1e-5, 1.0),
    (0.01, 1000, 1e-5, 4.0),
    (0.05, 200, 1e-5, 0.5),
    (0.05, 200, 1e-5, 1.0),
    (0.05, 200, 1e-5, 4.0),
    (0.002, 5000, 1e-3, 0.5),
    (0.002, 5000, 1e-3, 1.0),
    (0.002, 5000, 1e-3, 4.0),
    (1000 / 347_786, 17_390, 1e-3, 0.1),  # the authors' example: YearPredictionMSD, 50 epochs
)
# rate, rounds and clip of the published form at epsilon 0.1 and 1, tuned for somebody who does not see the duals; clips
# in units of lambda / (rate + lambda)
TUNED: dict[tuple[str, str], tuple[tuple[float, int, float], tuple[float, int, float]]] = {
    ("phishing", "SVM"): ((0.1, 300, 1.0), (0.01, 1000, 1.0)),
    ("phishing", "logistic"): ((0.1, 300, 1.0), (0.1, 1000, 1.0)),
    ("adult", "SVM"): ((0.01, 1000, 0.3), (0.01, 1000, 1.0)),
    ("adult", "logistic"): ((0.1, 300, 1.0), (0.1, 1000, 3.0)),
}
ESTIMATORS = {"SVM": sv.PrivateLinearSVC, "logistic": sv.PrivateLogisticRegression}


def compare_dp_scd_claims(setup: Setup) -> PaperTable:
    """The true epsilon of who sees the duals, by the plans of `calibration="paper"`."""
    rows = []
    federation = Federation.central(np.ones((500, 2)), np.arange(500) % 2)
    for rate, rounds, delta, claimed in CLAIMS:
        for relation in ("zero-out", "replace-one"):
            setup.say(f"claims: rate {rate:g}, {rounds} rounds, claimed {claimed:g}, {relation}")
            model = sv.PrivateLogisticRegression(
                claimed,
                delta=delta,
                relation=relation,
                alpha=LAMBDA,
                row_norm=1.0,
                classes=(0, 1),
                solver=sv.solvers.SCD(rate=rate, rounds=rounds),
                calibration="paper",
            )
            true = true_epsilon(model, federation, "coordinator")
            at = f"rate {rate:.3g}, {rounds:,} rounds, delta {delta:g}"
            rows.append(Row(relation, at, claimed, true, "solver='scd', calibration='paper', against the coordinator"))
    heads = ("claimed", "true")
    return PaperTable("True epsilon where the duals are seen", "Epsilon", "setting", tuple(rows), heads, log=True)


def scaled(train: Any, test: Any) -> tuple[Any, Any]:
    """Columns by their largest absolute value in `train`, then every row by its norm; empty ones stay."""
    train, test = (sp.csr_matrix(part, dtype=np.float64) for part in (train, test))
    largest = np.asarray(abs(train).max(axis=0).todense()).ravel()
    columns = sp.diags(1 / np.where(largest > 0, largest, 1.0))
    found = []
    for part in (train @ columns, test @ columns):
        norms = np.sqrt(np.asarray(part.multiply(part).sum(axis=1)).ravel())
        found.append(sp.csr_matrix(sp.diags(1 / np.where(norms > 0, norms, 1.0)) @ part))
    return found[0], found[1]


def phishing(setup: Setup) -> Data:
    """11,055 x 68, split 75/25."""
    data = setup.load("phishing", "all")
    X, X_test, y, y_test = train_test_split(data.X, data.y, test_size=0.25, random_state=42)
    X, X_test = scaled(X, X_test)
    return X, np.asarray(y), X_test, np.asarray(y_test)


def adult(setup: Setup) -> Data:
    """32,561 x 101, with an official test part."""
    train, test = setup.load("adult"), setup.load("adult", "test")
    left = ("fnlwgt", "education=")
    kept = [place for place, name in enumerate(train.feature_names) if not name.startswith(left)]
    X, X_test = (sp.csr_matrix(part.X)[:, kept] for part in (train, test))
    X, X_test = scaled(X, X_test)
    return X, np.asarray(train.y), X_test, np.asarray(test.y)


MAKERS = {"phishing": phishing, "adult": adult}


def budget(epsilon: float) -> str:
    """An epsilon as a cell."""
    return "infinite" if math.isinf(epsilon) else f"{epsilon:g}"


def accuracy(name: str, kind: str, setup: Setup) -> PaperTable:
    """Test accuracy at epsilon 0.1 and 1 of DP-SCD as published, hidden duals, DP-SGD and SeqDP-SCD."""
    X, y, X_test, y_test = MAKERS[name](setup)
    given: dict[str, Any] = {"alpha": LAMBDA, "delta": DELTA, "row_norm": 1.0, "fit_intercept": False}
    given["classes"] = tuple(np.unique(y))
    estimator = ESTIMATORS[kind]
    runs = setup.of(2, 1)

    def measured(series: str, epsilon: float, how: str, **options: Any) -> Row:
        found = []
        for run in range(1 if math.isinf(epsilon) else runs):
            setup.say(f"{name}, {kind}: {series}, epsilon {epsilon:g}, run {run + 1} of {runs}")
            seed = {} if math.isinf(epsilon) else {"insecure_seed": SEED + run}
            model = estimator(epsilon, **(given | options | seed)).fit(X, y)
            found.append(float(model.score(X_test, y_test)))
        if "calibration" in options:
            true = algorithms.epsilons(model.plan_, "zero-out")["coordinator"]
            how += f", true epsilon {true:.3g}"
        spread = float(np.std(found)) if len(found) > 1 else None
        return Row(series, budget(epsilon), None, float(np.mean(found)), how, spread)

    rows = [measured("without privacy", math.inf, "solver='scd', 300 rounds", solver=sv.solvers.SCD(rounds=300))]
    for epsilon, (rate, rounds, factor) in zip((0.1, 1.0), TUNED[name, kind], strict=True):
        if setup.quick and epsilon < 1:
            continue
        clip = factor * LAMBDA / (rate + LAMBDA)
        how = f"calibration='paper', rate {rate:g}, {rounds} rounds, clip {clip:.2g}"
        tuned = sv.solvers.SCD(rate=rate, rounds=rounds, clip=clip)
        rows.append(measured("DP-SCD, claimed", epsilon, how, solver=tuned, calibration="paper"))
        rows.append(measured("hidden duals", epsilon, "solver='scd', nothing tuned", solver="scd"))
        rows.append(measured("DP-SGD", epsilon, "solver='sgd', nothing tuned", solver="sgd"))
        rows.append(measured("SeqDP-SCD", epsilon, "solver='scd-sequential', nothing tuned", solver="scd-sequential"))
    return PaperTable(f"{name}, {kind}", "Test accuracy", "epsilon", tuple(rows), note=f"lambda = {LAMBDA:g}, {NOTE}")


BATCH, PASSES = 1000, 50
CLIPS = {0.1: 0.1, 1.0: 0.5}  # by epsilon, in years


def years(setup: Setup) -> PaperTable:
    """Test error of ridge regression on the user's copy of YearPredictionMSD."""
    return ridge(setup.load("year_prediction_msd"), setup.load("year_prediction_msd", "test"), setup)


def ridge(train: PublicDataset, test: PublicDataset, setup: Setup, batch: int = BATCH) -> PaperTable:
    """The authors' example: a quarter of the training part is left out, labels less their mean, batches of 1000."""
    X, _, y, _ = train_test_split(train.X, train.y, test_size=0.25, random_state=42)
    X, X_test = scaled(X, test.X)
    X, X_test = X.toarray(), X_test.toarray()
    mean = float(np.mean(y))
    y, y_test = np.asarray(y) - mean, np.asarray(test.y) - mean
    bound = max(mean - 1922, 2011 - mean)
    rate = batch / len(y)
    rounds = round(setup.of(PASSES, 2) / rate)
    given: dict[str, Any] = {"alpha": LAMBDA, "delta": DELTA, "row_norm": 1.0, "fit_intercept": False}
    given["label_bound"] = bound
    rows = []

    def add(series: str, epsilon: float, how: str, **options: Any) -> None:
        setup.say(f"YearPredictionMSD: {series}, epsilon {epsilon:g}")
        seed = {} if math.isinf(epsilon) else {"insecure_seed": SEED}
        model = sv.PrivateRidge(epsilon, **(given | options | seed)).fit(X, y)
        rows.append(Row(series, budget(epsilon), None, float(np.mean((model.predict(X_test) - y_test) ** 2)), how))

    add("without privacy", math.inf, "solver='newton'", solver="newton")
    for epsilon, clip in CLIPS.items():
        how = f"calibration='paper', batches of {batch}, {rounds:,} rounds, clip {clip:g} years"
        tuned = sv.solvers.SCD(rate=rate, rounds=rounds, clip=clip / bound)
        add("DP-SCD, claimed", epsilon, how, solver=tuned, calibration="paper")
        add("hidden duals", epsilon, "solver='scd', nothing tuned", solver="scd")
        add("DP-SGD", epsilon, "solver='sgd', nothing tuned", solver="sgd")
    note = f"{len(y):,} records, lambda = {LAMBDA:g}, {NOTE}"
    return PaperTable("YearPredictionMSD, ridge", "Test mean squared error", "epsilon", tuple(rows), note=note)


PAPER = Paper(
    "G. Damaskinos, C. Mendler-Duenner, R. Guerraoui, N. Papandreou and T. Parnell (2021), Differentially Private "
    "Stochastic Coordinate Descent.",
    {
        "claims": compare_dp_scd_claims,
        **{f"{name}-{kind.lower()}": partial(accuracy, name, kind) for name, kind in TUNED},
        "years": years,
    },
    (
        "The curves of its figures (error against epsilon, convergence, batch size and clip): their values were not "
        "recovered, and penalties and grids of logistic regression and SVM are in an appendix that was not found.",
    ),
)
