"""What all papers share: parts, figures, missing data, claims, pages and the command."""

from __future__ import annotations

import json
import math
import re

import pytest
from typer.testing import CliRunner

from sottovoce.app.cli import app
from sottovoce.app.papers import write_pages
from sottovoce.errors import InputError
from sottovoce.lab import reproduce
from sottovoce.lab.reproduce import Claim, MissingDataError, PaperTable, Setup, admm, sgd

pytestmark = pytest.mark.slow

QUICK = Setup(quick=True)
ABOUT = {"source": "source", "not_reproduced": []}


def test_names_and_parts():
    assert reproduce.NAMES == ("dp-cd", "dp-scd", "admm", "frank-wolfe", "sgd")
    for name in reproduce.NAMES:
        assert reproduce.paper(name).parts
        assert reproduce.paper(name).told["not_reproduced"]
    with pytest.raises(InputError, match=r"'adam' is no paper.*dp-cd, dp-scd, admm, frank-wolfe, sgd"):
        reproduce.run_paper("adam")
    with pytest.raises(InputError, match=r"'curves' is no part of admm.*objective, a9a, noise.*epsilons"):
        reproduce.run_paper("admm", only="curves")


class TestMissingData:
    @pytest.fixture(autouse=True)
    def nowhere(self, tmp_path, monkeypatch):
        monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    @pytest.mark.parametrize(
        ("name", "part", "file"), [("admm", "gisette", "gisette_scale"), ("dp-scd", "years", r"YearPredictionMSD\.txt")]
    )
    def test_is_an_error_that_names_the_file(self, name, part, file, tmp_path):
        with pytest.raises(MissingDataError, match=rf"found none of {file}.*SOTTOVOCE_DATA"):
            reproduce.run_paper(name, Setup(quick=True, folder=tmp_path), only=part)

    def test_other_parts_run_all_the_same(self, tmp_path, monkeypatch):
        parts = {"gisette": reproduce.paper("admm").parts["gisette"], "claims": admm.compare_admm_epsilons}
        monkeypatch.setattr(admm, "PAPER", reproduce.Paper(ABOUT | {"not_reproduced": ["the baseline"]}, parts))
        made = reproduce.run_paper("admm", Setup(quick=True, folder=tmp_path))
        assert [table.title for table in made.tables.values()] == ["What the messages tell"]
        assert made.not_reproduced[0] == "the baseline"
        assert "gisette is not at hand; `sottovoce reproduce admm --only gisette`" in made.not_reproduced[1]

    def test_nothing_at_all_is_an_error(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            admm, "PAPER", reproduce.Paper(ABOUT, {"gisette": reproduce.paper("admm").parts["gisette"]})
        )
        with pytest.raises(MissingDataError, match="gisette is not at hand"):
            reproduce.run_paper("admm", Setup(quick=True, folder=tmp_path))

    def test_any_other_error_is_not_taken_for_missing_data(self, monkeypatch):
        def broken(setup):
            raise InputError("a wrong option")

        monkeypatch.setattr(
            admm, "PAPER", reproduce.Paper(ABOUT, {"claims": admm.compare_admm_epsilons, "broken": broken})
        )
        with pytest.raises(InputError, match="a wrong option"):
            reproduce.run_paper("admm", QUICK)


class TestCommand:
    def test_help(self):
        assert "sottovoce reproduce admm" in CliRunner().invoke(app, ["reproduce", "--help"]).output

    def test_text_and_page(self, tmp_path, monkeypatch):
        pytest.importorskip("matplotlib")
        monkeypatch.setenv("COLUMNS", "200")
        result = CliRunner().invoke(app, ["reproduce", "sgd", "--quick", "--only", "noise", "--plot", str(tmp_path)])
        assert result.exit_code == 0, result.output
        for text in ("unpublished write-up", "SGD1 as printed", "215.9", "Not reproduced", "no experiment"):
            assert text in result.output
        assert (tmp_path / "sgd-noise.svg").read_text().startswith("<?xml")
        page = (tmp_path / "index.html").read_text()
        assert page.count("<svg") == 1
        assert "215.9" in page
        assert "A quick run" in page
        assert not re.search(r"(?:src|href)=.(?!#)", page.replace('xlink:href="#', ""))  # nothing from elsewhere

    def test_json(self):
        result = CliRunner().invoke(app, ["reproduce", "sgd", "--quick", "--only", "noise", "--json"])
        assert result.exit_code == 0, result.output
        (found,) = json.loads(result.stdout)["papers"]
        assert found["name"] == "sgd"
        assert found["tables"]["noise"]["rows"][0]["series"] == "all records, 50 rounds"

    def test_parts_of_all_papers_are_refused(self):
        result = CliRunner().invoke(app, ["reproduce", "all", "--figure", "1"])
        assert result.exit_code == 2
        assert "--figure='1'" in result.stderr

    def test_missing_data_and_wrong_names_are_bad_input(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        command = ["reproduce", "admm", "--only", "gisette", "--data", str(tmp_path)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert "gisette_scale" in result.stderr
        assert CliRunner().invoke(app, ["reproduce", "adam"]).exit_code == 2


@pytest.fixture
def small(monkeypatch):
    """A paper with a figure of two parts, a part beside it, and two claims."""
    line = [reproduce.Row("s", float(at), 0.5 if at == 49 else None, 1 / (1 + at), "", 0.01) for at in range(50)]
    dots = (reproduce.Row("", "a", 1.0, math.inf, ""), reproduce.Row("", "b", None, 2.0, ""))
    parts = {
        "lines": lambda _: PaperTable("lines", "loss", "epoch", tuple(line), log=True),
        "other": lambda _: PaperTable("lines", "loss", "epoch", tuple(line[:3])),
        "dots": lambda _: PaperTable("dots", "epsilon", "setting", dots, log=True),
    }
    claims = (Claim("Lemma 1", "a <b>", "holds", "1 < 2"), Claim("Lemma 2", "c", "false", "3 > 2"))
    paper = reproduce.Paper(ABOUT | {"figures": {"1": ["lines", "other"]}}, parts, (lambda _: claims,))
    monkeypatch.setattr(sgd, "PAPER", paper)
    return paper


def test_figures_and_claims(small, tmp_path):
    pytest.importorskip("matplotlib")
    made = reproduce.run_paper("sgd", QUICK)
    assert {name: len(tables) for name, tables in made.pictures.items()} == {"figure 1": 2, "dots": 1}
    write_pages(tmp_path / "new", [made], quick=False)
    page = (tmp_path / "new" / "index.html").read_text()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"index.html", "sgd-figure-1.svg", "sgd-dots.svg"}
    assert page.count("a &lt;b&gt;") == 1
    assert page.count("3 &gt; 2") == 2  # with the claims that do not hold, and with its paper
    assert "A quick run" not in page


def test_a_figure_alone(small):
    made = reproduce.run_paper("sgd", QUICK, figure="1")
    assert list(made.tables) == ["lines", "other"]
    assert made.claims == ()
    with pytest.raises(InputError, match="figure='2' is no figure of sgd; known are: 1"):
        reproduce.run_paper("sgd", QUICK, figure="2")


def test_a_long_curve_is_told_by_some_of_its_points(small):
    heads, rows = small.parts["lines"](QUICK).cells(6)
    assert heads == ("of", "epoch", "published", "ours", "settings")
    assert [row[1] for row in rows] == ["0", "10", "20", "29", "39", "49"]
    assert rows[-1][2:4] == ("0.5", "0.02 ± 0.01")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (math.inf, "infinite"), (0.3251, "0.3251"), (806_400.0, "806,400"), (2.4e-3, "0.0024")],
)
def test_numbers_as_cells(value, text):
    assert reproduce.format_number(value) == text
