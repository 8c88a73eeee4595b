"""The one door of a party: charge, then noise, then `Released`; nothing else can be put on a wire.

A wire accepts only `Outgoing`; an `Outgoing` is made only by `reply`; `reply` takes only what passed a
`Gate` (`Released`), was declared public by name and with a reason (`Declared`), or is a prediction for a recipient that
the holder allows (`Disclosed`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.door.frames import Frame, decode, encode
from sottovoce.door.noisy_rows import draw
from sottovoce.door.query import Derivable, Following, Query, Walk
from sottovoce.errors import LeakError, RefusedError
from sottovoce.privacy.mechanisms import (
    largest_signed,
    noisy_max_signed,
    poisson_sample,
    rounded_gaussian,
    select,
    select_signed,
)
from sottovoce.privacy.randomness import Randomness

if TYPE_CHECKING:
    from sottovoce.data.block import Block
    from sottovoce.door.noisy_rows import Keeper
    from sottovoce.plan.plan import Release
    from sottovoce.privacy.ledger import Account

_SEAL: Final = object()

# What a party may say without noise, and why each is public. A name that is not here cannot leave.
PUBLIC_NAMES: Final[Mapping[str, str]] = {
    "records": "row counts are fixed between neighbours",
    "features": "the schema is public",
    "feature_names": "the schema is public",
    "classes": "the two class labels are schema",
    "accepted": "an acknowledgement",
    "kept_rows": "a name that follows from an earlier plan; whether a holder's data changed since counts as public",
    "refused": "made from the plan, the party's policy and its ledger, never from rows",
    "error": "one of a fixed list of texts",
    "public_key": "random, and made to be told",
}


def _is(*kinds: type, most: int | None = None) -> Callable[[Any], bool]:
    """Whether a value has exactly one of the kinds (numpy's numbers are none); `most`: a list of so many."""
    if most is None:
        return lambda value: type(value) in kinds
    return lambda value: type(value) in (list, tuple) and len(value) <= most and all(type(v) in kinds for v in value)


_SHAPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "records": _is(int),
    "features": _is(int),
    "feature_names": _is(str, most=10**9),
    "classes": _is(bool, int, float, str, most=2),
    "accepted": _is(bool),
    "kept_rows": lambda value: type(value) is tuple and tuple(map(type, value)) == (str, float),
    "refused": _is(str),
    "error": _is(str),
    "public_key": _is(str),
}


class _Sealed:
    """Made with the seal of this module, then neither changed nor copied."""

    __slots__ = ()

    def __new__(cls, *arguments: Any, seal: object = None) -> Any:  # noqa: ARG004
        if seal is not _SEAL:
            raise LeakError(f"{cls.__name__} is made by the gate alone; pass the value through it.")
        return object.__new__(cls)

    def _fill(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise LeakError(f"{type(self).__name__} cannot be changed; pass the value through the gate.")

    def __delattr__(self, name: str) -> None:
        raise LeakError(f"{type(self).__name__} cannot be changed; pass the value through the gate.")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LeakError(f"{type(self).__name__} is neither copied nor pickled; it leaves through a wire.")


class Released(_Sealed):
    """A value that was charged for and carries its noise.

    It is integers on the grid `step`, or the plain value of a run that was planned without privacy.
    """

    __slots__ = ("arrays", "query", "round")
    arrays: Mapping[str, NDArray[Any]]
    query: str
    round: int

    def __init__(self, query: str, round_: int, arrays: Mapping[str, NDArray[Any]], *, seal: object) -> None:  # noqa: ARG002
        for array in arrays.values():
            array.setflags(write=False)
        self._fill(query=query, round=round_, arrays=MappingProxyType(dict(arrays)))


class Kept(_Sealed):
    """A party's prepared rows with their noise: records x columns, read-only. They stay with the party.

    Whatever is computed from them and from public numbers may leave (`Gate.derived`).
    """

    __slots__ = ("rows",)
    rows: NDArray[Any]

    def __init__(self, rows: NDArray[Any], *, seal: object) -> None:  # noqa: ARG002
        rows.setflags(write=False)
        self._fill(rows=rows)


class Declared(_Sealed):
    """A public value with its name and the reason why it is public."""

    __slots__ = ("name", "reason", "value")
    name: str
    reason: str
    value: Any

    def __init__(self, name: str, value: Any, reason: str, *, seal: object) -> None:  # noqa: ARG002
        self._fill(name=name, value=value, reason=reason)


class Disclosed(_Sealed):
    """Values about people for one recipient, whom the holder allows to learn them. No epsilon covers them."""

    __slots__ = ("arrays", "recipient")
    arrays: Mapping[str, NDArray[Any]]
    recipient: str

    def __init__(self, recipient: str, arrays: Mapping[str, NDArray[Any]], *, seal: object) -> None:  # noqa: ARG002
        for array in arrays.values():
            array.setflags(write=False)
        self._fill(recipient=recipient, arrays=MappingProxyType(dict(arrays)))


class Outgoing(_Sealed):
    """Bytes that may leave a party. Wires take nothing else."""

    __slots__ = ("data",)
    data: bytes

    def __init__(self, data: bytes, *, seal: object) -> None:  # noqa: ARG002
        self._fill(data=data)


class Gate:
    """The door of one party for one plan.

    Guarantee: what leaves is `round(value / step) + round(std / step * Z)` on the grid `step`, which is a
    post-processing of the Gaussian mechanism at sensitivity Delta + step sqrt(entries); or the place of the largest
    score + std * Gumbel, or score + Laplace noise, scores rounded to that grid. The cost was reserved before the gate
    was made, and each (plan, round, query) is released once: a second request gets the stored value, whatever it
    carries. Where the plan samples, the gate itself flips each record's secret coin and answers also for an empty
    batch. Edges: a query the plan does not list, a round outside the plan's, a query whose sensitivity is above what
    was charged, another mechanism than was charged, or rows that were not prepared for privacy, are refused and nothing
    leaves. Without a ledger the rounds of a query go up, unless it is `unordered`: then all its releases are kept.
    Threads take turns.
    """

    def __init__(
        self,
        plan: bytes,
        releases: Mapping[str, Release],
        records: int,
        randomness: Randomness,
        account: Account | None,
        keeper: Keeper | None = None,
    ) -> None:
        self._plan = plan
        self._releases = releases
        self._records = records
        self._randomness = randomness
        self._account = account
        self._keeper = keeper
        self._kept: dict[str, Kept] = {}
        self._checked: dict[str, Query | Walk] = {}  # queries are frozen: one check holds for all rounds
        self._last: dict[str, Released] = {}
        self._all: dict[tuple[str, int], Released] = {}  # of unordered queries, without a ledger
        self.unsaid = False  # whether the last value drawn did not leave: it failed, or another process was first
        self._one_at_a_time = threading.Lock()

    @property
    def randomness(self) -> Randomness:
        """The party's source, for a published form whose noise protects nothing and is none of the gate's."""
        return self._randomness

    def gaussian(self, query: Query, round_: int, block: Block, *arguments: Any) -> Released:
        """Release `query` on private rows in round `round_`, with the noise of the plan.

        A plan with several batches a release has the query say its next arguments from each released value
        (`follow`); every batch has its own coins and its own noise, as if each were a message of its own.
        """

        def noisy(release: Release) -> dict[str, NDArray[Any]]:
            said = arguments
            grids: list[NDArray[np.int64]] = []
            for rows in self._drawn(release, block):
                if grids:
                    released = np.asarray(grids[-1] * release.step, dtype=np.float64)
                    said = cast("Following", query).follow(released, *said)
                value = query.value(rows, *said)
                if release.std == 0.0:
                    return {"value": value}
                if not grids:
                    noise = self._noise(release, query.weights, value.size)
                if value.shape != noise[len(grids)].shape:  # one draw would be spread over several numbers
                    raise LeakError(f"query {query.name!r} is no vector as long as its noise; nothing was released.")
                grids.append(np.rint(value / release.step).astype(np.int64) + noise[len(grids)])
            return {"grid": np.concatenate(grids)}

        return self._once("gaussian", query, round_, block, noisy)

    def walk(self, query: Walk, round_: int, block: Block, *arguments: Any) -> Released:
        """Release a sequence of numbers, each a function of the rows and of those released before it.

        The noise of all of them is drawn here, first; `query` adds it to one number after another. A sequence of
        adaptive Gaussian releases costs what one release of all of them costs.
        """

        def noisy(release: Release) -> dict[str, NDArray[Any]]:
            (rows,) = self._drawn(release, block)
            if release.std == 0.0:
                return {"value": query.walk(rows, None, 0.0, *arguments)}
            noise = rounded_gaussian(release.std / release.step, query.length, self._randomness)
            grid = query.walk(rows, noise, release.step, *arguments)
            if grid.dtype != np.int64 or grid.shape != noise.shape:
                raise LeakError(f"query {query.name!r} made no integers of its noise; nothing was released.")
            return {"grid": grid}

        return self._once("gaussian", query, round_, block, noisy)

    def select(self, query: Query, round_: int, block: Block, *arguments: Any) -> Released:
        """Release which candidate has the largest score + std * Gumbel; the scores are rounded to the grid first."""

        def chosen(release: Release) -> dict[str, NDArray[Any]]:
            scores = query.value(block, *arguments)
            if release.std == 0.0:
                return {"value": np.array([float(np.argmax(scores))])}
            grid = np.rint(scores / release.step) * release.step
            return {"grid": np.array([select(grid, 1 / release.std, self._randomness)])}

        return self._once("selection", query, round_, block, chosen)

    def select_signed(self, query: Query, round_: int, block: Block, *arguments: Any) -> Released:
        """Release which value has, with one of its signs, the largest score + std * Gumbel: j + 1 or -(j + 1).

        If the query `stays`, its last value has no sign: it is the score of the answer 0. Rounded as for `select`.
        """

        def chosen(release: Release) -> dict[str, NDArray[Any]]:
            values = query.value(block, *arguments)
            if release.std == 0.0:
                return {"value": np.array([float(largest_signed(*_to_sign(query, values)))])}
            grid = np.rint(values / release.step)
            grid *= release.step
            signed, stay = _to_sign(query, grid)
            return {"grid": np.array([select_signed(signed, 1 / release.std, self._randomness, stay)], dtype=np.int64)}

        return self._once("selection", query, round_, block, chosen)

    def noisy_max(self, query: Query, round_: int, block: Block, *arguments: Any) -> Released:
        """Release which value has, with one of its signs, the largest score + Laplace noise of scale std.

        Answers as `select_signed`; scores and noise are rounded to the grid.
        """

        def chosen(release: Release) -> dict[str, NDArray[Any]]:
            values, stay = _to_sign(query, query.value(block, *arguments))
            if release.std == 0.0:
                return {"value": np.array([float(largest_signed(values, stay))])}
            code = noisy_max_signed(values, release.std, release.step, self._randomness, stay)
            return {"grid": np.array([code], dtype=np.int64)}

        return self._once("noisy-max", query, round_, block, chosen)

    def keep(self, query: Query, block: Block, *arguments: Any) -> Kept:
        """The rows of `query` (a row of the value for each record) with the noise of the plan: drawn once, then kept.

        With a keeper they are those of earlier runs wherever these may be used again. Values are rounded toward zero
        on the grid, which makes no row longer. Without privacy they are the rows as they are.
        """
        with self._one_at_a_time:
            if query.name in self._kept:
                return self._kept[query.name]
            release = self._permitted("kept", query, None, block)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                rows: NDArray[Any]
                value = query.value(block, *arguments).reshape(len(block), -1)
                if release.std == 0.0:
                    rows = value
                elif self._keeper is not None:
                    rows = self._keeper.take(query, release, value, self._randomness)
                else:
                    rows = draw(value, release.std, release.step, self._randomness).values()
            self._kept[query.name] = Kept(rows, seal=_SEAL)
            return self._kept[query.name]

    def derived(self, query: Derivable, round_: int, kept: Kept, *arguments: Any) -> Released:
        """Release a function of kept rows and of public numbers: no noise, no charge, and nothing to store.

        Whoever asks again gets the same function, or another one; neither says more than the kept rows do.
        """
        with self._one_at_a_time:
            self.unsaid = False
            self._permitted("derived", query, round_, None)
            if not any(kept is known for known in self._kept.values()):
                raise LeakError(
                    f"query {query.name!r} was not given the rows that this gate keeps; nothing was released."
                )
            with np.errstate(all="ignore"):
                value = np.array(query.derive(kept.rows, *arguments), dtype=np.float64)
            return Released(query.name, round_, {"value": value}, seal=_SEAL)

    def _noise(self, release: Release, weights: NDArray[np.float64] | float, size: int) -> NDArray[np.int64]:
        """A row of noise for each batch, in units of the grid."""
        scale = release.std / release.step / weights
        scales = np.tile(scale, release.batches) if np.ndim(scale) else scale
        drawn = rounded_gaussian(scales, release.batches * size, self._randomness)
        return drawn.reshape(release.batches, size)

    def _drawn(self, release: Release, block: Block) -> Iterator[Block]:
        """The records of each batch: those whose secret coins came up, where the plan samples.

        The coins of all batches are one row of coins: who has coin i in batch k has coin k len(block) + i in the row.
        """
        if release.rate is None or release.rate == 1.0:
            yield from (block for _ in range(release.batches))
            return
        sample = poisson_sample(release.batches * len(block), release.rate, self._randomness)
        ends = np.searchsorted(sample, len(block) * np.arange(release.batches + 1))
        for k in range(release.batches):
            yield block.take(sample[ends[k] : ends[k + 1]] - k * len(block))

    def _once(
        self,
        mechanism: str,
        query: Query | Walk,
        round_: int,
        block: Block,
        make: Callable[[Release], dict[str, NDArray[Any]]],
    ) -> Released:
        """The stored release, or a new one after every check; threads take turns."""
        with self._one_at_a_time:
            self.unsaid = False
            unordered = bool(getattr(query, "unordered", False))
            earlier = self._stored(query.name, round_, unordered)
            if earlier is not None:
                return earlier
            release = self._permitted(mechanism, query, round_, block)
            self.unsaid = True
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                arrays = make(release)
            return self._keep(Released(query.name, round_, arrays, seal=_SEAL), unordered)

    def _permitted(self, mechanism: str, query: Any, round_: int | None, block: Block | None) -> Release:
        """The release of a query after every check; `round_` is None for what has no round."""
        release = self._releases.get(query.name)
        in_time = release is not None and (round_ is None or release.first <= round_ < release.first + release.count)
        if release is None or not in_time:
            raise RefusedError(f"query {query.name!r} in round {round_} is not in the plan; nothing was released.")
        if release.mechanism != mechanism:
            raise LeakError(f"query {query.name!r} was charged as a {release.mechanism}; nothing was released.")
        if release.std > 0.0:
            if self._checked.get(query.name) is not query:
                release.check(query, self._records)
                self._checked[query.name] = query
            if block is None or block.bits is None:
                raise LeakError("the rows were prepared for a run without privacy; nothing was released.")
        return release

    def _stored(self, query: str, round_: int, unordered: bool) -> Released | None:
        if self._account is not None:
            data = self._account.stored(self._plan.hex(), round_, query)
            return None if data is None else Released(query, round_, decode(data).arrays, seal=_SEAL)
        if unordered:
            return self._all.get((query, round_))
        last = self._last.get(query)
        if last is None or round_ > last.round:
            return None
        if last.round == round_:
            return last
        raise RefusedError(f"round {round_} is over, and a party without a ledger keeps only its last release.")

    def _keep(self, released: Released, unordered: bool) -> Released:
        """Durably, before anybody sees it."""
        self._last[released.query] = released
        if self._account is None:
            if unordered:
                self._all[released.query, released.round] = released
            self.unsaid = False
            return released
        offered = encode(Frame("answer", 0, self._plan, released.round, released.query, released.arrays, ""))
        stored = self._account.release(self._plan.hex(), released.round, released.query, offered)
        self.unsaid = stored != offered
        return Released(released.query, released.round, decode(stored).arrays, seal=_SEAL)


def _to_sign(query: Query, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float | None]:
    """The values that have both signs, and the score of staying where the query has one."""
    if getattr(query, "stays", False):
        return values[:-1], float(values[-1])
    return values, None


def value_of(arrays: Mapping[str, NDArray[Any]], unit: float) -> NDArray[np.float64]:
    """The number behind a released message: grid times the release's unit, or the plain value without privacy."""
    if "grid" in arrays:
        return np.asarray(arrays["grid"] * unit, dtype=np.float64)
    return np.asarray(arrays["value"], dtype=np.float64)


def declare_public(name: str, value: Any, *, reason: str) -> Declared:
    """Let a public value out, by name and with a reason.

    Guarantee: none is spent, so only schema, counts fixed between neighbours and fixed texts qualify;
    names outside `PUBLIC_NAMES`, and values of another kind than the name has, are refused.
    """
    if name not in PUBLIC_NAMES:
        raise LeakError(f"name={name!r} is not a public value; public values are {', '.join(PUBLIC_NAMES)}.")
    if not reason:
        raise LeakError(f"declare_public({name!r}) needs a reason that says why the value is public.")
    if not _SHAPES[name](value):
        raise LeakError(
            f"declare_public({name!r}) got a value of another kind than this name has: records and features are int, "
            "feature_names a list of str, classes at most two plain values, accepted a bool, the others a str."
        )
    return Declared(name, tuple(value) if isinstance(value, list) else value, reason, seal=_SEAL)


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
        raise LeakError("a prediction leaves as whole numbers under pads; nothing was disclosed.")
    return Disclosed(recipient, {name: value}, seal=_SEAL)


def reply(kind: str, request: Frame, content: Released | Disclosed | tuple[Declared, ...]) -> Outgoing:
    """The frame that answers `request`, made of a released value, a disclosed one or of declared ones."""
    arrays: Mapping[str, NDArray[Any]] = {}
    text = ""
    # a subclass could skip the seal
    if type(content) is Released or type(content) is Disclosed:
        if type(content) is Disclosed and content.recipient != request.query:
            raise LeakError(f"a prediction for {content.recipient!r} answers no request for another recipient.")
        arrays = content.arrays
    elif type(content) is tuple and all(type(item) is Declared for item in content):
        text = json.dumps({item.name: item.value for item in content})
    else:
        raise LeakError(
            "a reply is made of a Released value, a Disclosed one or of Declared ones; pass the value through the gate."
        )
    frame = Frame(
        kind=kind,
        serial=request.serial,
        plan=request.plan,
        round=request.round,
        query=request.query,
        arrays={name: np.asarray(array) for name, array in arrays.items()},
        text=text,
    )
    return Outgoing(encode(frame), seal=_SEAL)
