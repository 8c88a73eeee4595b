"""scikit-learn estimators."""

from sottovoce.estimators.base import PrivateLinearModel
from sottovoce.estimators.classification import PrivateLinearSVC, PrivateLogisticRegression
from sottovoce.estimators.counts import PrivateGammaRegressor, PrivatePoissonRegressor
from sottovoce.estimators.ordinal import PrivateOrdinalClassifier
from sottovoce.estimators.path import RegularisationPath
from sottovoce.estimators.regression import PrivateElasticNet, PrivateLasso, PrivateRidge
from sottovoce.estimators.report import privacy_report
from sottovoce.estimators.times import PrivateCoxRegressor

__all__ = [
    "PrivateCoxRegressor",
    "PrivateElasticNet",
    "PrivateGammaRegressor",
    "PrivateLasso",
    "PrivateLinearModel",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateOrdinalClassifier",
    "PrivatePoissonRegressor",
    "PrivateRidge",
    "RegularisationPath",
    "privacy_report",
]
