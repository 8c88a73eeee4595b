"""One noisy score of every person: what a record moves, what leaves, what it costs, and that the model gains by it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import sottovoce as sv
from covering import pairwise
from plans import columns_problem
from sottovoce import losses
from sottovoce.algorithms.base import Rounds
from sottovoce.algorithms.score.private import FIT, HELD, SHARES, Correlations, PrivateScore, combine, expectations
from sottovoce.algorithms.score.queries import ScoreProducts, clip_scores, labels_last, within
from sottovoce.app.previews import cost_of
from sottovoce.data.block import Block, exact_weights
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LeakError
from sottovoce.federation.party import Party
from sottovoce.gate.frames import MAX_BYTES, Frame, decode, encode
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Labels, Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import SAMPLER_SHARE, Relation
from sottovoce.queries.pricing import queries_of
from sottovoce.solvers import by_name
from support import at, epsilons_of, events_of, handle, plan_of, query_of

SCORE = PrivateScore()
RELATIONS: tuple[Relation, ...] = ("zero-out", "replace-one")
RECORDS, COLUMNS = 50, (4, 6, 3)
LOSSES = {"logistic": (-1, 1), "squared": None}


def plan_for(loss: str = "logistic", **fields: Any) -> Plan:
    """A plan of three parties, the second of which holds the labels."""
    bounds = fields.pop("bounds", Bounds.declare(row_norm=2.0, label_bound=1.0))
    columns, records = fields.pop("columns", COLUMNS), fields.pop("records", RECORDS)
    fields = {"loss": Named(name=loss), "classes": LOSSES[loss], "label_party": 1} | fields
    return plan_of(columns_problem(columns, records, bounds, **fields), "score")


def parts_of(generator: np.random.Generator, loss: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Rows of all sizes, some far beyond the bounds, some null, and labels."""
    X = generator.standard_normal((RECORDS, sum(COLUMNS))) * 10.0 ** generator.uniform(-2, 2, (RECORDS, 1))
    X[generator.random(RECORDS) < 0.1] = math.nan
    y = generator.uniform(-2, 2, RECORDS)
    return np.split(X, np.cumsum(COLUMNS)[:-1], axis=1), y if loss == "squared" else np.sign(y)


def prepared(plan: Plan, party: str, X: Any, y: np.ndarray) -> Block:
    return Block.prepare(X, y, plan.part(party).preparation)


def answered(plan: Plan, party: str) -> list[Any]:
    """The queries that a party answers."""
    return [query for query in SCORE.queries(plan, party) if query.answered_by(plan, party, 0)]


def told(plan: Plan, query: Any, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """What a coordinator, honest or not, may say with a query: weights and numbers of all sizes."""
    size = 10.0 ** generator.uniform(-2, 3)
    shapes = {name: wanted.shape for name, wanted in query.takes_at(0).items()}
    said = {name: size * generator.standard_normal(shape) for name, shape in shapes.items()}
    return {**said, "centre": generator.uniform(-1, 1, 1)} if "centre" in said else said


def weighted(query: Any, change: np.ndarray) -> float:
    return float(np.linalg.norm(change * query.noise_weights))


def one_canary(plan: Plan, name: str, row: Any = None, label: float = 1.0) -> Block:
    """Null rows and one record as long as the bounds allow; without a row it is null too."""
    X = np.full((RECORDS, plan.part(name).preparation.features), math.nan)
    y = np.ones(RECORDS)
    if row is not None:
        X[7], y[7] = row, label
    return prepared(plan, name, X, y)


@pytest.mark.parametrize("columns", [0, 1, 2, 5])
def test_products_of_scores_and_columns_that_both_change(columns: int) -> None:
    """The world tier: with the noise of the scores public, a record also moves the numbers its scores meet."""
    query = ScoreProducts(plan_for(), "party-0", columns)
    generator = np.random.default_rng(0)
    z = np.concatenate([generator.uniform(-1, 1, (20_000, 2)), [[1, -1], [1, 0], [0.5, -1]]])
    c = np.sign(generator.standard_normal((len(z), 2, columns)))
    first, second = (np.column_stack([z[:, k] ** 2, z[:, [k]] * c[:, k]]) for k in (0, 1))
    assert np.linalg.norm(first, axis=1).max() <= query.sensitivity("zero-out")
    moved = np.linalg.norm(first - second, axis=1)
    assert moved.max() <= query.sensitivity("replace-one") + 1e-12
    opposite = np.array([1.0, *np.ones(columns)]) - np.array([1.0, *-np.ones(columns)])
    attained = 1.0 if columns == 0 else np.linalg.norm(opposite)
    assert math.isclose(attained, query.sensitivity("replace-one"))


def test_scores_are_exact_before_they_are_cut() -> None:
    plan = plan_for()
    generator = np.random.default_rng(2)
    block = prepared(plan, "party-1", generator.standard_normal((RECORDS, COLUMNS[1])), np.ones(RECORDS))
    bits = plan.preparation.bits
    for _ in range(10):
        weights = generator.standard_normal(COLUMNS[1] + 1)
        exact = [Fraction(float(w)) for w in exact_weights(weights, bits)]
        sums = [sum(Fraction(float(x)) * w for x, w in zip(row, exact, strict=True)) for row in block.rows]
        cut = [max(min(value, Fraction(1)), Fraction(-1)) for value in sums]
        np.testing.assert_array_equal(clip_scores(block, weights), [int(v * 2**bits) / 2**bits for v in cut])


@pairwise(labels=["public", "shared", "held"], relation=RELATIONS, epsilon=[0.1, 1.0, 8.0])
def test_the_joint_cost_is_the_budget_and_the_world_pays_less(
    labels: Labels, relation: Relation, epsilon: float
) -> None:
    plan = plan_for(labels=labels, relation=relation, epsilon=epsilon)
    delta = 1e-5 * (1 - SAMPLER_SHARE)
    spent = [epsilon_of(events_of(plan, relation, name), delta, relation) for name in dict(plan.parties)]
    assert len(set(spent)) == 1
    assert 0.999 * epsilon < spent[0] <= epsilon
    found = epsilons_of(plan, relation)
    assert found["coordinator"] == found["parties"] == spent[0]
    total = FIT + sum(SHARES.values()) + (sum(HELD.values()) if labels == "held" else 0.0)
    free = SHARES["scores"] + (HELD["labels"] if labels == "held" else 0.0)
    mu = mu_for(epsilon, delta) * math.sqrt(1 - free / total)
    assert math.isclose(mu_for(found["world"], delta), mu, rel_tol=2e-3)


@pairwise(columns=[(4, 3), (2, 1, 2, 1, 2)], labels=["shared", "held"], loss=LOSSES)
def test_scores_and_noisy_labels_enter_the_model_by_cut_sums_alone(
    loss: str, labels: Labels, columns: tuple[int, ...]
) -> None:
    """What the world tier rests on: with the released sums held fixed, nothing else follows what each person has."""
    plan = plan_for(loss, labels=labels, columns=columns)

    def talk(seed: int, tainted: tuple[str, ...]) -> list[np.ndarray]:
        fixed, other = np.random.default_rng(0), np.random.default_rng(seed)
        text, rounds, said = SCORE.coordinate(plan), Rounds(plan, SCORE), []
        ask = next(text)
        while True:
            said += [array for name, array in ask.arrays.items() if name not in ("columns", "labels")]
            values = {}
            for name in rounds.assign(ask)[1]:
                source = other if ask.query in tainted else fixed
                size = query_of(plan, ask.query, name).length
                values[name] = plan.release(ask.query).std * source.standard_normal(size)
            try:
                ask = text.send(values)
            except StopIteration as stop:
                return [*said, stop.value]

    first, second = (talk(seed, ("scores", "labels")) for seed in (1, 2))
    assert len(first) > plan.rounds
    assert all(map(np.array_equal, first, second))
    assert not all(map(np.array_equal, first, talk(2, ("moments",))))  # negative control: these are read as they are


def problem_of(
    columns: tuple[int, ...], records: int = 6_000, seed: int = 0, task: str = "logistic"
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Every party has a part of the signal; the parts are correlated through one common factor."""
    generator = np.random.default_rng(seed)
    features = sum(columns)
    X = generator.standard_normal((records, features)) + 0.7 * generator.standard_normal((records, 1))
    X = np.clip(X / 3, -1, 1)
    w = np.where(np.arange(features) % 2, -1.0, 1.0) * np.linspace(1.0, 2.0, features)
    score = X @ w
    if task == "logistic":
        y = np.where(generator.random(records) < 1 / (1 + np.exp(-2 * score - 0.5)), 1, -1)
    else:
        y = np.clip(0.3 * score + 0.1 + 0.1 * generator.standard_normal(records), -1, 1)
    return np.split(X, np.cumsum(columns)[:-1], axis=1), X, y


def logistic(**parameters: Any) -> sv.PrivateLogisticRegression:
    defaults: dict[str, Any] = {"delta": 1e-6, "entry_bound": 1.0, "classes": (-1, 1), "solver": "score"}
    return sv.PrivateLogisticRegression(**{**defaults, **parameters})


def ridge(**parameters: Any) -> sv.PrivateRidge:
    defaults: dict[str, Any] = {"delta": 1e-6, "entry_bound": 1.0, "label_bound": 1.0, "solver": "score"}
    return sv.PrivateRidge(**{**defaults, **parameters})


def log_loss(model: Any, X: Any, y: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, -y * model.decision_function(X))))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(3, 3), (2, 3, 4)])
@pytest.mark.parametrize("labels", ["shared", "held"])
def test_scores_of_all_parties_beat_one_party_with_the_whole_budget(columns: tuple[int, ...], labels: Labels) -> None:
    records = 6_000 if labels == "shared" else 24_000
    parts, X, y = problem_of(columns, records)
    epsilon = 4.0 if labels == "shared" else 8.0
    federation = sv.Federation.by_columns(parts, y, labels=labels)
    joint = [log_loss(logistic(epsilon=epsilon, insecure_seed=s).fit(federation), X, y) for s in range(3)]
    alone = [
        log_loss(logistic(epsilon=math.inf, solver="newton").fit(part, y), part, y) for part in parts
    ]  # even without noise
    exact = log_loss(logistic(epsilon=math.inf, solver="newton").fit(X, y), X, y)
    assert np.mean(joint) < min(alone) - 0.3 * (min(alone) - exact)
    # negative control: with the people of the other parties mixed up there is nothing to gain
    generator = np.random.default_rng(5)
    mixed = [parts[0], *(part[generator.permutation(records)] for part in parts[1:])]
    blurred = logistic(epsilon=epsilon, insecure_seed=0).fit(sv.Federation.by_columns(mixed, y, labels=labels))
    assert log_loss(blurred, np.hstack(mixed), y) > min(alone) - 0.3 * (min(alone) - exact)


@pytest.mark.parametrize("labels", ["shared", "held"])
def test_ridge_over_columns(labels: Labels) -> None:
    parts, X, y = problem_of((3, 3), 12_000, task="squared")
    federation = sv.Federation.by_columns(parts, y, labels=labels, label_party=1)
    found = [ridge(epsilon=8.0, insecure_seed=s).fit(federation) for s in range(3)]
    alone = min(np.mean((LinearRegression().fit(part, y).predict(part) - y) ** 2) for part in parts)
    assert np.mean([(model.predict(X) - y) ** 2 for model in found]) < 0.7 * alone


@pytest.mark.parametrize("holder", [0, 2])
def test_without_noise_the_factors_are_the_least_squares_ones(holder: int) -> None:
    parts, X, y = problem_of((2, 3, 4), 4_000, task="squared")
    ranges = (np.full(9, -1.5), np.linspace(1.0, 2.0, 9))
    federation = sv.Federation.by_columns(parts, 7 * y + 3, label_party=holder)
    model = sv.PrivateRidge(
        epsilon=math.inf, feature_ranges=ranges, label_bound=(-4, 10), solver=by_name("score", rounds=300)
    ).fit(federation)
    own = np.column_stack([LinearRegression().fit(part, y).predict(part) for part in parts])
    best = LinearRegression().fit(own, y)
    # residuals are not clipped; the correlations are those of cut scores
    np.testing.assert_allclose((model.predict(X) - 3) / 7, best.predict(own), atol=0.06)
    assert np.mean(((model.predict(X) - 3) / 7 - y) ** 2) < 1.02 * np.mean((best.predict(own) - y) ** 2)


def test_the_factors_are_those_of_scores_without_noise() -> None:
    generator = np.random.default_rng(1)
    common, own = generator.standard_normal((40_000, 1)), generator.standard_normal((40_000, 2))
    X = np.clip((common + own) / 8, -1, 1)
    y = np.clip(X.sum(axis=1) + 0.1 * generator.standard_normal(40_000), -1, 1)
    federation = sv.Federation.by_columns([X[:, :1], X[:, 1:]], y)
    found = np.mean([ridge(epsilon=4.0, insecure_seed=s).fit(federation).coef_ for s in range(5)], axis=0)
    # alone each party has the slope 1.5; with the noise of the scores left in their square the factors would be near 1,
    # with its correlation 0.5 too large by a quarter 1.5 / 1.625
    np.testing.assert_allclose(found, 1.0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 0.5])
@pytest.mark.parametrize("labels", ["shared", "held"])
def test_a_tiny_budget_does_no_harm(epsilon: float, labels: Labels) -> None:
    parts, X, y = problem_of((5, 5))
    federation = sv.Federation.by_columns(parts, y, labels=labels)
    joint = [log_loss(logistic(epsilon=epsilon, insecure_seed=s).fit(federation), X, y) for s in range(5)]
    # a party alone, with what its own fit has of the budget
    own = epsilon * math.sqrt(FIT / 2 / (1 if labels == "shared" else FIT + sum({**SHARES, **HELD}.values())))
    alone = [
        log_loss(logistic(epsilon=own, solver="newton", insecure_seed=s).fit(parts[0], y), parts[0], y)
        for s in range(5)
    ]
    assert np.mean(joint) < np.mean(alone) + 0.1
    assert max(joint) < 1.0


def test_factors_of_gaussian_scores_solve_the_equations_of_the_optimum() -> None:
    loss = losses.get("squared")
    R = np.array([[1.0, 0.4, 0.2], [0.4, 1.0, 0.1], [0.2, 0.1, 1.0]])
    slopes = np.array([0.5, 0.4, 0.3])
    factors, middle = combine(loss, slopes, R, 0.25)
    np.testing.assert_allclose(R @ factors, slopes)
    assert math.isclose(middle, 0.25, abs_tol=1e-9)
    assert combine(loss, np.array([1.0, 0.1]), np.array([[1.0, 0.9], [0.9, 1.0]]), 0.0)[0].tolist() == [1.0, 0.0]
    # one party is left as it is
    sigmoid = losses.get("logistic")
    mean, deviation = -1.0, 2.0
    target, curvature = expectations(sigmoid, mean, deviation**2)
    factors, middle = combine(sigmoid, np.array([deviation * curvature]) / curvature, np.eye(1), target)
    assert math.isclose(factors[0], deviation, rel_tol=1e-9)
    assert math.isclose(middle, mean, abs_tol=1e-6)
    draws = mean + deviation * np.random.default_rng(0).standard_normal(400_000)
    assert abs(np.mean(1 / (1 + np.exp(-draws)) - 0.5) - target) < 0.004  # seven standard errors


def test_a_correlation_of_which_nothing_is_known_is_one_half() -> None:
    noisy, clear = plan_for(epsilon=0.01), plan_for(epsilon=200.0, records=2_000_000)
    sums = [np.full(1 + m, 0.4) * RECORDS for m in range(3)]
    np.testing.assert_allclose(Correlations(noisy, sums, 1e4).matrix, 0.5 + 0.5 * np.eye(3), atol=0.01)
    told = [np.array([0.5, *[-0.1] * m]) * clear.records for m in range(3)]
    np.testing.assert_allclose(Correlations(clear, told, 1.0).matrix, 1.2 * np.eye(3) - 0.2, atol=0.01)


@pytest.mark.parametrize("labels", ["public", "shared", "held"])
@pytest.mark.parametrize("columns", [(3, 3), (2, 5, 1)])
def test_what_leaves_and_its_size_do_not_depend_on_the_data(labels: Labels, columns: tuple[int, ...]) -> None:
    parts, _, y = problem_of(columns, 400)
    strange = [np.full_like(part, math.nan) for part in parts]
    strange[0][:3] = 1e9
    seen = []
    for own in (parts, strange):
        federation = sv.Federation.by_columns(own, y, labels=labels, label_party=1, record=True)
        model = logistic(epsilon=1.0, insecure_seed=0).fit(federation)
        assert np.all(np.isfinite(model.coef_))
        messages = [m for m in model.transcript_ or () if m.name in {r.query for r in model.plan_.releases}]
        seen.append([(m.round, m.sender, m.name, np.shape(m.payload)) for m in messages])
        cost, done = cost_of(model.plan_, SCORE), model.communication_
        assert cost.rounds == done.rounds
        assert cost.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.1)
        assert cost.downlink_bytes == pytest.approx(done.downlink_bytes, rel=0.1)
    assert seen[0] == seen[1]
    order = labels_last(model.plan_)
    assert order[-1] == "party-2"
    senders = {name: {sender for _, sender, query, _ in seen[0] if query == name} for name in ("scores", "labels")}
    assert senders["scores"] == set(order[:-1])
    assert senders["labels"] == ({"party-2"} if labels == "held" else set())


def test_one_label_that_is_held_moves_nothing_beyond_its_sensitivity() -> None:
    parts, _, y = problem_of((2, 3, 2), 300)
    other = y.copy()
    other[11] = -y[11]
    runs = []
    for labels in (y, other):
        federation = sv.Federation.by_columns(parts, labels, labels="held", label_party=1, record=True)
        model = logistic(epsilon=1.0, insecure_seed=4, solver=by_name("score", rounds=2)).fit(federation)
        runs.append({(m.name, m.round, m.sender): m.payload for m in model.transcript_ or () if m.name != "facts"})
    plan = model.plan_
    moved = {
        key: np.asarray(runs[0][key]) - np.asarray(runs[1][key])
        for key in runs[0]
        if key[0] in queries_of(SCORE, plan, "party-1")
    }
    change = moved["labels", 0, "party-2"]
    assert np.count_nonzero(change) == 1
    assert abs(change[11]) <= plan.release("labels").charged("replace-one")
    for name in dict(plan.parties):
        assert not moved["gram", 0, name].any()
        blind = name != "party-2"
        # what a party without labels releases follows the noisy ones, which are charged, and no label
        assert np.linalg.norm(moved["gradient", 0, name]) <= (
            0.0 if blind else plan.release("gradient").charged_replace_one
        )
        if blind:
            assert np.linalg.norm(moved["pull", 0, name]) <= plan.release("pull").charged_replace_one
            assert np.linalg.norm(moved["pull", 0, name]) > 0.0  # as it must: the label was really another
    blocks = [prepared(plan, "party-1", parts[0], labels) for labels in (y, other)]
    np.testing.assert_array_equal(blocks[0].labels, 0.0)
    np.testing.assert_array_equal(blocks[0].labels, blocks[1].labels)


def test_a_party_answers_its_own_turn_and_what_it_can_read() -> None:
    parts, _, y = problem_of((2, 3), 200)
    plan = logistic(epsilon=1.0).plan(sv.Federation.by_columns(parts, y, labels="held", label_party=1))
    party = Party("party-1", parts[0], None)

    def ask(serial: int, query: str, round_: int = 0, *, kind: str = "ask", text: str = "", **arrays: Any) -> Frame:
        return decode(handle(party, encode(Frame(kind, serial, plan.digest, round_, query, arrays, text))).data)

    assert ask(1, "", kind="plan", text=plan.to_json()).kind == "accept"
    weights, column = np.zeros(7), np.zeros(200)
    assert ask(2, "labels").kind == ask(3, "slopes", columns=column[None], centre=np.zeros(1)).kind == "refuse"
    assert ask(4, "gradient", weights=np.zeros(3)).kind == "refuse"
    assert ask(5, "gradient", weights=np.full(7, 1e200)).kind == "refuse"
    assert ask(6, "gradient", 64, weights=weights).kind == "refuse"
    assert ask(7, "pull", labels=np.zeros(199)).kind == "refuse"
    assert ask(8, "products", weights=weights, columns=column[None]).kind == "refuse"  # nobody is before it
    assert ask(9, "moments").kind == "refuse"
    assert ask(10, "gradient", weights=weights).arrays["grid"].shape == (3,)
    assert ask(11, "scores", weights=weights).arrays["grid"].shape == (200,)
    assert ask(12, "products", weights=weights, columns=np.zeros((0, 200))).arrays["grid"].shape == (1,)
    assert [query_of(plan, "scores", name).start for name in plan.names] == [0, 3]


def test_a_plan_of_one_party_is_refused_with_a_reason() -> None:
    alone = {"parties": (("party-0", RECORDS),), "columns": (4,), "features": 4, "norms": (2.0,), "label_party": 0}
    plan = plan_for().model_copy(update=alone)
    party = Party("party-0", np.zeros((RECORDS, 4)), np.ones(RECORDS))
    answer = decode(handle(party, encode(Frame("plan", 1, plan.digest, text=plan.to_json()))).data)
    assert answer.kind == "refuse"
    assert "several parties, and the plan has one" in answer.text


def test_a_party_takes_its_own_weights_alone() -> None:
    plan = plan_for()
    generator = np.random.default_rng(6)
    parts, y = parts_of(generator, "logistic")
    for name, mine in zip(plan.names, parts, strict=True):
        block = prepared(plan, name, mine, y)
        for query in (query for query in answered(plan, name) if "weights" in query.takes_at(0)):
            said = told(plan, query, generator)
            others = np.ones(len(said["weights"]), dtype=bool)
            others[query.start : query.start + query.dimension] = False
            value = at(query, block, **said)
            np.testing.assert_array_equal(at(query, block, **said | {"weights": said["weights"] * ~others}), value)
            assert query.dimension == block.dimension


def test_numbers_are_cut_and_put_on_the_grid() -> None:
    np.testing.assert_array_equal(within(np.array([-3.0, 0.3, 7.0, math.nan]), 2), [-1.0, 0.25, 1.0, 1.0])


def test_batches_are_refused() -> None:
    plan = plan_for(labels="held")
    block = one_canary(plan, "party-1").take(np.arange(5))
    with pytest.raises(LeakError, match="which of its rows are null"):
        at(query_of(plan, "labels"), block)


def test_penalties_and_sets() -> None:
    parts, _, y = problem_of((3, 3), 2_000)
    federation = sv.Federation.by_columns(parts, y)
    sparse = logistic(epsilon=4.0, l1_ratio=1, alpha=10.0, insecure_seed=0).fit(federation)
    np.testing.assert_array_equal(sparse.coef_, 0.0)
    ball = logistic(epsilon=4.0, l1_ratio=0, radius=0.5, insecure_seed=0).fit(federation)
    assert 0.25 < np.linalg.norm(ball.coef_) <= 0.5 * (1 + 1e-9)
    small, large = (
        np.linalg.norm(logistic(epsilon=4.0, alpha=alpha, insecure_seed=0).fit(federation).coef_)
        for alpha in (1.0, 1e-3)
    )
    assert small < 0.5 * large


@pytest.mark.parametrize("task", ["logistic", "squared"])
def test_no_intercept(task: str) -> None:
    parts, X, y = problem_of((3, 3), 6_000, task=task)
    make = logistic if task == "logistic" else ridge
    model = make(epsilon=8.0, fit_intercept=False, insecure_seed=0).fit(sv.Federation.by_columns(parts, y))
    assert float(np.ravel(model.intercept_)[0]) == 0.0
    if task == "logistic":
        assert log_loss(model, X, y) < 0.6
    else:
        assert np.mean((model.predict(X) - y) ** 2) < 0.5 * np.mean(y**2)


def test_bad_input_is_told() -> None:
    parts, X, y = problem_of((3, 3), 300)
    federation = sv.Federation.by_columns(parts, y)
    with pytest.raises(InputError, match="needs the logistic or the squared loss, not 'smoothed_hinge'"):
        sv.PrivateLinearSVC(entry_bound=1.0, classes=(-1, 1), solver="score").fit(federation)
    with pytest.raises(InputError, match="does not serve data in one place"):
        logistic().fit(X, y)
    with pytest.raises(InputError, match=r"there is one; fit its rows with solver='newton'"):
        logistic().fit(sv.Federation.by_columns([X], y))
    with pytest.raises(InputError, match="'rate' is no option of solver='score'"):
        by_name("score", rate=0.5)
    with pytest.raises(InputError, match=r"rounds=1 must be a whole number from 2"):
        by_name("score", rounds=1)
    with pytest.raises(InputError, match="too many for one message"):
        plan_for(records=MAX_BYTES // 32 + 1)
    with pytest.raises(InputError, match="row_norm=None"):
        logistic(entry_bound=None).fit(federation)
