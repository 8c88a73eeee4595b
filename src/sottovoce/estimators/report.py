"""What a plan promises, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sottovoce import algorithms
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import Guarantee, PrivacyReport

# What is assumed by what is so of a plan, in the order in which a report says it.
ASSUMPTIONS: Final[Mapping[tuple[str, object], str]] = {
    ("any", True): "parties and coordinator follow the protocol, though they may be curious",
    ("split", "rows"): "nobody's record is with two parties",
    ("split", "columns"): "who is in the data is known to all parties",
    ("labels by columns", "public"): "the labels are public",
    ("labels by columns", "shared"): "all parties know the labels",
    ("keeps rows", True): "whose record changed since rows with noise were drawn, and that it did, is no secret",
    ("models", "kept"): "nobody is shown the weights that the parties keep, nor predictions made with them",
    ("protects", "feature"): "which records a party cannot use is no secret",
    ("classes", True): "the two class labels are public",
}


def assumptions(plan: Plan) -> tuple[str, ...]:
    """The lines of `ASSUMPTIONS` that hold of this plan."""
    so = {
        "any": True,
        "split": plan.split,
        "labels by columns": plan.labels if plan.split == "columns" else None,
        "keeps rows": plan.keeps_rows,
        "models": plan.models,
        "protects": plan.protects,
        "classes": plan.classes is not None,
    }
    return tuple(text for (what, value), text in ASSUMPTIONS.items() if so[what] == value)


def privacy_report(plan: Plan, *, seeded: bool) -> PrivacyReport:
    """The true guarantee of a plan, computed from what it releases."""
    epsilons = algorithms.epsilons(plan)
    void = (
        "The noise came from a known seed (insecure_seed), so anyone who knows it can subtract it." if seeded else None
    )
    guarantees = {
        name: Guarantee(epsilon, plan.delta, plan.relation, name, plan.claimed_epsilon, void, plan.protects)  # type: ignore[arg-type]
        for name, epsilon in epsilons.items()
    }
    return PrivacyReport(
        **guarantees,
        assumptions=assumptions(plan),
        public={
            "records": plan.records,
            "parties": dict(plan.parties),
            "features": plan.features,
            "classes": None if plan.classes is None else list(plan.classes),
            "bounds": plan.bounds.model_dump(exclude_none=True),
            "solver": plan.algorithm,
            "rounds": plan.rounds,
        },
    )
