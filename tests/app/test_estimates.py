"""Estimates of time and memory: lines through two rehearsals, which read nothing and charge nothing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app import estimates
from sottovoce.app.costs import Cost, cost_of
from sottovoce.app.estimates import InFiles, InMemory, Line, Place, Rehearsal, can_be_rehearsed
from sottovoce.data import parts_in_file, room
from sottovoce.plan.plan import Plan

OPTIONS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "entry_bound": 1.0, "classes": (-1, 1), "insecure_seed": 3}
SOLVERS: dict[Any, dict[str, Any]] = {
    sv.solvers.Newton(rounds=5): {},
    sv.solvers.Gradient(rounds=5): {},
    sv.solvers.SGD(rounds=5, rate=0.1): {},
    sv.solvers.Whitened(rounds=5): {},
    sv.solvers.CD(inner=60): {},
    sv.solvers.SCD(rounds=8, rate=0.1): {"alpha": 0.01},
    sv.solvers.FrankWolfe(rounds=5): {"radius": 2.0},
}


def data(records: int, features: int = 8) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (records, features))
    return X, np.where(X[:, 0] > 0, 1, -1)


def plan_of(solver: Any, parts: list[int], **changes: Any) -> Plan:
    model = sv.PrivateLogisticRegression(**OPTIONS | changes, solver=solver)
    held = [data(count) for count in parts]
    return model.plan(sv.Federation.central(*held[0]) if len(parts) == 1 else sv.Federation.by_rows(held))


def test_a_line_goes_through_two_points_and_does_not_fall() -> None:
    line = Line.through((10, 3.0), (30, 5.0))
    assert line == (2.0, 0.1)
    assert Line.through((10, 3.0), (30, 2.0)) == (3.0, 0.0)
    assert Line.through((10, 1.0), (30, 5.0)).fixed == 0.0


def rehearsal(records: int) -> Rehearsal:
    """Of a machine on which opening takes 1 s and 10 ms a record, a gram 0 and a gradient 2 ms and 1 ms a record."""
    return Rehearsal(records, "gram", 1.0 + 0.01 * records, {"gradient": [0.002 + 0.001 * records] * 3})


@pytest.mark.parametrize(("parts", "remote"), [([100], False), ([60, 40], False), ([60, 40], True)])
def test_asks_of_all_parties_are_added_up(parts: list[int], remote: bool) -> None:
    plan = plan_of(sv.solvers.Newton(rounds=5), parts)
    both = rehearsal(10), rehearsal(80)
    found = estimates._seconds(plan, algorithms.of(plan), *both, remote=remote)
    computing = max(parts) if remote else 100
    assert found == pytest.approx(len(parts) * (1.0 + 5 * 0.002) + computing * (0.01 + 5 * 0.001))


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_memory_is_that_of_a_fit(solver: Any, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python and NumPy allocate is counted, the same at each run; a fit has its report and model besides."""
    X, y = data(60_000, 30)
    rows: Any = sp.random(60_000, 60, 0.1, format="csr", random_state=0) if sparse else X
    monkeypatch.setattr(estimates, "_resident", lambda: 0)
    model = sv.PrivateLogisticRegression(**OPTIONS | SOLVERS[solver], solver=solver)
    federation = sv.Federation.central(rows, y)
    model.fit(federation)  # what is loaded once is there before memory is counted
    plan = model.plan(federation)
    told = InMemory(*rows.shape, 6.0 if sparse else None, here=True).estimate(plan, algorithms.of(plan))
    assert told.seconds > 0.0
    tracemalloc.start(1)
    before = tracemalloc.get_traced_memory()[0]
    model.fit(federation)
    took = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert 0.5 < told.memory_bytes / took < 2.0
    raw = InMemory(*rows.shape, 6.0 if sparse else None).raw_bytes
    kept = rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes if sparse else rows.nbytes
    assert raw == pytest.approx(kept + y.nbytes, rel=0.02)


def test_more_records_take_longer_and_more_memory() -> None:
    plan = plan_of(sv.solvers.Gradient(rounds=50), [40_000])
    wide = plan.model_copy(update={"parties": (("data", 4_000_000),)})
    form = algorithms.of(plan)
    short, long = (InMemory(each.records, 8).estimate(each, form) for each in (plan, wide))
    assert long.seconds > 4 * short.seconds
    assert long.memory_bytes - short.memory_bytes > 3_960_000 * (9 * 8 + 9 * 4)


def test_a_rehearsal_in_which_loops_are_compiled_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = iter([0, 2, 2, 3, 3, 3])  # before and after each: two were compiled in the first, one in the second
    monkeypatch.setattr(estimates, "compiled", lambda: next(loops))
    assert estimates._compiled(iter(["first", "second", "third"]).__next__) == "third"


@pytest.mark.slow
def test_the_first_estimate_on_a_machine_is_that_of_a_fit_without_compiling(tmp_path: Path) -> None:
    """In a process that finds no loop on disk, and compiles for longer than the fit takes."""
    program = """
import time
import numpy as np
import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app.estimates import InMemory
from sottovoce.data.kernels.compiling import compiled
X = np.random.default_rng(0).uniform(-1.0, 1.0, (20_000, 8))
y = np.where(X[:, 0] > 0, 1, -1)
model = sv.PrivateLogisticRegression(1.0, delta=1e-6, entry_bound=1.0, classes=(-1, 1), solver="cd")
plan = model.plan(sv.Federation.central(X, y))
start, before = time.perf_counter(), compiled()
told = InMemory(20_000, 8).estimate(plan, algorithms.of(plan)).seconds
print(told, time.perf_counter() - start, compiled() - before)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    told, taken, loops = map(float, done.stdout.split())
    assert loops > 0
    assert told < taken / 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", [".parquet", ".csv", ".svm", ".npy"])
def test_rows_in_files_are_rehearsed_where_they_would_lie(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "ENTRIES", 1 << 18)
    monkeypatch.setattr(estimates, "PATIENCE", 0.05)
    files, real = list[Any](), parts_in_file.PartsInFile
    monkeypatch.setattr(parts_in_file, "PartsInFile", lambda *told: files.append(told) or real(*told))
    plan, many = plan_of("newton", [20_000]), 2_000_000_000
    form, entries = algorithms.of(plan), 8.0 if kind == ".svm" else None
    small, large = (InFiles(count, 8, entries, kind=kind, places=(Place(tmp_path),)) for count in (20_000, many))
    fits, held = small.estimate(plan, form), len(files)
    wide = plan.model_copy(update={"parties": (("data", many),)})
    found = large.estimate(wide, form)
    assert not held  # they fit in memory
    assert files  # and these do not
    assert found.seconds > 100 * fits.seconds > 0.0
    assert not list(tmp_path.iterdir())
    assert (large.reading(plan) or 0.0) > 0.0


def test_what_is_short_is_not_rehearsed_and_what_cannot_be_is_told_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = plan_of("newton", [500]), plan_of("newton", [500])
    large = large.model_copy(update={"parties": (("data", 1_000_000),)})
    rows = InMemory(1_000_000, 8)
    assert cost_of(small, algorithms.of(small), rows=rows).memory_bytes is None
    assert cost_of(large, algorithms.of(large)).memory_bytes is None
    cost = cost_of(large, algorithms.of(large), rows=rows)
    assert cost.memory_bytes is not None
    assert cost.memory_bytes > 1_000_000 * (8 * 8 + 9 * 4)
    assert Cost(1, 1, 1, 1.0, None, 7) + Cost(1, 1, 1, 1.0, None, 5) == Cost(2, 2, 2, 2.0, None, 7)

    def refused(*_told: Any, **_more: Any) -> None:
        raise sv.errors.InputError("no such rows")

    monkeypatch.setattr(estimates.Stage, "rehearse", refused)
    rough = cost_of(large, algorithms.of(large), rows=rows)
    assert rough.memory_bytes is None
    assert rough.seconds is not None
    assert rough.seconds > 0.0


def test_fits_by_columns_and_without_privacy_are_not_rehearsed() -> None:
    X, y = data(100)
    model = sv.PrivateLogisticRegression(**OPTIONS | {"radius": 1.0}, solver="frank-wolfe")
    assert not can_be_rehearsed(model.plan(sv.Federation.by_columns([X[:, :4], X[:, 4:]], y)))
    free = OPTIONS | {"epsilon": math.inf, "insecure_seed": None, "alpha": 0.1}
    assert not can_be_rehearsed(sv.PrivateLogisticRegression(**free).plan(sv.Federation.central(X, y)))
    assert can_be_rehearsed(plan_of("newton", [100]))


@pytest.mark.parametrize(("kind", "features"), [(".npy", 40), (".parquet", 8)])
def test_rows_of_files_that_stay_in_memory_are_counted(
    kind: str, features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a fit on a `Dataset` whose prepared rows fit: by far more than one piece."""
    monkeypatch.setattr(estimates, "_resident", lambda: 0)
    monkeypatch.setattr(estimates, "PATIENCE", 0.05)
    X, y = data(24_000_000 // features // 4, features)
    model = sv.PrivateLogisticRegression(**OPTIONS, solver=sv.solvers.Newton(rounds=3))
    federation = sv.Federation.central(sv.Dataset.from_arrays(X, y))
    plan = model.plan(federation)
    rows = InFiles(*X.shape, kind=kind)
    told = rows.estimate(plan, algorithms.of(plan))
    (lying,) = rows.prepared(plan)
    assert (lying.size, lying.where) == (X.shape[0] * (4 * (features + 1) + 9), "memory")
    tracemalloc.start(1)
    before = tracemalloc.get_traced_memory()[0]
    model.fit(federation)
    took = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert lying.size < told.memory_bytes
    assert 0.5 < told.memory_bytes / took < 2.0


def test_what_the_first_rehearsal_loads_does_not_hide_prepared_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: the first allocates more than all rows of the next ones do."""
    monkeypatch.setattr(estimates, "_resident", lambda: 0)
    monkeypatch.setattr(estimates, "PATIENCE", 0.05)
    plan = plan_of("newton", [20_000]).model_copy(update={"parties": (("data", 10_000_000),)})
    loading = iter([24_000_000.0])
    monkeypatch.setattr(InFiles, "_peak", lambda _self, _plan, _form, count: 50.0 * count + next(loading, 0.0))
    rows = InFiles(10_000_000, 8, kind=".npy")
    (lying,) = rows.prepared(plan)
    assert lying.size < rows.estimate(plan, algorithms.of(plan)).memory_bytes < 1.5 * lying.size


def test_prepared_rows_lie_where_a_fit_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second party finds less memory."""
    plan = plan_of("newton", [1000, 1000])
    size = 1000 * (4 * 9 + 9)
    monkeypatch.setattr(room, "available", lambda: 4 * size)
    places = (Place(tmp_path), Place(None, tmp_path))
    first, second = InFiles(2000, 8, places=places).prepared(plan)
    assert (first.size, first.where, first.folder) == (size, "memory", None)
    assert (second.size, second.where, second.folder) == (size, "file", tmp_path)
    read_whole = InFiles(2000, 8, places=(places[0], Place(whole=True))).prepared(plan)
    assert [(each.size, each.where) for each in read_whole] == [(2 * size, "memory")]
    monkeypatch.setattr(room, "available", lambda: 1 << 40)
    assert [each.where for each in InFiles(2000, 8, places=places).prepared(plan)] == ["memory"]
    with pytest.raises(sv.errors.InputError, match="is no folder"):
        second._replace(folder=tmp_path / "gone").check()


@pytest.mark.slow
def test_reading_a_file_is_in_the_time_until_it_is_read() -> None:
    plan = plan_of("newton", [60_000])
    plan = plan.model_copy(update={"parties": (("data", 1_000_000),)})
    to_read = InMemory(1_000_000, 8, kind=".csv")
    assert (to_read.reading(plan) or 0.0) > 0.01
    assert InMemory(1_000_000, 8, kind=".csv", here=True).reading(plan) == 0.0
    assert InMemory(1_000_000, 8, kind=".csv", schema=True).reading(plan) is None
    form = algorithms.of(plan)
    assert cost_of(plan, form, rows=to_read).reading == "counted"
    assert cost_of(plan, form, rows=InMemory(1_000_000, 8, kind=".csv", schema=True)).reading == "not counted"
    assert cost_of(plan, form, rows=InMemory(1_000_000, 8, here=True)).reading == ""
    assert (Cost(1, 1, 1, 1.0, reading="counted") + Cost(1, 1, 1, 1.0, reading="not counted")).reading == "not counted"
