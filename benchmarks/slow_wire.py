"""A slow network on one machine: connections to a port are passed on late, and all through one link.

Each direction has so many bytes a second for all ends together, as the access of one coordinator has, and every byte
arrives some time after it has left. What passes is counted by end, as TCP carries it: frames, gRPC and TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NamedTuple

CHUNK = 2**16
BUFFER = 0.05  # seconds of traffic that wait at the link; who sends more waits too


class Network(NamedTuple):
    """Seconds from one end to the other, and bytes a second (0: no limit)."""

    latency: float = 0.05
    rate: float = 100e6 / 8


@dataclass
class Link:
    """One direction of the network."""

    network: Network
    passed: dict[str, int] = field(default_factory=dict)
    _free: float = 0.0

    async def carry(self, name: str, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """All that comes from one end, in its order, each piece when it is due."""
        flying: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        landing = asyncio.create_task(self._land(flying, target))
        with contextlib.suppress(ConnectionError):
            while data := await source.read(CHUNK):
                flying.put_nowait((self._due(name, len(data)), data))
                await asyncio.sleep(self._free - BUFFER - asyncio.get_running_loop().time())
        flying.put_nowait((0.0, b""))
        await landing

    def _due(self, name: str, count: int) -> float:
        """When bytes arrive that come to the link now."""
        self.passed[name] = self.passed.get(name, 0) + count
        spent = count / self.network.rate if self.network.rate else 0.0
        self._free = max(self._free, asyncio.get_running_loop().time()) + spent
        return self._free + self.network.latency

    @staticmethod
    async def _land(flying: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, data = await flying.get()
                if not data:
                    break
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                target.write(data)
                await target.drain()
        target.close()


async def _serve(names: Sequence[str], port: int, network: Network, said: Connection) -> None:
    up, down = Link(network), Link(network)

    async def listen(name: str) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("localhost", port)
            await asyncio.gather(up.carry(name, reader, back), down.carry(name, there, writer))

        server = await asyncio.start_server(accept, "localhost", 0)
        return int(server.sockets[0].getsockname()[1])

    said.send({name: await listen(name) for name in names})
    await asyncio.to_thread(said.recv)
    said.send((up.passed, down.passed))


def _process(names: Sequence[str], port: int, network: Network, said: Connection) -> None:
    asyncio.run(_serve(names, port, network, said))


class SlowWire:
    """A process that passes on what the ends send to a port of this machine and get from there."""

    def __init__(self, names: Sequence[str], port: int, network: Network) -> None:
        context = multiprocessing.get_context("spawn")
        self._asked, said = context.Pipe()
        self._process = context.Process(target=_process, args=(names, port, network, said), daemon=True)
        self._process.start()
        self.ports: dict[str, int] = self._asked.recv()  # where each end finds the other side

    def count(self) -> tuple[dict[str, int], dict[str, int]]:
        """End it: bytes that came from each end, and that went to each."""
        self._asked.send(None)
        passed: tuple[dict[str, int], dict[str, int]] = self._asked.recv()
        self._process.terminate()
        self._process.join()
        return passed
