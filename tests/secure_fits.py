"""Small fits over secure columns and rows, and wires that watch what passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.gate.frames import Frame, decode
from sottovoce.gate.outgoing import Outgoing
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess

RECORDS, NOTARY = 60, "notary"


def data(seed: int = 0) -> tuple[Any, Any]:
    """Rows of norm 1 and labels."""
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((RECORDS, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.where(X @ [3.0, -2.0, 1.0, 0.0] > 0, 1, -1)


def by_columns(**more: Any) -> sv.Federation:
    """Three parties with secure products."""
    X, y = data()
    norms = np.sqrt([0.25, 0.5, 0.25]).tolist()
    given = {"products": "secure", "labels": "held", "label_party": 1, "names": ["a", "b", "c"], "norms": norms, **more}
    return sv.Federation.by_columns([X[:, :1], X[:, 1:3], X[:, 3:]], y, **given)


def by_rows(**more: Any) -> sv.Federation:
    """Three parties with secure sums."""
    X, y = data()
    parts = [(X[part::3], y[part::3]) for part in range(3)]
    return sv.Federation.by_rows(parts, sums="secure", names=["a", "b", "c"], **more)


def model(solver: str = "newton", rounds: int = 2, **more: Any) -> sv.PrivateLogisticRegression:
    """Of a few rounds."""
    by = solver if solver == "auto" else by_name(solver, rounds=rounds)
    return sv.PrivateLogisticRegression(**{"epsilon": 5.0, "row_norm": 1.0, "classes": (-1, 1), "solver": by, **more})


class Watched:
    """A wire that keeps what passes to each end and back."""

    def __init__(self, federation: sv.Federation) -> None:
        self._wire: Any = federation.transport
        self.parties, self.connected = self._wire.parties, self._wire.connected
        self.communication = self._wire.communication
        self.passed: list[tuple[str, Frame, Frame]] = []
        self.longest = 0  # of what is said in rounds: keys have lengths of their own
        federation.transport = self  # type: ignore[assignment]

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        """Pass them on."""
        replies: dict[str, bytes] = self._wire.exchange(messages)
        for name, message in messages.items():
            self.passed.append((name, decode(message), decode(replies[name])))
            if self.passed[-1][1].kind in ("secure", "ask"):
                self.longest = max(self.longest, len(message), len(replies[name]))
        return replies

    def close(self) -> None:
        """Pass it on."""
        self._wire.close()

    def of(self, name: str, kind: str) -> list[tuple[Frame, Frame]]:
        """Requests of a kind to an end, with their replies."""
        return [(said, reply) for end, said, reply in self.passed if end == name and said.kind == kind]


class Twice:
    """An end that gets every request twice, as after a cut connection, and has to say the same."""

    def __init__(self, end: Any) -> None:
        self.end, self.name, self.repeated, self.again = end, end.name, 0, True

    def identify(self, identity: Any) -> None:
        """Pass it on."""
        self.end.identify(identity)

    def handle(self, request: bytes) -> Outgoing:
        """The second answer, which is the first for all that is secure."""
        first = self.end.handle(request)
        second = self.end.handle(request) if self.again else first
        if decode(request).kind in ("secure", "ask"):
            assert first.data == second.data
            self.repeated += 1
        answer: Outgoing = second
        return answer


def doubled(federation: sv.Federation) -> list[Twice]:
    """The same federation with every message repeated."""
    wire: Any = federation.transport
    ends = [Twice(end) for end in wire._endpoints.values()]
    federation.transport = InProcess(ends)
    return ends
