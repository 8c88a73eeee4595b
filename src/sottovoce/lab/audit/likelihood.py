"""How likely a transcript is under a data set, for any algorithm: its `answer`, asked again at a shadow of the gate.

The shadow has the gate's doors. It takes the value that the query has on the data set, adds the log-density of what was
released given that value, and hands back what was released: so whatever the party keeps follows the transcript. The
difference between two data sets is the statistic that tells them apart best, by Neyman and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block
from sottovoce.door.gate import Released
from sottovoce.lab.audit.transcript import Side, Transcript
from sottovoce.plan.plan import Release

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Members = Callable[[Integers], Integers]

FAR, NODES = 40.0, 400  # of the integral over a maximum of Laplace variables, in scales and in points
NOTHING = 1e-3  # of the largest singular value: below it messages of kept rows say nothing


@dataclass(frozen=True)
class View:
    """What an adversary sees beside the values of a plan's releases.

    `members` reads off a message which records were sampled, where the form shows it. `visible` says of a query how
    many of its first numbers are seen, if not all.
    """

    members: Members | None = None
    visible: Mapping[str, int] | None = None


def log_likelihood(side: Side, transcript: Transcript, view: View | None = None) -> float:
    """Log Pr[transcript | data], up to a constant that no data set changes.

    Exact for Gaussian releases, walks, selections, noisy maxima and functions of kept rows. Where records are sampled
    in secret, exact if one record at most is no null row and nothing is kept of who was sampled; else near.
    """
    shadows = {name: Shadow(side.releases, view or View()) for name in side.blocks}
    memories = side.memories()
    for message in transcript.messages:
        shadows[message.party].observed = message.released
        side.answer(shadows, memories, message.party, message.query, message.round, message.told)
    return math.fsum(shadow.total() for shadow in shadows.values())


class Rows:
    """A party's rows, of which functions of noisy versions were released: the weights and the messages so far."""

    def __init__(self, rows: Array, std: float) -> None:
        self.rows, self.std = rows, std
        self.weights: list[Array] = []
        self.messages: list[Array] = []

    def log_density(self) -> float:
        """Messages W R~' tell V'R~' for W = U S V': independent Gaussians around V'R'.

        More messages than columns are averaged, as they must agree where the noise was drawn once.
        """
        if not self.weights:
            return 0.0
        left, sizes, right = np.linalg.svd(np.array(self.weights), full_matrices=False)
        told = sizes > NOTHING * max(float(sizes[0]), 1e-300)
        seen = (left.T[told] @ np.array(self.messages)) / sizes[told, None]
        return float(-0.5 * np.sum(((seen - right[told] @ self.rows.T) / self.std) ** 2))


class Shadow:
    """A gate that draws nothing: it weighs what another gate let out."""

    def __init__(self, releases: Mapping[str, Release], view: View) -> None:
        self._releases, self._view = releases, view
        self._sum = 0.0
        self._kept: dict[str, Rows] = {}
        self.observed: Released

    def total(self) -> float:
        """The log-likelihood of everything observed."""
        return self._sum + math.fsum(rows.log_density() for rows in self._kept.values())

    def gaussian(self, query: Any, round_: int, block: Block, *arguments: Any) -> Released:  # noqa: ARG002
        """Batches one after another, each at the arguments that the released one before leads to."""
        release, said = self._releases[query.name], arguments
        grids = self.observed.arrays["grid"].reshape(release.batches, -1)
        for k, grid in enumerate(grids):
            if k:
                said = query.follow(np.asarray(grids[k - 1] * release.step, dtype=np.float64), *said)
            self._weigh(release, query.weights, grid, block, said, lambda rows, said: _grid(query, release, rows, said))
        return self.observed

    def walk(self, query: Any, round_: int, block: Block, *arguments: Any) -> Released:  # noqa: ARG002
        """Each number of a walk depends on those released before it: the noise that leads to them is found in turn."""
        release, grid = self._releases[query.name], self.observed.arrays["grid"]
        seen = self._seen(query.name, grid)

        def values(rows: Block, said: tuple[Any, ...]) -> Array:
            noise = np.zeros_like(grid)
            for _ in range(len(grid)):
                missing = grid - query.walk(rows, noise, release.step, *deepcopy(said))
                if not missing[:seen].any():
                    break
                noise += missing
            query.walk(rows, noise, release.step, *said)
            return np.asarray(grid - noise, dtype=np.float64)

        self._weigh(release, 1.0, grid, block, arguments, values)
        return self.observed

    def select(self, query: Any, round_: int, block: Block, *arguments: Any) -> Released:  # noqa: ARG002
        """The exponential mechanism: a softmax of the scores."""
        release = self._releases[query.name]
        scores = _grid(query, release, block, arguments) * (release.step / release.std)
        self._sum += float(scores[int(self.observed.arrays["grid"][0])] - _log_sum(scores))
        return self.observed

    def select_signed(self, query: Any, round_: int, block: Block, *arguments: Any) -> Released:  # noqa: ARG002
        """The same, of every value with either sign, and of staying."""
        release = self._releases[query.name]
        scores, place = self._signed(query, release, block, arguments)
        self._sum += float(scores[place] - _log_sum(scores))
        return self.observed

    def noisy_max(self, query: Any, round_: int, block: Block, *arguments: Any) -> Released:  # noqa: ARG002
        """Pr[one is the largest] = integral of its density times the others' distribution functions."""
        release = self._releases[query.name]
        scores, place = self._signed(query, release, block, arguments)
        points = np.linspace(scores.min() - FAR / 4, scores.max() + FAR, NODES)
        away = points[:, None] - scores
        below = np.where(away < 0, 0.5 * np.exp(np.minimum(away, 0)), 1 - 0.5 * np.exp(-np.maximum(away, 0)))
        density = 0.5 * np.exp(-np.abs(away[:, place]))
        others = np.prod(np.delete(below, place, axis=1), axis=1)
        self._sum += math.log(max(float(density @ others) * (points[1] - points[0]), 1e-300))
        return self.observed

    def keep(self, query: Any, block: Block, *arguments: Any) -> Rows:
        """The rows as the gate would round them."""
        release = self._releases[query.name]
        if query.name not in self._kept:
            rows = np.trunc(query.value(block, *arguments).reshape(len(block), -1) / release.step) * release.step
            self._kept[query.name] = Rows(rows, release.std)
        return self._kept[query.name]

    def derived(self, query: Any, round_: int, kept: Rows, *arguments: Any) -> Released:  # noqa: ARG002
        """Linear functions of kept rows: what they are of the unit rows are the weights."""
        kept.weights.append(query.derive(np.eye(kept.rows.shape[1]), *arguments))
        kept.messages.append(self.observed.arrays["value"])
        return self.observed

    def _signed(self, query: Any, release: Release, block: Block, arguments: Any) -> tuple[Array, int]:
        """Scores in units of the noise, as all (j, +), all (j, -) and staying, and the place of what was released."""
        values = _grid(query, release, block, arguments) * (release.step / release.std)
        signed, stay = (values[:-1], values[-1:]) if getattr(query, "stays", False) else (values, values[:0])
        code, size = int(self.observed.arrays["grid"][0]), len(signed)
        place = 2 * size if code == 0 else code - 1 if code > 0 else size - code - 1
        return np.concatenate([signed, -signed, stay]), place

    def _seen(self, query: str, grid: Integers) -> int:
        return (self._view.visible or {}).get(query, len(grid))

    def _weigh(
        self,
        release: Release,
        weights: Any,
        grid: Integers,
        block: Block,
        said: tuple[Any, ...],
        values: Callable[[Block, tuple[Any, ...]], Array],
    ) -> None:
        """The density of a Gaussian release; of a secret sample, of the mixture over whether its record was drawn."""
        scale = release.std / release.step / weights
        seen = self._seen(release.query, grid)

        def density(rows: Block) -> float:
            return float(-0.5 * np.sum(((grid - values(rows, said)) / scale)[:seen] ** 2))

        if release.rate is None or release.rate == 1.0:
            self._sum += density(block)
        elif self._view.members is not None:
            members = self._view.members(grid)
            self._sum += density(block.take(members)) if len(members) else 0.0  # an empty batch is the same everywhere
        else:
            without = density(block.take(np.zeros(0, dtype=np.int64))) + math.log1p(-release.rate)
            (records,) = np.nonzero(block.squares)
            before = [array.copy() for array in said if isinstance(array, np.ndarray)]
            drawn = density(block.take(records)) + math.log(release.rate) if len(records) else -math.inf
            if drawn < without:  # what it kept is then, more likely, what it had
                for array, old in zip((a for a in said if isinstance(a, np.ndarray)), before, strict=True):
                    array[...] = old
            self._sum += float(np.logaddexp(without, drawn)) if len(records) else without - math.log1p(-release.rate)


def _grid(query: Any, release: Release, rows: Block, said: tuple[Any, ...]) -> Array:
    return np.asarray(np.rint(query.value(rows, *said) / release.step))


def _log_sum(scores: Array) -> float:
    top = float(scores.max())
    return top + math.log(float(np.exp(scores - top).sum()))
