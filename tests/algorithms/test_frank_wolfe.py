"""Frank-Wolfe in one place: what one record moves, exact sums, the ball, the law of choices, what they cost."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from scipy.optimize import minimize

import sottovoce as sv
from covering import pairwise
from plans import small_problem
from sottovoce import algorithms
from sottovoce.algorithms.frank_wolfe.central import MOST_DEFAULT, ROOM, GradientOnPath, Path
from sottovoce.data.block import Block, exact_bits
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LeakError
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.gate import Gate
from sottovoce.gate.query import Round
from sottovoce.penalties.sets import SparsePoint
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import rho_for
from sottovoce.privacy.events import Selection
from sottovoce.privacy.mechanisms import SeededRandomness, largest_signed
from sottovoce.solvers import by_name
from support import at, epsilons_of, events_of, handle, neighbour, plan_of, query_of, world_events_of

RECORDS, FEATURES = 60, 5
LOSSES = {
    "squared": Named(name="squared"),
    "huber": Named(name="huber", parameters={"threshold": 0.4}),
    "smoothed_hinge": Named(name="smoothed_hinge", parameters={"smoothing": 0.5}),
    "logistic": Named(name="logistic"),
}
KINDS = {"dense": np.asarray, "sparse": sp.csr_matrix}
FALSE_ALARM = 1e-7


def fw_plan(
    radius: float = 1.0, *, loss: str = "logistic", coin: str = "coin", options: Any = None, **fields: Any
) -> Plan:
    numbers = loss in ("squared", "huber")
    declared: dict[str, Any] = {
        "regulariser": Named(name="l1_ball", parameters={"radius": radius}),
        "parties": (("data", RECORDS),),
        "features": FEATURES,
        "bounds": Bounds.declare(entry_bound=2.0, row_norm=3.0, label_bound=1.5 if numbers else None),
        "epsilon": 2.0,
    }
    return plan_of(small_problem(LOSSES[loss], **declared | fields), "frank-wolfe", coin=coin, **(options or {}))


def rows_for(plan: Plan, seed: int = 0, count: int = RECORDS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = 1.2 * rng.standard_normal((count, FEATURES))
    y = rng.standard_normal(count) if plan.classes is None else rng.choice([-1, 1], count)
    return X, y


def history(plan: Plan, length: int, seed: int = 0) -> np.ndarray:
    """Atoms, some of them again and again, and now and then none."""
    rng = np.random.default_rng(seed)
    few = rng.integers(1, plan.dimension + 1, 4) * rng.choice([-1, 1], 4)
    many = rng.integers(-plan.dimension, plan.dimension + 1, length)
    return np.where(rng.random(length) < 0.6, rng.choice(few, length), many).astype(np.int64)


def path_of(plan: Plan) -> Path:
    form: Any = algorithms.of(plan)
    return form.path(plan)  # type: ignore[no-any-return]


def remembered(plan: Plan, block: Block) -> GradientOnPath:
    return algorithms.of(plan).remember(plan, block)  # type: ignore[no-any-return]


def scores_of(plan: Plan, block: Block, atoms: np.ndarray, memory: GradientOnPath | None = None) -> np.ndarray:
    return at(query_of(plan, "atom"), block, plan=plan, memory=memory or remembered(plan, block), atoms=atoms)


def moved_by(plan: Plan, relation: Any) -> float:
    return float(query_of(plan, "atom").sensitivity(relation))


# --- what one record moves ----------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "one round": {"options": {"rounds": 1}},
    "no cut": {"options": {"slope_bound": 100.0, "rounds": 12}},
    "tiny cut": {"options": {"slope_bound": 1e-90, "rounds": 12}},
    "huge cut": {"options": {"slope_bound": 1e90, "rounds": 12}},
    "huge ball": {"radius": 1e90, "options": {"slope_bound": 3.0, "rounds": 12}},
    "huge ball and cut": {"radius": 1e90, "options": {"slope_bound": 1e95, "rounds": 12}},
    "tiny ball": {"radius": 1e-90, "options": {"rounds": 12}},
    "many records": {"parties": (("data", 2**31 - 1),), "options": {"rounds": 12}},
    "without an intercept": {"fit_intercept": False, "options": {"rounds": 12}},
    "as published": {"calibration": "paper", "options": {"rounds": 12}},
}


@pairwise(relation=["zero-out", "replace-one"], setting=SETTINGS, loss=LOSSES)
def test_a_record_moves_every_score_by_its_bound_at_most(loss: str, setting: str, relation: Any) -> None:
    plan = fw_plan(loss=loss, **SETTINGS[setting])
    limit, furthest = moved_by(plan, relation), 0.0
    for seed in range(6):
        X, y = rows_for(plan, seed)
        X *= 10.0 ** (seed % 3)
        atoms = history(plan, seed * (plan.rounds - 1) // 5, seed)
        for kind in KINDS.values():
            there = [(X, y), neighbour(X, y, relation, seed)]
            values = [scores_of(plan, Block.prepare(kind(A), b, plan.preparation), atoms) for A, b in there]
            furthest = max(furthest, float(np.abs(values[0] - values[1]).max()))
    assert furthest <= limit / ROOM * (1 + 2.0**-22)  # the room is for what else there is
    if setting in ("usual", "one round", "tiny cut", "without an intercept"):
        assert furthest > 0.1 * limit


@pairwise(kind=KINDS, relation=["zero-out", "replace-one"], loss=["squared", "logistic"])
def test_a_canary_attains_the_bound(loss: str, relation: Any, kind: str) -> None:
    """At the start and later on, when G_t has grown with the point."""
    plan = fw_plan(
        loss=loss,
        bounds=Bounds.declare(entry_bound=2.0, label_bound=1.5 if loss == "squared" else None),
        fit_intercept=False,
        options={"rounds": 30, "slope_bound": 5.0},
    )
    for length in (0, 12):
        atoms = np.tile([1, -2, 3, 1, 1, -2], length // 6)  # the last two features are not in the point
        path = path_of(plan)
        for code in atoms:
            path.move(int(code))
        X, y = rows_for(plan)
        X[0] = [-2.0, 2.0, -2.0, 2.0, 2.0]  # as far as the point allows, on the wrong side
        y[0] = 1.5 if loss == "squared" else 1
        A = X.copy()
        A[0] = math.nan if relation == "zero-out" else X[0] * [1.0, 1.0, 1.0, -1.0, -1.0]
        blocks = [Block.prepare(KINDS[kind](rows), y, plan.preparation) for rows in (X, A)]
        one, other = (scores_of(plan, block, atoms) for block in blocks)
        reached = np.abs(one - other).max() / moved_by(plan, relation)
        assert 0.99 < reached <= 1.0
        growth = remembered(plan, blocks[0]).follow(blocks[0], atoms)[1]
        assert growth > (0.9 if length == 0 else 1.2) * (1.0 if loss == "squared" else 0.5)


def test_null_rows_odd_labels_and_absurd_entries_add_nothing_more() -> None:
    plan = fw_plan(loss="squared", options={"rounds": 12})
    X, y = rows_for(plan)
    atoms = history(plan, 8)
    base = scores_of(plan, Block.prepare(X, y, plan.preparation), atoms)
    limit = moved_by(plan, "replace-one")
    for row in (np.full(FEATURES, math.inf), np.full(FEATURES, 1e308), np.full(FEATURES, -1e-320), np.zeros(FEATURES)):
        for label in (math.nan, math.inf, -1e308, 0.0):
            A, b = X.copy(), y.copy()
            A[7], b[7] = row, label
            found = scores_of(plan, Block.prepare(A, b, plan.preparation), atoms)
            assert np.isfinite(found).all()
            assert np.abs(found - base).max() <= limit
    null = Block.prepare(np.full_like(X, math.nan), y, plan.preparation)
    np.testing.assert_array_equal(scores_of(plan, null, atoms), 0.0)


# --- sums ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [60, 100_000, 2**31 - 1])
@pytest.mark.parametrize("loss", LOSSES)
def test_sums_are_exact_in_whatever_order_they_were_made(loss: str, records: int) -> None:
    plan = fw_plan(loss=loss, parties=(("data", records),), options={"rounds": 40, "slope_bound": 1.7})
    X, y = rows_for(plan)
    X[np.random.default_rng(1).random(X.shape) < 0.5] = 0.0
    X[3] = math.nan
    atoms = history(plan, 40)
    blocks = [Block.prepare(kind(X), y, plan.preparation) for kind in KINDS.values()]
    entries = blocks[0].rows
    assert entries.dtype == (np.float32 if exact_bits(records) <= 24 else np.float64)
    memories = [remembered(plan, block) for block in blocks]
    for length in (0, 1, 2, 5, 6, 17, 40):
        sums, bounds = zip(
            *(memory.follow(block, atoms[:length]) for memory, block in zip(memories, blocks, strict=True)), strict=True
        )
        fresh, bound = remembered(plan, blocks[1]).follow(blocks[1], atoms[:length])
        np.testing.assert_array_equal(sums[0], sums[1])
        np.testing.assert_array_equal(sums[0], fresh)
        assert bounds == (bound, bound)
        slopes = memories[1].slopes
        np.testing.assert_array_equal(memories[0].slopes, slopes)
        assert np.abs(slopes).max() <= bound
        whole = [[int(x * 2.0**60) for x in column] for column in entries.T.astype(np.float64)]
        terms = [int(slope * 2.0**60) for slope in slopes]
        exact = [sum(a * b for a, b in zip(column, terms, strict=True)) for column in whole]
        assert [int(value * 2.0**60) << 60 for value in fresh] == exact


def test_a_record_below_the_bits_of_float32_is_summed_in_float64() -> None:
    plan = fw_plan(loss="squared", parties=(("data", 2),), options={"rounds": 5})
    X, y = rows_for(plan, count=2)
    blocks = [Block.prepare(kind(X), y, plan.preparation) for kind in KINDS.values()]
    assert blocks[0].bits == 26
    assert blocks[0].rows.dtype == blocks[1].rows.dtype == np.float64
    atoms = history(plan, 5)
    np.testing.assert_array_equal(*(scores_of(plan, block, atoms) for block in blocks))


def test_another_history_starts_again() -> None:
    plan = fw_plan(options={"rounds": 20})
    X, y = rows_for(plan)
    block = Block.prepare(sp.csr_matrix(X), y, plan.preparation)
    memory = remembered(plan, block)
    one, other = history(plan, 15, 1), history(plan, 9, 2)
    for atoms in (one[:7], one, other, one[:3], one[:0], other):
        np.testing.assert_array_equal(scores_of(plan, block, atoms, memory), scores_of(plan, block, atoms))


def test_rows_prepared_otherwise_are_refused() -> None:
    plan = fw_plan(options={"rounds": 3})
    X, y = rows_for(plan)
    block = Block.prepare(X, y, plan.preparation)
    with pytest.raises(LeakError, match="not prepared for steps on the l1 ball"):
        remembered(plan, block.take(np.arange(5)))
    with pytest.raises(LeakError, match="not prepared for steps on the l1 ball"):
        remembered(plan, Block.prepare(X, y, dataclasses.replace(plan.preparation, layout="columns")))


# --- the point ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", ["tight", "paper"])
@pytest.mark.parametrize("radius", [1e-90, 0.3, 1.0, 1e90])
def test_the_point_stays_in_the_ball_and_all_follow_the_same(radius: float, calibration: Any) -> None:
    plan = fw_plan(radius, calibration=calibration, options={"rounds": 200})
    X, y = rows_for(plan)
    block = Block.prepare(X, y, plan.preparation)
    memory, path = remembered(plan, block), path_of(plan)
    atoms = history(plan, 200)
    for t, code in enumerate(atoms):
        path.move(int(code))
        assert path.point.norm <= plan.numbers.radius * (1 + 1e-12)
        if t % 50 == 49:
            memory.follow(block, atoms[: t + 1])
            point = path.point.dense(plan.dimension)
            np.testing.assert_array_equal(memory.path.point.dense(plan.dimension), point)
            np.testing.assert_allclose(memory.scores, block.rows @ point, rtol=0, atol=1e-12 * plan.numbers.radius)
    assert path.point.norm > 0.5 * plan.numbers.radius


def test_what_an_atom_displaces_is_in_the_mean_a_share_of_all() -> None:
    rng = np.random.default_rng(0)
    shares = (np.arange(500) + 0.5) / 500
    for size, step in itertools.product((1, 3, 40), (1e-3, 0.11, 1.0)):
        values = rng.standard_normal(size) * 10.0 ** rng.uniform(-3, 0, size)
        mean, changed = np.zeros(size), 0
        for share in shares:
            point = SparsePoint(float(np.abs(values).sum()))
            point.places, point.values = list(range(size)), values.copy()
            changes = dict(point.exchange(size + 1, step, float(share)))
            assert changes.pop(size) == step * point.radius
            taken = -np.array([changes.get(k, 0.0) for k in range(size)])
            assert (taken * np.sign(values) >= 0.0).all()
            assert (np.abs(taken) <= np.abs(values)).all()
            assert np.abs(taken).sum() == pytest.approx(step * np.abs(values).sum(), rel=1e-12)
            mean += taken / len(shares)
            changed += len(changes)
        assert changed / len(shares) <= min(size, 16.5 + step * size)
        np.testing.assert_allclose(mean, step * values, rtol=0, atol=1e-3 * np.abs(values).sum())


def test_coordinator_and_holder_agree_in_a_fit(regression: Any) -> None:
    X, y = regression
    model = sv.PrivateLasso(
        epsilon=4.0,
        entry_bound=1.0,
        label_bound=1.0,
        radius=1.0,
        solver=by_name("frank-wolfe", rounds=60),
        insecure_seed=1,
    ).fit(sv.Federation.central(X, y, record=True))
    said = [int(message.payload[0]) for message in model.transcript_ if message.name == "atom"]
    assert len(said) == 60
    path = path_of(model.plan_)
    for code in said:
        path.move(code)
    np.testing.assert_array_equal(model.plan_.preparation.unprepare(path.point.dense(X.shape[1] + 1))[0], model.coef_)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_without_noise_the_error_falls_as_stated(loss: str) -> None:
    """h_T <= exp(-reach / 2) h_0 + sum a_t^2 C / 2 in the mean over the coins."""
    for seed, (radius, rounds) in enumerate([(0.5, 10), (1.0, 30), (3.0, 100), (0.2, 2)]):
        errors = []
        for coin in range(8):
            plan = fw_plan(
                radius,
                loss=loss,
                coin=f"coin {coin}",
                fit_intercept=False,
                options={"rounds": rounds, "slope_bound": 9.0},
            )
            X, y = rows_for(plan, seed)
            block = Block.prepare(X, y, plan.preparation)
            memory, atoms = remembered(plan, block), np.zeros(0, dtype=np.int64)
            for _ in range(rounds):
                atoms = np.append(atoms, largest_signed(scores_of(plan, block, atoms, memory)))
            memory.follow(block, atoms)
            values = [
                plan.scaled_loss.value(scores, block.labels).mean() for scores in (memory.scores, 0 * block.labels)
            ]
            errors.append(values)
        best = least(plan, block)
        (last, start), steps = np.mean(errors, axis=0) - best, [path_of(plan).step(t) for t in range(rounds)]
        assert sum(steps) == pytest.approx(plan.numbers.total_step)
        curvature = 4 * plan.numbers.radius**2 * plan.scaled_loss.curvature_bound
        bound = math.exp(-plan.numbers.total_step / 2) * start + sum(a**2 for a in steps) * curvature / 2
        assert -1e-7 <= last <= bound
        assert last < 0.6 * start or rounds == 2


def least(plan: Plan, block: Block) -> float:
    """The least loss in the ball, as a problem in the positive and the negative parts."""
    d, radius, rows = plan.dimension, plan.numbers.radius, block.rows.astype(np.float64)

    def value(both: np.ndarray) -> tuple[float, np.ndarray]:
        scores = rows @ (both[:d] - both[d:])
        slopes = rows.T @ plan.scaled_loss.derivative(scores, block.labels) / len(block)
        return float(plan.scaled_loss.value(scores, block.labels).mean()), np.concatenate([slopes, -slopes])

    inside = {"type": "ineq", "fun": lambda both: radius - both.sum(), "jac": lambda both: -np.ones(2 * d)}
    found = minimize(
        value, np.zeros(2 * d), jac=True, bounds=[(0, None)] * 2 * d, constraints=[inside], method="SLSQP", tol=1e-13
    )
    assert found.success
    return float(found.fun)


# --- noise and cost -----------------------------------------------------------------------------------------------


def chosen(plan: Plan, block: Block, size: int) -> np.ndarray:
    """How often each atom was chosen at w = 0: 1, ..., d, then -1, ..., -d."""
    memory, counts = remembered(plan, block), np.zeros(2 * plan.dimension, dtype=int)
    for seed in range(size // plan.rounds):
        gate = Gate(plan, SeededRandomness(seed))
        for t in range(plan.rounds):
            stayed = Round(plan, t, {"atoms": np.zeros(t, dtype=np.int64)}, block, memory)
            (code,) = gate.release(query_of(plan, "atom"), stayed).arrays["grid"]
            counts[code - 1 if code > 0 else plan.dimension - code - 1] += 1
    return counts


def problem_of_choice(calibration: Any) -> tuple[Plan, Block, np.ndarray]:
    plan = fw_plan(loss="squared", epsilon=8.0, calibration=calibration, options={"rounds": 100})
    X, y = rows_for(plan)
    block = Block.prepare(X, y + X[:, 0], plan.preparation)
    scores = scores_of(plan, block, np.zeros(0, dtype=np.int64))
    return plan, block, np.concatenate([scores, -scores])


@pytest.mark.slow
def test_choices_have_their_law_and_half_the_noise_is_noticed() -> None:
    size = 8000
    plan, block, scores = problem_of_choice("tight")
    release, counts = plan.release("atom"), chosen(plan, block, size)

    def accepts(std: float) -> bool:
        weights = np.exp(np.rint(scores / release.step) * release.step / std)
        return bool(stats.chisquare(counts, weights / weights.sum() * size).pvalue > FALSE_ALARM)

    assert accepts(release.std)
    assert not accepts(release.std / 2)
    assert not accepts(release.std * 2)


@pytest.mark.slow
def test_the_published_choices_have_laplace_noise_of_the_printed_scale() -> None:
    """Against 200,000 maxima of the scores + Laplace noise; both samples are random."""
    size, more = 4000, 200_000
    plan, block, scores = problem_of_choice("paper")
    counts, rng = chosen(plan, block, size), np.random.default_rng(5)
    scale = math.sqrt(8 * 100 * math.log(1e5)) / 8.0
    assert plan.release("atom").std == scale

    def accepts(scale: float) -> bool:
        winners = np.argmax(scores + rng.laplace(scale=scale, size=(more, scores.size)), axis=1)
        table = np.array([counts, np.bincount(winners, minlength=scores.size)])
        return bool(stats.chi2_contingency(table).pvalue > FALSE_ALARM)

    assert accepts(scale)
    assert not accepts(scale / 2)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("rounds", [1, 12, 500])
def test_rounds_add_to_the_budget(relation: Any, rounds: int) -> None:
    plan = fw_plan(relation=relation, options={"rounds": rounds})
    release = plan.release("atom")
    (event,) = events_of(plan, relation)
    assert isinstance(event, Selection)
    change = (1.0 if relation == "zero-out" else 2.0) * (1 + 2.0**-20) + release.step
    assert event.rho == pytest.approx(rounds * (change / release.std) ** 2 / 2, rel=1e-12)
    assert event.rho == pytest.approx(rho_for(2.0, 0.99e-5), rel=1e-9)
    assert epsilon_of([event], 0.99e-5, relation) <= 2.0
    assert world_events_of(plan, relation) == (event,)


def test_neighbours_choose_alike_up_to_what_is_charged() -> None:
    plan = fw_plan(options={"rounds": 4})
    release = plan.release("atom")
    X, y = rows_for(plan)
    widest = 0.0
    for seed in range(20):
        logs = []
        for rows, labels in ((X, y), neighbour(X, y, "zero-out", seed)):
            scores = scores_of(plan, Block.prepare(rows, labels, plan.preparation), np.zeros(0, dtype=np.int64))
            grid = np.rint(np.concatenate([scores, -scores]) / release.step) * release.step / release.std
            logs.append(grid - np.logaddexp.reduce(grid))
        widest = max(widest, float(np.ptp(logs[0] - logs[1])))
    assert 0.5 * release.charged_zero_out / release.std < widest <= 2 * release.charged_zero_out / release.std


# --- the published calibration ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_published_noise_is_as_printed(loss: str) -> None:
    """L radius sqrt(8 T log(1/delta)) / (n epsilon) on <atom, gradient of the mean>, and steps 2 / (t + 2)."""
    plan = fw_plan(0.7, loss=loss, calibration="paper", epsilon=1.5, options={"rounds": 9})
    X, y = rows_for(plan)
    block = Block.prepare(X, y, plan.preparation)
    radius, n = plan.numbers.radius, 60
    lipschitz = 1 + radius if loss == "squared" else 1.0
    for length in (0, 5):
        atoms = history(plan, length)
        memory = remembered(plan, block)
        scores = scores_of(plan, block, atoms, memory)
        gradient = block.rows.T.astype(float) @ plan.scaled_loss.derivative(memory.scores, block.labels) / n
        unit = (radius * gradient / -scores)[np.abs(scores) > 1.0]  # of a score, in <atom, gradient>
        np.testing.assert_allclose(unit, lipschitz * radius / n, rtol=1e-3)
        printed = lipschitz * radius * math.sqrt(8 * 9 * math.log(1e5)) / (n * 1.5)
        np.testing.assert_allclose(plan.release("atom").std * unit, printed, rtol=1e-3)
    assert [path_of(plan).step(t) for t in range(3)] == [1.0, 2 / 3, 0.5]


@pytest.mark.parametrize(
    ("loss", "radius", "epsilon", "rounds"),
    [
        ("squared", 0.7, 1.5, 9),
        ("squared", 3.0, 0.1, 100),
        ("squared", 1.0, 10.0, 1),
        ("logistic", 0.5, 1.0, 30),
        ("logistic", 4.0, 4.0, 1000),
    ],
)
def test_the_published_scale_exactly(loss: str, radius: float, epsilon: float, rounds: int) -> None:
    """In units of a score, L radius / n: sqrt(8 T log(1/delta)) / epsilon."""
    plan = fw_plan(radius, loss=loss, calibration="paper", epsilon=epsilon, options={"rounds": rounds})
    printed = math.sqrt(8 * rounds * math.log(1 / plan.delta)) / epsilon
    assert plan.release("atom").std == pytest.approx(printed, rel=1e-12)
    assert plan.numbers.slope_bound == (1 + plan.numbers.radius if loss == "squared" else 1.0)


def test_the_published_number_of_rounds() -> None:
    bounds = Bounds.declare(entry_bound=1.0, label_bound=1.0)
    given = {"calibration": "paper", "bounds": bounds, "parties": (("data", 1000),), "epsilon": 0.6}
    squared = fw_plan(2.0, loss="squared", **given)
    assert squared.rounds == math.ceil((4 * 2.0**2 * 1000 * 0.6 / (3.0 * 2.0)) ** (2 / 3))
    logistic = fw_plan(2.0, loss="logistic", **given | {"bounds": Bounds.declare(entry_bound=1.0)})
    assert logistic.rounds == math.ceil((2.0**2 * 1000 * 0.6 / 2.0) ** (2 / 3))


@pytest.mark.parametrize(
    ("records", "claimed", "zero_out", "replace_one"),
    [
        (1000, 0.1, 0.074, 0.154),
        (1000, 1.0, 0.855, 1.80),
        (1000, 10.0, 11.03, 26.1),
        (10_000, 1.0, 0.885, 1.84),
        (100_000, 1.0, 0.903, 1.86),
    ],
)
def test_the_published_claim_and_what_it_is(records: int, claimed: float, zero_out: float, replace_one: float) -> None:
    for relation, expected in (("zero-out", zero_out), ("replace-one", replace_one)):
        found = []
        for rounds in (3, 300):  # rho = (Delta epsilon)^2 / (4 log(1 / delta)) whatever they are
            plan = fw_plan(
                loss="squared",
                calibration="paper",
                parties=(("data", records),),
                epsilon=claimed,
                delta=records**-2.0,
                relation=relation,
                options={"rounds": rounds},
            )
            assert plan.claimed_epsilon == claimed
            found.append(epsilons_of(plan, relation)["coordinator"])
        assert found == pytest.approx([expected] * 2, rel=5e-3)


# --- the fit ------------------------------------------------------------------------------------------------------


def test_few_of_many_features_are_found_and_named() -> None:
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], (3000, 200))
    y = np.clip(X[:, [3, 70, 150]] @ [0.5, -0.3, 0.2] + 0.05 * rng.standard_normal(3000), -1, 1)
    model = sv.PrivateLasso(
        epsilon=2.0, entry_bound=1.0, label_bound=1.0, radius=1.0, solver="frank-wolfe", insecure_seed=0
    ).fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < 0.1 * np.var(y)
    assert list(model.selected_features_)[:3] == ["x3", "x70", "x150"]
    assert model.communication_.uplink.keys() == {"indices"}


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_tight_beats_published_on_a_small_problem(relation: Any) -> None:
    rng = np.random.default_rng(1)
    X = rng.choice([-1.0, 1.0], (2000, 40))
    y = np.clip(X[:, :4] @ [0.4, -0.3, 0.2, 0.1] + 0.05 * rng.standard_normal(2000), -1, 1)
    found = {}
    for calibration in ("tight", "paper"):
        model = sv.PrivateLasso(
            epsilon=1.0,
            entry_bound=1.0,
            label_bound=1.0,
            radius=1.0,
            solver="frank-wolfe",
            calibration=calibration,
            relation=relation,
            fit_intercept=False,
            insecure_seed=2,
        )
        found[calibration] = np.mean((model.fit(X, y).predict(X) - y) ** 2)
    assert found["tight"] < 0.5 * found["paper"]


def test_a_radius_of_a_logistic_regression_is_of_the_l1_ball(classification: Any) -> None:
    given: dict[str, Any] = {"epsilon": 2.0, "row_norm": 1.0, "classes": (-1, 1), "radius": 3.0, "insecure_seed": 0}
    model = sv.PrivateLogisticRegression(**given, solver=by_name("frank-wolfe", rounds=5)).fit(*classification)
    assert model.plan_.regulariser.name == "l1_ball"
    assert np.abs(model.coef_).sum() <= 3.0 * (1 + 1e-9)
    assert model.plan_.rounds == model.n_iter_ == 5
    other = sv.PrivateLogisticRegression(**given, solver=by_name("gradient", rounds=2)).fit(*classification)
    assert other.plan_.regulariser.name == "l2_ball"


def test_rounds_by_the_default_rule() -> None:
    small, large = fw_plan(), fw_plan(parties=(("data", 10**6),))
    strict = fw_plan(parties=(("data", 10**6),), relation="replace-one")
    assert small.rounds >= 3
    assert large.rounds == pytest.approx(math.sqrt(2) * strict.rounds, rel=0.01)
    assert fw_plan(1e90).rounds == MOST_DEFAULT
    assert fw_plan(1e-90).rounds == 3
    assert fw_plan(loss="huber").numbers.slope_bound == pytest.approx(0.4 / 1.5)


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"options": {"rounds": 0}}, "rounds=0 must be a whole number"),
        ({"options": {"slope_bound": -1.0}}, "slope_bound=-1.0 must be a number"),
        ({"options": {"slope_bound": math.nan}}, "slope_bound=nan must be a number"),
        ({"options": {"cap": 3}}, "cap=3 means nothing to solver='frank-wolfe' here; it takes rounds, slope_bound"),
        ({"regulariser": Named(name="l1", parameters={"alpha": 0.1})}, "needs the l1 ball, not 'l1': pass radius"),
        ({"regulariser": Named(name="none")}, "needs the l1 ball, not 'none': pass radius"),
        ({"radius": 1e101}, r"radius=1e\+101 is .* in units of the declared bounds"),
        ({"radius": 1e-101}, "radius=1e-101 is .* in units of the declared bounds"),
        ({"calibration": "paper", "radius": 1e200}, r"radius=1e\+200 is .* in units of the declared bounds"),
    ],
)
def test_bad_input_is_told(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        fw_plan(**fields)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, "one"])
def test_a_radius_that_is_none_is_told(regression: Any, radius: Any) -> None:
    model = sv.PrivateLasso(entry_bound=1.0, label_bound=1.0, solver="frank-wolfe", radius=radius)
    with pytest.raises(InputError, match="radius="):
        model.fit(*regression)


def test_what_does_not_fit_is_told_with_what_does(regression: Any, classification: Any) -> None:
    X, y = regression
    given: dict[str, Any] = {"entry_bound": 1.0, "solver": "frank-wolfe"}
    with pytest.raises(InputError, match=r"needs the l1 ball, not 'l1': pass radius .* to PrivateLasso"):
        sv.PrivateLasso(**given, label_bound=1.0, alpha=0.1).fit(X, y)
    with pytest.raises(InputError, match=r"does not serve data split by rows; solvers that fit: newton, gradient, sgd"):
        sv.PrivateLasso(**given, label_bound=1.0, radius=1.0).fit(
            sv.Federation.by_rows([(X[:9], y[:9]), (X[9:], y[9:])])
        )
    with pytest.raises(InputError, match=r"needs a smooth loss and 'hinge' is not; solvers that fit: "):
        sv.PrivateLinearSVC(**given, loss="hinge", radius=1.0).fit(*classification)


def test_choices_so_many_that_the_sampler_shows_are_refused() -> None:
    with pytest.raises(InputError, match=r"so many choices among 200003 atoms leave an error of"):
        fw_plan(epsilon=25.0, delta=1e-9, features=100_000, options={"rounds": 1000})


def send(party: Party, plan: Plan, kind: str, query: str = "", number: int = 0, **arrays: Any) -> Frame:
    text = plan.to_json() if kind == "plan" else ""
    return decode(handle(party, encode(Frame(kind, 1, plan.digest, number, query, arrays, text))).data)


def propose(party: Party, plan: Plan, **changes: Any) -> Frame:
    """Have a party consider a plan with other fields, which nobody else has checked."""
    fields = json.loads(plan.to_json()) | changes
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    return decode(handle(party, encode(Frame("plan", 1, digest, text=text))).data)


def party_for(plan: Plan) -> Party:
    return Party("data", *rows_for(plan), randomness=SeededRandomness(0))


@pytest.mark.parametrize("calibration", ["tight", "paper"])
@pytest.mark.parametrize(
    "changed",
    [
        {"slope_bound": math.nan},
        {"slope_bound": 0.0},
        {"slope_bound": math.inf},
        {"slope_bound": -1.0},
        {"radius": -1.0},
        {"radius": math.inf},
        {"radius": math.nan},
        {"total_step": math.nan},
        {"total_step": -1.0},
        {"total_step": math.inf},
        {"another": 1.0},
    ],
)
def test_a_plan_with_absurd_numbers_is_refused(changed: dict[str, float], calibration: Any) -> None:
    plan = fw_plan(calibration=calibration, options={"rounds": 5})
    numbers = plan.numbers.model_dump() | changed
    (name,) = changed
    answer = propose(party_for(plan), plan, numbers=numbers)
    assert answer.kind == "refuse"
    assert name in answer.text
    with pytest.raises(ValueError, match=name):
        plan.model_copy(update={"numbers": numbers})


CRAFTED: dict[str, Any] = {
    "no numbers": lambda plan: {"numbers": {}},
    "numbers of no form": lambda plan: {"numbers": []},
    "no steps": lambda plan: {"numbers": {k: v for k, v in plan.numbers.model_dump().items() if k != "total_step"}},
    "another form": lambda plan: {"form": "published"},
    "no form": lambda plan: {"form": "secret"},
    "another layout": lambda plan: {"layout": "rows"},
    "columns": lambda plan: {"layout": "columns"},
    "rounds after the last": lambda plan: {"releases": [release(plan, count=plan.rounds + 1)]},
    "later rounds": lambda plan: {"releases": [release(plan, first=1)]},
    "split by rows": lambda plan: {"split": "rows"},
    "hinge": lambda plan: {"loss": {"name": "hinge", "parameters": {}}},
    "sampled": lambda plan: {"releases": [release(plan, rate=0.1)]},
    "batches": lambda plan: {"releases": [release(plan, batches=3)]},
    "charged for less": lambda plan: {"releases": [release(plan, charged_zero_out=0.5)]},
    "no noise": lambda plan: {"releases": [release(plan, std=0.0)]},
    "another name": lambda plan: {"releases": [release(plan, query="gradient")]},
}


def release(plan: Plan, **changed: Any) -> dict[str, Any]:
    return plan.releases[0].model_dump(mode="json") | changed


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_plan_is_refused(name: str) -> None:
    plan = fw_plan(options={"rounds": 5})
    party = party_for(plan)
    assert send(party, plan, "plan").kind == "accept"
    assert propose(party, plan, **CRAFTED[name](plan)).kind == "refuse"


@pytest.mark.parametrize("mechanism", ["gaussian", "noisy-max", "kept", "derived"])
def test_another_mechanism_than_was_charged_releases_nothing(mechanism: str) -> None:
    plan = fw_plan(options={"rounds": 5})
    crafted = release(plan, mechanism=mechanism) | ({"count": 1} if mechanism == "kept" else {})
    party = party_for(plan)
    assert propose(party, plan, releases=[crafted]).kind == "refuse"
    assert send(party, plan, "ask", "atom", atoms=np.zeros(0, dtype=np.int64)).kind == "unknown-plan"
    published = fw_plan(options={"rounds": 5}, calibration="paper")
    assert propose(party, published, releases=[release(published, mechanism="selection")]).kind == "refuse"


def test_a_far_reach_is_cut_and_moves_no_score_further() -> None:
    plan = fw_plan(options={"rounds": 12})
    numbers = plan.numbers.model_dump() | {"total_step": 1e100}
    far = plan.model_copy(update={"numbers": numbers})
    assert path_of(far).step(0) == path_of(far).step(11) == 1.0
    X, y = rows_for(plan)
    atoms = history(plan, 11)
    one, other = (
        scores_of(far, Block.prepare(*data, far.preparation), atoms)
        for data in ((X, y), neighbour(X, y, "zero-out", 1))
    )
    assert 0.0 < np.abs(one - other).max() <= moved_by(far, "zero-out")
