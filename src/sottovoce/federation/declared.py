"""Parties of which only public facts are known: a plan can be made for them, and nothing be run."""

from __future__ import annotations

from sottovoce.gate.frames import decode
from sottovoce.gate.outgoing import Outgoing, declare_public, reply
from sottovoce.secure.pair_keys import RunKey
from sottovoce.transports.identity import Identity


class Declared:
    """An endpoint without rows, in the place of a party that nobody asks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def identify(self, identity: Identity) -> None:
        """It signs nothing."""

    def handle(self, request: bytes) -> Outgoing:
        """A key that nobody has; there is nothing else to ask it for."""
        key = declare_public("public_key", RunKey().public, reason="a stand-in, nobody was asked")
        return reply("facts", decode(request), (key,))
