"""`sottovoce solvers`: the list of solvers, and one with its options."""

from __future__ import annotations

import json

import pytest

from sottovoce import algorithms
from sottovoce.solvers import SOLVERS


def test_the_list_has_every_solver(invoke):
    shown = " ".join(invoke("solvers").stdout.split())
    for name, kind in SOLVERS.items():
        assert f"{name} {kind.summary()}" in shown
    listed = json.loads(invoke("solvers", "--json").stdout)["solvers"]
    assert [entry["name"] for entry in listed] == list(algorithms.SOLVERS)
    for entry in listed:
        forms = algorithms.forms(entry["name"])
        assert set(entry["splits"]) == {split for form in forms for split in form.splits}
        assert [form["name"] for form in entry["forms"]] == [form.form for form in forms]
        assert ("published" in entry["promises"]) == any(form.published for form in forms)
        assert [option["name"] for option in entry["options"]] == list(SOLVERS[entry["name"]].names())
        assert entry["losses"]
    by_name = {entry["name"]: entry for entry in listed}
    assert by_name["one-shot"]["losses"] == ["squared"]
    assert by_name["one-shot"]["promises"] == ["private", "published"]
    assert by_name["score"]["promises"] == ["private", "without privacy"]
    (feature,) = [form for form in by_name["admm"]["forms"] if form["chosen_by"] == {"unit": "feature"}]
    assert "column_norm" in feature["options"]
    assert "hinge" in by_name["scd"]["losses"]
    assert by_name["scd"]["penalties"] == ["l2"]
    assert "hinge" not in by_name["cd"]["losses"]


@pytest.mark.parametrize("name", SOLVERS)
def test_one_solver_has_its_options_with_ranges_and_rules(invoke, name):
    shown = invoke("solvers", name).stdout
    assert f"sottovoce.solvers.{SOLVERS[name].__name__}(...)" in shown
    for option in SOLVERS[name].described():
        assert option.name in shown
    entry = json.loads(invoke("solvers", name, "--json").stdout)
    assert entry["options"] == [vars(option) for option in SOLVERS[name].described()]


def test_an_unknown_solver_is_bad_input(invoke):
    told = invoke("solvers", "newtn", code=2).stderr
    assert "solver='newtn' is unknown; did you mean 'newton'? There are: newton, gradient" in told
    assert "SGD2 is 'gradient' here, with calibration='paper'" in invoke("solvers", "sgd2", code=2).stderr


def test_a_solver_tells_what_papers_call_it(invoke):
    assert "In papers: DP-SCD, SDCA, CoCoA." in " ".join(invoke("solvers", "scd").stdout.split())
    assert "In papers" not in invoke("solvers", "newton").stdout
