"""`sottovoce predict`."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli.console import AsJson, Overwrite, aside, print_json
from sottovoce.app.texts import cell

if TYPE_CHECKING:
    from sottovoce.estimators import PrivateLinearModel


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file that `fit` wrote.", show_default=False)],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Records: CSV, Parquet, LIBSVM; or a job.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here; default: the standard output.", show_default=False),
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    recipient: Annotated[
        str, typer.Option(help="Who learns joint predictions: this command (coordinator), or a party by its name.")
    ] = "coordinator",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Predict with a fitted model.

    Columns are matched by name, in any order; other columns, the label for one, are ignored. The result is a CSV
    with one line per record, in the order of the file. DATA may be a folder or a pattern, in quotes, of files that are
    read and answered piece by piece.

    - `sottovoce predict job.json new-patients.csv`
    - `sottovoce predict job.json new-patients.csv --proba --output scores.csv`

    By columns the records of the people may stay with the parties: DATA is then a TOML file with a [[party]] (name,
    file) for each, or a [federation] of parties elsewhere. Each party scores its own columns, and only the recipient
    learns the sums. Cells are empty where a party has a missing value.

    - `sottovoce predict job.json people.toml --recipient lab`
    """
    from sottovoce.app.model_file import load
    from sottovoce.app.sources import is_large
    from sottovoce.errors import InputError
    from sottovoce.files import check_writable, write_text

    fitted = load(model)
    if proba and not hasattr(fitted, "predict_proba"):
        raise InputError(f"--proba: a {type(fitted).__name__} has no probabilities; only logistic models have.")
    if output is not None:
        check_writable(output, "--output", overwrite=overwrite)
    if data.suffix.lower() == ".toml":
        columns = _joint(fitted, data, recipient, proba=proba)
        if columns is None:
            return
    elif recipient != "coordinator":
        raise InputError(f"--recipient {recipient}: all records are here; it is for a job of parties, DATA.toml.")
    elif is_large(data, cells=fitted.schema_ is not None):
        if as_json and output is None:
            raise InputError(f"--json: {data} is read in pieces, and its predictions are lines; give --output.")
        count = _by_pieces(fitted, data, output, proba=proba, overwrite=overwrite)
        _tell_written(count, output, as_json=as_json)
        return
    else:
        columns = _central(fitted, data, proba=proba)
    if as_json and output is None:
        print_json(columns)
        return
    text = csv_text(columns)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, "--output", overwrite=overwrite)
        _tell_written(len(columns["prediction"]), output, as_json=as_json)


def _tell_written(count: int, output: Path | None, *, as_json: bool) -> None:
    """How many predictions went to which file; nothing where they are on the standard output."""
    if as_json:
        print_json({"records": count, "written": str(output)})
    elif output is not None:
        aside().print(f"{count:,} predictions written to {output}", soft_wrap=True)


@contextlib.contextmanager
def _progress(output: Path | None) -> Iterator[Callable[[int, int], None]]:
    """A line with the time left, where predictions go to a file and somebody looks."""
    from sottovoce.estimators.progress import progress_bar

    console = aside()
    if output is None or not console.is_terminal:
        yield lambda *_: None
        return
    with progress_bar("predicting", console) as advance:
        yield advance


def _central(fitted: PrivateLinearModel, data: Path, *, proba: bool) -> dict[str, list[Any]]:
    """The columns of the result for records in one file."""
    from sottovoce.app.sources import read_features
    from sottovoce.data.cells import table_columns

    rows: Any
    if (schema := fitted.schema_) is not None:
        rows = table_columns(data)
        ignored = [name for name in rows if name not in schema.columns]
    else:
        names = list(getattr(fitted, "feature_names_in_", []))
        rows, ignored = read_features(names, fitted.n_features_in_, data, whole=True)
    if ignored:
        aside().print(f"note: not features of the model, ignored: {', '.join(ignored)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays have no column names; read_features matched them
        columns: dict[str, list[Any]] = {"prediction": fitted.predict(rows).tolist()}
        if proba:
            shares = fitted.predict_proba(rows).T.tolist()
            labels = (f"probability of {name}" for name in fitted.classes_.tolist())
            columns |= dict(zip(labels, shares, strict=True))
    return columns


def _by_pieces(fitted: PrivateLinearModel, data: Path, output: Path | None, *, proba: bool, overwrite: bool) -> int:
    """Write the result for records in files piece by piece; how many there are."""
    from sottovoce.app.sources import predict_pieces
    from sottovoce.files import write_stream

    names, count = ["prediction"], 0
    if proba:
        names += [f"probability of {name}" for name in fitted.classes_.tolist()]
    with contextlib.nullcontext(sys.stdout) if output is None else write_stream(output, "--output", overwrite) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(cell, names))
        with _progress(output) as advance:
            for labels, shares in predict_pieces(fitted, data, advance):
                columns = [labels.tolist(), *(shares.T.tolist() if proba else ())]
                writer.writerows([_text(value) for value in row] for row in zip(*columns, strict=True))
                count += len(labels)
    return count


def _joint(fitted: PrivateLinearModel, path: Path, recipient: str, *, proba: bool) -> dict[str, list[Any]] | None:
    """The columns of the result for people whose records are with several parties; None if one of those has it."""
    from sottovoce.app import runs
    from sottovoce.app.jobs import load_people_job
    from sottovoce.errors import InputError
    from sottovoce.federation.prediction import COORDINATOR, Predictions

    job = load_people_job(path)
    if job.federation is None and recipient != COORDINATOR:
        raise InputError(f"--recipient {recipient}: the files of all parties are here; it is for parties elsewhere.")
    with runs.people(job, fitted, lambda text: aside().print(text, soft_wrap=True)) as federation:
        if recipient != COORDINATOR:
            fitted.predict_for(federation, recipient)
            aside().print(f"{recipient} has the predictions; nothing of them came here", soft_wrap=True)
            return None
        scores = fitted.scores(federation)
    return Predictions(bytes.fromhex(fitted.charged_as_), scores, fitted.plan_).table(proba=proba)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.17g}" if isinstance(value, float) else cell(str(value))


def csv_text(columns: dict[str, list[Any]]) -> str:
    """Columns as a CSV; what is missing is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, columns))
    writer.writerows([_text(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()
