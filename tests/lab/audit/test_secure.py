"""Games about secure runs, as each adversary sees them; and what pools beyond the promise is shown broken.

A game accuses a correct mechanism with probability 1e-4 at most, for a seed that nobody chose; these were not chosen.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest

from sottovoce.data.bounds import Bounds
from sottovoce.lab.audit.games import Game, errors_at, mu_of, source
from sottovoce.lab.audit.runner import at_audit_scale, audit_plan, catalogue, make_own_games
from sottovoce.plan.problem import Named
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.events import RELATIONS, Relation
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.secure.columns import Columns
from support import play

pytestmark = pytest.mark.slow

ROWS: dict[str, Any] = {
    "solver": "gradient",
    "split": "rows",
    "parties": 6,
    "rounds": 1,
    "aggregation": SecureAggregation(colluding=5),
}
COLUMNS: dict[str, Any] = {
    "solver": "gradient",
    "split": "columns",
    "parties": 2,
    "features": 1,
    "rounds": 1,
    "labels": "held",
    "aggregation": SecureAggregation(colluding=1),
    "bounds": Bounds.declare(row_norm=1.0, label_bound=1.0),
    "norms": (0.28, 0.96),
}
BLANKED = ((0.28, 0.96, 0.0), (math.nan, 0.96, math.nan), (math.nan,) * 3)  # the first party's part


def rows(**fields: Any) -> Game:
    return Game("rows", audit_plan(**{**ROWS, "relation": "zero-out"}), **fields)


def columns(**fields: Any) -> Game:
    """The slope of the canary changes its sign with the first party's part, and moves what the second has of it."""
    plan = audit_plan(**{**COLUMNS, "relation": "zero-out"})
    return Game("columns", plan, adversary="parties", records=BLANKED, script=((7.5, -1.1),), **fields)


def test_the_catalogue_has_every_adversary_of_secure_runs() -> None:
    names = [name for name in catalogue() if "secure" in name]
    for solver in ("newton", "whitened", "gradient"):
        for split in ("rows", "columns"):
            assert f"{solver} by {split}, secure, coordinator" in names
    for view in ("world", "all other parties", "coordinator with all other parties"):
        assert f"gradient by rows, secure, {view}" in names
    assert {"gradient by columns, secure, world", "gradient by columns, secure, parties"} <= set(names)
    broken = [name for name in names if not catalogue()[name]().holds]
    assert broken == ["gradient by rows, secure, coordinator with all other parties"]


@pytest.mark.parametrize("adversary", ["coordinator", "parties"])
def test_by_rows_each_adversary_is_left_what_was_charged(adversary: Any) -> None:
    result = play(rows(adversary=adversary), runs=120, seed=1)
    assert result.verdict == "holds"
    assert 0.2 * result.claimed < result.measured < result.claimed


def test_by_rows_the_coordinator_with_all_other_parties_has_a_share_of_the_noise() -> None:
    assert play(rows(coalitions=True, holds=False), runs=120, seed=1).verdict == "broken, as expected"


def test_a_top_up_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    game = rows(adversary="parties")
    monkeypatch.setattr(SecureAggregation, "top_up", lambda self, parties: 0.0)
    assert play(game, runs=120, seed=1).broken


def test_shares_of_a_quarter_of_the_noise_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    game, real = rows(), SecureAggregation.share
    monkeypatch.setattr(SecureAggregation, "share", lambda self, parties: real(self, parties) / 4)
    assert play(game, runs=180, seed=1).broken


def test_by_columns_parties_that_know_a_part_are_left_what_was_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a null part that counts as zeros, the record going on, is found."""
    result = play(columns(), runs=200, seed=1)
    assert result.verdict == "holds"
    assert 0.3 * result.claimed < result.measured < result.claimed
    unmark_null_rows(monkeypatch)
    assert play(columns(), runs=200, seed=1).broken


def unmark_null_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: no party marks a record as null, so that what others have of it goes on."""
    real = Columns.__init__

    def unmarked(self: Columns, place: Any, rows: Any, usable: Any, *more: Any) -> None:
        real(self, place, rows, np.ones_like(usable), *more)

    monkeypatch.setattr(Columns, "__init__", unmarked)


@pytest.mark.parametrize("game", [rows(), columns()], ids=["rows", "columns"])
def test_each_run_without_a_seed_has_noise_of_its_own(game: Game) -> None:
    assert len(set(game.statistics(0, 4, source(None)).tolist())) == 4


# Plans under one relation, on accounts under both


CROSSED = [
    *(("columns", "parties", plan, account) for plan in RELATIONS for account in RELATIONS),
    ("columns", "coordinator", "zero-out", "replace-one"),
    ("columns", "coordinator", "replace-one", "zero-out"),
    ("rows", "parties", "zero-out", "replace-one"),
    ("rows", "parties", "replace-one", "zero-out"),
]
CROSSED_ALARM = 1e-6 / len(CROSSED)  # all of these games together accuse a correct mechanism with 1e-6 at most


def crossed(split: str, adversary: Any, relation: Relation, account: Relation) -> Game:
    """By columns neighbours of all other parties agree on what these have: a part is blanked, or a label replaced."""
    plan = audit_plan(**{**(ROWS if split == "rows" else COLUMNS), "relation": relation})
    fields: dict[str, Any] = {}
    if (split, adversary) == ("columns", "parties"):
        blanked = {"records": BLANKED, "script": ((7.5, -1.1),)}
        replaced = {"records": ((0.28, 0.96, 1.0), (0.28, 0.96, -1.0), (math.nan,) * 3), "script": ((0.0, 0.0),)}
        fields = blanked if account == "zero-out" else replaced
    return Game("crossed", plan, adversary=adversary, account=account, **fields)


@functools.cache
def ruled_out(split: str, adversary: str, relation: Relation, account: Relation) -> float:
    """The mu that 300 runs of each side rule out, by the sign of the log-likelihood ratio."""
    game = crossed(split, adversary, relation, account)
    labels = (split, adversary, relation, account)
    first, second = (game.statistics(which, 300, source(1, *labels, which)) for which in (0, 1))
    return mu_of(errors_at(first, second, 0.0, CROSSED_ALARM))


@pytest.mark.parametrize(("split", "adversary", "relation", "account"), CROSSED)
def test_an_account_under_another_relation_is_charged_what_can_be_measured(
    split: str, adversary: str, relation: Relation, account: Relation
) -> None:
    charged = crossed(split, adversary, relation, account).claim().value
    assert 0 < ruled_out(split, adversary, relation, account) < charged


def test_the_charge_is_exceeded_where_null_rows_are_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """By parties that know a part of a record: what was blanked moves the slope of their own part."""
    unmark_null_rows(monkeypatch)
    blanked = [("columns", "parties", relation, "zero-out") for relation in RELATIONS]
    assert all(ruled_out.__wrapped__(*cell) > crossed(*cell).claim().value for cell in blanked)


def test_every_secure_plan_is_played_under_both_relations() -> None:
    relations: dict[tuple[str, str], set[str]] = {}
    for name, make in catalogue().items():
        if "secure" in name and (game := make()).holds:
            relations.setdefault((game.plan.digest.hex(), game.adversary), set()).add(game.relation)
    assert set(map(frozenset, relations.values())) == {frozenset(RELATIONS)}
    own = make_own_games(audit_plan(**{**ROWS, "relation": "replace-one"})).values()
    views = {(game.adversary, game.relation) for game in own if isinstance(game, Game)}
    assert views == set(itertools.product(("coordinator", "parties", "world"), RELATIONS))


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("solver", ["newton", "whitened"])
def test_whole_runs_by_columns_are_weighed(solver: str, loss: str) -> None:
    """Through set-up, Gram matrix, numbers and gradients: on its own side a run is likelier, by half of mu^2."""
    game = catalogue()[f"{solver} by columns, secure, coordinator"]()
    if loss == "logistic":
        fields = {**COLUMNS, "solver": solver, "rounds": game.plan.rounds, "bounds": Bounds.declare(row_norm=1.0)}
        if solver == "whitened":
            del fields["rounds"]
        fields |= {"loss": Named(name=loss), "classes": (-1, 1), "relation": "zero-out", "fit_intercept": True}
        game = Game("classes", audit_plan(**fields))
    first, second = (game.statistics(which, 12, lambda name, which=which: seeded(which, name)) for which in (0, 1))
    mu, error = game.claim().value, 1 / math.sqrt(12)
    # of a ratio the mean is at most mu^2 / 2 and the standard deviation mu: 5.2 of its mean
    assert first.mean() > 0 > second.mean()
    assert first.mean() < mu**2 / 2 + 5.2 * mu * error
    assert second.mean() > -(mu**2) / 2 - 5.2 * mu * error


def seeded(which: int, name: str) -> SeededRandomness:
    return SeededRandomness(5, str(which), name)


def test_a_secure_plan_of_ones_own_is_attacked_by_each_adversary() -> None:
    for fields in (ROWS, COLUMNS):
        plan = audit_plan(**{**fields, "epsilon": 1.0, "records": 300})
        scaled = at_audit_scale(plan)
        assert plan.split == "rows" or scaled.preparation.bits == plan.preparation.bits
        assert Game("", scaled).claim().value == pytest.approx(2.0, rel=0.05)
        for adversary in ("world", "coordinator", "parties"):
            assert Game("", scaled, adversary=adversary).statistics(0, 1, source(1)).shape == (1,)
