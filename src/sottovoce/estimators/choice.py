"""`alpha="auto"`: the best of a path of penalties, which a fit's own releases give, by one more release."""

from __future__ import annotations

import math
import warnings
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import penalties
from sottovoce.errors import BudgetError, InputError, RefusedError
from sottovoce.estimators.planning import planned
from sottovoce.penalties.scaled import ScaledRegulariser
from sottovoce.plan.problem import Problem

if TYPE_CHECKING:
    from sottovoce.algorithms import Solution
    from sottovoce.algorithms.whitened.evidence import Evidence
    from sottovoce.estimators.base import Prepared, PrivateLinearModel
    from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]

SHARE = 0.02  # of mu squared, for the choice: most of what there is to gain, and little of the fit
ALPHAS = np.geomspace(3e-3, 1e-6, 8)  # for rows of norm 1 and slopes of 1/2; stronger ones leave nothing
WEAK = 3e-4  # up to which a penalty leaves alone what holds the noise back; a stronger one takes its place


def check_auto(estimator: PrivateLinearModel, problem: Problem) -> None:
    """Refuse alpha="auto" where a fit gives no path, or a path gains nothing; nothing has been charged."""
    solver, probe = estimator._solver_name, copy(estimator)
    probe.alpha = 1.0
    named = probe._regulariser(problem.split)
    reasons = {
        f"is chosen in place of a radius; leave radius={estimator.radius!r} out": estimator.radius is not None,
        f"is for penalties with an l1 norm, where few features matter; {named.name!r} needs a number": (
            named.name not in ("l1", "elastic_net") or named.parameters.get("l1_ratio") == 0
        ),
        "is chosen by a private release, and epsilon=inf; take a number": problem.epsilon == math.inf,
        f"serves one score, and there are {problem.scaled_loss.outputs} classes; take a number": (
            problem.scaled_loss.outputs > 1
        ),
        "serves data in one place or split by rows; take a number": problem.split == "columns",
        f"goes by the releases of 'whitened'; leave solver={solver!r} out": solver not in ("auto", "whitened"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"alpha='auto' {reason}.")


def choose_alpha(estimator: PrivateLinearModel, prepared: Prepared, solution: Solution) -> None:
    """Put the best of the path in the place of the fit, or leave the fit: `alpha_`, `path_`, `coef_`, `intercept_`.

    The best has the least sum of losses + degrees of freedom, by how much a model does better on its own records than
    on others. The path is public before the release: a function of the fit's.
    """
    from sottovoce.estimators.path import RegularisationPath

    plan, evidence = prepared.plan, solution.model
    own = plan.scaled_regulariser
    alphas = ALPHAS * (evidence.units.slope / 0.5) / float(own.objective * np.max(own.scale))
    weights, freedom = _path(estimator, plan, evidence, alphas)
    unit = _residual_variance(evidence, solution)
    estimator.alpha_ = 0.0
    found = _compared(estimator, prepared, np.array([solution.weights, *weights]), unit)
    if found is None:
        return
    sums, noise = found
    scale = unit / plan.records / float(own.objective)
    losses = (sums + freedom[1:] - freedom[0]) * scale
    coefs, intercepts = zip(*(plan.preparation.unprepare(each) for each in weights), strict=True)
    best = int(np.argmin(losses))
    if losses[best] < 0:
        estimator.alpha_ = float(alphas[best])
        estimator._set_model(coefs[best], intercepts[best], plan)
    estimator.path_ = RegularisationPath(
        alphas, np.array(coefs), np.array(intercepts), estimator.privacy_, plan, estimator, losses, noise * scale
    )


def choice_to_come(estimator: PrivateLinearModel, prepared: Prepared) -> Plan:
    """The plan of the choice before the fit has run: with models that say nothing, on which no cost depends."""
    from sottovoce.algorithms.model_selection import Candidates, ComparedLosses

    candidates = Candidates(np.zeros((len(ALPHAS) + 1, prepared.plan.dimension)))
    problem = _problem(estimator, prepared.plan)
    within = prepared.plan.within
    return planned(ComparedLosses(), problem, candidates, prepared.federation, estimator.insecure_seed, within)


def _problem(estimator: PrivateLinearModel, plan: Plan) -> Problem:
    """That of the fit, with the share of the choice."""
    fields = {name: getattr(plan, name) for name in Problem.model_fields}
    return Problem(**fields | {"epsilon": estimator._part(SHARE)})


def _compared(estimator: Any, prepared: Prepared, weights: Array, unit: float) -> tuple[Array, float] | None:
    """Sums of losses less those of the fit, and their noise; None, with a warning, if a ledger has no room for it."""
    from sottovoce.algorithms.model_selection import Candidates, ComparedLosses

    plan = prepared.plan
    try:
        found = estimator._buy(prepared, ComparedLosses(), _problem(estimator, plan), Candidates(weights, unit))
    except (BudgetError, RefusedError) as refusal:
        prepared.coordinator.dismiss()
        warnings.warn(
            f"alpha='auto': the fit is paid for and kept, without a penalty; the choice was refused: {refusal}",
            UserWarning,
            stacklevel=6,
        )
        return None
    return found.model, estimator.plans_[-1].release("losses").std * math.sqrt(plan.noises())


def _path(estimator: Any, plan: Any, evidence: Evidence, alphas: Array) -> tuple[list[Array], Array]:
    """The weights for each alpha, and the degrees of freedom, first those of the fit."""
    own, penalised = plan.scaled_regulariser, copy(estimator)
    weights = []
    freedom = [evidence.degrees_of_freedom(evidence.weights, own, 1.0)]
    for alpha, strength in zip(alphas, ALPHAS, strict=True):
        penalised.alpha = float(alpha)
        named = penalised._regulariser(plan.split)
        inner = penalties.get(named.name, **named.parameters)
        regulariser = ScaledRegulariser(inner, own.features, own.scale, own.objective)
        share = min(1.0, math.sqrt(WEAK / strength))
        weights.append(evidence.model(regulariser, share))
        freedom.append(evidence.degrees_of_freedom(weights[-1], regulariser, share))
    return weights, np.array(freedom)


def _residual_variance(evidence: Evidence, solution: Solution) -> float:
    """The unit in which a loss is a log-likelihood: 1 for classes, for numbers the variance that the scores leave.

    The mean absolute residual r of the constant model was released, and pi/2 r^2 is the variance of a normal label.
    """
    if evidence.units.loss.kind == "classification" or solution.spread is None:
        return 1.0
    square = evidence.units.slope**2
    return max(math.pi / 2 * square - solution.spread[1] ** 2, square / 10)
