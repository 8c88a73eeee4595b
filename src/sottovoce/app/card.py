"""A model card: what a model is, what it promises, what was declared, how good it is, its coefficients.

One list of sections, written as a page (HTML, nothing from elsewhere) or as Markdown.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from sottovoce import __version__
from sottovoce.app.page import declared_ranges, feature_names, public_facts
from sottovoce.app.texts import render
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel, plots
from sottovoce.files import parse_file

Told = Mapping[str, Any]

MOST_COEFFICIENTS: Final = 100  # features whose coefficients are shown; of more the largest
FORMATS: Final = (".html", ".md")
_PARTS: Final = ("metrics", "classes", "by_class", "confusion", "records", "people", "model", "privacy")


@dataclass(frozen=True)
class CardTable:
    """Heads and rows of texts; columns after the first are numbers where `numbers`."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: bool = True


@dataclass(frozen=True)
class Picture:
    """An SVG, and what it shows."""

    svg: Markup
    what: str


Part = str | tuple[str, ...] | CardTable | Picture  # a paragraph, a list, ...


def load_evaluation(path: Path, model: PrivateLinearModel) -> Told:
    """What `sottovoce evaluate --output` wrote about this model."""
    told = parse_file(path, json.loads, "an evaluation", "give what `sottovoce evaluate --output` wrote.")
    if not isinstance(told, dict) or not set(_PARTS) <= set(told):
        raise InputError(f"{path} is no evaluation of this version; `sottovoce evaluate --output` writes one.")
    if told["model"] != model.charged_as_:
        raise InputError(f"{path} is an evaluation of another model; evaluate this one.")
    return told


def sections(model: PrivateLinearModel, told: Told | None) -> dict[str, tuple[Part, ...]]:
    """The card of a fitted model by titles, with an evaluation of it where there is one."""
    report, plan = model.privacy_, model.plan_
    facts = public_facts(plan, model)
    if model.schema_ is not None and model.schema_.label is not None:
        facts.append(("Label", model.schema_.label))
    identity = [
        ("Model", type(model).__name__),
        ("Loss and penalty", f"{plan.loss.name}, {plan.regulariser.name}"),
        ("Solver", plan.algorithm),
        *((name.capitalize(), text) for name, text in plan.about.texts().items()),
        ("Plan, as in ledgers", model.charged_as_),
        ("Software", f"sottovoce {__version__}"),
        ("Written", f"{datetime.now(UTC):%Y-%m-%d} UTC"),
    ]
    promises = [view.sentence() for view in report.views(several=plan.split.several)]
    named = zip(feature_names(model), declared_ranges(plan), strict=False)
    ranges = [(name, f"{low:g}", f"{high:g}") for name, (low, high) in named]
    declared: list[Part] = [CardTable(("", ""), tuple(facts), numbers=False)]
    if ranges:
        declared.append(CardTable(("feature", "from", "to"), tuple(ranges)))
    if estimated := ", ".join(getattr(model, "ranges_", ())):
        declared.append(f"Bought with a part of the fit's budget, and not declared: {estimated}.")
    return {
        "What it is": (CardTable(("", ""), tuple(identity), numbers=False),),
        "What it promises": (*promises, *report.remarks(), "This rests on:", report.assumptions),
        "What was declared of the data, and is public": tuple(declared),
        "How good it is": tuple(_describe_evaluation(told)),
        "Coefficients": tuple(_describe_coefficients(model)),
    }


def _describe_evaluation(told: Told | None) -> Iterable[Part]:
    if told is None:
        yield "Not said here. A private evaluation tells it, on test records and for a budget of their own."
        return
    epsilon = float(told["privacy"]["epsilon"])
    yield (
        f"On {told['records']:,} test records, with 95% intervals that include sampling and noise. The evaluation has "
        f"a promise of its own: epsilon = {epsilon:.4g}, delta = {told['privacy']['delta']:g}."
    )
    if told["people"] == "others":
        yield "The test people are declared to be others than those of the fit: each person pays for one of the two."
    elif (both := told.get("with_fit")) is not None:
        yield (
            "The test people are declared to be those of the fit. Fit and evaluation together promise "
            f"epsilon = {float(both['epsilon']):.4g}, delta = {both['delta']:.3g}"
            f"{'; the fit ' + told['fit_mark'] if told.get('fit_mark') else ''}."
        )
    if not told["complete"]:
        yield "Some test records could not be used (missing cells, or labels that were not declared)."
    heads = ("", "value", "from", "to")
    yield CardTable(
        heads, tuple((plots.title_of(name), *_format_interval(found)) for name, found in told["metrics"].items())
    )
    if told["by_class"]:
        each = zip(told["classes"], told["by_class"], strict=True)
        rows = [(f"{name} of {label}", *_format_interval(found[name])) for label, found in each for name in found]
        yield CardTable(heads, tuple(rows))
    try:
        yield Picture(svg_of(told), "the evaluation: metrics, curves and counts")
    except InputError as error:  # matplotlib is an extra
        yield f"No picture: {error}"


def _format_interval(metric: Told) -> tuple[str, ...]:
    """Value and interval; what cannot be told is a dash."""
    return tuple("-" if metric[name] is None else f"{metric[name]:.4g}" for name in ("value", "low", "high"))


def svg_of(told: Told) -> Markup:
    """The picture of an evaluation, as one element that names nothing from elsewhere; texts in it are drawn lines."""
    figure, text = plots.new_figure(), io.StringIO()
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "sottovoce"}):
        plots.draw(told, figure).savefig(text, format="svg", metadata=dict.fromkeys(_METADATA))
    svg = text.getvalue()
    wide = re.sub(r' (?:width|height)="[0-9.]+pt"', "", svg[svg.index("<svg") :], count=2)  # as there is room
    return Markup(wide)  # noqa: S704  # matplotlib escapes


_METADATA: Final = ("Creator", "Date", "Format", "Type")  # which name addresses


def _describe_coefficients(model: PrivateLinearModel) -> Iterable[Part]:
    if model.plan_.models == "kept":
        yield "Each party keeps those of its own columns; they are not here."
        return
    rows, intercepts = np.atleast_2d(model.coef_), np.ravel(model.intercept_)
    names, order = feature_names(model), np.arange(rows.shape[1])
    if len(order) > MOST_COEFFICIENTS:
        order = np.sort(np.argsort(-np.abs(rows).max(axis=0), kind="stable")[:MOST_COEFFICIENTS])
        yield f"The {MOST_COEFFICIENTS} features of {rows.shape[1]} with the largest coefficients."
    several = model.plan_.scaled_loss.outputs > 1
    heads = ("feature", *(map(str, model.plan_.classes or ()) if several else ("coefficient",)))
    table = [(names[j], *(f"{value:.6g}" for value in rows[:, j])) for j in order]
    yield CardTable(heads, (*table, ("intercept", *(f"{value:.6g}" for value in intercepts))))
    if (found := getattr(model, "coefficients_", None)) is not None:
        yield "With standard errors, of a step without damping from the model; intervals include sampling and noise."
        ends = ("estimate", "standard_error", "low", "high")
        told = [(row.name, *(f"{getattr(row, end):.4g}" for end in ends)) for row in found if row.identified]
        yield CardTable(("", "estimate", "standard error", "95% from", "to"), tuple(told))
        if hidden := ", ".join(row.name for row in found if not row.identified):
            yield f"Not identified at this epsilon: {hidden}."
    yield "They were computed from noisy sums: they have errors of the noise besides those of sampling."


def as_html(title: str, made: Mapping[str, Sequence[Part]]) -> str:
    """The card as a page."""
    return render("card.html", title=title, sections=made)


def as_markdown(title: str, made: Mapping[str, Sequence[Part]], picture: str) -> str:
    """The card as Markdown; `picture` is the file beside it that has the picture, if there is one."""
    return render("card.md", title=title, sections=made, picture=picture)
