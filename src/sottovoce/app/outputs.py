"""What a job keeps beside it: the state of a run until its results are written, receipts, model, report and page.

A fit or an evaluation that was stopped resumes from its state. Whatever charges has the state of its job to itself,
from its first look at it until its results are written.

A fitted model is a JSON file: readable, and loaded without running anything that the file says. It holds what is public
about a fit: coefficients, classes, feature names, the plan, the privacy report and what was communicated. Nothing else
of the data is in it.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, StringConstraints, ValidationError

from sottovoce import __version__, estimators
from sottovoce.app.job_file import ESTIMATORS
from sottovoce.app.jobs import EvaluationJob, Job
from sottovoce.app.page import Occasion, page
from sottovoce.app.sources import accounts_of
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.estimators.coefficients import CoefficientTable, WithStandardErrors
from sottovoce.federation.journal import Journal
from sottovoce.files import check_writable, parse_file, read_plain, sync_folder, write_data, write_text
from sottovoce.formats import MODEL
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.ledger import Account, Balance, Receipt
from sottovoce.solvers import Options, by_name
from sottovoce.transports.base import Communication

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


FORMAT: Final = "sottovoce model"
# What is of the session, not of the model; paths of a ledger are nobody else's business.
# The schema is kept by itself: it may be the federation's.
_NOT_KEPT: Final = ("ledger", "resources", "schema")


class ModelFile(BaseModel):
    """The content of a model file."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["sottovoce model"] = FORMAT
    version: int = MODEL.number  # checked before the rest
    estimator: Literal["logistic", "ridge", "lasso", "elastic-net", "svm"]
    parameters: dict[str, Any]
    coef: list[FiniteFloat] | list[list[FiniteFloat]] | None  # None: the parties keep those of their columns
    intercept: FiniteFloat | list[FiniteFloat] | None  # of several classes one for each, and a row of coef
    classes: tuple[Any, ...] | None
    feature_names: list[str]
    table_schema: dict[str, Any] | None = None  # what makes the features of a table
    estimated_ranges: dict[str, tuple[FiniteFloat, FiniteFloat]] = {}  # by column: what this fit's budget paid for
    beside: list[Plan] = []  # what else ran for this fit in its budget; the coins of such plans name no records
    coefficients: list[dict[str, str | FiniteFloat | None]] | None = (
        None  # with standard errors, where they were bought
    )
    score_spread: tuple[FiniteFloat, FiniteFloat] | None = None  # of the training scores: where to look at others
    rounds: int
    plan: Plan
    charged_as: Annotated[str, StringConstraints(pattern="[0-9a-f]{64}")]  # the plan's name in the ledgers
    plan_digest: Annotated[str, StringConstraints(pattern="[0-9a-f]{64}")]
    receipts: dict[str, str] = {}  # by party: how far its ledger went
    privacy: dict[str, Any]
    communication: dict[str, int | dict[str, int]]
    missing_parts: dict[str, str] = {}  # by party: why it has no part of the model


def to_json(model: PrivateLinearModel) -> str:
    """The text of a fitted model's file."""
    if not hasattr(model, "plan_"):
        raise InputError(f"this {type(model).__name__} is not fitted; call fit before saving it.")
    names = dict(zip(ESTIMATORS.values(), ESTIMATORS, strict=True))
    # The coin names records in one published calibration; whoever gets the model must not get it.
    plan = model.plan_.model_copy(update={"coin": "withheld"})
    coef: Any = None  # the parties keep it
    intercept: Any = None
    if plan.models != "kept":
        one = plan.scaled_loss.outputs == 1
        coef = np.ravel(model.coef_) if one else model.coef_
        intercept = np.ravel(model.intercept_)[0] if one else model.intercept_
    parameters = model.get_params(deep=False)
    for name in _NOT_KEPT:
        parameters.pop(name, None)
    if isinstance(solver := parameters["solver"], Options):  # as a job file has it
        parameters["solver"] = {"name": solver.name, **solver.given()}
    beside = [json.loads(each.to_json()) for each in model.plans_ if each is not model.plan_]
    table = getattr(model, "coefficients_", None)
    content = {
        "format": FORMAT,
        "version": MODEL.number,
        "estimator": names[type(model).__name__],
        "parameters": parameters,
        "coef": coef,
        "intercept": intercept,
        "classes": model.plan_.classes,
        "feature_names": getattr(model, "feature_names_in_", []),
        **({} if model.schema_ is None else {"table_schema": model.schema_.table()}),
        **({"estimated_ranges": model.ranges_} if hasattr(model, "ranges_") else {}),
        **({"beside": beside} if beside else {}),
        **({} if table is None else {"coefficients": list(map(asdict, (*table, *table.knots)))}),
        "score_spread": model.score_spread_,
        "rounds": model.n_iter_,
        "plan": json.loads(plan.to_json()),
        "charged_as": model.charged_as_,
        "plan_digest": plan.digest.hex(),
        "receipts": dict(zip(model.receipts_, map(str, model.receipts_.values()), strict=True)),
        "privacy": model.privacy_.to_dict(),
        "communication": vars(model.communication_),
        "missing_parts": model.missing_parts_,
    }
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def save(model: PrivateLinearModel, path: str | Path) -> None:
    """Write a fitted model, in one step."""
    write_text(Path(path), to_json(model), "path")


def load_model(path: str | Path) -> PrivateLinearModel:
    """The fitted estimator of a model file: it predicts as the saved one did. Its ledger is not restored."""
    path = Path(path)

    def parse(text: str) -> Any:
        def refuse(constant: str) -> None:  # NaN and Infinity are no JSON
            raise json.JSONDecodeError(f"{constant} is no number of JSON", text, text.find(constant))

        return json.loads(text, parse_constant=refuse)

    content = parse_file(path, parse, "a model file", "give the path of one; `sottovoce fit` writes it.")
    try:
        if type(content) is dict and content.get("format") == FORMAT and not MODEL.read(content.get("version")):
            raise InputError(MODEL.refusal(str(path), content.get("version")))
        return _restore(ModelFile.model_validate(content))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # whatever a file leads to is the file's fault: what it names runs no code
        why = str(error)
        if isinstance(error, ValidationError):
            fault = error.errors()[0]
            why = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise InputError(f"{path} is not a model file of this version ({why}); `sottovoce fit` writes one.") from None


def plain(value: Any) -> Any:
    """Plain numbers, texts, lists and tables, as JSON knows them; an infinite number is the text "inf"."""
    if isinstance(value, Mapping):
        return dict(zip(map(str, value), map(plain, value.values()), strict=True))
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _restore(content: ModelFile) -> PrivateLinearModel:
    plan = content.plan
    if plan.digest.hex() != content.plan_digest:
        raise ValueError("plan and plan_digest do not agree")
    kept = content.coef is None or content.intercept is None
    if kept != (plan.models == "kept"):
        raise ValueError("coef and intercept are there unless the parties keep them, as the plan says")
    outputs = () if plan.scaled_loss.outputs == 1 else (plan.scaled_loss.outputs,)
    coef, intercept = np.array(content.coef or []), np.array(content.intercept)
    fits = kept or (coef.shape == (*outputs, plan.features) and intercept.shape == outputs)
    if not fits or len(content.feature_names) not in (0, plan.features):
        raise ValueError(f"coef and feature_names must have the plan's {plan.features} entries")
    if content.classes != plan.classes:
        raise ValueError("classes are not those of the plan")
    parameters = {**content.parameters, "epsilon": float(content.parameters["epsilon"])}  # "inf" is a text
    if isinstance(solver := parameters.get("solver"), dict):
        parameters["solver"] = by_name(**solver)
    if content.table_schema is not None:
        parameters["schema"] = Schema.from_table(content.table_schema)
    model: PrivateLinearModel = getattr(estimators, ESTIMATORS[content.estimator])(**parameters)
    if content.feature_names:
        model.feature_names_in_ = np.array(content.feature_names, dtype=object)
    if content.coef is None or content.intercept is None:
        model._set_model(None, None, plan)
    else:
        model._set_model(coef, intercept[()], plan)
    model.schema_ = model.schema
    if content.estimated_ranges:
        model.ranges_ = content.estimated_ranges
    if content.coefficients is not None and isinstance(model, WithStandardErrors):
        model.coefficients_ = CoefficientTable.of(content.coefficients, odds=plan.loss.name == "logistic")
    model.score_spread_ = content.score_spread
    model.n_iter_ = content.rounds
    model.n_features_in_ = plan.features
    model.plan_, model.plans_ = plan, (plan, *content.beside)
    model.charged_as_ = content.charged_as
    model.receipts_ = {name: Receipt.read(text) for name, text in content.receipts.items()}
    model.privacy_ = PrivacyReport.from_dict(content.privacy)
    model.communication_ = Communication(**content.communication)  # type: ignore[arg-type]
    model.missing_parts_ = content.missing_parts
    return model
