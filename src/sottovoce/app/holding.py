"""Parties made of files: of a party file, and of the people that a model is tested on or predicts for."""

from __future__ import annotations

from typing import Any

from sottovoce.app import sources
from sottovoce.app.jobs import EvaluationJob, PartyJob, PartyTable, PeopleJob, SourceTable
from sottovoce.app.sources import read_features, read_ids, read_party, source_account
from sottovoce.data.files import format_of, read_table
from sottovoce.data.resources import Resources, check_device, check_jobs
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.federation.alignment.file import AlignmentFile
from sottovoce.federation.models import Models
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy


def holder_of(job: PartyJob, policy: Policy) -> Party:
    """The party that holds the file's records, by its schema if it has one."""
    source = job.party
    check_jobs(source.n_jobs)
    check_device(source.device)
    schema = job.known_schema
    labelled = source.has_label if schema is None else None
    known: dict[str, Any] = {"schema": schema, "labelled": labelled, "aligned": AlignmentFile(job.aligned)}
    holder = sources.read_party(source.name, source, job.resolve, policy, **known)
    holder.holder.resources = Resources(source.n_jobs, source.device)
    return holder


def test_holder(job: EvaluationJob, name: str, source: SourceTable, model: PrivateLinearModel) -> Party:
    """One file of test records."""
    if (schema := model.schema_) is None:
        return read_party(name, source, job.resolve, labelled=True)
    names = tuple(getattr(model, "feature_names_in_", schema.feature_names))
    return read_party(name, source, job.resolve, schema=schema.of_features(names), labelled=True)


def person_holder(
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
