"""What a job would do, before it does it: its plan, guarantee, cost and charges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce import algorithms
from sottovoce.algorithms import WHY
from sottovoce.app.estimate import Cost, FitRows, cost_of
from sottovoce.app.job_tables import SourceTable
from sottovoce.app.jobs import Job, PartyJob
from sottovoce.app.outputs import describe_columns
from sottovoce.app.runs import IDS_READ, SHAPE_READ, JobRun, PartyFacts, make_federation, prepare_run, read_facts
from sottovoce.app.sources import accounts_of, goes_by_pieces
from sottovoce.data import resources as room
from sottovoce.data.block import kind_of_rows
from sottovoce.data.files import format_of, is_pattern, list_files
from sottovoce.data.parts_in_file import PreparedRows
from sottovoce.data.resources import NO_RESOURCES
from sottovoce.errors import BudgetError, InputError, SottovoceError
from sottovoce.estimators import privacy_report
from sottovoce.estimators.declarations import solver_name
from sottovoce.estimators.ranges import EstimatedRanges
from sottovoce.federation.party import StandIn
from sottovoce.federation.policy import charge_of, check_place, part_of_fit
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.ledger import Account, Balance
from sottovoce.transports.in_process import InProcess


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
    sums: str = ""  # by columns, where it was left open: whether sums are secure, and why
    first: EstimatedRanges | None = None  # ranges that are estimated before the fit's own plan
    prepared: tuple[PreparedRows, ...] = ()  # where prepared rows will be stored, if that is known

    @property
    def files_opened(self) -> bool:
        """Whether a data file was opened, for its shape."""
        return any(note.startswith((SHAPE_READ, IDS_READ)) for note in self.notes)

    def to_dict(self) -> dict[str, Any]:
        ranges = self.first
        names = [] if ranges is None else [column.name for column in ranges.columns.values()]
        return {
            "solver": self.plan.algorithm,
            "why": self.why,
            **({"sums": self.sums} if self.sums else {}),
            "split": self.plan.split,
            "parties": dict(self.plan.parties),
            "features": self.plan.features,
            **describe_columns(self.plan),
            "privacy": self.report.to_dict(),
            "releases": [release.model_dump() for plan in self.plans for release in plan.releases],
            **({} if ranges is None else {"ranges": {"columns": names, "share": ranges.share}}),
            "cost": asdict(self.cost),
            "prepared_rows": [
                {"bytes": rows.size, "where": rows.where}
                | ({} if rows.folder is None else {"folder": str(rows.folder)})
                | ({"workers": rows.workers} if rows.workers else {})
                for rows in self.prepared
            ],
            "ledgers": [asdict(charge) for charge in self.charges],
            "notes": list(self.notes),
        }


def plan_job(job: Job, known: tuple[list[PartyFacts], list[str]] | None = None) -> Preview:
    """What the job would do, by public facts, which may be `known` already. Nothing is charged, no record is read."""
    facts, notes = read_facts(job) if known is None else known
    dealer = [] if job.federation is None or job.federation.dealer is None else [job.federation.dealer]
    ends = InProcess([StandIn(name) for name in (*(fact.party for fact in facts), *dealer)])
    federation, model = make_federation(job, ends), job.estimator()
    if model.asks_for_classes:  # which two they are changes nothing about what a plan promises
        facts = [replace(fact, classes=(0, 1)) for fact in facts]
        notes = [
            *notes,
            "bounds.classes is not declared: the fit reads the two labels from the data and counts them as public",
        ]
    seeded = model.insecure_seed is not None
    federation.declared = {fact.party: asdict(fact) for fact in facts}
    run = prepare_run(job, model.set_params(insecure_seed=None), federation)
    _check_places(run)
    notes = [*notes, *run.notes]
    if federation.undecided and job.federation is not None:
        notes.append(
            "products is left open, and nobody was asked: this is as if every party took part in secure sums "
            "(policy.secure); if one does not, each adds noise to all that it says"
        )
    return make_preview(replace(run, notes=tuple(notes)), seeded=seeded, ahead=True)


def _check_places(run: JobRun) -> None:
    """Refuse what a party of this process will refuse: a solver that its rows do not serve where they are stored."""
    job, schema, ranges = run.job, run.job.known_schema, run.training.ranges
    plans = [*([] if ranges is None else [ranges.plan]), run.training.plan]
    for name, source in job.sources.items():
        by_pieces = goes_by_pieces(source, job.resolve(source.file), schema)
        kind = kind_of_rows(run.model.resources or NO_RESOURCES, by_pieces=by_pieces)
        for plan in plans:
            check_place(plan, name, kind, by_pieces=by_pieces, clustered=source.cluster is not None)


def make_preview(run: JobRun, *, seeded: bool | None = None, charged: bool = False, ahead: bool = False) -> Preview:
    """The guarantee and the cost of a run; `seeded` says whether its noise will come from a known seed.

    A resumed run that was `charged` already does no more to a ledger. One that is looked at `ahead` still has to read
    its files.
    """
    plan, plans, accounts = run.training.plan, run.training.plans, accounts_of(run.job)
    seeded = run.model.insecure_seed is not None if seeded is None else seeded
    remote, rows = run.job.federation is not None, _describe_rows(run, unread=ahead)
    costs = []
    for each in plans:
        costs.append(cost_of(each, algorithms.of(each), rows, remote=remote, ledgers=len(accounts)))
        rows = replace(rows, kind=None)  # files are read once
    stored = () if remote or plan.split.same_people else tuple(rows.prepared(plan))
    notes = list(run.notes)
    for prepared in stored if ahead else ():
        try:
            prepared.check()
        except InputError as error:  # a folder without room for them
            notes.append(str(error))
    return Preview(
        plan=plan,
        report=privacy_report(plan, seeded=seeded, beside=[each for each in plans if each is not plan]),
        cost=sum(costs[1:], costs[0]),
        charges=() if charged else tuple(_preview_charge(plans, party, account) for party, account in accounts.items()),
        notes=tuple(notes),
        why=f'by "auto": {WHY[plan.algorithm]}' if solver_name(run.model.solver) == "auto" else "as the job says",
        sums=run.training.federation.why,
        first=run.training.ranges,
        plans=plans,
        prepared=stored,
    )


def _describe_rows(run: JobRun, *, unread: bool) -> FitRows:
    """The rows of a job, as far as they are known here; `unread` says that files are still to be read.

    How many entries a LIBSVM file has is guessed from its size: 8 bytes for each.
    """
    job, schema, plan = run.job, run.job.known_schema, run.training.plan
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
    return FitRows(
        records=plan.records,
        features=plan.features,
        sparse_entries=min(size / 8 / plan.records, plan.features) if size else None,
        n_jobs=resources.n_jobs,
        device=resources.device or "cpu",
        kind="schema" if schema is not None and kind == ".csv" else kind,
        folders=tuple(rows_folder(job, table) if by else None for table, by in zip(tables, pieces, strict=True)),
        workers=_count_workers(clusters[0]) if clusters else 0,
    )


def rows_folder(job: Job | PartyJob, table: SourceTable) -> Path | None:
    """Where the prepared rows of a file that is read in pieces go if they do not fit in memory."""
    if table.cluster is not None:
        return None
    folder, ledger = (None if path is None else job.resolve(path) for path in (table.folder, table.ledger))
    return room.named_place(folder, None if ledger is None else ledger.parent)


def _count_workers(address: str) -> int:
    """How many workers a cluster has; 1 where it does not answer, which the fit reports."""
    from sottovoce.data.cluster.connection import Cluster

    try:
        return max(len(Cluster.of(address).workers()), 1)
    except SottovoceError:
        return 1


def _preview_charge(plans: Sequence[Plan], party: str, account: Account) -> Charge:
    """What these plans would do to an account, one after the other."""
    who = (party, str(account.path), account.dataset, account.balance())
    costs = [
        (plan.digest.hex(), charge_of(algorithms.of(plan), plan, party), plan.delta, part_of_fit(plan))
        for plan in plans
    ]
    try:
        after = [book.balance() for book in account.books_after(costs)]
    except BudgetError as error:
        return Charge(*who, None, str(error))
    return Charge(*who, replace(after[0], left=min(balance.left for balance in after)))


def require_budget(shown: Preview) -> None:
    """Raise the refusal of a ledger of this process while no other party has been charged."""
    for charge in shown.charges:
        if charge.after is None:
            raise BudgetError(
                f"party {charge.party!r}, account {charge.account!r}: {charge.refusal} Nothing was charged."
            )
