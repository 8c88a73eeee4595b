"""What the estimators share. No maths here: they declare a problem, choose a solver, run the plan, keep the model."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import secrets
from collections.abc import Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from os import PathLike
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sottovoce.algorithms import Solution
from sottovoce.data.beside import labels_of, labels_with, relabelled
from sottovoce.data.bounds import Bounds, in_order
from sottovoce.data.cells import table_columns
from sottovoce.data.coded import Coded
from sottovoce.data.dataset import Dataset
from sottovoce.data.misfits import rows_told
from sottovoce.data.people import check_most_records
from sottovoce.data.resources import Resources, too_large
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError, WireError
from sottovoce.estimators.coefficients import StandardErrors
from sottovoce.estimators.declarations import (
    ELSEWHERE,
    Facts,
    check_estimator,
    check_people_said,
    check_served_by_columns,
    distinct_classes,
    is_private,
    label_vector,
    no_solver,
    part_norms,
    validate_rows,
)
from sottovoce.estimators.exports import WithExports
from sottovoce.estimators.fits import STAND_IN, Fit, Purchase, Session
from sottovoce.estimators.path import PenaltyChoice
from sottovoce.estimators.report import warn_of_repeats
from sottovoce.estimators.shapes import WithShapes
from sottovoce.federation.federation import Federation
from sottovoce.federation.models import joined_scores, parts_of
from sottovoce.federation.prediction import COORDINATOR, check_aligned, check_people
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Calibration, Named, Problem
from sottovoce.plan.split import Split
from sottovoce.privacy.calibration import part_of
from sottovoce.privacy.events import Relation, inside
from sottovoce.solvers import Options, by_name

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class PrivateLinearModel(WithShapes, WithExports, BaseEstimator):  # type: ignore[misc]
    """What the five estimators share: the problem. The options of a solver belong to the solver's object.

    Parameters
    ----------
    epsilon : float
        The budget; `float("inf")` is the algorithm without privacy.
    delta : float
        Its delta, well below 1 / records.
    alpha : float or 'auto'
        Weight of the penalty, where the loss is a mean over records; with `feature_ranges` penalty and radius act on
        the coefficients of the rescaled features. "auto" is for penalties with an l1 norm, where few features matter:
        a fit without a penalty, then the best of its path, chosen for 2% of the budget (`alpha_`, `path_`).
    radius : float or None
        The radius of a ball that the weights stay in, instead of a penalty.
    row_norm : float or None
        Declared bound: the largest Euclidean norm of a row. One of the three bounds is needed for a private fit;
        nothing is inferred from the data.
    entry_bound : float, list of float or None
        Declared bound: the largest absolute entry, one number or one for each feature.
    feature_ranges : (lows, highs), list of pairs, mapping, 'private' or None
        Declared bound: the range of each feature, in the order of the columns (of three or more also a pair for each,
        `[(18, 99), ...]`, but two of them are lows and highs), or by the names of the features,
        `{"age": (18, 99), ...}`; names in the order of the columns where the data have none. "private": nobody knows
        them, and a share of the budget buys them.
    rescale : 'symmetric' or 'unit'
        Declared ranges become [-1, 1] or [0, 1].
    schema : Schema or None
        What the columns of a table hold, in the place of the three bounds: X is then a table, and y its label column
        if it is not given. A federation that was made with a schema brings its own.
    fit_intercept : bool
        A constant column inside the row norm, not penalised except by the dual solvers, which must.
    solver : str or solver
        "auto", a name (that solver with its own rules) or an object of `sottovoce.solvers`, such as `CD(inner=80)`.
    relation : 'zero-out' or 'replace-one'
        What is protected: that a record is blanked, or that it is replaced by any other.
    calibration : 'tight' or 'paper'
        "paper" is a published formula; the guarantee reported is the true one.
    ledger : path, Ledger, Account or None
        An account to charge; None accounts for this fit alone.
    insecure_seed : int or None
        Reproducible noise for tests and demos; the guarantee is then void and says so.
    resources : Resources or None
        Threads, device and progress for the parties of this process, for example `Resources(n_jobs=-1, verbose=True)`.
        None is one thread, or what `joblib.parallel_config` says, without progress. The model is the same, bit for bit.
    """

    __metadata_request__fit: ClassVar[dict[str, Any]] = {
        "sample_weight": None
    }  # may be routed, though `fit` does not name it
    _plain: ClassVar[str]  # where scikit-learn has such a model
    _metric: ClassVar[str]  # of its scores

    epsilon: float = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    alpha: float | Literal["auto"] = 0.0
    radius: float | None = None
    row_norm: float | None = None
    entry_bound: Any = None
    feature_ranges: Any = None
    rescale: Literal["symmetric", "unit"] = "symmetric"
    schema: Schema | None = None
    fit_intercept: bool = True
    solver: str | Options = "auto"
    relation: Relation = "zero-out"
    calibration: Calibration = "tight"
    ledger: Any = None
    insecure_seed: int | None = None
    resources: Resources | None = None

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse parameters of other libraries with what is meant here; what nobody knows Python refuses."""
        for name in given.keys() & ELSEWHERE.keys() - cls.__init__.__annotations__.keys():
            raise InputError(f"{name}={given[name]!r}: {cls.__name__} has no {name}; {ELSEWHERE[name]}")
        return object.__new__(cls)

    def fit(
        self, X: Any, y: ArrayLike | None = None, *, person: Any = None, most_records: int | None = None, **beside: Any
    ) -> Self:
        """Fit on arrays, on a table with a schema, on a `Dataset` or on a `Federation`.

        `person` says whose record each is, where people have several: then people are protected, with all of their
        records, of which `most_records` count at most, a public number. A memory map that would not fit in memory is
        read as a `Dataset`.
        """
        weight, exposure = beside.pop("sample_weight", None), beside.pop("exposure", None)
        if beside or (exposure is not None and not hasattr(self, "exposure_bound")):
            raise TypeError(f"fit() got an unexpected keyword argument {next(iter(beside), 'exposure')!r}")
        if weight is not None and math.isfinite(self.epsilon) and self._bounds_beside()["weight_bound"] is None:
            raise InputError(
                "sample_weight needs a ceiling, since a weight multiplies a record's influence: "
                "solver=sv.solvers.Whitened(weight_bound=...), two to four mean weights; larger ones are cut. A weight "
                "must be a function of its own record."
            )
        given = {"person": person, "most_records": most_records, "exposure": exposure, "weight": weight}
        fit = Fit(self, self.as_federation(X, y, **given), runs=True)
        session, counted, family = fit.session, fit.federation.counted, getattr(self, "_family", None)
        with contextlib.closing(session.coordinator.journal):
            try:
                fit.run()
            except InputError:
                if session.plans and not counted:  # what was released before it stopped is counted
                    warn_of_repeats(session.plans[0], session.report(session.plans[0]).weakest, family=family)
                raise
        if not counted:
            warn_of_repeats(self.plan_, self.privacy_.weakest, family=family)
        return self

    def as_federation(
        self, X: Any, y: ArrayLike | None = None, *, most_records: int | None = None, **beside: Any
    ) -> Federation:
        """The data as `fit` takes them, as a federation: that of one party where they are in one place.

        What stands `beside` the labels is told with them.
        """
        check_estimator(self)
        self._take_schema(X)
        told = [name for name, column in beside.items() if column is not None]
        self._most_records = None if most_records is None else check_most_records(most_records)
        if told and isinstance(X, Federation | Dataset):
            raise InputError(
                f"{told[0]}: a {type(X).__name__} has it beside its labels, sv.labels_with(y, {told[0]}=...), or by "
                "its schema; leave it out here."
            )
        if isinstance(X, Federation):
            if y is not None:
                raise InputError("y must be None when X is a Federation; the labels are inside it.")
            if X.unlabelled:
                raise InputError("y=None: nobody of the federation knows the labels; give them: by_columns(parts, y).")
            if self.ledger is not None:
                raise InputError(
                    "ledger goes to the federation, one for each party: Federation.by_rows(..., ledgers=[...])."
                )
            return X
        if self.schema is None and y is not None and too_large(X):
            X, y = Dataset.from_arrays(X, labels_with(y, **beside)), None
        if isinstance(X, Dataset):
            self._keep_names(X.feature_names)
            return Federation.central(X, y, ledger=self.ledger).called()
        rows = X
        if self.schema is not None or most_records is not None or told:
            check_people_said(most_records, beside, self.schema)
        if self.schema is not None:
            cells = table_columns(X)
            rows = rows_told(self.schema, cells, str(X) if isinstance(X, str | PathLike) else "the table", caller=True)
            y = self.schema.labels(cells) if y is None else y
        if y is None:
            raise InputError(self._no_labels(X))
        y = labels_with(y, **beside)
        if self.schema is not None:
            self.n_features_in_ = len(self.schema.feature_names)
            self._keep_names(self.schema.feature_names)
        else:
            rows = validate_rows(self, X, dtype=(np.float64, np.float32), ensure_all_finite=False)
        labels = label_vector(y, rows)
        labels = relabelled(labels, self._check_labels(labels_of(labels)))
        federation = Federation.central(rows, labels, ledger=self.ledger)
        federation.feature_names = self._feature_names
        return federation.called()

    def _no_labels(self, X: Any) -> str:
        if self.schema is None and isinstance(X, str | PathLike):
            return (
                f"X={str(X)!r} is a file, which needs a schema that names its label: schema=sv.Schema(..., label=...)."
            )
        if self.schema is None:
            named = isinstance(X, Mapping) or hasattr(X, "columns") or hasattr(X, "column_names")
            table = " A table that has them needs schema=sv.Schema(..., label=...)." if named else ""
            return (
                "requires y to be passed, but the target y is None; pass the labels, or a Federation that has "
                f"them.{table}"
            )
        if self.schema.label is None:
            return "y=None, and the schema names no label: Schema(..., label=...), or pass y."
        return f"y=None, and the table lacks the label {self.schema.label!r} of the schema: add that column, or pass y."

    def _take_schema(self, X: Any) -> None:
        """Keep the schema that makes the features: the estimator's own, or that of the federation or the data set."""
        own, theirs = self.schema, X.schema if isinstance(X, Federation | Dataset) else None
        if own is not None and theirs is not None and set(own.feature_names) != set(theirs.feature_names):
            raise InputError("schema: the data were given with another schema; leave it out here.")
        if isinstance(X, Dataset) and own is not None and theirs is None:
            raise InputError("schema: a Dataset takes it, sv.Dataset(files, schema=...); leave it out here.")
        self.schema_: Schema | None = own if theirs is None else theirs

    def __sklearn_clone__(self) -> Self:
        """A clone that counts with this estimator where fits are counted."""
        clone: Self = super().__sklearn_clone__()
        self._family: int = getattr(self, "_family", None) or secrets.randbits(63)
        clone._family = self._family
        return clone

    def plan(self, X: Any, y: ArrayLike | None = None, **people: Any) -> Plan:
        """The plan that `fit` would run on the same; only what is public has a part in it, and nothing is charged.

        Ranges that are to be estimated are [-1, 1] in it; no cost depends on them.
        """
        model = copy(self)
        return Fit(model, model.as_federation(X, y, **people)).plan

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name; `solver__inner=40` puts a solver with that option in the place of the present one."""
        options = [key for key in parameters if key.startswith("solver__")]
        if nested := {key.removeprefix("solver__"): parameters.pop(key) for key in options}:
            solver = parameters.get("solver", self.solver)
            if isinstance(solver, str) and solver == "auto":
                option, value = next(iter(nested.items()))
                raise InputError(
                    f"solver__{option}={value!r}: solver='auto' has no options, as which solver serves is not known "
                    f"yet; name one, for example set_params(solver='newton', solver__{option}={value!r})."
                )
            chosen = by_name(solver) if isinstance(solver, str) else solver
            if not isinstance(chosen, Options):
                raise no_solver(solver)
            parameters["solver"] = chosen.replace(**nested)
        super().set_params(**parameters)
        return self

    def scores(self, X: Any) -> Array:
        """X coef + intercept, entries and rows clipped to the declared bounds as in training."""
        if isinstance(X, Federation):
            scores = self._joint(X, COORDINATOR)
            if scores is None:
                raise WireError("the parties made no prediction.")
            return scores
        self._check_shared()
        if self._schema is None and too_large(X):
            X = Dataset.from_arrays(X)
        if isinstance(X, Dataset):
            names = tuple(map(str, getattr(self, "feature_names_in_", X.feature_names)))
            if X.shape[1] != self.n_features_in_ or (X.feature_names and X.feature_names != names):
                raise InputError(
                    f"X has the features {X.feature_names}, and the model {names}; give the same, in order."
                )
            return np.concatenate([self._scores_of(rows) for rows, _ in X.pieces()])
        rows = self._features(X)
        if isinstance(rows, Coded):
            return np.concatenate(list(map(self._scores_of, rows.pieces())))
        return self._scores_of(rows)

    def score(self, X: Any, y: ArrayLike | None = None, sample_weight: Any = None) -> float:
        """As in scikit-learn; of a table with the label of the schema `y` may be left out. It is exact: no noise.

        Rows of a table whose label is missing, or none of the declared, are left out then.
        """
        predicted = self.predict(X)
        if y is None:
            if (found := None if self._schema is None else self._schema.labels(X)) is None:
                raise InputError("y=None: give the labels of X, or a table with the label column of the schema.")
            found = labels_of(found)
            known = np.array([label is not None and label == label for label in found])  # no NaN
            y, predicted = np.asarray(found[known].tolist()), predicted[known]
            sample_weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        metric = getattr(importlib.import_module("sklearn.metrics"), self._metric)  # which takes a while to import
        return float(metric(y, predicted, sample_weight=sample_weight))

    def _scores_of(self, rows: Any) -> Array:
        """The same of rows of numbers."""
        if self.plan_.scaled_loss.outputs > 1:
            classes = zip(*self.model_rows(), strict=True)
            return np.column_stack([self.plan_.preparation.scores(rows, w, float(b)) for w, b in classes])
        coef, intercept = self.coef_.ravel(), float(np.ravel(self.intercept_)[0])
        if self.plan_.split.same_people:
            return joined_scores(self.plan_, rows, coef, intercept)
        return self.plan_.preparation.scores(rows, coef, intercept)

    def model_rows(self) -> tuple[Array, Array]:
        """Coefficients and intercepts as the plan's loss has scores: a row for each."""
        return np.atleast_2d(self.coef_), np.ravel(self.intercept_)

    def _features(self, X: Any) -> Any:
        """The rows to predict for: a table by the schema of the fit, arrays as they are."""
        if (schema := self._schema) is not None:
            names = tuple(getattr(self, "feature_names_in_", schema.feature_names))
            return schema.of_features(names).rows(X, others=True)
        return validate_rows(self, X, reset=False, dtype=np.float64)

    @property
    def _schema(self) -> Schema | None:
        """The schema of the fit, or of one to come."""
        return getattr(self, "schema_", self.schema)

    def predict_for(self, federation: Federation, recipient: str) -> None:
        """Have a party learn the predictions for the people of a federation by columns, and nobody else.

        Each party scores its own columns. In one process `federation.predictions[recipient]` has the result; a remote
        party hands it to its own holder (`Party.predictions`).
        """
        self._joint(federation, recipient)

    def _joint(self, federation: Federation, recipient: str, session: Session | None = None) -> Array | None:
        check_is_fitted(self, "plan_")
        if not self.plan_.split.same_people or not federation.split.same_people:
            raise InputError(
                "a joint prediction is for a model and a federation by columns; where a party has whole rows, it "
                "predicts with predict(X) on its own."
            )
        session, digest = session or Session(federation), bytes.fromhex(self.charged_as_)
        if self.plan_.models == "shared":
            weights = self.coef_.ravel(), float(np.ravel(self.intercept_)[0])
            federation.learn(digest, parts_of(self.plan_, *weights, self._feature_names))
        with session.lending():
            return session.coordinator.predict(self.plan_, digest, recipient)

    def _check_shared(self) -> None:
        """Refuse what needs all coefficients in one place where the parties keep them."""
        check_is_fitted(self, "plan_")
        if self.plan_.models == "kept":
            raise InputError(
                "models='kept': the coefficients are with the parties, each has those of its columns. Predict with "
                "predict(federation), a Federation.by_columns of the people; or fit with models='shared'."
            )

    @property
    def _feature_names(self) -> tuple[str, ...]:
        return tuple(map(str, getattr(self, "feature_names_in_", ())))

    def _check_labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        return labels

    def _loss(self) -> Named:
        raise NotImplementedError

    def _loss_of_several(self, _classes: int) -> Named:
        """Of more than two classes; a loss of two tells each of them from the rest."""
        return self._loss()

    def _regulariser(self, split: Split) -> Named:
        raise NotImplementedError

    def _declared_classes(self) -> tuple[Any, ...] | None:
        return None

    def _class_weights(self, _classes: tuple[Any, ...] | None) -> tuple[float, ...]:
        return ()

    @property
    def known_classes(self) -> Any:
        """As declared, or by the schema's entry for the label; None: the parties are asked for theirs, then public."""
        return ()

    def problem(self, federation: Federation, facts: Facts, names: tuple[str, ...] = ()) -> Problem:
        """What `fit` would solve for parties that declare these facts, and features of these names."""
        check_estimator(self)
        loss, classes = self._loss(), self._declared_classes()
        if self.known_classes is None:
            labels = [value for fact in facts.values() for value in fact["classes"]]
            classes = distinct_classes(labels)
        if classes is not None and len(classes) > 2:
            loss = self._loss_of_several(len(classes))
        parties, widths, counted = list[tuple[str, int]](), dict[str, int](), 0
        for name, fact in facts.items():
            parties.append((name, fact["records"]))
            widths[name], counted = fact["features"], max(counted, fact.get("people") or 0)
        features = sum(widths.values()) if federation.split.same_people else next(iter(widths.values()))
        if not federation.split.same_people and len(set(widths.values())) != 1:
            raise InputError(f"the parties have {widths} features; by rows every party has the same columns.")
        regression, label = hasattr(self, "label_bound"), getattr(self, "label_bound", None)
        if is_private(label):
            label = STAND_IN
        elif regression and label is None and self._schema is not None:
            label = self._schema.label_bound
        schema = None if self._schema is None else self._schema.of_features(names or self._schema.feature_names)
        declared = self.feature_ranges if schema is None else schema.feature_ranges
        if is_private(self.feature_ranges):
            declared = tuple([end] * features for end in STAND_IN)
        bounds = Bounds.declare(
            row_norm=schema.row_norm if schema is not None and self.row_norm is None else self.row_norm,
            entry_bound=self.entry_bound,
            label_bound=label,
            feature_ranges=in_order(declared, names) if isinstance(declared, Mapping) else declared,
            rescale=self.rescale,
            **self._bounds_beside(),
        )
        if schema is not None and (filled := tuple(place for place in schema.estimated if place < features)):
            bounds = bounds.model_copy(update={"filled": filled})
        columns, norms = tuple[int, ...](), tuple[float, ...]()
        people = getattr(self, "_most_records", None) or getattr(self._schema, "most_records", None)
        if federation.split.same_people:
            secure = self.epsilon != math.inf and (federation.secure or federation.undecided)
            check_served_by_columns(loss, bounds, people, secure=secure)
            check_people(dict(parties))
            check_aligned(facts)
            columns = tuple(widths.values())
            norms = part_norms(federation, columns, bounds, schema)
        private, share = self.epsilon != math.inf, 1 - sum(map(attrgetter("share"), self._purchases()))
        if private or bounds.feature_low is not None:
            bounds.require(features, labels=private and regression)
        return Problem(
            loss=loss,
            regulariser=Named(name="none") if self.alpha == "auto" else self._regulariser(federation.split),
            split=federation.split,
            parties=tuple(parties),
            features=features,
            bounds=bounds,
            epsilon=float(self.epsilon) if share == 1 else part_of(float(self.epsilon), inside(self.delta), share),
            delta=float(self.delta),
            relation=self.relation,
            calibration=self.calibration,
            fit_intercept=bool(self.fit_intercept),
            classes=classes,
            class_weight=self._class_weights(classes),
            columns=columns,
            norms=norms,
            labels=federation.labels,
            label_party=federation.label_party,
            aggregation=federation.aggregation() if private else None,
            most_records=people,
            people=counted if counted and columns and people else None,
        )

    def _bounds_beside(self) -> dict[str, float | None]:
        """Of what stands beside labels: the ceiling of weights is an option of the solver that takes them."""
        bound = getattr(self.solver, "weight_bound", None)
        return {"weight_bound": self._schema.most_beside("weight") if bound is None and self._schema else bound}

    def _purchases(self) -> tuple[Purchase, ...]:
        """What is bought after the fit, on the same people and within its budget."""
        errors = getattr(self, "standard_errors", False)
        bought = itertools.compress((PenaltyChoice, StandardErrors), (self.alpha == "auto", errors))
        return tuple(kind(part_of(float(self.epsilon), inside(self.delta), kind.share)) for kind in bought)

    def _keep(self, fit: Fit, solution: Solution) -> None:
        """Take the model that a fit's own plan gave."""
        plan = fit.plan
        for name in ("alpha_", "path_", "coefficients_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        self._keep_names(fit.names)
        coef, intercept = (None, None) if plan.models == "kept" else plan.unprepare(solution.weights)
        self._set_model(coef, intercept, plan)
        self.score_spread_, self.label_scale_ = solution.spread, solution.labels
        self.n_iter_ = plan.rounds if plan.private else fit.session.coordinator.asked[plan.releases[-1].query]
        self.certificates_ = dict(solution.certificates)
        self.n_features_in_ = plan.features
        self.plan_ = plan
        self.charged_as_ = plan.digest.hex()  # the plan's name in the ledgers
        self.plans_, self.privacy_ = fit.session.plans, fit.session.report(plan)

    def _keep_names(self, names: tuple[str, ...]) -> None:
        """The federation's names of the features, or none if it has none."""
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _set_model(self, coef: Array | None, intercept: Any, plan: Plan) -> None:
        """Without coefficients the parties keep them: those of an earlier fit are not these."""
        if coef is not None and self._schema is not None:
            coef = self._columns.in_order(coef)
        if plan.classes is not None:
            self.classes_ = np.array(plan.classes)
            coef, intercept = coef if coef is None else np.atleast_2d(coef), np.atleast_1d(intercept)
        if coef is None:
            for name in {"coef_", "intercept_"} & set(vars(self)):
                delattr(self, name)
        else:
            self.coef_: Array = coef
            self.intercept_: Any = intercept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = True  # among objects: a cell that is no number makes a null row
        return tags
