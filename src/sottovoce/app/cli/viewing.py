"""The options of commands that operators watch, and who is told what happens in them."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TextIO

import typer

from sottovoce.errors import InputError
from sottovoce.files import open_to_append

if TYPE_CHECKING:
    from sottovoce.app.job_tables import ViewTable
    from sottovoce.app.jobs import Job
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


@contextlib.contextmanager
def watched_fit(job: Job, table: ViewTable, say: Callable[[str], None]) -> Iterator[WatchedWire]:
    """Have a fit watched: who is waited for, and what ledgers of this process have before and after."""
    from sottovoce.app.sources import accounts_of
    from sottovoce.app.view.watch import Watch
    from sottovoce.app.view.watched import WatchedWire, describe_budget

    meets_at = "" if job.federation is None else job.federation.listen or ""
    watch = Watch("coordinator", job.path.stem, data_here=job.federation is None, meets_at=meets_at)
    with watching(watch, table, job.resolve, say, "done"):
        if job.federation is not None:
            watch.tell("expected", ends=job.federation.ends)
        accounts = {party: (account, account.balance()) for party, account in accounts_of(job).items()}
        for party, (_, before) in accounts.items():
            watch.tell("budget", party=party, **describe_budget(before, before))
        yield WatchedWire(watch, say)
        for party, (account, before) in accounts.items():
            watch.tell("budget", party=party, **describe_budget(before, account.balance()))


@contextlib.contextmanager
def watching(
    watch: Watch, table: ViewTable, resolve: Callable[[str], Path], say: Callable[[str], None], ending: str = "stopped"
) -> Iterator[Watch]:
    """Have a command watched: at the terminal, in a log, on a page. How it ends is told, then all of that ends too."""
    from sottovoce.app.view.events import safe_text
    from sottovoce.app.view.server import new_token, read_token, serve_view
    from sottovoce.app.view.watch import LogForwarder, say_to, write_to

    watch.add(say_to(say, watch.role))
    with contextlib.ExitStack() as stack:
        if table.log is not None:
            try:
                stream = sys.stdout if table.log == "-" else open_to_append(resolve(table.log))
                if table.log != "-":
                    stack.callback(_close_log, stream)
                watch.add(write_to(stream))
            except OSError as error:
                raise InputError(
                    f"view.log={table.log!r} cannot be written ({error.strerror}); give another path."
                ) from None
        handler, logger = LogForwarder(watch), logging.getLogger("sottovoce")
        logger.addHandler(handler)
        stack.callback(logger.removeHandler, handler)
        if not table.off:
            token = new_token() if table.token is None else read_token(resolve(table.token))
            try:
                say(f"for operators, in a browser here: {stack.enter_context(serve_view(watch, table.port, token))}")
            except InputError:
                if "port" in table.model_fields_set:  # it was asked for
                    raise
                say("no page for operators: this machine has no address 127.0.0.1 to listen on")
        try:
            yield watch
        except KeyboardInterrupt:
            watch.tell("ended", outcome="stopped")
            raise
        except BaseException as error:
            watch.tell("ended", outcome="failed", error=type(error).__name__, why=safe_text(error))
            raise
        watch.tell("ended", outcome=ending)


def _close_log(stream: TextIO) -> None:
    """If the disk is full, what could not be written is tried once more; the run does not fail for it."""
    with contextlib.suppress(OSError):
        stream.close()
