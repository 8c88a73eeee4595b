"""The way out of a site: straight, or by an HTTP proxy (CONNECT) that the environment names.

One decision for all connections to an address: the look who is there and gRPC's own connection go the same way.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import re
import socket
import time
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from sottovoce.errors import InputError, WireError

_VARIABLES: Final = ("grpc_proxy", "https_proxy", "HTTPS_PROXY")  # the first that is set
_STRAIGHT: Final = ("no_grpc_proxy", "no_proxy", "NO_PROXY")  # all that are set
_HERE: Final = "localhost,127.0.0.0/8,::1"  # no proxy has to do with this machine itself
_REMEDY: Final = "If no proxy is meant, name the coordinator's host in no_proxy."
_LONGEST_ANSWER: Final = 2**14  # bytes
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([ -~]{0,60}))?")


@dataclass(frozen=True)
class Proxy:
    """A proxy, and the variable that names it. A password is in no text."""

    variable: str
    host: str
    port: int
    uri: str = field(repr=False)

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port} ({self.variable})"

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """A connection to a machine by the proxy; a `WireError` says why there is none."""
        until = time.monotonic() + seconds
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        user, at, _ = urlsplit(self.uri).netloc.rpartition("@")
        password = f"Proxy-Authorization: Basic {base64.b64encode(unquote(user).encode()).decode()}\r\n" if at else ""
        try:
            plain = socket.create_connection((self.host, self.port), timeout=seconds)
        except OSError as error:
            why = error.strerror or error
            raise WireError(f"{self} does not answer ({why}), on the way to {target}. {_REMEDY}") from None
        with contextlib.ExitStack() as failing:
            failing.enter_context(plain)
            try:
                plain.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{password}\r\n".encode())
                said = b""
                while b"\r\n\r\n" not in said and len(said) < _LONGEST_ANSWER:
                    plain.settimeout(max(0.01, until - time.monotonic()))
                    received = plain.recv(1)  # no byte of what comes behind it
                    if not received or time.monotonic() > until:
                        raise TimeoutError("it ended the connection" if not received else "timed out")
                    said += received
            except OSError as error:
                why = error.strerror or error
                raise WireError(f"{self} says nothing ({why}), asked for {target}. {_REMEDY}") from None
            status = _STATUS.match(said)
            if status is None:
                raise WireError(f"{self} answers as no HTTP proxy does, asked for {target}. {_REMEDY}")
            if not 200 <= int(status[1]) < 300:
                raise WireError(
                    f"{self} does not connect to {target}: it answers {status[0].decode()[9:]}. Its keeper must allow "
                    f"CONNECT to that host and port. {_REMEDY}"
                )
            failing.pop_all()
        return plain


def proxy_for(host: str) -> Proxy | None:
    """The proxy by which a machine is reached, None if straight."""
    variable = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if variable is None or any(_named(host, names) for names in (_HERE, *map(os.environ.get, _STRAIGHT)) if names):
        return None
    uri = os.environ[variable]
    uri = uri if "://" in uri else f"http://{uri}"
    try:
        parts = urlsplit(uri)
        found, port = parts.hostname, parts.port or 80
    except ValueError:
        found = None
    if not found or parts.scheme != "http":
        raise InputError(f"{variable} in the environment names no proxy; write it http://host:port, or unset it.")
    return Proxy(variable, found, port, uri)


def connect(host: str, port: int, seconds: float) -> socket.socket:
    """A connection to a machine, by its proxy where it has one."""
    if not host.isprintable() or " " in host:
        raise ValueError("no machine has such a name")
    proxy = proxy_for(host)
    if proxy is None:
        return socket.create_connection((host, port), timeout=seconds)
    return proxy.connect(host, port, seconds)


def grpc_options(host: str) -> list[tuple[str, str | int]]:
    """What has gRPC go the same way, whatever it would read from the environment by itself."""
    proxy = proxy_for(host)
    return [("grpc.enable_http_proxy", 0)] if proxy is None else [("grpc.http_proxy", proxy.uri)]


def _named(host: str, exceptions: str) -> bool:
    """Whether a list such as `localhost,.example.org,10.0.0.0/8` has a host; whatever gRPC takes as listed is."""
    host = host.lower()
    for entry in filter(None, (part.strip().lower() for part in exceptions.split(","))):
        if entry == "*" or host.endswith(entry) or f".{host}" == entry:
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
    return False
