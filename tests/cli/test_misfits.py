"""Parties and coordinator as processes: what a party is told of its table stays at that party."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from sottovoce.app import demo

pytestmark = pytest.mark.slow

WORDS = ("do not fit", "declared levels", "but for capitals", "rows cannot be used")


def test_a_coordinator_reads_nothing_of_a_misfit(
    write_job: Any, invoke: Any, folder: Path, open_ledger: Any, start: Any
) -> None:
    """In no line of its terminal, its log and its operators' page, and in no file that it has afterwards."""
    invoke("certificates", folder / "certificates", "north", "south")
    port = demo._free_port()
    schema = (
        '[schema]\nlabel = "out"\n[schema.columns]\na = {{ range = [-1, 1] }}\nb = {{ levels = {} }}\n'
        'c = {{ range = [0, 0.01] }}\nout = {{ levels = ["no", "yes"] }}\n'
    ).format('["Low", "High"]')
    parties = []
    for name in ("north", "south"):
        path = folder / f"{name}.csv"
        header, *lines = path.read_text().splitlines()
        cells = [line.split(",") for line in lines]
        levels = ("Low", "High") if name == "south" else ("low", "high")
        rows = [[a, levels["-" not in b], c, label] for a, b, c, label in cells]
        path.write_text("\n".join([header, *map(",".join, rows)]) + "\n")
        open_ledger(f"{name}.db", 1.2)
        (folder / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\nfile = "{name}.csv"\nledger = "{name}.db"\n'
            f'[federation]\ncoordinator = "localhost:{port}"\ncertificates = "certificates"\n'
            f"[policy]\nmax_epsilon = 1.0\n{schema}"
        )
        parties.append(start("party", "--job", folder / f"{name}.toml", "--no-view"))
    remote = (
        f'[federation]\nlisten = "127.0.0.1:{port}"\ncertificates = "certificates"\n'
        'parties = ["north", "south"]\nwait = 60\n[view]\nlog = "coordinator.jsonl"\n'
    )
    path = write_job(data=None, bounds=None, more=schema + remote)
    fitted = invoke("fit", path)
    said = []
    for party in parties:
        party.send_signal(signal.SIGINT)
        said.append("".join(filter(None, party.communicate(timeout=20))))
    assert "north.csv: cells that do not fit the schema" in said[0]
    assert "b: of 400 cells 400 are none of the declared levels (400 but for capitals)" in said[0]
    assert "\n  b:" not in said[1]
    assert "\n  c: of 300 cells" in said[1]
    for name in ("job.json", "job.privacy.json", "job.privacy.html", "coordinator.jsonl", "job.receipts.json"):
        assert not [word for word in WORDS if word in (folder / name).read_text()]
    assert not [word for word in WORDS if word in fitted.stdout + fitted.stderr]
    for name in ("north.db", "south.db"):
        assert not [word for word in WORDS if word.encode() in (folder / name).read_bytes()]
