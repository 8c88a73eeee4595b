"""Block-coordinate Frank-Wolfe under arbitrary sampling (Lou and Cheung 2018, Algorithm 1), in one thread or several.

AP-BCFW: block oracles computed by threads on replicated data, applied tau at a time (Wang et al. 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.errors import InputError
from sottovoce.lab.bcfw.objectives import Blocks, Gradients, Iterate, Objective
from sottovoce.lab.bcfw.samplings import Integers, Nice, Sampling, Vector, check_probability, check_proper, check_whole
from sottovoce.penalties import ConstraintSet, Product

Step = Literal["universal", "line-search"] | Callable[[int], float]

SLACK = 1e-9  # relative rounding error that a hook is forgiven


@dataclass(frozen=True)
class Inexact:
    """Answers with errors, as the theorem allows them; simulations and tests give the errors by hooks.

    With gamma the universal step of the round and C = `curvature` (the half of eq. 4 is a reading):
    `gradient(i, exact, tolerance)` answers g~_i with |g~_i - exact| <= tolerance = rho_gradient gamma C / 2;
    `oracle(i, g~_i, tolerance)` answers s~_i in M_i with <s~_i, g~_i> <= min_s <s, g~_i> + tolerance,
    tolerance = rho_oracle gamma C / 2. An answer outside is an InputError.
    |.| is Euclidean, or for norm="dual" max <s - t, .> over s, t in M_i, dual to the norm in which M_i has diameter 1.
    The answer for a block must not depend on which other blocks were drawn: C is a supremum of expectations.
    """

    curvature: float
    gradient: Callable[[int, Vector, float], ArrayLike] | None = None
    oracle: Callable[[int, Vector, float], ArrayLike] | None = None
    rho_gradient: float = 0.0
    rho_oracle: float = 0.0
    norm: Literal["euclidean", "dual"] = "euclidean"

    def __post_init__(self) -> None:
        for argument in ("curvature", "rho_gradient", "rho_oracle"):
            value = getattr(self, argument)
            if not 0 <= value < math.inf:
                raise InputError(f"{argument}={value!r} must be zero or a positive finite number")
        if self.norm not in ("euclidean", "dual"):
            raise InputError(f"norm={self.norm!r} must be 'euclidean' or 'dual'")

    def rho(self, constraint: Product, sampling: Sampling) -> float:
        """The rho of the bound: sum_i p_i (D_i rho_gradient + rho_oracle), D_i the diameter of M_i in the norm."""
        blocks = Blocks(constraint, sum(constraint.sizes))
        blocks.check(sampling)
        diameters = np.ones(blocks.count) if self.norm == "dual" else blocks.diameters()
        return float(check_proper(sampling) @ (diameters * self.rho_gradient + self.rho_oracle))

    def length(self, blocks: Blocks, block: int, error: Vector) -> float:
        """Of an error of a gradient."""
        if self.norm != "dual":
            return float(np.linalg.norm(error))
        here = np.array([block])
        return float((blocks.oracle(here, -error) - blocks.oracle(here, error)) @ error)


@dataclass(frozen=True)
class Trace:
    """Rounds at which a run was looked at, with f and the duality gap there."""

    rounds: Integers
    values: Vector
    gaps: Vector


@dataclass(frozen=True)
class BlockSolution:
    """Where a run ended. `gap` = max over s in M of <x - s, grad f(x)> >= f(x) - min f certifies `value`."""

    x: Vector
    value: float
    gap: float
    rounds: int
    updates: int
    trace: Trace


def universal_step(p_min: float) -> Callable[[int], float]:
    """gamma_t = 2 / (p_min t + 2): 2/(t + 2) if all blocks move, 2d/(t + 2d) if one of d does."""
    check_probability(p_min)
    return lambda t: 2.0 / (p_min * t + 2.0)


def solve(  # noqa: PLR0913
    objective: Objective,
    constraint: ConstraintSet,
    sampling: Sampling,
    *,
    rounds: int,
    step: Step = "universal",
    start: ArrayLike | None = None,
    generator: np.random.Generator | int | None = None,
    every: int = 0,
    gaps: bool = True,
    tolerance: float = 0.0,
    inexact: Inexact | None = None,
) -> BlockSolution:
    """Minimise f over M = M_1 x ... x M_d: in round t draw T and, for every block i in T, move x_i toward s_i.

    s_i has the least <s, grad_i f(x)> over M_i, and x_i <- x_i + gamma_t (s_i - x_i).

    `constraint` is a `Product` of bounded sets, each part a block; `sampling` draws T, and must give every block a
    positive probability; `generator`, a NumPy generator or a seed, is the sampling's. `start` is feasible, by default
    the point nearest to 0. `inexact` puts errors into gradients and oracles.

    `step`: "universal" is 2 / (p_min t + 2). "line-search" takes the best point on the way to s, exactly if f is
    quadratic, else to 1e-6; it is never worse than the universal step from the same point, so the
    bound of `theorem_bound` holds for it too. A function gives the step of round t, from 0 to 1.

    f and, unless `gaps` is False, the duality gap (a full gradient; else NaN but at the end) are recorded `every` so
    many rounds; 0: at the end alone. A recorded gap of at most `tolerance` ends the run; it is then looked at about
    once a pass if `every` is 0.
    """
    blocks = Blocks(constraint, objective.dimension)
    blocks.check(sampling)
    p_min = sampling.smallest
    check_whole("rounds", rounds, 0)
    if every < 0 or not tolerance >= 0:
        raise InputError(f"every={every!r} and tolerance={tolerance!r} must not be negative")
    if tolerance > 0 and every == 0:
        every = max(1, math.ceil(blocks.count / sampling.size))
    if not callable(step) and step not in ("universal", "line-search"):
        raise InputError(f"step={step!r} must be 'universal', 'line-search' or a function of the round")
    universal = universal_step(p_min)
    iterate = objective.follow(blocks.start(start), blocks.offsets)
    source = np.random.default_rng(generator)
    recorded: list[tuple[int, float, float]] = []
    updates = done = 0
    for t in range(rounds):
        if every and t % every == 0:
            gap = duality_gap(iterate, blocks) if gaps or tolerance > 0 else math.nan
            recorded.append((t, iterate.value(), gap))
            if gap <= tolerance:
                break
        chosen = sampling.drawn(source)
        done = t + 1
        if not len(chosen):
            continue
        columns = blocks.columns(chosen)
        gradient = iterate.gradient(columns)
        if inexact is None:
            answer = blocks.oracle(chosen, gradient)
        else:
            answer = _ask_hooks(inexact, blocks, chosen, gradient, universal(t))
        direction = answer - iterate.x[columns]
        if step == "line-search":
            iterate.search(columns, direction, universal(t))
        else:
            iterate.move(columns, direction, check_step(step if callable(step) else universal, t))
        updates += len(chosen)
    value, gap = iterate.value(), duality_gap(iterate, blocks)
    if every and (not recorded or recorded[-1][0] != done):
        recorded.append((done, value, gap))
    return BlockSolution(iterate.x, value, gap, done, updates, make_trace(recorded))


def duality_gap(iterate: Iterate, blocks: Blocks) -> float:
    """The largest <x - s, grad f(x)> over s in M, an upper bound of f(x) - min f."""
    gradient = iterate.gradient(blocks.all_columns)
    if not bool(np.all(np.isfinite(gradient))):
        raise InputError("the gradient is not finite; scale A and y down, or check the objective")
    return float((iterate.x - blocks.oracle(blocks.all, gradient)) @ gradient)


def check_step(steps: Callable[[int], float], t: int) -> float:
    """The step of round t, refused outside [0, 1]."""
    found = float(steps(t))
    if not 0 <= found <= 1:
        raise InputError(f"step({t})={found!r} must be from 0 to 1; a longer one leaves the feasible set")
    return found


def make_trace(recorded: list[tuple[int, float, float]]) -> Trace:
    """Rounds, values and gaps side by side."""
    rounds, values, gaps = zip(*recorded, strict=True) if recorded else ((), (), ())
    return Trace(np.array(rounds, dtype=np.int64), np.array(values), np.array(gaps))


def _ask_hooks(hooks: Inexact, blocks: Blocks, chosen: Integers, gradient: Vector, step: float) -> Vector:
    """The hooks' answers for the chosen blocks, one after the other."""
    noisy, answer = gradient.copy(), np.empty_like(gradient)
    start = 0
    for block in chosen.tolist():
        part = slice(start, start + int(blocks.sizes[block]))
        start = part.stop
        if hooks.gradient is not None:
            allowed = 0.5 * hooks.rho_gradient * step * hooks.curvature
            noisy[part] = hooks.gradient(block, gradient[part].copy(), allowed)
            error = hooks.length(blocks, block, noisy[part] - gradient[part])
            _check_error("gradient", block, error, (allowed, hooks.length(blocks, block, gradient[part])))
        exact = blocks.oracle(np.array([block]), noisy[part])
        if hooks.oracle is None:
            answer[part] = exact
            continue
        allowed = 0.5 * hooks.rho_oracle * step * hooks.curvature
        answer[part] = hooks.oracle(block, noisy[part].copy(), allowed)
        if not blocks.parts[block].contains(answer[part]):
            raise InputError(f"the oracle hook answered with a point outside block {block}; return one in its set")
        error = float((answer[part] - exact) @ noisy[part])
        _check_error("oracle", block, error, (allowed, float(np.abs(exact) @ np.abs(noisy[part]))))
    return answer


def _check_error(name: str, block: int, error: float, limit: tuple[float, float]) -> None:
    allowed, scale = limit
    if not error <= allowed + SLACK * (scale + allowed):
        raise InputError(
            f"the {name} hook erred by {error:g} at block {block}, more than the {allowed:g} that "
            f"rho_{name} allows; raise rho_{name}, or keep to the tolerance it is given"
        )


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
    delays = (server.delays / max(done * tau, 1), server.largest_delay, server.replaced, server.discarded)
    return ParallelSolution(iterate.x, value, gap, done, done * tau, make_trace(recorded), *delays)


class _AnswerServer:
    """The published gradients, and two answers for each thread on their way: one that waits grows old."""

    def __init__(self, blocks: Blocks, first: Gradients, workers: int, source: np.random.Generator) -> None:
        self.blocks = blocks
        self.published = (0, first)  # replaced as a whole, so that a reader never sees half of it
        self.delays = self.largest_delay = self.replaced = self.discarded = 0
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="bcfw")
        self.asked = {self.pool.submit(self._work, own): own for own in source.spawn(2 * workers)}

    def collect(self, version: int, tau: int) -> list[_Answer]:
        """The answers of tau different blocks."""
        found: dict[int, _Answer] = {}
        while len(found) < tau:
            done, _ = wait(self.asked, return_when=FIRST_COMPLETED)
            future = next(future for future in self.asked if future in done)
            own = self.asked.pop(future)
            self.asked[self.pool.submit(self._work, own)] = own
            answer = future.result()
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
        self.pool.shutdown(cancel_futures=True)

    def _work(self, source: np.random.Generator) -> _Answer:
        chosen = source.integers(self.blocks.count, size=1)
        version, gradients_at = self.published
        gradient = gradients_at(self.blocks.columns(chosen))
        return _Answer(int(chosen[0]), self.blocks.oracle(chosen, gradient), version)
