"""No record moves a sum of secure columns further than is charged, and some move it nearly as far."""

import numpy as np
import pytest

from neighbours import NEIGHBOURS, Terms, draw, largest, table_of
from sottovoce.secure import columns, dealer, ring

DRAWS, RECORDS = range(24), 150


@pytest.mark.slow
def test_no_neighbour_is_further_than_the_bound_and_some_are_as_far() -> None:
    """Whatever P, weights, chances, coins and masks are, and however parts are left blank or replaced."""
    found = largest(DRAWS, RECORDS)
    assert {kind for _, kind in found} == set(NEIGHBOURS)
    assert len(found) == 7 * len(NEIGHBOURS)
    for key, most in found.items():
        assert most <= 1 + 1e-9, (key, most)
        assert most >= 0.97, (key, most)


@pytest.mark.slow
def test_a_factor_that_is_rounded_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ring.factors()
    monkeypatch.setattr(dealer, "factors", lambda: np.where(found < 31, found + 1, found))
    assert largest(range(8), RECORDS)["gradient", "the record blank"] > 1.001


@pytest.mark.slow
def test_rows_that_are_kept_though_they_are_too_long_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their squares are looked up modulo 16 C^2."""
    monkeypatch.setattr(dealer, "KEPT", columns.COARSE_LEVELS)
    assert largest(range(8), RECORDS)["gradient", "the record blank"] > 2


@pytest.mark.slow
def test_records_of_which_a_part_is_blank_and_that_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = columns.Columns.__init__

    def counted(self: columns.Columns, place: object, rows: object, usable: object, *more: object) -> None:
        whole(self, place, rows, np.ones_like(usable), *more)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(columns.Columns, "__init__", counted)
    found = largest(range(8), RECORDS)
    assert found["score", "a part blank"] > 1.5
    assert found["score", "the record blank"] > 0


def test_terms_are_those_of_what_was_opened() -> None:
    told = draw(3)
    for query, _, terms, opened in Terms(told, table_of(told, 20)).all():
        assert terms.sum(axis=0).tolist() == opened.tolist(), query.name
