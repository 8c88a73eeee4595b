"""The gate: what it releases, how often, with how much noise, and that there is no way around it.

Statistical tests use fixed seeds; a correct gate fails one of them with probability below 1e-6.
"""

from __future__ import annotations

import builtins
import copy
import itertools
import json
import math
import pickle
import re
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chi2, laplace

from sottovoce import losses
from sottovoce.algorithms.newton import CurvatureSum
from sottovoce.data.block import Block, Preparation
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LeakError, LedgerError, RefusedError
from sottovoce.gate import gate as gate_module
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.gate import Gate, value_of
from sottovoce.gate.outgoing import PUBLIC_NAMES, Declared, Outgoing, Released, declare_public, reply
from sottovoce.gate.query import Choice, Query, Round, Walk
from sottovoce.plan.release import Release
from sottovoce.privacy.events import RELATIONS, Gaussian, Selection, Unbounded
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.mechanisms import SeededRandomness, SystemRandomness, rounded_gaussian
from sottovoce.queries.sums import GradientSum, GramMatrix
from sottovoce.transports.base import InProcess

PLAN = bytes(range(32))
REQUEST = Frame("ask", 7, PLAN, 3, "gradient")
FALSE_ALARM = 1e-6


def rows_of(count: int, features: int, seed: int = 0, *, exact: bool = True) -> Block:
    X = np.random.default_rng(seed).standard_normal((count, features))
    made = Preparation(Bounds.declare(row_norm=1.0), features, False, count, (0, 1), exact)
    return Block.prepare(X, np.arange(count) % 2, made)


def gradient(dimension: int) -> GradientSum:
    return GradientSum(dimension, 1.0, losses.get("logistic"))


class Door(Gate):
    """The gate of a plan of which nothing is known but its digest, its releases and its records."""

    def __init__(self, releases: tuple[Release, ...], records: int, randomness: Any, account: Account | None) -> None:
        named = {release.query: release for release in releases}
        known = {"has": named.__contains__, "release": named.__getitem__}
        fields = {"digest": PLAN, "records": records, "most_records": None, **known}
        plan: Any = SimpleNamespace(channel=SimpleNamespace(secure=False), **fields)
        super().__init__(plan, randomness, account)

    def ask(self, query: Query, number: int, rows: Block, weights: Any = None) -> Released:
        told = {} if weights is None else {"weights": np.asarray(weights, dtype=np.float64)}
        plan: Any = None
        return self.release(query, Round(plan, number, told, rows))


def gate_of(*releases: Release, seed: int = 0, records: int = 100, account: Account | None = None) -> Door:
    return Door(releases, records, SeededRandomness(seed, "gate"), account)


def value_at(query: Query, rows: Block, weights: Any) -> np.ndarray:
    plan: Any = None
    return query.value(Round(plan, 0, {"weights": weights}, rows))


def charged_account(folder: Path) -> Account:
    path = folder / "ledger.db"
    ledger = Ledger(path) if path.exists() else Ledger.create(path)
    account = ledger.open("rows", epsilon=1.0, delta=1e-5)
    account.reserve(PLAN.hex(), [Gaussian(0.1)])
    return account


class TestOncePerKey:
    @pytest.fixture(params=["without a ledger", "with a ledger"])
    def account(self, request: pytest.FixtureRequest, tmp_path: Path) -> Account | None:
        return charged_account(tmp_path) if request.param == "with a ledger" else None

    def test_a_repeat_gets_the_stored_bytes_whatever_it_carries(self, account: Account | None) -> None:
        query, block = gradient(3), rows_of(10, 3)
        gate = gate_of(Release.at_mu(query, 0, 5, 0.1, "zero-out"), account=account)
        first = reply("answer", REQUEST, gate.ask(query, 2, block, np.zeros(3))).data
        for weights, rows in ((np.full(3, 9.0), block), (np.zeros(3), rows_of(4, 3, seed=5))):
            assert reply("answer", REQUEST, gate.ask(query, 2, rows, weights)).data == first
        assert reply("answer", REQUEST, gate.ask(query, 3, block, np.zeros(3))).data != first

    def test_a_round_outside_the_plan_is_refused(self, account: Account | None) -> None:
        query, block = gradient(3), rows_of(10, 3)
        gate = gate_of(Release.at_mu(query, 2, 5, 0.1, "zero-out"), account=account)
        for outside in (0, 1, 7, 8, 10**9):
            with pytest.raises(RefusedError, match="not in the plan"):
                gate.ask(query, outside, block, np.zeros(3))
        for inside in range(2, 7):
            gate.ask(query, inside, block, np.zeros(3))

    def test_a_query_outside_the_plan_is_refused(self, account: Account | None) -> None:
        gate = gate_of(Release.at_mu(gradient(3), 0, 5, 0.1, "zero-out"), account=account)
        with pytest.raises(RefusedError, match="'gram' in round 0 is not in the plan"):
            gate.ask(GramMatrix(3), 0, rows_of(10, 3))

    def test_threads_that_ask_at_once_get_one_release(
        self, account: Account | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def slow(*arguments: Any) -> Any:
            time.sleep(0.02)  # long enough for every thread to come before the first has its noise
            return rounded_gaussian(*arguments)

        monkeypatch.setattr(gate_module, "rounded_gaussian", slow)
        query, block = gradient(50), rows_of(400, 50)
        gate = Door((Release.at_mu(query, 0, 5, 0.1, "zero-out"),), 400, SystemRandomness(), account)
        start, seen = threading.Barrier(8), []

        def ask(number: int) -> None:
            start.wait()
            seen.append(gate.ask(query, 1, block, np.full(50, float(number))).arrays["grid"].tobytes())

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 8
        assert len(set(seen)) == 1


def test_without_a_ledger_an_earlier_round_is_over() -> None:
    query, block = gradient(3), rows_of(10, 3)
    gate = gate_of(Release.at_mu(query, 0, 5, 0.1, "zero-out"))
    gate.ask(query, 2, block, np.zeros(3))
    gate.ask(query, 4, block, np.zeros(3))
    for earlier in (0, 2, 3):
        with pytest.raises(RefusedError, match="is over"):
            gate.ask(query, earlier, block, np.zeros(3))


def test_a_restarted_gate_with_the_same_ledger_repeats_what_was_said(tmp_path: Path) -> None:
    query, block, account = gradient(3), rows_of(10, 3), charged_account(tmp_path)
    release = Release.at_mu(query, 0, 5, 0.1, "zero-out")
    said = [gate_of(release, seed=1, account=account).ask(query, t, block, np.zeros(3)) for t in range(3)]
    restarted = gate_of(release, seed=2, account=Ledger(account.path).account())
    for t, earlier in enumerate(said):
        again = restarted.ask(query, t, block, np.ones(3))
        assert reply("answer", REQUEST, again).data == reply("answer", REQUEST, earlier).data
    fresh = restarted.ask(query, 3, block, np.zeros(3))
    assert fresh.arrays["grid"].tolist() not in [earlier.arrays["grid"].tolist() for earlier in said]


def test_nothing_leaves_that_was_not_reserved(tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "ledger.db").open("rows", epsilon=1.0, delta=1e-5)
    gate = gate_of(Release.at_mu(gradient(3), 0, 5, 0.1, "zero-out"), account=account)
    with pytest.raises(LedgerError, match="no reservation"):
        gate.ask(gradient(3), 0, rows_of(10, 3), np.zeros(3))


def test_a_release_is_on_disk_before_anybody_has_it(tmp_path: Path) -> None:
    account = charged_account(tmp_path)
    released = gate_of(Release.at_mu(gradient(3), 0, 5, 0.1, "zero-out"), account=account).ask(
        gradient(3), 0, rows_of(10, 3), np.zeros(3)
    )
    stored = account.stored(PLAN.hex(), 0, "gradient")
    assert stored is not None
    np.testing.assert_array_equal(decode(stored).arrays["grid"], released.arrays["grid"])


@pytest.mark.parametrize("account", ["without", "with"])
@pytest.mark.parametrize(
    "query", [GradientSum(3, 1.001, losses.get("logistic")), GradientSum(4, 1.0, losses.get("logistic"))]
)
def test_a_query_more_sensitive_than_charged_is_a_leak(query: Query, account: str, tmp_path: Path) -> None:
    held = charged_account(tmp_path) if account == "with" else None
    gate = gate_of(Release.at_mu(gradient(3), 0, 5, 0.1, "zero-out"), account=held)
    with pytest.raises(LeakError, match="more sensitive than the plan charged for"):
        gate.ask(query, 0, rows_of(10, 3), np.zeros(3))
    if held is not None:
        assert held.stored(PLAN.hex(), 0, "gradient") is None


@pytest.mark.parametrize("field", ["charged_zero_out", "charged_replace_one"])
def test_either_charge_too_small_is_a_leak(field: str) -> None:
    query = gradient(3)
    release = Release.at_mu(query, 0, 5, 0.1, "zero-out")
    release = Release.model_validate(release.model_dump() | {field: getattr(release, field) * (1 - 1e-9)})
    with pytest.raises(LeakError):
        gate_of(release).ask(query, 0, rows_of(10, 3), np.zeros(3))


@pytest.mark.parametrize(
    "change", [{"step": 0.3}, {"step": 2.0**-200}, {"step": 2.0**-60, "std": 1e3}, {"step": 2.0**-62}]
)
def test_a_grid_that_is_no_power_of_two_or_overflows_is_refused(change: dict[str, float]) -> None:
    query = gradient(3)
    release = Release.at_mu(query, 0, 5, 0.1, "zero-out")
    release = Release.model_validate(release.model_dump() | change)
    with pytest.raises(RefusedError, match="power of two"):
        gate_of(release).ask(query, 0, rows_of(10, 3), np.zeros(3))


def test_rows_prepared_without_privacy_get_no_noisy_release() -> None:
    query = gradient(3)
    gate = gate_of(Release.at_mu(query, 0, 5, 0.1, "zero-out"))
    with pytest.raises(LeakError, match="without privacy"):
        gate.ask(query, 0, rows_of(10, 3, exact=False), np.zeros(3))


def test_an_unbounded_query_gets_no_noisy_release() -> None:
    query = CurvatureSum(losses.get("logistic"), 3)
    release = Release(
        query="curvature", first=0, count=1, std=1.0, step=1.0, charged_zero_out=1e9, charged_replace_one=1e9
    )
    with pytest.raises(LeakError, match="more sensitive"):
        gate_of(release).ask(query, 0, rows_of(10, 3), np.zeros(3))


def test_a_run_planned_without_privacy_releases_the_plain_value() -> None:
    query, block = gradient(3), rows_of(10, 3, exact=False)
    released = gate_of(Release.at_mu(query, 0, 5, math.inf, "zero-out")).ask(query, 0, block, np.ones(3))
    assert set(released.arrays) == {"value"}
    np.testing.assert_array_equal(value_of(released.arrays, 1.0), value_at(query, block, np.ones(3)))


# The noise of the real gate.


def noise_of(query: Query, block: Block, release: Release, seed: int) -> np.ndarray:
    """What the gate added, in units of the plan's standard deviation: rounds x entries."""
    gate = gate_of(release, seed=seed, records=len(block))
    exact = np.rint(value_at(query, block, np.zeros(block.dimension)) / release.step)
    grids = [gate.ask(query, t, block, np.zeros(block.dimension)).arrays["grid"] for t in range(release.count)]
    return (np.array(grids) - exact) * release.step * query.noise_weights / release.std


def fits(noise: np.ndarray, scale: float, alarm: float = FALSE_ALARM) -> bool:
    """A two-sided chi-square test of standard deviation `scale` and mean 0, false alarm below `alarm`."""
    variance = chi2.cdf(np.square(noise / scale).sum(), noise.size)
    mean = chi2.sf(noise.size * (noise.mean() / scale) ** 2, 1)
    return bool(alarm / 4 < variance < 1 - alarm / 4 and mean > alarm / 2)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_the_noise_of_a_gradient_has_the_planned_scale(relation: Any) -> None:
    query, block = gradient(2000), rows_of(5, 2000)
    noise = noise_of(query, block, Release.at_mu(query, 0, 100, 0.5, relation), seed=1)
    assert fits(noise, 1.0)
    for wrong in (2 / 3, 3 / 2, 0.98, 1.02):
        assert not fits(noise, wrong)


def test_the_noise_of_a_gram_matrix_is_smaller_off_the_diagonal() -> None:
    query, block = GramMatrix(70), rows_of(5, 70)
    release = Release.at_mu(query, 0, 100, 0.5, "zero-out")
    noise = noise_of(query, block, release, seed=2)
    diagonal = query.noise_weights == 1.0
    assert diagonal.sum() == 70
    assert fits(noise[:, diagonal], 1.0)
    assert fits(noise[:, ~diagonal], 1.0)
    for wrong in (2 / 3, 3 / 2):
        assert not fits(noise[:, diagonal], wrong)
    for wrong in (2 / 3, 3 / 2, 0.98, 1.02):
        assert not fits(noise[:, ~diagonal], wrong)
    # in plain units: std on the diagonal, std / sqrt 2 off it, and not the same on both
    plain = noise / query.noise_weights
    assert fits(plain[:, ~diagonal], math.sqrt(0.5))
    assert not fits(plain[:, ~diagonal], 1.0)
    assert not fits(plain[:, diagonal], math.sqrt(0.5))


@pytest.mark.parametrize("query", [gradient(40), GramMatrix(40)])
def test_the_noise_knows_nothing_of_the_data(query: Any) -> None:
    release = Release.at_mu(query, 0, 3, 0.5, "zero-out")
    one, other = (noise_of(query, rows_of(5, 40, seed=seed), release, seed=4) for seed in (10, 11))
    np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.slow
def test_every_entry_has_noise_of_its_own() -> None:
    query, block = gradient(8), rows_of(5, 8)
    noise = noise_of(query, block, Release.at_mu(query, 0, 3000, 0.5, "zero-out"), seed=5)
    spread = np.linalg.eigvalsh(np.cov(noise.T))
    assert spread.min() > 0.8
    assert spread.max() < 1.2


def test_rate_and_noise_are_drawn_from_the_systems_randomness_by_default() -> None:
    query, block = gradient(20), rows_of(5, 20)
    release = Release.at_mu(query, 0, 3, 0.5, "zero-out")
    grids = [Door((release,), 100, SystemRandomness(), None).ask(query, 0, block, np.zeros(20)) for _ in range(2)]
    assert grids[0].arrays["grid"].tolist() != grids[1].arrays["grid"].tolist()


# Several values a message, each a function of those before it.


class Following(Query):
    """A place that follows what was released; `drawn` is who was in each batch."""

    name, title, bound, rounding_entries, length = "following", "places", 1.0, 3.0, 3
    samples = True

    def __init__(self, noise_weights: Any = 1.0) -> None:
        self.noise_weights = noise_weights
        self.size = 3
        self.drawn: list[Any] = []
        self.places: list[Any] = []

    def value(self, round: Round) -> np.ndarray:
        self.drawn.append(round.rows.places)
        self.places.append(round.told["weights"])
        return np.tanh(round.told["weights"])

    def follow(self, released: np.ndarray, round: Round) -> Round:
        return round._replace(told={"weights": round.told["weights"] + released})


def following_release(query: Following, count: int, batches: int, rate: float | None = None) -> Release:
    return Release.of(query, 0, count, 4.0, 2.0**-12, rate, batches=batches)


def test_every_batch_follows_what_the_one_before_released() -> None:
    query = Following()
    release = following_release(query, 2, 5)
    grid = gate_of(release).ask(query, 0, rows_of(10, 3), np.zeros(3)).arrays["grid"].reshape(5, 3)
    assert len({row.tobytes() for row in grid}) == 5
    expected = np.cumsum(np.vstack([np.zeros(3), grid[:-1] * release.step]), axis=0)
    np.testing.assert_allclose(query.places, expected, atol=1e-12)
    assert all(drawn.tolist() == list(range(10)) for drawn in query.drawn)


def test_a_query_that_does_not_follow_has_no_second_batch() -> None:
    query, block = gradient(3), rows_of(10, 3)
    release = Release.of(query, 0, 3, 4.0, 2.0**-12, batches=2)
    with pytest.raises(LeakError, match="follows no released value"):
        gate_of(release).ask(query, 0, block, np.zeros(3))
    walk = Steps(4)
    with pytest.raises(ValueError, match="unpack"):
        gate_of(Release.of(walk, 0, 3, 4.0, 2.0**-12, batches=2)).ask(walk, 0, block, 0.0)


def noise_of_batches(query: Following, release: Release, seed: int) -> np.ndarray:
    """What the gate added, in units of the plan's standard deviation: messages x batches x entries."""
    gate, block, added = gate_of(release, seed=seed), rows_of(5, 3), []
    for t in range(release.count):
        grid = gate.ask(query, t, block, np.zeros(query.size)).arrays["grid"].reshape(release.batches, query.size)
        places = np.cumsum(np.vstack([np.zeros(query.size), grid[:-1] * release.step]), axis=0)
        added.append(
            (grid - np.rint(np.tanh(places) / release.step)) * release.step * query.noise_weights / release.std
        )
    return np.array(added)


@pytest.mark.parametrize("weights", [1.0, np.array([1.0, 2.0, 4.0])], ids=["one weight", "weights"])
def test_every_batch_has_the_planned_noise_and_its_own(weights: Any) -> None:
    query = Following(weights)
    noise = noise_of_batches(query, following_release(query, 600, 6), seed=8)
    assert noise.shape == (600, 6, 3)
    alarm = 1e-8  # each of 28 tests
    for k in range(6):
        assert fits(noise[:, k], 1.0, alarm)
        for wrong in (2 / 3, 3 / 2):
            assert not fits(noise[:, k], wrong, alarm)
        for other in range(k):
            assert fits(noise[:, k] - noise[:, other], math.sqrt(2), alarm)
    for j in range(3):
        assert fits(noise[:, :, j], 1.0, alarm)
    assert fits(noise[1::2] - noise[::2], math.sqrt(2), alarm)
    assert len({row.tobytes() for row in noise.reshape(-1, 3)}) == 3600
    again = noise.copy()
    again[:, 1] = again[:, 0]  # one noise twice is noticed
    assert not fits(again[:, 1] - again[:, 0], math.sqrt(2), alarm)


def coins_of(query: Following, release: Release, records: int, seed: int) -> np.ndarray:
    """Whose coin came up: messages x batches x records."""
    gate, block = gate_of(release, seed=seed), rows_of(records, 3)
    for t in range(release.count):
        gate.ask(query, t, block, np.zeros(3))
    coins = np.zeros((release.count * release.batches, records))
    for k, drawn in enumerate(query.drawn):
        assert len(set(drawn.tolist())) == len(drawn)
        coins[k, drawn] = 1.0
    return coins.reshape(release.count, release.batches, records)


def coins_are_fair(coins: np.ndarray, rate: float, alarm: float) -> bool:
    """Every record's frequency in every batch, and the products of coins: of one record in two batches, of two records
    that are neighbours in one batch, and across the border of two. Chi-square tests; false alarm below 4 alarm."""
    centred = (coins - rate) / math.sqrt(rate * (1 - rate))
    products = [centred]
    products += [centred[:, k:] * centred[:, :-k] for k in range(1, coins.shape[1])]
    products += [centred[:, :, 1:] * centred[:, :, :-1], centred[:, 1:, 0] * centred[:, :-1, -1]]
    sums = [(np.square(each.sum(axis=0)) / len(coins)).ravel() for each in products]
    parts = (sums[0], np.concatenate(sums[1:-2]), sums[-2], sums[-1])
    return all(chi2.sf(part.sum(), part.size) > alarm for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_every_record_has_a_coin_of_its_own_in_every_batch(rate: float) -> None:
    """False-alarm rate below 4e-7."""
    coins = coins_of(Following(), following_release(Following(), 3000, 4, rate), 7, seed=9)
    assert coins_are_fair(coins, rate, 1e-7)
    wrong = [coins.copy() for _ in range(4)]
    wrong[0][:, 1] = wrong[0][:, 0]  # the same batch twice
    wrong[1][:, 1, 0] = 0.0  # the first record of a later batch is passed over
    wrong[2][:, 3, -1] = wrong[2][:, 2, -1]  # one record remembers its coin
    wrong[3][:, 2, 0] = wrong[3][:, 1, -1]  # a coin that counts on both sides of a border
    assert [coins_are_fair(each, rate, 1e-7) for each in wrong] == [False] * 4
    assert not coins_are_fair(coins, 0.9 * rate, 1e-7)


def test_batches_of_few_or_no_records_are_answered_all() -> None:
    query = Following()
    coins = coins_of(query, following_release(query, 50, 8, 1e-3), 2, seed=10)
    assert len(query.drawn) == 400
    assert coins.sum() <= 10  # 0.8 are expected; more than 10 have a chance of 1e-9


# Walks: numbers one after another, each a function of the noisy ones before it.


class Steps(Walk):
    """A walk of `length` numbers, each at most 1; the holder's place moves with every noisy number."""

    name, title, samples = "steps", "steps", True

    def __init__(self, length: int, fault: str = "") -> None:
        self.length, self.fault = length, fault
        self.bound, self.rounding_entries = math.sqrt(length), float(length)
        self.places: list[float] = []

    def walk(self, round: Round, noise: Any, step: float) -> Any:
        place = float(round.told["weights"])
        found = np.zeros(self.length, dtype=np.float64 if noise is None else np.int64)
        for k in range(self.length):
            value = math.tanh(place) * len(round.rows) / 10
            found[k] = value if noise is None else builtins.round(value / step) + noise[k]
            place += found[k] * (1.0 if noise is None else step)
            self.places.append(place)
        if self.fault == "floats":
            return found * 0.5
        return found[:-1] if self.fault == "short" else found


def steps_release(query: Steps, count: int, mu: float = 0.5) -> Release:
    return Release.at_mu(query, 0, count, mu, "zero-out")


def noise_of_walk(query: Steps, block: Block, release: Release, seed: int) -> np.ndarray:
    """What the gate added in each round, in units of the plan's standard deviation, by walking again without it."""
    gate, added = gate_of(release, seed=seed, records=len(block)), []
    for t in range(release.count):
        grid, place = gate.ask(query, t, block, 0.0).arrays["grid"], 0.0
        for entry in grid:
            added.append(int(entry) - round(math.tanh(place) * len(block) / 10 / release.step))
            place += int(entry) * release.step
    return np.array(added).reshape(release.count, query.length) * release.step / release.std


def test_a_walk_carries_the_planned_noise_on_every_step_afresh() -> None:
    query, block = Steps(100), rows_of(5, 3)
    noise = noise_of_walk(query, block, steps_release(query, 100), seed=6)
    assert fits(noise, 1.0, 1e-7)
    for wrong in (2 / 3, 3 / 2, 0.95, 1.05):
        assert not fits(noise, wrong, 1e-7)
    assert fits(noise[0], 1.0, 1e-7)
    for k in (0, 50, 99):
        assert fits(noise[:, k], 1.0, 1e-7)
    # fresh in every round, and of its own in every step: differences are those of independent noises
    assert fits(noise[1::2] - noise[::2], math.sqrt(2), 1e-7)
    assert fits(noise[:, 1::2] - noise[:, ::2], math.sqrt(2), 1e-7)
    assert len({row.tobytes() for row in noise}) == len(noise)


def test_a_walk_follows_its_own_noisy_numbers() -> None:
    query, block = Steps(20), rows_of(5, 3)
    release = steps_release(query, 3)
    grid = gate_of(release, records=5).ask(query, 0, block, 0.25).arrays["grid"]
    np.testing.assert_allclose(query.places, 0.25 + np.cumsum(grid) * release.step, rtol=1e-12)
    np.testing.assert_array_equal(value_of({"grid": grid}, release.scale), grid * release.step)


@pytest.mark.parametrize("bits", [1, 7, 31])
def test_dropped_bits_are_those_of_the_noisy_numbers(bits: int) -> None:
    """The same noise on the same value, and then less of it is told: what leaves is a function of what would have."""
    query, block = gradient(3), rows_of(10, 3)
    whole = Release.at_mu(query, 0, 1, 1e-4, "zero-out")
    short = whole.model_copy(update={"dropped": bits})
    grid = gate_of(whole).ask(query, 0, block, np.zeros(3)).arrays["grid"]
    said = gate_of(short).ask(query, 0, block, np.zeros(3)).arrays["grid"]
    np.testing.assert_array_equal(said, [math.floor(Fraction(int(n), 2**bits) + Fraction(1, 2)) for n in grid])
    assert short.scale == whole.step * 2**bits
    assert [short.event(relation) for relation in RELATIONS] == [whole.event(relation) for relation in RELATIONS]
    for changes in ({"mechanism": "selection"}, {"mechanism": "kept"}, {"std": 0.0}):
        with pytest.raises(ValueError, match="only numbers with Gaussian noise have bits to drop"):
            Release.model_validate({**short.model_dump(), **changes})


def test_a_walk_without_privacy_has_no_noise() -> None:
    query, block = Steps(3), rows_of(10, 3, exact=False)
    released = gate_of(Release.at_mu(query, 0, 5, math.inf, "zero-out")).ask(query, 0, block, 1.0)
    expected, place = [], 1.0
    for _ in range(3):
        expected.append(math.tanh(place))
        place += expected[-1]
    assert set(released.arrays) == {"value"}
    np.testing.assert_array_equal(value_of(released.arrays, 1.0), expected)


@pytest.mark.parametrize("fault", ["floats", "short"])
def test_a_walk_that_is_not_made_of_its_noise_stays_inside(fault: str, tmp_path: Path) -> None:
    query, account = Steps(4, fault=fault), charged_account(tmp_path)
    gate = gate_of(steps_release(Steps(4), 3), account=account)
    with pytest.raises(LeakError, match="no integers of its noise"):
        gate.ask(query, 0, rows_of(10, 3), 0.0)
    assert account.stored(PLAN.hex(), 0, "steps") is None


@pytest.mark.usefixtures("silent")
def test_a_walk_is_given_the_records_that_were_drawn() -> None:
    query, block = Steps(1), rows_of(50, 3)
    gate = gate_of(Release.of(query, 0, 200, 10.0, 2.0**-12, 0.3), records=50)
    counts = [
        round(gate.ask(query, t, block, 30.0).arrays["grid"][0] * 2.0**-12 * 10 / math.tanh(30.0)) for t in range(200)
    ]
    assert FALSE_ALARM / 2 < binom.cdf(sum(counts), 200 * 50, 0.3) < 1 - FALSE_ALARM / 2
    assert len(set(counts)) > 5


# Choices.


class Scores(Choice):
    """Public scores for every candidate, as if one record moved each by at most 1."""

    title, bound = "choices", 1.0

    def __init__(self, name: str = "choice") -> None:
        self.name = name

    def value(self, round: Round) -> Any:
        return np.asarray(round.told["weights"], dtype=np.float64)


def choice_release(count: int, mu: float, step: float | None = None) -> Release:
    release = Release.at_mu(Scores(), 0, count, mu, "zero-out", "selection")
    return release if step is None else Release.of(Scores(), 0, count, release.std, step, mechanism="selection")


def choices(release: Release, scores: Any, seed: int = 0) -> np.ndarray:
    gate, block = gate_of(release, seed=seed, records=10), rows_of(10, 3)
    made = [gate.ask(Scores(), t, block, scores).arrays["grid"] for t in range(release.count)]
    assert all(grid.shape == (1,) and grid.dtype == np.int64 for grid in made)
    return np.array(made).ravel()


def plausible_choices(found: np.ndarray, scores: np.ndarray, std: float) -> bool:
    """Pearson's test of the law exp(score / std), false alarm below 1e-6."""
    law = np.exp(scores / std - np.max(scores / std))
    law /= law.sum()
    seen = np.bincount(found, minlength=len(scores))
    return bool(chi2.sf((np.square(seen - len(found) * law) / (len(found) * law)).sum(), len(scores) - 1) > FALSE_ALARM)


def test_a_choice_has_the_law_of_its_price() -> None:
    release = choice_release(8000, 0.7 * math.sqrt(8000))
    scores = np.rint(np.array([0.0, 1.0, 2.5, -1.0, 2.0]) / release.step) * release.step
    found = choices(release, scores)
    assert plausible_choices(found, scores, release.std)
    for wrong in (1 / 2, 4 / 5, 5 / 4, 2):
        assert not plausible_choices(found, scores, wrong * release.std)
    assert release.std == pytest.approx(release.charged_zero_out / 0.7)
    event = release.event("zero-out", count=1)
    assert isinstance(event, Selection)
    assert event.rho == pytest.approx(0.7**2 / 2)


@pytest.mark.slow
def test_scores_are_chosen_by_on_their_grid() -> None:
    """Scores in one cell of the grid are one score: what lies below it cannot show."""
    release = choice_release(4000, 60.0, step=1.0)
    inside = [0.51, 1.0, 1.49]
    found = choices(release, inside)
    np.testing.assert_array_equal(found, choices(release, [1.0, 1.0, 1.0]))
    assert plausible_choices(found, np.ones(3), release.std)
    assert not plausible_choices(choices(release, [0.0, 1.0, 2.0]), np.ones(3), release.std)
    assert release.charged_zero_out == 2.0  # one for the record, one for the grid


def test_a_choice_without_privacy_is_the_largest_score() -> None:
    release = Release.at_mu(Scores(), 0, 5, math.inf, "zero-out", "selection")
    released = gate_of(release).ask(Scores(), 0, rows_of(10, 3, exact=False), [0.0, 2.0, 1.0])
    assert set(released.arrays) == {"value"}
    np.testing.assert_array_equal(value_of(released.arrays, release.scale), [1.0])


def test_a_chosen_place_is_counted_in_places_not_in_steps() -> None:
    release = choice_release(5, 1.0)
    assert release.scale == 1.0 != release.step
    released = gate_of(release).ask(Scores(), 0, rows_of(10, 3), [0.0, 1e9, 1.0])
    np.testing.assert_array_equal(value_of(released.arrays, release.scale), [1.0])


def test_a_rate_makes_a_choice_no_cheaper() -> None:
    release = Release.of(Scores(), 0, 4, 2.0, 2.0**-12, 0.01, "selection")
    whole = Release.of(Scores(), 0, 4, 2.0, 2.0**-12, None, "selection")
    assert release.event("zero-out") == whole.event("zero-out")


# Choices with a sign.


class SignedScores(Scores):
    """Values with both signs; the last is the score of staying if the query stays."""

    signed = True

    def __init__(self, name: str = "choice", stays: bool = False) -> None:
        super().__init__(name)
        self.stays = stays  # type: ignore[misc]


SIGNED = np.array([0.5, -1.5, 0.25, 1.0])


def signed_release(mechanism: Any, count: int, mu: float) -> Release:
    return Release.at_mu(SignedScores(), 0, count, mu, "zero-out", mechanism)


def signed_codes(stays: bool) -> list[int]:
    return [1, 2, 3, -1, -2, -3, 0] if stays else [1, 2, 3, 4, -1, -2, -3, -4]


def signed_law(release: Release, stays: bool, times: float = 1.0) -> np.ndarray:
    """The chances of the codes under noise of `times` the plan's, by weights or by a sum over each one's noise."""
    plain = SIGNED[:3] if stays else SIGNED
    scores = np.rint(np.concatenate([plain, -plain, SIGNED[3:] if stays else []]) / release.step)
    scale = times * release.std / release.step
    if release.mechanism == "selection":
        weights = np.exp((scores - scores.max()) / scale)
        return np.asarray(weights / weights.sum())
    points = np.linspace(-25, 25, 10_001)  # in units of the scale; the grid is a thousandth of it or less
    chances = np.empty(len(scores))
    for i, score in enumerate(scores):
        others = np.delete(scores, i)
        chances[i] = (laplace.pdf(points) * laplace.cdf(points + (score - others[:, None]) / scale).prod(axis=0)).sum()
    return np.asarray(chances / chances.sum())


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("door", ["select_signed", "noisy_max"])
def test_a_choice_with_a_sign_has_the_law_of_its_price(door: str, stays: bool) -> None:
    mechanism = "selection" if door == "select_signed" else "noisy-max"
    count = 6000
    release = signed_release(mechanism, count, 1.2 * math.sqrt(count))
    gate, block, codes = gate_of(release, seed=4, records=10), rows_of(10, 3), signed_codes(stays)
    query = SignedScores(stays=stays)
    made = [gate.ask(query, t, block, SIGNED).arrays["grid"] for t in range(count)]
    assert all(grid.shape == (1,) and grid.dtype == np.int64 for grid in made)
    found = np.bincount([codes.index(int(grid[0])) for grid in made], minlength=len(codes))

    def plausible(seen: np.ndarray, law: np.ndarray) -> bool:
        return bool(chi2.sf((np.square(seen - count * law) / (count * law)).sum(), len(law) - 1) > FALSE_ALARM)

    assert plausible(found, signed_law(release, stays))
    for wrong in (1 / 2, 4 / 5, 5 / 4, 2):
        assert not plausible(found, signed_law(release, stays, wrong))
    half = len(SIGNED) - stays
    swapped = np.concatenate([found[half : 2 * half], found[:half], found[2 * half :]])
    assert not plausible(swapped, signed_law(release, stays))
    once = release.event("zero-out", count=1)
    assert isinstance(once, Selection)
    assert once.rho == pytest.approx(1.2**2 / 2)


def test_a_noisy_maximum_costs_four_times_a_selection_of_its_scale() -> None:
    for relation in ("zero-out", "replace-one"):
        one = Release.of(SignedScores(), 0, 3, 5.0, 2.0**-12, mechanism="noisy-max")
        other = Release.of(SignedScores(), 0, 3, 5.0, 2.0**-12, mechanism="selection")
        event, usual = one.event(relation), other.event(relation)  # type: ignore[arg-type]
        assert isinstance(event, Selection)
        assert isinstance(usual, Selection)
        delta = (1.0 if relation == "zero-out" else 2.0) + 2.0**-12
        assert event.rho == pytest.approx(3 * (2 * delta / 5.0) ** 2 / 2)
        assert event.rho == pytest.approx(4 * usual.rho)
        assert one.event(relation, noises=9) == event  # type: ignore[arg-type]
        sampled = Release.of(SignedScores(), 0, 3, 5.0, 2.0**-12, 0.01, "noisy-max")
        assert sampled.event(relation) == event  # type: ignore[arg-type]
        planned = Release.at_mu(SignedScores(), 0, 7, 0.3, relation, "noisy-max")  # type: ignore[arg-type]
        event = planned.event(relation)  # type: ignore[arg-type]
        assert isinstance(event, Selection)
        assert event.rho == pytest.approx(0.3**2 / 2)
        assert planned.scale == 1.0 != planned.step
    free = Release.at_mu(SignedScores(), 0, 1, math.inf, "zero-out", "noisy-max")
    assert isinstance(free.event("zero-out"), Unbounded)


@pytest.mark.parametrize("door", ["select_signed", "noisy_max"])
def test_a_choice_with_a_sign_without_privacy_is_the_largest(door: str) -> None:
    release = signed_release("selection" if door == "select_signed" else "noisy-max", 5, math.inf)
    block, cases = rows_of(10, 3, exact=False), [(False, SIGNED, -2.0), (True, [1.0, -2.0, 0.5], -2.0)]
    for stays, values, code in [*cases, (True, [1.0, -2.0, 2.5], 0.0), (False, [0.0], 1.0), (True, [3.0], 0.0)]:
        released = gate_of(release).ask(SignedScores(stays=stays), 0, block, values)
        assert set(released.arrays) == {"value"}
        np.testing.assert_array_equal(value_of(released.arrays, release.scale), [code])


@pytest.mark.parametrize("door", ["select_signed", "noisy_max"])
def test_values_with_a_sign_are_chosen_by_on_their_grid(door: str) -> None:
    """Values in one cell of the grid are one value: what lies below it cannot show."""
    mechanism: Any = "selection" if door == "select_signed" else "noisy-max"
    release = Release.of(SignedScores(), 0, 300, 2.0, 1.0, mechanism=mechanism)
    block, query = rows_of(10, 3), SignedScores(stays=True)
    for inside, other, same in (([0.51, -1.49, 1.2], [1.0, -1.0, 1.0], True), ([4.0, -1.0, 1.0], [1, -1, 1], False)):
        gates = gate_of(release, seed=5), gate_of(release, seed=5)
        one, two = (
            [int(gate.ask(query, t, block, values).arrays["grid"][0]) for t in range(300)]
            for gate, values in zip(gates, (inside, other), strict=True)
        )
        assert (one == two) is same


# One door, five ways to answer.

DOORS: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
    "gaussian": (gradient(3), "gaussian", (np.zeros(3),)),
    "walk": (Steps(3), "gaussian", (0.0,)),
    "select": (Scores(), "selection", ([0.0, 0.1, 0.2, 0.3, 0.4],)),
    "select_signed": (SignedScores("signed"), "selection", ([0.0, 0.1, 0.2, 0.3, 0.4],)),
    "noisy_max": (SignedScores("noisy"), "noisy-max", ([0.0, 0.1, 0.2, 0.3, 0.4],)),
}
OTHER_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "gaussian": (np.full(3, 9.0),),
    "walk": (5.0,),
    "select": ([9e9, 0.0, 0.0, 0.0, 0.0],),
    "select_signed": ([9e9, 0.0, 0.0, 0.0, 0.0],),
    "noisy_max": ([9e9, 0.0, 0.0, 0.0, 0.0],),
}


def through(door: str, gate: Door, round_: int, block: Block, *arguments: Any) -> Released:
    query, _, usual = DOORS[door]
    return gate.ask(query, round_, block, *(arguments or usual))


def door_release(door: str, mu: float = 0.1, first: int = 2, count: int = 40) -> Release:
    query, mechanism, _ = DOORS[door]
    return Release.at_mu(query, first, count, mu, "zero-out", mechanism)  # type: ignore[arg-type]


@pytest.mark.parametrize("held", ["without a ledger", "with a ledger"])
@pytest.mark.parametrize("door", DOORS)
class TestEveryDoor:
    def account(self, held: str, folder: Path) -> Account | None:
        return charged_account(folder) if held == "with a ledger" else None

    def test_a_repeat_gets_the_stored_bytes_whatever_it_carries(self, door: str, held: str, tmp_path: Path) -> None:
        gate, block = gate_of(door_release(door), account=self.account(held, tmp_path)), rows_of(10, 3)
        said = []
        for round_ in range(2, 32):
            first = reply("answer", REQUEST, through(door, gate, round_, block)).data
            for rows in (block, rows_of(4, 3, seed=5)):
                again = through(door, gate, round_, rows, *OTHER_ARGUMENTS[door])
                assert reply("answer", REQUEST, again).data == first
            said.append(first)
        assert len(set(said)) > 1
        with pytest.raises(RefusedError, match="not in the plan"):
            through(door, gate, 42, block)

    def test_rounds_outside_the_plan_are_refused(self, door: str, held: str, tmp_path: Path) -> None:
        gate, block = gate_of(door_release(door), account=self.account(held, tmp_path)), rows_of(10, 3)
        for outside in (0, 1, 42, 10**9):
            with pytest.raises(RefusedError, match="not in the plan"):
                through(door, gate, outside, block)
        with pytest.raises(RefusedError, match="not in the plan"):
            through(door, gate_of(account=None), 2, block)

    def test_another_mechanism_than_was_charged_is_a_leak(self, door: str, held: str, tmp_path: Path) -> None:
        query, mechanism, _ = DOORS[door]
        # a choice with a sign may be made by either mechanism, as was charged
        fitting = ("selection", "noisy-max") if door in ("select_signed", "noisy_max") else (mechanism,)
        others = [each for each in ("gaussian", "selection", "noisy-max", "kept", "derived") if each not in fitting]
        # without privacy too: what leaves is what the plan says
        for other, mu in itertools.product(others, (0.1, math.inf)):
            release = Release.at_mu(query, 0, 5, mu, "zero-out", other)  # type: ignore[arg-type]
            account = self.account(held, tmp_path)
            with pytest.raises(LeakError, match=f"was charged as a {other}"):
                through(door, gate_of(release, account=account), 0, rows_of(10, 3))
            assert account is None or account.stored(PLAN.hex(), 0, query.name) is None

    def test_a_query_above_its_charge_is_a_leak(self, door: str, held: str, tmp_path: Path) -> None:
        release = door_release(door)
        for name in ("charged_zero_out", "charged_replace_one"):
            less = Release.model_validate(release.model_dump() | {name: getattr(release, name) * (1 - 1e-9)})
            with pytest.raises(LeakError, match="more sensitive"):
                through(door, gate_of(less, account=self.account(held, tmp_path)), 2, rows_of(10, 3))

    def test_rows_prepared_without_privacy_are_a_leak(self, door: str, held: str, tmp_path: Path) -> None:
        gate = gate_of(door_release(door), account=self.account(held, tmp_path))
        with pytest.raises(LeakError, match="without privacy"):
            through(door, gate, 2, rows_of(10, 3, exact=False))

    def test_nothing_leaves_uncharged(self, door: str, held: str, tmp_path: Path) -> None:
        if held == "without a ledger":
            return
        account = Ledger.create(tmp_path / "empty.db").open("rows", epsilon=1.0, delta=1e-5)
        with pytest.raises(LedgerError, match="no reservation"):
            through(door, gate_of(door_release(door), account=account), 2, rows_of(10, 3))


@pytest.mark.parametrize("held", ["without a ledger", "with a ledger"])
def test_queries_may_share_a_round(held: str, tmp_path: Path) -> None:
    account = charged_account(tmp_path) if held == "with a ledger" else None
    gate, block = gate_of(*(door_release(door) for door in DOORS), account=account), rows_of(10, 3)
    first: dict[str, bytes] = {}
    for round_ in (2, 3):
        for door in DOORS:
            first[door] = encode(Frame("answer", 0, arrays=through(door, gate, round_, block).arrays))
    for door in reversed(DOORS):
        again = through(door, gate, 3, block, *OTHER_ARGUMENTS[door])
        assert encode(Frame("answer", 0, arrays=again.arrays)) == first[door]
        if account is None:
            with pytest.raises(RefusedError, match="is over"):
                through(door, gate, 2, block)
    through("select", gate, 9, block)  # one query may be ahead of another
    through("walk", gate, 4, block)
    if account is None:
        with pytest.raises(RefusedError, match="is over"):
            through("select", gate, 8, block)
    else:
        restarted = gate_of(*(door_release(door) for door in DOORS), seed=99, account=account)
        for door in DOORS:
            again = through(door, restarted, 3, block, *OTHER_ARGUMENTS[door])
            assert encode(Frame("answer", 0, arrays=again.arrays)) == first[door]


@pytest.mark.parametrize("door", DOORS)
def test_a_gate_that_another_process_outran_says_what_that_one_said(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, block = charged_account(tmp_path), rows_of(10, 3)
    release = door_release(door, mu=0.1 if door != "select" else 1e-6)  # a choice by its noise alone
    first, second = (gate_of(release, seed=seed, account=account) for seed in (1, 7))
    said = through(door, first, 2, block).arrays["grid"].tolist()
    with monkeypatch.context() as late:
        late.setattr(second, "_stored", lambda *_: None)  # it looked before the other had stored
        assert through(door, second, 2, block).arrays["grid"].tolist() == said
    alone = through(door, gate_of(release, seed=7), 2, block).arrays["grid"].tolist()
    assert second.unreleased == (alone != said)
    assert door == "select" or second.unreleased
    through(door, second, 3, block)
    assert not second.unreleased


@pytest.mark.parametrize("door", ["walk", "select"])
def test_threads_that_ask_at_once_get_one_release_of_every_kind(door: str) -> None:
    gate, block = Door((door_release(door),), 100, SystemRandomness(), None), rows_of(10, 3)
    start, seen = threading.Barrier(6), []

    def ask(number: int) -> None:
        start.wait()
        given = (float(number),) if door == "walk" else (np.arange(5.0) * number,)
        seen.append(through(door, gate, 5, block, *given).arrays["grid"].tobytes())

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 6
    assert len(set(seen)) == 1


# Sampling.


def test_a_query_of_all_records_is_not_asked_of_a_sample() -> None:
    query = GramMatrix(3)
    release = Release.at_mu(query, 0, 1, 0.5, "zero-out").model_copy(update={"rate": 0.5})
    with pytest.raises(LeakError, match="of a sample"):
        gate_of(release).ask(query, 0, rows_of(10, 3))


def sampled_release(query: Query, rate: float, count: int) -> Release:
    return Release.of(query, 0, count, 10.0, 2.0**-12, rate)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "rounded_gaussian", lambda _scale, size, _randomness: np.zeros(size, np.int64))


def one_column_each(count: int) -> Block:
    made = Preparation(Bounds.declare(row_norm=1.0), count, False, count, (0, 1))
    return Block.prepare(np.eye(count), np.ones(count, dtype=int), made)


@pytest.mark.usefixtures("silent")
def test_the_gate_itself_flips_a_fresh_coin_for_every_record() -> None:
    count, rounds, rate = 200, 400, 0.3
    query, block = gradient(count), one_column_each(count)
    gate = gate_of(sampled_release(query, rate, rounds), records=count)
    drawn = np.array([gate.ask(query, t, block, np.zeros(count)).arrays["grid"] != 0 for t in range(rounds)])

    def plausible(hits: int, trials: int) -> bool:
        return bool(FALSE_ALARM / 2 < binom.cdf(hits, trials, rate) < 1 - FALSE_ALARM / 2)

    assert plausible(int(drawn.sum()), drawn.size)
    assert all(binom.sf(hits - 1, rounds, rate) > FALSE_ALARM / 1000 for hits in drawn.sum(axis=0))
    assert all(binom.cdf(hits, rounds, rate) > FALSE_ALARM / 1000 for hits in drawn.sum(axis=0))
    # fresh each round, and independent between records: pairs agree as often as coins do
    both = drawn[1:] & drawn[:-1]
    assert 0.08 < both.mean() < 0.10
    beside = drawn[:, 1:] & drawn[:, :-1]
    assert 0.08 < beside.mean() < 0.10
    assert not plausible(int(0.97 * drawn.sum()), drawn.size)


@pytest.mark.usefixtures("silent")
def test_without_a_rate_every_record_counts() -> None:
    query, block = gradient(50), one_column_each(50)
    for rate in (None, 1.0):
        gate = gate_of(sampled_release(query, rate, 3), records=50)  # type: ignore[arg-type]
        assert (gate.ask(query, 0, block, np.zeros(50)).arrays["grid"] != 0).all()


def test_an_empty_batch_is_answered_with_noise_and_looks_like_any_other() -> None:
    query, block = gradient(30), rows_of(40, 30)
    sizes = set()
    gate = gate_of(sampled_release(query, 0.02, 200), records=40, seed=3)
    for t in range(200):
        released = gate.ask(query, t, block, np.zeros(30))
        sizes.add(len(reply("answer", REQUEST, released).data))
        assert (released.arrays["grid"] != 0).any()
    full = gate_of(sampled_release(query, 1.0, 1), records=40).ask(query, 0, block, np.zeros(30))
    nobody = gate_of(sampled_release(query, 1e-12, 1), records=40).ask(query, 0, block, np.zeros(30))
    sizes |= {len(reply("answer", REQUEST, released).data) for released in (full, nobody)}
    assert len(sizes) == 1


# There is no other way out.


def a_release() -> Released:
    return gate_of(Release.at_mu(gradient(3), 0, 5, 0.1, "zero-out")).ask(gradient(3), 0, rows_of(10, 3), np.zeros(3))


def subclass(kind: type, **fields: Any) -> Any:
    """An instance of a subclass that never asked for the secure."""
    names = {"__slots__": (), "__new__": lambda cls: object.__new__(cls), "__init__": lambda self: None}
    made = type("Fake", (kind,), names)()
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


SECRET = np.array([170.25, 171.5])


FORGERIES: dict[str, Callable[[], Any]] = {
    "made by hand": lambda: Released("gradient", 0, {"grid": SECRET}, made_by=object()),
    "made without a secure": lambda: Released("gradient", 0, {"grid": SECRET}),  # type: ignore[call-arg]
    "made by __new__": lambda: Released.__new__(Released),
    "a subclass": lambda: subclass(Released, arrays={"grid": SECRET}, query="gradient", round=0),
    "a copy": lambda: copy.copy(a_release()),
    "a deep copy": lambda: copy.deepcopy(a_release()),
    "a pickle": lambda: pickle.loads(pickle.dumps(a_release())),
    "an array": lambda: SECRET,
    "a number": lambda: 170.25,
    "bytes": SECRET.tobytes,
    "a text": lambda: "170.25",
    "nothing": lambda: None,
    "a dictionary": lambda: {"grid": SECRET},
    "a frame": lambda: Frame("answer", 1, PLAN, 0, "gradient", {"grid": SECRET}),
    "a list of declared values": lambda: [declare_public("records", 5, reason="a count")],
    "a text among declared values": lambda: (declare_public("records", 5, reason="a count"), "170.25"),
    "a subclass of Declared": lambda: (subclass(Declared, name="records", value=[170.25], reason="none"),),
    "Declared made by hand": lambda: (Declared("records", 170, "none", made_by=None),),
    "Declared, copied": lambda: (copy.deepcopy(declare_public("records", 5, reason="a count")),),
    "a reply as content": lambda: reply("answer", REQUEST, a_release()),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_only_what_passed_the_gate_makes_a_reply(forge: Callable[[], Any]) -> None:
    with pytest.raises(LeakError) as error:
        reply("answer", REQUEST, forge())
    assert "170" not in str(error.value)
    assert "171" not in str(error.value)


def put(mapping: Any, key: Any, value: Any) -> None:
    mapping[key] = value


TAMPERINGS: dict[str, Callable[[], None]] = {
    "another array": lambda: setattr(a_release(), "arrays", {"grid": SECRET}),
    "another entry": lambda: put(a_release().arrays, "grid", SECRET),
    "another number": lambda: put(a_release().arrays["grid"], 0, 170),
    "another round": lambda: setattr(a_release(), "round", 170),
    "a field deleted": lambda: delattr(a_release(), "arrays"),
    "a declared value": lambda: setattr(declare_public("records", 5, reason="a count"), "value", [170.25]),
    "a declared name": lambda: setattr(declare_public("records", 5, reason="a count"), "name", "height"),
    "a declared list": lambda: put(declare_public("classes", [0, 1], reason="schema").value, 0, 170.25),
    "what goes out": lambda: setattr(reply("answer", REQUEST, a_release()), "data", b"170.25"),
}


@pytest.mark.parametrize("tamper", TAMPERINGS.values(), ids=TAMPERINGS)
def test_what_passed_the_gate_is_not_changed_afterwards(tamper: Callable[[], None]) -> None:
    with pytest.raises((LeakError, TypeError, ValueError)) as error:
        tamper()
    assert "170" not in str(error.value)


OUTGOING: dict[str, Callable[[], Any]] = {
    "made by hand": lambda: Outgoing(b"170.25", made_by=object()),
    "made by __new__": lambda: Outgoing.__new__(Outgoing),
    "a subclass": lambda: subclass(Outgoing, data=encode(Frame("answer", 7, text="170.25"))),
    "a copy": lambda: copy.copy(reply("answer", REQUEST, a_release())),
    "a pickle": lambda: pickle.loads(pickle.dumps(reply("answer", REQUEST, a_release()))),
    "bytes": lambda: encode(Frame("answer", 7, text="170.25")),
    "an array": lambda: SECRET,
    "a text": lambda: "170.25",
    "a frame": lambda: Frame("answer", 7, text="170.25"),
    "a release that was not replied": a_release,
    "nothing": lambda: None,
}


@pytest.mark.parametrize("forge", OUTGOING.values(), ids=OUTGOING)
def test_a_wire_takes_only_replies(forge: Callable[[], Any]) -> None:
    class Endpoint:
        name = "anna"

        def identify(self, identity: Any) -> None: ...

        def handle(self, request: bytes) -> Outgoing:
            made: Outgoing = forge()
            return made

    with pytest.raises(LeakError) as error:
        InProcess([Endpoint()]).exchange({"anna": encode(REQUEST)})
    assert "170" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("records", SECRET),
        ("records", np.float64(170.25)),
        ("records", np.int64(170)),
        ("records", 170.25),
        ("records", True),
        ("records", "170.25"),
        ("features", [170, 171]),
        ("feature_names", SECRET.tolist()),
        ("feature_names", [np.str_("170.25")]),
        ("feature_names", "170.25"),
        ("classes", list(range(170))),
        ("classes", [SECRET]),
        ("classes", [np.float64(170.25), np.float64(1)]),
        ("classes", SECRET),
        ("classes", {170.25: 1}),
        ("accepted", 170),
        ("accepted", None),
        ("error", 170.25),
        ("error", SECRET),
        ("error", b"170.25"),
        ("refused", ["170.25"]),
        ("refused", ValueError("170.25")),
    ],
)
def test_a_public_value_has_the_kind_of_its_name(name: str, value: Any) -> None:
    with pytest.raises(LeakError) as error:
        declare_public(name, value, reason="because")
    assert "170" not in str(error.value)


@pytest.mark.parametrize("name", ["loss", "accuracy", "norm", "mean", "gradient", "rows", "", "Records"])
def test_no_other_name_is_public(name: str) -> None:
    with pytest.raises(LeakError, match="is not a public value"):
        declare_public(name, 5, reason="because")


def test_a_public_value_needs_a_reason() -> None:
    with pytest.raises(LeakError, match="needs a reason"):
        declare_public("records", 5, reason="")
    assert all(public.why for public in PUBLIC_NAMES.values())


def test_declared_values_travel_by_name() -> None:
    facts = (
        declare_public("records", 5, reason="a count"),
        declare_public("classes", ["no", "yes"], reason="schema"),
        declare_public("feature_names", ["age"], reason="schema"),
    )
    frame = decode(reply("facts", REQUEST, facts).data)
    assert json.loads(frame.text) == {"records": 5, "classes": ["no", "yes"], "feature_names": ["age"]}
    assert not frame.arrays
    assert (frame.serial, frame.plan, frame.round, frame.query) == (7, PLAN, 3, "gradient")


def test_a_list_changed_after_it_was_declared_stays_as_declared() -> None:
    names = ["age"]
    declared = declare_public("feature_names", names, reason="schema")
    names.append("170.25")
    assert "170.25" not in decode(reply("facts", REQUEST, (declared,)).data).text


def test_nothing_shows_itself() -> None:
    released = a_release()
    declared = declare_public("error", "170.25", reason="a text")
    outgoing = reply("answer", REQUEST, released)
    digits = [str(abs(int(entry))) for entry in released.arrays["grid"]]
    for thing in (released, declared, outgoing, gate_of()):
        for shown in (repr(thing), str(thing)):
            text = re.sub("0x[0-9a-f]+", "", shown)  # an address has digits of its own
            assert "170" not in text
            assert not any(digit in text for digit in digits)


def test_a_gate_refuses_a_scale_beyond_its_sampler() -> None:
    query = gradient(3)
    release = Release.of(query, 0, 1, 2.0**45, 1.0)
    with pytest.raises(InputError, match="scale"):
        gate_of(release).ask(query, 0, rows_of(10, 3), np.zeros(3))
