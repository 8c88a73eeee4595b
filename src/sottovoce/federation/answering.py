"""How an end of a wire answers a frame, whatever goes wrong: a reply, a refusal with its reason, or a fixed text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from sottovoce.door.frames import Frame, decode, peek
from sottovoce.door.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.errors import BudgetError, LedgerError, RefusedError, SottovoceError, WireError
from sottovoce.federation import limits
from sottovoce.plan.plan import Plan

_log = logging.getLogger("sottovoce.holder")

FAILED: Final = "the party failed; its own log has the reason"


def answered(
    name: str, request: bytes, answer: Callable[[Frame], Outgoing], failed: Callable[[Exception], None]
) -> Outgoing:
    """The answer to a frame. What was raised and may be told is a refusal; of all else `failed` is told, here."""
    try:
        frame = decode(request)
    except WireError as error:
        frame = Frame("error", _serial(request), b"", 0, "", {}, "")
        said = declare_public("error", f"malformed message: {error}", reason="about the message")
        return reply("error", frame, (said,))
    try:
        return answer(frame)
    except BudgetError as error:
        return reply("refuse", frame, _refusal("budget", str(error)))
    except RefusedError as error:
        return reply("refuse", frame, _refusal("refused", str(error)))
    except LedgerError as error:
        failed(error)
        _log.error("party %s: %s", name, error)
        said_of = "the party's ledger cannot be used; its own log has the reason"
        return reply("refuse", frame, _refusal("ledger", said_of))
    except SottovoceError as error:
        failed(error)
        _log.error("party %s: %s", name, error)
    except Exception as error:
        failed(error)
        _log.exception("party %s failed", name)
    return reply("error", frame, (declare_public("error", FAILED, reason="a fixed text"),))


def plan_of(text: str) -> Plan:
    """The plan of a message, or a refusal that names the first thing wrong with it."""
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
    """That it did, or did not do, what it was told."""
    return (declare_public("accepted", accepted, reason="an acknowledgement"),)


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
