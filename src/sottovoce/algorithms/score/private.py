"""`score`: over columns each party fits its own columns and sends one noisy score of every person, once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field
from scipy.optimize import nnls

from sottovoce.algorithms.base import Algorithm, Array, Asking, Coordination, Need, answer, answers, given, slope_bound
from sottovoce.algorithms.newton import RULES, NewtonDescent
from sottovoce.algorithms.score.queries import labels_last, score_queries
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.errors import InputError
from sottovoce.gate.frames import MAX_BYTES
from sottovoce.gate.query import Query, Together
from sottovoce.losses import Loss
from sottovoce.penalties.base import ConstraintSet, ScaledRegulariser
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.queries.sums import GramMatrix
from sottovoce.solvers import Score

TAIL = 2.0  # standard deviations of the noise beyond which a noisy number is cut before it is used
WIDE = 4.0  # standard deviations to which a score is cut for its mean and variance
NARROW = 1.5  # and for what is sent
LABEL_DAMPING = 10.0  # how much more a fit to noisy labels is damped than by the rule for noisy gradients


def clip_of(plan: Plan, query: str) -> float:
    """Where a number of size at most 1 is cut once it has the noise of a release."""
    return 1.0 + TAIL * plan.noise_of(query)


class OwnFit:
    """The private Newton on one party's columns, then the mean and the deviation of its scores s."""

    def __init__(self, plan: Plan, party: str, triangle: Array) -> None:
        self.plan, self.part = plan, plan.part(party)
        recipe, whole = self.part.preparation, plan.scaled_regulariser
        gram = GramMatrix(recipe.dimension).matrix(triangle)
        half = plan.preparation.label_scale[1]
        regulariser = ScaledRegulariser(whole.inner, recipe.features, recipe.scale * half, whole.objective)
        d, loss = recipe.dimension, plan.scaled_loss
        rule, label_noise = RULES[loss.kind], plan.noise_of("labels")
        damping = rule.damping(d, plan.records, plan.rounds, plan.noise_of("gram"), plan.noise_of("gradient"))
        if not recipe.labelled:  # room for the noise of labels
            moments = clip_of(plan, "labels") * plan.noise_of("pull") * d
            noise = max(LABEL_DAMPING * label_noise * math.sqrt(plan.records * d), moments)
            damping = max(damping, loss.label_slope * noise / rule.per_round)
        damping = max(damping, 1e-9 * float(np.trace(gram)))  # without noise a trifle
        self.descent = NewtonDescent(gram, damping, plan, regulariser, plan.rounds // 2)
        self.mean, self.deviation = 0.0, 1.0

    def guess_scale(self) -> None:
        """Mean and deviation as the Gram matrix tells, the second with room for its noise."""
        fit, weights, records = self.descent, self.descent.mean, self.plan.records
        if self.part.constant:
            last = fit.vectors @ (fit.values * (fit.vectors.T @ weights))
            self.mean = float(last[-1]) / (records * self.part.preparation.intercept_entry)
        least = 1e-12 if self.plan.private else 1e-200  # without noise the unit of the labels decides nothing
        room = self.plan.noise_of("gram") * float(weights @ weights) / records
        self.deviation = math.sqrt(max(fit.mean_square(weights) - self.mean**2, 0.0) + room + least)

    def measure_scale(self, sums: Array) -> None:
        """Mean and deviation from (sum z^2, sum z), z = (s - mean) / (WIDE deviation) by the guess.

        Without an intercept nothing can be centred: the mean counts as 0.
        """
        plan, width = self.plan, WIDE * self.deviation
        square, mean = sums / plan.records
        if not plan.fit_intercept:
            mean = 0.0
        variance = max(square - mean**2, 2.0 * plan.noise_of("moments") / plan.records, 1e-6)
        self.mean, self.deviation = self.mean + width * float(mean), width * math.sqrt(variance)

    def standardised(self, deviations: float) -> Array:
        """The weights of (s - mean) / (that many deviations)."""
        scale = deviations * self.deviation
        weights = self.descent.mean / scale
        if self.part.constant:
            weights[-1] -= self.mean / (scale * self.part.preparation.intercept_entry)
        return weights


PRIOR, SPREAD = 0.5, 1.0 / 12.0  # mean and variance of a correlation on which nothing is known: uniform on [0, 1]
FLOOR = 0.05  # of the eigenvalues of the correlations
NODES = np.linspace(-8.0, 8.0, 2001)
NORMAL = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


class Correlations:
    """The correlations of the parties' scores, in the order of the parties, from the released products.

    `cut` is where the noisy scores were cut, and by which they were divided.
    """

    def __init__(self, plan: Plan, products: Sequence[Array], cut: float) -> None:
        self.plan, self.cut, self.records = plan, cut, plan.records
        self.noise = plan.noise_of("scores") ** 2 / plan.records  # of the mean of z t, over that of z^2
        self.squares = np.array([max(sums[0] / plan.records, 0.1 / NARROW**2) for sums in products])
        extra = (plan.noise_of("products") * cut / plan.records) ** 2
        matrix = np.eye(len(products))
        for m, sums in enumerate(products):
            for other, product in enumerate(sums[1:]):
                size = math.sqrt(self.squares[m] * self.squares[other])
                raw = min(max(product * cut / plan.records / size, -1.0), 1.0)
                error = (self.noise * self.squares[m] + extra) / size**2
                matrix[m, other] = matrix[other, m] = PRIOR + (raw - PRIOR) * SPREAD / (SPREAD + error)
        values, vectors = np.linalg.eigh(matrix)
        positive = (vectors * np.maximum(values, FLOOR)) @ vectors.T
        scale = np.sqrt(np.diag(positive))
        self.matrix: Array = positive / np.outer(scale, scale)

    def slopes(self, products: Array, label_slope: float) -> Array:
        """Estimates of cov(phi y, z_m) / deviation(z_m) of the scores that were sent; 0 within one standard error."""
        size = np.sqrt(self.squares[:-1])
        raw = np.maximum(label_slope * products * self.cut / self.records / size, 0.0)
        extra = (2.0 * self.plan.noise_of("slopes") * self.cut / self.records) ** 2
        error = label_slope**2 * (self.noise + extra) / size**2
        return np.asarray(raw * np.maximum(1.0 - error / np.maximum(raw**2, 1e-300), 0.0))


def expectations(loss: Loss, mean: float, variance: float) -> tuple[float, float]:
    """(E psi(u), E l''(u)) for a score u ~ N(mean, variance)."""
    u = mean + math.sqrt(variance) * NODES
    return float(NORMAL @ loss.slope_without_label(u)), float(NORMAL @ loss.curvature(u, np.ones_like(u)))


def combine(loss: Loss, slopes: Array, correlations: Array, target: float) -> tuple[Array, float]:
    """(alpha, middle): alpha >= 0 nearest to the solution of R alpha = slopes, and the mean score.

    The latter solves E psi(u) = target for u ~ N(middle, alpha'R alpha), by bisection.
    """
    root = np.linalg.cholesky(correlations)
    factors = nnls(root.T, np.linalg.solve(root, slopes))[0]
    variance = float(factors @ correlations @ factors)
    low, high = -40.0 - 10.0 * math.sqrt(variance), 40.0 + 10.0 * math.sqrt(variance)
    for _ in range(100):
        middle = (low + high) / 2
        if expectations(loss, middle, variance)[0] < target:
            low = middle
        else:
            high = middle
    return factors, (low + high) / 2


FIT = 0.50  # of mu^2, for the parties' own fits
SHARES = {"scores": 0.35, "moments": 0.05, "products": 0.10}
HELD = {"labels": 0.25, "pull": 0.15, "slopes": 0.05}  # beside those, if one party holds the labels; then all shrink
AFFINE = Need(lambda loss: loss.affine_in_label, "needs the logistic or the squared loss, not {!r}")


class ScoreNumbers(Numbers):
    """G, to which the slopes of the parties' own fits are cut."""

    slope_bound: float = Field(ge=SMALLEST, le=LARGEST)


class PrivateScore(Algorithm):
    """x'w = sum_m a_m s_m + b, where s_m = x_m'w_m is the score of party m's own private fit.

    1. Each party's w_m is fitted by the private Newton (`newton`) on its own columns.
    2. Mean and deviation of each s_m: two sums. From here on z_m is s_m standardised, clipped to +-1.5.
    3. Every party but the last, which has the labels, sends t_m = z_m + noise, a number for each person.
    4. Each party, told the t_l before it, releases sum z_m^2 and sum z_m t_l: the correlations R of the scores, without
       bias though t_l is mostly noise, since z_m is exact.
    5. The factors, at the coordinator: with scores ~ N(mean, D R D), D their deviations,

           R alpha = g / k,   g_m = d_m k_m,   a_m = alpha_m / d_m,   alpha >= 0,   k_m = E l''(s_m),   k = min_m k_m,

       and b makes E psi(x'w + b) the mean label, psi the slope less its label. Where s_m is a fit, E l'(s_m) = 0 and
       cov(label, s_m) = cov(psi(s_m), s_m) = d_m^2 k_m (Stein), so these are the equations of the optimum over (a, b),
       with k for the curvature at x'w. For the squared loss k = 1 and a is the least-squares combination.

    A correlation is drawn to 1/2 as much as its noise says, so that with a tiny budget the factors are those of
    scores that share half of what they say. All shares and constants are public.

    Labels "held": the party that has them releases them with noise once; another party's slope is psi(s) minus its
    noisy label, whose sum sum_i x_i y~_i it releases once (logistic and squared loss are affine in the label). A fit to
    such labels says more than it knows: g_m is then not above what the party with the labels finds, sum (y - mean) t_m.

    Guarantee: every release carries its sensitivity and a person is in every party, so mu^2 adds over all releases of
    all parties (`proof.md`); the world, which sees the model, does not pay for the t_m nor for the noisy labels.
    Edges: penalties act on each party's own fit, before the factors; a ball bounds the model too. A null row is
    0 + noise. Without privacy the same text runs without noise.
    """

    name: ClassVar[str] = "score"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "each party fits its own columns, one noisy score of every person is shared once"
    splits = ("columns",)
    private: ClassVar[bool | None] = None
    needs: ClassVar[tuple[Need, ...]] = (AFFINE,)
    numbers: ClassVar[type[Numbers]] = ScoreNumbers

    def design(self, problem: Problem, options: Score) -> Design:
        """Shares of mu^2 as above, each divided among the parties that release."""
        parties, held = len(problem.parties), problem.held_labels
        if parties < 2:
            raise InputError(
                f"solver={self.name!r} combines the scores of several parties and there is one; fit its rows with "
                "solver='newton', as data in one place."
            )
        if 8 * (parties - 1) * problem.records > MAX_BYTES // 2:
            raise InputError(
                f"solver={self.name!r}: {parties - 1} scores of {problem.records} people are too many for one message; "
                f"train on {MAX_BYTES // 16 // (parties - 1)} people or fewer, or take solver='frank-wolfe'."
            )
        slope = slope_bound(problem, options)
        # without its label a slope reaches 1/2 (logistic), or the largest label (squared)
        numbers = ScoreNumbers(slope_bound=max(slope, 1.0) if held else slope)
        rounds = given(options.rounds, 64 if problem.private else 200)
        gram = FIT * RULES[problem.scaled_loss.kind].gram_share
        shares = {**SHARES, **(HELD if held else {}), "gram": gram, "gradient": FIT - gram}
        total, queries = math.fsum(shares.values()), _together(problem, numbers.slope_bound)
        releases = []
        for name, share in shares.items():
            count, mu = rounds if name == "gradient" else 1, math.sqrt(share / total) * problem.mu
            releases.append(Release.at_mu(queries[name], 0, count, mu, problem.relation))
        return Design(rounds=rounds, numbers=numbers, releases=tuple(releases))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        if len(plan.parties) < 2:
            raise InputError(f"{self.name} combines the scores of several parties, and the plan has one.")
        return score_queries(plan, plan.numbers.slope_bound, party)

    def coordinate(self, plan: Plan) -> Coordination:
        """The five steps; all arithmetic is on what was released."""
        fits = yield from fit_own_columns(plan)  # 1. the party with the labels comes last
        for fit in fits.values():
            fit.guess_scale()
        sums = yield from answers("moments", weights=_standardised(plan, fits, WIDE))
        for name, fit in fits.items():
            fit.measure_scale(sums[name])  # 2. the mean and the deviation of each party's scores
        weights, products = _standardised(plan, fits, NARROW), list[Array]()
        sent = yield from answers("scores", weights=weights)  # 3. of every party but the last
        columns = np.stack(list(sent.values())) / clip_of(plan, "scores")  # a row each, in units of where they are cut
        for place, name in enumerate(fits):  # 4. products with the noisy scores of the parties before
            told = {"weights": weights, "columns": columns[:place]}
            products.append((yield from answer(name, "products", round=0, **told)))
        correlations = Correlations(plan, products, clip_of(plan, "scores"))
        return (yield from combine_fits(plan, fits, columns, correlations))  # 5.


def fit_own_columns(plan: Plan) -> Asking[dict[str, OwnFit]]:
    """1. The private Newton of each party, that with the labels last; the label's part of a gradient is asked once."""
    label_terms: dict[str, Array] = {}
    if plan.held_labels:
        cut, loss = clip_of(plan, "labels"), plan.scaled_loss
        noisy = yield from answer("labels")
        sums = yield from answers("pull", labels=noisy / cut)
        label_terms = {name: loss.label_slope * cut * moments for name, moments in sums.items()}
    triangles = yield from answers("gram")
    fits = {name: OwnFit(plan, name, triangles[name]) for name in labels_last(plan)}
    for t in range(plan.rounds):
        weights = np.concatenate([fits[name].descent.weights for name in plan.names])
        gradients = yield from answers("gradient", weights=weights)
        for name, fit in fits.items():
            fit.descent.step(t, gradients[name] - label_terms.get(name, 0.0))
    return fits


def combine_fits(plan: Plan, fits: Mapping[str, OwnFit], columns: Array, correlations: Correlations) -> Asking[Array]:
    """5. The factors; where one party holds the labels, no g_m is above what it finds."""
    loss = plan.scaled_loss
    means, deviations = np.array([(fit.mean, fit.deviation) for fit in fits.values()]).T
    expected = np.array([expectations(loss, m, d * d) for m, d in zip(means, deviations, strict=True)])
    informed = expected[-1:] if plan.held_labels else expected
    target, least = float(informed[:, 0].mean()), float(informed[:, 1].min())
    slopes = deviations * expected[:, 1]
    if plan.held_labels:
        centre = float(np.clip(target / loss.label_slope, -1.0, 1.0))
        products = yield from answer("slopes", columns=columns, centre=np.array([centre]))
        known = correlations.slopes(products * (1 + abs(centre)), loss.label_slope)
        slopes[:-1] = np.minimum(slopes[:-1], known)
    factors, middle = combine(loss, slopes / least, correlations.matrix, target)
    if not plan.fit_intercept:
        middle, means = 0.0, np.zeros(len(fits))
    factors = factors / deviations
    intercept, found = middle - float(factors @ means), np.zeros(plan.dimension)
    for factor, fit in zip(factors, fits.values(), strict=True):  # as weights of rows that are prepared whole
        part, own = fit.part, factor * fit.descent.mean
        scale = part.preparation.scale / plan.preparation.scale
        found[part.start : part.stop] = own[: part.stop - part.start] * scale
        if part.constant:
            intercept += float(own[-1]) * part.preparation.intercept_entry
    if plan.fit_intercept:
        found[plan.features] = intercept / plan.preparation.intercept_entry
    regulariser = plan.scaled_regulariser  # a ball bounds them too
    return regulariser.prox(found, 1.0) if isinstance(regulariser.inner, ConstraintSet) else found


def _standardised(plan: Plan, fits: Mapping[str, OwnFit], deviations: float) -> Array:
    """The weights of all parties in the order of the plan, which every message has."""
    return np.concatenate([fits[name].standardised(deviations) for name in plan.names])


def _together(problem: Problem, slope: float) -> dict[str, Together]:
    """By name, what all parties that answer a query release together."""
    found: dict[str, list[Query]] = {}
    for party in problem.names:
        for query in score_queries(problem, slope, party):
            answers = query.answered_by.answers
            if answers is None or answers(problem, party):
                found.setdefault(query.name, []).append(query)
    return {name: Together(queries) for name, queries in found.items()}
