"""What CI installs has upper bounds, so that a new version of something else breaks nothing by itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import constraints
from constraints import bounds, installed, plain

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ELSEWHERE = {"nvflare", "gpu"}  # extras with an environment of their own


def wanted() -> set[str]:
    extras = (each for name, each in PROJECT["optional-dependencies"].items() if name not in ELSEWHERE)
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return {plain(re.split(r"[^A-Za-z0-9_.-]", line)[0]) for line in lines} - {"sottovoce"}


def unbounded() -> set[str]:
    return wanted() - set(bounds())


def test_all_that_is_wanted_has_an_upper_bound() -> None:
    assert len(wanted()) > 20
    assert not unbounded(), "run `python tests/constraints.py`"


def test_what_is_installed_is_below_its_bound() -> None:
    known = bounds()
    above = [
        f"{name} {version}"
        for name, version in installed().items()
        if name in known and _numbers(version) >= _numbers(known[name])
    ]
    assert not above


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def test_make_installs_within_the_bounds() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line for line in makefile.splitlines() if "pip install" in line and "nvflare" not in line]
    assert len(lines) == 2
    for line in lines:
        assert "--constraint constraints.txt" in line, line
    assert len(re.findall(r"^\$\((?:RUN|DEV)\):.* constraints\.txt$", makefile, re.MULTILINE)) == 2


def test_the_file_names_no_place_and_nothing_else_than_bounds() -> None:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]:
        assert re.fullmatch(r"[a-z0-9-]+<[0-9.]+", line), line


def test_a_bound_that_is_missing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault."""
    file = tmp_path / "constraints.txt"
    file.write_text(re.sub(r"^grpcio<.*\n", "", constraints.FILE.read_text(), flags=re.MULTILINE))
    monkeypatch.setattr(constraints, "FILE", file)
    assert unbounded() == {"grpcio"}
