from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from covering import pairwise
from sottovoce.estimators import privacy_report

ADVERSARIES = ("world", "coordinator", "parties")


def federation(data: Any, split: str) -> sv.Federation:
    X, y = data.X, data.classes
    if split == "central":
        return sv.Federation.central(X, y)
    return sv.Federation.by_rows([(X[:60], y[:60]), (X[60:150], y[60:150]), (X[150:], y[150:])])


def planned(federation: sv.Federation, *budget: float, **parameters: Any) -> sv.PrivacyReport:
    """The report of the plan that a fit would run; no round of it is run."""
    plan = sv.PrivateLogisticRegression(*budget, row_norm=3.0, **parameters).plan(federation)
    return privacy_report(plan, seeded=False)


class TestTight:
    @pairwise(
        solver=["newton", "gradient", "sgd"],
        relation=["zero-out", "replace-one"],
        split=["central", "rows"],
        epsilon=[0.1, 1.0, 8.0],
    )
    def test_the_budget_is_kept_and_used(
        self, data: Any, solver: str, relation: Any, split: str, epsilon: float
    ) -> None:
        report = planned(federation(data, split), epsilon, relation=relation, solver=solver)
        assert 0.99 * epsilon <= report.epsilon <= epsilon
        assert report.delta == 1e-5
        assert report.relation == relation
        assert report.claimed_epsilon is None
        assert report.world.epsilon <= report.coordinator.epsilon
        assert (report.world.epsilon < 0.75 * epsilon) == (split == "rows")  # the sum carries three parties' noise
        assert report.parties.epsilon <= report.epsilon

    @pytest.mark.parametrize("kind", [sv.PrivateRidge, sv.PrivateLogisticRegression])
    @pytest.mark.parametrize("solver", ["newton", "gradient", "sgd"])
    def test_a_fit_reports_the_plan_it_ran(self, data: Any, kind: Any, solver: str) -> None:
        bounds = {"label_bound": 12.0} if kind is sv.PrivateRidge else {}
        y = data.y if bounds else data.classes
        model = kind(0.7, 1e-6, solver=sv.solvers.by_name(solver, rounds=5), row_norm=3.0, **bounds).fit(data.X, y)
        assert model.privacy_ == privacy_report(model.plan_, seeded=False)
        assert 0.99 * 0.7 <= model.privacy_.epsilon <= 0.7
        assert model.privacy_.delta == 1e-6

    def test_one_party_a_round_costs_at_most_the_budget(self, data: Any) -> None:
        report = planned(federation(data, "rows"), 1.0, solver=sv.solvers.SGD(schedule="one-party"))
        assert report.world.epsilon == report.coordinator.epsilon == report.epsilon <= 1.0

    def test_without_privacy_nothing_is_promised(self, data: Any) -> None:
        model = sv.PrivateLogisticRegression(math.inf, alpha=0.01).fit(data.X, data.classes)
        assert math.isinf(model.privacy_.epsilon)
        for adversary in ADVERSARIES:
            assert "NO PROMISE" in model.privacy_.against(adversary).sentence()
        assert json.loads(model.privacy_.to_json())["epsilon"] == "inf"


class TestPaper:
    """The formulas as published; the guarantee is computed from the noise that they give."""

    @pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
    @pytest.mark.parametrize("rounds", [10, 100])
    def test_full_gradients_are_over_noised(self, data: Any, relation: Any, rounds: int) -> None:
        report = planned(
            federation(data, "rows"),
            1.0,
            relation=relation,
            solver=sv.solvers.Gradient(rounds=rounds),
            calibration="paper",
        )
        assert report.claimed_epsilon == 1.0
        assert 0.1 < report.epsilon < 0.25  # five to six times less than claimed

    @pytest.mark.slow
    @pytest.mark.parametrize(("records", "average"), [(100, 0.934), (1000, 2.632)])
    def test_named_records_are_not_hidden_from_the_coordinator(self, records: int, average: float) -> None:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(records, 2))
        report = planned(
            sv.Federation.central(X, (X[:, 0] > 0).astype(int)),
            1.0,
            0.1 / records**3,
            relation="replace-one",
            solver="sgd",
            calibration="paper",
        )
        assert report.public["rounds"] == records**2
        assert report.claimed_epsilon == 1.0
        assert average < report.coordinator.epsilon < 1.3 * average  # the coordinator has the coin: no mean over coins
        assert report.epsilon == report.coordinator.epsilon
        assert report.world.epsilon == report.coordinator.epsilon  # which the report tells the world

    @pytest.mark.parametrize("solver", ["gradient", "sgd"])
    def test_a_fit_says_both(self, data: Any, solver: str) -> None:
        model = sv.PrivateLogisticRegression(
            2.0, solver=sv.solvers.by_name(solver, rounds=20), calibration="paper", row_norm=3.0
        )
        report = model.fit(data.X, data.classes).privacy_
        assert report.claimed_epsilon == 2.0
        assert report.epsilon != 2.0
        for adversary in ADVERSARIES:
            guarantee = report.against(adversary)
            assert f"epsilon = {guarantee.epsilon:.4g}" in guarantee.sentence()
            assert "The published formula claims epsilon = 2." in guarantee.sentence()


class TestWords:
    @pytest.fixture
    def report(self, data: Any) -> sv.PrivacyReport:
        return planned(federation(data, "rows"), 0.5)

    def test_a_sentence_for_each_adversary(self, report: sv.PrivacyReport) -> None:
        lines = str(report).splitlines()
        assert len(lines) == 5
        assert [line.split(":")[0] for line in lines[:3]] == [
            "Against anyone who sees the final model",
            "Against the coordinator, who sees every message and who sent it",
            "Against all other parties together, who see every broadcast and know their own data and noise",
        ]
        assert f"at most {math.exp(report.epsilon):.4g} times (epsilon = {report.epsilon:.4g})" in lines[1]
        assert "had been left blank" in lines[1]
        assert "1e-05 (delta)" in lines[1]
        assert lines[3] == report.withdrawal()
        assert "nobody's record is with two parties" in lines[4]
        assert "the class labels are public" in lines[4]

    def test_replace_one_in_words(self, data: Any) -> None:
        report = planned(federation(data, "central"), 1.0, relation="replace-one")
        assert "had been replaced by any other record" in report.world.sentence()

    def test_json(self, report: sv.PrivacyReport) -> None:
        read = json.loads(report.to_json())
        assert read["epsilon"] == report.epsilon
        assert read["delta"] == 1e-5
        assert read["relation"] == "zero-out"
        assert read["claimed_epsilon"] is None
        assert set(read["against"]) == set(ADVERSARIES)
        for adversary in ADVERSARIES:
            assert read["against"][adversary]["epsilon"] == report.against(adversary).epsilon
            assert read["against"][adversary]["sentence"] == report.against(adversary).sentence()
        assert read["public"]["parties"] == {"party-1": 60, "party-2": 90, "party-3": 90}
        assert read["public"]["records"] == 240
        assert read["public"]["classes"] == [0, 1]
        assert read["public"]["bounds"]["row_norm"] == 3.0

    def test_an_unknown_adversary(self, report: sv.PrivacyReport) -> None:
        with pytest.raises(sv.InputError, match="adversary='moon' must be one of world, coordinator, parties"):
            report.against("moon")  # type: ignore[arg-type]


class TestSeed:
    def test_a_seed_voids_the_guarantee(self, data: Any) -> None:
        seeded, free = (
            sv.PrivateLogisticRegression(1.0, row_norm=3.0, solver=sv.solvers.Newton(rounds=3), insecure_seed=seed).fit(
                data.X, data.classes
            )
            for seed in (0, None)
        )
        for adversary in ADVERSARIES:
            said = seeded.privacy_.against(adversary).sentence()
            assert "NO PROMISE" in said
            assert "insecure_seed" in said
            assert "NO PROMISE" not in free.privacy_.against(adversary).sentence()
        assert json.loads(seeded.privacy_.to_json())["against"]["world"]["void"]
        assert json.loads(free.privacy_.to_json())["against"]["world"]["void"] is None
