"""Coefficients with standard errors that include the privacy noise, bought with a share of the budget after a fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import NEWTON_FEATURES, Algorithm, Solution
from sottovoce.algorithms.standard_errors import MIDDLE, ColumnsStandardErrors, PrivateStandardErrors, Start
from sottovoce.algorithms.standard_errors.estimates import OneStep, Sums
from sottovoce.algorithms.whitened.rule import Units
from sottovoce.arguments import is_number
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError, did_you_mean
from sottovoce.estimators.fits import Fit, Purchase
from sottovoce.estimators.plots import axes_for
from sottovoce.losses import LogMeanLoss
from sottovoce.notebooks import html_table
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem

Array = NDArray[np.float64]

LEVEL = 0.95  # of intervals, where nothing else is said
LEAST = 1e-4  # of the p-values that a table says
INTERCEPT = "intercept"
LOST = "not identified at this epsilon"
ODDS = "odds ratio"
BY_COLUMNS = 200  # features: above, the rounds cost far more than a fit


@dataclass(frozen=True)
class Coefficient:
    """The one-step estimate of a coefficient, its standard error and an interval; None where it is not identified.

    `odds_ratio` and its interval are there where the model is of odds: exp of the three. Of rates, hazards and means
    `ratio`, `ratio_low` and `ratio_high` are that.
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

    ratio = property(lambda self: _ratio(self.estimate))
    ratio_low = property(lambda self: _ratio(self.low))
    ratio_high = property(lambda self: _ratio(self.high))

    @property
    def p_value(self) -> float | None:
        """The chance of an estimate as far from 0 as this one if the coefficient is 0: two-sided, by the normal law."""
        if self.estimate is None or self.standard_error is None:
            return None
        return math.erfc(abs(self.estimate) / self.standard_error / math.sqrt(2))

    def at(self, level: float) -> Coefficient:
        """With an interval of another level."""
        if self.estimate is None or self.standard_error is None:
            return self
        wide = NormalDist().inv_cdf((1 + level) / 2) * self.standard_error
        ends = self.estimate, self.estimate - wide, self.estimate + wide
        ratios = [None] * 3 if self.odds_ratio is None else list(map(_ratio, ends))
        return replace(self, low=ends[1], high=ends[2], odds_ratio=ratios[0], odds_low=ratios[1], odds_high=ratios[2])


def _ratio(value: float | None) -> float | None:
    return None if value is None else math.exp(min(value, 700.0))


@dataclass(frozen=True, repr=False)
class CoefficientTable:
    """Coefficients by name, the intercept last. `table["age"]` is one of them.

    Of curves `knots` has the heights at their knots, each by itself, against the mean over the knots.
    """

    rows: tuple[Coefficient, ...]
    ratio_name: str  # what exp of a coefficient is, such as "odds ratio"; empty: nothing
    knots: tuple[Coefficient, ...] = ()
    level: float = LEVEL  # of the intervals

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], *, ratio_name: str) -> CoefficientTable:
        """The table of rows as a model file has them."""
        several = [Coefficient(**row) for row in rows]
        return cls(
            tuple(row for row in several if not row.curve), ratio_name, tuple(row for row in several if row.curve)
        )

    def at(self, level: float) -> CoefficientTable:
        """The same table with intervals of another level."""
        if not (is_number(level) and 0 < level < 1):
            raise InputError(f"level={level!r} must be a number between 0 and 1, such as 0.95 or 0.9.")
        rows, knots = (tuple(row.at(level) for row in several) for several in (self.rows, self.knots))
        return CoefficientTable(rows, self.ratio_name, knots, float(level))

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
        return {row.name: {key: getattr(row, key) for key in self._columns} for row in self.rows}

    def to_pandas(self) -> Any:
        """A pandas table with a row for each coefficient; needs pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_pandas needs pandas; install it, or take to_dict().") from None
        return pd.DataFrame.from_dict(self.to_dict(), orient="index", dtype=float)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table as people read it: titles, and a row of texts for each coefficient."""
        interval = [f"{100 * self.level:g}% from", "to"]
        titles = [
            "estimate",
            "std. error",
            *interval,
            "p-value",
            *([self.ratio_name, *interval] if self.ratio_name else []),
        ]
        rows = []
        for row in self.rows:
            numbers = [f"{getattr(row, column):.4g}" for column in self._columns] if row.identified else [LOST]
            if row.p_value is not None and row.p_value < LEAST:
                numbers[self._columns.index("p_value")] = f"<{LEAST:g}"
            rows.append([row.name, *numbers])
        return ["", *titles], rows

    def __str__(self) -> str:
        titles, rows = self.cells()
        width = max(len(name) for name, *_ in rows)
        wide = max(12, len(self.ratio_name) + 2)
        lines = [" " * width + "".join(f"{title:>{wide}}" for title in titles[1:])]
        for name, *numbers in rows:
            lines.append(
                name.ljust(width)
                + (f"  {LOST}" if numbers == [LOST] else "".join(f"{number:>{wide}}" for number in numbers))
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*self.cells())

    def plot(self, ax: Any = None) -> Any:
        """Intervals side by side, as ratios where the table has these; needs matplotlib (the extra `plots`).

        What is not identified is named and has no interval. The intercept is left out. Gives the figure.
        """
        shown = [row for row in self.rows if row.name != INTERCEPT][::-1]
        ax = axes_for(ax, figsize=(6.4, 1.2 + 0.28 * len(shown)))
        columns = ("ratio", "ratio_low", "ratio_high") if self.ratio_name else ("estimate", "low", "high")
        for height, row in enumerate(shown):
            if not row.identified:
                at = {"xycoords": ("axes fraction", "data"), "ha": "center", "va": "center"}
                ax.annotate(LOST, (0.5, height), color="gray", **at)
                continue
            middle, low, high = (getattr(row, column) for column in columns)
            ax.plot([low, high], [height, height], color="C0", lw=1.6)
            ax.plot(middle, height, "o", color="C0", ms=4)
        ax.axvline(1.0 if self.ratio_name else 0.0, color="gray", lw=0.8, ls="--")
        if self.ratio_name:
            ax.set_xscale("log")
            for axis in (ax.xaxis.set_major_formatter, ax.xaxis.set_minor_formatter):
                axis("{x:g}")  # not as powers of ten
        ax.set_yticks(range(len(shown)), [row.name for row in shown])
        ax.set_ylim(-0.7, len(shown) - 0.3)
        ax.set_xlabel(f"{self.ratio_name or 'coefficient'}, {100 * self.level:g}% interval")
        return ax.figure

    @property
    def _columns(self) -> tuple[str, ...]:
        plain = ("estimate", "standard_error", "low", "high", "p_value")
        kind = "odds" if self.ratio_name == ODDS else "ratio"
        return (
            (*plain, "odds_ratio" if kind == "odds" else kind, f"{kind}_low", f"{kind}_high")
            if self.ratio_name
            else plain
        )


@dataclass(eq=False, repr=False, kw_only=True)
class WithStandardErrors:
    """Models that can have standard errors of their coefficients.

    Parameters
    ----------
    standard_errors : bool or list of str
        Buy standard errors for `coefficients()` after the fit, with 40% of the budget (of mu squared). In one place and
        by rows, of classes two alone; over secure columns of two classes; without penalty and radius. A list of
        columns or features, not over columns, has the noise spent on these; the others are adjusted for, and not told.
    """

    standard_errors: bool | Sequence[str] = False

    def coefficients(self: Any, level: float = LEVEL) -> CoefficientTable:
        """Estimates with standard errors and intervals that include the privacy noise, in the units of the columns.

        They belong to a step without damping from the model, not to `coef_`, which is damped. `level` is that of the
        intervals: of 0.95, 95 of 100 hold the coefficient.
        """
        self._check_shared()
        if not hasattr(self, "coefficients_"):
            raise InputError(
                "this fit has no standard errors: they are bought with a share of the budget that is planned before; "
                f"fit with {type(self).__name__}(..., standard_errors=True)."
            )
        table: CoefficientTable = self.coefficients_
        return table if level == table.level else table.at(level)


class StandardErrors(Purchase):
    """Sums at the fitted model, from which `coefficients()` makes its table."""

    form = PrivateStandardErrors()
    share = 0.40
    refused = "the model is here and paid for, but a party refused the standard errors"
    what = "standard_errors=True"

    def check(self, fit: Fit, problem: Problem) -> None:
        why = ""
        if problem.split.same_people and not problem.secure_columns:
            why = "by columns they are made of secure products, and nobody has whole rows; fit without them."
        elif problem.split.same_people and (problem.loss.name != "logistic" or problem.class_weight):
            why = (
                "by columns they hold of odds that are right alone: of two classes by the logistic loss without "
                f"class_weight, and not of {problem.loss.name!r} with class_weight={problem.class_weight!r}; fit "
                "without them."
            )
        elif problem.split.same_people and fit.model.standard_errors is not True:
            why = "by columns all coefficients are told, and none is told better for its name; give True."
        elif problem.split.same_people and problem.features > BY_COLUMNS:
            rounds = 2 * (1 + MIDDLE) * problem.dimension
            why = (
                f"by columns {problem.features} features would take {rounds} rounds more over all records; at most "
                f"{BY_COLUMNS} are served. Fit without them."
            )
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
        self.form_for(problem).check_loss(problem.scaled_loss)
        if (asked := fit.model.standard_errors) is not True:
            self._places(fit, problem, asked, ())

    def form_for(self, problem: Problem) -> Algorithm:
        return ColumnsStandardErrors() if problem.secure_columns else self.form

    def problem(self, fit: Fit) -> Problem:
        """With the loss as the fit has left it: what it has found of counts and amounts."""
        units: Units | None = getattr(getattr(fit.solution, "model", None), "units", None)
        fields = dict[str, Any]()
        if units is not None and isinstance(units.loss, LogMeanLoss):
            loss, most = units.loss.for_errors(units.sizes), fit.plan.bounds.exposure_bound
            given = {} if most is None else {"longest": most}
            fields["loss"] = Named(name=loss.name, parameters=loss.parameters() | given)
        return fit.plan.changed_problem(epsilon=self.epsilon, layout="rows", **fields)

    def options(self, fit: Fit) -> Start:
        """With an intercept the first level of a category stays as it is: all levels and the constant add up."""
        problem, model, schema = self.problem(fit), fit.model, fit.model.schema_
        weights, fixed = np.zeros(problem.dimension), tuple[int, ...]()
        if fit.solution is not None:
            weights = problem.preparation.weights_of(model.coef_.ravel(), float(np.ravel(model.intercept_)[0]))
        if schema is not None and model.fit_intercept:
            fixed = tuple(schema.of_features(fit.names or schema.feature_names).references)
        if problem.scaled_loss.parts:  # its rates are in the place of the constant
            fixed, weights[-1] = (*fixed, problem.features), 0.0 if fit.solution is None else fit.solution.weights[-1]
        asked: Any = getattr(model, "standard_errors", True)
        return Start(weights, fixed, () if asked is True else self._places(fit, problem, asked, fixed))

    def _places(self, fit: Fit, problem: Problem, asked: Sequence[str], fixed: tuple[int, ...]) -> tuple[int, ...]:
        """The features that are asked for: those of a column, or one by its name."""
        names, schema = fit.names or tuple(f"x{j}" for j in range(problem.features)), fit.model.schema_
        known = {name: [place] for place, name in enumerate(names)}
        if schema is not None:
            known |= {column.name: [*range(len(names))[own]] for own, column in schema.of_features(names).placed}
        if problem.fit_intercept and not problem.scaled_loss.parts:
            known[INTERCEPT] = [problem.dimension - 1]
        found = set[int]()
        for name in asked:
            if name not in known:
                meant = did_you_mean(name, tuple(known))
                raise InputError(
                    f"standard_errors: there is no column or feature {name!r}{meant} Name those of the fit."
                )
            if not (places := set(known[name]) - set(fixed)):
                raise InputError(f"standard_errors: {name!r} is what other levels are compared with; name its column.")
            found |= places
        return tuple(sorted(found))

    def use(self, fit: Fit, solution: Solution) -> None:
        model: Any = fit.model
        if model.plans_[-1].secure_columns:
            model.charged_as_ = model.plans_[-1].digest.hex()  # which parties know their parts of the model by
        ratio = ratio_of(model, fit.plan)
        model.coefficients_ = tabulate(model.plans_[-1], solution.model, fit.names, model.schema_, ratio)


def ratio_of(model: Any, plan: Plan) -> str:
    """What exp of its coefficients is."""
    return str(getattr(model, "ratio_name", ODDS if plan.loss.name == "logistic" else ""))


def tabulate(
    plan: Plan, sums: Sums, names: tuple[str, ...], schema: Schema | None = None, ratio_name: str = ODDS
) -> CoefficientTable:
    """The table that the sums of a plan give, in the units of the columns and the label.

    With a schema, levels of a category are compared with its reference, and the intercept belongs to all references.
    """
    weights, rates = np.array(plan.numbers.weights), np.zeros(len(sums.projection) - plan.dimension)
    step, zero = OneStep(sums, np.append(weights, rates)), np.append(*plan.unprepare(np.zeros(plan.dimension)))
    units = np.array([np.append(*plan.unprepare(way)) - zero for way in np.eye(plan.dimension)]).T
    fixed, named = np.array(plan.numbers.fixed, int), plan.numbers.named
    rows = list[Coefficient]()
    for name, way, curve in _contrasts(plan, names, schema):
        direction = way @ units
        own = (
            np.array([plan.features])
            if name == INTERCEPT
            else np.setdiff1d(np.flatnonzero(way[: plan.features]), fixed)
        )
        if (named and not np.isin(own, named).any()) or np.isin(own, fixed).all():
            continue
        value, error, identified = step.estimate(np.append(direction, rates), own)
        row = Coefficient(name, None, None, None, None, curve=curve)
        if identified:
            odds = 1.0 if ratio_name == ODDS else None
            row = replace(row, estimate=value + float(way @ zero), standard_error=error, odds_ratio=odds).at(LEVEL)
        rows.append(row)
    return CoefficientTable(
        tuple(row for row in rows if not row.curve), ratio_name, tuple(row for row in rows if row.curve)
    )


def _contrasts(plan: Plan, names: tuple[str, ...], schema: Schema | None) -> Iterator[tuple[str, Array, str]]:
    """What the table tells of: a name, weights on all features and the intercept, and the curve whose knot it is."""
    ways, base = np.eye(plan.features), np.zeros(plan.features)
    found, knots = [*zip(names or [f"x{j}" for j in range(plan.features)], ways, strict=True)], list[Any]()
    if schema is not None:
        known = schema.of_features(names or schema.feature_names)
        if plan.fit_intercept:
            found, base = known.contrasts()
        knots = list(known.heights())
    for name, way, *curve in (*found, *knots):
        yield name, np.append(way, 0.0), next(iter(curve), "")
    if plan.fit_intercept:
        yield INTERCEPT, np.append(base, 1.0), ""
