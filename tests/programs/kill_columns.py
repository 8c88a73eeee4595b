"""Kill roles of secure columns over gRPC at random instants: `kill_columns.py FOLDER KILLS SEED` prints one object.

Two holders with ledgers and identifiers, a dealer and the coordinator, each a process of its own, run one fit after the
other; in each fit one of them is killed and started again. Then the same plan is asked for once more. What the
coordinator was told is compared with what it was told before and with what the ledgers have stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.errors import SottovoceError
from sottovoce.estimators.fits import Fit
from sottovoce.federation.coordinator import Coordinator
from sottovoce.gate.frames import Frame, decode
from sottovoce.plan.plan import Plan
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_wire import GrpcCoordinator

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "secure"), str(TESTS / "faults")]

from cases import COME_BACK  # noqa: E402
from test_columns_wire import Sites, connected, laid_out  # noqa: E402

from secure_fits import NOTARY, model  # noqa: E402

ROUNDS = 6
HOLDERS, ROLES = ("a", "b"), ("coordinator", "a", "b", NOTARY)
KILLED = "the coordinator was killed"
UNCHARGED = ("compares the identifiers of a plan once it has checked it",)
LOST = ("was stopped in the middle of a run", "The run is lost", "does not have the key")
REFUSED = (
    "does not have the key",
    "was run before",
    "has dealt under this plan before",
    "was masked before",
    "was masked for other numbers",
    "was dealt before",
    "sent twice",
    "once its identifiers were compared",
    "has not agreed with the other members of the plan on keys",
)


class Recorded(GrpcCoordinator):
    """Writes down every answer as soon as it is there: who said it, to what, and its hash. Says when it is time."""

    log: Any
    orders: Any
    times: list[float]
    due = -1

    def exchange(self, messages: Any) -> dict[str, bytes]:
        self.say_when()
        begun = time.monotonic()
        replies = super().exchange(messages)
        self.times.append(time.monotonic() - begun)
        for name, data in replies.items():
            said, frame = decode(messages[name]), decode(data)
            if frame.kind == "answer":
                label = [name, frame.plan.hex(), frame.round, frame.query, said.kind, said.text]
                share = hashed(frame.arrays["share"].tobytes()) if "share" in frame.arrays else ""
                self.log.write(json.dumps([label, _words(frame), share]) + "\n")
        self.log.flush()
        return replies

    def say_when(self, *, over: bool = False) -> None:
        """That as many exchanges as were ordered are over, or all."""
        if self.due >= 0 and (over or len(self.times) == self.due):
            self.due = -1
            self.orders.send("now")


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _words(frame: Frame) -> str:
    """Of all that an answer carries."""
    parts = [[name, str(array.dtype), array.shape, array.tobytes().hex()] for name, array in frame.arrays.items()]
    return hashed(json.dumps([frame.text, sorted(parts)]).encode())


def coordinate(folder: Path, port: int, orders: Any) -> None:
    """Fit, or ask for the last plan again, as ordered; until it is killed."""
    wire = Recorded(f"localhost:{port}", Sites.names, Credentials.load(folder, "coordinator"), timeout=60.0)
    wire.orders = orders
    with (folder / "answers").open("a", encoding="ascii") as wire.log:
        for order, due in iter(orders.recv, ("stop", 0)):
            wire.wait_for_parties(60.0)
            wire.times, wire.due, said = [], due, ""
            try:
                if order == "fit":
                    fit(folder, wire)
                else:
                    ask_again(folder, wire, check=order == "again")
            except SottovoceError as error:
                said = f"{type(error).__name__}: {error}"
            wire.say_when(over=True)
            orders.send((said, wire.times))
    wire.close()


def fit(folder: Path, wire: Recorded) -> None:
    """A fit that writes its plan down before anybody is asked."""
    training = Fit(model(rounds=ROUNDS), connected(wire), runs=True)
    draft = folder / "plan.draft"
    said = json.dumps([training.plan.to_json(), training.session.coordinator._publics])
    draft.write_text(said, encoding="utf-8")
    draft.replace(folder / "plan")
    training.run()


def ask_again(folder: Path, wire: Recorded, *, check: bool) -> None:
    """The last plan, by a coordinator that remembers the parties' public keys, and may leave the check out."""
    text, publics = json.loads((folder / "plan").read_text(encoding="utf-8"))
    plan = Plan.from_json(text)
    coordinator = Coordinator(wire, dealer=NOTARY)
    coordinator._publics = publics
    if not check:
        coordinator.check = lambda _: None  # type: ignore[method-assign]
    coordinator.run(plan, algorithms.of(plan))


class Killed(Sites):
    """All roles, of which each that has ended is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, {}
        self.accounts = laid_out(folder, epsilon=4000.0, delta=1e-5, composition="gaussian")
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.wire = SimpleNamespace(port=free.getsockname()[1])
        self.times: list[float] = []
        self.written = [0, 0]  # entries of the ledgers at the last kill
        self._changing, self._over = threading.Lock(), threading.Event()
        for name in ROLES:
            self.start(name)
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def start(self, name: str) -> None:
        if name != "coordinator":
            super().start(name)
            return
        self.orders, orders = multiprocessing.Pipe()
        context: Any = multiprocessing.get_context("forkserver")
        self.coordinator = context.Process(target=coordinate, args=(self.folder, self.wire.port, orders))
        self.coordinator.start()
        orders.close()

    def kill(self, name: str) -> None:
        with self._changing:
            if name == "coordinator":
                self.coordinator.kill()
                self.coordinator.join()
            else:
                super().kill(name)
                self.written = [len(account.history()) for account in self.accounts]
                self.start(name)

    def order(self, what: str, kill: str = "", at: int = -1, after: float = 0.0) -> str:
        """What became of a fit, or of asking again, in which a role was killed: nothing if it ended well.

        It is killed some seconds after a number of exchanges.
        """
        said = KILLED
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            self.orders.send((what, at))
            if kill:
                self.orders.recv()
                time.sleep(after)
                self.kill(kill)
            said, self.times = self.orders.recv()
        if kill == "coordinator":
            self.start("coordinator")
        return str(said)

    def stop(self) -> None:
        self._over.set()
        self._keeper.join()
        with contextlib.suppress(BrokenPipeError):
            self.orders.send(("stop", 0))
        self.coordinator.join(20)
        self.coordinator.kill()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _keep(self) -> None:
        """An end that was told that a run is over ends; the next fit needs it again."""
        while not self._over.wait(0.02):
            with self._changing:
                for name, process in self.processes.items():
                    if process.poll() is not None:
                        self.start(name)


class Judge:
    """Counts what may not be."""

    def __init__(self, sites: Killed) -> None:
        self.sites, self.found = sites, Counter[str]()
        self._known: dict[str, list[str]] = {name: [] for name in HOLDERS}

    def ledgers(self, *, over: bool = True) -> dict[str, tuple[Counter[str], Counter[str]]]:
        """By holder: how often each plan was charged, and its releases; keys are kept while a run is not over."""
        books = {}
        for name, account in zip(HOLDERS, self.sites.accounts, strict=True):
            charged, released, keys = Counter[str](), Counter[str](), Counter[tuple[str, int, str]]()
            history = account.history()
            for entry in history:
                if entry.kind.startswith("reserv"):
                    charged[entry.plan] += 1
                elif entry.kind.startswith("release"):
                    self.found["released before the charge"] += not charged[entry.plan]
                    released[entry.plan] += 1
                    keys[entry.plan, entry.round, entry.query] += 1
            self.found["charged twice"] += sum(count > 1 for count in charged.values())
            self.found["two payloads of one release"] += sum(count > 1 for count in keys.values())
            hashes = [entry.hash for entry in history]
            self.found["a ledger went back"] += hashes[: len(self._known[name])] != self._known[name]
            self._known[name] = hashes
            books[name] = charged, released
        files = sum(1 for _ in self.sites.folder.glob("*.secure/*.key"))
        self.found["key files"] += files if over or not COME_BACK else 0
        return books

    def fitted(self, said: str, plan: str, role: str) -> None:
        """After a fit in which a role was killed."""
        books = self.ledgers(over=not said)
        charged = [book[0][plan] for book in books.values()]
        released = [book[1][plan] for book in books.values()]
        if not said:
            self.found["ended well without all releases"] += released != [ROUNDS + 1] * 2 or charged != [1, 1]
            self.found["ended well in spite of a kill"] += not COME_BACK and not self._harmless(plan, role)
        elif said == KILLED:
            self.found["killed without a kill"] += role != "coordinator"
        elif any(text in said for text in UNCHARGED):
            self.found["charged where it says not"] += charged != [0, 0]
        else:
            self.found["an unknown text"] += not any(text in said for text in LOST)
            self.found["lost after the charge"] += COME_BACK and charged != [0, 0]

    def _harmless(self, plan: str, role: str) -> bool:
        """Whether a kill came before the charge or after the last that was needed of the one who was killed.

        A dealer is needed until the last sum was dealt for, a party until it has answered.
        """
        for name, account, written in zip(HOLDERS, self.sites.accounts, self.sites.written, strict=True):
            before = sum(entry.plan == plan for entry in account.history()[:written])
            needed = 1 + ROUNDS + (role == name)  # the charge, the Gram matrix and the gradients
            if role in (name, NOTARY) and 0 < before < needed:
                return False
        return True

    def asked_again(self, said: str, role: str) -> None:
        """After the same plan was asked for again; it can end well where nobody but the coordinator was killed."""
        self.ledgers(over=not said)
        if role == "coordinator":
            known = not said or any(text in said for text in (*REFUSED, *LOST, *UNCHARGED))
        else:
            known = any(text in said for text in REFUSED)
        self.found["asked again, and not refused by a known text"] += not known

    def answers(self) -> dict[str, int]:
        """All that the coordinators were told: a label has one answer, which the ledgers have where it is a share."""
        told: dict[str, set[str]] = {}
        lines, shares = 0, 0
        accounts = dict(zip(HOLDERS, self.sites.accounts, strict=True))
        for line in (self.sites.folder / "answers").read_text(encoding="ascii").splitlines():
            try:
                label, words, share = json.loads(line)
            except ValueError:  # its writer was killed
                continue
            lines += 1
            told.setdefault(json.dumps(label), set()).add(words)
            if share:
                shares += 1
                stored = accounts[label[0]].stored(label[1], label[2], label[3])
                same = stored is not None and hashed(decode(stored).arrays["share"].tobytes()) == share
                self.found["not what is stored"] += not same
        self.found["two answers to one label"] += sum(len(words) > 1 for words in told.values())
        return {"answers": lines, "labels": len(told), "answered again": lines - len(told), "shares": shares}


def text_of(said: str) -> str:
    """The part of a text by which it is known."""
    known = next((text for text in (*LOST, *UNCHARGED, *REFUSED) if text in said), said)
    return known or "ended well"


def main(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["__main__", "sottovoce", "sottovoce.federation.federation", "sottovoce.transports.grpc_party"]
    )
    sites, chance, plan_file = Killed(folder), random.Random(seed), folder / "plan"
    judge, ended, again, roles = Judge(sites), Counter[str](), Counter[str](), Counter[str]()
    strange, early = [], 0
    if said := sites.order("fit") or sites.order("fit"):
        raise RuntimeError(said)
    exchanges, usual = len(sites.times), statistics.median(sites.times)
    for number in range(kills):
        role = chance.choice(ROLES)
        plan_file.unlink(missing_ok=True)
        said = sites.order("fit", role, chance.randint(0, exchanges), chance.uniform(0.0, 2.0 * usual))
        roles[role] += 1
        ended[f"{role}: {text_of(said)}"] += 1
        plan = ""
        if plan_file.exists():
            plan = Plan.from_json(json.loads(plan_file.read_text(encoding="utf-8"))[0]).digest.hex()
        before = judge.found.total()
        judge.fitted(said, plan, role)
        early += not plan
        if plan:
            checked = role != "coordinator" and chance.random() < 0.5
            once_more = sites.order("again" if checked else "unchecked")
            again[f"{role}: {text_of(once_more)}"] += 1
            judge.asked_again(once_more, role)
        else:
            once_more = ""
        if judge.found.total() > before:
            strange.append([number, role, said, once_more, dict(+judge.found)])
    judge.found["the last fit failed"] += bool(sites.order("fit"))
    releases = sum(book[1].total() for book in judge.ledgers().values())
    told = judge.answers()
    sites.stop()
    judge.ledgers()
    for account in sites.accounts:
        sv.Ledger(account.path).verify()
    return {
        "kills": dict(roles),
        "exchanges of a fit": exchanges,
        "seconds of an exchange": round(usual, 4),
        "ended": dict(ended),
        "killed before there was a plan": early,
        "asked again": dict(again),
        "releases": releases,
        **told,
        "violations": judge.found.total(),
        "of them": dict(judge.found),
        "strange": strange,
    }


if __name__ == "__main__":
    where, count, start_of_chance = sys.argv[1:]
    sys.stdout.write(json.dumps(main(Path(where), int(count), int(start_of_chance)), indent=1) + "\n")
