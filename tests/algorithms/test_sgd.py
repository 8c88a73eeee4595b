from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms, penalties
from sottovoce.algorithms.gradient import ball_radius, start_in
from sottovoce.algorithms.sgd import named_parties, named_records
from sottovoce.data.bounds import Bounds
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.calibration import visible_uses_epsilon
from sottovoce.privacy.events import Gaussian, PoissonGaussian
from sottovoce.solvers import by_name
from support import epsilons_of, events_of, plan_of, query_of


def plan_for(calibration: Any = "tight", **options: Any) -> Plan:
    problem = Problem(
        loss=Named(name="logistic"),
        regulariser=Named(name="none"),
        split="rows",
        parties=(("north", 700), ("south", 300)),
        features=4,
        bounds=Bounds(row_norm=1.0),
        epsilon=1.0,
        delta=1e-10,
        calibration=calibration,
        relation="replace-one",
        classes=(-1, 1),
    )
    return plan_of(problem, "sgd", run="test", coin="test", **options)


def test_one_party_a_round_is_accounted_by_its_realised_calls() -> None:
    plan = plan_for(schedule="one-party", rounds=400)
    counts = {}
    for place, (name, _) in enumerate(plan.parties):
        (event,) = events_of(plan, "zero-out", name)
        assert isinstance(event, PoissonGaussian)
        counts[name] = event.rounds
        answered_by = query_of(plan, "gradient", name).answered_by
        turns = [t for t in range(-3, plan.rounds + 3) if answered_by(plan, name, t)]
        assert len(turns) == event.rounds == int((named_parties(plan) == place).sum())
    assert sum(counts.values()) == 400
    assert 220 < counts["north"] < 340  # 280 expected, sd 9
    epsilons = epsilons_of(plan, "zero-out")
    assert epsilons["world"] == epsilons["coordinator"]


def test_one_party_a_round_learns(classification: Any) -> None:
    X, y = classification
    parts = [(X[:900], y[:900]), (X[900:], y[900:])]
    model = sv.PrivateLogisticRegression(
        epsilon=8.0, row_norm=1.0, solver=by_name("sgd", schedule="one-party"), insecure_seed=1
    ).fit(sv.Federation.by_rows(parts, record=True))
    assert model.score(X, y) > 0.75
    senders = [message.sender for message in model.transcript_ if message.name == "gradient"]
    assert len(senders) == model.n_iter_
    assert set(senders) == {"party-1", "party-2"}


@pytest.mark.slow
def test_published_sgd1_names_records_and_is_not_amplified() -> None:
    plan = plan_for("paper")
    assert plan.rounds == 1000**2
    release = plan.release("record")
    assert release.std == pytest.approx(4 * 1000 * math.log(1.25e6 / 1e-10))
    true = epsilons_of(plan, "replace-one")
    assert plan.claimed_epsilon == 1.0
    for name in ("north", "south"):
        (event,) = events_of(plan, "replace-one", name)
        assert isinstance(event, Gaussian)
    owners, inside = named_records(plan)
    uses = np.bincount(inside[owners == 0], minlength=700)
    assert events_of(plan, "replace-one", "north")[0].mu == pytest.approx(
        release.charged("replace-one") * math.sqrt(uses.max()) / release.std
    )
    most = max(uses.max(), np.bincount(inside[owners == 1]).max())
    worst = release.charged("replace-one") * math.sqrt(most) / release.std
    # A report tells the world what the coin made of the cost, so the world's is no smaller.
    assert true["world"] == true["coordinator"] == true["parties"] == gaussian_epsilon(worst, 0.99 * plan.delta)
    averaged = visible_uses_epsilon(release.charged("replace-one") / release.std, 1e-3, 10**6, 0.99 * plan.delta)
    assert true["coordinator"] > 1.02 * averaged


@pytest.mark.slow
def test_published_sgd1_is_priced_for_the_coin_that_it_has() -> None:
    """A coin may name one record in every round; the coordinator knows, and so must the report."""
    plan = plan_for("paper", rounds=6).model_copy(update={"parties": (("north", 1), ("south", 1))})
    coins = (plan.model_copy(update={"coin": str(number)}) for number in range(500))
    one_sided = next(each for each in coins if len(set(named_records(each)[0])) == 1)
    release = one_sided.release("record")
    always = gaussian_epsilon(release.charged("zero-out") * math.sqrt(6) / release.std, 0.99 * plan.delta)
    assert epsilons_of(one_sided, "zero-out")["coordinator"] == always
    half = visible_uses_epsilon(release.charged("zero-out") / release.std, 0.5, 6, 0.99 * plan.delta)
    assert always > 1.1 * half


@pytest.mark.slow
def test_published_sgd1_runs() -> None:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((40, 2))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X[:, 0] > 0, 1, -1)
    model = sv.PrivateLogisticRegression(
        epsilon=0.9, delta=1e-6, row_norm=1.0, solver="sgd", calibration="paper", insecure_seed=0
    ).fit(X, y)
    assert model.n_iter_ == 1600
    assert model.privacy_.claimed_epsilon == 0.9
    assert math.isfinite(model.privacy_.epsilon)


def test_published_sgd2_is_over_noised(classification: Any) -> None:
    federation, solver = sv.Federation.central(*classification), by_name("gradient", rounds=50)
    model = sv.PrivateLogisticRegression(
        epsilon=1.0, delta=1e-5, row_norm=1.0, solver=solver, calibration="paper", insecure_seed=0
    ).fit(federation)
    assert model.privacy_.claimed_epsilon == 1.0
    assert model.privacy_.epsilon < 0.2
    tight = sv.PrivateLogisticRegression(epsilon=1.0, delta=1e-5, row_norm=1.0, solver=solver)
    ratio = model.plan_.release("gradient").std / tight.plan(federation).release("gradient").std
    assert 5.0 < ratio < 6.6


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_published_sgd1_serves_the_record_that_the_coin_names_and_no_other(relation: Any) -> None:
    plan = plan_for("paper", rounds=300).model_copy(update={"relation": relation})
    owners, inside = named_records(plan)
    assert len(owners) == 300
    for place, name in enumerate(plan.names):
        query = query_of(plan, "record", name)
        assert query.uses(300) == np.bincount(inside[owners == place]).max()
        for t in range(300):
            assert query.answered_by(plan, name, t) == (owners[t] == place)
        told = {"weights": np.zeros(plan.dimension)}
        assert query.objection(7, told | {"index": inside[7:8]}) is None
        for wrong in (inside[7:8] + 1, inside[7:9], inside[7:7], inside[7:8].astype(float), np.array([-1])):
            assert query.objection(7, told | {"index": wrong}) is not None
        assert query.objection(7, told) is not None
        assert query.objection(7, {"index": inside[7:8]}) is not None
        assert query.objection(300, told | {"index": inside[:0]}) is not None


def printed_plan(solver: str, regulariser: Named, *, relation: Any = "zero-out", **fields: Any) -> Plan:
    options = {name: fields.pop(name) for name in ("rounds", "slope_bound", "step") if name in fields}
    declared: dict[str, Any] = {
        "loss": Named(name="logistic"),
        "regulariser": regulariser,
        "split": "rows",
        "parties": (("north", 30), ("south", 20)),
        "features": 3,
        "bounds": Bounds(row_norm=1.0),
        "epsilon": 0.5,
        "delta": 1e-7,
        "calibration": "paper",
        "relation": relation,
        "classes": (-1, 1),
    }
    return plan_of(Problem(**declared | fields), solver, run="test", coin="coin", **options)


NONE, RIDGE = Named(name="none"), Named(name="l2", parameters={"alpha": 0.25})
SETTINGS = [
    (0.5, 1e-7, 10, 0.25),
    (0.9, 1e-6, 33, 1.0),
    (0.1, 1e-10, 50, 0.5),
    (0.25, 1e-8, 7, 0.8),
    (0.7, 3e-9, 24, 0.1),
]


@pytest.mark.parametrize(("epsilon", "delta", "rounds", "slope"), SETTINGS)
@pytest.mark.parametrize(("relation", "away"), [("zero-out", 1), ("replace-one", 2)])
def test_the_noise_is_the_printed_one(
    epsilon: float, delta: float, rounds: int, slope: float, relation: Any, away: int
) -> None:
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "slope_bound": slope, "relation": relation}
    n = 50
    first = printed_plan("sgd", NONE, **given)
    assert first.rounds == n * n
    assert first.claimed_epsilon == epsilon
    variance = 16 * slope**2 * n**2 * math.log(1.25 * n**2 / delta) ** 2 / epsilon**2  # eq. 3
    assert first.release("record").std == pytest.approx(math.sqrt(variance), rel=1e-12)
    second = printed_plan("gradient", NONE, rounds=rounds, **given)
    share = epsilon / math.sqrt(rounds * math.log(1 / delta))  # Theorem 3, step 4
    lemma = math.sqrt(2 * math.log(1.25 / (delta / rounds))) * away * slope / share  # Lemma 2
    assert second.release("gradient").std == pytest.approx(lemma, rel=1e-12)


def ball_of(radius: float, name: str = "l2_ball") -> Named:
    return Named(name=name, parameters={"radius": radius})


def project(w: Any, radius: float, name: str, scale: float) -> Any:
    """Onto the user's ball, in the user's units."""
    return penalties.get_penalty(name, radius=radius).project(w * scale) / scale  # type: ignore[attr-defined]


@pytest.mark.parametrize("solver", ["sgd", "gradient"])
@pytest.mark.parametrize(
    ("regulariser", "intercept"),
    [(NONE, False), (RIDGE, False), (RIDGE, True), (ball_of(2.0), False), (ball_of(0.5, "l1_ball"), False)],
)
def test_the_text_is_the_printed_one(solver: str, regulariser: Named, intercept: bool) -> None:
    """Answers of any size go in; what comes out is the last iterate of the printed recursion."""
    plan = printed_plan(solver, regulariser, rounds=40, fit_intercept=intercept)
    n, p, scale = plan.records, plan.dimension, float(plan.scaled_regulariser.scale)
    ridge, name = plan.scaled_regulariser.ridge, regulariser.name
    radius = regulariser.parameters.get("radius", math.nan)
    text, rng = algorithms.of(plan).coordinate(plan), np.random.default_rng(0)
    theta = next(text).arrays["weights"]
    assert np.any(theta) == (solver == "sgd" or "ball" in name)
    penalised = np.arange(p) < plan.features
    for t in range(1, 41):
        answers = {"north": 1e3 * rng.standard_normal(p), "south": 1e3 * rng.standard_normal(p)}
        if solver == "sgd":
            del answers["south"]
            diameter = (2 * radius / scale if "ball" in name else 20.0) * math.sqrt(1 + intercept)
            eta = diameter / math.sqrt(t * (n**2 + p * plan.release("record").std ** 2))  # eq. 4
            eta = 1 / (ridge * n * t) if ridge and not intercept else eta  # Theorem 2.2
        else:
            eta = min(plan.numbers.step, 1 / (ridge * t) if ridge else math.inf) / n
        theta = theta - eta * (np.asarray(sum(answers.values())) + n * (ridge or 0.0) * penalised * theta)
        if "ball" in name:
            theta = project(theta, radius, name, scale)
        elif solver == "sgd":
            theta = np.append(theta[:3] * min(1, 10 / np.linalg.norm(theta[:3])), np.clip(theta[3:], -10, 10))
        assert reply(text, answers) == pytest.approx(theta, rel=1e-12)


def reply(text: Any, answers: Any) -> Any:
    """The weights that are told next, or at the end returned."""
    try:
        return text.send(answers).arrays["weights"]
    except StopIteration as ended:
        return ended.value


def test_the_start_is_uniform_in_the_set() -> None:
    """Of 400 coins: within the set, and its radius to the power p is uniform (5.5 standard errors: below 1e-7)."""
    for regulariser, norm in ((ball_of(2.0), 2), (ball_of(2.0, "l1_ball"), 1)):
        plan = printed_plan("gradient", regulariser, rounds=1)
        radius = ball_radius(plan, math.inf)
        starts = [start_in(plan.model_copy(update={"coin": str(coin)}), radius) for coin in range(400)]
        shares = np.array([(np.linalg.norm(start[:3], norm) / radius) ** 3 for start in starts])
        assert shares.max() <= 1
        for found, mean in ((shares, 0.5), (np.array(starts)[:, 0] > 0, 0.5), (np.abs(starts)[:, 3] / radius, 0.5)):
            assert abs(found.mean() - mean) < 5.5 * 0.5 / math.sqrt(400)
        assert abs(np.mean(np.sqrt(shares)) - 0.5) > 5.5 * 0.5 / math.sqrt(400)  # the control


def test_outside_the_stated_domain_is_told() -> None:
    for given in ({"epsilon": 1.0}, {"delta": 1e-4}):
        with pytest.warns(UserWarning, match=r"outside the domain that the paper states: epsilon below 1 and delta"):
            printed_plan("sgd", NONE, rounds=3, **given)
    with pytest.warns(UserWarning, match=r"outside the domain .* Take less than 5.68"):
        printed_plan("gradient", NONE, rounds=2, epsilon=6.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        printed_plan("sgd", NONE, rounds=3)
        printed_plan("gradient", NONE, rounds=3)
