"""Losses of a linear model: ``get("logistic")``, ``get("huber", threshold=0.5)``.

``register`` makes a loss of your own known by its name, to the estimators too: `PrivateRidge(loss=...)` takes those of
the kind "regression" and `PrivateLinearSVC(loss=...)` those of the kind "classification".
"""

from sottovoce.losses.base import Kind, Loss, check_units, coded, get, names, register, takes
from sottovoce.losses.several import ClassesLoss, OneVsRest, Softmax, Weighted, weighted
from sottovoce.losses.single import Hinge, Huber, Logistic, Sigmoid, SmoothedHinge, Squared

__all__ = [
    "ClassesLoss",
    "Hinge",
    "Huber",
    "Kind",
    "Logistic",
    "Loss",
    "OneVsRest",
    "Sigmoid",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "Weighted",
    "check_units",
    "coded",
    "get",
    "names",
    "register",
    "takes",
    "weighted",
]
