from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

from sottovoce.errors import InputError
from sottovoce.privacy import mechanisms
from sottovoce.privacy.mechanisms import gumbel, poisson_sample, rounded_gaussian, rounded_laplace, select
from sottovoce.privacy.randomness import SeededRandomness, words

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
    original = mechanisms._settled
    monkeypatch.setattr(mechanisms, "_UNIT_ERROR", 10.0)
    monkeypatch.setattr(mechanisms, "_settled", lambda *args: settled.append(1) or original(*args))
    assert sampler(scale, 300, SeededRandomness(17)).tolist() == fast.tolist()
    assert len(settled) == 300


def test_high_precision_path_is_rare_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[int] = []
    original = mechanisms._settled
    monkeypatch.setattr(mechanisms, "_settled", lambda *args: settled.append(1) or original(*args))
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


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_poisson_coins_are_independent_with_the_right_rate(rate: float) -> None:
    assert accepts_coins(samples(60, rate, 20_000), rate)


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
