"""What the samplers of choices leave in delta: of a plan, and of all the plans of an account."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.privacy.mechanisms import FEW, selection_error
from sottovoce.solvers import by_name
from support import handle

FEATURES = 100_000


def test_the_error_of_a_choice_never_falls_with_more_candidates() -> None:
    errors = [selection_error(count) for count in (1, 10, FEW - 1, FEW, FEW + 1, 2 * FEW, 10**5, 10**6)]
    assert errors == sorted(errors)


@pytest.mark.parametrize(("epsilon", "answer"), [(1.5, "accept"), (10.0, "refuse")])
def test_the_errors_of_all_plans_of_an_account_fit_its_share(tmp_path: Path, epsilon: float, answer: str) -> None:
    """A plan is one of up to 63 on the larger account, and exp(10) multiplies the errors of each."""
    X, y = sp.csr_matrix((10, FEATURES)), np.zeros(10)
    model = sv.PrivateLasso(
        1.0,
        1e-6,
        radius=1.0,
        entry_bound=1.0,
        label_bound=1.0,
        fit_intercept=False,
        solver=by_name("frank-wolfe", rounds=10_000),
    )
    plan = model.plan(sv.Federation.central(X, y))
    account = sv.Ledger.create(tmp_path / "ledger.db").open("data", epsilon=epsilon, delta=1e-6)
    party = Party("data", X, y, account=account)
    said = decode(handle(party, encode(Frame("plan", 1, plan.digest, text=plan.to_json()))).data)
    assert said.kind == answer
    if answer == "refuse":
        assert "so many choices" in said.text
        assert account.balance().spent == 0.0
