"""How an end of a wire answers a frame, whatever goes wrong: a reply, a refusal with its reason, or a fixed text."""

from __future__ import annotations

import functools
import logging
import threading
from abc import ABC, abstractmethod
from typing import Final

from pydantic import ValidationError

from sottovoce.errors import BudgetError, LedgerError, RefusedError, SottovoceError, WireError
from sottovoce.federation import limits
from sottovoce.gate.frames import Frame, decode, peek
from sottovoce.gate.outgoing import Declared, Disclosed, Masked, Outgoing, declare_public, reply
from sottovoce.plan.plan import Plan

_log = logging.getLogger("sottovoce.holder")

FAILED: Final = "the party failed; its own log has the reason"


class Answering(ABC):
    """An end of a wire: `handle` is the only way in and `Outgoing` the only way out.

    What was raised and may be told leaves as a refusal; all else as a fixed text, and `failure` has it here.
    """

    name: str

    def __init__(self) -> None:
        self.failure: Exception | None = None  # for the eyes of whoever runs it, in its own process
        self._one_at_a_time = threading.Lock()

    @abstractmethod
    def _answer(self, frame: Frame) -> Outgoing:
        """The answer to a frame that could be read."""

    def handle(self, request: bytes) -> Outgoing:
        """Answer one frame; threads take turns."""
        with self._one_at_a_time:
            return self._handled(request)

    def _handled(self, request: bytes) -> Outgoing:
        try:
            frame = decode(request)
        except WireError as error:
            frame = Frame("error", _serial(request), b"", 0, "", {}, "")
            said = declare_public("error", f"malformed message: {error}", reason="about the message")
            return reply("error", frame, (said,))
        try:
            return self._answer(frame)
        except BudgetError as error:
            return reply("refuse", frame, _refusal("budget", str(error)))
        except RefusedError as error:
            if isinstance(cause := error.__cause__, LedgerError):  # for the holder's eyes
                self.failure = cause
                _log.error("party %s: %s", self.name, cause)
            return reply("refuse", frame, _refusal("refused", str(error)))
        except LedgerError as error:
            self.failure = error
            _log.error("party %s: %s", self.name, error)
            said_of = "the party's ledger cannot be used; its own log has the reason"
            return reply("refuse", frame, _refusal("ledger", said_of))
        except SottovoceError as error:
            self.failure = error
            _log.error("party %s: %s", self.name, error)
        except Exception as error:
            self.failure = error
            _log.exception("party %s failed", self.name)
        return reply("error", frame, (declare_public("error", FAILED, reason="a fixed text"),))


def plan_of(frame: Frame) -> Plan:
    """The plan of a message, or a refusal that names the first thing wrong with it."""
    plan = _read_plan(frame.text)
    if plan.digest != frame.plan:
        raise RefusedError("the plan's text and its digest do not agree.")
    return plan


@functools.lru_cache(maxsize=1)
def _read_plan(text: str) -> Plan:
    """The last plan is stored: it is checked, then charged, by every party of a process. It is public and frozen."""
    try:
        plan = Plan.from_json(text)
        hash(plan.digest)  # which is made of all that the plan has, however deep
        return plan
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RefusedError(f"the text is not a plan of this version: {where}: {first['msg']}.") from None
    except (ValueError, RecursionError):
        raise RefusedError("the text is not a plan of this version.") from None


def acknowledged(accepted: bool) -> tuple[Declared, ...]:
    """Whether it did what the message asks for."""
    return (declare_public("accepted", accepted, reason="an acknowledgement"),)


def unknown_plan(frame: Frame) -> Outgoing:
    """The reply to a message about a plan that this end does not know, as after a restart."""
    return reply("unknown-plan", frame, acknowledged(False))


def answer_or_accept(frame: Frame, content: Masked | Disclosed | None) -> Outgoing:
    """The reply with what leaves, or an acknowledgement where nothing does."""
    return reply("accept", frame, acknowledged(True)) if content is None else reply("answer", frame, content)


def _refusal(code: str, reason: str) -> tuple[Declared, ...]:
    return (
        declare_public("error", code, reason="one of a fixed list"),
        declare_public("refused", reason[: limits.MOST_REASON], reason="made from the plan, the policy and the ledger"),
    )


def _serial(request: bytes) -> int:
    """The serial of a request that is no whole frame, so that its sender need not wait for an answer in vain."""
    try:
        return peek(request)[1]
    except WireError:
        return 0
