"""Penalties and constraint sets: ``get_penalty("l1", alpha=0.1)``, ``get_penalty("l2_ball", radius=2.0)``."""

from sottovoce.penalties.base import ConstraintSet, Penalty, Regulariser, get_penalty, penalty_names, register_penalty
from sottovoce.penalties.separable import L1, L2, Box, ElasticNet, NoPenalty
from sottovoce.penalties.sets import BoxSet, L1Ball, L2Ball, Product, Simplex

__all__ = [
    "L1",
    "L2",
    "Box",
    "BoxSet",
    "ConstraintSet",
    "ElasticNet",
    "L1Ball",
    "L2Ball",
    "NoPenalty",
    "Penalty",
    "Product",
    "Regulariser",
    "Simplex",
    "get_penalty",
    "penalty_names",
    "register_penalty",
]
