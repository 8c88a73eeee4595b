"""The party of a party file."""

from __future__ import annotations

from typing import Any

from sottovoce.app import sources
from sottovoce.app.jobs import PartyJob
from sottovoce.data.devices import check_device
from sottovoce.data.threads import check_jobs
from sottovoce.federation.alignment.file import AlignmentFile
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
    holder.n_jobs, holder.device = source.n_jobs, source.device
    return holder
