"""`sottovoce plan --epsilon ...`: the plans of a job at several budgets, and what each would cost in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.app.job_facts import Facts, job_facts
from sottovoce.app.jobs import Job
from sottovoce.app.runs import Preview, planned
from sottovoce.data.files import format_of, read_table
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.estimators.declarations import common_names
from sottovoce.lab.made_up import LookAlike, MadeUp
from sottovoce.lab.simulation import SimulatedFits, check_epsilons


@dataclass(frozen=True, eq=False)
class Comparison:
    """A preview for each epsilon, the smallest first, and the simulation that is to be run. Public throughout."""

    previews: tuple[Preview, ...]
    work: SimulatedFits


def compared(job: Job, epsilons: Sequence[float], like: Path | None = None) -> Comparison:
    """The plans of a job at these epsilons in the place of its own. Nothing is charged and no record is read."""
    facts, notes = job_facts(job)
    budgets = check_epsilons(epsilons)
    jobs = [job.model_copy(update={"privacy": job.privacy.model_copy(update={"epsilon": each})}) for each in budgets]
    previews = tuple(planned(each, (facts, notes)) for each in jobs)
    names = common_names({fact.party: vars(fact) for fact in facts}, job.split)
    known, problem = job.known_schema, previews[0].plan
    schema = known.of_features(names) if known is not None and names else known
    source: Any = MadeUp.of(problem, schema) if like is None else _look_alike(job, like, schema, (names, facts))
    return Comparison(previews, SimulatedFits(jobs[0].estimator(), problem, schema, source, budgets))


def _look_alike(
    job: Job, path: Path, schema: Schema | None, known: tuple[tuple[str, ...], Sequence[Facts]]
) -> LookAlike:
    """A public file: a table by the schema, or numbers in the columns of the job, the label as in its own files."""
    if schema is not None:
        return LookAlike.of(path, schema)
    label = next((source.label for source in job.sources.values() if source.label is not None), -1)
    names, facts = known
    features = job.split.count_features([fact.features for fact in facts])
    table = read_table(path, label=label) if format_of(path).tabular else read_table(path, features=features)
    rows = table.X
    if names and set(names) <= set(table.feature_names):
        rows = rows[:, np.array([table.feature_names.index(name) for name in names])]
    if rows.shape[1] != features:
        raise InputError(
            f"--like {path} has {rows.shape[1]} features and the job {features}; give a file with the same columns."
        )
    return LookAlike.of((rows, table.y), None)
