"""Nothing leaves a party that its reader could test guesses with: a function of data under keys that the reader has.

Every kind of message is played three times against one reader: twice with the same data, once with other data. All keys
and secrets that the reader has are the same in the three plays, and so is whatever is drawn at random, less a few
secrets that the reader lacks, which are named in `Play`. Words that come out alike in the first two plays are a
function of the data and of what the reader has: it can compute them for each guess. If they differ in the third, they
tell a right guess from a wrong one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.identifiers import fingerprint, hash_of_list
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation import alignment, answering, models, party, training
from sottovoce.federation.alignment import new_terms
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.gate import intersection, outgoing
from sottovoce.gate.intersection import COORDINATOR, AlignmentSession
from sottovoce.gate.outgoing import GATE, LEAVES, MASKED_NAMES, PUBLIC_NAMES, Declared, Disclosed, Masked, Released
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.secure import pair_keys, sums
from sottovoce.secure.pair_keys import PairKeys, RunKey
from sottovoce.secure.streams import seal_envelope
from sottovoce.secure.sums import ColumnMasker, Opener, packed_envelope, unpacked_envelope
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess

SENDER, OTHER = "a", "b"
READERS = (OTHER, COORDINATOR)
RECORDS = 24
COMMON = [f"p{place:02}" for place in range(RECORDS - 1)]

# Compared as a whole: texts, and whole numbers with noise, may agree in one place by chance. All else is uniform words.
WHOLE = {*PUBLIC_NAMES, Released.__name__}

# Messages that no play has, and why they can hold no function of data.
NOT_PLAYED = {
    "dealt": "of a dealer, which has no data",
    "total": "the sum of messages of three parties or more, each of which is played",
    "budget": "of plans",
    "solvers": "whether the rows are in memory",
    "roots": "how many records people have, for the other parties, as its holder allows, in envelopes as columns",
    "all_records": "how many records people have in all, as its holder allows",
}


@dataclass
class Play:
    """One run of an exchange, as one reader has it.

    `fresh` numbers what is drawn anew in it: the scalars of the sender, the noise that it draws, and the keys and
    random bytes that the sender shares with others than the reader.
    """

    reader: str
    fresh: int
    guess: int
    folder: Path
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    _actor: str = ""
    _enveloped: dict[bytes, bytes] = field(default_factory=dict)
    _count: Any = field(default_factory=itertools.count)

    def bytes_of(self, *what: Any, lacks: bool) -> bytes:
        """32 bytes of a secret: the same in every play, or of this one alone if the reader `lacks` it."""
        return hashlib.sha256(repr([*what, self.fresh if lacks else 0]).encode()).digest()

    def lacks(self, *owners: str) -> bool:
        """Whether the reader is none of those who have a secret."""
        return self.reader not in owners

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """With all that is random replaced, and all that leaves the sender written down."""
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of norms, classes and fits that were made before
            self._replace(patch)
            yield

    def _replace(self, patch: pytest.MonkeyPatch) -> None:
        handle, masker, session = Party.handle, ColumnMasker.__init__, AlignmentSession.__init__
        reply, enveloped = outgoing.reply, seal_envelope

        def handled(end: Party, request: bytes) -> Any:
            self._actor = end.name
            try:
                return handle(end, request)
            finally:
                self._actor = ""

        def drawn(count: int = 32) -> bytes:
            seed = self.bytes_of("drawn", self._actor, next(self._count), lacks=False)
            return np.random.default_rng(int.from_bytes(seed, "big")).bytes(count)

        def shared(pairs: PairKeys, other: str, *_: bytes) -> bytes:
            names = sorted((pairs._own, other))
            return self.bytes_of("shared", pairs._run[0], names, lacks=self.lacks(*names))

        def encapsulated(public: bytes) -> tuple[bytes, bytes]:
            ciphertext = hashlib.shake_256(public).digest(1088)
            return hashlib.sha256(ciphertext).digest(), ciphertext

        def new_scalar() -> bytes:
            made = self.bytes_of("scalar", self._actor, next(self._count), lacks=self.lacks(self._actor))
            return (int.from_bytes(made, "little") & (2**254 - 8) | 2**254).to_bytes(32, "little")

        def with_group(own: ColumnMasker, *said: Any) -> None:
            masker(own, *said)
            own.group = own.group and self.bytes_of("group", lacks=self.lacks(SENDER, OTHER))

        def aligned(own: AlignmentSession, *said: Any) -> None:
            session(own, *said)
            own._part = self.bytes_of("salt", own.own, lacks=self.lacks(SENDER, OTHER))

        def in_envelope(key: bytes, label: Any, sender: str, data: bytes) -> bytes:
            made = enveloped(key, label, sender, data)
            self._enveloped[made] = data
            return made

        def replied(kind: str, request: Any, content: Any) -> Any:
            if self._actor == SENDER:
                self._note(content)
            return reply(kind, request, content)

        def opened(opener: Any, shares: Any, *_: Any) -> Any:
            size = len(next(iter(shares.values()))) - (opener.plan.split == "columns")  # less the word that is 0
            return np.linspace(1.0, 2.0, size)  # what comes next is asked alike

        patch.setattr(Party, "handle", handled)
        patch.setattr(secrets, "token_bytes", drawn)
        patch.setattr(PairKeys, "_pair_key", shared)
        patch.setattr(pair_keys, "_encapsulated", encapsulated)  # its coins are not those of the package
        patch.setattr(RunKey, "decapsulated", lambda _, ciphertext: hashlib.sha256(ciphertext).digest())
        patch.setattr(intersection, "new_scalar", new_scalar)
        patch.setattr(ColumnMasker, "__init__", with_group)
        patch.setattr(AlignmentSession, "__init__", aligned)
        patch.setattr(Opener, "open", opened)
        for module in (intersection, sums):
            patch.setattr(module, "seal_envelope", in_envelope)
        for module in (alignment, answering, models, party, training):
            patch.setattr(module, "reply", replied)

    def _note(self, content: Any) -> None:
        if type(content) is tuple:
            self.sent += [(one.name, json.dumps(one.value).encode()) for one in content]
            return
        name = content.name if type(content) is Masked else type(content).__name__
        if type(content) is Disclosed and self.reader == OTHER:
            return  # it is sent to its recipient, who is the coordinator here
        for array in content.arrays.values():
            data = array.tobytes()
            if type(content) is Masked and self.reader == OTHER and name not in ("words", "offers"):
                data = self._enveloped[unpacked_envelope(array)]
            self.sent.append((name, data))

    def holders(self, **more: Any) -> list[Party]:
        """Two parties; the first has the guess: a person, rows and, where it has them, labels."""
        generator, found = np.random.default_rng(5), []
        allowed: dict[str, Any] = {"secure": True, "tell_classes": True, "tell_budget": False}
        allowed |= {"predict_for": (COORDINATOR,), "predict_training": True, "approve_models": True}
        for name in (SENDER, OTHER):
            rows = generator.uniform(-0.5, 0.5, (RECORDS, 2))
            labels = np.arange(RECORDS) % 2
            ids = [*COMMON, f"only {name}"]
            if name == SENDER and self.guess:
                rows, labels = 0.5 * rows[::-1], 1 - labels
                ids[-1] = "somebody else"
            others = (SENDER, OTHER)
            policy = sv.Policy(align=others, count_shared=others, align_times=9, **allowed)
            noise = SeededRandomness(self.fresh if self.lacks(name) else 0, name)
            if (ledger := self.folder / f"{name}.db").exists():
                ledger.unlink()
            given = {"account": sv.Ledger.create(ledger).open(name, epsilon=50.0, delta=1e-3)} | more.get(name, {})
            labelled = labels if more.get("label_party") in (None, name) else None
            given = {"ids": ids, **given} if "label_party" in more else given
            found.append(Party(name, rows, labelled, policy=policy, randomness=noise, **given))
        return found


# What is played.


def align(play: Play, matcher: str = COORDINATOR) -> None:
    """An alignment, and what is then said of it."""
    coordinator = Coordinator(InProcess(play.holders(label_party=OTHER)))
    coordinator.align(new_terms((SENDER, OTHER), matcher))
    coordinator.facts(classes=False)


def aligned(play: Play, holder: str = OTHER) -> InProcess:
    """Parties that were aligned, in an order that is the same in every play: the reader knows it."""
    parties = play.holders(label_party=holder)
    for one in parties:
        one.use(np.arange(len(COMMON)), "11" * 32)
    return InProcess(parties)


def count(play: Play) -> None:
    """How many people both have."""
    Coordinator(InProcess(play.holders(label_party=OTHER))).align(new_terms((SENDER, OTHER), purpose="count"))


def fit(wire: InProcess, solver: str, **split: Any) -> Any:
    """A small fit."""
    usual: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-6, "row_norm": 1.0}
    estimator = sv.PrivateLogisticRegression(solver=by_name(solver, rounds=3), **usual)
    return estimator.fit(sv.Federation.connect(wire, **split))


def columns(play: Play, solver: str = "newton", holder: str = OTHER) -> None:
    """Secure columns of aligned parties."""
    place = (SENDER, OTHER).index(holder)
    fit(aligned(play, holder), solver, split="columns", labels="held", label_party=place, products="secure")


def refuse(play: Play) -> None:
    """A plan over parties that were not aligned."""
    with pytest.raises((InputError, RefusedError)):
        fit(InProcess(play.holders(label_party=OTHER)), "newton", split="columns", labels="held", products="secure")


def rows(play: Play, sums: str) -> None:
    """By rows, secure or not."""
    fit(InProcess(play.holders()), "newton", split="rows", sums=sums)


def predict(play: Play) -> None:
    """Joint predictions, which the coordinator may learn the sums of."""
    federation = sv.Federation.connect(aligned(play), split="columns", labels="held", label_party=1, products="secure")
    usual: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-6, "row_norm": 1.0, "classes": (0, 1)}
    fitted = sv.PrivateLogisticRegression(solver=by_name("newton", rounds=3), **usual).fit(federation)
    fitted.predict(federation)


PLAYS: dict[str, Callable[[Play], Any]] = {
    "alignment": align,
    "alignment, the other matches": lambda play: align(play, OTHER),
    "alignment, the sender matches": lambda play: align(play, SENDER),
    "people counted": count,
    "columns": columns,
    "columns, the sender has the labels": lambda play: columns(play, holder=SENDER),
    "whitened columns": lambda play: columns(play, "whitened"),
    "refusal": refuse,
    "secure rows": lambda play: rows(play, "secure"),
    "rows": lambda play: rows(play, "plain"),
    "predictions": predict,
}


def guessable(what: str, reader: str, folder: Path) -> tuple[set[str], set[str]]:
    """(names of what the reader could test guesses with, names of all that left)."""
    plays = []
    for fresh, guess in ((1, 0), (2, 0), (3, 1)):
        play = Play(reader, fresh, guess, folder)
        with play.going_on():
            PLAYS[what](play)
        plays.append(play.sent)
    assert len({tuple(name for name, _ in sent) for sent in plays}) == 1, "the plays are not of the same messages"
    found = set()
    for (name, one), (_, again), (_, other) in zip(*plays, strict=True):
        if name in WHOLE:
            told = one == again != other
        else:
            told = bool(((words(one) == words(again)) & (words(one) != words(other))).any())
        if told:
            found.add(name)
    return found, {name for sent in plays for name, _ in sent}


def words(data: bytes) -> Any:
    """Of 8 bytes, the last filled up; as many in every play."""
    return np.frombuffer(data.ljust(-(-max(len(data), 256) // 8) * 8, b"\0"), dtype="<u8")


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", PLAYS)
def test_nothing_leaves_that_its_reader_can_test_guesses_with(what: str, reader: str, tmp_path: Path) -> None:
    assert guessable(what, reader, tmp_path)[0] == set()


@pytest.mark.slow
def test_every_kind_of_message_is_played(tmp_path: Path) -> None:
    """A name that is new has to be in a play, or in `NOT_PLAYED` with its reason."""
    seen = set().union(*(guessable(what, COORDINATOR, tmp_path)[1] for what in PLAYS))
    kinds = {*PUBLIC_NAMES, *MASKED_NAMES, *(kind.__name__ for kind in LEAVES)} - {Masked.__name__}
    assert kinds - seen == set(NOT_PLAYED)


# Planted faults: what the fence is for.


def planted(monkeypatch: pytest.MonkeyPatch, what: str, make: Callable[[AlignmentSession, bytes], bytes]) -> None:
    """Let parties send one another something of their lists, in the place of a message of an alignment."""
    whole, taken = AlignmentSession._to_each, AlignmentSession._from_each

    def to_each(self: AlignmentSession, sent: str, data: bytes) -> Any:
        if sent != what:
            return whole(self, sent, data)
        envelopes = {
            name: intersection.seal_envelope(key, [sent], self.own, make(self, key)) for name, key in self._keys.items()
        }
        return {str(self._names.index(name)): packed_envelope(made) for name, made in envelopes.items()}

    monkeypatch.setattr(AlignmentSession, "_to_each", to_each)
    monkeypatch.setattr(
        AlignmentSession,
        "_from_each",
        lambda self, sent, envelopes: {} if sent == what else taken(self, sent, envelopes),
    )


FAULTS: dict[str, Callable[[AlignmentSession, bytes], bytes]] = {
    "by the key of the pair": lambda self, key: hmac.digest(key, b"ids" + hash_of_list(self._ids).encode(), "sha256"),
    "by the salt": lambda self, _: hmac.digest(self._part, hash_of_list(self._ids).encode(), "sha256"),
    "by no key": lambda self, _: hashlib.sha256(hash_of_list(self._ids).encode()).digest(),
    "hashed to the curve": lambda self, _: intersection.hashed(b"known", ["list"], self._ids).tobytes(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_hash_of_a_list_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is the one whom it is for; who passes it on is not able to use it."""
    planted(monkeypatch, "agree", FAULTS[fault])
    assert guessable("alignment", OTHER, tmp_path)[0] == {"digest"}
    assert guessable("alignment", COORDINATOR, tmp_path)[0] == set()


def test_points_that_were_not_blinded_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known scalars are as good as none."""
    whole = AlignmentSession._ring

    def ring(self: AlignmentSession, *said: Any) -> Any:
        self._first = self._scalar = self._last = (2**254).to_bytes(32, "little")
        return whole(self, *said)

    monkeypatch.setattr(AlignmentSession, "_ring", ring)
    assert "list" in guessable("alignment", OTHER, tmp_path)[0]
    assert guessable("alignment", COORDINATOR, tmp_path)[0] == set()


def test_a_public_fact_that_is_made_of_identifiers_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(self: Party) -> tuple[Declared, ...]:
        listed = fingerprint(self.identifiers or (), "usual")
        return (Declared("aligned", listed, "random, it says", made_by=GATE),)

    monkeypatch.setattr(Party, "alignment_fact", facts)
    for reader in READERS:
        assert guessable("refusal", reader, tmp_path)[0] == {"aligned"}


@pytest.mark.slow
def test_columns_without_a_pad_and_sums_without_noise_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sums, "stream_fields", lambda _, __, like: tuple(map(np.zeros_like, like)))
        assert {"columns", "message"} <= guessable("columns", OTHER, tmp_path)[0]
    monkeypatch.setattr(sums, "wide_gaussian", lambda _, size, __: np.zeros(size, dtype=np.int64))
    assert "Share" in guessable("secure rows", OTHER, tmp_path)[0]
    assert guessable("secure rows", COORDINATOR, tmp_path)[0] == set()  # it lacks the masks
