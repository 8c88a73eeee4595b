"""Every registered solver, in all its splits and forms, against the deterministic checks.

Statistical ones (scale, coins) accuse a correct mechanism less often than 1e-6, all together; seeds are fixed.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sottovoce import algorithms
from sottovoce import solvers as options
from sottovoce.secure import dealer
from sottovoce.secure.columns import Columns
from sottovoce.solvers import Gradient

sys.path.insert(0, str(Path(__file__).parent))
import checks

from plans import FORMS

CASES, PUBLISHED, SECURE = checks.cases(), checks.published(), checks.secure_cases()
ALL = {**CASES, **PUBLISHED}
LOOSE = {
    "LocalScores": 0.4,  # its bound is over all matrices of the other columns
    "FeatureSketch": 0.9,  # as published: over all columns of a random matrix
    "FeatureWithinNorm": 0.55,  # of the columns of all parties together
    "PrimalState": 0.8,  # attained where all rows have the same entry (test_queries.py)
    "CountCells": 0.95,  # attained by scores at a node and a residual at its end (tests/algorithms/test_queries.py)
    "SequentialState": 0.3,  # if the others of a lot do not answer the record (likewise, for lots of one)
}

each = pytest.mark.parametrize("name", CASES)
by_columns = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.split == "columns"])
plain = pytest.mark.parametrize("name", [name for name in CASES if "logistic" not in name])  # the loss makes no noise
sampling = [name for name, case in CASES.items() if any(release.rate for release in case.plan().releases)]
keeping = [name for name, case in CASES.items() if any(r.mechanism == "kept" for r in case.plan().releases)]
people = [name for name in CASES if "a feature" not in name and "logistic" not in name]


@pytest.mark.parametrize("name", ALL)
def test_numbers_about_each_person_are_declared(name: str) -> None:
    checks.declared_people(ALL[name])


def test_every_solver_split_and_form_has_a_case() -> None:
    served = {(case.solver, case.split) for case in CASES.values()}
    noisy = [form for form in FORMS if form.private is not False]
    assert served == {(form.name, split) for form in noisy if not form.published for split in form.splits}
    secure = {(case.solver, case.split) for case in SECURE.values()}
    assert secure == {(form.name, split) for form in noisy if not form.published for split in form.secure}
    every = (*CASES.values(), *PUBLISHED.values(), *SECURE.values())
    reached = {type(algorithms.of(case.plan())) for case in every}
    assert set(map(type, noisy)) == checks.forms_with_noise()
    # by rows neighbours that are whole people are in tests/algorithms/test_people.py; times are not drawn here
    elsewhere = {type(form) for form in noisy if (form.people and "columns" not in form.secure) or "time" in form.kinds}
    assert reached == {type(form) for form in noisy} - elsewhere


def test_a_new_solver_is_covered_without_a_line_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newcomer(type(algorithms.forms("gradient")[0])):  # type: ignore[misc]
        name = "newcomer"

    class NewcomerOptions(Gradient):
        name = "newcomer"

    monkeypatch.setitem(sys.modules, "newcomer", SimpleNamespace(FORMS=(Newcomer(),)))  # type: ignore[arg-type]
    monkeypatch.setitem(algorithms.SOLVERS, "newcomer", "newcomer")
    monkeypatch.setitem(options.SOLVERS, "newcomer", NewcomerOptions)  # type: ignore[arg-type]
    added = [case for case in checks.cases().values() if case.solver == "newcomer"]
    assert {case.split for case in added} == {"central", "rows"}
    checks.support(added[0])


@functools.cache
def reached(name: str) -> dict[str, float]:
    return checks.sensitivity(ALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_no_record_moves_a_message_further_than_its_query_says(name: str) -> None:
    reached(name)


@pytest.mark.slow
def test_no_record_moves_a_secure_sum_further_than_was_charged() -> None:
    found: dict[str, float] = {}
    for case in SECURE.values():
        if case.split == "columns":
            for query, share in checks.secure_sensitivity(case).items():
                assert share > 0.9, f"{case.name}: {query} moved by {share:.3g} of its bound"
                found[query] = max(found.get(query, 0.0), share)
    assert {query for query, share in found.items() if share > 0.99} >= {"GramMatrix", "JointGradient"}


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["gradient", "whitened"])
def test_null_rows_that_are_not_marked_are_found(monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    real = Columns.__init__

    def unmarked(self: Columns, place: Any, rows: Any, usable: Any, *more: Any) -> None:
        real(self, place, rows, np.ones_like(usable), *more)

    monkeypatch.setattr(Columns, "__init__", unmarked)
    with pytest.raises(AssertionError, match="moved by"):
        checks.secure_sensitivity(SECURE[f"{solver}, columns, secure"])


@pytest.mark.slow
def test_rows_that_are_not_clipped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealer, "factors", lambda: np.full(128, 31))
    with pytest.raises(AssertionError, match="gradient: moved by"):
        checks.secure_sensitivity(SECURE["whitened, columns, secure"])


@pytest.mark.slow
def test_every_bound_is_attained_by_a_canary() -> None:
    found: dict[str, float] = {}
    for name in ALL:
        if name != "admm, columns, as published":  # it has no bound
            for query, share in reached(name).items():
                found[query] = max(found.get(query, 0.0), share)
    assert {query: share for query, share in found.items() if share < 0.99 and query not in LOOSE} == {}
    assert all(found[query] > share for query, share in LOOSE.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_all_messages_together_cost_no_more_than_is_charged(name: str) -> None:
    share = checks.composition(ALL[name])
    if name in ("gradient, central", "cd, central", "one-shot, columns", "admm, columns", "fdml, columns"):
        assert share > 0.95  # so a cost that were left out would show


@pytest.mark.slow
@plain
def test_noise_has_the_planned_scale(name: str) -> None:
    checks.scale(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sampling)
def test_every_record_has_its_own_coin(name: str) -> None:
    checks.coins(CASES[name])


@pytest.mark.slow
@plain
def test_noise_has_full_rank_and_knows_nothing_of_the_data(name: str) -> None:
    checks.rank(CASES[name])


@pytest.mark.slow
@each
def test_noise_is_never_used_twice(name: str) -> None:
    checks.fresh(CASES[name])


def test_parties_have_sources_of_their_own() -> None:
    checks.own_randomness()


@pytest.mark.slow
@each
def test_messages_do_not_show_who_was_drawn(name: str) -> None:
    checks.support(CASES[name])


@pytest.mark.slow
@each
def test_messages_look_the_same_for_all_data(name: str) -> None:
    checks.metadata(CASES[name])


@pytest.mark.slow
@each
def test_a_key_has_one_release(name: str) -> None:
    checks.once(CASES[name])


@pytest.mark.slow
@by_columns
def test_one_label_moves_no_more_than_its_bound(name: str) -> None:
    assert checks.labels(CASES[name]) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", keeping)
def test_kept_rows_have_one_noise(name: str, tmp_path: Path) -> None:
    checks.persistence(CASES[name])
    checks.kept_rows(CASES[name], tmp_path)


def test_the_accountant_is_frozen() -> None:
    checks.accountant()


@pytest.mark.slow
@pytest.mark.parametrize("name", people)
def test_every_run_is_charged(name: str, tmp_path: Path) -> None:
    checks.ledger(CASES[name], tmp_path)


@plain
def test_a_plan_costs_its_epsilon_and_says_so(name: str) -> None:
    checks.budget(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if "logistic" not in name])
def test_parties_are_charged_for_all_that_they_serve(name: str, tmp_path: Path) -> None:
    checks.served(ALL[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradient, rows", "score, columns", "admm, columns, labels held"])
def test_a_plan_is_answered_once_everybody_signed_it(name: str) -> None:
    checks.signed(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["score, columns", "frank-wolfe, columns", "one-shot, columns", "fdml, columns"])
def test_a_model_is_earned_and_approved(name: str) -> None:
    checks.earned(CASES[name])


@pytest.mark.slow
@each
def test_nonsense_of_a_coordinator_is_refused(name: str) -> None:
    checks.nonsense(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.split != "central"])
def test_the_model_reads_what_the_world_pays_for(name: str) -> None:
    as_dear = (
        *("one-shot", "frank-wolfe", "sgd, rows, one party", "admm, columns, a feature"),
        "evaluation, columns",  # one party answers
    )
    assert checks.world(CASES[name]) == (not name.startswith(as_dear))


@pytest.mark.slow
def test_published_forms_fail_where_they_are_known_to() -> None:
    for check, name in (
        (checks.support, "scd, central, as published"),
        (checks.rank, "admm, columns, as published"),
        (checks.metadata, "admm, columns, as published"),
    ):
        with pytest.raises(AssertionError):
            check(PUBLISHED[name])
