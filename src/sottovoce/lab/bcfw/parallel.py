"""AP-BCFW: block oracles computed by threads on replicated data, applied tau at a time (Wang et al. 2016)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import InputError
from sottovoce.lab.bcfw.objectives import Blocks, Gradients, Objective
from sottovoce.lab.bcfw.samplings import Nice, check_whole
from sottovoce.lab.bcfw.solve import BlockSolution, check_step, duality_gap, make_trace
from sottovoce.penalties import ConstraintSet

Vector = NDArray[np.float64]

PATIENCE = 0.05  # seconds after which a waiting thread looks whether the run is over


@dataclass(frozen=True)
class ParallelSolution(BlockSolution):
    """A solution with what happened on the way: delays are in rounds, from reading x to being applied."""

    mean_delay: float
    largest_delay: int
    replaced: int
    discarded: int


class _Answer(NamedTuple):
    block: int
    vertex: Vector
    version: int


def parallel_step(blocks: int, tau: int) -> Callable[[int], float]:
    """min(1, 2 d tau / (tau^2 k + 2 d)) for d blocks.

    The formula of Wang et al. (2016), clipped at 1: it begins at tau, and a step above 1 leaves the feasible set. With
    the cut, their bound 2 d (f(x_0) - min f + d C) / (tau^2 k + 2 d) does not hold in the first 2 d (tau - 1) / tau^2
    rounds, nor always later: a linear f falls by the factor 1 - tau/d a round and no faster. `recursion_bound` with
    these steps and p_min = tau/d holds.
    """
    Nice(blocks, tau)
    return lambda k: min(1.0, 2.0 * blocks * tau / (tau**2 * k + 2.0 * blocks))


def solve_parallel(  # noqa: PLR0913
    objective: Objective,
    constraint: ConstraintSet,
    *,
    tau: int,
    workers: int = 2,
    rounds: int,
    step: Callable[[int], float] | None = None,
    start: ArrayLike | None = None,
    generator: np.random.Generator | int | None = None,
    every: int = 0,
    tolerance: float = 0.0,
) -> ParallelSolution:
    """Minimise f over M = M_1 x ... x M_d with several threads that wait for nobody.

    Each worker repeats: draw a block i uniformly, read the newest published gradient, put the vertex s_i into a queue.
    The server takes answers until it has tau different blocks (of two for one block the later), moves those blocks
    toward their vertices by the step of the round, and publishes. Answers that are older than half the rounds so far
    are discarded. With no delay the sets are tau-nice and `recursion_bound` holds with p_min = tau/d; an old answer is
    an inexact one, whose error vanishes with the steps. The path depends on the threads, the limit does not.

    Parameters are those of `solve`; `step` is by default `parallel_step(d, tau)`, a function of the round.
    """
    blocks = Blocks(constraint, objective.dimension)
    Nice(blocks.count, tau)
    check_whole("workers", workers, 1)
    check_whole("rounds", rounds, 0)
    if every < 0 or not tolerance >= 0:
        raise InputError(f"every={every!r} and tolerance={tolerance!r} must not be negative")
    if tolerance > 0 and every == 0:
        every = max(1, -(-blocks.count // tau))
    steps = parallel_step(blocks.count, tau) if step is None else step
    iterate = objective.follow(blocks.start(start), blocks.offsets)
    server = _AnswerServer(blocks, iterate.snapshot(), workers, np.random.default_rng(generator))
    recorded: list[tuple[int, float, float]] = []
    done = 0
    try:
        for k in range(rounds):
            if every and k % every == 0:
                recorded.append((k, iterate.value(), duality_gap(iterate, blocks)))
                if recorded[-1][2] <= tolerance:
                    break
            answers = server.collect(k, tau)
            chosen = np.array([answer.block for answer in answers])
            columns = blocks.columns(chosen)
            direction = np.concatenate([answer.vertex for answer in answers]) - iterate.x[columns]
            iterate.move(columns, direction, check_step(steps, k))
            done = k + 1
            server.published = (done, iterate.snapshot())
    finally:
        server.close()
    value, gap = iterate.value(), duality_gap(iterate, blocks)
    if every and (not recorded or recorded[-1][0] != done):
        recorded.append((done, value, gap))
    return ParallelSolution(
        x=iterate.x,
        value=value,
        gap=gap,
        rounds=done,
        updates=done * tau,
        trace=make_trace(recorded),
        mean_delay=server.delays / max(done * tau, 1),
        largest_delay=server.largest_delay,
        replaced=server.replaced,
        discarded=server.discarded,
    )


class _AnswerServer:
    """The queue, the published gradients and the threads."""

    def __init__(self, blocks: Blocks, first: Gradients, workers: int, source: np.random.Generator) -> None:
        self.blocks = blocks
        self.published = (0, first)  # replaced as a whole, so that a reader never sees half of it
        # Short: an answer that waits grows old.
        self.answers: queue.Queue[_Answer | BaseException] = queue.Queue(maxsize=2 * workers)
        self.over = threading.Event()
        self.delays = self.largest_delay = self.replaced = self.discarded = 0
        self.threads = [
            threading.Thread(target=self._work, args=(own,), name=f"bcfw-{number}", daemon=True)
            for number, own in enumerate(source.spawn(workers))
        ]
        for thread in self.threads:
            thread.start()

    def collect(self, version: int, tau: int) -> list[_Answer]:
        """The answers of tau different blocks."""
        found: dict[int, _Answer] = {}
        while len(found) < tau:
            answer = self.answers.get()
            if isinstance(answer, BaseException):
                raise answer
            if version - answer.version > version / 2:
                self.discarded += 1
                continue
            self.replaced += answer.block in found
            found[answer.block] = answer
        ages = [version - answer.version for answer in found.values()]
        self.delays += sum(ages)
        self.largest_delay = max(self.largest_delay, *ages)
        return list(found.values())

    def close(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _work(self, source: np.random.Generator) -> None:
        while not self.over.is_set():
            answer: _Answer | BaseException
            try:
                block = int(source.integers(self.blocks.count))
                version, gradients_at = self.published
                chosen = np.array([block])
                gradient = gradients_at(self.blocks.columns(chosen))
                answer = _Answer(block, self.blocks.oracle(chosen, gradient), version)
            except BaseException as error:
                answer = error
            while not self.over.is_set():
                try:
                    self.answers.put(answer, timeout=PATIENCE)
                except queue.Full:
                    continue
                break
            if isinstance(answer, BaseException):
                return
