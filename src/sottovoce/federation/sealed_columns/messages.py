"""The words that all sides of the protocol share: stages, pieces of the records, what is dealt for a query."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.door.query import Query, Told
from sottovoce.errors import RefusedError, WireError
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointSum
from sottovoce.sealed.pads import GRAM, OWN, WHOLE, Asked, Piece, round_pieces
from sottovoce.sealed.sums import Call

Wholes = NDArray[np.int64]

WHITENED: Final = "whitened"
LOOKUP: Final = "lookup"
DEALT_WORDS: Final = "dealt"
_TRANSCRIPT: Final = "transcript"


class Stage(NamedTuple):
    """What a message of the protocol asks for, and of which records."""

    name: str
    piece: Piece = WHOLE
    said: tuple[str, ...] = ()  # the arrays that everybody was told

    @property
    def text(self) -> str:
        """As a message carries it."""
        return json.dumps({"stage": self.name, "piece": self.piece, "said": self.said})

    @classmethod
    def read(cls, text: str) -> Stage:
        """The stage of a message, or a refusal."""
        try:
            found = json.loads(text)
            name, (start, stop), said = found["stage"], found["piece"], tuple(found["said"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RefusedError("a sealed message says its stage and which records it is about.") from None
        if not (type(start) is int and type(stop) is int and all(type(one) is str for one in (name, *said))):
            raise RefusedError("a sealed message says its stage and which records it is about.")
        return cls(name, (start, stop), said)


def widths_of(plan: Problem) -> dict[str, int]:
    """How many columns of a prepared row each party has; the constant is with the labels."""
    return {name: plan.part(name).stop - plan.part(name).start + plan.part(name).constant for name in plan.names}


def pieces_of(plan: Plan, query: JointSum, told: Told) -> tuple[Piece, ...]:
    """The cuts of the records in a look-up: a public rule."""
    return round_pieces(plan.records, len(plan.names), int(query.lookup(plan, told).nodes.size))


def check_piece(piece: Piece, due: tuple[Piece, ...]) -> None:
    """Refuse records that are not those of the public rule, or not the next: none may count twice in a sum."""
    if piece not in due:
        raise RefusedError(f"piece={list(piece)} is not of the records whose turn it is.")


def dealt_for(query: Query) -> str:
    """What is dealt for a sum of the query, as a stage names it."""
    if isinstance(query, GramMatrix):
        return GRAM
    return LOOKUP if isinstance(query, JointSum) else OWN


def asked_after(call: Call, told: Told, asked: Asked) -> tuple[Call, Told]:
    """A sum's call and numbers, to make its label of: with the hash of all that was told before.

    What a party has of a sum follows from that too, whitened columns for instance.
    """
    words = np.frombuffer(bytes.fromhex(asked.said), dtype=np.uint8)
    return call._replace(said=(*call.said, _TRANSCRIPT)), {**told, _TRANSCRIPT: words}


class LostError(WireError):
    """A run over sealed columns in which a party or the helper was stopped: nothing brings it back."""


def lost(who: str) -> LostError:
    """What a run ends with in which somebody was stopped."""
    return LostError(
        f"{who!r} was stopped in the middle of a run over sealed columns, which is lost; what was charged stays "
        "charged. Start a new fit (of a job: sottovoce fit --restart)."
    )
