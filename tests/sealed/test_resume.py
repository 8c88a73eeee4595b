"""Secure columns after a restart: everybody says the same bytes again, the model is the same bits, charged once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from opening import fixed_coins
from sealed_fits import NOTARY, by_columns, data, model
from sottovoce.door.frames import Frame, decode
from sottovoce.federation.helper import Helper
from sottovoce.federation.party import Party
from support import renewed

NAMES = ("a", "b", "c")
PARTS = {"a": slice(0, 1), "b": slice(1, 3), "c": slice(3, 4)}
POLICY = sv.Policy(sealed=True, curious=1)


class StoppedError(BaseException):
    """In the place of the end of the coordinator's process."""


class Sites:
    """Three holders with ledgers, a helper if there is one, and the job of a coordinator, on the disk of a folder."""

    def __init__(self, folder: Path, *, helper: bool = False, ledgers: bool = True, keep: bool = True) -> None:
        folder.mkdir()
        self.folder, self.keep = folder, folder / "helper" if keep else None
        names = NAMES if ledgers else ()
        self.accounts = {
            name: sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=50.0, delta=1e-4) for name in names
        }
        self.helper = self.made(NOTARY) if helper else None
        self.sent: dict[str, list[tuple[str, bytes]]] = {}
        self.exchanges = 0
        self.before: Callable[[int], None] = lambda _: None
        self.federation = self.again()

    def made(self, name: str, change: Callable[[Any, Any], Any] | None = None) -> Any:
        """An end, as its process makes it when it is started."""
        if name == NOTARY:
            return Helper(NOTARY, keep=self.keep)
        X, y = data()
        if change is not None:
            X, y = change(X.copy(), y.astype(float))
        labels = y if name == "b" else None
        return Party(name, X[:, PARTS[name]], labels, account=self.accounts.get(name), policy=POLICY)

    def restart(self, name: str, change: Callable[[Any, Any], Any] | None = None) -> None:
        """A new process in the place of an end."""
        renewed(self.wire, self.made(name, change))

    def again(self) -> sv.Federation:
        """All ends as they are, and a coordinator that was started anew."""
        ledgers = [self.accounts[name] for name in NAMES] if self.accounts else None
        made = by_columns(ledgers=ledgers, helper=self.helper, journal=self.folder / "fit.run")
        known = getattr(self, "wire", None)
        self.wire: Any = made.transport if known is None else known
        made.transport = self.wire
        if known is None:
            plain = self.wire.exchange

            def exchange(messages: Any) -> Any:
                self.exchanges += 1
                self.before(self.exchanges)
                replies = plain(messages)
                for name, reply in replies.items():
                    self.note(name, decode(messages[name]), reply)
                return replies

            self.wire.exchange = exchange
        return made

    def note(self, name: str, said: Frame, reply: bytes) -> None:
        """What an end answered, by what it was asked."""
        found = decode(reply)
        if said.kind in ("seal", "ask") and found.arrays:
            key = json.dumps([said.kind, said.query, said.round, said.text])
            data = b"".join(np.ascontiguousarray(found.arrays[each]).tobytes() for each in sorted(found.arrays))
            self.sent.setdefault(json.dumps([name, key]), []).append((name, data))

    def fit(self, **more: Any) -> Any:
        """The coefficients."""
        return model(**{"rounds": 2, "solver": "whitened", **more}).fit(self.federation).coef_.tolist()

    def check(self) -> None:
        """One content of each message, however often it was said, and one charge."""
        twice = [key for key, said in self.sent.items() if len({data for _, data in said}) > 1]
        assert not twice, f"two contents of {twice}"
        assert {account.balance().plans for account in self.accounts.values()} <= {1}


@pytest.fixture(autouse=True)
def coins() -> Iterator[None]:
    """Keys are the same in every run, so that models can be compared; noise is as it is, by key and label."""
    with fixed_coins():
        yield


def unbroken(folder: Path, *, helper: bool = False, **more: Any) -> tuple[Any, int]:
    """The model of a run that nothing happens to, and how many exchanges it has."""
    with fixed_coins():
        sites = Sites(folder, helper=helper)
        return sites.fit(**more), sites.exchanges


def broken(folder: Path, who: str, at: int, *, helper: bool = False, **more: Any) -> tuple[Any, Sites]:
    """The model of a run in which an end is restarted before the so-manieth exchange."""
    with fixed_coins():
        sites = Sites(folder, helper=helper)
        sites.before = lambda number: sites.restart(who) if number == at else None
        return sites.fit(**more), sites


@pytest.mark.parametrize("solver", ["newton", "whitened"])
@pytest.mark.parametrize("who", ["a", "b", NOTARY])
def test_who_is_restarted_at_any_message_goes_on_with_the_same_bytes(who: str, solver: str, tmp_path: Path) -> None:
    whole, count = unbroken(tmp_path / "whole", helper=who == NOTARY, solver=solver)
    first = 9  # all have agreed on keys
    for at in range(first, count + 1, 1 if solver == "whitened" and who == "a" else 7):
        found, sites = broken(tmp_path / str(at), who, at, helper=who == NOTARY, solver=solver)
        assert found == whole, at
        sites.check()
