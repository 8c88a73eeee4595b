"""What can happen in a run, as operators are told: a fixed list of kinds, each with public fields of plain types.

Page, metrics, JSON log and terminal are made of these events and of public plans. So a value of the data can be in none
of them unless it is in a field here, and a field is a text, a number or a list of texts that the plan, the policy, the
ledger or the wire made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from sottovoce.errors import LeakError

HOLDERS: Final = ("party", "helper")
CODES: Final = ("budget", "refused", "ledger")  # of refusals
LONGEST: Final = 2000  # characters of a text; what a party says in a refusal may be longer
_PLAIN: Final = frozenset((str, int, float, bool))
Fields = dict[str, "str | int | float | bool | list[str]"]


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Guarantee: a field is a text, a number, a truth value or a list of texts; arrays, NumPy's numbers and any other
    object are refused. `told`: the roles whose terminal shows it too.
    """

    level: ClassVar[str] = "info"
    told: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            kind = type(value)
            if kind is str and len(value) > LONGEST:
                object.__setattr__(self, name, f"{value[:LONGEST]} ...")
            elif kind not in _PLAIN and not (kind is tuple and all(type(item) is str for item in value)):
                raise LeakError(f"{name} of {self.name!r} is of type {kind.__name__}; no event has such.")

    @property
    def name(self) -> str:
        """The kind, as logs and metrics have it."""
        return type(self).__name__.lower()

    @property
    def text(self) -> str:
        """The event in words, for people."""
        return self._said()

    def _said(self) -> str:
        raise NotImplementedError

    def fields(self) -> Fields:
        """The fields by name."""
        return {name: list(value) if type(value) is tuple else value for name, value in self.__dict__.items()}


@dataclass(frozen=True)
class Started(Event):
    """The program runs: as `coordinator`, `party` or `helper`."""

    role: str
    end: str
    version: str

    def _said(self) -> str:
        return f"{self.role} started, sottovoce {self.version}"


@dataclass(frozen=True)
class Expected(Event):
    """Which ends of the wire are waited for."""

    ends: tuple[str, ...]

    def _said(self) -> str:
        return f"waiting for {', '.join(self.ends)}"


@dataclass(frozen=True)
class Connection(Event):
    """A connection came, went, came back or was turned away (`change`); `words` are the wire's own."""

    end: str
    change: str
    words: str
    told: ClassVar[tuple[str, ...]] = ("coordinator", *HOLDERS)

    def _said(self) -> str:
        return self.words


@dataclass(frozen=True)
class Planned(Event):
    """A plan is there: at the coordinator as proposed, at a party once it has agreed. `epsilon` is its cost there."""

    plan: str
    algorithm: str
    split: str
    parties: tuple[str, ...]
    records: int
    features: int
    rounds: int
    epsilon: float
    delta: float
    relation: str

    def _said(self) -> str:
        return f"plan {self.plan[:12]}: {self.algorithm} on {self.records:,} records of {', '.join(self.parties)}"


@dataclass(frozen=True)
class Signed(Event):
    """A party charged a plan and signed its digest; with one party alone nothing is signed."""

    plan: str
    party: str
    signed: bool

    def _said(self) -> str:
        return f"{self.party} charged plan {self.plan[:12]}{' and signed it' if self.signed else ''}"


@dataclass(frozen=True)
class Agreed(Event):
    """The party here charged a plan; `left` is what its ledger has then, -1 without one."""

    plan: str
    algorithm: str
    epsilon: float
    delta: float
    relation: str
    left: float
    told: ClassVar[tuple[str, ...]] = HOLDERS

    def _said(self) -> str:
        cost = f"{self.algorithm}, costs epsilon {self.epsilon:.4g} at delta {self.delta:g}, {self.relation}"
        left = f"; epsilon {self.left:.4g} is left" if self.left >= 0.0 else ""
        return f"agreed to plan {self.plan[:12]} ({cost}){left}"


@dataclass(frozen=True)
class Rests(Event):
    """What the promise of a plan of sealed sums rests on, and what happens where that does not hold."""

    plan: str
    holds_if: tuple[str, ...]
    broken: str
    told: ClassVar[tuple[str, ...]] = HOLDERS

    def _said(self) -> str:
        return f"its promise rests on sealed sums, and holds if {'; if '.join(self.holds_if)}\n{self.broken}"


@dataclass(frozen=True)
class Budget(Event):
    """What an account had before the plans of this run and has with them, in epsilon; `share` is the used part."""

    party: str
    total: float
    spent_before: float
    left_before: float
    share_before: float
    spent: float
    left: float
    share: float

    def _said(self) -> str:
        return f"ledger of {self.party}: epsilon {self.left:.4g} left, before {self.left_before:.4g}"


@dataclass(frozen=True)
class Round(Event):
    """The coordinator has the answers of a round: `done` of `of` (0 if not known); bytes are totals of the process.

    `seconds` is how long it took, -1 where the data are in the same process.
    """

    plan: str
    done: int
    of: int
    query: str
    title: str
    sent_bytes: int
    received_bytes: int
    seconds: float

    def _said(self) -> str:
        return f"round {self.done}{f' of {self.of}' if self.of else ''}: {self.title}"


@dataclass(frozen=True)
class Answer(Event):
    """What a party or helper was asked, and what left it: how many numbers, under which noise, never a value.

    `noise` is the standard deviation by the plan, -1 where the plan names none; `counted` are the plan's own answers.
    """

    plan: str
    round: int
    counted: bool
    asked: str
    left: str
    numbers: int
    noise: float
    sent_bytes: int
    received_bytes: int

    def _said(self) -> str:
        return f"asked: {self.asked}; left: {self.left}"


@dataclass(frozen=True)
class Refused(Event):
    """An end refused what it was asked: `code` is budget, refused or ledger."""

    end: str
    asked: str
    code: str
    why: str
    level: ClassVar[str] = "warning"
    told: ClassVar[tuple[str, ...]] = HOLDERS

    def _said(self) -> str:
        return f"refused: {self.why}"


@dataclass(frozen=True)
class Failed(Event):
    """An end failed; `error` is the class of what was raised, and its text stays at the terminal there."""

    end: str
    asked: str
    error: str
    level: ClassVar[str] = "error"

    def _said(self) -> str:
        return f"{self.end} failed ({self.error or 'its own log has the reason'}) when asked: {self.asked}"


@dataclass(frozen=True)
class Predicted(Event):
    """The party here took part in a joint prediction; as its recipient it wrote the file."""

    plan: str
    recipient: str
    file: str
    told: ClassVar[tuple[str, ...]] = HOLDERS

    def _said(self) -> str:
        if self.file:
            return f"predictions by plan {self.plan[:12]} are in {self.file}"
        return f"took part in a prediction for {self.recipient} by plan {self.plan[:12]}"


@dataclass(frozen=True)
class Done(Event):
    """A run is over; without a plan the coordinator asks nothing more. `ledger`: where a part of the model waits."""

    plan: str
    ledger: str = ""
    told: ClassVar[tuple[str, ...]] = HOLDERS

    def _said(self) -> str:
        if not self.plan:
            return "the coordinator asks nothing more"
        said = f"plan {self.plan[:12]} is done"
        if not self.ledger:
            return said
        return (
            f"{said}\na part of its model is kept here. To predict with it, look at it (sottovoce models show "
            f"{self.ledger} {self.plan[:12]}), then approve it (sottovoce models approve ...)"
        )


@dataclass(frozen=True)
class Ended(Event):
    """The program ends: `outcome` is done, stopped or failed; of a failure the class, and the text where it is safe."""

    outcome: str
    error: str = ""
    why: str = ""

    def _said(self) -> str:
        return self.outcome if not self.error else f"{self.outcome} ({self.error}){': ' if self.why else ''}{self.why}"


@dataclass(frozen=True)
class Logged(Event):
    """A message of one of the package's loggers."""

    logger: str
    severity: str
    words: str

    def _said(self) -> str:
        return self.words


KINDS: Final[tuple[type[Event], ...]] = (
    Started,
    Expected,
    Connection,
    Planned,
    Signed,
    Agreed,
    Rests,
    Budget,
    Round,
    Answer,
    Refused,
    Failed,
    Predicted,
    Done,
    Ended,
    Logged,
)


def level_of(event: Event) -> str:
    """The level of an event in a log."""
    if isinstance(event, Logged):
        return event.severity
    if isinstance(event, Connection) and event.change != "connected" and event.change != "back":
        return "warning"
    if isinstance(event, Ended) and event.error:
        return "error"
    return event.level


def safe_text(error: BaseException) -> str:
    """The text of an error that is made from plans, policies, ledgers or the wire; of any other none."""
    from sottovoce.errors import BudgetError, RefusedError, WireError

    return str(error) if isinstance(error, BudgetError | RefusedError | WireError) else ""


def nothing(*_: Any) -> None:
    """Told to nobody."""
