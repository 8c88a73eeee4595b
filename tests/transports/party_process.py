"""A party for the wire tests: its endpoint does what the query of a request names."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import GATE, Outgoing, declare_public, reply
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.identity import Identity

SECRET = "170.25"


class Smuggled(Outgoing):
    """A subclass that never asked for the secure."""

    __slots__ = ()

    def __new__(cls, data: bytes) -> Smuggled:
        made: Smuggled = object.__new__(cls)
        object.__setattr__(made, "data", data)
        return made

    def __init__(self, data: bytes) -> None:
        pass


class ScriptedEndpoint:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.echoes = 0

    def identify(self, identity: Identity) -> None:
        self.identity = identity

    def handle(self, request: bytes) -> Outgoing:
        frame = decode(request)
        match frame.query:
            case "echo":
                self.echoes += 1
                return self.echo(frame, frame.serial)
            case "stale":
                return self.echo(frame, frame.serial - 1)
            case "once":
                marker = self.folder / f"{self.name}-{frame.serial}"
                if not marker.exists():
                    marker.touch()
                    time.sleep(600)
                return self.echo(frame, frame.serial)
            case "sleep":
                time.sleep(600)
            case "raise":
                raise ValueError(f"height {SECRET}")
            case "leak-bytes":
                return encode(Frame("answer", frame.serial, text=SECRET))  # type: ignore[return-value]
            case "leak-array":
                return np.array([float(SECRET)])  # type: ignore[return-value]
            case "leak-nothing":
                return None  # type: ignore[return-value]
            case "leak-subclass":
                return Smuggled(encode(Frame("answer", frame.serial, text=SECRET)))
        return reply("facts", frame, (declare_public("records", self.echoes, reason="a count made for a test"),))

    @staticmethod
    def echo(frame: Frame, serial: int) -> Outgoing:
        # The wire is under test here, not the gate: the gate's key is taken so that any bytes can be sent.
        kind = "done" if frame.kind == "done" else "answer"
        answer = Frame(kind, serial, frame.plan, frame.round, frame.query, frame.arrays, frame.text)
        return Outgoing(encode(answer), made_by=GATE)


def main(certificates: str, name: str, address: str, folder: str, limit: str) -> None:
    endpoint = ScriptedEndpoint(name, Path(folder))
    serve_party(endpoint, address, Credentials.load(certificates, name), limit=int(limit))


if __name__ == "__main__":
    main(*sys.argv[1:])
