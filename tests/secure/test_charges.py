"""What ledgers charge, policies limit and reports say of secure plans, against what each declared pool is left with.

Every form that secures sums, losses, relations of plan and of account, numbers of parties, and knobs. What is true is
written out here from the proofs: the noise that parties and dealer draw, and all pools one by one. Nothing here asks
`SecureAggregation.left`. That a record moves a sum no further for parties that know a part of it: `test_null_rule.py`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.plans import COUNTS, OPTIONS, ORDERED, SECURE, SEVERAL, TIMES

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.data.bounds import Bounds
from sottovoce.estimators.report import privacy_report
from sottovoce.federation.policy import Known, Policy, charge_of
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.plan import Plan, Whole
from sottovoce.plan.problem import Named
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import RELATIONS, Event, Gaussian, PoissonGaussian, Relation, inside
from sottovoce.privacy.ledger import FitPart
from sottovoce.queries import pricing
from sottovoce.transports.identity import local_identities

NEAR = 1 + 1e-9
LOSSES: dict[str, dict[str, Any]] = {
    "squared": {},
    "logistic": {"loss": Named(name="logistic"), "classes": (-1, 1)},
    "hinge": {"loss": Named(name="hinge"), "classes": (-1, 1)},
    "softmax": SEVERAL,
    "ordinal": {**ORDERED, "fit_intercept": True},
    "poisson": COUNTS,
    "hazard": TIMES,
}
KNOBS = (
    {},
    {"colluding": 1},
    {"colluding_with_dealer": 1},
    {"dropouts": 1},
    {"dropouts": 1, "retries": 2},
    {"colluding_with_dealer": 1, "dropouts": 1},
)


FORMS = tuple((form, split) for form, split, _ in SECURE.values() if form.name in OPTIONS)


class Cell(NamedTuple):
    """A plan by its name."""

    name: str
    plan: Plan


@functools.cache
def cells() -> tuple[Cell, ...]:
    """All plans that can be made; a loss that a form does not take has none."""
    return tuple(_cells())


def _cells() -> Iterator[Cell]:
    every = itertools.product(FORMS, LOSSES, RELATIONS, (2, 3, 8), KNOBS)
    for (form, split), loss, relation, parties, knobs in every:
        by_columns = split == "columns"
        if form.several != (loss in ("softmax", "ordinal")) or (by_columns and not set(knobs) <= {"colluding"}):
            continue
        if (
            sum(
                {"colluding_with_dealer": 0, "dropouts": 0, **knobs}[each]
                for each in ("colluding_with_dealer", "dropouts")
            )
            >= parties
        ):
            continue
        fields = {**OPTIONS[form.name], **LOSSES[loss], "relation": relation}
        if loss == "hazard" and by_columns:
            continue
        fields |= {"most_records": 3} if form.people else {}
        fields["aggregation"] = SecureAggregation(**{"colluding": parties - 1, **knobs})
        if by_columns:  # unequal parts of a row, and the labels with the last of the parties
            squares = np.arange(1.0, parties + 1)
            fields |= {"labels": "held", "label_party": parties - 1, "fit_intercept": True}
            fields |= {"norms": tuple(np.sqrt(squares / squares.sum())), "bounds": bounds_of(loss)}
        try:
            plan = audit_plan(form.name, split, parties, 1 if by_columns else 2, **fields)
        except sv.SottovoceError:
            continue
        said = ", ".join(f"{name}={value}" for name, value in knobs.items())
        yield Cell(f"{form.name} ({form.form}) by {split}, {loss}, {relation}, {parties} parties, {said}", plan)


def bounds_of(loss: str) -> Bounds:
    labels: dict[str, Any] = {"squared": {"label_bound": 1.0}, "poisson": {"label_bound": (0, 3)}}
    return Bounds.declare(row_norm=1.0, **labels.get(loss, {}))


# What is true, by the proofs


class Seen(NamedTuple):
    """Those who collude, by place, with the dealer or without, where so many parties are not in the sum."""

    parties: tuple[int, ...]
    dealer: bool
    gone: int


@functools.cache
def declared(parties: int, aggregation: SecureAggregation, by_columns: bool) -> tuple[Seen, ...]:
    """Every pool that a plan promises something against. By rows parties are alike: only how many there are counts."""
    found = []
    for dealer, most in ((True, aggregation.colluding_with_dealer), (False, aggregation.colluding)):
        for size, gone in itertools.product(range(most + 1), range(aggregation.dropouts + 1)):
            if size + gone < parties:
                coalitions = itertools.combinations(range(parties), size) if by_columns else [tuple(range(size))]
                found += [Seen(coalition, dealer, gone) for coalition in coalitions]
    return tuple(found)


def least(plan: Plan) -> float:
    """The least variance that a declared pool is left with, of what is drawn."""
    aggregation, parties = plan.aggregation, len(plan.parties)
    assert aggregation is not None
    return min(
        (parties - seen.gone - len(seen.parties)) * aggregation.share(parties)
        + (0.0 if seen.dealer else aggregation.top_up(parties))
        for seen in declared(parties, aggregation, plan.split == "columns")
    )


def truth(plan: Plan, relation: Relation) -> dict[str, float]:
    """By query the largest square of what one release moves over the noise left, of all pools."""
    moved = {r.query: r.charged_zero_out if r.rate is not None else r.charged(relation) for r in plan.releases}
    return {r.query: (moved[r.query] / r.std) ** 2 / least(plan) for r in plan.releases}


def square(event: Event) -> float:
    """Of what a release moves over its noise, all times together."""
    if isinstance(event, PoissonGaussian):
        return event.rounds / event.noise_multiplier**2
    assert isinstance(event, Gaussian)
    return event.mu**2


def charged(plan: Plan, relation: Relation) -> tuple[Event, ...]:
    """What the first party's ledger is charged for a plan, its account being under a relation."""
    return charge_of(algorithms.of(plan), plan, plan.names[0])(relation)


def too_little() -> Iterator[tuple[str, str, Relation, float]]:
    """Each cell, query and relation of an account where less is charged than is true, and how much of it."""
    for (name, plan), relation in itertools.product(cells(), RELATIONS):
        assert plan.aggregation is not None
        events, true = charged(plan, relation), truth(plan, relation)
        for release, event in zip(plan.releases, events, strict=False):
            part = square(event) / (release.count * true[release.query])
            if part * NEAR < 1:
                yield name, release.query, relation, part
        retries = plan.aggregation.retries * max(true.values())
        if max(map(square, events[len(plan.releases) :]), default=0.0) * NEAR < retries:
            yield name, "retries", relation, 0.0


@pytest.mark.slow
def test_every_form_that_secures_is_swept() -> None:
    found = {(algorithms.of(plan), plan.split) for _, plan in cells()}
    assert found == set(FORMS)
    made = {(plan.split, len(plan.parties), plan.relation) for _, plan in cells()}
    assert made == set(itertools.product(("rows", "columns"), (2, 3, 8), RELATIONS))


def test_no_account_is_charged_less_than_a_declared_pool_learns() -> None:
    assert list(too_little()) == []


def test_what_is_charged_is_what_the_worst_pool_learns() -> None:
    for (name, plan), relation in itertools.product(cells(), RELATIONS):
        true = truth(plan, relation)
        for release, event in zip(plan.releases, charged(plan, relation), strict=False):
            assert square(event) <= release.count * true[release.query] * NEAR, (name, release.query, relation)


# Faults that were planted


def test_the_charge_of_the_noise_that_the_world_sees_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pricing.secure_events
    monkeypatch.setattr(
        pricing, "secure_events", lambda plan, queries, relation: real(plan, queries, relation, plan.channel.variance)
    )
    found = list(too_little())
    assert {name for name, _, _, _ in found} == {name for name, _ in cells()}
    assert {relation for _, _, relation, _ in found} == set(RELATIONS)


def test_a_top_up_that_is_not_drawn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureAggregation, "top_up", lambda self, parties: 0.0)
    parts = {name: part for name, query, _, part in too_little() if query != "retries"}
    assert set(parts) >= {name for name, plan in cells() if plan.split == "columns"}
    assert min(parts.values()) == pytest.approx(1 / 8)


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["colluding_with_dealer", "dropouts"])
def test_shares_that_do_not_allow_for_those_who_are_not_in_a_sum_are_found(
    monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    real = SecureAggregation.share
    monkeypatch.setattr(SecureAggregation, "share", lambda self, parties: real(self.changed(**{forgotten: 0}), parties))
    needed = {name for name, plan in cells() if getattr(plan.aggregation, forgotten)}
    assert {name for name, _, _, _ in too_little()} == needed


# Who asks what a plan costs


def gaussian_cells() -> list[tuple[Plan, Relation, float]]:
    """Plan, relation, and the mu that is true; retries as they are promised."""
    found = []
    for (_, plan), relation in itertools.product(cells(), RELATIONS):
        assert plan.aggregation is not None
        if all(release.rate is None for release in plan.releases):
            true = truth(plan, relation)
            squares = math.fsum(release.count * true[release.query] for release in plan.releases)
            found.append((plan, relation, math.sqrt(squares + plan.aggregation.retries * max(true.values()))))
    return found


def epsilon_at(mu: float, delta: float, relation: Relation) -> float:
    return epsilon_of((Gaussian(mu),), inside(delta), relation)


@pytest.mark.slow
def test_a_policy_refuses_what_a_declared_pool_learns_more_than_it_allows() -> None:
    for plan, relation, mu in gaussian_cells():
        form, epsilon = algorithms.of(plan), epsilon_at(mu, plan.delta, relation)
        assert plan.aggregation is not None
        known = Known(local_identities(plan.names)[plan.names[0]])
        agreed = Policy(max_delta=0.1, relation=relation, secure=True, colluding=plan.aggregation.colluding)
        for limit, refused in ((0.999 * epsilon, True), (1.001 * epsilon, False)):
            reason = replace(agreed, max_epsilon=limit).refuse(plan, form, plan.names[0], known)
            assert (reason is not None) == refused, (plan, relation)
            assert reason is None or "above this party's limit" in reason


@pytest.mark.slow
def test_reports_say_what_a_declared_pool_learns() -> None:
    for plan, relation, mu in gaussian_cells():
        true = epsilon_at(mu, plan.delta, relation)
        found = algorithms.epsilons(plan, relation)
        assert min(found["parties"], found["coordinator"]) >= true * (1 - 1e-6)
    plan = next(plan for plan, _, _ in gaussian_cells() if plan.split == "columns")
    assert privacy_report(plan, seeded=False).parties.epsilon == algorithms.epsilons(plan)["parties"]


# In a ledger


def fitted(tmp_path: Path, **terms: Any) -> tuple[Any, Any]:
    """A model of a fit under replace-one, and the account of the first of three parties."""
    generator = np.random.default_rng(1)
    X = generator.uniform(-1, 1, (60, 3))
    accounts = [
        sv.Ledger.create(tmp_path / f"{place}.db").open("people", epsilon=50.0, delta=1e-6, **terms)
        for place in range(3)
    ]
    federation = sv.Federation.by_columns(
        [X[:, place : place + 1] for place in range(3)], X.mean(axis=1), products="secure", ledgers=accounts
    )
    solver = sv.solvers.Gradient(rounds=2)
    model = sv.PrivateRidge(
        epsilon=1.0, delta=1e-6, entry_bound=1.0, label_bound=1.0, relation="replace-one", solver=solver
    )
    return model.fit(federation), accounts[0]


@pytest.mark.parametrize("composition", ["renyi", "gaussian", "basic"])
def test_a_ledger_of_zero_out_is_charged_what_the_other_parties_learn(tmp_path: Path, composition: Any) -> None:
    model, account = fitted(tmp_path, composition=composition)
    (release,) = model.plan_.releases
    mu = math.sqrt(release.count * truth(model.plan_, "zero-out")["gradient"])
    spent = account.balance().spent
    assert spent == pytest.approx(epsilon_at(mu, 1e-6, "zero-out"), rel=1e-6)
    assert (
        mu == release.charged_zero_out * math.sqrt(release.count) / release.std
    )  # as if they knew nothing of a record


def test_a_ledger_of_replace_one_is_charged_the_plan(tmp_path: Path) -> None:
    _, account = fitted(tmp_path, relation="replace-one")
    assert account.balance().spent == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("solver", ["gradient", "newton", "whitened"])
def test_plans_of_one_fit_are_charged_what_the_coalitions_learn_of_all_of_them(tmp_path: Path, solver: str) -> None:
    """Two plans that share the mu of one fit, under replace-one, on an account under zero-out that has room for it."""
    account = sv.Ledger.create(tmp_path / "one.db").open("people", epsilon=50.0, delta=1e-3)
    parts, whole = [], 0.0
    for number, epsilon in enumerate((3.0, 2.0)):
        fields = {
            "relation": "replace-one",
            "labels": "held",
            "aggregation": SecureAggregation(colluding=1),
            "epsilon": epsilon,
        }
        parts.append(audit_plan(solver, "columns", 2, 1, coin=f"coin {number}", **OPTIONS[solver], **fields))
        whole += parts[-1].mu ** 2
    known = []
    for plan in parts:
        made = plan.model_copy(update={"within": Whole(name="ab" * 16, mu=math.sqrt(whole))})
        cost = charge_of(algorithms.of(made), made, made.names[0])
        assert made.within is not None
        part = FitPart(made.within.name, made.within.mu, made.relation)
        account.reserve(made.digest.hex(), cost, delta=made.delta, within=part)
        true = truth(made, "zero-out")
        known.append(math.fsum(release.count * true[release.query] for release in made.releases))
        assert account.book().reservations[-1].part == pytest.approx(math.sqrt(known[-1]), rel=1e-4)
    paid = math.fsum(square(event) for each in account.book().reservations for event in each.events)
    assert paid >= math.fsum(known) * (1 - 1e-4)
    assert len(account.book().of_fit("ab" * 16)) == 2
