"""People with several records: which of these count, and what is made of those of one person together.

A person is a slot of a public number of slots, N. At most `most_records` of its usable records count, T, which is
public too; how many it has is private. So every grid, bound and length of an answer follows from N and T. A record
without an identifier is a null row. Proof: `gate/proofs/people.md`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.arguments import is_whole
from sottovoce.data.beside import NOBODY, columns_beside
from sottovoce.data.coded import Coded
from sottovoce.data.kernels import people_loops as kernels
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.resources import fits_in_memory
from sottovoce.errors import InputError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST: Final = 1024  # records of a person that a plan may let count
ROOT_BITS: Final = 6  # over columns: u, a record's weight being u^2 / 4^6


def check_person(person: Any, most: Any) -> tuple[str | None, int | None]:
    """The column that says whose a record is, and how many of a person count; anything else is refused."""
    if not (person is None or (isinstance(person, str) and person)):
        raise InputError(f"person={person!r} must be the name of a column; leave it out where there is none.")
    if most is not None and person is None:
        raise InputError(f"most_records={most!r} is of a person: name the column that says whose, person=.")
    return person, check_most_records(most)


def check_most_records(most: Any) -> int | None:
    """The declared number of records of a person that count, or None; anything else is refused."""
    if most is None or (is_whole(most) and 1 <= most <= MOST):
        return None if most is None else int(most)
    raise InputError(
        f"most_records={most!r} must be how many records of a person count at most, from 1 to {MOST}; take what is "
        "publicly known to be usual, never the largest number in these data."
    )


def count_people(labels: NDArray[Any]) -> int:
    """How many people the records are of, a public number: those whose records are blank or too many count too."""
    person = columns_beside(labels).get("person")
    return len(labels) if person is None else max(len(np.unique(person[person != NOBODY])), 1)


def put_together(
    rows: Matrix, labels: Array, person: NDArray[np.int64], usable: NDArray[np.bool_], most: int
) -> tuple[Integers, Integers]:
    """The places of the records that count, those of a person together, and where each person's begin and the last end.

    Of more than `most` usable records of a person those count whose keys are smallest: a hash of the row and the label,
    so no other person's record and no place in a file has a part in it.
    """
    if is_sparse(rows):
        rows.sort_indices()
        keys = kernels.row_keys_sparse(rows.indptr, rows.indices, rows.data, labels)
    else:
        keys = kernels.row_keys_dense(rows, labels)
    places = np.flatnonzero(usable & (person != NOBODY))
    order = places[np.lexsort((keys[places], person[places]))]
    own = person[order]
    firsts = np.flatnonzero(np.append(True, own[1:] != own[:-1])[: len(own)])
    counts = np.diff(np.append(firsts, len(own)))
    kept = np.arange(len(own)) - np.repeat(firsts, counts) < most
    return order[kept], np.append(0, np.cumsum(np.minimum(counts, most))).astype(np.int64)


def root_weights(person: Integers, most: int) -> Integers:
    """The u of each record, over columns: the largest whole number with n u^2 <= 4^6, n records of the person counting.

    The first `most` of a person count, in the order of the rows, no others and none of nobody: so weights follow from
    whose the records are, and from no cell. Those of a person add up to 1 at most.
    """
    order = np.argsort(person, kind="stable")
    own = person[order]
    firsts = np.flatnonzero(np.append(True, own[1:] != own[:-1])[: len(own)])
    counts = np.diff(np.append(firsts, len(own)))
    roots = np.sqrt(4**ROOT_BITS // np.repeat(np.minimum(counts, most), counts)).astype(np.int64)
    counted = (np.arange(len(own)) - np.repeat(firsts, counts) < most) & (own != NOBODY)
    found = np.empty(len(own), dtype=np.int64)
    found[order] = np.where(counted, roots, 0)
    return found


def read_whole(data: Any) -> tuple[Matrix, NDArray[Any]] | None:
    """The rows and labels of a `Dataset` that says whose they are, all at once; None if it does not say it.

    A person's records never are in two parts, so rows that do not fit in memory are refused.
    """
    said = data.schema is not None and data.schema.person is not None
    if not said and not any("person" in columns_beside(getattr(source, "y", None)) for source in data.sources):
        return None
    if data.cluster is not None or not fits_in_memory(16 * data.shape[0] * data.shape[1]):
        raise InputError(
            "person: the records of a person lie together in memory, and these rows do not fit there, or are at the "
            "workers of a cluster. Use a machine with more memory, or fewer columns."
        )
    rows, labels = zip(*data.pieces(), strict=True)
    return (_stacked(rows), np.concatenate(labels))


def _stacked(rows: Any) -> Matrix:
    made: list[Any] = [piece.made() if isinstance(piece, Coded) else piece for piece in rows]
    made = [piece.csr() if isinstance(piece, Coded) else piece for piece in made]
    return sp.vstack(made, format="csr") if any(map(is_sparse, made)) else np.concatenate(made)
