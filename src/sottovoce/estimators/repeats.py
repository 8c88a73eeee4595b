"""Private fits without a ledger on the same people, noticed within one process: what they add up to is told.

Every fit counts by itself where there is no ledger. Wrappers such as `OneVsRestClassifier`, `GridSearchCV` and
`cross_val_score` fit many times. Two fits belong together if they share a record, or if one estimator was cloned from
the other, as these wrappers do (behind a scaler that is fitted to each fold no two records look the same).

What is kept of data is, for each fit, the `KEPT` smallest of the keyed hashes of its rows, in this process alone,
under a key that is drawn when it starts. Edges: fits that share less than a few hundredths of the rows may go
unnoticed. Processes do not know of one another's fits (`n_jobs`), so in a worker process a cloned estimator warns of
that at its first fit. A ledger notices all of them. Scores are counted nowhere.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import threading
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.data.dataset import Dataset
from sottovoce.data.kernels.preparing import hash_rows
from sottovoce.data.matrix import rows_at_once
from sottovoce.errors import RepeatedFitWarning
from sottovoce.federation.federation import Federation
from sottovoce.privacy.guarantee import Guarantee

KEPT: Final = 64
GROUPS: Final = 256  # the oldest are forgotten

_KEY: Final = int.from_bytes(os.urandom(8), "little")
_LOCK: Final = threading.Lock()
_federations: weakref.WeakKeyDictionary[Federation, int] = weakref.WeakKeyDictionary()


@dataclass
class Group:
    """Fits that belong together, and what they add up to."""

    marks: set[int]
    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


@dataclass
class Register:
    """The groups of this process, the newest last."""

    groups: list[Group] = field(default_factory=list)

    def add(self, marks: set[int], epsilon: float, delta: float) -> Group:
        """Count one fit, and give its group. Guarantees add up, also for fits that were chosen by earlier results."""
        with _LOCK:
            found = [group for group in self.groups if group.marks & marks]
            made = Group(set(marks), 1, epsilon, delta)
            for group in found:
                made.marks |= group.marks
                made.fits, made.epsilon = made.fits + group.fits, made.epsilon + group.epsilon
                made.delta += group.delta
                self.groups.remove(group)
            self.groups = [*self.groups, made][-GROUPS:]
            return made


register = Register()


def note(marks: set[int], guarantee: Guarantee, frames: int, *, cloned: bool = False) -> None:
    """Count a private fit, or an evaluation, without a ledger, and warn if it is not the first on these people.

    Of a `cloned` estimator, as searches fit them, warn also of what other processes do, and of scores.
    """
    group = register.add(marks, guarantee.epsilon, guarantee.delta)
    worker = cloned and multiprocessing.parent_process() is not None
    if group.fits == 1 and not worker:
        return
    if group.fits > 1:
        said = (
            f"this is private fit or evaluation {group.fits} without a ledger on records of an earlier one, or of an "
            f"estimator that was cloned with it: if they are about the same people, all {group.fits} together promise "
            f"epsilon={group.epsilon:.4g}, delta={group.delta:.3g}, not epsilon={guarantee.epsilon:.4g} each."
        )
    else:
        said = (
            "this is a private fit without a ledger of an estimator that was cloned: each further one on the same "
            f"people adds its epsilon={guarantee.epsilon:.4g}."
        )
    if guarantee.computational:
        said += f" This one {guarantee.mark}."
    if worker:
        said += " It is in a worker process (n_jobs), and fits in other processes come on top: no process has the sum."
    if cloned:
        said += " Scores by which a search chooses are exact and counted nowhere; sv.evaluate gives one with noise."
    warnings.warn(
        f"{said} Give ledger=..., which counts all fits, adds them up more tightly and refuses what is too much.",
        RepeatedFitWarning,
        stacklevel=frames + 1,
    )


def marks_of(data: Any) -> set[int]:
    """Of a federation a number of its own; of rows the smallest of their keyed hashes, whatever their order."""
    if isinstance(data, Federation):
        with _LOCK:
            return {_federations.setdefault(data, secrets.randbits(63))}
    if isinstance(data, Dataset):  # of which the first rows must do
        data = next(rows for rows, _ in data.pieces())
    hashes = _sparse_hashes(data) if sp.issparse(data) else _dense_hashes(np.asarray(data))
    distinct = np.unique(np.partition(hashes, KEPT)[:KEPT] if len(hashes) > 4 * KEPT else hashes)
    return {int(value) for value in distinct[:KEPT]}


def _dense_hashes(X: NDArray[Any]) -> NDArray[np.uint64]:
    factors, found = _factors(X.shape[1]), np.zeros(X.shape[0], dtype=np.uint64)
    step = rows_at_once(X.shape[1])
    for start in range(0, X.shape[0], step):
        part = X[start : start + step]
        plain = part.dtype == np.float64 and part.flags.carray
        numbers = part if plain else np.array(part, dtype=np.float64, order="C")
        hash_rows(numbers.view(np.uint64), factors, found[start : start + step])
    return _mixed(found)


def _sparse_hashes(X: Any) -> NDArray[np.uint64]:
    rows = sp.csr_matrix(X)
    bits = np.ascontiguousarray(rows.data, dtype=np.float64).view(np.uint64)
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    found = np.zeros(rows.shape[0], dtype=np.uint64)
    np.add.at(found, owner, _folded(bits) * _factors(rows.shape[1])[rows.indices])
    return _mixed(found)


def _factors(columns: int) -> NDArray[np.uint64]:
    return np.random.default_rng(_KEY).integers(2**63, size=columns, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _folded(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A whole number as a float has zeros in its low bits, and a product would lose the high ones."""
    return np.asarray(bits ^ (bits >> np.uint64(32)))


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: nearby numbers become unlike."""
    mixed = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
