"""The one door of a party: what was charged for gets its noise and becomes `Released`; a wire takes nothing else."""

from __future__ import annotations

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.door.frames import Frame, decode, encode
from sottovoce.door.noisy_rows import draw
from sottovoce.door.outgoing import SEAL, Kept, Masked, Released, Share
from sottovoce.door.query import Choice, Derived, NoisyRows, Query, Round, Told, Walk
from sottovoce.errors import LeakError, RefusedError
from sottovoce.privacy.mechanisms import (
    largest_signed,
    noisy_max_signed,
    poisson_sample,
    rounded_gaussian,
    select,
    select_signed,
)
from sottovoce.privacy.randomness import Randomness
from sottovoce.sealed.streams import Label
from sottovoce.sealed.sums import Call, ColumnSealer, Noise, Sealer, label_of

if TYPE_CHECKING:
    from sottovoce.data.block import Block
    from sottovoce.door.noisy_rows import Keeper
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.release import Mechanism, Release
    from sottovoce.privacy.ledger import Account

Arrays = dict[str, NDArray[Any]]
Own = Callable[[], NDArray[np.int64]]  # what a party has by itself of a sum, on its grid


class Gate:
    """The door of one party for one plan. There is one way through it: `release`, or `share` where sums are sealed.

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

    def __init__(
        self,
        plan: Plan,
        randomness: Randomness,
        account: Account | None = None,
        keeper: Keeper | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self._plan = plan.digest
        self._problem = plan
        self._sealer = sealer
        self._sealed = plan.sealing is not None
        self._releases: Mapping[str, Release] = {release.query: release for release in plan.releases}
        self._records = plan.records
        self._randomness = randomness
        self._account = account
        self._keeper = keeper
        self._kept: dict[str, Kept] = {}
        self._checked: dict[str, Query] = {}  # queries are frozen: one check holds for all rounds
        self._last: dict[str, Released] = {}
        self._all: dict[tuple[str, int], Released] = {}  # of unordered queries, without a ledger
        self._answers: Counter[str] = Counter()  # releases by query, without a ledger
        self.unreleased = False  # whether the last release failed on its way, or another process was first
        self._one_at_a_time = threading.Lock()
        self._shares: dict[str, Share] = {}  # the last of each query, without a ledger
        self._labels: set[str] = set()  # of masks: each is used once
        self._masked: dict[str, tuple[str, str, Masked, NDArray[Any]]] = {}  # the last of each name
        self._group: Masked | None = None
        self._again = 0  # shares of sums that were asked before, of more parties
        if sealer is not None and account is not None:
            self._recall(sealer, account)

    def release(self, query: Query, round: Round) -> Released:
        """Let the answer to a query out, by the mechanism of the plan's release; the stored one if there is one."""
        with self._one_at_a_time:
            self.unreleased = False
            if self._sealed:
                raise LeakError(f"the plan seals its sums, and {query.name!r} would leave alone; nothing was released.")
            if not isinstance(query, Derived):
                earlier = self._stored(query, round.number)
                if earlier is not None:
                    return earlier
            release = self._permitted(query, round.number, round.rows)
            if isinstance(query, Derived):
                return Released(query.name, round.number, {"value": self._derived(query, round)}, seal=SEAL)
            self.unreleased = True
            round = round._replace(randomness=self._randomness)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                arrays = self._MECHANISMS[release.mechanism](self, query, release, round)
            if release.dropped:
                arrays = {name: _without_low_bits(grid, release.dropped) for name, grid in arrays.items()}
            return self._store(Released(query.name, round.number, arrays, seal=SEAL), query.unordered)

    def masked(
        self, name: str, label: Label, told: str, make: Callable[[], NDArray[Any]]
    ) -> tuple[Masked, NDArray[Any]]:
        """What the other parties may read of this party's words: less a pad, and in a box. And the padded words.

        Guarantee: a pad is used once. Asked again alike, the same box leaves; by other numbers it is refused. `make`
        gives the words, and nobody sees them before the pad is off. `told` is the hash of what was asked.
        """
        with self._one_at_a_time:
            sealer = self._sealer
            if not isinstance(sealer, ColumnSealer) or not sealer.group:
                raise LeakError(f"{name!r} has no key to leave under; nothing was released.")
            asked = json.dumps([name, *label])
            known = self._masked.get(name)
            if known is not None and known[0] == asked:
                if known[1] != told:
                    raise RefusedError(f"{name!r} was masked for other numbers, and a mask is used once.")
                return known[2], known[3]
            if asked in self._labels:
                raise RefusedError(f"{name!r} was masked before, and a mask is used once.")
            self._labels.add(asked)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                padded, box = sealer.masked(label, make())
            found = Masked(name, {"boxed": box}, seal=SEAL)
            self._masked[name] = asked, told, found, padded
            return found, padded

    def group(self) -> Masked:
        """The key of the parties' boxes, in a box for each of them."""
        if not isinstance(self._sealer, ColumnSealer) or not self._sealer.holder:
            raise RefusedError("the holder of the labels makes the key of the parties, and nobody else.")
        if self._group is None:
            self._group = Masked("group", self._sealer.group_boxes(), seal=SEAL)
        return self._group

    def share(
        self, query: Query, round: Round, call: Call, product: Callable[[Own], NDArray[np.int64]] | None = None
    ) -> Share:
        """A part of a sealed sum: the exact value, its share of the noise, and the masks of the roster.

        Guarantee: what leaves looks uniform without the shares of all others in the roster; their sum is the Gaussian
        mechanism with the plan's noise or more against every adversary that the plan declares (`sealed/proofs`). Each
        (query, round, attempt) is answered once: asked again, alike, the same bytes leave and nothing is drawn; asked
        for another roster or with other numbers it is refused. Attempts beyond the first are those that were reserved.
        """
        with self._one_at_a_time:
            self.unreleased = False
            sealer = self._sealer
            if sealer is None:
                raise LeakError(f"the plan seals no sums, and {query.name!r} is asked as one; nothing was released.")
            if not set(query.takes(self._problem, round.number)) <= set(call.said):
                raise RefusedError(f"query {query.name!r} in round {round.number} is asked with all that it takes.")
            label = label_of(query.name, round.number, call, round.told)
            earlier = self._stored_share(query.name, round.number, call.attempt)
            if earlier is not None:
                if earlier.text != json.dumps(label):
                    raise RefusedError(
                        f"query {query.name!r} in round {round.number} was answered for another roster, or told other "
                        "numbers; a share leaves once."
                    )
                return earlier
            release = self._permitted(query, round.number, round.rows)
            sealer.check(call)
            self._check_attempt(query.name, round.number, call.attempt)
            self.unreleased = True
            round = round._replace(randomness=self._randomness)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                values = (
                    self._whole_numbers(query, release, round)
                    if product is None
                    else self._product(query, release, round, product)
                )
                words = sealer.sealed(values, noise_of(query, self._problem, round.told), label, self._randomness)
            share = Share(query.name, round.number, words, json.dumps(label), seal=SEAL)
            return self._store_share(share, sealer, call)

    def _product(
        self, query: Query, release: Release, round: Round, product: Callable[[Own], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """A share of a sum over columns: `product` makes it, of what a party has by itself or of what it was sent."""
        if release.std == 0.0 or release.mechanism != "gaussian" or self._problem.split != "columns":
            raise LeakError(f"query {query.name!r} is no sum over columns with noise; nothing was released.")
        if query.joint_step(self._problem.preparation.bits) not in (None, release.step):
            raise LeakError(f"query {query.name!r} has another grid than its noise; nothing was released.")
        values = product(functools.partial(self._whole_numbers, query, release, round))
        if values.shape != (query.length,) or values.dtype != np.int64:
            raise LeakError(f"query {query.name!r} is no vector as long as its noise; nothing was released.")
        return values

    def _whole_numbers(self, query: Query, release: Release, round: Round) -> NDArray[np.int64]:
        """The exact value on the grid of the release: what noise is added to."""
        if release.std == 0.0 or release.mechanism != "gaussian" or query.world_sees != "sum":
            raise LeakError(f"query {query.name!r} is no sum with noise, and cannot be sealed; nothing was released.")
        (rows,) = self._drawn(release, round.rows)
        round = round._replace(rows=rows)
        if isinstance(query, Walk):
            values: NDArray[Any] = query.walk(round, np.zeros(query.length, dtype=np.int64), release.step)
        else:
            values = np.rint(query.value(round) / release.step)
        if values.shape != (query.length,):
            raise LeakError(f"query {query.name!r} is no vector as long as its noise; nothing was released.")
        return values.astype(np.int64)

    def _check_attempt(self, query: str, number: int, attempt: int) -> None:
        """Refuse to go back to an earlier attempt, and to give more shares again than were reserved."""
        spare = 0 if self._problem.sealing is None else self._problem.sealing.spare
        if attempt > spare or (attempt and self._again >= spare):
            raise RefusedError(f"the plan has {spare} spare releases for sums without a party, and they are used up.")
        if any(self._stored_share(query, number, later) for later in range(attempt + 1, spare + 1)):
            raise RefusedError(f"query {query!r} in round {number} was answered in a later attempt.")

    def _stored_share(self, query: str, number: int, attempt: int) -> Share | None:
        name = _attempt_name(query, attempt)
        if self._account is None:
            last = self._shares.get(name)
            if last is None or number > last.round:
                return None
            if last.round == number:
                return last
            raise RefusedError(f"round {number} is over, and a party without a ledger keeps only its last release.")
        data = self._account.stored(self._plan.hex(), number, name)
        if data is None:
            return None
        frame = decode(data)
        return Share(query, number, np.array(frame.arrays["sealed"]), frame.text, seal=SEAL)

    def _store_share(self, share: Share, sealer: Sealer, call: Call) -> Share:
        """Durably, before anybody sees it; the roster is kept with it."""
        name = _attempt_name(share.query, call.attempt)
        if self._account is None:
            self._shares[name] = share
            self._answers[share.query] += 1
        else:
            frame = Frame("answer", 0, self._plan, share.round, share.query, dict(share.arrays), share.text)
            offered = encode(frame)
            stored = self._account.release(self._plan.hex(), share.round, name, offered)
            if stored != offered:  # another process was first
                raise RefusedError(f"query {share.query!r} in round {share.round} was answered by another process.")
        self.unreleased = False
        self._again += call.attempt > 0
        sealer.keep(call.roster)
        return share

    def _recall(self, sealer: Sealer, account: Account) -> None:
        """After a restart: the rosters that were answered, and how many of the spare releases."""
        for number, name in account.released(self._plan.hex()):
            data = account.stored(self._plan.hex(), number, name)
            if data is not None:
                sealer.keep(json.loads(decode(data).text)[4])
                self._again += name != decode(data).query

    def answers(self) -> Counter[str]:
        """How many releases of the plan have left, by query; with a ledger also those from before a restart."""
        return self._answers if self._account is None else self._account.answers(self._plan.hex())

    def _gaussian(self, query: Query, release: Release, round: Round) -> Arrays:
        """The value with noise on every entry; a walk takes its noise number by number.

        A plan with several batches a release has the query say its next round from each released value (`follow`);
        every batch has its own coins and its own noise, as if each were a message of its own.
        """
        if isinstance(query, Walk):
            return self._walk(query, release, round)
        grids: list[NDArray[np.int64]] = []
        noise: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        for rows in self._drawn(release, round.rows):
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
        (rows,) = self._drawn(release, round.rows)
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
        """A function of kept rows and of public numbers: no noise, no charge, and nothing to store.

        Whoever asks again gets the same function, or another one; neither says more than the kept rows do.
        """
        rows = self._kept_rows(query.source, round).rows
        with np.errstate(all="ignore"):
            return np.array(query.derive(rows, round.told), dtype=np.float64)

    def _kept_rows(self, query: Query, round: Round) -> Kept:
        """The rows of `query` (a row of the value for each record) with the noise of the plan: drawn once, then kept.

        With a keeper they are those of earlier runs wherever these may be used again. Values are rounded toward zero
        on the grid, which makes no row longer. Without privacy they are the rows as they are.
        """
        if query.name in self._kept:
            return self._kept[query.name]
        release = self._permitted(query, None, round.rows)
        with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
            rows: NDArray[Any]
            value = query.value(round).reshape(len(round.rows), -1)
            if release.std == 0.0:
                rows = value
            elif self._keeper is not None:
                rows = self._keeper.take(query, release, value, self._randomness)
            else:
                rows = draw(value, release.std, release.step, self._randomness).values()
        self._kept[query.name] = Kept(rows, seal=SEAL)
        return self._kept[query.name]

    def _noise(self, release: Release, weights: NDArray[np.float64] | float, size: int) -> NDArray[np.int64]:
        """A row of noise for each batch, in units of the grid."""
        scale = release.std / release.step / weights
        scales = np.tile(scale, release.batches) if isinstance(scale, np.ndarray) else scale
        drawn = rounded_gaussian(scales, release.batches * size, self._randomness)
        return drawn.reshape(release.batches, size)

    def _drawn(self, release: Release, block: Block) -> Iterator[Block]:
        """The records of each batch: those whose secret coins came up, where the plan samples.

        The coins of all batches are one row of coins: who has coin i in batch k has coin k len(block) + i in the row.
        """
        if release.rate is None or release.rate == 1.0:
            yield from (block for _ in range(release.batches))
            return
        sample = poisson_sample(release.batches * len(block), release.rate, self._randomness)
        if release.batches == 1:
            yield block.take(sample)
            return
        ends = np.searchsorted(sample, len(block) * np.arange(release.batches + 1))
        for k in range(release.batches):
            yield block.take(sample[ends[k] : ends[k + 1]] - k * len(block))

    def _permitted(self, query: Query, number: int | None, block: Block) -> Release:
        """The release of a query after every check; `number` is None for rows that are kept, which have no round."""
        release = self._releases.get(query.name)
        in_time = release is not None and (number is None or release.first <= number < release.first + release.count)
        if release is None or not in_time:
            raise RefusedError(f"query {query.name!r} in round {number} is not in the plan; nothing was released.")
        if release.rate is not None and not query.samples:
            raise LeakError(f"query {query.name!r} was charged as one of a sample; nothing was released.")
        checked = self._checked.get(query.name) is query
        if (number is None) != (release.mechanism == "kept") or not (checked or fits(query, release.mechanism)):
            raise LeakError(f"query {query.name!r} was charged as a {release.mechanism}; nothing was released.")
        if not checked:
            if release.std > 0.0:
                release.check(query, self._records)
            self._checked[query.name] = query
        if release.std > 0.0 and block.bits is None:
            raise LeakError("the rows were prepared for a run without privacy; nothing was released.")
        return release

    def _stored(self, query: Query, number: int) -> Released | None:
        if self._account is not None:
            data = self._account.stored(self._plan.hex(), number, query.name)
            return None if data is None else Released(query.name, number, decode(data).arrays, seal=SEAL)
        if query.unordered:
            return self._all.get((query.name, number))
        last = self._last.get(query.name)
        if last is None or number > last.round:
            return None
        if last.round == number:
            return last
        raise RefusedError(f"round {number} is over, and a party without a ledger keeps only its last release.")

    def _store(self, released: Released, unordered: bool) -> Released:
        """Durably, before anybody sees it."""
        self._last[released.query] = released
        if self._account is None:
            self._answers[released.query] += 1
            if unordered:
                self._all[released.query, released.round] = released
            self.unreleased = False
            return released
        offered = encode(Frame("answer", 0, self._plan, released.round, released.query, released.arrays, ""))
        stored = self._account.release(self._plan.hex(), released.round, released.query, offered)
        self.unreleased = stored != offered
        return Released(released.query, released.round, decode(stored).arrays, seal=SEAL)


def fits(query: Query, mechanism: Mechanism) -> bool:
    """Whether a query can be released so: choices chosen, rows kept, functions of them derived, all else with noise."""
    if mechanism in ("selection", "noisy-max"):
        return isinstance(query, Choice) and (mechanism == "selection" or query.signed)
    if mechanism in ("kept", "derived"):
        return isinstance(query, NoisyRows if mechanism == "kept" else Derived)
    return not isinstance(query, Choice | NoisyRows | Derived)


def split(query: Choice, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float | None]:
    """The values that have both signs, and the score of staying where the query has one."""
    if query.stays:
        return values[:-1], float(values[-1])
    return values, None


def noise_of(query: Query, plan: Plan, told: Told) -> Noise:
    """What a sealed sum of a query is released with."""
    return Noise(plan.release(query.name), query.noise_weights, query.known_part(plan, told))


def _attempt_name(query: str, attempt: int) -> str:
    """The name under which a share is stored: a query's own for the first attempt."""
    return f"{query} (attempt {attempt + 1})" if attempt else query


def _without_low_bits(grid: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Noisy whole numbers in units of 2^bits, rounded."""
    return (grid + (1 << (bits - 1))) >> bits


def value_of(arrays: Mapping[str, NDArray[Any]], scale: float) -> NDArray[np.float64]:
    """The number behind a released message: grid times the release's scale, or the plain value without privacy."""
    if "grid" in arrays:
        return np.asarray(arrays["grid"] * scale, dtype=np.float64)
    return np.asarray(arrays["value"], dtype=np.float64)
