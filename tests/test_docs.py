"""Every Python example of the documentation runs as written; links and job files hold."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sottovoce.jobs import load_job, load_party_job

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
PROOFS = sorted((ROOT / "src" / "sottovoce").glob("*/proofs/*.md"))

# A page whose examples share names runs as one program, in its own folder. README's stand alone.
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(line, code) of every fenced block of that language."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(2)].count("\n"), m[2]) for m in _FENCE.finditer(text) if m[1] == language]


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


PROGRAMS = [
    pytest.param(page, group, id=f"{relative(page)}:{group[0][0] + 1}")
    for page in PAGES
    for found in [blocks(page, "python")]
    for group in ([[block] for block in found] if page.name == "README.md" else [found] if found else [])
]


@pytest.mark.parametrize(("page", "program"), PROGRAMS)
def test_example_runs(
    page: Path, program: list[tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    for line, code in program:
        # Blank lines first, so that a traceback names the line of the page.
        exec(compile("\n" * line + code, str(page), "exec"), module.__dict__)


def test_readme_has_an_example_for_each_split() -> None:
    code = "".join(code for _, code in blocks(ROOT / "README.md", "python"))
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


def test_every_proof_is_in_the_index_and_its_links_hold() -> None:
    index = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
    assert PROOFS
    for proof in PROOFS:
        assert f"]({proof.relative_to(ROOT / 'src' / 'sottovoce').as_posix()})" in index
        for target in _LINK.findall(proof.read_text(encoding="utf-8")):
            assert (proof.parent / target).exists(), f"{proof.name} links to {target}"


TABLES = [
    pytest.param(code, id=f"{relative(page)}:{line + 1}") for page in PAGES for line, code in blocks(page, "toml")
]


@pytest.mark.parametrize("code", TABLES)
def test_job_file_is_valid(code: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(code, encoding="utf-8")
    (load_party_job if "[party]" in code else load_job)(path)


def test_picture_is_well_formed_and_has_a_background_of_its_own() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "images" / "door.svg").getroot()
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    first = next(element for element in picture if element.tag.endswith("rect"))
    # Dark text on the page's own background would vanish in a dark theme.
    assert float(first.attrib["width"]) >= width - 4
    assert float(first.attrib["height"]) >= height - 4
