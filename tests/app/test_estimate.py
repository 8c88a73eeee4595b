"""Estimates of time and memory: one measured pass over made-up rows, and sizes; nothing is read or charged."""

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
from sottovoce.app import previews
from sottovoce.app.previews import Cost, FitRows, cost_of
from sottovoce.data import block_parts
from sottovoce.data import resources as room
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer made-up rows, of which every fit is measured; what the process has already does not count."""
    monkeypatch.setattr(previews, "ENTRIES", 1 << 18)
    monkeypatch.setattr(previews, "LONG", 0.0)
    monkeypatch.setattr(room, "resident", lambda: 0)
    previews._rates.cache_clear()


def data(records: int, features: int = 8) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (records, features))
    return X, np.where(X[:, 0] > 0, 1, -1)


def plan_of(solver: Any, parts: list[int], **changes: Any) -> Plan:
    model = sv.PrivateLogisticRegression(**OPTIONS | changes, solver=solver)
    held = [data(count) for count in parts]
    return model.plan(sv.Federation.central(*held[0]) if len(parts) == 1 else sv.Federation.by_rows(held))


def told(plan: Plan, rows: FitRows | None = None, **more: Any) -> tuple[float, int]:
    cost = cost_of(plan, algorithms.of(plan), rows, **more)
    assert cost.seconds is not None
    assert cost.memory_bytes is not None
    return cost.seconds, cost.memory_bytes


def peak_of(model: Any, federation: Any) -> int:
    """What Python and NumPy allocate in a fit; what is loaded once is there before."""
    tracemalloc.start(1)
    before = tracemalloc.get_traced_memory()[0]
    model.fit(federation)
    took = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return took


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_memory_is_that_of_a_fit(solver: Any, sparse: bool, small: None) -> None:
    X, y = data(60_000, 30)
    rows: Any = sp.random(60_000, 60, 0.1, format="csr", random_state=0) if sparse else X
    model = sv.PrivateLogisticRegression(**OPTIONS | SOLVERS[solver], solver=solver)
    federation = sv.Federation.central(rows, y)
    model.fit(federation)
    plan, entries = model.plan(federation), 6.0 if sparse else None
    seconds, memory = told(plan, FitRows(*rows.shape, entries))
    assert seconds > 0.0
    assert 0.5 < memory / peak_of(model, federation) < 2.0
    kept = rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes if sparse else rows.nbytes
    raw = told(plan, FitRows(*rows.shape, entries, kind=".csv"))[1] - memory
    assert raw == pytest.approx(kept + y.nbytes, rel=0.06)


@pytest.mark.parametrize(("kind", "features"), [(".npy", 40), (".parquet", 8)])
def test_rows_of_files_that_stay_in_memory_are_counted(kind: str, features: int, small: None, tmp_path: Path) -> None:
    """The memory of a fit on a `Dataset` whose prepared rows fit: by far more than one piece."""
    X, y = data(24_000_000 // features // 4, features)
    model = sv.PrivateLogisticRegression(**OPTIONS, solver=sv.solvers.Newton(rounds=3))
    federation = sv.Federation.central(sv.Dataset.from_arrays(X, y))
    plan = model.plan(federation)
    rows = FitRows(*X.shape, kind=kind, folders=(tmp_path,))
    (stored,) = rows.prepared(plan)
    assert (stored.size, stored.where) == (X.shape[0] * (4 * (features + 1) + 9), "memory")
    memory = told(plan, rows)[1]
    assert stored.size < memory
    assert 0.5 < memory / peak_of(model, federation) < 2.0


def test_more_records_take_longer_and_more_memory(small: None) -> None:
    plan = plan_of(sv.solvers.Gradient(rounds=50), [40_000])
    wide = plan.model_copy(update={"parties": (("data", 4_000_000),)})
    short, long = (told(each, FitRows(each.records, 8)) for each in (plan, wide))
    assert long[0] > 10 * short[0]
    assert long[1] - short[1] > 3_960_000 * 9 * 4


def test_remote_parties_compute_side_by_side(small: None) -> None:
    plan = plan_of("newton", [60, 40]).model_copy(update={"parties": (("party-1", 6_000_000), ("party-2", 4_000_000))})
    here, there = told(plan), told(plan, remote=True)
    assert there[0] == pytest.approx(0.6 * here[0], rel=0.05)
    assert there[1] == pytest.approx(0.6 * here[1], rel=0.05)


def test_a_ledger_takes_time_at_every_answer() -> None:
    plan = plan_of(sv.solvers.Gradient(rounds=50), [100])
    assert told(plan, ledgers=1)[0] - told(plan)[0] == pytest.approx(50 * previews.COMMIT)


def test_a_pass_is_measured_once_and_of_long_fits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[Any]()

    def rates(*asked: Any) -> tuple[float, float]:
        measured.append(asked)
        return 1e-6, 1e-6

    monkeypatch.setattr(previews, "_rates", rates)
    small = plan_of(sv.solvers.Gradient(rounds=50), [500])
    large = small.model_copy(update={"parties": (("data", 1_000_000),)})
    assert told(small)[0] < 0.1
    assert not measured
    assert told(large)[0] == pytest.approx(51.0, rel=0.01)
    assert measured == [(8, None, None, None)]

    def refused(*_: Any) -> None:
        raise sv.errors.InputError("no room")

    monkeypatch.setattr(previews, "_rates", refused)
    assert 0.2 < told(large)[0] < 2.0  # by constants


def test_the_first_estimate_on_a_machine_is_that_of_a_fit_without_compiling(tmp_path: Path) -> None:
    """In a process that finds no loop on disk, and compiles for longer than the pass takes."""
    program = """
import time
from sottovoce.app.previews import ENTRIES, _rates
from sottovoce.data.kernels import compiled, watch
watch()
start, before = time.perf_counter(), compiled()
one_pass, prepare = _rates(8, None, None, None)
print((one_pass + prepare) * ENTRIES / 8, time.perf_counter() - start, compiled() - before)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    seconds, taken, loops = map(float, done.stdout.split())
    assert loops > 0
    assert seconds < taken / 4


def test_a_pass_over_rows_in_a_file_is_measured_there(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, real = list[Any](), block_parts.PartsInFile
    monkeypatch.setattr(block_parts, "PartsInFile", lambda *found: files.append(found) or real(*found))
    plan, many = plan_of("newton", [20_000]), 2_000_000_000
    fits = told(plan, FitRows(20_000, 8, kind=".parquet", folders=(tmp_path,)))
    assert not files  # they fit in memory
    wide = plan.model_copy(update={"parties": (("data", many),)})
    rows = FitRows(many, 8, kind=".parquet", folders=(tmp_path,))
    found = told(wide, rows)
    assert files  # and these do not
    assert found[0] > 100 * fits[0] > 0.0
    assert found[1] < 1e9
    assert not list(tmp_path.iterdir())
    gone = told(wide, FitRows(many, 8, kind=".parquet", folders=(tmp_path / "gone",)))
    assert gone[0] > 100 * fits[0]  # by constants; `prepared` says what is wrong


@pytest.mark.parametrize("kind", previews.READ)
def test_reading_a_file_is_in_the_time_until_it_is_read(kind: str) -> None:
    plan = plan_of("newton", [60_000]).model_copy(update={"parties": (("data", 1000),)})
    form = algorithms.of(plan)
    entries = 4.0 if kind == ".svm" else None
    to_read, read = (cost_of(plan, form, FitRows(1000, 8, entries, kind=each)) for each in (kind, None))
    assert (to_read.reading, read.reading) == (True, False)
    record, entry = previews.READ[kind]
    assert (to_read.seconds or 0.0) - (read.seconds or 0.0) == pytest.approx(1000 * (record + (entries or 8) * entry))


def test_workers_of_a_cluster_share_the_work_and_have_the_rows(small: None) -> None:
    plan = plan_of("newton", [60_000]).model_copy(update={"parties": (("data", 40_000_000),)})
    alone, four = (FitRows(40_000_000, 8, kind=".csv", workers=workers) for workers in (0, 4))
    assert told(plan, four)[0] == pytest.approx(told(plan, alone)[0] / 4, rel=0.1)
    assert told(plan, four)[1] == 0
    (stored,) = four.prepared(plan)
    assert (stored.size, stored.where, stored.workers) == (40_000_000 * (4 * 9 + 9), "cluster", 4)


def test_costs_of_plans_add_up_but_for_memory() -> None:
    assert Cost(1, 1, 1, 1.0, None, 7) + Cost(1, 2, 3, 1.0, 5, 5) == Cost(2, 3, 4, 2.0, 5, 7)
    assert (Cost(1, 1, 1, 1.0, reading=True) + Cost(1, 1, 1, 1.0)).reading
    free = OPTIONS | {"epsilon": math.inf, "insecure_seed": None, "alpha": 0.1}
    plan = sv.PrivateLogisticRegression(**free).plan(sv.Federation.central(*data(100)))
    assert cost_of(plan, algorithms.of(plan)) == Cost()


def test_prepared_rows_are_where_a_fit_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second party finds less memory; one that keeps its rows has them in a file though they fit."""
    plan = plan_of("newton", [1000, 1000])
    size = 1000 * (4 * 9 + 9)
    monkeypatch.setattr(room, "available", lambda: 4 * size)
    folders = (tmp_path, tmp_path)
    first, second = FitRows(2000, 8, folders=folders).prepared(plan)
    assert (first.size, first.where, first.folder) == (size, "memory", None)
    assert (second.size, second.where, second.folder) == (size, "file", tmp_path)
    read_whole = FitRows(2000, 8, folders=(tmp_path, None)).prepared(plan)
    assert [(each.size, each.where) for each in read_whole] == [(2 * size, "memory")]
    monkeypatch.setattr(room, "available", lambda: 1 << 40)
    assert [each.where for each in FitRows(2000, 8, folders=folders).prepared(plan)] == ["memory"]
    with pytest.raises(sv.errors.InputError, match="is no folder"):
        second._replace(folder=tmp_path / "gone").check()
