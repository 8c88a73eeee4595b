"""What holds for a stretch of code in one thread: where rows are prepared, who hears how far that has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


@contextmanager
def holding(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """A variable has the value from here on; None leaves it as it is."""
    token = variable.set(variable.get() if value is None else value)
    try:
        yield
    finally:
        variable.reset(token)
