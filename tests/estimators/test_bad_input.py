from __future__ import annotations

import functools
import logging
import math
import os
import resource
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.errors import MisfitWarning

NAN, INF = math.nan, math.inf
POSITIVE = ("positive number", "float('inf') for no privacy")
FRACTION = ("between 0 and 1", "1e-5")
HOLDER = "sottovoce.holder"
QUICK = sv.solvers.Newton(rounds=2)


def bounds(kind: Any) -> dict[str, Any]:
    return {"row_norm": 3.0, "solver": QUICK} | ({"label_bound": 12.0} if "label_bound" in kind().get_params() else {})


def labels(kind: Any, data: Any) -> Any:
    return data.y if "label_bound" in kind().get_params() else data.classes


def assert_untouched(model: Any, account: sv.Account) -> None:
    assert account.balance().plans == 0
    assert [entry.kind for entry in account.history()] == ["opening"]
    for attribute in ("coef_", "intercept_", "classes_", "n_iter_", "privacy_", "plan_", "communication_"):
        assert not hasattr(model, attribute)


BALLS = [
    functools.partial(kind, radius=0.5)
    for kind in (sv.PrivateRidge, sv.PrivateLasso, sv.PrivateLogisticRegression, sv.PrivateLinearSVC)
]

# (estimator, the argument, its value, what the message says besides argument=value)
PARAMETERS: list[tuple[Any, str, Any, tuple[str, ...]]] = [
    *((sv.PrivateRidge, "epsilon", value, POSITIVE) for value in (0, -1.0, NAN, "1", None, True, [1])),
    *((sv.PrivateRidge, "delta", value, FRACTION) for value in (0, 1, -1e-5, NAN, "1e-5", None, True)),
    (sv.PrivateRidge, "relation", "add-remove", ("'zero-out' or 'replace-one'",)),
    (sv.PrivateRidge, "calibration", "loose", ("'tight' or 'paper'",)),
    (sv.PrivateRidge, "rescale", "unitary", ("'symmetric'", "'unit'")),
    *((sv.PrivateRidge, "resources", value, ("sv.Resources(n_jobs=", "None")) for value in (2, "cuda", {"n_jobs": 2})),
    (sv.PrivateRidge, "solver", "adam", ("unknown", "squared", "central", "newton, gradient, sgd")),
    *((sv.PrivateRidge, "solver", value, ("'auto'", "greedy-cd", "CD(inner=80)")) for value in (None, 3, ["cd"], {})),
    (sv.PrivateRidge, "solver", sv.solvers.CD, ("a class: write CD()", "greedy-cd")),
    *((sv.PrivateRidge, "row_norm", value, ("positive number", "declare")) for value in (0.0, -1.0, NAN, INF, "1")),
    (sv.PrivateRidge, "row_norm", None, ("Euclidean norm", "entry_bound", "feature_ranges", "not from these data")),
    *((sv.PrivateRidge, "entry_bound", value, ("positive number", "declare")) for value in (0.0, -1.0, "1")),
    *((sv.PrivateRidge, "label_bound", value, ("one number", "pair (low, high)")) for value in (NAN, "5", (1, 2, 3))),
    (sv.PrivateRidge, "label_bound", (2.0, 1.0), ("low below high",)),
    (sv.PrivateRidge, "label_bound", None, ("range of the labels", "(low, high)", "not from these data")),
    *(
        (sv.PrivateRidge, "alpha", value, ("zero or a positive finite number",))
        for value in (-1.0, NAN, INF, "1", None)
    ),
    *((sv.PrivateRidge, "radius", value, ("positive finite number", "norm")) for value in (0, -1.0, NAN, "1")),
    *((sv.PrivateRidge, "insecure_seed", value, ("whole number from 0", "None")) for value in (-1, 0.5, True, "0")),
    *((kind, "alpha", 0.3, ("and radius=0.5: a ball is in the place of a penalty",)) for kind in BALLS),
    (sv.PrivateLasso, "alpha", -1.0, ("zero or a positive finite number",)),
    (sv.PrivateElasticNet, "l1_ratio", 2.0, ("between 0", "1")),
    (sv.PrivateElasticNet, "radius", 1.0, ("no ball", "PrivateLasso or PrivateRidge")),
    (sv.PrivateLogisticRegression, "l1_ratio", 2.0, ("between 0", "1")),
    (sv.PrivateLinearSVC, "loss", "squared", ("'hinge', 'logistic', 'sigmoid', 'smoothed_hinge'",)),
    *((sv.PrivateLinearSVC, "classes", value, ("must be labels", "(0, 1)")) for value in ((1,), 2, "ab")),
    *(
        (sv.PrivateLinearSVC, "classes", value, ("texts or finite numbers", "(0, 1)"))
        for value in ((0, INF), (NAN, 1), ("nan", "x"), (-INF, "x"), (10**400, 1), ("inf", "x"))
    ),
]


class TestParameters:
    @pytest.mark.parametrize(("kind", "argument", "value", "says"), PARAMETERS)
    def test_the_error_names_the_argument_its_value_and_what_is_allowed(
        self, data: Any, account: sv.Account, kind: Any, argument: str, value: Any, says: tuple[str, ...]
    ) -> None:
        model = kind(**bounds(kind) | {"ledger": account, argument: value})
        with pytest.raises(sv.InputError) as error:
            model.fit(data.X, labels(kind, data))
        assert f"{argument}={value!r}" in str(error.value)
        for text in says:
            assert text in str(error.value)
        assert_untouched(model, account)

    @pytest.mark.parametrize(
        ("kind", "parameters", "says"),
        [
            (sv.PrivateRidge, {"calibration": "paper"}, ("solver='newton'", "gradient, sgd")),
            (sv.PrivateRidge, {"solver": "sgd", "calibration": "paper", "epsilon": INF}, ("epsilon=inf", "finite")),
            (sv.PrivateRidge, {"feature_ranges": 3}, ("feature_ranges", "(lows, highs)", "for example")),
            (sv.PrivateRidge, {"feature_ranges": ([0] * 4, [1] * 4)}, ("4 pairs", "5 features", "one pair each")),
            (sv.PrivateRidge, {"feature_ranges": ([0] * 4, [1] * 4), "epsilon": INF}, ("4 pairs", "5 features")),
            (sv.PrivateRidge, {"feature_ranges": ([1] * 5, [1] * 5)}, ("feature_ranges", "low below high")),
            (
                sv.PrivateLinearSVC,
                {"loss": "hinge", "solver": "newton"},
                ("newton", "hinge", "smooth", "gradient, sgd"),
            ),
            (sv.PrivateLinearSVC, {"classes": (1, 1)}, ("each class once", "classes=(0, 1)")),
            (sv.PrivateLogisticRegression, {"l1_ratio": 0.5, "radius": 1.0}, ("l1_ratio=0.5", "radius=1.0")),
        ],
    )
    def test_arguments_that_do_not_go_together(
        self, data: Any, account: sv.Account, kind: Any, parameters: Any, says: tuple[str, ...]
    ) -> None:
        model = kind(**bounds(kind) | {"ledger": account} | parameters)
        with pytest.raises(sv.InputError) as error:
            model.fit(data.X, labels(kind, data))
        for text in says:
            assert text in str(error.value)
        assert_untouched(model, account)

    def test_a_bound_of_any_kind_will_do(self, data: Any) -> None:
        for given in ({"row_norm": 3}, {"entry_bound": 3}, {"feature_ranges": ([-3] * 5, [3] * 5)}):
            assert hasattr(sv.PrivateRidge(label_bound=12, solver=QUICK, **given).fit(data.X, data.y), "coef_")

    @pytest.mark.parametrize("epsilon", [1e-6, 1e6])
    def test_budgets_at_the_edge_of_sense(self, data: Any, epsilon: float) -> None:
        model = sv.PrivateRidge(epsilon, **bounds(sv.PrivateRidge)).fit(data.X, data.y)
        assert np.isfinite(model.coef_).all()
        assert model.privacy_.epsilon <= epsilon


class TestDelta:
    def test_a_delta_of_one_record_warns_and_says_why(self, data: Any) -> None:
        model = sv.PrivateRidge(1.0, 1 / len(data.y), **bounds(sv.PrivateRidge))
        with pytest.warns(UserWarning, match=r"delta=0\.00417 is at or above 1/N.*one random record whole") as caught:
            model.fit(data.X, data.y)
        assert "Choose delta below" in str(caught[0].message)
        assert caught[0].filename == __file__
        assert hasattr(model, "coef_")

    def test_below_it_or_without_privacy_it_is_silent(self, data: Any) -> None:
        sv.PrivateRidge(1.0, 0.99 / len(data.y), **bounds(sv.PrivateRidge)).fit(data.X, data.y)
        sv.PrivateRidge(INF, 0.5, **bounds(sv.PrivateRidge)).fit(data.X, data.y)


class TestShapes:
    @pytest.mark.parametrize(
        ("rows", "target", "says"),
        [
            (slice(0), slice(0), "0 sample"),
            ((slice(None), slice(0)), slice(None), "0 feature"),
            ((slice(None), 0), slice(None), "Expected 2D array"),
            (None, slice(None), "dim 3"),
            (slice(None), slice(1, None), r"inconsistent numbers of samples: \[240, 239\]"),
            (slice(None), (slice(None), None), "1d array"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:A column-vector y:sklearn.exceptions.DataConversionWarning")
    def test_wrong_shapes(self, data: Any, account: sv.Account, rows: Any, target: Any, says: str) -> None:
        y = np.column_stack([data.y, data.y]) if says == "1d array" else data.y[target]
        model = sv.PrivateRidge(ledger=account, **bounds(sv.PrivateRidge))
        with pytest.raises(ValueError, match=says):
            model.fit(data.X[rows], y)
        assert_untouched(model, account)

    def test_no_labels(self, data: Any, account: sv.Account) -> None:
        model = sv.PrivateRidge(ledger=account, **bounds(sv.PrivateRidge))
        with pytest.raises(sv.InputError, match=r"requires y to be passed.*Federation"):
            model.fit(data.X)
        assert_untouched(model, account)

    @pytest.mark.parametrize("secret", ["Rumpelstiltskin", complex(31337, 1)])
    def test_an_error_never_shows_a_value_of_the_data(self, data: Any, account: sv.Account, secret: Any) -> None:
        X = data.X.astype(object)
        X[7, 2] = secret
        model = sv.PrivateRidge(ledger=account, **bounds(sv.PrivateRidge))
        for rows in (X[:, 2], X.astype(type(secret))):
            with pytest.raises(ValueError) as error:  # noqa: PT011
                model.fit(rows, data.y)
            assert str(secret)[:5] not in str(error.value)
            assert "31337" not in str(error.value)
        with pytest.raises(sv.InputError, match="y must be numbers") as error:
            model.fit(data.X, np.where(data.classes, "Rumpelstiltskin", "x"))
        assert "Rump" not in str(error.value)
        assert_untouched(model, account)

    def test_text_columns_are_answered_with_the_way_to_encode_them(self, data: Any) -> None:
        with pytest.raises(sv.InputError, match=r"not numbers.*schema=sv.Schema"):
            sv.PrivateRidge(**bounds(sv.PrivateRidge)).fit(np.full((9, 2), "north"), np.zeros(9))

    def test_another_number_of_features_at_prediction(self, data: Any) -> None:
        model = sv.PrivateRidge(**bounds(sv.PrivateRidge)).fit(data.X, data.y)
        with pytest.raises(ValueError, match="4 features, but PrivateRidge is expecting 5"):
            model.predict(data.X[:, :4])


class TestClasses:
    @pytest.mark.parametrize("kind", [sv.PrivateLogisticRegression, sv.PrivateLinearSVC])
    @pytest.mark.parametrize(
        ("y", "says"),
        [
            (np.zeros(240, dtype=int), "two classes, but 1 class.*classes="),
            (np.full(240, "only"), "two classes, but 1 class.*classes="),
            (np.linspace(0, 1, 240), "Unknown label type: continuous"),
        ],
    )
    def test_not_two_classes(self, data: Any, account: sv.Account, kind: Any, y: Any, says: str) -> None:
        model = kind(ledger=account, **bounds(kind))
        with pytest.raises(ValueError, match=says):
            model.fit(data.X, y)
        assert_untouched(model, account)

    @pytest.mark.parametrize("kind", [sv.PrivateLogisticRegression, sv.PrivateLinearSVC])
    def test_solvers_for_two_classes_say_so(self, data: Any, account: sv.Account, kind: Any) -> None:
        model = kind(ledger=account, **{**bounds(kind), "solver": "newton"})
        says = "'newton' tells two classes apart, not 3; solvers that fit: gradient, whitened"
        with pytest.raises(sv.InputError, match=says):
            model.fit(data.X, np.arange(240) % 3)
        assert_untouched(model, account)

    def test_several_classes_have_no_ball(self, data: Any) -> None:
        given = {**bounds(sv.PrivateLogisticRegression), "solver": "whitened"}
        model = sv.PrivateLogisticRegression(radius=1.0, l1_ratio=0, **given)
        with pytest.raises(sv.InputError, match="radius: balls are for two classes"):
            model.fit(data.X, np.arange(240) % 3)

    def test_one_class_is_enough_where_both_are_declared(self, data: Any) -> None:
        model = sv.PrivateLogisticRegression(
            5.0, classes=(0, 1), insecure_seed=0, **bounds(sv.PrivateLogisticRegression)
        )
        model.fit(data.X, np.ones(240, dtype=int))
        assert model.classes_.tolist() == [0, 1]
        assert model.intercept_[0] > 0


class TestUnusableRecords:
    """They count as null rows: the model is the one of blank rows, and the holder's own log alone is told."""

    def fitted(self, X: Any, y: Any, classes: Any = (0, 1), epsilon: float = 1.0) -> Any:
        model = sv.PrivateLogisticRegression(
            epsilon, classes=classes, row_norm=3.0, solver=sv.solvers.Newton(rounds=4), insecure_seed=9
        )
        federation = sv.Federation.by_rows([(X[:100], y[:100]), (X[100:], y[100:])], record=True)
        return model.fit(federation)

    @pytest.mark.parametrize("spoil", ["label", "nan", "infinity"])
    def test_a_record_like_no_record(self, data: Any, caplog: Any, spoil: str) -> None:
        X, y = data.X.copy(), data.classes.copy()
        spoilt, other = ((X.copy(), y.copy()) for _ in range(2))
        for row, (Z, t) in ((7, spoilt), (7, other)):
            if spoil == "label":
                t[row] = 2
            else:
                Z[row, 3] = NAN if spoil == "nan" else -INF
            Z[row, 0] += 1.0 if Z is other[0] else 0.0
        with caplog.at_level(logging.INFO):
            first, second = self.fitted(*spoilt), self.fitted(*other)
        # Whatever else the unusable record holds makes no difference.
        np.testing.assert_array_equal(first.coef_, second.coef_)
        assert not np.array_equal(first.coef_, self.fitted(X, y).coef_)
        assert {record.name for record in caplog.records} == {HOLDER}
        assert "1 of 100 rows cannot be used" in caplog.text

    def test_nobody_else_can_tell(self, data: Any, recwarn: Any) -> None:
        y = data.classes.copy()
        y[::2] = 5
        good, bad = self.fitted(data.X, data.classes), self.fitted(data.X, y)
        assert len(recwarn) == 0
        assert bad.privacy_ == good.privacy_
        assert bad.communication_ == good.communication_
        words = [[m.payload for m in model.transcript_ if isinstance(m.payload, dict)] for model in (good, bad)]
        for payload in (*words[0], *words[1]):
            payload.pop("signature", None)  # of another run, so another one
        assert words[0] == words[1]
        assert [(m.round, m.sender, m.name, np.shape(m.payload)) for m in good.transcript_] == [
            (m.round, m.sender, m.name, np.shape(m.payload)) for m in bad.transcript_
        ]

    def test_null_rows_count_in_the_mean(self, data: Any) -> None:
        """N is public and stays what it was, so a null row is a row of zeros and not a missing one."""
        X, y = np.vstack([data.X, np.full((240, 5), NAN)]), np.concatenate([data.y, np.zeros(240)])
        with pytest.warns(MisfitWarning, match="240 of 480 rows cannot be used"):
            model = sv.PrivateRidge(INF, alpha=0.1).fit(X, y)
        expected = sv.PrivateRidge(INF, alpha=0.2).fit(data.X, data.y)
        np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-9)
        np.testing.assert_allclose(model.intercept_, expected.intercept_, atol=1e-9)

    @pytest.mark.parametrize("epsilon", [1.0, INF])
    def test_labels_beyond_the_bound_are_cut(self, data: Any, caplog: Any, epsilon: float) -> None:
        y = data.y.copy()
        y[:3] = [1e9, -1e9, 13.0]
        cut = np.clip(y, -12.0, 12.0)
        models = [
            sv.PrivateRidge(epsilon, insecure_seed=2, **bounds(sv.PrivateRidge)).fit(data.X, values)
            for values in (y, cut)
        ]
        np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
        assert caplog.text == ""

    def test_a_label_that_is_not_a_number_at_a_party_is_a_null_row(self, data: Any, caplog: Any) -> None:
        y = data.y.copy()
        y[:2] = [NAN, INF]
        federation = sv.Federation.by_rows([(data.X[:100], y[:100]), (data.X[100:], y[100:])])
        assert hasattr(sv.PrivateRidge(**bounds(sv.PrivateRidge)).fit(federation), "coef_")
        assert "2 of 100 rows cannot be used" in caplog.text


class TestBudget:
    def test_too_small_a_budget_says_what_would_fit(self, data: Any, ledger: sv.Ledger) -> None:
        account = ledger.open("small", 0.5, 1e-5)
        model = sv.PrivateRidge(1.0, ledger=account, **bounds(sv.PrivateRidge))
        says = r"account 'small': the plan asks for epsilon 1 at.*0\.5 is left.*epsilon at most 0\.5"
        with pytest.raises(sv.BudgetError, match=says):
            model.fit(data.X, data.y)
        assert_untouched(model, account)
        model.set_params(epsilon=0.5).fit(data.X, data.y)
        assert account.balance().plans == 1

    def test_a_refused_fit_leaves_the_model_of_the_last_one(self, data: Any, ledger: sv.Ledger) -> None:
        account = ledger.open("small", 1.0, 1e-5)
        model = sv.PrivateRidge(0.9, ledger=account, **bounds(sv.PrivateRidge)).fit(data.X, data.y)
        before = {name: value for name, value in vars(model).items() if name.endswith("_")}
        with pytest.raises(sv.BudgetError):
            model.fit(data.X, data.y)
        assert {name: value for name, value in vars(model).items() if name.endswith("_")} == before
        assert account.balance().plans == 1

    def test_an_account_of_the_other_relation_is_charged_in_its_own(self, data: Any, ledger: sv.Ledger) -> None:
        account = ledger.open("strict", 1.0, 1e-5, relation="replace-one")
        model = sv.PrivateRidge(
            0.9, ledger=account, **bounds(sv.PrivateRidge) | {"solver": sv.solvers.Gradient(rounds=2)}
        )
        with pytest.raises(sv.BudgetError):
            model.fit(data.X, data.y)
        model.set_params(epsilon=0.4).fit(data.X, data.y)
        assert account.balance().spent > 0.75


class TestLedgerFiles:
    def test_no_such_file(self, data: Any, tmp_path: Path) -> None:
        with pytest.raises(sv.LedgerError, match="no such file"):
            sv.PrivateRidge(ledger=tmp_path / "typo", **bounds(sv.PrivateRidge)).fit(data.X, data.y)
        assert list(tmp_path.iterdir()) == []

    def test_no_account_yet(self, data: Any, ledger: sv.Ledger) -> None:
        with pytest.raises(sv.LedgerError, match=r"no account.*sottovoce ledger create"):
            sv.PrivateRidge(ledger=ledger, **bounds(sv.PrivateRidge)).fit(data.X, data.y)

    def test_which_account_is_not_said(self, data: Any, ledger: sv.Ledger) -> None:
        for name in ("one", "two"):
            ledger.open(name, 1.0, 1e-5)
        with pytest.raises(sv.LedgerError, match="'one', 'two'"):
            sv.PrivateRidge(ledger=ledger, **bounds(sv.PrivateRidge)).fit(data.X, data.y)

    @pytest.mark.parametrize("value", [5, True, {"path": "x"}])
    def test_not_a_ledger_at_all(self, data: Any, value: Any) -> None:
        with pytest.raises(sv.InputError, match=r"ledger=.*must be the path of a ledger, a Ledger, an Account or None"):
            sv.PrivateRidge(ledger=value, **bounds(sv.PrivateRidge)).fit(data.X, data.y)

    def test_a_damaged_file(self, data: Any, account: sv.Account) -> None:
        account.path.write_bytes(b"x" * 5000)
        for given in (account, account.path):
            model = sv.PrivateRidge(ledger=given, **bounds(sv.PrivateRidge))
            with pytest.raises(sv.LedgerError):
                model.fit(data.X, data.y)
            assert not hasattr(model, "coef_")

    def test_an_edited_budget(self, data: Any, account: sv.Account, caplog: Any) -> None:
        with sqlite3.connect(account.path) as connection:
            connection.executescript("DROP TRIGGER no_update;")
            connection.execute("UPDATE entries SET details = replace(details, '100.0', '900.0')")
        connection.close()
        model = sv.PrivateRidge(ledger=account, **bounds(sv.PrivateRidge))
        with pytest.raises(sv.LedgerError) as error:
            model.fit(data.X, data.y)
        assert "cannot be trusted" in f"{error.value} {caplog.text}"
        assert not hasattr(model, "coef_")

    def test_a_full_disk(self, data: Any, account: sv.Account, caplog: Any) -> None:
        model = sv.PrivateRidge(ledger=account, **bounds(sv.PrivateRidge))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
        try:
            with pytest.raises(sv.LedgerError) as error:
                model.fit(data.X, data.y)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "Nothing was released" in f"{error.value} {caplog.text}"
        assert_untouched(model, account)

    @pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
    def test_a_read_only_folder(self, data: Any, account: sv.Account, caplog: Any) -> None:
        model = sv.PrivateRidge(ledger=account, **bounds(sv.PrivateRidge))
        account.path.parent.chmod(0o500)
        try:
            with pytest.raises(sv.LedgerError) as error:
                model.fit(data.X, data.y)
        finally:
            account.path.parent.chmod(0o700)
        assert "may not be written" in f"{error.value} {caplog.text}"
        assert_untouched(model, account)


class TestFederations:
    def test_labels_and_ledgers_are_the_federations(self, data: Any, account: sv.Account) -> None:
        federation = sv.Federation.central(data.X, data.y, ledger=account)
        model = sv.PrivateRidge(**bounds(sv.PrivateRidge))
        with pytest.raises(sv.InputError, match="y must be None when X is a Federation"):
            model.fit(federation, data.y)
        with pytest.raises(sv.InputError, match=r"ledger goes to the federation.*ledgers="):
            sv.PrivateRidge(ledger=account, **bounds(sv.PrivateRidge)).fit(federation)
        assert_untouched(model, account)

    def test_parties_with_other_columns(self, data: Any) -> None:
        with pytest.raises(sv.InputError, match=r"\[4, 5\] features.*same columns"):
            sv.Federation.by_rows([(data.X, data.y), (data.X[:, :4], data.y)])

    def test_parties_without_rows(self, data: Any) -> None:
        with pytest.raises(sv.InputError, match="parts is empty"):
            sv.Federation.by_rows([])
        with pytest.raises(sv.InputError, match=r"party-2: X is empty, with shape \(0, 5\)"):
            sv.Federation.by_rows([(data.X, data.y), (data.X[:0], data.y[:0])])

    def test_columns_of_other_people(self, data: Any) -> None:
        with pytest.raises(sv.InputError, match=r"\[239, 240\] rows.*same people"):
            sv.Federation.by_columns([data.X[:, :2], data.X[1:, 2:]], data.y)

    @pytest.mark.parametrize("solver", ["newton", "gradient", "sgd", "scd", "cd", "greedy-cd"])
    def test_a_split_that_the_solver_does_not_serve_is_told_before_anything_runs(
        self, data: Any, account: sv.Account, solver: str
    ) -> None:
        federation = sv.Federation.by_columns(
            [data.X[:, :2], data.X[:, 2:]], data.y, ledgers=[account, None], record=True, products="none"
        )
        model = sv.PrivateRidge(**bounds(sv.PrivateRidge) | {"solver": solver})
        with pytest.raises(sv.InputError, match=f"'{solver}' does not serve data split by columns"):
            model.fit(federation)
        assert federation.transport.communication.uplink_bytes == 0
        assert_untouched(model, account)

    def test_a_problem_that_the_solver_does_not_serve_is_told_before_anything_runs(
        self, data: Any, account: sv.Account
    ) -> None:
        federation = sv.Federation.by_columns(
            [data.X[:, :2], data.X[:, 2:]], data.y, ledgers=[account, None], record=True
        )
        model = sv.PrivateRidge(**bounds(sv.PrivateRidge) | {"solver": "frank-wolfe"})
        with pytest.raises(sv.InputError, match=r"'frank-wolfe' needs the l1 ball, not 'none': pass radius"):
            model.fit(federation)
        assert_untouched(model, account)

    def test_parties_that_disagree_on_the_classes(self, data: Any) -> None:
        X, y = data.X, data.classes
        federation = sv.Federation.by_rows([(X[:100], y[:100]), (X[100:], y[100:] + 5)])
        with pytest.raises(sv.InputError, match="two classes apart, not 4"):
            sv.PrivateLinearSVC(**bounds(sv.PrivateLinearSVC)).fit(federation)

    def test_sparse_rows_and_ranges_that_would_fill_them(self, data: Any) -> None:
        model = sv.PrivateRidge(label_bound=12, feature_ranges=([0] * 5, [1] * 5), solver=QUICK)
        with pytest.raises(sv.InputError, match=r"shift the zeros of a sparse matrix.*rescale='unit'"):
            model.fit(sp.csr_matrix(data.X), data.y)
        assert not hasattr(model, "coef_")
