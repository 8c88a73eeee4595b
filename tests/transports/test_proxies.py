"""Sites that reach the coordinator by an HTTP proxy alone: a real one, in a thread of this process."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sottovoce.app import doctor
from sottovoce.errors import InputError, WireError
from sottovoce.gate.frames import Frame, encode
from sottovoce.transports import grpc_party, probe
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import greet, serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator
from sottovoce.transports.probe import proxy_for

pytestmark = pytest.mark.slow

PATIENCE = 60.0
HOST = "trials.example.org"  # known to the proxy alone
VARIABLES = ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy", "no_grpc_proxy", "no_proxy", "NO_PROXY")


class ConnectProxy:
    """An HTTP proxy that knows CONNECT, and one name; everything else it answers with a status of its own."""

    def __init__(self, target: int, status: str = "200 Connection established", user: str = "") -> None:
        self.asked: list[str] = []
        self._target, self._status, self._user = target, status, user
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._server]
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            lines = head.decode().split("\r\n")
            self.asked.append(lines[0])
            status = self._status
            wanted = f"Basic {base64.b64encode(self._user.encode()).decode()}"
            if self._user and not any(line.lower() == f"proxy-authorization: {wanted}".lower() for line in lines):
                status = "407 Proxy Authentication Required"
            elif status.startswith("200") and not lines[0].startswith(f"CONNECT {HOST}:"):
                status = "502 Bad Gateway"
            client.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
            if not status.startswith("200"):
                client.close()
                return
            there = socket.create_connection(("127.0.0.1", self._target))
            self._open.append(there)
            threading.Thread(target=_copied, args=(there, client), daemon=True).start()
            _copied(client, there)

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _copied(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(2**16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    create_authority(folder)
    issue(folder, "coordinator", hosts=[HOST])
    issue(folder, "anna")
    return folder


@pytest.fixture
def wire(folder: Path) -> Iterator[GrpcCoordinator]:
    wire = GrpcCoordinator("127.0.0.1:0", ("anna",), Credentials.load(folder, "coordinator"), timeout=PATIENCE)
    yield wire
    wire.close()


@pytest.fixture
def proxied(wire: GrpcCoordinator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ConnectProxy]]:
    made: list[ConnectProxy] = []

    def proxied(variable: str = "https_proxy", given: str = "", **said: Any) -> ConnectProxy:
        made.append(ConnectProxy(wire.port, **said))
        monkeypatch.setenv(variable, f"http://{given}127.0.0.1:{made[-1].port}")
        return made[-1]

    yield proxied
    for proxy in made:
        proxy.close()


@pytest.mark.parametrize(
    ("variable", "given", "user"),
    [
        ("https_proxy", "", ""),
        ("HTTPS_PROXY", "", ""),
        ("grpc_proxy", "", ""),
        ("https_proxy", "site:pass%40word@", "site:pass@word"),
    ],
)
def test_a_party_runs_by_a_proxy_and_says_so(
    folder: Path,
    wire: GrpcCoordinator,
    proxied: Callable[..., ConnectProxy],
    party_module: ModuleType,
    tmp_path: Path,
    variable: str,
    given: str,
    user: str,
) -> None:
    proxy = proxied(variable, given, user=user)
    said: list[str] = []
    arguments = (party_module.ScriptedEndpoint("anna", tmp_path), f"{HOST}:{wire.port}")
    thread = threading.Thread(
        target=serve_party,
        args=(*arguments, Credentials.load(folder, "anna")),
        kwargs={"on_change": said.append, "give_up_after": PATIENCE},
        daemon=True,
    )
    thread.start()
    wire.wait_for_parties()
    wire.exchange({"anna": encode(Frame("ask", 1, query="echo"))})
    wire.exchange({"anna": encode(Frame("done", 2, query="echo"))})
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert f"by the proxy 127.0.0.1:{proxy.port} ({variable})" in said[0]
    assert "word" not in "".join(said)
    assert proxy.asked == [f"CONNECT {HOST}:{wire.port} HTTP/1.1"] * 2  # the look who is there, and gRPC


def test_the_doctor_says_that_a_proxy_is_on_the_way(
    folder: Path, wire: GrpcCoordinator, proxied: Callable[..., ConnectProxy]
) -> None:
    proxy = proxied()
    visit = doctor.Visit(credentials=Credentials.load(folder, "anna"))
    visit.make("network", doctor._check_network, f"{HOST}:{wire.port}")
    assert [finding.state for finding in visit.findings] == ["ok", "ok"]
    assert f"by the proxy 127.0.0.1:{proxy.port} (https_proxy)" in visit.findings[0].text
    assert visit.time_there is not None


@pytest.mark.parametrize(("status", "state"), [("503 Service Unavailable", "warning"), ("403 Forbidden", "fails")])
def test_the_doctor_tells_a_proxy_that_forbids_from_a_coordinator_that_is_not_there(
    folder: Path, wire: GrpcCoordinator, proxied: Callable[..., ConnectProxy], status: str, state: str
) -> None:
    proxied(status=status)
    visit = doctor.Visit(credentials=Credentials.load(folder, "anna"))
    visit.make("network", doctor._check_network, f"{HOST}:{wire.port}")
    assert visit.findings[-1].state == state
    assert f"it answers {status}" in visit.findings[-1].text


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        ("403 Forbidden", "does not connect to .* it answers 403 Forbidden.*allow CONNECT.*no_proxy"),
        ("banana", "does not connect|answers as no HTTP proxy"),
    ],
)
def test_a_proxy_that_is_in_the_way_is_named(
    folder: Path, wire: GrpcCoordinator, proxied: Callable[..., ConnectProxy], status: str, fault: str
) -> None:
    proxy = proxied(status=status)
    with pytest.raises(WireError, match=f"the proxy 127.0.0.1:{proxy.port} .https_proxy. ({fault})"):
        probe.coordinator_at(f"{HOST}:{wire.port}", Credentials.load(folder, "anna"))


def test_a_proxy_that_is_not_there_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{port}")
    with pytest.raises(
        WireError, match=r"the proxy 127\.0\.0\.1:\d+ \(https_proxy\) does not answer.*no_proxy"
    ) as error:
        greet(f"{HOST}:7443", Credentials.load(folder, "anna"))
    assert "secret" not in str(error.value)


def test_a_proxy_that_wants_a_password_is_told(
    folder: Path, wire: GrpcCoordinator, proxied: Callable[..., ConnectProxy]
) -> None:
    proxied(user="site:password")
    with pytest.raises(WireError, match="it answers 407 Proxy Authentication Required"):
        probe.coordinator_at(f"{HOST}:{wire.port}", Credentials.load(folder, "anna"))


@pytest.mark.parametrize(
    ("host", "names", "straight"),
    [
        ("localhost", "", True),
        ("127.0.0.1", "", True),
        ("::1", "", True),
        (HOST, "", False),
        (HOST, "other.org", False),
        (HOST, "other.org, .example.org", True),
        (HOST, HOST.upper(), True),
        ("example.org", ".example.org", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        (HOST, "*", True),
    ],
)
def test_hosts_that_no_proxy_is_for(monkeypatch: pytest.MonkeyPatch, host: str, names: str, straight: bool) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", names)
    assert (proxy_for(host) is None) == straight


@pytest.mark.parametrize(
    "value", ["https://proxy:3128", "socks5://proxy:1", "http://", "http://proxy:banana", "http://[:1"]
)
def test_a_variable_that_names_no_proxy_is_told_without_its_value(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("https_proxy", value)
    with pytest.raises(InputError, match="https_proxy in the environment names no proxy") as error:
        proxy_for(HOST)
    assert "banana" not in str(error.value)


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy"])
def test_a_proxy_that_is_not_for_a_host_is_never_asked(
    folder: Path,
    wire: GrpcCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    proxied: Callable[..., ConnectProxy],
    variable: str,
) -> None:
    """Also by gRPC, which has a mind of its own: neither `http_proxy` nor this machine itself is meant."""
    proxy = proxied(variable)
    monkeypatch.setattr(probe, "_context", lambda credentials: _without_host(_CONTEXT(credentials)))
    monkeypatch.setattr(grpc_party, "channel_options", _named_otherwise(grpc_party.channel_options))
    assert greet(f"127.0.0.1:{wire.port}", Credentials.load(folder, "anna"))
    assert not proxy.asked


@pytest.mark.parametrize("fault", ["the look goes straight", "gRPC goes straight"])
def test_two_ways_to_one_coordinator_are_found_out(
    folder: Path,
    wire: GrpcCoordinator,
    proxied: Callable[..., ConnectProxy],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """Planted faults: the test of a party by a proxy fails where one of the two connections does not go by it."""
    proxied()
    if fault == "gRPC goes straight":
        monkeypatch.setattr(grpc_party, "grpc_options", lambda host: [("grpc.enable_http_proxy", 0)])
        monkeypatch.setattr(grpc_party, "_PATIENCE", 1.0)
    else:
        monkeypatch.setattr(probe, "connect", lambda *at: socket.create_connection(at[:2], at[2]))
    with pytest.raises(WireError):
        greet(f"{HOST}:{wire.port}", Credentials.load(folder, "anna"))


_CONTEXT = probe._context


def _without_host(context: Any) -> Any:
    context.check_hostname = False
    return context


def _named_otherwise(options: Callable[[int], list[Any]]) -> Callable[[int], list[Any]]:
    return lambda limit: [*options(limit), ("grpc.ssl_target_name_override", HOST)]


def test_a_handshake_that_never_ends_names_large_packets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that lets small packets through alone: the connection stands, and the certificate never comes."""
    monkeypatch.setattr(probe, "_SECONDS", 0.5)
    words = r"is reached, and the TLS handshake takes too long.*drops large packets.*MTU"
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(WireError, match=words):
        probe.coordinator_at(f"127.0.0.1:{server.getsockname()[1]}", Credentials.load(folder, "anna"))


def test_one_module_opens_connections_to_coordinators() -> None:
    """Whatever else opened a socket to an address would not know of a proxy."""
    opening = {
        path.name
        for path in Path(probe.__file__).parent.rglob("*.py")
        if "create_connection" in path.read_text(encoding="utf-8")
    }
    assert opening == {"probe.py"}
