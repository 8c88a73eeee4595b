"""A ledger that was set back, cut or lost is found at the next run, by the receipt that the coordinator has."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import LedgerError, RefusedError
from sottovoce.federation.prediction import COORDINATOR
from sottovoce.federation.replies import pack_receipt, unpack_receipt
from sottovoce.privacy import ledger_file
from sottovoce.privacy.ledger import Receipt
from sottovoce.transports.base import InProcess


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (60, 3)), rng.integers(0, 2, 60)


def model() -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(0.3, 1e-6, entry_bound=1.0, classes=(0, 1), solver="gradient")


@pytest.fixture
def accounts(tmp_path: Path) -> list[sv.Account]:
    return [sv.Ledger.create(tmp_path / f"{name}.db").open(name, 3.0, 1e-6) for name in ("anna", "ben")]


def served(accounts: Sequence[sv.Account | None], **more: Any) -> sv.Federation:
    """Parties as if they were elsewhere: their holders' errors are not raised here."""
    parties = [
        sv.Party(name, *rows(seed), account=account)
        for seed, (name, account) in enumerate(zip(("anna", "ben"), accounts, strict=True))
    ]
    return sv.Federation.connect(InProcess(parties), **more)


def test_every_acceptance_and_end_gives_a_receipt(accounts: list[sv.Account]) -> None:
    federation = served(accounts)
    fitted = model().fit(federation)
    assert set(fitted.receipts_) == {"anna", "ben"}
    for account, name in zip(accounts, ("anna", "ben"), strict=True):
        assert fitted.receipts_[name] == account.receipt()  # the end of the run: every release is in it
        sv.Ledger(account.path).check_receipt(fitted.receipts_[name])
    again = model().fit(federation)
    assert again.receipts_["anna"].number > fitted.receipts_["anna"].number


@pytest.mark.parametrize("fate", ["set back", "made anew", "no ledger"])
def test_a_ledger_that_forgot_is_found_at_the_next_run(accounts: list[sv.Account], fate: str) -> None:
    federation = served(accounts)
    old = accounts[1].path.read_bytes()
    fitted = model().fit(federation)
    ledger_file._forget()  # the party starts anew
    if fate == "set back":
        accounts[1].path.write_bytes(old)
    elif fate == "made anew":
        accounts[1].path.unlink()
        sv.Ledger.create(accounts[1].path).open("ben", 3.0, 1e-6)
    restarted = served([accounts[0], None if fate == "no ledger" else accounts[1]])
    restarted.receipts.update(fitted.receipts_)
    before = accounts[0].balance().plans
    with pytest.raises(RefusedError, match=r"ben refuses.*set back, cut or replaced"):
        model().fit(restarted)
    assert accounts[0].balance().plans == before  # nobody has paid


def test_a_fit_that_goes_on_shows_the_newest_receipt(
    accounts: list[sv.Account], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the stopped run's beginning is older than one that a restarted party gave later."""
    plain, copies = InProcess.exchange, list[bytes]()

    def exchange(self: InProcess, messages: Any) -> Any:
        replies = plain(self, messages)
        copies.append(accounts[1].path.read_bytes())
        if len(copies) == 8:
            raise KeyboardInterrupt
        return replies

    monkeypatch.setattr(InProcess, "exchange", exchange)
    with pytest.raises(KeyboardInterrupt):
        model().fit(served(accounts, journal=tmp_path / "fit.run"))
    newest = {account.dataset: account.receipt() for account in accounts}
    accounts[1].path.write_bytes(copies[4])  # the plan is charged in it, and answers lack
    ledger_file._forget()
    assert accounts[1].balance().plans == 1
    assert accounts[1].receipt().number < newest["ben"].number
    monkeypatch.setattr(InProcess, "exchange", plain)
    for known, refused in ((newest, True), ({}, False)):
        federation = served(accounts, journal=tmp_path / "fit.run")
        federation.receipts.update(known)
        with pytest.raises(RefusedError, match=r"ben refuses.*set back") if refused else contextlib.nullcontext():
            model().fit(federation)


def test_without_a_receipt_a_ledger_that_was_set_back_is_not_found(accounts: list[sv.Account]) -> None:
    """So the test above shows what the receipt does."""
    old = accounts[1].path.read_bytes()
    model().fit(served(accounts))
    accounts[1].path.write_bytes(old)
    ledger_file._forget()
    model().fit(served(accounts))


def test_a_party_does_not_start_on_a_ledger_that_is_lost_or_damaged(accounts: list[sv.Account]) -> None:
    fitted = model().fit(served(accounts))
    ledger_file._forget()
    data = bytearray(accounts[0].path.read_bytes())
    data[data.index(fitted.charged_as_.encode())] ^= 1
    accounts[0].path.write_bytes(data)
    accounts[1].path.unlink()
    for name, account in zip(("anna", "ben"), accounts, strict=True):
        with pytest.raises(LedgerError, match=r"(?i)restore"):
            sv.Party(name, *rows(0), account=account)


def test_a_receipt_survives_its_frame() -> None:
    receipt = Receipt(2**40 + 7, "0123456789abcdef" * 4)
    assert unpack_receipt(pack_receipt(receipt)) == receipt
    assert unpack_receipt(np.zeros(4, dtype=np.int64)).number == 0


def test_what_a_run_is_about_is_in_every_ledger(accounts: list[sv.Account]) -> None:
    federation = served(accounts)
    federation.about = sv.About(analyst="A. Analyst", purpose="readmissions", note="second try")
    fitted = model().fit(federation)
    assert fitted.plan_.about == federation.about
    for account in accounts:
        (charge,) = account.book().reservations
        assert dict(charge.about) == federation.about.texts()
    assert COORDINATOR not in fitted.receipts_


def test_a_subaccount_pays_with_the_account_above(tmp_path: Path) -> None:
    ledger = sv.Ledger.create(tmp_path / "holder.db")
    total = ledger.open("patients", 1.0, 1e-6)
    own = ledger.open("anna", 0.5, 1e-6, under="patients")
    X, y = rows(1)
    fit = sv.PrivateLogisticRegression(0.3, 1e-6, entry_bound=1.0, classes=(0, 1), ledger=own)
    fit.fit(X, y)
    assert (own.balance().plans, total.balance().plans) == (1, 1)
    with pytest.raises(sv.BudgetError, match="account 'anna'"):
        fit.set_params(epsilon=0.45).fit(X, y)
    ledger.verify()
