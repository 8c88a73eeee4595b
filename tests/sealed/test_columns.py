"""Sealed products over columns: what is opened is exact, bounded, and nothing else can be read."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dealing import FIRST, Run, opened, some_rows
from sottovoce import losses
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.grid import exact_bits
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.privacy.mechanisms import wide_gaussian
from sottovoce.privacy.randomness import SeededRandomness
from sottovoce.sealed import pads
from sottovoce.sealed.columns import ONE, ROWS, Columns
from sottovoce.sealed.pads import COLUMNS, CORRECTION, SCORES, SLOPES, Asked, label
from sottovoce.sealed.ring import check_room
from sottovoce.sealed.streams import masks, stream
from sottovoce.sealed.tables import Lookup, slope_lookup

BITS = 15
SPLITS = ([3, 2], [1, 4, 2], [2, 1, 1, 3, 1, 5, 1, 2])


def logistic(bits: int = BITS) -> Lookup:
    return slope_lookup(losses.get("logistic"), 1.0, bits)


def some_labels(records: int, seed: int = 7) -> NDArray[np.float64]:
    return np.sign(np.random.default_rng(seed).standard_normal(records))


def products(left: NDArray[np.int64], right: NDArray[np.int64]) -> list[list[int]]:
    """left'right in Python integers."""
    return [[sum(a * b for a, b in zip(x, y, strict=True)) for y in right.T.tolist()] for x in left.T.tolist()]


@pytest.mark.parametrize("widths", SPLITS, ids=len)
def test_what_is_opened_is_the_product_in_integers(widths: list[int]) -> None:
    rows = some_rows(40, sum(widths), BITS)
    exact = products(rows, rows)
    for holder in range(len(widths)):
        run = Run(rows, some_labels(40), widths, BITS, holder=holder).exchange()
        upper = [exact[i][j] for i, j in zip(*np.triu_indices(len(exact)), strict=True)]
        assert opened(run.gram_shares()).tolist() == upper
        for number in range(len(widths) + 1):  # the dealt words go to each party in turn
            weights = np.random.default_rng(number).standard_normal(len(exact))
            gradient = opened(run.round(number, weights, logistic()))
            assert gradient.T.tolist() == products(rows, run.seen["r"])


def test_a_share_left_out_of_one_block_is_seen() -> None:
    rows = some_rows(40, 7, BITS)
    run = Run(rows, some_labels(40), [1, 4, 2], BITS).exchange()
    shares, square = run.gram_shares(), np.zeros((7, 7), dtype=np.uint64)
    square[:1, 1:5] = 1
    shares["p1"] = np.where(square[np.triu_indices(7)] == 1, np.uint64(0), shares["p1"])
    assert (opened(shares) != (rows.T @ rows)[np.triu_indices(7)]).sum() >= 4


def test_pieces_and_further_matrices_open_the_same_kind_of_sum() -> None:
    rows, second = some_rows(50, 7, BITS), some_rows(50, 7, BITS, seed=5)
    run = Run(rows, some_labels(50), [1, 4, 2], BITS, holder=2).exchange()
    for party, part in zip(run.parties.values(), np.split(second, [1, 5], axis=1), strict=True):
        party.add_matrix("whitened", part)
    run.dealer.add_matrix("whitened")
    run.exchange("whitened")
    weights, pieces = np.linspace(-3, 3, 7), ((0, 17), (17, 18), (18, 50))
    noise = np.arange(7)[None]
    for number, matrix, exact in ((0, "rows", rows), (1, "whitened", second)):
        gradient = opened(run.round(number, weights, logistic(), matrix=matrix, pieces=pieces, noise=noise))
        np.testing.assert_array_equal(gradient, run.seen["r"].T @ exact + noise)
    total = opened(run.round(2, weights, logistic(), matrix=ONE, pieces=pieces, noise=np.array([3])))
    np.testing.assert_array_equal(total, run.seen["r"].sum(axis=0) + 3)


def test_columns_in_many_frames_open_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pads, "FRAME", 8 * 7 * 12)
    rows = some_rows(50, 7, BITS)
    run = Run(rows, some_labels(50), [1, 4, 2], BITS).exchange()
    assert pads.column_pieces(50, run.widths) == ((0, 10), (10, 20), (20, 30), (30, 40), (40, 50))
    assert pads.round_pieces(50, 3, 16) == tuple((5 * part, 5 * part + 5) for part in range(10))
    np.testing.assert_array_equal(opened(run.gram_shares()), (rows.T @ rows)[np.triu_indices(7)])
    gradient = opened(run.round(0, np.ones(7), logistic(), pieces=pads.round_pieces(50, 3, 16)))
    np.testing.assert_array_equal(gradient, run.seen["r"].T @ rows)


def test_the_gram_matrix_of_prepared_parts_is_the_central_one_bit_for_bit() -> None:
    records, bounds = 300, Bounds.declare(entry_bound=1.0)
    raw = np.random.default_rng(1).uniform(-1.0, 1.0, (records, 5))
    block = Block.prepare(raw, some_labels(records), Preparation(bounds, 5, True, records, (-1.0, 1.0)))
    bits = exact_bits(records)
    rows = np.asarray(block.dense_rows(6) * 2.0**bits)
    assert np.array_equal(rows, np.rint(rows))
    run = Run(rows.astype(np.int64), some_labels(records), [2, 3, 1], bits, holder=2).exchange()
    central = block.gram()[np.triu_indices(6)]
    assert (opened(run.gram_shares()) * 4.0**-bits).tobytes() == central.tobytes()

    coarser = rows.astype(np.int64)
    coarser[:, 2:5] //= 2  # another scale at one party
    other = Run(coarser, some_labels(records), [2, 3, 1], bits).exchange()
    assert (opened(other.gram_shares()) * 4.0**-bits).tobytes() != central.tobytes()


def test_sums_that_could_wrap_around_are_refused_and_those_just_below_are_exact() -> None:
    bits, std = 30, 2.0**-20
    for records in (7, 8):
        rows = np.full((records, 2), [2**bits, 0])
        run = Run(rows, np.ones(records), [1, 1], bits).exchange()
        exact = records * 4**bits
        if exact < 2**63:
            check_room(records, 1.0, 4.0**-bits, std)
            assert opened(run.gram_shares())[0] == exact
        else:  # nothing of the sum is right then
            with pytest.raises(InputError, match=r"leaves no room .* take fewer bits"):
                check_room(records, 1.0, 4.0**-bits, std)
            assert opened(run.gram_shares())[0] < 0
    with pytest.raises(InputError, match="leaves no room"):
        check_room(7, 1.0, 4.0**-bits, 1 / 64)
    with pytest.raises(InputError, match="leaves no room"):
        check_room(7, math.nan, 4.0**-bits, std)


# What each can read


def shares_less_the_dealers_own(run: Run, shares: dict[str, NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Of party 1, in the block of party 0, after all that the dealer knows: D_0'rho_1 where nothing veils it."""
    piece, width = (0, run.records), run.widths["p0"]
    pad = stream(run.seeds["p0"], label(COLUMNS, ROWS, piece, ""), run.records * width).reshape(run.records, width)
    rho = stream(run.seeds["p1"], FIRST.label(SLOPES, piece), run.records)
    dealt = stream(run.seeds["p1"], [*FIRST.label(CORRECTION, piece), ROWS], sum(run.widths.values()))
    return shares["p1"][0, :width] - dealt[:width] + pad.T @ rho


def test_masks_keep_shares_from_the_dealer() -> None:
    rows = some_rows(40, 5, BITS)
    run = Run(rows, some_labels(40), [3, 2], BITS).exchange()
    shares = run.round(0, np.ones(5), logistic())
    rho = stream(run.seeds["p1"], FIRST.label(SLOPES, (0, 40)), 40)
    read = rows[:, :3].astype(np.uint64).T @ rho
    assert np.array_equal(shares_less_the_dealers_own(run, shares), read)  # no masks: read in the clear

    key, of = {"p0": b"k" * 32, "p1": b"k" * 32}, ["gradient", 0]
    veiled = {
        name: share + masks({o: k for o, k in key.items() if o != name}, name, run.names, of, 5)
        for name, share in shares.items()
    }
    assert not (shares_less_the_dealers_own(run, veiled) == read).any()
    assert np.array_equal(opened(veiled), opened(shares))


def test_the_dealer_with_one_party_reads_everything() -> None:
    rows = some_rows(40, 5, BITS)
    run = Run(rows, some_labels(40), [3, 2], BITS).exchange()
    of = label(COLUMNS, ROWS, (0, 40), "")
    pad = stream(run.seeds["p0"], of, 120).reshape(40, 3)  # the dealer's
    assert np.array_equal((run.seen[("p0", *of)] + pad).view(np.int64), rows[:, :3])  # with what party 1 has


def test_a_party_that_adds_to_its_slopes_reads_a_row() -> None:
    rows, victim, factor = some_rows(40, 5, BITS), 17, 1000
    run = Run(rows, some_labels(40), [3, 2], BITS).exchange()
    honest = opened(run.round(0, np.ones(5), logistic()))
    active = Run(rows, some_labels(40), [3, 2], BITS).exchange()
    party = active.parties["p1"]
    asked = party.slopes

    def altered(*arguments: Any, **more: Any) -> Any:
        words = asked(*arguments, **more)
        words[victim] += np.uint64(factor)
        return words

    party.slopes = altered  # type: ignore[method-assign]
    moved = opened(active.round(0, np.ones(5), logistic()))
    assert np.array_equal(moved - honest, factor * rows[victim][None])


# Uniform words


def even(words: NDArray[Any]) -> float:
    """Chi-square over its degrees of freedom of the low and the high byte of words, the worse of the two.

    For uniform words it is beyond 1.6 with a chance below 1e-8.
    """
    top = 8 * (words.dtype.itemsize - 1)
    worst = 0.0
    for byte in (words & 0xFF, words >> top):
        counts = np.bincount(byte.astype(np.int64).ravel(), minlength=256)
        worst = max(worst, float(((counts - counts.mean()) ** 2).sum() / counts.mean() / 255))
    return worst


EVEN = 1.6


def test_what_parties_send_is_uniform_for_constant_data() -> None:
    records = 20_000
    rows = np.tile([2**BITS, 0], (records, 1))
    run = Run(rows, np.ones(records), [1, 1], BITS).exchange()
    run.round(0, np.array([1.5, 0.0]), logistic())
    for name in (COLUMNS, SCORES, SLOPES):
        for party in run.names:
            (sent,) = (words for of, words in run.seen.items() if of[:2] == (party, name))
            assert even(sent) < EVEN, name
    delta = run.seen[("p0", *FIRST.label(SCORES, (0, records)))]
    pad = stream(run.seeds["p0"], FIRST.label(SCORES, (0, records)), records, np.uint16)
    score = delta + pad
    assert even(score - (pad & 0x7FFF)) > 10 * EVEN  # a mask of 15 bits
    low = pad & ~np.uint16(0xFF) | score & 0xFF
    assert even(score - low) > 10 * EVEN  # dithers that follow the data


def test_what_is_dealt_depends_on_no_data() -> None:
    runs = [
        Run(some_rows(40, 5, BITS, seed), some_labels(40, seed), [3, 2], BITS, holder=seed).exchange()
        for seed in (0, 1)
    ]
    for number in range(2):
        gram, dealt = (
            [run.dealer.gram(FIRST) for run in runs],
            [run.dealer.lookup(Asked(number, ""), logistic()) for run in runs],
        )
        assert gram[0][1].tobytes() == gram[1][1].tobytes()
        assert dealt[0][0] == dealt[1][0] == f"p{number}"
        assert all(a.tobytes() == b.tobytes() for a, b in zip(dealt[0][1:], dealt[1][1:], strict=True))
    other = Run(some_rows(40, 5, BITS), some_labels(40), [3, 2], BITS, seed=1)
    assert other.dealer.gram(FIRST)[1].tobytes() != runs[0].dealer.gram(FIRST)[1].tobytes()


def test_the_low_bits_of_what_is_opened_are_noise() -> None:
    """Of a sum that is always the same; false alarms below 1e-8, as `even` says."""
    width = 200
    run = Run(np.zeros((1, width), dtype=np.int64), np.ones(1), [150, 50], BITS).exchange()
    entries, randomness = width * (width + 1) // 2, SeededRandomness(3, "noise")
    fine = opened(run.gram_shares(wide_gaussian(2.0**30, entries, randomness)))
    assert even((fine & 0xFF).astype(np.uint8)) < EVEN
    coarse = opened(run.gram_shares(256 * wide_gaussian(2.0**22, entries, randomness)))
    assert even((coarse & 0xFF).astype(np.uint8)) > 10 * EVEN


# Edges


def test_bad_words_weights_and_orders_are_refused() -> None:
    rows = some_rows(10, 5, BITS)
    run = Run(rows, some_labels(10), [3, 2], BITS)
    party, drawn = run.parties["p0"], SeededRandomness(0, "dithers")
    with pytest.raises(RefusedError, match="before all masked columns"):
        party.gram(FIRST)
    run.exchange()
    sent = {"p1": np.zeros((10, 2), dtype=np.uint64)}
    with pytest.raises(RefusedError, match="sent twice"):
        party.receive_columns(sent)
    for weights in (np.full(3, math.nan), np.full(3, math.inf), np.ones(2)):
        with pytest.raises(RefusedError, match="must be 3 finite numbers"):
            party.scores(FIRST, weights, logistic(), drawn)
    with pytest.raises(RefusedError, match="slopes before scores"):
        party.slopes(Asked(1, ""), {})
    party.scores(FIRST, np.ones(3), logistic(), drawn)
    with pytest.raises(RefusedError, match="missing, or of strangers"):
        party.slopes(FIRST, {"p0": np.zeros(10, dtype=np.uint16)})
    with pytest.raises(RefusedError, match="came in place of 10"):
        party.slopes(FIRST, {name: np.zeros(9, dtype=np.uint16) for name in run.names})
    with pytest.raises(RefusedError, match="'none' is not of this plan"):
        party.columns("none")
    with pytest.raises(LeakError, match=r"beyond 2\^bits"):
        party.add_matrix("wide", rows[:, :3] * 4)
    with pytest.raises(InputError, match="is there already"):
        party.add_matrix("rows", rows[:, :3])
    with pytest.raises(InputError, match="is not known"):
        run.dealer.lookup(FIRST, logistic(), "none")


def test_a_score_that_is_not_finite_counts_as_zero_and_a_huge_one_wraps() -> None:
    rows = np.array([[2**BITS, 0], [2**BITS - 1, 2**BITS], [0, 0]])
    party = Columns("a", ("a", "b"), {"a": 2, "b": 1}, rows, None, b"s" * 32, BITS)
    lookup, drawn = logistic(), SeededRandomness(0, "dithers")
    found = party.scores(FIRST, np.array([1e308, 1e308]), lookup, drawn)
    assert found.tolist() == [0, 0, 0]  # beyond 2^69 a float is a multiple of 2^16; the sum of two is not finite
    steps = 2.0**lookup.fine
    found = party.scores(FIRST, np.array([2.0**60, -0.5]), lookup, drawn)
    assert found.tolist() == [0, int((2**60 - 2**45) * steps - 0.5 * steps) % 2**16, 0]
