"""The methods of the DP-SCD paper on its data sets: panels, settings, and how they were tuned."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.errors import WireError
from sottovoce.federation.federation import Federation
from sottovoce.lab.reproduce import Setup
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import moments_noise_for
from sottovoce.privacy.events import PoissonGaussian, inside

Array = NDArray[np.float64]
Data = tuple[Any, NDArray[Any], Any, NDArray[Any]]  # training rows and labels, then those of the test

DELTA = 1e-3
LAMBDA = 1e-4
SEED = 1000


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


EPSILONS = (0.1, 0.5, 1.0, 4.0)
EPOCHS = 10
LARGEST = 8000  # records of Adult that train, the first of a seeded order
SHARES = (0.01, 0.03, 0.1)  # L / N
STEPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Clips of DP-SCD are in units of lambda / (L / N + lambda), the step of a slope of 1; those of SeqDP-SCD of the same
# with L = 1; those of DP-SGD bound a slope. Steps of SGD are those of rows of norm 1.
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "DP-SCD": {"rate": SHARES, "clip": (0.1, 0.3, 1.0, 3.0)},
    "SeqDP-SCD": {"rate": SHARES[:2], "clip": (1e-4, 1e-3, 1e-2, 1e-1)},
    "DP-SGD": {"rate": SHARES, "clip": (0.1, 0.3, 1.0), "step": STEPS},
    "SGD": {"rate": SHARES, "step": STEPS},
    "SCD": {},
}


@dataclass(frozen=True)
class Panel:
    """A data set, an estimator, what it is told, and the budgets."""

    title: str
    data: Callable[[Setup], Data]
    estimator: type[Any]
    given: dict[str, Any] = field(default_factory=dict)
    epsilons: tuple[float, ...] = EPSILONS
    epochs: int = EPOCHS

    @property
    def regression(self) -> bool:
        return self.estimator is sv.PrivateRidge

    def loss(self, model: Any, X: Any, y: Array) -> float:
        """The mean squared error, or the share of wrong labels."""
        found = model.predict(X)
        return float(np.mean((found - y) ** 2 if self.regression else found != y))


def phishing(setup: Setup) -> Data:
    """11,055 x 68, split 75/25."""
    data = setup.load("phishing", "all")
    X, X_test, y, y_test = train_test_split(data.X, data.y, test_size=0.25, random_state=42)
    X, X_test = scaled(X, X_test)
    return X, np.asarray(y), X_test, np.asarray(y_test)


def adult(setup: Setup) -> Data:
    """32,561 x 101, with an official test part; `LARGEST` records of it train."""
    train, test = setup.load("adult"), setup.load("adult", "test")
    left = ("fnlwgt", "education=")
    kept = [place for place, name in enumerate(train.feature_names) if not name.startswith(left)]
    X, X_test = scaled(*(sp.csr_matrix(part.X)[:, kept] for part in (train, test)))
    drawn = np.random.default_rng(SEED).permutation(X.shape[0])[:LARGEST]
    return X[drawn], np.asarray(train.y)[drawn], X_test, np.asarray(test.y)


def regression(X: Any, X_test: Any, y: Any, y_test: Any) -> Data:
    """Labels less the mean of those that train."""
    X, X_test = scaled(X, X_test)
    mean = float(np.mean(y))
    return X.toarray(), np.asarray(y) - mean, X_test.toarray(), np.asarray(y_test) - mean


def houses(setup: Setup) -> Data:
    """California housing, 20,640 x 8, split 75/25, in units of 100,000 USD."""
    data = setup.load("california_housing", "all")
    return regression(*train_test_split(data.X, data.y, test_size=0.25, random_state=42))


def songs(setup: Setup) -> Data:
    """YearPredictionMSD as in the authors' example: a quarter of the training part is left out."""
    data, test = setup.load("year_prediction_msd"), setup.load("year_prediction_msd", "test")
    X, _, y, _ = train_test_split(data.X, data.y, test_size=0.25, random_state=42)
    return regression(X, test.X, y, test.y)


HINGE = {"loss": "hinge"}
PANELS = {
    "ridge": Panel("California (for YearPredictionMSD), ridge", houses, sv.PrivateRidge, {"label_bound": 3.5}),
    "phishing-svm": Panel("phishing, SVM", phishing, sv.PrivateLinearSVC, HINGE),
    "phishing-logistic": Panel("phishing, logistic", phishing, sv.PrivateLogisticRegression),
    "adult-svm": Panel("Adult, 8,000 records, SVM", adult, sv.PrivateLinearSVC, HINGE),
    "adult-logistic": Panel("Adult, 8,000 records, logistic", adult, sv.PrivateLogisticRegression),
    "years": Panel("YearPredictionMSD, ridge", songs, sv.PrivateRidge, {"label_bound": 77.0}, (0.1, 1.0), 50),
}
# What `tune` found, one setting for each of the panel's epsilons, in the order of GRIDS. Those of DP-SCD for the years
# are the authors': batches of 1000, C = 0.1 and 0.5 years.
TUNED: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "ridge": {
        "DP-SCD": ((0.01, 0.3), (0.01, 0.3), (0.01, 0.3), (0.01, 1.0)),
        "SeqDP-SCD": ((0.01, 0.0001), (0.01, 0.0001), (0.01, 0.0001), (0.01, 0.0001)),
        "DP-SGD": ((0.01, 0.1, 1.0), (0.01, 0.1, 3.0), (0.01, 0.1, 3.0), (0.01, 0.1, 3.0)),
        "SGD": ((0.01, 1.0),),
    },
    "phishing-svm": {
        "DP-SCD": ((0.03, 0.1), (0.03, 3.0), (0.03, 1.0), (0.01, 1.0)),
        "SeqDP-SCD": ((0.01, 0.1), (0.01, 0.001), (0.01, 0.001), (0.01, 0.001)),
        "DP-SGD": ((0.1, 1.0, 1.0), (0.01, 1.0, 3.0), (0.01, 1.0, 3.0), (0.03, 1.0, 10.0)),
        "SGD": ((0.01, 10.0),),
    },
    "phishing-logistic": {
        "DP-SCD": ((0.03, 0.3), (0.1, 3.0), (0.03, 3.0), (0.03, 3.0)),
        "SeqDP-SCD": ((0.01, 0.1), (0.01, 0.001), (0.01, 0.001), (0.01, 0.01)),
        "DP-SGD": ((0.1, 0.3, 10.0), (0.03, 0.3, 30.0), (0.1, 1.0, 30.0), (0.03, 1.0, 30.0)),
        "SGD": ((0.03, 30.0),),
    },
    "adult-svm": {
        "DP-SCD": ((0.03, 1.0), (0.03, 3.0), (0.01, 1.0), (0.01, 1.0)),
        "SeqDP-SCD": ((0.01, 0.1), (0.01, 0.001), (0.01, 0.0001), (0.01, 0.0001)),
        "DP-SGD": ((0.1, 0.3, 10.0), (0.1, 1.0, 10.0), (0.03, 1.0, 3.0), (0.03, 1.0, 10.0)),
        "SGD": ((0.03, 10.0),),
    },
    "adult-logistic": {
        "DP-SCD": ((0.01, 0.1), (0.01, 1.0), (0.03, 3.0), (0.01, 3.0)),
        "SeqDP-SCD": ((0.01, 0.1), (0.01, 0.001), (0.01, 0.0001), (0.01, 0.0001)),
        "DP-SGD": ((0.1, 0.3, 10.0), (0.01, 0.3, 10.0), (0.01, 0.3, 10.0), (0.03, 1.0, 30.0)),
        "SGD": ((0.01, 3.0),),
    },
    "years": {"DP-SCD": ((1000 / 347_786, 0.0386), (1000 / 347_786, 0.193))},
}


@functools.lru_cache(maxsize=64)
def abadi_epsilon(epsilon: float, rate: float, rounds: int) -> float:
    """What noise that the moments accountant sets for `epsilon` truly costs: so DP-SGD gets the paper's noise."""
    event = PoissonGaussian(rate, moments_noise_for(epsilon, DELTA, rate, rounds), rounds)
    return epsilon_of([event], inside(DELTA), "zero-out")


def fitted(panel: Panel, data: Data, method: str, epsilon: float, setting: dict[str, float], **more: Any) -> Any:
    """A model by a method of the paper; its noise, if any, is what the moments accountant sets for `epsilon`."""
    (X, y), rate = data[:2], setting.get("rate", 1.0)
    rounds, unit, given = round(panel.epochs / rate), LAMBDA * len(y), dict(panel.given)
    given |= {"alpha": LAMBDA, "delta": DELTA, "relation": "zero-out", "row_norm": 1.0, "fit_intercept": False}
    if not panel.regression:
        given["classes"] = tuple(np.unique(y))
    solver: Any = sv.solvers.SCD(rounds=100)
    if method == "DP-SCD":
        solver = sv.solvers.SCD(rate=rate, rounds=rounds, clip=setting["clip"] * LAMBDA / (rate + LAMBDA))
    elif method == "SeqDP-SCD":
        clip = setting["clip"] * unit / (1 + unit)
        solver = sv.solvers.SequentialSCD(lot=max(1, round(rate * len(y))), rounds=panel.epochs, clip=clip)
    elif method == "DP-SGD":
        epsilon = abadi_epsilon(epsilon, rate, rounds)
        solver = sv.solvers.SGD(rate=rate, rounds=rounds, step=setting["step"], slope_bound=setting["clip"])
    elif method == "primal DP-SCD":
        lot = int(setting["lot"])
        solver = sv.solvers.PrimalSCD(lot=lot, clip=setting["clip"], rounds=panel.epochs * X.shape[1] // lot)
    elif method == "SGD":
        solver = sv.solvers.SGD(rate=rate, rounds=rounds, step=setting["step"])
    if method.endswith("DP-SCD"):
        given["calibration"] = "paper"
    if method in ("SCD", "SGD"):
        epsilon = math.inf
    else:
        given["insecure_seed"] = more.get("seed", SEED)
    descent = method.endswith("SGD")
    told = (Federation.central(X, y, record=True),) if descent or "record" in more else (X, y)
    with warnings.catch_warnings(action="ignore"):  # that little is learned
        model = panel.estimator(epsilon, **given, solver=solver).fit(*told)
    if descent:  # no mean, as in the paper
        *_, last = visited(model)
        model.coef_ = np.reshape(last, np.shape(model.coef_))
    return model


def tune(panel: Panel, data: Data, method: str, epsilon: float) -> dict[str, float]:
    """The setting of GRIDS with the least loss on a quarter of the training rows, after a fit of the others."""
    X, held, y, labels = train_test_split(data[0], data[1], test_size=0.25, random_state=42)
    settings = [dict(zip(GRIDS[method], values, strict=True)) for values in itertools.product(*GRIDS[method].values())]

    def loss(setting: dict[str, float]) -> float:
        try:
            return panel.loss(
                fitted(panel, (X, y, held, labels), method, epsilon, setting, seed=SEED - 1), held, labels
            )
        except WireError:  # steps so long that the weights ran away
            return math.inf

    return min(settings, key=loss)


def setting_of(name: str, data: Data, method: str, epsilon: float) -> dict[str, float]:
    """The stored setting, or what `tune` finds."""
    panel, stored = PANELS[name], TUNED.get(name, {}).get(method)
    if stored is None:
        return tune(panel, data, method, epsilon) if GRIDS[method] else {}
    values = stored[panel.epsilons.index(epsilon) if len(stored) > 1 else 0]
    return dict(zip(GRIDS[method], values, strict=True))


def visited(model: Any) -> Iterator[Array]:
    """The weights before each message: what the coordinator's text does with the released values again."""
    plan = model.plan_
    text = algorithms.of(plan).coordinate(plan)
    ask = next(text)
    for message in model.transcript_:
        if message.name == ask.query:
            if "weights" in ask.arrays:
                yield plan.unprepare(ask.arrays["weights"])[0]
            try:
                ask = text.send({message.sender: message.payload})
            except StopIteration:
                return
