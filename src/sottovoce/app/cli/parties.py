"""`sottovoce party` and `dealer`, ends that serve until they are stopped, and `sottovoce align`."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli import console as terminal
from sottovoce.app.cli.console import JOB, AsJson, LogJson, NoView, ViewPort, argument, cli_option
from sottovoce.app.superuser import warn_as_root
from sottovoce.app.texts import readable_size, secure_balance
from sottovoce.errors import InputError, RefusedError
from sottovoce.files import check_writable

if TYPE_CHECKING:
    from collections.abc import Callable

    from sottovoce.app.job_file import ViewTable
    from sottovoce.app.jobs import PartyJob
    from sottovoce.app.view.watched import Watch
    from sottovoce.federation.coordinator import Coordinator

Once = Annotated[bool, typer.Option("--once", help="End after the first training.")]
Patience = Annotated[float, typer.Option(help="Give up after so many seconds without a coordinator.")]


def party(
    job: Annotated[Path | None, cli_option("A party file in TOML; or use the options below.", envvar=JOB)] = None,
    name: Annotated[str | None, cli_option("The party's name, as in its certificate.")] = None,
    file: Annotated[str | None, cli_option("Its records: CSV, Parquet or LIBSVM.")] = None,
    label: Annotated[str | None, cli_option("The label column; none if another party holds the labels.")] = None,
    ledger: Annotated[str | None, cli_option("The ledger that pays for every answer.")] = None,
    account: Annotated[str | None, cli_option("The account, if the ledger has several.")] = None,
    coordinator: Annotated[str | None, cli_option("host:port of the coordinator.")] = None,
    certificates: Annotated[str | None, cli_option("The folder with this party's certificate.")] = None,
    max_epsilon: Annotated[float | None, cli_option("Refuse a plan that costs more.")] = None,
    n_jobs: Annotated[
        int | None, cli_option("Threads for sums over its records; -1 is all processors, the default 1.")
    ] = None,
    once: Once = False,
    patience: Patience = 3600.0,
    view: ViewPort = None,
    no_view: NoView = False,
    log_json: LogJson = None,
) -> None:
    """Serve a data holder: connect to the coordinator, answer what the ledger can pay for, until stopped.

    The records stay in this process; sums with noise leave it. Ctrl-C stops it; nothing is lost by that. A page for
    operators is served at 127.0.0.1 and its address printed, unless `--no-view` or [view] says otherwise.

    - `sottovoce party --job north.toml`
    - `sottovoce party --name north --file north.csv --label readmitted --ledger north.db
      --coordinator trials.example.org:7443 --certificates certs --max-epsilon 1`

    A party file has the tables [party] (name, file, label, id, ledger, account, n_jobs, folder, keep), [federation]
    (coordinator, certificates) and, if wanted, [policy] (max_epsilon, max_delta, align), [peers] (pins of other
    parties), [bounds], [schema] (of this party's columns) and [view] (port, off, token, log). The file may be a folder
    or a pattern, or larger than memory. Without a label every column is a feature:
    that is for data split by columns where another party holds the labels.

    A party file with policy.predict_for or party.predictions has the people of a joint prediction, with parties whose
    keys [peers] has; the ledger tells where the party's part of the model is, and you approve it with
    `sottovoce models approve`. No plan is then served, unless policy.predict_training says that these people may be
    both trained on and predicted for.
    """
    from sottovoce.app.jobs import load_party_job
    from sottovoce.app.view.watched import Watch, watching

    own = {"name": name, "file": file, "label": label, "ledger": ledger, "account": account, "n_jobs": n_jobs}
    tables: dict[str, dict[str, Any]] = {
        "party": own,
        "federation": {"coordinator": coordinator, "certificates": certificates},
        "policy": {"max_epsilon": max_epsilon},
    }
    options = {part: {key: value for key, value in keys.items() if value is not None} for part, keys in tables.items()}
    if job is not None and any(options.values()):
        raise InputError("--job: the party file says it all; give it, or the other options, not both.")
    if job is None and not any(options.values()) and "SOTTOVOCE_PARTY_NAME" not in os.environ:
        raise InputError("say who this party is: --job FILE, or --name, --file, --label, --ledger, --coordinator, ...")
    loaded = load_party_job(Path("options"), options) if job is None else load_party_job(job)
    table = terminal.change_view(loaded.view, view, no_view, log_json)
    name, say = loaded.party.name, _speaker(loaded.party.name, table)
    with watching(Watch("party", name, meets_at=loaded.federation.coordinator), table, loaded.resolve, say) as watch:
        _serve_records(loaded, watch, say, once=once, patience=patience)


_REST = 1.5  # seconds after a training: by then its coordinator has closed, and the next one can be looked for


def _speaker(name: str, table: ViewTable) -> Callable[[str], None]:
    """Print lines of an end with its name before them, unless the log is on the standard output."""
    console = terminal.out()
    return lambda text: None if table.log == "-" else console.print(f"{name}: {text}", soft_wrap=True)


def _serve_until_stopped(
    serve: Callable[..., None], watch: Watch, stop: threading.Event, *, once: bool, patience: float
) -> None:
    """Answer one coordinator after another until told to stop, or with `once` until a training has ended."""
    watch.tell("expected", ends=("coordinator",))
    while not stop.is_set():
        serve(stop=stop, give_up_after=patience, on_change=watch.changed)
        if once:
            break
        stop.wait(_REST)


def _stop_by_signal() -> threading.Event:
    """Set by SIGINT and SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _serve_records(job: PartyJob, watch: Watch, say: Callable[[str], None], *, once: bool, patience: float) -> None:
    """Read a party's records, introduce it at the terminal, and answer for it."""
    from sottovoce.app import sources
    from sottovoce.app.view.watched import WatchedEnd
    from sottovoce.data.resources import Resources
    from sottovoce.transports.certificates import Credentials
    from sottovoce.transports.grpc_party import serve_party

    warn_as_root()
    source, address = job.party, job.federation.coordinator
    credentials = Credentials.load(job.resolve(job.federation.certificates), source.name)
    account = sources.source_account(source, job.resolve)
    policy = sources.policy_of(job)
    results = None if source.predictions is None else job.resolve(source.predictions)
    if results is not None:
        check_writable(results, "party.predictions")
    holder = sources.read_holder(job, policy)
    facts = {fact.name: fact.value for fact in holder.facts(classes=False)}
    stop = _stop_by_signal()
    say(f"{facts['records']:,} records, {facts['features']} features; the rows stay in this process")
    if job.set_elsewhere:
        say(job.set_elsewhere)
    holder.aligner.introduce(say)
    if job.predict_for:
        how, who = "also" if policy.trains else "not", ", ".join(job.predict_for)
        say(f"these people are predicted for, {how} trained on; who may learn the results: {who}")
    elif not source.has_label:
        say("no label: every column is a feature, and only a plan in which another party holds the labels is served")
    say(f"ledger {account.path}: epsilon {account.balance().left:.4g} left" if account else "no ledger")
    if account and (rests := account.balance().rests_on):
        say(secure_balance(sum(bool(known.rests_on) for known in account.book().reservations), rests))
    say(f"connecting to {address}; Ctrl-C stops")
    holder.resources = Resources(progress=report_rows(say)).over(holder.resources)
    end = WatchedEnd(holder, watch, account, results)
    serve = functools.partial(serve_party, end, address, credentials, pins=job.peers)
    _serve_until_stopped(serve, watch, stop, once=once, patience=patience)
    say("stopped")


def report_rows(say: Callable[[str], None], every: float = 10.0) -> Callable[[str, int, int], None]:
    """Say how far long work on rows has come, and the time left, at most every so many seconds."""
    begun: dict[str, tuple[float, float]] = {}  # when it began, and when it was last reported

    def hear(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, last = begun.setdefault(what, (now, now))
        if done >= total:
            del begun[what]
            if now - start > every:
                say(f"{what}: done in {terminal.seconds_text(now - start)}")
        elif now - last > every and done:
            begun[what] = start, now
            left = terminal.seconds_text((now - start) * (total - done) / done)
            say(f"{what}: {100 * done // total}% of {total:,} records, {left} left")

    return hear


def dealer(
    job: Annotated[Path, cli_option("A dealer file in TOML.", envvar=JOB)],
    keep: Annotated[Path | None, cli_option("A folder for its keys of a run, to go on after a restart.")] = None,
    once: Once = False,
    patience: Patience = 3600.0,
    view: ViewPort = None,
    no_view: NoView = False,
    log_json: LogJson = None,
) -> None:
    """Serve a dealer of secure sums: it deals random numbers to the parties, and has no records and no ledger.

    Run it where neither the coordinator nor a party has its hands: by columns a dealer that colludes with a party reads
    all columns. A party takes secure columns with a dealer whose key it has pinned. Restarted in the middle of a run,
    it has lost that run, unless its keys are in a folder (--keep), which is empty again once the run is over. Who
    reads that folder and has what one party has seen has all columns of the run.

    - `sottovoce dealer --job notary.toml`

    A dealer file has the tables [dealer] (name) and [federation] (coordinator, certificates); the coordinator's job
    names it as federation.dealer, and it has a certificate as a party has.
    """
    from sottovoce.app.jobs import load_dealer_job
    from sottovoce.app.view.watched import Watch, WatchedEnd, watching
    from sottovoce.federation.secure_columns.dealer import Dealer
    from sottovoce.transports.certificates import Credentials
    from sottovoce.transports.grpc_party import serve_party

    loaded = load_dealer_job(job)
    table = terminal.change_view(loaded.view, view, no_view, log_json)
    name, address = loaded.dealer.name, loaded.federation.coordinator
    warn_as_root()
    credentials = Credentials.load(loaded.resolve(loaded.federation.certificates), name)
    stop, say = _stop_by_signal(), _speaker(name, table)
    with watching(Watch("dealer", name, meets_at=address), table, loaded.resolve, say) as watch:
        say(f"a dealer, without records; connecting to {address}; Ctrl-C stops")
        if loaded.set_elsewhere:
            say(loaded.set_elsewhere)
        end = WatchedEnd(Dealer(name, keep=keep), watch)
        serve = functools.partial(serve_party, end, address, credentials)
        _serve_until_stopped(serve, watch, stop, once=once, patience=patience)
        say("stopped")


def align(
    job: Annotated[Path, argument("JOB", "A TOML file with [federation].")],
    matched_by: Annotated[
        str, typer.Option(help="Who compares the blinded lists: the coordinator, or a party by its name.")
    ] = "coordinator",
    count: Annotated[
        bool, cli_option("By rows: count the people that each two parties share; nothing is aligned.", "--count")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the people that all parties have, and give every party their order, by private set intersection.

    Each party names its column of identifiers (`id` in its party file) and the parties that it aligns with
    (policy.align, or policy.count_shared), and has pinned their keys ([peers]). No identifier leaves a party, and its
    file is not rewritten: it keeps the places of the common records beside it, and serves these from then on.

    Parties learn the length of every list and the common people, nothing about anybody else. The coordinator learns
    lengths and how many are common; of three and more parties also how many any of them share. With
    `--matched-by lab` it does not: then `lab` learns that, and which of its own people each other party has.

    - `sottovoce align job.toml`
    - `sottovoce align job.toml --matched-by lab`
    - `sottovoce align job.toml --count`
    """
    from sottovoce.app.jobs import load_alignment_job
    from sottovoce.app.runs import open_wire
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.federation.alignment import new_terms
    from sottovoce.federation.coordinator import Coordinator
    from sottovoce.gate.intersection import COORDINATOR

    loaded = load_alignment_job(job)
    if matched_by not in (COORDINATOR, *loaded.federation.parties):
        raise InputError(
            f"--matched-by {matched_by}: it must be {COORDINATOR}, or one of {', '.join(loaded.federation.parties)}."
        )
    if count and matched_by != COORDINATOR:
        raise InputError(f"--matched-by {matched_by}: people are counted by the coordinator; leave it out.")
    wire = open_wire(loaded.federation, loaded.resolve, lambda text: terminal.aside().print(text, soft_wrap=True))
    try:
        coordinator = Coordinator(wire)
        start = time.monotonic()
        try:
            if count:
                result = _count_shared(coordinator, wire.parties)
            else:
                with progress_bar("aligning", terminal.aside()) as advance:
                    done = coordinator.align(new_terms(wire.parties, matched_by), advance)
                result = {"parties": dict(done.sizes), "common": done.common, "matched_by": matched_by}
        finally:
            coordinator.dismiss()
        sizes = {name: getattr(wire.communication, name) for name in ("uplink_bytes", "downlink_bytes")}
        result |= {"seconds": time.monotonic() - start, **sizes}
    finally:
        wire.close()
    if as_json:
        terminal.print_json(result)
    else:
        _show_alignment(result)


def _count_shared(coordinator: Coordinator, parties: tuple[str, ...]) -> dict[str, Any]:
    """For each pair that agrees the number of people; for the others why not."""
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.federation.alignment import new_terms
    from sottovoce.gate.intersection import COUNT

    sizes, pairs = dict[str, int](), list[dict[str, Any]]()
    for one, other in itertools.combinations(parties, 2):
        try:
            with progress_bar(f"{one} and {other}", terminal.aside()) as advance:
                found = coordinator.align(new_terms((one, other), purpose=COUNT), advance)
        except RefusedError as error:
            pairs.append({"pair": [one, other], "refused": str(error)})
            continue
        sizes |= found.sizes
        pairs.append({"pair": [one, other], "shared": found.common})
    return {"parties": sizes, "shared": pairs}


def _show_alignment(result: dict[str, Any]) -> None:
    console, parties = terminal.out(), len(result["parties"])
    sizes = ", ".join(f"{name} {size:,}" for name, size in result["parties"].items())
    console.print(f"identifiers: {sizes}", soft_wrap=True)
    for pair in result.get("shared", ()):
        names = " and ".join(pair["pair"])
        what = f"share {pair['shared']:,} people" if "shared" in pair else f"were not counted: {pair['refused']}"
        console.print(f"{names} {what}", soft_wrap=True)
    if any(pair.get("shared") for pair in result.get("shared", ())):
        console.print(
            "a person whom two parties have pays at both: their epsilons add up. What is said of one person in one "
            "party does not hold for these.",
            soft_wrap=True,
        )
    if "common" in result:
        console.print(f"common to all: {result['common']:,}; every party has them in the same order, and checked that")
        text = "each party learned the lengths of all lists and which of its own people are common to all"
        if (matcher := result["matched_by"]) == "coordinator":
            more = " and how many people any of the parties share" if parties > 2 else ""
            text += f"; this coordinator learned the lengths and the number{more}, and nobody's identifier"
        else:
            text += f"; {matcher} also which of its own people each other party has" if parties > 2 else ""
            text += "; this coordinator learned the lengths and the number of common people"
        console.print(text, soft_wrap=True)
    console.print(
        f"{result['seconds']:.1f} s; {readable_size(result['uplink_bytes'])} from the parties, "
        f"{readable_size(result['downlink_bytes'])} to them",
        soft_wrap=True,
    )
