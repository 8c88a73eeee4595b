"""Jobs on a folder or a pattern of files, and on a file that does not fit in memory."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.app.cli.parties import report_rows
from sottovoce.app.job_file import SourceTable
from sottovoce.app.jobs import load_party_job
from sottovoce.app.sources import NUMBER, goes_by_pieces, is_large, policy_of, read_holder
from sottovoce.data import resources as room
from sottovoce.estimators import progress

pytestmark = pytest.mark.slow

SEEDED = {"estimator": '"logistic"', "insecure_seed": "5"}


@pytest.fixture
def pieces(folder: Path) -> Path:
    """The records of all.csv in two files, of which the second has its columns in another order."""
    head, *lines = (folder / "all.csv").read_text().splitlines()
    place = folder / "people"
    place.mkdir()
    (place / "1.csv").write_text("\n".join([head, *lines[:150], ""]))
    turned = [",".join(reversed(line.split(","))) for line in [head, *lines[150:]]]
    (place / "2.csv").write_text("\n".join([*turned, ""]))
    return place


def coefficients(path: Path) -> Any:
    return json.loads(path.with_suffix(".json").read_text())["coef"]


def test_a_pattern_a_folder_and_a_file_give_one_model(pieces: Path, folder: Path, write_job: Any, invoke: Any) -> None:
    solver = {"name": '"newton"'}
    invoke("fit", write_job("whole.toml", model=SEEDED, solver=solver), "-q")
    expected = coefficients(folder / "whole.toml")
    for name, file in (("pattern", "people/*.csv"), ("folder", "people")):
        job = write_job(f"{name}.toml", model=SEEDED, solver=solver, data={"file": f'"{file}"'})
        shown = json.loads(invoke("plan", job, "--json").stdout)
        assert shown["parties"] == {"data": 600}
        invoke("fit", job, "-q")
        assert coefficients(job) == expected


def test_a_plan_says_which_solvers_serve(pieces: Path, write_job: Any, invoke: Any) -> None:
    assert pieces.is_dir()
    file = {"file": '"people/*.csv"'}
    job = write_job(
        "auto.toml",
        data=file,
        model={"estimator": '"lasso"', "alpha": "0.01"},
        bounds={"classes": None, "label_bound": "1.0"},
    )
    assert json.loads(invoke("plan", job, "--json").stdout)["solver"] in ("newton", "gradient", "sgd", "whitened")
    refused = write_job("cd.toml", data=file, solver={"name": '"cd"'})
    told = invoke("fit", refused, code=3).stderr
    assert "a Dataset serves newton, gradient, sgd, whitened" in told
    assert invoke("plan", refused, code=3).stderr == told.splitlines(keepends=True)[-1]  # before it shows anything
    examined = invoke("doctor", "--job", refused, code=1).stdout
    assert "a Dataset serves newton, gradient, sgd, whitened" in examined


def test_a_plan_says_where_prepared_rows_will_be(
    pieces: Path, folder: Path, write_job: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whether the folder has room for them, which the doctor looks at too."""
    assert pieces.is_dir()
    where = {"file": '"people/*.csv"', "folder": '"rows"'}
    job, (memory,) = write_job(data=where), [{"bytes": 600 * (4 * 4 + 9), "where": "memory"}]
    assert json.loads(invoke("plan", job, "--json").stdout)["prepared_rows"] == [memory]
    assert "prepared rows: 15 kB in memory" in invoke("plan", job).stdout
    monkeypatch.setattr(room, "fits_in_memory", lambda size, after=0: False)
    told = json.loads(invoke("plan", job, "--json").stdout)
    assert told["prepared_rows"] == [{**memory, "where": "file", "folder": str(folder / "rows")}]
    assert f"folder='{folder / 'rows'}' for prepared rows is no folder" in " ".join(told["notes"])
    assert "is no folder" in invoke("doctor", "--job", job, code=1).stdout
    (folder / "rows").mkdir()
    shown = invoke("plan", job).stdout
    assert f"prepared rows: 15 kB in a file in {folder / 'rows'}" in shown
    assert "note: prepared rows" not in shown
    assert f"{folder / 'rows'}:" in invoke("doctor", "--job", job).stdout
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(room.os, "statvfs", lambda _: full)
    noted = " ".join(invoke("plan", job).stdout.split())
    assert f"note: prepared rows need 0.0249 MB in {folder / 'rows'}, which has 0 MB free" in noted
    assert "which has 0 MB free" in invoke("doctor", "--job", job, code=1).stdout


def test_a_file_that_does_not_fit_is_read_in_pieces(
    folder: Path, write_job: Any, invoke: Any, open_ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = {"name": '"gradient"', "rounds": "5"}
    open_ledger("a.ledger", 5.0)
    invoke("fit", write_job("whole.toml", model=SEEDED, solver=solver), "-q")
    monkeypatch.setattr(room, "available", lambda: 1000)
    monkeypatch.setattr(progress, "LONG", -1.0)
    (folder / "rows").mkdir()
    data = {"folder": '"rows"', "ledger": '"a.ledger"'}
    job = write_job("large.toml", model=SEEDED, solver=solver, data=data)
    assert "preparing rows" in invoke("fit", job).stderr
    assert coefficients(job) == coefficients(folder / "whole.toml")
    assert not list((folder / "rows").iterdir())


def test_predictions_to_a_file_show_how_far_they_are(
    pieces: Path, folder: Path, write_job: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("fit", write_job(model=SEEDED), "-q")
    model, output = folder / "job.json", folder / "scores.csv"
    for data in (pieces, folder / "all.csv"):
        told = invoke("predict", model, data, "--output", output, "--overwrite").stderr
        assert told.endswith(f"600 predictions written to {output}\n")
    assert invoke("predict", model, pieces, "--output", output, "--overwrite", "--json").stderr == ""
    assert "600 predictions" not in invoke("predict", model, pieces).stderr
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to Rich
    told = invoke("predict", model, pieces, "--output", output, "--overwrite").stderr
    assert "predicting" in told
    assert "600/600" in told
    assert "predicting" not in invoke("predict", model, pieces).stderr


def test_predictions_are_written_piece_by_piece(pieces: Path, folder: Path, write_job: Any, invoke: Any) -> None:
    invoke("fit", write_job(model=SEEDED), "-q")
    model = folder / "job.json"
    whole = invoke("predict", model, folder / "all.csv", "--proba").stdout
    assert invoke("predict", model, pieces / "*.csv", "--proba").stdout == whole
    invoke("predict", model, pieces, "--proba", "--output", folder / "scores.csv")
    assert (folder / "scores.csv").read_text() == whole
    assert "give --output" in invoke("predict", model, pieces, "--json", code=2).stderr
    (pieces / "3.csv").write_text("a,b,c\n1,2,\n")
    told = invoke("predict", model, pieces, "--output", folder / "none.csv", code=2).stderr
    assert "values that are missing, infinite or no numbers, the first is record 601" in told
    assert not (folder / "none.csv").exists()


def test_an_evaluation_reads_pieces_too(pieces: Path, folder: Path, write_job: Any, invoke: Any) -> None:
    assert pieces.is_dir()
    invoke("fit", write_job(model=SEEDED), "-q")
    for name, file in (("one", "all.csv"), ("many", "people/*.csv")):
        (folder / f"{name}.toml").write_text(f'[privacy]\nepsilon = 50.0\n[data]\nfile = "{file}"\nlabel = "out"\n')
    found = [
        json.loads(invoke("evaluate", folder / "job.json", folder / f"{name}.toml", "--json").stdout)
        for name in ("one", "many")
    ]
    assert found[0]["metrics"]["accuracy"]["value"] == pytest.approx(found[1]["metrics"]["accuracy"]["value"], abs=0.02)


def test_a_schema_is_drafted_from_the_first_records(pieces: Path, folder: Path, invoke: Any) -> None:
    one = tomllib.loads(invoke("schema", folder / "all.csv", "--label", "out").stdout)
    assert tomllib.loads(invoke("schema", pieces / "*.csv", "--label", "out").stdout) == one
    assert "give one file that fits" in invoke("schema", pieces, "--public", code=2).stderr


def test_files_of_numpy_are_named_in_a_job(folder: Path, write_job: Any, invoke: Any) -> None:
    cells = [line.split(",") for line in (folder / "all.csv").read_text().splitlines()[1:]]
    np.save(folder / "X.npy", np.array([row[:3] for row in cells], dtype=float))
    np.save(folder / "y.npy", np.array([row[3] for row in cells]))
    solver = {"name": '"newton"'}
    invoke("fit", write_job("whole.toml", model=SEEDED, solver=solver), "-q")
    job = write_job("arrays.toml", model=SEEDED, solver=solver, data={"file": '"X.npy"', "label": '"y.npy"'})
    invoke("plan", job)
    invoke("fit", job, "-q")
    assert coefficients(job) == coefficients(folder / "whole.toml")


def test_a_party_serves_a_pattern(
    pieces: Path, folder: Path, open_ledger: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pieces.is_dir()
    open_ledger("north.ledger", 5.0)
    (folder / "north.toml").write_text(
        '[party]\nname = "north"\nfile = "people/*.csv"\nlabel = "out"\nledger = "north.ledger"\n'
        '[federation]\ncoordinator = "localhost:7443"\ncertificates = "certs"\n[bounds]\nentry_bound = 1.0\n'
    )
    job = load_party_job(folder / "north.toml")
    facts = {fact.name: fact.value for fact in read_holder(job, policy_of(job)).facts(classes=False)}
    assert facts["records"] == 600
    assert facts["solvers"] == ("newton", "gradient", "sgd", "whitened")
    assert "prepared rows" not in invoke("doctor", "--job", job.path, code=1).stdout  # they stay in memory
    monkeypatch.setattr(room, "fits_in_memory", lambda size, after=0: False)
    assert "prepared rows take" in invoke("doctor", "--job", job.path, code=1).stdout
    job.path.write_text(job.path.read_text().replace("label =", 'folder = "gone"\nlabel ='))
    assert "for prepared rows is no folder" in invoke("doctor", "--job", job.path, code=1).stdout


def test_a_party_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said, clock = list[str](), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    hear = report_rows(said.append)
    for done in range(0, 101, 25):
        hear("preparing rows", done, 100)
        clock[0] += 15.0
    assert said[0] == "preparing rows: 25% of 100 records, about 45 s left"
    assert said[-1] == "preparing rows: done in about 60 s"
    hear("reading rows", 5, 5)
    assert len(said) == 4


def test_no_record_decides_whether_a_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which solvers serve follows from it, and is told to others: by records and columns alone, not by bytes."""
    short, long, more = (tmp_path / f"{name}.csv" for name in ("short", "long", "more"))
    short.write_text("a,b\n" + "1,2\n" * 50)
    long.write_text("a,b\n" + "1,2\n" * 49 + f"{'9' * 5000},2\n")
    more.write_text("a,b\n" + "1,2\n" * 51)
    monkeypatch.setattr(room, "available", lambda: 100 * NUMBER)
    assert [is_large(path) for path in (short, long, more)] == [False, False, True]
    sparse = tmp_path / "rows.svm"
    sparse.write_text("1 1:2\n" * 5000)
    assert not is_large(sparse)
    told = SourceTable(file="rows.svm", features=1)
    assert not goes_by_pieces(told, sparse)
    assert goes_by_pieces(told.model_copy(update={"folder": "."}), sparse)
    assert goes_by_pieces(SourceTable(file="short.csv", records=10**9, features=2), short)
