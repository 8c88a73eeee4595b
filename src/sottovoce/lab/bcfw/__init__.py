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

from sottovoce.lab.bcfw.curvature import (
    block_curvatures,
    curvature_bound,
    curvature_estimate,
    distributed_bound,
    eso_bound,
    nice_bound,
    pair_curvatures,
    pairwise_bound,
    recursion_bound,
    separable_bound,
    theorem_bound,
)
from sottovoce.lab.bcfw.objectives import Composite, MeanLoss, Objective, Smooth, least_squares, logistic
from sottovoce.lab.bcfw.samplings import (
    Distributed,
    Elementary,
    IndependentImportance,
    Listed,
    Nice,
    Sampling,
    SerialImportance,
    UniformSerial,
)
from sottovoce.lab.bcfw.solve import (
    BlockSolution,
    Inexact,
    ParallelSolution,
    Trace,
    parallel_step,
    solve,
    solve_parallel,
    universal_step,
)

__all__ = [
    "BlockSolution",
    "Composite",
    "Distributed",
    "Elementary",
    "IndependentImportance",
    "Inexact",
    "Listed",
    "MeanLoss",
    "Nice",
    "Objective",
    "ParallelSolution",
    "Sampling",
    "SerialImportance",
    "Smooth",
    "Trace",
    "UniformSerial",
    "block_curvatures",
    "curvature_bound",
    "curvature_estimate",
    "distributed_bound",
    "eso_bound",
    "least_squares",
    "logistic",
    "nice_bound",
    "pair_curvatures",
    "pairwise_bound",
    "parallel_step",
    "recursion_bound",
    "separable_bound",
    "solve",
    "solve_parallel",
    "theorem_bound",
    "universal_step",
]
