"""Settings by the environment: SOTTOVOCE_PARTY_LEDGER is the key `ledger` of the table [party] of any job file.

What the environment says goes before what a file says; options of the command line go before both. A value is written
as in TOML (`0.5`, `true`, `["north", "south"]`), a text without its quotes. Paths are relative to the job file. A name
that no file has is an error: a limit with a mistyped name would else be no limit. Commands say which keys it has set.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sottovoce.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

PREFIX: Final = "SOTTOVOCE_"
JOB: Final = "SOTTOVOCE_JOB"  # the path of the job file itself
_SETTING: Final = re.compile(f"{PREFIX}[^_]+_.+")  # a table and a key; shorter names are of other uses
_OTHERS: Final = {"SOTTOVOCE_KEY_PASSPHRASE_FILE", "SOTTOVOCE_PEERS_PIP"}  # of private keys, and of benchmarks


class _Key(NamedTuple):
    table: str
    key: str
    field: FieldInfo


def overlaid(
    tables: Mapping[str, Any], kind: type[BaseModel], kinds: Iterable[type[BaseModel]], environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The tables of a file of a kind with the keys that the environment sets, and the names that did.

    `kinds` are all kinds of files: what is a key of another one is left alone, what is a key of none is an error.
    """
    own, everywhere = _keys(kind), {name for each in kinds for name in _keys(each)}
    made, used = dict(tables), []
    for name in sorted(environment):
        if not _SETTING.fullmatch(name) or name in _OTHERS:
            continue
        if name not in everywhere:
            raise InputError(
                f"{name} in the environment is no key of a job file{did_you_mean(name, sorted(everywhere))} Unset it, "
                f"or name it {PREFIX}TABLE_KEY."
            )
        if name in own and isinstance(made.get(own[name].table, {}), Mapping):
            table, key, field = own[name]
            made[table] = {**made.get(table, {}), key: _value(environment[name], field)}
            used.append(name)
    return made, used


def _keys(kind: type[BaseModel]) -> dict[str, _Key]:
    """By name in the environment: the keys of the tables of a file that has each of them once."""
    from pydantic import BaseModel

    found = {}
    for table, field in keys_of(kind).items():
        inner = [each for each in _direct(field.annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
        for key, own in keys_of(inner[0]).items() if inner else ():
            found[name_of(table, key)] = _Key(table, key, own)
    return found


def name_of(table: str, key: str) -> str:
    """The name in the environment of a key of a table."""
    return f"{PREFIX}{table}_{key}".upper()


def _direct(annotation: Any) -> tuple[Any, ...]:
    """A type, or those of which a value is one; not what a list is made of."""
    several = typing.get_origin(annotation) not in (tuple, list, dict)
    return (annotation, *(typing.get_args(annotation) if several else ()))


def _value(text: str, field: FieldInfo) -> Any:
    """A text as it stands where nothing else is allowed, else as TOML has it."""
    if set(_direct(field.annotation)) <= {str, str | None, type(None)}:
        return text
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def keys_of(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a table, as files have them."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def types_of(annotation: Any) -> Iterable[Any]:
    """A type and those that it is made of."""
    yield annotation
    for part in typing.get_args(annotation):
        yield from types_of(part)
