"""Who is at an address: one TLS handshake that says what gRPC keeps to itself.

gRPC tries again in silence when a handshake fails, whoever failed it. A party therefore looks first: it makes a TLS
connection of its own, learns why it cannot be, and checks the certificate of the coordinator as a whole, also against
the list of those that were taken back. The gRPC connection that follows trusts that one certificate and no other.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sottovoce.errors import InputError, WireError
from sottovoce.transports.certificates import COORDINATOR, Credentials, check_other_end
from sottovoce.transports.proxies import connect, proxy_for

_SECONDS: Final = 5.0  # for a connection and its handshake
_LISTENING: Final = 1.0  # for what a coordinator says of our certificate; one that takes it speaks at once


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
