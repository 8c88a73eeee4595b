"""What happens as lines of JSON, and what the package's loggers say, without a value of the data.

What the loggers of a holder say is for the holder's eyes, at the terminal: it may count rows, and an error of another
library may quote a cell. Of it a log has the logger, the level, the place in the code and the class of the error.
"""

from __future__ import annotations

import functools
import json
import logging
from datetime import UTC, datetime
from typing import Final, TextIO

from sottovoce.app.model_file import plain
from sottovoce.app.view.events import Event, Logged, level_of
from sottovoce.app.view.watch import Reader, Watch

_OPEN: Final = ("sottovoce.transports.", "sottovoce.kernels")  # they speak of connections, and of compiling


_ENCODER: Final = json.JSONEncoder(allow_nan=False, check_circular=False)


def line_of(at: float, event: Event) -> str:
    """An event as a line: time, level, event, its words, its fields."""
    when = f"{_second(int(at))}.{int(1000 * (at % 1)):03}Z"
    said = {"time": when, "level": level_of(event), "event": event.name, "text": event.text, **event.fields()}
    try:
        return _ENCODER.encode(said) + "\n"
    except ValueError:  # an infinite epsilon is a text
        return _ENCODER.encode(plain(said)) + "\n"


@functools.lru_cache(maxsize=4)
def _second(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}"


def written_to(stream: TextIO) -> Reader:
    """A reader that writes a line for each event."""

    def reader(at: float, event: Event) -> None:
        stream.write(line_of(at, event))
        stream.flush()

    return reader


class Forwarded(logging.Handler):
    """Passes what the package's loggers say to a watch, made safe."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it, or that there was something to tell."""
        self._watch.tell(Logged(record.name, record.levelname.lower(), words_of(record)))


def words_of(record: logging.LogRecord) -> str:
    """The message of a logger that never sees rows; of any other where it is, and the class of an error."""
    if record.name.startswith(_OPEN):
        return record.getMessage()
    given = record.args if isinstance(record.args, tuple) else ()
    raised = [type(each).__name__ for each in given if isinstance(each, BaseException)]
    if record.exc_info and record.exc_info[0] is not None:
        raised.append(record.exc_info[0].__name__)
    what = f" ({', '.join(raised)})" if raised else ""
    return f"a remark for the holder's eyes, at the terminal: {record.module}:{record.lineno}{what}"
