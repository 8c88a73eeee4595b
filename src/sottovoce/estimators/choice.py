"""`alpha="auto"`: the best of a path of penalties, which a fit's own releases give, by one more release."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import penalties
from sottovoce.algorithms.model_selection import Candidates, ComparedLosses
from sottovoce.errors import InputError
from sottovoce.estimators.fits import Fit, Purchase
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.plan.problem import Problem
from sottovoce.solvers import Whitened

if TYPE_CHECKING:
    from sottovoce.algorithms import Solution
    from sottovoce.algorithms.whitened.rule import Evidence

Array = NDArray[np.float64]

ALPHAS = np.geomspace(3e-3, 1e-6, 8)  # for rows of norm 1 and slopes of 1/2; stronger ones leave nothing
WEAK = 3e-4  # up to which a penalty leaves alone what holds the noise back; a stronger one takes its place


class PenaltyChoice(Purchase):
    """Puts the best of the path in the place of the fit, or leaves the fit: `alpha_`, `path_`, `coef_`, `intercept_`.

    The best has the least sum of losses + degrees of freedom, by how much a model does better on its own records than
    on others. The path is public before the release: a function of the fit's.
    """

    form = ComparedLosses()
    share = 0.02  # most of what there is to gain, and little of the fit
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
        self.freedom, self.unit = np.array(freedom), _residual_variance(evidence, fit.solution)
        fit.model.alpha_ = 0.0
        return Candidates(np.array([fit.solution.weights, *self.weights]), self.unit)

    def use(self, fit: Fit, solution: Solution) -> None:
        from sottovoce.estimators.path import RegularisationPath

        plan, model = fit.plan, fit.model
        noise = model.plans_[-1].releases[0].std * math.sqrt(plan.channel.variance)
        scale = self.unit / plan.records / float(plan.scaled_regulariser.objective)
        losses = (solution.model + self.freedom[1:] - self.freedom[0]) * scale
        coefs, intercepts = zip(*(plan.preparation.unprepare(weights) for weights in self.weights), strict=True)
        best = int(np.argmin(losses))
        if losses[best] < 0:
            model.alpha_ = float(self.alphas[best])
            model._set_model(coefs[best], intercepts[best], plan)
        fitted: Any = model
        model.path_ = RegularisationPath(
            self.alphas, np.array(coefs), np.array(intercepts), model.privacy_, plan, fitted, losses, noise * scale
        )


def _residual_variance(evidence: Evidence, solution: Solution) -> float:
    """The unit in which a loss is a log-likelihood: 1 for classes, for numbers the variance that the scores leave.

    The mean absolute residual r of the constant model was released, and pi/2 r^2 is the variance of a normal label.
    """
    if evidence.units.loss.kind == "classification" or solution.spread is None:
        return 1.0
    square = evidence.units.slope**2
    return max(math.pi / 2 * square - solution.spread[1] ** 2, square / 10)
