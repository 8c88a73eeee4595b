"""A regularisation path under one budget: one private fit, then models for many penalties from what it released."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from sottovoce import penalties
from sottovoce.arguments import is_number, is_whole
from sottovoce.errors import InputError
from sottovoce.estimators.fits import Fit
from sottovoce.estimators.plots import axes_for
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.solvers import Newton

if TYPE_CHECKING:
    from sottovoce.estimators import PrivateLasso
    from sottovoce.penalties.quadratic import Quadratic

Array = NDArray[np.float64]

SHORTEST = 1e-3  # the last alpha of a path as a share of the first, where the estimator's own is above the first


@dataclass(frozen=True)
class RegularisationPath:
    """Models for `alphas`, largest first: row k of `coefs` and `intercepts[k]` belong to `alphas[k]`.

    `privacy` is the guarantee of all of them together, which is that of the one fit. After `alpha="auto"` there are
    `losses`, the mean losses expected on other records less that of the fit without a penalty, and `error`, the
    standard deviation of their noise.
    """

    alphas: Array
    coefs: Array
    intercepts: Array
    privacy: PrivacyReport
    plan: Plan
    fitted: PrivateLasso
    losses: Array | None = None
    error: float = 0.0

    def model(self, alpha: float) -> PrivateLasso:
        """A fitted estimator for the alpha of the path that is nearest, by ratio."""
        if not (is_number(alpha) and 0 < alpha < math.inf):
            raise InputError(f"alpha={alpha!r} must be a positive number; the path has {self._span}.")
        nearest = int(np.argmin(np.abs(np.log(self.alphas / alpha))))
        model: PrivateLasso = clone(self.fitted).set_params(alpha=float(self.alphas[nearest]))
        for name, value in vars(self.fitted).items():
            if name.endswith("_"):
                setattr(model, name, value)
        model._set_model(self.coefs[nearest].copy(), float(self.intercepts[nearest]), self.plan)
        return model

    def plot_losses(self, ax: Any = None) -> Any:
        """Losses against alpha, with an error bar of two deviations; 0 is the fit without a penalty."""
        if self.losses is None:
            raise InputError("losses=None: no penalty was chosen from this path; fit with alpha='auto' for a curve.")
        ax = axes_for(ax)
        ax.errorbar(self.alphas, self.losses, 2 * self.error, marker="o", lw=1.2, capsize=3)
        ax.axhline(0.0, lw=1.0, ls="--", color="gray")
        ax.set_xscale("log")
        ax.invert_xaxis()
        ax.set_xlabel("alpha")
        ax.set_ylabel("loss, less the fit's")
        ax.set_title(f"one fit and a choice, {self._promise}")
        return ax

    def plot(self, ax: Any = None) -> Any:
        """Coefficients against alpha; needs matplotlib (the extra `plots`)."""
        ax = axes_for(ax)
        names = getattr(self.fitted, "feature_names_in_", np.arange(self.coefs.shape[1]))
        for j in np.argsort(-np.abs(self.coefs).max(axis=0)):
            ax.plot(self.alphas, self.coefs[:, j], label=str(names[j]), lw=1.2)
        ax.set_xscale("log")
        ax.invert_xaxis()
        ax.set_xlabel("alpha")
        ax.set_ylabel("coefficient")
        ax.set_title(f"one fit, {self._promise}")
        if self.coefs.shape[1] <= 12:
            ax.legend(fontsize="small")
        return ax

    @property
    def _promise(self) -> str:
        mark = self.privacy.weakest.mark
        return f"epsilon = {self.privacy.epsilon:.3g}" + (f"\n{mark}" if mark else "")

    @property
    def _span(self) -> str:
        return f"{self.alphas[-1]:.3g} to {self.alphas[0]:.3g}"


def lasso_path(estimator: PrivateLasso, X: Any, y: ArrayLike | None, alphas: ArrayLike | int) -> RegularisationPath:
    """Fit once, then minimise the released quadratic for every alpha."""
    if getattr(estimator.solver, "name", estimator.solver) not in ("auto", Newton.name):
        raise InputError(
            f"solver={estimator.solver!r}: a path is computed from the releases of 'newton'; leave it out."
        )
    if estimator.radius is not None:
        raise InputError(f"radius={estimator.radius!r}: a path goes over alpha; leave radius out.")
    count = int(alphas) if is_whole(alphas) else 0
    grid = None if is_whole(alphas) else _read_alphas(alphas)
    if grid is None and not 1 <= count <= 10_000:
        raise InputError(f"alphas={alphas!r} must be at least 1; 20 is usual.")
    smallest: Any = estimator.alpha if grid is None else float(grid.min())
    if smallest == "auto" or not smallest > 0:
        raise InputError(f"alpha={estimator.alpha!r} must be above 0: it ends the path; 1e-4 is the default.")
    fitted: PrivateLasso = clone(estimator).set_params(alpha=smallest)
    if fitted.solver == "auto":
        fitted.set_params(solver=Newton.name)
    fit = Fit(fitted, fitted.as_federation(X, y), runs=True)
    with contextlib.closing(fit.session.coordinator.journal):
        model: Quadratic = fit.run().model
    plan = fitted.plan_
    if grid is None:
        grid = _alpha_grid(plan, model, smallest, count)
    models = [plan.preparation.unprepare(model.minimise(_l1_penalty(plan, alpha), plan.records)) for alpha in grid]
    coefs, intercepts = (np.array(part) for part in zip(*models, strict=True))
    return RegularisationPath(grid, coefs, intercepts, fitted.privacy_, plan, fitted)


def _read_alphas(alphas: Any) -> Array:
    try:
        numbers = np.asarray(alphas, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    if numbers.ndim != 1 or not numbers.size or not bool(np.all((numbers > 0) & np.isfinite(numbers))):
        raise InputError(f"alphas={alphas!r} must be positive numbers, or how many of them to choose.")
    return np.sort(numbers)[::-1]


def _l1_penalty(plan: Plan, alpha: float) -> ScaledRegulariser:
    own = plan.scaled_regulariser
    return ScaledRegulariser(penalties.get_penalty("l1", alpha=alpha), own.features, own.scale, own.objective)


def _alpha_grid(plan: Plan, model: Quadratic, smallest: float, count: int) -> Array:
    """From the alpha at which, as far as the releases tell, no feature is left, down to the smallest."""
    own = plan.scaled_regulariser
    free = model.slope_at_zero()
    if plan.fit_intercept:  # with the intercept at its best
        matrix = (model.metric.vectors * model.metric.values) @ model.metric.vectors.T
        free = free - matrix[:, -1] * (free[-1] / matrix[-1, -1])
    largest = float(np.abs(free[: plan.features]).max()) / plan.records / float(own.objective * np.max(own.scale))
    if not largest > smallest:
        largest = smallest / SHORTEST if largest <= 0 else max(largest, smallest)
    return np.geomspace(max(largest, smallest), smallest, count)
