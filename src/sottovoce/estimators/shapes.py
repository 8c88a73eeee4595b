"""What each column of a schema adds to a model's score: curves, lines, levels. All of it is post-processing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.column_kinds import Category, Number
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.estimators import plots
from sottovoce.notebooks import html_table
from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shape:
    """What a column adds to the score at the cells of its grid, linear between numbers; the mean over the grid is 0.

    Of several classes `effect` has a row for each. `missing` is what a missing cell adds, where the schema gives it a
    feature. `scale` is "linear" or "log", along which the effect is linear between knots, or "levels".
    """

    grid: tuple[Any, ...]
    effect: Array
    missing: Array | None
    scale: str

    def extremes(self) -> list[str]:
        """For each class, of two for the second, the least and the largest effect and where they are."""
        said = [cell if isinstance(cell, str) else f"{cell:.4g}" for cell in self.grid]
        ends = [(row, row.argmin(), row.argmax()) for row in np.atleast_2d(self.effect)]
        return [f"{row[low]:.3g} at {said[low]} to {row[high]:.3g} at {said[high]}" for row, low, high in ends]


class Shapes(dict[str, Shape]):
    """Shapes by the names of their columns; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        rows = [(name, "; ".join(shape.extremes())) for name, shape in self.items()]
        return html_table(("column", "least and largest effect on the score"), rows)


class WithShapes:
    """Models whose columns a schema declares: `shapes_` by the names of the columns, and their picture."""

    @property
    def shapes_(self: Any) -> Shapes:
        """By column: its grid, and what it adds to the score there, centred. Computed from the released coefficients.

        Damped as the model is; `coefficients().knots` has the heights of curves with their errors.
        """
        self._check_shared()
        if self._schema is None:
            raise InputError("shapes are of the columns that a schema declares, and this model has none.")
        found = Shapes()
        for own, column in self._columns.placed:
            coef = self.coef_[..., own]
            grid, features = column.grid()
            effect, missing = (coef @ features.T).reshape(-1, len(grid)), None
            centre = effect.mean(axis=1)
            if not isinstance(column, Category) and getattr(column, "missing", False):
                missing = np.ravel(coef @ column.encode(np.array([None], dtype=object))[0]) - centre
            effect = effect - centre[:, None]
            one = len(np.atleast_2d(self.coef_)) == 1
            scale = getattr(column, "scale", "linear") if isinstance(column, Number) else "levels"
            found[column.name] = Shape(grid, effect[0] if one else effect, missing, scale)
        return found

    def plot_shapes(self: Any, figure: Any = None, *, odds: bool = False) -> Any:
        """A small picture of each column's shape, on one scale; with `odds` exp of it, which multiplies the odds.

        A fit with `standard_errors` has 95% intervals at the knots, each by itself, where the noise lets them be told:
        those of `coefficients()`, about a model that is not damped and not put in order. Needs matplotlib (the extra
        `plots`). Gives the figure.
        """
        shapes: Mapping[str, Shape] = self.shapes_
        one, loss = len(np.atleast_2d(self.coef_)) == 1, self.plan_.scaled_loss
        if odds and not (self.plan_.loss.name == "logistic" or loss.ordered):
            raise InputError(f"odds=True: the score of {self.plan_.loss.name!r} is not of odds; leave it out.")
        classes = () if one else tuple(map(str, self.plan_.classes or ()))
        drawn = plots.draw_shapes(shapes, plots.new_figure() if figure is None else figure, classes, odds=odds)
        if (table := getattr(self, "coefficients_", None)) is not None:
            for axis, (name, shape) in zip(drawn.axes, shapes.items(), strict=False):
                knots = [knot for knot in table.knots if knot.curve == name]
                plots.draw_bands(axis, shape.grid, knots, odds=odds)
        return drawn

    @property
    def _columns(self: Any) -> Schema:
        """The schema, in the order of the features."""
        schema: Schema = self._schema
        return schema.of_features(self._feature_names or schema.feature_names)


def check_monotone(schema: Schema, plan: Plan) -> None:
    """Refuse an order of curves that no model of this plan could keep, before anything is charged."""
    if ordered := ", ".join(schema.ordered):
        if plan.scaled_loss.outputs > 1:
            raise InputError(
                f"monotone of {ordered}: of more than two classes a score that rises is no more probable class; leave "
                "monotone out."
            )
        if plan.models == "kept":
            raise InputError(
                f"monotone of {ordered}: curves are put in order where the coefficients are known, and here parties "
                "keep them; fit with models='shared', or leave monotone out."
            )
