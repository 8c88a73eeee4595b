"""A role in a process of its own, by the real command line: `role.py ORDERS`, a JSON text of `Orders`.

The program adds three things to the commands `fit`, `party` and `dealer`, and changes nothing of what they do:

- noise that depends on who draws it, for which query in which round, and on nothing else: so a run in which things
  failed can be compared with one in which nothing did, bit for bit;
- a line in a file for each message, written before it leaves or is used, which outlives the process;
- points: instants around everything that lasts or leaves (a sync, a renaming, a commit, a message). At the one that it
  was told the process asks the nemesis, by a socket, and goes on when that has answered.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from sottovoce import algorithms
from sottovoce.app.cli import main
from sottovoce.federation.answering import Answering
from sottovoce.federation.journal import Journal
from sottovoce.federation.party import Party
from sottovoce.federation.secure_columns.dealer import Dealer, LocalDeals
from sottovoce.gate.frames import Frame, decode
from sottovoce.gate.gate import Gate, Memory
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.secure.pair_keys import RunKey
from sottovoce.secure.streams import KeyedRandomness
from sottovoce.secure.sums import ColumnMasker, Opener
from sottovoce.transports.base import InProcess
from sottovoce.transports.grpc_wire import GrpcCoordinator

sys.path.insert(0, str(Path(__file__).parents[1]))
from pairing import without_chance

COIN = "c0" * 16  # the public coin of every plan


@dataclass(frozen=True)
class Orders:
    """Who the process is, what it runs, where it writes what it says, and after how many points it asks."""

    role: str
    life: int  # how often it was started before
    command: tuple[str, ...]
    history: str
    nemesis: int = 0  # the port at which the nemesis listens
    due: int = 0  # 0: never
    clock: float = 0.0  # seconds by which its clock is ahead
    broken: str = ""  # a fault of the program itself, which the checks must find
    asks_as: str = ""  # by which name it asks the nemesis, if it is not its role

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class Keyed:
    """Noise by role, kind of message, query and round; it passes for secure, so that nothing else differs."""

    secure = True

    def __init__(self, role: str) -> None:
        self._role, self._stream = role, SeededRandomness(17, role)

    def turn(self, frame: Frame) -> None:
        """Begin anew for a message."""
        stage = hashlib.sha256(frame.text.encode()).hexdigest() if frame.kind == "secure" else ""
        self._stream = SeededRandomness(17, self._role, frame.kind, frame.query, str(frame.round), stage)

    def bytes(self, count: int) -> bytes:
        """The next of the message."""
        return self._stream.bytes(count)


class Labelled:
    """The same in secure sums, whose noise else follows from the key of the run, which differs in every run."""

    secure = False

    def __init__(self, source: Any) -> None:
        self._source = source

    def bytes(self, count: int) -> bytes:
        """The next of the message."""
        found: bytes = self._source.bytes(count)
        return found


def named_key(name: str) -> bytes:
    """By which an end of secure columns draws, by label, in the place of the key of its run."""
    return hashlib.sha256(name.encode()).digest()


class Points:
    """Counts the instants of a process, and waits at the one that is due."""

    def __init__(self, orders: Orders) -> None:
        self._orders, self._due, self.passed = orders, orders.due, 0
        self._turn, self._busy = threading.Lock(), threading.local()
        self.clock = orders.clock

    def at(self, what: str) -> None:
        """One more."""
        if getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            with self._turn:
                self.passed += 1
                if self.passed == self._due:
                    self._ask(what)
        finally:
            self._busy.now = False

    def _ask(self, what: str) -> None:
        with socket.create_connection(("localhost", self._orders.nemesis)) as nemesis:
            name = self._orders.asks_as or self._orders.role
            told = {"role": name, "life": self._orders.life, "point": self.passed, "what": what}
            nemesis.sendall(json.dumps(told).encode() + b"\n")
            answer = json.loads(nemesis.makefile().readline() or "{}")
        self._due = self.passed + answer["after"] if answer.get("after") else 0
        self.clock += answer.get("clock", 0.0)


def words_of(frame: Frame) -> str:
    """The hash of all that an answer says; "" of an acknowledgement."""
    if not frame.arrays:
        return ""
    parts = [[name, str(array.dtype), array.shape, array.tobytes().hex()] for name, array in frame.arrays.items()]
    return hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()


def derived_in(asked: Frame) -> list[str]:
    """Of a proposed plan the queries that are functions of rows with noise: no ledger keeps their answers."""
    if asked.kind != "plan" or not asked.text or asked.query == "start":
        return []
    return [release.query for release in Plan.from_json(asked.text).releases if release.mechanism == "derived"]


class History:
    """Appends lines to the file of this role. A line is one write, so a kill leaves it whole or leaves none."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._file = os.open(orders.history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **more: Any) -> None:
        """One event."""
        event = {"what": what, "role": self._orders.role, "life": self._orders.life, "at": time.monotonic(), **more}
        os.write(self._file, json.dumps(event).encode() + b"\n")

    def message(self, what: str, who: str, asked: Frame, reply: Frame, **more: Any) -> None:
        """An answer and what it answers."""
        self.write(
            what,
            who=who,
            asked=asked.kind,
            kind=reply.kind,
            plan=asked.plan.hex(),
            round=asked.round,
            query=asked.query,
            stage=asked.text if asked.kind == "secure" else "",
            words=words_of(reply) if reply.kind == "answer" else "",
            derived=derived_in(asked),
            **more,
        )


def add_noise_by_key(life: int) -> None:
    """Every party, dealer and dealer draws by key, and every plan has one coin.

    `life` is 0 but for a party of secure columns that is broken: one that was started again draws anew.
    """
    for kind in (Party, Dealer):
        begin, answer = kind.__init__, kind._answer

        def made(self: Any, name: str, *own: Any, begin: Any = begin, **more: Any) -> None:
            begin(self, name, *own, **{**more, "randomness": Keyed(name)})

        def turned(self: Any, frame: Frame, answer: Any = answer) -> Any:
            if not isinstance(self.randomness, Keyed):  # of data in one place the estimator says whence it comes
                self.randomness = Keyed(self.name)
            self.randomness.turn(frame)
            return answer(self, frame)

        kind.__init__, kind._answer = made, turned  # type: ignore[method-assign, assignment]
    opened, deals = Opener.open, LocalDeals.__init__

    def open_(self: Any, shares: Any, wanted: Any, label: Any) -> Any:
        self._randomness = SeededRandomness(17, "top-up", str(label[1]), str(label[2]))
        return opened(self, shares, wanted, label)

    def dealing(self: Any, *own: Any) -> None:
        deals(self, *own)
        self._randomness = KeyedRandomness(named_key("dealer"))

    Opener.open, LocalDeals.__init__ = open_, dealing  # type: ignore[method-assign]
    ColumnMasker.noise = lambda self, _: KeyedRandomness(named_key(f"{self.name} {life}"))  # type: ignore[method-assign]
    RunKey.noise = lambda self, digest, source, records=b"": Labelled(source)  # type: ignore[method-assign]
    without_chance()  # a look-up rounds by its pads, which so are the same in every run
    plan_by = algorithms.plan_by

    def planned(*own: Any, **more: Any) -> Any:
        return plan_by(*own, **{**more, "coin": COIN})

    algorithms.plan_by = planned


def stored_words(frame: Frame) -> str:
    """What the ledger of this folder has for a query, read apart from the process's own connections."""
    path = Path("ledger.db")
    if not path.exists():
        return ""
    connection = sqlite3.Connection(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=60.0)
    key = (frame.plan.hex(), frame.round, frame.query)
    found = connection.execute(
        "SELECT payload FROM entries WHERE kind = 'release' AND plan = ? AND round = ? AND query = ?", key
    ).fetchone()
    connection.close()
    return "" if found is None else words_of(decode(found[0]))


def add_history(history: History, points: Points) -> None:
    """Lines and points for what passes the edges of the process: what leaves an end, what comes to a coordinator."""
    handle = Answering.handle

    def handled(self: Any, request: bytes) -> Any:
        asked = decode(request)
        points.at(f"{asked.kind} {asked.query} {asked.round} came")
        outgoing = handle(self, request)
        reply = decode(outgoing.data)
        stored = stored_words(asked) if asked.kind == "ask" and reply.kind == "answer" else ""
        history.message(
            "left", self.name, asked, reply, stored=stored, text=reply.text if reply.kind == "refuse" else ""
        )
        points.at(f"{asked.kind} {asked.query} {asked.round} is answered")
        return outgoing

    Answering.handle = handled  # type: ignore[method-assign]
    for wire in (GrpcCoordinator, InProcess):
        exchange = wire.exchange

        def exchanged(self: Any, messages: Any, exchange: Any = exchange) -> Any:
            points.at("before an exchange")
            replies = exchange(self, messages)
            for name, data in replies.items():
                history.message("came", name, decode(messages[name]), decode(data))
            points.at("after an exchange")
            return replies

        wire.exchange = exchanged  # type: ignore[method-assign]


def add_points(points: Points) -> None:
    """Around every sync, every renaming and removal of a file of the role, and every transaction."""
    home = Path.cwd()
    for name in ("fsync", "replace", "link", "unlink"):
        whole = getattr(os, name)

        def done(first: Any, *own: Any, whole: Any = whole, name: str = name, **more: Any) -> Any:
            if not isinstance(first, int) and home not in Path(first).absolute().parents:  # such as compiled kernels
                return whole(first, *own, **more)
            points.at(f"before {name}")
            found = whole(first, *own, **more)
            points.at(f"after {name}")
            return found

        setattr(os, name, done)

    class Pointed(sqlite3.Connection):
        def execute(self, sql: str, *own: Any) -> Any:
            shown = sql.split()[0] if sql in ("BEGIN IMMEDIATE", "COMMIT") else ""
            if shown:
                points.at(f"before {shown}")
            found = super().execute(sql, *own)
            if shown:
                points.at(f"after {shown}")
            return found

    connect = sqlite3.connect

    def connected(*own: Any, **more: Any) -> Any:
        return connect(*own, **{"factory": Pointed, **more})

    sqlite3.connect = connected


def add_clock(points: Points) -> None:
    """The wall clock of the process is as far ahead as it was told; intervals are measured by another one.

    A library that reads one clock and waits by another, which jump together where a clock does, is told the real time.
    """

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=points.clock)

    for name, module in list(sys.modules.items()):
        if name.startswith("sottovoce") and getattr(module, "datetime", None) is datetime:
            module.datetime = Shifted  # type: ignore[attr-defined]
    real = time.time
    time.time = lambda: real() + points.clock * sys._getframe(1).f_globals["__name__"].startswith("sottovoce")


def break_program(how: str) -> None:
    """Plant a fault: a party that answers before it has stored, one that remembers nothing but zeros, or a fit that
    reads its state before it has it, and does not look again.
    """
    store, handle, late, recall = Gate._store, Answering.handle, list[Any](), Memory.read
    if how == "forgets":

        def forgotten(self: Any, *key: Any) -> Any:
            found = recall(self, *key)
            return None if found is None else {name: array * 0 for name, array in found.items()}

        Memory.read = forgotten  # type: ignore[method-assign]
    elif how == "answers first":

        def later(self: Any, released: Any, *more: Any) -> Any:
            late.append((self, released, *more))
            self.unreleased = False
            return released

        def handled(self: Any, request: bytes) -> Any:
            while late:
                store(*late.pop())
            return handle(self, request)

        Gate._store, Answering.handle = later, handled  # type: ignore[method-assign]
    elif how == "locks late":
        lock, begin = Journal._lock, Journal.begin

        def begun(self: Any) -> None:
            if self.path is not None:
                lock(self)
            begin(self)

        Journal._lock, Journal.begin = (lambda _: None), begun  # type: ignore[method-assign]
        Journal._is_ours = lambda _: True  # type: ignore[method-assign]
    elif how not in ("", "draws anew"):
        raise ValueError(how)


def become(orders: Orders) -> None:
    """Run the command."""
    points, history = Points(orders), History(orders)
    break_program(orders.broken)
    add_noise_by_key(orders.life if orders.broken == "draws anew" else 0)
    add_history(history, points)
    add_points(points)
    add_clock(points)
    history.write("started")
    sys.argv = ["sottovoce", *orders.command]
    try:
        main()
    finally:
        history.write("ended", points=points.passed)


if __name__ == "__main__":
    become(Orders(**json.loads(sys.argv[1])))
