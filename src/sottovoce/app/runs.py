"""From a job to a run: what it would cost, the federation it runs on, and what it leaves behind."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce import algorithms
from sottovoce.app.estimate import Cost, Rows, cost_of
from sottovoce.app.holding import person_holder, test_holder
from sottovoce.app.interrupted import Begun
from sottovoce.app.job_facts import IDS_READ, SHAPE_READ, Facts, asked_facts, check_declared, check_facts, job_facts
from sottovoce.app.jobs import EvaluationJob, FederationTable, Job, PartyJob, PeopleJob, SourceTable
from sottovoce.app.outputs import by_columns, keep_receipts, kept_receipts
from sottovoce.app.sources import (
    goes_by_pieces,
    join,
    read_party,
    source_account,
    table_shape,
)
from sottovoce.app.superuser import warn_as_root
from sottovoce.data import room
from sottovoce.data.devices import kind_of_rows
from sottovoce.data.files import format_of, is_pattern, list_files
from sottovoce.data.parts_in_file import PreparedRows
from sottovoce.data.resources import NO_RESOURCES
from sottovoce.errors import BudgetError, InputError, SottovoceError, WireError
from sottovoce.estimators import PrivateLinearModel, privacy_report
from sottovoce.estimators.declarations import solver_name
from sottovoce.estimators.fits import Fit
from sottovoce.estimators.ranges import EstimatedRanges
from sottovoce.federation.declared import Declared
from sottovoce.federation.federation import Federation
from sottovoce.federation.journal import Journal
from sottovoce.federation.party import Party
from sottovoce.federation.plan_checks import charge_of, check_place, part_of_fit
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.ledger import Account, Balance
from sottovoce.solvers.auto import WHY
from sottovoce.transports.base import Transport
from sottovoce.transports.in_process import InProcess

Say = Callable[[str], None]


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
        return any(note.startswith((SHAPE_READ, IDS_READ)) for note in self.notes)

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
    job, schema, ranges = run.job, run.job.known_schema, run.training.ranges
    before = () if ranges is None else (ranges.plan,)
    for name, source in job.sources.items():
        by_pieces = goes_by_pieces(source, job.resolve(source.file), schema)
        kind = kind_of_rows(run.model.resources or NO_RESOURCES, by_pieces=by_pieces)
        for plan in (*before, run.plan):
            clustered = source.cluster is not None
            check_place(plan, name, kind, by_pieces=by_pieces, clustered=clustered)


def preview(run: Run, *, seeded: bool | None = None, charged: bool = False, ahead: bool = False) -> Preview:
    """The guarantee and the cost of a run; `seeded` says whether its noise will come from a known seed.

    One that was `charged`, before it was stopped, does no more to a ledger. Of one that is looked at `ahead` the files
    are still to be read.
    """
    plan, plans, accounts = run.plan, run.training.plans, accounts_of(run.job)
    seeded = run.model.insecure_seed is not None if seeded is None else seeded
    remote, rows = run.job.federation is not None, _rows_of(run, unread=ahead)
    costs = [
        cost_of(
            each,
            algorithms.of(each),
            rows if place == 0 else replace(rows, kind=None),  # files are read once
            remote=remote,
            ledgers=len(accounts),
        )
        for place, each in enumerate(plans)
    ]
    stored = () if remote or plan.split.same_people else tuple(rows.prepared(plan))
    notes = (*run.notes, *(_full(stored) if ahead else ()))
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
        prepared=stored,
    )


def _full(stored: Sequence[PreparedRows]) -> Iterator[str]:
    """What a fit would say of folders without room for its prepared rows."""
    for each in stored:
        try:
            each.check()
        except InputError as error:
            yield str(error)


def _rows_of(run: Run, *, unread: bool) -> Rows:
    """The rows of a job, as far as that is known here; `unread` says that files are still to be read.

    How many entries a LIBSVM file has is guessed from its size: 8 bytes for each.
    """
    job, schema, plan = run.job, run.job.known_schema, run.plan
    tables = list(job.sources.values())
    paths = [job.resolve(table.file) for table in tables]
    files = [file for path in paths for file in (list_files(path) if path.is_dir() or is_pattern(path) else [path])]
    sparse = [path for path in files if format_of(path).sparse]
    size = sum(path.stat().st_size for path in sparse if path.is_file())
    pieces = [goes_by_pieces(table, path, schema) for table, path in zip(tables, paths, strict=True)]
    kind = None
    if files and (unread or any(pieces)):
        kind = format_of(files[0]).suffixes[0]
    clusters = [table.cluster for table in tables if table.cluster is not None]
    resources = run.model.resources or NO_RESOURCES
    return Rows(
        records=plan.records,
        features=plan.features,
        sparse_entries=min(size / 8 / plan.records, plan.features) if size else None,
        n_jobs=resources.n_jobs,
        device=resources.device or "cpu",
        kind="schema" if schema is not None and kind == ".csv" else kind,
        folders=tuple(rows_folder(job, table) if by else None for table, by in zip(tables, pieces, strict=True)),
        workers=_workers(clusters[0]) if clusters else 0,
    )


def rows_folder(job: Job | PartyJob, table: SourceTable) -> Path | None:
    """Where the prepared rows of a file go that is read in pieces and whose rows do not fit in memory."""
    if table.cluster is not None:
        return None
    folder, ledger = (None if path is None else job.resolve(path) for path in (table.folder, table.ledger))
    return room.named_place(folder, None if ledger is None else ledger.parent)


def _workers(address: str) -> int:
    """How many workers a cluster has; 1 where it does not answer, of which the fit tells."""
    from sottovoce.data.cluster.connection import Cluster

    try:
        return max(len(Cluster.of(address).workers()), 1)
    except SottovoceError:
        return 1


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
        federation = _federation(job, over(wire or open_wire(job.federation, job.resolve, say, state)))
    else:
        federation = _local(job, over)
    with contextlib.closing(federation):
        if begun is not None and state.begun:
            facts = [Facts.of(told["party"], told) for told in begun.facts]
        else:
            facts = asked_facts(federation, classes=model.asks_for_classes)
        check_facts(job, facts)
        federation.receipts |= kept_receipts(job)
        if begun is not None and federation.counted:
            federation.journal = state
            if not state.begun:
                state.about = begun.beginning(facts)
        if job.federation is not None:
            check_declared(job.federation, facts)
        elif job.split.same_people:
            federation.check_labels()
        yield _prepared(job, model, federation, facts, runs=True)


@contextmanager
def people(job: PeopleJob, model: PrivateLinearModel, say: Say) -> Iterator[Federation]:
    """The people of a joint prediction: files are read here, each for itself, or remote parties are waited for."""
    if not model.plan_.split.same_people:
        raise InputError("a job of people is for a model by columns; give predict a file of records instead.")
    if job.federation is not None:
        federation = Federation.connect(open_wire(job.federation, job.resolve, say), split="columns")
    else:
        parties = [person_holder(job, table, model) for table in job.party]
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
    if model.plan_.split.same_people:
        federation = _tested_columns(job, model, say, begun.journal)
    elif job.federation is not None:
        federation = Federation.connect(open_wire(job.federation, job.resolve, say, begun.journal))
    else:
        parties = [test_holder(job, name, source, model) for name, source in job.sources.items()]
        federation = Federation("central" if job.data is not None else "rows", InProcess(parties), parties=parties)
    with contextlib.closing(federation):
        facts = [Facts.of(told["party"], told) for told in begun.facts] or asked_facts(federation, classes=False)
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
        made = Federation.connect(open_wire(job.federation, job.resolve, say, state), split="columns")
    else:
        parties = [person_holder(job, table, model, labelled=table.name == holder) for table in job.party]
        join(parties)
        made = Federation("columns", InProcess(parties), parties=parties)
    return made.declare_columns("held", job.parties.index(holder), None)


def fit(run: Run, progress: Callable[[int, int], None] | None = None) -> PrivateLinearModel:
    """Train: run the plan that a preview showed. What parties told of their ledgers is kept, however the run ends."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the model is here, but")  # the caller tells of missing_parts_
            run.training.run(progress)
    finally:
        keep_receipts(run.job, run.training.session.coordinator.receipts)
    return run.model


def require_budget(shown: Preview) -> None:
    """Raise what a ledger of this process would answer, while no other party has been charged yet."""
    for charge in shown.charges:
        if charge.after is None:
            raise BudgetError(
                f"party {charge.party!r}, account {charge.account!r}: {charge.refusal} Nothing was charged."
            )


def _local(job: Job, over: Callable[[Transport], Transport]) -> Federation:
    parties = [_party(job, name, source) for name, source in job.sources.items()]
    if job.split.same_people:
        join(parties)
    return _federation(job, over(InProcess(parties)), parties)


def _party(job: Job, name: str, source: SourceTable) -> Party:
    """The holder of one file; by columns its features are by its part of the schema."""
    schema = job.known_schema
    if schema is not None and job.split.same_people:
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
    if job.split.same_people:
        federation._seal("products", "auto" if table is None else table.products, "none", "auto")
    elif table is not None:
        federation._seal("sums", table.sums, "plain")
    if table is None or not (federation.secure or federation.undecided):
        return
    federation.sealing(pooling=table.pooling, curious=table.curious, absent=table.absent, spare=table.spare)


def open_wire(
    table: FederationTable, resolve: Callable[[str], Path], say: Say, state: Journal | None = None
) -> Transport:
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
