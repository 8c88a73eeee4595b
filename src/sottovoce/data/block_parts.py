"""Prepared rows in several parts, such as pieces of a file or partitions at the workers of a cluster.

Every sum of a private run is exact in any order (`matrix`), so the sum over all rows is that of the parts' sums, bit
for bit. A part is a `Block`; work comes to the parts, and what is small comes back. Where the parts are is one method,
`each`; all that `BlockRows` answer follows from that.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block
from sottovoce.data.matrix import Matrix, Term
from sottovoce.data.preparation import Preparation
from sottovoce.data.projection import Projected
from sottovoce.data.resources import NO_RESOURCES, Resources
from sottovoce.errors import LeakError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Found = TypeVar("Found")

VIEWS = 2  # of its rows that a part keeps: those of the stage, and those of the one before while they change


@dataclass(frozen=True, eq=False)
class RowView:
    """Rows seen through a public matrix and, once its length is known, clipped to it; every part makes its own."""

    matrix: Array
    made: bool
    length: float = 0.0
    name: str = field(default_factory=functools.partial(secrets.token_hex, 16))


class BlockPart:
    """A block of some of the rows, with the views of it that were made."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._views: dict[str, Projected] = {}

    def seen(self, view: RowView) -> Projected:
        """Its rows in a view, made when it is first asked for."""
        found = self._views.get(view.name)
        if found is None:
            found = self._views[view.name] = self.block.projected(view.matrix, made=view.made)
            for name in list(self._views)[:-VIEWS]:
                del self._views[name]
        if view.length and not found.ready:
            del self._views[view.name]  # a cut that fails leaves nothing half done
            found.cut(view.length)
            self._views[view.name] = found
        return found


Work = Callable[[BlockPart], Found]


class Parts(ABC):
    """`BlockRows` in several blocks.

    `about` is a block without rows, on the grid of all; `sizes` are the numbers of rows of the parts. A batch (`take`)
    names its rows and copies none.
    """

    def __init__(self, about: Block, sizes: Sequence[int]) -> None:
        self._about, self._sizes = about, tuple(sizes)
        self.bits, self.records, self.layout = about.bits, about.records, about.layout
        self.row_norm, self.dimension = about.row_norm, about.dimension

    @abstractmethod
    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """What `work` makes of each part, in their order; of `chosen`, if given, the named rows of each part alone."""

    def summed(self, work: Work[Any], chosen: Sequence[Integers] | None = None) -> Any:
        """The sum of what `work` makes of the parts."""
        total: Any = 0.0
        for found in self.each(work, chosen):
            total = total + found
        return total

    def __len__(self) -> int:
        return sum(self._sizes)

    @property
    def whole(self) -> Parts:
        return self

    @property
    def sum_bits(self) -> int:
        return self._about.sum_bits

    def digest(self) -> bytes:
        """Of the rows of all parts, in their order."""
        return hashlib.blake2b(b"".join(self.each(lambda part: part.block.digest())), digest_size=32).digest()

    def over(self, work: Callable[[Block], Array]) -> Array:
        """The sum of what `work` makes of each part: exact, if its own sums are."""
        return np.asarray(self.summed(lambda part: work(part.block)))

    def weighted_sum(self, weights: Array, term: Callable[..., Array]) -> Array:
        """sum_i term(x_i'w, y_i) x_i in one pass over the rows."""
        return np.asarray(self.summed(lambda part: part.block.weighted_sum(weights, term)))

    def gram(self) -> Array:
        return np.asarray(self.summed(lambda part: part.block.gram()))

    def gram_diagonal(self) -> Array:
        return np.asarray(self.summed(lambda part: part.block.gram_diagonal()))

    def number_sum(
        self, term: Callable[[Array, Array], Array], low: float = 0.0, weights: Array | None = None
    ) -> float:
        """sum_i of term(x_i'w, y_i) clipped to [low, 1], 0 for a null row."""
        return float(self.summed(lambda part: part.block.number_sum(term, low, weights)))

    def projected(self, matrix: Array, *, made: bool = False) -> ProjectedParts:
        """Rows seen through a triangular or diagonal matrix, or `made` once, by any matrix of few columns."""
        return ProjectedParts(self, RowView(matrix, made))

    def chunks(self, least: int = 1, scores: int = 1) -> Iterator[tuple[Matrix, Array]]:
        """Rows and labels piece by piece."""
        for block in self.each(lambda part: part.block):
            yield from block.chunks(least, scores)

    def cells(self, columns: Sequence[int]) -> Iterator[Array]:
        """Raw values of these columns piece by piece, without null rows."""
        for pieces in self.each(lambda part: list(part.block.cells(columns))):
            yield from pieces

    def take(self, indices: Integers) -> Parts:
        return Batch(self, indices)


class PartsInMemory(Parts):
    """Blocks of this process."""

    def __init__(self, about: Block, blocks: Sequence[Block]) -> None:
        super().__init__(about, list(map(len, blocks)))
        self._parts = [BlockPart(block) for block in blocks]

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """One after the other; each of them has threads of its own."""
        for place, part in enumerate(self._parts):
            yield work(part if chosen is None else BlockPart(part.block.take(chosen[place])))


class Batch(Parts):
    """Named rows of parts."""

    def __init__(self, whole: Parts, indices: Integers) -> None:
        cuts = np.cumsum([0, *whole._sizes])
        order = np.sort(indices)
        ends = np.searchsorted(order, cuts)
        self._chosen = [order[a:b] - start for a, b, start in zip(ends, ends[1:], cuts, strict=False)]
        super().__init__(whole._about, [len(own) for own in self._chosen])
        self._whole = whole

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        if chosen is not None:
            raise LeakError("a batch of a batch is none that a plan draws.")
        return self._whole.each(work, self._chosen)

    def summed(self, work: Work[Any], chosen: Sequence[Integers] | None = None) -> Any:
        return self._whole.summed(work, self._chosen) if chosen is None else super().summed(work, chosen)

    @property
    def whole(self) -> Parts:
        return self._whole


class ProjectedParts:
    """`Projected` of rows in parts: each part has its own lengths and shares, and the sums are finished here."""

    def __init__(self, parts: Parts, view: RowView) -> None:
        self._parts, self._view = parts, view
        self._empty = parts._about.projected(view.matrix, made=view.made)
        self.bits = self._empty.bits

    @property
    def ready(self) -> bool:
        return self._empty.ready

    def number_sum(self, term: Callable[[Array, Array], Array]) -> float:
        view = self._view
        return float(self._parts.summed(lambda part: part.seen(view).number_sum(term)))

    def cut(self, length: float) -> None:
        """Count each row as z min(1, C / |z|), C the length; once."""
        self._empty.cut(length)
        self._view = replace(self._view, length=length)

    def weighted_sum(self, point: Array, term: Term) -> Array:
        """sum_i term(z_i'u, y_i) times the cut row, u the point."""
        self._empty.weighted_sum(point, term)  # refuses what no part may sum
        view = self._view
        return self._empty.finished(np.asarray(self._parts.summed(lambda part: part.seen(view).exact_sum(point, term))))


def empty(recipe: Preparation, records: int, resources: Resources = NO_RESOURCES) -> Block:
    """A block without rows, on the grid of all `records`: what is public of a block with them."""
    return Block.prepare(np.zeros((0, recipe.features)), np.zeros(0), recipe, records, resources)
