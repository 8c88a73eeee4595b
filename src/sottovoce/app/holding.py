"""The party of a party file."""

from __future__ import annotations

from sottovoce.app import sources
from sottovoce.app.jobs import PartyJob
from sottovoce.federation.aligned import AlignmentFile
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy


def holder_of(job: PartyJob, policy: Policy) -> Party:
    """The party that holds the file's records, by its schema if it has one."""
    source, aligned = job.party, AlignmentFile(job.aligned)
    if (schema := job.known_schema) is None:
        return sources.read_party(source.name, source, job.resolve, policy, labelled=source.has_label, aligned=aligned)
    return sources.read_table_party(source.name, source, job.resolve, schema, policy, aligned=aligned)
