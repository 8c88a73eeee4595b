"""The coordinator runs an algorithm's text over a transport. It sees released values and public facts, nothing else."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Algorithm, Ask, Solution
from sottovoce.errors import BudgetError, LedgerError, RefusedError, WireError
from sottovoce.privacy.gate import value_of
from sottovoce.protocol.messages import Frame, decode, encode
from sottovoce.protocol.party import facts_of
from sottovoce.protocol.plan import Plan
from sottovoce.transports.base import Transport

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

_REFUSALS: Mapping[str, type[Exception]] = {"budget": BudgetError, "ledger": LedgerError}


@dataclass(frozen=True)
class Message:
    """One message as the coordinator saw it."""

    round: int
    sender: str
    name: str
    payload: Any


class Coordinator:
    """One conversation with the parties of a transport."""

    def __init__(self, transport: Transport, *, record: bool = False) -> None:
        self._transport = transport
        self._serial = secrets.randbits(62)
        self.asked: Counter[str] = Counter()  # rounds by query
        self.uplink: Counter[str] = Counter()  # bytes of the answers by query
        self.transcript: list[Message] | None = [] if record else None

    def facts(self, *, classes: bool) -> dict[str, dict[str, Any]]:
        """What each party declares public: records, features, names and, if asked for, its class labels."""
        replies = self._exchange("hello", self._transport.parties, query="classes" if classes else "")
        return {name: facts_of(frame.text) for name, frame in replies.items()}

    def run(self, plan: Plan, algorithm: Algorithm, progress: Progress | None = None) -> tuple[Solution, int]:
        """(solution, rounds) of the algorithm under the plan. Every party has charged the plan before round 0."""
        parties = tuple(name for name, _ in plan.parties)
        if len(parties) > 1:
            self._propose(plan, parties, "check")  # one refusal, and nobody has paid
        self._propose(plan, parties)
        text = algorithm.coordinate(plan)
        total = sum(count for _, count in algorithm.conversation(plan)) if progress is not None and plan.private else 0
        round_ = 0
        ask = next(text)
        try:
            while True:
                number = round_ if ask.round is None else ask.round
                values = self._ask(plan, number, ask, ask.to or parties)
                self.asked[ask.query] += 1
                round_ += 1
                if progress is not None:
                    progress(round_, total)
                ask = text.send(values)
        except StopIteration as stop:
            found = stop.value
        with contextlib.suppress(WireError):  # the result is here; a party lost now has nothing left to say
            self._exchange("done", parties, plan=plan.digest)
        return (found if isinstance(found, Solution) else Solution(found)), round_

    def _propose(self, plan: Plan, parties: Iterable[str], query: str = "") -> None:
        self._exchange("plan", parties, plan=plan.digest, query=query, text=plan.to_json())

    def _ask(self, plan: Plan, round_: int, ask: Ask, parties: Iterable[str]) -> dict[str, Array]:
        said: dict[str, Any] = {"plan": plan.digest, "round_": round_, "query": ask.query}
        said |= {"arrays": ask.arrays, "each": ask.each}
        replies = self._exchange("ask", parties, **said)
        forgot = [name for name, frame in replies.items() if frame.kind == "unknown-plan"]
        if forgot:  # restarted parties: propose again (charged once, by the plan's digest), then repeat the round
            self._propose(plan, forgot)
            replies |= self._exchange("ask", forgot, **said)
        values: dict[str, Array] = {}
        unit = plan.release(ask.query).unit
        for name in parties:
            frame = replies[name]
            if frame.kind != "answer" or frame.round != round_ or frame.query != ask.query:
                raise WireError(f"party {name!r} answered round {round_} with a frame of another round or kind.")
            try:
                values[name] = value_of(frame.arrays, unit)
            except KeyError:
                raise WireError(f"party {name!r} answered round {round_} without a value.") from None
            if self.transcript is not None:
                self.transcript.append(Message(round_, name, ask.query, values[name]))
        return values

    def _exchange(
        self,
        kind: str,
        parties: Iterable[str],
        *,
        plan: bytes = b"",
        round_: int = 0,
        query: str = "",
        arrays: Mapping[str, NDArray[Any]] | None = None,
        each: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
        text: str = "",
    ) -> dict[str, Frame]:
        """One frame to each party and its reply; refusals and errors become exceptions."""
        self._serial += 1

        def frame_of(own: Mapping[str, NDArray[Any]]) -> bytes:
            return encode(Frame(kind, self._serial, plan, round_, query, {**(arrays or {}), **own}, text))

        if each:
            requests = {name: frame_of(each.get(name, {})) for name in parties}
        else:
            requests = dict.fromkeys(parties, frame_of({}))
        replies = self._transport.exchange(requests)
        frames: dict[str, Frame] = {}
        for name, reply in replies.items():
            if kind == "ask":
                self.uplink[query] += len(reply)
            try:
                frame = frames[name] = decode(reply)
            except WireError as error:
                raise WireError(f"party {name!r} sent no frame: {error}") from None
            if self.transcript is not None and frame.text:
                self.transcript.append(Message(round_, name, frame.kind, json.loads(frame.text)))
            if frame.kind == "refuse":
                said = facts_of(frame.text)
                several = len(self._transport.parties) > 1 and not said["refused"].startswith(name)
                who = f"{name}: " if several else ""
                raise _REFUSALS.get(said["error"], RefusedError)(who + said["refused"])
            if frame.kind == "error":
                raise WireError(f"party {name!r}: {facts_of(frame.text)['error']}.")
        return frames
