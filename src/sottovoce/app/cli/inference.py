"""`sottovoce coefficients`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import AsJson, out, print_json


def coefficients(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file that `fit` wrote.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show a model's coefficients with standard errors and 95% intervals that include the privacy noise.

    They are there if the job said `standard_errors = true` in [model].

    - `sottovoce coefficients job.json`
    """
    from sottovoce.app.model_file import load
    from sottovoce.errors import InputError
    from sottovoce.estimators.coefficients import WithStandardErrors

    fitted = load(model)
    if not isinstance(fitted, WithStandardErrors):
        raise InputError(
            f"{model} is a {type(fitted).__name__}, which has no standard errors; ridge and logistic have."
        )
    found = fitted.coefficients()
    if as_json:
        print_json(found.to_dict())
    else:
        out().print(str(found), soft_wrap=True, highlight=False)
