"""The experiments of five papers run again, our numbers beside theirs: `sottovoce reproduce dp-cd`.

Where a paper has no experiment, what it claims is measured instead: the true epsilon beside the claimed one, the bytes
beside the claimed growth. Noise comes from fixed seeds, so a run can be repeated; models of these runs promise nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Final

from sottovoce.errors import InputError
from sottovoce.lab.reproduce.tables import (
    MissingDataError,
    Paper,
    PaperTable,
    Reproduction,
    Row,
    Setup,
    draw_tables,
    format_number,
)

__all__ = [
    "NAMES",
    "MissingDataError",
    "Paper",
    "PaperTable",
    "Reproduction",
    "Row",
    "Setup",
    "draw_tables",
    "format_number",
    "paper",
    "run_paper",
]

NAMES: Final = ("dp-cd", "dp-scd", "admm", "frank-wolfe", "sgd")


def paper(name: str) -> Paper:
    """The paper of this name."""
    if name not in NAMES:
        raise InputError(f"NAME={name!r} is no paper known here. Known are: {', '.join(NAMES)}.")
    found: Paper = import_module(f"sottovoce.lab.reproduce.{name.replace('-', '_')}").PAPER
    return found


def run_paper(
    name: str, setup: Setup | None = None, *, only: str | None = None, done: Callable[[PaperTable], None] | None = None
) -> Reproduction:
    """Run the parts of a paper, or `only` one; `done` gets each table as soon as it is made.

    A part whose data are not at hand is named in `not_reproduced`, with the file to supply; if it was asked for by
    `only`, or if no part could be made, that is an error.
    """
    chosen, setup = paper(name), setup or Setup()
    if only is not None and only not in chosen.parts:
        raise InputError(f"only={only!r} is no part of {name}. Its parts are: {', '.join(chosen.parts)}.")
    tables, missing = [], []
    for part in (only,) if only else chosen.parts:
        setup.say(f"{name}, {part}")
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="delta=")  # above 1/N where the paper has it so
                tables.append(chosen.parts[part](setup))
        except MissingDataError as error:
            if only:
                raise
            missing.append(f"{part}: {error}")
            continue
        if done:
            done(tables[-1])
    if not tables:
        raise MissingDataError(" ".join(missing))
    return Reproduction(name, chosen.source, tuple(tables), (*chosen.not_reproduced, *missing))
