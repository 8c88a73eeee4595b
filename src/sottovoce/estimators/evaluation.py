"""How good a fitted model is on private test records: one noisy release, and every metric from it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from operator import itemgetter
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from sottovoce import algorithms
from sottovoce.algorithms.evaluation import (
    EvaluatedClasses,
    EvaluatedNumbers,
    EvaluatedSeveral,
    People,
    Subject,
    estimates,
    nodes_of,
    score_weights,
)
from sottovoce.algorithms.evaluation.counts import CountCells, EvaluatedCounts
from sottovoce.algorithms.evaluation.groups import Groups
from sottovoce.algorithms.evaluation.times import EvaluatedTimes, TimeCells, TimeEstimates
from sottovoce.data.beside import columns_beside, labels_with
from sottovoce.data.cells import table_columns
from sottovoce.data.dataset import Dataset
from sottovoce.data.misfits import Misfits
from sottovoce.data.resources import too_large
from sottovoce.errors import InputError, warn
from sottovoce.estimators import plots
from sottovoce.estimators.base import PrivateLinearModel
from sottovoce.estimators.declarations import check_budget, common_names, label_vector, validate_rows, warn_of
from sottovoce.estimators.fits import Session
from sottovoce.estimators.groups import read_groups, warn_of_small_groups
from sottovoce.estimators.report import UNPROTECTED_FIT, warn_of_repeats
from sottovoce.estimators.times import PrivateCoxRegressor
from sottovoce.federation.answering import EARLY
from sottovoce.federation.federation import Federation
from sottovoce.federation.journal import Journal
from sottovoce.notebooks import html_table
from sottovoce.numerals import count_text, interval_text, number_text, promise_text
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.events import Relation, check_relation
from sottovoce.privacy.guarantee import VIEWS, PrivacyReport

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What one release says of a model on test records. All of it is a function of `cells` and of the plan.

    `metrics` has, by name, a value and a 95% interval that includes sampling and noise. `roc` are false and true
    positive rates, `rates` the same with intervals; `calibration` has bins of predicted probability with the share of
    positives. Of more than two classes `by_class` has recall, precision and share of each, and `confusion` the share of
    the records that is of one class and predicted to be of another. `cells` are the noisy counts: of a classifier at
    `nodes`, first of the negative class, then of the positive one; of several classes the K x K counts by class and
    predicted class, then the losses at `nodes`; of a regressor of the residuals' sizes at `nodes`, of
    counts of the records' deviances; their `calibration` has observed rates. Of times they are the events in each
    interval up to `nodes`, of which `calibration` has the shares that were predicted and observed. `complete` says
    whether all test records could be used, as far as the noise tells. `beyond` is the share of the scores at the end
    nodes, where so many lie there or farther out that metrics may be off; else 0. `model` is the plan of the fit, as in
    ledgers; `with_fit` what fit and evaluation promise together, (epsilon, delta), where they were of the same people.
    `groups` has the same of each group, from the same release; the whole is the sum of their cells.
    """

    metrics: dict[str, estimates.Metric]
    nodes: Array
    cells: Array
    noise: float  # the standard deviation of a cell's
    complete: bool
    plan_: Plan
    privacy_: PrivacyReport
    roc: tuple[Array, Array] | None = None
    calibration: tuple[estimates.Bin, ...] = ()
    by_class: Mapping[Any, Mapping[str, estimates.Metric]] = field(default_factory=dict)
    confusion: tuple[tuple[estimates.Metric, ...], ...] = ()
    beyond: float = 0.0
    model: str = ""
    with_fit: tuple[float, float] | None = None
    fit_mark: str = ""  # what the promise of the fit rests on besides noise
    groups: Mapping[Any, Evaluation] = field(default_factory=dict)  # by name, and those of none of them last
    records: estimates.Metric | None = None  # of a group: how many there are, by noisy counts

    def __getitem__(self, name: str) -> estimates.Metric:
        return self.metrics[name]

    @functools.cached_property
    def rates(self) -> tuple[estimates.Rates, ...]:
        """The points of the ROC curve at the nodes, from the highest on, each rate with its interval."""
        if self.roc is None:
            return ()
        return tuple(
            estimates.ClassEstimates(self.cells, self.noise, self._known, nodes_of(self.plan_.numbers)).rates()
        )

    @property
    def _known(self) -> int | None:
        """How many records there are, where that is public."""
        return self.plan_.records if self.records is None else None

    def plot(self, figure: Any = None) -> Any:
        """Metrics with their intervals and, as there are, ROC, calibration and scores, confusion matrix, or residuals.

        Needs matplotlib (the extra `plots`). Gives the figure.
        """
        return plots.draw(self.to_dict(), plots.new_figure() if figure is None else figure)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; None for what cannot be told."""
        return {
            "metrics": plain_numbers(self.metrics),
            "classes": None if self.plan_.classes is None else list(self.plan_.classes),
            "by_class": plain_numbers(tuple(self.by_class.values())),
            "confusion": plain_numbers(self.confusion),
            "roc": None if self.roc is None else [rates.tolist() for rates in self.roc],
            "rates": plain_numbers(self.rates),
            "calibration": plain_numbers(self.calibration),
            "nodes": self.nodes.tolist(),
            "cells": self.cells.tolist(),
            "noise": self.noise,
            "complete": self.complete,
            "beyond": self.beyond,
            "records": self.plan_.records,
            "people": self.plan_.numbers.people,
            "with_fit": None if self.with_fit is None else dict(zip(("epsilon", "delta"), self.with_fit, strict=True)),
            **({"fit_mark": self.fit_mark} if self.fit_mark else {}),
            **self._groups_told(),
            "model": self.model,
            "plan": self.plan_.digest.hex(),  # its name in the ledgers
            "privacy": self.privacy_.to_dict(),
        }

    def _groups_told(self) -> dict[str, Any]:
        """The same of the groups, where there are some."""
        if not self.groups:
            return {}
        parts = ("metrics", "by_class", "confusion", "calibration", "cells")
        each = list[dict[str, Any]]()
        for name, own in self.groups.items():
            told = own.to_dict()
            each.append({"name": name, "records": plain_numbers(own.records)} | {part: told[part] for part in parts})
        return {"by": self.plan_.numbers.groups.column, "groups": each}

    def __str__(self) -> str:
        head, *remarks = self._remarks()
        if not self.groups:
            return "\n".join([head, *(f"{name}: {text}" for name, text in self._rows()), *remarks])
        rows = [self._heads(), *self._rows()]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, wide)).rstrip() for row in rows]
        return "\n".join([head, *lines, *remarks])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *remarks = self._remarks()
        heads = self._heads() if self.groups else ("", "")
        return html_table(heads, self._rows(), caption=head, below=". ".join(remarks))

    def _heads(self) -> tuple[str, ...]:
        return ("", "all", *(f"{self.plan_.numbers.groups.column}={name}" for name in self.groups))

    def _rows(self) -> list[tuple[str, ...]]:
        """A line for each metric, of all records and of each group."""
        every = [dict(own._named()) for own in (self, *self.groups.values())]
        short = bool(self.groups)
        rows = [(name, *(_metric_text(own[name], short=short) for own in every)) for name in every[0]]
        counts = [f"about {count_text(own.records.value)}" for own in self.groups.values() if own.records]
        return [("records", count_text(self.plan_.records), *counts), *rows] if counts else rows

    def _named(self) -> Iterator[tuple[str, estimates.Metric]]:
        for name, metric in self.metrics.items():
            yield plots.title_of(name), metric
        for label, metrics in self.by_class.items():
            for name, metric in metrics.items():
                yield f"{name} of {label}", metric

    def _remarks(self) -> list[str]:
        """The first line of the text, and those below its numbers."""
        unit = "records" if self.plan_.most_records is None else "people"
        own = self.privacy_.weakest
        promise = promise_text(own.epsilon, own.delta) + (own.mark and f" ({own.mark})")
        lines = [f"{count_text(self.plan_.records)} test {unit}, {promise}"]
        if self.with_fit is not None:
            both = "no promise" if math.isinf(self.with_fit[0]) else promise_text(*self.with_fit)
            both += f"; the fit {self.fit_mark}" if self.fit_mark else ""
            lines.append(f"the people are those of the fit, and fit and evaluation add up: together {both}")
        if self.beyond:
            lines.append(plots.beyond_text(self.beyond))
        if not self.complete:
            lines.append("some records could not be used (missing cells, or labels that were not declared)")
        return lines


def _metric_text(metric: estimates.Metric, *, short: bool) -> str:
    if not math.isfinite(metric.value + metric.width):
        return "cannot be told" if short else "cannot be told at this epsilon"
    if short:
        return interval_text(metric.value, metric.low, metric.high)
    return f"{number_text(metric.value)}, 95% from {number_text(metric.low)} to {number_text(metric.high)}"


def plain_numbers(value: Any) -> Any:
    """The numbers of mappings, tuples and dataclasses as those of JSON; one that cannot be told is None."""
    if isinstance(value, tuple):
        return list(map(plain_numbers, value))
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return dict(zip(value, map(plain_numbers, value.values()), strict=True))
    return float(value) if math.isfinite(value) else None


def evaluate(  # noqa: PLR0913
    model: PrivateLinearModel,
    X: Any,
    y: ArrayLike | None = None,
    *,
    epsilon: float,
    delta: float = 1e-5,
    by: Any = None,
    groups: Sequence[Any] | None = None,
    people: People = "others",
    person: Any = None,
    relation: Relation | None = None,
    ledger: Any = None,
    insecure_seed: int | None = None,
) -> Evaluation:
    """Evaluate a fitted model on private test records, for (epsilon, delta) of their own.

    Parameters
    ----------
    model : estimator
        A fitted classifier or regressor.
    X, y : matrix or table and labels, or a `Federation` and None
        Test records; by rows if the model was fitted in one place or by rows. Of a model over columns a federation by
        columns: the holder of the labels learns the score of each test person, as in a joint prediction, and releases
        the counts once all parties have charged the evaluation.
    epsilon, delta : float
        The budget of this evaluation; `float("inf")` is without privacy.
    by : str, list of cells or None
        Tell each group apart too, from the same release: the name of a category or yes/no column of the model's schema;
        or, with `groups`, any column of the table, or a cell for each test record. In a federation cells stand beside
        the labels (`labels_with(y, group=...)`). A record that is in none of the groups counts in one of its own.
    groups : list or None
        The values in `by` that tell the groups, declared.
    people : 'others' or 'same'
        Whether the test people are others than those of the fit: then each person pays once. If some are the same,
        costs add: the evaluation says what it promises together with the fit, and one ledger should have both. A fit
        that protects no person leaves nothing to promise to the same people: a finite epsilon is refused.
    person : sequence or None
        Whose record each test record is, if the model was fitted on people with several; a schema or labels say it too.
        Metrics are then means over people, of whom each counts by the mean of its records.
    relation : 'zero-out', 'replace-one' or None
        What is protected; None is as in the fit.
    ledger : path, Ledger, Account or None
        An account of the test people to charge, before anything is released.
    insecure_seed : int or None
        Reproducible noise for tests; the guarantee is then void.
    """
    _check_arguments(model, epsilon, delta, people)
    fit, by_columns = model.plan_, model.plan_.split.same_people
    relation = check_relation(relation or fit.relation)
    declared = read_groups(model, by, groups)
    if person is not None and y is None:
        raise InputError("person: give y with it; a table says it by its schema, and a party beside its labels.")
    loss, y = model.tested(y) if isinstance(model, PrivateCoxRegressor) else (fit.loss, y)
    y = y if person is None else labels_with(y, person=person)
    if isinstance(X, Federation):
        _check_holder(fit, X, declared, by)
    elif declared is not None and not declared.places:
        y = _labels_beside(model, X, y, by)
    federation = (_take_test_people if by_columns else _take_test_records)(model, X, y, ledger)
    session = Session(
        federation,
        insecure_seed=insecure_seed,
        without_privacy=epsilon == math.inf,
        resumable=isinstance(federation.journal, Journal) and epsilon != math.inf,  # a file of that name is of fits
    )
    with session.lending():
        facts = federation.declared or session.coordinator.facts(classes=False, columns=by_columns)
        columns: dict[str, Any] = {"aggregation": federation.aggregation() if epsilon != math.inf else None}
        if by_columns:  # who has which columns, as in the fit, and who has the labels of the test people
            columns = {"columns": fit.columns, "norms": fit.norms, "labels": federation.labels}
            columns["label_party"] = fit.names.index(federation.names[federation.label_party])
        else:
            if set(map(itemgetter("features"), facts.values())) - {fit.features}:
                raise InputError(f"X has other columns than the model's {fit.features} features; give the same.")
            names = common_names(facts, federation.split)
            if names and model._feature_names and names != model._feature_names:
                raise InputError(
                    "the columns of X are named or ordered otherwise than those of the fit; give the same."
                )
        problem = Problem(
            loss=loss,
            regulariser=Named(name="none"),
            split=federation.split,
            parties=tuple((name, facts[name]["records"]) for name in (fit.names if by_columns else facts)),
            features=fit.features,
            bounds=fit.bounds.model_copy(update={"weight_bound": None}),
            epsilon=float(epsilon),
            delta=float(delta),
            relation=relation,
            fit_intercept=fit.fit_intercept,
            classes=fit.classes,
            most_records=None if by_columns else fit.most_records,
            **columns,
        )
        warn_of(problem, fits=False)
        several = problem.scaled_loss.outputs > 1
        if by_columns:
            weights = score_weights(problem)
        else:  # of several classes a row for each
            coefs, intercepts = model.model_rows()
            rows = list(map(problem.preparation.weights_of, coefs, intercepts.tolist()))
            weights = np.array(rows) if several else rows[0]
        every = (EvaluatedNumbers(), EvaluatedCounts(), EvaluatedTimes(), EvaluatedSeveral(), EvaluatedClasses())
        scaled = problem.scaled_loss
        form = next(each for each in every if each.takes_scores(scaled) and all(n.met(scaled) for n in each.needs))
        spread, scale = getattr(model, "score_spread_", None), getattr(model, "label_scale_", None)
        own = model.charged_as_ if by_columns else ""
        subject = Subject(weights, spread, people, own, groups=declared, labels=scale)
        plan = session.plan(form, problem, subject)
        if by_columns and not (isinstance(X.journal, Journal) and X.journal.answered):  # else the cells are there
            session.coordinator.check(plan, EARLY)  # a party that refuses does so before anybody learns scores
            model._joint(X, X.names[X.label_party], session)
        report, fitted = _add_fit(model, session.report(plan), people)
        journal = session.coordinator.journal
        if journal.path is not None and not journal.begun and len(plan.names) == 1:
            session.coordinator.check(plan)  # what is refused has not begun
        solution = session.run(plan, form)  # all that can fail by the model's report has been made
    evaluation = replace(estimate_metrics(plan, solution.model, report), **fitted)
    warn_of_small_groups(plan, evaluation.groups)
    if evaluation.beyond:
        warn(plots.beyond_text(evaluation.beyond))
    if not federation.counted:
        warn_of_repeats(plan, report.weakest)
    return evaluation


def _check_arguments(model: Any, epsilon: Any, delta: Any, people: Any) -> None:
    """Refuse also to promise what the fit has taken away, and to show what its own promise rests on being hidden."""
    if not isinstance(model, PrivateLinearModel):
        raise InputError(f"model={type(model).__name__} must be a fitted estimator of this library.")
    check_is_fitted(model, "plan_")
    check_budget(epsilon, delta)
    if people not in get_args(People):
        raise InputError(f"people={people!r} must be 'others' (than those of the fit) or 'same'.")
    fit = model.privacy_.weakest
    protects = fit.promises and fit.unit != "feature"
    if people == "same" and math.isfinite(epsilon) and fit.void is None and not protects:
        why = "its epsilon is infinite" if math.isinf(fit.epsilon) else "it protects columns, and no records"
        raise InputError(
            f"people='same' with epsilon={epsilon:g}: the fit promises nothing to its people ({why}), and cells of a "
            "model that tells of them do not either. Evaluate on other people, or fit with privacy; or evaluate with "
            "epsilon=float('inf')."
        )
    if people == "same" and fit.unit == "person" and model.plan_.split.same_people:
        raise InputError('people="same": by columns records are evaluated, and the fit protects people; take others.')
    if model.plan_.models == "kept" and fit.promises:
        raise InputError(
            "models='kept': what the fit promises rests on nobody being shown predictions, and an evaluation shows "
            "them to the holder of the labels, and counts of them to everybody. Fit with models='shared'."
        )


def _add_fit(model: PrivateLinearModel, report: PrivacyReport, people: People) -> tuple[PrivacyReport, dict[str, Any]]:
    """What the evaluation promises after that fit, to the same people nothing where it is void; and about the fit.

    With the same people, what holds of both: guarantees of records add up, of one relation.
    """
    fit, fitted = model.privacy_.weakest, dict[str, Any](model=model.charged_as_)
    protects = fit.promises and fit.unit != "feature"
    if not protects and people == "others":
        report = replace(report, assumptions=(*report.assumptions, UNPROTECTED_FIT))
    elif not protects:
        void = f"The people are those of the fit, which promises them nothing. {fit.void or ''}".strip()
        views: dict[str, Any] = {
            view: replace(guarantee := report.against(view), void=guarantee.void or void) for view in VIEWS
        }
        report = replace(report, **views)
    if people == "same":
        own = report.weakest
        adds = protects and own.promises and own.unit == fit.unit and fit.relation == own.relation
        epsilon = math.fsum((fit.epsilon, own.epsilon)) if adds else math.inf
        fitted |= {"with_fit": (epsilon, math.fsum((fit.delta, own.delta))), "fit_mark": fit.mark}
    return report, fitted


def estimate_metrics(plan: Plan, cells: Array, report: PrivacyReport) -> Evaluation:
    """The evaluation that the released cells of a plan give; with groups each of its own cells, all of their sum."""
    noise = plan.releases[0].std * math.sqrt(plan.channel.variance)  # in the sum of the parties' cells
    if (groups := plan.numbers.groups) is None:
        return _estimate(plan, cells, noise, report)
    each = np.split(cells, len(groups.all_names))
    whole = _estimate(plan, np.sum(each, axis=0), noise * math.sqrt(len(each)), report)
    found = (_estimate(plan, own, noise, report, grouped=True) for own in each)
    return replace(whole, groups=dict(zip(groups.all_names, found, strict=True)))


def _estimate(plan: Plan, cells: Array, noise: float, report: PrivacyReport, *, grouped: bool = False) -> Evaluation:
    """Of all records, or of those of a group, whose number is not known."""
    records = None if grouped else plan.records
    query = algorithms.of(plan).queries(plan, plan.names[0])[0]
    if isinstance(query, TimeCells):
        of_times = TimeEstimates(cells, noise, plan.records, query)
        nodes, counts, noise = of_times.histogram()
        complete, bins = of_times.counts.complete, tuple(of_times.calibration())
        return Evaluation(of_times.metrics(), nodes, counts, noise, complete, plan, report, calibration=bins)
    if isinstance(query, CountCells):
        of_counts = estimates.CountEstimates(cells, noise, plan.records, query)
        nodes, counts = of_counts.histogram()
        complete, bins = of_counts.deviances.complete, tuple(of_counts.calibration())
        return Evaluation(of_counts.metrics(), nodes, counts, noise, complete, plan, report, calibration=bins)
    if plan.classes is None:
        numbers = estimates.NumberEstimates(cells, noise, records, plan.preparation.label_scale[1])
        nodes, counts = numbers.histogram()
        about: dict[str, Any] = {"records": numbers.residuals.total if grouped else None}
        return Evaluation(numbers.metrics(), nodes, counts, noise, numbers.residuals.complete, plan, report, **about)
    if (outputs := plan.scaled_loss.outputs) > 1:
        several = estimates.SeveralEstimates(cells, noise, records, outputs)
        classes: dict[str, Any] = {"by_class": dict(zip(plan.classes, several.by_class(), strict=True))}
        classes["records"] = several.counts.total if grouped else None
        classes["confusion"] = tuple(map(tuple, several.confusion()))
        return Evaluation(several.metrics(), several.nodes, cells, noise, several.complete, plan, report, **classes)
    by_class = estimates.ClassEstimates(cells, noise, records, nodes_of(plan.numbers))
    odds, complete = plan.loss.name == "logistic", by_class.counts.complete
    metrics, bins = by_class.metrics(probabilities=odds), tuple(by_class.calibration()) if odds else ()
    nodes, roc, beyond = by_class.nodes.nodes, by_class.roc(), by_class.beyond(metrics)
    count = by_class.counts.total if grouped else None
    return Evaluation(metrics, nodes, cells, noise, complete, plan, report, roc, bins, beyond=beyond, records=count)


def _labels_beside(model: PrivateLinearModel, X: Any, y: Any, cells: Any) -> Any:
    """The labels of test records in one place, with the group of each beside them: cells, or a column of the table."""
    if isinstance(X, Dataset):
        raise InputError("by: a Dataset is read piece by piece; name a column of its schema.")
    table = None if model.schema_ is None else table_columns(X)
    if y is None and model.schema_ is not None:
        y = model.schema_.labels(table)
    if y is None:
        raise InputError("y=None: with groups, give the labels of the test records.")
    if "group" in columns_beside(y):
        return y
    if cells is None or isinstance(cells, str):
        if table is None or cells is None or cells not in table:
            raise InputError(
                f"by={cells!r}: give the cells of the test records, or the name of a column of their table."
            )
        cells = table[cells]
    return labels_with(y, group=cells)


def _check_holder(fit: Plan, federation: Federation, groups: Groups | None, by: Any) -> None:
    """Refuse what the holder of the labels, which counts, does not know or take: before it learns any score."""
    if not isinstance(by, str | None):
        raise InputError("by: in a federation cells stand beside the labels, sv.labels_with(y, group=...).")
    if not fit.split.same_people or not federation.split.same_people:
        return
    if groups is None:
        return
    holder = federation.names[federation.label_party]
    part = fit.part(holder) if holder in fit.names else fit.part(fit.label_party_name)
    if groups.objection(part.start, part.stop) is not None:
        raise InputError(
            f"by={groups.column!r}: {holder} has the labels and counts, and another party has that column. The groups "
            "would have to be told to it; evaluate by a column of its own, or give it the cells beside the labels, "
            "sv.labels_with(y, group=...), and groups=."
        )


def _take_test_people(_model: PrivateLinearModel, X: Any, y: ArrayLike | None, ledger: Any) -> Federation:
    """Test people, of whom the holder of the labels is to learn scores, which it then counts."""
    if not isinstance(X, Federation) or not X.split.same_people or y is not None or ledger is not None:
        raise InputError(
            "model was fitted over columns: give the test people as X, a Federation.by_columns of the same parties "
            "with labels and ledgers, and neither y nor ledger."
        )
    if X.unlabelled:
        raise InputError("y=None: nobody of the federation knows the labels; give them: by_columns(parts, y).")
    return X


def _take_test_records(model: PrivateLinearModel, X: Any, y: ArrayLike | None, ledger: Any) -> Federation:
    """Test records as they are: in one place, or some with each party."""
    model._check_shared()
    if isinstance(X, Federation):
        if y is not None or ledger is not None:
            raise InputError("y and ledger must be None when X is a Federation; its parties have labels and ledgers.")
        if X.split.same_people:
            raise InputError("X is split by columns and the model was not fitted over columns; give whole rows.")
        return X
    if model.schema_ is None and y is not None and too_large(X):
        X, y = Dataset.from_arrays(X, y), None
    if isinstance(X, Dataset):
        return Federation.central(X, y, ledger=ledger).called()
    if (schema := model.schema_) is not None:
        cells = table_columns(X)
        rows = model._features(cells)
        y = schema.labels(cells) if y is None and schema.label is not None else y
        Misfits(schema).add(cells).tell("the test records", caller=True)
    else:
        rows = validate_rows(model, X, reset=False, dtype=(np.float64, np.float32), ensure_all_finite=False)
    if y is None:
        raise InputError("y=None: give the labels of the test records, or a Federation that has them.")
    return Federation.central(rows, label_vector(y, rows), ledger=ledger).called()
