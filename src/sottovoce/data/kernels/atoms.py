# mypy: allow-untyped-decorators
"""Loops of Frank-Wolfe over columns, dense and sparse. Sums are exact: their terms lie on public grids."""

from __future__ import annotations

import numpy as np
from numba import njit

from sottovoce.data.kernels.common import EXACT_SUM, Array, Entries, Integers

_CHUNK = 2048  # terms whose factors stay in the first cache while all columns pass


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy")
def column_dots_dense(columns: Entries, factors: Array) -> Array:
    """sum_i factors[i] columns[j, i] for every j."""
    count, length = columns.shape
    found = np.zeros(count)
    for start in range(0, length, _CHUNK):
        part = factors[start : start + _CHUNK]  # a loop from 0 needs no test for negative places, and is vectorised
        for j in range(count):
            entries = columns[j, start : start + _CHUNK]
            total = 0.0
            for i in range(len(part)):
                total += entries[i] * part[i]
            found[j] += total
    return found


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy")
def column_dots_sparse(indptr: Integers, indices: Integers, data: Entries, factors: Array) -> Array:
    """The same for the columns of a CSC matrix."""
    found = np.zeros(len(indptr) - 1)
    for j in range(len(found)):
        total = 0.0
        for place in range(indptr[j], indptr[j + 1]):
            total += data[place] * factors[indices[place]]
        found[j] = total
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def add_rows_sparse(
    indptr: Integers, indices: Integers, data: Entries, rows: Integers, factors: Array, found: Array
) -> None:
    """Add factors[k] times row rows[k] of a CSR matrix to `found`."""
    for k in range(len(rows)):
        factor = factors[k]
        if factor == 0.0:
            continue
        for place in range(indptr[rows[k]], indptr[rows[k] + 1]):
            found[indices[place]] += factor * data[place]


@njit(cache=True, fastmath=False, error_model="numpy")
def add_chosen_columns_sparse(
    indptr: Integers,
    indices: Integers,
    data: Entries,
    places: Integers,
    factors: Array,
    scores: Array,
    marks: Integers,
    touched: Integers,
) -> int:
    """Add factors[k] times column places[k] of a CSC matrix to `scores`; whose entries these are, and how many.

    `marks` is zero before and after.
    """
    count = 0
    for k in range(len(places)):
        factor = factors[k]
        for place in range(indptr[places[k]], indptr[places[k] + 1]):
            record = indices[place]
            scores[record] += factor * data[place]
            if marks[record] == 0:
                marks[record] = 1
                touched[count] = record
                count += 1
    for k in range(count):
        marks[touched[k]] = 0
    return count
