"""Milliseconds per round of the two wires: two parties, one request out and one answer back from each.

    python benchmarks/wire.py

The parties of the gRPC wire are processes of their own and speak mutual TLS on loopback. A party copies the
request's numbers into its answer, so nothing but the wire is measured.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path

import numpy as np

from sottovoce.door.frames import Frame, decode, encode
from sottovoce.door.outgoing import SEAL, Outgoing
from sottovoce.transports.base import Transport
from sottovoce.transports.certificates import Credentials, create_authority, issue
from sottovoce.transports.grpc_wire import GrpcCoordinator, serve_party
from sottovoce.transports.identity import Identity
from sottovoce.transports.in_process import InProcess

PARTIES = ("anna", "ben")
serials = count(1)


class Echo:
    def __init__(self, name: str) -> None:
        self.name = name

    def identify(self, identity: Identity) -> None:
        """It signs nothing."""

    def handle(self, request: bytes) -> Outgoing:
        frame = decode(request)
        # The wire is measured, not the gate: the seal is taken to answer with as many numbers as were sent.
        kind = "done" if frame.kind == "done" else "answer"
        return Outgoing(encode(Frame(kind, frame.serial, arrays=frame.arrays)), seal=SEAL)


def party(name: str, port: int, folder: str) -> None:
    serve_party(Echo(name), f"localhost:{port}", Credentials.load(folder, name))


def milliseconds(wire: Transport, floats: int, rounds: int) -> float:
    """Median over rounds, encoding at the coordinator and decoding there included."""
    vector = np.random.default_rng(0).normal(size=floats)
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        message = encode(Frame("ask", next(serials), query="echo", arrays={"w": vector}))
        replies = wire.exchange(dict.fromkeys(PARTIES, message))
        total = sum(decode(reply).arrays["w"] for reply in replies.values())
        took.append(1e3 * (time.perf_counter() - start))
        assert np.array_equal(total, 2 * vector)
    return statistics.median(took)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        create_authority(folder)
        for name in ("coordinator", *PARTIES):
            issue(folder, name)
        remote = GrpcCoordinator("localhost:0", PARTIES, Credentials.load(Path(folder), "coordinator"))
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=party, args=(name, remote.port, folder)) for name in PARTIES]
        for process in processes:
            process.start()
        remote.wait_for_parties()
        local = InProcess([Echo(name) for name in PARTIES])
        print("float64 each way   in-process       gRPC     added")
        for floats, rounds in ((100, 500), (1_000_000, 15)):
            milliseconds(remote, floats, max(rounds // 10, 2))
            inside, outside = milliseconds(local, floats, rounds), milliseconds(remote, floats, rounds)
            print(f"{floats:>17,} {inside:9.3f} ms {outside:7.2f} ms {outside - inside:5.2f} ms")
        remote.exchange(dict.fromkeys(PARTIES, encode(Frame("done", next(serials)))))
        for process in processes:
            process.join()
        remote.close()


if __name__ == "__main__":
    main()
