"""What is left of an opened sum to each adversary, by draws through the real protocol; and what breaks if more pool.

Variances are within 5% of 20,000 draws or more: 5 standard errors, a false alarm below 1e-6. Seeds are fixed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from sottovoce.algorithms import Ask
from sottovoce.federation.secure_columns import dealer
from sottovoce.federation.secure_columns.coordinator import place_of, widths_of
from sottovoce.gate.query import Round
from sottovoce.lab.audit import secure as audited
from sottovoce.lab.audit.secure import AttackingView, Keys, OpenedSum, SecureColumns, SecureRows, _Protocol, with_keys
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.mechanisms import SeededRandomness, wide_gaussian
from sottovoce.queries.joint import JointGradient, WholeGradient
from sottovoce.secure import sums
from sottovoce.secure.columns import Columns, dealt_like, places
from sottovoce.secure.dealer import ColumnDealer, receiver_of
from sottovoce.secure.ring import LookUp, exponent_of, slope_chances, slope_level
from sottovoce.secure.streams import SET_UP, stream_fields

sys.path.insert(0, str(Path(__file__).parent))
from hostile import secure_plan

pytestmark = pytest.mark.slow

POOLS: tuple[AttackingView, ...] = ("world", "coordinator", "parties", "coordinator and parties")
WITHIN = 0.05


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger, level = logging.getLogger("sottovoce.holder"), logging.getLogger("sottovoce.holder").level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def source(name: str) -> SeededRandomness:
    return SeededRandomness(11, name)


class Second(SeededRandomness):
    """The second party's."""


def by_columns(plan: Plan) -> tuple[SecureColumns, _Protocol, Keys]:
    rng = np.random.default_rng(3)
    plan, keys = with_keys(plan, source)
    widths = [plan.part(name).stop - plan.part(name).start for name in plan.names]
    y = rng.uniform(-1, 1, plan.records)
    data = {n: (rng.uniform(-1, 1, (plan.records, w)), y) for n, w in zip(plan.names, widths, strict=True)}
    side = SecureColumns(plan, data, "world")
    sources = {name: source(name) for name in (*plan.names, COORDINATOR)} | {"party 2": Second(11, "party 2")}
    return side, _Protocol(side, plan, keys, sources), keys


def gram_noise(parties: int) -> tuple[Plan, dict[str, NDArray[np.float64]], NDArray[np.int64]]:
    """By adversary, the noise left on an opened Gram matrix in units of sigma; and the opened whole numbers."""
    width = {2: 104, 3: 69}[parties]
    side, run, keys = by_columns(secure_plan("newton", "columns", parties, features=width, rounds=2))
    run.sum(0, Ask("gram"))
    unit = run.plan.release("gram").std / run.plan.release("gram").step
    weights = np.asarray(side.queries[run.plan.names[0]]["gram"].noise_weights)
    seen = {coalition: run.left(0, Ask("gram"), coalition) for coalition in POOLS}
    (exact,) = side.exact([seen["world"]], keys)
    return run.plan, {p: (one.left - exact) * weights / unit for p, one in seen.items()}, seen["world"].left - exact


@pytest.mark.parametrize("parties", [2, 3])
def test_by_columns_a_gram_matrix_has_the_noise_that_is_declared(parties: int) -> None:
    plan, noise, low = gram_noise(parties)
    assert len(low) > 20_000
    assert plan.aggregation is not None
    share, top_up = 1 / parties, 1 - 1 / parties
    due = {"world": 1 + top_up, "coordinator": 1.0, "parties": share + top_up, "coordinator and parties": share}
    for coalition, drawn in noise.items():
        assert np.mean(drawn**2) == pytest.approx(due[coalition], rel=WITHIN), coalition
    assert 0.6 < uniformity(low) < 1.5


def uniformity(grid: NDArray[np.int64]) -> float:
    """Chi-square of the low 8 bits over its degrees of freedom: 1 +- .09 where they are uniform."""
    counts = np.bincount(grid & 255, minlength=256)
    return float(np.sum((counts - len(grid) / 256) ** 2) / (len(grid) / 256) / 255)


def test_noise_on_a_coarse_grid_shows_in_the_low_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(scale: Any, size: int, randomness: Any) -> NDArray[np.int64]:
        return 256 * wide_gaussian(scale / 256, size, randomness)

    monkeypatch.setattr(sums, "wide_gaussian", coarse)
    monkeypatch.setattr(dealer, "wide_gaussian", coarse)
    _, _, low = gram_noise(2)
    assert uniformity(low) > 1000


@pytest.mark.parametrize("fault", ["no share of one party", "no top-up", "two thirds at one party"])
def test_noise_that_is_missing_shows_in_the_variance(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factor = {"no share of one party": 0.0, "two thirds at one party": 2 / 3}.get(fault, 1.0)

    def drawn(scale: Any, size: int, randomness: Any) -> NDArray[np.int64]:
        found = wide_gaussian(scale, size, randomness)
        return np.rint(found * factor).astype(np.int64) if isinstance(randomness, Second) else found

    monkeypatch.setattr(sums, "wide_gaussian", drawn)
    if fault == "no top-up":
        monkeypatch.setattr(dealer, "wide_gaussian", lambda scale, size, drawn: np.zeros(size, dtype=np.int64))
    _, noise, _ = gram_noise(3)
    due = {"no share of one party": 2 / 3, "no top-up": 1.0, "two thirds at one party": (2 + 4 / 9) / 3}[fault]
    coalition = "world" if fault == "no top-up" else "coordinator"
    assert np.mean(noise[coalition] ** 2) == pytest.approx(due, rel=WITHIN)
    assert np.mean(noise[coalition] ** 2) < (5 / 3 if coalition == "world" else 1.0) * (1 - 2 * WITHIN)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_by_columns_gradients_have_the_noise_that_is_declared(relation: Any) -> None:
    rounds, width = 200, 52
    plan = secure_plan("gradient", features=width, rounds=rounds, relation=relation, records=3)
    side, run, keys = by_columns(plan)
    rng, query = np.random.default_rng(5), side.queries[plan.names[0]]["gradient"]
    assert isinstance(query, JointGradient)
    seen: dict[AttackingView, list[OpenedSum]] = {coalition: [] for coalition in POOLS}
    for number in range(rounds):
        ask = Ask("gradient", query.message(rng.normal(size=2 * width)))
        run.sum(number, ask)
        for coalition in POOLS:
            seen[coalition].append(run.left(number, ask, coalition))
    exact = np.concatenate(side.exact(seen["world"], keys))
    unit = plan.release("gradient").std / plan.release("gradient").step
    due = {"world": 1.5, "coordinator": 1.0, "parties": 1.0, "coordinator and parties": 0.5}
    found = {coalition: np.concatenate([one.left for one in each]) - exact for coalition, each in seen.items()}
    for coalition, noise in found.items():
        assert noise.size > 20_000
        assert np.mean((noise / unit) ** 2) == pytest.approx(due[coalition], rel=WITHIN), coalition
    assert 0.6 < uniformity(found["world"]) < 1.5


@pytest.mark.parametrize("parties", [2, 5])
def test_by_rows_a_sum_has_the_noise_that_is_declared(parties: int) -> None:
    plan = secure_plan("newton", "rows", parties, features=202, rounds=2, labels="shared", records=2)
    plan, keys = with_keys(plan, source)
    rng = np.random.default_rng(3)
    data = {n: (np.full((2, 202), np.nan), np.zeros(2)) for n in plan.names}
    data[plan.names[0]] = (rng.uniform(-1, 1, (2, 202)) / 20, np.ones(2))
    sources = {name: source(name) for name in (*plan.names, COORDINATOR)}
    share, top_up = 1 / parties, 1 - 1 / parties
    due = {"world": 1 + top_up, "coordinator": 1.0, "parties": share + top_up, "coordinator and parties": share}
    release = plan.release("gram")
    for coalition in POOLS:
        side = SecureRows(plan, data, coalition)
        seen = side.secure_play(plan, keys, sources).messages[0].released.arrays["grid"]
        query = side.queries[side.own]["gram"]
        exact = np.rint(query.value(round_of(plan, side)) / release.step).astype(np.int64)
        noise = (seen - exact) * np.asarray(query.noise_weights) * release.step / release.std
        assert noise.size > 20_000
        assert np.mean(noise**2) == pytest.approx(due[coalition], rel=WITHIN), coalition
        assert 0.6 < uniformity(seen - exact) < 1.5


# ------------------------------------------------------------------------------------------- of whitened gradients

ILL = 3, 300  # parties, rounds


def whitened_noise() -> dict[str, NDArray[np.float64]]:
    """The noise of many gradients of whitened rows by an ill-conditioned P, (rounds, directions), in units of sigma.

    All of it, less one party's, and less the dealer's.
    """
    parties, rounds = ILL
    plan = secure_plan("whitened", "columns", parties, features=2, rounds=rounds, records=8)
    side, run, keys = by_columns(plan)
    dimension, first = plan.dimension, plan.release("gradient").first
    query = side.queries[plan.names[0]]["gradient"]
    assert isinstance(query, WholeGradient)
    matrix = np.tril(np.random.default_rng(7).uniform(0.2, 1.0, (dimension, dimension)))
    matrix = np.rint(matrix * 2.0 ** -np.arange(dimension) * 2.0 ** (exponent_of(plan) // 2 - 5)).astype(np.int64)
    assert np.linalg.cond(matrix) > 100
    level, weights = slope_level(query.loss, 1.0, 0.5), np.full(dimension, 0.3)
    told = {"weights": weights, "level": np.array([level]), "chances": slope_chances(query.loss, 1.0, level)}
    unit, found, seen = plan.release("gradient").std / plan.release("gradient").step, list[Any](), list[OpenedSum]()
    for number in range(first, first + rounds):
        ask = Ask(
            "gradient", {**told, **({"projection": matrix[np.tril_indices(dimension)]} if number == first else {})}
        )
        run.sum(number, ask)
        seen.append(run.left(number, ask, "world"))
        found.append((run.maskers["party 2"].drawn, run.deals.drawn))
    noise = np.array([one.left for one in seen]) - np.array(side.exact(seen, keys))
    one, dealt = (np.array(each) for each in zip(*found, strict=True))
    return {"all": noise / unit, "less one party's": (noise - one) / unit, "less the dealer's": (noise - dealt) / unit}


def covariance_is(noise: NDArray[np.float64], due: float) -> bool:
    """Whether that is due I: every variance by a chi-square, every other entry within 6 deviations.

    By chance not so in one of 2e7 cases for 6 directions.
    """
    count, width = noise.shape
    found = noise.T @ noise / due
    low, high = chi2.ppf([4e-9, 1 - 4e-9], count)
    return bool(
        ((low <= np.diag(found)) & (np.diag(found) <= high)).all()
        and np.abs(found[np.triu_indices(width, 1)]).max() <= 6 * np.sqrt(count)
    )


def test_gradients_of_whitened_rows_have_the_same_noise_in_every_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = ILL[0]
    due = {"all": 2 - 1 / parties, "less one party's": 2 - 2 / parties, "less the dealer's": 1.0}
    found = whitened_noise()
    for name, noise in found.items():
        assert covariance_is(noise, due[name]), name
    assert not covariance_is(found["less the dealer's"], due["all"])

    real = ColumnDealer.look_up

    def before(self: ColumnDealer, asked: Any, piece: Any, lookup: LookUp, noise: Any, coins: Any) -> Any:
        assert lookup.projection is not None
        mixed = lookup.projection.T @ noise * np.sqrt(len(noise)) / np.linalg.norm(lookup.projection)
        return real(self, asked, piece, lookup, np.rint(mixed).astype(np.int64), coins)

    monkeypatch.setattr(ColumnDealer, "look_up", before)  # planted: as much noise in all, before P
    assert not covariance_is(whitened_noise()["all"], due["all"])


def round_of(plan: Plan, side: SecureRows) -> Round:
    return Round(plan, 0, {}, side.blocks[side.own], side.memories()[side.own])


# ------------------------------------------------------------------------------------------------ what breaks it


def played() -> tuple[_Protocol, Ask]:
    """A run by columns before its first gradient."""
    plan = secure_plan("gradient", features=3, rounds=2)
    side, run, _ = by_columns(plan.model_copy(update={"parties": tuple((name, 8) for name in plan.names)}))
    query = side.queries[plan.names[0]]["gradient"]
    assert isinstance(query, JointGradient)
    return run, Ask("gradient", query.message(np.random.default_rng(9).normal(size=6)))


def rows_of(run: _Protocol, name: str) -> NDArray[np.int64]:
    """A party's columns in whole numbers."""
    return run.runs[name]._engine._own.astype(np.int64)


def columns_masks(run: _Protocol, name: str) -> NDArray[np.int64]:
    """What the dealer knows."""
    engine = run.runs[name]._engine
    (found,) = stream_fields(run.deals._keys[name], SET_UP.label("columns", (0, 8)), engine.columns((0, 8)))
    return np.asarray(found)


def test_the_dealer_with_one_party_has_every_column() -> None:
    """Why the report says that raw columns are then in the clear."""
    run, _ = played()
    read = run.runs["party 2"]._engine._masked[:, places(widths_of(run.plan))["party 1"]]  # what the party may read
    lost = 64 - run.maskers["party 1"].bits
    assert np.array_equal(((read + columns_masks(run, "party 1")) << lost) >> lost, rows_of(run, "party 1"))
    assert not np.array_equal((read << lost) >> lost, rows_of(run, "party 1"))


def test_a_party_that_adds_to_its_slopes_reads_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the report says that who departs from the protocol reads chosen rows, in silence."""
    (run, ask), (quiet, _) = played(), played()  # with the same noise
    loud, record, real = 100, 5, Columns.look_up

    def louder(self: Columns, *arguments: Any) -> Any:
        program = real(self, *arguments)
        opened = yield next(program)
        opened = yield program.send(opened)
        (slopes,) = program.send(opened)
        slopes = slopes.copy()
        slopes[record] += loud * (self.place.name == "party 2")
        opened = yield (slopes,)
        try:
            program.send(opened)
        except StopIteration as stop:
            return stop.value

    quiet.sum(0, ask)
    monkeypatch.setattr(Columns, "look_up", louder)
    run.sum(0, ask)
    away = run.left(0, ask, "world").left - quiet.left(0, ask, "world").left
    block = places(widths_of(run.plan))["party 1"]
    assert (away[block] == loud * rows_of(run, "party 1")[record]).all()
    assert np.abs(away[block]).max() > 10 * run.plan.release("gradient").std / run.plan.release("gradient").step


def test_the_masks_keep_the_dealer_from_products_with_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share is E_1'rho_2, what was dealt and noise: without masks the dealer had D_1'rho_2 from it."""
    small = 2.0**56  # noise; a uniform word is so small with a chance of 2^-7, three of them with 5e-7

    def away() -> NDArray[np.float64]:
        run, ask = played()
        run.sum(1, ask)  # in which party 1 is not dealt to, and party 2 has a stream
        bits, asked = run.maskers["party 2"].bits, run.sums._transcript.after("gradient", 1, ask.arrays)
        assert receiver_of(run.plan.names, 1) == "party 2"
        (rho,) = stream_fields(
            run.deals._keys["party 1"], asked.label("look-up 2", (0, 8)), (np.zeros(8, dtype=np.int64),)
        )
        like = dealt_like("look-up", (0, 8), place_of(run.plan, "party 1"), look_up_of(run, ask))
        dealt = stream_fields(run.deals._keys["party 1"], asked.label("look-up dealt", (0, 8)), like)[-1]
        product = (rows_of(run, "party 2") - columns_masks(run, "party 2")).T @ rho  # E_2'rho_1
        found = run.shares["party 1"][3:6].view(np.uint64) - ((product + dealt[3:]) << (64 - bits)).view(np.uint64)
        return np.abs(found.view(np.int64).astype(np.float64))

    assert away().max() > small
    monkeypatch.setattr(sums, "masks", lambda keys, own, roster, label, count: np.zeros(count, dtype=np.uint64))
    monkeypatch.setattr(audited, "masks", lambda keys, own, roster, label, count: np.zeros(count, dtype=np.uint64))
    assert away().max() < small


def look_up_of(run: _Protocol, ask: Ask) -> LookUp:
    query = run.side.queries[run.plan.names[0]]["gradient"]
    assert isinstance(query, JointGradient)
    return query.lookup(ask.arrays)
