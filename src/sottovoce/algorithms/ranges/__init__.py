"""Ranges of columns that nobody knows, bought with a share of a budget. A run that fits nothing."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.ranges.private import CountedRanges

FORMS: tuple[Algorithm, ...] = (CountedRanges(),)
