"""Private set intersection over gRPC with TLS, each role a process: `python benchmarks/alignment.py`.

Two parties with 200,000 and with 1,000,000 identifiers each, of which half are common, and three with 100,000. Wall
time is that of the alignment, from the first message to the last; a party multiplies points on all cores. CPU and
memory are those of whole processes, their workers and imports included (memory: the largest one). Bytes are of frames.
Seconds by stage: at the coordinator from request to last reply, at a party from request to reply. Then what
`--people` (10,000,000) a side would take, by formula. `--psi PYTHON` runs openmined-psi's own DDH in one process of
that interpreter on two lists of 100,000, once in each direction, so that both sides know whom they have in common: its
CPU time is that of both sides. Results are kept in `benchmarks/results/alignment.json`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import hashlib
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

RESULTS = Path(__file__).parent / "results" / "alignment.json"
CASES = {"2 x 200,000": (2, 200_000), "2 x 1,000,000": (2, 1_000_000), "3 x 100,000": (3, 100_000)}
STAGES = {"list": "lists through all parties", "words": "words and common words", "digest": "digest", "keys": "keys"}
RECORD = 24  # bytes of a word with its place in a file
PSI = """
import sys, time
import private_set_intersection.python as psi
count = int(sys.argv[1])
lists = [[f"patient-{place:08d}" for place in range(start, start + count)] for start in (0, count // 2)]
began, said = time.process_time(), 0
for own, other in (lists, lists[::-1]):
    client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(1e-9, len(own), other, psi.DataStructure.RAW)
    request = client.CreateRequest(own)
    response = server.ProcessRequest(request)
    found = client.GetIntersection(setup, response)
    said += sum(len(each.SerializeToString()) for each in (setup, request, response))
    assert len(found) == count - count // 2
print(time.process_time() - began, said)
"""


def stage_of(message: bytes) -> str:
    """Of a request."""
    from sottovoce.gate.frames import decode

    query = decode(message).query
    stages = {"list": "list", "digest": "digest", "agree": "digest", "agreed": "digest"}
    return stages.get(query, "words" if query in ("words", "take", "match", "common") else "keys")


class Counting:
    """A wire that counts the bytes of each party, and the seconds of each stage."""

    def __init__(self, wire: Any) -> None:
        self._wire, self.parties, self.communication = wire, wire.parties, wire.communication
        self.up, self.down, self.seconds = Counter[str](), Counter[str](), Counter[str]()

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        stage, began = stage_of(next(iter(messages.values()))), time.perf_counter()
        replies: dict[str, bytes] = self._wire.exchange(messages)
        self.seconds[stage] += time.perf_counter() - began
        for name, message in messages.items():
            self.down[name] += len(message)
            self.up[name] += len(replies[name])
        return replies


def serve(name: str, port: str, folder: Path, parties: int, count: int) -> None:
    """Be a party: half of its identifiers are those of all, the others its own."""
    import numpy as np

    from sottovoce.federation.party import Party
    from sottovoce.federation.policy import Policy
    from sottovoce.transports.certificates import Credentials, pin_in
    from sottovoce.transports.grpc_party import serve_party

    names = [f"p{place}" for place in range(parties)]
    own = names.index(name)
    places = np.r_[: count // 2, (own + 1) * count : (own + 1) * count + count - count // 2]
    np.random.default_rng(own).shuffle(places)
    ids = 10**15 + places  # of 16 letters
    holder = Party(name, np.zeros((count, 1)), None, ids=ids, policy=Policy(align=tuple(names)))
    pins = {other: pin_in(folder / f"{other}.pem")[1] for other in names if other != name}
    seconds, handle = Counter[str](), holder.handle

    def timed(request: bytes) -> Any:
        stage, began = stage_of(request), time.perf_counter()
        try:
            return handle(request)
        finally:
            seconds[stage] += time.perf_counter() - began

    holder.handle = timed  # type: ignore[method-assign]
    serve_party(holder, f"localhost:{port}", Credentials.load(folder, name), give_up_after=120.0, pins=pins)
    kept = holder.aligner.file.kept
    assert kept is not None
    assert len(kept.places) == count // 2
    served = hashlib.sha256(places[kept.places].tobytes())
    (folder / f"{name}.json").write_text(json.dumps([served.hexdigest(), seconds]))


def measured(parties: int, count: int, matcher: str) -> dict[str, Any]:
    """One alignment."""
    from sottovoce.federation.alignment import new_terms
    from sottovoce.federation.coordinator import Coordinator
    from sottovoce.transports.authority import create_authority, issue
    from sottovoce.transports.certificates import Credentials
    from sottovoce.transports.grpc_wire import GrpcCoordinator

    names = [f"p{place}" for place in range(parties)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        create_authority(folder)
        for name in ("coordinator", *names):
            issue(folder, name)
        wire = GrpcCoordinator("localhost:0", names, Credentials.load(folder, "coordinator"), timeout=600.0)
        program = [sys.executable, __file__, "--party"]
        ends = {
            name: subprocess.Popen([*program, name, str(wire.port), str(folder), str(parties), str(count)])
            for name in names
        }
        wire.wait_for_parties(120)
        counting = Counting(wire)
        coordinator = Coordinator(counting)
        cpu, wall = time.process_time(), time.perf_counter()
        found = coordinator.align(new_terms(names, matcher))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        coordinator.dismiss()
        wire.close()
        spent = {name: os.wait4(end.pid, 0)[2] for name, end in ends.items()}
        assert found.common == count // 2
        told = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
        assert len({order for order, _ in told.values()}) == 1
    import resource

    return {
        "seconds": wall,
        "coordinator": {
            "cpu": cpu,
            "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "bytes in": sum(counting.up.values()),
            "bytes out": sum(counting.down.values()),
            "stages": counting.seconds,
        },
        "parties": {
            name: {
                "cpu": spent[name].ru_utime + spent[name].ru_stime,
                "MiB": spent[name].ru_maxrss / 1024,
                "bytes in": counting.down[name],
                "bytes out": counting.up[name],
                "stages": told[name][1],
            }
            for name in names
        },
        "load before": LOAD,
        "cores": os.cpu_count(),
    }


def keep(name: str, found: dict[str, Any]) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept[name] = found
    RESULTS.write_text(
        "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept)) + "\n}\n"
    )


def show(name: str, found: dict[str, Any]) -> None:
    party, own = found["parties"]["p0"], found["coordinator"]
    cells = (
        name,
        f"{found['seconds']:.0f}",
        f"{party['cpu']:.0f} / {own['cpu']:.0f}",
        f"{party['bytes out'] / 1e6:.1f} / {party['bytes in'] / 1e6:.1f}",
        f"{own['bytes in'] / 1e6:.1f} / {own['bytes out'] / 1e6:.1f}",
        f"{party['MiB']:.0f} / {own['MiB']:.0f}",
    )
    print("| " + " | ".join(cells) + " |", flush=True)


def show_stages(found: dict[str, Any]) -> None:
    for stage, words in STAGES.items():
        party, own = (one.get("stages", {}).get(stage, 0.0) for one in (found["parties"]["p0"], found["coordinator"]))
        print(f"  {words}: {own:.1f} s, of which a party {party:.1f} s", flush=True)


def forecast(small: dict[str, Any], large: dict[str, Any], people: int) -> None:
    """Two parties with so many people each, half of them common, by what two sizes took on this machine."""
    sizes = [CASES[case][1] for case in ("2 x 200,000", "2 x 1,000,000")]
    print(f"2 x {people:,} by formula, with half of them common:")
    for role in ("party", "coordinator"):
        one, two = ({**found["parties"], **found}.get("p0" if role == "party" else role) for found in (small, large))
        slope = 2**20 * (two["MiB"] - one["MiB"]) / (sizes[1] - sizes[0])
        peak = two["MiB"] + slope * (people - sizes[1]) / 2**20
        disk = RECORD * people * 2 / 1e6  # the order and the words of a party; the words of both
        moved = {way: two[f"bytes {way}"] * people / sizes[1] / 1e6 for way in ("in", "out")}
        print(
            f"  {role}: CPU {two['cpu'] * people / sizes[1]:,.0f} s, {moved['out']:,.0f} MB out, "
            f"{moved['in']:,.0f} MB in, memory {peak:,.0f} MiB ({slope:.0f} bytes for each of its people), "
            f"{disk:,.0f} MB on disk"
        )
    print(f"  seconds on this machine: {large['seconds'] * people / sizes[1]:,.0f}")


LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--matched-by", default="coordinator", help="or p0, p1, ...")
    parser.add_argument("--people", type=int, default=10_000_000, help="a side, for the formula")
    parser.add_argument("--psi", help="a Python that has openmined-psi", metavar="PYTHON")
    parser.add_argument("--party", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.party:
        name, port, folder, parties, count = arguments.party
        serve(name, port, Path(folder), int(parties), int(count))
        sys.exit()
    roles = "CPU s: a party / coordinator"
    print(f"| lists | s | {roles} | MB of a party: out / in | coordinator: in / out | MiB: party / coordinator |")
    print("|---|---|---|---|---|---|")
    results: dict[str, dict[str, Any]] = {}
    for case in arguments.only:
        title = case if arguments.matched_by == "coordinator" else f"{case}, matched by {arguments.matched_by}"
        result = measured(*CASES[case], arguments.matched_by)
        keep(title, result)
        show(title, result)
        results[case] = result
    for case, result in results.items():
        print(f"{case}, by stage:")
        show_stages(result)
    if {"2 x 200,000", "2 x 1,000,000"} <= set(results):
        forecast(results["2 x 200,000"], results["2 x 1,000,000"], arguments.people)
    if arguments.psi:
        command = [arguments.psi, "-c", PSI, "100000"]
        cpu, sent = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        keep("2 x 100,000, openmined-psi", {"cpu of both sides": float(cpu), "bytes": int(sent), "load before": LOAD})
        print(f"openmined-psi, 2 x 100,000: CPU s of both sides {float(cpu):.0f}, {int(sent) / 1e6:.0f} MB")
