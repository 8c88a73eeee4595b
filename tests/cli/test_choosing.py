"""`sottovoce plan --epsilon`: several budgets side by side, what each costs in accuracy, and no private record read."""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import pytest
from typer.main import get_command

from sottovoce.app.cli import app
from sottovoce.lab import simulation
from sottovoce.lab.simulation import SimulatedFits

DECLARED = {"file": '"not-there.csv"', "records": "900", "features": "3"}


@pytest.fixture(autouse=True)
def few_runs(monkeypatch):
    monkeypatch.setattr(simulation, "SimulatedFits", functools.partial(SimulatedFits, runs=1))
    monkeypatch.setattr(SimulatedFits, "seconds", lambda self: 0.0)


def words(result):
    return " ".join(result.stdout.split())


@pytest.mark.parametrize(
    "spelled",
    [
        ["job.toml", "--epsilon", "0.5", "1", "5e0"],
        ["--epsilon", "0.5", "1", "5", "job.toml", "--json"],
        ["--epsilon", "0.5", "--epsilon=1", "5", "job.toml"],
    ],
    ids=["behind", "before", "repeated"],
)
def test_the_numbers_behind_the_option_are_its_own(spelled):
    found = get_command(app).commands["plan"].make_context("plan", spelled).params
    assert list(found["epsilon"]) == [0.5, 1.0, 5.0]
    assert str(found["job"]) == "job.toml"


def test_json_has_the_plans_and_the_simulation(write_job, invoke):
    shown = json.loads(invoke("plan", write_job(data=DECLARED), "--epsilon", "5", "0.5", "--json").stdout)
    assert shown["epsilon"] == [0.5, 5.0]
    assert [plan["privacy"]["epsilon"] for plan in shown["plans"]] == pytest.approx([0.5, 5.0], rel=1e-3)
    assert [row["epsilon"] for row in shown["simulation"]["rows"]] == [0.5, 5.0, "inf"]


def test_noise_ledgers_and_simulated_accuracy_at_each_epsilon_and_no_file_is_opened(write_job, invoke, open_ledger):
    ledger = open_ledger("people.db", 2.0)
    result = invoke("plan", write_job(data={**DECLARED, "ledger": '"people.db"'}), "--epsilon", "0.5", "5")
    text = words(result)
    assert "900 records, 3 features" in text
    assert "noise at 0.5 noise at 5" in text
    assert "0.5 data people 2 2 1.8" in text  # what the ledger would have left
    assert "5 data people 2 2 refused" in text
    assert "refused by data at 5:" in text
    assert "worse by (± over runs)" in text
    assert re.search(r"no privacy 100% 0\.(7|8)\d", text)
    assert "no private record was read" in text
    assert "Nothing was charged and no data file was opened." in text
    assert ledger.account().balance().plans == 0


def test_a_job_that_promises_nothing_says_so(write_job, invoke):
    path = write_job(model={"insecure_seed": "3"}, data=DECLARED)
    text = words(invoke("plan", path, "--epsilon", "5"))
    assert re.search(r" 5 100% 0\.\d", text)
    assert "seed" in text


@pytest.mark.slow
def test_what_is_simulated_does_not_depend_on_the_records(write_job, invoke, folder):
    path = write_job()
    first = invoke("plan", path, "--epsilon", "0.5", "5").stdout
    lines = (folder / "all.csv").read_text().splitlines()
    (folder / "all.csv").write_text("\n".join([lines[0], *("x,?,7e9,no" for _ in lines[1:])]) + "\n")
    assert invoke("plan", path, "--epsilon", "0.5", "5").stdout == first
    (folder / "all.csv").write_text("\n".join(lines[:-100]) + "\n")  # a count is public, and is what was read
    assert invoke("plan", path, "--epsilon", "0.5", "5").stdout != first


@pytest.mark.slow
def test_by_rows_and_by_columns(write_job, invoke, folder, parties):
    rows = json.loads(invoke("plan", write_job(data=None, more=parties()), "--epsilon", "1", "--json").stdout)
    assert rows["plans"][0]["split"] == "rows"
    assert rows["simulation"]["of"] == 700
    remote = (
        '[columns]\nlabels = "held"\n[federation]\nlisten = "127.0.0.1:7443"\ncertificates = "c"\n'
        'parties = ["clinic", "lab"]\nrecords = { clinic = 800, lab = 800 }\nfeatures = { clinic = 2, lab = 1 }\n'
    )
    columns = json.loads(invoke("plan", write_job(data=None, more=remote), "--epsilon", "1", "--json").stdout)
    assert columns["plans"][0]["columns"] == {"clinic": 2, "lab": 1}
    assert columns["simulation"]["of"] == 800


def test_a_public_look_alike_with_the_columns_in_another_order(write_job, invoke, folder):
    """Its label is its column b, which it tells nearly always if the columns are found by name."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (900, 3))
    label = np.where(rows[:, 1] > 0, "yes", "no")
    lines = [f"{c:.3f},{y},{b:.3f},{a:.3f}" for (a, b, c), y in zip(rows, label, strict=True)]
    (folder / "public.csv").write_text("\n".join(["c,out,b,a", *lines]) + "\n")
    path = write_job(data={"records": "600"})
    shown = json.loads(invoke("plan", path, "--epsilon", "5", "--like", folder / "public.csv", "--json").stdout)
    assert shown["simulation"]["rows"][0]["accuracy"] > 0.9
    assert "a public look-alike of 900 records" in shown["simulation"]["remarks"][0]
    (folder / "narrow.csv").write_text("a,b,out\n" + "0,1,yes\n" * 20)
    failed = invoke("plan", path, "--epsilon", "5", "--like", folder / "narrow.csv", code=2)
    assert "has 2 features and the job 3" in failed.stderr


def test_a_look_alike_by_the_schema(write_job, invoke, folder):
    schema = (
        '[schema]\nlabel = "out"\n[schema.columns]\na = { range = [-1, 1] }\n'
        'kind = { levels = ["x", "y"] }\nout = { levels = ["no", "yes"] }\n'
    )
    path = write_job(bounds=None, data={**DECLARED, "features": None, "label": None}, more=schema)
    rows = ["a,kind,out", *(f"0,{'xy'[k % 2]},{('no', 'yes')[k % 2]}" for k in range(300))]
    (folder / "public.csv").write_text("\n".join(rows) + "\n")
    shown = json.loads(invoke("plan", path, "--epsilon", "5", "--like", folder / "public.csv", "--json").stdout)
    assert shown["plans"][0]["features"] == 3
    assert shown["simulation"]["rows"][0]["accuracy"] == 1.0


def test_a_plot(write_job, invoke, folder):
    pytest.importorskip("matplotlib")
    path = write_job(data=DECLARED)
    invoke("plan", path, "--epsilon", "1", "5", "--plot", folder / "accuracy.png")
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    again = invoke("plan", path, "--epsilon", "1", "--plot", folder / "accuracy.png", code=2)
    assert "accuracy.png" in again.stderr  # is there already
    assert "must end in" in invoke("plan", path, "--epsilon", "1", "--plot", folder / "accuracy.xyz", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--like", "x.csv"], "--like, --strength and --plot belong to a simulation"),
        (["--epsilon", "0"], "must be positive numbers"),
        (["--epsilon", "some"], "Invalid value for '--epsilon'"),
    ],
)
def test_bad_usage(write_job, invoke, arguments, said):
    assert said in " ".join(invoke("plan", write_job(data=DECLARED), *arguments, code=2).stderr.split())


def test_the_epsilon_for_an_accuracy(invoke, write_job):
    shown = json.loads(invoke("plan", write_job(), "--accuracy", 0.7, "--json").stdout)
    assert shown["asked"] == 0.7
    assert 0.01 <= shown["epsilon"] < 10
    assert "which is the limit" in invoke("plan", write_job(), "--accuracy", 0.99).stdout
    assert "asks for an epsilon" in invoke("plan", write_job(), "--accuracy", 0.9, "--epsilon", 1, code=2).stderr
    assert "--plot draws epsilons" in invoke("plan", write_job(), "--accuracy", 0.9, "--plot", "x.png", code=2).stderr
