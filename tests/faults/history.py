"""What a run left behind, and what must be true of it whatever failed.

A history is what the processes wrote while they ran, a line for each message, with the ledgers as they are in the end.
Each check is a function of a history that yields what is wrong with it, in words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cases import COORDINATOR, Case
from role import words_of

import sottovoce as sv
from sottovoce.errors import SottovoceError
from sottovoce.estimators.model_file import load_model
from sottovoce.federation.run_keys import PAIR
from sottovoce.gate.frames import decode

Event = Mapping[str, Any]
Key = tuple[str, str, int, str]


@dataclass(frozen=True)
class Entry:
    """An entry of a ledger, with the hash of what was stored."""

    number: int
    kind: str
    plan: str
    round: int
    query: str
    words: str = ""
    cost: float = 0.0  # of a charge


@dataclass(frozen=True)
class History:
    """All that is known of a run when all its processes have ended."""

    events: tuple[Event, ...]  # of each role in its order
    ledgers: Mapping[str, tuple[Entry, ...]]
    spent: Mapping[str, float] = field(default_factory=dict)
    model: str = ""  # the hash of its numbers
    parts: Mapping[str, str] = field(default_factory=dict)  # of the parts that parties keep
    files: Mapping[str, int] = field(default_factory=dict)  # paths in the folders of the roles, with their modes
    broken: tuple[str, ...] = ()  # ledgers that do not verify

    def answers(self, *whats: str) -> Iterator[Event]:
        """Answers to queries that left a party, or came to the coordinator."""
        return (each for each in self.events if each["what"] in whats and each.get("kind") == "answer")

    def charges(self, holder: str) -> Counter[str]:
        """How often each plan was charged."""
        return Counter(entry.plan for entry in self.ledgers[holder] if entry.kind == "reservation")


def read(folder: Path, case: Case) -> History:
    """The history of a run that has ended."""
    events = tuple(
        json.loads(line)
        for role in case.roles
        for line in (folder / "history" / f"{role}.jsonl").read_text().splitlines()
    )
    ledgers, spent, broken = dict[str, tuple[Entry, ...]](), dict[str, float](), list[str]()
    for holder in case.holders:
        ledger = sv.Ledger(folder / holder / "ledger.db")
        try:
            ledger.verify()
        except SottovoceError as error:
            broken.append(f"{holder}: {error}")
            continue
        account = ledger.account()
        ledgers[holder] = tuple(_entry(account, known) for known in account.history())
        spent[holder] = account.balance().spent
    files = {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777
        for role in case.roles
        for path in (folder / role).rglob("*")
        if path.is_file()
    }
    parts = {holder: _part_of(folder / holder) for holder in case.parties}
    return History(events, ledgers, spent, _model_of(folder / COORDINATOR / "job.json"), parts, files, tuple(broken))


def _entry(account: Any, known: Any) -> Entry:
    stored = account.stored(known.plan, known.round, known.query) if known.kind == "release" else None
    words = "" if stored is None else words_of(decode(stored))
    cost = float(known.details.get("cost", 0.0))
    return Entry(known.number, known.kind, known.plan, known.round, known.query, words, cost)


def _model_of(path: Path) -> str:
    if not path.exists():
        return ""
    model = load_model(path)
    return _hash(model.coef_.tobytes(), model.intercept_)


def _part_of(folder: Path) -> str:
    """Of the part of a model that a party keeps, without its plan, which has a name of its own in each run."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.models/*.json"))]
    return _hash(*([part["coef"], part["intercept"]] for part in found)) if found else ""


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


# ----- What must be true of every run, however it ended -----


def same_bytes(history: History) -> Iterator[str]:
    """A question has one answer: whatever leaves a party twice is the same, and only what left it comes in.

    An offer of a key is the same secret in a box that is made anew each time (`PairKeys.offers`).
    """
    told, left = defaultdict[tuple[Any, ...], set[str]](set), set[tuple[Any, ...]]()
    for event in history.answers("left", "came"):
        label = (event["who"], event["plan"], event["round"], event["query"], event["asked"], event["stage"])
        if event["query"] != PAIR:
            told[label].add(event["words"])
        if event["what"] == "left":
            left.add((*label, event["words"]))
    yield from (f"two answers to one question: {label[:4]}" for label, words in told.items() if len(words) > 1)
    for event in history.answers("came"):
        label = (event["who"], event["plan"], event["round"], event["query"], event["asked"], event["stage"])
        if (*label, event["words"]) not in left:
            yield f"an answer came that never left: {label[:4]}"


def stored_first(history: History) -> Iterator[str]:
    """What leaves a party is in its ledger before, and there it is in the end; functions of kept rows are in none."""
    derived = {(event["plan"], query) for event in history.events for query in event.get("derived", ())}
    stored = {
        (holder, entry.plan, entry.round, entry.query): entry.words
        for holder, entries in history.ledgers.items()
        for entry in entries
        if entry.kind == "release"
    }
    for event in history.answers("left"):
        if event["asked"] != "ask" or (event["plan"], event["query"]) in derived:
            continue
        holder = event["role"]
        if holder not in history.ledgers:  # a dealer has none
            continue
        label = (holder, event["plan"], event["round"], event["query"])
        if event["stored"] != event["words"]:
            yield f"left before it was stored: {label}"
        if stored.get(label) != event["words"]:
            yield f"left, and not what the ledger has: {label}"


def released_once(history: History) -> Iterator[str]:
    """A ledger has one release for a key."""
    for holder, entries in history.ledgers.items():
        found = Counter((entry.plan, entry.round, entry.query) for entry in entries if entry.kind == "release")
        yield from (f"released twice: {(holder, *key)}" for key, count in found.items() if count > 1)


def charged_first(history: History) -> Iterator[str]:
    """A plan is charged before anything of it is released, and once."""
    for holder, entries in history.ledgers.items():
        charged = Counter[str]()
        for entry in sorted(entries, key=lambda each: each.number):
            if entry.kind == "reservation":
                charged[entry.plan] += 1
            elif entry.kind in ("release", "rows") and not charged[entry.plan]:
                yield f"released before it was charged: {(holder, entry.plan, entry.round, entry.query)}"
        yield from (f"charged twice: {(holder, plan)}" for plan, count in charged.items() if count > 1)
    for event in history.answers("left"):
        if (
            event["role"] in history.ledgers
            and event["asked"] == "ask"
            and not history.charges(event["role"])[event["plan"]]
        ):
            yield f"left without a charge: {(event['role'], event['plan'], event['round'], event['query'])}"


def accepted_first(history: History) -> Iterator[str]:
    """A process answers under a plan that it has accepted itself, and not since it refused it."""
    agreed = set[tuple[str, int, str]]()
    for event in history.events:
        if event["what"] != "left":
            continue
        life = (event["role"], event["life"], event["plan"])
        if event["asked"] == "plan" and event["query"] != "check":
            (agreed.add if event["kind"] == "accept" else agreed.discard)(life)
        elif event["asked"] == "ask" and event["kind"] == "answer" and life not in agreed:
            yield f"answered under a plan that it had not accepted: {(*life, event['round'], event['query'])}"


def verified(history: History) -> Iterator[str]:
    """Every ledger is whole."""
    yield from history.broken


ALWAYS: Final[tuple[Callable[[History], Iterator[str]], ...]] = (
    same_bytes,
    stored_first,
    released_once,
    charged_first,
    accepted_first,
    verified,
)


# ----- What must be true of a run that has ended well, compared with one in which nothing failed -----


def same_model(history: History, unbroken: History) -> Iterator[str]:
    """The model is that of the unbroken run, bit for bit; so are the parts that the parties keep."""
    if not history.model or history.model != unbroken.model:
        yield "another model, or none"
    yield from (
        f"another part of the model at {name}" for name, part in unbroken.parts.items() if history.parts[name] != part
    )


def same_charge(history: History, unbroken: History) -> Iterator[str]:
    """As many plans were charged as without failures, and as much, and they released the same under other masks."""
    for holder, spent in unbroken.spent.items():
        if history.charges(holder).total() != unbroken.charges(holder).total():
            yield f"{holder} was charged for {history.charges(holder).total()} plans"
        if history.spent[holder] != spent:
            yield f"{holder} has spent {history.spent[holder]!r}, without failures {spent!r}"
        entries = [[(e.kind, e.round, e.query) for e in of.ledgers[holder]] for of in (history, unbroken)]
        if sorted(entries[0]) != sorted(entries[1]):
            yield f"the ledger of {holder} has other entries"


def charge_of_several(history: History, unbroken: History, given_up: int) -> Iterator[str]:
    """Where runs were given up: at most one plan more for each of them, and each plan was charged what one costs."""
    for holder in unbroken.ledgers:
        plans = history.charges(holder).total() - unbroken.charges(holder).total()
        if not 0 <= plans <= given_up:
            yield f"{holder} was charged for {plans} plans more, and {given_up} runs were given up"
        costs = [{e.cost for e in of.ledgers[holder] if e.kind == "reservation"} for of in (history, unbroken)]
        if costs[0] != costs[1]:
            yield f"{holder} was charged {costs[0]} for a plan, without failures {costs[1]}"


def nothing_left(history: History, unbroken: History) -> Iterator[str]:
    """No file is there that an unbroken run does not leave, and what a role keeps is for its owner alone.

    A process that is killed while it writes may leave the file that it wrote, as `files.write_durably` says, but no
    key and nothing that a solver remembers. Which labels a party has used stays if nobody could tell it that the run is
    over, and no other plan followed.
    """
    kinds = {_kind(path) for path in unbroken.files}
    kinds |= {f"{kind}.#.new" for kind in kinds}
    for path in history.files:
        if _kind(path) not in kinds and not (path.endswith(".labels") and _never_ended(history, path)):
            yield f"left behind: {path}"
    for path, mode in history.files.items():
        if mode & 0o077 and not path.endswith((".toml", ".html")) and "/job." not in path:
            yield f"{path} has the mode {mode:o}"


def _never_ended(history: History, path: str) -> bool:
    """Whether the last plan or end of a run that a party has answered to was the acceptance of a file's plan."""
    role, last = path.partition("/")[0], ""
    for event in history.events:
        if event["role"] == role and event["what"] == "left" and event["kind"] in ("accept", "done", "unknown-plan"):
            if event["asked"] == "plan" and event["query"] == "" and event["kind"] == "accept":
                last = event["plan"]
            elif event["asked"] == "done":
                last = ""
    return bool(last) and last in path


def _kind(path: str) -> str:
    """A path without the digests in it."""
    return re.sub("[0-9a-f]{16,}", "#", path)


def violations(history: History, unbroken: History, given_up: int = 0) -> list[str]:
    """All that is wrong with a history that ended in a model, after so many runs were given up."""
    found = [said for check in ALWAYS for said in check(history)]
    found += [*same_model(history, unbroken), *nothing_left(history, unbroken)]
    charge = charge_of_several(history, unbroken, given_up) if given_up else same_charge(history, unbroken)
    return [*found, *charge]
