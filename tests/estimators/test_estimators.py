from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

import sottovoce as sv
from covering import pairwise
from sottovoce.plan.plan import Plan

INF = math.inf
REGRESSORS = (sv.PrivateRidge, sv.PrivateLasso, sv.PrivateElasticNet)
CLASSIFIERS = (sv.PrivateLogisticRegression, sv.PrivateLinearSVC)
ALL = (*REGRESSORS, *CLASSIFIERS)


def make(kind: Any, data: Any, epsilon: float = 1.0, *, rounds: int = 3, **parameters: Any) -> Any:
    """An estimator with the bounds that the data keep; one that names no solver has a quick one."""
    bounds = {"row_norm": data.row_norm}
    if kind in REGRESSORS:
        bounds["label_bound"] = data.label_bound
    solver = parameters.pop("solver", "newton")
    if solver != "auto":
        solver = sv.solvers.by_name(solver, rounds=rounds)
    return kind(epsilon, **{"solver": solver, **bounds, **parameters})


def target(kind: Any, data: Any) -> Any:
    return data.y if kind in REGRESSORS else data.classes


def exact(kind: Any, bounds: dict[str, Any], **parameters: Any) -> Any:
    """The estimator without privacy; a regression's bounds only where it takes them."""
    return kind(INF, **{name: value for name, value in bounds.items() if name in kind().get_params()}, **parameters)


def assert_same_model(model: Any, reference: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(np.ravel(model.coef_), np.ravel(reference.coef_), rtol=0, atol=tolerance)
    np.testing.assert_allclose(np.ravel(model.intercept_), np.ravel(reference.intercept_), rtol=0, atol=tolerance)


BOUNDS = {
    "no bounds": {},
    "row norm": {"row_norm": 3.0, "label_bound": 12.0},
    "entries": {"entry_bound": 3.0, "label_bound": (-11.0, 12.0)},
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, sp.csr_matrix, sp.csc_array], ids=lambda f: f.__name__)
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "no intercept"])
class TestWithoutPrivacyEqualsScikitLearn:
    """alpha is on the scale of the mean loss: scikit-learn's Ridge(N alpha) and LogisticRegression(C = 1/(N alpha))."""

    def test_ridge(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        model = exact(sv.PrivateRidge, bounds, alpha=0.1, fit_intercept=intercept).fit(form(data.X), data.y)
        reference = Ridge(0.1 * len(data.y), fit_intercept=intercept, tol=1e-12).fit(data.X, data.y)
        assert_same_model(model, reference)

    def test_least_squares(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        model = exact(sv.PrivateRidge, bounds, fit_intercept=intercept).fit(form(data.X), data.y)
        assert_same_model(model, LinearRegression(fit_intercept=intercept).fit(data.X, data.y))

    def test_lasso(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        model = exact(sv.PrivateLasso, bounds, alpha=0.1, fit_intercept=intercept).fit(form(data.X), data.y)
        reference = Lasso(0.1, fit_intercept=intercept, tol=1e-12, max_iter=100_000).fit(data.X, data.y)
        assert_same_model(model, reference)
        assert (model.coef_[[2, 4]] == 0).all()

    def test_elastic_net(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        model = exact(sv.PrivateElasticNet, bounds, alpha=0.1, l1_ratio=0.3, fit_intercept=intercept)
        reference = ElasticNet(0.1, l1_ratio=0.3, fit_intercept=intercept, tol=1e-12, max_iter=100_000)
        assert_same_model(model.fit(form(data.X), data.y), reference.fit(data.X, data.y))

    def test_logistic(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        X, y = data.X, data.classes
        for alpha in (0.0, 0.01):
            model = exact(sv.PrivateLogisticRegression, bounds, alpha=alpha, fit_intercept=intercept).fit(form(X), y)
            reference = LogisticRegression(
                C=1 / (len(y) * alpha) if alpha else INF, fit_intercept=intercept, tol=1e-12, solver="newton-cholesky"
            )
            assert_same_model(model, reference.fit(X, y))

    def test_logistic_with_l1(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        X, y = data.X, data.classes
        model = exact(sv.PrivateLogisticRegression, bounds, alpha=0.02, l1_ratio=1, fit_intercept=intercept)
        reference = LogisticRegression(
            C=1 / (len(y) * 0.02), l1_ratio=1, fit_intercept=intercept, tol=1e-10, solver="saga", max_iter=100_000
        )
        assert_same_model(model.fit(form(X), y), reference.fit(X, y))

    def test_logistic_with_elastic_net(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        X, y = data.X, data.classes
        model = exact(sv.PrivateLogisticRegression, bounds, alpha=0.02, l1_ratio=0.4, fit_intercept=intercept)
        reference = LogisticRegression(
            C=1 / (len(y) * 0.02), l1_ratio=0.4, fit_intercept=intercept, tol=1e-10, solver="saga", max_iter=100_000
        )
        assert_same_model(model.fit(form(X), y), reference.fit(X, y))

    def test_smoothed_hinge(self, data: Any, bounds: Any, form: Any, intercept: bool) -> None:
        X = np.column_stack([data.X, np.full(len(data.X), float(intercept))])
        y = 2.0 * data.classes - 1

        def objective(w: Any) -> tuple[float, Any]:
            b = np.clip(1 - y * (X @ w), 0, 1)
            value = (b * (1 - y * (X @ w) - b / 2)).mean() + 0.05 / 2 * w[:-1] @ w[:-1]
            return value, -X.T @ (y * b) / len(y) + 0.05 * np.append(w[:-1], 0)

        best = minimize(objective, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-10}).x
        model = exact(sv.PrivateLinearSVC, bounds, alpha=0.05, fit_intercept=intercept).fit(form(data.X), data.classes)
        np.testing.assert_allclose(model.coef_[0], best[:-1], rtol=0, atol=1e-6)
        np.testing.assert_allclose(model.intercept_, best[-1] * intercept, rtol=0, atol=1e-6)


class TestFeatureRanges:
    @pytest.mark.parametrize("rescale", ["symmetric", "unit"])
    def test_without_privacy_it_is_the_model_of_the_rescaled_features(self, data: Any, rescale: Any) -> None:
        low, high = np.array([-3.0, -4.0, -3.5, -3.0, -5.0]), np.array([3.0, 4.0, 3.0, 5.0, 4.0])
        shift, span = (low, high - low) if rescale == "unit" else ((low + high) / 2, (high - low) / 2)
        model = sv.PrivateRidge(INF, alpha=0.1, feature_ranges=(low, high), rescale=rescale).fit(data.X, data.y)
        reference = Ridge(0.1 * len(data.y), tol=1e-12).fit((data.X - shift) / span, data.y)
        np.testing.assert_allclose(model.coef_, reference.coef_ / span, rtol=0, atol=1e-6)
        expected = reference.predict((data.X - shift) / span)
        np.testing.assert_allclose(model.predict(data.X), expected, rtol=0, atol=1e-6)

    def test_without_a_penalty_ranges_change_nothing(self, data: Any) -> None:
        ranges = (np.full(5, -4.0), np.full(5, 5.0))
        model = sv.PrivateLogisticRegression(INF, feature_ranges=ranges).fit(data.X, data.classes)
        assert_same_model(model, sv.PrivateLogisticRegression(INF).fit(data.X, data.classes))

    def test_sparse_rows_take_ranges_that_keep_zeros(self, data: Any) -> None:
        model = sv.PrivateRidge(
            10.0, feature_ranges=(-np.full(5, 4.0), np.full(5, 4.0)), label_bound=12, insecure_seed=1
        )
        dense, sparse = clone(model).fit(data.X, data.y), clone(model).fit(sp.csr_matrix(data.X), data.y)
        np.testing.assert_array_equal(dense.coef_, sparse.coef_)


class TestConstraintsAndPenalties:
    def test_a_ball_is_the_penalty_in_another_form(self, data: Any) -> None:
        ridge = sv.PrivateRidge(INF, alpha=0.2).fit(data.X, data.y)
        assert_same_model(sv.PrivateRidge(INF, radius=np.linalg.norm(ridge.coef_)).fit(data.X, data.y), ridge)
        lasso = sv.PrivateLasso(INF, alpha=0.2).fit(data.X, data.y)
        assert_same_model(sv.PrivateLasso(INF, radius=np.abs(lasso.coef_).sum()).fit(data.X, data.y), lasso)

    @pytest.mark.parametrize("solver", ["newton", "gradient", "sgd"])
    @pytest.mark.parametrize(
        ("kind", "order", "parameters"),
        [
            (sv.PrivateRidge, 2, {}),
            (sv.PrivateLasso, 1, {}),
            (sv.PrivateLogisticRegression, 2, {}),
            (sv.PrivateLogisticRegression, 1, {"l1_ratio": 1}),
            (sv.PrivateLinearSVC, 2, {}),
        ],
    )
    def test_a_private_model_lies_in_the_ball(
        self, data: Any, solver: str, kind: Any, order: int, parameters: Any
    ) -> None:
        model = make(kind, data, 0.5, solver=solver, radius=0.3, rounds=20, **parameters).fit(
            data.X, target(kind, data)
        )
        norm = np.linalg.norm(model.coef_.ravel(), order)
        assert 0 < norm <= 0.3 * (1 + 1e-9)

    def test_the_intercept_is_not_penalised(self, data: Any) -> None:
        model = sv.PrivateRidge(INF, alpha=1e6).fit(data.X, data.y)
        np.testing.assert_allclose(model.coef_, 0, atol=1e-5)
        np.testing.assert_allclose(model.intercept_, data.y.mean(), atol=1e-5)

    def test_a_larger_penalty_gives_smaller_private_weights(self, data: Any) -> None:
        norms = [
            np.linalg.norm(make(sv.PrivateRidge, data, 20.0, alpha=alpha, insecure_seed=4).fit(data.X, data.y).coef_)
            for alpha in (0.0, 0.1, 10.0)
        ]
        assert norms[0] > norms[1] > norms[2]


class TestPrivateFits:
    @pairwise(
        kind=ALL, relation=["zero-out", "replace-one"], intercept=[True, False], solver=["newton", "gradient", "sgd"]
    )
    def test_shapes(self, data: Any, kind: Any, relation: Any, intercept: bool, solver: str) -> None:
        model = make(kind, data, relation=relation, fit_intercept=intercept, solver=solver)
        assert model.fit(data.X, target(kind, data)) is model
        assert model.coef_.shape == ((5,) if kind in REGRESSORS else (1, 5))
        assert np.shape(model.intercept_) == (() if kind in REGRESSORS else (1,))
        assert np.isfinite(model.coef_).all()
        assert (np.ravel(model.intercept_)[0] != 0) == intercept
        assert model.n_iter_ == 3
        assert model.privacy_.relation == relation

    @pytest.mark.parametrize(
        ("kind", "score"),
        [
            (sv.PrivateRidge, 0.9),
            (sv.PrivateLasso, 0.9),
            (sv.PrivateElasticNet, 0.9),
            (sv.PrivateLogisticRegression, 0.85),
            (sv.PrivateLinearSVC, 0.85),
        ],
    )
    def test_with_a_large_budget_the_model_is_good(self, data: Any, kind: Any, score: float) -> None:
        model = make(kind, data, 50.0, solver="auto", insecure_seed=5).fit(data.X, target(kind, data))
        assert model.score(data.X, target(kind, data)) > score

    def test_a_hinge_without_smoothing_is_served_too(self, data: Any) -> None:
        model = sv.PrivateLinearSVC(50.0, loss="hinge", row_norm=3, insecure_seed=6).fit(data.X, data.classes)
        assert model.plan_.algorithm == "whitened"
        assert model.score(data.X, data.classes) > 0.85

    def test_replace_one_doubles_the_noise_of_a_gradient(self, data: Any) -> None:
        stds = [
            make(sv.PrivateRidge, data, solver="gradient", relation=relation).fit(data.X, data.y).plan_.releases[0].std
            for relation in ("zero-out", "replace-one")
        ]
        assert stds[1] == pytest.approx(2 * stds[0], rel=2e-3)

    def test_a_seed_repeats_the_noise_and_no_seed_does_not(self, data: Any) -> None:
        seeded = [
            make(sv.PrivateRidge, data, insecure_seed=seed).fit(data.X, data.y).coef_.tolist() for seed in (1, 1, 2)
        ]
        assert seeded[0] == seeded[1] != seeded[2]
        free = [make(sv.PrivateRidge, data).fit(data.X, data.y).coef_.tolist() for _ in range(2)]
        assert free[0] != free[1]

    @pytest.mark.parametrize("kind", ALL)
    def test_dense_and_sparse_rows_are_one_code_path(self, data: Any, kind: Any) -> None:
        thin = np.where(np.abs(data.X) > 0.8, data.X, 0.0)
        forms = (
            np.asarray(thin),
            np.asfortranarray(thin),
            sp.csr_matrix(thin),
            sp.csc_matrix(thin),
            sp.coo_array(thin),
        )
        models = [make(kind, data, insecure_seed=3).fit(form, target(kind, data)) for form in forms]
        for model, form in zip(models, forms, strict=True):
            np.testing.assert_array_equal(model.coef_, models[0].coef_)
            np.testing.assert_allclose(model.predict(form), models[0].predict(thin), rtol=1e-12)

    def test_single_precision_rows(self, data: Any) -> None:
        X = data.X.astype(np.float32)
        models = [make(sv.PrivateRidge, data, insecure_seed=3).fit(form, data.y) for form in (X, X.astype(np.float64))]
        np.testing.assert_array_equal(models[0].coef_, models[1].coef_)

    def test_verbose_shows_rounds_and_leaves_the_output_alone(self, data: Any, capfd: Any) -> None:
        quiet = make(sv.PrivateRidge, data, insecure_seed=3).fit(data.X, data.y)
        assert capfd.readouterr() == ("", "")
        loud = make(sv.PrivateRidge, data, insecure_seed=3, resources=sv.Resources(verbose=True)).fit(data.X, data.y)
        out, err = capfd.readouterr()
        assert out == ""
        assert "PrivateRidge by newton" in err
        assert "4/4" in err
        np.testing.assert_array_equal(loud.coef_, quiet.coef_)


class TestPredictions:
    def test_regression(self, data: Any) -> None:
        model = make(sv.PrivateRidge, data, 20.0).fit(data.X, data.y)
        prediction = model.predict(data.X)
        np.testing.assert_allclose(prediction, data.X @ model.coef_ + model.intercept_, rtol=1e-9)
        residual = ((data.y - prediction) ** 2).sum() / ((data.y - data.y.mean()) ** 2).sum()
        assert model.score(data.X, data.y) == pytest.approx(1 - residual)
        assert not hasattr(model, "decision_function")
        assert not hasattr(model, "predict_proba")

    @pytest.mark.parametrize("kind", CLASSIFIERS)
    def test_classification(self, data: Any, kind: Any) -> None:
        names = np.array(["healthy", "sick"])
        y = names[data.classes]
        model = make(kind, data, 20.0).fit(data.X, y)
        assert model.classes_.tolist() == ["healthy", "sick"]
        scores = model.decision_function(data.X)
        assert scores.shape == (len(y),)
        np.testing.assert_allclose(scores, data.X @ model.coef_[0] + model.intercept_[0], rtol=1e-9)
        np.testing.assert_array_equal(model.predict(data.X), names[(scores > 0).astype(int)])
        assert model.score(data.X, y) == (model.predict(data.X) == y).mean()

    def test_probabilities(self, data: Any) -> None:
        model = make(sv.PrivateLogisticRegression, data, 20.0).fit(data.X, data.classes)
        scores = model.decision_function(data.X)
        probability = model.predict_proba(data.X)
        assert probability.shape == (len(scores), 2)
        np.testing.assert_allclose(probability[:, 1], expit(scores))
        np.testing.assert_allclose(probability.sum(axis=1), 1)
        np.testing.assert_allclose(model.predict_log_proba(data.X), np.log(probability), rtol=1e-9)
        assert not hasattr(make(sv.PrivateLinearSVC, data), "predict_proba")

    def test_log_probabilities_do_not_underflow(self, data: Any) -> None:
        model = make(sv.PrivateLogisticRegression, data).fit(data.X, data.classes)
        model.coef_ = np.full((1, 5), 1e4)
        logs = model.predict_log_proba(np.eye(5))
        assert np.isfinite(logs).all()
        assert logs[:, 0].max() < -1000

    def test_rows_are_cut_as_in_training(self, data: Any) -> None:
        model = make(sv.PrivateRidge, data).fit(data.X, data.y)
        row = np.array([[2.0, -1.0, 2.0, 0.0, 0.0]])  # of norm 3, the declared one
        np.testing.assert_allclose(model.predict(7 * row), model.predict(row), rtol=1e-9)
        np.testing.assert_allclose(
            model.predict(row / 2), (model.predict(row) - model.intercept_) / 2 + model.intercept_, rtol=1e-9
        )

    @pytest.mark.parametrize("kind", ALL)
    def test_before_a_fit(self, data: Any, kind: Any) -> None:
        for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            if hasattr(kind, method):
                with pytest.raises(NotFittedError):
                    getattr(make(kind, data), method)(data.X)

    def test_missing_values_are_refused(self, data: Any) -> None:
        model = make(sv.PrivateRidge, data).fit(data.X, data.y)
        with pytest.raises(ValueError, match="contains NaN"):
            model.predict(np.full((1, 5), np.nan))

    @pytest.mark.parametrize("declared", [(0, 1), (1, 0), (np.int64(1), np.float64(0))])
    def test_declared_classes_are_sorted_as_scikit_learn_expects(self, data: Any, declared: Any) -> None:
        model = sv.PrivateLogisticRegression(INF, classes=declared).fit(data.X, data.classes)
        assert model.classes_.tolist() == [0, 1]
        reference = LogisticRegression(C=INF, tol=1e-12, solver="newton-cholesky").fit(data.X, data.classes)
        for name in ("roc_auc", "neg_log_loss", "average_precision", "accuracy"):
            scorer = get_scorer(name)
            assert scorer(model, data.X, data.classes) == pytest.approx(scorer(reference, data.X, data.classes))

    @pytest.mark.parametrize("labels", [(-1, 1), (False, True), (1.0, 2.0), ("a", "b")])
    def test_labels_of_any_plain_type(self, data: Any, labels: Any) -> None:
        y = np.array(labels)[data.classes]
        for form in (y, y.tolist(), pd.Series(y), pd.Series(y.astype(object)).infer_objects()):
            model = make(sv.PrivateLinearSVC, data, insecure_seed=1).fit(data.X, form)
            assert model.classes_.tolist() == list(labels)
            assert set(model.predict(data.X).tolist()) == set(labels)


def hundredths(ages: Any) -> Any:
    """A public constant; a scale learned from the records would be one more release."""
    return ages / 100


@pytest.fixture(scope="module")
def people() -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(18, 99, 300),
            "ward": rng.choice(["north", "south", "west"], 300),
            "smoker": rng.choice(["yes", "no"], 300),
        }
    )
    score = frame["age"] / 40 + 2.0 * (frame["smoker"] == "yes") - (frame["ward"] == "west") - 2.0
    return frame, pd.Series(np.where(score + 0.3 * rng.normal(size=300) > 0, "sick", "well"))


def encoder(sparse: bool) -> ColumnTransformer:
    wards, smoker = ["north", "south", "west"], ["no", "yes"]
    return ColumnTransformer(
        [
            ("ages", FunctionTransformer(hundredths, feature_names_out="one-to-one"), ["age"]),
            (
                "places",
                OneHotEncoder(categories=[wards, smoker], sparse_output=sparse, dtype=np.float64),
                ["ward", "smoker"],
            ),
        ],
        sparse_threshold=1.0 if sparse else 0.0,
    )


class TestPipelines:
    @pytest.mark.parametrize("sparse", [True, False])
    def test_categories_and_numbers(self, people: Any, sparse: bool) -> None:
        frame, y = people
        model = make_pipeline(encoder(sparse), sv.PrivateLogisticRegression(20.0, row_norm=1.8, insecure_seed=0))
        model.fit(frame, y)
        assert sp.issparse(model[0].transform(frame)) == sparse
        assert model.score(frame, y) > 0.85
        assert model.predict_proba(frame).shape == (300, 2)
        assert model.classes_.tolist() == ["sick", "well"]

    def test_sparse_and_dense_encodings_give_one_model(self, people: Any) -> None:
        frame, y = people
        models = [
            make_pipeline(encoder(sparse), sv.PrivateLogisticRegression(1.0, row_norm=1.8, insecure_seed=0)).fit(
                frame, y
            )
            for sparse in (True, False)
        ]
        np.testing.assert_array_equal(models[0][-1].coef_, models[1][-1].coef_)

    def test_cross_validation(self, people: Any) -> None:
        frame, y = people
        model = make_pipeline(encoder(True), sv.PrivateLinearSVC(20.0, row_norm=1.8, insecure_seed=0))
        scores = cross_val_score(model, frame, y, cv=3)
        assert scores.shape == (3,)
        assert scores.min() > 0.75

    def test_frames_name_the_features(self, people: Any) -> None:
        frame, y = people
        table = encoder(False).set_output(transform="pandas").fit_transform(frame)
        model = sv.PrivateLogisticRegression(1.0, row_norm=1.8, solver=sv.solvers.Newton(rounds=2)).fit(table, y)
        assert model.feature_names_in_.tolist() == table.columns.tolist()
        assert model.n_features_in_ == 6
        with pytest.raises(ValueError, match="feature names"):
            model.predict(table[table.columns[::-1]])
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            model.predict(table.to_numpy())

    def test_names_do_not_outlive_the_frame_they_came_from(self, people: Any, data: Any) -> None:
        table = pd.DataFrame(data.X, columns=list("abcde"))
        model = make(sv.PrivateRidge, data).fit(table, data.y)
        assert model.feature_names_in_.tolist() == list("abcde")
        model.fit(sv.Federation.by_rows([(data.X[:100], data.y[:100]), (data.X[100:], data.y[100:])]))
        assert not hasattr(model, "feature_names_in_")


class TestSelectedFeatures:
    @pytest.mark.parametrize("kind", ALL)
    def test_the_coefficients_that_are_not_zero(self, data: Any, kind: Any) -> None:
        model = make(kind, data).fit(data.X, target(kind, data))
        model.coef_ = np.array([0.0, -2.0, 0.0, 0.5, 2.0]).reshape(model.coef_.shape)
        assert model.selected_features_ == {"x1": -2.0, "x4": 2.0, "x3": 0.5}
        assert list(model.selected_features_) == ["x1", "x4", "x3"]
        sparse = model.sparse_coef_
        assert sparse.format == "csr"
        assert sparse.shape == (1, 5)
        assert sparse.nnz == 3
        np.testing.assert_array_equal(sparse.toarray().ravel(), model.coef_.ravel())

    def test_as_scikit_learn_has_them(self, data: Any) -> None:
        reference = Lasso(alpha=0.1).fit(data.X, data.y)
        model = exact(sv.PrivateLasso, BOUNDS["no bounds"], alpha=0.1).fit(data.X, data.y)
        assert type(model.sparse_coef_) is type(reference.sparse_coef_)
        assert model.sparse_coef_.shape == reference.sparse_coef_.shape
        np.testing.assert_allclose(model.sparse_coef_.toarray(), reference.sparse_coef_.toarray(), atol=1e-6)

    def test_by_the_names_of_the_frame(self, data: Any) -> None:
        model = make(sv.PrivateRidge, data).fit(pd.DataFrame(data.X, columns=list("abcde")), data.y)
        model.coef_ = np.array([0.1, 0.0, -0.2, 0.0, 0.0])
        assert list(model.selected_features_.items()) == [("c", -0.2), ("a", 0.1)]

    def test_no_feature(self, data: Any) -> None:
        model = make(sv.PrivateLasso, data, alpha=1e6).fit(data.X, data.y)
        assert model.selected_features_ == {}
        assert model.sparse_coef_.nnz == 0

    @pytest.mark.parametrize("kind", ALL)
    def test_not_before_a_fit(self, kind: Any) -> None:
        for name in ("selected_features_", "sparse_coef_"):
            assert not hasattr(kind(), name)
            with pytest.raises(NotFittedError):
                getattr(kind(), name)


class TestParameters:
    @pytest.mark.parametrize("kind", ALL)
    def test_every_parameter_but_the_budget_is_named(self, kind: Any) -> None:
        assert (kind(0.5, 1e-6).epsilon, kind(0.5, 1e-6).delta) == (0.5, 1e-6)
        with pytest.raises(TypeError):
            kind(0.5, 1e-6, 0.1)

    @pytest.mark.parametrize("kind", ALL)
    def test_get_set_clone(self, data: Any, kind: Any) -> None:
        model = make(kind, data).fit(data.X, target(kind, data))
        copy = clone(model.set_params(alpha=0.25, solver="sgd"))
        assert copy.get_params() == model.get_params()
        assert copy.get_params()["alpha"] == 0.25
        assert not hasattr(copy, "coef_")
        copy.fit(data.X, target(kind, data))
        assert copy.plan_.algorithm == "sgd"
        with pytest.raises(ValueError, match="Invalid parameter 'budget'"):
            copy.set_params(budget=1)

    def test_nested_parameters(self) -> None:
        model = Pipeline([("model", sv.PrivateRidge())]).set_params(model__epsilon=0.5, model__row_norm=2.0)
        assert (model["model"].epsilon, model["model"].row_norm) == (0.5, 2.0)

    def test_fit_changes_no_parameter(self, data: Any) -> None:
        model = make(sv.PrivateRidge, data, feature_ranges=(np.full(5, -3.0), np.full(5, 3.0)))
        before = pickle.dumps(model.get_params())
        model.fit(data.X, data.y)
        assert pickle.dumps(model.get_params()) == before

    def test_a_plan_touches_neither_rows_nor_ledger_nor_model(self, data: Any, account: sv.Account) -> None:
        model = make(sv.PrivateRidge, data)
        federation = sv.Federation.central(data.X, data.y, ledger=account)
        plan = model.plan(federation)
        assert isinstance(plan, Plan)
        assert account.balance().plans == 0
        assert vars(model) == vars(make(sv.PrivateRidge, data))
        assert model.fit(federation).plan_.releases == plan.releases

    def test_numbers_of_numpy_are_numbers(self, data: Any) -> None:
        for one in (1, np.int64(1), np.float32(1), np.float64(1)):
            assert make(sv.PrivateRidge, data, one).fit(data.X, data.y).plan_.epsilon == 1.0
        assert math.isinf(make(sv.PrivateRidge, data, np.float32(INF)).fit(data.X, data.y).privacy_.epsilon)


class TestSampleWeights:
    @pytest.mark.parametrize("kind", ALL)
    def test_they_are_refused_and_the_reason_is_said(self, data: Any, kind: Any, account: sv.Account) -> None:
        with pytest.raises(sv.InputError, match=r"sample_weight needs a ceiling.*influence.*weight_bound"):
            make(kind, data, ledger=account).fit(data.X, target(kind, data), sample_weight=np.ones(len(data.y)))
        assert account.balance().plans == 0

    def test_no_weights_are_no_weights(self, data: Any) -> None:
        assert hasattr(make(sv.PrivateRidge, data).fit(data.X, data.y, sample_weight=None), "coef_")

    def test_a_pipeline_passes_the_refusal_on(self, data: Any) -> None:
        model = Pipeline([("model", make(sv.PrivateRidge, data))])
        with pytest.raises(sv.InputError, match="sample_weight needs a ceiling"):
            model.fit(data.X, data.y, model__sample_weight=np.ones(len(data.y)))

    def test_other_arguments_are_unknown(self, data: Any) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
            make(sv.PrivateRidge, data).fit(data.X, data.y, weights=None)


class TestLedger:
    def test_every_fit_is_charged_its_own(self, data: Any, account: sv.Account, ledger: sv.Ledger) -> None:
        model = make(sv.PrivateRidge, data, 0.5, ledger=account)
        model.fit(data.X, data.y)
        once = account.balance()
        assert once.plans == 1
        assert once.spent == pytest.approx(model.privacy_.epsilon, rel=0.01)
        model.fit(data.X, data.y)
        assert account.balance().plans == 2
        assert account.balance().share == pytest.approx(2 * once.share)
        kinds = [entry.kind for entry in account.history()]
        assert kinds == ["opening", *(["reservation", *["release"] * 4] * 2)]
        ledger.verify()

    @pytest.mark.parametrize(
        "as_given", [lambda a: a, lambda a: a.path, lambda a: str(a.path), lambda a: sv.Ledger(a.path)]
    )
    def test_a_path_a_ledger_or_an_account(self, data: Any, account: sv.Account, as_given: Any) -> None:
        make(sv.PrivateRidge, data, ledger=as_given(account)).fit(data.X, data.y)
        assert account.balance().plans == 1

    def test_a_grid_search_is_charged_for_every_fit_and_the_refit(
        self, data: Any, account: sv.Account, ledger: sv.Ledger
    ) -> None:
        model = make(sv.PrivateLogisticRegression, data, 0.5, rounds=2, ledger=account)
        search = GridSearchCV(model, {"alpha": [0.01, 0.1, 1.0]}, cv=2).fit(data.X, data.classes)
        assert account.balance().plans == 3 * 2 + 1
        digests = [entry.plan for entry in account.history() if entry.kind == "reservation"]
        assert len(set(digests)) == 7
        assert digests[-1] == search.best_estimator_.plan_.digest.hex()
        ledger.verify()

    def test_a_grid_search_stops_where_the_budget_ends(self, data: Any, ledger: sv.Ledger) -> None:
        account = ledger.open("small", 1.0, 1e-5, composition="gaussian")
        model = make(sv.PrivateRidge, data, 0.6, rounds=2, ledger=account)
        search = GridSearchCV(model, {"alpha": [0.01, 0.1]}, cv=2, error_score="raise")
        with pytest.raises(sv.BudgetError):
            search.fit(data.X, data.y)
        assert account.balance().plans == 2
        assert account.balance().spent <= 1.0

    def test_cross_validation_is_charged(self, data: Any, account: sv.Account) -> None:
        cross_val_score(make(sv.PrivateRidge, data, rounds=2, ledger=account), data.X, data.y, cv=3)
        assert account.balance().plans == 3

    def test_a_clone_charges_the_same_account(self, data: Any, account: sv.Account) -> None:
        clone(make(sv.PrivateRidge, data, ledger=account)).fit(data.X, data.y)
        assert account.balance().plans == 1

    def test_without_privacy_an_account_refuses(self, data: Any, account: sv.Account) -> None:
        with pytest.raises(sv.BudgetError, match="without noise"):
            make(sv.PrivateRidge, data, INF, ledger=account).fit(data.X, data.y)
        assert account.balance().plans == 0


class TestPickling:
    @pytest.mark.parametrize("kind", ALL)
    def test_a_fitted_model(self, data: Any, kind: Any) -> None:
        model = make(kind, data).fit(pd.DataFrame(data.X, columns=list("abcde")), target(kind, data))
        copy = pickle.loads(pickle.dumps(model))
        table = pd.DataFrame(data.X, columns=list("abcde"))
        np.testing.assert_array_equal(copy.predict(table), model.predict(table))
        assert copy.privacy_ == model.privacy_
        assert copy.plan_ == model.plan_
        assert copy.communication_ == model.communication_
        assert copy.feature_names_in_.tolist() == list("abcde")
        assert copy.get_params() == model.get_params()

    def test_a_copy_with_a_ledger_charges_the_same_file(self, data: Any, account: sv.Account) -> None:
        model = make(sv.PrivateRidge, data, ledger=account)
        pickle.loads(pickle.dumps(model)).fit(data.X, data.y)
        fitted = pickle.loads(pickle.dumps(model.fit(data.X, data.y)))
        fitted.fit(data.X, data.y)
        assert account.balance().plans == 3

    def test_a_fitted_model_holds_no_rows(self, data: Any) -> None:
        X = np.repeat(data.X, 100, axis=0)
        model = make(sv.PrivateRidge, data).fit(X, np.repeat(data.y, 100))
        assert len(pickle.dumps(model)) < X.nbytes / 50


class TestFederation:
    def parts(self, data: Any, y: Any) -> list[tuple[Any, Any]]:
        return [(data.X[:60], y[:60]), (data.X[60:90], y[60:90]), (data.X[90:], y[90:])]

    @pytest.mark.parametrize("kind", ALL)
    def test_without_noise_the_split_is_central(self, data: Any, kind: Any) -> None:
        y = target(kind, data)
        central = make(kind, data, INF, solver="auto", alpha=0.01).fit(data.X, y)
        split = make(kind, data, INF, solver="auto", alpha=0.01).fit(sv.Federation.by_rows(self.parts(data, y)))
        assert_same_model(split, central, 1e-9)

    @pytest.mark.parametrize("solver", ["newton", "gradient", "sgd"])
    def test_every_party_is_charged_once_in_its_own_ledger(self, data: Any, tmp_path: Any, solver: str) -> None:
        accounts = [sv.Ledger.create(tmp_path / name).open(name, 5.0, 1e-5) for name in ("north", "south", "west")]
        federation = sv.Federation.by_rows(
            self.parts(data, data.y), names=["north", "south", "west"], ledgers=[*accounts[:2], accounts[2].path]
        )
        model = make(sv.PrivateRidge, data, solver=solver).fit(federation)
        for account in accounts:
            assert account.balance().plans == 1
            assert account.balance().spent <= model.privacy_.epsilon * 1.01
            assert {entry.plan for entry in account.history()[1:]} == {model.plan_.digest.hex()}
        assert dict(model.plan_.parties) == {"north": 60, "south": 30, "west": 150}
        assert model.n_features_in_ == 5

    def test_one_empty_account_stops_the_fit(self, data: Any, tmp_path: Any) -> None:
        rich, poor = (sv.Ledger.create(tmp_path / f"{total}").open("records", total, 1e-5) for total in (5.0, 0.1))
        model = make(sv.PrivateRidge, data)
        for ledgers in ([poor, rich], [rich, poor]):
            federation = sv.Federation.by_rows(self.parts(data, data.y)[:2], ledgers=ledgers)
            with pytest.raises(sv.BudgetError, match=r"of epsilon 0\.1 "):
                model.fit(federation)
        assert poor.balance().plans == rich.balance().plans == 0
        assert not hasattr(model, "coef_")

    def test_a_transcript_is_kept_when_asked_for(self, data: Any) -> None:
        model = make(sv.PrivateRidge, data)
        model.fit(sv.Federation.central(data.X, data.y, record=True))
        released = [message for message in model.transcript_ if isinstance(message.payload, np.ndarray)]
        assert [message.name for message in released] == ["gram", "gradient", "gradient", "gradient"]
        assert model.fit(sv.Federation.central(data.X, data.y)).transcript_ is None

    def test_bytes_and_rounds_are_counted(self, data: Any) -> None:
        federation = sv.Federation.by_rows(self.parts(data, data.y))
        model = make(sv.PrivateRidge, data, solver="gradient")
        counted = [model.fit(federation).communication_ for _ in range(2)]
        assert counted[0].rounds == 3
        for count in counted:
            assert 3 * 3 * 6 * 8 < count.uplink_bytes < 20_000
            assert 3 * 3 * 6 * 8 < count.downlink_bytes < 40_000


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (sv.PrivateRidge, {"label_bound": 3.0}),
        (sv.PrivateLasso, {"label_bound": 3.0}),
        (sv.PrivateElasticNet, {"label_bound": 3.0}),
        (sv.PrivateLinearSVC, {}),
        (sv.PrivateLogisticRegression, {}),
        (sv.PrivateLogisticRegression, {"classes": (0, 1, 2)}),
    ],
)
def test_a_plain_model_of_scikit_learn_predicts_alike(kind: Any, more: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-1, 1, (300, 3)), columns=["a", "b", "c"])
    scores = X.to_numpy() @ [1.0, -1.0, 0.5]
    y = scores if "label_bound" in more else np.digitize(scores, [-0.4, 0.4] if "classes" in more else [0.0])
    model = kind(5.0, entry_bound=1.0, insecure_seed=0, **more).fit(X, y)
    plain = pickle.loads(pickle.dumps(model.to_sklearn()))
    assert type(plain).__module__.startswith("sklearn")
    np.testing.assert_allclose(plain.predict(X), model.predict(X), rtol=1e-9)
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(plain.predict_proba(X), model.predict_proba(X), rtol=1e-9)
    assert list(plain.feature_names_in_) == ["a", "b", "c"]
    plain.coef_[...] = 0.0
    assert np.any(model.coef_ != 0.0)
