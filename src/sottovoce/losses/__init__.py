"""Losses of a linear model: ``get("logistic")``, ``get("huber", threshold=0.5)``."""

from sottovoce.losses.base import Kind, Loss, coded, get, names, register
from sottovoce.losses.classification import Hinge, Logistic, Sigmoid, SmoothedHinge
from sottovoce.losses.regression import Huber, Squared

__all__ = [
    "Hinge",
    "Huber",
    "Kind",
    "Logistic",
    "Loss",
    "Sigmoid",
    "SmoothedHinge",
    "Squared",
    "coded",
    "get",
    "names",
    "register",
]
