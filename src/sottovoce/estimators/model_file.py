"""A fitted model as a file of JSON: readable, and loaded without running anything that the file says.

It holds what is public about a fit: coefficients, classes, feature names, the plan, the privacy report and what was
communicated. Nothing else of the data is in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, StringConstraints, ValidationError

from sottovoce import estimators
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.estimators.coefficients import CoefficientTable, WithStandardErrors, ratio_of
from sottovoce.estimators.times import PrivateCoxRegressor
from sottovoce.files import parse_file
from sottovoce.formats import ESTIMATORS, MODEL
from sottovoce.plan.plan import Plan
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.ledger import Receipt
from sottovoce.solvers import Options, by_name
from sottovoce.transports.base import Communication

FORMAT: Final = "sottovoce model"
# What is of the session, not of the model; paths of a ledger are nobody else's business.
# The schema is kept by itself: it may be the federation's.
_NOT_KEPT: Final = ("ledger", "resources", "schema")


class ModelFile(BaseModel):
    """The content of a model file."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["sottovoce model"] = FORMAT
    version: int = MODEL.number  # checked before the rest
    estimator: Literal["logistic", "ridge", "lasso", "elastic-net", "svm", "ordinal", "poisson", "gamma", "cox"]
    parameters: dict[str, Any]
    coef: list[FiniteFloat] | list[list[FiniteFloat]] | None  # None: the parties keep those of their columns
    intercept: FiniteFloat | list[FiniteFloat] | None  # of several classes one for each, and a row of coef
    classes: tuple[Any, ...] | None
    feature_names: list[str]
    table_schema: dict[str, Any] | None = None  # what makes the features of a table
    estimated_ranges: dict[str, tuple[FiniteFloat, FiniteFloat]] = {}  # by column: what this fit's budget paid for
    beside: list[Plan] = []  # what else ran for this fit in its budget; the coins of such plans name no records
    coefficients: list[dict[str, str | FiniteFloat | None]] | None = (
        None  # with standard errors, where they were bought
    )
    baseline_hazard: tuple[FiniteFloat, ...] | None = None  # in each period
    label_scale: tuple[FiniteFloat, FiniteFloat] | None = None  # mean and residuals of counts
    score_spread: tuple[FiniteFloat, FiniteFloat] | None = None  # of the training scores: where to look at others
    rounds: int
    plan: Plan
    charged_as: Annotated[str, StringConstraints(pattern="[0-9a-f]{64}")]  # the plan's name in the ledgers
    plan_digest: Annotated[str, StringConstraints(pattern="[0-9a-f]{64}")]
    receipts: dict[str, str] = {}  # by party: how far its ledger went
    privacy: dict[str, Any]
    communication: dict[str, int | dict[str, int]]
    missing_parts: dict[str, str] = {}  # by party: why it has no part of the model


def to_json(model: PrivateLinearModel) -> str:
    """The text of a fitted model's file."""
    if not hasattr(model, "plan_"):
        raise InputError(f"this {type(model).__name__} is not fitted; call fit before saving it.")
    names = dict(zip(ESTIMATORS.values(), ESTIMATORS, strict=True))
    # The coin names records in one published calibration; whoever gets the model must not get it.
    plan = model.plan_.model_copy(update={"coin": "withheld"})
    coef: Any = None  # the parties keep it
    intercept: Any = None
    if plan.models != "kept":
        one = plan.scaled_loss.outputs == 1
        rows, intercepts = model.model_rows()
        coef, intercept = (rows[0], intercepts[0]) if one else (rows, intercepts)
    parameters = model.get_params(deep=False)
    for name in _NOT_KEPT:
        parameters.pop(name, None)
    if isinstance(solver := parameters["solver"], Options):  # as a job file has it
        parameters["solver"] = {"name": solver.name, **solver.given()}
    beside = [json.loads(each.to_json()) for each in model.plans_ if each is not model.plan_]
    table = getattr(model, "coefficients_", None)
    content = {
        "format": FORMAT,
        "version": MODEL.number,
        "estimator": names[type(model).__name__],
        "parameters": parameters,
        "coef": coef,
        "intercept": intercept,
        "classes": model.plan_.classes,
        "feature_names": getattr(model, "feature_names_in_", []),
        **({} if model.schema_ is None else {"table_schema": model.schema_.table()}),
        **({"estimated_ranges": model.ranges_} if hasattr(model, "ranges_") else {}),
        **({"beside": beside} if beside else {}),
        **({} if table is None else {"coefficients": list(map(asdict, (*table, *table.knots)))}),
        "score_spread": model.score_spread_,
        **({} if (found := getattr(model, "baseline_hazard_", None)) is None else {"baseline_hazard": found}),
        **({} if getattr(model, "label_scale_", None) is None else {"label_scale": model.label_scale_}),
        "rounds": model.n_iter_,
        "plan": json.loads(plan.to_json()),
        "charged_as": model.charged_as_,
        "plan_digest": plan.digest.hex(),
        "receipts": dict(zip(model.receipts_, map(str, model.receipts_.values()), strict=True)),
        "privacy": model.privacy_.to_dict(),
        "communication": vars(model.communication_),
        "missing_parts": model.missing_parts_,
    }
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def load_model(path: str | Path) -> PrivateLinearModel:
    """The fitted estimator of a model file: it predicts as the saved one did. Its ledger is not restored."""
    path = Path(path)

    def parse(text: str) -> Any:
        def refuse(constant: str) -> None:  # NaN and Infinity are no JSON
            raise json.JSONDecodeError(f"{constant} is no number of JSON", text, text.find(constant))

        return json.loads(text, parse_constant=refuse)

    content = parse_file(path, parse, "a model file", "give the path of one; `sottovoce fit` writes it.")
    try:
        if type(content) is dict and content.get("format") == FORMAT and not MODEL.read(content.get("version")):
            raise InputError(MODEL.refusal(str(path), content.get("version")))
        return _restore(ModelFile.model_validate(content))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # whatever a file leads to is the file's fault: what it names runs no code
        why = str(error)
        if isinstance(error, ValidationError):
            fault = error.errors()[0]
            why = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise InputError(f"{path} is not a model file of this version ({why}); `sottovoce fit` writes one.") from None


def plain(value: Any) -> Any:
    """Plain numbers, texts, lists and tables, as JSON knows them; an infinite number is the text "inf"."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return dict(zip(map(str, value), map(plain, value.values()), strict=True))
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _restore(content: ModelFile) -> PrivateLinearModel:
    plan = content.plan
    if plan.digest.hex() != content.plan_digest:
        raise ValueError("plan and plan_digest do not agree")
    kept = content.coef is None or content.intercept is None
    if kept != (plan.models == "kept"):
        raise ValueError("coef and intercept are there unless the parties keep them, as the plan says")
    outputs = () if plan.scaled_loss.outputs == 1 else (plan.scaled_loss.outputs,)
    coef, intercept = np.array(content.coef or []), np.array(content.intercept)
    fits = kept or (coef.shape == (*outputs, plan.features) and intercept.shape == outputs)
    if not fits or len(content.feature_names) not in (0, plan.features):
        raise ValueError(f"coef and feature_names must have the plan's {plan.features} entries")
    if content.classes != plan.classes:
        raise ValueError("classes are not those of the plan")
    parameters = {**content.parameters, "epsilon": float(content.parameters["epsilon"])}  # "inf" is a text
    if isinstance(solver := parameters.get("solver"), dict):
        parameters["solver"] = by_name(**solver)
    if content.table_schema is not None:
        parameters["schema"] = Schema.from_table(content.table_schema)
    model: PrivateLinearModel = getattr(estimators, ESTIMATORS[content.estimator])(**parameters)
    if content.feature_names:
        model.feature_names_in_ = np.array(content.feature_names, dtype=object)
    if content.coef is None or content.intercept is None:
        model._set_model(None, None, plan)
    else:
        model._set_model(coef, intercept[()], plan)
    model.schema_ = model.schema
    if content.estimated_ranges:
        model.ranges_ = content.estimated_ranges
    if content.coefficients is not None and isinstance(model, WithStandardErrors):
        model.coefficients_ = CoefficientTable.of(content.coefficients, ratio_name=ratio_of(model, plan))
    model.score_spread_, model.label_scale_ = content.score_spread, content.label_scale
    if content.baseline_hazard is not None and isinstance(model, PrivateCoxRegressor):
        model._set_baseline(np.array(content.baseline_hazard))
    model.n_iter_ = content.rounds
    model.n_features_in_ = plan.features
    model.plan_, model.plans_ = plan, (plan, *content.beside)
    model.charged_as_ = content.charged_as
    model.receipts_ = {name: Receipt.read(text) for name, text in content.receipts.items()}
    model.privacy_ = PrivacyReport.from_dict(content.privacy)
    model.communication_ = Communication(**content.communication)  # type: ignore[arg-type]
    model.missing_parts_ = content.missing_parts
    return model
