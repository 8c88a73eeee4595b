"""`sottovoce provision` and `doctor`: from nothing to sites that can run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.certificates import Days
from sottovoce.app.cli.console import AsJson, out, print_json
from sottovoce.app.settings import JOB


class _Split(StrEnum):
    rows = "rows"
    columns = "columns"


def provision(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the sites go.", show_default=False)],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The parties.", show_default=False)],
    split: Annotated[_Split, typer.Option(help="Each party has some people, or some columns.")] = _Split.rows,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Where parties reach the coordinator; repeat it for more names.", show_default="localhost"),
    ] = None,
    port: Annotated[int, typer.Option(help="The coordinator's port.")] = 7443,
    helper: Annotated[
        str | None, typer.Option(help="The name of a helper that deals for sealed sums.", show_default=False)
    ] = None,
    label_party: Annotated[
        str | None, typer.Option(help="By columns: who has the labels.", show_default="the first")
    ] = None,
    requests: Annotated[
        bool, typer.Option("--requests", help="Make no keys for the parties: each makes its own, to be signed.")
    ] = False,
    days: Days = 365,
    as_json: AsJson = False,
) -> None:
    """Make a folder for each organisation: certificate, job file, policy, and a page that says what to do.

    The authority is in FOLDER/authority and stays with you; every other folder goes to its holder. With `--requests`
    no key of a party is made here: each runs `sottovoce request`, and you sign. Sites that are there are left as they
    are, so that a party is added by naming it.

    - `sottovoce provision sites north south east --host trials.example.org`
    - `sottovoce provision sites clinic lab --split columns --helper notary --requests --host trials.example.org`
    """
    from sottovoce.app import provisioning
    from sottovoce.app.superuser import warn_as_root

    warn_as_root()
    asked = provisioning.Federation(
        tuple(names),
        split.value,
        tuple(host or ["localhost"]),
        port,
        helper,
        label_party,
        days,
        requests,
    )
    made, kept = provisioning.provision(folder, asked)
    if as_json:
        print_json({"folder": str(folder), "made": made, "kept": kept, "coordinator": asked.address})
        return
    console = out()
    for name in made:
        console.print(f"made {folder / name}", soft_wrap=True)
    if kept:
        console.print(f"made before, and left as they are: {', '.join(kept)}", soft_wrap=True)
    console.print(f"the authority is in {folder / 'authority'}: it stays with you", soft_wrap=True)
    console.print(f"the parties reach the coordinator at {asked.address}", soft_wrap=True)
    parties = [name for name in made if name in asked.ends]
    if not parties:
        return
    if requests:
        console.print(
            "next: give each folder to its holder, who runs `sottovoce request NAME` in it and sends NAME.csr"
        )
        console.print(
            f"then: sottovoce sign {folder / 'authority'} {' '.join(f'{n}.csr' for n in parties)}", soft_wrap=True
        )
    else:
        console.print("next: give each folder to its holder, by a way that you trust: it has a key")
        console.print(
            "then: each holder follows GUIDE.md in its folder; what you gave away, remove here", soft_wrap=True
        )
    if kept and parties:
        console.print(f"add to federation.parties of the coordinator's job: {', '.join(parties)}", soft_wrap=True)


def doctor(
    job: Annotated[
        Path, typer.Option(help="A party file, a helper file or a coordinator's job.", envvar=JOB, show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Check a site before its first run, and say what to do. Nothing is charged and no record leaves.

    Certificate and key, the way to the coordinator and whether it takes this site, the clock, the file of records
    against label, identifiers, schema and bounds, the ledger entry by entry and what is left, free disk, policy and
    pins; of a coordinator the port, the plan and the outputs. Exit code 0: can run, perhaps with warnings; 1: cannot.

    - `sottovoce doctor --job party.toml`
    """
    from sottovoce.app.doctor import examine

    findings = examine(job)
    bad = sum(finding.state == "fails" for finding in findings)
    if as_json:
        print_json({"job": str(job), "ready": not bad, "checks": [vars(finding) for finding in findings]})
    else:
        console = out()
        for finding in findings:
            console.print(f"{finding.state:8}{finding.check}: {finding.text}", soft_wrap=True)
        warnings = sum(finding.state == "warning" for finding in findings)
        said = f"{warnings} warning{'s'[: warnings != 1]}"
        console.print(f"cannot run: {bad} of {len(findings)} checks fail" if bad else f"this site can run; {said}")
    if bad:
        raise typer.Exit(1)
