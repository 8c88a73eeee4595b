"""A ledger with one flipped bit, over and over: no old key is answered anew and nothing is overspent.

python tests/damage.py FLIPS     so many random bits of every page, for a process that starts and for one that runs
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from sottovoce.errors import BudgetError, LedgerError
from sottovoce.privacy import ledger_file
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Account, Ledger

PAGE = 4096
PLANS, ROUNDS = 4, 5


@dataclass(frozen=True)
class Victim:
    """A ledger that has room for no further plan, its sound bytes, and what was released under each key."""

    account: Account
    data: bytes
    released: dict[tuple[str, int], bytes]
    plan: list[Gaussian]

    @classmethod
    def make(cls, folder: Path) -> Victim:
        """Four plans of five releases; a fifth plan would overspend."""
        account = Ledger.create(folder / "holder.ledger").open("patients", 1.0, 1e-6, composition="gaussian")
        plan = [Gaussian((account.terms().capacity / (PLANS + 0.2)) ** 0.5)]
        chance = random.Random(5)
        released = {}
        for _ in range(PLANS):
            name = chance.randbytes(32).hex()
            account.reserve(name, plan)
            for turn in range(ROUNDS):
                released[name, turn] = account.release(name, turn, "gradient", chance.randbytes(300))
        return cls(account, account.path.read_bytes(), released, plan)

    def index_pages(self) -> list[int]:
        """Which pages, from 0, are of the index: pages of its kind (2 or 10) that hold a plan's name."""
        pages = range(len(self.data) // PAGE)
        names = {name.encode() for name, _ in self.released}
        return [
            page
            for page in pages
            if self.data[page * PAGE] in (2, 10)
            and any(name in self.data[page * PAGE : (page + 1) * PAGE] for name in names)
        ]

    def bits(self, pages: Iterable[int], each: int, seed: int) -> Iterator[tuple[int, int]]:
        """Random (byte, bit) of each page."""
        chance = random.Random(seed)
        for page in pages:
            for _ in range(each):
                yield page * PAGE + chance.randrange(PAGE), 1 << chance.randrange(8)

    def payload_bits(self) -> Iterator[tuple[int, int]]:
        """The lowest bit of the first byte of each released value, where it lies in the file."""
        for payload in self.released.values():
            yield self.data.index(payload), 1

    def flip(self, byte: int, bit: int) -> None:
        """Put the damaged ledger in place of the sound one."""
        data = bytearray(self.data)
        data[byte] ^= bit
        self.account.path.write_bytes(data)
        Path(f"{self.account.path}-journal").unlink(missing_ok=True)

    def use(self, chance: random.Random, keys: int) -> str:
        """Ask some old keys again and for more than there is; "refused" or "as before", or an `AssertionError`."""
        refused = False
        for (plan, turn), known in chance.sample(sorted(self.released.items()), keys):
            try:
                found = self.account.stored(plan, turn, "gradient")
                assert found is None or found == known, "a stored answer has changed"
                again = self.account.release(plan, turn, "gradient", b"other noise")
                assert again == known, "an old key was answered with new noise"
                assert found is not None, "a stored answer was not found"
            except LedgerError:
                refused = True
        try:
            self.account.reserve("f" * 64, self.plan)
        except BudgetError:
            pass
        except LedgerError:
            refused = True
        else:
            raise AssertionError("more was spent than there is")
        return "refused" if refused else "as before"


def attack(victim: Victim, bits: Iterable[tuple[int, int]], process: str, keys: int = PLANS * ROUNDS) -> Counter[str]:
    """What came of each flip, for a process that starts, one that runs, or one that runs and cannot see the change."""
    told: Counter[str] = Counter()
    chance = random.Random(7)
    blind = mock.patch.object(ledger_file, "_file_state", return_value=(0,))
    with blind if process == "blind" else contextlib.nullcontext():
        victim.account.path.write_bytes(victim.data)
        ledger_file._forget()
        victim.account.balance()
        for byte, bit in bits:
            victim.flip(byte, bit)
            if process == "starts":
                ledger_file._forget()
            told[victim.use(chance, keys)] += 1
    return told


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = Victim.make(Path(folder))
        count, pages = int(sys.argv[1]), range(len(made.data) // PAGE)
        print(f"{len(pages)} pages, of the index {made.index_pages()}")  # noqa: T201
        for kind in ("starts", "runs", "blind"):
            print(kind, dict(attack(made, made.bits(pages, count // len(pages), 1), kind)))  # noqa: T201
