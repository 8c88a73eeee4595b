"""What is public about the parties of a job: declared in it, read from the shape of its files, or asked for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sottovoce import algorithms
from sottovoce.app.jobs import FederationTable, Job
from sottovoce.app.sources import goes_by_pieces, read_ids, source_shape
from sottovoce.data.block import BlockRows
from sottovoce.errors import InputError
from sottovoce.federation.federation import Federation
from sottovoce.federation.predicting import check_aligned, check_people

SHAPE_READ: Final = "only the shape (rows and header) was read of"
IDS_READ: Final = "identifiers were read"


@dataclass(frozen=True)
class Facts:
    """What is public about a party's data. Names are empty where only their number is declared."""

    party: str
    records: int
    features: int
    feature_names: tuple[str, ...] = ()
    classes: tuple[Any, ...] = ()
    solvers: tuple[str, ...] | None = None  # that its rows serve where they lie; None: every one

    @classmethod
    def of(cls, party: str, told: Mapping[str, Any]) -> Facts:
        """What a party said of itself."""
        served = None if told.get("solvers") is None else tuple(told["solvers"])
        names, classes = tuple(told["feature_names"]), tuple(told.get("classes", ()))
        return cls(party, told["records"], told["features"], names, classes, served)


def job_facts(job: Job) -> tuple[list[Facts], list[str]]:
    """The public facts of a job, and notes that say which files were opened for their shape."""
    facts, opened = [] if job.federation is None else _declared_facts(job, job.federation), []
    schema = job.known_schema
    for party, source in job.sources.items():
        whole = schema is not None and not job.split.same_people
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
    notes = [f"{SHAPE_READ}: {', '.join(opened)}; declare records and features to open none"] if opened else []
    if (common := _common(job)) is not None:
        facts = [replace(fact, records=common) for fact in facts]
        notes.append(f"{IDS_READ}: the {common:,} people that all files have are used, in the order of the first")
    facts = _with_names(job, facts)
    check_facts(job, facts)
    return facts, notes


def _common(job: Job) -> int | None:
    """By columns, where every file of this process names identifiers: how many all have, as the fit joins them."""
    sources = job.sources
    if not job.split.same_people or len(sources) < 2 or any(source.id is None for source in sources.values()):
        return None
    lists = [read_ids(source, job.resolve, party) or () for party, source in sources.items()]
    return len(set(lists[0]).intersection(*lists[1:]))


def asked_facts(federation: Federation, *, classes: bool) -> list[Facts]:
    """What the parties of a federation declare."""
    found = federation.coordinator().facts(classes=classes)
    if federation.split.same_people:
        check_aligned(found)
    return [Facts.of(party, fact) for party, fact in found.items()]


def check_declared(table: FederationTable, facts: Sequence[Facts]) -> None:
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
    implied = 0 if job.split.same_people else len(known)
    widths = {party: table.width(party) or implied for party in table.parties}
    if table.records is None or not all(widths.values()):
        each = "{ name = 20, ... }" if job.split.same_people else "20"
        raise InputError(
            f"{job.path}: a plan for remote parties is made without asking them, so declare what is public: "
            f"federation.records = {{ name = 1000, ... }} and federation.features = {each}."
        )
    return [Facts(party, table.records[party], width) for party, width in widths.items()]


def _with_names(job: Job, facts: Sequence[Facts]) -> list[Facts]:
    """Declared facts with the names of the ranges, where their number fits; by columns in the parties' order."""
    schema = job.known_schema
    names = tuple(job.bounds.named_ranges or ()) if schema is None else schema.feature_names
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


def check_facts(job: Job, facts: Sequence[Facts]) -> None:
    """Refuse parties whose columns or people do not go together."""
    if job.split.same_people:
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
