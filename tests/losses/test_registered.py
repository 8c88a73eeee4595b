"""A loss that a user registers is served by the estimators, and a party that lacks it refuses before it pays."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.optimize import minimize

import sottovoce as sv
from sottovoce import losses
from sottovoce.data.matrix import shrink_slopes as projected_cut
from sottovoce.errors import InputError
from sottovoce.losses import base
from sottovoce.losses.base import Kind, Loss, Vector
from sottovoce.losses.several import Softmax
from sottovoce.plan.problem import Problem
from sottovoce.privacy.ledger import Ledger
from sottovoce.queries.parts import cut_slopes as parts_cut
from sottovoce.queries.sums import clipped_derivative


@dataclass(frozen=True)
class PseudoHuber(Loss):
    """k^2 (sqrt(1 + (r / k)^2) - 1)."""

    threshold: float = 1.0

    name: ClassVar[str] = "pseudo_huber"
    kind: ClassVar[Kind] = "regression"
    curvature_bound: ClassVar[float] = 1.0

    @property
    def slope_bound(self) -> float:
        return self.threshold

    def value(self, u: Vector, y: Vector) -> Vector:
        return self.threshold**2 * (np.sqrt(1 + ((u - y) / self.threshold) ** 2) - 1)

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:
        r = np.asarray(np.subtract(u, y, out=out), dtype=np.float64)
        return np.divide(r, np.sqrt(1 + (r / self.threshold) ** 2), out=r)

    def curvature(self, u: Vector, y: Vector) -> Vector:
        return (1 + ((u - y) / self.threshold) ** 2) ** -1.5

    def mean_curvature(self, variance: float) -> float:
        return float((1 + variance / self.threshold**2) ** -1.5)


@dataclass(frozen=True)
class SquaredHinge(Loss):
    """max(0, 1 - y u)^2 / 2."""

    name: ClassVar[str] = "squared_hinge"
    kind: ClassVar[Kind] = "classification"
    curvature_bound: ClassVar[float] = 1.0
    slope_bound: ClassVar[float] = math.inf

    def value(self, u: Vector, y: Vector) -> Vector:
        return np.maximum(0.0, 1 - y * u) ** 2 / 2

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:
        return np.asarray(-y * np.maximum(0.0, 1 - y * u))

    def curvature(self, u: Vector, y: Vector) -> Vector:
        return np.asarray(y * u < 1, dtype=np.float64)

    def mean_curvature(self, variance: float) -> float:
        return 1.0 if variance < 1 else 0.5

    def lipschitz(self, label_bound: float = 1.0) -> float:
        return 2.0 * label_bound


@dataclass(frozen=True)
class Unitless(PseudoHuber):
    """log cosh r has no unit of the label in it."""

    name: ClassVar[str] = "unitless"

    def value(self, u: Vector, y: Vector) -> Vector:
        return np.log(np.cosh(u - y))


@dataclass(frozen=True)
class Careless(PseudoHuber):
    """Its slopes are float32 numbers, or the labels themselves."""

    name: ClassVar[str] = "careless"
    own: bool = True

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:
        return np.full(len(y), 0.3, dtype=np.float32) if self.own else y


@dataclass(frozen=True)
class ThreeScores(Softmax):
    """One for each of three classes."""

    name: ClassVar[str] = "three_scores"
    classes: float = 3.0


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    for kind in (PseudoHuber, SquaredHinge, Unitless):
        losses.register(kind)
    return


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (300, 3))
    return X, X @ [2.0, -1.0, 0.5] + 0.7 + rng.standard_t(3, 300)


@pytest.mark.parametrize("label_bound", [None, 20.0])
@pytest.mark.parametrize(("split", "solver"), [("central", "newton"), ("central", "gradient"), ("rows", "newton")])
def test_an_estimator_serves_it(split: str, solver: str, label_bound: float | None) -> None:
    X, y = data()
    loss = PseudoHuber(0.8)
    wide = np.column_stack([X, np.ones(300)])

    def objective(w: np.ndarray) -> float:
        return float(loss.value(wide @ w, y).mean() + 0.05 * w[:3] @ w[:3])

    best = minimize(objective, np.zeros(4), tol=1e-12)
    model = sv.PrivateRidge(
        math.inf, loss="pseudo_huber", threshold=0.8, alpha=0.1, solver=solver, label_bound=label_bound
    )
    if split == "central":
        model.fit(X, y)
    else:
        model.fit(sv.Federation.by_rows([(X[:100], y[:100]), (X[100:], y[100:])]))
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), best.x, atol=1e-5)


def test_so_does_one_for_two_classes_and_with_privacy() -> None:
    X, y = data()
    model = sv.PrivateLinearSVC(2.0, 1e-4, loss="squared_hinge", entry_bound=1.0).fit(X, (y > 0.7).astype(int))
    assert model.plan_.loss.name == "squared_hinge"
    assert model.privacy_.epsilon <= 2.0


@pytest.mark.parametrize("bound", [0.1, 0.3])
def test_what_it_returns_is_cut_in_double_precision_and_is_nobodys_labels(bound: float) -> None:
    scores, labels = np.zeros(4), np.array([1.0, -1.0, 0.2, 1.0])
    for slopes in (
        clipped_derivative(Careless(), bound, 20)(scores, labels),
        parts_cut(Careless().derivative(scores, labels), bound, 20),
        bound * projected_cut(Careless(), bound, scores, labels),
    ):
        assert slopes.dtype == np.float64
        assert np.all(np.abs(slopes) <= bound)
    assert float(np.fmin(np.float32(1.0), 0.3)) > 0.3  # negative control: in float32 it would be passed
    for made in (
        clipped_derivative(Careless(own=False), bound, 20),
        lambda u, y: projected_cut(Careless(own=False), bound, u, y),
    ):
        made(scores, labels)
        np.testing.assert_array_equal(labels, [1.0, -1.0, 0.2, 1.0])


def test_a_plan_has_as_many_scores_as_classes_whoever_made_the_loss() -> None:
    """A party would fail at the records of a class that has no score, and so tell that there are any."""
    name = losses.register(ThreeScores).name
    asked = {"regulariser": {"name": "none"}, "split": "central", "parties": [("all", 10)], "features": 2}
    asked |= {"bounds": {"row_norm": 1.0}, "epsilon": 1.0, "delta": 1e-6, "loss": {"name": name}}
    assert Problem.model_validate(asked | {"classes": (0, 1, 2)}).scaled_loss.outputs == 3
    for classes in ((0, 1), (0, 1, 2, 5), None):
        with pytest.raises(ValidationError, match=f"the loss '{name}' does not fit classes"):
            Problem.model_validate(asked | {"classes": classes})


def test_the_lists_of_losses_are_the_registry() -> None:
    X, y = data()
    with pytest.raises(InputError, match=r"'huber', 'pseudo_huber', 'squared', 'unitless', or a loss of the kind"):
        sv.PrivateRidge(loss="absolute").fit(X, y)
    with pytest.raises(InputError, match=r"'hinge', 'logistic', 'sigmoid', 'smoothed_hinge', 'squared_hinge', or"):
        sv.PrivateLinearSVC(loss="huber").fit(X, y > 0)
    with pytest.raises(InputError, match="threshold=None belongs to"):
        sv.PrivateRidge(loss="pseudo_huber").fit(X, y)
    with pytest.raises(InputError, match=r"loss='unitless' has no units"):
        sv.PrivateRidge(loss="unitless", threshold=1.0).fit(X, y)


@pytest.mark.parametrize("solver", ["score", "frank-wolfe", "admm"])
def test_a_solver_over_columns_that_cannot_serve_it_says_so_before_anything_is_charged(
    solver: str, tmp_path: Path
) -> None:
    X, y = data()
    ledgers = [Ledger.create(tmp_path / f"{k}.db") for k in range(2)]
    accounts = [ledger.open("people", 2.0, 1e-4) for ledger in ledgers]
    federation = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y, ledgers=accounts)
    options: dict[str, Any] = {"alpha": 0.0, "radius": 2.0} if solver == "frank-wolfe" else {"alpha": 0.1}
    model = sv.PrivateRidge(
        1.0, 1e-5, loss="pseudo_huber", threshold=0.8, solver=solver, entry_bound=1.0, label_bound=9.0, **options
    )
    try:
        model.fit(federation)
    except InputError:
        assert [account.balance().plans for account in accounts] == [0, 0]
    else:
        assert [account.balance().plans for account in accounts] == [1, 1]


PARTY = """
import sys, numpy as np
from pathlib import Path
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.federation.party import Party
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.identity import local_identities

account = Ledger(Path(sys.argv[1])).account()
party = Party("lab", np.zeros((300, 1)), np.zeros(300), account=account)
text = sys.stdin.read()
plan = Plan.from_json(text)
party.identify(local_identities(plan.names)["lab"])
for query in ("check", ""):
    print(decode(party.handle(encode(Frame("plan", 0, plan.digest, query=query, text=text))).data).text)
print(account.balance().plans)
"""


@pytest.mark.slow
def test_a_party_in_whose_process_it_is_not_known_refuses_before_it_pays(tmp_path: Path) -> None:
    X, y = data()
    Ledger.create(tmp_path / "lab.db").open("people", 2.0, 1e-4)
    federation = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y, names=["clinic", "lab"])
    model = sv.PrivateRidge(
        1.0, 1e-5, loss="pseudo_huber", threshold=0.8, solver="admm", entry_bound=1.0, label_bound=9.0, alpha=0.1
    )
    try:
        plan = model.plan(federation)
    except InputError:
        model.set_params(solver="fdml")
        plan = model.plan(federation)
    ran = subprocess.run(
        [sys.executable, "-c", PARTY, str(tmp_path / "lab.db")],
        input=plan.to_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    *refusals, plans = ran.stdout.splitlines()
    assert plans == "0"
    assert len(refusals) == 2
    for refusal in refusals:
        assert "lab refuses: loss='pseudo_huber' is unknown here" in refusal
        assert "register it, in every process that takes part" in refusal
