"""From a table and a schema to a job, a model, its evaluation and its card; models of Python and of files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.app.jobs import load_evaluation_job, load_job

Invoke = Callable[..., Any]

SCHEMA = """[schema]
label = "ill"
identifiers = ["id"]
[schema.columns]
age = { range = [18, 98] }
smoker = { yes = "yes", no = "no" }
ill = { levels = ["no", "yes"] }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(0)
    for name, count in (("people", 2_000), ("others", 1_000)):
        age, smoker = random.uniform(18, 98, count), random.choice(["yes", "no"], count)
        ill = (age - 58) / 20 + 2 * (smoker == "yes") - 1 + random.logistic(size=count) > 0
        rows = zip(range(count), age, smoker, np.where(ill, "yes", "no"), strict=True)
        lines = [f"P{place:04d},{age:.1f},{smoker},{label}\n" for place, age, smoker, label in rows]
        (tmp_path / f"{name}.csv").write_text("id,age,smoker,ill\n" + "".join(lines))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_command_says_the_next_from_a_table_to_a_card(folder: Path, invoke: Invoke) -> None:
    said = invoke("schema", "people.csv", "--label", "ill", "-o", "draft.toml").stderr
    assert "next: fill in" in said
    assert "`sottovoce job people.csv --schema draft.toml --output job.toml`" in said
    assert "levels is empty" in invoke("job", "people.csv", "--schema", "draft.toml", code=2).stderr
    (folder / "jobs").mkdir()
    said = invoke("job", "people.csv", "--schema", "schema.toml", "-o", "jobs/job.toml").stderr
    ledger = "`sottovoce ledger create people.ledger --dataset people --epsilon 3 --delta 1e-05`"
    assert f"next: {ledger}, then `sottovoce plan jobs/job.toml`" in said
    drafted = load_job(folder / "jobs" / "job.toml")
    assert (drafted.privacy.delta, drafted.about.texts()) == (1e-5, {})
    invoke("ledger", "create", "people.ledger", "--dataset", "people", "--epsilon", "3", "--delta", "1e-5")
    invoke("fit", "jobs/job.toml")
    invoke("predict", "jobs/job.json", "others.csv", "-o", "predictions.csv")
    assert (folder / "predictions.csv").read_text().splitlines()[:2][0] == "id,prediction"
    assert (folder / "predictions.csv").read_text().splitlines()[1].startswith("P0000,")
    invoke("job", "others.csv", "--schema", "schema.toml", "--test", "-o", "test.toml")
    assert load_evaluation_job(folder / "test.toml").people == "others"
    invoke("ledger", "create", "others.ledger", "--dataset", "others", "--epsilon", "1", "--delta", "1e-5")
    invoke("evaluate", "jobs/job.json", "test.toml", "-o", "evaluation.json")
    invoke("card", "jobs/job.json", "--evaluation", "evaluation.json", "-o", "card.html")
    model = sv.load_model("jobs/job.json")  # and of a job in Python
    assert model.score("others.csv") > 0.6


def test_a_model_of_python_opens_in_every_command(folder: Path, invoke: Invoke) -> None:
    schema = sv.Schema.from_toml("schema.toml")
    model = sv.PrivateLogisticRegression(3.0, 1e-5, schema=schema, standard_errors=True).fit("people.csv")
    model.save("model.json")
    found = invoke("predict", "model.json", "others.csv").stdout.splitlines()[1:]
    assert [line.split(",")[1] for line in found] == model.predict("others.csv").tolist()
    invoke("job", "others.csv", "--schema", "schema.toml", "--test", "-o", "test.toml")
    (folder / "test.toml").write_text((folder / "test.toml").read_text().replace("ledger =", "# ledger ="))
    said = invoke("evaluate", "model.json", "test.toml", "-o", "evaluation.json")
    assert "no ledger: nobody counts this run" in said.stderr
    invoke("card", "model.json", "--evaluation", "evaluation.json", "-o", "card.md")
    card = (folder / "card.md").read_text()
    assert "| smoker | yes (yes) or no (no) |" in card
    assert "std. error" in card
    assert invoke("coefficients", "model.json").stdout.split() == str(model.coefficients()).split()
    again = sv.load_model("model.json")
    again.save("again.json")
    assert json.loads(Path("again.json").read_text()) == json.loads(Path("model.json").read_text())


def test_a_data_set_that_is_a_model_leads_to_load_model() -> None:
    with pytest.raises(sv.InputError, match=r"sv\.load_model\(path\)"):
        sv.load("model.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('label = "ill"\n', ""), "names no label"),
        (('label = "ill"\n', 'label = "il"\n'), "lacks 'il', the label of schema.toml; did you mean 'ill'"),
    ],
)
def test_a_job_needs_a_label_that_the_table_has(
    folder: Path, invoke: Invoke, change: tuple[str, str], says: str
) -> None:
    (folder / "schema.toml").write_text(SCHEMA.replace(*change))
    assert says in " ".join(invoke("job", "people.csv", "--schema", "schema.toml", code=2).stderr.split())


def test_identifiers_of_a_folder_are_carried_as_they_are(folder: Path, invoke: Invoke) -> None:
    """Piece by piece and whole, the same lines."""
    model = sv.PrivateLogisticRegression(3.0, 1e-5, schema=sv.Schema.from_toml("schema.toml")).fit("people.csv")
    model.save("model.json")
    (folder / "parts").mkdir()
    head, *lines = (folder / "others.csv").read_text().splitlines()
    lines[0] = lines[0].replace("P0000", "007x")
    for name, part in (("a", lines[:400]), ("b", lines[400:])):
        (folder / "parts" / f"{name}.csv").write_text("\n".join([head, *part]) + "\n")
    (folder / "whole.csv").write_text("\n".join([head, *lines]) + "\n")
    whole = invoke("predict", "model.json", "whole.csv", "--proba").stdout
    assert invoke("predict", "model.json", "parts", "--proba").stdout == whole
    assert whole.splitlines()[1].startswith("007x,")


@pytest.mark.filterwarnings("ignore:.*Tails will be cut")
def test_a_fit_of_several_plans_is_one_charge(folder: Path, invoke: Invoke) -> None:
    """Ranges, fit and standard errors: one row, with the epsilon of the report, beside what is spent."""
    account = sv.Ledger.create("people.ledger").open("people", 3.0, 1e-5)
    (folder / "schema.toml").write_text(SCHEMA.replace("[18, 98]", '"private"'))
    schema = sv.Schema.from_toml("schema.toml")
    model = sv.PrivateLogisticRegression(1.0, 1e-5, schema=schema, standard_errors=True, ledger=account)
    for _ in range(2):
        model.fit("people.csv")
    told = json.loads(invoke("ledger", "history", "people.ledger", "--json").stdout)["charges"]
    assert [len(charge["plans"]) for charge in told] == [3, 3]
    assert [charge["epsilon"] for charge in told] == pytest.approx([1.0, 1.0], rel=1e-6)
    assert told[0]["spent"] == pytest.approx(model.privacy_.epsilon, rel=1e-6)
    assert told[1]["spent"] == pytest.approx(account.balance().spent)
    assert model.charged_as_ in told[1]["plans"]
    invoke("ledger", "report", "people.ledger", "-o", "ledger.html")
    page = (folder / "ledger.html").read_text()
    assert page.count("ranges, logistic, 2 rounds + whitened") == 2
    assert invoke("ledger", "show", "people.ledger").stdout.split().count("2") == 1  # runs


def test_an_account_of_several_kinds_of_releases_says_why_it_shows_more(folder: Path, invoke: Invoke) -> None:
    from sottovoce.privacy.events import Gaussian, Selection

    account = sv.Ledger.create("people.ledger").open("people", 3.0, 1e-5)
    account.reserve("a" * 64, [Gaussian(mu=0.1)], summary="one")
    assert "not all releases are Gaussian" not in invoke("ledger", "show", "people.ledger").stdout
    account.reserve("b" * 64, [Selection(rho=0.005)], summary="other")
    assert "not all releases are Gaussian" in invoke("ledger", "show", "people.ledger").stdout


def test_a_fit_that_no_ledger_counts_says_so(folder: Path, invoke: Invoke) -> None:
    invoke("job", "people.csv", "--schema", "schema.toml", "-o", "job.toml")
    text = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text(text.replace("ledger =", "# ledger ="))
    assert invoke("fit", "job.toml").stderr.count("no ledger: nobody counts this run") == 1
    (folder / "job.toml").write_text(text.replace("ledger =", "# ledger =").replace("epsilon = 1.0", "epsilon = inf"))
    assert "no ledger" not in invoke("fit", "job.toml", "--overwrite").stderr
