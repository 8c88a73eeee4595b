"""The page "Running a federation" is followed word for word, each organisation in a network namespace of its own."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from organisations import Organisations, network, reason_against, steps
from sottovoce.lab import synthetic
from sottovoce.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parent.parent / "docs" / "running.md"
TOWN = ["clinic", "lab", "insurer"]
CLINICS = ["clinic-1", "clinic-2", "clinic-3"]


@pytest.mark.skipif((why := reason_against()) is not None, reason=str(why))
def test_the_page_leads_from_nothing_to_models_and_predictions(tmp_path: Path) -> None:
    with network(["office", *TOWN, *CLINICS], f"sv{os.getpid()}") as namespaces:
        organisations = Organisations(tmp_path, namespaces)
        try:
            for step in steps(PAGE):
                organisations.follow(step)
        finally:
            organisations.close()
    people = {name: {int(row[0]) for row in synthetic.example_rows(name)[1:]} for name in (*TOWN, *CLINICS)}
    common = set.intersection(*(people[name] for name in TOWN))
    office, said = organisations.folder("office"), organisations.printed("office")
    assert f"{len(common):,}" in said
    assert f"{synthetic.EXAMPLE_TWICE}" in said
    for path, secure in (
        ("town/coordinator/job", True),
        ("town/coordinator/plain", False),
        ("clinics/coordinator/job", False),
        ("clinics/coordinator/secure", True),
    ):
        report = json.loads((office / f"{path}.privacy.json").read_text())
        assert not list(office.rglob("*.run"))
        assert bool(report.get("colluding")) is secure
    for name in (*TOWN, *CLINICS):
        book = Ledger(organisations.folder(name) / "budget.ledger").account().book()
        assert len(book.reservations) == 2, name
    with (organisations.folder("clinic") / "predictions.csv").open() as file:
        predicted = list(csv.DictReader(file))
    assert {int(row["id"]) for row in predicted} == {
        int(row[0]) for row in synthetic.example_rows("clinic", new=True)[1:]
    }
    with (organisations.folder("clinic-1") / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(synthetic.example_rows("clinic-1", new=True)) - 1
    for found in (predicted, rows):
        assert all(0.0 < float(row["probability of 1"]) < 1.0 for row in found)
