"""One record decides nothing but its own row: no error, no warning, no shape, no type, and no other record's row.

A base data set has one record replaced by each of many odd ones, at every way in. What is compared is whether a fit
goes through and what it says, and the prepared rows and labels of all other records, bit for bit.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import warnings
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

import sottovoce as sv
from sottovoce.data import cells as cell_reading
from sottovoce.data.preparation import Preparation
from sottovoce.errors import MisfitWarning, SottovoceError
from sottovoce.estimators.classification import _Classifier
from sottovoce.federation import federation

N, VICTIM, WIDTH = 12, 7, 2
Rows = list[list[Any]]
Seen = tuple[Any, ...]


class Odd:
    """A cell that nothing can be done with."""

    __hash__ = None  # type: ignore[assignment]

    def __float__(self) -> float:
        raise RuntimeError("SECRET")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("SECRET")


FLOATS = [math.nan, math.inf, -math.inf, 1e300, -1e308, 5e-324, -0.0]
TEXTS = ["SECRET", "", "NA", "nan", "1e999", "1_0", "0x10", "\u0661", "\ud800", "\x00", "true", '"', "a,b", "9" * 5000]
CELLS: list[Any] = [
    *FLOATS,
    *TEXTS,
    None,
    True,
    10**400,
    -(2**63),
    1j,
    complex(0.5, 0.0),
    np.complex128(2 + 1j),
    b"\xff",
    b"0.5",
    [1, 2],
    [],
    (),
    {"a": 1},
    {1, 2},
    decimal.Decimal("sNaN"),
    decimal.Decimal("1e999"),
    fractions.Fraction(10**400, 3),
    datetime.date(2020, 1, 1),
    datetime.timedelta(1),
    np.datetime64("2020-01-01"),
    np.datetime64("NaT"),
    np.timedelta64(5, "s"),
    np.longdouble("1e400"),
    np.array([1.0]),
    np.array(1.0),
    pd.NA,
    pd.NaT,
    pd.Timestamp("2020-01-01"),
    float,
    math.sin,
    Odd(),
]
ROWS: list[Any] = [[], [0.5], [0.1, 0.2, 0.3], None, 5, "ab", {"a": 1, "b": 2}, [[0.1, 0.2], [0.1, 0.2]], Odd()]
TABLE = sv.Schema(
    {"a": {"range": (-1, 1)}, "b": {"range": (-1, 1), "missing": True}, "y": {"levels": [0, 1]}}, label="y"
)


def base() -> tuple[Rows, list[Any]]:
    rng = np.random.default_rng(3)
    return rng.uniform(-1, 1, (N, WIDTH)).tolist(), (np.arange(N) % 2).tolist()


def model(**changes: Any) -> Any:
    options = {"row_norm": 2.0, "classes": (0, 1), "solver": sv.solvers.Newton(rounds=2), "insecure_seed": 1}
    return sv.PrivateLogisticRegression(1.0, 1e-6, **options | changes)


def regression(**changes: Any) -> Any:
    options = {"row_norm": 2.0, "label_bound": 1.0, "solver": sv.solvers.Newton(rounds=2), "insecure_seed": 1}
    return sv.PrivateRidge(1.0, 1e-6, **options | changes)


def by_schema() -> Any:
    return sv.PrivateLogisticRegression(1.0, 1e-6, schema=TABLE, solver=sv.solvers.Newton(rounds=2), insecure_seed=1)


def objects(rows: Rows) -> NDArray[Any]:
    made = np.empty((len(rows), WIDTH), dtype=object)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            made[i, j] = cell
    return made


def one_column(cells: list[Any]) -> NDArray[Any]:
    return np.fromiter(cells, dtype=object)


def columns(rows: Rows, y: list[Any]) -> dict[str, list[Any]]:
    return {"a": [row[0] for row in rows], "b": [row[1] for row in rows], "y": y}


def csv(folder: Path, rows: Rows, y: list[Any]) -> Path:
    path = folder / "rows.csv"
    lines = [",".join("" if cell is None else str(cell) for cell in (*row, own)) for row, own in zip(rows, y)]  # noqa: B905
    path.write_bytes("\n".join(["a,b,y", *lines, ""]).encode(errors="surrogatepass"))
    return path


class ElsewhereError(Exception):
    """The library that makes the table refuses such a cell by itself: there is no such data set."""


def made(how: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return how(*arguments, **options)
    except Exception as error:
        raise ElsewhereError from error


def frame(rows: Rows, y: list[Any] | None = None) -> pd.DataFrame:
    table = columns(rows, [] if y is None else y)
    if y is None:
        del table["y"]
    return made(pd.DataFrame, table)


def object_frame(rows: Rows, y: list[Any]) -> pd.DataFrame:
    return made(pd.DataFrame, columns(rows, y), dtype=object)


def two(rows: Any, y: Any) -> list[tuple[Any, Any]]:
    return [(rows[: N // 2], y[: N // 2]), (rows[N // 2 :], y[N // 2 :])]


NUMBERS = {"a": pl.Float64, "b": pl.Float64}


def polars_objects(rows: Rows, y: list[Any]) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(name, cells, dtype=pl.Object) for name, cells in columns(rows, y).items()])


def polars_texts(rows: Rows, y: list[Any]) -> pl.DataFrame:
    texts = {name: [None if cell is None else str(cell) for cell in cells] for name, cells in columns(rows, y).items()}
    return pl.DataFrame(texts)


def arrow(rows: Rows, y: list[Any]) -> pa.Table:
    held = columns(rows, y)
    return pa.table({name: pa.array(held[name], pa.float64()) for name in "ab"} | {"y": pa.array(y)})


FEW = ["SECRET", "\ud800", 10**400, 1j, np.complex128(2 + 1j), [1, 2], None, b"x", np.array([1.0])]


def by_columns_of_lists(rows: Rows, y: list[Any]) -> Any:
    """The first party has the lists as they are, and the second one public column."""
    others = [[0.5] for _ in rows]
    return model(solver="auto").fit(sv.Federation.by_columns([rows, others], y))


# By name: a way in, and the cells that it is tried with.
Way = Callable[[Rows, list[Any], Path], Any]
WAYS: dict[str, tuple[Way, list[Any]]] = {
    "objects": (lambda X, y, _: model().fit(objects(X), one_column(y)), CELLS),
    "objects, regression": (lambda X, y, _: regression().fit(objects(X), one_column(y)), CELLS),
    "lists": (lambda X, y, _: model().fit(X, y), CELLS),
    "tuples": (lambda X, y, _: model().fit(tuple(map(tuple, X)), tuple(y)), CELLS),
    "numbers": (lambda X, y, _: model().fit(np.array(X), np.array(y, dtype=float)), FLOATS),
    "float32": (lambda X, y, _: model().fit(np.array(X, np.float32), np.array(y)), [math.nan, math.inf, -0.0]),
    "longdouble": (
        lambda X, y, _: regression().fit(np.array(X, np.longdouble), np.array(y, np.longdouble)),
        [*FLOATS, np.longdouble("1e400")],
    ),
    "sparse": (lambda X, y, _: model().fit(sp.csr_matrix(np.array(X)), y), FLOATS),
    "pandas": (lambda X, y, _: model().fit(frame(X), made(pd.Series, y)), CELLS),
    "pandas, regression": (lambda X, y, _: regression().fit(frame(X), made(pd.Series, y)), CELLS),
    "pandas, schema": (lambda X, y, _: by_schema().fit(frame(X, y)), CELLS),
    "pandas of objects, schema": (lambda X, y, _: by_schema().fit(object_frame(X, y)), CELLS),
    "dict, schema": (lambda X, y, _: by_schema().fit(columns(X, y)), CELLS),
    "Polars": (
        lambda X, y, _: model().fit(made(pl.DataFrame, X, orient="row", schema=NUMBERS), y),
        [*FLOATS, None],
    ),
    "Polars of objects, schema": (lambda X, y, _: by_schema().fit(made(polars_objects, X, y)), CELLS),
    "Polars of texts, schema": (lambda X, y, _: by_schema().fit(made(polars_texts, X, y)), [*FLOATS, *TEXTS, None]),
    "Arrow, schema": (lambda X, y, _: by_schema().fit(made(arrow, X, y)), [*FLOATS, None]),
    "Dataset": (lambda X, y, _: model().fit(sv.Dataset.from_arrays(objects(X), one_column(y))), CELLS),
    "CSV": (lambda X, y, at: model().fit(sv.Dataset(csv(at, X, y), label="y")), [*FLOATS, *TEXTS, None]),
    "CSV, schema": (lambda X, y, at: sv_fit(csv(at, X, y)), [*FLOATS, *TEXTS, None]),
    "by rows": (lambda X, y, _: model().fit(sv.Federation.by_rows(two(objects(X), one_column(y)))), CELLS),
    "by columns": (
        lambda X, y, _: model(solver="auto").fit(
            sv.Federation.by_columns([objects(X)[:, :1], objects(X)[:, 1:]], one_column(y))
        ),
        FEW,
    ),
    "by rows, lists": (lambda X, y, _: model().fit(sv.Federation.by_rows(two(X, y))), CELLS),
    "by columns, lists": (lambda X, y, _: by_columns_of_lists(X, y), FEW),
    "evaluate": (lambda X, y, _: evaluated(model(), objects(X), one_column(y)), CELLS),
    "evaluate, pandas": (lambda X, y, _: evaluated(model(), frame(X), made(pd.Series, y)), CELLS),
    "evaluate, schema": (lambda X, y, _: evaluated(by_schema(), frame(X, y)), CELLS),
}  # fmt: skip


def sv_fit(path: Path) -> Any:
    return sv.PrivateLogisticRegression(1.0, 1e-6, solver=sv.solvers.Newton(rounds=2), insecure_seed=1).fit(
        sv.Dataset(path, schema=TABLE)
    )


def evaluated(own: Any, X: Any, y: Any = None) -> Any:
    rows, labels = base()
    if own.schema is not None:
        own.fit(columns(rows, labels))
    elif isinstance(X, pd.DataFrame):
        own.fit(frame(rows), labels)
    else:
        own.fit(np.array(rows), labels)
    return sv.evaluate(own, X, y, epsilon=1.0, delta=1e-6, insecure_seed=2)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What every preparation gave, in order."""
    seen: list[Any] = []
    prepared, labels = Preparation.prepared, Preparation.labels

    def watch_rows(self: Any, X: Any, usable: Any, *others: Any) -> Any:
        found = prepared(self, X, usable, *others)
        seen.append(("rows", found.toarray() if sp.issparse(found) else np.array(found), usable.copy()))
        return found

    def watch_labels(self: Any, y: Any) -> Any:
        found = labels(self, y)
        seen.append(("labels", found[0].copy(), found[1].copy()))
        return found

    monkeypatch.setattr(Preparation, "prepared", watch_rows)
    monkeypatch.setattr(Preparation, "labels", watch_labels)
    SEEN[:] = [seen]


SEEN: list[list[Any]] = []


def outcome(way: Way, rows: Rows, y: list[Any], folder: Path) -> Seen:
    """Whether it went through, what was said, and the rows and labels of all records but the one."""
    seen = SEEN[0]
    seen.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            way(rows, y, folder)
            ended = "fitted"
        except ElsewhereError:
            raise
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
    # A caller who holds the table is told of cells that do not fit, to be kept to himself.
    said = tuple((each.category, str(each.message)) for each in told if each.category is not MisfitWarning)
    others, place = list[Any](), {"rows": 0, "labels": 0}
    for what, values, usable in seen:
        kept = [i for i in range(len(values)) if (place[what] + i) % N != VICTIM]
        place[what] += len(values)
        others.append((what, values.shape, values.dtype.str, values[kept].tobytes(), usable[kept].tobytes()))
    return ended, said, tuple(others)


def replaced(way: str, where: str, folder: Path) -> list[str]:
    """The odd values by which one record, at this way in, decides more than its own row."""
    run, cells = WAYS[way]
    rows, y = base()
    expected, decided, tried = outcome(run, rows, y, folder), list[str](), 0
    assert expected[0] == "fitted"
    assert expected[2]
    for odd in ROWS if where == "row" else cells:
        rows, y = base()
        if where == "row":
            rows[VICTIM] = odd
        elif where == "label":
            y[VICTIM] = odd
        else:
            rows[VICTIM][0] = odd
        try:
            found = outcome(run, rows, y, folder)
        except ElsewhereError:
            continue
        tried += 1
        if found != expected:
            decided.append(f"{type(odd).__name__}: {found[0]}")
    assert tried >= 3
    return decided


LABELLED = [way for way in WAYS if way not in ("numbers", "float32", "sparse", "Polars", "longdouble", "Arrow, schema")]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_cell_decides_more_than_its_own_row(way: str, tmp_path: Path) -> None:
    assert replaced(way, "cell", tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", LABELLED)
def test_no_label_decides_more_than_its_own_row(way: str, tmp_path: Path) -> None:
    assert replaced(way, "label", tmp_path) == []


@pytest.mark.parametrize("way", ["lists", "by rows, lists", "by columns, lists"])
def test_no_row_of_a_list_decides_more_than_itself(way: str, tmp_path: Path) -> None:
    assert replaced(way, "row", tmp_path) == []


@pytest.mark.slow
def test_an_array_of_all_cells_at_once_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: NumPy reads a list before its cells are read one by one."""
    read = federation.check_rows
    monkeypatch.setattr(federation, "check_rows", lambda X, y, name: read(np.asarray(X), y, name))
    for where in ("cell", "row"):
        assert replaced("by columns, lists", where, tmp_path) != []


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series, pl.Series, lambda row: array("d", row)])
def test_rows_of_a_list_are_lists_arrays_or_series(kind: Callable[[Any], Any]) -> None:
    rows = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    np.testing.assert_array_equal(cell_reading.number_rows([kind(row) for row in rows]), rows)


def test_of_two_widths_of_which_there_are_as_many_the_smaller_counts() -> None:
    rows: list[Any] = [[0.1, 0.2, 0.3], [0.1, 0.2], None]
    for given in (rows, rows[::-1]):
        assert cell_reading.number_rows(given).shape == (3, 2)


def assert_left_alone(way: str, without: Seen, with_one: Seen) -> None:
    """Parties of a federation answer alike; a caller who holds all rows is told that none is left."""
    if way.startswith("by "):
        assert without[0] == "fitted"
        assert without == with_one
    elif "schema" not in way:  # whose rows without a cell are rows of zeros
        assert "none is left" in without[0]
        assert "Nothing was charged" in without[0]
        assert with_one[0] == "fitted"


ALONE = ["objects", "objects, regression", "pandas", "dict, schema", "CSV", "evaluate", "by rows", "by columns"]


@pytest.mark.parametrize("way", ALONE)
def test_the_only_usable_label_decides_nothing(way: str, tmp_path: Path) -> None:
    """A data set in which one record alone has a label that is declared, or is a number, and one in which none has."""
    rows, _ = base()
    labels: list[Any] = ["other"] * N
    without = outcome(WAYS[way][0], rows, labels, tmp_path)
    with_one = outcome(WAYS[way][0], rows, [*labels[:VICTIM], 1, *labels[VICTIM + 1 :]], tmp_path)
    assert_left_alone(way, without, with_one)


@pytest.mark.parametrize("way", ["objects", "lists", "dict, schema", "by rows", "by columns", "Dataset"])
def test_the_only_number_decides_nothing(way: str, tmp_path: Path) -> None:
    _, y = base()
    rows: Rows = [["north", "south"] for _ in range(N)]
    without = outcome(WAYS[way][0], rows, y, tmp_path)
    rows = [["north", "south"] for _ in range(N)]
    rows[VICTIM] = [0.5, 0.5]
    assert_left_alone(way, without, outcome(WAYS[way][0], rows, y, tmp_path))


def test_no_cell_decides_whether_ranges_are_bought() -> None:
    rng = np.random.default_rng(5)
    X, y = rng.uniform(-3, 3, (3000, 1)).astype(object), np.arange(3000) % 2
    told = []
    for odd in (0.5, "SECRET", 10**400, None, 1j, [1], {}, 1e300):
        X[VICTIM, 0] = odd
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            own = sv.PrivateLogisticRegression(2.0, 1e-6, classes=(0, 1), feature_ranges="private", insecure_seed=1)
            own.fit(X, y)
        told.append([str(each.message) for each in said])
    assert told == told[:1] * len(told)


UNDECLARED: dict[str, Callable[[Rows, list[Any]], Any]] = {
    "objects": lambda X, y: model(classes=None).fit(np.array(X), one_column(y)),
    "lists": lambda X, y: model(classes=None).fit(X, y),
    "pandas": lambda X, y: model(classes=None).fit(frame(X), made(pd.Series, y)),
    "Dataset": lambda X, y: model(classes=None).fit(sv.Dataset.from_arrays(np.array(X), one_column(y))),
    "by rows": lambda X, y: model(classes=None).fit(sv.Federation.by_rows(two(np.array(X), one_column(y)))),
}


def told_of_undeclared(way: str) -> list[str]:
    """Errors about labels that were not declared which are not of this package, or hold what the data hold."""
    found = list[str]()
    for odd in CELLS:
        rows, y = base()
        y = [31336 + label for label in y]
        y[VICTIM] = odd
        try:
            UNDECLARED[way](rows, y)
        except (SottovoceError, ElsewhereError) as error:
            if "3133" in str(error) or "SECRET" in str(error):
                found.append(str(error))
        except Exception as error:
            found.append(f"{type(odd).__name__}: {type(error).__name__}: {error}")
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", UNDECLARED)
def test_labels_that_are_not_declared_are_read_or_refused_without_quoting_one(way: str) -> None:
    """They count as public once they are classes; before that an error says nothing of them."""
    assert told_of_undeclared(way) == []


@pytest.mark.parametrize("odd", CELLS, ids=lambda odd: type(odd).__name__)
def test_a_prediction_for_an_odd_row_is_an_input_error_at_most(odd: Any) -> None:
    rows, y = base()
    own = model().fit(np.array(rows), y)
    table = objects(rows)
    table[VICTIM, 0] = odd
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            said = str(own.predict(table).shape)
        except ValueError as error:
            said = str(error)
    assert "SECRET" not in said
    assert said == f"({N},)" or "NaN" in said or "infinity" in said


@pytest.mark.parametrize("kind", ["texts", "dates", "pandas texts", "Polars texts"])
def test_a_type_that_is_of_no_numbers_is_refused_by_it_and_the_way_out_is_told(kind: str) -> None:
    """Types of arrays and columns are public, and one cell of a typed array cannot change them."""
    texts = np.full((N, WIDTH), "0.5")
    given: dict[str, Any] = {
        "texts": texts,
        "dates": np.full((N, WIDTH), np.datetime64("2020-01-01")),
        "pandas texts": pd.DataFrame(texts, columns=["a", "b"], dtype="string"),
        "Polars texts": pl.DataFrame({"a": ["0.5"] * N}),
    }
    for run in (
        lambda X: model().fit(X, base()[1]),
        sv.Dataset.from_arrays,
        lambda X: sv.Federation.by_rows([(X, base()[1])]),
    ):
        with pytest.raises(sv.InputError, match=r"not numbers.*schema=sv\.Schema"):
            run(given[kind])


def test_a_lone_surrogate_among_objects_is_a_level_like_any_other() -> None:
    table = pd.DataFrame(columns(*base()), dtype=object)
    table.loc[VICTIM, "a"] = "\ud800"
    assert np.isfinite(TABLE.encode(table)).all()


# Planted faults: what was there before, and whether the fence sees it.


def test_planted_cells_read_by_the_type_of_their_array(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cell_reading, "read_numbers", lambda rows, *_: np.asarray(rows).astype(np.float64))
    assert len(replaced("objects", "cell", tmp_path)) > 5


def test_planted_lists_that_become_one_array(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cell_reading, "_read_lists", lambda rows: np.asarray(rows, dtype=np.float64))
    assert len(replaced("lists", "cell", tmp_path)) > 5
    assert replaced("lists", "row", tmp_path)


@pytest.mark.slow
def test_planted_a_complex_column_that_is_missing_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = cell_reading.column_cells

    def column_cells(values: Any) -> Any:
        found = real(values)
        return np.full(len(found), None) if found.dtype.kind == "c" else found

    monkeypatch.setattr(cell_reading, "column_cells", column_cells)
    assert replaced("pandas, schema", "cell", tmp_path)


def test_planted_a_number_of_a_complex_cell_that_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def label_key(label: Any) -> Any:
        try:
            return float(label)
        except Exception:
            return label if isinstance(label, str) else None

    monkeypatch.setattr(cell_reading.read_numbers, "__defaults__", (label_key,))
    assert replaced("objects", "cell", tmp_path)


def test_planted_an_error_where_no_label_is_declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = _Classifier._check_labels

    def check_labels(self: Any, labels: Any) -> Any:
        if not any(label in (0, 1) for label in labels.tolist()):
            raise sv.InputError("match no label")
        return real(self, labels)

    monkeypatch.setattr(_Classifier, "_check_labels", check_labels)
    rows, _ = base()
    labels: list[Any] = ["other"] * N
    found = [outcome(WAYS["objects"][0], rows, own, tmp_path) for own in (labels, [*labels[:7], 1, *labels[8:]])]
    assert found[0] != found[1]


@pytest.mark.filterwarnings("ignore")
def test_planted_an_error_of_another_library_that_quotes_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_labels(self: Any, labels: Any) -> Any:
        return check_array(np.asarray(labels.tolist()), ensure_2d=False, dtype=None, input_name="y")

    monkeypatch.setattr(_Classifier, "_check_labels", check_labels)
    assert any("3133" in told for told in told_of_undeclared("objects"))
