"""What a loss is: value, slope, curvature, their bounds and, for a convex loss, its dual."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import check_parameters, is_number
from sottovoce.errors import InputError

Vector = NDArray[np.float64]
Kind = Literal["regression", "classification", "count", "time"]

_DUAL: tuple[Kind, ...] = ("regression", "classification")  # kinds of losses that have one where they are convex
ROUNDING = 1e-12  # a sum of dual steps may leave the domain of the conjugate by this much


class KnownLabels(NamedTuple):
    """What a run has released of labels."""

    residual: float = 0.0  # the mean size of those from one number for everybody
    mean: float = 1.0
    exposure: float = 1.0  # on average
    most: float = 1.0  # the largest label, as declared


class Sizes(NamedTuple):
    """What the size of labels and slopes decides, for a descent that starts from one number for everybody."""

    slope: float  # of an ordinary record there
    steepest: float  # beyond which no slope needs to be
    variance: float  # of the scores, before anything is known
    curvature: float  # at scores of that variance
    spread: float  # the variance of slopes over the curvature, which is what an error of a gradient costs
    rescale: float = 1.0  # so much more of the loss may go to wider clips of the rescale
    amount: float = 1.0  # of exposure that a record has on average


@dataclass(frozen=True)
class Loss(ABC):
    """A loss l(u, y) of a score u = <x, w> and a label y; every method works entry by entry.

    Labels of a classification loss are -1 and +1. Derivatives are with respect to u. The dual of a convex
    loss follows SDCA: its conjugate is l*(p) = sup_u (p u - l(u, y)), and a dual variable a (alpha in the
    papers) enters as l*(-a), so that a = -l'(u, y) at the optimum.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    convex: ClassVar[bool] = True
    smooth: ClassVar[bool] = True
    quadratic: ClassVar[bool] = False  # a function of products of columns and labels
    affine_in_label: ClassVar[bool] = False  # l'(u, y) = psi(u) - phi y
    weighted: ClassVar[bool] = False  # by class: every bound holds, but no dual, no z-update and no compiled loop
    code: ClassVar[int | None] = None  # in `losses/kernels.py`, for solvers whose loops are compiled
    slope_code: ClassVar[int | None] = None  # likewise, for sums of slopes; a class that inherits it has none
    dual_codes: ClassVar[Mapping[str, int]] = MappingProxyType({})  # where there are several dual steps: by name
    ordered: ClassVar[bool] = False  # whether scores after the first are thresholds between ordered classes
    outputs: ClassVar[int] = 1  # how many scores a record has; of several classes one for each
    exposed: ClassVar[bool] = False  # whether labels may have exposures
    learned: ClassVar[Mapping[str, int]] = MappingProxyType({})  # what a run tells of it, by name: how many numbers
    parts: ClassVar[int] = 0  # how many rates of its own it has, which are unknown as weights are

    def parameters(self) -> dict[str, float]:
        """The public constants of the loss: ``get(loss.name, **loss.parameters()) == loss``."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}

    @abstractmethod
    def value(self, u: Vector, y: Vector) -> Vector:
        """l(u, y)."""

    @abstractmethod
    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:
        """l'(u, y), a subgradient where there is a kink; ``out`` may be u itself, not y."""

    @abstractmethod
    def curvature(self, u: Vector, y: Vector) -> Vector:
        """l''(u, y) where it exists; at a kink of l' the value of one side."""

    @property
    @abstractmethod
    def slope_bound(self) -> float:
        """The supremum of |l'(u, y)| over all scores and |y| <= 1; infinite for the squared loss."""

    @property
    @abstractmethod
    def curvature_bound(self) -> float:
        """The supremum of |l''(u, y)|, the Lipschitz constant of l'; infinite where l' jumps."""

    @abstractmethod
    def mean_curvature(self, variance: float) -> float:
        """E l''(u, y) for a score u ~ N(0, variance) and a fair label y = -1 or +1; a jump of l' counts.

        Negative and positive parts cancel in a non-convex loss: for the sigmoid loss the result is 0.
        """

    def information(self, u: Vector, y: Vector) -> Vector:
        """What records add to the curvature: l'', or its mean at the score where the loss knows that."""
        return self.curvature(u, y)

    @property
    def information_bound(self) -> float:
        """The most that it is, times the weight."""
        return self.curvature_bound

    def weight(self, u: Vector) -> Vector:
        """What a record counts for in standard errors, a function of its score alone: where l'' has no bound, less."""
        return np.ones_like(u)

    def lipschitz(self, label_bound: float = 1.0) -> float:
        """The supremum of |l'(u, y)| over all scores and |y| <= label_bound."""
        check_positive("label_bound", label_bound, "declare the largest absolute value a label can have")
        # A margin loss phi(y u) has slope y phi'(y u); that of a residual loss ranges over all residuals.
        return self.slope_bound * label_bound if self.kind == "classification" else self.slope_bound

    @property
    def parameter(self) -> float:
        """What a compiled loop is told beside the code: the one public constant of the loss, 0 if it has none."""
        own = fields(self)
        return float(getattr(self, own[0].name)) if own else 0.0

    def knowing(self, known: KnownLabels) -> Self:  # noqa: ARG002
        """The loss with what follows from releases."""
        return self

    def units(self, known: KnownLabels) -> Sizes:
        """Classes have a scale of their own; numbers that of their mean absolute residual."""
        if self.kind == "classification":
            slope = float(np.abs(self.derivative(np.zeros(2), np.array([-1.0, 1.0]))).max())
            return Sizes(slope, self.lipschitz(), 2.0, self.mean_curvature(2.0), 1.0)
        slope = min(known.residual, self.lipschitz(), 1.0)
        return Sizes(slope, min(self.lipschitz(), 1.0), slope**2 / 2, 1.0, slope**2)

    def told(self) -> dict[str, Vector]:
        """What parties are told of it with every gradient: `learned`."""
        return {}

    def hearing(self, told: Mapping[str, Any]) -> Self:  # noqa: ARG002
        """The loss that was told."""
        return self

    def slope_bound_within(self, _norm: float) -> float:
        """A bound of |l'(u, y)| over scores |u| <= norm and labels |y| <= 1."""
        return self.lipschitz()

    def slope_without_label(self, u: Vector) -> Vector:
        """psi(u) = l'(u, y) + phi y, where slopes are affine in the label: the mean of those at the two labels."""
        ones = np.ones_like(u)
        return np.asarray((self.derivative(u, ones) + self.derivative(u, -ones)) / 2.0)

    @property
    def label_slope(self) -> float:
        """The phi in l'(u, y) = psi(u) - phi y."""
        zero, one = np.zeros(1), np.ones(1)
        return float((self.derivative(zero, -one) - self.derivative(zero, one))[0]) / 2.0

    def noisy_label_slope(self, u: Vector, y: Vector) -> Vector:
        """For labels that carry noise: what has the mean of l'(u, y) where the slope is affine in the label.

        Other losses take the sign of a noisy label: randomised response.
        """
        return self.derivative(u, np.where(y < 0.0, -1.0, 1.0))

    def proximal(self, points: Vector, y: Vector, rho: float, start: Vector) -> Vector:
        """argmin_z l(z_i, y_i) + (rho / 2) (z_i - t_i)^2 at the points t, to rounding: the z-update of ADMM.

        At t = S + v / rho it minimises l(z) - v z + (rho / 2) (S - z)^2; then the new duals are rho (t - z) = l'(z).
        `start` is where Newton's method begins, for the losses (logistic, sigmoid) that have no closed form.
        Edges: a loss that is not convex needs rho above its curvature, else the minimum is not unique.
        """
        if not self.convex and not rho > self.curvature_bound:
            raise InputError(
                f"rho={rho:.4g} must be above {self.curvature_bound:.4g}, the curvature of the loss {self.name!r}, "
                "which is not convex; take a larger rho."
            )
        return self._proximal(points, y, rho, start)

    @property
    def has_proximal(self) -> bool:
        """Whether the loss has a z-update."""
        return type(self)._proximal is not Loss._proximal

    def copies(self, scores: Vector, duals: Vector, y: Vector, rho: float, *, noisy: bool = False) -> Vector:
        """argmin_z l(z) - v z + (rho / 2) (s - z)^2 at scores s and duals v; `noisy`: for labels that carry noise."""
        shift, labels = self._denoised(y) if noisy else (0.0, y)
        return self.proximal(scores + (duals - shift) / rho, labels, rho, scores)

    def conjugate(self, p: Vector, y: Vector) -> Vector:
        """l*(p) = sup_u (p u - l(u, y)), infinite outside its domain; the dual objective takes l*(-a)."""
        self._require_dual()
        return self._conjugate(p, y)

    def dual_step(self, a: Vector, y: Vector, m: Vector, s: Vector) -> Vector:
        """The step z that minimises l*(-a - z) + m z + s z^2 / 2, in closed form (logistic: one Newton step).

        For SDCA on (1/N) sum_i l + (lam/2) |w|^2 with L records updated together, m = <x, v> / (lam N) and
        s = L |x|^2 / (lam N). A dual variable outside the domain of l* is led back into it, except by the published
        logistic step, which counts from the boxed variable.
        """
        self._require_dual()
        return self._dual_step(a, y, m, s)

    def dual_step_exact(self, a: Vector, y: Vector, m: Vector, s: Vector) -> Vector:
        """The minimiser itself, also for the one loss (logistic) whose ``dual_step`` only approaches it."""
        return self.dual_step(a, y, m, s)

    def _proximal(self, _points: Vector, _y: Vector, _rho: float, _start: Vector) -> Vector:
        raise InputError(f"loss={self.name!r} has no z-update; choose another loss.")

    def _denoised(self, y: Vector) -> tuple[Vector | float, Vector]:
        """(shift, labels) such that l(z, labels) + shift z stands for the loss at noisy labels y."""
        return 0.0, y

    def _conjugate(self, p: Vector, y: Vector) -> Vector:
        raise NotImplementedError

    def _dual_step(self, a: Vector, y: Vector, m: Vector, s: Vector) -> Vector:
        raise NotImplementedError

    def _require_dual(self) -> None:
        if not self.convex or self.kind not in _DUAL:
            dual = ", ".join(name for name in names() if _REGISTRY[name].convex and _REGISTRY[name].kind in _DUAL)
            why = "has no dual here" if self.convex else "is not convex and has no dual"
            raise InputError(f"loss={self.name!r} {why}; choose one of: {dual}")


_REGISTRY: dict[str, type[Loss]] = {}
SEVERAL: dict[str, type[Loss]] = {}  # of several scores; an estimator chooses them, nobody names them


class Wrapping(Loss):
    """A loss that is made of another, `inner`, and goes by its name and parameters."""

    inner: Loss

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.inner.convex

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return self.inner.smooth

    @property
    def curvature_bound(self) -> float:
        return self.inner.curvature_bound

    def parameters(self) -> dict[str, float]:
        return self.inner.parameters()

    @property
    def parameter(self) -> float:
        return self.inner.parameter


LossType = TypeVar("LossType", bound=Loss)


@dataclass_transform(frozen_default=True)
def register(loss: type[LossType]) -> type[LossType]:
    """Make a loss known by its name, and a frozen dataclass if it is none (a class decorator)."""
    plain = "__dataclass_params__" not in vars(loss)
    _REGISTRY[loss.name] = dataclass(frozen=True)(loss) if plain else loss
    return loss


def names(kind: Kind | None = None) -> list[str]:
    """The names that ``get`` knows, of one kind or of both."""
    return sorted(name for name, loss in _REGISTRY.items() if kind in (None, loss.kind))


def takes(name: str) -> tuple[str, ...]:
    """The parameters of the loss of that name."""
    return tuple(field.name for field in fields(_REGISTRY[name])) if name in _REGISTRY else ()


def known(name: str) -> type[Loss] | None:
    """The class of the loss of that name, if it is known here."""
    return (_REGISTRY | SEVERAL).get(name)


def coded() -> list[type[Loss]]:
    """The losses that compiled loops know, in the order of their codes."""
    return sorted((loss for loss in _REGISTRY.values() if loss.code is not None), key=lambda loss: loss.code or 0)


def get(name: str, **parameters: float) -> Loss:
    """The loss of that name, with the parameters of its class."""
    known = _REGISTRY | SEVERAL
    if name not in known:
        raise InputError(
            f"loss={name!r} is unknown here; choose one of: {', '.join(names())}; or register it, in every process "
            "that takes part (sottovoce.losses.register)."
        )
    check_parameters(f"loss={name!r}", known[name], parameters)
    return known[name](**parameters)


def check_units(loss: Loss) -> None:
    """Refuse a loss of numbers without l(c u, c y; c k) = c^2 l(u, y; k): labels are scaled, and with them its k."""
    if loss.kind != "regression":
        return
    u, y, c = np.linspace(-3.0, 2.0, 11), np.linspace(1.0, -1.0, 11), 4.0
    scaled = get(loss.name, **{name: c * value for name, value in loss.parameters().items()})
    if not np.allclose(scaled.value(c * u, c * y), c**2 * loss.value(u, y), rtol=1e-9):
        raise InputError(
            f"loss={loss.name!r} has no units: labels are scaled by their bound, so a loss of numbers needs "
            "l(c u, c y) = c^2 l(u, y) where its parameters, in units of the label, are multiplied by c too. Give it "
            "one, such as a threshold."
        )


def check_positive(argument: str, value: float, remedy: str, *, zero: bool = False) -> None:
    """Refuse anything but a finite number above zero (with ``zero``: or zero itself)."""
    if not (is_number(value) and (0 < value < math.inf or (zero and value == 0))):
        allowed = "zero or a positive finite number" if zero else "a positive finite number"
        raise InputError(f"{argument}={value!r} must be {allowed}; {remedy}")


def deviation(variance: float) -> float:
    """The standard deviation, kept above zero so that the limit at variance 0 needs no case of its own."""
    check_positive("variance", variance, "pass the mean square of the scores", zero=True)
    return math.sqrt(max(variance, 1e-200))
