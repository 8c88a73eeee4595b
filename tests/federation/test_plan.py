from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covering import pairwise
from plans import PLANS, plan_for
from sottovoce import losses, penalties
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.formats import PLAN
from sottovoce.gate.query import Query
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.plan.plan import Numbers, Plan
from sottovoce.plan.problem import Named
from sottovoce.plan.release import ROUNDING, Release, grid_step
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import Gaussian, PoissonGaussian, Selection, Unbounded, inside
from sottovoce.queries.sums import GradientSum, GramMatrix
from support import epsilons_of, events_of, query_of

MakePlan = Callable[..., Plan]

VARIANTS: dict[str, dict[str, Any]] = {
    "gradient": {"algorithm": "gradient"},
    "newton": {"algorithm": "newton"},
    "sgd": {"algorithm": "sgd", "options": {"rounds": 20, "rate": 0.2}},
    "one party": {"algorithm": "sgd", "options": {"rounds": 20, "rate": 0.2, "schedule": "one-party"}},
    "paper": {"algorithm": "sgd", "calibration": "paper", "options": {"rounds": 50}},
    "paper gradient": {"algorithm": "gradient", "calibration": "paper"},
    "no privacy": {"algorithm": "newton", "epsilon": math.inf},
    "cd": {"algorithm": "cd", "options": {"inner": 12}},
    "cd, known squares": {"algorithm": "cd", "options": {"inner": 12, "curvatures": [0.1, 0.2, 0.3]}},
    "greedy": {"algorithm": "greedy-cd", "bounds": Bounds.declare(entry_bound=[0.5, 1 / 3, 2.0])},
    "scd": {"algorithm": "scd", "regulariser": Named(name="l2", parameters={"alpha": 0.01})},
    "paper scd": {
        "algorithm": "scd",
        "calibration": "paper",
        "regulariser": Named(name="l2", parameters={"alpha": 0.01}),
        "options": {"rounds": 20},
    },
    "lots": {"algorithm": "scd-sequential", "regulariser": Named(name="l2", parameters={"alpha": 0.01})},
    "texts": {"classes": ("no", "yes"), "regulariser": Named(name="l2", parameters={"alpha": 0.1})},
    "regression": {
        "loss": Named(name="huber", parameters={"threshold": 0.1}),
        "classes": None,
        "bounds": Bounds.declare(feature_ranges=([0, 1, 2], [1, 2.5, 1e9]), label_bound=(1 / 3, 7)),
        "relation": "replace-one",
    },
}


@pytest.fixture(params=VARIANTS)
def plan(request: pytest.FixtureRequest, small_plan: MakePlan) -> Plan:
    return small_plan(**VARIANTS[request.param])


def test_a_plan_comes_back_from_its_text(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.to_json() == plan.to_json()
    assert again.model_dump() == plan.model_dump()
    assert again.digest == hashlib.sha256(plan.to_json().encode()).digest()
    assert again.classes is None or list(map(type, again.classes)) == list(map(type, plan.classes))  # type: ignore[arg-type]


def test_an_infinite_budget_survives_the_text(small_plan: MakePlan) -> None:
    again = Plan.from_json(small_plan("newton", epsilon=math.inf).to_json())
    assert again.epsilon == math.inf
    assert not again.private
    assert {release.charged_zero_out for release in again.releases} >= {math.inf}


def test_a_plan_survives_pickling_with_its_digest(plan: Plan) -> None:
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.digest == plan.digest


def test_the_text_does_not_depend_on_the_order_of_its_fields(plan: Plan) -> None:
    fields = json.loads(plan.to_json())
    shuffled = json.dumps(dict(reversed(fields.items())), indent=3)
    assert Plan.from_json(shuffled).digest == plan.digest


def test_the_digest_is_the_same_in_another_process(small_plan: MakePlan) -> None:
    plan = small_plan("newton")
    program = "import sys; from sottovoce.plan.plan import Plan; print(Plan.from_json(sys.stdin.read()).digest.hex())"
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            input=plan.to_json(),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
        assert run.stdout.strip() == plan.digest.hex()


def test_every_field_is_in_the_digest(small_plan: MakePlan) -> None:
    plan = small_plan()
    release = plan.releases[0].model_dump()
    changes: list[dict[str, Any]] = [
        {"run": "another"},
        {"coin": "another"},
        {"algorithm": "another"},
        {"form": "another"},
        {"calibration": "paper"},
        {"split": "central"},
        {"parties": (("anna", 41), ("ben", 60))},
        {"features": 4},
        {"fit_intercept": False},
        {"classes": (0, 2)},
        {"class_weight": (0.5, 1.0)},
        {"most_records": 3, "protects": "person"},
        {"loss": {"name": "hinge"}},
        {"regulariser": {"name": "l2", "parameters": {"alpha": 0.1}}},
        {"bounds": {"row_norm": 2.0}},
        {"epsilon": 1.5},
        {"delta": 1e-6},
        {"relation": "replace-one"},
        {"rounds": 6},
        {"numbers": plan.numbers.changed(slope_bound=2.0).model_dump()},
        {"claimed_epsilon": 1.0},
        {"layout": "columns"},
        {"columns": (1, 2)},
        {"norms": (0.6, 0.8)},
        {"labels": "held"},
        {"label_party": 1},
        {"releases": (release | {"mechanism": "kept", "count": 1},)},
        {"models": "kept"},
        {"protects": "feature"},
        {"about": {"analyst": "anna"}},
        {"about": {"note": "anna"}},
        {"within": {"name": "0" * 32, "mu": 0.5}},
        {"aggregation": {"colluding": 1}},
        {"aggregation": {"colluding": 1}, "keys": (("anna", "0" * 64), ("ben", "1" * 64))},
        {"aggregation": {"colluding": 1}, "keys": (("anna", "0" * 64), ("ben", "2" * 64))},
        {"aggregation": {"colluding": 1, "colluding_with_dealer": 1}},
        *({"releases": (release | {name: value},)} for name, value in _RELEASE_CHANGES.items()),
    ]
    assert {key for change in changes for key in change} == set(Plan.model_fields) - {"format", "people"}
    digests = {plan.model_copy(update=change).digest for change in changes}
    assert len(digests) == len(changes)
    assert plan.digest not in digests
    assert set(Release.model_fields) == {*_RELEASE_CHANGES, "batches"}
    alone = plan.model_copy(update={"parties": (("anna", 40),)})
    assert alone.model_copy(update={"releases": (release | {"batches": 2},)}).digest != alone.digest
    pairs: dict[str, Any] = {"labels": "held", "most_records": 2, "aggregation": SecureAggregation(colluding=1)}
    counted = audit_plan("whitened", "columns", 2, rounds=2, people=6, **pairs)
    assert counted.model_copy(update={"people": 5}).digest != counted.digest
    for people in (counted.records + 1, 0):
        with pytest.raises(ValidationError, match="people"):
            counted.model_copy(update={"people": people})


_RELEASE_CHANGES = {
    "query": "gram",
    "first": 1,
    "count": 6,
    "std": 1e-3,
    "step": 0.5,
    "rate": 0.5,
    "dropped": 1,
    "charged_zero_out": 1.0,
    "charged_replace_one": 1.0,
    "mechanism": "selection",
}


@pytest.mark.parametrize("algorithm", ["gradient", "newton", "sgd"])
def test_what_most_plans_have_alike_may_be_left_out_of_a_text(algorithm: str, small_plan: MakePlan) -> None:
    plan = small_plan(algorithm)
    fields = json.loads(plan.to_json())
    for name in ("layout", "columns", "norms", "labels", "label_party", "models", "protects", "format"):
        del fields[name]
    for release in fields["releases"]:
        del release["mechanism"], release["batches"]
    short = Plan.from_json(json.dumps(fields))
    assert short == plan
    assert short.layout == "rows"
    assert {release.mechanism for release in short.releases} == {"gaussian"}


@pytest.mark.parametrize("algorithm", ["gradient", "newton", "sgd"])
def test_the_numbers_of_a_plan_are_those_of_its_form(algorithm: str, small_plan: MakePlan) -> None:
    plan = small_plan(algorithm)
    assert type(Plan.from_json(plan.to_json()).numbers) is type(plan.numbers) is not Numbers
    own = plan.numbers.model_dump()
    for number in own:
        for wrong in ("one", None, [1.0], {"one": 1.0}):
            with pytest.raises(ValidationError, match=number):
                plan.model_copy(update={"numbers": own | {number: wrong}})
        with pytest.raises(ValidationError, match=number):
            plan.model_copy(update={"numbers": {name: value for name, value in own.items() if name != number}})
    with pytest.raises(ValidationError, match="surprise"):
        plan.model_copy(update={"numbers": own | {"surprise": 1.0}})
    with pytest.raises(ValidationError):
        plan.numbers.slope_bound = 3.0


def test_a_changed_copy_is_another_plan(small_plan: MakePlan) -> None:
    plan = small_plan()
    assert plan.records == 100
    other = plan.model_copy(update={"parties": (("anna", 40), ("ben", 61))})
    assert other != plan
    assert other.records == 101
    assert other.digest == Plan.from_json(other.to_json()).digest
    assert plan.model_copy() == plan
    with pytest.raises(ValidationError):
        plan.model_copy(update={"delta": 7.0})


def test_a_plan_is_frozen(small_plan: MakePlan) -> None:
    plan = small_plan()
    with pytest.raises(ValidationError):
        plan.epsilon = 5.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        plan.releases[0].std = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        plan.releases[0] = plan.releases[0]  # type: ignore[index]


def test_plans_are_equal_only_to_plans(small_plan: MakePlan) -> None:
    assert small_plan() == small_plan()
    assert small_plan() != small_plan(run="another")
    assert small_plan() != small_plan().digest
    assert len({small_plan(), small_plan(), small_plan("newton")}) == 2


BAD: dict[str, dict[str, Any]] = {
    "an unknown field": {"secret": 1},
    "no rounds": {"rounds": 0},
    "negative rounds": {"rounds": -5},
    "more rounds than a frame can name": {"rounds": 2**31},
    "no features": {"features": 0},
    "nobody in a party": {"parties": (("anna", 0), ("ben", 60))},
    "less than nobody": {"parties": (("anna", 40), ("ben", -60))},
    "no epsilon": {"epsilon": 0.0},
    "NaN epsilon": {"epsilon": math.nan},
    "negative epsilon": {"epsilon": -1.0},
    "NaN delta": {"delta": math.nan},
    "delta 1": {"delta": 1.0},
    "delta 0": {"delta": 0.0},
    "an unknown relation": {"relation": "add-remove"},
    "an unknown split": {"split": "diagonal"},
    "vectors for classes": {"classes": ([0, 1], [1, 0])},
    "three classes of numbers": {"classes": (0, 1, 2), "loss": {"name": "squared"}},
    "three classes by an unknown loss": {"classes": (0, 1, 2), "loss": {"name": "nothing"}},
    "a weight above 1": {"class_weight": (1.0, 2.0)},
    "a weight of nothing": {"class_weight": (1.0, 0.0)},
    "one weight": {"class_weight": (1.0,)},
    "weights of numbers": {"class_weight": (0.5, 1.0), "loss": {"name": "squared"}},
    "a NaN bound": {"bounds": {"row_norm": math.nan}},
    "a NaN among bounds": {"bounds": {"entry_bound": [1.0, math.nan, 1.0]}},
    "an unknown layout": {"layout": "diagonal"},
    "a number that is a text": {"numbers": {"slope_bound": "one", "step": 1.0}},
    "numbers in a list": {"numbers": [["slope_bound", 1.0], ["step", 1.0]]},
    "an unknown holder of labels": {"label_party": -1},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_what_is_no_plan_is_refused(change: dict[str, Any], small_plan: MakePlan) -> None:
    with pytest.raises(ValidationError):
        small_plan().model_copy(update=change)
    text = json.dumps(json.loads(small_plan().to_json()) | change)
    with pytest.raises(ValidationError):
        Plan.from_json(text)


@pytest.mark.parametrize("number", [PLAN.number - 1, PLAN.number + 1, None, True])
def test_a_plan_of_another_format_is_refused(number: object, small_plan: MakePlan) -> None:
    with pytest.raises(RefusedError, match="reads plans of format"):
        small_plan().model_copy(update={"format": number})
    text = json.dumps(json.loads(small_plan().to_json()) | {"format": number})
    with pytest.raises(RefusedError, match="reads plans of format"):
        Plan.from_json(text)


@pytest.mark.parametrize("field", ["parties", "releases"])
def test_no_name_is_given_twice(field: str, small_plan: MakePlan) -> None:
    plan = small_plan("newton")
    with pytest.raises(RefusedError, match="twice"):
        plan.model_copy(update={field: getattr(plan, field)[:1] * 2})


def test_a_plan_has_a_party(small_plan: MakePlan) -> None:
    with pytest.raises(RefusedError, match="no party"):
        small_plan().model_copy(update={"parties": ()})


@pytest.mark.parametrize(
    "change",
    [
        {"std": math.nan},
        {"std": -1.0},
        {"std": math.inf},
        {"step": 0.0},
        {"step": -0.5},
        {"step": math.nan},
        {"step": math.inf},
        {"first": -1},
        {"first": 2**31},
        {"count": 0},
        {"count": -3},
        {"count": 2**31},
        {"mechanism": "laplace"},
        {"batches": 0},
        {"batches": -1},
        {"batches": 65},
        {"batches": 1.5},
    ],
)
def test_what_is_no_release_is_refused(change: dict[str, Any]) -> None:
    release = Release.at_mu(GramMatrix(3), 0, 1, 1.0, "zero-out")
    with pytest.raises(ValidationError):
        Release.model_validate(release.model_dump() | change)


# The budget: what is released costs what was asked for.

QUERIES = [GradientSum(1, 1.0, losses.get("logistic")), GradientSum(5000, 0.25, losses.get("sigmoid")), GramMatrix(90)]


@pytest.mark.parametrize("query", QUERIES, ids=["1", "5000", "gram"])
@given(mu=st.floats(1e-4, 20), count=st.integers(1, 10**5), relation=st.sampled_from(["zero-out", "replace-one"]))
def test_the_grid_adds_little_and_is_charged(query: Any, mu: float, count: int, relation: Any) -> None:
    release = Release.at_mu(query, 0, count, mu, relation)
    extra = release.step * math.sqrt(query.rounding_entries)
    assert math.frexp(release.step)[0] == 0.5
    assert release.charged(relation) == query.sensitivity(relation) + extra
    event = release.event(relation)
    assert isinstance(event, Gaussian)
    assert event.mu == pytest.approx(mu, rel=1e-12)
    # 2^-10 of the sensitivity, or 2^-24 of the noise where that is more
    assert extra <= max(
        ROUNDING * query.sensitivity("zero-out"), release.std * 2.0**-24 * math.sqrt(query.rounding_entries)
    )
    # the largest such power of two
    assert 2 * extra > ROUNDING * query.sensitivity("zero-out")
    assert query.sensitivity(relation) * math.sqrt(count) / mu <= release.step * 2.0**25
    release.check(query, 10**6)


def test_usual_grids_add_at_most_one_part_in_a_thousand() -> None:
    for dimension in (2, 50, 1000):
        query = GradientSum(dimension, 1.0, losses.get("logistic"))
        for mu in (0.03, 0.27, 2.0):
            std = query.sensitivity("zero-out") / mu
            assert grid_step(query, std) * math.sqrt(dimension) <= 2.0**-10


@pairwise(algorithm=["gradient", "newton"], relation=["zero-out", "replace-one"], epsilon=[0.1, 1.0, 10.0])
def test_the_releases_spend_the_whole_budget_and_no_more(
    algorithm: str, relation: Any, epsilon: float, small_plan: MakePlan
) -> None:
    plan = small_plan(algorithm, relation=relation, epsilon=epsilon)
    events = events_of(plan, relation, "anna")
    mu = math.sqrt(sum(event.mu**2 for event in events if isinstance(event, Gaussian)))
    assert len(events) == len(plan.releases)
    assert mu == pytest.approx(mu_for(epsilon, inside(plan.delta)), rel=1e-9)
    assert epsilon_of(events, plan.delta, relation) <= epsilon


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_sampled_releases_stay_within_the_budget(relation: Any, small_plan: MakePlan) -> None:
    plan = small_plan("sgd", relation=relation, options={"rounds": 50, "rate": 0.1})
    events = events_of(plan, relation, "anna")
    assert events == (PoissonGaussian(0.1, plan.releases[0].std / plan.releases[0].charged_zero_out, 50),)
    assert 0.99 < epsilon_of(events, inside(plan.delta), relation) <= 1.0


RIDGE: dict[str, Any] = {"regulariser": Named(name="l2", parameters={"alpha": 0.01})}
WHOLE: dict[str, dict[str, Any]] = {
    "cd": {"options": {"inner": 12}},
    "cd, one party": {"algorithm": "cd", "split": "central", "parties": (("anna", 100),)},
    "cd, replace-one": {"algorithm": "cd", "relation": "replace-one"},
    "greedy-cd": {"options": {"rounds": 6}},
    "greedy-cd, replace-one": {"algorithm": "greedy-cd", "relation": "replace-one"},
    "scd": RIDGE,
    "scd-sequential": RIDGE | {"options": {"lot": 7}},
    "scd-primal": {"split": "central", "parties": (("anna", 100),)},
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_every_solver_spends_its_whole_budget_and_no_more(name: str, epsilon: float, small_plan: MakePlan) -> None:
    plan = small_plan(**{"algorithm": name, "epsilon": epsilon} | WHOLE[name])
    events = events_of(plan, plan.relation, "anna")
    spent = epsilon_of(events, inside(plan.delta), plan.relation)
    assert 0.97 * epsilon < spent <= epsilon * (1 + 1e-9)


def test_a_choice_costs_what_a_gaussian_of_its_spread_costs_in_zcdp() -> None:
    query = GradientSum(1, 1.0, losses.get("logistic"))
    for relation in ("zero-out", "replace-one"):
        release = Release.at_mu(query, 3, 4, 0.6, relation, "selection")  # type: ignore[arg-type]
        plain = Release.at_mu(query, 3, 4, 0.6, relation)  # type: ignore[arg-type]
        assert (release.std, release.step) == (plain.std, plain.step)
        event = release.event(relation)  # type: ignore[arg-type]
        assert isinstance(event, Selection)
        assert event.rho == pytest.approx(0.6**2 / 2)
        # the choices of several parties carry each its own noise: nothing is divided
        assert release.event(relation, noises=9) == event  # type: ignore[arg-type]
        once = release.event(relation, count=1)  # type: ignore[arg-type]
        assert isinstance(once, Selection)
        assert once.rho == pytest.approx(event.rho / 4)


@pytest.mark.parametrize(("records", "mu"), [(20_000, 0.3), (10**7, 0.3), (100, 0.3), (20_000, 1e4)])
def test_bits_are_dropped_that_noise_hides(records: int, mu: float) -> None:
    release = Release.at_mu(GramMatrix(2000), 0, 1, mu, "zero-out")
    short = release.narrowed(records)
    assert short.model_copy(update={"dropped": 0}) == release
    assert (short.dropped > 0) == (release.reach(records) >= 2**31 and mu < 1)
    if short.dropped:
        assert 2**30 < short.reach(records) <= 2**31
        assert short.scale <= short.std / 256
    assert short.event("zero-out") == release.event("zero-out")


def test_the_scale_of_a_release_is_a_step_or_a_place() -> None:
    query = GradientSum(1, 1.0, losses.get("logistic"))
    assert Release.at_mu(query, 0, 1, 0.5, "zero-out").scale == Release.at_mu(query, 0, 1, 0.5, "zero-out").step
    assert Release.at_mu(query, 0, 1, 0.5, "zero-out", "selection").scale == 1.0


def test_a_release_may_be_made_more_often() -> None:
    release = Release.at_mu(GramMatrix(3), 2, 1, 0.5, "zero-out")
    often = release.times(40)
    assert (often.count, often.first, often.std) == (40, 2, release.std)
    event = often.event("zero-out")
    assert isinstance(event, Gaussian)
    assert event.mu == pytest.approx(0.5 * math.sqrt(40))
    for count in (0, -1, 2**31):
        with pytest.raises(ValidationError):
            release.times(count)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("rate", [None, 0.3, 1.0])
@pytest.mark.parametrize("mechanism", ["gaussian", "selection"])
def test_batches_cost_what_as_many_releases_cost(mechanism: Any, rate: float | None, relation: Any) -> None:
    query = GramMatrix(3)
    for count, batches in ((1, 1), (1, 12), (3, 4), (12, 1), (5, 64)):
        release, single = (
            Release.of(query, 0, times, 40.0, 2.0**-10, rate, mechanism, batches=each)
            for times, each in ((count, batches), (count * batches, 1))
        )
        assert release.total == single.total == single.count == count * batches
        assert release.event(relation) == single.event(relation)
        assert release.event(relation, count=1) == single.event(relation, count=batches)
        assert release.event(relation, noises=4) == single.event(relation, noises=4)
        assert release.times(7).batches == batches


@pytest.mark.parametrize("mechanism", ["gaussian", "selection"])
def test_a_release_without_noise_has_no_price(mechanism: Any) -> None:
    release = Release.at_mu(GramMatrix(3), 0, 1, math.inf, "zero-out", mechanism)
    assert release.std == 0.0
    assert isinstance(release.event("zero-out"), Unbounded)


def test_the_sum_of_equal_noises_costs_less() -> None:
    query = GramMatrix(3)
    release = Release.at_mu(query, 0, 4, 1.0, "zero-out")
    for event in (release.event("zero-out", noises=4), release.event("zero-out", count=1)):
        assert isinstance(event, Gaussian)
        assert event.mu == pytest.approx(0.5)
    sampled = Release.of(query, 0, 4, 10.0, 2.0**-10, 0.5)
    summed = sampled.event("zero-out", noises=4)
    assert isinstance(summed, PoissonGaussian)
    assert summed.noise_multiplier == pytest.approx(2 * 10 / sampled.charged_zero_out)


def _changed(query: Query, **change: Any) -> Release:
    return Release.model_validate(Release.at_mu(query, 0, 5, 0.5, "zero-out").model_dump() | change)


@pytest.mark.parametrize(
    "change", [{"charged_zero_out": 1.0}, {"charged_replace_one": 2.0}, {"charged_zero_out": math.nan}]
)
def test_a_charge_below_the_sensitivity_is_a_leak(change: dict[str, float]) -> None:
    query = GradientSum(3, 1.0, losses.get("logistic"))
    with pytest.raises((LeakError, RefusedError)):
        _changed(query, **change).check(query, 100)


@pytest.mark.parametrize(
    "change",
    [{"step": 0.3}, {"step": 3 * 2.0**-12}, {"step": 2.0**-70}, {"charged_zero_out": math.inf}, {"std": 1e300}],
)
def test_a_grid_on_which_integers_would_overflow_is_refused(change: dict[str, float]) -> None:
    query = GradientSum(3, 1.0, losses.get("logistic"))
    with pytest.raises(RefusedError):
        _changed(query, **change).check(query, 100)


def test_a_grid_as_coarse_as_the_noise_is_charged_for_what_it_does() -> None:
    query = GradientSum(4, 1.0, losses.get("logistic"))
    coarse = Release.of(query, 0, 1, 1.0, 2.0)
    coarse.check(query, 100)
    assert coarse.event("zero-out") == Gaussian(1.0 + 2.0 * 2)


# What the coordinator computes with.


@pytest.mark.parametrize("name", ["l1", "l2", "elastic_net", "l2_ball", "l1_ball"])
def test_a_scaled_regulariser_is_the_users_on_raw_coefficients(name: str) -> None:
    parameters = {"l1_ball": {"radius": 0.3}, "l2_ball": {"radius": 0.3}}.get(name, {"alpha": 0.7})
    inner = penalties.get_penalty(name, **parameters)
    scaled = ScaledRegulariser(inner, 2, 0.4, 0.25)
    weights = np.array([1.5, -0.2, 9.0])
    u = scaled.prox(weights, 0.5)
    assert u[2] == 9.0

    def objective(point: np.ndarray) -> float:
        return 0.5 * float(((point - weights) ** 2).sum()) + 0.5 * scaled.value(point)

    rng = np.random.default_rng(0)
    for _ in range(200):
        near = np.append(u[:2] + rng.standard_normal(2) * 10.0 ** rng.integers(-6, 1), 9.0)
        assert objective(near) >= objective(u) - 1e-9


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("none", {}),
        ("l1", {"alpha": 0.7}),
        ("l2", {"alpha": 0.7}),
        ("elastic_net", {"alpha": 0.7, "l1_ratio": 0.25}),
        ("box", {"low": -0.1, "high": 0.3}),
        ("box", {"low": 0.0}),
    ],
)
@pytest.mark.parametrize("scale", [0.4, np.array([0.4, 3.0])])
def test_a_scaled_regulariser_says_its_terms_by_coordinate(name: str, parameters: Any, scale: Any) -> None:
    scaled = ScaledRegulariser(penalties.get_penalty(name, **parameters), 2, scale, 0.25)
    l1, l2, low, high = scaled.by_coordinate(3)
    assert [float(vector[2]) for vector in (l1, l2, low, high)] == [0.0, 0.0, -math.inf, math.inf]
    assert scaled.ridge is None or (name == "l2" and np.ndim(scale) == 0 and scaled.ridge == l2[0])
    rng = np.random.default_rng(1)
    for weights in rng.standard_normal((200, 3)) * 10.0 ** rng.integers(-3, 2, (200, 1)):
        inside = bool(np.all((weights >= low) & (weights <= high)))
        terms = float(np.sum(l1 * np.abs(weights) + l2 * weights**2 / 2)) if inside else math.inf
        assert scaled.value(weights) == pytest.approx(terms, rel=1e-12)
        # the prox by coordinate is the prox
        moved = np.clip((weights - np.clip(weights, -0.5 * l1, 0.5 * l1)) / (1 + 0.5 * l2), low, high)
        np.testing.assert_allclose(scaled.prox(weights, 0.5), moved, rtol=1e-12)


@pytest.mark.parametrize("name", ["l1_ball", "l2_ball"])
def test_a_set_is_no_sum_over_coordinates(name: str) -> None:
    scaled = ScaledRegulariser(penalties.get_penalty(name, radius=1.0), 2, 0.4, 0.25)
    with pytest.raises(InputError, match="is not a sum over the coordinates; choose l1, l2 or a box"):
        scaled.by_coordinate(3)


def test_a_plan_by_columns_scales_every_coordinate_by_its_bound(small_plan: MakePlan) -> None:
    bounds = Bounds.declare(entry_bound=[0.5, 1.0, 4.0])
    regulariser = Named(name="l2", parameters={"alpha": 0.1})
    plan = small_plan("cd", bounds=bounds, regulariser=regulariser)
    assert plan.layout == "columns"
    _, l2, _, _ = plan.scaled_regulariser.by_coordinate(plan.dimension)
    np.testing.assert_allclose(l2, [0.1 / 0.25, 0.1, 0.1 / 16, 0.0])


def test_weights_without_a_regulariser_stay_as_they_are() -> None:
    free = ScaledRegulariser(penalties.get_penalty("none"), 2, 0.4, 0.25)
    assert free.inner.is_none
    assert free.ridge is None
    weights = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(free.prox(weights, 1.0), weights)


def test_parameters_of_a_regression_loss_are_in_units_of_the_label(small_plan: MakePlan) -> None:
    plan = small_plan(
        loss=Named(name="huber", parameters={"threshold": 0.5}),
        classes=None,
        bounds=Bounds.declare(row_norm=1.0, label_bound=4.0),
    )
    assert plan.scaled_loss.parameters() == {"threshold": 0.125}


def test_an_unknown_release_is_refused(small_plan: MakePlan) -> None:
    assert small_plan("newton").release("gram").query == "gram"
    with pytest.raises(RefusedError, match="'loss' is not in the plan"):
        small_plan("newton").release("loss")


def test_the_draw_of_a_public_coin_is_part_of_the_plan(small_plan: MakePlan) -> None:
    fields: dict[str, Any] = {"options": {"rounds": 30, "rate": 0.2, "schedule": "one-party"}}
    plan, other = small_plan("sgd", coin="a", **fields), small_plan("sgd", coin="b", **fields)

    def turns(of: Plan) -> list[str]:
        answered_by = query_of(of, "gradient").answered_by
        called = [answered_by.parties(of, t) for t in range(30)]
        assert all(len(names) == 1 for names in called)
        assert answered_by.parties(of, 30) == ()
        return [names[0] for names in called]

    assert turns(plan) == turns(Plan.from_json(plan.to_json()))
    assert turns(plan) != turns(other)
    for name, _ in plan.parties:
        (event,) = events_of(plan, "zero-out", name)
        assert isinstance(event, PoissonGaussian)
        assert event.rounds == turns(plan).count(name)


def test_a_party_that_is_never_called_pays_nothing(small_plan: MakePlan) -> None:
    plan = small_plan(
        "sgd", parties=(("anna", 1), ("ben", 10**6)), options={"rounds": 3, "rate": 0.2, "schedule": "one-party"}
    )
    assert events_of(plan, "zero-out", "anna") == ()
    assert not any(query_of(plan, "gradient").answered_by(plan, "anna", t) for t in range(3))
    assert 0 < epsilons_of(plan, "zero-out")["coordinator"] <= 1.0


def test_a_plan_without_its_form_s_numbers_is_no_plan(small_plan: Any) -> None:
    fields = json.loads(small_plan("gradient").to_json())
    del fields["numbers"]
    with pytest.raises(ValidationError, match="slope_bound"):
        Plan.from_json(json.dumps(fields))


def test_a_plan_that_is_read_brings_the_numbers_of_its_form() -> None:
    """In a process that has imported no solver, as a party has that was just started."""
    form, split, more = PLANS["admm, exact, columns"]
    plan = plan_for(form, split, **more)
    read = "import sys; from sottovoce.plan.plan import Plan; print(Plan.from_json(sys.stdin.read()).numbers.factor)"
    done = subprocess.run(
        [sys.executable, "-c", read], input=plan.to_json(), text=True, capture_output=True, check=True
    )
    assert float(done.stdout) == plan.numbers.factor
