"""The privacy report as a page: one self-contained HTML file that prints well and needs no script."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sottovoce import algorithms
from sottovoce.app.costs import readable_size
from sottovoce.app.texts import escaped as escape
from sottovoce.data.preparation import ARRANGEMENTS
from sottovoce.estimators import PrivateLinearModel
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import VIEWS, Adversary, Guarantee
from sottovoce.privacy.ledger import Balance
from sottovoce.privacy.relation import CHANGES
from sottovoce.queries.messages import answers_of

Ledgers = Sequence[tuple[str, Balance, Balance]]  # party, before, after

_TITLES: Final = {"world": "The world", "coordinator": "The coordinator", "parties": "The other parties"}
_STYLE: Final = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --paper: #ffffff; --card: #f5f7fa; --mark: #2f5d8c;
  --pale: #c9d8e8; --warn: #9b2c1f; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #a0abba; --line: #38424f; --paper: #151a21;
  --card: #1e252e; --mark: #7fb0e0; --pale: #34506c; --warn: #f08c7d; } }
@media print { :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --card: #fff; --mark: #2f5d8c;
  --pale: #c9d8e8; --warn: #9b2c1f; } .card, tr, svg, footer { break-inside: avoid; } h2 { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
* { box-sizing: border-box; }
body { margin: 3rem auto; max-width: 54rem; padding: 0 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
@media print { body { margin: 0; max-width: none; padding: 0; font-size: 10.5pt; } }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
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
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .88em; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .8rem; color: var(--soft);
  font-size: .9rem; }
"""


def page(
    model: PrivateLinearModel, *, ledgers: Ledgers = (), seconds: float | None = None, title: str = "Privacy report"
) -> str:
    """The page of a fitted model. It shows what is public about the fit, and no metric of the training data."""
    report, plan, said = model.privacy_, model.plan_, model.communication_
    weakest = report.weakest
    name = type(model).__name__
    # With all data in one place nobody sees messages: there is only the world.
    views: Iterable[Adversary] = ("world",) if plan.split == "central" else VIEWS
    sections = [
        _section("The promise", _promise(weakest)),
        _section("Against whom", *(_adversary(report.against(view)) for view in views)),
        _section("What this rests on", _list(report.assumptions)),
        _section("What left the parties", *_releases(plan)),
        _section("What is public", _facts(plan, model)),
    ]
    if ledgers:
        sections.insert(3, _section("The budget", _budget(ledgers)))
    took = "" if seconds is None else f" and took {seconds:.1f} s"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="soft">{escape(name)} by the solver <code>{escape(plan.algorithm)}</code>, {escape(_split(plan))}</p>
<div class="numbers">
{_number(_epsilon(weakest), f"epsilon{' of a feature' * (weakest.unit == 'feature')}, against everybody")}
{_number(f"{weakest.delta:g}", "delta")}
{_number(f"{plan.records:,}", "records")}
{_number(f"{said.rounds:,}", f"rounds, {readable_size(said.uplink_bytes + said.downlink_bytes)} in all")}
</div>
</header>
{"".join(sections)}
<footer>
<p>The training exchanged {readable_size(said.uplink_bytes)} from the parties{_kinds(said.uplink)} and
{readable_size(said.downlink_bytes)} to them in {said.rounds:,} rounds{took}.
Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by sottovoce.</p>
<p>Plan <code>{model.charged_as_}</code>. A party's ledger lists its charge under this number:
<code>sottovoce ledger history</code>.</p>
</footer>
</body>
</html>
"""


def posterior(prior: float, epsilon: float) -> float:
    """The largest belief that a view can lead to from `prior`: e^eps p / (1 - p + e^eps p), but for delta."""
    factor = math.exp(min(epsilon, 700.0))
    return factor * prior / (1 - prior + factor * prior)


def _kinds(uplink: Mapping[str, int]) -> str:
    """The parties' bytes by what they are."""
    parts = ", ".join(f"{escape(kind)} {readable_size(count)}" for kind, count in uplink.items())
    return f" (of it {parts})" if parts else ""


def _promise(guarantee: Guarantee) -> str:
    if guarantee.void is not None or math.isinf(guarantee.epsilon):
        why = guarantee.void or "Values left without noise, so nothing limits what they reveal of a record."
        return f'<div class="card void"><b>No promise is made.</b> <p>{escape(why)}</p></div>'
    if guarantee.unit == "feature":
        what = "A feature of one party is protected, and no record: nothing limits what messages reveal of a person."
        return f'<div class="card void"><b>No promise is made to a person.</b> <p>{what}</p></div>'
    return (
        "<p>Whatever anybody concludes about a person from this training would have been concluded almost as likely "
        f"if that person's record {CHANGES[guarantee.relation]}. No probability changes by more than the factor "
        f"e<sup>epsilon</sup> = {math.exp(guarantee.epsilon):.4g}, but for events of probability at most "
        f"{guarantee.delta:g}.</p><p>In other words: a suspicion about a person, held before the training, can grow "
        f"at most so far through it (those rare events set aside).</p>{_suspicions(guarantee.epsilon)}"
    )


def _suspicions(epsilon: float) -> str:
    """Bars: a belief before, and the largest it can become."""
    rows, width, left = [], 560, 130
    for place, prior in enumerate((0.01, 0.1, 0.25, 0.5)):
        after, y = posterior(prior, epsilon), 8 + 34 * place
        rows.append(
            f'<text class="soft" x="0" y="{y + 14}">before {100 * prior:.0f}%</text>'
            f'<rect class="after" x="{left}" y="{y}" width="{width * after:.1f}" height="20" rx="3"/>'
            f'<rect class="before" x="{left}" y="{y}" width="{width * prior:.1f}" height="20" rx="3"/>'
            f'<text x="{left + width * after + 8:.1f}" y="{y + 15}">at most {100 * after:.1f}%</text>'
        )
    height = 8 + 34 * len(rows)
    axis = f'<line class="axis" x1="{left}" y1="0" x2="{left}" y2="{height}"/>'
    return (
        f'<svg viewBox="0 0 {left + width + 110} {height}" width="100%" role="img" '
        f'aria-label="How far a suspicion can grow">{axis}{"".join(rows)}</svg>'
    )


def _adversary(guarantee: Guarantee) -> str:
    broken = guarantee.void is not None or math.isinf(guarantee.epsilon)
    return (
        f'<div class="card{" void" if broken else ""}"><h3>{_TITLES[guarantee.adversary]}: '
        f"<b>{'' if broken else 'epsilon '}{_epsilon(guarantee)}</b></h3><p>{escape(guarantee.sentence())}</p></div>"
    )


def _budget(ledgers: Ledgers) -> str:
    rows = []
    for party, before, after in ledgers:
        added = max(after.share - before.share, 0.0)
        bar = (
            f'<div class="bar" role="img" aria-label="{100 * after.share:.0f}% used"><i style="width:'
            f'{100 * before.share:.1f}%"></i><i style="width:{100 * added:.1f}%"></i></div>'
        )
        rows.append(
            f'<tr><td>{escape(party)}</td><td class="number">{after.total:g}</td>'
            f'<td class="number">{before.left:.3g}</td><td class="number">{after.left:.3g}</td><td>{bar}'
            f'<span class="soft">{100 * before.share:.0f}% used before, {100 * after.share:.0f}% now</span></td></tr>'
        )
    head = '<tr><th>Party</th><th class="number">Total epsilon</th><th class="number">Left before</th>'
    return f'<table>{head}<th class="number">Left now</th><th>Used</th></tr>{"".join(rows)}</table>'


def _releases(plan: Plan) -> Iterable[str]:
    if not plan.private:
        yield "<p><b class='void'>Every value left as it was, without noise.</b></p>"
        return
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
    yield (
        '<table><tr><th>Sum</th><th>over</th><th class="number">Times</th>'
        f'<th class="number">One {plan.protects} moves it by</th>'
        f'<th class="number">Noise (scale)</th></tr>{"".join(rows)}</table>'
    )
    together = " Times are at most, of all parties together: a person is in every party." if times else ""
    yield (
        '<p class="soft">These sums, each with its noise, are all that left a party, besides the public facts below. '
        f"{ARRANGEMENTS[plan.layout].promise}{together}</p>"
    )


def _facts(plan: Plan, model: PrivateLinearModel) -> str:
    names = list(getattr(model, "feature_names_in_", []))
    bounds = ", ".join(
        f"{key} = {value}"
        for key, value in plan.bounds.model_dump(exclude_none=True).items()
        if key not in ("feature_low", "feature_high")
    )
    if plan.bounds.feature_low is not None:
        bounds += ", a declared range for every feature"
    neighbours = f"{plan.relation}: that person's record {CHANGES[plan.relation]}"
    if plan.protects == "feature":
        neighbours = "one column of one party had been blank or any other; records are not protected"
    facts: list[tuple[str, Any]] = [
        ("Records", ", ".join(f"{party}: {count:,}" for party, count in plan.parties)),
        ("Features", f"{plan.features}: {', '.join(names)}" if names else plan.features),
        *_columns(plan),
        ("Declared bounds", bounds),
        ("Classes", " and ".join(map(str, plan.classes)) if plan.classes else "none: the label is a number"),
        ("Loss and penalty", f"{plan.loss.name}, {plan.regulariser.name}"),
        ("Neighbours", neighbours),
        ("Calibration", plan.calibration),
    ]
    return "<table>" + "".join(f"<tr><th>{k}</th><td>{escape(str(v))}</td></tr>" for k, v in facts) + "</table>"


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


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>\n"


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _number(value: str, what: str) -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"


def _epsilon(guarantee: Guarantee) -> str:
    if guarantee.void is not None or math.isinf(guarantee.epsilon):
        return "no promise"
    return f"{guarantee.epsilon:.4g}"


def _split(plan: Plan) -> str:
    if plan.split == "central":
        return "all records in one place"
    each = ": each has some features of the same people" if plan.split == "columns" else ""
    return f"{len(plan.parties)} parties, split by {plan.split}{each}"
