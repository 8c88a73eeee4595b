"""What a job keeps beside it: the state of a run until its results are written, receipts, model, report and page.

A fit or an evaluation that was stopped resumes from its state. Whatever charges has the state of its job to itself,
from its first look at it until its results are written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sottovoce import __version__
from sottovoce.app.jobs import EvaluationJob, Job
from sottovoce.app.model_file import plain, to_json
from sottovoce.app.page import Occasion, page
from sottovoce.app.sources import accounts_of
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.federation.journal import Journal
from sottovoce.files import check_writable, read_plain, sync_folder, write_data, write_text
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Account, Balance, Receipt

WHAT_TO_DO: Final = "put right what is refused and start again, and it goes on; or give it up with --restart"

# What may change from one start to the next: where results and prepared rows go, and how the parties are reached.
_MEANWHILE: Final[Any] = {
    "output": True,
    "federation": {"listen", "wait", "timeout", "certificates"},
    "data": {"folder"},
    "party": {"__all__": {"folder"}},
}


@dataclass(frozen=True)
class RunState:
    """The run of a job, in one process or resumed in others: its journal, and how things were when it began."""

    journal: Journal
    meaning: str  # a hash of all that the job asks for
    accounts: Mapping[str, Account]  # of the parties of this process
    before: Mapping[str, Balance]  # their balances when the run began
    overwrite: bool

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What the parties declared public when it began; none of a run that begins now."""
        return list(self.journal.about["facts"]) if self.journal.begun else []

    @property
    def resumed(self) -> str:
        """Where a resumed run continues, in words; "" for a new run."""
        state = self.journal
        if not state.begun:
            return ""
        done = "; all is answered" if state.solved or state.ended else ""
        return f"going on with the run in {state.path}, begun {state.about['begun']}, from round {state.answered}{done}"

    def note_beginning(self, facts: Sequence[Any]) -> None:
        """Let the journal of a new run begin with the job, the parties' facts and the balances."""
        if not self.journal.begun:
            self.journal.about = {
                "job": self.meaning,
                "facts": [dataclasses.asdict(fact) for fact in facts],
                "before": {party: dataclasses.asdict(balance) for party, balance in self.before.items()},
                "overwrite": self.overwrite,
                "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            }


@contextmanager
def hold_run(
    job: Job | EvaluationJob,
    model: PrivateLinearModel | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    overwrite: bool = False,
) -> Iterator[RunState]:
    """The fit of a job, or the evaluation of a model by one; `resume` demands a stopped run, `restart` gives it up.

    Guarantee: until the block ends no other process begins this run or resumes it; with `resume` the first plan is the
    one that is stored.
    """
    accounts, path = accounts_of(job), job.state_path
    if resume and restart:
        raise InputError("--resume goes on with a run and --restart gives it up; give one of them.")
    for party, file in job.input_files():
        if job.resolve(file).resolve() in (path.resolve(), job.receipts_path.resolve()):
            raise InputError(
                f"{file!r} of party {party!r} has the name that {job.path} keeps something under; name the file, or "
                "the job, otherwise."
            )
    charges = job.federation is not None or any(source.ledger is not None for source in job.sources.values())
    with closing(Journal(path if charges or path.exists() or path.is_symlink() else None, restart=restart)) as state:
        if resume and not state.plans:
            raise InputError(f"--resume: there is no interrupted run of {job.path}; {path} would have its state.")
        content = job.model_dump(mode="json", exclude=_MEANWHILE)
        if model is not None:
            content["evaluated"] = hashlib.sha256(to_json(model).encode()).hexdigest()
        meaning = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        if not state.begun:
            before = {party: account.balance() for party, account in accounts.items()}
        elif state.about.get("job") != meaning:
            raise state.unusable("the command asks for something else now than when that run began")
        else:
            before = {party: Balance(**fields) for party, fields in state.about["before"].items()}
            overwrite = overwrite or state.about["overwrite"]
        yield RunState(state, meaning, accounts, before, overwrite)


def describe_lost_cost(plan: Plan) -> str:
    """What a plan that was given up cost, as far as its parties charged it."""
    return (
        f"plan {plan.digest.hex()[:12]}, {plan.algorithm}, epsilon {plan.epsilon:g} at delta {plan.delta:g}, by "
        f"{', '.join(plan.names)}; where it was charged it stays spent"
    )


def store_receipts(job: Job | EvaluationJob, receipts: Mapping[str, Receipt]) -> None:
    """Write the last receipt of each party beside the job."""
    if receipts:
        texts = {name: str(receipt) for name, receipt in receipts.items()}
        write_text(job.receipts_path, json.dumps(texts, indent=2) + "\n", "receipts")


def read_receipts(job: Job | EvaluationJob) -> dict[str, Receipt]:
    """The receipts of earlier runs of a job."""
    try:
        texts = json.loads(read_plain(job.receipts_path))
        return {str(name): Receipt.read(text) for name, text in texts.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError):
        raise InputError(
            f"{job.receipts_path} cannot be read as receipts, by which a ledger that was set back is found; restore "
            "it, or remove it to do without them once."
        ) from None


def check_outputs(job: Job, *, overwrite: bool = False) -> None:
    """Every result can be written, and none would replace another, something the job reads, or a file that is there."""
    taken = {job.path.resolve(): "the job itself", job.state_path.resolve(): "where the state of the fit is kept"}
    for party, file in job.input_files():
        taken[job.resolve(file).resolve()] = f"a file of party {party!r}"
    for key, path in job.outputs().items():
        if path.resolve() in taken:
            raise InputError(f"output.{key}={str(path)!r} is {taken[path.resolve()]}; give another path.")
        taken[path.resolve()] = f"output.{key}"
        check_writable(path, f"output.{key}", overwrite=overwrite)


def describe_occasion(
    model: PrivateLinearModel, before: Mapping[str, Balance], after: Mapping[str, Balance], seconds: float
) -> Occasion:
    """What a report says of a training: the hash of its model file, the ledgers of this process, and its time."""
    return Occasion(
        about=model.plan_.about.texts(),
        receipts={name: str(receipt) for name, receipt in model.receipts_.items()},
        ledgers=[
            *((party, balance, after[party]) for party, balance in before.items()),
            *((party, *balances) for party, balances in model.budgets_.items() if party not in before),
        ],
        model_hash=hashlib.sha256(to_json(model).encode()).hexdigest(),
        seconds=seconds,
    )


def make_texts(model: PrivateLinearModel, occasion: Occasion) -> dict[str, str]:
    """What a fit leaves behind: model, privacy report and page."""
    report = json.dumps(plain(make_report(model, occasion)), indent=2, allow_nan=False) + "\n"
    return {"model": to_json(model), "report": report, "page": page(model, occasion)}


def write_texts(job: Job, texts: Mapping[str, str], *, overwrite: bool = False) -> dict[str, Path]:
    """Write the texts of a fit, whole and durable; if one cannot be written, the error names the folder they are in.

    A file that appeared since the check is not replaced either, unless that is asked for, or it has this very text: of
    a fit that was stopped while it wrote.
    """
    paths = job.outputs()
    try:
        for key, text in texts.items():
            write_once(paths[key], text.encode(), f"output.{key}", overwrite=overwrite)
    except InputError as error:
        folder = Path(tempfile.mkdtemp(prefix="sottovoce-"))
        for key, text in texts.items():
            write_text(folder / paths[key].name, text, key)
        raise InputError(f"{error} The fit is done and paid for: its results are in {folder}.") from None
    return paths


def write_once(path: Path, data: bytes, what: str, *, overwrite: bool) -> None:
    """Write a result, unless a run that was stopped has written it."""
    if not _has(path, data):
        empty = _has(path, b"")  # left by a run that was stopped, on a disk without hard links
        write_data(path, data, what, overwrite=overwrite or empty)


def _has(path: Path, data: bytes) -> bool:
    """Whether a file has exactly these bytes, durably."""
    try:
        if read_plain(path) != data:
            return False
        sync_folder(path.parent)
    except OSError:
        return False
    return True


def make_report(model: PrivateLinearModel, occasion: Occasion) -> dict[str, Any]:
    """The privacy report of a fitted model, with its purpose, releases and communication."""
    return {
        "about": dict(occasion.about),
        "software": f"sottovoce {__version__}",
        "plan_digest": model.charged_as_,
        "model_sha256": occasion.model_hash,
        **model.privacy_.to_dict(),
        "feature_names": list(getattr(model, "feature_names_in_", [])),
        "budgets": {party: {"before": vars(old), "after": vars(new)} for party, old, new in occasion.ledgers},
        "receipts": dict(occasion.receipts),
        **describe_columns(model.plan_),
        "releases": [release.model_dump() for plan in model.plans_ for release in plan.releases],
        **({"estimated_ranges": model.ranges_} if hasattr(model, "ranges_") else {}),
        **({"alpha": model.alpha_} if hasattr(model, "alpha_") else {}),
        "communication": dataclasses.asdict(model.communication_),
        "missing_parts": model.missing_parts_,
    }


def describe_columns(plan: Plan) -> dict[str, Any]:
    """By columns: who has how many, and who knows the labels."""
    if not plan.split.same_people:
        return {}
    names = [party for party, _ in plan.parties]
    widths = dict(zip(names, plan.columns, strict=True))
    return {"columns": widths, "labels": plan.labels, "label_party": names[plan.label_party]}
