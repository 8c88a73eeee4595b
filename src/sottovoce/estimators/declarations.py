"""What a user or the parties declare: checked, as plans name it, and with warnings of what public numbers say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d, validate_data

from sottovoce import losses, penalties
from sottovoce.arguments import is_number, is_whole
from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import label_array, number_rows
from sottovoce.data.column_kinds import PRIVATE, Category, Number
from sottovoce.data.preparation import MOST_CLASSES
from sottovoce.data.resources import check_resources
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError, warn
from sottovoce.federation.federation import Federation
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import Split
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.events import SMALLEST_DELTA, check_relation
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.solvers import SOLVERS, Options

if TYPE_CHECKING:
    from sottovoce.estimators.base import PrivateLinearModel

GENEROUS: Final = 20.0  # the epsilon above which a promise says next to nothing
LITTLE: Final = 30.0  # the signal N mu below which a fit says little
_SPARSE: Final = ("csr", "csc", "coo")
_UNKNOWN: Final = (
    "fill such cells in, or leave these records out; a schema says what counts in the place of missing ones."
)
_WITHOUT_VALUES: Final = {
    "contains NaN": f"X contains NaN, or cells that are no numbers, for which nothing is predicted: {_UNKNOWN}",
    "contains infinity": f"X contains infinity, for which nothing is predicted: {_UNKNOWN}",
    "Expected 2D array": "Expected 2D array, one row per record. Reshape your data: X.reshape(-1, 1) if it is one "
    "feature, X.reshape(1, -1) if it is one record.",
    "Complex data": "Complex data not supported: X and y must be real numbers; split real and imaginary parts.",
}

_ROUNDS: Final = (
    "rounds and noise are planned together; an option of a solver, solver=sv.solvers.Newton(...), changes them."
)
ELSEWHERE: Final = {
    "C": "alpha is the weight of the penalty, 1 / (C * records) in its place; the default needs none.",
    "penalty": "alpha is the weight of a squared norm; PrivateLasso and PrivateElasticNet have an absolute one.",
    "random_state": "noise that can be drawn again protects nobody; tests have insecure_seed.",
    "max_iter": _ROUNDS,
    "tol": _ROUNDS,
    "n_jobs": "resources=sv.Resources(n_jobs=...) has it.",
    "verbose": "resources=sv.Resources(verbose=True) shows the progress.",
    "data_norm": "row_norm is the largest norm of a row.",
    "bounds": "feature_ranges=(lows, highs) has the range of each feature.",
    "bounds_X": "feature_ranges=(lows, highs) has the range of each feature.",
    "bounds_y": "label_bound=(low, high) has the range of the label.",
    "accountant": "ledger is the account that is charged.",
}  # parameters of other libraries, and what is meant here

Facts = Mapping[str, Mapping[str, Any]]  # what each party declares public


def penalty_named(name: str, **parameters: Any) -> Named:
    """A penalty or a set as plans name it, its parameters checked."""
    return Named(name=name, parameters=penalties.get_penalty(name, **parameters).parameters())


def loss_named(name: str, kind: losses.Kind, **parameters: float) -> Named:
    """A registered loss of that kind as plans name it, its parameters checked."""
    if name not in (names := losses.names(kind)):
        raise InputError(
            f"loss={name!r} must be one of {', '.join(map(repr, names))}, or a loss of the kind {kind!r} of your own, "
            "registered with sottovoce.losses.register."
        )
    loss = losses.get(name, **parameters)
    losses.check_units(loss)
    return Named(name=name, parameters=loss.parameters() if parameters else {})


def ball_or(penalty: str, ball: str, alpha: Any, radius: float | None) -> Named:
    """A radius asks for the ball; else alpha is the weight of the penalty, and 0 means none."""
    if radius is not None:
        return penalty_named(ball, radius=radius)
    return Named(name="none") if alpha == 0 else penalty_named(penalty, alpha=alpha)


def distinct_classes(values: list[Any]) -> tuple[Any, ...]:
    """The distinct labels among these, sorted, of two the positive class last."""
    keys: dict[Any, tuple[str, Any]] = {}
    for value in values:
        plain = value.item() if isinstance(value, np.generic) else value
        keys.setdefault(plain, (str(type(plain)), plain))
    distinct = sorted(keys, key=keys.__getitem__)
    if len(distinct) < 2:
        raise InputError(
            f"classification needs at least two classes, but {len(distinct)} class(es) were found or declared. Declare "
            "the labels to tell apart, for example classes=(0, 1) or classes=('no', 'yes')."
        )
    if len(distinct) > MOST_CLASSES:
        raise InputError(f"{len(distinct)} classes were found or declared, and at most {MOST_CLASSES} are served.")
    return tuple(distinct)


def validate_rows(model: PrivateLinearModel, X: Any, *, reset: bool = True, **options: Any) -> Any:
    """What scikit-learn accepts; its errors that would print values of the data are said without them."""
    if isinstance(X, str | PathLike):
        raise InputError(f"X={str(X)!r} is a file, which needs a schema: schema=sv.Schema.from_toml(path), or {{...}}.")
    rows = number_rows(X)
    try:
        rows = check_array(rows, accept_sparse=_SPARSE, estimator=model, input_name="X", **options)
        validate_data(model, rows if isinstance(X, list | tuple) else X, reset=reset, skip_check_array=True)
        return rows
    except ValueError as error:
        for text, plain in _WITHOUT_VALUES.items():
            if text in str(error):
                raise InputError(plain) from None
        raise


def label_vector(y: ArrayLike, rows: Any) -> NDArray[Any]:
    """A label for each row; of a column they are taken with a warning, and anything else is an error."""
    labels = label_array(y)
    if labels.ndim != 1:
        try:
            labels = column_or_1d(labels, warn=True)
        except ValueError:
            raise InputError(
                f"y has shape {labels.shape} and must be a 1d array, a label for each row; fit one model for each."
            ) from None
    check_consistent_length(rows, labels)
    return labels


def common_names(facts: Facts, split: Split) -> tuple[str, ...]:
    """The feature names that the parties agree on; parties without names do not object."""
    named = {party: tuple(fact["feature_names"]) for party, fact in facts.items() if fact["feature_names"]}
    if split.same_people:
        return tuple(name for names in named.values() for name in names) if len(named) == len(facts) else ()
    if len(set(named.values())) > 1:
        raise InputError(
            f"the parties {', '.join(named)} name their columns differently or order them differently; by rows every "
            "party has the same columns in the same order."
        )
    return next(iter(named.values()), ())


def part_norms(
    federation: Federation, columns: tuple[int, ...], bounds: Bounds, schema: Schema | None
) -> tuple[float, ...]:
    """By columns: of a declared row norm the bound of each party's part of a row.

    The parts are as the schema says, else in proportion to the columns.
    """
    if bounds.row_norm is not None and schema is not None and federation.norms is None:
        return schema.party_norms(bounds.row_norm, columns)
    if bounds.row_norm is not None:
        return tuple(federation.party_norms(bounds.row_norm, columns))
    if federation.norms is not None:
        raise InputError(
            f"norms={federation.norms!r} are the parties' parts of row_norm, which is not declared; declare it, or "
            "leave norms out."
        )
    return ()


def check_served_by_columns(loss: Named, bounds: Bounds, most_records: int | None, *, secure: bool) -> None:
    """Refuse what sums over columns do not carry."""
    kind = losses.known(loss.name)
    if kind is not None and kind.kind == "time":
        raise InputError(f"loss={loss.name!r}: times are not fitted over columns; give data in one place or by rows.")
    if not secure and (most_records is not None or (kind is not None and kind.kind == "count")):
        raise InputError(
            f"loss={loss.name!r}, most_records={most_records}: over columns counts, amounts and people with several "
            "records need privacy and products='secure'; take these, or data in one place or by rows."
        )
    if bounds.exposure_bound is not None:
        raise InputError(
            f"exposure_bound={bounds.exposure_bound!r}: over columns slopes are looked up by score and count, and with "
            "exposures they would be weighed by these, which may end with an event; leave exposures out, or give data "
            "in one place or by rows."
        )
    if bounds.weight_bound is not None:
        raise InputError(
            "weight_bound: weights of records are not served over columns; give data in one place or by rows."
        )


def is_private(bound: Any) -> bool:
    """Whether a bound is to be bought."""
    return isinstance(bound, str) and bound == PRIVATE


def unknown_columns(model: PrivateLinearModel, names: tuple[str, ...], features: int) -> dict[int, Number]:
    """The columns with a range to be estimated, by column number; the number after the features is the label's."""
    label, columns = getattr(model, "label_bound", None), dict[int, Number]()
    if (schema := model.schema_) is not None:
        columns = schema.of_features(names or schema.feature_names).estimated
    elif is_private(model.feature_ranges):
        columns = {place: Number(names[place] if names else f"x{place}") for place in range(features)}
    if not hasattr(model, "label_bound") or label is not None:
        columns.pop(features, None)
    if is_private(label):
        columns[features] = Number("the label")
    return columns


def check_people_said(most_records: int | None, beside: Mapping[str, Any], schema: Schema | None) -> None:
    """Refuse people without a number of records that count, a number without people, and people with weights."""
    person = beside.get("person")
    known = schema is not None and schema.person is not None
    if most_records is not None and person is None and not known:
        raise InputError(f"most_records={most_records!r} is of a person: say whose record each is, fit(..., person=).")
    said = most_records is not None or (schema is not None and schema.most_records is not None)
    if (person is not None or known) and not said:
        raise InputError(
            "person: say how many records of a person count at most, fit(..., most_records=16), or most_records in the "
            "schema: a public number, as large as is usual. Further records count for nothing."
        )
    given = {name for name, column in beside.items() if column is not None}
    if said and (others := sorted(given.union(() if schema is None else schema.beside) - {"person"})):
        raise InputError(f"person: people with several records count without {others[0]}; leave one of the two out.")


def check_estimator(model: PrivateLinearModel) -> None:
    """Refuse what no estimator takes, before anything is asked of anybody."""
    if not isinstance(model.solver, str | Options):
        raise no_solver(model.solver)
    check_budget(model.epsilon, model.delta, " (1.0 is a usual choice)")
    if not (model.row_norm is None or is_number(model.row_norm)):
        raise InputError(f"row_norm={model.row_norm!r} must be a positive number; declare the largest you expect.")
    if not (model.ledger is None or isinstance(model.ledger, str | PathLike | Ledger | Account)):
        raise InputError(f"ledger={model.ledger!r} must be the path of a ledger, a Ledger, an Account or None.")
    seed = model.insecure_seed
    if seed is not None and not (is_whole(seed) and seed >= 0):
        raise InputError(
            f"insecure_seed={seed!r} must be a whole number from 0, or None for noise that protects the records."
        )
    check_resources(model.resources)
    check_relation(model.relation)
    if model.calibration not in ("tight", "paper"):
        raise InputError(f"calibration={model.calibration!r} must be 'tight' or 'paper'.")
    _check_declared(model)


def check_budget(epsilon: Any, delta: Any, usual: str = "") -> None:
    """Refuse an epsilon and a delta that no account takes."""
    if not (is_number(epsilon) and epsilon > 0):
        raise InputError(f"epsilon={epsilon!r} must be a positive number{usual}, or float('inf') for no privacy.")
    if not (is_number(delta) and SMALLEST_DELTA <= delta < 1):
        raise InputError(
            f"delta={delta!r} must be a number between 0 and 1, from 1e-300 on, well below 1 / N; 1e-5 is usual."
        )


def _check_declared(model: PrivateLinearModel) -> None:
    """Refuse declarations that no estimator takes, or that do not go together."""
    if model.rescale not in ("symmetric", "unit"):
        raise InputError(f"rescale={model.rescale!r} must be 'symmetric' ([-1, 1]) or 'unit' ([0, 1]).")
    if not (model.schema is None or isinstance(model.schema, Schema)):
        raise InputError(
            f"schema is of type {type(model.schema).__name__} and must be a Schema: sv.Schema({{...}}), or "
            "sv.Schema.from_toml(path)."
        )
    for name, usual in (("entry_bound", None), ("feature_ranges", None), ("rescale", "symmetric")):
        if model.schema is not None and getattr(model, name) != usual:
            raise InputError(
                f"{name}={getattr(model, name)!r}: the bounds of the features follow from the schema; leave {name} "
                "out, or leave the schema out."
            )
    if model.radius is not None and is_number(model.alpha) and model.alpha not in (0, type(model).alpha):
        raise InputError(
            f"alpha={model.alpha!r} and radius={model.radius!r}: a ball is in the place of a penalty; leave one out."
        )
    bound = getattr(model, "label_bound", None)
    ends = bound if isinstance(bound, tuple | list | np.ndarray) else (bound,)
    if bound is not None and not is_private(bound) and not all(map(is_number, ends)):
        raise InputError(
            f"label_bound={bound!r} must be one number b, for labels in [-b, b], a pair (low, high), or 'private'; "
            "declare the range you expect."
        )
    errors = getattr(model, "standard_errors", False)
    listed = isinstance(errors, list | tuple) and errors and all(isinstance(name, str) for name in errors)
    if not (isinstance(errors, bool) or listed):
        raise InputError(f"standard_errors={errors!r} must be True or False, or a list of columns such as ['age'].")
    if errors and model.alpha == "auto":
        raise InputError("standard_errors=True: intervals are of coefficients without a penalty; leave alpha out.")


def no_solver(value: Any) -> InputError:
    """What is said to something that is no solver."""
    called = f" (a class: write {value.__name__}())" if isinstance(value, type) and issubclass(value, Options) else ""
    return InputError(
        f"solver={value!r}{called} must be 'auto', a name ({', '.join(SOLVERS)}) or an object such as "
        "sottovoce.solvers.CD(inner=80)."
    )


def crowded(problem: Problem, schema: Schema | None) -> list[str]:
    """What is said of categories with more levels than N mu can carry.

    A category is one part of row_norm^2, so the noise of a level's count is row_norm / mu, and a level has N / levels
    records on average. Below that noise most levels are not told from nothing, and add their noise to predictions.
    """
    if schema is None:
        return []
    most = problem.signal / schema.row_norm
    return [
        f"columns.{name}: {count} levels have {problem.records / count:.3g} records each on average, and the noise of "
        f"a count is {problem.records / most:.3g}: too many for this budget. Have at most {most:.0f}: merge them by "
        "prefix or groups, or declare the frequent ones alone, with other = true."
        for name, column in schema.columns.items()
        if isinstance(column, Category) and (count := len(column.levels)) > most
    ]


def warn_of(problem: Problem, schema: Schema | None = None, *, fits: bool = True) -> None:
    """Warn of what public numbers say against a fit or, without `fits`, another run, before anything is spent."""
    if problem.epsilon == math.inf:
        return
    if problem.delta >= 1 / problem.records:
        warn(
            f"delta={problem.delta:.3g} is at or above 1/N = {1 / problem.records:.3g}: a mechanism that publishes "
            f"one random record whole would satisfy it. Choose delta below {0.1 / problem.records:.1g}."
        )
    if fits and problem.epsilon > GENEROUS:
        warn(
            f"epsilon={problem.epsilon:g} promises next to nothing: practically everybody may be found among the "
            "records. 1.0 is a usual choice."
        )
    if fits and problem.signal < LITTLE:
        enough = gaussian_epsilon(problem.mu * LITTLE / problem.signal, problem.delta)
        warn(
            f"epsilon={problem.epsilon:g}: this budget buys little here. With {problem.records} records the signal "
            f"N mu is {problem.signal:.2g}; below {LITTLE:g} no model is far better than one that says the same of "
            f"everybody. About {math.ceil(problem.records * LITTLE / problem.signal)} records would do, or "
            f"epsilon={enough:.2g}."
        )
        return
    for text in crowded(problem, schema) if fits else ():
        warn(text)


def warn_of_norms(problem: Problem) -> None:
    """Warn if secure columns clip parts of rows to shares of the row norm that follow from the number of columns."""
    widths = [problem.bounds.columns(problem.features)[p.start : p.stop] for p in map(problem.part, problem.names)]
    cut = [name for name, w, b in zip(problem.names, widths, problem.norms, strict=True) if np.linalg.norm(w) > b]
    if cut:
        shares = ", ".join(f"{name} {norm:.3g}" for name, norm in zip(problem.names, problem.norms, strict=True))
        warn(
            f"row_norm={problem.bounds.row_norm:g} is shared among the parties by their numbers of columns ({shares}): "
            f"a row with more than that at {', '.join(cut)} is cut there, though it may be short as a whole. Declare "
            "norms=[...] of the federation by attributes (of one-hot codes count the ones), a schema, or "
            "feature_ranges without a row_norm, which cuts nothing."
        )
