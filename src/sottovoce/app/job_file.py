"""How a job file is read: its tables of declared keys, the environment before them, errors in the keys' own words.

SOTTOVOCE_PARTY_LEDGER is the key `ledger` of the table [party] of any job file. What the environment says goes before
what a file says; options of the command line go before both. A value is written as in TOML (`0.5`, `true`,
`["north", "south"]`), a text without its quotes. Paths are relative to the job file. A name that no file has is an
error: a limit with a mistyped name would else be no limit. Commands say which keys it has set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictFloat, ValidationError
from pydantic.fields import FieldInfo

from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import MOST_FEATURES, parse_file
from sottovoce.formats import ESTIMATORS
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.events import SMALLEST_DELTA, Relation

if TYPE_CHECKING:
    from sottovoce.data.bounds import Bounds
    from sottovoce.data.schema import Schema
    from sottovoce.estimators import PrivateLinearModel
    from sottovoce.solvers import Options

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

    @property
    def known_schema(self) -> Schema | None:
        table: SchemaTable | None = getattr(self, "schema_table", None)
        return None if table is None else table.make_schema(self)

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
        kinds: list[type[JobFile]] = [JobFile]
        for kind in kinds:  # also those of kinds, which are added meanwhile
            kinds += kind.__subclasses__()
        for name, (table, key, value) in read_environment(cls, kinds, os.environ).items():
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
    settings = sorted(set(filter(_SETTING.fullmatch, environment)) - _OTHERS)
    if not settings:
        return {}
    own, everywhere = _environment_names(kind), set[str]().union(*map(_environment_names, kinds))
    values = {}
    for name in settings:
        if name not in everywhere:
            raise InputError(
                f"{name} in the environment is no key of a job file{did_you_mean(name, sorted(everywhere))} Unset it, "
                f"or name it {PREFIX}TABLE_KEY."
            )
        if name in own:
            table, key, field = own[name]
            value: Any = environment[name]
            if not _takes_text_alone(field.annotation):  # else it is a text as it is
                with contextlib.suppress(ValueError, RecursionError):
                    parsed = tomllib.loads(f"value = {value}")
                    value = parsed["value"] if len(parsed) == 1 else value
            values[name] = (table, key, value)
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


def _takes_text_alone(annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _takes_text_alone(inner[0])
    return all(map(_takes_text_alone, inner)) if origin in _UNIONS else annotation in (str, type(None))


Range = tuple[float, float]
Names = tuple[str, ...]
Text = Annotated[str, Field(min_length=1)]
Address = Annotated[str, Field(min_length=3)]
Flag = Annotated[bool, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Finite = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
Whole = Annotated[int, Field(strict=True, ge=0)]


UNSAID: Final = {"purpose": "say what the model is for", "analyst": "say who runs it"}  # in [about] of a draft


def check_said(path: Path, about: Mapping[str, str]) -> None:
    """Refuse texts that a draft has in the place of what a person has to say: every ledger would keep them."""
    for name, text in about.items():
        if text == UNSAID.get(name) or text.startswith(("FILL", "TODO")) or not text.strip(". \u2026"):
            raise InputError(
                f"{path}: about.{name} = {text!r} is the text of a draft, and all parties would sign it and every "
                "ledger keep it; say it in your words, or leave it out. Nothing was charged."
            )


class ModelTable(JobTable, extra="allow"):
    """Which estimator; every further key is a parameter of its problem."""

    estimator: Literal["logistic", "ridge", "lasso", "elastic-net", "svm", "ordinal", "poisson", "gamma", "cox"] = (
        needed("one of logistic, ridge, lasso, elastic-net, svm, ordinal, poisson, gamma, cox")
    )

    @property
    def kind(self) -> type[PrivateLinearModel]:
        from sottovoce import estimators

        return typing.cast("type[PrivateLinearModel]", getattr(estimators, ESTIMATORS[self.estimator]))

    @property
    def fields(self) -> dict[str, dataclasses.Field[Any]]:
        fields = dataclasses.fields(self.kind)
        return dict(zip(map(operator.attrgetter("name"), fields), fields, strict=True))


class SolverTable(JobTable, extra="allow"):
    """Which solver; every further key is one of its options."""

    name: str = needed('the name of a solver, as `sottovoce solvers` lists them, or "auto"')

    def make_solver(self, job: JobFile) -> str | Options:
        from sottovoce.solvers import SOLVERS, by_name
        from sottovoce.solvers.names import meant_solver

        options = dict(self.model_extra or {})
        if self.name == "auto":
            for name, value in options.items():
                raise job.fault(f"solver.{name} = {value!r}: name = 'auto' takes no options; name the solver you mean.")
            return self.name
        if self.name not in SOLVERS:
            raise job.fault(
                f"solver.name = {self.name!r} is unknown{meant_solver(self.name, SOLVERS)} "
                f"Allowed are: auto, {', '.join(SOLVERS)}."
            )
        allowed = SOLVERS[self.name].names()
        for name in options:
            if name not in allowed:
                raise job.fault(unknown_key("solver", name, ["name", *allowed], f" of name = {self.name!r}"))
        if isinstance(prior := options.get("prior"), str):
            options["prior"] = str(job.resolve(prior))
        try:
            return by_name(self.name, **options) if options else self.name
        except InputError as error:
            raise job.fault(f"solver.{error}") from None


class PrivacyTable(JobTable):
    """The budget of the fit."""

    epsilon: Positive = needed("a number above 0; 1 is usual, a smaller one promises more, inf switches privacy off")
    delta: float = key("a number between 0 and 1, well below 1 / records", 1e-5, strict=True, ge=SMALLEST_DELTA, lt=1)
    relation: Relation = key('"zero-out" (a record is blanked) or "replace-one" (it becomes any other)', "zero-out")


class BoundsTable(JobTable):
    """Declared bounds: public, chosen from what is known of the quantities, never from the data."""

    row_norm: Finite | None = key("the largest Euclidean norm of a row, above 0")
    entry_bound: StrictFloat | list[StrictFloat] | None = key(
        "the largest absolute entry, above 0: one number, or a list with one for each feature"
    )
    label_bound: float | Range | Literal["private"] | None = key(
        'the range of the label as [low, high], or b for [-b, b], or "private": estimated with part of the budget'
    )
    feature_ranges: dict[str, list[float]] | Literal["private"] | None = key(
        "a range for each feature by its name, { age = [18, 99], ... }, "
        'or { low = [...], high = [...] } in the order of the columns, or "private": estimated with part of the budget'
    )
    classes: Annotated[tuple[Any, ...], Field(min_length=2)] | None = key(
        'the labels, of two the negative first, for example ["no", "yes"] or [0, 1]'
    )
    rescale: Literal["symmetric", "unit"] = key('"symmetric" (ranges become [-1, 1]) or "unit" ([0, 1])', "symmetric")

    @property
    def ranges(self) -> Mapping[str, list[float]] | tuple[list[float], list[float]] | str | None:
        """As an estimator takes them: by name, (lows, highs) in the order of the columns, or "private"."""
        ranges = self.feature_ranges
        return (ranges["low"], ranges["high"]) if isinstance(ranges, dict) and {*ranges} == {"low", "high"} else ranges

    def declare(self, names: Sequence[str]) -> Bounds:
        """The bounds as plans carry them, for features of these names."""
        from sottovoce.data.bounds import Bounds, in_order

        if isinstance(self.ranges, str) or isinstance(self.label_bound, str):
            raise InputError('[bounds]: "private" is for a fit; a party that demands bounds of a plan says which.')
        ranges = in_order(self.ranges, names) if isinstance(self.ranges, Mapping) else self.ranges
        return Bounds.declare(**self.model_dump(exclude={"classes", "feature_ranges"}), feature_ranges=ranges)


class SchemaTable(JobTable):
    """What the columns of the files hold, instead of bounds of the features."""

    file: Text | None = key("a TOML file with a table [schema], instead of the keys")
    label: Text | None = key("the name of the label column")
    identifiers: Names = key('columns that are no features, such as ["id"]', ())
    person: Text | None = key("says whose record each is, if people have several")
    most_records: int | None = key("records of a person that count, at most")
    format: int | None = key("the number of the schema's format, as drafts have it")
    columns: dict[str, Any] | None = key(
        'for each column { range = [low, high] }, { range = "private" }, { levels = [...] }, { groups = { ... } }, '
        "{ levels_file = ... } or { yes = ..., no = ... }, with missing, other, fill and narrow where wanted, shape, "
        "knots, scale and monotone of numbers, and prefix and digits of codes"
    )
    level_sets: dict[str, Any] | None = key('entries of categories by name, for columns with levels = "NAME"')
    shape: Literal["linear", "smooth"] | None = key(
        'the shape of all numbers that do not say theirs; "smooth": a curve'
    )

    def make_schema(self, job: JobFile) -> Schema:
        from sottovoce.data.schema import Schema

        keys = self.model_dump(exclude_unset=True)
        if self.file is not None:
            if len(keys) > 1:
                raise job.fault("schema.file has the whole schema; leave the other keys out.")
            return Schema.from_toml(job.resolve(self.file))
        try:
            return Schema.from_table(keys, job.path.parent)
        except InputError as error:
            raise job.fault(f"schema: {error}") from None


class SourceTable(JobTable):
    """One file of records, the ledger that pays for its use, and what is public about it."""

    file: Text = needed("a CSV, Parquet or LIBSVM file, a folder of them or a pattern, or an .npy file")
    label: str | int | None = key("the name of the label column, or its position (-1 for the last)")
    id: Text | None = key("the name of a column that identifies the records, and is no feature")
    id_rule: Literal["usual", "exact"] = key(
        '"usual" (identifiers without case, spaces, and leading zeros of digits) or "exact" (as written)', "usual"
    )
    ledger: Text | None = key("a ledger file; `sottovoce ledger create` makes one")
    account: Text | None = key("the name of an account in the ledger")
    records: int | None = key("the public number of records, at least 1 and below 2^31", strict=True, ge=1, lt=2**31)
    features: Annotated[Count, Field(le=MOST_FEATURES)] | None = key(
        f"the public number of features, at least 1 and at most {MOST_FEATURES}"
    )
    folder: Text | None = key("where prepared rows are stored if they do not fit in memory; default: beside the ledger")
    cluster: Address | None = key('the scheduler of a Dask cluster whose workers read the file, "tls://scheduler:8786"')

    @property
    def has_label(self) -> bool:
        """Whether the file has labels: in the column `label` or, as in LIBSVM, before every record."""
        from sottovoce.data.files import find_format

        kind = find_format(Path(self.file))
        return self.label is not None or kind is None or not kind.tabular


class PartyTable(SourceTable):
    """A party in this process."""

    name: Text = needed("the party's name, each its own")


class FederationTable(JobTable):
    """Parties elsewhere, which connect to this coordinator."""

    listen: Address | None = key('host:port to listen on, such as "127.0.0.1:7443"')
    certificates: Text | None = key("the folder that `sottovoce certificates` made, with the coordinator's key")
    parties: tuple[str, ...] = needed("the names of the parties, each once", min_length=1)
    records: dict[str, int] | None = key("the public number of records of each party, { north = 1000, ... }")
    features: Count | dict[str, Count] | None = key(
        "the public number of features of every party, at least 1, or by columns { clinic = 12, ... }"
    )
    wait: Seconds = key("seconds to wait for the parties to connect", 300.0)
    timeout: Seconds = key("seconds to wait for an answer", 60.0)

    @property
    def ends(self) -> tuple[str, ...]:
        """Who is on the wire: the parties and, where there is one, the dealer."""
        dealer = getattr(self, "dealer", None)  # of a training
        return self.parties if dealer is None else (*self.parties, dealer)

    def width(self, party: str) -> int | None:
        return self.features.get(party) if isinstance(self.features, dict) else self.features


class TrainingTable(FederationTable):
    """Parties elsewhere, which connect to this coordinator, and whether only sums over them are opened."""

    sums: Literal["plain", "secure"] = key(
        'by rows: "secure" (only sums of all parties are opened) or "plain"', "plain"
    )
    products: Literal["auto", "none", "secure"] = key(
        'by columns: "secure" (only sums over the whole table are opened), "none" (each party adds noise '
        'to all that it sends) or "auto" (secure where every party and the model allow it)',
        "auto",
    )
    dealer: Text | None = key("secure aggregation: the name of a separate dealer; default: the coordinator")
    colluding_with_dealer: Whole = key(
        "secure aggregation by rows: how many parties may collude with the dealer, from 0", 0
    )
    colluding: Count | None = key(
        "secure aggregation: how many parties may collude with one another, from 1; default: all others"
    )
    dropouts: Whole = key("secure aggregation by rows: how many parties may drop out, from 0", 0)
    retries: Whole = key("secure aggregation by rows: how many sums may be repeated after a dropout, from 0", 0)


class ColumnsTable(JobTable):
    """The parties have some columns each, of the same people in the same order."""

    labels: Literal["shared", "public", "held"] = key(
        '"shared" (all parties know the labels), "public" (everybody may) or "held" (one party does)', "shared"
    )
    label_party: Text | None = key("the name of the party with the labels and the intercept; default: the first")
    norms: dict[str, StrictFloat] | None = key("the bound of each party's part of a row, { clinic = 0.8, lab = 0.6 }")


class ResourcesTable(JobTable):
    """What the parties of this process use."""

    n_jobs: int | None = key("threads for sums over their rows; -1 is all processors, the default 1")
    device: str | None = key('where they are computed: "cpu" (default) or "cuda"')


class OutputTable(JobTable):
    """Where the results go."""

    model: Text | None = key("the path of the model file; default: NAME.json beside the job file NAME.toml")
    report: Text | None = key("the path of the privacy report; default: NAME.privacy.json beside the model")
    page: Text | None = key("the path of the readable page; default: NAME.privacy.html beside the model")


class ViewTable(JobTable):
    """The operators' page with metrics and health checks, at 127.0.0.1 alone, and the JSON log."""

    port: int = key("the port of the page; 0 takes a free one", 0, strict=True, ge=0, le=65535)
    off: Flag = key("true: no page, no metrics and no health", False)
    token: Text | None = key("a file that stores the token of the address; default: a new token at each start")
    log: Text | None = key('a file for lines of JSON, or "-" for standard output, then without messages for people')
