"""Cases in which every two values of two axes meet, fewer than the product of the axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

Pair = tuple[tuple[int, int], tuple[int, int]]


def pairwise(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by axes that meet two at a time; the same cases in every run."""
    values = [list(axis) for axis in axes.values()]
    product = list(itertools.product(*(range(len(axis)) for axis in values)))
    left = set[Pair]().union(*map(pairs_of, product))
    rows = []
    while left:
        row = max(product, key=lambda row: len(pairs_of(row) & left))
        left -= pairs_of(row)
        rows.append(tuple(axis[place] for axis, place in zip(values, row, strict=True)))
    return pytest.mark.parametrize(tuple(axes), rows)


def pairs_of(row: tuple[int, ...]) -> set[Pair]:
    return set(itertools.combinations(enumerate(row), 2))
