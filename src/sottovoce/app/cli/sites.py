"""`sottovoce provision`, `doctor`, `nvflare` and the commands of certificates: from nothing to sites that can run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import JOB, AsJson, JobPath, argument, cli_option, group, out, print_json, table
from sottovoce.app.superuser import warn_as_root

nvflare = group("Run federations on NVIDIA FLARE: make its jobs, and restrict its sites.")

Days = Annotated[int, typer.Option(help="How long certificates are valid.")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Put those that are replaced on the list of revoked ones.")]


class _Split(StrEnum):
    rows = "rows"
    columns = "columns"


def provision(
    folder: Annotated[Path, argument("FOLDER", "Where the sites go.")],
    names: Annotated[list[str], argument("NAME...", "The parties.")],
    split: Annotated[_Split, typer.Option(help="Each party has some people, or some columns.")] = _Split.rows,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Where parties reach the coordinator; repeat it for more names.", show_default="localhost"),
    ] = None,
    port: Annotated[int, typer.Option(help="The coordinator's port.")] = 7443,
    dealer: Annotated[str | None, cli_option("The name of a dealer that deals for secure sums.")] = None,
    label_party: Annotated[
        str | None, typer.Option(help="By columns: who has the labels.", show_default="the first")
    ] = None,
    requests: Annotated[
        bool, cli_option("Make no keys for the parties: each makes its own, to be signed.", "--requests")
    ] = False,
    days: Days = 365,
    as_json: AsJson = False,
) -> None:
    """Make a folder for each organisation: certificate, job file, policy, and a page that says what to do.

    The authority is in FOLDER/authority and stays with you; every other folder goes to its holder. With `--requests`
    no key of a party is made here: each runs `sottovoce request`, and you sign. Sites that are there are left as they
    are, so that a party is added by naming it.

    - `sottovoce provision sites north south east --host trials.example.org`
    - `sottovoce provision sites clinic lab --split columns --dealer notary --requests --host trials.example.org`
    """
    from sottovoce.app import provisioning

    warn_as_root()
    hosts = tuple(host or ["localhost"])
    asked = provisioning.Sites(tuple(names), split.value, hosts, port, dealer, label_party, days, requests)
    made, kept = provisioning.make_sites(folder, asked)
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
    if not (parties := [name for name in made if name in asked.ends]):
        return
    first = "by a way that you trust: it has a key"
    then = "each holder follows GUIDE.md in its folder; what you gave away, remove here"
    if requests:
        first = "who runs `sottovoce request NAME` in it and sends NAME.csr"
        then = f"sottovoce sign {folder / 'authority'} {' '.join(f'{name}.csr' for name in parties)}"
    console.print(f"next: give each folder to its holder, {first}")
    console.print(f"then: {then}", soft_wrap=True)
    if kept:
        console.print(f"add to federation.parties of the coordinator's job: {', '.join(parties)}", soft_wrap=True)


def doctor(
    job: Annotated[Path, cli_option("A party file, a dealer file or a coordinator's job.", envvar=JOB)],
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


def certificates(
    folder: Annotated[Path, argument("FOLDER", "Where the files go.")],
    names: Annotated[list[str] | None, argument("[NAME...]", "The parties.")] = None,
    host: Annotated[
        list[str] | None,
        cli_option("A host name or address of the coordinator; repeat it for more. Default: localhost, 127.0.0.1."),
    ] = None,
    days: Days = 365,
    revoke: Revoke = False,
    as_json: AsJson = False,
) -> None:
    """Make certificates: an authority, if the folder has none, the coordinator's, and one for each party.

    Without a name: list those that are there, how long they are valid, and their pins.

    Give each party `authority.pem` and its own two files. `authority.key` stays with you. A certificate that is
    replaced is valid until its own end, unless `--revoke` puts it into `revoked.pem`: give that file to everybody too.

    - `sottovoce certificates certs`
    - `sottovoce certificates certs north south`
    - `sottovoce certificates certs north --revoke`
    - `sottovoce certificates certs north south --host trials.example.org`
    """
    from sottovoce.transports import authority, certificates

    if not names:
        _list_certificates(folder, as_json)
        return
    for name in names:
        certificates.check_name(name)
    hosts = host or ["localhost", "127.0.0.1"]
    if not (folder / f"{certificates.AUTHORITY}.pem").exists():
        authority.create_authority(folder)
    wanted = [name for name in dict.fromkeys(names) if name != certificates.COORDINATOR]
    if host or certificates.COORDINATOR in names or not (folder / f"{certificates.COORDINATOR}.pem").exists():
        wanted.insert(0, certificates.COORDINATOR)
    before = []
    for name in wanted:
        if revoke and (folder / f"{name}.pem").exists():
            authority.revoke_certificate(folder, name)
        if (words := authority.issue(folder, name, hosts=hosts, days=days)) is not None:
            before.append(words)
    if as_json:
        print_json({"folder": str(folder), "issued": wanted, "hosts": hosts, "days": days, "replaced": before})
        return
    console = out()
    for words in before:
        console.print(f"replaced{' and revoked' if revoke else ''}: {words}", soft_wrap=True)
    console.print(f"issued for {days} days in {folder}: {', '.join(wanted)}", soft_wrap=True)
    console.print(f"the coordinator may serve at {', '.join(hosts)}")
    console.print(
        "each party needs authority.pem and its own .pem and .key; authority.key and the other keys stay here"
    )


def _list_certificates(folder: Path, as_json: bool) -> None:
    """What a folder has, the one that ends first on top."""
    from sottovoce.transports.authority import list_certificates
    from sottovoce.transports.certificates import AUTHORITY, COORDINATOR, SOON, days_text, peer_line

    found = sorted(list_certificates(folder), key=lambda known: known.end)
    if as_json:
        dated = ((known, {"start": known.start.isoformat(), "end": known.end.isoformat()}) for known in found)
        print_json({"folder": str(folder), "certificates": [known._asdict() | times for known, times in dated]})
        return
    console, listing = out(), table("name", "serial", "valid until", "left", "state")
    for known in found:
        state = "revoked" if known.revoked else "ended" if known.days < 0 else "ends soon" if known.days < SOON else ""
        left = "none" if known.days < 0 else days_text(known.days)
        listing.add_row(known.name, known.serial[:12], f"{known.end:%Y-%m-%d}", left, state)
    console.print(listing)
    console.print("pins of the parties, for [peers]:")
    for known in found:
        if known.name not in (AUTHORITY, COORDINATOR):
            console.print(peer_line(known.name, known.pin), soft_wrap=True)


def request(
    name: Annotated[str, argument("NAME", "Who you are, as told.")],
    folder: Annotated[Path, typer.Option(help="Where the key is made and stays.")] = Path("certificates"),
    as_json: AsJson = False,
) -> None:
    """Make a key here, and a request for its certificate, which the authority's keeper signs.

    A key that is there is used again: the next certificate then has the same pin. For a new key name a new folder,
    and change `certificates` in your file when its certificate is there.

    - `sottovoce request north`
    - `sottovoce request north --folder certificates-2`
    """
    from sottovoce.transports.authority import make_request
    from sottovoce.transports.certificates import peer_line

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
    folder: Annotated[Path, argument("FOLDER", "Where the authority is.")],
    requests: Annotated[list[Path], argument("NAME.csr...", "Requests, each called as its sender.")],
    host: Annotated[
        list[str] | None, cli_option("Of coordinator.csr: a host name or address of it; repeat it for more.")
    ] = None,
    days: Days = 365,
    revoke: Revoke = False,
    as_json: AsJson = False,
) -> None:
    """Sign requests: a certificate for each sender, whose key stays where it was made.

    A request must name whom its file is called after, and be signed with its own key. Ask the sender, by another way,
    for the pin that `sottovoce request` printed there, and compare it with the one that is printed here.

    - `sottovoce sign sites/authority north.csr south.csr`
    """
    from sottovoce.transports import authority, certificates

    hosts = host or ["localhost", "127.0.0.1"]
    signed = [authority.sign_request(folder, path, hosts=hosts, days=days, end_other=revoke) for path in requests]
    if as_json:
        lines = [each._asdict() | {"path": str(each.path)} for each in signed]
        print_json({"folder": str(folder), "days": days, "signed": lines})
        return
    console = out()
    for each in signed:
        if each.replaced:
            console.print(f"replaced{' and revoked' if revoke else ''}: {each.replaced}", soft_wrap=True)
        if each.other_key:
            console.print(f"it had another key: the others' pins of {each.name} no longer fit", soft_wrap=True)
        console.print(certificates.peer_line(each.name, each.pin), soft_wrap=True)
        console.print(f"compare this pin with {each.name}, then send {each.path} there", soft_wrap=True)


def revoke(
    folder: Annotated[Path, argument("FOLDER", "Where the authority is.")],
    names: Annotated[list[str], argument("NAME...", "Whose certificates.")],
) -> None:
    """Take certificates back: their names' are put on the list `revoked.pem`, which both ends read when they start.

    Give `revoked.pem` to the coordinator and to every party, into the folder with their certificates.

    - `sottovoce revoke certs north`
    """
    from sottovoce.transports import authority, certificates

    for name in names:
        out().print(f"revoked: {authority.revoke_certificate(folder, name)}", soft_wrap=True)
    out().print(f"give {folder / certificates.REVOKED}.pem to everybody, and start them again", soft_wrap=True)


def pin(certificates: Annotated[list[Path], argument("CERTIFICATE...", "Files such as north.pem.")]) -> None:
    """Print the pins of certificates: the SHA-256 of their public keys, as lines of the table [peers] of a party file.

    A party that has pinned another takes no signature by another key in that name, whoever issued the certificate. Get
    a pin from its holder, by another way than from the coordinator.

    - `sottovoce pin certs/north.pem`
    """
    from sottovoce.transports.certificates import peer_line, pin_in

    for path in certificates:
        out().print(peer_line(*pin_in(path)), soft_wrap=True, markup=False, highlight=False)


@nvflare.command()
def job(
    file: JobPath,
    folder: Annotated[Path, cli_option("The folder to make.", "--out")],
    restart: Annotated[bool, cli_option("Give an interrupted run up; it stays charged.", "--restart")] = False,
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


@nvflare.command()
def site(kit: Annotated[Path, argument("KIT", "The folder of a FLARE server or client.")]) -> None:
    """Restrict a provisioned FLARE site to this program: in its folder `local`, before it starts.

    Writes `resources.json` (the one class that a job may name, no streaming of logs) and `authorization.json` (no code
    of a job, no shell commands, in no role). A client then needs its file `local/NAME.toml`: see the guide on FLARE.

    - `sottovoce nvflare site /srv/flare/north`
    """
    from sottovoce.app.flare_files import restrict_site

    for path in restrict_site(kit).values():
        out().print(f"wrote {path}", soft_wrap=True)
