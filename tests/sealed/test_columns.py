"""Sealed products over columns: what is opened is exact, bounded, and nothing else can be read."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dealing import Run, opened, some_rows
from sottovoce import losses
from sottovoce.sealed.columns import ONE
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
