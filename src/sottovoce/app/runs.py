"""From a job to a run: the public facts about its parties, the federation it runs on, and the fit."""

from __future__ import annotations

import contextlib
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sottovoce import algorithms
from sottovoce.app import sources
from sottovoce.app.job_file import FederationTable, check_said
from sottovoce.app.jobs import EvaluationJob, Job, PeopleJob
from sottovoce.app.outputs import RunState, read_receipts, store_receipts
from sottovoce.app.superuser import warn_as_root
from sottovoce.data.block import BlockRows
from sottovoce.errors import InputError, WireError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.estimators.fits import Fit
from sottovoce.federation.federation import Federation
from sottovoce.federation.journal import Journal
from sottovoce.federation.party import Party, StandIn
from sottovoce.federation.prediction import check_aligned, check_people
from sottovoce.transports.base import InProcess, Transport

SHAPE_READ: Final = "only the shape (rows and header) was read of"
IDS_READ: Final = "identifiers were read"
Say = Callable[[str], None]


@dataclass(frozen=True)
class PartyFacts:
    """What is public about a party's data. Names are empty where only their number is declared."""

    party: str
    records: int
    features: int
    feature_names: tuple[str, ...] = ()
    classes: tuple[Any, ...] = ()
    solvers: tuple[str, ...] | None = None  # that its rows serve where they are stored; None: every one
    people: int | None = None  # over columns, of how many its records are, where it says so


@dataclass(frozen=True)
class JobRun:
    """A job at its parties: they were asked once for what is public, and the one plan was made from it."""

    job: Job
    model: PrivateLinearModel
    training: Fit
    notes: tuple[str, ...]


def read_facts(job: Job) -> tuple[list[PartyFacts], list[str]]:
    """The public facts of a job, and notes that say which files were opened for their shape."""
    schema, ranges, opened = job.known_schema, job.bounds.ranges, []
    declared = tuple(ranges) if isinstance(ranges, dict) else ()
    declared = declared if schema is None else schema.feature_names
    facts = [] if job.federation is None else _declared_facts(job, job.federation, len(declared))
    for party, source in job.sources.items():
        whole = schema is not None and not job.split.same_people
        path = job.resolve(source.file)
        served = algorithms.served(BlockRows) if sources.goes_by_pieces(source, path, schema) else None
        if source.records is not None and (source.features is not None or whole):
            names = schema.feature_names if schema is not None and whole else ()
            facts.append(PartyFacts(party, source.records, source.features or len(names), names, solvers=served))
            continue
        if schema is None:
            records, names = sources.source_shape(source, job.resolve, labelled=job.labelled(party))
        else:
            records, header = sources.source_shape(source, job.resolve, schema)
            names = (schema if whole else schema.part(header)).feature_names
        facts.append(PartyFacts(party, records, len(names), names, solvers=served))
        opened.append(str(path))
    notes = [f"{SHAPE_READ}: {', '.join(opened)}; declare records and features to open none"] if opened else []
    ids = [source.id for source in job.sources.values()]
    if job.split.same_people and len(ids) > 1 and None not in ids:  # as many people as the fit joins
        lists = [sources.read_ids(source, job.resolve, party) or () for party, source in job.sources.items()]
        common = len(set(lists[0]).intersection(*lists[1:]))
        facts = [replace(fact, records=common) for fact in facts]
        notes.append(f"{IDS_READ}: the {common:,} people that all files have are used, in the order of the first")
    if schema is not None and (person := schema.person) is not None and not job.split.same_people:
        people = {name: sources.people_in(job.resolve(each.file), person) for name, each in job.sources.items()}
        facts = [replace(fact, records=people.get(fact.party, fact.records)) for fact in facts]
        notes += [f"{IDS_READ}: people are counted, of whom records are"] if people else []
    facts = _with_names(job, facts, declared)
    check_facts(job, facts)
    return facts, notes


def _declared_facts(job: Job, table: FederationTable, named: int) -> list[PartyFacts]:
    """What the job declares of remote parties; by rows named ranges tell the number of features too."""
    implied = 0 if job.split.same_people else named
    widths = {party: table.width(party) or implied for party in table.parties}
    if table.records is None or not all(widths.values()):
        each = "{ name = 20, ... }" if job.split.same_people else "20"
        raise InputError(
            f"{job.path}: a plan for remote parties is made without asking them, so declare what is public: "
            f"federation.records = {{ name = 1000, ... }} and federation.features = {each}."
        )
    return [PartyFacts(party, table.records[party], width) for party, width in widths.items()]


def _with_names(job: Job, facts: Sequence[PartyFacts], names: tuple[str, ...]) -> list[PartyFacts]:
    """Declared facts with the names of the ranges, where their number fits; by columns in the parties' order."""
    if not job.split.same_people:
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


def check_facts(job: Job, facts: Sequence[PartyFacts]) -> None:
    """By columns all parties have the same people, and a feature is with one of them; by rows the same columns."""
    first = facts[0]
    for other in () if job.split.same_people else facts[1:]:
        if not first.feature_names or not other.feature_names or other.feature_names == first.feature_names:
            continue  # else the model would mix features up
        strange = sorted(set(first.feature_names) ^ set(other.feature_names))
        what = f"these are at one of them only: {', '.join(strange)}" if strange else "they are in another order"
        raise InputError(
            f"parties {first.party!r} and {other.party!r} have different columns: {what}. "
            "Give every party the same columns in the same order."
        )
    if not job.split.same_people:
        return
    check_people({fact.party: fact.records for fact in facts})
    places: dict[str, list[str]] = {}
    for fact in facts:
        for name in fact.feature_names:
            places.setdefault(name, []).append(fact.party)
    twice = {name: parties for name, parties in places.items() if len(parties) > 1}
    if twice:
        names = ", ".join(f"{name} ({', '.join(parties)})" for name, parties in twice.items())
        raise InputError(
            f"several parties have columns of the same name: {names}. By columns every feature is with one party: "
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


def ask_facts(
    federation: Federation, job: Job | EvaluationJob, state: RunState | None, *, classes: bool
) -> list[PartyFacts]:
    """What the parties declare, or declared when a resumed run began; the federation gets receipts and journal."""
    known = state.journal.about["facts"] if state is not None and state.journal.begun else ()
    answers = {fact["party"]: fact for fact in known}
    if not answers:
        answers = federation.coordinator().facts(classes=classes, columns=federation.split.same_people)
        if federation.split.same_people:
            check_aligned(answers)
    facts, declared = list[PartyFacts](), dict[str, dict[str, Any]]()
    for party, told in answers.items():
        served = None if told.get("solvers") is None else tuple(told["solvers"])
        names, labels = tuple(told["feature_names"]), tuple(told.get("classes", ()))
        facts.append(PartyFacts(party, told["records"], told["features"], names, labels, served, told.get("people")))
        declared[party] = asdict(facts[-1])
    if isinstance(job, Job):
        check_facts(job, facts)
    federation.receipts |= read_receipts(job)
    federation.declared = declared
    if state is not None and federation.counted:
        federation.journal = state.journal
        if not state.journal.begun:
            state.journal.about = {
                "job": state.meaning,
                "facts": list(map(asdict, facts)),
                "before": {party: asdict(balance) for party, balance in state.before.items()},
                "overwrite": state.overwrite,
                "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            }
    return facts


def check_declared(table: FederationTable, facts: Sequence[PartyFacts]) -> None:
    """What the job declares of remote parties is what they say, or its plan was made for other data."""
    for fact in facts:
        records = fact.records if table.records is None else table.records.get(fact.party)
        features = fact.features if table.features is None else table.width(fact.party)
        if (records, features) != (fact.records, fact.features):
            raise InputError(
                f"federation.records and features declare {records} records and {features} features for "
                f"{fact.party!r}, which says {fact.records} and {fact.features}; correct the job."
            )


@contextmanager
def open_federation(  # noqa: PLR0913
    job: Job,
    say: Say,
    state: RunState | None = None,
    over: Callable[[Transport], Transport] = lambda wire: wire,
    wire: Transport | None = None,
    *,
    classes: bool = False,
) -> Iterator[Federation]:
    """The parties of a job, with what they declared, and with `classes` which labels occur; else as `open_job`."""
    check_said(job.path, job.about.texts())
    parties, table = list[Party](), job.federation
    if table is None:
        schema = job.known_schema
        for name, source in job.sources.items():
            own = schema  # by columns each file is read by its part of it
            if schema is not None and job.split.same_people:
                own = schema.part(sources.table_shape(job.resolve(source.file), schema)[1])
            parties.append(sources.read_party(name, source, job.resolve, schema=own, labelled=job.labelled(name)))
        if job.split.same_people:
            sources.join(parties)
        wire = InProcess(parties)
    elif wire is None:
        wire = open_wire(table, job.resolve, say, None if state is None else state.journal)
    federation = make_federation(job, over(wire), parties)
    with contextlib.closing(federation):
        facts = ask_facts(federation, job, state, classes=classes)
        if table is not None:
            check_declared(table, facts)
        elif job.split.same_people:
            federation.check_labels()
        yield federation


@contextmanager
def open_job(
    job: Job,
    say: Say,
    state: RunState | None = None,
    over: Callable[[Transport], Transport] = lambda wire: wire,
    wire: Transport | None = None,
) -> Iterator[JobRun]:
    """A job at its parties: files are read here, or remote parties are waited for; nothing is charged.

    A fit with a `state` that has begun is resumed, with what the parties declared then. `over` may put something
    between the coordinator and the wire; `wire` leads to remote parties that are there already, else they connect over
    gRPC.
    """
    model = job.estimator()
    with open_federation(job, say, state, over, wire, classes=model.known_classes is None) as federation:
        yield prepare_run(job, model, federation, runs=True)


def make_federation(job: Job, wire: Transport, parties: Sequence[Party] = ()) -> Federation:
    """The job's parties on a wire: by columns who knows the labels, whether only sums over them are opened, to whom."""
    table, columns = job.federation, job.columns
    federation = Federation(job.split, wire, parties=parties, dealer=None if table is None else table.dealer)
    federation.about = job.about
    if parties:
        federation.called("here")
    if columns is not None:
        norms = None if columns.norms is None else [columns.norms[party] for party in job.parties]
        federation.declare_columns(columns.labels, job.parties.index(job.label_party), norms)
        federation._secure("products", "auto" if table is None else table.products, "none", "auto")
    elif table is not None:
        federation._secure("sums", table.sums, "plain")
    if table is not None and (federation.secure or federation.undecided):
        federation.secure_aggregation(
            colluding_with_dealer=table.colluding_with_dealer,
            colluding=table.colluding,
            dropouts=table.dropouts,
            retries=table.retries,
        )
    return federation


def prepare_run(job: Job, model: PrivateLinearModel, federation: Federation, *, runs: bool = False) -> JobRun:
    """The plan of a job for what its parties declared; what an estimator would warn of becomes a note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training = Fit(model, federation, runs=runs)
    return JobRun(job, model, training, tuple(map(str, map(operator.attrgetter("message"), caught))))


def fit_model(run: JobRun, progress: Callable[[int, int], None] | None = None) -> PrivateLinearModel:
    """Run the plan that a preview showed. What parties said of their ledgers is stored, however the run ends."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the model is here, but")  # the caller reports missing_parts_
            run.training.run(progress)
    finally:
        store_receipts(run.job, run.training.session.coordinator.receipts)
    return run.model


@contextmanager
def open_test(job: EvaluationJob, model: PrivateLinearModel, say: Say, state: RunState) -> Iterator[Federation]:
    """The holders of test records: files are read here, by the model's schema, or remote parties are waited for.

    An evaluation with a `state` that has begun is resumed, with what they declared then. Their receipts are stored
    beside the job, however the evaluation ends.
    """
    if model.plan_.split.same_people:
        federation = connect_columns(job, model, say, state.journal)
        federation.declare_columns("held", job.parties.index(job.label_holder), None)
    elif job.federation is not None:
        federation = Federation.connect(open_wire(job.federation, job.resolve, say, state.journal))
    else:
        if (schema := model.schema_) is not None:
            schema = schema.of_features(tuple(getattr(model, "feature_names_in_", schema.feature_names)))
        parties = [
            sources.read_party(name, source, job.resolve, schema=schema, labelled=True)
            for name, source in job.sources.items()
        ]
        federation = Federation("central" if job.data is not None else "rows", InProcess(parties), parties=parties)
        federation.called("here")
    with contextlib.closing(federation):
        ask_facts(federation, job, state, classes=False)
        try:
            yield federation
        finally:
            store_receipts(job, federation.receipts)


def connect_columns(
    job: PeopleJob | EvaluationJob, model: PrivateLinearModel, say: Say, journal: Journal | None = None
) -> Federation:
    """By columns: each file has some columns of the same people, for an evaluation one party's the labels too."""
    if job.federation is not None:
        return Federation.connect(open_wire(job.federation, job.resolve, say, journal), split="columns")
    holder = job.label_holder if isinstance(job, EvaluationJob) else None
    parties = [sources.read_person_holder(job, table, model, labelled=table.name == holder) for table in job.party]
    sources.join(parties)
    return Federation("columns", InProcess(parties), parties=parties)


def open_wire(
    table: FederationTable, resolve: Callable[[str], Path], say: Say, journal: Journal | None = None
) -> Transport:
    """The wire to remote parties, once all of them have connected.

    A resumed fit waits only for those that are still in it. Once all is answered they are only told so, and a run that
    survives dropouts asks again without those that do not come.
    """
    from sottovoce.transports.certificates import COORDINATOR, Credentials
    from sottovoce.transports.grpc_wire import GrpcCoordinator

    if table.listen is None or table.certificates is None:
        raise InputError(
            "federation lacks listen or certificates, and parties are to connect to this process; name both. A job "
            "that has neither is for NVIDIA FLARE: `sottovoce nvflare job` makes what is submitted there."
        )
    credentials, ends = Credentials.load(resolve(table.certificates), COORDINATOR), table.ends
    journal = journal or Journal()
    if journal.ended:
        return InProcess([StandIn(name) for name in ends])
    warn_as_root()
    wire = GrpcCoordinator(table.listen, ends, credentials, timeout=table.timeout, on_change=say)
    try:
        there = [name for name in ends if name not in journal.gone]
        say(f"listening on {table.listen}, waiting for {', '.join(there)} (at most {table.wait:g} s)")
        may_leave = journal.solved or (journal.begun and getattr(table, "dropouts", 0) > 0)
        with contextlib.suppress(*((WireError,) if may_leave else ())):
            wire.wait_for_parties(table.wait, among=there)
    except BaseException:
        wire.close()
        raise
    return wire
