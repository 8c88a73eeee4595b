"""Sealed columns over gRPC with TLS, each role a process: `python benchmarks/sealed_wire.py --parties 2 8`.

One fit at epsilon 1 of parties that each have some attributes of a9a (`--only made-up`: columns of 1,000,000 x 50), the
last of them the labels, with a helper that deals. CPU is that of whole processes, imports and preparation included;
beside it the same fit in one place. Bytes are those of frames, to all parties and the helper and from them. Memory is
that of the largest process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import argparse
import subprocess
import tempfile
import time
import warnings

import numpy as np

import sottovoce as sv
from sealed import DELTA, made_up, prepared, split_of
from sottovoce.transports.certificates import Credentials, create_authority, issue
from sottovoce.transports.grpc_wire import GrpcCoordinator

PROGRAM = Path(__file__).parent.parent / "tests" / "programs" / "serve_sealed.py"
HELPER = "notary"


def one_fit(problem: str, solver: str, parties: int) -> str:
    """A row of the table."""
    stops, norms, bounds = [25, 50], None, {"row_norm": None, "entry_bound": 1.0}
    if problem == "made-up":
        X, y = made_up()
    else:
        case, widths = prepared(problem)
        X, y, (stops, norms), bounds = case.X, case.y, split_of(widths, parties), {"row_norm": 1.0}
    options = {"delta": DELTA, "alpha": 0.0, "classes": (-1, 1), "solver": solver, **bounds}
    names = [f"p{place:02}" for place in range(parties)]
    began = time.process_time()
    sv.PrivateLogisticRegression(1.0, **options).fit(X, y)
    central = time.process_time() - began
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        create_authority(folder)
        for name in ("coordinator", *names, HELPER):
            issue(folder, name)
        for name, part in zip(names, np.split(X, stops[:-1], axis=1), strict=True):
            labels = {"y": y} if name == names[-1] else {}
            np.savez(folder / f"{name}.npz", X=part, ids=np.arange(len(y)), **labels)
            sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=3.0, delta=1e-5)
        wire = GrpcCoordinator("localhost:0", (*names, HELPER), Credentials.load(folder, "coordinator"), timeout=300.0)
        ends = {}
        for name in (*names, HELPER):
            own = [] if name == HELPER else [folder / f"{name}.npz", folder / f"{name}.db"]
            command = [sys.executable, PROGRAM, name, f"localhost:{wire.port}", folder, *own]
            ends[name] = subprocess.Popen(list(map(str, command)))
        wire.wait_for_parties(120)
        federation = sv.Federation.connect(
            wire,
            split="columns",
            labels="held",
            label_party=parties - 1,
            norms=norms,
            products="secure",
            helper=HELPER,
        )
        cpu, wall = time.process_time(), time.perf_counter()
        model = sv.PrivateLogisticRegression(1.0, **options).fit(federation)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        wire.close()
        spent = {name: os.wait4(end.pid, 0)[2] for name, end in ends.items()}
    said = model.communication_
    each = [usage.ru_utime + usage.ru_stime for name, usage in spent.items() if name != HELPER]
    helper = spent[HELPER].ru_utime + spent[HELPER].ru_stime
    memory = max(usage.ru_maxrss for usage in spent.values()) / 1024
    cells = (
        problem,
        model.plan_.algorithm,
        parties,
        f"{central:.2f}",
        f"{wall:.1f}",
        f"{cpu:.1f} / {np.mean(each):.1f} / {helper:.1f}",
        f"{said.uplink_bytes / 1e6:.0f} / {said.downlink_bytes / 1e6:.0f}",
        f"{memory:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["a9a"])
    parser.add_argument("--parties", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--solver", nargs="+", default=["newton", "whitened"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    roles = "CPU s: coordinator / a party / helper"
    print(f"| set | solver | M | one place, CPU s | wall s | {roles} | MB up / down, all | MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for problem in arguments.only:
        for parties in arguments.parties:
            for solver in arguments.solver:
                print(one_fit(problem, solver, parties), flush=True)
