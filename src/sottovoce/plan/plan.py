"""The plan: everything public about a run, fixed before any data is touched.

From one plan come the sampling, the noise and the privacy events, so the three cannot disagree.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sottovoce import losses, penalties
from sottovoce.data.block import Layout, Preparation
from sottovoce.data.bounds import Bounds, party_norms
from sottovoce.door.query import Bounded
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.losses import Loss
from sottovoce.penalties import Penalty, Regulariser
from sottovoce.privacy.accounting import Event, Gaussian, PoissonGaussian, Relation, Selection, Unbounded
from sottovoce.privacy.guarantee import Unit

Array = NDArray[np.float64]

ROUNDING = 2.0**-10  # rounding to the grid may add this share to a sensitivity
MOST_BATCHES = 64  # values a party draws, and keeps in memory, for one message
Split = Literal["central", "rows", "columns"]
Mechanism = Literal["gaussian", "selection", "noisy-max", "kept", "derived"]
Calibration = Literal["tight", "paper"]
Labels = Literal["public", "shared", "held"]
ModelsOf = Literal["shared", "kept"]
Count = Annotated[int, Field(ge=1, lt=2**31)]  # a frame's round has 31 bits


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Named(_Frozen):
    """A loss or a regulariser by name and parameters."""

    name: str
    parameters: dict[str, Any] = {}

    def __hash__(self) -> int:
        return hash((self.name, json.dumps(self.parameters, sort_keys=True)))


class Release(_Frozen):
    """What a party may release under one query name: when, how often, and with how much noise.

    `std` is the standard deviation on an entry of weight 1, `step` the grid. With `rate` the records were drawn
    by secret coins. A selection names the candidate of the largest score + std * Gumbel: it costs what a Gaussian of
    that std costs, in zCDP. A noisy maximum names that of the largest score + Laplace noise of scale std, and costs as
    much as a selection with half the std. `std=0` is a release without privacy. With `batches` > 1 every release is
    that many values in turn, each with noise and coins of its own, and costs as many.

    What is "kept" is the party's rows with noise: they stay with it, one set for the plan, and cost what a Gaussian of
    that std costs. What is "derived" is a function of kept rows and of public numbers; it costs nothing more.
    """

    query: str
    first: int = Field(ge=0, lt=2**31)
    count: Count
    std: float = Field(ge=0, allow_inf_nan=False)
    step: float = Field(gt=0, allow_inf_nan=False)
    rate: float | None = Field(default=None, gt=0, le=1)
    charged_zero_out: float  # the sensitivity, grid included, that the noise was charged for
    charged_replace_one: float
    mechanism: Mechanism = "gaussian"
    batches: int = Field(default=1, ge=1, le=MOST_BATCHES)

    @classmethod
    def of(
        cls,
        query: Bounded,
        first: int,
        count: int,
        std: float,
        step: float,
        rate: float | None = None,
        mechanism: Mechanism = "gaussian",
        batches: int = 1,
    ) -> Release:
        """The release of `query` with `std` on the grid `step`; the grid's own sensitivity is charged."""
        extra = step * math.sqrt(query.entries)
        return cls(
            mechanism=mechanism,
            query=query.name,
            first=first,
            count=count,
            std=std,
            step=step,
            rate=rate,
            batches=batches,
            charged_zero_out=query.sensitivity("zero-out") + extra,
            charged_replace_one=query.sensitivity("replace-one") + extra,
        )

    @classmethod
    def at_mu(
        cls,
        query: Bounded,
        first: int,
        count: int,
        mu: float,
        relation: Relation,
        mechanism: Mechanism = "gaussian",
    ) -> Release:
        """Releases that together cost `mu` (a selection, a noisy maximum: rho = mu^2 / 2); mu=inf is no noise."""
        if math.isinf(mu):
            return cls.of(query, first, count, 0.0, 1.0, mechanism=mechanism)
        times = 2.0 if mechanism == "noisy-max" else 1.0
        std = query.sensitivity(relation) * math.sqrt(count) / mu * times
        step = grid_step(query, std)
        charged = query.sensitivity(relation) + step * math.sqrt(query.entries)
        return cls.of(query, first, count, charged * math.sqrt(count) / mu * times, step, mechanism=mechanism)

    @classmethod
    def derived(cls, query: str, first: int, count: int) -> Release:
        """Functions of the kept rows and of public numbers: no noise of their own, no cost."""
        free: Any = {"std": 0.0, "step": 1.0, "charged_zero_out": 0.0, "charged_replace_one": 0.0}
        return cls(query=query, first=first, count=count, mechanism="derived", **free)

    def times(self, count: int) -> Release:
        """The same release with another count."""
        return Release.model_validate(self.model_dump() | {"count": count})

    @property
    def total(self) -> int:
        """How many values leave under this name in all."""
        return self.count * self.batches

    @property
    def unit(self) -> float:
        """What one unit of a released integer stands for: a step of the grid, or one place in a list of candidates."""
        return self.step if self.mechanism in ("gaussian", "kept") else 1.0

    def charged(self, relation: Relation) -> float:
        """Sensitivity under the relation, grid included."""
        return self.charged_zero_out if relation == "zero-out" else self.charged_replace_one

    def check(self, query: Bounded, records: int) -> None:
        """Refuse a query that moves further than was charged, and a grid on which sums would not be exact integers."""
        reach = (records * self.charged_zero_out + 64 * self.std) / self.step
        if math.frexp(self.step)[0] != 0.5 or not reach < 2.0**62:
            raise RefusedError(
                f"query {query.name!r}: the grid {self.step!r} is no power of two within range of its noise."
            )
        extra = self.step * math.sqrt(query.entries)
        relations: tuple[Relation, ...] = ("zero-out", "replace-one")
        if not all(query.sensitivity(r) + extra <= self.charged(r) * (1 + 1e-12) for r in relations):
            raise LeakError(f"query {query.name!r} is more sensitive than the plan charged for; nothing was released.")

    def event(self, relation: Relation, *, count: int | None = None, parties: int = 1) -> Event:
        """What `count` of these releases cost; `parties` > 1: only the sum of that many equal noises is seen."""
        times = self.total if count is None else count * self.batches
        if self.mechanism == "derived":
            return Gaussian(mu=0.0)
        if self.mechanism == "selection" and self.std > 0.0:
            return Selection(rho=times * (self.charged(relation) / self.std) ** 2 / 2)
        if self.mechanism == "noisy-max" and self.std > 0.0:
            return Selection(rho=times * (2 * self.charged(relation) / self.std) ** 2 / 2)
        std = self.std * math.sqrt(parties)
        if std == 0.0:
            return Unbounded(reason=f"{self.query} is released without noise")
        if self.rate is not None and self.rate < 1.0:
            return PoissonGaussian(rate=self.rate, noise_multiplier=std / self.charged_zero_out, rounds=times)
        return Gaussian(mu=self.charged(relation) * math.sqrt(times) / std)


def grid_step(query: Bounded, std: float) -> float:
    """The largest power of two that adds at most ROUNDING to the sensitivity, within the sampler's range."""
    fine = ROUNDING * query.sensitivity("zero-out") / math.sqrt(query.entries)
    return float(2.0 ** math.floor(math.log2(max(fine, std * 2.0**-24))))


class Plan(_Frozen):
    """A run, before it happens. Public, hashable, serialisable."""

    format: Literal[1] = 1
    run: str  # unique, so that a second fit is a second charge
    coin: str  # public randomness, for schedules that everybody derives alike
    algorithm: str
    calibration: Calibration = "tight"
    split: Split
    parties: tuple[tuple[str, Count], ...]  # names and their public row counts
    features: Count
    fit_intercept: bool
    classes: tuple[bool | int | float | str, bool | int | float | str] | None
    loss: Named
    regulariser: Named
    bounds: Bounds
    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    relation: Relation
    rounds: Count
    numbers: tuple[tuple[str, float], ...] = ()
    releases: tuple[Release, ...] = ()
    claimed_epsilon: float | None = None
    layout: Layout = "rows"
    columns: tuple[Count, ...] = ()  # by columns: how many each party has, in the order of the parties
    norms: tuple[float, ...] = ()  # by columns: the bound of each party's part of a row, where row_norm is declared
    labels: Labels = "shared"  # by columns: who knows the labels
    holder: int = Field(default=0, ge=0)  # by columns: the party that holds them, and the column of the intercept
    vectors: tuple[tuple[str, tuple[float, ...]], ...] = ()
    kept: tuple[tuple[str, float], ...] = ()  # for each party: name and noise of rows that it has kept, ("", 0) if none
    protects: Unit = "record"  # "feature": one column of one party, and no person
    models: ModelsOf = "shared"  # by columns: "kept" if each party alone has the weights of its columns

    @model_validator(mode="after")
    def _check(self) -> Plan:
        """Names are unique: what is charged under a name is all that is released under it."""
        for what, names in (
            ("party", [name for name, _ in self.parties]),
            ("release", [release.query for release in self.releases]),
            ("number", [name for name, _ in self.numbers]),
            ("vector", [name for name, _ in self.vectors]),
        ):
            if len(set(names)) < len(names):
                raise RefusedError(f"the plan names a {what} twice; every {what} of a plan has its own name.")
        if not self.parties:
            raise RefusedError("the plan has no party; it needs at least one.")
        if len(self.parties) > 1 and any(release.batches > 1 for release in self.releases):
            raise RefusedError(
                "the plan has several parties and batches in one message: each party would follow its own values, "
                "and the model would hold more than their sums."
            )
        self._check_kept()
        if self.split == "columns":
            self._check_columns()
        return self

    def _check_kept(self) -> None:
        """One set of kept rows, whose noise suits its grid; for each party what it had before."""
        rows = [release for release in self.releases if release.mechanism == "kept"]
        fine = all(r.total == 1 and r.rate is None and (r.std == 0 or 8 <= r.std / r.step <= 2**25) for r in rows)
        if len(rows) > 1 or not fine:
            raise RefusedError("a plan keeps rows once, all of them, with noise of 8 to 2^25 steps of their grid.")
        if self.kept and (not rows or len(self.kept) != len(self.parties)):
            raise RefusedError("the plan does not say for each party which rows it has kept.")
        if not all(0 < std < math.inf if name else std == 0 for name, std in self.kept):
            raise RefusedError("the plan names kept rows without their noise, or noise without rows.")

    def _check_columns(self) -> None:
        """All parties have all people, each some of the columns; the squares of the norms sum to row_norm^2."""
        if len(self.columns) != len(self.parties) or sum(self.columns) != self.features:
            raise RefusedError("the plan does not say how many of the columns each party has.")
        if len({count for _, count in self.parties}) != 1 or self.holder >= len(self.parties):
            raise RefusedError("by columns every party has the same people, and one of them holds the labels.")
        if (self.bounds.row_norm is None) != (not self.norms):
            raise RefusedError("by columns a row norm is shared among the parties, and only a declared one is.")
        if self.bounds.row_norm is not None:
            party_norms(self.bounds.row_norm, self.columns, self.norms)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Plan:  # noqa: ARG002
        """A changed plan is a new plan: checked, and with a digest of its own."""
        return Plan.model_validate(self.model_dump() | dict(update or {}))

    @functools.cached_property
    def private(self) -> bool:
        """False only where nothing carries noise (epsilon = inf): then no slope is clipped and nothing rounded."""
        return any(release.std > 0.0 for release in self.releases)

    @functools.cached_property
    def records(self) -> int:
        """N, a public constant: the sum of the parties' declared row counts."""
        if self.split == "columns":
            return self.parties[0][1]
        return sum(count for _, count in self.parties)

    @functools.cached_property
    def dimension(self) -> int:
        """Columns of a prepared row."""
        return self.preparation.dimension

    @property
    def holder_name(self) -> str:
        """By columns: the party that holds the labels."""
        return self.parties[self.holder][0]

    @functools.cached_property
    def number_of(self) -> dict[str, float]:
        """The algorithm's own public numbers by name."""
        return dict(self.numbers)

    @functools.cached_property
    def vector_of(self) -> dict[str, tuple[float, ...]]:
        """The algorithm's own public vectors by name."""
        return dict(self.vectors)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.digest == other.digest

    def __getitem__(self, name: str) -> float:
        return self.number_of[name]

    @functools.cached_property
    def preparation(self) -> Preparation:
        """How raw rows become a block."""
        return Preparation(
            self.bounds,
            self.features,
            self.fit_intercept,
            self.records,
            self.classes,
            self.private,
            self.layout,
            self.unit,
        )

    @functools.cached_property
    def unit(self) -> float:
        """The largest absolute entry that the bounds allow in any column; 1 where nothing is declared."""
        if self.private:
            self.bounds.require(self.features, labels=False)
        largest = float(self.bounds.columns(self.features).max())
        return largest if math.isfinite(largest) else 1.0

    def part(self, party: str) -> Part:
        """What one party holds of every row: everything, but by columns.

        There the constant column is with the holder of the labels. In the layout "rows" each party has one of its own.
        """
        if self.split != "columns":
            return Part(0, self.features, self.fit_intercept, self.preparation)
        place = [name for name, _ in self.parties].index(party)
        start = sum(self.columns[:place])
        stop = start + self.columns[place]
        constant = self.fit_intercept and (place == self.holder or self.layout == "rows")
        labelled = self.labels != "held" or place == self.holder
        norm = self.norms[place] if self.norms else None
        recipe = dataclasses.replace(
            self.preparation,
            bounds=self.bounds.part(start, stop, norm),
            features=stop - start,
            fit_intercept=constant,
            labelled=labelled,
            centred=self.fit_intercept,
        )
        return Part(start, stop, constant, recipe)

    def unprepare(self, weights: Array) -> tuple[Array, float]:
        """(coef, intercept) in the units of the raw features and labels."""
        return self.preparation.unprepare(weights)

    @functools.cached_property
    def scaled_loss(self) -> Loss:
        """The loss on labels scaled to [-1, 1]; parameters of a regression loss are in the label's units."""
        loss = losses.get(self.loss.name, **self.loss.parameters)
        if loss.kind == "classification":
            return loss
        half = self.bounds.label_scale(fit_intercept=self.fit_intercept)[1]
        return losses.get(loss.name, **{name: value / half for name, value in loss.parameters().items()})

    @functools.cached_property
    def scaled_regulariser(self) -> ScaledRegulariser:
        """The regulariser on the weights of prepared rows."""
        inner = penalties.get(self.regulariser.name, **self.regulariser.parameters)
        half = self.bounds.label_scale(fit_intercept=self.fit_intercept)[1]
        return ScaledRegulariser(inner, self.features, self.preparation.scale * half, 1.0 / half**2)

    def release(self, query: str) -> Release:
        """The release of that name."""
        for release in self.releases:
            if release.query == query:
                return release
        raise RefusedError(f"query {query!r} is not in the plan.")

    def to_json(self) -> str:
        """Canonical text: the same plan gives the same text everywhere."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a canonical text."""
        return cls.model_validate(json.loads(text))

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical text: the plan's identity on the wire and in ledgers."""
        return hashlib.sha256(self.to_json().encode()).digest()


@dataclass(frozen=True)
class Part:
    """The columns start, ..., stop - 1 of the rows and, with `constant`, the constant column of the intercept."""

    start: int
    stop: int
    constant: bool
    preparation: Preparation

    def place(self, local: int, features: int) -> int:
        """The place among all coefficients of a column of this part; the intercept comes last."""
        return self.start + local if local < self.stop - self.start else features

    def local(self, place: int, features: int) -> int | None:
        """The inverse; None for a column of another party."""
        if self.start <= place < self.stop:
            return place - self.start
        return self.stop - self.start if place == features and self.constant else None


class ScaledRegulariser:
    """objective * pen(scale * w[:features]): the user's regulariser seen from prepared rows; the intercept is free."""

    def __init__(self, inner: Regulariser, features: int, scale: float | Array, objective: float) -> None:
        self.inner = inner
        self.features = features
        self.scale = scale
        self.objective = objective

    @property
    def is_none(self) -> bool:
        """Whether the prox is the identity."""
        return self.inner.name == "none"

    @property
    def ridge(self) -> float | None:
        """The weight a of a regulariser a/2 |w[:features]|^2, else None."""
        if self.inner.name == "l2" and np.ndim(self.scale) == 0:
            return float(self.inner.parameters()["alpha"] * self.objective * self.scale**2)
        return None

    def value(self, weights: Array) -> float:
        """In the units of the scaled objective."""
        return self.objective * self.inner.value(weights[: self.features] * self.scale)

    def prox(self, weights: Array, step: float) -> Array:
        """argmin_u 1/2 |u - w|^2 + step * value(u)."""
        if self.is_none:
            return weights
        moved = np.array(weights)
        moved[: self.features] = (
            self.inner.prox(weights[: self.features] * self.scale, step * self.objective * self.scale**2) / self.scale
        )
        return moved

    def by_coordinate(self, dimension: int) -> tuple[Array, Array, Array, Array]:
        """(b, c, low, high): coordinate j has the penalty b_j |w| + c_j w^2 / 2 on [low_j, high_j]."""
        terms = self.inner.by_coordinate() if isinstance(self.inner, Penalty) else None
        if terms is None:
            raise InputError(f"penalty={self.inner.name!r} is not a sum over the coordinates; choose l1, l2 or a box.")
        free = (0.0, 0.0, -math.inf, math.inf)
        vectors = tuple(np.full(dimension, value) for value in free)
        factors = (self.objective * self.scale, self.objective * self.scale**2, 1 / self.scale, 1 / self.scale)
        for vector, term, factor in zip(vectors, terms, factors, strict=True):
            vector[: self.features] = term * factor
        return vectors  # type: ignore[return-value]
