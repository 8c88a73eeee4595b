"""A trial: a case is run while a schedule of faults is carried out, and what it left is judged."""

from __future__ import annotations

import random
import re
import shutil
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cases import COME_BACK, DEALER, Case, make_site, title
from cluster import Cluster, Outcome, is_second
from cuts import CUTS
from history import History, read, violations
from nemesis import DOUBLES, Fault, draw

from processes import preload

EQUAL, STOPPED, WRONG = "equal", "stopped as expected", "wrong"
# What a run may end with, and where: a part of the message, or of it as far as a narrow terminal lets one read.
FULL: Final = "ledger cannot be used|disk is full|No space left|cannot be written|the party failed; its own log"
AGAIN: Final = "forgot the plan again that it had just accepted"
NO_KEY: Final = "does not have the key that the plan names for it"
LOST: Final = (
    "was stopped in the middle of a run|The run is lost|has dealt under this plan before|was run before|"
    "compares the identifiers of a plan once it has checked it|dealt before|was masked"
)


@dataclass
class Verdict:
    """What became of a trial."""

    case: Case
    schedule: list[Fault]
    outcome: Outcome
    found: list[str]  # what is wrong

    @property
    def word(self) -> str:
        """In a word."""
        return WRONG if self.found else STOPPED if self.outcome.given_up else EQUAL

    def faults(self) -> Counter[tuple[str, str]]:
        """Those that came about, by kind and by whom they met."""
        return Counter(
            (
                "cut" if fault["what"] in CUTS else "double" if fault["what"] in DOUBLES else fault["what"],
                self.case.kind_of(fault["whom"]),
            )
            for fault in self.outcome.faults
        )

    def summary(self) -> str:
        """In a line."""
        met = ", ".join(f"{count} {kind} of {whom}" for (kind, whom), count in sorted(self.faults().items()))
        return f"{title(self.case)}: {self.word}; {met or 'nothing failed'}"

    def __str__(self) -> str:
        lines = [f"{title(self.case)}: {self.word}", *(f"  {fault}" for fault in self.schedule)]
        lines += [f"  came about: {fault['what']} {fault['whom']} {fault['at']}" for fault in self.outcome.faults]
        lines += [f"  exit {code}: {last_line(said)[-160:]}" for code, said in self.outcome.ended]
        lines += [f"  second start, exit {code}: {last_line(said)[-160:]}" for code, said in self.outcome.doubles]
        return "\n".join([*lines, *(f"  WRONG {said}" for said in self.found)])


def last_line(said: str) -> str:
    """Of what a command printed."""
    return next((line for line in reversed(said.splitlines()) if line.strip()), "")


class Trials:
    """Trials in a folder, each compared with a run of its case in which nothing failed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._site, self._number = folder, folder / "site", 0
        self._unbroken: dict[str, tuple[History, dict[str, int]]] = {}
        self._lock = threading.Lock()
        self._site.mkdir(parents=True)
        make_site(self._site)
        preload(Path(__file__).with_name("warm.py"))

    def unbroken(self, case: Case) -> tuple[History, dict[str, int]]:
        """A run without faults: its history, and how many points each role passed."""
        name = title(case)
        if name not in self._unbroken:
            outcome = self._run(case, [])
            history = read(outcome.folder, case)
            wrong = violations(history, history)
            if not outcome.well or outcome.left or wrong:
                raise AssertionError(f"{name} fails by itself: {outcome.ended[-1][1]} {wrong} {outcome.left}")
            points = {event["role"]: event["points"] for event in history.events if event["what"] == "ended"}
            self._unbroken[name] = history, points
        return self._unbroken[name]

    def schedule(self, case: Case, dice: random.Random, whats: list[str], kind: str = "") -> list[Fault]:
        """Faults for a case, of which some meet a kind of role alone."""
        return draw(dice, case, self.unbroken(case)[1], whats, kind)

    def judge(self, case: Case, schedule: list[Fault], broken: str = "") -> Verdict:
        """Run a case under a schedule, and look at what is left; the folder of a run that is in order is removed."""
        unbroken = self.unbroken(case)[0]
        outcome = self._run(case, schedule, broken)
        history = read(outcome.folder, case)
        charged = 0 if COME_BACK and case.secure and case.split == "columns" else outcome.given_up
        found = [said for said in violations(history, unbroken, charged) if not lacks_part(outcome, said)]
        found += [f"{name} did not end when it was told to" for name in outcome.left]
        found += [
            f"a stop that nobody expected: {said[-1000:]}" for said in outcome.stops if not expected(outcome, said)
        ]
        if not outcome.well:
            found.append("no model in the end")
        verdict = Verdict(case, schedule, outcome, found)
        if not found:
            shutil.rmtree(outcome.folder)
        return verdict

    def _run(self, case: Case, schedule: list[Fault], broken: str = "") -> Outcome:
        with self._lock:
            self._number += 1
            folder = self._folder / f"{self._number}"
        return Cluster(self._site, folder, case, schedule, broken).run()


def lacks_part(outcome: Outcome, said: str) -> bool:
    """Whether it is of a part of a model that a party could not keep, its disk being full when the run ended."""
    case, told = outcome.case, " ".join(outcome.ended[-1][1].split())
    met = {fault["whom"] for fault in outcome.faults if fault["what"] == "disk"}
    return case.split == "columns" and any(
        said == f"another part of the model at {name}" and f"{name} has no part of the model" in told for name in met
    )


def expected(outcome: Outcome, said: str) -> bool:
    """Whether these faults may stop such a run.

    A full disk stops any, which goes on once there is room; so does one of which an end was killed twice. Keys that
    were told and not yet kept are lost with the process until the plan is charged, those of a dealer by rows always
    (by columns too, and of parties, unless they come back). Whatever befalls a coordinator, its run goes on. Of two
    starts one is refused, by the text of `is_second`.
    """
    case = outcome.case
    if outcome.doubles and is_second(said):
        return True
    killed = Counter(fault["whom"] for fault in outcome.faults if fault["what"] == "kill")
    allowed = [FULL] if any(fault["what"] == "disk" for fault in outcome.faults) else []
    if any(killed[end] > 1 for end in case.ends):
        allowed.append(AGAIN)
    if case.secure and any(killed[end] for end in case.ends):
        kept = COME_BACK if case.split == "columns" else not killed[DEALER]
        allowed += [NO_KEY] if kept else [NO_KEY, LOST]
    return any(re.search(text, said) for text in allowed)
