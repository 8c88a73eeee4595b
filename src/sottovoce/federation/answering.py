"""How an end of a wire answers a frame, whatever goes wrong: a reply, a refusal with its reason, or a fixed text.

A plan is a short text that can name large numbers. Before anything is allocated in proportion to them, they are
compared with the end's own rows and with the limits stated here. So a plan that is read, and refused, takes less than
1 GiB beyond what the party has in memory, and one that is accepted what its rows and answers take.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError, SottovoceError, WireError
from sottovoce.gate.frames import MAX_BYTES, Frame, decode, peek
from sottovoce.gate.outgoing import Outgoing, declare_public, reply
from sottovoce.gate.query import Query, Scheduled
from sottovoce.plan.plan import Plan

_log = logging.getLogger("sottovoce.holder")

FAILED: Final = "the party failed; its own log has the reason"
MOST_PARTIES: Final = 1024
MOST_COLUMNS: Final = 2**22  # by columns, of all parties together
MOST_RELEASES: Final = 64
MOST_DRAWN: Final = 2**22  # rounds, where a public coin draws for each of them who answers
MOST_TEXT: Final = 2**24  # characters of a message, and for each column of the party:
TEXT_OF_A_COLUMN: Final = 256
ACCEPTED: Final = (declare_public("accepted", True, reason="an acknowledgement"),)  # it did what it was told
CHECK: Final = "check"  # a plan is only checked: what it would be answered
EARLY: Final = "check before scores"  # likewise, before the holder of the labels learns the scores that it is about
CHECKS: Final = (CHECK, EARLY)
MOST_REASON: Final = 2000  # characters of a refusal


@dataclass(eq=False, repr=False)
class Answering(ABC):
    """An end of a wire: `handle` is the only way in and `Outgoing` the only way out.

    An error that may be shown leaves as a refusal; any other leaves as a fixed text, and is kept in `failure`.
    """

    name: str = field(init=False)
    failure: Exception | None = field(default=None, init=False)  # for the eyes of whoever runs it, in its own process
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False)

    @abstractmethod
    def _answer(self, frame: Frame) -> Outgoing:
        """The answer to a frame that could be read."""

    def handle(self, request: bytes) -> Outgoing:
        """Answer one frame; threads take turns."""
        with self._one_at_a_time:
            try:
                frame = decode(request)
            except WireError as error:
                serial = 0
                with contextlib.suppress(WireError):  # so that its sender need not wait for an answer in vain
                    serial = peek(request)[1]
                frame = Frame("error", serial, b"", 0, "", {}, "")
                text = declare_public("error", f"malformed message: {error}", reason="about the message")
                return reply("error", frame, (text,))
            try:
                return self._answer(frame)
            except BudgetError as error:
                return _refuse(frame, "budget", str(error))
            except RefusedError as error:
                if isinstance(cause := error.__cause__, LedgerError):  # for the holder's eyes
                    self._note_failure(cause)
                return _refuse(frame, "refused", str(error))
            except LedgerError as error:
                self._note_failure(error)
                return _refuse(frame, "ledger", "the party's ledger cannot be used; its own log has the reason")
            except SottovoceError as error:
                self._note_failure(error)
            except Exception as error:
                self.failure = error
                _log.exception("party %s failed", self.name)
            return reply("error", frame, (declare_public("error", FAILED, reason="a fixed text"),))

    def _note_failure(self, error: Exception) -> None:
        self.failure = error
        told = (
            isinstance(error, InputError) and getattr(getattr(self, "resources", None), "holder", "") == "caller"
        )  # it is raised there
        _log.log(logging.DEBUG if told else logging.ERROR, "party %s: %s", self.name, error)


def _refuse(frame: Frame, code: str, reason: str) -> Outgoing:
    declared = (
        declare_public("error", code, reason="one of a fixed list"),
        declare_public("refused", reason[:MOST_REASON], reason="made from the plan, the policy and the ledger"),
    )
    return reply("refuse", frame, declared)


@functools.lru_cache(maxsize=1)
def read_plan(text: str, digest: bytes) -> Plan:
    """The plan of a message, or a refusal that names the first thing wrong with it.

    The last plan is cached: it is checked, then charged, by every party of a process. It is public and frozen.
    """
    try:
        plan = Plan.from_json(text)
        own_digest = plan.digest  # made of everything in the plan, however deep
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RefusedError(f"the text is not a plan of this version: {where}: {first['msg']}.") from None
    except (ValueError, RecursionError):
        raise RefusedError("the text is not a plan of this version.") from None
    if own_digest != digest:
        raise RefusedError("the plan's text and its digest do not agree.")
    return plan


def unknown_plan(frame: Frame) -> Outgoing:
    """The reply to a message about a plan that this end does not know, as after a restart."""
    return reply("unknown-plan", frame, (declare_public("accepted", False, reason="an acknowledgement"),))


def check_text(text: str, columns: int) -> None:
    """Refuse to read a text that is longer than any text about that many columns."""
    most = MOST_TEXT + TEXT_OF_A_COLUMN * columns
    if len(text) > most:
        raise RefusedError(f"the message has a text of {len(text)} characters; a party reads at most {most}.")


def check_plan_size(plan: Plan, party: str, shape: tuple[int, int]) -> None:
    """Refuse a plan that is about other rows than the party's, records x columns, or too large."""
    records, columns = shape
    for what, size, most in (
        ("parties", len(plan.parties), MOST_PARTIES),
        ("releases", len(plan.releases), MOST_RELEASES),
        ("columns", plan.features, MOST_COLUMNS if plan.split.same_people else max(columns, MOST_COLUMNS)),
    ):
        if size > most:
            raise RefusedError(f"the plan has {size} {what}; {party} serves at most {most}.")
    if dict(plan.parties).get(party) != records or columns != (
        plan.columns[plan.names.index(party)] if plan.split.same_people else plan.features
    ):
        raise RefusedError(f"the plan does not have {party} with its declared records and features.")


def check_answer_sizes(plan: Plan, queries: Mapping[str, Query]) -> None:
    """Refuse answers that fit in no message, and more turns than a party will draw."""
    for release in plan.releases:
        query = queries[release.query]
        if release.mechanism != "kept" and 8 * release.batches * query.length > MAX_BYTES:
            raise RefusedError(
                f"an answer to {query.name!r} has {release.batches * query.length} numbers; a message has at most "
                f"{MAX_BYTES // 8}."
            )
        if isinstance(query.answered_by, Scheduled) and plan.rounds > MOST_DRAWN:
            raise RefusedError(f"the plan draws who answers for {plan.rounds} rounds; at most {MOST_DRAWN} are drawn.")
