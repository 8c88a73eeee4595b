"""NVIDIA FLARE for tests: its simulator, and sites that it provisioned, each in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import pytest

from sottovoce.app.flare_files import restrict_site
from sottovoce.transports.base import Communication

TESTS = Path(__file__).parent
SUBMIT = TESTS / "programs" / "flare_job.py"
LEAD = "lead@example.org"
WAIT = 180.0
needs_flare = pytest.mark.skipif(
    importlib.util.find_spec("nvflare") is None,
    reason="NVIDIA FLARE is not installed: `make nvflare` installs it and runs these tests",
)
PROJECT = """api_version: 3
name: trial
description: a federation for tests
participants:
  - {{name: localhost, type: server, org: hub, fed_learn_port: {port}, admin_port: {port}}}
{clients}
  - {{name: {lead}, type: admin, org: hub, role: lead}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config, scheme: tcp}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment() -> dict[str, str]:
    """Where the processes of FLARE find the classes of these tests."""
    places = [TESTS.parent / "src", TESTS / "programs", TESTS / "transports", TESTS.parent / "benchmarks"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "OPENBLAS_NUM_THREADS": "1"}


SCRIPTED = ("flare_ends.Serving", "flare_ends.Scripted")
SEEDED = ("flare_ends.Serving", "flare_ends.Seeded")


class Process:
    """A program and all that it starts; its output goes to a file."""

    def __init__(self, *arguments: object, log: Path, folder: Path | None = None) -> None:
        self.log = log
        with log.open("w") as output:
            self._popen = subprocess.Popen(
                [str(argument) for argument in arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def wait(self, seconds: float = WAIT) -> str:
        """All that it said, once it has ended."""
        self._popen.wait(seconds)
        return self.log.read_text()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()


def kill_all(folder: Path) -> None:
    """End the processes that have this folder among their arguments: those of FLARE's jobs outlive who started them."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"{folder}".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def flare(*arguments: object, log: Path, folder: Path) -> Process:
    """One of FLARE's own commands."""
    return Process(Path(sys.executable).with_name("nvflare"), *arguments, log=log, folder=folder)


def write_job(folder: Path, names: Iterable[str], classes: tuple[str, str], **arguments: object) -> Path:
    """A FLARE job of two classes, of which the server's gets the arguments."""
    parties, nothing = list(names), {"format_version": 2, "components": []}
    texts = {
        "meta.json": {
            "name": folder.name,
            "resource_spec": {},
            "min_clients": len(parties),
            "mandatory_clients": parties,
            "deploy_map": {"one": ["server"], "other": parties},
        },
        "one/config/config_fed_server.json": {
            **nothing,
            "workflows": [{"id": "it", "path": classes[0], "args": arguments}],
        },
        "other/config/config_fed_client.json": {
            **nothing,
            "executors": [{"tasks": ["none"], "executor": {"path": classes[1], "args": {}}}],
        },
    }
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


class Wires:
    """Wires of a FLARE job, used from here: the job's coordinator connects to a socket and does what it is told."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "wires")
        self._listener = Listener(self.address, "AF_UNIX", authkey=b"tests")
        self._listener._listener._socket.settimeout(WAIT)  # type: ignore[attr-defined]
        self._connection: Any = None

    def do(self, *said: object) -> Any:
        if self._connection is None:
            self._connection = self._listener.accept()
        self._connection.send(said)
        found = self._connection.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def opened(self, names: tuple[str, ...], timeout: float = 60.0, limit: int = 10_000_000) -> RemoteWire:
        return RemoteWire(self, self.do("open", names, timeout, limit), names)

    def end(self) -> None:
        if self._connection is not None:
            self.do("end")
            self._connection.close()
        self._listener.close()


class RemoteWire:
    """A transport whose coordinator's end is in the process of a FLARE job."""

    def __init__(self, wires: Wires, number: int, parties: tuple[str, ...]) -> None:
        self._wires, self._number, self.parties = wires, number, parties
        self.connected: tuple[str, ...] = ()  # FLARE does not tell

    @property
    def communication(self) -> Communication:
        found: Communication = self._wires.do("communication", self._number)
        return found

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        found: dict[str, bytes] = self._wires.do("exchange", self._number, dict(messages))
        return found

    def close(self) -> None:
        self._wires.do("close", self._number)

    def crossed(self, by: str, to: str, message: bytes) -> tuple[str, bytes | None]:
        """What a party gets that asks another in the place of the coordinator: FLARE's code, and a frame."""
        found: tuple[str, bytes | None] = self._wires.do("cross", self._number, by, to, message)
        return found


def simulator(folder: Path, job: Path, names: tuple[str, ...], classes: tuple[str, str]) -> Process:
    """A job in FLARE's simulator, which runs each client in a process of its own."""
    (folder / "space" / "local").mkdir(parents=True)
    allowed = {"class_list_enforcement_mode": "enforce", "class_allow_list": classes, "allow_log_streaming": False}
    (folder / "space" / "local" / "resources.json").write_text(json.dumps({"format_version": 2, **allowed}))
    options = ("-w", folder / "space", "-c", ",".join(names), "-t", len(names))
    return flare("simulator", job, *options, log=folder / "simulator.log", folder=folder)


@contextmanager
def simulated(folder: Path, names: tuple[str, ...], classes: tuple[str, str] = SCRIPTED) -> Iterator[Wires]:
    """Wires to parties in FLARE's simulator."""
    wires = Wires(folder)
    process = simulator(folder, write_job(folder / "job", names, classes, address=wires.address), names, classes)
    try:
        yield wires
        wires.end()
        process.wait()
    finally:
        process.kill()
        kill_all(folder)


class Sites:
    """A server and clients that FLARE provisioned, restricted to our classes, and those of tests that are named."""

    def __init__(self, folder: Path, names: tuple[str, ...], more: tuple[str, str] | None = None) -> None:
        self.folder, self.names = folder, names
        self.port, self.processes = free_port(), dict[str, Process]()
        clients = "\n".join(f"  - {{name: {name}, type: client, org: {name}}}" for name in names)
        (folder / "project.yml").write_text(PROJECT.format(port=self.port, clients=clients, lead=LEAD))
        made = flare("provision", "-p", "project.yml", "-w", "made", log=folder / "provision.log", folder=folder)
        assert "Provisioning complete" in made.wait(), made.log.read_text()
        self.kits = folder / "made" / "trial" / "prod_00"
        for name in ("localhost", *names):
            path = restrict_site(self.kits / name)["resources.json"]
            resources = json.loads(path.read_text().replace("/tmp/nvflare", str(folder / "store")))
            resources["class_allow_list"] += more or ()
            path.write_text(json.dumps(resources))

    def kit(self, name: str) -> Path:
        return self.kits / name

    def start(self, *names: str) -> None:
        """The server, which is `localhost`, and clients."""
        for name in names or ("localhost", *self.names):
            kind = "server" if name == "localhost" else "client"
            module = f"nvflare.private.fed.app.{kind}.{kind}_train"
            options = ("-m", self.kit(name), "-s", f"fed_{kind}.json", "--set", "secure_train=true")
            more = (f"uid={name}", f"org={name if kind == 'client' else 'hub'}", "config_folder=config")
            log = self.folder / f"{name}.log"
            arguments = (sys.executable, "-u", "-m", module, *options, *more)
            self.processes[name] = Process(*arguments, log=log, folder=self.kit(name))

    def submit(self, job: Path) -> Submitted:
        """Submit a job, as an admin does."""
        log = self.folder / f"{job.name}.log"
        arguments = (sys.executable, SUBMIT, self.kits / LEAD, LEAD, job, len(self.names))
        return Submitted(Process(*arguments, log=log, folder=self.folder))

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        kill_all(self.folder)


class Submitted:
    """A job that an admin has submitted and waits for."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def result(self, seconds: float = WAIT) -> tuple[str, Path]:
        """How it ended, and the folder with what it left."""
        said = self.process.wait(seconds)
        assert self.process.poll() == 0, said
        found = json.loads(said.splitlines()[-1])
        return found["status"], Path(found["folder"])


@contextmanager
def provisioned(folder: Path, names: tuple[str, ...], classes: tuple[str, str] = SCRIPTED) -> Iterator[Wires]:
    """Wires to parties at clients that FLARE provisioned."""
    sites = Sites(folder, names, classes)
    wires = Wires(folder)
    try:
        sites.start()
        submitted = sites.submit(write_job(folder / "job", names, classes, address=wires.address))
        yield wires
        wires.end()
        assert submitted.result()[0] == "FINISHED:COMPLETED"
    finally:
        sites.stop()


def until(ready: Any, seconds: float = WAIT) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)
