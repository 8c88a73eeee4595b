"""For published calibrations alone: what a paper's own accountant certifies, and what its releases truly cost.

The moments accountant says how much noise a paper would add. The other two are the cost of releases that no plan of
ours makes: on batches that everybody sees, and on one record drawn secretly in each round. Statements and proofs:
``proofs/accounting.md``, sections 5 to 7.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from sottovoce.arguments import is_whole
from sottovoce.privacy.accounting import (
    decreasing_root,
    drawn_one_renyi,
    gaussian_epsilon,
    gaussian_log_delta,
    renyi_of,
    renyi_to_epsilon,
)
from sottovoce.privacy.checks import check_cost, check_delta, check_epsilon, check_sampling, require
from sottovoce.privacy.events import PoissonGaussian


def moments_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float, *, most: int = 32) -> float:
    """What the moments accountant of Abadi et al. (2016) says of sampled Gaussian rounds, zero-out.

    min over whole moments k <= most of rounds * D_{k+1} + log(1/delta) / k, D the Renyi divergence of one round. For
    published calibrations only: it is valid but loose, and certifies nothing below log(1/delta) / most.
    """
    check_sampling(rate, rounds)
    check_delta(delta)
    check_cost("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0:
        return math.inf
    event = PoissonGaussian(rate, noise_multiplier, rounds)
    moments = sorted({*range(1, min(most, 32) + 1), *(int(k) for k in np.geomspace(32, max(most, 32), 40))})
    return float(min(renyi_of([event], k + 1.0, "zero-out") - math.log(delta) / k for k in moments if k <= most))


@lru_cache(maxsize=256)
def moments_noise_for(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """The least noise multiplier that the moments accountant certifies for epsilon, to 0.01%.

    Moments up to 32 as published; up to 1024 for an epsilon that these cannot reach.
    """
    check_epsilon(epsilon)
    check_sampling(rate, rounds)
    check_delta(delta)
    most = 32 if epsilon > -1.2 * math.log(delta) / 32 else 1024
    require(
        epsilon > -1.2 * math.log(delta) / most,
        "epsilon",
        epsilon,
        f"above {-1.2 * math.log(delta) / most:.3g} for the published calibration at this delta",
        "raise epsilon or delta, or use calibration='tight'",
    )
    low, high = math.log(1e-2), math.log(1e2)
    while moments_epsilon(math.exp(high), rate, rounds, delta, most=most) > epsilon:
        high += 2.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if moments_epsilon(math.exp(middle), rate, rounds, delta, most=most) > epsilon:
            low = middle
        else:
            high = middle
    return math.exp(high)


def visible_uses_epsilon(mu_once: float, rate: float, rounds: int, delta: float) -> float:
    """The epsilon when everybody sees which rounds used a record: no amplification by sampling.

    delta(epsilon) = sum over k of Binomial(rounds, rate)(k) * gaussian_delta(mu_once sqrt(k), epsilon):
    given its k uses a record pays k plain Gaussian releases of ``mu_once`` = sensitivity / sigma each.

    Guarantee: exact (the k that are too rare to sum are charged at their worst), rounded up.
    """
    from scipy.stats import binom

    check_cost("mu_once", mu_once)
    check_sampling(rate, rounds)
    check_delta(delta)
    if mu_once == 0:
        return 0.0
    # Bernstein: the number of uses lies outside [first, last] with probability at most 2 rare, charged whole.
    rare = 1e-6 * delta
    mean, width = rounds * rate, -math.log(rare)
    first = max(0, math.floor(mean - math.sqrt(2 * mean * width)))
    last = min(rounds, math.ceil(mean + width / 3 + math.sqrt(width**2 / 9 + 2 * mean * width)))
    uses = np.arange(max(first, 1), last + 1)
    weights = binom.pmf(uses, rounds, rate)
    if mu_once == math.inf:
        return math.inf if weights.sum() + 2 * rare > delta else 0.0
    mus = mu_once * np.sqrt(uses)

    def delta_at(epsilon: float) -> float:
        return 2 * rare + float(weights @ np.exp(gaussian_log_delta(mus, epsilon)))

    return decreasing_root(delta_at, delta, gaussian_epsilon(float(mus[-1]), delta - 3 * rare))


def sampled_one_epsilon(source_size: int, noise_multiplier: float, rounds: int, delta: float) -> float:
    """The epsilon of ``rounds`` Gaussian releases, each on one record drawn secretly out of ``source_size``.

    Guarantee: replace-one (and zero-out, whose null row keeps its place), for releases that keep no hidden
    state. ``noise_multiplier`` = sigma / (sensitivity under replace-one). Rényi bound for sampling without
    replacement (Wang, Balle and Kasiviswanathan 2019), best of a fixed list of orders. No noise costs inf.
    """
    check_sampling(1.0, rounds)
    check_delta(delta)
    check_cost("noise_multiplier", noise_multiplier)
    require(
        is_whole(source_size) and source_size >= 1,
        "source_size",
        source_size,
        "an integer >= 1",
        "count the records drawn from",
    )
    if noise_multiplier == 0:
        return math.inf
    unsampled = gaussian_epsilon(math.sqrt(rounds) / noise_multiplier, delta)
    if source_size == 1:
        return unsampled
    orders = (*range(2, 64), *(int(order) for order in np.geomspace(64, 1024, 33)))
    per_round = drawn_one_renyi(source_size, noise_multiplier, orders)
    return min(
        unsampled,
        *(
            renyi_to_epsilon(float(rounds * value), float(order), delta)
            for order, value in zip(orders, per_round, strict=True)
        ),
    )
