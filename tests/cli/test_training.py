"""`sottovoce plan` and `sottovoce fit`: what they show, charge and write, and that bad input costs nothing."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce
from sottovoce.app import outputs, previews, runs
from sottovoce.app.cli.console import out, show_cost
from sottovoce.app.jobs import load_job
from sottovoce.data import resources as room
from sottovoce.data.block_parts import PreparedRows
from sottovoce.errors import InputError
from sottovoce.estimators.model_file import load_model
from sottovoce.privacy import ledger_file
from sottovoce.privacy.guarantee import VIEWS

REGRESSION = {
    "model": {"estimator": '"ridge"'},
    "bounds": {"entry_bound": "1.0", "classes": None, "label_bound": "[-6, 6]"},
    "data": {"file": '"all_reg.csv"'},
}


def test_a_plan_of_declared_facts_touches_no_file(write_job, invoke):
    path = write_job(data={"file": '"not-there.csv"', "records": "5000", "features": "12"})
    result = invoke("plan", path)
    assert "5,000 records, 12 features" in result.stdout
    assert "no data file was opened" in result.stdout
    assert "gradient" in result.stdout
    assert "the chance of concluding it is at most 2.718 times" in " ".join(result.stdout.split())


def test_a_plan_reads_the_shape_alone_and_says_so(write_job, invoke, folder):
    (folder / "all.csv").write_text("a,b,c,out\n" + "x,y,z,w\n" * 7)
    result = invoke("plan", write_job(), "--json")
    shown = json.loads(result.stdout)
    assert shown["parties"] == {"data": 7}
    assert shown["features"] == 3
    assert any("only the shape" in note and "all.csv" in note for note in shown["notes"])


def test_the_plan_is_what_the_fit_does(write_job, invoke, folder, parties, open_ledger):
    ledgers = [open_ledger(f"{name}.db", 3.0) for name in ("north", "south")]
    path = write_job(data=None, more=parties(ledgers=True))
    shown = json.loads(invoke("plan", path, "--json").stdout)
    assert [ledger.account().balance().plans for ledger in ledgers] == [0, 0]
    done = json.loads(invoke("fit", path, "--json", "--quiet").stdout)
    assert done["epsilon"] == pytest.approx(1.0)
    assert {view: done["against"][view]["epsilon"] for view in VIEWS} == {
        view: shown["privacy"]["against"][view]["epsilon"] for view in VIEWS
    }
    assert done["releases"] == shown["releases"]
    assert done["communication"]["rounds"] == shown["cost"]["rounds"]
    for charge, name in zip(shown["ledgers"], ("north", "south"), strict=True):
        assert done["ledgers"][name] == charge["after"]
        assert charge["after"]["left"] < charge["before"]["left"]


@pytest.mark.parametrize(
    "solver",
    [
        {"name": '"newton"', "rounds": "5"},
        {"name": '"gradient"', "rounds": "5"},
        {"name": '"sgd"', "rounds": "5", "rate": "0.5"},
        {"name": '"sgd"', "rounds": "5", "rate": "0.5", "schedule": '"one-party"'},
        {"name": '"scd"', "rounds": "5"},
        {"name": '"cd"', "inner": "8"},
        {"name": '"greedy-cd"', "rounds": "5"},
    ],
    ids=["newton", "gradient", "sgd", "one party at a time", "scd", "cd", "greedy-cd"],
)
def test_rounds_are_told_exactly_and_bytes_about(write_job, invoke, parties, solver):
    path = write_job(data=None, model={"alpha": "0.01"}, solver=solver, more=parties())
    shown = json.loads(invoke("plan", path, "--json").stdout)["cost"]
    done = json.loads(invoke("fit", path, "--json", "--quiet").stdout)["communication"]
    assert done["rounds"] == shown["rounds"]
    for way in ("uplink_bytes", "downlink_bytes"):
        assert shown[way] == pytest.approx(done[way], rel=0.1)


def test_a_fit_writes_model_report_and_page(write_job, invoke, folder):
    result = invoke("fit", write_job())
    assert "Guarantee" in result.stderr
    assert "48/48" in result.stderr
    assert "promise against everybody: epsilon 1, delta 1e-05, zero-out" in result.stdout
    report = json.loads((folder / "job.privacy.json").read_text())
    assert report["epsilon"] == pytest.approx(1.0)
    assert (folder / "job.privacy.html").read_text().startswith("<!doctype html>")
    model = load_model(folder / "job.json")
    coefficients = np.ravel(model.coef_)
    assert coefficients[0] > 0 > coefficients[1]
    assert report["plan_digest"] == model.charged_as_
    assert report["model_sha256"] == hashlib.sha256((folder / "job.json").read_bytes()).hexdigest()
    assert report["model_sha256"] in (folder / "job.privacy.html").read_text()
    assert report["software"] == f"sottovoce {sottovoce.__version__}"
    assert report["feature_names"] == list(model.feature_names_in_)
    assert report["against"]["world"]["trade_off"]["0.05"] < 0.95
    assert model.privacy_.world.detected(0.05) == 1 - report["against"]["world"]["trade_off"]["0.05"]


@pytest.mark.parametrize(("command", "work"), [("plan", "reading and computing"), ("fit", "computing")])
def test_a_plan_and_a_fit_tell_bytes_time_and_memory(write_job, invoke, monkeypatch, command, work):
    """The fit has read the file when it tells them."""
    short = invoke(command, write_job())
    assert f"less than a second of {work}" in " ".join((short.stdout + short.stderr).split())
    monkeypatch.setattr(previews.FitRows, "seconds", lambda *_: 47.0)
    monkeypatch.setattr(previews.FitRows, "memory", lambda *_: 5e6)
    monkeypatch.setattr(room, "resident", lambda: 0)
    result = invoke(command, write_job(), *(["--overwrite"] if command == "fit" else []))
    shown = " ".join((result.stdout + result.stderr).split())
    assert "Cost: 48 rounds, about " in shown
    assert f"to them, about 47 s of {work} and about 5 MB of memory on this machine" in shown
    assert "prepared rows: 15 kB in memory" in shown


@pytest.mark.parametrize(
    ("prepared", "text"),
    [
        (PreparedRows(492_000_000, "memory"), "492 MB in memory"),
        (PreparedRows(2_000_000_000, "file", Path("rows"), 100), "2 GB in a file in rows"),
        (PreparedRows(80_000_000, "cluster", workers=2), "at 2 workers of the cluster, 40 MB each"),
        (PreparedRows(80_000_000, "device"), "80 MB on the device"),
    ],
    ids=lambda given: getattr(given, "where", ""),
)
def test_where_prepared_rows_will_be_is_said(prepared, text, capsys):
    plan = SimpleNamespace(parties=("a",), channel=SimpleNamespace(secure=False))
    show_cost(SimpleNamespace(cost=previews.Cost(rounds=1), plan=plan, prepared=(prepared,)), out())
    assert f"\nprepared rows: {text}\n" in capsys.readouterr().out


def test_quiet_is_quiet(write_job, invoke):
    result = invoke("fit", write_job(), "--quiet")
    assert (result.stdout, result.stderr) == ("", "")


@pytest.mark.parametrize("estimator", ["ridge", "lasso", "elastic-net"])
def test_regressions(write_job, invoke, folder, estimator):
    path = write_job(**{**REGRESSION, "model": {"estimator": f'"{estimator}"', "alpha": "0.001"}})
    invoke("fit", path, "--quiet")
    result = invoke("predict", folder / "job.json", folder / "all_reg.csv")
    predicted = np.array([float(line) for line in result.stdout.splitlines()[1:]])
    truth = np.loadtxt(folder / "all_reg.csv", delimiter=",", skiprows=1)[:, -1]
    assert np.corrcoef(predicted, truth)[0, 1] > 0.9


def test_without_privacy_nothing_is_promised(write_job, invoke, folder):
    path = write_job(privacy={"epsilon": "inf"})
    assert "NO PROMISE" in invoke("plan", path).stdout
    result = invoke("fit", path, "--json", "--quiet")
    assert json.loads(result.stdout)["epsilon"] == "inf"
    assert "No promise is made" in (folder / "job.privacy.html").read_text()
    assert load_model(folder / "job.json").privacy_.epsilon == float("inf")


def test_a_seed_voids_the_promise(write_job, invoke, folder):
    path = write_job(model={"insecure_seed": "4"})
    for command in ("plan", "fit"):
        assert "NO PROMISE" in " ".join((output := invoke(command, path)).stdout.split() + output.stderr.split())
    first = (folder / "job.json").read_text()
    invoke("fit", path, "--quiet", "--overwrite")
    assert json.loads(first)["coef"] == json.loads((folder / "job.json").read_text())["coef"]
    assert "No promise is made" in (folder / "job.privacy.html").read_text()


def test_a_large_delta_is_remarked(write_job, invoke):
    path = write_job(privacy={"delta": "0.01"})
    for command in ("plan", "fit"):
        result = invoke(command, path)
        assert "at or above 1/N" in " ".join((result.stdout + result.stderr).split())


def test_a_ledger_is_charged_once(write_job, invoke, folder, open_ledger):
    ledger = open_ledger("budget.db", 3.0)
    invoke("fit", write_job(data={"ledger": '"budget.db"'}), "--quiet")
    balance = ledger.account().balance()
    assert balance.plans == 1
    assert balance.spent == pytest.approx(1.0, rel=1e-2)
    budgets = json.loads((folder / "job.privacy.json").read_text())["budgets"]
    assert budgets["data"]["after"] == {**vars(balance), "rests_on": []}
    assert budgets["data"]["before"]["plans"] == 0
    assert ledger.verify() == 1 + 1 + 48


def test_a_ledger_set_back_between_two_runs_of_a_job_is_found(write_job, invoke, folder, open_ledger):
    ledger = open_ledger("all.db", 3.0)
    about = {"analyst": '"A. Analyst"', "purpose": '"a test"'}
    path = write_job(privacy={"epsilon": "0.2"}, data={"ledger": '"all.db"'}, about=about)
    old = ledger.path.read_bytes()
    first = json.loads(invoke("fit", path, "--json", "--quiet").stdout)
    assert ledger.account().history()[1].details["about"] == {"analyst": "A. Analyst", "purpose": "a test"}
    kept = json.loads((folder / "job.receipts.json").read_text())
    assert kept == first["receipts"] == json.loads((folder / "job.privacy.json").read_text())["receipts"]
    assert str(load_model(folder / "job.json").receipts_["data"]) == kept["data"]
    shown = json.loads(invoke("plan", path, "--json").stdout)["cost"]
    second = json.loads(invoke("fit", path, "--json", "--quiet", "--overwrite").stdout)
    for way in ("uplink_bytes", "downlink_bytes"):
        assert shown[way] == pytest.approx(second["communication"][way], rel=0.1)
    invoke("ledger", "verify", ledger.path, "--receipt", second["receipts"]["data"])
    ledger.path.write_bytes(old)
    ledger_file._forget()
    assert "set back" in invoke("fit", path, "--quiet", "--overwrite", code=3).stderr
    assert ledger.account().balance().plans == 0
    (folder / "job.receipts.json").write_text("{")
    assert "job.receipts.json" in invoke("fit", path, "--quiet", "--overwrite", code=2).stderr


def test_a_budget_too_small_is_refused_and_nothing_is_charged(write_job, invoke, folder, parties, open_ledger):
    generous, poor = open_ledger("north.db", 3.0), open_ledger("south.db", 0.5)
    path = write_job(data=None, more=parties(ledgers=True))
    plan = invoke("plan", path)
    assert "refused" in plan.stdout
    assert "epsilon at most 0.5" in " ".join(plan.stdout.split())
    result = invoke("fit", path, "--quiet", code=3)
    assert "party 'south'" in result.stderr
    assert "epsilon at most 0.5" in result.stderr
    assert [ledger.account().balance().plans for ledger in (generous, poor)] == [0, 0]
    assert not (folder / "job.json").exists()


def _folder_is_a_file(folder):
    (folder / "out").write_text("")
    return '"out/model.json"'


BAD_OUTPUTS = {
    "no folder": lambda folder: '"nowhere/model.json"',
    "a folder": lambda folder: f'"{folder}"',
    "a file as folder": _folder_is_a_file,
    "the data": lambda folder: '"all.csv"',
    "the ledger": lambda folder: '"budget.db"',
    "the page": lambda folder: '"job.privacy.html"',
    "a name too long": lambda folder: f'"{"x" * 300}.json"',
}


def test_results_are_named_after_the_job_and_the_model(write_job, folder):
    path = write_job()
    names = ["model", "report", "page"]
    assert [load_job(path).outputs()[key].name for key in names] == ["job.json", "job.privacy.json", "job.privacy.html"]
    named = load_job(write_job(output={"model": '"first.json"', "page": '"page.html"'}))
    assert [named.outputs()[key].name for key in names] == ["first.json", "first.privacy.json", "page.html"]


def test_a_result_of_another_job_is_not_replaced_and_that_is_told_before_anything_is_charged(
    write_job, invoke, folder, open_ledger
):
    account = open_ledger("budget.db", 3.0).account()
    path = write_job(data={"ledger": '"budget.db"'})
    for name in ("job.json", "job.privacy.json", "job.privacy.html"):
        (folder / name).write_text("of another job")
        assert "is there already" in invoke("fit", path, code=2).stderr
        assert (folder / name).read_text() == "of another job"
        assert account.balance().plans == 0
        (folder / name).unlink()
    (folder / "job.json").write_text("of another job")
    invoke("fit", path, "--quiet", "--overwrite")
    assert account.balance().plans == 1
    assert load_model(folder / "job.json").coef_.shape == (1, 3)
    scores = folder / "scores.csv"
    scores.write_text("of another job")
    said = invoke("predict", folder / "job.json", folder / "all.csv", "-o", scores, code=2).stderr
    assert "is there already" in said
    assert scores.read_text() == "of another job"
    invoke("predict", folder / "job.json", folder / "all.csv", "-o", scores, "--overwrite")
    assert scores.read_text().startswith("prediction\n")


def test_a_result_that_came_to_be_there_during_a_fit_is_not_replaced(write_job, folder):
    job = load_job(write_job())
    outputs.check_outputs(job)
    with runs.open_job(job, lambda _: None) as run:
        model = runs.fit_model(run)
    (folder / "job.json").write_text("of another job")
    with pytest.raises(InputError, match=r"is there already.*paid for: its results are in (.*)\.$"):
        outputs.write_texts(job, outputs.make_texts(model, {}, {}, 0.0))
    assert (folder / "job.json").read_text() == "of another job"


@pytest.mark.parametrize("odd", ["1,red,3,0", "1,2", '1,"2,3,0', "1,2,3,maybe", "1,2,3,0,5"])
def test_one_record_decides_neither_whether_a_fit_goes_on_nor_what_is_shown(write_job, invoke, folder, odd):
    """The holder is told on the standard error of this process; the rest is as with any other record."""
    lines = (folder / "all.csv").read_text().splitlines()
    shown = []
    for line in (lines[40], odd):
        (folder / "all.csv").write_text("\n".join([*lines[:40], line, *lines[41:]]))
        done = json.loads(invoke("fit", write_job(), "--json", "--quiet", "--overwrite").stdout)
        for key in (
            "seconds",
            "plan_digest",
            "model_sha256",
            "communication",
        ):  # the plan has a random name; numbers vary in length
            done.pop(key)
        shown.append(done)
    assert shown[0] == shown[1]


@pytest.mark.parametrize("case", BAD_OUTPUTS)
def test_an_output_that_cannot_be_written_is_told_before_anything_is_charged(
    write_job, invoke, folder, open_ledger, case
):
    ledger = open_ledger("budget.db", 3.0)
    data = (folder / "all.csv").read_bytes()
    outputs = {"model": BAD_OUTPUTS[case](folder), "page": '"job.privacy.html"'}
    path = write_job(data={"ledger": '"budget.db"'}, output=outputs)
    result = invoke("fit", path, "--overwrite", code=2)
    assert "output." in result.stderr
    assert ledger.account().balance().plans == 0
    assert (folder / "all.csv").read_bytes() == data


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_is_told_before_anything_is_charged(write_job, invoke, folder, open_ledger):
    ledger = open_ledger("budget.db", 3.0)
    (folder / "locked").mkdir(mode=0o500)
    path = write_job(data={"ledger": '"budget.db"'}, output={"model": '"locked/model.json"'})
    assert "Permission denied" in invoke("fit", path, code=2).stderr
    assert ledger.account().balance().plans == 0


def test_results_are_rescued_if_their_folder_vanishes(write_job, folder, monkeypatch):
    (folder / "results").mkdir()
    job = load_job(write_job(output={"model": '"results/model.json"'}))
    outputs.check_outputs(job)
    with runs.open_job(job, print) as run:
        model = runs.fit_model(run)
    (folder / "results").rmdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(InputError, match="The fit is done and paid for: its results are in") as caught:
        outputs.write_texts(job, outputs.make_texts(model, {}, {}, 0.0))
    rescued = str(caught.value).rsplit(" ", 1)[1].rstrip(".")
    np.testing.assert_array_equal(load_model(f"{rescued}/model.json").coef_, model.coef_)


BALL = {"model": {"radius": "1.0", "l1_ratio": "1"}}
BAD_DATA = {
    "no file": ({"data": {"file": '"nothing.csv"'}}, "there is no such file"),
    "no label column": ({"data": {"label": '"outcome"'}}, "label='outcome' is no column"),
    "no label": ({"data": {"label": None}}, "needs label"),
    "unknown format": ({"data": {"file": '"all.xls"'}}, "unknown suffix"),
    "a LIBSVM file without features": ({"data": {"file": '"all.svm"', "label": None}}, "all.svm needs features"),
    "unknown solver": ({"solver": {"name": '"magic"'}}, "solver.name = 'magic' is unknown"),
    "a solver by its name in a paper": (
        {"solver": {"name": '"SGD2"'}},
        "solver.name = 'SGD2' is unknown; SGD2 is 'gradient' here",
    ),
    "an option that the form has not": (
        {"solver": {"name": '"frank-wolfe"', "cap": "2"}, **BALL},
        "cap=2 means nothing",
    ),
    "no bound": ({"bounds": {"entry_bound": None}}, "row_norm"),
    "a knob of another solver": (
        {"solver": {"name": '"newton"', "rate": "0.5"}},
        "[solver] of name = 'newton' has no key 'rate'",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_and_choices_cost_nothing(write_job, invoke, folder, open_ledger, case):
    changes, says = BAD_DATA[case]
    ledger = open_ledger("budget.db", 3.0)
    path = write_job(**{**changes, "data": {**changes.get("data", {}), "ledger": '"budget.db"'}})
    for command in ("plan", "fit"):
        result = invoke(command, path, code=2)
        assert says in result.stderr
        assert "Traceback" not in result.stderr
    assert ledger.account().balance().plans == 0


def test_one_class_is_told(write_job, invoke, folder):
    (folder / "all.csv").write_text("a,b,c,out\n" + "0.1,0.2,0.3,yes\n" * 5)
    assert "two classes" in invoke("fit", write_job(bounds={"classes": None}), "--quiet", code=2).stderr


def test_declared_records_must_be_those_of_the_file(write_job, invoke):
    path = write_job(data={"records": "599", "features": "3"})
    invoke("plan", path)
    assert "records=599" in invoke("fit", path, "--quiet", code=2).stderr


def test_parties_with_other_columns_are_refused(write_job, invoke, folder, parties):
    south = (folder / "south.csv").read_text()
    path = write_job(data=None, more=parties())
    for header, says in (("a,b,d,out", "only: c, d"), ("b,a,c,out", "another order")):
        (folder / "south.csv").write_text(south.replace("a,b,c,out", header))
        for command in ("plan", "fit"):
            assert says in invoke(command, path, code=2).stderr


def test_a_corrupt_ledger_stops_the_fit(write_job, invoke, folder):
    (folder / "budget.db").write_bytes(b"not a ledger, whatever its name" * 50)
    path = write_job(data={"ledger": '"budget.db"'})
    for command in ("plan", "fit"):
        assert "not a SQLite file" in invoke(command, path, code=5).stderr
    (folder / "budget.db").unlink()
    assert "no such file" in invoke("fit", path, code=5).stderr
    assert not (folder / "budget.db").exists()


def test_an_account_without_a_ledger(write_job, invoke):
    assert "account='people' needs a ledger" in invoke("fit", write_job(data={"account": '"people"'}), code=2).stderr


def test_libsvm_files(write_job, invoke, folder):
    rng = np.random.default_rng(1)
    rows = rng.uniform(0, 1, (200, 4))
    lines = [f"{int(row[0] > row[1])} " + " ".join(f"{j + 1}:{v:.3f}" for j, v in enumerate(row)) for row in rows]
    (folder / "all.svm").write_text("\n".join(lines) + "\n")
    path = write_job(data={"file": '"all.svm"', "label": None, "features": "4"}, bounds={"classes": "[0, 1]"})
    assert json.loads(invoke("plan", path, "--json").stdout)["features"] == 4
    invoke("fit", path, "--quiet")
    assert len(invoke("predict", folder / "job.json", folder / "all.svm").stdout.splitlines()) == 201


def test_parquet_files(write_job, invoke, folder):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(folder / "all.csv").to_parquet(folder / "all.parquet")
    path = write_job(data={"file": '"all.parquet"'})
    assert json.loads(invoke("plan", path, "--json").stdout)["parties"] == {"data": 600}
    invoke("fit", path, "--quiet")
    assert len(invoke("predict", folder / "job.json", folder / "all.parquet").stdout.splitlines()) == 601


def test_several_classes_one_against_the_rest_with_weights(write_job, invoke, folder):
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (900, 2))
    labels = np.array(["low", "mid", "high"])[np.digitize(rows[:, 0] + 0.1 * rng.standard_normal(900), [-0.3, 0.3])]
    lines = ["a,b,out", *(f"{a:.3f},{b:.3f},{label}" for (a, b), label in zip(rows, labels, strict=True))]
    (folder / "all.csv").write_text("\n".join(lines) + "\n")
    model = {"estimator": '"svm"', "class_weight": "{ low = 1, high = 4 }", "insecure_seed": "1"}
    path = write_job(model=model, privacy={"epsilon": "5.0"}, bounds={"classes": '["low", "mid", "high"]'})
    invoke("plan", path)
    invoke("fit", path, "--quiet")
    fitted = load_model(folder / "job.json")
    assert fitted.coef_.shape == (3, 2)
    assert fitted.classes_.tolist() == ["high", "low", "mid"]
    assert fitted.plan_.class_weight == (1.0, 0.25, 0.25)
    (folder / "new.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in lines) + "\n")
    said = invoke("predict", folder / "job.json", folder / "new.csv").stdout.split()[1:]
    assert len(said) == 900
    assert {"low", "high"} <= set(said) <= {"low", "mid", "high"}
    page = (folder / "job.privacy.html").read_text()
    assert "smoothed_hinge, each class against the rest" in page
    assert "high: 1, low: 0.25, mid: 0.25" in page
    undeclared = write_job(model=model, bounds={"classes": None})
    assert "declare the classes too" in invoke("fit", undeclared, code=2).stderr


def test_a_penalty_that_is_chosen_is_planned_charged_and_reported(write_job, invoke, folder, open_ledger):
    ledger = open_ledger("data.db", 3.0)
    path = write_job(model={"alpha": '"auto"', "l1_ratio": "1"}, data={"ledger": '"data.db"'})
    shown = json.loads(invoke("plan", path, "--json").stdout)
    assert "losses of models less those of a reference" in invoke("plan", path).stdout
    done = json.loads(invoke("fit", path, "--json", "--quiet").stdout)
    assert done["epsilon"] == pytest.approx(1.0)
    assert [release["query"] for release in done["releases"]][-1] == "losses"
    assert done["releases"] == shown["releases"]
    assert done["epsilon"] == shown["privacy"]["epsilon"]
    assert done["communication"]["rounds"] == shown["cost"]["rounds"]
    assert ledger.account().balance().plans == 2
    assert ledger.account().balance().left == pytest.approx(shown["ledgers"][0]["after"]["left"])
    assert "losses of models" in (folder / "job.privacy.html").read_text()
    assert load_model(folder / "job.json").alpha == "auto"
    assert json.loads((folder / "job.privacy.json").read_text())["alpha"] == done["alpha"]
