"""What a plan costs in messages, bytes and time, from the plan alone and a short measurement of this machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sottovoce.algorithms import Algorithm
from sottovoce.door.frames import Frame, encode
from sottovoce.door.gate import declare_public, reply
from sottovoce.plan.plan import Plan

_PATIENCE: Final = 0.02  # seconds for each of the two measurements
_ENTRIES: Final = 1 << 17
_MESSAGE: Final = 2e-4  # seconds to make, check and read one message
_TRIES: Final = 3
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


def cost_of(plan: Plan, algorithm: Algorithm, ledger_folders: Sequence[Path] = ()) -> Cost:
    """What a run of the plan takes.

    Bytes are those of all parties' frames, from the proposal of the plan on, as `communication_` counts them.
    Seconds are for computing and for ledgers in `ledger_folders`; reading files and a network's delay are not in it.
    """
    if not plan.private:
        return Cost(None, None, None, None)
    parties = len(plan.parties)
    uplink = downlink = messages = 0
    proposal = Frame("plan", 0, plan.digest, text=plan.to_json())
    end = Frame("done", 0, plan.digest)
    check = replace(proposal, query="check")
    for request, answer in (*([(check, "accept")] if parties > 1 else []), (proposal, "accept"), (end, "done")):
        downlink += sum(len(encode(_told(request, plan, place))) for place in range(parties))
        accepted = (declare_public("accepted", True, reason="an acknowledgement"),)
        uplink += parties * len(reply(answer, request, accepted).data)
    rounds, queries = 0, {name: algorithm.queries_of(plan, name) for name, _ in plan.parties}
    for ask, count in algorithm.conversation(plan):
        asked = ask.to or tuple(queries)
        rounds, messages = rounds + count, messages + count * len(asked)
        for name in asked if ask.each else asked[:1]:
            said = {**ask.arrays, **ask.each.get(name, {})}
            alike = 1 if ask.each else len(asked)
            downlink += count * alike * len(encode(Frame("ask", 0, plan.digest, 0, ask.query, said)))
        for numbers, several in Counter(_entries(plan, queries[name][ask.query], ask.query) for name in asked).items():
            form = "value" if plan.release(ask.query).mechanism == "derived" else "grid"
            back = Frame("answer", 0, plan.digest, 0, ask.query, {form: np.zeros(numbers, dtype=np.int64)})
            uplink += count * several * len(encode(back))
    seconds = _computing(plan) + messages * _MESSAGE
    if ledger_folders:
        seconds += messages / parties * sum(_SYNCS * _sync_seconds(folder) for folder in ledger_folders)
    return Cost(rounds, uplink, downlink, seconds)


def _told(request: Frame, plan: Plan, place: int) -> Frame:
    """By columns the end of a run tells a party its part of a model that is shared."""
    if request.kind != "done" or plan.split != "columns" or plan.models == "kept":
        return request
    return replace(request, arrays={"coef": np.zeros(plan.columns[place]), "intercept": np.zeros(1)})


def _entries(plan: Plan, query: Any, name: str) -> int:
    """How many integers one answer has."""
    release = plan.release(name)
    if release.mechanism in ("selection", "noisy-max"):
        return 1
    if hasattr(query, "length"):
        return int(query.length)
    return release.batches * (np.size(query.weights) if np.ndim(query.weights) else plan.dimension)


def answers(plan: Plan, algorithm: Algorithm) -> Counter[str]:
    """How many answers of each kind all parties together give, at most."""
    found: Counter[str] = Counter()
    for ask, count in algorithm.conversation(plan):
        found[ask.query] += count * (len(ask.to) if ask.to else len(plan.parties))
    return found


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
