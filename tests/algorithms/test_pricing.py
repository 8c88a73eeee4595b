"""No plan is accepted and then served beyond its charge, whatever a coordinator multiplies in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import serving
from plans import PLANS, SECURE, plan_for
from sottovoce import algorithms
from sottovoce.algorithms.description import CountedColumns, Cut, Described
from sottovoce.algorithms.ranges import CountedRanges
from sottovoce.algorithms.sgd import RecordGradient
from sottovoce.data.bounds import Bounds
from sottovoce.gate.query import Query, Scheduled, Turn
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.privacy.events import Unbounded
from sottovoce.queries.pricing import Pricing, queries_of
from support import events_of

FACTORS = (2, 5, 0)  # few enough that all rounds are asked for
STRANGE = (-1, math.nan, math.inf, 1e300, 1e-300)


def times(value: Any, factor: float) -> Any:
    """A number, or each number of a list, multiplied; what is no number as it is, and 0 replaced by the factor."""
    if isinstance(value, list):
        return [times(each, factor) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value * factor or factor


def tampered(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """The plan with one thing multiplied, and with what belongs together multiplied together."""
    known: dict[str, Any] = json.loads(plan.to_json())
    counts = range(len(known["releases"]))

    def with_releases(factor: float, *names: str, only: int | None = None) -> list[dict[str, Any]]:
        changed = (lambda place: True) if only is None else (lambda place: place == only)
        return [
            release | {name: times(release[name], factor) for name in names if changed(place)}
            for place, release in enumerate(known["releases"])
        ]

    for factor in FACTORS:
        for name, value in known["numbers"].items():
            yield f"{name} x {factor}", known | {"numbers": known["numbers"] | {name: times(value, factor)}}
        for place in counts:
            query = known["releases"][place]["query"]
            for names in (
                ("count",),
                ("first",),
                ("first", "count"),
                ("batches",),
                ("std",),
                ("step",),
                ("rate",),
                ("charged_zero_out", "charged_replace_one"),
                ("std", "charged_zero_out", "charged_replace_one"),
            ):
                changed = with_releases(factor, *names, only=place)
                yield f"{' and '.join(names)} of {query} x {factor}", known | {"releases": changed}
        rounds, often = times(known["rounds"], factor), with_releases(factor, "count")
        numbers = {name: times(value, factor) for name, value in known["numbers"].items()}
        whole = {n: times(v, factor) if isinstance(v, int) else v for n, v in known["numbers"].items()}
        yield f"rounds x {factor}", known | {"rounds": rounds}
        yield f"all counts x {factor}", known | {"releases": often}
        yield f"rounds and all counts x {factor}", known | {"rounds": rounds, "releases": often}
        yield (
            f"rounds, counts and whole numbers x {factor}",
            known | {"rounds": rounds, "releases": often, "numbers": whole},
        )
        yield f"all numbers x {factor}", known | {"numbers": numbers}
        yield f"parties x {factor}", known | more_parties(known, factor)
        yield f"parties and all counts x {factor}", known | more_parties(known, factor) | {"releases": often}
        yield (
            f"records of the others x {factor}",
            known | {"parties": [known["parties"][0], *([name, times(n, factor)] for name, n in known["parties"][1:])]},
        )
        yield f"all records x {factor}", known | {"parties": [[name, times(n, factor)] for name, n in known["parties"]]}
        yield f"features x {factor}", known | {"features": times(known["features"], factor)}
    for value in STRANGE:
        for name in known["numbers"]:
            yield f"{name} = {value}", known | {"numbers": known["numbers"] | {name: value}}
        for place in counts:
            release = known["releases"][place]
            for name in ("std", "step", "charged_zero_out", "charged_replace_one", "rate", "count", "first", "batches"):
                changed = [
                    release | {name: value} if k == place else other for k, other in enumerate(known["releases"])
                ]
                yield f"{name} of {release['query']} = {value}", known | {"releases": changed}
    for place in counts:
        sampled = [release | ({"rate": 1e-3} if place == k else {}) for k, release in enumerate(known["releases"])]
        yield f"a sample of {known['releases'][place]['query']}", known | {"releases": sampled}
    yield "parties in another order", known | {"parties": known["parties"][::-1]}
    yield "parties without the first", known | {"parties": known["parties"][1:]}
    yield "the first party alone", known | {"parties": known["parties"][:1]}
    for labels in ("public", "shared", "held"):
        yield f"labels {labels}", known | {"labels": labels}
    yield "labels with another", known | {"label_party": 1 - known["label_party"]}
    for split in ("central", "rows", "columns"):
        yield f"split {split}", known | {"split": split}
    yield "another coin", known | {"coin": "another"}
    yield "no releases", known | {"releases": []}


def more_parties(known: dict[str, Any], factor: int) -> dict[str, Any]:
    """So many times the parties: those that are there, and others like them; with 0 none at all."""
    people = known["parties"] * factor
    own = len(known["parties"])
    named = [[name if place < own else f"{name}, {place}", n] for place, (name, n) in enumerate(people)]
    if known["split"] != "columns":
        return {"parties": named}
    norms = [norm / math.sqrt(max(factor, 1)) for norm in known["norms"]] * factor
    columns = known["columns"] * factor
    return {"parties": named, "columns": columns, "norms": norms, "features": sum(columns)}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_no_plan_is_served_beyond_its_charge(name: str, tmp_path: Path) -> None:
    form, split, more = PLANS[name]
    fenced(plan_for(form, split, **more), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["central", "rows", "columns"])
def test_no_plan_of_ranges_is_served_beyond_its_charge(split: Any, tmp_path: Path) -> None:
    """It fits nothing, so no solver has it. By columns one party has a column and the label, the other a column."""
    alone, joint = split == "central", split == "columns"
    fields = audit_plan("fdml" if joint else "gradient", split, 1 if alone else 2, 1 if joint else 2, 6)
    bare = {"bounds": Bounds(), "norms": (), "relation": "zero-out"}
    problem = Problem(**{name: getattr(fields, name) for name in Problem.model_fields} | bare)
    fenced(algorithms.plan_by(CountedRanges(), problem, (0, 1, 2), run="run", coin="coin"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["central", "rows", "columns"])
def test_no_description_is_served_beyond_its_charge(split: Any, tmp_path: Path) -> None:
    alone, joint = split == "central", split == "columns"
    fields = audit_plan("fdml" if joint else "gradient", split, 1 if alone else 2, 1 if joint else 2, 6)
    bare = {"bounds": Bounds(), "norms": (), "relation": "zero-out"}
    problem = Problem(**{name: getattr(fields, name) for name in Problem.model_fields} | bare)
    cuts = (Cut(place=0, scale="linear"), Cut(place=1, scale="levels", cells=2))
    for by in (None, 1):
        options = Described(columns=cuts, by=by)
        fenced(algorithms.plan_by(CountedColumns(), problem, options, run="run", coin="coin"), tmp_path)


def fenced(plan: Plan, tmp_path: Path) -> None:
    """Whatever is multiplied in a plan, nobody serves more of it than was charged; the plan itself is served."""
    holders = serving.Holders(plan, tmp_path)
    priced = not any(isinstance(event, Unbounded) for event in events_of(plan))
    # a plan of ours is served in full, so the harness sees all there is; no account pays for what has no price
    assert serving.check(holders, plan.to_json()) == ((len(plan.parties), answers_of(plan)) if priced else (0, 0))
    accepted, tried = 0, {plan.to_json()}
    for what, fields in tampered(plan):
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        if text in tried:  # a party alone has no others whose records could be multiplied
            continue
        tried.add(text)
        try:
            accepted += serving.check(holders, text)[1] > 0
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
    assert (accepted > 0) == priced


@pytest.mark.parametrize("name", [name for name, (form, _, _) in PLANS.items() if form.private is not False])
def test_an_account_is_charged_under_its_own_relation(name: str, tmp_path: Path) -> None:
    """A plan that was made for zero-out costs more where a record may be replaced, and is charged that much."""
    form, split, more = PLANS[name]
    plan = plan_for(form, split, **more)
    holders = serving.Holders(plan, tmp_path, "replace-one")
    assert holders.relation != plan.relation
    known = json.loads(plan.to_json())
    for releases in (known["releases"], [release | {"count": 7 * release["count"]} for release in known["releases"]]):
        serving.check(holders, json.dumps(known | {"releases": releases}))


def answers_of(plan: Plan) -> int:
    """How many answers the plan's own words promise."""
    total = 0
    for party in plan.names:
        for query in queries_of(algorithms.of(plan), plan, party).values():
            if plan.has(query.name) and plan.release(query.name).mechanism != "kept":
                release = plan.release(query.name)
                total += query.answered_by.rounds(plan, party, release.first, release.count)
    return total


@pytest.mark.parametrize("name", [name for name, (_, split, _) in PLANS.items() if split == "rows"])
def test_what_some_parties_answer_is_no_sum_over_all(name: str) -> None:
    """The world's price of a sum counts every party's noise, so every party must be in it."""
    form, split, more = PLANS[name]
    plan = plan_for(form, split, **more)
    for query in queries_of(form, plan, plan.names[0]).values():
        if query.world_sees == "sum" and plan.has(query.name):
            release = plan.release(query.name)
            for number in range(release.first, release.first + release.count):
                assert query.answered_by.parties(plan, number) == plan.names


def test_every_form_has_a_plan_here() -> None:
    every = {form for form, _, _ in (*PLANS.values(), *SECURE.values())}
    assert every == {*algorithms.every_form(), *algorithms.forms("evaluation")}


WRONG: dict[str, tuple[str, type, str, Any]] = {
    "rounds that are not counted": ("gradient, private, rows", Turn, "rounds", lambda *_: 1),
    "a record that is in one round": ("gradient, private, rows", Query, "uses", lambda *_: 1),
    "a named record that is in one round": ("sgd, published, rows", RecordGradient, "uses", lambda *_: 1),
    "a schedule that counts one turn": ("sgd, private, rows, one party a round", Scheduled, "rounds", lambda *_: 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_the_fence_finds_what_is_not_charged(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a plan of ours is served beyond its charge, with the party's own recount out of the way."""
    name, owner, method, instead = WRONG[wrong]
    form, split, more = PLANS[name]
    plan = plan_for(form, split, **{"rounds": 60} | more)
    holders = serving.Holders(plan, tmp_path)
    assert serving.check(holders, plan.to_json())[1] > 0
    monkeypatch.setattr(owner, method, instead)
    monkeypatch.setattr(Pricing, "check_served", lambda *_: None)
    with pytest.raises(AssertionError, match="was charged"):
        serving.check(holders, plan.to_json())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rounds", "__call__"])
def test_a_party_counts_what_it_would_serve(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that answers more than it counts is refused before anything is charged."""
    form, split, more = PLANS["sgd, private, rows, one party a round"]
    holders = serving.Holders(plan_for(form, split, **more), tmp_path)
    monkeypatch.setattr(Scheduled, method, (lambda *_: 0) if method == "rounds" else (lambda *_: True))
    accounts, answers, _ = holders.serve(plan_for(form, split, **more).to_json())
    assert (accounts, answers) == ({}, [])


def test_a_copied_problem_derives_anew() -> None:
    problem = audit_plan("gradient", "rows", 3, relation="zero-out", rounds=2).changed_problem()
    changed = problem.model_copy(update={"epsilon": math.inf, "parties": (("one", 7),)})
    assert problem.private
    assert not changed.private
    assert (changed.names, changed.records) == (("one",), 7)
