"""What is wrong with a site before its first run: one finding for each check, which says what to do.

A site is what a party file, a helper file or a coordinator's job describes. Nothing is charged, nothing is written but
an empty file that goes again, and nothing leaves but a name and a certificate, which the coordinator sees anyhow. A
finding holds no value of the data: names of columns, the number of records, and whether a check holds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from sottovoce.app import outputs, runs, sources
from sottovoce.app.estimates import PreparedRows
from sottovoce.app.interrupted import state_path
from sottovoce.app.job_file import tables_of
from sottovoce.app.jobs import (
    EvaluationJob,
    FederationTable,
    HelperJob,
    Job,
    PartyJob,
    PeopleJob,
    PolicyTable,
    SourceTable,
    load_evaluation_job,
    load_helper_job,
    load_job,
    load_party_job,
    load_people_job,
)
from sottovoce.app.superuser import AS_ROOT, is_root
from sottovoce.data import room
from sottovoce.data.files import format_of, list_files
from sottovoce.data.identifiers import identifiers
from sottovoce.data.parts_in_file import BESIDE
from sottovoce.data.schema import Schema, columns_of
from sottovoce.errors import InputError, SottovoceError, WireError
from sottovoce.federation.journal import Journal
from sottovoce.federation.policy import Policy
from sottovoce.files import check_writable
from sottovoce.plan.sealed_words import ASSUMPTIONS
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.certificates import (
    CLOCK_SLACK,
    COORDINATOR,
    REVOKED,
    SOON,
    Credentials,
    check_name,
    days_text,
    listed,
    renewal,
)
from sottovoce.transports.certified import Certified
from sottovoce.transports.grpc_wire import greet
from sottovoce.transports.proxies import Proxy, proxy_for

State = Literal["ok", "warning", "fails"]
Findings = Iterator["Finding"]

_SECONDS: Final = 5.0  # to reach a coordinator
_MEGABYTE: Final = 2**20
_LEAST_FREE: Final = 100 * _MEGABYTE
_ENTRY: Final = 4  # bytes of an entry of a prepared row
_ANSWERS: Final = 1_000  # that a ledger keeps of one run at most, each a number for every feature; generously
_UNKNOWN_HOSTS: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not listened on


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do."""

    check: str
    state: State
    text: str


@dataclass
class _Visit:
    """What checks learn for those after them."""

    findings: list[Finding] = field(default_factory=list)
    credentials: Credentials | None = None
    time_there: datetime | None = None
    schema: Schema | None = None
    shape: tuple[int, int] | None = None  # records, features
    prepared: tuple[PreparedRows, ...] = ()  # rows of a job's plan

    def do(self, check: str, findings: Findings) -> None:
        """Make a check; an error that the package raises on purpose is its last finding."""
        try:
            for finding in findings:
                self.findings.append(finding)
        except SottovoceError as error:
            self.findings.append(Finding(check, "fails", str(error)))
        except OSError as error:
            self.findings.append(Finding(check, "fails", f"{error.filename}: {error.strerror}; see to it."))


def examine(path: Path) -> list[Finding]:
    """All findings about the site of a job file, in order; a file that cannot be read is the only one."""
    visit = _Visit()
    try:
        site = _site(path)
    except SottovoceError as error:
        return [Finding("settings", "fails", str(error))]
    if is_root():
        visit.findings.append(Finding("user", "warning", AS_ROOT))
    if site.set_elsewhere:
        visit.findings.append(Finding("settings", "ok", site.set_elsewhere))
    with _quiet():
        if isinstance(site, PartyJob):
            _examine_party(site, visit)
        elif isinstance(site, HelperJob):
            visit.findings.append(Finding("settings", "ok", f"{path}: the helper {site.helper.name!r}"))
            _examine_end(site, site.helper.name, visit)
        elif isinstance(site, Job):
            _examine_job(site, visit)
        else:
            visit.findings.append(Finding("settings", "ok", f"{path}: a prediction or an evaluation"))
            _examine_coordinator(site, visit)
    return visit.findings


def _site(path: Path) -> PartyJob | HelperJob | Job | PeopleJob | EvaluationJob:
    """The site of a file, by the table that only its kind has."""
    tables = tables_of(path)
    if "helper" in tables:
        return load_helper_job(path)
    if isinstance(tables.get("party"), dict):
        return load_party_job(path)
    if "model" in tables or not tables.keys() & {"federation", "party"}:
        return load_job(path)
    return load_evaluation_job(path) if "privacy" in tables else load_people_job(path)


def _examine_party(job: PartyJob, visit: _Visit) -> None:
    source = job.party
    visit.findings.append(Finding("settings", "ok", f"{job.path}: the party {source.name!r}"))
    _examine_end(job, source.name, visit)
    if job.schema_table is not None:
        visit.do("schema", _schema(job, visit))
    if job.schema_table is None or visit.schema is not None:
        visit.do("data", _party_data(job, visit))
    wanted = job.policy.max_epsilon if sources.policy_trains(job) else 0.0
    visit.do("ledger", _ledger("ledger", source, job.resolve, wanted))
    visit.do("disk", _disk(_ledger_folder(job, source), visit.shape))
    visit.do("disk", _disk_of_party(job, visit))
    visit.do("policy", _policy(job, visit))


def _examine_end(job: PartyJob | HelperJob, name: str, visit: _Visit) -> None:
    """What a party and a helper have in common: a certificate, a coordinator to reach, and a clock."""
    folder, address = job.resolve(job.federation.certificates), job.federation.coordinator
    visit.do("certificate", _certificate(folder, name, visit))
    visit.do("network", _network(address, visit))
    dated = [job.path, *_files(folder)]
    ledgers = []
    if isinstance(job, PartyJob) and job.party.ledger is not None:
        ledgers.append(job.resolve(job.party.ledger))
    visit.do("clock", _clock(folder, [*dated, *ledgers], ledgers, visit))


def _examine_job(job: Job, visit: _Visit) -> None:
    """The site of a coordinator, or a job whose files are all here."""
    there = f"the parties {', '.join(job.parties)}" if job.federation is not None else "all data are here"
    visit.findings.append(Finding("settings", "ok", f"{job.path}: a job; {there}"))
    folders = [path.parent for path in job.outputs().values()]
    _examine_coordinator(job, visit)
    for name, source in job.sources.items():
        at = "" if job.data is not None else f" of {name}"
        schema, labelled = job.known_schema, job.labelled(name)
        visit.do(f"data{at}", _data(f"data{at}", source, job.resolve, schema, labelled, visit))
        if source.ledger is not None:
            visit.do(f"ledger{at}", _ledger(f"ledger{at}", source, job.resolve, job.privacy.epsilon))
            folders.append(job.resolve(source.ledger).parent)
    visit.do("plan", _plan(job, visit))
    visit.do("outputs", _outputs(job))
    for folder in dict.fromkeys(folders):
        visit.do("disk", _disk(folder, visit.shape))
    for prepared in visit.prepared:
        visit.do("disk", _disk_for_rows(prepared))


def _examine_coordinator(job: Job | PeopleJob | EvaluationJob, visit: _Visit) -> None:
    """What all do that wait for parties."""
    if (table := job.federation) is None:
        return
    if table.listen is None or table.certificates is None:  # a job for NVIDIA FLARE
        visit.do("parties", _names(table))
        return
    folder = job.resolve(table.certificates)
    visit.do("certificate", _certificate(folder, COORDINATOR, visit))
    visit.do("parties", _names(table))
    visit.do("network", _listening(table.listen, folder))
    visit.do("clock", _clock(folder, [job.path, *_files(folder)], [], visit))


def _certificate(folder: Path, name: str, visit: _Visit) -> Findings:
    if not (folder / f"{name}.key").exists():
        raise InputError(f"{folder} has no key {name}.key; `sottovoce request {name} --folder {folder}` makes one.")
    if not (folder / f"{name}.pem").exists():
        raise InputError(
            f"{folder} has a key and no certificate {name}.pem; send {name}.csr to the authority's keeper, who signs "
            f"it with `sottovoce sign`, and put {name}.pem there."
        )
    visit.credentials = Credentials.load(folder, name)
    own = next(known for known in listed(folder) if known.name == name)
    until = f"valid until {own.end:%Y-%m-%d}, {days_text(own.days)} left"
    if own.days < SOON:
        yield Finding("certificate", "warning", f"{name}, {until}: it ends soon; {renewal(name)}")
    else:
        yield Finding("certificate", "ok", f"{name}, serial {own.serial[:12]}..., {until}")
    yield from _own_alone("certificate", folder / f"{name}.key", "make the key and its certificate anew if anybody has")
    if others := sorted(path.name for path in folder.glob("*.key") if path.stem != name):
        yield Finding(
            "certificate",
            "warning",
            f"{folder} has {', '.join(others)} too: keys of others belong where these are, and authority.key with who "
            "keeps the authority; whoever has it can make a party. Move them away.",
        )


def _own_alone(check: str, path: Path, then: str) -> Findings:
    if os.name == "posix" and path.stat().st_mode & 0o077:
        yield Finding(check, "fails", f"others may read {path}: chmod 600 {path}; {then}.")


def _network(address: str, visit: _Visit) -> Findings:
    """Step by step, so that the step that fails is told: the name, the port, the handshake, the coordinator's list."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        raise InputError(f"federation.coordinator = {address!r} must be host:port, such as trials.example.org:7443.")
    if (proxy := proxy_for(host)) is not None:
        yield from _by_proxy(address, proxy, visit)
        return
    try:
        socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, OverflowError):
        raise WireError(f"no machine has the name {host!r}; correct federation.coordinator, or see to DNS.") from None
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()
    except ConnectionRefusedError:
        yield Finding(
            "network",
            "warning",
            f"{host} is there and nobody listens on port {port}. That is so while no run waits for parties: ask for "
            "one and look again, or compare the port with the coordinator's.",
        )
        return
    except OSError as error:
        raise WireError(
            f"{host} does not answer on port {port} ({error.strerror or error}); a firewall must let this site connect "
            "to it. No port of this site need be open."
        ) from None
    yield from _greeted(address, visit)


def _by_proxy(address: str, proxy: Proxy, visit: _Visit) -> Findings:
    """The proxy looks up the name and connects; that nobody listens there yet is no fault of the site."""
    yield Finding("network", "ok", f"{address} is connected to by {proxy}; no_proxy names hosts that are not")
    host, _, port = address.rpartition(":")
    try:
        proxy.connect(host.strip("[]"), int(port), _SECONDS).close()
    except WireError as error:
        if "it answers 5" not in str(error):
            raise
        yield Finding("network", "warning", f"{error} It is also so while no run waits for parties.")
        return
    yield from _greeted(address, visit)


def _greeted(address: str, visit: _Visit) -> Findings:
    if visit.credentials is None:
        yield Finding("network", "warning", f"{address} answers; who it is can be told with a certificate alone")
        return
    try:
        visit.time_there = greet(address, visit.credentials)
    except WireError as error:
        raise WireError(f"{str(error).removesuffix('.')}. {_advice(str(error))}") from None
    yield Finding("network", "ok", f"the coordinator at {address} shows the right certificate and takes this one")


_ADVICE: Final = {
    "mismatch": "federation.coordinator must name the host as the coordinator's certificate does; else its keeper "
    "issues that again with --host.",
    "not on the coordinator's list": "Its job must name this end in federation.parties, or as federation.helper.",
    "revoked": "Ask the authority's keeper for a new certificate, with a new key.",
    "expired": "A certificate has ended, or a clock is wrong: see the certificates and the clocks of both ends.",
    "not yet valid": "A clock is wrong: compare the clocks of both ends.",
    "issuer": "It is of another authority: compare authority.pem with the coordinator's.",
    "self-signed": "It is of another authority: compare authority.pem with the coordinator's.",
    "ended the connection": "Is it a coordinator of sottovoce, with certificates of the same authority?",
    "cannot be spoken to": "Something else than a coordinator is at that port: compare address and port.",
}


def _advice(text: str) -> str:
    """What to do about an error of a handshake, by what it says."""
    known = (advice for word, advice in _ADVICE.items() if word in text)
    return next(known, "Compare address, port and authority.pem with the coordinator's.")


def _clock(folder: Path, dated: Iterable[Path], ledgers: Iterable[Path], visit: _Visit) -> Findings:
    """The clock is not before anything that was dated here, and is the coordinator's where that could be asked."""
    now = datetime.now(UTC)
    marks = [(datetime.fromtimestamp(path.stat().st_mtime, UTC), path.name) for path in dated if path.exists()]
    if (folder / "authority.pem").exists():
        marks += [(known.start, f"the start of {known.name}.pem") for known in listed(folder)]
    for path in ledgers:
        if path.exists():
            entries = [entry for account in Ledger(path).accounts() for entry in account.history()]
            marks += [(datetime.fromisoformat(entry.written), f"the last entry of {path.name}") for entry in entries]
    newest, what = max(marks, default=(now, ""))
    if newest > now + CLOCK_SLACK:
        raise InputError(
            f"the clock shows {_shown(now)}, which is before {what}, {_shown(newest)}; set it, by NTP. If it is right, "
            "the clock was wrong where that was made."
        )
    if visit.time_there is None:
        yield Finding("clock", "ok", f"{_shown(now)}, after all that is dated here; the coordinator's was not asked")
        return
    apart = (now - visit.time_there).total_seconds()
    if abs(apart) > CLOCK_SLACK.total_seconds():
        where = "ahead of" if apart > 0 else "behind"
        raise InputError(f"the clock is {abs(apart) / 60:.0f} min {where} the coordinator's; set them both, by NTP.")
    yield Finding("clock", "ok", f"{_shown(now)}, within {abs(apart):.0f} s of the coordinator's")


def _shown(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _schema(job: PartyJob, visit: _Visit) -> Findings:
    visit.schema = job.known_schema
    if visit.schema is not None:
        counted = f"{len(visit.schema.columns)} columns, {len(visit.schema.feature_names)} features of them"
        yield Finding("schema", "ok", f"{counted}; label: {visit.schema.label or 'none'}")


def _party_data(job: PartyJob, visit: _Visit) -> Findings:
    yield from _data("data", job.party, job.resolve, visit.schema, job.party.has_label, visit)
    sources.policy_of(job)  # the bounds that it demands are of these columns
    if job.party.predictions is not None:
        check_writable(job.resolve(job.party.predictions), "party.predictions")


def _data(  # noqa: PLR0913
    check: str,
    source: SourceTable,
    resolve: Callable[[str], Path],
    schema: Schema | None,
    labelled: bool,
    visit: _Visit,
) -> Findings:
    """The file is read as a run reads it; of what is in it only the shape is told."""
    path = resolve(source.file)
    large = sources.goes_by_pieces(source, path, schema)
    if not path.exists() and not large:
        raise InputError(f"{path}: there is no such file; put the records there, or correct file.")
    if source.id is not None and not large:
        _check_ids(path, source)
    plain = source.model_copy(update={"ledger": None, "account": None})
    with _heard() as remarks:
        if schema is None:
            names = sources.source_shape(source, resolve, labelled=labelled)[1]
            party = sources.read_party("site", plain, resolve, Policy(), labelled=labelled)
        else:
            names = schema.feature_names
            wanted = labelled if schema.label is not None else False
            party = sources.read_party("site", plain, resolve, Policy(), schema=schema, labelled=wanted or None)
    facts = {fact.name: fact.value for fact in party.facts(classes=False)}
    visit.shape = facts["records"], facts["features"]
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    by = "" if schema is None else " by the schema"
    yield Finding(
        check,
        "ok",
        f"{path}: {facts['records']:,} records, {facts['features']} features{by} ({shown})"
        f"{'' if party.labelled else ', no labels'}",
    )
    if remarks:
        yield Finding(
            check,
            "warning",
            f"{path}: some records cannot be used and count for nothing; `sottovoce party` says which, here alone",
        )


def _check_ids(path: Path, source: SourceTable) -> None:
    """One record, one identifier, by the rule that parties compare them by; which ones are wrong is not told."""
    columns, column = columns_of(path), source.id or ""
    if column not in columns:
        raise InputError(f"id={column!r} is no column of {path}; its columns are: {', '.join(columns)}.")
    try:
        identifiers(columns[column], len(columns[column]), "site", source.id_rule)
    except InputError:
        raise InputError(
            f"{path}: some identifiers in {column!r} are empty, or occur twice by the rule {source.id_rule!r}; one "
            "person has one record. `sottovoce party` says which, here alone."
        ) from None


def _ledger(check: str, source: SourceTable, resolve: Callable[[str], Path], wanted: float) -> Findings:
    """It opens, every entry is what was written, and it can pay for a plan."""
    if source.ledger is None:
        return
    path = resolve(source.ledger)
    if not path.exists():
        raise InputError(
            f"{path}: no ledger is there; `sottovoce ledger create {path} --dataset people --epsilon 3 --delta 1e-6` "
            "makes one, with all that may ever be spent on these people. If there was one, find it: never make another."
        )
    ledger = Ledger(path)
    entries, account = ledger.verify(), ledger.account(source.account)
    yield from _own_alone(check, path, "it has what was released")
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise InputError(f"this user may not write {path} and its folder, where every charge is noted; chown them.")
    balance = account.balance()
    left = f"account {account.dataset!r} of {path}: epsilon {balance.left:.4g} of {balance.total:g} left"
    if balance.left <= 1e-6:
        raise InputError(f"{left}; every plan will be refused. A budget that is spent stays spent.")
    if balance.left < wanted < math.inf:
        refused = f"those above {balance.left:.4g} will be refused"
        yield Finding(check, "warning", f"{left}, and plans may cost up to {wanted:g}: {refused}")
    else:
        yield Finding(check, "ok", f"{left}; {entries} entries, all as they were written")


def _ledger_folder(job: PartyJob, source: SourceTable) -> Path:
    return job.path.parent if source.ledger is None else job.resolve(source.ledger).parent


def _disk(folder: Path, shape: tuple[int, int] | None) -> Findings:
    """Room for what a run leaves beside the ledger: its answers and, at most, rows with noise."""
    records, features = shape or (0, 0)
    needed = _LEAST_FREE + 8 * features * (_ANSWERS + 2 * records)
    free = shutil.disk_usage(folder).free
    said = f"{folder}: {_size(free)} free, a run may leave up to {_size(needed)}"
    if free < _LEAST_FREE:
        raise InputError(f"{said}; free some space: a ledger that cannot be written answers nothing.")
    yield Finding("disk", "ok" if free >= needed else "warning", said + ("" if free >= needed else "; free some space"))


def _disk_of_party(job: PartyJob, visit: _Visit) -> Findings:
    """The same before there is a plan: dense rows that are read in pieces, as most plans have them."""
    source, path = job.party, job.resolve(job.party.file)
    if visit.shape is None or not sources.goes_by_pieces(source, path, visit.schema) or source.cluster is not None:
        return
    if format_of(list_files(path)[0]).sparse:
        return
    records, features = visit.shape
    size = records * (_ENTRY * (features + 1) + BESIDE)
    if not room.fits(size):
        folder = None if source.folder is None else job.resolve(source.folder)
        place = room.named_place(folder, None if source.ledger is None else _ledger_folder(job, source))
        yield from _disk_for_rows(PreparedRows(size, "file", place, records))


def _disk_for_rows(prepared: PreparedRows) -> Findings:
    """Room for prepared rows that go to a file."""
    if prepared.folder is not None:
        prepared.check()
        free = shutil.disk_usage(prepared.folder).free
        said = f"{prepared.folder}: {_size(free)} free, prepared rows take {_size(prepared.size)}"
        yield Finding("disk", "ok", f"{said} while a fit runs")


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / _MEGABYTE:.0f} MiB"


def _policy(job: PartyJob, visit: _Visit) -> Findings:
    """What the holder allows, where it contradicts itself or allows all."""
    policy = job.policy
    if visit.credentials is not None:
        Certified(visit.credentials, job.peers)
    if job.party.name in job.peers:
        raise InputError(f"peers.{job.party.name} is this party itself; [peers] has the pins of others.")
    notes, trains = [], sources.policy_trains(job)
    if trains and math.isinf(policy.max_epsilon):
        notes.append("max_epsilon is not set, so that one plan may take all that the ledger has; set it")
    if policy.sealed and not job.peers and policy.max_epsilon_pooled is None:
        notes.append(
            "sealed = true and [peers] is empty: such plans are refused until the key of every other end is pinned; "
            "ask each holder for the line that `sottovoce pin` prints"
        )
    if policy.sealed and policy.dealer not in ("", COORDINATOR, *job.peers):
        notes.append(f"dealer = {policy.dealer!r}, whose key [peers] lacks: pin it")
    if job.predict_for and not job.peers:
        notes.append("people are predicted for and [peers] is empty: pin the other parties, or no request is answered")
    if missing := [name for name in (*policy.align, *policy.count_shared) if name not in job.peers]:
        notes.append(f"the records may be compared with {', '.join(missing)}, whose keys [peers] lacks: pin them first")
    for note in notes:
        yield Finding("policy", "warning", note)
    if not notes:
        pins = f"; pinned: {', '.join(job.peers)}" if job.peers else ""
        sealed = f"sealed sums{_agreed(policy)}" if policy.sealed else "no sealed sums"
        plans = f"plans up to epsilon {policy.max_epsilon:g}, {sealed}"
        if not trains:
            plans = f"no training: these people are predicted for, for {' and '.join(job.predict_for)}"
        yield Finding("policy", "ok", f"{plans}{pins}")


def _agreed(policy: PolicyTable) -> str:
    """What the holder agreed to assume of sealed sums beyond what is assumed where it says nothing."""
    keys = dict.fromkeys(each.key for each in ASSUMPTIONS if each.key != "sealed")
    given = {key: getattr(policy, key) for key in keys if getattr(policy, key) != PolicyTable.model_fields[key].default}
    said = ", ".join(f"{key} = {value}" for key, value in given.items())
    return f" ({said})" if said else ""


def _names(table: FederationTable) -> Findings:
    for name in table.ends:
        check_name(name)
        if name == COORDINATOR:
            raise InputError(f"federation.parties has {name!r}, which is no party's name; give it another.")
    yield Finding("parties", "ok", ", ".join(table.ends))


def _listening(listen: str, folder: Path) -> Findings:
    """The port is free, and the certificate names the host."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal():
        raise InputError(f"federation.listen = {listen!r} must be host:port, such as 0.0.0.0:7443.")
    try:
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"{listen} cannot be listened on ({why}); another program has the port, or the address is not of "
            "this machine. End it, or change federation.listen."
        ) from None
    hosts = next((known.hosts for known in listed(folder) if known.name == COORDINATOR), ())
    named = ", ".join(hosts)
    if host not in _UNKNOWN_HOSTS and host not in hosts:
        yield Finding("network", "warning", f"it listens on {host}, and its certificate is for {named}: name that one")
    elif set(hosts) <= {"localhost", "127.0.0.1", "::1"}:
        yield Finding(
            "network",
            "warning",
            f"its certificate is for {named}, so that no party elsewhere takes it; issue it again with --host",
        )
    else:
        yield Finding("network", "ok", f"{listen} is free; parties reach it as {named}, through any firewall")


def _plan(job: Job, visit: _Visit) -> Findings:
    """The job has a plan, if its public numbers are known."""
    table = job.federation
    if table is not None and (table.records is None or table.features is None):
        yield Finding(
            "plan",
            "warning",
            "federation.records and features are not declared, so that `sottovoce plan` cannot tell what a run would "
            "promise; ask the parties for them, which are public",
        )
        return
    shown = runs.planned(job)
    visit.prepared = shown.prepared
    yield Finding("plan", "ok", f"{shown.plan.algorithm}, epsilon {job.privacy.epsilon:g}; `sottovoce plan` says more")


def _outputs(job: Job) -> Findings:
    outputs.check_outputs(job, overwrite=True)
    if (path := state_path(job)).exists():
        with contextlib.closing(Journal(path)) as state:  # which says who has it, if somebody does
            if state.begun:
                said = f"{path.name}: a fit was stopped; `sottovoce fit` goes on with it"
                yield Finding("outputs", "warning", said)
    if there := [path.name for path in job.outputs().values() if path.exists()]:
        yield Finding("outputs", "warning", f"{', '.join(there)} are there; a fit replaces them with --overwrite alone")
    else:
        yield Finding("outputs", "ok", ", ".join(path.name for path in job.outputs().values()))


def _files(folder: Path) -> list[Path]:
    """The certificates of a folder, whose dates say when it was at least."""
    return sorted(path for path in folder.glob("*.pem") if path.stem != REVOKED)


@contextmanager
def _quiet() -> Iterator[None]:
    """What the package logs meanwhile is in the findings."""
    with _heard():
        yield


@contextmanager
def _heard() -> Iterator[list[logging.LogRecord]]:
    """The warnings that the package logs meanwhile, which are shown nowhere."""
    log, found = logging.getLogger("sottovoce"), _Collector()
    before, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [found], False
    try:
        yield found.records
    finally:
        log.handlers, log.propagate = before, propagate


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
