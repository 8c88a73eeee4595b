"""`score`: over columns each party fits its own columns and sends one noisy score of every person, once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Ask, Coordination, Need, given, only, slope_bound
from sottovoce.algorithms.newton.metric import RULES
from sottovoce.algorithms.score.combination import Correlations, combine, expectations
from sottovoce.algorithms.score.fits import NARROW, WIDE, OwnFit, cut_of, joined
from sottovoce.algorithms.score.queries import in_order, score_queries
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.door.frames import MAX_BYTES
from sottovoce.door.query import Query, Together
from sottovoce.errors import InputError
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem, Split
from sottovoce.plan.release import Release
from sottovoce.solvers import Score

Array = NDArray[np.float64]

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
    2. Mean and deviation of each s_m: two sums. From here on z_m is s_m standardised, cut to +-1.5.
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
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
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
        """Those of the party's own columns."""
        if len(plan.parties) < 2:
            raise InputError(f"{self.name} combines the scores of several parties, and the plan has one.")
        return score_queries(plan, plan.numbers.slope_bound, party)

    def coordinate(self, plan: Plan) -> Coordination:
        """Fits, moments, scores, products; the rest is arithmetic on what was released."""
        order, loss, label_terms = in_order(plan), plan.scaled_loss, {}
        others, last = order[:-1], order[-1:]
        if plan.held_labels:
            cut = cut_of(plan, "labels")
            noisy = only((yield Ask("labels", {}, last, 0)))
            sums = yield Ask("pull", {"labels": noisy / cut}, others, 0)
            label_terms = {name: loss.label_slope * cut * sums[name] for name in others}

        triangles = yield Ask("gram", {}, round=0)
        fits = {name: OwnFit(plan, name, triangles[name]) for name in order}
        for t in range(plan.rounds):
            weights = {name: fit.descent.weights for name, fit in fits.items()}
            gradients = yield Ask("gradient", {"weights": _one_after_another(plan, weights)}, round=t)
            for name, fit in fits.items():
                fit.descent.step(t, gradients[name] - label_terms.get(name, 0.0))

        for fit in fits.values():
            fit.guess_scale()
        wide = {name: fit.standardised(WIDE) for name, fit in fits.items()}
        sums = yield Ask("moments", {"weights": _one_after_another(plan, wide)}, round=0)
        for name, fit in fits.items():
            fit.measure_scale(sums[name])

        narrow = {name: fit.standardised(NARROW) for name, fit in fits.items()}
        asked, cut = {"weights": _one_after_another(plan, narrow)}, cut_of(plan, "scores")
        sent = yield Ask("scores", asked, others, 0)
        columns, products = np.stack([sent[name] for name in others]) / cut, []
        for place, name in enumerate(order):
            products.append(only((yield Ask("products", {**asked, "columns": columns[:place]}, (name,), 0))))
        correlations = Correlations(plan, products, cut)

        means, deviations = np.array([(fit.mean, fit.deviation) for fit in fits.values()]).T
        expected = np.array([expectations(loss, m, d * d) for m, d in zip(means, deviations, strict=True)])
        informed = expected[-1:] if plan.held_labels else expected
        target, least = float(informed[:, 0].mean()), float(informed[:, 1].min())
        slopes = deviations * expected[:, 1]
        if plan.held_labels:
            centre = float(np.clip(target / loss.label_slope, -1.0, 1.0))
            found = only((yield Ask("slopes", {"columns": columns, "centre": np.array([centre])}, last, 0)))
            known = correlations.slopes(found * (1 + abs(centre)), loss.label_slope)
            slopes[:-1] = np.minimum(slopes[:-1], known)
        factors, middle = combine(loss, slopes / least, correlations.matrix, target)
        if not plan.fit_intercept:
            middle, means = 0.0, np.zeros(len(order))
        factors = factors / deviations
        return joined(plan, tuple(fits.values()), factors, middle - float(factors @ means))


def _together(problem: Problem, slope: float) -> dict[str, Together]:
    """By name, what all parties that answer a query release together."""
    found: dict[str, list[Query]] = {}
    for party in problem.names:
        for query in score_queries(problem, slope, party):
            if query.answered_by.answers(problem, party):
                found.setdefault(query.name, []).append(query)
    return {name: Together(queries) for name, queries in found.items()}


def _one_after_another(plan: Plan, weights: Mapping[str, Array]) -> Array:
    """The weights of all parties in the order of the plan, which every message has."""
    return np.concatenate([weights[name] for name in plan.names])
