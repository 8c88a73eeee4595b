"""`sottovoce certificates`, `request`, `sign`, `revoke` and `pin`: who each end of a federation is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.app.cli.console import AsJson, out, print_json, table

Days = Annotated[int, typer.Option(help="How long certificates are valid.")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Put those that are replaced on the list of revoked ones.")]


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.", show_default=False)],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="The parties.", show_default=False)
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name or address of the coordinator; repeat it for more. Default: localhost, 127.0.0.1."
        ),
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
    from sottovoce.transports import certificates
    from sottovoce.transports.certificates import AUTHORITY, COORDINATOR, check_name, create_authority, issue

    if not names:
        _list(folder, as_json)
        return
    for name in names:
        check_name(name)
    hosts = host or ["localhost", "127.0.0.1"]
    if not (folder / f"{AUTHORITY}.pem").exists():
        create_authority(folder)
    wanted = [name for name in dict.fromkeys(names) if name != COORDINATOR]
    if host or COORDINATOR in names or not (folder / f"{COORDINATOR}.pem").exists():
        wanted.insert(0, COORDINATOR)
    replaced = []
    for name in wanted:
        if revoke and (folder / f"{name}.pem").exists():
            certificates.revoke(folder, name)
        replaced.append(issue(folder, name, hosts=hosts, days=days))
    before = [words for words in replaced if words is not None]
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


def _list(folder: Path, as_json: bool) -> None:
    """What a folder has, the one that ends first on top."""
    from sottovoce.transports.certificates import AUTHORITY, COORDINATOR, SOON, days_text, listed, peer_line

    found = sorted(listed(folder), key=lambda known: known.end)
    if as_json:
        times = [{"start": known.start.isoformat(), "end": known.end.isoformat()} for known in found]
        lines = [known._asdict() | time for known, time in zip(found, times, strict=True)]
        print_json({"folder": str(folder), "certificates": lines})
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
    revoke: Revoke = False,
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


def revoke(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the authority is.", show_default=False)],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Whose certificates.", show_default=False)],
) -> None:
    """Take certificates back: their names' are put on the list `revoked.pem`, which both ends read when they start.

    Give `revoked.pem` to the coordinator and to every party, into the folder with their certificates.

    - `sottovoce revoke certs north`
    """
    from sottovoce.transports import certificates

    for name in names:
        out().print(f"revoked: {certificates.revoke(folder, name)}", soft_wrap=True)
    out().print(f"give {folder / certificates.REVOKED}.pem to everybody, and start them again", soft_wrap=True)


def pin(
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERTIFICATE...", help="Files such as north.pem.", show_default=False)
    ],
) -> None:
    """Print the pins of certificates: the SHA-256 of their public keys, as lines of the table [peers] of a party file.

    A party that has pinned another takes no signature by another key in that name, whoever issued the certificate. Get
    a pin from its holder, by another way than from the coordinator.

    - `sottovoce pin certs/north.pem`
    """
    from sottovoce.transports.certificates import peer_line, pin_in

    for path in certificates:
        out().print(peer_line(*pin_in(path)), soft_wrap=True, markup=False, highlight=False)
