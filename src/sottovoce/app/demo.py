"""The demonstration: four clinics train a model together and their ledgers refuse a second training.

Everything is synthetic and everything is real: the records are drawn by arithmetic and are about nobody; the
processes, the certificates, the connections, the noise and the ledgers are those of any other run.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sottovoce.app import outputs, runs
from sottovoce.app.cli.console import bar, show_promises, show_summary, table
from sottovoce.app.jobs import Job, load_job
from sottovoce.app.texts import render
from sottovoce.errors import BudgetError, InputError, WireError
from sottovoce.estimators import PrivateLinearModel, PrivateLogisticRegression
from sottovoce.estimators.progress import progress_bar
from sottovoce.lab import synthetic
from sottovoce.lab.synthetic import Clinic
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import COORDINATOR

if TYPE_CHECKING:
    from rich.console import Console

    Processes = Mapping[str, subprocess.Popen[bytes]]

RECORDS, TEST_SHARE, EPSILON, DELTA = 12_500, 0.2, 1.0, 1e-5
TOTAL, SMALLER = 1.2, 0.3  # pays for one training of epsilon 1 and not for two; what the rest still pays for
_MARK: Final = ".sottovoce-demo"
_PORTS: Final = range(20_000, 32_000)  # below those that systems give to whoever asks for any


def run(folder: Path, console: Console, *, keep: bool = False) -> None:
    """Run the demonstration in `folder`; whatever happens, its processes end with it."""
    train, test = list[Clinic](), list[Clinic]()
    for clinic in synthetic.clinics(4, RECORDS, seed=2):
        cut = round(len(clinic.y) * (1 - TEST_SHARE))
        train.append(Clinic(clinic.name, clinic.X[:cut], clinic.y[:cut]))
        test.append(Clinic(clinic.name, clinic.X[cut:], clinic.y[cut:]))
    _clear_folder(folder)
    accounts = _prepare(folder, train, _pool_clinics(test))
    _heading(console, "Four clinics, one model, no record leaves its clinic")
    console.print(
        "Synthetic patients, drawn by arithmetic and about nobody: who is readmitted within 30 days?\n"
        f"Each clinic is a process with its own records, certificate and ledger (epsilon {TOTAL:g} in all).\n"
    )
    listing = table("clinic", "records>", "features>", "file", "ledger")
    for name, X in ((clinic.name, clinic.X) for clinic in train):
        listing.add_row(name, f"{len(X):,}", f"{X.shape[1]}", f"{name}.csv", f"{name}.db")
    console.print(listing, "\nStarting the clinics and waiting for them to connect ...", sep="\n")
    job = load_job(folder / "job.toml")
    with _start_clinics(folder, list(accounts)) as processes:
        before = {name: account.balance() for name, account in accounts.items()}
        _wait_for_start(processes, job)
        with runs.open_job(job, lambda _: None) as opened:  # as `sottovoce fit job.toml` does it
            start = time.perf_counter()
            with progress_bar("Training over mutual TLS", console) as advance:
                model = runs.fit_model(opened, advance)
            seconds = time.perf_counter() - start
        after = {name: account.balance() for name, account in accounts.items()}
        texts = outputs.make_texts(model, before, after, seconds)  # their ledgers happen to be at hand
        paths = outputs.write_texts(job, texts)
        show_summary(model, paths, {}, seconds, console)
        _heading(console, "What is promised")
        show_promises(model.privacy_, console)
        _heading(console, "What it is worth")
        _show_worth(model, train, _pool_clinics(test), console)
        _heading(console, "The ledgers")
        listing = table("clinic", "total epsilon>", "left before>", "left now>", "used")
        for name, now in after.items():
            used = f"{bar(now.share, console)} {100 * now.share:.0f}%"
            listing.add_row(name, f"{now.total:g}", f"{before[name].left:.3g}", f"{now.left:.3g}", used)
        console.print(listing, f"\nA second training of epsilon {EPSILON:g} is asked for ...", sep="\n")
        _require_running(processes, job)
        try:
            with runs.open_job(job, lambda _: None) as opened:
                runs.fit_model(opened)
        except BudgetError as error:
            console.print(f"REFUSED: {error}", style="bold")
            console.print("Nothing was released and nothing was charged.")
        else:
            raise AssertionError("the second training must be refused")
        if any(account.balance() != after[name] for name, account in accounts.items()):
            raise AssertionError("a refused training must not be charged")
        _heading(console, "What to try next")
        _suggest(folder, console, keep=keep)
        with contextlib.suppress(KeyboardInterrupt):
            while keep and all(process.poll() is None for process in processes.values()):
                time.sleep(0.2)


def _clear_folder(folder: Path) -> None:
    """An empty folder; only what an earlier demo made is ever removed."""
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        if not (folder / _MARK).is_file():
            raise InputError(f"folder={str(folder)!r} has files that no demo made; give another one with --folder.")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).write_text("made by `sottovoce demo`, which may remove this folder\n")
    except OSError as error:
        raise InputError(f"folder={str(folder)!r} cannot be written ({error.strerror}); give another one.") from None


def _free_port() -> int:
    """One that is free now, and that no connection and no page takes before it is listened at."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise InputError(f"no port of 127.0.0.1 from {_PORTS[0]} to {_PORTS[-1]} is free; end other programs.")


def _prepare(folder: Path, train: Sequence[Clinic], test: Clinic) -> dict[str, Account]:
    """Make everything a real federation would have: files, ledgers, certificates, jobs."""
    accounts, records = dict[str, Account](), {clinic.name: len(clinic.y) for clinic in train}
    values = {"port": _free_port(), "label": synthetic.LABEL, "features": synthetic.FEATURES, "records": records}
    create_authority(folder / "certificates")
    issue(folder / "certificates", COORDINATOR)
    for clinic in train:
        issue(folder / "certificates", clinic.name)
        synthetic.write_csv(clinic, folder / f"{clinic.name}.csv")
        accounts[clinic.name] = Ledger.create(folder / f"{clinic.name}.db").open("patients", TOTAL, DELTA)
        (folder / f"{clinic.name}.toml").write_text(render("demo/party.toml", name=clinic.name, **values))
    synthetic.write_csv(test, folder / "test.csv")
    for job, epsilon in (("job", EPSILON), ("smaller", SMALLER)):  # at the running clinics, and in one process
        text = render("demo/job.toml", epsilon=epsilon, delta=DELTA, remote=job == "job", **values)
        (folder / f"{job}.toml").write_text(text)
    return accounts


@contextlib.contextmanager
def _start_clinics(folder: Path, names: Sequence[str]) -> Iterator[Processes]:
    """The clinics, each a process; they end with the block, however it ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started: dict[str, subprocess.Popen[bytes]] = {}
    ended = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with _delay_signals():  # a process that was started and not yet noted would be left behind
            for name in names:
                command = [sys.executable, "-m", "sottovoce", "party", "--job", str(folder / f"{name}.toml")]
                with (folder / f"{name}.log").open("wb") as log:
                    started[name] = subprocess.Popen(  # noqa: S603
                        command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
                    )
        yield started
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        signal.signal(signal.SIGTERM, ended)


@contextlib.contextmanager
def _delay_signals() -> Iterator[None]:
    """Interrupts and terminations take effect at the end of the block."""
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda number, _: came.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number in came:
            signal.raise_signal(number)


def _wait_for_start(processes: Processes, job: Job) -> None:
    """Until every clinic has read its records and connects, however long that takes; one that fails is told at once."""
    while not all("connecting to" in job.resolve(f"{name}.log").read_text() for name in processes):
        _require_running(processes, job)
        time.sleep(0.05)


def _require_running(processes: Processes, job: Job) -> None:
    for name, process in processes.items():
        if process.poll() is not None:
            log = job.resolve(f"{name}.log")
            raise WireError(f"the process of {name} ended with code {process.returncode}; {log} says why.")


def _show_worth(model: PrivateLinearModel, train: Sequence[Clinic], test: Clinic, console: Console) -> None:
    """Test records are synthetic and held out, so that a metric of them may be shown."""
    everybody, y, rate = _pool_clinics(train), test.y == 1, float(np.mean(test.y))
    declared: dict[str, Any] = {"feature_ranges": synthetic.FEATURE_RANGES, "classes": (0.0, 1.0)}
    best = PrivateLogisticRegression(math.inf, **declared).fit(everybody.X, everybody.y)
    models: dict[str, PrivateLinearModel] = {"together, without privacy": best, "together, as trained above": model}
    for clinic in train:
        alone = PrivateLogisticRegression(EPSILON, DELTA, **declared)
        models[f"{clinic.name} alone"] = alone.fit(clinic.X, clinic.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays have no column names; these are in the model's order
        scores = {name: np.asarray(each.decision_function(test.X)) for name, each in models.items()}
    scores["the same guess for everybody"] = np.full(len(y), math.log(rate / (1 - rate)))
    losses = {name: float(np.mean(np.logaddexp(0, np.where(y, -score, score)))) for name, score in scores.items()}
    least, *_, guess = losses.values()
    listing = table("model", "epsilon>", "accuracy>", "log-loss>", "learned")
    listing.columns[0].no_wrap = True
    for name, score in scores.items():
        epsilon = f"{EPSILON:g}" if name in models and models[name] is not best else "none"
        learned = max(guess - losses[name], 0.0) / (guess - least)
        shown = f"{bar(learned, console)} {learned:.0%}"
        listing.add_row(name, epsilon, f"{np.mean((score > 0) == y):.3f}", f"{losses[name]:.3f}", shown)
    console.print(listing)
    console.print(
        f"\nMeasured on {len(y):,} synthetic records that no training saw: that is why it may be printed.\n"
        "Learned: how far the log-loss comes from the guess toward the model without privacy.\n"
        "All but the second row were computed for this table alone, beside the ledgers."
    )


def _suggest(folder: Path, console: Console, *, keep: bool) -> None:
    program = "sottovoce"  # how this very program can be called again
    if not shutil.which(program):
        python = f"{shlex.quote(sys.executable)} -m sottovoce"
        program = shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "sottovoce" else python
    shown = ("clinic-1.db", "job.json", "test.csv", "job.toml", "smaller.toml")
    ledger, model, test, job, smaller = (shlex.quote(str(folder / name)) for name in shown)
    commands = {
        f"ledger show {ledger}": "what a clinic has left",
        f"ledger history {ledger}": "what it was charged for",
        f"predict {model} {test} --proba": "use the model",
        f"plan {job}": "what a training promises and costs",
        f"fit {smaller}": f"epsilon {SMALLER:g} still fits; in one process",
        **({f"fit {job}": "ask the running clinics again"} if keep else {}),
    }
    for command, why in commands.items():
        console.print(f"  {program} {command}\n      {why}", soft_wrap=True)
    console.print(f"  open {folder / 'job.privacy.html'} in a browser\n      the promise, readable and printable")
    if keep:
        console.print("The clinics keep running. Ctrl-C ends them.")


def _pool_clinics(clinics: Sequence[Clinic]) -> Clinic:
    return Clinic("all", np.concatenate([each.X for each in clinics]), np.concatenate([each.y for each in clinics]))


def _heading(console: Console, text: str) -> None:
    console.print()
    console.rule(text, align="left", style="none")
