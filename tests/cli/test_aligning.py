"""`sottovoce align`: parties as processes with files in different orders, then a fit; and files of one process."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.app import demo
from sottovoce.app.jobs import load_alignment_job

pytestmark = pytest.mark.slow

COMMON = 60


def write_columns(folder: Path) -> None:
    """Two files of 60 common people and 5 others each, in different orders, their identifiers written differently."""
    rng, order = np.random.default_rng(2), random.Random(1)
    rows = rng.uniform(-1, 1, (COMMON + 10, 3))
    labels = np.where(rows @ [3.0, -3.0, 2.0] > 0, "yes", "no")
    clinic = order.sample([*range(COMMON), *range(COMMON, COMMON + 5)], COMMON + 5)
    lab = order.sample([*range(COMMON), *range(COMMON + 5, COMMON + 10)], COMMON + 5)
    cells = [f"P{place:04},{rows[place, 0]:.3f},{rows[place, 1]:.3f},{labels[place]}" for place in clinic]
    (folder / "clinic.csv").write_text("\n".join(["patient,a,b,out", *cells]) + "\n")
    cells = [f"{rows[place, 2]:.3f}, p{place:04} " for place in lab]
    (folder / "lab.csv").write_text("\n".join(["c,patient_id", *cells]) + "\n")


def test_parties_elsewhere_are_aligned_and_then_trained_on(
    write_job: Any, invoke: Any, folder: Path, open_ledger: Any, start: Any
) -> None:
    write_columns(folder)
    invoke("certificates", folder / "certificates", "clinic", "lab")
    port = demo._free_port()
    for name, column, label, other in (
        ("clinic", "patient", 'label = "out"\n', "lab"),
        ("lab", "patient_id", "", "clinic"),
    ):
        open_ledger(f"{name}.db", 9.0)
        pin = invoke("pin", folder / "certificates" / f"{other}.pem").stdout
        (folder / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\nfile = "{name}.csv"\nid = "{column}"\n{label}ledger = "{name}.db"\n'
            f'[federation]\ncoordinator = "localhost:{port}"\ncertificates = "certificates"\n'
            f'[policy]\nalign = ["{other}"]\nsecure = true\n[peers]\n{pin}\n'
        )
    remote = (
        f'[federation]\nlisten = "127.0.0.1:{port}"\ncertificates = "certificates"\nparties = ["clinic", "lab"]\n'
        'wait = 120\n[columns]\nlabels = "held"\n'
    )
    job = write_job(data=None, more=remote, solver={"name": '"newton"', "rounds": "2"})
    clinic, lab = start("party", "--job", folder / "clinic.toml"), start("party", "--job", folder / "lab.toml")
    said = invoke("align", job)
    assert f"common to all: {COMMON}" in said.stdout
    assert "clinic 65, lab 65" in said.stdout
    assert "this coordinator learned the lengths and the number" in said.stdout
    done = json.loads(invoke("fit", job, "--json").stdout)
    assert done["epsilon"] == pytest.approx(1.0)
    report = json.loads((folder / "job.privacy.json").read_text())
    assert not any("no identifiers were compared" in text for text in report["assumptions"])
    for process, name in ((clinic, "clinic"), (lab, "lab")):
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
        assert f"{COMMON} of 65 records are common, kept in {folder / f'{name}.csv.aligned'}" in told
        assert "agreed to plan" in told
        assert not any(f"p{place:04}" in told.lower() for place in range(COMMON))
    kept = json.loads((folder / "lab.csv.aligned").read_text())
    assert kept["aligned"]["parties"] == ["clinic", "lab"]
    assert len(kept["dates"]) == 1


def test_files_of_this_process_are_joined_by_their_identifiers(write_job: Any, invoke: Any, folder: Path) -> None:
    write_columns(folder)
    parties = (
        '[[party]]\nname = "clinic"\nfile = "clinic.csv"\nlabel = "out"\nid = "patient"\n'
        '[[party]]\nname = "lab"\nfile = "lab.csv"\nid = "patient_id"\n[columns]\nlabels = "held"\n'
    )
    job = write_job(data=None, more=parties, privacy={"epsilon": "100.0"})
    shown = json.loads(invoke("plan", job, "--json").stdout)
    assert shown["parties"] == {"clinic": COMMON, "lab": COMMON}
    assert shown["features"] == 3
    assert "no data file was opened" not in invoke("plan", job).stdout
    invoke("fit", job, "--quiet")
    people = folder / "people.toml"
    people.write_text(
        '[[party]]\nname = "clinic"\nfile = "clinic.csv"\nid = "patient"\n'
        '[[party]]\nname = "lab"\nfile = "lab.csv"\nid = "patient_id"\n'
    )
    header, *found = (line.split(",") for line in invoke("predict", folder / "job.json", people).stdout.splitlines())
    assert len(header) == 2
    lines = [line.split(",") for line in (folder / "clinic.csv").read_text().splitlines()[1:]]
    truth = {line[0].lower(): line[-1] for line in lines if int(line[0][1:]) < COMMON}
    assert len(found) == COMMON
    assert {person for person, _ in found} == truth.keys()
    # By chance once in 10^10: the rows belong together.
    assert np.mean([label == truth[person] for person, label in found]) > 0.9


def test_what_an_alignment_needs(write_job: Any, invoke: Any, folder: Path) -> None:
    table = '[federation]\nlisten = "127.0.0.1:0"\ncertificates = "certificates"\nparties = ["clinic", "lab"]\n'
    table += 'sums = "secure"\n'
    job = write_job(data=None, more=table)
    assert load_alignment_job(job).federation.parties == ("clinic", "lab")  # of the job of a fit
    assert "must be coordinator, or one of clinic, lab" in invoke("align", job, "--matched-by", "x", code=2).stderr
    assert "leave it out" in invoke("align", job, "--count", "--matched-by", "lab", code=2).stderr
    alone = write_job("alone.toml", data=None, more=table.replace(', "lab"', ""))
    assert "needs two or more" in invoke("align", alone, code=2).stderr
    here = write_job("here.toml")
    assert "federation" in invoke("align", here, code=2).stderr
