"""What an epsilon costs in accuracy, told without private records: fits of made-up or of public look-alike records."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.base import clone

from sottovoce.arguments import is_number, is_whole
from sottovoce.data.bounds import lows_and_highs
from sottovoce.data.cells import label_key
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.estimators.plots import axes_for
from sottovoce.estimators.progress import progress_bar
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import StandIn
from sottovoce.lab.synthetic import LookAlike, MadeUp, Records, RecordSource
from sottovoce.plan.problem import Labels, Problem
from sottovoce.plan.split import CENTRAL, COLUMNS, ROWS, Split
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import inside
from sottovoce.transports.base import InProcess

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

EPSILONS: Final = (0.1, 0.5, 1.0, 3.0)
RUNS: Final = 5
PLAIN: Final = 1e6  # the epsilon that stands for no privacy: the same solver, with next to no noise
ENTRIES: Final = 5_000_000  # of a matrix that is simulated whole
FEWEST: Final = 1000  # records that are simulated, however many features there are
TOLD: Final = "coefficients"  # how many have an interval, where standard errors are bought
TITLES: Final = {
    TOLD: "coefficients told",
    "accuracy": "accuracy",
    "log_loss": "log-loss",
    "mean_squared_error": "squared error",
    "r2": "R^2",
}
LOSSES: Final = ("log_loss", "mean_squared_error")  # the larger, the worse


@dataclass(frozen=True, eq=False)
class Simulation:
    """What each epsilon would cost a model, as far as other records of the same shape tell.

    `metrics` has, by name, a row for each run and a column for each epsilon; `plain` the same without privacy, for each
    run. `records` is how many a simulated fit had, `of` how many the problem has.
    """

    epsilon: tuple[float, ...]
    metrics: dict[str, Array]
    plain: dict[str, Array]
    records: int
    of: int
    features: int
    source: str

    @property
    def table(self) -> list[dict[str, float]]:
        """A row for each epsilon, the last without privacy: means over the runs, their spread, and what is lost.

        `accuracy_std` is the standard deviation over runs, `accuracy_loss` the mean of what noise made worse in the
        same run, `accuracy_loss_std` its standard deviation.
        """
        rows = []
        for column, epsilon in enumerate((*self.epsilon, math.inf)):
            row = {"epsilon": epsilon}
            for name, plain in self.plain.items():
                values = plain if epsilon == math.inf else self.metrics[name][:, column]
                worse = (values - plain) * (1 if name in LOSSES else -1)
                row |= {name: float(values.mean()), f"{name}_std": float(values.std())}
                row |= {f"{name}_loss": float(worse.mean()), f"{name}_loss_std": float(worse.std())}
            rows.append(row)
        return rows

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the figures rest on, and what they cannot show."""
        lines = [f"from {len(next(iter(self.plain.values())))} runs each on {self.source}; no private record was read"]
        if self.records < self.of:
            lines.append(
                f"scaled down to {self.records:,} of {self.of:,} records, with less noise in proportion, so that noise "
                "costs what it would cost; a model of fewer records is a little worse by itself"
            )
        if TOLD in self.plain:
            lines.append(
                f"coefficients told: how many of {self.plain[TOLD].max():.0f} would be identified, as is expected of "
                "such records; of columns that are rare, collinear or far within their ranges fewer are"
            )
        if "made-up" in self.source:
            lines.append(
                "made-up columns are independent, bell-shaped within their bounds and all of use, and a linear model "
                "is true: real records with long tails, few useful columns or rare classes can lose more or less; name "
                "a public look-alike where there is one"
            )
        return tuple(lines)

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.table, "records": self.records, "of": self.of, "remarks": list(self.remarks)}

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table as people read it: titles, and a row of texts for each epsilon."""
        titles = ["epsilon", *(text for name in self.plain for text in (TITLES[name], "worse by (± over runs)"))]
        rows = []
        for row in self.table:
            private = row["epsilon"] < math.inf
            cells = [f"{row['epsilon']:g}" if private else "no privacy"]
            for name in self.plain:
                worse = f"{row[f'{name}_loss']:.4f} ± {row[f'{name}_loss_std']:.2g}" if private else ""
                cells += [f"{row[name]:.4g}", worse]
            rows.append(cells)
        return titles, rows

    def __str__(self) -> str:
        titles, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in (titles, *rows)]
        return "\n".join([*lines, *(f"- {remark}" for remark in self.remarks)])

    def plot(self, ax: Any = None) -> Any:
        """The first metric against epsilon; needs matplotlib (the extra `plots`).

        The bars are one standard deviation, over runs, of what noise makes worse. Gives the figure.
        """
        ax = axes_for(ax)
        name, plain = next(iter(self.plain.items()))
        means, spread = self.metrics[name].mean(axis=0), (self.metrics[name] - plain[:, None]).std(axis=0)
        ax.errorbar(self.epsilon, means, yerr=spread, marker="o", capsize=3, label="private, ± noise over runs")
        ax.axhline(plain.mean(), color="0.5", linestyle="--", label="without privacy")
        ax.set_xscale("log")
        ax.set_xticks(self.epsilon, [f"{epsilon:g}" for epsilon in self.epsilon])
        ax.minorticks_off()
        ax.set_xlabel("epsilon")
        ax.set_ylabel(TITLES[name])
        ax.set_title(f"{self.of:,} records, {self.features} features: {self.source.split(',')[0]}", fontsize="medium")
        ax.legend(fontsize="small")
        return ax.figure


def simulate(  # noqa: PLR0913
    estimator: PrivateLinearModel,
    records: int | Sequence[int] | None = None,
    features: int | Sequence[int] | None = None,
    *,
    epsilon: float | Sequence[float] = EPSILONS,
    like: Any = None,
    labels: Labels = "shared",
    strength: float | None = None,
    missing: float = 0.0,
    runs: int = RUNS,
    seed: int = 0,
) -> Simulation:
    """What each epsilon would cost in accuracy, simulated on records that are nobody's or public.

    No private record is read, no ledger is charged and nothing is released: what comes out is a function of the
    arguments alone. Records that you give as `like` must be public; nothing protects them here.

    Made-up records: numbers are normal within their declared bounds, levels of a category unequally frequent, columns
    independent; labels follow a linear model of them (`lab/synthetic.py` has the laws). They show what noise does to a
    problem of this shape. They cannot show what your columns say about your label, long tails, correlated or useless
    columns, or rare classes; a public look-alike can.

    Parameters
    ----------
    estimator : estimator
        With what is public: the schema or the bounds, classes or the label bound, delta, relation, solver, penalty.
    records : int or list of int
        How many there are; a list for data split by rows, one number for each party.
    features : int, list of int or None
        How many there are, where neither the schema nor the bounds say it; a list for data split by columns, one
        number for each party, in the order of the columns.
    epsilon : list of float
        The budgets to compare.
    like : (X, y), table or None
        A public look-alike in the place of made-up records; a table by the estimator's schema. Without `records` it has
        as many as the problem.
    labels : 'shared', 'public' or 'held'
        By columns: who knows the labels.
    strength : float or None
        How much the made-up columns say about the label: the accuracy of the true model, by default 0.8, or of a
        numeric label the share of its variance, 0.5.
    missing : float
        The share of a made-up table's cells that are blank.
    runs : int
        Records and noise are drawn anew so many times.
    seed : int
        The same arguments and seed give the same result.
    """
    work = simulated_fits(**locals())
    if estimator.resources is None or not estimator.resources.verbose:
        return work.run()
    with progress_bar("simulating") as advance:
        return work.run(advance)


def simulated_fits(  # noqa: PLR0913
    estimator: PrivateLinearModel,
    records: int | Sequence[int] | None = None,
    features: int | Sequence[int] | None = None,
    *,
    epsilon: float | Sequence[float] = 1.0,
    like: Any = None,
    labels: Labels = "shared",
    strength: float | None = None,
    missing: float = 0.0,
    runs: int = RUNS,
    seed: int = 0,
) -> SimulatedFits:
    """The fits of a simulation, its arguments checked."""
    epsilons = check_epsilons(epsilon)
    for name, value, least in (("runs", runs, 1), ("seed", seed, 0)):
        if not (is_whole(value) and value >= least):
            raise InputError(f"{name}={value!r} must be a whole number from {least}.")
    if not isinstance(estimator, PrivateLinearModel):
        raise InputError(f"estimator={type(estimator).__name__} must be an estimator of this library, not fitted.")
    estimator = clone(estimator).set_params(epsilon=epsilons[0])
    look_alike = None if like is None else LookAlike.of(like, estimator.schema)
    counts = _check_counts("records", records, None if look_alike is None else len(look_alike.records.y))
    widths = _check_counts("features", features, _count_features(estimator, look_alike))
    problem = declared_problem(estimator, counts, widths, labels)
    source = look_alike or MadeUp.of(problem, estimator.schema, strength, missing)
    return SimulatedFits(estimator, problem, estimator.schema, source, epsilons, runs, seed)


def declared_problem(
    estimator: PrivateLinearModel, records: Sequence[int], features: Sequence[int], labels: Labels
) -> Problem:
    """The problem of an estimator for parties of which only counts are known."""
    if len(records) > 1 and len(features) > 1:
        raise InputError("records and features are both lists; data are split by rows or by columns, not both.")
    split: Split = ROWS if len(records) > 1 else COLUMNS if len(features) > 1 else CENTRAL
    names = [f"party-{place + 1}" for place in range(max(len(records), len(features)))]
    federation = Federation(split, InProcess(map(StandIn, names))).declare_columns(labels, 0, None)
    each, wide = (list(counts) * (len(names) // len(counts)) for counts in (records, features))
    facts = {
        name: {"records": count, "features": width, "feature_names": (), "classes": (0, 1)}
        for name, count, width in zip(names, each, wide, strict=True)
    }
    return estimator.problem(federation, facts)


def expected_coefficients(estimator: PrivateLinearModel, problem: Problem, schema: Schema | None) -> tuple[int, int]:
    """How many coefficients one fit of made-up records tells with an interval, and of how many."""
    source = MadeUp.of(problem, schema)
    work = SimulatedFits(estimator, problem, schema, source, (float(estimator.epsilon),), 1)
    train, _ = source.draw(sum(work.sizes), np.random.default_rng(0))
    table = work.fitted(train, 0, epsilon=work.simulated_epsilon(work.epsilons[0]))[0].coefficients()
    return sum(row.identified for row in table), len(table)


@dataclass(frozen=True, eq=False)
class SimulatedFits:
    """The fits of a simulation. `schema` has its columns in the order of the parties."""

    estimator: PrivateLinearModel
    problem: Problem
    schema: Schema | None
    source: RecordSource
    epsilons: tuple[float, ...]
    runs: int = RUNS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.problem.most_records is not None:
            raise InputError("person: a simulation makes up records of people with one each; leave person out for it.")

    @property
    def fits(self) -> int:
        return self.runs * (1 + len(self.epsilons))

    @property
    def scale(self) -> float:
        """How many times fewer records are simulated than there are."""
        most = max(FEWEST, ENTRIES // self.problem.features)
        if self.source.most is not None:
            most = min(most, self.source.most)
        return max(1.0, self.problem.records / most)

    @property
    def sizes(self) -> list[int]:
        """The records of each party, by columns of all of them."""
        counts = [count for _, count in self.problem.parties]
        return [max(1, int(count / self.scale)) for count in (counts[:1] if self.problem.split.same_people else counts)]

    def simulated_epsilon(self, epsilon: float) -> float:
        """With fewer records the mu that is as many times larger: N mu, and so what noise does to a mean, stays."""
        if self.scale == 1.0:
            return epsilon
        delta = inside(self.problem.delta)
        return gaussian_epsilon(mu_for(epsilon, delta) * self.scale, delta)

    def seconds(self) -> float:
        """About how long `run` takes: one fit is tried twice, as the first of a process also imports and compiles."""
        taken = []
        for _ in range(2):
            start = time.perf_counter()
            train, test = self.source.draw(sum(self.sizes), np.random.default_rng(self.seed))
            self._private(train, test, 0, self.epsilons[-1])
            taken.append(time.perf_counter() - start)
        return self.fits * min(taken)

    def run(self, progress: Progress = lambda *_: None) -> Simulation:
        """Fit and score. Every fit is seeded, so it promises nothing, is charged nowhere and counts nowhere."""
        results: list[list[dict[str, float]]] = []
        for number in range(self.runs):
            train, test = self.records_of(number)
            scores = [self._plain(train, test)]
            for done, epsilon in enumerate(self.epsilons, 1):
                progress(number * (1 + len(self.epsilons)) + done, self.fits)
                scores.append(self._private(train, test, number, epsilon))
            results.append(scores)
        progress(self.fits, self.fits)
        return self.summary(results)

    def records_of(self, number: int) -> tuple[Records, Records]:
        """The records that a run fits, and those that it measures on: the same whenever they are asked for."""
        return self.source.draw(sum(self.sizes), np.random.default_rng([self.seed, number]))

    def scores_at(self, epsilon: float) -> list[dict[str, float]]:
        """The metrics of every run at an epsilon, which may be infinite."""
        found = []
        for number in range(self.runs):
            train, test = self.records_of(number)
            private = epsilon < math.inf
            found.append(self._private(train, test, number, epsilon) if private else self._plain(train, test))
        return found

    def summary(self, results: list[list[dict[str, float]]]) -> Simulation:
        """Of the metrics of each run: without privacy, and at each epsilon."""
        names = list(results[0][0])
        return Simulation(
            self.epsilons,
            {name: np.array([[score[name] for score in scores[1:]] for scores in results]) for name in names},
            {name: np.array([scores[0][name] for scores in results]) for name in names},
            sum(self.sizes),
            self.problem.records,
            self.problem.features,
            str(self.source),
        )

    def _plain(self, train: Records, test: Records) -> dict[str, float]:
        """The metrics without privacy, in one place: by the default solver with next to no noise, where it serves.

        Elsewhere by whichever solver needs the fewest rounds, which is exact unless columns are very unevenly spread.
        """
        try:
            return self._fitted(train, test, 0, epsilon=PLAIN, solver="whitened", calibration="tight")
        except InputError:
            return self._fitted(train, test, 0, epsilon=math.inf, solver="auto", calibration="tight")

    def _private(self, train: Records, test: Records, number: int, epsilon: float) -> dict[str, float]:
        """The metrics at one of the epsilons, for as many records as there are."""
        try:
            return self._fitted(train, test, number, epsilon=self.simulated_epsilon(epsilon))
        except InputError as error:
            if self.scale == 1.0:
                raise
            raise InputError(
                f"records={self.problem.records}: scaled down to {sum(self.sizes):,}, epsilon={epsilon:g} cannot be "
                f"simulated with this solver. Simulate fewer records, or with solver='whitened'. ({error})"
            ) from None

    def _fitted(self, train: Records, test: Records, number: int, **changes: Any) -> dict[str, float]:
        model, federation = self.fitted(train, number, **changes)
        X = federation.people(self._columns(test)) if federation.split.same_people else test.X
        told = getattr(model, "coefficients_", ())
        return measure_model(model, X, test.y) | ({TOLD: float(sum(row.identified for row in told))} if told else {})

    def fitted(self, train: Records, number: int, **changes: Any) -> tuple[Any, Federation]:
        """The model of these records, and the federation that it was fitted on."""
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        model = clone(self.estimator).set_params(ledger=None, insecure_seed=seed, schema=None, **changes)
        model.resources = model.resources and model.resources.quiet()
        if isinstance(model.feature_ranges, Mapping):
            bounds = self.problem.bounds
            model.set_params(feature_ranges=(bounds.feature_low, bounds.feature_high))
        split, names = CENTRAL if "solver" in changes else self.problem.split, list(self.problem.names)
        if not split.several:
            federation = Federation.central(train.X, train.y, schema=self.schema)
        elif not split.same_people:
            parts = [train.take(slice(*pair)) for pair in itertools.pairwise(np.cumsum([0, *self.sizes]))]
            federation = Federation.by_rows([(part.X, part.y) for part in parts], names=names, schema=self.schema)
        else:
            federation = Federation.by_columns(
                self._columns(train),
                train.y,
                labels=self.problem.labels,
                label_party=self.problem.label_party,
                norms=self.problem.norms or None,
                names=names,
                schema=self.schema,
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about budgets and delta, which the plan of the problem itself tells
            model.fit(federation)
        return model, federation

    def _columns(self, records: Records) -> list[Any]:
        """What each party has of the records, by columns."""
        ends = np.cumsum([0, *self.problem.columns])
        if self.schema is None:
            return [records.X[:, start:stop] for start, stop in itertools.pairwise(ends)]
        lasts = np.cumsum([len(column.features) for column in self.schema.columns.values()])
        owners = np.searchsorted(ends[1:], lasts)
        return [
            {name: records.X[name] for name, owner in zip(self.schema.columns, owners, strict=True) if owner == place}
            for place in range(len(self.problem.columns))
        ]


def measure_model(model: PrivateLinearModel, X: Any, y: NDArray[Any]) -> dict[str, float]:
    """Accuracy and log-loss, or squared error and R^2, without noise: for records that are nobody's or public."""
    scores = model.scores(X)
    if not hasattr(model, "classes_"):
        known = np.isfinite(scores) & np.isfinite(y.astype(np.float64))
        truth = y[known].astype(np.float64)
        error = float(((scores[known] - truth) ** 2).mean())
        return {"r2": 1 - error / float(truth.var()), "mean_squared_error": error}
    if scores.ndim == 1:
        scores = np.column_stack([np.zeros(len(scores)), scores])
    places = {label_key(label): place for place, label in enumerate(model.classes_)}
    truth = np.array([places.get(label_key(label), -1) for label in y])
    known = (truth >= 0) & np.isfinite(scores).all(axis=1)
    found = {"accuracy": float((scores[known].argmax(axis=1) == truth[known]).mean())}
    if hasattr(model, "predict_log_proba"):
        logs = log_softmax(scores[known], axis=1)
        found["log_loss"] = float(-logs[np.arange(len(logs)), truth[known]].mean())
    return found


def check_epsilons(given: Any) -> tuple[float, ...]:
    """The budgets to compare, each once, the smallest first."""
    several = _as_list(given)
    if not several or not all(is_number(value) and 0 < value < math.inf for value in several):
        raise InputError(f"epsilon={given!r} must be positive numbers, for example [0.1, 0.5, 1, 3].")
    return tuple(sorted({float(value) for value in several}))


def _as_list(given: Any) -> list[Any]:
    return list(given) if np.iterable(given) and not isinstance(given, str) else [given]


def _check_counts(name: str, given: Any, known: int | None) -> list[int]:
    """One number, or one for each party."""
    given = known if given is None else given
    several = _as_list(given)
    if not several or not all(is_whole(value) and value >= 1 for value in several):
        raise InputError(f"{name}={given!r} must be a whole number from 1, or a list with one for each party.")
    return [int(value) for value in several]


def _count_features(estimator: PrivateLinearModel, look_alike: LookAlike | None) -> int | None:
    """As the schema, the ranges, the entry bounds or the look-alike say."""
    if estimator.schema is not None:
        return len(estimator.schema.feature_names)
    ranges, entries = estimator.feature_ranges, estimator.entry_bound
    if ranges is not None:
        return len(ranges) if isinstance(ranges, Mapping) else len(lows_and_highs(ranges)[0])
    if np.iterable(entries):
        return len(list(entries))
    return None if look_alike is None else look_alike.features
