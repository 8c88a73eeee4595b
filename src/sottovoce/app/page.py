"""The privacy report as a page: one self-contained HTML file that prints well and needs no script.

First what a person in the data would ask, then what a data protection officer would, then what an engineer would: the
template `report.html` has the words, and here is what they are about.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sottovoce import __version__, algorithms
from sottovoce.app.charts import PRIORS, SIGN, grown
from sottovoce.app.rendering import render
from sottovoce.app.texts import readable_size
from sottovoce.data.preparation import ARRANGEMENTS
from sottovoce.estimators import PrivateLinearModel
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.guarantee import Guarantee, as_power, percent
from sottovoce.privacy.ledger import Balance
from sottovoce.privacy.relation import CHANGES
from sottovoce.queries.messages import answers_of

Ledgers = Sequence[tuple[str, Balance, Balance]]  # party, before, after

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
    plans = getattr(model, "plans_", (plan,))  # of a model from a file only its own plan is known
    ledgers = {party: after for party, _, after in occasion.ledgers}
    return render(
        "report.html",
        title=title,
        name=type(model).__name__,
        version=__version__,
        now=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        occasion=occasion,
        model=model,
        plan=plan,
        split=plan.split.describe(len(plan.parties)),
        report=report,
        views=views,
        curves=_curves(views),
        rests=tuple(dict.fromkeys(text for after in ledgers.values() for text in after.rests_on)),
        unknown=[party for party in plan.names if party not in ledgers],
        declared=public_facts(plan, model),
        ranges=list(zip(feature_names(model), declared_ranges(plan), strict=False)),
        owners=[party for party, count in zip(plan.names, plan.columns, strict=False) for _ in range(count)],
        releases=[row for each in plans for row in releases(each)],
        single=_about_people(plan),
        promises=tuple(dict.fromkeys(ARRANGEMENTS[each.layout].promise for each in plans)),
        titles=_TITLES,
        changes=CHANGES,
        priors=PRIORS,
        sign=SIGN,
        infinite=math.inf,
        exponential=as_power,
        grown=grown,
        percent=percent,
        size=readable_size,
    )


def _curves(views: Iterable[Guarantee]) -> dict[str, Guarantee]:
    """The views that promise something, by title; those with the same curve together."""
    curves: dict[str, Guarantee] = {}
    for guarantee in reversed(list(views)):
        title = _TITLES[guarantee.adversary]
        same = next((name for name, other in curves.items() if other.trade_off == guarantee.trade_off), None)
        if same is not None:
            curves[f"{title}, {same[0].lower()}{same[1:]}"] = curves.pop(same)
        elif guarantee.promises:
            curves[title] = guarantee
    return curves


def releases(plan: Plan) -> Iterator[tuple[str, Release, int, float]]:
    """The title of each release, what it is, how often it is made, and how far a record moves it."""
    times = answers_of(plan, algorithms.of(plan)) if plan.split.same_people else Counter()
    titles = algorithms.titles(plan)
    for release in plan.releases:
        yield titles[release.query], release, times[release.query] or release.total, release.charged(plan.relation)


def _about_people(plan: Plan) -> tuple[str, ...]:
    """What left that is about single people."""
    queries = {query.name: query for name in plan.names for query in algorithms.of(plan).queries(plan, name)}
    left = [queries[release.query] for release in plan.releases if release.mechanism != "kept"]
    return tuple(dict.fromkeys(query.title for query in left if query.each_person))


def public_facts(plan: Plan, model: PrivateLinearModel) -> list[tuple[str, str]]:
    """What was declared, but for the ranges of single features."""
    neighbours = f"{plan.relation}: that person's record {CHANGES[plan.relation]}"
    if plan.protects == "feature":
        neighbours = "one column of one party had been blank or any other; records are not protected"
    bounds = plan.bounds
    facts: list[tuple[str, Any]] = [
        ("Records", ", ".join(f"{party}: {count:,}" for party, count in plan.parties)),
        *_columns(plan),
        ("Neighbours", neighbours),
        (
            "Classes",
            (" and " if len(plan.classes) == 2 else ", ").join(map(str, plan.classes))
            if plan.classes
            else "none: the label is a number",
        ),
    ]
    if plan.class_weight:
        each = zip(plan.classes or (), plan.class_weight, strict=True)
        facts.append(("Weights of the classes", ", ".join(f"{label}: {weight:g}" for label, weight in each)))
    if bounds.label_low is not None:
        facts.append(("Range of the label", f"{bounds.label_low:g} to {bounds.label_high:g}"))
    if bounds.row_norm is not None:
        facts.append(("Norm of a row", f"at most {bounds.row_norm:g}"))
    if isinstance(bounds.entry_bound, float):
        facts.append(("Every feature", f"at most {bounds.entry_bound:g} in absolute value"))
    if bounds.feature_low is None and not isinstance(bounds.entry_bound, tuple):
        names = list(getattr(model, "feature_names_in_", []))
        facts.append(("Features", f"{plan.features}: {', '.join(names)}" if names else plan.features))
    return [(key, str(value)) for key, value in facts]


def declared_ranges(plan: Plan) -> list[tuple[float, float]]:
    """Of each feature, where there is one for each; else none."""
    bounds = plan.bounds
    if bounds.feature_low is not None and bounds.feature_high is not None:
        return list(zip(bounds.feature_low, bounds.feature_high, strict=True))
    return [(-bound, bound) for bound in bounds.entry_bound] if isinstance(bounds.entry_bound, tuple) else []


def feature_names(model: PrivateLinearModel) -> list[str]:
    """As the fit had them, or by their places."""
    names = getattr(model, "feature_names_in_", ())
    return list(map(str, names)) or [f"feature {place}" for place in range(model.plan_.features)]


def _columns(plan: Plan) -> list[tuple[str, Any]]:
    """By columns: who has how many, and who knows the labels."""
    if not plan.split.same_people:
        return []
    widths = ", ".join(f"{party}: {count}" for (party, _), count in zip(plan.parties, plan.columns, strict=True))
    return [("Columns", f"{widths}; of the same people, in the same order"), ("Labels", known_labels(plan))]


def known_labels(plan: Plan) -> str:
    """Who knows the labels."""
    holder = plan.label_party_name
    return {
        "public": "everybody may know them",
        "shared": "all parties know them, nobody else does",
        "held": f"{holder} knows them, nobody else does",
    }[plan.labels]
