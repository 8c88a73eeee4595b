"""The pages of operators during a real run, in a real browser: three parties over gRPC, one killed and started again.

python tests/programs/view_run.py FOLDER [ROUNDS]

Writes pictures of the coordinator's and a party's page into FOLDER, and says what the pages said. Needs chromium. It
ends with an error if a page does not show the loss, the return, the refusal or the end.
"""

from __future__ import annotations

import json
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from browser import Browser, browser
from sottovoce.app.demo import _free_port
from sottovoce.privacy.ledger import Ledger

PARTIES = ("north", "south", "east")
COMMAND = (sys.executable, "-m", "sottovoce")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Watched:
    """A command as a process, and the address of its page."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []
        self._addresses: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if "http://127.0.0.1:" in line:
                self._addresses.put(line[line.index("http://") :].strip())

    @property
    def address(self) -> str:
        found = self._addresses.get(timeout=120)
        self._addresses.put(found)
        return found

    def state(self) -> dict:
        with urllib.request.urlopen(f"{self.address}state.json", timeout=10) as answer:
            return dict(json.load(answer))


def prepared(folder: Path, rounds: int) -> None:
    """Data, certificates, ledgers, party files and two jobs; the second asks for more than the parties allow."""
    rng, port = np.random.default_rng(7), _free_port()
    subprocess.run([*COMMAND, "certificates", "certs", *PARTIES], cwd=folder, check=True, capture_output=True)
    for name in PARTIES:
        rows = rng.uniform(-1, 1, (1500, 6))
        labels = (rows @ rng.uniform(-2, 2, 6) + 0.3 * rng.logistic(size=1500) > 0).astype(int)
        np.savetxt(
            folder / f"{name}.csv",
            np.column_stack([rows, labels]),
            delimiter=",",
            header="age,bmi,pressure,glucose,stay,visits,readmitted",
            comments="",
            fmt="%.4f",
        )
        Ledger.create(folder / f"{name}.db").open("patients", epsilon=3.0, delta=1e-5)
        (folder / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\nfile = "{name}.csv"\nlabel = "readmitted"\nledger = "{name}.db"\n'
            f'[federation]\ncoordinator = "localhost:{port}"\ncertificates = "certs"\n'
            f"[policy]\nmax_epsilon = 1.5\ntell_budget = {'false' if name == 'east' else 'true'}\n"
        )
    for job, epsilon in (("readmission", 1.0), ("too-much", 2.5)):
        (folder / f"{job}.toml").write_text(
            f'[model]\nestimator = "logistic"\n[solver]\nname = "gradient"\nrounds = {rounds}\n'
            f"[privacy]\nepsilon = {epsilon}\n[bounds]\nentry_bound = 1.0\nclasses = [0, 1]\n"
            f'[federation]\nlisten = "127.0.0.1:{port}"\ncertificates = "certs"\nparties = {json.dumps(PARTIES)}\n'
            '[about]\ndataset = "Discharges 2024"\npurpose = "who is readmitted within 30 days"\nanalyst = "Registry"\n'
        )


def taken(tab: Browser, address: str, path: Path, wanted: str) -> None:
    """A page as a desktop and as a phone show it, once it says what is wanted."""
    tab.open(address, width=390, height=844, scale=2)
    tab.until(wanted)
    assert tab.value("document.documentElement.scrollWidth") <= 390
    tab.picture(path.with_name(f"{path.name}-phone.png"))
    tab.open(address, width=1200, height=900)
    tab.until(wanted)
    tab.picture(path.with_name(f"{path.name}-desktop.png"))
    say(f"{path.name}: {tab.value('document.getElementById(`state`).textContent')}")


def main(target: Path, rounds: int) -> None:
    target.mkdir(parents=True, exist_ok=True)
    state = "document.getElementById('state').textContent"
    with tempfile.TemporaryDirectory() as name, browser() as tab:
        folder, started = Path(name), dict[str, Watched]()
        prepared(folder, rounds)
        try:
            started["fit"] = fit = Watched(folder, "fit", "readmission.toml", "--log-json", "fit.jsonl")
            tab.open(fit.address)
            tab.until(f"{state}.startsWith('waiting for north')")
            for party in PARTIES:
                started[party] = Watched(folder, "party", "--job", f"{party}.toml", "--log-json", f"{party}.jsonl")
            tab.until(f"{state}.startsWith('round')", 120)  # live: the page was not loaded again
            tab.until(f"{state} !== {tab.value(state)!r}")

            started["south"].process.send_signal(signal.SIGKILL)
            tab.until(f"{state} === 'south not connected'")
            say(f"killed: {tab.value(state)}")
            taken(tab, fit.address, target / "coordinator-loss", f"{state} === 'south not connected'")
            taken(tab, started["north"].address, target / "party-waiting", f"{state}.startsWith('answer')")
            tab.open(fit.address)
            started["south"] = Watched(folder, "party", "--job", "south.toml", "--log-json", "south.jsonl")
            back = f"{state}.startsWith('round') && document.body.textContent.includes('back after a loss')"
            tab.until(back, 120)
            taken(tab, fit.address, target / "coordinator-back", back)
            taken(tab, started["north"].address, target / "party", f"{state}.startsWith('answer')")
            tab.open(fit.address, dark=True)
            tab.picture(target / "coordinator-dark.png")
            tab.printed(target / "coordinator.pdf")

            tab.open(fit.address)
            tab.until(f"{state} === 'done'", 300)
            tab.until("!document.getElementById('lost').hidden", 30)
            tab.picture(target / "coordinator-done.png")
            say(f"end: {tab.value(state)}; {tab.value('document.getElementById(`lost`).textContent')}")
            assert fit.process.wait(30) == 0, fit.said

            refused = Watched(folder, "fit", "too-much.toml")
            assert refused.process.wait(60) == 3, refused.said
            wanted = "document.getElementById('refusals').textContent.includes('above this party')"
            taken(tab, started["north"].address, target / "party-refusal", wanted)
            for party in PARTIES:
                counts = started[party].state()["counts"]
                say(f"{party}: {counts['rounds']} answers, {counts['numbers']} numbers, {counts['refusals']}")
            complaints = {each for each in tab.complaints if "ERR_CONNECTION_REFUSED" not in each}  # those of the end
            assert not complaints, complaints
            assert all(each.startswith(("http://127.0.0.1:", "data:")) for each in tab.asked), tab.asked
            for path in folder.glob("*.jsonl"):
                shutil.copy(path, target)
        except AssertionError:
            for who, each in started.items():
                say("\n".join([f"--- {who}", *each.said[-15:]]))
            raise
        finally:
            for each in started.values():
                each.process.kill()
                each.process.wait()
    if shutil.which("pdftoppm"):
        subprocess.run(["pdftoppm", "-r", "60", "-png", "coordinator.pdf", "coordinator-print"], cwd=target, check=True)


if __name__ == "__main__":
    begin = time.monotonic()
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3000)
    say(f"{time.monotonic() - begin:.0f} s")
