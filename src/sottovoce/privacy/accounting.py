"""What releases cost: exact Gaussian composition, privacy loss distributions, Rényi divergences, calibration.

The only importer of dp_accounting, because its accountants disagree on conventions (``GaussianDpEvent(1)``
under ``REPLACE_ONE``: one of them doubles the sensitivity by itself, the other does not). An event here
always states its cost relative to the sensitivity of the relation asked for, except ``PoissonGaussian``,
which serves both relations from the sensitivity of zero-out.

Every figure is an upper bound of the cost (a calibrated noise is an upper bound of the noise needed), up to
the last digits of floating point. Statements and proofs: ``proofs/accounting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx, log_ndtr, logsumexp, ndtri

from sottovoce.errors import InputError

Relation = Literal["zero-out", "replace-one"]
SAMPLER_SHARE = 0.01  # of delta, kept for the samplers' own errors: a budget of delta is computed at 0.99 delta

# The privacy loss distribution is composed by FFT, whose rounding error is absolute: below 1e-14 + 1e-16 per
# round where measured against the exact law of Gaussians. Five times that is taken off delta first.
_FFT_ERROR_FIXED = 5e-14
_FFT_ERROR_PER_ROUND = 5e-16
_FFT_ROUNDS = 10**6
_FFT_BUCKETS = 2**20
_FFT_LARGEST_STEP = 1e-2

_SMALL_MU, _LARGE_MU = 1e-3, 1e4

# Orders tried inside one plan, whose events are fixed before any output is seen.
_ORDERS = 1.0 + np.geomspace(1e-2, 1e6, 241)
_QUADRATURE_POINTS = 2**18


def _require(condition: bool, name: str, value: object, allowed: str, remedy: str) -> None:
    if not condition:
        raise InputError(f"{name}={value!r}: must be {allowed}; {remedy}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _check_cost(name: str, value: float) -> None:
    _require(
        _is_number(value) and value >= 0,
        name,
        value,
        "a number >= 0",
        "pass the cost computed from the noise",
    )


def _check_epsilon(epsilon: float) -> None:
    remedy = "choose a positive privacy budget, or float('inf') for no privacy"
    _require(_is_number(epsilon) and epsilon > 0, "epsilon", epsilon, "a number > 0", remedy)


def _check_delta(delta: float) -> None:
    remedy = "choose a value well below one over the number of records, e.g. 1e-6"
    _require(_is_number(delta) and 0 < delta < 1, "delta", delta, "strictly between 0 and 1", remedy)


def _check_sampling(rate: float, rounds: int) -> None:
    _require(_is_number(rate) and 0 < rate <= 1, "rate", rate, "in (0, 1]", "use 1 for full batches")
    whole = isinstance(rounds, int | np.integer) and not isinstance(rounds, bool)
    _require(whole and rounds >= 1, "rounds", rounds, "an integer >= 1", "count the releases of the plan")


def _check_relation(relation: str) -> None:
    names = get_args(Relation)
    _require(relation in names, "relation", relation, f"one of {names}", "choose the neighbouring relation")


@dataclass(frozen=True)
class Gaussian:
    """Gaussian releases, composed exactly: mu = sqrt(sum_t (sensitivity_t / sigma_t)^2).

    The sensitivities are those of the relation in which the cost is asked; mu = inf means no noise.
    """

    mu: float

    def __post_init__(self) -> None:
        _check_cost("mu", self.mu)


@dataclass(frozen=True)
class PoissonGaussian:
    """``rounds`` Gaussian releases, each on a fresh secret Poisson sample of the records.

    ``noise_multiplier`` = sigma / (sensitivity under zero-out), whichever relation the cost is asked in.
    """

    rate: float
    noise_multiplier: float
    rounds: int

    def __post_init__(self) -> None:
        _check_sampling(self.rate, self.rounds)
        _check_cost("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Selection:
    """Exponential-mechanism choices: rho = sum over choices of (rate * score sensitivity)^2 / 2, in zCDP."""

    rho: float

    def __post_init__(self) -> None:
        _check_cost("rho", self.rho)


@dataclass(frozen=True)
class Unbounded:
    """A release without noise, or one for which nothing finite can be certified: its epsilon is infinite."""

    reason: str


Event = Gaussian | PoissonGaussian | Selection | Unbounded

_KINDS: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "poisson-gaussian": PoissonGaussian,
    "selection": Selection,
    "unbounded": Unbounded,
}


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as a dictionary of plain JSON values; an infinite cost is the string "inf"."""
    kind = next(kind for kind, made in _KINDS.items() if isinstance(event, made))
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in asdict(event).items()}
    return {"kind": kind} | {name: "inf" if value == math.inf else value for name, value in plain.items()}


def event_from_json(data: dict[str, Any]) -> Event:
    """The event written by :func:`event_to_json`; anything else is refused."""
    kind = data.get("kind")
    made = _KINDS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise InputError(f"event kind {kind!r}: must be one of {sorted(_KINDS)}; check where the event came from.")
    fields = {name: value for name, value in data.items() if name != "kind"}
    if made is not Unbounded:
        fields = {name: math.inf if value == "inf" else value for name, value in fields.items()}
    elif not isinstance(fields.get("reason"), str):
        raise InputError("event reason: must be a text; check where the event came from.")
    try:
        return made(**fields)
    except TypeError as error:
        raise InputError(f"event of kind {kind!r}: {error}; check where the event came from.") from error


def _gaussian_log_delta(mu: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
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
    return np.where(mu < _SMALL_MU, small, np.where(mu > _LARGE_MU, above, large))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2).

    Guarantee: exact for releases that are mu-GDP in total (Dong, Roth and Su 2022).
    It is 0 for mu = 0 and 1 for mu = inf.
    """
    _check_cost("mu", mu)
    remedy = "ask at a non-negative epsilon"
    _require(_is_number(epsilon) and epsilon >= 0, "epsilon", epsilon, "a number >= 0", remedy)
    if mu == 0 or epsilon == math.inf:
        return 0.0 if mu < math.inf else 1.0
    if mu > 1e100:
        return 1.0
    return float(np.exp(_gaussian_log_delta(np.array([mu]), epsilon)[0]))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon with gaussian_delta(mu, epsilon) = delta, rounded up; 0 for mu = 0, inf for mu = inf."""
    _check_cost("mu", mu)
    _check_delta(delta)
    if mu == 0:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu) gives the bracket, and the answer where mu is large.
    simple = mu**2 / 2 - mu * float(ndtri(delta)) if mu < 1e150 else math.inf
    if mu > _LARGE_MU:
        return max(simple, 0.0)
    return _decreasing_root(lambda epsilon: gaussian_delta(mu, epsilon), delta, simple)


def _decreasing_root(function: Callable[[float], float], target: float, upper: float) -> float:
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


@lru_cache(maxsize=1024)
def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu whose releases are (epsilon, delta)-DP, rounded down; inf for epsilon = inf."""
    _check_epsilon(epsilon)
    _check_delta(delta)
    if epsilon == math.inf:
        return math.inf
    quantile = float(ndtri(delta))
    root = math.sqrt(quantile**2 + 2 * epsilon)
    # The mu that solves mu^2/2 - mu quantile = epsilon, written without cancellation.
    simple = 2 * epsilon / (root - quantile) if quantile < 0 else quantile + root
    if simple > _LARGE_MU / 4:
        return simple
    upper = 2 * simple
    while gaussian_delta(upper, epsilon) <= delta:
        upper *= 2
    scale = math.log(delta)

    def excess(mu: float) -> float:
        return math.log(max(gaussian_delta(mu, epsilon), 1e-320)) - scale

    root = float(brentq(excess, simple / 2, upper, xtol=1e-300, rtol=1e-12, maxiter=500))
    return root * (1 - 1e-9)


def renyi_to_epsilon(value: float, order: float, delta: float) -> float:
    """The epsilon of a Rényi divergence: value + log(1 - 1/order) - log(delta order)/(order - 1), at least 0.

    Guarantee: a Rényi divergence of at most ``value`` at one order fixed in advance, in both directions,
    implies (epsilon, delta)-DP (Canonne, Kamath and Steinke 2020, Proposition 12). Where the divergence is
    so small that the total variation sqrt(1 - exp(-value)) is within delta, epsilon is 0.
    """
    _check_cost("value", value)
    _check_order(order)
    _check_delta(delta)
    if value == math.inf:
        return math.inf
    if -math.expm1(-value) <= delta**2:
        return 0.0
    return max(0.0, value + _conversion(order, delta))


def _conversion(order: float, delta: float) -> float:
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def _check_order(order: float) -> None:
    allowed = _is_number(order) and 1 < order < math.inf
    _require(allowed, "order", order, "a finite number > 1", "take it from renyi_order_for")


def renyi_budget(epsilon: float, delta: float, order: float) -> float:
    """The largest Rényi divergence at ``order`` that :func:`renyi_to_epsilon` turns into at most ``epsilon``.

    Rounded down in the twelfth digit; 0 where the order is too small to certify anything for this budget.
    """
    _check_epsilon(epsilon)
    _check_delta(delta)
    _check_order(order)
    if epsilon == math.inf:
        return math.inf
    conversion = _conversion(order, delta)
    return max(0.0, epsilon - conversion - 1e-12 * (epsilon + abs(conversion)))


@lru_cache(maxsize=1024)
def renyi_order_for(epsilon: float, delta: float) -> float:
    """The order at which a Gaussian may spend most: argmax of renyi_budget(epsilon, delta, order)/order.

    A public function of the budget alone, so it can be fixed when an account is opened. For epsilon = inf, 2.
    """
    _check_epsilon(epsilon)
    _check_delta(delta)
    if epsilon == math.inf:
        return 2.0

    def loss(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return (_conversion(order, delta) - epsilon) / order

    grid = np.linspace(math.log(1e-6), math.log(1e12), 400)
    best = int(np.argmin([loss(float(point)) for point in grid]))
    around = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
    found = minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-6})
    return 1 + math.exp(float(found.x))


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
    reach = (2 if relation == "replace-one" else 1) * order + 12 * noise_multiplier + 1
    variance = noise_multiplier**2
    step = min(noise_multiplier / 4, variance / 6, variance / (1.5 * math.sqrt(order)))
    unsampled = order * (4 if relation == "replace-one" else 1) / (2 * variance)
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
    _check_order(order)
    _check_relation(relation)
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
            case Unbounded():
                total = math.inf
    return total


def _unsampled_mu(event: PoissonGaussian, relation: Relation) -> float:
    """What the releases cost without sampling, which is never less than with it."""
    if event.noise_multiplier < 1e-100:
        return math.inf
    return (2 if relation == "replace-one" else 1) * math.sqrt(event.rounds) / event.noise_multiplier


def epsilon_of(events: Sequence[Event], delta: float, relation: Relation) -> float:
    """The epsilon of one plan's events at ``delta``, tight.

    Guarantee: the composition is (epsilon, delta)-DP under ``relation`` if the events were fixed in advance
    (or drawn by public coins). Plans chosen after looking at results must NOT be composed here: privacy
    loss distributions do not bound them. Only :func:`renyi_of` at one order does.

    How: plain Gaussians by their exact law; Poisson-sampled ones, alone or with Gaussians, by the privacy
    loss distribution (pessimistic grid); anything with selections, and whatever the FFT cannot resolve
    (delta near its rounding error, more than a million rounds), by the best of a fixed list of orders.
    No events cost 0, an unbounded one costs infinity.
    """
    _check_delta(delta)
    _check_relation(relation)
    if any(isinstance(event, Unbounded) for event in events):
        return math.inf
    squared_mu, squared_ceiling, rho, sampled = 0.0, 0.0, 0.0, dict[tuple[float, float], int]()
    for event in events:
        if isinstance(event, Gaussian):
            squared_mu += event.mu**2 if event.mu < 1e100 else math.inf
        elif isinstance(event, Selection):
            rho += event.rho
        elif isinstance(event, PoissonGaussian):
            squared = _unsampled_mu(event, relation) ** 2
            if event.rate == 1 or event.noise_multiplier < 1e-9:
                squared_mu += squared
            else:
                squared_ceiling += squared
                key = (float(event.rate), float(event.noise_multiplier))
                sampled[key] = sampled.get(key, 0) + int(event.rounds)
    mu = math.sqrt(squared_mu)
    if mu == math.inf or rho == math.inf:
        return math.inf
    merged = tuple(PoissonGaussian(rate, noise, rounds) for (rate, noise), rounds in sorted(sampled.items()))
    if rho == 0 and not merged:
        return gaussian_epsilon(mu, delta)
    ceiling = gaussian_epsilon(math.sqrt(squared_mu + squared_ceiling), delta) if rho == 0 else math.inf
    if ceiling == 0:
        return 0.0
    rounds = sum(event.rounds for event in merged)
    rounding = _FFT_ERROR_FIXED + _FFT_ERROR_PER_ROUND * rounds
    step = _loss_step(merged, mu, relation)
    if rho == 0 and rounds <= _FFT_ROUNDS and rounding < delta / 100 and step <= _FFT_LARGEST_STEP:
        return _loss_distribution_epsilon(merged, mu, delta - rounding, relation, step)
    return min(ceiling, _best_order_epsilon([*merged, Gaussian(mu), Selection(rho)], delta, relation))


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
    """Compose the pessimistic privacy loss distributions of the sampled releases and of one mu-Gaussian."""
    from dp_accounting import dp_event, privacy_accountant
    from dp_accounting.pld import PLDAccountant

    replace = relation == "replace-one"
    neighbours = privacy_accountant.NeighboringRelation
    accountant = PLDAccountant(
        neighbours.REPLACE_ONE if replace else neighbours.REPLACE_SPECIAL,
        value_discretization_interval=step,
    )
    for event in sampled:
        once = dp_event.PoissonSampledDpEvent(event.rate, dp_event.GaussianDpEvent(event.noise_multiplier))
        accountant.compose(once, event.rounds)
    if mu > 0:
        # Under REPLACE_ONE this accountant doubles the sensitivity; mu already is that of the relation.
        accountant.compose(dp_event.GaussianDpEvent((2 if replace else 1) / mu))
    return float(accountant.get_epsilon(delta))


def _loss_step(sampled: Sequence[PoissonGaussian], mu: float, relation: Relation) -> float:
    """A grid step of a tenth of one release's privacy-loss deviation: epsilon is about 0.1% too large.

    Rounding to the grid adds about step^2/6 to the variance of each release's loss, so the total variance
    grows by 1/600. Any step is sound. The second bound limits the length of the composed distribution; where
    it is the larger one (towards a million rounds) epsilon is a few percent too large.
    """
    replace = relation == "replace-one"
    variance, spread, releases = mu**2, mu**2 / 2 + 10 * mu, 1
    for event in sampled:
        inverse = min(event.noise_multiplier**-2, 50.0)
        once = event.rate**2 * (4 * math.sinh(inverse) if replace else math.expm1(inverse))
        variance += event.rounds * min(once, (4 if replace else 1) * inverse)
        mean_uses = event.rounds * event.rate
        uses = min(event.rounds, mean_uses + 6 * math.sqrt(mean_uses) + 10)
        uses_mu = (2 if replace else 1) * math.sqrt(uses) / event.noise_multiplier
        spread += uses_mu**2 / 2 + 10 * uses_mu
        releases += event.rounds
    return max(min(0.1 * math.sqrt(variance / releases), _FFT_LARGEST_STEP), spread / _FFT_BUCKETS)


@lru_cache(maxsize=1024)
def noise_multiplier_for(epsilon: float, delta: float, relation: Relation, rate: float, rounds: int) -> float:
    """The least noise multiplier (sigma / zero-out sensitivity) for Poisson-sampled Gaussian releases.

    Guarantee: epsilon_of([PoissonGaussian(rate, result, rounds)], delta, relation) <= epsilon, with at most
    about 0.02% more noise than that function needs. Exact for rate = 1; 0 (no noise) for epsilon = inf.
    """
    _check_epsilon(epsilon)
    _check_delta(delta)
    _check_relation(relation)
    _check_sampling(rate, rounds)
    if epsilon == math.inf:
        return 0.0
    used = -math.expm1(rounds * math.log1p(-rate)) if rate < 1 else 1.0
    _require(
        delta < used,
        "delta",
        delta,
        f"below {used:.3g}, the probability that a record is used at all",
        "choose a smaller delta: at this one no noise would be called for",
    )
    mu = mu_for(epsilon, delta)
    if rate == 1:
        return (2 if relation == "replace-one" else 1) * math.sqrt(rounds) / mu * (1 + 1e-12)

    def excess(log_noise: float) -> float:
        found = epsilon_of([PoissonGaussian(rate, math.exp(log_noise), rounds)], delta, relation)
        return 1.0 if found == math.inf else (found - epsilon) / (found + epsilon)

    # Start from the central limit of the privacy loss: mu^2 = rounds * variance of one release's loss.
    once = mu**2 / (rounds * rate**2)
    inverse = math.asinh(once / 4) if relation == "replace-one" else math.log1p(once)
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


@lru_cache(maxsize=256)
def rho_for(epsilon: float, delta: float) -> float:
    """The largest zCDP rho that costs at most epsilon at delta, for plans with selections in them."""
    _check_epsilon(epsilon)
    _check_delta(delta)
    if epsilon == math.inf:
        return math.inf

    def excess(log_rho: float) -> float:
        return epsilon_of([Selection(math.exp(log_rho))], delta, "zero-out") - epsilon

    high = math.log(mu_for(epsilon, delta) ** 2 / 2)  # a Gaussian costs no more than its rho says
    low = high - 1.0
    while excess(low) > 0:
        low -= 1.0
    root = float(brentq(excess, low, high, xtol=1e-9)) if excess(high) > 0 else high
    while excess(root) > 0:
        root -= 1e-9
    return math.exp(root)


def moments_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float, *, most: int = 32) -> float:
    """What the moments accountant of Abadi et al. (2016) says of sampled Gaussian rounds, zero-out.

    min over whole moments k <= most of rounds * D_{k+1} + log(1/delta) / k, D the Renyi divergence of one round. For
    published calibrations only: it is valid but loose, and certifies nothing below log(1/delta) / most.
    """
    _check_sampling(rate, rounds)
    _check_delta(delta)
    _check_cost("noise_multiplier", noise_multiplier)
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
    _check_epsilon(epsilon)
    _check_sampling(rate, rounds)
    _check_delta(delta)
    most = 32 if epsilon > -1.2 * math.log(delta) / 32 else 1024
    _require(
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

    _check_cost("mu_once", mu_once)
    _check_sampling(rate, rounds)
    _check_delta(delta)
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
        return 2 * rare + float(weights @ np.exp(_gaussian_log_delta(mus, epsilon)))

    return _decreasing_root(delta_at, delta, gaussian_epsilon(float(mus[-1]), delta - 3 * rare))


def sampled_one_epsilon(source_size: int, noise_multiplier: float, rounds: int, delta: float) -> float:
    """The epsilon of ``rounds`` Gaussian releases, each on one record drawn secretly out of ``source_size``.

    Guarantee: replace-one (and zero-out, whose null row keeps its place), for releases that keep no hidden
    state. ``noise_multiplier`` = sigma / (sensitivity under replace-one). Rényi bound for sampling without
    replacement (Wang, Balle and Kasiviswanathan 2019), best of a fixed list of orders. No noise costs inf.
    """
    _check_sampling(1.0, rounds)
    _check_delta(delta)
    _check_cost("noise_multiplier", noise_multiplier)
    whole = isinstance(source_size, int | np.integer) and not isinstance(source_size, bool)
    _require(
        whole and source_size >= 1,
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
    from dp_accounting import dp_event, privacy_accountant
    from dp_accounting.rdp import RdpAccountant

    orders = [*range(2, 64), *(int(order) for order in np.geomspace(64, 1024, 33))]
    accountant = RdpAccountant(orders, privacy_accountant.NeighboringRelation.REPLACE_ONE)
    once = dp_event.GaussianDpEvent(noise_multiplier)
    accountant.compose(dp_event.SampledWithoutReplacementDpEvent(int(source_size), 1, once))
    # The accountant adds numbers near 1 in floating point: charge its rounding, then compose.
    per_round = np.asarray(accountant.rdp, dtype=np.float64) + 2.0**-50
    return min(
        unsampled,
        *(
            renyi_to_epsilon(float(rounds * value), float(order), delta)
            for order, value in zip(orders, per_round, strict=True)
        ),
    )
