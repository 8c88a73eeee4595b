"""What the loops share.

What is computed for one record is a function of that record and of public numbers alone, bit for bit, in any place:
such code is compiled without leave to reorder or to fuse operations, so that vectorised and scalar instructions agree.
Leave to reorder is given to sums only, and these are exact: their terms are on public grids. A function without
options is compiled with its caller's leave, so every one has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[np.float64]
Entries = NDArray[Any]  # float32 or float64
Integers = NDArray[Any]  # the int32 or int64 of a sparse matrix

EXACT_SUM = {"reassoc", "contract", "nsz"}  # leave to add in any order


def _ask_for(_context: Any, array: Any, _place: Any) -> Any:
    """Code that asks for the memory of array[place] and waits for nothing; any place will do."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(view.data, [arguments[1]]), cgutils.voidptr_t)
        flags = [context.get_constant(types.int32, flag) for flag in (0, 2, 1)]  # read, second cache, data
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *(flag.type for flag in flags)])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind), [pointer, *flags])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Any = intrinsic(_ask_for)
