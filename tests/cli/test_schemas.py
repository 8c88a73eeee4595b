"""Schemas on the command line: drafts, jobs, party files, predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.app import demo
from sottovoce.app.doctor import examine
from sottovoce.app.jobs import load_job, load_party_job
from sottovoce.app.previews import plan_job
from sottovoce.app.sources import read_party
from sottovoce.errors import MisfitWarning
from sottovoce.estimators.model_file import load_model

from .conftest import Invoke

SECRETS = ("Ilfracombe", "17.25", "93.75", "gravely")
SCHEMA = """
[schema]
label = "ill"
identifiers = ["id"]

[schema.columns]
age = { range = [18, 98], missing = true }
city = { levels = ["Rome", "Oslo"], other = true }
smoker = { yes = "yes", no = "no" }
ill = { levels = ["no", "yes"] }
"""
BOUGHT = SCHEMA.replace("range = [18, 98]", 'range = "private"')
JOB = '[model]\nestimator = "logistic"\ninsecure_seed = 3\n[privacy]\nepsilon = 3.0\n'
NAMES = ["age", "age=missing", "city=Rome", "city=Oslo", "city=other", "smoker=yes"]


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """`all.csv`, its halves by rows `north.csv` and `south.csv`, and by columns `left.csv` and `right.csv`."""
    random = np.random.default_rng(0)
    age, city = random.uniform(18, 98, 800), random.choice(["Rome", "Oslo", "Ilfracombe", "?"], 800)
    smoker = random.choice(["yes", "no"], 800)
    score = (age - 58) / 20 + 2 * (smoker == "yes") - 1 + 0.3 * random.logistic(size=800)
    cells = {
        "id": [str(row) for row in range(800)],
        "age": ["?" if row % 20 == 0 else f"{value:.2f}" for row, value in enumerate(age)],
        "city": city.tolist(),
        "smoker": smoker.tolist(),
        "ill": np.where(score > 0, "yes", "no").tolist(),
    }

    def write(name: str, rows: slice, *columns: str) -> None:
        kept = columns or tuple(cells)
        records = zip(*(cells[column][rows] for column in kept), strict=True)
        (tmp_path / name).write_text("\n".join([",".join(kept), *map(",".join, records)]) + "\n")

    write("all.csv", slice(None))
    write("north.csv", slice(0, 300))
    write("south.csv", slice(300, None))
    write("left.csv", slice(None), "city", "ill")
    write("right.csv", slice(None), "age", "smoker", "ill")
    write("new.csv", slice(0, 50), "smoker", "city", "age")
    return tmp_path


def job(folder: Path, text: str, name: str = "job.toml") -> Path:
    (folder / name).write_text(JOB + text)
    return folder / name


class TestDraft:
    table = "name,age,note\nIlfracombe,17.25,gravely\nIlfracombe,93.75,gravely\n,?,\n"

    def test_no_value_is_copied_and_the_draft_is_refused_until_filled_in(self, tmp_path: Path, invoke: Invoke) -> None:
        (tmp_path / "t.csv").write_text(self.table)
        text = invoke("schema", tmp_path / "t.csv", "--label", "note").stdout
        assert not [secret for secret in SECRETS if secret in text]
        assert "age = { range = [] }" in text
        assert "name = { levels = [] }" in text
        assert 'label = "note"' in text
        (tmp_path / "s.toml").write_text(text)
        with pytest.raises(sv.InputError, match=r"range = \[\] must be two numbers|levels is empty"):
            sv.Schema.from_toml(tmp_path / "s.toml")
        (tmp_path / "s.toml").write_text(text.replace("range = []", "range = [0, 99]").replace("[] }", '["a"] }'))
        assert sv.Schema.from_toml(tmp_path / "s.toml").feature_names == ("name=a", "age")

    def test_a_public_file_gives_its_values(self, tmp_path: Path, invoke: Invoke) -> None:
        """Negative control of the above: the secrets are found where they are."""
        (tmp_path / "t.csv").write_text(self.table)
        invoke("schema", tmp_path / "t.csv", "--label", "note", "--public", "-o", tmp_path / "s.toml")
        text = (tmp_path / "s.toml").read_text()
        assert [secret for secret in SECRETS if secret in text] == list(SECRETS)
        schema = sv.Schema.from_toml(tmp_path / "s.toml")
        assert schema.feature_names == ("name=Ilfracombe", "name=missing", "age", "age=missing")
        assert "is there already" in invoke("schema", tmp_path / "t.csv", "-o", tmp_path / "s.toml", code=2).stderr

    def test_one_record_decides_no_private_draft(self, tmp_path: Path, invoke: Invoke) -> None:
        """The odd cell is told to the holder, in the terminal. Negative control: half the cells decide it."""
        drafts, said = [], []
        for odd in ("17", "x17"):
            (tmp_path / "t.csv").write_text("age\n" + "".join(f"{n % 90}\n" for n in range(200)) + f"{odd}\n")
            shown = invoke("schema", tmp_path / "t.csv", "--output", tmp_path / "s.toml", "--overwrite")
            drafts.append((tmp_path / "s.toml").read_text())
            said.append(shown.stdout + shown.stderr)
        assert drafts[0] == drafts[1]
        assert "age = { range = [] }" in drafts[0]
        assert ["mostly numbers, some texts" in text for text in said] == [False, True]
        assert "x17" not in said[1]
        (tmp_path / "t.csv").write_text("age\n" + "17\nx17\n" * 100)
        assert "age = { levels = [] }" in invoke("schema", tmp_path / "t.csv").stdout

    def test_numbers_with_a_text_among_them_are_codes_of_a_public_file(self, tmp_path: Path, invoke: Invoke) -> None:
        (tmp_path / "t.csv").write_text("code,age\n" + "250,30\n401,?\n" * 50 + "V57,NA\n")
        public = invoke("schema", tmp_path / "t.csv", "--public").stdout
        assert 'code = { levels = ["250", "401", "V57"] }  # numbers and texts' in public
        (tmp_path / "t.csv").write_text("code,one\n" + "".join(f"{n},{n}\n" for n in range(200)) + "V57,3\n")
        text = invoke("schema", tmp_path / "t.csv", "--public").stdout
        assert 'identifiers = ["code"]  # code: numbers and texts' in text

    def test_columns_that_cannot_be_features_become_identifiers(self, tmp_path: Path, invoke: Invoke) -> None:
        lines = "".join(f"person {row},1,{row % 2}\n" for row in range(300))
        (tmp_path / "t.csv").write_text("name,one,two\n" + lines)
        assert 'identifiers = ["name", "one"]' in invoke("schema", tmp_path / "t.csv", "--public").stdout

    def test_parquet_types_and_a_label_that_is_not_there(self, tmp_path: Path, invoke: Invoke) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"a": [1, 2], "b": [True, None], "c": ["x", "y"]}), tmp_path / "t.parquet")
        text = invoke("schema", tmp_path / "t.parquet").stdout
        assert "a = { range = [] }" in text
        assert "b = { yes = true, no = false }" in text
        assert "c = { levels = [] }" in text
        assert "--label d" in invoke("schema", tmp_path / "t.parquet", "--label", "d", code=2).stderr

    def test_numbers_can_be_curves_but_not_the_label(self, tmp_path: Path, invoke: Invoke) -> None:
        (tmp_path / "t.csv").write_text("age,cost\n1,2\n3,4\n")
        text = invoke("schema", tmp_path / "t.csv", "--label", "cost", "--public", "--smooth").stdout
        assert 'shape = "smooth"\n\n[schema.columns]' in text
        (tmp_path / "s.toml").write_text(text)
        schema = sv.Schema.from_toml(tmp_path / "s.toml")
        assert len(schema.feature_names) == 11
        assert schema.label_bound == (2, 4)


class TestJobs:
    def test_plan_fit_and_predict(self, people: Path, invoke: Invoke) -> None:
        path = job(people, SCHEMA + '[data]\nfile = "all.csv"\n')
        assert plan_job(load_job(path)).plan.bounds.row_norm == pytest.approx(np.sqrt(3))
        invoke("fit", path, "--quiet")
        report = json.loads((people / "job.privacy.json").read_text())
        assert report["feature_names"] == NAMES
        found = invoke("predict", people / "job.json", people / "new.csv", "--proba").stdout.splitlines()
        assert len(found) == 51
        with pytest.warns(MisfitWarning, match="city: of 800 cells 197 are none of the declared levels"):
            model = sv.PrivateLogisticRegression(
                3.0, schema=sv.Schema.from_toml(path), insecure_seed=3
            ).fit(people / "all.csv")  # fmt: skip
        assert [line.split(",")[0] for line in found[1:]] == model.predict(people / "new.csv").tolist()
        assert "2 levels (Rome, Oslo), other counted" in (people / "job.privacy.html").read_text()

    def test_curves_are_fitted_drawn_and_kept(self, people: Path, invoke: Invoke) -> None:
        smooth = SCHEMA.replace('label = "ill"', 'label = "ill"\nshape = "smooth"').replace(
            "missing", "knots = 6, missing"
        )
        path = job(people, smooth + '[data]\nfile = "all.csv"\n')
        assert plan_job(load_job(path)).plan.features == len(NAMES) + 4
        invoke("fit", path, "--quiet")
        assert list(load_model(people / "job.json").shapes_) == ["age", "city", "smoker"]
        page = (people / "job.privacy.html").read_text()
        assert "<h3>Shapes</h3>" in page
        assert page.count("age[18..98]~") == 0
        found = invoke("predict", people / "job.json", people / "new.csv").stdout.splitlines()
        assert len(found) == 51
        invoke("card", people / "job.json", "--output", people / "card.md")
        assert "](card.svg)" in (people / "card.md").read_text()
        assert (people / "card.svg").read_text().startswith("<svg")

    def test_a_schema_in_a_file_and_no_data_opened_where_records_are_declared(self, people: Path) -> None:
        (people / "schema.toml").write_text(SCHEMA)
        data = '[data]\nfile = "nowhere.csv"\nrecords = 800\n'
        shown = plan_job(load_job(job(people, '[schema]\nfile = "schema.toml"\n' + data)))
        assert not shown.files_opened
        assert shown.plan.features == len(NAMES)

    def test_levels_of_codes_are_fitted_named_and_kept(self, people: Path, invoke: Invoke) -> None:
        """A prefix, a group and a file of levels beside the job, in a set that two columns share."""
        (people / "cities.csv").write_text("Ro\nOs\n")
        codes = SCHEMA + '\n[schema.level_sets]\ncity = { levels_file = "cities.csv", prefix = 2 }\n'
        codes = codes.replace('levels = ["Rome", "Oslo"]', 'levels = "city"')
        codes = codes.replace('yes = "yes", no = "no"', 'groups = { smokes = ["y*"], not = ["no"] }')
        path = job(people, codes + '[data]\nfile = "all.csv"\n')
        invoke("fit", path, "--quiet")
        (people / "cities.csv").unlink()
        model = load_model(people / "job.json")
        assert model.schema_.feature_names[2:] == (
            "city=Ro*",
            "city=Os*",
            "city=other",
            "smoker=smokes[y*]",
            "smoker=not[no]",
        )
        assert model.shapes_["smoker"].grid == ("smokes", "not")
        (people / "rest.csv").write_text("smoker,city,age\nyes,Rostock,20\nyes,Rome,20\nno,Rome,20\n")
        found = invoke("predict", people / "job.json", people / "rest.csv", "--proba").stdout.splitlines()[1:]
        assert found[0] == found[1] != found[2]

    def test_more_levels_than_the_budget_carries_are_told_before_a_fit(self, people: Path, invoke: Invoke) -> None:
        many = ", ".join(f'"{place}"' for place in range(600))
        for levels, told in (('"Rome", "Oslo"', 0), (many, 1)):
            path = job(people, SCHEMA.replace('"Rome", "Oslo"', levels) + '[data]\nfile = "all.csv"\nrecords = 800\n')
            for command in (("plan", path), ("doctor", "--job", path)):
                said = " ".join(invoke(*command).stdout.split())
                assert (
                    said.count("columns.city: 600 levels have 1.33 records each on average, and the noise of") == told
                )

    def test_by_rows(self, people: Path, invoke: Invoke) -> None:
        parties = "".join(f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\n' for name in ("north", "south"))
        path = job(people, SCHEMA + parties)
        assert plan_job(load_job(path)).plan.parties == (("north", 300), ("south", 500))
        invoke("fit", path, "--quiet")
        assert json.loads((people / "job.json").read_text())["feature_names"] == NAMES

    def test_by_columns(self, people: Path, invoke: Invoke) -> None:
        parties = "".join(f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\n' for name in ("left", "right"))
        path = job(people, SCHEMA + parties + "[columns]\n")
        plan = plan_job(load_job(path)).plan
        assert plan.columns == (3, 3)
        np.testing.assert_allclose(np.square(plan.norms), [1, 2])
        invoke("fit", path, "--quiet")
        (people / "people.toml").write_text(parties)
        joint = invoke("predict", people / "job.json", people / "people.toml").stdout
        whole = invoke("predict", people / "job.json", people / "all.csv").stdout
        assert [line.split(",")[1] for line in whole.splitlines()] == joint.splitlines()  # of files that have no `id`

    def test_a_party_file(self, people: Path) -> None:
        sv.Ledger.create(people / "north.db").open("north", epsilon=5.0, delta=1e-4)
        party = '[party]\nname = "north"\nfile = "north.csv"\nledger = "north.db"\n'
        (people / "party.toml").write_text(party + '[federation]\ncoordinator = "x:1"\ncertificates = "c"\n' + SCHEMA)
        loaded = load_party_job(people / "party.toml")
        assert loaded.known_schema is not None
        holder = read_party("north", loaded.party, loaded.resolve, schema=loaded.known_schema)
        assert holder.labelled
        assert holder.features == len(NAMES)

    def test_ranges_are_bought_in_one_budget(self, people: Path, invoke: Invoke) -> None:
        """The plan says the share and what both plans cost, the results what was bought; the ledger has two plans."""
        account = sv.Ledger.create(people / "all.db").open("all", 3.0, 1e-5, composition="gaussian")
        path = people / "job.toml"
        path.write_text(
            JOB.replace("insecure_seed = 3\n", "") + BOUGHT + '[data]\nfile = "all.csv"\nledger = "all.db"\n'
        )
        shown = invoke("plan", path).stdout
        assert "ranges are estimated, before the fit: age" in shown
        assert "ranges of columns, 10% of mu squared" in shown
        assert "counted by powers of two" in shown
        assert "Tails will be cut" in shown
        made = json.loads(invoke("plan", path, "--json").stdout)
        assert made["ranges"]["columns"] == ["age"]
        assert made["ranges"]["share"] == pytest.approx(0.1)
        assert made["ledgers"][0]["after"]["share"] == pytest.approx(1.0, rel=1e-6)
        assert [release["query"] for release in made["releases"]][:2] == ["powers", "cells"]
        assert made["privacy"]["against"]["coordinator"]["epsilon"] == pytest.approx(3.0, rel=1e-6)
        invoke("fit", path, "--quiet")
        assert account.balance().plans == 2
        report = json.loads((people / "job.privacy.json").read_text())
        low, high = report["estimated_ranges"]["age"]
        assert low < high  # noise is new in every run; how near it comes is tested with seeds
        assert report["against"]["coordinator"]["epsilon"] == pytest.approx(3.0, rel=1e-6)
        assert len(report["releases"]) == len(made["releases"])
        page = (people / "job.privacy.html").read_text()
        assert "Bought with a part of this fit's budget, and not declared: age." in page
        assert "counted in equal cells" in page
        kept = json.loads((people / "job.json").read_text())
        assert kept["table_schema"]["columns"]["age"]["range"] == [low, high]
        assert len(invoke("predict", people / "job.json", people / "new.csv").stdout.splitlines()) == 51
        refused = invoke("fit", path, "--quiet", "--overwrite", code=3).stderr
        assert "Nothing was charged" in refused
        assert account.balance().plans == 2

    def test_parties_of_their_own_with_one_schema(self, people: Path, invoke: Invoke, start: Any) -> None:
        """Real processes over TLS: each party reads its own table by its own schema, and ends after one fit.

        The fit buys a range first: two plans in one conversation.
        """
        invoke("certificates", people / "certificates", "north", "south")
        port = demo._free_port()
        for name in ("north", "south"):
            sv.Ledger.create(people / f"{name}.db").open(name, epsilon=5.0, delta=1e-5)
            said = f'[party]\nname = "{name}"\nfile = "{name}.csv"\nledger = "{name}.db"\n[federation]\n'
            said += f'coordinator = "localhost:{port}"\ncertificates = "certificates"\n'
            (people / f"{name}.toml").write_text(said + "[policy]\nmax_epsilon = 4.0\n" + BOUGHT)
            start("party", "--job", people / f"{name}.toml", "--once")
        remote = f'[federation]\nlisten = "127.0.0.1:{port}"\ncertificates = "certificates"\nwait = 60\n'
        path = people / "job.toml"
        path.write_text(JOB.replace("insecure_seed = 3\n", "") + remote + 'parties = ["north", "south"]\n' + BOUGHT)
        invoke("fit", path, "--quiet")
        report = json.loads((people / "job.privacy.json").read_text())
        assert report["feature_names"] == NAMES
        assert [sv.Ledger(people / f"{name}.db").account().balance().plans for name in ("north", "south")] == [2, 2]
        found = invoke("predict", people / "job.json", people / "all.csv").stdout.splitlines()[1:]
        model = load_model(people / "job.json")
        numbers = [line.split(",")[0] for line in (people / "all.csv").read_text().splitlines()[1:]]
        assert found == [
            f"{one},{label}" for one, label in zip(numbers, model.predict(people / "all.csv"), strict=True)
        ]
        low, high = model.ranges_["age"]
        assert low < high  # noise is new in every run, and may lengthen the run of cells

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[schema]\nlabels = "ill"\n', r"\[schema\] has no key 'labels'.*label"),
            ('[schema]\nlabel = "ill"\n', "lacks columns"),
            ('[schema]\nfile = "s.toml"\nlabel = "ill"\n', "leave the other keys out"),
            ("[schema.columns]\nage = { range = [] }\n", r"columns.age: range = \[\] must be two numbers"),
            ('[schema]\nfile = "none.toml"\n', "none.toml cannot be read"),
        ],
    )
    def test_what_is_wrong_is_said(self, people: Path, text: str, said: str) -> None:
        with pytest.raises(sv.InputError, match=said):
            load_job(job(people, text + '[data]\nfile = "all.csv"\n'))

    def test_keys_that_do_not_go_together(self, people: Path, invoke: Invoke) -> None:
        twice = invoke("fit", job(people, SCHEMA + '[data]\nfile = "all.csv"\nlabel = "ill"\n'), code=2).stderr
        assert "leave label out" in twice
        both = invoke("plan", job(people, SCHEMA + '[data]\nfile = "all.csv"\n[bounds]\nentry_bound = 1.0\n'), code=2)
        assert "follow from the schema" in both.stderr
        wrong = job(people, SCHEMA + '[data]\nfile = "all.csv"\nrecords = 3\n')
        assert "records=3 is declared" in invoke("fit", wrong, code=2).stderr


def test_a_schema_is_for_columns_with_names(folder: Path, invoke: Invoke) -> None:
    np.save(folder / "X.npy", np.ones((3, 2)))
    (folder / "t.svm").write_text("1 1:2\n")
    for name in ("X.npy", "t.svm"):
        assert "a schema is for" in invoke("schema", folder / name, code=2).stderr


PLACEHOLDERS = ["say what the model is for", "FILL: what for", "TODO", "..."]


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_texts_of_a_draft_are_not_signed(text: str, people: Path, invoke: Invoke) -> None:
    path = job(people, f'[about]\npurpose = "{text}"\n' + SCHEMA + '[data]\nfile = "all.csv"\n')
    refusal = invoke("fit", path, "--quiet", code=2).stderr
    assert f"about.purpose = '{text}' is the text of a draft" in refusal
    assert "Nothing was charged" in refusal
    assert any("text of a draft" in finding.text for finding in examine(path))


class TestMisfits:
    """`fit`, `doctor` and `plan --look` tell the same, each before anything is charged."""

    capitals = SCHEMA.replace('"Rome"', '"ROME"')

    def test_the_holder_is_told_by_every_command(self, people: Path, invoke: Invoke) -> None:
        path = job(people, self.capitals + '[data]\nfile = "all.csv"\n')
        told = [
            invoke("plan", path, "--look").stderr,
            invoke("doctor", "--job", path).stdout,
            invoke("fit", path, "--quiet").stderr,
        ]
        lines = [next(line for line in text.splitlines() if "city:" in line) for text in told]
        assert lines[0] == lines[1] == lines[2]
        assert "none of the declared levels" in lines[0]
        assert "but for capitals" in lines[0]
        assert "city:" not in invoke("plan", path).stderr
        for name in ("job.json", "job.privacy.json", "job.privacy.html"):
            assert "do not fit" not in (people / name).read_text()

    def test_without_a_record_that_can_be_used_nothing_is_charged(self, people: Path, invoke: Invoke) -> None:
        invoke("ledger", "create", people / "l.db", "--dataset", "d", "--epsilon", 9, "--delta", 1e-3)
        wrong = SCHEMA.replace('ill = { levels = ["no", "yes"] }', 'ill = { levels = ["well", "ill"] }')
        assert wrong != SCHEMA
        path = job(people, wrong + '[data]\nfile = "all.csv"\nledger = "l.db"\n')
        refusal = invoke("fit", path, "--quiet", code=2).stderr
        assert "none is left" in refusal
        assert "ill, the label: records without one count for nothing: of 800 cells 800 are none" in refusal
        assert sv.Ledger(people / "l.db").account().balance().plans == 0
        assert "all records are of no use" in invoke("doctor", "--job", path, code=1).stdout

    @pytest.mark.parametrize("wrong", ["north", "south"])
    def test_no_party_of_this_process_pays_for_another_that_is_refused(
        self, wrong: str, people: Path, invoke: Invoke
    ) -> None:
        text = SCHEMA
        for name in ("north", "south"):
            invoke("ledger", "create", people / f"{name}.db", "--dataset", name, "--epsilon", 9, "--delta", 1e-3)
            text += f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\nledger = "{name}.db"\n'
        table = people / f"{wrong}.csv"
        right = table.read_text()
        header, *lines = right.splitlines()
        place = header.split(",").index("ill")
        cells = [line.split(",") for line in lines]
        table.write_text("\n".join([header, *(",".join([*c[:place], "?", *c[place + 1 :]]) for c in cells)]) + "\n")
        path = job(people, text)

        def plans() -> list[int]:
            return [sv.Ledger(people / f"{name}.db").account().balance().plans for name in ("north", "south")]

        refusal = invoke("fit", path, "--quiet", code=2).stderr
        assert "none is left" in refusal
        assert "Nothing was charged" not in refusal
        assert plans() == [0, 0]
        table.write_text(right)  # the control: with the labels of both, both pay
        invoke("fit", path, "--quiet")
        assert plans() == [1, 1]

    def test_texts_without_a_schema_are_named(self, people: Path, invoke: Invoke) -> None:
        path = job(
            people, '[bounds]\nrow_norm = 1.0\nclasses = ["no", "yes"]\n[data]\nfile = "all.csv"\nlabel = "ill"\n'
        )
        said = invoke("doctor", "--job", path, code=1).stdout
        assert "all records are of no use and count for nothing; city, smoker have texts: declare a [schema]" in said
