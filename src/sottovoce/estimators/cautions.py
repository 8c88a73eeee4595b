"""Warnings of what public numbers say against a fit, before anything is spent."""

from __future__ import annotations

import math

import numpy as np

from sottovoce.errors import warn
from sottovoce.plan.problem import Problem
from sottovoce.privacy.accounting import gaussian_epsilon

LITTLE = 30.0  # the signal N mu below which a fit says little


def warn_of_delta(problem: Problem) -> None:
    """Of a private run whose delta says little."""
    if problem.delta >= 1 / problem.records and problem.epsilon < math.inf:
        warn(
            f"delta={problem.delta:.3g} is at or above 1/N = {1 / problem.records:.3g}: a mechanism that publishes "
            f"one random record whole would satisfy it. Choose delta below {0.1 / problem.records:.1g}.",
        )


def warn_of(problem: Problem) -> None:
    """What public numbers say against a fit, before anything is spent."""
    if problem.epsilon == math.inf:
        return
    warn_of_delta(problem)
    if problem.signal < LITTLE:
        enough = gaussian_epsilon(problem.mu * LITTLE / problem.signal, problem.delta)
        warn(
            f"epsilon={problem.epsilon:g}: this budget buys little here. With {problem.records} records the signal "
            f"N mu is {problem.signal:.2g}; below {LITTLE:g} no model is far better than one that says the same of "
            f"everybody. About {math.ceil(problem.records * LITTLE / problem.signal)} records would do, or "
            f"epsilon={enough:.2g}.",
        )


def warn_of_norms(problem: Problem) -> None:
    """Of sealed columns whose parts are cut to shares of a row norm that follow nothing but the number of columns."""
    if problem.sealing is None or not problem.norms:
        return
    widths = [problem.bounds.columns(problem.features)[p.start : p.stop] for p in map(problem.part, problem.names)]
    cut = [name for name, w, b in zip(problem.names, widths, problem.norms, strict=True) if np.linalg.norm(w) > b]
    if cut:
        shares = ", ".join(f"{name} {norm:.3g}" for name, norm in zip(problem.names, problem.norms, strict=True))
        warn(
            f"row_norm={problem.bounds.row_norm:g} is shared among the parties by their numbers of columns ({shares}): "
            f"a row with more than that at {', '.join(cut)} is cut there, though it may be short as a whole. Declare "
            "norms=[...] of the federation by attributes (of one-hot codes count the ones), a schema, or "
            "feature_ranges without a row_norm, which cuts nothing.",
        )
