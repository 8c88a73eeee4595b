"""What a wire is: it moves frames as bytes between the coordinator and the parties, and nothing else.

A wire looks at a frame's header only (kind and serial). What leaves a party is an `Outgoing`, made by the
party's gate; a wire takes nothing else from an endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Final, Protocol, Self

from sottovoce.errors import InputError, LeakError, WireError
from sottovoce.gate.frames import MAX_BYTES, other_version, peek
from sottovoce.gate.outgoing import Outgoing
from sottovoce.transports.certificates import check_name
from sottovoce.transports.identity import Identity, local_identities

MOST_NAMED: Final = 20  # parties that a text for people names
# Said in the place of an answer to a frame of another version: no frame, so that every version understands it.
_REFUSED: Final = b"refused: "
_LONGEST_REFUSAL: Final = 400  # bytes


class Change(str):
    """What became of a connection: words for people, with the kind of change and the end that it is about.

    Kinds: connected, back, lost, left, turned-away and, at a party, absent (there is no coordinator).
    """

    kind: str
    end: str

    def __new__(cls, kind: str, end: str, words: str) -> Self:
        """The words, and what they are about."""
        made = super().__new__(cls, words)
        made.kind, made.end = kind, end
        return made


@dataclass
class Communication:
    """What was said: bytes of frames to the coordinator, bytes of frames from it, and rounds.

    A wire counts a request when it is asked to send it and a reply when it is delivered, each once: a
    repeat after a lost connection is not counted. The caller counts rounds, which a wire cannot see, and in `uplink`
    the bytes of the parties' answers by what they are: indices and features, say.
    """

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    rounds: int = 0
    uplink: dict[str, int] = field(default_factory=dict)


class Endpoint(Protocol):
    """The party side of any wire.

    A wire repeats a request whose answer may have been lost. Answering a repeat with the stored bytes, and
    not with a second draw of noise, is the endpoint's duty: it stores a release before it returns it.
    """

    @property
    def name(self) -> str:
        """The party's name, as on the coordinator's list."""

    def identify(self, identity: Identity) -> None:
        """Told by the wire before the first request: how this party signs, and how it knows the others."""

    def handle(self, request: bytes) -> Outgoing:
        """Answer one request."""


class Transport(Protocol):
    """The coordinator side of any wire."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that can be spoken to."""

    @property
    def connected(self) -> tuple[str, ...]:
        """Those of them who are there now: an exchange with others may wait for them."""

    @property
    def communication(self) -> Communication:
        """What was said so far."""

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send one request to each named party and wait for one reply from each.

        Every request to a party must carry a serial that it has not seen: a reply is the answer to the
        request with its serial, and a reply with any other serial is never delivered. A `WireError` of parties that
        did not answer names them (`WireError.parties`); all others were asked.
        """

    def close(self) -> None:
        """End the connection; a second call does nothing."""


def answer_request(endpoint: Endpoint, request: bytes, limit: int) -> bytes:
    """The endpoint's answer as bytes that may be sent.

    Guarantee: the bytes were made by the gate. Anything else, of whatever type, raises `LeakError` (which
    names the type alone) and nothing is sent.
    """
    outgoing: object = endpoint.handle(request)
    # a subclass could skip the check that Outgoing makes
    if type(outgoing) is not Outgoing:
        raise LeakError(
            f"party {endpoint.name!r} tried to send {type(outgoing).__name__}; a wire takes only Outgoing,"
            " which sottovoce.gate.outgoing.reply makes from released and declared values."
        )
    if len(outgoing.data) > limit:
        raise WireError(
            f"the answer of party {endpoint.name!r} is too large: {len(outgoing.data)} bytes;"
            f" at most {limit} are allowed."
        )
    return outgoing.data


def refuse_version(request: bytes) -> bytes | None:
    """What a party says to a frame of another version; None if it is none."""
    why = other_version(request)
    return None if why is None else _REFUSED + why.encode()


def read_refusal(reply: bytes) -> str | None:
    """Why a party refuses the version of what it was asked; None of all other replies."""
    if not reply.startswith(_REFUSED):
        return None
    said = reply[len(_REFUSED) : _LONGEST_REFUSAL].decode(errors="replace")
    return "".join(letter for letter in said if letter.isprintable())


def refusal_error(party: str, why: str) -> WireError:
    """What the coordinator ends with; nobody is named as missing, since nothing goes on without that party."""
    return WireError(f"{quoted([party])} has another version of sottovoce, and says: {why}")


def check_wire(parties: tuple[str, ...], timeout: float) -> None:
    """Refuse a list of parties or a time to wait that no wire between processes can have."""
    for name in parties:
        check_name(name)
    if not parties or len(set(parties)) < len(parties):
        raise InputError(f"parties={parties!r}: name at least one party, and each of them once.")
    if not timeout > 0:
        raise InputError(f"timeout={timeout} is not allowed: it is a positive number of seconds.")


def check_requests(parties: tuple[str, ...], messages: Mapping[str, bytes], limit: int) -> dict[str, int]:
    """The serial of each request, once all are known to be frames of allowed size for known parties."""
    known = frozenset(parties)
    for name, message in messages.items():
        if name not in known:
            raise InputError(f"party {name!r} is not on this wire; its parties are {', '.join(parties)}.")
        if len(message) > limit:
            raise WireError(
                f"the request to party {name!r} is too large: {len(message)} bytes; at most {limit} are allowed."
            )
    return dict(zip(messages, map(itemgetter(1), map(peek, messages.values())), strict=True))


def quoted(names: Iterable[str]) -> str:
    """Parties by name, as an error names them."""
    said = [repr(name) for name in names]
    return ("party " if len(said) == 1 else "parties ") + list_names(said)


def list_names(names: Sequence[str]) -> str:
    """Names in a row; of many the first few, and how many more."""
    more = len(names) - MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMED])} and {more} more"


class InProcess:
    """A transport whose parties are objects of this process, asked one after the other.

    Guarantee: what the coordinator sees is what it would see over a network, byte for byte. An error that an
    endpoint raises reaches the caller as it is: there is one process, hence one trust boundary. One that raises a
    `ConnectionError` is gone, as over a network: the others are asked, and then a `WireError` names it.
    """

    def __init__(self, endpoints: Iterable[Endpoint], *, limit: int = MAX_BYTES) -> None:
        endpoints = tuple(endpoints)
        self.parties = tuple(map(attrgetter("name"), endpoints))
        if len(set(self.parties)) < len(self.parties):
            raise InputError(f"endpoints={', '.join(self.parties)}: two parties share a name; give each its own.")
        self.connected = self.parties
        self.communication = Communication()
        self._endpoints = dict(zip(self.parties, endpoints, strict=True))
        for name, identity in local_identities(self.parties).items():
            self._endpoints[name].identify(identity)
        self._limit = limit
        self._closed = False

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        if self._closed:
            raise WireError("the wire is closed; open a new one.")
        serials = check_requests(self.parties, messages, self._limit)
        replies, gone = dict[str, bytes](), list[str]()
        for name, message in messages.items():
            self.communication.downlink_bytes += len(message)
            try:
                reply = answer_request(self._endpoints[name], message, self._limit)
            except ConnectionError:
                gone.append(name)
                continue
            if peek(reply)[1] != serials[name]:
                raise WireError(f"party {name!r} sent the answer to another request, which was dropped.")
            self.communication.uplink_bytes += len(reply)
            replies[name] = reply
        if gone:
            raise WireError(f"no answer of {', '.join(map(repr, gone))}: not connected.", gone)
        return replies

    def close(self) -> None:
        self._closed = True
