"""Secure columns on a slow network, and all their bytes: `python benchmarks/secure_wire.py --parties 2 8`.

    time    one fit at epsilon 1 over gRPC with TLS, each role a process, the last party with the labels, a dealer that
            deals. All bytes pass one link of 100 Mbit/s at the coordinator and arrive 50 ms later (`slow_wire.py`), and
            are counted there, TLS and all. CPU is what a role takes from the first request to its end, in times of the
            same fit in one place. Memory is that of the largest process
    bytes   frames of one fit by query, to a party and from it, for each record and round. A query that comes in every
            round is counted in `--rounds` of them, of which the first may carry more, and the others stand for all

Sets are a9a, by attributes, and made-up ones such as "200000 x 50", whose columns are dealt out evenly. Cells are kept
in a file, and what is there is not run again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import itertools
import subprocess
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from peers import results
from slow_wire import Network, SlowWire

import sottovoce as sv
from secure import DELTA, prepared, split_of
from sottovoce.gate.frames import decode
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.base import Transport
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_wire import GrpcCoordinator

PROGRAM = Path(__file__).parent.parent / "tests" / "programs" / "serve_secure.py"
DEALER = "notary"
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 600.0


class Job(NamedTuple):
    """Rows, where the columns of each party end, and what the model and the federation are told."""

    X: NDArray[np.float64]
    y: NDArray[Any]
    stops: list[int]
    norms: list[float] | None
    options: dict[str, Any]

    @property
    def parts(self) -> list[NDArray[np.float64]]:
        return np.split(self.X, self.stops[:-1], axis=1)

    @property
    def split(self) -> dict[str, Any]:
        """What `by_columns` and `connect` are told."""
        held = {"labels": "held", "label_party": len(self.stops) - 1, "norms": self.norms}
        return {**held, "products": "secure"}

    def model(self, solver: Any) -> sv.PrivateLogisticRegression:
        return sv.PrivateLogisticRegression(1.0, **self.options, solver=solver)


def made_up(records: int, features: int) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Entries in [-1, 1], logistic labels."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (records, features))
    return X, np.where(X @ rng.standard_normal(features) + rng.logistic(size=records) > 0, 1, -1)


def job_of(problem: str, parties: int) -> Job:
    """A set, split."""
    options: dict[str, Any] = {"delta": DELTA, "alpha": 0.0, "classes": (-1, 1)}
    if "x" in problem:
        records, features = (int(count) for count in problem.replace(",", "").split("x"))
        X, y = made_up(records, features)
        stops = [int(part[-1]) + 1 for part in np.array_split(np.arange(features), parties)]
        return Job(X, y, stops, None, {**options, "entry_bound": 1.0})
    case, widths = prepared(problem)
    return Job(case.X, case.y, *split_of(widths, parties), {**options, "row_norm": 1.0})


# Time


def one_place(job: Job, solver: str) -> float:
    """CPU seconds; everything is compiled before."""
    job.model(solver).fit(job.X[:500], job.y[:500])
    began = time.process_time()
    job.model(solver).fit(job.X, job.y)
    return time.process_time() - began


def cpu_of(process: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def lay_out(folder: Path, names: list[str], job: Job) -> None:
    """Certificates, and of each party its rows and its ledger."""
    create_authority(folder)
    for name in ("coordinator", *names, DEALER):
        issue(folder, name)
    for name, part in zip(names, job.parts, strict=True):
        labels = {"y": job.y} if name == names[-1] else {}
        np.savez(folder / f"{name}.npz", X=part, **labels)
        sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=3.0, delta=1e-5)


def timed(problem: str, parties: int, solver: str, network: Network) -> dict[str, Any]:
    """One fit over the slow network."""
    warnings.simplefilter("ignore")
    job, names = job_of(problem, parties), [f"p{place:02}" for place in range(parties)]
    central = one_place(job, solver)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lay_out(folder, names, job)
        papers = Credentials.load(folder, "coordinator")
        wire = GrpcCoordinator("localhost:0", (*names, DEALER), papers, timeout=PATIENCE)
        slow, ends = SlowWire((*names, DEALER), wire.port, network), dict[str, subprocess.Popen[bytes]]()
        for name in (*names, DEALER):
            own = [] if name == DEALER else [folder / f"{name}.npz", folder / f"{name}.db"]
            command = [sys.executable, PROGRAM, name, f"localhost:{slow.ports[name]}", folder, *own]
            ends[name] = subprocess.Popen(list(map(str, command)))
        wire.wait_for_parties(PATIENCE)
        before = {name: cpu_of(end.pid) for name, end in ends.items()}
        federation = sv.Federation.connect(wire, split="columns", dealer=DEALER, **job.split)
        cpu, wall = time.process_time(), time.perf_counter()
        model = job.model(solver).fit(federation)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        wire.close()
        spent = {name: os.wait4(end.pid, 0)[2] for name, end in ends.items()}
        up, down = slow.count()
    used = {name: usage.ru_utime + usage.ru_stime - before[name] for name, usage in spent.items()}
    said = model.communication_
    return {
        "solver": model.plan_.algorithm,
        "one place": central,
        "wall": wall,
        "coordinator": cpu,
        "parties": [used[name] for name in names],
        "dealer": used[DEALER],
        "up": [up[name] for name in names],
        "down": [down[name] for name in names],
        "dealer up": up[DEALER],
        "dealer down": down[DEALER],
        "frames": [said.uplink_bytes, said.downlink_bytes],
        "memory": max(usage.ru_maxrss for usage in spent.values()) / 1024,
    }


def sizes(counts: list[float], unit: float) -> str:
    """Of the parties: the mean, and the most of one."""
    return f"{np.mean(counts) / unit:,.1f} ({max(counts) / unit:,.1f})"


def time_line(problem: str, parties: int, cell: Mapping[str, Any]) -> list[str]:
    one = cell["one place"]
    roles = [cell["coordinator"], float(np.mean(cell["parties"])), cell["dealer"]]
    whole = cell["coordinator"] + sum(cell["parties"]) + cell["dealer"]
    line = [problem, cell["solver"], str(parties), f"{cell['wall']:.0f}", f"{one:.2f}"]
    line += [" / ".join(f"{role:.1f}" for role in roles), " / ".join(f"{role / one:.1f}" for role in (*roles, whole))]
    line += [" / ".join(sizes(cell[way], 1e6) for way in ("up", "down"))]
    return [*line, f"{cell['dealer up'] / 1e6:.1f} / {cell['dealer down'] / 1e6:.1f}", f"{cell['memory']:.0f}"]


TIME = ["set", "solver", "M", "wall, s", "one place, CPU s", "CPU s: coordinator / a party / dealer"]
TIME += ["in times of one place, and all roles", "a party: MB up / down, mean (most)", "dealer: MB up / down", "MiB"]


# Bytes


class Counted:
    """A wire that knows by query and round what each party was sent and has said."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.parties, self.communication = inner, inner.parties, inner.communication
        self.up, self.down = Counter[tuple[str, int, str]](), Counter[tuple[str, int, str]]()

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        replies = self._inner.exchange(messages)
        for name, message in messages.items():
            frame = decode(message)
            key = (frame.query if frame.kind in ("ask", "secure") else "beside", frame.round, name)
            self.down[key] += len(message)
            self.up[key] += len(replies[name])
        return replies

    def close(self) -> None:
        self._inner.close()


def counted(problem: str, parties: int, solver: str, rounds: int) -> dict[str, Any]:
    """Bytes by query: in how many rounds it came, how many a whole fit has, and what each party sent and got."""
    warnings.simplefilter("ignore")
    job = job_of(problem, parties)
    federation = sv.Federation.by_columns(job.parts, job.y, **job.split)
    planned = job.model(solver).plan(federation)
    options = {**job.options, "solver": sv.solvers.by_name(planned.algorithm, rounds=rounds) if rounds else solver}
    wire = federation.transport = Counted(federation.transport)  # type: ignore[assignment]
    sv.PrivateLogisticRegression(1.0, **options, insecure_seed=0).fit(federation)
    came = defaultdict[str, set[int]](set)
    for query, number, _ in wire.up:
        came[query].add(number)
    found: dict[str, Any] = {"solver": planned.algorithm, "records": len(job.y), "queries": {}}
    for query, numbers in came.items():
        whole = planned.rounds if rounds and len(numbers) == rounds else len(numbers)
        first, *others = sorted(numbers)
        found["queries"][query] = {"rounds": whole} | {
            way: [[counts[query, first, name], *_mean(counts, query, others, name)] for name in wire.parties]
            for way, counts in (("up", wire.up), ("down", wire.down))
        }
    return found


def _mean(counts: Mapping[tuple[str, int, str], int], query: str, numbers: list[int], name: str) -> list[float]:
    """Of a party in these rounds, if there are some."""
    return [float(np.mean([counts[query, number, name] for number in numbers]))] if numbers else []


def bytes_lines(problem: str, parties: int, cell: Mapping[str, Any]) -> list[list[str]]:
    """A line for each query, and one for all."""
    lines, records = list[list[str]](), cell["records"]
    whole = {way: np.zeros(parties) for way in ("up", "down")}
    for query, one in cell["queries"].items():
        each = {way: np.mean([counts[-1] for counts in one[way]]) / records for way in whole}
        sums = {way: np.array([counts[0] + (one["rounds"] - 1) * counts[-1] for counts in one[way]]) for way in whole}
        for way in whole:
            whole[way] += sums[way]
        in_all = " / ".join(sizes(list(sums[way]), 1e6) for way in whole)
        a_record = f"{each['up']:.2f} / {each['down']:.2f}"
        lines.append([problem, cell["solver"], str(parties), query or "set-up", str(one["rounds"]), a_record, in_all])
    a_record = " / ".join(f"{whole[way].mean() / records:.0f}" for way in whole)
    in_all = " / ".join(sizes(list(whole[way]), 1e6) for way in whole)
    return [*lines, [problem, cell["solver"], str(parties), "**all**", "", f"in all {a_record}", in_all]]


BYTES = [*TIME[:3], "query", "rounds", "a record and round: bytes up / down, mean", TIME[7]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["a9a"], metavar="SET")
    parser.add_argument("--parties", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--solver", nargs="+", default=["auto"])
    parser.add_argument("--tables", nargs="+", default=["time", "bytes"], choices=["time", "bytes"])
    parser.add_argument("--latency", type=float, default=50.0, help="ms, one way")
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s; 0: no limit")
    parser.add_argument("--rounds", type=int, default=0, help="bytes: rounds that are counted; 0: all")
    parser.add_argument("--results", type=Path, default=results.FOLDER / "secure_wire.json")
    arguments = parser.parse_args()
    network = Network(arguments.latency / 1e3, arguments.rate * 1e6 / 8)
    kept = results.Results(arguments.results)
    jobs = list(itertools.product(arguments.only, arguments.parties, arguments.solver))
    calls: dict[str, Any] = {"time": (timed, network), "bytes": (counted, arguments.rounds)}
    lines = dict[str, list[list[str]]]()
    for table in arguments.tables:
        lines[table] = []
        for problem, parties, solver in jobs:
            key, (function, more) = f"{table} / {problem} / {parties} / {solver}", calls[table]
            if key not in kept.cells:
                kept.put(key, function(problem, parties, solver, more))
            made = bytes_lines if table == "bytes" else lambda *given: [time_line(*given)]
            lines[table] += made(problem, parties, kept.cells[key])
            print(key, kept.cells[key].get("wall", ""), file=sys.stderr, flush=True)
    for table, header in (("time", TIME), ("bytes", BYTES)):
        if table in lines:
            text = results.table(header, lines[table])
            print("\n" + text, flush=True)


if __name__ == "__main__":
    main()
