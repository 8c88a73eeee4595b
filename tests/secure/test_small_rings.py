"""Two parties and a dealer in rings so small that every state is played: what party 1 sees is alike for all data.

The formulas are those of `secure/columns.py` and `secure/dealer.py`, of one record, words modulo 4. All masks of party
0, and the shares that hide what is dealt, are played through at once; party 1 has fixed masks, which it knows. Its view
is what party 0 says under masks, and its own shares of what is dealt: the rest, where it is the one that is dealt to.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

WORDS = 4


def states(**sizes: int) -> dict[str, Numbers]:
    """Every value of every mask."""
    grid = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    return dict(zip(sizes, grid.astype(np.int64), strict=True))


def law(*seen: tuple[Numbers, int]) -> Numbers:
    """How often each view occurs; a number is seen modulo its size."""
    view = np.zeros_like(np.broadcast_arrays(*(values for values, _ in seen))[0])
    for values, size in seen:
        view = view * size + values % size
    return np.bincount(view, minlength=int(np.prod([size for _, size in seen])))


def split(true: Numbers, share: Numbers, to: int, *, xor: bool = False) -> tuple[Numbers, Numbers]:
    """What is dealt, shared: party `to` gets the rest, the other has a stream."""
    rest = true ^ share if xor else (true - share) % WORDS
    return (rest, share) if to == 0 else (share, rest)


def chosen(null: int, j0: int, to: int, control: str = "") -> tuple[Numbers, bool]:
    """A look-up of two levels of two steps with a shared choice, its bit as a number, opened under a mask.

    The index is in shares with low bits (0 .. 3, of which the top bit is looked up), the choice in XOR shares.
    """
    s = states(a0=4, g0=2, table=16, b0=2, G=WORDS, phi0=WORDS)
    a1, g1, b1, j1, null1 = 3, 1, 0, 2, 1
    choice = (null ^ null1) ^ s["g0"]  # what party 0 says of its share of the choice
    c = choice ^ null1 ^ g1
    delta0 = (j0 - s["a0"]) % 4
    delta = (delta0 + j1 + 1 - a1) % 4  # the first party's 2^q - 1
    shift, gamma = ((s["a0"] + a1) % 4) >> 1, s["g0"] ^ g1
    exact = np.zeros_like(c)
    for half, v in itertools.product((0, 1), (0, 1)):
        bit = ((half ^ gamma) == 0) & ((v + shift) % 2 == 1)  # 1 for the upper level of records that are chosen
        exact |= bit.astype(np.int64) << (2 * half + v)
    stream = np.zeros_like(exact) if control == "bare table" else s["table"]
    table0, table1 = split(exact, stream, to, xor=True)
    at = 2 * c + (delta >> 1)
    t0, t1 = (table0 >> at) & 1, (table1 >> at) & 1
    mask = s["g0"] if control == "a mask twice" else s["b0"]
    said = t0 ^ mask
    bits, gammas = said ^ t1 ^ b1, mask ^ b1
    G0, G1 = split(gammas, s["G"], to)
    word0, word1 = (bits + (1 - 2 * bits) * G0) % WORDS, ((1 - 2 * bits) * G1) % WORDS
    wanted = ((null == 0) & ((((delta >> 1) + shift) % 2) == 1)).astype(np.int64)
    right = bool(((word0 + word1 - wanted) % WORDS == 0).all())
    own = ((table1, 16), (G1, WORDS))  # what it was dealt, or has by its seed
    return law((delta0, 4), (choice, 2), (said, 2), ((word0 - s["phi0"]) % WORDS, WORDS), *own), right


SECRETS = tuple(itertools.product((0, 1), range(4)))


@pytest.mark.parametrize("to", [0, 1])
def test_a_chosen_look_up_shows_nothing(to: int) -> None:
    played = [chosen(null, j0, to) for null, j0 in SECRETS]
    assert all(right for _, right in played)
    assert all((found == played[0][0]).all() for found, _ in played)
    assert len(set(played[0][0].tolist())) == 1, "every view is as likely as any other"


@pytest.mark.parametrize(("control", "to"), [("a mask twice", 0), ("bare table", 1)])
def test_a_chosen_look_up_with_a_fault_is_seen(control: str, to: int) -> None:
    played = [chosen(null, j0, to, control)[0] for null, j0 in SECRETS]
    assert any((found != played[0]).any() for found in played)


def round_of(j0: int, f: int, to: int, control: str = "") -> tuple[Numbers, bool]:
    """A round: score, bit, f t by F and the dealt product, slope; the column of party 0 times the slope."""
    s = states(a0=2, table=4, g0=2, phi0=WORDS, G=WORDS, P=WORDS, rho0=WORDS, A0=WORDS, corr=WORDS)
    a1, g1, f1, phi1, rho1, d0 = 1, 1, 3, 2, 1, 1
    delta0 = (j0 - s["a0"]) % 2
    delta = (delta0 - a1) % 2
    shift = (s["a0"] + a1) % 2
    exact = ((0 + shift) % 2) + 2 * ((1 + shift) % 2)  # t = the level
    table0, table1 = split(exact, s["table"], to, xor=True)
    t0, t1 = (table0 >> delta) & 1, (table1 >> delta) & 1
    said = t0 if control == "bits bare" else t0 ^ s["g0"]
    gamma = np.full_like(said, g1) if control == "bits bare" else s["g0"] ^ g1
    c = said ^ t1 ^ g1
    phi, f0 = (s["phi0"] + phi1) % WORDS, (f - f1) % WORDS
    F0 = (f0 - s["phi0"]) % WORDS
    F = (F0 + f1 - phi1) % WORDS
    G0, G1 = split(gamma, s["G"], to)
    P0, P1 = split(phi * gamma % WORDS, s["G"] if control == "one share for two" else s["P"], to)
    w0 = (c * f0 + (1 - 2 * c) * (F * G0 + P0)) % WORDS
    w1 = (c * f1 + (1 - 2 * c) * (F * G1 + P1)) % WORDS
    rho0 = np.zeros_like(w0) if control == "no mask on slopes" else s["rho0"]
    e0 = (w0 - rho0) % WORDS
    e = (e0 + w1 - rho1) % WORDS
    E0 = (d0 - s["A0"]) % WORDS
    corr0, corr1 = split(s["A0"] * (rho0 + rho1) % WORDS, s["corr"], to)
    sum_ = (E0 * rho0 + d0 * e + corr0 + E0 * rho1 + corr1) % WORDS
    right = bool((sum_ == d0 * f * (j0 % 2) % WORDS).all()) or control != ""
    own = ((table1, 4), (G1, WORDS), (P1, WORDS), (corr1, WORDS))  # what it was dealt, or has by its seed
    return law((delta0, 2), (said, 2), (F0, WORDS), (e0, WORDS), (E0, WORDS), *own), right


ROUNDS = tuple(itertools.product((0, 1), range(WORDS)))


@pytest.mark.parametrize("to", [0, 1])
def test_a_round_shows_nothing(to: int) -> None:
    played = [round_of(j0, f, to) for j0, f in ROUNDS]
    assert all(right for _, right in played)
    assert all((found == played[0][0]).all() for found, _ in played)
    assert len(set(played[0][0].tolist())) == 1


@pytest.mark.parametrize(
    ("control", "to"), [("bits bare", 0), ("one share for two", 1), ("no mask on slopes", 0)]
)  # fmt: skip
def test_a_round_with_a_fault_is_seen(control: str, to: int) -> None:
    played = [round_of(j0, f, to, control)[0] for j0, f in ROUNDS]
    assert any((found != played[0]).any() for found in played)


def label_product(y: int, n: int, to: int, control: str = "") -> tuple[Numbers, bool]:
    """A share of n y', y' told by party 0 under its mask."""
    s = states(eta0=WORDS, nu0=WORDS, product=WORDS)
    eta1, nu1, n1 = 3, 1, 2
    Y0, N0 = (y - s["eta0"]) % WORDS, ((n - n1) - s["nu0"]) % WORDS
    Y, N = (Y0 - eta1) % WORDS, (N0 + n1 - nu1) % WORDS
    share = np.zeros_like(Y) if control == "bare product" else s["product"]
    p0, p1 = split((s["nu0"] + nu1) * (s["eta0"] + eta1) % WORDS, share, to)
    h0 = N * s["eta0"] + s["nu0"] * Y + p0 + N * Y
    h1 = N * eta1 + nu1 * Y + p1
    right = bool(((h0 + h1 - n * y) % WORDS == 0).all())
    own = ((p1, WORDS),)  # what it was dealt, or has by its seed
    return law((Y0, WORDS), (N0, WORDS), *own), right


@pytest.mark.parametrize("to", [0, 1])
def test_the_product_with_a_label_shows_nothing(to: int) -> None:
    played = [label_product(y, n, to) for y, n in itertools.product((0, 1), (0, 1))]
    assert all(right for _, right in played)
    assert all((found == played[0][0]).all() for found, _ in played)


def test_a_product_without_the_others_share_is_seen() -> None:
    played = [label_product(y, n, 1, "bare product")[0] for y, n in itertools.product((0, 1), (0, 1))]
    assert any((found != played[0]).any() for found in played)


def squares(d0: int, to: int, control: str = "") -> tuple[Numbers, bool]:
    """A share of |P'x|^2 by what is opened of x, one column at each party, P = (1, 1)'."""
    s = states(A0=WORDS, dealt=WORDS)
    A1, d1 = 3, 2
    E0, E1 = (d0 - s["A0"]) % WORDS, (d1 - A1) % WORDS
    seen = E0 + E1
    share = np.zeros_like(E0) if control == "bare" else s["dealt"]
    q0, q1 = split((s["A0"] + A1) ** 2 % WORDS, share, to)
    total = seen**2 + 2 * seen * s["A0"] + q0 + 2 * seen * A1 + q1
    own = ((q1, WORDS),)  # what it was dealt, or has by its seed
    return law((E0, WORDS), *own), bool(((total - (d0 + d1) ** 2) % WORDS == 0).all())


def test_the_square_of_a_row_shows_nothing() -> None:
    for to in (0, 1):
        played = [squares(d0, to) for d0 in range(WORDS)]
        assert all(right for _, right in played)
        assert all((found == played[0][0]).all() for found, _ in played)
    bare = [squares(d0, 1, "bare")[0] for d0 in range(WORDS)]
    assert any((found != bare[0]).any() for found in bare)
