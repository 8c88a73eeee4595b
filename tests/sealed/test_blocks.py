"""`whitened` by blocks of sealed columns: how far a record moves what is opened, and what is made of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sottovoce.algorithms.whitened.block_rule import Centring, Coordinates, Slope, WhiteBlocks
from sottovoce.algorithms.whitened.blocks import BlockWhitened
from sottovoce.queries.blocks import BlockGradient, Blocks, JointScores, JointSquares, ScaleLookup, on_grid, through

import sottovoce as sv
from clear import Clear, parts_of
from sottovoce import losses
from sottovoce.algorithms.registry import find, plan_by
from sottovoce.algorithms.whitened import block_rule, rule
from sottovoce.algorithms.whitened.rule import Clips, Units
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.projection import CentredRows
from sottovoce.door.query import Round
from sottovoce.errors import InputError, LeakError
from sottovoce.federation.sealed_columns.coordinator import ColumnSums
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.sealing import Sealing
from sottovoce.queries.joint import JointSum
from sottovoce.sealed.tables import b_spline
from sottovoce.solvers import Whitened

CLASSES: dict[str, Any] = {"loss": Named(name="logistic"), "classes": (-1, 1)}
NUMBERS: dict[str, Any] = {"loss": Named(name="squared"), "classes": None}


def plan_for(records: int, widths: tuple[int, ...], options: Whitened | None = None, **fields: Any) -> Plan:
    """A plan over sealed columns; the last party has the labels unless `fields` say otherwise."""
    parties, features = len(widths), sum(widths)
    declared: dict[str, Any] = {
        "regulariser": Named(name="none"),
        "split": "columns",
        "parties": tuple((f"p{place}", records) for place in range(parties)),
        "features": features,
        "bounds": Bounds.declare(row_norm=1.0, label_bound=1.0),
        "epsilon": 1.0,
        "delta": 1e-5,
        "columns": widths,
        "norms": tuple(math.sqrt(width / features) for width in widths),
        "labels": "held",
        "label_party": parties - 1,
        "sealing": Sealing(curious=parties - 1),
    }
    return plan_by(
        BlockWhitened(), Problem(**declared | CLASSES | fields), options or Whitened(), run="0" * 16, coin="0"
    )


def people(plan: Plan, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose parts have their full length, and labels that they decide in part."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((plan.records, plan.features)) * np.linspace(1.0, 0.3, plan.features) + 0.3
    ends = np.cumsum((0, *plan.columns))
    for start, stop, norm in zip(ends[:-1], ends[1:], plan.norms, strict=True):
        X[:, start:stop] *= norm / np.maximum(np.linalg.norm(X[:, start:stop], axis=1, keepdims=True), 1.0) / 2
    score = X @ rng.standard_normal(plan.features) * 4
    if plan.classes is None:
        return X, np.clip(score / 4 + 0.1 * rng.standard_normal(plan.records), -1, 1)
    return X, np.where(rng.random(plan.records) < 1 / (1 + np.exp(-score)), 1, -1)


class Still(Clear):
    """With coins that are told: the same for neighbours."""

    def looked_up(self, query: JointSum, told: dict[str, Any]) -> np.ndarray:
        self.rng = np.random.default_rng(7)
        return super().looked_up(query, told)


def gradient_told(plan: Plan, weights: np.ndarray, cuts: np.ndarray, most: float = 0.5) -> dict[str, Any]:
    """A message of `gradient`."""
    query, slope = BlockGradient(plan, plan.names[0]), Slope(plan.scaled_loss, most)
    told = {
        "weights": weights,
        "nodes": slope.nodes(slope.finest, query.words, query.order, plan.preparation.bits)[None],
        "level": np.array([slope.finest]),
        "cuts": cuts,
    }
    return told | ({"shift": np.array([slope.shift])} if query.classes else {})


def opened(plan: Plan, parts: list[Block], told: dict[str, Any], lengths: dict[str, Any]) -> np.ndarray:
    """The gradient of these parties, without noise."""
    clear = Still(plan, BlockWhitened(), parts, np.random.default_rng(0))
    clear.exact(clear.queries[0]["length"], lengths, 1)
    return clear.exact(clear.queries[0]["gradient"], told, 2)


def lengths_told(plan: Plan, seed: int = 0, size: float = 3.0) -> dict[str, Any]:
    """A message of `length` with any matrices."""
    rng, blocks = np.random.default_rng(seed), Blocks(plan)
    matrices = [np.tril(size * rng.standard_normal((block.stop - block.start,) * 2)) for block in blocks.columns]
    means = np.append(0.2 * rng.standard_normal(plan.features), np.zeros(int(plan.fit_intercept)))
    return {**blocks.told(matrices, means), "radii": np.ones(len(blocks))}


# What parts of rows may be


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [1e-6, 3.0, 1e6])
def test_no_row_of_whitened_parts_is_longer_than_one(seed: int, size: float) -> None:
    plan = plan_for(30, (1, 3, 2))
    X, y = people(plan, seed)
    X[3] = math.nan
    told, cuts = lengths_told(plan, seed, size), np.exp(np.random.default_rng(seed).normal(size=4))
    parts = parts_of(plan, X, y)
    whole = 4**plan.preparation.bits
    total = np.zeros(30, dtype=object)
    for name, part in zip(plan.names, parts, strict=True):
        query: Any = {q.name: q for q in BlockWhitened().queries(plan, name)}
        memory: dict[str, Any] = {}
        query["length"].value(Round(plan, 1, told, part, memory))
        columns = query["gradient"].columns(Round(plan, 2, {"cuts": cuts}, part, memory))
        total += (columns.astype(object) ** 2).sum(axis=1)
    assert total[3] == 0  # null everywhere
    longest = max(total)
    assert longest <= whole
    if size > 1e3:  # all parts are cut
        assert longest >= 0.99 * whole
        assert longest * float(cuts @ cuts / (cuts[1:] @ cuts[1:])) > whole  # with a C that forgets a block


def test_a_whitened_part_depends_on_its_own_record_alone() -> None:
    plan = plan_for(3000, (4, 3))
    X, y = people(plan)
    part = plan.part("p0")
    matrix, means = np.tril(np.random.default_rng(1).standard_normal((4, 4))), np.full(4, 0.1)
    whole = CentredRows(Block.prepare(X[:, :4], y, part.preparation), slice(0, 4), matrix, means).cut(0.3, 0.5)
    order = np.random.default_rng(2).permutation(3000)[:700]
    some = CentredRows(Block.prepare(X[order, :4], y[order], part.preparation), slice(0, 4), matrix, means).cut(
        0.3, 0.5
    )
    np.testing.assert_array_equal(whole[order], some)


# How far a record moves what is opened


@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_a_blank_record_and_a_blank_part_move_the_gradient_as_far_as_said(kind: dict[str, Any]) -> None:
    plan = plan_for(6, (2, 2), **kind)
    numbers = plan.classes is None
    lengths, cuts = lengths_told(plan, size=1e4), np.array([2.0, 1.0, 0.5])
    known = BlockGradient(plan, "p0").known_part(plan, {"cuts": cuts})
    share = 4.0 / 5.25  # that of the first party, which is pooled against the second
    assert known == pytest.approx(1 + (3.0 if numbers else 1.25) * share)
    rng, far, world = np.random.default_rng(3), 0.0, 0.0
    table = gradient_told(plan, np.zeros(5), cuts)
    for trial in range(40):
        X, y = people(plan, trial)
        told = {**table, "weights": rng.standard_normal(5) * 10.0 ** rng.uniform(-1, 5)}
        before = opened(plan, parts_of(plan, X, y), told, lengths)
        blank, label = X.copy(), y.astype(float)
        blank[0, 2:] = math.nan
        world_blank = blank.copy()
        world_blank[0] = math.nan
        world = max(
            world, float(np.linalg.norm(before - opened(plan, parts_of(plan, world_blank, label), told, lengths)))
        )
        far = max(far, float(np.linalg.norm(before - opened(plan, parts_of(plan, blank, label), told, lengths))))
    assert world <= 1.0
    assert far <= math.sqrt(known)
    assert world >= 0.95
    assert far > 1.05  # so a top-up for K = 1 would be too small


def test_a_part_attains_its_bound() -> None:
    """The worst case: both parts at their full length, and a score that turns round without the blank one."""
    plan = plan_for(2, (1, 1), fit_intercept=False)
    lengths = lengths_told(plan, size=1e4)
    lengths["means"] = np.zeros(2)
    cuts = np.array([2.0, 1.0])
    X, y = np.array([[0.5, 0.5], [0.0, 0.0]]), np.array([1, 1])
    blank = X.copy()
    blank[0, 1] = math.nan
    # with its own part the score is far below, r = -1; without it and the label far above, r = 1/2
    told = gradient_told(plan, np.array([16.0, -32.0]) / plan.preparation.scale, cuts, 1.0)
    moved = opened(plan, parts_of(plan, X, y), told, lengths) - opened(plan, parts_of(plan, blank, y), told, lengths)
    known = BlockGradient(plan, "p0").known_part(plan, told)
    assert math.sqrt(known) * 0.99 <= np.linalg.norm(moved) <= math.sqrt(known)

    class Wrong(Still):
        """A blank label that is the other class."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.labels = np.where(self.usable, self.labels, -1.0)

    def wrong(parts: list[Block]) -> np.ndarray:
        clear = Wrong(plan, BlockWhitened(), parts, np.random.default_rng(0))
        clear.exact(clear.queries[0]["length"], lengths, 1)
        return clear.exact(clear.queries[0]["gradient"], told, 2)

    assert np.linalg.norm(wrong(parts_of(plan, X, y)) - wrong(parts_of(plan, blank, y))) > math.sqrt(known)


def test_nodes_that_pass_the_bound_are_refused() -> None:
    for kind, most in ((CLASSES, 0.5), (NUMBERS, 1.0)):
        plan = plan_for(50, (2, 2), **kind)
        query, told = BlockGradient(plan, "p0"), gradient_told(plan, np.zeros(5), np.ones(3))
        assert query.objection(plan, 2, told) is None
        nodes = told["nodes"].copy()
        nodes[0, 3] = int(most * 2**plan.preparation.bits) + 1
        assert "nodes" in str(query.objection(plan, 2, {**told, "nodes": nodes}))
        with pytest.raises(LeakError, match="no party has a value"):
            query.value(None)  # type: ignore[arg-type]


def scale_told(plan: Plan, slope: float = 3.0) -> dict[str, Any]:
    """A message of `rescale`."""
    query, units = ScaleLookup(plan), Units.of(plan.scaled_loss, 0.0)
    levels = query.level * np.arange(query.words // 2) - query.shift
    nodes = block_rule.scale_nodes(units, Clips(1.5, 0.5), np.array([slope, -0.4])[: query.length], levels)
    return {"weights": np.zeros(plan.dimension), "nodes": on_grid(nodes, plan.preparation.bits)}


@pytest.mark.parametrize("intercept", [True, False])
def test_tables_of_the_score_are_as_far_apart_as_said(intercept: bool) -> None:
    """All that a record can be looked up at, and what a null record is."""
    plan = plan_for(50, (2, 2), fit_intercept=intercept)
    tables: list[tuple[Any, dict[str, Any]]] = [(JointScores(plan), {}), (JointSquares(plan), {})]
    tables.append((ScaleLookup(plan), scale_told(plan)))
    for query, told in tables:
        table = query.lookup(plan, told)
        nodes = table.nodes / 2.0**plan.preparation.bits
        every = np.hstack([nodes, -nodes]) if table.symmetric else nodes
        apart = np.linalg.norm(every[:, :, None] - every[:, None, :], axis=0).max()
        assert np.linalg.norm(every, axis=0).max() <= query.sensitivity("zero-out") == 1.0
        assert not nodes[:, 0].any()
        assert apart <= query.sensitivity("replace-one")
        assert apart <= math.sqrt(query.known_part(plan, told))
        assert 2 * apart > math.sqrt(query.known_part(plan, told))  # twice the table would not do


def test_a_table_that_is_too_long_or_not_null_at_first_is_refused() -> None:
    plan = plan_for(50, (2, 2))
    query, told = ScaleLookup(plan), scale_told(plan)
    assert query.objection(plan, 40, told) is None
    for place, entry in ((5, [0.8, 0.8]), (0, [0.1, 0.0])):
        nodes = told["nodes"].copy()
        nodes[:, place] = on_grid(np.array(entry), plan.preparation.bits)
        assert "length of at most 1" in str(query.objection(plan, 40, {**told, "nodes": nodes}))


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_the_releases_cost_the_budget(kind: dict[str, Any], relation: Any) -> None:
    plan = plan_for(400, (2, 2), relation=relation, **kind)
    spent = sum(release.count * (release.charged(relation) / release.std) ** 2 for release in plan.releases)
    assert 0.99 * plan.mu**2 <= spent <= (1 + 1e-9) * plan.mu**2
    queries = {query.name: query for query in BlockWhitened().queries(plan, "p0")}
    assert {release.query for release in plan.releases} == set(queries)
    for release in plan.releases:
        release.check(queries[release.query], plan.records)


def test_the_lengths_of_all_parties_add_to_at_most_one() -> None:
    plan = plan_for(1, (2, 1, 1))
    X, y = people(plan)
    told = {**lengths_told(plan, size=1e4), "radii": np.array([1.0, 3.0, 0.1, 2.0])}
    clear = Clear(plan, BlockWhitened(), parts_of(plan, X, y), np.random.default_rng(0))
    assert 0.999 <= clear.exact(clear.queries[0]["length"], told, 1)[0] <= 1.0
    X[0] = math.nan
    clear = Clear(plan, BlockWhitened(), parts_of(plan, X, y), np.random.default_rng(0))
    assert clear.exact(clear.queries[0]["length"], told, 1)[0] == 0.0


# What is looked up


def test_a_slope_that_is_not_cut_is_that_of_the_loss() -> None:
    scores, one = np.linspace(-6, 6, 121) + 0.01, np.ones(121)
    for loss in (losses.get("logistic"), losses.get("hinge"), losses.get("smoothed_hinge", smoothing=0.5)):
        slope = Slope(loss, 1.0)
        for label in (-1.0, 1.0):
            found = slope(scores - slope.shift * label) - label / 2
            np.testing.assert_allclose(found, loss.derivative(scores, label * one), atol=1e-9)


def test_a_cut_slope_is_reflected_and_never_beyond_its_bound() -> None:
    scores, loss = np.linspace(-30, 30, 601), losses.get("logistic")
    slope = Slope(loss, 0.5)
    assert slope.shift == pytest.approx(math.log(3))
    found = slope(scores - slope.shift) - 0.5
    below = scores < slope.shift
    cut = np.maximum(loss.derivative(scores[below], np.ones(int(below.sum()))) / 0.5, -1.0)
    np.testing.assert_allclose(found[below], cut, atol=1e-12)
    assert found.min() >= -1.0
    assert found.max() <= 0.0
    np.testing.assert_allclose(slope(scores), -slope(-scores), atol=1e-15)


def test_coefficients_of_a_spline_through_values() -> None:
    values = np.random.default_rng(0).standard_normal((2, 16))
    apart = (np.arange(16)[:, None] - np.arange(16)[None, :] + 8) % 16 - 8
    weights = b_spline(apart.astype(float), 3)
    np.testing.assert_allclose(through(values) @ weights, values, atol=1e-12)
    assert np.abs(values @ weights - values).max() > 0.1  # the values themselves are no coefficients


@pytest.mark.parametrize(("deviation", "level"), [(0.0, 1.0), (4.3, 1.0), (4.4, 2.0), (9.0, 4.0), (1e9, 8.0)])
def test_levels_are_further_apart_where_scores_would_leave_the_table(deviation: float, level: float) -> None:
    assert Slope(losses.get("logistic"), 0.5).level(deviation, 16) == level


@pytest.mark.parametrize("most", [0.5, 1.0])
def test_the_mean_of_what_is_looked_up_is_the_slope(most: float) -> None:
    plan = plan_for(40_000, (1, 1), fit_intercept=False)
    X, y = np.tile([0.5, 0.5], (40_000, 1)), np.ones(40_000, dtype=int)
    parts, slope = parts_of(plan, X, y), Slope(plan.scaled_loss, most)
    clear = Clear(plan, BlockWhitened(), parts, np.random.default_rng(0))
    for score in (-4.3, -0.6, 0.0, 1.7, 5.2):
        weights = np.full(2, score / float(clear.rows[0].sum()))
        found = clear.looked_up(clear.queries[0]["gradient"], gradient_told(plan, weights, np.ones(2), most))  # type: ignore[arg-type]
        wanted = slope(np.array([score - slope.shift]))[0] - 0.5
        error = 0.07 if most < 1 else 0.005  # of the table; 5 deviations of the mean are .003
        assert abs(found.mean() / clear.scale - wanted) < error


# What is made of the answers


def white_of(plan: Plan, seed: int = 0) -> WhiteBlocks:
    rng, blocks = np.random.default_rng(seed), Blocks(plan)
    rows = rng.standard_normal((300, plan.dimension)) @ rng.standard_normal((plan.dimension, plan.dimension)) / 20
    rows[:, -1] = plan.preparation.intercept_entry
    moments = rule.of_gram(rows.T @ rows / 300, 1e-4)
    centring = Centring.of(moments, plan.preparation.intercept_entry, plan.preparation.bits)
    norms = np.full(len(blocks), 0.5)
    return WhiteBlocks.of(moments, Units.of(plan.scaled_loss, 0.0), centring, norms, blocks).limited(1e-3).measured(0.2)


def test_coordinates_solve_the_equation_of_the_weights() -> None:
    plan = plan_for(300, (2, 3))
    white = white_of(plan)
    left, damping, k, noise, prior = np.array([0.7, 0.9, 1.0]), 1e-3, 0.2, 0.01, 3.0
    along, moments = Coordinates(white, left, damping), white.moments
    gradient = np.random.default_rng(1).standard_normal(plan.dimension)
    point = along.vectors.T @ gradient / (k * along.values + noise**2 / (prior * k))
    H = moments.matrix(moments.values)
    spread = np.repeat(left, [2, 3, 1])
    inverse = np.zeros((6, 6))
    for columns, matrix in zip(Blocks(plan).columns, white.matrices, strict=True):
        inverse[columns, columns] = matrix.T
    Q = np.linalg.inv(inverse @ white.centring.matrix) / spread  # Q D^-1
    system = k * (H + damping * np.eye(6)) + noise**2 / (prior * k) * Q @ Q.T @ np.linalg.inv(H)
    np.testing.assert_allclose(along.back @ point, np.linalg.solve(system, Q @ gradient), rtol=1e-6, atol=1e-9)
    assert along.mean_square(point) == pytest.approx(float((w := along.back @ point) @ H @ w))


def test_blocks_are_whitened_and_centred_by_the_moments() -> None:
    plan = plan_for(300, (2, 3))
    white = replace(white_of(plan), rho=0.0)
    H = white.centring.matrix @ white.moments.matrix(white.moments.values) @ white.centring.matrix.T
    for columns, matrix in zip(Blocks(plan).columns, white.matrices, strict=True):
        size = columns.stop - columns.start
        np.testing.assert_allclose(matrix.T @ H[columns, columns] @ matrix, np.eye(size), atol=1e-8)
        np.testing.assert_allclose(matrix, np.tril(matrix), atol=1e-12)
    np.testing.assert_allclose(H[:-1, -1], 0.0, atol=1e-5)


def objective(plan: Plan, X: np.ndarray, y: np.ndarray) -> Any:
    """The mean loss and the penalty of weights on prepared rows."""
    clear = Clear(plan, BlockWhitened(), parts_of(plan, X, y), np.random.default_rng(0))

    def value(weights: np.ndarray) -> float:
        loss = plan.scaled_loss.value(clear.rows @ weights, clear.labels).mean()
        return float(loss + plan.scaled_regulariser.value(weights))

    return value


@pytest.mark.parametrize(
    ("widths", "kind"),
    [
        ((5, 5), CLASSES),
        ((1, 2, 3), NUMBERS),
        ((1, 2, 3), {**CLASSES, "fit_intercept": False}),
        ((5, 5), {**NUMBERS, "regulariser": Named(name="l2", parameters={"alpha": 0.05})}),
        ((1, 2), {**CLASSES, "regulariser": Named(name="l1", parameters={"alpha": 0.01})}),
        ((1, 2, 3), {**CLASSES, "loss": Named(name="smoothed_hinge")}),
    ],
    ids=["classes", "numbers", "no intercept", "l2", "l1", "smoothed hinge"],
)
def test_with_much_signal_the_minimum_is_found(widths: tuple[int, ...], kind: dict[str, Any]) -> None:
    plan = plan_for(4000, widths, epsilon=1000.0, **kind)
    X, y = people(plan, 5)
    clear = Clear(plan, BlockWhitened(), parts_of(plan, X, y), np.random.default_rng(0))
    weights, value = clear.run().weights, objective(plan, X, y)
    best = minimize(value, np.zeros(plan.dimension), method="L-BFGS-B").fun
    nothing = value(np.append(np.zeros(plan.dimension - 1), weights[-1]))
    assert value(weights) - best < 0.02 * (nothing - best)


def test_noise_is_that_of_opened_sums() -> None:
    plan = plan_for(400, (2, 2), options=Whitened(rounds=2))
    X, y = people(plan)
    sums = []
    for seed in range(2):
        clear = Clear(plan, BlockWhitened(), parts_of(plan, X, y), np.random.default_rng(seed))
        clear.run()
        sums.append(clear.opened)
    assert [name for name, _, _ in sums[0]] == [
        "gram",
        "length",
        "gradient",
        "gradient",
        "score",
        "square",
        *["rescale"] * 6,
    ]
    for name, told, _ in sums[0]:
        query = {q.name: q for q in BlockWhitened().queries(plan, "p1")}[name]
        known = query.known_part(plan, told)
        assert 1.0 <= known <= 4.0
        assert plan.noises(known) == pytest.approx(known + 0.5)


def test_what_the_form_does_not_serve_is_said() -> None:
    with pytest.raises(InputError, match="more than 2000"):
        plan_for(50, (1500, 1500))
    problem = Problem(
        **{name: getattr(plan_for(50, (2, 2)), name) for name in Problem.model_fields} | {"layout": "rows"}
    )
    assert find("whitened", problem, {}).form == "blocks"
    with pytest.raises(InputError, match="whitened"):
        find("whitened", problem.changed(class_weight=(1.0, 0.5)), {})


@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_what_parties_open_is_what_the_clear_says(kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum of a fit over sealed columns, against exact ones; coins and noise are others."""
    opened_sums: list[tuple[Any, np.ndarray, int]] = []
    plain = ColumnSums.sum

    def noted(self: ColumnSums, number: int, ask: Any, queries: Any) -> np.ndarray:
        value = plain(self, number, ask, queries)
        opened_sums.append((ask, value, number))
        return value

    monkeypatch.setattr(ColumnSums, "sum", noted)
    records, widths = 1500, (2, 1, 3)
    like = plan_for(records, widths, epsilon=30.0, **kind)
    X, y = people(like)
    parts = np.split(X, np.cumsum(widths)[:-1], axis=1)
    people_by_columns = sv.Federation.by_columns(
        parts, y, labels="held", label_party=2, norms=like.norms, products="secure"
    )
    labels: dict[str, Any] = {"label_bound": 1.0} if like.classes is None else {"classes": (-1, 1)}
    estimator = sv.PrivateRidge if like.classes is None else sv.PrivateLogisticRegression
    model = estimator(
        30.0, delta=1e-5, row_norm=1.0, alpha=0.0, solver=Whitened(rounds=2), insecure_seed=0, **labels
    ).fit(people_by_columns)
    plan = model.plans_[0]
    assert (plan.form, len(opened_sums)) == ("blocks", 12 if like.classes else 6)

    def furthest(clear: Clear) -> float:
        """In deviations of the noise, and of dithers of every record."""
        found = 0.0
        for ask, value, number in opened_sums:
            query, told = clear.queries[0][ask.query], dict(ask.arrays)
            noise = plan.release(query.name).std ** 2 * plan.noises(query.known_part(plan, told))
            spread = math.sqrt(noise + (records / 4 if isinstance(query, JointSum) else 0.0))
            found = max(found, float(np.abs(clear.exact(query, told, number) - value).max()) / spread)
        return found

    clear = Clear(plan, BlockWhitened(), parts_of(plan, X, y), np.random.default_rng(0))
    assert furthest(clear) < 6.0  # of 60 numbers: false alarms below 1e-6
    wrong = Clear(plan, BlockWhitened(), parts_of(plan, X, -y), np.random.default_rng(0))
    assert furthest(wrong) > 12.0  # other labels
