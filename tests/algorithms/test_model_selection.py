"""Model selection: how far a record moves the losses of models, that sums are exact, and what a party refuses."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from plans import small_problem as problem
from sottovoce import algorithms
from sottovoce.algorithms import model_selection as selection_queries
from sottovoce.algorithms.model_selection import Candidates, ComparedLosses, LossDifferences
from sottovoce.data.block import Block, toward_zero
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.losses import get, weighted
from sottovoce.plan.plan import Plan
from sottovoce.privacy.events import RELATIONS, Relation, either
from support import at, check_price_by_rows, query_of

FEATURES, RECORDS, MODELS = 3, 7, 5
KINDS = {"logistic": 1.0, "squared": 0.05}  # loss and unit
WEIGHTS = np.random.default_rng(2).standard_normal((MODELS, FEATURES + 1))


def plan_of(loss: str, **changes: Any) -> Plan:
    candidates = Candidates(WEIGHTS, KINDS[loss])
    return algorithms.plan_by(ComparedLosses(), problem(loss, **changes), candidates, run="run", coin="coin")


def query(loss: str, weights: np.ndarray = WEIGHTS) -> LossDifferences:
    return LossDifferences(weights, get(loss), KINDS[loss])


def block_of(loss: str, rows: np.ndarray, labels: np.ndarray, *, sparse: bool = False, **changes: Any) -> Block:
    return Block.prepare(sp.csr_matrix(rows) if sparse else rows, labels, problem(loss, **changes).preparation)


@pytest.mark.parametrize("loss", KINDS)
def test_short_vectors_are_the_losses_themselves(loss: str) -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((RECORDS, FEATURES))
    rows /= 4 * np.linalg.norm(rows, axis=1, keepdims=True)
    labels = rng.choice([-1.0, 1.0], RECORDS)
    weights = 0.01 * WEIGHTS
    block = block_of(loss, rows, labels)
    each = np.array([get(loss).value(block.scores(w), block.labels).sum() for w in weights])
    np.testing.assert_allclose(at(query(loss, weights), block), (each[1:] - each[0]) / KINDS[loss], atol=1e-9)
    np.testing.assert_array_equal(at(query(loss), block_of(loss, np.full_like(rows, math.nan), labels)), 0.0)
    exact = block_of(loss, rows, labels, epsilon=math.inf)
    far_away = at(query(loss, 100 * WEIGHTS), exact)  # without privacy nothing is cut
    assert np.linalg.norm(far_away) > 2 * RECORDS


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_plan_costs_what_was_asked_for_also_by_rows(loss: str, relation: Relation) -> None:
    central = plan_of(loss, relation=relation)
    rows = plan_of(loss, relation=relation, split="rows", parties=(("anna", 4), ("ben", 3)))
    check_price_by_rows(central, rows)
    assert query_of(central, "losses").sensitivity(relation) == pytest.approx(
        either(relation, zero_out=1, replace_one=2)
    )


def test_no_solver_is_called_model_selection() -> None:
    """Plans name it; fits cannot, and it is in no list of solvers."""
    assert "model-selection" not in algorithms.SOLVERS
    with pytest.raises(InputError, match="solver='model-selection' is unknown"):
        algorithms.check("model-selection", get("logistic"), "central")
    plan = plan_of("logistic")
    assert algorithms.of(Plan.from_json(plan.to_json())).title == ComparedLosses.title


def test_a_plan_with_other_models_or_less_noise_is_refused() -> None:
    plan = plan_of("logistic")
    numbers = plan.numbers.model_dump()
    short = plan.model_copy(update={"numbers": numbers | {"weights": ((1.0,) * 4, (1.0,))}})
    with pytest.raises(RefusedError, match="models of other sizes than rows of 4 columns"):
        query_of(short, "losses")
    for wrong in (((math.nan,) * 4,) * 2, ((1e101,) * 4,) * 2, ((1.0,) * 4,), ((1.0,) * 4,) * 66):
        with pytest.raises(ValueError, match="weights"):
            plan.model_copy(update={"numbers": numbers | {"weights": wrong}})
    for unit in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="unit"):
            plan.model_copy(update={"numbers": numbers | {"unit": unit}})
    cheap = plan.release("losses").model_copy(update={"charged_zero_out": 0.5})
    with pytest.raises(LeakError, match="more sensitive"):
        cheap.check(query_of(plan, "losses"), RECORDS)


@pytest.mark.parametrize("sparse", [False, True])
def test_losses_are_summed_in_pieces(sparse: bool) -> None:
    """A number for each model and row at once would take far more memory than the rows; pieces give the same sums."""
    rng = np.random.default_rng(6)
    count, models = 40_000, rng.standard_normal((65, FEATURES + 1))
    rows, labels = rng.standard_normal((count, FEATURES)), rng.choice([-1.0, 1.0], count)
    rows[7] = math.nan
    block = block_of("logistic", rows, labels, sparse=sparse, parties=(("anna", count),))
    asked = query("logistic", models)
    tracemalloc.start()
    found = at(asked, block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count * len(models) * 8 * (3 if sparse else 0.25)
    each = np.column_stack([get("logistic").value(block.scores(weights), block.labels) for weights in models])
    vectors = each[:, 1:] - each[:, :1]
    vectors[7] = 0.0
    np.testing.assert_array_equal(
        found, toward_zero(selection_queries.cut_lengths(vectors), block.sum_bits).sum(axis=0)
    )


def test_class_weights_move_no_bound() -> None:
    """Weights are at most 1, and vectors are cut behind them: a record adds no more, and what it adds is weighted."""
    weighted_loss = weighted(get("logistic"), (0.25, 1.0))
    rng = np.random.default_rng(9)
    for scale in (0.1, 1.0, 1e3, 1e90):
        asked = LossDifferences(scale * rng.standard_normal((MODELS, FEATURES + 1)), weighted_loss, 1.0)
        for label in (-1.0, 1.0):
            rows = np.full((RECORDS, FEATURES), math.nan)
            rows[2] = rng.standard_normal(FEATURES)
            moved = at(asked, block_of("logistic", rows, np.full(RECORDS, label)))
            assert np.linalg.norm(moved) <= asked.sensitivity("zero-out")
    short, plain = (LossDifferences(0.01 * WEIGHTS, loss, 1.0) for loss in (weighted_loss, get("logistic")))
    block = block_of("logistic", rng.standard_normal((RECORDS, FEATURES)), np.full(RECORDS, -1.0))
    np.testing.assert_allclose(at(short, block), 0.25 * at(plain, block), atol=1e-9)
