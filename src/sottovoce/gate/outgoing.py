"""What may leave a party: values that only this package makes, and that nobody changes or copies afterwards.

A wire accepts only `Outgoing`; an `Outgoing` is made only by `reply`; `reply` takes only what passed a
`Gate` (`Released`, or a `Share` of a sum that is opened with all others), was declared public by name and with a reason
(`Declared`), or is a prediction for a recipient that the holder allows (`Disclosed`).
"""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.preparation import MOST_CLASSES
from sottovoce.errors import LeakError, RefusedError
from sottovoce.gate.frames import Frame, encode

GATE: Final = object()  # the gate takes it; nothing else may


class PublicName(NamedTuple):
    """Of a value that a party may say without noise: why it is public, and of exactly which kinds it is.

    `most` is for a list of such values, and how many it may have. numpy's numbers are of no kind.
    """

    why: str
    kinds: tuple[type, ...] = (str,)
    most: int | None = None


# What a party may say without noise. A name that is not here cannot leave.
PUBLIC_NAMES: Final[Mapping[str, PublicName]] = {
    "records": PublicName("row counts are fixed between neighbours", (int,)),
    "all_records": PublicName(
        "how many records people have together: told where the policy says so, for columns", (int,)
    ),
    "features": PublicName("the schema is public", (int,)),
    "feature_names": PublicName("the schema is public", most=10**9),
    "classes": PublicName("the class labels are schema", (bool, int, float, str), MOST_CLASSES),
    "accepted": PublicName("an acknowledgement", (bool,)),
    "refused": PublicName("made from the plan, the party's policy, its ledger and its alignment; never from rows"),
    "error": PublicName("one of a fixed list of texts"),
    "public_key": PublicName("random, and made to be told"),
    "receipt": PublicName("a number that follows from plans alone, and a hash by a key that stays in the ledger"),
    "budget": PublicName("what plans cost on an account; told where the policy says so", (float,), 16),
    "signature": PublicName("over a plan's digest or a public key, by a key that has no part in the data"),
    "id_rule": PublicName("by which rule identifiers are written is schema"),
    "aligned": PublicName("a hash of the common order by keys of all parties, which they have forgotten"),
    "solvers": PublicName("where a holder keeps its rows, in memory or elsewhere, is its choice", most=100),
}


class _Guarded:
    """Made of its fields, in their order, with the key `GATE` of this module; then neither changed nor copied."""

    __slots__ = ()

    def __new__(cls, *values: Any, made_by: object = None) -> Self:
        if made_by is not GATE:
            raise LeakError(f"{cls.__name__} is made by the gate alone; pass the value through it.")
        made = object.__new__(cls)
        for name, value in zip(cls.__annotations__, values, strict=True):
            if name == "arrays":
                for array in value.values():
                    array.setflags(write=False)
                value = MappingProxyType(dict(value))
            object.__setattr__(made, name, value)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise LeakError(f"{type(self).__name__} cannot be changed; pass the value through the gate.")

    def __delattr__(self, name: str) -> None:
        raise LeakError(f"{type(self).__name__} cannot be changed; pass the value through the gate.")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LeakError(f"{type(self).__name__} is neither copied nor pickled; it leaves through a wire.")


class Released(_Guarded):
    """A value that was charged for and carries its noise.

    It is integers on the grid `step`, or the plain value of a run that was planned without privacy.
    """

    __slots__ = ("arrays", "query", "round")
    query: str
    round: int
    arrays: Mapping[str, NDArray[Any]]


class Share(_Guarded):
    """A party's part of a secure sum: it tells nothing without the shares of all others in its roster.

    It was charged for, and carries its share of the noise.
    """

    __slots__ = ("arrays", "query", "round", "text")
    query: str
    round: int
    arrays: Mapping[str, NDArray[Any]]
    text: str


# What a party may send to the other parties under a mask and in an envelope, and why each tells nobody else anything.
MASKED_NAMES: Final[Mapping[str, str]] = {
    "offers": "ciphertexts of random secrets for later members, by which two ends agree on a key",
    "group": "a random key of the holder of the labels, in an envelope for each other party",
    "roots": "how much each record of a person weighs, by whose it is alone, in an envelope for the other parties",
    "columns": "whole numbers less a stream that no reader has, once a plan",
    "message": "bits and whole numbers less streams that no reader has, one content a label",
    "total": "the sum of such messages of all parties, each less a stream of its own",
    "salt": "random bytes of the sender, in an envelope for each other party",
    "list": "identifiers hashed to points and multiplied by fresh scalars, in an envelope for the next party",
    "words": "hashes of such points under scalars of all parties, sorted, for who matches them",
    "digest": "a hash of the common order by keys of all parties, in an envelope for each other party",
    "dealt": "random numbers of a dealer, which has no data, in an envelope that one party alone can read",
}


class Masked(_Guarded):
    """What the other parties of a plan may read: masked words in an envelope. The coordinator passes it on."""

    __slots__ = ("arrays", "name")
    name: str
    arrays: Mapping[str, NDArray[Any]]

    def __init__(self, name: str, envelopes: Mapping[str, NDArray[np.int64]], *, made_by: object) -> None:  # noqa: ARG002
        if name not in MASKED_NAMES:
            raise LeakError(f"name={name!r} is nothing that leaves under a mask; nothing was released.")


class Declared(_Guarded):
    """A public value with its name and the reason why it is public."""

    __slots__ = ("name", "reason", "value")
    name: str
    value: Any
    reason: str


class Disclosed(_Guarded):
    """Values about people for one recipient, whom the holder allows to learn them. No epsilon covers them."""

    __slots__ = ("arrays", "recipient")
    recipient: str
    arrays: Mapping[str, NDArray[Any]]


class Outgoing(_Guarded):
    """Bytes that may leave a party. Wires take nothing else."""

    __slots__ = ("data",)
    data: bytes


LEAVES: Final = (Released, Share, Masked, Disclosed)  # a subclass could skip the check of `made_by`


def declare_public(name: str, value: Any, *, reason: str) -> Declared:
    """Let a public value out, by name and with a reason.

    Guarantee: none is spent, so only schema, counts fixed between neighbours and fixed texts qualify;
    names outside `PUBLIC_NAMES`, and values of another kind than the name has, are refused.
    """
    if name not in PUBLIC_NAMES:
        raise LeakError(f"name={name!r} is not a public value; public values are {', '.join(PUBLIC_NAMES)}.")
    if not reason:
        raise LeakError(f"declare_public({name!r}) needs a reason that says why the value is public.")
    _, kinds, most = PUBLIC_NAMES[name]
    if most is None:
        fits = type(value) in kinds
    else:
        fits = type(value) in (list, tuple) and len(value) <= most and set(map(type, value)) <= set(kinds)
    if not fits:
        raise LeakError(
            f"declare_public({name!r}) got a value of another kind than this name has: records and features are int, "
            "feature_names and solvers lists of str, classes a few plain values, budget a list of floats, accepted a "
            "bool, the others a str."
        )
    return Declared(name, tuple(value) if isinstance(value, list) else value, reason, made_by=GATE)


def check_recipient(recipient: str, allowed: Collection[str]) -> None:
    """Refuse a recipient of predictions whom the holder did not name."""
    if recipient not in allowed:
        raise RefusedError(
            f"it takes no part in predictions for {recipient!r}; its holder can allow that with "
            f"Policy(predict_for=({recipient!r},)). A prediction tells about the person it is made for, at no epsilon."
        )


def disclose(name: str, value: NDArray[np.int64], *, recipient: str, allowed: Collection[str]) -> Disclosed:
    """Let values about people out for a recipient that their holder named; anybody else is refused."""
    check_recipient(recipient, allowed)
    if type(value) is not np.ndarray or value.dtype != np.int64:
        raise LeakError("a prediction leaves as whole numbers under masks; nothing was disclosed.")
    return Disclosed(recipient, {name: value}, made_by=GATE)


def reply(kind: str, request: Frame, content: Released | Share | Masked | Disclosed | tuple[Declared, ...]) -> Outgoing:
    """The frame that answers `request`: something released, shared, masked or disclosed, or what was declared."""
    arrays: Mapping[str, NDArray[Any]] = {}
    text = ""
    if isinstance(content, Released | Share | Masked | Disclosed) and type(content) in LEAVES:
        if type(content) is Disclosed and content.recipient != request.query:
            raise LeakError(f"a prediction for {content.recipient!r} answers no request for another recipient.")
        arrays = content.arrays
    elif type(content) is tuple and set(map(type, content)) <= {Declared}:
        text = json.dumps(dict(map(operator.attrgetter("name", "value"), content)))
    else:
        raise LeakError(
            "a reply is made of a Released value, a Share of a sum, a Disclosed value or Declared ones; pass the value "
            "through the gate."
        )
    frame = Frame(kind, request.serial, request.plan, request.round, request.query, arrays, text)
    return Outgoing(encode(frame), made_by=GATE)
