"""scikit-learn estimators. No maths here: they declare a problem, choose a solver, run the plan and keep the model."""

from __future__ import annotations

import math
import secrets
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data

from sottovoce import algorithms, losses, penalties
from sottovoce.algorithms import Algorithm, Problem, Solution, Solver, make_plan
from sottovoce.data.block import label_key
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LedgerError, WireError
from sottovoce.federation.coordinator import Coordinator, check_people
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import as_labels
from sottovoce.federation.prediction import COORDINATOR, joined_scores, parts_of
from sottovoce.plan.plan import Calibration, Named, Plan, Split
from sottovoce.privacy.accounting import Relation
from sottovoce.privacy.guarantee import Guarantee, PrivacyReport
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.transports.base import Communication

if TYPE_CHECKING:
    from sottovoce.estimators.path import RegularisationPath

Array = NDArray[np.float64]

_OPTIONS = (
    "rounds",
    "rate",
    "step",
    "schedule",
    "gram_share",
    "slope_bound",
    "clip",
    "dual_step",
    "lot",
    "inner",
    "order",
    "averaged",
    "curvatures",
    "curvature_share",
    "rule",
    "choice_share",
    "counted",
    "cap",
    "sketch",
    "sketch_size",
    "candidates",
    "models",
    "rows",
    "unit",
    "rho",
    "proximal",
    "relaxation",
    "tolerance",
    "row_share",
    "world_epsilon",
    "column_norm",
)
_SPARSE = ("csr", "csc", "coo")
_WITHOUT_VALUES = {
    "could not convert": "X has columns that are not numbers; encode them first, for example with a scikit-learn "
    "ColumnTransformer with OneHotEncoder.",
    "Expected 2D array": "Expected 2D array, one row per record. Reshape your data: X.reshape(-1, 1) if it is one "
    "feature, X.reshape(1, -1) if it is one record.",
    "Complex data": "Complex data not supported: X and y must be real numbers; split real and imaginary parts.",
}


@dataclass(eq=False, repr=False)
class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]
    """What the five estimators share.

    Parameters
    ----------
    epsilon, delta : the budget; `epsilon=float("inf")` is the algorithm without privacy.
    relation : "zero-out" (a record is blanked) or "replace-one" (a record is replaced by any other).
    solver : "auto" or a name; an unknown one is answered with those that fit.
    alpha : weight of the penalty, in front of it, where the loss is a mean over records; with `feature_ranges`
        penalties and radius act on the coefficients of the rescaled features.
    radius : a constraint instead of a penalty.
    row_norm, entry_bound, label_bound, feature_ranges : declared bounds; nothing is inferred from the data.
    rescale : ranges become [-1, 1] ("symmetric") or [0, 1] ("unit").
    fit_intercept : a constant column inside the row norm, not penalised (but by the dual solvers, which must).
    rounds, rate, step, schedule, gram_share, slope_bound, clip, dual_step, lot, inner, order, averaged, curvatures,
    curvature_share, rule, choice_share, counted, cap, sketch, sketch_size, candidates, rows, unit, rho, proximal,
    relaxation, tolerance, row_share, world_epsilon, column_norm : the solver's own (see its page); None is its rule.
    models : by columns, "shared" (the coordinator learns all coefficients; the default) or "kept" (each party keeps the
        weights of its columns, and predictions are joint), where the solver has both.
    calibration : "tight", or "paper" for a published formula; the guarantee reported is the true one.
    ledger : an account to charge (a path, a `Ledger` or an `Account`); None accounts for this fit alone.
    insecure_seed : reproducible noise for tests and demos; the guarantee is then void and says so.
    verbose : show progress with the time left.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    alpha: float = 0.0
    radius: float | None = None
    row_norm: float | None = None
    entry_bound: Any = None
    feature_ranges: Any = None
    rescale: Literal["symmetric", "unit"] = "symmetric"
    fit_intercept: bool = True
    solver: str = "auto"
    relation: Relation = "zero-out"
    calibration: Calibration = "tight"
    rounds: int | None = None
    rate: float | None = None
    step: float | None = None
    schedule: str | None = None
    gram_share: float | None = None
    slope_bound: float | None = None
    clip: float | None = None
    dual_step: str | None = None
    lot: int | None = None
    inner: int | None = None
    order: str | None = None
    averaged: float | None = None
    curvatures: Any = None
    curvature_share: float | None = None
    rule: str | None = None
    choice_share: float | None = None
    counted: str | None = None
    cap: int | None = None
    sketch: str | None = None
    sketch_size: int | None = None
    candidates: int | None = None
    models: str | None = None
    rows: str | None = None
    unit: str | None = None
    rho: float | None = None
    proximal: float | None = None
    relaxation: float | None = None
    tolerance: float | None = None
    row_share: float | None = None
    world_epsilon: float | None = None
    column_norm: float | None = None
    ledger: Any = None
    insecure_seed: int | None = None
    verbose: bool = False

    def fit(self, X: Any, y: ArrayLike | None = None, **refused: Any) -> Self:
        """Fit on arrays (central) or on a `Federation`. Sample weights are refused with the reason."""
        _refuse(refused)
        self._solve(X, y)
        return self

    def _solve(self, X: Any, y: ArrayLike | None) -> Solution:
        self._check_parameters()
        federation = X if isinstance(X, Federation) else self._central(X, y)
        if isinstance(X, Federation):
            if y is not None:
                raise InputError("y must be None when X is a Federation; the labels are inside it.")
            if X.unlabelled:
                raise InputError("y=None: nobody of the federation knows the labels; give them: by_columns(parts, y).")
            if self.ledger is not None:
                raise InputError(
                    "ledger goes to the federation, one for each party: Federation.by_rows(..., ledgers=[...])."
                )
        coordinator = federation.coordinator(insecure_seed=self.insecure_seed, without_privacy=self._without_privacy())
        try:
            algorithm, plan, names = self._plan(federation, coordinator, frames=4)
            before = _counts(federation.transport.communication)
            solution, rounds = self._run(coordinator, plan, algorithm)
        except (WireError, LedgerError):
            federation.raise_failure()
            raise
        self._keep(federation, plan, algorithm, solution, rounds, coordinator, before)
        if isinstance(X, Federation):
            self._keep_names(names)
        self.transcript_ = coordinator.transcript
        return solution

    def plan(self, federation: Federation) -> Plan:
        """The plan that `fit` would run; public facts are asked for, rows are not touched and nothing is charged."""
        self._check_parameters()
        return self._plan(federation, federation.coordinator(insecure_seed=self.insecure_seed))[1]

    def _scores(self, X: Any) -> Array:
        """X coef + intercept, entries and rows cut to the declared bounds as in training."""
        if isinstance(X, Federation):
            scores = self._joint(X, COORDINATOR)
            if scores is None:
                raise WireError("the parties made no prediction.")
            return scores
        self._check_shared()
        rows = self._validated(X, reset=False, dtype=np.float64)
        coef, intercept = self.coef_.ravel(), float(np.ravel(self.intercept_)[0])
        if self.plan_.split == "columns":
            return joined_scores(self.plan_, rows, coef, intercept)
        return self.plan_.preparation.scores(rows, coef, intercept)

    def predict_for(self, federation: Federation, recipient: str) -> None:
        """Have a party learn the predictions for the people of a federation by columns, and nobody else.

        Each party scores its own columns. In one process `federation.predictions[recipient]` has the result; a remote
        party hands it to its own holder (`Party.predictions`).
        """
        self._joint(federation, recipient)

    def _joint(self, federation: Federation, recipient: str) -> Array | None:
        check_is_fitted(self, "plan_")
        if self.plan_.split != "columns" or federation.split != "columns":
            raise InputError(
                "a joint prediction is for a model and a federation by columns; where a party has whole rows, it "
                "predicts with predict(X) on its own."
            )
        coordinator, digest = federation.coordinator(), bytes.fromhex(self.charged_as_)
        if self.plan_.models == "shared":
            names = tuple(map(str, getattr(self, "feature_names_in_", ())))
            federation.learn(
                digest, parts_of(self.plan_, self.coef_.ravel(), float(np.ravel(self.intercept_)[0]), names)
            )
        try:
            return coordinator.predict(self.plan_, digest, recipient)
        except WireError:
            federation.raise_failure()
            raise

    def _check_shared(self) -> None:
        """Refuse what needs all coefficients in one place where the parties keep them."""
        check_is_fitted(self, "plan_")
        if self.plan_.models == "kept":
            raise InputError(
                "models='kept': the coefficients are with the parties, each has those of its columns. Predict with "
                "predict(federation), a Federation.by_columns of the people; or fit with models='shared'."
            )

    def _central(self, X: Any, y: ArrayLike | None) -> Federation:
        if y is None:
            raise InputError(
                "requires y to be passed, but the target y is None; pass the labels, or a Federation that has them."
            )
        rows = self._validated(X, dtype=(np.float64, np.float32), ensure_all_finite=False)
        labels = as_labels(y)
        if labels.ndim != 1:  # a column is a vector, with a warning; anything else is an error
            labels = column_or_1d(labels, warn=True)
        check_consistent_length(rows, labels)
        return Federation.central(rows, self._check_labels(labels), ledger=self.ledger)

    def _validated(self, *arrays: Any, **options: Any) -> Any:
        """What scikit-learn accepts; its errors that would print values of the data are said without them."""
        try:
            return validate_data(self, *arrays, accept_sparse=_SPARSE, **options)
        except ValueError as error:
            for text, plain in _WITHOUT_VALUES.items():
                if text in str(error):
                    raise InputError(plain) from None
            raise

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        return labels

    def _loss(self) -> Named:
        raise NotImplementedError

    def _regulariser(self, split: Split) -> Named:
        raise NotImplementedError

    def _declared_classes(self) -> tuple[Any, Any] | None:
        return None

    def _problem(self, federation: Federation, coordinator: Coordinator) -> tuple[Problem, tuple[str, ...]]:
        classes = self._declared_classes()
        loss = losses.get(self._loss().name, **self._loss().parameters)
        ask = loss.kind == "classification" and classes is None
        facts = coordinator.facts(classes=ask)
        if ask:
            classes = _two_classes([value for fact in facts.values() for value in fact["classes"]])
        widths = {name: fact["features"] for name, fact in facts.items()}
        features = sum(widths.values()) if federation.split == "columns" else next(iter(widths.values()))
        if federation.split != "columns" and len(set(widths.values())) != 1:
            raise InputError(f"the parties have {widths} features; by rows every party has the same columns.")
        bounds = Bounds.declare(
            row_norm=self.row_norm,
            entry_bound=self.entry_bound,
            label_bound=getattr(self, "label_bound", None),
            feature_ranges=self.feature_ranges,
            rescale=self.rescale,
        )
        columns, norms = _columns(federation, facts, bounds) if federation.split == "columns" else ((), ())
        private = self.epsilon != math.inf
        if private or bounds.feature_low is not None:
            bounds.require(features, labels=private and loss.kind == "regression")
        problem = Problem(
            loss=self._loss(),
            regulariser=self._regulariser(federation.split),
            split=federation.split,
            parties=tuple((name, fact["records"]) for name, fact in facts.items()),
            features=features,
            bounds=bounds,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            relation=self.relation,
            calibration=self.calibration,
            fit_intercept=bool(self.fit_intercept),
            classes=classes,
            options={name: getattr(self, name, None) for name in _OPTIONS},
            columns=columns,
            norms=norms,
            labels=federation.labels,
            holder=federation.holder,
        )
        return problem, _common_names(facts, federation.split)

    def _plan(
        self, federation: Federation, coordinator: Coordinator, frames: int = 3
    ) -> tuple[Algorithm, Plan, tuple[str, ...]]:
        """The solver, its plan, and the names of the features; `frames` up stands the user's own line."""
        loss = losses.get(self._loss().name, **self._loss().parameters)
        if self.solver != "auto":
            algorithms.get(self.solver, loss, federation.split)
        problem, names = self._problem(federation, coordinator)
        solver = algorithms.choose(problem).name if self.solver == "auto" else self.solver
        algorithm = algorithms.get(solver, loss, federation.split)
        self._check_options(algorithm)
        if problem.delta >= 1 / problem.records and problem.epsilon != math.inf:
            warnings.warn(
                f"delta={problem.delta:.3g} is at or above 1/N = {1 / problem.records:.3g}: a mechanism that publishes "
                f"one random record whole would satisfy it. Choose delta below {0.1 / problem.records:.1g}.",
                UserWarning,
                stacklevel=frames,
            )
        coin = secrets.token_hex(16) if self.insecure_seed is None else f"seed {self.insecure_seed}"
        plan = make_plan(solver, problem, algorithm.design(problem), run=secrets.token_hex(16), coin=coin)
        form = algorithm.of(plan)
        if form.keeps_rows and plan.private:
            plan = plan.model_copy(update={"kept": coordinator.kept(plan)})
        return form, plan, names

    def _check_parameters(self) -> None:
        if not (_is_number(self.epsilon) and self.epsilon > 0):
            raise InputError(
                f"epsilon={self.epsilon!r} must be a positive number (1.0 is a usual choice), or float('inf') for no "
                "privacy."
            )
        if not (_is_number(self.delta) and 0 < self.delta < 1):
            raise InputError(
                f"delta={self.delta!r} must be a number between 0 and 1, well below 1 / records; 1e-5 is usual."
            )
        if not (self.row_norm is None or _is_number(self.row_norm)):
            raise InputError(f"row_norm={self.row_norm!r} must be a positive number; declare the largest you expect.")
        if not (self.ledger is None or isinstance(self.ledger, str | PathLike | Ledger | Account)):
            raise InputError(f"ledger={self.ledger!r} must be the path of a ledger, a Ledger, an Account or None.")
        seed = self.insecure_seed
        if seed is not None and not (isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0):
            raise InputError(
                f"insecure_seed={seed!r} must be a whole number from 0, or None for noise that protects the records."
            )
        if self.relation not in ("zero-out", "replace-one"):
            raise InputError(f"relation={self.relation!r} must be 'zero-out' or 'replace-one'.")
        if self.calibration not in ("tight", "paper"):
            raise InputError(f"calibration={self.calibration!r} must be 'tight' or 'paper'.")
        if self.rescale not in ("symmetric", "unit"):
            raise InputError(f"rescale={self.rescale!r} must be 'symmetric' ([-1, 1]) or 'unit' ([0, 1]).")

    def _without_privacy(self) -> bool:
        """Whether the user asks, by name, for a run that does not protect a person's record."""
        return self.epsilon == math.inf or self.calibration == "paper" or self.unit == "feature"

    def _check_options(self, algorithm: Solver) -> None:
        if self.calibration == "paper":
            if not algorithm.has_paper:
                others = ", ".join(name for name, other in algorithms.REGISTRY.items() if other.has_paper)
                raise InputError(f"solver={algorithm.name!r} has no published calibration; those that have: {others}.")
            if self.epsilon == math.inf:
                raise InputError("epsilon=inf: calibration='paper' needs a finite epsilon, such as 1.0.")
        for name in _OPTIONS:
            if getattr(self, name, None) is not None and name not in algorithm.options:
                raise InputError(
                    f"{name}={getattr(self, name)!r} means nothing to solver={algorithm.name!r}; "
                    f"it takes {', '.join(algorithm.options)}."
                )

    def _run(self, coordinator: Coordinator, plan: Plan, algorithm: Algorithm) -> tuple[Solution, int]:
        if not self.verbose:
            return coordinator.run(plan, algorithm, getattr(self, "_progress", None))
        from sottovoce.estimators.progress import progress_bar

        with progress_bar(f"{type(self).__name__} by {plan.algorithm}") as advance:
            return coordinator.run(plan, algorithm, advance)

    def _keep(
        self,
        federation: Federation,
        plan: Plan,
        algorithm: Algorithm,
        solution: Solution,
        rounds: int,
        coordinator: Coordinator,
        before: tuple[int, int],
    ) -> None:
        if plan.models == "kept":
            self._forget_model(plan)
        else:
            self._set_model(*plan.unprepare(solution.weights), plan)
        self.n_iter_ = plan.rounds if plan.private else coordinator.asked[plan.releases[-1].query]
        self.certificates_ = dict(solution.certificates)
        self.n_features_in_ = plan.features
        self.plan_ = plan
        self.charged_as_ = plan.digest.hex()  # the plan's name in the ledgers
        self.privacy_ = privacy_report(plan, algorithm, seeded=self.insecure_seed is not None)
        up, down = _counts(federation.transport.communication)
        kinds: Counter[str] = Counter()
        for query, count in coordinator.uplink.items():
            kinds[algorithm.kinds.get(query, query)] += count
        self.communication_ = Communication(up - before[0], down - before[1], rounds, dict(kinds))

    def _keep_names(self, names: tuple[str, ...]) -> None:
        """The federation's names of the features, or none if it has none."""
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _set_model(self, coef: Array, intercept: float, plan: Plan) -> None:  # noqa: ARG002
        self.coef_: Array = coef
        self.intercept_: Any = intercept

    def _forget_model(self, plan: Plan) -> None:  # noqa: ARG002
        """The parties keep the coefficients: those of an earlier fit are not these."""
        for name in {"coef_", "intercept_"} & set(vars(self)):
            delattr(self, name)

    @property
    def sparse_coef_(self) -> Any:
        """`coef_` as a CSR matrix of one row."""
        self._check_shared()
        return sp.csr_matrix(self.coef_.reshape(1, -1))

    @property
    def selected_features_(self) -> dict[str, float]:
        """The coefficients that are not zero by the names of their features, the largest first.

        Without names, or where two features share one, they are called x0, x1, ...
        """
        self._check_shared()
        coef = self.coef_.ravel()
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        if len(set(names)) < len(coef):
            names = [f"x{j}" for j in range(len(coef))]
        order = np.argsort(-np.abs(coef), kind="stable")
        return {names[j]: float(coef[j]) for j in order if coef[j] != 0.0}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class _Regressor(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    label_bound: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        pair = self.label_bound if isinstance(self.label_bound, tuple | list | np.ndarray) else (self.label_bound,)
        if self.label_bound is not None and not all(map(_is_number, pair)):
            raise InputError(
                f"label_bound={self.label_bound!r} must be one number b, for labels in [-b, b], or a pair (low, high); "
                "declare the range you expect."
            )

    def _loss(self) -> Named:
        return Named(name="squared")

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels as they are: one that is no number makes a null row. None that is a number is a mistake."""
        if not any(isinstance(key := label_key(label), float) and math.isfinite(key) for label in labels):
            raise InputError("y must be numbers for a regression; encode the labels first.")
        return labels

    def predict(self, X: Any) -> Array:
        """Predicted labels."""
        return self._scores(X)


@dataclass(eq=False, repr=False, kw_only=True)
class _Classifier(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]
    classes: Any = None

    def _declared_classes(self) -> tuple[Any, Any] | None:
        if self.classes is None:
            return None
        pair = list(self.classes) if isinstance(self.classes, Iterable) and not isinstance(self.classes, str) else []
        if len(pair) != 2 or not all(isinstance(label, str | int | float | np.generic) for label in pair):
            raise InputError(f"classes={self.classes!r} must be a pair of labels, for example (0, 1) or ('no', 'yes').")
        if label_key(pair[0]) == label_key(pair[1]):
            raise InputError(
                f"classes={self.classes!r} are one label twice (a text that reads as a number counts as that number); "
                "declare exactly two classes, for example classes=(0, 1)."
            )
        return _two_classes(pair)

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        if (pair := self._declared_classes()) is not None:
            declared = {label_key(label) for label in pair}
            if not any(label_key(label) in declared for label in labels):
                raise InputError(
                    f"classes={self.classes!r} match no label of y at all; declare the two labels that y has. "
                    "(Single labels that are not declared count as null rows, silently.)"
                )
            return labels
        labels = np.asarray(labels.tolist()) if labels.dtype.kind == "O" else labels
        check_array(labels, ensure_2d=False, dtype=None, input_name="y")
        check_classification_targets(labels)
        kind = type_of_target(labels, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise InputError(
                f"Only binary classification is supported. The type of the target is {kind}. Declare the two labels to "
                "tell apart, for example classes=(0, 1): records with any other then count as null rows."
            )
        return labels

    def _set_model(self, coef: Array, intercept: float, plan: Plan) -> None:
        self.classes_ = np.array(plan.classes)
        self.coef_ = coef[None, :]
        self.intercept_ = np.array([intercept])

    def _forget_model(self, plan: Plan) -> None:
        super()._forget_model(plan)
        self.classes_ = np.array(plan.classes)

    def decision_function(self, X: Any) -> Array:
        """Scores x'coef + intercept, positive on the side of `classes_[1]`; rows are cut as in training."""
        return self._scores(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The class on whose side of the plane each row lies."""
        scores = self._scores(X)
        if (unusable := np.flatnonzero(np.isnan(scores))).size:
            raise InputError(
                f"{unusable.size} of {scores.size} people have a record that some party cannot use (a missing or "
                f"infinite value), the first is row {unusable[0]}; leave them out at every party, or take "
                "decision_function, which is NaN for them."
            )
        return np.asarray(self.classes_[(scores > 0).astype(int)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRidge(_Regressor):
    """min (1/N) sum (x'w + b - y)^2 / 2 + alpha/2 |w|^2 under differential privacy, or |w|_2 <= radius.

    Residuals are clipped to `slope_bound` (default: half the half-width of the label bound), so records that the model
    misses by more pull like a Huber loss. `loss="huber"` with a `threshold`, in units of the label, says so.
    """

    loss: str = "squared"
    threshold: float | None = None

    def _loss(self) -> Named:
        if self.loss not in ("squared", "huber"):
            raise InputError(f"loss={self.loss!r} must be 'squared' or 'huber'.")
        if (self.loss == "huber") != (self.threshold is not None):
            raise InputError(
                f"threshold={self.threshold!r} belongs to loss='huber', which needs one: the residual, in units of the "
                "label, beyond which a record pulls no harder."
            )
        if self.threshold is None:
            return Named(name="squared")
        return Named(name="huber", parameters=losses.get("huber", threshold=self.threshold).parameters())

    def _regulariser(self, split: Split) -> Named:  # noqa: ARG002
        return _ball_or("l2", "l2_ball", self.alpha, self.radius)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLasso(_Regressor):
    """min (1/N) sum (x'w + b - y)^2 / 2 + alpha |w|_1 under differential privacy, or |w|_1 <= radius."""

    alpha: float = 1e-4

    def _regulariser(self, split: Split) -> Named:  # noqa: ARG002
        return _ball_or("l1", "l1_ball", self.alpha, self.radius)

    def path(self, X: Any, y: ArrayLike | None = None, *, alphas: ArrayLike | int = 20) -> RegularisationPath:
        """The models for many penalties under the budget of one fit.

        One fit by `newton` at the smallest alpha; all other models are computed from what it released, which costs
        nothing. `alphas` are the penalties, or how many to take from the first that leaves a feature in the model,
        as far as the releases tell, down to `alpha`.
        """
        from sottovoce.estimators.path import lasso_path

        return lasso_path(self, X, y, alphas)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateElasticNet(_Regressor):
    """min (1/N) sum (x'w + b - y)^2 / 2 + alpha (l1_ratio |w|_1 + (1 - l1_ratio)/2 |w|^2), differentially private."""

    alpha: float = 1e-4
    l1_ratio: float = 0.5

    def _regulariser(self, split: Split) -> Named:  # noqa: ARG002
        if self.radius is not None:
            raise InputError(
                f"radius={self.radius!r}: the elastic net has no ball; use PrivateLasso or PrivateRidge, or alpha."
            )
        return _named("elastic_net", alpha=self.alpha, l1_ratio=self.l1_ratio)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLogisticRegression(_Classifier):
    """min (1/N) sum log(1 + exp(-y (x'w + b))) + alpha pen(w) under differential privacy.

    `penalty` is "l2" (alpha/2 |w|^2), "l1" or "elastic_net"; with `radius` the ball of that norm instead. None is "l2",
    and the l1 ball for `solver="frank-wolfe"` and for data split by columns.
    `classes` declares the two labels; a record with another label becomes a null row. Without it the pair is read from
    y and counts as public. As everywhere in scikit-learn `classes_` has the pair sorted, the positive class last.
    """

    penalty: str | None = None
    l1_ratio: float = 0.5

    def _loss(self) -> Named:
        return Named(name="logistic")

    def _regulariser(self, split: Split) -> Named:
        penalty, radius = self.penalty, self.radius
        if penalty is None:
            sparse = radius is not None and (self.solver == "frank-wolfe" or split == "columns")
            penalty = "l1" if sparse else "l2"
        if penalty == "elastic_net" and radius is None:
            return _named("elastic_net", alpha=self.alpha, l1_ratio=self.l1_ratio)
        if penalty not in ("l1", "l2"):
            raise InputError(f"penalty={penalty!r} must be 'l2', 'l1' or 'elastic_net' (no radius with the last).")
        return _ball_or(penalty, f"{penalty}_ball", self.alpha, radius)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the two classes, in the order of `classes_`."""
        positive = expit(self.decision_function(X))
        return np.column_stack([1 - positive, positive])

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities, without underflow."""
        scores = self.decision_function(X)
        return np.column_stack([-np.logaddexp(0, scores), -np.logaddexp(0, -scores)])


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearSVC(_Classifier):
    """min (1/N) sum loss(y (x'w + b)) + alpha/2 |w|^2 under differential privacy, or |w|_2 <= radius.

    `loss="smoothed_hinge"` (default, smooth, served by most solvers), `"hinge"` (by `scd`, `gradient`, `sgd`, `admm`,
    `fdml`) or `"sigmoid"`, a smooth count of the errors that is not convex: wrong labels pull little.
    """

    loss: str = "smoothed_hinge"

    def _loss(self) -> Named:
        if self.loss not in ("hinge", "smoothed_hinge", "sigmoid"):
            raise InputError(f"loss={self.loss!r} must be 'hinge', 'smoothed_hinge' or 'sigmoid'.")
        return Named(name=self.loss)

    def _regulariser(self, split: Split) -> Named:  # noqa: ARG002
        return _ball_or("l2", "l2_ball", self.alpha, self.radius)


def privacy_report(plan: Plan, algorithm: Algorithm, *, seeded: bool) -> PrivacyReport:
    """The true guarantee of a plan, computed from what it releases."""
    epsilons = algorithm.epsilons(plan, plan.relation)
    void = (
        "The noise came from a known seed (insecure_seed), so anyone who knows it can subtract it." if seeded else None
    )
    guarantees = {
        name: Guarantee(epsilon, plan.delta, plan.relation, name, plan.claimed_epsilon, void, plan.protects)  # type: ignore[arg-type]
        for name, epsilon in epsilons.items()
    }
    assumptions = ["parties and coordinator follow the protocol, though they may be curious"]
    if plan.split == "rows":
        assumptions.append("nobody's record is with two parties")
    if plan.split == "columns":
        assumptions.append("who is in the data is known to all parties")
        assumptions += {"public": ["the labels are public"], "shared": ["all parties know the labels"]}.get(
            plan.labels, []
        )
    if algorithm.keeps_rows:
        assumptions.append("whose record changed since rows with noise were drawn, and that it did, is no secret")
    if plan.models == "kept":
        assumptions.append("nobody is shown the weights that the parties keep, nor predictions made with them")
    if plan.protects == "feature":
        assumptions.append("which records a party cannot use is no secret")
    if plan.classes is not None:
        assumptions.append("the two class labels are public")
    return PrivacyReport(
        **guarantees,
        assumptions=tuple(assumptions),
        public={
            "records": plan.records,
            "parties": dict(plan.parties),
            "features": plan.features,
            "classes": None if plan.classes is None else list(plan.classes),
            "bounds": plan.bounds.model_dump(exclude_none=True),
            "solver": plan.algorithm,
            "rounds": plan.rounds,
        },
    )


def _named(name: str, **parameters: Any) -> Named:
    return Named(name=name, parameters=penalties.get(name, **parameters).parameters())


def _ball_or(penalty: str, ball: str, alpha: float, radius: float | None) -> Named:
    if radius is not None:
        return _named(ball, radius=radius)
    return Named(name="none") if alpha == 0 else _named(penalty, alpha=alpha)


def _two_classes(values: list[Any]) -> tuple[Any, Any]:
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    distinct = sorted(set(plain), key=lambda value: (str(type(value)), value))
    if len(distinct) != 2:
        raise InputError(
            f"classification needs exactly two classes, but {len(distinct)} class(es) were found or declared. "
            "Declare the two labels, for example classes=(0, 1) or classes=('no', 'yes')."
        )
    return distinct[0], distinct[1]


def _refuse(arguments: dict[str, Any]) -> None:
    """Not a named parameter of `fit`, so that scikit-learn knows that weights are not supported."""
    if "sample_weight" in arguments and arguments.pop("sample_weight") is not None:
        raise InputError(
            "sample_weight is not supported: a weight multiplies a record's influence, so the declared bounds would no "
            "longer limit it. Drop the argument, and repeat no records instead."
        )
    if arguments:
        raise TypeError(f"fit() got an unexpected keyword argument {next(iter(arguments))!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def _columns(
    federation: Federation, facts: Mapping[str, Mapping[str, Any]], bounds: Bounds
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """By columns: how many each party has and, of a declared row norm, the bound of its part of a row."""
    check_people({name: fact["records"] for name, fact in facts.items()})
    columns = tuple(fact["features"] for fact in facts.values())
    if bounds.row_norm is not None:
        return columns, tuple(federation.party_norms(bounds.row_norm, columns))
    if federation.norms is not None:
        raise InputError(
            f"norms={federation.norms!r} are the parties' parts of row_norm, which is not declared; declare it, or "
            "leave norms out."
        )
    return columns, ()


def _common_names(facts: Mapping[str, Mapping[str, Any]], split: Split) -> tuple[str, ...]:
    """The feature names that the parties agree on; parties without names do not object."""
    named = {party: tuple(fact["feature_names"]) for party, fact in facts.items() if fact["feature_names"]}
    if split == "columns":
        return tuple(name for names in named.values() for name in names) if len(named) == len(facts) else ()
    if len(set(named.values())) > 1:
        raise InputError(
            f"the parties {', '.join(named)} name their columns differently or order them differently; by rows every "
            "party has the same columns in the same order."
        )
    return next(iter(named.values()), ())


def _counts(communication: Communication) -> tuple[int, int]:
    return communication.uplink_bytes, communication.downlink_bytes
