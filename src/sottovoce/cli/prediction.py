"""`sottovoce predict`."""

from __future__ import annotations

import csv
import io
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.console import AsJson, aside, print_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sottovoce.estimators import PrivateLinearModel


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file that `fit` wrote.", show_default=False)],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Records: CSV, Parquet or LIBSVM.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here; default: the standard output.", show_default=False),
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict with a fitted model.

    Columns are matched by name, in any order; other columns, the label for one, are ignored. The result is a CSV
    with one line per record, in the order of the file.

    - `sottovoce predict model.json new-patients.csv`
    - `sottovoce predict model.json new-patients.csv --proba --output scores.csv`
    """
    from sottovoce.errors import InputError
    from sottovoce.files import check_writable, write_text
    from sottovoce.model_file import load

    fitted = load(model)
    if proba and not hasattr(fitted, "predict_proba"):
        raise InputError(f"--proba: a {type(fitted).__name__} has no probabilities; only logistic models have.")
    if output is not None:
        check_writable(output, "--output")
    rows, ignored = read_features(fitted, data)
    if ignored:
        aside().print(f"note: not features of the model, ignored: {', '.join(ignored)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays have no column names; read_features matched them
        columns: dict[str, Any] = {"prediction": fitted.predict(rows).tolist()}
        if proba:
            shares = fitted.predict_proba(rows).T.tolist()
            names = (f"probability of {_text(name)}" for name in fitted.classes_.tolist())
            columns |= dict(zip(names, shares, strict=True))
    if as_json and output is None:
        print_json(columns)
        return
    text = _csv(columns)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, "--output")
        if as_json:
            print_json({"records": len(columns["prediction"]), "written": str(output)})


def read_features(model: PrivateLinearModel, path: Path) -> tuple[NDArray[np.float64] | Any, list[str]]:
    """The model's columns of a file, in the model's order, and the names of columns that are not its own."""
    import numpy as np

    from sottovoce.data import readers
    from sottovoce.errors import InputError

    names = list(getattr(model, "feature_names_in_", []))
    if not {suffix.lower() for suffix in path.suffixes} & set(readers.CSV + readers.PARQUET):
        return readers.read_table(path, features=model.n_features_in_).X, []
    columns = readers.read_columns(path)
    if not names:
        raise InputError("the model has no feature names, so columns cannot be matched; predict in Python instead.")
    missing = [name for name in names if name not in columns]
    if missing:
        raise InputError(f"{path} lacks {len(missing)} of the model's columns: {', '.join(missing)}. Add them.")
    for name in names:
        if columns[name].dtype == object:
            raise InputError(f"{path}: column {name!r} is not numeric; encode it as the training data were.")
    rows = np.column_stack([columns[name] for name in names])
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise InputError(
            f"{path}: {bad.size} record(s) have missing or infinite values, the first is record {bad[0] + 1}; "
            "fill them in or leave them out."
        )
    return rows, [name for name in columns if name not in names]


def _text(value: Any) -> str:
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def _csv(columns: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()
