"""Joint prediction over columns: each party scores its own columns, and only one recipient learns the sums.

A party answers with its partial scores hidden by masks. Every two parties agree on a key for one request, by an offer
of one to the other (`secure/pair_keys.py`); both derive one mask from it, which one adds and the other subtracts modulo
2^128.

    answer_m = s_m + sum_{k > m} mask_mk - sum_{k < m} mask_km,        sum_m answer_m = sum_m s_m

Guarantee, where coordinator and parties are semi-honest (they follow the protocol): one answer, and any sum of
answers that lacks a party's, looks uniform to whoever lacks that party's secrets. A coordinator that is the recipient
adds all answers and learns the sums. One that serves a recipient among the parties adds the answers of the others and
passes them on: they lack the masks of the recipient, which alone can read them. All parties but one, together with the
recipient, learn the partial scores of the one.

Guarantee, whatever the coordinator does: a party answers only a request in which every other party of the plan has
signed its own key, by the certificate that it has pinned for it, so that nobody else takes off a mask; a recipient that
is named is the one whose certificate signed. No request carries weights: a party scores with the model that it kept at
the end of a run in which it answered everything the plan has it answer, once for each plan, and only after its holder
approved those coefficients (`models.py`). Rows that may be trained on are predicted for only where the policy says so
by name. Edges: a coordinator that is the recipient, together with all parties but one, has the scores of the one.
Scores are exact: whoever knows the coefficients may read columns of few values from them, and no epsilon covers that.
They are rounded to 2^-44 and clipped at 2^62. Where a party cannot use a record the recipient learns that, and of how
many parties; a random number in the place of the score hides the scores of the others, but for a share of |sum| 2^-71.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation.replies import MASKED, Exchange, count_rows, crossed_offers
from sottovoce.federation.run_keys import known_keys
from sottovoce.gate.frames import Frame
from sottovoce.plan.plan import Plan
from sottovoce.secure.pair_keys import PUBLIC, PairKeys, RunKey, fingerprint_of
from sottovoce.secure.streams import RingArray, stream
from sottovoce.transports.identity import PREDICTION_KEY, Identity

Array = NDArray[np.float64]

COORDINATOR: Final = "coordinator"  # the recipient that is no party: whoever asks
_GRID: Final = 44  # scores are multiples of 2^-44
_CUT: Final = 2.0**62
_UNUSABLE: Final = 52  # a party that cannot use a record adds 2^(64 + 52), out of reach of any sum of scores
_MOST_PARTIES: Final = 2**8


@dataclass(frozen=True)
class Predictions:
    """What a recipient among the parties learned: a score for each person, NaN where a party has no usable record."""

    digest: bytes
    scores: Array
    plan: Plan

    def table(self, *, proba: bool) -> dict[str, list[Any]]:
        """Columns for people: the prediction and, if wanted, the probability of each class. None: there is no score."""
        columns: dict[str, list[Any]] = {"prediction": self.scores.tolist()}
        if self.plan.classes is not None:
            columns = {"prediction": [self.plan.classes[score > 0] for score in self.scores.tolist()]}
            for name, sign in zip(self.plan.classes, (-1, 1), strict=True) if proba else ():
                columns[f"probability of {name}"] = expit(sign * self.scores).tolist()
        gone = np.isnan(self.scores).tolist()
        return {
            name: [None if no else value for value, no in zip(values, gone, strict=True)]
            for name, values in columns.items()
        }


@dataclass(frozen=True)
class Request:
    """One prediction: of which model, for whom, and the public keys of all parties. `number` makes it unique."""

    digest: bytes
    recipient: str
    number: str
    keys: Mapping[str, str]
    signatures: Mapping[str, str]

    @classmethod
    def new(cls, digest: bytes, recipient: str, keys: Mapping[str, str], signatures: Mapping[str, str]) -> Request:
        """A request with a number of its own."""
        return cls(digest, recipient, secrets.token_hex(16), dict(keys), dict(signatures))

    @property
    def text(self) -> str:
        """What a frame of it says besides model and recipient."""
        said = {"number": self.number, "keys": dict(self.keys), "signatures": dict(self.signatures)}
        return json.dumps(said, sort_keys=True)

    @classmethod
    def read(cls, frame: Frame, plan: Plan) -> Request:
        """The request of a frame, or a refusal of one that is none for this plan."""
        try:
            said = json.loads(frame.text)
            number, keys, signatures = said["number"], said["keys"], dict(said["signatures"])
            lengths = {len(bytes.fromhex(key)) for key in keys.values()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RefusedError("the text is no request for a prediction of this version.") from None
        names = {name for name, _ in plan.parties}
        if set(keys) != names or lengths != {PUBLIC} or len(set(keys.values())) < len(names) or type(number) is not str:
            raise RefusedError("a request for a prediction has the public key of each party of the plan, and no other.")
        if len(names) > _MOST_PARTIES:
            raise RefusedError(f"a joint prediction serves at most {_MOST_PARTIES} parties.")
        if frame.query != COORDINATOR and frame.query not in names:
            raise RefusedError("the recipient of a prediction is the coordinator or a party of the plan.")
        return cls(frame.plan, frame.query, number, keys, signatures)

    def pair_keys(self, party: str, key: RunKey, identity: Identity | None) -> PairKeys:
        """What a party will share with each other one; refused for keys that these have not signed, or are not pinned.

        Masks would be open to whoever has the key.
        """
        if self.keys[party] != key.public:
            raise RefusedError("the request has another public key for this party than its own; ask for it again.")
        peers = known_keys(party, {name: fingerprint_of(public) for name, public in self.keys.items()}, identity)
        self.check_signatures(party, identity)
        said = hashlib.sha256(self.text.encode()).hexdigest()
        return PairKeys(key, sorted(self.keys), peers, ["prediction", self.digest.hex(), self.recipient, said])

    def check_signatures(self, party: str, identity: Identity | None) -> None:
        """Refuse keys that the other parties have not signed themselves."""
        for other, public in self.keys.items():
            if other == party:
                continue
            signature = self.signatures.get(other)
            if identity is None or type(signature) is not str:
                raise RefusedError(
                    f"{party} cannot check the public key of {other}: a signature of {other} is missing."
                )
            identity.verify(other, PREDICTION_KEY, bytes.fromhex(public), signature)

    def masks(self, party: str, pairs: Mapping[str, bytes], people: int, aligned: str = "") -> RingArray:
        """What a party adds to its scores: the sum of its masks with all others, each with its sign.

        Masks of parties with records of different alignments do not cancel: nobody reads a sum over two people.
        """
        total = np.zeros((people, 2), dtype=np.uint64)
        for other, pair in pairs.items():
            mask = self._mask(pair, people, aligned)
            total = add_words(total, mask if party < other else negate_words(mask))
        return total

    def blur(self, key: bytes, people: int) -> RingArray:
        """What a party says in the place of scores that it has not: random numbers below 2^(64 + 51) by its own key.

        A request that is repeated has the same ones: new ones would show whose record cannot be used.
        """
        blur = np.array(self._mask(key, people))
        blur[:, 1] >>= np.uint64(64 - _UNUSABLE + 1)
        return blur

    def _mask(self, key: bytes, people: int, aligned: str = "") -> RingArray:
        """A mask is of one request, on one order of people: all that was said of it goes into the label."""
        label = ["mask", self.digest.hex(), self.recipient, self.text, *([aligned] if aligned else [])]
        return stream(key, label, 2 * people).reshape(people, 2)


def read_masked(frame: Frame, people: int) -> RingArray:
    """The whole numbers of a frame, one for each person."""
    found = frame.arrays.get(MASKED)
    if found is None or found.dtype != np.int64 or found.shape != (people, 2):
        raise WireError(f"a message of a prediction has no scores of {people} people.")
    return found.view(np.uint64)


def encode_scores(scores: Array, blur: RingArray | None = None) -> RingArray:
    """Scores as whole numbers modulo 2^128; NaN is a mark above all scores, and `blur` of that person below it."""
    unusable = np.isnan(scores)
    units = np.rint(np.where(unusable, 0.0, np.clip(scores, -_CUT, _CUT)) * 2.0**_GRID)
    size = np.abs(units)
    high = np.floor(size * 2.0**-64)
    words = np.column_stack([size - high * 2.0**64, high]).astype(np.uint64)
    words = np.where((units < 0)[:, None], negate_words(words), words)
    if blur is not None:
        words = np.where(unusable[:, None], blur, words)
    words[:, 1] += unusable.astype(np.uint64) << np.uint64(_UNUSABLE)
    return words


def read_scores(total: RingArray) -> Array:
    """The scores of a sum of all parties' words; NaN where some party could not use a record."""
    if np.any(_marks(total) > 2 * _MOST_PARTIES):  # a mark and its blur are below 3/2 of a mark
        raise WireError("the answers of the parties do not belong together: their masks do not cancel. Ask again.")
    return decode_scores(total)


def decode_scores(total: RingArray) -> Array:
    """The same of each person on its own; NaN also where a sum is none."""
    negative = total[:, 1] >> np.uint64(63) == 1
    size = np.where(negative[:, None], negate_words(total), total)
    scores = (size[:, 1] * 2.0**64 + size[:, 0]) * 2.0**-_GRID
    return np.where(_marks(total) > 0, np.nan, np.where(negative, -scores, scores))


def _marks(total: RingArray) -> NDArray[np.uint64]:
    """How many parties could not use a record; more than there are where a sum is none."""
    return np.asarray((total[:, 1] + np.uint64(1 << (_UNUSABLE - 1))) >> np.uint64(_UNUSABLE))


def add_words(one: RingArray, other: RingArray) -> RingArray:
    """The sum modulo 2^128."""
    low = one[:, 0] + other[:, 0]
    return np.column_stack([low, one[:, 1] + other[:, 1] + (low < one[:, 0])])


def negate_words(words: RingArray) -> RingArray:
    """The negative modulo 2^128."""
    low = ~words[:, 0] + np.uint64(1)
    return np.column_stack([low, ~words[:, 1] + (low == 0)])


def predict_jointly(
    exchange: Exchange, connected: Collection[str], plan: Plan, digest: bytes, recipient: str
) -> Array | None:
    """Joint scores by the model that the parties have of a plan; None if the recipient is one of them.

    No weights are sent. A recipient among the parties gets the sum of the others' answers, unreadable here.
    """
    parties = plan.names
    if recipient not in (COORDINATOR, *parties):
        raise InputError(f"recipient={recipient!r} must be {COORDINATOR!r} or one of {', '.join(parties)}.")
    if set(parties) != set(connected):
        raise InputError(
            f"the model is of the parties {', '.join(parties)} and the federation of "
            f"{', '.join(connected)}; a joint prediction needs the same parties, by their names."
        )
    replies = exchange(parties, Frame("hello", 0, query="predict"), {})
    counts = {name: count_rows(reply.facts)["records"] for name, reply in replies.items()}
    check_people(counts)
    check_aligned({name: reply.facts for name, reply in replies.items()})
    told = [{name: reply.facts[what] for name, reply in replies.items()} for what in ("public_key", "signature")]
    request = Request.new(digest, recipient, *told)
    said = Frame("predict", 0, digest, query=recipient, text=request.text)
    offers = {name: reply.frame.arrays for name, reply in exchange(parties, said, {}).items()}
    pairs = crossed_offers(sorted(parties), offers)
    others = [name for name in parties if name != recipient]
    people = counts[parties[0]]
    total = np.zeros((people, 2), dtype=np.uint64)
    for name, reply in exchange(others, said, pairs).items():
        try:
            total = add_words(total, read_masked(reply.frame, people))
        except WireError as error:
            raise WireError(f"party {name!r}: {error}") from None
    if recipient == COORDINATOR:
        return read_scores(total)
    exchange([recipient], dataclasses.replace(said, arrays={MASKED: total.view(np.int64)}), pairs)
    return None


def check_people(counts: Mapping[str, int]) -> None:
    """By columns all parties have the same people; nobody can tell more than their number."""
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(
            f"the parties have {sorted(set(counts.values()))} rows ({each}); by columns every party has the same "
            "people in the same order. Align the records first (`sottovoce align` does that without showing the rest)."
        )


def check_aligned(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """By columns all parties serve the records of one alignment, or none does."""
    if len(set(map(methodcaller("get", "aligned"), facts.values()))) > 1:
        each = ", ".join(f"{name} {(fact.get('aligned') or 'of none')[:12]}" for name, fact in facts.items())
        raise InputError(
            f"the parties serve records of different alignments ({each}): one was aligned anew, or its file of the "
            "alignment was deleted. Align all of them again (`sottovoce align`)."
        )
