from __future__ import annotations

import numpy as np
import pytest

RECORDS, FEATURES = 1200, 6


@pytest.fixture(scope="session")
def classification() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(7)
    X = generator.standard_normal((RECORDS, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    scores = X @ np.linspace(-4, 4, FEATURES) + 0.5
    return X, np.where(generator.random(RECORDS) < 1 / (1 + np.exp(-scores)), 1, -1)


@pytest.fixture(scope="session")
def regression() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(8)
    X = generator.standard_normal((RECORDS, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.clip(X @ np.linspace(-0.5, 0.5, FEATURES) + 0.2 + 0.1 * generator.standard_normal(RECORDS), -1, 1)
