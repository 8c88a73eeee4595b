"""What stands beside labels is cut with them, and a cell of it says what it says, whatever the other cells are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.data import block_parts
from sottovoce.data.beside import NOBODY, columns_beside, labels_of, labels_with, people_of, relabelled
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.dataset import Dataset
from sottovoce.data.device.device_block import DeviceBlock
from sottovoce.data.matrix import Slope
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError
from sottovoce.losses import Count


def test_labels_alone_stay_as_they_are() -> None:
    y = np.array([1.0, 0.0])
    assert sv.labels_with(y) is y
    assert labels_of(y) is y
    assert not columns_beside(y)


def test_what_stands_beside_is_cut_with_labels() -> None:
    y = sv.labels_with(["a", "b", "a"], person=["x", "y", "x"], exposure=[1, 2.5, "?"], weight=[1, 1, 2])
    assert labels_of(y).tolist() == ["a", "b", "a"]
    beside = columns_beside(y[1:])
    assert beside["exposure"][0] == 2.5
    assert np.isnan(beside["exposure"][1])
    assert beside["person"].tolist() == people_of(["y", "x"]).tolist()
    assert columns_beside(relabelled(y, np.zeros(3)))["weight"].tolist() == [1.0, 1.0, 2.0]


def test_whose_a_record_is_follows_from_its_own_cell() -> None:
    """An identifier is one text, whatever the type that the rest of its column gave it."""
    texts, numbers = people_of(["007", "7 ", "x", "NA"]), people_of(np.array([7.0, 7.0, np.nan]))
    assert texts[0] == texts[1] == numbers[0] == people_of([7])[0] != texts[2]
    assert texts[3] == numbers[2] == NOBODY
    assert people_of(["A1"])[0] == people_of(["a1"])[0]


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(sv.InputError, match="person has shape"):
        sv.labels_with([0, 1], person=["x"])


def test_a_schema_says_whose_a_record_is() -> None:
    schema = sv.Schema({"age": {"range": (0, 99)}, "ill": {"yes": 1, "no": 0}}, label="ill", person="patient")
    table = {"patient": ["p1", "p2"], "age": [3, 4], "ill": [1, 0]}
    assert columns_beside(schema.labels(table))["person"].tolist() == people_of(["p1", "p2"]).tolist()
    assert schema.encode(table, others=False).shape == (2, 1)
    assert sv.Schema.from_table(schema.table()) == schema
    assert schema.table()["person"] == "patient"
    with pytest.raises(sv.InputError, match="lacks 'patient'"):
        schema.labels({"age": [3], "ill": [1]})


def test_what_a_plan_does_not_take_is_refused() -> None:
    X, y = np.zeros((4, 2)), [0, 1, 0, 1]
    model = sv.PrivateLogisticRegression(epsilon=1.0, entry_bound=1.0, classes=(0, 1))
    with pytest.raises(sv.InputError, match="person"):
        model.fit(X, y, person=["a", "a", "b", "b"])
    federation = sv.Federation.by_rows([(X, sv.labels_with(y, weight=[1, 1, 1, 1]))])
    with pytest.raises(sv.SottovoceError, match="weight"):
        model.fit(federation)


def rated_rows(count: int = 700) -> tuple[np.ndarray, np.ndarray, Preparation]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(count, 3))
    y = labels_with(rng.poisson(2.0, count), exposure=rng.uniform(0, 3, count), weight=rng.uniform(0, 5, count))
    y["exposure"][:3], y["weight"][3:6] = [math.nan, -1.0, 0.0], [math.nan, -1.0, math.inf]
    bounds = Bounds.declare(row_norm=2.0, label_bound=(0, 4), exposure_bound=2.0, weight_bound=4.0)
    return X, y, Preparation(bounds, 3, True, count, counts=True, exposed=True)


def sums_of(rows: Any) -> list[np.ndarray]:
    """What a fit of counts asks of rows."""
    loss, weights, matrix = Count(phi=0.5), np.array([0.3, -0.2, 0.1, 0.4]), np.tril(np.ones((4, 4)))
    view, made = rows.projected(matrix), rows.projected(matrix[:, :2], made=True)
    for each in (view, made):
        each.cut(0.5)
    term = Slope(loss, 1.0, rows.bits, 0.75)
    return [
        rows.gram(),
        rows.gram_diagonal(),
        np.array([rows.number_sum(lambda _, y: y["exposure"] / 2), rows.number_sum(lambda s, _: s, -1.0, weights)]),
        rows.weighted_sum(weights, term),
        view.weighted_sum(weights, term),
        made.weighted_sum(weights[:2], term),
    ]


def test_rows_in_pieces_and_in_a_file_give_the_bits_of_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, recipe = rated_rows()
    whole = sums_of(Block.prepare(X, y, recipe))
    monkeypatch.setattr(block_parts, "PIECE", 1000)
    for fits in (True, False):
        monkeypatch.setattr(block_parts.room, "fits_in_memory", lambda _, fits=fits: fits)
        rows = block_parts.in_memory_or_file(Dataset.from_arrays(X, y, folder=tmp_path), recipe, None)
        assert type(rows).__name__ == ("PartsInMemory" if fits else "PartsInFile")
        for mine, theirs in zip(sums_of(rows), whole, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    sparse = sums_of(Block.prepare(sp.csr_matrix(X), y, recipe))
    for mine, theirs in zip(sparse, whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_weight_shortens_a_row_and_nothing_else() -> None:
    """Each term is that of the record alone, and none is longer than without a weight."""
    X, y, recipe = rated_rows(40)
    whole = Block.prepare(X, y, recipe)
    alone = [np.where(np.arange(40)[:, None] == k, X, math.nan) for k in range(40)]
    for place, total in enumerate(sums_of(whole)[:4]):
        each = [sums_of(Block.prepare(rows, y, recipe))[place] for rows in alone]
        np.testing.assert_array_equal(sum(each), total)
        assert max(np.linalg.norm(one) for one in each) <= (1.5 if place == 2 else 1.0)
    assert not whole.usable_rows[[0, 1, 3, 4, 5]].any()
    assert whole.usable_rows[2] == (y["label"][2] == 0)


def test_what_a_plan_does_not_take_and_what_it_lacks_is_refused() -> None:
    X, y, recipe = rated_rows(40)
    with pytest.raises(InputError, match="does not take exposure, weight"):
        Block.prepare(X, y, replace(recipe, bounds=Bounds.declare(row_norm=2.0, label_bound=(0, 4))))
    with pytest.raises(InputError, match="takes exposure beside labels, and there is none"):
        Block.prepare(X, labels_with(y["label"], weight=y["weight"]), recipe)
    with pytest.raises(InputError, match="no exposures and no weights"):
        DeviceBlock.prepare(X, y, recipe)
