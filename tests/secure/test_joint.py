"""Sums that parties open together: how far a record moves them, what a party refuses, and their noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from clear import Clear, parts_of
from secure_plans import CLASSES, NUMBERS, people, plan_for
from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.gradient import PrivateGradient
from sottovoce.algorithms.newton import PrivateNewton
from sottovoce.algorithms.whitened.columns import ColumnsWhitened
from sottovoce.data.block import Block
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.privacy.mechanisms import LEAST_SHARE
from sottovoce.queries.joint import JointGradient, JointSum, can_look_up, make_gradient_sum
from sottovoce.secure.ring import CHANCE_BITS, LONGEST, ROW_BITS, exponent_of
from sottovoce.solvers import Gradient, Newton

WEIGHTS: dict[str, Any] = {**CLASSES, "class_weight": (0.5, 1.0)}
KINDS = {"classes": CLASSES, "numbers": NUMBERS, "weights": WEIGHTS}
TABLE = {  # zero-out, replace-one
    "label": (1.0, 2.0),
    "residual": (1.0, 1.0),
    "weight": (1.0, 1.0),
    "length": (1.0, 1.0),
    "gradient": (31 / 32, 31 / 16),
    "score": (1.0, 2.0),
    "square": (1.0, 1.0),
    "rescale": (1.0, 2.0),
}


class Still(Clear):
    """With the same coins for neighbours, in every sum."""

    def whole(self, query: JointSum, told: dict[str, Any]) -> Any:
        self.rng = np.random.default_rng(8)
        return super().whole(query, told)


def queries_of(plan: Plan, form: Algorithm | None = None) -> dict[str, Any]:
    return {query.name: query for query in (form or ColumnsWhitened()).queries(plan, plan.names[0])}


def told_for(plan: Plan, name: str, seed: int = 0, steep: float = 3.0, length: float = 1.5) -> dict[str, Any]:
    """What a first round of a query may be told: hostile weights, chances of 0 and 1, and a P near the cap."""
    rng, query = np.random.default_rng(seed), queries_of(plan)[name]
    found = {}
    for part, wanted in query.takes_at(plan.release(name).first).items():
        found[part] = wanted.example()
        if part == "weights":
            found[part] = steep * rng.standard_normal(wanted.shape)
        if part == "level":
            found[part] = np.array([0.25])
        if part == "chances":
            found[part] = rng.integers(0, 2, wanted.shape) << CHANCE_BITS
        if part == "scales":
            found[part] = np.array([181, 181])[: query.length]
        if part == "projection":
            base = np.tril(rng.standard_normal((plan.dimension, plan.dimension)))
            unit = length * 2.0 ** (exponent_of(plan) // 2 + 1) / 2**ROW_BITS
            found[part] = np.rint(base / np.linalg.norm(base, 2) * unit).astype(np.int64)[np.tril_indices(len(base))]
    return found


def opened(plan: Plan, parts: list[Block], name: str, told: dict[str, Any], form: Algorithm | None = None) -> Any:
    """The sum of these parties without noise, in units of 1."""
    clear = Still(plan, form or ColumnsWhitened(), parts, np.random.default_rng(3))
    query = clear.queries[0][name]
    assert query.objection(plan.release(name).first, told) is None
    return clear.exact(query, told, plan.release(name).first)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_sensitivities_and_the_budget(kind: dict[str, Any], relation: Any) -> None:
    plan = plan_for(400, (2, 2), relation=relation, **kind)
    queries = queries_of(plan)
    assert {release.query for release in plan.releases} == set(queries)
    for name, query in queries.items():
        if name in TABLE:
            assert (query.sensitivity("zero-out"), query.sensitivity("replace-one")) == TABLE[name]
        plan.release(name).check(query, plan.records)
    spent = sum(release.count * (release.charged(relation) / release.std) ** 2 for release in plan.releases)
    assert 0.99 * plan.mu**2 <= spent <= (1 + 1e-9) * plan.mu**2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_neighbour_moves_a_sum_further_than_charged(kind: dict[str, Any]) -> None:
    """A part blank, the record blank, the record another: with any weights, chances, P and coins."""
    plan = plan_for(24, (2, 1, 2), **kind)
    X, y = people(plan)
    X *= np.linspace(0.05, 2.0, len(X))[:, None] ** 2  # short rows, and long ones that are scaled back
    other_X, other_y = people(plan, 1)
    parts, names = parts_of(plan, X, y), [name for name in queries_of(plan) if name not in ("gram",)]
    moved = dict.fromkeys(names, 0.0)
    for name in names:
        for seed in range(6):
            length = (0.3, 1.0, 2.0, 3.5, 8.0, 15.0)[seed]
            told = told_for(plan, name, seed, length=length, steep=(0.5, 3.0, 30.0)[seed % 3])
            before = opened(plan, parts, name, told)
            for record in range(0, plan.records, 5):
                for place in range(3):
                    blank = X.copy()
                    start, stop = np.cumsum((0, *plan.columns))[place : place + 2]
                    blank[record, start:stop] = np.nan
                    after = opened(plan, parts_of(plan, blank, y), name, told)
                    moved[name] = max(moved[name], float(np.linalg.norm(after - before)) / TABLE[name][0])
                swapped, labels = X.copy(), y.copy()
                swapped[record], labels[record] = other_X[record], other_y[record]
                after = opened(plan, parts_of(plan, swapped, labels), name, told)
                moved[name] = max(moved[name], float(np.linalg.norm(after - before)) / TABLE[name][1])
    assert all(found <= 1 + 1e-12 for found in moved.values()), moved
    reached = {name: found for name, found in moved.items() if name in ("length", "score", "square", "rescale")}
    assert all(found >= 0.99 for found in reached.values()), moved


@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_a_record_attains_the_bound_of_a_gradient(kind: dict[str, Any]) -> None:
    """Where coins let its level be the one below the next: the largest factor for its length."""
    plan, found = plan_for(1, (1, 1), **kind), []
    parts = parts_of(plan, np.array([[0.5, 0.5]]), np.array([1]))
    for length in np.linspace(0.5, 12.0, 400):
        told = told_for(plan, "gradient", length=float(length))
        told["chances"] = np.zeros_like(told["chances"])  # t = 0: w = -f
        found.append(float(np.linalg.norm(opened(plan, parts, "gradient", told))) * 32 / 31)
    assert 0.97 <= max(found) <= 1.0


@pytest.mark.parametrize("place", range(3))
def test_a_record_that_is_null_at_one_party_adds_nothing(place: int) -> None:
    plan = plan_for(9, (2, 1, 2))
    X, y = people(plan)
    start, stop = np.cumsum((0, *plan.columns))[place : place + 2]
    X[:, start:stop] = np.nan
    parts = parts_of(plan, X, y)
    for name in ("length", "gradient", "score", "square", "rescale"):
        assert not opened(plan, parts, name, told_for(plan, name)).any()
    newton = plan_for(9, (2, 1, 2), form=PrivateNewton(), options=Newton())
    query = queries_of(newton, PrivateNewton())["gradient"]
    told = query.message(np.ones(newton.dimension))
    assert not opened(newton, parts_of(newton, X, y), "gradient", told, PrivateNewton()).any()


def test_a_projection_that_makes_rows_too_long_is_refused() -> None:
    plan = plan_for(50, (2, 2))
    for name, first in (("length", 1), ("gradient", 2)):
        query = queries_of(plan)[name]
        for length, fits in ((0.999, True), (1.001, False), (10.0, False)):
            told = told_for(plan, name, length=length * math.sqrt(LONGEST))
            assert (query.objection(first, told) is None) is fits
        assert "int64" in str(query.objection(first, {**told, "projection": told["projection"] * 2.0}))
    late = {part: value for part, value in told_for(plan, "gradient").items() if part != "projection"}
    query = queries_of(plan)["gradient"]
    assert query.objection(3, late) is None
    assert query.objection(2, late) is not None  # the first round tells P
    assert query.objection(3, told_for(plan, "gradient")) is not None  # and no other
    assert query.lookup(late).projection is None


@pytest.mark.parametrize("intercept", [True, False])
def test_scales_and_chances_that_pass_the_bound_are_refused(intercept: bool) -> None:
    plan = plan_for(50, (2, 2), fit_intercept=intercept)
    query, told = queries_of(plan)["rescale"], told_for(plan, "rescale")
    assert query.objection(40, told) is None
    size = 1 + intercept
    for scales in ([257, 0], [256, 1], [182, 182], [-1, 0]):
        if intercept or abs(scales[0]) > 256 or scales[0] < 0:
            assert query.objection(40, {**told, "scales": np.array(scales)[:size]}) is not None
    assert query.objection(40, {**told, "scales": np.array([256, 0])[:size]}) is None
    assert query.objection(40, {**told, "chances": told["chances"] * 2 + 1}) is not None


@pytest.mark.parametrize("parties", [2, 5, 16])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_share_of_noise_is_eight_steps_or_more(kind: dict[str, Any], epsilon: float, parties: int) -> None:
    widths = (1,) * parties
    plans = [(plan_for(20_000, widths, epsilon=epsilon, **kind), ColumnsWhitened())]
    for form, options in ((PrivateNewton(), Newton()), (PrivateGradient(), Gradient())):
        plans.append((plan_for(20_000, widths, form=form, options=options, epsilon=epsilon, **kind), form))
    for plan, form in plans:
        assert plan.aggregation is not None
        for query in form.queries(plan, "p0"):
            release = plan.release(query.name)
            share = release.std * math.sqrt(plan.aggregation.share(parties)) / float(np.max(query.noise_weights))
            assert share / release.step >= LEAST_SHARE, query.name
            assert share / release.step * 2.0**-8 < LEAST_SHARE or query.joint_step(8) != 1.0  # sums of plain bits


def test_noise_does_not_depend_on_what_is_told() -> None:
    """The bound of a rescale is that of its scales, whose length a party checks: not of the clip behind them."""
    plan = plan_for(50, (2, 2))
    query = queries_of(plan)["rescale"]
    terms = []
    for scales in ([256, 0], [181, 181], [250, 55]):
        told = {**told_for(plan, "rescale"), "scales": np.array(scales)}
        table = query.lookup(told)
        terms.append(float(np.linalg.norm(table.scales)) * plan.release("rescale").step)
    assert max(terms) <= query.sensitivity("zero-out")
    assert max(terms) >= 0.99


def test_gradients_of_rows_are_on_a_grid_of_slopes_that_are_a_power_of_two() -> None:
    for bound, cut in ((0.3, 0.5), (0.5, 0.5), (1.0, 1.0)):
        form, options = PrivateNewton(), Newton(slope_bound=bound)
        plan = plan_for(500, (2, 2), form=form, options=options, **NUMBERS)
        query = queries_of(plan, form)["gradient"]
        assert isinstance(query, JointGradient)
        assert (query.bound, plan.numbers.slope_bound, plan.release("gradient").step) == (cut, cut, cut * 2.0**-8)
        told = query.message(np.full(plan.dimension, 0.1))
        table = query.lookup(told)
        assert (table.index, table.weight, table.matrix, table.twice) == ("residual", "null", "rows", True)
        assert query.objection(1, told) is None


def test_what_cannot_be_looked_up_is_said() -> None:
    plan = plan_for(50, (2, 2))
    three = plan.changed_problem(classes=(0, 1, 2))
    assert can_look_up(plan)
    assert not can_look_up(three)
    with pytest.raises(InputError, match="two classes"):
        make_gradient_sum(three, 1.0)
    weighted = plan_for(50, (2, 2), class_weight=(0.5, 1.0))
    assert can_look_up(weighted)
    assert can_look_up(plan_for(50, (2, 2), loss=Named(name="hinge")))
    for query in queries_of(plan).values():
        if isinstance(query, JointSum):
            with pytest.raises(LeakError, match="no party has a value"):
                query.value(Round(plan, 0, {}, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("party", ["p0", "p1"])
def test_the_holder_alone_adds_its_own_sums(party: str) -> None:
    plan = plan_for(30, (2, 2), **NUMBERS)
    X, y = people(plan)
    X[3] = np.nan
    parts = dict(zip(plan.names, parts_of(plan, X, y), strict=True))
    queries: dict[str, Any] = {query.name: query for query in ColumnsWhitened().queries(plan, party)}
    weights = np.array([9.0, 9.0, 0.5, -0.2, 0.1])
    holds = party == plan.label_party_name
    label = queries["label"].value(Round(plan, 1, {}, parts[party]))
    residual = queries["residual"].value(Round(plan, 2, {"weights": weights}, parts[party]))
    if not holds:
        assert not label.any()
        assert not residual.any()
        return
    kept = np.arange(30) != 3
    rows = np.asarray(parts[party].rows)[:, :3]
    found = np.minimum(1.0, np.abs(rows @ weights[2:] - y))[kept].sum()
    assert label[0] == pytest.approx(y[kept].sum(), abs=1e-4)
    assert residual[0] == pytest.approx(found, abs=1e-4)
