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
from sottovoce.app.cli.console import bar, show_promises, table
from sottovoce.app.cli.training import show_summary
from sottovoce.app.jobs import Job, load_job
from sottovoce.errors import BudgetError, InputError, WireError
from sottovoce.estimators import PrivateLinearModel, PrivateLogisticRegression
from sottovoce.estimators.progress import progress_bar
from sottovoce.lab import synthetic
from sottovoce.privacy.ledger import Account, Balance, Ledger
from sottovoce.transports.certificates import COORDINATOR, create_authority, issue

if TYPE_CHECKING:
    from rich.console import Console

RECORDS: Final = 12_500
TEST_SHARE: Final = 0.2
EPSILON: Final = 1.0
DELTA: Final = 1e-5
TOTAL: Final = 1.2  # pays for one training of epsilon 1, and not for two
SMALLER: Final = 0.3  # what the rest of the budget still pays for
_SHOWN: Final = ("clinic-1.db", "job.json", "test.csv", "job.toml", "smaller.toml")
_MARK: Final = ".sottovoce-demo"
_PORTS: Final = range(20_000, 32_000)  # below those that systems give to whoever asks for any


def run(folder: Path, console: Console, *, keep: bool = False) -> None:
    """Run the demonstration in `folder`; whatever happens, its processes end with it."""
    clinics = synthetic.clinics(4, RECORDS, seed=2)
    train, test = _split(clinics)
    _fresh(folder)
    port = _free_port()
    accounts = _prepare(folder, train, test, port)
    _heading(console, "Four clinics, one model, no record leaves its clinic")
    console.print(
        "Synthetic patients, drawn by arithmetic and about nobody: who is readmitted within 30 days?\n"
        f"Each clinic is a process with its own records, certificate and ledger (epsilon {TOTAL:g} in all).\n"
    )
    listing = table("clinic", "records>", "features>", "file", "ledger")
    for clinic in train:
        listing.add_row(
            clinic.name, f"{len(clinic.y):,}", f"{clinic.X.shape[1]}", f"{clinic.name}.csv", f"{clinic.name}.db"
        )
    console.print(listing)
    console.print()
    job = load_job(folder / "job.toml")
    names = [clinic.name for clinic in train]
    with _processes(folder, names) as processes:
        before = {name: account.balance() for name, account in accounts.items()}
        model, seconds = _train(job, console, processes)
        after = {name: account.balance() for name, account in accounts.items()}
        # The clinics' ledgers happen to be at hand here.
        paths = outputs.write_outputs(job, model, outputs.occasion_of(model, before, after, seconds))
        show_summary(model, paths, {}, seconds, console)

        _heading(console, "What is promised")
        show_promises(model.privacy_, console)
        _heading(console, "What it is worth")
        _compare(model, train, test, console)
        _heading(console, "The ledgers")
        _ledgers(before, after, console)
        console.print(f"\nA second training of epsilon {EPSILON:g} is asked for ...")
        _refused(job, processes, console)
        if any(account.balance() != after[name] for name, account in accounts.items()):
            raise AssertionError("a refused training must not be charged")
        _heading(console, "What to try next")
        _next(folder, console, keep=keep)
        if keep:
            console.print("The clinics keep running. Ctrl-C ends them.")
            with contextlib.suppress(KeyboardInterrupt):
                while all(process.poll() is None for process in processes.values()):
                    time.sleep(0.2)


def _split(clinics: Sequence[synthetic.Clinic]) -> tuple[list[synthetic.Clinic], list[synthetic.Clinic]]:
    """Records to train on and records to test on, of every clinic."""
    train, test = [], []
    for clinic in clinics:
        cut = round(len(clinic.y) * (1 - TEST_SHARE))
        train.append(synthetic.Clinic(clinic.name, clinic.X[:cut], clinic.y[:cut]))
        test.append(synthetic.Clinic(clinic.name, clinic.X[cut:], clinic.y[cut:]))
    return train, test


def _fresh(folder: Path) -> None:
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


def _prepare(
    folder: Path, train: Sequence[synthetic.Clinic], test: Sequence[synthetic.Clinic], port: int
) -> dict[str, Account]:
    """Everything a real federation would have: files, ledgers, certificates, jobs."""
    names = [clinic.name for clinic in train]
    create_authority(folder / "certificates")
    for name in (COORDINATOR, *names):
        issue(folder / "certificates", name)
    accounts = {}
    for clinic in train:
        synthetic.write_csv(clinic, folder / f"{clinic.name}.csv")
        accounts[clinic.name] = Ledger.create(folder / f"{clinic.name}.db").open("patients", TOTAL, DELTA)
        (folder / f"{clinic.name}.toml").write_text(_PARTY.format(name=clinic.name, port=port, label=synthetic.LABEL))
    X, y = _pooled(test)
    synthetic.write_csv(synthetic.Clinic("test", X, y), folder / "test.csv")
    ranges = "\n".join(f"{f.name} = [{f.low:g}, {f.high:g}]" for f in synthetic.FEATURES)
    common = {"delta": DELTA, "ranges": ranges}
    records = ", ".join(f"{clinic.name} = {len(clinic.y)}" for clinic in train)
    remote = _REMOTE.format(port=port, parties=names, records=records, features=len(synthetic.FEATURES))
    here = "\n".join(_HERE.format(name=name, label=synthetic.LABEL) for name in names)
    (folder / "job.toml").write_text(_JOB.format(epsilon=EPSILON, where=remote, **common))
    (folder / "smaller.toml").write_text(_JOB.format(epsilon=SMALLER, where=here, **common))
    return accounts


@contextlib.contextmanager
def _processes(folder: Path, names: Sequence[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The clinics, each a process; they end with the block, however it ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started: dict[str, subprocess.Popen[bytes]] = {}
    ended = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with _signals_wait():  # a process that was started and not yet noted would be left behind
            for name in names:
                with (folder / f"{name}.log").open("wb") as log:
                    command = [sys.executable, "-m", "sottovoce", "party", "--job", str(folder / f"{name}.toml")]
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
def _signals_wait() -> Iterator[None]:
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


def _train(
    job: Job, console: Console, processes: Mapping[str, subprocess.Popen[bytes]]
) -> tuple[PrivateLinearModel, float]:
    """One training over gRPC, as `sottovoce fit job.toml` does it."""
    console.print("Starting the clinics and waiting for them to connect ...")
    _wait_for_start(processes, job)
    with runs.opened(job, lambda _: None) as run:
        start = time.perf_counter()
        with progress_bar("Training over mutual TLS", console) as advance:
            model = runs.fit(run, advance)
        return model, time.perf_counter() - start


def _refused(job: Job, processes: Mapping[str, subprocess.Popen[bytes]], console: Console) -> None:
    _require_running(processes, job)
    try:
        with runs.opened(job, lambda _: None) as run:
            runs.fit(run)
    except BudgetError as error:
        console.print(f"REFUSED: {error}", style="bold")
        console.print("Nothing was released and nothing was charged.")
    else:
        raise AssertionError("the second training must be refused")


def _wait_for_start(processes: Mapping[str, subprocess.Popen[bytes]], job: Job) -> None:
    """Until every clinic has read its records and looks for the coordinator; one that fails is told at once.

    However long that takes: on a machine with other work it is minutes.
    """
    while not all("connecting to" in job.resolve(f"{name}.log").read_text() for name in processes):
        _require_running(processes, job)
        time.sleep(0.05)


def _require_running(processes: Mapping[str, subprocess.Popen[bytes]], job: Job) -> None:
    for name, process in processes.items():
        if process.poll() is not None:
            log = job.resolve(f"{name}.log")
            raise WireError(f"the process of {name} ended with code {process.returncode}; {log} says why.")


def _compare(
    model: PrivateLinearModel,
    train: Sequence[synthetic.Clinic],
    test: Sequence[synthetic.Clinic],
    console: Console,
) -> None:
    """Test records are synthetic and held out, so that a metric of them may be shown."""
    X, y = _pooled(test)
    rate = float(np.mean(y))
    guess = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    declared: dict[str, Any] = {"feature_ranges": synthetic.FEATURE_RANGES, "classes": (0.0, 1.0)}
    best = PrivateLogisticRegression(math.inf, **declared).fit(*_pooled(train))
    others = {
        f"{clinic.name} alone": PrivateLogisticRegression(EPSILON, DELTA, **declared).fit(clinic.X, clinic.y)
        for clinic in train
    }
    listing = table("model", "epsilon>", "accuracy>", "log-loss>", "learned")
    listing.columns[0].no_wrap = True

    def add(name: str, epsilon: str, accuracy: float, loss: float) -> None:
        learned = max(guess - loss, 0.0) / (guess - _log_loss(best, X, y))
        listing.add_row(name, epsilon, f"{accuracy:.3f}", f"{loss:.3f}", f"{bar(learned, console)} {learned:.0%}")

    add("together, without privacy", "none", _accuracy(best, X, y), _log_loss(best, X, y))
    add("together, as trained above", f"{EPSILON:g}", _accuracy(model, X, y), _log_loss(model, X, y))
    for name, other in others.items():
        add(name, f"{EPSILON:g}", _accuracy(other, X, y), _log_loss(other, X, y))
    add("the same guess for everybody", "none", max(rate, 1 - rate), guess)
    console.print(listing)
    console.print(
        f"\nMeasured on {len(y):,} synthetic records that no training saw: that is why it may be printed.\n"
        "Learned: how far the log-loss comes from the guess toward the model without privacy.\n"
        "All but the second row were computed for this table alone, beside the ledgers."
    )


def _accuracy(model: PrivateLinearModel, X: synthetic.Array, y: synthetic.Array) -> float:
    return float(np.mean((_scores(model, X) > 0) == (y == 1)))


def _log_loss(model: PrivateLinearModel, X: synthetic.Array, y: synthetic.Array) -> float:
    return float(np.mean(np.logaddexp(0, np.where(y == 1, -1, 1) * _scores(model, X))))


def _scores(model: PrivateLinearModel, X: synthetic.Array) -> synthetic.Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays have no column names; these are in the model's order
        return np.asarray(model.decision_function(X))


def _ledgers(before: Mapping[str, Balance], after: Mapping[str, Balance], console: Console) -> None:
    listing = table("clinic", "total epsilon>", "left before>", "left now>", "used")
    for name, now in after.items():
        used = f"{bar(now.share, console)} {100 * now.share:.0f}%"
        listing.add_row(name, f"{now.total:g}", f"{before[name].left:.3g}", f"{now.left:.3g}", used)
    console.print(listing)


def _next(folder: Path, console: Console, *, keep: bool) -> None:
    at = {name: shlex.quote(str(folder / name)) for name in _SHOWN}
    commands = [
        (f"ledger show {at['clinic-1.db']}", "what a clinic has left"),
        (f"ledger history {at['clinic-1.db']}", "what it was charged for"),
        (f"predict {at['job.json']} {at['test.csv']} --proba", "use the model"),
        (f"plan {at['job.toml']}", "what a training promises and costs"),
        (f"fit {at['smaller.toml']}", f"epsilon {SMALLER:g} still fits; in one process"),
    ]
    if keep:
        commands.append((f"fit {at['job.toml']}", "ask the running clinics again"))
    for command, why in commands:
        console.print(f"  {_program()} {command}\n      {why}", soft_wrap=True)
    console.print(f"  open {folder / 'job.privacy.html'} in a browser\n      the promise, readable and printable")


def _program() -> str:
    """How this very program can be called again."""
    if shutil.which("sottovoce"):
        return "sottovoce"
    called = sys.argv[0]
    return shlex.quote(called) if Path(called).name == "sottovoce" else f"{shlex.quote(sys.executable)} -m sottovoce"


def _pooled(clinics: Sequence[synthetic.Clinic]) -> tuple[synthetic.Array, synthetic.Array]:
    return np.concatenate([clinic.X for clinic in clinics]), np.concatenate([clinic.y for clinic in clinics])


def _heading(console: Console, text: str) -> None:
    console.print()
    console.rule(text, align="left", style="none")


_JOB: Final = """\
# A job: what to train, under which promise. Paths are relative to this file. The data are synthetic.
# Stands in every ledger beside the charge, and in the report.
[about]
dataset = "synthetic patients of four clinics"
purpose = "who is readmitted within 30 days"
analyst = "the demonstration"

[model]
estimator = "logistic"

[privacy]
epsilon = {epsilon}
delta = {delta}

[bounds]
classes = [0, 1]

# Public ranges, known before anybody looks at a record.
[bounds.feature_ranges]
{ranges}

{where}
# Results: the name of this file with .json, .privacy.json and .privacy.html; [output] can say otherwise.
"""
_REMOTE: Final = """\
[federation]
listen = "127.0.0.1:{port}"
certificates = "certificates"
parties = {parties}
records = {{ {records} }}
features = {features}
wait = 600                   # seconds for the clinics to connect, and for an answer: this machine may have other work
timeout = 600
"""
_HERE: Final = """\
[[party]]
name = "{name}"
file = "{name}.csv"
label = "{label}"
ledger = "{name}.db"
"""
_PARTY: Final = """\
# A clinic: its own records, its own ledger, its own limit.
[party]
name = "{name}"
file = "{name}.csv"
label = "{label}"
ledger = "{name}.db"

[federation]
coordinator = "127.0.0.1:{port}"
certificates = "certificates"

[policy]
max_epsilon = 1.0
"""
