"""A trial: a case is run while a schedule of faults is carried out, and what it left is judged."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cases import HELPER, Case, make_site, title
from cluster import Cluster, Outcome
from cuts import CUTS
from history import History, read, violations
from nemesis import Fault, draw

from processes import preload

EQUAL, STOPPED, WRONG = "equal", "stopped as expected", "wrong"
LOST: Final = (
    "was stopped in the middle of a run|The run is lost|does not have the key|has dealt under this plan before|"
    "compares the identifiers of a plan once it has checked it|was run before"
)


@dataclass
class Verdict:
    """What became of a trial."""

    case: Case
    schedule: list[Fault]
    outcome: Outcome
    found: list[str]  # what is wrong
    stopped: str = ""  # the text of a stop that was expected

    @property
    def word(self) -> str:
        """In a word."""
        return WRONG if self.found else STOPPED if self.stopped else EQUAL

    def faults(self) -> Counter[tuple[str, str]]:
        """Those that came about, by kind and by whom they met."""
        return Counter(
            (
                "cut" if fault["what"] in CUTS else fault["what"],
                "party" if fault["whom"] in self.case.parties else fault["whom"],
            )
            for fault in self.outcome.faults
        )

    def __str__(self) -> str:
        lines = [f"{title(self.case)}: {self.word}", *(f"  {fault}" for fault in self.schedule)]
        lines += [f"  came about: {fault['what']} {fault['whom']} {fault['at']}" for fault in self.outcome.faults]
        lines += [f"  exit {code}: {last_line(said)}" for code, said in self.outcome.ended]
        return "\n".join([*lines, *(f"  WRONG {said}" for said in self.found)])


def last_line(said: str) -> str:
    """Of what a command printed."""
    return next((line for line in reversed(said.splitlines()) if line.strip()), "")


class Trials:
    """Trials in a folder, each compared with a run of its case in which nothing failed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._site, self._number = folder, folder / "site", 0
        self._unbroken: dict[str, tuple[History, dict[str, int]]] = {}
        self._site.mkdir(parents=True)
        make_site(self._site)
        preload(Path(__file__).with_name("warm.py"))

    def unbroken(self, case: Case) -> tuple[History, dict[str, int]]:
        """A run without faults: its history, and how many points each role passed."""
        name = title(case)
        if name not in self._unbroken:
            outcome = self._run(case, [])
            history = read(outcome.folder, case)
            wrong = violations(history, history, well=True)
            if outcome.code or outcome.left or wrong:
                raise AssertionError(f"{name} fails by itself: {outcome.ended[-1][1]} {wrong} {outcome.left}")
            points = {event["role"]: event["points"] for event in history.events if event["what"] == "ended"}
            self._unbroken[name] = history, points
        return self._unbroken[name]

    def schedule(self, case: Case, dice: random.Random, whats: list[str]) -> list[Fault]:
        """Faults for a case."""
        return draw(dice, case, self.unbroken(case)[1], whats)

    def judge(self, case: Case, schedule: list[Fault], broken: str = "") -> Verdict:
        """Run a case under a schedule, and look at what is left; the folder of a run that is in order is removed."""
        unbroken = self.unbroken(case)[0]
        outcome = self._run(case, schedule, broken)
        history = read(outcome.folder, case)
        found = violations(history, unbroken, well=outcome.code == 0)
        found += [f"{name} did not end when it was told to" for name in outcome.left]
        said = "" if outcome.code == 0 else outcome.ended[-1][1]
        if said and not expected(case, outcome, said):
            found.append(f"a stop that nobody expected: exit {outcome.code}: {said[-2000:]}")
        verdict = Verdict(case, schedule, outcome, found, said)
        if not found:
            shutil.rmtree(outcome.folder)
        return verdict

    def _run(self, case: Case, schedule: list[Fault], broken: str = "") -> Outcome:
        self._number += 1
        return Cluster(self._site, self._folder / f"{self._number}", case, schedule, broken).run()


def expected(case: Case, outcome: Outcome, said: str) -> bool:
    """Whether these faults may end such a run without a model: over sealed columns, or where a helper was killed."""
    killed = {fault["whom"] for fault in outcome.faults if fault["what"] == "kill"}
    lost = case.sealed and (case.split == "columns" or HELPER in killed)
    return bool(killed) and lost and re.search(LOST, " ".join(said.split())) is not None
