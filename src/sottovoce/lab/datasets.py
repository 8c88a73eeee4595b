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
import math
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.data.files import FileTable
from sottovoce.data.files.format import COMPRESSED
from sottovoce.data.matrix import Matrix
from sottovoce.errors import InputError
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
        raise InputError(f"name={name!r} is no known data set. Known are: {', '.join(_SETS)}.")
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


_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_UCI = "https://archive.ics.uci.edu"
_UCI_ADULT = f"{_UCI}/ml/machine-learning-databases/adult"

_a9a = partial(files.read_svm, features=123)
_phishing = partial(files.read_svm, features=68)
_electricity = partial(files.read_labelled, label="class")
_electricity_arff = partial(
    files.read_labelled, label="class", header="date,day,period,nswprice,nswdemand,vicprice,vicdemand,transfer,class"
)
_adult, _gisette = files.read_adult, files.read_gisette
_adult_original = partial(files.read_adult, header=files.ADULT_HEADER)
_year = partial(files.read_labelled, label="year", header=files.YEAR_HEADER)
_year_zip = partial(_year, member="YearPredictionMSD.txt")

_SETS: dict[str, _Set] = {
    "a9a": _Set(
        task="classification",
        features=123,
        parts={
            "train": _Part(32_561, {"train.svm": _a9a, "a9a": _a9a}, f"{_LIBSVM_PAGE}/a9a"),
            "test": _Part(16_281, {"test.svm": _a9a, "a9a.t": _a9a}, f"{_LIBSVM_PAGE}/a9a.t"),
        },
        home=f"{_LIBSVM_PAGE}.html#a9a",
        citation="UCI Adult (Becker and Kohavi 1996), made binary by J. Platt (1998), LIBSVM data page.",
        row_norm=math.sqrt(14),
        bounds_from="LIBSVM data page: each of the 14 Adult attributes sets at most one 0/1 feature.",
    ),
    "adult": _Set(
        task="classification",
        features=len(ADULT_NUMBERS) + len(files.ADULT_ONE_HOT),
        parts={
            "train": _Part(32_561, {"train.csv": _adult, "adult.data": _adult_original}, f"{_UCI_ADULT}/adult.data"),
            "test": _Part(16_281, {"test.csv": _adult, "adult.test": _adult_original}, f"{_UCI_ADULT}/adult.test"),
        },
        home=f"{_UCI}/dataset/2/adult",
        citation="B. Becker and R. Kohavi (1996), Adult, UCI Machine Learning Repository, CC BY 4.0.",
        feature_ranges=(
            (*(low for low, _ in ADULT_NUMBERS.values()), *(0.0 for _ in files.ADULT_ONE_HOT)),
            (*(high for _, high in ADULT_NUMBERS.values()), *(1.0 for _ in files.ADULT_ONE_HOT)),
        ),
        bounds_from=(
            "UCI: age above 16, sixteen levels of education, hours above 0, the categories. Fields of the "
            "survey: age at most 90, two digits of hours, five of capital gain. fnlwgt and capital-loss have "
            "no documented range: round figures are declared, and what lies beyond is cut."
        ),
    ),
    "phishing": _Set(
        task="classification",
        features=68,
        parts={"all": _Part(11_055, {"data.svm": _phishing, "phishing": _phishing}, f"{_LIBSVM_PAGE}/phishing")},
        home=f"{_LIBSVM_PAGE}.html#phishing",
        citation="UCI Phishing Websites (Mohammad, Thabtah and McCluskey), CC BY 4.0, LIBSVM data page.",
        row_norm=1.0,
        bounds_from="LIBSVM data page: each row is scaled to unit length (30 entries of 1/sqrt(30)).",
    ),
    "electricity": _Set(
        task="classification",
        features=8,
        parts={
            "all": _Part(
                45_312,
                dict.fromkeys(("data.csv", "elecNormNew.csv"), _electricity)
                | dict.fromkeys(("elecNormNew.arff", "electricity.arff"), _electricity_arff),
                "https://openml.org/data/v1/download/2419/electricity.arff",
            )
        },
        home="https://www.openml.org/d/151",
        citation="M. Harries (1999), Elec2, normalised by Gama et al.; OpenML data set 151, public.",
        feature_ranges=((0.0, 1.0, *[0.0] * 6), (1.0, 7.0, *[1.0] * 6)),
        bounds_from="OpenML 151: day is 1 to 7, every other feature is normalised to [0, 1].",
    ),
    "california_housing": _Set(
        task="regression",
        features=8,
        parts={
            "all": _Part(
                20_640,
                {
                    "data.csv": partial(files.read_labelled, label="MedHouseVal"),
                    "raw.csv": partial(files.read_housing, header=None),
                    "cal_housing.data": files.read_housing,
                    "cal_housing.tgz": partial(files.read_housing, member="CaliforniaHousing/cal_housing.data"),
                },
                "https://ndownloader.figshare.com/files/5976036",
                "cal_housing.tgz",
            )
        },
        home="https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.html",
        citation="R. K. Pace and R. Barry (1997), Sparse spatial autoregressions; StatLib, 1990 US census.",
        label_bound=(0.0, 5.00001),
        bounds_from="StatLib: values above 500,000 USD are written as 500,001.",
    ),
    "year_prediction_msd": _Set(
        task="regression",
        features=90,
        parts={
            "all": _Part(
                515_345,
                {
                    "YearPredictionMSD.txt": _year,
                    "data.csv": partial(files.read_labelled, label="year"),
                    "yearpredictionmsd.zip": _year_zip,
                    "YearPredictionMSD.txt.zip": _year_zip,
                },
                f"{_UCI}/static/public/203/yearpredictionmsd.zip",
            )
        },
        home=f"{_UCI}/dataset/203/yearpredictionmsd",
        citation="T. Bertin-Mahieux (2011), YearPredictionMSD, UCI Machine Learning Repository, CC BY 4.0.",
        label_bound=(1922.0, 2011.0),
        bounds_from="UCI: songs range from 1922 to 2011.",
        cut=463_715,
        fragment="year_prediction_msd_fragment",
    ),
    "gisette": _Set(
        task="classification",
        features=5000,
        parts={
            "train": _Part(
                6000,
                {"gisette_scale": _gisette, "train.svm": _gisette, "gisette_train.data": files.read_gisette_uci},
                f"{_LIBSVM_PAGE}/gisette_scale.bz2",
            ),
            "test": _Part(
                1000,
                {"gisette_scale.t": _gisette, "test.svm": _gisette, "gisette_valid.data": files.read_gisette_uci},
                f"{_LIBSVM_PAGE}/gisette_scale.t.bz2",
            ),
        },
        home=f"{_LIBSVM_PAGE}.html#gisette",
        citation="I. Guyon et al. (2004), Gisette, NIPS 2003 feature selection challenge; UCI, CC BY 4.0.",
        feature_ranges=((-1.0,) * 5000, (1.0,) * 5000),
        bounds_from="LIBSVM data page: scaled to [-1, 1]. UCI form: 0 to 999, mapped to [-1, 1] here.",
    ),
}

# Of the originals, which a download must have, and of recompressed files, for `verify_files`.
CHECKSUMS = {
    "a9a/a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a/a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    "a9a/test.svm.xz": "93805ce9ce64b57c8832e835cdc701d8b4fba6937e125c2637faf829760f1496",
    "a9a/train.svm.xz": "200615394bea1386aad919be9f04c05a6a3dc5ec5db191aa0a7eb775ecb0be3b",
    "adult/adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult/adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    "adult/test.csv.xz": "8a2314e4f6904ecb05f97c248be31cca26eb99d1d849e29d9946cc1aa2bcce25",
    "adult/train.csv.xz": "3acf2421586d674f103bab9cfbcb587ee56bf2455bfa36c0aa4b9ecc2f7afac6",
    "california_housing/cal_housing.tgz": "aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
    "california_housing/data.csv.xz": "12e007ef77181bc903d67a056d2eb7a956d12266a4b7646393f735cf39fbe37c",
    "california_housing/raw.csv.xz": "ed09e2b872496e3fab0ba9018b6d9cbad070b68b5860607de98e74a2196d8bab",
    "electricity/data.csv.xz": "5b979737ff4b0d742cbec3a7c488f4f5e91347880ed4f4222f426974e406f16a",
    "electricity/electricity.arff": "2d86fbc74c69a5c04bcde0119bce280dd6d8efa0115987edc75b77ccf024d7f2",
    "phishing/data.svm.xz": "eb1d232276bdb535bd9fa8a8428d34980ba201bfbbb25340bdd82db373354286",
    "year_prediction_msd_fragment/data.csv.xz": "351e2540147762e39a2b19c0f8eab17771c74c27c1e68e0413e5a1f0a473381f",
}
