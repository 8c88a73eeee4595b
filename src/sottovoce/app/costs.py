"""What a plan costs in messages, bytes and time, from the plan alone and a short measurement of this machine."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from sottovoce.algorithms import Algorithm
from sottovoce.app.estimates import Rows, can_be_rehearsed
from sottovoce.door.frames import Frame, encode
from sottovoce.door.outgoing import Declared, declare_public, reply
from sottovoce.errors import SottovoceError
from sottovoce.federation.receipts import RECEIPT, packed
from sottovoce.federation.run_keys import PAIR
from sottovoce.federation.sealed_columns.messages import widths_of
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Receipt
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointSum
from sottovoce.queries.messages import messages_of, rounds_of
from sottovoce.queries.pricing import queries_of
from sottovoce.sealed.columns import Place, dealt_like, said_like
from sottovoce.sealed.fields import Fields
from sottovoce.sealed.pair_keys import OFFER, OFFERS, PUBLIC, PUBLIC_KEYS, packed_rows
from sottovoce.sealed.sums import Call
from sottovoce.sealed.tables import LookUp
from sottovoce.sealed.words import word_bits

_PATIENCE: Final = 0.02  # seconds for each of the two measurements
_ENTRIES: Final = 1 << 17
_MESSAGE: Final = 2e-4  # seconds to make, check and read one message
LONG: Final = 0.2  # seconds, roughly, from which on a rehearsal is worth its time
_EACH: Final = LONG / (1 << 22)  # seconds that an entry of the rows counts for in that at least
_TRIES: Final = 3
_SIGNATURE: Final = json.dumps({"signature": "0" * 128})  # of a party in one process
_CERTIFIED: Final = json.dumps({"certificate": 11 * f"{0:060}\n", "signature": f"{0:0142}"})  # of an elliptic curve
_PRODUCT: Final = 4e-10  # seconds of a multiplication of sealed words, and of a record's look-up at each role
_LOOKUP: Final = 1e-7
_SYNCS: Final = 4  # a durable commit of a ledger waits for the disk about so often


@dataclass(frozen=True)
class Cost:
    """Rounds and bytes, and a rough time; all None without privacy, where the run stops when it has converged.

    Rounds and bytes are exact or, where the data decide what is sent, what the run takes at most; of sealed columns
    bytes are by formula. Of the downlink `dealt_bytes` are a dealer's random numbers. `memory_bytes` are those of the
    process at its peak; None where they are not worth a rehearsal, or cannot be told. Seconds are those of the
    rehearsal if there are such bytes. `reading` says of files that are still to be read whether that is in the seconds.
    """

    rounds: int | None
    uplink_bytes: int | None
    downlink_bytes: int | None
    seconds: float | None
    dealt_bytes: int | None = None
    memory_bytes: int | None = None
    reading: str = ""  # "counted" or "not counted"

    def __add__(self, other: Cost) -> Cost:
        """Of two plans, one after the other; what is asked between them is not in it."""
        pairs = list(zip(astuple(self), astuple(other), strict=True))
        dealt, memory = ([each for each in pair if each is not None] for pair in pairs[4:6])
        sums: list[Any] = [None if None in pair else sum(pair) for pair in pairs[:4]]
        reading = max(self.reading, other.reading)  # what is not counted of one is not counted of both
        return Cost(
            sums[0], sums[1], sums[2], sums[3], sum(dealt) if dealt else None, max(memory, default=None), reading
        )


def cost_of(  # noqa: PLR0913
    plan: Plan,
    form: Algorithm,
    ledger_folders: Sequence[Path] = (),
    *,
    receipts: int = 0,
    shown: int = 0,
    remote: bool = False,
    rows: Rows | None = None,
    worth: float = LONG,
) -> Cost:
    """What a run of the plan takes; so many parties give receipts, and so many are shown their last one.

    Bytes are those of all parties' frames, from the proposal of the plan on, as `communication_` counts them, with the
    signatures of parties in one process; from `remote` ones each signature brings its certificate, about 1 kB.
    Seconds are for computing and for ledgers in `ledger_folders`, and a network's delay is not in it. Reading files is
    in those of a rehearsal alone.
    A fit on one machine or by rows that takes longer than is `worth` it is rehearsed for its seconds and its memory, if
    it is said where `rows` lie.
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
        start = json.dumps(dict.fromkeys(plan.channel.signers, signature))
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
    if plan.channel.secure:
        up, down = _agreeing(plan, accepted)
        uplink, downlink = uplink + up, downlink + down
    for query, several in messages_of(plan, form).items():
        for each in several:
            messages += each.count
            call = Call(plan.channel.roster, said=tuple(each.told)).text if plan.channel.secure else ""
            downlink += each.count * len(encode(Frame("ask", 0, plan.digest, 0, query, each.told, call)))
            uplink += each.count * len(encode(Frame("answer", 0, plan.digest, 0, query, each.answer)))
    seconds, memory, reading = _computing(plan) + messages * _MESSAGE, None, ""
    if rows is not None and max(seconds, plan.records * plan.dimension * _EACH) >= worth:
        seconds, memory, reading = _estimated(plan, form, rows, seconds, remote=remote)
    dealt = None
    if plan.sealed_columns:
        words = sealed_columns(plan, form)
        uplink, downlink, dealt = uplink + words.up, downlink + words.down + words.dealt, words.dealt
        seconds += words.seconds
    if ledger_folders:
        seconds += messages / parties * sum(_SYNCS * _sync_seconds(folder) for folder in ledger_folders)
    return Cost(rounds_of(plan, form), uplink, downlink, seconds, dealt, memory, reading)


def _agreeing(plan: Plan, accepted: tuple[Declared, ...]) -> tuple[int, int]:
    """(up, down) of the messages to the parties by which every two members of a plan of sealed sums agree on a key."""
    count, up, down = len(plan.channel.members), 0, 0
    publics = {PUBLIC_KEYS: packed_rows([bytes(PUBLIC)] * count, PUBLIC)}
    told = Frame("plan", 0, plan.digest, query=PAIR, arrays=publics)
    for place in range(len(plan.names)):  # a helper is the last member, and its bytes are not of theirs
        later, earlier = ({OFFERS: packed_rows([bytes(OFFER)] * many, OFFER)} for many in (count - place - 1, place))
        again = replace(told, round=1, arrays={**publics, **earlier})
        down += len(encode(told)) + len(encode(again))
        up += len(encode(replace(told, kind="answer", arrays=later))) + len(reply("accept", again, accepted).data)
    return up, down


def _estimated(
    plan: Plan, form: Algorithm, rows: Rows, roughly: float, *, remote: bool
) -> tuple[float, int | None, str]:
    """(seconds, bytes, of which reading) by a rehearsal if the plan can have one, else roughly."""
    unread = "not counted" if rows.unread else ""
    if not can_be_rehearsed(plan):
        return roughly, None, unread
    try:
        found = rows.estimate(plan, form, remote=remote)
    except (SottovoceError, MemoryError):
        # Made-up rows are not what the plan is for, or they do not fit beside the others; it is shown all the same.
        return roughly, None, unread
    return found.seconds, found.memory_bytes, "counted" if rows.unread and found.reading else unread


class SealedColumns(NamedTuple):
    """Bytes of boxes and dealt words of all parties together, and seconds of all roles, of a plan of sealed columns."""

    up: int
    down: int
    dealt: int
    seconds: float


def sealed_columns(plan: Plan, form: Algorithm) -> SealedColumns:
    """What travels in boxes and is dealt besides the shares, for N records, d columns and M parties.

    columns       k / 8 N d up, M - 1 times as much down, once
    Gram matrix   k / 16 d (d + 1) dealt
    a program     what each party says up; down each party's to the other, or from three parties on to the one that adds
                  them up, and their sum to the others; and what is dealt, to one party
    """
    parties, width, piece = len(plan.names), plan.dimension, (0, plan.records)
    queries = queries_of(form, plan, plan.names[0])
    place = Place(plan.names[0], widths_of(plan), word_bits(plan), plan.scaled_loss.kind == "classification")
    programs = list[tuple[int, str, LookUp | None]]()
    dealt = products = 0
    for release in plan.releases:
        query = queries[release.query]
        if isinstance(query, GramMatrix):
            dealt += place.bits * width * (width + 1) // 16
            products += width**2
        if isinstance(query, JointSum):
            told = {name: wanted.example() for name, wanted in query.takes_at(release.first).items()}
            lookup = query.lookup(told) if query.program == "look-up" else None
            programs += [(1, "factor", None)] if query.factored else []
            programs.append((release.count, query.program, lookup))
            products += release.count * width * (parties + 1)
    once = [(1, "null", None), *programs] if programs else []
    said = sum(
        count * sum(_size(message, place.bits) for message in said_like(program, piece, place, lookup))
        for count, program, lookup in once
    )
    dealt += sum(
        count * _size(dealt_like(program, piece, place, lookup), place.bits) for count, program, lookup in once
    )
    columns = place.bits // 8 * plan.records * width
    clips = sum(count for count, program, _ in once if program in ("factor", "length"))
    products += clips * width**2 * 2
    seconds = plan.records * (products * _PRODUCT + sum(count for count, *_ in once) * (parties + 1) * _LOOKUP)
    added = 0 if parties < 3 else said  # the sum of what was said, by one party in turn
    return SealedColumns(
        columns + parties * said + added,
        columns * (parties - 1) + (parties * said if parties < 3 else 2 * (parties - 1) * said),
        dealt,
        seconds,
    )


def _size(fields: Fields, bits: int) -> int:
    """Of what is packed, in bytes."""
    return sum(field.size * (bits // 8 if field.dtype == np.int64 else field.itemsize) for field in fields)


def _told(request: Frame, plan: Plan, place: int) -> Frame:
    """By columns the end of a run tells a party its part of a model that is shared."""
    if request.kind != "done" or not plan.split.same_people or plan.models == "kept":
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
