"""Samplers: Gaussian and Laplace noise on the integers, exponential selection, Poisson samples of records.

What leaves a party is an integer or an index, so floating point has no low-order bits to leak. The noise
samplers and the Poisson coins are exact: a value computed in floating point is used only where every point
of an interval around it, wider than any error, gives the same integer; the others are settled in 384-bit
arithmetic with 256 fresh bits. What remains is taken from the 1% of delta that a plan sets aside:

* 2^-250 per draw, for the bits that are never drawn;
* (1 + exp(epsilon)) 2^-51 per candidate of a selection, for the Gumbel variables, which stay in float64.

The one assumption is about scipy: ``ndtri`` is within 2^-40 of the normal quantile (a test measures
2^-46 or better). Statements and proofs: ``proofs/noise.md``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from sottovoce.errors import InputError
from sottovoce.privacy.randomness import Randomness, words

MAX_SCALE = 2.0**40

Floats = NDArray[np.float64]

# Bound of |computed - true| for a unit variate from 63 bits: 2^-40 for the quantile function, and as much
# again for the bits not drawn (0.63/k with k >= 2^41), the conversion to float64 and the product by the
# scale.
_UNIT_ERROR = 2.0**-39
_FAR_TAIL = np.uint64(2**41)
_EXTRA_BITS = 256
_LARGEST = 2**62
_CHUNK = 2**15

_exact = mpmath.mp.clone()
_exact.prec = 384
_exact_lock = threading.Lock()


def rounded_gaussian(scale: float | ArrayLike, size: int, randomness: Randomness) -> NDArray[np.int64]:
    """round(scale * Z) for ``size`` independent standard normal Z; ``scale`` is a number or one per entry.

    Guarantee: adding it to an integer x gives round(x + scale * Z), a post-processing of the continuous
    Gaussian mechanism, so the exact Gaussian accounting applies as it stands. Entries of scale 0 are 0;
    scales above 2^40 are refused. Slow (0.1 ms an entry) above a scale of 2^36, where float64 decides
    nothing.
    """
    return _rounded(scale, size, randomness, _gaussian_quantile, _gaussian_tail)


def rounded_laplace(scale: float | ArrayLike, size: int, randomness: Randomness) -> NDArray[np.int64]:
    """round(scale * L) for ``size`` independent L of density exp(-|x|)/2; ``scale`` is a number or one per entry.

    Guarantee: adding it to an integer is a post-processing of the continuous Laplace mechanism. Edges as for
    :func:`rounded_gaussian`.
    """
    return _rounded(scale, size, randomness, _exponential_quantile, _exponential_tail)


def gumbel(size: int, randomness: Randomness) -> Floats:
    """``size`` standard Gumbel variables -log(-log(1 - v)), v = (k + 1/2) 2^-64 from 64-bit words k.

    The small v, which make the large scores, keep their full resolution, and so do the small 1 - v: every
    word gives a finite value, between -3.81 and 45.06.
    """
    drawn = words(randomness, size)
    low = drawn < np.uint64(2**63)
    nearest = np.where(low, drawn, ~drawn)  # the distance to the nearer end, so that no digit is lost
    part = (nearest.astype(np.float64) + 0.5) * 2.0**-64
    return -np.log(np.where(low, -np.log1p(-part), -np.log(part)))


def select(scores: ArrayLike, rate: float, randomness: Randomness) -> int:
    """The exponential mechanism: index i with probability proportional to exp(rate * scores[i]).

    Drawn as argmax(rate * scores + Gumbel), one independent Gumbel variable per candidate.

    Guarantee: if one record moves each score by at most ``change``, one choice costs
    rho = (rate * change)^2 / 2 in zCDP. rate = 0 is a uniform choice, rate = inf the exact (non-private)
    argmax.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"scores of shape {values.shape}: must be a non-empty vector; one score per candidate.")
    if not np.isfinite(values).all():
        raise InputError("scores: must be finite; clip the records that make them first.")
    if not rate >= 0:
        raise InputError(f"rate={rate!r}: must be a number >= 0; use kappa / sensitivity, or inf.")
    if rate == math.inf:
        return int(np.argmax(values))
    return int(np.argmax(rate * values + gumbel(values.size, randomness)))


def poisson_sample(count: int, rate: float, randomness: Randomness) -> NDArray[np.int64]:
    """The sorted indices below ``count`` whose independent Bernoulli(rate) coin came up.

    Drawn by the geometric gaps between them: gap = floor(log(U)/log(1 - rate)), exactly.

    Guarantee: each record is in the sample with probability ``rate`` independently of all others, as Poisson
    amplification requires; the indices are secret, and so is how many there are. rate = 1 gives all of them.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise InputError(f"count={count!r}: must be an integer >= 0; pass the number of records.")
    if not 0 < rate <= 1:
        raise InputError(f"rate={rate!r}: must be in (0, 1]; use 1 for full batches.")
    if rate == 1 or count == 0:
        return np.arange(count, dtype=np.int64)
    # The mean gap; the cap only spares float64 an overflow, the gaps are then settled from the rate itself.
    scale = -1 / math.log1p(-rate) if rate > 1e-300 else 1e300

    def tail(boundary: Any, _scale: float) -> Any:
        return _exact.exp(boundary * _exact.log1p(-_exact.mpf(float(rate))))

    expected = count * rate
    pieces: list[Floats] = []
    last = -1.0
    while last < count - 1:
        drawn = words(randomness, int(expected + 4 * math.sqrt(expected)) + 8)
        gaps = _exact_floor(drawn, scale, 0.0, randomness, _exponential_quantile, tail)
        gaps += 1.0
        gaps[0] += last
        indices = np.cumsum(gaps)  # exact below 2^53; whatever lies beyond is beyond ``count`` too
        pieces.append(indices)
        last = float(indices[-1])
        expected = max(count - last, 0.0) * rate
    together = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return together[: np.searchsorted(together, count)].astype(np.int64)


def _gaussian_quantile(uniform: Floats) -> Floats:
    return -ndtri(uniform / 2)


def _gaussian_tail(boundary: Any, scale: float) -> Any:
    return _exact.erfc(boundary / (_exact.sqrt(2) * scale))


def _exponential_quantile(uniform: Floats) -> Floats:
    return -np.log(uniform)


def _exponential_tail(boundary: Any, scale: float) -> Any:
    return _exact.exp(-boundary / scale)


def _rounded(
    scale: float | ArrayLike,
    size: int,
    randomness: Randomness,
    quantile: Callable[[Floats], Floats],
    tail: Callable[[Any, float], Any],
) -> NDArray[np.int64]:
    scales = _checked_scale(scale, size)
    noise = np.zeros(size, dtype=np.int64)
    if isinstance(scales, float) and scales == 0:
        return noise
    for start in range(0, size, _CHUNK):
        part = slice(start, min(start + _CHUNK, size))
        drawn = words(randomness, part.stop - start)
        here = scales[part] if isinstance(scales, np.ndarray) else scales
        magnitude = _exact_floor(drawn, here, 0.5, randomness, quantile, tail).astype(np.int64)
        noise[part] = np.where(drawn & np.uint64(1), -magnitude, magnitude)
    return noise


def _checked_scale(scale: float | ArrayLike, size: int) -> float | Floats:
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        raise InputError(f"size={size!r}: must be an integer >= 0; pass the number of values to draw.")
    if isinstance(scale, float) and 0.0 <= scale <= MAX_SCALE:
        return scale
    scales = np.asarray(scale, dtype=np.float64)
    if scales.ndim and scales.shape != (size,):
        raise InputError(f"scale of shape {scales.shape}: must be a number or {size} numbers, one per entry.")
    if not ((scales >= 0) & (scales <= MAX_SCALE)).all():
        worst = scales[~((scales >= 0) & (scales <= MAX_SCALE))].flat[0] if scales.ndim else scales
        raise InputError(f"scale={float(worst)!r}: must be between 0 and 2^40 grid steps; use a coarser grid.")
    return scales if scales.ndim else float(scales)


def _exact_floor(
    drawn: NDArray[np.uint64],
    scale: float | Floats,
    offset: float,
    randomness: Randomness,
    quantile: Callable[[Floats], Floats],
    tail: Callable[[Any, float], Any],
) -> Floats:
    """floor(scale * X + offset), X >= 0 with P(scale * X > b) = tail(b, scale), from 63 bits a draw.

    X = quantile(U) decreases in U, and the bits k say that U lies in [k, k + 1) 2^-63. Where the
    floating-point value is nearer to an integer than its error, or k is so small that the interval is wide,
    more bits decide.
    """
    bits = drawn >> np.uint64(1)
    uniform = bits.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-63
    value = quantile(uniform)
    value *= scale
    value += offset
    distance = np.rint(value)
    distance -= value
    doubtful = np.abs(distance, out=distance) <= scale * _UNIT_ERROR + 2.0**-50
    doubtful |= bits < _FAR_TAIL
    result = np.floor(value, out=value)
    for index in doubtful.nonzero()[0]:
        here = float(scale[index]) if isinstance(scale, np.ndarray) else scale
        result[index] = _settled(int(bits[index]), here, offset, randomness, quantile, tail)
    return result


def _settled(
    bits: int,
    scale: float,
    offset: float,
    randomness: Randomness,
    quantile: Callable[[Floats], Floats],
    tail: Callable[[Any, float], Any],
) -> int:
    """The floor of one draw: the largest n with n = 0 or U <= tail(n - offset, scale), U to 319 bits.

    At most 2^62, which no noise reaches and which ends any sample of records.
    """
    if scale == 0:
        return 0
    extra = int.from_bytes(randomness.bytes(_EXTRA_BITS // 8), "little")
    with _exact_lock:
        uniform = _exact.ldexp(_exact.mpf(2 * ((bits << _EXTRA_BITS) + extra) + 1), -64 - _EXTRA_BITS)

        def reached(n: int) -> bool:
            return n <= 0 or bool(uniform <= tail(_exact.mpf(n) - offset, scale))

        low = min(int(quantile(np.array(float(uniform))) * scale + offset), _LARGEST)
        step = 1
        while not reached(low):
            low, step = low - step, 2 * step
        low = max(low, 0)
        high, step = low + 1, 1
        while low < _LARGEST and reached(high):
            low, high, step = high, high + step, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if reached(middle) else (low, middle)
    return low
