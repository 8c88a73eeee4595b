"""Plans over secure columns, and people for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sottovoce.algorithms import plan_by
from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.whitened.columns import ColumnsWhitened
from sottovoce.data.bounds import Bounds
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SecureAggregation
from sottovoce.solvers import Whitened

CLASSES: dict[str, Any] = {"loss": Named(name="logistic"), "classes": (-1, 1)}
NUMBERS: dict[str, Any] = {"loss": Named(name="squared"), "classes": None}


def plan_for(
    records: int, widths: tuple[int, ...], options: Any = None, form: Algorithm | None = None, **fields: Any
) -> Plan:
    """A plan over secure columns; the last party has the labels unless `fields` say otherwise."""
    parties, features = len(widths), sum(widths)
    declared: dict[str, Any] = {
        "regulariser": Named(name="none"),
        "split": "columns",
        "parties": tuple((f"p{place}", records) for place in range(parties)),
        "features": features,
        "bounds": Bounds.declare(row_norm=1.0, label_bound=1.0),
        "epsilon": 1.0,
        "delta": 1e-5,
        "columns": widths,
        "norms": tuple(math.sqrt(width / features) for width in widths),
        "labels": "held",
        "label_party": parties - 1,
        "aggregation": SecureAggregation(colluding=parties - 1),
    }
    problem = Problem(**declared | CLASSES | fields)
    return plan_by(form or ColumnsWhitened(), problem, options or Whitened(), run="0" * 16, coin="0")


def people(plan: Plan, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose parts have their full length, and labels that they decide in part."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((plan.records, plan.features)) * np.linspace(1.0, 0.3, plan.features) + 0.3
    ends = np.cumsum((0, *plan.columns))
    for start, stop, norm in zip(ends[:-1], ends[1:], plan.norms, strict=True):
        X[:, start:stop] *= norm / np.maximum(np.linalg.norm(X[:, start:stop], axis=1, keepdims=True), 1.0) / 2
    score = X @ rng.standard_normal(plan.features) * 4
    if plan.classes is None:
        return X, np.clip(score / 4 + 0.1 * rng.standard_normal(plan.records), -1, 1)
    return X, np.where(rng.random(plan.records) < 1 / (1 + np.exp(-score)), 1, -1)
