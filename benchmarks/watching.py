"""What it costs that operators watch: seconds of a fit over gRPC between processes' ends, watched and not.

python benchmarks/watching.py [ROUNDS] [REPEATS]

Seconds of the processor: two parties with ledgers and the coordinator are in one process, over TLS, so that all costs
add up, and what a disk or another program takes is left out, which makes the ratio larger. Watched: both ends
make events, which go to a JSON log, to the state, and to a page that is asked for every second.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import contextlib
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.app.view import events as happened
from sottovoce.app.view.logs import written_to
from sottovoce.app.view.server import new_token, served
from sottovoce.app.view.watch import Watch
from sottovoce.app.view.watched import WatchedEnd, WatchedWire
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import Party
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.certificates import Credentials, create_authority, issue
from sottovoce.transports.grpc_wire import GrpcCoordinator, serve_party

PARTIES = ("north", "south")


@contextlib.contextmanager
def asked_every_second(address: str) -> Iterator[None]:
    """A browser, as far as the server can tell."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(1.0):
            with urllib.request.urlopen(f"{address}parts") as answer:
                answer.read()

    thread = threading.Thread(target=look)
    thread.start()
    yield
    stop.set()
    thread.join()


def seconds(folder: Path, rounds: int, *, watched: bool) -> float:
    """Of one fit."""
    rng, solver = np.random.default_rng(0), sv.solvers.Gradient(rounds=rounds)
    with contextlib.ExitStack() as stack:
        ends, watches = [], {name: Watch("party", name) for name in PARTIES}
        watches["fit"] = Watch("coordinator", "fit")
        for name in PARTIES:
            rows, labels = rng.uniform(-1, 1, (2000, 10)), rng.integers(0, 2, 2000)
            account = Ledger.create(folder / f"{name}-{time.monotonic_ns()}.db").open("people", 2.0, 1e-5)
            party = Party(name, rows, labels, account=account)
            ends.append(WatchedEnd(party, watches[name], account) if watched else party)
        if watched:
            for name, watch in watches.items():
                watch.add(written_to(stack.enter_context((folder / f"{name}.jsonl").open("a", encoding="utf-8"))))
                stack.enter_context(asked_every_second(stack.enter_context(served(watch, 0, new_token()))))
        wire = GrpcCoordinator("localhost:0", PARTIES, Credentials.load(folder, "coordinator"))
        address = f"localhost:{wire.port}"
        threads = [
            threading.Thread(target=serve_party, args=(end, address, Credentials.load(folder, end.name)), daemon=True)
            for end in ends
        ]
        for thread in threads:
            thread.start()
        wire.wait_for_parties()
        over = WatchedWire(watches["fit"])
        federation = Federation.connect(over.over(wire) if watched else wire)
        model = sv.PrivateLogisticRegression(epsilon=1.0, entry_bound=1.0, solver=solver, classes=(0, 1))
        prepared = model._prepare(federation, frames=1, runs=True)
        begin = time.process_time()
        model._train(prepared, over.progress() if watched else None)
        taken = time.process_time() - begin
        federation.close()
        for thread in threads:
            thread.join(5)
        return taken


def event_seconds(count: int = 20_000) -> float:
    """Of one event, with a log."""
    with tempfile.TemporaryFile("w") as file:
        watch = Watch("coordinator", "fit")
        watch.add(written_to(file))
        begin = time.process_time()
        for done in range(count):
            watch.tell(happened.Round("ab" * 32, done, count, "gradient", "gradients of the loss", done, done, 0.001))
        return (time.process_time() - begin) / count


def main(rounds: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        create_authority(folder)
        for end in ("coordinator", *PARTIES):
            issue(folder, end)
        seconds(folder, 20, watched=True)
        pairs = [[seconds(folder, rounds, watched=watched) for watched in (False, True)] for _ in range(repeats)]
    plain, watched = (1e3 * statistics.median(times) / rounds for times in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"an event with its line of JSON: {1e6 * event_seconds():.1f} µs")
    print(f"a round: {plain:.3f} ms alone, {watched:.3f} ms watched, ratio {ratio:.3f} (median of {repeats} pairs)")


if __name__ == "__main__":
    main(*(int(given) for given in (sys.argv[1:] + ["1000", "5"][len(sys.argv) - 1 :])))
