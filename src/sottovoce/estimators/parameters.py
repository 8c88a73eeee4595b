"""The parameters that all estimators share, checked."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from sottovoce.arguments import is_number, is_whole
from sottovoce.data.devices import check_device
from sottovoce.data.schema import Schema
from sottovoce.data.threads import check_jobs
from sottovoce.errors import InputError
from sottovoce.privacy.checks import SMALLEST_DELTA
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.relation import checked
from sottovoce.solvers import SOLVERS, Options

if TYPE_CHECKING:
    from sottovoce.estimators.base import PrivateLinearModel


def check_parameters(model: PrivateLinearModel) -> None:
    """Refuse what no estimator takes, before anything is asked of anybody."""
    if not isinstance(model.solver, str | Options):
        raise no_solver(model.solver)
    if not (is_number(model.epsilon) and model.epsilon > 0):
        raise InputError(
            f"epsilon={model.epsilon!r} must be a positive number (1.0 is a usual choice), or float('inf') for no "
            "privacy."
        )
    if not (is_number(model.delta) and SMALLEST_DELTA <= model.delta < 1):
        raise InputError(
            f"delta={model.delta!r} must be a number between 0 and 1, from 1e-300 on, well below 1 / N; 1e-5 is usual."
        )
    if not (model.row_norm is None or is_number(model.row_norm)):
        raise InputError(f"row_norm={model.row_norm!r} must be a positive number; declare the largest you expect.")
    if not (model.ledger is None or isinstance(model.ledger, str | PathLike | Ledger | Account)):
        raise InputError(f"ledger={model.ledger!r} must be the path of a ledger, a Ledger, an Account or None.")
    seed = model.insecure_seed
    if seed is not None and not (is_whole(seed) and seed >= 0):
        raise InputError(
            f"insecure_seed={seed!r} must be a whole number from 0, or None for noise that protects the records."
        )
    check_jobs(model.n_jobs)
    check_device(model.device)
    checked(model.relation)
    if model.calibration not in ("tight", "paper"):
        raise InputError(f"calibration={model.calibration!r} must be 'tight' or 'paper'.")
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


def solver_name(solver: str | Options) -> str:
    """The name of the solver that was asked for, "auto" if none was."""
    return solver.name if isinstance(solver, Options) else solver


def no_solver(value: Any) -> InputError:
    """What is said to something that is no solver."""
    called = f" (a class: write {value.__name__}())" if isinstance(value, type) and issubclass(value, Options) else ""
    return InputError(
        f"solver={value!r}{called} must be 'auto', a name ({', '.join(SOLVERS)}) or an object such as "
        "sottovoce.solvers.CD(inner=80)."
    )
