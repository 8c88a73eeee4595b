"""The problem: what is asked for, public throughout. The model, the split, the bounds and the budget."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sottovoce import losses, penalties
from sottovoce.data.block import Layout, Preparation
from sottovoce.data.bounds import SMALLEST, Bounds
from sottovoce.data.cells import is_class
from sottovoce.data.people import MOST as MOST_RECORDS
from sottovoce.data.people import ROOT_BITS
from sottovoce.data.preparation import MOST_CLASSES
from sottovoce.losses import Loss, OneVsRest
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.plan.release import Count, Frozen
from sottovoce.plan.split import Channel, RowPart, SecureAggregation, SecureSums, Split
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import SMALLEST_DELTA, Relation, distance, inside

Array = NDArray[np.float64]
Label = bool | int | float | str
Calibration = Literal["tight", "paper"]
Labels = Literal["public", "shared", "held"]
BELOW = 1.0 - 2.0**-39  # of a part's norm: so the squares of all parts are no more than that of the row
ClassWeight = Annotated[float, Field(ge=SMALLEST, le=1.0, allow_inf_nan=False)]


class Named(Frozen):
    """A loss or a regulariser by name and parameters."""

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, json.dumps(self.parameters, sort_keys=True)))


class Problem(Frozen):
    """min (1/N) sum_i loss(x_i'w, y_i) + regulariser(w), over rows that some parties hold, within a budget.

    `layout` is how the rows are prepared for the algorithm that solves it. From the fields follow `names` of the
    parties, `records`, N, a public constant, `dimension`, the `channel` by which the parties' answers come together,
    `secure_columns`, whether sums over the columns of all parties are opened, and nothing else, `root_bits`, of the
    roots of records' weights where people have several, and `private`, False where nothing is protected: then no slope
    is clipped and nothing rounded.
    """

    names: ClassVar[tuple[str, ...]]
    records: ClassVar[int]
    dimension: ClassVar[int]
    channel: ClassVar[Channel]
    secure_columns: ClassVar[bool]
    root_bits: ClassVar[int]
    private: ClassVar[bool]
    _parts: ClassVar[dict[str, RowPart]]

    loss: Named
    regulariser: Named
    split: Split
    parties: tuple[tuple[str, Count], ...]  # names and their public counts, of rows or of people
    features: Count
    bounds: Bounds
    epsilon: float = Field(gt=0)
    delta: float = Field(ge=SMALLEST_DELTA, lt=1)
    relation: Relation = "zero-out"
    calibration: Calibration = "tight"
    fit_intercept: bool = True
    classes: Annotated[tuple[Label, ...], Field(min_length=2, max_length=MOST_CLASSES)] | None = None
    class_weight: tuple[ClassWeight, ...] = ()  # of each class, the largest 1; empty: all alike
    columns: tuple[Count, ...] = ()  # by columns: how many each party has, in the order of the parties
    norms: tuple[float, ...] = ()  # by columns: the bound of each party's part of a row, where row_norm is declared
    labels: Labels = "shared"  # by columns: who knows the labels
    label_party: int = Field(default=0, ge=0)  # by columns: the party that has them, and the column of the intercept
    layout: Layout = "rows"
    most_records: int | None = Field(default=None, ge=1, le=MOST_RECORDS)  # of a person that count; None: has one
    people: Count | None = None  # over columns: how many the records are of, where a person has several
    aggregation: SecureAggregation | None = (
        None  # how sums over the parties are opened; None: each party says its own, with noise
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Derive what follows from the fields, and check the classes.

        Labels of more than two classes are places of classes: `scaled_loss` has then a score for each; never else. A
        class is a text or a finite number. There is a weight for each class, the largest of them 1, so that a record's
        loss is never more than without weights.
        """
        counts = list(map(itemgetter(1), self.parties))
        self.__dict__["names"] = tuple(map(itemgetter(0), self.parties))
        self.__dict__["channel"] = Channel(self) if self.aggregation is None else SecureSums(self, self.aggregation)
        self.__dict__.update(
            records=sum(counts[:1] if self.split.same_people else counts),
            dimension=self.features + self.fit_intercept,
            secure_columns=self.channel.products,
            root_bits=0 if self.most_records is None else ROOT_BITS,
            _parts={},
        )
        self.__dict__.setdefault("private", math.isfinite(self.epsilon))  # a plan knows better
        each = 1 if self.split.same_people else self.most_records or 1
        if self.most_records is not None and self.records * each >= 2**31:
            raise ValueError(f"{self.records} people with {self.most_records} records each are too many")
        counted = self.split.same_people and self.most_records is not None
        if self.people is not None and not (counted and self.people <= self.records):
            raise ValueError(
                f"people={self.people} needs several records a person over columns; {self.records} at most"
            )
        if self.most_records is not None and {self.bounds.weight_bound, self.bounds.exposure_bound} != {None}:
            raise ValueError("people with several records are counted without weights and exposures")
        classes, joint = self.classes or (), self.loss.name in losses.SEVERAL
        if not all(map(is_class, classes)):
            raise ValueError(f"classes={self.classes!r} has one that is neither a text nor a finite number")
        several, weights = len(classes) > 2, self.class_weight
        fits = not joint or (several and self.loss.parameters.get("classes") == len(classes))
        if fits and self.loss.name in losses.names("classification"):  # also one that a holder registered
            fits = self.scaled_loss.outputs == (len(classes) if several else 1)
        named = losses.get(self.loss.name, **self.loss.parameters) if fits and (several or weights) else None
        numeric = named is not None and named.kind != "classification"
        if not fits or (several and numeric):
            raise ValueError(f"the loss {self.loss.name!r} does not fit classes={self.classes!r}")
        if weights and numeric:
            raise ValueError(f"class_weight={weights!r} is for classes, and the loss {self.loss.name!r} for numbers")
        bounds, of_mean = self.bounds, (*losses.names("count"), *losses.names("time"))
        if self.loss.name in of_mean or bounds.exposure_bound is not None or bounds.weight_bound is not None:
            self._check_beside()
        if weights and (len(weights) != len(classes) or max(weights) != 1.0):
            raise ValueError(f"class_weight={weights!r} must have a number for each class, the largest of them 1")
        return self

    def _check_beside(self) -> None:
        """Exposures and the ceiling of weights are of labels that take them; counts are none below 0."""
        known = losses.known(self.loss.name) if self.layout != "raw" else None
        counts = known is not None and known.kind in ("count", "time")
        if self.bounds.exposure_bound is not None and not (known is not None and known.exposed):
            raise ValueError(f"exposure_bound={self.bounds.exposure_bound!r} is for counts, not {self.loss.name!r}")
        if counts and (self.bounds.label_low or 0.0) < 0.0:
            raise ValueError(
                f"label_bound begins at {self.bounds.label_low!r}, and {self.loss.name!r} has no label below 0"
            )
        held = known is not None and known.kind == "count" and self.bounds.exposure_bound is None
        if counts and (self.classes or (self.split.same_people and not held)):
            raise ValueError(
                f"the loss {self.loss.name!r} is of counts or times; over columns it has no exposures and no times"
            )
        if self.bounds.weight_bound is not None and self.split.same_people:
            raise ValueError("weight_bound is for rows in one place or by rows")

    @functools.cached_property
    def mu(self) -> float:
        """The Gaussian budget of (epsilon, delta), less the samplers' share of delta."""
        return mu_for(self.epsilon, inside(self.delta)) * math.sqrt(1.0 - self.channel.reserve)

    @functools.cached_property
    def signal(self) -> float:
        """N mu, less by what replace-one, and parties by rows that each add noise, cost: how far a mean is known."""
        return (self.people or self.records) * self.mu / (distance(self.relation) * math.sqrt(self.channel.variance))

    @property
    def label_party_name(self) -> str:
        """By columns: the party that has the labels."""
        return self.parties[self.label_party][0]

    @property
    def held_labels(self) -> bool:
        """Whether one of several parties alone knows the labels."""
        return self.labels == "held" and len(self.parties) > 1

    @functools.cached_property
    def preparation(self) -> Preparation:
        """How raw rows become a block. Its unit is the largest absolute entry that the bounds allow in any column."""
        if self.private and self.layout != "raw":
            self.bounds.require(self.features, labels=False)
        largest = float(self.bounds.columns(self.features).max())
        loss = losses.get(self.loss.name, **self.loss.parameters)
        people = None if self.split.same_people else self.most_records  # over columns records have their places
        return Preparation(
            self.bounds,
            self.features,
            self.fit_intercept,
            self.records * (people or 1),
            self.classes,
            self.private,
            self.layout,
            unit=largest if math.isfinite(largest) else 1.0,  # 1 where nothing is declared
            units=self.private or math.isfinite(self.epsilon),
            most_bits=self.channel.bits,
            most_records=people,
            counts=loss.kind in ("count", "time"),
            exposed=loss.exposed,
            until=loss.periods[-1] if isinstance(loss, losses.Hazard) else None,
        )

    def part(self, party: str) -> RowPart:
        """What one party holds of every row: everything, but by columns.

        There the constant column is with the party that has the labels. In the layout "rows" each party has one.
        """
        if party in self._parts:
            return self._parts[party]
        if not self.split.same_people:
            return self._parts.setdefault(party, RowPart(0, self.features, self.fit_intercept, self.preparation))
        number = self.names.index(party)
        start = sum(self.columns[:number])
        stop = start + self.columns[number]
        secure, holds, rows = self.channel.secure, number == self.label_party, self.layout == "rows"
        constant = self.fit_intercept and (holds or (rows and not secure))
        norm = self.norms[number] * (BELOW if secure else 1.0) if self.norms else None
        preparation = dataclasses.replace(
            self.preparation,
            bounds=self.bounds.part(start, stop, norm),
            features=stop - start,
            fit_intercept=constant,
            labelled=self.labels != "held" or holds,
            counted=self.most_records if holds else None,
            also=() if self.most_records is None else ("person",),
            centred=self.fit_intercept,
            whole=float(self.preparation.scale) if secure and rows else None,
        )
        return self._parts.setdefault(party, RowPart(start, stop, constant, preparation))

    def row_shares(self) -> Array:
        """By columns: what each party's part may have of the square of a row's bound, the constant with it."""
        constant, row_norm = self.preparation.intercept_entry**2, self.bounds.row_norm
        squares = [norm**2 for norm in self.norms] or [
            float(np.sum(self.bounds.columns(self.features)[part.start : part.stop] ** 2))
            for part in map(self.part, self.names)
        ]
        whole = math.fsum(squares) if row_norm is None or not self.norms else row_norm**2
        shares = (1 - constant) * np.array(squares) / whole
        shares[self.label_party] += constant
        return np.asarray(shares)

    @functools.cached_property
    def row_square(self) -> float:
        """Q: by secure columns what bounds the square of a whole row, 1 or more where the parts' norms overlap."""
        return max(1.0, float(self.row_shares().sum())) if self.secure_columns and self.norms else 1.0

    def counting(self, records: float) -> Self:
        """The same where means are over so many records: what they count adds up to that. For a coordinator's text."""
        found = copy.copy(self)
        found.__dict__["records"] = records
        return found

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A changed problem is a new one: what follows from its fields is derived again."""
        return self.changed(**dict(update or {}))

    def unprepare(self, weights: Array) -> tuple[Array, Any]:
        """(coef, intercept) in the units of the raw features and labels; of several classes a row for each."""
        if weights.ndim == 1:
            return self.preparation.unprepare(weights)
        coefs, intercepts = zip(*map(self.preparation.unprepare, weights), strict=True)
        return np.array(coefs), np.array(intercepts)

    @functools.cached_property
    def scaled_loss(self) -> Loss:
        """The loss on prepared labels, by class weights; parameters of a regression loss are in the label's units.

        Of more than two classes a loss of two tells each class from the rest.
        """
        loss = losses.get(self.loss.name, **self.loss.parameters)
        if loss.kind == "regression":
            half = self.preparation.label_scale[1]
            return losses.get(loss.name, **{name: value / half for name, value in loss.parameters().items()})
        if loss.outputs == 1 and len(self.classes or ()) > 2:
            loss = OneVsRest(loss, len(self.classes or ()))
        return losses.weighted(loss, self.class_weight) if self.class_weight else loss

    @functools.cached_property
    def scaled_regulariser(self) -> ScaledRegulariser:
        """The regulariser on the weights of prepared rows."""
        inner = penalties.get_penalty(self.regulariser.name, **self.regulariser.parameters)
        half = self.preparation.label_scale[1]
        return ScaledRegulariser(inner, self.features, self.preparation.scale * half, 1.0 / half**2)

    def part_regulariser(self, party: str) -> ScaledRegulariser:
        """The regulariser on the weights of one part: a ball or a box bounds each part; the constant column is free."""
        whole, part = self.scaled_regulariser, self.part(party)
        return ScaledRegulariser(whole.inner, part.stop - part.start, whole.scale, whole.objective)
