"""Linear models under differential privacy: central, split by rows or split by columns.

>>> import sottovoce as sv
>>> sv.PrivateLogisticRegression(epsilon=1.0, row_norm=1.0).epsilon
1.0
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sottovoce import solvers
    from sottovoce.app.results import write_page
    from sottovoce.data.beside import labels_with
    from sottovoce.data.dataset import Dataset
    from sottovoce.data.resources import Resources
    from sottovoce.data.schema import Schema
    from sottovoce.errors import (
        BudgetError,
        InputError,
        LeakError,
        LedgerError,
        RefusedError,
        SottovoceError,
        WireError,
    )
    from sottovoce.estimators import (
        PrivateCoxRegressor,
        PrivateElasticNet,
        PrivateGammaRegressor,
        PrivateLasso,
        PrivateLinearSVC,
        PrivateLogisticRegression,
        PrivateOrdinalClassifier,
        PrivatePoissonRegressor,
        PrivateRidge,
    )
    from sottovoce.estimators.description import Description, describe
    from sottovoce.estimators.evaluation import Evaluation, evaluate
    from sottovoce.estimators.model_file import load_model
    from sottovoce.estimators.search import PrivateRandomizedSearch
    from sottovoce.federation.federation import Federation
    from sottovoce.federation.party import Party
    from sottovoce.federation.policy import Policy
    from sottovoce.federation.secure_columns.dealer import Dealer
    from sottovoce.lab.audit.releases import audit
    from sottovoce.lab.datasets import load
    from sottovoce.lab.needed_epsilon import NeededEpsilon, epsilon_for
    from sottovoce.lab.simulation import Simulation, simulate
    from sottovoce.plan.plan import About, Plan
    from sottovoce.privacy.guarantee import Guarantee, PrivacyReport
    from sottovoce.privacy.ledger import Account, Ledger

__version__ = "0.1.0"

# A name is imported when it is first used, so that the command line and a ledger start without scikit-learn.
_HOMES: Final = {
    "app.results": ("write_page",),
    "data.beside": ("labels_with",),
    "data.dataset": ("Dataset",),
    "data.resources": ("Resources",),
    "data.schema": ("Schema",),
    "lab.audit.releases": ("audit",),
    "lab.datasets": ("load",),
    "lab.needed_epsilon": ("NeededEpsilon", "epsilon_for"),
    "lab.simulation": ("Simulation", "simulate"),
    "errors": ("BudgetError", "InputError", "LeakError", "LedgerError", "RefusedError", "SottovoceError", "WireError"),
    "estimators": (
        "PrivateCoxRegressor",
        "PrivateElasticNet",
        "PrivateGammaRegressor",
        "PrivateLasso",
        "PrivateLinearSVC",
        "PrivateLogisticRegression",
        "PrivateOrdinalClassifier",
        "PrivatePoissonRegressor",
        "PrivateRidge",
    ),
    "estimators.description": ("Description", "describe"),
    "estimators.evaluation": ("Evaluation", "evaluate"),
    "estimators.model_file": ("load_model",),
    "estimators.search": ("PrivateRandomizedSearch",),
    "privacy.guarantee": ("Guarantee", "PrivacyReport"),
    "privacy.ledger": ("Account", "Ledger"),
    "federation.federation": ("Federation",),
    "federation.secure_columns.dealer": ("Dealer",),
    "federation.party": ("Party", "Policy"),
    "plan.plan": ("About", "Plan"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "About",
    "Account",
    "BudgetError",
    "Dataset",
    "Dealer",
    "Description",
    "Evaluation",
    "Federation",
    "Guarantee",
    "InputError",
    "LeakError",
    "Ledger",
    "LedgerError",
    "NeededEpsilon",
    "Party",
    "Plan",
    "Policy",
    "PrivacyReport",
    "PrivateCoxRegressor",
    "PrivateElasticNet",
    "PrivateGammaRegressor",
    "PrivateLasso",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateOrdinalClassifier",
    "PrivatePoissonRegressor",
    "PrivateRandomizedSearch",
    "PrivateRidge",
    "RefusedError",
    "Resources",
    "Schema",
    "Simulation",
    "SottovoceError",
    "WireError",
    "audit",
    "describe",
    "epsilon_for",
    "evaluate",
    "labels_with",
    "load",
    "load_model",
    "simulate",
    "solvers",
    "write_page",
]


def __getattr__(name: str) -> Any:
    if name == "solvers":
        return importlib.import_module("sottovoce.solvers")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"sottovoce.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
