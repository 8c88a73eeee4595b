"""What a plan promises and what that rests on; what fits without a ledger add up to."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from sottovoce import algorithms
from sottovoce.errors import RepeatedFitWarning, warn
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR, assumed, broken, parties_text
from sottovoce.privacy.guarantee import FALSE_ALARMS, VIEWS, Guarantee, PrivacyReport
from sottovoce.queries.pricing import guaranteed

# What is assumed by what is so of a plan, in the order in which a report says it.
ASSUMPTIONS: Final[Mapping[tuple[str, object], str]] = {
    ("several", True): "parties and coordinator follow the protocol, though they may be curious",
    ("protects", "record"): "each person has one record (one with several is protected less)",
    ("protects", "person"): "every record of a person has the same identifier; a record without one counts for nothing",
    ("people by rows", True): "all records of a person are with one party",
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
    ("prior", ("numbers", "others")): "the prior, which the plan shows, was not computed from these people's records",
    ("prior", ("unprotected", "others")): "nobody here was in the data of the prior, a model that promises its people "
    "nothing: the plan shows it, and to one who was, this fit promises nothing either",
    ("prior", ("private", "others")): "nobody here was in the data of the prior, a private model that the plan shows; "
    "to one who was, both promises hold together, as both charges add in one ledger",
    (
        "prior",
        ("private", "same"),
    ): "people here were in the data of the prior, a private model that the plan shows: to "
    "them both promises hold together, as both charges add; this is what the fit adds, and one ledger should have both",
}

# Of an evaluation of others than the people of a fit that promises these nothing.
UNPROTECTED_FIT: Final = "the people of the fit are not protected by this evaluation"

MOST_GROUPS: Final = 256  # of fits that are counted together; the oldest are forgotten
_LOCK: Final = threading.Lock()


@dataclass
class FitGroup:
    """Fits without a ledger that belong together, and what they add up to."""

    marks: set[Hashable]
    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


fit_groups: list[FitGroup] = []  # of this process, the newest last


def assumptions(plan: Plan) -> tuple[str, ...]:
    """The lines of `ASSUMPTIONS` that hold of this plan."""
    evaluates, prior = plan.numbers.result == "evaluation", getattr(plan.numbers, "prior", None)
    so = {
        **dict.fromkeys(("any number", "any use", "any draw"), True),
        "several": plan.split.several,
        "test people": plan.numbers.people if evaluates else None,
        "joint scores": evaluates and plan.numbers.scores != "",
        "split": plan.split,
        "labels by columns": plan.labels if plan.split.same_people else None,
        "models": plan.models if plan.numbers.result == "model" else None,
        "protects": plan.protects,
        "people by rows": plan.protects == "person" and plan.split == "rows",
        "classes": plan.classes is not None,
        "named records": plan.numbers.names_records,
        "prior": None if prior is None else (prior.source, prior.people),
    }
    return tuple(map(ASSUMPTIONS.__getitem__, filter(so.items().__contains__, ASSUMPTIONS)))


def privacy_report(
    plan: Plan,
    *,
    seeded: bool,
    beside: Sequence[Plan] = (),
    left: Sequence[tuple[str, str]] = (),
    pinned: bool | None = None,
) -> PrivacyReport:
    """The true guarantee of a plan and of other plans on the same people, computed from what they release.

    Of secure sums `left` has who left the run and when, and `pinned` says how the parties' keys are known.
    """
    void = (
        "The noise came from a known seed (insecure_seed), so anyone who knows it can subtract it." if seeded else None
    )
    profiles, prior = algorithms.profiles(plan, beside=beside), getattr(plan.numbers, "prior", None)
    secure: Plan | None = next(filter(attrgetter("channel.secure"), (plan, *beside)), None)
    curve = {} if secure is None else algorithms.colluding(plan, beside=beside)
    guarantees = dict[str, Any]()
    for name, (epsilon, missed) in guaranteed(profiles, plan.delta, FALSE_ALARMS).items():
        guarantees[name] = Guarantee(
            epsilon=epsilon,
            delta=plan.delta,
            relation=plan.relation,
            adversary=name,  # type: ignore[arg-type]
            claimed_epsilon=plan.claimed_epsilon,
            void=void,
            unit=plan.protects,
            result=plan.numbers.result,
            trade_off=tuple(zip(FALSE_ALARMS, missed.tolist(), strict=True)),
            gaussian=all(release.gaussian for each in (plan, *beside) for release in each.releases),
            **({} if secure is None else secure_text(secure, name, curve, pinned)),
        )
    return PrivacyReport(
        **guarantees,
        assumptions=assumptions(plan),
        public={
            "records": plan.records,
            **({} if plan.most_records is None else {"most_records": plan.most_records}),
            "split": str(plan.split),
            "parties": dict(plan.parties),
            "features": plan.features,
            "classes": None if plan.classes is None else list(plan.classes),
            **({"class_weight": list(plan.class_weight)} if plan.class_weight else {}),
            "bounds": plan.bounds.model_dump(exclude_none=True),
            "solver": plan.algorithm,
            "rounds": plan.rounds,
            **({} if prior is None else {"prior": {"source": prior.source, "plan": prior.plan}}),
        },
        colluding=curve,
        noise=None if secure is None else math.sqrt(secure.channel.variance),
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


def warn_of_repeats(plan: Plan, guarantee: Guarantee, *, family: int | None = None) -> None:
    """Count a fit or an evaluation that promises something, without a ledger; warn if it is not the first of its kind.

    Guarantees add up, also for fits that were chosen by earlier results. Every fit counts by itself where there is no
    ledger, and wrappers such as `OneVsRestClassifier`, `GridSearchCV` and `cross_val_score` fit many times. Two are
    taken together if they have as many records and as many features, or if one estimator was cloned from the other, as
    these wrappers do: `family` is that of a cloned one.

    No row decides it: numbers of records and features are public, and so is who cloned what. A warning that looked at
    rows would reveal that one of them was fitted before. Edges: fits on a part of the people by an
    estimator that is no clone go unnoticed, and other people of the same number are taken for the same, so the text
    says "if". Processes do not know of one another's fits (`n_jobs`), so in a worker process a cloned estimator warns
    of that at its first fit. A ledger notices all of them. Scores are counted nowhere.
    """
    if guarantee.void is not None or math.isinf(guarantee.epsilon):
        return
    cloned = family is not None
    marks: set[Hashable] = {(plan.records, plan.features), *([family] if cloned else [])}
    group = FitGroup(set(marks), 1, guarantee.epsilon, guarantee.delta)
    with _LOCK:
        for other in fit_groups.copy():
            if other.marks & marks:
                group.marks |= other.marks
                group.fits, group.epsilon = group.fits + other.fits, group.epsilon + other.epsilon
                group.delta += other.delta
                fit_groups.remove(other)
        fit_groups[:] = [*fit_groups, group][-MOST_GROUPS:]
    worker = cloned and multiprocessing.parent_process() is not None
    if group.fits == 1 and not worker:
        return
    if group.fits > 1:
        text = (
            f"this is private fit or evaluation {group.fits} without a ledger in this process with as many records "
            f"and features ({plan.records} and {plan.features}) as an earlier one, or of an estimator that was cloned "
            f"with it: if they are about the same people, all {group.fits} together promise "
            f"epsilon={group.epsilon:.4g}, delta={group.delta:.3g}, not epsilon={guarantee.epsilon:.4g} each."
        )
    else:
        text = (
            "this is a private fit without a ledger of an estimator that was cloned: each further one on the same "
            f"people adds its epsilon={guarantee.epsilon:.4g}."
        )
    if guarantee.computational:
        text += f" This one {guarantee.mark}."
    if worker:
        text += " It is in a worker process (n_jobs), and fits in other processes come on top: no process has the sum."
    if cloned:
        text += " Scores by which a search chooses are exact and counted nowhere; sv.evaluate gives one with noise."
    warn(
        f"{text} Give ledger=..., which counts all fits, adds them up more tightly and refuses what is too much.",
        RepeatedFitWarning,
    )
