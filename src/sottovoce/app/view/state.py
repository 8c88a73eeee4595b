"""The state of a run as its events tell it: the one document that page and metrics are made from."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sottovoce.app.view import events as happened
from sottovoce.app.view.events import Event, level_of

MOST_LOGGED: Final = 200
MOST_REFUSALS: Final = 50
MOST_ANSWERS: Final = 200  # rows of what was asked and what left; a run has a few
BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)  # seconds of a round
COORDINATOR: Final = "coordinator"
_QUIET: Final = (happened.Round, happened.Answer)  # too many for the log of the page
_RECENT: Final = 51  # rounds whose median time is that of the next ones: a party that was away does not change it


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
        """Whether there is a connection now."""
        return self.standing in ("connected", "back")


@dataclass
class Asked:
    """What was asked in the same words, and what left each time."""

    asked: str
    left: str
    numbers: int
    noise: float
    times: int = 0
    sent_bytes: int = 0
    last_round: int = 0
    last: float = 0.0


@dataclass
class Progress:
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
    plan: dict[str, Any] = field(default_factory=dict)  # the fields of the last `Planned`
    signatures: dict[str, bool] = field(default_factory=dict)  # who has charged it, and whether it signed
    progress: Progress = field(default_factory=Progress)
    budgets: dict[str, happened.Budget] = field(default_factory=dict)
    answers: dict[tuple[str, str, int], Asked] = field(default_factory=dict)
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
        """Let an event change what is known."""
        if (fold := _FOLDS.get(type(event))) is not None:
            fold(self, at, event)
        if not isinstance(event, _QUIET):
            self.log.append((at, level_of(event), event.name, event.text))

    def document(self) -> dict[str, Any]:
        """All of it as plain values, for a page or a program."""
        return {
            "role": self.role,
            "end": self.end,
            "version": self.version,
            "started": self.started,
            "ready": self.ready,
            "phase": self.phase,
            "why": self.why,
            "ends": [{**dataclasses.asdict(end), "connected": end.connected} for end in self.ends.values()],
            "plan": dict(self.plan),
            "signatures": dict(self.signatures),
            "progress": {**dataclasses.asdict(self.progress), "seconds_left": self.seconds_left},
            "bytes": {"sent": self.sent_bytes, "received": self.received_bytes},
            "budgets": [budget.fields() for budget in self.budgets.values()],
            "answers": [dataclasses.asdict(asked) for asked in self.answers.values()],
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

    def _start(self, at: float, event: happened.Started) -> None:
        self.role, self.end, self.version, self.started = event.role, event.end, event.version, at

    def _expect(self, at: float, event: happened.Expected) -> None:
        for name in event.ends:
            self.ends.setdefault(name, End(name, since=at))

    def _connect(self, at: float, event: happened.Connection) -> None:
        if event.change == "turned-away":
            self.turned_away += 1
            return
        end = self.ends.setdefault(event.end, End(event.end))
        if event.change == "absent" and end.standing == "absent":
            return
        if event.change == "connected" and end.connections:
            end.standing = "back"
        else:
            end.standing = event.change
        end.since = at
        end.connections += event.change in ("connected", "back")
        end.losses += event.change in ("lost", "left")

    def _plan(self, _at: float, event: happened.Planned) -> None:
        if self.plan.get("plan") == event.plan:
            return
        self.plan, self.signatures, self.progress = event.fields(), {}, Progress(of=event.rounds)
        self.recent.clear()
        self.plans += 1
        self.phase, self.why = "planned", ""

    def _sign(self, _at: float, event: happened.Signed) -> None:
        self.signatures[event.party] = event.signed

    def _pay(self, _at: float, event: happened.Budget) -> None:
        first = self.budgets.get(event.party)
        if first is not None:
            kept = {name: getattr(first, name) for name in ("spent_before", "left_before", "share_before")}
            event = dataclasses.replace(event, **kept)
        self.budgets[event.party] = event

    def _round(self, _at: float, event: happened.Round) -> None:
        self.phase = "running"
        self.rounds += 1
        self.sent_bytes, self.received_bytes = event.sent_bytes, event.received_bytes
        if event.seconds >= 0.0:
            self.round_seconds += event.seconds
            self.slowest[next((bound for bound in BUCKETS if event.seconds <= bound), float("inf"))] += 1
            self.recent.append(event.seconds)
        self.progress = Progress(event.done, event.of, event.title)

    def _answer(self, at: float, event: happened.Answer) -> None:
        key = (event.asked, event.left, event.numbers)
        if key not in self.answers and len(self.answers) >= MOST_ANSWERS:
            del self.answers[next(iter(self.answers))]
        asked = self.answers.setdefault(key, Asked(event.asked, event.left, event.numbers, event.noise))
        asked.times += 1
        asked.sent_bytes += event.sent_bytes
        asked.last_round, asked.last, asked.noise = event.round, at, event.noise
        self.sent_bytes += event.sent_bytes
        self.received_bytes += event.received_bytes
        self.numbers += event.numbers
        if event.counted:
            self.phase = "running"
            self.rounds += 1
            self.progress = Progress(self.progress.done + 1, self.progress.of, event.asked)

    def _refuse(self, at: float, event: happened.Refused) -> None:
        self.refused[event.code] += 1
        self.refusals.append((at, event.end, event.asked, event.why))

    def _fail(self, _at: float, _event: happened.Failed) -> None:
        self.failures += 1

    def _finish(self, at: float, event: happened.Done) -> None:
        if event.plan and event.plan == self.plan.get("plan"):
            self.phase = "done"
        for end in self.ends.values():
            if end.connected:
                end.standing, end.since = "done", at

    def _stop(self, _at: float, event: happened.Ended) -> None:
        self.phase, self.why = event.outcome, event.why or event.error


_FOLDS: Final[Mapping[type[Event], Callable[[State, float, Any], None]]] = {
    happened.Started: State._start,
    happened.Expected: State._expect,
    happened.Connection: State._connect,
    happened.Planned: State._plan,
    happened.Signed: State._sign,
    happened.Budget: State._pay,
    happened.Round: State._round,
    happened.Answer: State._answer,
    happened.Refused: State._refuse,
    happened.Failed: State._fail,
    happened.Done: State._finish,
    happened.Ended: State._stop,
}
