"""Joint prediction over columns: each party scores its own columns, and only one recipient learns the sums.

A party answers with its partial scores hidden by masks. Every two parties agree on a key for one request, by an offer
of one to the other (`secure/pair_keys.py`); both derive one mask from it, which one adds and the other subtracts,
modulo
2^128.

    answer_m = s_m + sum_{k > m} pad_mk - sum_{k < m} pad_km,        sum_m answer_m = sum_m s_m

Guarantee, where coordinator and parties follow the protocol, though they may be curious: one answer, and any sum of
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
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.answering import answer_or_accept
from sottovoce.federation.holder import Holder
from sottovoce.federation.models import Models, PartialModel
from sottovoce.federation.policy import Policy
from sottovoce.federation.run_keys import known_keys
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Disclosed, Masked, Outgoing, check_recipient, disclose
from sottovoce.gate.secure_gate import offered
from sottovoce.plan.plan import Plan
from sottovoce.secure.pair_keys import OFFERS, PUBLIC, PairKeys, RunKey, fingerprint_of, packed_rows
from sottovoce.secure.streams import RingArray, stream
from sottovoce.transports.identity import PREDICTION_KEY, Identity

Array = NDArray[np.float64]

COORDINATOR: Final = "coordinator"  # the recipient that is no party: whoever asks
MASKED: Final = "masked"
_GRID: Final = 44  # scores are multiples of 2^-44
_CUT: Final = 2.0**62
_UNUSABLE: Final = 52  # a party that cannot use a record adds 2^(64 + 52), out of reach of any sum of scores
_MOST_PARTIES: Final = 2**8

_log = logging.getLogger("sottovoce.holder")


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


class Predictor:
    """Answers "predict": a party's side of joint predictions, its partial models, and what it received."""

    def __init__(self, holder: Holder, models: Models) -> None:
        self.models = models
        self.received: Predictions | None = None
        self._scored: tuple[Plan, bytes, Array] | None = None
        self._holder, self._party = holder, holder.name
        self._given: dict[bytes, PartialModel] = {}
        self.renew("")

    def renew(self, aligned: str) -> None:
        """Serve other rows, or another order, from now on: those of the alignment with that digest.

        A request of before is not answered again, since its masks would be on two rows; scores of before are forgotten.
        """
        self.received = self._scored = None
        self._aligned, self._key, self._blur = aligned, RunKey(), secrets.token_bytes(32)

    @property
    def public_key(self) -> str:
        """What the other parties need for the masks; a new one for every party object."""
        return self._key.public

    @property
    def signature(self) -> str:
        """The public key signed in the party's name; "" if it was not told who it is."""
        identity = self._holder.identity
        return "" if identity is None else identity.sign(PREDICTION_KEY, bytes.fromhex(self.public_key))

    def learn(self, digest: bytes, model: PartialModel) -> None:
        """Predict with this model of the plan: said by the holder in its own process, never over a wire.

        With other coefficients the key is another one too: a request of before would put one mask on two scores.
        """
        before = self._given.get(digest)
        if before is None or before.intercept != model.intercept or not np.array_equal(before.coef, model.coef):
            self._key = RunKey()
        self._given[digest] = model

    def keep(self, digest: bytes, model: PartialModel) -> None:
        """Keep what a run left behind. With a model that is new here the key is new too, as in `learn`.

        Copies of a party that are told two models have no key in common.
        """
        if self.models.get(digest) is None:
            self._key = RunKey()
        self.models.keep(digest, dataclasses.replace(model, feature_names=self._holder.feature_names))

    def answer(self, frame: Frame) -> Outgoing:
        return answer_or_accept(frame, self._content(frame))

    def _content(self, frame: Frame) -> Disclosed | Masked | None:
        """Scores under masks for whoever collects them; None if this party is the recipient and has added them up.

        A request comes twice: without offers of keys, which is answered with this party's own, and with those for it.

        Whether masks cancel depends on the scores. So a recipient answers alike where they do not, and logs it: from
        refusals a coordinator could find the sums that it passed on.
        """
        rows, policy = self._holder.rows, self._holder.policy
        check_recipient(frame.query, policy.predict_for)
        if policy.trains and not policy.predict_training:
            raise RefusedError(
                f"{self._party} has rows that may be trained on, and predicts for no people of a training; its holder "
                "can allow that with Policy(predict_training=True), or serve other people with Policy(trains=False)."
            )
        model = self._model(frame.plan, policy)
        features, names = model.plan.part(self._party).preparation.features, model.feature_names
        own_names = self._holder.feature_names
        if rows.shape[1] != features:
            raise RefusedError(f"{self._party} has {rows.shape[1]} columns here and the model {features} of its own.")
        if names and own_names and names != own_names:
            raise RefusedError(f"{self._party} has other columns, or in another order, than the model has of its own.")
        request, people = Request.read(frame, model.plan), int(rows.shape[0])
        pairs = request.pair_keys(self._party, self._key, self._holder.identity)
        publics = packed_rows([bytes.fromhex(request.keys[name]) for name in sorted(request.keys)], PUBLIC)
        if OFFERS not in frame.arrays:
            return offered(pairs, publics)
        pairs.agree(publics, frame.arrays[OFFERS])
        with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
            scores = words_of(model.scores(rows), request.blur(self._blur, people))
            own = added(scores, request.masks(self._party, pairs, people, self._aligned))
        if request.recipient != self._party:
            return disclose(MASKED, own.view(np.int64), recipient=request.recipient, allowed=policy.predict_for)
        total = added(own, masked_of(frame, people))
        self._scored = (model.plan, frame.plan, each_score(total))
        self.received = None
        try:
            self.received = Predictions(frame.plan, scores_of(total), model.plan)
        except WireError as error:
            _log.error("party %s: %s", self._party, error)
        return None

    def scored(self, digest: bytes, parties: tuple[str, ...]) -> Array | None:
        """The scores by a model that this party was last the recipient of, for an evaluation by the model's parties.

        Columns of all these parties are in a score; an evaluation that others, or fewer, charge and sign is refused.
        Guarantee: whatever the coordinator passed on, a person's score is a function of that person's record alone, and
        whether there are scores is known to the coordinator. So no refusal tells of masks that do not cancel.
        """
        if self._scored is None or self._scored[1] != digest:
            return None
        plan, _, scores = self._scored
        if set(plan.names) != set(parties):
            raise RefusedError(
                f"{self._party} has joint predictions by a model of {', '.join(plan.names)}; an evaluation of them is "
                "charged to, and signed by, all of these and nobody else."
            )
        return scores

    def _model(self, digest: bytes, policy: Policy) -> PartialModel:
        given = self._given.get(digest)
        model = given or self.models.get(digest)
        if model is None or model.party != self._party:
            raise RefusedError(
                f"{self._party} keeps no model of that plan: it took no part in the training, or kept what it learned "
                "there elsewhere. Start it with the ledger of the training, or train again."
            )
        if given is None and not policy.approve_models and not self.models.approved(digest):
            name = digest.hex()[:12]
            raise RefusedError(
                f"{self._party} has a model of plan {name} that its holder has not approved. The holder sees it with "
                f"`sottovoce models show LEDGER {name}` and allows it with `sottovoce models approve LEDGER {name}`."
            )
        return model


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
            total = added(total, mask if party < other else negated(mask))
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


def masked_of(frame: Frame, people: int) -> RingArray:
    """The whole numbers of a frame, one for each person."""
    found = frame.arrays.get(MASKED)
    if found is None or found.dtype != np.int64 or found.shape != (people, 2):
        raise WireError(f"a message of a prediction has no scores of {people} people.")
    return found.view(np.uint64)


def words_of(scores: Array, blur: RingArray | None = None) -> RingArray:
    """Scores as whole numbers modulo 2^128; NaN is a mark above all scores, and `blur` of that person below it."""
    unusable = np.isnan(scores)
    units = np.rint(np.where(unusable, 0.0, np.clip(scores, -_CUT, _CUT)) * 2.0**_GRID)
    size = np.abs(units)
    high = np.floor(size * 2.0**-64)
    words = np.column_stack([size - high * 2.0**64, high]).astype(np.uint64)
    words = np.where((units < 0)[:, None], negated(words), words)
    if blur is not None:
        words = np.where(unusable[:, None], blur, words)
    words[:, 1] += unusable.astype(np.uint64) << np.uint64(_UNUSABLE)
    return words


def scores_of(total: RingArray) -> Array:
    """The scores of a sum of all parties' words; NaN where some party could not use a record."""
    if np.any(_marks(total) > 2 * _MOST_PARTIES):  # a mark and its blur are below 3/2 of a mark
        raise WireError("the answers of the parties do not belong together: their masks do not cancel. Ask again.")
    return each_score(total)


def each_score(total: RingArray) -> Array:
    """The same of each person on its own; NaN also where a sum is none."""
    negative = total[:, 1] >> np.uint64(63) == 1
    size = np.where(negative[:, None], negated(total), total)
    scores = (size[:, 1] * 2.0**64 + size[:, 0]) * 2.0**-_GRID
    return np.where(_marks(total) > 0, np.nan, np.where(negative, -scores, scores))


def _marks(total: RingArray) -> NDArray[np.uint64]:
    """How many parties could not use a record; more than there are where a sum is none."""
    return np.asarray((total[:, 1] + np.uint64(1 << (_UNUSABLE - 1))) >> np.uint64(_UNUSABLE))


def added(one: RingArray, other: RingArray) -> RingArray:
    """The sum modulo 2^128."""
    low = one[:, 0] + other[:, 0]
    return np.column_stack([low, one[:, 1] + other[:, 1] + (low < one[:, 0])])


def negated(words: RingArray) -> RingArray:
    """The negative modulo 2^128."""
    low = ~words[:, 0] + np.uint64(1)
    return np.column_stack([low, ~words[:, 1] + (low == 0)])
