"""A command of sottovoce that is killed at one point: killed_evaluation.py POINT ARGUMENTS."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sottovoce.app.cli import console, main
from sottovoce.estimators import evaluation as estimation
from sottovoce.federation.journal import Journal
from sottovoce.gate.frames import peek
from sottovoce.privacy.ledger import Account
from sottovoce.transports.base import InProcess


def die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(owner: Any, name: str, when: Any = lambda *_, **__: True) -> None:
    plain = getattr(owner, name)

    def then_die(*arguments: Any, **options: Any) -> Any:
        found = plain(*arguments, **options)
        if when(*arguments, **options):
            die()
        return found

    setattr(owner, name, then_die)


POINTS = {
    "charged": lambda: die_after(Account, "reserve"),
    "released": lambda: die_after(InProcess, "exchange", lambda _, all_: peek(next(iter(all_.values())))[0] == "ask"),
    "answered": lambda: die_after(Journal, "note", lambda _, kind, *__, **___: kind == "round"),
    "ended": lambda: setattr(estimation, "estimate_metrics", die),
    "kept": lambda: die_after(Journal, "keep_outputs"),
    "written": lambda: setattr(console, "out", die),
}

if __name__ == "__main__":
    POINTS[sys.argv[1]]()
    sys.argv = ["sottovoce", *sys.argv[2:]]
    main()
