"""An evaluation that was stopped goes on when it is started again: charged once, and with the same numbers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import Program
from sottovoce.estimators import evaluation
from sottovoce.federation.journal import Journal
from sottovoce.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent.parent / "programs" / "killed_evaluation.py"
TEST = '[privacy]\nepsilon = 1.0\n[data]\nfile = "north.csv"\nlabel = "out"\nledger = "test.db"\n'
POINTS = ("charged", "released", "answered", "ended", "written")


@pytest.fixture
def evaluating(folder: Path, write_job: Any, open_ledger: Any, invoke: Any) -> tuple[object, ...]:
    """The command, of test people who have a ledger."""
    invoke("fit", write_job(), "--quiet")
    open_ledger("test.db", 50.0)
    (folder / "test.toml").write_text(TEST)
    return "evaluate", folder / "job.json", folder / "test.toml"


def entries(folder: Path) -> dict[str, int]:
    return dict(Counter(entry.kind for entry in Ledger(folder / "test.db").account().history()))


ONCE = {"opening": 1, "reservation": 1, "release": 1}


def kill_at(point: str, *arguments: object) -> None:
    program = Program(PROGRAM, point, *arguments, read=True)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == -signal.SIGKILL, said


@pytest.mark.parametrize("point", POINTS)
def test_killed_and_started_again(point: str, evaluating: tuple[object, ...], folder: Path, invoke: Any) -> None:
    command = (*evaluating, "--output", folder / "found.json", "--plot", folder / "found.svg")
    kill_at(point, *command)
    before = entries(folder)
    assert before == (ONCE if point != "charged" else {"opening": 1, "reservation": 1})
    state = Journal(folder / "test.run")
    (plan,), outputs = state.plans, state.outputs
    state.close()
    files = {path.name: path.read_bytes() for path in folder.glob("found.*")}
    assert set(files) == ({"found.json", "found.svg"} if point == "written" else set())
    done = invoke(*command, "--json")
    assert entries(folder) == ONCE
    assert not (folder / "test.run").exists()
    found = json.loads(done.stdout)
    assert found == json.loads((folder / "found.json").read_text())
    assert found["plan"] == plan.digest.hex()
    assert (folder / "found.svg").read_bytes().startswith(b"<?xml")
    if outputs:
        assert found == json.loads(outputs["evaluation"])
        assert "nothing was asked or charged" in done.stderr
    else:
        assert f"going on with the run in {folder / 'test.run'}" in done.stderr
    for name, data in files.items():  # without --overwrite
        assert (folder / name).read_bytes() == data


def test_the_numbers_are_those_that_were_released(
    evaluating: tuple[object, ...], folder: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the release, and again after the answer was kept: no third draw of the noise is seen."""
    seen, plain = list[list[float]](), evaluation.estimate_metrics

    def stopped(plan: Any, cells: Any, report: Any) -> Any:
        seen.append(cells.tolist())
        raise KeyboardInterrupt

    kill_at("released", *evaluating)
    monkeypatch.setattr(evaluation, "estimate_metrics", stopped)
    for _ in range(2):
        said = invoke(*evaluating, code=130).stderr
        assert "the same command goes on where it was, and is charged once" in said
    monkeypatch.setattr(evaluation, "estimate_metrics", plain)
    found = json.loads(invoke(*evaluating, "--json").stdout)
    assert seen == [found["cells"], found["cells"]]
    assert entries(folder) == ONCE
    other = json.loads(invoke(*evaluating, "--json").stdout)  # it had ended: another one, charged anew
    assert other["cells"] != found["cells"]
    assert entries(folder) == {"opening": 1, "reservation": 2, "release": 2}


def test_another_model_or_budget_is_not_what_was_begun(
    evaluating: tuple[object, ...], folder: Path, write_job: Any, invoke: Any
) -> None:
    kill_at("kept", *evaluating)
    invoke("fit", write_job("other.toml"), "--quiet")
    other = invoke("evaluate", folder / "other.json", folder / "test.toml", code=2).stderr
    assert "asks for something else now than when that run began" in other
    (folder / "test.toml").write_text(TEST.replace("1.0", "2.0"))
    assert "asks for something else now" in invoke(*evaluating, code=2).stderr
    assert entries(folder) == ONCE
    given_up = invoke(*evaluating, "--restart").stderr
    assert "note: given up: plan " in given_up
    assert entries(folder) == {"opening": 1, "reservation": 2, "release": 2}
    assert not (folder / "test.run").exists()


def test_what_is_refused_has_not_begun(evaluating: tuple[object, ...], folder: Path, invoke: Any) -> None:
    (folder / "test.toml").write_text(TEST.replace("1.0", "80.0"))
    invoke(*evaluating, code=3)
    assert entries(folder) == {"opening": 1}
    assert not (folder / "test.run").exists()
    (folder / "test.toml").write_text(TEST)
    invoke(*evaluating)
    assert entries(folder) == ONCE


def test_by_columns_the_scores_are_not_asked_for_again_once_there_are_cells(
    folder: Path, write_job: Any, open_ledger: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"left": ("a", "b"), "right": ("c", "out")}
    head, *lines = (line.split(",") for line in (folder / "north.csv").read_text().splitlines())
    tables = []
    for name, columns in parts.items():
        places = [head.index(column) for column in columns]
        rows = [",".join(columns), *(",".join(line[place] for place in places) for line in lines)]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
        open_ledger(f"{name}.db", 50.0)
        label = 'label = "out"\n' if name == "right" else ""
        tables.append(f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\nledger = "{name}.db"\n{label}')
    invoke("fit", write_job(data=None, more='[columns]\nlabels = "held"\nlabel_party = "right"\n' + "".join(tables)))
    (folder / "test.toml").write_text('label_party = "right"\n[privacy]\nepsilon = 1.0\n' + "".join(tables))
    command = ("evaluate", folder / "job.json", folder / "test.toml", "--json")
    before = [Ledger(folder / f"{name}.db").account().balance().plans for name in parts]
    for point in ("charged", "released", "answered"):
        kill_at(point, *command)
    monkeypatch.setattr("sottovoce.estimators.base.PrivateLinearModel.predict_for", None)
    invoke(*command)
    assert [Ledger(folder / f"{name}.db").account().balance().plans for name in parts] == [n + 1 for n in before]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    yield path
    subprocess.run(["umount", "-l", path], check=False)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_a_full_disk_costs_nothing_twice(
    option: str, evaluating: tuple[object, ...], folder: Path, small_disk: Path, invoke: Any
) -> None:
    fill(small_disk)
    command = (*evaluating, option, small_disk / "found.svg")
    for _ in range(2):
        said = invoke(*command, code=2).stderr
        assert "No space left on device" in said
        assert "paid for: start the same again, at no further cost" in said
    assert [path.name for path in small_disk.iterdir()] == ["filling"]
    (small_disk / "filling").unlink()
    invoke(*command)
    assert (small_disk / "found.svg").read_bytes()
    assert entries(folder) == ONCE
    assert not (folder / "test.run").exists()


def test_a_full_disk_of_the_job_stops_it_before_the_charge_or_it_goes_on(
    evaluating: tuple[object, ...], folder: Path, small_disk: Path, invoke: Any
) -> None:
    (small_disk / "test.toml").write_text(
        TEST.replace("north.csv", str(folder / "north.csv")).replace("test.db", str(folder / "test.db"))
    )
    command = ("evaluate", folder / "job.json", small_disk / "test.toml")
    fill(small_disk)
    assert "nothing is charged without it" in invoke(*command, code=2).stderr
    assert entries(folder) == {"opening": 1}
    (small_disk / "filling").unlink()
    kill_at("charged", *command)
    fill(small_disk)
    assert "No space left on device" in invoke(*command, code=2).stderr
    (small_disk / "filling").unlink()
    invoke(*command)
    assert entries(folder) == ONCE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_what_could_not_be_printed_is_printed_by_the_next_start(
    more: tuple[str, ...], evaluating: tuple[object, ...], folder: Path, invoke: Any
) -> None:
    command = [sys.executable, "-m", "sottovoce", *map(str, evaluating), *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "error: the standard output cannot be written (No space left on device). The evaluation is" in done.stderr
    again = invoke(*evaluating, *more)
    assert "nothing was asked or charged" in again.stderr
    assert again.stdout
    assert entries(folder) == ONCE
