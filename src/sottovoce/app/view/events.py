"""What can happen in a run, as operators are told: a fixed list of kinds, each with public fields of plain types.

Page, metrics, JSON log and terminal are made of these events and of public plans. So a value of the data can be in none
of them unless it is in a field here, and a field is a text, a number or a list of texts that the plan, the policy, the
ledger or the wire made. A run's state, for the page, and its metrics, as Prometheus reads them, follow from its events.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from sottovoce.app.texts import harmless
from sottovoce.errors import LeakError

HOLDERS: Final = ("party", "dealer")
CODES: Final = ("budget", "refused", "ledger")  # of refusals
LONGEST: Final = 2000  # characters of a text; what a party says in a refusal may be longer
_PLAIN: Final = frozenset((str, int, float, bool))
Fields = dict[str, Any]


class Kind(NamedTuple):
    """A kind of event: its fields (`name=` may be left out), text and level, and the roles whose terminal shows it.

    The text is a template in which a list reads "one, two", or a function of the fields.
    """

    fields: str
    text: str | Callable[[Fields], str]
    level: str | Callable[[Fields], str] = "info"
    told: tuple[str, ...] = ()


KINDS: Final[Mapping[str, Kind]] = {
    # The program runs: as `coordinator`, `party` or `dealer`.
    "started": Kind("role end version", "{role} started, sottovoce {version}"),
    # Which ends of the wire are waited for.
    "expected": Kind("ends", "waiting for {ends}"),
    # A connection came, went, came back or was turned away (`change`); `words` are the wire's own.
    "connection": Kind(
        "end change words",
        "{words}",
        level=lambda event: "info" if event["change"] in ("connected", "back") else "warning",
        told=("coordinator", *HOLDERS),
    ),
    # A plan is there: at the coordinator as proposed, at a party once it has agreed. `epsilon` is its cost there.
    "planned": Kind(
        "plan algorithm split parties records features rounds epsilon delta relation",
        "plan {plan:.12}: {algorithm} on {records:,} records of {parties}",
    ),
    # A party charged a plan and signed its digest; with one party alone nothing is signed.
    "signed": Kind(
        "plan party signed",
        lambda event: (
            f"{event['party']} charged plan {event['plan'][:12]}{' and signed it' if event['signed'] else ''}"
        ),
    ),
    # The party here charged a plan; `left` is what its ledger has then, -1 without one.
    "agreed": Kind(
        "plan algorithm epsilon delta relation left",
        lambda event: (
            "agreed to plan {plan:.12} ({algorithm}, costs epsilon {epsilon:.4g} at delta {delta:g}, {relation})"
            f"{'; epsilon {left:.4g} is left' if event['left'] >= 0.0 else ''}"
        ).format_map(event),
        told=HOLDERS,
    ),
    # What the promise of a plan of secure sums rests on, and what happens where that does not hold.
    "rests": Kind(
        "plan holds_if broken",
        lambda event: (
            f"its promise rests on secure sums, and holds if {'; if '.join(event['holds_if'])}\n{event['broken']}"
        ),
        told=HOLDERS,
    ),
    # What an account had before the plans of this run and has with them, in epsilon; `share` is the used part.
    "budget": Kind(
        "party total spent_before left_before share_before spent left share",
        "ledger of {party}: epsilon {left:.4g} left, before {left_before:.4g}",
    ),
    # The coordinator has the answers of a round: `done` of `of` (0 if not known); bytes are totals of the process.
    # `seconds` is how long it took, -1 where the data are in the same process.
    "round": Kind(
        "plan done of query title sent_bytes received_bytes seconds",
        lambda event: f"round {{done}}{' of {of}' if event['of'] else ''}: {{title}}".format_map(event),
    ),
    # What a party or dealer was asked, and what left it: how many numbers, under which noise, never a value. `noise` is
    # the standard deviation by the plan, -1 where the plan names none; `counted` are the plan's own answers.
    "answer": Kind(
        "plan round counted asked left numbers noise sent_bytes received_bytes", "asked: {asked}; left: {left}"
    ),
    # An end refused what it was asked: `code` is budget, refused or ledger.
    "refused": Kind("end asked code why", "refused: {why}", level="warning", told=HOLDERS),
    # An end failed; `error` is the class of what was raised, and its text stays at the terminal there.
    "failed": Kind(
        "end asked error",
        lambda event: (
            f"{event['end']} failed ({event['error'] or 'its own log has the reason'}) when asked: {event['asked']}"
        ),
        level="error",
    ),
    # The party here took part in a joint prediction; as its recipient it wrote the file.
    "predicted": Kind(
        "plan recipient file",
        lambda event: (
            f"predictions by plan {event['plan'][:12]} are in {event['file']}"
            if event["file"]
            else f"took part in a prediction for {event['recipient']} by plan {event['plan'][:12]}"
        ),
        told=HOLDERS,
    ),
    # A run is over; without a plan the coordinator asks nothing more. `ledger`: where a part of the model waits.
    "done": Kind(
        "plan ledger=",
        lambda event: (
            "the coordinator asks nothing more"
            if not event["plan"]
            else "plan {plan:.12} is done"
            if not event["ledger"]
            else "plan {plan:.12} is done\na part of its model is kept here. To predict with it, look at it (sottovoce "
            "models show {ledger} {plan:.12}), then approve it (sottovoce models approve ...)"
        ).format_map(event),
        told=HOLDERS,
    ),
    # The program ends: `outcome` is done, stopped or failed; of a failure the class, and the text where it is safe.
    "ended": Kind(
        "outcome error= why=",
        lambda event: (
            "{outcome}"
            if not event["error"]
            else "{outcome} ({error}): {why}"
            if event["why"]
            else "{outcome} ({error})"
        ).format_map(event),
        level=lambda event: "error" if event["error"] else "info",
    ),
    # A message of one of the package's loggers.
    "logged": Kind("logger severity words", "{words}", level=lambda event: str(event["severity"])),
}


class Event:
    """Something that happened.

    Guarantee: it has the fields of its kind and no others. A field is a text, a number, a truth value or, from a tuple,
    a list of texts; arrays, NumPy's numbers and any other object are refused.
    """

    def __init__(self, name: str, /, **fields: Any) -> None:
        self.name, self.kind, self.fields = name, KINDS[name], Fields()
        for declared in self.kind.fields.split():
            field = declared.rstrip("=")
            value = fields.pop(field, "") if declared.endswith("=") else fields.pop(field)
            if type(value) is str and len(value) > LONGEST:
                value = f"{value[:LONGEST]} ..."
            elif type(value) is tuple and {str}.issuperset(map(type, value)):
                value = list(value)
            elif type(value) not in _PLAIN:
                raise LeakError(f"{field} of {name!r} is of type {type(value).__name__}; no event has such.")
            self.fields[field] = value
        if fields:
            raise LeakError(f"{', '.join(fields)} of {name!r}: no event has such.")
        level = self.kind.level
        self.level = level if isinstance(level, str) else level(self.fields)

    @property
    def text(self) -> str:
        if not isinstance(self.kind.text, str):
            return self.kind.text(self.fields)
        words = dict(self.fields)
        for key, value in self.fields.items():
            words[key] = ", ".join(value) if type(value) is list else value
        return self.kind.text.format_map(words)


def nothing(*_: Any) -> None:
    """Told to nobody."""


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
    refusals: deque[tuple[float, str, str, str]] = field(default_factory=partial(deque, maxlen=MOST_REFUSALS))
    log: deque[tuple[float, str, str, str]] = field(default_factory=partial(deque, maxlen=MOST_LOGGED))
    sent_bytes: int = 0
    received_bytes: int = 0
    plans: int = 0
    rounds: int = 0
    numbers: int = 0
    round_seconds: float = 0.0
    recent: deque[float] = field(default_factory=partial(deque, maxlen=_RECENT))
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
        told = event.fields
        match event.name:
            case "started":
                self.role, self.end, self.version, self.started = told["role"], told["end"], told["version"], at
            case "expected":
                for name in told["ends"]:
                    self.ends.setdefault(name, End(name, since=at))
            case "planned" if self.plan.get("plan") != told["plan"]:
                self.plan, self.signatures, self.progress = dict(told), {}, RunProgress(of=told["rounds"])
                self.recent.clear()
                self.plans += 1
                self.phase, self.why = "planned", ""
            case "signed":
                self.signatures[told["party"]] = told["signed"]
            case "refused":
                self.refused[told["code"]] += 1
                self.refusals.append((at, told["end"], told["asked"], told["why"]))
            case "failed":
                self.failures += 1
            case "ended":
                self.phase, self.why = told["outcome"], told["why"] or told["error"]
            case "budget":
                kept = self.budgets.setdefault(told["party"], dict(told))
                before = {name: kept[name] for name in ("spent_before", "left_before", "share_before")}
                self.budgets[told["party"]] = told | before
            case "connection" | "round" | "answer" | "done" as name:
                getattr(self, f"_on_{name}")(at, **told)
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
                **{name: getattr(self, name) for name in ("plans", "rounds", "numbers", "round_seconds")},
                "refusals": dict(self.refused),
                "turned_away": self.turned_away,
                "failures": self.failures,
            },
        }

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

    def _on_done(self, at: float, plan: str, **_: Any) -> None:
        if plan and plan == self.plan.get("plan"):
            self.phase = "done"
        for end in self.ends.values():
            if end.connected:
                end.standing, end.since = "done", at


def metric_lines(state: State) -> Iterator[str]:
    """Every metric of a state, each with what it is."""
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
    if state.role != "coordinator":
        yield from _metric("numbers_left_total", "counter", "Numbers that left this end.", [({}, state.numbers)])
        return
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
