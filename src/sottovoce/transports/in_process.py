"""The wire inside one process: the endpoints are called directly, with the bytes a remote one would get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from sottovoce.errors import InputError, WireError
from sottovoce.gate.frames import MAX_BYTES, peek
from sottovoce.transports.base import Communication, Endpoint, answer_request, check_requests
from sottovoce.transports.identity import local_identities


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
