"""Synthetic clinic data: realistic in shape, and about nobody.

Every record is drawn from the few lines of arithmetic below. No patient's data went into it, the
coefficients are invented, and no medical conclusion follows from it. It serves demonstrations and tests, in
which clinics learn together which of their patients will be readmitted within 30 days.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, softmax

from sottovoce.arguments import is_number
from sottovoce.data.beside import labels_of
from sottovoce.data.cells import table_columns
from sottovoce.data.column_kinds import Category, Column, Curve, Number, YesNo
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.plan.problem import Problem

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Feature:
    """A measured quantity: its unit, the range any clinic would call plausible, and who in town holds it.

    `typical` is of a patient, `effect` what one unit more adds to the log-odds of readmission.
    """

    name: str
    unit: str
    low: float
    high: float
    decimals: int
    holder: str
    typical: float
    effect: float


_TOLD = tomllib.loads(Path(__file__).with_name("clinics.toml").read_text(encoding="utf-8"))
FEATURES = tuple(Feature(name, **told) for name, told in _TOLD["features"].items())
FEATURE_NAMES = tuple(feature.name for feature in FEATURES)
FEATURE_RANGES = (tuple(feature.low for feature in FEATURES), tuple(feature.high for feature in FEATURES))
LABEL = "readmitted"
HOLDERS = ("clinic", "lab", "insurer")
EXAMPLE_CLINICS = 3
EXAMPLE_RECORDS = 3_000
EXAMPLE_TWICE = 30  # people of the clinics 1 to 3 who were at two of them, of each two neighbours
EXAMPLE_SHARE = 0.95  # of the people of the town, those whom each holder knows


# At a visit: the range of a quantity, and what one standard deviation more adds to the log-odds of admission.
MEASURED: Final[Mapping[str, tuple[float, float, float]]] = {
    "pulse": (40.0, 140.0, 0.6),
    "pressure": (60.0, 200.0, 0.3),
    "temperature": (34.0, 42.0, 0.7),
    "oxygen": (80.0, 100.0, -0.6),
    "sugar": (40.0, 200.0, 0.2),
    "sodium": (120.0, 160.0, -0.2),
    "potassium": (2.0, 8.0, 0.1),
    "haemoglobin": (60.0, 200.0, -0.3),
}


@dataclass(frozen=True, eq=False)
class Clinic:
    """One clinic's synthetic patients: features in the order of `FEATURES`, label 1 for readmitted."""

    name: str
    X: Array
    y: Array


@dataclass(frozen=True, eq=False)
class ColumnHolder:
    """The columns that one holder has of everybody; rows in the same order at each."""

    name: str
    X: Array
    feature_names: tuple[str, ...]


def clinics(parties: int = 4, records: int = 20_000, seed: int = 0) -> list[Clinic]:
    """`records` synthetic patients at `parties` clinics of different sizes and mildly different patients.

    The same arguments give the same data. Every value lies in its feature's public range.
    """
    if parties < 1 or records < parties or seed < 0:
        raise InputError(
            f"parties={parties!r}, records={records!r}, seed={seed!r}: give at least one party, at least one "
            "record for each, and a seed of at least 0."
        )
    # The largest clinic is about twice the smallest; whatever the rounding leaves over goes to the first.
    shares = np.linspace(2.0, 1.0, parties)
    sizes = np.maximum(1, np.floor(records * shares / shares.sum())).astype(int)
    sizes[0] += records - sizes.sum()
    return [_clinic(f"clinic-{k + 1}", int(size), seed, k) for k, size in enumerate(sizes)]


def hospital_visits(people: int = 4_000, seed: int = 0, most: int = 40) -> dict[str, NDArray[Any]]:
    """A table of visits to a hospital, 1 to `most` for each patient, 4 on average: most come once, few very often.

    Who is old or frail comes more often and is admitted more often; how frail somebody is no column says.
    """
    generator = np.random.default_rng(seed)
    frailty, age = generator.normal(size=people), generator.uniform(18, 98, people).round()
    often = np.exp(0.5 * frailty + (age - 58) / 60)
    counts = np.minimum(1 + generator.negative_binomial(0.6, 0.6 / (0.6 + 2.3 * often)), most)
    who = np.repeat(np.arange(people), counts)
    score, measured = (age[who] - 80) / 20 + 0.6 * frailty[who] - 0.8, dict[str, NDArray[Any]]()
    for name, (low, high, effect) in MEASURED.items():
        normal = np.clip(generator.normal(size=len(who)), -4, 4)
        measured[name] = ((low + high) / 2 + normal * (high - low) / 8).round(1)
        score += effect * normal
    return {
        "patient": np.array([f"P{number:05}" for number in generator.permutation(people)])[who],
        "age": age[who],
        **measured,
        "admitted": np.where(score + generator.logistic(size=len(who)) > 0, "yes", "no"),
    }


def columns(parties: int = 4, records: int = 20_000, seed: int = 0) -> tuple[list[ColumnHolder], Array]:
    """The people of `clinics(...)`, all clinics in turn, split by columns among clinic, lab and insurer."""
    town = clinics(parties, records, seed)
    X = np.concatenate([clinic.X for clinic in town])
    holders = []
    for holder in HOLDERS:
        held = [j for j, feature in enumerate(FEATURES) if feature.holder == holder]
        holders.append(ColumnHolder(holder, X[:, held], tuple(FEATURE_NAMES[j] for j in held)))
    return holders, np.concatenate([clinic.y for clinic in town])


def example_rows(holder: str, *, new: bool = False) -> list[list[str]]:
    """The rows of an example file, header first: of clinic-1 to clinic-3, or of the clinic, lab or insurer of a town.

    The clinics 1 to 3 have different people, but for a few who were at two of them, and the label last. The holders of
    a town have columns of the same people, each in an order of its own, with identifiers written as each does and some
    people whom the others lack; the clinic has the labels. `new`: people to predict for, whom all holders of a town
    know; nobody has their labels.
    """
    seed = 1 + new
    several = [f"clinic-{k + 1}" for k in range(EXAMPLE_CLINICS)]
    if holder in several:
        place, shape = several.index(holder), "{:06d}"
        town = clinics(EXAMPLE_CLINICS, EXAMPLE_RECORDS, seed)
        rows, labels, names = town[place].X, town[place].y, FEATURE_NAMES
        start = sum(len(clinic.y) for clinic in town[:place]) - EXAMPLE_TWICE * place * (not new)
        numbers = start + np.arange(len(labels))
    elif holder in HOLDERS:
        place = HOLDERS.index(holder)
        held, labels = columns(EXAMPLE_CLINICS, EXAMPLE_RECORDS, seed)
        known = len(labels) if new else round(EXAMPLE_SHARE * len(labels))
        numbers = np.random.default_rng([seed, place]).permutation(len(labels))[:known]
        rows, labels, names = held[place].X[numbers], labels[numbers], held[place].feature_names
        shape = ("{:06d}", "{}", " {:08d} ")[place]
    else:
        raise InputError(f"name={holder!r} has no example file; these have: {', '.join((*several, *HOLDERS))}.")
    header, cells = ["id", *names], rows
    if holder not in HOLDERS[1:] and not new:
        header, cells = [*header, "outcome"], np.column_stack([rows, labels])
    people = [shape.format(number + 1 + EXAMPLE_RECORDS * new) for number in numbers]
    return [header, *([who, *(f"{cell:.10g}" for cell in row)] for who, row in zip(people, cells, strict=True))]


def write_csv(clinic: Clinic, path: str | Path) -> None:
    """Write a clinic as a CSV file: a header line, the label last; compressed if named .gz, .bz2 or .xz."""
    header = ",".join((*FEATURE_NAMES, LABEL))
    np.savetxt(path, np.column_stack([clinic.X, clinic.y]), fmt="%.10g", delimiter=",", header=header, comments="")


def _clinic(name: str, size: int, seed: int, index: int) -> Clinic:
    rng = np.random.default_rng([seed, index])

    def noise(scale: float) -> Array:
        return scale * rng.standard_normal(size)

    # Two traits that no column shows, shifted a little from clinic to clinic, tie the columns together.
    older, heavier, frailer = 0.25 * rng.standard_normal(3)
    metabolic = heavier + noise(1.0)
    frail = frailer + noise(1.0)

    years = 14 * older + noise(14)  # from the age of 60
    sex = (rng.random(size) < 0.5).astype(float)
    smoker = (rng.random(size) < expit(-1.3 + 0.4 * sex - 0.02 * years)).astype(float)
    body_mass = 27.5 + 3.2 * metabolic + noise(3.2)
    systolic = 126 + 0.4 * years + 0.9 * (body_mass - 27.5) + noise(12)
    hba1c = 5.9 * np.exp(0.13 * metabolic + 0.002 * years + noise(0.05))
    admissions = rng.poisson(np.exp(-0.7 + 0.55 * frail + 0.012 * years))
    stay = 1 + rng.poisson(np.exp(1.0 + 0.35 * frail + 0.05 * smoker))
    medications = rng.poisson(np.exp(1.4 + 0.3 * frail + 0.2 * metabolic + 0.01 * years))
    X = np.column_stack(
        [
            60 + years,
            sex,
            body_mass,
            systolic,
            78 + 0.45 * (systolic - 126) - 0.15 * years + noise(6),
            74 + 3 * smoker + 2 * frail + noise(9),
            smoker,
            28.7 * hba1c - 60 + noise(12),  # near the published relation between HbA1c and mean glucose
            hba1c,
            122 + 6 * metabolic - 0.2 * years + noise(30),
            60 - 8 * sex - 5 * metabolic + noise(11),
            0.85 * np.exp(0.2 * sex + 0.008 * years + 0.06 * metabolic + noise(0.18)),
            admissions,
            stay,
            medications,
        ]
    )
    X = np.column_stack([np.clip(X[:, j], f.low, f.high).round(f.decimals) for j, f in enumerate(FEATURES)])
    score = (X - [f.typical for f in FEATURES]) @ [f.effect for f in FEATURES] - 1.35
    return Clinic(name, X, (rng.random(size) < expit(score)).astype(float))


ACCURACY: Final = 0.8  # of the true model, where nothing else is asked for
EXPLAINED: Final = 0.5  # of the variance of a numeric label, likewise
MOST_FEATURES: Final = 10_000
WIDTH: Final = 8.0  # of a range, in standard deviations
TEST: Final = 10_000  # records to score on
_STEEPEST: Final = 1e4


@dataclass(frozen=True, eq=False)
class Records:
    """Rows and labels: a matrix, or the cells of a table by the names of its columns."""

    X: Any
    y: NDArray[Any]

    def take(self, rows: Any) -> Records:
        if isinstance(self.X, Mapping):
            return Records({name: cells[rows] for name, cells in self.X.items()}, self.y[rows])
        return Records(self.X[rows], self.y[rows])


@dataclass(frozen=True, eq=False)
class LookAlike:
    """Records that the user calls public: some of them to fit to, others to score on, anew in every run."""

    records: Records

    @classmethod
    def of(cls, like: Any, schema: Schema | None) -> LookAlike:
        """A pair (X, y), or a table whose label column the schema names."""
        X, y = like if isinstance(like, tuple | list) and len(like) == 2 else (like, None)
        if schema is not None:
            cells = table_columns(X)
            found = schema.labels(cells) if y is None else y
            y = None if found is None else labels_of(np.asarray(found))
            X = {name: cells[name] for name in schema.columns if name in cells}
        if y is None:
            where = "give like=(X, y)" if schema is None else "name the label column in the schema, or give like=(X, y)"
            raise InputError(f"like has no labels; {where}.")
        if sp.issparse(X):
            X = cast("Any", X).tocsr()
        elif not isinstance(X, Mapping):
            X = np.asarray(X, dtype=np.float64)
        labels = np.asarray(y)
        count = len(next(iter(X.values()))) if isinstance(X, Mapping) else X.shape[0]
        if labels.ndim != 1 or len(labels) != count or count < 10:
            raise InputError(f"like must be at least 10 records with a label each; it has {count} rows.")
        return cls(Records(X, labels))

    @property
    def features(self) -> int | None:
        return None if isinstance(self.records.X, Mapping) else int(self.records.X.shape[1])

    @property
    def most(self) -> int:
        """The most records that there are to fit to: two thirds of them, or all but `TEST`."""
        count = len(self.records.y)
        return count - min(count // 3, TEST)

    def draw(self, train: int, generator: np.random.Generator) -> tuple[Records, Records]:
        order = generator.permutation(len(self.records.y))
        return self.records.take(order[:train]), self.records.take(order[train : train + TEST])

    def __str__(self) -> str:
        return f"a public look-alike of {len(self.records.y):,} records"


@dataclass(frozen=True, eq=False)
class MadeUp:
    """Records about nobody, by the laws that the module states; effects are drawn anew with every call of `draw`."""

    problem: Problem
    schema: Schema | None
    strength: float
    missing: float = 0.0  # the share of a table's cells that are blank

    most: ClassVar[int | None] = None  # any number can be made

    @classmethod
    def of(cls, problem: Problem, schema: Schema | None, strength: float | None = None, missing: float = 0.0) -> MadeUp:
        """The strength checked, or the default one."""
        least = 0.0 if problem.classes is None else 1 / len(problem.classes)
        usual = EXPLAINED if problem.classes is None else ACCURACY
        strength = usual if strength is None else strength
        if not (is_number(strength) and least < strength < 1):
            what = "share of the label's variance" if problem.classes is None else "accuracy of the true model"
            raise InputError(
                f"strength={strength!r} must be the {what}, between {least:.3g} and 1; {usual:g} is usual."
            )
        if not (is_number(missing) and 0 <= missing < 1) or (missing and schema is None):
            raise InputError(f"missing={missing!r} must be a share of a table's cells from 0 to 1, and needs a schema.")
        if problem.features > MOST_FEATURES:
            raise InputError(
                f"features={problem.features}: records are made up for at most {MOST_FEATURES:,} features; give a "
                "public look-alike, like=(X, y)."
            )
        return cls(problem, schema, float(strength), float(missing))

    def draw(self, train: int, generator: np.random.Generator) -> tuple[Records, Records]:
        count = train + TEST
        scores = np.zeros((count, self._outputs))
        X: Any
        if self.schema is None:
            X, scores = self._rows(count, generator)
        else:
            X = {}
            for name, column in self.schema.columns.items():
                cells, parts = self._cells(column, count, generator)
                blank = generator.random(count) < self.missing
                X[name] = np.where(blank, np.array(None, dtype=object), cells) if blank.any() else cells
                scores += np.where(blank[:, None], 0.0, parts)
        scores = (scores - scores.mean(axis=0)) / scores.std()
        made = Records(X, self._labels(scores, generator))
        return made.take(slice(train)), made.take(slice(train, None))

    @property
    def _outputs(self) -> int:
        return len(self.problem.classes) if self.problem.classes is not None and len(self.problem.classes) > 2 else 1

    def _rows(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """Rows of a matrix, in the units of the declared ranges, and their scores."""
        bounds, d = self.problem.bounds, self.problem.features
        normal = np.clip(generator.standard_normal((count, d)), -WIDTH / 2, WIDTH / 2)
        spread = np.minimum(bounds.columns(d) / (WIDTH / 2), (bounds.row_norm or np.inf) / (2 * np.sqrt(d)))
        rows = normal * spread
        if bounds.feature_low is not None and bounds.feature_high is not None:
            low, high = np.array(bounds.feature_low), np.array(bounds.feature_high)
            rows = (low + high) / 2 + rows * (high - low) / 2
        return rows, normal @ generator.standard_normal((d, self._outputs))

    def _cells(self, column: Column, count: int, generator: np.random.Generator) -> tuple[NDArray[Any], Array]:
        """The cells of a column, and what they add to the scores."""
        if isinstance(column, Number):
            normal = np.clip(generator.standard_normal(count), -WIDTH / 2, WIDTH / 2)
            if isinstance(column, Curve):
                return self._curve(column, normal, generator)
            low, high = column.ranges[0]
            cells = (low + high) / 2 + normal * (high - low) / WIDTH
            return cells, normal[:, None] * generator.standard_normal(self._outputs)
        levels: tuple[Any, ...]
        if isinstance(column, YesNo):
            levels, shares = (column.no, column.yes), np.array([1.0, generator.uniform(0.25, 4.0)])
        elif isinstance(column, Category):
            levels = tuple(column.book.examples[place] for place in range(len(column.levels)))
            shares = 1.0 / (1 + generator.permutation(len(levels)))
        else:
            raise InputError(f"schema: records are not made up for a column such as {column.name!r}; give like=....")
        places = generator.choice(len(levels), size=count, p=shares / shares.sum())
        effects = generator.standard_normal((len(levels), self._outputs))
        return np.array(levels, dtype=object)[places], effects[places]

    def _curve(self, column: Curve, normal: Array, generator: np.random.Generator) -> tuple[NDArray[Any], Array]:
        """Bell-shaped along its knots; its effect is a line and a bend of equal size, of a monotone one a line."""
        places = np.array(column.places)
        cells = np.interp((normal / WIDTH + 0.5) * (len(places) - 1), np.arange(len(places)), places)
        line, bend = generator.standard_normal((2, 1, self._outputs))
        if column.monotone is not None:
            line, bend = np.abs(line) * (1 if column.monotone == "up" else -1), 0 * bend
        return cells, normal[:, None] * line + (normal[:, None] ** 2 - 1) / np.sqrt(2) * bend

    def _labels(self, scores: Array, generator: np.random.Generator) -> NDArray[Any]:
        count, classes = len(scores), self.problem.classes
        if classes is None:
            noise = generator.standard_normal(count)
            unit = np.sqrt(self.strength) * scores[:, 0] + np.sqrt(1 - self.strength) * noise
            centre, half = self.problem.bounds.label_scale(fit_intercept=self.problem.fit_intercept)
            return np.asarray(centre + half * np.clip(unit / (WIDTH / 2), -1.0, 1.0))
        whole = scores if len(classes) > 2 else np.column_stack([np.zeros(count), scores[:, 0]])

        def excess(steepness: float) -> float:
            return float(softmax(steepness * whole, axis=1).max(axis=1).mean()) - self.strength

        steepness = brentq(excess, 0.0, _STEEPEST) if excess(_STEEPEST) > 0 else _STEEPEST
        sums = softmax(steepness * whole, axis=1).cumsum(axis=1)
        places = (generator.random((count, 1)) > sums[:, :-1]).sum(axis=1)
        return np.asarray(np.array(classes, dtype=object)[places])

    def __str__(self) -> str:
        what = "R^2" if self.problem.classes is None else "accuracy"
        return f"made-up records, for which the true model has {what} {self.strength:g}"


RecordSource = LookAlike | MadeUp
