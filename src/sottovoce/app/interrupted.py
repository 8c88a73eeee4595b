"""A fit or an evaluation that was stopped goes on: where its state is, whether of the same job, what it has spent.

Whatever charges has the state of its job to itself, from its first look at it until its results are written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sottovoce.app.jobs import EvaluationJob, Job
from sottovoce.app.model_file import to_json
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.federation.journal import Journal
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Account, Balance

WHAT_TO_DO = "put right what is refused and start again, and it goes on; or give it up with --restart"

# What may change from one start to the next: where results and prepared rows go, and how the parties are reached.
_MEANWHILE = {
    "output": True,
    "federation": {"listen", "wait", "timeout", "certificates"},
    "data": {"folder"},
    "party": {"__all__": {"folder"}},
}


def state_path(job: Job | EvaluationJob) -> Path:
    """Where a job keeps the state of its run while that lasts."""
    return job.path.with_suffix(".run")


def receipts_path(job: Job | EvaluationJob) -> Path:
    """Where a job keeps the last receipt of each party: beside the job, to be shown to the party at the next run."""
    return job.path.with_suffix(".receipts.json")


def state_of(job: Job | EvaluationJob, *, restart: bool = False) -> Journal:
    """The state of a job that charges, for this process alone until it is closed; of another job there is none."""
    path = state_path(job)
    for party, source in job.sources.items():
        for given in filter(None, (source.file, source.ledger)):
            if job.resolve(given).resolve() in (path.resolve(), receipts_path(job).resolve()):
                raise InputError(
                    f"{given!r} of party {party!r} has the name that {job.path} keeps something under; name the file, "
                    "or the job, otherwise."
                )
    charges = job.federation is not None or any(source.ledger is not None for source in job.sources.values())
    return Journal(path if charges or path.exists() or path.is_symlink() else None, restart=restart)


def meaning_of(job: Job | EvaluationJob, evaluated: str = "") -> str:
    """A hash of all that a job asks for; of an evaluation also of the model."""
    said = job.model_dump(mode="json", exclude=_MEANWHILE) | ({"evaluated": evaluated} if evaluated else {})  # type: ignore[arg-type]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Begun:
    """The run of a job from its start on, in however many processes: its state, and how things were when it began."""

    journal: Journal
    meaning: str
    before: Mapping[str, Balance]  # the ledgers of this process
    overwrite: bool

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What the parties declared public when it began; none of a run that begins now."""
        return list(self.journal.about["facts"]) if self.journal.begun else []

    def beginning(self, facts: Sequence[Any]) -> dict[str, Any]:
        """What the state says first."""
        return {
            "job": self.meaning,
            "facts": [dataclasses.asdict(fact) for fact in facts],
            "before": {party: dataclasses.asdict(balance) for party, balance in self.before.items()},
            "overwrite": self.overwrite,
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def said(self) -> str:
        """Where it goes on, in words; "" where it begins."""
        state = self.journal
        if not state.begun:
            return ""
        done = "; all is answered" if state.solved or state.ended else ""
        return f"going on with the run in {state.path}, begun {state.about['begun']}, from round {state.answered}{done}"


@contextmanager
def begun(
    job: Job, accounts: Mapping[str, Account], *, resume: bool, restart: bool, overwrite: bool
) -> Iterator[Begun]:
    """The fit of a job, begun before or not; `resume` demands that it was, `restart` gives that run up.

    Guarantee: until the block ends no other process begins this fit or goes on with it; with `resume` the first plan is
    the one that is stored. `accounts` are the ledgers of this process.
    """
    if resume and restart:
        raise InputError("--resume goes on with a run and --restart gives it up; give one of them.")
    with closing(state_of(job, restart=restart)) as state:
        if resume and not state.plans:
            path = state_path(job)
            raise InputError(f"--resume: there is no interrupted run of {job.path}; {path} would have its state.")
        begun = _begun(state, meaning_of(job), accounts)
        yield dataclasses.replace(begun, overwrite=overwrite or begun.overwrite)


@contextmanager
def evaluating(
    job: EvaluationJob, model: PrivateLinearModel, accounts: Mapping[str, Account], *, restart: bool
) -> Iterator[Begun]:
    """The same for the evaluation of a model by a job."""
    with closing(state_of(job, restart=restart)) as state:
        yield _begun(state, meaning_of(job, hashlib.sha256(to_json(model).encode()).hexdigest()), accounts)


def _begun(state: Journal, meaning: str, accounts: Mapping[str, Account]) -> Begun:
    """What begins now, or what was begun, if it is the same."""
    if not state.begun:
        return Begun(state, meaning, {party: account.balance() for party, account in accounts.items()}, overwrite=False)
    if state.about.get("job") != meaning:
        raise state.unusable("the command asks for something else now than when that run began")
    kept = {party: Balance(**fields) for party, fields in state.about["before"].items()}
    return Begun(state, meaning, kept, state.about["overwrite"])


def cost_in_words(plan: Plan) -> str:
    """What a plan that was given up cost, as far as its parties charged it."""
    return (
        f"plan {plan.digest.hex()[:12]}, {plan.algorithm}, epsilon {plan.epsilon:g} at delta {plan.delta:g}, by "
        f"{', '.join(plan.names)}; where it was charged it stays spent"
    )
