"""One flipped bit, or a lost journal: doubt refuses, and never costs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from damage import PAGE, Victim, attack
from sottovoce.errors import LedgerError
from sottovoce.privacy import ledger_file
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Ledger

pytestmark = pytest.mark.slow


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim.make(tmp_path)


@pytest.mark.parametrize("process", ["starts", "runs", "blind"])
def test_a_flipped_bit_never_costs(victim: Victim, process: str) -> None:
    """In the index, where it once let an old key be answered anew, and in every other page.

    A process that is blind, to which the file looks unchanged, refuses less, but answers no other way.
    """
    index = victim.index_pages()
    assert index
    told = attack(victim, victim.bits(index, 120, 1), process, keys=4)
    told += attack(victim, victim.bits(range(len(victim.data) // PAGE), 10, 2), process, keys=4)
    assert told["refused"] >= (100 if process != "blind" else 1), told


def test_every_damage_that_is_to_the_index_alone_is_noticed_at_the_start(victim: Victim) -> None:
    """An index that is not that of its table is refused before anything is asked."""
    path = victim.account.path
    data = bytearray(victim.data)
    page = victim.index_pages()[0]
    place = data.index(next(iter(victim.released))[0].encode(), page * PAGE)
    data[place] ^= 1
    path.write_bytes(data)
    ledger_file._forget()
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path)
    with pytest.raises(LedgerError, match="damaged"):
        victim.account.reserve("f" * 64, victim.plan)


def test_the_attack_can_succeed(victim: Victim) -> None:
    """Without the check of the structure and with lookups by the index an old key is answered anew."""

    def by_index(self: ledger_file.Entries, *key: object) -> ledger_file.EntryRow | None:
        condition = "kind = ? AND dataset = ? AND plan = ? AND round = ? AND query = ?"
        names = ", ".join(ledger_file.EntryRow._fields)
        found = self._connection.execute(
            f"SELECT {names} FROM entries INDEXED BY entry_key WHERE {condition}", ledger_file.Key(*key)
        ).fetchone()
        return None if found is None else ledger_file.EntryRow._make(found)

    with (
        mock.patch.object(ledger_file, "_check_structure"),
        mock.patch.object(ledger_file.Entries, "find", by_index),
        pytest.raises(AssertionError, match=r"new noise|has changed"),
    ):
        attack(victim, victim.bits(victim.index_pages(), 150, 1), "starts")


# Releases until it is killed in a commit, when the journal is there and pages of the file are being written.
WRITER = """
import os, sys
from sottovoce.privacy.ledger import Ledger
account = Ledger(sys.argv[1]).account()
for turn in range(100000):
    done = account.release("P", turn, "q", os.urandom(20000))
    os.write(1, f"{turn} {done[:8].hex()}\\n".encode())
"""


def test_a_lost_journal_is_noticed_or_costs_nothing(tmp_path: Path) -> None:
    """Kills in the middle of a commit, after which the journal that would undo it is removed."""
    hot = 0
    for number in range(30):
        path = tmp_path / f"{number}.ledger"
        account = Ledger.create(path).open("d", 3.0, 1e-6, composition="gaussian")
        account.reserve("P", [Gaussian(0.1)])
        journal = Path(f"{path}-journal")
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = [process.stdout.readline()]
            while not (journal.exists() and _size(journal) > 512):
                os.sched_yield()
            process.kill()
            told += process.stdout.readlines()
        if not (journal.exists() and _size(journal) > 512):
            continue
        hot += 1
        journal.unlink()
        ledger_file._forget()
        with contextlib.suppress(LedgerError):
            for line in told:
                turn, start = line.split()
                found = account.stored("P", int(turn), "q")
                assert found is not None, "a told answer is missing"
                assert found[:8].hex() == start, "a told answer has changed"
            account.reserve("Q", [Gaussian(0.1)])
        if hot == 3:
            break
    assert hot == 3, "the kills must leave journals to show anything"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
