"""A wire that fails: a proxy between an end and the coordinator, which passes bytes on until it is told not to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Final

CUTS: Final = ("reset", "close", "half", "hole", "delay", "refuse")


class _Connection:
    """Two sockets and a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.flowing = threading.Event()  # cleared: bytes wait
        self.flowing.set()
        self.swallowed = False  # bytes are read and never arrive
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.flowing.wait()
                if not self.swallowed:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)
            return
        self.reset()

    def reset(self) -> None:
        """Both ends get a reset."""
        self.flowing.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()

    def close(self) -> None:
        """Both ends get an orderly end."""
        self.flowing.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Listens at a port of its own and connects on to the coordinator's."""

    def __init__(self, coordinator: int) -> None:
        self._coordinator = coordinator
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        self._refuses = 0.0  # until when
        self._lock, self._connections = threading.Lock(), list[_Connection]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    if time.monotonic() < self._refuses:
                        raise ConnectionRefusedError
                    server = socket.create_connection(("localhost", self._coordinator), timeout=5.0)
                    server.settimeout(None)
                except OSError:
                    client.close()
                    continue
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._connections.append(_Connection(client, server))

    def cut(self, how: str, seconds: float) -> None:
        """Fail in one of the ways `CUTS`; what does not end at once is over after so many seconds."""
        with self._lock:
            found = list(self._connections)
        if how == "refuse":
            self._refuses = time.monotonic() + seconds
        for connection in found:
            if how in ("reset", "refuse"):
                connection.reset()
            elif how == "close":
                connection.close()
            elif how == "half":
                with contextlib.suppress(OSError):
                    connection.server.shutdown(socket.SHUT_WR)
            elif how == "hole":
                connection.swallowed = True
            else:
                connection.flowing.clear()
        if how in ("half", "hole", "delay"):
            threading.Thread(target=self._over, args=(found, how, seconds), daemon=True).start()

    @staticmethod
    def _over(found: list[_Connection], how: str, seconds: float) -> None:
        time.sleep(seconds)
        for connection in found:
            if how == "delay":
                connection.flowing.set()
            else:
                connection.reset()

    def close(self) -> None:
        """End it with all its connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                connection.reset()
