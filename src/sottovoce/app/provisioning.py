"""A folder for each organisation of a federation: certificate, job file, policy, and a page that says what to do.

    sites/authority/     the authority: its key stays here, with whoever keeps it
    sites/coordinator/   job.toml, certificates/, GUIDE.md
    sites/north/         party.toml, certificates/, GUIDE.md; one such folder for each party
    sites/notary/        helper.toml, certificates/, GUIDE.md; where there is a helper

By columns sites also have people.toml, for people to predict for.

A site that was made before is left as it is: its holder has changed it since. What was stopped is completed by the same
call, whenever that was. Whatever the umask, folders and what is in them are their owner's alone, but for certificates.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import is_there, write_data, write_text
from sottovoce.transports.certificates import (
    AUTHORITY,
    COORDINATOR,
    check_hosts,
    check_name,
    create_authority,
    issue,
    listed,
    peer_line,
    toml_key,
)

CERTIFICATES: Final = "certificates"
GUIDE: Final = "GUIDE.md"


@dataclass(frozen=True)
class Federation:
    """What is known of a federation before anybody has set anything up."""

    parties: tuple[str, ...]
    split: Literal["rows", "columns"] = "rows"
    hosts: tuple[str, ...] = ("localhost",)
    port: int = 7443
    helper: str | None = None
    label_party: str | None = None
    days: int = 365
    requests: bool = False  # keys are made at the parties, and only signed here

    def __post_init__(self) -> None:
        ends = [*self.parties, *([self.helper] if self.helper else [])]
        for name in ends:
            check_name(name)
        taken = next((name for name in ends if name == COORDINATOR or ends.count(name) > 1), None)
        if taken is not None:
            raise InputError(f"name={taken!r} is there twice, or the coordinator's; give each end a name of its own.")
        check_hosts(self.hosts)
        if not 1 <= self.port <= 65535:
            raise InputError(f"port={self.port} must be from 1 to 65535.")
        if self.split == "rows" and self.label_party is not None:
            raise InputError(f"label_party={self.label_party!r} is for data split by columns; by rows all have labels.")
        if self.label_party is not None and self.label_party not in self.parties:
            meant = did_you_mean(self.label_party, self.parties)
            raise InputError(f"label_party={self.label_party!r} is no party{meant}")

    @property
    def ends(self) -> tuple[str, ...]:
        """All that connect: the parties and the helper."""
        return (*self.parties, *([self.helper] if self.helper else []))

    @property
    def address(self) -> str:
        """Where the parties reach the coordinator."""
        host = f"[{self.hosts[0]}]" if ":" in self.hosts[0] else self.hosts[0]
        return f"{host}:{self.port}"

    def labelled(self, party: str) -> bool:
        """Whether a party has the labels."""
        return self.split == "rows" or party == (self.label_party or self.parties[0])


def provision(folder: Path, federation: Federation) -> tuple[list[str], list[str]]:
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
    known = {found.name for found in listed(authority)}  # also those whose folders were given away
    places = {name: folder / f".{name}.new" for name in (COORDINATOR, *federation.ends)}  # until they are whole
    made = [name for name in places if not (folder / name).exists() and (name not in known or places[name].exists())]
    _make({name: places[name] for name in made}, federation, authority)
    for name in made:
        places[name].rename(folder / name)
    return made, [name for name in places if name not in made]


def _make(places: dict[str, Path], federation: Federation, authority: Path) -> None:
    """The folders of these sites: certificates first, then texts, which have the pins of all."""
    for name, place in places.items():
        certificates = place / CERTIFICATES
        if not _keeps_key(place, name, authority):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(mode=0o700)
            certificates.mkdir(mode=0o700)
            if name == COORDINATOR or not federation.requests:
                _issue(authority, certificates, name, federation)
        _copy(authority / f"{AUTHORITY}.pem", certificates)
        if (authority / "revoked.pem").exists():
            _copy(authority / "revoked.pem", certificates)
    for name, place in places.items():
        for path in (*place.glob("*.*"), *place.glob(f"{CERTIFICATES}/*.new")):  # of a call that was stopped
            path.unlink()
        for file, text in _texts(name, federation, _pins(federation, authority)).items():
            write_text(place / file, text, "folder", overwrite=False, mode=0o600)


def _keeps_key(place: Path, name: str, authority: Path) -> bool:
    """Whether a call that was stopped issued the key of a site, which others may pin; nobody pins a coordinator's."""
    issued, own = authority / f"{name}.pem", place / CERTIFICATES
    whole = (own / f"{name}.key").exists() and (own / f"{name}.pem").exists() and issued.exists()
    if name == COORDINATOR or not whole or issued.read_bytes() != (own / f"{name}.pem").read_bytes():
        return False
    return not any(found.revoked for found in listed(authority) if found.name == name)


def _pins(federation: Federation, authority: Path) -> dict[str, str]:
    return {found.name: found.pin for found in listed(authority) if found.name in federation.ends}


def _issue(authority: Path, certificates: Path, name: str, federation: Federation) -> None:
    """The authority keeps the certificate; the key goes to the site and is nowhere else."""
    issue(authority, name, hosts=federation.hosts, days=federation.days)
    _copy(authority / f"{name}.pem", certificates)
    shutil.move(authority / f"{name}.key", certificates / f"{name}.key")
    (certificates / f"{name}.key").chmod(0o600)


def _copy(certificate: Path, folder: Path) -> None:
    write_data(folder / certificate.name, certificate.read_bytes(), "folder", mode=0o644)


def _texts(name: str, federation: Federation, pins: dict[str, str]) -> dict[str, str]:
    """The files of one site."""
    if name == COORDINATOR:
        people = {"people.toml": _PEOPLE_JOB.format(**_ends(federation))} if federation.split == "columns" else {}
        return {"job.toml": _job(federation), **people, GUIDE: _coordinator_guide(federation)}
    if name == federation.helper:
        table = _HELPER.format(name=name, address=federation.address)
        return {"helper.toml": table, GUIDE: _guide(name, federation, "helper")}
    table = _party(name, federation, pins)
    people = {"people.toml": _people(name, federation, pins)} if federation.split == "columns" else {}
    return {"party.toml": table, **people, GUIDE: _guide(name, federation, "party")}


def _peers(name: str, federation: Federation, pins: dict[str, str]) -> str:
    others = [other for other in federation.ends if other != name]
    lines = (("" if other in pins else "# ") + peer_line(other, pins.get(other, "sha256:...")) for other in others)
    return "\n".join(lines)


def _align(name: str, federation: Federation) -> str:
    return ", ".join(f'"{other}"' for other in federation.parties if other != name)


def _ends(federation: Federation) -> dict[str, str | int]:
    return {"port": federation.port, "names": ", ".join(f'"{name}"' for name in federation.parties)}


def _people(name: str, federation: Federation, pins: dict[str, str]) -> str:
    recipient = federation.label_party or federation.parties[0]
    results = (
        '\npredictions = "predictions.csv"  # what this party learns, with the identifiers' if name == recipient else ""
    )
    about = {"name": name, "address": federation.address, "align": _align(name, federation), "results": results}
    return _PEOPLE.format(**about, recipient=recipient, peers=_peers(name, federation, pins))


def _party(name: str, federation: Federation, pins: dict[str, str]) -> str:
    columns = federation.split == "columns"
    label = 'label = "outcome"            # the column of the labels'
    given = {
        "name": name,
        "label": label if federation.labelled(name) else "# no label: another party has the labels",
        "id": 'id = "id"                    # who they are: found in common by `sottovoce align`, and no feature',
        "address": federation.address,
        "sealed": _SEALED_COLUMNS if columns else _SEALED_ROWS,
        "dealer": f'dealer = "{federation.helper or COORDINATOR}"',
        "align": (_ALIGN_COLUMNS if columns else _ALIGN_ROWS).format(names=_align(name, federation)),
        "peers": _peers(name, federation, pins),
    }
    return _PARTY.format(**given)


def _job(federation: Federation) -> str:
    names = ", ".join(f'"{name}"' for name in federation.parties)
    each = ", ".join(f"{toml_key(name)} = 1000" for name in federation.parties)
    columns = federation.split == "columns"
    features = "{ " + ", ".join(f"{toml_key(name)} = 5" for name in federation.parties) + " }" if columns else "5"
    helper = f'helper = "{federation.helper}"\n' if federation.helper else ""
    if columns:
        sealing = f'products = "secure"          # only sums over the whole table are opened\n{helper}'
        table = _COLUMNS.format(label_party=federation.label_party or federation.parties[0])
    else:
        sums = f'sums = "{"secure" if federation.helper else "plain"}"'
        sealing = f'{sums:29}# "secure": only sums over all parties are opened\n{helper}'
        table = ""
    given = {"port": federation.port, "names": names, "each": each, "features": features}
    return _JOB.format(**given, sealing=sealing, columns=table)


def _guide(name: str, federation: Federation, kind: str) -> str:
    key = _KEY_THERE if federation.requests else _KEY_HERE
    steps = _PARTY_STEPS if kind == "party" else _HELPER_STEPS
    about = {"name": name, "address": federation.address, "kind": kind, "others": _and(federation.ends, name)}
    return _GUIDE.format(**about, key=key.format(name=name), steps=steps.format(**about))


def _coordinator_guide(federation: Federation) -> str:
    ends = _and(federation.ends, "")
    return _COORDINATOR_GUIDE.format(ends=ends, port=federation.port, hosts=", ".join(federation.hosts))


def _and(names: Sequence[str], without: str) -> str:
    *most, last = [name for name in names if name != without] or ["nobody"]
    return f"{', '.join(most)} and {last}" if most else last


_PARTY: Final = """\
# The party {name}: its own records, its own ledger, its own limits. Paths are relative to this file.
# All keys: `sottovoce party --help`. Change what is here; then `sottovoce doctor --job party.toml`.
[party]
name = "{name}"
file = "records.csv"         # CSV, Parquet or LIBSVM; it stays here
{label}
{id}
ledger = "budget.ledger"     # `sottovoce ledger create` makes it

[federation]
coordinator = "{address}"
certificates = "certificates"

# What this party demands of every plan. Whatever the coordinator asks, nothing beyond it is answered.
[policy]
max_epsilon = 1.0            # the most that one plan may cost
max_delta = 1e-5             # well below 1 / records
tell_budget = false          # true: the coordinator may know what is left
{sealed}
{dealer:29}# who deals in sealed sums, and is run by no party; nobody else may
{align}

# The keys of the others. Whoever keeps the authority could make a second one in their name; a key that is pinned here
# is the only one that is taken. Compare each line with its holder, who prints it with `sottovoce pin`: by telephone.
[peers]
{peers}
"""
_SEALED_ROWS: Final = "sealed = false               # true: take part in sealed sums, whose promise rests on more"
_SEALED_COLUMNS: Final = "sealed = true                # only sums over the whole table are opened: docs/sealing.md"
_ALIGN_COLUMNS: Final = "align = [{names}]  # with whom the common people may be found"
_ALIGN_ROWS: Final = "# count_shared = [{names}]  # with whom the people that both have may be counted"
_PEOPLE: Final = """\
# People to predict for, whose columns stay here too: `sottovoce party --job people.toml`. They are not trained on.
[party]
name = "{name}"
file = "people.csv"
id = "id"                    # who they are: found in common by `sottovoce align`
ledger = "budget.ledger"     # that of the training: beside it is this party's part of the model{results}

[federation]
coordinator = "{address}"
certificates = "certificates"

[policy]
predict_for = ["{recipient}"]  # who may learn the results; no epsilon covers them
align = [{align}]  # with whom the common people may be found

[peers]
{peers}
"""
_PEOPLE_JOB: Final = """\
# People to predict for, whose columns stay with the parties: `sottovoce predict job.json people.toml --recipient NAME`.
[federation]
listen = "0.0.0.0:{port}"
certificates = "certificates"
parties = [{names}]
wait = 600                   # seconds for the parties to connect
"""
_HELPER: Final = """\
# The helper {name} of sealed sums: it deals random numbers, and has no records and no ledger.
[helper]
name = "{name}"

[federation]
coordinator = "{address}"
certificates = "certificates"
"""
_JOB: Final = """\
# What the coordinator trains, under which promise. Everything in it is public. Paths are relative to this file.
# `sottovoce plan job.toml` shows what it promises and costs, and asks nobody.
[about]
dataset = "the people of all parties"
purpose = "say what the model is for"
analyst = "say who runs it"

[model]
estimator = "logistic"       # or ridge, lasso, elastic-net, svm

[privacy]
epsilon = 1.0                # no party answers above its own max_epsilon
delta = 1e-6                 # well below 1 / records

# What is known of the quantities before anybody looks at a record; a table [schema] says more.
[bounds]
classes = [0, 1]             # the labels, the negative first; of a number: label_bound = [low, high]
entry_bound = 1.0            # or feature_ranges = {{ age = [18, 99], ... }}
{columns}
[federation]
listen = "0.0.0.0:{port}"
certificates = "certificates"
parties = [{names}]
# records = {{ {each} }}
# features = {features}
{sealing}wait = 600                   # seconds for the parties to connect
"""
_COLUMNS: Final = """
# The parties have different columns of the same people.
[columns]
labels = "held"              # one party has them
label_party = "{label_party}"
"""
_KEY_HERE: Final = """\
`certificates/` has your key `{name}.key`, your certificate `{name}.pem` and the authority's certificate. Whoever made
this folder made the key too. If you want one that nobody else ever had, remove `{name}.key` and `{name}.pem`, then run

    sottovoce request {name}

and send `certificates/{name}.csr` back to be signed."""
_KEY_THERE: Final = """\
Your key is made here and leaves for nowhere:

    sottovoce request {name}

Send `certificates/{name}.csr` to whoever made this folder, who sends `{name}.pem` back; put it into `certificates/`.
Tell the others the line that the command prints, by another way: it is the pin of your key."""
_GUIDE: Final = """\
# {name}: set up this site

You are a {kind} of a federation with {others}. The coordinator is at {address}. This site connects to it; no port
of this site need be open.

## 1. Your key

{key}

{steps}
## Never send

- `{name}.key`, to anybody;
- records, or anything computed from them outside `sottovoce`;
- the ledger: keep one, on one machine, with a copy for the day it is lost.

## Later

- The certificate ends on a day that `sottovoce doctor` tells. Run `sottovoce request {name}` before that: the key and
  its pin stay, and the old certificate is valid until its end.
- If the key may have been seen by others, say so at once. The authority revokes the certificate, everybody gets
  `revoked.pem` for the folder `certificates`, and you make a new key in a new folder.
"""
_PARTY_STEPS: Final = """\
## 2. Your records, your limits

Open `party.toml`. Name the file of your records and its columns, and say in `[policy]` what you allow. Compare the
pins in `[peers]` with their holders.

## 3. Your budget

All that may ever be spent on these people, over all runs:

    sottovoce ledger create budget.ledger --dataset {name} --epsilon 3 --delta 1e-6

## 4. Look, then serve

    sottovoce doctor --job party.toml
    sottovoce party --job party.toml

`doctor` charges nothing and sends nothing of the records. `party` answers until it is stopped. As a service of systemd
or in a container: docs/sites.md.
"""
_HELPER_STEPS: Final = """\
## 2. Look, then serve

    sottovoce doctor --job helper.toml
    sottovoce helper --job helper.toml

You deal random numbers to the parties and see no records. Stay apart from all of them: a helper that pools with a party
reads all columns. Tell each party the pin of your key, which `sottovoce pin certificates/{name}.pem` prints.
"""
_COORDINATOR_GUIDE: Final = """\
# The coordinator: set up this site

You run the trainings of {ends}. They connect to port {port} of {hosts}; let it through the firewall. You see what they
release, with its noise, and no record.

## 1. The job

Open `job.toml`: what is trained, under which promise, with which bounds. Ask each party for its number of records and
of features, which are public.

## 2. Look, then train

    sottovoce doctor --job job.toml
    sottovoce plan job.toml
    sottovoce fit job.toml

`fit` waits for the parties, trains, and writes the model with its privacy report. While it waits, `sottovoce doctor`
at a party finds out whether that party can reach you.

## Never

- Do not keep `authority.key` here: whoever has it can make a party. By columns that is enough to read everything.
- Do not run the coordinator at a party, where sums are sealed.
"""
