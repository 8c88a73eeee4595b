"""Private set intersection: whom parties have in common, in one order, and what nobody learns of the others."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.app.sources import join
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation.alignment import AlignmentFile, AlignmentResult, new_terms
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import check_aligned
from sottovoce.gate import intersection
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.intersection import AlignmentSession, AlignmentTerms
from sottovoce.secure.curve import hashed
from sottovoce.secure.streams import seal_envelope
from sottovoce.secure.sums import packed_envelope
from sottovoce.secure.workers import blinded
from sottovoce.transports.base import InProcess

NAMES = ("a", "b", "c", "d")
PAIR = ("a", "b")
LISTS = {"a": ["7", "3", "9", "1", "5"], "b": ["5", "8", "3", "7"], "c": ["3", "6", "7", "5", "2", "4"]}
COMMON = {"3", "5", "7"}


def holder(name: str, ids: Sequence[Any], aligned: AlignmentFile | None = None, **policy: Any) -> Party:
    """A party whose one column is its identifiers, so that rows can be followed."""
    allowed = {"align": ("a", "b", "c"), "count_shared": NAMES, "align_times": 9, **policy}
    rows = np.array([[float(one)] for one in ids])
    return Party(name, rows, rows[:, 0] % 2, ids=ids, policy=Policy(**allowed), aligned=aligned)


def holders(lists: Mapping[str, Sequence[Any]] = LISTS, **policy: Any) -> list[Party]:
    return [holder(name, ids, **{"align": tuple(lists), **policy}) for name, ids in lists.items()]


def aligned(parties: Sequence[Party], matcher: str = "coordinator", wire: Any = None) -> AlignmentResult:
    names = [party.name for party in parties]
    return Coordinator(wire or InProcess(parties)).align(new_terms(names, matcher))


class Lying:
    """A wire that passes everything on, changed by `lie` (party, request) and `other` (party, reply)."""

    def __init__(self, parties: Sequence[Party], lie: Callable[..., Frame | None] | None = None) -> None:
        self._wire = InProcess(parties)
        self.parties, self.communication = self._wire.parties, self._wire.communication
        self.lie = lie
        self.passed: list[tuple[str, bytes]] = []

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        said = dict(messages)
        for name, message in messages.items():
            changed = None if self.lie is None else self.lie(name, decode(message))
            said[name] = message if changed is None else encode(changed)
        replies = self._wire.exchange(said)
        self.passed += [*said.items(), *replies.items()]
        return replies


def with_arrays(frame: Frame, arrays: Mapping[str, Any], **changes: Any) -> Frame:
    return Frame(
        frame.kind, frame.serial, frame.plan, frame.round, frame.query, arrays, changes.get("text", frame.text)
    )


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    lists=st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=10), min_size=2, max_size=4),
    matcher=st.integers(-1, 3),
    seed=st.integers(0, 99),
)
def test_it_is_the_plain_join(lists: list[set[int]], matcher: int, seed: int) -> None:
    order = random.Random(seed)
    shuffled = [order.sample(sorted(each), len(each)) for each in lists]
    parties = holders(dict(zip(NAMES, shuffled, strict=False)))
    who = NAMES[matcher] if 0 <= matcher < len(lists) else "coordinator"
    common = set.intersection(*lists)
    if not common:
        with pytest.raises(RefusedError, match="nobody in common"):
            aligned(parties, who)
        assert all(party.aligner.file.kept is None for party in parties)
        return
    found = aligned(parties, who)
    assert found.common == len(common)
    assert dict(found.sizes) == {name: len(each) for name, each in zip(NAMES, lists, strict=False)}
    first = parties[0]
    assert set(first.rows[:, 0]) == common
    for party in parties:
        assert party.ids == first.ids
        assert np.array_equal(party.rows, first.rows)
        assert np.array_equal(party.labels, first.rows[:, 0] % 2)
        assert party.aligned == first.aligned != ""


def test_lists_of_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gate.intersection", "federation.alignment"):
        monkeypatch.setattr(f"sottovoce.{module}.PIECE", 2)
        monkeypatch.setattr(f"sottovoce.{module}.WORDS", 3)
    for matcher in ("coordinator", "b"):
        parties = holders()
        progress: list[tuple[int, int]] = []
        terms = new_terms(LISTS, matcher)
        found = Coordinator(InProcess(parties)).align(terms, lambda *told, seen=progress: seen.append(told))
        assert found.common == 3  # a whole message of words, and then an empty one
        assert {frozenset(party.ids or ()) for party in parties} == {frozenset(COMMON)}
        assert progress[-1] == (4 * 15, 4 * 15)
        session = parties[0].aligner._session
        assert session is not None
        assert session.progress.done == session.progress.total == 5 + 15


@pytest.mark.slow
@pytest.mark.parametrize("matcher", ["coordinator", "b"])
@pytest.mark.parametrize(("piece", "words", "held"), [(2**15, 2**17, 2**18), (3, 2, 4), (2, 5, 1)])
def test_pieces_give_what_one_sort_of_all_gives(
    matcher: str, piece: int, words: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places of the common records and the digest, bit for bit, by the same scalars and the same salt."""
    for module in ("gate.intersection", "federation.alignment"):
        monkeypatch.setattr(f"sottovoce.{module}.PIECE", piece)
        monkeypatch.setattr(f"sottovoce.{module}.WORDS", words)
    monkeypatch.setattr("sottovoce.data.row_file._HELD", held)
    monkeypatch.setattr("sottovoce.data.row_file._LEAST", 1)
    scalars, salts, honest = dict[str, bytes](), list[bytes](), AlignmentSession._take_salt

    def watched(self: AlignmentSession, sent: Any) -> None:
        honest(self, sent)
        scalars[self.own] = self._scalar
        salts.append(self._salt)

    monkeypatch.setattr(AlignmentSession, "_take_salt", watched)
    parties = holders({"a": range(20), "b": range(31, 5, -1), "c": [*range(3, 14), *range(40, 49)]})
    aligned(parties, matcher)

    def point_of(label: str, texts: list[str]) -> bytes:
        points = hashed(salts[0], [label], texts).tobytes()
        for scalar in scalars.values():
            points = blinded(scalar, points)
        return points

    lists = {
        party.name: np.array(
            [hashlib.sha256(b"word" + point_of("list", [one])).digest()[:16] for one in party.identifiers or ()],
            dtype="S16",
        )
        for party in parties
    }
    common = functools.reduce(np.intersect1d, lists.values())
    assert len(common) == 8
    for party in parties:
        order = np.argsort(lists[party.name])
        places = order[np.searchsorted(lists[party.name], common, sorter=order)]
        assert party.places is not None
        assert party.places.tolist() == places.tolist()
        written = json.dumps([str(int(one)) for one in party.rows[:, 0]], separators=(",", ":")).encode()
        agreed = hashlib.sha256(b"digest" + point_of("digest", [hashlib.sha256(written).hexdigest()])).hexdigest()
        assert party.aligned == agreed


PROGRAM = Path(__file__).parents[1] / "programs" / "align_many.py"


def many(folder: Path, records: int, *more: Any) -> subprocess.Popen[str]:
    """Lists of that length, in a process of their own whose temporary files are in the folder."""
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, str(PROGRAM), str(records), str(folder), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_memory_does_not_grow_with_lists(tmp_path: Path) -> None:
    """Three roles in a process, buffers full: rows and letters of identifiers grow, 130 bytes; whole lists take 800."""
    peaks = list[int]()
    for number, told in enumerate([(150_000,), (350_000,), (350_000, "hoard")]):
        said, _ = many(tmp_path / str(number), *told).communicate(timeout=300)
        peaks.append(1024 * int(said))
    assert peaks[1] - peaks[0] < 200 * 200_000
    assert peaks[2] - peaks[0] > 200 * 200_000  # planted: what is in files is in memory too


@pytest.mark.slow
def test_an_alignment_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    program = many(folder, 5_000, "pause")
    assert program.stdout is not None
    assert program.stdout.readline() == "all words are in files\n"
    opened = [str(path.readlink()) for path in Path(f"/proc/{program.pid}/fd").iterdir()]
    assert sum(name.startswith(str(folder)) and name.endswith("(deleted)") for name in opened) >= 3
    program.kill()
    program.communicate()
    assert sorted(path.name for path in folder.iterdir()) == ["a.aligned", "b.aligned"]  # how often words left


def test_orders_differ_from_run_to_run_and_from_the_files() -> None:
    parties, orders = holders({"a": range(30), "b": range(30)}), set()
    for _ in range(3):
        aligned(parties)
        orders.add(parties[0].ids)
    assert len(orders) == 3  # 1 / 30! to be the same
    assert tuple(map(str, range(30))) not in orders


def test_a_repeated_message_gets_the_same_bytes() -> None:
    class Twice(Lying):
        def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
            first = super().exchange(messages)
            again = {n: m for n, m in messages.items() if decode(m).query != "invite"}
            second = self._wire.exchange(again)
            assert all(second[name] == first[name] for name in again)
            return first

    parties = holders()
    assert aligned(parties, "c", Twice(parties)).common == 3
    assert [len(party.aligner.file.dates) for party in parties] == [1, 1, 1]


def swapped(name: str, frame: Frame) -> Frame | None:
    """Give a party another envelope than the one that it is due."""
    if frame.query == "list" and frame.text == "1" and name == "b":
        swapped.kept = frame.arrays["envelope"]  # type: ignore[attr-defined]
    if frame.query == "list" and frame.text == "2" and name == "b":
        return with_arrays(frame, {"envelope": swapped.kept})  # type: ignore[attr-defined]
    return None


def skipped(name: str, frame: Frame) -> Frame | None:
    """Leave a step out."""
    return with_arrays(frame, frame.arrays, text="2") if (frame.query, frame.text) == ("list", "1") else None


def cut(name: str, frame: Frame) -> Frame | None:
    """Tell one party a common person less."""
    common = frame.arrays.get("words")
    return (
        with_arrays(frame, {"words": common[1:]})
        if frame.query == "common" and name == "b" and common is not None
        else None
    )


def added(name: str, frame: Frame) -> Frame | None:
    """Tell of a common person that nobody has."""
    if frame.query != "common":
        return None
    words = np.frombuffer(np.sort(np.frombuffer(frame.arrays["words"].tobytes() + b"x" * 16, "S16")).tobytes(), "<i8")
    return with_arrays(frame, {"words": words.reshape(-1, 2).copy()})


def disordered(name: str, frame: Frame) -> Frame | None:
    """Tell all another order."""
    return with_arrays(frame, {"words": frame.arrays["words"][::-1].copy()}) if frame.query == "common" else None


def unsaid(name: str, frame: Frame) -> Frame | None:
    """Keep the digest of one party back."""
    return with_arrays(frame, {"2": frame.arrays["2"]}) if (frame.query, name) == ("agreed", "a") else None


def counted(name: str, frame: Frame) -> Frame | None:
    """End an alignment as if people were counted."""
    return Frame("align", frame.serial, frame.plan, 0, "counted", {}, "3") if frame.query == "common" else None


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (swapped, "altered, or is of another sender"),
        (skipped, "not the next one"),
        (cut, "do not have the same common people"),
        (added, "what was said to be common is not"),
        (disordered, "what was said to be common is not"),
        (unsaid, "what b sent is missing"),
        (counted, "another plan, round or query"),  # the refusal of what was not asked by the honest part
    ],
)
def test_a_lying_coordinator_is_found_and_nothing_is_kept(lie: Any, words: str) -> None:
    parties = holders()
    with pytest.raises((RefusedError, WireError), match=words):
        aligned(parties, "coordinator", Lying(parties, lie))
    assert parties[0].aligner.file.kept is None
    assert parties[0].rows.shape == (5, 1)
    assert aligned(parties).common == 3  # started again, it goes through


def test_common_words_without_an_end_are_refused_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gate.intersection", "federation.alignment"):
        monkeypatch.setattr(f"sottovoce.{module}.WORDS", 3)
    sent = list[int]()

    def endless(self: Any, terms: AlignmentTerms, common: Any) -> int:
        for piece in range(9):
            sent.append(piece)
            ordered = b"".join(bytes([3 * piece + place]) * 16 for place in range(3))
            words = {"words": intersection.packed_hashes(ordered)}
            self._ask(terms.members, "common", piece, each=dict.fromkeys(terms.members, words))
        return 27

    monkeypatch.setattr("sottovoce.federation.alignment.AlignmentRun._tell", endless)
    with pytest.raises(RefusedError, match="what was said to be common is not"):
        aligned(holders())
    assert sent == [0, 1]  # 6 words, where lists have 5, 4 and 6


def test_order_is_looked_at_across_pieces() -> None:
    def taken(*pieces: list[bytes]) -> bool:
        return all(map(intersection.CheckedHashes().take, [np.array(piece, dtype="S16") for piece in pieces]))

    assert taken([b"a"], [], [b"b", b"c"], [b"d"])
    assert not taken([b"a"], [b"b"], [b"b"])
    assert not taken([b"b"], [], [b"a"])
    assert not taken([b"a", b"a"])


def test_a_coordinator_that_tells_all_the_same_subset_is_believed() -> None:
    """Negative control, and a limit that is stated: it can leave common people out, whoever they are."""

    def fewer(name: str, frame: Frame) -> Frame | None:
        return with_arrays(frame, {"words": frame.arrays["words"][1:]}) if frame.query == "common" else None

    parties = holders()
    aligned(parties, "coordinator", Lying(parties, fewer))
    assert all(len(party.ids or ()) == 2 for party in parties)


def test_an_end_that_forges_its_key_or_its_terms_is_refused() -> None:
    def forged(part: int, value: Any) -> Callable[..., Frame | None]:
        def lie(name: str, frame: Frame) -> Frame | None:
            if frame.query != "open" or name != "a":
                return None
            told = json.loads(frame.text)
            told["b"][part] = value
            return with_arrays(frame, frame.arrays, text=json.dumps(told))

        return lie

    for part, value in ((0, "11" * 32), (1, 3), (2, "exact"), (3, "{}"), (3, None), (1, -1), (1, True)):
        parties = holders()
        with pytest.raises(RefusedError):
            aligned(parties, "coordinator", Lying(parties, forged(part, value)))

    def others(name: str, frame: Frame) -> Frame | None:
        """Tell one party other terms than the others."""
        if frame.query != "invite" or name != "a":
            return None
        terms = AlignmentTerms.read(frame.text)
        return with_arrays(frame, {}, text=AlignmentTerms(terms.run, terms.members, "b", "order").text)

    parties = holders()
    with pytest.raises(RefusedError, match="signature of"):
        aligned(parties, "coordinator", Lying(parties, others))


POINTS = hashed(bytes(32), ["list"], [str(place) for place in range(9)]).tobytes()
ORDER_8 = (325606250916557431795983626356110631294008115727848805560023387167927233504).to_bytes(32, "little")


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (lambda own: own[:32] * (len(own) // 32), "a point twice"),
        (lambda own: own[:-32], "in place of"),
        (lambda own: own + POINTS[:32], "in place of"),
        (lambda own: own[:-32] + (2).to_bytes(32, "little"), "not on the curve"),
        (lambda own: own[:-32] + ORDER_8, "small order"),
        (lambda own: own[32:] + own[:32], "do not have the same common people"),
        (lambda own: POINTS[: len(own)], "nobody in common"),
    ],
)
def test_a_lying_party_is_found(points: Callable[[bytes], bytes], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes on something else than the list of another party that it got, or sends no list of its own."""
    parties = holders({"a": LISTS["a"], "b": LISTS["b"]})
    honest = intersection.Workers.blinded
    liar = parties[1].aligner

    def lies(self: Any, scalar: bytes, given: bytes) -> bytes:
        made = honest(self, scalar, given)
        session = liar._session
        mine = session is not None and session._workers is self and scalar == session._scalar
        return points(made) if mine and len(given) == 32 * 5 else made

    monkeypatch.setattr(intersection.Workers, "blinded", lies)
    with pytest.raises(RefusedError, match=words):
        aligned(parties)
    assert all(party.aligner.file.kept is None for party in parties)


@pytest.mark.parametrize(
    "made", [lambda words: words[::-1], lambda words: np.repeat(words[:1], len(words)), lambda words: words[1:]]
)
@pytest.mark.parametrize("matcher", ["coordinator", "a"])
def test_words_that_are_no_list_are_refused(made: Any, matcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parties = holders({"a": LISTS["a"], "b": LISTS["b"]})
    honest = intersection.cut_pieces

    def cut_pieces(parts: Any, size: int) -> Any:
        return (made(part) if part.dtype.kind == "S" and len(part) == 4 else part for part in honest(parts, size))

    monkeypatch.setattr(intersection, "cut_pieces", cut_pieces)
    with pytest.raises((RefusedError, WireError), match=r"b sent .*words"):
        aligned(parties, matcher)


def traces(passed: Sequence[tuple[str, bytes]], ids: Sequence[str], salt: bytes) -> int:
    """How many guesses at identifiers whoever sees all that passed, and even the salt, finds in it."""
    guesses = [hashed(salt, ["list"], ids)[place].tobytes() for place in range(len(ids))]
    for one in ids:
        told = one.encode()
        guesses += [hashlib.sha256(told).digest()[:16], hmac.digest(salt, told, "sha256")[:16]]
    guesses += [hashlib.sha256(b"word" + point).digest()[:16] for point in guesses if len(point) == 32]
    return sum(guess in data for guess in guesses for _, data in passed)


@pytest.mark.parametrize("matcher", ["coordinator", "b"])
def test_nothing_that_passes_depends_on_identifiers_but_by_keys(matcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists are texts of 16 letters: none is in what passed, nor a hash of one; no two runs have a word alike."""
    ids = {name: [str(int(one) + 10**15) for one in own] for name, own in LISTS.items()}
    everything, words, salts = [], [], []
    honest = AlignmentSession._take_salt

    def watched(self: AlignmentSession, sent: Any) -> None:
        honest(self, sent)
        salts.append(self._salt)

    monkeypatch.setattr(AlignmentSession, "_take_salt", watched)
    for _ in range(2):
        parties = holders(ids)
        wire = Lying(parties)
        aligned(parties, matcher, wire)
        everything += wire.passed
        words.append(secure_text(wire.passed))
    texts = [one for own in ids.values() for one in own]
    assert not any(one.encode() in data for one in texts for _, data in everything)
    assert traces(everything, texts, salts[0]) == 0
    alike = words[0] & words[1]
    assert len(words[0]) > 100
    assert not {word for word in alike if abs(word) > 2**32}  # the ends of envelopes are short; else once in 2^40

    monkeypatch.setattr(
        intersection, "seal_envelope", lambda key, label, sender, data: data
    )  # planted fault: no envelope
    monkeypatch.setattr(intersection, "open_envelope", lambda key, label, sender, data: data)
    monkeypatch.setattr(intersection.Workers, "blinded", lambda self, scalar, points: points)
    parties = holders(ids)
    wire = Lying(parties)
    aligned(parties, matcher, wire)
    assert traces(wire.passed, texts, salts[-1]) > 0
    assert secure_text(wire.passed)


def secure_text(passed: Sequence[tuple[str, bytes]]) -> set[int]:
    """The numbers of all that passed in envelopes and as words, without the lengths."""
    arrays = [array for _, data in passed for array in decode(data).arrays.values()]
    return {word for array in arrays for word in array.reshape(-1)[array.ndim == 1 :].tolist()} - {0}


def test_the_coordinator_reads_no_list_and_each_list_is_of_its_length() -> None:
    parties = holders()
    wire = Lying(parties)
    aligned(parties, "b", wire)
    points = [data for _, data in wire.passed if decode(data).query == "list" and decode(data).arrays]
    lengths = {int(array[0]) for data in points for array in decode(data).arrays.values()}
    assert lengths == {32 * len(own) + 16 for own in LISTS.values()}  # points in envelopes, and nothing else
    words = [decode(data) for _, data in wire.passed if decode(data).query in ("words", "match", "common")]
    assert all(set(frame.arrays) <= {"0", "1", "2", "envelope"} for frame in words)  # no word in the clear
    clear = Lying(holders())
    aligned(list(clear._wire._endpoints.values()), "coordinator", clear)  # type: ignore[arg-type]
    assert any("words" in decode(data).arrays for _, data in clear.passed)  # negative control


def test_who_coalitions_with_the_coordinator_tests_no_guess_at_the_digest() -> None:
    """Told one person alone, not common, a party sends a digest of it. Without its scalars no guess can be tried."""
    parties = holders({"a": LISTS["a"], "b": LISTS["b"]})
    seen: dict[str, Any] = {}

    def lie(name: str, frame: Frame) -> Frame | None:
        victim, attacker = (party.aligner._session for party in parties)
        if victim is None or attacker is None:
            return None
        if frame.query == "common" and name == "a":
            found = intersection.hash_points(
                blinded(victim._scalar, blinded(attacker._scalar, hashed(victim._salt, ["list"], ["9"]).tobytes()))
            )
            return with_arrays(frame, {"words": intersection.packed_hashes(found.tobytes())})
        if frame.query == "agree":
            seen.update(victim=victim._scalar, attacker=attacker._scalar, salt=victim._salt, key=victim._keys["b"])
        if frame.query == "agreed" and name == "b":
            seen["told"] = intersection.open_envelope(
                seen["key"], ["agree"], "a", intersection.unpacked_envelope(frame.arrays["0"])
            )
        return None

    with pytest.raises(RefusedError, match="do not have the same common people"):
        aligned(parties, "coordinator", Lying(parties, lie))
    guess = hashed(seen["salt"], ["digest"], [hashlib.sha256(b'["9"]').hexdigest()]).tobytes()
    own = blinded(seen["attacker"], guess)
    assert seen["told"] != hashlib.sha256(b"digest" + own).digest()
    both = blinded(seen["victim"], own)  # negative control: with the victim's scalar the guess is found to be right
    assert seen["told"] == hashlib.sha256(b"digest" + both).digest()


def test_a_party_multiplies_no_more_points_than_were_announced() -> None:
    """Another round of points under the same scalar is another guess for each: none is answered."""
    parties = holders({"a": LISTS["a"], "b": LISTS["b"]})

    def lie(name: str, frame: Frame) -> Frame | None:
        session = parties[1].aligner._session
        if frame.query == "words" and name == "a" and session is not None:
            enveloped = packed_envelope(seal_envelope(session._keys["a"], ["list", 1, 0, 1], "b", POINTS[: 32 * 4]))
            return Frame("align", frame.serial, frame.plan, 1, "list", {"envelope": enveloped}, "1")
        return None

    with pytest.raises((RefusedError, WireError), match=r"not the next one|another plan, round or query"):
        aligned(parties, "coordinator", Lying(parties, lie))


def test_a_party_aligns_with_whom_its_holder_names_alone() -> None:
    for policy in ({"align": ()}, {"align": ("b", "x")}, {"align": NAMES}, {"align": PAIR}):
        with pytest.raises(RefusedError, match=r"a does not align with b, c; its holder can, by policy\.align"):
            aligned(holders(**policy))  # with all that it names, and with no fewer
    with pytest.raises(RefusedError, match=r"by policy\.count_shared"):
        Coordinator(InProcess(holders(count_shared=()))).align(new_terms(("a", "b"), purpose="count"))
    with pytest.raises(RefusedError, match="has no identifiers"):
        aligned([holder("a", ["1", "2"], align=PAIR), Party("b", np.zeros((2, 1)), None, policy=Policy(align=PAIR))])
    with pytest.raises(RefusedError, match=r"more than policy\.align_ratio = 2 times those of a"):
        aligned(holders({"a": ["1"], "b": ["1", "2", "3"]}, align_ratio=2.0))
    exact = Party("b", np.zeros((1, 1)), None, ids=["1"], id_rule="exact", policy=Policy(align=PAIR))
    with pytest.raises(RefusedError, match="set id_rule alike"):
        aligned([holder("a", ["1"], align=PAIR), exact])


def test_who_matches_is_for_the_holders_to_say() -> None:
    """A coordinator that should not know how many people are shared does not choose itself, nor another party."""
    for matcher in ("coordinator", "c"):
        parties = holders(align_matched_by="b")
        with pytest.raises(RefusedError, match=r"a has its words matched by b alone, .*policy\.align_matched_by"):
            aligned(parties, matcher)
    assert aligned(holders(align_matched_by="b"), "b").common == 3
    assert aligned(holders(), "c").common == 3  # negative control: whoever the coordinator says
    counted = Coordinator(InProcess(holders(align_matched_by="b")))
    assert counted.align(new_terms(PAIR, purpose="count")).common == 3  # allowed by count_shared


def test_terms_that_are_none_are_refused() -> None:
    for wrong in (["a"], ["a", "a"], ["a", "coordinator"], [str(place) for place in range(65)]):
        with pytest.raises(RefusedError, match="members"):
            new_terms(wrong)
    for matcher, purpose in (("x", "order"), ("coordinator", "both"), ("a", "count")):
        with pytest.raises(RefusedError):
            new_terms(("a", "b"), matcher, purpose)
    for text in ("", "[]", "[1, [], 2, 3]", '["r", "ab", "coordinator", "order", 5]'):
        with pytest.raises(RefusedError):
            AlignmentTerms.read(text)


def test_how_often_words_leave_is_counted_before_they_do(tmp_path: Path) -> None:
    def cuts(name: str, frame: Frame) -> Frame | None:
        return cut(name, frame)

    file = AlignmentFile(tmp_path / "a.aligned")
    parties = [holder("a", LISTS["a"], file, align_times=2, align=PAIR), holder("b", LISTS["b"], align=PAIR)]
    for _ in range(2):
        with pytest.raises(RefusedError, match="same common people"):
            aligned(parties, "coordinator", Lying(parties, cuts))
    parties[0] = holder("a", LISTS["a"], AlignmentFile(tmp_path / "a.aligned"), align_times=2, align=PAIR)  # restarted
    wire = Lying(parties)
    with pytest.raises(RefusedError, match="took part in 2 alignments"):
        aligned(parties, "coordinator", wire)
    words = [decode(data) for name, data in wire.passed if name == "a" and decode(data).query == "words"]
    assert not any("words" in frame.arrays for frame in words)


def test_processes_that_serve_one_file_count_together(tmp_path: Path) -> None:
    one, other = AlignmentFile(tmp_path / "a.aligned"), AlignmentFile(tmp_path / "a.aligned")
    one.leaving(2)
    other.leaving(2)
    for file in (one, other):
        with pytest.raises(RefusedError, match="took part in 2 alignments"):
            file.leaving(2)
    (tmp_path / "a.aligned").unlink()
    with pytest.raises(RefusedError, match="took part in 2 alignments"):
        one.leaving(2)  # a file that is deleted under a party that runs resets nothing


def test_what_is_kept_lasts_and_is_of_one_list(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.aligned"
    parties = [holder("a", LISTS["a"], AlignmentFile(path), align=PAIR), holder("b", LISTS["b"], align=PAIR)]
    aligned(parties)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = holder("a", LISTS["a"], AlignmentFile(path))
    assert again.ids == parties[0].ids
    assert np.array_equal(again.rows, parties[0].rows)
    assert again.aligned == parties[1].aligned
    facts = {fact.name: fact.value for fact in again.facts(classes=False)}
    assert facts["records"] == 3
    for other in ([*LISTS["a"][::-1]], [*LISTS["a"][:-1], "77"]):
        with pytest.raises(InputError, match="alignment of another list"):
            holder("a", other, AlignmentFile(path))
    kept = json.loads(path.read_text())
    for places in ([0, 0], [-1, 0], [0, 5], []):
        wrong = base64.b64encode(np.array(places, dtype="<i8").tobytes()).decode()
        path.write_text(json.dumps({**kept, "aligned": {**kept["aligned"], "places": wrong}}))
        with pytest.raises(InputError, match="damaged"):  # one person in two rows, for instance
            holder("a", LISTS["a"], AlignmentFile(path))
    path.write_text("{}")
    with pytest.raises(InputError, match="no format number"):
        AlignmentFile(path)


def test_files_of_one_process_are_not_joined_by_two_rules() -> None:
    """By the one rule 42 and 0042 are two people, by the other one."""
    parties = [
        Party(name, np.ones((2, 1)), None, ids=ids, id_rule=rule)
        for name, ids, rule in (("a", ["42", "0042"], "exact"), ("b", ["0042", "7"], "usual"))
    ]
    with pytest.raises(InputError, match=r"a exact, b usual.*set id_rule alike"):
        join(parties)
    assert join(parties[:1]) is None


def test_a_party_that_was_restarted_or_asked_for_more_refuses() -> None:
    parties = holders({"a": LISTS["a"], "b": LISTS["b"]})
    wire = InProcess(parties)
    Coordinator(wire).align(new_terms(("a", "b")))
    session = parties[0].aligner._session
    assert session is not None
    frame = Frame("align", 5, session.digest, 1, "list", {}, "1")
    assert "is over" in decode(parties[0].handle(encode(frame)).data).text
    assert "restarted" in decode(parties[0].handle(encode(Frame("align", 6, bytes(32), 0, "open"))).data).text
    assert "restarted" in decode(parties[0].handle(encode(Frame("align", 6, bytes(32), 0, "list"))).data).text
    assert session._scalar == session._first == session._salt == b""  # its keys are forgotten


def test_two_parties_count_whom_they_share_and_learn_nothing_else() -> None:
    parties = holders()
    wire = Lying(parties)
    found = Coordinator(wire).align(new_terms(("a", "c"), purpose="count"))
    assert found.common == 3
    assert [party.aligner.file.kept for party in parties] == [None] * 3
    assert parties[0].rows.shape == (5, 1)
    told = [decode(data) for name, data in wire.passed if decode(data).query == "counted"]
    assert [frame.text for frame in told if frame.kind == "align"] == ["3", "3"]
    assert not any(decode(data).query == "common" for _, data in wire.passed)
    assert [len(party.aligner.file.dates) for party in parties] == [1, 0, 1]
    for more in ("x", "-1", "1" * 40):
        lie = lambda name, frame, more=more: with_arrays(frame, {}, text=more) if frame.query == "counted" else None  # noqa: E731
        with pytest.raises(RefusedError, match="no number"):
            Coordinator(Lying(parties, lie)).align(new_terms(("a", "c"), purpose="count"))


def columns(order: Mapping[str, Sequence[int]], policy: Policy) -> list[Party]:
    """Three parties with columns of the same 60 people and some more, each in its own order."""
    from secure_fits import data

    X, y = data()
    X, y = np.vstack([X, X[:9]]), np.append(y, y[:9])
    parts = {"a": X[:, :1], "b": X[:, 1:3], "c": X[:, 3:]}
    return [
        Party(name, part[order[name]], y[order[name]] if name == "b" else None, policy=policy, ids=order[name])
        for name, part in parts.items()
    ]


def test_files_in_different_orders_are_trained_on_once_they_are_aligned() -> None:
    from secure_fits import model

    policy = Policy(align=("a", "b", "c"), secure=True, align_times=9)
    everybody, generator = list(range(60)), random.Random(3)
    order = {
        name: generator.sample([*everybody, *more], 63)
        for name, more in (("a", (60, 61, 62)), ("b", (63, 64, 65)), ("c", (66, 67, 68)))
    }
    parties = columns(order, policy)
    federation = sv.Federation("columns", InProcess(parties), parties=parties)
    federation.declare_columns("held", 1, np.sqrt([0.25, 0.5, 0.25]).tolist())._secure(
        "products", "secure", "none", "auto"
    )
    with pytest.raises(RefusedError, match=r"a has identifiers, and they were not aligned.*Nothing was charged"):
        model().fit(federation)
    aligned(parties, "coordinator", federation.transport)
    assert {len(party.ids or ()) for party in parties} == {60}
    fitted = model(epsilon=1e6).fit(federation)
    assert fitted.plan_.aggregation.aligned == parties[0].aligned
    joined = np.hstack([party.rows for party in parties])
    assert fitted.score(joined, parties[1].labels) > 0.8  # rows that do not belong together: one half

    parties[2].use(np.array(parties[2].places), "00" * 32)  # another alignment of the same people
    with pytest.raises((InputError, RefusedError), match="different alignments"):
        model().fit(federation)
    plain = sv.Federation("columns", InProcess(parties), parties=parties).declare_columns("held", 1, None)
    with pytest.raises(InputError, match="different alignments"):
        sv.PrivateLogisticRegression(epsilon=1.0, row_norm=1.0, classes=(-1, 1)).fit(plain)


def test_aligned_and_not_aligned_do_not_go_together() -> None:
    check_aligned({"a": {"aligned": "11"}, "b": {"aligned": "11"}})
    check_aligned({"a": {}, "b": {}})
    with pytest.raises(InputError, match="a 11, b of none"):
        check_aligned({"a": {"aligned": "11"}, "b": {}})
