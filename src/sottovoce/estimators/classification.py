"""Estimators for classes: logistic regression, for any number of them, and the linear support vector machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import type_of_target

from sottovoce.arguments import is_number
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.cells import is_class, label_key
from sottovoce.errors import InputError
from sottovoce.estimators.base import Array, PrivateLinearModel
from sottovoce.estimators.coefficients import WithStandardErrors
from sottovoce.estimators.declarations import ball_or, distinct_classes, loss_named, penalty_named
from sottovoce.plan.problem import Named
from sottovoce.plan.split import Split
from sottovoce.solvers import FrankWolfe

_DECLARE: Final = (
    "A classification needs one label for each record. Declare the labels to tell apart, for example classes=(0, 1): "
    "records with any other then count as null rows."
)


@dataclass(eq=False, repr=False, kw_only=True)
class _Classifier(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]
    """Labels of two kinds, or of several.

    Parameters
    ----------
    classes : list or None
        The labels; a record with another label becomes a null row. Without it they are read from y and count as
        public. As everywhere in scikit-learn `classes_` has them sorted, of two the positive class last.
    class_weight : mapping of class to weight, or None
        A record's loss is multiplied by the weight of its class; one that is not named weighs 1. Weights are declared
        and public. They are divided by the largest, so that no record counts more than without them, and
        `alpha` keeps its meaning. For `whitened`, `newton`, `gradient` and `sgd`.
    """

    _metric: ClassVar[str] = "accuracy_score"
    score = PrivateLinearModel.score

    classes: Any = None
    class_weight: Any = None

    def _declared_classes(self) -> tuple[Any, ...] | None:
        if (declared := self.known_classes) is None:
            return None
        labels = list(declared) if isinstance(declared, Iterable) and not isinstance(declared, str) else []
        if len(labels) < 2 or not all(isinstance(label, str | int | float | np.generic) for label in labels):
            raise InputError(f"classes={declared!r} must be labels, for example (0, 1) or ('no', 'yes').")
        if not all(map(is_class, labels)):
            raise InputError(
                f"classes={declared!r} must be texts or finite numbers, for example (0, 1) or ('no', 'yes')."
            )
        if len(set(map(label_key, labels))) < len(labels):
            raise InputError(
                f"classes={declared!r} are one label twice (a text that reads as a number counts as that number); "
                "declare each class once, for example classes=(0, 1)."
            )
        return distinct_classes(labels)

    def _class_weights(self, classes: tuple[Any, ...] | None) -> tuple[float, ...]:
        """In the order of the classes, the largest 1; none where all are alike."""
        if self.class_weight is None:
            return ()
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            raise InputError(
                "class_weight='balanced' would take the sizes of the classes from the data, and nothing would charge "
                "for them; declare weights by what is known of the sizes, for example class_weight={0: 1, 1: 9}."
            )
        if not isinstance(self.class_weight, Mapping):
            raise InputError(
                f"class_weight={self.class_weight!r} must be a mapping, for example {{0: 1, 1: 9}}, or None."
            )
        keys = [label_key(label) for label in classes or ()]
        by_key = {label_key(label): weight for label, weight in self.class_weight.items()}
        if len(by_key) < len(self.class_weight) or not set(by_key) <= set(keys):
            raise InputError(
                f"class_weight={self.class_weight!r} must name classes, each once; they are {list(classes or ())!r}."
            )
        if not all(is_number(weight) and SMALLEST <= weight <= LARGEST for weight in by_key.values()):
            raise InputError(f"class_weight={self.class_weight!r} must have positive finite numbers.")
        weights = [float(by_key.get(key, 1.0)) for key in keys]
        largest = max(weights)
        return tuple(max(weight / largest, SMALLEST) for weight in weights) if min(weights) < largest else ()

    @property
    def known_classes(self) -> Any:
        return self.classes if self.classes is not None or self._schema is None else self._schema.classes

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        if self._declared_classes() is not None:
            return labels  # one that is not declared makes a null row, and so do all of them: y decides no error
        numeric = labels.dtype.kind in "fiub"
        if not (np.isfinite(labels).all() if numeric else all(map(is_class, labels.tolist()))):
            raise InputError(f"Input y contains NaN, infinity, or what is neither a text nor a number. {_DECLARE}")
        try:  # the errors of scikit-learn can quote labels
            labels = np.asarray(labels.tolist()) if labels.dtype.kind == "O" else labels
            with np.errstate(all="ignore"):
                kind = type_of_target(labels, input_name="y")
        except (TypeError, ValueError):
            kind = "unknown"
        if kind not in ("binary", "multiclass"):
            raise InputError(f"Unknown label type: {kind}. {_DECLARE}")
        return labels

    def decision_function(self, X: Any) -> Array:
        """Scores x'coef + intercept, positive on the side of `classes_[1]`; rows are cut as in training.

        Of several classes a column for each, in the order of `classes_`.
        """
        return self.scores(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row by the sign of its score; with several classes, the one with the largest score."""
        scores = self.scores(X)
        if scores.ndim == 2:
            return np.asarray(self.classes_[scores.argmax(axis=1)])
        if (unusable := np.flatnonzero(np.isnan(scores))).size:
            raise InputError(
                f"{unusable.size} of {scores.size} people have a record that some party cannot use (a missing or "
                f"infinite value), the first is row {unusable[0]}; leave them out at every party, or take "
                "decision_function, which is NaN for them."
            )
        return np.asarray(self.classes_[(scores > 0).astype(int)])


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLogisticRegression(WithStandardErrors, _Classifier):
    """min (1/N) sum log(1 + exp(-y (x'w + b))) + alpha pen(w) under differential privacy.

    With more than two classes it is log sum_k exp(x'w_k + b_k) - (x'w_y + b_y), with weights for each class.

    Parameters
    ----------
    l1_ratio : float or None
        The share of the l1 norm in the penalty: 0 is alpha/2 |w|^2, 1 is alpha |w|_1, between them the elastic net.
        With `radius`, 0 and 1 are the balls of these norms. None is 0, and with a radius 1 for `solver="frank-wolfe"`
        and for data split by columns.
    """

    _plain: ClassVar[str] = "sklearn.linear_model.LogisticRegression"

    l1_ratio: float | None = None

    def _loss(self) -> Named:
        return Named(name="logistic")

    def _loss_of_several(self, classes: int) -> Named:
        return Named(name="softmax", parameters={"classes": float(classes)})

    def _regulariser(self, split: Split) -> Named:
        ratio, radius = self.l1_ratio, self.radius
        if ratio is None:
            solver = getattr(self.solver, "name", self.solver)
            ratio = 1 if radius is not None and (solver == FrankWolfe.name or split.same_people) else 0
        if is_number(ratio) and ratio in (0, 1):
            penalty = "l1" if ratio == 1 else "l2"
            return ball_or(penalty, f"{penalty}_ball", self.alpha, radius)
        if radius is not None:
            raise InputError(f"l1_ratio={ratio!r} must be 0 (the l2 ball) or 1 (the l1 ball) with radius={radius!r}.")
        return penalty_named("elastic_net", alpha=self.alpha, l1_ratio=ratio)

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

    With more than two classes it is the sum of this over the classes, in one run and under one budget: each class has
    its own weights, with y = 1 for its records and -1 for all others.

    Parameters
    ----------
    loss : str
        "smoothed_hinge" is served by most solvers; "hinge" has a kink, which fewer take. "sigmoid" is a smooth count of
        the errors and not convex: wrong labels pull little. Or another registered loss of that kind.
    """

    _plain: ClassVar[str] = "sklearn.svm.LinearSVC"

    loss: str = "smoothed_hinge"

    def _loss(self) -> Named:
        return loss_named(self.loss, "classification")

    def _regulariser(self, _split: Split) -> Named:
        return ball_or("l2", "l2_ball", self.alpha, self.radius)
