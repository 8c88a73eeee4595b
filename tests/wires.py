"""Parties that are served over a real wire."""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from sottovoce.federation.party import Party
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator


@contextlib.contextmanager
def over_grpc(folder: Path, parties: Iterable[Party]) -> Iterator[GrpcCoordinator]:
    """Parties that threads serve over gRPC with mutual TLS."""
    served = {party.name: party for party in parties}
    create_authority(folder)
    for name in ("coordinator", *served):
        issue(folder, name)
    wire = GrpcCoordinator("localhost:0", tuple(served), Credentials.load(folder, "coordinator"), timeout=60.0)
    stop, address = threading.Event(), f"localhost:{wire.port}"
    threads = [
        threading.Thread(
            target=serve_party,
            args=(party, address, Credentials.load(folder, name)),
            kwargs={"stop": stop},
            daemon=True,
        )
        for name, party in served.items()
    ]
    try:
        for thread in threads:
            thread.start()
        yield wire
    finally:
        stop.set()
        wire.close()
        for thread in threads:
            thread.join(30)
