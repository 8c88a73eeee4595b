"""Parties of secure sums without a wire: a plan with their keys, their gates, and what they would release."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairing import agreed, prints_of
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.federation.run_keys import key_purpose
from sottovoce.gate.outgoing import Share
from sottovoce.gate.query import Round
from sottovoce.gate.secure_gate import SecureGate
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.mechanisms import Randomness, SeededRandomness
from sottovoce.secure.pair_keys import PairKeys, RunKey
from sottovoce.secure.sums import Call, Masker
from support import plan_of, query_of

EACH = 40  # records of a party


def exact(scale: Any, size: int, randomness: object) -> NDArray[np.int64]:
    """No noise, in the place of `wide_gaussian`."""
    return np.zeros(size, dtype=np.int64)


def made(parties: int, *, rounds: int = 3, run: str = "run", **numbers: int) -> tuple[Plan, dict[str, PairKeys]]:
    """A plan of secure gradients of so many parties with these numbers of their secure aggregation, and their keys."""
    names = [f"p{number:02}" for number in range(parties)]
    problem = Problem(
        loss=Named(name="logistic"),
        regulariser=Named(name="none"),
        split="rows",
        parties=tuple((name, EACH) for name in names),
        features=3,
        bounds=Bounds.declare(row_norm=1.0),
        epsilon=1.0,
        delta=1e-5,
        classes=(0, 1),
        fit_intercept=False,
        aggregation=SecureAggregation(**{"colluding": parties - 1} | numbers),
    )
    keys = {name: RunKey() for name in names}
    plan = plan_of(problem, "gradient", run=run, rounds=rounds)
    plan = plan.model_copy(update={"keys": prints_of(keys)})
    return plan, agreed(keys, key_purpose(plan))


def data_of(number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The rows of a party."""
    X = np.random.default_rng(number).standard_normal((EACH, 3))
    return X / np.linalg.norm(X, axis=1, keepdims=True), np.arange(EACH) % 2


class Holder:
    """A party's gate, asked by hand."""

    def __init__(
        self, plan: Plan, name: str, keys: PairKeys, *, account: Any = None, randomness: Randomness | None = None
    ) -> None:
        self.plan, self.name = plan, name
        self.rows = Block.prepare(*data_of(plan.names.index(name)), plan.part(name).preparation)
        self.masker = Masker(plan, name, keys)
        noise = randomness or SeededRandomness(5, name)
        self.gate = SecureGate(plan, noise, account, self.masker)

    def round(self, weights: float, number: int = 0) -> Round:
        return Round(self.plan, number, {"weights": np.full(3, weights)}, self.rows, None)

    def share(self, roster: Any = None, attempt: int = 0, *, number: int = 0, weights: float = 0.0) -> Share:
        call = Call(tuple(self.plan.names if roster is None else roster), attempt, ("weights",))
        return self.gate.share(query_of(self.plan, "gradient"), self.round(weights, number), call)

    def exact(self, weights: float = 0.0, number: int = 0) -> NDArray[np.int64]:
        """What the party would release, less noise."""
        query, release = query_of(self.plan, "gradient"), self.plan.release("gradient")
        return np.rint(query.value(self.round(weights, number)) / release.step).astype(np.int64)


def holders(plan: Plan, keys: dict[str, PairKeys], **arguments: Any) -> dict[str, Holder]:
    return {name: Holder(plan, name, key, **arguments) for name, key in keys.items()}


def words(share: Share) -> NDArray[np.int64]:
    return share.arrays["share"]
