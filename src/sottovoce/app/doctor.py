"""What is wrong with a site before its first run: one finding for each check, which says what to do.

A site is what a party file, a dealer file or a coordinator's job describes. Nothing is charged, nothing is written but
an empty file that goes again, and nothing leaves but a name and a certificate, which the coordinator sees anyhow. A
finding holds no value of the data: names of columns, the number of records, and whether a check holds. Of cells that do
not fit it has how many there are: it is for the holder alone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from sottovoce import systems
from sottovoce.app import jobs, outputs, previews, sources
from sottovoce.app.job_file import JobFile, SourceTable, check_said, tables_of
from sottovoce.app.superuser import AS_ROOT, is_root
from sottovoce.app.texts import readable_size
from sottovoce.data import resources as room
from sottovoce.data.block_parts import PreparedRows
from sottovoce.data.cells import class_places, table_columns
from sottovoce.data.files import format_of, list_files
from sottovoce.data.identifiers import identifiers
from sottovoce.data.matrix import is_sparse
from sottovoce.data.preparation import BESIDE
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError, SottovoceError, WireError
from sottovoce.estimators.declarations import crowded
from sottovoce.federation.journal import Journal
from sottovoce.federation.party import Party
from sottovoce.files import check_writable
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports import certificates
from sottovoce.transports.authority import list_certificates
from sottovoce.transports.certificates import CLOCK_SLACK, COORDINATOR, Credentials
from sottovoce.transports.grpc_party import greet
from sottovoce.transports.identity import Certified
from sottovoce.transports.probe import proxy_for

_SECONDS: Final = 5.0  # to reach a coordinator
_LEAST_FREE: Final = 100_000_000
_ANSWERS: Final = 1_000  # that a ledger keeps of one run at most, each a number for every feature; generously
_ADVICE: Final = {  # by what the error of a handshake says
    "mismatch": "federation.coordinator must name the host as the coordinator's certificate does.",
    "not on the coordinator's list": "Its job must name this end in federation.parties, or as federation.dealer.",
    "revoked": "Ask the authority's keeper for a new certificate, with a new key.",
    "expired": "A certificate has ended, or a clock is wrong: see the certificates and the clocks of both ends.",
    "ended the connection": "Is it a coordinator of sottovoce, with certificates of the same authority?",
    "cannot be spoken to": "Something else than a coordinator is at that port: compare address and port.",
    "": "Compare address, port, clock and authority.pem with the coordinator's.",
}


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do."""

    check: str
    state: Literal["ok", "warning", "fails"]
    text: str


@dataclass
class Visit:
    """The findings so far, and what checks learn for those after them."""

    findings: list[Finding] = field(default_factory=list)
    check: str = "settings"
    credentials: Credentials | None = None
    time_there: datetime | None = None
    shape: tuple[int, int] = (0, 0)  # records, features
    prepared: tuple[PreparedRows, ...] = ()  # of a job's plan

    def say(self, text: str, *, warning: bool = False) -> None:
        self.findings.append(Finding(self.check, "warning" if warning else "ok", text))

    def check_own_alone(self, path: Path, then: str) -> None:
        if systems.others_may_read(path):
            self.findings.append(Finding(self.check, "fails", f"others may read {path}: chmod 600 {path}; {then}."))

    def make(self, check: str, work: Callable[..., None], *arguments: Any) -> None:
        """Make a check; an error that the package raises on purpose is its last finding."""
        self.check = check
        try:
            work(self, *arguments)
        except SottovoceError as error:
            self.findings.append(Finding(check, "fails", str(error)))
        except OSError as error:
            self.findings.append(Finding(check, "fails", f"{error.filename}: {error.strerror}; see to it."))


def examine(path: Path) -> list[Finding]:
    """All findings about the site of a job file, in order; a file that cannot be read is the only one."""
    visit = Visit()
    try:
        tables = tables_of(path)
        kind: type[JobFile] = jobs.PeopleJob
        if "dealer" in tables or isinstance(tables.get("party"), dict):
            kind = jobs.DealerJob if "dealer" in tables else jobs.PartyJob
        elif "model" in tables or not tables.keys() & {"federation", "party"}:
            kind = jobs.Job
        elif "privacy" in tables:
            kind = jobs.EvaluationJob
        site: Any = kind.load(path)
    except SottovoceError as error:
        return [Finding("settings", "fails", str(error))]
    if is_root():
        visit.findings.append(Finding("user", "warning", AS_ROOT))
    if site.set_elsewhere:
        visit.say(site.set_elsewhere)
    with _hear_warnings():  # what the package logs meanwhile is in the findings
        (_examine_end if isinstance(site, jobs.PartyJob | jobs.DealerJob) else _examine_coordinator)(visit, site)
    return visit.findings


def _examine_end(visit: Visit, job: jobs.PartyJob | jobs.DealerJob) -> None:
    """A party, or a dealer, which has no data."""
    source: Any = job.party if isinstance(job, jobs.PartyJob) else job.dealer
    folder, ledger = job.resolve(job.federation.certificates), getattr(source, "ledger", None)
    visit.say(f"{job.path}: the {'party' if isinstance(job, jobs.PartyJob) else 'dealer'} {source.name!r}")
    visit.make("certificate", _check_certificate, folder, source.name)
    visit.make("network", _check_network, job.federation.coordinator)
    visit.make("clock", _check_clock, folder, job.path, None if ledger is None else job.resolve(ledger))
    if isinstance(job, jobs.PartyJob):
        visit.make("data", _check_data, job, source, source.has_label)
        visit.make("ledger", _check_ledger, job, source, job.policy.max_epsilon if sources.policy_trains(job) else 0.0)
        visit.make("disk", _check_disk, job.path.parent if ledger is None else job.resolve(ledger).parent)
        visit.make("disk", _check_disk_of_party, job)
        visit.make("policy", _check_policy, job)


def _examine_coordinator(visit: Visit, job: jobs.Job | jobs.PeopleJob | jobs.EvaluationJob) -> None:
    """What all do that wait for parties; of a job also the data that are here, the plan, and where results go."""
    visit.say(f"{job.path}: {'a job' if isinstance(job, jobs.Job) else 'a prediction or an evaluation'}")
    table = job.federation
    if table is not None and table.listen is not None and table.certificates is not None:
        folder = job.resolve(table.certificates)
        visit.make("certificate", _check_certificate, folder, COORDINATOR)
        visit.make("parties", _check_names, table.ends)
        visit.make("network", _check_port, table.listen, folder)
        visit.make("clock", _check_clock, folder, job.path, None)
    elif table is not None:  # a job for NVIDIA FLARE
        visit.make("parties", _check_names, table.ends)
    if not isinstance(job, jobs.Job):
        return
    folders = [path.parent for path in job.outputs().values()]
    for name, source in job.sources.items():
        at = "" if job.data is not None else f" of {name}"
        visit.make(f"data{at}", _check_data, job, source, job.labelled(name))
        if source.ledger is not None:
            visit.make(f"ledger{at}", _check_ledger, job, source, job.privacy.epsilon)
            folders.append(job.resolve(source.ledger).parent)
    visit.make("plan", _check_plan, job)
    visit.make("outputs", _check_results, job)
    for folder in dict.fromkeys(folders):
        visit.make("disk", _check_disk, folder)
    for prepared in visit.prepared:
        visit.make("disk", _check_disk_for_rows, prepared)


def _check_certificate(visit: Visit, folder: Path, name: str) -> None:
    if not (folder / f"{name}.key").exists():
        raise InputError(f"{folder} has no key {name}.key; `sottovoce request {name} --folder {folder}` makes one.")
    if not (folder / f"{name}.pem").exists():
        raise InputError(f"{folder} has no certificate {name}.pem; send {name}.csr to the authority's keeper to sign.")
    visit.credentials = Credentials.load(folder, name)
    own = next(known for known in list_certificates(folder) if known.name == name)
    soon = f": it ends soon; {certificates.renewal(name)}" if own.days < certificates.SOON else ""
    until = f"valid until {own.end:%Y-%m-%d}, {certificates.days_text(own.days)} left"
    visit.say(f"{name}, serial {own.serial[:12]}..., {until}{soon}", warning=bool(soon))
    visit.check_own_alone(folder / f"{name}.key", "make the key and its certificate anew if anybody has")
    if others := sorted(path.name for path in folder.glob("*.key") if path.stem != name):
        away = "move keys of others away, and leave authority.key with who keeps the authority"
        visit.say(f"{folder} has {', '.join(others)} too: {away}", warning=True)


def _check_network(visit: Visit, address: str) -> None:
    """Step by step, so that the finding names the step: the name, the port, the handshake, the coordinator's list."""
    host, port = _host_and_port("coordinator", address)
    if (proxy := proxy_for(host)) is not None:
        visit.say(f"{address} is connected to by {proxy}; no_proxy names hosts that are not")
    try:
        if proxy is None:
            socket.create_connection((host, port), timeout=_SECONDS).close()
        else:
            proxy.connect(host, port, _SECONDS).close()
    except (socket.gaierror, OverflowError):
        raise WireError(f"no machine has the name {host!r}; correct federation.coordinator, or see to DNS.") from None
    except (WireError, ConnectionRefusedError) as error:
        if isinstance(error, WireError) and "it answers 5" not in str(error):
            raise
        said = f"{host} is there and nobody listens on port {port}." if proxy is None else str(error)
        visit.say(f"{said} That is so while no run waits for parties; else compare the port.", warning=True)
        return
    except OSError as error:
        why = f"({error.strerror or error}); a firewall must let this site connect to it, and none need come in."
        raise WireError(f"{host} does not answer on port {port} {why}") from None
    if visit.credentials is None:
        visit.say(f"{address} answers; who it is can be told with a certificate alone", warning=True)
        return
    try:
        visit.time_there = greet(address, visit.credentials)
    except WireError as error:
        advice = next(advice for words, advice in _ADVICE.items() if words in str(error))
        raise WireError(f"{str(error).removesuffix('.')}. {advice}") from None
    visit.say(f"the coordinator at {address} shows the right certificate and takes this one")


def _host_and_port(key: str, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or (key == "coordinator" and not host):
        raise InputError(f"federation.{key} = {address!r} must be host:port, such as trials.example.org:7443.")
    return host.strip("[]"), int(port)


def _check_clock(visit: Visit, folder: Path, job: Path, ledger: Path | None) -> None:
    """The clock is not before anything that was dated here, and is the coordinator's where that could be asked."""
    now, minutes = datetime.now(UTC), "%Y-%m-%d %H:%M UTC"
    paths = [job, *(path for path in folder.glob("*.pem") if path.stem != certificates.REVOKED)]
    marks = [(datetime.fromtimestamp(path.stat().st_mtime, UTC), path.name) for path in paths]
    if (folder / "authority.pem").exists():
        marks += [(known.start, f"the start of {known.name}.pem") for known in list_certificates(folder)]
    if ledger is not None and ledger.exists():
        entries = [entry for account in Ledger(ledger).accounts() for entry in account.history()]
        marks += [(datetime.fromisoformat(entry.written), f"the last entry of {ledger.name}") for entry in entries]
    newest, what = max(marks)
    if newest > now + CLOCK_SLACK:
        when = f"which is before {what}, {newest:{minutes}}; set it, by NTP, here or where that was made."
        raise InputError(f"the clock shows {now:{minutes}}, {when}")
    said = "after all that is dated here; the coordinator's was not asked"
    if visit.time_there is not None:
        apart = (now - visit.time_there).total_seconds()
        if abs(apart) > CLOCK_SLACK.total_seconds():
            where = "ahead of" if apart > 0 else "behind"
            raise InputError(f"the clock is {abs(apart) / 60:.0f} min {where} the coordinator's; set both, by NTP.")
        said = f"within {abs(apart):.0f} s of the coordinator's"
    visit.say(f"{now:{minutes}}, {said}")


def _check_data(visit: Visit, job: jobs.Job | jobs.PartyJob, source: SourceTable, labelled: bool) -> None:
    """The file is read as a run reads it; a finding has only its shape."""
    path, schema = job.resolve(source.file), job.known_schema
    large = sources.goes_by_pieces(source, path, schema)
    if not path.exists() and not large:
        raise InputError(f"{path}: there is no such file; put the records there, or correct file.")
    if source.id is not None and not large:  # one record, one identifier; which ones are wrong is not told
        columns = table_columns(path)
        if source.id not in columns:
            raise InputError(f"id={source.id!r} is no column of {path}; its columns are: {', '.join(columns)}.")
        try:
            identifiers(columns[source.id], len(columns[source.id]), "site", source.id_rule)
        except InputError:
            wrong = f"some identifiers in {source.id!r} are empty, or occur twice by the rule {source.id_rule!r}"
            raise InputError(f"{path}: {wrong}; `sottovoce party` says which, here alone.") from None
    plain = source.model_copy(update={"ledger": None, "account": None})
    wanted: bool | None = labelled
    with _hear_warnings() as remarks:
        if schema is None:
            names = sources.source_shape(source, job.resolve, labelled=labelled)[1]
        else:
            names, wanted = schema.feature_names, (labelled and schema.label is not None) or None
        party = sources.read_party("site", plain, job.resolve, schema=schema, labelled=wanted)
    facts = {fact.name: fact.value for fact in party.facts(classes=False)}
    visit.shape = facts["records"], facts["features"]
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    what = f"{facts['records']:,} records, {facts['features']} features{'' if schema is None else ' by the schema'}"
    visit.say(f"{path}: {what} ({shown}){'' if party.labelled else ', no labels'}")
    for record in remarks:
        if record.name == "sottovoce.holder":
            visit.say(record.getMessage(), warning=True)
    if not large and not is_sparse(party.rows):
        texts = None if schema is not None else sources.text_columns(path, names)
        _check_usable(visit, path, party, _classes_of(job, schema), texts)
    if isinstance(job, jobs.PartyJob):
        sources.policy_of(job)  # the bounds that it demands are of these columns
        if job.party.predictions is not None:
            check_writable(job.resolve(job.party.predictions), "party.predictions")


def _classes_of(job: jobs.Job | jobs.PartyJob, schema: Schema | None) -> Sequence[Any]:
    """The classes that are declared; none of a regression, or where the coordinator declares them."""
    declared = job.bounds.classes if job.bounds is not None else None
    return declared or (() if schema is None else schema.classes or ())


def _check_usable(visit: Visit, path: Path, party: Party, classes: Sequence[Any], texts: Sequence[str] | None) -> None:
    """Refuse records of which none can be used; of others it is told how many, and which columns have `texts`.

    None: a schema has made numbers of all cells.
    """
    numbers = np.ones(party.rows.shape[0], np.bool_) if texts is None else np.isfinite(party.rows).all(axis=1)
    labels = np.ones_like(numbers)
    if party.labelled and classes:
        labels = class_places(party.labels, classes) >= 0
    bad = int((~(numbers & labels)).sum())
    if not bad:
        return
    said = f"{path}: {how_many(bad, len(labels))} records are of no use and count for nothing"
    if not labels.all():
        said += f"; {how_many(int((~labels).sum()), len(labels))} labels are none of the classes"
    if texts:
        drafts = f"declare a [schema], `sottovoce schema {path.name}` drafts one"
        said += f"; {', '.join(texts)} {'has' if len(texts) == 1 else 'have'} texts: {drafts}"
    if bad == len(labels):
        raise InputError(f"{said}. Nothing was charged.")
    visit.say(f"{said}; `sottovoce party` says which, here alone", warning=True)


def how_many(count: int, total: int) -> str:
    """A part of a whole, in words."""
    words = ((1.0, "all"), (0.9, "nearly all"), (0.6, "most"), (0.4, "about half of the"), (0.1, "many"), (0.0, "few"))
    return next(word for share, word in words if count >= share * total)


def look(job: jobs.Job) -> list[Finding]:
    """What is found about the files of records that are here, as a fit reads them."""
    visit = Visit()
    for name, source in job.sources.items():
        visit.make("data" if job.data is not None else f"data of {name}", _check_data, job, source, job.labelled(name))
    return visit.findings


def _check_ledger(visit: Visit, job: jobs.Job | jobs.PartyJob, source: SourceTable, wanted: float) -> None:
    """It opens, every entry is what was written, and it can pay for a plan."""
    if source.ledger is None:
        return
    path = job.resolve(source.ledger)
    if not path.exists():
        made = f"`sottovoce ledger create {path} --dataset people --epsilon 3 --delta 1e-6` makes one"
        raise InputError(f"{path}: no ledger is there; {made}. If there was one, find it: never make another.")
    ledger = Ledger(path)
    entries, account = ledger.verify(), ledger.account(source.account)
    visit.check_own_alone(path, "it has what was released")
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise InputError(f"this user may not write {path} and its folder, where every charge is noted; chown them.")
    balance = account.balance()
    left = f"account {account.dataset!r} of {path}: epsilon {balance.left:.4g} of {balance.total:g} left"
    if balance.left <= 1e-6:
        raise InputError(f"{left}; every plan will be refused. A budget that is spent stays spent.")
    if balance.left < wanted < math.inf:
        refused = f"plans may cost up to {wanted:g}: those above {balance.left:.4g} will be refused"
        visit.say(f"{left}, and {refused}", warning=True)
    else:
        visit.say(f"{left}; {entries} entries, all as they were written")


def _check_disk(visit: Visit, folder: Path) -> None:
    """Room for what a run leaves beside the ledger: its answers and, at most, rows with noise."""
    needed = _LEAST_FREE + 8 * visit.shape[1] * (_ANSWERS + 2 * visit.shape[0])
    free = shutil.disk_usage(folder).free
    said = f"{folder}: {readable_size(free)} free, a run may leave up to {readable_size(needed)}"
    if free < _LEAST_FREE:
        raise InputError(f"{said}; free some space: a ledger that cannot be written answers nothing.")
    visit.say(f"{said}{'; free some space' if free < needed else ''}", warning=free < needed)


def _check_disk_of_party(visit: Visit, job: jobs.PartyJob) -> None:
    """Room for prepared rows before there is a plan: dense ones that are read in pieces, as most plans have them."""
    source, path, (records, features) = job.party, job.resolve(job.party.file), visit.shape
    if records and source.cluster is None and sources.goes_by_pieces(source, path, job.known_schema):
        size = records * (4 * (features + 1) + BESIDE)
        if not format_of(list_files(path)[0]).sparse and not room.fits_in_memory(size):
            _check_disk_for_rows(visit, PreparedRows(size, "file", previews.rows_folder(job, source), records))


def _check_disk_for_rows(visit: Visit, prepared: PreparedRows) -> None:
    if prepared.folder is not None:
        prepared.check()
        free = f"{readable_size(shutil.disk_usage(prepared.folder).free)} free"
        visit.say(f"{prepared.folder}: {free}, prepared rows take {readable_size(prepared.size)} while a fit runs")


def _check_policy(visit: Visit, job: jobs.PartyJob) -> None:
    """What the holder allows, where it contradicts itself or allows all."""
    policy, peers, trains, notes = job.policy, job.peers, sources.policy_trains(job), list[str]()
    if visit.credentials is not None:
        Certified(visit.credentials, peers)
    if job.party.name in peers:
        raise InputError(f"peers.{job.party.name} is this party itself; [peers] has the pins of others.")
    if trains and math.isinf(policy.max_epsilon):
        notes.append("max_epsilon is not set, so that one plan may take all that the ledger has; set it")
    if not peers and ((policy.secure and policy.max_epsilon_colluding is None) or job.predict_for):
        pins = "ask each holder for the line that `sottovoce pin` prints"
        notes.append(f"[peers] is empty: secure sums and joint predictions are refused until others are pinned; {pins}")
    if policy.secure and policy.dealer not in ("", COORDINATOR, *peers):
        notes.append(f"dealer = {policy.dealer!r}, whose key [peers] lacks: pin it")
    if missing := [name for name in (*policy.align, *policy.count_shared) if name not in peers]:
        notes.append(f"the records may be compared with {', '.join(missing)}, whose keys [peers] lacks: pin them first")
    for note in notes:
        visit.say(note, warning=True)
    if not notes:
        pins = f"; pinned: {', '.join(peers)}" if peers else ""
        plans = f"plans up to epsilon {policy.max_epsilon:g}, {'' if policy.secure else 'no '}secure sums"
        predicted = f"no training: these people are predicted for, for {' and '.join(job.predict_for)}"
        visit.say(f"{plans if trains else predicted}{pins}")


def _check_names(visit: Visit, ends: tuple[str, ...]) -> None:
    for name in ends:
        certificates.check_name(name)
    visit.say(", ".join(ends))


def _check_port(visit: Visit, listen: str, folder: Path) -> None:
    """The port is free, and the certificate is for a host that parties elsewhere can reach."""
    host, port = _host_and_port("listen", listen)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        why = "another program has the port, or the address is not of this machine; change federation.listen"
        raise InputError(f"{listen} cannot be listened on ({getattr(error, 'strerror', error)}): {why}.") from None
    hosts = next((known.hosts for known in list_certificates(folder) if known.name == COORDINATOR), ())
    named = ", ".join(hosts)
    if host not in ("0.0.0.0", "::", "", *hosts):  # noqa: S104 - compared, not listened on
        visit.say(f"it listens on {host}, and its certificate is for {named}: name that one", warning=True)
    elif {*hosts} <= {"localhost", "127.0.0.1", "::1"}:
        far = "so that no party elsewhere takes it; issue it again with --host"
        visit.say(f"its certificate is for {named}, {far}", warning=True)
    else:
        visit.say(f"{listen} is free; parties reach it as {named}, through any firewall")


def _check_plan(visit: Visit, job: jobs.Job) -> None:
    """The job has a plan, if its public numbers are known."""
    try:
        check_said(job.path, job.about.texts())
    except InputError as error:
        visit.say(str(error), warning=True)
    if job.federation is not None and (job.federation.records is None or job.federation.features is None):
        lacking = "federation.records and features are not declared; ask the parties for them, which are public"
        visit.say(f"{lacking}: `sottovoce plan` then tells what a run would promise", warning=True)
        return
    shown = previews.plan_job(job)
    visit.prepared = shown.prepared
    visit.say(f"{shown.plan.algorithm}, epsilon {job.privacy.epsilon:g}; `sottovoce plan` says more")
    for text in crowded(shown.plan, job.known_schema):
        visit.say(text, warning=True)


def _check_results(visit: Visit, job: jobs.Job) -> None:
    outputs.check_outputs(job, overwrite=True)
    if (path := job.path.with_suffix(outputs.STATE)).exists():
        with contextlib.closing(Journal(path)) as state:  # which says who has it, if somebody does
            if state.begun:
                visit.say(f"{path.name}: a fit was stopped; `sottovoce fit` goes on with it", warning=True)
    paths = job.outputs().values()
    there = [path.name for path in paths if path.exists()]
    replaced = " are there; a fit replaces them with --overwrite alone" if there else ""
    visit.say(f"{', '.join(there or [path.name for path in paths])}{replaced}", warning=bool(there))


@contextlib.contextmanager
def _hear_warnings() -> Iterator[list[logging.LogRecord]]:
    """The warnings that the package logs meanwhile, which are shown nowhere."""
    log, handler = logging.getLogger("sottovoce"), BufferingHandler(1 << 30)
    handler.setLevel(logging.WARNING)
    before, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        yield handler.buffer
    finally:
        log.handlers, log.propagate = before, propagate
