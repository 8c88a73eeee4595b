from __future__ import annotations

import copy
import json
import math
import os
import pickle
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV

from sottovoce.errors import BudgetError, InputError, LedgerError
from sottovoce.privacy import ledger_file
from sottovoce.privacy.accounting import epsilon_of, renyi_of, renyi_to_epsilon
from sottovoce.privacy.calibration import mu_for, noise_multiplier_for, renyi_order_for, rho_for
from sottovoce.privacy.events import SAMPLER_SHARE, Event, Gaussian, PoissonGaussian, Relation, Selection, Unbounded
from sottovoce.privacy.ledger import Account, FitPart, Ledger, Receipt
from sottovoce.privacy.spending import periods_between

EPSILON, DELTA = 1.0, 1e-5
OWN = DELTA * (1 - SAMPLER_SHARE)  # what events may use of delta; the rest is for the samplers' errors


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "holder.ledger")


@pytest.fixture
def account(ledger: Ledger) -> Account:
    return ledger.open("clinic", EPSILON, DELTA)


def gaussian_plan(epsilon: float, delta: float = DELTA) -> list[Event]:
    return [Gaussian(mu_for(epsilon, delta * (1 - SAMPLER_SHARE)))]


def edit(ledger: Ledger, statement: str, *values: object) -> None:
    """What an intruder or a faulty disk does: change a row behind the ledger's back."""
    with sqlite3.connect(ledger.path) as connection:
        connection.executescript("DROP TRIGGER IF EXISTS no_update; DROP TRIGGER IF EXISTS no_delete;")
        connection.execute(statement, values)
    connection.close()


class TestAccounts:
    def test_opening_again_with_the_same_terms_changes_nothing(self, ledger: Ledger) -> None:
        first = ledger.open("clinic", EPSILON, DELTA)
        assert ledger.open("clinic", EPSILON, DELTA) == first
        assert ledger.accounts() == [first]
        assert ledger.verify() == 1

    @pytest.mark.parametrize(
        "other", [{"epsilon": 2.0}, {"delta": 1e-6}, {"relation": "replace-one"}, {"composition": "basic"}]
    )
    def test_terms_never_change(self, ledger: Ledger, other: dict[str, Any]) -> None:
        terms: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}
        account = ledger.open("clinic", **terms)
        before = account.terms()
        with pytest.raises(LedgerError, match="never change"):
            ledger.open("clinic", **terms | other)
        assert account.terms() == before

    def test_the_only_account_needs_no_name(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerError, match="no account, so it was emptied"):
            ledger.account()
        first = ledger.open("clinic", EPSILON, DELTA)
        assert ledger.account() == first
        second = ledger.open("lab", EPSILON, DELTA)
        assert ledger.account("lab") == second
        with pytest.raises(LedgerError, match="'clinic', 'lab'"):
            ledger.account()
        with pytest.raises(LedgerError, match="'clinic', 'lab'"):
            ledger.account("ward")
        with pytest.raises(LedgerError, match="'clinic', 'lab'"):
            Account(ledger.path, "ward").balance()

    @pytest.mark.parametrize(
        ("terms", "name"),
        [
            ({"epsilon": 0.0}, "epsilon"),
            ({"epsilon": -1.0}, "epsilon"),
            ({"epsilon": math.nan}, "epsilon"),
            ({"epsilon": math.inf}, "epsilon"),
            ({"delta": 0.0}, "delta"),
            ({"delta": 1.0}, "delta"),
            ({"delta": math.nan}, "delta"),
            ({"relation": "add-remove"}, "relation"),
            ({"composition": "pld"}, "composition"),
            ({"dataset": ""}, "dataset"),
            ({"dataset": " clinic"}, "dataset"),
            ({"dataset": "two\nlines"}, "dataset"),
            ({"dataset": "x" * 201}, "dataset"),
        ],
    )
    def test_bad_terms_are_told(self, ledger: Ledger, terms: dict[str, Any], name: str) -> None:
        good: dict[str, Any] = {"dataset": "clinic", "epsilon": EPSILON, "delta": DELTA}
        with pytest.raises(InputError, match=f"{name}="):
            ledger.open(**good | terms)
        assert ledger.accounts() == []

    def test_accounts_do_not_mix(self, ledger: Ledger) -> None:
        clinic, lab = ledger.open("clinic", EPSILON, DELTA), ledger.open("lab", EPSILON, DELTA)
        clinic.reserve("p", gaussian_plan(EPSILON))
        assert lab.balance().plans == 0
        with pytest.raises(LedgerError, match="no reservation"):
            lab.release("p", 0, "gradient", b"x")


class TestCharging:
    @pytest.mark.parametrize("composition", ["renyi", "gaussian", "basic"])
    @pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
    def test_one_plan_may_use_the_whole_budget_and_then_nothing_fits(
        self, ledger: Ledger, composition: Any, epsilon: float
    ) -> None:
        account = ledger.open("clinic", epsilon, DELTA, composition=composition)
        assert account.balance().left == epsilon
        account.reserve("whole", gaussian_plan(epsilon), delta=DELTA)
        balance = account.balance()
        assert balance.spent == pytest.approx(epsilon, rel=1e-6)
        assert balance.spent <= epsilon * (1 + 1e-9)
        assert (balance.share, balance.plans) == (pytest.approx(1.0), 1)
        with pytest.raises(BudgetError, match=r"'clinic'.*Nothing would fit"):
            account.reserve("more", gaussian_plan(epsilon / 100), delta=DELTA / 100)
        assert account.balance() == balance

    def test_a_plan_over_the_budget_is_refused_and_costs_nothing(self, account: Account) -> None:
        with pytest.raises(BudgetError, match=r"asks for epsilon 1\.001"):
            account.reserve("p", gaussian_plan(1.001))
        assert account.balance().plans == 0
        account.reserve("q", gaussian_plan(1.0))

    def test_the_same_plan_is_charged_once(self, account: Account) -> None:
        first = account.reserve("p", gaussian_plan(0.5), summary="ridge")
        assert account.reserve("p", gaussian_plan(0.5)) == first
        assert account.balance().plans == 1
        with pytest.raises(LedgerError, match="other events"):
            account.reserve("p", gaussian_plan(0.4))

    def test_a_reserved_plan_stays_reserved_when_the_budget_is_gone(self, account: Account) -> None:
        first = account.reserve("p", gaussian_plan(1.0))
        assert account.reserve("p", gaussian_plan(1.0)) == first

    @pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
    def test_events_are_asked_in_the_relation_of_the_account(self, ledger: Ledger, relation: Any) -> None:
        account = ledger.open("clinic", EPSILON, DELTA, relation=relation, composition="gaussian")

        def events(asked: Relation) -> Sequence[Event]:
            return [Gaussian(0.1 if asked == "zero-out" else 0.2)]

        account.reserve("p", events)
        mu = 0.1 if relation == "zero-out" else 0.2
        assert account.balance().share == pytest.approx((mu / mu_for(EPSILON, OWN)) ** 2)

    @pytest.mark.parametrize("event", [Unbounded("calibration of a paper"), Gaussian(math.inf), Selection(math.inf)])
    @pytest.mark.parametrize("composition", ["renyi", "basic"])
    def test_releases_without_noise_are_always_refused(self, ledger: Ledger, event: Event, composition: Any) -> None:
        account = ledger.open("clinic", 1e6, 0.5, composition=composition)
        assert not account.would_fit([event], delta=0.1)
        with pytest.raises(BudgetError):
            account.reserve("p", [event], delta=0.1)
        assert account.balance().plans == 0

    @pytest.mark.parametrize("event", [Selection(1e-4), PoissonGaussian(0.01, 1.5, 10)])
    def test_a_gaussian_account_takes_gaussians_alone(self, ledger: Ledger, event: Event) -> None:
        account = ledger.open("clinic", EPSILON, DELTA, composition="gaussian")
        with pytest.raises(BudgetError, match=type(event).__name__):
            account.reserve("p", [Gaussian(0.1), event])

    @pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
    def test_choices_are_charged_at_the_order_of_the_account(self, ledger: Ledger, relation: Any) -> None:
        account = ledger.open("choices", 1.0, DELTA, relation=relation)
        terms = account.terms()
        events: list[Event] = [Selection(4e-3), Gaussian(0.05)]
        known = account.reserve("one", events, summary="greedy")
        assert known.cost == pytest.approx(terms.fixed_order * (4e-3 + 0.05**2 / 2))
        assert known.epsilon == epsilon_of(events, OWN, relation)
        assert account.balance().spent <= known.epsilon * (1 + 1e-9)
        with pytest.raises(BudgetError, match="is spent"):
            account.reserve("two", [Selection(0.03)])
        assert account.balance().plans == 1
        ledger.verify()

    def test_a_plan_of_choices_may_use_the_whole_budget(self, ledger: Ledger) -> None:
        account = ledger.open("choices", 1.0, DELTA)
        rho = rho_for(1.0, OWN)
        assert not account.would_fit([Selection(1.001 * rho)])
        account.reserve("all", [Selection(0.7 * rho), Gaussian(math.sqrt(0.6 * rho))])
        assert account.balance().spent == pytest.approx(1.0, rel=1e-3)
        assert not account.would_fit([Selection(1e-3 * rho)])

    def test_a_basic_account_takes_choices_at_their_own_epsilon(self, ledger: Ledger) -> None:
        account = ledger.open("choices", 1.0, DELTA, composition="basic")
        events: list[Event] = [Selection(1e-3), Gaussian(0.01)]
        known = account.reserve("one", events, delta=DELTA / 2)
        assert known.cost == epsilon_of(events, OWN / 2, "zero-out")
        assert account.balance().spent == known.cost

    def test_every_kind_of_event_survives_the_file(self, account: Account) -> None:
        events: list[Event] = [Gaussian(np.float64(0.05)), Selection(1e-4), PoissonGaussian(0.01, 3.0, 10)]
        assert account.reserve("p", events).events == tuple(events)
        assert account.reserve("p", events).events == tuple(events)
        expected = renyi_of(events, account.terms().order or 0.0, "zero-out")
        assert account.balance().share == pytest.approx(expected / account.terms().capacity)

    @pytest.mark.parametrize("delta", [None, 0.0, 1.0])
    def test_a_basic_account_needs_the_delta_of_the_plan(self, ledger: Ledger, delta: float | None) -> None:
        account = ledger.open("clinic", EPSILON, DELTA, composition="basic")
        with pytest.raises(InputError, match="delta="):
            account.reserve("p", gaussian_plan(0.1), delta=delta)

    def test_basic_adds_epsilons_and_deltas(self, ledger: Ledger) -> None:
        account = ledger.open("clinic", EPSILON, DELTA, composition="basic")
        for index in range(10):
            account.reserve(f"p{index}", gaussian_plan(0.1, 1e-6), delta=1e-6)
        assert account.balance().spent == pytest.approx(1.0)
        with pytest.raises(BudgetError):
            account.reserve("over", gaussian_plan(1e-3, 1e-9), delta=1e-9)
        other = ledger.open("lab", EPSILON, DELTA, composition="basic")
        other.reserve("p", gaussian_plan(0.1), delta=DELTA)
        with pytest.raises(BudgetError, match="Nothing would fit"):  # epsilon is left, delta is not
            other.reserve("q", gaussian_plan(0.1, 1e-9), delta=1e-9)

    @pytest.mark.parametrize("composition", ["renyi", "gaussian", "basic"])
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
    def test_what_is_said_to_fit_fits_and_a_little_more_does_not(
        self, ledger: Ledger, composition: Any, epsilon: float
    ) -> None:
        account = ledger.open("clinic", epsilon, DELTA, composition=composition)
        account.reserve("first", gaussian_plan(epsilon / 3, DELTA / 4), delta=DELTA / 4)
        with pytest.raises(BudgetError, match="would fit") as refusal:
            account.reserve("over", gaussian_plan(epsilon), delta=DELTA / 4)
        said = float(str(refusal.value).split("of epsilon at most ")[1].split()[0])
        left, delta_left = account.balance().left, account.balance().delta_left
        assert said <= left <= said * 1.001
        assert not account.would_fit(gaussian_plan(left * 1.0001, delta_left), delta=delta_left)
        assert account.would_fit(gaussian_plan(left, delta_left), delta=delta_left)
        account.reserve("rest", gaussian_plan(said, delta_left), delta=delta_left)


class TestComposition:
    """The rules of proofs/ledger.md."""

    def test_ten_plans_cost_less_than_the_sum_of_their_epsilons(self, ledger: Ledger) -> None:
        def admitted(composition: Any) -> int:
            account = ledger.open(composition, EPSILON, DELTA, composition=composition)
            count = 0
            for index in range(10):
                fits = account.would_fit(gaussian_plan(0.2, DELTA / 10), delta=DELTA / 10)
                if fits:
                    account.reserve(f"p{index}", gaussian_plan(0.2, DELTA / 10), delta=DELTA / 10)
                count += fits
            return count

        assert admitted("basic") == 5
        assert admitted("renyi") == 10
        assert admitted("gaussian") == 10
        spent = {name: ledger.account(name).balance().spent for name in ("renyi", "gaussian")}
        assert spent["gaussian"] == pytest.approx(spent["renyi"])
        assert spent["renyi"] < 10 * 0.2 / 2

    def test_the_renyi_order_is_fixed_at_opening_and_its_divergences_add(self, account: Account) -> None:
        order = account.terms().order
        assert order == renyi_order_for(EPSILON, OWN / 2)
        plans: list[list[Event]] = [[Gaussian(0.05)], [Selection(2e-4)], [PoissonGaussian(0.01, 4.0, 20)]]
        for index, events in enumerate(plans):
            account.reserve(f"p{index}", events)
        assert account.terms().order == order
        total = sum(renyi_of(events, order, "zero-out") for events in plans)
        assert account.balance().spent == pytest.approx(renyi_to_epsilon(total, order, OWN))

    def test_composing_loss_distributions_of_the_realised_plans_would_be_wrong(self, ledger: Ledger) -> None:
        """Each branch is certified (1, 1e-5), the adaptive choice between them is not, and we refuse it."""
        first, second_gaussian, second_sampled = (Gaussian(0.2), Gaussian(0.178), PoissonGaussian(0.01, 0.695, 1))
        assert epsilon_of([first, second_gaussian], DELTA, "zero-out") <= EPSILON
        assert epsilon_of([first, second_sampled], DELTA, "zero-out") <= EPSILON

        outcome = np.linspace(-12, 12, 40001)
        likelihood = np.exp(first.mu * outcome - first.mu**2 / 2)
        ratio = math.exp(EPSILON) / likelihood
        branches = np.array(
            [
                likelihood * _gaussian_hockey_stick(second_gaussian.mu, ratio),
                likelihood * _sampled_hockey_stick(second_sampled.rate, second_sampled.noise_multiplier, ratio),
            ]
        )
        density = np.exp(-(outcome**2) / 2) / math.sqrt(2 * math.pi)
        step = outcome[1] - outcome[0]
        separate = (branches * density).sum(axis=1) * step
        adaptive = (branches.max(axis=0) * density).sum() * step
        assert separate == pytest.approx([9.808e-6, 9.451e-6], rel=1e-3)
        assert adaptive == pytest.approx(1.737e-5, rel=1e-3)

        for composition, second in [
            ("renyi", second_gaussian),
            ("renyi", second_sampled),
            ("gaussian", second_sampled),
        ]:
            account = ledger.open(f"{composition} {second}", EPSILON, DELTA, composition=composition)  # type: ignore[arg-type]
            account.reserve("first", [first])
            assert not account.would_fit([second])
            with pytest.raises(BudgetError):
                account.reserve("second", [second])
        capacity, order = ledger.accounts()[0].terms().capacity, ledger.accounts()[0].terms().order or 0.0
        shares = [
            renyi_of([first, second], order, "zero-out") / capacity for second in (second_gaussian, second_sampled)
        ]
        assert shares == pytest.approx([1.263, 28.21], rel=1e-2)

    def test_a_choice_between_the_two_rules_of_a_renyi_account_stays_within_delta(self, ledger: Ledger) -> None:
        """After a Gaussian release the better of what each rule admits, in every outcome; in one rule it is half."""
        account = ledger.open("both", EPSILON, DELTA)
        terms, first = account.terms(), Gaussian(0.2)
        account.reserve("first", [first])
        order, alone = terms.fixed_order, terms.gaussian_capacity or 0.0
        second = Gaussian(math.sqrt(2 * alone / order - first.mu**2) * (1 - 1e-9))
        noise = brentq(
            lambda noise: renyi_of([first, PoissonGaussian(0.2, noise, 1)], order, "zero-out") - terms.capacity, 0.5, 9
        )
        sampled = PoissonGaussian(0.2, noise * (1 + 1e-9), 1)
        assert account.would_fit([second])
        assert account.would_fit([sampled])
        assert not account.would_fit([Gaussian(second.mu * 1.0001)])
        assert not account.would_fit([PoissonGaussian(0.2, noise * 0.9999, 1)])
        assert not account.would_fit([second, Selection(1e-9)])

        outcome = np.linspace(-12, 12, 40001)
        likelihood = np.exp(first.mu * outcome - first.mu**2 / 2)
        ratio = math.exp(EPSILON) / likelihood
        branches = np.array(
            [
                likelihood * _gaussian_hockey_stick(second.mu, ratio),
                likelihood * _sampled_hockey_stick(sampled.rate, sampled.noise_multiplier, ratio),
            ]
        )
        density = np.exp(-(outcome**2) / 2) / math.sqrt(2 * math.pi)
        step = outcome[1] - outcome[0]
        separate = (branches * density).sum(axis=1) * step
        adaptive = (branches.max(axis=0) * density).sum() * step
        assert (separate <= OWN / 2 * (1 + 1e-6)).all()
        assert separate.max() == pytest.approx(OWN / 2, rel=1e-3)  # the Gaussian rule uses all of its half
        assert OWN / 2 * (1 + 1e-4) < adaptive <= OWN  # more than half: a choice between the rules costs

    def test_the_first_plan_alone_is_admitted_on_its_exact_epsilon(self, account: Account) -> None:
        terms = account.terms()
        plan = gaussian_plan(EPSILON)
        share = renyi_of(plan, terms.order or 0.0, "zero-out") / terms.capacity
        assert share == pytest.approx(1.26, rel=1e-2)  # so the Renyi sum alone would refuse it
        account.reserve("first", plan)
        assert not account.would_fit([Gaussian(0.0)])  # not even what costs nothing may follow
        with pytest.raises(BudgetError):
            account.reserve("free", [Gaussian(0.0)])

    def test_a_sampled_first_plan_is_admitted_on_its_exact_epsilon(self, account: Account) -> None:
        noise = noise_multiplier_for(EPSILON, OWN, "zero-out", 0.01, 1000)
        account.reserve("first", [PoissonGaussian(0.01, noise, 1000)])
        assert account.balance().spent <= EPSILON
        assert account.balance().left == 0

    def test_after_any_plan_the_exact_epsilon_admits_nothing(self, account: Account) -> None:
        account.reserve("free", [Gaussian(0.0)])
        plan = gaussian_plan(EPSILON)
        assert epsilon_of([Gaussian(0.0), *plan], OWN, "zero-out") <= EPSILON * (1 + 1e-9)
        with pytest.raises(BudgetError):
            account.reserve("second", plan)

    def test_a_refused_plan_does_not_use_up_the_first_place(self, account: Account) -> None:
        with pytest.raises(BudgetError):
            account.reserve("too much", gaussian_plan(2.0))
        account.reserve("first", gaussian_plan(EPSILON))


def _gaussian_hockey_stick(mu: float, ratio: np.ndarray) -> np.ndarray:
    """H_g(N(mu,1) || N(0,1)) for every g in ratio."""
    return ndtr(-np.log(ratio) / mu + mu / 2) - ratio * ndtr(-np.log(ratio) / mu - mu / 2)


def _sampled_hockey_stick(rate: float, noise: float, ratio: np.ndarray) -> np.ndarray:
    """H_g((1-q) N(0,s^2) + q N(1,s^2) || N(0,s^2)): the likelihood ratio exceeds g where x > cut."""
    found = np.maximum(1 - ratio, 0.0)
    some = ratio > 1 - rate
    cut = noise**2 * np.log((ratio[some] - (1 - rate)) / rate) + 0.5
    null = ndtr(-cut / noise)
    found[some] = (1 - rate) * null + rate * ndtr((1 - cut) / noise) - ratio[some] * null
    return found


class TestReleases:
    def test_nothing_is_released_before_it_is_charged(self, account: Account) -> None:
        with pytest.raises(LedgerError, match="no reservation"):
            account.release("p", 0, "gradient", b"x")
        assert account.stored("p", 0, "gradient") is None

    def test_a_key_has_one_release_for_ever(self, account: Account) -> None:
        account.reserve("p", gaussian_plan(0.5))
        assert account.release("p", 3, "gradient", b"first") == b"first"
        assert account.release("p", 3, "gradient", b"second") == b"first"
        assert account.stored("p", 3, "gradient") == b"first"
        assert account.release("p", 4, "gradient", b"") == b""
        assert account.stored("p", 4, "gradient") == b""
        assert account.release("p", 3, "hessian", b"other") == b"other"
        assert account.stored("p", 5, "gradient") is None

    @pytest.mark.parametrize("key", [("", 0, "g"), ("p", -1, "g"), ("p", 0.5, "g"), ("p", 0, ""), ("p", 0, "a\tb")])
    def test_bad_keys_are_told(self, account: Account, key: Any) -> None:
        with pytest.raises(InputError):
            account.release(*key, b"x")
        with pytest.raises(InputError):
            account.stored(*key)

    def test_history_tells_everything_in_order(self, account: Account) -> None:
        account.reserve("p", gaussian_plan(0.5), summary="ridge, 3 rounds")
        account.release("p", 0, "gradient", b"1234")
        history = account.history()
        assert [(e.number, e.kind, e.plan, e.payload_bytes) for e in history] == [
            (1, "opening", "", 0),
            (2, "reservation", "p", 0),
            (3, "release", "p", 4),
        ]
        assert history[1].details["summary"] == "ridge, 3 rounds"
        assert history[1].details["epsilon"] == pytest.approx(0.5)
        with pytest.raises(LedgerError, match="'clinic'"):
            Account(account.path, "ward").history()


class TestAccountsUnderOthers:
    @pytest.fixture
    def anna(self, ledger: Ledger, account: Account) -> Account:
        return ledger.open("anna", 0.5, DELTA, under="clinic")

    def test_a_charge_is_made_on_both_and_must_fit_both(self, ledger: Ledger, account: Account, anna: Account) -> None:
        ben = ledger.open("ben", 0.9, DELTA, under="clinic")
        anna.reserve("p", gaussian_plan(0.3), about={"analyst": "anna"})
        assert (anna.balance().plans, account.balance().plans, ben.balance().plans) == (1, 1, 0)
        cost = account.terms().price("", gaussian_plan(0.3), None, "").cost
        assert account.balance().share == pytest.approx(cost / account.book().limit)
        assert account.balance().spent == pytest.approx(0.3)
        with pytest.raises(BudgetError, match="account 'anna'"):
            anna.reserve("q", gaussian_plan(0.45))
        ben.reserve("q", gaussian_plan(0.85))
        left = account.balance().left
        assert ben.balance().left <= left
        assert anna.balance().left == left
        with pytest.raises(BudgetError, match="account 'clinic'"):
            anna.reserve("r", gaussian_plan(0.35))
        assert [entry.kind for entry in account.history()] == ["opening", "under", "under"]
        assert account.history()[1].details["about"] == {"analyst": "anna"}
        assert ledger.verify() == 7

    def test_no_order_of_plans_spends_more_than_the_total(self, ledger: Ledger, account: Account) -> None:
        below = [ledger.open(f"a{k}", EPSILON, DELTA, under="clinic") for k in range(4)]
        admitted = 0
        for number in range(40):
            try:
                below[number % 4].reserve(f"p{number}", gaussian_plan(0.2))
                admitted += 1
            except BudgetError:
                continue
        alone = ledger.open("alone", EPSILON, DELTA)
        for number in range(40):
            if alone.would_fit(gaussian_plan(0.2)):
                alone.reserve(f"p{number}", gaussian_plan(0.2))
        assert admitted == alone.balance().plans
        assert account.balance().spent <= EPSILON

    def test_a_plan_runs_on_one_account(self, ledger: Ledger, account: Account, anna: Account) -> None:
        """Else two accounts would release under one charge of the total."""
        anna.reserve("p", gaussian_plan(0.3))
        with pytest.raises(LedgerError, match="for a run on account 'anna'"):
            account.reserve("p", gaussian_plan(0.3))
        with pytest.raises(LedgerError, match="for a run on account 'anna'"):
            ledger.open("ben", 0.5, DELTA, under="clinic").reserve("p", gaussian_plan(0.3))
        with pytest.raises(LedgerError, match="no reservation"):
            account.release("p", 0, "gradient", b"x")
        account.reserve("q", gaussian_plan(0.3))
        with pytest.raises(LedgerError, match="for a run on account 'clinic'"):
            anna.reserve("q", gaussian_plan(0.3))
        assert anna.release("p", 0, "gradient", b"x") == b"x"
        ledger.verify()

    def test_a_charge_that_the_account_above_lacks_is_found(self, ledger: Ledger, anna: Account) -> None:
        anna.reserve("p", gaussian_plan(0.3))
        with ledger_file.writing(ledger.path) as entries:
            forged = json.loads(entries.row(4).details) | {"plan": "q"}
            entries.append("reservation", "anna", "q", details=json.dumps(forged))
        with pytest.raises(LedgerError, match=r"entry 5 "):
            ledger.verify()

    def test_bad_lines_are_told(self, ledger: Ledger, account: Account) -> None:
        with pytest.raises(LedgerError, match="no account 'nobody'"):
            ledger.open("anna", 0.5, DELTA, under="nobody")
        with pytest.raises(InputError, match="relation="):
            ledger.open("anna", 0.5, DELTA, under="clinic", relation="replace-one")


class TestAllowances:
    @pytest.mark.parametrize("composition", ["renyi", "gaussian", "basic"])
    def test_the_budget_is_released_in_parts(
        self, ledger: Ledger, composition: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        account = ledger.open("clinic", EPSILON, DELTA, composition=composition, allowance=(0.25, "month"))
        opened = datetime.fromisoformat(account.history()[0].written)
        now = opened

        class Clock(datetime):
            @classmethod
            def now(cls, zone: Any = None) -> datetime:
                return now

        monkeypatch.setattr(ledger_file, "datetime", Clock)
        plan, delta = gaussian_plan(0.25, DELTA / 100 if composition == "basic" else DELTA), DELTA / 100
        account.reserve("first", plan, delta=delta)
        with pytest.raises(BudgetError, match=r"% released by now"):
            account.reserve("too early", plan, delta=delta)
        now = opened + timedelta(days=27)
        assert not account.would_fit(plan, delta=delta)
        now = opened + timedelta(days=63)  # two months have passed, so two parts were added
        account.reserve("second", plan, delta=delta)
        account.reserve("third", plan, delta=delta)
        assert not account.would_fit(plan, delta=delta)
        now = opened + timedelta(days=36500)
        assert account.balance().released == 1.0
        count = 3
        while account.would_fit(plan, delta=delta):
            count += 1
            account.reserve(f"p{count}", plan, delta=delta)
        free = ledger.open("free", EPSILON, DELTA, composition=composition)
        most = 0
        while free.would_fit(plan, delta=delta):
            most += 1
            free.reserve(f"p{most}", plan, delta=delta)
        assert count == most  # the total is the bound, whatever the parts
        assert account.balance().spent <= EPSILON * (1 + 1e-9)
        ledger.verify()

    def test_the_first_plan_has_its_privilege_only_if_all_is_released(self, ledger: Ledger) -> None:
        account = ledger.open("clinic", EPSILON, DELTA, allowance=(0.25, "week"))
        assert not account.would_fit(gaussian_plan(EPSILON))
        assert account.balance().left == pytest.approx(0.25, rel=1e-6)

    @pytest.mark.parametrize(
        ("opened", "now", "period", "passed"),
        [
            ("2026-01-31T10:00", "2026-02-28T23:00", "month", 0),
            ("2026-01-31T10:00", "2026-03-01T00:00", "month", 1),
            ("2026-01-31T10:00", "2026-03-31T10:00", "month", 2),
            ("2026-01-15T10:00", "2026-02-15T09:59", "month", 0),
            ("2026-01-15T10:00", "2027-01-15T10:00", "month", 12),
            ("2026-01-15T10:00", "2027-01-15T09:59", "year", 0),
            ("2026-01-15T10:00", "2027-01-15T10:00", "year", 1),
            ("2026-01-15T10:00", "2026-01-22T10:00", "week", 1),
            ("2026-01-15T10:00", "2026-01-22T09:59", "day", 6),
            ("2026-01-15T10:00", "2025-01-15T10:00", "day", 0),
        ],
    )
    def test_periods(self, opened: str, now: str, period: Any, passed: int) -> None:
        assert periods_between(datetime.fromisoformat(opened), datetime.fromisoformat(now), period) == passed

    @pytest.mark.parametrize("allowance", [(0.0, "month"), (2.0, "month"), (math.nan, "month"), (0.1, "moon")])
    def test_bad_allowances_are_told(self, ledger: Ledger, allowance: Any) -> None:
        with pytest.raises(InputError, match="allowance="):
            ledger.open("clinic", EPSILON, DELTA, allowance=allowance)


class TestReceipts:
    def test_a_ledger_has_the_receipts_of_its_past(self, ledger: Ledger, account: Account) -> None:
        told = []
        for plan in ("p", "q"):
            account.reserve(plan, gaussian_plan(0.1))
            told.append(account.receipt())
        assert [receipt.number for receipt in told] == [2, 3]
        for receipt in told:
            ledger.check_receipt(receipt)
            assert Receipt.read(str(receipt)) == receipt

    @pytest.mark.parametrize("fate", ["set back", "cut", "made anew", "forked"])
    def test_another_past_is_found(self, ledger: Ledger, account: Account, fate: str) -> None:
        account.reserve("p", gaussian_plan(0.1))
        old = account.path.read_bytes()
        account.reserve("q", gaussian_plan(0.1))
        receipt = account.receipt()
        if fate in ("set back", "forked"):
            account.path.write_bytes(old)
        elif fate == "cut":
            edit(ledger, "DELETE FROM entries WHERE number = 3")
        else:
            account.path.unlink()
            Ledger.create(account.path).open("clinic", EPSILON, DELTA)
        ledger_file._forget()
        if fate != "set back":
            account.reserve("r" if fate != "made anew" else "q", gaussian_plan(0.1))
        assert Ledger(account.path).verify() >= 2  # sound in itself
        with pytest.raises(LedgerError, match="set back"):
            Ledger(account.path).check_receipt(receipt)

    def test_it_cannot_be_computed_from_the_entries_without_the_key(self, account: Account, tmp_path: Path) -> None:
        """Two ledgers with the same history, written at the same second, give different receipts."""
        other = Ledger.create(tmp_path / "other.ledger").open("clinic", EPSILON, DELTA)
        assert other.receipt().number == account.receipt().number
        assert other.receipt().hash != account.receipt().hash
        assert account.receipt().hash not in [entry.hash for entry in account.history()]

    @pytest.mark.parametrize("text", ["", "1", "1:xyz", f"-1:{'0' * 64}", f"1:{'0' * 63}", f"1:{'A' * 64}", None, 3])
    def test_what_is_no_receipt_is_told(self, text: Any) -> None:
        with pytest.raises(InputError, match="receipt="):
            Receipt.read(text)


class FitCharges(BaseEstimator):
    """The least an estimator does: charge a new plan at every fit."""

    def __init__(self, ledger: Account, strength: float = 1.0) -> None:
        self.ledger = ledger
        self.strength = strength

    def fit(self, X: np.ndarray, y: np.ndarray) -> FitCharges:
        self.ledger.reserve(os.urandom(8).hex(), gaussian_plan(0.05))
        return self

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        return self.strength


class TestCopies:
    def test_threads_share_a_budget(self, account: Account) -> None:
        def one(index: int) -> bool:
            try:
                Ledger(account.path).account().reserve(f"p{index}", gaussian_plan(0.4))
            except BudgetError:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            won = sum(threads.map(one, range(16)))
        assert won == account.balance().plans
        assert 1 < won < 16
        assert not account.would_fit(gaussian_plan(0.4))

    @pytest.mark.parametrize(
        "copied", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a)), lambda a: clone(a, safe=False)]
    )
    def test_a_copy_charges_the_same_file(self, account: Account, copied: Callable[[Account], Account]) -> None:
        other = copied(account)
        assert other == account
        other.reserve("p", gaussian_plan(1.0))
        assert not account.would_fit(gaussian_plan(0.1))

    def test_a_relative_path_is_kept_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        account = Ledger.create("holder.ledger").open("clinic", EPSILON, DELTA)
        monkeypatch.chdir("/")
        assert pickle.loads(pickle.dumps(account)).balance().plans == 0

    def test_a_cloned_estimator_and_a_grid_search_charge_every_fit(self, account: Account) -> None:
        X, y = np.zeros((12, 1)), np.zeros(12)
        clone(FitCharges(account)).fit(X, y)
        assert account.balance().plans == 1
        GridSearchCV(FitCharges(account), {"strength": [1.0, 2.0]}, cv=3, refit=True).fit(X, y)
        assert account.balance().plans == 1 + 2 * 3 + 1

    def test_a_ledger_survives_a_restart(self, account: Account) -> None:
        account.reserve("p", gaussian_plan(0.5))
        account.release("p", 0, "gradient", b"x")
        again = Ledger(account.path).account("clinic")
        assert again.balance() == account.balance()
        assert again.stored("p", 0, "gradient") == b"x"


class TestFile:
    def test_it_is_for_its_owner_alone_and_durable(self, ledger: Ledger) -> None:
        assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
        with ledger_file.reading(ledger.path) as entries:
            connection = entries._connection
            assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)

    def test_opening_never_makes_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError, match=r"no such file.*restore.*ledger create typo\.ledger"):
            Ledger(tmp_path / "typo.ledger")
        with pytest.raises(LedgerError, match="no such file"):
            Account(tmp_path / "typo.ledger", "clinic").balance()
        assert list(tmp_path.iterdir()) == []

    def test_making_never_replaces_a_file(self, ledger: Ledger, account: Account, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        before = account.path.read_bytes()
        for taken in (account.path, tmp_path / "empty"):
            with pytest.raises(LedgerError, match="never replaces"):
                Ledger.create(taken)
        assert account.path.read_bytes() == before
        assert not any(path.name.endswith(".new") for path in tmp_path.iterdir())

    @pytest.mark.parametrize("loss", ["removed", "0 bytes", "no entries", "new"])
    def test_a_lost_ledger_is_not_a_fresh_budget(self, ledger: Ledger, account: Account, loss: str) -> None:
        account.reserve("p", gaussian_plan(EPSILON))
        if loss == "0 bytes":
            account.path.write_bytes(b"")
        elif loss == "no entries":
            edit(ledger, "DELETE FROM entries")
        else:
            account.path.unlink()
        if loss == "new":
            subprocess.run(
                [sys.executable, "-c", f"from sottovoce import Ledger; Ledger.create({str(account.path)!r})"
                 ".open('clinic', 1.0, 1e-5)"],
                check=True,
            )  # fmt: skip
        for process in ("the same", "a new one"):
            if process == "a new one":
                ledger_file._forget()
                if loss == "new":
                    return  # told by a receipt alone
            with pytest.raises(LedgerError, match=r"restore"):
                account.reserve("q", gaussian_plan(0.1))
            with pytest.raises(LedgerError, match=r"restore"):
                Ledger(account.path)

    def test_a_folder_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError, match="cannot be made"):
            Ledger.create(tmp_path / "missing" / "holder.ledger")
        (tmp_path / "file").write_text("x")
        with pytest.raises(LedgerError, match="cannot be made"):
            Ledger.create(tmp_path / "file" / "holder.ledger")
        with pytest.raises(LedgerError, match="may not be opened"):
            Ledger(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
    def test_a_read_only_folder_is_told(self, account: Account) -> None:
        account.path.parent.chmod(0o500)
        try:
            with pytest.raises(LedgerError, match="may not be written"):
                account.reserve("p", gaussian_plan(0.5))
            with pytest.raises(LedgerError, match="cannot be made"):
                Ledger.create(account.path.parent / "other.ledger")
        finally:
            account.path.parent.chmod(0o700)

    def test_what_is_not_a_ledger_is_left_alone(self, tmp_path: Path) -> None:
        text = tmp_path / "notes.txt"
        text.write_text("dear diary, " * 500)
        with pytest.raises(LedgerError, match="not a SQLite file"):
            Ledger(text)
        other = tmp_path / "other.db"
        connection = sqlite3.connect(other)
        connection.execute("CREATE TABLE t (a)")
        connection.close()
        before = other.read_bytes()
        with pytest.raises(LedgerError, match="not a ledger"):
            Ledger(other)
        assert other.read_bytes() == before

    def test_another_format_is_told(self, ledger: Ledger) -> None:
        edit(ledger, "PRAGMA user_version = 7")
        with pytest.raises(LedgerError, match="format 7"):
            Ledger(ledger.path)

    def test_a_ledger_held_too_long_by_another_is_told(self, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledger_file, "BUSY_SECONDS", 0.05)
        with ledger_file.writing(account.path), pytest.raises(LedgerError, match="locked"):
            account.reserve("p", gaussian_plan(0.5))
        account.reserve("p", gaussian_plan(0.5))

    def test_a_full_disk_charges_nothing_and_damages_nothing(self, ledger: Ledger, account: Account) -> None:
        account.reserve("p", gaussian_plan(0.5))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (ledger.path.stat().st_size, hard))
        try:
            with pytest.raises(LedgerError, match="Nothing was released"):
                account.release("p", 0, "gradient", bytes(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.verify() == 2
        assert account.stored("p", 0, "gradient") is None
        assert account.release("p", 0, "gradient", b"x") == b"x"


class TestTampering:
    @pytest.fixture
    def used(self, ledger: Ledger, account: Account) -> Ledger:
        for plan in ("p", "q", "r"):
            account.reserve(plan, gaussian_plan(0.1))
            account.release(plan, 0, "gradient", plan.encode() * 100)
        assert ledger.verify() == 7
        return ledger

    def test_the_table_only_grows(self, used: Ledger) -> None:
        connection = sqlite3.connect(used.path)
        for statement in ("UPDATE entries SET plan = 'x'", "DELETE FROM entries WHERE number = 7"):
            with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                connection.execute(statement)
        connection.close()
        assert used.verify() == 7

    @pytest.mark.parametrize(
        "column", ["kind", "dataset", "plan", "round", "query", "details", "payload", "written", "previous", "hash"]
    )
    def test_any_edit_of_any_cell_is_found_and_named(self, used: Ledger, column: str) -> None:
        value = 5 if column == "round" else "clinic two" if column == "dataset" else "changed"
        edit(used, f"UPDATE entries SET {column} = ? WHERE number = 3", value)
        with pytest.raises(LedgerError, match=r"entry 3 "):
            used.verify()

    def test_a_damaged_text_is_found_and_named(self, used: Ledger) -> None:
        edit(used, "UPDATE entries SET details = CAST(x'ff00fe' AS TEXT) WHERE number = 4")
        with pytest.raises(LedgerError, match=r"entry 4 "):
            used.verify()
        with pytest.raises(LedgerError, match=r"entry 4 "):
            Account(used.path, "clinic").balance()

    def test_a_deleted_entry_is_found(self, used: Ledger) -> None:
        edit(used, "DELETE FROM entries WHERE number = 4")
        with pytest.raises(LedgerError, match="entry 4 is missing"):
            used.verify()
        with pytest.raises(LedgerError, match="entry 4 is missing"):
            Account(used.path, "clinic").reserve("s", gaussian_plan(0.1))

    def test_nothing_is_reserved_after_a_last_entry_that_was_edited(self, used: Ledger) -> None:
        edit(used, "UPDATE entries SET payload = x'00' WHERE number = 7")
        with pytest.raises(LedgerError, match=r"entry 7 "):
            Account(used.path, "clinic").reserve("s", gaussian_plan(0.1))
        with pytest.raises(LedgerError, match=r"entry 7 "):
            used.open("lab", EPSILON, DELTA)
        with pytest.raises(LedgerError, match=r"entry 7 "):
            Account(used.path, "clinic").stored("r", 0, "gradient")

    def test_a_cost_made_smaller_buys_nothing(self, used: Ledger) -> None:
        edit(used, "UPDATE entries SET details = replace(details, '\"cost\": 0.', '\"cost\": 0.0') WHERE number = 2")
        with pytest.raises(LedgerError, match=r"entry 2 "):
            Account(used.path, "clinic").reserve("s", gaussian_plan(0.1))

    def test_an_entry_hashed_anew_breaks_the_link_after_it(self, used: Ledger) -> None:
        with ledger_file.reading(used.path) as entries:
            row = entries.row(4)
        forged = row._replace(written="2001-01-01T00:00:00+00:00")
        edit(used, "UPDATE entries SET written = ?, hash = ? WHERE number = 4", forged.written, forged.expected_hash())
        with pytest.raises(LedgerError, match=r"entry 5 .*not chained"):
            used.verify()

    @pytest.mark.parametrize("kind", ["overspending", "unreserved", "unopened", "nonsense"])
    def test_a_sound_chain_of_entries_that_were_never_allowed_is_found(self, used: Ledger, kind: str) -> None:
        with ledger_file.writing(used.path) as entries:
            details = json.loads(entries.row(6).details)
            if kind == "overspending":
                forged = json.dumps(details | {"plan": "s", "cost": 100.0})
                entries.append("reservation", "clinic", "s", details=forged)
            elif kind == "unreserved":
                entries.append("release", "clinic", "s", 0, "gradient", payload=b"x")
            elif kind == "unopened":
                forged = json.dumps(details | {"plan": "s"})
                entries.append("reservation", "lab", "s", details=forged)
            else:
                entries.append("reservation", "clinic", "s", details="{}")
        with pytest.raises(LedgerError, match=r"entry 8 "):
            used.verify()

    def test_a_truncated_or_overwritten_file_is_told(self, used: Ledger) -> None:
        data = used.path.read_bytes()
        used.path.write_bytes(data[: len(data) // 2])
        with pytest.raises(LedgerError, match="damaged"):
            used.verify()
        used.path.write_bytes(data[:4096] + os.urandom(len(data) - 4096))
        with pytest.raises(LedgerError, match="damaged"):
            used.verify()
        used.path.write_bytes(os.urandom(len(data)))
        with pytest.raises(LedgerError, match="not a SQLite file"):
            used.verify()
        used.path.write_bytes(data)
        assert used.verify() == 7

    def test_a_flipped_byte_anywhere_in_a_payload_is_found(self, used: Ledger) -> None:
        data = bytearray(used.path.read_bytes())
        position = data.index(b"q" * 100) + 50
        data[position] ^= 1
        used.path.write_bytes(data)
        with pytest.raises(LedgerError, match=r"entry 5 "):
            used.verify()


class TestFitsOfSeveralPlans:
    """The first plan of a fit is charged for all of it where the plans one after the other have no room."""

    MU = mu_for(EPSILON, OWN)

    def within(self, name: str = "fit", relation: Relation = "zero-out", times: float = 1.0) -> FitPart:
        return FitPart(name, times * self.MU, relation)

    def part(self, share: float) -> list[Event]:
        return [Gaussian(math.sqrt(share) * self.MU)]

    @pytest.mark.parametrize("composition", ["renyi", "basic"])
    def test_a_whole_fit_is_charged_once_and_covers_its_plans(self, ledger: Ledger, composition: Any) -> None:
        account = ledger.open("people", EPSILON, DELTA, composition=composition)
        first = account.reserve("ranges", self.part(0.02), delta=DELTA, within=self.within())
        assert first.events == (Gaussian(self.MU),)
        assert account.balance().spent == pytest.approx(EPSILON)
        for _ in range(2):  # the same plan again is charged once
            second = account.reserve("fit", self.part(0.5), delta=DELTA, within=self.within())
        account.reserve("errors", self.part(0.48), delta=DELTA, within=self.within())
        assert (second.events, second.cost) == ((), 0.0)
        balance = account.balance()
        assert (balance.plans, balance.left) == (3, 0.0)
        assert balance.spent == pytest.approx(EPSILON)
        assert ledger.verify() == 4
        for name, share, other in (("more", 1e-4, "fit"), ("others", 1e-3, "another"), ("alone", 1e-3, None)):
            within = None if other is None else self.within(other)
            with pytest.raises(BudgetError):
                account.reserve(name, self.part(share), delta=DELTA, within=within)
        with pytest.raises(BudgetError):
            account.check("larger", self.part(0.01), delta=DELTA, within=self.within(times=2.0))
        with pytest.raises(LedgerError, match="other events"):
            account.reserve("fit", self.part(0.4), delta=DELTA, within=self.within())

    def test_only_gaussian_plans_are_covered(self, ledger: Ledger) -> None:
        account = ledger.open("people", EPSILON, DELTA)
        account.reserve("ranges", self.part(0.02), within=self.within())
        for events in ([PoissonGaussian(0.01, 40.0, 3)], [*self.part(0.01), Selection(1e-6)]):
            with pytest.raises(BudgetError):
                account.reserve("fit", events, within=self.within())
        account.reserve("nothing", [Gaussian(0.0)], within=self.within())
        account.reserve("fit", self.part(0.98), within=self.within())
        with pytest.raises(BudgetError, match="would cost more than was charged for all of it"):
            account.reserve("more", self.part(1e-6), within=self.within())

    def test_an_account_of_another_relation_has_room_for_the_whole_or_refuses_the_first(self, ledger: Ledger) -> None:
        """A record that is replaced moves a sum twice as far."""

        def moved(share: float) -> Callable[[Relation], list[Event]]:
            return lambda relation: [Gaussian(math.sqrt(share) * self.MU * (2 if relation == "replace-one" else 1))]

        twice = epsilon_of([Gaussian(2 * self.MU)], OWN, "replace-one")
        account = ledger.open("people", twice * (1 + 1e-9), DELTA, relation="replace-one")
        account.reserve("ranges", moved(0.02), within=self.within())
        account.reserve("fit", moved(0.98), within=self.within())
        assert account.balance().spent == pytest.approx(twice)
        small = ledger.open("small", 0.99 * twice, DELTA, relation="replace-one")
        with pytest.raises(BudgetError):
            small.reserve("a", moved(0.02), within=self.within())
        assert small.balance().spent == 0.0

    def test_where_epsilons_add_a_fit_is_charged_as_a_whole(self, ledger: Ledger) -> None:
        """How many plans follow the first is not known, and each costs more than its part."""
        account = ledger.open("people", 1.3 * EPSILON, 3 * DELTA, composition="basic")
        for plan, share in (("ranges", 0.02), ("fit", 0.58), ("errors", 0.4)):
            account.reserve(plan, self.part(share), delta=DELTA, within=self.within())
        assert account.balance().spent == pytest.approx(EPSILON)

    def test_where_there_is_room_each_plan_is_charged_by_itself(self, ledger: Ledger) -> None:
        account = ledger.open("people", 2 * EPSILON, DELTA)
        assert account.reserve("ranges", self.part(0.02), within=self.within()).events == tuple(self.part(0.02))
        account.reserve("another", [Gaussian(mu_for(1.7, OWN))])  # meanwhile
        left = account.balance().left
        assert left < EPSILON
        with pytest.raises(BudgetError):  # after a release it is too late to charge the fit as a whole
            account.reserve("fit", self.part(0.98), within=self.within())
        assert account.balance().left == left

    def test_accounts_above_are_charged_alike(self, ledger: Ledger) -> None:
        ledger.open("all", EPSILON, DELTA)
        account = ledger.open("some", 3 * EPSILON, DELTA, under="all")
        account.reserve("ranges", self.part(0.1), within=self.within())
        account.reserve("fit", self.part(0.9), within=self.within())
        assert ledger.account("all").balance().spent == pytest.approx(EPSILON)
        assert account.balance().plans == 2
        assert ledger.verify() == 6
        with pytest.raises(BudgetError):
            account.reserve("more", self.part(0.01), within=self.within())

    def test_a_cover_that_nobody_paid_for_is_found(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """An entry that claims to be covered, on an account without the whole, does not verify."""
        account = ledger.open("people", EPSILON, DELTA)
        with monkeypatch.context() as patch:
            patch.setattr("sottovoce.privacy.spending.Book.fits", lambda *_: True)
            patch.setattr("sottovoce.privacy.ledger.price_line", lambda line, offers: {
                name: replace(offers[name].own, events=(), cost=0.0, epsilon=0.0, covered=True) for name, _ in line
            })  # fmt: skip
            account.reserve("fit", self.part(0.9), within=self.within())
        with pytest.raises(LedgerError):
            ledger.verify()
