"""Noisy rows: drawn once, stored, used again, and never for other data. Runs go through real ledgers and files."""

from __future__ import annotations

import json
import logging
import math
import pickle
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

import sottovoce as sv
from processes import Program
from sottovoce.data.block import Preparation
from sottovoce.data.bounds import Bounds
from sottovoce.door import noisy_rows as kept_rows
from sottovoce.door.frames import Frame, decode, encode
from sottovoce.door.gate import Gate
from sottovoce.door.noisy_rows import Copy, Stock, bill, digests_of, draw, name_of, recipe_of, row_event
from sottovoce.door.outgoing import Kept, declare_public
from sottovoce.door.query import Round
from sottovoce.errors import LeakError, LedgerError, RefusedError
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.events import Gaussian, Unbounded
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.randomness import SeededRandomness, SystemRandomness
from sottovoce.privacy.spending import Paid
from sottovoce.solvers import by_name
from support import events_of, handle

PROGRAM = Path(__file__).parent.parent / "programs" / "kept_rows.py"
sys.path.insert(0, str(PROGRAM.parent))
import kept_rows as program  # noqa: E402  # the solver of these tests, in a file that other processes run too

N, STD = 150, 2.0
OWN = (0.6, 0.4)  # the squares of the parties' norms: they have 3 and 2 columns
EACH_RUN = 2 * ((1 + 2.0**-10) / 100.0) ** 2  # what the solver's other release costs, for both parties


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver of these tests is known while they run, and to nobody else's."""
    program.register(monkeypatch.setitem)


@pytest.fixture
def data() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=(N, 3)) * 0.4, rng.normal(size=(N, 2)) * 0.4], rng.integers(0, 2, N)


@pytest.fixture
def accounts(tmp_path: Path) -> list[Account]:
    return program.accounts_in(tmp_path)


def costs(account: Account) -> list[float]:
    """mu^2 of each plan, without the release that every run has."""
    return [known.cost - EACH_RUN for known in account.book().reservations]


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return all((left[name] == right[name]).all() for name in left)


def file_of(account: Account) -> Path:
    (entry,) = account.rows()
    return kept_rows.folder_of(account) / entry.details["file"]


def in_new_process(folder: Path, label: str, *kill: str) -> Program:
    return Program(PROGRAM, folder, STD, label, *kill, read=True)


def save(folder: Path, data: tuple[list[np.ndarray], np.ndarray]) -> None:
    np.savez(folder / "data.npz", part0=data[0][0], part1=data[0][1], y=data[1])


# ------------------------------------------------------------------------------------------------ used again


def test_the_rows_survive_a_restart_bit_for_bit_and_are_not_charged_again(tmp_path, data, accounts):
    save(tmp_path, data)
    for label in ("first", "second"):
        process = in_new_process(tmp_path, label)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
    first, second = (dict(np.load(tmp_path / f"{label}.npz")) for label in ("first", "second"))
    assert same(first, second)
    assert not same(first, {f"party{k}": part for k, part in enumerate(data[0])})
    for account in accounts:
        assert costs(account) == pytest.approx([sum(OWN) / STD**2, 0.0], abs=1e-12)
        Ledger(account.path).verify()
    assert same(first, program.run(*data, accounts, STD))


def test_the_report_counts_the_rows_in_every_run(data, accounts):
    federation = program.federation_of(*data, accounts)
    program.run(*data, accounts, STD)
    again = program.planned(federation, std=STD, columns=(3, 2), records=N)
    assert [name for name, _ in again.kept] == [account.rows()[0].details["id"] for account in accounts]
    full, _ = events_of(again, "zero-out", "party0")
    assert isinstance(full, Gaussian)
    assert full.mu == pytest.approx(1 / STD)


def test_without_a_ledger_rows_are_kept_for_one_run(data):
    first, second = (program.run(*data, [None, None], STD) for _ in range(2))
    assert all((first[name] != second[name]).all() for name in first)


def test_a_ledger_of_one_party_alone(data, accounts):
    """The party without a ledger draws anew in each run, and the other's ledger pays for that each time."""
    first, second = (program.run(*data, [accounts[0], None], STD) for _ in range(2))
    assert (first["party0"] == second["party0"]).all()
    assert (first["party1"] != second["party1"]).all()
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2, OWN[1] / STD**2])


def test_only_the_owner_may_read(data, accounts):
    program.run(*data, accounts, STD)
    path = file_of(accounts[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_file_has_values_alone(data, accounts):
    """Neither noise nor rows: the stored grid is what the coordinator sees, and digests need the ledger's key."""
    shown = program.run(*data, accounts, STD)
    with np.load(file_of(accounts[0])) as arrays:
        assert set(arrays) == {"header", "digests", "copies0"}
        header = json.loads(arrays["header"].tobytes())
        assert set(header) == {"format", "id", "recipe", "plan", "copies", "sets"}
        assert (np.float32(arrays["copies0"] * 2.0**-16) == shown["party0"]).all()
        digests = arrays["digests"]
    key = bytes.fromhex(accounts[0].rows()[0].details["key"])
    assert key not in file_of(accounts[0]).read_bytes()
    assert (digests == digests_of(data[0][0], np.ones(N, dtype=bool), key)).all()


# ------------------------------------------------------------------------------------------------ what changed


def test_one_changed_row_has_new_noise_and_is_charged(data, accounts, caplog):
    parts, y = data
    before = program.run(parts, y, accounts, STD)
    changed = [parts[0].copy(), parts[1]]
    changed[0][7] *= 0.5
    with caplog.at_level(logging.WARNING, "sottovoce.holder"):
        after = program.run(changed, y, accounts, STD)
    assert f"1 records of {N} changed" in caplog.text
    rest = np.arange(N) != 7
    assert (after["party0"][rest] == before["party0"][rest]).all()
    moved = after["party0"][7] - before["party0"][7]
    assert (np.abs(moved - (changed[0][7] - parts[0][7])) > 1e-3).all(), "old noise on new values shows the difference"
    assert (after["party1"] == before["party1"]).all()
    for account in accounts:
        assert costs(account) == pytest.approx([sum(OWN) / STD**2, OWN[0] / STD**2])
    assert same(after, program.run(changed, y, accounts, STD))
    assert costs(accounts[1])[-1] == pytest.approx(0.0, abs=1e-12)


def test_a_label_that_can_no_longer_be_used_is_a_changed_row(data, accounts):
    """It makes a null row."""
    before = program.run(*data, accounts, STD)
    labels = data[1].astype(float)
    labels[3] = 5.0
    after = program.run(data[0], labels, accounts, STD)
    assert [int((after[name] != before[name]).any(axis=1).sum()) for name in after] == [1, 1]
    labels[4] = 1.0 - labels[4]  # another label that can be used is another label, and the same row
    assert same(after, program.run(data[0], labels, accounts, STD))


@pytest.mark.parametrize("count", [N - 10, N + 10])
def test_people_who_come_or_go(data, accounts, count):
    parts, y = data
    before = program.run(parts, y, accounts, STD)
    rng = np.random.default_rng(0)
    longer = [np.vstack([part, rng.normal(size=(10, part.shape[1])) * 0.3])[:count] for part in parts]
    after = program.run(longer, np.concatenate([y, y[:10]])[:count], accounts, STD)
    both = min(count, N)
    assert all((after[name][:both] == before[name][:both]).all() for name in after)
    assert after["party0"].shape == (count, 3)
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2] * 2)


def test_another_bound_draws_everything_anew(data, accounts, caplog):
    first = program.run(*data, accounts, STD)
    with caplog.at_level(logging.WARNING, "sottovoce.holder"):
        other = program.run(*data, accounts, STD, row_norm=2.0)
    assert "other bounds" in caplog.text
    assert all((first[name] != other[name]).all() for name in first)
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2] * 2)  # in units of the bound
    assert same(first, program.run(*data, accounts, STD)), "the rows of the first bound are still there"
    assert same(other, program.run(*data, accounts, STD, row_norm=2.0))
    assert costs(accounts[0])[2:] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_the_recipe_has_all_that_decides_what_becomes_of_a_row():
    plain: dict[str, Any] = {"bounds": Bounds.declare(row_norm=1.0), "features": 3, "fit_intercept": False}
    plain |= {"records": 100, "classes": (0, 1), "layout": "entries", "unit": 1.0, "labelled": True}
    changes: list[dict[str, Any]] = [
        {"bounds": Bounds.declare(row_norm=1.5)},
        {"bounds": Bounds.declare(row_norm=1.0, entry_bound=0.5)},
        {"bounds": Bounds.declare(row_norm=1.0, feature_ranges=([-1.0] * 3, [1.0] * 3))},
        {"features": 4},
        {"fit_intercept": True},
        {"records": 10**6},  # a coarser grid
        {"classes": (1, 2)},
        {"layout": "rows"},
        {"unit": 2.0},
        {"labelled": False},
    ]
    query = program.Rows(1.0, 3)
    found = [recipe_of(Preparation(**plain | change), query, secure=True) for change in [{}, *changes]]
    found += [recipe_of(Preparation(**plain), query, secure=False)]
    found += [recipe_of(Preparation(**plain), program.Total(), secure=True)]
    assert len(set(found)) == len(changes) + 3
    same_rows = [plain | {"records": 101}, plain | {"bounds": Bounds.declare(row_norm=1.0, label_bound=3.0)}]
    assert {recipe_of(Preparation(**facts), query, secure=True) for facts in same_rows} == {found[0]}


def test_rows_from_a_seed_are_not_used_by_a_run_that_protects(data, accounts, monkeypatch):
    """Whoever knows the seed can take such noise away."""
    federation = program.federation_of(*data, accounts)
    plan = program.planned(federation, std=STD, columns=(3, 2), records=N)
    federation.coordinator(insecure_seed=1).run(plan, program.Shows())
    assert program.planned(federation, std=STD, columns=(3, 2), records=N).kept == (("", 0.0), ("", 0.0))


def test_digests_are_of_the_numbers_not_of_how_they_are_stored():
    X = np.array([[0.0, 1.5], [math.nan, 2.0], [-0.25, 0.0]])
    usable, key = np.array([True, True, False]), b"k" * 32
    expected = digests_of(X, usable, key)
    stored = [X.astype(np.float32), np.asfortranarray(X), sp.csr_matrix(X), X * [[1.0, 1.0]] - 0.0]
    odd = X.copy()
    odd[0, 0], odd[1, 0] = -0.0, -math.nan
    for other in [*stored, odd]:
        assert (digests_of(other, usable, key) == expected).all()
    assert (digests_of(X, ~usable, key) != expected).any(axis=1).all()
    assert (digests_of(X, usable, b"l" * 32) != expected).any(axis=1).all()
    moved = X.copy()
    moved[2, 1] = 5e-324
    assert (digests_of(moved, usable, key) != expected).any(axis=1).tolist() == [False, False, True]


# ------------------------------------------------------------------------------------------------ other noise


def test_less_noise_is_a_second_copy_and_more_noise_is_free(data, accounts):
    program.run(*data, accounts, 2.0)
    noisier, finer = program.run(*data, accounts, 4.0), program.run(*data, accounts, 1.0)
    assert same(noisier, program.run(*data, accounts, 4.0))
    assert same(finer, program.run(*data, accounts, 1.0))
    precise = sum(OWN)
    assert costs(accounts[0]) == pytest.approx([precise / 4, 0.0, precise * (1 - 1 / 4), 0.0, 0.0], abs=1e-12)
    (entry,) = accounts[0].rows()
    assert entry.details["std"] == pytest.approx(1.0)
    assert entry.details["mu"] == pytest.approx(math.sqrt(OWN[0]))


def test_a_changed_row_and_other_noise_at_once(data, accounts, caplog):
    parts, y = data
    before = program.run(parts, y, accounts, 2.0)
    changed = [parts[0].copy(), parts[1]]
    changed[0][0] = 0.0
    with caplog.at_level(logging.WARNING, "sottovoce.holder"):
        after = program.run(changed, y, accounts, 3.0)
    assert "all rows are drawn anew" in caplog.text
    assert (after["party0"] != before["party0"]).all()
    assert costs(accounts[1])[-1] == pytest.approx(OWN[0] / 9)


VALUE = np.random.default_rng(5).uniform(-0.5, 0.5, size=(4000, 4))
STEP = 2.0**-12
ALARM = 1e-7  # for each of fewer than ten statements


def spread(noise: np.ndarray) -> tuple[float, float]:
    """Within these factors of the variance the estimate lies, but for a chance of ALARM."""
    return tuple(stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], noise.size) / noise.size)  # type: ignore[return-value]


def has_std(noise: np.ndarray, std: float) -> bool:
    low, high = spread(noise)
    return bool(low * std**2 < np.mean(noise**2) < high * std**2)


def uncorrelated(left: np.ndarray, right: np.ndarray) -> bool:
    found = np.mean(left * right) / np.sqrt(np.mean(left**2) * np.mean(right**2))
    return bool(abs(found) < stats.norm.isf(ALARM / 2) / math.sqrt(left.size))


def numbers(stock: Stock, std: float) -> np.ndarray:
    found = stock.find(std)
    assert found is not None
    return found.values().astype(np.float64)


def test_precisions_add():
    """Rows of less noise weigh the copies by precision: their noise is independent of what the first copy had more."""
    randomness = SeededRandomness(11)
    first = Stock("a", np.zeros((4000, 16), np.uint8), (draw(VALUE, 2.0, STEP, randomness),))
    finer = first.at(VALUE, 1.0, STEP, randomness)
    assert [copy.std for copy in finer.copies] == [2.0, pytest.approx((1 - 1 / 4) ** -0.5)]
    coarse, fine = numbers(first, 2.0) - VALUE, numbers(finer, 1.0) - VALUE
    assert has_std(coarse, 2.0)
    assert has_std(fine, 1.0)
    assert has_std(coarse - fine, math.sqrt(3))
    assert uncorrelated(fine, coarse - fine)
    # a mean without weights is noisier, and a copy drawn alone is not the best that the two tell
    plain = (coarse + numbers(Stock("b", first.digests, finer.copies[1:]), finer.copies[1].std) - VALUE) / 2
    assert not has_std(plain, 1.0)
    alone = draw(VALUE, 1.0, STEP, randomness).values() - VALUE
    assert not uncorrelated(alone, coarse - alone)


@pytest.mark.parametrize("std", [2.5, 40.0])
def test_more_noise_lies_on_top(std):
    randomness = SeededRandomness(12)
    first = Stock("a", np.zeros((4000, 16), np.uint8), (draw(VALUE, 2.0, STEP, randomness),))
    noisier = first.at(VALUE, std, 4 * STEP, randomness)
    assert noisier.copies is first.copies
    before, after = numbers(first, 2.0) - VALUE, numbers(noisier, std) - VALUE
    assert has_std(after, std)
    assert has_std(after - before, math.sqrt(std**2 - 4.0))
    assert uncorrelated(before, after - before)
    if std < 10.0:  # else a copy of its own, which is independent of the first, looks the same
        alone = draw(VALUE, std, STEP, randomness).values() - VALUE
        assert not has_std(alone - before, math.sqrt(std**2 - 4.0))


def test_rows_between_two_copies():
    """Made of the whole first copy and of a noisier second one: no draw, and the right noise."""
    randomness = SeededRandomness(13)
    stock = Stock("a", np.zeros((4000, 16), np.uint8), (draw(VALUE, 2.0, STEP, randomness),))
    stock = stock.at(VALUE, 1.0, STEP, randomness).at(VALUE, 1.5, STEP, randomness)
    assert len(stock.copies) == 2
    between, coarse = numbers(stock, 1.5) - VALUE, numbers(stock, 2.0) - VALUE
    assert has_std(between, 1.5)
    assert uncorrelated(between, coarse - between)
    assert stock.at(VALUE, 1.5, STEP, randomness) is stock


def test_a_little_less_noise_is_not_worth_a_copy():
    stock = Stock("a", np.zeros((4000, 16), np.uint8), (draw(VALUE, 2.0, STEP, SeededRandomness(1)),))
    near = stock.at(VALUE, 2.0 * (1 - 1e-7), STEP, SeededRandomness(2))
    assert len(near.copies) == 1
    assert (numbers(near, 2.0 * (1 - 1e-7)) == numbers(stock, 2.0)).all()
    far = stock.at(VALUE, 2.0 * (1 - 1e-5), 2.0**-24, SeededRandomness(2))
    assert len(far.copies) == 2
    assert has_std(far.copies[1].values() - VALUE, far.copies[1].std), "its grid suits its noise, and not the plan's"


def test_carried_rows_have_independent_noise_where_the_record_changed():
    randomness, digests = SeededRandomness(14), np.zeros((4000, 16), np.uint8)
    stock = Stock("a", digests, (draw(VALUE, 2.0, STEP, randomness),)).at(VALUE, 1.0, STEP, randomness)
    told = digests.copy()
    told[1000:, 3] = 1
    value = VALUE.copy()
    value[1000:] *= -1.0
    carried = stock.carried("b", told, value, randomness).at(value, 1.0, STEP, randomness)
    old, new = numbers(stock, 1.0), numbers(carried, 1.0)
    assert (old[:1000] == new[:1000]).all()
    assert [copy.std for copy in carried.copies] == [copy.std for copy in stock.copies]
    assert has_std((new - value)[1000:], 1.0)
    assert uncorrelated((new - value)[1000:], (old - VALUE)[1000:])
    with_old_noise = old + (value - VALUE)
    assert not uncorrelated((with_old_noise - value)[1000:], (old - VALUE)[1000:])


def test_rounding_toward_zero_makes_no_row_longer():
    """Without noise to speak of: |trunc(x)| <= |x|, so neighbours are no further apart than the query says."""
    rng = np.random.default_rng(0)
    left = rng.normal(size=(500, 6))
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    for step in (2.0**-20, 0.25):
        grid = draw(left, 1e-30, step, SeededRandomness(0)).grid * step
        assert (np.linalg.norm(grid, axis=1) <= 1.0).all()
        assert (np.linalg.norm(grid - np.roll(grid, 1, axis=0), axis=1) <= 2.0).all()
    nearest = np.rint(left / 0.25) * 0.25
    assert (np.linalg.norm(nearest, axis=1) > 1.0).any()


# ------------------------------------------------------------------------------------------------ what is owed


@pytest.fixture
def plan(data, accounts):
    return program.planned(program.federation_of(*data, accounts), std=2.0, columns=(3, 2), records=N)


def test_what_is_owed(plan):
    claims = plan.model_copy(update={"kept": (("aa", 2.0), ("", 0.0))})
    fresh = name_of(claims.digest, "party1")
    owed, notes = bill(claims, {})
    assert owed == {"party0": 0.25, "party1": 0.25}
    assert notes == (Paid("party0", "aa", 0.25), Paid("party1", fresh, 0.25))
    assert bill(claims, {("party0", "aa"): 0.25})[0] == {"party0": 0.0, "party1": 0.25}
    assert bill(claims, {("party0", "bb"): 0.25, ("party1", "aa"): 1.0})[0] == owed, "other rows, or another's"
    assert bill(claims, {("party0", "aa"): 0.0625})[0]["party0"] == 0.1875
    assert bill(claims, {("party0", "aa"): 1.0})[0]["party0"] == 0.0
    finer = claims.model_copy(update={"kept": (("aa", 1.0), ("bb", 4.0))})
    owed, notes = bill(finer, {("party1", "bb"): 0.0625})
    assert owed == {"party0": 1.0, "party1": 0.1875}, "all copies count, also where the plan takes noisier rows"
    assert notes == (Paid("party0", "aa", 1.0), Paid("party1", "bb", 0.25))


def test_what_is_drawn_is_owed_to_the_last_bit(plan):
    """At the noise where rows are barely short of precision, 1 / std^2 of a claim rounds to either side of it."""
    generator, randomness, drawn = np.random.default_rng(1), SeededRandomness(3), 0
    for first, second in generator.uniform(1.0, 3.0, size=(40, 2)):
        copies = tuple(Copy(std, 2.0**-10, np.zeros((4, 2), np.int32)) for std in (first, second))
        stock = Stock("aa", np.zeros((4, 16), np.uint8), copies)
        std = math.sqrt((1 - kept_rows.NEAR) / stock.precision)
        for near in (std, math.nextafter(std, 0.0), math.nextafter(std, 9.0)):
            releases = [r.model_copy(update={"std": near}) if r.query == "rows" else r for r in plan.releases]
            claims = plan.model_copy(update={"kept": (("aa", stock.std), ("", 0.0)), "releases": tuple(releases)})
            owed, _ = bill(claims, {("party0", "aa"): stock.std**-2})
            more = stock.at(np.zeros((4, 2)), near, 2.0**-10, randomness).precision - stock.precision
            drawn += more > 0.0
            assert owed["party0"] >= more - 1e-12
    assert 20 < drawn < 100, "some are short, and some are not"


def test_nobody_finds_two_plans_whose_rows_have_one_name(data, accounts, monkeypatch):
    """Notes go by name. Were they short, a coordinator could find two plans with one: the second drew for free."""
    assert 4 * len(name_of(bytes(32), "party0")) >= 160
    none = (("", 0.0), ("", 0.0))
    program.run(*data, accounts, STD, kept=none)
    program.run(*data, accounts, STD, kept=none, row_norm=2.0)  # other bounds: everything is drawn anew
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2] * 2)
    monkeypatch.setattr(kept_rows, "name_of", lambda plan, party: party)  # the negative control: one name
    program.run(*data, accounts, STD, kept=none, row_norm=3.0)
    program.run(*data, accounts, STD, kept=none, row_norm=4.0)
    assert costs(accounts[0])[3] == pytest.approx(0.0, abs=1e-12)


def test_a_party_that_joins_pays_for_all_copies_of_the_others(data, accounts, tmp_path):
    parts, y = data
    third = Ledger.create(tmp_path / "third.ledger").open("people", 50.0, 1e-5, composition="gaussian")
    program.run(parts, y, accounts, 1.0)
    program.run(parts, y, [accounts[0], third], 2.0)  # another holder of the second party's columns
    assert costs(third) == pytest.approx([OWN[0] * 1.0 + OWN[1] / 4])
    assert costs(accounts[0])[-1] == pytest.approx(OWN[1] / 4)
    program.run(parts, y, [accounts[0], third], 2.0)
    assert costs(third)[-1] == pytest.approx(0.0, abs=1e-12)


def test_what_rows_cost():
    assert row_event({"a": 3.0, "b": 4.0}, {"a": 1.0, "b": 1.0}) == Gaussian(mu=5.0)
    assert row_event({"a": 3.0, "b": 4.0}, {"a": 0.0, "b": 0.25}) == Gaussian(mu=2.0)
    assert isinstance(row_event({"a": 3.0}, {"a": math.inf}), Unbounded)


@pytest.mark.parametrize(
    ("claim", "held"),
    [
        ((("0123456789abcdef", 2.0), ("", 0.0)), False),  # rows that nobody has
        ("finer", True),  # the right rows, with less noise than they have
        ("coarser", True),  # less precise than they are, so that others would pay too little
        ("other", True),  # the other party's rows
    ],
)
def test_a_forged_claim_is_refused(data, accounts, claim, held):
    if held:
        program.run(*data, accounts, STD)
        (first, second) = (account.rows()[0].details["id"] for account in accounts)
        forged = {"finer": (first, 1.0), "coarser": (first, 4.0), "other": (second, STD)}[claim]
        claim = (forged, (second, STD))
    before = [account.balance().plans for account in accounts]
    with pytest.raises(RefusedError, match="counts on kept rows"):
        program.run(*data, accounts, STD, kept=claim)
    assert [account.balance().plans for account in accounts] == before


def test_a_plan_that_claims_nothing_pays_again_and_uses_the_rows_that_there_are(data, accounts):
    first = program.run(*data, accounts, STD)
    assert same(first, program.run(*data, accounts, STD, kept=(("", 0.0), ("", 0.0))))
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2] * 2)


def test_a_run_goes_on_with_its_rows_and_not_with_others(data, accounts):
    """The same plan, asked again of a restarted party: with the data as they were, and with changed ones."""
    parts, y = data
    federation = program.federation_of(parts, y, accounts)
    plan = program.planned(federation, std=STD, columns=(3, 2), records=N)
    first, _ = federation.coordinator().run(plan, program.Shows())
    finer = program.run(parts, y, accounts, 1.0)  # another run in between draws another copy
    again, _ = program.federation_of(parts, y, accounts).coordinator().run(plan, program.Shows())
    assert same(first.model, again.model)
    assert not same(first.model, finer)
    changed = [parts[0] * 0.5, parts[1]]
    with pytest.raises(RefusedError, match=r"rows of party0 changed.*Start a new fit"):
        program.federation_of(changed, y, accounts).coordinator().run(plan, program.Shows())
    assert [account.balance().plans for account in accounts] == [2, 2]


# ------------------------------------------------------------------------------------------------ lost files


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [Path.unlink, damage, lambda path: path.write_bytes(b"")])
def test_a_lost_file_is_an_error_that_says_what_follows(data, accounts, harm: Callable[[Path], Any]):
    first = program.run(*data, accounts, STD)
    path = file_of(accounts[0])
    kept = path.read_bytes()
    harm(path)
    with pytest.raises(LedgerError) as caught:
        program.run(*data, accounts, STD)
    for word in ("kept rows", str(path), "costs as much as the first", "Restore the file", "forget-rows"):
        assert word in str(caught.value)
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2])
    path.write_bytes(kept)
    assert same(first, program.run(*data, accounts, STD))
    path.unlink()
    kept_rows.forget(accounts[0], accounts[0].rows()[0])
    assert accounts[0].rows() == []
    after = program.run(*data, accounts, STD)
    assert (after["party0"] != first["party0"]).all()
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2, 0.0, OWN[0] / STD**2], abs=1e-12)
    Ledger(accounts[0].path).verify()


def test_only_a_fixed_text_about_a_lost_file_travels(data, accounts):
    program.run(*data, accounts, STD)
    file_of(accounts[0]).unlink()
    party = sv.Party("party0", data[0][0], data[1], account=accounts[0])
    federation = program.federation_of(*data, [accounts[0], accounts[1]])
    plan = program.planned(federation, std=STD, columns=(3, 2), records=N, kept=(("", 0.0), ("", 0.0)))
    for kind, query in (("hello", "rows"), ("plan", "check"), ("plan", "")):
        request = Frame(kind, 1, plan.digest if kind == "plan" else b"", 0, query, {}, plan.to_json())
        answer = decode(handle(party, encode(request)).data)
        assert answer.kind == "refuse"
        said = json.loads(answer.text)
        assert said == {"error": "ledger", "refused": "the party's ledger cannot be used; its own log has the reason"}
    assert "are lost" in str(party.failure)


def test_rows_cannot_be_forgotten_while_another_process_uses_them(data, accounts):
    program.run(*data, accounts, STD)
    (entry,) = accounts[0].rows()
    program.run(*data, accounts, STD)
    with pytest.raises(LedgerError, match="another process"):
        accounts[0].forget_rows(entry)


def test_a_record_of_rows_needs_a_reservation(accounts):
    with pytest.raises(LedgerError, match="no reservation"):
        accounts[0].record_rows("p", "r", 0, dict)


def test_old_files_go(data, accounts):
    for std in (8.0, 4.0, 2.0, 1.0):
        program.run(*data, accounts, std)
    assert len(list(kept_rows.folder_of(accounts[0]).iterdir())) == 2  # the one in use, and the one before it


# ------------------------------------------------------------------------------------------------ crashes and races


@pytest.mark.parametrize(
    ("place", "charged", "files", "recorded"),
    [
        ("reserve:1", 0, 0, False),
        ("drawn:1", 1, 0, False),
        ("record:1", 1, 0, False),
        ("file:1", 1, 0, False),
        ("sync:1", 1, 1, False),
        ("rename:1", 1, 1, False),
        ("sync:2", 1, 1, False),
        ("entry:5", 1, 1, False),  # the fifth entry: two reservations and two releases came before
        ("used:1", 1, 1, True),
    ],
)
def test_a_kill_at_any_place(tmp_path, data, accounts, place, charged, files, recorded):
    """A killed run has shown no row. What it drew is used if it was recorded, and is drawn anew and charged if not."""
    save(tmp_path, data)
    process = in_new_process(tmp_path, "killed", place)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == -9, said
    account, folder = accounts[0], kept_rows.folder_of(accounts[0])
    Ledger(account.path).verify()
    assert account.balance().plans == charged
    assert len(list(folder.iterdir()) if folder.exists() else []) == files
    assert len(account.rows()) == recorded
    stored = kept_rows.read(account, account.rows()[0]) if recorded else None
    shown = program.run(*data, accounts, STD)
    owed = OWN[1] if recorded else sum(OWN)
    assert costs(account)[-1] == pytest.approx(owed / STD**2)
    if stored is not None:
        assert (numbers(stored, STD) == shown["party0"]).all()
    assert same(shown, program.run(*data, accounts, STD))
    assert costs(account)[-1] == pytest.approx(0.0, abs=1e-12)
    assert len(list(folder.glob("*.new"))) == 0


@pytest.mark.parametrize("place", ["rename:1", "entry:5"])
def test_a_kill_while_changed_rows_are_stored(tmp_path, data, accounts, place):
    """The rows from before are still those of the unchanged data, and the changed ones are drawn once more."""
    parts, y = data
    first = program.run(parts, y, accounts, STD)
    changed = [parts[0].copy(), parts[1]]
    changed[0][5] += 0.2
    save(tmp_path, (changed, y))
    process = in_new_process(tmp_path, "killed", place)
    process.communicate(timeout=120)
    assert process.returncode == -9
    assert same(first, program.run(parts, y, accounts, STD))
    assert costs(accounts[0])[-1] == pytest.approx(0.0, abs=1e-12)
    after = program.run(changed, y, accounts, STD)
    assert (after["party0"] != first["party0"]).any(axis=1).nonzero()[0].tolist() == [5]
    assert costs(accounts[0])[-1] == pytest.approx(OWN[0] / STD**2)


def test_processes_that_race_use_the_same_rows(tmp_path, data, accounts):
    save(tmp_path, data)
    racers = [in_new_process(tmp_path, f"racer{k}", "race") for k in range(3)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    for racer in racers:
        said, _ = racer.communicate(timeout=120)
        assert racer.returncode == 0, said
    found = [dict(np.load(tmp_path / f"racer{k}.npz")) for k in range(3)]
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    assert len(accounts[0].rows()) == 1
    Ledger(accounts[0].path).verify()


def test_a_process_that_is_overtaken_takes_the_rows_of_the_other(data, accounts, monkeypatch):
    """Another run stores its rows after this one has drawn its own, and before they are recorded."""
    original, other = Account.record_rows, {}

    def late(self: Account, *arguments: Any) -> bool:
        if not other:
            other["rows"] = None
            other["rows"] = program.run(*data, accounts, STD)
        return original(self, *arguments)

    monkeypatch.setattr(Account, "record_rows", late)
    assert same(program.run(*data, accounts, STD), other["rows"])


# ------------------------------------------------------------------------------------------------ the gate


def rows_of(norm: float = 1.0) -> program.Rows:
    return program.Rows(norm, 3)


def gate_of(block: Any, plan: Plan, **changes: Any) -> Gate:
    """A gate of a plan that keeps rows and derives scores from them in the rounds 1 and 2."""
    rows = Release.of(rows_of(), 0, 1, 2.0, STEP, mechanism="kept")
    releases = {"rows": rows, "scores": Release.derived("scores", 1, 2)} | changes
    assert len(block) == plan.records
    return Gate(plan.changed(releases=tuple(releases.values()), kept=()), SeededRandomness(4))


def shown(gate: Gate, plan: Plan, block: Any, weights: np.ndarray, number: int = 1, norm: float = 1.0) -> np.ndarray:
    """What a gate lets out of the rows."""
    released = gate.release(program.Scores(rows_of(norm)), Round(plan, number, {"weights": weights}, block))
    return np.asarray(released.arrays["value"])


@pytest.fixture
def block(data):
    recipe = Preparation(Bounds.declare(row_norm=1.0), 3, False, N, (0, 1), layout="entries")
    return sv.data.block.Block.prepare(data[0][0], data[1], recipe)


def test_noisy_rows_are_made_once_by_the_gate(block, plan):
    gate = gate_of(block, plan)
    first = np.column_stack([shown(gate, plan, block, unit) for unit in np.eye(3)])
    (kept,) = gate._kept.values()
    assert kept.rows.shape == (N, 3)
    assert kept.rows.dtype == np.float32
    assert (first == kept.rows).all()
    assert (np.column_stack([shown(gate, plan, block, unit, 2) for unit in np.eye(3)]) == first).all()
    assert list(gate._kept.values()) == [kept]
    with pytest.raises(ValueError, match="read-only"):
        kept.rows[0, 0] = 1.0
    with pytest.raises(LeakError):
        Kept(np.zeros((2, 2)), seal=None)
    with pytest.raises(LeakError):
        kept.rows = np.zeros((2, 2))
    with pytest.raises(LeakError):
        pickle.dumps(kept)


def test_what_is_derived_is_a_function_of_the_noisy_rows(block, plan):
    gate, weights = gate_of(block, plan), np.array([1.0, -1.0, 0.5])
    released = shown(gate, plan, block, weights)
    (kept,) = gate._kept.values()
    assert (released == kept.rows @ weights).all()
    assert (shown(gate, plan, block, -weights) == -released).all()
    assert not gate.unreleased
    for number in (0, 3):
        with pytest.raises(RefusedError, match="not in the plan"):
            shown(gate, plan, block, weights, number)
    other = shown(gate_of(block, plan.changed(run="other")), plan, block, weights)
    assert (other == released).all(), "the same seed"
    alone = Gate(
        plan.changed(releases=(plan.releases[1], Release.derived("scores", 1, 2)), kept=()), SeededRandomness(4)
    )
    with pytest.raises(RefusedError, match="'rows' in round None is not in the plan"):
        shown(alone, plan, block, weights)


def test_no_other_way_lets_noisy_rows_out(block, plan):
    """With noise of its own, under the charge of the kept ones, it would be a second release."""
    query, weights = rows_of(), np.ones(3)
    told = Round(plan, 0, {}, block)
    with pytest.raises(LeakError, match="charged as a kept"):
        gate_of(block, plan).release(query, told)
    plain = Release.of(query, 0, 1, 2.0, STEP)
    cheap = Release.derived("rows", 0, 1)
    for release in (plain, cheap):
        match = f"charged as a {release.mechanism}"
        with pytest.raises(LeakError, match=match):
            gate_of(block, plan, rows=release).release(query, told)
        with pytest.raises(LeakError, match=match):
            shown(gate_of(block, plan, rows=release), plan, block, weights)
    with pytest.raises(LeakError, match="more sensitive"):
        shown(gate_of(block, plan), plan, block, weights, norm=1.1)
    noisy = Release.of(program.Total(), 1, 2, 2.0, STEP).changed(query="scores")
    with pytest.raises(LeakError, match="charged as a gaussian"):
        shown(gate_of(block, plan, scores=noisy), plan, block, weights)


def test_without_privacy_the_rows_are_kept_as_they_are(block, plan):
    exact = Release.of(rows_of(), 0, 1, 0.0, 1.0, mechanism="kept")
    gate = gate_of(block, plan, rows=exact)
    assert (np.column_stack([shown(gate, plan, block, unit) for unit in np.eye(3)]) == block.rows).all()
    assert isinstance(exact.event("zero-out"), Unbounded)


def test_costs_of_the_two_mechanisms():
    rows = Release.at_mu(program.Rows(1.0, 3), 0, 1, 0.5, "replace-one", mechanism="kept")
    event = rows.event("replace-one")
    assert isinstance(event, Gaussian)
    assert event.mu == pytest.approx(0.5)
    free = Release.derived("shown", 0, 100)
    assert free.event("zero-out") == free.event("replace-one") == Gaussian(mu=0.0)


def test_plans_about_kept_rows(plan):
    rows, total, scores = plan.releases
    for releases in (
        (rows, rows.model_copy(update={"query": "more"})),
        (rows.times(2), total),
        (rows.model_copy(update={"std": 7 * rows.step}), total),
        (rows.model_copy(update={"std": 2.0**26 * rows.step}), total),
        (rows.model_copy(update={"rate": 0.5}), total),
    ):
        with pytest.raises(RefusedError, match="keeps rows once"):
            plan.model_copy(update={"releases": releases, "kept": ()})
    for kept in ((("aa", 2.0),), (("aa", 0.0), ("", 0.0)), (("", 1.0), ("", 0.0)), (("aa", math.inf), ("", 0.0))):
        with pytest.raises(RefusedError, match=r"kept rows|which rows it has kept"):
            plan.model_copy(update={"kept": kept})
    with pytest.raises(RefusedError, match="which rows it has kept"):
        plan.model_copy(update={"releases": (total, scores)})
    assert plan.private


def test_a_party_refuses_what_its_solver_does_not_keep(data, accounts, plan):
    party = sv.Party("party0", data[0][0], data[1], account=accounts[0])

    def refusal(changed: Any) -> str:
        request = Frame("plan", 1, changed.digest, 0, "check", {}, changed.to_json())
        return str(json.loads(decode(handle(party, encode(request)).data).text).get("refused"))

    rows, total, scores = plan.releases
    lies = {
        "'total' as 'derived'": (rows, Release.derived("total", 0, 1), scores),
        "'total' as 'kept'": (total.changed(mechanism="kept"), scores),
        "'rows' as 'gaussian'": (rows.changed(mechanism="gaussian"), total, scores),
        "'scores' as 'kept'": (scores.changed(mechanism="kept", count=1), total),
    }
    for words, releases in lies.items():
        assert f"releases {words}, which it is not made for" in refusal(plan.changed(releases=releases, kept=()))
    assert "noise on 'scores'" in refusal(plan.changed(releases=(rows, total, scores.changed(std=1.0))))
    assert refusal(plan) == "None"


def test_nobody_asks_for_kept_rows(data, accounts, plan):
    party = sv.Party("party0", data[0][0], data[1], account=accounts[0])
    asked = Frame("ask", 2, plan.digest, 0, "rows", {})
    handle(party, encode(Frame("plan", 1, plan.digest, 0, "", {}, plan.to_json())))
    answer = decode(handle(party, encode(asked)).data)
    assert answer.kind == "refuse"
    assert "not this party's turn" in answer.text


@pytest.mark.parametrize("value", [("aa", 2.0, 1.0), ("aa", 2), ["aa", 2.0], (b"aa", 2.0), "aa"])
def test_what_may_be_said_about_kept_rows(value):
    with pytest.raises(LeakError):
        declare_public("kept_rows", value, reason="none")
    assert declare_public("kept_rows", ("aa", 2.0), reason="public").value == ("aa", 2.0)


def test_copies_are_cut_to_32_bits():
    huge = draw(np.array([[1e30, -1e30]]) * 0 + [[2.0**40, -(2.0**40)]], 1.0, 2.0**-10, SystemRandomness())
    assert isinstance(huge, Copy)
    assert huge.grid.tolist() == [[2**31 - 1, -(2**31) + 1]]


# ------------------------------------------------------------------------------------------------ a real solver


def test_admm_on_kept_rows(tmp_path):
    """Two fits, a changed bound, a changed row and a deleted file, as a user sees them."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 5))
    y = (X[:, 0] > X[:, 4]).astype(int)
    own = [Ledger.create(tmp_path / f"{k}.ledger").open("people", 8.0, 1e-5, composition="gaussian") for k in range(2)]

    def fit(entry_bound: float = 1.0) -> tuple[float, list[str]]:
        """The cost to the first ledger, and which files the parties use."""
        federation = sv.Federation.by_columns([X[:, :3], X[:, 3:]], y, ledgers=own)
        options: dict[str, Any] = {"classes": (0, 1), "solver": by_name("admm", rows="persistent", rounds=2)}
        model = sv.PrivateLogisticRegression(epsilon=2.0, delta=1e-5, entry_bound=entry_bound, **options)
        model.fit(federation)
        assert model.privacy_.coordinator.epsilon == pytest.approx(2.0, rel=0.01)
        charged = {account.book().reservations[-1].cost for account in own}
        assert len(charged) == 1
        return charged.pop(), [account.rows()[-1].details["sha256"] for account in own]

    full, first = fit()
    rest, second = fit()
    assert rest < 0.5 * full
    assert second == first
    other, wider = fit(entry_bound=2.0)
    assert other == pytest.approx(full)
    assert not set(wider) & set(first)
    X[0, 0] = -X[0, 0]
    again, third = fit()
    assert rest < again < full
    assert third[0] not in first
    assert third[1] == first[1]
    (kept_rows.folder_of(own[1]) / own[1].rows()[-1].details["file"]).unlink()
    with pytest.raises(LedgerError, match="Restore the file"):
        fit()
