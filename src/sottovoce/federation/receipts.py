"""A party's receipt as frames carry it: how far its ledger goes, so that one that was set back is found."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.privacy.ledger import Receipt

RECEIPT: Final = "receipt"  # the array of a proposed plan that has the last one: number, and the hash as four words


def packed(receipt: Receipt) -> NDArray[np.int64]:
    """A receipt as a frame carries it to its party."""
    words = np.frombuffer(bytes.fromhex(receipt.hash), dtype="<i8")
    return np.array([receipt.number, *words], dtype=np.int64)


def unpacked(array: NDArray[Any]) -> Receipt:
    """The receipt that was packed; what is none gives one that no ledger has."""
    if array.shape != (5,) or array.dtype != np.int64:
        return Receipt(0, "none")
    return Receipt(int(array[0]), array[1:].astype("<i8").tobytes().hex())
