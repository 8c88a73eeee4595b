"""The published private form, broken by what it sends; and the same attacks on the forms that replace it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

import sottovoce as sv
from sottovoce.algorithms.sharing.published import PublishedADMM, per_round
from sottovoce.data.block import Block
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.policy import Policy
from sottovoce.plan.plan import Plan
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import Unbounded
from sottovoce.solvers import by_name
from support import events_of, world_events_of

RECORDS, WIDTHS = 120, (3, 4)
ALARM = 1e-6  # of every threshold below: how often a sound mechanism may fail it


def people(seed: int, records: int = RECORDS) -> tuple[list[np.ndarray], np.ndarray]:
    """Two parties' columns and labels that have nothing to do with them."""
    generator = np.random.default_rng(seed)
    X = np.clip(generator.standard_normal((records, sum(WIDTHS))) / 3, -1, 1)
    return np.split(X, [WIDTHS[0]], axis=1), np.where(generator.random(records) < 0.5, 1, -1)


def fitted(parts: list[np.ndarray], y: np.ndarray, seed: int, labels: Any = "shared", **parameters: Any) -> Any:
    defaults: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "entry_bound": 1.0, "classes": (-1, 1)}
    known = ("rounds", "rows", "unit", "rho", "feasible_norm")
    options = {name: parameters.pop(name) for name in known if name in parameters}
    defaults |= {"solver": by_name("admm", **options), "fit_intercept": False, "insecure_seed": seed}
    model = sv.PrivateLogisticRegression(**{**defaults, **parameters})
    return model.fit(sv.Federation.by_columns(parts, y, labels=labels, record=True))


PUBLISHED = functools.partial(fitted, calibration="paper", rounds=4)
FORMS: dict[str, Callable[..., Any]] = {
    "persistent": functools.partial(fitted, rounds=6),
    "fresh": functools.partial(fitted, rows="fresh", rounds=6),
    "feature": functools.partial(fitted, unit="feature", rounds=6, labels="public", alpha=1.0),
}


def messages(model: Any, query: str, party: str | None = None) -> np.ndarray:
    """What the coordinator saw under a name, a column for each message."""
    seen = [m.payload for m in model.transcript_ if m.name == query and party in (None, m.sender)]
    return np.column_stack(seen)


def columns(plan: Plan, party: str, X: np.ndarray) -> np.ndarray:
    """The prepared columns of a party: what the messages are about."""
    block = Block.prepare(X, np.ones(len(X)), plan.part(party).preparation)
    return np.asarray(block.rows, dtype=np.float64)


def basis(vectors: np.ndarray, size: int) -> np.ndarray:
    """An orthonormal basis of the `size` largest directions."""
    found: np.ndarray = np.linalg.svd(vectors, full_matrices=False)[0][:, :size]
    return found


def outside(vectors: np.ndarray, span: np.ndarray) -> float:
    """The share of the length of some vectors that is not in a span."""
    return float(np.linalg.norm(vectors - span @ (span.T @ vectors)) / np.linalg.norm(vectors))


def test_as_many_messages_as_columns_reveal_their_span() -> None:
    parts, y = people(0)
    model = PUBLISHED(parts, y, 0, rounds=4)
    for party, X in zip(dict(model.plan_.parties), parts, strict=True):
        true = columns(model.plan_, party, X)
        seen = messages(model, "scores", party)[:, : X.shape[1]]  # no more messages than columns
        assert outside(true, basis(seen, X.shape[1])) < 1e-10


def test_unit_rows_are_then_known_up_to_a_turn() -> None:
    """q_i'S q_i = 1 for all rows q_i of the basis is a linear system for S; then q_i'S q_j = x_i'x_j for all pairs."""
    parts, y = people(1)
    parts = [X / np.linalg.norm(X, axis=1, keepdims=True) for X in parts]
    model = PUBLISHED(parts, y, 1)
    span = basis(messages(model, "scores", "party-1"), 3)
    rows, places = columns(model.plan_, "party-1", parts[0]), np.triu_indices(3)
    twice = np.where(places[0] == places[1], 1.0, 2.0)
    system = np.array([np.outer(q, q)[places] * twice for q in span])
    half = np.linalg.lstsq(system, np.full(RECORDS, float(rows[0] @ rows[0])), rcond=None)[0]
    S = np.zeros((3, 3))
    S[places] = half
    S = S + np.triu(S, 1).T
    np.testing.assert_allclose(span @ S @ span.T, rows @ rows.T, atol=1e-9)


@pytest.mark.parametrize("name", ["persistent", "feature"])
def test_the_span_stays_hidden(name: str) -> None:
    """The same attack. A random span of d of N dimensions has a share Beta(d/2, (N - d)/2) of a vector's square."""
    parts, y = people(0)
    model = FORMS[name](parts, y, 0)
    for party, X in zip(dict(model.plan_.parties), parts, strict=True):
        width = X.shape[1]
        inside = 1 - outside(columns(model.plan_, party, X), basis(messages(model, "scores", party), width)) ** 2
        # a mean over the columns is at most the largest; the noise is at least 20 times the columns
        assert inside < beta(width / 2, (RECORDS - width) / 2).isf(ALARM / width) + 0.05 < 0.5


def told_apart(run: Callable[..., Any], seed: int, change: str) -> bool:
    """Whether the span that a message of party 1 is nearer to is that of the data, of two neighbours."""
    parts, y = people(seed, 40)
    other = [part.copy() for part in parts]
    if change == "record":
        other[0][7] = -other[0][7, ::-1]
    else:
        other[0][:, 1] = other[0][::-1, 1]
    truth = seed % 2
    model = run(other if truth else parts, y, seed)
    seen = messages(model, "scores", "party-1")
    seen = seen[:, np.linalg.norm(seen, axis=0) > 0][:, :1]
    spans = [basis(columns(model.plan_, "party-1", part[0]), WIDTHS[0]) for part in (parts, other)]
    return (outside(seen, spans[1]) < outside(seen, spans[0])) == bool(truth)


@pytest.mark.parametrize("change", ["record", "feature"])
def test_one_message_tells_neighbours_apart(change: str) -> None:
    """Always, and not by a little: the message lies in one of the spans, at any noise."""
    assert all(told_apart(functools.partial(PUBLISHED, rounds=1, epsilon=1e-3), seed, change) for seed in range(20))
    parts, y = people(0)
    model = PUBLISHED(parts, y, 0, rounds=1, epsilon=1e-3)
    seen, true = messages(model, "scores", "party-1"), columns(model.plan_, "party-1", parts[0])
    changed = true.copy()
    changed[7] *= -1
    assert np.linalg.norm(seen) > 1000 * np.linalg.norm(true)
    assert outside(seen, basis(true, 3)) < 1e-12
    assert outside(seen, basis(changed, 3)) > 1e-3


def most(runs: int, epsilon: float = 1.0) -> int:
    """How often in so many runs a bit is guessed at most, if (epsilon, 1e-5) is true: mu-GDP allows Phi(mu / 2)."""
    return int(binom(runs, norm.cdf(mu_for(epsilon, 1e-5) / 2)).isf(ALARM))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_neighbours_are_not_told_apart(name: str) -> None:
    change = "feature" if name == "feature" else "record"
    right = sum(told_apart(functools.partial(FORMS[name], relation="replace-one"), seed, change) for seed in range(80))
    assert right <= most(80) < 80


def read_labels(duals: np.ndarray) -> np.ndarray:
    """Of the messages v_t = 2 y_t - y_(t-1): y_t = (v_t + y_(t-1)) / 2, whose sign is that of minus the label.

    Read where |y_t| is largest: it may be next to 0 where the noise of the scores is large.
    """
    y = largest = np.zeros(len(duals))
    for v in duals.T:
        y = (v + y) / 2
        largest = np.where(np.abs(y) > np.abs(largest), y, largest)
    return np.where(largest > 0, -1, 1)


@pytest.mark.parametrize("rounds", [1, 7])
def test_the_dual_reads_out_every_label(rounds: int) -> None:
    parts, y = people(3)
    model = PUBLISHED(parts, y, 3, rounds=rounds)
    np.testing.assert_array_equal(read_labels(messages(model, "dual")), y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["persistent", "fresh"])
def test_no_vector_of_the_records_reads_out_a_label(name: str) -> None:
    """One label in each run, at random, and the same reading of all vectors with a number for each record."""
    right = 0
    for seed in range(80):
        parts, y = people(1000 + seed, 40)
        model = FORMS[name](parts, y, seed, relation="replace-one")
        seen = [m.payload for m in model.transcript_ if np.shape(m.payload) == (40,)]
        right += int(read_labels(-np.column_stack(seen))[7] == y[7])
        assert {m.name for m in model.transcript_} <= {"facts", "accept", "done", "gram", "scores", "gradient"}
    assert 80 - most(80) <= right <= most(80) < 80


def test_the_noise_is_as_published() -> None:
    """a9a in two halves: sigma = 0.66 for epsilon 1 in each round, which is 32 for ten of them."""
    assert per_round(32.35, 1e-5, 10) == pytest.approx(1.0, abs=1e-3)
    generator = np.random.default_rng(0)
    parts = [generator.uniform(-1, 1, (150, 66)) for _ in range(2)]
    total = math.sqrt(2 * 10 * math.log(2 / 2e-4)) + 10 * (math.e - 1)
    labels = np.where(parts[0][:, 0] > 0, 1, -1)
    model = PUBLISHED(parts, labels, 0, rounds=10, epsilon=total, delta=2e-4, feasible_norm=1.0)
    assert model.plan_.numbers.noise == pytest.approx((0.66, 0.66), abs=2e-3)
    assert model.plan_.claimed_epsilon == total
    # one first message from each of 40 runs: 39 x 66 squares, so 14 % is five standard deviations; nothing outside
    y, runs = np.ones(150), range(40)
    seen = np.column_stack([messages(PUBLISHED(parts, y, seed, rounds=1), "scores", "party-1") for seed in runs])
    plan = PUBLISHED(parts, y, 0, rounds=1).plan_
    span = basis(columns(plan, "party-1", parts[0]), 66)
    variance = float(np.mean((span.T @ seen).var(axis=1, ddof=1)))
    assert variance == pytest.approx(plan.numbers.noise[0] ** 2, rel=0.14)
    assert outside(seen, span) < 1e-10


def test_lambda_is_the_records_times_alpha() -> None:
    """lambda c_1 = N max R'': C is 3 / (d rho) of it where b_1 is next to nothing."""
    parts, _ = people(0)
    federation = sv.Federation.by_columns(parts, np.linspace(-1, 1, RECORDS))
    solver = by_name("admm", rounds=1, feasible_norm=1e-6, rho=2.0)
    common: dict[str, Any] = {"delta": 1e-5, "entry_bound": 1.0, "label_bound": 1.0, "calibration": "paper"}
    width = math.sqrt(2 * math.log(1.25 / 5e-6)) / per_round(1.0, 5e-6, 1)
    for model, bend in ((sv.PrivateRidge, 0.5), (sv.PrivateElasticNet, 0.25), (sv.PrivateLasso, 0.0)):
        with contextlib.nullcontext() if bend == 0.5 else pytest.warns(UserWarning, match=r"Assumption 2\.2"):
            plan = model(1.0, alpha=0.5, solver=solver, **common).plan(federation)
        expected = [width * 3 / (2 * size) * (RECORDS * bend + 5e-6) for size in WIDTHS]
        assert plan.numbers.noise == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"epsilon": 100.0, "rounds": 1}, r"round has epsilon .* \(Theorem 3\)"),
        ({"rho": 0.35}, r"rho=0.35 must be above 0.3536 \(Assumption 1.2\)"),
    ],
)
def test_it_warns_outside_the_domain_of_the_paper(parameters: dict[str, Any], text: str) -> None:
    parts, y = people(0)
    with pytest.warns(UserWarning, match=text):
        PUBLISHED(parts, y, 0, **parameters)


def test_it_says_that_it_protects_nobody_and_needs_to_be_asked_for_by_name() -> None:
    parts, y = people(0)
    model = PUBLISHED(parts, y, 0)
    report = model.privacy_
    assert report.world.epsilon == report.coordinator.epsilon == report.parties.epsilon == math.inf
    assert report.coordinator.claimed_epsilon == 1.0
    form = PublishedADMM()
    for events in (events_of(model.plan_, "zero-out"), world_events_of(model.plan_, "replace-one")):
        assert all(isinstance(event, Unbounded) for event in events)
    strict = sv.Federation.by_columns(parts, y, policy=Policy(max_epsilon=100.0))
    with pytest.raises(RefusedError, match="without noise"):
        strict.coordinator().run(model.plan_, form)
    with pytest.raises(InputError, match="epsilon=inf"):
        PUBLISHED(parts, y, 0, epsilon=math.inf)
    with pytest.raises(InputError, match="labels='held'"):
        PUBLISHED(parts, y, 0, labels="held")
