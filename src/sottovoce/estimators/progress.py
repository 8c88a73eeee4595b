"""Progress lines with the time left, for long fits in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich import progress as bars
from rich.console import Console

from sottovoce.data.resources import READING, Resources

LONG = 1.0  # seconds of work on rows before it has a line of its own


@contextmanager
def progress_bar(
    title: str, console: Console | None = None, lend: Callable[[Resources], AbstractContextManager[None]] | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Yields advance(done, total); a total of 0 is not known. Nothing but counts of public rounds is shown.

    Where rows of parties to which one can `lend` are long to prepare or to read, that has a line of its own, with
    counts of records.
    """
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
    )
    begun: dict[str, float] = {}  # work on rows, a line of which is shown where it takes long
    shown: dict[str, bars.TaskID] = {}

    def hear(what: str, done: int, total: int) -> None:
        start = begun.setdefault(what, time.monotonic())
        if what not in shown and done < total and time.monotonic() - start > LONG:
            shown[what] = progress.add_task(what, total=total)
        if what in shown:
            progress.update(shown[what], completed=done)
        if done >= total:
            begun.pop(what)
            line = shown.pop(what, None)
            if line is not None and what == READING:  # every round has one
                progress.remove_task(line)

    with bars.Progress(*columns, console=console or Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None)
        with nullcontext() if lend is None else lend(Resources(progress=hear)):
            yield lambda done, total: progress.update(task, completed=done, total=total or None)
