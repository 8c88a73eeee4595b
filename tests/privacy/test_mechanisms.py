from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

from sottovoce.data.kernels import selection as selection_kernels
from sottovoce.errors import InputError
from sottovoce.privacy import mechanisms
from sottovoce.privacy.mechanisms import (
    FEW,
    SeededRandomness,
    gumbel,
    largest_signed,
    noisy_max,
    noisy_max_signed,
    poisson_sample,
    rounded_gaussian,
    rounded_laplace,
    select,
    select_signed,
    selection_error,
    wide_gaussian,
    words,
)

FALSE_ALARM = 1e-7
Sampler = Callable[..., NDArray[np.int64]]
NOISE = {"gaussian": (rounded_gaussian, stats.norm), "laplace": (rounded_laplace, stats.laplace)}


class Scripted:
    """Gives the words it was told to, then the byte it was told to, for ever."""

    secure = False

    def __init__(self, script: Iterable[int], after: int) -> None:
        self.script = b"".join(word.to_bytes(8, "little") for word in script)
        self.after = after

    def bytes(self, count: int) -> bytes:
        given, self.script = self.script[:count], self.script[count:]
        return given + bytes([self.after]) * (count - len(given))


class Constant(Scripted):
    """Gives the same word in every request for words, and the same byte in every request for further bits."""

    def __init__(self, word: int, after: int) -> None:
        super().__init__([], after)
        self.word = word

    def bytes(self, count: int) -> bytes:
        return super().bytes(count) if count == 32 else self.word.to_bytes(8, "little") * (count // 8)


def accepts_scale(draws: NDArray[np.int64], scale: float, family: str) -> bool:
    """Normal test of the mean square of the draws against scale^2 E[X^2] + 1/12."""
    square = (draws / scale) ** 2
    second, fourth = {"gaussian": (1.0, 3.0), "laplace": (2.0, 24.0)}[family]
    expected = second + 1 / (12 * scale**2)
    deviation = math.sqrt((fourth - second**2) / len(draws))
    return 2 * stats.norm.sf(abs(square.mean() - expected) / deviation) > FALSE_ALARM


def accepts_law(draws: NDArray[np.int64], scale: float, family: str) -> bool:
    """Chi-square of the draws against the probabilities of the rounded law, in about forty cells."""
    law = NOISE[family][1]
    edges = np.unique(np.rint(scale * law.ppf(np.linspace(0, 1, 41)[1:-1]))) + 0.5
    probabilities = np.diff(np.concatenate([[0.0], law.cdf(edges / scale), [1.0]]))
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(probabilities))
    expected = probabilities * len(draws)
    return stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(expected) - 1) > FALSE_ALARM


@pytest.mark.parametrize("family", NOISE)
@pytest.mark.parametrize("scale", [0.7, 3.0, 1000.3, 2.0**20])
def test_noise_has_its_law_and_wrong_scales_are_noticed(family: str, scale: float) -> None:
    sampler = NOISE[family][0]
    draws = sampler(scale, 200_000, SeededRandomness(11, family))
    assert draws.dtype == np.int64
    assert accepts_law(draws, scale, family)
    for wrong in (2 / 3, 3 / 2):
        assert not accepts_law(sampler(scale * wrong, 200_000, SeededRandomness(12)), scale, family)
    other = "laplace" if family == "gaussian" else "gaussian"
    assert not accepts_law(draws, scale, other)


@pytest.mark.parametrize(("family", "size"), [("gaussian", 200_000), ("laplace", 500_000)])
def test_scale_is_pinned_to_two_percent(family: str, size: int) -> None:
    sampler, scale = NOISE[family][0], 2.0**20
    assert accepts_scale(sampler(scale, size, SeededRandomness(13)), scale, family)
    for wrong in (0.98, 1.02, 2 / 3, 3 / 2):
        assert not accepts_scale(sampler(scale * wrong, size, SeededRandomness(14)), scale, family)


@pytest.mark.parametrize("family", NOISE)
def test_entries_are_independent_in_sign_and_order(family: str) -> None:
    draws = NOISE[family][0](1000.0, 400_000, SeededRandomness(15)).astype(float)
    size = len(draws)
    signs = np.sign(draws)
    assert abs(signs.sum()) < 5.4 * math.sqrt(size)  # 1e-7 two-sided
    for lag in (1, 2, 7):
        for values in (signs, np.abs(draws) - np.abs(draws).mean()):
            products = values[lag:] * values[:-lag]
            assert abs(products.sum()) < 5.4 * math.sqrt(size) * products.std()


def exact_value(word: int, after: int, scale: float, family: str) -> int:
    """The rounded variate from the quantile function in 500-bit arithmetic, all 319 bits of U in view."""
    with mpmath.workprec(500):
        extra = int.from_bytes(bytes([after]) * 32, "little")
        uniform = mpmath.mpf(2 * (((word >> 1) << 256) + extra) + 1) / mpmath.mpf(2) ** 320
        if family == "laplace":
            magnitude = -mpmath.log(uniform)
        else:
            start = -mpmath.mpf(float(ndtri(float(uniform) / 2)))
            magnitude = mpmath.findroot(
                lambda z: mpmath.log(mpmath.erfc(z / mpmath.sqrt(2))) - mpmath.log(uniform), start, tol=1e-120
            )
        rounded = int(mpmath.floor(magnitude * scale + 0.5))
    return -rounded if word & 1 else rounded


@pytest.mark.parametrize("family", NOISE)
@pytest.mark.parametrize("scale", [0.3, 2.0**20, 2.0**38 + 0.25, 2.0**40])
def test_values_agree_with_high_precision_arithmetic(family: str, scale: float) -> None:
    script = [int(word) for word in words(SeededRandomness(16), 12)]
    drawn = NOISE[family][0](scale, len(script), Scripted(script, after=0x5A))
    assert drawn.tolist() == [exact_value(word, 0x5A, scale, family) for word in script]


@pytest.mark.parametrize("family", NOISE)
@pytest.mark.parametrize("scale", [1.0, 2.0**20, 2.0**40])
@pytest.mark.parametrize("after", [0x00, 0xFF])
def test_extreme_words_give_finite_correct_values(family: str, scale: float, after: int) -> None:
    script = [0, 1, 2**64 - 1, 2**64 - 2, 2**20, 2**42]
    drawn = NOISE[family][0](scale, len(script), Scripted(script, after))
    assert drawn.tolist() == [exact_value(word, after, scale, family) for word in script]


@pytest.mark.parametrize("family", NOISE)
def test_a_draw_on_a_rounding_boundary_is_settled_by_its_further_bits(family: str) -> None:
    scale, boundary = 2.0**20, 1_000_000.5
    with mpmath.workprec(400):
        at = mpmath.mpf(boundary) / scale
        tail = mpmath.exp(-at) if family == "laplace" else mpmath.erfc(at / mpmath.sqrt(2))
        word = 2 * int(mpmath.floor(tail * 2**63))  # the 63 bits that contain the boundary, positive sign
    sampler = NOISE[family][0]
    assert sampler(scale, 1, Scripted([word], after=0x00)).tolist() == [1_000_001]
    assert sampler(scale, 1, Scripted([word], after=0xFF)).tolist() == [1_000_000]


@pytest.mark.parametrize("family", NOISE)
@pytest.mark.parametrize("scale", [0.4, 12.5, 2.0**20])
def test_high_precision_path_gives_the_same_integers(
    family: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = NOISE[family][0]
    fast = sampler(scale, 300, SeededRandomness(17))
    settled: list[int] = []
    original = mechanisms._settle
    monkeypatch.setattr(mechanisms, "_UNIT_ERROR", 10.0)
    monkeypatch.setattr(mechanisms, "_settle", lambda *args: settled.append(1) or original(*args))
    assert sampler(scale, 300, SeededRandomness(17)).tolist() == fast.tolist()
    assert len(settled) == 300


def test_high_precision_path_is_rare_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[int] = []
    original = mechanisms._settle
    monkeypatch.setattr(mechanisms, "_settle", lambda *args: settled.append(1) or original(*args))
    rounded_gaussian(2.0**20, 200_000, SeededRandomness(18))
    assert len(settled) <= 14  # Poisson with mean 0.9: more has probability 1e-12


def test_assumption_on_the_normal_quantile() -> None:
    generator = np.random.default_rng(19)
    points = np.concatenate(
        [
            generator.random(60) / 2,
            2.0 ** -generator.uniform(1, 64, 120),
            math.exp(-2) * (1 + generator.uniform(-1e-6, 1e-6, 20)),
            math.exp(-32) * (1 + generator.uniform(-1e-3, 1e-3, 20)),
            [0.5, np.nextafter(0.5, 0), 2.0**-64, 2.0**-65],
        ]
    )
    with mpmath.workprec(200):
        for point in points:
            quantile = mpmath.mpf(float(ndtri(point)))
            error = (mpmath.ncdf(quantile) - mpmath.mpf(float(point))) / mpmath.npdf(quantile)
            assert abs(error) < 2**-46


@pytest.mark.parametrize("sampler", [rounded_gaussian, rounded_laplace])
def test_scales_per_entry_and_edges(sampler: Sampler) -> None:
    size = 100_000
    scales = np.where(np.arange(size) % 3 == 0, 0.0, np.where(np.arange(size) % 3 == 1, 10.0, 2.0**20))
    draws = sampler(scales, size, SeededRandomness(20))
    family = "gaussian" if sampler is rounded_gaussian else "laplace"
    assert not draws[::3].any()
    assert accepts_law(draws[1::3], 10.0, family)
    assert accepts_law(draws[2::3], 2.0**20, family)
    constant = sampler(np.full(500, 77.0), 500, SeededRandomness(21))
    assert constant.tolist() == sampler(77.0, 500, SeededRandomness(21)).tolist()
    assert sampler(0.0, 5, SeededRandomness(1)).tolist() == [0] * 5
    assert sampler(3.0, 0, SeededRandomness(1)).shape == (0,)
    # a far-tail word together with scale 0
    assert sampler(np.zeros(2), 2, Scripted([0, 1], 0)).tolist() == [0, 0]


@pytest.mark.parametrize("sampler", [rounded_gaussian, rounded_laplace])
@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf, 2.0**41, [1.0, -2.0], [1.0, math.nan]])
def test_impossible_scales_are_refused(sampler: Sampler, scale: object) -> None:
    with pytest.raises(InputError, match=r"scale=.*2\^40.*coarser"):
        sampler(scale, 2, SeededRandomness(1))


def test_wrong_shapes_and_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="one per entry"):
        rounded_gaussian([1.0, 2.0], 3, SeededRandomness(1))
    for size in (-1, 2.0, True):
        with pytest.raises(InputError, match="size="):
            rounded_gaussian(1.0, size, SeededRandomness(1))  # type: ignore[arg-type]


@pytest.mark.slow
def test_gumbel_has_its_law_and_a_two_percent_error_is_noticed() -> None:
    draws = gumbel(200_000, SeededRandomness(22))
    assert stats.kstest(draws, "gumbel_r").pvalue > FALSE_ALARM
    assert stats.kstest(1.03 * draws, "gumbel_r").pvalue < FALSE_ALARM
    assert stats.kstest(draws + 0.02, "gumbel_r").pvalue < FALSE_ALARM


def test_gumbel_is_finite_and_accurate_at_every_word() -> None:
    script = [0, 1, 2**30, 2**63 - 1, 2**63, 2**64 - 2**30, 2**64 - 2, 2**64 - 1]
    drawn = gumbel(len(script), Scripted(script, 0))
    with mpmath.workprec(200):
        for word, value in zip(script, drawn, strict=True):
            exact = -mpmath.log(-mpmath.log(1 - (mpmath.mpf(word) + 0.5) / 2**64))
            assert abs(mpmath.mpf(float(value)) - exact) < 2**-45
    assert drawn[0] == pytest.approx(65 * math.log(2))
    assert drawn[-1] == pytest.approx(-math.log(65 * math.log(2)))


def selection_counts(rate: float, size: int) -> NDArray[np.int64]:
    randomness = SeededRandomness(23, str(rate))
    return np.bincount([select([0.0, 1.0, -0.5, 1.5], rate, randomness) for _ in range(size)], minlength=4)


@pytest.mark.slow
def test_selection_has_exponential_probabilities() -> None:
    scores = np.array([0.0, 1.0, -0.5, 1.5])

    def accepts(counts: NDArray[np.int64], rate: float) -> bool:
        weights = np.exp(rate * scores)
        expected = weights / weights.sum() * counts.sum()
        return stats.chisquare(counts, expected).pvalue > FALSE_ALARM

    assert accepts(selection_counts(1.0, 10_000), 1.0)
    assert accepts(selection_counts(0.0, 10_000), 0.0)
    assert not accepts(selection_counts(1.5, 10_000), 1.0)
    assert not accepts(selection_counts(2 / 3, 10_000), 1.0)
    assert selection_counts(math.inf, 10).tolist() == [0, 0, 0, 10]


def test_selection_refuses_what_it_cannot_use_without_showing_the_scores() -> None:
    with pytest.raises(InputError) as caught:
        select([123.25, math.nan], 1.0, SeededRandomness(1))
    assert "123" not in str(caught.value)
    assert "nan" not in str(caught.value)
    with pytest.raises(InputError, match="non-empty"):
        select([], 1.0, SeededRandomness(1))
    for rate in (-1.0, math.nan):
        with pytest.raises(InputError, match="rate="):
            select([1.0], rate, SeededRandomness(1))


# Selections by the distribution function, and signed ones.

RATE_ERROR = 2.0**-43  # of a probability, as a factor exp(+-RATE_ERROR)


def signed_scores(values: Any, stay: float | None = None) -> dict[int, float]:
    """The score of every code."""
    scores = {(j + 1) * sign: sign * float(v) for sign in (1, -1) for j, v in enumerate(values)}
    return scores if stay is None else scores | {0: stay}


def accepts_choices(codes: list[int], scores: dict[int, float], rate: float) -> bool:
    """Chi-square of the chosen codes against exp(rate * score), in cells of about 20 expected choices or more."""
    top = max(scores.values())
    weights = {code: math.exp(rate * (score - top)) for code, score in scores.items()}
    unit = len(codes) / sum(weights.values())
    cells, place, filled = [0.0], {}, 0
    for code in sorted(weights, key=lambda code: (weights[code], code)):
        if cells[-1] >= 20:
            cells.append(0.0)
        cells[-1] += unit * weights[code]
        place[code] = len(cells) - 1
    if len(cells) > 1 and cells[-1] < 20:
        filled, last = len(cells) - 2, cells.pop()
        cells[filled] += last
        place = {code: min(cell, filled) for code, cell in place.items()}
    counts = np.bincount([place[code] for code in codes], minlength=len(cells))
    return bool(stats.chi2.sf(((counts - cells) ** 2 / np.array(cells)).sum(), len(cells) - 1) > FALSE_ALARM)


@pytest.mark.slow
@pytest.mark.parametrize("few", [0, FEW])
def test_both_samplers_have_the_exponential_law(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven candidates, by Gumbel variables and in blocks of three: every candidate is a cell."""
    monkeypatch.setattr(mechanisms, "FEW", few)
    scores = np.array([0.0, 1.0, -0.5, 1.5, 1.0, -1.0, 0.7])
    randomness = SeededRandomness(31, str(few))
    found = [select(scores, 1.2, randomness) for _ in range(12_000)]
    exact = dict(enumerate(scores))
    assert accepts_choices(found, exact, 1.2)
    for wrong in (0.9, 1.6):
        assert not accepts_choices(found, exact, wrong)
    assert not accepts_choices([min(code, 5) for code in found], exact, 1.2)
    uniform = [select(scores, 0.0, randomness) for _ in range(10_000)]
    assert accepts_choices(uniform, exact, 0.0)
    assert not accepts_choices(uniform, exact, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("few", [0, FEW])
@pytest.mark.parametrize("stay", [None, 0.8, -1.0, 5.0])
def test_both_signed_samplers_have_the_exponential_law(
    few: int, stay: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mechanisms, "FEW", few)
    values = np.array([0.3, -1.0, 0.0, 0.9, -0.2])
    randomness = SeededRandomness(32, str(few), str(stay))
    found = [select_signed(values, 1.1, randomness, stay) for _ in range(12_000)]
    exact = signed_scores(values, stay)
    assert accepts_choices(found, exact, 1.1)
    assert not accepts_choices([-code for code in found], exact, 1.1) or stay == 5.0
    assert not accepts_choices(found, exact, 0.8)
    assert not accepts_choices(found, exact, 1.4)
    if stay is not None:
        assert not accepts_choices([code or 1 for code in found], exact, 1.1)


@pytest.mark.slow
def test_many_candidates_are_chosen_by_their_law() -> None:
    rng = np.random.default_rng(33)
    scores, randomness = rng.standard_normal(3 * FEW), SeededRandomness(33)
    found = [select(scores, 2.0, randomness) for _ in range(12_000)]
    exact = dict(enumerate(scores))
    assert accepts_choices(found, exact, 2.0)
    for wrong in (1.85, 2.15):
        assert not accepts_choices(found, exact, wrong)
    shifted = [(code + 1) % scores.size for code in found]
    assert not accepts_choices(shifted, exact, 2.0)
    signed = [select_signed(scores[:5000], 2.0, randomness, 2.0) for _ in range(12_000)]
    exact = signed_scores(scores[:5000], 2.0)
    assert accepts_choices(signed, exact, 2.0)
    for wrong in (1.85, 2.15):
        assert not accepts_choices(signed, exact, wrong)
    assert not accepts_choices([-code for code in signed], exact, 2.0)


def law_of(draw: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> dict[int, mpmath.mpf]:
    """The exact law of a selection by its distribution function: how many of the 2^128 pairs of words give each code.

    The two tables of weights are read where the sampler looks them up, and every pair of places is taken once.
    """
    forced: list[int] = []
    tables: list[NDArray[np.float64]] = []

    def place(weights: NDArray[np.float64], word: np.uint64) -> int:
        tables.append(weights.copy())
        return forced[len(tables) - 1]

    def outcome(*places: int) -> int:
        forced[:] = places
        tables.clear()
        return draw()

    def shares(weights: NDArray[np.float64]) -> list[int]:
        ends = [0, *(int(end) for end in mechanisms._ends(weights))]
        assert 2**61 - len(weights) <= ends[-1] <= 2**62
        first = [-(-end * 2**64 // ends[-1]) for end in ends]  # the first word beyond each end
        return [after - before for before, after in itertools.pairwise(first)]

    law: dict[int, mpmath.mpf] = {}
    monkeypatch.setattr(mechanisms, "_draw_place", place)
    outcome(0, 0)
    for block, share in enumerate(shares(tables[0])):
        code = outcome(block, 0)
        if len(tables) == 1:
            law[code] = mpmath.mpf(share) / 2**64
            continue
        for j, part in enumerate(shares(tables[1]) if share else [0] * len(tables[1])):
            code = outcome(block, j)
            assert code not in law
            law[code] = mpmath.mpf(share) * part / 2**128
    return law


@pytest.mark.parametrize("rate", [0.0, 1.0, 7.3, 40.0, 1e4])
@pytest.mark.parametrize("signed", [False, True])
def test_the_law_of_many_candidates_is_within_its_stated_error(
    rate: float, signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every probability of the sampler, counted in words, against 200-bit arithmetic."""
    rng = np.random.default_rng(34)
    values = np.rint(rng.standard_normal(FEW + 60) * 2.0**10) / 2.0**10
    randomness = SeededRandomness(1)
    with mpmath.workprec(200):
        if signed:
            values = values[: FEW // 2 + 30]
            law = law_of(lambda: select_signed(values, rate, randomness, 1.5), monkeypatch)
            scores = signed_scores(values, 1.5)
        else:
            law = law_of(lambda: select(values, rate, randomness), monkeypatch)
            scores = {j: float(v) for j, v in enumerate(values)}
        assert law.keys() == scores.keys()
        assert mpmath.fsum(law.values()) == 1
        top = max(scores.values())
        exact = {code: mpmath.exp(mpmath.mpf(rate) * (mpmath.mpf(score) - top)) for code, score in scores.items()}
        total = mpmath.fsum(exact.values())
        near, limit = mpmath.exp(RATE_ERROR), selection_error(len(scores))
        above = mpmath.fsum(max(law[code] - near * exact[code] / total, 0) for code in scores)
        below = mpmath.fsum(max(exact[code] / total / near - law[code], 0) for code in scores)
        assert max(above, below) <= limit
        # what is left after the words is what float64 does, and the bound would notice a tenth of a percent
        assert mpmath.fsum(abs(law[code] - exact[code] / total) for code in scores) <= 2 * limit + 2 * RATE_ERROR
        if rate == 1.0:
            other = {code: mpmath.exp(mpmath.mpf(1.001) * mpmath.mpf(score)) for code, score in scores.items()}
            whole = mpmath.fsum(other.values())
            assert mpmath.fsum(max(law[code] - near * other[code] / whole, 0) for code in scores) > 1e6 * limit


def test_the_error_of_a_selection() -> None:
    assert selection_error(1000) == 1000 * 2.0**-63
    assert selection_error(FEW) == FEW * 2.0**-63
    for count in (FEW + 1, 10**4, 200_001, 10**7):
        length = math.isqrt(count - 1) + 1
        pairs = (length + 1) // 2  # values of a signed block
        tables = max(length + -(-count // length), 2 * pairs + -(-(count // 2) // pairs) + 1)
        most = max((2.1 * math.sqrt(count) + 5) * 2.0**-60, FEW * 2.0**-63)  # it never falls with more candidates
        assert tables * 2.0**-60 <= selection_error(count) <= most
    assert selection_error(200_000) < 2.0**-50


def test_a_word_finds_the_weight_it_falls_into() -> None:
    weights = np.array([0.0, 3.0, 0.0, 1e-30, 2.5, 1e-17, 0.0, 1.0, 0.0])
    ends = [int(end) for end in mechanisms._ends(weights)]
    assert 2**61 <= ends[-1] < 2**62
    assert ends[0] == 0
    assert ends[3] == ends[2]  # below one part in 2^61
    for i in np.flatnonzero(np.diff([0, *ends])):
        start = ends[i - 1] if i else 0
        first, last = -(-start * 2**64 // ends[-1]), -(-ends[i] * 2**64 // ends[-1]) - 1
        assert mechanisms._draw_place(weights, np.uint64(first)) == i
        assert mechanisms._draw_place(weights, np.uint64(last)) == i
    assert mechanisms._draw_place(weights, np.uint64(0)) == 1
    assert mechanisms._draw_place(weights, np.uint64(2**64 - 1)) == 7
    assert mechanisms._draw_place(np.array([1e-300]), np.uint64(5)) == 0


def test_the_exponential_is_within_four_units_in_the_last_place() -> None:
    rng = np.random.default_rng(35)
    halves = -math.log(2) * (np.arange(92) + 0.5)
    points = np.concatenate(
        [
            -64 * rng.random(4000),
            -(10.0 ** rng.uniform(-20, 0, 300)),
            halves,
            np.nextafter(halves, 0),
            [0.0, -0.0, -64.0],
        ]
    )
    found = np.empty_like(points)
    selection_kernels.fill_weights(points, 1.0, 0.0, found)
    with mpmath.workprec(200):
        for point, value in zip(points, found, strict=True):
            assert abs(mpmath.mpf(float(value)) / mpmath.exp(mpmath.mpf(float(point))) - 1) < 2**-50
        for point in -128 * rng.random(500):
            value = selection_kernels.exponential(float(point))
            assert abs(mpmath.mpf(value) / mpmath.exp(mpmath.mpf(float(point))) - 1) < 2**-50
    selection_kernels.fill_weights(np.array([-64.5, -1e300, -math.inf]), 1.0, 0.0, found[:3])
    assert found[:3].tolist() == [0.0] * 3


def test_sums_by_halves_lose_little() -> None:
    rng = np.random.default_rng(36)
    for count in (*range(1, 70), 1000, 4097):
        terms = rng.integers(0, 2**30, count).astype(float)
        assert selection_kernels._sum(terms.copy()) == terms.sum()
        terms = np.exp(-64 * rng.random(count))
        error = abs(selection_kernels._sum(terms.copy()) / math.fsum(terms) - 1)
        assert error <= (math.ceil(math.log2(count)) + 1) * 2.0**-53


@pytest.mark.parametrize("few", [0, FEW])
def test_edges_of_selections(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "FEW", few)
    randomness = SeededRandomness(37)
    assert select([5.0], 3.0, randomness) == 0
    assert {select_signed([3.0], 0.1, randomness) for _ in range(60)} == {1, -1}
    assert {select_signed([-3.0], 1e3, randomness) for _ in range(60)} == {-1}
    # a huge rate takes the largest, and each of equal ones
    scores = np.array([0.0, 2.0, 1.0, 2.0, -1e300])
    assert {select(scores, 1e290, randomness) for _ in range(60)} == {1, 3}
    assert {select_signed([0.0, -2.0, 2.0], 1e290, randomness) for _ in range(60)} == {-2, 3}
    assert {select_signed([0.0, -2.0], 1e290, randomness, 2.0) for _ in range(60)} == {-2, 0}
    assert {select_signed([0.0, 0.0], 1e290, randomness, -1.0) for _ in range(120)} == {1, 2, -1, -2}
    # without any
    assert select(scores, math.inf, randomness) == 1
    assert select_signed([0.0, -2.0, 2.0], math.inf, randomness) == -2
    assert select_signed([0.0, -2.0, 2.0], math.inf, randomness, 2.5) == 0
    # scores so far apart that their difference overflows
    far = np.array([-1.7e308, 1.7e308])
    assert {select(far, 0.0, randomness) for _ in range(60)} == {0, 1}
    assert {select(far, 1e-309, randomness) for _ in range(60)} == {0, 1}
    assert {select_signed(far, 1e-309, randomness, 1.7e308) for _ in range(120)} == {0, 1, 2, -1, -2}
    assert {select(far, 1e-300, randomness) for _ in range(60)} == {1}
    assert {select_signed(far, 1e-300, randomness) for _ in range(60)} == {-1, 2}


def test_staying_may_be_all_there_is() -> None:
    assert select_signed([], 1.0, SeededRandomness(1), 2.0) == 0
    assert select_signed([], math.inf, SeededRandomness(1), 2.0) == 0
    assert noisy_max_signed([], 1.0, 1.0, SeededRandomness(1), 2.0) == 0
    assert largest_signed([], -3.0) == 0


def test_the_largest_value_with_its_sign() -> None:
    assert largest_signed([1.0, -3.0, 3.0]) == -2
    assert largest_signed([1.0, -3.0], 3.0) == -2
    assert largest_signed([1.0, -3.0], 3.5) == 0
    assert largest_signed([0.0, -0.0]) == 1
    assert largest_signed([0.0], 0.0) == 1


@pytest.mark.parametrize("size", [3, 2 * FEW])
def test_signed_selection_refuses_what_it_cannot_use_without_showing_the_values(size: int) -> None:
    values = np.full(size, 123.25)
    values[1] = math.nan
    randomness = SeededRandomness(1)
    for make in (
        lambda: select(values, 1.0, randomness),
        lambda: select_signed(values, 1.0, randomness),
        lambda: select_signed(np.ones(size), 1.0, randomness, math.inf),
        lambda: noisy_max_signed(values, 1.0, 1.0, randomness),
        lambda: noisy_max_signed(np.ones(size), 1.0, 1.0, randomness, math.inf),
    ):
        with pytest.raises(InputError, match="must be finite") as caught:
            make()
        assert "123" not in str(caught.value)
        assert "nan" not in str(caught.value)
    with pytest.raises(InputError, match="non-empty"):
        select_signed([], 1.0, randomness)
    with pytest.raises(InputError, match="non-empty"):
        select_signed(np.ones((2, 2)), 1.0, randomness)
    with pytest.raises(InputError, match="rate="):
        select_signed([1.0], -1.0, randomness)


# Noisy maxima.


def laplace_law(scores: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """P[i has the largest score + round(scale L)], the first of equal ones, by a sum over the noise of i."""
    noise = np.arange(-math.ceil(60 * scale), math.ceil(60 * scale) + 1)
    law = stats.laplace(scale=scale)
    mass = law.cdf(0.5 - np.abs(noise)) - law.cdf(-0.5 - np.abs(noise))  # of -|noise|: no digits cancel
    chances = []
    for i, score in enumerate(scores):
        chance = mass.copy()
        for j, other in enumerate(scores):
            if j != i:
                chance *= law.cdf(score + noise - other + (0.5 if j > i else -0.5))
        chances.append(chance.sum())
    return np.array(chances)


def accepts_noisy(found: list[int], law: NDArray[np.float64]) -> bool:
    counts = np.bincount(found, minlength=len(law))
    return bool(stats.chisquare(counts, law * len(found)).pvalue > FALSE_ALARM)


@pytest.mark.parametrize("scale", [0.8, 4.0])
def test_a_noisy_maximum_has_its_law(scale: float) -> None:
    scores, randomness = np.array([0, 2, -1, 2, 1]), SeededRandomness(38, str(scale))
    law = laplace_law(scores, scale)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    found = [noisy_max(scores, scale, randomness) for _ in range(12_000)]
    assert accepts_noisy(found, law)
    for wrong in (2 / 3, 3 / 2):
        assert not accepts_noisy(found, laplace_law(scores, scale * wrong) / laplace_law(scores, scale * wrong).sum())
    # equal ones: the first is likelier
    assert law[1] > law[3]
    assert not accepts_noisy([{1: 3, 3: 1}.get(code, code) for code in found], law) or scale > 1


@pytest.mark.slow
@pytest.mark.parametrize("stay", [None, 1.3])
def test_a_signed_noisy_maximum_has_its_law_on_its_grid(stay: float | None) -> None:
    values, step, scale = np.array([0.3, -1.1, 0.6]), 0.25, 1.0
    grid = [1, -4, 2, -1, 4, -2, *([] if stay is None else [5])]
    codes = [1, 2, 3, -1, -2, -3, *([] if stay is None else [0])]
    law, randomness = laplace_law(np.array(grid), scale / step), SeededRandomness(39, str(stay))
    found = [codes.index(noisy_max_signed(values, scale, step, randomness, stay)) for _ in range(12_000)]
    assert accepts_noisy(found, law)
    assert not accepts_noisy([(place + 3) % 6 if place < 6 else place for place in found], law)
    for wrong in (2 / 3, 3 / 2):
        other = laplace_law(np.array(grid), wrong * scale / step)
        assert not accepts_noisy(found, other / other.sum())


def worst_ratio(scores: NDArray[np.int64], change: int, charged: float, noise: float) -> float:
    """The largest |log P[i] / P'[i]| over neighbours, each score moved by at most `change`, in units of the charge."""
    law, worst = laplace_law(scores, noise), 0.0
    for moves in itertools.product((-change, 0, change), repeat=len(scores)):
        ratio = np.log(laplace_law(scores + np.array(moves), noise) / law)
        worst = max(worst, float(np.abs(ratio).max()))
    return worst / charged


@pytest.mark.parametrize("scale", [0.7, 2.0, 5.5])
@pytest.mark.parametrize("change", [1, 2])
def test_neighbours_of_a_noisy_maximum_are_as_close_as_charged(scale: float, change: int) -> None:
    charged, worst = 2 * change / scale, 0.0
    for scores in ([0, 0, 0], [0, 3, -2], [9, 0, 0], [-12, 0, 4]):
        worst = max(worst, worst_ratio(np.array(scores), change, charged, scale))
    assert 0.95 < worst <= 1 + 1e-9
    # half the noise, or a charge for one candidate's move alone, would not hold
    assert worst_ratio(np.array([-12, 0, 4]), change, charged, scale / 2) > 1.5
    assert worst_ratio(np.array([-12, 0, 4]), change, charged / 2, scale) > 1.5


def test_ties_and_edges_of_noisy_maxima() -> None:
    randomness = SeededRandomness(40)
    assert noisy_max([3], 5.0, randomness) == 0
    assert noisy_max([1, 7, 7, 2], 0.0, randomness) == 1
    assert noisy_max_signed([0.0, 0.0], 0.0, 1.0, randomness, 0.0) == 1
    assert noisy_max_signed([1.0, -2.0], 0.0, 0.5, randomness) == -2
    assert noisy_max_signed([1.0, -2.0], 0.0, 0.5, randomness, 2.0) == -2
    assert noisy_max_signed([1.0, -2.0], 0.0, 0.5, randomness, 2.5) == 0
    assert noisy_max_signed([-2.0, 2.0], 0.0, 0.5, randomness) == 2  # (2, +) comes before (1, -)
    assert {noisy_max_signed([0.0], 1.0, 2.0**-10, randomness) for _ in range(60)} == {1, -1}
    with pytest.raises(InputError, match="integers"):
        noisy_max([1.5], 1.0, randomness)
    with pytest.raises(InputError, match="non-empty"):
        noisy_max([], 1.0, randomness)
    with pytest.raises(InputError, match=r"2\^62"):
        noisy_max([0, 2**62], 1.0, randomness)
    with pytest.raises(InputError, match=r"2\^62"):
        noisy_max_signed([1e30], 1.0, 1.0, randomness)
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="step="):
            noisy_max_signed([1.0], 1.0, step, randomness)
    with pytest.raises(InputError, match="non-empty"):
        noisy_max_signed([], 1.0, 1.0, randomness)


def samples(count: int, rate: float, repetitions: int) -> NDArray[np.bool_]:
    randomness = SeededRandomness(24, str(count), str(rate))
    chosen = np.zeros((repetitions, count), dtype=bool)
    for row in chosen:
        row[poisson_sample(count, rate, randomness)] = True
    return chosen


def accepts_coins(chosen: NDArray[np.bool_], rate: float) -> bool:
    """Chi-squares of the inclusions of each record, and of each pair of neighbours at distances 1 to 3."""
    repetitions = len(chosen)

    def probability(counts: NDArray[np.int64], expected: float) -> float:
        deviation = repetitions * expected * (1 - expected)
        statistic = ((counts - repetitions * expected) ** 2 / deviation).sum()
        return float(stats.chi2.sf(statistic, len(counts)))

    results = [probability(chosen.sum(axis=0), rate)]
    for lag in (1, 2, 3):
        # disjoint pairs, so that the counts are independent
        starts = np.arange(0, chosen.shape[1] - lag, 2 * lag)
        results.append(probability((chosen[:, starts] & chosen[:, starts + lag]).sum(axis=0), rate**2))
    return min(results) > FALSE_ALARM / len(results)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_poisson_coins_are_independent_with_the_right_rate(rate: float) -> None:
    assert accepts_coins(samples(60, rate, 20_000), rate)


@pytest.mark.slow
def test_wrong_rates_and_dependent_coins_are_noticed() -> None:
    chosen = samples(60, 0.3, 20_000)
    assert not accepts_coins(chosen, 0.3 * 1.05)
    assert not accepts_coins(chosen, 0.3 * 0.95)
    dependent = chosen.copy()
    dependent[:, 1::2] = dependent[:, ::2]
    assert not accepts_coins(dependent, 0.3)


def test_sizes_of_long_samples() -> None:
    randomness = SeededRandomness(25)
    for count, rate in ((10**7, 1e-3), (10**9, 1e-6), (10**6, 0.2)):
        sample = poisson_sample(count, rate, randomness)
        assert abs(len(sample) - count * rate) < 5.4 * math.sqrt(count * rate * (1 - rate))
        assert sample.dtype == np.int64
        assert (np.diff(sample) > 0).all()
        assert 0 <= sample[0] <= sample[-1] < count
        halves = np.searchsorted(sample, count // 2)
        assert abs(halves - count * rate / 2) < 5.4 * math.sqrt(count * rate / 2)


def test_poisson_edges() -> None:
    randomness = SeededRandomness(26)
    assert poisson_sample(5, 1.0, randomness).tolist() == [0, 1, 2, 3, 4]
    assert poisson_sample(0, 0.5, randomness).tolist() == []
    assert poisson_sample(0, 1.0, randomness).tolist() == []
    for rate in (1e-15, 1e-30, 1e-300, 5e-324):
        assert poisson_sample(1000, rate, randomness).tolist() == []
    assert poisson_sample(1000, 1 - 2.0**-53, randomness).tolist() == list(range(1000))
    inside = [len(poisson_sample(1, 0.5, randomness)) for _ in range(4000)]
    assert abs(sum(inside) - 2000) < 5.4 * math.sqrt(1000)


@pytest.mark.parametrize("rate", [1e-300, 0.1, 1 - 2.0**-53])
@pytest.mark.parametrize("word", [0, 2**64 - 1])
@pytest.mark.parametrize("after", [0x00, 0xFF])
def test_poisson_at_extreme_words(rate: float, word: int, after: int) -> None:
    with mpmath.workprec(500):
        extra = int.from_bytes(bytes([after]) * 32, "little")
        uniform = mpmath.mpf(2 * (((word >> 1) << 256) + extra) + 1) / mpmath.mpf(2) ** 320
        gap = int(mpmath.floor(mpmath.log(uniform) / mpmath.log1p(-mpmath.mpf(rate))))
    sample = poisson_sample(300, rate, Constant(word, after))
    assert sample.tolist() == list(range(gap, 300, gap + 1))


def test_gap_on_a_boundary_is_settled_by_its_further_bits() -> None:
    rate, gap = 0.1, 20
    with mpmath.workprec(400):
        word = 2 * int(mpmath.floor((1 - mpmath.mpf(rate)) ** gap * 2**63))
    far = 2**60
    assert poisson_sample(25, rate, Scripted([word, far], after=0x00))[0] == gap
    assert poisson_sample(25, rate, Scripted([word, far], after=0xFF))[0] == gap - 1


def test_poisson_high_precision_path_gives_the_same_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = poisson_sample(3000, 0.05, SeededRandomness(27))
    monkeypatch.setattr(mechanisms, "_UNIT_ERROR", 10.0)
    assert poisson_sample(3000, 0.05, SeededRandomness(27)).tolist() == fast.tolist()


@pytest.mark.parametrize(("count", "rate"), [(-1, 0.5), (2.0, 0.5), (True, 0.5), (5, 0.0), (5, 1.5), (5, math.nan)])
def test_poisson_refuses_impossible_arguments(count: int, rate: float) -> None:
    with pytest.raises(InputError, match=r"count=|rate="):
        poisson_sample(count, rate, SeededRandomness(1))


class TestSumsOfNoises:
    """Several rounded Gaussians add up to one, if each has enough steps of its lattice."""

    @staticmethod
    def masses(scale: float, reach: int) -> dict[int, mpmath.mpf]:
        """The law of round(scale Z), each probability from the nearer tail."""
        tail = [mpmath.ncdf(-(k - mpmath.mpf(1) / 2) / scale) for k in range(1, reach + 2)]
        found = {k: tail[k - 1] - tail[k] for k in range(1, reach + 1)}
        return {0: 1 - 2 * tail[0], **found, **{-k: mass for k, mass in found.items()}}

    @staticmethod
    def sums(first: dict[int, mpmath.mpf], second: dict[int, mpmath.mpf], lattice: int = 1) -> dict[int, mpmath.mpf]:
        found: dict[int, mpmath.mpf] = {}
        for j, p in first.items():
            for k, q in second.items():
                found[j + lattice * k] = found.get(j + lattice * k, mpmath.mpf(0)) + p * q
        return found

    @staticmethod
    def wanted(variance: float, lattice: int, k: int) -> mpmath.mpf:
        """P[round(sqrt(v) Z + lattice U) = k], by second differences of the integral of the normal law."""
        sd = mpmath.sqrt(variance)

        def integral(x: mpmath.mpf) -> mpmath.mpf:
            return x * mpmath.ncdf(x / sd) + sd * mpmath.npdf(x / sd)

        half, wide = mpmath.mpf(1) / 2, mpmath.mpf(lattice) / 2
        ends = [(half + wide, 1), (wide - half, -1), (half - wide, -1), (-half - wide, 1)]
        return mpmath.fsum(sign * integral(k + end) for end, sign in ends) / lattice

    def variation(self, fine: float, coarse: float, lattice: int = 1) -> float:
        with mpmath.workdps(60):
            law = self.sums(self.masses(fine, int(18 * fine) + 6), self.masses(coarse, int(18 * coarse) + 6), lattice)
            variance = fine**2 + (lattice * coarse) ** 2
            return float(mpmath.fsum(abs(p - self.wanted(variance, lattice, k)) for k, p in law.items()) / 2)

    @pytest.mark.parametrize("steps", [0.6, 0.8, 1.0, 1.5, 2.0])
    def test_two_shares_are_as_far_from_one_gaussian_as_the_lemma_says(self, steps: float) -> None:
        assert self.variation(steps, steps) == pytest.approx(
            4 / math.pi**2 * math.exp(-((math.pi * steps) ** 2)), rel=0.03
        )

    @pytest.mark.slow
    def test_a_fine_level_must_reach_over_the_lattice_above_it(self) -> None:
        assert self.variation(1.0, 2.0, lattice=4) > 0.1  # the low bits show
        assert self.variation(6.0, 2.0, lattice=4) < 1e-9

    @pytest.mark.parametrize("scale", [8.0, 2.0**20, 2.0**24, 2.0**24 + 1, 2.0**30, 2.0**39, 2.0**46, 2.0**52])
    def test_wide_noise_has_its_scale_and_noisy_low_bits(self, scale: float) -> None:
        size = 40_000
        drawn = wide_gaussian(scale, size, SeededRandomness(7, "wide"))
        spread = float(np.mean((drawn / scale) ** 2))
        assert spread == pytest.approx(1 + (1 / 12) / scale**2, abs=6 * math.sqrt(2 / size))
        if scale > 2.0**14:
            low = np.bincount(drawn & 255, minlength=256)
            assert stats.chisquare(low).pvalue > 1e-7
            assert (
                stats.chisquare(np.bincount((drawn << 3) & 255, minlength=256)).pvalue < 1e-100
            )  # a coarse grid shows

    def test_scales_per_entry_and_refusals(self) -> None:
        scales = np.repeat([0.0, 100.0, 2.0**26, 2.0**45], 20_000)
        drawn = wide_gaussian(scales, scales.size, SeededRandomness(3, "wide")).reshape(4, -1)
        told = np.sqrt(np.mean(np.square(drawn.astype(float)), axis=1)) / [8.0, 100.0, 2.0**26, 2.0**45]
        assert told == pytest.approx(1, abs=0.03)
        for wrong in (-1.0, 2.0**52 * 1.01, math.nan):
            with pytest.raises(InputError, match=r"between 0 and 2\^52 grid steps"):
                wide_gaussian(wrong, 3, SeededRandomness(3, "wide"))
