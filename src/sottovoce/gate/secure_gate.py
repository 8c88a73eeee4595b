"""The gates of a plan with secure sums, of a party and of a dealer: shares of sums and, by columns, masked elements.

Each label of a mask is registered before anything leaves under it (`UsedLabels`).
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce import systems
from sottovoce.errors import LeakError, LedgerError, RefusedError
from sottovoce.files import write_durably
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.gate import Gate
from sottovoce.gate.outgoing import GATE, Masked, Share
from sottovoce.gate.query import Query, Round, Walk
from sottovoce.privacy.mechanisms import Randomness
from sottovoce.secure.pair_keys import OFFERS, PairKeys
from sottovoce.secure.ring import grid_bits
from sottovoce.secure.streams import Fields, Label, labelled
from sottovoce.secure.sums import Call, ColumnMasker, Masker, Noise, label_of

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.release import Release
    from sottovoce.privacy.ledger import Account

Own = Callable[[], NDArray[np.int64]]  # what a party has by itself of a sum, on its grid
_HASH: Final = 64  # bytes of the hash of a label
_LINE: Final = 2 * _HASH + 2


@dataclass(eq=False)
class UsedLabels:
    """The labels of masks that an end has used in one run, in a file that is there as long as the run lasts.

        a line   SHA-256 of the label, SHA-256 of the envelope that left under it

    Without a path they are in memory. A mask on two messages shows their difference. What a process has in memory goes
    back with it where a machine is set back, copied or forked; the disk that all these lives share does not.

    Guarantee: when `use` returns, the label is on disk with the hash of what may leave under it. Anything else under
    that label is refused, whichever process, fork or copy of the party asks; so is every label once the file is gone.
    """

    path: Path | None = None
    _known: dict[bytes, bytes] = field(default_factory=dict, init=False)  # lines by label, without a path

    def begin(self) -> bool:
        """Have the file; whether it is new. A run that has one was begun by an earlier life, or a copy, of this one."""
        if self.path is None:
            return True
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            write_durably(self.path, b"", mode=0o600, replace=False)
        except FileExistsError as error:
            if not self.path.parent.is_dir():
                raise self._unwritable(error) from None
            return False
        except OSError as error:
            raise self._unwritable(error) from None
        return True

    def end(self) -> None:
        """Nothing is masked in this run any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def use(self, label: str, content: bytes) -> None:
        """Register a label and what is about to leave under it, durably."""
        line = f"{hashlib.sha256(label.encode()).hexdigest()} {hashlib.sha256(content).hexdigest()}\n".encode()
        if self.path is None:
            registered = self._known.setdefault(line[:_HASH], line)
        else:
            registered = self._register(self.path, line)
        if registered != line:
            raise RefusedError("something else was masked under this label, and a mask is used once.")

    def _register(self, path: Path, line: bytes) -> bytes:
        """The line of a label on disk: the one that is there, or this one."""
        try:
            with path.open("r+b", buffering=0) as file:
                systems.lock(file.fileno(), wait=True)
                if not os.fstat(file.fileno()).st_nlink:
                    raise FileNotFoundError
                data = file.read()
                whole = len(data) - len(data) % _LINE  # a line that was torn was not synced: nothing left under it
                for start in range(0, whole, _LINE):
                    if data.startswith(line[:_HASH], start):
                        return data[start : start + _LINE]
                file.truncate(whole)
                file.seek(whole)
                if file.write(line) < _LINE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except FileNotFoundError:
            raise RefusedError("the run of this plan is over, and nothing is masked in it any more.") from None
        except OSError as error:
            raise self._unwritable(error) from None
        return line

    def _unwritable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{self.path}: used labels cannot be registered ({error.strerror}), and nothing is masked without it. See "
            "that the disk has room, and that this user may write beside the ledger."
        )


class SecureGate(Gate):
    """A gate through which nothing leaves alone: `share` is one part of a sum, `masked` is for other parties.

    Guarantee: what leaves looks uniform to whoever lacks the keys of the others. A label has one content: asked again,
    alike, the same bytes leave. Proof: `secure/proofs`.
    """

    def __init__(self, plan: Plan, randomness: Randomness, account: Account | None, masker: Masker) -> None:
        super().__init__(plan, masker.noise(randomness), account)
        self._masker = masker
        self._shares: dict[str, Share] = {}  # the last of each query, without a ledger
        self.used = UsedLabels()  # of masks: each has one content; beside a ledger on disk
        self._group: Masked | None = None
        self._again = 0  # shares of sums that were asked before, of more parties
        self._counted: set[tuple[int, str]] = set()  # shares in the ledger whose rosters are kept, and attempts counted

    def masked(self, name: str, label: Label, make: Callable[[], Fields]) -> tuple[Masked, Fields]:
        """What the other parties may read of this party's numbers, masked and in an envelope; and the masked numbers.

        Guarantee: a mask has one content. Made again it is the same envelope; anything else is refused. With a ledger
        that holds over all restarts, copies and forks of the party: what may leave under a label is on disk before it
        does.
        `make` gives the numbers, and nobody sees them before the mask is off. The last entry of the label is the hash
        of what was told so far: by other numbers there is another mask, and all the same one envelope leaves for a
        round and its records.
        """
        with self._one_at_a_time:
            masker = self._column_masker(name)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                masked = masker.masked(label, make())
            return self._enveloped(name, label, masked, masker), masked

    def added(self, name: str, label: Label, masked: Fields) -> Masked:
        """The sum of masked numbers of all parties, in an envelope for them: it tells what they tell; one content."""
        with self._one_at_a_time:
            return self._enveloped(name, label, masked, self._column_masker(name))

    def _column_masker(self, name: str) -> ColumnMasker:
        unregistered = self._account is not None and self.used.path is None
        if not isinstance(self._masker, ColumnMasker) or not self._masker.group or unregistered:
            raise LeakError(f"{name!r} has no key to leave under; nothing was released.")
        return self._masker

    def _enveloped(self, name: str, label: Label, masked: Fields, masker: ColumnMasker) -> Masked:
        envelope = masker.enveloped(label, masked)
        self.used.use(json.dumps([name, *label[:-1]]), envelope.tobytes())
        return Masked(name, {"envelope": envelope}, made_by=GATE)

    def group(self) -> Masked:
        """The key of the parties' envelopes, in an envelope for each of them."""
        if not isinstance(self._masker, ColumnMasker) or not self._masker.holder:
            raise RefusedError("the holder of the labels makes the key of the parties, and nobody else.")
        if self._group is None:
            self._group = Masked("group", self._masker.group_envelopes(), made_by=GATE)
        return self._group

    def roots(self, label: Label, roots: NDArray[np.int64]) -> Masked:
        """The roots of the weights of records, in an envelope for the other parties alone.

        Guarantee: they follow from whose each record is and from no cell, so they are the same for neighbours; a holder
        tells them by `Policy.tell_records`.
        """
        with self._one_at_a_time:
            return self._enveloped("roots", label, (roots.astype(np.int16),), self._column_masker("roots"))

    def share(
        self, query: Query, round: Round, call: Call, product: Callable[[Own], NDArray[np.int64]] | None = None
    ) -> Share:
        """A part of a secure sum: the exact value, its share of the noise, and the masks of the roster.

        Guarantee: what leaves looks uniform without the shares of all others in the roster; their sum is the Gaussian
        mechanism with the plan's noise or more against every adversary that the plan declares (`secure/proofs`). Each
        (query, round, attempt) is answered once: asked again, alike, the same bytes leave and nothing is drawn; asked
        for another roster or with other numbers it is refused. Attempts beyond the first are those that were reserved.
        """
        with self._one_at_a_time:
            self.unreleased = False
            if not self._plan.channel.secure:
                raise LeakError(f"the plan secures no sums, and {query.name!r} is asked as one; nothing was released.")
            if not set(query.takes_at(round.number)) <= set(call.said):
                raise RefusedError(f"query {query.name!r} in round {round.number} is asked with all that it takes.")
            label = label_of(query.name, round.number, call, query.follows_from(round.told, round.memory))
            name = f"{query.name} (attempt {call.attempt + 1})" if call.attempt else query.name  # by which it is stored
            earlier = self._stored_share(query.name, round.number, name)
            if earlier is not None:
                if earlier.text != json.dumps(label):
                    raise RefusedError(
                        f"query {query.name!r} in round {round.number} was answered for another roster, or told other "
                        "numbers; a share leaves once."
                    )
                return earlier
            release = self._permitted(query, round.number, round.rows)
            self._check_call(query.name, round.number, call)
            self.unreleased = True
            drawn = labelled(self._randomness, label)
            round = round._replace(randomness=drawn)
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                values = (
                    self._whole_numbers(query, release, round)
                    if product is None
                    else self._product(query, release, round, product)
                )
                words = self._masker.masked_share(values, noise_of(query, self._plan), label, drawn)
            share = Share(query.name, round.number, {"share": words}, json.dumps(label), made_by=GATE)
            return self._store_share(share, name, call)

    def _product(
        self, query: Query, release: Release, round: Round, product: Callable[[Own], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """A share of a sum over columns: `product` makes it, of what a party has by itself or of what it was sent."""
        if release.std == 0.0 or release.mechanism != "gaussian" or not self._plan.secure_columns:
            raise LeakError(f"query {query.name!r} is no sum over columns with noise; nothing was released.")
        if query.joint_step(grid_bits(self._plan)) not in (None, release.step):
            raise LeakError(f"query {query.name!r} has another grid than its noise; nothing was released.")
        values = product(functools.partial(self._whole_numbers, query, release, round))
        if values.shape != (query.length,) or values.dtype != np.int64:
            raise LeakError(f"query {query.name!r} is no vector as long as its noise; nothing was released.")
        return values

    def _whole_numbers(self, query: Query, release: Release, round: Round) -> NDArray[np.int64]:
        """The exact value on the grid of the release: what noise is added to."""
        if release.std == 0.0 or release.mechanism != "gaussian" or query.world_sees != "sum":
            raise LeakError(f"query {query.name!r} is no sum with noise, and cannot be secure; nothing was released.")
        (rows,) = self._drawn(release, round)
        round = round._replace(rows=rows)
        if isinstance(query, Walk):
            values: NDArray[Any] = query.walk(round, np.zeros(query.length, dtype=np.int64), release.step)
        else:
            values = np.rint(query.value(round) / release.step)
        if values.shape != (query.length,):
            raise LeakError(f"query {query.name!r} is no vector as long as its noise; nothing was released.")
        return values.astype(np.int64)

    def _check_call(self, query: str, number: int, call: Call) -> None:
        """Refuse a roster that has grown again, an earlier attempt, and more shares again than were reserved.

        First, after a restart or by another process of the holder: the rosters that were answered, and retries.
        """
        if self._account is not None:
            plan = self._plan.digest.hex()
            for answered in self._account.released(plan):
                data = None if answered in self._counted else self._account.stored(plan, *answered)
                if data is not None:
                    frame = decode(data)
                    self._masker.roster &= frozenset(json.loads(frame.text)[4])
                    self._again += answered[1] != frame.query
                    self._counted.add(answered)
        self._masker.check(call)
        retries = self._plan.channel.retries
        if call.attempt > retries or (call.attempt and self._again >= retries):
            raise RefusedError(f"the plan has {retries} retries for sums without a party, and they are used up.")
        for later in range(call.attempt + 1, retries + 1):
            if self._stored_share(query, number, f"{query} (attempt {later + 1})") is not None:
                raise RefusedError(f"query {query!r} in round {number} was answered in a later attempt.")

    def _stored_share(self, query: str, number: int, name: str) -> Share | None:
        if self._account is None:
            last = self._shares.get(name)
            if last is None or number > last.round:
                return None
            if last.round == number:
                return last
            raise RefusedError(f"round {number} is over, and a party without a ledger keeps only its last release.")
        data = self._account.stored(self._plan.digest.hex(), number, name)
        if data is None:
            return None
        frame = decode(data)
        return Share(query, number, {"share": np.array(frame.arrays["share"])}, frame.text, made_by=GATE)

    def _store_share(self, share: Share, name: str, call: Call) -> Share:
        """Durably, before anybody sees it; the roster is kept with it."""
        if self._account is None:
            self._shares[name] = share
            self._answers[share.query] += 1
        else:
            frame = Frame("answer", 0, self._plan.digest, share.round, share.query, dict(share.arrays), share.text)
            offered = encode(frame)
            stored = self._account.release(self._plan.digest.hex(), share.round, name, offered)
            if stored != offered:  # another process was first
                raise RefusedError(f"query {share.query!r} in round {share.round} was answered by another process.")
        self.unreleased = False
        self._again += call.attempt > 0
        self._counted.add((share.round, name))
        self._masker.roster &= frozenset(call.roster)
        return share


class DealingGate:
    """The gate of a dealer for one plan: noise for sums of others, and random numbers for single parties.

    Nothing that leaves depends on data. But each is one half of something that must be used once: noise that was drawn
    again would average out, and an envelope made again would show the difference of two.

    Guarantee: a label has one content. Asked again, alike, the same bytes leave; asked by other numbers it is refused,
    by what `used` has.
    """

    def __init__(self, plan: Plan, randomness: Randomness, used: UsedLabels) -> None:
        self._plan, self._randomness, self._used = plan, randomness, used
        self._last: Share | None = None

    def top_up(self, query: Query, number: int, call: Call, told: Mapping[str, NDArray[Any]], masker: Masker) -> Share:
        """The dealer's part of a secure sum by rows: no value, the top-up, and the masks of the roster."""
        label = label_of(query.name, number, call, query.follows_from(told, {}))  # it is told all, each time
        text = json.dumps(label)
        if self._last is not None and self._last.text == text:
            return self._last
        masker.check(call)
        if not set(query.takes_at(number)) <= set(call.said):
            raise RefusedError(f"query {query.name!r} in round {number} is asked with all that it takes.")
        retries = self._plan.channel.retries
        if call.attempt > retries:
            raise RefusedError(f"the plan has {retries} retries for sums without a party, and no more.")
        noise, nothing = noise_of(query, self._plan), np.zeros(query.length, dtype=np.int64)
        words = masker.masked_share(nothing, noise, label, labelled(masker.noise(self._randomness), label))
        masker.roster &= frozenset(call.roster)
        share = Share(query.name, number, {"share": words}, text, made_by=GATE)
        self._used.use(json.dumps(["sum", query.name, number, call.attempt]), words.tobytes())
        self._last = share
        return share

    def dealt(self, envelopes: Mapping[str, NDArray[np.int64]]) -> Masked:
        """What is dealt by columns, in envelopes for single parties: `LocalDeals` gives each one content."""
        return Masked("dealt", envelopes, made_by=GATE)


def noise_of(query: Query, plan: Plan) -> Noise:
    """What a secure sum of a query is released with."""
    return Noise(plan.release(query.name), query.noise_weights)


def offered(pairs: PairKeys, publics: NDArray[Any] | None) -> Masked:
    """The offers of keys of one end to all later ones of its run."""
    return Masked("offers", {OFFERS: pairs.offers(publics)}, made_by=GATE)
