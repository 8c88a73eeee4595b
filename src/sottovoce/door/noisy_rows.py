"""Rows with noise that a party draws once and keeps: values, never the noise nor a seed.

Beside the ledger PATH lies a folder PATH.rows. A file in it holds the noisy rows of one account and one recipe (the
public constants by which raw rows become prepared ones); it is never changed, only followed by another. The ledger's
last entry about the recipe names the file in use, with its SHA-256. In this order: the cost is reserved, the file is
made durable, the entry is made durable, the rows are used. Proof: proofs/noisy_rows.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import secrets
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Matrix, Preparation, is_sparse
from sottovoce.errors import LedgerError, RefusedError
from sottovoce.files import sync_folder, write_durably
from sottovoce.formats import KEPT_ROWS
from sottovoce.privacy.events import Event, Gaussian, Unbounded
from sottovoce.privacy.mechanisms import rounded_gaussian
from sottovoce.privacy.randomness import Randomness
from sottovoce.privacy.spending import Paid

if TYPE_CHECKING:
    from sottovoce.door.query import Query
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.release import Release
    from sottovoce.privacy.ledger import Account, Entry

Array = NDArray[np.float64]
Digests = NDArray[np.uint8]

DIGEST: Final = 16  # bytes for each record
NONE: Final = ("", 0.0)  # what a party says that keeps no rows
NEAR: Final = 1e-6  # a precision that is short by so little, relatively, is not worth a draw
SAME: Final = 1e-12  # precisions that differ by less, relatively, differ by floating point alone
LEAST: Final = 8.0  # steps of its grid: the least noise that is added to a copy
_MOST: Final = 2**31 - 1  # what an entry is cut to, in steps of its grid
_PIECE: Final = 1 << 18  # entries of raw rows that are made dense at once

_log = logging.getLogger("sottovoce.holder")


class Keeper(Protocol):
    """Where a gate takes noisy rows from, if not from a draw of its own."""

    def take(self, query: Query, release: Release, value: Array, randomness: Randomness) -> NDArray[np.float32]:
        """Rows with the noise of the release, stored before they are returned."""


@dataclass(frozen=True)
class Copy:
    """Rows with noise of standard deviation `std`, in steps of a grid."""

    std: float
    step: float
    grid: NDArray[np.int32]

    def values(self) -> NDArray[np.float32]:
        """As numbers; the rounding to float32 comes after the noise."""
        return np.asarray(self.grid * self.step, dtype=np.float32)


def draw(value: Array, std: float, step: float, randomness: Randomness) -> Copy:
    """trunc(value / step) + round(std / step * Z), entry by entry, cut to 32 bits.

    Guarantee: rounding toward zero makes no row longer, and two rows differ by at most the sum of their lengths; so a
    row of norm at most b moves the copy by b under zero-out and by 2 b under replace-one, whatever the grid.
    """
    noise = rounded_gaussian(std / step, value.size, randomness).reshape(value.shape)
    return Copy(std, step, _narrow(np.trunc(value / step).astype(np.int64) + noise))


def _narrow(grid: NDArray[Any]) -> NDArray[np.int32]:
    return np.asarray(np.clip(grid, -_MOST, _MOST), dtype=np.int32)


def _with_more_noise(copy: Copy, std: float, step: float, randomness: Randomness) -> Array:
    """The copy with noise on top, so that its standard deviation is `std`; as numbers.

    The noise is on a grid of at most an eighth of the copy's own noise, and of at least LEAST steps: then the sum has
    the law of a rounded Gaussian of that std, up to nothing that counts.
    """
    coarse = max(copy.step, min(step, 2.0 ** math.floor(math.log2(copy.std / LEAST))))
    extra = max(math.sqrt(std**2 - copy.std**2), LEAST * coarse)
    noise = rounded_gaussian(extra / coarse, copy.grid.size, randomness).reshape(copy.grid.shape)
    return np.asarray(copy.grid * copy.step + noise * coarse)


@dataclass(frozen=True)
class Stock:
    """What is kept of one recipe: independent copies of the rows, and sets made of them with other noise.

    `name` is public. `digests` tell whether a record is the one that the rows were drawn for.
    """

    name: str
    digests: Digests
    copies: tuple[Copy, ...]
    sets: tuple[Copy, ...] = ()

    @property
    def precision(self) -> float:
        """1 / std^2 of all copies together: what all sets ever made of them tell at most."""
        return math.fsum(copy.std**-2 for copy in self.copies)

    @property
    def std(self) -> float:
        """The least noise there is."""
        return self.copies[0].std if len(self.copies) == 1 else self.precision**-0.5

    def find(self, std: float) -> Copy | None:
        """The rows with that noise, if they were made before."""
        return next((known for known in (*self.copies[:1], *self.sets) if known.std == std), None)

    def changed(self, digests: Digests) -> NDArray[np.bool_]:
        """Which of the records that there are now are new or not the ones that the rows were drawn for."""
        both = min(len(digests), len(self.digests))
        found = np.ones(len(digests), dtype=np.bool_)
        found[:both] = (digests[:both] != self.digests[:both]).any(axis=1)
        return found

    def same(self, digests: Digests) -> bool:
        """Whether the records are those that the rows were drawn for."""
        return len(digests) == len(self.digests) and not self.changed(digests).any()

    def at(self, value: Array, std: float, step: float, randomness: Randomness) -> Stock:
        """The stock with rows of that noise: weighted by precision, copies in the order in which they were drawn.

        Of the first copy that would be too much, a noisier version is taken; what all of them lack is drawn anew. So
        the rows are made of independent releases whose precisions add up to 1 / std^2.
        """
        if self.find(std) is not None:
            return self
        parts: list[tuple[float, NDArray[Any]]] = []
        copies, left = self.copies, std**-2
        for copy in copies:
            if copy.std**-2 <= left * (1 + SAME):
                parts.append((copy.std**-2, copy.grid * copy.step))
                left = max(left - copy.std**-2, 0.0)
            elif left > NEAR * std**-2:
                parts.append((left, _with_more_noise(copy, left**-0.5, step, randomness)))
                left = 0.0
        lacking = short(self.precision, std)
        if lacking > 0.0:
            noise = lacking**-0.5
            fresh = draw(value, noise, max(step, 2.0 ** math.floor(math.log2(noise * 2.0**-24))), randomness)
            copies = (*copies, fresh)
            parts.append((fresh.std**-2, fresh.grid * fresh.step))  # as it will be weighted when it is read again
        mean = sum(weight * rows for weight, rows in parts) / sum(weight for weight, _ in parts)
        return replace(self, copies=copies, sets=(*self.sets, Copy(std, step, _narrow(np.rint(mean / step)))))

    def carried(self, name: str, digests: Digests, value: Array, randomness: Randomness) -> Stock:
        """The same rows for the records that are as they were, and independent noise for all others."""
        fresh = self.changed(digests)
        copies = []
        for copy in self.copies:
            grid = np.empty(value.shape, dtype=np.int32)
            grid[~fresh] = copy.grid[: len(value)][~fresh[: len(copy.grid)]]
            grid[fresh] = draw(value[fresh], copy.std, copy.step, randomness).grid
            copies.append(Copy(copy.std, copy.step, grid))
        return Stock(name, digests, tuple(copies))


def short(precision: float, std: float) -> float:
    """What copies of that precision lack for rows of that noise; 0 if it is next to nothing."""
    lacking = std**-2 - precision
    return lacking if lacking > NEAR * std**-2 else 0.0


def row_event(sensitivities: Mapping[str, float], precisions: Mapping[str, float]) -> Event:
    """What the noisy rows of all parties cost together: mu^2 = sum_m sensitivity_m^2 precision_m, precision 1 / std^2.

    A person is in every party, so the parties' costs add. An infinite precision is rows without noise.
    """
    if any(math.isinf(precision) for precision in precisions.values()):
        return Unbounded(reason="rows are kept without noise")
    return Gaussian(mu=math.sqrt(math.fsum(sensitivities[name] ** 2 * precisions[name] for name in precisions)))


def bill(plan: Plan, paid: Mapping[tuple[str, str], float]) -> tuple[dict[str, float], tuple[Paid, ...]]:
    """(owed, notes): the precision of each party's rows that an account has yet to pay for, and what it then has paid.

    Rows that a plan uses count with all copies that there are of them, so that whatever is made of them later is paid
    for: an account that paid for other rows of a party, or for fewer copies, pays the difference. `paid` has the
    precision that it paid for, by party and rows.
    """
    std = next((release.std for release in plan.releases if release.mechanism == "kept"), None)
    if std is None:
        return {}, ()
    if std == 0.0:
        return {name: math.inf for name, _ in plan.parties}, ()
    owed, notes = dict[str, float](), list[Paid]()
    for place, (party, _) in enumerate(plan.parties):
        rows, least = plan.kept[place] if plan.kept else NONE
        there = least**-2 if rows else 0.0
        name = rows or name_of(plan.digest, party)
        before = paid.get((party, name), 0.0)
        after = max(before, there, std**-2)  # whether it is short or not: `Stock.at` rounds another way
        owed[party] = after - before
        notes.append(Paid(party, name, after))
    return owed, tuple(notes)


def name_of(plan: bytes, party: str) -> str:
    """The public name of the rows that a party draws under a plan: all parties know it before they are drawn.

    Who found two plans with one name would have the second draw charged as the first: it is too long for that.
    """
    return hashlib.sha256(plan + party.encode()).hexdigest()[:40]


def recipe_of(recipe: Preparation, query: object, *, secure: bool) -> str:
    """A fingerprint of everything public that decides what becomes of a raw row, and of the kind of randomness."""
    bounds = recipe.bounds.model_dump(mode="json", exclude={"label_low", "label_high"})
    facts = [KEPT_ROWS.number, bounds, recipe.features, recipe.fit_intercept, recipe.bits, recipe.classes]
    facts += [recipe.layout, recipe.unit, recipe.labelled, type(query).__name__, secure]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def digests_of(rows: Matrix, usable: NDArray[np.bool_], key: bytes) -> Digests:
    """A keyed BLAKE2b of each raw row as float64, and of whether its label can be used.

    Raw rows, not prepared ones: another version of a library may round another way, and then which rows were rounded
    otherwise would show in which rows have new noise.
    """
    found = []
    step = max(_PIECE // rows.shape[1], 1)
    for start in range(0, rows.shape[0], step):
        piece = rows[start : start + step]
        dense = piece.toarray() if is_sparse(piece) else piece
        told = np.column_stack([dense, usable[start : start + step]]).astype("<f8") + 0.0  # there is one 0
        told[np.isnan(told)] = math.nan  # and one NaN
        found += [hashlib.blake2b(row.tobytes(), digest_size=DIGEST, key=key).digest() for row in told]
    return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, DIGEST)


class RowKeeper:
    """The noisy rows of one party for one plan, in files beside its ledger.

    Guarantee: every copy was paid for by a plan before it was drawn, and is in a durable file and in the ledger before
    it is used; a record's rows are used for that record's data alone; two processes use the same rows.
    Edges: a missing or damaged file is a `LedgerError`; rows that changed in the middle of a run end it.
    """

    def __init__(
        self, account: Account, party: str, recipe: str, digests: Callable[[bytes], Digests], plan: Plan
    ) -> None:
        self._account = account
        self._party = party
        self._recipe = recipe
        self._digests = digests
        self._plan = plan
        self._claim = plan.kept[plan.names.index(party)] if plan.kept else NONE

    def offer(self) -> tuple[str, float]:
        """(name, std) of the rows that are there for these records by this recipe; ("", 0) if there are none."""
        entry, stock = self._stock()
        if stock is None or entry is None or not stock.same(self._digests(_key(entry))):
            return NONE
        return stock.name, stock.std

    def check(self) -> None:
        """Refuse a plan that counts on other rows than there are; one that has begun goes on with the rows it has."""
        if self._account.rows_used(self._plan.digest.hex(), self._recipe) is not None:
            return
        offer = self.offer()
        if self._claim not in (NONE, offer):
            there = f"rows {offer[0]} with noise {offer[1]:g}" if offer[0] else "none"
            raise RefusedError(
                f"the plan counts on kept rows {self._claim[0]} with noise {self._claim[1]:g} of {self._party}, and "
                f"there are {there}. Make the plan again."
            )

    def take(self, query: Query, release: Release, value: Array, randomness: Randomness) -> NDArray[np.float32]:
        """Rows with the noise of the release: those in the file, or made and stored now."""
        plan = self._plan.digest.hex()
        while True:
            used = self._account.rows_used(plan, self._recipe)
            entry, stock = self._stock()
            key = _key(entry) if entry is not None and stock is not None else secrets.token_bytes(32)
            digests = self._digests(key)
            named = used.details["id"] if used is not None else self._claim[0]
            if named and (stock is None or stock.name != named or not stock.same(digests)):
                raise RefusedError(
                    f"the rows of {self._party} changed, or were forgotten, since this run began; what was released "
                    "stays charged. Start a new fit."
                )
            if used is not None and stock is not None:
                return _found(stock, release.std).values()
            made = self._made(stock, digests, value, release, randomness)
            details = {"id": made.name, "std": made.std, "records": len(value), "columns": value.shape[1]}
            details["mu"] = query.sensitivity(self._account.terms().relation) * math.sqrt(made.precision)
            details["key"] = key.hex()
            if self._recorded(plan, entry, details, made, new=made is not stock):
                return _found(made, release.std).values()

    def _made(
        self, stock: Stock | None, digests: Digests, value: Array, release: Release, randomness: Randomness
    ) -> Stock:
        """The stock that has rows with the noise of the release; what is drawn for it was paid for."""
        drawn = name_of(self._plan.digest, self._party)
        if stock is not None and stock.same(digests):
            made = stock.at(value, release.std, release.step, randomness)
            if len(made.copies) > len(stock.copies):
                _log.warning("party %s: more precise kept rows %s: one more copy was drawn", self._party, stock.name)
            return made
        if stock is None or not math.isclose(stock.precision, release.std**-2, rel_tol=SAME):
            if stock is not None:
                self._tell(stock, digests, "the noise of the plan is another too: all rows are drawn anew, and charged")
            elif self._account.rows():
                _log.warning(
                    "party %s: rows are kept for other bounds, columns or classes than the plan has; for these "
                    "they are drawn anew, and charged",
                    self._party,
                )
            return Stock(drawn, digests, (draw(value, release.std, release.step, randomness),))
        self._tell(stock, digests, "these have new noise, which is charged")
        return stock.carried(drawn, digests, value, randomness).at(value, release.std, release.step, randomness)

    def _tell(self, stock: Stock, digests: Digests, what: str) -> None:
        """To the holder alone: how many records are not those that the rows were drawn for."""
        changed, gone = int(stock.changed(digests).sum()), max(len(stock.digests) - len(digests), 0)
        text = "party %s: since rows %s were drawn, %d records of %d changed or are new and %d are gone; %s"
        _log.warning(text, self._party, stock.name, changed, len(digests), gone, what)

    def _stock(self) -> tuple[Entry | None, Stock | None]:
        """The last entry about this recipe and the rows that it names, if they were not forgotten."""
        while True:
            entry = self._account.rows_of(self._recipe)
            if entry is None or entry.kind == "forgotten":
                return entry, None
            try:
                return entry, read(self._account, entry)
            except LedgerError:
                if self._account.rows_of(self._recipe) == entry:  # else it was followed by another, just now
                    raise

    def _recorded(self, plan: str, entry: Entry | None, details: Mapping[str, Any], stock: Stock, *, new: bool) -> bool:
        """Write the file, if it is new, then the entry; False if another process was first."""

        def write() -> Mapping[str, Any]:
            if entry is not None and not new:
                return {**entry.details, **details}
            prefix = f"{hashlib.sha256(self._account.dataset.encode()).hexdigest()[:16]}-{self._recipe}-"
            current = entry.details["file"] if entry is not None and entry.kind == "rows" else ""
            return {
                **details,
                **_write(folder_of(self._account), prefix, current, stock, {"recipe": self._recipe, "plan": plan}),
            }

        return self._account.record_rows(plan, self._recipe, entry.number if entry is not None else 0, write)


def _found(stock: Stock, std: float) -> Copy:
    rows = stock.find(std)
    if rows is None:
        raise LedgerError(f"the kept rows {stock.name} lack those of noise {std!r}, which the plan recorded.")
    return rows


def folder_of(account: Account) -> Path:
    """The folder of a ledger's noisy rows."""
    return account.path.with_name(f"{account.path.name}.rows")


def read(account: Account, entry: Entry) -> Stock:
    """The rows that an entry names; a `LedgerError` if their file is not the one that was written."""
    path = folder_of(account) / entry.details["file"]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _lost(account, entry, path, f"cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != entry.details["sha256"]:
        raise _lost(account, entry, path, "is not the file that was written")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            parts = [
                tuple(Copy(std, step, arrays[f"{kind}{k}"]) for k, (std, step) in enumerate(header[kind]))
                for kind in ("copies", "sets")
            ]
            named = header["id"] == entry.details["id"] and header["recipe"] == entry.query
            if named and KEPT_ROWS.read(header["format"]):
                return Stock(header["id"], arrays["digests"], *parts)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        pass
    raise _lost(account, entry, path, "cannot be understood by this version")


def forget(account: Account, entry: Entry) -> None:
    """Record that the noisy rows of an entry are used no more, then delete their file."""
    account.forget_rows(entry)
    (folder_of(account) / entry.details["file"]).unlink(missing_ok=True)


def _lost(account: Account, entry: Entry, path: Path, what: str) -> LedgerError:
    return LedgerError(
        f"the kept rows {entry.details['id']} of account {account.dataset!r} are lost: {path} {what}. Earlier messages "
        "were made from these rows, and the noise protects only as long as the same rows are used: to draw them again "
        "is a second release of every record, which costs as much as the first. Restore the file from a copy, or run "
        f"`sottovoce ledger forget-rows {account.path.name} --dataset {account.dataset}`; the next run then draws new "
        "rows and charges them. Nothing was released."
    )


def _write(folder: Path, prefix: str, current: str, stock: Stock, about: Mapping[str, str]) -> dict[str, str]:
    """Make the file of a stock durable, readable by its owner alone; files that no entry names any more go."""
    header: dict[str, Any] = {"format": KEPT_ROWS.number, "id": stock.name, **about}
    arrays: dict[str, Any] = {"digests": stock.digests}
    for kind, copies in (("copies", stock.copies), ("sets", stock.sets)):
        header[kind] = [[copy.std, copy.step] for copy in copies]
        arrays |= {f"{kind}{k}": copy.grid for k, copy in enumerate(copies)}
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays)
    data = buffer.getvalue()
    path = folder / f"{prefix}{secrets.token_hex(8)}.rows"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in folder.glob(f"{prefix}*"):
            if old.name != current:
                old.unlink()
        write_durably(path, data)
        sync_folder(folder.parent)
    except OSError as error:
        raise LedgerError(
            f"kept rows cannot be written to {folder} ({error.strerror}). Check the disk and the permissions. Nothing "
            "was released."
        ) from None
    return {"file": path.name, "sha256": hashlib.sha256(data).hexdigest()}


def _key(entry: Entry) -> bytes:
    return bytes.fromhex(entry.details["key"])
