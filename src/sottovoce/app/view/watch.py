"""Who is told what happens: the state, and readers such as a terminal and a log with lines of JSON.

What the loggers of a holder say is for the holder's eyes, at the terminal: it may count rows, and an error of another
library may quote a cell. A log has only the logger, the level, the place in the code and the class of the error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from sottovoce import __version__
from sottovoce.app.model_file import plain
from sottovoce.app.view.events import Event
from sottovoce.app.view.state import State, write_metrics
from sottovoce.plan.plan import Plan
from sottovoce.transports.base import Change

Reader = Callable[[float, Event], None]
_OPEN: Final = ("sottovoce.transports.", "sottovoce.kernels")  # these loggers never see rows
_ENCODER: Final = json.JSONEncoder(allow_nan=False, check_circular=False)


class Watch:
    """Takes what happens in a run and passes it on. Whatever a reader does, the run goes on.

    Where data are, at their holder or in a fit of files here, times are whole seconds and nothing has a duration: how
    long an answer took depends on its rows.
    """

    def __init__(
        self,
        role: str,
        end: str,
        *,
        data_here: bool | None = None,
        meets_at: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = State()
        self._lock = threading.Lock()
        self._readers: list[Reader] = []
        self._clock = clock
        self.plan: Plan | None = None  # the one that the page describes: public, as all plans are
        self.role = role
        self.meets_at = meets_at  # the address at which the parties find the coordinator
        self.data_here = role != "coordinator" if data_here is None else data_here
        self._started = self.tell("started", role=role, end=end, version=__version__)

    def add(self, reader: Reader) -> None:
        """Tell this one too, from now on, and that it started."""
        with self._lock:
            reader(self._state.started, self._started)
            self._readers.append(reader)

    def tell(self, name: str, /, **fields: Any) -> Event:
        event = Event(name, **fields)
        with self._lock:
            now = float(int(self._clock())) if self.data_here else self._clock()
            self._state.take(now, event)
            for reader in tuple(self._readers):
                try:
                    reader(now, event)
                except Exception:  # a full disk, a closed terminal
                    self._readers.remove(reader)
        return event

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Whatever goes wrong inside, the run goes on; the log has the class of it."""
        try:
            yield
        except Exception as error:
            words = f"what was to be told could not be ({type(error).__name__})"
            self.tell("logged", logger=__name__, severity="error", words=words)

    def changed(self, change: Change) -> None:
        self.tell("connection", end=change.end, change=change.kind, words=str(change))

    def seen(self) -> tuple[dict[str, Any], Plan | None]:
        """What is known now: the state as a document, and the plan."""
        with self._lock:
            return plain(self._state.document()), self.plan

    def measured(self) -> str:
        with self._lock:
            return write_metrics(self._state)

    @property
    def ready(self) -> bool:
        with self._lock:
            return self._state.ready


def say_to(say: Callable[[str], None], role: str = "party") -> Reader:
    """A reader that says at the terminal of a party, dealer or coordinator what is for it."""

    def read(_: float, event: Event) -> None:
        if role in event.kind.told:
            for line in event.text.splitlines():
                say(line)

    return read


def write_to(stream: TextIO) -> Reader:
    """A reader that writes a line of JSON for each event: time, level, event, its words, its fields."""

    def read(at: float, event: Event) -> None:
        when = f"{_format_second(int(at))}.{int(1000 * (at % 1)):03}Z"
        line = {"time": when, "level": event.level, "event": event.name, "text": event.text, **event.fields}
        try:
            text = _ENCODER.encode(line)
        except ValueError:  # an infinite epsilon is a text
            text = _ENCODER.encode(plain(line))
        stream.write(text + "\n")
        stream.flush()

    return read


@functools.lru_cache(maxsize=4)
def _format_second(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}"


class LogForwarder(logging.Handler):
    """Passes what the package's loggers say to a watch, made safe."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the message of a logger that never sees rows; of any other its place, and the class of an error."""
        if record.name.startswith(_OPEN):
            words = record.getMessage()
        else:
            values = record.args if isinstance(record.args, tuple) else ()
            raised = [type(value).__name__ for value in values if isinstance(value, BaseException)]
            if record.exc_info and record.exc_info[0] is not None:
                raised.append(record.exc_info[0].__name__)
            what = f" ({', '.join(raised)})" if raised else ""
            words = f"a remark for the holder's eyes, at the terminal: {record.module}:{record.lineno}{what}"
        self._watch.tell("logged", logger=record.name, severity=record.levelname.lower(), words=words)
