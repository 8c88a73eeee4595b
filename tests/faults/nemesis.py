"""What fails, whom it meets and when: a schedule drawn from a seed, and the one who carries it out."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from cases import COORDINATOR, Case
from cuts import CUTS

FILLER: Final = "filler"
SECOND: Final = "second"  # a fit that is started while another one is at the job
DOUBLES: Final = {"double": (), "double, resumed": ("--resume",)}  # how it is started
CLOCKS: Final = (-86400.0 * 30, -3600.0, 3600.0, 86400.0 * 30)  # jumps of the wall clock, in seconds


@dataclass(frozen=True)
class Fault:
    """`what` happens to `whom` when process `role` has passed `after` points; without a role after that many ms."""

    role: str
    after: int
    what: str  # kill, stop, disk, clock, or one of CUTS or DOUBLES
    whom: str
    seconds: float = 0.0

    def __str__(self) -> str:
        when = f"{self.after} ms" if not self.role else f"{self.after} points of {self.role}"
        return f"{self.what} {self.whom} for {self.seconds:.2f} s at {when}"


class Roles(Protocol):
    """What the nemesis may do to the processes of a run."""

    def signal(self, role: str, number: int) -> None:
        """To a process, if it runs."""

    def cut(self, role: str, how: str, seconds: float) -> None:
        """The wire of an end."""

    def folder(self, role: str) -> Path:
        """Where a role keeps its files."""

    def double(self, *more: str) -> Callable[[], bool]:
        """Start the fit once more; the function tells whether that process has ended."""


def draw(dice: random.Random, case: Case, points: Mapping[str, int], whats: list[str], kind: str = "") -> list[Fault]:
    """A fault of each kind that is asked for, at instants spread evenly over what each role does in such a run.

    Kills, stops and clocks meet roles of one kind, if it is given.
    """
    found = list[Fault]()
    for what in whats:
        if what == "cut" and case.ends:
            whom, what = dice.choice(case.ends), dice.choice(CUTS)
        elif what == "double":
            whom, what = COORDINATOR, dice.choice(list(DOUBLES))
        elif what == "disk":
            whom = dice.choice([COORDINATOR, *case.parties])
        else:
            what = "kill" if what == "cut" else what
            whom = dice.choice(case.roles_of(kind))
        role = whom if what == "clock" or dice.random() < 0.7 else dice.choice(case.roles)
        after = dice.randint(1, max(1, points[role]))
        if what in ("kill", "stop") and dice.random() < 0.25:
            role, after = "", dice.randint(0, 1500)
        seconds = dice.choice(CLOCKS) if what == "clock" else dice.uniform(0.05, 0.6)
        found.append(Fault(role, after, what, whom, seconds))
    return _apart(found)


def _apart(faults: list[Fault]) -> list[Fault]:
    """The faults at points of a role in their order, each by its distance from the one before."""
    found, last = list[Fault](), dict[str, int]()
    for fault in sorted(faults, key=lambda each: each.after):
        gap = fault.after - last.get(fault.role, 0) if fault.role else fault.after
        found.append(replace(fault, after=max(1, gap)))
        last[fault.role] = fault.after
    return found


class Nemesis:
    """Carries a schedule out: the faults of a role one after the other, each `after` points from the one before."""

    def __init__(self, schedule: list[Fault], roles: Roles) -> None:
        self._roles, self.done = roles, list[dict[str, Any]]()
        self._due = {role: [fault for fault in schedule if fault.role == role] for role in {f.role for f in schedule}}
        self._lock, self.over, self._second = threading.Lock(), threading.Event(), threading.Event()
        self._listener = socket.create_server(("localhost", 0), backlog=16)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        self._threads += [
            threading.Thread(target=self._time, args=(fault,), daemon=True) for fault in self._due.pop("", [])
        ]

    def start(self) -> None:
        """From now on."""
        for thread in self._threads:
            thread.start()

    def due(self, role: str) -> int:
        """After how many points a process that starts now asks; 0 for never."""
        with self._lock:
            return 0 if self.over.is_set() or not self._due.get(role) else self._due[role][0].after

    def stop(self) -> None:
        """Nothing fails from now on, and what still does is over."""
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                asker, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(asker,), daemon=True).start()

    def _answer(self, asker: socket.socket) -> None:
        with contextlib.suppress(OSError), asker:
            told = json.loads(asker.makefile().readline())
            if told["role"] == SECOND:
                self._second.set()
            with self._lock:
                waiting = self._due.get(told["role"], [])
                fault = None if self.over.is_set() or not waiting else waiting.pop(0)
                after = waiting[0].after if waiting else 0
            if fault is not None:
                self._strike(fault, told)
            clock = fault.seconds if fault is not None and fault.what == "clock" else 0.0
            asker.sendall(json.dumps({"after": after, "clock": clock}).encode() + b"\n")

    def _time(self, fault: Fault) -> None:
        if not self.over.wait(fault.after / 1000):
            self._strike(fault, {})

    def _strike(self, fault: Fault, told: dict[str, Any]) -> None:
        self.done.append({**asdict(fault), "at": told})
        if fault.what == "kill":
            self._roles.signal(fault.whom, signal.SIGKILL)
        elif fault.what == "stop":
            self._roles.signal(fault.whom, signal.SIGSTOP)
            self._later(fault.seconds, lambda: self._roles.signal(fault.whom, signal.SIGCONT))
        elif fault.what == "disk":
            path = self._roles.folder(fault.whom) / FILLER
            fill(path)
            self._later(fault.seconds, lambda: path.unlink(missing_ok=True))
        elif fault.what in DOUBLES:  # who asked goes on after some time, or when the second has ended or asks too
            ended, until = self._roles.double(*DOUBLES[fault.what]), time.monotonic() + fault.seconds
            while time.monotonic() < until and not (ended() or self._second.is_set() or self.over.is_set()):
                time.sleep(0.005)
        elif fault.what in CUTS:
            self._roles.cut(fault.whom, fault.what, fault.seconds)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        def wait() -> None:
            self.over.wait(seconds)
            action()

        threading.Thread(target=wait, daemon=True).start()


def fill(path: Path) -> None:
    """Take all the room that a disk has left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
