"""A folder for each organisation of a federation: certificate, job file, policy, and a page that says what to do.

    sites/authority/     the authority: its key stays here, with whoever keeps it
    sites/coordinator/   job.toml, certificates/, GUIDE.md
    sites/north/         party.toml, certificates/, GUIDE.md; one such folder for each party
    sites/notary/        dealer.toml, certificates/, GUIDE.md; where there is a dealer

By columns sites also have people.toml, for people to predict for.

A site that was made before is left as it is: its holder has changed it since. What was stopped is completed by the same
call, whenever that was. Whatever the umask, folders and what is in them are their owner's alone, but for certificates.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sottovoce.app.job_file import UNSAID
from sottovoce.app.texts import render
from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import is_there, write_data, write_text
from sottovoce.transports.authority import alternative_names, create_authority, issue, list_certificates
from sottovoce.transports.certificates import AUTHORITY, COORDINATOR, check_name

CERTIFICATES: Final = "certificates"
GUIDE: Final = "GUIDE.md"


@dataclass(frozen=True)
class Sites:
    """What is known of a federation before anybody has set anything up."""

    parties: tuple[str, ...]
    split: Literal["rows", "columns"] = "rows"
    hosts: tuple[str, ...] = ("localhost",)
    port: int = 7443
    dealer: str | None = None
    label_party: str | None = None
    days: int = 365
    requests: bool = False  # keys are made at the parties, and only signed here

    def __post_init__(self) -> None:
        ends = [*self.parties, *([self.dealer] if self.dealer else [])]
        for name in ends:
            check_name(name)
        for name in ends:
            if name == COORDINATOR or ends.count(name) > 1:
                raise InputError(
                    f"name={name!r} is there twice, or the coordinator's; give each end a name of its own."
                )
        alternative_names(self.hosts)
        if not 1 <= self.port <= 65535:
            raise InputError(f"port={self.port} must be from 1 to 65535.")
        if not self.columns and self.label_party is not None:
            raise InputError(f"label_party={self.label_party!r} is for data split by columns; by rows all have labels.")
        if self.label_party is not None and self.label_party not in self.parties:
            meant = did_you_mean(self.label_party, self.parties)
            raise InputError(f"label_party={self.label_party!r} is no party{meant}")

    @property
    def columns(self) -> bool:
        """Whether each party has some columns of the same people."""
        return self.split == "columns"

    @property
    def ends(self) -> tuple[str, ...]:
        """All that connect: the parties and the dealer."""
        return (*self.parties, *([self.dealer] if self.dealer else []))

    @property
    def address(self) -> str:
        host = f"[{self.hosts[0]}]" if ":" in self.hosts[0] else self.hosts[0]
        return f"{host}:{self.port}"

    @property
    def label_holder(self) -> str:
        """By columns: who has the labels, and learns predictions."""
        return self.label_party or self.parties[0]

    def labelled(self, party: str) -> bool:
        return not self.columns or party == self.label_holder


def make_sites(folder: Path, sites: Sites) -> tuple[list[str], list[str]]:
    """Make the sites of a federation; the names of those made, and of those that were there and stay as they are."""
    authority = folder / AUTHORITY
    try:
        authority.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority.chmod(0o700)
    except OSError as error:
        raise InputError(f"folder={str(folder)!r} cannot be made ({error.strerror}); choose another.") from None
    if not is_there(authority / f"{AUTHORITY}.pem"):
        create_authority(authority)
    for left in authority.glob("*.new"):  # of a call that was stopped
        left.unlink(missing_ok=True)
    known = {found.name for found in list_certificates(authority)}  # also those whose folders were given away
    places = {name: folder / f".{name}.new" for name in (COORDINATOR, *sites.ends)}  # until they are whole
    made = [name for name in places if not (folder / name).exists() and (name not in known or places[name].exists())]
    _make({name: places[name] for name in made}, sites, authority)
    for name in made:
        places[name].rename(folder / name)
    return made, [name for name in places if name not in made]


def _make(places: dict[str, Path], sites: Sites, authority: Path) -> None:
    """The folders of these sites: certificates first, then texts, which have the pins of all."""
    for name, place in places.items():
        certificates = place / CERTIFICATES
        if not _keeps_key(place, name, authority):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(mode=0o700)
            certificates.mkdir(mode=0o700)
            if name == COORDINATOR or not sites.requests:  # the key goes to the site and is nowhere else
                issue(authority, name, hosts=sites.hosts, days=sites.days)
                _copy(authority / f"{name}.pem", certificates)
                shutil.move(authority / f"{name}.key", certificates / f"{name}.key")
                (certificates / f"{name}.key").chmod(0o600)
        _copy(authority / f"{AUTHORITY}.pem", certificates)
        if (authority / "revoked.pem").exists():
            _copy(authority / "revoked.pem", certificates)
    pins = {known.name: known.pin for known in list_certificates(authority) if known.name in sites.ends}
    for name, place in places.items():
        for path in (*place.glob("*.*"), *place.glob(f"{CERTIFICATES}/*.new")):  # of a call that was stopped
            path.unlink()
        for file, text in _texts(name, sites, pins).items():
            write_text(place / file, text, "folder", overwrite=False, mode=0o600)


def _keeps_key(place: Path, name: str, authority: Path) -> bool:
    """Whether a call that was stopped issued the key of a site, which others may pin; nobody pins a coordinator's."""
    issued, own = authority / f"{name}.pem", place / CERTIFICATES
    whole = (own / f"{name}.key").exists() and (own / f"{name}.pem").exists() and issued.exists()
    if name == COORDINATOR or not whole or issued.read_bytes() != (own / f"{name}.pem").read_bytes():
        return False
    return not any(found.revoked for found in list_certificates(authority) if found.name == name)


def _copy(certificate: Path, folder: Path) -> None:
    write_data(folder / certificate.name, certificate.read_bytes(), "folder", mode=0o644)


def _texts(name: str, sites: Sites, pins: Mapping[str, str]) -> dict[str, str]:
    """The files of one site, by name; all but the guides are TOML with comments."""
    columns, others = sites.columns, [other for other in sites.ends if other != name] or ["nobody"]
    kind = "coordinator" if name == COORDINATOR else "dealer" if name == sites.dealer else "party"
    templates = {
        "coordinator": {"job.toml": "job.toml", "people.toml": "people-job.toml", GUIDE: "coordinator-guide.md"},
        "dealer": {"dealer.toml": "dealer.toml", GUIDE: "guide.md"},
        "party": {"party.toml": "party.toml", "people.toml": "people.toml", GUIDE: "guide.md"},
    }[kind]
    values = {
        "name": name,
        "kind": kind,
        "federation": sites,
        "columns": columns,
        "pins": pins,
        "partners": [other for other in sites.parties if other != name],
        "unsaid": UNSAID,
        "others": " and ".join(filter(None, (", ".join(others[:-1]), others[-1]))),
    }
    made = {file: template for file, template in templates.items() if columns or file != "people.toml"}
    return {file: render(f"provisioning/{template}", **values) for file, template in made.items()}
