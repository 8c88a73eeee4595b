"""What a release repeats in several files stands in one; what only a person knows is marked there, and nowhere else."""

from __future__ import annotations

import datetime
import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import sottovoce as sv

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MARKS = ("to-fill", "No address is known")
# What a person fills in, all of it in release/about.toml.
KEYS = {"repository", "documentation", "security_mail", "conduct_mail", "funding", "generative_ai", "feedstock"}
OF_AUTHORS = {"name", "mail", "affiliation", "account"}


def program() -> Any:
    spec = importlib.util.spec_from_file_location("fill", ROOT / "release" / "fill.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILL = program()
FACTS = {
    **dict.fromkeys(KEYS, "known"),
    "repository": "https://code.example/sottovoce",
    "documentation": "https://docs.example",
    "authors": [
        {"name": "A. One", "mail": "one@example.org", "orcid": "", "affiliation": "First place", "account": "one"},
        {"name": 'B. "Two"', "mail": "two@example.org", "orcid": "0", "affiliation": "Second place", "account": "two"},
    ],
}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def versions() -> dict[str, str]:
    patterns = {
        "CITATION.cff": r"^version: (\S+)$",
        "r/DESCRIPTION": r"^Version: (\S+)$",
        "recipe/recipe.yaml": r'^  version: "(\S+)"$',
        "CHANGELOG.md": r"^## \[(\d\S*)\]",
    }
    found = {name: re.findall(pattern, text(name), re.MULTILINE)[0] for name, pattern in patterns.items()}
    return {**found, "pyproject.toml": PROJECT["version"], "src/sottovoce/__init__.py": sv.__version__}


def test_all_files_have_one_version() -> None:
    assert len(set(versions().values())) == 1, versions()


def test_all_files_say_what_stands_in_one_place() -> None:
    assert list(FILL.differing(FILL.about())) == [], "run `python release/fill.py`"


def test_a_file_that_says_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(FILL.differing(FACTS)) == set(FILL.FILES) - {"src/sottovoce/__init__.py"}
    monkeypatch.setattr(FILL, "version", lambda: "7.8.9")
    found = FILL.differing(FILL.about())
    assert set(found) == {"CITATION.cff", "r/DESCRIPTION", "recipe/recipe.yaml", "src/sottovoce/__init__.py"}
    assert all("7.8.9" in each for each in found.values())


def test_what_nobody_knows_yet_is_marked_in_one_place() -> None:
    authors = {f"authors {number}: {key}" for number in range(1, 100) for key in OF_AUTHORS}
    assert set(FILL.missing(FILL.about())) <= KEYS | authors
    assert FILL.missing(FACTS) == []
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    for name in tracked or FILL.FILES:
        path = ROOT / name
        if path.suffix in {".py", ".png", ".svg", ".html"} or not path.is_file():
            continue
        if any(mark in path.read_text(encoding="utf-8", errors="replace") for mark in MARKS):
            assert name in FILL.FILES, f"{name} has a mark of its own; put it into release/about.toml"


def test_what_is_filled_in_reaches_every_file() -> None:
    written = FILL.differing(FACTS)
    for name, new in written.items():
        assert not any(mark in new for mark in MARKS), name
    project = tomllib.loads(written["pyproject.toml"])["project"]
    assert project["authors"][1] == {"name": 'B. "Two"', "email": "two@example.org"}
    assert project["urls"]["Issues"] == "https://code.example/sottovoce/issues"
    assert [each["name"] for each in yaml.safe_load(written["CITATION.cff"])["authors"]] == ["A. One", 'B. "Two"']
    assert yaml.safe_load(written["recipe/recipe.yaml"])["extra"]["recipe-maintainers"] == ["known"]
    head = yaml.safe_load(written["paper/paper.md"].split("---")[1])
    assert [each["affiliation"] for each in head["authors"]] == [1, 2]
    assert 'role = c("aut", "cre"), email = "one@example.org"' in written["r/DESCRIPTION"]
    assert "Write to known." in written["SECURITY.md"]


def test_the_changelog_has_an_empty_section_above_the_version() -> None:
    titles = re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    for title in titles[1:]:
        version, _, date = title.partition(" - ")
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\]", version)
        datetime.date.fromisoformat(date)


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load(text("recipe/recipe.yaml"))
    needed = {re.sub(r"(?=>=)", " ", line) for line in PROJECT["dependencies"]}
    assert set(recipe["requirements"]["run"][1:]) == needed
    assert recipe["context"]["python_min"] == PROJECT["requires-python"].removeprefix(">=")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_their_actions_and_take_no_more_than_they_need(path: Path) -> None:
    """An action is named by its commit, since a tag can be moved; what is written is granted by job."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8")):
        assert re.match(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    for job in workflow["jobs"].values():
        for command in (step.get("run", "") for step in job["steps"]):
            assert set(re.findall(r"\bmake ([\w-]+)", command)) <= targets
            for name in re.findall(r"\b(?:tests|release)/[\w/]+\.py|\.ci/\w+", command):
                assert (ROOT / name).exists(), f"{path.name} runs {name}"


def test_the_paper_has_the_sections_that_are_asked_for_and_its_references() -> None:
    body = text("paper/paper.md").split("---", 2)[2]
    sections = ["Summary", "Statement of need", "State of the field", "Software design", "Research impact statement"]
    sections += ["AI usage disclosure", "Acknowledgements", "References"]
    assert re.findall(r"^# (.*)$", body, re.MULTILINE) == sections
    assert 750 <= len(body.split()) <= 1750
    keys = re.findall(r"^@\w+\{(\w+),", text("paper/paper.bib"), re.MULTILINE)
    assert set(re.findall(r"@(\w+)", body)) == set(keys)
    assert len(set(keys)) == len(keys)
