"""What goes to a worker: which rows it is to work on, and the work itself, packed so that nothing else travels."""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import cloudpickle
import numpy as np

from sottovoce import __version__
from sottovoce.data.parts import Integers, View, Work
from sottovoce.data.slopes import Slope, Slopes
from sottovoce.errors import LeakError
from sottovoce.losses import Loss

Told = tuple[Any, ...]  # a view's name and length, and where it is told whole its matrix and how it is made

CODE: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    types.CellType,
    types.ModuleType,
    types.MappingProxyType,
    functools.partial,
    property,
    staticmethod,
    classmethod,
    type,
)
NUMBERS: Final = (np.ndarray, np.generic, np.dtype, np.ufunc, pickle.PickleBuffer)
PUBLIC: Final = (Slope, Slopes, Loss)
PACKAGES: Final = ("sottovoce.queries.", "sottovoce.algorithms.")  # queries are public configuration
SHAPES: Final = ("sottovoce.gate.query.Reals", "sottovoce.gate.query.Wholes")  # of messages, which queries declare


class UnknownViewError(Exception):
    """A view was told by its name, and is not there."""


@dataclass(frozen=True, eq=False)
class Message:
    """A round's work for one worker. Without `work` it is asked what it holds."""

    keys: list[str]  # of what it holds
    work: bytes | None = None
    digests: list[bytes] | None = None  # of the rows as they were first prepared
    chosen: list[list[Integers]] | None = None  # rows of each part, of a batch
    summed: bool = False
    version: str = __version__  # of whom it is from


@dataclass(frozen=True, eq=False)
class Reply:
    """What a worker says: an "answer", or why there is none: rows that are "gone" or "changed", a "view", a "fault"."""

    kind: str
    value: Any = None


def packed(work: Work[Any], *, whole: bool) -> tuple[bytes, set[str]]:
    """Work as bytes, and the names of its views, which are told `whole` or by name.

    Guarantee: code, numbers, texts, slopes, losses and queries can travel, and no other object: no gate, ledger, key or
    source of randomness, no rows, and no bytes, such as keys are. Edges: work that holds one is refused and nothing is
    sent.
    """
    to = io.BytesIO()
    packer = _Packer(to, whole)
    packer.dump(work)
    return to.getvalue(), packer.views


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, to: io.BytesIO, whole: bool) -> None:
        super().__init__(to, protocol=5)
        self._whole, self.views = whole, set[str]()
        self._bytes = set[bytes]()  # that code and single numbers consist of

    def persistent_id(self, found: Any) -> Told | None:
        if isinstance(found, bytearray) or (isinstance(found, bytes) and found not in self._bytes):
            raise LeakError("work for a cluster holds bytes; nothing was sent.")
        if not isinstance(found, View):
            return None
        self.views.add(found.name)
        return (found.name, found.length, found.matrix, found.made) if self._whole else (found.name, found.length)

    def reducer_override(self, found: Any) -> Any:
        name = f"{type(found).__module__}.{type(found).__qualname__}"
        if not (isinstance(found, CODE + NUMBERS + PUBLIC) or name.startswith(PACKAGES) or name in SHAPES):
            raise LeakError(f"work for a cluster holds a {type(found).__qualname__}; nothing was sent.")
        if isinstance(found, types.CodeType):
            self._bytes |= {found.co_code, found.co_linetable, getattr(found, "co_exceptiontable", b"")}
        if isinstance(found, np.generic):
            self._bytes.add(found.tobytes())
        if isinstance(found, np.ndarray) and not (found.dtype.hasobject or found.flags.forc):
            return found.copy().__reduce_ex__(5)  # one buffer, as others are
        return super().reducer_override(found)


def unpacked(work: bytes, known: Mapping[str, View]) -> tuple[Work[Any], list[View]]:
    """The work and the views that it was told, at a worker; `known` are those that it has."""
    reader = _Reader(io.BytesIO(work))
    reader.known = known
    reader.views = []
    return reader.load(), reader.views


class _Reader(pickle.Unpickler):
    known: Mapping[str, View]
    views: list[View]

    def persistent_load(self, told: Told) -> View:
        name, length, *more = told
        if more:
            found = View(more[0], more[1], length, name)
        elif name in self.known:
            found = replace(self.known[name], length=length)
        else:
            raise UnknownViewError
        self.views.append(found)
        return found
