"""Kill fits at random instants and look at what they left: `kill_fits.py FOLDER KILLS SEED` prints one JSON object.

A process of its own, so that it can fork without the threads of a test runner. Every child runs fits against one
ledger; what a child released is known from a pipe it writes to after the reply has left the party.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.door.frames import decode
from sottovoce.privacy.calibration import mu_for
from sottovoce.solvers import by_name
from sottovoce.transports.in_process import InProcess

ROUNDS = 12  # of gradients; the Gram matrix is round 0


def fit(ledger: Path | None) -> None:
    generator = np.random.default_rng(os.getpid())
    X, y = generator.standard_normal((60, 3)), np.arange(60) % 2
    solver = by_name("newton", rounds=ROUNDS)
    sv.PrivateLogisticRegression(epsilon=0.05, row_norm=1.0, classes=(0, 1), solver=solver, ledger=ledger).fit(X, y)


def run_fits(path: Path, pipe: int) -> None:
    """Fit for ever; tell of every answer after it left."""
    plain = InProcess.exchange

    def exchange(self: InProcess, messages: dict[str, bytes]) -> dict[str, bytes]:
        replies = plain(self, messages)
        for reply in replies.values():
            frame = decode(reply)
            if frame.kind == "answer":
                os.write(pipe, f"{frame.plan.hex()} {frame.round} {frame.query}\n".encode())
        return replies

    InProcess.exchange = exchange  # type: ignore[method-assign]
    while True:
        fit(path)


def main(folder: Path, kills: int, seed: int) -> dict[str, float]:
    path = folder / "ledger.db"
    account = sv.Ledger.create(path).open("clinic", epsilon=20.0, delta=1e-5, composition="gaussian")
    # Imports and caches are warm before the first fork, and the kills are spread over a fit and half of the next one.
    practice = folder / "practice.db"
    sv.Ledger.create(practice).open("practice", epsilon=20.0, delta=1e-5, composition="gaussian")
    fit(practice)
    start = time.monotonic()
    for _ in range(3):
        fit(practice)
    span = (time.monotonic() - start) / 2
    chance = random.Random(seed)
    told: list[tuple[str, int, str]] = []
    inside = 0
    for _ in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            run_fits(path, writing)
        os.close(writing)
        time.sleep(chance.uniform(0.0, span))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading) as lines:
            fresh = [line.split() for line in lines.read().splitlines()]
        told += [(plan, int(round_), query) for plan, round_, query in fresh]
        inside += bool(fresh) and int(fresh[-1][1]) < ROUNDS
    entries = sv.Ledger(path).verify()
    charged: dict[str, int] = {}
    released: dict[tuple[str, int, str], int] = {}
    for entry in account.history():
        if entry.kind.startswith("reserv"):
            charged[entry.plan] = entry.number
        elif entry.kind.startswith("release"):
            released[(entry.plan, entry.round, entry.query)] = entry.number
    balance = account.balance()
    return {
        "kills": kills,
        "killed_inside_a_fit": inside,
        "entries": entries,
        "plans": len(charged),
        "releases": len(released),
        "told": len(told),
        "told_but_not_in_the_ledger": sum(key not in released for key in told),
        "released_without_an_earlier_charge": sum(
            charged.get(plan, 10**9) > number for (plan, _, _), number in released.items()
        ),
        "released_twice": len(told) - len(set(told)),
        "spent": balance.spent,
        "should_be_spent_mu_squared": len(charged) * mu_for(0.05, 0.99e-5) ** 2,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))) + "\n")
