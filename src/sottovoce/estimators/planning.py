"""A plan for the parties of a federation, of a problem and the form that serves it."""

from __future__ import annotations

import math
import secrets
from typing import Any

from sottovoce import algorithms
from sottovoce.algorithms import Algorithm
from sottovoce.errors import InputError
from sottovoce.federation.federation import Federation
from sottovoce.plan.plan import Plan, Whole
from sottovoce.plan.problem import Problem
from sottovoce.privacy.accounting import gaussian_mu


def planned(  # noqa: PLR0913
    form: Algorithm,
    problem: Problem,
    options: Any,
    federation: Federation,
    seed: int | None,
    within: Whole | None = None,
) -> Plan:
    """A plan for the parties of a federation, with a run and a coin of its own and with what it is about."""
    coin = secrets.token_hex(16) if seed is None else f"seed {seed}"
    plan = algorithms.plan_by(form, problem, options, run=secrets.token_hex(16), coin=coin)
    said: dict[str, Any] = {"about": federation.about} if federation.about.texts() else {}
    said |= {} if within is None else {"within": within}
    return plan.model_copy(update=said) if said else plan


def check_gaussian(plan: Plan, form: Algorithm) -> None:
    """Refuse a solver whose releases do not add up as Gaussian ones do, where something is bought beside the fit."""
    mu = gaussian_mu(form.pricing.events(form, plan, plan.relation, plan.names[0]), plan.relation)
    if mu is None or not math.isfinite(mu):
        raise InputError(
            f"solver={plan.algorithm!r}: what is bought beside a fit shares mu squared with it, which needs a solver "
            "with Gaussian releases alone, such as 'whitened' or 'newton'."
        )
