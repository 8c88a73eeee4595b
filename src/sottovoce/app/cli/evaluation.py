"""`sottovoce evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import AsJson, Overwrite, aside, out, print_json


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file that `fit` wrote.", show_default=False)],
    job: Annotated[Path, typer.Argument(metavar="TEST", help="A TOML file about test records.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write metrics, curves and the guarantee here, as JSON.", show_default=False
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw metrics, curves and counts to this file (.png, .svg, .pdf).", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Tell how good a fitted model is on private test records.

    TEST has a table [privacy] with the evaluation's own epsilon, `people = "same"` before it if the test people are
    those of the fit, and the test records: [data], a [[party]] for each file of this process, or a [federation] of
    parties elsewhere, split as those of the fit. Ledgers are charged before anything is released.

    - `sottovoce evaluate job.json test.toml --output evaluation.json`
    - `sottovoce evaluate job.json test.toml --plot evaluation.png`
    """
    from sottovoce.app import interrupted, runs
    from sottovoce.app.jobs import load_evaluation_job
    from sottovoce.app.model_file import load, plain
    from sottovoce.errors import InputError
    from sottovoce.estimators.evaluation import evaluate as evaluated
    from sottovoce.estimators.plots import SUFFIXES, new_figure
    from sottovoce.files import check_writable, write_text

    fitted, test = load(model), load_evaluation_job(job)
    if plot is not None and plot.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {plot} must end in {', '.join(SUFFIXES)}.")
    with interrupted.alone(test):
        for path, what in ((output, "--output"), (plot, "--plot")):
            if path is not None:
                check_writable(path, what, overwrite=overwrite)
        figure = None if plot is None else new_figure()  # before anything is charged
        with runs.tested(test, fitted, lambda text: aside().print(text, soft_wrap=True)) as federation:
            found = evaluated(fitted, federation, **test.privacy.model_dump(exclude_unset=True), people=test.people)
        told = plain(found.to_dict())
        if output is not None:
            write_text(output, json.dumps(told, indent=2) + "\n", "--output", overwrite=overwrite)
        if plot is not None:
            found.plot(figure).savefig(plot)
    if as_json:
        print_json(told)
    else:
        out().print(str(found), soft_wrap=True)
