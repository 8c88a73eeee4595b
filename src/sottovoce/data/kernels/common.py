"""What the loops share.

What is computed for one record is a function of that record and of public numbers alone, bit for bit, wherever the
record stands: such code is compiled without leave to reorder or to fuse operations, so that vectorised and scalar
instructions agree. Leave to reorder is given to sums only, and these are exact: their terms lie on public grids.
A function that is not told otherwise is compiled with its caller's leave, so every one is told.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Entries = NDArray[Any]  # float32 or float64
Integers = NDArray[Any]  # the int32 or int64 of a sparse matrix

EXACT_SUM = {"reassoc", "contract", "nsz"}  # leave to add in any order
