"""A run that goes on after its coordinator was stopped: it answers from the journal first."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.algorithms import Ask
from sottovoce.errors import RefusedError
from sottovoce.federation.conversation import Each
from sottovoce.federation.journal import Journal, Stored
from sottovoce.federation.rounds import Answers, Array, Queries
from sottovoce.plan.aggregation import signers
from sottovoce.plan.plan import Plan

if TYPE_CHECKING:
    from sottovoce.federation.coordinator import Coordinator


class Resumed:
    """The answers of a run: first those that an interrupted run stored, then new ones, each stored before it is used.

    Before the first new question every party has charged the plan, now or earlier.
    """

    def __init__(self, coordinator: Coordinator, plan: Plan, answers: Answers) -> None:
        self._coordinator, self._plan, self._answers = coordinator, plan, answers
        self._journal: Journal = coordinator.journal
        self._stored: Stored = self._journal.of(plan)
        self._is_open = False
        self._counts: Mapping[str, Any] | None = None  # with the last stored answer that was used

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        if self._stored.rounds:
            entry = self._stored.rounds.popleft()
            if (entry.said["round"], entry.said["query"]) != (number, ask.query):
                raise self._journal.unusable("its answers are to other questions than this version asks")
            self._coordinator.begun.add(self._plan.digest)
            self._counts = entry.said
            self._answers.recall(number, ask, queries)
            return {name: np.array(entry.arrays[str(place)]) for place, name in enumerate(entry.said["names"])}
        if not self._is_open:
            self._open()
        values = self._answers.values(number, ask, queries)
        said = {"round": number, "query": ask.query, "names": list(values), **self._coordinator.counts}
        arrays = {str(place): value for place, value in enumerate(values.values())}
        self._journal.note("round", self._plan, said, arrays, sync=True)
        return values

    def finish(self, shared: Each) -> None:
        """Tell the parties that the run is over, once it is stored that all is answered."""
        run = self._coordinator
        self._restore_counts()
        if (ended := self._stored.ended) is not None:
            run.restore(ended)
            run.missing = dict(ended["missing"])
            run.restore_counts(ended)
            return
        if not self._is_open and self._stored.opened is not None:
            run.restore(self._stored.opened)
        self._journal.note("solved", self._plan, {}, sync=True)
        run.missing = run.end(self._plan, shared)
        self._journal.note("ended", self._plan, {"missing": run.missing, **run.state, **run.counts}, sync=True)

    def _open(self) -> None:
        run, plan, opened = self._coordinator, self._plan, self._stored.opened
        if opened is None:
            run.charge(plan)
            if run.remote:  # in one process all ends are new after an interruption
                if (own := run.dealer_keys(plan)) is not None:
                    self._journal.keep_keys(plan, own.state)
                self._journal.note("opened", plan, run.state, sync=False)
        else:
            run.restore(opened)
            if (own := run.dealer_keys(plan)) is not None:
                own.restore(self._journal.keys_of(plan, "pairs"))
            with contextlib.suppress(RefusedError):  # one that refuses says so when it is asked
                run.start(plan, run.there(signers(plan)))  # who accepted it again may not have been told to start
        self._restore_counts()
        self._is_open = True

    def _restore_counts(self) -> None:
        if self._counts is not None:
            self._coordinator.restore_counts(self._counts)
            self._counts = None
