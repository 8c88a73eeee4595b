"""Where sums over prepared rows are computed: by the processor, or on a CUDA device; the model is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from numpy.typing import ArrayLike

from sottovoce.data.block import Block
from sottovoce.data.matrix import Matrix
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError

DEVICES: Final = ("cpu", "cuda")
SERVED: Final = ("newton", "gradient", "sgd", "whitened")  # solvers whose queries ask for what a device has

_CHOSEN: Final[ContextVar[str]] = ContextVar("device", default="cpu")


def check_device(device: Any) -> None:
    """Refuse what is no device, and one that is not there."""
    if device not in (None, *DEVICES):
        raise InputError(f"device={device!r} must be one of {', '.join(map(repr, DEVICES))}.")
    if device == "cuda":
        from sottovoce.data.device.loops import cupy

        cupy()


@contextmanager
def on(device: str | None) -> Iterator[None]:
    """Rows that are prepared from here on in this thread are on that device; None leaves it as it is."""
    token = _CHOSEN.set(_CHOSEN.get() if device is None else device)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def refusal(solver: str, *, private: bool, fits: bool) -> str | None:
    """Why the chosen device does not serve a solver, or None. What is no fit is computed by the processor."""
    if _CHOSEN.get() == "cpu" or not fits or (solver in SERVED and private):
        return None
    return f'device="cuda" serves {", ".join(SERVED)} with privacy, and not {solver}; take one of them, or device="cpu"'


def prepared(X: Matrix, y: ArrayLike, recipe: Preparation, solver: str) -> Any:
    """The block of a holder's rows, where it was chosen to be."""
    if _CHOSEN.get() == "cpu" or solver not in SERVED:
        return Block.prepare(X, y, recipe)
    from sottovoce.data.device.block import DeviceBlock

    return DeviceBlock.prepare(X, y, recipe)
