"""Who is at an address, and the way there: one TLS handshake that says what gRPC keeps to itself.

gRPC tries again in silence when a handshake fails, whoever failed it. A party therefore looks first: it makes a TLS
connection of its own, learns why it cannot be, and checks the certificate of the coordinator as a whole, also against
the list of those that were taken back. The gRPC connection that follows trusts that one certificate and no other.

The way out of a site is straight, or by an HTTP proxy (CONNECT) that the environment names: one decision for all
connections to an address, this look and gRPC's own.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import re
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from sottovoce.errors import InputError, WireError
from sottovoce.transports.certificates import COORDINATOR, Credentials, check_other_end

_SECONDS: Final = 5.0  # for a connection and its handshake
_LISTENING: Final = 1.0  # for what a coordinator says of our certificate; one that takes it speaks at once
_VARIABLES: Final = ("grpc_proxy", "https_proxy", "HTTPS_PROXY")  # the first that is set
_STRAIGHT: Final = ("no_grpc_proxy", "no_proxy", "NO_PROXY")  # all that are set
_HERE: Final = "localhost,127.0.0.0/8,::1"  # no proxy has to do with this machine itself
_REMEDY: Final = "If no proxy is meant, name the coordinator's host in no_proxy."
_LONGEST_ANSWER: Final = 2**14  # bytes
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([ -~]{0,60}))?")


def coordinator_at(address: str, credentials: Credentials) -> bytes:
    """The certificate (PEM) of the coordinator at `host:port`; a `WireError` says why there is none to trust."""
    host, _, port = address.rpartition(":")
    host, shown, reached = host.strip("[]"), b"", False
    proxy = proxy_for(host)
    by = "" if proxy is None else f" by {proxy}"
    try:
        with connect(host, int(port), _SECONDS) as plain:
            reached = True
            plain.settimeout(_SECONDS)
            stream = _Stream(plain, _context(credentials), host)
            stream.do(stream.tls.do_handshake)
            shown = ssl.DER_cert_to_PEM_cert(stream.tls.getpeercert(binary_form=True) or b"").encode()
            check_other_end(shown, credentials, COORDINATOR)
            plain.settimeout(_LISTENING)
            with contextlib.suppress(TimeoutError):
                stream.do(lambda: stream.tls.read(1))  # where our certificate is refused, TLS 1.3 says so only now
            return shown
    except ssl.SSLCertVerificationError as error:
        raise WireError(
            f"the coordinator at {address}{by} cannot be verified: {error.verify_message}"
            + (by and "; a proxy that reads TLS must let this address pass")
        ) from None
    except InputError as error:
        raise WireError(f"the coordinator at {address} cannot be verified: {error}") from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError, BrokenPipeError):
        if shown:
            raise WireError(
                f"the coordinator at {address} ended the connection when it had seen this party's certificate: it does "
                "not take it (another authority, expired?), or is closing"
            ) from None
        raise WireError(f"{address}{by} ended the connection before it showed a certificate") from None
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        who = "refuses this party's certificate" if "alert" in reason else "cannot be spoken to"
        raise WireError(f"the coordinator at {address}{by} {who}: {reason}") from None
    except TimeoutError as error:
        if not reached:
            raise WireError(f"nobody answers at {address}: {error}") from None
        raise WireError(
            f"{address}{by} is reached, and the TLS handshake takes too long (over {_SECONDS:g} s). The machine hangs, "
            "something else is at that port, or a path drops large packets, as tunnels do that have a small MTU and "
            "let no ICMP through; try a smaller MTU on this machine"
        ) from None
    except (OSError, ValueError) as error:
        raise WireError(f"nobody answers at {address}: {getattr(error, 'strerror', None) or error}") from None


class _Stream:
    """TLS over a socket that stays ours: what the ssl module wraps it can leave open when a peer is gone."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._plain, self._in, self._out = plain, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._until = time.monotonic() + _SECONDS
        self.tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    def do(self, action: Callable[[], object]) -> None:
        """Until it is done, feed it with what comes and send what it has to say."""
        while True:
            try:
                action()
                return
            except ssl.SSLWantReadError:
                self._send()
                if time.monotonic() > self._until:
                    raise TimeoutError("the handshake takes too long") from None
                received = self._plain.recv(2**16)
                self._in.write(received) if received else self._in.write_eof()
            finally:
                self._send()  # also the alert that says why it failed

    def _send(self) -> None:
        if self._out.pending:
            self._plain.sendall(self._out.read())


def _context(credentials: Credentials) -> ssl.SSLContext:
    """One that trusts the authority alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=credentials.ca.decode())
    context.set_alpn_protocols(["h2"])
    with _as_file(credentials.key + b"\n" + credentials.certificate) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which ssl reads a key: in memory where the system can, so that a kill leaves none behind."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with os.fdopen(os.memfd_create("pair"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory() as folder:  # of mode 700
        path = Path(folder) / "pair.pem"
        path.touch(mode=0o600)
        path.write_bytes(data)
        yield str(path)


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
