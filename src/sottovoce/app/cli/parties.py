"""`sottovoce party` and `sottovoce certificates`: the two ends of a federation over gRPC."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli.console import AsJson, out, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from sottovoce.app.jobs import PartyJob
    from sottovoce.door.frames import Frame
    from sottovoce.door.outgoing import Outgoing
    from sottovoce.federation.party import Party
    from sottovoce.privacy.ledger import Account
    from sottovoce.transports.identity import Identity


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.", show_default=False)],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The parties.", show_default=False)],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name or address of the coordinator; repeat it for more. Default: localhost, 127.0.0.1."
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 365,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Put those that are replaced on the list of revoked ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make certificates: an authority, if the folder has none, the coordinator's, and one for each party.

    Give each party `authority.pem` and its own two files. `authority.key` stays with you. A certificate that is
    replaced is valid until its own end, unless `--revoke` puts it into `revoked.pem`: give that file to everybody too.

    - `sottovoce certificates certs north south`
    - `sottovoce certificates certs north --revoke`
    - `sottovoce certificates certs north south --host trials.example.org`
    """
    from sottovoce.transports import certificates
    from sottovoce.transports.certificates import AUTHORITY, COORDINATOR, check_name, create_authority, issue

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
    from sottovoce.transports.certificates import pin_in

    for path in certificates:
        name, found = pin_in(path)
        out().print(f'{name} = "{found}"', soft_wrap=True, markup=False, highlight=False)


def party(
    job: Annotated[Path | None, typer.Option(help="A party file in TOML; or use the options below.")] = None,
    name: Annotated[str | None, typer.Option(help="The party's name, as in its certificate.")] = None,
    file: Annotated[str | None, typer.Option(help="Its records: CSV, Parquet or LIBSVM.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column; none if another party holds the labels.")] = None,
    ledger: Annotated[str | None, typer.Option(help="The ledger that pays for every answer.")] = None,
    account: Annotated[str | None, typer.Option(help="The account, if the ledger has several.")] = None,
    coordinator: Annotated[str | None, typer.Option(help="host:port of the coordinator.")] = None,
    certificates: Annotated[str | None, typer.Option(help="The folder with this party's certificate.")] = None,
    max_epsilon: Annotated[float | None, typer.Option(help="Refuse a plan that costs more.")] = None,
    predict_for: Annotated[
        list[str] | None,
        typer.Option(help="Serve joint predictions, and no training, for this recipient; repeat it for more."),
    ] = None,
    predictions: Annotated[
        str | None, typer.Option(help="Serve joint predictions, and write here those that this party is to learn.")
    ] = None,
    n_jobs: Annotated[
        int | None, typer.Option(help="Threads for sums over its records; -1 is all processors, the default 1.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the first training.")] = False,
    patience: Annotated[float, typer.Option(help="Give up after so many seconds without a coordinator.")] = 3600.0,
) -> None:
    """Serve a data holder: connect to the coordinator, answer what the ledger can pay for, until stopped.

    The records stay in this process; sums with noise leave it. Ctrl-C stops it; nothing is lost by that.

    - `sottovoce party --job north.toml`
    - `sottovoce party --name north --file north.csv --label readmitted --ledger north.db
      --coordinator trials.example.org:7443 --certificates certs --max-epsilon 1`

    A party file has the tables [party] (name, file, label, id, ledger, account, n_jobs), [federation] (coordinator,
    certificates) and, if wanted, [policy] (max_epsilon, max_delta), [peers] (pins of other parties), [bounds] and
    [schema] (of this party's columns). Without a label every column is a feature: that is for data split by columns
    where another party holds the labels.

    With `--predict-for` or `--predictions` (policy.predict_for, party.predictions) the file has the people of a joint
    prediction, and the ledger tells where the party's part of the model is; you approve it with
    `sottovoce models approve`. No plan is then served, unless policy.predict_training says that these people may be
    both trained on and predicted for.
    """
    from sottovoce.app.jobs import load_party_job, party_job
    from sottovoce.errors import InputError

    tables: dict[str, dict[str, Any]] = {
        "party": {
            "name": name,
            "file": file,
            "label": label,
            "ledger": ledger,
            "account": account,
            "predictions": predictions,
            "n_jobs": n_jobs,
        },
        "federation": {"coordinator": coordinator, "certificates": certificates},
        "policy": {"max_epsilon": max_epsilon, "predict_for": predict_for},
    }
    given = {table: {key: value for key, value in keys.items() if value is not None} for table, keys in tables.items()}
    if job is not None and any(given.values()):
        raise InputError("--job: the party file says it all; give it, or the other options, not both.")
    if job is None and not any(given.values()):
        raise InputError("say who this party is: --job FILE, or --name, --file, --label, --ledger, --coordinator, ...")
    serve(load_party_job(job) if job is not None else party_job(given, Path("options")), once=once, patience=patience)


_REST = 1.5  # seconds after a training: by then its coordinator has closed, and the next one can be looked for


def serve(job: PartyJob, *, once: bool, patience: float) -> None:
    """Answer the coordinator until told to stop (SIGINT, SIGTERM), or with `once` until a training has ended."""
    from sottovoce.app import sources
    from sottovoce.app.texts import sealed_balance
    from sottovoce.data.threads import check_jobs
    from sottovoce.federation.policy import Policy
    from sottovoce.files import check_writable
    from sottovoce.transports.certificates import Credentials
    from sottovoce.transports.grpc_wire import serve_party

    source, console = job.party, out()
    credentials = Credentials.load(job.resolve(job.federation.certificates), source.name)
    account = sources.source_account(source, job.resolve)
    bounds = None
    schema = job.known_schema
    if job.bounds is not None and schema is not None:
        bounds = job.bounds.declare(schema.feature_names)
    elif job.bounds is not None:
        path = job.resolve(source.file)
        shape = sources.file_shape(path, source.label, source.features, labelled=source.has_label, left_out=source.id)
        bounds = job.bounds.declare(shape[1])
    policy = Policy(
        max_epsilon=job.policy.max_epsilon,
        max_delta=job.policy.max_delta,
        bounds=bounds,
        predict_for=job.predict_for,
        predict_training=job.policy.predict_training,
        tell_budget=job.policy.tell_budget,
        approve_models=job.policy.approve_models,
        sealed=job.policy.sealed,
        max_epsilon_pooled=job.policy.max_epsilon_pooled,
        trains=job.policy.predict_training or not job.predict_for,
    )
    results = None if source.predictions is None else job.resolve(source.predictions)
    if results is not None:
        check_writable(results, "party.predictions")
    if schema is None:
        holder = sources.read_party(source.name, source, job.resolve, policy, labelled=source.has_label)
    else:
        holder = sources.read_table_party(source.name, source, job.resolve, schema, policy)
    check_jobs(source.n_jobs)
    holder.n_jobs = source.n_jobs
    facts = {fact.name: fact.value for fact in holder.facts(classes=False)}
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def say(text: str) -> None:
        console.print(f"{source.name}: {text}", soft_wrap=True)

    say(f"{facts['records']:,} records, {facts['features']} features; the rows stay in this process")
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
    endpoint = _Announced(holder, say, account, results)
    while not stop.is_set():
        serve_party(
            endpoint,
            job.federation.coordinator,
            credentials,
            stop=stop,
            give_up_after=patience,
            on_change=say,
            pins=job.peers,
        )
        if once:
            break
        stop.wait(_REST)
    say("stopped")


def helper(
    job: Annotated[Path, typer.Option(help="A helper file in TOML.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="End after the first training.")] = False,
    patience: Annotated[float, typer.Option(help="Give up after so many seconds without a coordinator.")] = 3600.0,
) -> None:
    """Serve a helper of sealed sums: it deals random numbers to the parties, and has no records and no ledger.

    Run it where neither the coordinator nor a party has its hands: by columns a helper that pools with a party reads
    all columns. A party takes sealed columns with a helper whose key it has pinned. Restarted in the middle of a run,
    it has lost that run.

    - `sottovoce helper --job notary.toml`

    A helper file has the tables [helper] (name) and [federation] (coordinator, certificates); the coordinator's job
    names it as federation.helper, and it has a certificate as a party has.
    """
    from sottovoce.app.jobs import load_helper_job
    from sottovoce.federation.helper import Helper
    from sottovoce.transports.certificates import Credentials
    from sottovoce.transports.grpc_wire import serve_party

    said, console, stop = load_helper_job(job), out(), threading.Event()
    name, address = said.helper.name, said.federation.coordinator
    credentials = Credentials.load(said.resolve(said.federation.certificates), name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def say(text: str) -> None:
        console.print(f"{name}: {text}", soft_wrap=True)

    say(f"a helper, without records; connecting to {address}; Ctrl-C stops")
    end = Helper(name)
    while not stop.is_set():
        serve_party(end, address, credentials, stop=stop, give_up_after=patience, on_change=say)
        if once:
            break
        stop.wait(_REST)
    say("stopped")


class _Announced:
    """A party that tells its holder, at this terminal, what was agreed to and what was refused."""

    def __init__(
        self, party: Party, say: Callable[[str], None], account: Account | None, predictions: Path | None
    ) -> None:
        self.name = party.name
        self._party = party
        self._say = say
        self._account = account
        self._predictions = predictions

    def identify(self, identity: Identity) -> None:
        """Pass it on."""
        self._party.identify(identity)

    def handle(self, request: bytes) -> Outgoing:
        """Pass the frame on; the kind of the answer tells what happened."""
        import json

        from sottovoce import algorithms
        from sottovoce.door.frames import decode, peek
        from sottovoce.plan.plan import Plan
        from sottovoce.plan.sealed_words import assumed, broken
        from sottovoce.privacy.accounting import epsilon_of
        from sottovoce.privacy.relation import inside

        outgoing = self._party.handle(request)
        kind, _ = peek(outgoing.data)
        if kind in ("accept", "answer") and peek(request)[0] == "predict":
            self._predicted(decode(request))
        elif kind == "accept" and peek(request)[0] == "plan" and (asked := decode(request)).query == "":
            plan = Plan.from_json(asked.text)
            form = algorithms.of(plan)
            events = form.pricing.events(form, plan, plan.relation, self.name)
            epsilon = epsilon_of(events, inside(plan.delta), plan.relation)
            cost = f"{plan.algorithm}, costs epsilon {epsilon:.4g} at delta {plan.delta:g}, {plan.relation}"
            left = f"; epsilon {self._account.balance().left:.4g} is left" if self._account else ""
            self._say(f"agreed to plan {asked.plan.hex()[:12]} ({cost}){left}")
            if rests := assumed(plan):
                self._say(f"its promise rests on sealed sums, and holds if {'; if '.join(rests)}")
                self._say(broken(plan, algorithms.pooled(plan)))
        elif kind == "refuse":
            self._say(f"refused: {json.loads(decode(outgoing.data).text)['refused']}")
        elif kind == "done":
            self._done(decode(request).plan)
        return outgoing

    def _done(self, plan: bytes) -> None:
        """Tell of the end of a run and, by columns, of the model that it left."""
        models, name = self._party.predictor.models, plan.hex()[:12]
        self._say(f"plan {name} is done" if plan else "the coordinator asks nothing more")
        if plan and models.get(plan) is not None and not models.approved(plan) and self._account is not None:
            self._say(
                f"a part of its model is kept here. To predict with it, look at it (sottovoce models show "
                f"{self._account.path} {name}), then approve it (sottovoce models approve ...)"
            )

    def _predicted(self, asked: Frame) -> None:
        """Tell of a joint prediction and, where this party is the recipient, write it down; then it is acknowledged."""
        from sottovoce.app.cli.prediction import csv_text
        from sottovoce.files import write_text

        found = self._party.predictions
        if asked.query != self.name:
            self._say(f"took part in a prediction for {asked.query} by plan {asked.plan.hex()[:12]}")
        elif found is not None and self._predictions is not None:
            table = found.table(proba=found.plan.loss.name == "logistic")
            write_text(self._predictions, csv_text(table), "party.predictions")
            self._say(f"predictions by plan {asked.plan.hex()[:12]} are in {self._predictions}")
