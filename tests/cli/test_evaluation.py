"""`sottovoce evaluate`: of files in this process, with ledgers, and of parties elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sottovoce.privacy.ledger import Ledger

PARTIES = (
    '[[party]]\nname = "north"\nfile = "north.csv"\nlabel = "out"\n'
    '[[party]]\nname = "south"\nfile = "south.csv"\nlabel = "out"\n'
)


@pytest.fixture
def trained(folder: Path, write_job: Any, invoke: Any) -> Path:
    invoke("fit", write_job(), "--quiet")
    return folder / "job.json"


def test_of_a_file(trained: Path, folder: Path, invoke: Any) -> None:
    (folder / "test.toml").write_text('[privacy]\nepsilon = 50.0\n[data]\nfile = "north.csv"\nlabel = "out"\n')
    said = invoke("evaluate", trained, folder / "test.toml", "--output", folder / "found.json").stdout
    assert "400 test records, epsilon=50" in said
    assert "accuracy: 0." in said
    found = json.loads((folder / "found.json").read_text())
    assert found["metrics"]["accuracy"]["low"] < found["metrics"]["accuracy"]["value"]
    assert found["privacy"]["epsilon"] == pytest.approx(50.0, rel=1e-3)
    invoke("evaluate", trained, folder / "test.toml", "--output", folder / "found.json", code=2)
    again = json.loads(invoke("evaluate", trained, folder / "test.toml", "--json").stdout)
    assert again["plan"] != found["plan"]  # another release, charged anew


def test_of_parties_with_ledgers(trained: Path, folder: Path, invoke: Any) -> None:
    """The second evaluation does not fit in one of the accounts: it is refused, and nobody is charged."""
    accounts = [
        Ledger.create(folder / f"{name}.ledger").open(name, epsilon=budget, delta=1e-5)
        for name, budget in (("north", 1.5), ("south", 9.0))
    ]
    text = PARTIES
    for name in ("north", "south"):
        text = text.replace(f'file = "{name}.csv"', f'file = "{name}.csv"\nledger = "{name}.ledger"')
    (folder / "test.toml").write_text("[privacy]\nepsilon = 1.0\n" + text)
    invoke("evaluate", trained, folder / "test.toml")
    spent = [account.balance().spent for account in accounts]
    assert spent == pytest.approx([1.0, 1.0], rel=1e-2)
    assert set(json.loads((folder / "test.receipts.json").read_text())) == {"north", "south"}
    assert "would fit" in invoke("evaluate", trained, folder / "test.toml", code=3).stderr
    assert [account.balance().spent for account in accounts] == spent


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[privacy]\nepsilon = 1.0\n", "names no data"),
        ("[privacy]\nepsilon = -1.0\n" + PARTIES, "epsilon"),
        (PARTIES, "privacy"),
        ("[privacy]\nepsilon = 1.0\n" + PARTIES.replace("south", "north"), "share a name"),
    ],
)
def test_a_file_that_is_wrong_is_told(trained: Path, folder: Path, invoke: Any, text: str, message: str) -> None:
    (folder / "test.toml").write_text(text)
    assert message in invoke("evaluate", trained, folder / "test.toml", code=2).stderr
