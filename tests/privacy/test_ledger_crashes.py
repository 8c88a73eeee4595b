"""Real processes on real files: kills at random instants, and races for the last of a budget."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from processes import Program
from sottovoce.privacy.accounting import renyi_of
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

EPSILON, DELTA = 1.0, 1e-5

# Imports once, then forks a life for every line it reads, and says when that life has ended. A life charges
# and releases until it is killed, and says what was done only after the ledger returned.
LIVES = """
import hashlib, os, sys
from sottovoce.privacy.calibration import renyi_order_for
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Ledger

renyi_order_for(1.0, 1e-5)  # cached for all lives

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def live(path, life, too_early):
    say("pid", os.getpid())
    ledger = Ledger(path) if os.path.exists(path) else Ledger.create(path)
    name = f"set-{life}"
    own = ledger.open(name, 1.0, 1e-5)
    say("opened", name)
    shared = ledger.open("shared", 1.0, 1e-5)
    say("opened", "shared")
    number = 0
    while True:
        number += 1
        for account in (own, shared):
            plan = f"{life}-{number}"
            account.reserve(plan, [Gaussian(1e-4)])
            say("reserved", account.dataset, plan)
            for turn in range(3):
                payload = os.urandom(1 + 2000 * turn)
                done = ("released", account.dataset, plan, turn, hashlib.sha256(payload).hexdigest())
                if too_early:
                    say(*done)
                account.release(plan, turn, "gradient", payload)
                if not too_early:
                    say(*done)

for line in sys.stdin:
    path, life, too_early = line.rsplit(maxsplit=2)
    pid = os.fork()
    if pid == 0:
        live(path, int(life), too_early == "1")
    os.waitpid(pid, 0)
    say("dead")
"""

Fact = tuple[str, ...]


@pytest.fixture(scope="module")
def lives() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", LIVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield process
        pipe(process.stdin).close()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def kill_a_life(
    lives: subprocess.Popen[str],
    path: Path,
    life: int,
    chance: random.Random,
    *,
    patience: int = 8,
    too_early: bool = False,
) -> list[Fact]:
    """Let a process work on the ledger, kill it at a random instant, and return what it had acknowledged."""
    stdin, stdout = pipe(lives.stdin), pipe(lives.stdout)
    stdin.write(f"{path} {life} {int(too_early)}\n")
    stdin.flush()
    word, pid = stdout.readline().split()
    assert word == "pid"
    facts = [tuple(stdout.readline().split()) for _ in range(chance.randint(0, patience))]
    time.sleep(chance.uniform(0.0, 0.006))  # the length of one or two commits
    os.kill(int(pid), signal.SIGKILL)
    while (line := stdout.readline()) != "dead\n":
        assert line.endswith("\n"), "the server died"
        facts.append(tuple(line.split()))
    return facts


def facts_on_disk(path: Path) -> set[Fact]:
    """What the file says, read without the ledger's code."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT kind, dataset, plan, round, payload FROM entries").fetchall()
    connection.close()
    words = {"opening": "opened", "reservation": "reserved", "release": "released"}
    found: set[Fact] = set()
    for kind, dataset, plan, turn, payload in rows:
        extra = (str(turn), hashlib.sha256(payload).hexdigest()) if kind == "release" else ()
        found.add((words[kind], dataset, *((plan,) if plan else ()), *extra))
    return found


def uncharged(path: Path) -> int:
    """Releases without an earlier reservation of their plan."""
    connection = sqlite3.connect(path)
    count: int = connection.execute(
        """SELECT count(*) FROM entries AS r WHERE kind = 'release' AND NOT EXISTS (
             SELECT 1 FROM entries AS e WHERE e.kind = 'reservation' AND e.dataset = r.dataset
             AND e.plan = r.plan AND e.number < r.number)"""
    ).fetchone()[0]
    connection.close()
    return count


def test_kills_at_random_instants_lose_nothing(lives: subprocess.Popen[str], tmp_path: Path) -> None:
    chance = random.Random(20260714)
    inside_a_commit = 0
    for generation in range(8):
        path = tmp_path / f"{generation}.ledger"
        acknowledged: set[Fact] = set()
        for life in range(30):
            acknowledged |= set(kill_a_life(lives, path, life, chance))
            inside_a_commit += Path(f"{path}-journal").exists()
            if not acknowledged:
                path.unlink(missing_ok=True)  # never used: made anew by the next life
                continue
            ledger = Ledger(path)
            entries = ledger.verify()
            on_disk = facts_on_disk(path)
            assert acknowledged <= on_disk
            assert len(on_disk) == entries
            assert uncharged(path) == 0
        assert len(acknowledged) > 50
        charged = sum(account.balance().plans for account in ledger.accounts())
        assert charged == sum(fact[0] == "reserved" for fact in on_disk)
    assert inside_a_commit >= 20, "the kills must hit commits to show anything"


def test_kills_while_the_file_is_made(lives: subprocess.Popen[str], tmp_path: Path) -> None:
    chance = random.Random(7)
    for life in range(40):
        path = tmp_path / f"{life}.ledger"
        acknowledged = set(kill_a_life(lives, path, life, chance, patience=0))
        if not acknowledged:  # there is no file yet, or a whole one without an account
            path.unlink(missing_ok=True)
        ledger = Ledger(path) if path.exists() else Ledger.create(path)
        ledger.verify()
        assert acknowledged <= facts_on_disk(path)
        ledger.open("clinic", EPSILON, DELTA).reserve("p", [Gaussian(0.1)])


def test_a_process_that_acknowledges_too_early_is_caught(lives: subprocess.Popen[str], tmp_path: Path) -> None:
    """The check above can fail: a release that is said before it is durable is missing after some kill."""
    chance = random.Random(11)
    path = tmp_path / "holder.ledger"
    for life in range(100):
        facts = kill_a_life(lives, path, life, chance, too_early=True)
        if not facts:
            path.unlink(missing_ok=True)
            continue
        Ledger(path).verify()
        if not set(facts) <= facts_on_disk(path):
            return
    pytest.fail("100 kills never fell between the acknowledgement and the commit")


# Waits for a file, then opens the same account, shares one plan with the others and asks for its own plans.
RACER = """
import os, sys, time
from sottovoce.errors import BudgetError
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Ledger

path, name, mu, tries = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
while not os.path.exists(path + ".go"):
    time.sleep(0.001)
account = Ledger(path).open("clinic", 1.0, 1e-5)
account.reserve("together", [Gaussian(mu)])
print(account.release("together", 0, "gradient", os.urandom(16)).hex())
for number in range(tries):
    try:
        account.reserve(f"{name}-{number}", [Gaussian(mu)])
        print("won")
    except BudgetError as error:
        print("lost" if "'clinic'" in str(error) else error)
"""


@pytest.mark.parametrize(("racers", "fitting", "tries"), [(2, 2, 1), (8, 12, 5)])
def test_a_race_for_the_last_of_a_budget(tmp_path: Path, racers: int, fitting: int, tries: int) -> None:
    """`fitting` plans fit, one of them shared by all; each process asks for `tries` more, on a new file."""
    terms = Ledger.create(tmp_path / "terms.ledger").open("clinic", EPSILON, DELTA).terms()
    assert terms.order is not None
    assert terms.gaussian_capacity is not None
    mu = (2 * terms.gaussian_capacity / (fitting + 0.5) / terms.order) ** 0.5
    path = tmp_path / "holder.ledger"
    Ledger.create(path).open("clinic", EPSILON, DELTA)
    racer = tmp_path / "racer.py"
    racer.write_text(RACER)
    processes = [Program(racer, path, f"racer-{index}", mu, tries, read=True) for index in range(racers)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    Path(f"{path}.go").touch()
    outputs = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * racers

    assert len({output[0] for output in outputs}) == 1, "one key, one release"
    results = [word for output in outputs for word in output[1:]]
    assert results.count("won") == fitting - 1
    assert results.count("lost") == racers * tries - (fitting - 1)
    ledger = Ledger(path)
    assert ledger.verify() == 1 + fitting + 1
    balance = ledger.account().balance()
    assert balance.plans == fitting
    assert fitting * renyi_of([Gaussian(mu)], terms.order, "zero-out") <= terms.gaussian_capacity
    assert balance.spent <= EPSILON
