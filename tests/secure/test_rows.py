"""Secure sums by rows: what is opened, what leaves once, who may be summed over, and who left."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.block import Block
from sottovoce.errors import LeakError, RefusedError, WireError
from sottovoce.federation.party import Party
from sottovoce.gate import gate as plain_gate
from sottovoce.gate import secure_gate as gate_module
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import Outgoing, Share, reply
from sottovoce.gate.secure_gate import SecureGate, noise_of
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.secure import sums
from sottovoce.secure.pair_keys import RunKey, fingerprint_of
from sottovoce.secure.sums import Call, Opener, label_of
from sottovoce.solvers import by_name
from sottovoce.transports.identity import local_identities
from summing import Holder, data_of, exact, holders, made, words
from support import forged, query_of, renewed

ROUNDS = 3


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "wide_gaussian", exact)


def opened(plan: Any, shares: dict[str, Any], *, attempt: int = 0, weights: float = 0.0, **other: Any) -> np.ndarray:
    """By the coordinator, in steps of the grid."""
    label = label_of("gradient", 0, Call(tuple(shares), attempt, ("weights",)), {"weights": np.full(3, weights)})
    opener = other.get("opener") or Opener(plan, SeededRandomness(1))
    query = query_of(plan, "gradient")
    value = opener.open(shares, noise_of(query, plan), label)
    return value / plan.release("gradient").step


class TestOpened:
    @pytest.mark.parametrize("parties", [2, 3, 8, 50])
    @pytest.mark.usefixtures("noiseless")
    def test_the_sum_is_exact_but_for_the_noise(self, parties: int) -> None:
        plan, keys = made(parties)
        each = holders(plan, keys)
        found = opened(plan, {name: words(holder.share(weights=0.3)) for name, holder in each.items()}, weights=0.3)
        assert found.tolist() == np.sum([holder.exact(0.3) for holder in each.values()], axis=0).tolist()
        X, y = (np.concatenate(part) for part in zip(*map(data_of, range(parties)), strict=True))
        rows = Block.prepare(X, y, plan.part("p00").preparation)
        query, step = query_of(plan, "gradient"), plan.release("gradient").step
        central = query.value(each["p00"].round(0.3)._replace(rows=rows)) / step
        assert np.abs(found - central).max() <= parties / 2  # each party rounds to the grid

    @pytest.mark.usefixtures("noiseless")
    def test_masks_of_other_numbers_do_not_cancel(self) -> None:
        plan, keys = made(3)
        each = holders(plan, keys)
        shares = {name: words(holder.share(weights=float(name == "p01"))) for name, holder in each.items()}
        with pytest.raises(WireError, match="do not add up to a sum: a party was asked something else"):
            opened(plan, shares)

    def test_a_sum_is_opened_once_and_whole(self) -> None:
        plan, keys = made(3)
        shares = {name: words(holder.share()) for name, holder in holders(plan, keys).items()}
        opener = Opener(plan, SeededRandomness(1))
        opened(plan, shares, opener=opener)
        with pytest.raises(LeakError, match="opened once"):
            opened(plan, shares, opener=opener)
        label = label_of("gradient", 0, Call(plan.names), {})
        noise = noise_of(query_of(plan, "gradient"), plan)
        with pytest.raises(LeakError, match="one share of each party in its roster"):
            Opener(plan, SeededRandomness(1)).open({name: shares[name] for name in plan.names[1:]}, noise, label)

    def test_shares_that_lack_one_are_uniform(self) -> None:
        """Chi-square of the top and low bytes, 255 degrees: beyond [150, 400] with a chance below 1e-7."""
        plan, keys = made(3)
        maskers = [holder.masker for holder in holders(plan, keys).values()]
        values, label = np.full(50_000, 12345), ["sum", "gradient", 0, 0, list(plan.names), ""]
        noise = noise_of(query_of(plan, "gradient"), plan)._replace(weights=1.0)
        shares = [masker.masked_share(values, noise, label, SeededRandomness(3, masker.name)) for masker in maskers]

        def chi_square(sum_: np.ndarray, shift: int) -> float:
            counts = np.bincount((sum_.view(np.uint64) >> np.uint64(shift)).astype(np.int64) & 255, minlength=256)
            return float(np.sum((counts - len(values) / 256) ** 2) / (len(values) / 256))

        for some in (shares[:1], shares[:2], shares[1:]):
            assert all(150 < chi_square(np.sum(some, axis=0), shift) < 400 for shift in (0, 56))
        assert chi_square(np.sum(shares, axis=0), 56) > 10_000  # all of them: a sum


class TestOnce:
    @pytest.fixture(params=["memory", "ledger"])
    def again(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Callable[[], Holder]]:
        """A maker of holders: with a ledger each call is a restart."""

        def make(**numbers: int) -> Callable[[], Holder]:
            plan, keys = made(3, **numbers)
            if request.param == "memory":
                one = Holder(plan, "p01", keys["p01"])
                return lambda: one
            account = sv.Ledger.create(tmp_path / "ledger.db").open("p01", epsilon=9.0, delta=1e-4)
            account.reserve(plan.digest.hex(), lambda _: (), delta=plan.delta, summary="")
            seeds = iter(range(100))
            return lambda: Holder(plan, "p01", keys["p01"], account=account, randomness=SeededRandomness(next(seeds)))

        return make

    def test_asked_again_the_same_bytes_leave_and_nothing_is_drawn(
        self, again: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        holder = again()
        first = words(holder().share()).tobytes()

        def never(*_: object) -> None:
            raise AssertionError("drawn again")

        monkeypatch.setattr(sums, "wide_gaussian", never)
        monkeypatch.setattr(plain_gate, "poisson_sample", never)
        assert words(holder().share()).tobytes() == first

    def test_another_roster_or_other_numbers_under_the_same_label_are_refused(self, again: Any) -> None:
        holder = again(dropouts=1, retries=1)
        holder().share()
        for change in ({"roster": ("p00", "p01")}, {"weights": 0.5}):
            with pytest.raises(RefusedError, match="another roster, or told other numbers; a share leaves once"):
                holder().share(**change)

    def test_spare_releases_are_counted_and_no_attempt_comes_after_a_later_one(self, again: Any) -> None:
        holder = again(dropouts=1, retries=3)
        pair = ("p00", "p01")
        holder().share()
        holder().share(pair, 1)
        with pytest.raises(RefusedError, match="answered for another roster"):
            holder().share(pair)
        holder().share(pair, number=1)
        holder().share(pair, 2, number=1)
        with pytest.raises(RefusedError, match="answered in a later attempt"):
            holder().share(pair, 1, number=1)
        holder().share(pair, number=2)
        with pytest.raises(RefusedError, match=r"3 retries .* used up"):
            holder().share(pair, 4, number=2)
        holder().share(pair, 1, number=2)
        with pytest.raises(RefusedError, match=r"3 retries .* used up"):
            holder().share(pair, 2, number=2)

    def test_a_roster_never_grows_again(self, again: Any) -> None:
        holder = again(dropouts=1, retries=1)
        holder().share(("p01", "p02"))
        with pytest.raises(RefusedError, match="never grows again"):
            holder().share(number=1)
        with pytest.raises(RefusedError, match="never grows again"):
            holder().share(("p00", "p01"), number=1)

    def test_two_processes_of_a_holder_count_together(self, again: Any) -> None:
        holder = again(dropouts=1, retries=1)
        one, other = holder(), holder()
        one.share(("p00", "p01"), 1)
        with pytest.raises(RefusedError, match=r"1 retries .* used up"):
            other.share(("p00", "p01"), 1, number=1)
        with pytest.raises(RefusedError, match="never grows again"):
            other.share(number=1)

    @pytest.mark.parametrize("roster", [(), ("p00", "p02"), ("p01", "p01"), ("p00", "p01", "p09")])
    def test_a_roster_has_this_party_and_no_stranger(self, roster: tuple[str, ...]) -> None:
        plan, keys = made(3, dropouts=1, retries=1)
        with pytest.raises(RefusedError, match="names members of the plan, once each, and p01"):
            Holder(plan, "p01", keys["p01"]).share(roster)

    def test_a_roster_is_no_smaller_than_the_noise_allows(self) -> None:
        plan, keys = made(3, dropouts=1, retries=1)
        with pytest.raises(RefusedError, match=r"1 of 3 parties; .* allows for 1 dropout"):
            Holder(plan, "p01", keys["p01"]).share(("p01",))

    @pytest.mark.usefixtures("noiseless")
    def test_one_mask_for_two_values_would_show_their_difference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The fault that labels are there for: here every round has the same one."""
        plan, keys = made(3)
        holder = Holder(plan, "p01", keys["p01"])
        apart = words(holder.share()) - words(holder.share(number=1, weights=0.5))
        difference = holder.exact() - holder.exact(0.5, 1)
        assert apart.tolist() != difference.tolist()
        monkeypatch.setattr(gate_module, "label_of", lambda *_: ["sum", "", 0, 0, list(plan.names), ""])
        holder = Holder(plan, "p01", keys["p01"])
        apart = words(holder.share()) - words(holder.share(number=1, weights=0.5))
        assert apart.tolist() == difference.tolist()


class TestDoor:
    def test_a_share_is_made_by_the_gate_alone(self) -> None:
        with pytest.raises(LeakError, match="Share is made by the gate alone"):
            Share("gradient", 0, np.zeros(3, dtype=np.int64), "")  # type: ignore[call-arg]
        plan, keys = made(2)
        share = Holder(plan, "p00", keys["p00"]).share()
        with pytest.raises(LeakError, match="cannot be changed"):
            share.text = ""
        with pytest.raises(ValueError, match="read-only"):
            words(share)[0] = 0
        with pytest.raises(LeakError):
            reply("answer", Frame("ask", 1), {"share": np.zeros(3)})  # type: ignore[arg-type]

    def test_a_secure_plan_releases_nothing_alone_and_others_share_nothing(self) -> None:
        plan, keys = made(2)
        holder = Holder(plan, "p00", keys["p00"])
        query = query_of(plan, "gradient")
        with pytest.raises(LeakError, match="would leave alone"):
            holder.gate.release(query, holder.round(0.0))
        plain = plan.model_copy(update={"aggregation": None, "keys": ()})
        holder.gate = SecureGate(plain, SeededRandomness(1), None, holder.masker)
        with pytest.raises(LeakError, match="secures no sums"):
            holder.share()

    def test_noise_below_the_grid_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plan, keys = made(2)
        monkeypatch.setattr(sums.Noise, "steps", lambda *_: 7.9)
        with pytest.raises(LeakError, match="below 8 steps"):
            Holder(plan, "p00", keys["p00"]).share()

    def test_equal_keys_are_refused_before_data_are_touched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With them two masks would be one."""
        party = Party("p00", *data_of(0), policy=sv.Policy(secure=True))
        own, (plan, _) = fingerprint_of(party.keys.new()), made(3)
        party.identify(local_identities(plan.names)["p00"])
        monkeypatch.setattr(Block, "prepare", lambda *_, **__: pytest.fail("rows were touched"))

        def answered(last: str) -> Frame:
            keys = [["p00", own], ["p01", fingerprint_of(RunKey().public)], ["p02", last]]
            digest, said = forged(plan, keys=keys)
            return decode(party.handle(encode(Frame("plan", 2, digest, query="check", text=said))).data)

        assert answered(fingerprint_of(RunKey().public)).kind == "accept"
        refused = answered(own)
        assert refused.kind == "refuse"
        assert "all different" in refused.text


def federation(parties: int, ledgers: Any = None, **numbers: int) -> sv.Federation:
    parts, names = [data_of(number) for number in range(parties)], [f"p{number:02}" for number in range(parties)]
    made_ = sv.Federation.by_rows(parts, names=names, ledgers=ledgers, sums="secure", record=True)
    return made_.secure_aggregation(**numbers) if numbers else made_


def model() -> sv.PrivateLogisticRegression:
    solver = by_name("newton", rounds=ROUNDS)
    return sv.PrivateLogisticRegression(epsilon=5.0, delta=1e-5, row_norm=1.0, classes=(0, 1), solver=solver)


@contextlib.contextmanager
def gone(party: Party, since: int, query: str = "gradient") -> Iterator[list[Frame]]:
    """A party that answers no more from a round on; what it is asked then."""
    plain, asked = party.handle, list[Frame]()

    def handle(request: bytes) -> Outgoing:
        frame = decode(request)
        if asked or (frame.kind == "ask" and frame.query == query and frame.round >= since):
            asked.append(frame)
            raise ConnectionError
        return plain(request)

    party.handle = handle  # type: ignore[method-assign]
    yield asked
    party.handle = plain  # type: ignore[method-assign]


def calls(party: Party) -> list[tuple[int, int, int]]:
    """Round, attempt and size of the roster of everything that a party is asked."""
    plain, found = party.handle, list[tuple[int, int, int]]()

    def handle(request: bytes) -> Outgoing:
        frame = decode(request)
        if frame.kind == "ask":
            call = Call.read(frame.text)
            found.append((frame.round, call.attempt, len(call.roster)))
        return plain(request)

    party.handle = handle  # type: ignore[method-assign]
    return found


class TestLeaving:
    @pytest.mark.usefixtures("noiseless")
    def test_the_run_goes_on_without_a_party_that_left(self) -> None:
        some = federation(4, dropouts=1, retries=1)
        found = calls(some._parties[0])
        coordinator = some.coordinator()
        some.coordinator = lambda **_: coordinator  # type: ignore[method-assign]
        with gone(some._parties[2], 2) as asked:
            fitted = model().fit(some)
        assert coordinator.left == {"p02": 2}
        assert fitted.privacy_.left == (("p02", "round 2"),)
        assert found == [(0, 0, 4), (1, 0, 4), (2, 0, 4), (2, 1, 3), (3, 0, 3)]
        assert [frame.kind for frame in asked] == ["ask", "done"]  # it is asked nothing more
        sums_ = [message.payload for message in fitted.transcript_ if message.sender == "sum"]
        assert len(sums_) == 4

    def test_without_spare_releases_the_run_ends_and_says_what_was_spent(self, tmp_path: Path) -> None:
        accounts = [sv.Ledger.create(tmp_path / f"{k}.db").open("x", epsilon=9.0, delta=1e-5) for k in range(3)]
        for numbers, since, text in (
            ({}, 1, r"round 1: p02 left, .* dropouts=0 and retries=0, of which 0 are used.* epsilon 5 .* stays spent"),
            ({"dropouts": 1, "retries": 0}, 2, "dropouts=1 and retries=0"),
        ):
            some = federation(3, accounts if since == 2 else None, **numbers)
            with gone(some._parties[2], since), pytest.raises(WireError, match=text) as error:
                model().fit(some)
            assert error.value.parties == ("p02",)
        assert all(account.balance().spent == pytest.approx(5.0, rel=0.02) for account in accounts)

    def test_no_more_leave_than_the_noise_allows_nor_more_often_than_was_paid(self) -> None:
        some = federation(4, dropouts=1, retries=3)
        with gone(some._parties[1], 1), gone(some._parties[2], 2), pytest.raises(WireError, match="p01, p02 left"):
            model().fit(some)
        some = federation(5, dropouts=2, retries=1)
        with (
            gone(some._parties[1], 1),
            gone(some._parties[2], 2),
            pytest.raises(WireError, match="retries=1, of which 1 are used"),
        ):
            model().fit(some)

    def test_two_that_leave_together_are_one_spare_release(self) -> None:
        some = federation(5, dropouts=2, retries=1)
        with gone(some._parties[1], 2), gone(some._parties[4], 2):
            model().fit(some)

    def test_spare_releases_are_paid_for(self) -> None:
        """Each as much as the dearest: with them all releases have more noise, and cost as much together."""
        (one, _), (other, _) = made(4), made(4, dropouts=1, retries=2)
        assert other.aggregation is not None
        share = 2 / (3 + 2)
        assert other.aggregation.reserve == pytest.approx(share, rel=1e-3)
        ratio = other.release("gradient").std / one.release("gradient").std
        assert ratio == pytest.approx((1 - share) ** -0.5, rel=1e-3)


class TestDeparted:
    """The key of a run that a party left."""

    @pytest.fixture
    def accounts(self, tmp_path: Path) -> list[sv.Account]:
        return [sv.Ledger.create(tmp_path / f"p{k:02}.db").open("x", epsilon=9.0, delta=1e-5) for k in range(4)]

    def left(self, accounts: list[sv.Account], *, restarted: bool, back: bool = True) -> None:
        """A run that the third party leaves in round 2; at its end it is back, or not."""
        some = federation(4, accounts, dropouts=1, retries=1)
        wire: Any = some.transport
        party = some._parties[2]
        plain = party.handle

        def handle(request: bytes) -> Outgoing:
            frame = decode(request)
            if frame.kind == "ask" and frame.round == 2:
                if restarted:
                    renewed(wire, Party("p02", *data_of(2), account=accounts[2], policy=sv.Policy(secure=True)))
                raise ConnectionError
            return plain(request)

        party.handle = handle  # type: ignore[method-assign]
        if not back:
            wire.connected = tuple(name for name in wire.parties if name != "p02")
        assert model().fit(some).privacy_.left == (("p02", "round 2"),)

    @pytest.mark.parametrize("restarted", [False, True])
    def test_who_is_back_at_the_end_deletes_it(
        self, restarted: bool, accounts: list[sv.Account], tmp_path: Path
    ) -> None:
        self.left(accounts, restarted=restarted)
        assert [list((tmp_path / f"p{k:02}.db.secure").iterdir()) for k in range(4)] == [[]] * 4

    def test_planted_an_end_that_nobody_tells_leaves_it_until_it_is_old(
        self, accounts: list[sv.Account], tmp_path: Path
    ) -> None:
        self.left(accounts, restarted=True, back=False)
        key, rows = sorted((tmp_path / "p02.db.secure").iterdir())
        assert rows == key.with_suffix(".rows")

        def start() -> None:
            Party("p02", *data_of(2), account=accounts[2], policy=sv.Policy(secure=True))

        for days, there in ((0, True), (89, True), (91, False)):
            since = time.time() - 86400 * days
            os.utime(key, (since, since))
            start()
            assert key.exists() == there


class TestRestart:
    @pytest.fixture
    def accounts(self, tmp_path: Path) -> list[sv.Account]:
        return [sv.Ledger.create(tmp_path / f"p{k:02}.db").open("x", epsilon=9.0, delta=1e-5) for k in range(3)]

    def restarting(
        self, some: sv.Federation, accounts: list[Any], at: int, before: Callable[[], None] = lambda: None
    ) -> Callable[..., Any]:
        """An exchange that restarts the second party before, or after, its so-manieth answer."""
        wire: Any = some.transport
        plain, count = wire.exchange, 0

        def restart() -> None:
            before()
            party = Party("p01", *data_of(1), account=accounts[1], policy=sv.Policy(secure=True))
            renewed(wire, party)

        def exchange(messages: dict[str, bytes]) -> dict[str, bytes]:
            nonlocal count
            asked = any(decode(message).kind == "ask" for message in messages.values())
            if asked and (count := count + 1) == at:
                restart()
            replies: dict[str, bytes] = plain(messages)
            if asked and count == -at:
                restart()
            return replies

        wire.exchange = exchange
        return exchange

    @pytest.mark.usefixtures("noiseless")
    @pytest.mark.parametrize("at", [1, 2, 4, -1, -3])
    def test_a_party_with_a_ledger_goes_on(self, at: int, accounts: list[sv.Account], tmp_path: Path) -> None:
        expected = model().fit(federation(3)).coef_
        some = federation(3, accounts)
        keys: list[Path] = []

        def look() -> None:
            (key,) = (tmp_path / "p01.db.secure").glob("*.key")
            assert {stat.S_IMODE(path.stat().st_mode) for path in key.parent.iterdir()} == {0o600}
            assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
            keys.append(key)

        self.restarting(some, accounts, at, look)
        assert np.array_equal(model().fit(some).coef_, expected)
        assert len(keys) == 1
        assert list((tmp_path / "p01.db.secure").iterdir()) == []
        assert [entry.kind for entry in accounts[1].history()].count("reservation") == 1

    def test_a_lost_key_is_refused_and_what_was_released_stays_charged(
        self, accounts: list[sv.Account], tmp_path: Path
    ) -> None:
        some = federation(3, accounts)

        def lose() -> None:
            next((tmp_path / "p01.db.secure").glob("*.key")).unlink()

        self.restarting(some, accounts, 2, lose)
        with pytest.raises(RefusedError, match=r"p01 does not have the key .* stays charged; start a new fit"):
            model().fit(some)
        assert accounts[1].balance().spent == pytest.approx(5.0, rel=0.02)

    def test_a_party_without_a_ledger_is_refused_after_a_restart(self) -> None:
        some = federation(3)
        self.restarting(some, [None] * 3, 2)
        with pytest.raises(RefusedError, match="p01 does not have the key that the plan names for it"):
            model().fit(some)

    def test_the_key_of_an_earlier_plan_is_deleted_with_the_next(
        self, accounts: list[sv.Account], tmp_path: Path
    ) -> None:
        """Also where nobody said that the earlier run was over."""
        some = federation(3, accounts, dropouts=1)
        with gone(some._parties[2], 1), pytest.raises(WireError):
            model().fit(some)
        left = set((tmp_path / "p00.db.secure").iterdir())
        with gone(some._parties[2], 1), pytest.raises(WireError):
            sv.PrivateLogisticRegression(epsilon=1.0, row_norm=1.0, classes=(0, 1), solver="newton").fit(some)
        now = set((tmp_path / "p00.db.secure").iterdir())
        assert {path.suffix for path in now} == {path.suffix for path in left} == {".key", ".rows"}
        assert not now & left
