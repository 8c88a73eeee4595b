"""What a party keeps of a model over columns, and its holder's sign-off.

A run ends with coefficients for each party's columns. The coordinator tells them, or steers the messages that they come
from, and no party can recompute them from its own releases: they follow from those of all parties. So a party keeps
them and predicts with them only once its holder has looked at them and approved them. Coefficients that were chosen to
tell something (1, 2^14, 2^28: a score that spells out the columns) look like it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Matrix
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError, RefusedError
from sottovoce.files import read_plain, sync_folder, write_durably
from sottovoce.formats import PARTIAL_MODEL
from sottovoce.plan.plan import Plan

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

    Guarantee: a plan has one model; another one for the same plan is refused. An approval is of exactly the
    coefficients that were looked at; it lasts, and no message gives one. Files are readable by their owner alone.
    Several parties may use one folder: a file is of one plan and one party.
    """

    def __init__(self, folder: Path | None = None, party: str = "") -> None:
        self._folder = folder
        self._party = hashlib.sha256(party.encode()).hexdigest()[:16]  # a name may be no name of a file
        self._known: dict[bytes, PartialModel] = {}
        self._approved: dict[bytes, str] = {}  # fingerprints, where there is no folder

    @classmethod
    def beside(cls, ledger: Path, party: str) -> Models:
        """Those of a party with an account in that ledger."""
        return cls(_folder(ledger), party)

    def keep(self, digest: bytes, model: PartialModel) -> None:
        earlier = self.get(digest)
        if earlier is None and self._folder is not None:
            self._write(self._path(self._folder, digest), model)
            earlier = self.get(digest)  # another process may have been first
        if earlier is None:
            earlier = self._known[digest] = model
        if not np.array_equal(earlier.coef, model.coef) or earlier.intercept != model.intercept:
            raise RefusedError("the plan has a model already, and it is another one.")

    def get(self, digest: bytes) -> PartialModel | None:
        if digest not in self._known and self._folder is not None:
            path = self._path(self._folder, digest)
            if not path.exists():
                return None
            self._known[digest] = _read(path)
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
        return folder / f"{digest.hex()}.{self._party}.{suffix}"

    def _write(self, path: Path, model: PartialModel) -> None:
        content = {
            "format": PARTIAL_MODEL.number,
            "plan": json.loads(model.plan.model_copy(update={"coin": "withheld"}).to_json()),
            "party": model.party,
            "coef": model.coef.tolist(),
            "intercept": model.intercept,
            "feature_names": list(model.feature_names),
        }
        path.parent.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.parent.parent)
        with contextlib.suppress(FileExistsError):  # another process was first, and `keep` compares
            write_durably(path, json.dumps(content).encode(), replace=False)


@dataclass(frozen=True)
class StoredModel:
    """A model that some party kept beside a ledger."""

    digest: bytes
    model: PartialModel
    written: datetime
    approved: bool


def kept_beside(ledger: Path) -> Iterator[StoredModel]:
    """Every model that parties with accounts in that ledger have kept, the oldest first."""
    found = [(path.stat().st_mtime, path) for path in _folder(ledger).glob("*.json")]
    for written, path in sorted(found):
        model, digest = _read(path), bytes.fromhex(path.name.partition(".")[0])
        approved = Models.beside(ledger, model.party).approved(digest)
        yield StoredModel(digest, model, datetime.fromtimestamp(written, UTC), approved)


def _folder(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.models")


def _read(path: Path) -> PartialModel:
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
