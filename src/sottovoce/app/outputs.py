"""What a job keeps beside it: the state of a run until its results are written, receipts, model, report and page.

A fit or an evaluation that was stopped resumes from its state. Whatever charges has the state of its job to itself,
from its first look at it until its results are written.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sottovoce import __version__
from sottovoce.app.jobs import EvaluationJob, Job
from sottovoce.app.page import Occasion, page
from sottovoce.app.sources import accounts_of
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.estimators.model_file import plain, to_json
from sottovoce.federation.journal import Journal
from sottovoce.files import check_writable, read_plain, write_data, write_text
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Account, Balance, Receipt
from sottovoce.systems import sync_folder

# Beside a job: the state of its run, until the results are written, and the last receipt of each party, to be shown to
# it at the next run.
STATE, RECEIPTS = ".run", ".receipts.json"
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
    def resumed(self) -> str:
        """Where a resumed run continues, in words; "" for a new run."""
        state = self.journal
        if not state.begun:
            return ""
        done = "; all is answered" if state.solved or state.ended else ""
        return f"going on with the run in {state.path}, begun {state.about['begun']}, from round {state.answered}{done}"


@contextmanager
def hold_run(
    job: Job | EvaluationJob,
    *,
    asked: Mapping[str, Any] | None = None,
    resume: bool = False,
    restart: bool = False,
    overwrite: bool = False,
) -> Iterator[RunState]:
    """The fit of a job or, by what is `asked`, another run; `resume` demands a stopped one, `restart` gives it up.

    Guarantee: until the block ends no other process begins this run or resumes it; with `resume` the first plan is the
    one that is stored.
    """
    accounts, path, receipts = accounts_of(job), job.path.with_suffix(STATE), job.path.with_suffix(RECEIPTS)
    if resume and restart:
        raise InputError("--resume goes on with a run and --restart gives it up; give one of them.")
    for party, file in job.input_files():
        if job.resolve(file).resolve() in (path.resolve(), receipts.resolve()):
            raise InputError(
                f"{file!r} of party {party!r} has the name that {job.path} keeps something under; name the file, or "
                "the job, otherwise."
            )
    charges = job.federation is not None or bool(accounts)
    with closing(Journal(path if charges or path.exists() or path.is_symlink() else None, restart=restart)) as state:
        if resume and not state.plans:
            raise InputError(f"--resume: there is no interrupted run of {job.path}; {path} would have its state.")
        content = job.model_dump(mode="json", exclude=_MEANWHILE) | dict(asked or {})
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
        write_text(job.path.with_suffix(RECEIPTS), json.dumps(texts, indent=2) + "\n", "receipts")


def read_receipts(job: Job | EvaluationJob) -> dict[str, Receipt]:
    """The receipts of earlier runs of a job."""
    path = job.path.with_suffix(RECEIPTS)
    try:
        texts = json.loads(read_plain(path))
        return {str(name): Receipt.read(text) for name, text in texts.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError):
        raise InputError(
            f"{path} cannot be read as receipts, by which a ledger that was set back is found; restore it, or remove "
            "it to do without them once."
        ) from None


def check_outputs(job: Job, *, overwrite: bool = False) -> None:
    """Every result can be written, and none would replace another, something the job reads, or a file that is there."""
    state = job.path.with_suffix(STATE)
    taken = {job.path.resolve(): "the job itself", state.resolve(): "where the state of the fit is kept"}
    for party, file in job.input_files():
        taken[job.resolve(file).resolve()] = f"a file of party {party!r}"
    for key, path in job.outputs().items():
        if path.resolve() in taken:
            raise InputError(f"output.{key}={str(path)!r} is {taken[path.resolve()]}; give another path.")
        taken[path.resolve()] = f"output.{key}"
        check_writable(path, f"output.{key}", overwrite=overwrite)


def make_texts(
    model: PrivateLinearModel, before: Mapping[str, Balance], after: Mapping[str, Balance], seconds: float
) -> dict[str, str]:
    """What a fit leaves behind: model, privacy report and page; they name the ledgers of this process, and its time."""
    text = to_json(model)
    occasion = Occasion(
        about=model.plan_.about.texts(),
        receipts={name: str(receipt) for name, receipt in model.receipts_.items()},
        ledgers=[
            *((party, balance, after[party]) for party, balance in before.items()),
            *((party, *balances) for party, balances in model.budgets_.items() if party not in before),
        ],
        model_hash=hashlib.sha256(text.encode()).hexdigest(),
        seconds=seconds,
    )
    report = {
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
        "communication": asdict(model.communication_),
        "missing_parts": model.missing_parts_,
    }
    told = json.dumps(plain(report), indent=2, allow_nan=False) + "\n"
    return {"model": text, "report": told, "page": page(model, occasion)}


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
    """Write a result, unless a run that was stopped has written it, durably."""
    try:
        found = read_plain(path)
        if found in (data, b""):
            sync_folder(path.parent)
    except OSError:
        found = None
    if found != data:  # an empty one was left by a run that was stopped, on a disk without hard links
        write_data(path, data, what, overwrite=overwrite or found == b"")


def describe_columns(plan: Plan) -> dict[str, Any]:
    """By columns: who has how many, and who knows the labels."""
    if not plan.split.same_people:
        return {}
    names = [party for party, _ in plan.parties]
    widths = dict(zip(names, plan.columns, strict=True))
    return {"columns": widths, "labels": plan.labels, "label_party": names[plan.label_party]}
