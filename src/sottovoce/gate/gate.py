"""The one gate of a party: what was charged for gets its noise and becomes `Released`; a wire takes nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import logging
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import LeakError, RefusedError
from sottovoce.files import write_durably
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import GATE, Released
from sottovoce.gate.query import Choice, Derived, NoisyRows, Query, Round, Walk
from sottovoce.privacy.mechanisms import (
    Randomness,
    largest_signed,
    noisy_max_signed,
    poisson_sample,
    rounded_gaussian,
    select,
    select_signed,
)

if TYPE_CHECKING:
    from sottovoce.data.block import Block
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.release import Mechanism, Release
    from sottovoce.privacy.ledger import Account

Arrays = dict[str, NDArray[Any]]

MOST = 2**31 - 1  # what an entry of noisy rows is clipped to, in steps of its grid
# What a damaged file can raise: by its bits it may be encrypted, or of a kind of compression that nobody has.
_UNREADABLE: Final = (OSError, ValueError, EOFError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error)
_RECORDS: Final = "records"  # the array of a file that has their digest

_log = logging.getLogger("sottovoce.holder")


class Gate:
    """The gate of one party for one plan. There is one way through it: `release`; secure sums have a `SecureGate`.

    Guarantee: what leaves is `round(value / step) + round(std / step * Z)` on the grid `step`, or its first bits: a
    post-processing of the Gaussian mechanism at sensitivity Delta + step sqrt(entries); or the place of the largest
    score + std * Gumbel, or score + Laplace noise, scores rounded to that grid; or a function of rows that carry noise
    already. The plan's release says which. The cost was reserved before the gate was made, and each (plan, round,
    query) is released once: a second request gets the stored value, whatever it carries. Where the plan samples, the
    gate itself flips each record's secret coin and answers also for an empty batch. Edges: a query the plan does not
    list, a round outside the plan's, a query whose sensitivity is above what was charged, one that cannot be released
    as was charged, or rows that were not prepared for privacy, are refused and nothing leaves. Without a ledger the
    rounds of a query go up, unless it is `unordered`: then all its releases are kept. Threads take turns.
    """

    def __init__(self, plan: Plan, randomness: Randomness, account: Account | None = None) -> None:
        self._plan, self._randomness, self._account = plan, randomness, account
        self._rows: dict[str, NDArray[Any]] = {}  # with noise, by query
        self._checked: dict[str, Query] = {}  # queries are frozen: one check holds for all rounds
        self._last: dict[str, Released] = {}
        self._all: dict[tuple[str, int], Released] = {}  # of queries as needed, without a ledger
        self._answers: Counter[str] = Counter()  # releases by query, without a ledger
        self.unreleased = False  # whether the last release failed on its way, or another process was first
        self.memory: Memory | None = None  # where noisy rows, and what a solver remembers after a release, are stored
        self.lasting: Callable[[Any], Arrays] = lambda _: {}  # what of it is
        self._one_at_a_time = threading.Lock()

    def release(self, query: Query, round: Round) -> Released:
        """Let the answer to a query out, by the mechanism of the plan's release; the stored one if there is one."""
        with self._one_at_a_time:
            self.unreleased = False
            if self._plan.channel.secure:
                raise LeakError(
                    f"the plan secures its sums, and {query.name!r} would leave alone; nothing was released."
                )
            if isinstance(query, Derived):
                self._permitted(query, round.number, round.rows)
                return Released(query.name, round.number, {"value": self._derived(query, round)}, made_by=GATE)
            if (earlier := self._stored(query, round.number)) is not None:
                return earlier
            release = self._permitted(query, round.number, round.rows)
            self.unreleased = True
            round = round._replace(randomness=self._randomness)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                arrays = self._MECHANISMS[release.mechanism](self, query, release, round)
            if release.dropped:
                half, bits = 1 << (release.dropped - 1), release.dropped  # in units of 2^bits, rounded
                arrays = {name: (grid + half) >> bits for name, grid in arrays.items()}
            return self._store(Released(query.name, round.number, arrays, made_by=GATE), query.unordered, round.memory)

    def behind(self) -> bool:
        """Whether another process of the holder stored a release since this one's memory was made."""
        if self.memory is None or self._account is None:
            return False
        return not self.memory.follows(self._account.last_release(self._plan.digest.hex()))

    def answers(self) -> Counter[str]:
        """How many releases of the plan have left, by query; with a ledger also those from before a restart."""
        return self._answers if self._account is None else self._account.answers(self._plan.digest.hex())

    def _gaussian(self, query: Query, release: Release, round: Round) -> Arrays:
        """The value with noise on every entry; a walk takes its noise number by number.

        A plan with several batches a release has the query say its next round from each released value (`follow`);
        every batch has its own coins and its own noise, as if each were a message of its own.
        """
        if isinstance(query, Walk):
            return self._walk(query, release, round)
        grids: list[NDArray[np.int64]] = []
        noise: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        for rows in self._drawn(release, round):
            if grids:
                following = query.follow(np.asarray(grids[-1] * release.step, dtype=np.float64), round)
                if following is None:
                    raise LeakError(f"query {query.name!r} follows no released value; nothing was released.")
                round = following
            at = round if rows is round.rows else round._replace(rows=rows)
            value = query.value(at)
            if release.std == 0.0:
                return {"value": value}
            if not grids:
                noise = self._noise(release, query.noise_weights, value.size)
            if value.shape != noise[len(grids)].shape:  # one draw would be spread over several numbers
                raise LeakError(f"query {query.name!r} is no vector as long as its noise; nothing was released.")
            grids.append(np.rint(value / release.step).astype(np.int64) + noise[len(grids)])
        return {"grid": grids[0] if len(grids) == 1 else np.concatenate(grids)}

    def _walk(self, query: Walk, release: Release, round: Round) -> Arrays:
        """A sequence of numbers, each a function of the rows and of those released before it.

        The noise of all of them is drawn here, first; `query` adds it to one number after another. A sequence of
        adaptive Gaussian releases costs what one release of all of them costs.
        """
        (rows,) = self._drawn(release, round)
        round = round._replace(rows=rows)
        if release.std == 0.0:
            return {"value": query.walk(round, None, 0.0)}
        noise = rounded_gaussian(release.std / release.step, query.length, self._randomness)
        grid = query.walk(round, noise, release.step)
        if grid.dtype != np.int64 or grid.shape != noise.shape:
            raise LeakError(f"query {query.name!r} made no integers of its noise; nothing was released.")
        return {"grid": grid}

    def _selection(self, query: Choice, release: Release, round: Round) -> Arrays:
        """Which candidate has the largest score + std * Gumbel; the scores are rounded to the grid first."""
        values = query.value(round)
        if release.std == 0.0:
            best = float(largest_signed(*split(query, values)) if query.signed else np.argmax(values))
            return {"value": np.array([best])}
        grid = np.rint(values / release.step)
        grid *= release.step
        signed, stay = split(query, grid)
        chosen = (
            select_signed(signed, 1 / release.std, self._randomness, stay)
            if query.signed
            else select(grid, 1 / release.std, self._randomness)
        )
        return {"grid": np.array([chosen], dtype=np.int64)}

    def _noisy_max(self, query: Choice, release: Release, round: Round) -> Arrays:
        """Which value has, with one of its signs, the largest score + Laplace noise of scale std, both on the grid."""
        values, stay = split(query, query.value(round))
        if release.std == 0.0:
            return {"value": np.array([float(largest_signed(values, stay))])}
        code = noisy_max_signed(values, release.std, release.step, self._randomness, stay)
        return {"grid": np.array([code], dtype=np.int64)}

    _MECHANISMS: Mapping[Mechanism, Callable[..., Arrays]] = {
        "gaussian": _gaussian,
        "selection": _selection,
        "noisy-max": _noisy_max,
    }

    def _derived(self, query: Derived, round: Round) -> NDArray[np.float64]:
        """A function of noisy rows and of public numbers: no noise, no charge, and nothing to store.

        Whoever asks again gets the same function, or another one; neither says more than the noisy rows do.
        """
        source = query.source
        if source.name not in self._rows:
            release = self._permitted(source, None, round.rows)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                rows = self._noisy_rows(source, release, round)
            rows.setflags(write=False)
            self._rows[source.name] = rows
        with np.errstate(all="ignore"):
            return np.array(query.derive(self._rows[source.name], round.told), dtype=np.float64)

    def _noisy_rows(self, query: Query, release: Release, round: Round) -> NDArray[Any]:
        """A row of the value for each record with the noise of the plan, drawn once; without privacy without noise.

        With a ledger their file is durable, and its hash in the ledger, before they are used: a restarted party, and
        another process of the holder, use the same rows or none.
        """
        value = query.value(round).reshape(len(round.rows), -1)
        if release.std == 0.0:
            return value
        if self._account is None:
            return draw_rows(value, release.std, release.step, self._randomness)
        key, found = (self._plan.digest.hex(), 0, query.name), None
        if self.memory is not None:
            digest = self._account.stored(*key, kind="rows")
            if digest is None:
                rows = draw_rows(value, release.std, release.step, self._randomness)
                digest = self._account.release(*key, self.memory.write_rows(rows), kind="rows")
            found = self.memory.read_rows(digest)
        if found is None:
            raise RefusedError(
                "the noisy rows of this run are lost, or of other records than there are now; what was released stays "
                "charged. Start a new fit."
            )
        return found

    def _noise(self, release: Release, weights: NDArray[np.float64] | float, size: int) -> NDArray[np.int64]:
        """A row of noise for each batch, in units of the grid."""
        scale = release.std / release.step / weights
        scales = np.tile(scale, release.batches) if isinstance(scale, np.ndarray) else scale
        drawn = rounded_gaussian(scales, release.batches * size, self._randomness)
        return drawn.reshape(release.batches, size)

    def _drawn(self, release: Release, round: Round) -> Iterator[Block]:
        """The records of each batch: those whose secret coins came up, where the plan samples.

        The coins of all batches are one row of coins: who has coin i in batch k has coin k len(block) + i in the row.
        """
        block = round.rows
        if release.rate is None or release.rate == 1.0:
            yield from itertools.repeat(block, release.batches)
            return
        sample = poisson_sample(release.batches * len(block), release.rate, round.randomness)
        if release.batches == 1:
            yield block.take(sample)
            return
        ends = np.searchsorted(sample, len(block) * np.arange(release.batches + 1))
        for k in range(release.batches):
            yield block.take(sample[ends[k] : ends[k + 1]] - k * len(block))

    def _permitted(self, query: Query, number: int | None, block: Block) -> Release:
        """The release of a query after every check; `number` is None for noisy rows, which have no round."""
        release = self._plan.release(query.name) if self._plan.has(query.name) else None
        in_time = release is not None and (number is None or release.first <= number < release.first + release.count)
        if release is None or not in_time:
            raise RefusedError(f"query {query.name!r} in round {number} is not in the plan; nothing was released.")
        if release.rate is not None and not query.samples:
            raise LeakError(f"query {query.name!r} was charged as one of a sample; nothing was released.")
        if self._plan.most_records is not None and not query.by_person:
            raise LeakError(f"query {query.name!r} is of records and the plan is about people; nothing was released.")
        checked = self._checked.get(query.name) is query
        if (number is None) != (release.mechanism == "kept") or not (
            checked or fits_mechanism(query, release.mechanism)
        ):
            raise LeakError(f"query {query.name!r} was charged as a {release.mechanism}; nothing was released.")
        if not checked:
            if release.std > 0.0:
                release.check(query, self._plan.records)
            self._checked[query.name] = query
        if release.std > 0.0 and block.bits is None:
            raise LeakError("the rows were prepared for a run without privacy; nothing was released.")
        return release

    def _stored(self, query: Query, number: int) -> Released | None:
        if self._account is not None:
            data = self._account.stored(self._plan.digest.hex(), number, query.name)
            return None if data is None else Released(query.name, number, decode(data).arrays, made_by=GATE)
        if query.unordered:
            return self._all.get((query.name, number))
        last = self._last.get(query.name)
        if last is None or number > last.round:
            return None
        if last.round == number:
            return last
        raise RefusedError(f"round {number} is over, and a party without a ledger keeps only its last release.")

    def _store(self, released: Released, unordered: bool, memory: Any) -> Released:
        """Durably, before anybody sees it; first what the holder remembers after it."""
        self._last[released.query] = released
        if self._account is None:
            self._answers[released.query] += 1
            if unordered:
                self._all[released.query, released.round] = released
            self.unreleased = False
            return released
        offered = encode(Frame("answer", 0, self._plan.digest, released.round, released.query, released.arrays, ""))
        if self.memory is not None:
            self.memory.write(self.lasting(memory), (released.round, released.query), offered)
        stored = self._account.release(self._plan.digest.hex(), released.round, released.query, offered)
        self.unreleased = stored != offered
        if self.memory is not None and not self.unreleased:
            self.memory.settle()
        return Released(released.query, released.round, decode(stored).arrays, made_by=GATE)


def fits_mechanism(query: Query, mechanism: Mechanism) -> bool:
    """Whether a query can be released so: choices chosen, rows kept, functions of them derived, all else with noise."""
    if mechanism in ("selection", "noisy-max"):
        return isinstance(query, Choice) and (mechanism == "selection" or query.signed)
    if mechanism in ("kept", "derived"):
        return isinstance(query, NoisyRows if mechanism == "kept" else Derived)
    return not isinstance(query, Choice | NoisyRows | Derived)


def draw_rows(value: NDArray[np.float64], std: float, step: float, randomness: Randomness) -> NDArray[np.float32]:
    """(trunc(value / step) + round(std / step * Z)) * step, entry by entry, clipped to 32 bits.

    Guarantee: rounding toward zero makes no row longer, and two rows differ by at most the sum of their lengths; so a
    row of norm at most b moves the rows by b under zero-out and by 2 b under replace-one, whatever the grid. The
    rounding to float32 comes after the noise. Proof: proofs/noisy_rows.md.
    """
    noise = rounded_gaussian(std / step, value.size, randomness).reshape(value.shape)
    grid = np.clip(np.trunc(value / step).astype(np.int64) + noise, -MOST, MOST).astype(np.int32)
    return np.asarray(grid * step, dtype=np.float32)


def split(query: Choice, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float | None]:
    """The values that have both signs, and the score of staying where the query has one."""
    if query.stays:
        return values[:-1], float(values[-1])
    return values, None


def value_of(arrays: Mapping[str, NDArray[Any]], scale: float) -> NDArray[np.float64]:
    """The number behind a released message: grid times the release's scale, or the plain value without privacy."""
    if "grid" in arrays:
        return np.asarray(arrays["grid"] * scale, dtype=np.float64)
    return np.asarray(arrays["value"], dtype=np.float64)


class Memory:
    """What a solver keeps at a holder between rounds, beside the ledger, so that a run goes on after a restart.

    Each state is a file whose name is the hash of the release that it belongs to. It is written before that release is
    stored, and the one before it is deleted afterwards: whichever release the ledger has last, its state is there. It
    says of which records it is, in which order: a dual that met another record than its own would be of two people.
    Rows with noise, which a run draws once, are a file of their own until the run is over.

    Guarantee: `read` gives the state that was written with a release, for the same records in the same order, or
    nothing; a state whose release was never stored has a name that no release has. Proof: `proofs/gate.md`.
    """

    def __init__(self, ledger: Path, party: str, plan: bytes, records: bytes = b"") -> None:
        self._folder = ledger.with_name(f"{ledger.name}.memory")
        self._party = hashlib.sha256(party.encode()).hexdigest()[:32]
        self._plan = plan.hex()
        self._records = np.frombuffer(records, dtype=np.uint8)
        self._last: Path | None = None  # of the last release that was stored
        self._next: Path | None = None

    def write(self, state: Mapping[str, NDArray[Any]], key: tuple[int, str], release: bytes) -> None:
        """Keep the state after a release that is about to be stored, durably."""
        self._next = self._path(key, release)
        self._write(self._next, state)

    def settle(self) -> None:
        """The release is stored: the state before it is not needed any more."""
        before, self._last, self._next = self._last, self._next, None
        if before is not None and before != self._last:
            _delete(before)

    def read(self, key: tuple[int, str], release: bytes) -> dict[str, NDArray[Any]] | None:
        """The state that belongs to a stored release; None if it is lost, or of other records."""
        path, state = self._path(key, release), None
        with contextlib.suppress(*_UNREADABLE):
            state = self._unpacked(path.read_bytes())
        if state is not None:
            self._last = path
        return state

    def write_rows(self, rows: NDArray[np.float32]) -> bytes:
        """Keep noisy rows for the whole run, durably; the SHA-256 of their file, by which they are read again."""
        return self._write(None, {"rows": rows})

    def read_rows(self, digest: bytes) -> NDArray[np.float32] | None:
        """The noisy rows of a file with that SHA-256; None if it is lost, or of other records."""
        with contextlib.suppress(*_UNREADABLE):
            data = self._file(digest).read_bytes()
            if hashlib.sha256(data).digest() == digest and (found := self._unpacked(data)) is not None:
                return found["rows"]
        return None

    def follows(self, last: tuple[int, str, bytes] | None) -> bool:
        """Whether the state of this process is that after the last release that was stored, by whatever process."""
        return self._last == (None if last is None else self._path(last[:2], last[2]))

    def clear(self, *, own: bool, others: bool) -> None:
        """Delete what this party remembers of this plan, and what it remembers of all others."""
        for path in self._folder.glob(f"{self._party}.*"):
            if own if path.name.startswith(f"{self._party}.{self._plan}.") else others:
                _delete(path)

    def _path(self, key: tuple[int, str], release: bytes) -> Path:
        return self._file(hashlib.sha256(repr(key).encode() + b"\0" + release).digest())

    def _file(self, digest: bytes) -> Path:
        return self._folder / f"{self._party}.{self._plan}.{digest.hex()}"

    def _write(self, path: Path | None, arrays: Mapping[str, NDArray[Any]]) -> bytes:
        """Have a file of arrays, without a path by its SHA-256, which is returned."""
        file = io.BytesIO()
        np.savez(file, **arrays, **{_RECORDS: self._records})  # type: ignore[arg-type]  # of arrays alone
        digest = hashlib.sha256(file.getvalue()).digest()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_durably(path or self._file(digest), file.getvalue(), mode=0o600)
        return digest

    def _unpacked(self, data: bytes) -> dict[str, NDArray[Any]] | None:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        return arrays if np.array_equal(arrays.pop(_RECORDS, np.zeros(1)), self._records) else None


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.error("%s of a run that is over cannot be deleted (%s); delete it.", path, error.strerror)
