"""Play games side by side, in as many processes as asked for; a plan of one's own becomes games too."""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.files import check_no_ledger
from sottovoce.lab.audit.catalogue import accounts, catalogue
from sottovoce.lab.audit.games import Claim, Game, Result, source, verdict
from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

THOROUGH = 20  # times the runs
CHUNK = 120  # runs of a task
SCALE = 2.0  # mu at which a plan of one's own is attacked
MOST_RECORDS = 16  # of a party, there
SECONDS, FEWEST, MOST = 12.0, 250, 1000  # what a game of it may take in a process, and its runs of each side


def run_audit(  # noqa: PLR0913
    only: Sequence[str] = (),
    *,
    plan: Plan | None = None,
    thorough: bool = False,
    seed: int | None = None,
    processes: int = 1,
    progress: Progress | None = None,
) -> list[Result]:
    """Play every game, those whose names begin as `only` says, or those of a plan; results in order.

    A correct mechanism is accused with probability 1e-4 at most. `seed` is for tests of the audit itself.
    """
    games: Mapping[str, Game | str] = make_own_games(plan) if plan is not None else {name: name for name in catalogue()}
    # "scd" is not "scd-primal".
    meant = [name for name in games for start in only if name == start or name.startswith((f"{start},", f"{start} "))]
    chosen = [name for name in games if not only or name in meant]
    if not chosen:
        raise InputError(f"only={list(only)!r} names no game; there are: {'; '.join(games)}.")
    found: dict[str, list[Any]] = {name: [] for name in chosen}
    # New processes, since one that has threads is not safely copied; one process is this one.
    pool: Executor = ThreadPoolExecutor(1)
    if processes != 1:
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    with pool:
        futures: dict[Future[Any], str] = {}
        for name in chosen:
            runs = _game(games[name]).runs * (THOROUGH if thorough else 1)
            futures[pool.submit(_find_claim, games[name])] = name
            for which, start in itertools.product((0, 1), range(0, runs, CHUNK)):
                piece = pool.submit(_play_runs, games[name], which, start, min(CHUNK, runs - start), seed)
                futures[piece] = name
        for done, future in enumerate(as_completed(futures), 1):
            found[futures[future]].append(future.result())
            if progress is not None:
                progress(done, len(futures))
    results = []
    for name in chosen:  # the pieces in their order, whichever came first
        (claim,) = (item for item in found[name] if isinstance(item, Claim))
        pieces = sorted((item for item in found[name] if isinstance(item, Played)), key=lambda piece: piece.start)
        first, second = (np.concatenate([piece.found for piece in pieces if piece.which == w]) for w in (0, 1))
        seconds = math.fsum(piece.seconds for piece in pieces)
        results.append(verdict(_game(games[name]), claim, first, second, seconds))
    return results


@functools.cache
def _make_game(name: str) -> Game:
    return catalogue()[name]()


def _game(game: Game | str) -> Game:
    return _make_game(game) if isinstance(game, str) else game


@dataclass(frozen=True)
class Played:
    """The statistics of some runs on one side, and how much computing they took."""

    which: int
    start: int
    found: Array
    seconds: float


def _play_runs(game: Game | str, which: int, start: int, runs: int, seed: int | None) -> Played:
    begun = time.process_time()
    made = _game(game)
    found = made.statistics(which, runs, source(seed, made.name, which, start))
    return Played(which, start, found, time.process_time() - begun)


def _find_claim(game: Game | str) -> Claim:
    return _game(game).claim()


def make_own_games(plan: Plan) -> dict[str, Game | str]:
    """The plan against the coordinator and against the world, at audit scale; as many runs as time allows.

    A plan that secures its sums is attacked by all other parties too, and on accounts under both relations.
    """
    scaled = at_audit_scale(plan)
    views: list[dict[str, Any]] = [{}]
    if plan.split.several and plan.protects == "record":
        views.append({"adversary": "world", "sees": "model"})
    found: dict[str, Game | str] = {}
    if plan.channel.secure:
        both = itertools.product(("coordinator", "parties", "world"), accounts(plan.relation))
        views = [{"adversary": who, "account": account, "said": f", {who}{name}"} for who, (name, account) in both]
    for view in views:
        name = f"{plan.algorithm}, your plan{', model' if 'sees' in view else ''}{view.pop('said', '')}"
        game = Game(name, scaled, **view)
        game.statistics(0, 1, source(None))  # what has to be compiled or drawn up once
        begun = time.perf_counter()
        game.statistics(0, 3, source(None))
        each = (time.perf_counter() - begun) / 3
        found[name] = Game(name, scaled, runs=int(min(max(SECONDS / each / 2, FEWEST), MOST)), **view)
    return found


def at_audit_scale(plan: Plan) -> Plan:
    """The plan with fewer records and less noise, as attacks have power at mu = 2 alone; all other numbers are its own.

    What it then costs follows from its releases, as for any plan. A published claim is attacked at its own noise.
    """
    if not plan.private:
        raise InputError("the plan's gates add no noise: there is no claim to audit. Choose a finite epsilon.")
    counts = tuple((name, min(count, MOST_RECORDS)) for name, count in plan.parties)
    changes: dict[str, Any] = {"parties": counts, "run": "audit", "coin": "audit", "keys": ()}
    if plan.secure_columns:
        # Fewer records would have more bits.
        changes["aggregation"] = plan.channel.aggregation.changed(bits=plan.preparation.bits)
    found = plan.model_copy(update=changes)
    if plan.claimed_epsilon is not None:
        return found
    for _ in range(4):  # where records are sampled mu is not in proportion to 1 / std
        factor = Game("", found).claim().value / SCALE
        if 0.95 < factor < 1.05:
            break
        releases = [release.model_dump() | {"std": release.std * factor} for release in found.releases]
        found = found.model_copy(update={"releases": releases})
    return found


def plot(results: Sequence[Result], path: Path) -> None:
    """Claimed against measured, one point for each game; the line is where they are equal."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError("the plot needs matplotlib: pip install 'sottovoce[plots]'.") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
    kinds = {
        "ours": ("o", "tab:blue", [r for r in results if not r.published]),
        "published, the claim holds": ("^", "tab:gray", [r for r in results if r.published and r.expected]),
        "published, the claim cannot hold": ("s", "tab:red", [r for r in results if r.published and not r.expected]),
    }
    most = max(max(result.claimed, result.measured) for result in results) * 1.05
    for label, (marker, colour, chosen) in kinds.items():
        if chosen:
            x, y = [r.claimed for r in chosen], [r.measured for r in chosen]
            axes.scatter(x, y, marker=marker, color=colour, alpha=0.7, label=label)
    for result in results:
        if result.measured > result.claimed:
            axes.annotate(
                result.name, (result.claimed, result.measured), (5, 3), textcoords="offset points", fontsize=7
            )
    axes.plot([0, most], [0, most], color="black", linewidth=0.8)
    axes.set_xlim(0, most)
    axes.set_ylim(-0.03 * most, most)
    axes.set_xlabel("claimed (mu, or epsilon of a published claim)")
    axes.set_ylabel("measured lower bound, same unit")
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    check_no_ledger(path)
    figure.savefig(path)
    plt.close(figure)
