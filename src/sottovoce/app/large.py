"""Records in several files, or in one that does not fit in memory: read piece by piece, never all at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.app.jobs import SourceTable
from sottovoce.data import progress, readers, room
from sottovoce.data.opening import NUMPY, is_pattern, listed, table_size
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.data.dataset import Dataset
    from sottovoce.data.schema import Schema

NUMBER, CELL = 32, 120  # bytes of memory that a cell of a table takes when it is read whole, as a number and as it is


def is_large(path: Path, *, cells: bool = False, declared: int | None = None) -> bool:
    """Whether records are read piece by piece: of a folder, of a pattern, of .npy, and of a table that does not fit.

    That is decided by records times columns, `declared` or counted, for others see it: which solvers serve follows from
    it. A LIBSVM file, whose size its records decide, is read whole. `cells`: a schema reads the table.
    """
    if path.is_dir() or is_pattern(path) or path.suffix.lower() in NUMPY:
        return True
    if not path.is_file() or readers.kind_of(path) in readers.LIBSVM:
        return False
    size = _counted(path, path.stat().st_mtime_ns, path.stat().st_size) if declared is None else declared
    return size * (CELL if cells else NUMBER) > room.available()


@functools.lru_cache(maxsize=16)
def _counted(path: Path, _written: int, _bytes: int) -> int:
    """Records times columns; 0 of a file that cannot be read, of which whoever reads it tells."""
    try:
        return table_size(path)
    except InputError:
        return 0


def goes_by_pieces(source: SourceTable, path: Path, schema: Schema | None = None) -> bool:
    """The same of a job's source, which may also ask for it: by a cluster, or by a folder for prepared rows."""
    columns = source.features if schema is None else len(schema.columns)
    declared = None if source.records is None or columns is None else source.records * columns
    asked = source.folder is not None or source.cluster is not None
    return asked or is_large(path, cells=schema is not None, declared=declared)


def dataset_of(
    source: SourceTable, resolve: Callable[[str], Path], schema: Schema | None, *, labelled: bool
) -> Dataset:
    """The records of a job's source; `labelled` says that they must have labels."""
    from sottovoce.data.dataset import Dataset

    path, label = resolve(source.file), source.label
    if isinstance(label, str) and Path(label).suffix.lower() in NUMPY:
        label = str(resolve(label))
    data = Dataset(
        path,
        label=label,
        schema=schema,
        features=source.features,
        left_out=source.id,
        records=source.records,
        folder=None if source.folder is None else resolve(source.folder),
        cluster=source.cluster,
    )
    if labelled and not data.labelled:
        what = "label, the name of its label column" if schema is None else "the label column of the schema"
        raise InputError(f"{path} needs {what}.")
    return data


def first_cells(path: Path) -> dict[str, Any]:
    """The columns of the first records of the first file, as they are written."""
    from sottovoce.data.opening import first_records

    first = listed(path)[0]
    if first.suffix.lower() in NUMPY:
        raise InputError(f"{first.name}: a schema is for CSV and Parquet files, whose columns have names.")
    return first_records(first)


def scored(fitted: Any, path: Path) -> Iterator[tuple[Any, Any]]:
    """(predictions, probabilities or None) of records in files, piece by piece, in their order."""
    import warnings

    import numpy as np

    from sottovoce.data.dataset import Dataset

    schema = fitted._schema
    names = tuple(map(str, getattr(fitted, "feature_names_in_", ())))
    known = None if schema is None else schema.of_features(names or schema.feature_names)
    data, done = Dataset.features_of(path, names, known, fitted.n_features_in_), 0
    for rows, _ in data.pieces():
        if known is None and not hasattr(rows, "indptr"):
            bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if bad.size:
                raise InputError(
                    f"{path}: record {done + int(bad[0]) + 1} has values that are missing, infinite or no numbers; "
                    "fill them in or leave it out."
                )
        done += rows.shape[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            piece = Dataset.from_arrays(rows)
            shares = fitted.predict_proba(piece) if hasattr(fitted, "predict_proba") else None
            yield fitted.predict(piece), shares
        progress.say(progress.PREDICTING, done, data.shape[0])
