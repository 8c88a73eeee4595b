"""Jobs by columns: several files of the same people, in this process and as remote parties."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest

from sottovoce import algorithms
from sottovoce.app import demo
from sottovoce.app.jobs import load_job
from sottovoce.app.previews import plan_job
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError
from sottovoce.estimators.model_file import load_model
from sottovoce.federation.policy import Policy

pytestmark = pytest.mark.slow

RECORDS = 2000
MODEL = {"estimator": '"lasso"', "radius": "2.0"}
SOLVER = {"name": '"frank-wolfe"', "rounds": "12", "cap": "2"}
BOUNDS = {"entry_bound": "1.0", "classes": None, "label_bound": "[-2, 2]"}


@pytest.fixture(autouse=True)
def town(folder):
    """`clinic` has a and b, `lab` has c; `_y` files have the label too, `both.csv` has everything."""
    rng = np.random.default_rng(8)
    rows = rng.choice([-1.0, 1.0], (RECORDS, 3))
    scores = rows @ [1.0, 0.0, -1.0]
    kinds = np.where(scores + 0.2 * rng.logistic(size=RECORDS) > 0, "yes", "no")
    columns = {name: np.char.mod("%g", column) for name, column in zip("abc", rows.T, strict=True)}
    columns |= {"y": np.char.mod("%g", scores), "kind": kinds}
    for path, names in {
        "clinic.csv": "ab",
        "lab.csv": "c",
        "clinic_y.csv": "aby",
        "lab_y.csv": "cy",
        "clinic_kind.csv": ["a", "b", "kind"],
        "both.csv": "abcy",
    }.items():
        lines = [",".join(names), *map(",".join, zip(*(columns[name] for name in names), strict=True))]
        (folder / path).write_text("\n".join(lines) + "\n")
    return folder


def party(name: str, *, label: str = "", ledger: bool = False, **changes: str) -> str:
    keys = {"name": name, "file": f"{name}{'_' * bool(label)}{label}.csv", **changes}
    keys |= ({"label": label} if label else {}) | ({"ledger": f"{name}.db"} if ledger else {})
    return "".join(["[[party]]\n", *(f'{key} = "{value}"\n' for key, value in keys.items())])


def shared(*, ledger: bool = False) -> str:
    return party("clinic", label="y", ledger=ledger) + party("lab", label="y", ledger=ledger)


@pytest.fixture
def write(write_job):
    """A job by columns."""

    def made(more: str, columns: dict[str, str] | None = None, **changes: dict[str, str | None] | None):
        given = {"model": MODEL, "solver": SOLVER, "bounds": BOUNDS, **changes}
        return write_job(data=None, columns=columns or {}, more=more, **given)

    return made


def test_labels_that_all_know(write, invoke, folder, open_ledger):
    ledgers = [open_ledger(f"{name}.db", 3.0) for name in ("clinic", "lab")]
    path = write(shared(ledger=True))
    shown = json.loads(invoke("plan", path, "--json").stdout)
    assert shown["split"] == "columns"
    assert shown["parties"] == {"clinic": RECORDS, "lab": RECORDS}
    assert (shown["columns"], shown["labels"], shown["label_party"]) == ({"clinic": 2, "lab": 1}, "shared", "clinic")
    spent = [charge["after"]["spent"] for charge in shown["ledgers"]]
    assert spent == pytest.approx([1.0, 1.0], rel=1e-2)  # what both release, at each of them

    text = invoke("plan", path).stdout
    assert "at 2 parties, split by columns" in text
    assert "features: clinic 2, lab 1; labels: all parties know them" in text
    assert "each ledger is charged what all parties release together" in text

    done = json.loads(invoke("fit", path, "--json", "--quiet").stdout)
    assert done["epsilon"] == pytest.approx(1.0)
    assert done["communication"]["uplink_bytes"] <= 1.1 * shown["cost"]["uplink_bytes"]
    assert set(done["communication"]["uplink"]) == {"indices", "features"}
    assert [ledger.account().balance().spent for ledger in ledgers] == pytest.approx(spent)
    model = load_model(folder / "job.json")
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    predicted = invoke("predict", folder / "job.json", folder / "both.csv").stdout.splitlines()[1:]
    truth = np.loadtxt(folder / "both.csv", delimiter=",", skiprows=1)[:, -1]
    assert np.corrcoef(np.array(predicted, dtype=float), truth)[0, 1] > 0.5
    page = (folder / "job.privacy.html").read_text()
    assert "2 parties, split by columns: each has some features of the same people" in page
    assert "all parties know them, nobody else does" in page
    assert "clinic: 2, lab: 1; of the same people" in page
    assert "(of it indices " in page
    assert "a sketch of one feature" in page


def test_labels_that_one_party_holds(write, invoke, folder):
    path = write(
        party("lab") + party("clinic", label="kind"),
        {"labels": '"held"', "label_party": '"clinic"'},
        model={**MODEL, "estimator": '"logistic"'},
        bounds={"entry_bound": "1.0", "classes": None},
    )
    shown = json.loads(invoke("plan", path, "--json").stdout)
    assert (shown["labels"], shown["label_party"], shown["columns"]) == ("held", "clinic", {"lab": 1, "clinic": 2})
    assert "labels" in {release["query"] for release in shown["releases"]}
    invoke("fit", path, "--quiet")
    model = load_model(folder / "job.json")
    assert list(model.feature_names_in_) == ["c", "a", "b"]
    assert list(model.classes_) == ["no", "yes"]
    assert "clinic knows them, nobody else does" in (folder / "job.privacy.html").read_text()
    assert invoke("predict", folder / "job.json", folder / "both.csv", "--proba").stdout.count("\n") == RECORDS + 1


def test_bounds_follow_the_columns_of_all_parties(write, invoke, folder):
    ranges = "{ c = [-1, 1], a = [-2, 2], b = [-3, 3] }"
    path = write(
        shared(),
        {"norms": "{ lab = 0.6, clinic = 0.8 }"},
        bounds={**BOUNDS, "entry_bound": None, "row_norm": "1", "feature_ranges": ranges},
    )
    plan = plan_job(load_job(path)).plan
    assert plan.bounds.feature_high == (2.0, 3.0, 1.0)
    assert plan.norms == (0.8, 0.6)
    invoke("fit", path, "--quiet")
    assert load_model(folder / "job.json").plan_.bounds == plan.bounds


def test_a_party_declares_the_bounds_of_its_own_columns(write):
    path = write(shared(), bounds={**BOUNDS, "entry_bound": "[1.0, 2.0, 3.0]"})
    plan = plan_job(load_job(path)).plan
    algorithm = algorithms.of(plan)
    for own, refused in (([3.0], False), ([1.0, 2.0, 3.0], False), ([1.0, 2.0], True)):
        policy = Policy(bounds=Bounds.declare(entry_bound=own, label_bound=2.0))
        assert (policy.refuse(plan, algorithm, "lab") is not None) == refused


def test_a_plan_of_declared_facts_opens_no_file(write, invoke):
    declared = 'label = "y"\nrecords = 500\nfeatures = '
    files = "".join(
        f'[[party]]\nname = "{name}"\nfile = "not-there.csv"\n{declared}{width}\n'
        for name, width in (("clinic", 12), ("lab", 8))
    )
    result = invoke("plan", write(files))
    assert "500 records, 20 features, at 2 parties, split by columns" in result.stdout
    assert "no data file was opened" in result.stdout


def test_without_privacy(write, invoke, folder):
    path = write(shared(), privacy={"epsilon": "inf"}, solver=None)
    assert "NO PROMISE" in invoke("plan", path).stdout
    invoke("fit", path, "--quiet")
    np.testing.assert_allclose(load_model(folder / "job.json").coef_, [1.0, 0.0, -1.0], atol=0.02)


BAD = {
    "one file": ({}, '[data]\nfile = "both.csv"\nlabel = "y"\n', ["[columns] and [data]", "[[party]]"]),
    "mistyped key": ({"label": '"held"'}, shared(), ["[columns] has no key 'label'", "did you mean 'labels'"]),
    "labels": ({"labels": '"secret"'}, shared(), ["columns.labels = 'secret'", '"held"']),
    "label_party": (
        {"label_party": '"labs"'},
        shared(),
        ["columns.label_party = 'labs'", "did you mean 'lab'", "clinic, lab"],
    ),
    "norms": ({"norms": "{ clinic = 1.0, shop = 1.0 }"}, shared(), ["columns.norms names clinic, shop", "clinic, lab"]),
    "norms no numbers": ({"norms": '{ clinic = "1" }'}, shared(), ["columns.norms = '1'", "{ clinic = 0.8"]),
    "norms without a row norm": ({"norms": "{ clinic = 1, lab = 1 }"}, shared(), ["norms=(1.0, 1.0)", "row_norm"]),
    "no label": ({}, party("clinic", label="y") + party("lab"), ["party 'lab' has no label", "columns.labels"]),
    "no label at the holder": ({"labels": '"held"'}, party("clinic") + party("lab"), ["'clinic' has no label"]),
    "a label too many": ({"labels": '"held"'}, shared(), ["party 'lab' has label = 'y'", "by 'clinic' alone"]),
    "the label as a feature": (
        {"labels": '"held"'},
        party("clinic", label="y") + party("lab", file="lab_y.csv"),
        ["party 'lab' has the column 'y', which is the label of 'clinic'", "Take it out"],
    ),
    "a column at both": (
        {},
        party("clinic", label="y") + party("lab", label="y", file="both.csv"),
        ["several parties", "a (clinic, lab), b (clinic, lab)", "rename"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_job_is_explained(write, invoke, case):
    columns, more, says = BAD[case]
    path = write(more, columns)
    for command in ("plan", "fit"):
        result = invoke(command, path, code=2)
        (error,) = (line for line in result.stderr.splitlines() if not line.startswith("note: no ledger of "))
        assert error.startswith("error: ")
        assert all(part in error for part in says), result.stderr


def test_other_people_are_refused(write, invoke, folder):
    lines = (folder / "lab_y.csv").read_text().splitlines()
    (folder / "few_y.csv").write_text("\n".join(lines[:-9]) + "\n")
    path = write(party("clinic", label="y") + party("lab", label="y", file="few_y.csv"))
    for command in ("plan", "fit"):
        said = invoke(command, path, code=2).stderr
        assert f"clinic {RECORDS}, lab {RECORDS - 9}" in said
        assert "Align the records first" in said


def test_people_in_another_order_are_refused_where_the_labels_show_it(write, invoke, folder):
    header, *lines = (folder / "lab_y.csv").read_text().splitlines()
    (folder / "lab_y.csv").write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert "'clinic' and 'lab' have different labels" in invoke("fit", write(shared()), code=2).stderr


def test_one_account_for_two_parties_is_refused(write, invoke, open_ledger):
    open_ledger("one.db", 3.0)
    more = party("clinic", label="y", ledger=True) + party("lab", label="y", ledger=True)
    path = write(more.replace("clinic.db", "one.db").replace("lab.db", "one.db"))
    assert "'clinic' and 'lab' name one account" in invoke("fit", path, "--quiet", code=2).stderr


REMOTE = """
[federation]
listen = "127.0.0.1:{port}"
certificates = "certificates"
parties = ["clinic", "lab"]
"""


@pytest.mark.parametrize(
    ("columns", "more", "says"),
    [
        ({}, "features = { clinic = 2 }", r"federation.features names clinic where the parties are clinic, lab"),
        ({}, "features = { clinic = 2, lab = 0 }", r"federation.features = .*'lab': 0.* is not allowed: give"),
        (
            None,
            "features = { clinic = 2, lab = 1 }",
            r"by rows all have the same, so give one number, or .*\[columns\]",
        ),
    ],
)
def test_a_federation_that_cannot_be(write_job, columns, more, says):
    tables = {} if columns is None else {"columns": columns}
    with pytest.raises(InputError, match=says):
        load_job(write_job(data=None, model=MODEL, bounds=BOUNDS, more=REMOTE.format(port=0) + more, **tables))


def test_remote_parties_are_declared_each(write, invoke):
    path = write(REMOTE.format(port=0) + "records = { clinic = 900, lab = 900 }\n")
    assert "federation.features = { name = 20, ... }" in invoke("plan", path, code=2).stderr
    path = write(REMOTE.format(port=0) + "records = { clinic = 900, lab = 900 }\nfeatures = 4\n")
    assert "900 records, 8 features" in invoke("plan", path).stdout


def test_two_remote_parties(write, invoke, folder, open_ledger, start):
    invoke("certificates", folder / "certificates", "clinic", "lab")
    port = demo._free_port()
    ledgers = {name: open_ledger(f"{name}.db", 3.0) for name in ("clinic", "lab")}
    holders = []
    for name, source in (("clinic", 'file = "clinic_y.csv"\nlabel = "y"'), ("lab", 'file = "lab.csv"')):
        (folder / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\n{source}\nledger = "{name}.db"\n'
            f'[federation]\ncoordinator = "localhost:{port}"\ncertificates = "certificates"\n'
            "[policy]\nmax_epsilon = 1.0\n[bounds]\nentry_bound = 1.0\nlabel_bound = [-2, 2]\n"
        )
        holders.append(start("party", "--job", folder / f"{name}.toml"))
    declared = f"wait = 60\nrecords = {{ clinic = {RECORDS}, lab = {RECORDS} }}\nfeatures = {{ clinic = 2, lab = 1 }}\n"
    path = write(REMOTE.format(port=port) + declared, {"labels": '"held"'})
    shown = json.loads(invoke("plan", path, "--json").stdout)
    done = json.loads(invoke("fit", path, "--json", "--quiet").stdout)
    assert done["epsilon"] == pytest.approx(1.0)
    assert done["communication"]["uplink_bytes"] <= 1.1 * shown["cost"]["uplink_bytes"]
    assert list(load_model(folder / "job.json").feature_names_in_) == ["a", "b", "c"]
    for ledger in ledgers.values():
        assert ledger.account().balance().spent == pytest.approx(1.0, rel=1e-2)

    # `lab` does not know the labels, so a plan in which all parties do is refused.
    other = write(REMOTE.format(port=port) + "wait = 60\n", {"labels": '"shared"'})
    assert "lab does not know the labels" in invoke("fit", other, "--quiet", "--overwrite", code=3).stderr
    for ledger in ledgers.values():  # which had room for it, so nothing else refused it, and none was charged
        assert ledger.account().balance().spent == pytest.approx(1.0, rel=1e-2)
    for holder in holders:
        holder.send_signal(signal.SIGINT)
        said, _ = holder.communicate(timeout=20)
        assert holder.returncode == 0
        assert "agreed to plan" in said
    assert "no label: every column is a feature" in said
