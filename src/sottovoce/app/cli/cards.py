"""`sottovoce card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import AsJson, Overwrite, out, print_json


def card(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file that `fit` wrote.", show_default=False)],
    evaluation: Annotated[
        Path | None, typer.Option(help="What `evaluate --output` wrote about this model.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A page (.html) or Markdown (.md); default: NAME.card.html.", show_default=False
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a model card: the promise, what was declared of the data, how good the model is, its coefficients.

    All of it is public already: no record is read and nothing is charged. A page holds its pictures; Markdown has them
    in a file beside it, NAME.svg.

    - `sottovoce card job.json --evaluation evaluation.json`
    - `sottovoce card job.json --output card.md`
    """
    from sottovoce.app import card as cards
    from sottovoce.app.model_file import load
    from sottovoce.errors import InputError
    from sottovoce.files import check_writable, write_text

    path = output or model.with_name(f"{model.stem}.card.html")
    if path.suffix.lower() not in cards.FORMATS:
        raise InputError(f"--output {path} must end in {' or '.join(cards.FORMATS)}.")
    fitted = load(model)
    told = None if evaluation is None else cards.load_evaluation(evaluation, fitted)
    made, title = cards.sections(fitted, told), f"Model card: {model.stem}"
    texts = {path: cards.as_html(title, made)}
    if path.suffix.lower() == ".md":
        picture = path.with_suffix(".svg")
        texts = {path: cards.as_markdown(title, made, picture.name)}
        found = [part.svg for section in made for part in section.parts if isinstance(part, cards.Picture)]
        texts |= dict.fromkeys([picture] if found else [], "".join(found))
    for each in texts:
        check_writable(each, "--output", overwrite=overwrite)
    for each, text in texts.items():
        write_text(each, text, "--output", overwrite=overwrite)
    written = [str(each) for each in texts]
    if as_json:
        print_json({"written": written})
    else:
        out().print(f"written: {', '.join(written)}", soft_wrap=True)
