"""The two classes that a job of NVIDIA FLARE names: the coordinator at its server, a party at its clients.

A job says what to train. Whose data, under which policy and on which ledger is the site's to say: in its own file,
`local/NAME.toml` in the workspace of the FLARE client NAME, which no job can write or name.

A FLARE client lets its server read every file that the client's account can read, whatever the site forbids: rights are
checked where the server asks for it. So records, ledger and key belong to another account: `sottovoce party` runs
there, and the client is a relay to it.
"""

from __future__ import annotations

import contextlib
import json
import time
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sottovoce.app import outputs, previews, runs, sources
from sottovoce.app.flare_files import check_job
from sottovoce.app.job_file import OutputTable
from sottovoce.app.jobs import Job, PartyJob, load_job
from sottovoce.app.texts import harmless
from sottovoce.errors import InputError, SottovoceError
from sottovoce.federation.secure_columns.dealer import Dealer
from sottovoce.files import open_to_append, parse_file, write_data, write_text
from sottovoce.gate.frames import decode, peek
from sottovoce.gate.outgoing import Outgoing
from sottovoce.transports.base import Endpoint, Transport
from sottovoce.transports.certificates import COORDINATOR, Credentials
from sottovoce.transports.identity import Certified
from sottovoce.transports.nvflare_wire import CoordinatorEnd, PartyEnd, Site, answering

_FOLDER: Final = "sottovoce"  # of the server: below a job's run its results, below the workspace what outlives a job


class Coordinator(CoordinatorEnd):
    """Trains as the file `job` of the FLARE job says, and leaves model, report and page among the job's results.

    A fit that was stopped goes on when the same job is submitted again, unless it is to `restart`.
    """

    def __init__(self, job: str, restart: bool = False) -> None:
        super().__init__()
        self._file = job
        self._restart = restart

    def coordinate(self, site: Site, wire: Callable[..., Any]) -> None:
        if Path(self._file).name != self._file:
            raise InputError(
                f"job={self._file!r} is no name of a file of the FLARE job; `sottovoce nvflare job` makes one."
            )
        folder = site.root / _FOLDER  # it outlives this run: receipts and the state of a fit are beside the job
        folder.mkdir(exist_ok=True)
        for path in site.app.glob("*.toml"):
            write_data(folder / path.name, path.read_bytes(), path.name)
        job = load_job(folder / self._file)
        table = check_job(job)
        results = site.run / _FOLDER
        results.mkdir(exist_ok=True)
        try:
            with contextlib.closing(wire(table.ends, timeout=table.timeout)) as opened:
                opened.wait_for_parties(table.wait)
                train(job, opened, results, self.logger.info, restart=self._restart)
        except SottovoceError as error:
            write_text(results / "error.txt", f"{error}\n", "error.txt")
            raise


def train(job: Job, wire: Transport, folder: Path, say: Callable[[str], None], *, restart: bool = False) -> None:
    """Run a job over a wire that is there already; its results go into the folder, whatever its [output] says."""
    placed = job.model_copy(update={"output": OutputTable(model=str(folder.resolve() / f"{job.path.stem}.json"))})
    with outputs.hold_run(job, restart=restart) as state:
        outputs.check_outputs(placed)
        say(state.resumed or "a new fit")
        texts = state.journal.outputs
        if not texts:
            with runs.open_job(job, say, state, wire=wire) as run:
                for note in previews.make_preview(run).notes:
                    say(f"note: {note}")
                start = time.perf_counter()
                model = runs.fit_model(run)
                seconds = time.perf_counter() - start
            texts = outputs.make_texts(model, {}, {}, seconds)
            state.journal.keep_outputs(texts)
        outputs.write_texts(placed, texts)
        state.journal.remove()


class Party(PartyEnd):
    """What the site's own file says: a relay to a party or a dealer under another account, or one of them here.

        [relay]         listen, certificates: `sottovoce party`, or `sottovoce dealer`, connects there
        [party] ...     as for `sottovoce party`, and federation.trust_server = true
        [dealer] name   likewise

    Here a party signs by the certificate of FLARE's provisioning, unless federation.certificates names a folder.
    """

    def opened(self, site: Site) -> Callable[[bytes], bytes]:
        """By the first of these tables that is there."""
        path = site.local / f"{site.name}.toml"
        tables = parse_file(path, tomllib.loads, "TOML", "the site's holder writes it.")
        _tell(site, "a job starts")
        if "relay" in tables:
            return _relay(site, path, tables["relay"])
        federation = tables.pop("federation", {})
        if federation.get("trust_server") is not True:
            raise InputError(
                f"{path}: FLARE lets its server read every file that this account can read, also records and keys. Use "
                "[relay], and `sottovoce party` under another account; or say federation.trust_server = true, if the "
                "server's operator may read them."
            )
        own = federation.get("certificates")
        if own is None:
            credentials = Credentials.provisioned(site.startup, site.name)
        else:
            credentials = Credentials.load(path.parent / own, site.name)
        if "dealer" in tables:
            return answering(Dealer(site.name), Certified(credentials))
        tables["federation"] = {"coordinator": "nvflare", "certificates": own or str(site.startup)}
        job = PartyJob.load(path, tables)
        if job.party.name != site.name:
            raise InputError(f"{path}: party.name = {job.party.name!r} is not the name of this site, {site.name!r}.")
        holder = sources.read_holder(job, sources.policy_of(job))
        return answering(_Told(holder, site), Certified(credentials, job.peers))

    def failed(self, site: Site, error: Exception) -> None:
        """Into the site's own log, which FLARE knows nothing of."""
        ours = isinstance(error, SottovoceError)
        _tell(site, f"failed: {error}" if ours else "failed: " + "".join(traceback.format_exception(error)))


def _relay(site: Site, path: Path, table: Any) -> Callable[[bytes], bytes]:
    """A way to a party that connects to this process as it would to a coordinator.

    Guarantee: it is the party of the site's name, known by its certificate (`GrpcCoordinator`). What it says was made
    by its gate, and is passed on as it is.
    """
    from sottovoce.transports.grpc_wire import GrpcCoordinator

    if type(table) is not dict or not {"listen", "certificates"} <= set(table) <= {"listen", "certificates", "timeout"}:
        raise InputError(f"{path}: [relay] has listen, certificates and, if wanted, timeout.")
    credentials = Credentials.load(path.parent / str(table["certificates"]), COORDINATOR)
    wire = GrpcCoordinator(str(table["listen"]), (site.name,), credentials, timeout=float(table.get("timeout", 60)))
    wire.wait_for_parties()
    return lambda frame: wire.exchange({site.name: frame})[site.name]


class _Told:
    """A party that tells its holder, in the site's own log, what was agreed to and what was refused."""

    def __init__(self, party: Endpoint, site: Site) -> None:
        self.name, self.identify, self._party, self._site = party.name, party.identify, party, site

    def handle(self, request: bytes) -> Outgoing:
        """Pass the frame on; the kind of the answer tells what happened."""
        outgoing = self._party.handle(request)
        kind, asked = peek(outgoing.data)[0], peek(request)[0]
        started = kind == "accept" and asked == "plan" and decode(request).query == ""
        if kind == "refuse":
            _tell(self._site, f"refused: {harmless(json.loads(decode(outgoing.data).text)['refused'], keep='')}")
        elif started or kind == "done":
            what = "agreed to" if kind == "accept" else "done with"
            _tell(self._site, f"{what} plan {decode(request).plan.hex()[:12]}")
        return outgoing


def _tell(site: Site, text: str) -> None:
    """A line of `local/NAME.log`, which the holder alone reads."""
    path = site.local / f"{site.name}.log"
    with open_to_append(path, 0o600) as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
