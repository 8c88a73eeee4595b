from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.stats import chi2

from sottovoce.errors import InputError
from sottovoce.privacy.randomness import Randomness, SeededRandomness, SystemRandomness, words

FALSE_ALARM = 1e-7


def bits_look_fair(drawn: np.ndarray) -> bool:
    """Chi-square over the 64 bit positions, each a fair coin."""
    ones = np.unpackbits(drawn.view(np.uint8)).reshape(len(drawn), 64).sum(axis=0)
    statistic = float((((ones - len(drawn) / 2) ** 2) / (len(drawn) / 4)).sum())
    return chi2.sf(statistic, 64) > FALSE_ALARM


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(7)])
def test_sources_give_the_bytes_asked_for(source: Randomness) -> None:
    assert isinstance(source, Randomness)
    assert [len(source.bytes(count)) for count in (0, 1, 7, 64)] == [0, 1, 7, 64]
    assert words(source, 5).shape == (5,)
    assert words(source, 5).dtype == np.uint64
    assert words(source, 0).shape == (0,)


def test_bits_are_fair_and_a_bias_of_one_bit_is_noticed() -> None:
    drawn = words(SeededRandomness(7), 100_000)
    assert bits_look_fair(drawn)
    biased = drawn.copy()
    biased[::10] |= np.uint64(1)
    assert not bits_look_fair(biased)


def test_only_the_operating_system_is_secure() -> None:
    assert SystemRandomness().secure
    assert not SeededRandomness(0).secure
    assert SystemRandomness().bytes(32) != SystemRandomness().bytes(32)


def test_words_are_little_endian_on_every_platform() -> None:
    class Counting:
        secure = False

        def bytes(self, count: int) -> bytes:
            return bytes(range(count))

    assert words(Counting(), 1)[0] == 0x0706050403020100


def test_equal_seeds_and_labels_repeat_and_others_do_not() -> None:
    assert SeededRandomness(3, "a", "b").bytes(32) == SeededRandomness(3, "a", "b").bytes(32)
    streams = [
        SeededRandomness(3),
        SeededRandomness(4),
        SeededRandomness(3, ""),
        SeededRandomness(3, "a", "b"),
        SeededRandomness(3, "b", "a"),
        SeededRandomness(3, "ab"),
    ]
    assert len({stream.bytes(32) for stream in streams}) == len(streams)


def test_labelled_streams_are_uncorrelated() -> None:
    first, second = (words(SeededRandomness(1, label), 100_000) for label in ("party 1", "party 2"))
    assert bits_look_fair(first ^ second)
    assert not bits_look_fair(first ^ first)


def test_a_pickled_stream_goes_on_where_it_was() -> None:
    stream = SeededRandomness(5, "party")
    stream.bytes(13)
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.bytes(100) == stream.bytes(100)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_bad_seeds_are_refused(seed: object) -> None:
    with pytest.raises(InputError, match=r"seed=.*SystemRandomness"):
        SeededRandomness(seed)  # type: ignore[arg-type]
