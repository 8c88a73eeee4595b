"""A fit that is stopped between any two messages goes on: the same model, charged once, every release once."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from interrupting import keyed
from sottovoce.privacy.ledger import Account
from sottovoce.solvers import by_name
from sottovoce.transports.in_process import InProcess

NAMES = ("anna", "ben")
X = np.random.default_rng(3).uniform(-1, 1, (60, 4))
Y = (X @ [1.0, -1.0, 0.5, 0.0] > 0).astype(int)
ROWS = [(X[:25], Y[:25]), (X[25:], Y[25:])]
COLUMNS = [X[:, :2], X[:, 2:]]


class StoppedError(BaseException):
    """In the place of the end of the process."""


def ledgers(folder: Path) -> list[Account]:
    folder.mkdir(exist_ok=True)
    found = []
    for name in NAMES:
        path = folder / f"{name}.db"
        ledger = sv.Ledger(path) if path.exists() else sv.Ledger.create(path)
        found.append(ledger.open(name, epsilon=50.0, delta=1e-5))
    return found


def by_rows(folder: Path, **more: Any) -> sv.Federation:
    return sv.Federation.by_rows(ROWS, names=NAMES, ledgers=ledgers(folder), journal=folder / "fit.run", **more)


def by_columns(folder: Path, **more: Any) -> sv.Federation:
    more = {"products": "none", "labels": "shared"} | more
    accounts = ledgers(folder)
    return sv.Federation.by_columns(COLUMNS, Y, names=NAMES, ledgers=accounts, journal=folder / "fit.run", **more)


def logistic(solver: str, **options: Any) -> Any:
    more = {"alpha": 0.1} if solver.startswith("scd") else {}
    return sv.PrivateLogisticRegression(
        epsilon=1.0, entry_bound=1.0, classes=(0, 1), solver=by_name(solver, **options), **more
    )


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """At which message of a process it is stopped, before it is handled or before its answer is read."""
    at, plain = [np.inf], InProcess.exchange
    keyed(replace=monkeypatch.setattr)

    def exchange(self: InProcess, messages: Any) -> dict[str, bytes]:
        at[0] -= 0.5
        if at[0] == 0:
            raise StoppedError
        replies = plain(self, messages)
        at[0] -= 0.5
        if at[0] == 0:
            raise StoppedError
        return replies

    monkeypatch.setattr(InProcess, "exchange", exchange)
    return at


def fitted(make: Any, folder: Path, model: Any, at: list[float], stop: float) -> tuple[Any, int]:
    """A fit by processes that are stopped, each 2 1/2 messages later than the one before; and how many there were."""
    for process in itertools.count():
        at[0] = stop + 2.5 * process
        with contextlib.suppress(StoppedError):
            return model().fit(make(folder)), process
    raise AssertionError


def state(folder: Path) -> list[tuple[int, int, int]]:
    """Of each ledger: entries, plans and releases."""
    found = []
    for account in ledgers(folder):
        kinds = [entry.kind for entry in account.history()]
        found.append((sv.Ledger(account.path).verify(), kinds.count("reservation"), kinds.count("release")))
    return found


CASES: dict[str, tuple[Any, Any]] = {
    "gradient": (by_rows, lambda: logistic("gradient", rounds=4)),
    "newton": (by_rows, lambda: logistic("newton", rounds=3)),
    "whitened": (by_rows, lambda: logistic("whitened", rounds=3)),
    "sgd": (by_rows, lambda: logistic("sgd", rounds=4, rate=0.3)),
    "scd": (by_rows, lambda: logistic("scd", rounds=5, rate=0.3)),
    "admm": (by_columns, lambda: logistic("admm", rounds=3)),
    "fdml": (by_columns, lambda: logistic("fdml", rounds=3)),
    "score": (by_columns, lambda: logistic("score", rounds=3)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fit_that_is_stopped_goes_on(case: str, stopped_at: list[float], tmp_path: Path) -> None:
    make, model = CASES[case]
    whole, _ = fitted(make, tmp_path / "whole", model, stopped_at, np.inf)
    expected, folder = state(tmp_path / "whole"), tmp_path / "broken"
    assert expected[0][1] == 1
    broken, stops = fitted(make, folder, model, stopped_at, 3.5)
    assert stops >= 2
    np.testing.assert_array_equal(broken.coef_, whole.coef_)
    assert broken.intercept_ == whole.intercept_
    assert broken.communication_.rounds == whole.communication_.rounds
    if case != "whitened":  # whose parties, new in each process, are reminded
        assert broken.communication_.uplink == whole.communication_.uplink
    assert state(folder) == expected
    assert (folder / "fit.run").stat().st_mode & 0o777 == 0o600
    stopped_at[0] = np.inf
    again = model().fit(make(folder))  # the file is still there
    np.testing.assert_array_equal(again.coef_, whole.coef_)
    assert state(folder) == expected


@pytest.mark.parametrize(
    ("split", "solver", "helper"),
    [("columns", "whitened", False), ("columns", "newton", True), ("rows", "newton", False)],
)
def test_a_coordinator_of_sealed_sums_goes_on_while_the_parties_live(
    split: str, solver: str, helper: bool, stopped_at: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is stopped: what was dealt, masked and opened is what an unbroken run has."""
    found = []
    keyed(replace=monkeypatch.setattr, sealed=True)
    for name in ("whole", "broken"):
        folder = tmp_path / name
        local = _sealed(split, folder, helper=helper)
        stopped_at[0] = np.inf
        for process in itertools.count():
            stopped_at[0] = np.inf if name == "whole" else 4.0 + (5.5 if split == "columns" else 2.5) * process
            wire = InProcess(local._ends)
            kind = {"products": "secure", "labels": "held"} if split == "columns" else {"sums": "secure"}
            connected = sv.Federation.connect(
                wire, split=split, helper="notary" if helper else None, journal=folder / "fit.run", **kind
            )
            with contextlib.suppress(StoppedError):
                model = logistic(solver, rounds=2).fit(connected)
                break
        found.append((model.coef_.tolist(), model.communication_.uplink, state(folder)))
    assert process >= 2
    assert found[0] == found[1]


def _sealed(split: str, folder: Path, *, helper: bool) -> Any:
    """Parties of this process that take part in sealed sums, with what the label holder alone knows."""
    notary = sv.Helper("notary") if helper else None
    more: Any = {"helper": notary, "policy": sv.Policy(sealed=True)}
    if split == "rows":
        return by_rows(folder, sums="secure", **more)
    return by_columns(folder, products="secure", labels="held", **more)
