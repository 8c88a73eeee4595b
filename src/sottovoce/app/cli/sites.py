"""`sottovoce provision`, `request`, `sign` and `doctor`: from nothing to sites that can run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import AsJson, out, print_json
from sottovoce.app.settings import JOB

Days = Annotated[int, typer.Option(help="How long certificates are valid.")]


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


def request(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who you are, as told.", show_default=False)],
    folder: Annotated[Path, typer.Option(help="Where the key is made and stays.")] = Path("certificates"),
    as_json: AsJson = False,
) -> None:
    """Make a key here, and a request for its certificate, which the authority's keeper signs.

    A key that is there is used again: the next certificate then has the same pin. For a new key name a new folder,
    and change `certificates` in your file when its certificate is there.

    - `sottovoce request north`
    - `sottovoce request north --folder certificates-2`
    """
    from sottovoce.transports.certificates import peer_line
    from sottovoce.transports.certificates import request as make_request

    new = not (folder / f"{name}.key").exists()
    path, pin = make_request(folder, name)
    if as_json:
        print_json({"name": name, "request": str(path), "key": str(folder / f"{name}.key"), "new": new, "pin": pin})
        return
    console = out()
    console.print(f"key: {folder / name}.key, {'made now' if new else 'as it was'}; it stays here", soft_wrap=True)
    console.print(f"request: {path}", soft_wrap=True)
    console.print(
        f"next: send {path.name} to the authority's keeper, and put the {name}.pem that comes back into {folder}"
    )
    console.print("tell the other holders this line, by another way; it is the pin of your key:", soft_wrap=True)
    console.print(peer_line(name, pin), soft_wrap=True)


def sign(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the authority is.", show_default=False)],
    requests: Annotated[
        list[Path],
        typer.Argument(metavar="NAME.csr...", help="Requests, each called as its sender.", show_default=False),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Of coordinator.csr: a host name or address of it; repeat it for more.", show_default=False),
    ] = None,
    days: Days = 365,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Put those that are replaced on the list of revoked ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sign requests: a certificate for each sender, whose key stays where it was made.

    A request must name whom its file is called after, and be signed with its own key. Ask the sender, by another way,
    for the pin that `sottovoce request` printed there, and compare it with the one that is printed here.

    - `sottovoce sign sites/authority north.csr south.csr`
    """
    from sottovoce.transports import certificates

    hosts = host or ["localhost", "127.0.0.1"]
    signed = [certificates.sign(folder, path, hosts=hosts, days=days, end_other=revoke) for path in requests]
    if as_json:
        print_json(
            {"folder": str(folder), "days": days, "signed": [s._asdict() | {"path": str(s.path)} for s in signed]}
        )
        return
    console = out()
    for each in signed:
        if each.replaced:
            console.print(f"replaced{' and revoked' if revoke else ''}: {each.replaced}", soft_wrap=True)
        if each.other_key:
            console.print(f"it had another key: the others' pins of {each.name} no longer fit", soft_wrap=True)
        console.print(certificates.peer_line(each.name, each.pin), soft_wrap=True)
        console.print(f"compare this pin with {each.name}, then send {each.path} there", soft_wrap=True)


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
