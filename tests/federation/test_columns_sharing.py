"""ADMM sharing over gRPC with mutual TLS, every party a process of its own; what a party keeps outlives it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import Party
from sottovoce.gate import gate as memory
from sottovoce.gate.frames import decode
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess

CLOSE = 1e-6


def people(count: int = 300, features: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((count, features))
    return X, X @ rng.standard_normal(features) + 0.7 + rng.standard_normal(count)


def split(X: np.ndarray, parties: int) -> list[np.ndarray]:
    edges = np.linspace(0, X.shape[1], parties + 1).astype(int)
    return [X[:, a:b] for a, b in itertools.pairwise(edges)]


def serve(sites: Any, names: list[str], parts: list[np.ndarray], y: np.ndarray, *, ledger: bool) -> Federation:
    for name, part in zip(names, parts, strict=True):
        sites.save(name, X=part, y=y)
        sites.start(name, ledger=ledger)
    sites.wire.wait_for_parties(60)
    return Federation.connect(sites.wire, split="columns")


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 8])
def test_with_the_noise_off_the_wire_gives_the_central_coefficients(parties: int, sites_of: Callable[..., Any]) -> None:
    X, y = people()
    names = [f"holder-{number}" for number in range(parties)]
    parts = split(X, parties)
    federation = serve(sites_of(names), names, parts, y, ledger=False)
    ridge = {"epsilon": math.inf, "alpha": 0.01}
    remote = sv.PrivateRidge(solver="admm", **ridge).fit(federation)
    central = sv.PrivateRidge(solver="newton", **ridge).fit(X, y)
    np.testing.assert_allclose(remote.coef_, central.coef_, rtol=0, atol=CLOSE)
    assert remote.intercept_ == pytest.approx(central.intercept_, abs=CLOSE)
    inside = Federation.by_columns(parts, y, names=names)
    local = sv.PrivateRidge(solver="admm", **ridge).fit(inside)
    np.testing.assert_array_equal(remote.coef_, local.coef_)
    assert remote.communication_.uplink == local.communication_.uplink
    assert remote.communication_.rounds == local.communication_.rounds


@pytest.mark.parametrize("parties", [2, 8])
@pytest.mark.parametrize("l1_ratio", [0, 1, 0.5])
def test_with_the_noise_off_one_process_gives_the_central_coefficients(parties: int, l1_ratio: float) -> None:
    X, y = people()
    labels = np.where(y > 0.5, 1, 0)
    options = {"epsilon": math.inf, "alpha": 0.01, "l1_ratio": l1_ratio, "classes": (0, 1)}
    joint = sv.PrivateLogisticRegression(solver="admm", **options).fit(Federation.by_columns(split(X, parties), labels))
    central = sv.PrivateLogisticRegression(solver="newton", **options).fit(X, labels)
    np.testing.assert_allclose(joint.coef_, central.coef_, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(joint.intercept_, central.intercept_, rtol=0, atol=CLOSE)
    assert joint.certificates_["primal_residual"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 8])
def test_other_losses_give_the_central_model(parties: int) -> None:
    X, y = people(120, 8)
    parts, labels = split(X, parties), np.where(y > 0.5, 1, 0)
    huber = {"epsilon": math.inf, "alpha": 0.01, "loss": "huber", "threshold": 0.8}
    joint = sv.PrivateRidge(solver="admm", **huber).fit(Federation.by_columns(parts, y))
    np.testing.assert_allclose(joint.coef_, sv.PrivateRidge(solver="newton", **huber).fit(X, y).coef_, atol=CLOSE)
    for loss, solver, close in (("smoothed_hinge", "newton", CLOSE), ("sigmoid", "gradient", 1e-3)):
        options = {"epsilon": math.inf, "alpha": 0.05, "loss": loss, "classes": (0, 1), "fit_intercept": False}
        joined = sv.PrivateLinearSVC(solver="admm", **options).fit(Federation.by_columns(parts, labels))
        central = sv.PrivateLinearSVC(solver=solver, **options).fit(X, labels)
        np.testing.assert_allclose(joined.coef_, central.coef_, rtol=0, atol=close)


def test_a_loss_that_is_not_convex_is_not_for_newton() -> None:
    X, y = people()
    with pytest.raises(sv.InputError, match="'newton' needs a convex loss and 'sigmoid' is not"):
        sv.PrivateLinearSVC(epsilon=math.inf, loss="sigmoid", solver="newton").fit(X, np.where(y > 0.5, 1, 0))
    with pytest.raises(sv.InputError, match="threshold=None belongs to loss='huber'"):
        sv.PrivateRidge(epsilon=math.inf, loss="huber").fit(X, y)


@pytest.mark.slow
def test_every_fit_pays_for_its_rows(sites_of: Callable[..., Any]) -> None:
    """Two fits; between them every party's process is killed and a new one starts on the same ledger."""
    X, y = people(200, 6)
    names, parts = ["clinic", "lab"], split(X, 2)
    sites = sites_of(names)
    accounts = [
        sv.Ledger.create(sites.folder / f"{name}.db").open(name, epsilon=8.0, delta=1e-5, composition="gaussian")
        for name in names
    ]
    options = {"epsilon": 2.0, "entry_bound": 4.0, "label_bound": 8.0, "solver": by_name("admm", rounds=4)}
    federation, spent = serve(sites, names, parts, y, ledger=True), []
    for number in range(2):
        if number:
            for name in names:
                sites.processes[name].kill()
                sites.processes[name].wait()
                sites.start(name, ledger=True)
        model = sv.PrivateRidge(**options).fit(federation)
        assert model.privacy_.against("coordinator").epsilon == pytest.approx(2.0, rel=0.01)
        spent.append([account.book().cost() for account in accounts])
    rows = [reservation.events[0].mu ** 2 for reservation in accounts[0].book().reservations]  # type: ignore[union-attr]
    assert rows[0] == rows[1] > 0.0
    for first, second in zip(*spent, strict=True):
        assert second - first == pytest.approx(first, rel=0.02)


@pytest.mark.parametrize("killed", [False, True])
def test_a_party_killed_while_it_forgets_a_run_forgets_it_when_told_again(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told again that the run is over it deletes what it remembers of that plan, and nothing of another one."""
    X, y = people(60, 4)
    parts = dict(zip(("clinic", "lab"), split(X, 2), strict=True))
    accounts = {name: sv.Ledger.create(tmp_path / f"{name}.db").open(name, 9.0, 1e-5) for name in parts}
    folder, delete = tmp_path / "lab.db.memory", memory._delete
    waiting, ends = memory.Memory(tmp_path / "lab.db", "lab", b"w" * 32), list[str]()

    def party_of(name: str) -> Party:
        return Party(name, parts[name], y, account=accounts[name])

    def stopped(_path: Path) -> None:
        raise KeyboardInterrupt

    class Killing(InProcess):
        def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
            if "lab" not in messages or decode(messages["lab"]).kind != "done" or not decode(messages["lab"]).plan:
                return super().exchange(messages)
            ends.append("lab")
            if len(ends) > 1 or not killed:
                return super().exchange(messages)
            with monkeypatch.context() as patch:
                patch.setattr(memory, "_delete", lambda path: (stopped if "lab" in path.parent.name else delete)(path))
                with pytest.raises(KeyboardInterrupt):
                    super().exchange(messages)
            assert (
                len(list(folder.iterdir())) == 2
            )  # what it has to forget: what its solver remembers, and rows with noise
            waiting.write({"state": np.zeros(2)}, (0, "rest"), b"")  # of a plan that another process may go on with
            renewed = party_of("lab")
            renewed.identify(self._endpoints["lab"].identity)  # type: ignore[attr-defined]
            self._endpoints["lab"] = renewed
            return super().exchange(messages)

    wire = Killing([party_of(name) for name in parts])
    federation = Federation.connect(wire, split="columns")
    options = {"epsilon": 2.0, "entry_bound": 4.0, "label_bound": 8.0, "solver": by_name("admm", rounds=4)}
    sv.PrivateRidge(**options).fit(federation)
    assert ends
    assert [path.name.split(".")[1] for path in folder.iterdir()] == [(b"w" * 32).hex()] * killed
    assert [account.balance().plans for account in accounts.values()] == [1, 1]
