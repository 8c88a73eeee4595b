"""Who waits for loops to be compiled is told so, once; nobody else is."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sottovoce.app.cli.console import show_log
from sottovoce.data import kernels as compiling
from sottovoce.data.kernels import PATIENCE, TEXT, Notice

PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import numpy as np
from sottovoce.data import kernels as compiling
from sottovoce.data.kernels import row_loops
compiling.PATIENCE = 0.0
for _ in range(3):
    row_loops.chosen_scores(np.ones((2, 3)), np.array([0, 1]), np.ones(3))
row_loops.chosen_sum(np.ones((2, 3)), np.array([0, 1]), np.ones(2))
"""


def compile_of(module: str) -> Any:
    loop = SimpleNamespace(__module__=module)
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=loop)})


OURS, THEIRS = compile_of("sottovoce.data.kernels.row_loops"), compile_of("numba.np.arrayobj")


class Clock:
    """Time that passes when it is told to, and the timers that go by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []

    def timer(self, delay: float, say: Any) -> Any:
        entry = (self.now + delay, say)
        return SimpleNamespace(start=lambda: self.timers.append(entry), cancel=lambda: self.cancel(entry))

    def cancel(self, entry: tuple[float, Any]) -> None:
        self.timers = [other for other in self.timers if other is not entry]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [entry for entry in self.timers if entry[0] <= self.now]
        for entry in due:
            self.cancel(entry)
            entry[1]()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(compiling, "threading", SimpleNamespace(Timer=made.timer))
    monkeypatch.setattr(compiling, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "sottovoce")
    return caplog


def compiled(notice: Notice, event: Any, clock: Clock, seconds: float) -> None:
    notice.on_start(event)
    notice.on_start(THEIRS)
    notice.on_end(THEIRS)
    notice.on_start(event)  # one loop calls another
    notice.on_end(event)
    clock.wait(seconds)
    notice.on_end(event)


def test_a_long_compilation_is_told_once_while_it_lasts(clock: Clock, said: pytest.LogCaptureFixture) -> None:
    notice = Notice()
    notice.on_start(OURS)
    clock.wait(PATIENCE)
    assert notice.said
    notice.on_end(OURS)
    compiled(notice, OURS, clock, 10.0)
    assert [(record.name, record.levelname, record.message) for record in said.records] == [
        ("sottovoce.kernels", "INFO", TEXT)
    ]


def test_many_short_ones_are_a_long_one(clock: Clock, said: pytest.LogCaptureFixture) -> None:
    notice = Notice()
    for _ in range(4):
        compiled(notice, OURS, clock, 0.24 * PATIENCE)
        clock.wait(10.0)  # between two of them nothing is compiled
    assert not notice.said
    compiled(notice, OURS, clock, 0.24 * PATIENCE)
    assert notice.said
    assert len(said.records) == 1


def test_nothing_is_said_of_short_ones_or_of_other_packages(clock: Clock, said: pytest.LogCaptureFixture) -> None:
    notice = Notice()
    compiled(notice, OURS, clock, 0.9 * PATIENCE)
    compiled(notice, THEIRS, clock, 10.0)
    assert not notice.said
    assert said.records == []
    assert clock.timers == []


@pytest.mark.slow
def test_only_what_is_not_on_disk_is_told(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [run.stderr for run in runs] == [f"sottovoce.kernels INFO {TEXT}\n", ""]


@pytest.mark.slow
def test_a_script_without_a_log_is_told_too_unless_it_set_a_level(tmp_path: Path) -> None:
    setting = "logging.getLogger('sottovoce').setLevel(logging.WARNING)"
    for place, (line, said) in enumerate((("", f"{TEXT}\n"), (setting, ""))):
        lines = PROGRAM.strip().splitlines()
        lines[1] = line
        folder = tmp_path / str(place)
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        told = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)], env=environment, capture_output=True, text=True, check=True
        )
        assert told.stderr == said


def test_the_command_line_shows_it_on_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    log, above = logging.getLogger("sottovoce.kernels"), logging.getLogger("sottovoce")
    before, level = list(above.handlers), log.level
    try:
        show_log()
        show_log()
        log.info(TEXT)
    finally:
        above.handlers[:], log.level = before, level
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", TEXT + "\n")
