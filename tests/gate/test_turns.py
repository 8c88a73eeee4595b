"""What a message must carry, whose turn a round is, and what several parties' answers move by together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sottovoce import losses
from sottovoce.data.bounds import Bounds
from sottovoce.gate.query import (
    Reals,
    Scheduled,
    Together,
    Turn,
    Wholes,
    all_but_label_party,
    everyone,
    label_party,
    misfit,
)
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.release import Release
from sottovoce.privacy.events import RELATIONS
from sottovoce.queries.sums import GradientSum, GramMatrix
from support import plan_of

FIT = np.array([1.0, -2.0, 3.0])
NAN, INF = math.nan, math.inf


def plan(**options: Any) -> Plan:
    problem = Problem(
        loss=Named(name="logistic"),
        regulariser=Named(name="none"),
        split="rows",
        parties=(("anna", 40), ("ben", 60), ("cleo", 20)),
        features=2,
        bounds=Bounds.declare(row_norm=1.0),
        epsilon=1.0,
        delta=1e-5,
        classes=(0, 1),
        label_party=1,
    )
    return plan_of(problem, "gradient", rounds=6, **options)


@pytest.mark.parametrize("number", [NAN, INF, -INF, 1.0000001e100, -1.0000001e100, 1e300])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_number_that_is_none_or_too_large_fits(number: float, place: int) -> None:
    wrong = FIT.copy()
    wrong[place] = number
    assert misfit({"weights": Reals((3,))}, {"weights": FIT}) is None
    assert misfit({"weights": Reals((3,))}, {"weights": wrong}) is not None
    assert misfit({"weights": Reals((None,))}, {"weights": wrong}) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        FIT[:2],
        np.append(FIT, 0.0),
        FIT.reshape(3, 1),
        FIT.reshape(1, 3),
        np.zeros(0),
        np.array(1.0),
        FIT.astype(np.float32),
        FIT.astype(np.int64),
        FIT.astype(np.complex128),
        FIT.astype(object),
    ],
)
def test_another_shape_or_type_does_not_fit(wrong: Any) -> None:
    assert misfit({"weights": Reals((3,))}, {"weights": wrong}) is not None


def test_limits_are_included_and_nothing_beyond_them() -> None:
    within = Reals((1,), least=0.0, most=1.0)
    for number, fits in ((0.0, True), (1.0, True), (0.5, True), (-5e-324, False), (np.nextafter(1.0, 2.0), False)):
        assert within.fits(np.array([number])) == fits
    assert Reals((1,)).fits(np.array([1e100]))


@pytest.mark.parametrize("wrong", [np.array([1.0]), np.array([-1]), np.array([5]), np.array([2**62]), np.array([[1]])])
def test_whole_numbers_are_int64_within_limits(wrong: Any) -> None:
    wanted = Wholes((1,), least=0, most=4)
    for place in range(5):
        assert wanted.fits(np.array([place]))
    assert not wanted.fits(wrong)
    assert not wanted.fits(np.array([1], dtype=np.int32))


def test_whatever_a_query_takes_must_be_there_and_the_objection_has_no_number_of_it() -> None:
    takes = {"weights": Reals((3,)), "index": Wholes((1,), least=0, most=9)}
    assert misfit(takes, {"weights": FIT, "index": np.array([9])}) is None
    assert misfit(takes, {"weights": FIT, "index": np.array([9]), "else": np.array([NAN])}) == "takes no 'else'"
    for left in takes:
        told = {"weights": FIT, "index": np.array([3])}
        del told[left]
        fault = misfit(takes, told)
        assert fault is not None
        assert repr(left) in fault
    assert misfit(takes, {"weights": FIT * 1e200, "index": np.array([3])}) == (
        "needs 'weights': 3 float64 numbers, none below -1e+100 or above 1e+100"
    )
    assert misfit(takes, {"weights": FIT, "index": np.array([31415])}) == (
        "needs 'index': 1 int64 numbers, none below 0 or above 9"
    )


def test_an_example_is_as_large_as_a_message_may_be() -> None:
    assert Reals((3, 2)).example().shape == (3, 2)
    assert Wholes((None,), longest=7).example().shape == (7,)
    limited = (Reals((2,), least=1e-9), Reals((2,), most=-1.0), Wholes((2,), least=3, most=5))
    for wanted in (Reals((3, 2)), Wholes((None,), longest=7), Wholes((4,)), *limited):
        assert wanted.fits(wanted.example())


def schedule_of(of: Plan) -> Any:
    return np.array([0, 2, 2, 1, 2, 0])


SCHEDULE = Scheduled("the party of a table", schedule_of)
ODD = Turn("parties of an odd place", lambda of, party: of.names.index(party) % 2 == 1)


@pytest.mark.parametrize("turn", [everyone, label_party, all_but_label_party, SCHEDULE, ODD])
def test_a_turn_counts_the_rounds_that_it_answers(turn: Turn) -> None:
    of = plan()
    for first in range(8):
        for count in range(1, 9):
            for party in of.names:
                answered = [n for n in range(first, first + count) if turn(of, party, n)]
                assert turn.rounds(of, party, first, count) == len(answered)
    for number in range(8):
        assert turn.parties(of, number) == tuple(name for name in of.names if turn(of, name, number))


def test_whose_turn_it_is() -> None:
    of = plan()
    assert everyone.parties(of, 3) == ("anna", "ben", "cleo")
    assert label_party.parties(of, 3) == ("ben",)
    assert all_but_label_party.parties(of, 3) == ("anna", "cleo")
    assert [SCHEDULE.parties(of, number) for number in range(7)] == [
        ("anna",),
        ("cleo",),
        ("cleo",),
        ("ben",),
        ("cleo",),
        ("anna",),
        (),
    ]
    assert not SCHEDULE(of, "anna", -1)


@pytest.mark.parametrize("relation", RELATIONS)
def test_answers_together_move_by_the_root_of_the_squares(relation: Any) -> None:
    queries = [GradientSum(3, bound, losses.get("logistic")) for bound in (0.3, 0.4, 1.2)]
    joint = Together(list(queries))
    assert joint.name == "gradient"
    assert joint.rounding_entries == 9
    assert joint.sensitivity(relation) == pytest.approx(math.hypot(*(q.sensitivity(relation) for q in queries)))
    alone = Together([GramMatrix(3)])
    assert alone.sensitivity(relation) == GramMatrix(3).sensitivity(relation)


def test_a_release_of_answers_together_covers_each_partys_grid() -> None:
    queries = [GradientSum(3, bound, losses.get("logistic")) for bound in (0.3, 0.4)]
    release = Release.at_mu(Together(list(queries)), 0, 4, 1.0, "zero-out")
    each = [query.sensitivity("zero-out") + release.step * math.sqrt(query.rounding_entries) for query in queries]
    assert math.hypot(*each) <= release.charged("zero-out")
