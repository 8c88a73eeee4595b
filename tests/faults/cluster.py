"""One run of a case by real processes over real wires, started again as a service manager would, while things fail."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cases import COORDINATOR, DEALER, Case, lay_out
from cuts import Proxy
from nemesis import FILLER, SECOND, Fault, Nemesis
from role import Orders

from processes import Program
from sottovoce.app.demo import _free_port

PROGRAM: Final = Path(__file__).with_name("role.py")
PATIENCE: Final = 600.0  # seconds that a run may take
STARTS: Final = 12  # how often a coordinator is started at most
DISK: Final = "1m"
_ELSEWHERE: Final = threading.Lock()  # a process is in one folder at a time
KILLED, TOO_LONG = -int(signal.SIGKILL), -1


@dataclass
class Outcome:
    """How a run ended, and what it left."""

    case: Case
    folder: Path
    faults: list[dict[str, Any]]  # those that came about
    ended: list[tuple[int, str]]  # each start of the coordinator: its exit code, and what it said
    seconds: float
    left: list[str] = field(default_factory=list)  # processes that would not end
    doubles: list[tuple[int, str]] = field(default_factory=list)  # each second start: its exit code, and what it said

    @property
    def well(self) -> bool:
        """Whether there is a model in the end."""
        return self.ended[-1][0] == 0

    @property
    def stops(self) -> list[str]:
        """What the coordinator said where it ended by itself without a model."""
        return [" ".join(said.split()) for code, said in (*self.ended, *self.doubles) if code not in (0, KILLED)]

    @property
    def given_up(self) -> int:
        """How many runs were lost, so that another one was begun."""
        return sum(map(gives_up, self.stops))


def gives_up(said: str) -> bool:
    """Whether an error says that a run is lost."""
    told = "start a new fit|fit anew|is started again with: sottovoce fit --restart"
    return re.search(told, " ".join(said.split()), re.IGNORECASE) is not None


def is_second(said: str) -> bool:
    """Whether a start was refused since there is another one, or was one."""
    refusals = "another process is at this run now|there is no interrupted run of|is there already; give another path"
    return re.search(refusals, " ".join(said.split())) is not None


class Cluster:
    """The processes of a run; `broken` names a fault of the programs themselves."""

    def __init__(self, site: Path, folder: Path, case: Case, schedule: list[Fault], broken: str = "") -> None:
        self.case, self._folder, self._broken = case, folder, broken
        self._ports = {COORDINATOR: _free_port()}
        self._proxies = {name: Proxy(self._ports[COORDINATOR]) for name in case.ends}
        self._ports |= {name: proxy.port for name, proxy in self._proxies.items()}
        self._site = site
        self._processes: dict[str, Program] = {}
        self._doubles: list[Program] = []
        self._lives = dict.fromkeys(case.roles, 0)
        self._lock = threading.RLock()
        self._nemesis = Nemesis(schedule, self)
        self._small = {fault.whom for fault in schedule if fault.what == "disk"}

    def signal(self, role: str, number: int) -> None:
        """To a process, if it runs."""
        with self._lock:
            process = self._doubles[-1] if role == SECOND and self._doubles else self._processes.get(role)
            if process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    def cut(self, role: str, how: str, seconds: float) -> None:
        """The wire of an end."""
        self._proxies[role].cut(how, seconds)

    def folder(self, role: str) -> Path:
        """Where a role keeps its files."""
        return self._folder / role

    def double(self, *more: str) -> Callable[[], bool]:
        """Start the fit once more; the function tells whether that process has ended."""
        with self._lock:
            if self._nemesis.over.is_set():
                return lambda: True
            started = self._program(COORDINATOR, *more, asks_as=SECOND)
            self._doubles.append(started)
            return lambda: started.poll() is not None

    def run(self) -> Outcome:
        """From the first start to the last end."""
        begun = time.monotonic()
        with self._disks():
            lay_out(self._site, self._folder, self.case, self._ports)
            (self._folder / "history").mkdir()
            ended = list[tuple[int, str]]()
            try:
                for name in self.case.roles:
                    self._start(name)
                self._nemesis.start()
                self._supervise(ended, begun + PATIENCE)
            finally:
                self._nemesis.stop()
                left = self._stop()
            doubles = [(process.wait(), self._kept(process, COORDINATOR)) for process in self._doubles]
            (self._folder / "ended.json").write_text(json.dumps([ended, doubles]))
            keep = self._folder / "kept"
            keep.mkdir()
            for role in self._small:
                shutil.copytree(self.folder(role), keep / role)
        for role in self._small:
            shutil.copytree(keep / role, self.folder(role), dirs_exist_ok=True)
        shutil.rmtree(keep)
        return Outcome(self.case, self._folder, self._nemesis.done, ended, time.monotonic() - begun, left, doubles)

    def _supervise(self, ended: list[tuple[int, str]], until: float) -> None:
        """Start again what has ended, until the coordinator has done its work; a run is given up where it says so."""
        while time.monotonic() < until and len(ended) < STARTS:
            for name in self.case.ends:
                if self._processes[name].poll() is not None:
                    self._ended(name)
                    self._start(name)
            coordinator = self._processes[COORDINATOR]
            if coordinator.poll() is None or self._second_runs():
                time.sleep(0.005)
                continue
            said, code = self._ended(COORDINATOR), coordinator.wait()
            home = self.folder(COORDINATOR)
            done = (home / "job.privacy.html").exists() and not (home / "job.run").exists()
            ended.append((0 if done and (code == KILLED or is_second(said)) else code, said))
            if ended[-1][0] == 0:
                return
            if code != KILLED:
                self._wait_for_room()
            self._start(COORDINATOR, *(["--restart"] if code != KILLED and gives_up(said) else []))
        ended.append((TOO_LONG, "the run took too long"))

    def _second_runs(self) -> bool:
        """Whether a second start goes on, after the first has ended; one that was stopped until then does."""
        running = [process for process in list(self._doubles) if process.poll() is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        return bool(running)

    def _wait_for_room(self) -> None:
        while any((self.folder(role) / FILLER).exists() for role in self._small):
            time.sleep(0.01)

    def _start(self, role: str, *more: str) -> None:
        with self._lock:
            self._processes[role] = self._program(role, *more)

    def _program(self, role: str, *more: str, asks_as: str = "") -> Program:
        command = {COORDINATOR: ("fit", "job.toml", *more), DEALER: ("dealer", "--job", "end.toml", "--keep", "keys")}
        orders = Orders(
            role,
            self._lives[role],
            command.get(role, ("party", "--job", "end.toml")),
            str(self._folder / "history" / f"{role}.jsonl"),
            self._nemesis.port,
            self._nemesis.due(asks_as or role),
            broken=self._broken if role in (self.case.parties or (COORDINATOR,)) else "",
            asks_as=asks_as,
        )
        self._lives[role] += 1
        with _ELSEWHERE, contextlib.chdir(self.folder(role)):
            return Program(PROGRAM, orders, read=True)

    def _ended(self, name: str) -> str:
        """What a process said, which is kept."""
        return self._kept(self._processes[name], name)

    def _kept(self, process: Program, name: str) -> str:
        said, _ = process.communicate()
        with (self._folder / "history" / f"{name}.txt").open("a") as file:
            file.write(said)
        return said

    def _stop(self) -> list[str]:
        """End every process in order; the names of those that had to be killed."""
        for process in (*self._processes.values(), *self._doubles):
            for number in (signal.SIGCONT, signal.SIGTERM):
                with contextlib.suppress(ProcessLookupError):
                    if process.poll() is None:
                        process.send_signal(number)
        left = list[str]()
        for name, process in (*self._processes.items(), *((SECOND, each) for each in self._doubles)):
            try:
                process.wait(20.0)
            except TimeoutError:
                process.kill()
                process.wait()
                left.append(name)
        for name in self._processes:
            self._ended(name)
        for proxy in self._proxies.values():
            proxy.close()
        return left

    @contextmanager
    def _disks(self) -> Iterator[None]:
        """A small disk for the folder of each role whose disk is to be full."""
        mounted = list[Path]()
        try:
            for role in self._small:
                path = self.folder(role)
                path.mkdir(parents=True, mode=0o700)
                mount(path)
                mounted.append(path)
            yield
        finally:
            for path in mounted:
                subprocess.run(["umount", "-l", path], check=False)


def mount(path: Path) -> None:
    """A disk of a megabyte at `path`; an OSError where that is not allowed."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", path],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise PermissionError(made.stderr.strip())


def can_mount() -> bool:
    """Whether this user may make small disks."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mount(Path(folder))
        except OSError:
            return False
        subprocess.run(["umount", folder], check=True)
        return True
