# mypy: allow-untyped-decorators
"""What compiled loops know of losses: a code for each, and slopes, dual steps and z-updates by code.

A loss is a code and one parameter, since a function as an argument would defeat numba's cache. A loss without a code
serves every solver but those whose loops call these functions; they say so by `Algorithm.mismatch`.

What is computed for one record is a function of that record and of public numbers alone, bit for bit, wherever the
record stands: this is compiled without leave to reorder or to fuse operations, so that vectorised and scalar
instructions agree.

numba's cache watches the file of a compiled loop, not those of the functions it calls: after a change here, touch the
files in `data/kernels/` too.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]

SQUARED, HUBER, HINGE, SMOOTHED_HINGE, LOGISTIC, LOGISTIC_EXACT, LOGISTIC_SLOPE, SIGMOID, COUNT, POSITIVE = range(10)
BOX = 1e-4  # the Newton step of the logistic loss keeps its dual variable this far from 0 and 1

_CHUNK = 512  # records that are solved together, so that the loop over them is vectorised
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has 33 bits
_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer and leaves that integer in the last bits


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def clamp(value: float, low: float, high: float) -> float:
    """The value clipped to [low, high]; NaN stays NaN."""
    value = low if value < low else value
    return high if value > high else value


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def logistic_weights(t: float) -> tuple[float, float]:
    """1 / (1 + exp(t)) and 1 / (1 + exp(-t)) to about 1e-15, t first clipped to [-690, 690].

    Without branches, so that loops are vectorised. t = k ln 2 + r, and exp(r) = (A + B) / (A - B) by Pade's formula of
    order 5, whose error is below 1e-15. Of -t both k and r have the other sign, to the last bit.
    """
    t = clamp(t, -690.0, 690.0)
    shifted = t * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    r = (t - k * _LN2_HIGH) - k * _LN2_LOW
    q = r * r
    even = 30240.0 + q * (3360.0 + q * 30.0)
    odd = r * (15120.0 + q * (420.0 + q))
    whole, low, high = np.float64(shifted).view(np.int64), even - odd, even + odd
    power = np.int64((whole + 1023) << 52).view(np.float64)
    inverse = np.int64((1023 - whole) << 52).view(np.float64)
    return low / (low + power * high), high / (high + inverse * low)


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def logistic_weight(t: float) -> float:
    """1 / (1 + exp(t)) likewise."""
    return float(logistic_weights(t)[0])


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def power_of_e(t: float) -> float:
    """exp(t) likewise, t first clipped to [-690, 690]: never 0, never infinite."""
    t = clamp(t, -690.0, 690.0)
    shifted = t * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    r = (t - k * _LN2_HIGH) - k * _LN2_LOW
    q = r * r
    even = 30240.0 + q * (3360.0 + q * 30.0)
    odd = r * (15120.0 + q * (420.0 + q))
    power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    return float(power * ((even + odd) / (even - odd)))


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def fill_powers_of_e(exponents: Array, powers: Array) -> None:
    """Overwrite powers with those of e, the same on every machine."""
    for i in range(len(powers)):
        powers[i] = power_of_e(exponents[i])


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def count_slope(score: float, count: float, exposure: float, phi: float) -> float:
    """(E e^s - y) / (1 + sqrt(phi e^s))."""
    rate = power_of_e(score)
    return (exposure * rate - count) / (1.0 + math.sqrt(phi * rate))


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def fill_count_slopes(phi: float, scores: Array, counts: Array, exposures: Array, slopes: Array) -> None:
    """Overwrite slopes with those of counts made in these exposures."""
    for i in range(len(slopes)):
        slopes[i] = count_slope(scores[i], counts[i], exposures[i], phi)


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def fill_positive_slopes(scores: Array, amounts: Array, slopes: Array) -> None:
    """Overwrite slopes with 1 - y e^-s."""
    for i in range(len(slopes)):
        slopes[i] = 1.0 - amounts[i] * power_of_e(-scores[i])


@njit(cache=True, fastmath=False, error_model="numpy")
def fill_slopes_from(
    code: int, parameter: float, scores: Array, labels: Array, start: int, count: int, slopes: Array
) -> None:
    """Overwrite slopes with l'(score, label) of records start, ..., start + count - 1; NaN for another loss."""
    u, y = scores[start : start + count], labels[start : start + count]
    if code == SQUARED:
        for i in range(count):
            slopes[i] = u[i] - y[i]
    elif code == HUBER:
        for i in range(count):
            slopes[i] = clamp(u[i] - y[i], -parameter, parameter)
    elif code == SMOOTHED_HINGE:
        steep = 1.0 / parameter
        for i in range(count):
            slopes[i] = y[i] * clamp((y[i] * u[i] - 1.0) * steep, -1.0, 0.0)
    elif code == LOGISTIC:
        for i in range(count):
            slopes[i] = -y[i] * logistic_weight(y[i] * u[i])
    else:
        slopes[:] = math.nan


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _clip_within(value: float, bound: float) -> float:
    """The value clipped to [-bound, bound]; NaN becomes the bound."""
    value = value if value < bound else bound
    return value if value > -bound else -bound


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _fill_terms(code: int, parameter: float, scores: Array, labels: Array, sign: float, found: Array) -> None:
    """Overwrite `found` with l'(score, sign * label), of every loss that has a slope code."""
    if code == SQUARED:
        for i in range(len(found)):
            found[i] = scores[i] - sign * labels[i]
    elif code == HUBER:
        for i in range(len(found)):
            found[i] = clamp(scores[i] - sign * labels[i], -parameter, parameter)
    elif code == HINGE:
        for i in range(len(found)):
            y = sign * labels[i]
            found[i] = y * np.floor(clamp(y * scores[i] - 1.0, -1.0, 0.0))
    elif code == SMOOTHED_HINGE:
        for i in range(len(found)):
            y = sign * labels[i]
            found[i] = y * clamp((y * scores[i] - 1.0) / parameter, -1.0, 0.0)
    elif code == LOGISTIC:
        for i in range(len(found)):
            y = sign * labels[i]
            found[i] = -y * logistic_weight(y * scores[i])
    elif code == SIGMOID:
        for i in range(len(found)):
            weight = logistic_weight(abs(labels[i] * scores[i]))
            found[i] = -sign * labels[i] * weight * (1.0 - weight)
    elif code == COUNT:
        for i in range(len(found)):
            found[i] = count_slope(scores[i], labels[i], 1.0, parameter)
    elif code == POSITIVE:
        fill_positive_slopes(scores, labels, found)
    else:
        found[:] = math.nan


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def fill_terms(
    code: int, numbers: Array, scores: Array, labels: Array, shares: Array, spare: Array, found: Array
) -> None:
    """Overwrite `found` with what a record's row is multiplied by in a sum: its slope, cut, and on the grid.

    `numbers` are public: the loss's parameter, the weights of the labels -1 and +1, the unit of slopes (0: their own;
    below 0: its size, and slopes at both labels are scaled alike so that neither is above 1), the bound, 1 / the grid,
    and the offset of all scores. `shares`, if there are any, multiply what was cut. `spare` is overwritten.

    Every operation is one of IEEE's +, -, *, /, a root or a comparison, in this order, none fused: so a term is the
    same bit for bit on every machine, vectorised or not. Guarantee: |term| <= bound * share; a NaN counts as the bound.
    """
    parameter, low, high, unit = numbers[0], numbers[1], numbers[2], numbers[3]
    bound, scale, offset = numbers[4], numbers[5], numbers[6]
    if offset != 0.0:
        for i in range(len(found)):
            scores[i] = scores[i] + offset
    both = code == LOGISTIC and unit < 0.0
    if both:
        for i in range(len(found)):
            own, other = logistic_weights(labels[i] * scores[i])
            found[i], spare[i] = -labels[i] * own, labels[i] * other
    for label in range(0 if both else 2 if unit < 0.0 else 1):  # one call in the code, which is then compiled once
        _fill_terms(code, parameter, scores, labels, 1.0 - 2.0 * label, spare if label == 1 else found)
    if low != 1.0 or high != 1.0:
        for i in range(len(found)):
            found[i] = found[i] * (high if labels[i] > 0.0 else low)
    if unit > 0.0:
        for i in range(len(found)):
            found[i] = found[i] / unit
    elif unit < 0.0:
        for i in range(len(found)):
            other, own = abs(spare[i] * (low if labels[i] > 0.0 else high)), abs(found[i])
            largest = own if own > other else other
            found[i] = found[i] / (largest if largest > -unit else -unit)
    back = 1.0 / scale
    if len(shares) == 0:
        for i in range(len(found)):
            found[i] = np.trunc(_clip_within(found[i], bound) * scale) * back
    else:
        for i in range(len(found)):
            found[i] = np.trunc(_clip_within(found[i], bound) * shares[i] * scale) * back


@njit(cache=True, fastmath=False, error_model="numpy")
def dual_step(code: int, a: float, y: float, m: float, s: float, parameter: float) -> float:
    """The step z from the stored dual a that minimises l*(-a - z) + m z + s z^2 / 2 (LOGISTIC: one Newton step).

    LOGISTIC_SLOPE goes from a toward -l'(m), by 1 / (1 + s / 4) of the way: it never lowers the dual objective.
    Parameter: the threshold of the Huber loss, the smoothing of the smoothed hinge.
    """
    if code == SQUARED:
        return (y - a - m) / (1.0 + s)
    if code == HUBER:
        return clamp(a + (y - a - m) / (1.0 + s), -parameter, parameter) - a
    b, m = y * a, y * m
    if code == LOGISTIC:
        b = clamp(b, BOX, 1.0 - BOX)
        slope = math.log(b / (1.0 - b)) + m
        return y * clamp(b - slope / (1.0 / (b * (1.0 - b)) + s), BOX, 1.0 - BOX) - a
    if code == LOGISTIC_SLOPE:
        return y * (logistic_weight(m) - b) / (1.0 + 0.25 * s)
    if code == LOGISTIC_EXACT:
        return y * _logistic_dual(s * b - m, s) - a
    g = 0.0 if code == HINGE else parameter
    return y * clamp(b + (1.0 - m - g * b) / max(g + s, 1e-200), 0.0, 1.0) - a


@njit(cache=True, fastmath=False, error_model="numpy")
def _logistic_dual(target: float, s: float) -> float:
    """sigma(t), where t + s sigma(t) = target. Convex below t = 0, concave above: Newton from 0 never overshoots."""
    t, b = 0.0, 0.5
    for _ in range(50):
        step = (target - t - s * b) / (1.0 + s * b * (1.0 - b))
        t += step
        e = math.exp(-abs(t))
        b = 1.0 / (1.0 + e) if t >= 0.0 else e / (1.0 + e)
        if not abs(step) > 1e-14 * (1.0 + abs(t)):
            break
    return b


@njit(cache=True, fastmath=False, error_model="numpy")
def nearest_logistic(points: Array, labels: Array, rho: float, start: Array) -> Array:
    """The root s of f(s) = s - sigma(-s) / rho - y t for each point t and label y, as y s, from y s = start on.

    It lies in [y t, y t + 1 / rho], on the side of 0 that f(0) tells. f is convex below 0 and concave above: Newton's
    method goes from the side of 0 to the root without passing it, and from the other side passes it once. |f''| <= f',
    so after a step below 1e-8 the error is below its square. A record ends with such a step of its own, whatever the
    others in its chunk need: to the last bit its root is a function of its own numbers alone.
    """
    found = np.empty(len(points))
    low, high, margin = np.empty(_CHUNK), np.empty(_CHUNK), np.empty(_CHUNK)
    inverse = 1.0 / rho
    for first in range(0, len(points), _CHUNK):
        t, y = points[first : first + _CHUNK], labels[first : first + _CHUNK]
        s, z = found[first : first + _CHUNK], start[first : first + _CHUNK]
        for i in range(len(t)):
            m = y[i] * t[i]
            positive = m > -0.5 * inverse
            margin[i] = m
            low[i] = max(m, 0.0) if positive else m
            high[i] = m + inverse if positive else min(m + inverse, 0.0)
            s[i] = clamp(y[i] * z[i], low[i], high[i])
        for _ in range(200):
            moving = 0
            for i in range(len(t)):
                here = s[i]
                q = logistic_weight(here)
                excess = (here - margin[i]) - q * inverse
                fresh = clamp(here - excess / (1.0 + q * (1.0 - q) * inverse), low[i], high[i])
                goes_on = abs(fresh - here) > 1e-8 * (1.0 + abs(here))
                moving += goes_on
                low[i] = low[i] if goes_on else fresh  # one that has ended stays where it is
                high[i] = high[i] if goes_on else fresh
                s[i] = fresh
            if moving == 0:
                break
        for i in range(len(t)):
            s[i] *= y[i]
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def nearest_sigmoid(points: Array, labels: Array, rho: float, start: Array) -> Array:
    """The root s of s - sigma(s) sigma(-s) / rho = y t, likewise; it is unique for rho above the curvature of the loss.

    Newton's method in the bracket [y t, y t + 1 / (4 rho)], which shrinks; it is halved where steps do not.
    """
    found = np.empty(len(points))
    for i in range(len(points)):
        m = labels[i] * points[i]
        low, high = m, m + 0.25 / rho
        s = clamp(labels[i] * start[i], low, high)
        step = older = high - low
        for _ in range(200):
            q = logistic_weight(s)
            slope = q * (1.0 - q)
            excess = (s - m) - slope / rho
            if excess < 0.0:
                low = s
            else:
                high = s
            fresh = s - excess / (1.0 + slope * (1.0 - 2.0 * q) / rho)
            if not low <= fresh <= high or 2.0 * abs(fresh - s) > older:
                fresh = 0.5 * (low + high)
            older, step = step, abs(fresh - s)
            s = fresh
            if step <= 1e-15 * (1.0 + abs(s)):
                break
        found[i] = labels[i] * s
    return found
