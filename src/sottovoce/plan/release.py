"""A release of a plan: what may leave a party under one query name, how often, and with how much noise.

And what all values of a plan are: made once, checked then, and never changed.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sottovoce.errors import LeakError, RefusedError
from sottovoce.privacy.events import RELATIONS, Event, Gaussian, PoissonGaussian, Relation, Selection, Unbounded, either

HIDDEN = 2.0**-8  # the largest share of the noise that dropped bits may carry
ROUNDING = 2.0**-10  # rounding to the grid may add this share to a sensitivity
MOST_DROPPED = 31
MOST_BATCHES = 64  # values a party draws, and keeps in memory, for one message
Mechanism = Literal["gaussian", "selection", "noisy-max", "kept", "derived"]
Count = Annotated[int, Field(ge=1, lt=2**31)]  # a frame's round has 31 bits


class Frozen(BaseModel):
    """What plans are made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def fields(self) -> dict[str, Any]:
        """The fields by name, without what was computed from them."""
        names = type(self).model_fields
        return dict(zip(names, map(self.__dict__.__getitem__, names), strict=True))

    def changed(self, **fields: Any) -> Self:
        """A copy with other fields, checked like any other."""
        return type(self)(**(self.fields() | fields))


class Bounded(Protocol):
    """What has a sensitivity: a query, or those of several parties together."""

    @property
    def name(self) -> str:
        """The name on the wire and in the plan."""

    @property
    def rounding_entries(self) -> float:
        """What rounding to a grid can add, squared, in steps of the grid."""

    def sensitivity(self, relation: Relation) -> float:
        """How far apart the values on two neighbours are at most."""


class Release(Frozen):
    """What a party may release under one query name: when, how often, and with how much noise.

    `std` is the standard deviation on an entry of weight 1, `step` the grid. With `rate` the records were drawn
    by secret coins. A selection names the candidate of the largest score + std * Gumbel: it costs what a Gaussian of
    that std costs, in zCDP. A noisy maximum names that of the largest score + Laplace noise of scale std, and costs as
    much as a selection with half the std. `std=0` is a release without privacy. With `batches` > 1 every release is
    that many values in turn, each with noise and coins of its own, and costs as many.

    `dropped` low bits of the noisy whole numbers do not leave: where all of a number's 32 first bits say more than its
    noise lets anybody learn, the rest is not worth its bytes.

    What is "kept" is the party's rows with noise: they stay with it, one set for the plan, and cost what a Gaussian of
    that std costs. What is "derived" is a function of these rows and of public numbers; it costs nothing more.
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
    dropped: int = Field(default=0, ge=0, le=MOST_DROPPED)

    @property
    def gaussian(self) -> bool:
        """Whether it is a sum over all records with Gaussian noise."""
        return self.mechanism == "gaussian" and self.rate is None and self.batches == 1 and self.std > 0.0

    @model_validator(mode="after")
    def _bits_of_noisy_numbers(self) -> Self:
        if self.dropped and (self.mechanism != "gaussian" or self.std == 0.0):
            raise ValueError(f"dropped={self.dropped}: only numbers with Gaussian noise have bits to drop")
        return self

    @classmethod
    def of(  # noqa: PLR0913
        cls,
        query: Bounded,
        first: int,
        count: int,
        std: float,
        step: float | None = None,
        rate: float | None = None,
        mechanism: Mechanism = "gaussian",
        batches: int = 1,
    ) -> Release:
        """The release of `query` with `std` on the grid `step`, else a usual one; its own sensitivity is charged."""
        step = grid_step(query, std) if step is None else step
        extra = step * math.sqrt(query.rounding_entries)
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
    def at_mu(  # noqa: PLR0913
        cls, query: Bounded, first: int, count: int, mu: float, relation: Relation, mechanism: Mechanism = "gaussian"
    ) -> Release:
        """Releases that together cost `mu` (a selection, a noisy maximum: rho = mu^2 / 2); mu=inf is no noise."""
        if math.isinf(mu):
            return cls.of(query, first, count, 0.0, 1.0, mechanism=mechanism)
        times = 2.0 if mechanism == "noisy-max" else 1.0
        std = query.sensitivity(relation) * math.sqrt(count) / mu * times
        step = grid_step(query, std)
        charged = query.sensitivity(relation) + step * math.sqrt(query.rounding_entries)
        return cls.of(query, first, count, charged * math.sqrt(count) / mu * times, step, mechanism=mechanism)

    @classmethod
    def derived(cls, query: str, first: int, count: int) -> Release:
        """Functions of noisy rows and of public numbers: no noise of their own, no cost."""
        free: Any = {"std": 0.0, "step": 1.0, "charged_zero_out": 0.0, "charged_replace_one": 0.0}
        return cls(query=query, first=first, count=count, mechanism="derived", **free)

    def times(self, count: int) -> Release:
        return Release.model_validate(self.model_dump() | {"count": count})

    @property
    def total(self) -> int:
        """How many values leave under this name in all."""
        return self.count * self.batches

    @property
    def scale(self) -> float:
        """What one unit of a released integer stands for: a step of the grid, or one place in a list of candidates."""
        return self.step * 2.0**self.dropped if self.mechanism in ("gaussian", "kept") else 1.0

    def charged(self, relation: Relation) -> float:
        """Sensitivity under the relation, grid included."""
        return either(relation, zero_out=self.charged_zero_out, replace_one=self.charged_replace_one)

    def reach(self, records: int) -> float:
        """What no released whole number is larger than.

        The value of null rows alone is 0 and one record moves it by what was charged; noise of 64 standard deviations
        does not happen.
        """
        return (records * self.charged_zero_out + 64 * self.std) / self.step / 2.0**self.dropped

    def narrowed(self, records: int) -> Release:
        """The same, with as many bits dropped as make the whole numbers fit in 32, if noise hides what they say."""
        bits = max(0, math.ceil(math.log2(self.reach(records))) - 31)
        hidden = bits <= MOST_DROPPED and self.step * 2.0**bits <= self.std * HIDDEN
        return Release.model_validate(self.model_dump() | {"dropped": bits}) if bits and hidden else self

    def check(self, query: Bounded, records: int) -> None:
        """Refuse a query that moves further than was charged, and a grid on which sums would not be exact integers."""
        if math.frexp(self.step)[0] != 0.5 or not self.reach(records) * 2.0**self.dropped < 2.0**62:
            raise RefusedError(
                f"query {query.name!r}: the grid {self.step!r} is no power of two within range of its noise."
            )
        extra = self.step * math.sqrt(query.rounding_entries)
        for relation in RELATIONS:
            if not query.sensitivity(relation) + extra <= self.charged(relation) * (1 + 1e-12):
                raise LeakError(
                    f"query {query.name!r} is more sensitive than the plan charged for; nothing was released."
                )

    def event(self, relation: Relation, *, count: int | None = None, noises: float = 1.0) -> Event:
        """The cost of `count` of these releases; `noises` is the variance of the sum that is seen, in that of one."""
        times = self.total if count is None else count * self.batches
        if self.mechanism == "derived":
            return Gaussian(mu=0.0)
        if self.mechanism == "selection" and self.std > 0.0:
            return Selection(rho=times * (self.charged(relation) / self.std) ** 2 / 2)
        if self.mechanism == "noisy-max" and self.std > 0.0:
            return Selection(rho=times * (2 * self.charged(relation) / self.std) ** 2 / 2)
        std = self.std * math.sqrt(noises)
        if std == 0.0:
            return Unbounded(reason=f"{self.query} is released without noise")
        if self.rate is not None and self.rate < 1.0:
            # its accounting knows both relations: replace-one is two such terms
            return PoissonGaussian(rate=self.rate, noise_multiplier=std / self.charged_zero_out, rounds=times)
        return Gaussian(mu=self.charged(relation) * math.sqrt(times) / std)


def grid_step(query: Bounded, std: float) -> float:
    """The largest power of two that adds at most ROUNDING to the sensitivity, within the sampler's range."""
    fine = ROUNDING * query.sensitivity("zero-out") / math.sqrt(query.rounding_entries or 1.0)
    return float(2.0 ** math.floor(math.log2(max(fine, std * 2.0**-24))))
