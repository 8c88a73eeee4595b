"""The threads race, so nothing here depends on who wins: limits, feasibility and bookkeeping."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.errors import InputError
from sottovoce.lab import bcfw
from sottovoce.penalties import BoxSet, Product, Simplex


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("bcfw")]


@pytest.mark.parametrize(("workers", "tau"), [(1, 1), (2, 3), (4, 2), (3, 6)])
@pytest.mark.parametrize("name", ["boxes", "simplices", "mixed"])
def test_the_limit_is_the_minimum(problems, name, workers, tau):
    problem = problems[name]
    found = bcfw.solve_parallel(
        problem.f, problem.M, tau=tau, workers=workers, rounds=1000, start=problem.start, generator=0
    )
    scale = bcfw.block_curvatures(problem.f, problem.M).sum()
    assert problem.M.contains(found.x)
    assert found.value == pytest.approx(problem.f.value(found.x))
    assert -1e-9 <= problem.gap(found.x) <= found.gap + 1e-9
    # Measured: below 1e-4 of the scale, whoever wins.
    assert problem.gap(found.x) <= 0.003 * scale
    assert found.updates == 1000 * tau
    assert 0 <= found.mean_delay <= found.largest_delay <= 1000
    assert not threads()


def test_sparse_data_a_user_s_objective_and_records():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, 12)) * (rng.random((30, 12)) < 0.5)
    M = Product((Simplex(1.0), BoxSet(-1, 1)) * 3, (2,) * 6)
    f = bcfw.logistic(sp.csr_array(A), np.sign(rng.standard_normal(30)))

    class Plain(bcfw.Objective):
        dimension = 12

        def value(self, x):
            return f.value(x)

        def gradient(self, x, part=slice(None)):
            return f.gradient(x, part)

    least = bcfw.solve(f, M, bcfw.Elementary(6), rounds=400, step="line-search", tolerance=1e-3).value
    for objective in (f, Plain()):
        found = bcfw.solve_parallel(objective, M, tau=2, workers=2, rounds=600, every=100, generator=1)
        assert found.trace.rounds.tolist() == list(range(0, 601, 100))
        assert found.value - least < 0.02
        assert found.trace.gaps[-1] == found.gap < found.trace.gaps[0]


def test_it_stops_at_the_tolerance(problems):
    problem = problems["scalars"]
    found = bcfw.solve_parallel(problem.f, problem.M, tau=2, rounds=100_000, tolerance=0.2)
    assert found.gap <= 0.2
    assert found.rounds < 100_000
    none = bcfw.solve_parallel(problem.f, problem.M, tau=2, rounds=0, start=problem.start)
    np.testing.assert_array_equal(none.x, problem.start)


def test_duplicates_are_replaced_and_every_round_moves_tau_blocks():
    """All six blocks a round: about 6 (1 + 1/2 + ... + 1/6) - 6 = 8.7 answers are for a block that has one."""
    seen = []

    def steps(k):
        seen.append(k)
        return 0.0

    f = bcfw.least_squares(np.eye(6), np.ones(6))
    M = Product((BoxSet(0, 1),) * 6, (1,) * 6)
    found = bcfw.solve_parallel(f, M, tau=6, workers=2, rounds=200, step=steps, generator=0)
    assert seen == list(range(200))
    assert found.updates == 1200
    assert 6 < found.replaced / 200 < 12
    np.testing.assert_array_equal(found.x, np.zeros(6))


def test_an_error_in_a_worker_reaches_the_caller_and_ends_all_threads():
    class Broken(bcfw.Objective):
        dimension = 3

        def value(self, x):
            return 0.0

        def gradient(self, x, part=slice(None)):
            raise RuntimeError("no gradient today")

    M = Product((BoxSet(0, 1),) * 3, (1,) * 3)
    with pytest.raises(RuntimeError, match="no gradient today"):
        bcfw.solve_parallel(Broken(), M, tau=1, workers=3, rounds=5)
    assert not threads()


def test_a_bad_step_ends_all_threads(problems):
    problem = problems["scalars"]
    with pytest.raises(InputError, match=r"step\(0\)=2.0"):
        bcfw.solve_parallel(problem.f, problem.M, tau=1, rounds=5, step=lambda k: 2.0)
    assert not threads()


def test_bad_input_is_explained(problems):
    problem = problems["scalars"]
    for options, message in (
        ({"tau": 7}, "tau=7 must be a whole number from 1 to 6"),
        ({"tau": 1, "workers": 0}, "workers=0 must be a whole number, 1 or more"),
        ({"tau": 1, "rounds": -1}, "rounds=-1"),
        ({"tau": 1, "every": -1}, "every=-1"),
    ):
        with pytest.raises(InputError, match=message):
            bcfw.solve_parallel(problem.f, problem.M, **{"rounds": 5, **options})
