"""How far long work on rows has come: counts of records, which are public, and nothing about what they hold."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

from sottovoce.data.context import holding

Hear = Callable[[str, int, int], None]  # what is done, records done, records in all

PREPARING: Final = "preparing rows"
READING: Final = "reading rows"
PREDICTING: Final = "predicting"

_HEARD: Final[ContextVar[Hear | None]] = ContextVar("heard", default=None)


def heard_by(hear: Hear | None) -> AbstractContextManager[None]:
    """Whoever is told from here on in this thread; None leaves it as it is."""
    return holding(_HEARD, hear)


def say(what: str, done: int, total: int) -> None:
    """Tell how far it is."""
    if (hear := _HEARD.get()) is not None:
        hear(what, done, total)
