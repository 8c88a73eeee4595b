"""Transcripts are those of real runs, and their likelihood is the density of what was released."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.gate.gate import value_of
from sottovoce.gate.query import Round
from sottovoce.lab.audit.games import neighbours
from sottovoce.lab.audit.runner import BALL, ENTRIES, audit_plan
from sottovoce.lab.audit.transcript import AdversaryView, Side, log_likelihood
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import SeededRandomness
from support import at

PLANS: dict[str, dict[str, Any]] = {
    "gradient": {"rounds": 3},
    "sgd": {"rounds": 3, "rate": 0.5, "split": "rows", "parties": 2},
    "scd": {"rounds": 4, "rate": 0.5, "clip": 1e-2},
    "cd": {"rounds": 2, "inner": 3},
    "greedy-cd": {"rounds": 3, "split": "rows", "parties": 2},
    "frank-wolfe": {"rounds": 6, "features": 2, "bounds": ENTRIES, "regulariser": BALL},
    "admm": {"rounds": 3, "split": "columns", "parties": 2},
    "score": {"rounds": 2, "split": "columns", "parties": 3, "labels": "held"},
}


def data_of(plan: Plan, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    widths = [plan.part(name).stop - plan.part(name).start for name, _ in plan.parties]
    labels = rng.uniform(-1, 1, plan.records)
    return {
        name: (rng.uniform(-0.5, 0.5, (count, width)), labels[:count])
        for (name, count), width in zip(plan.parties, widths, strict=True)
    }


def sources(side: Side, seed: int) -> dict[str, SeededRandomness]:
    return {name: SeededRandomness(seed, name) for name in side.blocks}


@pytest.mark.parametrize("solver", PLANS)
def test_a_played_run_is_what_a_coordinator_records(solver: str) -> None:
    plan = audit_plan(solver, **PLANS[solver])
    data = data_of(plan, 1)
    holder = plan.label_party_name
    parties = [
        sv.Party(name, X, None if plan.labels == "held" and name != holder else y, randomness=SeededRandomness(5, name))
        for name, (X, y) in data.items()
    ]
    from sottovoce.federation.coordinator import Coordinator
    from sottovoce.transports.base import InProcess

    coordinator = Coordinator(InProcess(parties), record=True)
    solution, _ = coordinator.run(plan, algorithms.of(plan))
    side = Side(plan, data)
    played = side.play(sources(side, 5))
    recorded = [m for m in coordinator.transcript or [] if m.name in side.releases]
    assert [(m.sender, m.name, m.round) for m in recorded] == [(m.party, m.query, m.round) for m in played.messages]
    for ours, theirs in zip(played.messages, recorded, strict=True):
        value = value_of(ours.released.arrays, side.releases[ours.query].scale)
        np.testing.assert_array_equal(value, theirs.payload)
    np.testing.assert_array_equal(played.solution.weights, solution.weights)


def test_the_likelihood_of_gradients_is_their_gaussian_density() -> None:
    plan = audit_plan("gradient", rounds=3, features=2)
    side, other = (Side(plan, data_of(plan, seed)) for seed in (1, 2))
    transcript = side.play(sources(side, 3))
    release = plan.releases[0]
    for hypothesis in (side, other):
        block, loss = hypothesis.blocks["party 1"], plan.scaled_loss
        expected = 0.0
        for message in transcript.messages:
            slopes = np.clip(loss.derivative(block.rows @ message.told["weights"], block.labels), -0.5, 0.5)
            rest = message.released.arrays["grid"] * release.step - block.rows.T.astype(float) @ slopes
            expected -= float(rest @ rest) / (2 * release.std**2)
        assert log_likelihood(hypothesis, transcript) == pytest.approx(expected, abs=1e-2)
    assert log_likelihood(side, transcript) != log_likelihood(other, transcript)


def test_the_likelihood_of_choices_is_their_softmax() -> None:
    plan = audit_plan("frank-wolfe", **PLANS["frank-wolfe"])
    side = Side(plan, data_of(plan, 1))
    transcript = side.play(sources(side, 3))
    query, block = side.queries["party 1"]["atom"], side.blocks["party 1"]
    memory = side.memories()["party 1"]
    expected = 0.0
    for message in transcript.messages:
        scores = query.value(Round(plan, message.round, message.told, block, memory)) / plan.releases[0].std
        code = int(message.released.arrays["grid"][0])
        place = code - 1 if code > 0 else len(scores) - code - 1
        expected += float(log_softmax(np.concatenate([scores, -scores]))[place])
    assert log_likelihood(side, transcript) == pytest.approx(expected, abs=1e-2)


@pytest.mark.slow
def test_probabilities_of_a_noisy_maximum_sum_to_one_and_are_met() -> None:
    plan = audit_plan("frank-wolfe", **{**PLANS["frank-wolfe"], "rounds": 1}, calibration="paper", epsilon=30.0)
    side = Side(plan, data_of(plan, 1))
    source, runs, seen = sources(side, 3), 3000, dict[int, int]()
    chances: dict[int, float] = {}
    for _ in range(runs):
        transcript = side.play(source)
        code = int(transcript.messages[0].released.arrays["grid"][0])
        seen[code] = seen.get(code, 0) + 1
        chances.setdefault(code, math.exp(log_likelihood(side, transcript)))
    assert sum(chances.values()) == pytest.approx(1.0, abs=2e-3)
    for code, chance in chances.items():  # five standard errors: below 1e-6 each
        assert abs(seen[code] / runs - chance) < 5 * math.sqrt(chance * (1 - chance) / runs) + 2e-3


def test_a_sampled_release_is_weighed_as_a_mixture() -> None:
    plan = audit_plan("sgd", rounds=2, rate=0.4, relation="zero-out")
    first, second = (Side(plan, data) for data in neighbours(plan))
    transcript = first.play(sources(first, 3))
    release, block = plan.releases[0], first.blocks["party 1"]
    expected = 0.0
    for message in transcript.messages:
        value = at(first.queries["party 1"]["gradient"], block, weights=message.told["weights"])
        released = message.released.arrays["grid"] * release.step
        densities = [
            math.exp(-float((released - v) @ (released - v)) / (2 * release.std**2)) for v in (0 * value, value)
        ]
        expected += math.log(0.6 * densities[0] + 0.4 * densities[1]) - math.log(densities[0])
    ratio = log_likelihood(first, transcript) - log_likelihood(second, transcript)
    assert ratio == pytest.approx(expected, abs=1e-2)


def test_a_walk_is_weighed_at_the_released_numbers_before_each() -> None:
    """The walk of several coordinates in one message equals as many messages of one coordinate each."""
    plan = audit_plan("cd", rounds=1, inner=4, curvature_share=0.0)
    side, other = (Side(plan, data_of(plan, seed)) for seed in (1, 2))
    (message,) = side.play(sources(side, 3)).messages
    grid, release = message.released.arrays["grid"], plan.releases[0]
    for hypothesis in (side, other):
        query, block = hypothesis.queries["party 1"]["coordinates"], hypothesis.blocks["party 1"]
        noise = np.zeros(len(grid), dtype=np.int64)
        for place in range(len(grid)):  # the noise of each number, once those before it are as released
            asked = Round(plan, message.round, message.told, block, hypothesis.memories()["party 1"])
            noise[place] += grid[place] - query.walk(asked, noise, release.step)[place]
        expected = -0.5 * float(np.sum((noise * release.step / release.std) ** 2))
        found = log_likelihood(hypothesis, side.play(sources(side, 3)))
        assert found == pytest.approx(expected, rel=1e-9)


def test_messages_of_kept_rows_are_weighed_as_one_draw_of_their_noise() -> None:
    """Two parties of one column: whatever the weights, all scores tell the noisy column, and no more."""
    plan = audit_plan("admm", rounds=4, split="columns", parties=2, features=1)
    first, second = (Side(plan, data) for data in neighbours(plan))
    transcript = first.play(sources(first, 3))
    std = plan.release("rows").std
    expected = 0.0
    for name in first.blocks:
        told = [m for m in transcript.messages if m.party == name and m.query == "scores" and m.told["weights"][0]]
        noisy = told[-1].released.arrays["value"] / told[-1].told["weights"][0]
        rows = [np.asarray(side.blocks[name].rows[:, 0], dtype=float) for side in (first, second)]
        expected += float(np.sum((noisy - rows[1]) ** 2) - np.sum((noisy - rows[0]) ** 2)) / (2 * std**2)
    kept = {"gram": 0, "gradient": 0}  # of the other releases nothing is seen
    view = AdversaryView(visible=kept)
    found = log_likelihood(first, transcript, view) - log_likelihood(second, transcript, view)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
