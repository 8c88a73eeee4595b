"""The page for operators: rendered here, for a browser with scripts or without; a script only asks for it anew.

Everything that others wrote is escaped. Style and script are in the page, which loads nothing from elsewhere; the
policy in the header names them by their hashes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from sottovoce import algorithms
from sottovoce.app.rendering import read, render
from sottovoce.app.texts import readable_size
from sottovoce.estimators import privacy_report
from sottovoce.plan.plan import Plan

Document = Mapping[str, Any]

_STYLE: Final = read("style.css") + read("view.css")
_SCRIPT: Final = read("view.js")
_STANDINGS: Final[Mapping[str, str]] = {
    "expected": "not yet connected",
    "connected": "connected",
    "back": "connected, back after a loss",
    "lost": "LOST",
    "left": "LEFT",
    "absent": "no connection",
    "done": "done",
}


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(document: Document, plan: Plan | None) -> str:
    """The whole page."""
    return render("view.html", **_values(document, plan), style=_STYLE, script=_SCRIPT)


def parts(document: Document, plan: Plan | None) -> str:
    """The parts of the page that change, each an element with an id."""
    return render("view-parts.html", **_values(document, plan))


def _values(document: Document, plan: Plan | None) -> dict[str, Any]:
    """What the templates need; a plan that the document does not name is not shown."""
    state, mood = _state(document)
    shown = plan if plan and document["plan"] and plan.digest.hex() == document["plan"]["plan"] else None
    over = document["phase"] in ("done", "failed", "stopped")
    return {
        "seen": document,
        "state": state,
        "mood": mood,
        "left": "" if over else _duration(document["progress"]["seconds_left"]),
        "standings": _STANDINGS,
        "plan": shown,
        **({} if shown is None else _promised(shown)),
        "size": readable_size,
        "now": time.time(),
        "utc": lambda at: datetime.fromtimestamp(at, UTC),
    }


@functools.lru_cache(maxsize=4)
def _promised(plan: Plan) -> dict[str, Any]:
    """What leaves by a plan and what is promised: all of it follows from the plan."""
    report = privacy_report(plan, seeded=False)
    views = report.views(several=plan.split.several)
    return {
        "form": algorithms.of(plan),
        "titles": algorithms.titles(plan),
        "promises": [view.sentence() for view in views],
        "assumptions": report.assumptions,
    }


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


def _duration(seconds: float) -> str:
    """A time that is left, in words; nothing if it is not known."""
    if seconds < 0.0:
        return ""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
