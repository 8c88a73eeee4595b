"""How the files of the public data sets are read, each as its home has it."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.data.files import FileTable, read_columns, read_table
from sottovoce.data.files.format import COMPRESSED, SPACES, open_data
from sottovoce.data.files.libsvm import Libsvm
from sottovoce.errors import InputError


@dataclass(frozen=True, eq=False)
class EncodedTable(FileTable):
    """A table with its columns as they were before they became numbers."""

    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def find_file(folders: list[Path], name: str, files: Iterable[str]) -> Path | None:
    """The first of the files, plain or compressed, that is in the sub-folder `name` of one of the folders."""
    paths = (folder / name / (file + end) for folder in folders for file in files for end in ("", *COMPRESSED))
    return next((path for path in paths if path.is_file()), None)


@contextlib.contextmanager
def _with_header(path: Path, header: str | None, member: str | None = None) -> Iterator[Path]:
    """A CSV file with a header of one without, or of a member of an archive; declarations and comments are left out."""
    if header is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / f"{path.name}.csv"
        with table.open("wb") as file:
            file.write(header.encode() + b"\n")
            with open_data(path) if member is None else _open_member(path, member) as stream:
                file.writelines(line for line in stream if line.strip(SPACES) and line.lstrip(b" ")[:1] not in b"@%|")
        yield table


@contextlib.contextmanager
def _open_member(path: Path, member: str) -> Iterator[IO[bytes]]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
                yield stream
        else:
            with tarfile.open(path) as bundle, cast("IO[bytes]", bundle.extractfile(member)) as stream:
                yield stream
    except (EOFError, KeyError, OSError, zlib.error, zipfile.BadZipFile, tarfile.TarError):
        raise InputError(f"{path} is damaged, or has no {member}. Download it again.") from None


def read_labelled(path: Path, label: str, header: str | None = None, member: str | None = None) -> FileTable:
    """A table with a header, or to which one is given."""
    with _with_header(path, header, member) as table:
        return read_table(table, label=label)


def read_svm(path: Path, features: int) -> FileTable:
    """Of any name: the originals have no suffix."""
    return read_table(path, features=features, kind=Libsvm)


def read_housing(path: Path, header: str | None = None, member: str | None = None) -> FileTable:
    """The usual eight features of the nine StatLib columns: rooms, bedrooms and people per household."""
    with _with_header(path, header, member) as table:
        raw = read_columns(table)
    households = raw["households"]
    X = {
        "MedInc": raw["median_income"],
        "HouseAge": raw["housing_median_age"],
        "AveRooms": raw["total_rooms"] / households,
        "AveBedrms": raw["total_bedrooms"] / households,
        "Population": raw["population"],
        "AveOccup": raw["population"] / households,
        "Latitude": raw["latitude"],
        "Longitude": raw["longitude"],
    }
    return FileTable(np.column_stack(list(X.values())), raw["median_house_value"] / 100_000, tuple(X))


# What datasets.toml has of all sets; of adult the ranges of its numbers, and the levels of its categories.
TOLD: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
_RANGES = TOLD["sets"]["adult"]["ranges"]
ADULT_NUMBERS = {name: (low, high) for name, (low, high, _) in zip(TOLD["adult"]["numbers"], _RANGES, strict=False)}
ADULT_CATEGORIES: dict[str, str] = TOLD["adult"]["categories"]
ADULT_ONE_HOT = [(column, level) for column, levels in ADULT_CATEGORIES.items() for level in levels.split()]


def read_adult(path: Path, header: str | None = None) -> FileTable:
    """Six numbers, then a 0/1 column for each category; `columns` has them as they were."""
    with _with_header(path, header) as table:
        columns = read_columns(table)
    income = np.char.rstrip(columns.pop("income").astype(str), ".")  # the original test labels end in a dot
    numbers = [columns[name] for name in ADULT_NUMBERS]
    one_hot = [columns[column] == category for column, category in ADULT_ONE_HOT]
    features = (*ADULT_NUMBERS, *(f"{column}={category}" for column, category in ADULT_ONE_HOT))
    return EncodedTable(np.column_stack([*numbers, *one_hot]).astype(np.float64), income, features, columns)


def read_gisette(path: Path) -> FileTable:
    """The scaled LIBSVM form, dense."""
    table = read_svm(path, 5000)
    X = cast("sparse.csr_matrix", table.X).toarray()  # nearly all of the scaled entries are not zero
    return FileTable(X, table.y, table.feature_names)


def read_gisette_uci(path: Path) -> FileTable:
    """The UCI form, its documented 0..999 mapped to [-1, 1] by these constants."""
    labels = path.name[: path.name.index(".data")] + ".labels"
    beside = find_file([path.parent.parent], path.parent.name, [labels])
    if beside is None:
        raise InputError(f"{path} needs {labels} beside it.")
    try:
        with open_data(path) as rows, open_data(beside) as stream:
            X, y = np.loadtxt(rows, ndmin=2), np.loadtxt(stream, ndmin=1)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path} or {labels} is not a table of numbers: {error}") from None
    if len(X) != len(y):
        raise InputError(f"{path} has {len(X)} rows but {labels} has {len(y)}.")
    return FileTable(2 * X / 999 - 1, y, tuple(map(str, range(1, X.shape[1] + 1))))


HEADERS: dict[str, str] = TOLD["headers"]  # of files that have none
# The year, and 90 averages and covariances of timbre.
YEAR_HEADER = ",".join(["year", *(f"timbre_avg_{j}" for j in range(1, 13)), *(f"timbre_cov_{j}" for j in range(1, 79))])
READERS: Final[dict[str, Callable[[Path], FileTable]]] = {
    "a9a": partial(read_svm, features=123),
    "phishing": partial(read_svm, features=68),
    "electricity": partial(read_labelled, label="class"),
    "electricity_arff": partial(read_labelled, label="class", header=HEADERS["electricity"]),
    "adult": read_adult,
    "adult_original": partial(read_adult, header=HEADERS["adult"]),
    "housing": read_housing,
    "housing_features": partial(read_labelled, label="MedHouseVal"),
    "housing_original": partial(read_housing, header=HEADERS["housing"]),
    "housing_archive": partial(read_housing, header=HEADERS["housing"], member="CaliforniaHousing/cal_housing.data"),
    "year": partial(read_labelled, label="year"),
    "year_original": partial(read_labelled, label="year", header=YEAR_HEADER),
    "year_archive": partial(read_labelled, label="year", header=YEAR_HEADER, member="YearPredictionMSD.txt"),
    "gisette": read_gisette,
    "gisette_uci": read_gisette_uci,
}
