"""Coefficients with standard errors that include the privacy noise, bought with a share of the budget after a fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import NEWTON_FEATURES, Solution
from sottovoce.algorithms.standard_errors import OneStep, PrivateStandardErrors, Start
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.estimators.fits import Fit, Purchase
from sottovoce.estimators.plots import axes_for
from sottovoce.notebooks import html_table
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem

Array = NDArray[np.float64]

NORMAL = 1.959963984540054  # deviations of a 95% interval
LOST = "not identified at this epsilon"


@dataclass(frozen=True)
class Coefficient:
    """The one-step estimate of a coefficient, its standard error and a 95% interval; None where it is not identified.

    `odds_ratio` and its interval are there where the model is of odds: exp of the three.
    """

    name: str
    estimate: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    odds_ratio: float | None = None
    odds_low: float | None = None
    odds_high: float | None = None
    curve: str = ""  # the column of whose curve it is the height at a knot

    @property
    def identified(self) -> bool:
        """Whether the noise leaves enough to tell it."""
        return self.estimate is not None


@dataclass(frozen=True, repr=False)
class CoefficientTable:
    """Coefficients by name, the intercept last. `table["age"]` is one of them.

    Of curves `knots` has the heights at their knots, each by itself, against the mean over the knots.
    """

    rows: tuple[Coefficient, ...]
    odds: bool  # whether exp of a coefficient is an odds ratio
    knots: tuple[Coefficient, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], *, odds: bool) -> CoefficientTable:
        """The table of rows as a model file has them."""
        several = [Coefficient(**row) for row in rows]
        return cls(tuple(row for row in several if not row.curve), odds, tuple(row for row in several if row.curve))

    def __getitem__(self, name: str) -> Coefficient:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __iter__(self) -> Iterator[Coefficient]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """By name, numbers by their names; None for what is not identified."""
        return {row.name: {key: row_[key] for key in self._columns} for row in self.rows if (row_ := asdict(row))}

    def to_pandas(self) -> Any:
        """A pandas table with a row for each coefficient; needs pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_pandas needs pandas; install it, or take to_dict().") from None
        return pd.DataFrame.from_dict(self.to_dict(), orient="index", dtype=float)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table as people read it: titles, and a row of texts for each coefficient."""
        titles = ["estimate", "std. error", "95% from", "to", *(["odds ratio", "95% from", "to"] if self.odds else [])]
        rows = []
        for row in self.rows:
            numbers = [f"{getattr(row, column):.4g}" for column in self._columns] if row.identified else [LOST]
            rows.append([row.name, *numbers])
        return ["", *titles], rows

    def __str__(self) -> str:
        titles, rows = self.cells()
        width = max(len(name) for name, *_ in rows)
        lines = [" " * width + "".join(f"{title:>12}" for title in titles[1:])]
        for name, *numbers in rows:
            lines.append(
                name.ljust(width) + (f"  {LOST}" if numbers == [LOST] else "".join(map("{:>12}".format, numbers)))
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*self.cells())

    def plot(self, ax: Any = None) -> Any:
        """Intervals side by side, of a model of odds on the scale of odds ratios; needs matplotlib (the extra `plots`).

        What is not identified is named and has no interval. The intercept is left out. Gives the figure.
        """
        shown = [row for row in self.rows if row.name != "intercept"][::-1]
        ax = axes_for(ax, figsize=(6.4, 1.2 + 0.28 * len(shown)))
        columns = ("odds_ratio", "odds_low", "odds_high") if self.odds else ("estimate", "low", "high")
        for height, row in enumerate(shown):
            if not row.identified:
                at = {"xycoords": ("axes fraction", "data"), "ha": "center", "va": "center"}
                ax.annotate(LOST, (0.5, height), color="gray", **at)
                continue
            middle, low, high = (getattr(row, column) for column in columns)
            ax.plot([low, high], [height, height], color="C0", lw=1.6)
            ax.plot(middle, height, "o", color="C0", ms=4)
        ax.axvline(1.0 if self.odds else 0.0, color="gray", lw=0.8, ls="--")
        if self.odds:
            ax.set_xscale("log")
            for axis in (ax.xaxis.set_major_formatter, ax.xaxis.set_minor_formatter):
                axis("{x:g}")  # not as powers of ten
        ax.set_yticks(range(len(shown)), [row.name for row in shown])
        ax.set_ylim(-0.7, len(shown) - 0.3)
        ax.set_xlabel("odds ratio, 95% interval" if self.odds else "coefficient, 95% interval")
        return ax.figure

    @property
    def _columns(self) -> tuple[str, ...]:
        plain = ("estimate", "standard_error", "low", "high")
        return (*plain, "odds_ratio", "odds_low", "odds_high") if self.odds else plain


@dataclass(eq=False, repr=False, kw_only=True)
class WithStandardErrors:
    """Models that can have standard errors of their coefficients.

    Parameters
    ----------
    standard_errors : bool
        Buy standard errors for `coefficients()` after the fit, with 40% of the budget (of mu squared). In one place and
        by rows, of two classes or numbers, without penalty and radius.
    """

    standard_errors: bool = False

    def coefficients(self: Any) -> CoefficientTable:
        """Estimates with standard errors and 95% intervals that include the privacy noise, in the units of the columns.

        They belong to a step without damping from the model, not to `coef_`, which is damped.
        """
        self._check_shared()
        if not hasattr(self, "coefficients_"):
            raise InputError(
                "this fit has no standard errors: they are bought with a share of the budget that is planned before; "
                f"fit with {type(self).__name__}(..., standard_errors=True)."
            )
        table: CoefficientTable = self.coefficients_
        return table


class StandardErrors(Purchase):
    """Sums at the fitted model, from which `coefficients()` makes its table."""

    form = PrivateStandardErrors()
    share = 0.40
    refused = "the model is here and paid for, but a party refused the standard errors"
    what = "standard_errors=True"

    def check(self, fit: Fit, problem: Problem) -> None:  # noqa: ARG002
        why = ""
        if problem.split.same_people:
            why = "by columns nobody has whole rows, whose products they are made of; fit without them."
        elif problem.scaled_loss.outputs > 1:
            why = f"two classes are served so far, not {problem.scaled_loss.outputs}; fit without them."
        elif problem.regulariser.name != "none":
            why = (
                "intervals are about coefficients without a penalty; leave alpha and radius out (the fit damps itself)."
            )
        elif problem.calibration == "paper":
            why = "a published form has a price of its own; nothing is bought beside it. Leave calibration out."
        elif (features := problem.features) > NEWTON_FEATURES:
            why = f"{features} features would need as many squared numbers; at most {NEWTON_FEATURES} are served."
        if why:
            raise InputError(f"standard_errors=True: {why}")
        PrivateStandardErrors.check_loss(problem.scaled_loss)

    def problem(self, plan: Plan) -> Problem:
        return plan.changed_problem(epsilon=self.epsilon, layout="rows")

    def options(self, fit: Fit) -> Start:
        """With an intercept the first level of a category stays as it is: all levels and the constant add up."""
        problem, model, schema = self.problem(fit.plan), fit.model, fit.model.schema_
        weights = np.zeros(problem.dimension)
        if fit.solution is not None:
            weights = problem.preparation.weights_of(model.coef_.ravel(), float(np.ravel(model.intercept_)[0]))
        if schema is None or not model.fit_intercept:
            return Start(weights)
        _, base = schema.of_features(fit.names or schema.feature_names).contrasts()
        return Start(weights, tuple(np.flatnonzero(base == 1.0).tolist()))

    def use(self, fit: Fit, solution: Solution) -> None:
        model: Any = fit.model
        model.coefficients_ = tabulate(model.plans_[-1], solution.model, fit.names, model.schema_)


def tabulate(plan: Plan, sums: Any, names: tuple[str, ...], schema: Schema | None = None) -> CoefficientTable:
    """The table that the sums of a plan give, in the units of the columns and the label.

    With a schema, levels of a category are compared with the first, and the intercept belongs to all first levels.
    """
    step, zero = OneStep(sums, np.array(plan.numbers.weights)), np.append(*plan.unprepare(np.zeros(plan.dimension)))
    values = np.append(*plan.unprepare(step.weights))
    units = np.array([np.append(*plan.unprepare(way)) - zero for way in np.eye(plan.dimension)]).T
    names, ways, base = names or tuple(f"x{j}" for j in range(plan.features)), np.eye(plan.features), np.zeros(1)
    contrasts, knots = [*zip(names, ways, strict=True)], list[tuple[str, Array, str]]()
    if schema is not None:
        known = schema.of_features(names)
        if plan.fit_intercept:
            contrasts, base = known.contrasts()
        knots = list(known.heights())
    every = [(name, way, "") for name, way in contrasts]
    every = [(name, np.append(way, 0.0), curve) for name, way, curve in (*every, *knots)]
    if plan.fit_intercept:
        every.append(("intercept", np.append(np.zeros(plan.features) + base, 1.0), ""))
    odds, rows = plan.loss.name == "logistic", list[dict[str, Any]]()
    for name, way, curve in every:
        estimate, direction = float(way @ values), way @ units
        rows.append({"name": name, "curve": curve, **dict.fromkeys(("estimate", "standard_error", "low", "high"))})
        if not step.identified(direction):
            continue
        error = step.error(direction)
        ends = {"estimate": estimate, "low": estimate - NORMAL * error, "high": estimate + NORMAL * error}
        rows[-1] |= {"standard_error": error, **ends}
        if odds:
            ratios = [math.exp(min(value, 700.0)) for value in ends.values()]
            rows[-1] |= dict(zip(("odds_ratio", "odds_low", "odds_high"), ratios, strict=True))
    return CoefficientTable.of(rows, odds=odds)
