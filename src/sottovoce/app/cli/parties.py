"""`sottovoce party` and `sottovoce helper`: ends that serve until they are stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli.console import out, seconds_text
from sottovoce.app.cli.viewing import NO_OPTIONS, LogJson, NoView, ViewOptions, ViewPort, watching
from sottovoce.app.settings import JOB

if TYPE_CHECKING:
    from collections.abc import Callable

    from sottovoce.app.jobs import PartyJob
    from sottovoce.app.view.watch import Watch

Once = Annotated[bool, typer.Option("--once", help="End after the first training.")]
Patience = Annotated[float, typer.Option(help="Give up after so many seconds without a coordinator.")]


def party(
    job: Annotated[
        Path | None, typer.Option(help="A party file in TOML; or use the options below.", envvar=JOB)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The party's name, as in its certificate.")] = None,
    file: Annotated[str | None, typer.Option(help="Its records: CSV, Parquet or LIBSVM.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column; none if another party holds the labels.")] = None,
    ledger: Annotated[str | None, typer.Option(help="The ledger that pays for every answer.")] = None,
    account: Annotated[str | None, typer.Option(help="The account, if the ledger has several.")] = None,
    coordinator: Annotated[str | None, typer.Option(help="host:port of the coordinator.")] = None,
    certificates: Annotated[str | None, typer.Option(help="The folder with this party's certificate.")] = None,
    max_epsilon: Annotated[float | None, typer.Option(help="Refuse a plan that costs more.")] = None,
    n_jobs: Annotated[
        int | None, typer.Option(help="Threads for sums over its records; -1 is all processors, the default 1.")
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
    from sottovoce.app.jobs import PartyJob
    from sottovoce.errors import InputError

    tables: dict[str, dict[str, Any]] = {
        "party": {
            "name": name,
            "file": file,
            "label": label,
            "ledger": ledger,
            "account": account,
            "n_jobs": n_jobs,
        },
        "federation": {"coordinator": coordinator, "certificates": certificates},
        "policy": {"max_epsilon": max_epsilon},
    }
    given = {table: {key: value for key, value in keys.items() if value is not None} for table, keys in tables.items()}
    if job is not None and any(given.values()):
        raise InputError("--job: the party file says it all; give it, or the other options, not both.")
    if job is None and not any(given.values()) and "SOTTOVOCE_PARTY_NAME" not in os.environ:
        raise InputError("say who this party is: --job FILE, or --name, --file, --label, --ledger, --coordinator, ...")
    loaded = PartyJob.load(job) if job is not None else PartyJob.load(Path("options"), given)
    serve(loaded, ViewOptions(view, no_view, log_json), once=once, patience=patience)


_REST = 1.5  # seconds after a training: by then its coordinator has closed, and the next one can be looked for


def serve(job: PartyJob, asked: ViewOptions = NO_OPTIONS, *, once: bool, patience: float) -> None:
    """Answer the coordinator until told to stop (SIGINT, SIGTERM), or with `once` until a training has ended."""
    from sottovoce.app.view.watch import Watch

    name, table, console = job.party.name, asked.over(job.view), out()

    def say(text: str) -> None:
        if table.log != "-":
            console.print(f"{name}: {text}", soft_wrap=True)

    with watching(Watch("party", name, meets_at=job.federation.coordinator), table, job.resolve, say) as watch:
        _serve(job, watch, say, once=once, patience=patience)


def _serve(job: PartyJob, watch: Watch, say: Callable[[str], None], *, once: bool, patience: float) -> None:
    from sottovoce.app import sources
    from sottovoce.app.holding import holder_of
    from sottovoce.app.superuser import warn_as_root
    from sottovoce.app.texts import sealed_balance
    from sottovoce.app.view.watched import WatchedEnd
    from sottovoce.data.resources import Resources
    from sottovoce.files import check_writable
    from sottovoce.transports.certificates import COORDINATOR, Credentials
    from sottovoce.transports.grpc_wire import serve_party

    warn_as_root()
    source = job.party
    credentials = Credentials.load(job.resolve(job.federation.certificates), source.name)
    account = sources.source_account(source, job.resolve)
    policy = sources.policy_of(job)
    results = None if source.predictions is None else job.resolve(source.predictions)
    if results is not None:
        check_writable(results, "party.predictions")
    holder = holder_of(job, policy)
    facts = {fact.name: fact.value for fact in holder.facts(classes=False)}
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    say(f"{facts['records']:,} records, {facts['features']} features; the rows stay in this process")
    if job.set_elsewhere:
        say(job.set_elsewhere)
    holder.aligner.introduce(say)
    if job.predict_for:
        how = "also" if policy.trains else "not"
        who = ", ".join(job.predict_for)
        say(f"these people are predicted for, {how} trained on; who may learn the results: {who}")
    elif not source.has_label:
        say("no label: every column is a feature, and only a plan in which another party holds the labels is served")
    say(f"ledger {account.path}: epsilon {account.balance().left:.4g} left" if account else "no ledger")
    if account and (rests := account.balance().rests_on):
        say(sealed_balance(sum(bool(known.rests_on) for known in account.book().reservations), rests))
    say(f"connecting to {job.federation.coordinator}; Ctrl-C stops")
    holder.holder.resources = Resources(progress=rows_told(say)).over(holder.holder.resources)
    endpoint = WatchedEnd(holder, watch, account, results)
    watch.expect(COORDINATOR)
    while not stop.is_set():
        serve_party(
            endpoint,
            job.federation.coordinator,
            credentials,
            stop=stop,
            give_up_after=patience,
            on_change=watch.changed,
            pins=job.peers,
        )
        if once:
            break
        stop.wait(_REST)
    say("stopped")


def rows_told(say: Callable[[str], None], every: float = 10.0) -> Callable[[str, int, int], None]:
    """Tell how far work on rows has come that takes long: at most so often, with the time left."""
    begun: dict[str, tuple[float, float]] = {}  # when it began, and when it was told last

    def hear(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, last = begun.setdefault(what, (now, now))
        if done >= total:
            del begun[what]
            if now - start > every:
                say(f"{what}: done in {seconds_text(now - start)}")
        elif now - last > every and done:
            begun[what] = start, now
            left = seconds_text((now - start) * (total - done) / done)
            say(f"{what}: {100 * done // total}% of {total:,} records, {left} left")

    return hear


def helper(
    job: Annotated[Path, typer.Option(help="A helper file in TOML.", envvar=JOB, show_default=False)],
    keep: Annotated[
        Path | None,
        typer.Option(help="A folder for its keys of a run, to go on after a restart.", show_default=False),
    ] = None,
    once: Once = False,
    patience: Patience = 3600.0,
    view: ViewPort = None,
    no_view: NoView = False,
    log_json: LogJson = None,
) -> None:
    """Serve a helper of sealed sums: it deals random numbers to the parties, and has no records and no ledger.

    Run it where neither the coordinator nor a party has its hands: by columns a helper that pools with a party reads
    all columns. A party takes sealed columns with a helper whose key it has pinned. Restarted in the middle of a run,
    it has lost that run, unless its keys are in a folder (--keep), which is empty again once the run is over. Who
    reads that folder and has what one party has seen has all columns of the run.

    - `sottovoce helper --job notary.toml`

    A helper file has the tables [helper] (name) and [federation] (coordinator, certificates); the coordinator's job
    names it as federation.helper, and it has a certificate as a party has.
    """
    from sottovoce.app.jobs import load_helper_job
    from sottovoce.app.superuser import warn_as_root
    from sottovoce.app.view.watch import Watch
    from sottovoce.app.view.watched import WatchedEnd
    from sottovoce.federation.helper import Helper
    from sottovoce.transports.certificates import COORDINATOR, Credentials
    from sottovoce.transports.grpc_wire import serve_party

    said, console, stop = load_helper_job(job), out(), threading.Event()
    table = ViewOptions(view, no_view, log_json).over(said.view)
    name, address = said.helper.name, said.federation.coordinator
    warn_as_root()
    credentials = Credentials.load(said.resolve(said.federation.certificates), name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def say(text: str) -> None:
        if table.log != "-":
            console.print(f"{name}: {text}", soft_wrap=True)

    with watching(Watch("helper", name, meets_at=address), table, said.resolve, say) as watch:
        say(f"a helper, without records; connecting to {address}; Ctrl-C stops")
        if said.set_elsewhere:
            say(said.set_elsewhere)
        end = WatchedEnd(Helper(name, keep=keep), watch)
        watch.expect(COORDINATOR)
        while not stop.is_set():
            serve_party(end, address, credentials, stop=stop, give_up_after=patience, on_change=watch.changed)
            if once:
                break
            stop.wait(_REST)
        say("stopped")
