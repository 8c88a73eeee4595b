"""From a job to a run: what it would cost, the federation it runs on, and what it leaves behind."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from sottovoce import __version__, algorithms
from sottovoce.app.costs import LONG, Cost, cost_of
from sottovoce.app.estimates import InFiles, InMemory, OnCluster, OnDevice, Place, PreparedRows, Rows
from sottovoce.app.interrupted import Begun, receipts_path, state_path
from sottovoce.app.jobs import EvaluationJob, FederationTable, Job, PartyTable, PeopleJob, SourceTable
from sottovoce.app.model_file import plain, to_json
from sottovoce.app.page import Occasion, page
from sottovoce.app.sources import (
    goes_by_pieces,
    join,
    read_features,
    read_ids,
    read_party,
    source_account,
    source_shape,
    table_shape,
)
from sottovoce.app.superuser import warn_as_root
from sottovoce.data import devices
from sottovoce.data.block import BlockRows
from sottovoce.data.files import format_of, is_pattern, list_files, read_table
from sottovoce.errors import BudgetError, InputError, SottovoceError, WireError
from sottovoce.estimators import PrivateLinearModel, privacy_report
from sottovoce.estimators.declarations import solver_name
from sottovoce.estimators.fits import Fit
from sottovoce.estimators.ranges import EstimatedRanges
from sottovoce.federation.coordinator import check_aligned, check_people
from sottovoce.federation.declared import Declared
from sottovoce.federation.federation import Federation
from sottovoce.federation.journal import Journal
from sottovoce.federation.models import Models
from sottovoce.federation.party import Party
from sottovoce.federation.plan_checks import charge_of, check_place, part_of_fit
from sottovoce.files import check_writable, read_plain, sync_folder, write_data, write_text
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.ledger import Account, Balance, Receipt
from sottovoce.solvers.auto import WHY
from sottovoce.transports.base import Transport
from sottovoce.transports.in_process import InProcess

Say = Callable[[str], None]

LONGER: Final = 3.0  # seconds, roughly, from which on a fit is rehearsed before it starts
_SHAPE_READ: Final = "only the shape (rows and header) was read of"
_IDS_READ: Final = "identifiers were read"


@dataclass(frozen=True)
class Facts:
    """What is public about a party's data. Names are empty where only their number is declared."""

    party: str
    records: int
    features: int
    feature_names: tuple[str, ...] = ()
    classes: tuple[Any, ...] = ()
    solvers: tuple[str, ...] | None = None  # that its rows serve where they lie; None: every one


@dataclass(frozen=True)
class Run:
    """A job at its parties: they were asked once for what is public, and of it the one plan was made."""

    job: Job
    model: PrivateLinearModel
    training: Fit
    notes: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """What `fit` will run."""
        return self.training.plan


@dataclass(frozen=True)
class Charge:
    """What a plan would do to one account; `after` is None where it would be refused, and `refusal` says why."""

    party: str
    ledger: str
    account: str
    before: Balance
    after: Balance | None
    refusal: str = ""


@dataclass(frozen=True)
class Preview:
    """Everything known about a run before it happens. Public throughout."""

    plan: Plan  # the fit's own
    plans: tuple[Plan, ...]  # all that is charged, in the order in which it runs
    report: PrivacyReport
    cost: Cost
    charges: tuple[Charge, ...]
    notes: tuple[str, ...]
    why: str  # the plan has its solver: by "auto" with the reason, or as the job says
    sums: str = ""  # by columns, where it was left open: whether sums are sealed, and why
    first: EstimatedRanges | None = None  # of ranges, which the plan waits for
    prepared: tuple[PreparedRows, ...] = ()  # where prepared rows will lie, if that is known

    @property
    def files_opened(self) -> bool:
        """Whether a data file was opened, for its shape."""
        return any(note.startswith((_SHAPE_READ, _IDS_READ)) for note in self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "solver": self.plan.algorithm,
            "why": self.why,
            **({"sums": self.sums} if self.sums else {}),
            "split": self.plan.split,
            "parties": dict(self.plan.parties),
            "features": self.plan.features,
            **by_columns(self.plan),
            "privacy": self.report.to_dict(),
            "releases": [release.model_dump() for plan in self.plans for release in plan.releases],
            **({} if self.first is None else {"ranges": _bought(self.first)}),
            "cost": asdict(self.cost),
            "prepared_rows": [_lying(each) for each in self.prepared],
            "ledgers": [asdict(charge) for charge in self.charges],
            "notes": list(self.notes),
        }


def _lying(prepared: PreparedRows) -> dict[str, Any]:
    """Where prepared rows will lie, in plain numbers and texts."""
    told = {"bytes": prepared.size, "where": prepared.where}
    if prepared.folder is not None:
        told["folder"] = str(prepared.folder)
    return told | ({"workers": prepared.workers} if prepared.workers else {})


def _bought(first: EstimatedRanges) -> dict[str, Any]:
    """Which ranges would be bought, and for how much of the budget."""
    return {"columns": [column.name for column in first.columns.values()], "share": first.share}


def by_columns(plan: Plan) -> dict[str, Any]:
    """By columns: who has how many, and who knows the labels."""
    if plan.split != "columns":
        return {}
    names = [party for party, _ in plan.parties]
    widths = dict(zip(names, plan.columns, strict=True))
    return {"columns": widths, "labels": plan.labels, "label_party": names[plan.label_party]}


def job_facts(job: Job) -> tuple[list[Facts], list[str]]:
    """The public facts of a job, and notes that say which files were opened for their shape."""
    facts, opened = [] if job.federation is None else _declared_facts(job, job.federation), []
    schema = job.known_schema
    for party, source in job.sources.items():
        whole = schema is not None and job.split != "columns"
        path = job.resolve(source.file)
        served = algorithms.served(BlockRows) if goes_by_pieces(source, path, schema) else None
        if source.records is not None and (source.features is not None or whole):
            names = schema.feature_names if schema is not None and whole else ()
            facts.append(Facts(party, source.records, source.features or len(names), names, solvers=served))
            continue
        if schema is None:
            records, names = source_shape(source, job.resolve, labelled=job.labelled(party))
        else:
            records, header = source_shape(source, job.resolve, schema)
            names = (schema if whole else schema.part(header)).feature_names
        facts.append(Facts(party, records, len(names), names, solvers=served))
        opened.append(str(path))
    notes = [f"{_SHAPE_READ}: {', '.join(opened)}; declare records and features to open none"] if opened else []
    if (common := _common(job)) is not None:
        facts = [replace(fact, records=common) for fact in facts]
        notes.append(f"{_IDS_READ}: the {common:,} people that all files have are used, in the order of the first")
    facts = _with_names(job, facts)
    _check_facts(job, facts)
    return facts, notes


def _common(job: Job) -> int | None:
    """By columns, where every file of this process names identifiers: how many all have, as the fit joins them."""
    sources = job.sources
    if job.split != "columns" or len(sources) < 2 or any(source.id is None for source in sources.values()):
        return None
    lists = [read_ids(source, job.resolve, party) or () for party, source in sources.items()]
    return len(set(lists[0]).intersection(*lists[1:]))


def accounts_of(job: Job | EvaluationJob) -> dict[str, Account]:
    """The account that pays for each party of this process, where it has one; no two parties share one."""
    accounts: dict[str, Account] = {}
    for party, source in job.sources.items():
        account = source_account(source, job.resolve)
        for other, taken in accounts.items():
            if account == taken:
                raise InputError(
                    f"parties {other!r} and {party!r} name one account, {taken.dataset!r} in {taken.path}; an account "
                    "is of one data set, and the second would repeat what the first released. Give each its own."
                )
        if account is not None:
            accounts[party] = account
    return accounts


def planned(job: Job, known: tuple[list[Facts], list[str]] | None = None) -> Preview:
    """What the job would do, made from public facts, `known` already or not. Nothing is charged, no record is read."""
    facts, notes = job_facts(job) if known is None else known
    helper = [] if job.federation is None or job.federation.helper is None else [job.federation.helper]
    ends = InProcess([Declared(name) for name in (*(fact.party for fact in facts), *helper)])
    federation, model = _federation(job, ends), job.estimator()
    if model.asks_for_classes:  # which two they are changes nothing about what a plan promises
        facts = [replace(fact, classes=(0, 1)) for fact in facts]
        notes = [
            *notes,
            "bounds.classes is not declared: the fit reads the two labels from the data and counts them as public",
        ]
    seeded = model.insecure_seed is not None
    run = _prepared(job, model.set_params(insecure_seed=None), federation, facts)
    _check_places(run)
    run = replace(run, notes=(*notes, *run.notes))
    if federation.undecided and job.federation is not None:
        note = (
            "products is left open, and nobody was asked: this is as if every party took part in sealed sums "
            "(policy.sealed); if one does not, each adds noise to all that it says"
        )
        run = replace(run, notes=(*run.notes, note))
    return preview(run, seeded=seeded, ahead=True)


def _check_places(run: Run) -> None:
    """Refuse what a party of this process will refuse, since its rows do not serve the solver where they will lie."""
    job, schema = run.job, run.job.known_schema
    with devices.on(run.model.device):
        for name, source in job.sources.items():
            by_pieces = goes_by_pieces(source, job.resolve(source.file), schema)
            for plan in run.training.plans:
                clustered = source.cluster is not None
                check_place(algorithms.of(plan), plan, name, by_pieces=by_pieces, clustered=clustered)


def preview(run: Run, *, seeded: bool | None = None, charged: bool = False, ahead: bool = False) -> Preview:
    """The guarantee and the cost of a run; `seeded` says whether its noise will come from a known seed.

    One that was `charged`, before it was stopped, does no more to a ledger. One that is looked at `ahead` is rehearsed
    for what it takes also if that is not long; of another that is not rehearsed no time is told.
    """
    plan, plans, accounts = run.plan, run.training.plans, accounts_of(run.job)
    seeded = run.model.insecure_seed is not None if seeded is None else seeded
    rows = [_rows_of(run, each, unread=ahead and not place) for place, each in enumerate(plans)]
    costs = [
        cost_of(
            each,
            algorithms.of(each),
            [account.path.parent for account in accounts.values()],
            receipts=len(plan.names) if run.job.federation is not None else len(accounts),
            shown=len(kept_receipts(run.job).keys() & set(plan.names)),
            remote=run.job.federation is not None,
            rows=held,
            worth=LONG if ahead else LONGER,
        )
        for each, held in zip(plans, rows, strict=True)
    ]
    if not ahead:
        costs = [each if each.memory_bytes is not None else replace(each, seconds=None) for each in costs]
    place = plans.index(plan)
    lying = _prepared_rows(run, rows[place], rehearsed=costs[place].memory_bytes is not None)
    notes = (*run.notes, *(_full(lying) if ahead else ()))
    return Preview(
        plan=plan,
        report=privacy_report(plan, seeded=seeded, beside=[each for each in plans if each is not plan]),
        cost=sum(costs[1:], costs[0]),
        charges=() if charged else tuple(_charge(plans, party, account) for party, account in accounts.items()),
        notes=notes,
        why=f'by "auto": {WHY[plan.algorithm]}' if solver_name(run.model.solver) == "auto" else "as the job says",
        sums=run.training.federation.why,
        first=run.training.ranges,
        plans=plans,
        prepared=lying,
    )


def _prepared_rows(run: Run, rows: Rows | None, *, rehearsed: bool) -> tuple[PreparedRows, ...]:
    """Where the prepared rows of a fit will lie, if they are of this process or its cluster.

    A cluster is asked for its workers after a rehearsal there alone.
    """
    if rows is None or run.job.federation is not None or run.plan.split == "columns":
        return ()
    if isinstance(rows, OnCluster) and not rehearsed:
        return ()
    try:
        return tuple(rows.prepared(run.plan))
    except SottovoceError:
        return ()  # of a cluster that does not answer the fit tells


def _full(lying: Sequence[PreparedRows]) -> Iterator[str]:
    """What a fit would say of folders without room for its prepared rows."""
    for each in lying:
        try:
            each.check()
        except InputError as error:
            yield str(error)


def _rows_of(run: Run, plan: Plan, *, unread: bool) -> Rows | None:
    """Where the rows of a plan lie, if that is known here; `unread` says that files are still to be read.

    How many entries a LIBSVM file has is guessed from its size: 8 bytes for each.
    """
    job, schema = run.job, run.job.known_schema
    sources = list(job.sources.values())
    paths = [job.resolve(source.file) for source in sources]
    files = [file for path in paths for file in (list_files(path) if path.is_dir() or is_pattern(path) else [path])]
    size = sum(path.stat().st_size for path in files if format_of(path).sparse and path.is_file())
    entries = min(size / 8 / plan.records, plan.features) if size else None
    told = (plan.records, plan.features, entries, run.model.n_jobs)
    read: dict[str, Any] = {"kind": format_of(files[0]).suffixes[0] if files else None, "schema": schema is not None}
    clusters = {source.cluster for source in sources}
    if clusters - {None}:
        return OnCluster(*told, **read, cluster=clusters.pop()) if len(clusters) == 1 else None
    if run.model.device not in (None, "cpu"):
        return OnDevice(*told, **read, here=not unread and bool(sources))
    if any(goes_by_pieces(source, path, schema) for source, path in zip(sources, paths, strict=True)):
        return InFiles(*told, **read, places=tuple(_place(job, source) for source in sources))
    return InMemory(*told, **read, here=not unread and bool(sources))


def _place(job: Job, source: SourceTable) -> Place:
    """Where a source wants its prepared rows that go to a file."""
    folder, beside = (None if path is None else job.resolve(path) for path in (source.folder, source.ledger))
    whole = not goes_by_pieces(source, job.resolve(source.file), job.known_schema)
    return Place(folder, None if beside is None else beside.parent, whole)


@contextmanager
def opened(
    job: Job,
    say: Say,
    begun: Begun | None = None,
    over: Callable[[Transport], Transport] = lambda wire: wire,
    wire: Transport | None = None,
) -> Iterator[Run]:
    """A job at its parties: files are read here, or remote parties are waited for; nothing is charged.

    A fit that was `begun` goes on, with what the parties declared then. `over` may put something between the
    coordinator and the wire; `wire` is one to the remote parties that is there already, else they connect over gRPC.
    """
    model = job.estimator()
    state = Journal() if begun is None else begun.journal
    if job.federation is not None:
        federation = _federation(job, over(wire or _wire(job.federation, job.resolve, say, state)))
    else:
        federation = _local(job, over)
    with contextlib.closing(federation):
        if begun is not None and state.begun:
            facts = [_fact_of(told) for told in begun.facts]
        else:
            facts = _facts(federation, classes=model.asks_for_classes)
        _check_facts(job, facts)
        federation.receipts |= kept_receipts(job)
        if begun is not None and federation.counted:
            federation.journal = state
            if not state.begun:
                state.about = begun.beginning(facts)
        if job.federation is not None:
            _check_declared(job.federation, facts)
        elif job.split == "columns":
            federation.check_labels()
        yield _prepared(job, model, federation, facts, runs=True)


@contextmanager
def people(job: PeopleJob, model: PrivateLinearModel, say: Say) -> Iterator[Federation]:
    """The people of a joint prediction: files are read here, each for itself, or remote parties are waited for."""
    if model.plan_.split != "columns":
        raise InputError("a job of people is for a model by columns; give predict a file of records instead.")
    if job.federation is not None:
        federation = Federation.connect(_wire(job.federation, job.resolve, say), split="columns")
    else:
        parties = [_person_holder(job, table, model) for table in job.party]
        join(parties)
        federation = Federation("columns", InProcess(parties), parties=parties)
    with contextlib.closing(federation):
        yield federation
        federation.dismiss()


@contextmanager
def tested(job: EvaluationJob, model: PrivateLinearModel, say: Say, begun: Begun) -> Iterator[Federation]:
    """The holders of test records: files are read here, or remote parties are waited for.

    An evaluation that was `begun` goes on, with what they declared then. A file is read by the model's schema, if it
    has one. What they tell of their ledgers is kept beside the job, however the evaluation ends.
    """
    if model.plan_.split == "columns":
        federation = _tested_columns(job, model, say, begun.journal)
    elif job.federation is not None:
        federation = Federation.connect(_wire(job.federation, job.resolve, say, begun.journal))
    else:
        parties = [_test_holder(job, name, source, model) for name, source in job.sources.items()]
        federation = Federation("central" if job.data is not None else "rows", InProcess(parties), parties=parties)
    with contextlib.closing(federation):
        facts = [_fact_of(told) for told in begun.facts] or _facts(federation, classes=False)
        federation.receipts |= kept_receipts(job)
        federation.declared = {fact.party: asdict(fact) for fact in facts}
        if federation.counted:
            federation.journal = begun.journal
            if not begun.journal.begun:
                begun.journal.about = begun.beginning(facts)
        try:
            yield federation
        finally:
            keep_receipts(job, federation.receipts)


def _tested_columns(job: EvaluationJob, model: PrivateLinearModel, say: Say, state: Journal) -> Federation:
    """By columns: each file has some columns of the same people, that of one party the labels too."""
    holder = job.label_holder
    if job.federation is not None:
        made = Federation.connect(_wire(job.federation, job.resolve, say, state), split="columns")
    else:
        parties = [_person_holder(job, table, model, labelled=table.name == holder) for table in job.party]
        join(parties)
        made = Federation("columns", InProcess(parties), parties=parties)
    return made.declare_columns("held", job.parties.index(holder), None)


def _test_holder(job: EvaluationJob, name: str, source: SourceTable, model: PrivateLinearModel) -> Party:
    """One file of test records."""
    if (schema := model.schema_) is None:
        return read_party(name, source, job.resolve, labelled=True)
    names = tuple(getattr(model, "feature_names_in_", schema.feature_names))
    return read_party(name, source, job.resolve, schema=schema.of_features(names), labelled=True)


def _person_holder(
    job: PeopleJob | EvaluationJob, table: PartyTable, model: PrivateLinearModel, *, labelled: bool = False
) -> Party:
    """One file of a joint prediction: the model's columns of that party, by their names where it has names.

    For an evaluation it has the account that pays and, if `labelled`, the labels.
    """
    if table.name not in dict(model.plan_.parties):
        known = ", ".join(name for name, _ in model.plan_.parties)
        raise InputError(f"{job.path}: party {table.name!r} is none of the model's; they are {known}.")
    if table.cluster is not None:
        raise InputError(f"{job.path}: party {table.name!r} has cluster = {table.cluster!r}, which is for whole rows.")
    part = model.plan_.part(table.name)
    names = tuple(getattr(model, "feature_names_in_", ())[part.start : part.stop])
    if (schema := model.schema_) is not None:
        rows = schema.of_features(names).encode(job.resolve(table.file))
    else:
        rows, _ = read_features(names, part.stop - part.start, job.resolve(table.file))
    account = source_account(table, job.resolve) if isinstance(job, EvaluationJob) else None
    ids: dict[str, Any] = {"ids": read_ids(table, job.resolve, table.name), "id_rule": table.id_rule}
    if not labelled:
        models = None if table.ledger is None else Models.beside(job.resolve(table.ledger), table.name)
        return Party(table.name, rows, None, feature_names=names, models=models, account=account, **ids)
    path = job.resolve(table.file)
    if schema is not None:
        labels = schema.labels(path)
    else:
        features = None if format_of(path).tabular else part.stop - part.start
        labels = read_table(path, label=table.label, features=features, left_out=table.id).y
    if labels is None:
        raise InputError(f"{path} lacks the labels of party {table.name!r}; name their column as label.")
    return Party(table.name, rows, labels, feature_names=names, account=account, **ids)


def _fact_of(told: Mapping[str, Any]) -> Facts:
    served = None if told.get("solvers") is None else tuple(told["solvers"])
    names, classes = tuple(told["feature_names"]), tuple(told["classes"])
    return Facts(**{**told, "feature_names": names, "classes": classes, "solvers": served})


def _known(fact: Mapping[str, Any]) -> dict[str, Any]:
    """Of what a party declares that which a plan is made of."""
    return {key: fact[key] for key in ("records", "features", "feature_names", "classes", "solvers") if key in fact}


def fit(run: Run, progress: Callable[[int, int], None] | None = None) -> PrivateLinearModel:
    """Train: run the plan that a preview showed. What parties told of their ledgers is kept, however the run ends."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the model is here, but")  # the caller tells of missing_parts_
            run.training.run(progress)
    finally:
        keep_receipts(run.job, run.training.session.coordinator.receipts)
    return run.model


def keep_receipts(job: Job | EvaluationJob, receipts: Mapping[str, Receipt]) -> None:
    """Write the last receipt of each party beside the job."""
    if receipts:
        write_text(receipts_path(job), json.dumps(receipts_of(receipts), indent=2) + "\n", "receipts")


def receipts_of(receipts: Mapping[str, Receipt]) -> dict[str, str]:
    """By party, as `sottovoce ledger verify --receipt` takes them."""
    return {name: str(receipt) for name, receipt in receipts.items()}


def kept_receipts(job: Job | EvaluationJob) -> dict[str, Receipt]:
    """The receipts of earlier runs of a job."""
    path = receipts_path(job)
    try:
        found = json.loads(read_plain(path))
        return {str(name): Receipt.read(text) for name, text in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError):
        raise InputError(
            f"{path} cannot be read as receipts, by which a ledger that was set back is found; restore it, or remove "
            "it to do without them once."
        ) from None


def require_budget(shown: Preview) -> None:
    """Raise what a ledger of this process would answer, while no other party has been charged yet."""
    for charge in shown.charges:
        if charge.after is None:
            raise BudgetError(
                f"party {charge.party!r}, account {charge.account!r}: {charge.refusal} Nothing was charged."
            )


def check_outputs(job: Job, *, overwrite: bool = False) -> None:
    """Every result can be written, and none would replace another, something the job reads, or a file that is there."""
    taken = {job.path.resolve(): "the job itself", state_path(job).resolve(): "where the state of the fit is kept"}
    for party, source in job.sources.items():
        for given in filter(None, (source.file, source.ledger)):
            taken[job.resolve(given).resolve()] = f"a file of party {party!r}"
    for key, path in job.outputs().items():
        if path.resolve() in taken:
            raise InputError(f"output.{key}={str(path)!r} is {taken[path.resolve()]}; give another path.")
        taken[path.resolve()] = f"output.{key}"
        check_writable(path, f"output.{key}", overwrite=overwrite)


def occasion_of(
    model: PrivateLinearModel, before: Mapping[str, Balance], after: Mapping[str, Balance], seconds: float
) -> Occasion:
    """What a report says of a training: the hash of its model file, its ledgers, where they are here, and its time."""
    return Occasion(
        about=model.plan_.about.texts(),
        receipts=receipts_of(model.receipts_),
        ledgers=[
            *((party, balance, after[party]) for party, balance in before.items()),
            *((party, *told) for party, told in model.budgets_.items() if party not in before),
        ],
        model_hash=hashlib.sha256(to_json(model).encode()).hexdigest(),
        seconds=seconds,
    )


def texts_of(model: PrivateLinearModel, occasion: Occasion) -> dict[str, str]:
    """What a fit leaves behind: model, privacy report and page."""
    return {
        "model": to_json(model),
        "report": json.dumps(plain(report_of(model, occasion)), indent=2, allow_nan=False) + "\n",
        "page": page(model, occasion),
    }


def write_outputs(
    job: Job, model: PrivateLinearModel, occasion: Occasion, *, overwrite: bool = False
) -> dict[str, Path]:
    """Model, privacy report and page, in their places and durable."""
    return write_texts(job, texts_of(model, occasion), overwrite=overwrite)


def write_texts(job: Job, texts: Mapping[str, str], *, overwrite: bool = False) -> dict[str, Path]:
    """Put the texts of a fit in their places; should one no longer be writable, an error names the folder they are in.

    A file that came to be there since it was checked is not replaced either, unless that is asked for, or it has the
    very text: a fit that was stopped while it wrote.
    """
    paths = job.outputs()
    try:
        for key, text in texts.items():
            write_once(paths[key], text.encode(), f"output.{key}", overwrite=overwrite)
    except InputError as error:
        folder = Path(tempfile.mkdtemp(prefix="sottovoce-"))
        for key, text in texts.items():
            write_text(folder / paths[key].name, text, key)
        raise InputError(f"{error} The fit is done and paid for: its results are in {folder}.") from None
    return paths


def write_once(path: Path, data: bytes, what: str, *, overwrite: bool) -> None:
    """Write a result, unless a run that was stopped has written it."""
    if not _has(path, data):
        empty = _has(path, b"")  # as one leaves it that was stopped on a disk without hard links
        write_data(path, data, what, overwrite=overwrite or empty)


def _has(path: Path, data: bytes) -> bool:
    """Whether a file has those very bytes, and keeps them."""
    try:
        if read_plain(path) != data:
            return False
        sync_folder(path.parent)
    except OSError:
        return False
    return True


def report_of(model: PrivateLinearModel, occasion: Occasion) -> dict[str, Any]:
    """The privacy report of a fitted model, with what it was for, what left the parties and how much was said."""
    return {
        "about": dict(occasion.about),
        "software": f"sottovoce {__version__}",
        "plan_digest": model.charged_as_,
        "model_sha256": occasion.model_hash,
        **model.privacy_.to_dict(),
        "feature_names": list(getattr(model, "feature_names_in_", [])),
        "budgets": {party: {"before": vars(old), "after": vars(new)} for party, old, new in occasion.ledgers},
        "receipts": dict(occasion.receipts),
        **by_columns(model.plan_),
        "releases": [release.model_dump() for plan in model.plans_ for release in plan.releases],
        **({"bought_ranges": model.ranges_} if hasattr(model, "ranges_") else {}),
        **({"alpha": model.alpha_} if hasattr(model, "alpha_") else {}),
        "communication": asdict(model.communication_),
        "missing_parts": model.missing_parts_,
    }


def _local(job: Job, over: Callable[[Transport], Transport]) -> Federation:
    parties = [_party(job, name, source) for name, source in job.sources.items()]
    if job.split == "columns":
        join(parties)
    return _federation(job, over(InProcess(parties)), parties)


def _party(job: Job, name: str, source: SourceTable) -> Party:
    """The holder of one file; by columns its features are by its part of the schema."""
    schema = job.known_schema
    if schema is not None and job.split == "columns":
        schema = schema.part(table_shape(job.resolve(source.file), schema)[1])
    return read_party(name, source, job.resolve, schema=schema, labelled=job.labelled(name))


def _prepared(
    job: Job,
    model: PrivateLinearModel,
    federation: Federation,
    facts: Sequence[Facts],
    *,
    runs: bool = False,
) -> Run:
    """The plan of a job for these facts; what an estimator would warn of becomes a note."""
    federation.declared = {fact.party: asdict(fact) for fact in facts}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training = Fit(model, federation, runs=runs)
    notes = [str(warning.message) for warning in caught]
    return Run(job, model, training, tuple(notes))


def _federation(job: Job, transport: Transport, parties: Sequence[Party] = ()) -> Federation:
    """The job's parties on a wire and, by columns, who knows the labels and the parties' bounds."""
    helper = None if job.federation is None else job.federation.helper
    federation, table = Federation(job.split, transport, parties=parties, helper=helper), job.columns
    federation.about = job.about
    if table is not None:
        norms = None if table.norms is None else [table.norms[party] for party in job.parties]
        federation.declare_columns(table.labels, job.parties.index(job.label_party), norms)
    _seal(job, federation)
    return federation


def _seal(job: Job, federation: Federation) -> None:
    """Whether only sums over the parties are opened, and against whom their noise is; parties here: as it suits."""
    table = job.federation
    if job.split == "columns":
        federation._seal("products", "auto" if table is None else table.products, "none", "auto")
    elif table is not None:
        federation._seal("sums", table.sums, "plain")
    if table is None or not (federation.secure or federation.undecided):
        return
    federation.sealing(pooling=table.pooling, curious=table.curious, absent=table.absent, spare=table.spare)


def _wire(table: FederationTable, resolve: Callable[[str], Path], say: Say, state: Journal | None = None) -> Transport:
    """The wire to remote parties, once all of them have connected.

    Of a fit that goes on only those are waited for that are still in it. Once all is answered they are only told so,
    and a run whose parties may leave asks again without those that do not come.
    """
    from sottovoce.transports.certificates import COORDINATOR, Credentials
    from sottovoce.transports.grpc_wire import GrpcCoordinator

    if table.listen is None or table.certificates is None:
        raise InputError(
            "federation lacks listen or certificates, and parties are to connect to this process; name both. A job "
            "that has neither is for NVIDIA FLARE: `sottovoce nvflare job` makes what is submitted there."
        )
    credentials, ends = Credentials.load(resolve(table.certificates), COORDINATOR), table.ends
    state = state or Journal()
    if state.ended:
        return InProcess([Declared(name) for name in ends])
    warn_as_root()
    wire = GrpcCoordinator(table.listen, ends, credentials, timeout=table.timeout, on_change=say)
    try:
        there = [name for name in ends if name not in state.gone]
        say(f"listening on {table.listen}, waiting for {', '.join(there)} (at most {table.wait:g} s)")
        may_leave = state.solved or (state.begun and getattr(table, "absent", 0) > 0)
        with contextlib.suppress(*((WireError,) if may_leave else ())):
            wire.wait_for_parties(table.wait, among=there)
    except BaseException:
        wire.close()
        raise
    return wire


def _facts(federation: Federation, *, classes: bool) -> list[Facts]:
    found = federation.coordinator().facts(classes=classes)
    if federation.split == "columns":
        check_aligned(found)
    return [_fact_of({"party": party, "classes": (), **_known(fact)}) for party, fact in found.items()]


def _check_declared(table: FederationTable, facts: Sequence[Facts]) -> None:
    """What the job declares of remote parties is what they say, or its plan was made for other data."""
    for fact in facts:
        records = fact.records if table.records is None else table.records.get(fact.party)
        features = fact.features if table.features is None else table.width(fact.party)
        if (records, features) != (fact.records, fact.features):
            raise InputError(
                f"federation.records and features declare {records} records and {features} features for "
                f"{fact.party!r}, which says {fact.records} and {fact.features}; correct the job."
            )


def _declared_facts(job: Job, table: FederationTable) -> list[Facts]:
    """What the job declares of remote parties; by rows named ranges tell the number of features too."""
    schema = job.known_schema
    known = (job.bounds.named_ranges or ()) if schema is None else schema.feature_names
    implied = 0 if job.split == "columns" else len(known)
    widths = {party: table.width(party) or implied for party in table.parties}
    if table.records is None or not all(widths.values()):
        each = "{ name = 20, ... }" if job.split == "columns" else "20"
        raise InputError(
            f"{job.path}: a plan for remote parties is made without asking them, so declare what is public: "
            f"federation.records = {{ name = 1000, ... }} and federation.features = {each}."
        )
    return [Facts(party, table.records[party], width) for party, width in widths.items()]


def _with_names(job: Job, facts: Sequence[Facts]) -> list[Facts]:
    """Declared facts with the names of the ranges, where their number fits; by columns in the parties' order."""
    schema = job.known_schema
    names = tuple(job.bounds.named_ranges or ()) if schema is None else schema.feature_names
    if job.split != "columns":
        return [
            fact if fact.feature_names or len(names) != fact.features else replace(fact, feature_names=names)
            for fact in facts
        ]
    if any(fact.feature_names for fact in facts) or len(names) != sum(fact.features for fact in facts):
        return list(facts)
    ends = itertools.accumulate(fact.features for fact in facts)
    return [
        replace(fact, feature_names=names[end - fact.features : end]) for fact, end in zip(facts, ends, strict=True)
    ]


def _check_facts(job: Job, facts: Sequence[Facts]) -> None:
    if job.split == "columns":
        _check_same_people(job, facts)
    else:
        _check_same_columns(facts)


def _check_same_people(job: Job, facts: Sequence[Facts]) -> None:
    """By columns all have the same people, and a feature is with one party, or the model could not name it."""
    check_people({fact.party: fact.records for fact in facts})
    places: dict[str, list[str]] = {}
    for fact in facts:
        for name in fact.feature_names:
            places.setdefault(name, []).append(fact.party)
    twice = {name: parties for name, parties in places.items() if len(parties) > 1}
    if twice:
        each = ", ".join(f"{name} ({', '.join(parties)})" for name, parties in twice.items())
        raise InputError(
            f"several parties have columns of the same name: {each}. By columns every feature is with one party: "
            "rename it at one of them, or take it out of one file. (LIBSVM files number their columns, each from 1; "
            "at most one party can have one.)"
        )
    for party, source in job.sources.items():
        if source.label in places:
            raise InputError(
                f"party {places[str(source.label)][0]!r} has the column {source.label!r}, which is the label of "
                f"{party!r}: the model would learn the label from itself. Take it out of that file, or name it as "
                "label there too."
            )


def _check_same_columns(facts: Sequence[Facts]) -> None:
    """By rows a feature has the same name and place at every party, or the model would mix features up."""
    first = facts[0]
    for other in facts[1:]:
        if not first.feature_names or not other.feature_names or other.feature_names == first.feature_names:
            continue
        strange = sorted(set(first.feature_names) ^ set(other.feature_names))
        what = f"these are at one of them only: {', '.join(strange)}" if strange else "they are in another order"
        raise InputError(
            f"parties {first.party!r} and {other.party!r} have different columns: {what}. "
            "Give every party the same columns in the same order."
        )


def _charge(plans: Sequence[Plan], party: str, account: Account) -> Charge:
    """What these plans would do to an account, one after the other."""
    who = (party, str(account.path), account.dataset, account.balance())
    costs = [
        (plan.digest.hex(), charge_of(algorithms.of(plan), plan, party), plan.delta, part_of_fit(plan))
        for plan in plans
    ]
    try:
        after = [each.balance() for each in account.books_after(costs)]
    except BudgetError as error:
        return Charge(*who, None, str(error))
    return Charge(*who, replace(after[0], left=min(balance.left for balance in after)))
