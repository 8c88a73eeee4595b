"""Private fits without a ledger that may be about the same people, noticed within one process: their sum is told.

Every fit counts by itself where there is no ledger. Wrappers such as `OneVsRestClassifier`, `GridSearchCV` and
`cross_val_score` fit many times. Two fits are taken together if they have as many records and as many features, or if
one estimator was cloned from the other, as these wrappers do.

No row decides it: numbers of records and features are public, and who cloned what is not of the data. A warning that
looked at rows would tell whoever sees it that one of them was fitted before. Edges: fits on a part of the people by an
estimator that is no clone go unnoticed, and other people of the same number are taken for the same, so the text says
"if". Processes do not know of one another's fits (`n_jobs`), so in a worker process a cloned estimator warns of
that at its first fit. A ledger notices all of them. Scores are counted nowhere.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from sottovoce.errors import RepeatedFitWarning, warn
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import Guarantee

GROUPS: Final = 256  # the oldest are forgotten

_LOCK: Final = threading.Lock()


@dataclass
class Group:
    """Fits that belong together, and what they add up to."""

    marks: set[Hashable]
    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


@dataclass
class Register:
    """The groups of this process, the newest last."""

    groups: list[Group] = field(default_factory=list)

    def add(self, marks: set[Hashable], epsilon: float, delta: float) -> Group:
        """Count one fit, and give its group. Guarantees add up, also for fits that were chosen by earlier results."""
        with _LOCK:
            found = [group for group in self.groups if group.marks & marks]
            made = Group(set(marks), 1, epsilon, delta)
            for group in found:
                made.marks |= group.marks
                made.fits, made.epsilon = made.fits + group.fits, made.epsilon + group.epsilon
                made.delta += group.delta
                self.groups.remove(group)
            self.groups = [*self.groups, made][-GROUPS:]
            return made


register = Register()


def note(plan: Plan, guarantee: Guarantee, *, family: int | None = None) -> None:
    """Count a private fit, or an evaluation, without a ledger, and warn if it is not the first of its kind.

    `family` is that of a cloned estimator, as searches fit them: of one warn also of what other processes do, and of
    scores.
    """
    cloned = family is not None
    marks: set[Hashable] = {(plan.records, plan.features), *([family] if cloned else [])}
    group = register.add(marks, guarantee.epsilon, guarantee.delta)
    worker = cloned and multiprocessing.parent_process() is not None
    if group.fits == 1 and not worker:
        return
    if group.fits > 1:
        said = (
            f"this is private fit or evaluation {group.fits} without a ledger in this process with as many records "
            f"and features ({plan.records} and {plan.features}) as an earlier one, or of an estimator that was cloned "
            f"with it: if they are about the same people, all {group.fits} together promise "
            f"epsilon={group.epsilon:.4g}, delta={group.delta:.3g}, not epsilon={guarantee.epsilon:.4g} each."
        )
    else:
        said = (
            "this is a private fit without a ledger of an estimator that was cloned: each further one on the same "
            f"people adds its epsilon={guarantee.epsilon:.4g}."
        )
    if guarantee.computational:
        said += f" This one {guarantee.mark}."
    if worker:
        said += " It is in a worker process (n_jobs), and fits in other processes come on top: no process has the sum."
    if cloned:
        said += " Scores by which a search chooses are exact and counted nowhere; sv.evaluate gives one with noise."
    warn(
        f"{said} Give ledger=..., which counts all fits, adds them up more tightly and refuses what is too much.",
        RepeatedFitWarning,
    )
