"""Every Python example of the documentation runs as written; commands, job files and links hold.

A page runs as one program, in a folder of its own; the examples of README.md stand each alone. Two comments before a
fenced block say more: `<!-- file: NAME -->` puts the block into that file, `<!-- run -->` runs its commands too. They
find `patients.csv` and `new-patients.csv`.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shlex
import sys
import tomllib
import types
import unicodedata
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from sottovoce import algorithms
from sottovoce.app.cli import app
from sottovoce.app.jobs import load_evaluation_job, load_job, load_party_job, load_people_job
from sottovoce.lab import datasets
from sottovoce.lab.synthetic import FEATURE_NAMES, clinics
from sottovoce.solvers import SOLVERS

ROOT = Path(__file__).parent.parent
GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *GALLERY]
BESIDE = ("CHANGELOG", "CONTRIBUTING", "SECURITY", "SUPPORT", "GOVERNANCE", "CODE_OF_CONDUCT", "r/README")
TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in BESIDE)]
SOURCE = ROOT / "src" / "sottovoce"
MOST_WORDS = 43_750  # of docs/*.md together; a new page takes its words from others
PROOFS = sorted([*SOURCE.glob("*/proofs/*.md"), *SOURCE.glob("algorithms/*/proof.md")])

_BLOCK = re.compile(r"^( *)(?:<!-- (run|file: \S+) -->\n)?```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    """A fenced block: the line before its first, its language, its marker ("" for none) and its text."""

    line: int
    language: str
    marker: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = _BLOCK.finditer(text)
    return [Block(text[: m.start(4)].count("\n"), m[3], m[2] or "", dedent(m[4]) if m[1] else m[4]) for m in found]


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def programs(language: str) -> list[Any]:
    """The blocks of a language, by page; those of README.md one by one."""
    found = []
    for page in PAGES:
        those = [block for block in blocks(page) if block.language == language]
        groups = [[block] for block in those] if page.name == "README.md" else [those] if those else []
        found += [pytest.param(page, group, id=f"{relative(page)}:{group[0].line}") for group in groups]
    return found


@pytest.fixture(scope="module")
def adult(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with adult: the public data set where it is at hand, else cells drawn from its documentation."""
    shared = Path(os.environ.get(datasets.FOLDER_VARIABLE) or ROOT.parent / "shared" / "data")
    if (shared / "adult").is_dir():
        return shared
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (folder / "adult").mkdir()
    for part, rows in (("train", 32_561), ("test", 16_281)):
        numbers = {name: rng.integers(low, high, rows) for name, (low, high) in datasets.ADULT_NUMBERS.items()}
        missing = ("workclass", "occupation", "native-country")
        texts = {
            name: rng.choice([*known.split(), *[""] * (name in missing)], rows)
            for name, known in datasets.ADULT_CATEGORIES.items()
        }
        table = {**numbers, **texts, "income": rng.choice(["<=50K", ">50K"], rows)}
        with (folder / "adult" / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([table, *zip(*table.values(), strict=True)])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("page", "program"), programs("python"))
def test_examples_run(
    page: Path, program: list[Block], adult: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(adult))
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    for block in program * (2 if page.name == "quickstart.md" else 1):  # which people run again
        # Blank lines first, so that a traceback names the line of the page.
        exec(compile("\n" * block.line + block.text, str(page), "exec"), module.__dict__)
    if page in GALLERY:
        assert [path.name for path in tmp_path.glob("*.png")] == [f"{page.stem}.png"]


def commands(block: Block) -> list[list[str]]:
    """The arguments of every `$ sottovoce ...` of a block."""
    lines = [shlex.split(line[2:], comments=True) for line in block.text.splitlines() if line.startswith("$ ")]
    return [words[1:] for words in lines if words[0] == "sottovoce"]


@pytest.mark.parametrize(("page", "program"), programs("console"))
def test_commands_exist_with_these_options(page: Path, program: list[Block]) -> None:
    del page
    for arguments in (words for block in program for words in commands(block)):
        command: Any = get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("sottovoce", arguments)  # parses, and runs nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.marker == "run" for block in blocks(page))], ids=relative
)
def test_marked_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = [FEATURE_NAMES.index(name) for name in ("age", "systolic_pressure", "smoker")]
    for name, seed in (("patients.csv", 0), ("new-patients.csv", 1)):
        (clinic,) = clinics(parties=1, records=3_000, seed=seed)
        table = np.column_stack([clinic.X[:, chosen], clinic.y])
        np.savetxt(name, table, delimiter=",", header="age,systolic_pressure,smoker,readmitted", comments="")
    for block in blocks(page):
        if block.marker.startswith("file: "):
            Path(block.marker.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
    for arguments in (words for block in blocks(page) if block.marker == "run" for words in commands(block)):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"sottovoce {shlex.join(arguments)}: {result.output}"


def test_readme_has_an_example_for_each_split() -> None:
    code = "".join(block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    assert "fit(X, y)" in code
    assert "by_rows" in code
    assert "by_columns" in code


@pytest.mark.parametrize("page", TEXTS, ids=relative)
def test_links_between_files_hold(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        beside = page.parent / target
        shown = ROOT / "src" / "sottovoce" / target  # proofs are pages of the built documentation
        assert beside.exists() or (page.parent.name == "docs" and shown in PROOFS), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [*TEXTS, *PROOFS], ids=relative)
def test_paths_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_every_proof_is_in_the_index_and_its_links_hold() -> None:
    index = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
    assert PROOFS
    for proof in PROOFS:
        assert f"]({proof.relative_to(ROOT / 'src' / 'sottovoce').as_posix()})" in index
        for target in _LINK.findall(proof.read_text(encoding="utf-8")):
            assert (proof.parent / target).exists(), f"{proof.name} links to {target}"


PARTY_FILE = """[party]
name = "north"
file = "north.csv"
label = "out"
ledger = "north.ledger"
[federation]
coordinator = "localhost:7443"
certificates = "certs"
"""


def load_relay(path: Path) -> None:
    """The file of a FLARE site, which is read inside FLARE."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    assert set(tables) == {"relay"}
    assert {"listen", "certificates"} <= set(tables["relay"]) <= {"listen", "certificates", "timeout"}


@pytest.mark.parametrize(("page", "program"), programs("toml"))
def test_job_files_are_valid(page: Path, program: list[Block], tmp_path: Path) -> None:
    del page
    for block in program:
        path = tmp_path / "job.toml"
        fragment = block.text.startswith("[view]")  # of any file
        path.write_text((PARTY_FILE if fragment else "") + block.text, encoding="utf-8")
        kinds = {
            r"^\[relay\]": load_relay,
            r"^\[party\]": load_party_job,
            r"^\[view\]": load_party_job,
            r"^\[model\]": load_job,
            r"^\[privacy\]": load_evaluation_job,
            "": load_people_job,
        }
        next(load for table, load in kinds.items() if re.search(table, block.text, re.MULTILINE))(path)


def program(name: str) -> Any:
    """A program of the documentation: `tables` makes tables from the classes, `formulas` sets formulas."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_tables_are_those_of_the_classes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert program("tables").written(text) == text, "run `python docs/tables.py`"


def test_every_table_is_on_a_page_and_has_every_solver_and_parameter() -> None:
    made = program("tables")
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"<!-- (?:table|insert): ([\w ]+) -->", pages)) == set(made.TABLES)
    for name in algorithms.SOLVERS:
        assert f"| `{name}` | " in made.solvers()
        (section,) = re.findall(rf"^### `\w+`: {name}\n(.*?)(?=^###|\Z)", made.options(), re.MULTILINE | re.DOTALL)
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(SOLVERS[name].names())
    assert "0.0001 for `PrivateLasso` and `PrivateElasticNet`" in made.parameters()


def test_a_table_that_is_older_than_the_code_is_found() -> None:
    made = program("tables")
    page = (ROOT / "docs" / "solvers.md").read_text(encoding="utf-8")
    stale = page.replace("| `CD` |", "| |")
    assert stale != page
    assert made.written(stale) == page


def formulas(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8") + "\n", flags=re.MULTILINE | re.DOTALL)
    return [dedent(found).rstrip() for found in re.findall(r"(?<=\n\n)(?:    .*\n)+", text)]


def signs(text: str) -> str:
    """What a reader sees of a formula, but for spaces, brackets and how a sign is drawn."""
    text = unicodedata.normalize("NFKC", re.sub(r"[\s_^{}()√`]", "", text)).replace("<=", "≤").replace("||", "‖")
    return text.translate({ord("Σ"): "∑", ord("-"): "\u2212", ord("'"): "\u2032"})


def test_formulas_are_set_and_lose_nothing() -> None:
    made = program("formulas").formula
    every = [formula for page in [*PAGES, *PROOFS] for formula in formulas(page)]
    assert len(every) > 50
    for formula in every:
        seen = "".join(ElementTree.fromstring(made(formula)).itertext())
        assert sorted(signs(seen)) == sorted(signs(formula))  # an index stands before a power
    assert "<msub><mi>Δ</mi><mrow><mi>g</mi></mrow></msub>" in made("Δ_g / std")
    assert "<msqrt><mn>1</mn>" in made("√(1 + x)")
    assert "<msup><mn>2</mn><mrow><mrow><mo" in made("[2^k, 2^(k + 1))")
    with pytest.raises(ValueError, match="lacks"):
        made("√(1 + x")


def test_the_gallery_shows_every_example_with_its_picture() -> None:
    index = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
    examples = [page for page in GALLERY if page.name != "index.md"]
    assert len(examples) >= 6
    for page in examples:
        assert page.with_suffix(".png").exists(), "run `make gallery`"
        assert f"[![]({page.stem}.png)]({page.name})" in index
        assert f"]({page.stem}.png)" in page.read_text(encoding="utf-8")


def test_pages_are_short_enough_to_be_read() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").glob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda item: -item[1])[:5]


def test_picture_is_well_formed_and_has_a_background_of_its_own() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "images" / "gate.svg").getroot()
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    first = next(element for element in picture if element.tag.endswith("rect"))
    # Dark text on the page's own background would vanish in a dark theme.
    assert float(first.attrib["width"]) >= width - 4
    assert float(first.attrib["height"]) >= height - 4
