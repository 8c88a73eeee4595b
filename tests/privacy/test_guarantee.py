from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from sottovoce.errors import InputError
from sottovoce.privacy.guarantee import FALSE_ALARMS, VIEWS, Guarantee, PrivacyReport, percent


def guarantee(epsilon: float, adversary: Any = "world", **fields: Any) -> Guarantee:
    return Guarantee(epsilon, 1e-5, fields.pop("relation", "zero-out"), adversary, **fields)


def report(*epsilons: float, **fields: Any) -> PrivacyReport:
    each = (guarantee(epsilon, name, **fields) for epsilon, name in zip(epsilons, VIEWS, strict=True))
    return PrivacyReport(*each, assumptions=("nobody's record is with two parties",), public={"records": 10})


def test_a_sentence_states_the_factor_the_relation_and_the_adversary() -> None:
    text = guarantee(1.0).sentence()
    assert "at most 2.718 times" in text
    assert "epsilon = 1" in text
    assert "plus 1e-05 (delta)" in text
    assert "the other way round" in text
    assert "left blank" in text
    assert "anyone who sees the final model" in text
    assert "replaced by any other record" in guarantee(1.0, relation="replace-one").sentence()
    assert "every message" in guarantee(1.0, "coordinator").sentence()


@pytest.mark.parametrize("made", [guarantee(math.inf), guarantee(1.0, void="The noise came from a known seed.")])
def test_where_nothing_is_promised_the_sentence_says_so(made: Guarantee) -> None:
    assert "NO PROMISE" in made.sentence()
    assert "at most" not in made.sentence()


def test_a_void_guarantee_says_why() -> None:
    assert "known seed" in guarantee(1.0, void="The noise came from a known seed.").sentence()


def test_the_published_claim_stands_beside_the_truth() -> None:
    text = guarantee(7.8, claimed_epsilon=1.0).sentence()
    assert "epsilon = 7.8" in text
    assert "claims epsilon = 1." in text
    assert "claims epsilon = 1." in guarantee(math.inf, claimed_epsilon=1.0).sentence()


@pytest.mark.parametrize(
    ("epsilons", "weakest"), [((1, 2, 3), "parties"), ((1, 3, 2), "coordinator"), ((1, math.inf, 2), "coordinator")]
)
def test_the_report_speaks_of_the_weakest(epsilons: tuple[float, ...], weakest: str) -> None:
    made = report(*epsilons)
    assert made.epsilon == max(epsilons)
    assert made.weakest is made.against(weakest)  # type: ignore[arg-type]
    assert made.delta == 1e-5
    assert made.relation == "zero-out"
    assert made.claimed_epsilon is None
    assert report(1, 2, 3, claimed_epsilon=0.5).claimed_epsilon == 0.5


def test_a_void_guarantee_is_weaker_than_any_number() -> None:
    made = PrivacyReport(
        guarantee(1.0, void="The noise came from a known seed."),
        guarantee(3.0, "coordinator"),
        guarantee(3.0, "parties"),
    )
    assert made.weakest.void is not None


def test_an_unknown_adversary_is_told_the_known_ones() -> None:
    with pytest.raises(InputError, match="world, coordinator, parties"):
        report(1, 2, 3).against("neighbour")  # type: ignore[arg-type]


def test_the_text_has_every_view_and_what_it_rests_on() -> None:
    text = str(report(1, 2, 3))
    assert all(view in text for view in VIEWS.values())
    assert "This rests on: nobody's record is with two parties." in text


def test_json_has_no_infinity_that_json_lacks() -> None:
    made = json.loads(report(1, math.inf, 3).to_json(), parse_constant=lambda text: pytest.fail(text))
    assert made["epsilon"] == "inf"
    assert made["against"]["coordinator"]["epsilon"] == "inf"
    assert made["against"]["world"]["epsilon"] == 1
    assert made["against"]["world"]["sentence"] == report(1, math.inf, 3).world.sentence()
    assert made["public"] == {"records": 10}


def test_a_guarantee_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        guarantee(5.0).epsilon = 1.0  # type: ignore[misc]


def test_a_trade_off_is_told_with_its_false_alarms_and_written_whole() -> None:
    curve = tuple((alarms, round((1 - alarms) ** 2, 6)) for alarms in FALSE_ALARMS)
    made = guarantee(1.0, trade_off=curve)
    assert "with 1% false alarms detects at most 2%, with 5% at most 9.8%" in made.sentence()
    assert made.detected(0.05) == pytest.approx(0.0975)
    said = json.loads(json.dumps(made.to_dict()))
    assert said["trade_off"]["0.05"] == 0.9025
    assert len(said["trade_off"]) == len(FALSE_ALARMS)
    assert Guarantee.from_dict(said) == made


@pytest.mark.parametrize(("share", "text"), [(0.0801, "8.1%"), (0.08, "8%"), (0.00123, "0.13%"), (1.0, "100%")])
def test_percents_of_bounds_are_rounded_up(share: float, text: str) -> None:
    assert percent(share) == text
