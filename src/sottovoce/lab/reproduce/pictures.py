"""Tables of a paper as pictures: a panel each, lines where `at` is a number, else dots.

Published numbers are hollow, ours filled; a band is one standard deviation of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sottovoce.estimators.plots import new_figure
from sottovoce.lab.reproduce import PaperTable, format_number

MARKED = 12  # points of a line up to which each is marked


def draw_tables(tables: Sequence[PaperTable]) -> Any:
    """A figure with a panel for each table, two beside each other."""
    columns = min(2, len(tables))
    deep = -(-len(tables) // columns)
    each = [4.0 if is_curve(table) else max(2.0, 1.1 + 0.2 * len(table.rows)) for table in tables]
    heights = [max(each[row * columns : (row + 1) * columns]) for row in range(deep)]
    figure = new_figure()
    figure.set_size_inches(6.4 * columns, sum(heights))
    grid = figure.add_gridspec(deep, columns, height_ratios=heights)
    for place, table in enumerate(tables):
        axis = figure.add_subplot(grid[place // columns, place % columns])
        (_draw_lines if is_curve(table) else _draw_dots)(axis, table)
        above = 6 if is_curve(table) else 20  # the legend of dots
        axis.set_title(table.title, fontsize=9, loc="left", pad=above)
    return figure


def is_curve(table: PaperTable) -> bool:
    """Whether all its rows are at a number."""
    return all(isinstance(row.at, (int, float)) for row in table.rows)


def _draw_lines(axis: Any, table: PaperTable) -> None:
    places = sorted({float(row.at) for row in table.rows})
    for number, (name, rows) in enumerate(table.series.items()):
        drawn: dict[str, Any] = {"color": f"C{number % 10}", "ms": 5}
        line = [row for row in rows if math.isfinite(row.ours)]
        at = [float(row.at) for row in line]
        known = [row for row in rows if row.published is not None]
        label = f"{name}: {table.heads[1]}" if known else name
        style = "-" if len(line) > MARKED else "o-"
        axis.plot(at, [row.ours for row in line], style, label=label, **drawn)
        if any(row.spread for row in line):
            low, high = ([row.ours + sign * (row.spread or 0.0) for row in line] for sign in (-1, 1))
            least = min(row.ours for row in line) / 2  # a band that reaches 0 ends there on an axis of logarithms
            axis.fill_between(at, [max(end, least) for end in low] if table.log else low, high, alpha=0.15, lw=0)
        if known:
            x, y = [row.at for row in known], [row.published for row in known]
            drawn |= {"mfc": "none", "lw": 0.8, "label": f"{name}: {table.heads[0]}"}
            axis.plot(x, y, "s" if len(known) == 1 else "s--", **drawn)
    if places[-1] >= 50 * places[0] > 0 and len(places) <= MARKED:
        axis.set_xscale("log")
        axis.set_xticks(places, [format_number(place) for place in places], minor=False)
        axis.tick_params(axis="x", which="minor", labelbottom=False)
    if table.log:
        axis.set_yscale("log")
    axis.set_xlabel(table.axis)
    axis.set_ylabel(table.measure)
    axis.legend(fontsize=6, ncols=2 if len(axis.lines) > 4 else 1)


def _draw_dots(axis: Any, table: PaperTable) -> None:
    labels = [f"{row.at}: {row.series}" if row.series else str(row.at) for row in table.rows]
    places = range(len(labels) - 1, -1, -1)
    for which, marker, filled in ((0, "s", "none"), (1, "o", None)):
        found = [
            (value, place)
            for row, place in zip(table.rows, places, strict=True)
            if (value := (row.published, row.ours)[which]) is not None and math.isfinite(value)
        ]
        if found:
            x, y = zip(*found, strict=True)
            axis.plot(x, y, marker, mfc=filled, ms=6, color=f"C{which}", label=table.heads[which])
    right = {"transform": axis.get_yaxis_transform(), "ha": "right", "va": "center", "fontsize": 7}
    for row, place in zip(table.rows, places, strict=True):
        if math.isinf(row.ours):
            axis.text(0.98, place, "infinite", **right)
    if table.log:
        values = [value for row in table.rows for value in (row.published, row.ours) if value and math.isfinite(value)]
        axis.set_xscale("log")
        axis.tick_params(axis="x", which="minor", labelbottom=False)
        axis.set_xlim(10 ** math.floor(math.log10(min(values)) - 0.05), 10 ** math.ceil(math.log10(max(values)) + 0.05))
    axis.set_yticks(list(places), labels, fontsize=7)
    axis.set_ylim(-0.7, len(labels) - 0.3)
    axis.grid(axis="y", lw=0.3)
    axis.set_xlabel(table.measure)
    axis.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
