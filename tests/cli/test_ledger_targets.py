"""No command writes over a ledger or into it, with --overwrite or --restart either."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sottovoce.federation.journal import Journal
from sottovoce.privacy.ledger import Ledger

TEST = '[privacy]\nepsilon = 1.0\n[data]\nfile = "north.csv"\nlabel = "out"\n'


@pytest.fixture
def ledger(folder: Path, open_ledger: Any) -> Iterator[Path]:
    """One that has a name of a page; it is the same when the test is over."""
    path = folder / "budget.html"
    open_ledger(path.name, 9.0)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before
    assert Ledger(path).account().balance().plans == 0


def test_the_page_of_a_ledger_never_takes_its_place(ledger: Path, folder: Path, invoke: Any) -> None:
    for arguments in ((), ("-o", ledger), ("--overwrite",), ("-o", ledger, "--overwrite")):
        assert "is a ledger, and nothing is" in invoke("ledger", "report", ledger, *arguments, code=2).stderr
    page = folder / "page.html"
    page.write_text("something else")
    assert "is there already" in invoke("ledger", "report", ledger, "-o", page, code=2).stderr
    assert page.read_text() == "something else"
    invoke("ledger", "report", ledger, "-o", page, "--overwrite")
    assert "<html" in page.read_text()


def test_nor_does_what_other_commands_write(ledger: Path, folder: Path, write_job: Any, invoke: Any) -> None:
    job, model = write_job(), folder / "job.json"
    (folder / "test.toml").write_text(TEST)
    (folder / "picture.svg").symlink_to(ledger)
    invoke("fit", job, "--quiet")
    for arguments in (
        ("evaluate", model, folder / "test.toml", "--output", ledger),
        ("evaluate", model, folder / "test.toml", "--plot", folder / "picture.svg"),
        ("card", model, "--output", ledger),
        ("predict", model, folder / "north.csv", "--output", ledger),
        ("schema", folder / "north.csv", "--output", ledger),
        ("plan", job, "--epsilon", "1", "2", "--plot", folder / "picture.svg"),
        ("fit", write_job("other.toml", more=f'[output]\npage = "{ledger.name}"\n'), "--quiet"),
    ):
        assert "is a ledger, and nothing is" in invoke(*arguments, "--overwrite", code=2).stderr, arguments
    assert (folder / "picture.svg").is_symlink()


def test_nor_is_a_log_added_to_one(ledger: Path, write_job: Any, invoke: Any) -> None:
    for more in ((), ("--overwrite",)):
        said = invoke("fit", write_job(), "--quiet", "--log-json", ledger, *more, code=2).stderr
        assert "is a ledger, and nothing is" in said


@pytest.mark.parametrize("name", ["job.run", "job.receipts.json"])
def test_a_ledger_has_no_name_under_which_its_job_keeps_something(
    name: str, folder: Path, write_job: Any, open_ledger: Any, invoke: Any
) -> None:
    open_ledger(name, 9.0)
    (folder / "link.db").symlink_to(folder / name)
    for given in (name, "link.db"):
        job = write_job(data={"ledger": f'"{given}"'})
        for more in ((), ("--restart",)):
            said = invoke("fit", job, "--quiet", *more, code=2).stderr
            assert "has the name that" in said
            assert "--restart" not in said
    assert Ledger(folder / name).account().balance().plans == 0


def test_what_is_no_state_of_a_run_is_never_given_up(
    folder: Path, write_job: Any, open_ledger: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes and its mode stay, with --restart too, and no advice is given to remove it."""
    open_ledger("all.db", 9.0)
    open_ledger("job.run", 9.0)  # of somebody else
    (folder / "job.run").chmod(0o640)
    job, before = write_job(data={"ledger": '"all.db"'}), (folder / "job.run").read_bytes()
    for content in (before, b"my own notes", b"sottovoce run of the mill\n"):
        (folder / "job.run").write_bytes(content)
        for more in ((), ("--restart",), ("--resume",)):
            said = invoke("fit", job, "--quiet", *more, code=2).stderr
            assert "job.run is no state of a run" in said
            assert "--restart" not in said
            assert "removing" not in said
            assert (folder / "job.run").read_bytes() == content
            assert (folder / "job.run").stat().st_mode & 0o777 == 0o640
    assert Ledger(folder / "all.db").account().balance().plans == 0
    monkeypatch.setattr("sottovoce.federation.journal._OTHER", re.compile(b"([0-9])"))  # planted: taken for one
    (folder / "job.run").write_bytes(b"7 notes")
    Journal(folder / "job.run", restart=True).close()
    assert not (folder / "job.run").exists()
