"""Block-coordinate Frank-Wolfe under arbitrary sampling, without privacy: solvers, samplings, curvature, bounds.

>>> import numpy as np
>>> from sottovoce.lab import bcfw
>>> from sottovoce.penalties import BoxSet, Product
>>> box = Product((BoxSet(-1.0, 1.0),) * 4, (1,) * 4)
>>> f = bcfw.least_squares(np.eye(4), [0.5, -0.5, 2.0, 0.0])
>>> found = bcfw.solve(f, box, bcfw.Nice(4, tau=2), rounds=400, step="line-search", generator=1)
>>> print(found.x.round(3) + 0.0)
[ 0.5 -0.5  1.   0. ]
"""

from sottovoce.lab.bcfw.curvature import block_curvatures as block_curvatures
from sottovoce.lab.bcfw.curvature import curvature_bound as curvature_bound
from sottovoce.lab.bcfw.curvature import distributed_bound as distributed_bound
from sottovoce.lab.bcfw.curvature import eso_bound as eso_bound
from sottovoce.lab.bcfw.curvature import exact_curvature as exact_curvature
from sottovoce.lab.bcfw.curvature import expected_set_curvature as expected_set_curvature
from sottovoce.lab.bcfw.curvature import nice_bound as nice_bound
from sottovoce.lab.bcfw.curvature import pair_curvatures as pair_curvatures
from sottovoce.lab.bcfw.curvature import pairwise_bound as pairwise_bound
from sottovoce.lab.bcfw.curvature import recursion_bound as recursion_bound
from sottovoce.lab.bcfw.curvature import separable_bound as separable_bound
from sottovoce.lab.bcfw.curvature import set_curvature as set_curvature
from sottovoce.lab.bcfw.curvature import theorem_bound as theorem_bound
from sottovoce.lab.bcfw.objectives import Composite as Composite
from sottovoce.lab.bcfw.objectives import MeanLoss as MeanLoss
from sottovoce.lab.bcfw.objectives import Objective as Objective
from sottovoce.lab.bcfw.objectives import Smooth as Smooth
from sottovoce.lab.bcfw.objectives import least_squares as least_squares
from sottovoce.lab.bcfw.objectives import logistic as logistic
from sottovoce.lab.bcfw.samplings import Distributed as Distributed
from sottovoce.lab.bcfw.samplings import Elementary as Elementary
from sottovoce.lab.bcfw.samplings import IndependentImportance as IndependentImportance
from sottovoce.lab.bcfw.samplings import Listed as Listed
from sottovoce.lab.bcfw.samplings import Nice as Nice
from sottovoce.lab.bcfw.samplings import Sampling as Sampling
from sottovoce.lab.bcfw.samplings import SerialImportance as SerialImportance
from sottovoce.lab.bcfw.samplings import UniformSerial as UniformSerial
from sottovoce.lab.bcfw.solve import Inexact as Inexact
from sottovoce.lab.bcfw.solve import parallel_step as parallel_step
from sottovoce.lab.bcfw.solve import solve as solve
from sottovoce.lab.bcfw.solve import solve_parallel as solve_parallel
from sottovoce.lab.bcfw.solve import universal_step as universal_step
