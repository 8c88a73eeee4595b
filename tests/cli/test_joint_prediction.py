"""Joint predictions at the command line: from several files in this process, and from parties elsewhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce.app import demo
from sottovoce.app.cli import app
from sottovoce.app.jobs import load_party_job
from sottovoce.estimators.model_file import load_model
from sottovoce.federation.models import Models, PartialModel
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.certificates import peer_line, pin_in

pytestmark = pytest.mark.slow

RECORDS = 2000
PEOPLE = 30


def csv(header: str, *columns: np.ndarray) -> str:
    return "\n".join([header, *(",".join(f"{cell:g}" for cell in row) for row in np.column_stack(columns))]) + "\n"


@pytest.fixture
def town(folder):
    """`clinic` has a, b and the label y; `lab` has c. `new-` files have other people, `new.csv` all their columns."""
    rng = np.random.default_rng(8)
    for prefix, count in (("", RECORDS), ("new-", PEOPLE)):
        X = rng.choice([-1.0, 1.0], (count, 3))
        y = (X @ [1.0, 0.0, -1.0] > 0).astype(float)
        (folder / f"{prefix}clinic.csv").write_text(csv("a,b,y", X[:, :2], y))
        (folder / f"{prefix}lab.csv").write_text(csv("c", X[:, 2:]))
    (folder / "new.csv").write_text(csv("c,b,a", X[:, ::-1]))
    (folder / "people.toml").write_text(
        '[[party]]\nname = "clinic"\nfile = "new-clinic.csv"\n[[party]]\nname = "lab"\nfile = "new-lab.csv"\n'
    )
    return folder


@pytest.fixture
def train(town, write_job, invoke):
    def fit(more: str, **privacy: str):
        path = write_job(
            data=None,
            columns={"labels": '"held"', "label_party": '"clinic"'},
            model={"radius": "5.0"},
            solver={"name": '"frank-wolfe"', "rounds": "20"},
            bounds={"entry_bound": "1.0", "classes": "[0, 1]"},
            privacy=privacy,
            more=more,
        )
        invoke("fit", path, "--quiet")
        return town / "job.json"

    return fit


@pytest.fixture
def model(train):
    files = '[[party]]\nname = "clinic"\nfile = "clinic.csv"\nlabel = "y"\n[[party]]\nname = "lab"\nfile = "lab.csv"\n'
    return train(files, epsilon="inf")


def test_files_that_are_not_joined_give_the_predictions_of_the_joined_file(model, town, invoke):
    assert np.count_nonzero(load_model(model).coef_) > 1
    joined = json.loads(invoke("predict", model, town / "new.csv", "--proba", "--json").stdout)
    joint = json.loads(invoke("predict", model, town / "people.toml", "--proba", "--json").stdout)
    assert joint["prediction"] == joined["prediction"]
    assert 0 < sum(joint["prediction"]) < PEOPLE
    for name in ("probability of 0", "probability of 1"):
        np.testing.assert_allclose(joint[name], joined[name], rtol=0, atol=1e-9)
    invoke("predict", model, town / "people.toml", "--output", town / "out.csv")
    assert (town / "out.csv").read_text().split() == ["prediction", *map(str, joined["prediction"])]


def test_an_evaluation_is_of_the_joint_predictions(model, town, invoke, open_ledger):
    """All parties pay; one that has no room left, a party that is none, and no labels, are told."""
    predicted = json.loads(invoke("predict", model, town / "people.toml", "--json").stdout)["prediction"]
    labels = np.loadtxt(town / "new-clinic.csv", delimiter=",", skiprows=1)[:, 2]
    ledgers = [open_ledger("clinic.ledger", 160.0), open_ledger("lab.ledger", 60.0)]
    people = (town / "people.toml").read_text()
    labelled = people.replace(
        'file = "new-clinic.csv"', 'file = "new-clinic.csv"\nlabel = "y"\nledger = "clinic.ledger"'
    ).replace('file = "new-lab.csv"', 'file = "new-lab.csv"\nledger = "lab.ledger"')
    for start, files, code, text in (
        ("", labelled, 0, ""),
        ('label_party = "clinic"\n', labelled, 3, "would fit"),
        ('label_party = "insurer"\n', labelled, 2, "label_party = 'insurer' is no party"),
        ("", people, 2, "lacks the labels of party 'clinic'"),
    ):
        (town / "test.toml").write_text(f"{start}[privacy]\nepsilon = 50.0\n{files}")
        done = invoke("evaluate", model, town / "test.toml", "--json", code=code)
        if code == 0:
            found = json.loads(done.stdout)
            assert found["metrics"]["accuracy"]["value"] == pytest.approx(np.mean(predicted == labels), abs=0.1)
        else:
            assert text in done.stderr
        assert [ledger.account().balance().spent for ledger in ledgers] == pytest.approx([50.0, 50.0], rel=1e-2)


def test_a_person_with_a_missing_value_has_an_empty_cell(model, town, invoke):
    lines = (town / "new-lab.csv").read_text().split()
    lines[3] = "nan"
    (town / "new-lab.csv").write_text("\n".join(lines) + "\n")
    found = invoke("predict", model, town / "people.toml", "--proba").stdout.splitlines()
    assert found[3] == ",,"
    assert sum(line == ",," for line in found) == 1
    assert json.loads(invoke("predict", model, town / "people.toml", "--json").stdout)["prediction"][2] is None


FAULTS = {
    "nothing": ("", "names no data; give exactly one of [[party]]"),
    "a stranger": (
        '[[party]]\nname = "shop"\nfile = "new-lab.csv"\n',
        "'shop' is none of the model's; they are clinic, lab",
    ),
    "a party less": ('[[party]]\nname = "lab"\nfile = "new-lab.csv"\n', "the federation of lab"),
    "a party twice": ('[[party]]\nname = "lab"\nfile = "new-lab.csv"\n' * 2, "two parties share a name"),
    "another table": ("[model]\n", "there is no table 'model'"),
    "another file": ('[[party]]\nname = "lab"\nfile = "new-clinic.csv"\n', "lacks 1 of the model's columns: c"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_bad_job_is_explained(model, town, invoke, case):
    text, says = FAULTS[case]
    (town / "people.toml").write_text(text)
    result = invoke("predict", model, town / "people.toml", code=2)
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_recipient_needs_parties_elsewhere(model, town, invoke):
    assert (
        "files of all parties are here"
        in invoke("predict", model, town / "people.toml", "--recipient", "lab", code=2).stderr
    )
    assert "all records are here" in invoke("predict", model, town / "new.csv", "--recipient", "lab", code=2).stderr


def test_a_model_by_rows_needs_no_job(town, write_job, invoke):
    invoke("fit", write_job(), "--quiet")
    said = invoke("predict", town / "job.json", town / "people.toml", code=2).stderr
    assert "is for a model by columns" in said


def test_a_party_file_says_for_whom(town):
    path = town / "lab.toml"
    text = (
        '[party]\nname = "lab"\nfile = "new-lab.csv"\nledger = "lab.db"\n{}'
        '[federation]\ncoordinator = "localhost:1"\ncertificates = "c"\n{}'
    )
    for party, policy, expected in (
        ("", "", ()),
        ("", '[policy]\npredict_for = ["clinic"]\n', ("clinic",)),
        ('predictions = "out.csv"\n', "", ("lab",)),
    ):
        path.write_text(text.format(party, policy))
        assert load_party_job(path).predict_for == expected


REMOTE = (
    '[federation]\nlisten = "127.0.0.1:{port}"\ncertificates = "certificates"\nparties = ["clinic", "lab"]\nwait = 60\n'
)


def test_remote_parties_train_and_then_predict_for_one_of_them_that_evaluates(train, town, invoke, open_ledger, start):
    invoke("certificates", town / "certificates", "clinic", "lab")
    port = demo._free_port()
    where = ["--coordinator", f"localhost:{port}", "--certificates", town / "certificates", "--once"]
    holders = []
    for name, more in (("clinic", ["--label", "y"]), ("lab", [])):
        open_ledger(f"{name}.db", 8.0)
        own = ["--name", name, "--file", town / f"{name}.csv", "--ledger", town / f"{name}.db"]
        holders.append(start("party", *own, *more, *where))
    model = train(REMOTE.format(port=port), epsilon="8.0")
    for holder in holders:
        said, _ = holder.communicate(timeout=30)
        assert holder.returncode == 0, said
        assert "agreed to plan" in said
        assert "a part of its model is kept here. To predict with it, look at it (sottovoce models show" in said
    fitted = load_model(model)
    plan, lab = fitted.charged_as_, town / "lab.db"
    assert fitted.missing_parts_ == {}
    assert np.count_nonzero(fitted.coef_) > 1

    pins = {name: f"[peers]\n{peer_line(*pin_in(town / f'certificates/{name}.pem'))}\n" for name in ("clinic", "lab")}
    holders = []
    for name, more, policy, other in (
        ("clinic", 'label = "y"\npredictions = "out.csv"\n', "", "lab"),
        ("lab", "", '[policy]\npredict_for = ["clinic"]\n', "clinic"),
    ):
        (town / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\nfile = "new-{name}.csv"\nledger = "{name}.db"\n{more}[federation]\n'
            f'coordinator = "localhost:{port}"\ncertificates = "certificates"\n{policy}{pins[other]}'
        )
        holders.append(start("party", "--job", town / f"{name}.toml", "--once"))
    (town / "people.toml").write_text(REMOTE.format(port=port))
    # The training itself is refused by people who are predicted for, and so is another recipient.
    refused = invoke("predict", model, town / "people.toml", code=3)
    assert "no part in predictions for 'coordinator'" in refused.stderr
    refused = invoke("predict", model, town / "people.toml", "--recipient", "clinic", code=3)
    assert f"clinic has a model of plan {plan[:12]} that its holder has not approved" in refused.stderr
    for name in ("clinic", "lab"):
        assert "approved" in invoke("models", "approve", town / f"{name}.db", plan[:8], "--yes").stdout
    assert json.loads(invoke("models", "list", lab, "--json").stdout)["models"][0]["approved"] is True
    done = invoke("predict", model, town / "people.toml", "--recipient", "clinic")
    assert done.stdout == ""
    assert "clinic has the predictions; nothing of them came here" in done.stderr
    for holder, says in zip(holders, ("are in", "took part in a prediction for clinic"), strict=True):
        said, _ = holder.communicate(timeout=30)
        assert holder.returncode == 0, said
        assert says in said
        assert "these people are predicted for, not trained on" in said
    table = np.genfromtxt(town / "out.csv", delimiter=",", names=True)
    joined = json.loads(invoke("predict", model, town / "new.csv", "--proba", "--json").stdout)
    assert table["prediction"].tolist() == joined["prediction"]
    np.testing.assert_allclose(table["probability_of_1"], joined["probability of 1"], rtol=0, atol=1e-9)
    assert len(table) == PEOPLE

    holders = []
    for name, more, most, other in (("clinic", 'label = "y"\n', 60.0, "lab"), ("lab", "", 51.0, "clinic")):
        Ledger(town / f"{name}.db").open("test people", 60.0, 1e-5)
        more += f'ledger = "{name}.db"\naccount = "test people"\n'
        (town / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\nfile = "new-{name}.csv"\n{more}[federation]\n'
            f'coordinator = "localhost:{port}"\ncertificates = "certificates"\n'
            f'[policy]\npredict_for = ["clinic"]\npredict_training = true\nmax_epsilon = {most}\n{pins[other]}'
        )
        holders.append(start("party", "--job", town / f"{name}.toml", "--once"))
    job = 'label_party = "clinic"\n[privacy]\nepsilon = {}\n' + REMOTE.format(port=port)
    (town / "test.toml").write_text(job.format(55.0))
    assert "lab refuses: the plan costs epsilon 55" in invoke("evaluate", model, town / "test.toml", code=3).stderr
    (town / "test.toml").write_text(job.format(50.0))
    found = json.loads(invoke("evaluate", model, town / "test.toml", "--json").stdout)
    labels = np.loadtxt(town / "new-clinic.csv", delimiter=",", skiprows=1)[:, 2]
    right = np.mean(joined["prediction"] == labels)
    assert found["metrics"]["accuracy"]["value"] == pytest.approx(right, abs=0.1)
    for holder in holders:
        said, _ = holder.communicate(timeout=30)
        assert holder.returncode == 0, said
        assert "agreed to plan" in said
    assert "took part in a prediction for clinic" in said
    spent = [Ledger(town / f"{name}.db").account("test people").balance().spent for name in ("clinic", "lab")]
    assert spent == pytest.approx([50.0, 50.0], rel=1e-2)


SPELLING = [1.0, 2.0**14, 2.0**28]


@pytest.fixture
def kept(folder, open_ledger):
    """A ledger beside which a party keeps a model whose coefficients somebody chose."""
    columns = [np.linspace(-1, 1, 60).reshape(20, 3), np.zeros((20, 1))]
    federation = sv.Federation.by_columns(columns, np.zeros(20), names=["lab", "shop"])
    plan = sv.PrivateRidge(label_bound=1.0, entry_bound=2.0, delta=1e-3, solver="score").plan(federation)
    open_ledger("lab.db", 1.0)
    models = Models.beside(folder / "lab.db", "lab")
    models.keep(plan.digest, PartialModel(plan, "lab", np.array(SPELLING), 0.5, ("iron", "zinc", "lead")))
    return folder / "lab.db", plan.digest.hex(), models


def test_a_holder_sees_what_it_would_predict_with_and_approves_it(kept, invoke):
    ledger, plan, models = kept
    listed = invoke("models", "list", ledger).stdout
    assert plan[:12] in listed
    assert " no" in listed
    shown = invoke("models", "show", ledger, plan[:6]).stdout
    for text in ("not approved: no prediction", "iron", "268435456", "5.369e+08", "like digits", "WARNING"):
        assert text in shown
    told = json.loads(invoke("models", "show", ledger, plan, "--json").stdout)
    assert [line["coefficient"] for line in told["coefficients"]] == SPELLING
    assert [line["contribution"] for line in told["coefficients"]] == [2 * number for number in SPELLING]
    assert len(told["doubts"]) == 2
    result = CliRunner().invoke(app, ["models", "approve", str(ledger), plan], input="n\n")
    assert result.exit_code == 1
    assert not models.approved(bytes.fromhex(plan))
    result = CliRunner().invoke(app, ["models", "approve", str(ledger), plan], input="y\n")
    assert result.exit_code == 0
    assert models.approved(bytes.fromhex(plan))
    assert " yes" in invoke("models", "list", ledger).stdout


def test_models_that_are_not_there_are_explained(kept, invoke, folder, open_ledger):
    ledger, plan, _ = kept
    assert "no model of plan '00ff'" in invoke("models", "show", ledger, "00ff", code=2).stderr
    assert "no model of plan" in invoke("models", "approve", ledger, plan, "--party", "shop", code=2).stderr
    assert "is not there" in invoke("models", "list", folder / "other.db", code=2).stderr
    open_ledger("empty.db", 1.0)
    assert "no model is kept" in invoke("models", "list", folder / "empty.db").stdout
    whole = Models.beside(ledger, "lab").get(bytes.fromhex(plan))
    Models.beside(ledger, "shop").keep(bytes.fromhex(plan), PartialModel(whole.plan, "shop", np.ones(1), 0.0))
    assert "not one model but 2" in invoke("models", "show", ledger, plan, code=2).stderr
    assert "kept by shop" in invoke("models", "show", ledger, plan, "--party", "shop").stdout
