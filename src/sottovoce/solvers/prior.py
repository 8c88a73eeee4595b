"""A model to start from, as a value that nothing changes: its coefficients, and what it promised to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from sottovoce.errors import InputError

Source = Literal["numbers", "private", "unprotected"]


@dataclass(frozen=True)
class Prior:
    """Coefficients in the units of the features and, where they are a model's, its names, its classes and its plan.

    `source` says whose they are: plain "numbers", a "private" model, or one that left its people "unprotected".
    """

    coef: tuple[float, ...]
    intercept: float = 0.0
    source: Source = "numbers"
    plan: str = ""  # its digest, as ledgers have it
    features: tuple[str, ...] = ()
    classes: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        """Numbers as they come become tuples; what starts nothing is refused."""
        try:
            coef, intercept = np.asarray(self.coef, dtype=np.float64), np.ravel(np.asarray(self.intercept, np.float64))
        except (TypeError, ValueError):
            raise InputError(
                f"prior: a pair of coefficients and an intercept must be of numbers; {_ALLOWED}."
            ) from None
        coef = coef[0] if coef.ndim == 2 and len(coef) == 1 else coef
        if coef.ndim != 1 or intercept.size != 1:
            raise InputError("prior: it has several scores; a prior is for two classes, or for numbers.")
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise InputError("prior: its coefficients and its intercept must be finite numbers; leave it out.")
        if self.source not in get_args(Source):
            raise InputError(f"prior: source={self.source!r} must be one of {', '.join(get_args(Source))}.")
        classes = None if self.classes is None else tuple(np.asarray(self.classes, dtype=object).tolist())
        taken = {"coef": tuple(coef.tolist()), "intercept": float(intercept[0]), "classes": classes}
        for name, value in {**taken, "features": tuple(map(str, self.features))}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<{self.source} prior of {len(self.coef)} coefficients{f', plan {self.plan[:12]}' * bool(self.plan)}>"


_ALLOWED = "give the path of a saved model, a fitted model, or (coef, intercept)"


@dataclass(frozen=True)
class PriorModel:
    """What an option allows that is a prior."""

    kind: ClassVar[str] = "path of a saved model, fitted model or (coef, intercept)"
    words: ClassVar[str] = "the path of a saved model, a fitted model, or (coef, intercept)"

    def admits(self, value: Any) -> bool:
        return isinstance(value, Prior | str)


def as_prior(value: Any) -> Any:
    """A model, a pair or the fields of a prior as a value; a path stays one, and is read by the fit; else what it is.

    A model promised something to its people if its report says so; one without a report did not, nor did one whose own
    prior promised nothing: its plan is public, and has that prior.
    """
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, Mapping):
        try:
            return Prior(**value)
        except TypeError:
            raise InputError(f"prior: {sorted(map(str, value))} are not the fields of a prior; {_ALLOWED}.") from None
    if hasattr(value, "fit"):
        if not hasattr(value, "coef_"):
            raise InputError(f"prior: this {type(value).__name__} has no coefficients: fit it first, or {_ALLOWED}.")
        weakest = getattr(getattr(value, "privacy_", None), "weakest", None)
        protects = weakest is not None and weakest.promises and weakest.unit != "feature"
        numbers = getattr(getattr(value, "plan_", None), "numbers", None)
        before = getattr(numbers, "prior", None)  # whose weights that plan has in the clear
        protects = protects and getattr(before, "source", "") != "unprotected"
        return Prior(
            value.coef_,
            value.intercept_,
            "private" if protects else "unprotected",
            getattr(value, "charged_as_", ""),
            tuple(getattr(value, "feature_names_in_", ())),
            getattr(value, "classes_", None),
        )
    return Prior(*value) if isinstance(value, tuple | list) and len(value) == 2 else value
