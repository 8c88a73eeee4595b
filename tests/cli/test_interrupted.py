"""A fit that was stopped goes on when it is started again; what is there is told, and nothing is charged twice."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from interrupting import keyed
from sottovoce.app import outputs, previews
from sottovoce.federation import training
from sottovoce.federation.journal import _MAGIC, Journal
from sottovoce.gate.frames import peek
from sottovoce.gate.gate import Gate
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.base import InProcess

pytestmark = pytest.mark.slow

SOLVER = {"name": '"scd"', "rounds": "6", "rate": "0.3"}


class KilledError(BaseException):
    """In the place of the end of the process."""


@pytest.fixture
def job(write_job, open_ledger, monkeypatch, parties) -> Path:
    """Two parties of this process, each with its ledger, and noise that is known by round."""
    for name in ("north", "south"):
        open_ledger(f"{name}.db", 10.0)
    keyed(replace=monkeypatch.setattr)
    return write_job(data=None, more=parties(ledgers=True), model={"alpha": "0.1"}, solver=SOLVER)


def killed(invoke: Any, *arguments: object, question: int = 4) -> None:
    """A command whose process is stopped before it reads the answer to a question."""
    questions, plain = [0], InProcess.exchange

    def exchange(self: InProcess, messages: Any) -> dict[str, bytes]:
        replies = plain(self, messages)
        questions[0] += peek(next(iter(messages.values())))[0] == "ask"
        if questions[0] == question:
            raise KilledError
        return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "exchange", exchange)
        with pytest.raises(KilledError):
            invoke(*arguments)


def entries(folder: Path) -> dict[str, int]:
    return dict(Counter(entry.kind for entry in Ledger(folder / "north.db").account().history()))


def coefficients(folder: Path) -> Any:
    model = json.loads((folder / "job.json").read_text())
    return model["coef"], model["intercept"]


def test_a_fit_goes_on_by_itself(job: Path, folder: Path, invoke) -> None:
    invoke("fit", job, "--quiet")
    whole, report = coefficients(folder), json.loads((folder / "job.privacy.json").read_text())
    assert entries(folder) == {"opening": 1, "reservation": 1, "release": 6}
    killed(invoke, "fit", job, "--quiet", "--overwrite")
    state = folder / "job.run"
    assert state.stat().st_mode & 0o777 == 0o600
    assert entries(folder) == {"opening": 1, "reservation": 2, "release": 10}
    done = invoke("fit", job)  # also without --overwrite, which it began with
    assert f"going on with the run in {state}" in done.stderr
    assert "from round 3" in done.stderr
    assert entries(folder) == {"opening": 1, "reservation": 2, "release": 12}
    assert not state.exists()
    assert not list((folder / "north.db.memory").iterdir())
    assert coefficients(folder) == whole
    again = json.loads((folder / "job.privacy.json").read_text())
    assert again["communication"]["uplink"] == report["communication"]["uplink"]
    for before, after in ("spent", "spent"), ("left", "left"):  # the ledgers as they were when it began
        assert again["budgets"]["north"]["before"][before] == report["budgets"]["north"]["after"][after]
    assert "no interrupted run of" in invoke("fit", job, "--resume", "--overwrite", code=2).stderr


def test_a_run_is_given_up_by_name_alone(job: Path, folder: Path, invoke) -> None:
    killed(invoke, "fit", job, "--quiet")
    told = job.read_text()
    job.write_text(told.replace("epsilon = 1.0", "epsilon = 0.5"))
    said = invoke("fit", job, code=2).stderr
    assert "asks for something else now than when that run began" in said
    assert "--restart" in said
    assert entries(folder)["reservation"] == 1
    said = invoke("fit", job, "--quiet", "--restart").stderr
    assert "given up: plan " in said
    assert "scd, epsilon 1 at delta 1e-05, by north, south; where it was charged it stays spent" in said
    assert entries(folder)["reservation"] == 2
    assert not (folder / "job.run").exists()
    invoke("fit", job, "--resume", "--restart", code=2)


def test_where_results_go_and_how_parties_are_reached_may_change(job: Path, folder: Path, invoke) -> None:
    killed(invoke, "fit", job, "--quiet")
    job.write_text(job.read_text() + '[output]\nmodel = "other.json"\n')
    invoke("fit", job, "--quiet", "--resume")
    assert (folder / "other.json").exists()
    assert entries(folder)["reservation"] == 1


@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_fit_that_ended_is_only_written(written: int, job: Path, folder: Path, invoke, monkeypatch) -> None:
    """Stopped between the last answer and the removal of its state: nobody is asked, and nothing is charged."""
    plain, left = outputs.write_text, [written + 1]  # the receipts come first

    def write_text(*arguments: Any, **options: Any) -> None:
        if left[0] == 0:
            raise KilledError
        left[0] -= 1
        plain(*arguments, **options)

    def remove(_: Journal) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "write_text", write_text)
        patch.setattr(Journal, "remove", remove)
        with pytest.raises(KilledError):
            invoke("fit", job, "--quiet")
    before = entries(folder)
    monkeypatch.setattr(InProcess, "exchange", None)
    done = json.loads(invoke("fit", job, "--json").stdout)
    assert set(done["written"]) == {"model", "report", "page"}
    assert done == json.loads((folder / "job.privacy.json").read_text()) | {"written": done["written"]}
    assert (folder / "job.privacy.html").exists()
    assert not (folder / "job.run").exists()
    assert entries(folder) == before


def test_a_state_that_is_damaged_is_told_and_a_torn_one_is_not(job: Path, folder: Path, invoke) -> None:
    killed(invoke, "fit", job, "--quiet")
    state, whole = folder / "job.run", (folder / "job.run").read_bytes()
    state.write_bytes(bytes([*whole[:900], whole[900] ^ 1, *whole[901:]]))
    said = invoke("fit", job, "--quiet", code=2).stderr
    assert "it is damaged at byte" in said
    assert "--restart" in said
    state.write_bytes(b"something else")
    assert "no state of a run" in invoke("fit", job, "--quiet", code=2).stderr
    state.write_bytes(whole[:-1])
    assert "from round 2" in invoke("fit", job).stderr
    assert entries(folder) == {"opening": 1, "reservation": 1, "release": 6}


@pytest.mark.parametrize("more", [(), ("--resume",), ("--restart",), ("--overwrite",)])
def test_a_second_start_is_refused_by_name_at_every_message_of_the_first(
    more: tuple[str, ...], job: Path, folder: Path, invoke: Any
) -> None:
    """Before the first charge and after the last answer; what it had charged would be charged again."""
    said, plain = list[str](), InProcess.exchange

    def exchange(self: InProcess, messages: Any) -> dict[str, bytes]:
        said.append(invoke("fit", job, "--quiet", *more, code=2).stderr)
        replies = plain(self, messages)
        said.append(invoke("fit", job, "--quiet", *more, code=2).stderr)
        return replies

    for again in (False, True):  # and of a run that goes on
        if again:
            killed(invoke, "fit", job, "--quiet", "--overwrite")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InProcess, "exchange", exchange)
            invoke("fit", job, "--quiet")
    assert len(said) > 30
    assert {f"(process {os.getpid()} on " in each and "This one has charged nothing" in each for each in said} == {True}
    assert entries(folder) == {"opening": 1, "reservation": 2, "release": 12}


@pytest.mark.parametrize("written", [b"", _MAGIC])
def test_resuming_makes_no_first_plan(written: bytes, job: Path, folder: Path, invoke: Any) -> None:
    """Of a run that was stopped before it was charged there is nothing to go on with, whatever file it left."""
    (folder / "job.run").write_bytes(written)
    assert "no interrupted run of" in invoke("fit", job, "--resume", code=2).stderr
    assert entries(folder) == {"opening": 1}
    assert not (folder / "job.run").exists()


def test_without_ledgers_there_is_no_state(write_job, folder: Path, invoke) -> None:
    job = write_job(solver=SOLVER, model={"alpha": "0.1"})
    killed(invoke, "fit", job, "--quiet", question=1)
    assert not (folder / "job.run").exists()


GOES_ON = "the same command goes on where it was, and is charged once"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt, 130, "stopped; {}\n"), (MemoryError, 2, "Raise them, or stop other programs. {}.\n")],
)
def test_a_fit_that_stops_says_what_it_has_cost(
    error: type[BaseException], code: int, said: str, job: Path, folder: Path, invoke: Any
) -> None:
    def stops(*_: object, **__: object) -> None:
        raise error

    def words(text: str) -> str:
        return said.format(text if code == 130 else text.capitalize())

    for place, name in ((training, "prepare_rows"), (previews, "make_preview")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, stops)
            told = invoke("fit", job, "--quiet", code=code).stderr
        assert told.endswith(words("nothing was charged"))
        assert entries(folder) == {"opening": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "release", stops)
        told = invoke("fit", job, "--quiet", code=code).stderr
    assert told.endswith(words(GOES_ON))
    assert entries(folder)["reservation"] == 1
    invoke("fit", job, "--quiet")
    assert entries(folder)["reservation"] == 1


def test_memory_that_runs_out_elsewhere_is_one_line(job: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(previews, "plan_job", stops)
    assert invoke("plan", job, code=2).stderr.startswith("error: out of memory: ")
