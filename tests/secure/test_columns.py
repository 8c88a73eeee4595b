"""Secure products over columns: what is opened is exact, every row is clipped, and null records add nothing."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dealing import FIRST, Run, logistic, look_up, projection, some_rows
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.secure import columns, dealer, streams
from sottovoce.secure.columns import BELOW, CLOSE, COARSE, Columns, Place
from sottovoce.secure.ring import FINE, LEVELS, MOST_FACTOR, ROW_BITS, Projection, factors
from sottovoce.secure.streams import RoundLabels, add_fields, pack_fields, unpack_fields

SPLITS = ([3, 2], [1, 4, 2], [2, 1, 1, 3, 1, 5, 1, 2])


def some_labels(records: int, seed: int = 7) -> NDArray[np.float64]:
    return np.sign(np.random.default_rng(seed).standard_normal(records))


def made(widths: list[int], records: int = 60, **more: Any) -> Run:
    null = np.random.default_rng(3).random((records, len(widths))) < 0.05
    rows = some_rows(records, sum(widths))
    return Run(rows, some_labels(records), widths, null=null, **more).exchange().share_null()


@pytest.mark.parametrize("widths", SPLITS, ids=len)
@pytest.mark.parametrize("bits", [32, 40, 48])
def test_what_is_opened_is_the_sum_in_integers(widths: list[int], bits: int) -> None:
    wide = sum(widths)
    for holder in range(len(widths)):
        run = made(widths, bits=bits, holder=holder)
        exact = run.rows.T @ run.rows
        assert run.gram().tolist() == exact[np.triu_indices(wide)].tolist()
        present = ~run.null.any(axis=1)
        second = (run.labels > 0).astype(np.int64)
        assert run.shared("null").tolist() == present.astype(int).tolist()
        assert run.shared_labels("null").tolist() == (present * second).tolist()
        weights = np.random.default_rng(holder).standard_normal(wide) * 4
        for number in range(len(widths) + 1):  # the dealt words go to each party in turn
            found = run.look_up(number, weights, logistic())
            slopes = present * (run.bits_of(number, logistic())[:, 0] - second)
            assert found.tolist() == (slopes @ run.rows).tolist()


@pytest.mark.parametrize("widths", SPLITS, ids=len)
def test_rows_are_clipped_whole(widths: list[int]) -> None:
    wide, exponent = sum(widths), 18
    run, p = made(widths, 400, holder=len(widths) - 1), projection(sum(widths), exponent)
    run.share_factor(p)
    z, f, present = run.rows @ p.matrix, run.shared("factor"), ~run.null.any(axis=1)
    squares, clip = (z**2).sum(axis=1), 4 * 2**exponent
    assert f.min() == 0
    assert f.max() == MOST_FACTOR
    assert (f[~present] == 0).all()
    assert (f.astype(object) ** 2 * squares <= MOST_FACTOR**2 * clip).all()
    kept = f[present] > 0
    assert kept[squares[present] < 12 * clip].all()
    assert not kept[squares[present] >= 14 * clip].any()
    ideal = MOST_FACTOR * np.minimum(1, np.sqrt(clip / np.maximum(squares, 1)))
    assert (f[present][kept] / ideal[present][kept]).mean() > 0.9
    second = (run.labels > 0).astype(np.int64)
    assert run.shared_labels("factor").tolist() == (f * second).tolist()
    weights = np.random.default_rng(1).standard_normal(wide) * 4
    lookup = logistic(weight="factor", matrix="projected", projection=p)
    found = run.look_up(6, weights, lookup, noise=np.arange(wide))
    slopes = f * (run.bits_of(6, lookup)[:, 0] - second)
    assert found.tolist() == (slopes @ z + np.arange(wide)).tolist()
    assert (np.abs(slopes[:, None] * z) <= MOST_FACTOR * math.isqrt(clip)).all()


def test_of_numbers_a_slope_is_between_both_bounds() -> None:
    run, p = made([2, 3], 80, classes=False), projection(5, 18)
    run.share_factor(p)
    chances = np.clip(0.5 + (np.arange(64) - 32) / 16, 0, 1)
    lookup = look_up(
        chances, level=0.1, index="residual", weight="factor", matrix="projected", twice=True, minus_label=False,
        projection=p,
    )  # fmt: skip
    found = run.look_up(6, np.ones(5), lookup)
    slopes = run.shared("factor") * (2 * run.bits_of(6, lookup)[:, 0] - 1)
    assert found.tolist() == (slopes @ run.rows @ p.matrix).tolist()


def test_sums_of_bits_have_their_scales_and_two_bits_one_index() -> None:
    run = made([1, 4, 2], 300)
    chances = np.stack([np.linspace(0, 1, 64), np.linspace(1, 0, 64)])
    twice = look_up(chances, index="label", matrix="one", twice=True, minus_label=False, scales=(200, -150))
    found = run.look_up(1, np.ones(7), twice, noise=np.array([5, -7]))
    n, bits = run.shared("null"), run.bits_of(1, twice)
    assert found.tolist() == ((n @ (2 * bits - 1)) * [200, -150] + [5, -7]).tolist()
    once = look_up(chances[:1], index="score", matrix="one", minus_label=False, scales=(256,))
    assert run.look_up(2, np.ones(7), once).tolist() == [256 * int(n @ run.bits_of(2, once)[:, 0])]


@pytest.mark.parametrize("parties", [2, 3, 8])
def test_parts_of_scores_are_rounded_without_bias(parties: int) -> None:
    """Errors of M parts are within M of 0: their mean over 40,000 records within .03 M, a false alarm below 1e-7.

    Control: to the nearest, parts of one value are all off by the same, M times .3.
    """
    records, weight = 40_000, 0.3 / 2**FINE  # of entries of 1: .3 of a step for each party, in every record
    rows = np.full((records, parties), 2**ROW_BITS, dtype=np.int64)
    run = Run(rows, np.ones(records), [1] * parties)
    lookup, asked = logistic(level=1.0), RoundLabels(3, "a" * 64)
    scores = [run.parties[name]._scores(asked, run.whole(), lookup, np.array([weight])) for name in run.names]
    added = LEVELS // 4 * 2**FINE + 2**FINE - 1
    found = np.sum([each.astype(np.int64) for each in scores], axis=0) - added
    assert abs(found.mean() - 0.3 * parties) < 0.03 * parties
    assert abs(parties * np.rint(0.3) - 0.3 * parties) > 0.03 * parties
    again = run.parties[run.names[0]]._scores(asked, run.whole(), lookup, np.array([weight]))
    assert again.tolist() == scores[0].tolist()


def test_the_mean_length_is_that_of_the_rows() -> None:
    """Bits of 4,000 records: within 5 deviations, a false alarm below 1e-6."""
    records, exponent = 4000, 18
    run = Run(some_rows(records, 5), some_labels(records), [2, 3]).exchange().share_null()
    p = projection(5, exponent, most=20.0)
    squares = ((run.rows @ p.matrix) ** 2).sum(axis=1)
    wanted = np.where(squares < 13 * 4 * 2**exponent, np.minimum(1, np.sqrt(squares / (16 * 2**exponent))), 0).sum()
    found = run.length(p, noise=77) - 77
    assert found % 256 == 0
    assert abs(found / 256 - wanted) < 5 * math.sqrt(records) / 2 + 0.01 * records
    halved = projection(5, exponent, most=5.0)  # control: rows half as long
    assert abs(run.length(halved, number=4) / 256 - wanted) > 5 * math.sqrt(records) / 2 + 0.01 * records


def test_scores_beyond_the_table_take_some_bit_all_the_same() -> None:
    run = made([2, 3], 200)
    for weights in (np.full(5, 1e9), np.full(5, 1e300), np.array([1e300, -1e300, 0, 0, 0])):
        found = run.look_up(int(weights[0] % 7), weights, logistic())
        bits = run.bits_of(int(weights[0] % 7), logistic())[:, 0]
        assert found.tolist() == ((run.shared("null") * (bits - (run.labels > 0))) @ run.rows).tolist()


@pytest.mark.parametrize("parties", range(2, 17))
def test_a_record_that_is_null_at_one_party_adds_nothing(parties: int) -> None:
    """Every pattern of null parts up to 4 parties; beyond, none, each alone, all but one, and all."""
    patterns = list(itertools.product((False, True), repeat=parties)) if parties <= 4 else [
        tuple(flags) for flags in (
            [False] * parties, [True] * parties,
            *([m == k for m in range(parties)] for k in range(parties)),
            *([m != k for m in range(parties)] for k in range(parties)),
        )
    ]  # fmt: skip
    null = np.repeat(np.array(patterns), 3, axis=0)
    records = len(null)
    run = Run(some_rows(records, parties), np.ones(records), [1] * parties, null=null, holder=parties - 1)
    run.exchange().share_null()
    p = projection(parties, 18, most=3.0)
    run.share_factor(p)
    present = ~null.any(axis=1)
    assert run.shared("null").tolist() == present.astype(int).tolist()
    assert ((run.shared("factor") > 0) == present).all()
    sure = np.ones((1, 64))
    for number, twice in ((7, True), (8, False)):
        lookup = look_up(sure, index="score", matrix="one", twice=twice, minus_label=False)
        assert run.look_up(number, np.ones(parties), lookup).tolist() == [present.sum()]
    far = Projection(np.eye(parties, dtype=np.int64) * 100, 10)  # every row that counts is of full length
    ones = Run(np.full((records, parties), 64), np.ones(records), [1] * parties, null=null).exchange().share_null()
    squares = ((ones.rows @ far.matrix) ** 2).sum(axis=1)[present]
    assert ones.length(far) <= 256 * present.sum() if len(squares) else ones.length(far) == 0


def test_null_flags_that_wrap_around_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen parties and sixteen levels: a record that is null at all of them counts as null at none."""
    monkeypatch.setattr(columns, "NULL_LEVELS", 16)
    with pytest.raises(InputError):
        Run(some_rows(3, 16), np.ones(3), [1] * 16)


def worst(modulus: int, squares: NDArray[Any], parties: int, shares: int) -> NDArray[Any]:
    """The lowest level that any carry and any coin can make of squares."""
    top = (squares >> (modulus - columns.INDEX)) - shares + parties - 1
    return np.asarray((top % 2**columns.INDEX) >> BELOW)  # the coin 2^q - 1: nothing is rounded up


@pytest.mark.parametrize("parties", [2, 8, 16])
@pytest.mark.parametrize("exponent", [10, 12, 22, 30])
def test_no_carry_and_no_coin_keeps_a_row_too_long(parties: int, exponent: int) -> None:
    """Squares around every level, and up to 252 C^2, with the most that low bits of shares can carry."""
    clip, unit = 4 << exponent, 1 << exponent
    near = np.arange(0, 252 * 4 + 1)[:, None] * unit + np.array([-2, -1, 0, 1, 2])
    squares = np.unique(np.clip(near.ravel(), 0, 252 * clip))
    f = factors()
    for carry in range(parties):
        level = worst(exponent + COARSE, squares, parties, carry)
        kept = squares[level < columns.KEPT]
        assert kept.max() < 14 * clip
        factor = f[worst(exponent + CLOSE, kept, parties, carry)]
        assert (factor.astype(object) ** 2 * kept <= MOST_FACTOR**2 * clip).all()
    beyond = np.array([254 * clip])  # control: a row that nobody may send is kept by some coin
    assert worst(exponent + COARSE, beyond + 2 * clip, parties, parties - 1)[0] < columns.KEPT


def test_the_factors_are_whole_numbers_from_below() -> None:
    found = factors().tolist()
    assert len(found) == columns.FINE_LEVELS
    assert max(found) == MOST_FACTOR == 31
    for level, factor in enumerate(found):
        assert 0 < factor <= MOST_FACTOR
        assert factor**2 * (level + 1) <= MOST_FACTOR**2 * 8
        assert factor == MOST_FACTOR or (factor + 1) ** 2 * (level + 1) > MOST_FACTOR**2 * 8


def test_pieces_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FRAME", 240 * 12)
    assert streams.frame_pieces(50, 240) == ((0, 10), (10, 20), (20, 30), (30, 40), (40, 50))
    rows, labels = some_rows(50, 7), some_labels(50)
    whole = Run(rows, labels, [1, 4, 2]).exchange()
    assert whole.gram().tolist() == (rows.T @ rows)[np.triu_indices(7)].tolist()
    total = np.zeros(7, dtype=np.int64)
    second = (labels > 0).astype(np.int64)
    asked, sure = RoundLabels(4, "told"), look_up(np.ones((1, 64)), index="label")
    own = {name: np.ones(whole.widths[name]) for name in whole.names}
    for at in streams.frame_pieces(50, 240):

        def null(name: str, party: Columns, dealt: Any, at: Any = at) -> Any:
            del name
            return party.null(FIRST, at, dealt)

        def sums(name: str, party: Columns, dealt: Any, at: Any = at) -> Any:
            return party.look_up(asked, at, sure, own[name], dealt)

        whole.program("null", FIRST, whole.dealer.null(FIRST, at), null, at)
        words = whole.dealer.look_up(asked, at, sure, 0, whole.coins(asked))
        found = whole.program("look-up", asked, words, sums, at)
        assert found is not None
        total += found
    assert total.tolist() == ((1 - second) @ rows).tolist()


def test_words_that_do_not_fit_are_refused() -> None:
    run = made([2, 3])
    party = run.parties["p00"]
    with pytest.raises(RefusedError, match="wrong parties"):
        party.receive_columns({}, (0, 60))
    with pytest.raises(RefusedError, match="other fields"):
        next(party.null(FIRST, (0, 60), (np.zeros(3, dtype=np.int64),)))
    with pytest.raises(RefusedError, match="finite numbers"):
        next(party.look_up(RoundLabels(1, "x"), (0, 60), logistic(), np.array([np.nan, 1.0])))
    with pytest.raises(RefusedError, match="before its 'factor' was shared"):
        next(party.look_up(RoundLabels(1, "x"), (0, 60), logistic(weight="factor"), np.zeros(2)))
    with pytest.raises(LeakError, match="beyond 2"):
        Columns(Place("a", {"a": 1, "b": 1}, 40, True), np.array([[300]]), np.array([True]), None, b"x" * 32)
    with pytest.raises(RefusedError, match="before all masked columns"):
        Run(some_rows(5, 2), np.ones(5), [1, 1]).gram()


def test_messages_have_the_bytes_of_their_fields() -> None:
    message = (
        np.arange(5, dtype=np.int8), np.arange(3, dtype=np.int16), np.array([-1, 2**39, 2**40 + 3]),
        np.arange(2, dtype=np.uint8),
    )  # fmt: skip
    packed = pack_fields(message, 40)
    assert len(packed) == 5 + 6 + 15 + 2
    found = unpack_fields(packed, message, 40)
    assert [f.tolist() for f in found] == [[0, 1, 2, 3, 4], [0, 1, 2], [2**40 - 1, 2**39, 3], [0, 1]]
    for wrong in (packed[:-1], packed + b"\0"):
        with pytest.raises(RefusedError, match="other fields"):
            unpack_fields(wrong, message, 40)
    with pytest.raises(RefusedError, match="the same fields"):
        add_fields(message, message[:2])


def test_a_party_that_is_dealt_nothing_has_the_words_of_its_seed() -> None:
    assert dealer.receiver_of(("a", "b", "c"), 4) == "b"
    run = made([2, 3])
    again = made([2, 3])
    assert run.said.keys() == again.said.keys()
    for key, message in run.said.items():
        for name, words in message.items():
            assert all((a == b).all() for a, b in zip(words, again.said[key][name], strict=True))


def test_words_that_do_not_hold_the_squares_of_rows_are_refused() -> None:
    """Shares modulo 2^32 have no bits of levels modulo 2^40: f would be any, and a term too long by 15.9."""
    told = projection(2, 30)
    run = Run(some_rows(8, 2), np.ones(8), [1, 1], bits=32).exchange().share_null()
    with pytest.raises(LeakError, match="do not hold"):
        run.share_factor(told)
    with pytest.raises(LeakError, match="do not hold"):
        run.length(told)


def test_rows_are_clipped_after_it_was_shared_which_are_null() -> None:
    run = Run(some_rows(8, 2), np.ones(8), [1, 1]).exchange()
    with pytest.raises(RefusedError, match="null"):
        run.share_factor(projection(2, 20))
