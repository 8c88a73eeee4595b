"""scikit-learn estimators."""

from sottovoce.estimators.base import (
    PrivateElasticNet,
    PrivateLasso,
    PrivateLinearModel,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    privacy_report,
)
from sottovoce.estimators.path import RegularisationPath

__all__ = [
    "PrivateElasticNet",
    "PrivateLasso",
    "PrivateLinearModel",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateRidge",
    "RegularisationPath",
    "privacy_report",
]
