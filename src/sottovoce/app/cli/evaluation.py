"""`sottovoce evaluate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import AsJson, Overwrite, aside, out, print_json
from sottovoce.app.cli.training import told_when_stopped


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
    restart: Annotated[
        bool, typer.Option("--restart", help="Give an interrupted evaluation up; it stays charged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell how good a fitted model is on private test records.

    TEST has a table [privacy] with the evaluation's own epsilon, `people = "same"` before it if the test people are
    those of the fit, and the test records: [data], a [[party]] for each file of this process, or a [federation] of
    parties elsewhere, split as those of the fit. Ledgers are charged before anything is released.

    Where ledgers pay, the state of the evaluation is in NAME.run, beside TEST, until its results are written and
    printed. One that was stopped goes on when it is started again: the same numbers, charged once.

    - `sottovoce evaluate job.json test.toml --output evaluation.json`
    - `sottovoce evaluate job.json test.toml --plot evaluation.png`
    """
    from sottovoce.app import interrupted, runs
    from sottovoce.app.jobs import load_evaluation_job
    from sottovoce.app.model_file import load, plain
    from sottovoce.errors import InputError
    from sottovoce.estimators.evaluation import evaluate as evaluated
    from sottovoce.estimators.plots import SUFFIXES, new_figure
    from sottovoce.files import check_writable

    fitted, test, beside = load(model), load_evaluation_job(job), aside()
    if plot is not None and plot.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {plot} must end in {', '.join(SUFFIXES)}.")
    with interrupted.evaluating(test, fitted, runs.accounts_of(test), restart=restart) as begun:
        for plan in begun.journal.given_up:
            beside.print(f"note: given up: {interrupted.cost_in_words(plan)}", soft_wrap=True)
        texts: Mapping[str, str] = begun.journal.outputs
        if texts:
            beside.print("this evaluation had ended when it was stopped; nothing was asked or charged", soft_wrap=True)
        else:
            for path, what in ((output, "--output"), (plot, "--plot")):
                if path is not None:
                    check_writable(path, what, overwrite=overwrite)
            if plot is not None:
                new_figure()  # it can be drawn
            if said := begun.said():
                beside.print(said, soft_wrap=True)
            with (
                told_when_stopped(test, begun),
                runs.tested(test, fitted, lambda text: beside.print(text, soft_wrap=True), begun) as federation,
            ):
                found = evaluated(fitted, federation, **test.privacy.model_dump(exclude_unset=True), people=test.people)
            texts = {"evaluation": json.dumps(plain(found.to_dict()), indent=2) + "\n", "said": str(found)}
            begun.journal.keep_outputs(texts)
        _give(texts, output, plot, overwrite=overwrite, as_json=as_json)
        begun.journal.remove()


def _give(texts: Mapping[str, str], output: Path | None, plot: Path | None, *, overwrite: bool, as_json: bool) -> None:
    """Write and print what was found; until all of that is done it is kept."""
    from sottovoce.app.outputs import write_once
    from sottovoce.errors import InputError
    from sottovoce.estimators.plots import draw, new_figure, picture

    text, told = texts["evaluation"], json.loads(texts["evaluation"])
    try:
        if output is not None:
            write_once(output, text.encode(), "--output", overwrite=overwrite)
        if plot is not None:
            write_once(plot, picture(draw(told, new_figure()), plot.suffix.lower()), "--plot", overwrite=overwrite)
        if as_json:
            print_json(told)
        else:
            out().print(texts["said"], soft_wrap=True)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (InputError, OSError) as error:
        why = f"the standard output cannot be written ({error.strerror})." if isinstance(error, OSError) else error
        raise InputError(
            f"{why} The evaluation is done and paid for: start the same again, at no further cost."
        ) from None
