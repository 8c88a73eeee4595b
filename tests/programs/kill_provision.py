"""`kill_provision.py FOLDER [FIRST [LAST]]`: sites whose making is killed before a write, and is completed.

A line of JSON for each kill: before what, and what is wrong with the sites in the end.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

from sottovoce.app.jobs import load_job, load_party_job
from sottovoce.app.provisioning import Sites, make_sites
from sottovoce.errors import SottovoceError
from sottovoce.transports.certificates import Credentials, pin_in

SITES = Sites(("north", "south"))
CHANGES = ("os.mkdir", "os.rename", "os.link", "os.remove", "os.chmod", "os.rmdir", "open")


def make(folder: Path, number: int, said: int) -> None:
    """Make the sites, and be killed before so many changes of the disk in their folder."""
    left = [number]

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not str(arguments[0]).startswith(str(folder)):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        left[0] -= 1
        if left[0] == 0:
            os.write(said, f"{event} {Path(arguments[0]).relative_to(folder)}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(heard)
    make_sites(folder, SITES)


def killed(folder: Path, number: int) -> str:
    """Before what it was killed; "" if it ended first."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        make(folder, number, writer)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


def wrong(folder: Path) -> list[str]:
    """What the sites lack, once they were made again."""
    try:
        make_sites(folder, SITES)
        load_job(folder / "coordinator/job.toml")
        for name, other in (("coordinator", ""), ("north", "south"), ("south", "north")):
            Credentials.load(folder / name / "certificates", name)
            pins = dict([pin_in(folder / other / "certificates" / f"{other}.pem")]) if other else {}
            if other and load_party_job(folder / name / "party.toml").peers != pins:
                return [f"{name} has another key of {other} than {other}"]
    except SottovoceError as error:
        return [str(error)]
    found = [f"left: {path}" for path in folder.rglob("*.new")]
    found += [f"key: {path}" for path in (folder / "authority").glob("*.key") if path.stem != "authority"]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    return found + [
        f"{path} has the mode {mode:o}"
        for path, mode in modes.items()
        if mode != (0o700 if path.is_dir() else 0o644 if path.suffix == ".pem" else 0o600)
    ]


if __name__ == "__main__":
    os.umask(0)
    first, last = [int(number) for number in [*sys.argv[2:], *("1", "10000")[len(sys.argv) - 2 :]]]
    for number in range(first, last + 1):
        place = Path(sys.argv[1]) / str(number)
        before = killed(place, number)
        sys.stdout.write(json.dumps([before, wrong(place)]) + "\n")
        if not before:
            break
