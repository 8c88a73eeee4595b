"""Parties and coordinator as processes, and the demonstration as a newcomer runs it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from sottovoce.app import demo
from sottovoce.app.superuser import AS_ROOT
from sottovoce.errors import InputError
from sottovoce.estimators.model_file import load_model
from sottovoce.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "sottovoce")


def running_with(text: str) -> list[str]:
    """The command lines of processes that mention `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if text in line:
            found.append(line)
    return found


def test_two_parties_serve_train_and_refuse(write_job, invoke, folder, open_ledger, start):
    invoke("certificates", folder / "certificates", "north", "south")
    port = demo._free_port()
    ledgers = {name: open_ledger(f"{name}.db", 1.2) for name in ("north", "south")}
    (folder / "north.toml").write_text(
        '[party]\nname = "north"\nfile = "north.csv"\nlabel = "out"\nledger = "north.db"\n'
        f'[federation]\ncoordinator = "localhost:{port}"\ncertificates = "certificates"\n'
        "[policy]\nmax_epsilon = 1.0\ntell_budget = true\n[bounds]\nentry_bound = 1.0\n"
        f'[view]\nport = {(view := demo._free_port())}\ntoken = "north.token"\nlog = "north.jsonl"\n'
    )
    north = start("party", "--job", folder / "north.toml")
    options = {"name": "south", "file": folder / "south.csv", "label": "out", "ledger": folder / "south.db"}
    options |= {"coordinator": f"localhost:{port}", "certificates": folder / "certificates", "max-epsilon": 1.0}
    south = start("party", *(part for key, value in options.items() for part in (f"--{key}", value)))
    remote = (
        f'[federation]\nlisten = "127.0.0.1:{port}"\ncertificates = "certificates"\n'
        'parties = ["north", "south"]\nwait = 60\n'
    )
    path = write_job(data=None, more=remote + "records = { north = 400, south = 300 }\nfeatures = 3\n")
    shown = json.loads(invoke("plan", path, "--json").stdout)

    done = json.loads(invoke("fit", path, "--json").stdout)
    assert done["epsilon"] == pytest.approx(1.0)
    for way in ("uplink_bytes", "downlink_bytes"):
        assert done["communication"][way] == pytest.approx(shown["cost"][way], rel=0.1)
    assert list(load_model(folder / "job.json").feature_names_in_) == ["a", "b", "c"]
    told = json.loads((folder / "job.privacy.json").read_text())["budgets"]
    assert list(told) == ["north"]  # south keeps to itself what it has spent
    assert told["north"]["before"]["spent"] == 0.0
    assert told["north"]["after"]["spent"] == pytest.approx(ledgers["north"].account().balance().spent)
    assert [ledger.account().balance().plans for ledger in ledgers.values()] == [1, 1]

    # The parties serve on: what their ledgers cannot pay for is refused in words, and so is what a policy forbids.
    refused = invoke("fit", path, "--quiet", "--overwrite", code=3)
    assert "would fit" in refused.stderr
    loose = write_job("loose.toml", data=None, more=remote, bounds={"entry_bound": "2.0"})
    assert "refuse" in invoke("fit", loose, "--quiet", "--overwrite", code=3).stderr
    token = (folder / "north.token").read_text().strip()
    with urllib.request.urlopen(f"http://127.0.0.1:{view}/{token}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'sottovoce_refusals_total{code="budget"} 1\n' in metrics
    assert 'sottovoce_refusals_total{code="refused"} 1\n' in metrics
    assert "sottovoce_plans_total 1\n" in metrics
    with urllib.request.urlopen(f"http://127.0.0.1:{view}/healthz") as answer:
        assert answer.read() == b"ok\n"
    for party in (north, south):
        party.send_signal(signal.SIGINT)
        said, _ = party.communicate(timeout=20)
        assert party.returncode == 0
        assert "agreed to plan" in said
        assert "refused:" in said
        assert said.endswith("stopped\n")
    events = [json.loads(line)["event"] for line in (folder / "north.jsonl").read_text().splitlines()]
    assert events[0] == "started"
    assert events[-1] == "ended"
    assert {"agreed", "answer", "refused", "connection", "done"} <= set(events)


def test_nobody_comes(write_job, invoke, folder):
    invoke("certificates", folder / "certificates", "north")
    remote = '[federation]\nlisten = "127.0.0.1:0"\ncertificates = "certificates"\nparties = ["north"]\nwait = 0.2\n'
    path = write_job(data=None, more=remote)
    assert "waited 0.2 s for party 'north'" in invoke("fit", path, "--quiet", code=4).stderr
    assert "declare what is public" in invoke("plan", path, code=2).stderr


def test_the_demo(tmp_path, invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    folder = tmp_path / "a demo"
    done = subprocess.run([*COMMAND, "demo", "--folder", folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()) == ({AS_ROOT} if os.getuid() == 0 else set())
    said = " ".join(done.stdout.split())
    for part in (
        "Synthetic patients",
        "trained in",
        "epsilon 1, delta 1e-05, zero-out",
        "as trained above",
        "clinic-4 alone",
        "without privacy",
        "REFUSED: ",
        ": account 'patients'",
        "Nothing was released and nothing was charged",
    ):
        assert part in said
    assert "Traceback" not in said
    commands = [line for line in done.stdout.splitlines() if line.startswith("  ") and "in a browser" not in line]
    assert max(len(line) for line in done.stdout.splitlines() if line not in commands) <= 100
    assert running_with(str(folder)) == []
    for number in range(1, 5):
        ledger = Ledger(folder / f"clinic-{number}.db")
        assert ledger.account().balance().plans == 1
        assert ledger.verify() == 50

    tried = []
    for line in commands:
        if " -m sottovoce " in line or line.startswith("  sottovoce "):
            arguments = shlex.split(line.split("sottovoce ", 1)[1])
            tried.append(arguments[0])
            assert invoke(*arguments).stdout
    assert tried == ["ledger", "ledger", "predict", "plan", "fit"]


def test_a_demo_that_is_interrupted_leaves_no_process(tmp_path, start):
    for attempt in range(3):
        folder = tmp_path / f"demo-{attempt}"
        process = start("demo", "--folder", folder)
        deadline = time.monotonic() + 60
        while len(running_with(f"{folder}/clinic-")) < 4:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert "Traceback" not in said
        assert running_with(f"{folder}/clinic-") == []
        if process.returncode != 0:  # a signal that comes inside a callback of another library is lost on Python
            return
    pytest.fail("three demos went on to their end though each was interrupted")


def test_a_demo_replaces_only_what_a_demo_made(tmp_path):
    demo._clear_folder(tmp_path / "demo")
    (tmp_path / "demo" / "old.db").write_text("")
    demo._clear_folder(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [".sottovoce-demo"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="has files that no demo made"):
        demo._clear_folder(tmp_path / "mine")
    with pytest.raises(InputError, match="has files that no demo made"):
        demo._clear_folder(tmp_path / "mine" / "thesis.txt")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
