"""Prepared rows in a file: the model of rows in memory, bit for bit, whatever the memory; nothing is left behind."""

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.data import block_parts, dataset, resources, row_file
from sottovoce.data.block_parts import PartsInFile, PartsInMemory, in_memory_or_file
from sottovoce.data.bounds import Bounds
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError, LeakError

COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "row_norm": 2.0, "insecure_seed": 3}
MODELS: dict[str, Callable[[], Any]] = {
    "newton": lambda: sv.PrivateLogisticRegression(**COMMON, solver="newton"),
    "gradient, classes": lambda: sv.PrivateLogisticRegression(**COMMON, solver=sv.solvers.Gradient(rounds=12)),
    "sgd": lambda: sv.PrivateLinearSVC(**COMMON, solver=sv.solvers.SGD(rate=0.02, rounds=10)),
    "sgd, many": lambda: sv.PrivateLinearSVC(**COMMON, solver=sv.solvers.SGD(rate=0.3, rounds=4)),
    "whitened": lambda: sv.PrivateLogisticRegression(**COMMON, solver="whitened"),
    "whitened, numbers": lambda: sv.PrivateRidge(**COMMON, label_bound=2.0, solver="whitened"),
    "whitened, classes": lambda: sv.PrivateLogisticRegression(**COMMON, solver="whitened"),
}
RECIPE = Preparation(Bounds.declare(row_norm=2.0), 5, True, 600, (0, 1))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, in a file."""
    monkeypatch.setattr(dataset, "ENTRIES", 5 * 100)
    monkeypatch.setattr(block_parts, "PIECE", 1 << 12)
    monkeypatch.setattr(resources, "SHARE", 1 << 60)


def numbers(name: str = "newton") -> tuple[Any, Any]:
    rng = np.random.default_rng(11)
    X = rng.standard_normal((600, 5))
    X[7, 2] = math.nan
    y: Any = np.nan_to_num(X[:, 0] + 0.1 * rng.standard_normal(600))
    if "numbers" in name:
        return X, y
    labels = 3 if "classes" in name else 2
    return X, np.digitize(y, np.linspace(-1, 1, labels + 1)[1:-1])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_that_of_rows_in_memory(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    X, y = numbers(name)
    rows = X if form == "dense" else sp.csr_matrix(np.where(np.abs(X) < 0.5, 0.0, X))
    expected = MODELS[name]().fit(rows, y).coef_
    caplog.clear()
    data = sv.Dataset.from_arrays(rows, y, folder=tmp_path)
    assert MODELS[name]().fit(data).coef_.tobytes() == expected.tobytes()
    assert sum("1 of 600 rows cannot be used" in record.getMessage() for record in caplog.records) == 1
    assert not list(tmp_path.iterdir())
    if name != "newton":
        return
    monkeypatch.setattr(resources, "LEAST", 1)
    assert MODELS[name]().set_params(resources=sv.Resources(n_jobs=2)).fit(data).coef_.tobytes() == expected.tobytes()


def parts(tmp_path: Path, rows: Any = None) -> Any:
    X, y = numbers()
    made = in_memory_or_file(sv.Dataset.from_arrays(X if rows is None else rows, y, folder=tmp_path), RECIPE, None)
    assert isinstance(made, PartsInFile)
    assert len(made._sizes) > 3
    return made


def test_buffers_are_few_and_never_used_again_while_somebody_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, taken, buffer = parts(tmp_path), list[int](), row_file._buffer
    with monkeypatch.context() as told:
        told.setattr(resources, "SHARE", 0)
        whole = in_memory_or_file(sv.Dataset.from_arrays(*numbers()), RECIPE, None)
    assert isinstance(whole, PartsInMemory)
    monkeypatch.setattr(row_file, "_buffer", lambda size: taken.append(size) or buffer(size))
    for _ in range(3):
        np.testing.assert_array_equal(made.gram(), whole.gram())
    view = made.projected(np.tril(np.ones((6, 6))))
    view.number_sum(lambda lengths, _: np.minimum(lengths, 1.0))
    made.number_sum(lambda _, labels: labels, -1.0)
    made.take(np.arange(0, 600, 3)).gram()
    assert len(taken) == row_file.AHEAD + 1
    held = [block.rows for block in made.each(lambda part: part.block)]  # all at once, each in a buffer of its own
    np.testing.assert_array_equal(np.concatenate(held), np.concatenate([b.rows for b in whole.each(lambda p: p.block)]))
    del held
    made.gram()
    assert len(made._file._free) <= row_file.AHEAD + 1
    for labels, own in zip(
        made.each(lambda part: part.block.labels), whole.each(lambda p: p.block.labels), strict=True
    ):
        np.testing.assert_array_equal(labels, own)


def test_a_pass_that_is_left_in_the_middle_leaves_the_file_usable(tmp_path: Path) -> None:
    made = parts(tmp_path)
    expected = made.gram()
    for _ in range(5):
        passing = made.each(lambda part: len(part.block))
        next(passing)
        passing.close()
        np.testing.assert_array_equal(made.gram(), expected)

    def fails(part: Any) -> int:
        raise ZeroDivisionError

    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            list(made.each(fails))
        np.testing.assert_array_equal(made.gram(), expected)
    assert len({id(buffer) for buffer in made._file._free}) == len(made._file._free)


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_few_chosen_rows_are_read_alone(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = numbers()
    made = parts(tmp_path, X if form == "dense" else sp.csr_matrix(np.where(np.abs(X) < 0.5, 0.0, X)))
    chosen = np.array([0, 1, 2, 350, 352, 599])
    many = made.take(np.arange(600)[::2])
    weights = np.linspace(-1, 1, 6)

    def scores(rows: Any) -> Any:
        return np.concatenate(list(rows.each(lambda part: part.block.scores(weights))))

    expected = scores(made)
    np.testing.assert_array_equal(scores(many), expected[::2])
    monkeypatch.setattr(block_parts, "FEW", 0)
    monkeypatch.setattr(row_file.RowFile, "read", None)
    np.testing.assert_array_equal(scores(made.take(chosen)), expected[chosen])
    assert made.take(np.zeros(0, dtype=np.int64)).gram().tolist() == np.zeros((6, 6)).tolist()


def test_what_fits_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data, size = sv.Dataset.from_arrays(*numbers()), RECIPE.size_of(600)
    assert size == 600 * (6 * 4 + 9)
    monkeypatch.setattr(resources, "SHARE", 4)
    monkeypatch.setattr(resources, "available", lambda: 4 * size)
    assert isinstance(in_memory_or_file(data, RECIPE, None), PartsInMemory)
    monkeypatch.setattr(resources, "available", lambda: 4 * size - 1)
    assert isinstance(in_memory_or_file(data, RECIPE, None), PartsInFile)


def test_memory_that_is_left_is_below_every_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the process and of the control groups above it."""
    assert resources.available() > 0
    program = (
        "import resource, sys\n"
        "from sottovoce.data import resources\n"
        "most = int(sys.argv[2])\n"
        "resource.setrlimit(getattr(resource, sys.argv[1]), (most, most))\n"
        "print(resources.available())\n"
    )
    for limit in ("RLIMIT_AS", "RLIMIT_DATA"):
        most = 1 << 33
        told = subprocess.run(
            [sys.executable, "-c", program, limit, str(most)], capture_output=True, text=True, check=True
        )
        assert int(told.stdout) < most
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for place, most in ((folder, "max"), (folder.parent, "5000000")):
        (place / "memory.max").write_text(most)
        (place / "memory.current").write_text("3000000")
        (place / "memory.stat").write_text("anon 2500000\ninactive_file 500000\n")
    found = list(resources._of_group(tmp_path, "/a/b", "memory.max", "memory.current", "inactive_file"))
    assert found == [2_500_000]


def test_views_lie_in_a_file_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, opened = parts(tmp_path), list[Path]()
    scratch = resources.open_scratch

    def counted(folder: Path) -> int:
        opened.append(folder)
        return scratch(folder)

    monkeypatch.setattr(resources, "open_scratch", counted)
    seen = made.projected(np.tril(np.ones((6, 6))))
    lengths = seen.number_sum(lambda lengths, _: np.minimum(lengths, 1.0))
    assert seen.number_sum(lambda lengths, _: np.minimum(lengths, 1.0)) == lengths
    assert opened == [tmp_path]
    monkeypatch.setattr(resources, "SHARE", 0)
    again = made.projected(np.tril(np.ones((6, 6))))
    assert again.number_sum(lambda lengths, _: np.minimum(lengths, 1.0)) == lengths
    assert opened == [tmp_path]


# On the disk.


def test_a_file_that_is_cut_releases_nothing(tmp_path: Path) -> None:
    made = parts(tmp_path)
    made.gram()
    os.ftruncate(made._file.handle, 5000)
    with pytest.raises(LeakError, match="shorter than it was"):
        made.gram()


def test_every_fit_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Of the same data by the same bounds, at the same time; both are gone with their rows."""
    X, y = numbers()
    data = sv.Dataset.from_arrays(X, y, folder=tmp_path)
    first, second = (in_memory_or_file(data, RECIPE, None) for _ in range(2))
    assert os.fstat(first._file.handle).st_ino != os.fstat(second._file.handle).st_ino
    assert first.gram().tobytes() == second.gram().tobytes()
    handle = first._file.handle
    del first
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    assert not list(tmp_path.iterdir())


def files(folder: Path) -> tuple[Any, Any, Path, Path]:
    X, y = numbers()
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return X, y, folder / "X.npy", folder / "y.npy"


def test_a_disk_without_room_is_told_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = numbers()
    ledger = sv.Ledger.create(tmp_path / "a.ledger")
    ledger.open("a", epsilon=2.0, delta=1e-5)
    before = ledger.account().balance()
    stats = os.statvfs(tmp_path)

    class Full:
        f_bavail, f_frsize = 1, stats.f_frsize

    model = MODELS["newton"]().set_params(ledger=ledger)
    with monkeypatch.context() as told:
        told.setattr(os, "statvfs", lambda _: Full)
        with pytest.raises(InputError, match=r"need .* MB in .* free\. .*folder="):
            model.fit(sv.Dataset.from_arrays(X, y))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # the disk ends in the middle
    try:
        with pytest.raises(InputError, match="could not be written to"):
            model.fit(sv.Dataset.from_arrays(X, y))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.account().balance() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ledger"]
    with pytest.raises(InputError, match="is no folder"):
        model.fit(sv.Dataset.from_arrays(X, y, folder=tmp_path / "dropouts"))
    model.fit(sv.Dataset.from_arrays(X, y))  # beside the ledger
    assert ledger.account().balance() != before


def test_a_file_system_without_nameless_files_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    _, _, rows, labels = files(tmp_path)
    place = tmp_path / "rows"
    place.mkdir()
    data = sv.Dataset(rows, label=str(labels), folder=place)
    made = in_memory_or_file(data, RECIPE, None)
    assert made.gram().shape == (6, 6)
    assert os.fstat(made._file.handle).st_mode & 0o777 == 0o600
    assert not list(place.iterdir())


KILLED = """
import pathlib, sys, time
import sottovoce as sv
from sottovoce.data import block_parts, dataset, resources, row_file
resources.SHARE, dataset.ENTRIES = 1 << 60, 50
class Slow(dataset.ArraySource):
    def pieces(self, rows):
        for number, piece in enumerate(super().pieces(rows)):
            if number == 5:
                print("in the middle", flush=True)
                time.sleep(60)
            yield piece
import numpy as np
X = np.ones((600, 5))
data = sv.Dataset._of([Slow(X, X[:, 0] > 0)], 5, (), None)
data.folder = pathlib.Path(sys.argv[1])
block_parts.PIECE = 1 << 10
sv.PrivateLogisticRegression(row_norm=2.0, classes=(0, 1), solver="gradient").fit(data)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in the middle\n"
    handles = [path for path in Path(f"/proc/{process.pid}/fd").iterdir() if str(tmp_path) in str(path.readlink())]
    assert [handle.stat().st_mode & 0o777 for handle in handles] == [0o600]  # there is a file, and it has no name
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not list(tmp_path.iterdir())


# Within a limit of memory.

LIMITED = """
import json, resource, sys
import numpy as np
import sottovoce as sv
from sottovoce.data import block_parts, dataset, resources, row_file
rows, labels, folder, more = sys.argv[1:]
common = dict(delta=1e-7, row_norm=1.0, classes=(0, 1), insecure_seed=1, solver="newton")
small = np.eye(40, dtype=np.int8)[np.arange(4000) % 40]  # loops are compiled for each kind of number
resources.SHARE, dataset.ENTRIES, block_parts.PIECE = 1 << 60, 1 << 18, 1 << 20
sv.PrivateLogisticRegression(**common).fit(sv.Dataset.from_arrays(small, np.arange(4000) % 2))  # all is loaded
resources.SHARE = 4
def taken():
    return int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
limit = taken() + int(more)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(int(more) // 4)
    print("no limit")
    sys.exit()
except MemoryError:
    pass
data = sv.Dataset(rows, label=labels, folder=folder)
coef = sv.PrivateLogisticRegression(**common).fit(data).coef_
size = data.shape[0] * (41 * 4 + 9)
print(json.dumps({"coef": coef.tobytes().hex(), "times": size / int(more)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA is not enforced elsewhere")
def test_rows_of_several_times_the_memory_that_is_left(tmp_path: Path) -> None:
    records, more = 300_000, 16 << 20
    rng = np.random.default_rng(5)
    X, y = rng.integers(-100, 100, (records, 40), dtype=np.int8), rng.integers(0, 2, records, dtype=np.int8)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    arguments = [str(tmp_path / "X.npy"), str(tmp_path / "y.npy"), str(tmp_path), str(more)]
    called = [sys.executable, "-W", "ignore", "-c", LIMITED, *arguments]
    told = subprocess.run(called, stdout=subprocess.PIPE, text=True, check=True)
    if told.stdout == "no limit\n":
        pytest.skip("this system does not enforce RLIMIT_DATA")
    found = json.loads(told.stdout)
    assert found["times"] >= 3.0
    common: dict[str, Any] = {"delta": 1e-7, "row_norm": 1.0, "classes": (0, 1), "insecure_seed": 1, "solver": "newton"}
    expected = sv.PrivateLogisticRegression(**common).fit(X.astype(np.float32), y).coef_
    assert bytes.fromhex(found["coef"]) == expected.tobytes()


FIRST = """
import resource, sys
import numpy as np
import scipy.linalg, sklearn.linear_model
import sottovoce as sv
from sottovoce.data import block_parts, dataset
rows, labels, folder, more = sys.argv[1:]
dataset.ENTRIES, block_parts.PIECE = 1 << 18, 1 << 20
model = sv.PrivateLogisticRegression(delta=1e-7, row_norm=1.0, classes=(0, 1), insecure_seed=1, solver="whitened")
limit = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize() + int(more)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    model.fit(sv.Dataset(rows, label=labels, folder=folder))
    print("fitted")
except sv.errors.InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA is not enforced elsewhere")
@pytest.mark.parametrize("more", [60, 90, 130, 200])
def test_a_first_fit_within_a_limit_ends(more: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    np.save(tmp_path / "X.npy", rng.integers(-100, 100, (20_000, 40), dtype=np.int8))
    np.save(tmp_path / "y.npy", rng.integers(0, 2, 20_000, dtype=np.int8))
    arguments = [str(tmp_path / "X.npy"), str(tmp_path / "y.npy"), str(tmp_path), str(more * 10**6)]
    called = [sys.executable, "-W", "ignore", "-c", FIRST, *arguments]
    told = subprocess.run(called, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
    if more < 96:
        assert "of memory, and a fit needs about 96 MB beside its rows" in told
        assert "Nothing was charged" in told
    else:
        assert "fitted" in told or "Nothing was charged" in told
    if more == 200:
        assert told == "fitted\n"
