"""Records in several files, or in one that does not fit in memory: read piece by piece, never all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sottovoce.app.jobs import SourceTable
from sottovoce.data import readers, room
from sottovoce.data.sources import NUMPY, is_pattern, listed
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.data.dataset import Dataset
    from sottovoce.data.schema import Schema

# Bytes of memory that a byte of a file takes when it is read whole: as numbers, and as cells for a schema.
_WEIGHTS: Final = {readers.CSV: (3, 12), readers.PARQUET: (12, 40), readers.LIBSVM: (4, 4)}
_PACKED: Final = 5  # times more if it is compressed


def is_large(path: Path, *, cells: bool = False) -> bool:
    """Whether records are read piece by piece: of a folder, of a pattern, of .npy, and of a file that does not fit.

    By names and sizes alone; no file is opened. `cells`: a schema reads them.
    """
    if path.is_dir() or is_pattern(path) or path.suffix.lower() in NUMPY:
        return True
    if not path.is_file():
        return False
    kind, packed = readers.kind_of(path), path.suffix.lower() in readers.COMPRESSED
    weight = next(weights for kinds, weights in _WEIGHTS.items() if kind in kinds)[cells]
    return path.stat().st_size * weight * (_PACKED if packed else 1) > room.available()


def goes_by_pieces(source: SourceTable, path: Path, *, cells: bool = False) -> bool:
    """The same of a job's source, which may also ask for a cluster, or for a file of prepared rows that is kept."""
    return source.keep or source.cluster is not None or is_large(path, cells=cells)


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
        keep=source.keep,
        cluster=source.cluster,
    )
    if labelled and not data.labelled:
        what = "label, the name of its label column" if schema is None else "the label column of the schema"
        raise InputError(f"{path} needs {what}.")
    return data


def first_cells(path: Path) -> dict[str, Any]:
    """The columns of the first records of the first file, as they are written."""
    from sottovoce.data.sources import first_records

    return first_records(listed(path)[0])


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
