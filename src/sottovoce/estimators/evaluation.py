"""How good a fitted model is on private test records: one noisy release, and every metric from it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_consistent_length, column_or_1d

from sottovoce.algorithms.evaluation import EvaluatedClasses, EvaluatedNumbers, Subject
from sottovoce.algorithms.evaluation.estimates import Bin, ClassEstimates, Metric, NumberEstimates
from sottovoce.algorithms.evaluation.private import nodes_of
from sottovoce.arguments import is_number
from sottovoce.errors import InputError
from sottovoce.estimators import repeats
from sottovoce.estimators.base import PrivateLinearModel, common_names, failures_of, planned, warn_of_delta
from sottovoce.estimators.report import privacy_report
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import as_labels
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.relation import Relation, checked

Array = NDArray[np.float64]

_NAMES = {"auc": "AUC", "r2": "R^2", "brier": "Brier score", "log_loss": "log-loss", "positives": "share of positives"}


@dataclass(frozen=True)
class Evaluation:
    """What one release says of a model on test records. All of it is a function of `cells` and of the plan.

    `metrics` has, by name, a value and a 95% interval that includes sampling and noise. `roc` are false and true
    positive rates; `calibration` has bins of predicted probability with the share of positives. `cells` are the noisy
    counts: of a classifier at `nodes`, first of the negative class, then of the positive one; of a regressor of the
    residuals' sizes at `nodes`. `complete` says whether all test records could be used, as far as the noise tells.
    """

    metrics: dict[str, Metric]
    nodes: Array
    cells: Array
    noise: float  # the standard deviation of a cell's
    complete: bool
    plan_: Plan
    privacy_: PrivacyReport
    roc: tuple[Array, Array] | None = None
    calibration: tuple[Bin, ...] = ()

    def __getitem__(self, name: str) -> Metric:
        return self.metrics[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; None for what cannot be told."""
        return {
            "metrics": {name: _plain(asdict(metric)) for name, metric in self.metrics.items()},
            "roc": None if self.roc is None else [rates.tolist() for rates in self.roc],
            "calibration": [_plain(asdict(group)) for group in self.calibration],
            "nodes": self.nodes.tolist(),
            "cells": self.cells.tolist(),
            "noise": self.noise,
            "complete": self.complete,
            "records": self.plan_.records,
            "plan": self.plan_.digest.hex(),  # its name in the ledgers
            "privacy": self.privacy_.to_dict(),
        }

    def __str__(self) -> str:
        lines = [f"{self.plan_.records} test records, epsilon={self.privacy_.epsilon:.4g}, delta={self.plan_.delta:g}"]
        for name, metric in self.metrics.items():
            shown = _NAMES.get(name, name.replace("_", " "))
            lost = not math.isfinite(metric.value + metric.width)
            told = f"{metric.value:.4g}, 95% from {metric.low:.4g} to {metric.high:.4g}"
            lines.append(f"{shown}: " + ("cannot be told at this epsilon" if lost else told))
        if not self.complete:
            lines.append("some records could not be used (missing cells, or labels that were not declared)")
        return "\n".join(lines)


def _plain(found: Any) -> Any:
    """Numbers by their names, also those within; one that cannot be told is None."""
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    return float(found) if math.isfinite(found) else None


def evaluate(  # noqa: PLR0913
    model: PrivateLinearModel,
    X: Any,
    y: ArrayLike | None = None,
    *,
    epsilon: float,
    delta: float = 1e-5,
    relation: Relation | None = None,
    ledger: Any = None,
    insecure_seed: int | None = None,
) -> Evaluation:
    """Evaluate a fitted model on private test records, for (epsilon, delta) of their own.

    Parameters
    ----------
    model : estimator
        A fitted classifier of two classes or a regressor, of data in one place or split by rows.
    X, y : matrix or table and labels, or a `Federation.by_rows` and None
        Test records. If they are other people than those of the fit, nobody pays twice; if they are the same, give the
        same ledger: costs add.
    epsilon, delta : float
        The budget of this evaluation; `float("inf")` is without privacy.
    relation : 'zero-out', 'replace-one' or None
        What is protected; None is as in the fit.
    ledger : path, Ledger, Account or None
        An account of the test people to charge, before anything is released.
    insecure_seed : int or None
        Reproducible noise for tests; the guarantee is then void.
    """
    _check(model, epsilon, delta)
    federation, rows = _federation(model, X, y, ledger)
    coordinator = federation.coordinator(insecure_seed=insecure_seed, without_privacy=epsilon == math.inf)
    with failures_of(federation):
        facts = coordinator.facts(classes=False)
        if any(fact["features"] != model.plan_.features for fact in facts.values()):
            raise InputError(f"X has other columns than the model's {model.plan_.features} features; give the same.")
        names, own = common_names(facts, federation.split), tuple(map(str, getattr(model, "feature_names_in_", ())))
        if names and own and names != own:
            raise InputError("the columns of X are named or ordered otherwise than those of the fit; give the same.")
        problem = Problem(
            loss=model.plan_.loss,
            regulariser=Named(name="none"),
            split=federation.split,
            parties=tuple((name, fact["records"]) for name, fact in facts.items()),
            features=model.plan_.features,
            bounds=model.plan_.bounds,
            epsilon=float(epsilon),
            delta=float(delta),
            relation=checked(relation or model.plan_.relation),
            fit_intercept=model.plan_.fit_intercept,
            classes=model.plan_.classes,
        )
        warn_of_delta(problem, 3)
        weights = problem.preparation.weights_of(model.coef_.ravel(), float(np.ravel(model.intercept_)[0]))
        form = EvaluatedNumbers() if problem.classes is None else EvaluatedClasses()
        subject = Subject(weights, getattr(model, "score_spread_", None))
        plan = planned(form, problem, subject, federation, insecure_seed)
        solution, _ = coordinator.run(plan, form)
    found = estimated(plan, solution.model, seeded=insecure_seed is not None)
    if not (federation.counted or found.privacy_.weakest.void or epsilon == math.inf):
        repeats.note(repeats.marks_of(rows), found.privacy_.weakest, 3)
    return found


def estimated(plan: Plan, cells: Array, *, seeded: bool = False) -> Evaluation:
    """The evaluation that the released cells of a plan give."""
    noise = plan.release("cells").std * math.sqrt(len(plan.parties))
    report = privacy_report(plan, seeded=seeded)
    if plan.classes is None:
        found = NumberEstimates(cells, noise, plan.records, plan.preparation.label_scale[1])
        nodes, counts = found.histogram()
        return Evaluation(found.metrics(), nodes, counts, noise, found.residuals.complete, plan, report)
    by_class = ClassEstimates(cells, noise, plan.records, nodes_of(plan))
    odds = plan.loss.name == "logistic"
    return Evaluation(
        by_class.metrics(probabilities=odds),
        by_class.nodes.nodes,
        cells,
        noise,
        by_class.counts.complete,
        plan,
        report,
        by_class.roc(),
        tuple(by_class.calibration()) if odds else (),
    )


def _check(model: Any, epsilon: Any, delta: Any) -> None:
    if not isinstance(model, PrivateLinearModel):
        raise InputError(f"model={type(model).__name__} must be a fitted estimator of this library.")
    model._check_shared()
    if model.plan_.split == "columns":
        raise InputError("model was fitted over columns, where each party cuts its own part of a row; not served yet.")
    if model.plan_.scaled_loss.outputs > 1:
        raise InputError(f"model tells {model.plan_.scaled_loss.outputs} classes apart; two are evaluated so far.")
    if not (is_number(epsilon) and epsilon > 0):
        raise InputError(f"epsilon={epsilon!r} must be a positive number, or float('inf') for no privacy.")
    if not (is_number(delta) and 0 < delta < 1):
        raise InputError(f"delta={delta!r} must be a number between 0 and 1, well below 1 / records; 1e-5 is usual.")


def _federation(model: PrivateLinearModel, X: Any, y: ArrayLike | None, ledger: Any) -> tuple[Federation, Any]:
    """Who has the test records, and what marks them where they are evaluated again."""
    if isinstance(X, Federation):
        if y is not None or ledger is not None:
            raise InputError("y and ledger must be None when X is a Federation; its parties have labels and ledgers.")
        if X.split == "columns":
            raise InputError("X is split by columns; evaluation serves data in one place and split by rows.")
        return X, X
    if (schema := model._schema) is not None:
        rows = model._features(X)
        y = schema.labels(X) if y is None and schema.label is not None else y
    else:
        rows = model._validated(X, reset=False, dtype=(np.float64, np.float32), ensure_all_finite=False)
    if y is None:
        raise InputError("y=None: give the labels of the test records, or a Federation that has them.")
    labels = as_labels(y)
    labels = labels if labels.ndim == 1 else column_or_1d(labels, warn=True)
    check_consistent_length(rows, labels)
    return Federation.central(rows, labels, ledger=ledger), rows
