"""A data set at the workers of a Dask cluster: real processes, real kills, the model of one place to the last bit."""

from __future__ import annotations

import functools
import io
import itertools
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import losses
from sottovoce.app import previews, sources
from sottovoce.app.job_file import SourceTable
from sottovoce.data.block_parts import BlockPart, RowView
from sottovoce.data.bounds import Bounds
from sottovoce.data.matrix import Slope, is_sparse
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import Resources
from sottovoce.errors import InputError, LeakError, WireError
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.mechanisms import SystemRandomness
from sottovoce.transports.base import InProcess

distributed = pytest.importorskip("distributed", reason="sottovoce[cluster] is not installed")
dask = pytest.importorskip("dask")

from sottovoce.data.block import Block  # noqa: E402
from sottovoce.data.cluster import connection, worker  # noqa: E402
from sottovoce.data.cluster.cluster_parts import PartsOnCluster, on_cluster  # noqa: E402
from sottovoce.data.cluster.connection import Cluster  # noqa: E402

COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "row_norm": 2.0, "insecure_seed": 3}
FORMS: dict[str, Any] = {"dense": np.asarray, "sparse": sp.csr_matrix}
MODELS: dict[str, Any] = {
    "newton": lambda: sv.PrivateLogisticRegression(**COMMON, solver=sv.solvers.Newton(rounds=4)),
    "gradient": lambda: sv.PrivateRidge(**COMMON, label_bound=2.0, solver=sv.solvers.Gradient(rounds=4)),
    "gradient, classes": lambda: sv.PrivateLogisticRegression(**COMMON, solver=sv.solvers.Gradient(rounds=4)),
    "sgd": lambda: sv.PrivateLinearSVC(**COMMON, solver=sv.solvers.SGD(rate=0.1, rounds=5)),
    "whitened": lambda: sv.PrivateLogisticRegression(**COMMON, solver=sv.solvers.Whitened(rounds=4)),
    "whitened, classes": lambda: sv.PrivateLogisticRegression(**COMMON, solver=sv.solvers.Whitened(rounds=4)),
}


class Workers:
    """A scheduler in this process and workers that are processes of their own, which nobody starts again."""

    def __init__(self) -> None:
        self.scheduler = distributed.LocalCluster(n_workers=0, dashboard_address=":0", protocol="tcp")
        self.client = distributed.Client(self.scheduler)
        self.started: list[subprocess.Popen[bytes]] = []

    def have(self, count: int) -> Any:
        """A client of so many of them."""
        there = len(self.client.nthreads())
        command = ["-m", "dask", "worker", self.client.scheduler.address, "--no-nanny", "--no-dashboard"]
        for _ in range(count - there):
            options = ["--nthreads", "1", "--death-timeout", "60"]
            self.started.append(
                subprocess.Popen(
                    [sys.executable, *command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        self.client.wait_for_workers(count, timeout=120)
        return self.client

    def alive(self) -> list[int]:
        return [process.pid for process in self.started if process.poll() is None]

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.client.close()
        self.scheduler.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


@pytest.fixture
def client(workers: Workers) -> Any:
    return workers.have(3)


def records(classes: int, count: int = 400) -> tuple[Any, Any]:
    rng = np.random.default_rng(11)
    X = rng.standard_normal((count, 5))
    X[7, 2] = math.nan
    y: Any = X[:, 0] + 0.1 * rng.standard_normal(count)
    y = np.digitize(y, np.linspace(-1, 1, classes + 1)[1:-1]) if classes else np.nan_to_num(y)
    return X, y


def on_dask(X: Any, y: Any, cuts: tuple[int, ...] = (0, 90, 90, 91, 300, 400)) -> list[Any]:
    """Partitions of several sizes, one of them empty."""
    return [dask.delayed((X[a:b], y[a:b]), pure=False) for a, b in itertools.pairwise(cuts)]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_that_of_one_place(name: str, form: str, client: Any) -> None:
    X, y = records(0 if name == "gradient" else 3 if "classes" in name else 2)
    rows = FORMS[form](X)
    expected = MODELS[name]().fit(rows, y)
    found = MODELS[name]().fit(sv.Dataset.from_dask(on_dask(rows, y), cluster=client))
    assert found.coef_.tobytes() == expected.coef_.tobytes()
    assert np.all(found.intercept_ == expected.intercept_)


@pytest.mark.slow
def test_evaluations_without_privacy_and_predictions_are_those_of_one_place(client: Any) -> None:
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    model = MODELS["newton"]().fit(X, y)
    np.testing.assert_array_equal(model.predict(data), model.predict(np.nan_to_num(X))[: len(X)])
    told = [sv.evaluate(model, *test, epsilon=1.0, insecure_seed=5) for test in ((X, y), (data,))]
    assert str(told[0]) == str(told[1])
    plain = [
        sv.PrivateLogisticRegression(epsilon=math.inf, row_norm=2.0, solver="newton").fit(*test).coef_
        for test in ((X, y), (data,), (data,))
    ]
    np.testing.assert_allclose(plain[1], plain[0], rtol=1e-6)
    assert plain[1].tobytes() == plain[2].tobytes()  # on no grid; but added in one order


def test_ranges_and_standard_errors_are_sums_at_the_workers(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of one place, and no rows come here: the driver may have less memory than they take."""
    X, y = records(2, 4000)
    came, send = list[int](), Cluster.send

    def counted(*told: Any) -> Any:
        found = send(*told)
        came.append(sum(len(pickle.dumps(reply)) for reply in found.values()))
        return found

    monkeypatch.setattr(Cluster, "send", counted)
    common: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-5, "insecure_seed": 3, "solver": sv.solvers.Newton(rounds=3)}
    for more in ({"feature_ranges": "private"}, {"row_norm": 4.0, "standard_errors": True}):
        data = sv.Dataset.from_dask(on_dask(X, y, (0, 1000, 2500, 4000)), cluster=client)
        came.clear()
        found = sv.PrivateLogisticRegression(**common, **more).fit(data)
        assert 0 < max(came) < X.nbytes / 4
        expected = sv.PrivateLogisticRegression(**common, **more).fit(X, y)
        assert found.coef_.tobytes() == expected.coef_.tobytes()
        if "standard_errors" in more:
            assert str(found.coefficients()) == str(expected.coefficients())


@pytest.mark.slow
def test_dask_arrays_and_data_frames(client: Any) -> None:
    X, y = records(2)
    array = pytest.importorskip("dask.array")
    rows, labels = array.from_array(X, chunks=(150, 2)), array.from_array(y, chunks=170)
    expected = MODELS["newton"]().fit(X, y).coef_.tobytes()
    assert MODELS["newton"]().fit(sv.Dataset.from_dask(rows, labels, cluster=client)).coef_.tobytes() == expected
    unknown = rows[rows[:, 0] < 9e9], labels.rechunk((150,))[rows[:, 0].compute() < 9e9]
    assert sv.Dataset.from_dask(*unknown, cluster=client).shape == (400, 5)
    frames = pytest.importorskip("dask.dataframe")
    table = pd.DataFrame(X, columns=list("abcde")).assign(label=np.where(y == 1, "yes", "no"))
    data = sv.Dataset.from_dask(frames.from_pandas(table, npartitions=3), label="label", cluster=client)
    assert data.feature_names == tuple("abcde")
    assert MODELS["newton"]().fit(data).coef_.tobytes() == expected
    schema = sv.Schema(
        {**{name: {"range": (-3, 3)} for name in "abcde"}, "label": {"levels": ["no", "yes"]}}, label="label"
    )
    model = sv.PrivateLogisticRegression(epsilon=1.0, delta=1e-5, insecure_seed=3, solver=sv.solvers.Newton(rounds=3))
    wide = sv.Dataset.from_dask(frames.from_pandas(table, npartitions=3), schema=schema, cluster=client)
    found = model.fit(wide).coef_.tobytes()
    assert model.set_params(schema=schema).fit(table).coef_.tobytes() == found


def test_workers_read_files_themselves(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = records(2)
    for place in range(3):
        own = slice(140 * place, 140 * (place + 1))
        lines = [",".join(map(str, [*row, label])) for row, label in zip(X[own], y[own], strict=True)]
        (tmp_path / f"part{place}.csv").write_text("\n".join(["a,b,c,d,e,label", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)  # and workers are in another folder
    expected = MODELS["newton"]().fit(X, y).coef_.tobytes()
    data = sv.Dataset("part*.csv", label="label", cluster=client)
    assert len(data.sources) == 3
    assert MODELS["newton"]().fit(data).coef_.tobytes() == expected
    by_address = sv.Dataset("part*.csv", label="label", cluster=client.scheduler.address)
    assert MODELS["newton"]().fit(by_address).coef_.tobytes() == expected
    (tmp_path / "part1.csv").unlink()
    with pytest.raises(InputError, match="part1"):
        MODELS["newton"]().fit(data)


def test_the_workers_of_a_job_are_counted_for_its_estimate(client: Any) -> None:
    assert previews._count_workers(client.scheduler.address) == len(client.scheduler_info()["workers"])


def test_jobs_name_a_scheduler(client: Any, tmp_path: Path) -> None:
    X, y = records(2)
    table = pd.DataFrame(X, columns=list("abcde")).assign(id=np.arange(400), label=y)
    table.to_csv(tmp_path / "people.csv", index=False)
    source = SourceTable(file="people.csv", label="label", id="id", cluster=client.scheduler.address)
    holder = sources.read_party("data", source, lambda path: tmp_path / path)
    federation = sv.Federation("central", InProcess([holder]), parties=[holder])
    model = MODELS["newton"]().set_params(classes=(0, 1))
    assert model.fit(federation).coef_.tobytes() == MODELS["newton"]().fit(X, y).coef_.tobytes()
    schema = sv.Schema({name: {"range": (-3, 3)} for name in "abcde"}, label="label")
    plain = source.model_copy(update={"label": None})
    assert sources.read_party("data", plain, lambda path: tmp_path / path, schema=schema).features == 5


def test_a_batch_may_be_empty(client: Any) -> None:
    X, y = records(2)
    recipe = Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1))
    parts = on_cluster(sv.Dataset.from_dask(on_dask(X, y), cluster=client), recipe)
    block = Block.prepare(X, y, recipe)
    for chosen in (np.zeros(0, dtype=np.int64), np.array([95, 399]), np.arange(400)):
        assert parts.take(chosen).gram().tobytes() == block.take(chosen).gram().tobytes()
        scores = list(parts.take(chosen).each(lambda part: part.block.scores(np.ones(6))))
        assert np.concatenate(scores).tobytes() == block.take(chosen).scores(np.ones(6)).tobytes()


def test_each_worker_takes_the_threads_of_the_process_that_asks(client: Any) -> None:
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    recipe = Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1))
    alone = on_cluster(data, recipe)
    with joblib.parallel_config("threading", n_jobs=3):
        by_joblib = on_cluster(data, recipe)
    for parts, jobs in ((alone, 1), (by_joblib, 3), (on_cluster(data, recipe, Resources(2)), 2)):
        assert set(parts.each(lambda part: part.block.resources.n_jobs)) == {jobs}
        assert parts.gram().tobytes() == alone.gram().tobytes()


# What travels.


class Kept:
    """Something of the driver's that no worker may have."""


def seen_by(found: Any) -> Any:
    return lambda part: (part, found)


@pytest.mark.slow
def test_nothing_travels_but_work(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The globals that a pickle names are looked at: code, numbers, slopes, losses and queries."""
    told = list[bytes]()

    def packed(work: Any, *, whole: bool) -> Any:
        found = worker.pack_work(work, whole=whole)
        told.append(found[0])
        return found

    monkeypatch.setattr("sottovoce.data.cluster.cluster_parts.pack_work", packed)
    for name in ("newton", "sgd", "whitened, classes"):
        X, y = records(3 if "classes" in name else 2)
        MODELS[name]().fit(sv.Dataset.from_dask(on_dask(X, y), cluster=client))
    assert len(told) >= 20
    for work in told:
        assert modules(work) <= ALLOWED, modules(work) - ALLOWED
    with monkeypatch.context() as patch:  # negative control: without the check a key of randomness would be seen
        patch.setattr(worker, "PACKAGES", ("",))
        work, _ = worker.pack_work(seen_by(SystemRandomness()), whole=True)
        assert not modules(work) <= ALLOWED


ALLOWED = {"sottovoce.data", "sottovoce.losses", "sottovoce.queries", "sottovoce.algorithms"} | {
    "numpy", "cloudpickle", "builtins", "functools", "types", "_operator", "_codecs"
}  # fmt: skip


def modules(work: bytes) -> set[str]:
    """What a pickle imports, of this package by its layer."""
    found = set[str]()

    class Seen(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.add(module)
            return super().find_class(module, name)

        def persistent_load(self, told: Any) -> Any:
            return told

    Seen(io.BytesIO(work)).load()
    return {".".join(name.split(".")[: 2 if name.startswith("sottovoce") else 1]) for name in found}


def test_work_that_holds_more_is_refused(tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "l.db").open("people", epsilon=1.0, delta=1e-5)
    block = Block.prepare(np.ones((2, 1)), np.ones(2), Preparation(Bounds(row_norm=1.0), 1, True, 2, (0, 1)))
    for kept in (account, SystemRandomness(), Kept(), block, BlockPart(block), np.random.default_rng(0), tmp_path):
        for held in (kept, [kept], {"a": (kept,)}, functools.partial(print, kept)):
            with pytest.raises(LeakError, match="nothing was sent"):
                worker.pack_work(seen_by(held), whole=True)
    worker.pack_work(seen_by([np.ones(3), "text", 1.0, None]), whole=True)


def test_work_holds_no_bytes_such_as_keys_are() -> None:
    for kept in (b"k" * 32, bytearray(32)):
        for held in (kept, [kept], {"a": (kept,)}, functools.partial(print, kept), {kept[:1].hex(): {"b": kept}}):
            with pytest.raises(LeakError, match="nothing was sent"):
                worker.pack_work(seen_by(held), whole=True)
    wide = np.arange(24.0).reshape(4, 6)
    for numbers in (
        np.float64(1.5),
        wide[:, ::2],
        wide.T,
        wide[:0],
        np.array(3.0),
        np.longdouble(2),
        wide.astype(">f8"),
    ):
        work, _ = worker.pack_work(seen_by(numbers), whole=True)
        found = worker.unpack_work(work, {})[0](BlockPart.__new__(BlockPart))[1]
        assert np.array_equal(found, numbers)
        assert found.shape == numbers.shape


def test_one_message_at_a_time_works_on_rows_and_their_views() -> None:
    """A message that is asked again, since its answer was lost, meets the first one at work."""
    X, y = np.random.default_rng(3).standard_normal((60_000, 5)), np.zeros(60_000)
    recipe = Preparation(Bounds(row_norm=2.0), 5, True, 60_000, (0, 1))
    block = Block.prepare(X, y, recipe, records=60_000)
    term = Slope(losses.get("logistic"), 1.0, block.bits)
    point, found = np.ones(3), set[bytes]()
    view = RowView(np.eye(6)[:, :3] + 0.0, True, 0.5, "view")
    work, _ = worker.pack_work(lambda part: part.seen(view).exact_sum(point, term), whole=True)
    for _ in range(5):
        held, start = worker.Held([block]), threading.Barrier(3)
        held.parts[0].seen(replace(view, length=0.0))

        def ask(held: Any = held, start: Any = start) -> None:
            start.wait()
            reply = worker._answered(worker.WorkerMessage(["key"], work, [held.digest], None, True), [held])
            found.add(reply.value.tobytes() if reply.kind == "answer" else repr(reply).encode())

        asked = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
    assert len(found) == 1


def test_a_worker_of_another_version_is_refused_whenever_it_comes(client: Any) -> None:
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    recipe = Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1))
    parts = on_cluster(data, recipe)

    def pretend(told: str) -> None:
        sys.modules["sottovoce.data.cluster.worker"].__version__ = told  # type: ignore[attr-defined]

    client.run(pretend, "0.0")
    try:
        for ask in (parts.gram, lambda: on_cluster(data, recipe)):
            with pytest.raises(InputError, match=r"has sottovoce 0\.0"):
                ask()
    finally:
        client.run(pretend, sv.__version__)
    assert parts.gram().shape == (6, 6)


def test_partitions_of_one_name_are_refused(client: Any) -> None:
    """Dask takes one of them for both, so that records would be counted twice, and others not at all."""
    X, y = records(2)
    made = [dask.delayed(tuple)([X[a : a + 200], y[a : a + 200]], dask_key_name="part") for a in (0, 200)]
    with pytest.raises(InputError, match="the same name"):
        sv.Dataset.from_dask(made, cluster=client)


def test_data_sets_whose_partitions_have_the_same_names_keep_their_own_rows(client: Any) -> None:
    recipe = Preparation(Bounds(row_norm=2.0), 2, False, 4, (0, 1))
    at, far = list[Any](), client.submit(np.ones, 4)
    for value, labels in ((0.25, np.ones(4)), (0.5, np.ones(4)), (0.25, far)):
        rows = dask.delayed(np.full)((4, 2), value, dask_key_name="rows")
        made = [dask.delayed(lambda *pair: pair)(rows, labels, dask_key_name="part")]
        at.append(on_cluster(sv.Dataset.from_dask(made, cluster=client), recipe))
    sums = [parts.gram_diagonal()[0] for parts in at]
    assert sums[1] == pytest.approx(4 * sums[0])
    assert sums[2] == sums[0]  # of a future


def test_a_partition_has_a_label_for_each_row(client: Any) -> None:
    for rows, labels in ((10, 12), (12, 10)):
        with pytest.raises(InputError, match="one label"):
            sv.Dataset.from_dask([dask.delayed((np.ones((rows, 2)), np.ones(labels)))], cluster=client)


def test_other_files_at_a_worker_are_refused(client: Any, tmp_path: Path) -> None:
    X, y = records(2)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), cluster=client)
    np.save(tmp_path / "X.npy", np.vstack([X[::-1], X]))  # as a worker has it that sees another folder
    declared = MODELS["newton"]().set_params(classes=(0, 1))  # labels that occur are not looked for here
    with pytest.raises(InputError, match="is not the file"):
        declared.fit(data)
    np.save(tmp_path / "X.npy", X[::-1])  # of the same size, as this process sees it
    with pytest.raises(InputError, match="was changed after it was opened"):
        MODELS["newton"]().fit(data)


@pytest.mark.parametrize(
    ("address", "told"),
    [("tcp://10.1.2.3:8786", True), ("tcp://scheduler:1", True), ("tls://10.1.2.3:8786", False)]
    + [(f"tcp://{own}:8786", False) for own in ("127.0.0.1", "localhost", "[::1]")]
    + [("inproc://10.1.2.3/1/2", False)],
)
def test_a_scheduler_in_the_clear_is_told(address: str, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    connection.tell_in_the_clear(address)
    assert ("tls://" in caplog.text) == told


def test_a_view_travels_once(client: Any) -> None:
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    parts = on_cluster(data, Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1)))
    told = list[int]()
    real = parts._cluster.send

    def send(messages_: Any, function: Any) -> Any:
        told.append(max(len(message.work) for message in messages_.values()))
        return real(messages_, function)

    parts._cluster.send = send  # type: ignore[method-assign]
    rows = parts.projected(np.diag(np.arange(1.0, 7.0)) + 0.0)

    def term(lengths: Any, _: Any) -> Any:
        return lengths / 9.0

    sums = [rows.number_sum(term) for _ in range(3)]
    assert len(set(sums)) == 1
    assert told[0] > told[1] + 8 * 36 - 1
    assert told[1] == told[2]

    async def forget(keys: list[str], dask_worker: Any) -> int:
        found = [dask_worker.data[key] for key in keys if key in dask_worker.data]
        for each in found:
            each.views.clear()
            each.parts = [type(part)(part.block) for part in each.parts]
        return len(found)

    held = client.run(forget, [future.key for future in parts._held])
    assert sum(held.values()) == len(parts._held)  # as a worker that came later
    assert rows.number_sum(term) == sums[0]
    assert told[3] == told[1]
    assert told[4] == told[0]


def test_rows_that_changed_are_refused(client: Any) -> None:
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    parts = on_cluster(data, Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1)))
    assert isinstance(parts, PartsOnCluster)
    assert parts.gram().shape == (6, 6)
    parts._digests[0] = b"other"
    with pytest.raises(InputError, match="not what they were"):
        parts.gram()


def test_a_workers_error_carries_no_value_of_the_data(client: Any) -> None:
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    parts = on_cluster(data, Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1)))

    def work(part: BlockPart) -> Any:
        raise ValueError(f"a row is {part.block.labels[0]}")

    with pytest.raises(WireError) as raised:
        parts.summed(work)
    assert "a row is" not in str(raised.value)
    assert "ValueError" in str(raised.value)

    def spoilt() -> Any:
        raise ValueError(f"the value {X[0, 0]}")

    with pytest.raises(InputError) as read:
        sv.Dataset.from_dask([dask.delayed(spoilt)()], cluster=client)
    assert "the value" not in str(read.value)
    assert "ValueError" in str(read.value)


def test_held_rows_say_their_size_and_go_without_views() -> None:
    X, y = records(2)
    for form in FORMS.values():
        held = worker.prepared(
            worker.Recipe(Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1)), 400), (form(X), y)
        )
        held.learn(RowView(np.eye(6), made=False))
        again = pickle.loads(pickle.dumps(held))
        assert again.digest == held.digest
        assert not again.views
        rows = held.parts[0].block.rows
        assert sys.getsizeof(held) > (rows.data.nbytes if is_sparse(rows) else rows.nbytes)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cluster": "scheduler:8786"}, "tls://scheduler:8786"),
        ({"cluster": 5}, r"distributed\.Client"),
        ({"y": [1]}, "partitions have their own labels"),
        ({"label": "a"}, "for a Dask data frame"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], text: str, client: Any) -> None:
    X, y = records(2)
    with pytest.raises(InputError, match=text):
        sv.Dataset.from_dask(on_dask(X, y), **{"cluster": client, **wrong})


def test_other_things_than_partitions_are_refused(client: Any) -> None:
    with pytest.raises(InputError, match="a list of delayed partitions"):
        sv.Dataset.from_dask(np.ones((3, 2)), cluster=client)
    with pytest.raises(InputError, match="a partition is a int"):
        sv.Dataset.from_dask([dask.delayed(5)], cluster=client)
    with pytest.raises(InputError, match="different numbers of columns"):
        sv.Dataset.from_dask([dask.delayed((np.ones((2, n)), np.ones(2))) for n in (2, 3)], cluster=client)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(WireError, match="no scheduler"):
        sv.Dataset.from_dask([dask.delayed(5)], cluster="tcp://127.0.0.1:9")


def test_rows_that_the_scheduler_lost_are_no_foreign_error(client: Any) -> None:
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    parts = on_cluster(data, Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1)))
    client.cancel(parts._held)  # as when a scheduler was started in its place
    with pytest.raises(WireError, match="another one than it was"):
        [parts.gram() for _ in range(1000)]


# Workers that stop or die, at last, since nobody starts them again.


def test_a_worker_that_does_not_answer_is_not_waited_for_for_ever(workers: Workers) -> None:
    client = workers.have(2)
    X, y = records(2)
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    parts = on_cluster(data, Preparation(Bounds(row_norm=2.0), 5, True, 400, (0, 1)))
    expected = parts.gram().tobytes()
    (pid,) = client.run(os.getpid, workers=parts._where[:1]).values()
    os.kill(pid, signal.SIGSTOP)
    try:
        with (
            dask.config.set({"sottovoce.timeout": "500ms"}),
            pytest.raises(WireError, match=r"not answer in 0\.5 s, the limit"),
        ):
            parts.gram()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert parts.gram().tobytes() == expected


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still; after ten seconds, in which nobody gave up, it goes on."""
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(10, os.kill, (pid, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_nobody_is_waited_for_for_ever_who_is_stopped(workers: Workers) -> None:
    client = workers.have(2)
    (pid,) = client.run(os.getpid, workers=list(client.nthreads())[:1]).values()
    limit = dask.config.set({"sottovoce.timeout": "500ms"})
    with stopped(pid), limit, pytest.raises(WireError, match="not answer in"):
        Cluster.of(client)
    assert Cluster.of(client).workers()


@pytest.mark.slow
def test_a_scheduler_that_is_stopped_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    told = tmp_path / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", "dask", "scheduler", *options], **silent)  # type: ignore[call-overload]
    try:
        while not told.exists():
            time.sleep(0.05)
        with distributed.Client(scheduler_file=str(told), set_as_default=False) as client:
            cluster = Cluster.of(client)
            future = client.submit(int)
            with stopped(process.pid), dask.config.set({"sottovoce.timeout": "500ms"}):
                for ask in (cluster.workers, lambda: cluster.where([future])):
                    with pytest.raises(WireError, match="does not answer"):
                        ask()
    finally:
        process.kill()
        process.wait()


def killing(monkeypatch: pytest.MonkeyPatch, at: int, whom: Callable[[list[str]], list[int]]) -> list[int]:
    """Stop processes when a round is asked, so that they have its message and no answer to it; then kill them."""
    real, sent = Cluster.send, list[int]()

    def send(self: Cluster, told: Any, function: Any) -> Any:
        sent.append(len(told))
        if len(sent) == at:
            pids = whom(list(told))
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.1, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids]).start()
        return real(self, told, function)

    monkeypatch.setattr(Cluster, "send", send)
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "whitened"])
def test_a_worker_killed_in_a_round_changes_no_bit(
    name: str, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = workers.have(2)
    X, y = records(2)
    account = Ledger.create(tmp_path / "l.db").open("people", epsilon=5.0, delta=1e-4)
    before = len(workers.alive())
    data = sv.Dataset.from_dask(on_dask(X, y), cluster=client)
    expected = MODELS[name]().fit(X, y)
    sent = killing(monkeypatch, 4, lambda told: list(client.run(os.getpid, workers=told[:1]).values()))
    found = MODELS[name]().set_params(ledger=account).fit(data)
    assert found.coef_.tobytes() == expected.coef_.tobytes()
    assert len(workers.alive()) == before - 1
    assert sent[-1] < sent[0]
    (entry,) = account.book().reservations
    assert sum(account.answers(entry.plan).values()) == sum(release.count for release in found.plan_.releases)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["no source", "no worker"])
def test_a_run_that_cannot_go_on_ends_with_a_clear_error(
    end: str, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = workers.have(2 if end == "no source" else 1)
    X, y = records(2)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    account = Ledger.create(tmp_path / "l.db").open("people", epsilon=5.0, delta=1e-4)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), cluster=client)

    def whom(told: list[str]) -> list[int]:
        if end == "no worker":
            return workers.alive()
        (tmp_path / "X.npy").unlink()
        return list(client.run(os.getpid, workers=told).values())

    sent = killing(monkeypatch, 4, whom)
    error, text = (InputError, "X.npy") if end == "no source" else (WireError, "no worker for 1 s, the limit")
    started = time.monotonic()
    with dask.config.set({"sottovoce.no-workers-timeout": "1s"}), pytest.raises(error, match=text):
        MODELS["newton"]().set_params(ledger=account).fit(data)
    assert time.monotonic() - started < 60
    (entry,) = account.book().reservations  # what was charged stays charged, and nothing more left
    assert sum(account.answers(entry.plan).values()) == len(sent) - 2
