"""What a plan promises, and what that rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sottovoce import algorithms
from sottovoce.plan.aggregation import COORDINATOR
from sottovoce.plan.channel import parties_text
from sottovoce.plan.plan import Plan
from sottovoce.plan.secure_text import assumed, broken
from sottovoce.privacy.guarantee import FALSE_ALARMS, VIEWS, Guarantee, PrivacyReport

# What is assumed by what is so of a plan, in the order in which a report says it.
ASSUMPTIONS: Final[Mapping[tuple[str, object], str]] = {
    ("any", True): "parties and coordinator follow the protocol, though they may be curious",
    ("protects", "record"): "each person has one record (one with several is protected less)",
    ("any number", True): "bounds, classes and all other numbers declared were not taken from these data",
    ("any use", True): "the same people's data are used nowhere else, outside the ledger or in another data set",
    ("any draw", True): "the operating system of each party draws good random numbers",
    ("test people", "others"): "no test person's record was used in the fit: each person pays for one of the two",
    ("test people", "same"): "test people may be those of the fit: costs add, this is what the evaluation adds to what "
    "the fit promises, and one ledger should have both",
    ("joint scores", True): "all parties let the holder of the labels learn each test person's score, which no epsilon "
    "covers",
    ("split", "rows"): "nobody's record is with two parties",
    ("split", "columns"): "who is in the data is known to all parties",
    ("labels by columns", "public"): "the labels are public",
    ("labels by columns", "shared"): "all parties know the labels",
    ("models", "kept"): "nobody is shown the weights that the parties keep, nor predictions made with them",
    ("protects", "feature"): "which records a party cannot use is no secret",
    ("classes", True): "the class labels are public",
    ("named records", True): "who sees the model alone does not know which records the coordinator's coin named",
}

# Of an evaluation of others than the people of a fit that promises these nothing.
UNPROTECTED_FIT: Final = "the people of the fit are not protected by this evaluation"


def assumptions(plan: Plan) -> tuple[str, ...]:
    """The lines of `ASSUMPTIONS` that hold of this plan."""
    so = {
        **dict.fromkeys(("any", "any number", "any use", "any draw"), True),
        "test people": plan.numbers.people if plan.algorithm == "evaluation" else None,
        "joint scores": plan.algorithm == "evaluation" and plan.numbers.scores != "",
        "split": plan.split,
        "labels by columns": plan.labels if plan.split.same_people else None,
        "models": None if plan.algorithm == "evaluation" else plan.models,
        "protects": plan.protects,
        "classes": plan.classes is not None,
        "named records": (plan.algorithm, plan.form) == ("sgd", "published"),
    }
    return tuple(text for (what, value), text in ASSUMPTIONS.items() if so[what] == value)


def privacy_report(
    plan: Plan,
    *,
    seeded: bool,
    beside: Sequence[Plan] = (),
    left: Sequence[tuple[str, str]] = (),
    pinned: bool | None = None,
) -> PrivacyReport:
    """The true guarantee of a plan, and of plans beside it on the same people, computed from what they release.

    Of secure sums `left` has who left the run and when, and `pinned` says how the parties' keys are known.
    """
    void = (
        "The noise came from a known seed (insecure_seed), so anyone who knows it can subtract it." if seeded else None
    )
    missed = algorithms.missed(plan, FALSE_ALARMS, beside=beside)
    secure = next((each for each in (plan, *beside) if each.channel.secure), None)
    curve = {} if secure is None else algorithms.colluding(plan, beside=beside)
    guarantees = {
        name: Guarantee(
            epsilon=epsilon,
            delta=plan.delta,
            relation=plan.relation,
            adversary=name,  # type: ignore[arg-type]
            claimed_epsilon=plan.claimed_epsilon,
            void=void,
            unit=plan.protects,
            result="evaluation" if plan.algorithm == "evaluation" else "model",
            trade_off=tuple(zip(FALSE_ALARMS, missed[name].tolist(), strict=True)),
            **({} if secure is None else secure_text(secure, name, curve, pinned)),
        )
        for name, epsilon in algorithms.epsilons(plan, beside=beside).items()
    }
    return PrivacyReport(
        **guarantees,
        assumptions=assumptions(plan),
        public={
            "records": plan.records,
            "parties": dict(plan.parties),
            "features": plan.features,
            "classes": None if plan.classes is None else list(plan.classes),
            **({"class_weight": list(plan.class_weight)} if plan.class_weight else {}),
            "bounds": plan.bounds.model_dump(exclude_none=True),
            "solver": plan.algorithm,
            "rounds": plan.rounds,
        },
        colluding=curve,
        noise=None if secure is None else math.sqrt(secure.noises()),
        left=tuple(left),
    )


def secure_text(plan: Plan, adversary: str, curve: Mapping[str, float], pinned: bool | None = None) -> dict[str, Any]:
    """What a guarantee says more where its plan secures sums: against whom, what it assumes, and what breaks it."""
    aggregation = plan.aggregation
    assert aggregation is not None, "a secure plan"  # noqa: S101
    words: dict[str, Any] = {
        "computational": True,
        "assumes": assumed(plan, pinned=pinned),
        "if_broken": broken(plan, curve),
        "knows_part": adversary == "parties" and plan.split.same_people,
    }
    if adversary == "parties" and aggregation.colluding < len(plan.parties) - 1:
        words["view"] = VIEWS["parties"].replace(
            "all other parties together", f"any {parties_text(aggregation.colluding)}"
        )
    if adversary == "coordinator":
        words["view"] = "the coordinator, who sees every secure message, who sent it, and the sums"
        if aggregation.dealer == COORDINATOR and aggregation.colluding_with_dealer:
            words["view"] += f", with {parties_text(aggregation.colluding_with_dealer)} at most that collude with it"
    return words
