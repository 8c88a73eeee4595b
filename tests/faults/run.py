# ruff: noqa: E402 (the folder of the tests is known first)
"""Many trials, and a table of what became of them: `run.py FOLDER [--kills 200] [--cuts 40] [--doubles 60] [--seed 1]`.

Cases take turns, and each has its turn; `--sweep` kills each role of each case at each of its points instead, `--each`
kills every kind of role so many times, and nothing else fails: `--only "columns, secure" --each 100`. If something is
wrong with a trial it is printed with its schedule, and its folder stays; `--case NAME --schedule JSON`, as it is
printed, carries that schedule out again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from cases import CASES
from cluster import can_mount
from nemesis import Fault
from trials import EQUAL, STOPPED, WRONG, Trials, Verdict

ROLES = ("party", "dealer", "coordinator")
KINDS = ("kill", "kill", "kill", "cut", "stop", "clock", "disk")


class Campaign:
    """Trials until so many kills, cuts and second starts came about; several at a time."""

    def __init__(self, folder: Path, seed: int, names: Sequence[str]) -> None:
        self.trials, self.verdicts = Trials(folder), list[Verdict]()
        self._names = names
        self._seed, self._lock = seed, threading.Lock()
        self._kinds = [kind for kind in KINDS if kind != "disk" or can_mount()]

    def count(self, what: str, whom: str = "") -> int:
        """How many faults of a kind came about; of those that met a kind of role."""
        every = [met for each in self.verdicts for met in each.faults().items()]
        return sum(count for (kind, who), count in every if kind == what and whom in ("", who))

    def run(self, wanted: Mapping[str, int], several: int, most: float = 1e9) -> None:
        """Every case once, and on until there were enough of each kind; no trial begins after `most` seconds."""
        begun, numbers = time.monotonic(), itertools.count()

        def work() -> None:
            while True:
                with self._lock:
                    number = next(numbers)
                enough = all(self.count(kind) >= count for kind, count in wanted.items())
                if (enough and number >= len(self._names)) or time.monotonic() - begun > most:
                    return
                self._trial(number)

        self._together(work, several)

    def kill_each(self, kinds: Sequence[str], times: int, several: int) -> None:
        """Trials in which only roles of these kinds are killed, until each was so many times."""
        numbers = itertools.count()

        def work() -> None:
            while True:
                with self._lock:
                    number = next(numbers)
                short = [kind for kind in kinds if self.count("kill", kind) < times]
                if not short:
                    return
                kind = short[number % len(short)]
                names = [name for name in self._names if CASES[name].roles_of(kind)]
                name = names[number // len(kinds) % len(names)]
                dice = random.Random(f"{self._seed} {number} {kind}")
                self._judge(f"{number}", name, self.trials.schedule(CASES[name], dice, ["kill"] * 2, kind))

        self._together(work, several)

    def _together(self, work: Callable[[], None], several: int) -> None:
        with ThreadPoolExecutor(several) as threads:
            for done in [threads.submit(work) for _ in range(several)]:
                done.result()

    def sweep(self, several: int) -> None:
        """Every case with one kill at each point of each of its roles."""
        every = [
            (name, [Fault(role, point, "kill", role)])
            for name in self._names
            for role, points in self.trials.unbroken(CASES[name])[1].items()
            for point in range(1, points + 1)
        ]
        with ThreadPoolExecutor(several) as threads:
            for done in [threads.submit(self._judge, str(n), *each) for n, each in enumerate(every)]:
                done.result()

    def _trial(self, number: int) -> None:
        name, dice = self._names[number % len(self._names)], random.Random(f"{self._seed} {number}")
        kinds = ["kill", "kill", "cut", *dice.sample(self._kinds, 2), "double"]
        self._judge(str(number), name, self.trials.schedule(CASES[name], dice, kinds))

    def _judge(self, number: str, name: str, schedule: list[Fault]) -> None:
        verdict = self.trials.judge(CASES[name], schedule)
        with self._lock:
            self.verdicts.append(verdict)
            sys.stdout.write(f"{number} {verdict.outcome.seconds:.1f} s {verdict.summary()}\n")
            if verdict.found:
                faults = json.dumps([asdict(fault) for fault in schedule])
                sys.stdout.write(f"{verdict}\n  again: --case {name!r} --schedule '{faults}'\n")
            sys.stdout.flush()

    def table(self) -> str:
        """What became of the trials, by case, and which faults came about."""
        columns = ("kill", "cut", "double")
        lines = [f"{'case':36} {'runs':>5} {'kills  cuts  doubles':>20} {'equal':>6} {'stopped':>8} {'wrong':>6}"]
        for name in self._names:
            own = [each for each in self.verdicts if CASES[name] == each.case]
            met = Counter[str]()
            for each in own:
                for (kind, _), count in each.faults().items():
                    met[kind] += count
            words = Counter(each.word for each in own)
            ends = f"{words[EQUAL]:6} {words[STOPPED]:8} {words[WRONG]:6}"
            counts = " ".join(f"{met[kind]:6}" for kind in columns)
            lines.append(f"{name:36} {len(own):5} {counts} {ends}")
        everything = sum((each.faults() for each in self.verdicts), Counter[tuple[str, str]]())
        met = ", ".join(f"{count} {kind} of {whom}" for (kind, whom), count in sorted(everything.items()))
        words = Counter(each.word for each in self.verdicts)
        went_on = sum(bool(each.outcome.stops) and not each.outcome.given_up for each in self.verdicts)
        ends = ", ".join(f"{words[word]} {word}" for word in (EQUAL, STOPPED, WRONG))
        ends += f"; {went_on} of the equal ones went on after a stop"
        refused = sum(code != 0 for each in self.verdicts for code, _ in each.outcome.doubles)
        ends += f"; {refused} second starts were refused, {self.count('double') - refused} ended the job themselves"
        return "\n".join([*lines, f"faults: {met}", f"runs: {len(self.verdicts)}: {ends}"])


def main() -> int:
    """The number of trials in which something is wrong, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--doubles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--several", type=int, default=2, help="trials at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="no trial begins later")
    parser.add_argument("--sweep", action="store_true", help="one kill at each point of each role")
    parser.add_argument("--each", type=int, default=0, help="kill every kind of role so many times, and nothing else")
    parser.add_argument("--role", choices=ROLES, action="append", help="with --each: this kind alone (several times)")
    parser.add_argument("--case", default="")
    parser.add_argument("--schedule", default="")
    given = parser.parse_args()
    campaign = Campaign(given.folder, given.seed, [name for name in CASES if given.only in name])
    if given.case:
        faults = [Fault(**fault) for fault in json.loads(given.schedule)]
        verdict = campaign.trials.judge(CASES[given.case], faults)
        sys.stdout.write(f"{verdict}\n")
        return int(bool(verdict.found))
    if given.each:
        campaign.kill_each(given.role or ROLES, given.each, given.several)
    elif given.sweep:
        campaign.sweep(given.several)
    else:
        wanted = {"kill": given.kills, "cut": given.cuts, "double": given.doubles}
        campaign.run(wanted, given.several, given.seconds)
    sys.stdout.write(f"{campaign.table()}\n")
    return int(any(verdict.found for verdict in campaign.verdicts))


if __name__ == "__main__":
    sys.exit(main())
