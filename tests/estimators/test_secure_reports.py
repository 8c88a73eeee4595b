"""What a report says of secure sums: the epsilon of those who collude, what is assumed, and what happens otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app.page import make_card, page
from sottovoce.app.sheets import SHEETS, Facts
from sottovoce.app.texts import render
from sottovoce.estimators import privacy_report
from sottovoce.federation.policy import Known
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COMPUTING, Coalition, assumed
from sottovoce.privacy.accounting import gaussian_epsilon, gaussian_mu
from sottovoce.privacy.events import inside
from sottovoce.privacy.guarantee import VIEWS, Guarantee, PrivacyReport
from sottovoce.transports.identity import local_identities
from support import events_of

RNG = np.random.default_rng(3)
X = RNG.uniform(-1, 1, (160, 4))
Y = (X[:, 0] > 0).astype(int)
MODEL = {"entry_bound": 1.0, "classes": (0, 1)}


def rows(parties: int, **aggregation: Any) -> sv.Federation:
    made = sv.Federation.by_rows([(X[k::parties], Y[k::parties]) for k in range(parties)], sums="secure")
    return made.secure_aggregation(**aggregation)


def columns(**aggregation: Any) -> sv.Federation:
    parts = [X[:, :1], X[:, 1:2], X[:, 2:]]
    return sv.Federation.by_columns(parts, Y, products="secure").secure_aggregation(**aggregation)


def planned(federation: sv.Federation, solver: Any = None, **more: Any) -> Plan:
    chosen = solver or sv.solvers.Newton(rounds=3)
    return sv.PrivateLogisticRegression(1.0, solver=chosen, **MODEL, **more).plan(federation)


def at(plan: Plan, left: float) -> float:
    """Epsilon of a plan of Gaussian sums, of mu / sqrt(left)."""
    mu = gaussian_mu(events_of(plan), plan.relation)
    assert mu is not None
    return gaussian_epsilon(mu / math.sqrt(left), inside(plan.delta))


@pytest.mark.parametrize("parties", [2, 8, 50])
def test_the_curve_is_that_of_the_variance_left(parties: int) -> None:
    plan = planned(rows(parties))
    found = privacy_report(plan, seeded=False).colluding
    others = "1 party" if parties == 2 else f"{parties - 1} parties"
    table = {
        "world": 2 - 1 / parties,
        "coordinator": 1.0,
        f"any {others}": 1.0,
        f"coordinator and {others}": 1 / parties,
    }
    assert {name: found[name] for name in table} == pytest.approx({name: at(plan, x) for name, x in table.items()})
    assert len(found) == 2 * parties
    for j in range(2, parties):
        assert found[f"coordinator and {j} parties"] == pytest.approx(at(plan, 1 - j / parties))
        assert found[f"any {j} parties"] == pytest.approx(at(plan, 2 - (1 + j) / parties))


@pytest.mark.parametrize(
    ("aggregation", "view", "others", "colluding"),
    [({"colluding_with_dealer": 3}, "with 3 parties at most", 1.0, 4), ({"colluding": 2}, "any 2 parties", 6 / 8, 1)],
)
def test_numbers_of_secure_aggregation_move_the_curve_and_the_text(
    aggregation: dict[str, int], view: str, others: float, colluding: int
) -> None:
    plan = planned(rows(8, **aggregation))
    report = privacy_report(plan, seeded=False)
    share = 1 / (8 - aggregation.get("colluding_with_dealer", 0))
    assert view in report.against("coordinator" if "colluding_with_dealer" in aggregation else "parties").sentence()
    assert report.colluding[f"coordinator and {colluding} part{'y' if colluding == 1 else 'ies'}"] == pytest.approx(
        at(plan, (8 - colluding) * share)
    )
    left = share + max(0.0, 1 - max(1, 8 - aggregation.get("colluding", 7)) * share)
    assert report.colluding["any 7 parties"] == pytest.approx(at(plan, left))
    assert (left >= 1 - 1e-12) == (others == 1.0)


def test_parties_that_leave_are_not_counted_on_and_spare_sums_cost_the_coalitions_as_well() -> None:
    plan = planned(rows(4, dropouts=1, retries=2))
    found = privacy_report(plan, seeded=False).colluding
    assert found["coordinator"] == pytest.approx(at(plan, 1.0))
    assert found["coordinator and 3 parties"] == pytest.approx(at(plan, 1 / 3))


def test_samples_are_accounted_with_the_noise_that_is_left() -> None:
    found = privacy_report(planned(rows(4), sv.solvers.SGD(rounds=3, rate=0.2)), seeded=False).colluding
    assert pytest.approx(found["any 3 parties"], rel=1e-3) == 1.0
    assert found["coordinator"] < found["coordinator and 1 party"] < found["coordinator and 3 parties"] < math.inf


def test_by_columns_a_dealer_with_a_party_has_everything() -> None:
    report = privacy_report(planned(columns()), seeded=False)
    found = report.colluding
    assert math.isinf(found["coordinator and 1 party"])
    assert found["any 2 parties"] == pytest.approx(report.parties.epsilon)
    assert found["any 1 party"] < found["any 2 parties"]
    assert "it can read that party's and every other party's columns" in report.world.if_broken
    assert "infinite (in the clear)" in str(report)


def test_by_columns_more_pooling_than_the_noise_was_made_for_are_left_with_less() -> None:
    plan = planned(columns(colluding=1))
    assert plan.channel.left_to(Coalition(1, dealer=False)) == pytest.approx(1.0)
    assert plan.channel.left_to(Coalition(2, dealer=False)) == pytest.approx(
        1 / 3 + 1 / 3
    )  # a share, and the top-up for two of them
    assert plan.channel.left_to(Coalition(0, dealer=True)) == pytest.approx(1.0)
    assert plan.channel.left_to(Coalition(1, dealer=True)) == 0.0


def test_the_words_of_rows_are_these() -> None:
    plan = planned(rows(8))
    report = privacy_report(plan, seeded=False)
    for view in VIEWS:
        made = report.against(view)
        assert made.computational
        assert made.assumes == assumed(plan)
    assert assumed(plan) == (
        "the coordinator colludes with no party, and is run by none",
        "the parties and the coordinator follow the protocol",
        "each party has the right public keys of the others (vouched for by the authority, or pinned), and the parties "
        "of the plan are organisations, not several names of one",
        COMPUTING,
    )
    one, seven = (at(plan, x) for x in (7 / 8, 1 / 8))
    assert report.world.if_broken == (
        f"If the coordinator colludes with 1 party, or is run by one, epsilon is {one:.4g}; with all 7 others "
        f"{seven:.4g}. A party that adds no noise counts as one that colludes. If the encryption is broken, who "
        f"recorded the messages has the sums of each party apart, at epsilon {seven:.4g}. The promise holds as long as "
        "the encryption does, also against who records messages today."
    )
    assert "pinned)" in assumed(plan, pinned=True)[2]
    assert "authority)" in assumed(plan, pinned=False)[2]
    assert privacy_report(plan, seeded=False, left=[("party-2", "gradient, round 3")]).left


def test_the_parties_of_secure_columns_are_told_of_the_rest_of_a_record() -> None:
    report = privacy_report(planned(columns()), seeded=False)
    assert "the rest of that person's record had been left blank" in report.parties.sentence()
    assert "the rest of" not in report.coordinator.sentence()
    assert "the rest of" not in report.world.sentence()


def test_a_dealer_is_named_and_takes_the_coordinator_out() -> None:
    plan = planned(rows(8))
    assert plan.aggregation is not None
    helped = plan.model_copy(update={"aggregation": plan.aggregation.changed(dealer="notary"), "keys": ()})
    report = privacy_report(helped, seeded=False)
    assert assumed(helped)[0] == "the dealer 'notary' colludes with no party, and is run by none"
    assert "the coordinator and the dealer follow" in assumed(helped)[1]
    found = report.colluding
    assert found["coordinator and 7 parties"] == pytest.approx(at(plan, 1.0))
    assert found["dealer and 7 parties"] == pytest.approx(at(plan, 1 / 8))
    assert found["dealer"] == pytest.approx(at(plan, 1.0))


def test_plans_that_secure_nothing_say_nothing_of_it() -> None:
    plain = sv.Federation.by_rows([(X[:80], Y[:80]), (X[80:], Y[80:])])
    report = privacy_report(planned(plain), seeded=False)
    assert not report.weakest.computational
    assert not report.colluding
    assert "encryption" not in str(report)
    assert assumed(planned(plain)) == ()


def texts_of(model: Any) -> dict[str, str]:
    """Everything that prints the epsilon of a fit."""
    return {
        "report": str(model.privacy_),
        "json": model.privacy_.to_json(),
        "page": page(model),
        "card": render("card.md", title="card", sections=make_card(model, None), picture=""),
        "sentence": model.privacy_.weakest.sentence(),
        **{name: write(Facts(model)) for name, (_, write) in SHEETS.items()},
    }


def says(text: str, made: Guarantee) -> bool:
    """Whether a text has all that a guarantee assumes, and what happens if it fails."""
    plain = text.replace("&#x27;", "'").replace("\\", "")
    return all(each in plain for each in (*made.assumes, made.if_broken)) and made.computational


def test_no_epsilon_of_a_secure_fit_is_printed_without_what_it_rests_on() -> None:
    fitted = sv.PrivateLogisticRegression(1.0, solver=sv.solvers.Newton(rounds=2), **MODEL).fit(rows(3))
    weakest = fitted.privacy_.weakest
    assert {name for name, text in texts_of(fitted).items() if not says(text, weakest)} == set()
    assert "rests on secure sums: the coordinator colludes with no party" in page(fitted).split("</header>")[0]

    # A report that dropped what it assumes would be found by each of these.
    careless = {
        view: Guarantee.from_dict(
            {key: value for key, value in fitted.privacy_.against(view).to_dict().items() if key not in DROPPED}
        )
        for view in VIEWS
    }
    fitted.privacy_ = PrivacyReport(**careless, assumptions=fitted.privacy_.assumptions)
    assert {name for name, text in texts_of(fitted).items() if says(text, weakest)} == set()


DROPPED = ("assumes", "computational", "if_broken", "view")


def test_a_policy_limits_what_is_left_against_all_others() -> None:
    plan = planned(rows(8))
    form, colluding = algorithms.of(plan), privacy_report(plan, seeded=False).colluding["coordinator and 7 parties"]

    def refusal(**policy: Any) -> str | None:
        return sv.Policy(**policy).refuse(plan, form, "party-1", known)

    known = Known(local_identities(plan.names)["party-1"])
    assert "Policy(secure=True)" in str(refusal())
    assert refusal(secure=True) is None
    assert refusal(secure=True, max_delta=1e-5, max_epsilon=1.0, max_epsilon_colluding=colluding * 1.001) is None
    assert f"against the coordinator with all other parties the plan costs epsilon {colluding:.4g}" in str(
        refusal(secure=True, max_delta=1e-5, max_epsilon_colluding=colluding * 0.999)
    )
    braver = planned(rows(8, colluding_with_dealer=7))
    assert sv.Policy(secure=True, max_delta=1e-5, max_epsilon_colluding=1.001).refuse(braver, form, "party-1") is None


def test_a_policy_that_limits_coalitions_refuses_secure_columns_and_counts_plain_plans_as_they_are() -> None:
    plan = planned(columns())
    known = Known(local_identities(plan.names)["party-1"])
    refusal = sv.Policy(secure=True, max_epsilon_colluding=100.0).refuse(plan, algorithms.of(plan), "party-1", known)
    assert "against the coordinator with all other parties the plan costs everything" in str(refusal)
    plain = planned(sv.Federation.by_rows([(X[:80], Y[:80]), (X[80:], Y[80:])]))
    form = algorithms.of(plain)
    assert sv.Policy(max_epsilon_colluding=1.0, max_delta=1e-5).refuse(plain, form, "party-1") is None
    assert "all other parties" in str(sv.Policy(max_epsilon_colluding=0.9).refuse(plain, form, "party-1"))


def test_the_worlds_promise_does_not_count_on_those_who_may_leave() -> None:
    plan = planned(rows(4, dropouts=1, retries=1))
    report = privacy_report(plan, seeded=False)
    assert report.world.epsilon == report.colluding["world"]
    aggregation = plan.aggregation
    assert aggregation is not None
    assert aggregation.left(4, 0, gone=1) < plan.channel.variance
    assert report.world.epsilon == pytest.approx(at(plan, aggregation.left(4, 0, gone=1)))
    whole = planned(rows(4))
    assert privacy_report(whole, seeded=False).world.epsilon == pytest.approx(at(whole, whole.channel.variance))
