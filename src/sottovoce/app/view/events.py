"""What can happen in a run, as operators are told: a fixed list of kinds, each with public fields of plain types.

Page, metrics, JSON log and terminal are made of these events and of public plans. So a value of the data can be in none
of them unless it is in a field here, and a field is a text, a number or a list of texts that the plan, the policy, the
ledger or the wire made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sottovoce.errors import BudgetError, LeakError, RefusedError, WireError

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


def _describe_agreement(event: Fields) -> str:
    cost = "{algorithm}, costs epsilon {epsilon:.4g} at delta {delta:g}, {relation}".format_map(event)
    left = f"; epsilon {event['left']:.4g} is left" if event["left"] >= 0.0 else ""
    return f"agreed to plan {event['plan'][:12]} ({cost}){left}"


def _describe_round(event: Fields) -> str:
    total = f" of {event['of']}" if event["of"] else ""
    return f"round {event['done']}{total}: {event['title']}"


def _describe_done(event: Fields) -> str:
    if not event["plan"]:
        return "the coordinator asks nothing more"
    text = f"plan {event['plan'][:12]} is done"
    if not event["ledger"]:
        return text
    return (
        f"{text}\na part of its model is kept here. To predict with it, look at it (sottovoce models show "
        f"{event['ledger']} {event['plan'][:12]}), then approve it (sottovoce models approve ...)"
    )


def _describe_ending(event: Fields) -> str:
    outcome, error, why = event["outcome"], event["error"], event["why"]
    return f"{outcome} ({error}){': ' if why else ''}{why}" if error else outcome


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
    "agreed": Kind("plan algorithm epsilon delta relation left", _describe_agreement, told=HOLDERS),
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
    "round": Kind("plan done of query title sent_bytes received_bytes seconds", _describe_round),
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
    "done": Kind("plan ledger=", _describe_done, told=HOLDERS),
    # The program ends: `outcome` is done, stopped or failed; of a failure the class, and the text where it is safe.
    "ended": Kind(
        "outcome error= why=",
        _describe_ending,
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
            elif type(value) is tuple and all(type(item) is str for item in value):
                value = list(value)
            elif type(value) not in _PLAIN:
                raise LeakError(f"{field} of {name!r} is of type {type(value).__name__}; no event has such.")
            self.fields[field] = value
        if fields:
            raise LeakError(f"{', '.join(fields)} of {name!r}: no event has such.")

    @property
    def text(self) -> str:
        if not isinstance(self.kind.text, str):
            return self.kind.text(self.fields)
        joined = {key: ", ".join(value) if type(value) is list else value for key, value in self.fields.items()}
        return self.kind.text.format_map(joined)

    @property
    def level(self) -> str:
        level = self.kind.level
        return level if isinstance(level, str) else level(self.fields)


def safe_text(error: BaseException) -> str:
    """The text of an error that is made from plans, policies, ledgers or the wire; of any other none."""
    return str(error) if isinstance(error, BudgetError | RefusedError | WireError) else ""


def nothing(*_: Any) -> None:
    """Told to nobody."""
