"""The privacy report as a page: one self-contained HTML file that prints well and needs no script.

First what a person in the data would ask, then what a data protection officer would, then what an engineer would.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sottovoce import __version__, algorithms
from sottovoce.app.charts import SIGN, grown, suspicions, trade_off
from sottovoce.app.texts import escaped as escape
from sottovoce.app.texts import readable_size
from sottovoce.data.preparation import ARRANGEMENTS
from sottovoce.estimators import PrivateLinearModel
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import VIEWS, Adversary, Guarantee, PrivacyReport, exponential, percent
from sottovoce.privacy.ledger import Balance
from sottovoce.privacy.relation import CHANGES
from sottovoce.queries.messages import answers_of

Ledgers = Sequence[tuple[str, Balance, Balance]]  # party, before, after

_TITLES: Final = {"world": "The world", "coordinator": "The coordinator", "parties": "The other parties"}
STYLE: Final = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --paper: #ffffff; --card: #f5f7fa; --mark: #2f5d8c;
  --pale: #c9d8e8; --warn: #9b2c1f; --second: #b8741a; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #a0abba; --line: #38424f; --paper: #151a21;
  --card: #1e252e; --mark: #7fb0e0; --pale: #34506c; --warn: #f08c7d; --second: #e3a758; } }
@media print { :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --card: #fff; --mark: #2f5d8c;
  --pale: #c9d8e8; --warn: #9b2c1f; --second: #b8741a; }
  .card, tr, svg, footer, table:not(.ranges) { break-inside: avoid; }
  h2, h3, h4 { break-after: avoid; } section:nth-of-type(2) { break-before: page; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
* { box-sizing: border-box; }
body { margin: 3rem auto; max-width: 54rem; padding: 0 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
@media print { body { margin: 0; max-width: none; padding: 0; font-size: 10.5pt; } }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 2.8rem 0 .6rem; padding-top: .8rem; border-top: 2px solid var(--mark); }
h3 { font-size: 1.08rem; margin: 1.8rem 0 .5rem; }
h4 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.card h4 { margin: 0 0 .3rem; }
li { margin: .35rem 0; }
figure { margin: .6rem 0; }
p { margin: .4rem 0; }
.soft { color: var(--soft); }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .8rem; margin-top: 1.4rem; }
.numbers div, .card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .8rem 1rem; }
.numbers b { display: block; font-size: 1.5rem; font-weight: 600; line-height: 1.3; }
.numbers span { color: var(--soft); font-size: .9rem; }
.card { margin: .7rem 0; }
.card.void { border-color: var(--warn); }
.void b, b.void { color: var(--warn); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
table + table { margin-top: .8rem; }
th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; font-size: .9rem; color: var(--soft); }
td.number, th.number { text-align: right; }
.bar { background: var(--line); border-radius: .25rem; height: .8rem; min-width: 9rem; overflow: hidden;
  display: flex; }
.bar i { display: block; height: 100%; background: var(--pale); }
.bar i + i { background: var(--mark); }
svg text { fill: var(--ink); font-size: 13px; font-family: inherit; }
svg .soft { fill: var(--soft); }
svg .before { fill: var(--pale); }
svg .after { fill: var(--mark); }
svg .axis { stroke: var(--line); }
svg polyline { fill: none; stroke-width: 2; stroke: var(--mark); }
svg .guess { stroke: var(--soft); stroke-dasharray: 4 4; stroke-width: 1.2; }
svg .c1 { stroke: var(--second); }
svg .c2 { stroke: var(--ink); stroke-dasharray: 7 3; }
.facts th { width: 11rem; }
.ranges { margin-top: .8rem; }
.ranges td { padding-top: .2rem; padding-bottom: .2rem; }
@media print { h2 { margin-top: 1rem; } td, th { padding-top: .2rem; padding-bottom: .2rem; } }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .88em; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .8rem; color: var(--soft);
  font-size: .9rem; }
"""


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
    weakest, name = report.weakest, type(model).__name__
    about = occasion.about
    subject = f"<p>{escape(': '.join(filter(None, (about.get('dataset'), about.get('purpose')))))}</p>" if about else ""
    parts = (
        _part("For a person in the data", _person(report, plan)),
        _part(
            "For a data protection officer",
            _section("What this is", _identity(model, occasion)),
            _section("Against whom", *_adversaries(report, plan)),
            _section("What this rests on", _list(report.assumptions)),
            _section("Budgets", _budget(plan, occasion)),
            _section("What was declared, and is public", _facts(plan, model), _ranges(plan, model), _bought(model)),
        ),
        _part(
            "For an engineer",
            *_coefficients(model),
            _section("What left the parties", *_releases(plan, _plans(model))),
            _section("How it was done", _method(plan, model, occasion.seconds)),
        ),
    )
    body = f"""<header>
<h1>{escape(title)}</h1>
{subject}
<p class="soft">{escape(name)} by the solver <code>{escape(plan.algorithm)}</code>, {escape(_split(plan))}</p>
<div class="numbers">
{_number(_epsilon(weakest), _named(weakest))}
{_world(report)}
{_number(f"{weakest.delta:g}", "delta")}
{_number(f"{plan.records:,}", "records")}
</div>
</header>
{"".join(parts)}
<footer>
<p>Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by sottovoce {escape(__version__)}.</p>
</footer>
"""
    return document(title, body)


def document(title: str, body: str) -> str:
    """A whole page, with its style and without a script or anything from elsewhere; the body is HTML already."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}</body>
</html>
"""


def _kinds(uplink: Mapping[str, int]) -> str:
    """The parties' bytes by what they are."""
    parts = ", ".join(f"{kind} {readable_size(count)}" for kind, count in uplink.items())
    return f" (of it {parts})" if parts else ""


def _person(report: PrivacyReport, plan: Plan) -> str:
    """The promise in everyday words, or that there is none."""
    guarantee = report.weakest
    if not guarantee.promises:
        why = guarantee.void or "Values left without noise, so nothing limits what they reveal of a record."
        return f'<div class="card void"><b>No promise is made.</b> <p>{escape(why)}</p></div>'
    if guarantee.unit == "feature":
        what = "A feature of one party is protected, and no record: nothing limits what messages reveal of a person."
        return f'<div class="card void"><b>No promise is made to a person.</b> <p>{what}</p></div>'
    changed, five = CHANGES[guarantee.relation], percent(guarantee.detected(0.05))
    doubt = {"zero-out": "that your record was used", "replace-one": "that your record says this and not that"}
    rare = percent(grown(guarantee, 0.1, 0.001))
    single = ", also numbers about single people" if _about_people(plan) else ""
    return (
        f"<p>A model was trained on {plan.records:,} records, and one of them may be yours. No record left its holder "
        f"as it is: what left was blurred with random noise first{single}. So this holds, whoever looks, and whatever "
        "else they know:</p><ul>"
        "<li><b>Your record changes little.</b> Whatever anybody concludes about you from the results, the chance of "
        f"concluding it is at most {exponential(guarantee.epsilon)} times the chance if your record {changed}, plus "
        f"{_chance(guarantee.delta)}; and the same the other way round.</li>"
        "<li><b>You are hard to find.</b> Somebody knows everything about everybody else and wants to know whether "
        f"your record is there, as it is, or {changed}. If they accept a false alarm for 5 of 100 people whose record "
        f"is not there, they find at most {five} of those whose record is. With no results at all, by guessing, they "
        "would find 5%.</li>"
        f"<li><b>A suspicion grows little.</b> Somebody suspects {doubt[guarantee.relation]}, looks for signs of it, "
        f"and sees one that would be false for {100 * SIGN:g} of 100 people or more. Then they may believe it so far, "
        f"and no further:</li></ul>{suspicions(guarantee)}"
        f"<p>Rarer signs can say more, and come more rarely: one that is false for 1 of 1,000 people makes 10% at most "
        f"{rare}.</p>{_conditions(guarantee)}"
        "<p class='soft'>It is no promise that nothing is learned about people like you: what the model shows of all "
        "of them it would show without you. Who trained it and what for, which features were used, who may learn what, "
        "and what the promise rests on: all that is below.</p>"
    )


def _named(guarantee: Guarantee) -> str:
    """What the number of the weakest guarantee is called."""
    if guarantee.unit == "feature":
        return "epsilon of a feature, against everybody"
    sealed = f"; {guarantee.mark}" if guarantee.promises and guarantee.computational else ""
    return f"epsilon, against everybody{sealed}"


def _conditions(guarantee: Guarantee) -> str:
    """What a promise of sealed sums rests on, for a person."""
    if not guarantee.computational:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in guarantee.assumes)
    return (
        "<p><b>This promise rests on encryption, and on who works with whom.</b> It holds against anybody who cannot "
        f"break the encryption, and only if</p><ul>{items}</ul><p>{escape(guarantee.if_broken)}</p>"
    )


def _chance(probability: float) -> str:
    """A small probability as people say it, rounded up."""
    return f"1 in {math.floor(1 / probability + 1e-6):,}"


def _world(report: PrivacyReport) -> str:
    """The world's epsilon, where it is smaller than that against everybody."""
    smaller = report.world.promises and report.world.epsilon < report.weakest.epsilon * (1 - 1e-6)
    mark = f"; {report.world.mark}" if report.world.computational else ""
    return _number(_epsilon(report.world), f"epsilon, against who sees the model alone{mark}") if smaller else ""


def _adversaries(report: PrivacyReport, plan: Plan) -> Iterable[str]:
    """A card for each view, the curve of each, and some numbers of it."""
    # With all data in one place nobody sees messages: there is only the world.
    views: Iterable[Adversary] = ("world",) if plan.split == "central" else VIEWS
    for view in views:
        yield _adversary(report.against(view))
    if report.pooling:
        yield _pooled(report)
    curves: dict[str, Guarantee] = {}
    for view in reversed(tuple(views)):
        guarantee = report.against(view)
        same = [name for name, other in curves.items() if other.trade_off == guarantee.trade_off]
        if guarantee.promises and not same:
            curves[_TITLES[view]] = guarantee
        elif same:
            curves[f"{_TITLES[view]}, {same[0][0].lower()}{same[0][1:]}"] = curves.pop(same[0])
    if not curves:
        return
    rates = (0.001, 0.01, 0.05, 0.1, 0.25)
    head = "".join(f'<th class="number">{100 * rate:g}%</th>' for rate in rates)
    rows = "".join(
        f"<tr><td>{name}</td>"
        + "".join(f'<td class="number">{percent(guarantee.detected(rate))}</td>' for rate in rates)
        + "</tr>"
        for name, guarantee in curves.items()
    )
    yield (
        f"<h4>The best possible attacker</h4><p>All that a view can tell about one {plan.protects}, in one curve. "
        f"Somebody who knows everything else tests whether it is there as it is. Across: false alarms, how many they "
        "accuse of those for whom it is not so. Up: how many they find of those for whom it is. No test is above the "
        "line, and epsilon and delta are one tangent of it.</p>"
        f"<figure>{trade_off(curves)}</figure>"
        f"<table><tr><th>With false alarms of</th>{head}</tr>{rows}</table>"
        '<p class="soft">In the table: what is found at most, rounded up. Who guesses finds as much as they accept '
        "false alarms.</p>"
    )


def _pooled(report: PrivacyReport) -> str:
    """Those who pool, what is left of the promise against them, and what the sums' noise is."""
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">'
        f"{f'{epsilon:.4g}' if math.isfinite(epsilon) else '<b class=void>in the clear</b>'}</td></tr>"
        for name, epsilon in report.pooled().items()
    )
    told = "".join(f"<p>{escape(remark)}</p>" for remark in report.remarks()[1:])
    return (
        "<h4>Those who pool what they have</h4><p>Sums are sealed: each party adds a share of the noise. Who pools "
        "knows several shares, and less noise is left against them.</p>"
        f'<table><tr><th>Who pools</th><th class="number">Epsilon</th></tr>{rows}</table>{told}'
    )


def _adversary(guarantee: Guarantee) -> str:
    void = "" if guarantee.promises else " void"
    return (
        f'<div class="card{void}"><h4>{_TITLES[guarantee.adversary]}: '
        f"<b>{'' if void else 'epsilon '}{_epsilon(guarantee)}</b></h4><p>{escape(guarantee.sentence())}</p></div>"
    )


def _identity(model: PrivateLinearModel, occasion: Occasion) -> str:
    """What the training was for, and what identifies it and its result."""
    names = {"dataset": "Data set", "purpose": "Purpose", "analyst": "Analyst", "note": "Note"}
    rows = [(names[key], escape(occasion.about.get(key) or "not said")) for key in ("dataset", "purpose", "analyst")]
    if occasion.about.get("note"):
        rows.append((names["note"], escape(occasion.about["note"])))
    rows += [
        ("Written", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("Software", f"sottovoce {escape(__version__)}"),
        ("Plan, as in ledgers", f"<code>{model.charged_as_}</code>"),
    ]
    if occasion.model_hash:
        rows.append(("Model file, SHA-256", f"<code>{occasion.model_hash}</code>"))
    return _table(rows)


def _budget(plan: Plan, occasion: Occasion) -> str:
    rows = []
    for party, before, after in occasion.ledgers:
        added = max(after.share - before.share, 0.0)
        bar = (
            f'<div class="bar" role="img" aria-label="{100 * after.share:.0f}% used"><i style="width:'
            f'{100 * before.share:.1f}%"></i><i style="width:{100 * added:.1f}%"></i></div>'
        )
        rows.append(
            f'<tr><td>{escape(party)}</td><td class="number">{after.total:g} at {after.delta:g}</td>'
            f'<td class="number">{before.left:.3g}</td><td class="number">{after.left:.3g}</td><td>{bar}'
            f'<span class="soft">{100 * before.share:.0f}% used before, {100 * after.share:.0f}% now</span></td></tr>'
        )
    head = '<tr><th>Party</th><th class="number">Epsilon in all, at delta</th><th class="number">Left before</th>'
    told = f'<table>{head}<th class="number">Left now</th><th>Used</th></tr>{"".join(rows)}</table>' if rows else ""
    if rests := tuple(dict.fromkeys(text for _, _, after in occasion.ledgers for text in after.rests_on)):
        told += f"<p>What is spent rests on sealed sums too: it holds if {escape('; if '.join(rests))}.</p>"
    missing = [party for party in plan.names if party not in {name for name, _, _ in occasion.ledgers}]
    if missing and plan.split == "central":
        told += "<p class='soft'>No ledger is known here.</p>"
    elif missing:
        who = ", ".join(map(escape, missing))
        told += (
            f"<p class='soft'>The budget of {who} is not known here: ask there for "
            "<code>sottovoce ledger history</code>.</p>"
        )
    if occasion.receipts:
        held = "".join(
            f"<tr><td>{escape(k)}</td><td><code>{escape(v)}</code></td></tr>" for k, v in occasion.receipts.items()
        )
        told += (
            f"<h4>Receipts</h4><table><tr><th>Party</th><th>Its ledger after the charge</th></tr>{held}</table>"
            "<p class='soft'><code>sottovoce ledger verify --receipt</code> finds a ledger that was set back since.</p>"
        )
    return told


def _coefficients(model: PrivateLinearModel) -> Iterable[str]:
    """With their standard errors, where these were bought."""
    if (table := getattr(model, "coefficients_", None)) is not None:
        told = "Of a step without damping from the model; sampling and noise are in the intervals."
        yield _section("Coefficients", f"<pre>{escape(str(table))}</pre><p class='soft'>{told}</p>")


def _releases(plan: Plan, plans: Sequence[Plan]) -> Iterable[str]:
    """Of a fit's own plan, and of all that ran for it."""
    if not plan.private:
        yield "<p><b class='void'>Every value left as it was, without noise.</b></p>"
        return
    rows = "".join(row for each in plans for row in _rows_of(each))
    yield (
        '<table><tr><th>Value</th><th>over</th><th class="number">Times</th>'
        f'<th class="number">One {plan.protects} moves it by</th>'
        f'<th class="number">Noise (scale)</th></tr>{rows}</table>'
    )
    joint = plan.split == "columns"
    together = " Times are at most, of all parties together: a person is in every party." if joint else ""
    promises = " ".join(dict.fromkeys(ARRANGEMENTS[each.layout].promise for each in plans))
    yield f'<p class="soft">{_what_left(plan)} {promises}{together}</p>'


def _rows_of(plan: Plan) -> list[str]:
    """A row of the table for each release."""
    rows = []
    times = answers_of(plan, algorithms.of(plan)) if plan.split == "columns" else Counter()
    titles = algorithms.titles(plan)
    for release in plan.releases:
        moves = release.charged(plan.relation)
        sampled = "every record" if release.rate in (None, 1.0) else f"a secret {100 * release.rate:g}% of the records"
        name = escape(titles[release.query])
        if release.mechanism == "kept":
            name += ", kept by the party"
        if release.mechanism == "derived":
            count = times[release.query] or release.total
            rows.append(f'<tr><td>{name}</td><td colspan="4">{count:,} times, of the rows that are kept</td></tr>')
            continue
        rows.append(
            f'<tr><td>{name}</td><td>{sampled}</td><td class="number">{times[release.query] or release.total:,}</td>'
            f'<td class="number">{moves:.4g}</td><td class="number">{release.std:.4g}</td></tr>'
        )
    return rows


def _what_left(plan: Plan) -> str:
    """Whether sums alone left, or numbers about single people too."""
    people = _about_people(plan)
    if plan.sealing is not None:
        return (
            "These are sums over the people of all parties, and only they were opened. What left a single party was "
            "sealed. The noise of the table is what is charged for; the sums have more."
        )
    if people:
        return (
            f"<b>Numbers about single people left too, with noise on each: {', '.join(map(escape, people))}.</b> "
            "These values, each with its noise, are all that left a party, besides the public facts above."
        )
    return (
        "These are sums over people, or choices made by such sums. Each with its noise, they are all that left a "
        "party, besides the public facts above."
    )


def _about_people(plan: Plan) -> tuple[str, ...]:
    """What left that is about single people."""
    queries = {query.name: query for name in plan.names for query in algorithms.of(plan).queries(plan, name)}
    left = [queries[release.query] for release in plan.releases if release.mechanism != "kept"]
    return tuple(dict.fromkeys(query.title for query in left if query.each_person))


def _facts(plan: Plan, model: PrivateLinearModel) -> str:
    return _table((key, escape(value)) for key, value in public_facts(plan, model))


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


def _plans(model: PrivateLinearModel) -> tuple[Plan, ...]:
    """All that ran for a fit; of a model from a file only its own plan is known."""
    return getattr(model, "plans_", (model.plan_,))


def _bought(model: PrivateLinearModel) -> str:
    """Which ranges were not declared: a part of the budget paid for them."""
    names = ", ".join(escape(name) for name in getattr(model, "ranges_", ()))
    return f"<p>Bought with a part of this fit's budget, and not declared: {names}.</p>" if names else ""


def _ranges(plan: Plan, model: PrivateLinearModel) -> str:
    """The declared range of each feature, in full, where there is one for each."""
    if not (ranges := declared_ranges(plan)):
        return ""
    names = feature_names(model)
    owners = [name for name, count in zip(plan.names, plan.columns, strict=False) for _ in range(count)]
    holder = "<th>Party</th>" if owners else ""
    rows = "".join(
        f"<tr><td>{escape(name)}</td>{f'<td>{escape(owners[place])}</td>' if owners else ''}"
        f'<td class="number">{low:g}</td><td class="number">{high:g}</td></tr>'
        for place, (name, (low, high)) in enumerate(zip(names, ranges, strict=True))
    )
    return (
        f'<table class="ranges"><tr><th>Feature</th>{holder}<th class="number">from</th><th class="number">to</th></tr>'
        f"{rows}</table>"
    )


def _method(plan: Plan, model: PrivateLinearModel, seconds: float | None) -> str:
    said = model.communication_
    took = "" if seconds is None else f", {seconds:.1f} s"
    joint = len(plan.classes or ()) <= 2 or plan.loss.name == "softmax"
    rest = "" if joint else ", each class against the rest"
    sent = f"{readable_size(said.uplink_bytes)} from the parties{_kinds(said.uplink)}, "
    facts = [
        ("Loss and penalty", f"{plan.loss.name}{rest}, {plan.regulariser.name}"),
        ("Solver and form", f"{plan.algorithm}, {plan.form}"),
        ("Calibration", plan.calibration),
        ("Rounds", f"{said.rounds:,}{took}"),
        ("Bytes", f"{sent}{readable_size(said.downlink_bytes)} to them"),
        (
            "Numbers of the plan",
            ", ".join(f"{key} {_short(value)}" for key, value in plan.numbers.model_dump().items()),
        ),
    ]
    return _table((key, escape(value)) for key, value in facts if value)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _columns(plan: Plan) -> list[tuple[str, Any]]:
    """By columns: who has how many, and who knows the labels."""
    if plan.split != "columns":
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


def _part(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>\n"


def _section(title: str, *parts: str) -> str:
    return f"<h3>{escape(title)}</h3>{''.join(parts)}\n"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values; the values are HTML already."""
    return f'<table class="facts">{"".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in rows)}</table>'


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _number(value: str, what: str) -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"


def _epsilon(guarantee: Guarantee) -> str:
    return f"{guarantee.epsilon:.4g}" if guarantee.promises else "no promise"


def _split(plan: Plan) -> str:
    if plan.split == "central":
        return "all records in one place"
    each = ": each has some features of the same people" if plan.split == "columns" else ""
    return f"{len(plan.parties)} parties, split by {plan.split}{each}"
