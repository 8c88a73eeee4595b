"""Whole fits over NVIDIA FLARE: a server and clients that it provisioned, each a process, and submitted jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import flare
import sottovoce as sv
from sottovoce.app.flare_files import write_flare_job
from sottovoce.app.jobs import load_job
from sottovoce.estimators.model_file import load_model
from sottovoce.solvers import by_name
from sottovoce.transports.authority import create_authority, issue

pytestmark = flare.needs_flare
NAMES = ("anna", "ben")
JOB = """[model]
estimator = "logistic"
[solver]
name = "gradient"
rounds = 5
[privacy]
epsilon = 1.0
[bounds]
entry_bound = 1.0
classes = [0, 1]
[federation]
parties = ["anna", "ben"]
wait = 60
"""

COLUMNS = JOB.replace('"gradient"', '"admm"') + '[columns]\nlabels = "shared"\n'


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[flare.Sites]:
    made = flare.Sites(tmp_path_factory.mktemp("flare"), NAMES)
    made.start()
    yield made
    made.stop()


def records() -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(1).uniform(-1, 1, (300, 4)).round(3)
    return rows, (rows @ [2.0, -1, 1, 0] > 0).astype(int)


class Holders:
    """Two files of records with their ledgers, and what their sites say of them."""

    def __init__(self, folder: Path, sites: flare.Sites, *, by_columns: bool = False) -> None:
        self.folder, self.sites = folder, sites
        rows, labels = records()
        self.parts = [(rows[:, :2], labels), (rows[:, 2:], labels)]
        names = ["a,b,out", "c,d,out"]
        if not by_columns:
            self.parts, names = [(rows[:100], labels[:100]), (rows[100:], labels[100:])], ["a,b,c,d,out"] * 2
        self.accounts = []
        for name, (X, y), header in zip(NAMES, self.parts, names, strict=True):
            lines = [",".join([*np.char.mod("%.3f", row), str(label)]) for row, label in zip(X, y, strict=True)]
            (folder / f"{name}.csv").write_text("\n".join([header, *lines, ""]))
            self.accounts.append(sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=1.5, delta=1e-5))
            self.describe(name)

    def describe(self, name: str, more: str = "") -> None:
        """Write the site's own file."""
        text = f'[party]\nname = "{name}"\nfile = "{self.folder}/{name}.csv"\nlabel = "out"\n'
        text += f'ledger = "{self.folder}/{name}.db"\n'
        more = more or "[federation]\ntrust_server = true\n"
        (self.sites.kit(name) / "local" / f"{name}.toml").write_text(text + more)

    def said(self, name: str) -> str:
        """The site's own log."""
        return (self.sites.kit(name) / "local" / f"{name}.log").read_text()

    def job(self, name: str, text: str = JOB) -> Path:
        """A FLARE job, made as a user makes it."""
        (self.folder / f"{name}.toml").write_text(text)
        return write_flare_job(load_job(self.folder / f"{name}.toml"), self.folder / name)

    def fit(self, name: str, text: str = JOB) -> tuple[str, Path]:
        """Submit it and wait; how it ended, and its results."""
        status, folder = self.sites.submit(self.job(name, text)).result()
        return status, folder / "workspace" / "sottovoce"


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[flare.Wires, Path]]:
    """Wires of a job in FLARE's simulator to two parties whose noise is known, and the folder of their data."""
    folder = tmp_path_factory.mktemp("seeded")
    create_authority(folder)
    for name in NAMES:
        issue(folder, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOTTOVOCE_TESTS", str(folder))
        with flare.simulated(tmp_path_factory.mktemp("flare"), NAMES, flare.SEEDED) as wires:
            yield wires, folder


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_fit_with_known_noise_is_bit_for_bit_that_in_one_process(
    seeded: tuple[flare.Wires, Path], split: str
) -> None:
    wires, folder = seeded
    X, y = records()
    parts = [(X[:100], y[:100]), (X[100:], y[100:])] if split == "rows" else [(X[:, :2], y), (X[:, 2:], y)]
    accounts = []
    for name, (rows, labels) in zip(NAMES, parts, strict=True):
        ledger = f"{split}-{name}.db"
        np.savez(folder / f"{name}.npz", X=rows, y=labels, ledger=ledger)
        accounts.append(sv.Ledger.create(folder / ledger).open(name, epsilon=1.5, delta=1e-5))

    def fitted(federation: sv.Federation, seed: int | None) -> sv.PrivateLogisticRegression:
        solver = by_name("gradient", rounds=20) if split == "rows" else by_name("admm", rounds=5)
        options = {"entry_bound": 1.0, "classes": (0, 1), "solver": solver, "insecure_seed": seed}
        return sv.PrivateLogisticRegression(1.0, **options).fit(federation)

    wire = wires.opened(NAMES)
    remote = fitted(sv.Federation.connect(wire, split=split), None)
    if split == "rows":
        local = sv.Federation.by_rows(parts, names=NAMES)
    else:
        local = sv.Federation.by_columns([rows for rows, _ in parts], y, names=NAMES)
    same, other = fitted(local, 7), fitted(local, 8)
    np.testing.assert_array_equal(remote.coef_, same.coef_)
    np.testing.assert_array_equal(remote.intercept_, same.intercept_)
    assert not np.array_equal(remote.coef_, other.coef_)
    assert remote.communication_.uplink == same.communication_.uplink
    for account in accounts:
        assert [entry.kind for entry in account.history()].count("reservation") == 1
        assert account.balance().spent == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
def test_a_submitted_job_leaves_its_model_and_charges_every_ledger_once(
    sites: flare.Sites, tmp_path: Path, by_columns: bool
) -> None:
    """Known by the certificates of FLARE's provisioning."""
    holders, name = Holders(tmp_path, sites, by_columns=by_columns), "columns" if by_columns else "rows"
    status, results = holders.fit(name, COLUMNS if by_columns else JOB)
    assert status == "FINISHED:COMPLETED", holders.said("anna")
    fitted = load_model(results / f"{name}.json")
    assert fitted.plan_.split == name
    assert json.loads((results / f"{name}.privacy.json").read_text())["epsilon"] == pytest.approx(1.0, abs=0.01)
    for who, account in zip(NAMES, holders.accounts, strict=True):
        assert [entry.kind for entry in account.history()].count("reservation") == 1
        assert account.balance().spent == pytest.approx(1.0, abs=0.02)
        assert "agreed to plan" in holders.said(who)
    kept = sites.kit("localhost") / "sottovoce" / f"{name}.receipts.json"
    assert set(json.loads(kept.read_text())) == set(NAMES)


def test_a_policy_and_a_ledger_refuse_and_nothing_is_charged(sites: flare.Sites, tmp_path: Path) -> None:
    """What the site's file says holds, whatever a job says."""
    holders = Holders(tmp_path, sites)
    holders.describe("ben", "[federation]\ntrust_server = true\n[policy]\nmax_epsilon = 0.5\n")
    status, results = holders.fit("refused")
    assert status == "FINISHED:EXECUTION_EXCEPTION"
    assert "above this party's limit 0.5" in (results / "error.txt").read_text()
    assert "above this party's limit 0.5" in holders.said("ben")
    assert [account.balance().spent for account in holders.accounts] == [0, 0]


def test_a_party_that_cannot_start_tells_its_holder_alone(sites: flare.Sites, tmp_path: Path) -> None:
    holders = Holders(tmp_path, sites)
    secret = tmp_path / "170.25.csv"
    (tmp_path / "ben.csv").rename(secret)
    status, results = holders.fit("absent")
    assert status == "FINISHED:EXECUTION_EXCEPTION"
    assert "party 'ben' could not start" in (results / "error.txt").read_text()
    assert "ben.csv" in holders.said("ben")
    assert not any("ben.csv" in path.read_text(errors="replace") for path in (sites.kit("ben")).rglob("*log*.txt"))


def test_a_relay_leaves_records_ledger_and_key_to_a_process_of_its_own(sites: flare.Sites, tmp_path: Path) -> None:
    """`sottovoce party`, killed in the middle and started again: FLARE's job goes on."""
    holders = Holders(tmp_path, sites)
    create_authority(tmp_path)
    for name in ("coordinator", *NAMES):
        issue(tmp_path, name)
    holders.describe("anna", f'[federation]\ntrust_server = true\ncertificates = "{tmp_path}"\n')
    port = flare.free_port()
    (sites.kit("ben") / "local" / "ben.toml").write_text(
        f'[relay]\nlisten = "127.0.0.1:{port}"\ncertificates = "{tmp_path}"\n'
    )
    (tmp_path / "ben.toml").write_text(
        '[party]\nname = "ben"\nfile = "ben.csv"\nlabel = "out"\nledger = "ben.db"\n'
        f'[federation]\ncoordinator = "localhost:{port}"\ncertificates = "."\n'
    )

    def party() -> flare.Process:
        command = (sys.executable, "-m", "sottovoce", "party", "--once", "--job", tmp_path / "ben.toml")
        return flare.Process(*command, log=tmp_path / "ben.log")

    started = party()
    submitted = sites.submit(holders.job("relayed", JOB.replace("rounds = 5", "rounds = 150")))
    try:
        flare.until(lambda: sum(entry.kind == "release" for entry in holders.accounts[1].history()) > 10)
        started.kill()
        released = sum(entry.kind == "release" for entry in holders.accounts[1].history())
        assert released < 150, "the kill must fall inside the fit"
        started = party()
        status, folder = submitted.result()
    finally:
        started.kill()
    assert status == "FINISHED:COMPLETED"
    for account in holders.accounts:
        assert [entry.kind for entry in account.history()].count("reservation") == 1
        assert account.balance().spent == pytest.approx(1.0, abs=0.02)
    assert load_model(folder / "workspace" / "sottovoce" / "relayed.json").plan_.rounds == 150


def test_a_killed_client_ends_the_job_and_the_same_job_goes_on_with_its_fit(sites: flare.Sites, tmp_path: Path) -> None:
    holders = Holders(tmp_path, sites)
    submitted = sites.submit(
        holders.job("killed", JOB.replace("rounds = 5", "rounds = 400").replace("wait = 60", "timeout = 5"))
    )
    account = holders.accounts[1]
    flare.until(lambda: sum(entry.kind == "release" for entry in account.history()) > 10)
    sites.processes["ben"].kill()
    flare.kill_all(sites.kit("ben"))
    sites.start("ben")
    status, results = submitted.result()
    assert status == "FINISHED:EXECUTION_EXCEPTION"
    assert "an answer of party 'ben'" in (results / "workspace" / "sottovoce" / "error.txt").read_text()
    assert account.balance().spent == pytest.approx(1.0, abs=0.02)
    # The same job goes on where it was: the same plan, charged once.
    status, results = sites.submit(tmp_path / "killed").result()
    assert status == "FINISHED:COMPLETED"
    assert load_model(results / "workspace" / "sottovoce" / "killed.json").plan_.rounds == 400
    for each in holders.accounts:
        kinds = [entry.kind for entry in each.history()]
        assert (kinds.count("reservation"), kinds.count("release")) == (1, 400)


BAD = {
    "another class": ("sottovoce.app.flare.Coordinator", {}, None),
    "an argument": ("sottovoce.app.flare.Party", {"file": "/tmp/other.toml"}, None),
    "code of its own": ("sottovoce.app.flare.Party", {}, "custom/mine.py"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_site_refuses_a_job_that_brings(sites: flare.Sites, tmp_path: Path, case: str) -> None:
    holders = Holders(tmp_path, sites)
    path, arguments, code = BAD[case]
    job = holders.job("bad", JOB.replace("wait = 60", "wait = 5"))
    executor = {"tasks": ["none"], "executor": {"path": path, "args": arguments}}
    config = job / "party" / "config" / "config_fed_client.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "executors": [executor]}))
    if code is not None:
        (job / "party" / code).parent.mkdir()
        (job / "party" / code).write_text("")
    status, _ = sites.submit(job).result()
    assert status != "FINISHED:COMPLETED"
    assert [account.balance().spent for account in holders.accounts] == [0, 0]
