from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from typing import Any

import pytest

import sottovoce
from sottovoce import losses
from sottovoce.errors import InputError
from sottovoce.plan.release import Release
from sottovoce.privacy.accounting import epsilon_of, renyi_of
from sottovoce.privacy.calibration import noise_multiplier_for
from sottovoce.privacy.events import (
    CHANGES,
    RELATIONS,
    SAMPLER_SHARE,
    Gaussian,
    PoissonGaussian,
    check_relation,
    distance,
    either,
    inside,
)
from sottovoce.privacy.spending import open_terms
from sottovoce.queries.sums import GradientSum

UNKNOWN: Any = "add-one"
REFUSAL = "relation='add-one' must be 'zero-out' or 'replace-one'"


def query_classes() -> list[type]:
    """Every class of the package that says how sensitive it is by itself; protocols only say that one does."""
    found = set()
    for module in pkgutil.walk_packages(sottovoce.__path__, "sottovoce."):
        if module.name.startswith(("sottovoce.app", "sottovoce.__main__", "sottovoce.transports.nvflare_wire")):
            continue
        for _, made in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if made.__module__.startswith("sottovoce") and "sensitivity" in vars(made):
                found.add(made)
    return sorted((made for made in found if not getattr(made, "_is_protocol", False)), key=lambda made: str(made))


def example() -> GradientSum:
    return GradientSum(3, 1.0, losses.get("logistic"))


class Fields(float):
    """Fields of any query: each is a 1 that has all fields again; other queries, where one asks them, are real."""

    gradient = example()
    queries = (example(),)
    query = example()

    def __getattr__(self, name: str) -> Fields:
        return Fields(1.0)

    def __getitem__(self, name: str) -> Fields:
        return Fields(1.0)


def sensitivity(made: Any, relation: Any) -> Any:
    """What the class says of the relation, whatever its fields are."""
    return made.sensitivity(Fields(1.0), relation)


def test_zero_out_moves_a_sum_by_one_record_and_replace_one_by_two() -> None:
    assert [distance(relation) for relation in RELATIONS] == [1.0, 2.0]
    assert [either(relation, zero_out="a", replace_one="b") for relation in RELATIONS] == ["a", "b"]
    assert [check_relation(relation) for relation in RELATIONS] == list(RELATIONS) == list(CHANGES)


def test_the_samplers_have_their_share_of_delta() -> None:
    assert inside(1e-5) == 1e-5 * (1 - SAMPLER_SHARE)


@pytest.mark.parametrize("value", ["add-one", "Zero-out", "", None, 1])
def test_an_unknown_relation_is_refused_with_what_is_allowed(value: Any) -> None:
    for ask in (check_relation, distance, lambda relation: either(relation, zero_out=1.0, replace_one=1.0)):
        with pytest.raises(InputError, match="must be 'zero-out' or 'replace-one'; choose which data sets"):
            ask(value)


def test_there_are_queries_of_all_kinds_to_ask() -> None:
    names = {made.__name__ for made in query_classes()}
    assert {"Query", "Together"} <= names  # most queries have the sensitivity of their base


@pytest.mark.parametrize("made", query_classes(), ids=lambda made: f"{made.__module__}.{made.__name__}")
def test_every_query_refuses_an_unknown_relation(made: type) -> None:
    for relation in RELATIONS:
        sensitivity(made, relation)
    with pytest.raises(InputError, match=REFUSAL):
        sensitivity(made, UNKNOWN)


def test_a_query_that_prices_the_unknown_as_zero_out_would_be_seen() -> None:
    class Careless:
        def sensitivity(self, relation: Any) -> float:
            return 2.0 if relation == "replace-one" else 1.0

    assert sensitivity(Careless, UNKNOWN) == 1.0


def test_a_release_says_no_charge_for_an_unknown_relation() -> None:
    release = Release.at_mu(example(), 0, 1, 1.0, "zero-out")
    assert release.charged("zero-out") < release.charged("replace-one")
    with pytest.raises(InputError, match=REFUSAL):
        release.charged(UNKNOWN)
    with pytest.raises(InputError, match=REFUSAL):
        release.event(UNKNOWN)


def test_no_cost_is_computed_for_an_unknown_relation() -> None:
    for events in ([Gaussian(1.0)], [PoissonGaussian(0.1, 1.0, 3)]):
        with pytest.raises(InputError, match=REFUSAL):
            epsilon_of(events, 1e-5, UNKNOWN)
        with pytest.raises(InputError, match=REFUSAL):
            renyi_of(events, 2.0, UNKNOWN)
    with pytest.raises(InputError, match=REFUSAL):
        noise_multiplier_for(1.0, 1e-5, UNKNOWN, 0.1, 3)
    with pytest.raises(InputError, match=REFUSAL):
        open_terms(1.0, 1e-5, UNKNOWN, "renyi")
    assert math.isfinite(epsilon_of([Gaussian(1.0)], 1e-5, "zero-out"))
