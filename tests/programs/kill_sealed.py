"""Kill parties of sealed sums over gRPC at random instants: `kill_sealed.py FOLDER KILLS SEED NOISE` prints one object.

Three holders with ledgers, each a process of its own, serve one fit after the other; a killed one is started again at
once. NOISE is "on", or "off": then every share is exact, and each fit that ends has to give the same model to the last
bit. What the coordinator was told is compared with what the ledgers have stored.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.door.frames import decode
from sottovoce.errors import SottovoceError
from sottovoce.sealed import sums
from sottovoce.solvers import by_name
from sottovoce.transports.certificates import Credentials, create_authority, issue
from sottovoce.transports.grpc_wire import GrpcCoordinator, serve_party

NAMES = ("north", "south", "east")
ROUNDS = 12
EXPECTED = ("does not have the key", "forgot the plan again", "answered 'plan' with a frame")


def without_noise(scale: Any, size: int, randomness: object) -> np.ndarray:
    return np.zeros(size, dtype=np.int64)


def data_of(place: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(place).standard_normal((400, 3))
    return X / np.linalg.norm(X, axis=1, keepdims=True), np.arange(400) % 2


def serve(folder: Path, place: int, port: int, noise: str) -> None:
    """A holder that serves until it is killed."""
    if noise == "off":
        sums.wide_gaussian = without_noise
    name = NAMES[place]
    account = sv.Ledger(folder / f"{name}.db").account()
    party = sv.Party(name, *data_of(place), account=account, policy=sv.Policy(sealed=True))
    while True:
        serve_party(party, f"localhost:{port}", Credentials.load(folder, name), give_up_after=30.0)


def model() -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(
        epsilon=0.5, row_norm=1.0, classes=(0, 1), solver=by_name("newton", rounds=ROUNDS)
    )


class Recorded(GrpcCoordinator):
    """Keeps every share that was delivered, by party, plan, round and query."""

    told: dict[tuple[str, str, int, str], list[bytes]]
    resumed = 0  # times that a party was asked in the middle of a run and did not know the plan any more

    def exchange(self, messages: Any) -> dict[str, bytes]:
        replies = super().exchange(messages)
        for name, data in replies.items():
            frame = decode(data)
            self.resumed += frame.kind == "unknown-plan"
            if frame.kind == "answer":
                words = frame.arrays["sealed"].tobytes()
                self.told.setdefault((name, frame.plan.hex(), frame.round, frame.query), []).append(words)
        return replies


def main(folder: Path, kills: int, seed: int, noise: str) -> dict[str, Any]:
    if noise == "off":
        sums.wide_gaussian = without_noise
    create_authority(folder)
    for name in ("coordinator", *NAMES):
        issue(folder, name)
    accounts = {
        name: sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=500.0, delta=1e-5, composition="gaussian")
        for name in NAMES
    }
    reference = model().fit(sv.Federation.by_rows([data_of(k) for k in range(3)], names=NAMES, sums="secure")).coef_
    wire = Recorded("localhost:0", NAMES, Credentials.load(folder, "coordinator"), timeout=60.0)
    wire.told = {}
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["sottovoce", "sottovoce.transports.grpc_wire", "sottovoce.sealed.sums"])

    def start(place: int) -> Any:
        process = processes.Process(target=serve, args=(folder, place, wire.port, noise), daemon=True)
        process.start()
        return process

    running = [start(place) for place in range(len(NAMES))]
    wire.wait_for_parties(60.0)
    over, chance = threading.Event(), random.Random(seed)

    def kill() -> None:
        for _ in range(kills):
            wire.wait_for_parties(60.0)
            time.sleep(chance.uniform(0.0, 0.8))
            place = chance.randrange(len(NAMES))
            running[place].kill()
            running[place].join()
            running[place] = start(place)
        over.set()

    killer = threading.Thread(target=kill)
    killer.start()
    fits, failed, unlike, strange = 0, 0, 0, []
    while not over.is_set():
        try:
            fitted = model().fit(sv.Federation.connect(wire, sums="secure"))
            fits += 1
            unlike += noise == "off" and not np.array_equal(fitted.coef_, reference)
        except SottovoceError as error:
            failed += 1
            if not any(text in str(error) for text in EXPECTED):
                strange.append(str(error))
    killer.join()
    wire.wait_for_parties(60.0)
    model().fit(sv.Federation.connect(wire, sums="secure"))  # nothing is in the way of the next fit
    result = judged(accounts, wire.told)
    wire.close()
    for process in running:
        process.kill()
        process.join()
    left = sum(1 for name in NAMES for _ in (folder / f"{name}.db.sealed").glob("*"))
    ended = {"fits": fits, "failed": failed, "unlike": unlike, "strange": strange, "resumed": wire.resumed}
    return {"kills": kills, "keys": left, **ended, **result}


def judged(accounts: dict[str, Any], told: dict[tuple[str, str, int, str], list[bytes]]) -> dict[str, int]:
    """What the ledgers say of what was told."""
    two, other, early, again = 0, 0, 0, 0
    for name, account in accounts.items():
        charged: dict[str, int] = {}
        for entry in account.history():
            if entry.kind.startswith("reserv"):
                charged[entry.plan] = entry.number
            elif entry.kind.startswith("release"):
                early += charged.get(entry.plan, 10**9) > entry.number
        for (party, plan, number, query), words in told.items():
            if party == name:
                stored = account.stored(plan, number, query)
                two += len(set(words)) > 1
                again += len(words) > 1
                other += stored is None or decode(stored).arrays["sealed"].tobytes() != words[-1]
        sv.Ledger(account.path).verify()
    return {
        "told": len(told),
        "told_again": again,
        "two_answers_to_one_question": two,
        "not_what_is_stored": other,
        "released_before_the_charge": early,
    }


if __name__ == "__main__":
    where, count, number, how = sys.argv[1:]
    sys.stdout.write(json.dumps(main(Path(where), int(count), int(number), how)) + "\n")
