"""`sottovoce demo` and `sottovoce example`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import Overwrite, out


def demo(
    folder: Annotated[
        Path, typer.Option(help="Where the demo works; what an earlier demo left there is replaced.")
    ] = Path("sottovoce-demo"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the clinics running afterwards, until Ctrl-C, to train again.")
    ] = False,
) -> None:
    """Four clinics train a model together, on synthetic records, in well under a minute.

    Each clinic is a process of its own with its own file and ledger; they speak to the coordinator over mutually
    authenticated connections. A second training is then refused, since the budget does not allow it.

    - `sottovoce demo`
    - `sottovoce demo --folder /tmp/demo --keep`
    """
    from sottovoce.app.demo import run

    run(folder, out(), keep=keep)


def example(
    name: Annotated[str, typer.Argument(metavar="NAME", help="clinic-1, clinic-2, clinic-3, clinic, lab or insurer.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The CSV file to write.", show_default=False)],
    new: Annotated[bool, typer.Option("--new", help="People to predict for, whose labels nobody has.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a file of made-up people to try a federation with; they are drawn by arithmetic and about nobody.

    The clinics 1 to 3 have different people. The clinic, the lab and the insurer of a town have different columns of
    mostly the same people, each in its own order and with a column `id` that says who they are.

    - `sottovoce example clinic-1 clinic-1.csv`
    - `sottovoce example lab lab.csv`
    - `sottovoce example lab new-people.csv --new`
    """
    from sottovoce.files import write_text
    from sottovoce.lab.synthetic import example_rows

    rows = example_rows(name, new=new)
    write_text(file, "".join(",".join(row) + "\n" for row in rows), "file", overwrite=overwrite)
    out().print(f"{file}: {len(rows) - 1:,} made-up people, {len(rows[0])} columns", soft_wrap=True)
