"""What a fit by `whitened` says of penalties that it did not have: a function of its releases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.whitened.rule import Descent, Moments, Units, White
from sottovoce.penalties.quadratic import DiagonalMetric, Metric
from sottovoce.penalties.scaled import ScaledRegulariser

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """The mean loss as 1/2 |w - weights|^2 in the metric K + R, along the directions of the moments.

    `curvature` is K, what the records have; `restraint` is R, the damping and the prior that hold noise back. Both are
    of a fit without a penalty, whose `weights` they restrain toward the constant model `start`.
    """

    moments: Moments
    curvature: Array
    restraint: Array
    start: Array
    weights: Array
    units: Units

    @classmethod
    def of(cls, white: White, descent: Descent, start: Array, weights: Array) -> Evidence:
        """Of the last round, for rows as they were before they were whitened."""
        known = descent.curvature
        return cls(white.moments, known / white.q, (descent.stiffness - known) / white.q, start, weights, white.units)

    def model(self, regulariser: ScaledRegulariser, share: float) -> Array:
        """The weights of least loss + penalty, where only this share of R is left: a penalty takes its place."""
        values = self.curvature + share * self.restraint
        along = self.moments.into(self.weights - self.start)
        centre = self.start + self.moments.out((self.curvature + self.restraint) / values * along)
        return self._metric(values).step(centre, np.zeros_like(centre), regulariser, 1)

    def degrees_of_freedom(self, weights: Array, regulariser: ScaledRegulariser, share: float) -> float:
        """The trace of (K + share R + P)^-1 K over the weights that are not zero, P the curvature of the penalty.

        So much less is the loss that a model has on its own records, in sum, than on others. Without R it is the number
        of those weights for l1, and sum h / (h + alpha) for l2, h the eigenvalues of K.
        """
        used, (_, squared, _, _) = np.flatnonzero(weights), regulariser.by_coordinate(len(weights))
        values = self.curvature + share * self.restraint
        if self.moments.vectors is None:
            return float((self.curvature / (values + squared))[used].sum())
        rows = self.moments.vectors[used]
        stiff = (rows * values) @ rows.T + np.diag(squared[used])
        return float(np.trace(np.linalg.solve(stiff, (rows * self.curvature) @ rows.T))) if len(used) else 0.0

    def _metric(self, values: Array) -> Metric:
        vectors = self.moments.vectors
        return DiagonalMetric(values) if vectors is None else Metric(values, vectors)
