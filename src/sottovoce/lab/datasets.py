"""Public data sets by name, each with bounds that its documentation states.

A data set is looked for in `<folder>/<name>/` (`folder=...`, or the environment variable `SOTTOVOCE_DATA`), under its
original file names or as `train.svm`, `data.csv` and the like, plain or compressed; then in the cache; last it is
downloaded there from its public home. A download that has not the SHA-256 below is refused. Where none is known the
first one is trusted: its SHA-256 is written beside the file, and whatever differs later is refused. Files that a user
puts in a folder are used as they are; `verify_files` compares them on request.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.data.files import FileTable
from sottovoce.data.files.format import COMPRESSED
from sottovoce.data.matrix import Matrix
from sottovoce.errors import InputError, did_you_mean
from sottovoce.lab import dataset_files as files
from sottovoce.lab.dataset_files import ADULT_CATEGORIES as ADULT_CATEGORIES
from sottovoce.lab.dataset_files import ADULT_NUMBERS as ADULT_NUMBERS

FOLDER_VARIABLE = "SOTTOVOCE_DATA"
TIMEOUT = 30.0  # seconds without a byte

Task = Literal["classification", "regression"]
Ranges = tuple[tuple[float, ...], tuple[float, ...]]

_log = logging.getLogger("sottovoce.data")


@dataclass(frozen=True, eq=False, kw_only=True)
class Documented:
    """What the documentation of a data set says about every row; None where it says nothing.

    `row_norm`, `label_bound` (low, high) and `feature_ranges` (lows, highs) are public, never read off the rows, so an
    estimator may be given them as they are; `bounds_from` says where they come from.
    """

    task: Task
    citation: str
    row_norm: float | None = None
    feature_ranges: Ranges | None = None
    label_bound: tuple[float, float] | None = None
    bounds_from: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class PublicDataset(Documented):
    """A public data set, or one split of it.

    `columns` has the raw columns where `X` encodes them (adult). `fragment` is True where only a part of the rows was
    found: good for trying code, not for reporting a figure.
    """

    name: str
    split: str
    X: Matrix
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    columns: Mapping[str, NDArray[Any]] | None = None
    fragment: bool = False


def dataset_names() -> tuple[str, ...]:
    """The data sets that `load` knows."""
    return tuple(_SETS)


def load(name: str, *, split: str = "train", folder: str | Path | None = None, download: bool = True) -> PublicDataset:
    """The data set `name`; `split` is "train", "test" or "all" (the only one without an official split).

    Found in `folder` (or where `SOTTOVOCE_DATA` says), else in the cache, else downloaded unless
    `download=False`. Rows are in the order of the original files. Labels stay as they are there: -1 and +1
    for a9a and gisette, 0 and 1 for phishing, text for electricity and adult, numbers for the regressions.

    year_prediction_msd: train is the first 463,715 rows, test the last 51,630, as its documentation asks.
    adult: six numeric columns, then one 0/1 column for each category that the documentation lists; a missing
    cell has a 0 in each of them.
    """
    if name not in _SETS:
        remedy = did_you_mean(str(name), tuple(_SETS))
        if str(name).lower().endswith(".json"):
            remedy = "; a fitted model is read by sv.load_model(path)."
        raise InputError(f"name={name!r} is no known data set{remedy} Known are: {', '.join(_SETS)}.")
    known = _SETS[name]
    if split not in known.splits:
        unofficial = " It has no official split: divide it yourself, with a stated seed." * (len(known.splits) == 1)
        raise InputError(f"split={split!r}: {name} has {', '.join(map(repr, known.splits))}.{unofficial}")
    folders = [*_named_folder(folder), cache_folder()]
    tables, fragment = [], False
    for part in (part for part_split, part in known.parts.items() if split in (part_split, "all") or known.cut):
        path = files.find_file(folders, name, part.forms)
        if path is None and split == "all" and known.fragment:
            path = files.find_file(folders, known.fragment, ["data.csv"])
            fragment = path is not None
        path = path or _fetch(name, part, folders, download)
        if path.parent.parent == cache_folder():
            _check_cached(path, name, part)
        plain = path.name.removesuffix(path.suffix) if path.suffix in COMPRESSED else path.name
        table = part.forms[plain](path)
        if table.X.shape != (part.rows, known.features) and not fragment:
            raise InputError(
                f"{path} has {table.X.shape[0]} rows and {table.X.shape[1]} features; {name} has "
                f"{part.rows} and {known.features} there. Is the file complete? See {known.home}"
            )
        tables.append(table)
    stack: Any = sparse.vstack if sparse.issparse(tables[0].X) else np.concatenate
    X = tables[0].X if len(tables) == 1 else stack([table.X for table in tables])
    y = np.concatenate([cast("NDArray[Any]", table.y) for table in tables])  # every reader below names the label
    encoded = [table.columns for table in tables if isinstance(table, files.EncodedTable)]
    if known.cut and split != "all":
        rows = slice(known.cut) if split == "train" else slice(known.cut, None)
        X, y = X[rows], y[rows]
    return PublicDataset(
        name=name,
        split=split,
        X=X,
        y=y,
        feature_names=tables[0].feature_names,
        columns={key: np.concatenate([part[key] for part in encoded]) for key in encoded[0]} if encoded else None,
        fragment=fragment,
        **{field.name: getattr(known, field.name) for field in fields(Documented)},
    )


def verify_files(folder: str | Path | None = None) -> dict[str, bool]:
    """Does each file of the folder whose checksum is recorded here have it? Absent files are left out."""
    return {
        file: sha256_of(root / file) == expected
        for root in _named_folder(folder) or [cache_folder()]
        for file, expected in CHECKSUMS.items()
        if (root / file).is_file()
    }


def cache_folder() -> Path:
    """Where downloads are kept: `$XDG_CACHE_HOME/sottovoce`, or `~/.cache/sottovoce`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(url: str, target: Path, *, sha256: str | None = None) -> None:
    """Download `url` to `target`, and write its SHA-256 beside it in `<target>.sha256`.

    All or nothing: unless every byte came and, where `sha256` is given, the checksum is right, nothing is
    left at `target` and an `InputError` says why.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            part = Path(folder) / target.name
            request = urllib.request.Request(url, headers={"User-Agent": "sottovoce"})  # noqa: S310  the caller's
            with part.open("wb") as out, urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
                if url.startswith("https:") and not response.url.startswith("https:"):
                    raise InputError(f"{url} leads to an address without https; not downloaded.")
                shutil.copyfileobj(response, out, 1 << 20)
                announced = response.headers.get("Content-Length")
            if announced not in (None, str(part.stat().st_size)):
                raise InputError(f"{url}: {part.stat().st_size} of {announced} bytes came; not kept. Try again.")
            digest = sha256_of(part)
            if sha256 is not None and digest != sha256:
                raise InputError(f"{url} has the SHA-256 {digest}, not the expected {sha256}; not kept.")
            # The record goes first: a crash in between leaves no file rather than one nothing vouches for.
            target.with_name(f"{target.name}.sha256").write_text(f"{digest}  {target.name}\n")
            part.replace(target)
    except urllib.error.HTTPError as error:
        error.close()
        raise InputError(f"{url} answered {error.code} {error.reason}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url} could not be downloaded to {target} ({type(error).__name__}: {error}).") from None


Reader = Callable[[Path], FileTable]


@dataclass(frozen=True)
class _Part:
    """One file: the names it may have and how each is read, and where the original comes from."""

    rows: int
    forms: Mapping[str, Reader]
    url: str
    file: str = ""  # its name in the cache: one of the forms, perhaps compressed; by default the last part of the url

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", self.file or self.url.rsplit("/", 1)[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class _Set(Documented):
    """What is known of a data set, all of it public.

    `cut` is the row at which one file splits in two. `fragment` is the folder of a part of the rows.
    """

    features: int
    parts: Mapping[str, _Part]
    home: str
    cut: int = 0
    fragment: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        return ("all",) if len(self.parts) == 1 and not self.cut else ("train", "test", "all")


def _named_folder(folder: str | Path | None) -> list[Path]:
    named = folder if folder is not None else os.environ.get(FOLDER_VARIABLE)
    if not named:
        return []
    path = Path(named).expanduser()
    if not path.is_dir():
        source = "folder" if folder is not None else FOLDER_VARIABLE
        raise InputError(f"{source}={str(named)!r} is not a folder. Name the one that holds <data set>/<file>.")
    return [path]


def _fetch(name: str, part: _Part, folders: list[Path], download: bool) -> Path:
    known, target = _SETS[name], cache_folder() / name / part.file
    reason = "Downloading was not asked for."
    if download:
        _log.info("downloading %s to %s", part.url, target)
        try:
            fetch(part.url, target, sha256=CHECKSUMS.get(f"{name}/{part.file}"))
        except InputError as error:
            reason = str(error)
    if path := files.find_file([cache_folder()], name, part.forms):
        return path
    looked = " and ".join(str(folder / name) for folder in folders)
    if known.fragment and files.find_file(folders, known.fragment, ["data.csv"]):
        reason = f"There is a fragment of it, which serves split='all' only. {reason}"
    raise InputError(
        f"{name}: found none of {', '.join(part.forms)} (plain or {', '.join(COMPRESSED)}) in {looked}. "
        f"{reason} Get it from {known.home} and set {FOLDER_VARIABLE} to the folder that holds {name}/."
    )


def _check_cached(path: Path, name: str, part: _Part) -> None:
    """Refuse a cached download that is not what was pinned, or not what came the first time."""
    record = path.with_name(f"{path.name}.sha256")
    expected = CHECKSUMS.get(f"{name}/{part.file}") if path.name == part.file else None
    if expected is None and record.is_file():
        expected = record.read_text().split(" ")[0]
    if expected is not None and sha256_of(path) != expected:
        raise InputError(f"{path} has changed since it was downloaded (SHA-256). Delete it to download it again.")


def _read_set(ranges: Sequence[tuple[float, float, int]] = (), parts: Any = (), **told: Any) -> _Set:
    """A data set as datasets.toml tells of it."""
    pairs = [(float(low), float(high)) for low, high, count in ranges for _ in range(count)]
    spread = cast("Ranges", tuple(zip(*pairs, strict=True))) if pairs else None
    if "label_bound" in told:
        told["label_bound"] = tuple(told["label_bound"])
    found = {}
    for split, part in parts.items():
        forms = {file: files.READERS[reader] for file, reader in part["forms"].items()}
        found[split] = _Part(**(part | {"forms": forms}))
    return _Set(feature_ranges=spread, parts=found, **told)


_SETS: dict[str, _Set] = {name: _read_set(**told) for name, told in files.TOLD["sets"].items()}
CHECKSUMS: dict[str, str] = files.TOLD["checksums"]
