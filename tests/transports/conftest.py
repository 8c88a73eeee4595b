from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from processes import Program
from sottovoce.gate.frames import MAX_BYTES
from sottovoce.transports.authority import create_authority, issue

SCRIPT = Path(__file__).with_name("party_process.py")
StartParty = Callable[..., Program]


@pytest.fixture(scope="session")
def party_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("party_process", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One authority, a coordinator, three parties, and a fourth name that is on no list."""
    folder = tmp_path_factory.mktemp("certificates")
    create_authority(folder)
    for name in ("coordinator", "anna", "ben", "cleo", "mallory"):
        issue(folder, name)
    return folder


def starter(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartParty]:
    """Starts a party as a process of its own; what still runs at the end is killed."""
    folder = tmp_path_factory.mktemp("markers")
    started: list[Program] = []

    def start(name: str, port: int, *, markers: Path = folder, limit: int = MAX_BYTES) -> Program:
        process = Program(SCRIPT, certificates, name, f"localhost:{port}", markers, limit, read=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


start_party = pytest.fixture(starter, name="start_party")
start_party_of_class = pytest.fixture(starter, scope="class", name="start_party_of_class")
