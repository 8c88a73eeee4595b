"""What `wire.py` runs as a job of NVIDIA FLARE: rounds of every wire, from the process of the job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wire import Echo, beside_one_another, names_of

from sottovoce.transports.identity import local_identities
from sottovoce.transports.nvflare_wire import CoordinatorEnd, PartyEnd, Site, answering


class Timed(CoordinatorEnd):
    def __init__(self, parties: int, told: str) -> None:
        super().__init__()
        self._parties, self._told = parties, told

    def coordinate(self, site: Site, wire: Callable[..., Any]) -> None:  # noqa: ARG002
        opened = wire(names_of(self._parties), timeout=300.0)
        opened.wait_for_parties(300)
        Path(self._told).write_text(json.dumps(beside_one_another(self._parties, {"nvflare": opened})))


class EchoParty(PartyEnd):
    def opened(self, site: Site) -> Callable[[bytes], bytes]:
        return answering(Echo(site.name), local_identities([site.name])[site.name])

    def failed(self, site: Site, error: Exception) -> None:
        print(f"{site.name} failed: {error!r}", flush=True)
