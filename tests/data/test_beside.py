"""What stands beside labels is cut with them, and a cell of it says what it says, whatever the other cells are."""

from __future__ import annotations

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.beside import NOBODY, columns_beside, labels_of, people_of, relabelled


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
