"""Evaluations by group: whose cells a record is in, what a plan may say, and what is made of groups of unknown size."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from pydantic import ValidationError

import sottovoce as sv
from plans import small_problem
from sottovoce import algorithms
from sottovoce.algorithms.evaluation import (
    EvaluatedClasses,
    EvaluatedNumbers,
    ResidualCells,
    ScoreCells,
    Subject,
    TwoSides,
)
from sottovoce.algorithms.evaluation.estimates import Counts, NumberEstimates
from sottovoce.algorithms.evaluation.groups import NO_GROUP, ByGroup, Groups
from sottovoce.data import block_parts, dataset
from sottovoce.data.beside import NOBODY, columns_beside, groups_of
from sottovoce.data.block import Block
from sottovoce.data.dataset import Dataset
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from support import at

SIDES = Groups(column="side", names=("right", "left"), places=(2, -2))
BESIDE = Groups(column="group", names=("a", 7))
NODES = TwoSides(-2.0, 1.0, 5, 3)
WEIGHTS = np.array([3.0, -2.0, 1.0, 0.5])


def problem(loss: str = "logistic", records: int = 7) -> Any:
    classes = (-1, 1) if loss == "logistic" else None
    return small_problem(Named(name=loss), classes=classes, parties=(("party-1", records),))


def table(count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (count, 3))
    rows[: count // 4, 1] = 0.0
    rows[0, 2] = math.nan
    return rows, np.where(rng.random(count) < 0.5, 1.0, -1.0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("query", [ScoreCells(NODES, WEIGHTS), ResidualCells(WEIGHTS)])
def test_each_group_has_the_cells_of_its_own_records(query: Any, *, sparse: bool) -> None:
    rows, labels = table()
    recipe = problem("logistic" if isinstance(query, ScoreCells) else "squared", 200).preparation
    make = sp.csr_matrix if sparse else np.asarray
    grouped = ByGroup(query, SIDES)
    found = at(grouped, Block.prepare(make(rows), labels, recipe, len(rows)))
    parts = (rows[:, 1] > 0, rows[:, 1] < 0, rows[:, 1] == 0)
    own = [at(query, Block.prepare(make(rows[part]), labels[part], recipe, len(rows))) for part in parts]
    np.testing.assert_array_equal(found, np.concatenate(own))
    halves = [at(grouped, Block.prepare(make(rows[k::2]), labels[k::2], recipe, len(rows))) for k in range(2)]
    np.testing.assert_array_equal(found, sum(halves))


def test_the_group_of_a_record_follows_from_its_own_cell() -> None:
    """A number is one however it is written; what is missing, or none of the declared, is in the last group."""
    cells: list[Any] = ["a", " a", "b", "7", 7.0, None, "nan", -0.0]
    told = groups_of(cells)
    assert told.tolist() == [groups_of([cell])[0] for cell in cells]
    assert groups_of(np.array([7.0, math.nan])).tolist() == [told[3], NOBODY]
    assert groups_of([0])[0] == told[-1]
    labels = sv.labels_with(np.ones(8), group=cells)
    recipe = problem().preparation
    with pytest.raises(InputError, match="does not take group"):
        recipe.labels(labels)
    block = Block(np.zeros((8, 3)), np.ones(8), None, beside=columns_beside(labels))
    assert BESIDE.of(block).tolist() == [0, 0, 2, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_groups_beside_labels_stay_where_rows_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_file: bool, sparse: bool
) -> None:
    """Pieces are joined as they are read, and kept in a file where they are too many for the memory."""
    monkeypatch.setattr(dataset, "ENTRIES", 3 * 20)
    monkeypatch.setattr(block_parts, "PIECE", 1 << 11)
    rows, labels = table()
    y = sv.labels_with(labels, group=np.resize(["a", "b", "7"], len(labels)), person=np.arange(len(labels)))
    recipe = replace(problem("logistic", len(rows)).preparation, also=("group", "person"))
    data = Dataset.from_arrays(sp.csr_matrix(rows) if sparse else rows, y, folder=tmp_path)
    data.in_file = in_file
    parts = block_parts.in_memory_or_file(data, recipe, None)
    assert isinstance(parts, block_parts.PartsInFile) == in_file
    query = ByGroup(ScoreCells(NODES, WEIGHTS), BESIDE)
    np.testing.assert_array_equal(at(query, parts), at(query, Block.prepare(rows, y, recipe)))
    kept = list(parts.each(lambda part: {name: column.copy() for name, column in part.block.beside.items()}))
    assert len(kept) > 2
    for name in ("group", "person"):
        np.testing.assert_array_equal(np.concatenate([each[name] for each in kept]), y[name])
    assert parts.digest() != digest_of(data, sv.labels_with(y, group=np.resize(["b", "a"], len(y))), recipe)


def digest_of(data: Dataset, y: Any, recipe: Any) -> bytes:
    """With other labels."""
    other = Dataset.from_arrays(data.sources[0].X, y, folder=data.folder)  # type: ignore[attr-defined]
    other.in_file = data.in_file
    return block_parts.in_memory_or_file(other, recipe, None).digest()


def test_other_groups_are_other_records() -> None:
    """The digest of prepared rows has them: no key of a run is used for both."""
    one, other = (
        Block(np.zeros((2, 1)), np.ones(2), None, usable=np.ones(2, np.bool_), beside={"group": np.array(g)})
        for g in ([1, 2], [1, 1])
    )
    assert one.digest() != other.digest()


@pytest.mark.parametrize(
    "fields",
    [
        {"names": ("a", "a")},
        {"names": (1, 1.0)},
        {"names": (NO_GROUP,)},
        {"names": (math.nan,)},
        {"names": ()},
        {"names": tuple(map(str, range(101)))},
        {"names": ("a",), "column": "x" * 301},
        {"names": ("a",), "places": (1.5,)},
    ],
)
def test_what_are_no_groups_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Groups(**{"column": "group", **fields})


def plan_of(groups: Groups | None, form: Any = None) -> Plan:
    form = form or EvaluatedClasses()
    about = problem("logistic" if isinstance(form, EvaluatedClasses) else "squared")
    return algorithms.plan_by(form, about, Subject(WEIGHTS, (0.0, 1.0), groups=groups), run="run", coin="coin")


def test_a_plan_without_groups_reads_as_before() -> None:
    assert "groups" not in plan_of(None).to_json()
    plan = plan_of(SIDES)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.digest != plan_of(None).digest


@pytest.mark.parametrize("form", [EvaluatedClasses(), EvaluatedNumbers()])
def test_groups_are_charged_as_one_evaluation(form: Any) -> None:
    (alone,), (grouped,) = plan_of(None, form).releases, plan_of(SIDES, form).releases
    assert grouped == alone


@pytest.mark.parametrize("places", [(1,), (1, 1, 2), (0, 1)])
def test_a_plan_has_a_feature_for_each_group_or_none(places: tuple[int, ...]) -> None:
    """Else whether the groups can be counted would depend on who is in them."""
    with pytest.raises(ValidationError, match="a feature for each of groups"):
        Groups(column="side", names=("right", "left"), places=places)


@pytest.mark.parametrize("asked", ["check", "check before scores", ""])
@pytest.mark.parametrize("lies", [True, False])
def test_rows_are_looked_at_for_groups_once_the_plan_is_found_right(
    monkeypatch: pytest.MonkeyPatch, asked: str, lies: bool
) -> None:
    """By columns, where features of the holder of the labels tell them: what rows are would be told for nothing."""
    rows, labels = table(7)
    party = Party("party 1", rows[:, :2], labels, policy=sv.Policy(max_epsilon=1e-3))
    split: dict[str, Any] = {"split": "columns", "parties": 2, "records": 7, "label_party": 0}
    plan, looked = audit_plan("evaluation", classes=(-1, 1), groups=SIDES, **split), list[int]()
    monkeypatch.setattr(Groups, "beside", lambda *_: looked.append(1))
    if lies:
        lie = SIDES.model_copy(update={"places": (2, -9)})
        plan = plan.model_copy(update={"numbers": plan.numbers.model_copy(update={"groups": lie})})
    said = decode(party.handle(encode(Frame("plan", 1, plan.digest, 0, asked, {}, plan.to_json()))).data)
    assert (said.kind, looked) == ("refuse", [])


@pytest.mark.parametrize("places", [(1, 9), (1, -5)])
def test_a_party_refuses_groups_of_features_that_it_does_not_have(places: tuple[int, ...]) -> None:
    lie = Groups(column="side", names=("right", "left"), places=places)
    with pytest.raises(RefusedError, match="not with the party that counts"):
        algorithms.of(plan := plan_of(SIDES)).queries(
            plan.model_copy(update={"numbers": {**plan.numbers.model_dump(), "groups": lie.model_dump()}}),
            plan.names[0],
        )


def test_a_party_without_groups_beside_its_labels_refuses() -> None:
    rows, labels = table(7)
    party = Party("party-1", rows, labels)
    plan = plan_of(BESIDE)
    with pytest.raises(RefusedError, match="no groups beside its labels"):
        party.training._select_rows(plan, scored=True)


class TestUnknownNumbers:
    def test_a_group_that_the_noise_could_be_is_not_told(self) -> None:
        counts = Counts(np.full(16, 1.0), 3.0, None)
        assert counts.lost
        assert not counts.complete
        assert math.isnan(counts.mean(np.ones(16), np.ones(16)).value)
        assert math.isnan(NumberEstimates(np.full(26, 1.0), 3.0, None, 1.0).metrics()["r2"].value)

    @pytest.mark.parametrize("noise", [1.0, 12.0])
    def test_intervals_hold_a_mean_and_r2_of_a_group(self, noise: float) -> None:
        """Of 400 noisy draws 95% hold the true value; those of half the noise do not, where noise is most of it."""
        rng = np.random.default_rng(0)
        y = np.clip(rng.normal(0.3, 0.3, 3000), -1, 1)
        error = rng.normal(0, 0.2, 3000)
        block = Block(np.column_stack([y + error]), y, None, usable=np.ones(3000, np.bool_))
        exact, held = at(ResidualCells(np.ones(1)), block), np.zeros(2)
        true = 1 - (np.minimum(np.abs(error), 1) ** 2).mean() / y.var(), np.minimum(np.abs(error), 1).mean()
        for _ in range(400):
            drawn = exact + noise * rng.standard_normal(len(exact))
            told = NumberEstimates(drawn, noise, None, 1.0).metrics()
            held += [
                own.low <= value <= own.high
                for own, value in zip((told["r2"], told["mean_absolute_error"]), true, strict=True)
            ]
        assert (held >= 0.93 * 400).all()  # the records are the same in all draws: sampling makes it more than 95%
