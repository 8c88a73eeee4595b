"""A fit's own releases under attack, at their own noise: how much epsilon the guesses prove, beside what is promised.

Every release is played at the real gate, which adds the noise of the plan and puts it on its grid. What its value is on
either of two data sets is the worst that its query declares: a record that moves it as far as it may. An entry of the
answer is one game, so a hundred thousand games are as many entries. The guess is by the likelihood ratio of all
messages, than which no test is better. So it is the noise, the grid and the accounting that are attacked;
`sottovoce audit JOB` attacks what queries declare.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from sottovoce import algorithms
from sottovoce.arguments import is_whole
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.gate.gate import Gate, value_of
from sottovoce.gate.query import Query, Round
from sottovoce.lab.audit.games import lower_bound, source
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.attack import Attack
from sottovoce.privacy.events import Relation, inside
from sottovoce.queries.pricing import queries_of

Array = NDArray[np.float64]

GAMES = 100_000  # of each side
FEWEST, MOST = 1_000, 10_000_000


class WorstPair(Query):
    """The bounds of a query, and in the place of its value the same number for every game."""

    def __init__(self, query: Query, value: Array) -> None:
        self.name, self.bound, self.rounding_entries = query.name, query.bound, query.rounding_entries
        self.query, self.length, self.worst = query, len(value), value

    def sensitivity(self, relation: Relation) -> float:
        return self.query.sensitivity(relation)

    def value(self, round: Round) -> Array:  # noqa: ARG002
        return self.worst


def audit(model: PrivateLinearModel, *, games: int = GAMES, seed: int | None = None) -> Attack:
    """Attack what a fit released, with its own noise; its report and its page have the result from then on.

    Parameters
    ----------
    model : estimator
        Fitted or loaded, in one place or by rows without secure sums, with Gaussian releases alone.
    games : int
        How many are played on each of the two data sets: 100,000 take about a second.
    seed : int or None
        Reproducible noise, for tests.
    """
    check_is_fitted(model, "plan_")
    if not is_whole(games) or not FEWEST <= games <= MOST:
        raise InputError(f"games={games!r} must be a whole number from {FEWEST:,} to {MOST:,}.")
    report = model.privacy_
    if not (report.weakest.promises and report.weakest.unit == "record"):
        raise InputError("this fit promises no person anything: there is no claim to audit.")
    attack = attack_releases(model.plans_, games=games, seed=seed)
    model.privacy_ = replace(report, attack=attack)
    return attack


def attack_releases(plans: Sequence[Plan], *, games: int = GAMES, seed: int | None = None) -> Attack:
    """The mu that guesses between the two data sets rule out, and the epsilon of Gaussian noise of that mu."""
    for plan in plans:
        _check(plan)
    first, second = (np.zeros(games) for _ in range(2))
    for number, plan in enumerate(plans):
        queries = queries_of(algorithms.of(plan), plan, plan.names[0])
        for side, ratios in enumerate((first, second)):
            gate = Gate(plan, source(seed, "releases", number, side)(plan.names[0]))
            for query, release, round in _releases(plan, queries):
                moved = query.sensitivity(plan.relation)
                asked = WorstPair(query, np.full(games, 0.0 if side else moved))
                message = gate.release(asked, Round(plan, round, {}, _NO_ROWS, None))
                ratios += value_of(message.arrays, release.scale) * (moved / release.std**2)
    mu, delta = lower_bound(first, second, "mu", plans[0].delta), plans[0].delta
    return Attack(gaussian_epsilon(mu, inside(delta)), delta, mu, 2 * games)


_NO_ROWS: Any = SimpleNamespace(bits=1)  # the worst pair stands in for them


def _releases(plan: Plan, queries: Any) -> Iterator[tuple[Query, Release, int]]:
    """Each release that one record takes part in."""
    for release in plan.releases:
        query = queries[release.query]
        for number in range(query.uses(release.count)):
            yield query, release, release.first + number


def _check(plan: Plan) -> None:
    """Refuse what has no such worst pair: its games are played whole, by `sottovoce audit JOB`."""
    gaussian = all(each.mechanism == "gaussian" and each.rate is None for each in plan.releases)
    alone = max(each.batches for each in plan.releases) == 1 and not plan.channel.secure
    finite = all(math.isfinite(each.std) and each.std > 0 for each in plan.releases)
    if not (gaussian and alone and finite) or plan.split.same_people or plan.claimed_epsilon is not None:
        raise InputError(
            f"solver={plan.algorithm!r}: an attack at a plan's own noise is for Gaussian releases of all records, each "
            "party with its own noise, in one place or by rows; `sottovoce audit JOB` attacks any plan, at less noise."
        )
