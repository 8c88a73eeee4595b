"""Where prepared rows lie: in memory, in a file, on a CUDA device or a cluster; the model is the same."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from numpy.typing import ArrayLike

from sottovoce.data.blas import take_buffers
from sottovoce.data.block import Block
from sottovoce.data.context import holding
from sottovoce.data.dataset import Dataset
from sottovoce.data.matrix import Matrix
from sottovoce.data.parts import SERVED
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError

DEVICES: Final = ("cpu", "cuda")

_CHOSEN: Final[ContextVar[str]] = ContextVar("device", default="cpu")


def check_device(device: Any) -> None:
    """Refuse what is no device, and one that is not there."""
    if device not in (None, *DEVICES):
        raise InputError(f"device={device!r} must be one of {', '.join(map(repr, DEVICES))}.")
    if device == "cuda":
        from sottovoce.data.device.loops import cupy

        cupy()


def on(device: str | None) -> AbstractContextManager[None]:
    """Rows that are prepared from here on in this thread are on that device; None leaves it as it is."""
    return holding(_CHOSEN, device)


def served(X: Any) -> tuple[str, ...] | None:
    """The solvers that a holder's rows serve where they lie; None: every one."""
    return SERVED if isinstance(X, Dataset) or _CHOSEN.get() != "cpu" else None


def refusal(solver: str, *, private: bool, by_pieces: bool, clustered: bool) -> str | None:
    """Why rows do not serve a solver where they lie, or None: whether they are a `Dataset`, and one on a cluster."""
    if not by_pieces and _CHOSEN.get() == "cpu":
        return None
    if solver not in SERVED:
        where, other = ("a Dataset", "arrays") if by_pieces else ('device="cuda"', 'device="cpu"')
        return f"{where} serves {', '.join(SERVED)}, and not {solver}; take one of them, or {other}"
    if _CHOSEN.get() != "cpu" and clustered:
        return 'device="cuda" is for rows of this process, and those of the Dataset are on a cluster; take device="cpu"'
    if _CHOSEN.get() != "cpu" and not private:
        return 'device="cuda" is for runs with privacy; take device="cpu"'
    return None


def prepared(X: Matrix, y: ArrayLike, recipe: Preparation, solver: str, beside: Path | None = None) -> Any:
    """The block of a holder's rows, where it was chosen to be; a file of rows is in the folder `beside` unless told."""
    take_buffers()
    if isinstance(X, Dataset) and X.cluster is not None:
        from sottovoce.data.cluster.parts import on_cluster

        return on_cluster(X, recipe)
    if isinstance(X, Dataset) and (_CHOSEN.get() == "cpu" or solver not in SERVED):
        from sottovoce.data.parts_in_file import in_memory_or_file

        return in_memory_or_file(X, recipe, beside)
    if _CHOSEN.get() == "cpu" or solver not in SERVED:
        return Block.prepare(X, y, recipe)
    from sottovoce.data.device.block import DeviceBlock

    return DeviceBlock.prepare(X, y, recipe)
