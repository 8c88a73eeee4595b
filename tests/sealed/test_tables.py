"""Looked-up slopes: their mean, their bound, and how far one record or a part of it moves a gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dealing import FIRST, Run, opened, seeds_of, some_rows
from sottovoce import losses
from sottovoce.errors import InputError
from sottovoce.losses import Loss, weighted
from sottovoce.privacy.randomness import SeededRandomness
from sottovoce.sealed.columns import ONE
from sottovoce.sealed.pads import SCORES
from sottovoce.sealed.streams import stream
from sottovoce.sealed.tables import Lookup, fitted_nodes, slope_lookup, widening

BITS = 15
LOSSES = [losses.get(name) for name in ("logistic", "hinge", "smoothed_hinge", "huber", "squared")]


def named(loss: Loss) -> str:
    return loss.name


def node(lookup: Lookup, level: NDArray[Any]) -> NDArray[np.float64]:
    """f at any level, in units of the slope."""
    nodes = np.concatenate([lookup.nodes[0], -lookup.nodes[0]])
    return nodes[level % lookup.period] * 2.0**-BITS


def mean_slope(lookup: Lookup, score: float, dithers: int | None = None) -> float:
    """The mean of f over all dithers of a score, by convolution of their laws: one is of the masks."""
    steps = 1 << lookup.fine
    count = lookup.order if dithers is None else dithers
    law = np.ones(1)
    for _ in range(count):
        law = np.convolve(law, np.full(steps, 1 / steps))
    first = round(score * steps / lookup.level) - max(count - 1, 0) * (steps - 1) // 2
    return float(law @ node(lookup, (first + np.arange(len(law))) // steps))


# The mean slope


def test_the_mean_logistic_slope_is_within_the_error_of_its_fit() -> None:
    lookup, scores = slope_lookup(losses.get("logistic"), 1.0, BITS), np.linspace(-7.0, 7.0, 57)
    wanted = np.tanh(scores / 2) / 2
    found = np.array([mean_slope(lookup, z) for z in scores])
    assert np.abs(found - wanted).max() < 4e-4
    unfit = np.array([mean_slope(lookup, z, dithers=1) for z in scores])  # the holder's dithers forgotten
    assert np.abs(unfit - wanted).max() > 4e-3
    blunt = np.array([mean_slope(lookup, z, dithers=0) for z in scores])  # and the low bits of the masks
    assert np.abs(blunt - wanted).max() > 0.05


@pytest.mark.parametrize(("level", "order", "error"), [(1, 1, 6e-3), (1, 2, 1.2e-3), (1, 3, 3.7e-4), (2, 3, 9.5e-3)])
def test_fits_have_the_errors_that_the_proof_states(level: float, order: int, error: float) -> None:
    nodes = fitted_nodes(lambda u: np.tanh(u / 2) / 2, level, 16, order, 0.5, BITS)
    lookup = Lookup(nodes[None], level, True, 0.0, (0.5,), order)
    assert lookup.bound(BITS) <= 1.0
    scores = np.arange(0, 7 * 16 + 1) / 16 * level  # on the fine grid
    apart = [mean_slope(lookup, z) - math.tanh(z / 2) / 2 for z in scores]
    assert 0.5 * error < np.abs(apart).max() < error


@pytest.mark.parametrize("loss", LOSSES[2:], ids=named)
def test_piecewise_linear_slopes_are_exact_in_the_mean(loss: Loss) -> None:
    lookup = slope_lookup(loss, 1.0, BITS)
    steps = lookup.level * 2.0**-lookup.fine
    for label_ in (-1.0, 1.0):
        for score in np.linspace(-3.0, 3.0, 49):
            wanted = loss.derivative(np.array([score]), np.array([label_]))[0]
            found = mean_slope(lookup, score - lookup.shift * label_) - lookup.beta[0] * label_
            assert found == pytest.approx(np.clip(wanted, -1.0, 1.0), abs=steps + 2.0 ** (1 - BITS))


def test_the_hinge_is_smoothed_over_a_level() -> None:
    lookup = slope_lookup(losses.get("hinge"), 1.0, BITS)
    for margin, slope in ((-5.0, -1.0), (0.74, -1.0), (1.0, -0.5), (1.26, 0.0), (6.0, 0.0)):
        assert mean_slope(lookup, margin - lookup.shift) - lookup.beta[0] == pytest.approx(slope, abs=1e-9)


@pytest.mark.parametrize("parties", [2, 16])
def test_one_dither_rounds_the_sum_of_all_parties(parties: int) -> None:
    """Level by level what the masks' low bits and the holder's dithers say, whatever the number of parties."""
    records, lookup = 500, slope_lookup(losses.get("logistic"), 1.0, BITS)
    rows = some_rows(records, parties, BITS)
    labels = np.sign(np.random.default_rng(3).standard_normal(records))
    run = Run(rows, labels, [1] * parties, BITS, holder=parties - 1).exchange()
    weights = np.random.default_rng(4).standard_normal(parties) * 3
    run.round(0, weights, lookup)
    steps = 1 << lookup.fine
    parts = np.rint(rows * weights * (steps * 2.0**-BITS)).astype(np.int64)
    piece = (0, records)
    pads = [stream(seed, FIRST.label(SCORES, piece), records, np.uint16) for seed in seeds_of(parties).values()]
    low = np.sum(pads, axis=0, dtype=np.uint64).astype(np.int64) % steps
    drawn = np.frombuffer(SeededRandomness(0, "dithers").bytes(4 * records), dtype="<u2").reshape(2, -1) % steps
    dithers = drawn.sum(axis=0, dtype=np.int64) - (steps - 1)
    level = (parts.sum(axis=1) + dithers + steps - 1 - low) // steps
    slopes = run.seen["r"][:, 0] * 2.0**-BITS
    np.testing.assert_array_equal(slopes, node(lookup, level) - labels / 2)
    apart = sum((part + steps - 1 - low) // steps for part in parts.T)  # each party rounds its own part
    assert (slopes != node(lookup, np.asarray(apart)) - labels / 2).mean() > 0.3


# Which losses have a table, and its bound


@pytest.mark.parametrize("loss", LOSSES, ids=named)
@pytest.mark.parametrize("widen", [1, 2, 4, 8])
def test_no_table_exceeds_the_slope_bound(loss: Loss, widen: int) -> None:
    lookup = slope_lookup(loss, 1.0, BITS, widen=widen)
    assert lookup.bound(BITS) <= 1.0
    assert lookup.level == widen * slope_lookup(loss, 1.0, BITS).level
    assert lookup.nodes[0, 0] == 0
    assert np.array_equal(lookup.nodes[0, 1:], lookup.nodes[0, :0:-1])  # odd, and minus itself after half a period


def test_a_bound_of_several_outputs_is_their_norm() -> None:
    nodes = np.array([[3, -4], [0, 12]]) * 2**BITS
    lookup = Lookup(nodes, 1.0, False, 0.0, (0.0, -1.0), 1)
    assert (lookup.outputs, lookup.period, lookup.fine) == (2, 2, 15)
    assert lookup.bound(BITS) == pytest.approx(math.hypot(4, 13))


def test_losses_without_such_a_slope_are_refused() -> None:
    with pytest.raises(InputError, match="loss='sigmoid' has no slope"):
        slope_lookup(losses.get("sigmoid"), 1.0, BITS)
    with pytest.raises(InputError, match="without weights"):
        slope_lookup(weighted(losses.get("logistic"), (0.5, 1.0)), 1.0, BITS)
    with pytest.raises(InputError, match="cuts the slope"):
        slope_lookup(losses.get("logistic"), 0.5, BITS)
    with pytest.raises(InputError, match="residuals must be cut somewhere"):
        slope_lookup(losses.get("squared"), math.inf, BITS)
    with pytest.raises(InputError, match="widen=3 must be one of"):
        slope_lookup(losses.get("logistic"), 1.0, BITS, widen=3)
    assert slope_lookup(losses.get("huber", threshold=0.25), 1.0, BITS).bound(BITS) == 0.25


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": np.zeros((1, 4))}, "must be int64"),
        ({"nodes": np.zeros((1, 12), dtype=np.int64)}, "power of two"),
        ({"nodes": np.zeros((1, 1024), dtype=np.int64)}, "power of two"),
        ({"level": 0.0}, "level=0.0"),
        ({"beta": (0.0, 0.0)}, "one finite number for each of 1"),
        ({"shift": math.nan}, "finite"),
        ({"order": 0}, "order=0"),
    ],
)
def test_a_table_that_is_none_is_refused(change: dict[str, Any], said: str) -> None:
    fields = {"nodes": np.zeros((1, 4), dtype=np.int64), "level": 1.0, "symmetric": True, "shift": 0.0, "beta": (0.0,)}
    Lookup(**fields)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=said):
        Lookup(**(fields | change))  # type: ignore[arg-type]


def test_levels_are_further_apart_for_large_scores() -> None:
    lookup = slope_lookup(losses.get("logistic"), 1.0, BITS)
    spreads = [0.0, 13 / 6, 2.2, 26 / 3, 8.7, 52 / 3, 17.4, 1e9]
    assert [widening(lookup, spread) for spread in spreads] == [1, 1, 2, 2, 4, 4, 8, 8]


# How far a record moves a gradient


def canary(parties: int = 2) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows and labels; the first record is as long as any, with nearly all of it at the first party."""
    rows, labels = some_rows(6, 4, BITS), np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    rows[0] = [2**BITS - 1, 0, 40, 0]
    return rows, labels


def moved(lookup: Lookup, weights: NDArray[np.float64], tables: list[Any], holder: int, matrix: str = "rows") -> float:
    """The change of an opened sum between two tables under the same pads and dithers, in units of the slope."""
    found = []
    for rows, labels in tables:
        run = Run(rows, labels, [2, 2], BITS, holder=holder).exchange()
        found.append(opened(run.round(0, weights, lookup, matrix=matrix)).ravel())
    return float(np.linalg.norm(found[1] - found[0])) * (2.0**-BITS if matrix == ONE else 4.0**-BITS)


def blanked(rows: NDArray[np.int64], labels: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows, labels = rows.copy(), labels.copy()
    rows[0], labels[0] = 0, math.nan
    return rows, labels


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_no_weights_move_a_gradient_by_more_than_the_slope_bound(loss: Loss) -> None:
    rows, labels = canary()
    lookup, tables = slope_lookup(loss, 1.0, BITS), [(rows, labels), blanked(rows, labels)]
    drawn, most = np.random.default_rng(5), 0.0
    for size in (1.0, 10.0, 1e3, 1e5, 1e300):
        weights = drawn.standard_normal(4) * size
        for matrix in ("rows", ONE):  # a null record adds nothing to a plain sum either
            most = max(most, moved(lookup, weights, tables, 0, matrix))
    assert most <= 1.0
    reach = np.array([-lookup.level * lookup.nodes.shape[1] / 2 + lookup.shift, 0.0, 0.0, 0.0])
    assert moved(lookup, reach, tables, 0) >= 0.99


def test_faults_of_a_table_or_a_label_move_it_further() -> None:
    rows, labels = canary()
    tables, reach = [(rows, labels), blanked(rows, labels)], np.array([-8.0, 0.0, 0.0, 0.0])
    lookup = slope_lookup(losses.get("logistic"), 1.0, BITS)
    nodes = lookup.nodes.copy()
    nodes[0, 5:12] *= 2  # entries doubled
    doubled = Lookup(nodes, lookup.level, True, 0.0, lookup.beta)
    assert doubled.bound(BITS) > 1.0
    assert moved(doubled, reach, tables, 0) > 1.2

    run = Run(rows, labels, [2, 2], BITS).exchange()
    run.parties["p0"]._labels[0] = 2.0  # a label that was not cut
    run.round(0, reach, lookup)
    assert abs(run.seen["r"][0, 0]) > 1.2 * 2**BITS
    cut = Run(rows, np.array([math.inf, 7.0, -9.0, math.nan, 1.0, 1.0]), [2, 2], BITS)
    assert cut.parties["p0"]._labels.tolist() == [0.0, 1.0, -1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("known", [True, False], ids=["label known", "label blanked"])
@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_a_part_that_is_blanked_moves_a_gradient_by_its_own_factor(loss: Loss, known: bool) -> None:
    """Party 0 knows its own part, of length nearly 1; the part of party 1 is short and its weights are long."""
    rows, labels = canary()
    lookup, holder = slope_lookup(loss, 1.0, BITS), 0 if known else 1
    kappa = 2.0 if loss.kind == "regression" else (1.0 if known else 1.5)
    share = float((rows[0, :2] ** 2).sum()) * 4.0**-BITS  # Q
    factor = math.sqrt(1 + (kappa**2 - 1) * share)
    blank, null = rows.copy(), labels.copy()
    blank[0, 2:] = 0
    null[0] = labels[0] if known else math.nan
    far, most = lookup.level * lookup.nodes.shape[1] / 2, 0.0
    for here in (-1.0, 1.0):
        for there in (-2.0, 2.0):  # from one end of the table to the other
            weights = np.array([here * far, 0.0, there * far * 2.0**BITS / 40, 0.0])
            most = max(most, moved(lookup, weights, [(rows, labels), (blank, null)], holder))
    assert 0.99 * kappa <= most <= factor + 1e-9

    if loss.kind == "classification" and not known:
        null[0] = -labels[0]  # a blank record with a label of its own
        weights = np.array([far, 0.0, -2 * far * 2.0**BITS / 40, 0.0])
        assert moved(lookup, weights, [(rows, labels), (blank, null)], holder) > 1.9


def test_a_part_that_is_blanked_moves_the_gram_matrix_by_no_more_than_a_record() -> None:
    rows, labels = canary()
    for part in (40, 2**BITS - 1, int(0.8 * 2**BITS)):
        rows[0] = [int(math.sqrt(4**BITS - part**2)), 0, part, 0]
        blank = rows.copy()
        blank[0, 2:] = 0
        grams = [opened(Run(table, labels, [2, 2], BITS).exchange().gram_shares()) for table in (rows, blank)]
        weights = np.where(np.equal(*np.triu_indices(4)), 1.0, math.sqrt(2.0))
        assert np.linalg.norm((grams[1] - grams[0]) * weights) * 4.0**-BITS <= 1.0
