"""`admm`, `fdml`: parties with columns share scores of the records."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.sharing.admm_exact import ExactADMM
from sottovoce.algorithms.sharing.admm_feature import FeatureADMM
from sottovoce.algorithms.sharing.fdml_exact import ExactFDML
from sottovoce.algorithms.sharing.private import FreshADMM, NoisyRowsADMM, NoisyRowsFDML
from sottovoce.algorithms.sharing.published import PublishedADMM

FORMS: tuple[Algorithm, ...] = (
    PublishedADMM(),
    ExactADMM(),
    FeatureADMM(),
    FreshADMM(),
    NoisyRowsADMM(),
    ExactFDML(),
    NoisyRowsFDML(),
)
