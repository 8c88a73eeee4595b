"""Files of records: their shape, the account that pays for their use, and the party that holds them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.app.jobs import PartyJob, SourceTable
from sottovoce.app.large import dataset_of, goes_by_pieces
from sottovoce.data import readers
from sottovoce.data.dataset import Dataset
from sottovoce.data.identifiers import Identifiers, common_places, identifiers
from sottovoce.data.schema import Schema, columns_of
from sottovoce.errors import InputError
from sottovoce.federation.alignment.file import AlignmentFile
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.privacy.ledger import Account, Ledger


def file_shape(
    path: Path, label: str | int | None, features: int | None, *, labelled: bool = True, left_out: str | None = None
) -> tuple[int, tuple[str, ...]]:
    """(rows, feature names) of a file. No value is parsed but where the format (LIBSVM) gives no other way.

    `labelled=False`: the holder does not know the labels, and every column is a feature. `left_out` is none either.
    """
    if not {suffix.lower() for suffix in path.suffixes} & {*readers.CSV, *readers.PARQUET}:
        _check_features(path, features)
        table = readers.read_table(path, label=label, features=features)
        return table.X.shape[0], table.feature_names
    header, records = _header(path)
    if label is None and labelled:
        raise _no_label(path)
    if label is not None:
        position = header.index(label) if label in header else label
        if not isinstance(position, int) or not -len(header) <= position < len(header):
            readers.read_table(path, label=label)  # says which columns there are, or that there is no header
            raise InputError(f"label={label!r} is no column of {path}; name one of its {len(header)} columns.")
        del header[position]
    if left_out is not None and left_out not in header:
        raise InputError(f"id={left_out!r} is no column of {path} besides the label; name one of: {', '.join(header)}.")
    header = [name for name in header if name != left_out]
    if records == 0 or not header:
        raise InputError(f"{path} needs at least one row and, besides the label, one column.")
    return records, tuple(header)


def source_shape(
    source: SourceTable, resolve: Callable[[str], Path], schema: Schema | None = None, *, labelled: bool = True
) -> tuple[int, tuple[str, ...]]:
    """(rows, feature names) of a source, which in .npy files are x0, x1, ...; with a schema the names of columns."""
    path = resolve(source.file)
    if goes_by_pieces(source, path, schema):
        data = dataset_of(source, resolve, schema, labelled=labelled and schema is None)
        names = data.feature_names or tuple(f"x{place}" for place in range(data.shape[1]))
        return data.shape[0], names if schema is None else tuple(schema.columns)
    if schema is not None:
        return table_shape(path, schema)
    return file_shape(path, source.label, source.features, labelled=labelled, left_out=source.id)


def table_shape(path: Path, schema: Schema) -> tuple[int, tuple[str, ...]]:
    """(rows, names of all columns) of a file with a schema; no value is parsed."""
    if not {suffix.lower() for suffix in path.suffixes} & {*readers.CSV, *readers.PARQUET}:
        columns_of(path)  # says which files have columns
    header, records = _header(path)
    if records == 0 or not set(header) & set(schema.columns):
        raise InputError(f"{path} needs at least one row, and a column of the schema: {', '.join(schema.columns)}.")
    return records, tuple(header)


def source_account(source: SourceTable, resolve: Callable[[str], Path]) -> Account | None:
    """The account of one file of records."""
    if source.ledger is None:
        if source.account is not None:
            raise InputError(f"account={source.account!r} needs a ledger; give ledger, or leave account out.")
        return None
    return Ledger(resolve(source.ledger)).account(source.account)


def policy_of(job: PartyJob) -> Policy:
    """What the holder of a party file demands of a plan; of the file of records only the names of columns are read."""
    bounds, schema, source = None, job.known_schema, job.party
    if job.bounds is not None and schema is not None:
        bounds = job.bounds.declare(schema.feature_names)
    elif job.bounds is not None:
        shape = source_shape(source, job.resolve, labelled=source.has_label)
        bounds = job.bounds.declare(shape[1])
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
    labelled: bool = True,
    aligned: AlignmentFile | None = None,
) -> Party:
    """The party that holds a file. The rows stay inside it. `labelled=False`: it does not know the labels."""
    path = resolve(source.file)
    if goes_by_pieces(source, path):
        return _party_of(
            name, dataset_of(source, resolve, None, labelled=labelled), source_account(source, resolve), policy
        )
    if labelled and not source.has_label:
        raise _no_label(path)
    _check_features(path, source.features)
    table = readers.read_table(path, label=source.label, features=source.features, left_out=source.id)
    if source.records is not None and source.records != table.X.shape[0]:
        raise InputError(
            f"records={source.records} is declared for {path}, which has {table.X.shape[0]} rows; the count is public, "
            "so correct it or leave it out."
        )
    return Party(
        name,
        table.X,
        table.y if labelled else None,
        account=source_account(source, resolve),
        policy=policy,
        feature_names=table.feature_names,
        ids=None if source.id is None else columns_of(path)[source.id],
        id_rule=source.id_rule,
        aligned=aligned,
    )


def read_table_party(  # noqa: PLR0913
    name: str,
    source: SourceTable,
    resolve: Callable[[str], Path],
    schema: Schema,
    policy: Policy | None = None,
    *,
    labelled: bool | None = None,
    aligned: AlignmentFile | None = None,
) -> Party:
    """The party that holds a file, its features by the schema; `labelled=None`: it has labels if the file has them."""
    path = resolve(source.file)
    if source.label is not None:
        raise InputError(f"label={source.label!r} for {path}: the schema names the label column; leave label out.")
    if goes_by_pieces(source, path, schema):
        data = dataset_of(source, resolve, schema, labelled=bool(labelled))
        return _party_of(name, data, source_account(source, resolve), policy)
    cells = columns_of(path)
    if source.id is not None and source.id not in cells:
        raise InputError(f"id={source.id!r} is no column of {path}; its columns are: {', '.join(cells)}.")
    if source.id is not None and source.id in (*schema.columns, schema.label):
        raise InputError(f"id={source.id!r} is a feature or the label in the schema; an identifier is neither.")
    ids = None if source.id is None else cells.pop(source.id)
    rows, labels = schema.encode(cells, others=False), schema.labels(cells)
    if labelled and labels is None:
        raise InputError(f"{path} lacks the label column; name it as label in the schema, and have it in the file.")
    for key, found in (("records", rows.shape[0]), ("features", rows.shape[1])):
        if getattr(source, key) not in (None, found):
            raise InputError(
                f"{key}={getattr(source, key)} is declared for {path}, which has {found}; correct it or leave it out."
            )
    return Party(
        name,
        rows,
        None if labelled is False else labels,
        account=source_account(source, resolve),
        policy=policy,
        feature_names=schema.feature_names,
        ids=ids,
        id_rule=source.id_rule,
        aligned=aligned,
    )


def _party_of(name: str, data: Dataset, account: Account | None, policy: Policy | None) -> Party:
    """The party whose records are read piece by piece; its identifiers, if it has some, are not compared."""
    return Party(name, data, None, account=account, policy=policy, feature_names=data.feature_names)


def read_ids(source: SourceTable, resolve: Callable[[str], Path], name: str) -> Identifiers | None:
    """The identifiers of a file, if a column of it has them."""
    if source.id is None:
        return None
    cells = columns_of(resolve(source.file))
    if source.id not in cells:
        raise InputError(f"id={source.id!r} is no column of {source.file}; its columns are: {', '.join(cells)}.")
    return identifiers(cells[source.id], len(cells[source.id]), name, source.id_rule)


def join(parties: Sequence[Party]) -> None:
    """Parties of this process, by columns: the records that all have, in the order of the first, if all have ids."""
    lists = [party.aligner.ids for party in parties]
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
    if not {suffix.lower() for suffix in path.suffixes} & set(readers.CSV + readers.PARQUET):
        return readers.read_table(path, features=features).X, []
    columns = readers.read_columns(path)
    if not names:
        raise InputError("the model has no feature names, so columns cannot be matched; predict in Python instead.")
    missing = [name for name in names if name not in columns]
    if missing:
        raise InputError(f"{path} lacks {len(missing)} of the model's columns: {', '.join(missing)}. Add them.")
    for name in names:
        if columns[name].dtype == object:  # one cell that is no number is enough
            columns[name] = readers.each_number(columns[name].tolist())[0]
    rows = np.column_stack([columns[name] for name in names])
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if whole and bad.size:
        raise InputError(
            f"{path}: {bad.size} record(s) have values that are missing, infinite or no numbers, the first is record "
            f"{bad[0] + 1}; fill them in or leave them out."
        )
    return rows, [name for name in columns if name not in names]


def _header(path: Path) -> tuple[list[str], int]:
    """The names of all columns, and how many records there are."""
    if {suffix.lower() for suffix in path.suffixes} & set(readers.PARQUET):
        return _parquet_shape(path)
    with readers.csv_lines(path) as lines:
        header = [cell.strip() for cell in readers.cells_of(next(lines, (1, b""))[1]) or []]
        return header, sum(1 for _ in readers.csv_records(lines, len(header)))


def _parquet_shape(path: Path) -> tuple[list[str], int]:
    with readers.parquet_file(path) as file:
        return list(file.schema_arrow.names), int(file.metadata.num_rows)


def _check_features(path: Path, features: int | None) -> None:
    """A LIBSVM file must come with the number of its columns."""
    if features is None and {suffix.lower() for suffix in path.suffixes} & set(readers.LIBSVM):
        raise InputError(
            f"{path} needs features, the number of its columns: a LIBSVM file does not say it, and the largest index "
            "in it would reveal whether some record has that feature."
        )


def _no_label(path: Path) -> InputError:
    return InputError(f"{path} needs label, the name of its label column (or its position, -1 for the last).")
