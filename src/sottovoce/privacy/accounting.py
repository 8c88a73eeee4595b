"""What events cost: exact Gaussian composition, privacy loss distributions, Rényi divergences.

The only importer of dp_accounting, because its accountants disagree on conventions (``GaussianDpEvent(1)``
under ``REPLACE_ONE``: one of them doubles the sensitivity by itself, the other does not).

Every figure is an upper bound of the cost, up to the last digits of floating point. Statements and proofs:
``proofs/accounting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, logsumexp, ndtri

from sottovoce.arguments import is_number
from sottovoce.privacy.events import (
    Event,
    Gaussian,
    PoissonGaussian,
    Relation,
    Repeated,
    Selection,
    Unbounded,
    check_cost,
    check_delta,
    check_order,
    check_relation,
    distance,
    either,
    require,
)

# The privacy loss distribution is composed by FFT, whose rounding error is absolute: below 1e-14 + 1e-16 per
# round where measured against the exact law of Gaussians. Five times that is taken off delta first.
_FFT_ERROR_FIXED = 5e-14
_FFT_ERROR_PER_ROUND = 5e-16
_FFT_ROUNDS = 10**6
_FFT_BUCKETS = 2**20
_FFT_LARGEST_STEP = 1e-2

_SMALL_MU, LARGE_MU = 1e-3, 1e4

# Orders tried inside one plan, whose events are fixed before any output is seen.
_ORDERS = 1.0 + np.geomspace(1e-2, 1e6, 241)
_QUADRATURE_POINTS = 2**18


def gaussian_log_delta(mu: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """log[ Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2) ], elementwise for mu > 0.

    With t = e/mu and the Mills ratio m(t) = Phi(-t)/phi(t) the difference is phi(t - mu/2) times
    m(t - mu/2) - m(t + mu/2), which cancels for small mu; there mu (1 - t m(t)) exp(mu^2/8) bounds it from
    above. For large mu the second term has no digits left and is dropped.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        standardised = epsilon / mu
        above = log_ndtr(mu / 2 - standardised)
        ratio = epsilon + log_ndtr(-mu / 2 - standardised) - above
        large = np.where(above == -math.inf, above, above + np.log(-np.expm1(np.minimum(ratio, 0.0))))
        slope = 1.0 - standardised * math.sqrt(math.pi / 2) * erfcx(standardised / math.sqrt(2))
        log_density = -((standardised - mu / 2) ** 2) / 2 - math.log(2 * math.pi) / 2
        small = log_density + np.log(mu * np.maximum(slope, 0.0)) + mu**2 / 8
    return np.where(mu < _SMALL_MU, small, np.where(mu > LARGE_MU, above, large))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2).

    Guarantee: exact for releases that are mu-GDP in total (Dong, Roth and Su 2022).
    It is 0 for mu = 0 and 1 for mu = inf.
    """
    check_cost("mu", mu)
    remedy = "ask at a non-negative epsilon"
    require(is_number(epsilon) and epsilon >= 0, "epsilon", epsilon, "a number >= 0", remedy)
    if mu == 0 or epsilon == math.inf:
        return 0.0 if mu < math.inf else 1.0
    if mu > 1e100:
        return 1.0
    return float(np.exp(gaussian_log_delta(np.array([mu]), epsilon)[0]))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon with gaussian_delta(mu, epsilon) = delta, rounded up; 0 for mu = 0, inf for mu = inf."""
    check_cost("mu", mu)
    check_delta(delta)
    if mu == 0:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu) gives the bracket, and the answer where mu is large.
    simple = mu**2 / 2 - mu * float(ndtri(delta)) if mu < 1e150 else math.inf
    if mu > LARGE_MU:
        return max(simple, 0.0)
    return decreasing_root(lambda epsilon: gaussian_delta(mu, epsilon), delta, simple)


def decreasing_root(function: Callable[[float], float], target: float, upper: float) -> float:
    """The smallest x >= 0 with function(x) <= target, rounded up; ``upper`` is known to satisfy it."""
    if function(0.0) <= target:
        return 0.0
    scale = math.log(target)

    def excess(x: float) -> float:
        return math.log(max(function(x), 1e-320)) - scale

    if excess(upper) > 0:  # only by rounding
        upper *= 1 + 1e-6
    root = float(brentq(excess, 0.0, upper, xtol=1e-300, rtol=1e-12, maxiter=500))
    return min(root * (1 + 1e-9), upper)


def renyi_to_epsilon(value: float, order: float, delta: float) -> float:
    """The epsilon of a Rényi divergence: value + log(1 - 1/order) - log(delta order)/(order - 1), at least 0.

    Guarantee: a Rényi divergence of at most ``value`` at one order fixed in advance, in both directions,
    implies (epsilon, delta)-DP (Canonne, Kamath and Steinke 2020, Proposition 12). Where the divergence is
    so small that the total variation sqrt(1 - exp(-value)) is within delta, epsilon is 0.
    """
    check_cost("value", value)
    check_order(order)
    check_delta(delta)
    if value == math.inf:
        return math.inf
    if -math.expm1(-value) <= delta**2:
        return 0.0
    return max(0.0, value + renyi_conversion(order, delta))


def renyi_conversion(order: float, delta: float) -> float:
    """log(1 - 1/order) - log(delta order)/(order - 1): what an epsilon at delta is above a Rényi divergence."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


@lru_cache(maxsize=4096)
def _sampled_renyi(rate: float, noise_multiplier: float, order: float, relation: Relation) -> float:
    """Rényi divergence of one Poisson-sampled Gaussian release, by the trapezoid rule on the dominating pair.

    In units of the zero-out sensitivity, with standard deviation noise_multiplier, the pairs are
    zero-out: ((1-q) N(0) + q N(1), N(0)), in both directions;
    replace-one: ((1-q) N(0) + q N(1), (1-q) N(0) + q N(-1)).
    The integrand is analytic in a strip around the real line, so the rule's error falls exponentially with
    the step: here it is below 1e-30 of the integral, as are the tails cut off. 2^-46, relative to the
    exponents, is added for rounding.
    """
    reach = distance(relation) * order + 12 * noise_multiplier + 1
    variance = noise_multiplier**2
    step = min(noise_multiplier / 4, variance / 6, variance / (1.5 * math.sqrt(order)))
    unsampled = order * distance(relation) ** 2 / (2 * variance)
    if 2 * reach > step * _QUADRATURE_POINTS:
        return unsampled  # sampling never costs more; only for multipliers or orders far from any use
    x = np.arange(-reach, reach + step, step)
    stay, move = math.log1p(-rate), math.log(rate)
    density = -(x**2) / (2 * variance) - math.log(noise_multiplier * math.sqrt(2 * math.pi))
    to_right = np.logaddexp(stay, move + (2 * x - 1) / (2 * variance))
    if relation == "zero-out":
        exponents = [order * to_right, (1 - order) * to_right]
    else:
        to_left = np.logaddexp(stay, move - (2 * x + 1) / (2 * variance))
        exponents = [order * to_right + (1 - order) * to_left]
    log_moment = max(float(logsumexp(density + exponent)) for exponent in exponents) + math.log(step)
    rounding = 2.0**-46 * (1 + abs(log_moment))
    return min(unsampled, max(0.0, log_moment + rounding) / (order - 1))


def renyi_of(events: Sequence[Event], order: float, relation: Relation) -> float:
    """The Rényi divergence of the events at one order: order mu^2/2, order rho, a quadrature for samples.

    Guarantee: an upper bound in both directions under ``relation``. Values at one order that was fixed
    before any output was seen add up, also over plans chosen adaptively. Infinite if nothing finite holds.
    """
    check_order(order)
    check_relation(relation)
    total = 0.0
    for event in events:
        match event:
            case Gaussian(mu):
                total += order * mu**2 / 2 if mu < 1e100 else math.inf
            case Selection(rho):
                total += order * rho
            case PoissonGaussian(rate, noise_multiplier, rounds) if rate < 1 and 1e-9 < noise_multiplier < 1e50:
                total += rounds * _sampled_renyi(float(rate), float(noise_multiplier), float(order), relation)
            case PoissonGaussian():
                total += order * _unsampled_mu(event, relation) ** 2 / 2
            case Repeated(mu) if mu >= 1e100:
                total += math.inf
            case Repeated(mu) if mu**2 / 2 >= 1e-200:
                # The best of K runs: k mu^2/2 + log E[K] / (k - 1) + (l - 1) mu^2/2 + L / l, any k >= order, l >= 1.
                # Both are at their best, k = 1 + sqrt(2 log E[K]) / mu and l = sqrt(2 L) / mu, within their limits.
                square, mean, log = mu**2 / 2, math.log(event.mean), event.log_inverse_gamma
                own, other = max(order, 1 + math.sqrt(mean / square)), max(1.0, math.sqrt(log / square))
                total += own * square + mean / (own - 1) + (other - 1) * square + log / other
            case Unbounded():
                total = math.inf
    return total


def _unsampled_mu(event: PoissonGaussian, relation: Relation) -> float:
    """What the releases cost without sampling, which is never less than with it."""
    if event.noise_multiplier < 1e-100:
        return math.inf
    return distance(relation) * math.sqrt(event.rounds) / event.noise_multiplier


def epsilon_of(events: Sequence[Event], delta: float, relation: Relation) -> float:
    """The epsilon of one plan's events at ``delta``, tight.

    Guarantee: the composition is (epsilon, delta)-DP under ``relation`` if the events were fixed in advance
    (or drawn by public coins). Plans chosen after looking at results must NOT be composed here: privacy
    loss distributions do not bound them. Only :func:`renyi_of` at one order does.

    How: plain Gaussians by their exact law; Poisson-sampled ones, alone or with Gaussians, by the privacy
    loss distribution (pessimistic grid); anything with selections or repeated runs, and whatever the FFT cannot resolve
    (delta near its rounding error, more than a million rounds), by the best of a fixed list of orders.
    No events cost 0, an unbounded one costs infinity.
    """
    check_delta(delta)
    if Repeated in map(type, events):
        return _best_order_epsilon(events, delta, relation)
    total = _sum_events(events, relation)
    if total is None:
        return math.inf
    mu, rho, merged = total
    if rho == 0 and not merged:
        return gaussian_epsilon(mu, delta)
    unsampled = math.fsum(_unsampled_mu(event, relation) ** 2 for event in merged)
    ceiling = math.sqrt(mu**2 + unsampled) if rho == 0 else math.inf
    if gaussian_delta(ceiling, 0.0) <= delta:
        return 0.0
    rounds = sum(event.rounds for event in merged)
    rounding = _FFT_ERROR_FIXED + _FFT_ERROR_PER_ROUND * rounds
    step = _loss_step(merged, mu, relation)
    if rho == 0 and rounds <= _FFT_ROUNDS and rounding < delta / 100 and step <= _FFT_LARGEST_STEP:
        return _loss_distribution_epsilon(merged, mu, delta - rounding, relation, step)
    found = _best_order_epsilon([*merged, Gaussian(mu), Selection(rho)], delta, relation)
    return min(gaussian_epsilon(ceiling, delta), found)


def gaussian_mu(events: Sequence[Event], relation: Relation) -> float | None:
    """The mu of all events together where they are plain Gaussians, inf where nothing limits them; else None."""
    if Repeated in map(type, events):
        return None
    total = _sum_events(events, relation)
    if total is None:
        return math.inf
    mu, rho, merged = total
    return mu if rho == 0 and not merged else None


def _sum_events(events: Sequence[Event], relation: Relation) -> tuple[float, float, tuple[PoissonGaussian, ...]] | None:
    """(mu, rho, sampled releases) of events that are not repeated, each kind added up; None if nothing finite holds."""
    check_relation(relation)
    squared_mu, rho, sampled = 0.0, 0.0, dict[tuple[float, float], PoissonGaussian]()
    for event in events:
        if isinstance(event, Unbounded):
            return None
        if isinstance(event, Gaussian):
            squared_mu += event.mu**2 if event.mu < 1e100 else math.inf
        elif isinstance(event, Selection):
            rho += event.rho
        elif isinstance(event, Repeated):
            raise TypeError("repeated runs have no part in a sum of mu squared and rho")
        elif event.rate == 1 or event.noise_multiplier < 1e-9:
            squared_mu += _unsampled_mu(event, relation) ** 2
        else:
            key = (float(event.rate), float(event.noise_multiplier))
            before = sampled[key].rounds if key in sampled else 0
            sampled[key] = PoissonGaussian(*key, before + int(event.rounds))
    if squared_mu == math.inf or rho == math.inf:
        return None
    return math.sqrt(squared_mu), rho, tuple(map(sampled.__getitem__, sorted(sampled)))


def _best_order_epsilon(events: Sequence[Event], delta: float, relation: Relation) -> float:
    def epsilon_at(index: int) -> float:
        order = float(_ORDERS[index])
        return renyi_to_epsilon(renyi_of(events, order, relation), order, delta)

    best, centre, stride = math.inf, 0, 12
    for index in range(0, len(_ORDERS), stride):
        found = epsilon_at(index)
        if found > 3 * best:
            break  # the divergence only grows with the order, and so does the time to compute it
        if found < best:
            best, centre = found, index
    fine = range(max(0, centre - stride), min(len(_ORDERS), centre + stride + 1))
    return min(epsilon_at(index) for index in fine)


@lru_cache(maxsize=1024)
def _loss_distribution_epsilon(
    sampled: tuple[PoissonGaussian, ...], mu: float, delta: float, relation: Relation, step: float
) -> float:
    return float(_loss_distribution(sampled, mu, relation, step).get_epsilon(delta))


@lru_cache(maxsize=4)
def _loss_distribution(sampled: tuple[PoissonGaussian, ...], mu: float, relation: Relation, step: float) -> Any:
    """Compose the pessimistic privacy loss distributions of the sampled releases and of one mu-Gaussian."""
    from dp_accounting import dp_event, privacy_accountant
    from dp_accounting.pld import PLDAccountant

    neighbours = privacy_accountant.NeighboringRelation
    accountant = PLDAccountant(
        either(relation, zero_out=neighbours.REPLACE_SPECIAL, replace_one=neighbours.REPLACE_ONE),
        value_discretization_interval=step,
    )
    for event in sampled:
        once = dp_event.PoissonSampledDpEvent(event.rate, dp_event.GaussianDpEvent(event.noise_multiplier))
        accountant.compose(once, event.rounds)
    if mu > 0:
        # Under REPLACE_ONE this accountant doubles the sensitivity; mu already is that of the relation.
        accountant.compose(dp_event.GaussianDpEvent(distance(relation) / mu))
    return accountant


def _loss_step(sampled: Sequence[PoissonGaussian], mu: float, relation: Relation) -> float:
    """A grid step of a tenth of one release's privacy-loss deviation: epsilon is about 0.1% too large.

    Rounding to the grid adds about step^2/6 to the variance of each release's loss, so the total variance
    grows by 1/600. Any step is sound. The second bound limits the length of the composed distribution; where
    it is the larger one (towards a million rounds) epsilon is a few percent too large.
    """
    variance, spread, releases = mu**2, mu**2 / 2 + 10 * mu, 1
    for event in sampled:
        inverse = min(event.noise_multiplier**-2, 50.0)
        once = event.rate**2 * either(relation, zero_out=math.expm1(inverse), replace_one=4 * math.sinh(inverse))
        variance += event.rounds * min(once, distance(relation) ** 2 * inverse)
        mean_uses = event.rounds * event.rate
        uses = min(event.rounds, mean_uses + 6 * math.sqrt(mean_uses) + 10)
        uses_mu = distance(relation) * math.sqrt(uses) / event.noise_multiplier
        spread += uses_mu**2 / 2 + 10 * uses_mu
        releases += event.rounds
    return max(min(0.1 * math.sqrt(variance / releases), _FFT_LARGEST_STEP), spread / _FFT_BUCKETS)


@lru_cache(maxsize=64)
def drawn_one_renyi(source_size: int, noise_multiplier: float, orders: tuple[int, ...]) -> NDArray[np.float64]:
    """Rényi divergences of one Gaussian release on one record drawn secretly out of ``source_size``, at these orders.

    Guarantee: an upper bound under replace-one (Wang, Balle and Kasiviswanathan 2019); ``noise_multiplier`` is
    sigma / (sensitivity under replace-one).
    """
    from dp_accounting import dp_event, privacy_accountant
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(list(orders), privacy_accountant.NeighboringRelation.REPLACE_ONE)
    once = dp_event.GaussianDpEvent(noise_multiplier)
    accountant.compose(dp_event.SampledWithoutReplacementDpEvent(int(source_size), 1, once))
    # The accountant adds numbers near 1 in floating point: charge its rounding, then compose.
    return np.asarray(accountant.rdp, dtype=np.float64) + 2.0**-50
