from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from processes import Program
from sottovoce.app import superuser
from sottovoce.app.cli import app
from sottovoce.privacy.ledger import Ledger

RECORDS = {"all": 600, "north": 400, "south": 300}
Invoke = Callable[..., Any]
WriteJob = Callable[..., Path]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root every end of a federation has a line more to say, and tests may be run as root."""
    monkeypatch.setattr(superuser, "_user", lambda: 1000)


@pytest.fixture
def invoke() -> Invoke:
    """Run a command in this process; its exit code is checked."""

    def run(*arguments: Any, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files of records: one for central training, one each for two parties; `_reg` has a numeric label."""
    rng = np.random.default_rng(5)
    for name, records in RECORDS.items():
        rows = rng.uniform(-1, 1, (records, 3))
        scores = rows @ [2.0, -3.0, 1.0]
        labels = np.where(scores + 0.3 * rng.logistic(size=records) > 0, "yes", "no")
        cells = np.char.mod("%.3f", rows)
        for path, column in ((f"{name}.csv", labels), (f"{name}_reg.csv", np.char.mod("%.3f", scores))):
            lines = ["a,b,c,out", *(",".join([*row, label]) for row, label in zip(cells, column, strict=True))]
            (tmp_path / path).write_text("\n".join(lines) + "\n")
    return tmp_path


CENTRAL = {
    "model": {"estimator": '"logistic"'},
    "privacy": {"epsilon": "1.0"},
    "bounds": {"entry_bound": "1.0", "classes": '["no", "yes"]'},
    "data": {"file": '"all.csv"', "label": '"out"'},
}


@pytest.fixture
def write_job(folder: Path) -> WriteJob:
    """A job of the central data with the given tables changed; a key that is None is left out, a table too."""

    def write(name: str = "job.toml", more: str = "", **changes: dict[str, str | None] | None) -> Path:
        tables = {**CENTRAL, **{key: {**CENTRAL.get(key, {}), **(table or {})} for key, table in changes.items()}}
        lines = []
        for table, keys in tables.items():
            if changes.get(table, {}) is None:
                continue
            lines += [f"[{table}]", *(f"{key} = {value}" for key, value in keys.items() if value is not None)]
        (folder / name).write_text("\n".join(lines) + "\n" + more)
        return folder / name

    return write


def two_parties(*, ledgers: bool = False) -> str:
    """The tables of two parties in this process."""
    parts = []
    for name in ("north", "south"):
        ledger = f'\nledger = "{name}.db"' if ledgers else ""
        parts.append(f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\nlabel = "out"{ledger}\n')
    return "\n".join(parts)


@pytest.fixture
def parties() -> Callable[..., str]:
    return two_parties


@pytest.fixture
def open_ledger(folder: Path) -> Callable[..., Ledger]:
    def make(name: str, epsilon: float, **terms: Any) -> Ledger:
        ledger = Ledger.create(folder / name)
        ledger.open("people", epsilon, 1e-5, **terms)
        return ledger

    return make


@pytest.fixture
def start() -> Iterator:
    """Start a command as a process; what still runs at the end is killed."""
    started: list[Program] = []

    def run(*arguments: object) -> Program:
        process = Program("-m", "sottovoce", *arguments, read=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
