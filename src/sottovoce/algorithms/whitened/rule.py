"""The formulas of `whitened`: functions of released values and public numbers, each with its reason.

Sums are divided by the number of records. A `noise` is a standard deviation of such a mean over all parties' records;
that of several rounds is what a single release with all of their budget would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from sottovoce.algorithms.base import Array
from sottovoce.losses import KnownLabels, Loss
from sottovoce.losses.base import Sizes
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import DiagonalMetric, QuadraticMetric

MOMENTS = {"gram": 0.15, "squares": 0.03}  # shares of mu^2: a matrix of d^2 / 2 numbers, or d numbers
CUT = 0.7  # of the mean length: rows are clipped to nearly equal length, and .5 to .9 nearly tie
TOLERANCE = 5e-5  # of the loss, given to noise for the sake of wider clips
DAMPING = 0.15  # of what the noise hides of the moments, added where a step divides by them; .1 and .2 nearly tie
SPREAD = 2.5  # deviations within which a score is measured
NORMAL = np.linspace(-6.0, 6.0, 241)  # points of a standard normal number
DENSITY = np.exp(-(NORMAL**2) / 2) / np.exp(-(NORMAL**2) / 2).sum()
FAR = 4.5  # beyond which no row (standardised score, 1) of the rescale needs to be
SHARPER, FLATTER = 1.0, 30.0  # how much doubt there is of a curvature above and below the one that is known
LEAST = 0.2  # of the curvature that is known, along any move
CERTAIN = 4.0  # deviations of the noise by which a class bends more than is known


@dataclass(frozen=True)
class Moments:
    """Mean squares of the rows along the columns of `vectors`; None: along the coordinates.

    `hidden` is how much of a mean square the noise can hide. `mean` is the mean row along the directions, which a Gram
    matrix has where rows end in a constant, and squares have not.
    """

    values: Array
    vectors: Array | None
    hidden: float
    mean: Array | None = None

    def into(self, vector: Array) -> Array:
        """The coordinates of a vector along the directions."""
        return vector if self.vectors is None else self.vectors.T @ vector

    def step(self, values: Array, along: Array, regulariser: ScaledRegulariser, start: Array | None = None) -> Array:
        """The u of least 1/2 |u - start - along|^2 + penalty: values of the metric, and `along`, are by directions."""
        centre = along if self.vectors is None else self.vectors @ along
        centre = centre if start is None else start + centre
        metric = DiagonalMetric(values) if self.vectors is None else QuadraticMetric(values, self.vectors)
        return metric.step(centre, np.zeros_like(centre), regulariser, 1)


def of_gram(gram: Array, noise: float, constant: float = 0.0) -> Moments:
    """Eigenvectors of a released Gram matrix, and eigenvalues as far as they can be known; `constant` as below."""
    found, vectors = np.linalg.eigh(gram)
    values = denoised(found, noise)
    values /= max(1.0, values.sum())
    mean = values * vectors[-1] / constant if constant else None
    return Moments(values, vectors, noise * math.sqrt(len(found) / 2), mean)


def denoised(eigenvalues: Array, noise: float) -> Array:
    """Those of a released Gram matrix, as far as they can be known; none below half of the noise.

    Symmetric noise pushes eigenvalues apart, each by the sum of 1 / distance to the others; that is taken back.
    """
    apart = np.subtract.outer(eigenvalues, eigenvalues)
    pushed = noise**2 * (apart / (apart**2 + noise**2 / 2)).sum(axis=1)
    return np.asarray(np.maximum(eigenvalues - pushed, 0.5 * noise))


def of_squares(squares: Array, noise: float, constant: float) -> Moments:
    """Mean squares of the columns: what is expected of a number above 0 under noise, if their sizes are exponential.

    `constant` is the entry of the last column, which is known; 0 if there is none.
    """
    mean = max(float((squares[:-1] if constant else squares).mean()), 0.05 * noise)
    z = np.maximum(squares / noise - noise / mean, -30.0)
    log_density = -(z**2) / 2.0 - math.log(math.sqrt(2.0 * math.pi))
    values = np.maximum(noise * (z + np.exp(log_density - log_ndtr(z))), 1e-6 / len(squares))
    if constant:
        values[-1] = constant**2
    return Moments(values / max(1.0, values.sum()), None, noise)


@dataclass(frozen=True)
class Units:
    """What the size of labels and slopes decides."""

    slope: float  # G: that of an ordinary record at the constant model
    steepest: float  # beyond which no slope needs to be
    variance: float  # of the scores, before anything is known
    curvature: float  # at scores of that variance
    tolerance: float  # of the loss: what wider clips may cost in noise
    loss: Loss
    weight: float = 1.0  # of a record, on average
    rescale: float = 1.0  # so much more of the loss may go to wider clips of the rescale
    known: KnownLabels | None = None  # what it follows from

    @classmethod
    def of(cls, loss: Loss, known: KnownLabels) -> Units:
        """As the loss says."""
        loss = loss.knowing(known)
        slope, steepest, variance, curvature, spread, rescale, amount = loss.units(known)
        return cls(slope, steepest, variance, curvature, TOLERANCE * spread, loss, amount, rescale, known)

    @property
    def sizes(self) -> Sizes:
        """As the loss has said."""
        return Sizes(self.slope, self.steepest, self.variance, self.curvature, self.tolerance / TOLERANCE)


def prior(moments: Moments, units: Units) -> float:
    """The variance v of the weights with which scores have the variance that is expected.

    The largest direction is left out: it is mostly the mean, which says nothing of the scores' spread.
    """
    others = np.ones(len(moments.values))
    others[int(np.argmax(moments.values))] = 0.0 if len(others) > 1 else 1.0
    return units.variance / float(others @ moments.values)


def whitening(moments: Moments, units: Units, noise: float) -> Array:
    """q: the factors of the squares of the directions.

    A direction with the mean square m is learned if m v is above kappa, what the noise leaves unknown: there q = 1 / m,
    and no more than v / kappa where little can be learned. kappa grows with the number of directions that are learned,
    which make the rows longer.
    """
    variance = prior(moments, units)
    sizes = moments.values * variance
    unit = (CUT * noise * units.slope / units.curvature) ** 2
    low, high = 1e-30, 1e12
    for _ in range(100):
        kappa = math.sqrt(low * high)
        low, high = (kappa, high) if unit * float((sizes / (sizes + kappa)).sum()) > kappa else (low, kappa)
    return variance / (sizes + kappa)


@dataclass(frozen=True)
class Clips:
    """Rows are clipped to length `cut`, slopes to `slope`: a record moves a sum by their product at most.

    The sum over a person's records is clipped to `together` times that.
    """

    cut: float
    slope: float
    together: float = 1.0

    @property
    def size(self) -> float:
        """How far a record, or a person, moves a sum at most."""
        return self.cut * self.slope * self.together

    def widened(self, units: Units, noise: float, size: float, longest: float, most: float = 1.0) -> Clips:
        """They grow where the noise costs less than the tolerance, so at large signal they vanish, as it does.

        Noise of the standard deviation s on a mean gradient of rows of the mean square `size` costs s^2 size / (2 k).
        Only squares bend alike along all directions: of other losses one may bend `size` times less. Slopes come
        first: a cut of them is a bias, and one of rows a weight. What is left when no row and no slope is clipped lets
        the sum of a person grow, as that of ordinary records does: by its root, up to `most` records.
        """
        costs = noise * (math.sqrt(size) if units.loss.kind == "regression" else size)
        growth = max(1.0, math.sqrt(2 * units.tolerance * units.curvature) / costs / (self.cut * self.slope))
        steeper = min(units.steepest / self.slope, growth)
        cut = min(self.cut * growth / steeper, max(longest, self.cut))
        left = growth / (steeper * cut / self.cut)
        return Clips(cut, self.slope * steeper, min(math.sqrt(max(left, 1.0)), most))


@dataclass
class White:
    """Whitened rows: q has the factors of the squares of the directions, `length` is the mean length once it is known.

    P, `matrix`, has P P' = V diag(q) V', V the directions, or is the diagonal of it. |P'x| and the noise are the same
    for every such P; a triangular one is half of the work for a party.
    """

    moments: Moments
    q: Array
    units: Units
    length: float = math.nan
    start: Array | None = None  # weights that P u is added to, where they are not the constant model's

    def __post_init__(self) -> None:
        self.matrix = np.sqrt(self.q)
        if self.moments.vectors is not None:
            self.matrix = np.asarray(np.linalg.qr(self.matrix[:, None] * self.moments.vectors.T, mode="r")).T
        self.squares = self.q * self.moments.values  # mean squares of a whitened row along the directions

    def weights(self, point: Array, stiffness: Array, regulariser: ScaledRegulariser) -> Array:
        """The w = start + P u, of the rows as they were, with the least 1/2 |u - point|^2 in the metric + penalty."""
        return self.moments.step(stiffness / self.q, np.sqrt(self.q) * point, regulariser, self.start)

    def penalised(self, point: Array, stiffness: Array, regulariser: ScaledRegulariser) -> Array:
        found = self.along(self.weights(point, stiffness, regulariser))
        return found if self.start is None else found - self.along(self.start)

    def along(self, weights: Array) -> Array:
        """The u of P u = weights, along the directions: P has an inverse."""
        return self.moments.into(weights) / np.sqrt(self.q)


@dataclass(frozen=True)
class FittedScore:
    """x'w without the intercept; `constant` is the last entry of every row, 0 if there is no intercept."""

    weights: Array
    constant: float

    def expected(self, moments: Moments, intercept: float) -> tuple[float, float, float]:
        """Its mean, the length within which it is measured, as the moments have them, and how far off the mean may be.

        Squares of columns say nothing of the mean. The intercept of these weights makes up for it or for rare labels:
        there it is from 0 to -intercept.
        """
        along, mean, doubt = moments.into(self.weights), -intercept / 2, abs(intercept) / 2
        square = float(moments.values @ along**2)
        if moments.mean is not None:
            mean, doubt = float(moments.mean @ along), 0.0
            square = max(square - mean**2, 0.1 * square)
        return mean, SPREAD * math.sqrt(square) + 1e-12, doubt

    def standardised(self, mean: float, unit: float) -> Array:
        """Weights of (score - mean) / unit."""
        found = self.weights / unit
        if self.constant:
            found[-1] = -mean / unit / self.constant
        return found

    def penalised(self, point: Array, stiffness: Array, unit: float, regulariser: ScaledRegulariser) -> Array:
        """With the slope between 0 and its own that minimises its square distance + the penalty of the weights."""
        if regulariser.inner.is_none:
            return point
        low, high, own = 0.0, max(float(point[0]), 0.0), float(point[0])

        def cost(slope: float) -> float:
            return float(stiffness[0]) / 2 * (slope - own) ** 2 + regulariser.value(slope / unit * self.weights)

        for _ in range(100):  # convex: each step leaves a third out
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if cost(left) <= cost(right) else (left, high)
        return np.concatenate([[low], point[1:]])


@dataclass
class Descent:
    """Quasi-Newton steps from the mean point, along the mean gradient, of a window of rounds.

    The window is so long that an iterate carries noise of a quarter of the prior variance of the scores. With much
    signal it is 1, and steps are those of BFGS; with little all rounds, which add up to one release of the gradient at
    the constant model. Until it is full round n weighs as sqrt n: the first ones were made far from the end. The
    point has coordinates along the directions; parties are told those along the columns of P.

    h = `squares` `left` is the curvature as it is known, H = h + damping what is stepped with, so that noise in h does
    no harm. k H + noise^2 / (prior k h) makes the mean of steps a posterior mean; in early rounds, of which few are
    averaged, the second term is larger. Each move, with the change of the gradient, tells of the curvature as far as
    noise lets it be seen.

    What records leave to chance is noise too, k h / N for each direction. It counts as far as there are as many
    directions as records: there it holds a fit back that would have all labels right, whatever the budget.
    """

    point: Array
    squares: Array  # mean squares of the rows along the coordinates of the point
    left: Array | float  # of them, after the cut
    damping: Array | float
    prior: Array | float  # variance of the coordinates
    variance: float  # of the scores by that prior
    noise: float  # of the mean gradient
    rounds: int
    units: Units
    penalised: Callable[[Array, Array], Array]
    penalty: bool = False
    chance: float = 0.0  # 1 / N, times the coordinates for each record
    mean: Array | None = None  # of the rows along the coordinates, where it is known
    white: White | None = None  # of whose columns parties are told coordinates; None: of the point as it is
    start: Array | None = None  # what is added to the point where gradients are asked, along the directions

    def __post_init__(self) -> None:
        # where labels move no curvature the scores say what it is, and it is nowhere 0
        self.mean = self.mean if self.units.loss.affine_in_label else None
        # by k^2: the window of an iterate that carries noise of a quarter of the prior variance of the scores
        self._spoiled = 4 * self.rounds / self.variance * float((self.squares * (self.noise / self.left) ** 2).sum())
        self._window = min(max(self._spoiled / self.units.curvature**2, 1.0), float(self.rounds))
        self._count, self._centre, self._slope, self._curvature = 0, 0.0 * self.point, 0.0 * self.point, 0.0
        self._bend, self._least = 0.0, min(self.units.curvature / 4, 8 * math.sqrt(self._spoiled / self.rounds))
        self._gain, self._more = 1.0, np.ones(self.point.shape[1:])  # bends so many times as much as known
        self.taken: list[Array] = []  # points of the second half whose window was full, before a penalty moved them
        self._last = self.point, np.zeros_like(self.point)
        self._moves: list[tuple[Array, Array]] = []  # and the changes of the gradient
        self.stiffness = np.ones_like(self.point)

    def step(self, gradient: Array) -> None:
        """From `point`, at which the gradient was asked, to the next one."""
        self._count += 1
        k, known = self.bend(), self.left * self.squares
        if self.mean is not None or self.point.ndim > 1:
            k = self._bend = np.maximum(k, self._bend / 2)  # so no step runs far beyond the labels
            self._window = np.minimum(np.maximum(self._spoiled / k**2, self._window), float(self.rounds))
        if self._count > 1:
            self._learn(gradient, self._more * k * (known + self.damping) + np.zeros_like(self.point))
        self._last = self.point, gradient
        gain = self._gain = np.maximum(1.5 / (self._count + 0.5), 1 / self._window)
        self._curvature += (gain if self._count > 1 else 1.0) * (self._more * k - self._curvature)
        self._centre, self._slope = (
            (1 - gain) * self._centre + gain * self.point,
            (1 - gain) * self._slope + gain * gradient,
        )
        k, early = self._curvature, np.maximum(1.0, self._window / self._count)
        self.curvature = np.asarray(k * known)  # what the records have of the stiffness
        chance = self.chance * known * (k if self.units.loss.kind == "classification" else self.units.slope**2)
        restraint = (early * self.noise**2 + chance) / (self.prior * k * known)
        self.stiffness = k * (known + self.damping) + restraint
        free = self._centre - self._solved(self._slope + restraint * self._centre, restraint)
        self.point = self.penalised(free, self.stiffness) if self.penalty or self.point.ndim > 1 else free
        if self._count >= max(self.rounds / 2, np.max(self._window)):
            self.taken.append(free)

    def _learn(self, gradient: Array, model: Array) -> None:
        """What the last move says of the curvature: the change of the gradient, drawn to that of the model.

        Along the move it is known far better than across. A move goes against the noise of the gradient before it: its
        echo is taken away. A class that is rare where rows are short and common where they are long, or whose columns
        add up, bends more than its share: so much more along all moves as is certain. That alone is used with a
        penalty, whose metric is by directions.
        """
        move, change, spoiled = self.point - self._last[0], gradient - self._last[1], self.rounds * self.noise**2
        expected = model * move
        along, size = (change * move).sum(axis=0), (expected * move).sum(axis=0)
        excess = along - size - spoiled * self._gain * (1 / self.stiffness).sum(axis=0)
        hidden = 2 * spoiled * (move**2).sum(axis=0)
        if not np.all(size > 0):
            return
        certain = np.maximum(1.0, 1 + (excess - CERTAIN * np.sqrt(hidden)) / size)
        if self.point.ndim > 1:
            self._more = self._more * certain
        if self.penalty:
            self._window = np.minimum(np.maximum(self._window, certain), float(self.rounds))
            return
        along, size, excess, hidden = along.sum(), size.sum(), excess.sum(), hidden.sum()
        sure = size**2 / (size**2 + (SHARPER if excess > 0 else FLATTER) * hidden)
        across = size / (size + 2 * spoiled * float((1 / model).sum()))
        bent = max(1 + sure * excess / size, LEAST) * expected
        self._moves.append((move, bent + across * (change - along / size * expected)))

    def _solved(self, vector: Array, restraint: Array) -> Array:
        """S^-1 vector, S what BFGS makes of the stiffness by the moves (two loops: Nocedal 1980)."""
        found, shares = vector, list[float]()
        for move, change in reversed(self._moves):
            bent = change + restraint * move
            shares.append(float((move * found).sum() / (move * bent).sum()))
            found = found - shares[-1] * bent
        found = found / self.stiffness
        for move, change in self._moves:
            bent = change + restraint * move
            found = found + (shares.pop() - float((bent * found).sum() / (move * bent).sum())) * move
        return found

    def along_columns(self, point: Array) -> Array:
        """A point as parties are told it; of several classes column by column."""
        if self.white is None or self.white.moments.vectors is None:
            return point
        if point.ndim > 1:
            return np.column_stack([self.along_columns(column) for column in point.T])
        return np.asarray(self.white.matrix.T @ (self.white.moments.vectors @ (point / np.sqrt(self.white.q))))

    def along_directions(self, answer: Array) -> Array:
        """The inverse, of a sum of gradients that was asked for there."""
        if self.white is None or self.white.moments.vectors is None:
            return answer
        if answer.ndim > 1:
            return np.column_stack([Descent.along_directions(self, column) for column in answer.T])
        return np.asarray(self.white.moments.vectors.T @ (self.white.matrix @ answer) / np.sqrt(self.white.q))

    def bend(self) -> Any:
        """The mean curvature at scores of the point; a floor, below which a step could run away.

        Where the mean of the scores is known it may be far lower, as of rare labels: down to where the noise of all
        rounds would be a 256th of the scores' variance.
        """
        point, units = self.point if self.start is None else self.point + self.start, self.units
        variance = float(self.squares @ point**2)
        if units.loss.kind == "regression":
            return 1.0
        if self.mean is None:
            return max(units.curvature / 4, units.weight * units.loss.mean_curvature(variance))
        mean = float(self.mean @ point)
        scores = mean + math.sqrt(max(variance - mean**2, 0.0)) * NORMAL
        found = units.loss.curvature(scores, np.ones_like(scores))
        return max(self._least, units.weight * float(DENSITY @ found))


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
    noise: float  # what it costs of the loss, in the mean

    def distance(self, weights: Array) -> float:
        """By how much their loss is above that of the fit, as the records have it: 1/2 |w - weights|^2 in K."""
        return float(self.curvature @ self.moments.into(weights - self.weights) ** 2) / 2

    def model(self, regulariser: ScaledRegulariser, share: float) -> Array:
        """The weights of least loss + penalty, where only this share of R is left: a penalty takes its place."""
        values = self.curvature + share * self.restraint
        along = (self.curvature + self.restraint) / values * self.moments.into(self.weights - self.start)
        return self.moments.step(values, along, regulariser, self.start)

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
