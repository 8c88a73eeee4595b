"""The privacy report, a ledger and a model card as pages: self-contained HTML files that print well, without a script.

A report has first what a person in the data would ask, then what a data protection officer would, then what an engineer
would: the template `report.html` has the words, and here is what they are about. A card says what a model is, what it
promises, what was declared, how good it is, and its coefficients: one list of sections, for a page or for Markdown.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from sottovoce import __version__, algorithms
from sottovoce.app.charges import NUMBERS, charges_of, mixed_kinds
from sottovoce.app.texts import readable_size, render, secure_balance
from sottovoce.data.column_kinds import Curve
from sottovoce.data.preparation import ARRANGEMENTS
from sottovoce.data.schema import tell_column
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel, plots
from sottovoce.files import parse_file
from sottovoce.numerals import count_text, interval_text, number_text, promise_text
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.events import CHANGES
from sottovoce.privacy.guarantee import Guarantee, PrivacyReport, as_power, changed_text, percent
from sottovoce.privacy.ledger import Account, Balance, Ledger
from sottovoce.queries.pricing import count_answers

Ledgers = Sequence[tuple[str, Balance, Balance]]  # party, before, after

SIGN = 0.01  # the rate of false alarms at which suspicions are shown
PRIORS = (0.01, 0.1, 0.25, 0.5)  # beliefs that the chart begins with
_MOMENTS: Final = 100  # at which the released part of a budget is drawn
_PRIORS: Final = {"numbers": "public numbers", "private": "a private model", "unprotected": "a model without privacy"}
_TITLES: Final = {"world": "The world", "coordinator": "The coordinator", "parties": "The other parties"}


@dataclass(frozen=True)
class Occasion:
    """What a report says of a training that its model does not know.

    `about` has texts by name: dataset, purpose, analyst, note. `receipts` has for each party the head of its ledger
    after the charge, as a text.
    """

    about: Mapping[str, str] = field(default_factory=dict)
    ledgers: Ledgers = ()
    receipts: Mapping[str, str] = field(default_factory=dict)
    model_hash: str = ""  # SHA-256 of the model file
    seconds: float | None = None


NOTHING_SAID: Final = Occasion()


def page(model: PrivateLinearModel, occasion: Occasion = NOTHING_SAID, *, title: str = "Privacy report") -> str:
    """The page of a fitted model. It shows what is public about the fit, and no metric of the training data."""
    report, plan = model.privacy_, model.plan_
    views = report.views(several=plan.split.several)
    curves: dict[str, Guarantee] = {}  # the views that promise something, by title; those with the same curve together
    for guarantee in reversed(views):
        name = _TITLES[guarantee.adversary]
        same = next((other for other in curves if curves[other].trade_off == guarantee.trade_off), None)
        if same is not None:
            curves[f"{name}, {same[0].lower()}{same[1:]}"] = curves.pop(same)
        elif guarantee.promises:
            curves[name] = guarantee
    plans = getattr(model, "plans_", (plan,))  # of a model from a file only its own plan is known
    queries = {query.name: query for name in plan.names for query in algorithms.of(plan).queries(plan, name)}
    left = [queries[release.query] for release in plan.releases if release.mechanism != "kept"]
    return render(
        "report.html",
        title=title,
        name=type(model).__name__,
        occasion=occasion,
        model=model,
        plan=plan,
        split=plan.split.place.format(len(plan.parties)),
        report=report,
        views=views,
        curves=curves,
        rests=tuple(dict.fromkeys(text for *_, after in occasion.ledgers for text in after.rests_on)),
        declared=public_facts(plan, model),
        ranges=declared_columns(model),
        errors=tuple(_describe_errors(model)) if hasattr(model, "coefficients_") else (),
        owners=[party for party, count in zip(plan.names, plan.columns, strict=False) for _ in range(count)],
        shapes=() if model.schema_ is None else tuple(_describe_shapes(model)),
        releases=[row for each in plans for row in releases(each)],
        single=tuple(dict.fromkeys(query.title for query in left if query.each_person)),
        promises=tuple(dict.fromkeys(ARRANGEMENTS[each.layout].promise for each in plans)),
        titles=_TITLES,
        changes=CHANGES,
        priors=PRIORS,
        sign=SIGN,
        infinite=math.inf,
        exponential=as_power,
        grown=raise_belief,
        percent=percent,
        size=readable_size,
    )


def promise_of(report: PrivacyReport, plan: Plan) -> tuple[Part, ...]:
    """What is promised against each adversary, in sentences, and what that rests on."""
    sentences = (view.sentence() for view in report.views(several=plan.split.several))
    return (*sentences, *report.notes(), "This rests on:", report.assumptions)


def releases(plan: Plan) -> Iterator[tuple[str, Release, int, float]]:
    """The title of each release, what it is, how often it is made, and how far a record moves it."""
    times = count_answers(plan, algorithms.of(plan)) if plan.split.same_people else Counter()
    titles = algorithms.titles(plan)
    for release in plan.releases:
        yield titles[release.query], release, times[release.query] or release.total, release.charged(plan.relation)


def public_facts(plan: Plan, model: object = None) -> list[tuple[str, str]]:
    """What was declared, but for the ranges of single features."""
    neighbours = f"{plan.relation}: {changed_text(plan.relation, plan.protects)}"
    if plan.protects == "feature":
        neighbours = "one column of one party had been blank or any other; records are not protected"
    bounds = plan.bounds
    several = plan.most_records is not None
    facts = [("People" if several else "Records", ", ".join(f"{party}: {count:,}" for party, count in plan.parties))]
    if plan.split.same_people:
        widths = ", ".join(f"{party}: {count}" for party, count in zip(plan.names, plan.columns, strict=True))
        facts.append(("Columns", f"{widths}; of the same people, in the same order"))
        facts.append(("Labels", known_labels(plan)))
    classes = (" and " if len(plan.classes or ()) == 2 else ", ").join(map(str, plan.classes or ()))
    facts += [("Neighbours", neighbours), ("Classes", classes or "none: the label is a number")]
    if plan.class_weight:
        each = zip(plan.classes or (), plan.class_weight, strict=True)
        facts.append(("Weights of the classes", ", ".join(f"{label}: {weight:g}" for label, weight in each)))
    if (prior := getattr(plan.numbers, "prior", None)) is not None:
        whose = f"; its plan: {prior.plan}" if prior.plan else ""
        facts.append(("Prior", f"{_PRIORS[prior.source]}; {len(prior.weights)} public weights{whose}"))
    if bounds.label_low is not None:
        facts.append(("Range of the label", f"{bounds.label_low:g} to {bounds.label_high:g}"))
    if bounds.row_norm is not None:
        facts.append(("Norm of a row", f"at most {bounds.row_norm:g}"))
    if isinstance(bounds.entry_bound, float):
        facts.append(("Every feature", f"at most {bounds.entry_bound:g} in absolute value"))
    if bounds.feature_low is None and not isinstance(bounds.entry_bound, tuple):
        names = list(getattr(model, "feature_names_in_", []))
        facts.append(("Features", f"{plan.features}: {', '.join(names)}" if names else str(plan.features)))
    return facts


def declared_ranges(plan: Plan) -> list[tuple[float, float]]:
    """Of each feature, where there is one for each; else none."""
    bounds = plan.bounds
    if bounds.feature_low is not None and bounds.feature_high is not None:
        return list(zip(bounds.feature_low, bounds.feature_high, strict=True))
    return [(-bound, bound) for bound in bounds.entry_bound] if isinstance(bounds.entry_bound, tuple) else []


def declared_columns(model: PrivateLinearModel) -> list[tuple[int, str, str]]:
    """The place of its first feature, the name of each column and what it holds; without a schema of each feature."""
    if model.schema_ is not None:
        return [(own.start, column.name, tell_column(column)) for own, column in model._columns.placed]
    named = zip(feature_names(model), declared_ranges(model.plan_), strict=False)
    return [(place, name, f"from {low:g} to {high:g}") for place, (name, (low, high)) in enumerate(named)]


def curves_of(model: PrivateLinearModel) -> dict[int, tuple[int, Curve]]:
    """By the place of its first feature, how many features make a curve, and its column."""
    placed = model._columns.placed
    return {own.start: (len(column.basis[0]), column) for own, column in placed if isinstance(column, Curve)}


def feature_names(model: PrivateLinearModel) -> list[str]:
    """As the fit had them, or by their places."""
    names = getattr(model, "feature_names_in_", ())
    return list(map(str, names)) or [f"feature {place}" for place in range(model.plan_.features)]


def known_labels(plan: Plan) -> str:
    """Who knows the labels."""
    holder = plan.label_party_name
    return {
        "public": "everybody may know them",
        "shared": "all parties know them, nobody else does",
        "held": f"{holder} knows them, nobody else does",
    }[plan.labels]


def raise_belief(guarantee: Guarantee, prior: float, false_alarms: float = SIGN) -> float:
    """How far a view can raise a belief of `prior` by a sign that is false at that rate.

    The belief after an accusation, by Bayes: p d / (p d + (1 - p) a), with detections d = 1 - missed. Of the best test
    with a false alarms, and so of every test with a or more, no accusation leads to more.
    """
    missed = 1 - guarantee.detected(false_alarms)
    found = prior * (1 - missed)
    return found / (found + (1 - prior) * false_alarms)


def ledger_page(ledger: Ledger) -> str:
    """The page of a ledger, for its holder: names, purposes and costs; no released value and no key."""
    entries, now, accounts = ledger.verify(), datetime.now(UTC), ledger.accounts()
    return render(
        "ledger.html",
        title=f"Ledger {ledger.path.name}",
        accounts=[_describe_account(account, now) for account in accounts],
        entries=entries,
        receipt=accounts[0].receipt(),
        numbers=NUMBERS,
        secure_balance=secure_balance,
    )


def _describe_account(account: Account, now: datetime) -> dict[str, Any]:
    """An account with its charges, and its curves: (share of the time, share of the budget)."""
    history, book, charges = account.history(), account.book(), tuple(charges_of(account))
    opened = datetime.fromisoformat(history[0].written)
    span = max((now - opened).total_seconds(), 1.0)

    def steps(values: Sequence[tuple[datetime, float]]) -> list[tuple[float, float]]:
        points, before = [(0.0, 0.0)], 0.0
        for when, share in (*values, (now, values[-1][1] if values else 0.0)):
            time = (when - opened).total_seconds() / span
            points += [(time, min(before, 1.0)), (time, min(share, 1.0))]
            before = share
        return points

    moments = [opened + (now - opened) * k / _MOMENTS for k in range(_MOMENTS + 1)]
    released = [(when, min(book.terms.released(opened, when) / book.limit, 1.0)) for when in moments]
    return {
        "name": account.dataset,
        "terms": account.terms(),
        "balance": account.balance(),
        "charges": charges,
        "marked": sum(bool(known.rests_on) for known in book.reservations),
        "mixed": mixed_kinds(account),
        "opened": f"{opened:%Y-%m-%d}",
        "used": steps([(datetime.fromisoformat(each.entries[-1].written), each.share) for each in charges]),
        "released": [] if book.terms.allowance is None else steps(released),
    }


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


def attack_of(model: Path) -> Path:
    """Where `sottovoce audit --plan` writes what it proved of a model."""
    return model.with_name(f"{model.stem}.audit.json")


def load_attack(path: Path, model: PrivateLinearModel) -> PrivacyReport:
    """The report of a model with what `sottovoce audit --plan` proved of it."""
    told = parse_file(path, json.loads, "an attack", "`sottovoce audit --plan` writes one; or delete it.")
    if not isinstance(told, dict) or told.pop("model", None) != model.charged_as_:
        raise InputError(f"{path} is no attack on this model; `sottovoce audit --plan` writes one, or delete it.")
    try:
        return PrivacyReport.from_dict(model.privacy_.to_dict() | {"attack": told})
    except (TypeError, ValueError):
        raise InputError(f"{path} is no attack of this version; `sottovoce audit --plan` writes one.") from None


def make_card(model: PrivateLinearModel, told: Told | None) -> dict[str, tuple[Part, ...]]:
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
    ranges = [row for _, *row in declared_columns(model)]
    declared: list[Part] = [CardTable(("", ""), tuple(facts), numbers=False)]
    if ranges:
        declared.append(CardTable(("Column", "What it holds"), tuple(map(tuple, ranges)), numbers=False))
    if estimated := ", ".join(getattr(model, "ranges_", ())):
        declared.append(f"Bought with a part of the fit's budget, and not declared: {estimated}.")
    return {
        "What it is": (CardTable(("", ""), tuple(identity), numbers=False),),
        "What it promises": promise_of(report, plan),
        "What was declared of the data, and is public": tuple(declared),
        "How good it is": tuple(describe_evaluation(told)),
        **({"Shapes": shapes} if (shapes := tuple(_describe_shapes(model))) else {}),
        "Coefficients": tuple(_describe_coefficients(model)),
    }


def describe_evaluation(told: Told | None) -> Iterable[Part]:
    """The parts of a page about what `Evaluation.to_dict` told."""
    if told is None:
        yield "Not said here. A private evaluation tells it, on test records and for a budget of their own."
        return
    own = promise_text(float(told["privacy"]["epsilon"]), told["privacy"]["delta"])
    yield (
        f"On {count_text(told['records'])} test records, with 95% intervals that include sampling and noise. The "
        f"evaluation has a promise of its own: {own}."
    )
    if told["people"] == "others":
        yield "The test people are declared to be others than those of the fit: each person pays for one of the two."
    elif (both := told.get("with_fit")) is not None:
        yield (
            "The test people are declared to be those of the fit. Fit and evaluation together promise "
            f"{promise_text(float(both['epsilon']), both['delta'])}"
            f"{'; the fit ' + told['fit_mark'] if told.get('fit_mark') else ''}."
        )
    if beyond := told.get("beyond"):
        yield f"{plots.beyond_text(beyond).capitalize()}."
    if not told["complete"]:
        yield "Some test records could not be used (missing cells, or labels that were not declared)."
    heads = ("", "value", "from", "to")
    yield CardTable(
        heads, tuple((plots.title_of(name), *_format_interval(found)) for name, found in told["metrics"].items())
    )
    if groups := told.get("groups"):
        yield (
            f"By {told['by']}, with 95% intervals. All groups are from the same release; what stands for all records "
            "is the sum of their counts."
        )
        heads_of = ("", *(f"{group['name']}" for group in groups))
        counts = ("records, about", *(count_text(group["records"]["value"]) for group in groups))
        rows = [
            (plots.title_of(name), *(_one_cell(group["metrics"][name]) for group in groups)) for name in told["metrics"]
        ]
        yield CardTable(heads_of, (counts, *rows))
    if told["by_class"]:
        each = zip(told["classes"], told["by_class"], strict=True)
        rows = [(f"{name} of {label}", *_format_interval(found[name])) for label, found in each for name in found]
        yield CardTable(heads, tuple(rows))
    try:
        yield Picture(svg_of(plots.draw(told, plots.new_figure())), "the evaluation: metrics, curves and counts")
    except InputError as error:  # matplotlib is an extra
        yield f"No picture: {error}"


def _describe_shapes(model: PrivateLinearModel) -> Iterable[Part]:
    """What each column adds to the score, where some column is a curve and its coefficients are here."""
    curves = {} if model.schema_ is None or model.plan_.models == "kept" else curves_of(model)
    if not curves:
        return
    shapes, several = model.shapes_, len(np.atleast_2d(model.coef_)) > 1
    yield "What a column adds to the score, beside its mean; a curve is linear between its knots."
    heads = ("curve", *(map(str, model.plan_.classes or ()) if several else ("least and largest effect",)))
    names = [column.name for _, column in curves.values()]
    yield CardTable(heads, tuple((name, *shapes[name].extremes()) for name in names), numbers=False)
    if ordered := ", ".join(name for name in names if name in model._columns.ordered):
        yield f"Put in order after the fit, as declared: {ordered}."
    try:
        yield Picture(svg_of(model.plot_shapes(plots.new_figure())), "what each column adds to the score")
    except InputError as error:  # matplotlib is an extra
        yield f"No picture: {error}"


def _format_interval(metric: Told) -> tuple[str, ...]:
    """Value and interval; what cannot be told is a dash."""
    return tuple("-" if metric[name] is None else number_text(metric[name]) for name in ("value", "low", "high"))


def _one_cell(metric: Told) -> str:
    return "-" if None in metric.values() else interval_text(metric["value"], metric["low"], metric["high"])


def svg_of(figure: Any, *, fonttype: str = "path") -> Markup:
    """A figure as one element that names nothing from elsewhere; texts are drawn lines, or by fonttype="none" texts."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "sottovoce", "svg.fonttype": fonttype}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(_METADATA))
    svg = text.getvalue()
    wide = re.sub(r' (?:width|height)="[0-9.]+pt"', "", svg[svg.index("<svg") :], count=2)  # as there is room
    return Markup(wide)  # noqa: S704  # matplotlib escapes


_METADATA: Final = ("Creator", "Date", "Format", "Type")  # which name addresses


def _describe_coefficients(model: PrivateLinearModel) -> Iterable[Part]:
    if model.plan_.models == "kept":
        yield "Each party keeps those of its own columns; they are not here."
        return
    if errors := tuple(_describe_errors(model)):
        yield from errors
        yield "The model itself predicts by damped coefficients, which its file has; they say less of the columns."
        return
    rows, intercepts = np.atleast_2d(model.coef_), np.ravel(model.intercept_)
    names, curves = feature_names(model), {} if model.schema_ is None else curves_of(model)
    told = {place for first, (count, _) in curves.items() for place in range(first, first + count)}
    order = np.setdiff1d(np.arange(rows.shape[1]), list(told)).astype(np.int64)
    if len(order) > MOST_COEFFICIENTS:
        order = np.sort(order[np.argsort(-np.abs(rows[:, order]).max(axis=0), kind="stable")[:MOST_COEFFICIENTS]])
        yield f"The {MOST_COEFFICIENTS} features of {rows.shape[1]} with the largest coefficients."
    if curves:
        yield "Without those of curves, which are told above by their shapes."
    several = len(rows) > 1
    heads = ("feature", *(map(str, model.plan_.classes or ()) if several else ("coefficient",)))
    table = [(names[j], *(f"{value:.6g}" for value in rows[:, j])) for j in order]
    texts = [f"{value:.6g}" for value in intercepts]
    last = [("intercept", *texts)]
    if model.plan_.scaled_loss.ordered:  # one row, and an intercept for each step
        last = [
            (f"intercept, above {name}", text) for name, text in zip(model.plan_.classes or (), texts, strict=False)
        ]
    table += last
    if (ratio := getattr(model, "ratio_name", None)) is not None:
        heads, columns = (*heads, ratio), [*(rows[0, j] for j in order), intercepts[0]]
        table = [(*row, f"{np.exp(min(value, 690.0)):.6g}") for row, value in zip(table, columns, strict=True)]
    yield CardTable(heads, tuple(table))
    yield "They were computed from noisy sums: they have errors of the noise besides those of sampling."


def _describe_errors(model: PrivateLinearModel) -> Iterable[Part]:
    """The coefficients with standard errors, where they were bought."""
    if (found := getattr(model, "coefficients_", None)) is None:
        return
    yield "With standard errors, of a step without damping from the model; intervals include sampling and noise."
    heads, rows = found.cells()
    if told := tuple(tuple(row) for row in rows if len(row) == len(heads)):
        yield CardTable(tuple(heads), told)
    if hidden := Counter(row[0].split("=")[0] for row in rows if len(row) < len(heads)):
        each = (name if count == 1 else f"{name} ({count} levels)" for name, count in hidden.items())
        yield f"Not identified at this epsilon, {hidden.total()} of {len(rows)}: {', '.join(each)}."
