"""Estimators for numbers: ridge, LASSO and elastic net."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from sottovoce import losses
from sottovoce.errors import InputError
from sottovoce.estimators.base import Array, PrivateLinearModel
from sottovoce.estimators.coefficients import WithStandardErrors
from sottovoce.estimators.declarations import ball_or, loss_named, penalty_named
from sottovoce.estimators.path import RegularisationPath, lasso_path
from sottovoce.plan.problem import Named
from sottovoce.plan.split import Split


@dataclass(eq=False, repr=False, kw_only=True)
class _Regressor(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    """Labels that are numbers.

    Parameters
    ----------
    label_bound : float, (low, high), 'private' or None
        The range of the label, [-b, b] or [low, high]; a private fit needs it. Labels beyond it are cut. "private":
        nobody knows it, and a share of the budget buys it.
    """

    _metric: ClassVar[str] = "r2_score"
    score = PrivateLinearModel.score

    label_bound: Any = None

    def _loss(self) -> Named:
        return Named(name="squared")

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels as they are: one that is no number makes a null row. A type of texts or dates is a mistake."""
        if labels.dtype.kind not in "fiubcO":
            raise InputError("y must be numbers for a regression; encode the labels first.")
        return labels

    def predict(self, X: Any) -> Array:
        """Predicted labels."""
        return self.scores(X)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRidge(WithStandardErrors, _Regressor):
    """min (1/N) sum (x'w + b - y)^2 / 2 + alpha/2 |w|^2 under differential privacy, or |w|_2 <= radius.

    Residuals are clipped (by default to half the half-width of the label bound, `slope_bound` of most solvers), so
    records that the model misses by more pull like a Huber loss.

    Parameters
    ----------
    loss : str
        "squared", "huber", which says how far a record may pull, or another registered loss of a regression.
    threshold : float or None
        Of the Huber loss, which needs one: the residual, in units of the label, beyond which a record pulls no harder.
    """

    _plain: ClassVar[str] = "sklearn.linear_model.Ridge"

    loss: str = "squared"
    threshold: float | None = None

    def _loss(self) -> Named:
        if ("threshold" in losses.takes(self.loss)) != (self.threshold is not None):
            raise InputError(
                f"threshold={self.threshold!r} belongs to loss='huber', which needs one: the residual, in units of the "
                "label, beyond which a record pulls no harder."
            )
        return loss_named(self.loss, "regression", **({} if self.threshold is None else {"threshold": self.threshold}))

    def _regulariser(self, _split: Split) -> Named:
        return ball_or("l2", "l2_ball", self.alpha, self.radius)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLasso(_Regressor):
    """min (1/N) sum (x'w + b - y)^2 / 2 + alpha |w|_1 under differential privacy, or |w|_1 <= radius."""

    _plain: ClassVar[str] = "sklearn.linear_model.Lasso"

    alpha: float | Literal["auto"] = 1e-4

    def _regulariser(self, _split: Split) -> Named:
        return ball_or("l1", "l1_ball", self.alpha, self.radius)

    def path(self, X: Any, y: ArrayLike | None = None, *, alphas: ArrayLike | int = 20) -> RegularisationPath:
        """The models for many penalties under the budget of one fit.

        One fit by `newton` at the smallest alpha; all other models are computed from what it released, which costs
        nothing. `alphas` are the penalties, or how many to take from the first that leaves a feature in the model,
        as far as the releases tell, down to `alpha`.
        """
        return lasso_path(self, X, y, alphas)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateElasticNet(_Regressor):
    """min (1/N) sum (x'w + b - y)^2 / 2 + alpha (l1_ratio |w|_1 + (1 - l1_ratio)/2 |w|^2), differentially private.

    Parameters
    ----------
    l1_ratio : float
        The share of the l1 norm in the penalty, from 0 to 1.
    """

    _plain: ClassVar[str] = "sklearn.linear_model.ElasticNet"

    alpha: float | Literal["auto"] = 1e-4
    l1_ratio: float = 0.5

    def _regulariser(self, _split: Split) -> Named:
        if self.radius is not None:
            raise InputError(
                f"radius={self.radius!r}: the elastic net has no ball; use PrivateLasso or PrivateRidge, or alpha."
            )
        return penalty_named("elastic_net", alpha=self.alpha, l1_ratio=self.l1_ratio)
