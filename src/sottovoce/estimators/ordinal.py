"""An estimator for ordered classes: proportional odds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.estimators.base import Array
from sottovoce.estimators.classification import _Classifier
from sottovoce.estimators.declarations import ball_or
from sottovoce.federation.federation import Federation
from sottovoce.losses.ordinal import log_shares
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import Split

_ORDER = "declare the classes in their order, the least first, for example classes=('mild', 'moderate', 'severe')"


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateOrdinalClassifier(_Classifier):
    """log(P(y > k) / P(y <= k)) = x'w - t_k for every step k between ordered classes, under differential privacy.

    Proportional odds: a step up from any class has the same odds ratio, exp(w_j) for one more of feature j. It is
    fitted by `whitened`, in one place and by rows, with at most 2,000 features; without privacy by maximum likelihood.

    Parameters
    ----------
    classes : list or None
        The labels in their order, the least first: three or more. They are declared, here or as the levels of the label
        in the schema, and never read from the data: their order is not in it. As everywhere in scikit-learn `classes_`
        has them sorted, and probabilities have their columns in that order; `order_` has them as declared.

    Attributes
    ----------
    coef_ : array of one row
        The logarithms of the odds ratios, of being above any step rather than not, by feature.
    thresholds_ : array
        t_1 < t_2 < ..., one for each step; `intercept_` has them with the other sign.
    """

    _plain: ClassVar[str] = ""

    def _loss(self) -> Named:
        return Named(name="logistic")  # of two classes, which are refused

    def _loss_of_several(self, classes: int) -> Named:
        return Named(name="ordinal", parameters={"classes": float(classes)})

    def _regulariser(self, _split: Split) -> Named:
        return ball_or("l2", "l2_ball", self.alpha, self.radius)

    def _declared_classes(self) -> tuple[Any, ...] | None:
        """In the order in which they were declared."""
        if (found := super()._declared_classes()) is None:
            raise InputError(f"classes=None: {_ORDER}; or the schema has them as the levels of the label.")
        if len(found) < 3:
            raise InputError(
                f"classes={self.known_classes!r} are two; ordered classes are three or more, and for two there is "
                "PrivateLogisticRegression."
            )
        places = {label: place for place, label in enumerate(found)}
        listed = [label.item() if isinstance(label, np.generic) else label for label in self.known_classes]
        return tuple(found[places[label]] for label in listed)

    def problem(
        self, federation: Federation, facts: Mapping[str, Mapping[str, Any]], names: tuple[str, ...] = ()
    ) -> Problem:
        if federation.split.same_people:
            raise InputError(
                "X is split by columns, and PrivateOrdinalClassifier serves data in one place and by rows: of secret "
                "scores slopes are looked up in a table of one curve, and ordered classes have one for each class, "
                "with thresholds that move from round to round. Take PrivateLogisticRegression for a step of the "
                "classes, or PrivateRidge for their numbers."
            )
        if self.class_weight is not None:
            raise InputError("class_weight is not for ordered classes; leave it out.")
        return super().problem(federation, facts, names)

    def _set_model(self, coef: Array | None, intercept: Any, plan: Plan) -> None:
        """A row of `coef` for the score, and one for each threshold, which has no features."""
        super()._set_model(coef, intercept, plan)
        self.order_ = np.array(plan.classes)
        self.classes_ = np.sort(self.order_)
        self._places = np.searchsorted(self.classes_, self.order_)
        if coef is not None:
            self.coef_ = self.coef_[:1]
            self.thresholds_ = self.intercept_[1:] - self.intercept_[0]
            self.intercept_ = -self.thresholds_

    def model_rows(self) -> tuple[Array, Array]:
        rows = np.zeros((1 + len(self.thresholds_), self.coef_.shape[1]))
        rows[0] = self.coef_[0]
        return rows, np.concatenate([[0.0], self.thresholds_])

    def to_sklearn(self, *, encoded: bool = False) -> Any:  # noqa: ARG002
        raise InputError("scikit-learn has no model of ordered classes; save() keeps this one.")

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities, without underflow."""
        found = log_shares(self.scores(X))
        logs = np.empty_like(found)
        logs[:, self._places] = found
        return logs

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, in the order of `classes_`."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def decision_function(self, X: Any) -> Array:
        """Logarithms of the probabilities: a column for each class, in the order of `classes_`."""
        return self.predict_log_proba(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        return np.asarray(self.classes_[self.predict_log_proba(X).argmax(axis=1)])
