"""Estimators for counts and positive amounts: the mean is exp(x'w + b), of counts times the exposure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from sottovoce.arguments import is_number
from sottovoce.data.cells import cell_key, column_cells, read_numbers, table_columns
from sottovoce.errors import InputError
from sottovoce.estimators.base import Array, PrivateLinearModel
from sottovoce.estimators.coefficients import WithStandardErrors
from sottovoce.estimators.declarations import penalty_named
from sottovoce.federation.federation import Federation
from sottovoce.losses.counts import REACH
from sottovoce.plan.problem import Named
from sottovoce.plan.split import Split


@dataclass(eq=False, repr=False, kw_only=True)
class _MeanRegressor(WithStandardErrors, RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    """Labels that are 0 or above.

    Parameters
    ----------
    label_bound : (low, high) or None
        The range of the label, from 0 on; a private fit needs it. Labels beyond it are cut, and one below 0 makes a
        null row.
    """

    _metric: ClassVar[str] = "d2_tweedie_score"
    _power: ClassVar[float]
    _name: ClassVar[str]
    ratio_name: ClassVar[str] = "ratio of means"  # what exp of a coefficient is

    label_bound: Any = None

    @property
    def ratios_(self) -> dict[str, float]:
        """`exp` of each coefficient, by the names of the features, else x0, x1, ...: rate ratios, ratios of means."""
        self._check_shared()
        names = self._feature_names or tuple(f"x{j}" for j in range(len(self.coef_)))
        return dict(zip(names, np.exp(np.minimum(self.coef_, REACH)).tolist(), strict=True))

    def to_sklearn(self, *, encoded: bool = False) -> Any:
        """As of every model; counts of it are per unit of exposure."""
        model = super().to_sklearn(encoded=encoded)
        plain = model if hasattr(model, "_get_loss") else model[-1]
        plain._base_loss = plain._get_loss()
        return model

    def _loss(self) -> Named:
        self._check_bounds()
        return Named(name=self._name)

    def _check_bounds(self) -> None:
        bound = self.label_bound
        if bound is not None and (is_number(bound) or isinstance(bound, str)):
            raise InputError(
                f"label_bound={bound!r} must be a pair, such as (0, 20): labels are none below 0, and larger ones are "
                "cut."
            )
        if self.radius is not None:
            raise InputError(f"radius={self.radius!r}: counts and amounts have no ball; take alpha, or leave it out.")
        if self.alpha == "auto":
            raise InputError("alpha='auto' is for classes and numbers; give a number, 0 for no penalty.")

    def _regulariser(self, _split: Split) -> Named:
        return Named(name="none") if self.alpha == 0 else penalty_named("l2", alpha=self.alpha)

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels as they are: one that is no number, or below 0, makes a null row."""
        if labels.dtype.kind not in "fiubcO":
            raise InputError("y must be numbers for a regression; encode the labels first.")
        return labels

    def predict(self, X: Any) -> Array:
        """Predicted means."""
        return np.asarray(np.exp(np.minimum(self.scores(X), REACH)))

    def score(self, X: Any, y: ArrayLike | None = None, sample_weight: Any = None) -> float:
        """D^2: by how much of the constant model's deviance the model's is below it. It is exact: no noise."""
        from sklearn.metrics import d2_tweedie_score

        predicted = self.predict(X)
        labels = self._labels_of(X, y)
        known = np.isfinite(labels)
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(d2_tweedie_score(labels[known], predicted[known], sample_weight=weights, power=self._power))

    def _labels_of(self, X: Any, y: ArrayLike | None) -> Array:
        if y is None and (y := None if self._schema is None else self._schema.labels(X)) is None:
            raise InputError("y=None: give the labels of X, or a table with the label column of the schema.")
        y = np.asarray(y)
        return read_numbers(column_cells(y["label"] if y.dtype.names else y), cell_key)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PrivatePoissonRegressor(_MeanRegressor):
    """Counts with the mean E exp(x'w + b), E the exposure, under differential privacy.

    `exp` of a coefficient is a rate ratio. Whatever the law of the counts is, the mean is what is fitted: they need
    not be Poisson's. Without privacy it is the likelihood of Poisson; with it large counts weigh less, so that few of
    them do not decide (`losses/counts.py`).

    Parameters
    ----------
    exposure_bound : float or None
        The largest exposure, for fits with one: the time or the amount in which a count was made. Larger ones are cut.
    """

    _plain: ClassVar[str] = "sklearn.linear_model.PoissonRegressor"
    _power: ClassVar[float] = 1.0
    _name: ClassVar[str] = "poisson"
    ratio_name: ClassVar[str] = "rate ratio"

    exposure_bound: float | None = None

    def fit(
        self, X: Any, y: ArrayLike | None = None, *, exposure: Any = None, person: Any = None, **beside: Any
    ) -> Self:
        """Fit on arrays, on a table with a schema, on a `Dataset` or on a `Federation`.

        `exposure` has that of each count, 1 where it is left out; a table has it by its schema. A count above 0 without
        exposure makes a null row.
        """
        if exposure is not None and self.exposure_bound is None and math.isfinite(self.epsilon):
            raise InputError(
                "exposure_bound=None: a private fit needs the largest exposure, from what is known of it, such as 1.0 "
                "for years of one year; larger ones are cut."
            )
        return super().fit(X, y, exposure=exposure, person=person, **beside)

    def predict(self, X: Any, exposure: Any = None) -> Array:
        """Predicted means in these exposures, by default in 1; of a table with the exposure of its schema, in that."""
        rates = super().predict(X)
        exposure = self._exposure_of(X) if exposure is None else exposure
        return rates if exposure is None else np.asarray(rates * read_numbers(column_cells(exposure), cell_key))

    def score(self, X: Any, y: ArrayLike | None = None, sample_weight: Any = None, exposure: Any = None) -> float:
        """D^2: by how much of the deviance of one rate for everybody the model's is below it. No noise."""
        labels = self._labels_of(X, y)
        exposure = self._exposure_of(X) if exposure is None else exposure
        given = np.ones(len(labels)) if exposure is None else read_numbers(column_cells(exposure), cell_key)
        known = np.isfinite(labels) & np.isfinite(given) & (given > 0)
        weights = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        labels, given, weights = labels[known], given[known], weights[known]
        rates = np.exp(np.minimum(self.scores(X), REACH))[known]

        def deviance(means: Array) -> float:
            parts = np.where(labels > 0, labels * np.log(np.where(labels > 0, labels, 1.0) / means), 0.0)
            return float(weights @ (parts - labels + means))

        constant = float(weights @ labels) / float(weights @ given)
        return 1.0 - deviance(given * rates) / deviance(given * constant)

    def _exposure_of(self, X: Any) -> Any:
        """By the schema of the fit; None where there is none."""
        if self._schema is None or isinstance(X, Federation) or "exposure" not in self._schema.beside:
            return None
        return table_columns(X).get(self._schema.beside["exposure"].name)

    def _bounds_beside(self) -> dict[str, float | None]:
        own = None if self._schema is None else self._schema.most_beside("exposure")
        bound = own if self.exposure_bound is None else self.exposure_bound
        return {**super()._bounds_beside(), "exposure_bound": bound}


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateGammaRegressor(_MeanRegressor):
    """Positive amounts with the mean exp(x'w + b), such as costs, under differential privacy.

    The likelihood is gamma's, and the mean is what is fitted, whatever the law of the amounts is. `exp` of a
    coefficient is a ratio of means.
    """

    _plain: ClassVar[str] = "sklearn.linear_model.GammaRegressor"
    _power: ClassVar[float] = 2.0
    _name: ClassVar[str] = "gamma"
