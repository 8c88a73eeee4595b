from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import Program
from sottovoce.data.bounds import Bounds
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_wire import GrpcCoordinator
from support import plan_of

PROGRAM = Path(__file__).parent.parent / "programs" / "serve_party.py"


class Sites:
    """Holders with their data, certificates and processes, and the coordinator's end of the wire."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        create_authority(folder)
        for name in ("coordinator", *names):
            issue(folder, name)
        self.processes: dict[str, Program] = {}
        self.wire = GrpcCoordinator("localhost:0", names, Credentials.load(folder, "coordinator"), timeout=60.0)

    def save(self, name: str, **arrays: np.ndarray) -> None:
        """The data of a holder."""
        np.savez(self.folder / f"{name}.npz", **arrays)

    def start(self, name: str, *, ledger: bool) -> None:
        """A holder's process; with a ledger its policy allows epsilon 2 and no run without noise."""
        data, address = self.folder / f"{name}.npz", f"localhost:{self.wire.port}"
        kept = [self.folder / f"{name}.db"] if ledger else []
        self.processes[name] = Program(PROGRAM, name, data, address, self.folder, *kept)

    def stop(self) -> None:
        """The end of the wire and of all processes."""
        self.wire.close()
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def sites_of(tmp_path: Path) -> Iterator[Callable[..., Sites]]:
    """A function that makes the sites of some names."""
    made: list[Sites] = []

    def make(names: Sequence[str]) -> Sites:
        made.append(Sites(tmp_path, names))
        return made[-1]

    yield make
    for sites in made:
        sites.stop()


@pytest.fixture(scope="session")
def small_plan() -> Callable[..., Plan]:
    """A function that makes the plan of a small classification, or of what its arguments say instead."""

    def make(algorithm: str = "gradient", *, run: str = "run", coin: str = "coin", **fields: Any) -> Plan:
        options = fields.pop("options", {"rounds": 5})
        declared: dict[str, Any] = {
            "loss": Named(name="logistic"),
            "regulariser": Named(name="none"),
            "split": "rows",
            "parties": (("anna", 40), ("ben", 60)),
            "features": 3,
            "bounds": Bounds.declare(row_norm=1.0),
            "epsilon": 1.0,
            "delta": 1e-5,
            "classes": (0, 1),
        }
        return plan_of(Problem(**declared | fields), algorithm, run=run, coin=coin, **options)

    return make
