"""Job files: what they mean, and errors that name the key, its value, what is allowed and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import sottovoce as sv
from sottovoce import solvers
from sottovoce.app.jobs import load_job, load_party_job
from sottovoce.app.previews import plan_job
from sottovoce.errors import InputError


def test_a_job_becomes_an_estimator(write_job):
    path = write_job(
        model={"estimator": '"elastic-net"', "alpha": "0.1", "l1_ratio": "1"},
        solver={"name": '"gradient"', "rounds": "7"},
        privacy={"epsilon": "0.5", "delta": "1e-6", "relation": '"replace-one"'},
        bounds={"entry_bound": "2", "classes": None, "label_bound": "3.0", "rescale": '"unit"'},
        resources={"n_jobs": "2", "device": '"cpu"'},
    )
    model = load_job(path).estimator()
    assert type(model).__name__ == "PrivateElasticNet"
    given = model.get_params()
    expected = {
        "alpha": 0.1,
        "l1_ratio": 1,
        "solver": solvers.Gradient(rounds=7),
        "solver__rounds": 7,
        "epsilon": 0.5,
        "delta": 1e-6,
        "relation": "replace-one",
        "entry_bound": 2.0,
        "label_bound": 3.0,
        "rescale": "unit",
        "resources": sv.Resources(n_jobs=2, device="cpu"),
    }
    assert {key: given[key] for key in expected} == expected


def test_a_bound_for_each_feature(write_job):
    job = load_job(write_job(bounds={"entry_bound": "[1.0, 2, 0.5]"}))
    assert job.estimator().entry_bound == [1.0, 2.0, 0.5]
    assert job.bounds.entry_bound == [1.0, 2.0, 0.5]


@pytest.mark.parametrize("bound", ["true", '"1"', '["1", "2", "3"]', "[true, 1.0, 1.0]", "[[1.0], [2.0]]"])
def test_a_bound_of_entries_that_is_no_number(write_job, bound):
    with pytest.raises(InputError, match="entry_bound"):
        load_job(write_job(bounds={"entry_bound": bound}))


@pytest.mark.parametrize("bound", ["0", "-1.0", "inf", "nan", "[]", "[1.0, 0.0, 1.0]", "[1.0, nan, 1.0]", "[1.0, 1.0]"])
def test_a_bound_of_entries_out_of_range_costs_nothing(write_job, invoke, bound):
    result = invoke("plan", write_job(bounds={"entry_bound": bound}), code=2)
    assert "entry_bound" in result.stderr


def test_named_ranges_follow_the_columns(write_job):
    path = write_job(bounds={"entry_bound": None, "feature_ranges": "{ c = [4, 5], a = [0, 1], b = [2, 3] }"})
    plan = plan_job(load_job(path)).plan
    assert (plan.bounds.feature_low, plan.bounds.feature_high) == ((0, 2, 4), (1, 3, 5))


def test_ranges_in_the_order_of_the_columns(write_job):
    path = write_job(bounds={"entry_bound": None, "feature_ranges": "{ low = [0, 2, 4], high = [1, 3, 5] }"})
    assert load_job(path).estimator().feature_ranges == ([0, 2, 4], [1, 3, 5])


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ("{ a = [0, 1], b = [0, 1] }", ["no range for: c", "its low and high"]),
        ("{ a = [0, 1], b = [0, 1], cc = [0, 1] }", ["'cc'", "did you mean 'c'", "a, b, c"]),
        ("{ a = [0], b = [0, 1], c = [0, 1] }", ["a = [0.0]", "pair"]),
    ],
)
def test_ranges_that_do_not_fit_the_columns(write_job, invoke, ranges, says):
    path = write_job(bounds={"feature_ranges": ranges})
    for command in ("plan", "fit"):
        told = invoke(command, path, code=2).stderr
        assert all(part in told for part in ("feature_ranges", *says)), told


def test_paths_are_relative_to_the_job(write_job, monkeypatch, tmp_path):
    path = write_job()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    job = load_job(Path("..") / path.name)
    assert job.resolve(job.sources["data"].file).resolve() == tmp_path / "all.csv"
    assert job.outputs()["model"].resolve() == tmp_path / "job.json"


BAD = {
    "mistyped key": ({"privacy": {"epsilon": None, "epsilonn": "1"}}, ["'epsilonn'", "did you mean 'epsilon'"]),
    "mistyped table": ({"outputs": {}}, ["'outputs'", "did you mean 'output'"]),
    "mistyped parameter": ({"model": {"alpa": "1.0"}}, ["[model]", "'alpa'", "did you mean 'alpha'"]),
    "solver of a model": ({"model": {"solver": '"sgd"'}}, ["model.solver = 'sgd'", "belongs in [solver], as name"]),
    "option of a model": ({"model": {"rounds": "5"}}, ["model.rounds = 5", "belongs in [solver]"]),
    "unknown solver": ({"solver": {"name": '"newtn"'}}, ["solver.name = 'newtn'", "did you mean 'newton'", "auto, "]),
    "solver without a name": ({"solver": {"rounds": "5"}}, ["lacks solver.name", "sottovoce solvers"]),
    "options of no solver": ({"solver": {"name": '"auto"', "rounds": "5"}}, ["solver.rounds = 5", "name the solver"]),
    "mistyped option": (
        {"solver": {"name": '"cd"', "iner": "5"}},
        ["[solver] of name = 'cd'", "'iner'", "did you mean 'inner'", "curvature_share"],
    ),
    "option out of its range": (
        {"solver": {"name": '"cd"', "inner": "0"}},
        ["solver.inner=0", "whole number from 1", "leave it out for the default rule"],
    ),
    "option of another type": ({"solver": {"name": '"cd"', "inner": '"5"'}}, ["solver.inner='5'", "whole number"]),
    "unknown estimator": ({"model": {"estimator": '"forest"'}}, ["model.estimator = 'forest'", "elastic-net"]),
    "key of another table": ({"model": {"epsilon": "1"}}, ["model.epsilon", "belongs in [privacy]"]),
    "wrong type of a parameter": ({"model": {"fit_intercept": '"yes"'}}, ["model.fit_intercept = 'yes'", "bool"]),
    "epsilon zero": ({"privacy": {"epsilon": "0"}}, ["privacy.epsilon = 0", "above 0"]),
    "epsilon negative": ({"privacy": {"epsilon": "-1.0"}}, ["privacy.epsilon = -1.0", "above 0"]),
    "epsilon not a number": ({"privacy": {"epsilon": "nan"}}, ["privacy.epsilon = nan", "above 0"]),
    "epsilon a text": ({"privacy": {"epsilon": '"1"'}}, ["privacy.epsilon = '1'", "above 0"]),
    "no epsilon": ({"privacy": {"epsilon": None}}, ["lacks privacy.epsilon", "above 0"]),
    "delta one": ({"privacy": {"delta": "1.0"}}, ["privacy.delta = 1.0", "between 0 and 1"]),
    "relation": ({"privacy": {"relation": '"add"'}}, ["privacy.relation = 'add'", "replace-one"]),
    "row norm": ({"bounds": {"row_norm": "-1"}}, ["bounds.row_norm = -1", "above 0"]),
    "one class": ({"bounds": {"classes": "[1]"}}, ["bounds.classes = [1]", "the labels"]),
    "no data": ({"data": None}, ["names no data", "[data]", "[[party]]", "[federation]"]),
    "no model": ({"model": None}, ["lacks model", "estimator"]),
    "about, mistyped": ({"about": {"analist": '"A"'}}, ["[about]", "'analist'", "did you mean 'analyst'"]),
    "about, two lines": ({"about": {"note": '"a\\nb"'}}, ["about.note = 'a\\nb'", "one line"]),
    "records": ({"data": {"records": "0"}}, ["data.records = 0", "at least 1"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_job_is_explained(write_job, invoke, case):
    changes, says = BAD[case]
    path = write_job(**changes)
    for command in ("plan", "fit"):
        result = invoke(command, path, code=2)
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert str(path) in result.stderr
        assert all(part in result.stderr for part in says), result.stderr
        assert result.stdout == ""


def test_two_kinds_of_data_are_refused(write_job, parties):
    with pytest.raises(InputError, match=r"\[data\] and \[party\]; give exactly one"):
        load_job(write_job(more=parties()))


def test_two_parties_of_one_name(write_job, parties):
    with pytest.raises(InputError, match="two parties share a name"):
        load_job(write_job(data=None, more=parties().replace("south", "north")))


def test_bounds_of_another_kind_of_model(write_job):
    job = load_job(write_job(bounds={"label_bound": "1.0"}))
    with pytest.raises(InputError, match=r"bounds.label_bound = 1.0 is for regression"):
        job.estimator()


@pytest.mark.parametrize(
    ("columns", "holder", "labelled"),
    [
        ("", "north", ["north", "south"]),
        ('labels = "public"\nlabel_party = "south"', "south", ["north", "south"]),
        ('labels = "held"', "north", ["north"]),
        ('labels = "held"\nlabel_party = "south"', "south", ["south"]),
    ],
)
def test_who_knows_the_labels(write_job, columns, holder, labelled):
    job = load_job(write_job(data=None, more=f"{FEDERATION}[columns]\n{columns}\n"))
    assert (job.split, job.label_party, job.parties) == ("columns", holder, ["north", "south"])
    assert [name for name in job.parties if job.labelled(name)] == labelled


def test_other_splits(write_job, parties):
    assert load_job(write_job()).split == "central"
    job = load_job(write_job(data=None, more=parties()))
    assert (job.split, job.parties, job.labelled("south")) == ("rows", ["north", "south"], True)


FEDERATION = """
[federation]
listen = "127.0.0.1:0"
certificates = "certificates"
parties = ["north", "south"]
"""


@pytest.mark.parametrize(
    ("changes", "more", "says"),
    [
        ({"bounds": {"classes": None}}, "", "lacks bounds.classes"),
        ({"model": {"insecure_seed": "1"}}, "", "insecure_seed is for parties in this process"),
        ({}, "records = { north = 3 }", "federation.records names north where the parties are north, south"),
    ],
)
def test_a_federation_that_cannot_be(write_job, changes, more, says):
    with pytest.raises(InputError, match=says):
        load_job(write_job(data=None, more=FEDERATION + more, **changes))


@pytest.mark.parametrize(
    ("content", "says"), [(b"[model", "is not TOML"), (b"\xff\xfe", "not UTF-8"), (None, "cannot be read")]
)
def test_a_file_that_is_no_job(tmp_path, content, says):
    path = tmp_path / "job.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        load_job(path)


def test_a_remote_party_needs_a_ledger(tmp_path):
    path = tmp_path / "party.toml"
    text = '[party]\nname = "north"\nfile = "north.csv"\nlabel = "out"\n{}[federation]\ncoordinator = "localhost:1"\n'
    path.write_text(text.format("") + 'certificates = "c"\n')
    with pytest.raises(InputError, match="a restart would forget what was released"):
        load_party_job(path)
    path.write_text(text.format('ledger = "north.db"\n') + 'certificates = "c"\n')
    assert load_party_job(path).party.ledger == "north.db"


def test_a_cluster_needs_its_extra_and_whole_rows(write_job, invoke, monkeypatch, parties):
    monkeypatch.setitem(sys.modules, "distributed", None)
    data = {"file": '"all.csv"', "label": '"out"', "cluster": '"tls://scheduler:8786"'}
    result = invoke("fit", write_job(data=data, solver={"name": '"newton"'}, bounds={"row_norm": "1.0"}), code=2)
    assert 'pip install "sottovoce[cluster]"' in " ".join(result.stderr.split())
    more = parties().replace('label = "out"', 'label = "out"\ncluster = "tls://scheduler:8786"') + "\n[columns]\n"
    with pytest.raises(InputError, match="cluster = 'tls://scheduler:8786', which is for whole rows"):
        load_job(write_job(data=None, more=more))
