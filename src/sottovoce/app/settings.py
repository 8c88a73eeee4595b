"""Settings by the environment: SOTTOVOCE_PARTY_LEDGER is the key `ledger` of the table [party] of any job file.

What the environment says goes before what a file says; options of the command line go before both. A value is written
as in TOML (`0.5`, `true`, `["north", "south"]`), a text without its quotes. Paths are relative to the job file. A name
that no file has is an error: a limit with a mistyped name would else be no limit. Commands say which keys it has set.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from sottovoce.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

PREFIX: Final = "SOTTOVOCE_"
JOB: Final = "SOTTOVOCE_JOB"  # the path of the job file itself
_SETTING: Final = re.compile(f"{PREFIX}[^_]+_.+")  # a table and a key; shorter names are of other uses
_OTHERS: Final = {"SOTTOVOCE_KEY_PASSPHRASE_FILE", "SOTTOVOCE_PEERS_PIP"}  # of private keys, and of benchmarks
_UNIONS: Final = (typing.Union, types.UnionType)


def read_environment(
    kind: type[BaseModel], kinds: Iterable[type[BaseModel]], environment: Mapping[str, str]
) -> dict[str, tuple[str, str, Any]]:
    """By the names in the environment that are keys of a kind of file: table, key and value.

    `kinds` are all kinds of files: what is a key of another one is left alone, what is a key of none is an error.
    """
    own, everywhere = _names(kind), {name for each in kinds for name in _names(each)}
    found = {}
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
            found[name] = (table, key, _value(environment[name], field))
    return found


def keys_of(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a table, as files have them."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def tables_in(annotation: Any, *, lists: bool = True) -> list[type[BaseModel]]:
    """The tables that a value of this type is, or with `lists` has."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = typing.get_args(annotation) if lists or typing.get_origin(annotation) in _UNIONS else ()
    return [table for each in inner for table in tables_in(each, lists=lists)]


def _names(kind: type[BaseModel]) -> dict[str, tuple[str, str, FieldInfo]]:
    """By name in the environment: the keys of the tables that a file has once."""
    return {
        f"{PREFIX}{table}_{key}".upper(): (table, key, own)
        for table, field in keys_of(kind).items()
        for inner in tables_in(field.annotation, lists=False)
        for key, own in keys_of(inner).items()
    }


def _value(text: str, field: FieldInfo) -> Any:
    """A text as it stands where nothing else is allowed, else as TOML has it."""
    if _is_text(field.annotation):
        return text
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def _is_text(annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _is_text(inner[0])
    return all(map(_is_text, inner)) if origin in _UNIONS else annotation in (str, type(None))
