"""Imported by the process from which roles are forked: what the commands import, and fits that load the kernels."""

from __future__ import annotations

import importlib
import pkgutil
import warnings

import numpy as np

import sottovoce as sv
from sottovoce import algorithms, app, estimators, federation

for package in (app, estimators, federation):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
for name in ("role", "dp_accounting.pld", "dp_accounting.rdp", "pandas", "pyarrow.csv", "sklearn.base"):
    importlib.import_module(name)
algorithms.every_form()
for solver in (sv.solvers.Newton(rounds=2), sv.solvers.SGD(rounds=2), sv.solvers.CD(rounds=2)):
    model = sv.PrivateLogisticRegression(5.0, entry_bound=1.0, classes=(0, 1), solver=solver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these are fits without a ledger
        model.fit(np.resize([0.5, -0.5, 0.25], (60, 3)), np.resize([0, 1], 60))
