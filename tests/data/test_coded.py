"""Rows of wide tables: their cells are kept, and what is made of them has the bits of the dense encoding."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.data import schema as schemas
from sottovoce.data.block import Block, BlockRows, Layout, Preparation, RecordRows, prepare_rows
from sottovoce.data.block_parts import PartsOfTable
from sottovoce.data.bounds import Bounds
from sottovoce.data.coded import Coded
from sottovoce.data.files import read_table
from sottovoce.data.matrix import Slope
from sottovoce.data.resources import NO_RESOURCES, Resources
from sottovoce.losses import get

CODES = [f"C{place:03d}" for place in range(400)]
COLUMNS: dict[str, Any] = {
    "first": {"levels": CODES, "missing": True, "other": True},
    "second": {"levels": CODES},
    "age": {"range": (18, 98), "missing": True, "fill": 20},
    "income": {"range": (1, 1000), "shape": "smooth", "scale": "log", "missing": True},
    "smoker": {"yes": "yes", "no": "no"},
    "risk": {"levels": ["low", "high"]},
}
SCHEMA = sv.Schema(COLUMNS, label="risk")


def table(records: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    codes = np.array([*CODES, "none", None], dtype=object)
    first, smoker = rng.integers(0, len(codes), records), rng.random(records) < 0.3
    score = 2.0 * (first % 2) + smoker - 1 + rng.logistic(size=records)
    return pd.DataFrame(
        {
            "first": codes[first],
            "second": codes[rng.integers(0, len(codes), records)],
            "age": np.where(rng.random(records) < 0.1, np.nan, rng.uniform(0, 110, records)),
            "income": np.where(rng.random(records) < 0.1, np.nan, rng.lognormal(3, 2, records)),
            "smoker": np.where(smoker, "yes", "no"),
            "risk": np.where(score > 0, "high", "low"),
        }
    )


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and from then on no schema is sparse."""
    return lambda: monkeypatch.setattr(schemas, "MOST_FILLED", 0.0)


def recipe(layout: Layout, records: int, row_norm: float | None = None) -> Preparation:
    bounds = Bounds.declare(row_norm=row_norm or SCHEMA.row_norm, feature_ranges=SCHEMA.feature_ranges)
    return Preparation(bounds, len(SCHEMA.feature_names), True, records, ("low", "high"), layout=layout)


class TestRows:
    def test_which_tables_are_sparse_is_declared(self) -> None:
        assert SCHEMA.sparse
        assert SCHEMA.entries == 1 + 1 + 2 + 12 + 1
        assert not sv.Schema({"a": {"levels": CODES[:10]}, "b": {"range": (0, 1)}}).sparse

    def test_the_features_are_those_of_the_columns(self) -> None:
        cells = table(500)
        encoded = SCHEMA.encode(cells)
        assert sp.issparse(encoded)
        columns = [column.encode(cells[name].to_numpy()) for name, column in SCHEMA.columns.items()]
        np.testing.assert_array_equal(encoded.toarray(), np.column_stack(columns))
        np.testing.assert_array_equal(SCHEMA.rows(cells).dense(), encoded.toarray())

    def test_features_that_are_whole_are_stored_as_such(self) -> None:
        schema = sv.Schema({"a": {"levels": CODES}, "b": {"levels": CODES}, "c": {"yes": 1, "no": 0}})
        encoded = schema.encode({"a": ["C001", None], "b": ["C399", "C000"], "c": [0, 1]})
        assert encoded.dtype == np.int8
        assert encoded.toarray().sum(axis=1).tolist() == [1, 2]

    def test_rows_and_columns_of_them_are_those_of_the_whole(self) -> None:
        rows = SCHEMA.rows(table(300))
        whole, chosen = rows.dense(), np.array([7, 7, 2, 299])
        np.testing.assert_array_equal(rows[chosen].csr().toarray(), whole[chosen])
        np.testing.assert_array_equal(rows[10:20].dense(), whole[10:20])
        for first, last in ((0, 402), (402, 802), (802, 817), (804, 816)):
            np.testing.assert_array_equal(rows[:, first:last].csr().toarray(), whole[:, first:last])
            np.testing.assert_array_equal(rows[5:9, first:last].dense(), whole[5:9, first:last])


class TestPrepared:
    @pytest.mark.parametrize("layout", ["rows", "columns", "entries", "raw"])
    def test_every_layout_has_the_bits_of_dense_rows(self, layout: Layout) -> None:
        cells, made = table(700), recipe(layout, 700)
        rows = SCHEMA.rows(cells)
        assert isinstance(rows, Coded)
        sparse, dense = (Block.prepare(X, cells["risk"], made) for X in (rows, rows.dense()))
        found = sparse.rows.toarray() if sp.issparse(sparse.rows) else sparse.rows
        np.testing.assert_array_equal(np.asarray(found, np.float64), np.asarray(dense.rows, np.float64))
        np.testing.assert_array_equal(sparse.usable_rows, dense.usable_rows)

    def test_a_norm_that_cuts_leaves_rows_within_it(self) -> None:
        cells, made = table(700), recipe("rows", 700, row_norm=1.5)
        rows = SCHEMA.rows(cells)
        sparse, dense = (Block.prepare(X, cells["risk"], made) for X in (rows, rows.dense()))
        lengths = np.linalg.norm(sparse.rows.toarray(), axis=1)
        assert lengths.max() <= 1.0
        assert (lengths > 1 - 1e-3).any()
        np.testing.assert_allclose(sparse.rows.toarray(), dense.rows, atol=2.0**-made.bits)

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_rows_that_are_made_anew_give_the_sums_of_those_in_memory(self, jobs: int) -> None:
        count = 30_000
        cells, made = table(count), recipe("rows", count)
        labels = cells["risk"].to_numpy(dtype=object).copy()
        labels[5] = "neither"
        rows = SCHEMA.rows(cells)
        parts = prepare_rows(rows, labels, made, Resources(n_jobs=jobs), kinds=[BlockRows])
        block = prepare_rows(rows, labels, made, NO_RESOURCES, kinds=[RecordRows])
        assert isinstance(parts, PartsOfTable)
        assert isinstance(block, Block)
        weights, slope = np.linspace(-1, 1, made.dimension), Slope(get("logistic"), 1.0, made.bits)
        batch, diagonal = np.arange(5, count, 7), np.linspace(0.5, 2, made.dimension)
        for mine, theirs in ((parts, block), (parts.take(batch), block.take(batch))):
            np.testing.assert_array_equal(mine.weighted_sum(weights, slope), theirs.weighted_sum(weights, slope))
        np.testing.assert_array_equal(parts.gram(), block.gram())
        np.testing.assert_array_equal(parts.gram_diagonal(), block.gram_diagonal())
        sums = []
        for each in (parts, block):
            view = each.projected(diagonal)
            first = view.number_sum(lambda length, _: length / 2)
            view.cut(0.7)
            sums.append([first, *view.weighted_sum(weights, slope)])
        assert sums[0] == sums[1]

    def test_the_bytes_of_what_is_kept_do_not_grow_with_the_levels(self) -> None:
        few, many = (sv.Schema({f"c{k}": {"levels": list(range(n))} for k in range(8)}) for n in (20, 255))
        cells = {f"c{k}": np.arange(1000) % 20 for k in range(8)}
        assert few.rows(cells).nbytes == many.rows(cells).nbytes == 8 * 1000


def fitted(data: Any, seed: int = 1, **options: Any) -> sv.PrivateLogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"epsilon": 2.0, "delta": 1e-6, "insecure_seed": seed} | options
        return sv.PrivateLogisticRegression(**options).fit(data)


class TestFits:
    """Each is fitted twice, the second time as dense rows."""

    def both(self, dense: Any, fit: Any) -> tuple[Any, Any]:
        first = fit()
        dense()
        return first, fit()

    @pytest.mark.parametrize("solver", ["whitened", "newton", "cd"])
    def test_in_one_place(self, dense: Any, solver: str) -> None:
        cells = table(4000)
        one, other = self.both(dense, lambda: fitted(cells, schema=SCHEMA, solver=solver))
        np.testing.assert_array_equal(one.coef_, other.coef_)

    def test_predictions_are_those_of_the_encoded_rows(self, dense: Any) -> None:
        model, new = fitted(table(3000), schema=SCHEMA), table(40_000, seed=5)
        shares = model.predict_proba(new)
        dense()
        np.testing.assert_allclose(shares, model.predict_proba(new), rtol=1e-12)

    def test_by_rows(self, dense: Any) -> None:
        def fit() -> Any:
            parts = [table(1500), table(1700, 1)]
            return fitted(sv.Federation.by_rows(parts, schema=sv.Schema(COLUMNS, label="risk")))

        one, other = self.both(dense, fit)
        np.testing.assert_array_equal(one.coef_, other.coef_)

    @pytest.mark.slow
    def test_by_columns(self, dense: Any) -> None:
        cells, new = table(1500), table(200, seed=3)

        def fit() -> Any:
            parts = [cells[["first", "age", "risk"]], cells[["second", "income", "smoker"]]]
            about: Any = {"schema": sv.Schema(COLUMNS, label="risk"), "labels": "shared"}
            secure = fitted(
                sv.Federation.by_columns(parts, **about), solver="gradient", epsilon=1e4
            )  # draws bits of its own: it repeats none
            assert np.corrcoef(secure.coef_[0, :400], np.arange(400) % 2)[0, 1] < -0.5
            return fitted(sv.Federation.by_columns(parts, **about), solver="admm")

        one, other = self.both(dense, fit)
        np.testing.assert_array_equal(one.coef_, other.coef_)
        np.testing.assert_allclose(one.predict_proba(new), other.predict_proba(new), rtol=1e-12)

    @pytest.mark.parametrize("in_file", [False, True])
    def test_piece_by_piece(self, dense: Any, tmp_path: Path, in_file: bool) -> None:
        table(3000).to_csv(tmp_path / "people.csv", index=False)

        def fit() -> Any:
            data = sv.Dataset(tmp_path / "people.csv", schema=sv.Schema(COLUMNS, label="risk"), folder=tmp_path)
            data.in_file = in_file
            return fitted(data)

        one, other = self.both(dense, fit)
        np.testing.assert_array_equal(one.coef_, other.coef_)

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_a_file_that_is_read_whole(self, tmp_path: Path, suffix: str) -> None:
        cells, path = table(400), tmp_path / f"people.{suffix}"
        cells.to_csv(path, index=False) if suffix == "csv" else cells.to_parquet(path)
        found = read_table(path, schema=SCHEMA)
        assert isinstance(found.X, Coded)
        np.testing.assert_array_equal(found.X.dense(), SCHEMA.encode(cells).toarray())
        halves = [SCHEMA.rows(cells[:150]), SCHEMA.rows(cells[150:])]
        np.testing.assert_array_equal(Coded.joined(halves).dense(), found.X.dense())

    def test_an_evaluation(self, dense: Any) -> None:
        def measure() -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = fitted(table(3000), schema=sv.Schema(COLUMNS, label="risk"))
                return sv.evaluate(model, table(2000, 7), epsilon=1.0, delta=1e-6, insecure_seed=2)

        one, other = self.both(dense, measure)
        assert str(one) == str(other)

    def test_ranges_that_nobody_knows(self, dense: Any) -> None:
        columns = {**COLUMNS, "age": {"range": "private", "missing": True}}
        cells = table(6000)
        one, other = self.both(dense, lambda: fitted(cells, schema=sv.Schema(columns, label="risk"), epsilon=20.0))
        assert one.ranges_ == other.ranges_
        np.testing.assert_array_equal(one.coef_, other.coef_)

    def test_rows_that_would_not_fit_in_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a table of curves, which is not sparse."""
        schema = sv.Schema(
            {"age": {"range": (18, 98)}, "income": COLUMNS["income"], "risk": COLUMNS["risk"]}, label="risk"
        )
        cells = table(9000)[["age", "income", "risk"]]
        one = fitted(cells, schema=schema)
        monkeypatch.setattr(schemas, "fits_in_memory", lambda _size: False)
        assert isinstance(schema.rows(cells), Coded)
        assert not schema.sparse
        assert isinstance(schema.encode(cells), np.ndarray)
        other = fitted(cells, schema=schema)
        np.testing.assert_array_equal(one.coef_, other.coef_)
        np.testing.assert_allclose(one.predict_proba(cells), other.predict_proba(cells), rtol=1e-12)

    @pytest.mark.slow
    def test_a_fit_takes_less_than_the_places_of_its_entries(self) -> None:
        """1.5 times four bytes for each entry that is not 0, from the table to the model; rows with zeros take more."""
        count, schema = (
            60_000,
            sv.Schema(
                {f"c{k}": {"levels": list(range(100))} for k in range(40)} | {"y": {"levels": [0, 1]}}, label="y"
            ),
        )
        rng = np.random.default_rng(0)
        cells = {f"c{k}": rng.integers(0, 100, count) for k in range(40)} | {"y": rng.integers(0, 2, count)}
        fitted({name: own[:500] for name, own in cells.items()}, schema=schema)
        tracemalloc.start()
        try:
            fitted(cells, schema=schema)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1.5 * 4 * 40 * count < 0.01 * 8 * 4000 * count
