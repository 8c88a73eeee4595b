"""`sottovoce demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import out


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
