"""What each format looks like: its shape, recorded with its number, and files that a version of sottovoce wrote.

`python tests/recorded_shapes.py` records the shapes of today in tests/formats/shapes.json and writes files of today to
tests/formats/VERSION. A shape that changed under the same number is refused: change the number in `sottovoce.formats`
first. Files of a version that was released are never written anew.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import sottovoce as sv
from sottovoce import __version__, algorithms, formats
from sottovoce.data import column_kinds, schema
from sottovoce.estimators import model_file
from sottovoce.federation import journal, models
from sottovoce.federation.alignment import AlignmentFile
from sottovoce.formats import Numbered
from sottovoce.gate import frames
from sottovoce.plan.plan import FAMILIES, OTHERS, Plan
from sottovoce.privacy import ledger_file
from sottovoce.privacy.ledger import Ledger

FOLDER = Path(__file__).parent / "formats"
SHAPES = FOLDER / "shapes.json"
RELEASED: tuple[str, ...] = ()  # versions whose files are kept as they are
FORMATS = {name: each for name, each in vars(formats).items() if isinstance(each, Numbered)}
_KEPT = ("type", "$ref", "anyOf", "items", "prefixItems", "properties", "enum", "const", "additionalProperties")


# ----- Files -----


def write(folder: Path) -> None:
    """A file of each format, as this version writes it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (200, 2))
    y = (x[:, 0] > 0).astype(int)
    ledger = Ledger.create(folder / "budget.ledger")
    account = ledger.open("people", epsilon=2.0, delta=1e-5)
    declared = schema.Schema(
        {
            "age": {"range": [18, 99]},
            "stage": {"levels": ["i", "ii"]},
            "smoker": {"yes": 1, "no": 0},
            "out": {"yes": 1, "no": 0},
        },
        label="out",
        identifiers=["id"],
    )
    declared.to_toml(folder / "schema.toml")
    with mock.patch("socket.gethostname", return_value="here"):  # a run says where it is
        fitted = _fitted(folder, account, x, y)
    fitted.save(folder / "model.json")
    plan = fitted.plan_
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    part = models.PartialModel(plan, plan.names[0], np.array([0.5, -0.25]), 0.125, ("age", "dose"))
    kept = models.Models(folder / "models", plan.names[0])
    kept.keep(plan.digest, part)
    kept._path(folder / "models", plan.digest).rename(folder / "models" / "partial.json")
    AlignmentFile(folder / "alignment.json").keep(["north", "south"], b"\1" * 32, np.array([2, 0, 1]), "fingerprint")
    arrays = {"w": np.array([0.5, -1.0]), "n": np.array([[1, 2]])}
    (folder / "frame.bin").write_bytes(frames.encode(frames.Frame("ask", 9, b"p" * 32, 3, "gradient", arrays, "text")))


def _fitted(folder: Path, account: Any, x: Any, y: Any) -> Any:
    federation = sv.Federation.central(x, y, ledger=account, journal=folder / "job.run")
    return sv.PrivateLogisticRegression(
        epsilon=1.0, delta=1e-6, entry_bound=1.0, classes=(0, 1), solver=sv.solvers.Gradient(rounds=2)
    ).fit(federation)


# ----- Shapes -----


def shapes(folder: Path) -> dict[str, Any]:
    """The shape of each format: what is declared, and what the files of a folder have."""
    forms = [form for name in (*FAMILIES, *OTHERS) for form in algorithms.forms(name)]
    plan = {"plan": formats.PLAN.number}
    return {
        "FRAME": {
            "header": frames._HEADER.format,
            "array": frames._ARRAY.format,
            "kinds": list(frames.KINDS),
            "types": [kind.str for kind in frames._TYPES],
        },
        "PLAN": {
            "fields": reduced(Plan.model_json_schema()),
            "numbers": {f"{form.name}/{form.form}": sorted(form.numbers.model_fields) for form in forms},
        },
        "LEDGER": {
            "tables": " ".join(re.sub("user_version = .*", "", ledger_file._SCHEMA).split()),
            **_entries(folder),
        },
        "JOURNAL": {
            **plan,
            "head": journal._HEAD.format,
            "stored": [each.name for each in fields(journal.Stored)],
            "entries": _journal(folder / "job.run"),
        },
        "MODEL": {**plan, "schema": formats.SCHEMA.number, "keys": _model_keys()},
        "PARTIAL_MODEL": {**plan, "keys": sorted(json.loads((folder / "models/partial.json").read_text()))},
        "SCHEMA": {
            "keys": sorted(schema.Schema.from_toml(folder / "schema.toml").table()),
            "columns": {kind.__name__: list(kind.keys) for kind in column_kinds.KINDS},
        },
        "ALIGNMENT": shape(json.loads((folder / "alignment.json").read_text())),
    }


def shape(value: Any) -> Any:
    """Of a value of JSON: its keys and the types of what they have."""
    if isinstance(value, Mapping):
        return {key: shape(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def reduced(declared: Any) -> Any:
    """A JSON schema without titles, texts, defaults and limits."""
    if isinstance(declared, list):
        return [reduced(each) for each in declared]
    if not isinstance(declared, Mapping):
        return declared
    found = {key: reduced(value) for key, value in declared.items() if key in _KEPT}
    if isinstance(declared.get("properties"), Mapping):
        found["properties"] = {key: reduced(value) for key, value in sorted(declared["properties"].items())}
    if "$defs" in declared:
        found["$defs"] = {key: reduced(value) for key, value in sorted(declared["$defs"].items())}
    return found


def _model_keys() -> Any:
    found = reduced(model_file.ModelFile.model_json_schema())
    return found["properties"]  # the plan has a number of its own


def _entries(folder: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(folder / "budget.ledger")) as file:
        rows = file.execute("SELECT kind, details FROM entries ORDER BY number").fetchall()
    return {kind: shape(json.loads(details or "null")) for kind, details in rows}


def _journal(path: Path) -> dict[str, Any]:
    data, found, start = path.read_bytes(), {}, path.read_bytes().index(b"\n") + 1
    while start < len(data):
        length, *_ = journal._HEAD.unpack_from(data, start)
        start += journal._HEAD.size
        entry = journal._unpack_entry(data[start : start + length])
        found[entry.kind] = {"said": sorted(entry.said), "arrays": sorted(entry.arrays)}
        start += length
    return found


# ----- The record -----


def faults(recorded: Mapping[str, Any], now: Mapping[str, Any], numbers: Mapping[str, int]) -> list[str]:
    """What is wrong with the numbers: a shape that changed under one, or a number that was never recorded."""
    found = [f"{name} has no record" for name in now if name not in recorded]
    for name, known in recorded.items():
        if known["number"] == numbers[name] and known["shape"] != now[name]:
            found.append(f"{name} changed under the number {numbers[name]}: change that in sottovoce.formats")
        if known["number"] != numbers[name]:
            found.append(f"{name} has another number than recorded: run `python tests/recorded_shapes.py`")
    return found


def numbers() -> dict[str, int]:
    return {name: each.number for name, each in FORMATS.items()}


def record() -> dict[str, Any]:
    return json.loads(SHAPES.read_text(encoding="utf-8")) if SHAPES.exists() else {}


if __name__ == "__main__":
    if __version__ not in RELEASED:
        write(FOLDER / __version__)
    now = shapes(FOLDER / __version__)
    if changed := [fault for fault in faults(record(), now, numbers()) if "changed under" in fault]:
        sys.exit("\n".join(changed))
    written = {name: {"number": number, "shape": now[name]} for name, number in numbers().items()}
    SHAPES.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", encoding="utf-8")
