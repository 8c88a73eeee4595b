"""Each party over secure columns is told how many of its own rows are null, and nothing on the wire depends on it."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from secure_fits import RECORDS, Watched, data, model
from sottovoce.federation.secure_columns.dealer import Dealer
from sottovoce.gate.outgoing import Outgoing
from sottovoce.transports.base import InProcess

NAMES, LABELS, NORMS = ("a", "b", "c"), "b", [0.5, 0.5**0.5, 0.5]
ANSWERING: contextvars.ContextVar[str] = contextvars.ContextVar("answering", default="coordinator")
NULL = {"a": (3, 4, 5), "b": (5, 9), "c": (1, 2, 3, 10, 11)}  # what each party lacks, record by record
UNLABELLED = (9, 20)  # one of them lacks its columns too


class Heard:
    """An end whose log is told from those of the others."""

    def __init__(self, end: Any) -> None:
        self.end, self.name = end, end.name

    def identify(self, identity: Any) -> None:
        """Pass it on."""
        self.end.identify(identity)

    def handle(self, request: bytes) -> Outgoing:
        """Pass it on, and say who is at work."""
        token = ANSWERING.set(self.name)
        try:
            answer: Outgoing = self.end.handle(request)
            return answer
        finally:
            ANSWERING.reset(token)


class Kept(logging.Handler):
    """What the holders' logger says, and to whom."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.told.append((ANSWERING.get(), record.getMessage()))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, logger = Kept(), logging.getLogger("sottovoce.holder")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def watched(*, lacking: bool, dealer: str | None = None) -> Watched:
    """What passes in a fit, where every party lacks some of its rows or none."""
    X, y = data()
    labels = y.astype(np.float64)
    parts = {"a": X[:, :1].copy(), "b": X[:, 1:3].copy(), "c": X[:, 3:].copy()}
    if lacking:
        for name, places in NULL.items():
            parts[name][list(places)] = np.nan
        labels[list(UNLABELLED)] = np.nan
    more = {} if dealer is None else {"dealer": Dealer(dealer)}
    federation = sv.Federation.by_columns(
        list(parts.values()), labels, products="secure", labels="held", label_party=1, names=NAMES, norms=NORMS, **more
    )
    wire: Any = federation.transport
    federation.transport = InProcess([Heard(end) for end in wire._endpoints.values()])
    found = Watched(federation)
    model("newton").fit(federation)
    return found


def sizes(found: Watched) -> list[Any]:
    """All that the wire shows without the keys: who is asked what, and how long each text and array is."""
    return [
        (
            name,
            *(
                (frame.kind, frame.round, frame.query, len(frame.text), sorted(_shapes(frame.arrays)))
                for frame in (said, reply)
            ),
        )
        for name, said, reply in found.passed
    ]


def _shapes(arrays: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, str(array.dtype), array.shape) for name, array in arrays.items()]


@pytest.mark.parametrize("dealer", [None, "notary"])
def test_each_party_is_told_of_its_own_null_rows_and_the_wire_of_none(kept: Kept, dealer: str | None) -> None:
    passed = watched(lacking=True, dealer=dealer)
    own = {name: set(places) | (set(UNLABELLED) if name == LABELS else set()) for name, places in NULL.items()}
    said = "rows cannot be used (not finite, or label not declared); they count as null rows"
    assert sorted(kept.told) == [(name, f"{len(own[name])} of {RECORDS} {said}") for name in NAMES]
    assert sizes(passed) == sizes(watched(lacking=False, dealer=dealer))
    assert len(kept.told) == len(NAMES)  # nobody is told anything where nothing is null


def test_a_count_that_is_sent_along_is_found() -> None:
    """Planted: one reply of the first party has a character more for each of its null rows."""
    found, none = watched(lacking=True), watched(lacking=False)
    place = next(place for place, (name, said, _) in enumerate(found.passed) if (name, said.kind) == ("a", "ask"))
    name, said, reply = found.passed[place]
    assert sizes(found) == sizes(none)
    found.passed[place] = name, said, replace(reply, text=reply.text + "." * len(NULL["a"]))
    assert sizes(found) != sizes(none)
