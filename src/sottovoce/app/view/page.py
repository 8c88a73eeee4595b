"""The page for operators: rendered here, for a browser with scripts or without; a script only asks for it anew.

Everything that others wrote is escaped. Style and script are in the page, which loads nothing from elsewhere; the
policy in the header names them by their hashes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sottovoce import algorithms
from sottovoce.app.page import STYLE
from sottovoce.app.texts import escaped, readable_size
from sottovoce.estimators import privacy_report
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import VIEWS, Adversary

Document = Mapping[str, Any]
Rows = Iterable[Sequence[str]]

_STYLE: Final = (
    STYLE
    + """
body { margin: 1.6rem auto 3rem; max-width: 62rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-top: .7rem; border-top: 1px solid var(--line); }
.state { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; background: var(--pale); color: var(--ink);
  font-weight: 600; }
.state.bad { background: var(--warn); color: var(--paper); }
.state.good { background: var(--mark); color: var(--paper); }
#lost { border: 2px solid var(--warn); border-radius: .5rem; padding: .6rem 1rem; margin: 1rem 0; font-weight: 600; }
progress { width: 100%; height: 1rem; margin: .8rem 0 .2rem; accent-color: var(--mark); }
.numbers b { font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.away { color: var(--warn); font-weight: 600; }
.there { color: var(--mark); font-weight: 600; }
td { overflow-wrap: break-word; }
time { white-space: nowrap; }
td.when, td.number { white-space: nowrap; }
td.number + td:not(.number), th.number + th:not(.number) { padding-left: 1.2rem; }
a { color: var(--mark); }
tr.warning td { background: color-mix(in srgb, var(--second) 14%, transparent); }
tr.error td { background: color-mix(in srgb, var(--warn) 18%, transparent); }
svg.used { display: block; border-radius: .25rem; margin-top: .2rem; }
svg .all { fill: var(--line); }
details { margin: .6rem 0; }
summary { cursor: pointer; color: var(--mark); }
@media screen and (max-width: 40rem) {
  body { margin-top: .8rem; padding: 0 .9rem; font-size: 15px; }
  h1 { font-size: 1.5rem; }
  .numbers { grid-template-columns: repeat(2, 1fr); gap: .5rem; }
  .numbers div { padding: .5rem .7rem; }
  table, tbody, tr, td { display: block; }
  tr.head { position: absolute; left: -999rem; }
  tr { border-bottom: 1px solid var(--line); padding: .45rem 0; }
  td, td.number, td.number + td:not(.number) { border: 0; padding: .1rem 0; display: flex; gap: .8rem;
    justify-content: space-between; text-align: right; }
  td::before { content: attr(data-name); color: var(--soft); font-size: .9rem; flex: 0 0 auto; text-align: left; }
  td.nil { display: none; }
  td > span { overflow-wrap: anywhere; }
  table.log td { display: inline; text-align: left; }
  table.log td::before { content: none; }
  table.log td + td::before { content: " "; }
}
@media print {
  section:nth-of-type(2) { break-before: auto; }
  #lost { display: none; }
  .numbers { grid-template-columns: repeat(5, 1fr); gap: .4rem; }
  .numbers div { padding: .3rem .5rem; }
  .numbers b { font-size: 1.05rem; }
  h2 { margin-top: .8rem; padding-top: .4rem; }
}
"""
)

_SCRIPT: Final = """
const seen = new Map(), lost = document.getElementById("lost");
let heard = new Date();
async function look() {
  try {
    const answer = await fetch("parts", { cache: "no-store" });
    if (!answer.ok) throw new Error();
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of made.body.children) {
      const old = document.getElementById(part.id);
      if (old && seen.get(part.id) !== part.innerHTML) {
        const open = [...old.querySelectorAll("details")].map((each) => each.open);
        old.innerHTML = part.innerHTML;
        old.querySelectorAll("details").forEach((each, place) => { each.open = open[place] || false; });
        seen.set(part.id, part.innerHTML);
      }
    }
    document.title = document.getElementById("state").textContent + " - " + document.querySelector("h1").textContent;
    heard = new Date();
    lost.hidden = true;
  } catch {
    lost.textContent = "No answer since " + heard.toISOString().slice(11, 19) +
      " UTC: the program has ended or was stopped. Below is what it said last.";
    lost.hidden = false;
  }
  setTimeout(look, document.hidden ? 5000 : 1000);
}
setTimeout(look, 500);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(document: Document, plan: Plan | None) -> str:
    """The whole page."""
    name = escaped(document["end"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<noscript><meta http-equiv="refresh" content="5"></noscript>
<link rel="icon" href="data:,">
<title>{escaped(_state(document)[0])} - {name}</title>
<style>{_STYLE}</style>
</head>
<body>
<p id="lost" role="alert" hidden></p>
<main>
{parts(document, plan)}</main>
<footer><p>sottovoce {escaped(document["version"])}. Times are UTC. No value of the data is on this page: it has public
plans, counts and times. <a href="metrics">Metrics</a>, <a href="state.json">state as JSON</a>.</p></footer>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def parts(document: Document, plan: Plan | None) -> str:
    """The parts of the page that change, each an element with an id."""
    made = [
        ("top", _top(document)),
        ("ends", _ends(document)),
        ("plan", _plan(document, plan)),
        ("budgets", _budgets(document)),
        ("answers", _answers(document) if document["role"] != "coordinator" else ""),
        ("refusals", _refusals(document)),
        ("log", _log(document)),
    ]
    return "".join(f'<section id="{name}">{body}</section>\n' for name, body in made)


def _state(document: Document) -> tuple[str, str]:
    """How things stand in a few words, and whether that is good, bad or neither."""
    away = [end["name"] for end in document["ends"] if end["standing"] in ("lost", "left", "absent")]
    phase, progress = document["phase"], document["progress"]
    if document["role"] != "coordinator" and phase in ("waiting", "done") and not document["ready"]:
        return "waiting for the coordinator", ""
    if phase in ("failed", "stopped", "done"):
        return f"{phase}", {"failed": "bad", "done": "good"}.get(phase, "")
    if away:
        return f"{', '.join(away)} not connected", "bad"
    if missing := [end["name"] for end in document["ends"] if end["standing"] == "expected"]:
        return f"waiting for {', '.join(missing)}", ""
    if phase == "running":
        of = f" of {progress['of']:,}" if progress["of"] else ""
        what = "round" if document["role"] == "coordinator" else "answer"
        return f"{what} {progress['done']:,}{of}", "good"
    return ("a plan is agreed to" if document["signatures"] else phase), ""


def _top(document: Document) -> str:
    words, mood = _state(document)
    progress, sizes, coordinator = document["progress"], document["bytes"], document["role"] == "coordinator"
    why = f'<p class="away">{escaped(document["why"])}</p>' if document["why"] else ""
    bar = ""
    if progress["of"]:
        done, of = min(progress["done"], progress["of"]), progress["of"]
        label = f"{'rounds' if coordinator else 'answers'}: {done} of {of}"
        bar = f'<progress max="{of}" value="{done}" aria-label="{label}">{label}</progress>'
        bar += f'<p class="soft">{escaped(progress["title"])}</p>' if progress["title"] else ""
    left = "" if document["phase"] in ("done", "failed", "stopped") else _duration(progress["seconds_left"])
    of = f" of {progress['of']:,}" if progress["of"] else ""
    numbers = [
        (f"{progress['done']:,}{of}", "rounds" if coordinator else "answers"),
        *(
            [(left or "-", "left, about")]
            if coordinator
            else [(f"{document['counts']['numbers']:,}", "numbers that left")]
        ),
        (readable_size(sizes["sent"]), "sent"),
        (readable_size(sizes["received"]), "received"),
        (f"{sum(document['counts']['refusals'].values())}", "refusals"),
    ]
    cells = "".join(f"<div><b>{escaped(value)}</b><span>{label}</span></div>" for value, label in numbers)
    role = {"coordinator": "coordinator", "helper": "helper of sealed sums"}.get(document["role"], "party")
    return (
        f"<h1>{escaped(document['end'])}</h1><p><span class='state {mood}' id='state' role='status'>{escaped(words)}"
        f"</span> <span class='soft'>{role}, since {_when(document['started'], whole=True)}</span></p>{why}{bar}"
        f'<div class="numbers">{cells}</div>'
    )


_STANDINGS: Final[Mapping[str, str]] = {
    "expected": "not yet connected",
    "connected": "connected",
    "back": "connected, back after a loss",
    "lost": "LOST",
    "left": "LEFT",
    "absent": "no connection",
    "done": "done",
}


def _ends(document: Document) -> str:
    if not document["ends"]:
        return ""
    rows = [
        (
            escaped(end["name"]),
            f'<span class="{"there" if end["connected"] else "away" if end["losses"] else "soft"}">'
            f"{_STANDINGS[end['standing']]}</span>",
            _when(end["since"]),
            f"{end['losses']}",
        )
        for end in document["ends"]
    ]
    title = "Parties" if document["role"] == "coordinator" else "Connection"
    return f"<h2>{title}</h2>{_table(('Who', 'Connection', 'Since', 'Losses>'), rows)}"


def _plan(document: Document, plan: Plan | None) -> str:
    told = document["plan"]
    if not told or plan is None or plan.digest.hex() != told["plan"]:
        return "<h2>Plan</h2><p class='soft'>No plan yet.</p>"
    signed = document["signatures"]
    who = ", ".join(map(escaped, signed)) or "nobody yet"
    how = "Charged and signed by" if all(signed.values()) else "Charged by"
    missing = [name for name in told["parties"] if name not in signed]
    not_yet = f"; not yet by {escaped(', '.join(missing))}" if missing and signed else ""
    cost = f"epsilon {told['epsilon']:.4g}" if told["epsilon"] != "inf" else "epsilon inf: NO privacy"
    return (
        f"<h2>Plan</h2>{_words_of(plan)}<p>Costs <b>{cost}</b> at delta {told['delta']:g}, "
        f"{escaped(told['relation'])}.</p>"
        f"<p>{how} <b>{who}</b>{not_yet}. Digest <code>{escaped(told['plan'])}</code></p>"
    )


@functools.lru_cache(maxsize=4)
def _words_of(plan: Plan) -> str:
    """A plan in words: what is fitted, what leaves, what is promised. All of it follows from the plan."""
    report, titles = privacy_report(plan, seeded=False), algorithms.titles(plan)
    where = "in one place" if plan.split == "central" else f"of {', '.join(plan.names)}, split by {plan.split}"
    about = "".join(
        f"<p>{escaped(name.capitalize())}: {escaped(text)}</p>" for name, text in plan.about.texts().items()
    )
    rows = [
        (escaped(titles[release.query]), f"{release.total:,}", f"{release.std:.4g}" if release.std else "none")
        for release in plan.releases
    ]
    views: Iterable[Adversary] = ("world",) if plan.split == "central" else VIEWS
    promises = "".join(f"<li>{escaped(report.against(view).sentence())}</li>" for view in views)
    rests = "".join(f"<li>{escaped(text)}</li>" for text in report.assumptions)
    sealed = "" if plan.sealing is None else " Sums are sealed: only sums over all parties are opened."
    return (
        f"<p><b>{escaped(plan.loss.name)} loss</b>, penalty {escaped(plan.regulariser.name)}, by "
        f"<b>{escaped(plan.algorithm)}</b>: {escaped(algorithms.of(plan).title)}. {plan.records:,} records, "
        f"{plan.features:,} features, {escaped(where)}.{sealed}</p>{about}"
        f"{_table(('What leaves', 'Times>', 'Noise, std>'), rows)}"
        f"<details><summary>What is promised, against whom, and what that rests on</summary><ul>{promises}</ul>"
        f"<p>This rests on:</p><ul>{rests}</ul></details>"
    )


def _budgets(document: Document) -> str:
    if not document["budgets"]:
        return ""
    rows = [
        (
            escaped(budget["party"]),
            f"{budget['total']:.4g}",
            f"{budget['left_before']:.4g}",
            f"{budget['left']:.4g}",
            _used(budget["share_before"], budget["share"]),
        )
        for budget in document["budgets"]
    ]
    names = ("Account of", "Total>", "Left before>", "Left now>", "Used")
    note = "" if document["role"] != "coordinator" else "<p class='soft'>As far as parties tell it.</p>"
    return f"<h2>Budgets, in epsilon</h2>{_table(names, rows)}{note}"


def _used(before: float, now: float) -> str:
    """The used part of a budget as a bar: pale before this run, dark by it."""
    old, new = (100 * min(max(share, 0.0), 1.0) for share in (before, now))
    return (
        f'<svg class="used" width="110" height="11" role="img" aria-label="{old:.0f}% used before, {new:.0f}% now">'
        f'<rect class="all" width="100%" height="100%"/><rect class="after" width="{new:.1f}%" height="100%"/>'
        f'<rect class="before" width="{old:.1f}%" height="100%"/></svg>'
    )


def _answers(document: Document) -> str:
    rows = [
        (
            escaped(asked["asked"]),
            escaped(asked["left"]),
            f"{asked['times']:,}",
            f"{asked['numbers']:,}" if asked["numbers"] else "-",
            f"{asked['noise']:.4g}" if asked["noise"] >= 0.0 else "-",
            readable_size(asked["sent_bytes"]),
            f"<span>{_when(asked['last'])}{_round(asked)}</span>",
        )
        for asked in document["answers"]
    ]
    names = ("Asked", "What left", "Times>", "Numbers each>", "Noise, std>", "Bytes>", "Last")
    body = _table(names, rows) if rows else "<p class='soft'>Nothing yet.</p>"
    return f"<h2>What was asked, and what left</h2>{body}"


def _round(asked: Mapping[str, Any]) -> str:
    return f", round {asked['last_round']}" if asked["numbers"] else ""


def _refusals(document: Document) -> str:
    if not document["refusals"]:
        return "<h2>Refusals</h2><p class='soft'>None.</p>"
    rows = [
        (_when(each["at"]), escaped(each["end"]), escaped(each["asked"]), f"<span>{escaped(each['why'])}</span>")
        for each in reversed(document["refusals"])
    ]
    return f"<h2>Refusals</h2>{_table(('When', 'Who', 'Asked', 'Why'), rows)}"


def _log(document: Document) -> str:
    rows = "".join(
        f'<tr class="{escaped(each["level"])}"><td class="when">{_when(each["at"])}</td>'
        f"<td>{escaped(each['text'])}</td></tr>"
        for each in reversed(document["log"])
    )
    return f'<h2>Log</h2><table class="log"><tbody>{rows}</tbody></table>'


def _table(names: Sequence[str], rows: Rows) -> str:
    """A table whose cells are HTML; a column whose name ends with > is for numbers. A phone shows cells in lines."""

    def cells(kind: str, each: Sequence[str]) -> Iterator[str]:
        for name, cell in zip(names, each, strict=True):
            number = f' class="number{" nil" if cell == "-" else ""}"' if name.endswith(">") else ""
            of = "" if kind == "th" else f' data-name="{escaped(name.rstrip(">"))}"'
            scope = ' scope="col"' if kind == "th" else ""
            yield f"<{kind}{number}{scope}{of}>{cell}</{kind}>"

    head = "".join(cells("th", [name.rstrip(">") for name in names]))
    body = "".join(f"<tr>{''.join(cells('td', row))}</tr>" for row in rows)
    return f'<table><thead><tr class="head">{head}</tr></thead><tbody>{body}</tbody></table>'


def _when(at: float, *, whole: bool = False) -> str:
    """A time of day; the date too if it is another day, or if the whole is asked for."""
    when = datetime.fromtimestamp(at, UTC)
    today = datetime.fromtimestamp(time.time(), UTC).date() == when.date() and not whole
    return f'<time datetime="{when:%Y-%m-%dT%H:%M:%SZ}">{when:{"%H:%M:%S" if today else "%Y-%m-%d %H:%M"}}</time>'


def _duration(seconds: float) -> str:
    """A time that is left, in words; nothing if it is not known."""
    if seconds < 0.0:
        return ""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
