"""Kill coordinators and parties of one fit at random instants until it ends: `resume_fits.py FOLDER CASE KILLS SEED`.

Every role is a process of its own, over mutual TLS, and a killed one is started again by the same command. The same fit
without kills is its measure. It prints one JSON object: whether the models are the same to the last bit, and what the
ledgers of both have. CASE is a key of CASES; with "coordinator" or "parties" as a fifth argument only those are killed
(of sealed columns the coordinator alone may be). Where parties are killed more is asked, so bytes differ.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import processes
import sottovoce as sv
from processes import Program
from sottovoce.app.demo import _free_port
from sottovoce.transports.certificates import create_authority, issue, pin_in

COMMAND = Path(__file__).with_name("keyed_command.py")
USED = ["app.cli", "app.runs", "app.sources", "estimators.progress", "federation.helper", "transports.grpc_wire"]
processes._CONTEXT.set_forkserver_preload([f"sottovoce.{name}" for name in USED])
NAMES = ("north", "south", "west")
RECORDS, WIDTH = 240, 6
# solver, its options, whether by columns, and what the federation says
CASES: dict[str, tuple[str, str, bool, str]] = {
    "gradient": ("gradient", "rounds = 12", False, ""),
    "newton": ("newton", "rounds = 12", False, ""),
    "whitened": ("whitened", "rounds = 8", False, ""),
    "sgd": ("sgd", "rounds = 12\nrate = 0.2", False, ""),
    "cd": ("cd", "rounds = 6\ninner = 4", False, ""),
    "greedy-cd": ("greedy-cd", "rounds = 8", False, ""),
    "scd": ("scd", "rounds = 12\nrate = 0.2", False, ""),
    "scd-sequential": ("scd-sequential", "rounds = 4\nlot = 60", False, ""),
    "sealed rows": ("newton", "rounds = 12", False, 'sums = "secure"\nabsent = 1\nspare = 3\ncurious = 1\n'),
    "admm": ("admm", "rounds = 8", True, 'products = "none"\n'),
    "fdml": ("fdml", "rounds = 8", True, 'products = "none"\n'),
    "score": ("score", "rounds = 8", True, 'products = "none"\n'),
    "frank-wolfe": ("frank-wolfe", "rounds = 3", True, 'products = "none"\n'),
    "sealed columns": ("whitened", "rounds = 8", True, 'products = "secure"\n'),
}


class Site:
    """The files of one fit in a folder of its own, and its processes."""

    def __init__(self, folder: Path, case: str, seed: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.running = folder, dict[str, Program]()
        self.seed = f"0{seed}" if case == "sealed columns" else str(seed)  # pads are coins there: keys are known too
        self.names, self.port = NAMES if case == "sealed rows" else NAMES[:2], _free_port()
        certificates = folder / "certificates"
        create_authority(certificates)
        for name in ("coordinator", *self.names):
            issue(certificates, name)
        self._data(case)
        self._jobs(case)

    def _data(self, case: str) -> None:
        chance, columns = np.random.default_rng(5), CASES[case][2]
        rows = chance.uniform(-1, 1, (RECORDS, WIDTH))
        labels = (rows @ np.linspace(-2, 2, WIDTH) > 0).astype(int)
        for place, name in enumerate(self.names):
            part = slice(place * WIDTH // len(self.names), (place + 1) * WIDTH // len(self.names))
            own = slice(place, None, len(self.names))
            X, y = (rows[:, part], labels) if columns else (rows[own], labels[own])
            heads = [f"x{j}" for j in (range(WIDTH)[part] if columns else range(WIDTH))]
            lines = [",".join([*heads, "out"])]
            lines += [",".join([*map("{:.4f}".format, row), str(label)]) for row, label in zip(X, y, strict=True)]
            (self.folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
            sv.Ledger.create(self.folder / f"{name}.db").open(name, epsilon=20.0, delta=1e-5)

    def _jobs(self, case: str) -> None:
        solver, options, columns, more = CASES[case]
        pins = dict(pin_in(self.folder / "certificates" / f"{name}.pem") for name in ("coordinator", *self.names))
        peers = "".join(f'{name} = "{pin}"\n' for name, pin in pins.items())
        for name in self.names:
            (self.folder / f"{name}.toml").write_text(
                f'[party]\nname = "{name}"\nfile = "{name}.csv"\nlabel = "out"\nledger = "{name}.db"\n'
                f'[federation]\ncoordinator = "localhost:{self.port}"\ncertificates = "certificates"\n'
                f"[policy]\nsealed = true\ntell_budget = true\n[peers]\n{peers}"
            )
        alpha = "alpha = 0.1\n" if solver.startswith("scd") else "radius = 2.0\n" if solver == "frank-wolfe" else ""
        kind = "lasso" if solver == "frank-wolfe" else "logistic"
        (self.folder / "job.toml").write_text(
            f'[model]\nestimator = "{kind}"\n{alpha}[privacy]\nepsilon = 1.0\n[solver]\nname = "{solver}"\n{options}\n'
            f"[bounds]\nentry_bound = 1.0\n{'label_bound = 1.0' if kind == 'lasso' else 'classes = [0, 1]'}\n"
            f'[federation]\nlisten = "127.0.0.1:{self.port}"\ncertificates = "certificates"\nwait = 60\ntimeout = 60\n'
            f"parties = {list(self.names)}\n{more}" + ("[columns]\n" if columns else "")
        )

    def start(self, name: str) -> None:
        """A role by its command, which is the same each time."""
        said = ("fit", self.folder / "job.toml", "--quiet")
        if name != "coordinator":
            said = ("party", "--job", self.folder / f"{name}.toml", "--patience", "60")
        self.running[name] = Program(COMMAND, self.seed, *said, read=True)

    def kill(self, name: str) -> str:
        """Kill a role; what it had said."""
        self.running[name].kill()
        return self.running[name].communicate(60)[0]

    def stop(self) -> None:
        for name in self.running:
            self.kill(name)

    @property
    def found(self) -> dict[str, Any]:
        """The model, what its report says of bytes, and what each ledger has."""
        report = json.loads((self.folder / "job.privacy.json").read_text())
        model = json.loads((self.folder / "job.json").read_text())
        ledgers = {}
        for name in self.names:
            account = sv.Ledger(self.folder / f"{name}.db").account()
            kinds = [entry.kind for entry in account.history()]
            sv.Ledger(account.path).verify()
            ledgers[name] = [kinds.count("reservation"), kinds.count("release"), account.balance().spent]
        left = [path.name for path in self.folder.glob("*.memory/*")] + [
            path.name for path in self.folder.glob("*.run")
        ]
        return {
            "model": [model["coef"], model["intercept"]],
            "uplink": report["communication"]["uplink"],
            "rounds": report["communication"]["rounds"],
            "ledgers": ledgers,
            "left_behind": left,
        }


def fit(site: Site, kills: int, chance: random.Random, whom: tuple[str, ...]) -> tuple[float, str]:
    """Seconds of a fit from its start to its end, and what its coordinators said.

    A process is killed once the state of the fit has grown by a few entries, or a moment later: so kills are spread
    over its rounds, however fast they are.
    """
    for name in ("coordinator", *site.names):
        site.start(name)
    state, said, begun = site.folder / "job.run", "", time.monotonic()
    while True:
        coordinator, size = site.running["coordinator"], _size(state)
        target = size + chance.randrange(1, 2500) if kills else sys.maxsize
        deadline = time.monotonic() + 300.0
        while coordinator.poll() is None and _size(state) < target and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(chance.choice((0.0, 0.0, 0.01, 0.1)))
        if coordinator.poll() is not None:
            said += coordinator.communicate(10)[0]
            if coordinator.returncode != 0:
                raise SystemExit(f"the coordinator ended with {coordinator.returncode}: {said}")
            return time.monotonic() - begun, said
        if not kills:
            raise SystemExit("the fit does not end")
        kills -= 1
        name = whom[kills % len(whom)]
        said += site.kill(name)
        site.start(name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def main(folder: Path, case: str, kills: int, seed: int, only: str = "") -> dict[str, Any]:
    whole, broken = Site(folder / "whole", case, seed), Site(folder / "broken", case, seed)
    chance = random.Random(seed)
    try:
        seconds, _ = fit(whole, 0, chance, ())
        whole.stop()
        whom = {"coordinator": ("coordinator",), "parties": broken.names}.get(only, ("coordinator", *broken.names))
        longer, said = fit(broken, kills, chance, whom)
    finally:
        whole.stop()
        broken.stop()
    expected, found = whole.found, broken.found
    return {
        "case": case,
        "same_model": found["model"] == expected["model"],
        "same_ledgers": found["ledgers"] == expected["ledgers"],
        "same_answers": found["uplink"] == expected["uplink"],
        "same_rounds": found["rounds"] == expected["rounds"],
        "ledgers": found["ledgers"],
        "left_behind": [*expected["left_behind"], *found["left_behind"]],
        "went_on": said.count("going on with the run"),
        "seconds": [round(seconds, 2), round(longer, 2)],
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    outcome = main(Path(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3]), *arguments[4:5])
    sys.stdout.write(json.dumps(outcome) + "\n")
