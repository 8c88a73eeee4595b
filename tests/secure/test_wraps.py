"""What is opened has no count of how often shares wrapped around: without noise it is the clear sum in all 64 bits.

How often M uniform words wrap modulo 2^k says something of their sum; shares are in the highest bits, where it is lost.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.algorithms import Ask
from sottovoce.errors import WireError
from sottovoce.federation.secure_columns import dealer
from sottovoce.lab.audit import secure as audited
from sottovoce.lab.audit.secure import SecureColumns, _Protocol, with_keys
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.joint import JointGradient
from sottovoce.secure import ring, sums
from sottovoce.secure.ring import ring_bits
from sottovoce.secure.sums import ColumnMasker
from summing import exact

sys.path.insert(0, str(Path(__file__).parent))
from hostile import secure_plan

SEEDS = 12


def unshifted(values: NDArray[np.int64], bits: int) -> NDArray[np.uint64]:
    """Planted: residues modulo 2^k under masks modulo 2^64."""
    words = values.view(np.uint64) & np.uint64((1 << bits) - 1)
    return np.append(words, np.uint64(0))


def away(parties: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """In how many words the opened sums, a Gram matrix and a gradient, are not the clear ones."""
    monkeypatch.setattr(audited, "_SeenColumns", ColumnMasker)
    monkeypatch.setattr(sums, "wide_gaussian", exact)
    monkeypatch.setattr(dealer, "wide_gaussian", exact)
    looked_up, shares = ring.looked_up, list[NDArray[np.uint8]]()
    monkeypatch.setattr(ring, "looked_up", lambda *given: (shares.append(looked_up(*given)), shares[-1])[1])
    plan = secure_plan("newton", "columns", parties, features=2, rounds=2, records=9)
    plan, keys = with_keys(plan, lambda name: SeededRandomness(seed, name))
    rng = np.random.default_rng(seed)
    y = rng.uniform(-1, 1, 9)
    side = SecureColumns(plan, {name: (rng.uniform(-1, 1, (9, 2)), y) for name in plan.names}, "world")
    run = _Protocol(side, plan, keys, {name: SeededRandomness(seed, name) for name in (*plan.names, COORDINATOR)})
    rows = np.hstack([run.runs[name]._engine._own.astype(np.int64) for name in plan.names])
    query, found = side.queries[plan.names[0]]["gradient"], 0
    assert isinstance(query, JointGradient)
    for number, ask in enumerate((Ask("gram"), Ask("gradient", query.message(rng.normal(size=2 * parties))))):
        try:
            run.sum(number, ask)
        except WireError:
            found += 1
        total = np.sum([words.view(np.uint64) for words in run.shares.values()], axis=0)
        if number:
            bits = np.bitwise_xor.reduce(shares[-parties:])[:, 0].astype(np.int64)
            clear = (2 * bits - 1) @ rows
        else:
            clear = (rows.T @ rows)[np.triu_indices(2 * parties)]
        lost = np.uint64(64 - ring_bits(plan))
        due = np.append(clear.view(np.uint64) << lost, np.uint64(0))
        if sums.in_ring is unshifted:
            due = np.append(clear.view(np.uint64), np.uint64(0))
        found += int((total != due).sum())
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("parties", [2, 3, 8])
def test_what_is_opened_is_the_clear_sum_in_all_its_bits(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [away(parties, seed, monkeypatch) for seed in range(SEEDS)] == [0] * SEEDS


@pytest.mark.parametrize("parties", [3, 8])
def test_residues_under_longer_masks_have_wrap_counts(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        monkeypatch.setattr(sums, "in_ring", unshifted)
        assert away(parties, seed, monkeypatch) > 2
