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
from sottovoce.errors import InputError, WireError
from sottovoce.federation.journal import Journal
from sottovoce.gate.frames import peek
from sottovoce.privacy.ledger import Account
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess

pytestmark = pytest.mark.slow

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
    ("split", "solver", "dealer"),
    [("columns", "whitened", False), ("columns", "newton", True), ("rows", "newton", False)],
)
def test_a_coordinator_of_secure_sums_goes_on_while_the_parties_live(
    split: str, solver: str, dealer: bool, stopped_at: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is stopped: what was masked and opened is what an unbroken run has; by columns it is said again."""
    found, counted = [], []
    keyed(replace=monkeypatch.setattr, secure=True)
    for name in ("whole", "broken"):
        folder = tmp_path / name
        local = _secure(split, folder, dealer=dealer)
        stopped_at[0] = np.inf
        for process in itertools.count():
            stopped_at[0] = np.inf if name == "whole" else 4.0 + (5.5 if split == "columns" else 2.5) * process
            wire = InProcess(local._ends)
            kind = {"products": "secure", "labels": "held"} if split == "columns" else {"sums": "secure"}
            connected = sv.Federation.connect(
                wire, split=split, dealer="notary" if dealer else None, journal=folder / "fit.run", **kind
            )
            with contextlib.suppress(StoppedError):
                model = logistic(solver, rounds=2).fit(connected)
                break
        found.append((model.coef_.tolist(), state(folder)))
        counted.append(model.communication_.uplink)
    assert process >= 2
    assert found[0] == found[1]
    assert counted[0] == counted[1] if split == "rows" else all(counted[0][k] <= counted[1][k] for k in counted[0])


def _secure(split: str, folder: Path, *, dealer: bool) -> Any:
    """Parties of this process that take part in secure sums, with what the label holder alone knows."""
    notary = sv.Dealer("notary") if dealer else None
    more: Any = {"dealer": notary, "policy": sv.Policy(secure=True)}
    if split == "rows":
        return by_rows(folder, sums="secure", **more)
    return by_columns(folder, products="secure", labels="held", **more)


class Without(InProcess):
    """A wire on which ben answers no question from the third on."""

    asked = 0

    def exchange(self, messages: Any) -> dict[str, bytes]:
        if "ben" in messages and peek(messages["ben"])[0] == "ask":
            self.asked += 1
            if self.asked > 2:
                super().exchange({name: data for name, data in messages.items() if name != "ben"})
                raise WireError("waited 60 s for an answer of party 'ben' (party 'ben' not connected).", ["ben"])
        return super().exchange(messages)


def test_a_party_that_does_not_come_back_ends_the_run_and_one_that_does_goes_on(
    stopped_at: list[float], tmp_path: Path
) -> None:
    whole, _ = fitted(by_rows, tmp_path / "whole", lambda: logistic("scd", rounds=5, rate=0.3), stopped_at, np.inf)
    folder = tmp_path / "broken"
    federation = by_rows(folder)
    federation.transport = Without(federation._parties)
    with pytest.raises(WireError) as stopped:
        logistic("scd", rounds=5, rate=0.3).fit(federation)
    for part in (
        "waited 60 s for an answer of party 'ben'",
        "The run stops in round 2",
        "epsilon 1 at delta 1e-05, was charged once and stays spent",
        str(folder / "fit.run"),
        "start the same run again",
    ):
        assert part in str(stopped.value)
    assert stopped.value.parties == ("ben",)
    np.testing.assert_array_equal(logistic("scd", rounds=5, rate=0.3).fit(by_rows(folder)).coef_, whole.coef_)
    assert state(folder) == state(tmp_path / "whole")


def test_secure_rows_go_on_without_a_party_that_left_also_after_a_stop(stopped_at: list[float], tmp_path: Path) -> None:
    """The roster is kept before it is asked: no earlier attempt is asked after it, and who left is not waited for."""
    parts = [(X[place::4], Y[place::4]) for place in range(4)]
    names = ("anna", "ben", "carl", "dora")
    accounts = [sv.Ledger.create(tmp_path / f"{name}.db").open(name, epsilon=50.0, delta=1e-5) for name in names]
    policy = sv.Policy(secure=True, colluding=1)
    local = sv.Federation.by_rows(parts, names=names, ledgers=accounts, policy=policy, sums="secure")
    for question in itertools.count(4):
        stopped_at[0] = question
        wire = Without(local._ends)
        wire.asked = 0 if question == 4 else 9
        federation = sv.Federation.connect(wire, sums="secure", journal=tmp_path / "fit.run")
        federation.secure_aggregation(colluding=1, dropouts=1, retries=2)
        with contextlib.suppress(StoppedError):
            model = logistic("newton", rounds=4).fit(federation)
            break
    assert question >= 7
    assert [name for name, _ in model.privacy_.left] == ["ben"]
    attempts = [entry.query for entry in accounts[0].history() if "attempt" in entry.query]
    assert len(attempts) == 1
    assert [account.balance().plans for account in accounts] == [1] * 4


def test_a_torn_entry_is_dropped_and_the_file_can_be_opened_again(tmp_path: Path) -> None:
    """As where all was answered when a disk was full: nothing is written before the results are."""
    journal = Journal(tmp_path / "fit.run", {"job": "x"})
    journal.begin()
    journal.close()
    whole = (tmp_path / "fit.run").read_bytes()
    (tmp_path / "fit.run").write_bytes(whole + whole[-40:-8])
    for _ in range(2):
        torn = Journal(tmp_path / "fit.run")
        torn.begin()
        torn.close()
    assert (tmp_path / "fit.run").read_bytes().startswith(whole)
    assert Journal(tmp_path / "fit.run").about == {"job": "x"}


def test_two_fits_at_once_of_one_journal_are_one(stopped_at: list[float], tmp_path: Path) -> None:
    """Whichever message the first has come to, the second is told; one that fails leaves the file to the next."""
    asked, plain = [0], InProcess.exchange

    def exchange(self: InProcess, messages: Any) -> dict[str, bytes]:
        asked[0] += 1
        with pytest.raises(InputError, match="another process is at this run now"):
            logistic("gradient", rounds=3).fit(by_rows(tmp_path))
        return plain(self, messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "exchange", exchange)
        logistic("gradient", rounds=3).fit(by_rows(tmp_path))
    assert asked[0] > 4
    assert [plans for _, plans, _ in state(tmp_path)] == [1, 1]
    (tmp_path / "fit.run").unlink()
    with pytest.raises(InputError) as refused:  # while it is prepared; whoever keeps the error keeps no lock
        sv.PrivateLogisticRegression(epsilon=1.0, classes=(0, 1)).fit(by_rows(tmp_path))
    assert "another process" not in str(refused.value)
    assert not (tmp_path / "fit.run").exists()
    logistic("gradient", rounds=3).fit(by_rows(tmp_path))
