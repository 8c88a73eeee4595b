"""Joint prediction over columns: each party scores its own columns, and only one recipient learns the sums.

A party answers with its partial scores hidden by pads. Every two parties share a secret (X25519) from which both derive
one pad for one request (HKDF, then AES in counter mode); one adds it and the other subtracts it, modulo 2^128.

    answer_m = s_m + sum_{k > m} pad_mk - sum_{k < m} pad_km,        sum_m answer_m = sum_m s_m

Guarantee, where coordinator and parties follow the protocol, though they may be curious: one answer, and any sum of
answers that lacks a party's, looks uniform to whoever lacks that party's secrets. A coordinator that is the recipient
adds all answers and learns the sums. One that serves a recipient among the parties adds the answers of the others and
passes them on: they lack the pads of the recipient, which alone can read them. All parties but one, together with the
recipient, learn the partial scores of the one. No request carries weights: a party scores with what it kept when the
run of the plan ended, once for each plan. Edges: public keys come through the coordinator, and the parts of a model
that is shared; one that puts others in their place does not follow the protocol. Scores are rounded to 2^-44 and cut at
2^62. Where a party cannot use a record the recipient learns that, and of how many parties; a random number in the place
of the score hides the scores of the others, but for a share of |sum| 2^-71.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from scipy.special import expit

from sottovoce.data.block import Matrix
from sottovoce.data.bounds import LARGEST
from sottovoce.door.frames import Frame
from sottovoce.door.sealed import Disclosed, check_recipient, disclose
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.files import write_durably
from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]
Words = NDArray[np.uint64]  # one whole number modulo 2^128 for each person: the low word, then the high one

COORDINATOR: Final = "coordinator"  # the recipient that is no party: whoever asks
MASKED: Final = "masked"
_GRID: Final = 44  # scores are multiples of 2^-44
_CUT: Final = 2.0**62
_UNUSABLE: Final = 52  # a party that cannot use a record adds 2^(64 + 52), out of reach of any sum of scores
_MOST_PARTIES: Final = 2**8

_log = logging.getLogger("sottovoce.holder")


@dataclass(frozen=True)
class PartialModel:
    """What one party has of a model: coefficients of its raw columns, its part of the intercept, and the plan."""

    plan: Plan
    party: str
    coef: Array
    intercept: float
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = np.append(self.coef, self.intercept)
        if self.coef.shape != (self.plan.part(self.party).preparation.features,):
            raise RefusedError("a partial model has one coefficient for each column of its party.")
        if not np.all(np.abs(numbers) <= LARGEST):  # NaN is not
            raise RefusedError(f"a partial model has finite coefficients, none above {LARGEST:g} in absolute value.")

    def scores(self, X: Matrix) -> Array:
        """The partial score of each row, cut as in training; NaN for a row that cannot be used."""
        scores, usable = self.plan.part(self.party).preparation.scored(X, self.coef, self.intercept)
        return np.where(usable, scores, np.nan)


def own_part(plan: Plan, party: str, weights: Array) -> PartialModel:
    """The partial model of weights on a party's own prepared rows; the centre of the labels is with their holder."""
    part = plan.part(party).preparation
    if weights.shape != (part.dimension,):
        raise RefusedError("a party keeps one weight for each column of its prepared rows.")
    centre, half = plan.preparation.label_scale
    coef = weights[: part.features] * (part.scale * half)
    intercept = float(weights[part.features]) * part.intercept_entry * half if part.fit_intercept else 0.0
    if plan.fit_intercept and plan.label_party_name == party:
        intercept += centre
    shift, factor = part.affine()
    if factor is not None:
        intercept += float(coef @ (shift * factor))
        coef = coef * factor
    return PartialModel(plan, party, coef, intercept)


def parts_of(plan: Plan, coef: Array, intercept: float, names: tuple[str, ...] = ()) -> dict[str, PartialModel]:
    """A whole model as the parts of its parties; the intercept is with the holder of the labels."""
    found = {}
    for place, (party, _) in enumerate(plan.parties):
        part = plan.part(party)
        own = intercept if place == plan.label_party else 0.0
        found[party] = PartialModel(plan, party, coef[part.start : part.stop], own, names[part.start : part.stop])
    return found


def joined_scores(plan: Plan, X: Matrix, coef: Array, intercept: float) -> Array:
    """The scores of whole rows in one place, each part cut as its party cut it: what a joint prediction gives."""
    parts = parts_of(plan, coef, intercept).values()
    spans = [plan.part(part.party) for part in parts]
    columns = X.tocsc() if hasattr(X, "tocsc") else X
    each = [
        span.preparation.scores(columns[:, span.start : span.stop], part.coef, part.intercept)
        for part, span in zip(parts, spans, strict=True)
    ]
    return np.asarray(np.sum(each, axis=0))


class Models:
    """The partial models of one party by the digest of their plan: in memory, or in a folder of its own.

    Guarantee: a plan has one model; another one for the same plan is refused. Files are readable by their owner alone.
    Several parties may use one folder: a file is of one plan and one party.
    """

    def __init__(self, folder: Path | None = None, party: str = "") -> None:
        self._folder = folder
        self._party = hashlib.sha256(party.encode()).hexdigest()[:16]  # a name may be no name of a file
        self._known: dict[bytes, PartialModel] = {}

    @classmethod
    def beside(cls, ledger: Path, party: str) -> Models:
        """Those of a party with an account in that ledger."""
        return cls(ledger.with_name(f"{ledger.name}.models"), party)

    def keep(self, digest: bytes, model: PartialModel) -> None:
        """Remember the model of a plan."""
        earlier = self.get(digest)
        if earlier is None and self._folder is not None:
            self._write(self._path(self._folder, digest), model)
            earlier = self.get(digest)  # another process may have been first
        if earlier is None:
            earlier = self._known[digest] = model
        if not np.array_equal(earlier.coef, model.coef) or earlier.intercept != model.intercept:
            raise RefusedError("the plan has a model already, and it is another one.")

    def get(self, digest: bytes) -> PartialModel | None:
        """The model of a plan, or None."""
        if digest not in self._known and self._folder is not None:
            path = self._path(self._folder, digest)
            if not path.exists():
                return None
            self._known[digest] = _read(path)
        return self._known.get(digest)

    def _path(self, folder: Path, digest: bytes) -> Path:
        return folder / f"{digest.hex()}.{self._party}.json"

    def _write(self, path: Path, model: PartialModel) -> None:
        content = {
            "plan": json.loads(model.plan.model_copy(update={"coin": "withheld"}).to_json()),
            "party": model.party,
            "coef": model.coef.tolist(),
            "intercept": model.intercept,
            "feature_names": list(model.feature_names),
        }
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was first, and `keep` compares
            write_durably(path, json.dumps(content).encode(), replace=False)


def _read(path: Path) -> PartialModel:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        plan = Plan.model_validate(found["plan"])
        coef = np.array(found["coef"], dtype=np.float64)
        names = tuple(map(str, found["feature_names"]))
        return PartialModel(plan, found["party"], coef, float(found["intercept"]), names)
    except (OSError, ValueError, KeyError, TypeError, RefusedError):
        raise InputError(f"{path} is not a partial model of this version; train again to have a new one.") from None


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
    """A party's side of joint predictions: its partial models, the key of its pads, and what it received."""

    def __init__(self, party: str, models: Models, feature_names: tuple[str, ...]) -> None:
        self.models = models
        self.received: Predictions | None = None
        self._party = party
        self._feature_names = feature_names
        self._given: dict[bytes, PartialModel] = {}
        self._key = X25519PrivateKey.generate()

    @property
    def public_key(self) -> str:
        """What the other parties need for the pads; a new one for every party object."""
        return public_key(self._key)

    def learn(self, digest: bytes, model: PartialModel) -> None:
        """Predict with this model of the plan: said by the holder in its own process, never over a wire."""
        self._given[digest] = model

    def keep(self, model: PartialModel) -> None:
        """Keep what a run left behind."""
        self.models.keep(model.plan.digest, dataclasses.replace(model, feature_names=self._feature_names))

    def answer(self, frame: Frame, rows: Matrix, allowed: Collection[str]) -> Disclosed | None:
        """Scores under pads for whoever collects them; None if this party is the recipient and has added them up.

        Whether pads cancel depends on the scores. So a recipient answers alike where they do not, and logs it: from
        refusals a coordinator could find the sums that it passed on.
        """
        check_recipient(frame.query, allowed)
        model = self._given.get(frame.plan) or self.models.get(frame.plan)
        if model is None or model.party != self._party:
            raise RefusedError(
                f"{self._party} keeps no model of that plan: it took no part in the training, or kept what it learned "
                "there elsewhere. Start it with the ledger of the training, or train again."
            )
        features, names = model.plan.part(self._party).preparation.features, model.feature_names
        if rows.shape[1] != features:
            raise RefusedError(f"{self._party} has {rows.shape[1]} columns here and the model {features} of its own.")
        if names and self._feature_names and names != self._feature_names:
            raise RefusedError(f"{self._party} has other columns, or in another order, than the model has of its own.")
        request, people = Request.read(frame, model.plan), int(rows.shape[0])
        with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
            scores = words_of(model.scores(rows), request.blur(self._party, self._key, people))
            own = added(scores, request.pads(self._party, self._key, people))
        if request.recipient != self._party:
            return disclose(MASKED, own.view(np.int64), recipient=request.recipient, allowed=allowed)
        total = added(own, masked_of(frame, people))
        self.received = None
        try:
            self.received = Predictions(frame.plan, scores_of(total), model.plan)
        except WireError as error:
            _log.error("party %s: %s", self._party, error)
        return None


@dataclass(frozen=True)
class Request:
    """One prediction: of which model, for whom, and the public keys of all parties. `number` makes it unique."""

    digest: bytes
    recipient: str
    number: str
    keys: Mapping[str, str]

    @classmethod
    def new(cls, digest: bytes, recipient: str, keys: Mapping[str, str]) -> Request:
        """A request with a number of its own."""
        return cls(digest, recipient, secrets.token_hex(16), dict(keys))

    @property
    def text(self) -> str:
        """What a frame of it says besides model and recipient."""
        return json.dumps({"number": self.number, "keys": dict(self.keys)}, sort_keys=True)

    @classmethod
    def read(cls, frame: Frame, plan: Plan) -> Request:
        """The request of a frame, or a refusal of one that is none for this plan."""
        try:
            said = json.loads(frame.text)
            number, keys = said["number"], said["keys"]
            lengths = {len(bytes.fromhex(key)) for key in keys.values()}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise RefusedError("the text is no request for a prediction of this version.") from None
        names = {name for name, _ in plan.parties}
        if set(keys) != names or lengths != {32} or len(set(keys.values())) < len(names) or type(number) is not str:
            raise RefusedError("a request for a prediction has the public key of each party of the plan, and no other.")
        if len(names) > _MOST_PARTIES:
            raise RefusedError(f"a joint prediction serves at most {_MOST_PARTIES} parties.")
        if frame.query != COORDINATOR and frame.query not in names:
            raise RefusedError("the recipient of a prediction is the coordinator or a party of the plan.")
        return cls(frame.plan, frame.query, number, keys)

    def pads(self, party: str, key: X25519PrivateKey, people: int) -> Words:
        """What a party adds to its scores: the sum of its pads with all others, each with its sign."""
        if self.keys[party] != public_key(key):
            raise RefusedError("the request has another public key for this party than its own; ask for it again.")
        total = np.zeros((people, 2), dtype=np.uint64)
        for other, public in self.keys.items():
            if other == party:
                continue
            try:
                secret = key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
            except ValueError:
                raise RefusedError("the request has a public key that is none.") from None
            pad = self._pad(secret, sorted((party, other)), people)
            total = added(total, pad if party < other else negated(pad))
        return total

    def blur(self, party: str, key: X25519PrivateKey, people: int) -> Words:
        """What a party says in the place of scores that it has not: random numbers below 2^(64 + 51) of its own.

        A request that is repeated has the same ones: new ones would show whose record cannot be used.
        """
        blur = np.array(self._pad(key.private_bytes_raw(), [party], people))
        blur[:, 1] >>= np.uint64(64 - _UNUSABLE + 1)
        return blur

    def _pad(self, secret: bytes, owners: list[str], people: int) -> Words:
        """A pad is of one request: all that was said of it goes into the key."""
        said = json.dumps([self.digest.hex(), self.recipient, self.text, owners]).encode()
        info = b"sottovoce prediction" + hashlib.sha256(said).digest()
        key = HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(secret)
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(16 * people))
        return np.frombuffer(stream, dtype="<u8").reshape(people, 2)


def masked_of(frame: Frame, people: int) -> Words:
    """The whole numbers of a frame, one for each person."""
    found = frame.arrays.get(MASKED)
    if found is None or found.dtype != np.int64 or found.shape != (people, 2):
        raise WireError(f"a message of a prediction has no scores of {people} people.")
    return found.view(np.uint64)


def public_key(key: X25519PrivateKey) -> str:
    """The public key as a text."""
    return key.public_key().public_bytes_raw().hex()


def words_of(scores: Array, blur: Words | None = None) -> Words:
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


def scores_of(total: Words) -> Array:
    """The scores of a sum of all parties' words; NaN where some party could not use a record."""
    half = np.uint64(1 << (_UNUSABLE - 1))
    marks = (total[:, 1] + half) >> np.uint64(_UNUSABLE)
    if np.any(marks > 2 * _MOST_PARTIES):  # a mark and its blur are below 3/2 of a mark
        raise WireError("the answers of the parties do not belong together: their pads do not cancel. Ask again.")
    negative = total[:, 1] >> np.uint64(63) == 1
    size = np.where(negative[:, None], negated(total), total)
    scores = (size[:, 1] * 2.0**64 + size[:, 0]) * 2.0**-_GRID
    return np.where(marks > 0, np.nan, np.where(negative, -scores, scores))


def added(one: Words, other: Words) -> Words:
    """The sum modulo 2^128."""
    low = one[:, 0] + other[:, 0]
    return np.column_stack([low, one[:, 1] + other[:, 1] + (low < one[:, 0])])


def negated(words: Words) -> Words:
    """The negative modulo 2^128."""
    low = ~words[:, 0] + np.uint64(1)
    return np.column_stack([low, ~words[:, 1] + (low == 0)])
