"""Private fits without a ledger on the same people are noticed, and what they promise together is said."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from joblib.externals.loky import get_reusable_executor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sottovoce as sv
from sottovoce.errors import RepeatedFitWarning
from sottovoce.estimators import report
from sottovoce.privacy.ledger import Ledger

OPTIONS: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6, "row_norm": 3.0, "classes": (0, 1)}


@pytest.fixture(autouse=True)
def empty_register(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(report, "fit_groups", [])
    return


def data(seed: int = 0, records: int = 600) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, 4))
    return X, (X[:, 0] > 0).astype(int)


def said(run: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(warning.message) for warning in caught if issubclass(warning.category, RepeatedFitWarning)]


def model(**changes: Any) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(**OPTIONS | changes)


def test_one_against_the_rest_says_the_sum() -> None:
    X, _ = data()
    y = np.random.default_rng(1).integers(3, size=600)
    texts = said(lambda: OneVsRestClassifier(model()).fit(X, y))
    assert len(texts) == 2
    assert "all 3 together promise epsilon=1.5, delta=3e-06, not epsilon=0.5 each" in texts[-1]


def test_folds_share_records() -> None:
    texts = said(lambda: cross_val_score(model(), *data(), cv=5))
    assert "all 5 together promise epsilon=2.5" in texts[-1]


def test_a_grid_search_is_noticed_though_every_fold_is_scaled_for_itself() -> None:
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model()), {"privatelogisticregression__alpha": [0.1, 1.0]}, cv=3
    )
    texts = said(lambda: search.fit(*data()))
    assert "all 7 together promise epsilon=3.5" in texts[-1]  # six on folds and the last on all


def test_searches_are_told_that_scores_are_not_private() -> None:
    texts = said(lambda: GridSearchCV(model(), {"alpha": [0.1, 1.0]}, cv=3).fit(*data()))
    assert len(texts) == 6
    assert all("Scores by which a search chooses are exact and counted nowhere" in text for text in texts)
    assert not any("worker process" in text for text in texts)
    X, y = data(1)
    model().fit(X, y)
    assert "Scores" not in said(lambda: model().fit(X, y))[0]  # no clone, so no search


@pytest.mark.slow
def test_fits_in_worker_processes_are_told_that_nobody_has_the_sum(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One fit in each worker or both in one: either way it is said, where such a process can say it."""
    Ledger.create(tmp_path / "budget.db").open("people", 2.0, 1e-4)
    try:
        for options, warned in (({}, True), ({"ledger": tmp_path / "budget.db"}, False)):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                cross_val_score(model(**options), *data(), cv=2, n_jobs=2)
            assert (
                "in a worker process (n_jobs), and fits in other processes come on" in capfd.readouterr().err
            ) == warned
    finally:
        get_reusable_executor().shutdown(wait=True)


def test_so_is_as_large_a_table_in_another_order_and_of_another_type() -> None:
    X, y = data()
    model().fit(X, y)
    assert len(said(lambda: model().fit(X[::-1], y[::-1]))) == 1
    assert len(said(lambda: model().fit(sp.csr_matrix(X), y))) == 1
    assert said(lambda: model().fit(X[:120], y[:120])) == []


@pytest.mark.parametrize("records", [2, 64, 600])
def test_no_row_decides_the_warning(records: int) -> None:
    """Else a fit on one person's row, and then one on the data, would tell whether the person is among them."""
    X, y = data(5, records)
    target = X[:1]
    told = []
    for rows in (X, np.vstack([-X[:1], X[1:]])):
        report.fit_groups.clear()
        texts = said(lambda: model().fit(np.vstack([target] * 2), [0, 1]))
        told.append(texts + said(lambda rows=rows: model().fit(rows, y)))  # type: ignore[misc]
    assert told[0] == told[1]
    assert len(told[0]) == (records == 2)


def test_a_federation_counts_too() -> None:
    X, y = data()
    federation = sv.Federation.by_rows([(X[:300], y[:300]), (X[300:], y[300:])])
    model().fit(federation)
    assert "all 2 together" in said(lambda: model().fit(federation))[0]


def test_fits_on_other_numbers_and_those_that_count_elsewhere_are_not_remarked(tmp_path: Path) -> None:
    X, y = data()
    model().fit(X, y)
    assert said(lambda: model().fit(*data(1, 599))) == []
    assert said(lambda: model(epsilon=float("inf"), alpha=0.1).fit(X, y)) == []
    assert said(lambda: model(insecure_seed=1).fit(X, y)) == []
    Ledger.create(tmp_path / "budget.db").open("people", 2.0, 1e-4)
    for _ in range(2):
        assert said(lambda: model(ledger=tmp_path / "budget.db").fit(X, y)) == []


def test_the_register_holds_nothing_of_rows_and_stays_small() -> None:
    X, y = data()
    fitted = model().fit(X, y)
    assert report.fit_groups[0].marks == {X.shape}
    for seed in range(report.MOST_GROUPS + 10):
        report.warn_of_repeats(
            fitted.plan_.model_copy(update={"parties": (("data", 1000 + seed),)}), fitted.privacy_.weakest
        )
    assert len(report.fit_groups) == report.MOST_GROUPS
