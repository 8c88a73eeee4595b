"""An estimator for times to an event: hazard ratios, a baseline hazard and survival curves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithms import Solution
from sottovoce.data.beside import labels_with
from sottovoce.data.bounds import LARGEST
from sottovoce.data.cells import cell_key, column_cells, read_numbers
from sottovoce.errors import InputError
from sottovoce.estimators.base import Array, PrivateLinearModel
from sottovoce.estimators.coefficients import WithStandardErrors
from sottovoce.estimators.declarations import penalty_named
from sottovoce.estimators.fits import Fit
from sottovoce.estimators.plots import axes_for
from sottovoce.losses.counts import REACH
from sottovoce.losses.times import Hazard, check_periods
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.plan.split import Split


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateCoxRegressor(WithStandardErrors, PrivateLinearModel):
    """Times to an event with the hazard rate_j exp(x'w) in period j, under differential privacy.

    It is Cox's model with a baseline hazard that is constant within public periods, a piecewise-exponential model, and
    not his partial likelihood. `exp` of a coefficient is a hazard ratio. A person has one row; what is protected is the
    row with its event and times. In one place and by rows.

    Parameters
    ----------
    periods : list of float
        Public cut points in time, from 0 on: within a period the baseline is constant, and nobody is followed beyond
        the last. Choose them from what is known, such as the years of a study, never by quantiles of these data.
    """

    _plain: ClassVar[str] = "sklearn.linear_model.PoissonRegressor"  # with exposures that its baseline makes
    ratio_name: ClassVar[str] = "hazard ratio"

    periods: Any = None

    def fit(self, X: Any, y: ArrayLike | None = None, *, entry: Any = None, **beside: Any) -> Self:
        """Fit. y is a structured array of events and times, as in scikit-survival, or two columns (event, time).

        `entry` has since when each person was seen, if not since 0. Of a table the schema names the columns: the label
        has events, {"counts": 1}, and there is a column {"time": (0, 5)}.
        """
        return super().fit(X, None if y is None else events_of(y, entry), **beside)

    def as_federation(self, X: Any, y: ArrayLike | None = None, **beside: Any) -> Any:
        return super().as_federation(X, None if y is None else events_of(y), **beside)

    def _loss(self) -> Named:
        periods = [] if self.periods is None or isinstance(self.periods, str) else list(self.periods)
        check_periods(periods)
        return Named(name="hazard", parameters={"periods": list(map(float, periods))})

    def _regulariser(self, _split: Split) -> Named:
        if self.radius is not None or self.alpha == "auto":
            raise InputError("radius and alpha='auto' are not for times; give alpha, 0 for no penalty.")
        return Named(name="none") if self.alpha == 0 else penalty_named("l2", alpha=self.alpha)

    def tested(self, y: Any) -> tuple[Named, Any]:
        """The loss with the hazards of the fit, and labels, for an evaluation."""
        rates = np.minimum(self.baseline_hazard_, LARGEST).tolist()
        known = None if y is None else events_of(y)
        if known is not None and "entry" in (known.dtype.names or ()):
            raise InputError("entry: people who were seen only from some time on are not evaluated; leave them out.")
        return Named(name=self.plan_.loss.name, parameters=self.plan_.loss.parameters | {"rates": rates}), known

    def _keep(self, fit: Fit, solution: Solution) -> None:
        super()._keep(fit, solution)
        if self.score_spread_ is not None:
            mean, deviation = self.score_spread_
            self.score_spread_ = mean - float(self.intercept_), deviation
        rates = np.array(solution.baseline) * np.exp(np.clip(float(self.intercept_), -REACH, REACH))
        self._set_baseline(rates)

    def _set_baseline(self, rates: Array) -> None:
        self.baseline_hazard_, self.intercept_ = np.asarray(rates), 0.0

    @property
    def hazard_ratios_(self) -> dict[str, float]:
        """`exp` of each coefficient, by the names of the features, else x0, x1, ..."""
        self._check_shared()
        names = self._feature_names or tuple(f"x{j}" for j in range(len(self.coef_)))
        return dict(zip(names, np.exp(np.clip(self.coef_, -REACH, REACH)).tolist(), strict=True))

    def predict(self, X: Any) -> Array:
        """x'coef: the logarithm of the hazard ratio to somebody whose features are 0. The higher, the sooner."""
        return self.scores(X)

    def cumulative_hazard(self, times: ArrayLike) -> Array:
        """Of somebody whose features are 0; after the last period it does not grow."""
        self._check_shared()
        at = np.atleast_1d(np.asarray(times, dtype=np.float64))
        cuts = pairwise(periods_of(self.plan_))
        parts = [rate * (np.clip(at, *cut) - cut[0]) for rate, cut in zip(self.baseline_hazard_, cuts, strict=True)]
        return np.asarray(np.sum(parts, axis=0))

    def predict_survival(self, X: Any, times: ArrayLike) -> Array:
        """The chance to be without an event at each of these times: a row for each person."""
        hazards = np.exp(np.clip(self.scores(X), -REACH, REACH))
        return np.asarray(np.exp(-np.outer(hazards, self.cumulative_hazard(times))))

    def plot_survival(self, X: Any, ax: Any = None, labels: Any = None) -> Any:
        """Survival curves of a few rows; needs matplotlib (the extra `plots`). Gives the figure."""
        times = np.linspace(0.0, periods_of(self.plan_)[-1], 201)
        curves, ax = self.predict_survival(X, times), axes_for(ax)
        for curve, label in zip(curves, labels or range(len(curves)), strict=True):
            ax.plot(times, curve, label=str(label).replace("$", r"\$"), lw=1.6)
        ax.set(xlabel="time", ylabel="share without an event", ylim=(0, 1.02))
        ax.legend(fontsize=8)
        ax.grid(lw=0.4)
        return ax.figure

    def score(self, X: Any, y: ArrayLike | None = None, sample_weight: Any = None) -> float:
        """Concordance, exact and without noise.

        How often, of two people of whom one is known to have had the event first, that one has the higher hazard.
        """
        if sample_weight is not None:
            raise InputError("sample_weight: concordance counts pairs of people alike; leave it out.")
        if y is None:
            y = None if self._schema is None else self._schema.labels(X)
        if y is None:
            raise InputError("y=None: give the events and times of X, or a table with the columns of the schema.")
        known = events_of(y)
        return concordance(self.predict(X), np.asarray(known["label"], dtype=float), known["time"])


def periods_of(plan: Plan) -> tuple[float, ...]:
    """The cut points."""
    return cast("Hazard", plan.scaled_loss).periods


def events_of(y: Any, entry: Any = None) -> NDArray[Any]:
    """Events, with their times beside them, of a structured array or of two columns (event, time)."""
    if hasattr(y, "to_numpy") and getattr(y, "ndim", 1) == 2:
        y = y.to_numpy()
    y = np.asarray(y)
    names = y.dtype.names
    if names and "label" in names:
        found = y
    elif names and len(names) == 2:
        found = labels_with(_read(y[names[0]]), time=y[names[1]])
    elif y.ndim == 2 and y.shape[1] == 2:
        found = labels_with(_read(y[:, 0]), time=y[:, 1])
    else:
        raise InputError(
            "y must be a structured array of events and times, such as sksurv.util.Surv makes, or two columns (event, "
            "time)."
        )
    return np.asarray(found if entry is None else labels_with(found, entry=entry))


def _read(cells: Any) -> Array:
    return read_numbers(column_cells(cells), cell_key)


def concordance(scores: Array, events: Array, times: Array) -> float:
    """Harrell's: pairs in order of those whose order is known; equal scores count half."""
    order = np.argsort(times, kind="stable")
    scores, events, times = scores[order], events[order], times[order]
    good = pairs = 0.0
    for place in np.flatnonzero(events > 0):
        later = scores[np.searchsorted(times, times[place], side="right") :]
        pairs += len(later)
        good += float((scores[place] > later).sum() + (scores[place] == later).sum() / 2)
    return good / pairs if pairs else 0.5
