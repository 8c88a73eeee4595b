"""The trade-off of a view: how often the best possible attacker misses, at every rate of false alarms.

An attacker tests "the record is there" against "it is not". `missed(a)` is the least share of misses of any test that
raises a false alarm with probability a. One epsilon at one delta is a tangent of this curve; the curve is the whole
statement. It holds for both orders of the two neighbours. Statements and proofs: ``proofs/accounting.md``, section 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr, ndtri

from sottovoce.privacy.accounting import epsilon_of, gaussian_mu
from sottovoce.privacy.events import Event
from sottovoce.privacy.relation import Relation

Array = NDArray[np.float64]

_LARGEST = 700.0
_DELTAS = expit(np.linspace(-12.0, 12.0, 97))  # at which a curve's tangents are taken


@dataclass(frozen=True)
class Profile:
    """What a view costs as a whole: its epsilon at every delta, and its trade-off."""

    epsilon: Callable[[float], float]
    missed: Callable[[ArrayLike], Array]

    @classmethod
    def of(cls, epsilon: Callable[[float], float]) -> Profile:
        """The profile of an epsilon that holds at each delta; its curve is the highest of its tangents."""
        return cls(epsilon, lambda false_alarms: missed_by(epsilon, false_alarms))


def profile_of(events: Sequence[Event], relation: Relation) -> Profile:
    """The profile of one plan's events, fixed in advance as for `epsilon_of`; the curve is exact for Gaussians."""
    return _profile(tuple(events), relation)


@lru_cache(maxsize=64)  # several adversaries see the same, and so does the next fit
def _profile(events: tuple[Event, ...], relation: Relation) -> Profile:
    @lru_cache(maxsize=2 * len(_DELTAS))
    def epsilon(delta: float) -> float:
        return epsilon_of(events, delta, relation)

    mu = gaussian_mu(events, relation)
    return Profile.of(epsilon) if mu is None else Profile(epsilon, lambda alarms: gaussian_missed(mu, alarms))


def weakest(profiles: Iterable[Profile]) -> Profile:
    """What holds of each of several views: the largest epsilon, the fewest misses."""
    different = tuple(dict.fromkeys(profiles))
    if len(different) == 1:
        return different[0]
    return Profile(
        lambda delta: max(profile.epsilon(delta) for profile in different),
        lambda alarms: np.min([profile.missed(alarms) for profile in different], axis=0),
    )


def strongest(*profiles: Profile) -> Profile:
    """What several statements about one view say together: the least epsilon, the most misses."""
    different = tuple(dict.fromkeys(profiles))
    if len(different) == 1:
        return different[0]
    return Profile(
        lambda delta: min(profile.epsilon(delta) for profile in different),
        lambda alarms: np.max([profile.missed(alarms) for profile in different], axis=0),
    )


def gaussian_missed(mu: float, false_alarms: ArrayLike) -> Array:
    """f(a) = Phi(Phi^-1(1 - a) - mu): exact for releases that are mu-GDP in total; 0 for mu = inf."""
    alarms = np.asarray(false_alarms, dtype=np.float64)
    return np.zeros_like(alarms) if mu == math.inf else np.asarray(ndtr(ndtri(1 - alarms) - mu))


def missed_by(
    epsilon: Callable[[float], float], false_alarms: ArrayLike, deltas: Iterable[float] = tuple(map(float, _DELTAS))
) -> Array:
    """f(a) >= max over deltas of 1 - delta - e^epsilon a, of e^-epsilon (1 - delta - a), and of 0.

    Guarantee: a lower bound of the misses, for any deltas. With the list here it is below the curve of a Gaussian by
    less than 0.004. An epsilon too large to say anything says nothing.
    """
    alarms = np.asarray(false_alarms, dtype=np.float64)
    said = np.array([(delta, found) for delta in deltas if (found := epsilon(delta)) <= _LARGEST]).reshape(-1, 2)
    rest, factor = 1 - said[:, 0, None], np.exp(said[:, 1, None])
    tangents = np.maximum(rest - factor * alarms.ravel(), (rest - alarms.ravel()) / factor)
    return np.asarray(tangents.max(axis=0, initial=0.0)).reshape(alarms.shape)


def with_errors(missed: Callable[[ArrayLike], Array], false_alarms: ArrayLike, error: float) -> Array:
    """The trade-off of laws that are each within `error`, in total variation, of those that `missed` is about."""
    alarms = np.minimum(np.asarray(false_alarms, dtype=np.float64) + error, 1.0)
    return np.maximum(missed(alarms) - error, 0.0)
