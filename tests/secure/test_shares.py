"""The variance that is left to each adversary, by draws. 40,000 draws are within 4% of it but for a chance of 2e-8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.errors import RefusedError
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.secure.streams import masks
from sottovoce.secure.sums import Call, Noise, Opener, label_of
from summing import holders, made

DRAWS = 40_000


class Views:
    """One sum of zeros, and what each adversary can take off it; all in units of sigma."""

    def __init__(self, parties: int, *, gone: int = 0, **numbers: int) -> None:
        self.plan, keys = made(parties, **numbers)
        release = self.plan.release("gradient")
        noise, roster = Noise(release, 1.0), self.plan.names[gone:]
        label = label_of("gradient", 0, Call(roster), {})
        shares, self.noises = {}, []
        for name in roster:
            masker, secret = holders(self.plan, {name: keys[name]})[name].masker, SeededRandomness(7, name)
            shares[name] = masker.masked_share(np.zeros(DRAWS, dtype=np.int64), noise, label, secret)
            mask = masks(masker._keys, name, roster, label, DRAWS)
            self.noises.append((shares[name].view(np.uint64) - mask).view(np.int64) * release.step / release.std)
        self.shares, self.noise, self.label = shares, noise, label
        self.sum = self.opened()

    def opened(self, seed: int = 7) -> NDArray[np.float64]:
        """By a coordinator of its own."""
        opener = Opener(self.plan, SeededRandomness(seed, "coordinator"))
        return opener.open(self.shares, self.noise, self.label) / self.noise.release.std

    @property
    def top_up(self) -> NDArray[np.float64]:
        return self.sum - np.sum(self.noises, axis=0)

    def left(self, shares: int, *, dealer: bool = False) -> float:
        """To whoever knows so many shares, and the top-up."""
        known = np.sum(self.noises[:shares], axis=0) + (self.top_up if dealer else 0.0)
        return float(np.var(self.sum - known))


CASES: list[dict[str, Any]] = [
    {"parties": 2},
    {"parties": 3},
    {"parties": 8},
    {"parties": 8, "colluding": 1},
    {"parties": 8, "colluding_with_dealer": 2},
    {"parties": 4, "dropouts": 1, "gone": 1},
    {"parties": 8, "colluding_with_dealer": 1, "dropouts": 2, "gone": 2},
]


@pytest.mark.parametrize("case", CASES, ids=[" ".join(f"{k}={v}" for k, v in case.items()) for case in CASES])
def test_each_declared_adversary_is_left_the_noise_that_was_charged(case: dict[str, Any]) -> None:
    views = Views(**case)
    aggregation = views.plan.aggregation
    parties, gone = case["parties"], case.get("gone", 0)
    assert aggregation is not None
    views_of = {  # (shares known, whether the top-up is)
        "world": (0, False),
        "coordinator": (0, True),
        "coordinator and those that may collude with it": (aggregation.colluding_with_dealer, True),
        "parties that may collude": (min(aggregation.colluding, parties - gone - 1), False),
        "coordinator and all but one": (parties - gone - 1, True),
    }
    for name, (shares, dealer) in views_of.items():
        expected = aggregation.left(parties, shares, dealer=dealer, gone=gone)
        assert views.left(shares, dealer=dealer) == pytest.approx(expected, rel=0.04), name
        if name != "coordinator and all but one":
            assert expected >= 1 - 1e-12, name
    if case == {"parties": 8}:
        assert views.left(0) == pytest.approx(2 - 1 / 8, rel=0.04)
        assert views.left(7, dealer=True) == pytest.approx(1 / 8, rel=0.04)


def test_a_share_that_lacks_is_noticed() -> None:
    """The faults that the test above is there for: a party without noise, one with 2/3 of it, and no top-up."""
    views = Views(3)
    assert views.left(0, dealer=True) == pytest.approx(1.0, rel=0.04)
    noises = views.noises
    assert np.var(noises[0] + noises[1]) == pytest.approx(2 / 3, rel=0.04)
    assert np.var(noises[0] + noises[1] + noises[2] * 2 / 3) == pytest.approx((2 + 4 / 9) / 3, rel=0.04)  # .82


def test_without_the_top_up_all_other_parties_are_left_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureAggregation, "top_up", lambda *_: 0.0)
    assert Views(3).left(2) == pytest.approx(1 / 3, rel=0.04)


def test_two_top_ups_on_one_sum_average_out() -> None:
    """Why a sum is opened once: all other parties would be left .56 in place of 1."""
    views = Views(8)
    twice = (views.sum + views.opened(seed=8)) / 2
    assert np.var(twice - np.sum(views.noises[:7], axis=0)) == pytest.approx(1 / 8 + 7 / 16, rel=0.04)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"colluding": 3}, "leave no honest party"),
        ({"colluding_with_dealer": 3}, "leave no honest party"),
        ({"colluding_with_dealer": 2, "dropouts": 1, "retries": 1}, "leave no honest party"),
        ({"retries": 1}, "dropouts=0"),
    ],
)
def test_a_plan_that_leaves_no_honest_party_is_refused(numbers: dict[str, int], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        made(3, **numbers)
