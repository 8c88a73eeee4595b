"""Drafts of jobs, from a schema and from what is public of a file: its header, and how many records it has."""

from __future__ import annotations

import math
import os
from pathlib import Path

from sottovoce.app.texts import render
from sottovoce.data.column_kinds import Number
from sottovoce.data.files import format_of, list_files
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError, did_you_mean


def draft_job(file: Path, schema_file: Path, output: Path | None, *, test: bool = False) -> tuple[str, str]:
    """The text of a job, or of one about test records, with paths from where it will be; and what is next."""
    schema, folder = Schema.from_toml(schema_file), Path() if output is None else output.parent
    shapes = [format_of(path).shape(path) for path in list_files(file)]
    records, names = sum(shape.records for shape in shapes), shapes[0].names
    if schema.label is None:
        raise InputError(f'{schema_file} names no label; add label = "COLUMN" to its table [schema].')
    if schema.label not in names:
        meant = did_you_mean(schema.label, names)
        raise InputError(
            f"{file} lacks {schema.label!r}, the label of {schema_file}{meant} It has: {', '.join(names)}."
        )
    ledger, delta = file.with_suffix(".ledger"), 10.0 ** min(-math.ceil(math.log10(max(records, 1))) - 1, -5)
    values = {
        "file": _path_from(folder, file),
        "ledger": _path_from(folder, ledger),
        "schema": _path_from(folder, schema_file),
        "records": records,
        "number": isinstance(schema.target, Number),
        "several": len(schema.classes or ()) > 2,
        "delta": delta,
    }
    name = output or ("test.toml" if test else "job.toml")
    then = f"`sottovoce evaluate MODEL.json {name}`" if test else f"`sottovoce plan {name}` and `sottovoce fit {name}`"
    if not ledger.exists():
        total = f"--epsilon {1 if test else 3} --delta {delta:g}"
        then = f"`sottovoce ledger create {ledger} --dataset {file.stem} {total}`, then {then}"
    return render(f"starting/{'test' if test else 'job'}.toml", **values), then


def _path_from(folder: Path, path: Path) -> str:
    """As a file in that folder names it."""
    return path.as_posix() if path.is_absolute() else Path(os.path.relpath(path, folder)).as_posix()
