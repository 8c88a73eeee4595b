"""Prepared rows of a data set: in memory where they fit, else in a file that is read in every pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sottovoce.data.block import Block, tell_null_rows
from sottovoce.data.dataset import Dataset
from sottovoce.data.parts import Found, Integers, Part, Parts, Work, empty
from sottovoce.data.preparation import Preparation


class PartsInMemory(Parts):
    """Blocks of this process."""

    def __init__(self, about: Block, blocks: Sequence[Block]) -> None:
        super().__init__(about, list(map(len, blocks)))
        self._parts = [Part(block) for block in blocks]

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """One after the other; each of them has threads of its own."""
        for place, part in enumerate(self._parts):
            yield work(part if chosen is None else Part(part.block.take(chosen[place])))


def in_memory_or_file(data: Dataset, recipe: Preparation, beside: Path | None) -> Parts:  # noqa: ARG001
    """The rows of a data set by the recipe."""
    records, blocks = data.shape[0], list[Block]()
    for rows, labels in data.pieces():
        known = np.zeros(rows.shape[0]) if labels is None else labels
        blocks.append(Block.prepare(rows, known, recipe, records=records))
    tell_null_rows(sum(int(block.null_rows.sum()) for block in blocks), records)
    return PartsInMemory(empty(recipe, records), blocks)
