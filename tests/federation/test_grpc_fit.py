"""Whole fits over gRPC with mutual TLS, every party a process of its own."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import BudgetError, RefusedError
from sottovoce.solvers import by_name

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "east", "west")


class Clinics:
    """Four holders of rows, their ledgers and their sites."""

    def __init__(self, sites: Any) -> None:
        generator = np.random.default_rng(3)
        self.X = generator.standard_normal((800, 5))
        self.X /= np.linalg.norm(self.X, axis=1, keepdims=True)
        self.y = np.where(self.X @ np.array([3.0, -2, 1, 0, 0]) + 0.3 * generator.standard_normal(800) > 0, 1, -1)
        self.wire, self.processes, self.start = sites.wire, sites.processes, sites.start
        edges = (0, 100, 250, 500, 800)
        self.parts = [(self.X[a:b], self.y[a:b]) for a, b in itertools.pairwise(edges)]
        self.accounts = []
        for name, (X, y) in zip(NAMES, self.parts, strict=True):
            sites.save(name, X=X, y=y)
            self.accounts.append(sv.Ledger.create(sites.folder / f"{name}.db").open(name, epsilon=1.5, delta=1e-5))


@pytest.fixture
def clinics(sites_of: Callable[..., Any]) -> Clinics:
    return Clinics(sites_of(NAMES))


def model(**parameters: Any) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(
        **{"epsilon": 1.0, "delta": 1e-5, "row_norm": 1.0, "classes": (-1, 1), **parameters}
    )


def test_with_the_noise_off_the_wire_gives_the_central_coefficients(clinics: Clinics) -> None:
    for name in NAMES:
        clinics.start(name, ledger=False)
    remote = model(epsilon=math.inf).fit(sv.Federation.connect(clinics.wire))
    central = model(epsilon=math.inf).fit(clinics.X, clinics.y)
    np.testing.assert_allclose(remote.coef_, central.coef_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(remote.intercept_, central.intercept_, rtol=0, atol=1e-9)
    local = model(epsilon=math.inf).fit(sv.Federation.by_rows(clinics.parts, names=NAMES))
    assert remote.communication_.uplink == local.communication_.uplink
    assert remote.communication_.rounds == local.communication_.rounds
    each = len(NAMES) * 700  # over the network a signature has its certificate
    assert remote.communication_.uplink_bytes - local.communication_.uplink_bytes == pytest.approx(each, rel=0.2)
    for process in clinics.processes.values():
        assert process.wait(10) == 0


def test_a_killed_party_comes_back_and_is_charged_once(clinics: Clinics) -> None:
    """Also where it has to be told again what it had kept of earlier rounds."""
    releases = 2 + 200 + 2 + 12  # moments and lengths, gradients, two numbers, rescales
    for name in NAMES:
        clinics.start(name, ledger=True)
    clinics.wire.wait_for_parties(20)
    killed = []

    def kill_in_the_middle() -> None:
        account = clinics.accounts[1]
        while sum(entry.kind == "release" for entry in account.history()) < 20:
            time.sleep(0.002)
        os.kill(clinics.processes["south"].pid, signal.SIGKILL)
        clinics.processes["south"].wait()
        killed.append(sum(entry.kind == "release" for entry in account.history()))
        clinics.start("south", ledger=True)

    watcher = threading.Thread(target=kill_in_the_middle)
    watcher.start()
    fitted = model(solver=by_name("whitened", rounds=200)).fit(sv.Federation.connect(clinics.wire))
    watcher.join()
    assert 20 <= killed[0] < releases, "the kill must fall inside the fit"
    assert fitted.score(clinics.X, clinics.y) > 0.7
    for account in clinics.accounts:
        kinds = [entry.kind for entry in account.history()]
        assert kinds.count("reservation") == 1
        assert kinds.count("release") == releases
        assert account.balance().spent == pytest.approx(1.0, abs=0.02)
    assert fitted.privacy_.world.epsilon < fitted.privacy_.coordinator.epsilon == pytest.approx(1.0, abs=1e-3)


def test_an_overspending_plan_and_a_refused_policy_reach_the_coordinator_as_such(clinics: Clinics) -> None:
    for name in NAMES:
        clinics.start(name, ledger=True)
    federation = sv.Federation.connect(clinics.wire)
    with pytest.raises(RefusedError, match=r"above this party's limit 2"):
        model(epsilon=3.0).fit(federation)
    with pytest.raises(RefusedError, match="without noise"):
        model(epsilon=math.inf).fit(federation)
    assert all(account.balance().spent == 0 for account in clinics.accounts)
    with pytest.raises(BudgetError, match=r"would fit"):
        model(epsilon=1.9).fit(federation)
    assert all(account.balance().spent == 0 for account in clinics.accounts)


def test_parties_elsewhere_give_standard_errors_after_the_fit_and_then_end(clinics: Clinics) -> None:
    """Two plans over one wire: a party is told that it is over after the second, and each is charged before."""
    for name in NAMES:
        clinics.start(name, ledger=True)
    fitted = model(standard_errors=True).fit(sv.Federation.connect(clinics.wire))
    assert [plan.algorithm for plan in fitted.plans_] == ["whitened", "standard-errors"]
    assert len(fitted.coefficients()) == fitted.n_features_in_ + 1
    assert fitted.privacy_.coordinator.epsilon == pytest.approx(1.0, abs=1e-3)
    for account in clinics.accounts:
        assert account.balance().plans == 2


def test_parties_elsewhere_evaluate_a_model_and_are_charged_first(clinics: Clinics) -> None:
    """The plan carries the model; the cells that come over the wire are those of this process, but for the noise."""
    for name in NAMES:
        clinics.start(name, ledger=True)
    fitted = model(insecure_seed=1).fit(clinics.X, clinics.y)
    remote = sv.evaluate(fitted, sv.Federation.connect(clinics.wire), epsilon=1.0)
    exact = sv.evaluate(fitted, sv.Federation.by_rows(clinics.parts, names=NAMES), epsilon=math.inf)
    assert len(remote.cells) == 16  # 2 x 8 nodes
    local = sv.evaluate(fitted, sv.Federation.by_rows(clinics.parts, names=NAMES), epsilon=1.0)
    assert remote.plan_.numbers == local.plan_.numbers
    assert remote.noise == local.noise
    assert exact.cells.sum() == 800
    # The sum of 16 noises is beyond 6 of its deviations with a chance below 1e-8.
    assert abs(remote.cells.sum() - 800) < 6 * 4 * remote.noise
    for account in clinics.accounts:
        assert account.balance().spent == pytest.approx(1.0, abs=0.02)


def test_parties_elsewhere_stay_for_the_choice_of_a_penalty(clinics: Clinics) -> None:
    """Two plans in one conversation, each charged before its first release; then the parties leave."""
    for name in NAMES:
        clinics.start(name, ledger=True)
    fitted = model(alpha="auto", l1_ratio=1).fit(sv.Federation.connect(clinics.wire))
    assert fitted.path_.losses.shape == (8,)
    for account in clinics.accounts:
        assert [entry.kind for entry in account.history()].count("reservation") == 2
    for process in clinics.processes.values():
        assert process.wait(10) == 0
