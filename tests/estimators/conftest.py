from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce import Account, Ledger

ROW_NORM = 3.0
LABEL_BOUND = 12.0


@dataclass(frozen=True)
class Data:
    """Rows within ROW_NORM, numeric labels within LABEL_BOUND, and two classes of them."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    classes: NDArray[np.int64]
    row_norm: float = ROW_NORM
    label_bound: float = LABEL_BOUND


@pytest.fixture(scope="session")
def data() -> Data:
    rng = np.random.default_rng(20240607)
    X = rng.normal(size=(240, 5))
    X *= np.minimum(1.0, 0.99 * ROW_NORM / np.linalg.norm(X, axis=1))[:, None]
    y = X @ np.array([1.0, -2.0, 0.0, 0.5, 0.0]) + 0.7 + 0.3 * rng.normal(size=len(X))
    assert np.abs(y).max() < LABEL_BOUND
    return Data(X, y, (y + 0.5 * rng.normal(size=len(y)) > 0.5).astype(np.int64))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "holder.ledger")


@pytest.fixture
def account(ledger: Ledger) -> Account:
    """A budget that is large for the fits of these tests."""
    return ledger.open("clinic", 100.0, 1e-5)
