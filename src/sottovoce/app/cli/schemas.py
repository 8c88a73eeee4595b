"""`sottovoce schema`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import Overwrite


def schema(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table: CSV or Parquet.", show_default=False)],
    label: Annotated[str | None, typer.Option(help="The label column.", show_default=False)] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here; default: the standard output.", show_default=False),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="The file is public: copy ranges and levels out of it.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Draft a schema for a table, from its header and the types of its columns, for a person to fill in.

    No range and no level is copied from the file: they would tell its records. What is left empty must be filled in
    from public knowledge, and until then the schema is refused. A job has the schema as its table [schema], or names
    its file there.

    - `sottovoce schema patients.csv --label readmitted --output schema.toml`
    - `sottovoce schema census-public.csv --public`
    """
    from sottovoce.app.schema_draft import draft
    from sottovoce.files import check_writable, write_text

    if output is not None:
        check_writable(output, "--output", overwrite=overwrite)
    text = draft(file, label=label, public=public)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, "--output", overwrite=overwrite)
