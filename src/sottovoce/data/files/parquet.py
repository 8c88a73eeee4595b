"""Parquet: columns with names and types, in groups of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.cells import arrow_texts, is_index
from sottovoce.data.files import format as formats
from sottovoce.data.files.format import UNCOUNTED, FilePart, FileShape, Labels, TableFormat, Wanted
from sottovoce.data.matrix import Matrix
from sottovoce.errors import InputError
from sottovoce.files import MOST_COLUMNS


class Parquet(TableFormat):
    """Row groups of a table that Arrow reads; needs the `parquet` extra."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    @classmethod
    def shape(cls, path: Path, records: int | None = None) -> FileShape:
        with _open_parquet(path) as file:
            meta, schema = file.metadata, file.schema_arrow
            groups = [meta.row_group(place) for place in range(meta.num_row_groups)]
            named = [field for field in schema if not is_index(field.name)]
        total = sum(group.num_rows for group in groups)
        if records not in (None, UNCOUNTED, total):
            raise InputError(f"records={records} is declared for {path}, which has {total}; correct it.")
        parts, start, count, size = list[FilePart](), 0, 0, 0
        for place, group in enumerate(groups):
            count, size = count + group.num_rows, size + group.total_byte_size
            if size >= formats.PART or place == len(groups) - 1:
                parts += [FilePart(count, start, place + 1 - start)] if count else []
                start, count, size = place + 1, 0, 0
        names, types = tuple(field.name for field in named), tuple(field.type for field in named)
        return FileShape(names, len(names), tuple(parts), types)

    @classmethod
    def check_alike(cls, path: Path, shape: FileShape, wanted: Wanted, first: Path) -> None:
        super().check_alike(path, shape, wanted, first)
        types = dict(zip(shape.names, shape.types, strict=True))
        for name in wanted.names if wanted.schema is None else ():
            if _is_text_column(path, name, types[name]) and name != wanted.label:
                raise InputError(
                    f"{path}: column {name!r} is not numeric. Name it as the label, or declare what the columns hold "
                    "in a schema (`sottovoce schema FILE` drafts one), which encodes text columns."
                )

    def cells(self, names: Sequence[str], rows: int) -> Iterator[Mapping[str, Any]]:
        return self._batches(names, min(rows, self.most_cells // max(len(names), 1)))

    def _batches(self, names: Sequence[str], rows: int) -> Iterator[Mapping[str, Any]]:
        """Columns of Arrow; of a column chunk a page is read at a time."""
        done, groups = 0, list(range(self.part.start, self.part.start + self.part.count))
        with _open_parquet(self.path, pre_buffer=False, buffer_size=1 << 16) as file:
            for batch in file.iter_batches(max(1, rows), groups, list(names), use_threads=False):
                done += batch.num_rows
                held = [{name: batch.column(name) for name in names}]
                del batch  # nobody has it while the next is read
                yield held.pop()
        self.check(done)

    def written(self, rows: int) -> Iterator[tuple[Matrix, Any]]:
        names = self.wanted.names
        return map(self._numbers, self._batches(names, min(rows, 8 * self.most_cells // max(len(names), 1))))

    def _numbers(self, cells: Mapping[str, Any]) -> tuple[Matrix, Any]:
        block = np.empty((len(next(iter(cells.values()))), len(self.wanted.features)))
        for place, name in enumerate(self.wanted.features):
            block[:, place] = self._column(name, cells[name])
        return block, None if self.wanted.label is None else cells[self.wanted.label]

    def label_values(self, cells: Any, *, whole: bool = False) -> Labels:  # noqa: ARG002
        return self._column(self.wanted.label or "", cells)

    @staticmethod
    def join_cells(cells: Sequence[Any]) -> Any:
        import pyarrow

        return pyarrow.chunked_array(cells)

    def _column(self, name: str, cells: Any) -> NDArray[Any]:
        """Numbers as floats, NaN where one is missing; texts as they are."""
        import pyarrow
        from pyarrow import types

        kind = cells.type.value_type if types.is_dictionary(cells.type) else cells.type
        if _is_text_column(self.path, name, kind):
            return np.array([cell or "" for cell in arrow_texts(cells.cast(kind))], dtype=object)
        # Arrow has no cast from a Boolean to a float; the first cast undoes dictionary encoding.
        number = pyarrow.int8() if types.is_boolean(kind) else kind
        return np.asarray(
            cells.cast(kind).cast(number).cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        )


@contextmanager
def _open_parquet(path: Path, **options: Any) -> Iterator[Any]:
    """An open file after its footer was read; what Arrow says of it becomes an `InputError`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f'{path}: reading Parquet needs pyarrow. Install it with: pip install "sottovoce[parquet]"'
        ) from None
    formats.check_data(path)
    try:
        with parquet.ParquetFile(path, **options) as file:
            count, names = file.metadata.num_columns, file.schema_arrow.names
            if count > MOST_COLUMNS:
                raise InputError(f"{path} has {count} columns, and at most {MOST_COLUMNS} are read.")
            if len(set(names)) < len(names):
                raise InputError(f"{path}: two columns have the same name.")
            yield file
    except pyarrow.ArrowMemoryError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path} has a column whose name is no UTF-8; write it again with another name.") from None
    except (pyarrow.ArrowException, OSError, EOFError):
        raise InputError(f"{path} is damaged, or not a Parquet file. Copy or write it again.") from None


def _is_text_column(path: Path, name: str, arrow_type: Any) -> bool:
    """Whether a column is of texts; else it is of numbers, and any other type is an error."""
    from pyarrow import types

    kind = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return False
    if types.is_string(kind) or types.is_large_string(kind):
        return True
    raise InputError(f"{path}: column {name!r} has the type {kind}. Convert it to a number or to text first.")
