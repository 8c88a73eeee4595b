"""What the coordinator takes from a party: every reply is checked here, before anything is made of it.

A reply is of a kind that answers what was asked, of the same plan, round and query. Its text has the facts of that
kind and no others; its array has the type, the shape and the range that the query declares (`Query.gives`). Whatever
else comes is a `WireError` that names the party. What a party refuses is raised as its refusal. Envelopes from party to
party pass through the coordinator, which cannot read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sottovoce.data.preparation import MOST_CLASSES
from sottovoce.errors import BudgetError, LedgerError, RefusedError, WireError
from sottovoce.federation.answering import MOST_COLUMNS
from sottovoce.gate.frames import Frame, decode
from sottovoce.gate.gate import value_of
from sottovoce.gate.query import Choice, MessageArrays, Query, Wholes
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Label
from sottovoce.plan.release import Count
from sottovoce.privacy.ledger import Receipt
from sottovoce.secure.pair_keys import OFFER, OFFERS, PUBLIC
from sottovoce.transports.identity import LONGEST

Array = NDArray[np.float64]
MASKED: Final = "masked"  # the array of a joint prediction that has scores under masks
RECEIPT: Final = "receipt"  # the array of a proposed plan that has the last one: number, and the hash as four words
Text = Annotated[str, Field(max_length=10_000)]  # what a party says for people to read
Signature = Annotated[str, Field(max_length=LONGEST)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
PublicKey = Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * PUBLIC}}}$")]
Envelopes = Mapping[str, NDArray[Any]]


class ReplyFacts(BaseModel):
    """The text of a reply."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Introduced(ReplyFacts):
    """Who a party is."""

    records: Count
    all_records: Count | None = None  # of so many people, where a holder lets it be told
    features: Annotated[Count, Field(le=MOST_COLUMNS)]
    feature_names: list[str]
    aligned: Digest | None = None
    solvers: Annotated[list[Text], Field(max_length=100)] | None = None  # that its rows serve, where not all


class WithClasses(Introduced):
    """And which labels occur."""

    classes: Annotated[list[Label], Field(max_length=MOST_CLASSES)]


class WithKey(Introduced):
    """And the key of its masks."""

    public_key: PublicKey
    signature: Signature


class Acknowledged(ReplyFacts):
    """Whether it did what it was told."""

    accepted: bool


class Accepted(Acknowledged):
    """And, of a plan that it has charged, its signature, how far its ledger goes, and what is left if it tells that."""

    signature: Signature | None = None
    receipt: Annotated[str, Field(pattern="^[0-9]{12}:[0-9a-f]{64}$")] | None = None
    budget: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=16, max_length=16)] | None = None


class RefusedFacts(ReplyFacts):
    """That it refuses, and why."""

    error: Text
    refused: Text


class FailedFacts(ReplyFacts):
    """That it failed."""

    error: Text


class RunKeyed(ReplyFacts):
    """The public key of its secure sums, and of which alignment its records are."""

    public_key: PublicKey
    aligned: Digest | None = None


class Announced(ReplyFacts):
    """The public key of an alignment, how many identifiers it has, by which rule, and its signature on all of it."""

    public_key: PublicKey
    records: Count
    id_rule: Text
    signature: Signature


_HELLO: Final[Mapping[str, type[ReplyFacts]]] = {
    "classes": WithClasses,
    "predict": WithKey,
    "secure": RunKeyed,
    "invite": Announced,  # of an alignment
}
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {  # that answer a request, by its kind
    "hello": ("facts",),
    "plan": ("accept",),
    "start": ("accept", "unknown-plan"),
    "pair": ("answer", "accept", "unknown-plan"),
    "ask": ("answer", "unknown-plan"),
    "secure": ("answer", "accept", "unknown-plan"),
    "align": ("facts", "answer", "accept"),
    "predict": ("answer",),
    "done": ("done", "unknown-plan"),
}
_REFUSALS: Final[Mapping[str, type[Exception]]] = {"budget": BudgetError, "ledger": LedgerError}


@dataclass(frozen=True)
class CheckedReply:
    """A reply that was checked: the frame, and the facts of its text."""

    frame: Frame
    facts: dict[str, Any]


Exchange = Callable[
    [Iterable[str], Frame, Mapping[str, Envelopes]], dict[str, CheckedReply]
]  # a message, and what goes to each


def count_rows(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a party over columns: its records are rows, of so many people where it says so."""
    if facts.get("all_records") is None:
        return dict(facts)
    return {**facts, "records": facts["all_records"], "people": facts["records"]}


def check_reply(party: str, said: Frame, data: bytes, *, alone: bool = False) -> CheckedReply:
    """The reply of a party to what was said; its refusal is raised, and so is whatever is no reply.

    A party that is `alone` is not named in its own refusals.
    """
    try:
        frame = decode(data)
    except WireError as error:
        raise WireError(f"party {party!r} sent no frame: {error}") from None
    if frame.kind == "error":  # of a request that it could not read it knows neither plan nor round
        raise WireError(f"party {party!r}: {_read_facts(party, frame, FailedFacts)['error']}.")
    if (frame.plan, frame.round, frame.query) != (said.plan, said.round, said.query):
        raise WireError(f"party {party!r} answered round {said.round} with a frame of another plan, round or query.")
    if frame.kind == "refuse":
        told = _read_facts(party, frame, RefusedFacts)
        who = "" if alone or told["refused"].startswith(party) else f"{party}: "
        raise _REFUSALS.get(told["error"], RefusedError)(who + told["refused"])
    last = said.kind == "predict" and MASKED in said.arrays  # to the recipient, which has nothing to tell
    asked = said.query if said.kind == "plan" and said.query in ("start", "pair") else said.kind
    if frame.kind not in (("accept",) if last else _KINDS[asked]):
        raise WireError(f"party {party!r} answered {said.kind!r} with a frame of the kind {frame.kind!r}.")
    if frame.kind == "answer":
        if frame.text:
            raise WireError(f"party {party!r} sent a text with an answer, which has none.")
        return CheckedReply(frame, {})
    form: type[ReplyFacts] = Accepted if said.kind in ("plan", "done") else Acknowledged
    if frame.kind == "facts":
        form = _HELLO.get(said.query, Introduced)
    facts = _read_facts(party, frame, form)
    if facts.get("feature_names") and len(facts["feature_names"]) != facts["features"]:
        raise WireError(f"party {party!r} names {len(facts['feature_names'])} of its {facts['features']} features.")
    return CheckedReply(frame, facts)


def read_answer(party: str, plan: Plan, query: Query, message: MessageArrays, reply: CheckedReply) -> Array:
    """The value of an answer to a query that was sent `message`, if it is what the query and its release declare."""
    release, frame = plan.release(query.name), reply.frame
    exact = release.mechanism == "derived" or release.std == 0.0
    name = "value" if exact else "grid"
    numbers = frame.arrays.get(name)
    if frame.kind == "unknown-plan":
        raise _forgotten(party)
    if numbers is None or len(frame.arrays) > 1:
        got = ", ".join(map(repr, frame.arrays)) or "nothing"
        raise _unexpected(party, frame, f"{got}, not with {name!r} alone")
    if exact and isinstance(query, Choice):  # a choice without noise, which is sent as a float
        whole = numbers.dtype == np.float64 and bool(
            np.all((numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0**53))
        )
        reason = query.rejection(frame.round, message, numbers.astype(np.int64 if whole else np.float64))
    elif exact or isinstance(query, Choice):
        reason = query.rejection(frame.round, message, numbers)
    else:
        # As many whole numbers as the query has, none out of reach of the records, or of protected columns.
        reach = release.reach(max(plan.records, plan.dimension))
        wanted = Wholes((release.batches * query.length,), -reach, reach)
        reason = None if wanted.fits(numbers) else f"has to be {wanted}"
    if reason is not None:
        shape = " x ".join(map(str, numbers.shape)) or "one"
        raise _unexpected(party, frame, f"{shape} {numbers.dtype} numbers, which {reason}")
    return value_of(frame.arrays, release.scale)


def read_share(party: str, words: int, reply: CheckedReply) -> NDArray[np.int64]:
    """A party's share of a secure sum, of that many words."""
    share = reply.frame.arrays.get("share")
    if reply.frame.kind == "unknown-plan":
        raise _forgotten(party)
    if share is None or len(reply.frame.arrays) > 1 or share.dtype != np.int64 or share.shape != (words,):
        raise _unexpected(party, reply.frame, f"something else than {words} ring elements under 'share'")
    return share


def _forgotten(party: str) -> WireError:
    return WireError(f"party {party!r} forgot the plan again that it had just accepted; its own log may say why.")


def _unexpected(party: str, frame: Frame, what: str) -> WireError:
    return WireError(f"party {party!r} answered {frame.query!r} in round {frame.round} with {what}.")


def pack_receipt(receipt: Receipt) -> NDArray[np.int64]:
    """A receipt as a frame carries it to its party, so that a ledger that was set back is found."""
    words = np.frombuffer(bytes.fromhex(receipt.hash), dtype="<i8")
    return np.array([receipt.number, *words], dtype=np.int64)


def unpack_receipt(array: NDArray[Any]) -> Receipt:
    """The receipt that was packed; what is none gives one that no ledger has."""
    if array.shape != (5,) or array.dtype != np.int64:
        return Receipt(0, "none")
    return Receipt(int(array[0]), array[1:].astype("<i8").tobytes().hex())


def _read_facts(party: str, frame: Frame, form: type[ReplyFacts]) -> dict[str, Any]:
    """The text of a frame as facts, with the first that is wrong named."""
    try:
        found = form.model_validate_json(frame.text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "text"
        raise WireError(f"party {party!r} sent a {frame.kind!r} whose {where} is wrong: {first['msg']}.") from None
    if frame.arrays:
        raise WireError(f"party {party!r} sent numbers with a {frame.kind!r}, which has none.")
    return found.model_dump(exclude_none=True)


def envelope_of(sender: str, envelopes: Envelopes, name: str) -> NDArray[Any]:
    """The envelope of that name, which has to be there."""
    if name not in envelopes:
        raise WireError(f"{sender!r} sent no envelope where one is due.")
    return envelopes[name]


def crossed(names: Sequence[str], envelopes: Mapping[str, Envelopes]) -> dict[str, dict[str, NDArray[Any]]]:
    """Sort the envelopes that parties made for one another by receiver, then by the place of the sender."""
    places = {name: str(place) for place, name in enumerate(names)}
    return {
        name: {places[other]: envelope_of(other, envelopes[other], places[name]) for other in names if other != name}
        for name in names
    }


def crossed_offers(names: Sequence[str], envelopes: Mapping[str, Envelopes]) -> dict[str, dict[str, NDArray[Any]]]:
    """Of the offers of keys that each member made for all later ones: those for each, in the order of their senders."""
    each = {name: {OFFERS: np.zeros((place, OFFER // 8), dtype=np.int64)} for place, name in enumerate(names)}
    for place, name in enumerate(names):
        if name in envelopes or place < len(names) - 1:  # the last one, which may deal, makes none
            sent = envelope_of(name, envelopes[name], OFFERS)
            if sent.dtype != np.int64 or sent.shape != (len(names) - place - 1, OFFER // 8):
                raise WireError(f"{name!r} did not offer a key to each of {len(names) - place - 1} later members.")
            for other, offer in zip(names[place + 1 :], sent, strict=True):
                each[other][OFFERS][place] = offer
    return each
