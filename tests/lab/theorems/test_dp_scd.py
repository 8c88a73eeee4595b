"""Each printed statement on a ridge problem where both sides can be computed; counter-examples where it is false."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from plans import small_problem
from sottovoce import algorithms
from sottovoce.data.block import Block
from sottovoce.gate.query import Round
from sottovoce.lab.theorems import dp_scd as theorems
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.privacy.calibration import moments_epsilon, moments_noise_for
from support import plan_of, query_of

SETTINGS = (  # epsilon, delta, records, a lot or batch, epochs, C
    (1.0, 1e-5, 40, 4, 3, 0.5),
    (0.5, 1e-3, 200, 10, 5, 0.01),
    (4.0, 1e-5, 100, 1, 2, 1.0),
    (2.0, 1e-4, 60, 60, 4, 3e-4),
    (0.3, 1e-3, 1000, 100, 10, 0.2),
)


def published(
    solver: str, epsilon: float, delta: float, records: int, *, fit_intercept: bool = True, **options: Any
) -> Plan:
    fields: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "parties": (("anna", records),)}
    fields["fit_intercept"] = fit_intercept
    fields["regulariser"] = Named(name="l2", parameters={"alpha": 0.1})
    return plan_of(small_problem(**fields, calibration="paper"), solver, **options)


class TestPrintedNoise:
    """To rounding given the accountant's sigma; the accountant to the 0.01% that it states."""

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_dual(self, setting):
        epsilon, delta, records, lot, epochs, clip = setting
        rate, rounds = lot / records, epochs * records // lot
        plan = published("scd", epsilon, delta, records, rate=rate, rounds=rounds, clip=clip)
        sigma = moments_noise_for(epsilon, delta, rate, rounds)
        assert plan.releases[0].std == pytest.approx(theorems.dual_sensitivity(clip) * sigma, rel=1e-12)
        assert (plan.rounds, plan.numbers.rate, plan.numbers.averaged) == (rounds, rate, 1)

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_sequential(self, setting):
        epsilon, delta, records, lot, epochs, clip = setting
        plan = published("scd-sequential", epsilon, delta, records, lot=lot, rounds=epochs, clip=clip)
        sigma = moments_noise_for(epsilon, delta, lot / records, epochs * records // lot)
        assert plan.releases[0].std == pytest.approx(theorems.correlated_sensitivity(clip, lot) * sigma, rel=1e-12)
        printed = query_of(plan, "state").sensitivity("replace-one")
        assert printed == pytest.approx(theorems.correlated_sensitivity(clip, lot), rel=1e-12)
        assert query_of(plan, "state").sensitivity("zero-out") < printed

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_primal(self, setting):
        epsilon, delta, records, lot, rounds, clip = setting
        lot = min(lot, 3)
        plan = published("scd-primal", epsilon, delta, records, lot=lot, rounds=rounds, clip=clip)
        sigma = moments_noise_for(epsilon, delta, 1.0, rounds)
        assert plan.releases[0].std == pytest.approx(theorems.correlated_sensitivity(clip, lot) * sigma, rel=1e-12)
        printed = query_of(plan, "state").sensitivity("replace-one")
        assert printed == pytest.approx(theorems.correlated_sensitivity(clip, lot), rel=1e-11)

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_the_accountant_is_the_least_to_its_precision(self, setting):
        epsilon, delta, records, lot, epochs, _ = setting
        rate, rounds = lot / records, epochs * records // lot
        sigma, most = (
            moments_noise_for(epsilon, delta, rate, rounds),
            32 if epsilon > -1.2 * math.log(delta) / 32 else 1024,
        )
        assert moments_epsilon(sigma, rate, rounds, delta, most=most) <= epsilon
        assert moments_epsilon(sigma * (1 - 1.01e-4), rate, rounds, delta, most=most) > epsilon


class TestGuarantee:
    def test_sequential_pays_for_the_lots_of_the_most_drawn_record(self):
        plan = published("scd-sequential", 1.0, 1e-5, 50, lot=5, rounds=8, clip=0.1)
        drawn = [plan.public_coin(f"lot {t}").choice(50, 5, replace=False) for t in range(plan.rounds)]
        uses = np.bincount(np.concatenate(drawn)).max()
        assert 8 < uses < plan.rounds
        form, release = algorithms.of(plan), plan.releases[0]
        (event,) = form.pricing.events(form, plan, "replace-one", "anna")
        assert event.mu == pytest.approx(release.charged("replace-one") * math.sqrt(uses) / release.std)
        assert form.pricing.epsilons(form, plan, "replace-one")["coordinator"] > 3.0  # claimed: 1

    def test_primal_holds(self):
        plan = published("scd-primal", 1.0, 1e-5, 50, lot=2, rounds=20)
        form = algorithms.of(plan)
        for relation in ("zero-out", "replace-one"):
            assert 0.3 < form.pricing.epsilons(form, plan, relation)["coordinator"] < 1.0

    @pytest.mark.parametrize(
        ("solver", "options", "query"),
        [
            ("scd-sequential", {"lot": 6, "rounds": 60, "clip": 2.0}, "state"),
            ("scd-primal", {"lot": 2, "rounds": 300, "clip": 20.0}, "state"),
        ],
    )
    def test_their_steps_reach_the_optimum_without_noise(self, solver, options, query):
        rng = np.random.default_rng(0)
        X = rng.uniform(-0.5, 0.5, (60, 3))
        y = np.clip(X @ [1.0, -0.5, 0.2], -1, 1)
        plan = published(solver, 1e4, 1e-5, 60, fit_intercept=False, **options)
        form, asked = algorithms.of(plan), query_of(plan, query)
        block = Block.prepare(X, y, plan.preparation)
        memory, text = form.remember(plan, block), form.coordinate(plan)
        ask, step, found = next(text), 2.0**-30, None
        for t in range(plan.rounds):
            told = Round(plan, t, ask.arrays, block, memory)
            state = asked.walk(told, np.zeros(asked.length, dtype=np.int64), step) * step
            try:
                ask = text.send({"anna": state})
            except StopIteration as ended:
                found = ended.value
        rows = np.asarray(block.rows, dtype=float)
        ridge = plan.scaled_regulariser.by_coordinate(3)[1][0]
        best = np.linalg.solve(rows.T @ rows / 60 + ridge * np.eye(3), rows.T @ block.labels / 60)
        np.testing.assert_allclose(found, best, atol=1e-5)


@pytest.fixture(scope="module")
def dual() -> theorems.RidgeDual:
    return theorems.RidgeDual.drawn(records=200, features=8, ridge=0.02)


def drawn(dual: theorems.RidgeDual, rng: np.random.Generator, lot: int = 20) -> np.ndarray:
    return rng.choice(len(dual.y), lot, replace=False)


class TestUpdate:
    def test_lemma_2_where_v_is_consistent(self, dual):
        rng = np.random.default_rng(1)
        least = theorems.share_of_update(1.0, dual.ridge, 200, 20)
        for _ in range(30):
            duals = rng.standard_normal(200)
            before = dual.excess(duals)
            after = [dual.excess(dual.stepped(duals, dual.X.T @ duals, drawn(dual, rng))) for _ in range(50)]
            assert before - np.mean(after) >= least * before

    def test_lemma_2_is_false_with_noise_in_v(self, dual):
        """At the optimum the bound is 0, and every update away from it is an increase."""
        rng = np.random.default_rng(2)
        v = dual.X.T @ dual.best
        for _ in range(20):
            noisy = v + 0.1 * rng.standard_normal(8)
            assert dual.excess(dual.stepped(dual.best, noisy, drawn(dual, rng))) > 1e-9
        assert dual.excess(dual.stepped(dual.best, v, drawn(dual, rng))) < 1e-12  # negative control

    def test_equation_10(self, dual):
        rng = np.random.default_rng(3)
        least = theorems.share_of_update(1.0, dual.ridge, 200, 20)
        for _ in range(10):
            duals, lost, batches = rng.standard_normal(200), [], [drawn(dual, rng) for _ in range(50)]
            v, before = dual.X.T @ duals, dual.excess(duals)
            full = np.mean([dual.excess(dual.stepped(duals, v, batch)) for batch in batches])
            for clip in (0.01, 0.1, 1.0, 100.0):
                cut = np.mean([dual.excess(dual.stepped(duals, v, batch, clip)) for batch in batches])
                lost.append(theorems.lost_by_scaling(before, full, cut))
                steps = dual.stepped(duals, v, np.arange(200), lot=20) - duals
                kappa = theorems.most_lost_by_scaling(steps, clip)
                assert before - cut >= (1 - kappa) * least * before
            assert 1 > lost[0] > lost[1] > lost[2] >= lost[3] == 0.0


class TestPerturbation:
    def test_lemma_3_is_false_by_a_factor_of_one_plus_lambda_n(self, dual):
        rng, std, lot = np.random.default_rng(4), 0.3, 20
        duals, found = dual.best + rng.standard_normal(200), []
        for _ in range(4000):
            noise, batch = np.zeros(200), drawn(dual, rng)
            noise[batch] = std * rng.standard_normal(lot)
            found.append((dual.excess(duals + noise) + dual.excess(duals - noise)) / 2 - dual.excess(duals))
        true = theorems.ridge_increase(dual.ridge, 200, lot, std**2)
        assert np.mean(found) == pytest.approx(true, rel=0.05)  # of 4000 sums of 20 squares: sd 0.5%
        printed = theorems.printed_increase(dual.ridge, 200, lot, std**2)
        assert true / printed == pytest.approx(1 + 0.02 * 200)
        assert np.mean(found) > 4 * printed

    def test_of_a_bounded_slope_it_is_infinite(self):
        loss = sv.losses.get("logistic")
        assert math.isinf(loss.conjugate(-np.array([1.2]), np.array([1.0]))[0])
        assert math.isfinite(loss.conjugate(-np.array([0.8]), np.array([1.0]))[0])


class TestTheorem2:
    def test_its_condition_is_that_an_update_halves(self):
        for mu, ridge, kappa, lot in (
            (1.0, 3.0, 0.1, 60),
            (1.0, 3.0, 0.1, 80),
            (4.0, 2.0, 0.4, 90),
            (1.0, 0.9, 0.0, 100),
        ):
            share = (1 - kappa) * theorems.share_of_update(mu, ridge, 100, lot)
            assert (share > 0.5) == (lot > theorems.least_lot(mu, ridge, 100, kappa))

    def test_no_batch_meets_it_unless_mu_lambda_is_above_one(self):
        for strength in (1e-4, 0.4, 0.6, 1.0, 1.01, 1.2, 5.0):
            for kappa in (0.0, 0.05, 0.3, 0.6):
                possible = theorems.least_lot(1.0, strength, 1000, kappa) < 1000
                assert possible == (strength * (1 - 2 * kappa) > 1)
        assert theorems.least_lot(1.0, 1e-4, 347_786) == math.inf  # the authors' example
        assert theorems.least_lot(1.0, 1e9, 1000) == pytest.approx(500, rel=1e-6)  # never below N / 2

    def test_orders(self):
        first = theorems.order_of_suboptimality(2.0, 1000, 10, 1.0, 1e-5)
        assert theorems.order_of_rounds(1.5, 1000, 800, 1.0, 1e-5) == pytest.approx(
            math.log(1.5e12 / 5.12e8 / math.log(1e5))
        )
        assert first == pytest.approx(1e3 / (2.0 * 1e12) * math.log(200) * math.log(1e5))
        assert theorems.order_of_sigma(0.5, 1e-5, 0.01, 400) == pytest.approx(0.4 * math.sqrt(math.log(1e5)))
        of = list(theorems.orders_of_utility(1000, 50, 0.5, 100).values())
        assert of[0] == of[1] == pytest.approx(2e-4)
        assert of[2] / of[0] == pytest.approx(math.log(1000))
        assert of[3] == pytest.approx(1e6 * math.log(10) / 0.25e12)


class TestNoise:
    def test_remark_1_and_how_far_v_and_the_duals_come_apart(self):
        """v - X alpha is the noise alone: 0 on average, and grows with the rounds."""
        rng, found = np.random.default_rng(5), []
        X = rng.standard_normal((50, 3))
        X /= np.linalg.norm(X, axis=1)[:, None]
        plan = published("scd", 2.0, 1e-5, 50, fit_intercept=False, rounds=20, rate=0.2, clip=0.3)
        form, asked, release = algorithms.of(plan), query_of(plan, "state"), plan.releases[0]
        block, std = Block.prepare(X, np.sign(X[:, 0]) * 0.5, plan.preparation), release.std
        for _ in range(150):
            memory, v = form.remember(plan, block), np.zeros(3)
            for t in range(20):
                batch = block.take(np.flatnonzero(rng.random(50) < 0.2))
                noise = np.rint(std / release.step * rng.standard_normal(53)).astype(np.int64)
                told = Round(plan, t, {"weights": v / (plan.numbers.ridge * 50)}, batch, memory)
                v = v + asked.walk(told, noise, release.step)[:3] * release.step
            found.append(v - np.asarray(block.rows, dtype=float).T @ memory)
        apart = 20 * (3 + 10) * std**2  # T (M + L) std^2, which nothing takes back
        assert np.mean(np.sum(np.square(found), axis=1)) == pytest.approx(apart, rel=0.4)
        least = 5.5 * math.sqrt(apart / 3 / 150)
        assert np.abs(np.mean(found, axis=0)).max() < least
        assert least < 20 * std / 3  # negative control: a bias of a third of the noise in each round would be seen

    def test_the_excess_grows_with_the_features_and_with_the_rounds(self):
        found = {}
        for features, rounds in ((4, 100), (64, 100), (4, 800)):
            dual = theorems.RidgeDual.drawn(records=200, features=features, ridge=0.2)
            runs = [
                dual.descend(20, rounds, 1.0, 0.5, np.random.default_rng([seed, features]))[1] for seed in range(30)
            ]
            found[features, rounds] = np.mean([dual.primal_excess(v) for v in runs])
            assert found[features, rounds] > theorems.excess_of_last_noise(features, 0.2, 200, 0.5)
        assert found[64, 100] > 3 * found[4, 100]
        assert found[4, 800] > 4 * found[4, 100]  # a ball whose radius depends on sigma alone would be as large
