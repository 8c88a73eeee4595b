"""Estimators for classes: logistic regression, for any number of them, and the linear support vector machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array

from sottovoce.data.block import label_key
from sottovoce.errors import InputError
from sottovoce.estimators.base import Array, PrivateLinearModel, ball_or, distinct_classes, loss_named, penalty_named
from sottovoce.estimators.coefficients import WithStandardErrors
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Split


@dataclass(eq=False, repr=False, kw_only=True)
class _Classifier(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]
    """Labels of two kinds, or of several.

    Parameters
    ----------
    classes : list or None
        The labels; a record with another label becomes a null row. Without it they are read from y and count as
        public. As everywhere in scikit-learn `classes_` has them sorted, of two the positive class last.
    """

    classes: Any = None

    def _declared_classes(self) -> tuple[Any, ...] | None:
        if (said := self._classes) is None:
            return None
        given = list(said) if isinstance(said, Iterable) and not isinstance(said, str) else []
        enough = len(given) == 2 or (len(given) > 2 and self._several)
        if not enough or not all(isinstance(label, str | int | float | np.generic) for label in given):
            what = "labels" if self._several else "a pair of labels"
            raise InputError(f"classes={said!r} must be {what}, for example (0, 1) or ('no', 'yes').")
        if len({label_key(label) for label in given}) < len(given):
            raise InputError(
                f"classes={said!r} are one label twice (a text that reads as a number counts as that number); "
                f"declare {'each class once' if self._several else 'exactly two classes'}, for example classes=(0, 1)."
            )
        return distinct_classes(given, several=self._several)

    @property
    def _asks_for_classes(self) -> bool:
        """Without declared classes the parties are asked for theirs, which then count as public."""
        return self._classes is None

    @property
    def _classes(self) -> Any:
        """As declared, or by the schema's entry for the label."""
        return self.classes if self.classes is not None or self._schema is None else self._schema.classes

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        if (found := self._declared_classes()) is not None:
            declared = {label_key(label) for label in found}
            if not any(label_key(label) in declared for label in labels):
                raise InputError(
                    f"classes={found!r} match no label of y at all; declare the labels that y has. "
                    "(Single labels that are not declared count as null rows, silently.)"
                )
            return labels
        labels = np.asarray(labels.tolist()) if labels.dtype.kind == "O" else labels
        check_array(labels, ensure_2d=False, dtype=None, input_name="y")
        check_classification_targets(labels)
        kind = type_of_target(labels, input_name="y", raise_unknown=True)
        if kind != "binary" and not (kind == "multiclass" and self._several):
            raise InputError(
                f"Only binary classification is supported. The type of the target is {kind}. Declare the two labels to "
                "tell apart, for example classes=(0, 1): records with any other then count as null rows."
            )
        return labels

    def _set_model(self, coef: Array, intercept: Any, plan: Plan) -> None:
        self.classes_ = np.array(plan.classes)
        self.coef_ = np.atleast_2d(coef)
        self.intercept_ = np.atleast_1d(intercept)

    def _forget_model(self, plan: Plan) -> None:
        super()._forget_model(plan)
        self.classes_ = np.array(plan.classes)

    def decision_function(self, X: Any) -> Array:
        """Scores x'coef + intercept, positive on the side of `classes_[1]`; rows are cut as in training.

        Of several classes a column for each, in the order of `classes_`.
        """
        return self._scores(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The class on whose side of the plane each row lies, of several the one with the largest score."""
        scores = self._scores(X)
        if scores.ndim == 2:
            return np.asarray(self.classes_[scores.argmax(axis=1)])
        if (unusable := np.flatnonzero(np.isnan(scores))).size:
            raise InputError(
                f"{unusable.size} of {scores.size} people have a record that some party cannot use (a missing or "
                f"infinite value), the first is row {unusable[0]}; leave them out at every party, or take "
                "decision_function, which is NaN for them."
            )
        return np.asarray(self.classes_[(scores > 0).astype(int)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._several
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLogisticRegression(WithStandardErrors, _Classifier):
    """min (1/N) sum log(1 + exp(-y (x'w + b))) + alpha pen(w) under differential privacy.

    With more than two classes it is log sum_k exp(x'w_k + b_k) - (x'w_y + b_y), with weights for each class.

    Parameters
    ----------
    penalty : 'l2', 'l1', 'elastic_net' or None
        alpha/2 |w|^2, alpha |w|_1 or a mixture; with `radius` the ball of that norm instead. None is "l2", and with a
        radius the l1 ball for `solver="frank-wolfe"` and for data split by columns.
    l1_ratio : float
        Of the elastic net: the share of the l1 norm, from 0 to 1.
    """

    _plain: ClassVar[str] = "sklearn.linear_model.LogisticRegression"
    _several: ClassVar[bool] = True

    penalty: str | None = None
    l1_ratio: float = 0.5

    def _loss(self) -> Named:
        return Named(name="logistic")

    def _regulariser(self, split: Split) -> Named:
        penalty, radius = self.penalty, self.radius
        if penalty is None:
            sparse = radius is not None and (self._solver_name == "frank-wolfe" or split == "columns")
            penalty = "l1" if sparse else "l2"
        if penalty == "elastic_net" and radius is None:
            return penalty_named("elastic_net", alpha=self.alpha, l1_ratio=self.l1_ratio)
        if penalty not in ("l1", "l2"):
            raise InputError(f"penalty={penalty!r} must be 'l2', 'l1' or 'elastic_net' (no radius with the last).")
        return ball_or(penalty, f"{penalty}_ball", self.alpha, radius)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, in the order of `classes_`."""
        scores = self.decision_function(X)
        if scores.ndim == 2:
            return np.asarray(softmax(scores, axis=1))
        positive = expit(scores)
        return np.column_stack([1 - positive, positive])

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities, without underflow."""
        scores = self.decision_function(X)
        if scores.ndim == 2:
            return np.asarray(log_softmax(scores, axis=1))
        return np.column_stack([-np.logaddexp(0, scores), -np.logaddexp(0, -scores)])


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearSVC(_Classifier):
    """min (1/N) sum loss(y (x'w + b)) + alpha/2 |w|^2 under differential privacy, or |w|_2 <= radius.

    Parameters
    ----------
    loss : str
        "smoothed_hinge" is served by most solvers, "hinge" by `scd`, `gradient`, `sgd`, `admm` and `fdml`. "sigmoid" is
        a smooth count of the errors and not convex: wrong labels pull little. Or another registered loss of that kind.
    """

    _plain: ClassVar[str] = "sklearn.svm.LinearSVC"

    loss: str = "smoothed_hinge"

    def _loss(self) -> Named:
        return loss_named(self.loss, "classification")

    def _regulariser(self, split: Split) -> Named:  # noqa: ARG002
        return ball_or("l2", "l2_ball", self.alpha, self.radius)
