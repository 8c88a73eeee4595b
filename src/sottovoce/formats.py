"""The formats of what is written and sent, each with its number, which changes whenever the format does.

docs/formats.md says what becomes of older ones. `tests/shapes.py` records what a format of each number looks like; a
test compares that with what is written now.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Format(NamedTuple):
    """A format: what has it, its number now, what to do about another one, and the older ones that are read."""

    what: str
    number: int
    remedy: str
    older: tuple[int, ...] = ()

    def read(self, number: object) -> bool:
        """Whether this version reads that number."""
        return type(number) is int and number in (*self.older, self.number)

    def refusal(self, where: str, number: object) -> str:
        """What is said of another number."""
        found = "no format number" if number is None else f"format {number!r:.20}"
        known = " and ".join(map(str, (*self.older, self.number)))
        return f"{where} has {found}, and this version of sottovoce reads {self.what} of format {known}. {self.remedy}"


_SAME: Final = "Install the same version of sottovoce at both ends."
FRAME: Final = Format("frames", 4, _SAME)
PLAN: Final = Format("plans", 4, _SAME)
# Ledgers of format 1 have no accounts under others and no periods, and say nothing about a plan.
LEDGER: Final = Format("ledgers", 2, "Use the version of sottovoce that wrote it.", older=(1,))
JOURNAL: Final = Format("states of runs", 6, "Let the version of sottovoce that began the run end it.")
MODEL: Final = Format("models", 4, "Use the version of sottovoce that wrote it, or fit the model again.")
PARTIAL_MODEL: Final = Format("partial models", 3, "Use the version of sottovoce that wrote it, or train again.")
SCHEMA: Final = Format("schemas", 1, "Draft it anew with `sottovoce schema`.")
ALIGNMENT: Final = Format("alignments", 1, "Delete it, start the party, and align again (`sottovoce align`).")
KEPT_ROWS: Final = Format("kept rows", 1, "Use the version of sottovoce that wrote them.")
