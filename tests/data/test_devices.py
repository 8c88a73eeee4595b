"""Where sums are computed: what is asked for is checked, and told to those who have no device."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from plans import PLANS, SECURE, plan_for
from sottovoce import algorithms
from sottovoce.data import resources
from sottovoce.data.block import BlockRows, SumRows, kind_of_rows
from sottovoce.data.device.pieces import Arrays, loop_shape
from sottovoce.data.matrix import dense
from sottovoce.errors import InputError
from sottovoce.federation.policy import check_place


def test_a_device_that_is_none_is_refused() -> None:
    model = sv.PrivateRidge(epsilon=1.0, row_norm=1.0, label_bound=1.0, resources=sv.Resources(device="tpu"))
    with pytest.raises(InputError, match="device='tpu' must be one of 'cpu', 'cuda'"):
        model.fit(np.eye(40), np.zeros(40))


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
def test_without_cupy_the_extra_is_named() -> None:
    with pytest.raises(InputError, match=r"needs CuPy \(pip install sottovoce\[gpu\]\) and an NVIDIA"):
        resources.check_resources(resources.Resources(device="cuda"))


def test_what_rows_do_not_serve_where_they_lie_is_refused() -> None:
    plans = {
        (name, form.form): (form, plan_for(form, "central"))
        for name in ("scd", "newton", "whitened")
        for form in algorithms.forms(name)
        if form.form in ("private", "exact")
    }

    def check(name: str, form: str, device: str = "cpu", *, by_pieces: bool = False, clustered: bool = False) -> None:
        own, plan = plans[name, form]
        assert algorithms.of(plan) is own
        kind = kind_of_rows(resources.Resources(device=device), by_pieces=by_pieces)
        check_place(plan, plan.names[0], kind, by_pieces=by_pieces, clustered=clustered)

    check("scd", "private")
    with pytest.raises(sv.RefusedError, match=r"newton, gradient, sgd, whitened, and not scd; .* device=.cpu"):
        check("scd", "private", "cuda")
    with pytest.raises(sv.RefusedError, match="is for runs with privacy"):
        check("newton", "exact", "cuda")
    with pytest.raises(sv.RefusedError, match="is for rows of this process"):
        check("newton", "private", "cuda", by_pieces=True, clustered=True)
    check("newton", "private", "cuda")
    check("newton", "private", "cuda", by_pieces=True)
    check("scd", "private")
    with pytest.raises(sv.RefusedError, match="a Dataset serves newton, gradient, sgd, whitened, and not scd"):
        check("scd", "private", by_pieces=True)
    for form in ("private", "exact"):
        check("whitened", form, by_pieces=True)


def test_which_rows_serve_a_solver_follows_from_its_queries() -> None:
    served = ("newton", "gradient", "sgd", "whitened")
    assert algorithms.served(SumRows) == algorithms.served(BlockRows) == served
    assert {"cd", "scd", "greedy-cd", "frank-wolfe"} <= set(algorithms.SOLVERS) - set(served)


@pytest.mark.parametrize("name", [*PLANS, *SECURE])
def test_a_form_asks_what_it_says(name: str) -> None:
    """Else a file could be told to serve a solver that looks at single records of all."""
    form, split, more = {**PLANS, **SECURE}[name]
    plan = plan_for(form, split, **more)
    queries = [query for party in plan.names for query in form.queries(plan, party)]
    assert all(isinstance(query, form.asks) for query in queries)
    if split != "columns" and form.name in algorithms.SOLVERS:
        enough = all(query.needs in BlockRows.__mro__ for query in queries)
        assert enough == (form.name in algorithms.served(BlockRows) and not form.people)  # whose rows lie together


def test_auto_takes_a_solver_that_the_rows_serve() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((900, 3))
    common = {"epsilon": 1.0, "delta": 1e-5, "entry_bound": [1.0, 9.0, 1.0], "label_bound": 3.0, "insecure_seed": 1}
    model, data = sv.PrivateRidge(**common), sv.Dataset.from_arrays(X, X[:, 0])
    assert model.fit(X, X[:, 0]).plan_.algorithm == "cd"
    assert model.fit(data).plan_.algorithm == "whitened"
    with pytest.raises(sv.RefusedError, match="a Dataset serves newton"):
        model.set_params(solver="cd").fit(data)
    with pytest.raises(InputError, match="by columns give arrays"):
        sv.Federation.by_columns([data, X], X[:, 0])


@pytest.mark.parametrize("width", [1, 32, 33, 90, 128, 250, 500, 512])
@pytest.mark.parametrize("shared", [64 * 1024, 99 * 1024, 227 * 1024])
def test_the_shape_of_a_loop_covers_its_columns_and_has_room(width: int, shared: int) -> None:
    columns, rows, size = loop_shape(width, shared)
    assert 32 * columns >= width > 32 * (columns - 1)
    assert 32 % rows == 0
    assert size >= 4 * 2 * rows * width * 4  # four warps have two tiles each
    assert size + 1024 <= shared


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix, sp.coo_matrix])
def test_arrays_come_in_pieces_with_their_labels(form: Any) -> None:
    X, y = np.arange(30.0).reshape(10, 3), np.arange(10)
    source = Arrays(form(X), y)
    assert source.shape == (10, 3)
    assert source.density == (2.9 if form is not np.asarray else 3.0)
    rows, labels = zip(*source.pieces(4), strict=True)
    assert [len(part) for part in labels] == [4, 4, 2]
    assert np.array_equal(np.vstack([dense(part) for part in rows]), X)
    assert np.array_equal(np.concatenate(labels), y)
    for wrong in (y[:9], np.zeros((10, 2)), np.zeros(11)):
        with pytest.raises(InputError, match="give one label per row"):
            Arrays(form(X), wrong)
