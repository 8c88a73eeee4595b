"""Samplers: random bits, Gaussian and Laplace noise on the integers, selections, Poisson samples of records.

What leaves a party is an integer or an index, so floating point has no low-order bits to leak. The noise
samplers and the Poisson coins are exact: a value computed in floating point is used only where every point
of an interval around it, wider than any error, gives the same integer; the others are settled in 384-bit
arithmetic with 256 fresh bits. What remains is taken from the 1% of delta that a plan sets aside:

* 2^-250 per draw, for the bits that are never drawn;
* (1 + exp(epsilon)) ``selection_error`` per exponential selection, for the 64 bits of each of its uniforms.

The one assumption is about scipy: ``ndtri`` is within 2^-40 of the normal quantile (a test measures
2^-46 or better). Statements and proofs: ``proofs/noise.md``.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import mpmath
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from sottovoce.arguments import is_whole
from sottovoce.data.kernels import selection as kernels
from sottovoce.errors import InputError

MAX_SCALE = 2.0**40
MAX_WIDE = 2.0**52
LEAST_SHARE = 8.0  # grid steps from which a sum of rounded Gaussians is a rounded Gaussian

Floats = NDArray[np.float64]

# Bound of |computed - true| for a unit variate from 63 bits: 2^-40 for the quantile function, and as much
# again for the bits not drawn (0.63/k with k >= 2^41), the conversion to float64 and the product by the
# scale.
_UNIT_ERROR = 2.0**-39
_FAR_TAIL = np.uint64(2**41)
_EXTRA_BITS = 256
_LARGEST = 2**62
_CHUNK = 2**15

_LATTICE, _LEVEL, _LAST = 2**14, 2.0**18, 2.0**24  # of wide noise: step and scale of a level, and the last one's most

FEW = 2048  # candidates of a selection by Gumbel variables; more are drawn by their distribution function
GUMBEL_ERROR = 2.0**-63  # of each candidate's probability: 64 bits are drawn
_TABLE_ERROR = 2.0**-60  # of each entry of a table of weights: they are made integers of sum 2^61 or more
_DROPPED = 2.0**-92  # above exp(-64), the weights that are taken for 0
_TINY_RATE = 2.0**-1010  # below it a difference of two scores may overflow where rate times it would not

_exact = mpmath.mp.clone()
_exact.prec = 384
_exact_lock = threading.Lock()

_EXPANDED = 4096  # bytes; below it asking the operating system is as fast


@runtime_checkable
class Randomness(Protocol):
    """A stream of independent uniform bits; ``secure`` says whether an adversary could predict them."""

    @property
    def secure(self) -> bool:
        """True only for a cryptographic source nobody has seeded."""
        ...

    def bytes(self, count: int) -> bytes:
        """The next ``count`` bytes of the stream."""
        ...


class SystemRandomness:
    """The operating system's cryptographic generator (``os.urandom``): the only source that protects anybody.

    Long requests are expanded: AES-256 in counter mode under a key that the operating system draws for this request
    alone. It is six times as fast, nothing is kept between requests (so a forked process repeats nothing), and telling
    the bytes from uniform ones means breaking AES-256.
    """

    secure = True

    def bytes(self, count: int) -> bytes:
        """The next ``count`` bytes; safe to call from several threads."""
        if count < _EXPANDED:
            return os.urandom(count)
        stream = Cipher(AES256(os.urandom(32)), CTR(bytes(16))).encryptor()
        return stream.update(bytes(count))


class SeededRandomness:
    """A reproducible stream, for tests and demonstrations only.

    Streams with different labels (or seeds) are independent; equal ones are equal. Whoever knows the seed can
    remove the noise, so there is no guarantee: ``secure`` is False. Can be pickled, and goes on where it was.
    """

    secure = False

    def __init__(self, seed: int, *labels: str) -> None:
        if not (is_whole(seed) and seed >= 0):
            raise InputError(f"seed={seed!r}: must be an integer >= 0; use SystemRandomness for real data.")
        digest = hashlib.sha256(str(int(seed)).encode())
        for label in labels:
            digest.update(hashlib.sha256(label.encode()).digest())
        self._generator = np.random.Generator(np.random.PCG64DXSM(int.from_bytes(digest.digest(), "big")))

    def bytes(self, count: int) -> bytes:
        return self._generator.bytes(count)


def words(randomness: Randomness, count: int) -> NDArray[np.uint64]:
    """``count`` independent uniform 64-bit words (read-only, the same on every platform)."""
    return np.frombuffer(randomness.bytes(8 * count), dtype="<u8").astype(np.uint64, copy=False)


def rounded_gaussian(scale: float | ArrayLike, size: int, randomness: Randomness) -> NDArray[np.int64]:
    """round(scale * Z) for ``size`` independent standard normal Z; ``scale`` is a number or one per entry.

    Guarantee: adding it to an integer x gives round(x + scale * Z), a post-processing of the continuous
    Gaussian mechanism, so the exact Gaussian accounting applies as it stands. Entries of scale 0 are 0;
    scales above 2^40 are refused. Slow (0.1 ms an entry) above a scale of 2^36, where float64 decides
    nothing.
    """
    return _draw_rounded(scale, size, randomness, _GAUSSIAN)


def wide_gaussian(scale: float | ArrayLike, size: int, randomness: Randomness) -> NDArray[np.int64]:
    """Gaussian noise of up to 2^52 grid steps, no less than ``scale``, on every integer: its low bits are noise too.

    Levels on the lattices 1, 2^14, 2^28, ...: each but the last is a rounded Gaussian of 2^18 steps of its lattice, the
    last has what is left of the variance.

    Guarantee: adding it to an integer x, alone or with further such noises, is within 2^-390 in total variation of a
    post-processing of the Gaussian mechanism with all their variance (``proofs/noise.md``, section 8). Scales below 8
    are raised to 8.
    """
    wanted = np.maximum(_check_scale(scale, size, MAX_WIDE) * (1 + 2.0**-40), LEAST_SHARE)
    left, noise, lattice = np.broadcast_to(wanted, size).copy(), np.zeros(size, dtype=np.int64), 1
    rest = np.arange(size)
    while rest.size:
        steps = left / lattice
        last = steps <= _LAST
        noise[rest] += lattice * rounded_gaussian(np.where(last, steps, _LEVEL), rest.size, randomness)
        part = _LEVEL * lattice
        left, rest = np.sqrt((left[~last] - part) * (left[~last] + part)), rest[~last]
        lattice *= _LATTICE
    return noise


def rounded_laplace(scale: float | ArrayLike, size: int, randomness: Randomness) -> NDArray[np.int64]:
    """round(scale * L) for ``size`` independent L of density exp(-|x|)/2; ``scale`` is a number or one per entry.

    Guarantee: adding it to an integer is a post-processing of the continuous Laplace mechanism. Edges as for
    :func:`rounded_gaussian`.
    """
    return _draw_rounded(scale, size, randomness, _EXPONENTIAL)


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

    Up to FEW candidates are drawn as argmax(rate * scores + Gumbel), one independent Gumbel variable per candidate;
    more by the sums of their weights: a block of about sqrt(size) candidates, then one in it.

    Guarantee: if one record moves each score by at most ``change``, one choice costs
    rho = (rate * change)^2 / 2 in zCDP; :func:`selection_error` is on top. rate = 0 is a uniform choice, rate = inf
    the exact (non-private) argmax.
    """
    values = _checked_scores("scores", scores, rate)
    if values.size == 0:
        raise InputError("scores of shape (0,): must be a non-empty vector; one score per candidate.")
    if rate == math.inf:
        return int(np.argmax(values))
    if rate < _TINY_RATE:
        values, rate = rate * values, 1.0
    if values.size <= FEW:
        return _noisiest(values, rate, randomness)
    top, length = float(values.max()), math.isqrt(values.size - 1) + 1
    first, second = words(randomness, 2)
    sums = np.empty(-(-values.size // length))
    kernels.fill_block_sums(values, rate, top, length, sums)
    start = _draw_place(sums, first) * length
    weights = np.empty(min(length, values.size - start))
    kernels.fill_weights(values[start : start + length], rate, top, weights)
    return start + _draw_place(weights, second)


def select_signed(values: ArrayLike, rate: float, randomness: Randomness, stay: float | None = None) -> int:
    """The exponential mechanism among the values with either sign, and staying: j + 1, -(j + 1), or 0 to stay.

    Candidate (j, +) has the score values[j], candidate (j, -) the score -values[j]; with ``stay`` there is one more,
    of that score. The law of :func:`select` on all of them, at one exponential per value.

    Guarantee: as for :func:`select`, with 2 size (+ 1) candidates, if one record moves each value and ``stay`` by at
    most ``change``. rate = inf is :func:`largest_signed`.
    """
    numbers = _checked_scores("values", values, rate)
    count = 2 * numbers.size + (stay is not None)
    if count == 0:
        raise InputError("values of shape (0,): must be a non-empty vector, unless there is a score of staying.")
    if stay is not None and not math.isfinite(stay):
        raise InputError("stay: must be finite; clip the records that make it first.")
    if rate == math.inf:
        return largest_signed(numbers, stay)
    if rate < _TINY_RATE:
        numbers, stay, rate = rate * numbers, None if stay is None else rate * stay, 1.0
    if count <= FEW:
        scores = np.concatenate([numbers, -numbers, [] if stay is None else [stay]])
        return _code(_noisiest(scores, rate, randomness), numbers.size)
    top = max(float(numbers.max()), -float(numbers.min()), -math.inf if stay is None else stay)
    # The weights of (j, +) and (j, -) have this product; where it is tiny, the smaller ones all are below exp(-64).
    both = kernels.exponential(-2 * rate * top) if rate * top <= -kernels.LEAST else 0.0
    first, second = words(randomness, 2)
    length = (math.isqrt(count - 1) + 2) // 2
    blocks = -(-numbers.size // length)
    sums = np.empty(blocks + (stay is not None))
    kernels.fill_signed_block_sums(numbers, rate, top, both, length, sums)
    if stay is not None:
        kernels.fill_weights(np.array([stay]), rate, top, sums[blocks:])
    block = _draw_place(sums, first)
    if block == blocks:
        return 0
    part = numbers[block * length : (block + 1) * length]
    weights = np.empty((2, part.size))
    kernels.fill_signed(part, rate, top, both, weights[0], weights[1])
    which, j = divmod(_draw_place(weights.ravel(), second), part.size)
    positive = (part[j] >= 0) == (which == 0)
    place = block * length + j + 1
    return place if positive else -place


def selection_error(candidates: int) -> float:
    """How far one selection among so many candidates is from the exponential mechanism, in total variation.

    Guarantee: all choices of a run add (1 + exp(epsilon)) times the sum of their errors to delta. What float64 does
    to the weights is no part of it: it multiplies probabilities by at most exp(2^-42), as if one record moved the
    scores by 2^-41 / rate more, for which their stated sensitivity has to have room.
    """
    if candidates <= FEW:
        return candidates * GUMBEL_ERROR
    # Never less than for fewer candidates: a caller may know only how many there are at most.
    return max((2 * math.sqrt(candidates) + 4) * _TABLE_ERROR + candidates * _DROPPED, FEW * GUMBEL_ERROR)


def largest_signed(values: ArrayLike, stay: float | None = None) -> int:
    """The code of the largest |value| with its sign, without noise; 0 where only ``stay`` is larger than it."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size == 0:
        return 0
    j = int(np.argmax(np.abs(numbers)))
    if stay is not None and stay > abs(numbers[j]):
        return 0
    return -(j + 1) if numbers[j] < 0 else j + 1


def noisy_max(values: ArrayLike, scale: float, randomness: Randomness) -> int:
    """Report noisy max: the index of the largest value + round(scale * L), the first of equal ones; L is Laplace.

    ``values`` are whole numbers, in units of a grid, and so is the scale: every candidate has its own draw of
    :func:`rounded_laplace`.

    Guarantee: if one record moves each value by at most ``change`` steps of the grid, one choice is
    (2 change / scale)-DP, so rho = (2 change / scale)^2 / 2 in zCDP. scale = 0 is the exact argmax, without privacy.
    """
    grid = np.asarray(values)
    if grid.ndim != 1 or grid.size == 0:
        raise InputError(f"values of shape {grid.shape}: must be a non-empty vector; one value per candidate.")
    if not np.issubdtype(grid.dtype, np.signedinteger):
        raise InputError(f"values of type {grid.dtype}: must be integers; divide by a grid step and round first.")
    if not ((grid < _LARGEST) & (grid > -_LARGEST)).all():
        raise InputError("values: must be below 2^62 steps of the grid; use a coarser one.")
    return int(np.argmax(rounded_laplace(float(scale), grid.size, randomness) + grid))


def noisy_max_signed(
    values: ArrayLike, scale: float, step: float, randomness: Randomness, stay: float | None = None
) -> int:
    """Report noisy max among the values with either sign, and staying: j + 1, -(j + 1), or 0 to stay.

    The values are rounded to the grid ``step``, and each of the 2 size (+ 1) candidates has its own Laplace noise of
    that scale, rounded to the grid too. Equal ones: (1, +), (2, +), ..., then (1, -), (2, -), ..., then staying.

    Guarantee: if one record moves each value and ``stay`` by at most ``change``, one choice is
    (2 (change + step) / scale)-DP, so rho = (2 (change + step) / scale)^2 / 2 in zCDP.
    """
    if not 0 < step < math.inf:
        raise InputError(f"step={step!r}: must be a positive number; use a power of two.")
    numbers = np.asarray(values, dtype=np.float64)
    scores = numbers if stay is None else np.append(numbers, stay)
    if scores.ndim != 1 or scores.size == 0:
        raise InputError(f"values of shape {scores.shape}: must be a non-empty vector; one value per pair of signs.")
    if not (np.abs(scores) < _LARGEST * step).all():
        raise InputError("values: must be finite and below 2^62 steps of the grid; use a coarser one.")
    grid = np.rint(scores / step).astype(np.int64)
    plain = grid[: numbers.size]
    place = noisy_max(np.concatenate([plain, -plain, grid[numbers.size :]]), scale / step, randomness)
    return _code(place, numbers.size)


def _checked_scores(name: str, scores: ArrayLike, rate: float) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"{name} of shape {values.shape}: must be a non-empty vector; one score per candidate.")
    if not np.isfinite(values).all():
        raise InputError(f"{name}: must be finite; clip the records that make them first.")
    if not rate >= 0:
        raise InputError(f"rate={rate!r}: must be a number >= 0; use kappa / sensitivity, or inf.")
    return np.ascontiguousarray(values)


def _noisiest(scores: Floats, rate: float, randomness: Randomness) -> int:
    """argmax(rate * (scores - their largest) + Gumbel)."""
    with np.errstate(over="ignore"):  # whatever is so far below the largest is never chosen
        noisy = scores - scores.max()
        noisy *= rate
    noisy += gumbel(scores.size, randomness)
    return int(np.argmax(noisy))


def _code(place: int, size: int) -> int:
    """The code of a place in the list of all (j, +), all (j, -), and staying."""
    if place < size:
        return place + 1
    return size - place - 1 if place < 2 * size else 0


def _ends(weights: Floats) -> NDArray[np.int64]:
    """Partial sums of the weights as integers, scaled by a power of two so that all together are 2^61 to 2^62."""
    return np.cumsum(np.ldexp(weights, 62 - math.frexp(float(weights.sum()))[1]).astype(np.int64))


def _draw_place(weights: Floats, word: np.uint64) -> int:
    """The index whose share of the sum of the weights contains word 2^-64 of it; one of weight 0 never is."""
    ends = _ends(weights)
    return int(np.searchsorted(ends, (int(word) * int(ends[-1])) >> 64, side="right"))


def poisson_sample(count: int, rate: float, randomness: Randomness) -> NDArray[np.int64]:
    """The sorted indices below ``count`` whose independent Bernoulli(rate) coin came up.

    Drawn by the geometric gaps between them: gap = floor(log(U)/log(1 - rate)), exactly.

    Guarantee: each record is in the sample with probability ``rate`` independently of all others, as Poisson
    amplification requires; the indices are secret, and so is how many there are. rate = 1 gives all of them.
    """
    if not (is_whole(count) and count >= 0):
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
        gaps = _exact_floor(drawn, scale, 0.0, randomness, _EXPONENTIAL._replace(tail=tail))
        gaps += 1.0
        gaps[0] += last
        indices = np.cumsum(gaps)  # exact below 2^53; whatever lies beyond is beyond ``count`` too
        pieces.append(indices)
        last = float(indices[-1])
        expected = max(count - last, 0.0) * rate
    together = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return together[: np.searchsorted(together, count)].astype(np.int64)


def _draw_rounded(scale: float | ArrayLike, size: int, randomness: Randomness, law: Law) -> NDArray[np.int64]:
    scales = _check_scale(scale, size, MAX_SCALE)
    noise = np.zeros(size, dtype=np.int64)
    if isinstance(scales, float) and scales == 0:
        return noise
    for start in range(0, size, _CHUNK):
        part = slice(start, min(start + _CHUNK, size))
        drawn = words(randomness, part.stop - start)
        here = scales[part] if isinstance(scales, np.ndarray) else scales
        magnitude = _exact_floor(drawn, here, 0.5, randomness, law).astype(np.int64)
        noise[part] = np.where(drawn & np.uint64(1), -magnitude, magnitude)
    return noise


def _check_scale(scale: float | ArrayLike, size: int, largest: float) -> float | Floats:
    if not (is_whole(size) and size >= 0):
        raise InputError(f"size={size!r}: must be an integer >= 0; pass the number of values to draw.")
    if isinstance(scale, float) and 0.0 <= scale <= largest:
        return scale
    scales = np.asarray(scale, dtype=np.float64)
    if scales.ndim and scales.shape != (size,):
        raise InputError(f"scale of shape {scales.shape}: must be a number or {size} numbers, one per entry.")
    if not ((scales >= 0) & (scales <= largest)).all():
        worst = scales[~((scales >= 0) & (scales <= largest))].flat[0] if scales.ndim else scales
        raise InputError(
            f"scale={float(worst)!r}: must be between 0 and 2^{math.log2(largest):.0f} grid steps; use a coarser grid."
        )
    return scales if scales.ndim else float(scales)


class Law(NamedTuple):
    """A positive variable X: quantile(U) decreases in U, and tail(b, scale) = P(scale * X > b)."""

    quantile: Callable[[Floats], Floats]
    tail: Callable[[Any, float], Any]


_GAUSSIAN = Law(
    lambda uniform: -ndtri(uniform / 2), lambda boundary, scale: _exact.erfc(boundary / (_exact.sqrt(2) * scale))
)
_EXPONENTIAL = Law(lambda uniform: -np.log(uniform), lambda boundary, scale: _exact.exp(-boundary / scale))


def _exact_floor(
    drawn: NDArray[np.uint64], scale: float | Floats, offset: float, randomness: Randomness, law: Law
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
    value = law.quantile(uniform)
    value *= scale
    value += offset
    distance = np.rint(value)
    distance -= value
    doubtful = np.abs(distance, out=distance) <= scale * _UNIT_ERROR + 2.0**-50
    doubtful |= bits < _FAR_TAIL
    result = np.floor(value, out=value)
    for index in doubtful.nonzero()[0]:
        here = float(scale[index]) if isinstance(scale, np.ndarray) else scale
        result[index] = _settle(int(bits[index]), here, offset, randomness, law)
    return result


def _settle(bits: int, scale: float, offset: float, randomness: Randomness, law: Law) -> int:
    """The floor of one draw: the largest n with n = 0 or U <= tail(n - offset, scale), U to 319 bits.

    At most 2^62, which no noise reaches and which ends any sample of records.
    """
    if scale == 0:
        return 0
    extra = int.from_bytes(randomness.bytes(_EXTRA_BITS // 8), "little")
    with _exact_lock:
        uniform = _exact.ldexp(_exact.mpf(2 * ((bits << _EXTRA_BITS) + extra) + 1), -64 - _EXTRA_BITS)

        def reached(n: int) -> bool:
            return n <= 0 or bool(uniform <= law.tail(_exact.mpf(n) - offset, scale))

        low = min(int(law.quantile(np.array(float(uniform))) * scale + offset), _LARGEST)
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
