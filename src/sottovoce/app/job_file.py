"""How a job file is read: tables of declared keys, the environment before them, and errors in the keys' own words.

SOTTOVOCE_PARTY_LEDGER is the key `ledger` of the table [party] of any job file. What the environment says goes before
what a file says; options of the command line go before both. A value is written as in TOML (`0.5`, `true`,
`["north", "south"]`), a text without its quotes. Paths are relative to the job file. A name that no file has is an
error: a limit with a mistyped name would else be no limit. Commands say which keys it has set.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo

from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import parse_file
from sottovoce.plan.aggregation import COORDINATOR

PREFIX: Final = "SOTTOVOCE_"
_SETTING: Final = re.compile(f"{PREFIX}[^_]+_.+")  # a table and a key; shorter names have other uses
_OTHERS: Final = {"SOTTOVOCE_KEY_PASSPHRASE_FILE", "SOTTOVOCE_PEERS_PIP"}  # of private keys, and of benchmarks
_UNIONS: Final = (typing.Union, types.UnionType)


def key(description: str, default: Any = None, **limits: Any) -> Any:
    """A key of a table that may be left out; an error shows its description as what is allowed."""
    return Field(default, description=description, **limits)


def needed(description: str, **limits: Any) -> Any:
    """A key that may not."""
    return Field(description=description, **limits)


class JobTable(BaseModel):
    """A table of a job file: its fields are the keys that it may have."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JobFile(JobTable):
    """A job file: its path, and paths relative to it."""

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
        return self.path.parent / Path(path).expanduser()

    def fault(self, text: str) -> InputError:
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
        for name, (table, key, value) in read_environment(cls, _kinds(JobFile), os.environ).items():
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


def _kinds(base: type[JobFile]) -> Iterator[type[JobFile]]:
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
    """One fault, to follow the name of a file; a mistyped key explains one that is missing, so it is first."""
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
    """The error for a key that a table does not have, or a table that a file does not have."""
    place, kind = (f"[{table}]{of} has", "key") if table else ("there is", "table")
    return f"{place} no {kind} {key!r}{did_you_mean(key, allowed)} Allowed are: {', '.join(allowed)}."


def read_environment(
    kind: type[BaseModel], kinds: Iterable[type[BaseModel]], environment: Mapping[str, str]
) -> dict[str, tuple[str, str, Any]]:
    """By the names in the environment that are keys of a kind of file: table, key and value.

    `kinds` are all kinds of files: what is a key of another one is left alone, what is a key of none is an error.
    """
    own, everywhere = _environment_names(kind), {name for each in kinds for name in _environment_names(each)}
    values = {}
    for name in sorted(environment):
        if not _SETTING.fullmatch(name) or name in _OTHERS:
            continue
        if name not in everywhere:
            raise InputError(
                f"{name} in the environment is no key of a job file{did_you_mean(name, sorted(everywhere))} Unset it, "
                f"or name it {PREFIX}TABLE_KEY."
            )
        if name in own:
            table, key, field = own[name]
            values[name] = (table, key, _parse_value(environment[name], field.annotation))
    return values


def keys_of(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a table, as files have them."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def tables_in(annotation: Any, *, lists: bool = True) -> list[type[BaseModel]]:
    """The tables that a value of this type is, or with `lists` has."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = typing.get_args(annotation) if lists or typing.get_origin(annotation) in _UNIONS else ()
    return [table for each in inner for table in tables_in(each, lists=lists)]


def _environment_names(kind: type[BaseModel]) -> dict[str, tuple[str, str, FieldInfo]]:
    """By name in the environment: the keys of the tables that a file has once."""
    return {
        f"{PREFIX}{table}_{key}".upper(): (table, key, own)
        for table, field in keys_of(kind).items()
        for inner in tables_in(field.annotation, lists=False)
        for key, own in keys_of(inner).items()
    }


def _parse_value(text: str, annotation: Any) -> Any:
    """A text as it is where nothing else is allowed, else parsed as TOML."""
    if _takes_text_alone(annotation):
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _takes_text_alone(annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _takes_text_alone(inner[0])
    return all(map(_takes_text_alone, inner)) if origin in _UNIONS else annotation in (str, type(None))
