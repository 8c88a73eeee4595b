"""Numbers that a compiled loop reads are those of Python's float, bit for bit; what it leaves is read by texts."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sottovoce.data.files import csv
from sottovoce.data.kernels import row_loops as decimals
from sottovoce.data.kernels.row_loops import decimal


def numeric_lines(lines: list[bytes], *asked: Any) -> Any:
    return csv.numeric_lines(b"".join(lines), np.cumsum([0, *map(len, lines)]), *asked)


def by_texts(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> Any:
    """What reading cell by cell finds alone."""

    def none_is_plain(*told: Any) -> None:
        told[-1][:] = False

    with monkeypatch.context() as patched:
        patched.setattr(decimals, "fill_numbers", none_is_plain)
        return numeric_lines(*arguments)


def bits(numbers: Any) -> list[int]:
    return np.asarray(numbers, dtype=np.float64).view(np.int64).ravel().tolist()


def drawn(random: random.Random) -> str:
    """A number as programs write them."""
    value = random.gauss(0, 1) * 10 ** random.randint(-8, 8)
    return random.choice(
        [
            repr(value),
            f"{value:.6f}",
            f"{value:.17g}",
            f"{value:e}",
            str(random.randrange(10**19)),
            f"{random.randrange(1000)}.{random.randrange(10**18):018d}",
            f"0.{random.randrange(10**17):020d}",
            str(random.randrange(-99, 99)),
        ]
    )


def test_numbers_are_those_of_float() -> None:
    seeded = random.Random(1)
    cells = [drawn(seeded) for _ in range(60_000)]
    lines = [f"{','.join(cells[at : at + 6])}\n".encode() for at in range(0, len(cells), 6)]
    block, whole, _ = numeric_lines(lines, 6, range(6), None)
    assert whole.all()
    assert bits(block) == bits([float(cell) for cell in cells])


def test_most_lines_are_read_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one of what pandas and spreadsheets write is left to the slow way."""
    seeded = random.Random(2)
    lines = [
        f"{seeded.random()!r}, {seeded.gauss(60, 10):.2f} ,{seeded.randrange(9)},\r\n".encode() for _ in range(999)
    ]
    monkeypatch.setattr(csv, "split_cells", lambda _: pytest.fail("a line was read by its texts"))
    block, whole, labels = numeric_lines(lines, 4, (0, 1, 3), 2)
    assert whole.all()
    assert np.isnan(block[:, 2]).all()
    assert set(labels) == set("012345678")


def test_a_number_between_two_doubles_is_settled_or_left() -> None:
    """Decimals as near as 19 digits come to the middle of two doubles."""
    seeded, settled = random.Random(3), 0
    for _ in range(20_000):
        one = seeded.uniform(1, 1000)
        places = seeded.randint(13, 16)
        digits = round((Fraction(one) + Fraction(float(np.nextafter(one, 1e9)))) / 2 * 10**places)
        digits += seeded.choice([-1, 0, 1])
        value, sure = decimal(np.uint64(digits), -places)
        settled += sure
        assert not sure or value == float(Fraction(digits, 10**places))
    assert settled > 19_000


def test_the_middle_itself_is_left() -> None:
    """2^53 + 1 lies in the middle of two doubles: what is found beside it may not decide."""
    for digits, power in ((2**53 + 1, 0), ((2**53 + 1) * 5, -1), ((2**53 + 1) * 125, -3)):
        value, sure = decimal(np.uint64(digits), power)
        assert not sure or value == 2.0**53


CELLS = [
    *("", " ", "\t", "0", "-0", "+0", "5.", ".5", "-.5e1", "1e5", "1E+05", "1e-5", "007", "0" * 25 + "12"),
    *(".", "-", "+.", "1e", "1e+", "e5", "--1", "1.2.3", "1 2", "1\r", "1\x00", "0x10", "1_000", "١٢", "½"),
    *("9" * 19, "9" * 20, "184467440737095516160", "18446744073709551616", "0." + "0" * 30 + "1", "1" + "0" * 400),
    *("1e22", "1e23", "1e308", "1e309", "1e-400", "0e99999", "1e0000000000000000001", "1e99999999999999999999"),
    *("nan", "NA", "?", "inf", "-Infinity", "yes", '"1"', '"1', '1"', " 3 ", "\xa03"),
]


@pytest.mark.parametrize("cell", CELLS)
def test_any_cell_is_read_as_by_texts(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"1,2,{cell},x\n", f"{cell},2,3,{cell}\r\n", f"1,{cell}\n", f"{cell}\n", cell, f"1,2,3,4,{cell}\n"]
    for width, kept, label in ((4, (0, 1, 2), 3), (4, (3, 0), 2), (1, (0,), None), (2, (), 1)):
        told = ([line.encode() for line in lines], width, kept, label)
        found, expected = numeric_lines(*told), by_texts(monkeypatch, *told)
        assert [*np.isnan(found[0]).ravel()] == [*np.isnan(expected[0]).ravel()]
        assert bits(np.nan_to_num(found[0], nan=7.0)) == bits(np.nan_to_num(expected[0], nan=7.0))
        assert found[1].tolist() == expected[1].tolist()
        assert found[2] == expected[2]


@pytest.mark.slow
def test_lines_of_any_bytes_are_read_as_by_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = random.Random(4)
    alphabet = [
        b"1",
        b"2",
        b"0",
        b".",
        b",",
        b",",
        b",",
        b"-",
        b"e",
        b" ",
        b'"',
        b"\r",
        b"\xff",
        b"\xc3\xa9",
        b"x",
        b"\t",
    ]
    lines = [b"".join(seeded.choices(alphabet, k=seeded.randint(0, 14))) + b"\n" for _ in range(20_000)]
    for told in ((lines, 4, (0, 2), 1), (lines, 3, (0, 1, 2), None), (lines, 1, (0,), None)):
        found, expected = numeric_lines(*told), by_texts(monkeypatch, *told)
        assert np.array_equal(found[0], expected[0], equal_nan=True)
        assert found[1].tolist() == expected[1].tolist()
        assert found[2] == expected[2]
        assert 0 < found[1].sum() < len(lines)
