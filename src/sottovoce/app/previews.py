"""What a job would do, before it does it: its plan, guarantee, cost and charges.

The cost is about what a fit takes: rounds and bytes by what the queries of its plan declare, time by one measured pass.

    seconds = records x columns x rounds x rate, and what preparing the rows and reading the files takes

The rate is measured at first use, unless the fit is short: a real pass over made-up rows, stored as those of the fit
will be. Other work is so many passes, or constants in seconds. `benchmarks/estimates.py` compares estimates with fits.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sottovoce import algorithms, losses
from sottovoce.algorithms import WHY, Algorithm
from sottovoce.algorithms.scd.private import DualQuery
from sottovoce.app.job_file import SourceTable
from sottovoce.app.jobs import Job, PartyJob
from sottovoce.app.outputs import describe_columns
from sottovoce.app.runs import IDS_READ, SHAPE_READ, JobRun, PartyFacts, make_federation, prepare_run, read_facts
from sottovoce.app.sources import accounts_of, goes_by_pieces
from sottovoce.data import resources as room
from sottovoce.data.block import SumRows, kind_of_rows, prepare_rows
from sottovoce.data.block_parts import PIECE, PreparedRows
from sottovoce.data.bounds import Bounds
from sottovoce.data.dataset import Dataset
from sottovoce.data.files import format_of, is_pattern, list_files
from sottovoce.data.matrix import Slope
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import NO_RESOURCES, Resources
from sottovoce.errors import BudgetError, InputError, SottovoceError
from sottovoce.estimators import privacy_report
from sottovoce.estimators.fits import EstimatedRanges
from sottovoce.federation.party import StandIn
from sottovoce.federation.policy import charge_of, check_place, part_of_fit
from sottovoce.gate.query import Choice, Query, Walk
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.ledger import Account, Balance
from sottovoce.queries import pricing
from sottovoce.queries.joint import JointSum
from sottovoce.queries.sums import GramMatrix, LengthSum
from sottovoce.secure.ring import ring_bits
from sottovoce.transports.base import InProcess

LONG, ENTRIES = 0.2, 1 << 23  # seconds from which on the rate is measured, and on so many entries
SPARSE: Final = 10  # entries of a dense record that take as long as one of a sparse record
RECORD, ENTRY, PREPARE, PRODUCT = 3e-9, 3e-10, 2.5e-9, 2.5e-11  # a record in a pass, an entry, its preparing, a product
STEP, DUAL, DRAW = 1.4e-9, 3.5e-8, 4e-9  # a record in a step along a column, in a dual step, drawn into a batch
CSV, SCHEMA, PARQUET, NUMPY, LIBSVM = (2e-6, 2e-8), (2e-5, 5e-7), (0, 1.5e-8), (0, 3e-9), (0, 6e-7)
READ: Final = {".csv": CSV, "schema": SCHEMA, ".parquet": PARQUET, ".npy": NUMPY, ".svm": LIBSVM}  # a record, an entry
SECURE: Final = {  # a record of secure columns: bytes and words that a party says, bytes and words dealt, seconds
    "null": (1.2, 2, 4, 2, 0.0),
    "factor": (4.9, 1, 192, 7, 5.5e-6),
    "length": (4.4, 0, 64, 2, 5.5e-6),
    "look-up": (1.2, 1, 8, 2, 0.0),
    "number": (1.2, 0, 16, 4, 0.0),  # a look-up that sums no rows
}
LOOKUP, COLUMN, MESSAGE, COMMIT = 9e-8, 2e-9, 3e-4, 1e-2  # of each role, of its columns; a message, one in a ledger
SIGNATURE, CERTIFIED, KEYS = 200, 1200, 1300  # bytes of a signature, of one with a certificate, of a member's keys


@dataclass(frozen=True)
class Cost:
    """About what a run takes; `reading` says whether reading files is in it. All None without privacy."""

    rounds: int | None = None
    uplink_bytes: int | None = None
    downlink_bytes: int | None = None
    seconds: float | None = None
    dealt_bytes: int | None = None  # of those down, a dealer's
    memory_bytes: int | None = None  # of the process at its peak
    reading: bool = False

    def __add__(self, other: Cost) -> Cost:
        pairs = list(zip(astuple(self), astuple(other), strict=True))
        sums: list[Any] = [None if pair == (None, None) else sum(filter(None, pair)) for pair in pairs[:5]]
        return Cost(*[*sums, max(filter(None, pairs[5]), default=None), self.reading or other.reading])


@dataclass(frozen=True)
class FitRows:
    """The rows of a fit: how many, how wide, in which files, and where they will be stored."""

    records: int
    features: int
    sparse_entries: float | None = None  # of a record; None: dense
    n_jobs: int | None = None
    device: str | None = None
    kind: str | None = None  # of files that are still to be read, as in `READ`
    folders: tuple[Path | None, ...] = ()  # of each party whose file is read in pieces: where prepared rows may go
    workers: int = 0  # of a cluster that has them

    def prepared(self, plan: Plan) -> list[PreparedRows]:
        """Where prepared rows will be: a party's go to a file if they do not fit into the memory that is left."""
        files, size = list[PreparedRows](), 0
        for (name, count), folder in zip(plan.parties, self.folders or (None,) * len(plan.parties), strict=True):
            counts = (count,) if self.sparse_entries is None else (0, count, int(self.sparse_entries * count))
            own = plan.part(name).preparation.size_of(*counts)
            if folder is not None and not room.fits_in_memory(own, after=size):
                files.append(PreparedRows(own, "file", folder, count))
            else:
                size += own
        where = "cluster" if self.workers else "device" if self.device == "cuda" else "memory"
        return [*([PreparedRows(size, where, workers=self.workers)] if size else []), *files]

    def memory(self, plan: Plan, copies: int = 1) -> float:
        """Bytes of raw rows still to be read, and of prepared ones; some solvers have copies of sparse rows."""
        row, copies = (8 * self.features, 1) if self.sparse_entries is None else (12 * self.sparse_entries, copies)
        raw = 2 * PIECE if any(self.folders) else 0 if self.kind is None or self.workers else self.records * (row + 8)
        here = [part.size for part in self.prepared(plan) if part.where == "memory"]
        held = copies * sum(here) + 20 * self.records * len(here)
        return raw + held + self.records * plan.secure_columns * (8 * plan.dimension * (len(plan.parties) + 2) + 500)

    def seconds(self, plan: Plan, asked: Sequence[tuple[Query, Release, float]]) -> float:
        """To read and prepare the rows and to answer what is asked of so many records."""
        width = self.features if self.sparse_entries is None else SPARSE * self.sparse_entries
        roughly = self._by_rates(plan, asked, RECORD + ENTRY * width, PREPARE * width)
        folder = next(filter(None, map(operator.attrgetter("folder"), self.prepared(plan))), None)
        with contextlib.suppress(InputError, OSError, MemoryError):  # the fit will say so
            if roughly > LONG:
                return self._by_rates(plan, asked, *_rates(max(round(width), 1), self.device, self.n_jobs, folder))
        return roughly

    def _by_rates(self, plan: Plan, asked: Any, one_pass: float, prepare: float) -> float:
        dense, entries = self.sparse_entries is None, self.sparse_entries or self.features
        record, entry = READ.get(self.kind or "", (0.0, 0.0))
        total = self.records * (prepare + record + entry * entries)
        for query, release, records in asked:
            drawn = (release.rate or 1.0) < 1.0
            work = one_pass * (2.0 if drawn else 1.0)
            if isinstance(query, DualQuery):
                work = 1.5 * one_pass + DUAL
            elif isinstance(query, Choice):
                work = (1.7 if dense else 0.8) * one_pass
            elif isinstance(query, Walk) or (plan.layout == "columns" and query.length < plan.dimension):
                work = STEP * query.length * min(1.0, 3.5 * entries / self.features)
            elif isinstance(query, GramMatrix) or (isinstance(query, LengthSum) and query.shape.kind == "triangular"):
                other = entries if isinstance(query, GramMatrix) else self.features
                work += PRODUCT * (1 if dense else 2 * SPARSE) * entries * other
            share = (release.rate or 1.0) * query.uses(release.count) / release.count
            total += records * release.batches * (share * work + DRAW * drawn)
        return total / max(self.workers, 1)


def cost_of(
    plan: Plan, form: Algorithm, rows: FitRows | None = None, *, remote: bool = False, ledgers: int = 0
) -> Cost:
    """About what a run takes; remote parties compute side by side, and so many ledgers are here."""
    if not plan.private:
        return Cost()
    rows, parties = rows or FitRows(plan.records, plan.features), len(plan.parties)
    queries = pricing.queries_of(form, plan, plan.names[0])
    signature, keys = CERTIFIED if remote else SIGNATURE, KEYS * parties if plan.channel.secure else 0
    checked = parties > 1  # by each party, before all sign
    up = parties * (2 * pricing.HEADING + keys // 2 + checked * (signature + 2 * pricing.HEADING))
    down = parties * ((1 + checked) * (len(plan.to_json()) + keys) + checked * parties * signature)
    asked, seconds, dealt = list[tuple[Query, Release, float]](), 0.0, None
    for name, several in pricing.messages_of(plan, form).items():
        for each in several:
            part, records = plan.part(each.party), each.count * dict(plan.parties)[each.party]
            asked.append((queries[name], plan.release(name), records * (part.stop - part.start) / plan.features))
            up, down = up + each.count * each.answer_bytes, down + each.count * each.told_bytes
            seconds += each.count * (MESSAGE + COMMIT * ledgers / parties)
    if plan.secure_columns:
        said, passed, dealt, work = _secure_columns(plan, queries)
        up, down, seconds, asked = up + said, down + passed + dealt, seconds + work, []
    beside = max(count for _, count in plan.parties) / plan.records if remote else 1.0
    copies = 1 if all(each.needs is SumRows and "projection" not in each.takes for each in queries.values()) else 3
    seconds += beside * rows.seconds(plan, asked)
    memory = int(room.resident() + beside * rows.memory(plan, copies))
    return Cost(pricing.rounds_of(plan, form), up, down, seconds, dealt, memory, rows.kind is not None)


def _secure_columns(plan: Plan, queries: Mapping[str, Query]) -> tuple[int, int, int, float]:
    """(bytes up, down and dealt, seconds): the columns once, and for each record what programs say and are dealt."""
    parties, width, word, said, dealt, work = len(plan.names), plan.dimension, ring_bits(plan) // 8, 0.0, 0.0, 0.0
    programs = [("null", 1)]
    for release in plan.releases:
        if isinstance(query := queries[release.query], JointSum):
            name = "length" if query.program == "length" else "number" if query.length < width else "look-up"
            programs += [(name, release.count), *[("factor", 1)] * query.factored]
    for name, count in programs:
        plain, words, dealt_plain, dealt_elements, clip = SECURE[name]
        said, dealt = said + count * (plain + words * word), dealt + count * (dealt_plain + dealt_elements * word)
        work += count * ((parties + 1) * (LOOKUP + COLUMN * width) + clip)
    up = width * word + (parties + (parties > 2)) * said
    down = width * word * (parties - 1) + (parties if parties < 3 else 2 * (parties - 1)) * said  # one adds, tells all
    return int(plan.records * up), int(plan.records * down), int(plan.records * dealt), plan.records * work


@functools.lru_cache(maxsize=32)
def _rates(width: int, device: str | None, n_jobs: int | None, folder: Path | None) -> tuple[float, float]:
    """Seconds of a record in a pass and in the preparation, the least of three: in the first, loops are compiled."""
    count = max(ENTRIES // width, 64)
    X: Any = np.resize(np.random.default_rng(0).uniform(-1.0, 1.0, (min(count, 4096), width)), (count, width))
    recipe = Preparation(Bounds(row_norm=1.0), width, fit_intercept=False, records=count, classes=(0, 1))
    clock = time.perf_counter if device or n_jobs else time.process_time  # which knows this work alone
    y, taken = np.arange(count) % 2, []
    if folder is not None:
        X = Dataset.from_arrays(X, y, folder=folder)
        X.in_file = True
    for _ in range(3):
        start = clock()
        block = prepare_rows(X, y, recipe, Resources(n_jobs, device), kinds=[SumRows])
        ready = clock()
        block.weighted_sum(np.ones(width), Slope(losses.get("logistic"), 1.0, recipe.bits))
        taken.append((clock() - ready, ready - start))
    return min(one for one, _ in taken) / count, min(one for _, one in taken) / count


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
    if model.known_classes is None:  # which two they are changes nothing about what a plan promises
        facts = [replace(fact, classes=(0, 1)) for fact in facts]
        notes = [
            *notes,
            "bounds.classes is not declared: the fit reads the two labels from the data and counts them as public",
        ]
    seeded = model.insecure_seed is not None
    federation.declared = {fact.party: asdict(fact) for fact in facts}
    run = prepare_run(job, model.set_params(insecure_seed=None), federation)
    schema, ranges = job.known_schema, run.training.ranges
    for name, source in job.sources.items():  # a solver that rows do not serve where they are stored is refused
        by_pieces = goes_by_pieces(source, job.resolve(source.file), schema)
        kind = kind_of_rows(model.resources or NO_RESOURCES, by_pieces=by_pieces)
        for plan in (*([] if ranges is None else [ranges.plan]), run.training.plan):
            check_place(plan, name, kind, by_pieces=by_pieces, clustered=source.cluster is not None)
    notes = [*notes, *run.notes, *_expect_errors(run)]
    if federation.undecided and job.federation is not None:
        notes.append(
            "products is left open, and nobody was asked: this is as if every party took part in secure sums "
            "(policy.secure); if one does not, each adds noise to all that it says"
        )
    return make_preview(replace(run, notes=tuple(notes)), seeded=seeded, ahead=True)


def _expect_errors(run: JobRun) -> list[str]:
    """How many coefficients standard errors would tell, where that is bought: by one fit of records about nobody."""
    asked, schema = getattr(run.model, "standard_errors", False), run.job.known_schema
    if not asked or not run.training.plan.private or (asked is not True and schema is None):
        return []
    if isinstance(run.training.plan.scaled_loss, losses.LogMeanLoss):  # of which no records are made up
        return []
    from sottovoce.lab.simulation import expected_coefficients

    told, count = expected_coefficients(run.model, run.training.plan, schema)
    return [
        f"standard errors: about {told} of {count} coefficients would be identified. That is expected of made-up "
        "records; of real ones that are rare, collinear or far within their ranges fewer are"
    ]


def make_preview(run: JobRun, *, seeded: bool | None = None, charged: bool = False, ahead: bool = False) -> Preview:
    """The guarantee and the cost of a run; `seeded` says whether its noise will come from a known seed.

    A resumed run that was `charged` already does no more to a ledger. One that is looked at `ahead` still has to read
    its files.
    """
    plan, plans, accounts = run.training.plan, run.training.plans, accounts_of(run.job)
    seeded = run.model.insecure_seed is not None if seeded is None else seeded
    remote, rows = run.job.federation is not None, _describe_rows(run, unread=ahead)
    costs, others = [], []
    for each in plans:
        others += [] if each is plan else [each]
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
        report=privacy_report(plan, seeded=seeded, beside=others),
        cost=sum(costs[1:], costs[0]),
        charges=()
        if charged
        else tuple(itertools.starmap(functools.partial(_preview_charge, plans), accounts.items())),
        notes=tuple(notes),
        why=f'by "auto": {WHY[plan.algorithm]}' if run.model.solver == "auto" else "as the job says",
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
    entries = min(size / 8 / plan.records, plan.features) if size else None
    if schema is not None and schema.sparse:
        entries = schema.entries
    clusters = [table.cluster for table in tables if table.cluster is not None]
    resources = run.model.resources or NO_RESOURCES
    return FitRows(
        records=plan.records,
        features=plan.features,
        sparse_entries=entries,
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
        after = [book.balance() for book in account.books_after(costs, plans[0].protects)]
    except BudgetError as error:
        return Charge(*who, None, str(error))
    return Charge(*who, replace(after[0], left=min(balance.left for balance in after)))
