"""How far long work on rows has come: counts of records, which are public, and nothing about what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Hear = Callable[[str, int, int], None]  # what is done, records done, records in all

PREPARING: Final = "preparing rows"
CHECKING: Final = "checking kept rows"
READING: Final = "reading rows"

_HEARD: Final[ContextVar[Hear | None]] = ContextVar("heard", default=None)


@contextmanager
def heard_by(hear: Hear | None) -> Iterator[None]:
    """Whoever is told from here on in this thread; None leaves it as it is."""
    token = _HEARD.set(_HEARD.get() if hear is None else hear)
    try:
        yield
    finally:
        _HEARD.reset(token)


def say(what: str, done: int, total: int) -> None:
    """Tell how far it is."""
    if (hear := _HEARD.get()) is not None:
        hear(what, done, total)
