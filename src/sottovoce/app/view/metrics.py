"""Metrics in the text format of Prometheus, made from the state of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sottovoce.app.texts import harmless
from sottovoce.app.view.events import CODES
from sottovoce.app.view.state import BUCKETS, State

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]


def metrics(state: State) -> str:
    """Every metric of a state, each with what it is."""
    return "".join(_lines(state))


def _lines(state: State) -> Iterator[str]:
    about = {"role": state.role, "end": state.end, "version": state.version}
    ends = list(state.ends.values())
    progress = state.progress
    yield from _metric("info", "gauge", "What runs here.", [(about, 1)])
    yield from _metric("start_time_seconds", "gauge", "When it started, Unix time.", [({}, state.started)])
    yield from _metric("ready", "gauge", "1 if every end waited for is connected.", [({}, state.ready)])
    yield from _metric(
        "connected", "gauge", "1 if the end is connected.", [({"end": end.name}, end.connected) for end in ends]
    )
    yield from _metric(
        "connections_total", "counter", "Connections of an end.", [({"end": e.name}, e.connections) for e in ends]
    )
    yield from _metric(
        "losses_total", "counter", "Connections of an end that were lost.", [({"end": e.name}, e.losses) for e in ends]
    )
    yield from _metric("turned_away_total", "counter", "Peers that were refused.", [({}, state.turned_away)])
    yield from _metric("plans_total", "counter", "Plans proposed, or agreed to.", [({}, state.plans)])
    yield from _metric(
        "rounds_total", "counter", "Rounds done; at a party, answers that carried numbers.", [({}, state.rounds)]
    )
    yield from _metric("plan_rounds_done", "gauge", "Rounds of the last plan that are done.", [({}, progress.done)])
    yield from _metric("plan_rounds", "gauge", "Rounds of the last plan, 0 if not known.", [({}, progress.of)])
    ways = [({"direction": "sent"}, state.sent_bytes), ({"direction": "received"}, state.received_bytes)]
    yield from _metric("frame_bytes_total", "counter", "Bytes of frames.", ways)
    refusals = [({"code": code}, state.refused[code]) for code in CODES]
    yield from _metric("refusals_total", "counter", "Requests that were refused, by reason.", refusals)
    yield from _metric("failures_total", "counter", "Requests at which an end failed.", [({}, state.failures)])
    for name, words in (("total", "budget"), ("spent", "spent"), ("left", "left")):
        told = [({"party": party}, float(getattr(each, name))) for party, each in state.budgets.items()]
        yield from _metric(f"epsilon_{words}", "gauge", f"Epsilon of the party's account: {words}.", told)
    if state.role == "coordinator":
        yield from _histogram(state)
    else:
        yield from _metric("numbers_left_total", "counter", "Numbers that left this end.", [({}, state.numbers)])


def _histogram(state: State) -> Iterator[str]:
    """How long rounds took, as the coordinator sees it."""
    name, below = "sottovoce_round_seconds", 0
    yield f"# HELP {name} How long rounds took.\n# TYPE {name} histogram\n"
    for bound in BUCKETS:
        below += state.slowest[bound]
        yield f'{name}_bucket{{le="{bound:g}"}} {below}\n'
    yield f'{name}_bucket{{le="+Inf"}} {state.slowest.total()}\n'
    yield f"{name}_sum {state.round_seconds!r}\n{name}_count {state.slowest.total()}\n"


def _metric(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP sottovoce_{name} {about}\n# TYPE sottovoce_{name} {kind}\n"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
        number = repr(float(value)) if isinstance(value, float) else str(int(value))
        yield f"sottovoce_{name}{f'{{{inside}}}' if inside else ''} {number}\n"


def _quoted(text: str) -> str:
    return harmless(text, keep="").replace("\\", "\\\\").replace('"', '\\"')
