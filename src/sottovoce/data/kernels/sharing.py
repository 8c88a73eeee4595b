# mypy: allow-untyped-decorators
"""Loops of ADMM sharing: a scalar equation for each record, and coordinate descent on a Gram matrix."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels.coordinates import _clamp, _logistic_weight

Array = NDArray[np.float64]

_CHUNK = 512  # records that are solved together, so that the loop over them is vectorised


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
            s[i] = _clamp(y[i] * z[i], low[i], high[i])
        for _ in range(200):
            moving = 0
            for i in range(len(t)):
                here = s[i]
                q = _logistic_weight(here)
                excess = (here - margin[i]) - q * inverse
                fresh = _clamp(here - excess / (1.0 + q * (1.0 - q) * inverse), low[i], high[i])
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
        s = _clamp(labels[i] * start[i], low, high)
        step = older = high - low
        for _ in range(200):
            q = _logistic_weight(s)
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


@njit(cache=True, fastmath=False, error_model="numpy")
def descend(
    square: Array,
    factor: float,
    gradient: Array,
    weights: Array,
    absolute: Array,
    squared: Array,
    low: Array,
    high: Array,
    precision: float,
    sweeps: int,
) -> Array:
    """argmin_u sum_j (absolute_j |u_j| + squared_j u_j^2 / 2) + g'(u - x) + factor/2 (u - x)'G(u - x) on [low, high].

    Coordinate descent from x = weights on. It ends with a sweep whose largest step, in units of the curvature, is at
    most `precision` of the largest of the first. A coordinate without curvature stays, or goes where its penalty pulls.
    """
    found, slope = weights.copy(), gradient.copy()
    first = 0.0
    for sweep in range(sweeps):
        largest = 0.0
        for j in range(len(found)):
            bend = factor * square[j, j]
            total = bend + squared[j]
            here = found[j]
            if total > 0.0:
                aim = bend * here - slope[j]
                aim -= _clamp(aim, -absolute[j], absolute[j])
                there = _clamp(aim / total, low[j], high[j])
            else:
                there = _clamp(0.0 if absolute[j] > 0.0 else here, low[j], high[j])
            step = there - here
            if step != 0.0:
                found[j] = there
                moved = factor * step
                for k in range(len(slope)):
                    slope[k] += moved * square[j, k]
                largest = max(largest, abs(step) * math.sqrt(total))
        if sweep == 0:
            first = largest
        if not largest > precision * first:
            break
    return found
