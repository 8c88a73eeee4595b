"""The inverse of a simulation: the least epsilon at which a metric reaches what is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.arguments import is_number
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.lab.simulation import LOSSES, TITLES, SimulatedFits, Simulation, simulated_fits

LEAST, MOST, FINE = 0.01, 100.0, 1.1  # budgets that are looked at, and how near two of them come
STRIDE = 10.0**0.5
Scores = list[dict[str, float]]


@dataclass(frozen=True, eq=False)
class NeededEpsilon:
    """The least epsilon, of those simulated, at which a metric reaches what was asked, in the mean over the runs.

    It is infinite where no budget that was looked at does. `limit` is the metric without privacy. `simulation` has all
    that was looked at.
    """

    epsilon: float
    metric: str
    asked: float
    limit: float
    simulation: Simulation

    @property
    def reached(self) -> bool:
        """Whether some budget is enough."""
        return self.epsilon < math.inf

    def __float__(self) -> float:
        return self.epsilon

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; None where nothing is enough."""
        found = {"epsilon": self.epsilon if self.reached else None, "metric": self.metric, "asked": self.asked}
        return {**found, "limit": self.limit, "simulation": self.simulation.to_dict()}

    def sentence(self) -> str:
        title, asked = TITLES[self.metric], f"{self.asked:g}"
        if self.reached:
            below = " or less" if self.epsilon <= LEAST else ""
            return f"epsilon = {self.epsilon:g}{below} for {title} {asked}; without privacy it is {self.limit:.4g}"
        if not reaches(self.metric, self.limit, self.asked):
            return f"no epsilon reaches {title} {asked}: without privacy it is {self.limit:.4g}, which is the limit"
        return f"no epsilon up to {MOST:g} reaches {title} {asked}; without privacy it is {self.limit:.4g}"

    def __str__(self) -> str:
        return f"{self.sentence()}\n{self.simulation}"


def epsilon_for(  # noqa: PLR0913
    estimator: PrivateLinearModel,
    records: int | Sequence[int] | None = None,
    features: int | Sequence[int] | None = None,
    *,
    accuracy: float | None = None,
    log_loss: float | None = None,
    r2: float | None = None,
    mean_squared_error: float | None = None,
    **simulated: Any,
) -> NeededEpsilon:
    """The least epsilon at which a simulated model is as good as asked; no private record is read.

    The inverse of `sv.simulate`, whose other arguments it takes: `like`, `labels`, `strength`, `missing`, `runs`,
    `seed`. What that says of made-up records holds here too.

    Parameters
    ----------
    estimator, records, features
        As in `sv.simulate`.
    accuracy, log_loss, r2, mean_squared_error : float
        One of them: what the mean over the runs must reach.
    **simulated
        What else `sv.simulate` takes, but for epsilon.
    """
    given = {"accuracy": accuracy, "log_loss": log_loss, "r2": r2, "mean_squared_error": mean_squared_error}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) != 1 or not all(is_number(value) and math.isfinite(value) for value in asked.values()):
        raise InputError(f"give one number to reach, {', '.join(given)}, not {asked or 'none'}; for example 0.8.")
    if "epsilon" in simulated:
        raise InputError(f"epsilon={simulated['epsilon']!r} is what is looked for; leave it out.")
    ((metric, value),) = asked.items()
    return find_epsilon(simulated_fits(estimator, records, features, **simulated), metric, float(value))


def find_epsilon(
    work: SimulatedFits, metric: str, asked: float, tell: Callable[[float], None] = lambda _: None
) -> NeededEpsilon:
    """Strides over the budgets from 1 on, then halves between the last that is enough and the first that is not.

    Every budget has the same records and the same coins, so the metric hardly ever falls as epsilon grows.
    """
    tried: dict[float, Scores] = {}

    def enough(epsilon: float) -> bool:
        if epsilon not in tried:
            tell(epsilon)
            tried[epsilon] = work.scores_at(epsilon)
        return reaches(metric, mean_score(tried[epsilon], metric), asked)

    plain = work.scores_at(math.inf)
    if metric not in plain[0]:
        raise InputError(f"{metric}={asked:g}: this model is measured by {', '.join(plain[0])}; ask for one of them.")
    high = low = 1.0
    if not reaches(metric, mean_score(plain, metric), asked):  # a look at one budget shows how far it is
        enough(1.0)
        high = math.inf
    elif enough(1.0):
        while low > LEAST and enough(low):
            high, low = low, max(rounded(low / STRIDE), LEAST)
        high = LEAST if low <= LEAST and enough(LEAST) else high
    else:
        while high < MOST and not enough(high):
            low, high = high, min(rounded(high * STRIDE), MOST)
        high = high if enough(high) else math.inf
    while high < math.inf and high > LEAST and high / low > FINE:
        middle = rounded(math.sqrt(low * high))
        if not low < middle < high:
            break
        low, high = (low, middle) if enough(middle) else (middle, high)
    budgets = tuple(sorted(tried))
    results = [[scores, *(tried[each][number] for each in budgets)] for number, scores in enumerate(plain)]
    simulation = replace(work, epsilons=budgets).summary(results)
    return NeededEpsilon(high, metric, asked, mean_score(plain, metric), simulation)


def reaches(metric: str, value: float, asked: float) -> bool:
    """Whether a value is as good as asked: of losses the smaller is the better."""
    return value <= asked if metric in LOSSES else value >= asked


def mean_score(scores: Scores, metric: str) -> float:
    """Of a metric, over the runs."""
    return math.fsum(score[metric] for score in scores) / len(scores)


def rounded(epsilon: float) -> float:
    """Two digits: a budget that can be said."""
    return float(f"{epsilon:.1e}")
