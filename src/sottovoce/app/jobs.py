"""Job files: what to train, under which budget and bounds, on whose data, and where the results go.

A job is a TOML file that holds public configuration only. Paths in it are relative to the file itself.
An error names the key, its value, what is allowed and what to do.
"""

from __future__ import annotations

import itertools
import math
import operator
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from sottovoce.app import job_file as tables
from sottovoce.app.job_file import JobFile, key, needed, unknown_key
from sottovoce.errors import InputError, did_you_mean
from sottovoce.plan.plan import About
from sottovoce.plan.split import CENTRAL, COLUMNS, COORDINATOR, ROWS, Split

if TYPE_CHECKING:
    from sottovoce.estimators import PrivateLinearModel

_SCHEMA: Final[Any] = key("a table with label, identifiers and columns, or with file", alias="schema")
_VIEW: Final[Any] = key("a table with port, off, token and log", tables.ViewTable())
_WIRE: Final = "a table with listen, certificates and parties"
_SITE: Final = "a table with coordinator and certificates"


class PartyOf(tables.SourceTable):
    """The party of a party file."""

    name: tables.Text = needed("the party's name, as in its certificate")
    predictions: tables.Text | None = key("the file for predictions that this party is the recipient of")
    aligned: tables.Text | None = key("where the alignment is stored; default: FILE.aligned beside the records")
    n_jobs: int | None = key("threads for sums over its rows; -1 is all processors, the default 1")
    device: str | None = key('where they are computed: "cpu" (default) or "cuda"')


class ConnectionTable(tables.JobTable):
    """Where the coordinator is."""

    coordinator: tables.Address = needed('host:port of the coordinator, for example "localhost:7443"')
    certificates: tables.Text = needed("the folder with authority.pem and this party's own two files")


class DealerTable(tables.JobTable):
    """The dealer."""

    name: tables.Text = needed("the dealer's name, as in its certificate")


class PolicyTable(tables.JobTable):
    """What the party demands of a plan."""

    max_epsilon: tables.Positive = key("the most that one plan may cost, above 0", math.inf)
    max_delta: float = key("the largest delta of a plan, above 0 and at most 1", 1.0, strict=True, gt=0, le=1)
    predict_for: tables.Names = key(
        'who may learn joint predictions about these people: ["coordinator"] or a party', ()
    )
    predict_training: tables.Flag = key(
        "true: predict also for the people of this file where it may be trained on", False
    )
    tell_budget: tables.Flag = key("true: tell the coordinator what the account has, for the report of a fit", False)
    tell_records: tables.Flag = key(
        "true: over columns, tell the parties how many records each person has, and anybody their sum; off by rows",
        False,
    )
    approve_models: tables.Flag = key("true: use models that nobody approved, for a coordinator that is trusted", False)
    secure: tables.Flag = key("true: accept secure aggregation, whose guarantee rests on more than noise", False)
    dealer: str = key(
        'the only dealer that is accepted, "coordinator" or a name; "": the coordinator or a pinned dealer, '
        "in a plan with everybody who is pinned",
        "",
    )
    colluding: tables.Count | None = key(
        "the least number of colluding parties that a plan must withstand; default: all others"
    )
    unaligned: tables.Flag = key("true: accept secure columns also if records with identifiers were not aligned", False)
    max_epsilon_colluding: tables.Finite | None = key(
        "the most that a plan may cost against the coordinator colluding with all other parties; default: no "
        "limit, and secure aggregation needs the pins of all others by rows too"
    )
    align: tables.Names = key("the parties with which, all together, the records may be aligned", ())
    align_matched_by: str = key(
        'who alone compares the lists of an alignment, "coordinator" or a party; "": as asked', ""
    )
    count_shared: tables.Names = key("the parties with each of which shared people may be counted", ())
    align_times: tables.Whole = key("the most alignments that the identifiers take part in, from 0", 3)
    align_ratio: tables.Positive = key(
        "how many times longer than the own list of identifiers another party's may be", 10.0
    )


class RecordsFile(JobFile):
    """A file that names parties, here or elsewhere."""

    party: tuple[tables.PartyTable, ...] = key("tables [[party]] with name, file and label", ())
    federation: tables.FederationTable | None = key(_WIRE)

    @property
    def sources(self) -> dict[str, tables.SourceTable]:
        """The files of this process, by party; central data are one party named "data"."""
        data: tables.SourceTable | None = getattr(self, "data", None)
        return {"data": data} if data is not None else {table.name: table for table in self.party}

    @property
    def parties(self) -> list[str]:
        return list(self.federation.parties) if self.federation is not None else list(self.sources)

    @property
    def private(self) -> bool:
        """Whether what is run with it has a budget."""
        return getattr(self, "privacy", None) is not None and math.isfinite(self.privacy.epsilon)  # type: ignore[attr-defined]

    @property
    def uncounted(self) -> str:
        """That no ledger counts a run on files of this process, where it is so; else ""."""
        parties = [party for party, source in self.sources.items() if source.ledger is None]
        if not parties or not self.private:
            return ""
        whose = "" if parties == ["data"] else f" of {', '.join(parties)}"
        return (
            f"no ledger{whose}: nobody counts this run, and another on the same people adds its epsilon. "
            "`sottovoce ledger create` makes one; name it as ledger."
        )

    def input_files(self) -> Iterator[tuple[str, str]]:
        """(party, path) of the records and ledgers of this process."""
        for party, source in self.sources.items():
            for file in filter(None, (source.file, source.ledger)):
                yield party, file

    def check(self) -> None:
        """Refuse a file with no records, or with several kinds of them, and names that are taken."""
        kinds = [name for name in _SOURCES if getattr(self, name, None)]
        if len(kinds) != 1:
            what = f"has {' and '.join(f'[{name}]' for name in kinds)}" if kinds else "names no data"
            *most, last = (text for name, text in _SOURCES.items() if name in type(self).model_fields)
            raise InputError(f"{self.path} {what}; give exactly one of {', '.join(most)} or {last}.")
        self.check_names([table.name for table in self.party] or self.parties)


_SOURCES: Final = {
    "data": "[data] (all records here)",
    "party": "[[party]] (several parties in this process)",
    "federation": "[federation] (parties elsewhere)",
}


class Job(RecordsFile):
    """What to train. The data are one of [data], [[party]] or [federation]; with [columns] split by columns."""

    federation: tables.TrainingTable | None = key(_WIRE)
    data: tables.SourceTable | None = key("a table with file and label")
    model: tables.ModelTable = needed("what to train; [model] needs at least estimator")
    solver: tables.SolverTable | None = key("a table with name and the options of that solver")
    privacy: tables.PrivacyTable = needed("the budget; [privacy] needs at least epsilon")
    bounds: tables.BoundsTable = key("a table of declared bounds", tables.BoundsTable())
    schema_table: tables.SchemaTable | None = _SCHEMA
    columns: tables.ColumnsTable | None = key("a table with labels, label_party and norms, all optional")
    resources: tables.ResourcesTable = key("a table with n_jobs and device", tables.ResourcesTable())
    output: tables.OutputTable = key("a table of paths", tables.OutputTable())
    about: About = key("a table with dataset, purpose, analyst and note", About())
    view: tables.ViewTable = _VIEW

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
        table = self.output
        model = self.path.with_suffix(".json") if table.model is None else self.resolve(table.model)
        paths = {"model": model}
        for name, path, suffix in (("report", table.report, "json"), ("page", table.page, "html")):
            paths[name] = model.with_name(f"{model.stem}.privacy.{suffix}") if path is None else self.resolve(path)
        return paths

    def estimator(self) -> PrivateLinearModel:
        from sottovoce.data.resources import Resources

        declared: dict[str, Any] = {
            **self.bounds.model_dump(include={"row_norm", "entry_bound", "rescale"}),
            "feature_ranges": self.bounds.ranges,
            "schema": self.known_schema,
            "resources": Resources(**self.resources.model_dump()),
            "solver": "auto" if self.solver is None else self.solver.make_solver(self),
        }
        for name, kind in (("label_bound", "regression"), ("classes", "classification")):
            value = getattr(self.bounds, name)
            if value is not None and name not in self.model.fields:
                raise self.fault(
                    f"bounds.{name} = {value!r} is for {kind}; leave it out with {self.model.estimator!r}."
                )
            declared |= {} if value is None else {name: value}
        return self.model.kind(**self.privacy.model_dump(), **declared, **(self.model.model_extra or {}))

    def check(self) -> None:
        """Refuse a job that could not be planned, whatever the data are."""
        super().check()
        table, parameters, schema = self.federation, self.model.model_extra or {}, self.known_schema
        if table is not None:
            self._check_parties("federation.records", table.records)
            self._check_parties("federation.features", table.features)
            self._check_aggregation(table)
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
                f"Declare {tables.BoundsTable.model_fields['classes'].description}."
            )
        if not declared and "class_weight" in parameters:
            raise self.fault("model.class_weight is by class; declare the classes too, in bounds.classes.")
        if table is not None and parameters.get("insecure_seed") is not None:
            raise self.fault("model.insecure_seed is for parties in this process; leave it out.")
        self._check_parameters(parameters)
        if self.solver is not None:
            self.solver.make_solver(self)

    def _check_parties(self, key: str, table: object) -> None:
        if isinstance(table, dict) and set(table) != set(self.parties):
            raise self.fault(
                f"{key} names {', '.join(table)} where the parties are {', '.join(self.parties)}; give one for each."
            )

    def _check_aggregation(self, table: tables.TrainingTable) -> None:
        """Secure sums are of several parties, one of whom is left to rely on; their dealer holds no data."""
        default = {name: field.default for name, field in tables.TrainingTable.model_fields.items()}
        own, other, split = ("products", "sums", "columns") if self.columns else ("sums", "products", "rows")
        if (value := getattr(table, other)) != default[other]:
            raise self.fault(
                f'federation.{other} = {value!r} does not go with data split by {split}; there it is {own} = "secure".'
            )
        keys = ("dealer", "colluding_with_dealer", "colluding", "dropouts", "retries")
        set_here = {key: value for key in keys if (value := getattr(table, key)) != default[key]}
        if getattr(table, own) in ("plain", "none"):
            for key, value in set_here.items():
                raise self.fault(
                    f'federation.{key} = {value!r} is for secure sums; set {own} = "secure" too, or leave it out.'
                )
            return
        parties = len(table.parties)
        if parties < 2 and "secure" in (table.sums, table.products):
            raise self.fault("federation.parties has one party, and sums are secure over two or more.")
        for key in ("colluding_with_dealer", "dropouts", "retries"):
            if self.columns is not None and key in set_here:
                raise self.fault(
                    f"federation.{key} = {set_here[key]!r} is for data split by rows; by columns a dealer that "
                    "colludes with a party reads every column, and no party may leave. Leave it out."
                )
        if table.dealer in (*table.parties, COORDINATOR):
            raise self.fault(
                f"federation.dealer = {table.dealer!r} is a party or the coordinator; a dealer holds no data and has a "
                "name and a certificate of its own."
            )
        if set_here and (table.colluding_with_dealer + table.dropouts >= parties or (table.colluding or 1) >= parties):
            raise self.fault(
                f"federation.colluding_with_dealer = {table.colluding_with_dealer}, dropouts = {table.dropouts} and "
                f"colluding = {table.colluding} leave none of {parties} parties to rely on; lower them."
            )
        if table.retries and not table.dropouts:
            raise self.fault(
                f"federation.retries = {table.retries} is for sums without parties that left; set dropouts too."
            )

    def _check_columns(self, table: tables.ColumnsTable) -> None:
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

    def _check_parameters(self, parameters: Mapping[str, Any]) -> None:
        from sottovoce.solvers import SOLVERS

        fields, hints = self.model.fields, typing.get_type_hints(self.model.kind)
        elsewhere = {
            **dict.fromkeys(itertools.chain(*map(operator.methodcaller("names"), SOLVERS.values())), "[solver]"),
            "solver": "[solver], as name",
            **dict.fromkeys(tables.PrivacyTable.model_fields, "[privacy]"),
            **dict.fromkeys(tables.BoundsTable.model_fields, "[bounds]"),
            "schema": "[schema]",
            "ledger": "[data] or [[party]]",
            **dict.fromkeys(("resources", *tables.ResourcesTable.model_fields), "[resources]"),
            "verbose": "the command line (--quiet)",
        }
        for name, value in parameters.items():
            if name in elsewhere:
                raise self.fault(f"model.{name} = {value!r} belongs in {elsewhere[name]}; move it there.")
            if name not in fields:
                allowed = ["estimator", *(name for name in fields if name not in elsewhere)]
                raise self.fault(unknown_key("model", name, allowed))
            try:
                TypeAdapter(hints[name]).validate_python(value, strict=True)
            except ValidationError:
                raise self.fault(f"model.{name} = {value!r} must be of type {fields[name].type}.") from None


class TablesJob(Job, extra="ignore"):
    """The tables of a job, to be described by its schema; what it trains need not be there."""

    model: Any = None
    solver: Any = None
    privacy: Any = None
    output: Any = None

    @property
    def private(self) -> bool:
        return True  # a description has a budget of its own, whatever that of the fit is

    def check(self) -> None:
        RecordsFile.check(self)
        if self.known_schema is None:
            raise self.fault("a description is by a schema, which says what the columns hold; give the table [schema].")
        if self.columns is not None:
            self._check_columns(self.columns)


class PeopleJob(RecordsFile):
    """The people of a joint prediction: their columns are in files of this process or with parties elsewhere."""


class EvaluationJob(RecordsFile):
    """Test records of an evaluation: one of [data], [[party]] or [federation], and their budget."""

    data: tables.SourceTable | None = key("a table with file and label")
    privacy: tables.PrivacyTable = needed("the budget of the evaluation; [privacy] needs at least epsilon")
    people: Literal["others", "same"] = key('"others" (than those of the fit) or "same": they pay for both', "others")
    label_party: tables.Text | None = key("by columns: the name of the party that has the labels; default: the first")
    by: tables.Text | None = key("a category or yes/no column of the model's schema: tell its groups apart too")

    @property
    def label_holder(self) -> str:
        return self.label_party or self.parties[0]

    def check(self) -> None:
        super().check()
        names = [] if self.data is not None else self.parties
        if self.label_party is not None and self.label_party not in names:
            raise self.fault(f"label_party = {self.label_party!r} is no party; they are: {', '.join(names)}.")


class WireTable(tables.FederationTable, extra="ignore"):
    """The parties of any job; what else it says of them does not matter here."""


class AlignmentJob(JobFile, extra="ignore"):
    """The parties of an alignment, from the job of a fit, a prediction or an evaluation, or a file of their own."""

    federation: WireTable = needed(_WIRE)

    def check(self) -> None:
        names = self.federation.parties
        if len(names) < 2:
            raise self.fault(f"federation.parties = {list(names)}: an alignment needs two or more, each once.")
        self.check_names(names)


class DealerJob(JobFile):
    """A dealer of secure sums, which has no records and no ledger."""

    dealer: DealerTable = needed("a table with name")
    federation: ConnectionTable = needed(_SITE)
    view: tables.ViewTable = _VIEW


class PartyJob(JobFile):
    """A data holder that serves a remote coordinator."""

    party: PartyOf = needed("a table with name, file, label and ledger")
    federation: ConnectionTable = needed(_SITE)
    policy: PolicyTable = key("a table with max_epsilon, max_delta, predict_for", PolicyTable())
    bounds: tables.BoundsTable | None = key("the bounds that a plan must have, if any")
    peers: dict[str, str] = key(
        'the pins of other parties\' certificates, north = "sha256:...", as `sottovoce pin` prints them', {}
    )
    schema_table: tables.SchemaTable | None = _SCHEMA
    view: tables.ViewTable = _VIEW

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
load_tables_job = TablesJob.load
load_evaluation_job, load_party_job, load_dealer_job = EvaluationJob.load, PartyJob.load, DealerJob.load
