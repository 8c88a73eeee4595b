"""Where prepared rows lie: in memory, in a file, on a CUDA device or a cluster; the model is the same."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from numpy.typing import ArrayLike

from sottovoce.data.blas import take_buffers
from sottovoce.data.block import Block, BlockRows, RecordRows, SumRows
from sottovoce.data.context import holding
from sottovoce.data.dataset import Dataset
from sottovoce.data.matrix import Matrix
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


def kind_of_rows(*, by_pieces: bool) -> type:
    """What a holder's rows answer where they are prepared; `by_pieces`: they are a `Dataset`."""
    if _CHOSEN.get() != "cpu":
        return SumRows
    return BlockRows if by_pieces else RecordRows


def prepared(X: Matrix, y: ArrayLike, recipe: Preparation, *, sums: bool, beside: Path | None = None) -> Any:
    """The prepared rows, on the selected device if no more than `sums` is asked; a file of rows is `beside`."""
    take_buffers()
    rows: SumRows
    if isinstance(X, Dataset) and X.cluster is not None:
        from sottovoce.data.cluster.parts import on_cluster

        rows = on_cluster(X, recipe)
    elif sums and _CHOSEN.get() != "cpu":
        from sottovoce.data.device.block import DeviceBlock

        rows = DeviceBlock.prepare(X, y, recipe)
    elif isinstance(X, Dataset):
        from sottovoce.data.parts_in_file import in_memory_or_file

        rows = in_memory_or_file(X, recipe, beside)
    else:
        rows = Block.prepare(X, y, recipe)
    return rows
