"""People who withdraw: what a guarantee of one record says of several, against tests that are composed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

import sottovoce as sv
from sottovoce.privacy.accounting import gaussian_delta, gaussian_epsilon
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import inside
from sottovoce.privacy.guarantee import (
    FALSE_ALARMS,
    GUESSED,
    Guarantee,
    PrivacyReport,
    Profile,
    gaussian_missed,
    with_errors,
)

DELTA = 1e-6


def promise(epsilon: float, *, gaussian: bool = True, **changes: Any) -> Guarantee:
    """As reports have it: the curve of Gaussian releases, or one that is not."""
    mu = mu_for(epsilon, inside(DELTA))
    profile = Profile.of(lambda delta: 1.2 * gaussian_epsilon(mu, delta))
    missed = (lambda alarms: gaussian_missed(mu, alarms)) if gaussian else profile.missed
    curve = tuple(zip(FALSE_ALARMS, with_errors(missed, FALSE_ALARMS, 0.01 * DELTA).tolist(), strict=True))
    return Guarantee(epsilon, DELTA, "zero-out", "world", **{"trade_off": curve, "gaussian": gaussian} | changes)


def report(guarantee: Guarantee, **public: Any) -> PrivacyReport:
    views = [replace(guarantee, adversary=view) for view in ("world", "coordinator", "parties")]
    return PrivacyReport(*views, public={"split": "central", **public})


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 3.0, 8.0])
def test_mu_is_that_of_the_releases_and_never_less(epsilon: float) -> None:
    mu, found = mu_for(epsilon, inside(DELTA)), promise(epsilon).mu
    assert found is not None
    assert mu <= found <= mu * (1 + 1e-4)
    assert promise(epsilon, gaussian=False).mu is None


def test_a_curve_of_drawn_records_is_never_taken_for_a_gaussian_one() -> None:
    """It may be near one at every listed rate of false alarms, and k people tell more than k mu."""
    rng = np.random.default_rng(0)
    X, y = rng.random((400, 3)), np.arange(400) % 2
    fields = {"delta": 0.002, "row_norm": 2.0, "classes": (0, 1)}
    sampled = sv.PrivateLogisticRegression(1.0, solver="sgd", **fields).fit(X, y).privacy_.weakest
    assert sampled.mu is None
    assert sampled.of_group(1)[0] >= sampled.epsilon
    assert replace(sampled, gaussian=True).mu is not None  # negative control: by its shape it would be one
    whole = sv.PrivateLogisticRegression(1.0, solver="newton", **fields).fit(X, y).privacy_.weakest
    assert whole.mu is not None


@pytest.mark.parametrize("people", [2, 3, 5])
def test_a_group_is_a_chain_of_neighbours(people: int) -> None:
    """f_k(a) = 1 - (1 - f) o ... o (1 - f)(a): no test between the ends of the chain is better; the epsilon follows."""
    mu, alarms = mu_for(1.0, inside(DELTA)), np.geomspace(1e-13, 1.0, 20_001)
    power = alarms
    for _ in range(people):
        power = 1 - gaussian_missed(mu, power)
    epsilon, delta = promise(1.0).of_group(people)
    lost = float(np.max(power - math.exp(epsilon) * alarms))
    assert lost == pytest.approx(inside(delta), rel=0.02)
    assert lost <= delta
    assert gaussian_delta(math.sqrt(people) * mu, epsilon) < 0.1 * delta  # negative control: too little is told apart
    distance = float(np.max(power - alarms))
    assert promise(1.0).guessed(people) == pytest.approx((1 + distance) / 2, abs=1e-4)


def test_from_epsilon_and_delta_alone() -> None:
    """(e^epsilon, delta) applied twice: p <= e^epsilon (e^epsilon q + delta) + delta."""
    other = promise(0.4, gaussian=False)
    epsilon, delta = other.of_group(2)
    assert epsilon == pytest.approx(0.8)
    assert delta == pytest.approx(DELTA * (1 + math.exp(0.4)))
    assert other.of_group(1) == (0.4, pytest.approx(DELTA))
    assert other.guessed(2) == pytest.approx(math.exp(0.8) / (1 + math.exp(0.8)), abs=1e-5)
    assert other.withdrawals == 2
    assert promise(0.4).withdrawals > 2  # the whole curve says more
    assert other.of_group(10_000)[1] == 1.0


@pytest.mark.parametrize(("epsilon", "people"), [(0.1, 49), (0.3, 17), (1.0, 5), (3.0, 2), (8.0, 0)])
def test_up_to_how_many_people_nobody_can_tell(epsilon: float, people: int) -> None:
    guarantee, mu = promise(epsilon), mu_for(epsilon, inside(DELTA))
    assert guarantee.withdrawals == people
    assert ndtr(people * mu / 2) <= GUESSED < ndtr((people + 1) * mu / 2)
    said = report(guarantee).withdrawal()
    assert (f"up to {people}" if people else "at the first withdrawal") in said
    assert said in str(report(guarantee))
    assert said in report(guarantee)._repr_html_()


def test_no_more_people_than_there_are() -> None:
    assert "up to 10 of them" in report(promise(0.1), records=10).withdrawal()


@pytest.mark.parametrize(
    "changes", [{"void": "a seed"}, {"epsilon": math.inf}, {"unit": "feature"}, {"result": "evaluation"}]
)
def test_where_nothing_is_promised_nothing_is_said(changes: dict[str, Any]) -> None:
    guarantee = replace(promise(1.0), **changes)
    assert report(guarantee).withdrawal() == ""
    assert guarantee.result != "model" or guarantee.withdrawals == 0
