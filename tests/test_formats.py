"""Formats change with their numbers; files of each version are read, and those of another number refused by both."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recorded_shapes as shapes
from sottovoce import __version__
from sottovoce.data import column_kinds, schema
from sottovoce.errors import SottovoceError
from sottovoce.estimators import model_file
from sottovoce.federation import alignment, journal, models
from sottovoce.gate import frames
from sottovoce.plan import plan
from sottovoce.privacy import ledger_file
from sottovoce.privacy.ledger import Ledger

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"
VERSIONS = (*shapes.RELEASED, __version__)


@pytest.fixture(params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Files of a version, as it wrote them."""
    return Path(shutil.copytree(shapes.FOLDER / request.param, tmp_path / request.param))


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The shapes of what is written now."""
    shapes.write(folder := tmp_path_factory.mktemp("formats") / "now")
    return shapes.shapes(folder)


def ledger_of(folder: Path) -> list[Any]:
    return [entry for account in Ledger(folder / "budget.ledger").accounts() for entry in account.history()]


def journal_of(folder: Path) -> list[Any]:
    found = journal.Journal(folder / "job.run")
    found.close()
    return found.plans


# By format: how a file of it is read, and the module that looks at its number.
READERS: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "FRAME": (lambda folder: frames.decode((folder / "frame.bin").read_bytes()), frames),
    "PLAN": (lambda folder: plan.Plan.from_json((folder / "plan.json").read_text()), plan),
    "LEDGER": (ledger_of, ledger_file),
    "JOURNAL": (journal_of, journal),
    "MODEL": (lambda folder: model_file.load_model(folder / "model.json"), model_file),
    "PARTIAL_MODEL": (lambda folder: models._read_model(folder / "models" / "partial.json"), models),
    "SCHEMA": (lambda folder: schema.Schema.from_toml(folder / "schema.toml"), schema),
    "ALIGNMENT": (lambda folder: alignment.AlignmentFile(folder / "alignment.json").kept, alignment),
}


def test_every_format_is_read_here_and_recorded() -> None:
    assert set(READERS) == set(shapes.FORMATS) == set(shapes.record())


@pytest.mark.parametrize("name", READERS)
def test_files_of_each_version_are_read(written: Path, name: str) -> None:
    assert READERS[name][0](written)


def test_no_format_changed_without_its_number(now: Any) -> None:
    assert not shapes.faults(shapes.record(), now, shapes.numbers())


@pytest.mark.parametrize("name", READERS)
def test_a_shape_that_changed_under_its_number_is_found(now: Any, name: str) -> None:
    """Planted faults: one more key in each of them."""
    changed = copy.deepcopy(now)
    changed[name]["another"] = 1
    (fault,) = shapes.faults(shapes.record(), changed, shapes.numbers())
    assert fault.startswith(f"{name} changed under the number")
    higher = shapes.numbers() | {name: shapes.numbers()[name] + 1}
    assert "run `python tests/recorded_shapes.py`" in shapes.faults(shapes.record(), changed, higher)[0]


@pytest.mark.parametrize(
    ("name", "module", "what", "value"),
    [
        ("FRAME", frames, "KINDS", (*frames.KINDS, "another")),
        ("SCHEMA", column_kinds.Number, "keys", (*column_kinds.Number.keys, "another")),
        ("LEDGER", ledger_file, "_SCHEMA", ledger_file._SCHEMA.replace("query TEXT", "query BLOB")),
    ],
)
def test_a_change_of_the_code_is_a_change_of_the_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: Any, what: str, value: Any
) -> None:
    """Planted faults, in what declares a format."""
    shapes.write(tmp_path / "now")
    monkeypatch.setattr(module, what, value)
    faults = shapes.faults(shapes.record(), shapes.shapes(tmp_path / "now"), shapes.numbers())
    assert [fault.partition(" ")[0] for fault in faults] == [name]


@pytest.mark.parametrize("name", READERS)
def test_another_number_is_refused_by_both(written: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    read, module = READERS[name]
    known = shapes.FORMATS[name]
    later = known._replace(number=known.number + 7)
    monkeypatch.setattr(module, name, later)
    if name == "JOURNAL":
        monkeypatch.setattr(module, "_MAGIC", b"sottovoce run %d\n" % later.number)
    both = rf"has format {known.number}, and this version of sottovoce reads {known.what} of format {later.number}\. "
    with pytest.raises(SottovoceError, match=both + re.escape(known.remedy.removesuffix("."))):
        read(written)


def test_the_page_has_the_numbers_and_remedies() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = {
        cells[1].strip(): cells for line in text.splitlines() if (cells := line.split("|"))[0] == "" and len(cells) > 5
    }
    for each in shapes.FORMATS.values():
        cells = rows[each.what]
        assert cells[3].strip() == str(each.number), each.what
        assert each.remedy in cells[4], each.what
