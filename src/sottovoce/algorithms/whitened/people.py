"""`whitened` for people with several records: what a person adds is cut as a whole, whatever its number of records."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, ClassVar

from sottovoce.algorithms import NEWTON_FEATURES
from sottovoce.algorithms.base import Coordination, NoNumbers
from sottovoce.algorithms.whitened.classes import PrivateClasses
from sottovoce.algorithms.whitened.private import PrivateWhitened, mean_of
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Query
from sottovoce.queries import sums

if TYPE_CHECKING:
    from sottovoce.algorithms.whitened.rule import Clips
    from sottovoce.plan import Design, Numbers, Plan, Problem
    from sottovoce.solvers import Whitened

SIGNAL = 200.0  # for each record that the trace of a person's products may have, as far as the most that count


def largest_trace(problem: Problem) -> float:
    """K of the Gram matrix, a power of two: 1 where noise rules, and where it does not, so much that nothing is cut.

    A sum of products grows as the number of records, a gradient at the solution as its root or less: a matrix that is
    cut as a gradient is would make steps too long at large signal.
    """
    most = problem.most_records or 1
    cut = math.floor(math.log2(min(max(problem.signal / SIGNAL, 1.0), 2.0 * most)))
    return 2.0 ** min(cut, math.ceil(math.log2(most)))


class People(PrivateWhitened):
    """Sums over records become sums over people, each cut as a whole; numbers become means of a person's.

    Sums are divided by N times the mean number of records, which is released first.
    """

    people: ClassVar[bool | None] = True
    numbers: ClassVar[type[Numbers]] = NoNumbers
    takes_weights: ClassVar[bool] = False

    def design(self, problem: Problem, options: Whitened) -> Design:
        if problem.features > NEWTON_FEATURES:
            raise InputError(
                f"most_records={problem.most_records}: people with several records are served up to {NEWTON_FEATURES} "
                f"features, and there are {problem.features}; choose fewer, or keep one record of each person."
            )
        return super().design(problem, options)

    def queries(self, plan: Problem, party: str) -> tuple[Query, ...]:
        """With the number of records second; the products of features stay the first."""
        if plan.features > NEWTON_FEATURES:
            raise RefusedError(f"a plan about people has {NEWTON_FEATURES} features at most, and this {plan.features}.")
        _, *others = super().queries(plan, party)
        products = sums.PersonGram(plan.dimension, largest_trace(plan))
        return products, sums.RecordCount(plan.most_records or 1), *others

    def gradient(self, plan: Problem, shape: sums.ProjectionShape, *, rescales: bool = False) -> Query:
        kind = sums.PersonScaleGradient if rescales else sums.PersonGradient
        return kind(shape, plan.scaled_loss, sums.first_round(plan, kind.name), plan.most_records or 1)

    def coordinate(self, plan: Plan) -> Coordination:
        """The text of records, once their mean number is known."""
        share = yield from mean_of(plan, sums.RecordCount.name)
        known = copy.copy(self)
        known.records = max(share * (plan.most_records or 1), 1.0)
        return (yield from super(People, known).coordinate(plan))

    def noise(self, plan: Plan, query: str, clips: Clips | None = None) -> float:
        """Of a mean over records where terms are sums, of one over people where they are means."""
        noise = super().noise(plan, query, clips)
        if query in ("gradient", "rescale"):
            return noise / self.records
        return noise * largest_trace(plan) / self.records if query == "gram" else noise


class PeopleWhitened(People):
    """Moments, whiten, descend, rescale, over people.

    Guarantee: every release has sensitivity 1 (replace-one: 1, sqrt 2 or 2) in all records of a person together, and
    mu^2 is the sum of their (sensitivity / std)^2; all else is a function of releases and public numbers (`proof.md`).
    """

    form: ClassVar[str] = "people"
    title: ClassVar[str] = "whitened descent over people: moments, gradients of whitened rows, a rescale"
    asks: ClassVar[tuple[type[Query], ...]] = (sums.PersonGram, sums.NumberSum, sums.PersonGradient)


class PeopleClasses(People, PrivateClasses):
    """Moments, class counts, whiten, descend, over people.

    Guarantee: as of two classes (`proof.md`).
    """

    form: ClassVar[str] = "people-classes"
    title: ClassVar[str] = "whitened descent over people for several classes"
    asks: ClassVar[tuple[type[Query], ...]] = (sums.PersonGram, sums.ClassCounts, sums.NumberSum, sums.PersonGradient)
