"""Organisations apart: network namespaces with one network between them, and a guide that is followed in them.

Comments of a page say who does what:

    <!-- at: clinic -->                 the commands of the next block are given there, one after the other
    <!-- at: clinic, lab; serves -->    at each; the last command keeps running, until the page stops it or ends
    <!-- at: office; killed -->         the last command is killed by SIGKILL in the middle of a run
    <!-- stop: clinic, lab -->          what keeps running there is stopped, as by Ctrl-C
    <!-- carry: office:a.pem lab:certs -->              a file or a folder changes hands, by whatever way they trust
    <!-- carry: office:NAME NAME:.; clinic, lab -->     once for each of them
    <!-- file: clinic:party.toml -->                    the next block is that file

NAME in a block or after `carry:` is the name of the organisation.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from processes import Program

_STEP = re.compile(
    r"^<!-- (?P<verb>at|stop|carry|file): (?P<rest>.+?) -->$(?:\n```\w*\n(?P<block>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_CLONE_NEWNET = 0x40000000


class Step(NamedTuple):
    line: int
    verb: str
    rest: str
    block: str


def steps(page: Path) -> list[Step]:
    text = page.read_text(encoding="utf-8")
    return [
        Step(text[: m.start()].count("\n") + 1, m["verb"], m["rest"], m["block"] or "") for m in _STEP.finditer(text)
    ]


def reason_against() -> str | None:
    """Why there can be no namespaces here, or None."""
    try:
        import pyroute2  # noqa: F401
    except ImportError:
        return "network namespaces are made by pyroute2, which is for Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "network namespaces are not allowed here"


@contextlib.contextmanager
def network(names: list[str], prefix: str) -> Iterator[dict[str, Path]]:
    """A namespace for each name, at 192.0.2.1, .2 and so on, all on one bridge; by name, where the kernel shows it."""
    from pyroute2 import NetNS, netns

    hub, made = NetNS(f"{prefix}-hub", flags=os.O_CREAT), [f"{prefix}-hub"]
    try:
        with contextlib.closing(hub):
            hub.link("add", ifname="bridge", kind="bridge")
            (bridge,) = hub.link_lookup(ifname="bridge")
            hub.link("set", index=bridge, state="up")
            for place, name in enumerate(names):
                made.append(f"{prefix}-{name}")
                with contextlib.closing(NetNS(made[-1], flags=os.O_CREAT)) as own:
                    ends = {"ifname": "eth0", "net_ns_fd": made[-1]}
                    hub.link("add", ifname=f"port{place}", kind="veth", peer=ends)
                    hub.link("set", index=hub.link_lookup(ifname=f"port{place}")[0], master=bridge, state="up")
                    (eth0,) = own.link_lookup(ifname="eth0")
                    own.addr("add", index=eth0, address=f"192.0.2.{place + 1}", prefixlen=24)
                    own.link("set", index=eth0, state="up")
                    own.link("set", index=own.link_lookup(ifname="lo")[0], state="up")
        yield {name: Path("/run/netns") / f"{prefix}-{name}" for name in names}
    finally:
        for name in made:
            with contextlib.suppress(OSError):
                netns.remove(name)


def enter(namespace: str) -> None:
    """Be in that namespace from now on."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path(namespace).open() as file:
        if library.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


class Organisations:
    """Follows a page. Each organisation has a namespace, a folder and the processes that it keeps running."""

    def __init__(self, root: Path, namespaces: dict[str, Path]) -> None:
        self._namespaces = namespaces
        self._root = root
        self._running: dict[str, list[Program]] = {name: [] for name in namespaces}
        self.said: list[tuple[str, str, str]] = []  # who, the command, and what it printed
        self._at_folder = {name: root / name for name in namespaces}  # where its shell is
        for folder in self._at_folder.values():
            folder.mkdir()

    def folder(self, name: str) -> Path:
        return self._root / name

    def follow(self, step: Step) -> None:
        rest, _, after = step.rest.partition("; ")
        if step.verb == "file":
            name, _, path = rest.partition(":")
            (self.folder(name) / path).write_text(step.block, encoding="utf-8")
        elif step.verb == "carry":
            for name in after.split(", "):
                self._carry(*rest.replace("NAME", name).split())
        elif step.verb == "stop":
            for name in rest.split(", "):
                self.stop(name)
        else:
            for name in rest.split(", "):
                self._at(name, after, step.block.replace("NAME", name))

    def stop(self, name: str) -> None:
        for program in self._running[name]:
            program.send_signal(signal.SIGINT)
        for program in self._running[name]:
            assert program.wait(30) == 0, f"{name} did not stop in order"
        self._running[name] = []

    def close(self) -> None:
        for programs in self._running.values():
            for program in programs:
                program.kill()

    def printed(self, name: str) -> str:
        """What the programs that ran there said up to now."""
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(self._root.glob(f"{name}.*.log")))

    def _carry(self, source: str, target: str) -> None:
        (giver, given), (taker, place) = (text.partition(":")[::2] for text in (source, target))
        put = self.folder(taker) / place
        paths = sorted(self.folder(giver).glob(given))
        assert paths, f"{giver} has no {given}"
        for path in paths:
            if path.is_dir():
                shutil.copytree(path, put, dirs_exist_ok=True)
            else:
                shutil.copy2(path, put)

    def _at(self, name: str, how: str, block: str) -> None:
        commands = [line[2:] for line in _joined(block) if line.startswith("$ ")]
        assert commands, f"a block at {name} has no command"
        for command in commands[:-1]:
            self._run(name, command)
        if how == "serves":
            self._running[name].append(self._start(name, commands[-1])[0])
        elif how == "killed":
            self._kill(name, commands[-1])
        else:
            self._run(name, commands[-1])

    def _start(self, name: str, command: str) -> tuple[Program, Path]:
        log = self._root / f"{name}.{len(self.said):03}.log"
        self.said.append((name, command, str(log)))
        words = shlex.split(command, comments=True)
        assert words[0] == "sottovoce", command
        inside = (enter, str(self._namespaces[name]))
        return Program("-m", *words, folder=self._at_folder[name], log=log, before=inside), log

    def _run(self, name: str, command: str) -> None:
        if command.startswith("cd "):
            self._at_folder[name] = (self._at_folder[name] / command[3:]).resolve(strict=True)
        elif command.startswith("sottovoce ") and ">" not in command:
            program, log = self._start(name, command)
            code = program.wait(180)
            assert code == 0, f"{name}: {command}: exit {code}\n{log.read_text()}\n{self._rest(name)}"
        else:
            paths = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
            shell = ["nsenter", f"--net={self._namespaces[name]}", "sh", "-ec", command]
            subprocess.run(shell, cwd=self._at_folder[name], env={**os.environ, "PATH": paths}, check=True)

    def _rest(self, name: str) -> str:
        """What the others said, to find a fault by."""
        return "\n".join(f"--- {other}\n{self.printed(other)[-3000:]}" for other in self._namespaces if other != name)

    def _kill(self, name: str, command: str) -> None:
        """In the middle of a run: as soon as its state has grown, and before it has ended."""
        before = {path: path.stat().st_size for path in self.folder(name).rglob("*.run")}
        program, log = self._start(name, command)
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size > before.get(path, 0) + 4096 for path in self.folder(name).rglob("*.run")):
            assert program.poll() is None, f"{command} ended before it could be killed\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{command} did not begin\n{log.read_text()}"
            time.sleep(0.002)
        program.kill()
        assert program.wait(30) == -signal.SIGKILL


def _joined(block: str) -> list[str]:
    """Lines, with those that end in a backslash joined to the next."""
    return block.replace("\\\n", " ").splitlines()
