"""What a plan says it will take is about what the run takes, for every solver: the same rounds, as many bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms, losses
from sottovoce.app.previews import Cost, cost_of
from support import declared

RUNS: dict[str, list[dict[str, Any]]] = {
    "newton": [{"rounds": 4}],
    "whitened": [{"rounds": 4}],
    "gradient": [{"rounds": 4}, {"rounds": 4, "calibration": "paper"}],
    "sgd": [
        {"rounds": 5, "rate": 0.3},
        {"rounds": 5, "rate": 0.3, "schedule": "one-party"},
        {"rounds": 5, "calibration": "paper"},
    ],
    "scd": [{"rounds": 5, "alpha": 0.01}, {"rounds": 5, "alpha": 0.01, "calibration": "paper"}],
    "scd-sequential": [{"rounds": 2, "lot": 7, "alpha": 0.01}],
    "scd-primal": [{"rounds": 5}, {"rounds": 5, "lot": 3}],
    "cd": [
        {"inner": 12},
        {"inner": 10},
        {"inner": 8, "rounds": 3},
        {"inner": 12, "curvatures": [0.1, 0.2, 0.3]},
        {"inner": 12, "curvature_share": 0.0},
        {"inner": 12, "calibration": "paper"},
    ],
    "greedy-cd": [{"rounds": 5}, {"rounds": 5, "curvature_share": 0.0}],
    "frank-wolfe": [
        *({"rounds": rounds, "radius": 2.0} for rounds in (1, 2, 5, 6)),
        {"rounds": 5, "radius": 2.0, "calibration": "paper"},
    ],
}
COLUMNS: dict[str, dict[str, Any]] = {
    "row norm": {},
    "caps": {"row_norm": None, "entry_bound": 0.5, "cap": 1},
    "caps above the columns": {"row_norm": None, "entry_bound": 0.5, "cap": 7},
    "few rounds": {"rounds": 2},
    "no intercept": {"fit_intercept": False},
    "held": {"labels": "held"},
    "held elsewhere": {"labels": "held", "label_party": 1, "row_norm": None, "entry_bound": 0.5},
}
CASES = [
    (name, number, parties)
    for name, runs in RUNS.items()
    for number in range(len(runs))
    for parties, split in ((1, "central"), (3, "rows"))
    if algorithms.mismatch(name, losses.get("logistic"), split) is None
]


def people(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (count, 3))
    return X, np.where(X @ [2.0, -1.0, 0.5] > 0, 1, 0)


def test_every_solver_is_here() -> None:
    by_rows = {form.name for form in algorithms.every_form() if form.splits != ("columns",)}
    assert set(RUNS) == by_rows  # the others have tests of their own


@pytest.mark.parametrize(("name", "number", "parties"), CASES)
def test_rounds_are_told_exactly_and_bytes_about(name: str, number: int, parties: int) -> None:
    options = {"epsilon": 1.0, "row_norm": 1.0, "classes": (0, 1), "insecure_seed": 3} | RUNS[name][number]
    model = sv.PrivateLogisticRegression(**declared(name, **options))
    parts = [people(40 + 7 * part, part) for part in range(parties)]
    federation = sv.Federation.central(*parts[0]) if parties == 1 else sv.Federation.by_rows(parts)
    plan = model.plan(federation)
    told = cost_of(plan, algorithms.of(plan))
    done = model.fit(federation).communication_
    assert told.rounds == done.rounds
    assert told.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.12)
    assert told.downlink_bytes == pytest.approx(done.downlink_bytes, rel=0.12)
    assert told.seconds is not None
    assert told.seconds > 0


@pytest.mark.parametrize("options", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("radius", [0.01, 30.0])
def test_by_columns_bytes_and_rounds_are_told_as_a_bound(options: dict[str, Any], radius: float) -> None:
    X, y = people(60, 0)
    asked = {"epsilon": 1.0, "row_norm": 1.0, "classes": (0, 1), "insecure_seed": 3, "rounds": 9} | options
    who = {key: asked.pop(key) for key in ("labels", "label_party") if key in asked}
    federation = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y, **who)
    fitted = sv.PrivateLogisticRegression(radius=radius, **declared("frank-wolfe", **asked)).fit(federation)
    told, done = cost_of(fitted.plan_, algorithms.of(fitted.plan_)), fitted.communication_
    assert told.rounds is not None
    assert told.uplink_bytes is not None
    assert told.downlink_bytes is not None
    assert fitted.plan_.rounds <= done.rounds <= told.rounds <= fitted.plan_.rounds + 3 + (who != {})
    assert 0.9 * done.uplink_bytes <= told.uplink_bytes < 3 * done.uplink_bytes
    assert 0.9 * done.downlink_bytes <= told.downlink_bytes < 1.5 * done.downlink_bytes


def test_by_columns_the_bound_is_reached_where_every_choice_is_new() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 2))
    federation = sv.Federation.by_columns([X[:, :1], X[:, 1:]], X @ [0.5, -0.5])
    options = {"entry_bound": 1.0, "label_bound": 1.0, "fit_intercept": False, "rounds": 12, "insecure_seed": 5}
    fitted = sv.PrivateLasso(radius=1.0, epsilon=8.0, **declared("frank-wolfe", **options)).fit(federation)
    assert np.count_nonzero(fitted.coef_) == 2
    told, done = cost_of(fitted.plan_, algorithms.of(fitted.plan_)), fitted.communication_
    assert told.rounds == done.rounds == 14
    assert told.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.1)


def test_by_columns_the_published_form_is_told() -> None:
    X, y = people(60, 0)
    federation = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y)
    options = {"row_norm": 1.0, "label_bound": 1.0, "calibration": "paper", "rounds": 4}
    fitted = sv.PrivateLasso(radius=1.0, **declared("frank-wolfe", **options)).fit(federation)
    told, done = cost_of(fitted.plan_, algorithms.of(fitted.plan_)), fitted.communication_
    assert told.rounds == done.rounds == 8
    assert told.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.1)
    assert told.downlink_bytes == pytest.approx(done.downlink_bytes, rel=0.1)


@pytest.mark.parametrize("name", RUNS)
def test_without_privacy_nothing_is_foretold(name: str) -> None:
    options = {"epsilon": math.inf, "classes": (0, 1), "alpha": 0.1, "row_norm": 1.0}
    options |= {"radius": 1.0, "alpha": 0.0} if name == "frank-wolfe" else {}
    plan = sv.PrivateLogisticRegression(solver=name, **options).plan(sv.Federation.central(*people(40, 0)))
    assert cost_of(plan, algorithms.of(plan)) == Cost()


@pytest.mark.parametrize("dealer", [None, "dealer"])
@pytest.mark.parametrize("parties", [2, 5])
def test_secure_rows_take_what_the_plan_says(parties: int, dealer: str | None) -> None:
    X, y = people(60, 7)
    deals = None if dealer is None else sv.Dealer(dealer)
    held = [(X[k::parties], y[k::parties]) for k in range(parties)]
    federation = sv.Federation.by_rows(held, sums="secure", dealer=deals)
    solver = sv.solvers.Newton(rounds=3)
    fitted = sv.PrivateLogisticRegression(1.0, entry_bound=0.5, classes=(0, 1), solver=solver).fit(federation)
    told, done = cost_of(fitted.plan_, algorithms.of(fitted.plan_)), fitted.communication_
    assert told.rounds == done.rounds
    assert told.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.35)
    assert told.downlink_bytes == pytest.approx(done.downlink_bytes, rel=0.35)
    assert told.dealt_bytes is None


def secure_columns(parties: int, solver: Any, kind: str, dealer: str | None = None) -> Any:
    """A fit over secure columns, of classes or of numbers."""
    width = max(parties, 4)
    X = np.random.default_rng(8).uniform(-0.5, 0.5, (4000, width))
    parts = [X[:, part] for part in np.array_split(np.arange(width), parties)]
    labels = X[:, 0] if kind == "numbers" else (X[:, 0] > 0).astype(int)
    deals = None if dealer is None else sv.Dealer(dealer)
    federation = sv.Federation.by_columns(parts, labels, products="secure", dealer=deals)
    model: Any = sv.PrivateLogisticRegression(1.0, entry_bound=0.5, classes=(0, 1), solver=solver)
    if kind == "numbers":
        model = sv.PrivateRidge(1.0, entry_bound=0.5, label_bound=1.0, solver=solver)
    return model.fit(federation)


@pytest.mark.parametrize(
    ("parties", "kind", "dealer"),
    [
        (2, "classes", None),
        (2, "numbers", "dealer"),
        (3, "classes", "dealer"),
        (3, "numbers", None),
        (8, "classes", None),
    ],
)
@pytest.mark.parametrize("solver", [sv.solvers.Newton, sv.solvers.Gradient, sv.solvers.Whitened])
def test_secure_columns_take_what_the_formulas_say(parties: int, kind: str, dealer: str | None, solver: Any) -> None:
    fitted = secure_columns(parties, solver(rounds=2), kind, dealer)
    told, done = cost_of(fitted.plan_, algorithms.of(fitted.plan_)), fitted.communication_
    assert told.rounds == done.rounds
    assert told.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.2)
    assert told.downlink_bytes == pytest.approx(done.downlink_bytes, rel=0.2)


def test_secure_columns_are_dealt_what_the_formulas_say() -> None:
    """Bytes by hand: a flag's table of 32 bits, and by look-up a table of 64 levels; words of 32 bits."""
    told = cost_of((plan := secure_columns(2, sv.solvers.Newton(rounds=2), "classes").plan_), algorithms.of(plan))
    null, look_up = 4000 * (4 + 4 + 4), 4000 * (8 + 4 + 4)
    assert told.dealt_bytes == null + 2 * look_up
