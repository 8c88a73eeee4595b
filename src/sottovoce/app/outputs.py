"""What a job leaves behind: model, report and page, and the receipts of its parties."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sottovoce import __version__
from sottovoce.app.interrupted import receipts_path, state_path
from sottovoce.app.jobs import EvaluationJob, Job
from sottovoce.app.model_file import plain, to_json
from sottovoce.app.page import Occasion, page
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.files import check_writable, read_plain, sync_folder, write_data, write_text
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Balance, Receipt


def keep_receipts(job: Job | EvaluationJob, receipts: Mapping[str, Receipt]) -> None:
    """Write the last receipt of each party beside the job."""
    if receipts:
        write_text(receipts_path(job), json.dumps(receipts_of(receipts), indent=2) + "\n", "receipts")


def receipts_of(receipts: Mapping[str, Receipt]) -> dict[str, str]:
    """By party, as `sottovoce ledger verify --receipt` takes them."""
    return {name: str(receipt) for name, receipt in receipts.items()}


def kept_receipts(job: Job | EvaluationJob) -> dict[str, Receipt]:
    """The receipts of earlier runs of a job."""
    path = receipts_path(job)
    try:
        found = json.loads(read_plain(path))
        return {str(name): Receipt.read(text) for name, text in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError):
        raise InputError(
            f"{path} cannot be read as receipts, by which a ledger that was set back is found; restore it, or remove "
            "it to do without them once."
        ) from None


def check_outputs(job: Job, *, overwrite: bool = False) -> None:
    """Every result can be written, and none would replace another, something the job reads, or a file that is there."""
    taken = {job.path.resolve(): "the job itself", state_path(job).resolve(): "where the state of the fit is kept"}
    for party, source in job.sources.items():
        for given in filter(None, (source.file, source.ledger)):
            taken[job.resolve(given).resolve()] = f"a file of party {party!r}"
    for key, path in job.outputs().items():
        if path.resolve() in taken:
            raise InputError(f"output.{key}={str(path)!r} is {taken[path.resolve()]}; give another path.")
        taken[path.resolve()] = f"output.{key}"
        check_writable(path, f"output.{key}", overwrite=overwrite)


def occasion_of(
    model: PrivateLinearModel, before: Mapping[str, Balance], after: Mapping[str, Balance], seconds: float
) -> Occasion:
    """What a report says of a training: the hash of its model file, its ledgers, where they are here, and its time."""
    return Occasion(
        about=model.plan_.about.texts(),
        receipts=receipts_of(model.receipts_),
        ledgers=[
            *((party, balance, after[party]) for party, balance in before.items()),
            *((party, *told) for party, told in model.budgets_.items() if party not in before),
        ],
        model_hash=hashlib.sha256(to_json(model).encode()).hexdigest(),
        seconds=seconds,
    )


def texts_of(model: PrivateLinearModel, occasion: Occasion) -> dict[str, str]:
    """What a fit leaves behind: model, privacy report and page."""
    return {
        "model": to_json(model),
        "report": json.dumps(plain(report_of(model, occasion)), indent=2, allow_nan=False) + "\n",
        "page": page(model, occasion),
    }


def write_outputs(
    job: Job, model: PrivateLinearModel, occasion: Occasion, *, overwrite: bool = False
) -> dict[str, Path]:
    """Model, privacy report and page, in their places and durable."""
    return write_texts(job, texts_of(model, occasion), overwrite=overwrite)


def write_texts(job: Job, texts: Mapping[str, str], *, overwrite: bool = False) -> dict[str, Path]:
    """Put the texts of a fit in their places; should one no longer be writable, an error names the folder they are in.

    A file that came to be there since it was checked is not replaced either, unless that is asked for, or it has the
    very text: a fit that was stopped while it wrote.
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
        empty = _has(path, b"")  # as one leaves it that was stopped on a disk without hard links
        write_data(path, data, what, overwrite=overwrite or empty)


def _has(path: Path, data: bytes) -> bool:
    """Whether a file has those very bytes, and keeps them."""
    try:
        if read_plain(path) != data:
            return False
        sync_folder(path.parent)
    except OSError:
        return False
    return True


def report_of(model: PrivateLinearModel, occasion: Occasion) -> dict[str, Any]:
    """The privacy report of a fitted model, with what it was for, what left the parties and how much was said."""
    return {
        "about": dict(occasion.about),
        "software": f"sottovoce {__version__}",
        "plan_digest": model.charged_as_,
        "model_sha256": occasion.model_hash,
        **model.privacy_.to_dict(),
        "feature_names": list(getattr(model, "feature_names_in_", [])),
        "budgets": {party: {"before": vars(old), "after": vars(new)} for party, old, new in occasion.ledgers},
        "receipts": dict(occasion.receipts),
        **by_columns(model.plan_),
        "releases": [release.model_dump() for plan in model.plans_ for release in plan.releases],
        **({"bought_ranges": model.ranges_} if hasattr(model, "ranges_") else {}),
        **({"alpha": model.alpha_} if hasattr(model, "alpha_") else {}),
        "communication": asdict(model.communication_),
        "missing_parts": model.missing_parts_,
    }


def by_columns(plan: Plan) -> dict[str, Any]:
    """By columns: who has how many, and who knows the labels."""
    if not plan.split.same_people:
        return {}
    names = [party for party, _ in plan.parties]
    widths = dict(zip(names, plan.columns, strict=True))
    return {"columns": widths, "labels": plan.labels, "label_party": names[plan.label_party]}
