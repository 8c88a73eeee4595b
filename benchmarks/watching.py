"""What it costs that operators watch: which share of a round's processor time goes into events, state and logs.

    python benchmarks/watching.py [ROUNDS]

Two parties with ledgers and the coordinator are in one thread, without a network, so that nothing but the round itself
is compared with; over gRPC a round takes more, and the share is smaller. Every end has a JSON log.
"""

from __future__ import annotations

import functools
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.app.view.server import render_page
from sottovoce.app.view.watched import Watch, WatchedEnd, WatchedWire, write_event
from sottovoce.estimators.fits import Fit
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import Party
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.base import InProcess

PARTIES = ("north", "south")


class Stopwatch:
    """Processor time of calls, those of inner ones left out where they are timed too."""

    def __init__(self) -> None:
        self.watching = self.all = 0.0

    def outer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.watching += time.thread_time() - begin

        return timed

    def inner(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.watching -= time.thread_time() - begin

        return timed


def main(rounds: int) -> None:
    warnings.simplefilter("ignore")
    rng, clock = np.random.default_rng(0), Stopwatch()
    watches = {name: Watch("party", name) for name in PARTIES} | {"fit": Watch("coordinator", "fit")}
    shares, each, ends = [], [], []
    with tempfile.TemporaryDirectory() as name:
        for who, watch in watches.items():
            watch.add(functools.partial(write_event, (Path(name) / f"{who}.jsonl").open("w", encoding="utf-8")))
        for who in PARTIES:
            account = Ledger.create(Path(name) / f"{who}.db").open("people", 2.0, 1e-5)
            party = Party(who, rng.uniform(-1, 1, (2000, 10)), rng.integers(0, 2, 2000), account=account)
            end: Any = WatchedEnd(party, watches[who], account)
            party.handle = clock.inner(party.handle)  # type: ignore[method-assign]
            end.handle = clock.outer(end.handle)
            ends.append(end)
        wire, watched = InProcess(ends), WatchedWire(watches["fit"])
        wire.exchange = clock.inner(wire.exchange)  # type: ignore[method-assign]
        over: Any = watched.over(wire)
        over.exchange = clock.outer(over.exchange)
        told, last = clock.outer(watched.advance), [0.0, 0.0]

        def advance(done: int, total: int) -> None:
            told(done, total)
            now = [clock.watching, time.thread_time()]
            if done > 1:  # the plan came before the first
                each.append(now[0] - last[0])
                shares.append((now[0] - last[0]) / (now[1] - last[1]))
            last[:] = now

        solver = sv.solvers.Gradient(rounds=rounds)
        model = sv.PrivateLogisticRegression(epsilon=1.0, entry_bound=1.0, solver=solver, classes=(0, 1))
        Fit(model, Federation.connect(over), runs=True).run(advance)
    begin = time.thread_time()
    for _ in range(100):
        render_page(*watches["fit"].seen(), "view-parts.html")
    shown = (time.thread_time() - begin) / 100
    print(
        f"a round of {len(PARTIES)} parties: {1e6 * statistics.median(each):.0f} µs for {len(watches)} events and logs"
    )
    print(f"that is {100 * statistics.median(shares):.1f}% of its processor time (median of {len(shares)} rounds)")
    print(f"a page that is open: {1e3 * shown:.2f} ms a second")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
