"""A regularisation path under one budget, and what `solver="auto"` chooses."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import WHY
from sottovoce.data.bounds import Bounds
from sottovoce.plan.problem import Named, Problem

DECLARED: dict[str, Any] = {"delta": 1e-6, "entry_bound": 1.0, "label_bound": 6.0}


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    X = generator.uniform(-1, 1, size=(6000, 6))
    y = X @ [3.0, 0.0, -2.0, 0.0, 1.0, 0.0] + 0.5 + 0.2 * generator.standard_normal(6000)
    return X, y


class TestPath:
    def test_without_privacy_it_is_the_exact_path(self, problem: Any) -> None:
        path = sv.PrivateLasso(epsilon=math.inf, alpha=1e-3, **DECLARED).path(*problem, alphas=7)
        assert len(path.alphas) == 7
        assert np.all(np.diff(path.alphas) < 0)
        assert path.alphas[-1] == pytest.approx(1e-3)
        for alpha, coef, intercept in zip(path.alphas, path.coefs, path.intercepts, strict=True):
            alone = sv.PrivateLasso(epsilon=math.inf, alpha=alpha, solver="newton", **DECLARED).fit(*problem)
            np.testing.assert_allclose(coef, alone.coef_, rtol=0, atol=1e-7)
            assert intercept == pytest.approx(alone.intercept_, abs=1e-7)
        np.testing.assert_allclose(path.coefs[0], 0.0, atol=1e-7)  # the first alpha is where the first feature enters

    def test_a_private_path_is_near_the_exact_one(self, problem: Any) -> None:
        alphas = [0.3, 0.1, 0.03, 0.01]
        exact = sv.PrivateLasso(epsilon=math.inf, **DECLARED).path(*problem, alphas=alphas)
        private = sv.PrivateLasso(epsilon=4.0, insecure_seed=1, **DECLARED).path(*problem, alphas=alphas)
        np.testing.assert_array_equal(private.alphas, alphas)
        np.testing.assert_allclose(private.coefs, exact.coefs, atol=0.25)
        assert private.privacy.epsilon == pytest.approx(4.0, rel=1e-6)

    def test_one_fit_is_charged_however_long_the_path(self, problem: Any, tmp_path: Any) -> None:
        account = sv.Ledger.create(tmp_path / "holder.ledger").open("people", 1.0, 1e-6)
        model = sv.PrivateLasso(epsilon=1.0, ledger=account, **DECLARED)
        model.path(*problem, alphas=200)
        assert account.balance().plans == 1
        with pytest.raises(sv.BudgetError):
            model.path(*problem, alphas=2)

    def test_by_rows(self, problem: Any) -> None:
        X, y = problem
        federation = sv.Federation.by_rows([(X[:2000], y[:2000]), (X[2000:], y[2000:])])
        path = sv.PrivateLasso(epsilon=math.inf, **DECLARED).path(federation, alphas=[0.1, 0.01])
        central = sv.PrivateLasso(epsilon=math.inf, **DECLARED).path(X, y, alphas=[0.1, 0.01])
        np.testing.assert_allclose(path.coefs, central.coefs, atol=1e-8)

    def test_a_model_of_the_path_predicts(self, problem: Any) -> None:
        X, y = problem
        path = sv.PrivateLasso(epsilon=8.0, insecure_seed=2, **DECLARED).path(X, y, alphas=[0.5, 0.01])
        model = path.model(0.012)
        assert model.alpha == 0.01
        assert model.score(X, y) > 0.95
        assert path.model(3.0).alpha == 0.5
        np.testing.assert_array_equal(model.coef_, path.coefs[1])
        assert clone(model).alpha == 0.01

    def test_the_estimator_itself_stays_as_it_was(self, problem: Any) -> None:
        model = sv.PrivateLasso(epsilon=1.0, alpha=0.2, **DECLARED)
        before = model.get_params()
        model.path(*problem, alphas=3)
        assert model.get_params() == before
        assert not hasattr(model, "coef_")

    def test_it_takes_the_options_of_newton(self, problem: Any) -> None:
        model = sv.PrivateLasso(epsilon=1.0, solver=sv.solvers.Newton(rounds=5), **DECLARED)
        assert model.path(*problem, alphas=3).plan.rounds == 5

    def test_a_plot(self, problem: Any) -> None:
        matplotlib = pytest.importorskip("matplotlib")
        matplotlib.use("Agg")
        (axes,) = sv.PrivateLasso(epsilon=1.0, **DECLARED).path(*problem, alphas=5).plot().axes
        assert len(axes.lines) == 6
        assert axes.get_xlabel() == "alpha"

    @pytest.mark.parametrize(
        ("parameters", "alphas", "says"),
        [
            ({}, [0.1, -1.0], "must be positive numbers, or how many"),
            ({}, [], "must be positive numbers, or how many"),
            ({}, "many", "alphas='many' must be positive numbers"),
            ({}, [[0.1]], "must be positive numbers"),
            ({}, math.nan, "must be positive numbers"),
            ({}, 0, "alphas=0 must be at least 1"),
            ({}, True, "must be positive numbers"),
            ({"alpha": 0.0}, 5, "alpha=0.0 must be above 0"),
            ({"solver": "cd"}, 5, "solver='cd': a path is computed from the releases of 'newton'"),
            ({"radius": 1.0}, 5, "radius=1.0: a path goes over alpha"),
        ],
    )
    def test_bad_input(self, problem: Any, parameters: dict[str, Any], alphas: Any, says: str) -> None:
        with pytest.raises(sv.InputError, match=says.replace("(", r"\(")):
            sv.PrivateLasso(epsilon=1.0, **{**DECLARED, **parameters}).path(*problem, alphas=alphas)

    def test_a_model_needs_a_positive_alpha(self, problem: Any) -> None:
        path = sv.PrivateLasso(epsilon=1.0, **DECLARED).path(*problem, alphas=[0.1, 0.01])
        with pytest.raises(sv.InputError, match=r"alpha=0 must be a positive number; the path has 0.01 to 0.1"):
            path.model(0)


def public(
    penalty: str = "l2", loss: str = "squared", records: int = 10_000, features: int = 20, **changes: Any
) -> Any:
    parameters = {} if penalty == "none" else {"alpha": 1e-3}
    declared: dict[str, Any] = {
        "loss": Named(name=loss),
        "regulariser": Named(name=penalty, parameters=parameters),
        "split": "central",
        "parties": (("data", records),),
        "features": features,
        "bounds": Bounds.declare(row_norm=1.0, label_bound=1.0),
        "epsilon": 1.0,
        "delta": 1e-6,
        "classes": None if loss == "squared" else (-1, 1),
    }
    return algorithms.choose(Problem(**declared | changes))


class TestAuto:
    """The rule of `solver="auto"`: public numbers only."""

    def test_whitened_whatever_the_signal_and_the_number_of_features(self) -> None:
        assert public() == public("none") == public("l1") == public("elastic_net") == "whitened"
        assert public("l2", "logistic") == public("l2", "smoothed_hinge") == public("none", "hinge") == "whitened"
        assert public(epsilon=0.1) == public("none", epsilon=0.1) == public(records=300) == "whitened"
        assert public("none", features=5000) == public("l2", features=5000) == "whitened"

    def test_without_noise_newton_or_above_two_thousand_features_gradient(self) -> None:
        assert public(epsilon=math.inf) == public("none", epsilon=math.inf) == "newton"
        assert public("none", features=5000, epsilon=math.inf) == "gradient"

    def test_duals_where_there_is_no_curvature(self) -> None:
        assert public("l2", "hinge") == "scd"
        assert public("l2", "hinge", parties=(("a", 5000), ("b", 5000)), split="rows") == "scd"

    def test_few_coordinates_where_there_are_many_features(self) -> None:
        assert public("l1", features=5000) == "greedy-cd"
        assert public("l1", records=1000, features=1900) == "greedy-cd"
        assert public("l1", records=10**6, features=5000) == "whitened"

    def test_columns_of_different_bounds_have_coordinates_of_their_own(self) -> None:
        uneven = Bounds.declare(entry_bound=[1.0] * 19 + [1000.0], label_bound=1.0)
        assert public(bounds=uneven) == public("l1", bounds=uneven) == public("none", bounds=uneven) == "cd"
        assert public("l2", "hinge", bounds=uneven) == "scd"
        even = Bounds.declare(entry_bound=[1.0] * 19 + [2.0], label_bound=1.0)
        assert public(bounds=even) == "whitened"

    def test_replace_one_has_half_the_signal_and_four_parties_too(self) -> None:
        def chosen(records: int, **changes: Any) -> str:
            return public("l1", features=1000, records=records, **changes)

        records = next(n for n in range(1000, 10**6, 1000) if chosen(n) == "whitened")
        for times, expected in ((1.9, "greedy-cd"), (2.1, "whitened")):
            share = int(times * records / 4)
            assert chosen(4 * share, relation="replace-one") == expected
            assert chosen(0, split="rows", parties=tuple((name, share) for name in "abcd")) == expected

    def test_every_solver_that_it_takes_has_a_reason(self) -> None:
        taken = {public(penalty, loss) for penalty in ("none", "l1", "l2") for loss in ("squared", "hinge", "logistic")}
        assert taken <= set(WHY)

    @pytest.mark.filterwarnings("always:epsilon=")
    def test_a_budget_that_buys_little_is_said_before_it_is_spent(self) -> None:
        generator = np.random.default_rng(0)
        X, y = generator.uniform(-1, 1, (900, 4)), generator.uniform(-1, 1, 900)
        declared = {"delta": 1e-5, "row_norm": 1.0, "label_bound": 1.0}
        with pytest.warns(UserWarning, match=r"epsilon=0.1: this budget buys little here.*900 records.*epsilon=\d"):
            sv.PrivateRidge(epsilon=0.1, **declared).plan(sv.Federation.central(X, y))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sv.PrivateRidge(epsilon=1.0, **declared).plan(sv.Federation.central(X, y))
            sv.PrivateRidge(epsilon=math.inf, **declared).plan(sv.Federation.central(X, y))

    def test_it_reads_nothing_of_the_data(self) -> None:
        generator = np.random.default_rng(0)
        X, y = generator.uniform(-1, 1, (500, 4)), generator.uniform(-1, 1, 500)
        model = sv.PrivateRidge(epsilon=1.0, delta=1e-6, alpha=1e-3, row_norm=1.0, label_bound=1.0)
        one = model.plan(sv.Federation.central(X, y))
        other = model.plan(sv.Federation.central(100 * X, -y))
        fields = {"run", "coin"}
        assert one.model_dump(exclude=fields) == other.model_dump(exclude=fields)
