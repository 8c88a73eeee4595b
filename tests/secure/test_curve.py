"""The group in which identifiers are blinded."""

from __future__ import annotations

import hmac
import random

import numpy as np
import pytest

from sottovoce.errors import RefusedError
from sottovoce.secure import curve
from sottovoce.secure.curve import ORDER, PRIME, _on_curve, hashed, new_scalar, points_of, quotient
from sottovoce.secure.workers import Workers, blinded

SALT = bytes(32)
TEXTS = [str(place) for place in range(40)]


def as_points(numbers: list[int]) -> np.ndarray:
    data = b"".join(number.to_bytes(32, "little") for number in numbers)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 32)


def is_square(x: int) -> bool:
    return pow(x * (x * (x + 486662) + 1) % PRIME, (PRIME - 1) // 2, PRIME) == 1


def test_points_of_the_curve_are_told_from_those_of_its_twist() -> None:
    dice = random.Random(1)
    numbers = [
        0,
        1,
        2,
        9,
        PRIME - 1,
        PRIME - 2,
        2**254,
        2**29 - 1,
        2**29,
        2**232,
        *(dice.randrange(PRIME) for _ in range(300)),
    ]
    assert _on_curve(as_points(numbers)).tolist() == [is_square(number) for number in numbers]


def test_texts_are_hashed_to_the_curve_by_the_salt_and_the_label() -> None:
    points = hashed(SALT, ["list"], TEXTS)
    numbers = [int.from_bytes(point.tobytes(), "little") for point in points]
    assert all(number < PRIME and is_square(number) for number in numbers)
    assert len(set(numbers)) == len(TEXTS)
    assert not set(numbers) & {
        int.from_bytes(point.tobytes(), "little")
        for other in (hashed(b"x" * 32, ["list"], TEXTS), hashed(SALT, ["digest"], TEXTS))
        for point in other
    }
    assert np.array_equal(points, hashed(SALT, ["list"], TEXTS))


def tried(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> tuple[list[int], int]:
    """How many points are tried for texts, time after time, and how many hashes are made of them."""
    sizes, digests, whole, digest = list[int](), list[int](), _on_curve, hmac.digest

    def on_curve(points: np.ndarray) -> np.ndarray:
        sizes.append(len(points))
        found: np.ndarray = whole(points)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(curve, "_on_curve", on_curve)
        patch.setattr(curve.hmac, "digest", lambda *said: digests.append(1) or digest(*said))
        hashed(SALT, ["list"], texts)
    return sizes, len(digests)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 40, 1000])
def test_how_often_points_are_tried_follows_from_the_length_of_a_list(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More are needed with a chance below 1e-11 a list."""
    lists = [[f"{one} {place}" for place in range(count)] for one in range(20)]
    found = [tried(monkeypatch, texts) for texts in lists]
    assert all(each == found[0] for each in found)
    assert found[0] == (curve.batches(count), sum(curve.batches(count)))
    assert sum(curve.batches(2**15)) < 1.1 * 2 * 2**15  # what it costs
    points = [hashed(SALT, ["list"], texts).tobytes() for texts in lists]
    monkeypatch.setattr(curve, "batches", lambda _: [])  # planted fault: as often as each text needs
    found = [tried(monkeypatch, texts) for texts in lists]
    assert any(each != found[0] for each in found)
    assert points == [hashed(SALT, ["list"], texts).tobytes() for texts in lists]  # the points are the same


def test_no_texts_are_hashed_to_nothing() -> None:
    assert hashed(SALT, ["list"], []).shape == (0, 32)


def test_a_point_and_its_sum_with_one_of_order_2_are_one_after_blinding() -> None:
    """Whoever sends both has spent two points on one text."""
    x = int.from_bytes(hashed(SALT, ["list"], ["1"]).tobytes(), "little")
    both = as_points([x, pow(x, -1, PRIME)]).tobytes()
    assert len(points_of(both, 2)) == 2
    scalar = new_scalar()
    assert blinded(scalar, both[:32]) == blinded(scalar, both[32:])


def test_scalars_commute_and_are_taken_back() -> None:
    points = hashed(SALT, ["list"], TEXTS).tobytes()
    first, second, third = new_scalar(), new_scalar(), new_scalar()
    assert blinded(first, blinded(second, points)) == blinded(second, blinded(first, points))
    back = blinded(quotient(third, first), blinded(second, blinded(first, points)))
    assert back == blinded(third, blinded(second, points))
    assert blinded(first, points) != blinded(second, points)


def test_every_scalar_has_a_quotient_that_x25519_takes() -> None:
    for _ in range(50):
        number = int.from_bytes(quotient(new_scalar(), new_scalar()), "little")
        assert number % 8 == 0
        assert 2**254 <= number < 2**255
    assert pow(2, ORDER - 1, ORDER) == 1


def test_only_clean_points_are_taken() -> None:
    good = hashed(SALT, ["list"], TEXTS).tobytes()
    assert points_of(good, len(TEXTS)).tobytes() == good
    twist = next(number for number in range(2, 50) if not is_square(number))
    for wrong in (0, twist, PRIME + 9, 2**255 + 9, 2**256 - 1):
        with pytest.raises(RefusedError, match="not on the curve"):
            points_of(good + wrong.to_bytes(32, "little"), len(TEXTS) + 1)
    with pytest.raises(RefusedError, match="a point twice"):
        points_of(good + good[:32], len(TEXTS) + 1)
    for count in (len(TEXTS) - 1, len(TEXTS) + 1):
        with pytest.raises(RefusedError, match="in place of"):
            points_of(good, count)


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_multiply_as_this_process_does(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.secure.workers._FEW", len(TEXTS))
    points = hashed(SALT, ["list"], TEXTS).tobytes()
    scalar, workers = new_scalar(), Workers(processes)
    try:
        assert workers.blinded(scalar, points) == blinded(scalar, points)
        small = 325606250916557431795983626356110631294008115727848805560023387167927233504  # a point of order 8
        with pytest.raises(RefusedError, match="small order"):
            workers.blinded(scalar, points + small.to_bytes(32, "little"))
        assert workers.blinded(scalar, points[:64]) == blinded(scalar, points[:64])
    finally:
        workers.close()
    workers.close()
