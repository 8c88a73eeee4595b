"""Files of records: how they are read, the accounts that pay for their use, and the parties that hold them.

A first draft of a schema comes from the header and the types of a file. The file is private, so nothing that a cell
holds goes into the draft: ranges and levels stay empty, and a schema with an empty one is refused until a person has
filled it in from public knowledge. What most cells of a column are decides its kind, so that no single one does; odd
cells are told to the holder alone. Of a public file ranges and levels are copied, and any text makes codes of numbers.
"""

from __future__ import annotations

import functools
import logging
import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.app.job_file import PartyTable, SourceTable
from sottovoce.app.jobs import EvaluationJob, Job, PartyJob, PeopleJob
from sottovoce.data import resources as room
from sottovoce.data.beside import labels_with
from sottovoce.data.cells import DATES, Cells, cell_key, is_missing, read_numbers, table_columns
from sottovoce.data.column_kinds import Number
from sottovoce.data.dataset import Dataset
from sottovoce.data.files import find_format, format_of, is_pattern, list_files, read_cells, read_table
from sottovoce.data.files.format import UNCOUNTED, file_state
from sottovoce.data.identifiers import Identifiers, common_places, identifiers
from sottovoce.data.people import count_people
from sottovoce.data.resources import Resources, check_resources
from sottovoce.data.schema import Schema, toml_text
from sottovoce.errors import InputError, did_you_mean
from sottovoce.estimators import PrivateLinearModel
from sottovoce.federation.alignment import AlignmentFile
from sottovoce.federation.models import Models
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.privacy.ledger import Account, Ledger

_log = logging.getLogger("sottovoce.holder")

NUMBER, CELL = 32, 120  # bytes of memory that a cell of a table takes when it is read whole, as a number and as text


def is_large(path: Path, *, cells: bool = False, declared: int | None = None) -> bool:
    """Whether records are read piece by piece: of a folder, of a pattern, of arrays, and of a table that does not fit.

    That is decided by records times columns, `declared` or counted, for others see it: which solvers serve follows from
    it. A file of sparse rows, whose size its records decide, is read whole. `cells`: a schema reads the table.
    """
    kind = find_format(path)
    if path.is_dir() or is_pattern(path) or (kind is not None and kind.mapped):
        return True
    if not path.is_file() or format_of(path).sparse:
        return False
    size = _count_cells(path, path.stat().st_mtime_ns, path.stat().st_size) if declared is None else declared
    return size * (CELL if cells else NUMBER) > room.available()


@functools.lru_cache(maxsize=16)
def _count_cells(path: Path, _written: int, _bytes: int) -> int:
    """Records times columns, both of them public; 0 if the file cannot be read: the reader reports that."""
    try:
        shape = format_of(path).shape(path)
    except InputError:
        return 0
    return shape.records * shape.columns


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
    path, label = resolve(source.file), source.label
    if isinstance(label, str) and (kind := find_format(Path(label))) is not None and kind.mapped:
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
        raise _no_label(path, schema)
    return data


def _no_label(path: Path, schema: Schema | None) -> InputError:
    if schema is not None:
        return InputError(f"{path} lacks the label column; name it as label in the schema, and have it in the file.")
    return InputError(f"{path} needs label, the name of its label column (or its position, -1 for the last).")


def source_shape(
    source: SourceTable, resolve: Callable[[str], Path], schema: Schema | None = None, *, labelled: bool = True
) -> tuple[int, tuple[str, ...]]:
    """(rows, feature names) of a source, which in .npy files are x0, x1, ...; with a schema the names of columns.

    No value is parsed. `labelled=False`: the holder does not know the labels, and every column is a feature.
    """
    path = resolve(source.file)
    if schema is not None and not goes_by_pieces(source, path, schema):
        return table_shape(path, schema)
    data = dataset_of(source, resolve, schema, labelled=labelled and schema is None)
    names = data.feature_names or tuple(f"x{place}" for place in range(data.shape[1]))
    return data.shape[0], names if schema is None else tuple(schema.columns)


def table_shape(path: Path, schema: Schema) -> tuple[int, tuple[str, ...]]:
    """(rows, names of all columns) of a file with a schema; no value is parsed."""
    shape = format_of(path).shape(path)
    if shape.records == 0 or not set(shape.names) & set(schema.columns):
        raise InputError(f"{path} needs at least one row, and a column of the schema: {', '.join(schema.columns)}.")
    return shape.records, shape.names


def source_account(source: SourceTable, resolve: Callable[[str], Path]) -> Account | None:
    """The account of one file of records."""
    if source.ledger is None:
        if source.account is not None:
            raise InputError(f"account={source.account!r} needs a ledger; give ledger, or leave account out.")
        return None
    return Ledger(resolve(source.ledger)).account(source.account)


def accounts_of(job: Job | EvaluationJob) -> dict[str, Account]:
    """The account that pays for each party of this process, where it has one; no two parties share one."""
    accounts: dict[str, Account] = {}
    for party, source in job.sources.items():
        account = source_account(source, job.resolve)
        for other, taken in accounts.items():
            if account == taken:
                raise InputError(
                    f"parties {other!r} and {party!r} name one account, {taken.dataset!r} in {taken.path}; an account "
                    "is of one data set, and the second would repeat what the first released. Give each its own."
                )
        if account is not None:
            accounts[party] = account
    return accounts


def policy_of(job: PartyJob) -> Policy:
    """What the holder of a party file demands of a plan; of the file of records only the names of columns are read."""
    bounds, schema, source = None, job.known_schema, job.party
    if job.bounds is not None:
        names = (
            source_shape(source, job.resolve, labelled=source.has_label)[1] if schema is None else schema.feature_names
        )
        bounds = job.bounds.declare(names)
    return Policy(
        **job.policy.model_dump(exclude={"predict_for"}),
        bounds=bounds,
        predict_for=job.predict_for,
        trains=policy_trains(job),
    )


def policy_trains(job: PartyJob) -> bool:
    """Whether the people of a party file may be trained on, not only predicted for."""
    return job.policy.predict_training or not job.predict_for


def read_party(  # noqa: PLR0913
    name: str,
    source: SourceTable,
    resolve: Callable[[str], Path],
    policy: Policy | None = None,
    *,
    schema: Schema | None = None,
    labelled: bool | None = None,
    aligned: AlignmentFile | None = None,
) -> Party:
    """The party that holds a file, its features by the schema if there is one. The rows stay inside it.

    `labelled`: whether it knows the labels; None: if the file has them.
    """
    path, account = resolve(source.file), source_account(source, resolve)
    before = file_state(path)
    if schema is not None and source.label is not None:
        raise InputError(f"label={source.label!r} for {path}: the schema names the label column; leave label out.")
    if labelled and schema is None and not source.has_label:
        raise _no_label(path, schema)
    if goes_by_pieces(source, path, schema):  # identifiers, if it has some, are not compared
        data = dataset_of(source, resolve, schema, labelled=bool(labelled))
        return Party(name, data, None, account=account, policy=policy, feature_names=data.feature_names)
    table = read_table(path, label=source.label, features=source.features, left_out=source.id, schema=schema)
    if labelled and table.y is None:
        raise _no_label(path, schema)
    if source.records not in (None, table.X.shape[0]):
        raise InputError(
            f"records={source.records} is declared for {path}, which has {table.X.shape[0]} rows; the count is public, "
            "so correct it or leave it out."
        )
    codes = None
    if schema is not None:  # places in the file were found in the one that was read
        codes = schema.codes_of_table(path)._replace(unchanged=lambda: file_state(path) == before)
    return Party(
        name,
        table.X,
        None if labelled is False else table.y,
        account=account,
        policy=policy,
        feature_names=table.feature_names,
        ids=None if source.id is None else _id_cells(source.id, path),
        id_rule=source.id_rule,
        aligned=aligned,
        codes=codes,
    )


def _id_cells(column: str, path: Path) -> NDArray[Any]:
    """The cells of the column of identifiers."""
    names = format_of(path).shape(path, UNCOUNTED).names
    if column not in names:
        raise InputError(f"id={column!r} is no column of {path}; its columns are: {', '.join(names)}.")
    return table_columns(read_cells(path, [column]))[column]


def people_in(path: Path, column: str) -> int:
    """How many people the records of a file are of, by the column that says whose each is."""
    cells = _id_cells(column, path)
    return count_people(labels_with(np.zeros(len(cells)), person=cells))


def read_ids(source: SourceTable, resolve: Callable[[str], Path], name: str) -> Identifiers | None:
    """The identifiers of a file, if a column of it has them."""
    if source.id is None:
        return None
    cells = _id_cells(source.id, resolve(source.file))
    return identifiers(cells, len(cells), name, source.id_rule)


def join(parties: Sequence[Party]) -> None:
    """Parties of this process, by columns: the records that all have, in the order of the first, if all have ids."""
    lists = [party.identifiers for party in parties]
    known = [ids for ids in lists if ids is not None]
    if len(known) < max(len(lists), 2):
        return
    if len({party.aligner.rule for party in parties}) > 1:
        rules = ", ".join(f"{party.name} {party.aligner.rule}" for party in parties)
        raise InputError(f"the files of the parties write identifiers by different rules ({rules}); set id_rule alike.")
    places = common_places(known)
    if not len(places[0]):
        raise InputError("the files of the parties have no identifier in common; look at id and id_rule.")
    digest = secrets.token_hex(32)
    for party, own in zip(parties, places, strict=True):
        party.use(own, digest)


def read_features(
    names: Sequence[str], features: int, path: Path, *, whole: bool = False
) -> tuple[NDArray[np.float64] | Any, list[str]]:
    """The model's columns of a file, in the model's order, and the names of columns that are not its own.

    `whole`: a record with a missing value is an error; otherwise its prediction is missing too.
    """
    kind = format_of(path)
    if not kind.tabular:
        return read_table(path, features=features).X, []
    if not names:
        raise InputError("the model has no feature names, so columns cannot be matched; predict in Python instead.")
    rows = read_table(path, only=tuple(names)).X
    if whole:
        _check_finite(rows, path)
    return rows, [name for name in kind.shape(path, UNCOUNTED).names if name not in names]


def _check_finite(rows: NDArray[np.float64], path: Path, before: int = 0) -> None:
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise InputError(
            f"{path}: {bad.size} record(s) have values that are missing, infinite or no numbers, the first is record "
            f"{before + bad[0] + 1}; fill them in or leave them out."
        )


def read_holder(job: PartyJob, policy: Policy) -> Party:
    """The party of a party file, with its records, by its schema if it has one."""
    source, schema = job.party, job.known_schema
    check_resources(Resources(source.n_jobs, source.device))
    labelled = source.has_label if schema is None else None
    aligned = AlignmentFile(job.aligned)
    holder = read_party(source.name, source, job.resolve, policy, schema=schema, labelled=labelled, aligned=aligned)
    holder.resources = Resources(source.n_jobs, source.device)
    return holder


def read_person_holder(
    job: PeopleJob | EvaluationJob, table: PartyTable, model: PrivateLinearModel, *, labelled: bool = False
) -> Party:
    """One file of a joint prediction: the model's columns of that party, by their names where it has names.

    For an evaluation it has the account that pays and, if `labelled`, the labels.
    """
    if table.name not in dict(model.plan_.parties):
        known = ", ".join(name for name, _ in model.plan_.parties)
        raise InputError(f"{job.path}: party {table.name!r} is none of the model's; they are {known}.")
    if table.cluster is not None:
        raise InputError(f"{job.path}: party {table.name!r} has cluster = {table.cluster!r}, which is for whole rows.")
    part, path = model.plan_.part(table.name), job.resolve(table.file)
    names = tuple(getattr(model, "feature_names_in_", ())[part.start : part.stop])
    if (schema := model.schema_) is not None:
        rows = schema.of_features(names).rows(path, others=True)
    else:
        rows, _ = read_features(names, part.stop - part.start, path)
    account = source_account(table, job.resolve) if isinstance(job, EvaluationJob) else None
    ids: dict[str, Any] = {"ids": read_ids(table, job.resolve, table.name), "id_rule": table.id_rule}
    if not labelled:
        models = None if table.ledger is None else Models.beside(job.resolve(table.ledger), table.name)
        return Party(table.name, rows, None, feature_names=names, models=models, account=account, **ids)
    if schema is not None:
        labels = schema.labels(path)
    else:
        features = None if format_of(path).tabular else part.stop - part.start
        labels = read_table(path, label=table.label, features=features, left_out=table.id).y
    if labels is None:
        raise InputError(f"{path} lacks the labels of party {table.name!r}; name their column as label.")
    return Party(table.name, rows, labels, feature_names=names, account=account, **ids)


def predict_pieces(fitted: Any, path: Path, advance: Callable[[int, int], None]) -> Iterator[tuple[Any, Any]]:
    """(predictions, probabilities or None) of records in files, piece by piece, in order; `advance(done, records)`."""
    schema = fitted.schema_
    names = tuple(map(str, getattr(fitted, "feature_names_in_", ())))
    known = None if schema is None else schema.of_features(names or schema.feature_names)
    data, done = Dataset.features_of(path, names, known, fitted.n_features_in_), 0
    for rows, _ in data.pieces():
        if known is None and not hasattr(rows, "indptr"):
            _check_finite(rows, path, done)
        done += rows.shape[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            piece = Dataset.from_arrays(rows)
            shares = fitted.predict_proba(piece) if hasattr(fitted, "predict_proba") else None
            yield fitted.predict(piece), shares
        advance(done, data.shape[0])


FIRST: Final = 10_000  # records of a large file that a draft looks at
MOST_LEVELS: Final = 100  # of a public column: with more it is hardly a category

_PRIVATE = """Draft of a schema for {file}, from its header and the types of its columns. No value was copied.
Replace every [] by public knowledge: a code book, units, the law; never by what these records hold.
Where nobody knows a range, write range = "private": a fit then buys it with a share of its budget.
Move columns that are no features (numbers of records, names) to identifiers. With missing = true
missing cells have a feature of their own, with other = true undeclared levels too.
With shape = "smooth" above the columns, or in its entry, a number acts along a curve.
Of codes with very many levels: prefix = 3, groups = {{ heart = ["I20-I25"] }}, levels_file = "codes.csv".
What a column is of follows here from most of its cells: whether it is of numbers or codes, the code book says."""
_PUBLIC = """Schema for {file}, with ranges and levels copied from it: right only if the file itself is public."""
_KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # what is to be filled in, and the entry with that left empty
    "number": ("a number: lowest and highest value that is publicly known", {"range": []}),
    "category": ("text: the levels that are publicly known", {"levels": []}),
    "codes": (
        "numbers and texts: levels of codes, or range = [low, high] and the texts are missing",
        {"levels": []},
    ),  # public
    "flag": ("true or false", {"yes": True, "no": False}),
}


def draft_schema(path: Path, *, label: str | None = None, public: bool = False, smooth: bool = False) -> str:
    """The text of a TOML file with a table [schema]."""
    large = is_large(path, cells=True)
    if large and public:
        raise InputError(f"--public copies from all records, and {path} is read in pieces; give one file that fits.")
    columns = table_columns(read_cells(list_files(path)[0], most=FIRST) if large else path)
    if label is not None and label not in columns:
        meant = did_you_mean(label, tuple(columns))
        raise InputError(f"--label {label}: {path.name} has no such column{meant} They are: {', '.join(columns)}.")
    entries: dict[str, dict[str, Any]] = {}
    identifiers, remarks, aside, odd = [], {}, list[str](), list[str]()
    for name, cells in columns.items():
        kind = _kind_of(cells)
        if kind == "codes" and not public:
            kind = "number"
            odd.append(name)
        meaning, empty = _KINDS.get(kind, ("dates, which no schema has", {}))
        if (entry := _copied(kind, cells) if public and empty else empty) in (None, {}):
            identifiers.append(name)
            if kind in ("codes", "dates"):
                aside.append(f"{name}: {meaning.partition(':')[0]}")
            continue
        entries[name] = entry or {}
        if not public or kind == "codes":
            remarks[f"columns.{name}"] = meaning + (", the label" if name == label else "")
    if aside:
        remarks["identifiers"] = "; ".join(aside)
    if odd:
        _log.warning(
            "%s, for the holder alone: %s: mostly numbers, some texts. The draft has numbers, and the texts "
            "would count as missing. If the code book says codes, write levels = [] in the place of range = [].",
            path.name,
            ", ".join(odd),
        )
    shape = {"shape": "smooth"} if smooth else {}
    table = {"label": label or "", "identifiers": identifiers, **shape, "columns": entries}
    if label is None:
        remarks["label"] = "the name of the label column, or leave this line out"
    return toml_text(table, remarks, head=(_PUBLIC if public else _PRIVATE).format(file=path.name))


def text_columns(path: Path, names: Sequence[str]) -> list[str]:
    """Those of these columns of a table that have texts among their first cells."""
    if not format_of(path).tabular:
        return []
    cells = table_columns(read_cells(path, most=FIRST))
    return [name for name in names if name in cells and _kind_of(cells[name]) in ("category", "codes")]


def _kind_of(cells: Cells) -> str:
    """What most cells of a column are: numbers or texts; codes where they are numbers, and some are not."""
    if cells.dtype.kind in "fiu":
        return "number"
    present = [cell for cell in cells.tolist() if not _missing(cell)]
    if not present:
        return "dates" if DATES in cells.tolist() else "number"
    if all(isinstance(cell, bool) for cell in present):
        return "flag"
    numbers = np.isfinite(read_numbers(np.fromiter(present, dtype=object), cell_key)).sum()
    return "number" if numbers == len(present) else "codes" if 2 * numbers > len(present) else "category"


def _missing(cell: Any) -> bool:
    return cell is None or cell is DATES or (isinstance(cell, str) and is_missing(cell)) or cell != cell


def _copied(kind: str, cells: Cells) -> dict[str, Any] | None:
    """The entry of a public column; None where it is no feature: texts that hardly repeat, or one number alone."""
    if kind == "flag":
        return _KINDS[kind][1]
    if kind == "number":
        values = read_numbers(cells, cell_key)
        finite = values[np.isfinite(values)]
        if not finite.size or finite.min() == finite.max():
            return None
        entry: dict[str, Any] = {"range": Number("", float(finite.min()), float(finite.max())).entry()["range"]}
        return entry | ({"missing": True} if finite.size < values.size else {})
    counts = Counter(str(cell).strip() for cell in cells.tolist() if not _missing(cell))
    if not counts or len(counts) > MOST_LEVELS:
        return None
    return {"levels": sorted(counts)} | ({"missing": True} if counts.total() < len(cells) else {})
