"""Standard errors: how far a record moves the sums, that they are exact, what a plan costs, what is made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

import sottovoce as sv
from plans import small_problem
from sottovoce import algorithms
from sottovoce.algorithms.standard_errors import (
    NAMED,
    ColumnsStandardErrors,
    FittedCurvature,
    FittedGradient,
    PrivateStandardErrors,
    SquaredSlopes,
    Start,
    shared_out,
)
from sottovoce.algorithms.standard_errors.estimates import Belief, Curvature, Estimate, OneStep, Sums
from sottovoce.algorithms.whitened import rule
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, RefusedError
from sottovoce.losses import get
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.events import RELATIONS, Relation
from sottovoce.secure import ring
from support import at, check_price_by_rows, query_of

FEATURES, RECORDS = 3, 7
WEIGHTS = np.array([3.0, -2.0, 1.0, 0.5])
KINDS: dict[str, type[Any]] = {
    "curvature": FittedCurvature,
    "squared-slopes": SquaredSlopes,
    "gradient": FittedGradient,
}


def problem(loss: str, **changes: Any) -> Problem:
    return small_problem(Named(name=loss, parameters={"threshold": 0.4} if loss == "huber" else {}), **changes)


def plan_of(loss: str = "squared", **changes: Any) -> Plan:
    return algorithms.plan_by(PrivateStandardErrors(), problem(loss, **changes), Start(WEIGHTS), run="run", coin="coin")


def block_of(loss: str, rows: np.ndarray, labels: np.ndarray, *, sparse: bool = False) -> Block:
    return Block.prepare(sp.csr_matrix(rows) if sparse else rows, labels, problem(loss).preparation)


def test_the_sums_are_those_of_a_weighted_problem() -> None:
    """FittedCurvature, gradient and its variance of records that weigh c^2, in units of what bounds them."""
    rng = np.random.default_rng(1)
    rows, labels = rng.standard_normal((RECORDS, FEATURES)), rng.choice([-1.0, 1.0], RECORDS)
    block, loss = block_of("logistic", rows, labels), get("logistic")
    told = {"projection": (1e6 * np.tril(rng.standard_normal((4, 4)))[np.tril_indices(4)]).astype(np.int64)}
    told |= {"unit": np.array([0.9e-6]), "slope": np.array([0.9])}
    prepared, scores = block.rows.astype(float), block.rows.astype(float) @ WEIGHTS
    seen = prepared @ FittedGradient(WEIGHTS, loss).shape.matrix(told)
    shares = np.minimum(1.0, 1 / np.linalg.norm(seen, axis=1))
    assert 0 < np.count_nonzero(shares < 1) < RECORDS
    slopes = np.clip(loss.derivative(scores, labels) / 0.9, -1, 1)
    bend = loss.curvature(scores, labels) / 0.25
    expected = {
        "curvature": (seen * (shares**2 * bend)[:, None]).T @ seen,
        "squared-slopes": (seen * (shares**2 * slopes)[:, None] ** 2).T @ seen,
        "gradient": seen.T @ (shares**2 * slopes),
    }
    for name, kind in KINDS.items():
        query = kind(WEIGHTS, loss)
        found = at(query, block, **told)
        found = found if name == "gradient" else query.matrix(found)
        np.testing.assert_allclose(found, expected[name], atol=1e-5)


def estimate(step: OneStep, way: np.ndarray) -> Estimate:
    return step.estimate(way, np.flatnonzero(way))


def made_up(rng: np.random.Generator, noise: float, deviations: Any) -> tuple[Sums, np.ndarray]:
    """Sums that a sample and noise make of a known quadratic, and the weights that are sought."""
    d = len(deviations)
    true = rng.standard_normal((d, d))
    true = true @ true.T + np.diag(1e3 * np.asarray(deviations))
    sought, projection = rng.standard_normal(d), np.tril(rng.standard_normal((d, d))) + 3 * np.eye(d)
    at_zero = true @ np.linalg.solve(projection, -sought)
    gradient = at_zero + np.linalg.cholesky(true) @ rng.standard_normal(d) + noise * rng.standard_normal(d)
    error = np.triu(rng.standard_normal((d, d)) / math.sqrt(2), 1)
    error += error.T + np.diag(rng.standard_normal(d))
    return Sums(projection, true + noise * error, true, gradient, noise, noise, noise), sought


def held(rng: np.random.Generator, noise: float, assumed: float) -> float:
    """The share of 95% intervals that hold, over 200 samples of 6 weights."""
    count = identified = 0
    for _ in range(200):
        sums, sought = made_up(rng, noise, [1, 1, 1, 1, 2, 4])
        told = Sums(sums.projection, sums.curvature, sums.squares, sums.gradient, assumed, assumed, assumed)
        step = OneStep(told, np.zeros(6))
        found = [estimate(step, way) for way in np.eye(6)]
        identified += sum(each.identified for each in found)
        count += sum(abs(each.value - truth) <= 1.96 * each.error for each, truth in zip(found, sought, strict=True))
    assert identified > 1170
    return count / 1200


def half_hidden(rng: np.random.Generator, believed: float) -> tuple[OneStep, np.ndarray]:
    """Of six weights that stand aside two hang on next to nothing but noise, and go with the others."""
    sizes, noise = np.array([1e3, 1e3, 1e3, 1e3, 40.0, 40.0]), 40.0
    apart = np.triu(rng.uniform(-0.3, 0.3, (6, 6)), 1)
    true = (np.eye(6) + apart + apart.T) * np.sqrt(np.outer(sizes, sizes))
    sought = rng.standard_normal(6) * np.array([0.5, 0.5, 0.5, 0.5, 1.0, 1.0])
    error = np.triu(rng.standard_normal((6, 6)) * noise / math.sqrt(2), 1)
    error += error.T + noise * np.diag(rng.standard_normal(6))
    sampled = np.linalg.cholesky(true) @ rng.standard_normal(6) + noise * rng.standard_normal(6)
    belief = Belief(np.diag(sizes), 60.0, np.full(6, believed), np.zeros(6))
    sums = Sums(np.eye(6), true + error, true, sampled - true @ sought, noise, noise, noise, belief)
    return OneStep(sums, np.zeros(6)), sought


def test_hidden_weights_hide_no_others_and_are_in_their_errors() -> None:
    """As above, of the four that are seen; negative control: nobody believes that the hidden ones matter."""
    for believed, least, most in ((4.0, 0.90, 0.995), (1e-4, 0.0, 0.80)):
        rng, held, told = np.random.default_rng(4), 0, np.zeros(6)
        for _ in range(300):
            step, sought = half_hidden(rng, believed)
            found = [estimate(step, way) for way in np.eye(6)]
            told += [each.identified for each in found]
            held += sum(abs(found[j].value - sought[j]) <= 1.96 * found[j].error for j in range(4))
        assert least < held / 1200 < most
        assert told[:4].min() > 290
        assert told[4:].max() < (150 if believed > 1 else 301)


def test_entries_of_the_curvature_are_drawn_to_the_gram_matrix_as_far_as_noise_rules() -> None:
    rng = np.random.default_rng(6)
    step, _ = half_hidden(rng, 4.0)
    known = step._curvature
    assert known.variances[0, 1] < known.variances[0, 5] < known.variances[4, 5] < 40.0**2 / 2
    spread = np.diag(rng.uniform(0, 1, 6)) + 0.1
    drawn = []
    for _ in range(20_000):  # E d, for a d of these second moments
        error = np.triu(rng.standard_normal((6, 6)) * np.sqrt(known.variances))
        error = known.axes @ (error + np.triu(error, 1).T) @ known.axes.T
        drawn.append(error @ np.linalg.cholesky(spread) @ rng.standard_normal(6))
    np.testing.assert_allclose(np.cov(np.array(drawn).T), known.spoils(spread), atol=0.06 * known.spoils(spread).max())
    way, move, shape = rng.standard_normal(6), rng.standard_normal(6), rng.standard_normal((6, 6))
    covariance = known.spoils(np.outer(move, move))
    assert known.along(way, move) == pytest.approx(way @ covariance @ way)
    shape, turned = shape + shape.T, known.axes.T @ (shape + shape.T) @ known.axes
    assert known.spoiled(turned, move) == pytest.approx(float((shape * covariance).sum()))
    plain = Sums(np.eye(2), np.eye(2), np.eye(2), np.zeros(2), 3.0, 0.0, 0.0)
    np.testing.assert_allclose(Curvature.of(plain).spoils(np.diag([1.0, 2.0])), 4.5 * np.diag([4.0, 5.0]))


def test_a_share_of_the_length_of_a_row_is_for_what_is_asked_for() -> None:
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((500, 20)) @ rng.standard_normal((20, 20))
    gram = rows.T @ rows / 500
    moments = rule.of_gram(gram / np.trace(gram), 1e-9)
    q, named = 1 / moments.values, np.arange(20) == 3
    shared, alike = shared_out(moments, q, named), moments.vectors * np.sqrt(q)
    gram = moments.vectors @ np.diag(moments.values) @ moments.vectors.T
    assert np.trace(shared.T @ gram @ shared) == pytest.approx(np.trace(alike.T @ gram @ alike))
    np.testing.assert_allclose(shared, np.tril(shared), atol=1e-9)

    def spoiled(projection: np.ndarray, place: int) -> float:
        """The variance that noise of 1 in a gradient of rows P'x gives to a weight."""
        way = np.linalg.solve(projection.T @ gram @ projection, projection.T[:, place])
        return float(way @ way)

    assert spoiled(shared, 3) == pytest.approx(spoiled(alike, 3) / (20 * NAMED + 1 - NAMED))  # of 20 shares
    assert spoiled(shared, 4) < 1.01 / (1 - NAMED) * spoiled(alike, 4)


def test_what_is_asked_for_is_in_the_plan_where_it_is_not_all() -> None:
    every = plan_of()
    assert "named" not in every.to_json()
    some = algorithms.plan_by(
        PrivateStandardErrors(), problem("squared"), Start(WEIGHTS, (), (2,)), run="run", coin="c"
    )
    assert Plan.from_json(some.to_json()).numbers.named == (2,)
    for plan in (every, some):  # shares are others, and cost the same
        costs = [(release.charged(plan.relation) / release.std) ** 2 for release in plan.releases]
        assert sum(costs) == pytest.approx(plan.mu**2, rel=1e-3)


def test_intervals_hold_with_noise_and_would_not_if_it_were_forgotten() -> None:
    """1,200 intervals at .95 hold less than .90 or more than .99 with a chance below 1e-6, as 200 samples too."""
    assert 0.90 < held(np.random.default_rng(0), 60.0, 60.0) < 0.99
    assert held(np.random.default_rng(0), 60.0, 1e-3) < 0.80


def test_what_the_noise_hides_is_not_told() -> None:
    """The last direction has a tenth of the noise of the curvature: weights that hang on it are refused."""
    sums, _ = made_up(np.random.default_rng(5), 0.0, [1, 1, 1, 1])
    hidden = Sums(np.eye(4), np.diag([1e3, 1e3, 1e3, 1.0]), sums.squares, sums.gradient, 10.0, 10.0, 10.0)
    step = OneStep(hidden, np.zeros(4))
    assert [estimate(step, way).identified for way in np.eye(4)] == [True, True, True, False]
    assert not estimate(step, np.ones(4)).identified
    assert estimate(step, np.array([1.0, 0.5, 0.0, 0.0])).identified


def test_without_noise_the_step_is_newtons() -> None:
    sums, sought = made_up(np.random.default_rng(2), 0.0, [1, 2, 3])
    gradient = sums.curvature @ np.linalg.solve(sums.projection, -sought)
    exact = Sums(sums.projection, sums.curvature, sums.squares, gradient, 0.0, 0.0, 0.0)
    step = OneStep(exact, np.zeros(3))
    found = [estimate(step, way) for way in np.eye(3)]
    np.testing.assert_allclose([each.value for each in found], sought, rtol=1e-9)
    middle = np.linalg.inv(sums.curvature) @ sums.squares @ np.linalg.inv(sums.curvature)
    covariance = sums.projection @ middle @ sums.projection.T
    np.testing.assert_allclose([each.error for each in found], np.sqrt(np.diag(covariance)), rtol=1e-9)


def test_squared_slopes_are_drawn_to_the_curvature_as_far_as_noise_rules() -> None:
    rng = np.random.default_rng(3)
    curvature, unlike = np.diag([4.0, 2.0, 1.0]), np.diag([1.0, 2.0, 4.0])
    for noise, kept in ((1e-3, 1.0), (30.0, 0.0)):
        found = Sums(np.eye(3), curvature, 5.0 * unlike, np.zeros(3), 0.0, noise, 0.0).variance
        np.testing.assert_allclose(found, 5.0 * (kept * unlike + (1 - kept) * curvature), rtol=1e-4)
    lost = Sums(np.eye(3), -curvature, -unlike, np.zeros(3), 50.0, 50.0, 1.0)  # all noise: finite, and nothing is told
    assert estimate(OneStep(lost, np.zeros(3)), np.ones(3)).error > 0
    assert not any(estimate(OneStep(lost, np.zeros(3)), way).identified for way in np.eye(3))
    off = []
    for _ in range(200):  # of noise alone less is left than there was
        error = np.triu(rng.standard_normal((3, 3)) / math.sqrt(2), 1)
        error += error.T + np.diag(rng.standard_normal(3))
        found = Sums(np.eye(3), curvature, 5.0 * curvature + error, np.zeros(3), 0.0, 1.0, 0.0).variance
        off.append(np.linalg.norm(found - 5.0 * curvature) / np.linalg.norm(error))
    assert np.mean(off) < 0.75


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_plan_costs_what_was_asked_for_also_by_rows(loss: str, relation: Relation) -> None:
    central = plan_of(loss, relation=relation)
    rows = plan_of(loss, relation=relation, split="rows", parties=(("anna", 4), ("ben", 3)))
    check_price_by_rows(central, rows)


def test_no_solver_is_called_so_and_a_party_checks_every_number_of_a_plan() -> None:
    assert all(form.name != "standard-errors" for form in algorithms.every_form())
    with pytest.raises(InputError, match="solver='standard-errors' is unknown"):
        algorithms.check("standard-errors", get("logistic"), "central")
    plan = plan_of()
    assert algorithms.of(Plan.from_json(plan.to_json())).title == PrivateStandardErrors.title
    short = plan.model_copy(update={"numbers": {"weights": (1.0,)}})
    with pytest.raises(RefusedError, match="a model of 1 weights for rows of 4 columns"):
        query_of(short, "gradient")
    for weights in ((math.nan,) * 4, (math.inf,) * 4, (1e200,) * 4, "four"):
        with pytest.raises(ValueError, match="weights"):
            plan.model_copy(update={"numbers": {"weights": weights}})
    with pytest.raises(ValueError, match="fixed"):
        plan.model_copy(update={"numbers": {"weights": (1.0,) * 4, "fixed": (-1,)}})
    with pytest.raises(ValueError, match="surprise"):
        plan.model_copy(update={"numbers": {"weights": (1.0,) * 4, "surprise": 1.0}})


def columns_plan(weights: np.ndarray, **changes: Any) -> Plan:
    """Of four columns at two parties, with an intercept."""
    loss, fixed = changes.pop("loss", "logistic"), changes.pop("fixed", ())
    fields: dict[str, Any] = {
        "split": "columns",
        "parties": (("anna", 20_000), ("ben", 20_000)),
        "columns": (2, 2),
        "features": 4,
        "bounds": Bounds.declare(feature_ranges=([-4.0] * 4, [4.0] * 4)),
        "labels": "held",
        "aggregation": SecureAggregation(colluding=1),
        "fit_intercept": True,
        "epsilon": 10.0,
    }
    about = problem(loss, **fields | changes)
    return algorithms.plan_by(ColumnsStandardErrors(), about, Start(weights, fixed), run="run", coin="coin")


class Exact:
    """What secure columns open in the mean: slopes as the table has them at scores that are rounded, no noise."""

    def __init__(self, plan: Plan, rows: np.ndarray, labels: np.ndarray) -> None:
        self.rows = np.asarray(Block.prepare(rows, labels, plan.preparation).rows, dtype=float)
        self.plan, self.positive, self.clip = plan, labels > 0, 2.0 ** (ring.exponent_of(plan) // 2 + 1 - ring.ROW_BITS)

    def factors(self, told: Any) -> None:
        self.matrix = np.zeros((self.plan.dimension,) * 2)
        self.matrix[np.tril_indices(self.plan.dimension)] = told["projection"] / self.clip
        lengths = np.linalg.norm(self.rows @ self.matrix, axis=1)
        self.factor = 31 / 32 * np.minimum(1, 1 / np.maximum(lengths, 1e-9))

    def summed(self, slopes: np.ndarray) -> np.ndarray:
        return np.asarray(self.matrix.T @ (self.rows.T @ (self.factor * slopes)))

    def answer(self, ask: Any) -> np.ndarray:
        if ask.query == "gram":
            return np.asarray((self.rows.T @ self.rows)[np.triu_indices(self.plan.dimension)])
        if "projection" in ask.arrays:
            self.factors(ask.arrays)
        level, half = float(ask.arrays["level"][0]), ring.LEVELS // 2
        chances = ask.arrays["chances"].ravel() / 2.0**ring.CHANCE_BITS
        assert np.abs(chances[:half] - chances[half:]).max() < 1e-4  # of either label
        places = self.rows @ ask.arrays["weights"] / level + half / 2
        below = np.floor(places).astype(int)
        means = np.stack([chances[below], chances[below + 1]])
        return self.summed((1 - places + below) * means[0] + (places - below) * means[1] - self.positive)

    def solve(self) -> OneStep:
        text = ColumnsStandardErrors().coordinate(self.plan)
        ask = next(text)
        while True:
            try:
                ask = text.send({"sum": self.answer(ask)})
            except StopIteration as stop:
                return OneStep(stop.value.model, stop.value.weights)


def columns_data(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """20,000 rows, labels by a logistic model, and its weights."""
    rows, weights = rng.standard_normal((20_000, 4)) + rng.standard_normal((20_000, 1)), np.array([1.0, -0.5, 0.3, 0.0])
    return rows, np.where(rng.random(20_000) < 1 / (1 + np.exp(-rows @ weights - 0.3)), 1.0, -1.0), weights


def test_over_secure_columns_gradients_around_a_model_are_the_step_and_its_errors() -> None:
    """Without noise: the model of the most likelihood, to a fifth of its error, also from a model that is off."""
    rows, labels, _ = columns_data(np.random.default_rng(11))
    plain = LogisticRegression(C=np.inf, tol=1e-10).fit(rows, labels)
    best = columns_plan(np.zeros(5)).preparation.weights_of(plain.coef_[0], float(plain.intercept_[0]))
    for off in (1.0, 0.95):
        plan = columns_plan(off * best)
        step, prepared = Exact(plan, rows, labels).solve(), Exact(plan, rows, labels).rows
        chance = 1 / (1 + np.exp(-prepared @ best))
        errors = np.sqrt(np.diag(np.linalg.inv((prepared * (chance * (1 - chance))[:, None]).T @ prepared)))
        for j, way in enumerate(np.eye(5)):
            found = step.estimate(way, np.array([j]))
            assert abs(found.value - best[j]) < (0.2 if off == 1.0 else 0.5) * errors[j]
            assert 0.98 < found.error / errors[j] < 1.25  # of the plan's noise too
            assert found.identified


def test_over_secure_columns_a_rounded_table_would_move_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before: with slopes that rounding flattens a weight is off by far more."""
    rows, labels, _ = columns_data(np.random.default_rng(11))
    plain = LogisticRegression(C=np.inf, tol=1e-10).fit(rows, labels)
    best = columns_plan(np.zeros(5)).preparation.weights_of(plain.coef_[0], float(plain.intercept_[0]))
    monkeypatch.setattr("sottovoce.algorithms.standard_errors.rounding_of", lambda _plan: 0.0)
    step = Exact(columns_plan(best), rows, labels).solve()
    off = [step.estimate(way, np.array([j])) for j, way in enumerate(np.eye(5))]
    assert max(abs(each.value - best[j]) / each.error for j, each in enumerate(off)) > 0.3


@pytest.mark.parametrize("relation", RELATIONS)
def test_over_secure_columns_every_opening_is_charged(relation: Relation) -> None:
    """Twice along each direction, as often at the model; a column that stays has none. Replace-one pays twice."""
    for fixed, directions in (((), 5), ((1,), 4)):
        plan = columns_plan(np.zeros(5), relation=relation, fixed=fixed)
        assert [(release.query, release.count) for release in plan.releases] == [
            ("gram", 1),
            ("gradient", 4 * directions),
        ]
        costs = [release.count * (release.charged(relation) / release.std) ** 2 for release in plan.releases]
        assert sum(costs) == pytest.approx(plan.mu**2, rel=1e-3)
        bound = 31 / 32 * (1 if relation == "zero-out" else 2)
        assert plan.release("gradient").charged(relation) == pytest.approx(bound, rel=1e-6)
    step = Exact(columns_plan(np.zeros(5), fixed=(1,)), *columns_data(np.random.default_rng(1))[:2]).solve()
    assert step.estimate(np.eye(5)[0], np.array([0])).identified


def test_over_secure_columns_no_word_is_too_short_for_a_clip() -> None:
    plan = columns_plan(np.zeros(5))
    assert plan.numbers.clips_rows
    assert ring.ring_bits(plan) >= ring.exponent_of(plan) + 10
    with pytest.raises(RefusedError, match="a model of 1 weights for rows of 5 columns"):
        query_of(plan.model_copy(update={"numbers": {"weights": (1.0,)}}), "gradient")
    bare = plan.model_copy(update={"releases": tuple(each for each in plan.releases if each.query == "gram")})
    with pytest.raises((RefusedError, InputError)):
        ring.ring_bits(bare)
    with pytest.raises(InputError, match="for the logistic loss"):
        columns_plan(np.zeros(5), loss="smoothed_hinge")


def test_real_openings_are_the_sums_that_they_are_taken_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every opening of a run, within six deviations of its noise and its bits; slopes of other weights are far off."""
    seen, coordinate = list[Any](), ColumnsStandardErrors.coordinate

    def watched(self: Any, plan: Plan) -> Any:
        text = coordinate(self, plan)
        values = yield (ask := next(text))
        while True:
            seen.append((plan, ask, values["sum"]))
            try:
                ask = text.send(values)
            except StopIteration as stop:
                return stop.value
            values = yield ask

    monkeypatch.setattr(ColumnsStandardErrors, "coordinate", watched)
    rows, labels, _ = columns_data(np.random.default_rng(5))
    rows, labels = rows[:1500, :2], labels[:1500]
    federation = sv.Federation.by_columns([rows[:, :1], rows[:, 1:]], labels, products="secure")
    sv.PrivateLogisticRegression(
        40.0, feature_ranges=([-4, -4], [4, 4]), classes=(-1, 1), standard_errors=True, insecure_seed=3
    ).fit(federation)
    exact = Exact(seen[0][0], rows, labels)
    assert [ask.query for _, ask, _ in seen] == ["gram"] + 12 * ["gradient"]
    for plan, ask, found in seen:
        noise = plan.release(ask.query).std * math.sqrt(plan.channel.variance)
        rounding = 0.0 if ask.query == "gradient" else 1500 * 2.0**-8 / 8
        off = np.abs(found - exact.answer(ask)).max()
        bits = 0.0 if ask.query == "gram" else math.sqrt(1500 / 4)
        assert off < 6 * math.hypot(noise, bits) + rounding
    moved = replace(ask, arrays={**ask.arrays, "weights": -3 * ask.arrays["weights"]})
    assert np.abs(found - exact.answer(moved)).max() > 6 * math.hypot(noise, math.sqrt(1500 / 4))
