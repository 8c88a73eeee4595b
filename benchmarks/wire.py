"""Milliseconds per round of the wires: one request out to each party, and one answer back from each.

    python benchmarks/wire.py                      in one process, and gRPC
    python benchmarks/wire.py --nvflare            NVIDIA FLARE too, provisioned (needs sottovoce[nvflare])
    python benchmarks/wire.py --nvflare simulator --parties 20

Every party of gRPC and of FLARE is a process of its own, on loopback; gRPC and a provisioned FLARE speak mutual TLS. A
party copies the request's numbers into its answer, so nothing but the wire is measured. "Over" is what a round takes
beyond the same round in one process, which is the arithmetic: encoding, decoding and adding up. The rounds of all wires
are made in turns, in one process, so that they meet the same machine; medians, with the lower quartile in brackets.
"CPU" is what a round takes of the coordinator's process, whatever else the machine does: where every party has its own
machine, a round takes little more. What was measured is kept in `benchmarks/results/wire.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from peers import results

from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import GATE, Outgoing
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.base import InProcess, Transport
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator
from sottovoce.transports.identity import Identity

SIZES = ((100, 200), (1_000_000, 9))  # floats each way, and rounds
serials = count(1)


class Echo:
    def __init__(self, name: str) -> None:
        self.name = name

    def identify(self, identity: Identity) -> None:
        """It signs nothing."""

    def handle(self, request: bytes) -> Outgoing:
        frame = decode(request)
        # The wire is measured, not the gate: the secure is taken to answer with as many numbers as were sent.
        kind = "done" if frame.kind == "done" else "answer"
        return Outgoing(encode(Frame(kind, frame.serial, arrays=frame.arrays)), made_by=GATE)


def names_of(parties: int) -> tuple[str, ...]:
    return tuple(f"p{place:02}" for place in range(parties))


def one_round(wire: Transport, vector: np.ndarray) -> tuple[float, float]:
    """Milliseconds, and those of CPU of this process, encoding at the coordinator and decoding there included."""
    start, used = time.perf_counter(), time.process_time()
    message = encode(Frame("ask", next(serials), query="echo", arrays={"w": vector}))
    replies = wire.exchange(dict.fromkeys(wire.parties, message))
    total = sum(decode(reply).arrays["w"] for reply in replies.values())
    took = 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - used)
    assert np.allclose(total, len(wire.parties) * vector)
    return took


def measured(wires: dict[str, Transport]) -> dict[str, Any]:
    """Median, lower quartile and median of CPU for each wire and size, the wires in turns."""
    found: dict[str, Any] = {}
    for floats, rounds in SIZES:
        vector = np.random.default_rng(0).normal(size=floats)
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in wires}
        for attempt in range(rounds + 2):
            for name, wire in wires.items():
                spent = one_round(wire, vector)
                if attempt >= 2:
                    took[name].append(spent)
        for name, each in took.items():
            times, used = zip(*each, strict=True)
            cell = statistics.median(times), statistics.quantiles(times, n=4)[0], statistics.median(used)
            found[f"{name} / {floats}"] = results.shorter(list(cell))
    return {**found, "load": os.getloadavg()[0], "cores": os.cpu_count()}


@contextlib.contextmanager
def over_grpc(names: Sequence[str]) -> Iterator[GrpcCoordinator]:
    """A wire to parties that are processes; this file is their program."""
    with tempfile.TemporaryDirectory() as folder:
        create_authority(folder)
        for name in ("coordinator", *names):
            issue(folder, name)
        wire = GrpcCoordinator("localhost:0", names, Credentials.load(folder, "coordinator"), timeout=120.0)
        serving = [sys.executable, __file__, "--serve", folder, str(wire.port)]
        processes = [subprocess.Popen([*serving, name]) for name in names]
        try:
            wire.wait_for_parties(120)
            yield wire
            wire.exchange(dict.fromkeys(names, encode(Frame("done", next(serials)))))
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.kill()
            wire.close()


def beside_one_another(parties: int, more: dict[str, Transport] | None = None) -> dict[str, Any]:
    """In one process, gRPC, and what else there is."""
    names = names_of(parties)
    with over_grpc(names) as remote:
        return measured({"process": InProcess([Echo(name) for name in names]), "grpc": remote, **(more or {})})


def over_flare(parties: int, kind: str) -> dict[str, Any]:
    """The same from inside a job of FLARE."""
    import flare

    os.environ["PYTHONPATH"] = ""
    names, classes = names_of(parties), ("flare_rounds.Timed", "flare_rounds.EchoParty")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        told = folder / "told.json"
        job = flare.write_job(folder / "job", names, classes, parties=parties, told=str(told))
        if kind == "simulator":
            process = flare.simulator(folder, job, names, classes)
            try:
                process.wait(900)
            finally:
                process.kill()
                flare.kill_all(folder)
        else:
            sites = flare.Sites(folder, names, classes)
            try:
                sites.start()
                sites.submit(job).result(900)
            finally:
                sites.stop()
        found: dict[str, Any] = json.loads(told.read_text())
        return found


def shown(found: dict[str, Any], parties: int) -> str:
    lines = [f"{parties} parties, load {found['load']:.1f} on {found['cores']} cores"]
    for floats, _ in SIZES:
        base = found[f"process / {floats}"]
        lines.append(f"  {floats:>9,} floats   in one process {base[0]:.2f} ({base[1]:.2f}) ms, CPU {base[2]:.2f} ms")
        for wire in ("grpc", "nvflare"):
            if cell := found.get(f"{wire} / {floats}"):
                over = [cell[0] - base[0], cell[1] - base[1]]
                lines.append(
                    f"  {wire:>16}   {cell[0]:8.2f} ({cell[1]:.2f}) ms, over {over[0]:8.2f} ({over[1]:.2f}) ms,"
                    f" ratio {cell[0] / base[0]:.1f}, CPU {cell[2]:.2f} ms"
                )
    return "\n".join(lines)


def main() -> None:
    if "--serve" in sys.argv:
        _, _, folder, port, name = sys.argv
        serve_party(Echo(name), f"localhost:{port}", Credentials.load(folder, name))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[2])
    parser.add_argument("--nvflare", nargs="?", const="provisioned", choices=["provisioned", "simulator"])
    arguments = parser.parse_args()
    kept = results.Results(results.FOLDER / "wire.json")
    for parties in arguments.parties:
        kind = arguments.nvflare
        found = beside_one_another(parties) if kind is None else over_flare(parties, kind)
        kept.put(f"{kind or 'grpc'} / {parties}", found)
        print(shown(found, parties), flush=True)


if __name__ == "__main__":
    main()
