"""What a plan costs in messages, bytes and time, from the plan alone and a short measurement of this machine."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from sottovoce.algorithms import Algorithm
from sottovoce.door.frames import Frame, encode
from sottovoce.door.outgoing import declare_public, reply
from sottovoce.federation.party import RECEIPT, packed
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Receipt
from sottovoce.queries.messages import messages_of, rounds_of

_PATIENCE: Final = 0.02  # seconds for each of the two measurements
_ENTRIES: Final = 1 << 17
_MESSAGE: Final = 2e-4  # seconds to make, check and read one message
_TRIES: Final = 3
_SIGNATURE: Final = json.dumps({"signature": "0" * 128})  # of a party in one process
_CERTIFIED: Final = json.dumps({"certificate": 11 * f"{0:060}\n", "signature": f"{0:0142}"})  # of an elliptic curve
_SYNCS: Final = 4  # a durable commit of a ledger waits for the disk about so often


@dataclass(frozen=True)
class Cost:
    """Rounds and bytes, and a rough time; all None without privacy, where the run stops when it has converged.

    Rounds and bytes are exact or, where the data decide what is sent, what the run takes at most.
    """

    rounds: int | None
    uplink_bytes: int | None
    downlink_bytes: int | None
    seconds: float | None

    def __add__(self, other: Cost) -> Cost:
        """Of two plans, one after the other; what is asked between them is not in it."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Cost(*(None if None in pair else sum(pair) for pair in pairs))


def cost_of(  # noqa: PLR0913
    plan: Plan,
    form: Algorithm,
    ledger_folders: Sequence[Path] = (),
    *,
    receipts: int = 0,
    shown: int = 0,
    remote: bool = False,
) -> Cost:
    """What a run of the plan takes; so many parties give receipts, and so many are shown their last one.

    Bytes are those of all parties' frames, from the proposal of the plan on, as `communication_` counts them, with the
    signatures of parties in one process; from `remote` ones each signature brings its certificate, about 1 kB.
    Seconds are for computing and for ledgers in `ledger_folders`; reading files and a network's delay are not in it.
    """
    if not plan.private:
        return Cost(None, None, None, None)
    parties = len(plan.parties)
    uplink = downlink = messages = 0
    proposal = Frame("plan", 0, plan.digest, text=plan.to_json())
    end = Frame("done", 0, plan.digest)
    accepted = (declare_public("accepted", True, reason="an acknowledgement"),)
    signature = _CERTIFIED if remote else _SIGNATURE
    signed = (*accepted, declare_public("signature", signature, reason="of the usual length"))
    said = [(proposal, "accept", signed if parties > 1 else accepted), (end, "done", accepted)]
    if parties > 1:
        start = json.dumps(dict.fromkeys(plan.names, signature))
        said.append((replace(proposal, query="check"), "accept", accepted))
        said.append((replace(proposal, query="start", text=start), "accept", accepted))
    for request, answer, content in said:
        downlink += sum(len(encode(_told(request, plan, place))) for place in range(parties))
        receipt = (declare_public("receipt", f"{0:012}:{0:064}", reason="as long as any other"),)
        giving = receipts if request in (proposal, end) else 0
        uplink += (parties - giving) * len(reply(answer, request, content).data)
        uplink += giving * len(reply(answer, request, content + receipt).data)
        if request is proposal or request.query == "check":
            with_receipt = replace(request, arrays={RECEIPT: packed(Receipt(1, "5" * 64))})
            downlink += shown * (len(encode(with_receipt)) - len(encode(request)))
    for query, several in messages_of(plan, form).items():
        for each in several:
            messages += each.count
            downlink += each.count * len(encode(Frame("ask", 0, plan.digest, 0, query, each.told)))
            uplink += each.count * len(encode(Frame("answer", 0, plan.digest, 0, query, each.answer)))
    seconds = _computing(plan) + messages * _MESSAGE
    if ledger_folders:
        seconds += messages / parties * sum(_SYNCS * _sync_seconds(folder) for folder in ledger_folders)
    return Cost(rounds_of(plan, form), uplink, downlink, seconds)


def _told(request: Frame, plan: Plan, place: int) -> Frame:
    """By columns the end of a run tells a party its part of a model that is shared."""
    if request.kind != "done" or plan.split != "columns" or plan.models == "kept":
        return request
    return replace(request, arrays={"coef": np.zeros(plan.columns[place]), "intercept": np.zeros(1)})


def readable_size(count: int) -> str:
    """A number of bytes, as people say it."""
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def _computing(plan: Plan) -> float:
    """Passes over the rows at this machine's speed: two products with a vector for a gradient, one Gram product."""
    rows = np.ones((max(_ENTRIES // plan.dimension, 1), plan.dimension))
    one_pass = _seconds(lambda: rows.T @ (rows @ rows[0])) / rows.size
    total = 0.0
    for release in plan.releases:
        if release.query in ("gram", "curvature"):
            one_gram = _seconds(lambda: rows.T @ rows) / rows.shape[0]
            total += release.count * plan.records * one_gram
        else:
            total += release.total * (release.rate or 1.0) * plan.records * plan.dimension * one_pass
    return total


def _seconds(work: Callable[[], object]) -> float:
    """The mean time of one call."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < _PATIENCE:
        work()
        calls += 1
    return elapsed / calls


def _sync_seconds(folder: Path) -> float:
    """How long the disk under `folder` takes to make a few bytes durable; 0 where that cannot be tried."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            start = time.perf_counter()
            for _ in range(_TRIES):
                file.write(b"0" * 4096)
                file.flush()
                os.fsync(file.fileno())
            return (time.perf_counter() - start) / _TRIES
    except OSError:
        return 0.0
