"""A schema: what is publicly known about the columns of a table. From it follow the features, their names and bounds.

**Encoding.** A row of features is a function of that row's cells and of the schema alone, so a record changes its own
row and nothing else, and all parties with one schema encode alike. No cell is an error:

| column | features | a cell that is missing or of no use |
|---|---|---|
| number with a range | its value, clipped to the range | the fill, by default the middle; with `missing` also a flag |
| number whose range is estimated | its value | missing until there is a range, then its middle; with `missing` a flag |
| number with a curve | functions of it (`curves`) | the fill; with `missing` a flag, and without a fill all others 0 |
| category (`levels`) | one for each level, 1 or 0 | all 0; with `missing` or `other` a feature of its own |
| yes/no | 1 or -1 | 0; with `missing` a flag beside it |
| product of two columns | products of their factors (`products`) | 0, or with the fill of a number |

**Bound.** Numbers are rescaled to [-1, 1] by their declared range when rows are prepared (`Bounds.feature_low`). Then a
column adds to a row's squared norm at most: a category 1, since one of its features at most is 1; a number or a yes/no
1; a number with a flag f^2 + 1, f the rescaled fill, since the flag is 1 where the number is f and else 0. The features
b(x) of a curve are no longer than 1 (`curves`), so a curve adds 1 too, and with a flag 1, or |b(f)|^2 + 1 with a fill f
of its own. A product adds 1: one of its features at most is not 0. The row norm is the root of the sum. But for
products a column's cells decide nothing about another column's features, so some rows reach it.

**The guarantee does not rest on this.** It rests on `preparation`, which cuts every entry and scales back every row
that is longer than the declared norm, whatever made the row. Were the sum above wrong, rows would be cut: a worse
model, the same promise.
"""

from __future__ import annotations

import functools
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.beside import labels_with
from sottovoce.data.cells import Cells, cell_key, label_array, read_numbers, table_columns
from sottovoce.data.coded import MOST_FILLED, Coded, Placed, Rows, places_of
from sottovoce.data.column_entries import read_beside, read_column, separate_notes
from sottovoce.data.column_kinds import SHAPES, Category, Column, CountColumn, Curve, Number, YesNo
from sottovoce.data.curves import put_in_order
from sottovoce.data.levels import ABSENT, UNKNOWN, Level, shown_level
from sottovoce.data.people import check_person
from sottovoce.data.products import ProductColumn, read_products, without_products
from sottovoce.data.resources import fits_in_memory
from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import parse_file, toml_key, toml_value, write_text
from sottovoce.formats import SCHEMA
from sottovoce.notebooks import html_table

Array = NDArray[np.float64]

NO_LEVEL: Final = 2.0**31
ROW_ENTRY: Final = 12  # bytes of an entry of dense rows, as they are encoded and as they are prepared
_KEYS: Final = ("columns", "label", "identifiers", "person", "most_records", "shape", "level_sets")


class Schema:
    """Public knowledge about the columns of a table: it makes the features, their names and the bounds of a fit.

    Parameters
    ----------
    columns : mapping
        For each column what it holds: `{"range": (18, 99)}`, a number; `{"range": "private"}`, a number whose range
        nobody knows, and a fit buys; `{"levels": ["a", "b"]}`, a category;
        `{"groups": {"heart": ["I20-I25", "I5*"]}}`, a category of named groups of codes; with `"prefix": 3` levels
        are the first three characters of codes, and `"levels_file"` in their place names a file with one a line;
        `{"yes": "Y", "no": "N"}`. With `"missing": True` missing cells have a feature of their own, with
        `"other": True` undeclared levels too; `"fill"` is what a missing number counts as, by default the middle of
        its range. `{"counts": 20}` is a label of counts; `{"exposure": (0, 1)}`, also weight and time, stands beside
        it. Choose ranges and levels from what is publicly known, never from the data.
        `"reference"` names the level that coefficients of others are against. `{"product": ["age", "diet"]}` is a
        column made of two others, which is none of the table.
        `"shape": "smooth"` lets a number act along a curve: with `"knots"`, how many or a list of public places,
        `"scale": "log"` for amounts, and `"monotone"`, "up" or "down", which costs nothing.
        Of any column `"source"` says where its declaration comes from, and `"sensitive": True` that it needs care:
        sheets for officers show both.
    label : str or None
        The column of the labels. Its entry among the columns, if it has one, declares the classes or the range.
    identifiers : list of str
        Columns that are no features: numbers of records, names, weights.
    person : str or None
        The column that says whose record each row is, where people have several; it is no feature.
    most_records : int or None
        How many records of a person count at most: a public number, as large as is usual. Further ones count for
        nothing.
    shape : 'linear', 'smooth' or None
        The shape of all numbers that do not say their own; the label has none.
    level_sets : mapping
        Entries of categories by name, which several columns use: `"levels": "diagnosis"`.

    Examples
    --------
    >>> schema = Schema({"age": {"range": (18, 98)}, "diet": {"levels": ["fish", "meat"]}}, identifiers=["id"])
    >>> schema.feature_names
    ('age', 'diet=fish', 'diet=meat')
    >>> schema.encode({"id": [1, 2], "age": [20, 1000], "diet": ["meat", "?"]}).tolist()
    [[20.0, 0.0, 1.0], [98.0, 0.0, 0.0]]
    >>> round(schema.row_norm**2, 6)
    2.0
    """

    def __init__(  # noqa: PLR0913
        self,
        columns: Mapping[str, Any],
        *,
        label: str | None = None,
        identifiers: Sequence[str] = (),
        person: str | None = None,
        most_records: int | None = None,
        shape: str | None = None,
        level_sets: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if not isinstance(columns, Mapping) or not all(isinstance(name, str) and name for name in columns):
            raise InputError('columns must be a table by column names, for example {"age": {"range": (18, 99)}}.')
        if not (label is None or (isinstance(label, str) and label)):
            raise InputError(f"label={label!r} must be the name of a column; leave it out where there is none.")
        if not isinstance(identifiers, list | tuple) or not all(isinstance(name, str) for name in identifiers):
            raise InputError(f"identifiers={identifiers!r} must be a list of names of columns.")
        if shape not in (None, *SHAPES):
            raise InputError(f"shape={shape!r} must be {' or '.join(map(repr, SHAPES))}, of all numbers; or left out.")
        if not isinstance(level_sets, Mapping) or not all(isinstance(each, Mapping) for each in level_sets.values()):
            raise InputError('level_sets must be a table of tables: { diagnosis = { prefix = 3, levels = ["I20"] } }.')
        usual = {} if shape is None else {"shape": shape}
        declared = dict[str, Column]()
        columns, self.notes = separate_notes(columns)
        self.beside, columns = read_beside(columns)
        for name, entry in without_products(columns).items():
            shaped = name != label and isinstance(entry, Mapping) and "range" in entry
            declared[name] = read_column(name, {**usual, **entry} if shaped else entry, level_sets)
        self.label = label
        self.target = declared.pop(label, None) if label is not None else None
        if isinstance(self.target, Curve):
            raise InputError(f'columns.{label}: the label has no shape; leave shape = "smooth" out of its entry.')
        self.columns: dict[str, Column] = declared
        self.person, self.most_records = check_person(person, most_records)
        self.products = read_products(columns, declared)
        self._every = (*declared.values(), *self.products.values())  # what features are made of
        self.identifiers = tuple(dict.fromkeys([*identifiers, *self.names_beside.values()]))
        for name in self.identifiers:
            if name in self.columns or name == self.label:
                raise InputError(f"identifiers: {name!r} is a column of features or the label too; take it out of one.")
        names = self.feature_names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"columns: two features would be called {twice!r}; rename a level or a column.")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Such as "age", "education=HS-grad", "income=missing"."""
        return tuple(name for column in self._every for name in column.features)

    @property
    def row_norm(self) -> float:
        """What no rescaled row exceeds: the root of what each column adds at most."""
        return math.sqrt(math.fsum(column.square for column in self._every))

    @property
    def classes(self) -> tuple[Level, ...] | None:
        """The declared labels of a classification."""
        if isinstance(self.target, Category):
            return self.target.levels
        return (self.target.no, self.target.yes) if isinstance(self.target, YesNo) else None

    @property
    def label_bound(self) -> tuple[float, float] | None:
        """The declared range of a numeric label; one that nobody knows counts as [-1, 1] until it is bought."""
        return self.target.ranges[0] if isinstance(self.target, Number) else None

    @property
    def names_beside(self) -> dict[str, str]:
        """The columns that stand beside the label, by what they are."""
        own = {kind: each.name for kind, each in self.beside.items()}
        return own if self.person is None else {**own, "person": self.person}

    def most_beside(self, kind: str) -> float | None:
        """The largest exposure, or the ceiling of weights."""
        return self.beside[kind].most if kind in self.beside else None

    @property
    def estimated(self) -> dict[int, Number]:
        """By place among the features, the numbers whose range a fit buys; behind the features comes the label."""
        starts = np.cumsum([0, *(len(column.features) for column in self._every)]).tolist()
        placed = zip(starts, (*self._every, self.target), strict=True)
        return {place: column for place, column in placed if isinstance(column, Number) and column.estimated}

    def with_ranges(self, numbers: Iterable[Number]) -> Schema:
        """The same schema with these columns in the place of those of their names."""
        new = {column.name: column.entry() | self.notes.get(column.name, {}) for column in numbers}
        table = self.table()
        return Schema.from_table(table | {"columns": table["columns"] | new})

    @property
    def feature_ranges(self) -> tuple[list[float], list[float]]:
        """(lows, highs) of the features, as bounds are declared."""
        pairs = [pair for column in self._every for pair in column.ranges]
        return [low for low, _ in pairs], [high for _, high in pairs]

    @property
    def level_files(self) -> list[Path]:
        """The files that levels were read from."""
        every = (getattr(column, "levels_file", None) for column in (*self.columns.values(), self.target))
        return [file for file in every if file is not None]

    def contrasts(self) -> tuple[list[tuple[str, Array]], Array]:
        """What coefficients can be told of, as weights on all features, and the features of the base cells."""
        found, count = list[tuple[str, Array]](), len(self.feature_names)
        base = np.concatenate([np.zeros(0), *(column.base() for column in self._every)])
        for own, column in self.placed:
            for name, way in column.contrasts():
                weights = np.zeros(count)
                weights[own] = way
                found.append((name, weights))
        return found, base

    @property
    def references(self) -> list[int]:
        """The places of the levels that others of their categories are compared with."""
        return [own.start + each.first for own, each in self.placed if isinstance(each, Category)]

    def heights(self) -> Iterator[tuple[str, Array, str]]:
        """Of each curve: the name of a knot, the weights of its height on all features, and the column."""
        for own, column in self.placed:
            for place, height in zip(column.places, column.basis, strict=True) if isinstance(column, Curve) else ():
                weights = np.zeros(len(self.feature_names))
                weights[own.start : own.start + len(height)] = height
                yield f"{column.name} at {place:.4g}", weights, column.name

    @property
    def placed(self) -> list[tuple[slice, Column]]:
        """The columns, each with the places of its features."""
        ends = np.cumsum([len(column.features) for column in self._every]).tolist()
        return [(slice(end - len(each.features), end), each) for end, each in zip(ends, self._every, strict=True)]

    def in_order(self, coef: Array) -> Array:
        """The coefficients with each curve that is `monotone` put in order: post-processing, which costs nothing."""
        made = coef.copy()
        for own, column in self.placed:
            if isinstance(column, Curve) and column.monotone is not None:
                own = slice(own.start, own.start + len(column.basis[0]))  # without the flag
                made[..., own] = put_in_order(coef[..., own].ravel(), column.basis, rising=column.monotone == "up")
        return made

    @property
    def ordered(self) -> list[str]:
        """The columns whose curves are put in order."""
        return [name for name, column in self.columns.items() if getattr(column, "monotone", None) is not None]

    def part(self, names: Iterable[str]) -> Schema:
        """The schema of some columns, in the order of this schema."""
        wanted = set(names)
        if apart := next(
            (each for each in self.products.values() if {one.name for one in each.parents} - wanted), None
        ):
            raise InputError(
                f"columns.{apart.name}: nobody has both columns of this product. By columns leave it out; in one place "
                "and by rows it is served."
            )
        wanted |= set(self.products)
        entries = {name: entry for name, entry in self.table()["columns"].items() if name in wanted}
        label = self.label if self.label in wanted else None
        person = self.person if self.person in wanted else None
        others = [name for name in self.identifiers if name in wanted and name not in entries]
        return Schema(entries, label=label, identifiers=others, **self._about_people(person))

    def _about_people(self, person: str | None) -> dict[str, Any]:
        found = {"person": person, "most_records": None if person is None else self.most_records}
        return {key: value for key, value in found.items() if value is not None}

    def of_features(self, features: Sequence[str]) -> Schema:
        """The schema of the columns that make exactly these features, in their order; no features of one are apart."""
        columns, rest = [], list(features)
        homes = {column.features[0]: column for column in self._every}
        while rest:
            column = homes.get(rest[0])
            if column is None or tuple(rest[: len(column.features)]) != column.features:
                raise InputError(
                    f"schema: the data have a feature {rest[0]!r} that this schema does not make, or not at that "
                    "place. Give the same schema to the federation, to every party and to the estimator."
                )
            columns.append(column)
            rest = rest[len(column.features) :]
        entries = {column.name: column.entry() | self.notes.get(column.name, {}) for column in columns}
        if self.label is not None and self.target is not None:
            entries[self.label] = self.target.entry() | self.notes.get(self.label, {})
        entries |= {each.name: each.entry() | self.notes.get(each.name, {}) for each in self.beside.values()}
        others = [name for name in self.identifiers if name not in entries]
        return Schema(entries, label=self.label, identifiers=others, **self._about_people(self.person))

    def party_norms(self, row_norm: float, columns: Sequence[int]) -> tuple[float, ...]:
        """By columns: the bound of each party's part of a row, the parties having so many features one after another.

        Each part is what its columns add. A column whose features are with two parties counts at both, for its value
        may be among either's; else the squares sum to row_norm^2.
        """
        squares = np.array([column.square for column in self._every])
        ends = np.cumsum([len(column.features) for column in self._every])
        stops = np.cumsum(columns)
        first, last = np.searchsorted(stops, np.append(0, ends[:-1]), side="right"), np.searchsorted(stops, ends)
        parts = [float(squares[(first <= place) & (place <= last)].sum()) for place in range(len(columns))]
        return tuple(float(norm) for norm in row_norm * np.sqrt(np.array(parts) / squares.sum()))

    def encode(self, table: Any, *, others: bool = True) -> Any:
        """The features of a table: a data frame, an Arrow table, a mapping of columns, or the path of a file.

        An array, or a CSR matrix where by the schema most of a row is 0 (`sparse`), of integers if all features are.
        With `others=False` a column that the schema does not name is an error.
        """
        rows = self.rows(table, others=others)
        if not isinstance(rows, Coded):
            return rows
        return rows.csr(np.int8 if rows.whole else np.float64) if self.sparse else rows.dense()

    def rows(self, table: Any, *, others: bool = False) -> Rows:
        """The same as a fit takes them: if they are sparse, or would not fit in memory, their cells."""
        cells = table_columns(table)
        self._check_columns(cells, others=others)
        width = sum(each.width for each in self._places)
        if self.sparse or not fits_in_memory(ROW_ENTRY * width * cells.records):
            return Coded.read(self._places, cells, cells.records)
        return np.column_stack([column.made(column.read_from(cells)) for column in self._every])

    def of_party(self, table: Any, target: Column | None = None) -> dict[str, Any]:
        """What the holder of a table knows of it besides rows and labels."""
        return {"feature_names": self.feature_names, "codes": self.codes_of_table(table, target)}

    def codes_of_table(self, table: Any, target: Column | None = None) -> TableCodes:
        """How a party makes the codes of its table."""
        target, columns = target or self.target, len(self.columns)
        return TableCodes(
            functools.partial(self.codes, table, target=target), (columns, columns + (target is not None))
        )

    def codes(self, table: Any, label: Any = None, target: Column | None = None) -> Array:
        """A number for each cell of the columns (`codes_of`) and, behind them, of a declared label, which is given."""
        cells, target = table_columns(table), target or self.target
        self._check_columns(cells, others=True)
        found = [codes_of(column, cells[name]) for name, column in self.columns.items()]
        if label is not None and target is not None:
            found.append(codes_of(target, cells.get(self.label or "", label_array(label))))
        return np.column_stack(found)

    @functools.cached_property
    def _places(self) -> tuple[Placed, ...]:
        return places_of(self._every)

    @property
    def entries(self) -> int:
        """How many features of a row may be other than 0."""
        return sum(each.entries for each in self._places)

    @property
    def sparse(self) -> bool:
        """Whether most of a row is 0, so that it is not stored with its zeros: by what is declared alone."""
        return self.entries <= MOST_FILLED * sum(each.width for each in self._places)

    def labels(self, table: Any) -> NDArray[Any] | None:
        """The label of each row: of declared ones the declared value, or None where a cell is none of them.

        None if there is no label column. Without an entry for it labels are as the table has them. Beside them stands
        whose record each is, if the schema says who.
        """
        if self.label is None:
            return None
        cells = table_columns(table)
        if self.label not in cells:
            return None
        for kind, name in self.names_beside.items():
            if name not in cells:
                raise InputError(f"the table lacks {name!r}, the {kind} of each record. Add the column.")
        beside = {kind: cells[name] for kind, name in self.names_beside.items()}
        return np.asarray(labels_with(self._labels(cells[self.label]), **beside))

    def with_person(self, labels: Any, table: Any) -> Any:
        """Labels beside which stands whose record each row of a table is, if the schema says who."""
        return labels if self.person is None else labels_with(labels, person=table_columns(table)[self.person])

    def _labels(self, raw: NDArray[Any]) -> NDArray[Any]:
        if isinstance(self.target, Number):
            return read_numbers(raw, cell_key)
        if not isinstance(self.target, Category | YesNo):
            return raw
        levels = np.array([*(self.classes or ()), None], dtype=object)
        return np.asarray(levels[np.maximum(self.target.book.places(raw), -1)])

    def table(self) -> dict[str, Any]:
        """Plain values, as in the table [schema] of a job file."""
        columns = {column.name: column.entry() for column in self._every}
        if self.label is not None and self.target is not None:
            columns[self.label] = self.target.entry()
        columns |= {each.name: each.entry() for each in self.beside.values()}
        label = {} if self.label is None else {"label": self.label}
        for name, noted in self.notes.items():
            columns[name] = columns[name] | noted
        others = [name for name in self.identifiers if name != self.person and name not in columns]
        people = self._about_people(self.person)
        return label | ({"identifiers": others} if others else {}) | people | {"columns": columns}

    @classmethod
    def from_table(cls, table: Mapping[str, Any], folder: Path = Path()) -> Schema:
        """Of plain values; `levels_file` is relative to the folder."""
        for key in table:
            if key not in (*_KEYS, "format"):
                meant = did_you_mean(key, _KEYS)
                raise InputError(f"[schema] has no key {key!r}{meant} Allowed are: {', '.join(_KEYS)}.")
        if not SCHEMA.read(number := table.get("format", SCHEMA.number)):
            raise InputError(SCHEMA.refusal("[schema]", number))
        if "columns" not in table:
            raise InputError("[schema] lacks columns: a table by column names, { age = { range = [18, 99] }, ... }.")
        given = {key: value for key, value in table.items() if key != "format"}
        for key in ("columns", "level_sets"):
            if isinstance(entries := given.get(key), Mapping):
                given[key] = {name: _with_path(entry, folder) for name, entry in entries.items()}
        return cls(given.pop("columns"), **given)

    @classmethod
    def from_toml(cls, path: str | PathLike[str]) -> Schema:
        """The table [schema] of a TOML file."""
        path = Path(path)
        tables = parse_file(
            path, tomllib.loads, "TOML", "give the path of a schema; `sottovoce schema FILE` drafts one."
        )
        if not isinstance(tables.get("schema"), dict):
            raise InputError(f"{path} has no table [schema]; `sottovoce schema FILE` drafts one.")
        try:
            return cls.from_table(tables["schema"], path.parent)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_toml(self, path: str | PathLike[str]) -> None:
        write_text(Path(path), toml_text(self.table()), "path")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and json.dumps(self.table()) == json.dumps(other.table())

    def __hash__(self) -> int:
        return hash(json.dumps(self.table()))

    def __repr__(self) -> str:
        features = len(self.feature_names)
        return f"Schema({len(self.columns)} columns, {features} features, row_norm={self.row_norm:.4g})"

    def _repr_html_(self) -> str:
        """A row for each column: what it holds, and its features."""
        every = {**self.columns, **self.products}
        every |= {} if self.label is None or self.target is None else {self.label: self.target}
        rows = [
            (f"{name} (the label)" if name == self.label else name, tell_column(each)) for name, each in every.items()
        ]
        known = {each.name: str(each) for each in self.beside.values()}
        rows += [(name, known.get(name, "an identifier, no feature")) for name in self.identifiers]
        return html_table(("column", "holds"), rows, caption=repr(self))

    def _check_columns(self, cells: Mapping[str, Any], *, others: bool) -> None:
        absent = [name for name in self.columns if name not in cells]
        if absent:
            folded = {name.strip().casefold(): name for name in cells}
            meant = did_you_mean(folded.get(absent[0].strip().casefold(), absent[0]), tuple(cells))
            raise InputError(f"the table lacks {', '.join(map(repr, absent))} of the schema{meant} Add the columns.")
        strange = [name for name in cells if name not in (*self.columns, *self.identifiers, self.label)]
        if strange and not others:
            raise InputError(
                f"the table has columns that the schema does not name: {', '.join(map(repr, strange))}. Declare what "
                "they hold, or name them among the identifiers, which are no features."
            )


class TableCodes(NamedTuple):
    """The codes of a party's table, which are made when a plan is taken, of the table as it was when rows were read."""

    make: Callable[[Any], Array]  # given the labels, or None where they are not known
    widths: tuple[int, int]  # how many codes a record has without its label, and with it
    unchanged: Callable[[], bool] = lambda: True  # whether the table is the one that rows were read from


def codes_of(column: Column, cells: Cells) -> Array:
    """A number for each cell: the number itself, of levels the place; infinite where it is missing.

    A cell of no declared level is beyond all places.
    """
    if isinstance(column, Category | YesNo):
        places = column.book.places(cells)
        return np.where(places == ABSENT, math.inf, np.where(places == UNKNOWN, NO_LEVEL, places))
    values = read_numbers(cells, cell_key)
    return np.where(np.isfinite(values), values, math.inf)


_MOST_NAMED: Final = 10  # levels that are told by name


def tell_column(column: Column) -> str:
    """What a column holds, in words: "5 levels (a, b, c, d, e), missing counted"."""
    if isinstance(column, ProductColumn):
        said = f"the product of {' and '.join(parent.name for parent in column.parents)}"
        low, high = column.ranges[0]
        said += f", from {low:g} to {high:g}" + (f", {column.counted}" if column.counted else "")
    elif isinstance(column, Number):
        kind = "a count" if isinstance(column, CountColumn) else "a number"
        said = kind if column.unknown else f"{kind} from {column.low:g} to {column.high:g}"
        said += ", its range bought by the fit" if column.estimated else ""
        said += f", along a curve of {len(column.places)} knots" if isinstance(column, Curve) else ""
    elif isinstance(column, YesNo):
        said = f"yes ({shown_level(column.yes)}) or no ({shown_level(column.no)})"
    else:
        assert isinstance(column, Category), "the third of the kinds"  # noqa: S101
        said = f"{len(column.levels)} {'levels' if column.groups is None else 'groups of codes'}"
        said += f" ({', '.join(column.shown)})" if len(column.levels) <= _MOST_NAMED else ""
    return said + "".join(f", {key} counted" for key in ("missing", "other") if getattr(column, key, False))


def _with_path(entry: Any, folder: Path) -> Any:
    """An entry whose file of levels is one of this folder."""
    if not isinstance(entry, Mapping) or not isinstance(file := entry.get("levels_file"), str):
        return entry
    return {**entry, "levels_file": folder / Path(file).expanduser()}


def toml_text(table: Mapping[str, Any], comments: Mapping[str, str] | None = None, *, head: str = "") -> str:
    """The table [schema] as TOML, a line for each column, with a comment behind it where there is one."""
    remarks = {key: f"  # {remark}" for key, remark in (comments or {}).items()}

    def line(key: str, value: Any, where: str = "") -> str:
        return f"{toml_key(key)} = {toml_value(value)}{remarks.get(where + key, '')}"

    lines = [*(f"# {line}" for line in head.splitlines()), "[schema]", line("format", SCHEMA.number)]
    lines += [line(key, value) for key, value in table.items() if key != "columns"]
    lines += ["", "[schema.columns]", *(line(name, entry, "columns.") for name, entry in table["columns"].items())]
    return "\n".join(lines) + "\n"
