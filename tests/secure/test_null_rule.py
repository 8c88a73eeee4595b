"""The null rule in the clear: how far a record moves each sum over secure columns, for parties that know a part of it.

A record that is null at one party, or has no label, adds 0 to every looked-up sum. So neighbours of parties J, which
differ in what the other parties H have of one record, are no further apart than those of data in one place: K = 1.
All records of a small grid are taken in pairs, for every H, with every coin of either record by itself: bits are any of
0 and 1, and a level is the one below or the next. The sums are written out here; nothing asks the product for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.plans import OPTIONS

from sottovoce import algorithms
from sottovoce.data.bounds import Bounds
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.problem import Named
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.events import RELATIONS
from sottovoce.secure.ring import factors as looked_up_factors

Whole = NDArray[np.int64]

PARTIES, HOLDER = 3, 1
ROW = 256  # an integer row has the length 256 sqrt Q at most
LENGTH = 64  # C, to which P'x is clipped: g = 10
LEVEL = LENGTH**2 // 8
FACTORS = tuple(min(31, math.isqrt(8 * 31**2 // (level + 1))) for level in range(128))
PROJECTION = np.array([[2, 1, 0], [-1, 1, 1], [0, 1, -2]])  # P', of lambda_max 6
NULL = -1  # the place of a part that is null

SHARES = {1: (0.5, 0.25, 0.25), 2: (1.0, 0.5, 0.5)}  # squares of the parties' norms, by their sum Q
HOLDERS = [held for size in range(1, PARTIES + 1) for held in itertools.combinations(range(PARTIES), size)]


def parts(party: int, q: int) -> tuple[int, ...]:
    """What a party may have of a record: 0, which is not null, what is just not clipped, and all its norm allows."""
    most = math.isqrt(int(ROW**2 * SHARES[q][party]))
    own = int((PROJECTION[:, party] ** 2).sum())
    just = math.isqrt((LENGTH**2 - 1) // own)
    return (0, just, -just, most, -most)


class Records(NamedTuple):
    """Every record: the places of its parts, its integers, its label (0 or 1), and whether it is null nowhere."""

    places: Whole
    rows: Whole
    label: Whole
    usable: NDArray[np.bool_]


@cache
def records(q: int) -> Records:
    """Of all parts and labels; a record whose holder is null has no label: 0."""
    values = [(*parts(party, q), 0) for party in range(PARTIES)]  # the last one is that of a null part
    every = itertools.product(*(range(NULL, len(each) - 1) for each in values), (0, 1))
    found = np.array([each for each in every if each[HOLDER] != NULL or each[-1] == 0])
    places, label = found[:, :-1], found[:, -1]
    rows = np.stack([np.array(each)[places[:, party]] for party, each in enumerate(values)], axis=1)
    return Records(places, rows, label, (places != NULL).all(axis=1))


def factors(squares: Whole) -> Iterator[Whole]:
    """f by the coins of both look-ups: the first one drops what is longer than 14 C^2 or so."""
    for coarse, fine in itertools.product((0, 1), repeat=2):
        kept = squares // (2 * LENGTH**2) + coarse + 1 <= 7
        level = np.minimum(squares // LEVEL + fine, 127)
        assert (level[kept] == squares[kept] // LEVEL + fine).all()
        yield np.where(kept, np.array(FACTORS)[level], 0)


def slopes(found: Records, numbers: bool) -> Iterator[Whole]:
    """t - y' of classes, 2 t - 1 of numbers."""
    for bit in (0, 1):
        yield np.full(len(found.rows), 2 * bit - 1) if numbers else bit - found.label


def gram(found: Records, flags: NDArray[np.bool_]) -> Iterator[Whole]:
    yield (found.rows[:, :, None] * found.rows[:, None]).reshape(len(found.rows), -1)


def held(value: Callable[[Whole], Whole]) -> Callable[[Records, NDArray[np.bool_]], Iterator[Whole]]:
    """A sum of the holder of the labels alone, of its records that it has a label of."""

    def terms(found: Records, flags: NDArray[np.bool_]) -> Iterator[Whole]:
        yield np.where(found.places[:, HOLDER] != NULL, value(found.label), 0)[:, None]

    return terms


def whitened(numbers: bool) -> Callable[[Records, NDArray[np.bool_]], Iterator[Whole]]:
    def terms(found: Records, flags: NDArray[np.bool_]) -> Iterator[Whole]:
        short = found.rows @ PROJECTION.T
        for factor, slope in itertools.product(factors((short**2).sum(axis=1)), slopes(found, numbers)):
            yield (flags * factor * slope)[:, None] * short

    return terms


def plain(numbers: bool) -> Callable[[Records, NDArray[np.bool_]], Iterator[Whole]]:
    def terms(found: Records, flags: NDArray[np.bool_]) -> Iterator[Whole]:
        for slope in slopes(found, numbers):
            yield (flags * slope)[:, None] * found.rows

    return terms


def bits(value: Callable[[int], int], *scales: int) -> Callable[[Records, NDArray[np.bool_]], Iterator[Whole]]:
    def terms(found: Records, flags: NDArray[np.bool_]) -> Iterator[Whole]:
        for each in itertools.product((0, 1), repeat=len(scales)):
            yield flags[:, None] * np.array([scale * value(bit) for scale, bit in zip(scales, each, strict=True)])

    return terms


class Sum(NamedTuple):
    """What a record adds, by coins; how far it may move under zero-out and replace-one, by Q; where it is looked up."""

    terms: Callable[[Records, NDArray[np.bool_]], Iterator[Whole]]
    bounds: Callable[[float], tuple[float, float]]
    looked_up: bool = True


SUMS = {
    "gram": Sum(gram, lambda q: (q * ROW**2, math.sqrt(2) * q * ROW**2), looked_up=False),
    "label": Sum(held(lambda y: 2 * y - 1), lambda _: (1, 2), looked_up=False),
    "residual": Sum(held(lambda y: y), lambda _: (1, 1), looked_up=False),
    "length": Sum(bits(lambda bit: bit, 1), lambda _: (1, 1)),
    "gradient of whole rows, classes": Sum(whitened(numbers=False), lambda _: (31 * LENGTH, 62 * LENGTH)),
    "gradient of whole rows, numbers": Sum(whitened(numbers=True), lambda _: (31 * LENGTH, 62 * LENGTH)),
    "gradient of rows, classes": Sum(plain(numbers=False), lambda q: (ROW * math.sqrt(q), 2 * ROW * math.sqrt(q))),
    "gradient of rows, numbers": Sum(plain(numbers=True), lambda q: (ROW * math.sqrt(q), 2 * ROW * math.sqrt(q))),
    "score": Sum(bits(lambda bit: 2 * bit - 1, 256), lambda _: (256, 512)),
    "square": Sum(bits(lambda bit: bit, 256), lambda _: (256, 256)),
    "rescale": Sum(bits(lambda bit: 2 * bit - 1, 240, 89), lambda _: (256, 512)),
}
CASES = [(name, q) for name in SUMS for q in SHARES]
SIGNED = [name for name, each in SUMS.items() if each.looked_up and name not in ("length", "square")]


@cache
def distances(name: str, q: int, *, flagged: bool = True) -> NDArray[np.float64]:
    """How far apart the terms of every two records can be, whatever the coins of each."""
    found = records(q)
    flags = found.usable if flagged else np.ones(len(found.rows), dtype=bool)
    terms = [each.astype(np.float64) for each in SUMS[name].terms(found, flags)]
    squares = [(each**2).sum(axis=1) for each in terms]
    apart = np.zeros((len(found.rows),) * 2)
    for one, other in itertools.product(range(len(terms)), repeat=2):
        product = terms[one] @ terms[other].T
        np.maximum(apart, squares[one][:, None] + squares[other] - 2 * product, out=apart)
    return np.sqrt(apart)


def neighbours(q: int, holders: tuple[int, ...], relation: str) -> NDArray[np.bool_]:
    """Which pairs differ in what `holders` have of a record: blanked in the second, or replaced by anything."""
    found = records(q)
    known = [party for party in range(PARTIES) if party not in holders]
    alike = (found.places[:, None, known] == found.places[None, :, known]).all(axis=2)
    if HOLDER in known:
        alike &= found.label[:, None] == found.label
    if relation == "zero-out":
        alike &= (found.places[:, holders] == NULL).all(axis=1)
    return alike


def moved(name: str, q: int, holders: tuple[int, ...], relation: str, *, flagged: bool = True) -> float:
    """The furthest that neighbours are apart, over the bound."""
    bound = SUMS[name].bounds(q)[RELATIONS.index(relation)]
    return float(distances(name, q, flagged=flagged)[neighbours(q, holders, relation)].max()) / bound


def test_the_model_has_the_relations_and_a_projection_that_parties_take() -> None:
    assert RELATIONS == ("zero-out", "replace-one")
    for q in SHARES:
        assert np.linalg.eigvalsh(PROJECTION @ PROJECTION.T).max() * ROW**2 * q <= 252 * LENGTH**2
        rows = records(q).rows
        assert (rows**2).sum(axis=1).max() <= q * ROW**2
    assert tuple(looked_up_factors()) == FACTORS
    assert all(factor**2 * (level + 1) * LEVEL <= (31 * LENGTH) ** 2 for level, factor in enumerate(FACTORS))


@pytest.mark.parametrize(("name", "q"), CASES)
def test_what_others_have_of_a_record_moves_no_sum_further_than_the_record_does(name: str, q: int) -> None:
    for relation, holders in itertools.product(RELATIONS, HOLDERS):
        assert moved(name, q, holders, relation) <= 1 + 1e-9, (relation, holders)


@pytest.mark.parametrize(("name", "q"), CASES)
def test_the_bound_is_reached(name: str, q: int) -> None:
    for relation in RELATIONS:
        reached = {holders: moved(name, q, holders, relation) for holders in HOLDERS}
        assert max(reached.values()) >= 0.97, relation
        if SUMS[name].looked_up and relation == "zero-out":  # whoever has a part of it takes the record away
            assert min(reached.values()) >= 0.97


@pytest.mark.parametrize("name", [name for name, each in SUMS.items() if each.looked_up])
def test_a_part_that_is_blank_is_the_record_blank(name: str) -> None:
    found = records(1)
    for terms in SUMS[name].terms(found, found.usable):
        assert not terms[~found.usable].any()


@pytest.mark.parametrize("name", SIGNED)
def test_zeros_without_a_flag_exceed_the_bound(name: str) -> None:
    """The negative control: the record stays, and its slope follows the part that others blanked."""
    known = [holders for holders in HOLDERS if len(holders) < PARTIES]
    further = {holders: moved(name, 1, holders, "zero-out", flagged=False) for holders in known}
    assert max(further.values()) > 1.4
    if "classes" not in name:  # with the label among what is known the slope of classes stays within its interval
        assert min(further.values()) > 1.3


UNITS = {"gram": ROW**2, "label": 1, "residual": 1, "length": 1, "score": 256, "square": 256, "rescale": 256}


@pytest.mark.parametrize("solver", ["whitened", "newton", "gradient"])
@pytest.mark.parametrize("classes", [True, False])
def test_plans_charge_these_bounds(solver: str, classes: bool) -> None:
    fields: dict[str, Any] = {"loss": Named(name="logistic"), "classes": (-1, 1)} if classes else {}
    for q in SHARES:
        norms = tuple(math.sqrt(share) for share in SHARES[q])
        given = {
            **OPTIONS[solver],
            **fields,
            "labels": "held",
            "aggregation": SecureAggregation(colluding=2),
            "norms": norms,
        }
        plan = audit_plan(solver, "columns", PARTIES, 1, fit_intercept=True, bounds=bounds_of(classes), **given)
        square = plan.row_square
        for query in algorithms.of(plan).queries(plan, plan.names[0]):
            name, unit = query.name, float(UNITS.get(query.name, 1))
            if name == "gradient":
                name += f" of {'whole rows' if solver == 'whitened' else 'rows'}, {'classes' if classes else 'numbers'}"
                unit = 32 * LENGTH if solver == "whitened" else ROW / query.slope_bound  # type: ignore[attr-defined]
            bounds = SUMS[name].bounds(square)
            release = plan.release(query.name)
            charged = [release.charged(relation) for relation in RELATIONS]
            for found, bound in zip(charged, bounds, strict=True):
                assert bound / unit * (1 - 1e-12) <= found <= bound / unit * 1.01, (name, q)  # more by what is rounded
            assert release.std > 0
        assert (square > 1) == (q > 1)


def bounds_of(classes: bool) -> Bounds:
    return Bounds.declare(row_norm=1.0, **({} if classes else {"label_bound": 1.0}))
