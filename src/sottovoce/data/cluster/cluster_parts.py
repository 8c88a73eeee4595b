"""Prepared rows at the workers of a cluster: a round is one message to each worker, and a sum comes back."""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sottovoce.data.block import Block
from sottovoce.data.block_parts import Found, Integers, Parts, Work, empty
from sottovoce.data.cluster import worker
from sottovoce.data.cluster.collections import task
from sottovoce.data.cluster.connection import Clock, Cluster
from sottovoce.data.cluster.worker import WorkerMessage, WorkerReply, pack_work
from sottovoce.data.dataset import Dataset
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import NO_RESOURCES, Resources
from sottovoce.errors import InputError, SottovoceError, WireError

PAUSE = 0.02  # seconds in which a scheduler learns that a worker is gone


class PartsOnCluster(Parts):
    """Rows that workers hold, a part of them each; the scheduler knows how to prepare them again.

    Guarantee: sums are those of the same rows in one place, bit for bit, for any number of workers and sources, also if
    workers die: their rows are prepared again from the sources, must be the same to the last bit, and are asked again.
    Edges: without workers, sources or a scheduler nothing comes back, and an error says so.
    """

    def __init__(self, about: Block, cluster: Cluster, held: Sequence[Any]) -> None:
        self._cluster, self._held = cluster, list(held)
        self._where: list[str] = []
        self._digests: list[bytes] | None = None
        self._told: set[str] = set()  # names of views that all workers have
        places = range(len(self._held))
        known = dict(self._asked(places, lambda own, _: WorkerMessage(self._keys(own))))
        facts = {place: fact for own, found in known.items() for place, fact in zip(own, found, strict=True)}
        self._digests = [facts[place][1] for place in places]
        sizes = [facts[place][0] for place in places]
        self._ends = list(itertools.accumulate(map(len, sizes), initial=0))
        super().__init__(about, list(itertools.chain.from_iterable(sizes)))

    def digest(self) -> bytes:
        """Of what the workers said of the rows of each source, when they had prepared them."""
        return hashlib.blake2b(b"".join(self._digests or ()), digest_size=32).digest()

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """In the order of the sources, once all workers have answered."""
        found = dict[int, list[Found]]()
        for own, lists in self._worked(work, chosen, summed=False):
            found.update(zip(own, lists, strict=True))
        for place in range(len(self._held)):
            yield from found[place]

    def summed(self, work: Work[Any], chosen: Sequence[Integers] | None = None) -> Any:
        """The sum of the workers' own sums; of rows on no grid, where the order matters, part by part."""
        if self.bits is None:
            return super().summed(work, chosen)
        return sum((total for _, total in self._worked(work, chosen, summed=True)), start=0.0)

    def _worked(
        self, work: Work[Any], chosen: Sequence[Integers] | None, *, summed: bool
    ) -> list[tuple[tuple[int, ...], Any]]:
        """What the workers make of it, and of which sources."""
        by_name, names = pack_work(work, whole=False)
        in_full = functools.cache(lambda: pack_work(work, whole=True)[0])
        new = not names <= self._told

        def message(own: Sequence[int], whole: bool) -> WorkerMessage:
            rows = None
            if chosen is not None:
                rows = [list(chosen[self._ends[place] : self._ends[place + 1]]) for place in own]
            digests = [self._digests[place] for place in own] if self._digests else None
            told = in_full() if whole or new else by_name
            return WorkerMessage(self._keys(own), told, digests, rows, summed)

        asked = [place for place in range(len(self._held)) if not summed or self._has(place, chosen)]
        found = self._asked(asked, message)
        self._told = names if new else self._told
        return found

    def _has(self, place: int, chosen: Sequence[Integers] | None) -> bool:
        """Whether a source has rows of a batch; the first one is asked also for an empty batch, with the sum 0."""
        first, last = self._ends[place], self._ends[place + 1]
        return first < last and (first == 0 or chosen is None or any(map(len, chosen[first:last])))

    def _asked(
        self, places: Sequence[int], message: Callable[[Sequence[int], bool], WorkerMessage]
    ) -> list[tuple[tuple[int, ...], Any]]:
        """Ask for sources until all have an answer: each worker once, and again for what a dead one had."""
        left, found, whole = list(places), list[tuple[tuple[int, ...], Any]](), set[str]()
        clock = Clock(self._cluster)
        while left:
            if not self._where:
                self._where = self._cluster.where(self._held)
            groups: dict[str, list[int]] = {}
            for place in left:
                groups.setdefault(self._where[place], []).append(place)
            messages = {address: message(own, address in whole) for address, own in groups.items()}
            replies = self._cluster.send(messages, worker.answer_message)
            answered = set[int]()
            for address, own in groups.items():
                reply = _check_reply(replies[address])
                if reply.kind == "answer":
                    found.append((tuple(own), reply.value))
                    answered.update(own)
                elif reply.kind == "view":
                    whole.add(address)
                else:
                    self._where = []
            left = [place for place in left if place not in answered]
            if left and not self._where:
                time.sleep(PAUSE)
            clock.check(len(found))
        return found

    def _keys(self, places: Sequence[int]) -> list[str]:
        return [self._held[place].key for place in places]


def on_cluster(data: Dataset, recipe: Preparation, resources: Resources = NO_RESOURCES) -> PartsOnCluster:
    """The rows of a data set by the recipe, prepared at the workers of its cluster."""
    from joblib.parallel import get_active_backend

    cluster, records = data.cluster, data.shape[0]
    if cluster is None:
        raise InputError("the data set is on no cluster.")
    jobs = get_active_backend()[1] if resources.n_jobs is None else resources.n_jobs  # the threads of each worker
    make = functools.partial(worker.prepared, worker.Recipe(recipe, records, None if jobs is None else int(jobs)))
    held = cluster.compute([task(make, source) for source in data.sources])
    made = PartsOnCluster(empty(recipe, records, resources), cluster, held)
    data._check_unchanged()
    if len(made) != records:
        raise InputError(
            f"the data set had {records} records when it was counted, and has {len(made)} now; make it anew."
        )
    return made


def _check_reply(reply: WorkerReply | None) -> WorkerReply:
    """A reply; what a worker found wrong is raised."""
    if reply is None:
        return WorkerReply("gone")
    if reply.kind == "changed":
        raise InputError(
            "a source was read again, since the worker that had it is gone, and its rows are not what they were. A "
            "source must give the same rows each time. What was charged stays charged; fit again."
        )
    if reply.kind != "fault":
        return reply
    if isinstance(reply.value, SottovoceError):
        raise reply.value
    raise WireError(f"a worker of the cluster failed ({reply.value}); its own log has the reason.")
