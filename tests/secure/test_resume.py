"""Secure columns after a restart: everybody says the same bytes again, the model is the same bits, charged once."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from opening import fixed_coins
from secure_fits import NOTARY, by_columns, data, model
from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.party import Party
from sottovoce.federation.secure_columns import party as party_side
from sottovoce.federation.secure_columns.dealer import Dealer
from sottovoce.gate import secure_gate
from sottovoce.gate.frames import Frame, decode
from sottovoce.gate.secure_gate import UsedLabels
from sottovoce.privacy.mechanisms import SystemRandomness
from sottovoce.secure import streams, sums
from support import renewed

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")
PARTS = {"a": slice(0, 1), "b": slice(1, 3), "c": slice(3, 4)}
POLICY = sv.Policy(secure=True, colluding=1)


class StoppedError(BaseException):
    """In the place of the end of the coordinator's process."""


class Sites:
    """Three holders with ledgers, a dealer if there is one, and the job of a coordinator, on the disk of a folder."""

    def __init__(self, folder: Path, *, dealer: bool = False, ledgers: bool = True, keep: bool = True) -> None:
        folder.mkdir()
        self.folder, self.keep = folder, folder / "dealer" if keep else None
        names = NAMES if ledgers else ()
        self.accounts = {
            name: sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=50.0, delta=1e-4) for name in names
        }
        self.dealer = self.made(NOTARY) if dealer else None
        self.sent: dict[str, list[tuple[str, bytes]]] = {}
        self.exchanges = 0
        self.before: Callable[[int], None] = lambda _: None
        self.federation = self.again()

    def made(self, name: str, change: Callable[[Any, Any], Any] | None = None) -> Any:
        """An end, as its process makes it when it is started."""
        if name == NOTARY:
            return Dealer(NOTARY, keep=self.keep)
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
        journal = self.folder / "fit.run" if self.accounts else None
        made = by_columns(ledgers=ledgers, dealer=self.dealer, journal=journal)
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
        if said.kind in ("secure", "ask") and found.arrays:
            key = json.dumps([said.plan.hex(), said.kind, said.query, said.round, said.text])
            data = b"".join(np.ascontiguousarray(found.arrays[each]).tobytes() for each in sorted(found.arrays))
            self.sent.setdefault(json.dumps([name, key]), []).append((name, data))

    def fit(self, **more: Any) -> Any:
        """The coefficients."""
        return model(**{"rounds": 2, "solver": "whitened", **more}).fit(self.federation).coef_.tolist()

    def check(self, plans: int = 1) -> None:
        """One content of each message, however often it was said, and one charge of each plan."""
        twice = [key for key, said in self.sent.items() if len({data for _, data in said}) > 1]
        assert not twice, f"two contents of {twice}"
        assert {account.balance().plans for account in self.accounts.values()} <= {plans}


@pytest.fixture(autouse=True)
def coins() -> Iterator[None]:
    """Keys are the same in every run, so that models can be compared; noise is as it is, by key and label."""
    with fixed_coins():
        yield


def unbroken(folder: Path, *, dealer: bool = False, **more: Any) -> tuple[Any, int]:
    """The model of a run that nothing happens to, and how many exchanges it has."""
    with fixed_coins():
        sites = Sites(folder, dealer=dealer)
        return sites.fit(**more), sites.exchanges


def broken(folder: Path, who: str, at: int, *, dealer: bool = False, **more: Any) -> tuple[Any, Sites]:
    """The model of a run in which an end is restarted before the so-manieth exchange."""
    with fixed_coins():
        sites = Sites(folder, dealer=dealer)
        sites.before = lambda number: sites.restart(who) if number == at else None
        return sites.fit(**more), sites


PAIRED = 9  # the exchange from which on all have agreed on keys


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records go in several pieces."""
    monkeypatch.setattr(streams, "FRAME", 240 * 25)


@pytest.mark.parametrize(("who", "every"), [("a", 14), ("b", 25), (NOTARY, 25)])
def test_who_is_restarted_at_any_message_goes_on_with_the_same_bytes(who: str, every: int, tmp_path: Path) -> None:
    helped = who == NOTARY
    whole, count = unbroken(tmp_path / "whole", dealer=helped)
    for at in (*range(PAIRED, count - 5, every), count - 2, count):
        found, sites = broken(tmp_path / str(at), who, at, dealer=helped)
        assert found == whole, at
        assert at > count - 5 or sites.exchanges > count, "it was played again"
        sites.check()


@pytest.mark.usefixtures("small_frames")
def test_pieces_are_begun_again_too(tmp_path: Path) -> None:
    whole, count = unbroken(tmp_path / "whole", solver="newton")
    for at in range(PAIRED + 3, count, 40):
        found, sites = broken(tmp_path / str(at), "a", at, solver="newton")
        assert found == whole, at
        sites.check()


def test_planted_noise_that_is_drawn_anew_after_a_restart_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are rounded by other coins: the register refuses what they would say."""
    monkeypatch.setattr(party_side, "labelled", lambda source, label: SystemRandomness())
    with pytest.raises(RefusedError, match="something else was masked under this label"):
        broken(tmp_path / "one", "a", 30)
    monkeypatch.setattr(UsedLabels, "use", lambda self, label, content: None)
    sites = Sites(tmp_path / "two")
    sites.before = lambda number: sites.restart("a") if number == 30 else None
    with contextlib.suppress(WireError):
        sites.fit()
    with pytest.raises(AssertionError, match="two contents of"):
        sites.check()


class Stopping:
    """Ends the coordinator's process before an exchange, and restarts ends with it."""

    def __init__(self, sites: Sites, at: int, who: tuple[str, ...] = ()) -> None:
        self.sites, self.at, self.who = sites, at, who

    def __call__(self, number: int) -> None:
        """Before an exchange."""
        if number == self.at:
            for name in self.who:
                self.sites.restart(name)
            raise StoppedError


@pytest.mark.parametrize(("who", "every"), [((), 19), (NAMES, 33)])
def test_a_coordinator_that_is_restarted_goes_on_alone_or_with_all_parties(
    who: tuple[str, ...], every: int, tmp_path: Path
) -> None:
    whole, count = unbroken(tmp_path / "whole")
    for at in (*range(PAIRED + 1, count - 3, every), count - 3):
        with fixed_coins():
            sites = Sites(tmp_path / str(at))
            sites.before = Stopping(sites, at, who)
            with pytest.raises(StoppedError):
                sites.fit()
            sites.federation = sites.again()
            assert sites.fit() == whole, at
        sites.check()


@pytest.mark.parametrize(("who", "dealer"), [("a", False), (NOTARY, True), ("", False)])
def test_what_is_bought_after_a_fit_goes_on_too(who: str, dealer: bool, tmp_path: Path) -> None:
    """An end, or the coordinator, is restarted in the first plan, between the plans, in the second and at the end."""

    def fit(sites: Sites) -> Any:
        made = model(rounds=2, solver="whitened", epsilon=10.0, standard_errors=True).fit(sites.federation)
        assert made.missing_parts_ == {}
        return made.coef_.tolist(), made.coefficients().to_dict()

    with fixed_coins():
        sites = Sites(tmp_path / "whole", dealer=dealer)
        whole, count = fit(sites), sites.exchanges
    for at in (*range(count // 3, count - 3, count // 9), count - 3):
        with fixed_coins():
            sites = Sites(tmp_path / str(at), dealer=dealer)
            sites.before = Stopping(sites, at)
            if who:
                sites.before = lambda number, sites=sites, at=at: sites.restart(who) if number == at else None
            with contextlib.suppress(StoppedError):
                found = fit(sites)
            if not who:
                sites.federation = sites.again()
                found = fit(sites)
        assert found == whole, at
        sites.check(2)


def test_the_keys_of_a_run_go_with_its_end(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "run", dealer=True)
    seen = []
    folders = [tmp_path / "run" / "dealer", *(tmp_path / "run" / f"{name}.db.secure" for name in NAMES)]
    sites.before = lambda number: seen.append([sorted(path.suffix for path in each.glob("*")) for each in folders])
    sites.fit()
    assert [[".key", ".labels"], *[[".key", ".labels", ".rows"]] * 3] in seen
    assert [list(each.glob("*")) for each in folders] == [[]] * 4


CHANGES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "rows, by a little": ("a", lambda X, y: (X + 1e-5, y)),
    "labels": ("b", lambda X, y: (X, np.where(np.arange(len(y)) == 3, -y, y))),
    "null rows": ("a", lambda X, y: (np.where(np.arange(len(y))[:, None] == 3, np.nan, X), y)),
    "null labels": ("b", lambda X, y: (X, np.where(np.arange(len(y)) == 3, np.nan, y))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_rows_labels_and_null_rows_are_refused(change: str, tmp_path: Path) -> None:
    who, changed = CHANGES[change]
    sites = Sites(tmp_path / "run")
    sites.before = lambda number: sites.restart(who, changed) if number == 40 else None
    with pytest.raises(RefusedError, match="used for other records"):
        sites.fit()
    sites.check()


@pytest.mark.parametrize(
    ("who", "more", "why"),
    [
        ("a", {"ledgers": False}, "does not have the key that the plan names for it.*The run is lost"),
        (NOTARY, {"dealer": True, "keep": False}, "--keep.*The run is lost; what was charged stays charged"),
    ],
)
def test_who_keeps_nothing_has_lost_the_run(who: str, more: Any, why: str, tmp_path: Path) -> None:
    sites = Sites(tmp_path / "run", **more)
    sites.before = lambda number: sites.restart(who) if number == 40 else None
    with pytest.raises(RefusedError, match=why):
        sites.fit()
    sites.check()


def test_a_party_whose_register_is_gone_does_not_go_on(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "run")

    def gone(number: int) -> None:
        if number == 40:
            (labels,) = (tmp_path / "run" / "a.db.secure").glob("*.labels")
            labels.unlink()
            sites.restart("a")

    sites.before = gone
    with pytest.raises(RefusedError, match="this plan was run before"):
        sites.fit()


def test_a_party_that_is_restarted_all_the_time_ends_the_run(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "run")
    sites.before = lambda number: sites.restart("a") if number >= 30 else None
    with pytest.raises(WireError, match="was restarted again and again"):
        sites.fit()
    sites.check()
    sites.before = lambda number: None
    sites.federation = sites.again()
    assert np.isfinite(sites.fit()).all()
    sites.check()


def labels_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each mask was put on something in a run, by party and label."""
    found: Counter[str] = Counter()
    whole = sums.ColumnMasker.masked

    def masked(self: Any, label: Any, fields: Any) -> Any:
        found[json.dumps([self.name, *label])] += 1
        return whole(self, label, fields)

    monkeypatch.setattr(sums.ColumnMasker, "masked", masked)
    Sites(folder).fit()
    return found


@pytest.mark.usefixtures("small_frames")
def test_no_pad_is_used_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run with lengths, factors, rounds and scales, in several pieces."""
    found = labels_of(tmp_path / "run", monkeypatch)
    programs = {json.loads(label)[1] for label in found}
    assert {"columns", "null 0", "length 2", "factor 3", "look-up 0", "look-up 2"} <= programs
    assert set(found.values()) == {1}


@pytest.mark.usefixtures("small_frames")
def test_planted_labels_without_their_piece_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = streams.RoundLabels.label
    monkeypatch.setattr(streams.RoundLabels, "label", lambda self, name, _=None: whole(self, name))
    with pytest.raises(RefusedError, match="something else was masked under this label"):
        labels_of(tmp_path / "run", monkeypatch)


@pytest.mark.parametrize("bits", [32, 40, 48])
def test_words_leave_in_the_ring_of_their_bits(bits: int) -> None:
    """How often shares wrap around is in no bit of what is opened; shares that do not belong together are no sum."""
    generator = np.random.default_rng(bits)
    for _ in range(50):
        values, masks = (
            generator.integers(-(2**20), 2**20, (3, 1)),
            generator.integers(0, 2**64, (3, 2), dtype=np.uint64),
        )
        masks[2] = np.uint64(0) - masks[0] - masks[1]
        wraps = generator.integers(-(2**10), 2**10, (3, 1)) << bits
        shares = [sums.in_ring(value, bits) + mask for value, mask in zip(values + wraps, masks, strict=True)]
        opened = sums.from_ring(np.sum(shares, axis=0, dtype=np.uint64), bits)
        assert opened is not None
        assert opened.tolist() == values.sum(axis=0).tolist()
        assert sums.from_ring(shares[0] + shares[1], bits) is None  # by chance once in 2^64
        whole = np.sum([value.view(np.uint64) + mask[:1] for value, mask in zip(values + wraps, masks, strict=True)])
        assert whole.view(np.int64) == values.sum() + wraps.sum()  # negative control: words of 64 bits show wraps


def test_sums_that_do_not_belong_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of one number, which any word would pass for: each party has masks of its own."""
    whole, number = sums.label_of, itertools.count()

    def label_of(name: str, *said: Any) -> list[Any]:
        found = whole(name, *said)
        return found if name == "gram" else [*found[:-1], str(next(number))]

    monkeypatch.setattr(secure_gate, "label_of", label_of)
    with pytest.raises(WireError, match="the shares of 'length' in round 1 do not add up"):
        Sites(tmp_path / "run").fit()
