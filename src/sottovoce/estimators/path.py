"""A regularisation path under one budget: one private fit, then models for many penalties from what it released.

`alpha="auto"` takes the best of such a path, by one more release.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from sottovoce import penalties
from sottovoce.algorithms import Solution
from sottovoce.algorithms.model_selection import Candidates, ComparedLosses
from sottovoce.arguments import is_number, is_whole
from sottovoce.errors import InputError
from sottovoce.estimators.fits import Fit, Purchase
from sottovoce.estimators.plots import axes_for
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.solvers import Newton, Whitened

if TYPE_CHECKING:
    from sottovoce.algorithms.whitened.rule import Evidence
    from sottovoce.estimators import PrivateLasso
    from sottovoce.penalties.quadratic import Quadratic

Array = NDArray[np.float64]

ALPHAS = np.geomspace(3e-3, 1e-6, 8)  # for rows of norm 1 and slopes of 1/2; stronger ones leave nothing
WEAK = 3e-4  # up to which a penalty leaves alone what holds the noise back; a stronger one takes its place
TRUSTED = 5.0  # a model that is further from the fit than so many times what noise and overfitting cost is left out
CUT = 1.5  # of the losses of a record, in the units of a log-likelihood: shorter ones hide what a poor model costs
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
            raise InputError(
                f"alpha={alpha!r} must be a positive number; the path has "
                f"{self.alphas[-1]:.3g} to {self.alphas[0]:.3g}."
            )
        nearest = int(np.argmin(np.abs(np.log(self.alphas / alpha))))
        model: PrivateLasso = clone(self.fitted).set_params(alpha=float(self.alphas[nearest]))
        for name, value in vars(self.fitted).items():
            if name.endswith("_"):
                setattr(model, name, value)
        model._set_model(self.coefs[nearest].copy(), float(self.intercepts[nearest]), self.plan)
        return model

    def plot_losses(self, ax: Any = None) -> Any:
        """Losses against alpha, error bars of two deviations; 0 is the fit without a penalty. Gives the figure."""
        if self.losses is None:
            raise InputError("losses=None: no penalty was chosen from this path; fit with alpha='auto' for a curve.")
        ax = axes_for(ax)
        ax.errorbar(self.alphas, self.losses, 2 * self.error, marker="o", lw=1.2, capsize=3)
        ax.axhline(0.0, lw=1.0, ls="--", color="gray")
        return self._name_axes(ax, "loss, less the fit's", "one fit and a choice")

    def plot(self, ax: Any = None) -> Any:
        """Coefficients against alpha; needs matplotlib (the extra `plots`). Gives the figure."""
        ax = axes_for(ax)
        names = getattr(self.fitted, "feature_names_in_", np.arange(self.coefs.shape[1]))
        for j in np.argsort(-np.abs(self.coefs).max(axis=0)):
            ax.plot(self.alphas, self.coefs[:, j], label=str(names[j]), lw=1.2)
        if self.coefs.shape[1] <= 12:
            ax.legend(fontsize="small")
        return self._name_axes(ax, "coefficient", "one fit")

    def _name_axes(self, ax: Any, height: str, runs: str) -> Any:
        ax.set_xscale("log")
        ax.invert_xaxis()
        ax.set_xlabel("alpha")
        ax.set_ylabel(height)
        mark = self.privacy.weakest.mark
        ax.set_title(f"{runs}, epsilon = {self.privacy.epsilon:.3g}" + (f"\n{mark}" if mark else ""))
        return ax.figure


class PenaltyChoice(Purchase):
    """Puts the best of the path in the place of the fit, or leaves the fit: `alpha_`, `path_`, `coef_`, `intercept_`.

    The best has the least sum of losses + degrees of freedom, by how much a model does better on its own records than
    on others. Columns that are scaled one by one are correlated, nobody knows how far: there no degrees are counted.

    If noise and overfitting cost the fit e, a model that is better than it has at most 4 e more loss by the fit's
    quadratic, as |w - fit| <= |w - best| + |best - fit|. One with far more would only hide the others: all differences
    of a record are cut as one. The path is public before the release: a function of the fit's.
    """

    form = ComparedLosses()
    what = "alpha='auto'"
    share = 0.04  # most of what there is to gain, and little of the fit
    refused = "alpha='auto': the fit is paid for and kept, without a penalty; the choice was refused"

    def check(self, fit: Fit, problem: Problem) -> None:
        """Refuse alpha="auto" where a fit gives no path, or a path gains nothing."""
        model, probe = fit.model, copy(fit.model)
        solver = getattr(model.solver, "name", model.solver)
        probe.alpha = 1.0
        named = probe._regulariser(problem.split)
        reasons = {
            f"is chosen in place of a radius; leave radius={model.radius!r} out": model.radius is not None,
            f"is for penalties with an l1 norm, where few features matter; {named.name!r} needs a number": (
                named.name not in ("l1", "elastic_net") or named.parameters.get("l1_ratio") == 0
            ),
            "is chosen by a private release, and epsilon=inf; take a number": problem.epsilon == math.inf,
            f"serves one score, and there are {problem.scaled_loss.outputs} classes; take a number": (
                problem.scaled_loss.outputs > 1
            ),
            "serves data in one place or split by rows; take a number": problem.split.same_people,
            f"goes by the releases of 'whitened'; leave solver={solver!r} out": solver not in ("auto", Whitened.name),
        }
        for reason, holds in reasons.items():
            if holds:
                raise InputError(f"alpha='auto' {reason}.")

    def options(self, fit: Fit) -> Candidates:
        if fit.solution is None:
            return Candidates(np.zeros((len(ALPHAS) + 1, fit.plan.dimension)))
        evidence: Evidence = fit.solution.model
        own, penalised = fit.plan.scaled_regulariser, copy(fit.model)
        self.alphas = ALPHAS * (evidence.units.slope / 0.5) / float(own.objective * np.max(own.scale))
        self.weights, freedom = [], [evidence.degrees_of_freedom(evidence.weights, own, 1.0)]
        for alpha, strength in zip(self.alphas, ALPHAS, strict=True):
            penalised.alpha = float(alpha)
            named = penalised._regulariser(fit.plan.split)
            inner = penalties.get_penalty(named.name, **named.parameters)
            regulariser = ScaledRegulariser(inner, own.features, own.scale, own.objective)
            share = min(1.0, math.sqrt(WEAK / strength))
            self.weights.append(evidence.model(regulariser, share))
            freedom.append(evidence.degrees_of_freedom(self.weights[-1], regulariser, share))
        # The unit in which a loss is a log-likelihood: 1 for classes, for numbers the variance that the scores leave.
        # The mean absolute residual r of the constant model was released; pi/2 r^2 is the variance of a normal label.
        unit = 1.0
        if evidence.units.loss.kind != "classification" and fit.solution.spread is not None:
            square = evidence.units.slope**2
            unit = max(math.pi / 2 * square - fit.solution.spread[1] ** 2, square / 10)
        most = TRUSTED * (evidence.noise + unit * freedom[0] / (2 * fit.plan.records))
        near = [evidence.distance(weights) <= most for weights in self.weights[:-1]] + [True]
        self.alphas, self.weights = self.alphas[near], list(itertools.compress(self.weights, near))
        known = float(evidence.moments.vectors is not None)
        self.freedom, self.unit = known * (np.array(freedom[1:])[near] - freedom[0]) / CUT, CUT * unit
        fit.model.alpha_ = 0.0
        return Candidates(np.array([fit.solution.weights, *self.weights]), self.unit)

    def use(self, fit: Fit, solution: Solution) -> None:
        plan, model = fit.plan, fit.model
        noise = model.plans_[-1].releases[0].std * math.sqrt(plan.channel.variance)
        scale = self.unit / plan.records / float(plan.scaled_regulariser.objective)
        losses = (solution.model + self.freedom) * scale
        coefs, intercepts = zip(*(plan.preparation.unprepare(weights) for weights in self.weights), strict=True)
        best = int(np.argmin(losses))
        if losses[best] < 0:
            model.alpha_ = float(self.alphas[best])
            model._set_model(coefs[best], intercepts[best], plan)
        fitted: Any = model
        model.path_ = RegularisationPath(
            self.alphas, np.array(coefs), np.array(intercepts), model.privacy_, plan, fitted, losses, noise * scale
        )


def lasso_path(estimator: PrivateLasso, X: Any, y: ArrayLike | None, alphas: ArrayLike | int) -> RegularisationPath:
    """Fit once, then minimise the released quadratic for every alpha."""
    if getattr(estimator.solver, "name", estimator.solver) not in ("auto", Newton.name):
        raise InputError(
            f"solver={estimator.solver!r}: a path is computed from the releases of 'newton'; leave it out."
        )
    if estimator.radius is not None:
        raise InputError(f"radius={estimator.radius!r}: a path goes over alpha; leave radius out.")
    grid, count = (None, int(alphas)) if is_whole(alphas) else (_read_alphas(alphas), 0)
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
    own, models = plan.scaled_regulariser, []
    for alpha in grid:
        l1 = ScaledRegulariser(penalties.get_penalty("l1", alpha=alpha), own.features, own.scale, own.objective)
        models.append(plan.preparation.unprepare(model.minimise(l1, plan.records)))
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
