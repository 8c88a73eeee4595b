"""Many parties by rows, and what they cost the coordinator: `python benchmarks/parties.py`.

    python benchmarks/parties.py                          in one process: 10, 100 and 1,000 parties
    python benchmarks/parties.py --parties 100 --ledgers  each with a ledger
    python benchmarks/parties.py --parties 256 --sums secure
    python benchmarks/parties.py --grpc 20 100 300 1000   over gRPC with mutual TLS, on loopback
    python benchmarks/parties.py --signatures 1000        what a party has to check of so many, before the first round

Each line is one fit, in a process of its own. "Before" is all that comes before the first question: facts, the plan
checked, then charged, and the signatures of all parties shown to each. "Round" is the median of the rounds.
"Coordinator" is what a round takes there: in one process wall time outside of the wire's exchange, over gRPC CPU of
the coordinator's process, its end of the wire included. "MiB" is what the peak of memory has grown by, first until all
parties are there, then by the fit: in one process with the parties in it, over gRPC of the coordinator alone.

Over gRPC a few processes serve all parties, as threads, and share the machine's cores with the coordinator. Where
every party has its own machine, a round takes the coordinator's part, the network and the slowest party. A process
checks each signature once for all of its parties.
"""

from __future__ import annotations

import os
import sys

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import sottovoce as sv
from sottovoce.gate.frames import peek
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.base import Transport
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator
from sottovoce.transports.identity import PLAN, Certified, Identity

COLUMNS = 20
SOLVERS = {"newton": sv.solvers.Newton, "whitened": sv.solvers.Whitened, "gradient": sv.solvers.Gradient}


class Clocked:
    """A wire that notes when each exchange began and ended, in wall time and in CPU of this process."""

    def __init__(self, wire: Transport) -> None:
        self._wire = wire
        self.parties, self.communication, self.close = wire.parties, wire.communication, wire.close
        self.noted: list[tuple[str, float, float, float]] = []  # kind, began, ended, CPU when it began

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        kind, *_ = peek(next(iter(messages.values())))
        began, used = time.perf_counter(), time.process_time()
        replies = self._wire.exchange(messages)
        self.noted.append((kind, began, time.perf_counter(), used))
        return replies


def rows_of(place: int, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Of one party, the same wherever it is served."""
    rng = np.random.default_rng([7, place])
    X = rng.uniform(-1, 1, (records, COLUMNS))
    return X, (X @ np.linspace(-2, 2, COLUMNS) + rng.normal(size=records) > 0).astype(int)


def names_of(parties: int) -> list[str]:
    return [f"p{place:04}" for place in range(parties)]


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def in_one_process(case: argparse.Namespace, folder: Path) -> Iterator[sv.Federation]:
    ledgers = None
    if case.ledgers:
        ledgers = [folder / f"{name}.db" for name in names_of(case.parties)]
        for path in ledgers:
            sv.Ledger.create(path).open("rows", epsilon=2.0, delta=1e-5)
    parts = [rows_of(place, case.records) for place in range(case.parties)]
    yield sv.Federation.by_rows(parts, names=names_of(case.parties), ledgers=ledgers, sums=case.sums)


@contextlib.contextmanager
def over_grpc(case: argparse.Namespace, folder: Path) -> Iterator[sv.Federation]:
    """Parties in a few processes, of which this file is the program."""
    names = names_of(case.parties)
    create_authority(folder)
    for name in ("coordinator", *names):
        issue(folder, name)
    wire = GrpcCoordinator("localhost:0", names, Credentials.load(folder, "coordinator"), timeout=600.0)
    said = [sys.executable, __file__, "--serve", str(folder), str(wire.port), str(case.records)]
    shares = [names[start :: case.hosts] for start in range(case.hosts)]
    processes = [subprocess.Popen([*said, *share]) for share in shares]
    try:
        began = time.perf_counter()
        wire.wait_for_parties(600)
        case.connected = time.perf_counter() - began
        yield sv.Federation.connect(wire, sums=case.sums)
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
        wire.close()


class Shared:
    """An identity whose process has checked a signature once for all of its parties."""

    found: ClassVar[set[tuple[str, str, bytes, str]]] = set()
    turn: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, own: Identity) -> None:
        self._own, self.sign, self.pinned = own, own.sign, own.pinned

    def verify(self, *said: Any) -> None:
        if said in self.found:
            return
        with self.turn:
            if said not in self.found:
                self._own.verify(*said)
                self.found.add(said)


class Hosted(sv.Party):
    """One of many parties of a process."""

    def identify(self, identity: Identity) -> None:
        super().identify(Shared(identity))


def serve(folder: str, port: str, records: str, *names: str) -> None:
    """Some of the parties, each in a thread; one that is waited for longer than this takes to start all says so."""

    def one(name: str) -> None:
        X, y = rows_of(int(name[1:]), int(records))
        party = Hosted(name, X, y, policy=sv.Policy(secure=True))
        serve_party(party, f"localhost:{port}", Credentials.load(folder, name), give_up_after=600.0)

    sys.setswitchinterval(0.1)  # hundreds of threads that wait for one lock would take turns, and do little else
    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_fit(case: argparse.Namespace) -> dict[str, Any]:
    """The figures of one fit."""
    warnings.simplefilter("ignore")
    model = sv.PrivateLogisticRegression(
        1.0, 1e-6, entry_bound=1.0, classes=(0, 1), solver=SOLVERS[case.solver](rounds=case.rounds)
    )
    sv.PrivateLogisticRegression(  # loops are compiled, and what is imported late is
        1.0, 1e-6, entry_bound=1.0, classes=(0, 1), solver=SOLVERS[case.solver](rounds=2)
    ).fit(sv.Federation.by_rows([rows_of(0, case.records), rows_of(1, case.records)], sums=case.sums))
    at_first = peak()
    place = over_grpc if case.wire == "grpc" else in_one_process
    with tempfile.TemporaryDirectory() as folder, place(case, Path(folder)) as federation:
        there = peak()
        clock = federation.transport = Clocked(federation.transport)
        began = time.perf_counter()
        model.fit(federation)
        took = time.perf_counter() - began
    asked = [each for each in clock.noted if each[0] == "ask"]
    last = next(each for each in clock.noted if each[0] == "done")
    following = [*asked[1:], last]
    rounds = [after[1] - each[1] for each, after in zip(asked, following, strict=True)]
    inside = [each[2] - each[1] for each in asked]
    if case.wire == "grpc":
        own = [after[3] - each[3] for each, after in zip(asked, following, strict=True)]
    else:
        own = [whole - wire for whole, wire in zip(rounds, inside, strict=True)]
    said = model.communication_
    return {
        "connected": getattr(case, "connected", None),
        "before": asked[0][1] - began,
        "round": statistics.median(rounds[1:]),
        "coordinator": statistics.median(own[1:]),
        "fit": took,
        "there": there - at_first,
        "grown": peak() - there,
        "up": said.uplink_bytes,
        "down": said.downlink_bytes,
        "rounds": len(asked),
        "stages": [(each[0], round(each[2] - each[1], 3)) for each in clock.noted if each[0] in ("hello", "plan")],
    }


def signatures(parties: int) -> str:
    """What one party takes to check those of so many by their certificates, and how long they are."""
    with tempfile.TemporaryDirectory() as folder:
        create_authority(folder)
        names = names_of(min(parties, 200))
        for name in names:
            issue(folder, name)
        ends = {name: Certified(Credentials.load(folder, name)) for name in names}
        signed = {name: end.sign(PLAN, bytes(32)) for name, end in ends.items()}
        took = []
        for name, _ in zip(names, range(5), strict=False):
            used = time.process_time()
            for other, text in signed.items():
                ends[name].verify(other, PLAN, bytes(32), text)
            took.append((time.process_time() - used) / len(signed))
        length = len(json.dumps(signed)) / len(signed)
    return (
        f"signatures: {1e3 * min(took):.3f} ms and {length:.0f} bytes each; of {parties:,} parties "
        f"{parties * min(took):.2f} s and {parties * length / 1e6:.2f} MB at each party, "
        f"{parties**2 * length / 1e6:,.0f} MB from the coordinator"
    )


def line(case: argparse.Namespace, found: Mapping[str, Any]) -> str:
    parties = case.parties
    kind = f"{case.solver}, {'secure' if case.sums == 'secure' else 'plain'}{', ledgers' if case.ledgers else ''}"
    waited = "" if found["connected"] is None else f"{found['connected']:.1f}"
    cells = (
        f"{parties:,}",
        case.wire,
        kind,
        waited,
        f"{found['before']:.2f}",
        f"{1e3 * found['round']:.1f}",
        f"{1e6 * found['round'] / parties:.0f}",
        f"{1e3 * found['coordinator']:.1f}",
        f"{1e6 * found['coordinator'] / parties:.0f}",
        f"{found['there']:.0f} + {found['grown']:.0f}",
        f"{found['up'] / 1e6:.1f} / {found['down'] / 1e6:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def apart(arguments: argparse.Namespace, **own: Any) -> None:
    """One fit in a process of its own, and its line."""
    case = argparse.Namespace(**vars(arguments) | own)
    told = json.dumps(vars(case))
    done = subprocess.run([sys.executable, __file__, "--one", told], stdout=subprocess.PIPE, check=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(line(case, found), flush=True)
    if arguments.stages:
        print(f"    {found['stages']}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one_fit(argparse.Namespace(**json.loads(sys.argv[2])))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="*")
    parser.add_argument("--grpc", type=int, nargs="*", default=[], help="parties over gRPC")
    parser.add_argument("--solver", choices=SOLVERS, default="newton")
    parser.add_argument("--sums", choices=["plain", "secure"], default="plain")
    parser.add_argument("--ledgers", action="store_true", help="in one process, each party has one")
    parser.add_argument("--records", type=int, default=100, help="of a party")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=2, help="processes that serve the parties over gRPC")
    parser.add_argument("--stages", action="store_true", help="also what comes before the first round, one by one")
    parser.add_argument("--signatures", type=int, help="parties whose signatures one checks")
    arguments = parser.parse_args()
    if arguments.signatures:
        print(signatures(arguments.signatures))
        return
    counts = arguments.parties if arguments.parties is not None else [] if arguments.grpc else [10, 100, 1000]
    titles = "parties", "wire", "fit", "connect s", "before s", "round ms", "us a party", "coordinator ms", "us a party"
    print("| " + " | ".join((*titles, "MiB", "MB up / down")) + " |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for parties in counts:
        apart(arguments, parties=parties, wire="process")
    for parties in arguments.grpc:
        apart(arguments, parties=parties, wire="grpc")


if __name__ == "__main__":
    main()
