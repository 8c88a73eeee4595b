"""Rows that do not fit in memory: peak memory, the time of a pass against that of reading the file, and the bits.

    python benchmarks/files.py [--records 9000000] [--features 40] [--limit 450] [--folder FOLDER] [--source FOLDER]

A process is limited to so many megabytes of memory of its own (RLIMIT_DATA, all that it allocates, its libraries'
included). It fits on a Parquet file; its prepared rows are in a file. Printed are the sizes of both against the limit,
the peak of the memory that was allocated and of what was resident, the best of several passes against the best of
several readings of the same file in the same run, from the page cache and after it was dropped, and whether the model
has the bits of one that was fitted on arrays by a process without a limit.
"""

from __future__ import annotations

import os

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve much more than they use
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

GROUP = 100_000  # rows of a row group
TRIES = 9


def made(folder: Path, records: int, features: int) -> Path:
    """A Parquet file of that shape, written group by group."""
    import pyarrow
    from pyarrow import parquet

    path, rng = folder / "people.parquet", np.random.default_rng(1)
    names = [f"x{place}" for place in range(features)]
    schema = pyarrow.schema([*((name, pyarrow.float64()) for name in names), ("y", pyarrow.int64())])
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, records, GROUP):
            X = rng.standard_normal((min(GROUP, records - start), features))
            y = (X[:, 0] + rng.standard_normal(len(X)) > 0).astype(np.int64)
            writer.write_table(pyarrow.table({**dict(zip(names, X.T, strict=True)), "y": y}, schema=schema))
    return path


def model(features: int) -> Any:
    """What is fitted."""
    import sottovoce as sv

    bound = 2 * features**0.5
    return sv.PrivateLogisticRegression(
        delta=1e-9, row_norm=bound, classes=(0, 1), insecure_seed=1, solver=sv.solvers.Newton(rounds=8)
    )


def allocated() -> int:
    """Bytes of private memory that this process may write."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


class Peak:
    """The most that was allocated while it runs, looked at every few milliseconds."""

    def __init__(self) -> None:
        self.most, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.most = max(self.most, allocated())

    def ended(self) -> int:
        """The peak."""
        self._stop.set()
        self._thread.join()
        return self.most


def best(works: Sequence[Callable[[], None]], before: Callable[[], None]) -> list[float]:
    """Seconds of the fastest of several tries of each, in turns."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(TRIES):
        for work, own in zip(works, times, strict=True):
            before()
            start = time.perf_counter()
            work()
            own.append(time.perf_counter() - start)
    return list(map(min, times))


def limited(path: Path, features: int, limit: int, folder: Path) -> dict[str, Any]:
    """In a process of its own: the fit within the limit, and passes over its rows."""
    import sottovoce as sv
    from sottovoce.data import block_parts
    from sottovoce.data.matrix import Slope

    rng = np.random.default_rng(0)
    small = rng.standard_normal((2000, features))
    model(features).fit(sv.Dataset.from_arrays(small, (small[:, 0] > 0) * 1))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    before = allocated()
    kept: list[block_parts.PartsInFile] = []
    made_of = block_parts.in_memory_or_file

    def remember(*arguments: Any) -> Any:
        kept.append(made_of(*arguments))
        return kept[-1]

    block_parts.in_memory_or_file = remember
    peak, start = Peak(), time.perf_counter()
    fitted = model(features).fit(sv.Dataset(path, label="y", folder=folder))
    seconds = time.perf_counter() - start
    parts = kept[-1]
    file = parts._file
    size = os.fstat(file.handle).st_size
    buffer = bytearray(block_parts.PIECE)
    weights, slope = np.full(parts.dimension, 0.1), Slope(fitted.plan_.scaled_loss, 1.0, parts.bits)

    def drop() -> None:
        os.fsync(file.handle)
        os.posix_fadvise(file.handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def read() -> None:
        offset = 0
        while count := os.preadv(file.handle, [buffer], offset):
            offset += count

    def one_pass() -> None:
        parts.weighted_sum(weights, slope)

    works = (read, one_pass)
    found = {"cached": best(works, read), "dropped": best(works, drop)}
    return {
        "in file": isinstance(parts, block_parts.PartsInFile),
        "prepared": size,
        "before": before,
        "peak": peak.ended(),
        "resident": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "seconds": seconds,
        "coef": fitted.coef_.tobytes().hex(),
        "times": found,
    }


def main() -> None:
    """Make the file, fit within the limit and without, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=9_000_000)
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--limit", type=int, default=450, help="megabytes")
    parser.add_argument("--folder", type=Path, default=None, help="for prepared rows")
    parser.add_argument("--source", type=Path, default=None, help="for the Parquet file; default: the same")
    parser.add_argument("--within", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    limit = given.limit * 1_000_000
    if given.within is not None:
        print(json.dumps(limited(given.within, given.features, limit, given.folder)))
        return
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as place,
        tempfile.TemporaryDirectory(dir=given.source or given.folder) as other,
    ):
        path = made(Path(other), given.records, given.features)
        called = [sys.executable, "-W", "ignore", __file__, "--within", str(path), "--folder", place]
        called += ["--features", str(given.features), "--limit", str(given.limit)]
        told = json.loads(subprocess.run(called, stdout=subprocess.PIPE, text=True, check=True).stdout)
        show(told, path, limit, given.features)


def show(told: dict[str, Any], path: Path, limit: int, features: int) -> None:
    """The table, and the same fit on arrays."""
    from pyarrow import parquet

    mega = {key: f"{int(told[key]) / 1e6:.0f} MB" for key in ("prepared", "before", "peak", "resident")}
    size = path.stat().st_size
    print(f"limit of what is allocated {limit / 1e6:.0f} MB; libraries alone {mega['before']}")
    print(f"file {size / 1e6:.0f} MB, {size / limit:.1f} times the limit")
    print(f"prepared rows {mega['prepared']}, {int(told['prepared']) / limit:.1f} times the limit")
    print(f"peak allocated {mega['peak']}, peak resident {mega['resident']}, rows in a file: {told['in file']}")
    for what, (read, one_pass) in told["times"].items():
        print(f"{what}: a reading {read:.3f} s, a pass {one_pass:.3f} s, {one_pass / read:.2f} times")
    print(f"the fit took {told['seconds']:.1f} s with preparing")
    table = parquet.read_table(path)
    X = np.column_stack([table.column(place).to_numpy() for place in range(features)])
    y = table.column("y").to_numpy()
    del table
    expected = model(features).fit(X, y).coef_
    print(f"the bits of the model on arrays: {bytes.fromhex(str(told['coef'])) == expected.tobytes()}")


if __name__ == "__main__":
    main()
