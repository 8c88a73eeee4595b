"""What records release about a model that is public: curvature, slopes and their squares. Proof: `proof.md`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import toward_zero
from sottovoce.door.query import Query, Reals, Round, Told
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan
from sottovoce.queries.gradient import check_norm
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.projected import POSITIVE, cut

Array = NDArray[np.float64]


class FactorGram(GramMatrix):
    """sum_i f_i^2 x_i x_i', f_i a number of the record within [0, 1]: the Gram matrix of rows no longer than they were.

    Guarantee: that of the Gram matrix, whatever the model is and whatever was told. Edges: a NaN counts as 1.
    """

    def __init__(self, weights: Array, loss: Loss) -> None:
        super().__init__(len(weights))
        self.weights, self.loss = weights, loss

    @abstractmethod
    def factors(self, scores: Array, labels: Array, told: Told) -> Array:
        """f_i, not yet cut; each a function of its own record."""

    def value(self, round: Round) -> Array:
        """The upper triangle, row by row."""
        check_norm(round.rows)

        def factor(scores: Array, labels: Array) -> Array:
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                found = np.array(self.factors(scores, labels, round.told), dtype=np.float64)
            return found if round.rows.bits is None else np.fmax(np.fmin(found, 1.0), 0.0)

        return np.asarray(round.rows.scaled_gram(self.weights, factor)[self.places])


class Curvature(FactorGram):
    """sum_i l''(x_i'w, y_i) x_i x_i' in units of the largest l''."""

    name = "curvature"
    title: ClassVar[str] = "the curvature of the loss at the fitted model"

    def factors(self, scores: Array, labels: Array, told: Told) -> Array:  # noqa: ARG002
        """Roots of curvatures."""
        return np.asarray(np.sqrt(self.loss.curvature(scores, labels) / self.loss.curvature_bound))


class SquaredSlopes(FactorGram):
    """sum_i l'(x_i'w, y_i)^2 x_i x_i' in units of G^2, G told: how far the gradient varies from sample to sample."""

    name = "squared-slopes"
    title: ClassVar[str] = "squares of the loss's slopes at the fitted model"

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """G."""
        return {"slope": POSITIVE}

    def factors(self, scores: Array, labels: Array, told: Told) -> Array:
        """Sizes of slopes."""
        return np.abs(np.asarray(self.loss.derivative(scores, labels), dtype=np.float64)) / told["slope"][0]


class Slopes(Query):
    """sum_i l'(x_i'w, y_i) x_i in units of G, G told, every l' cut to [-G, G].

    Guarantee: zero-out moves it by at most 1, replace-one by 2, whatever w and G are. Edges: a null row adds nothing, a
    NaN slope counts as G; without privacy nothing is cut.
    """

    name = "gradient"
    title: ClassVar[str] = "the gradient of the loss at the fitted model"
    bound = 1.0

    def __init__(self, weights: Array, loss: Loss) -> None:
        self.weights, self.loss = weights, loss
        self.length, self.rounding_entries = len(weights), float(len(weights))

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """G."""
        return {"slope": POSITIVE}

    def value(self, round: Round) -> Array:
        """One pass over the rows."""
        check_norm(round.rows)
        bits, slope = round.rows.bits, float(round.told["slope"][0])

        def term(scores: Array, labels: Array) -> Array:
            if bits is None:
                return self.loss.derivative(scores, labels) / slope
            return toward_zero(cut(self.loss, scores, labels, slope), bits)

        return round.rows.weighted_sum(self.weights, term)
