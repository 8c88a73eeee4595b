"""How a job file is read: tables of declared keys, the environment before them, and errors in the keys' own words."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from sottovoce.app.settings import keys_of, read_environment, tables_in
from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import parse_file
from sottovoce.plan.sealing import COORDINATOR


def key(description: str, default: Any = None, **limits: Any) -> Any:
    """A key of a table that may be left out; an error tells its description as what is allowed."""
    return Field(default, description=description, **limits)


def needed(description: str, **limits: Any) -> Any:
    """A key that may not."""
    return Field(description=description, **limits)


class Table(BaseModel):
    """A table of a job file: its fields are the keys that it may have."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class File(Table):
    """A job file: where it stands, and paths relative to it."""

    _path: Path = PrivateAttr(Path("job.toml"))
    _used: tuple[str, ...] = PrivateAttr(())  # names of the environment that had a part in it

    @property
    def path(self) -> Path:
        return self._path

    @property
    def set_elsewhere(self) -> str:
        """Which keys the environment has set, in words; empty if it set none."""
        return f"set by the environment, before any file: {', '.join(self._used)}" if self._used else ""

    def resolve(self, path: str) -> Path:
        """A path of the job as seen from here."""
        return self.path.parent / Path(path).expanduser()

    def fault(self, text: str) -> InputError:
        """An error that names this file."""
        return InputError(f"{self.path}: {text}")

    def check(self) -> None:
        """Refuse what no key by itself can show."""

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse names of parties that are taken."""
        if len(set(names)) < len(names):
            raise self.fault(f"two parties share a name in {', '.join(names)}; give each its own.")
        if COORDINATOR in names:
            raise self.fault(f"{COORDINATOR!r} is no party's name: it is whoever asks; give the party another.")

    @classmethod
    def load(cls, path: Path, options: Mapping[str, Mapping[str, Any]] | None = None) -> Self:
        """The job of a TOML file, or of options instead; the environment goes before a file, and options before it."""
        tables = tables_of(path) if options is None else {name: dict(keys) for name, keys in options.items()}
        used = []
        for name, (table, key, value) in read_environment(cls, _kinds(File), os.environ).items():
            keys = tables.setdefault(table, {})
            if isinstance(keys, dict) and (options is None or key not in keys):
                keys[key] = value
                used.append(name)
        try:
            job = cls.model_validate(tables)
        except ValidationError as error:
            where = f"{path} (with {', '.join(used)} of the environment)" if used else str(path)
            raise InputError(f"{where}{_explain(cls, error)}") from None
        job._path, job._used = path, tuple(used)
        job.check()
        return job


def _kinds(base: type[File]) -> Iterator[type[File]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def tables_of(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    remedy = "give the path of a job file in TOML. Texts are in quotes, tables in [brackets]."
    tables: dict[str, Any] = parse_file(path, tomllib.loads, "TOML", remedy)
    if _has_nul(tables):
        raise InputError(f"{path} has a text with the character NUL, which no name or path has; take it out.")
    return tables


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, value)) or any(map(_has_nul, value.values()))
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


def _explain(kind: type[BaseModel], error: ValidationError) -> str:
    """One fault, to stand behind the name of a file; a mistyped key explains one that is missing, so it is first."""
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    place, table, keys = "", kind, [part for part in fault["loc"] if isinstance(part, str)]
    for depth, key in enumerate(keys):
        if fault["type"] == "extra_forbidden" and depth == len(keys) - 1:
            return f": {unknown_key(place, key, list(keys_of(table)))}"
        if key not in keys_of(table):
            break
        place = f"{place}.{key}" if place else key
        field = keys_of(table)[key]
        if not (inner := tables_in(field.annotation)):
            break
        table = inner[0]
    if fault["type"] == "missing":
        return f" lacks {place}: {field.description}."
    return f": {place} = {fault['input']!r} is not allowed: give {field.description}."


def unknown_key(table: str, key: str, allowed: Sequence[str], of: str = "") -> str:
    """What is said of a key that a table does not have, or of a table that a file does not have."""
    place, kind = (f"[{table}]{of} has", "key") if table else ("there is", "table")
    return f"{place} no {kind} {key!r}{did_you_mean(key, allowed)} Allowed are: {', '.join(allowed)}."
