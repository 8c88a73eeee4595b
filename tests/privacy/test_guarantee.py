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


ASSUMES = ("the coordinator colludes with no party, and is run by none", "everybody follows the protocol")
BROKEN = "If the coordinator colludes with a party, it can read every column."
SECURE: dict[str, Any] = {"computational": True, "assumes": ASSUMES, "if_broken": BROKEN}


def test_a_computational_sentence_ends_with_what_it_assumes_and_what_breaks_it() -> None:
    text = guarantee(1.0, **SECURE).sentence()
    assert text.endswith(
        " This holds against anybody who cannot break the encryption, and if the coordinator colludes with no party, "
        f"and is run by none; if everybody follows the protocol. {BROKEN}"
    )
    assert "encryption" not in guarantee(1.0).sentence()
    assert "encryption" not in guarantee(math.inf, **SECURE).sentence()  # nothing is promised, so nothing is assumed


@pytest.mark.parametrize("lost", ["computational", "assumes", "if_broken"])
def test_a_guarantee_does_not_lose_what_it_assumes(lost: str) -> None:
    with pytest.raises(InputError, match="names what it assumes"):
        guarantee(1.0, **{name: value for name, value in SECURE.items() if name != lost})


def test_a_report_of_those_who_pool_has_no_guarantee_without_its_assumptions() -> None:
    with pytest.raises(InputError, match="name what they assume"):
        dataclasses.replace(report(1, 1, 1), colluding={"coordinator and 1 party": math.inf})


def test_who_knows_a_part_of_a_record_is_told_of_the_rest_of_it() -> None:
    text = guarantee(1.0, "parties", knows_part=True, **SECURE).sentence()
    assert "the chance if the rest of that person's record had been left blank" in text
    assert "the rest of" not in guarantee(1.0, "parties", **SECURE).sentence()


def test_of_two_with_one_epsilon_the_computational_one_is_weaker() -> None:
    secure = guarantee(1.0, "coordinator", **SECURE)
    for first, last in ((guarantee(1.0), guarantee(1.0, "parties")), (guarantee(0.5), guarantee(1.0, "parties"))):
        assert PrivacyReport(first, secure, last).weakest is secure
    assert PrivacyReport(guarantee(2.0), secure, guarantee(1.0, "parties")).weakest.epsilon == 2.0


def test_a_report_of_secure_sums_says_the_curve_the_noise_and_who_left_and_comes_back_from_its_text() -> None:
    curve = {
        "world": 0.8,
        "coordinator": 1.0,
        **{f"coordinator and {k} part{'y' if k == 1 else 'ies'}": math.inf for k in (1, 2, 3)},
        **{f"any {k} part{'y' if k == 1 else 'ies'}": 0.7 + k / 10 for k in (1, 2, 3)},
    }
    left = (("north", "gradient, round 12"),)
    made = dataclasses.replace(report(1, 1, 1, **SECURE), colluding=curve, noise=1.323, left=left)
    assert made.colluding == curve
    assert made.remarks() == (
        "Epsilon against those who collude: coordinator and 1 party infinite (in the clear); coordinator and 2 parties "
        "infinite (in the clear); coordinator and 3 parties infinite (in the clear); any 1 party 0.8; any 2 parties "
        "0.9; any 3 parties 1.",
        "Noise of a sum over that of data in one place: 1.32.",
        "Left the run: north (gradient, round 12).",
    )
    assert all(remark in str(made) for remark in made.remarks())
    assert PrivacyReport.from_dict(json.loads(made.to_json())) == made
    assert not report(1, 1, 1).remarks()
    assert report(1, 1, 1).colluding == {}
    assert not {"colluding", "noise", "left"} & set(report(1, 1, 1).to_dict())
    assert not {"assumes", "computational", "if_broken"} & set(guarantee(1.0).to_dict())
