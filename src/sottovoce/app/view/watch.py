"""Who is told what happens: the state, and readers such as a terminal and a log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sottovoce import __version__
from sottovoce.app.model_file import plain
from sottovoce.app.view.events import Connection, Event, Expected, Logged, Started
from sottovoce.app.view.state import State
from sottovoce.plan.plan import Plan
from sottovoce.transports.base import Change

Reader = Callable[[float, Event], None]


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
        self._plan: Plan | None = None
        self.role = role
        self.meets_at = meets_at  # the address at which the parties find the coordinator
        self.data_here = role != "coordinator" if data_here is None else data_here
        self._started = Started(role, end, __version__)
        self.tell(self._started)

    def add(self, reader: Reader) -> None:
        """Tell this one too, from now on, and that it started."""
        with self._lock:
            reader(self._state.started, self._started)
            self._readers.append(reader)

    def tell(self, event: Event) -> None:
        """Something happened."""
        with self._lock:
            now = float(int(self._clock())) if self.data_here else self._clock()
            self._state.take(now, event)
            for reader in tuple(self._readers):
                try:
                    reader(now, event)
                except Exception:  # a full disk, a closed terminal
                    self._readers.remove(reader)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Whatever goes wrong inside, the run goes on; the log has the class of it."""
        try:
            yield
        except Exception as error:
            self.tell(Logged(__name__, "error", f"what was to be told could not be ({type(error).__name__})"))

    def expect(self, *ends: str) -> None:
        """These are waited for."""
        self.tell(Expected(ends))

    def changed(self, change: Change) -> None:
        """A wire told of a connection."""
        self.tell(Connection(change.end, change.kind, str(change)))

    def shows(self, plan: Plan) -> None:
        """The plan that the page puts into words: public, as all plans are."""
        self._plan = plan

    def seen(self) -> tuple[dict[str, Any], Plan | None]:
        """What is known now: the state as a document, and the plan."""
        with self._lock:
            return plain(self._state.document()), self._plan

    def measured(self, of: Callable[[State], str]) -> str:
        """A text of the state, made while nothing changes it."""
        with self._lock:
            return of(self._state)

    @property
    def ready(self) -> bool:
        """Whether every end that is waited for is connected."""
        with self._lock:
            return self._state.ready
