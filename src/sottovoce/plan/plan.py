"""The plan: everything public about a run, fixed before any data is touched.

From one plan come the sampling, the noise and the privacy events, so the three cannot disagree.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Mapping
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, SerializeAsAny, model_validator

from sottovoce.data.bounds import party_norms
from sottovoce.errors import RefusedError
from sottovoce.formats import PLAN
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Count, Frozen, Release
from sottovoce.plan.split import COORDINATOR, SecureSums
from sottovoce.privacy.guarantee import Unit

ModelsOf = Literal["shared", "kept"]

# The module with the forms of a solver. It is imported when a fit or a plan names the solver, and not before.
FAMILIES: dict[str, str] = {
    name: f"sottovoce.algorithms.{folder}"
    for name, folder in {
        "newton": "newton",
        "gradient": "gradient",
        "sgd": "sgd",
        "whitened": "whitened",
        "scd": "scd",
        "scd-primal": "scd",
        "scd-sequential": "scd",
        "cd": "cd",
        "greedy-cd": "cd",
        "frank-wolfe": "frank_wolfe",
        "one-shot": "one_shot",
        "admm": "sharing",
        "fdml": "sharing",
        "score": "score",
    }.items()
}

# Runs that fit nothing. No `solver=` names them; a plan does, as it names a solver.
OTHERS: dict[str, str] = {
    "evaluation": "sottovoce.algorithms.evaluation",
    "ranges": "sottovoce.algorithms.ranges",
    "description": "sottovoce.algorithms.description",
    "model-selection": "sottovoce.algorithms.model_selection",
    "standard-errors": "sottovoce.algorithms.standard_errors",
}


def family(solver: str) -> ModuleType | None:
    """The module, or None for a name that a plan may not have."""
    module = FAMILIES.get(solver, OTHERS.get(solver))
    return None if module is None else importlib.import_module(module)


def _one_line(text: str) -> str:
    """A text of others is printed in terminals and pages: no control characters, no invisible ones."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("it must be one line of printable characters, without spaces around it")
    return text


Line = Annotated[str, AfterValidator(_one_line), Field(strict=True, max_length=300)]


class About(Frozen):
    """Who runs a plan on which data and what for, each in at most 300 characters; the plan and all ledgers show it.

    Nobody checks these texts; whom a charge is for is decided by the account that a holder lets pay.
    """

    dataset: Line = Field("", description="the name of the data set, in one line of at most 300 characters")
    purpose: Line = Field("", description="what the model is for, in one line of at most 300 characters")
    analyst: Line = Field("", description="who runs the job, in one line of at most 300 characters")
    note: Line = Field("", description="a remark, in one line of at most 300 characters")
    controller: Line = Field("", description="who answers for the data and processes them, in at most 300 characters")
    sector: Line = Field("", description="what the controller is: Government, Industry or Nonprofit")
    contact: Line = Field("", description="where people in the data may ask, in one line of at most 300 characters")
    basis: Line = Field("", description="the legal basis, in one line of at most 300 characters")
    recipients: Line = Field("", description="who gets the results, in which countries, in at most 300 characters")
    retention: Line = Field("", description="how long data and results are kept, in one line of at most 300 characters")
    region: Line = Field("", description="where the people are, in one line of at most 300 characters")
    reason: Line = Field("", description="why this epsilon, and which were compared, in at most 300 characters")
    withdrawal: Line = Field("", description="what is done when somebody withdraws, in at most 300 characters")

    def texts(self) -> dict[str, str]:
        """The texts that are there, by name."""
        return self.model_dump(exclude_defaults=True)


class Numbers(Frozen):
    """The public numbers that a form of an algorithm chose, each with its type and limits.

    A form names its own class of them (`Algorithm.numbers`), by which the numbers of a plan that is read are checked.
    Edges: numbers of an unknown form are read as they are; no party runs such a plan.
    """

    model_config = ConfigDict(extra="allow")
    result: ClassVar[str] = "model"  # or "evaluation" or "description": a run that fits nothing
    left_out: ClassVar[tuple[str, ...]] = ()  # of a plan's text where they are None: as before there were such numbers
    clips_rows: ClassVar[bool] = False  # True: over secure columns gradients are of whitened rows without their lengths
    names_records: ClassVar[bool] = False  # True: the coordinator's coin names the record of each round

    def __init_subclass__(cls, **options: Any) -> None:
        cls.model_config = ConfigDict(**{**cls.model_config, "extra": "forbid"})
        super().__init_subclass__(**options)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


if TYPE_CHECKING:
    FormNumbers = Any  # a plan's numbers are those of its form, which its own text knows
else:
    FormNumbers = SerializeAsAny[Numbers]


class Design(Frozen):
    """What an algorithm chose for a problem, from public quantities alone."""

    rounds: Count
    releases: tuple[Release, ...]
    numbers: FormNumbers = Numbers()
    claimed_epsilon: float | None = None  # what a paper would print
    protects: Unit = "record"  # "feature": one column of one party, and no person; "person": all records of one
    models: ModelsOf = "shared"  # by columns: "kept" if each party alone has the weights of its columns


class Whole(Frozen):
    """A fit of several plans: its name, and the mu that all of them together have at most."""

    name: str = Field(min_length=16, max_length=64, pattern="^[0-9a-f]+$")
    mu: float = Field(gt=0, le=1e100, allow_inf_nan=False)


class Plan(Problem, Design):
    """A run, before it happens: a problem and its design. Public, hashable, serialisable.

    `by_query` has its releases by name. It is not `private` where nothing carries noise.
    """

    by_query: ClassVar[Mapping[str, Release]]
    format: int = PLAN.number
    run: str  # unique, so that a second fit is a second charge
    coin: str  # public randomness, for schedules that everybody derives alike
    algorithm: str
    form: str
    about: About = About()  # who runs it on which data and what for
    within: Whole | None = None  # the fit that it is a part of, where a fit has several plans
    keys: tuple[tuple[str, str], ...] = ()  # of secure sums: the public key of each party and of a dealer, for this run

    @model_validator(mode="before")
    @classmethod
    def _read_numbers(cls, fields: Any) -> Any:
        """Numbers that come as plain text, or not at all, are read by the form that the plan names."""
        if isinstance(fields, Mapping):
            number = fields.get("format", PLAN.number)
            if type(number) is not int or number != PLAN.number:
                raise RefusedError(PLAN.refusal("the plan", number))
        if not isinstance(fields, Mapping) or not isinstance(numbers := fields.get("numbers", {}), Mapping):
            return fields
        algorithm, form = fields.get("algorithm"), fields.get("form")
        if not {type(algorithm), type(form)} <= {str, type(None)}:  # what would be read as a text is none yet
            raise ValueError("a plan names its algorithm and its form by texts")
        kind: type[Numbers] = Numbers
        for one in getattr(family(str(algorithm)), "FORMS", ()):
            if (one.name, one.form) == (str(algorithm), str(form)):
                kind = one.numbers
                break
        return {**fields, "numbers": kind.model_validate(dict(numbers))}

    @model_validator(mode="after")
    def _check(self) -> Plan:
        """Names are unique: what is charged under a name is all that is released under it."""
        queries = list(map(attrgetter("query"), self.releases))
        self.__dict__.update(
            by_query=dict(zip(queries, self.releases, strict=True)), private=any(map(attrgetter("std"), self.releases))
        )
        for what, names in (("party", self.names), ("release", queries)):
            if len(set(names)) < len(names):
                raise RefusedError(f"the plan names a {what} twice; every {what} of a plan has its own name.")
        if COORDINATOR in self.names:
            raise RefusedError(
                f"the plan has a party of the name {COORDINATOR!r}, which is no party's; choose another."
            )
        if not self.parties:
            raise RefusedError("the plan has no party; it needs at least one.")
        if len(self.parties) > 1 and max(map(attrgetter("batches"), self.releases), default=1) > 1:
            raise RefusedError(
                "the plan has several parties and batches in one message: each party would follow its own values, "
                "and the model would hold more than their sums."
            )
        if (self.protects == "person") != (self.most_records is not None):
            raise RefusedError("the plan protects people if and only if it says how many records of a person count.")
        if self.most_records is not None and self.split.same_people and not self.secure_columns:
            raise RefusedError("over columns people with several records count by secure products alone.")
        rows = [release for release in self.releases if release.mechanism == "kept"]
        fine = all(r.total == 1 and r.rate is None and (r.std == 0 or 8 <= r.std / r.step <= 2**25) for r in rows)
        if len(rows) > 1 or not fine:
            raise RefusedError("a plan keeps rows once, all of them, with noise of 8 to 2^25 steps of their grid.")
        if isinstance(self.channel, SecureSums):
            self.channel.check(self)
        elif self.keys:
            raise RefusedError("the plan has keys of secure sums, and secures none.")
        if self.split.same_people:
            self._check_columns()
        return self

    def _check_columns(self) -> None:
        """All parties have all people, each some of the columns; the norms' squares sum to row_norm^2, or overlap."""
        if len(self.columns) != len(self.parties) or sum(self.columns) != self.features:
            raise RefusedError("the plan does not say how many of the columns each party has.")
        if len(set(dict(self.parties).values())) != 1 or self.label_party >= len(self.parties):
            raise RefusedError("by columns every party has the same people, and one of them holds the labels.")
        if (self.bounds.row_norm is None) != (not self.norms):
            raise RefusedError("by columns a row norm is shared among the parties, and only a declared one is.")
        if self.bounds.row_norm is not None:
            overlap = self.secure_columns or self.numbers.result == "evaluation"  # which reads scores, and no rows
            party_norms(self.bounds.row_norm, self.columns, self.norms, overlap=overlap)

    def changed_problem(self, **fields: Any) -> Problem:
        """The problem of the plan with other fields."""
        return Problem(**{name: getattr(self, name) for name in Problem.model_fields} | fields)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Plan:  # noqa: ARG002
        """A changed plan is a new plan: checked, and with a digest of its own."""
        return Plan.model_validate(self.model_dump() | dict(update or {}))

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.digest == other.digest

    def has(self, query: str) -> bool:
        """Whether something is released under that name."""
        return query in self.by_query

    def noise_of(self, query: str) -> float:
        """The standard deviation of a release, 0 where the plan has none of that name."""
        return self.release(query).std if self.has(query) else 0.0

    def public_coin(self, purpose: str) -> np.random.Generator:
        """Public randomness that everybody derives from the plan alone."""
        return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{purpose}:{self.coin}".encode()).digest(), "big"))

    def release(self, query: str) -> Release:
        release = self.by_query.get(query)
        if release is None:
            raise RefusedError(f"query {query!r} is not in the plan.")
        return release

    def to_json(self) -> str:
        """Canonical text: the same plan gives the same text everywhere."""
        fields = self.model_dump(mode="json", exclude={"about"})
        for optional in ("class_weight", "within", "aggregation", "keys", "most_records", "people"):
            if not fields[optional]:
                del fields[optional]
        for optional in self.numbers.left_out:
            if fields["numbers"][optional] is None:
                del fields["numbers"][optional]
        if about := self.about.texts():
            fields["about"] = about
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls.model_validate(json.loads(text))

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical text: the plan's identity on the wire and in ledgers."""
        return hashlib.sha256(self.to_json().encode()).digest()
