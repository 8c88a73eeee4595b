"""The state of a run by its events, from which the page is made, and the metrics in the text format of Prometheus."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sottovoce.app.texts import harmless
from sottovoce.app.view.events import CODES, Event

MOST_LOGGED: Final = 200
MOST_REFUSALS: Final = 50
MOST_ANSWERS: Final = 200  # rows of what was asked and what left; a run has a few
BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)  # seconds of a round
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_QUIET: Final = ("round", "answer")  # too many for the log of the page
_RECENT: Final = 51  # last rounds, with a median time that one party's absence does not change


@dataclass
class End:
    """The other end of a connection: whether it is there, and since when."""

    name: str
    standing: str = "expected"  # or connected, back, lost, left, absent, done
    since: float = 0.0
    connections: int = 0
    losses: int = 0

    @property
    def connected(self) -> bool:
        return self.standing in ("connected", "back")


@dataclass
class AnswerCount:
    """A question in the same words, and what left each time."""

    asked: str
    left: str
    numbers: int
    noise: float = -1.0
    times: int = 0
    sent_bytes: int = 0
    last_round: int = 0
    last: float = 0.0


@dataclass
class RunProgress:
    """Rounds of the plan that runs; at a party, its answers."""

    done: int = 0
    of: int = 0
    title: str = ""


@dataclass
class State:
    """What is known of a run, by its events alone."""

    role: str = ""
    end: str = ""
    version: str = ""
    started: float = 0.0
    phase: str = "waiting"  # or planned, running, done, stopped, failed
    why: str = ""
    ends: dict[str, End] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)  # the fields of the last "planned"
    signatures: dict[str, bool] = field(default_factory=dict)  # who has charged it, and whether it signed
    progress: RunProgress = field(default_factory=RunProgress)
    budgets: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[tuple[str, str, int], AnswerCount] = field(default_factory=dict)
    refusals: deque[tuple[float, str, str, str]] = field(default_factory=lambda: deque(maxlen=MOST_REFUSALS))
    log: deque[tuple[float, str, str, str]] = field(default_factory=lambda: deque(maxlen=MOST_LOGGED))
    sent_bytes: int = 0
    received_bytes: int = 0
    plans: int = 0
    rounds: int = 0
    numbers: int = 0
    round_seconds: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    slowest: Counter[float] = field(default_factory=Counter)  # rounds by the smallest bucket that they fit
    refused: Counter[str] = field(default_factory=Counter)
    turned_away: int = 0
    failures: int = 0

    @property
    def ready(self) -> bool:
        """Whether every end that is waited for is connected; a run in one process waits for none."""
        return bool(self.role) and all(end.connected for end in self.ends.values())

    @property
    def seconds_left(self) -> float:
        """About how long the plan still takes; -1 if that is not known."""
        left = self.progress.of - self.progress.done
        return statistics.median(self.recent) * left if self.recent and left >= 0 else -1.0

    def take(self, at: float, event: Event) -> None:
        if (fold := getattr(self, f"_on_{event.name}", None)) is not None:
            fold(at, **event.fields)
        if event.name not in _QUIET:
            self.log.append((at, event.level, event.name, event.text))

    def document(self) -> dict[str, Any]:
        """All of it as plain values, for a page or a program."""
        return {
            **{name: getattr(self, name) for name in ("role", "end", "version", "started", "ready", "phase", "why")},
            "ends": [{**dataclasses.asdict(end), "connected": end.connected} for end in self.ends.values()],
            "plan": dict(self.plan),
            "signatures": dict(self.signatures),
            "progress": {**dataclasses.asdict(self.progress), "seconds_left": self.seconds_left},
            "bytes": {"sent": self.sent_bytes, "received": self.received_bytes},
            "budgets": list(self.budgets.values()),
            "answers": [dataclasses.asdict(answer) for answer in self.answers.values()],
            "refusals": [dict(zip(("at", "end", "asked", "why"), each, strict=True)) for each in self.refusals],
            "log": [dict(zip(("at", "level", "event", "text"), each, strict=True)) for each in self.log],
            "counts": {
                "plans": self.plans,
                "rounds": self.rounds,
                "numbers": self.numbers,
                "round_seconds": self.round_seconds,
                "refusals": dict(self.refused),
                "turned_away": self.turned_away,
                "failures": self.failures,
            },
        }

    def _on_started(self, at: float, role: str, end: str, version: str) -> None:
        self.role, self.end, self.version, self.started = role, end, version, at

    def _on_expected(self, at: float, ends: list[str]) -> None:
        for name in ends:
            self.ends.setdefault(name, End(name, since=at))

    def _on_connection(self, at: float, end: str, change: str, **_: Any) -> None:
        if change == "turned-away":
            self.turned_away += 1
            return
        other = self.ends.setdefault(end, End(end))
        if change == "absent" and other.standing == "absent":
            return
        other.standing = "back" if change == "connected" and other.connections else change
        other.since = at
        other.connections += change in ("connected", "back")
        other.losses += change in ("lost", "left")

    def _on_planned(self, _at: float, **plan: Any) -> None:
        if self.plan.get("plan") == plan["plan"]:
            return
        self.plan, self.signatures, self.progress = plan, {}, RunProgress(of=plan["rounds"])
        self.recent.clear()
        self.plans += 1
        self.phase, self.why = "planned", ""

    def _on_signed(self, _at: float, party: str, signed: bool, **_: Any) -> None:
        self.signatures[party] = signed

    def _on_budget(self, _at: float, **budget: Any) -> None:
        if (first := self.budgets.get(budget["party"])) is not None:
            budget |= {name: first[name] for name in ("spent_before", "left_before", "share_before")}
        self.budgets[budget["party"]] = budget

    def _on_round(self, _at: float, seconds: float, **round: Any) -> None:
        self.phase = "running"
        self.rounds += 1
        self.sent_bytes, self.received_bytes = round["sent_bytes"], round["received_bytes"]
        if seconds >= 0.0:
            self.round_seconds += seconds
            self.slowest[next((bound for bound in BUCKETS if seconds <= bound), float("inf"))] += 1
            self.recent.append(seconds)
        self.progress = RunProgress(round["done"], round["of"], round["title"])

    def _on_answer(self, at: float, asked: str, left: str, numbers: int, **answer: Any) -> None:
        key = (asked, left, numbers)
        if key not in self.answers and len(self.answers) >= MOST_ANSWERS:
            del self.answers[next(iter(self.answers))]
        count = self.answers.setdefault(key, AnswerCount(*key))
        count.times += 1
        count.sent_bytes += answer["sent_bytes"]
        count.last_round, count.last, count.noise = answer["round"], at, answer["noise"]
        self.sent_bytes += answer["sent_bytes"]
        self.received_bytes += answer["received_bytes"]
        self.numbers += numbers
        if answer["counted"]:
            self.phase = "running"
            self.rounds += 1
            self.progress = RunProgress(self.progress.done + 1, self.progress.of, asked)

    def _on_refused(self, at: float, end: str, asked: str, code: str, why: str) -> None:
        self.refused[code] += 1
        self.refusals.append((at, end, asked, why))

    def _on_failed(self, _at: float, **_: Any) -> None:
        self.failures += 1

    def _on_done(self, at: float, plan: str, **_: Any) -> None:
        if plan and plan == self.plan.get("plan"):
            self.phase = "done"
        for end in self.ends.values():
            if end.connected:
                end.standing, end.since = "done", at

    def _on_ended(self, _at: float, outcome: str, error: str, why: str) -> None:
        self.phase, self.why = outcome, why or error


def write_metrics(state: State) -> str:
    """Every metric of a state, each with what it is."""
    return "".join(_metric_lines(state))


def _metric_lines(state: State) -> Iterator[str]:
    about = {"role": state.role, "end": state.end, "version": state.version}
    ends = list(state.ends.values())
    yield from _metric("info", "gauge", "What runs here.", [(about, 1)])
    yield from _metric("start_time_seconds", "gauge", "When it started, Unix time.", [({}, state.started)])
    yield from _metric("ready", "gauge", "1 if every end waited for is connected.", [({}, state.ready)])
    for name, kind, text, attribute in (
        ("connected", "gauge", "1 if the end is connected.", "connected"),
        ("connections_total", "counter", "Connections of an end.", "connections"),
        ("losses_total", "counter", "Connections of an end that were lost.", "losses"),
    ):
        yield from _metric(name, kind, text, [({"end": end.name}, getattr(end, attribute)) for end in ends])
    for name, kind, text, value in (
        ("turned_away_total", "counter", "Peers that were refused.", state.turned_away),
        ("plans_total", "counter", "Plans proposed, or agreed to.", state.plans),
        ("rounds_total", "counter", "Rounds done; at a party, answers that carried numbers.", state.rounds),
        ("plan_rounds_done", "gauge", "Rounds of the last plan that are done.", state.progress.done),
        ("plan_rounds", "gauge", "Rounds of the last plan, 0 if not known.", state.progress.of),
    ):
        yield from _metric(name, kind, text, [({}, value)])
    ways = [({"direction": "sent"}, state.sent_bytes), ({"direction": "received"}, state.received_bytes)]
    yield from _metric("frame_bytes_total", "counter", "Bytes of frames.", ways)
    refusals = [({"code": code}, state.refused[code]) for code in CODES]
    yield from _metric("refusals_total", "counter", "Requests that were refused, by reason.", refusals)
    yield from _metric("failures_total", "counter", "Requests at which an end failed.", [({}, state.failures)])
    for name, words in (("total", "budget"), ("spent", "spent"), ("left", "left")):
        budgets = [({"party": party}, float(budget[name])) for party, budget in state.budgets.items()]
        yield from _metric(f"epsilon_{words}", "gauge", f"Epsilon of the party's account: {words}.", budgets)
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


def _metric(name: str, kind: str, about: str, samples: Iterable[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP sottovoce_{name} {about}\n# TYPE sottovoce_{name} {kind}\n"
    for labels, value in samples:
        quoted = {
            key: harmless(text, keep="").replace("\\", "\\\\").replace('"', '\\"') for key, text in labels.items()
        }
        inside = ",".join(f'{key}="{text}"' for key, text in quoted.items())
        number = repr(float(value)) if isinstance(value, float) else str(int(value))
        yield f"sottovoce_{name}{f'{{{inside}}}' if inside else ''} {number}\n"
