"""What a fit leaves behind lasts before it says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.estimators.model_file import load_model

PROGRAM = Path(__file__).parent.parent / "programs" / "killed_fit.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the program looks up open files in /proc")
def test_outputs_are_synced_and_in_place_before_success_is_said(folder, write_job, open_ledger):
    """Each file is synced before it gets its name and its folder after; the process is killed as it says success."""
    open_ledger("all.db", 2.0)
    path = write_job(data={"ledger": '"all.db"'})
    record = folder / "record"
    done = subprocess.run([sys.executable, str(PROGRAM), str(path), str(record)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    lines = record.read_text().splitlines()
    assert lines[-1] == "success"
    for name in ("job.json", "job.privacy.json", "job.privacy.html"):
        (place,) = [number for number, line in enumerate(lines) if line.endswith(f"/{name}") and line[:6] == "placed"]
        _, temporary, final = lines[place].split()
        assert f"synced {temporary}" in lines[:place]
        assert f"synced {Path(final).parent}" in lines[place:-1]
        assert (folder / name).read_bytes()
    assert load_model(folder / "job.json").missing_parts_ == {}
    assert json.loads((folder / "job.privacy.json").read_text())["missing_parts"] == {}
