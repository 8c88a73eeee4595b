"""Rate ratios, ratios of means and hazard ratios with intervals."""

from __future__ import annotations

import json
import math
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import sottovoce as sv
from sottovoce.app.page import page
from sottovoce.errors import InputError
from sottovoce.estimators.coefficients import INTERCEPT
from sottovoce.privacy.ledger import Ledger

cox = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "survival.py"))["cox"]
N, TRUE = 8000, np.array([0.6, -0.5, 0.3, 0.0])
PERIODS = [0, 0.5, 1, 1.5, 2, 3]
DECLARED: dict[str, Any] = {
    "feature_ranges": ([-1.0] * 4, [1.0] * 4),
    "delta": 1e-6,
    "standard_errors": True,
    "insecure_seed": 3,
}
Made = tuple[np.ndarray, Any, dict[str, Any]]


def claims(seed: int = 1) -> Made:
    """Counts that vary far more than Poisson's, in years of exposure."""
    rng = np.random.default_rng(seed)
    X, years = rng.uniform(-1, 1, (N, 4)), rng.uniform(0.1, 1, N)
    means = years * np.exp(X @ TRUE)
    return X, rng.negative_binomial(1, 1 / (1 + means)).astype(float), {"exposure": years}


def costs(seed: int = 2) -> Made:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (N, 4))
    return X, np.exp(X @ TRUE) * rng.gamma(2.0, 0.5, N), {}


def times(seed: int = 3) -> Made:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (N, 4))
    event, last = rng.exponential(size=N) / (0.4 * np.exp(X @ TRUE)), rng.uniform(0, 3, N)
    y = np.zeros(N, dtype=[("event", bool), ("time", float)])
    y["event"], y["time"] = event <= last, np.minimum(event, last)
    return X, y, {}


POISSON: Any = partial(sv.PrivatePoissonRegressor, label_bound=(0, 30), exposure_bound=1.0, **DECLARED)
GAMMA: Any = partial(sv.PrivateGammaRegressor, label_bound=(0, 30), **DECLARED)
COX: Any = partial(sv.PrivateCoxRegressor, periods=PERIODS, **DECLARED)
CASES: dict[str, Any] = {
    "rate ratio": (POISSON, claims),
    "ratio of means": (GAMMA, costs),
    "hazard ratio": (COX, times),
}


def sandwich(X: np.ndarray, slopes: np.ndarray, bends: np.ndarray) -> np.ndarray:
    rows = np.column_stack([X, np.ones(len(X))])
    inverse = np.linalg.inv((rows * bends[:, None]).T @ rows)
    return np.sqrt(np.diag(inverse @ ((rows * slopes[:, None] ** 2).T @ rows) @ inverse))


@pytest.mark.parametrize("epsilon", [math.inf, 300.0])
def test_rate_ratios_have_the_robust_errors_of_the_textbook(epsilon: float) -> None:
    """Those of the likelihood alone, the control, are far too small for counts that vary so."""
    X, y, given = claims()
    plain = sv.PrivatePoissonRegressor(math.inf).fit(X, y, **given)
    means = given["exposure"] * np.exp(X @ plain.coef_ + plain.intercept_)
    errors, usual = sandwich(X, means - y, means), sandwich(X, np.sqrt(means), means)
    found = list(POISSON(epsilon).fit(X, y, **given).coefficients())
    close = 1e-3 if epsilon == math.inf else 0.15
    np.testing.assert_allclose([row.standard_error for row in found], errors, rtol=close)
    off = ([row.estimate for row in found] - np.append(plain.coef_, plain.intercept_)) / errors
    assert np.abs(off).max() < (0.01 if epsilon == math.inf else 1.0)
    assert np.all(errors > 1.2 * usual)


@pytest.mark.parametrize("epsilon", [math.inf, 1000.0])
def test_ratios_of_means_have_the_robust_errors_of_the_textbook(epsilon: float) -> None:
    X, y, _ = costs()
    plain = sv.PrivateGammaRegressor(math.inf).fit(X, y)
    means = np.exp(X @ plain.coef_ + plain.intercept_)
    errors = sandwich(X, 1 - y / means, np.ones(N))
    found = list(GAMMA(epsilon).fit(X, y).coefficients())
    np.testing.assert_allclose(
        [row.standard_error for row in found], errors, rtol=1e-3 if epsilon == math.inf else 0.15
    )
    off = ([row.estimate for row in found] - np.append(plain.coef_, plain.intercept_)) / errors
    assert np.abs(off).max() < (0.01 if epsilon == math.inf else 1.0)


def test_hazard_ratios_are_those_of_cox() -> None:
    """With little noise, in one place and by rows; nothing is told of the baseline, and of late entries too."""
    X, y, _ = times()
    best, errors = cox(X, y)
    labels = sv.labels_with(y["event"].astype(float), time=y["time"])
    parts = [(X[:3000], labels[:3000]), (X[3000:], labels[3000:])]
    for table in (
        COX(300.0).fit(X, y),
        COX(300.0).fit(sv.Federation.by_rows(parts)),
        COX(300.0).fit(X, y, entry=0 * X[:, 0]),
    ):
        found = list(table.coefficients())
        assert [row.name for row in found] == ["x0", "x1", "x2", "x3"]
        np.testing.assert_allclose([row.standard_error for row in found], errors, rtol=0.12)
        assert np.abs(([row.estimate for row in found] - best) / errors).max() < 1.0


def coverage(name: str, epsilon: float, fits: int) -> list[tuple[float, float]]:
    """(off by, standard error) of every slope that is told, each fit of records of its own."""
    make, draw = CASES[name]
    found = list[tuple[float, float]]()
    for seed in range(fits):
        X, y, given = draw(100 + seed)
        table = make(epsilon, insecure_seed=seed).fit(X, y, **given).coefficients()
        found += [(table[f"x{j}"].estimate - TRUE[j], table[f"x{j}"].standard_error) for j in range(4)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_hold_and_would_not_if_they_were_half_as_wide(name: str, epsilon: float) -> None:
    """240 of them at .95: fewer than .86 hold with a chance below 1e-6, more than .84 of half as wide ones too."""
    found = np.array(coverage(name, epsilon, 60))
    assert np.mean(np.abs(found[:, 0]) < 1.96 * found[:, 1]) > 0.86
    assert np.mean(np.abs(found[:, 0]) < 0.98 * found[:, 1]) < 0.84


@pytest.mark.parametrize("name", CASES)
def test_tables_have_ratios_and_one_budget(name: str, tmp_path: Path) -> None:
    make, draw = CASES[name]
    X, y, given = draw()
    model = make(2.0).fit(X, y, **given)
    table = model.coefficients()
    assert model.privacy_.epsilon == pytest.approx(2.0, abs=1e-6)
    assert [plan.algorithm for plan in model.plans_] == ["whitened", "standard-errors"]
    row = table["x0"]
    assert row.ratio_low < row.ratio < row.ratio_high
    assert row.ratio == pytest.approx(math.exp(row.estimate))
    assert row.odds_ratio is None
    assert (INTERCEPT in [each.name for each in table]) == (name != "hazard ratio")
    assert set(json.loads(json.dumps(table.to_dict()))["x0"]) >= {"ratio", "ratio_low", "ratio_high", "p_value"}
    lines = str(table).splitlines()
    assert name in lines[0]
    assert len({len(line) for line in lines}) == 1
    assert f"{row.ratio:.4g}" in lines[1]
    assert name in table._repr_html_()
    assert name in page(model)
    narrow = model.coefficients(level=0.8)["x0"]
    assert row.ratio_low < narrow.ratio_low < narrow.ratio_high < row.ratio_high
    model.save(tmp_path / "model.json")
    again = sv.load_model(tmp_path / "model.json")
    assert again.coefficients() == table
    assert str(again.coefficients()) == str(table)
    assert again.plans_[1].digest == model.plans_[1].digest
    pytest.importorskip("matplotlib").use("Agg")
    assert table.plot().axes[0].get_xlabel().startswith(name)


@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_for_by_name(name: str) -> None:
    make, draw = CASES[name]
    X, y, given = draw()
    model = make(3.0, standard_errors=["x0", "x2"]).fit(X, y, **given)
    assert [row.name for row in model.coefficients()] == ["x0", "x2"]
    assert clone(model).standard_errors == ["x0", "x2"]
    if name == "hazard ratio":
        with pytest.raises(InputError, match="no column or feature 'intercept'"):
            make(3.0, standard_errors=["intercept"]).fit(X, y)


@pytest.mark.parametrize("name", CASES)
def test_where_they_cannot_be_had_nothing_is_spent(name: str, tmp_path: Path) -> None:
    make, draw = CASES[name]
    X, y, given = draw()
    account = Ledger.create(tmp_path / "a.ledger").open("people", epsilon=9.0, delta=1e-4)
    with pytest.raises(InputError, match="without a penalty"):
        make(1.0, alpha=0.1, insecure_seed=None, ledger=account).fit(X, y, **given)
    assert account.balance().plans == 0


def test_levels_of_a_table_have_hazard_ratios_against_their_reference() -> None:
    X, y, _ = times()
    sick = np.where(X[:, 0] > 0, "yes", "no")
    ward = np.array(["north", "south", "west"])[(X[:, 1] > -0.3) + (X[:, 1] > 0.3) * 1]
    columns = {
        "sick": {"yes": "yes", "no": "no"},
        "ward": {"levels": ["north", "south", "west"]},
        "dose": {"range": (-1, 1)},
        "died": {"counts": 1},
        "years": {"time": (0, 3)},
    }
    table = {"sick": sick, "ward": ward, "dose": X[:, 2], "died": y["event"].astype(int), "years": y["time"]}
    given = {key: value for key, value in DECLARED.items() if key != "feature_ranges"}
    model = sv.PrivateCoxRegressor(100.0, periods=PERIODS, schema=sv.Schema(columns, label="died"), **given).fit(table)
    found = model.coefficients()
    names = [row.name for row in found]
    assert names == ["sick=yes against no", "ward=south against north", "ward=west against north", "dose"]
    rows = np.column_stack([sick == "yes", ward == "south", ward == "west", X[:, 2]]).astype(float)
    best, errors = cox(rows, y)
    off = np.array([row.estimate for row in found]) - best
    assert np.abs(off / errors).max() < 1.0


def test_what_the_noise_hides_is_not_told() -> None:
    X, y, _ = times()
    few = slice(0, 400)
    assert not any(row.identified for row in COX(0.1).fit(X[few], y[few]).coefficients())


def test_rows_in_files_or_threads_give_the_same_table() -> None:
    X, y, _ = times()
    labels = sv.labels_with(y["event"].astype(float), time=y["time"])
    table = COX(2.0).fit(X, labels).coefficients()
    assert COX(2.0).fit(sv.Dataset.from_arrays(X, labels)).coefficients() == table
    assert COX(2.0, resources=sv.Resources(n_jobs=2)).fit(X, labels).coefficients() == table
