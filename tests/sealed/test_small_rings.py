"""Two parties and a dealer in rings so small that every state is played: what party 1 sees is uniform for all data.

The formulas are those of `sealed/columns.py` and `sealed/dealer.py`, of one record with one column at each party, words
modulo R and scores modulo 2^q L. Party 1 knows its own pads. It sees E_0, delta_0 and e_0 and, where it is the one that
is dealt to, the table and the corrections. The pads of party 0 are what is played through.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

FINE, LEVELS = 1, 4  # q and L; scores are modulo 8
SCORES, WIDTH = LEVELS << FINE, LEVELS // 2
NODES = (0, 1)  # f_k, k < W; f_{k + W} = -f_k
View = tuple[int, ...]


@dataclass(frozen=True)
class Data:
    """The columns, the scores and what the holder, party 1, subtracts from its slope."""

    own: tuple[int, int]
    scores: tuple[tuple[int, int], ...]  # of each round
    beta: int


@dataclass(frozen=True)
class Pads:
    """Those of party 1 are (1, 3, 1) with shares of ones; any would do."""

    column: int
    mask: tuple[int, ...]  # of each round
    rho: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    correction: tuple[tuple[int, int], ...]
    gram: int


A1, MASK1, RHO1, SHARE1 = 1, 3, 1, 1


def node(level: int) -> int:
    level %= LEVELS
    return NODES[level] if level < WIDTH else -NODES[level - WIDTH]


def every_pad(ring: int, rounds: int) -> Iterator[Pads]:
    words = range(ring)
    tables, pairs = list(itertools.product(words, repeat=WIDTH)), list(itertools.product(words, repeat=2))
    parts = [words, words]
    for _ in range(rounds):
        parts += [range(SCORES), words, tables, pairs]  # type: ignore[list-item]
    for column, gram, *rest in itertools.product(*parts):
        yield Pads(column, tuple(rest[0::4]), tuple(rest[1::4]), tuple(rest[2::4]), tuple(rest[3::4]), gram)


def play(ring: int, data: Data, pads: Pads, receiver: int, fault: str = "") -> tuple[View, bool]:
    """What party 1 sees, and whether the shares open D_0 D_1 and (D_0 r, D_1 r), r by the coins in what it sees."""
    d0, d1 = data.own
    e0, e1 = d0 - pads.column, d1 - A1
    seen = [e0]
    gram = pads.column * A1  # A_0'A_1, shared
    shares = (pads.gram, gram - pads.gram) if receiver == 1 else (gram - SHARE1, SHARE1)
    right = (pads.column * e1 + shares[0] + e0 * d1 + shares[1] - d0 * d1) % ring == 0
    if receiver == 1:
        seen.append(shares[1])
    for t, (k0, k1) in enumerate(data.scores):
        rho0 = pads.rho[0] if fault == "one rho" else pads.rho[t]
        mask = (pads.mask[t] + MASK1) % SCORES
        table = [node(v + (mask >> FINE)) for v in range(WIDTH)]
        exact = (pads.column * (rho0 + RHO1), A1 * (rho0 + RHO1))
        if receiver == 1:
            table0 = pads.table[t]
            out = (0,) * WIDTH if fault == "no table share" else table0
            table1 = tuple(value - share for value, share in zip(table, out, strict=True))
            share0 = pads.correction[t]
            share1 = tuple(value - share for value, share in zip(exact, share0, strict=True))
            seen += [*table1, *share1]
        else:
            table1, share1 = (SHARE1,) * WIDTH, (SHARE1, SHARE1)
            table0 = tuple(value - SHARE1 for value in table)
            share0 = (exact[0] - SHARE1, exact[1] - SHARE1)
        delta0 = (k0 - pads.mask[t]) % SCORES
        delta = (delta0 + k1 - MASK1) % SCORES
        place, sign = (delta >> FINE) % WIDTH, 1 if (delta >> FINE) < WIDTH else -1
        r0, r1 = sign * table0[place], sign * table1[place] - data.beta
        s0, s1 = r0 - rho0, r1 - RHO1
        e = s0 + s1
        seen += [delta0, s0]
        g0 = (e0 * rho0 + d0 * e + share0[0], e1 * rho0 + share0[1])
        g1 = (e0 * RHO1 + share1[0], e1 * RHO1 + d1 * e + share1[1])
        coin = delta % (1 << FINE)  # which party 1 sees
        joint = k0 + k1
        r = node((joint >> FINE) - (joint % (1 << FINE) < coin)) - data.beta
        right &= all((g0[i] + g1[i] - d * r) % ring == 0 for i, d in enumerate((d0, d1)))
    return tuple(
        value % (SCORES if is_score else ring) for value, is_score in _typed(seen, receiver, len(data.scores))
    ), right


def _typed(seen: list[int], receiver: int, rounds: int) -> Iterator[tuple[int, bool]]:
    """Each number with whether it is a score."""
    dealt = [False] * (WIDTH + 2) if receiver == 1 else []
    kinds = [False] * (2 if receiver == 1 else 1) + [*dealt, True, False] * rounds
    return zip(seen, kinds, strict=True)


def views(ring: int, data: Data, rounds: int, receiver: int, fault: str = "") -> tuple[Counter[View], bool]:
    found: Counter[View] = Counter()
    right = True
    for pads in every_pad(ring, rounds):
        view, opens = play(ring, data, pads, receiver, fault)
        found[view] += 1
        right &= opens
    return found, right


def space(ring: int, rounds: int, receiver: int) -> int:
    dealt = ring ** (WIDTH + 2) if receiver == 1 else 1
    return ring * (ring if receiver == 1 else 1) * (SCORES * ring * dealt) ** rounds


ONE_ROUND = [
    Data(own, ((k0, k1),), beta) for own in ((0, 0), (1, 0), (1, 1), (2, 3)) for k0, k1, beta in ((0, 0, 0), (3, 6, 1))
]


@pytest.mark.parametrize("receiver", [0, 1])
@pytest.mark.parametrize("ring", [2, 3])
def test_every_view_is_as_likely_whatever_the_data(ring: int, receiver: int) -> None:
    for data in ONE_ROUND if ring == 2 else ONE_ROUND[-1:]:
        seen, right = views(ring, data, 1, receiver)
        assert right
        assert len(seen) == space(ring, 1, receiver)
        assert len(set(seen.values())) == 1


def test_every_view_of_two_rounds_is_as_likely() -> None:
    """Dealt to party 0: the states are its columns, and the masks and slopes of both rounds."""
    for own in ((0, 0), (1, 1)):
        data = Data(own, ((3, 6), (5, 2)), 1)
        seen: Counter[View] = Counter()
        for column, m0, m1, p0, p1 in itertools.product(range(2), range(SCORES), range(SCORES), range(2), range(2)):
            view, right = play(2, data, Pads(column, (m0, m1), (p0, p1), ((), ()), ((0, 0), (0, 0)), 0), 0)
            assert right
            seen[view] += 1
        assert len(seen) == space(2, 2, 0)
        assert len(set(seen.values())) == 1


def test_one_pad_for_two_rounds_is_seen() -> None:
    data = Data((1, 1), ((3, 6), (5, 2)), 1)
    seen: Counter[View] = Counter()
    for column, m0, m1, p0, p1 in itertools.product(range(2), range(SCORES), range(SCORES), range(2), range(2)):
        pads = Pads(column, (m0, m1), (p0, p1), ((), ()), ((0, 0), (0, 0)), 0)
        seen[play(2, data, pads, 0, "one rho")[0]] += 1
    assert len(seen) < space(2, 2, 0)


def test_a_table_without_the_others_share_is_seen() -> None:
    ends = [views(2, data, 1, 1, "no table share")[0] for data in ONE_ROUND[:2]]
    assert len(ends[0]) < space(2, 1, 1)
    assert ends[0] != ends[1]  # the slope itself is read
