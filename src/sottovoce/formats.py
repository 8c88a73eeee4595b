"""The formats of what is written and sent, each with its number, which changes whenever the format does.

docs/operations.md says what becomes of older ones. `tests/recorded_shapes.py` records what a format of each number
looks like; a test compares that with what is written now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Numbered(NamedTuple):
    """A format: what has it, its number now, and what to do about another one."""

    what: str
    number: int
    remedy: str

    def read(self, number: object) -> bool:
        """Whether this version reads that number."""
        return type(number) is int and number == self.number

    def refusal(self, where: str, number: object) -> str:
        """What is said of another number."""
        found = "no format number" if number is None else f"format {number!r:.20}"
        reads = f"this version of sottovoce reads {self.what} of format {self.number}"
        return f"{where} has {found}, and {reads}. {self.remedy}"


_SAME: Final = "Install the same version of sottovoce at both ends."
FRAME: Final = Numbered("frames", 5, _SAME)
PLAN: Final = Numbered("plans", 9, _SAME)
LEDGER: Final = Numbered("ledgers", 4, "Use the version of sottovoce that wrote it.")
JOURNAL: Final = Numbered("states of runs", 11, "Let the version of sottovoce that began the run end it.")
MODEL: Final = Numbered("models", 11, "Use the version of sottovoce that wrote it, or fit the model again.")
PARTIAL_MODEL: Final = Numbered("partial models", 8, "Use the version of sottovoce that wrote it, or train again.")
SCHEMA: Final = Numbered("schemas", 4, "Draft it anew with `sottovoce schema`.")
ALIGNMENT: Final = Numbered("alignments", 1, "Delete it, start the party, and align again (`sottovoce align`).")

# What files call the estimators.
ESTIMATORS: Final[Mapping[str, str]] = {
    "logistic": "PrivateLogisticRegression",
    "ridge": "PrivateRidge",
    "lasso": "PrivateLasso",
    "elastic-net": "PrivateElasticNet",
    "svm": "PrivateLinearSVC",
    "ordinal": "PrivateOrdinalClassifier",
    "poisson": "PrivatePoissonRegressor",
    "gamma": "PrivateGammaRegressor",
    "cox": "PrivateCoxRegressor",
}
