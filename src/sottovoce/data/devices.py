"""Where prepared rows are: in memory, in a file, on a CUDA device or a cluster; the model is the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from sottovoce.data.block import Block, BlockRows, RecordRows, SumRows
from sottovoce.data.dataset import Dataset
from sottovoce.data.matrix import Matrix
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import Resources, take_buffers


def kind_of_rows(resources: Resources, *, by_pieces: bool) -> type:
    """What a holder's rows answer where they are prepared; `by_pieces`: they are a `Dataset`."""
    if resources.device == "cuda":
        return SumRows
    return BlockRows if by_pieces else RecordRows


def prepare_rows(  # noqa: PLR0913
    X: Matrix, y: ArrayLike, recipe: Preparation, resources: Resources, *, sums: bool, beside: Path | None = None
) -> Any:
    """The prepared rows, on the selected device if no more than `sums` is asked; a file of rows is `beside`."""
    take_buffers(os.getpid(), resources.jobs)
    rows: SumRows
    if isinstance(X, Dataset) and X.cluster is not None:
        from sottovoce.data.cluster.cluster_parts import on_cluster

        rows = on_cluster(X, recipe, resources)
    elif sums and resources.device == "cuda":
        from sottovoce.data.device.device_block import DeviceBlock

        rows = DeviceBlock.prepare(X, y, recipe, resources)
    elif isinstance(X, Dataset):
        from sottovoce.data.parts_in_file import in_memory_or_file

        rows = in_memory_or_file(X, recipe, beside, resources)
    else:
        rows = Block.prepare(X, y, recipe, resources=resources)
    return rows
