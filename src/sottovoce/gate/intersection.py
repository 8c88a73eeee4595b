"""A private set intersection of the identifiers of several parties: a party's side, and all that leaves of it.

    party m       r_m, k_m: fresh secret scalars; its identifiers in a fresh secret order
    its list      r_m H(id) -> each other party j in turn: times k_j -> back to m: times k_m / r_m
    so m has      K H(id), K = k_1 ... k_M, of its own identifiers, and nobody else has
    its words     the first 16 bytes of SHA-256(K H(id)), sorted, for whoever matches: the coordinator or a party
    matched       the words that all lists have, sorted: the common order
    the digest    the same once more, with a hash of the identifiers in the common order in the place of a list

What passes between parties is in envelopes that the coordinator cannot read. H is keyed by a salt that every party has
a part in. Lists go in pieces; what has to be sorted is so in files without a name, so that memory does not grow with a
list. Proof: `secure/proofs/alignment.md`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.identifiers import Identifiers, hash_of_list
from sottovoce.data.row_file import WORD, WORD_KIND, RingArray, SortedFile, cut_pieces
from sottovoce.errors import RefusedError
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import GATE, Masked
from sottovoce.secure.curve import hashed, new_scalar, points_of, quotient
from sottovoce.secure.pair_keys import OFFERS, PUBLIC, PairKeys, PeerKey, RunKey, packed_rows
from sottovoce.secure.streams import hash_of, open_envelope, seal_envelope
from sottovoce.secure.sums import packed_envelope, unpacked_envelope
from sottovoce.secure.workers import POINT, Workers

Envelopes = Mapping[str, NDArray[Any]]

PIECE: Final = 2**15  # points of a message
WORDS: Final = 2**17  # words of a message
COORDINATOR: Final = "coordinator"  # who matches, if no party does
ORDER, COUNT = "order", "count"  # what an alignment is for
MOST_MEMBERS: Final = 64
_OTHER: Final = -1  # the place of a word that came from somebody else


@dataclass(frozen=True)
class AlignmentTerms:
    """What an alignment is: a name of its own, the parties in their order, who matches, and what for."""

    run: str
    members: tuple[str, ...]
    matcher: str = COORDINATOR
    purpose: str = ORDER

    @property
    def text(self) -> str:
        """As a message carries it, and as parties sign it."""
        return json.dumps([self.run, list(self.members), self.matcher, self.purpose])

    @classmethod
    def read(cls, text: str) -> AlignmentTerms:
        """The terms of a message, or a refusal."""
        try:
            run, members, matcher, purpose = json.loads(text)
            terms = cls(run, tuple(members), matcher, purpose)
        except (ValueError, TypeError, RecursionError):
            raise RefusedError("an alignment is asked for with its run, members, matcher and purpose.") from None
        texts = all(type(one) is str for one in (run, *terms.members, matcher, purpose))
        if not texts or len(set(terms.members)) < len(terms.members) or COORDINATOR in terms.members:
            raise RefusedError("the members of an alignment are parties, each once; none is called coordinator.")
        if not 2 <= len(terms.members) <= MOST_MEMBERS:
            raise RefusedError(f"an alignment has 2 to {MOST_MEMBERS} members; these are {len(terms.members)}.")
        if purpose not in (ORDER, COUNT) or matcher not in (COORDINATOR, *terms.members):
            raise RefusedError(f"an alignment is for {ORDER} or {COUNT}, matched by the coordinator or a member.")
        if purpose == COUNT and (len(terms.members) != 2 or matcher != COORDINATOR):
            raise RefusedError("people are counted for two parties, by the coordinator.")
        return terms


@dataclass(frozen=True)
class Member:
    """What a party says of itself, signed, before an alignment: its key, how many identifiers it has, their rule."""

    public: str
    records: int
    rule: str

    def message(self, terms: AlignmentTerms) -> bytes:
        return json.dumps([terms.text, self.public, self.records, self.rule]).encode()


def name_alignment(terms: AlignmentTerms, members: Mapping[str, Member]) -> bytes:
    """The name of an alignment on the wire: of its terms and of what all members signed."""
    return hashlib.sha256(b"".join([members[name].message(terms) + b"\n" for name in terms.members])).digest()


def count_pieces(records: int, size: int) -> int:
    """In how many messages so many points or words go."""
    return -(-records // size)


@dataclass
class AlignmentProgress:
    """Points multiplied so far, and in all."""

    total: int
    done: int = 0
    say: Callable[[int, int], None] | None = None

    def add(self, points: int) -> None:
        self.done += points
        if self.say is not None:
            self.say(self.done, self.total)


class AlignmentSession:
    """A party's side of one alignment: every message in its turn, each answered once; a repeat gets the same bytes.

    Guarantee: what leaves is blinded by fresh scalars of this party, in envelopes for single parties or, as words, for
    who matches. No message but the next of the protocol is answered, and after a refusal none: so a party multiplies as
    many points of another as that one said it has identifiers. `leaving` is called before the first words leave, and
    may refuse; `places` has the common order once all parties have agreed on it.
    """

    def __init__(  # noqa: PLR0913
        self,
        terms: AlignmentTerms,
        members: Mapping[str, Member],
        own: str,
        key: RunKey,
        peers: Mapping[str, PeerKey],
        ids: Identifiers,
        folder: Path,
        leaving: Callable[[], None],
    ) -> None:
        self.terms, self.members, self.own = terms, members, own
        self.digest = name_alignment(terms, members)
        self.places: NDArray[np.int64] | None = None  # of the common people, in their order
        self.agreed = b""  # the digest that all have, once all have it
        self.counted: int | None = None  # where people are counted: how many
        self.over = False
        self._names = terms.members
        self._place = self._names.index(own)
        pairs = PairKeys(key, self._names, peers, ["alignment", self.digest.hex()])
        self._keys: Mapping[str, bytes] = {}  # of pairs, once they are agreed on
        self._ids, self._leaving = ids, leaving
        self._order, self._words = _shuffled(len(ids), folder), SortedFile(folder)
        self._first, self._scalar = new_scalar(), new_scalar()  # r and k
        self._last = quotient(self._scalar, self._first)
        self._part = secrets.token_bytes(32)
        self._salt = b""
        self._workers = Workers()
        sizes = [members[name].records for name in self._names]
        self.progress = AlignmentProgress(sum(sizes) + sizes[self._place])
        self._repeat: tuple[Any, Masked | None] | None = None
        self._text = self._play(pairs)
        next(self._text)

    def answer(self, frame: Frame) -> Masked | None:
        """What the next message of the protocol is answered with; None: it is acknowledged."""
        asked = (frame.query, frame.round, frame.text, hash_of(frame.arrays))
        if self._repeat is not None and self._repeat[0] == asked:
            return self._repeat[1]
        if self.over:
            raise RefusedError("this alignment is over, or was refused; start it again.")
        self._repeat = None
        try:
            found = self._text.send(frame)
        except BaseException:
            self.close()
            raise
        self._repeat = asked, found
        if self.over:
            self.close()
        return found

    def close(self) -> None:
        """Forget all keys; nothing more is answered but a repeat of the last message."""
        self.over = True
        self._text.close()
        self._workers.close()
        self._order.close()
        self._words.close()
        self._keys, self._first, self._scalar, self._last, self._salt = {}, b"", b"", b"", b""

    def _play(self, pairs: PairKeys) -> Generator[Masked | None, Frame, None]:
        frame = yield None
        self._turn(frame, "open")
        publics = packed_rows([bytes.fromhex(self.members[name].public) for name in self._names], PUBLIC)
        frame = yield Masked("offers", {OFFERS: pairs.offers(publics)}, made_by=GATE)
        self._turn(frame, "pair")
        pairs.agree(publics, frame.arrays.get(OFFERS))
        self._keys = dict(pairs)
        frame = yield Masked("salt", self._to_each("salt", self._part), made_by=GATE)
        self._turn(frame, "salt")
        self._take_salt(frame.arrays)
        frame = yield None
        order = cut_pieces((part["place"] for part in self._order), PIECE)
        for piece in range(max(count_pieces(member.records, PIECE) for member in self.members.values())):
            places = next(order, np.empty(0, dtype=np.int64))
            frame, points = yield from self._ring(frame, "list", piece, list(self._ids.at(places)))
            if len(places):
                self._words.add(hash_points(points), places)
        self._order.close()
        if not all(map(CheckedHashes().take, self._words.words())):
            raise RefusedError(f"the list of {self.own} came back with a point twice: somebody changed it.")
        if self.terms.matcher == self.own:
            frame, places = yield from self._match(frame)
        else:
            frame = yield from self._tell(frame)
            if self.terms.purpose == COUNT:
                self._turn(frame, "counted")
                if not (frame.text.isascii() and frame.text.isdigit() and len(frame.text) < 20):
                    raise RefusedError("the number of people that two parties share is no number.")
                self.counted, self.over = int(frame.text), True
                yield None
                return
            frame, places = yield from self._told(frame)
        self._words.close()
        frame, point = yield from self._ring(frame, "digest", 0, [hash_of_list(self._ids.at(places))])
        agreed = hashlib.sha256(b"digest" + point).digest()
        self._turn(frame, "agree")
        frame = yield Masked("digest", self._to_each("agree", agreed), made_by=GATE)
        self._turn(frame, "agreed")
        for name, data in self._from_each("agree", frame.arrays).items():
            if data != agreed:
                raise RefusedError(
                    f"{self.own} and {name} do not have the same common people in the same order: somebody passed on "
                    "something else than it got. Nothing was kept; start the alignment again."
                )
        self.places, self.agreed, self.over = places, agreed, True
        yield None

    def _ring(
        self, frame: Frame, query: str, piece: int, texts: Sequence[str]
    ) -> Generator[Masked | None, Frame, tuple[Frame, bytes]]:
        """A piece of every list on its way through all parties, the own first and last; then K H of the own texts."""
        parties, found = len(self._names), b""
        for step in range(parties + 1):
            owner = (self._place - step) % parties
            records = 1 if query == "digest" else self.members[self._names[owner]].records
            if piece >= count_pieces(records, PIECE):
                continue
            self._turn(frame, query, piece, step)
            count = min(PIECE, records - PIECE * piece)
            if step == 0:
                points = hashed(self._salt, [query], texts).tobytes()
                made = self._workers.blinded(self._first, points)
            else:
                sender = self._names[(self._place - 1) % parties]
                data = self._open_envelope(sender, [query, owner, step - 1, piece], frame.arrays.get("envelope"))
                points = points_of(data, count).tobytes()
                made = self._workers.blinded(self._last if step == parties else self._scalar, points)
            self.progress.add(count if query == "list" else 0)
            if step == parties:
                found = made
                frame = yield None
            else:
                after = (self._place + 1) % parties
                label = [query, owner, step, piece]
                enveloped = packed_envelope(seal_envelope(self._keys[self._names[after]], label, self.own, made))
                frame = yield Masked("list", {str(after): enveloped}, made_by=GATE)
        return frame, found

    def _tell(self, frame: Frame) -> Generator[Masked | None, Frame, Frame]:
        """The own words, sorted, to who matches."""
        matcher = self.terms.matcher
        for piece, words in enumerate(cut_pieces(self._words.words(), WORDS)):
            self._turn(frame, "words", piece)
            if piece == 0:
                self._leaving()
            data = words.tobytes()
            if matcher == COORDINATOR:
                sent = {"words": packed_hashes(data)}
            else:
                enveloped = packed_envelope(seal_envelope(self._keys[matcher], ["words", piece], self.own, data))
                sent = {str(self._names.index(matcher)): enveloped}
            frame = yield Masked("words", sent, made_by=GATE)
        return frame

    def _told(self, frame: Frame) -> Generator[Masked | None, Frame, tuple[Frame, NDArray[np.int64]]]:
        """The places of the common words, which come from who matches: until a message is not full."""
        own, told, piece, full = len(self._words), CheckedHashes(), 0, True
        while full:
            self._turn(frame, "common", piece)
            if self.terms.matcher == COORDINATOR:
                data = unpacked_hashes(frame.arrays)
            else:
                data = self._open_envelope(
                    self.terms.matcher, ["common", self._place, piece], frame.arrays.get("envelope")
                )
            words = np.frombuffer(data, dtype=WORD_KIND) if len(data) % WORD == 0 else None
            if words is None or len(words) > min(WORDS, own - told.count) or not told.take(words):
                raise _not_common()
            self._words.add(words, _OTHER)
            full = len(words) == WORDS
            if not full:
                places = _find_common(self._words.shared(2), told.count)
            frame, piece = (yield None), piece + 1
        return frame, places

    def _match(self, frame: Frame) -> Generator[Masked | None, Frame, tuple[Frame, NDArray[np.int64]]]:
        """As the matcher: the words of all others, then those that all have, to each."""
        others = [name for name in self._names if name != self.own]
        lists = {name: CheckedHashes(name, self.members[name].records) for name in others}
        for piece in range(max(count_pieces(self.members[name].records, WORDS) for name in others)):
            self._turn(frame, "take", piece)
            if piece == 0:
                self._leaving()
            for name in others:
                if piece < count_pieces(self.members[name].records, WORDS):
                    enveloped = frame.arrays.get(str(self._names.index(name)))
                    self._words.add(lists[name].checked(self._open_envelope(name, ["words", piece], enveloped)), _OTHER)
            frame = yield None
        everybody = len(self._names)
        places = _find_common(self._words.shared(everybody))
        common = cut_pieces(self._words.words(everybody), WORDS)
        for piece in range(len(places) // WORDS + 1):
            self._turn(frame, "match", piece)
            data = next(common, np.empty(0, dtype=WORD_KIND)).tobytes()
            envelopes = {}
            for name in others:
                place = self._names.index(name)
                envelopes[str(place)] = packed_envelope(
                    seal_envelope(self._keys[name], ["common", place, piece], self.own, data)
                )
            frame = yield Masked("words", envelopes, made_by=GATE)
        return frame, places

    def _turn(self, frame: Frame, query: str, number: int = 0, step: int | None = None) -> None:
        """Refuse a message that is not the next one."""
        text = "" if step is None else str(step)
        if (frame.query, frame.round) != (query, number) or (query != "counted" and frame.text != text):
            raise RefusedError(
                f"an alignment goes message by message, and {frame.query!r} ({frame.round}) is not the next one; "
                "start it again."
            )

    def _take_salt(self, sent: Envelopes) -> None:
        parts = {**self._from_each("salt", sent), self.own: self._part}
        self._salt = hashlib.sha256(b"salt" + b"".join(parts[name] for name in self._names)).digest()

    def _to_each(self, what: str, data: bytes) -> dict[str, NDArray[np.int64]]:
        """An envelope with the same data for each other party, by its place."""
        return {
            str(self._names.index(name)): packed_envelope(seal_envelope(key, [what], self.own, data))
            for name, key in self._keys.items()
        }

    def _from_each(self, what: str, sent: Envelopes) -> dict[str, bytes]:
        return {name: self._open_envelope(name, [what], sent.get(str(self._names.index(name)))) for name in self._keys}

    def _open_envelope(self, sender: str, label: list[Any], enveloped: NDArray[Any] | None) -> bytes:
        if enveloped is None:
            raise RefusedError(f"what {sender} sent is missing in a message of an alignment; start it again.")
        return open_envelope(self._keys[sender], label, sender, unpacked_envelope(enveloped))


def hash_points(points: bytes) -> RingArray:
    """The word of each point."""
    sha256 = hashlib.sha256
    each = [sha256(b"word" + points[start : start + POINT]).digest()[:WORD] for start in range(0, len(points), POINT)]
    return np.frombuffer(b"".join(each), dtype=WORD_KIND)


def packed_hashes(data: bytes) -> NDArray[np.int64]:
    """Words as a frame carries them, two numbers each."""
    return np.frombuffer(data, dtype="<i8").reshape(-1, 2).copy()


def unpacked_hashes(sent: Envelopes) -> bytes:
    """The words of a message, or a refusal."""
    found = sent.get("words")
    if found is None or found.dtype != np.int64 or found.ndim != 2 or found.shape[1] != 2 or len(found) > WORDS:
        raise RefusedError("a message of an alignment has no words; start it again.")
    return np.ascontiguousarray(found).tobytes()


class CheckedHashes:
    """A list of words that comes in pieces: as many as its party said, each larger than the one before."""

    def __init__(self, party: str = "", records: int = 0) -> None:
        self._party, self._records = party, records
        self.count = 0
        self._last: RingArray = np.empty(0, dtype=WORD_KIND)

    def take(self, words: RingArray) -> bool:
        """Count a piece; False if a word of it is not larger than the one before."""
        all_hashes = np.concatenate([self._last, words])
        self.count, self._last = self.count + len(words), all_hashes[-1:]
        return bool(np.all(all_hashes[1:] > all_hashes[:-1]))

    def checked(self, data: bytes) -> RingArray:
        due = min(WORDS, self._records - self.count)
        if len(data) != WORD * due:
            raise RefusedError(f"{self._party} sent {len(data) / WORD:g} words of an alignment in place of {due}.")
        words: RingArray = np.frombuffer(data, dtype=WORD_KIND)
        if not self.take(words):
            raise RefusedError(f"{self._party} sent words of an alignment that are not sorted, or one twice.")
        return words


def _not_common() -> RefusedError:
    return RefusedError(
        "what was said to be common is not: somebody passed on something else than it got. Nothing was kept; start the "
        "alignment again."
    )


def _find_common(found: Iterable[NDArray[Any]], told: int | None = None) -> NDArray[np.int64]:
    """The own places of common words, or a refusal where there are none, or where more words were told."""
    places = np.concatenate([np.empty(0, dtype=np.int64), *(part["place"] for part in found)])
    if (len(places) if told is None else told) == 0:
        raise RefusedError("the parties have nobody in common: look at the identifiers and at their rule.")
    if told not in (None, len(places)):
        raise _not_common()
    return places


def _shuffled(count: int, folder: Path) -> SortedFile:
    """The places of so many, in a secret random order: that of random words."""
    found = SortedFile(folder)
    for start in range(0, count, WORDS):
        places = np.arange(start, min(start + WORDS, count))
        found.add(np.frombuffer(secrets.token_bytes(WORD * len(places)), dtype=WORD_KIND), places)
    return found
