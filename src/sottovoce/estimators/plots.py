"""Pictures, which need matplotlib. Every plot gives the figure that it is on, whether it has one panel or several.

Those of an evaluation are drawn from its plain numbers (`Evaluation.to_dict`).
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sottovoce.errors import InputError
from sottovoce.numerals import count_text, interval_text, number_text

Results = Mapping[str, Any]

Z: Final = 1.96
SUFFIXES: Final = (".png", ".svg", ".pdf")  # of files that a picture is written to
_TITLES: Final = {
    "auc": "AUC",
    "r2": "R²",
    "brier": "Brier score",
    "log_loss": "log-loss",
    "positives": "share of positives",
}
_COUNTED: Final = {"deviance": ("deviance of a record", "deviances"), "concordance": ("end of the interval", "events")}
_MOST_NAMES: Final = 20  # levels that are named below their bars
_COLOURS: Final = ("#2f5d8c", "#b8741a")


def title_of(metric: str) -> str:
    """What people call a metric."""
    return _TITLES.get(metric, metric.replace("_", " "))


def beyond_text(share: float) -> str:
    """That scores lie so far out that metrics may be off."""
    return (
        f"about {share:.0%} of the scores lie at the ends of what was counted or beyond, farther out than those of the "
        "fit did; log-loss, Brier score and AUC may be off by more than their intervals say"
    )


def new_figure(figsize: tuple[float, float] = (9.0, 7.0)) -> Any:
    """An empty figure that belongs to no window; a notebook shows it where it is the value of a cell."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a plot needs matplotlib; install the extra, sottovoce[plots].") from None
    figure: Any = Figure(figsize=figsize, layout="constrained")
    figure._repr_png_ = functools.partial(picture, figure, ".png")
    return figure


def axes_for(ax: Any, figsize: tuple[float, float] = (6.4, 4.8)) -> Any:
    """The axes that were given, or those of a new figure."""
    return new_figure(figsize).subplots() if ax is None else ax


def picture(figure: Any, suffix: str) -> bytes:
    """A figure as the bytes of a file of that kind; of the same figure they are the same."""
    import matplotlib as mpl

    undated, file = {".svg": ["Date"], ".pdf": ["CreationDate"]}.get(suffix, []), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "sottovoce"}):
        figure.savefig(file, format=suffix.removeprefix("."), metadata=dict.fromkeys(undated))
    return file.getvalue()


def draw(results: Results, figure: Any) -> Any:
    """All panels that an evaluation has, on a figure."""
    if results.get("groups"):
        _draw_groups(results, figure)
    elif results["classes"] is None:
        _draw_regression(results, figure)
    elif results["confusion"]:
        _draw_classes(results, figure)
    else:
        panels = [_draw_metrics, _draw_roc, *([_draw_calibration] if results["calibration"] else []), _draw_scores]
        for place, panel in enumerate(panels):
            panel(results, figure.add_subplot(2, 2, place + 1))
    count, epsilon = count_text(results["records"]), number_text(float(results["privacy"]["epsilon"]))
    figure.suptitle(f"{count} test records, epsilon = {epsilon}, 95% intervals", fontsize=11)
    return figure


def draw_shapes(shapes: Mapping[str, Any], figure: Any, classes: Sequence[str] = (), *, odds: bool = False) -> Any:
    """Small multiples of `Shape`s by the names of their columns: curves and lines, levels as bars, on one scale."""
    from matplotlib.ticker import LogLocator

    wide = min(4, math.ceil(math.sqrt(len(shapes))))
    high, first = math.ceil(len(shapes) / wide), None
    figure.set_size_inches(2.6 * wide, 2.2 * high)
    for place, (name, shape) in enumerate(shapes.items()):
        axis = figure.add_subplot(high, wide, place + 1, sharey=first)
        first = axis if first is None else first
        rows = np.atleast_2d(shape.effect)
        for row, label in zip(np.exp(rows) if odds else rows, map(_plain, classes or ("",)), strict=True):
            if shape.scale != "levels":
                axis.plot(shape.grid, row, marker=".", ms=3, lw=1.2, label=label)
            elif classes:
                axis.plot(range(len(row)), row, "o", ms=3, label=label)
            else:
                axis.bar(range(len(row)), row - odds, 0.7, bottom=float(odds), color=_COLOURS[0], alpha=0.75)
        for blank in () if shape.missing is None or classes else np.ravel(shape.missing):
            axis.axhline(math.exp(blank) if odds else blank, color=_COLOURS[1], lw=1, ls=":", label="missing")
        axis.axhline(float(odds), color="grey", lw=0.6)
        if shape.scale == "log":
            axis.set_xscale("log")
        elif shape.scale == "levels":
            shown = shape.grid if len(shape.grid) <= _MOST_NAMES else ()
            axis.set_xticks(range(len(shown)), [_plain(level) for level in shown], fontsize=6, rotation=90)
        if odds:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")  # not as powers of ten
            axis.yaxis.set_minor_formatter("")
        axis.tick_params(labelsize=6, which="both")
        axis.set_title(_plain(name), fontsize=8)
        if (classes and axis is first) or (shape.missing is not None and not classes):
            axis.legend(fontsize=6, frameon=False)
    figure.supylabel("times the odds" if odds else "effect on the score", fontsize=9)
    return figure


def draw_description(results: Results, figure: Any) -> Any:
    """A panel for each column of a description: shares as bars with their intervals, those of classes side by side."""
    wide = min(4, math.ceil(math.sqrt(len(results["columns"]))))
    high = math.ceil(len(results["columns"]) / wide)
    figure.set_size_inches(2.8 * wide, 2.2 * high)
    for place, (name, groups) in enumerate(results["columns"].items()):
        axis, shown = figure.add_subplot(high, wide, place + 1), list(groups.items())
        shown = shown[1:] or shown  # the classes, without all of them
        for number, (group, summary) in enumerate(shown):
            told = [[share[end] or 0.0 for end in ("value", "low", "high")] for share in summary["shares"].values()]
            values, low, high_ends = np.reshape(told, (-1, 3)).T
            places = np.arange(len(values)) + (number - (len(shown) - 1) / 2) * 0.8 / len(shown)
            axis.bar(places, values, 0.8 / len(shown), alpha=0.75, label=_plain(group))
            axis.vlines(places, low, high_ends, color="black", lw=0.7)
        names = list(map(_plain, shown[0][1]["shares"])) if len(values) <= _MOST_NAMES else []
        axis.set_xticks(range(len(names)), names, fontsize=5, rotation=90)
        axis.set_title(_plain(name), fontsize=8)
        if len(shown) > 1 and place == 0:
            axis.legend(fontsize=6, frameon=False)
    epsilon = number_text(float(results["privacy"]["epsilon"]))
    figure.suptitle(f"{count_text(results['records'])} records, epsilon = {epsilon}, 95% intervals", fontsize=11)
    return figure


def draw_bands(axis: Any, places: Sequence[Any], knots: Sequence[Any], *, odds: bool) -> None:
    """The intervals of heights at knots (`Coefficient`s), of those that are identified; none moves the scale."""
    limits = axis.get_ylim()
    for place, knot in zip(places, knots, strict=False):
        if knot.identified:
            ends = (knot.ratio_low, knot.ratio_high) if odds else (knot.low, knot.high)
            axis.plot([place, place], ends, color="grey", lw=3, alpha=0.35, solid_capstyle="butt")
    axis.set_ylim(limits)


def _plain(text: object) -> str:
    """A name as it is: none is a formula."""
    return str(text).replace("$", r"\$")


def _draw_metrics(results: Results, axis: Any) -> None:
    """A line for each metric: its interval and its value."""
    _draw_intervals(axis, {title_of(name): metric for name, metric in results["metrics"].items()})
    axis.set_title("metrics", fontsize=10)


def _draw_intervals(axis: Any, metrics: Mapping[str, Results]) -> None:
    """Intervals below each other, the first on top."""
    for height, metric in enumerate(metrics.values()):
        _draw_interval(axis, metric, -height)
    axis.set_yticks([-height for height in range(len(metrics))], list(metrics), fontsize=8)
    axis.set_ylim(0.6 - len(metrics), 0.7)
    axis.margins(x=0.2)
    axis.grid(axis="x", lw=0.4)


def _draw_interval(axis: Any, metric: Results, height: float) -> None:
    """One interval, with its numbers above it; what cannot be told has no point."""
    value, low, high = (metric[name] for name in ("value", "low", "high"))
    if None in (low, high):
        axis.text(0.5, height, "cannot be told", transform=axis.get_yaxis_transform(), ha="center", fontsize=8)
        return
    axis.plot([low, high], [height, height], color=_COLOURS[0], lw=2, alpha=0.6 if value is None else 1.0)
    text = "cannot be told" if value is None else interval_text(value, low, high)
    if value is not None:
        axis.plot([value], [height], "o", color=_COLOURS[0], ms=5)
    axis.annotate(text, ((low + high) / 2, height), (0, 5), textcoords="offset points", ha="center", fontsize=7)


def _draw_roc(results: Results, axis: Any) -> None:
    """The curve, and at each node the intervals of both rates."""
    false, true = results["roc"]
    axis.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
    look = {"color": _COLOURS[0], "lw": 1, "alpha": 0.45}
    for x, y, point in zip(false[1:-1], true[1:-1], results["rates"], strict=True):
        axis.plot([point["false"]["low"], point["false"]["high"]], [y, y], **look)
        axis.plot([x, x], [point["true"]["low"], point["true"]["high"]], **look)
    axis.plot(false, true, "o-", color=_COLOURS[0], lw=1.5, ms=3)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="false positive rate", ylabel="true positive rate")
    axis.set_title("ROC", fontsize=10)


def _draw_calibration(results: Results, axis: Any) -> None:
    axis.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
    bins = results["calibration"]
    shares = [group["positives"] for group in bins]
    x, y = [group["predicted"] for group in bins], [share["value"] for share in shares]
    errors = [[share["value"] - share["low"] for share in shares], [share["high"] - share["value"] for share in shares]]
    axis.errorbar(x, y, errors, fmt="o", color=_COLOURS[0], capsize=2, ms=4, lw=1.2)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.05, 1.05), xlabel="predicted probability", ylabel="share of positives")
    axis.set_title("calibration", fontsize=10)


def _draw_scores(results: Results, axis: Any) -> None:
    """Noisy counts at the nodes, for each class."""
    count = len(results["nodes"])
    for place, name in enumerate(results["classes"]):
        cells = results["cells"][place * count : (place + 1) * count]
        label = str(name).replace("$", r"\$")  # no formula
        _draw_bars(axis, cells, results["noise"], 0.4 * (place - 0.5), (_COLOURS[place], label))
    _name_nodes(axis, results["nodes"])
    axis.set(xlabel="score", ylabel="records at the node")
    axis.legend(fontsize=8)
    axis.set_title("scores by class", fontsize=10)


def _draw_classes(results: Results, figure: Any) -> None:
    """More than two classes: the metrics, the confusion matrix, recall and precision of each class.

    The matrix has shares of all records in percent, with half the width of the interval.
    """
    shares = [[100 * share["value"] for share in row] for row in results["confusion"]]
    names = [_plain(name) for name in results["classes"]]
    grid = figure.add_gridspec(2, 2, width_ratios=(1.2, 1), height_ratios=(1, 2 + len(names) / 4))
    _draw_metrics(results, figure.add_subplot(grid[0, 0]))
    axis, largest = figure.add_subplot(grid[1, 0]), max(map(max, shares))
    axis.imshow(shares, cmap="Blues", vmin=0.0, vmax=largest)
    for i, row in enumerate(results["confusion"] if len(names) <= 12 else []):
        for j, share in enumerate(row):
            text = f"{shares[i][j]:.1f}\n±{50 * (share['high'] - share['low']):.1f}"
            colour = "white" if shares[i][j] > 0.6 * largest else "black"
            axis.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(names)), names, fontsize=8, rotation=45)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel="predicted", ylabel="class")
    axis.set_title("% of the records", fontsize=10)
    axis = figure.add_subplot(grid[:, 1])
    pairs = zip(names, results["by_class"], strict=True)
    _draw_intervals(
        axis, {f"{kind}, {name}": metrics[kind] for name, metrics in pairs for kind in ("recall", "precision")}
    )
    axis.set_title("recall and precision", fontsize=10)


def _draw_groups(results: Results, figure: Any) -> None:
    """A panel for each metric, all records and each group below each other; and the calibration of all of them."""
    every = {"all": results} | {f"{results['by']}={group['name']}": group for group in results["groups"]}
    panels, calibrated = list(results["metrics"]), bool(results["calibration"])
    wide = min(3, len(panels) + calibrated)
    high = math.ceil((len(panels) + calibrated) / wide)
    figure.set_size_inches(4.0 * wide, (1.0 + 0.35 * len(every)) * high)
    for place, metric in enumerate(panels):
        axis = figure.add_subplot(high, wide, place + 1)
        _draw_intervals(axis, {_plain(name): each["metrics"][metric] for name, each in every.items()})
        axis.set_title(title_of(metric), fontsize=10)
    if not calibrated:
        return
    axis = figure.add_subplot(high, wide, len(panels) + 1)
    axis.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
    for name, each in every.items():
        points = [(group["predicted"], group["positives"]) for group in each["calibration"]]
        if points:
            x, y = [predicted for predicted, _ in points], [share["value"] for _, share in points]
            errors = [[s["value"] - s["low"] for _, s in points], [s["high"] - s["value"] for _, s in points]]
            axis.errorbar(x, y, errors, fmt="o-", capsize=2, ms=3, lw=1.0, label=_plain(name))
    axis.legend(fontsize=6, frameon=False)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.05, 1.05), xlabel="predicted probability", ylabel="share of positives")
    axis.set_title("calibration", fontsize=10)


def _draw_regression(results: Results, figure: Any) -> None:
    """A regression: sizes of residuals, and each metric on an axis of its own."""
    grid = figure.add_gridspec(len(results["metrics"]), 2)
    axis = figure.add_subplot(grid[:, 0])
    _draw_bars(axis, results["cells"], results["noise"], 0.0, (_COLOURS[0], None))
    told = [_COUNTED[name] for name in results["metrics"] if name in _COUNTED]
    along, title = told[0] if told else ("size of the residual", "residuals")
    axis.set(xlabel=along, ylabel="events" if title == "events" else "records at the node")
    axis.set_title(title, fontsize=10)
    _name_nodes(axis, results["nodes"], more=title != "events")
    for place, (name, metric) in enumerate(results["metrics"].items()):
        axis = figure.add_subplot(grid[place, 1])
        _draw_interval(axis, metric, 0.0)
        axis.set_yticks([])
        axis.set_ylim(-1, 1)
        axis.margins(x=0.3)
        axis.set_title(title_of(name), fontsize=10)


def _draw_bars(axis: Any, cells: Any, noise: float, shift: float, look: tuple[str, str | None]) -> None:
    """Counts with the intervals of their noise alone: sampling is no part of a picture of these records."""
    colour, label = look
    width = 0.8 if shift == 0.0 else 0.4
    places = [place + shift for place in range(len(cells))]
    axis.bar(places, cells, width, color=colour, alpha=0.75, label=label)
    axis.errorbar(places, cells, Z * noise, fmt="none", ecolor="black", elinewidth=0.7, capsize=1.5)
    axis.axhline(0.0, color="black", lw=0.6)


def _name_nodes(axis: Any, nodes: Any, *, more: bool = True) -> None:
    """0 is there twice where scores have two sides; the last has also what is beyond, or no `more`."""
    names = [f"{node:.2g}" for node in nodes]
    for place in range(1, len(nodes)):
        if nodes[place - 1] == nodes[place] == 0:
            names[place - 1 : place + 1] = ["≤ 0", "> 0"]
    names[-1] = f"≥ {names[-1]}" if more else names[-1]
    if nodes[0] < 0:
        names[0] = f"≤ {names[0]}"
    axis.set_xticks(range(len(nodes)), names, fontsize=7, rotation=45)
