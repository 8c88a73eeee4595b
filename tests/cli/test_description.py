"""`sottovoce describe`: a table with its schema, jobs of parties here, results, ledgers, and a second start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.app import demo
from sottovoce.app.job_file import SourceTable
from sottovoce.app.sources import read_party
from sottovoce.data.schema import Schema
from sottovoce.errors import RefusedError
from sottovoce.privacy.ledger import Ledger

SCHEMA = """[schema]
label = "ill"
identifiers = ["id"]
[schema.columns]
age = { range = [0, 100] }
diet = { levels = ["fish", "meat"] }
ill = { yes = "yes", no = "no" }
"""


@pytest.fixture
def tables(folder: Path) -> Path:
    """People in one file, in two by rows, and in two by columns, of which one is in another order."""
    rng = np.random.default_rng(0)
    rows = [
        f"{place},{rng.integers(20, 80)},{rng.choice(['fish', 'meat', 'tofu', ''])},{rng.choice(['yes', 'no'])}"
        for place in range(600)
    ]
    (folder / "schema.toml").write_text(SCHEMA)
    for name, chosen in (("people", rows), ("north", rows[:300]), ("south", rows[300:])):
        (folder / f"{name}.csv").write_text("id,age,diet,ill\n" + "\n".join(chosen) + "\n")
    cells = [row.split(",") for row in rows]
    (folder / "clinic.csv").write_text("id,age,ill\n" + "\n".join(f"{r[0]},{r[1]},{r[3]}" for r in cells) + "\n")
    (folder / "lab.csv").write_text("id,diet\n" + "\n".join(f"{r[0]},{r[2]}" for r in cells[::-1]) + "\n")
    return folder


def job(folder: Path, *names: str, more: str = "", each: str = "") -> Path:
    parties = "".join(f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\n{each}' for name in names)
    path = folder / "job.toml"
    path.write_text(f'{parties}{more}[schema]\nfile = "schema.toml"\n')
    return path


def test_a_table_with_its_schema(tables: Path, invoke: Any) -> None:
    told = [tables / "people.csv", "--schema", tables / "schema.toml", "--epsilon", "50"]
    files = ["--output", tables / "people.json", "--page", tables / "people.html"]
    said = invoke("describe", *told, "--by", "ill", *files).stdout
    assert "600 records, epsilon = 50" in said
    assert "age: mean" in said
    found = json.loads((tables / "people.json").read_text())
    assert found["columns"]["diet"]["all records"]["statistics"]["none of the levels"]["value"] == pytest.approx(
        0.25, abs=0.06
    )
    page = (tables / "people.html").read_text()
    assert page.count("<svg") >= 6
    assert not re.search(r"https?://", page)
    assert "What it promises" in page
    assert "people.html" in invoke("describe", *told, "--page", tables / "people.html", code=2).stderr
    assert "--schema" in invoke("describe", tables / "people.csv", "--epsilon", "1", code=2).stderr
    assert json.loads(invoke("describe", *told, "--json").stdout)["records"] == 600


def test_a_ledger_pays_before_and_refuses(tables: Path, invoke: Any) -> None:
    account = Ledger.create(tables / "people.ledger").open("people", epsilon=1.0, delta=1e-5)
    told = [tables / "people.csv", "--schema", tables / "schema.toml", "--ledger", tables / "people.ledger"]
    invoke("describe", *told, "--epsilon", "0.6")
    assert account.balance().spent == pytest.approx(0.6, rel=1e-2)
    assert "would fit" in invoke("describe", *told, "--epsilon", "0.9", code=3).stderr
    assert account.balance().plans == 1
    assert not (tables / "people.run").exists()


def test_parties_by_rows_and_by_columns(tables: Path, invoke: Any) -> None:
    """What else a job says, of a model or of none, does not matter."""
    by_rows = job(tables, "north", "south", more='[model]\nestimator = "none"\n')
    said = invoke("describe", by_rows, "--epsilon", "50", "--by", "ill").stdout
    assert "600 records" in said
    columns = '[columns]\nlabels = "held"\nlabel_party = "clinic"\n'
    by_columns = job(tables, "clinic", "lab", more=columns, each='id = "id"\n')
    found = json.loads(invoke("describe", by_columns, "--epsilon", "50", "--json").stdout)
    assert set(found["columns"]) == {"age", "ill", "diet"}
    assert found["columns"]["diet"]["all records"]["shares"]["fish"]["value"] == pytest.approx(0.25, abs=0.06)
    refused = invoke("describe", by_columns, "--epsilon", "50", "--by", "ill", code=2).stderr
    assert "one party alone knows the labels" in refused.replace("\n", " ")
    assert "--ledger" in invoke("describe", by_rows, "--epsilon", "1", "--ledger", "x", code=2).stderr


def test_one_that_could_not_be_written_goes_on_at_no_further_cost(
    tables: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Ledger.create(tables / "people.ledger").open("people", epsilon=1.0, delta=1e-5)
    told = [tables / "people.csv", "--schema", tables / "schema.toml", "--ledger", tables / "people.ledger"]
    told += ["--epsilon", "0.6", "--output", tables / "found.json"]
    from sottovoce.app import outputs

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(outputs, "write_once", full)
        assert "done and paid for" in invoke("describe", *told, code=2).stderr.replace("\n", " ")
    assert (tables / "people.run").exists()
    invoke("describe", *told)
    assert account.balance().plans == 1
    assert json.loads((tables / "found.json").read_text())["records"] == 600


def test_a_file_in_another_order_is_not_described(tables: Path) -> None:
    """By columns places in it name the people that were aligned."""
    source = SourceTable(file="lab.csv", id="id")
    schema = Schema({"diet": {"levels": ["fish", "meat"]}}, identifiers=["id"])
    party = read_party("lab", source, lambda name: tables / name, schema=schema)
    party.use(np.arange(300), "digest")
    found = party.codes()
    assert found.shape == party.codes_shape() == (300, 1)
    head, *rows = (tables / "lab.csv").read_text().splitlines()
    (tables / "lab.csv").write_text("\n".join([head, *rows[::-1]]) + "\n")
    for ask in (party.codes, party.codes_shape):
        with pytest.raises(RefusedError, match="written again"):
            ask()
    (tables / "lab.csv").unlink()
    with pytest.raises(RefusedError, match="written again"):
        party.codes()


@pytest.mark.slow
def test_parties_elsewhere(tables: Path, invoke: Any, start: Any) -> None:
    """Real processes over TLS: each reads its own table by its own schema, charges its own ledger, and ends."""
    invoke("certificates", tables / "certificates", "north", "south")
    port = demo._free_port()
    for name in ("north", "south"):
        Ledger.create(tables / f"{name}.db").open(name, epsilon=5.0, delta=1e-5)
        said = f'[party]\nname = "{name}"\nfile = "{name}.csv"\nledger = "{name}.db"\n[federation]\n'
        said += f'coordinator = "localhost:{port}"\ncertificates = "certificates"\n'
        (tables / f"{name}.toml").write_text(said + SCHEMA)
        start("party", "--job", tables / f"{name}.toml", "--once")
    remote = f'[federation]\nlisten = "127.0.0.1:{port}"\ncertificates = "certificates"\nwait = 60\n'
    path = tables / "remote.toml"
    path.write_text(f'{remote}parties = ["north", "south"]\n{SCHEMA}')
    found = json.loads(invoke("describe", path, "--epsilon", "4", "--by", "ill", "--json").stdout)
    assert found["records"] == 600
    assert found["columns"]["age"]["all records"]["statistics"]["mean"]["value"] == pytest.approx(49.5, abs=4)
    spent = [Ledger(tables / f"{name}.db").account().balance().spent for name in ("north", "south")]
    assert spent == pytest.approx([4.0, 4.0], rel=1e-2)


def test_a_job_with_a_budget_of_its_own_is_described(tables: Path, invoke: Any) -> None:
    """That of its fit is not that of the description, whatever it is; nobody counts one without a ledger."""
    (tables / "job.toml").write_text(
        '[data]\nfile = "people.csv"\n[schema]\nfile = "schema.toml"\n'
        '[model]\nestimator = "logistic"\n[privacy]\nepsilon = 1.0\n'
    )
    found = invoke("describe", tables / "job.toml", "--epsilon", "50")
    assert "600 records, epsilon = 50" in found.stdout
    assert "no ledger: nobody counts this run" in found.stderr
