from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.errors import InputError
from sottovoce.lab import bcfw
from sottovoce.lab.bcfw.samplings import check_pairs, check_proper

DRAWS = 4000
NAMES = [
    "elementary",
    "uniform serial",
    "3-nice",
    "(3, 1)-distributed",
    "(2, 2)-distributed",
    "serial importance",
    "independent importance",
    "listed",
    "arcs",
]


def frequencies(sampling: bcfw.Sampling, draws: int, seed: int = 5) -> np.ndarray:
    generator, found = np.random.default_rng(seed), np.zeros((sampling.blocks, sampling.blocks))
    for _ in range(draws):
        chosen = sampling.draw(generator)
        assert len(set(chosen.tolist())) == len(chosen)
        found[np.ix_(chosen, chosen)] += 1
    return found / draws


def margin(draws: int, checks: int) -> float:
    """Hoeffding: a frequency is farther from its mean with probability below 1e-6 / checks."""
    return math.sqrt(math.log(2e6 * checks) / (2 * draws))


@pytest.mark.parametrize("name", NAMES)
class TestEverySampling:
    def test_draws_have_the_stated_pairs(self, samplings, name):
        sampling = samplings[name]
        error = np.abs(frequencies(sampling, DRAWS) - sampling.pairs()).max()
        assert error < margin(DRAWS, len(NAMES) * sampling.blocks**2)

    def test_probabilities_and_pairs_follow_from_the_sets(self, samplings, name):
        sampling = samplings[name]
        assert sum(probability for _, probability in sampling.sets()) == pytest.approx(1)
        np.testing.assert_allclose(bcfw.Sampling.pairs(sampling), sampling.pairs(), atol=1e-12)
        np.testing.assert_allclose(np.diag(sampling.pairs()), sampling.probabilities(), atol=1e-12)
        assert sampling.size == pytest.approx(sum(len(chosen) * p for chosen, p in sampling.sets()))

    def test_it_is_proper(self, samplings, name):
        sampling = samplings[name]
        assert sampling.smallest == check_proper(sampling).min() > 0
        assert np.linalg.eigvalsh(check_pairs(sampling))[0] > -1e-12


def test_the_formulas_of_the_pairs():
    nice, distributed = bcfw.Nice(10, 4), bcfw.Distributed(12, users=3, tau=2)
    assert nice.smallest == 0.4
    assert nice.pairs()[0, 1] == pytest.approx(4 * 3 / (10 * 9))
    assert distributed.smallest == 0.5
    assert distributed.pairs()[0, 1] == pytest.approx(2 * 1 / (4 * 3))
    assert distributed.pairs()[0, 4] == pytest.approx(0.25)
    assert bcfw.UniformSerial(8).pairs()[0, 1] == 0
    np.testing.assert_array_equal(bcfw.Nice(5, 5).pairs(), bcfw.Elementary(5).pairs())
    np.testing.assert_array_equal(bcfw.Distributed(6, 1, 4).pairs(), bcfw.Nice(6, 4).pairs())


def test_the_test_of_pairs_notices_a_wrong_sampling():
    class Sticky(bcfw.Nice):
        def draw(self, generator):
            return np.array([0, *(1 + generator.choice(self.blocks - 1, self.tau - 1, replace=False))])

    sampling = Sticky(6, 3)
    assert np.abs(frequencies(sampling, DRAWS) - sampling.pairs()).max() > 2 * margin(DRAWS, 36)


@pytest.mark.parametrize("tau", [1, 3])
def test_users_with_many_blocks_draw_alike(tau):
    sampling, generator = bcfw.Distributed(4004, users=2, tau=tau), np.random.default_rng(3)
    counts = np.zeros((2, 2))
    for _ in range(2000):
        chosen = sampling.draw(generator)
        assert len(set(chosen.tolist())) == 2 * tau
        counts += np.bincount(2 * (chosen // 2002) + (chosen % 2002 >= 1001), minlength=4).reshape(2, 2)
    np.testing.assert_array_equal(counts.sum(axis=1), 2000 * tau)
    assert np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.5).max() < margin(2000 * tau, 8)


def test_an_impossible_block_is_never_drawn():
    class Largest:
        def random(self):
            return 1 - 2**-53

    listed = bcfw.Listed(2, [[0, 1], [0], []], [0.3, 0.7, 0.0])
    assert listed.draw(Largest()).tolist() == [0]
    assert bcfw.SerialImportance(np.full(10, 0.1)).draw(Largest()).tolist() == [9]


class _Own(bcfw.Sampling):
    blocks = 3

    def __init__(self, p, pairs=None):
        self.p, self.matrix = p, pairs

    def draw(self, generator):
        return np.array([0, 0])

    def probabilities(self):
        return np.array(self.p)

    def pairs(self):
        return super().pairs() if self.matrix is None else np.array(self.matrix)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bcfw.Listed(4, [[0, 1], [3]], [0.5, 0.5]), "block 2 is never drawn.*give every block"),
        (lambda: bcfw.SerialImportance([1.0, 0.0]), "not proper: block 1 is never drawn.*or take the block out"),
        (lambda: bcfw.IndependentImportance([0.0, 0.5]), "block 0 is never drawn"),
        (lambda: _Own([0.5, 0.5, 0.0]).smallest, "block 2 is never drawn"),
        (lambda: _Own([0.5, 1.5, 0.2]).smallest, "3 numbers from 0 to 1"),
        (lambda: _Own([0.5, math.nan, 0.2]).smallest, "3 numbers from 0 to 1"),
        (lambda: _Own([0.5, 0.5]).smallest, "3 numbers from 0 to 1"),
        (lambda: check_pairs(_Own([0.5, 0.5, 0.5])), "neither pairs.. nor sets"),
        (lambda: check_pairs(_Own([0.5] * 3, np.ones((3, 3)))), "cannot be Pr"),
        (lambda: check_pairs(_Own([0.5] * 3, np.ones((2, 2)))), "3 x 3 matrix"),
        (lambda: check_pairs(_Own([0.9] * 3, np.diag([0.9] * 3))), "cannot be Pr"),
        (lambda: bcfw.Nice(8, 9), "tau=9 must be a whole number from 1 to 8"),
        (lambda: bcfw.Nice(8, 0), "tau=0"),
        (lambda: bcfw.Nice(8, 2.0), "tau=2.0 must be a whole number"),
        (lambda: bcfw.UniformSerial(0), "blocks=0 must be a whole number, 1 or more"),
        (lambda: bcfw.Elementary(True), "blocks=True"),
        (lambda: bcfw.Distributed(8, 3, 1), "users=3 does not divide blocks=8.*change one"),
        (lambda: bcfw.Distributed(8, 4, 3), "tau=3 must be a whole number from 1 to 2"),
        (lambda: bcfw.Distributed(8, 9, 1), "users=9"),
        (lambda: bcfw.SerialImportance([-1.0, 2.0]), "weights must be finite and not negative"),
        (lambda: bcfw.SerialImportance([math.inf, 2.0]), "weights must be finite"),
        (lambda: bcfw.SerialImportance([]), "weights has shape"),
        (lambda: bcfw.IndependentImportance([0.5, 1.2]), "2 numbers from 0 to 1"),
        (lambda: bcfw.Listed(2, [[0, 1]], [0.9]), "of sum 0.9"),
        (lambda: bcfw.Listed(2, [[0, 1], [0]], [1.0]), "2 numbers, one for each set"),
        (lambda: bcfw.Listed(2, [[0, 2]], [1.0]), "whole numbers from 0 to 1"),
        (lambda: bcfw.Listed(2, [[0, 0]], [1.0]), "different whole numbers"),
        (lambda: bcfw.Nice(60, 30).sets(), "too many to list"),
        (lambda: bcfw.IndependentImportance(np.full(60, 0.5)).sets(), "too many to list"),
    ],
)
def test_bad_samplings_are_explained(make, message):
    with pytest.raises(InputError, match=message):
        make()
