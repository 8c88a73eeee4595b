"""Noisy rows: drawn once for a plan, stored, and the same after a restart. Runs go through real ledgers and files."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import sottovoce as sv
from processes import Program
from sottovoce.data.block import Preparation
from sottovoce.data.bounds import Bounds
from sottovoce.errors import LeakError, LedgerError, RefusedError
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.gate import Gate, Memory, draw_rows
from sottovoce.gate.query import Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.events import Gaussian, Unbounded
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.mechanisms import SeededRandomness, SystemRandomness
from sottovoce.queries.pricing import rows_event
from sottovoce.solvers import by_name
from support import events_of, handle

PROGRAM = Path(__file__).parent.parent / "programs" / "noisy_rows.py"
sys.path.insert(0, str(PROGRAM.parent))
import noisy_rows as program  # noqa: E402  # the solver of these tests, in a file that other processes run too

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


@pytest.fixture
def plan(data, accounts):
    return program.planned(program.federation_of(*data, accounts), std=STD, columns=(3, 2), records=N)


def costs(account: Account) -> list[float]:
    """mu^2 of each plan, without the release that every run has."""
    return [known.cost - EACH_RUN for known in account.book().reservations]


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return all((left[name] == right[name]).all() for name in left)


def drawn_anew(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether noise differs everywhere, but for two entries of 750.

    Two draws of std 2^17 steps agree with a chance of 2.2e-6: three of 750 entries with one below 1e-9.
    """
    return sum(int((left[name] == right[name]).sum()) for name in left) <= 2


def folder_of(account: Account) -> Path:
    return account.path.with_name(f"{account.path.name}.memory")


def files(account: Account) -> list[Path]:
    return sorted(folder_of(account).iterdir()) if folder_of(account).exists() else []


def recorded(account: Account, plan: Plan) -> str | None:
    """The hash of the file of a plan's rows, as the ledger has it."""
    found = account.stored(plan.digest.hex(), 0, "rows", kind="rows")
    return None if found is None else found.hex()


def stopped(federation: Any, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The rows that parties answered from until the coordinator was stopped, after the second column."""
    seen: list[np.ndarray] = []

    def used(rows: np.ndarray) -> None:
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(rows)

    monkeypatch.setattr(program, "used", used)
    with pytest.raises(KeyboardInterrupt):
        federation.coordinator().run(plan, program.Shows())
    monkeypatch.setattr(program, "used", lambda rows: None)
    return seen


# ------------------------------------------------------------------------------------------------ a run


def test_a_restarted_party_goes_on_with_its_rows_and_is_charged_once(data, accounts, plan, monkeypatch):
    seen = stopped(program.federation_of(*data, accounts), plan, monkeypatch)
    again = program.run(*data, accounts, plan)
    assert all((rows == again[f"party{k % 2}"]).all() for k, rows in enumerate(seen))
    assert not same(again, {f"party{k}": part for k, part in enumerate(data[0])})
    for account in accounts:
        assert costs(account) == pytest.approx([sum(OWN) / STD**2], abs=1e-12)
        Ledger(account.path).verify()


def test_every_fit_draws_its_own_rows_and_pays_for_them(data, accounts):
    """Also for the same people by the same bounds: no rows are left of an earlier fit."""
    first = program.run(*data, accounts, STD)
    assert [files(account) for account in accounts] == [[], []]
    second = program.run(*data, accounts, STD)
    assert drawn_anew(first, second)
    for account in accounts:
        assert costs(account) == pytest.approx([sum(OWN) / STD**2] * 2)
        Ledger(account.path).verify()


def test_a_plan_that_is_over_shows_no_row_again(data, accounts, plan):
    """Its rows are deleted, and are not drawn a second time under its charge."""
    program.run(*data, accounts, plan)
    with pytest.raises(RefusedError, match="what was released stays charged"):
        program.run(*data, accounts, plan)
    assert [account.balance().plans for account in accounts] == [1, 1]


def test_without_a_ledger_rows_are_kept_in_the_process(data):
    first, second = (program.run(*data, [None, None], STD) for _ in range(2))
    assert drawn_anew(first, second)


def test_the_report_has_the_rows(plan):
    full, _ = events_of(plan, "zero-out", "party0")
    assert isinstance(full, Gaussian)
    assert full.mu == pytest.approx(1 / STD)


def test_only_the_owner_may_read_and_the_file_has_values_alone(data, accounts, plan, monkeypatch):
    """Neither noise nor rows: what is stored is what messages are made of, and of the records a digest."""
    seen = stopped(program.federation_of(*data, accounts), plan, monkeypatch)
    (path,) = [path for path in files(accounts[0]) if path.name.endswith(recorded(accounts[0], plan))]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with np.load(path) as arrays:
        assert set(arrays) == {"rows", "records"}
        assert arrays["records"].shape == (32,)
        assert arrays["rows"].dtype == np.float32
        assert (arrays["rows"] == seen[0]).all()


# ------------------------------------------------------------------------------------------------ lost files


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def swap(path: Path) -> None:
    """Rows of another draw, in a file that is whole."""
    with np.load(path) as arrays:
        found = {name: arrays[name] for name in arrays}
    np.savez(path.with_suffix(".npz"), **found | {"rows": found["rows"] + 1})
    path.with_suffix(".npz").replace(path)


@pytest.mark.parametrize("harm", [Path.unlink, damage, swap, lambda path: path.write_bytes(b"")])
def test_lost_rows_are_never_drawn_again(data, accounts, plan, monkeypatch, harm: Callable[[Path], Any]):
    """To draw them again under the same charge would be a second release of every record."""
    stopped(program.federation_of(*data, accounts), plan, monkeypatch)
    path = folder_of(accounts[0]) / next(p.name for p in files(accounts[0]) if recorded(accounts[0], plan) in p.name)
    kept = path.read_bytes()
    harm(path)
    with pytest.raises(RefusedError, match=r"noisy rows of this run are lost.*stays charged.*Start a new fit"):
        program.run(*data, accounts, plan)
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2])
    path.write_bytes(kept)
    program.run(*data, accounts, plan)
    assert costs(accounts[0]) == pytest.approx([sum(OWN) / STD**2])


def test_a_run_does_not_go_on_with_other_records(data, accounts, plan, monkeypatch):
    """Old noise on a new value would show the difference; new noise would be a second release of all others."""
    parts, y = data
    stopped(program.federation_of(parts, y, accounts), plan, monkeypatch)
    changed = parts[0].copy()
    changed[7] *= 0.5
    for other in (changed, parts[0][::-1]):
        with pytest.raises(RefusedError, match="of other records than"):
            program.run([other, parts[1]], y, accounts, plan)
    program.run(parts, y, accounts, plan)
    assert [account.balance().plans for account in accounts] == [1, 1]


def test_a_record_of_rows_needs_a_reservation(accounts):
    with pytest.raises(LedgerError, match="no reservation"):
        accounts[0].release("p", 0, "rows", b"digest", kind="rows")


# ------------------------------------------------------------------------------------------------ crashes and races


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "charged", "stored", "known"),
    [
        ("reserve:1", 0, 0, False),
        ("draw:1", 1, 1, False),  # the file of the release before is there
        ("file:1", 1, 1, False),
        ("sync:5", 1, 2, False),  # two releases came before, each with its file
        ("rename:3", 1, 2, False),
        ("sync:6", 1, 2, False),
        ("entry:5", 1, 2, False),  # the fifth entry: two reservations and two releases came before
        ("read:1", 1, 2, True),
        ("answer:1", 1, 2, True),
        ("answer:3", 1, 2, True),
        ("answer:6", 1, 2, True),
    ],
)
def test_a_kill_at_any_place(tmp_path, data, accounts, plan, place, charged, stored, known):
    """What a killed run drew is used if it was recorded; if not, nobody saw it, and it is drawn anew at no charge."""
    np.savez(tmp_path / "data.npz", part0=data[0][0], part1=data[0][1], y=data[1])
    (tmp_path / "plan.json").write_text(plan.to_json())
    process = Program(PROGRAM, tmp_path, "killed", place, read=True)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == -9, said
    account = accounts[0]
    Ledger(account.path).verify()
    assert account.balance().plans == charged
    assert len(files(account)) == stored
    assert (recorded(account, plan) is not None) == known
    process = Program(PROGRAM, tmp_path, "resumed", read=True)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert costs(account) == pytest.approx([sum(OWN) / STD**2])
    used = (tmp_path / "used.txt").read_text().splitlines()
    assert len(used) >= 6
    assert len(set(used)) == 2, "each party has answered from one set of rows alone"
    assert files(account) == []


def test_a_process_that_is_overtaken_takes_the_rows_of_the_other(data, accounts, plan, block, monkeypatch):
    """Another process of the holder records its rows after this one has drawn its own, and before they are recorded."""
    plan = plan.changed(releases=gate_plan(plan).releases)
    accounts[0].reserve(plan.digest.hex(), [Gaussian(mu=0.5)])

    def gate() -> Gate:
        made = Gate(plan, SystemRandomness(), accounts[0])
        made.memory = Memory(accounts[0].path, "party0", plan.digest, block.digest())
        return made

    original, other = Account.release, list[np.ndarray]()

    def late(self: Account, *arguments: Any, **options: Any) -> bytes:
        if not other:
            other.append(np.zeros(0))
            other[0] = shown(gate(), plan, block, np.ones(3))
        return original(self, *arguments, **options)

    monkeypatch.setattr(Account, "release", late)
    own = gate()
    assert (shown(own, plan, block, np.ones(3)) == other[0]).all()
    assert (shown(own, plan, block, np.ones(3), 2) == other[0]).all()
    alone = Gate(plan, SystemRandomness(), accounts[0])
    with pytest.raises(RefusedError, match="are lost"):
        shown(alone, plan, block, np.ones(3))


# ------------------------------------------------------------------------------------------------ a draw


VALUE = np.random.default_rng(5).uniform(-0.5, 0.5, size=(4000, 4))
STEP = 2.0**-12
ALARM = 1e-7  # for each of fewer than ten statements


def has_std(noise: np.ndarray, std: float) -> bool:
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], noise.size) / noise.size
    return bool(low * std**2 < np.mean(noise**2) < high * std**2)


def test_a_draw_has_the_noise_of_the_plan():
    noise = draw_rows(VALUE, 2.0, STEP, SeededRandomness(11)) - VALUE
    assert has_std(noise, 2.0)
    assert not has_std(noise, 2.0 * 1.1)
    assert not has_std(noise, 2.0 / 1.1)


def test_rounding_toward_zero_makes_no_row_longer():
    """Without noise to speak of: |trunc(x)| <= |x|, so neighbours are no further apart than the query says."""
    rng = np.random.default_rng(0)
    left = rng.normal(size=(500, 6))
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    for step in (2.0**-20, 0.25):
        grid = draw_rows(left, 1e-30, step, SeededRandomness(0)).astype(np.float64)
        assert (np.linalg.norm(grid, axis=1) <= 1.0).all()
        assert (np.linalg.norm(grid - np.roll(grid, 1, axis=0), axis=1) <= 2.0).all()
    nearest = np.rint(left / 0.25) * 0.25
    assert (np.linalg.norm(nearest, axis=1) > 1.0).any()


def test_rows_are_cut_to_32_bits():
    huge = draw_rows(np.array([[2.0**40, -(2.0**40)]]), 1.0, 2.0**-10, SystemRandomness())
    assert huge.tolist() == [[2.0**21, -(2.0**21)]]


def test_what_rows_cost():
    rows = [program.Rows(norm, 3) for norm in (3.0, 4.0)]
    release = Release.of(rows[1], 0, 1, 2.0, STEP, mechanism="kept")
    assert rows_event(rows, release, "zero-out") == Gaussian(mu=2.5)
    assert rows_event(rows, release, "replace-one") == Gaussian(mu=5.0)
    assert isinstance(rows_event(rows, release.changed(std=0.0), "zero-out"), Unbounded)


# ------------------------------------------------------------------------------------------------ the gate


def rows_of(norm: float = 1.0) -> program.Rows:
    return program.Rows(norm, 3)


def gate_plan(plan: Plan, **changes: Any) -> Plan:
    """A plan that keeps rows and derives scores from them in the rounds 1 and 2."""
    rows = Release.of(rows_of(), 0, 1, 2.0, STEP, mechanism="kept")
    releases = {"rows": rows, "scores": Release.derived("scores", 1, 2)} | changes
    return plan.changed(releases=tuple(releases.values()))


def gate_of(block: Any, plan: Plan, **changes: Any) -> Gate:
    assert len(block) == plan.records
    return Gate(gate_plan(plan, **changes), SeededRandomness(4))


def shown(gate: Gate, plan: Plan, block: Any, weights: np.ndarray, number: int = 1, norm: float = 1.0) -> np.ndarray:
    """What a gate lets out of the rows."""
    scores = program.Scores(rows_of(norm), plan.records)
    released = gate.release(scores, Round(plan, number, {"weights": weights}, block))
    return np.asarray(released.arrays["value"])


@pytest.fixture
def block(data):
    recipe = Preparation(Bounds.declare(row_norm=1.0), 3, False, N, (0, 1), layout="entries")
    return sv.data.block.Block.prepare(data[0][0], data[1], recipe)


def test_noisy_rows_are_made_once_by_the_gate(block, plan):
    gate = gate_of(block, plan)
    first = np.column_stack([shown(gate, plan, block, unit) for unit in np.eye(3)])
    (rows,) = gate._rows.values()
    assert rows.shape == (N, 3)
    assert rows.dtype == np.float32
    assert (first == rows).all()
    assert (np.column_stack([shown(gate, plan, block, unit, 2) for unit in np.eye(3)]) == first).all()
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1.0


def test_what_is_derived_is_a_function_of_the_noisy_rows(block, plan):
    gate, weights = gate_of(block, plan), np.array([1.0, -1.0, 0.5])
    released = shown(gate, plan, block, weights)
    (rows,) = gate._rows.values()
    assert (released == rows @ weights).all()
    assert (shown(gate, plan, block, -weights) == -released).all()
    assert not gate.unreleased
    for number in (0, 3):
        with pytest.raises(RefusedError, match="not in the plan"):
            shown(gate, plan, block, weights, number)
    other = shown(gate_of(block, plan.changed(run="other")), plan, block, weights)
    assert (other == released).all(), "the same seed"
    alone = Gate(plan.changed(releases=(plan.releases[1], Release.derived("scores", 1, 2))), SeededRandomness(4))
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
    rows, total, _ = plan.releases
    for releases in (
        (rows, rows.model_copy(update={"query": "more"})),
        (rows.times(2), total),
        (rows.model_copy(update={"std": 7 * rows.step}), total),
        (rows.model_copy(update={"std": 2.0**26 * rows.step}), total),
        (rows.model_copy(update={"rate": 0.5}), total),
    ):
        with pytest.raises(RefusedError, match="keeps rows once"):
            plan.model_copy(update={"releases": releases})
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
        assert f"releases {words}, which it is not made for" in refusal(plan.changed(releases=releases))
    assert "noise on 'scores'" in refusal(plan.changed(releases=(rows, total, scores.changed(std=1.0))))
    assert refusal(plan) == "None"


def test_nobody_asks_for_kept_rows(data, accounts, plan):
    party = sv.Party("party0", data[0][0], data[1], account=accounts[0])
    asked = Frame("ask", 2, plan.digest, 0, "rows", {})
    handle(party, encode(Frame("plan", 1, plan.digest, 0, "", {}, plan.to_json())))
    answer = decode(handle(party, encode(asked)).data)
    assert answer.kind == "refuse"
    assert "not this party's turn" in answer.text


# ------------------------------------------------------------------------------------------------ a real solver


@pytest.mark.parametrize("solver", ["admm", "fdml"])
def test_two_fits_of_a_solver_cost_as_much_each(tmp_path, solver):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 5))
    y = (X[:, 0] > X[:, 4]).astype(int)
    own = [Ledger.create(tmp_path / f"{k}.ledger").open("people", 8.0, 1e-5, composition="gaussian") for k in range(2)]
    for _ in range(2):
        federation = sv.Federation.by_columns([X[:, :3], X[:, 3:]], y, ledgers=own)
        model = sv.PrivateLogisticRegression(
            epsilon=2.0, delta=1e-5, entry_bound=1.0, classes=(0, 1), solver=by_name(solver, rounds=2)
        ).fit(federation)
        assert model.privacy_.coordinator.epsilon == pytest.approx(2.0, rel=0.01)
    for account in own:
        first, second = (known.cost for known in account.book().reservations)
        assert second == first
        assert files(account) == []
