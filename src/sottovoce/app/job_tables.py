"""The tables of job files: their keys, what each may be, and its description in errors and in the documentation."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, StrictFloat

from sottovoce.app.job_file import JobFile, JobTable, key, needed, unknown_key
from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import MOST_FEATURES
from sottovoce.privacy.events import SMALLEST_DELTA, Relation

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


class ModelTable(JobTable, extra="allow"):
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


class SolverTable(JobTable, extra="allow"):
    """Which solver; every further key is one of its options."""

    name: str = needed('the name of a solver, as `sottovoce solvers` lists them, or "auto"')

    def make_solver(self, job: JobFile) -> str | Options:
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


class SchemaTable(JobTable):
    """What the columns of the files hold, instead of bounds of the features."""

    file: Text | None = key("a TOML file with a table [schema], instead of the keys")
    label: Text | None = key("the name of the label column")
    identifiers: Names = key('columns that are no features, such as ["id"]', ())
    format: int | None = key("the number of the schema's format, as drafts have it")
    columns: dict[str, Any] | None = key(
        'for each column { range = [low, high] }, { range = "private" }, { levels = [...] } or '
        "{ yes = ..., no = ... }, with missing, other, fill and narrow where wanted"
    )

    def make_schema(self, job: JobFile) -> Schema:
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


class PartyOf(SourceTable):
    """The party of a party file."""

    name: Text = needed("the party's name, as in its certificate")
    predictions: Text | None = key("the file for predictions that this party is the recipient of")
    aligned: Text | None = key("where the alignment is stored; default: FILE.aligned beside the records")
    n_jobs: int | None = key("threads for sums over its rows; -1 is all processors, the default 1")
    device: str | None = key('where they are computed: "cpu" (default) or "cuda"')


class ConnectionTable(JobTable):
    """Where the coordinator is."""

    coordinator: Address = needed('host:port of the coordinator, for example "localhost:7443"')
    certificates: Text = needed("the folder with authority.pem and this party's own two files")


class DealerTable(JobTable):
    """The dealer."""

    name: Text = needed("the dealer's name, as in its certificate")


class PolicyTable(JobTable):
    """What the party demands of a plan."""

    max_epsilon: Positive = key("the most that one plan may cost, above 0", math.inf)
    max_delta: float = key("the largest delta of a plan, above 0 and at most 1", 1.0, strict=True, gt=0, le=1)
    predict_for: Names = key('who may learn joint predictions about these people: ["coordinator"] or a party', ())
    predict_training: Flag = key("true: predict also for the people of this file where it may be trained on", False)
    tell_budget: Flag = key("true: tell the coordinator what the account has, for the report of a fit", False)
    approve_models: Flag = key("true: use models that nobody approved, for a coordinator that is trusted", False)
    secure: Flag = key("true: accept secure aggregation, whose guarantee rests on more than noise", False)
    dealer: str = key(
        'the only dealer that is accepted, "coordinator" or a name; "": the coordinator or a pinned dealer, '
        "in a plan with everybody who is pinned",
        "",
    )
    colluding: Count | None = key(
        "the least number of colluding parties that a plan must withstand; default: all others"
    )
    unaligned: Flag = key("true: accept secure columns also if records with identifiers were not aligned", False)
    max_epsilon_colluding: Finite | None = key(
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
