"""`sottovoce evaluate`: of files in this process, with ledgers, and of parties elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
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
    assert "400 test records, epsilon = 50" in said
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
    invoke("evaluate", trained, folder / "test.toml", "--page", folder / "test.html")
    page = (folder / "test.html").read_text()
    for text in ("<h1>Evaluation: job</h1>", "account north of north.ledger", "account south of", "9 at 1e-05"):
        assert text in page
    spent = [account.balance().spent for account in accounts]
    assert spent == pytest.approx([1.0, 1.0], rel=1e-2)
    assert set(json.loads((folder / "test.receipts.json").read_text())) == {"north", "south"}
    assert "would fit" in invoke("evaluate", trained, folder / "test.toml", code=3).stderr
    assert [account.balance().spent for account in accounts] == spent


TEST = '[privacy]\nepsilon = 50.0\n[data]\nfile = "north.csv"\nlabel = "out"\n'


@pytest.mark.slow
def test_drawn_to_a_file(trained: Path, folder: Path, invoke: Any) -> None:
    (folder / "test.toml").write_text(TEST)
    for name, start in (("found.png", b"\x89PNG"), ("found.svg", b"<?xml")):
        invoke("evaluate", trained, folder / "test.toml", "--plot", folder / name)
        assert (folder / name).read_bytes().startswith(start)
    for name in ("found.png", "found.txt"):  # there already, and of no such kind: told before anything is charged
        assert name in invoke("evaluate", trained, folder / "test.toml", "--plot", folder / name, code=2).stderr


def test_what_is_protected_is_as_in_the_fit_unless_said_otherwise(folder: Path, write_job: Any, invoke: Any) -> None:
    invoke("fit", write_job(privacy={"relation": '"replace-one"'}), "--quiet")
    for more, relation in (("", "replace-one"), ('relation = "zero-out"\n', "zero-out")):
        (folder / "test.toml").write_text(TEST.replace("[data]", f"{more}[data]"))
        found = json.loads(invoke("evaluate", folder / "job.json", folder / "test.toml", "--json").stdout)
        assert found["privacy"]["relation"] == relation


def test_people_of_the_fit(trained: Path, folder: Path, invoke: Any) -> None:
    (folder / "test.toml").write_text('people = "same"\n' + TEST)
    assert "together epsilon = 51" in invoke("evaluate", trained, folder / "test.toml").stdout
    (folder / "test.toml").write_text('people = "all"\n' + TEST)
    assert "people = 'all' is not allowed" in invoke("evaluate", trained, folder / "test.toml", code=2).stderr


def test_a_table_is_read_by_the_schema_of_the_model(folder: Path, write_job: Any, invoke: Any) -> None:
    """The file has a column of texts, which the schema makes numbers; and its columns in another order."""
    rng = np.random.default_rng(0)
    red, size = rng.random(800) < 0.5, rng.uniform(0, 9, 800)
    ill = np.where(size + 3 * red + rng.standard_normal(800) > 6, "yes", "no")
    for name, part, order in (("fit.csv", slice(400), (0, 1, 2)), ("test.csv", slice(400, None), (2, 0, 1))):
        columns = [("colour", np.where(red, "red", "blue")), ("size", np.char.mod("%.3f", size)), ("ill", ill)]
        chosen = [columns[place] for place in order]
        lines = [",".join(head for head, _ in chosen), *map(",".join, zip(*(c[part] for _, c in chosen), strict=True))]
        (folder / name).write_text("\n".join(lines) + "\n")
    schema = (
        '[schema]\nlabel = "ill"\n[schema.columns]\ncolour = { levels = ["red", "blue"] }\n'
        'size = { range = [0, 9] }\nill = { levels = ["no", "yes"] }\n'
    )
    job = write_job(
        bounds={"entry_bound": None, "classes": None}, data={"file": '"fit.csv"', "label": None}, more=schema
    )
    invoke("fit", job, "--quiet")
    (folder / "test.toml").write_text('[privacy]\nepsilon = 50.0\n[data]\nfile = "test.csv"\n')
    found = json.loads(invoke("evaluate", folder / "job.json", folder / "test.toml", "--json").stdout)
    assert found["metrics"]["accuracy"]["value"] > 0.75
    assert found["complete"]
    refused = invoke("evaluate", folder / "job.json", folder / "test.toml", "--by", "size", code=2).stderr
    assert "by='size' is a number" in refused
    (folder / "test.toml").write_text('by = "colour"\n[privacy]\nepsilon = 50.0\n[data]\nfile = "test.csv"\n')
    output = ("--output", folder / "found.json", "--plot", folder / "found.svg", "--page", folder / "found.html")
    said = invoke("evaluate", folder / "job.json", folder / "test.toml", *output).stdout
    assert "colour=red" in said
    found = json.loads((folder / "found.json").read_text())
    assert [group["name"] for group in found["groups"]] == ["red", "blue", "none of these"]
    assert found["groups"][0]["records"]["value"] == pytest.approx(red[400:].sum(), abs=5)
    invoke("card", folder / "job.json", "--evaluation", folder / "found.json")
    for name in ("job.card.html", "found.html"):
        assert "By colour, with 95% intervals" in (folder / name).read_text()
    assert "No ledger is known here." in (folder / "found.html").read_text()


def test_a_job_of_ordered_classes(folder: Path, write_job: Any, invoke: Any) -> None:
    """The levels of the label are the order, and groups are told beside all people."""
    rng = np.random.default_rng(0)
    size, old = rng.uniform(0, 9, 800), rng.random(800) < 0.4
    steps = np.digitize(size + 2 * old + rng.logistic(size=800), [3, 6])
    columns = [np.char.mod("%.3f", size), np.where(old, "y", "n"), np.array(["low", "middle", "high"])[steps]]
    (folder / "fit.csv").write_text("size,old,risk\n" + "\n".join(map(",".join, zip(*columns, strict=True))) + "\n")
    schema = (
        '[schema]\nlabel = "risk"\n[schema.columns]\nsize = { range = [0, 9] }\nold = { yes = "y", no = "n" }\n'
        'risk = { levels = ["low", "middle", "high"] }\n'
    )
    job = write_job(
        model={"estimator": '"ordinal"'},
        bounds={"entry_bound": None, "classes": None},
        data={"file": '"fit.csv"', "label": None},
        more=schema,
    )
    invoke("fit", job, "--quiet")
    (folder / "test.toml").write_text('[privacy]\nepsilon = 50.0\n[data]\nfile = "fit.csv"\n')
    found = json.loads(invoke("evaluate", folder / "job.json", folder / "test.toml", "--by", "old", "--json").stdout)
    assert found["classes"] == ["low", "middle", "high"]
    assert [group["name"] for group in found["groups"]] == ["y", "n", "none of these"]
    assert found["metrics"]["log_loss"]["value"] < 1.0


class TestCard:
    @pytest.fixture
    def evaluated(self, trained: Path, folder: Path, invoke: Any) -> Path:
        (folder / "test.toml").write_text(TEST)
        invoke("evaluate", trained, folder / "test.toml", "--output", folder / "found.json")
        return folder / "found.json"

    def test_as_a_page(self, trained: Path, evaluated: Path, folder: Path, invoke: Any) -> None:
        invoke("card", trained, "--evaluation", evaluated)
        page = (folder / "job.card.html").read_text()
        for text in ("Against anyone who sees the final model", "accuracy", "coefficient", "<svg", "400 test records"):
            assert text in page, text
        assert not re.findall(r"<(?:script|link|img|iframe|image)\b|@import|url\((?!#)", page)
        assert not re.findall(r"""(?:src|href)=["'](?!#)""", page)  # nothing from elsewhere

    def test_as_markdown(self, trained: Path, evaluated: Path, folder: Path, invoke: Any) -> None:
        invoke("card", trained, "--evaluation", evaluated, "--output", folder / "card.md")
        text = (folder / "card.md").read_text()
        assert "](card.svg)" in text
        assert (folder / "card.svg").read_text().startswith("<svg")
        accuracy = json.loads(evaluated.read_text())["metrics"]["accuracy"]["value"]
        assert f"| accuracy | {accuracy:.4g} |" in text
        coef = json.loads(trained.read_text())["coef"]
        assert f"| a | {coef[0]:.6g} |" in text
        invoke("card", trained, "--output", folder / "card.md", code=2)  # it is there already
        invoke("card", trained, "--output", folder / "card.md", "--overwrite")
        assert "Not said here" in (folder / "card.md").read_text()

    def test_what_was_bought_beside_the_fit(self, folder: Path, write_job: Any, invoke: Any) -> None:
        model = {"standard_errors": "true", "insecure_seed": "1"}
        bounds = {"entry_bound": None, "feature_ranges": '"private"'}
        invoke("fit", write_job(model=model, bounds=bounds, privacy={"epsilon": "30.0"}), "--quiet")
        invoke("card", folder / "job.json", "--output", folder / "card.md")
        text = (folder / "card.md").read_text()
        assert "and not declared: a, b, c." in text
        rows = json.loads((folder / "job.json").read_text())["coefficients"]
        told = [row for row in rows if row["estimate"] is not None]
        assert told
        for row in told:
            assert f"| {row['name']} | {row['estimate']:.4g} | {row['standard_error']:.4g} |" in text

    def test_what_is_no_evaluation_of_this_model_is_refused(
        self, trained: Path, evaluated: Path, folder: Path, invoke: Any, write_job: Any
    ) -> None:
        invoke("fit", write_job("other.toml"), "--quiet")
        said = invoke("card", folder / "other.json", "--evaluation", evaluated, code=2).stderr
        assert "an evaluation of another model" in said
        assert "is no evaluation" in invoke("card", trained, "--evaluation", trained, code=2).stderr
        assert "must end in .html or .md" in invoke("card", trained, "--output", folder / "card.pdf", code=2).stderr

    def test_names_of_others_are_no_markup(self, folder: Path, write_job: Any, invoke: Any) -> None:
        (folder / "all.csv").write_text((folder / "all.csv").read_text().replace("a,b,c", "<b>x</b>,*y*|[z](u),c", 1))
        invoke("fit", write_job(), "--quiet")
        for name in ("card.html", "card.md"):
            invoke("card", folder / "job.json", "--output", folder / name)
        assert "<b>x</b>" not in (folder / "card.html").read_text()
        assert r"| &lt;b&gt;x&lt;/b&gt; |" in (folder / "card.md").read_text()
        assert r"| \*y\*\|\[z\](u) |" in (folder / "card.md").read_text()


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
