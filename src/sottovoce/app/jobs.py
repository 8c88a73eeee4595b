"""Job files: what to train, under which budget and bounds, on whose data, and where the results go.

A job is a TOML file that holds public configuration only. Paths in it are relative to the file itself.
An error names the key, its value, what is allowed and what to do.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, StrictFloat, TypeAdapter, ValidationError

from sottovoce.app.job_file import File, Table, key, needed, unknown_key
from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import MOST_FEATURES
from sottovoce.plan.about import About
from sottovoce.plan.sealing import COORDINATOR
from sottovoce.plan.split import CENTRAL, COLUMNS, ROWS, Split
from sottovoce.privacy.checks import SMALLEST_DELTA
from sottovoce.privacy.relation import Relation

if TYPE_CHECKING:
    from sottovoce.data.bounds import Bounds
    from sottovoce.data.schema import Schema
    from sottovoce.estimators import PrivateLinearModel
    from sottovoce.solvers import Options

ESTIMATORS: Final[Mapping[str, str]] = {
    "logistic": "PrivateLogisticRegression",
    "ridge": "PrivateRidge",
    "lasso": "PrivateLasso",
    "elastic-net": "PrivateElasticNet",
    "svm": "PrivateLinearSVC",
}
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


class ModelTable(Table, extra="allow"):
    """Which estimator; every further key is a parameter of its problem."""

    estimator: Literal["logistic", "ridge", "lasso", "elastic-net", "svm"] = needed(
        "one of logistic, ridge, lasso, elastic-net, svm"
    )

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def kind(self) -> type[PrivateLinearModel]:
        from sottovoce import estimators

        return typing.cast("type[PrivateLinearModel]", getattr(estimators, ESTIMATORS[self.estimator]))

    @property
    def fields(self) -> dict[str, dataclasses.Field[Any]]:
        return {field.name: field for field in dataclasses.fields(self.kind)}


class SolverTable(Table, extra="allow"):
    """Which solver; every further key is one of its options."""

    name: str = needed('the name of a solver, as `sottovoce solvers` lists them, or "auto"')

    def solver(self, job: File) -> str | Options:
        from sottovoce.solvers import SOLVERS, by_name

        options = dict(self.model_extra or {})
        if self.name == "auto":
            for name, value in options.items():
                raise job.fault(f"solver.{name} = {value!r}: name = 'auto' takes no options; name the solver you mean.")
            return self.name
        if self.name not in SOLVERS:
            raise job.fault(
                f"solver.name = {self.name!r} is unknown{did_you_mean(self.name, tuple(SOLVERS))} "
                f"Allowed are: auto, {', '.join(SOLVERS)}."
            )
        allowed = SOLVERS[self.name].names()
        for name in options:
            if name not in allowed:
                raise job.fault(unknown_key("solver", name, ["name", *allowed], f" of name = {self.name!r}"))
        try:
            return by_name(self.name, **options) if options else self.name
        except InputError as error:
            raise job.fault(f"solver.{error}") from None


class PrivacyTable(Table):
    """The budget of the fit."""

    epsilon: Positive = needed("a number above 0; 1 is usual, a smaller one promises more, inf switches privacy off")
    delta: float = key("a number between 0 and 1, well below 1 / records", 1e-5, strict=True, ge=SMALLEST_DELTA, lt=1)
    relation: Relation = key('"zero-out" (a record is blanked) or "replace-one" (it becomes any other)', "zero-out")


class BoundsTable(Table):
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
    def named_ranges(self) -> Mapping[str, list[float]] | None:
        """The ranges by feature name, where they are given so."""
        ranges = self.feature_ranges
        return ranges if isinstance(ranges, Mapping) and set(ranges) != {"low", "high"} else None

    @property
    def ranges(self) -> Mapping[str, list[float]] | tuple[list[float], list[float]] | str | None:
        """As an estimator takes them: by name, (lows, highs) in the order of the columns, or "private"."""
        ranges = self.feature_ranges
        return (ranges["low"], ranges["high"]) if isinstance(ranges, dict) and self.named_ranges is None else ranges

    def declare(self, names: Sequence[str]) -> Bounds:
        """The bounds as plans carry them, for features of these names."""
        from sottovoce.data.bounds import Bounds, in_order

        if isinstance(self.ranges, str) or isinstance(self.label_bound, str):
            raise InputError('[bounds]: "private" is for a fit; a party that demands bounds of a plan says which.')
        ranges = in_order(self.ranges, names) if isinstance(self.ranges, Mapping) else self.ranges
        return Bounds.declare(**self.model_dump(exclude={"classes", "feature_ranges"}), feature_ranges=ranges)


class SchemaTable(Table):
    """What the columns of the files hold, instead of bounds of the features."""

    file: Text | None = key("a TOML file with a table [schema], instead of the keys")
    label: Text | None = key("the name of the label column")
    identifiers: Names = key('columns that are no features, such as ["id"]', ())
    format: int | None = key("the number of the schema's format, as drafts have it")
    columns: dict[str, Any] | None = key(
        'for each column { range = [low, high] }, { range = "private" }, { levels = [...] } or '
        "{ yes = ..., no = ... }, with missing, other, fill and narrow where wanted"
    )

    def declared(self, job: File) -> Schema:
        from sottovoce.data.schema import Schema

        keys = self.model_dump(exclude_unset=True)
        if self.file is not None:
            if len(keys) > 1:
                raise job.fault("schema.file has the whole schema; leave the other keys out.")
            return Schema.from_toml(job.resolve(self.file))
        try:
            return Schema.from_table(keys)
        except InputError as error:
            raise job.fault(f"schema: {error}") from None


class SourceTable(Table):
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


class FederationTable(Table):
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
        """Who is on the wire: the parties and, where there is one, the helper."""
        helper = getattr(self, "helper", None)  # of a training
        return self.parties if helper is None else (*self.parties, helper)

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
    helper: Text | None = key("secure aggregation: the name of a separate dealer; default: the coordinator")
    pooling: Whole = key("secure aggregation by rows: how many parties may collude with the dealer, from 0", 0)
    curious: Count | None = key(
        "secure aggregation: how many parties may collude with one another, from 1; default: all others"
    )
    absent: Whole = key("secure aggregation by rows: how many parties may drop out, from 0", 0)
    spare: Whole = key("secure aggregation by rows: how many sums may be repeated after a dropout, from 0", 0)


class ColumnsTable(Table):
    """The parties have some columns each, of the same people in the same order."""

    labels: Literal["shared", "public", "held"] = key(
        '"shared" (all parties know the labels), "public" (everybody may) or "held" (one party does)', "shared"
    )
    label_party: Text | None = key("the name of the party with the labels and the intercept; default: the first")
    norms: dict[str, StrictFloat] | None = key("the bound of each party's part of a row, { clinic = 0.8, lab = 0.6 }")


class ResourcesTable(Table):
    """What the parties of this process use."""

    n_jobs: int | None = key("threads for sums over their rows; -1 is all processors, the default 1")
    device: str | None = key('where they are computed: "cpu" (default) or "cuda"')


class OutputTable(Table):
    """Where the results go."""

    model: Text | None = key("the path of the model file; default: NAME.json beside the job file NAME.toml")
    report: Text | None = key("the path of the privacy report; default: NAME.privacy.json beside the model")
    page: Text | None = key("the path of the readable page; default: NAME.privacy.html beside the model")


class ViewTable(Table):
    """The operators' page with metrics and health checks, at 127.0.0.1 alone, and the JSON log."""

    port: int = key("the port of the page; 0 takes a free one", 0, strict=True, ge=0, le=65535)
    off: Flag = key("true: no page, no metrics and no health", False)
    token: Text | None = key("a file that stores the token of the address; default: a new token at each start")
    log: Text | None = key('a file for lines of JSON, or "-" for standard output, then without messages for people')


class PartyOf(SourceTable):
    """The party of a party file."""

    name: Text = needed("the party's name, as in its certificate")
    predictions: Text | None = key("the file for predictions that this party is the recipient of")
    aligned: Text | None = key("where the alignment is stored; default: FILE.aligned beside the records")
    n_jobs: int | None = key("threads for sums over its rows; -1 is all processors, the default 1")
    device: str | None = key('where they are computed: "cpu" (default) or "cuda"')


class ConnectionTable(Table):
    """Where the coordinator is."""

    coordinator: Address = needed('host:port of the coordinator, for example "localhost:7443"')
    certificates: Text = needed("the folder with authority.pem and this party's own two files")


class HelperTable(Table):
    """The dealer."""

    name: Text = needed("the dealer's name, as in its certificate")


class PolicyTable(Table):
    """What the party demands of a plan."""

    max_epsilon: Positive = key("the most that one plan may cost, above 0", math.inf)
    max_delta: float = key("the largest delta of a plan, above 0 and at most 1", 1.0, strict=True, gt=0, le=1)
    predict_for: Names = key('who may learn joint predictions about these people: ["coordinator"] or a party', ())
    predict_training: Flag = key("true: predict also for the people of this file where it may be trained on", False)
    tell_budget: Flag = key("true: tell the coordinator what the account has, for the report of a fit", False)
    approve_models: Flag = key("true: use models that nobody approved, for a coordinator that is trusted", False)
    sealed: Flag = key("true: accept secure aggregation, whose guarantee rests on more than noise", False)
    dealer: str = key(
        'the only dealer that is accepted, "coordinator" or a name; "": the coordinator or a pinned dealer, '
        "in a plan with everybody who is pinned",
        "",
    )
    curious: Count | None = key("the least number of colluding parties that a plan must withstand; default: all others")
    unaligned: Flag = key("true: accept secure columns also if records with identifiers were not aligned", False)
    max_epsilon_pooled: Finite | None = key(
        "the most that a plan may cost against the coordinator colluding with all other parties; default: no "
        "limit, and secure aggregation needs the pins of all others by rows too"
    )
    align: Names = key("the parties with which, all together, the records may be aligned", ())
    align_matched_by: str = key(
        'who alone compares the lists of an alignment, "coordinator" or a party; "": as asked', ""
    )
    count_shared: Names = key("the parties with each of which shared people may be counted", ())
    align_times: Whole = key("the most alignments that the identifiers take part in, from 0", 3)
    align_ratio: Positive = key("how many times longer than the own list of identifiers another party's may be", 10.0)


_SCHEMA: Final[Any] = key("a table with label, identifiers and columns, or with file", alias="schema")
_VIEW: Final[Any] = key("a table with port, off, token and log", ViewTable())
_WIRE: Final = "a table with listen, certificates and parties"
_SITE: Final = "a table with coordinator and certificates"


class RecordsFile(File):
    """A file that names parties, here or elsewhere."""

    party: tuple[PartyTable, ...] = key("tables [[party]] with name, file and label", ())
    federation: FederationTable | None = key(_WIRE)

    @property
    def sources(self) -> dict[str, SourceTable]:
        """The files of this process, by party; central data are one party named "data"."""
        data: SourceTable | None = getattr(self, "data", None)
        return {"data": data} if data is not None else {table.name: table for table in self.party}

    @property
    def parties(self) -> list[str]:
        return list(self.federation.parties) if self.federation is not None else list(self.sources)

    def check(self) -> None:
        """Refuse a file with no records, or with several kinds of them, and names that are taken."""
        kinds = [name for name in _SOURCES if getattr(self, name, None)]
        if len(kinds) != 1:
            found = f"has {' and '.join(f'[{name}]' for name in kinds)}" if kinds else "names no data"
            *most, last = (what for name, what in _SOURCES.items() if name in type(self).model_fields)
            raise InputError(f"{self.path} {found}; give exactly one of {', '.join(most)} or {last}.")
        self.check_names([table.name for table in self.party] or self.parties)


_SOURCES: Final = {
    "data": "[data] (all records here)",
    "party": "[[party]] (several parties in this process)",
    "federation": "[federation] (parties elsewhere)",
}


class Job(RecordsFile):
    """What to train. The data are one of [data], [[party]] or [federation]; with [columns] split by columns."""

    federation: TrainingTable | None = key(_WIRE)
    data: SourceTable | None = key("a table with file and label")
    model: ModelTable = needed("what to train; [model] needs at least estimator")
    solver: SolverTable | None = key("a table with name and the options of that solver")
    privacy: PrivacyTable = needed("the budget; [privacy] needs at least epsilon")
    bounds: BoundsTable = key("a table of declared bounds", BoundsTable())
    schema_table: SchemaTable | None = _SCHEMA
    columns: ColumnsTable | None = key("a table with labels, label_party and norms, all optional")
    resources: ResourcesTable = key("a table with n_jobs and device", ResourcesTable())
    output: OutputTable = key("a table of paths", OutputTable())
    about: About = key("a table with dataset, purpose, analyst and note", About())
    view: ViewTable = _VIEW

    @property
    def known_schema(self) -> Schema | None:
        return None if self.schema_table is None else self.schema_table.declared(self)

    @property
    def split(self) -> Split:
        return COLUMNS if self.columns is not None else ROWS if self.data is None else CENTRAL

    @property
    def label_party(self) -> str:
        """By columns: the party that has the labels, where one party alone has them."""
        return (self.columns and self.columns.label_party) or self.parties[0]

    def labelled(self, party: str) -> bool:
        return self.columns is None or self.columns.labels != "held" or party == self.label_party

    def outputs(self) -> dict[str, Path]:
        given = {key: self.resolve(path) for key, path in self.output.model_dump(exclude_none=True).items()}
        model = given.get("model", self.path.with_suffix(".json"))
        beside = {"report": f"{model.stem}.privacy.json", "page": f"{model.stem}.privacy.html"}
        return {"model": model, **{key: given.get(key, model.with_name(name)) for key, name in beside.items()}}

    def estimator(self) -> PrivateLinearModel:
        from sottovoce.data.resources import Resources

        self._check_parameters()
        declared: dict[str, Any] = {
            **self.bounds.model_dump(include={"row_norm", "entry_bound", "rescale"}),
            "feature_ranges": self.bounds.ranges,
            "schema": self.known_schema,
            "resources": Resources(**self.resources.model_dump()),
            "solver": "auto" if self.solver is None else self.solver.solver(self),
        }
        for name, kind in (("label_bound", "regression"), ("classes", "classification")):
            value = getattr(self.bounds, name)
            if value is not None and name not in self.model.fields:
                raise self.fault(
                    f"bounds.{name} = {value!r} is for {kind}; leave it out with {self.model.estimator!r}."
                )
            declared |= {} if value is None else {name: value}
        return self.model.kind(**self.privacy.model_dump(), **declared, **self.model.parameters)

    def check(self) -> None:
        """Refuse a job that could not be planned, whatever the data are."""
        super().check()
        table, parameters, schema = self.federation, self.model.parameters, self.known_schema
        if table is not None:
            self._check_parties("federation.records", table.records)
            self._check_parties("federation.features", table.features)
            self._check_sealing(table)
        if self.columns is not None:
            self._check_columns(self.columns)
        elif table is not None and isinstance(table.features, dict):
            raise self.fault(
                f"federation.features = {table.features} is for parties with different columns; by rows all have the "
                "same, so give one number, or declare the split with a table [columns]."
            )
        declared = self.bounds.classes is not None or (schema is not None and schema.classes is not None)
        if table is not None and not declared and "classes" in self.model.fields:
            raise InputError(
                f"{self.path} lacks bounds.classes: remote parties do not tell which labels occur in their data. "
                f"Declare {BoundsTable.model_fields['classes'].description}."
            )
        if not declared and "class_weight" in parameters:
            raise self.fault("model.class_weight is by class; declare the classes too, in bounds.classes.")
        if table is not None and parameters.get("insecure_seed") is not None:
            raise self.fault("model.insecure_seed is for parties in this process; leave it out.")
        self._check_parameters()
        if self.solver is not None:
            self.solver.solver(self)

    def _check_parties(self, key: str, table: object) -> None:
        if isinstance(table, dict) and set(table) != set(self.parties):
            raise self.fault(
                f"{key} names {', '.join(table)} where the parties are {', '.join(self.parties)}; give one for each."
            )

    def _check_sealing(self, table: TrainingTable) -> None:
        """Sealed sums are of several parties, one of whom is left to rely on; their dealer holds no data."""
        default = {name: field.default for name, field in TrainingTable.model_fields.items()}
        own, other, split = ("products", "sums", "columns") if self.columns else ("sums", "products", "rows")
        if (value := getattr(table, other)) != default[other]:
            raise self.fault(
                f'federation.{other} = {value!r} does not go with data split by {split}; there it is {own} = "secure".'
            )
        numbers = {key: getattr(table, key) for key in ("helper", "pooling", "curious", "absent", "spare")}
        set_here = {key: value for key, value in numbers.items() if value != default[key]}
        if getattr(table, own) in ("plain", "none"):
            for key, value in set_here.items():
                raise self.fault(
                    f'federation.{key} = {value!r} is for sealed sums; set {own} = "secure" too, or leave it out.'
                )
            return
        parties = len(table.parties)
        if parties < 2 and "secure" in (table.sums, table.products):
            raise self.fault("federation.parties has one party, and sums are sealed over two or more.")
        for key in ("pooling", "absent", "spare"):
            if self.columns is not None and key in set_here:
                raise self.fault(
                    f"federation.{key} = {set_here[key]!r} is for data split by rows; by columns a dealer that pools "
                    "with a party reads every column, and no party may leave. Leave it out."
                )
        if table.helper in (*table.parties, COORDINATOR):
            raise self.fault(
                f"federation.helper = {table.helper!r} is a party or the coordinator; a helper holds no data and has a "
                "name and a certificate of its own."
            )
        if set_here and (table.pooling + table.absent >= parties or (table.curious or 1) >= parties):
            raise self.fault(
                f"federation.pooling = {table.pooling}, absent = {table.absent} and curious = {table.curious} leave "
                f"none of {parties} parties to rely on; lower them."
            )
        if table.spare and not table.absent:
            raise self.fault(f"federation.spare = {table.spare} is for sums without parties that left; set absent too.")

    def _check_columns(self, table: ColumnsTable) -> None:
        if self.data is not None:
            raise InputError(
                f"{self.path} has [columns] and [data]: all columns of one file are in one place. Leave [columns] out, "
                "or give a [[party]] for each file, or [federation]."
            )
        if self.label_party not in self.parties:
            meant = did_you_mean(self.label_party, self.parties)
            raise self.fault(
                f"columns.label_party = {table.label_party!r} is no party{meant} "
                f"The parties are: {', '.join(self.parties)}."
            )
        self._check_parties("columns.norms", table.norms)
        for party, source in self.sources.items():
            if source.cluster is not None:
                raise self.fault(
                    f"party {party!r}: cluster = {source.cluster!r}, which is for whole rows; leave it out."
                )
            if self.labelled(party) and not source.has_label and self.schema_table is None:
                raise self.fault(
                    f"party {party!r} has no label, and columns.labels = {table.labels!r} says that it knows the "
                    'labels. Name the label column of its file, or set columns.labels to "held" and '
                    "columns.label_party to the party that has them."
                )
            if source.label is not None and not self.labelled(party):
                raise self.fault(
                    f'party {party!r} has label = {source.label!r} and columns.labels = "held", by '
                    f"{self.label_party!r} alone. Take that column out of its file and leave label out, or set "
                    'columns.labels to "shared".'
                )

    def _check_parameters(self) -> None:
        from sottovoce.solvers import SOLVERS

        fields, hints = self.model.fields, typing.get_type_hints(self.model.kind)
        elsewhere = {
            **{name: "[solver]" for kind in SOLVERS.values() for name in kind.names()},
            "solver": "[solver], as name",
            **dict.fromkeys(PrivacyTable.model_fields, "[privacy]"),
            **dict.fromkeys(BoundsTable.model_fields, "[bounds]"),
            "schema": "[schema]",
            "ledger": "[data] or [[party]]",
            **dict.fromkeys(("resources", *ResourcesTable.model_fields), "[resources]"),
            "verbose": "the command line (--quiet)",
        }
        allowed = [name for name in fields if name not in elsewhere]
        for name, value in self.model.parameters.items():
            if name in elsewhere:
                raise self.fault(f"model.{name} = {value!r} belongs in {elsewhere[name]}; move it there.")
            if name not in allowed:
                raise self.fault(unknown_key("model", name, ["estimator", *allowed]))
            try:
                TypeAdapter(hints[name]).validate_python(value, strict=True)
            except ValidationError:
                raise self.fault(f"model.{name} = {value!r} must be of type {fields[name].type}.") from None


class PeopleJob(RecordsFile):
    """The people of a joint prediction: their columns are in files of this process or with parties elsewhere."""


class EvaluationJob(RecordsFile):
    """Test records of an evaluation: one of [data], [[party]] or [federation], and their budget."""

    data: SourceTable | None = key("a table with file and label")
    privacy: PrivacyTable = needed("the budget of the evaluation; [privacy] needs at least epsilon")
    people: Literal["others", "same"] = key('"others" (than those of the fit) or "same": they pay for both', "others")
    label_party: Text | None = key("by columns: the name of the party that has the labels; default: the first")

    @property
    def label_holder(self) -> str:
        return self.label_party or self.parties[0]

    def check(self) -> None:
        super().check()
        names = [] if self.data is not None else self.parties
        if self.label_party is not None and self.label_party not in names:
            raise self.fault(f"label_party = {self.label_party!r} is no party; they are: {', '.join(names)}.")


class WireTable(FederationTable, extra="ignore"):
    """The parties of any job; what else it says of them does not matter here."""


class AlignmentJob(File, extra="ignore"):
    """The parties of an alignment, from the job of a fit, a prediction or an evaluation, or a file of their own."""

    federation: WireTable = needed(_WIRE)

    def check(self) -> None:
        names = self.federation.parties
        if len(names) < 2:
            raise self.fault(f"federation.parties = {list(names)}: an alignment needs two or more, each once.")
        self.check_names(names)


class HelperJob(File):
    """A helper of sealed sums, which has no records and no ledger."""

    helper: HelperTable = needed("a table with name")
    federation: ConnectionTable = needed(_SITE)
    view: ViewTable = _VIEW


class PartyJob(File):
    """A data holder that serves a remote coordinator."""

    party: PartyOf = needed("a table with name, file, label and ledger")
    federation: ConnectionTable = needed(_SITE)
    policy: PolicyTable = key("a table with max_epsilon, max_delta, predict_for", PolicyTable())
    bounds: BoundsTable | None = key("the bounds that a plan must have, if any")
    peers: dict[str, str] = key(
        'the pins of other parties\' certificates, north = "sha256:...", as `sottovoce pin` prints them', {}
    )
    schema_table: SchemaTable | None = _SCHEMA
    view: ViewTable = _VIEW

    @property
    def known_schema(self) -> Schema | None:
        return None if self.schema_table is None else self.schema_table.declared(self)

    @property
    def aligned(self) -> Path | None:
        """Where an alignment of the records is kept; None if they have no identifiers."""
        source = self.party
        return None if source.id is None else self.resolve(source.aligned or f"{source.file}.aligned")

    @property
    def predict_for(self) -> tuple[str, ...]:
        """Who may learn joint predictions; a party with a file for them may itself."""
        own = () if self.party.predictions is None else (self.party.name,)
        return (*self.policy.predict_for, *own)

    def check(self) -> None:
        """Refuse what a remote party cannot do: it keeps a ledger, always."""
        if self.bounds is not None and self.bounds.classes is not None:
            raise self.fault("bounds.classes is the coordinator's to declare; a party file has none.")
        self.check_names([self.party.name])
        if self.party.ledger is None:
            raise InputError(
                f"party {self.party.name!r} has no ledger, and a party that others reach must have one: without it a "
                "restart would forget what was released, and the same question asked again would get fresh noise and "
                "be paid for by nobody. Make one with `sottovoce ledger create`, then name it as ledger."
            )


load_job, load_people_job, load_alignment_job = Job.load, PeopleJob.load, AlignmentJob.load
load_evaluation_job, load_party_job, load_helper_job = EvaluationJob.load, PartyJob.load, HelperJob.load
