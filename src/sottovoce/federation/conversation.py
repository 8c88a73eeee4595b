"""A coordinator's conversation with the ends of a transport: messages, their checked replies, and what they weighed."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sottovoce.federation import replies as checks
from sottovoce.federation.replies import Reply
from sottovoce.gate.frames import Frame, encode
from sottovoce.transports.base import Transport

Each = Mapping[str, Mapping[str, NDArray[Any]]]  # by party, arrays for it alone


@dataclass(frozen=True)
class Message:
    """One message as the coordinator saw it."""

    round: int
    sender: str
    name: str
    payload: Any


class Conversation:
    """Messages to parties and to a dealer, the end that deals and holds no data, and their checked replies."""

    def __init__(self, transport: Transport, dealer: str | None, *, record: bool) -> None:
        self._transport, self._dealer = transport, dealer
        self._parties = tuple(name for name in transport.parties if name != dealer)
        self._serial = secrets.randbits(62)
        self._origin = (0, 0)  # from where on bytes are counted
        self.uplink: Counter[str] = Counter()  # bytes of the answers by query
        self.helped = (0, 0)  # bytes from a dealer, and to it
        self.transcript: list[Message] | None = [] if record else None

    def exchange(self, parties: Iterable[str], message: Frame, each: Each | None = None) -> dict[str, Reply]:
        """One frame to each party, with arrays of its own in `each`, and its checked reply."""
        self._serial += 1

        def frame_of(own: Mapping[str, NDArray[Any]]) -> bytes:
            return encode(dataclasses.replace(message, serial=self._serial, arrays={**message.arrays, **own}))

        if each:
            requests = {name: frame_of(each.get(name, {})) for name in parties}
        else:
            requests = dict.fromkeys(parties, frame_of({}))
        replies: dict[str, Reply] = {}
        for name, data in self._transport.exchange(requests).items():
            if name == self._dealer:
                self.helped = self.helped[0] + len(data), self.helped[1] + len(requests[name])
            elif message.kind in ("ask", "secure"):
                self.uplink[message.query or "columns"] += len(data)
            reply = replies[name] = checks.checked(name, message, data, alone=len(self._parties) == 1)
            if self.transcript is not None and reply.facts:
                self.transcript.append(Message(message.round, name, reply.frame.kind, reply.facts))
        return replies

    def count_anew(self) -> None:
        """Count the bytes of a fit from here on."""
        self._origin = (0, 0)
        self._origin = self.counted

    @property
    def counted(self) -> tuple[int, int]:
        """Bytes from the parties, and to them, of the whole fit; a dealer's are not of theirs."""
        wire = self._transport.communication
        up, down = wire.uplink_bytes - self.helped[0], wire.downlink_bytes - self.helped[1]
        return up - self._origin[0], down - self._origin[1]

    @property
    def counts(self) -> dict[str, Any]:
        return {"uplink": dict(self.uplink), "helped": self.helped, "bytes": self.counted}

    def restore_counts(self, stored: Mapping[str, Any]) -> None:
        """Count what was sent up to the last stored answer as an unbroken run would, and what followed it once."""
        self.uplink, self.helped = Counter(stored["uplink"]), tuple(stored["helped"])
        self.count_anew()
        up, down = stored["bytes"]
        self._origin = self._origin[0] - up, self._origin[1] - down
