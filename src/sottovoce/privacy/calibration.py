"""How much noise a budget needs: the inverse of ``accounting``; and, for published calibrations, a paper's own.

Every figure errs on the safe side: a budget is rounded down, a noise up. The moments accountant says how much noise a
paper would add. `visible_uses_epsilon` and `sampled_one_epsilon` are the cost of releases that no plan of ours makes:
on batches that everybody sees, and on one record drawn secretly in each round. Statements and proofs:
``proofs/accounting.md``, for papers sections 5 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtri

from sottovoce.arguments import is_whole
from sottovoce.privacy import accounting
from sottovoce.privacy.events import (
    Event,
    PoissonGaussian,
    Relation,
    Repeated,
    Selection,
    check_cost,
    check_delta,
    check_epsilon_delta,
    check_order,
    check_relation,
    check_sampling,
    distance,
    either,
    require,
)


@lru_cache(maxsize=1024)
def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu whose releases are (epsilon, delta)-DP, rounded down; inf for epsilon = inf."""
    check_epsilon_delta(epsilon, delta)
    if epsilon == math.inf:
        return math.inf
    quantile = float(ndtri(delta))
    root = math.sqrt(quantile**2 + 2 * epsilon)
    # The mu that solves mu^2/2 - mu quantile = epsilon, written without cancellation.
    simple = 2 * epsilon / (root - quantile) if quantile < 0 else quantile + root
    if simple > accounting.LARGE_MU / 4:
        return simple
    upper = 2 * simple
    while accounting.gaussian_delta(upper, epsilon) <= delta:
        upper *= 2
    scale = math.log(delta)

    def excess(mu: float) -> float:
        return math.log(max(accounting.gaussian_delta(mu, epsilon), 1e-320)) - scale

    root = float(brentq(excess, simple / 2, upper, xtol=1e-300, rtol=1e-12, maxiter=500))
    return root * (1 - 1e-9)


def part_of(epsilon: float, delta: float, share: float) -> float:
    """The epsilon that a share of a budget of Gaussian releases buys: mu^2 is shared out.

    Guarantee: for shares that sum to 1, Gaussian releases within the parts are together within (epsilon, delta).
    """
    require(0 < share <= 1, "share", share, "above 0 and at most 1", "shares of a budget sum to 1")
    if share == 1 or epsilon == math.inf:
        return epsilon
    return accounting.gaussian_epsilon(mu_for(epsilon, delta) * math.sqrt(share), delta)


@lru_cache(maxsize=256)
def rho_for(epsilon: float, delta: float) -> float:
    """The largest zCDP rho that costs at most epsilon at delta, for plans with selections in them."""
    check_epsilon_delta(epsilon, delta)
    if epsilon == math.inf:
        return math.inf
    high = math.log(mu_for(epsilon, delta) ** 2 / 2)  # a Gaussian costs no more than its rho says
    return _largest_cost(Selection, epsilon, delta, high, -math.inf)


@lru_cache(maxsize=256)
def repeated_mu_for(epsilon: float, delta: float, mean: float) -> float:
    """The largest mu of one run such that the best of a secret number of them costs epsilon at delta, rounded down.

    Edges: where even runs that tell nothing would cost more than epsilon, for a delta near 1, it is an error.
    """
    check_epsilon_delta(epsilon, delta)

    high = math.log(mu_for(epsilon, delta))  # one run costs no more than several
    found = _largest_cost(lambda mu: Repeated(mu, mean), epsilon, delta, high, high - 20)
    require(found > 0, "mean", mean, f"smaller for epsilon={epsilon:g}", "take fewer trials")
    return found


def _largest_cost(event: Callable[[float], Event], epsilon: float, delta: float, high: float, lowest: float) -> float:
    """The largest x up to e^high whose event costs epsilon at delta, rounded down; 0 if it is not above e^lowest."""

    def excess(log: float) -> float:
        return accounting.epsilon_of([event(math.exp(log))], delta, "zero-out") - epsilon

    low = high - 1.0
    while excess(low) > 0:
        low -= 1.0
        if low <= lowest:
            return 0.0
    root = float(brentq(excess, low, high, xtol=1e-9)) if excess(high) > 0 else high
    while excess(root) > 0:
        root -= 1e-9
    return math.exp(root)


@lru_cache(maxsize=1024)
def noise_multiplier_for(epsilon: float, delta: float, relation: Relation, rate: float, rounds: int) -> float:
    """The least noise multiplier (sigma / zero-out sensitivity) for Poisson-sampled Gaussian releases.

    Guarantee: epsilon_of([PoissonGaussian(rate, result, rounds)], delta, relation) <= epsilon, with at most
    about 0.02% more noise than that function needs. Exact for rate = 1; 0 (no noise) for epsilon = inf.
    """
    check_epsilon_delta(epsilon, delta)
    check_relation(relation)
    check_sampling(rate, rounds)
    if epsilon == math.inf:
        return 0.0
    used = -math.expm1(rounds * math.log1p(-rate)) if rate < 1 else 1.0
    require(
        delta < used,
        "delta",
        delta,
        f"below {used:.3g}, the probability that a record is used at all",
        "choose a smaller delta: at this one no noise would be called for",
    )
    mu = mu_for(epsilon, delta)
    if rate == 1:
        return distance(relation) * math.sqrt(rounds) / mu * (1 + 1e-12)

    def excess(log_noise: float) -> float:
        found = accounting.epsilon_of([PoissonGaussian(rate, math.exp(log_noise), rounds)], delta, relation)
        return 1.0 if found == math.inf else (found - epsilon) / (found + epsilon)

    # Start from the central limit of the privacy loss: mu^2 = rounds * variance of one release's loss.
    once = mu**2 / (rounds * rate**2)
    inverse = either(relation, zero_out=math.log1p(once), replace_one=math.asinh(once / 4))
    low = high = -math.log(inverse) / 2
    stretch = 0.05
    while excess(high) > 0:
        high += stretch
        stretch *= 2
    stretch = 0.05
    while excess(low) <= 0:
        low -= stretch
        stretch *= 2
    tolerance = 1e-4
    result = float(brentq(excess, low, high, xtol=tolerance, rtol=1e-12)) if low < high else high
    while excess(result) > 0:
        result += tolerance
    return math.exp(result)


def renyi_budget(epsilon: float, delta: float, order: float) -> float:
    """The largest Rényi divergence at ``order`` that :func:`renyi_to_epsilon` turns into at most ``epsilon``.

    Rounded down in the twelfth digit; 0 where the order is too small to certify anything for this budget.
    """
    check_epsilon_delta(epsilon, delta)
    check_order(order)
    if epsilon == math.inf:
        return math.inf
    conversion = accounting.renyi_conversion(order, delta)
    return max(0.0, epsilon - conversion - 1e-12 * (epsilon + abs(conversion)))


@lru_cache(maxsize=1024)
def renyi_order_for(epsilon: float, delta: float) -> float:
    """The order at which a Gaussian may spend most: argmax of renyi_budget(epsilon, delta, order)/order.

    A public function of the budget alone, so it can be fixed when an account is opened. For epsilon = inf, 2.
    """
    check_epsilon_delta(epsilon, delta)
    if epsilon == math.inf:
        return 2.0

    def loss(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return (accounting.renyi_conversion(order, delta) - epsilon) / order

    grid = np.linspace(math.log(1e-6), math.log(1e12), 400)
    best = int(np.argmin([loss(float(point)) for point in grid]))
    around = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
    found = minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-6})
    return 1 + math.exp(float(found.x))


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
    return float(
        min(accounting.renyi_of([event], k + 1.0, "zero-out") - math.log(delta) / k for k in moments if k <= most)
    )


@lru_cache(maxsize=256)
def moments_noise_for(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """The least noise multiplier that the moments accountant certifies for epsilon, to 0.01%.

    Moments up to 32 as published; up to 1024 for an epsilon that these cannot reach.
    """
    check_epsilon_delta(epsilon, delta)
    check_sampling(rate, rounds)
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
        return 2 * rare + float(weights @ np.exp(accounting.gaussian_log_delta(mus, epsilon)))

    return accounting.decreasing_root(delta_at, delta, accounting.gaussian_epsilon(float(mus[-1]), delta - 3 * rare))


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
    unsampled = accounting.gaussian_epsilon(math.sqrt(rounds) / noise_multiplier, delta)
    if source_size == 1:
        return unsampled
    orders = (*range(2, 64), *(int(order) for order in np.geomspace(64, 1024, 33)))
    per_round = accounting.drawn_one_renyi(source_size, noise_multiplier, orders)
    return min(
        unsampled,
        *(
            accounting.renyi_to_epsilon(float(rounds * value), float(order), delta)
            for order, value in zip(orders, per_round, strict=True)
        ),
    )
