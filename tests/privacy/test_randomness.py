from __future__ import annotations

import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import chi2

from sottovoce.errors import InputError
from sottovoce.privacy import mechanisms
from sottovoce.privacy.mechanisms import Randomness, SeededRandomness, SystemRandomness, words

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


LONG = mechanisms._EXPANDED


def bytes_look_uniform(drawn: bytes) -> bool:
    """Chi-square over the 256 values of a byte, and of the difference to the byte before: false alarm below 2e-7."""
    values = np.frombuffer(drawn, dtype=np.uint8)
    for seen in (values, values[1:] - values[:-1], values[16:] - values[:-16]):
        expected = len(seen) / 256
        statistic = float(((np.bincount(seen, minlength=256) - expected) ** 2).sum() / expected)
        if chi2.sf(statistic, 255) < FALSE_ALARM / 2:
            return False
    return True


@pytest.mark.parametrize("count", [LONG - 1, LONG, LONG + 1, LONG + 15, 10 * LONG + 7, 2**20])
def test_long_requests_have_their_length_and_differ(count: int) -> None:
    """Equal ones would have a probability of 2^-256 at most."""
    source = SystemRandomness()
    drawn = [source.bytes(count), source.bytes(count), SystemRandomness().bytes(count)]
    assert {len(each) for each in drawn} == {count}
    assert all(type(each) is bytes for each in drawn)
    assert len({each[:32] for each in drawn}) == len({each[-32:] for each in drawn}) == 3
    blocks = [each[place : place + 16] for each in drawn for place in range(0, count - 15, 16)]
    assert len(set(blocks)) == len(blocks)  # a counter never comes round; two keys share a block with chance 2^-93


def test_long_requests_are_uniform_and_a_small_bias_is_noticed() -> None:
    """The bytes are the system's own, so this may fail by chance: in fewer than 1 of a million runs."""
    drawn = SystemRandomness().bytes(4_000_000)
    assert bytes_look_uniform(drawn)
    assert bits_look_fair(np.frombuffer(drawn, dtype=np.uint64))
    biased = np.frombuffer(drawn, dtype=np.uint8).copy()
    biased[::50] |= np.uint8(1)
    assert not bytes_look_uniform(biased.tobytes())
    assert not bytes_look_uniform(drawn[:16] * 250_000)


def test_a_key_is_drawn_for_each_long_request_and_short_ones_are_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    honest = os.urandom

    def urandom(count: int) -> bytes:
        asked.append(count)
        return honest(count)

    monkeypatch.setattr(os, "urandom", urandom)
    source = SystemRandomness()
    for count in (0, 1, 32, LONG - 1, LONG, LONG, 10**6):
        source.bytes(count)
    assert asked == [0, 1, 32, LONG - 1, 32, 32, 32]
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(256))[:count] * (1 if count < 256 else count // 256))
    assert source.bytes(16) == bytes(range(16))
    # AES-256 in counter mode from 0 under the key 00 01 .. 1f: the encryption of nought, then of one
    first = "f29000b62a499fd0a9f39a6add2e7780"
    assert source.bytes(LONG)[:16].hex() == first
    assert source.bytes(LONG) == source.bytes(2 * LONG)[:LONG]


def test_threads_and_forked_processes_share_no_bytes() -> None:
    source = SystemRandomness()
    source.bytes(LONG)
    with ThreadPoolExecutor(8) as threads:
        drawn = list(threads.map(source.bytes, [2 * LONG] * 40))
    fork = multiprocessing.get_context("fork")
    with fork.Pool(2) as processes:
        drawn += processes.map(source.bytes, [2 * LONG] * 4)
    drawn.append(source.bytes(2 * LONG))
    assert len({each[:32] for each in drawn}) == 45


@pytest.mark.parametrize("count", [-1, -LONG])
def test_a_negative_count_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        SystemRandomness().bytes(count)


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
