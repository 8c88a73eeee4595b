"""`sottovoce nvflare`: jobs and sites for NVIDIA FLARE."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import out

app = typer.Typer(
    help="Run federations on NVIDIA FLARE: make its jobs, and restrict its sites.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command()
def job(
    file: Annotated[Path, typer.Argument(metavar="JOB", help="A job file in TOML.", show_default=False)],
    folder: Annotated[Path, typer.Option("--out", help="The folder to make.", show_default=False)],
    restart: Annotated[bool, typer.Option("--restart", help="Give an interrupted run up; it stays charged.")] = False,
) -> None:
    """Make a FLARE job of a job file: the server trains as the file says, the clients answer by their own files.

    federation.parties are the names of the FLARE clients; federation.listen and certificates are not needed.
    What the job leaves, model, privacy report and page, is in the folder `sottovoce` of its downloaded results.
    A fit that was stopped goes on when the same job is submitted again: the same plan, charged once.

    - `sottovoce nvflare job trial.toml --out trial-flare`
    - `nvflare job submit -j trial-flare`
    """
    from sottovoce.app.flare_files import write_flare_job
    from sottovoce.app.jobs import load_job

    made = write_flare_job(load_job(file), folder, restart=restart)
    out().print(f"made {made}; submit it with: nvflare job submit -j {made}", soft_wrap=True)


@app.command()
def site(
    kit: Annotated[
        Path, typer.Argument(metavar="KIT", help="The folder of a FLARE server or client.", show_default=False)
    ],
) -> None:
    """Restrict a provisioned FLARE site to this program: in its folder `local`, before it starts.

    Writes `resources.json` (the one class that a job may name, no streaming of logs) and `authorization.json` (no code
    of a job, no shell commands, in no role). A client then needs its file `local/NAME.toml`: see the guide on FLARE.

    - `sottovoce nvflare site /srv/flare/north`
    """
    from sottovoce.app.flare_files import restrict_site

    for path in restrict_site(kit).values():
        out().print(f"wrote {path}", soft_wrap=True)
