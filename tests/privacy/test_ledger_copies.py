"""A ledger that is in use is copied by SQLite, as docs/operations.md says."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Ledger


def test_every_copy_that_sqlite_makes_of_a_ledger_in_use_verifies(tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "budget.ledger").open("people", epsilon=50.0, delta=1e-5)

    def spend() -> None:
        for number in range(20):
            account.reserve(f"{number:064x}", [Gaussian(mu=0.01)])

    lengths = []
    with ThreadPoolExecutor() as pool:
        spent = pool.submit(spend)
        for number in range(10):
            path = tmp_path / f"copy-{number}.ledger"
            with closing(sqlite3.connect(tmp_path / "budget.ledger")) as source, closing(sqlite3.connect(path)) as copy:
                source.backup(copy)
            lengths.append(sum(len(list(each.history())) for each in Ledger(path).accounts()))
        spent.result()
    assert lengths == sorted(lengths)
    assert lengths[-1] >= 1
