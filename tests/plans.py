"""A small plan of every form of every solver, on every split that it serves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sottovoce import algorithms, losses
from sottovoce.algorithms import Algorithm
from sottovoce.data.bounds import Bounds, party_norms
from sottovoce.lab.audit.runner import BALL, EVALUATED, STIFF, audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SecureAggregation

OPTIONS: dict[str, dict[str, Any]] = {
    "newton": {"rounds": 3},
    "whitened": {"rounds": 3},
    "gradient": {"rounds": 3},
    "sgd": {"rounds": 6, "rate": 0.3},
    "scd": {"rounds": 6, "rate": 0.3, "clip": 1e-3},
    "scd-sequential": {"rounds": 2, "lot": 2, "clip": 1e-3},
    "scd-primal": {"rounds": 4, "clip": 0.1},
    "cd": {"rounds": 2, "inner": 4, "clip": 0.3},
    "greedy-cd": {"rounds": 4, "clip": 0.3},
    "frank-wolfe": {"rounds": 6, "regulariser": BALL},
    "admm": {"rounds": 3},
    "fdml": {"rounds": 3},
    "score": {"rounds": 3},
}
SEVERAL: dict[str, Any] = {  # more than two classes
    "loss": Named(name="softmax", parameters={"classes": 3.0}),
    "classes": (0, 1, 2),
    "fit_intercept": True,
}
ORDERED = {**SEVERAL, "loss": Named(name="ordinal", parameters={"classes": 3.0})}
COUNTS: dict[str, Any] = {
    "loss": Named(name="poisson"),
    "bounds": Bounds.declare(row_norm=1.0, label_bound=(0, 3)),
    "fit_intercept": True,
}
ENTRIES = Bounds.declare(entry_bound=1.0, label_bound=(0, 3))
TIMES: dict[str, Any] = {
    "loss": Named(name="hazard", parameters={"periods": [0.0, 1.0, 2.0, 4.0]}),
    "bounds": Bounds.declare(row_norm=1.0),
    "fit_intercept": True,
}
ONE_VS_REST = {**SEVERAL, "loss": Named(name="smoothed_hinge")}
WHEN: dict[str, dict[str, Any]] = {"feature": {"labels": "public", "slope_bound": 0.3, "regulariser": STIFF}}
NORM = {"bounds": Bounds.declare(row_norm=1.0, label_bound=1.0), "norms": (0.6, 0.8)}
MORE: dict[tuple[str, str], dict[str, dict[str, Any]]] = {  # what a plan says more, where that changes who answers what
    ("sgd", "rows"): {"one party a round": {"schedule": "one-party"}},
    ("frank-wolfe", "columns"): {"row norm": NORM, "labels held": {"labels": "held"}},
    ("score", "columns"): {"labels held": {"labels": "held", "label_party": 1}},
    ("admm", "columns"): {"labels held": {"labels": "held"}},
    ("fdml", "columns"): {"labels held": {"labels": "held"}},
}


def small_problem(loss: str | Named = "squared", **fields: Any) -> Problem:
    """Seven rows of three columns in one place, the labels as the loss has them; or what the fields say instead."""
    named = Named(name=loss) if isinstance(loss, str) else loss
    classes = (-1, 1) if losses.get(named.name, **named.parameters).kind == "classification" else None
    declared: dict[str, Any] = {
        "loss": named,
        "regulariser": Named(name="none"),
        "split": "central",
        "parties": (("anna", 7),),
        "features": 3,
        "bounds": Bounds.declare(row_norm=1.0, label_bound=None if classes else 1.0),
        "epsilon": 1.0,
        "delta": 1e-5,
        "classes": classes,
    }
    return Problem(**declared | fields)


def columns_problem(columns: Sequence[int], records: int, bounds: Bounds, *, first: int = 0, **fields: Any) -> Problem:
    """The squared loss over so many columns of each party, party-`first` and so on; or what the fields say instead."""
    declared: dict[str, Any] = {
        "loss": Named(name="squared"),
        "regulariser": Named(name="none"),
        "split": "columns",
        "parties": tuple((f"party-{first + k}", records) for k in range(len(columns))),
        "features": sum(columns),
        "columns": tuple(columns),
        "norms": () if bounds.row_norm is None else tuple(party_norms(bounds.row_norm, columns)),
        "bounds": bounds,
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    return Problem(**declared | fields)


def plan_for(form: Algorithm, split: Any, **more: Any) -> Plan:
    """A small plan of the form, of two parties where there are several."""
    when = dict(form.when)
    options = OPTIONS.get(form.name, {}) | when | WHEN.get(str(when.get("unit")), {}) | more
    if form.options is not None:
        fields = set(Plan.model_fields)
        options = {name: value for name, value in options.items() if name in fields or name in form.options}
    if form.several:
        options |= SEVERAL
    if form.people:
        options["most_records"] = 3
    if form.ordered:
        options |= ORDERED
    if "count" in form.kinds and form.private is not False:
        options |= COUNTS | ({"bounds": ENTRIES} if split == "columns" else {})
    if "time" in form.kinds:
        options |= TIMES
    if form.name == "evaluation" and not form.several:
        options = EVALUATED[form.form] | options
    if form.published:
        options["calibration"] = "paper"
    elif form.private is False:
        options["epsilon"] = math.inf
    plan = audit_plan(form.name, split, 1 if split == "central" else 2, records=6, relation="zero-out", **options)
    assert algorithms.of(plan) is form
    return plan


FORMS = (*algorithms.every_form(), *algorithms.forms("evaluation"))
PLANS = {
    ", ".join(filter(None, (form.name, form.form, split, which))): (form, split, more)
    for form in FORMS
    for split in form.splits
    for which, more in {"": {}, **({} if form.published else MORE.get((form.name, split), {}))}.items()
    if not (which and (form.private is False or "unit" in form.when))
}
SECURE = {
    f"{form.name}, {form.form}, {split}, secure": (form, split, {"aggregation": SecureAggregation(colluding=1), **held})
    for form in FORMS
    for split in form.secure
    for held in [{"labels": "held"} if split == "columns" else {}]
    if form.private is not False and not form.published
}
