"""Metrics and their intervals from released cells: functions of noisy counts and of public numbers alone.

An interval has both the sampling of the test records and the noise. Estimates are not clamped, which would bias them;
variances are made of counts clamped at 0. Formulas: `proof.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from sottovoce.algorithms.base import Array
from sottovoce.algorithms.evaluation import LABELS, LARGEST_LOSS, RESIDUALS, Function, Line, TwoSides, loss_lines
from sottovoce.algorithms.evaluation.counts import DEVIANCES, CountCells

Z = 1.959963984540054  # of a two-sided 95% interval
LEAST = 0.02  # of a second moment, the least that counts as variance
UNTOLD = 0.5  # width of an interval in [0, 1] from which it says nothing
UNEVEN = 0.005  # of a mean square, what its projection is off by where residuals lie unevenly between nodes
MISSING = 4.0  # deviations of the noise by which counts fall short of the records where some cannot be used
_GRID = np.linspace(0.0, 1.0, 2001)


@dataclass(frozen=True)
class Metric:
    """A value and its 95% interval. The value is NaN where a share cannot be told."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


NOTHING = Metric(math.nan, -math.inf, math.inf)  # cannot be told


@dataclass(frozen=True)
class Bin:
    """Test records of similar predicted probability: their mean prediction, and the share that is positive."""

    predicted: float
    records: float
    positives: Metric


@dataclass(frozen=True)
class Rates:
    """A point of the ROC curve: the shares of both classes with a score above this one."""

    score: float
    false: Metric
    true: Metric


class Counts:
    """Noisy cells of all usable records, each once; `noise` is the standard deviation of a cell's noise.

    They are `complete` if all records were counted, as far as the noise tells; then their number n is public. How many
    are in a group is not known (`records=None`): that is their sum, and where the noise could be all of it they are
    `lost`.
    """

    def __init__(self, cells: Array, noise: float, records: int | None) -> None:
        self.cells, self.noise = cells, noise
        total, size = float(cells.sum()), len(cells)
        far = MISSING * noise * math.sqrt(size)
        self.complete = records is not None and abs(records - total) <= far + 1e-9 * records
        self.lost = records is None and total <= far
        self.n = float(records) if self.complete and records is not None else max(total, 1.0)
        self.known: Array = cells + (self.n - cells.sum()) / size  # moved alike so that they add up to n
        self.projection = np.eye(size) - (1.0 / size if self.complete else 0.0)  # of the noise of `known`
        positive = np.maximum(cells, 0.0)
        self.clamped: Array = positive * (self.n / max(float(positive.sum()), 1e-300))  # for variances

    @property
    def total(self) -> Metric:
        """How many records there are, by the cells alone."""
        return around(float(self.cells.sum()), self.noise * math.sqrt(len(self.cells)))

    def mean(self, weights: Array, squares: Array) -> Metric:
        """Of a function with these values at the cells, and of its square."""
        if self.lost:
            return NOTHING
        value = float(weights @ self.known) / self.n
        second, first = float(squares @ self.clamped) / self.n, float(weights @ self.clamped) / self.n
        sampling = max(second - first**2, LEAST * second, 0.0) / self.n
        return around(value, math.sqrt(self.noise_variance(weights, value) + sampling))

    def noise_variance(self, weights: Array, value: float) -> float:
        around_it = self.projection @ (weights if self.complete else weights - value)
        return float(around_it @ around_it) * (self.noise / self.n) ** 2

    def ratio(self, part: Array, whole: Array) -> Metric:
        """part.P / whole.P of some of the records by some more, by Fieller's rule.

        It is all of [0, 1] where the denominator is lost in noise.
        """
        above, below = float(part @ self.known), float(whole @ self.known)
        lost = below <= Z * self.noise * float(np.linalg.norm(self.projection @ whole))
        value = math.nan if lost else above / below
        # E[above - r below] = 0, but it varies with the denominator: the first term of E[U / Y] is -Cov(U, Y) / Y^2.
        if not lost:
            value += self.noise**2 * float((part - value * whole) @ self.projection @ whole) / below**2
        r = tried_values(value)[:, None]
        combined = part - r * whole
        noise = self.noise**2 * ((combined @ self.projection) ** 2).sum(axis=1)
        squares = (1 - 2 * r) * part + r**2 * whole  # (f - r g)^2 of indicators f <= g
        sampling = squares @ self.clamped - (combined @ self.clamped) ** 2 / self.n
        return fieller(value, combined @ self.known, noise + np.maximum(sampling, 0.0))

    def share_of_pairs(self, pairs: Sequence[Array], parts: Sequence[slice], off: Array | None = None) -> Metric:
        """P'M P / P'M_1 P of the cells P: of the pairs that M_1 counts, those that M does.

        Both are freed of what the noise adds to them in the mean; the interval is Fieller's, with M - A M_1 in the
        place of a vector. Records are drawn within each of the `parts`. P'L P of `off` counts as an error.
        """
        cells, noise, projection = self.known, self.noise**2, self.projection
        moved, counted = list[Array](), list[float]()
        for m in pairs:
            moved.append(m @ projection)
            counted.append((float(cells @ m @ cells) - noise * float(np.trace(moved[-1]))) / 2)
        (ordered, total), traces = counted, np.zeros((2, 2))
        for one, two in np.ndindex(2, 2):
            traces[one, two] = float(np.trace(moved[one] @ moved[two]))
        slopes = np.array([pairs[0] @ cells, pairs[1] @ cells])
        first = noise * slopes @ projection @ slopes.T  # covariances of the two forms, linear and quadratic parts
        second = noise**2 / 2 * traces
        value = ordered / total if total else math.nan
        if total:
            value += float(np.array([1.0, -value]) @ (first - second)[:, 1]) / total**2
        shares = tried_values(value)
        along = np.array([np.ones_like(shares), -shares])
        quadratic = np.einsum("ig,ij,jg->g", along, second, along)
        noisy = np.maximum(np.einsum("ig,ij,jg->g", along, first, along) - quadratic, quadratic)
        # The variance that drawing the records gives to P'M P / 2, for each M: that of a mean within each part.
        drawn = np.full(len(shares), 0.0 if off is None else float(cells @ off @ cells) ** 2)
        found = along.T @ np.array([pairs[0] @ self.clamped, pairs[1] @ self.clamped])
        for part in parts:
            own, slope = self.clamped[part], found[:, part]
            drawn += (slope**2) @ own - (slope @ own) ** 2 / max(float(own.sum()), 1.0)
        return fieller(value, along.T @ [ordered, total], noisy + np.maximum(drawn, 0.0))


def around(value: float, deviation: float) -> Metric:
    """Value and interval of an estimate that is nearly normal."""
    return Metric(value, value - Z * deviation, value + Z * deviation)


def tried_values(value: float) -> Array:
    """Numbers in [0, 1] that a share may be, the value among them."""
    return _GRID if math.isnan(value) else np.union1d(_GRID, np.clip(value, 0.0, 1.0))


def fieller(value: float, statistic: Array, variance: Array) -> Metric:
    """The interval of the candidates of a value whose statistic, 0 in the mean for the true one, is within Z of 0.

    A value that noise took out of it counts as its nearest end; where it is wider than UNTOLD there is none.
    """
    among, distance = tried_values(value), np.abs(statistic) - Z * np.sqrt(variance)
    inside = np.flatnonzero(distance <= 0.0)
    if not len(inside):
        inside = np.array([int(np.argmin(distance))])
    ends = list[float]()
    for last, beyond in ((int(inside[0]), int(inside[0]) - 1), (int(inside[-1]), int(inside[-1]) + 1)):
        end = float(among[last])
        if 0 <= beyond < len(among) and distance[last] <= 0.0:  # where it is 0 between the last inside and the next
            share = distance[last] / (distance[last] - distance[beyond])
            end = float(among[last] + share * (among[beyond] - among[last]))
        ends.append(end)
    low, high = ends
    return Metric(min(max(value, low), high) if high - low <= UNTOLD else math.nan, low, high)


class ClassEstimates:
    """What cells of scores by class say: the negative class first, `nodes` of each."""

    def __init__(self, cells: Array, noise: float, records: int | None, nodes: TwoSides) -> None:
        self.counts = Counts(cells, noise, records)
        self.nodes = nodes
        self.negatives, self.positives = np.split(cells, 2)

    def metrics(self, *, probabilities: bool) -> dict[str, Metric]:
        """By name; log-loss and Brier score only of a model whose scores are log-odds."""
        ratio, right = self.counts.ratio, np.repeat([0.0, 1.0], [self.nodes.left, self.nodes.right])
        none, every = np.zeros(len(self.nodes)), np.ones(len(self.nodes))
        found = {"accuracy": self._mean(lambda y, s: np.where(y * s > 0, 1.0, 0.0)), "auc": self.auc()}
        if probabilities:
            found["log_loss"] = self._mean(lambda y, s: np.minimum(np.logaddexp(0.0, -y * s), LARGEST_LOSS))
            found["brier"] = self._mean(lambda y, s: expit(-y * s) ** 2)
        caught = np.concatenate([none, right])
        found["recall"] = ratio(caught, np.concatenate([none, every]))
        found["precision"] = ratio(caught, np.concatenate([right, right]))
        found["specificity"] = ratio(np.concatenate([1 - right, none]), np.concatenate([every, none]))
        found["positives"] = self._mean(lambda y, s: np.full(len(s), float(y > 0)))
        return found

    def _mean(self, function: Callable[[float, Array], Array]) -> Metric:
        """Of a function of y and the score, by its projection at the cells of each class, and that of its square."""
        values, squares = list[Array](), list[Array]()
        for y in (-1.0, 1.0):
            own = functools.partial(function, y)
            values.append(self.nodes.projection(own))
            squares.append(self.nodes.projection(lambda s, own=own: own(s) ** 2))  # type: ignore[misc]
        return self.counts.mean(np.concatenate(values), np.concatenate(squares))

    def auc(self) -> Metric:
        """The share of pairs of a positive and a negative record in which the positive has the higher score."""
        above, none, size = self.nodes.above, np.zeros_like(self.nodes.above), len(self.nodes)
        every = np.ones_like(above)
        pairs = np.block([[none, above.T], [above, none]]), np.block([[none, every], [every, none]])
        return self.counts.share_of_pairs(pairs, (slice(0, size), slice(size, None)))

    def beyond(self, found: Mapping[str, Metric]) -> float:
        """The share of the records at the end nodes if, one step farther out, they would move a metric out of `found`.

        An end counts that has more than twice its neighbour, which no usual tail leaves. Of pairs within one end up to
        a half could be in order or not. 0 where no metric would move so far.
        """
        nodes, n, noise = self.nodes.nodes, self.counts.n, self.counts.noise
        ends, steps = nodes[[0, -1]], np.array([nodes[0] - nodes[1], nodes[-1] - nodes[-2]])
        cells = np.split(self.counts.clamped, 2)
        both = cells[0] + cells[1]
        piled = both[[0, -1]] > 2 * both[[1, -2]] + MISSING * noise * math.sqrt(10.0)
        negative, positive = (own[[0, -1]] * piled / n for own in cells)
        pairs = float(cells[0].sum()) * float(cells[1].sum()) / n**2
        moved = {"auc": float(negative @ positive) / (2 * max(pairs, 1e-300)), "log_loss": 0.0}
        for y, mass in ((-1.0, negative), (1.0, positive)):
            losses = np.logaddexp(0.0, -y * np.array([ends, ends + steps]))
            moved["log_loss"] += float(mass @ np.abs(losses[1] - losses[0]))
        matters = any(moved[name] > found[name].width / 2 for name in moved if name in found)
        return float((negative + positive).sum()) if matters else 0.0

    def roc(self) -> tuple[Array, Array]:
        """(false positive rates, true positive rates) at the nodes, from the highest on; made monotone."""
        rates = list[Array]()
        for cells in (self.negatives, self.positives):
            found = np.concatenate([[0.0], self._above @ cells, [cells.sum()]]) / max(float(cells.sum()), 1.0)
            rates.append(np.maximum.accumulate(np.clip(found, 0.0, 1.0)))
        return rates[0], rates[1]

    @functools.cached_property
    def _above(self) -> Array:
        """For each node, from the highest on, which part of each cell lies above it: of its own cell a half."""
        size = len(self.nodes)
        found = (np.tri(size) - np.eye(size) / 2)[:, ::-1]
        found[self.nodes.right - 1] = np.arange(size) >= self.nodes.left  # at 0 the cells tell without interpolation
        return np.asarray(found)

    def rates(self) -> list[Rates]:
        """The points of the ROC curve at the nodes, from the highest on, with intervals and not made monotone."""
        none, every = np.zeros(len(self.nodes)), np.ones(len(self.nodes))
        negative, positive = np.concatenate([every, none]), np.concatenate([none, every])
        return [
            Rates(
                float(score),
                self.counts.ratio(np.concatenate([above, none]), negative),
                self.counts.ratio(np.concatenate([none, above]), positive),
            )
            for score, above in zip(self.nodes.nodes[::-1], self._above, strict=True)
        ]

    def calibration(self) -> list[Bin]:
        """Neighbouring nodes joined until their count stands above the noise."""
        groups, first = list[slice](), 0
        both, noise = self.positives + self.negatives, self.counts.noise
        for last in range(1, len(self.nodes) + 1):
            if both[first:last].sum() > max(50.0, self.counts.n / 30, 8 * noise * math.sqrt(2 * (last - first))):
                groups.append(slice(first, last))
                first = last
        if groups and first < len(self.nodes):
            groups[-1] = slice(groups[-1].start, len(self.nodes))
        bins, sides = list[Bin](), ((side.gram(), side.projection(expit)) for side in self.nodes.sides)
        chances = np.concatenate([gram @ odds / gram.sum(axis=1) for gram, odds in sides])  # mean odds over each hat
        chances[[0, -1]] = expit(self.nodes.nodes[[0, -1]])  # scores beyond the ends make up for those before them
        for group in groups:
            total, weights = float(both[group].sum()), np.maximum(both[group], 0.0)
            share = float(self.positives[group].sum()) / total
            spread = noise**2 * (group.stop - group.start) * ((1 - share) ** 2 + share**2)
            variance = (total * max(share * (1 - share), 0.002) + spread) / total**2
            predicted = float(weights @ chances[group]) / float(weights.sum())
            bins.append(Bin(predicted, total, around(share, math.sqrt(variance))))
        return bins


class SeveralEstimates:
    """What counts by class and predicted class say, and cells of losses after them: right ones, then wrong ones."""

    def __init__(self, released: Array, noise: float, records: int | None, classes: int) -> None:
        self.classes = classes
        counts, losses = np.split(released, [classes**2])
        self.counts = Counts(counts, noise, records)
        self.losses = Counts(losses, noise, records) if len(losses) else None

    @property
    def complete(self) -> bool:
        """Whether all records were counted, as far as the noise tells."""
        return self.counts.complete and (self.losses is None or self.losses.complete)

    @property
    def nodes(self) -> Array:
        """Of the losses: right ones, then wrong ones."""
        lines = () if self.losses is None else loss_lines(self.classes)
        return np.array([node for line in lines for node in line.nodes])

    def metrics(self) -> dict[str, Metric]:
        found = {"accuracy": self.accuracy()}
        if self.losses is not None:
            squares = np.concatenate([line.projection(np.square) for line in loss_lines(self.classes)])
            found["log_loss"] = self.losses.mean(self.nodes, squares)  # a loss is linear in itself: exact
        return found

    def accuracy(self) -> Metric:
        """By the counts and by the cells of right losses, each with its own noise: weighed by it."""
        right = np.eye(self.classes).ravel()
        pairs = [(self.counts, right)]
        if self.losses is not None:
            pairs.append((self.losses, np.repeat([1.0, 0.0], [len(line) for line in loss_lines(self.classes)])))
        if any(counts.lost for counts, _ in pairs):
            return NOTHING
        values = np.array([float(weights @ counts.known) / counts.n for counts, weights in pairs])
        noises = np.array([c.noise_variance(weights, v) for (c, weights), v in zip(pairs, values, strict=True)])
        weighed = 1 / np.maximum(noises, 1e-300)
        value = float(values @ weighed / weighed.sum())
        share = min(max(value, LEAST), 1 - LEAST)
        return around(value, math.sqrt(1 / float(weighed.sum()) + share * (1 - share) / self.counts.n))

    def confusion(self) -> list[list[Metric]]:
        """The share of all records that is of class i and predicted to be of class j."""
        each = [self.counts.mean(one, one) for one in np.eye(self.classes**2)]
        return [each[k * self.classes : (k + 1) * self.classes] for k in range(self.classes)]

    def by_class(self) -> list[dict[str, Metric]]:
        """For each class recall, precision and its share of the records."""
        every, found = np.ones(self.classes), []
        for each in np.eye(self.classes):
            own, said, right = (np.outer(*of).ravel() for of in ((each, every), (every, each), (each, each)))
            recall, precision = self.counts.ratio(right, own), self.counts.ratio(right, said)
            found.append({"recall": recall, "precision": precision, "share": self.counts.mean(own, own)})
        return found


class NumberEstimates:
    """What cells of residuals and labels say; `half` is the label's half-width, the unit of what was released."""

    def __init__(self, released: Array, noise: float, records: int | None, half: float) -> None:
        ends = np.cumsum([len(RESIDUALS), 2 * len(LABELS)])
        residuals, labels, self.moments = np.split(released, ends)
        self.residuals, self.labels = (Counts(cells, noise, records) for cells in (residuals, labels))
        self.noise, self.half = noise, half

    def metrics(self) -> dict[str, Metric]:
        """By name, in the label's own units."""
        if self.residuals.lost or self.labels.lost:
            return dict.fromkeys(("mean_squared_error", "r2", "mean_absolute_error"), NOTHING)
        square, size = self.square(), _mean_on(RESIDUALS, self.residuals, lambda r: r)
        # R^2 is 1 - A / V. The noises are independent; drawing the records moves both by r^2 and (y - mean)^2.
        # Both are of sums: how many records there are matters for mean^2 alone, and adds noise if it is not known.
        n, summed = self.labels.n, self.square(summed=True)
        noise = (self.noise / n) ** 2
        mean, second = self.moments / n
        spread = second - mean**2 + noise
        squares, fourths = (LABELS.projection(lambda y, k=k: (y - mean) ** k) for k in (2, 4))  # type: ignore[misc]
        fourth = float(np.tile(fourths, 2) @ self.labels.known) / n
        both = float(squares @ self.labels.known[len(LABELS) :]) / n - summed.value * spread
        sampling = max(fourth - spread**2, LEAST * fourth, 0.0) / n
        counted = 0.0 if self.labels.complete else self.labels.noise_variance(np.ones(2 * len(LABELS)), 0.0) * mean**4
        above, below = (summed.width / 2 / Z) ** 2, noise * (1 + 4 * mean**2) + counted + sampling
        limit = 0.9 * math.sqrt(above * sampling)
        r2 = _less_ratio(summed.value, spread, (above, min(max(both / n, -limit), limit), below))
        return {
            "mean_squared_error": _scaled(square, self.half**2),
            "r2": r2,
            "mean_absolute_error": _scaled(size, self.half),
        }

    def square(self, *, summed: bool = False) -> Metric:
        """The mean of r^2: by its projection on the sizes, and exactly by the cells of labels; weighed by errors.

        `summed`: the sum of r^2 by the number of the labels; where that is not known its noise does not count.
        """
        nearly, weights = _mean_on(RESIDUALS, self.residuals, np.square), np.repeat([0.0, 1.0], len(LABELS))
        part = self.residuals.n / self.labels.n if summed else 1.0
        values = np.array([nearly.value * part, float(weights @ self.labels.known) / self.labels.n])
        sizes = RESIDUALS.projection(np.square, 1)
        sampling = max((nearly.width / 2 / Z) ** 2 - self.residuals.noise_variance(sizes, nearly.value), 0.0)
        centres = (0.0, 0.0) if summed else values
        noise = self.residuals.noise_variance(sizes, centres[0]) * part**2
        errors = np.array([noise + (UNEVEN * values[0]) ** 2, self.labels.noise_variance(weights, centres[1])])
        weighed = 1 / np.maximum(errors, 1e-300)
        return around(float(values @ weighed / weighed.sum()), math.sqrt(sampling + 1 / float(weighed.sum())))

    def histogram(self) -> tuple[Array, Array]:
        """(sizes of residuals at the nodes, noisy counts)."""
        return np.array(RESIDUALS.nodes) * self.half, self.residuals.cells


class CountEstimates:
    """What cells of deviances, scores and residuals of counts say; `most` is the largest exposure, if there are any."""

    def __init__(self, released: Array, noise: float, records: int, query: CountCells) -> None:
        size, most = len(query.scores), query.most
        ends = np.cumsum([len(DEVIANCES), (2 if most else 1) * size, size])
        deviances, weighed, signed, squares = np.split(released, ends)
        self.deviances, scores = (Counts(each, noise, records) for each in (deviances, weighed))
        self.query, self.noise, self.top = query, noise, most or 1.0
        self.records: Array = scores.known.reshape(-1, size).sum(axis=0)
        self.exposures: Array = scores.known[-size:] * self.top  # at each node
        self.over: Array = signed * query.range  # counts less what is predicted, likewise
        self.square = float(squares[0]) * query.range**2
        self.known = max(self.square, 0.0) + noise * query.range**2  # no less, for variances

    def metrics(self) -> dict[str, Metric]:
        line, unit = self.query.scores, self.query.unit
        deviance = _mean_on(DEVIANCES, self.deviances, lambda d: unit * d)
        rates = line.projection(np.exp)
        predicted, noise = float(rates @ self.exposures), self.noise * self.top * float(np.linalg.norm(rates))
        over, spread = float(self.over.sum()), self.known + len(self.over) * (self.noise * self.query.range) ** 2
        found = {"deviance": deviance, "d2": self.explained(deviance)}
        if predicted <= Z * noise:
            return found | dict.fromkeys(("observed_to_predicted", "dispersion"), Metric(math.nan, -math.inf, math.inf))
        ratio = 1 + over / predicted
        found["observed_to_predicted"] = around(ratio, math.hypot(math.sqrt(spread), ratio * noise) / predicted)
        power = self.query.loss.power  # of the mean, to which the variance is in proportion
        scale = float(line.projection(lambda s: np.exp(power * s)) @ self.exposures)
        about = self.query.range**2 * math.sqrt(self.noise**2 + self.known / self.query.range**2)  # r^4 <= r^2
        found["dispersion"] = around(self.square / max(scale, 1e-300), about / max(scale, 1e-300))
        return found

    def explained(self, deviance: Metric) -> Metric:
        """D^2 = 1 - D / C, C the deviance of one rate for everybody: C - D is linear in (y - mu), given the score."""
        line, n = self.query.scores, self.deviances.n
        predicted = float(line.projection(np.exp) @ self.exposures)
        total, exposure = predicted + float(self.over.sum()), float(self.exposures.sum())
        if not (total > 0 and exposure > 0):
            return Metric(math.nan, -math.inf, 1.0)
        constant = math.log(total / exposure)
        slope = line.projection(lambda s: self.query.loss.gain(s, constant)[0])
        mean = line.projection(lambda s: self.query.loss.gain(s, constant)[1])
        gain = 2 * float(slope @ self.over + mean @ self.exposures) / n
        released = float(slope @ slope) * self.query.range**2 + float(mean @ mean) * self.top**2
        shares = np.maximum(self.records, 0.0) / max(float(np.maximum(self.records, 0.0).sum()), 1.0)
        sampling = float(slope**2 @ shares) * self.known + float(mean**2 @ shares) * n
        both = (2 / n) ** 2 * (self.noise**2 * released + sampling)
        own = (deviance.width / 2 / Z) ** 2
        return _less_ratio(deviance.value, deviance.value + gain, (own, own, own + both))

    def calibration(self) -> Iterator[Bin]:
        """At each node that the noise does not hide: the rate that is predicted, and the one that was observed."""
        rates = self.query.scores.projection(np.exp)
        total = max(float(rates @ self.exposures), 1e-300)
        for rate, exposure, records, over in zip(rates, self.exposures, self.records, self.over, strict=True):
            if rate > 0 and exposure > 4 * self.noise * self.top:
                share = min(max(rate * exposure / total, 0.0), 1.0)
                error = math.sqrt((self.noise * self.query.range) ** 2 + share * self.known) / exposure
                yield Bin(float(rate), float(records), around(float(rate + over / exposure), error))

    def histogram(self) -> tuple[Array, Array]:
        """(deviances at the nodes, noisy counts)."""
        return np.array(DEVIANCES.nodes) * self.query.unit, self.deviances.cells


def _less_ratio(above: float, below: float, variances: tuple[float, float, float]) -> Metric:
    """1 - A / V by Fieller's rule, not above 1: (A - q V)^2 <= Z^2 (Var A - 2 q Cov + q^2 Var V)."""
    first, common, second = (Z**2 * variance for variance in variances)
    scale, middle = below**2 - second, above * below - common
    if below <= 0 or scale <= 0:
        return Metric(math.nan, -math.inf, 1.0)
    reach = math.sqrt(max(middle**2 - scale * (above**2 - first), 0.0))
    low, value, high = (min(1 - q, 1.0) for q in ((middle + reach) / scale, above / below, (middle - reach) / scale))
    return Metric(min(max(value, low), high), low, high)


def _mean_on(line: Line, counts: Counts, function: Function) -> Metric:
    """The mean of a function.

    Of normal, exponential and even residuals of any size the mean square is told within 2%, the fourth power's mean,
    which is for variances alone, mostly 15% too high: so the powers.
    """
    return counts.mean(line.projection(function, 1), line.projection(lambda values: function(values) ** 2, 5))


def _scaled(metric: Metric, unit: float) -> Metric:
    return Metric(metric.value * unit, metric.low * unit, metric.high * unit)
