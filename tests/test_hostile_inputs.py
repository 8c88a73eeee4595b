"""Whatever a file holds, nothing but an error of this package comes out, in little memory; no pipe is waited for."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.core import TyperGroup
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce import files
from sottovoce.app import job_file, jobs, page
from sottovoce.app.cli import app, console
from sottovoce.data import cells
from sottovoce.data.cells import table_columns
from sottovoce.data.files import csv, read_cells, read_table
from sottovoce.data.files import format as formats
from sottovoce.errors import InputError, SottovoceError
from sottovoce.estimators import model_file
from sottovoce.files import LONGEST_LINE, MOST_COLUMNS, MOST_FEATURES
from sottovoce.privacy import guarantee
from sottovoce.privacy.guarantee import VIEWS

JOB = """[model]
estimator = "logistic"

[privacy]
epsilon = 1.0
delta = 1e-6

[bounds]
row_norm = 2.0
classes = [0, 1]

[data]
file = "rows.csv"
label = "y"
records = 40
"""
PARTY = """[party]
name = "north"
ledger = "north.db"

[data]
file = "rows.csv"
label = "y"

[federation]
coordinator = "localhost:9443"
certificates = "."

[policy]
max_epsilon = 1.0
"""
SCHEMA = """[schema]
label = "y"
identifiers = ["id"]

[schema.columns]
a = { range = [0, 1], missing = true }
b = { levels = ["u", "v"], other = true }
c = { yes = "Y", no = "N" }
y = { levels = [0, 1] }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_all(tmp_path)
    return tmp_path


def write_all(at: Path) -> None:
    rng = np.random.default_rng(2)
    X, y = rng.uniform(-1, 1, (40, 2)), np.arange(40) % 2
    lines = [f"{a:.3f},{b:.3f},{own}" for (a, b), own in zip(X, y, strict=True)]
    (at / "rows.csv").write_text("\n".join(["a,b,y", *lines, ""]))
    with gzip.open(at / "rows.csv.gz", "wt") as file:
        file.write("\n".join(["a,b,y", *lines, ""]))
    (at / "rows.svm").write_text("".join(f"{own} 1:{a:.3f} 2:{b:.3f}\n" for (a, b), own in zip(X, y, strict=True)))
    parquet.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), at / "rows.parquet")
    np.save(at / "rows.npy", X)
    np.save(at / "y.npy", y)
    (at / "job.toml").write_text(JOB)
    (at / "party.toml").write_text(PARTY)
    (at / "schema.toml").write_text(SCHEMA)
    model = sv.PrivateLogisticRegression(
        1.0, 1e-6, row_norm=2.0, classes=(0, 1), solver=sv.solvers.Newton(rounds=2), insecure_seed=1
    ).fit(X, y)
    model.save(at / "model.json")


READERS: dict[str, Callable[[Path], Any]] = {
    "job.toml": jobs.load_job,
    "party.toml": jobs.load_party_job,
    "schema.toml": sv.Schema.from_toml,
    "model.json": model_file.load_model,
    "rows.csv": lambda path: [*sv.Dataset(path, label="y").pieces(), read_table(path, label="y")],
    "rows.csv.gz": lambda path: [*sv.Dataset(path, label="y").pieces(), read_table(path, label="y")],
    "rows.svm": lambda path: [*sv.Dataset(path, features=2).pieces(), read_table(path, features=2)],
    "rows.parquet": lambda path: [*sv.Dataset(path, label="y").pieces(), read_table(path, label="y")],
    "rows.npy": lambda path: list(sv.Dataset(path, label=str(path.parent / "y.npy")).pieces()),
}
TEXTS = [
    b"9" * 5000,
    b"1000000000000000000",
    b"2147483647",
    b"-1",
    b"1e999",
    b"nan",
    b'"\\u0000"',
    b"\x00",
    b"\xff\xfe",
    b"[" * 2000,
    b"{" * 2000,
    b"true",
    b"[[[]]]",
    b"{}",
    b"null",
    b'"',
    b"'''",
    b"\n",
    b"=",
    b"(",
    b":",
    b",",
    b"inf",
    b"0x10",
    b"\xef\xbb\xbf",
]


def damaged(content: bytes, seed: int) -> bytes:
    """The content with one to three damages, by the seed."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(content) + 1)
        stop = min(len(content), start + rng.choice([0, 1, 1, 2, 4, 8, 30]))
        kind = rng.randrange(5)
        if kind == 0:
            content = content[:start]
        elif kind == 1:
            content = content[:start] + bytes(rng.randrange(256) for _ in range(stop - start)) + content[stop:]
        elif kind == 2:
            content = content[:start] + content[start:stop] * rng.randint(2, 9) + content[stop:]
        else:
            content = content[:start] + rng.choice(TEXTS) + content[stop:]
    return content


def raw_errors(name: str, folder: Path, seeds: range) -> list[str]:
    """What comes out of a reader that is no error of this package."""
    path, found = folder / name, list[str]()
    content = path.read_bytes()
    for seed in seeds:
        path.write_bytes(damaged(content, seed))
        try:
            READERS[name](path)
        except SottovoceError:
            continue
        except Exception as error:
            found.append(f"{seed}: {type(error).__name__}: {error}")
    path.write_bytes(content)
    return found


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_an_error_of_this_package_or_none(name: str, folder: Path) -> None:
    assert raw_errors(name, folder, range(150)) == []


def values() -> list[str]:
    return [
        "true",
        "3",
        "-1",
        '"x"',
        "[]",
        "[[1]]",
        "{}",
        "{ a = 1 }",
        "1e400",
        "nan",
        '"\\u0000"',
        "1979-05-27",
        "0.5",
    ]


@pytest.mark.parametrize("name", ["job.toml", "party.toml", "schema.toml"])
def test_every_key_takes_every_value_or_refuses_it(name: str, folder: Path) -> None:
    """A value of every type in the place of each."""
    path = folder / name
    lines = path.read_text().splitlines()
    for place, line in enumerate(lines):
        if " = " not in line:
            continue
        for value in values():
            path.write_text("\n".join([*lines[:place], f"{line.split(' = ')[0]} = {value}", *lines[place + 1 :]]))
            with contextlib.suppress(SottovoceError):
                READERS[name](path)


HAND_MADE: dict[str, tuple[str, bytes]] = {
    "a deep job": ("job.toml", b"a = " + b"[" * 20_000 + b"]" * 20_000),
    "a long integer in a job": ("job.toml", JOB.replace("= 40", "= " + "9" * 5000).encode()),
    "too many records": ("job.toml", JOB.replace("= 40", "= 1000000000000000000").encode()),
    "too many features": ("job.toml", JOB.replace("records = 40", "features = 1000000000000000000").encode()),
    "an array that is too big": ("job.toml", JOB.replace("records = 40", "features = 2147483647").encode()),
    "a NUL in a path": ("job.toml", JOB.replace("rows.csv", "rows\\u0000.csv").encode()),
    "a deep model": ("model.json", b"[" * 100_000 + b"]" * 100_000),
    "a long integer in a model": ("model.json", b'{"format": ' + b"9" * 5000 + b"}"),
    "identifiers that are no list": ("schema.toml", SCHEMA.replace('["id"]', "true").encode()),
    "a deep schema": ("schema.toml", b"schema = " + b"[" * 20_000 + b"]" * 20_000),
}


@pytest.mark.parametrize("case", HAND_MADE)
def test_hand_made_files_are_refused(case: str, folder: Path) -> None:
    name, content = HAND_MADE[case]
    (folder / name).write_bytes(content)
    with pytest.raises(InputError):
        READERS[name](folder / name)


@pytest.mark.parametrize("case", [case for case, (name, _) in HAND_MADE.items() if name != "schema.toml"])
def test_the_command_ends_with_the_code_of_bad_input(case: str, folder: Path) -> None:
    name, content = HAND_MADE[case]
    (folder / name).write_bytes(content)
    result = CliRunner().invoke(app, ["fit", name] if name == "job.toml" else ["predict", name, "rows.csv"])
    assert result.exit_code == 2, result.output


def test_a_name_of_a_parquet_column_that_is_no_text_is_refused(folder: Path) -> None:
    path = folder / "rows.parquet"
    parquet.write_table(pa.table({"abcd": [0.5], "y": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"abcd", b"ab\xff\xfe"))
    for read in (lambda: sv.Dataset(path, label="y"), lambda: read_table(path, label="y")):
        with pytest.raises(InputError, match="no UTF-8"):
            read()


def test_a_header_of_numpy_that_is_no_python_is_refused(folder: Path) -> None:
    path = folder / "rows.npy"
    path.write_bytes(path.read_bytes().replace(b"{'descr'", b"{'des\ncr("))
    with pytest.raises(InputError, match="damaged"):
        READERS["rows.npy"](path)


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_and_not_waited_for(name: str, folder: Path) -> None:
    """A reader that waited would never end: nobody writes."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="pipe"):
        READERS[name](folder / name)


def test_a_name_with_a_nul_is_refused() -> None:
    for read in (model_file.load_model, jobs.load_job, sv.Schema.from_toml, lambda path: read_table(path)):
        with pytest.raises(InputError):
            read(Path("a\0b.csv"))


LONG = "\u00e9" * 300
COMMANDS = [
    ["plan", f"{LONG}.toml"],
    ["fit", f"{LONG}.toml"],
    ["predict", f"{LONG}.json", "rows.csv"],
    ["predict", "model.json", f"{LONG}.csv"],
    ["schema", f"{LONG}.csv"],
    ["evaluate", "model.json", f"{LONG}.toml"],
    ["card", f"{LONG}.json"],
    ["coefficients", f"{LONG}.json"],
    ["ledger", "show", f"{LONG}.db"],
    ["models", "list", LONG],
    ["doctor", "--job", f"{LONG}.toml"],
    ["plan", "long.toml"],
    ["fit", "long.toml"],
]


def uncaught(command: list[str], folder: Path) -> bool:
    """Whether a command ends with an error that is no line and no exit code of its own."""
    (folder / "long.toml").write_text(JOB.replace("rows.csv", f"{LONG}.csv"))
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    return not isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command).replace(LONG, "LONG"))
def test_a_name_that_is_too_long_ends_a_command_with_a_line_and_a_code(command: list[str], folder: Path) -> None:
    assert not uncaught(command, folder)


def test_a_job_on_a_pipe_of_parquet_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.parquet")
    (folder / "job.toml").write_text(JOB.replace("rows.csv", "pipe.parquet").replace("records = 40\n", ""))
    for command in (["plan", "job.toml"], ["doctor", "--job", "job.toml"]):
        result = CliRunner().invoke(app, command)
        assert "pipe" in result.output
        assert result.exit_code != 0


@pytest.mark.slow
def test_a_damaged_table_in_a_folder_is_an_error_of_this_package(folder: Path) -> None:
    path = folder / "rows.parquet"
    content = path.read_bytes()
    footer = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    for place in range(4, footer, 7):
        path.write_bytes(
            content[:place] + bytes(byte ^ 255 for byte in content[place : place + 7]) + content[place + 7 :]
        )
        with contextlib.suppress(SottovoceError):
            read_cells(path, most=10_000)


@pytest.mark.parametrize("delta", [5e-324, 1e-320, 1e-301])
def test_a_delta_that_floats_hardly_hold_is_refused_everywhere(delta: float, folder: Path) -> None:
    table = read_table(folder / "rows.csv", label="y")
    with pytest.raises(InputError, match="1e-300"):
        sv.PrivateLogisticRegression(1.0, delta, row_norm=2.0, classes=(0, 1)).fit(table.X, table.y)
    with pytest.raises(InputError, match="1e-300"):
        sv.evaluate(model_file.load_model(folder / "model.json"), table.X, table.y, epsilon=1.0, delta=delta)
    (folder / "job.toml").write_text(JOB.replace("1e-6", str(delta)))
    with pytest.raises(InputError, match="delta"):
        jobs.load_job(folder / "job.toml")
    asked = ["ledger", "create", "new.db", "--dataset", "people", "--epsilon", "1", "--delta", str(delta)]
    assert CliRunner().invoke(app, asked).exit_code == 2
    assert not (folder / "new.db").exists()


def test_the_smallest_delta_is_served(folder: Path) -> None:
    table = read_table(folder / "rows.csv", label="y")
    account = sv.Ledger.create(folder / "people.db").open("people", 9.0, 1e-290)
    model = sv.PrivateLogisticRegression(1.0, 1e-300, row_norm=2.0, classes=(0, 1), ledger=account)
    model.fit(table.X, table.y).save(folder / "model.json")
    assert model_file.load_model(folder / "model.json").privacy_.delta <= 1e-300


@pytest.mark.parametrize(
    "classes",
    [
        (0, math.inf),
        (True, False),
        (1e22, 2),
        (2**70, 1),
        ("\ud800", "x"),
        ("", 1),
        ("a\0", "b"),
        (1e-320, 0),
        ("inf", "x"),
    ],
)
def test_classes_are_refused_before_the_charge_or_the_model_is_read_back(classes: Any, folder: Path) -> None:
    table = read_table(folder / "rows.csv", label="y")
    account = sv.Ledger.create(folder / "people.db").open("people", 9.0, 1e-5)
    model = sv.PrivateLogisticRegression(1.0, 1e-6, row_norm=2.0, classes=classes, ledger=account)
    y = np.array([classes[int(own)] for own in table.y.tolist()], dtype=object)
    try:
        model.fit(table.X, y)
    except InputError:
        assert account.balance().plans == 0
        return
    model.save(folder / "model.json")
    assert model_file.load_model(folder / "model.json").classes_.tolist() == model.classes_.tolist()


# A model file: what was loaded can be shown and saved again.

ODD: list[Any] = [
    *(None, True, -1, 2**70, 1e308, -1e308, math.nan, math.inf, "", "x", "inf", "1e-6", "\ud800"),
    *([], [1], [["a", 1]], {}, {"a": 1}),
]


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a JSON document; of a list the first alone."""
    inner = (
        content.items() if isinstance(content, dict) else enumerate(content[:1]) if isinstance(content, list) else ()
    )
    for key, value in inner:
        yield (*at, key)
        yield from places(value, (*at, key))


def crashes_of_models(folder: Path, part: str) -> list[str]:
    """What comes out of a model file with one odd value that is no error of this package."""
    path, found = folder / "model.json", list[str]()
    text = path.read_text()
    for place in [own for own in places(json.loads(text)) if own[0] == part]:
        for odd in ODD:
            content = json.loads(text)
            inner = content
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = odd
            path.write_text(json.dumps(content))
            try:
                model = model_file.load_model(path)
                _ = str(model.privacy_), model_file.to_json(model), page.make_card(model, None)
            except SottovoceError:
                continue
            except Exception as error:
                found.append(f"{place} {odd!r}: {type(error).__name__}: {error}")
    path.write_text(text)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", ["privacy", "parameters", "communication", "rounds", "score_spread", "receipts"])
def test_a_model_with_an_odd_value_is_refused_or_can_be_shown_and_saved(part: str, folder: Path) -> None:
    assert crashes_of_models(folder, part) == []


def test_a_report_that_cannot_be_added_up_stops_an_evaluation_before_the_charge(folder: Path) -> None:
    model, table = model_file.load_model(folder / "model.json"), read_table(folder / "rows.csv", label="y")
    account = sv.Ledger.create(folder / "people.db").open("people", 9.0, 1e-5)
    fit = model.privacy_
    model.privacy_ = replace(fit, **{view: replace(fit.against(view), delta="1e-6", void=None) for view in VIEWS})
    with pytest.raises(TypeError):
        sv.evaluate(model, table.X, table.y, epsilon=1.0, delta=1e-6, people="same", ledger=account)
    assert account.balance().plans == 0


@pytest.mark.parametrize("epsilon", [800.0, 1e6])
def test_a_budget_whose_exponential_no_float_holds_can_be_told_and_saved(epsilon: float, folder: Path) -> None:
    table = read_table(folder / "rows.csv", label="y")
    model = sv.PrivateLogisticRegression(epsilon, 1e-6, row_norm=2.0, classes=(0, 1)).fit(table.X, table.y)
    model.save(folder / "model.json")
    assert f"e^{epsilon:.4g} times" in str(model_file.load_model(folder / "model.json").privacy_)


def test_an_evaluation_that_is_no_json_is_refused(folder: Path) -> None:
    model = model_file.load_model(folder / "model.json")
    for text in ("[" * 100_000, "{}", "\xff", json.dumps({"a": 9})):
        (folder / "told.json").write_text(text, encoding="latin-1")
        with pytest.raises(InputError):
            page.load_evaluation(folder / "told.json", model)


# Lines and columns beyond the limits.


def peak(run: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        found = run()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv.gz", ".svm.gz"])
def test_a_line_beyond_the_limit_is_a_null_row_in_little_memory(suffix: str, tmp_path: Path) -> None:
    path, size = tmp_path / f"rows{suffix}", 10 * LONGEST_LINE
    own = ("0.5,0.5,1\n", "0.25,0.25,0\n") if suffix == ".csv.gz" else ("1 1:0.5 2:0.5\n", "0 1:0.25 2:0.25\n")
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a,b,y\n" if suffix == ".csv.gz" else b"")
        file.write(own[0].encode())
        for _ in range(size >> 20):
            file.write(b"0" * (1 << 20))
        file.write(b"\n" + own[1].encode())
    asked: dict[str, Any] = {"label": "y"} if suffix == ".csv.gz" else {"features": 2}
    pieces, most = peak(lambda: list(sv.Dataset(path, **asked).pieces()))
    rows = np.concatenate([X.toarray() if suffix == ".svm.gz" else X for X, _ in pieces])
    assert rows[[0, 2]].tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert np.isnan(rows[1]).any()
    assert most < size / 2
    table, most = peak(lambda: read_table(path, **asked))
    assert table.X.shape == (3, 2)
    assert most < size / 2


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_text_of_parquet_beyond_the_limit_is_a_missing_cell_in_little_memory(
    dictionary: bool, tmp_path: Path
) -> None:
    """What Arrow unpacks is not counted here; what is made of it is."""
    path, size = tmp_path / "rows.parquet", 4 * LONGEST_LINE
    texts = pa.array(["u", "v" * size, "v"], pa.large_string())
    labels = pa.array(["0", "1" * size, "1"], pa.large_string())
    columns = {"a": [0.5, 0.5, 0.25], "b": texts.dictionary_encode() if dictionary else texts, "y": labels}
    parquet.write_table(pa.table(columns), path, compression="zstd", use_dictionary=dictionary, write_statistics=False)
    assert path.stat().st_size < LONGEST_LINE
    del texts, labels, columns
    schema = sv.Schema({"a": {"range": (0, 1)}, "b": {"levels": ["u", "v"]}, "y": {"levels": [0, 1]}}, label="y")
    for read in (
        lambda: schema.encode(path),
        lambda: np.concatenate([rows for rows, _ in sv.Dataset(path, schema=schema).pieces()]),
    ):
        rows, most = peak(read)
        assert rows.tolist() == [[0.5, 1.0, 0.0], [0.5, 0.0, 0.0], [0.25, 0.0, 1.0]]
        assert most < size / 2
    first = lambda: table_columns(read_cells(path, most=10_000))["y"]  # noqa: E731
    for read in (lambda: read_table(path, label="y", left_out="b").y, first):
        found, most = peak(read)
        assert [cell or "" for cell in found.tolist()] == ["0", "", "1"]
        assert most < size / 2


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("long", [b"7" * 101, b" " * 101, b"1,2,3" * 30, b'"' * 150, b"x" * 5000])
def test_all_ways_of_reading_find_the_same_records(
    long: bytes, end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (csv, formats):
        monkeypatch.setattr(module, "LONGEST_LINE", 100)
    monkeypatch.setattr(formats, "BYTES", 64)
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,b,y\n" + b"1,2,0\n" * 20 + long + b"\n" + b"3,4,1\n" * 20 + long + end)
    whole, pieces = read_table(path, label="y"), list(sv.Dataset(path, label="y").pieces(5))
    assert whole.X.shape == (42, 2)
    np.testing.assert_array_equal(whole.X, np.concatenate([rows for rows, _ in pieces]))
    assert np.flatnonzero(np.isnan(whole.X).all(axis=1)).tolist() == [20, 41]


def test_a_first_line_beyond_the_limits_is_refused_in_little_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "rows.csv", 10 * LONGEST_LINE
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(b"a" * (1 << 20))

    def refused() -> None:
        for read in (sv.Dataset, read_table):
            with pytest.raises(InputError, match=f"more than {MOST_COLUMNS} columns or {LONGEST_LINE} bytes"):
                read(path)

    assert peak(refused)[1] < size / 2


def test_more_columns_than_the_limit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    names = ",".join(f"a{k}" for k in range(MOST_COLUMNS + 1))
    path.write_text(f"{names}\n{','.join('1' * (MOST_COLUMNS + 1))}\n")
    for read in (sv.Dataset, read_table):
        with pytest.raises(InputError, match=f"more than {MOST_COLUMNS} columns"):
            read(path)
    (tmp_path / "rows.svm").write_text("1 1:1\n")
    with pytest.raises(InputError, match=f"at most {MOST_FEATURES}"):
        sv.Dataset(tmp_path / "rows.svm", features=MOST_FEATURES + 1)


# Planted faults: what was there before, and whether these tests see it.


def test_planted_a_parser_whose_errors_come_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_file, "parse_file", lambda path, parse, *_: parse(path.read_text(encoding="utf-8")))
    assert raw_errors("job.toml", folder, range(150))


def test_planted_numpy_errors_that_come_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "rows.npy", lambda path: np.load(path, mmap_mode="r"))
    assert raw_errors("rows.npy", folder, range(150))


@pytest.mark.slow
def test_planted_lines_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST_LINE", 1 << 40)
    with pytest.raises(AssertionError):
        test_a_line_beyond_the_limit_is_a_null_row_in_little_memory(".csv.gz", tmp_path)


def test_planted_texts_of_parquet_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "LONGEST_LINE", 1 << 40)
    with pytest.raises(AssertionError):
        test_a_text_of_parquet_beyond_the_limit_is_a_missing_cell_in_little_memory(False, tmp_path)


@pytest.mark.slow
def test_planted_a_report_that_nobody_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantee, "_check_types", lambda made: made)
    assert len(crashes_of_models(folder, "privacy")) > 5


def test_planted_errors_of_the_system_that_come_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.Commands, "invoke", TyperGroup.invoke)
    assert uncaught(["plan", "long.toml"], folder)


def test_planted_a_pipe_that_nobody_looks_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes to it here, so that this test ends."""
    path = folder / "pipe.toml"
    os.mkfifo(path)
    monkeypatch.setattr(files, "check_plain", lambda _: None)
    writer = threading.Thread(target=path.write_text, args=(JOB,), daemon=True)
    writer.start()
    assert jobs.load_job(path).privacy.epsilon == 1.0
    writer.join()
