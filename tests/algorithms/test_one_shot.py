"""The one-shot sketch: what one record moves, what leaves, what it costs, and that it solves the problem it says."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Lasso, LinearRegression, Ridge

import sottovoce as sv
from plans import columns_problem
from sottovoce import algorithms, losses
from sottovoce.algorithms.one_shot import FLOAT, LABEL_SHARE, RowSketch, SharedLabels, UnclippedRowSketch
from sottovoce.app.previews import cost_of
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LeakError
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.penalties.quadratic import minimise
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Labels, Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import SAMPLER_SHARE, Gaussian, Relation
from sottovoce.solvers import by_name
from support import at, epsilons_of, events_of, handle, plan_of, query_of, world_events_of

ONE_SHOT = algorithms.forms("one-shot")[0]
RELATIONS: tuple[Relation, ...] = ("zero-out", "replace-one")
RECORDS, COLUMNS = 60, (5, 40, 1)


def plan_for(**fields: Any) -> Plan:
    """A plan of three parties, or of what the arguments say instead."""
    bounds = fields.pop("bounds", Bounds.declare(entry_bound=2.0, label_bound=1.0))
    options = fields.pop("options", {})
    columns, records = fields.pop("columns", COLUMNS), fields.pop("records", RECORDS)
    fields = {"regulariser": Named(name="l2", parameters={"alpha": 0.1})} | fields
    return plan_of(columns_problem(columns, records, bounds, **fields), "one-shot", **options)


def sketch_of(plan: Plan, party: str) -> RowSketch:
    return RowSketch(plan, party, plan.numbers.sketch_size)


def parts_of(generator: np.random.Generator, records: int = RECORDS) -> tuple[list[np.ndarray], np.ndarray]:
    """Rows of all sizes, some of them far beyond the bounds, some null, and labels."""
    X = generator.standard_normal((records, sum(COLUMNS))) * 10.0 ** generator.uniform(-3, 3, (records, 1))
    X[generator.random(records) < 0.1] = math.nan
    y = generator.uniform(-2, 2, records)
    return np.split(X, np.cumsum(COLUMNS)[:-1], axis=1), y


def prepared(plan: Plan, party: str, X: Any, y: np.ndarray) -> Block:
    return Block.prepare(X, y, plan.part(party).preparation)


def problem_of(
    parties: int, features: int, records: int = 4_000, seed: int = 0
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = generator.uniform(-1, 1, (records, features))
    w = np.zeros(features)
    w[:: max(features // 4, 1)] = 0.2
    y = np.clip(X @ w + 0.1 + 0.05 * generator.standard_normal(records), -1, 1)
    return np.array_split(X, parties, axis=1), X, y


def lasso(**parameters: Any) -> sv.PrivateLasso:
    defaults: dict[str, Any] = {"delta": 1e-6, "entry_bound": 1.0, "label_bound": 1.0, "solver": "one-shot"}
    return sv.PrivateLasso(**{**defaults, **parameters})


@pytest.mark.parametrize("sketch", ["count", "rademacher"])
@pytest.mark.parametrize("bound", [{"entry_bound": 2.0}, {"row_norm": 3.0}, {"row_norm": 3.0, "entry_bound": 0.5}])
def test_one_record_moves_its_own_rows_within_the_sensitivity(sketch: str, bound: dict[str, float]) -> None:
    plan = plan_for(bounds=Bounds.declare(**bound, label_bound=1.0), options={"sketch": sketch, "sketch_size": 4})
    generator = np.random.default_rng(1)
    for trial in range(20):
        parts, y = parts_of(generator)
        others, z = parts_of(generator)
        person = int(generator.integers(RECORDS))
        for relation in RELATIONS:
            moved = 0.0
            for name, mine, other in zip(dict(plan.parties), parts, others, strict=True):
                neighbour, label = mine.copy(), y.copy()
                blank = relation == "zero-out"
                neighbour[person] = math.nan if blank else -mine[person] if trial % 2 else other[person]
                label[person] = math.nan if blank else z[person]
                here, there = prepared(plan, name, mine, y), prepared(plan, name, neighbour, label)
                for query in ONE_SHOT.queries(plan, name):
                    change = (at(query, here, plan=plan) - at(query, there, plan=plan)).reshape(RECORDS, -1)
                    assert np.count_nonzero(np.delete(change, person, axis=0)) == 0
                    assert np.linalg.norm(change) <= query.sensitivity(relation)
                    moved += float(np.sum(change**2)) if query.name == "rows" or name == "party-0" else 0.0
            # all that a person is in, in units of the noise: the joint cost
            rows, labels = (plan.release(query) for query in ("rows", "labels"))
            assert moved <= len(COLUMNS) * rows.charged(relation) ** 2 + labels.charged(relation) ** 2


def test_sketched_rows_are_cut_though_the_sketch_lengthens_them() -> None:
    plan = plan_for(options={"sketch_size": 2})
    query = sketch_of(plan, "party-1")
    signs = np.sign(query.matrix(plan).sum(axis=1))  # the row that the sketch lengthens most
    block = prepared(plan, "party-1", np.tile(signs * 2.0, (RECORDS, 1)), np.zeros(RECORDS))
    longest = np.linalg.norm(block.rows[0, : COLUMNS[1]].astype(float) @ query.matrix(plan))
    assert longest > 2
    np.testing.assert_allclose(np.linalg.norm(at(query, block, plan=plan).reshape(RECORDS, 2), axis=1), 1.0)


def test_dense_and_sparse_rows_give_the_same_value() -> None:
    plan = plan_for()
    parts, y = parts_of(np.random.default_rng(2))
    X = np.where(np.random.default_rng(3).random(parts[1].shape) < 0.3, parts[1], 0.0)
    query = sketch_of(plan, "party-1")
    dense, sparse = (at(query, prepared(plan, "party-1", rows, y), plan=plan) for rows in (X, sp.csr_matrix(X)))
    np.testing.assert_allclose(dense, sparse, rtol=0, atol=1e-12)


def test_the_constant_of_the_intercept_is_not_sent() -> None:
    plan = plan_for()
    block = prepared(plan, "party-0", np.zeros((RECORDS, COLUMNS[0])), np.zeros(RECORDS))
    assert block.dimension == COLUMNS[0] + 1
    np.testing.assert_array_equal(at(sketch_of(plan, "party-0"), block, plan=plan), 0.0)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_joint_cost_is_the_budget(relation: Relation, epsilon: float) -> None:
    plan = plan_for(relation=relation, epsilon=epsilon)
    reach = 1.0 if relation == "zero-out" else 2.0
    rows, labels = plan.release("rows"), plan.release("labels")
    mu = mu_for(epsilon, 1e-5 * (1 - SAMPLER_SHARE))
    assert math.isclose(rows.std, reach * math.sqrt(3 / (1 - LABEL_SHARE)) / mu, rel_tol=2e-3)
    assert math.isclose(labels.std, reach / math.sqrt(LABEL_SHARE) / mu, rel_tol=2e-3)
    spent = [epsilon_of(events_of(plan, relation, name), 1e-5, relation) for name in dict(plan.parties)]
    assert len(set(spent)) == 1
    assert 0.985 * epsilon < spent[0] <= epsilon
    found = epsilons_of(plan, relation)
    assert found["world"] == found["coordinator"] == found["parties"]
    assert 0.985 * epsilon < found["world"] <= epsilon


@pytest.mark.parametrize("labels", ["public", "shared", "held"])
def test_labels_leave_once_with_noise_from_their_holder(labels: Labels) -> None:
    parts, _, y = problem_of(3, 6)
    federation = sv.Federation.by_columns(parts, y, labels=labels, label_party=2, record=True)
    model = lasso(epsilon=4.0, insecure_seed=1).fit(federation)
    ((sender, sent),) = [(m.sender, m.payload) for m in model.transcript_ if m.name == "labels"]
    assert sender == "party-3"
    assert abs(np.std(sent - y) / model.plan_.release("labels").std - 1) < 0.056
    assert set(model.communication_.uplink) == {"features", "labels"}


@pytest.mark.parametrize(("columns", "size"), [((3, 3), None), ((40, 20), None), ((40, 3, 10), 5)])
def test_size_on_the_wire(columns: tuple[int, ...], size: int | None) -> None:
    (X,), _, y = problem_of(1, sum(columns), records=300)
    federation = sv.Federation.by_columns(np.split(X, np.cumsum(columns)[:-1], axis=1), y)
    model = lasso(epsilon=1.0, solver=by_name("one-shot", sketch_size=size), insecure_seed=0).fit(federation)

    def answer(query: str, count: int) -> int:
        return len(encode(Frame("answer", 0, bytes(32), 0, query, {"grid": np.zeros(count, dtype=np.int64)})))

    assert model.communication_.uplink == {
        "features": sum(answer("rows", 300 * min(width, size or 16)) for width in columns),
        "labels": answer("labels", 300),
    }
    cost, done = cost_of(model.plan_, ONE_SHOT), model.communication_
    assert cost.rounds == done.rounds == 2
    assert cost.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.5)


def test_without_noise_the_post_processing_is_the_regression() -> None:
    _, X, y = problem_of(1, 6)
    rows = np.column_stack([X, np.ones(len(y))])
    for named, found in (
        (Named(name="none"), LinearRegression().fit(X, y)),
        (Named(name="l2", parameters={"alpha": 0.3}), Ridge(0.3 * len(y)).fit(X, y)),
        (Named(name="l1", parameters={"alpha": 0.03}), Lasso(0.03, tol=1e-10).fit(X, y)),
    ):
        plan = plan_for(
            regulariser=named, columns=(6,), records=len(y), bounds=Bounds.declare(entry_bound=1.0, label_bound=1.0)
        )
        weights = minimise(rows.T @ rows, rows.T @ y, sp.eye(7, format="csr"), plan.scaled_regulariser, len(y))
        np.testing.assert_allclose(weights, [*found.coef_, found.intercept_], atol=1e-7)


def test_a_sketch_keeps_the_penalty_of_the_weights_themselves() -> None:
    _, X, y = problem_of(1, 12)
    plan = plan_for(
        regulariser=Named(name="l1", parameters={"alpha": 0.01}),
        columns=(12,),
        records=len(y),
        bounds=Bounds.declare(entry_bound=1.0, label_bound=1.0),
        fit_intercept=False,
        options={"sketch_size": 4},
    )
    back = sketch_of(plan, "party-0").matrix(plan)
    Z = X @ back
    found = minimise(Z.T @ Z, Z.T @ y, sp.csr_matrix(back), plan.scaled_regulariser, len(y))

    def objective(v: np.ndarray) -> float:
        w = back @ v
        return float(np.mean((X @ w - y) ** 2) / 2 + 0.01 * np.abs(w).sum())

    best = np.linalg.lstsq(back, found, rcond=None)[0]
    np.testing.assert_allclose(back @ best, found, atol=1e-6)
    generator = np.random.default_rng(0)
    for scale in (1e-3, 1e-2, 1e-1):
        for _ in range(20):
            assert objective(best + scale * generator.standard_normal(4)) >= objective(best) - 1e-9


@pytest.mark.parametrize(
    ("estimator", "parameters"),
    [
        (sv.PrivateLasso, {"radius": 1.0}),
        (sv.PrivateLasso, {"alpha": 1e-3}),
        (sv.PrivateRidge, {"alpha": 1e-3}),
        (sv.PrivateRidge, {"radius": 1.0}),
        (sv.PrivateRidge, {}),
        (sv.PrivateElasticNet, {"alpha": 1e-3}),
    ],
)
def test_it_learns_at_a_large_epsilon(estimator: Any, parameters: dict[str, Any]) -> None:
    parts, X, y = problem_of(2, 8)
    shared = {"delta": 1e-6, "entry_bound": 1.0, "label_bound": 1.0, "solver": "one-shot"}
    federation = sv.Federation.by_columns(parts, y)
    models = [estimator(epsilon=30.0, insecure_seed=seed, **shared, **parameters) for seed in range(3)]
    assert np.mean([(model.fit(federation).predict(X) - y) ** 2 for model in models]) < 0.5 * np.mean(y**2)


def test_noise_is_taken_off_the_products() -> None:
    parts, X, y = problem_of(2, 8, records=20_000)
    model = lasso(epsilon=30.0, alpha=0.0, fit_intercept=False, insecure_seed=0)
    found = model.fit(sv.Federation.by_columns(parts, y)).coef_
    plain = LinearRegression(fit_intercept=False).fit(X, y).coef_
    # with the noise of Z left in the products the weights would come out near a third of this
    assert 0.7 < found @ plain / (plain @ plain) < 1.1


def test_small_budgets_do_no_harm() -> None:
    parts, X, y = problem_of(4, 40)
    model = lasso(epsilon=0.5, radius=1.0, insecure_seed=0).fit(sv.Federation.by_columns(parts, y))
    assert np.mean((model.predict(X) - y) ** 2) < 1.2 * np.mean(y**2)
    assert np.abs(model.coef_).sum() <= 1.0 + 1e-9


def test_bad_input_is_told() -> None:
    parts, X, y = problem_of(2, 6)
    federation = sv.Federation.by_columns(parts, y)
    with pytest.raises(
        InputError, match="epsilon=inf: solver='one-shot' has no form without noise; solvers that have: "
    ):
        lasso(epsilon=math.inf).fit(federation)
    for size in (0, 2.5, "many"):
        with pytest.raises(InputError, match=r"sketch_size=.* must be a whole number"):
            by_name("one-shot", sketch_size=size)
    with pytest.raises(InputError, match=r"sketch='gaussian' must be one of 'count', 'rademacher'"):
        by_name("one-shot", sketch="gaussian")
    with pytest.raises(InputError, match="'rounds' is no option of solver='one-shot'"):
        by_name("one-shot", rounds=3)
    with pytest.raises(InputError, match=r"delta=0.6 must be from 0.0 to 0.5"):
        plan_for(calibration="paper", delta=0.6)
    with pytest.raises(InputError, match="does not serve data in one place"):
        lasso().fit(X, y)
    with pytest.raises(InputError, match="row_norm=None"):
        lasso(entry_bound=None).fit(federation)
    logistic = sv.PrivateLogisticRegression(entry_bound=1.0, classes=(-1, 1), solver="one-shot")
    with pytest.raises(InputError, match="needs the squared loss, not 'logistic'"):
        logistic.fit(sv.Federation.by_columns(parts, np.sign(y)))
    assert algorithms.mismatch("one-shot", losses.get("squared"), "columns") is None
    with pytest.raises(InputError, match=r"too many for one message; .*take sketch_size=8 or less"):
        plan_for(records=2_000_000)


def test_plans_that_are_not_its_own_are_refused() -> None:
    plan = plan_for()
    with pytest.raises(LeakError, match="were not prepared"):
        sketch_of(plan.model_copy(update={"layout": "rows"}), "party-0")
    rows, labels = plan.releases
    short = rows.model_copy(update={"charged_zero_out": 0.5})
    with pytest.raises(LeakError, match="more sensitive"):
        short.check(sketch_of(plan, "party-1"), RECORDS)
    labels.check(SharedLabels(plan, FLOAT), RECORDS)
    for update in (
        {"releases": (short, labels)},
        {"layout": "rows"},
        {"releases": (rows.model_copy(update={"rate": 0.5}), labels)},
    ):
        assert proposed(plan.model_copy(update=update)).kind == "refuse"


def proposed(plan: Plan, text: str = "", **options: Any) -> Frame:
    """What a party says to a plan, or to a text that says it is the plan."""
    party = Party("party-0", np.zeros((RECORDS, COLUMNS[0])), np.zeros(RECORDS), **options)
    digest = hashlib.sha256(text.encode()).digest() if text else plan.digest
    return decode(handle(party, encode(Frame("plan", 1, digest, text=text or plan.to_json()))).data)


@pytest.mark.parametrize(
    "lie",
    [
        {"sketch_size": 0},
        {"sketch_size": 2.5},
        {"sketch": "gaussian"},
        {"sketch": 1},
        {"damping": math.inf},
        {"damping": -1.0},
        {"surprise": 1},
    ],
)
def test_numbers_that_no_design_makes_are_refused(lie: dict[str, Any]) -> None:
    plan = plan_for()
    assert proposed(plan).kind == "accept"
    fields = json.loads(plan.to_json())
    fields["numbers"] |= lie
    answer = proposed(plan, json.dumps(fields, sort_keys=True, separators=(",", ":")))
    assert answer.kind == "refuse"
    assert f"numbers.{next(iter(lie))}" in answer.text or next(iter(lie)) in answer.text


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_plan_with_300_rounds_is_charged_300_times(relation: Relation, tmp_path: Path) -> None:
    plan = plan_for(relation=relation)
    rows, labels = plan.releases
    forged = plan.model_copy(update={"releases": (rows.times(300), labels)})
    for name in plan.names:
        for priced in (events_of, world_events_of):
            (one, label), (many, same) = priced(plan, relation, name), priced(forged, relation, name)
            assert isinstance(one, Gaussian)
            assert isinstance(many, Gaussian)
            assert label == same
            each = rows.charged(relation) / rows.std
            assert math.isclose(one.mu**2, len(COLUMNS) * each**2, rel_tol=1e-12)
            assert math.isclose(many.mu**2, 300 * len(COLUMNS) * each**2, rel_tol=1e-12)
    # so a ledger that can pay for the plan cannot pay for the forged one, of which all 300 rounds would be served
    account = sv.Ledger.create(tmp_path / "ledger.db").open("anna", 1.01, 1e-4, relation=relation)
    answer = proposed(forged, account=account)
    assert answer.kind == "refuse"
    assert account.balance().spent == 0.0
    assert proposed(plan, account=account).kind == "accept"


def test_a_blank_record_has_no_label_though_a_plan_has_classes() -> None:
    """A plan may name classes for a squared loss: a null row's label must not count as one of them."""
    plan = plan_for().model_copy(update={"classes": (-1, 1)})
    party = plan.label_party_name
    recipe = plan.part(party).preparation
    X, y = np.zeros((plan.records, recipe.features)), np.full(plan.records, -1.0)
    blank = X.copy()
    blank[0] = math.nan
    query = query_of(plan, "labels", party)
    values = [at(query, Block.prepare(rows, y, recipe)) for rows in (X, blank)]
    assert values[1][0] == 0.0
    assert np.linalg.norm(values[0] - values[1]) <= query.sensitivity("zero-out")


# --- the published form ---------------------------------------------------------------------------------------------

BOUNDS = Bounds.declare(entry_bound=(2.0, 0.5, 1.0, 1.0, 0.25, *[1.0] * 40, 3.0), label_bound=1.0)


@pytest.mark.parametrize(
    ("epsilon", "delta", "size"), [(1.0, 1e-5, 16), (0.1, 1e-6, 4), (4.0, 1e-3, 8), (10.0, 0.05, 1), (0.5, 0.5, 40)]
)
def test_published_noise_as_printed(epsilon: float, delta: float, size: int) -> None:
    """sigma_k = theta_k sqrt(2 (log(1/(2 delta)) + epsilon)) / epsilon, theta_k the widest range of the party.

    For a whole record mu^2 = sum_k (Delta_k / sigma_k)^2 + (1 / sigma_y)^2, Delta_k the norm or the sum of the bounds.
    """
    plan = plan_for(bounds=BOUNDS, calibration="paper", epsilon=epsilon, delta=delta, options={"sketch_size": size})
    noise = math.sqrt(2 * (math.log(1 / (2 * delta)) + epsilon)) / epsilon
    unit, mu2 = plan.preparation.unit, (1 / (2 * noise)) ** 2
    for party, columns in zip(plan.names, ([2.0, 0.5, 1.0, 1.0, 0.25], [1.0] * 40, [3.0]), strict=True):
        query = UnclippedRowSketch(plan, party, size)
        theta = 2 * max(columns)
        sigma = plan.release("rows").std * query.norm * unit
        assert sigma == pytest.approx(theta * noise, rel=1e-12)
        longest = np.linalg.norm(columns) if size >= len(columns) else sum(columns)
        assert query.bound == pytest.approx(longest / theta, rel=1e-8)
        mu2 += (longest / sigma) ** 2
    assert plan.release("labels").std == pytest.approx(2 * noise, rel=1e-12)
    (total,) = {math.hypot(*(event.mu for event in events_of(plan, "zero-out", name))) for name in plan.names}
    assert total == pytest.approx(math.sqrt(mu2), rel=2e-3)  # the grid is charged too
    assert plan.claimed_epsilon == epsilon
    assert epsilons_of(plan)["world"] > epsilon or size == 40


@pytest.mark.parametrize("sketch", ["count", "rademacher"])
def test_published_rows_are_sketched_and_not_clipped(sketch: str) -> None:
    plan = plan_for(bounds=BOUNDS, calibration="paper", options={"sketch": sketch, "sketch_size": 1})
    query = UnclippedRowSketch(plan, plan.names[1], 1)
    matrix = query.matrix(plan) * query.norm
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1.0)
    signs = np.sign(matrix[:, 0])
    X = np.vstack([signs, -signs, np.full(40, math.nan)])
    plan = plan.model_copy(update={"parties": tuple((name, 3) for name in plan.names)})
    found = at(query, prepared(plan, plan.names[1], X, np.zeros(3)), plan=plan).reshape(3, 1)
    np.testing.assert_allclose(found[0], signs @ query.matrix(plan) / plan.preparation.unit)
    assert np.linalg.norm(found[0]) == pytest.approx(query.bound)  # it is attained
    assert not found[2].any()


def test_the_published_form_fits_what_was_sent() -> None:
    parts, X, y = problem_of(2, 6)
    fitted = lasso(epsilon=1e4, alpha=1e-4, calibration="paper").fit(sv.Federation.by_columns(parts, y))
    best = Lasso(alpha=1e-4).fit(X, y)
    np.testing.assert_allclose(fitted.coef_, best.coef_, atol=0.02)
    assert fitted.privacy_.claimed_epsilon == 1e4
