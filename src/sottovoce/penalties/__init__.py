"""Penalties and constraint sets: ``get_penalty("l1", alpha=0.1)``, ``get_penalty("l2_ball", radius=2.0)``."""

from sottovoce.penalties.base import ConstraintSet as ConstraintSet
from sottovoce.penalties.base import Penalty as Penalty
from sottovoce.penalties.base import Regulariser as Regulariser
from sottovoce.penalties.base import get_penalty as get_penalty
from sottovoce.penalties.base import penalty_names as penalty_names
from sottovoce.penalties.base import register_penalty as register_penalty
from sottovoce.penalties.separable import L1 as L1
from sottovoce.penalties.separable import L2 as L2
from sottovoce.penalties.separable import Box as Box
from sottovoce.penalties.separable import ElasticNet as ElasticNet
from sottovoce.penalties.separable import NoPenalty as NoPenalty
from sottovoce.penalties.sets import BoxSet as BoxSet
from sottovoce.penalties.sets import L1Ball as L1Ball
from sottovoce.penalties.sets import L2Ball as L2Ball
from sottovoce.penalties.sets import Product as Product
from sottovoce.penalties.sets import Simplex as Simplex
