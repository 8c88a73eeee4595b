"""The options of commands that operators watch, and who is told what happens in them."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TextIO

import typer

from sottovoce.errors import InputError
from sottovoce.files import open_to_append

if TYPE_CHECKING:
    from sottovoce.app.jobs import Job, ViewTable
    from sottovoce.app.view.watch import Watch
    from sottovoce.app.view.watched import WatchedWire

ViewPort = Annotated[
    int | None,
    typer.Option(
        "--view", metavar="PORT", min=0, max=65535, help="Serve a page for operators at this port of 127.0.0.1; 0: any."
    ),
]
NoView = Annotated[bool, typer.Option("--no-view", help="Serve no page, no metrics and no health.")]
LogJson = Annotated[
    str | None,
    typer.Option(
        "--log-json",
        metavar="FILE",
        help="Append what happens as lines of JSON; -: to the standard output, without texts for people.",
    ),
]


class ViewOptions(NamedTuple):
    """What the command line says of the view; a file's table [view] says the rest."""

    port: int | None = None
    off: bool = False
    log: str | None = None

    def over(self, table: ViewTable) -> ViewTable:
        """The table with what the command line says in its place."""
        if self.off and self.port is not None:
            raise InputError("--view and --no-view: one serves the page and the other does not; leave one out.")
        said = {"port": self.port, "off": False if self.port is not None else self.off or None, "log": self.log}
        return table.model_copy(update={key: value for key, value in said.items() if value is not None})

    def of_fit(self, job: Job, *, quiet: bool) -> ViewTable:
        """The same for a fit: with the data here, or quietly, a page is served if it is asked for."""
        asked = self.port is not None or "port" in job.view.model_fields_set
        if not asked and (quiet or job.federation is None):
            return self._replace(off=True).over(job.view)
        return self.over(job.view)


NO_OPTIONS: Final = ViewOptions()


@contextlib.contextmanager
def watched_fit(job: Job, table: ViewTable, say: Callable[[str], None]) -> Iterator[WatchedWire]:
    """Have a fit watched: who is waited for, and what ledgers of this process have before and after."""
    from sottovoce.app.runs import accounts_of
    from sottovoce.app.view.watch import Watch
    from sottovoce.app.view.watched import WatchedWire, budget_of

    meets_at = "" if job.federation is None else job.federation.listen or ""
    watch = Watch("coordinator", job.path.stem, data_here=job.federation is None, meets_at=meets_at)
    with watching(watch, table, job.resolve, say, "done"):
        if job.federation is not None:
            watch.expect(*job.federation.parties, *filter(None, [job.federation.helper]))
        accounts = {party: (account, account.balance()) for party, account in accounts_of(job).items()}
        for party, (_, before) in accounts.items():
            watch.tell(budget_of(party, before, before))
        yield WatchedWire(watch, say)
        for party, (account, before) in accounts.items():
            watch.tell(budget_of(party, before, account.balance()))


@contextlib.contextmanager
def watching(
    watch: Watch, table: ViewTable, resolve: Callable[[str], Path], say: Callable[[str], None], ending: str = "stopped"
) -> Iterator[Watch]:
    """Have a command watched: at the terminal, in a log, on a page. How it ends is told, then all of that ends too."""
    from sottovoce.app.view.events import Ended, safe_text
    from sottovoce.app.view.logs import Forwarded, written_to
    from sottovoce.app.view.server import new_token, served, token_in
    from sottovoce.app.view.watched import told_at

    watch.add(told_at(say, watch.role))
    with contextlib.ExitStack() as stack:
        if table.log is not None:
            try:
                watch.add(written_to(_stream(table.log, resolve, stack)))
            except OSError as error:
                raise InputError(
                    f"view.log={table.log!r} cannot be written ({error.strerror}); give another path."
                ) from None
        handler, logger = Forwarded(watch), logging.getLogger("sottovoce")
        logger.addHandler(handler)
        stack.callback(logger.removeHandler, handler)
        if not table.off:
            token = new_token() if table.token is None else token_in(resolve(table.token))
            try:
                say(f"for operators, in a browser here: {stack.enter_context(served(watch, table.port, token))}")
            except InputError:
                if "port" in table.model_fields_set:  # it was asked for
                    raise
                say("no page for operators: this machine has no address 127.0.0.1 to listen on")
        try:
            yield watch
        except KeyboardInterrupt:
            watch.tell(Ended("stopped"))
            raise
        except BaseException as error:
            watch.tell(Ended("failed", type(error).__name__, safe_text(error)))
            raise
        watch.tell(Ended(ending))


def _stream(log: str, resolve: Callable[[str], Path], stack: contextlib.ExitStack) -> TextIO:
    if log == "-":
        return sys.stdout
    stream = open_to_append(resolve(log))
    stack.callback(_close, stream)
    return stream


def _close(stream: TextIO) -> None:
    """Where the disk is full, what could not be written is tried once more; the run does not fail for it."""
    with contextlib.suppress(OSError):
        stream.close()
