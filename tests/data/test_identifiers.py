"""Identifiers: by which rule the same person has the same text everywhere, and what is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from sottovoce.data.identifiers import common_places, fingerprint, hash_of_list
from sottovoce.data.identifiers import identifiers as identifiers_of
from sottovoce.errors import InputError


def identifiers(*told: Any) -> tuple[str, ...]:
    return tuple(identifiers_of(*told))


ALIKE = ["0042", " 42", "42 ", 42, 42.0, "４２", "4 2", "00042"]  # noqa: RUF001


@pytest.mark.parametrize("one", ALIKE)
def test_numbers_are_alike_however_they_are_padded(one: Any) -> None:
    assert identifiers([one], 1, "lab") == ("42",)


@pytest.mark.parametrize("one", ["AB-12", "ab-12", " Ab - 12\t", "ＡＢ-12"])  # noqa: RUF001
def test_case_spaces_and_width_do_not_matter(one: str) -> None:
    assert identifiers([one], 1, "lab") == ("ab-12",)


def test_what_the_rule_keeps_apart() -> None:
    apart = ["0", "1", "10", "a01", "a1", "0x1", "-1", "1.5", "é", "e"]
    assert identifiers(apart, len(apart), "lab") == tuple(apart)
    assert identifiers(["000"], 1, "lab") == ("0",)
    assert identifiers(["STRASSE"], 1, "lab") == identifiers(["straße"], 1, "lab")


def test_the_exact_rule_takes_spaces_around_away_and_nothing_else() -> None:
    assert identifiers([" 007", "7", "A b"], 3, "lab", "exact") == ("007", "7", "A b")
    with pytest.raises(InputError, match="id_rule='loose' must be one of usual, exact"):
        identifiers(["1"], 1, "lab", "loose")


def test_duplicates_are_refused_with_their_records_and_without_themselves() -> None:
    with pytest.raises(InputError, match=r"2 identifiers occur more than once .*\(records 1, 2, 3, 4, 6\)") as refused:
        identifiers(["x9", "7", "07", "X 9", "5", "007"], 6, "lab")
    assert "x9" not in str(refused.value)
    with pytest.raises(InputError, match=r"2 records have no identifier, .* \(records 2, 3\)"):
        identifiers(["1", " ", None, "4"], 4, "lab")
    many = ["same"] * 50
    with pytest.raises(InputError, match=r"records 1, .* 20 and 30 more"):
        identifiers(many, 50, "lab")


def test_lists_and_fingerprints_tell_orders_and_rules_apart() -> None:
    assert hash_of_list(["1,2", "3"]) != hash_of_list(["1", "2,3"])
    assert len({fingerprint(ids, rule) for ids in (["1", "2"], ["2", "1"]) for rule in ("usual", "exact")}) == 4


def test_lists_that_are_all_here_are_joined() -> None:
    first, second = common_places([["c", "a", "b"], ["b", "x", "c"]])
    assert first.tolist() == [0, 2]
    assert second.tolist() == [2, 0]


def test_a_list_of_several_pieces_has_the_hash_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", 'b"', "c,", "\u00e9", "\ud800", "", "f"]
    whole = json.dumps(texts, separators=(",", ":")).encode()
    for piece in (1, 2, 3, 7, 8):
        monkeypatch.setattr("sottovoce.data.identifiers._PIECE", piece)
        assert hash_of_list(iter(texts), b"head") == hashlib.sha256(b"head" + whole).hexdigest()
        assert hash_of_list([]) == hashlib.sha256(b"[]").hexdigest()
        found = identifiers_of([*texts[:5], "z", "f"], 7, "lab", "exact")
        assert list(found) == [*texts[:5], "z", "f"]
        assert list(found.at(np.array([6, 0, 3, 3]))) == ["f", "a", "\u00e9", "\u00e9"]
        assert [found[place] for place in range(len(found))] == list(found)


def test_equal_hashes_are_no_equal_identifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.data.identifiers.hash", lambda _: 7, raising=False)
    assert identifiers(["1", "2", "3"], 3, "lab") == ("1", "2", "3")
    with pytest.raises(InputError, match="1 identifiers occur more than once"):
        identifiers(["1", "2", "1"], 3, "lab")
