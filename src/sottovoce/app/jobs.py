"""Job files: what to train, under which budget and bounds, on whose data, and where the results go.

A job is a TOML file that holds public configuration only. Paths in it are relative to the file itself.
An error names the key, its value, what is allowed and what to do.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictFloat, TypeAdapter, ValidationError

from sottovoce.app.settings import keys_of, name_of, overlaid, types_of
from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import MOST_FEATURES, parsed
from sottovoce.plan.about import About
from sottovoce.plan.sealing import COORDINATOR
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
_SCHEMA: Final = "a table with label, identifiers and columns, or with file"
Count = Annotated[int, Field(strict=True, ge=1)]
Whole = Annotated[int, Field(strict=True, ge=0)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelTable(_Table):
    """Which estimator; every further key is a parameter of its problem."""

    model_config = ConfigDict(extra="allow", frozen=True)
    estimator: Literal["logistic", "ridge", "lasso", "elastic-net", "svm"] = Field(
        description="one of logistic, ridge, lasso, elastic-net, svm"
    )

    @property
    def parameters(self) -> dict[str, Any]:
        """The estimator's parameters that the job sets."""
        return dict(self.model_extra or {})


class SolverTable(_Table):
    """Which solver; every further key is one of its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = Field(description='the name of a solver, as `sottovoce solvers` lists them, or "auto"')

    def solver(self, path: Path) -> str | Options:
        """The solver as an estimator takes it."""
        from sottovoce.solvers import SOLVERS, by_name

        given = dict(self.model_extra or {})
        if self.name == "auto":
            if given:
                key, value = next(iter(given.items()))
                raise InputError(
                    f"{path}: solver.{key} = {value!r} is an option, and name = 'auto' has none, as which solver "
                    "serves is not known yet; name the solver that you mean."
                )
            return self.name
        if self.name not in SOLVERS:
            raise InputError(
                f"{path}: solver.name = {self.name!r} is unknown{did_you_mean(self.name, tuple(SOLVERS))} "
                f"Allowed are: auto, {', '.join(SOLVERS)}."
            )
        allowed = SOLVERS[self.name].names()
        for key in given:
            if key not in allowed:
                raise _unknown_key(path, "solver", key, ["name", *allowed], f" of name = {self.name!r}")
        try:
            return by_name(self.name, **given) if given else self.name
        except InputError as error:
            raise InputError(f"{path}: solver.{error}") from None


class PrivacyTable(_Table):
    """The budget of the fit."""

    epsilon: float = Field(
        strict=True,
        gt=0,
        description="a number above 0; 1 is a usual choice, a smaller one promises more, inf switches privacy off",
    )
    delta: float = Field(
        1e-5, strict=True, ge=SMALLEST_DELTA, lt=1, description="a number between 0 and 1, well below 1 / records"
    )
    relation: Relation = Field(
        "zero-out", description='"zero-out" (a record is blanked) or "replace-one" (a record becomes any other)'
    )


class BoundsTable(_Table):
    """Declared bounds: public, chosen from what is known of the quantities, never from the data."""

    row_norm: float | None = Field(
        None, strict=True, gt=0, allow_inf_nan=False, description="the largest Euclidean norm of a row, above 0"
    )
    entry_bound: StrictFloat | list[StrictFloat] | None = Field(
        None, description="the largest absolute entry, above 0: one number, or a list with one for each feature"
    )
    label_bound: float | Range | Literal["private"] | None = Field(
        None,
        description='the range of the label as [low, high], or one number b for [-b, b], or "private": a share of the '
        "budget buys it",
    )
    feature_ranges: dict[str, list[float]] | Literal["private"] | None = Field(
        None,
        description="a range for each feature by its name, { age = [18, 99], ... }, "
        'or { low = [...], high = [...] } in the order of the columns, or "private": a share of the budget buys them',
    )
    classes: Annotated[tuple[Any, ...], Field(min_length=2)] | None = Field(
        None, description='the labels, of two the negative first, for example ["no", "yes"] or [0, 1]'
    )
    rescale: Literal["symmetric", "unit"] = Field(
        "symmetric", description='"symmetric" (ranges become [-1, 1]) or "unit" ([0, 1])'
    )

    @property
    def named_ranges(self) -> Mapping[str, list[float]] | None:
        """The ranges by feature name, where they are given so."""
        ranges = self.feature_ranges
        return ranges if isinstance(ranges, Mapping) and set(ranges) != {"low", "high"} else None

    @property
    def ranges(self) -> Mapping[str, list[float]] | tuple[list[float], list[float]] | str | None:
        """As an estimator takes them: by name, (lows, highs) in the order of the columns, or "private"."""
        ranges = self.feature_ranges
        if isinstance(ranges, dict) and self.named_ranges is None:
            return ranges["low"], ranges["high"]
        return ranges

    def declare(self, names: Sequence[str]) -> Bounds:
        """The bounds as plans carry them, for features of these names."""
        from sottovoce.data.bounds import Bounds, in_order

        if isinstance(self.ranges, str) or isinstance(self.label_bound, str):
            raise InputError('[bounds]: "private" is for a fit; a party that demands bounds of a plan says which.')
        return Bounds.declare(
            row_norm=self.row_norm,
            entry_bound=self.entry_bound,
            label_bound=self.label_bound,
            feature_ranges=in_order(self.ranges, names) if isinstance(self.ranges, Mapping) else self.ranges,
            rescale=self.rescale,
        )


class SchemaTable(_Table):
    """What the columns of the files hold, in the place of bounds of the features; the keys, or a file that has them."""

    file: str | None = Field(None, min_length=1, description="a TOML file with a table [schema], instead of the keys")
    label: str | None = Field(None, min_length=1, description="the name of the label column")
    identifiers: tuple[str, ...] = Field((), description='columns that are no features, such as ["id"]')
    format: int | None = Field(None, description="the number of the schema's format, as drafts have it")
    columns: dict[str, Any] | None = Field(
        None,
        description='for each column { range = [low, high] }, { range = "private" }, { levels = [...] } or '
        "{ yes = ..., no = ... }, with missing, other, fill and narrow where wanted",
    )

    def declared(self, job: _File) -> Schema:
        """The schema itself."""
        from sottovoce.data.schema import Schema

        given = self.model_dump(exclude_unset=True)
        if self.file is not None:
            if len(given) > 1:
                raise InputError(f"{job.path}: schema.file has the whole schema; leave the other keys out.")
            return Schema.from_toml(job.resolve(self.file))
        try:
            return Schema.from_table(given)
        except InputError as error:
            raise InputError(f"{job.path}: schema: {error}") from None


class SourceTable(_Table):
    """One file of records, the ledger that pays for its use, and what is public about it."""

    file: str = Field(
        min_length=1, description="a CSV, Parquet or LIBSVM file, a folder of them or a pattern, or an .npy file"
    )
    label: str | int | None = Field(None, description="the name of the label column, or its position (-1 for the last)")
    id: str | None = Field(
        None, min_length=1, description="the name of a column that identifies the records, and is no feature"
    )
    id_rule: Literal["usual", "exact"] = Field(
        "usual",
        description='"usual" (identifiers without case, spaces, and leading zeros of digits) or "exact" (as written)',
    )
    ledger: str | None = Field(None, min_length=1, description="a ledger file; `sottovoce ledger create` makes one")
    account: str | None = Field(None, min_length=1, description="the name of an account in the ledger")
    records: int | None = Field(
        None, strict=True, ge=1, lt=2**31, description="the public number of records, at least 1 and below 2^31"
    )
    features: int | None = Field(
        None,
        strict=True,
        ge=1,
        le=MOST_FEATURES,
        description=f"the public number of features, at least 1 and at most {MOST_FEATURES}",
    )
    folder: str | None = Field(
        None,
        min_length=1,
        description="where prepared rows lie that do not fit in memory; default: beside the ledger. Whoever reads it "
        "can read the records",
    )
    cluster: str | None = Field(
        None,
        min_length=3,
        description='the scheduler of a Dask cluster whose workers read the file, "tls://scheduler:8786"',
    )

    @property
    def has_label(self) -> bool:
        """Whether the file has labels: in the column `label` or, as in LIBSVM, before every record."""
        from sottovoce.data.files import find_format

        kind = find_format(Path(self.file))
        return self.label is not None or kind is None or not kind.tabular


class PartyTable(SourceTable):
    """A party in this process."""

    name: str = Field(min_length=1, description="the party's name, each its own")


class FederationTable(_Table):
    """Parties elsewhere, which connect to this coordinator."""

    listen: str | None = Field(None, min_length=3, description='host:port to listen on, such as "127.0.0.1:7443"')
    certificates: str | None = Field(
        None, min_length=1, description="the folder that `sottovoce certificates` made, with the coordinator's key"
    )
    parties: tuple[str, ...] = Field(min_length=1, description="the names of the parties, each once")
    records: dict[str, int] | None = Field(
        None, description="the public number of records of each party, { north = 1000, ... }"
    )
    features: Count | dict[str, Count] | None = Field(
        None,
        description="the public number of features of every party, at least 1, or by columns { clinic = 12, ... }",
    )
    wait: float = Field(300.0, gt=0, description="seconds to wait for the parties to connect")
    timeout: float = Field(60.0, gt=0, description="seconds to wait for an answer")

    @property
    def ends(self) -> tuple[str, ...]:
        """Who is on the wire: the parties and, where there is one, the helper."""
        helper = getattr(self, "helper", None)  # of a training
        return self.parties if helper is None else (*self.parties, helper)

    def width(self, party: str) -> int | None:
        """The declared number of a party's features."""
        return self.features.get(party) if isinstance(self.features, dict) else self.features


class TrainingTable(FederationTable):
    """Parties elsewhere, which connect to this coordinator, and whether only sums over them are opened."""

    sums: Literal["plain", "secure"] = Field(
        "plain", description='by rows: "secure" (only sums over all parties are opened) or "plain"'
    )
    products: Literal["auto", "none", "secure"] = Field(
        "auto",
        description='by columns: "secure" (only sums over the whole table are opened), "none" (each party adds noise '
        'to all that it says) or "auto" (sealed where every party and the model allow it)',
    )
    helper: str | None = Field(
        None, min_length=1, description="of sealed sums: the name of the helper that deals; default: the coordinator"
    )
    pooling: Whole = Field(0, description="of sealed sums by rows: how many parties may pool with the dealer, from 0")
    curious: Count | None = Field(
        None, description="of sealed sums: how many parties may pool with one another, at least 1; default: all others"
    )
    absent: Whole = Field(0, description="of sealed sums by rows: how many parties may leave in the middle, from 0")
    spare: Whole = Field(
        0, description="of sealed sums by rows: how many sums may be asked again without those who left, from 0"
    )


class ColumnsTable(_Table):
    """The parties have some columns each, of the same people in the same order."""

    labels: Literal["shared", "public", "held"] = Field(
        "shared",
        description='"shared" (all parties know the labels), "public" (everybody may) or "held" (one party does)',
    )
    label_party: str | None = Field(
        None, min_length=1, description="the name of the party with the labels and the intercept; default: the first"
    )
    norms: dict[str, StrictFloat] | None = Field(
        None, description="the bound of each party's part of a row, { clinic = 0.8, lab = 0.6 }"
    )


class OutputTable(_Table):
    """Where the results go. Their names follow the model's, and the model's that of the job file."""

    model: str | None = Field(
        None, min_length=1, description="the path of the model file; default: NAME.json beside the job file NAME.toml"
    )
    report: str | None = Field(
        None, min_length=1, description="the path of the privacy report; default: NAME.privacy.json beside the model"
    )
    page: str | None = Field(
        None, min_length=1, description="the path of the readable page; default: NAME.privacy.html beside the model"
    )


class ViewTable(_Table):
    """The page for operators, at 127.0.0.1 alone, its metrics and its health; and what happens as lines of JSON."""

    port: int = Field(0, strict=True, ge=0, le=65535, description="the port of the page; 0 takes a free one")
    off: bool = Field(False, strict=True, description="true: no page, no metrics and no health")
    token: str | None = Field(
        None,
        min_length=1,
        description="a file that keeps the token of the address, made if it is not there; default: new at each start",
    )
    log: str | None = Field(
        None,
        min_length=1,
        description='a file for lines of JSON, or "-" for the standard output, then without texts for people',
    )


class _File(_Table):
    """A job file: where it stands, and paths relative to it."""

    _path: Path = PrivateAttr(Path("job.toml"))
    _used: tuple[str, ...] = PrivateAttr(())  # names of the environment that had a part in it

    @property
    def path(self) -> Path:
        """The file itself."""
        return self._path

    @property
    def set_elsewhere(self) -> str:
        """Which keys the environment has set, in words; empty if it set none."""
        return f"set by the environment, before any file: {', '.join(self._used)}" if self._used else ""

    def resolve(self, path: str) -> Path:
        """A path of the job as seen from here."""
        return self.path.parent / Path(path).expanduser()


File = TypeVar("File", bound=_File)


class Job(_File):
    """What to train. The data are one of [data], [[party]] or [federation]; with [columns] split by columns."""

    model: ModelTable = Field(description="what to train; [model] needs at least estimator")
    solver: SolverTable | None = Field(None, description="a table with name and the options of that solver")
    privacy: PrivacyTable = Field(description="the budget; [privacy] needs at least epsilon")
    bounds: BoundsTable = Field(default_factory=BoundsTable, description="a table of declared bounds")
    schema_table: SchemaTable | None = Field(None, alias="schema", description=_SCHEMA)
    data: SourceTable | None = Field(None, description="a table with file and label")
    party: tuple[PartyTable, ...] = Field((), description="tables [[party]] with name, file and label")
    federation: TrainingTable | None = Field(None, description="a table with listen, certificates and parties")
    columns: ColumnsTable | None = Field(None, description="a table with labels, label_party and norms, all optional")
    output: OutputTable = Field(default_factory=OutputTable, description="a table of paths")
    about: About = Field(default_factory=About, description="a table with dataset, purpose, analyst and note")
    view: ViewTable = Field(default_factory=ViewTable, description="a table with port, off, token and log")

    @property
    def known_schema(self) -> Schema | None:
        """What the columns of all files hold."""
        return None if self.schema_table is None else self.schema_table.declared(self)

    @property
    def sources(self) -> dict[str, SourceTable]:
        """The files of this process, by party; central data are one party named "data"."""
        return {"data": self.data} if self.data is not None else {table.name: table for table in self.party}

    @property
    def parties(self) -> list[str]:
        """Their names, here or elsewhere."""
        return list(self.federation.parties) if self.federation is not None else list(self.sources)

    @property
    def split(self) -> Literal["central", "rows", "columns"]:
        """How the data lie."""
        if self.columns is not None:
            return "columns"
        return "central" if self.data is not None else "rows"

    @property
    def label_party(self) -> str:
        """By columns: the party that has the labels, where one party alone has them."""
        return (self.columns and self.columns.label_party) or self.parties[0]

    def labelled(self, party: str) -> bool:
        """Whether a party knows the labels."""
        return self.columns is None or self.columns.labels != "held" or party == self.label_party

    def outputs(self) -> dict[str, Path]:
        """Where each result goes."""
        given = {key: self.resolve(path) for key, path in self.output.model_dump(exclude_none=True).items()}
        model = given.get("model", self.path.with_suffix(".json"))
        beside = {"report": f"{model.stem}.privacy.json", "page": f"{model.stem}.privacy.html"}
        return {"model": model, **{key: given.get(key, model.with_name(name)) for key, name in beside.items()}}

    def estimator(self) -> PrivateLinearModel:
        """The estimator that the job describes."""
        parameters = check_parameters(self.model, self.path)
        declared: dict[str, Any] = {
            "row_norm": self.bounds.row_norm,
            "entry_bound": self.bounds.entry_bound,
            "feature_ranges": self.bounds.ranges,
            "rescale": self.bounds.rescale,
            "schema": self.known_schema,
            "solver": "auto" if self.solver is None else self.solver.solver(self.path),
        }
        for key in ("label_bound", "classes"):
            value = getattr(self.bounds, key)
            if value is not None and key not in _fields(self.model.estimator):
                kind = "regression" if key == "label_bound" else "classification"
                raise InputError(
                    f"{self.path}: bounds.{key} = {value!r} is for {kind} and estimator = "
                    f"{self.model.estimator!r} does not take it; leave it out."
                )
            if value is not None:
                declared[key] = value
        return _class_of(self.model.estimator)(**self.privacy.model_dump(), **declared, **parameters)


class WireTable(FederationTable):
    """The parties of any job; what else it says of them does not matter here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class AlignmentJob(_File):
    """The parties of an alignment, from the job of a fit, a prediction or an evaluation, or a file of their own."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    federation: WireTable = Field(description="a table with listen, certificates and parties")


class PeopleJob(_File):
    """The people of a joint prediction: their columns are in files of this process or with parties elsewhere."""

    party: tuple[PartyTable, ...] = Field((), description="tables [[party]] with name and file")
    federation: FederationTable | None = Field(None, description="a table with listen, certificates and parties")


class EvaluationJob(_File):
    """Test records of an evaluation: one of [data], [[party]] or [federation], and their budget."""

    privacy: PrivacyTable = Field(description="the budget of the evaluation; [privacy] needs at least epsilon")
    people: Literal["others", "same"] = Field(
        "others", description='"others" (than those of the fit) or "same", which then pay for both'
    )
    label_party: str | None = Field(
        None, min_length=1, description="by columns: the name of the party that has the labels; default: the first"
    )
    data: SourceTable | None = Field(None, description="a table with file and label")
    party: tuple[PartyTable, ...] = Field((), description="tables [[party]] with name, file and label")
    federation: FederationTable | None = Field(None, description="a table with listen, certificates and parties")

    @property
    def parties(self) -> list[str]:
        """Their names, here or elsewhere."""
        return list(self.federation.parties) if self.federation is not None else list(self.sources)

    @property
    def label_holder(self) -> str:
        """By columns: the party that has the labels."""
        return self.label_party or self.parties[0]

    @property
    def sources(self) -> dict[str, SourceTable]:
        """The files of this process, by party."""
        return {"data": self.data} if self.data is not None else {table.name: table for table in self.party}


class PartyOf(SourceTable):
    """The party that a party file describes."""

    name: str = Field(min_length=1, description="the party's name, as in its certificate")
    predictions: str | None = Field(
        None, min_length=1, description="the file for predictions that this party is the recipient of"
    )
    aligned: str | None = Field(
        None, min_length=1, description="where an alignment is kept; default: FILE.aligned beside the records"
    )
    n_jobs: int | None = Field(None, description="threads for sums over its rows; -1 is all processors, the default 1")
    device: str | None = Field(None, description='where they are computed: "cpu" (default) or "cuda"')


class ConnectionTable(_Table):
    """Where the coordinator is."""

    coordinator: str = Field(min_length=3, description='host:port of the coordinator, for example "localhost:7443"')
    certificates: str = Field(min_length=1, description="the folder with authority.pem and this party's own two files")


class HelperTable(_Table):
    """The helper that a helper file describes."""

    name: str = Field(min_length=1, description="the helper's name, as in its certificate")


class HelperJob(_File):
    """A helper of sealed sums, which has no records and no ledger."""

    helper: HelperTable = Field(description="a table with name")
    federation: ConnectionTable = Field(description="a table with coordinator and certificates")
    view: ViewTable = Field(default_factory=ViewTable, description="a table with port, off, token and log")


class PolicyTable(_Table):
    """What the party demands of a plan."""

    max_epsilon: float = Field(math.inf, strict=True, gt=0, description="the most that one plan may cost, above 0")
    max_delta: float = Field(
        1.0, strict=True, gt=0, le=1, description="the largest delta of a plan, above 0 and at most 1"
    )
    predict_for: tuple[str, ...] = Field(
        (), description='who may learn joint predictions about these people, such as ["coordinator"] or a party'
    )
    predict_training: bool = Field(
        False, strict=True, description="true: predict also for the people of this file where it may be trained on"
    )
    tell_budget: bool = Field(
        False, strict=True, description="true: tell the coordinator what the account has, for the report of a fit"
    )
    approve_models: bool = Field(
        False, strict=True, description="true: use models that nobody approved, for a coordinator that is trusted"
    )
    sealed: bool = Field(
        False, strict=True, description="true: take part in sealed sums, whose promise rests on more than noise"
    )
    dealer: str = Field(
        "",
        description='who deals in sealed sums, "coordinator" or the name of a helper, and nobody else; "": the '
        "coordinator or a helper that is pinned, and no end that is pinned is left out",
    )
    curious: Count | None = Field(
        None, description="so few parties may pool with one another in a plan of sealed sums; default: all others"
    )
    unaligned: bool = Field(
        False, strict=True, description="true: seal columns also where records with identifiers were not aligned"
    )
    max_epsilon_pooled: float | None = Field(
        None,
        strict=True,
        gt=0,
        allow_inf_nan=False,
        description="the most that a plan may cost against the coordinator with all other parties; default: no limit, "
        "and by rows too sealed sums need the pins of all other ends",
    )
    align: tuple[str, ...] = Field((), description="the parties with which, all together, the records may be aligned")
    align_matched_by: str = Field(
        "",
        description='who alone may compare the lists of an alignment, "coordinator" or a party; "": as asked',
    )
    count_shared: tuple[str, ...] = Field((), description="the parties with each of which shared people may be counted")
    align_times: Whole = Field(3, description="in how many alignments the identifiers take part at most, from 0")
    align_ratio: float = Field(
        10.0,
        strict=True,
        gt=0,
        description="how many times longer than the own list of identifiers another party's may be",
    )


class PartyJob(_File):
    """A data holder that serves a remote coordinator."""

    party: PartyOf = Field(description="a table with name, file, label and ledger")
    federation: ConnectionTable = Field(description="a table with coordinator and certificates")
    policy: PolicyTable = Field(
        default_factory=PolicyTable, description="a table with max_epsilon, max_delta, predict_for"
    )
    bounds: BoundsTable | None = Field(None, description="the bounds that a plan must have, if any")
    peers: dict[str, str] = Field(
        default_factory=dict,
        description='the pins of other parties\' certificates, north = "sha256:...", as `sottovoce pin` prints them',
    )
    schema_table: SchemaTable | None = Field(None, alias="schema", description=_SCHEMA)
    view: ViewTable = Field(default_factory=ViewTable, description="a table with port, off, token and log")

    @property
    def known_schema(self) -> Schema | None:
        """What the columns of this party's own file hold."""
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

    def checked(self) -> Self:
        """The job itself, unless it asks for what a remote party cannot do: it keeps a ledger, always."""
        if self.bounds is not None and self.bounds.classes is not None:
            raise InputError(f"{self.path}: bounds.classes is the coordinator's to declare; a party file has none.")
        _check_names(self.path, [self.party.name])
        if self.party.ledger is None:
            raise InputError(
                f"party {self.party.name!r} has no ledger, and a party that others reach must have one: without it a "
                "restart would forget what was released, and the same question asked again would get fresh noise and "
                "be paid for by nobody. Make one with `sottovoce ledger create`, then name it as ledger."
            )
        return self


KINDS: Final = (Job, PeopleJob, EvaluationJob, PartyJob, HelperJob)


def load_job(path: Path) -> Job:
    """The job of a TOML file."""
    job = _load(path, Job)
    _check_one_source(job)
    names = [table.name for table in job.party] or job.parties
    _check_names(path, names)
    for key in ("records", "features"):
        _check_parties(job, f"federation.{key}", getattr(job.federation, key, None))
    if job.federation is not None:
        _check_sealing(job, job.federation)
    if job.columns is not None:
        _check_columns(job, job.columns)
    elif job.federation is not None and isinstance(job.federation.features, dict):
        raise InputError(
            f"{path}: federation.features = {job.federation.features} is for parties with different columns; by rows "
            "all have the same, so give one number, or declare the split with a table [columns]."
        )
    schema = job.known_schema
    declared = job.bounds.classes is not None or (schema is not None and schema.classes is not None)
    if job.federation is not None and not declared and "classes" in _fields(job.model.estimator):
        raise InputError(
            f"{path} lacks bounds.classes: remote parties do not tell which labels occur in their data. Declare "
            f"{BoundsTable.model_fields['classes'].description}."
        )
    if not declared and "class_weight" in job.model.parameters:
        raise InputError(f"{path}: model.class_weight is by class; declare the classes too, in bounds.classes.")
    if job.federation is not None and job.model.parameters.get("insecure_seed") is not None:
        raise InputError(
            f"{path}: model.insecure_seed is for parties in this process; remote ones draw their own noise. "
            "Leave it out."
        )
    check_parameters(job.model, path)
    if job.solver is not None:
        job.solver.solver(path)
    return job


def _check_names(path: Path, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two parties share a name in {', '.join(names)}; give each its own.")
    if COORDINATOR in names:
        raise InputError(f"{path}: {COORDINATOR!r} is no party's name: it is whoever asks; give the party another.")


def load_people_job(path: Path) -> PeopleJob:
    """The people of a joint prediction, from a TOML file."""
    job = _load(path, PeopleJob)
    names = list(job.federation.parties) if job.federation is not None else [table.name for table in job.party]
    if bool(job.party) == (job.federation is not None):
        raise InputError(f"{path} needs either [[party]] (files of this process) or [federation] (parties elsewhere).")
    _check_names(path, names)
    return job


def load_alignment_job(path: Path) -> AlignmentJob:
    """The parties of an alignment, from a TOML file."""
    job = _load(path, AlignmentJob)
    names = job.federation.parties
    if len(names) < 2:
        raise InputError(f"{path}: federation.parties = {list(names)}: an alignment needs two or more, each once.")
    _check_names(path, names)
    return job


def load_evaluation_job(path: Path) -> EvaluationJob:
    """The test records of an evaluation, from a TOML file."""
    job = _load(path, EvaluationJob)
    _check_one_source(job)
    names = list(job.federation.parties) if job.federation is not None else [table.name for table in job.party]
    _check_names(path, names)
    if job.label_party is not None and job.label_party not in names:
        raise InputError(f"{path}: label_party = {job.label_party!r} is no party; they are: {', '.join(names)}.")
    return job


def _check_one_source(job: Job | EvaluationJob) -> None:
    given = [name for name in ("data", "party", "federation") if getattr(job, name)]
    if len(given) != 1:
        found = f"has {' and '.join(f'[{name}]' for name in given)}" if given else "names no data"
        raise InputError(
            f"{job.path} {found}; give exactly one of [data] (all records here), [[party]] (several parties in this "
            "process) or [federation] (parties elsewhere)."
        )


def _check_parties(job: Job, key: str, table: object) -> None:
    """A table by party has each party and nobody else."""
    if isinstance(table, dict) and set(table) != set(job.parties):
        raise InputError(
            f"{job.path}: {key} names {', '.join(table)} where the parties are {', '.join(job.parties)}; "
            "give each party's number."
        )


def _check_sealing(job: Job, table: TrainingTable) -> None:
    """Sealed sums are of several parties, by rows or by columns as the job is; their numbers are for them alone."""
    own, other, split = ("products", "sums", "columns") if job.columns is not None else ("sums", "products", "rows")
    if (value := getattr(table, other)) != TrainingTable.model_fields[other].default:
        raise InputError(
            f"{job.path}: federation.{other} = {value!r} does not go with data split by {split}; there it is "
            f'{own} = "secure".'
        )
    numbers = {key: getattr(table, key) for key in ("helper", "pooling", "curious", "absent", "spare")}
    given = {key: value for key, value in numbers.items() if value != TrainingTable.model_fields[key].default}
    if getattr(table, own) in ("plain", "none"):
        if given:
            key, value = next(iter(given.items()))
            raise InputError(
                f'{job.path}: federation.{key} = {value!r} is for sealed sums; set {own} = "secure" too, or leave it '
                "out."
            )
        return
    _check_pools(job, table, given)


def _check_pools(job: Job, table: TrainingTable, given: Mapping[str, Any]) -> None:
    """Somebody is left to rely on, and a dealer that holds data is nobody's."""
    parties = len(table.parties)
    if parties < 2 and "secure" in (table.sums, table.products):
        raise InputError(f"{job.path}: federation.parties has one party, and sums are sealed over two or more.")
    for key in ("pooling", "absent", "spare"):
        if job.columns is not None and key in given:
            raise InputError(
                f"{job.path}: federation.{key} = {given[key]!r} is for data split by rows; by columns a dealer that "
                "pools with a party reads every column, and no party may leave. Leave it out."
            )
    if table.helper in (*table.parties, COORDINATOR):
        raise InputError(
            f"{job.path}: federation.helper = {table.helper!r} is a party or the coordinator; a helper holds no data "
            "and has a name and a certificate of its own."
        )
    if given and (table.pooling + table.absent >= parties or (table.curious or 1) >= parties):
        raise InputError(
            f"{job.path}: federation.pooling = {table.pooling}, absent = {table.absent} and curious = {table.curious} "
            f"leave none of {parties} parties to rely on; lower them."
        )
    if table.spare and not table.absent:
        raise InputError(
            f"{job.path}: federation.spare = {table.spare} is for sums without parties that left; set absent too."
        )


def _check_columns(job: Job, table: ColumnsTable) -> None:
    if job.data is not None:
        raise InputError(
            f"{job.path} has [columns] and [data]: all columns of one file are in one place. Leave [columns] out, or "
            "give a [[party]] for each file, or [federation]."
        )
    if job.label_party not in job.parties:
        meant = did_you_mean(job.label_party, job.parties)
        raise InputError(
            f"{job.path}: columns.label_party = {table.label_party!r} is no party{meant} "
            f"The parties are: {', '.join(job.parties)}."
        )
    _check_parties(job, "columns.norms", table.norms)
    for party, source in job.sources.items():
        if source.cluster is not None:
            raise InputError(
                f"{job.path}: party {party!r} has cluster = {source.cluster!r}, which is for whole rows; leave it out."
            )
        if job.labelled(party) and not source.has_label and job.schema_table is None:
            raise InputError(
                f"{job.path}: party {party!r} has no label, and columns.labels = {table.labels!r} says that it knows "
                'the labels. Name the label column of its file, or set columns.labels to "held" and '
                "columns.label_party to the party that has them."
            )
        if source.label is not None and not job.labelled(party):
            raise InputError(
                f'{job.path}: party {party!r} has label = {source.label!r} and columns.labels = "held", by '
                f"{job.label_party!r} alone. Take that column out of its file and leave label out, or set "
                'columns.labels to "shared".'
            )


def load_party_job(path: Path) -> PartyJob:
    """The party of a TOML file."""
    return _load(path, PartyJob).checked()


def party_job(tables: Mapping[str, Any], path: Path) -> PartyJob:
    """The party of plain tables, for example from the command line; paths are relative to the folder of `path`."""
    found, used = overlaid({}, PartyJob, KINDS, os.environ)
    both = {name: {**found.get(name, {}), **tables.get(name, {})} for name in (*tables, *found)}
    given = {name_of(table, key) for table, keys in tables.items() for key in keys}
    return _validate(both, path, PartyJob, [name for name in used if name not in given]).checked()


def load_helper_job(path: Path) -> HelperJob:
    """The helper of a TOML file."""
    return _load(path, HelperJob)


def check_parameters(table: ModelTable, path: Path) -> dict[str, Any]:
    """The estimator's parameters of the job, each of the type that the estimator declares."""
    from sottovoce.solvers import SOLVERS

    fields = _fields(table.estimator)
    elsewhere = {
        **{name: "[solver]" for kind in SOLVERS.values() for name in kind.names()},
        "solver": "[solver], as name",
        **dict.fromkeys(PrivacyTable.model_fields, "[privacy]"),
        **dict.fromkeys(BoundsTable.model_fields, "[bounds]"),
        "schema": "[schema]",
        "ledger": "[data] or [[party]]",
        "verbose": "the command line (--quiet)",
    }
    allowed = [name for name in fields if name not in elsewhere]
    hints = typing.get_type_hints(_class_of(table.estimator))
    for key, value in table.parameters.items():
        if key in elsewhere:
            raise InputError(f"{path}: model.{key} = {value!r} belongs in {elsewhere[key]}; move it there.")
        if key not in allowed:
            raise _unknown_key(path, "model", key, ["estimator", *allowed])
        try:
            TypeAdapter(hints[key]).validate_python(value, strict=True)
        except ValidationError:
            kind = str(fields[key].type)
            raise InputError(f"{path}: model.{key} = {value!r} is not allowed: it must be of type {kind}.") from None
    return table.parameters


def _class_of(estimator: str) -> type[PrivateLinearModel]:
    from sottovoce import estimators

    return typing.cast("type[PrivateLinearModel]", getattr(estimators, ESTIMATORS[estimator]))


def _fields(estimator: str) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(_class_of(estimator))}


def tables_of(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    remedy = "give the path of a job file in TOML. Texts are in quotes, tables in [brackets]."
    tables: dict[str, Any] = parsed(path, tomllib.loads, "TOML", remedy)
    if _has_nul(tables):
        raise InputError(f"{path} has a text with the character NUL, which no name or path has; take it out.")
    return tables


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, value)) or any(map(_has_nul, value.values()))
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


def _load(path: Path, kind: type[File]) -> File:
    tables, used = overlaid(tables_of(path), kind, KINDS, os.environ)
    return _validate(tables, path, kind, used)


def _validate(tables: Mapping[str, Any], path: Path, kind: type[File], used: Sequence[str] = ()) -> File:
    """The file of plain tables; `used` are the names of the environment that had a part in them."""
    try:
        job = kind.model_validate(tables)
    except ValidationError as error:
        where = f"{path} (with {', '.join(used)} of the environment)" if used else str(path)
        raise _explained(where, kind, error) from None
    job._path, job._used = path, tuple(used)
    return job


def _explained(path: str, kind: type[BaseModel], error: ValidationError) -> InputError:
    """One fault, in the words of the field's own description; a mistyped key explains a missing one, so it is first."""
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    place, table, keys = "", kind, [part for part in fault["loc"] if isinstance(part, str)]
    for depth, key in enumerate(keys):
        if fault["type"] == "extra_forbidden" and depth == len(keys) - 1:
            return _unknown_key(path, place, key, list(keys_of(table)))
        if key not in keys_of(table):
            break
        place = f"{place}.{key}" if place else key
        field = keys_of(table)[key]
        inner = [t for t in types_of(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)]
        if not inner:
            break
        table = inner[0]
    if fault["type"] == "missing":
        return InputError(f"{path} lacks {place}: {field.description}.")
    return InputError(f"{path}: {place} = {fault['input']!r} is not allowed: give {field.description}.")


def _unknown_key(path: Path | str, table: str, key: str, allowed: Sequence[str], of: str = "") -> InputError:
    place = f"[{table}]{of} has" if table else "there is"
    kind = "key" if table else "table"
    return InputError(
        f"{path}: {place} no {kind} {key!r}{did_you_mean(key, allowed)} Allowed are: {', '.join(allowed)}."
    )
