"""What jobs of FLARE run in tests: a coordinator that is told what to do, and a scripted party."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from party_process import ScriptedEndpoint

import sottovoce as sv
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.identity import Certified, local_identities
from sottovoce.transports.nvflare_wire import CoordinatorEnd, PartyEnd, Site, answering

AGAIN = "sottovoce-tests"  # asks a scripted party to be as it was in the beginning
CROSS = "sottovoce-tests-cross"  # asks it to ask another party as a coordinator does


class Serving(CoordinatorEnd):
    """Opens and uses wires as the process of the tests says."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def coordinate(self, site: Site, wire: Callable[..., Any]) -> None:
        wires: dict[int, Any] = {}
        numbers = itertools.count()
        with Client(self._address, authkey=b"tests") as connection:
            while (said := connection.recv())[0] != "end":
                try:
                    connection.send(self._done(said, wires, numbers, wire))
                except Exception as error:
                    connection.send(error)
            connection.send(None)

    @staticmethod
    def _done(said: Any, wires: dict[int, Any], numbers: Any, wire: Callable[..., Any]) -> Any:
        match said:
            case "open", names, timeout, limit:
                opened = wire(names, timeout=timeout, limit=limit)
                fresh(opened._engine, list(names))
                opened.wait_for_parties(60)
                wires[number := next(numbers)] = opened
                return number
            case "exchange", number, messages:
                return wires[number].exchange(messages)
            case "communication", number:
                return wires[number].communication
            case "close", number:
                return wires[number].close()
            case "cross", number, by, to, frame:
                return crossed(wires[number]._engine, by, to, frame)
        raise ValueError(said)


def fresh(engine: Any, names: list[str]) -> None:
    """Every party begins anew; a job's clients need a moment to be there."""
    for _ in range(600):
        with engine.new_context() as context:
            replies = engine.send_aux_request(names, AGAIN, Shareable(), 5.0, context, optional=True) or {}
        if len([reply for reply in replies.values() if reply.get_return_code() == ReturnCode.OK]) == len(names):
            return
        time.sleep(0.1)
    raise RuntimeError(f"no answer of all of {names}")


def crossed(engine: Any, by: str, to: str, frame: bytes) -> Any:
    """What a party says to another party that asks it."""
    request = Shareable()
    request.update({"to": to, "frame": frame})
    with engine.new_context() as context:
        reply = engine.send_aux_request([by], CROSS, request, 20.0, context)[by]
    return reply["code"], reply["frame"]


class _Reopened(PartyEnd):
    """A party that can be made to begin anew."""

    def failed(self, site: Site, error: Exception) -> None:
        (Path(tempfile.gettempdir()) / f"{site.name}-failed.txt").write_text(type(error).__name__)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler(AGAIN, self._again)
            fl_ctx.get_engine().register_aux_message_handler(CROSS, self._cross)

    def _again(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        self._answer = self.opened(Site.of(fl_ctx))
        return make_reply(ReturnCode.OK)

    def _cross(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        asked, reply = Shareable(), make_reply(ReturnCode.OK)
        asked["frame"] = request["frame"]
        said = fl_ctx.get_engine().send_aux_request([request["to"]], "sottovoce", asked, 5.0, fl_ctx)[request["to"]]
        reply.update({"code": said.get_return_code(), "frame": said.get("frame")})
        return reply


class Scripted(_Reopened):
    """A party that does what the query of a request names."""

    def opened(self, site: Site) -> Callable[[bytes], bytes]:
        endpoint = ScriptedEndpoint(site.name, Path(tempfile.mkdtemp()))
        return answering(endpoint, local_identities([site.name])[site.name])


class Seeded(_Reopened):
    """A party whose noise is known: data, ledger and certificate are in a folder that the environment names."""

    def opened(self, site: Site) -> Callable[[bytes], bytes]:
        folder = Path(os.environ["SOTTOVOCE_TESTS"])
        rows = np.load(folder / f"{site.name}.npz")
        account = sv.Ledger(folder / str(rows["ledger"])).account()
        seeded = SeededRandomness(7, site.name)
        party = sv.Party(site.name, rows["X"], rows["y"], account=account, randomness=seeded)
        return answering(party, Certified(Credentials.load(folder, site.name)))
