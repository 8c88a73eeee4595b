"""What a party keeps of a model over columns, and its holder's sign-off.

A run ends with coefficients for each party's columns. The coordinator tells them, or steers the messages that they come
from, and no party can recompute them from its own releases: they follow from those of all parties. So a party keeps
them and predicts with them only once its holder has looked at them and approved them. Coefficients that were chosen to
tell something (1, 2^14, 2^28: a score that spells out the columns) look like it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Matrix
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation.answering import ACCEPTED
from sottovoce.federation.prediction import (
    Predictions,
    Request,
    add_words,
    decode_scores,
    encode_scores,
    read_masked,
    read_scores,
)
from sottovoce.federation.replies import MASKED
from sottovoce.files import read_plain, write_durably
from sottovoce.formats import PARTIAL_MODEL
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Outgoing, check_recipient, disclose, reply
from sottovoce.gate.secure_gate import offered
from sottovoce.plan.plan import Plan
from sottovoce.secure.pair_keys import OFFERS, PUBLIC, RunKey, packed_rows
from sottovoce.systems import sync_folder
from sottovoce.transports.identity import PREDICTION_KEY

if TYPE_CHECKING:
    from sottovoce.federation.party import Party

_log = logging.getLogger("sottovoce.holder")

Array = NDArray[np.float64]
_APART: Final = 1e3  # contributions that differ by more could be the digits of one number
_SHORT: Final = 29  # significant bits of a coefficient that no fit gave: of 53, chance leaves 24 zeros once in 2^24


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

    @property
    def fingerprint(self) -> str:
        """A hash of exactly these coefficients, to the last bit: what an approval is of."""
        numbers = [float(number).hex() for number in (*self.coef, self.intercept)]
        return hashlib.sha256(json.dumps([self.party, *numbers]).encode()).hexdigest()

    @property
    def contributions(self) -> Array:
        """The most that each column can add to a score, either way, under the declared bounds; inf without any."""
        part = self.plan.part(self.party).preparation
        _, factor = part.affine()
        own, bounds = self.coef if factor is None else self.coef / factor, part.bounds.columns(part.features)
        return np.abs(own) * np.where(own == 0.0, 0.0, bounds)

    def doubts(self) -> list[str]:
        """What looks as if the coefficients were chosen to tell more than a score; none is no proof of the contrary."""
        used = np.flatnonzero(self.coef)
        sizes, found = self.contributions[used], []
        if len(used) == 1 and len(self.coef) > 1:
            found.append("one coefficient alone is not 0: a score tells that column")
        if len(used) > 1 and sizes.max() > _APART * sizes.min():
            found.append(
                f"the largest contributions differ by a factor of {sizes.max() / sizes.min():.2g}: a score could spell "
                "out the columns one after another, like digits"
            )
        mantissas = np.ldexp(np.frexp(np.abs(self.coef[used]))[0], _SHORT)
        if short := int(np.sum(mantissas == np.rint(mantissas))):
            found.append(f"{short} of {len(used)} coefficients have few digits, as if somebody had chosen them")
        return found

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
    parts = {}
    for place, party in enumerate(plan.names):
        span = plan.part(party)
        own = intercept if place == plan.label_party else 0.0
        parts[party] = PartialModel(plan, party, coef[span.start : span.stop], own, names[span.start : span.stop])
    return parts


def joined_scores(plan: Plan, X: Matrix, coef: Array, intercept: float) -> Array:
    """The scores of whole rows in one place, each part cut as its party cut it: what a joint prediction gives."""
    columns, scores = X.tocsc() if hasattr(X, "tocsc") else X, []
    for party, part in parts_of(plan, coef, intercept).items():
        span = plan.part(party)
        scores.append(span.preparation.scores(columns[:, span.start : span.stop], part.coef, part.intercept))
    return np.asarray(np.sum(scores, axis=0))


@dataclass(eq=False, repr=False)
class Models:
    """The partial models of one party by the digest of their plan: in memory, or in a folder of its own.

    Guarantee: a plan has one model; another one for the same plan is refused. An approval is of exactly the
    coefficients that were looked at; it lasts, and no message gives one. Files are readable by their owner alone.
    Several parties may use one folder: a file is of one plan and one party.
    """

    _folder: Path | None = None
    _party: str = ""
    _known: dict[bytes, PartialModel] = field(default_factory=dict)
    _approved: dict[bytes, str] = field(default_factory=dict)  # fingerprints, where there is no folder

    @classmethod
    def beside(cls, ledger: Path, party: str) -> Models:
        """Those of a party with an account in that ledger."""
        return cls(ledger.with_name(f"{ledger.name}.models"), party)

    def keep(self, digest: bytes, model: PartialModel) -> None:
        earlier = self.get(digest)
        if earlier is None and self._folder is not None:
            content = {
                "format": PARTIAL_MODEL.number,
                "plan": json.loads(model.plan.model_copy(update={"coin": "withheld"}).to_json()),
                "party": model.party,
                "coef": model.coef.tolist(),
                "intercept": model.intercept,
                "feature_names": list(model.feature_names),
            }
            self._folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder.parent)
            with contextlib.suppress(FileExistsError):  # another process was first
                write_durably(self._path(self._folder, digest), json.dumps(content).encode(), replace=False)
            earlier = self.get(digest)
        if earlier is None:
            earlier = self._known[digest] = model
        if not np.array_equal(earlier.coef, model.coef) or earlier.intercept != model.intercept:
            raise RefusedError("the plan has a model already, and it is another one.")

    def get(self, digest: bytes) -> PartialModel | None:
        if digest not in self._known and self._folder is not None:
            path = self._path(self._folder, digest)
            if not path.exists():
                return None
            self._known[digest] = _read_model(path)
        return self._known.get(digest)

    def approve(self, digest: bytes, model: PartialModel) -> None:
        """The holder allows predictions with the model of a plan, which it has looked at; never said over a wire."""
        kept = self.get(digest)
        if kept is None or kept.fingerprint != model.fingerprint:
            raise InputError(f"plan {digest.hex()[:12]} has no such model here; look at the one that it has.")
        if self._folder is None:
            self._approved[digest] = model.fingerprint
        else:
            write_durably(self._path(self._folder, digest, "approved"), f"{model.fingerprint}\n".encode())

    def approved(self, digest: bytes) -> bool:
        """Whether the holder approved the model of a plan as it is kept."""
        kept, said = self.get(digest), self._approved.get(digest)
        if self._folder is not None:
            try:
                said = self._path(self._folder, digest, "approved").read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                said = None
        return kept is not None and said == kept.fingerprint

    def _path(self, folder: Path, digest: bytes, suffix: str = "json") -> Path:
        party = hashlib.sha256(self._party.encode()).hexdigest()[:16]  # a name may be no name of a file
        return folder / f"{digest.hex()}.{party}.{suffix}"


@dataclass(frozen=True)
class StoredModel:
    """A model that some party kept beside a ledger."""

    digest: bytes
    model: PartialModel
    written: datetime
    approved: bool


def kept_beside(ledger: Path) -> Iterator[StoredModel]:
    """Every model that parties with accounts in that ledger have kept, the oldest first."""
    found = [(path.stat().st_mtime, path) for path in ledger.with_name(f"{ledger.name}.models").glob("*.json")]
    for written, path in sorted(found):
        model, digest = _read_model(path), bytes.fromhex(path.name.partition(".")[0])
        approved = Models.beside(ledger, model.party).approved(digest)
        yield StoredModel(digest, model, datetime.fromtimestamp(written, UTC), approved)


def _read_model(path: Path) -> PartialModel:
    try:
        found = json.loads(read_plain(path))
        if type(found) is dict and not PARTIAL_MODEL.read(number := found.get("format")):
            raise InputError(PARTIAL_MODEL.refusal(str(path), number))
        plan = Plan.model_validate(found["plan"])
        coef = np.array(found["coef"], dtype=np.float64)
        names = tuple(map(str, found["feature_names"]))
        return PartialModel(plan, found["party"], coef, float(found["intercept"]), names)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, RefusedError):
        raise InputError(f"{path} is no partial model, or damaged; train again to have a new one.") from None


@dataclass(eq=False, repr=False)
class Predictor:
    """Answers "predict": a party's side of joint predictions, its partial models, and what it received."""

    _holder: Party
    _party: str
    models: Models
    _aligned: str  # the digest of the alignment whose rows it serves
    received: Predictions | None = None
    _scored: tuple[Plan, bytes, Array] | None = None
    _given: dict[bytes, PartialModel] = field(default_factory=dict)
    _key: RunKey = field(default_factory=RunKey)
    _blur: bytes = field(default_factory=lambda: secrets.token_bytes(32))

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
        """Scores under masks for whoever collects them; a recipient adds them up.

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
        given = self._given.get(frame.plan)
        model = given or self.models.get(frame.plan)
        if model is None or model.party != self._party:
            raise RefusedError(
                f"{self._party} keeps no model of that plan: it took no part in the training, or kept what it learned "
                "there elsewhere. Start it with the ledger of the training, or train again."
            )
        if given is None and not policy.approve_models and not self.models.approved(frame.plan):
            name = frame.plan.hex()[:12]
            raise RefusedError(
                f"{self._party} has a model of plan {name} that its holder has not approved. The holder sees it with "
                f"`sottovoce models show LEDGER {name}` and allows it with `sottovoce models approve LEDGER {name}`."
            )
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
            return reply("answer", frame, offered(pairs, publics))
        pairs.agree(publics, frame.arrays[OFFERS])
        with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
            scores = encode_scores(model.scores(rows), request.blur(self._blur, people))
            own = add_words(scores, request.masks(self._party, pairs, people, self._aligned))
        if request.recipient != self._party:
            said = disclose(MASKED, own.view(np.int64), recipient=request.recipient, allowed=policy.predict_for)
            return reply("answer", frame, said)
        total = add_words(own, read_masked(frame, people))
        self._scored = (model.plan, frame.plan, decode_scores(total))
        self.received = None
        try:
            self.received = Predictions(frame.plan, read_scores(total), model.plan)
        except WireError as error:
            _log.error("party %s: %s", self._party, error)
        return reply("accept", frame, ACCEPTED)

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
