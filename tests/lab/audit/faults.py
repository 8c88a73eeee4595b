"""Faults that are planted on purpose, and the checks that must find each: running this file prints them.

A fault is a context in which the real code, or a plan, is wrong in one way. Its checks pass without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import checks

from sottovoce.algorithms.base import Algorithm, Ask
from sottovoce.algorithms.cd import private as cd
from sottovoce.algorithms.scd import private as scd
from sottovoce.algorithms.sharing import gradients as own_gradients
from sottovoce.algorithms.sharing import parts
from sottovoce.data import block as blocks
from sottovoce.door import gate as gates
from sottovoce.door import noisy_rows as rows
from sottovoce.door import query as queries
from sottovoce.door.gate import Gate, Released
from sottovoce.errors import LeakError, RefusedError
from sottovoce.federation import federation, party
from sottovoce.lab.audit import games
from sottovoce.lab.audit.catalogue import audit_plan
from sottovoce.plan.plan import Plan, Release
from sottovoce.privacy import accounting, mechanisms
from sottovoce.privacy.randomness import SeededRandomness

CAUGHT = (AssertionError, LeakError, RefusedError)
ALARM = 1e-7
Check = Callable[[], Any]


@dataclass(frozen=True)
class Fault:
    """A fault, what it does in a line, and by which checks it is found."""

    name: str
    line: str
    plant: Callable[[], contextlib.AbstractContextManager[Any]]
    found_by: Mapping[str, Check]


FAULTS: dict[str, Fault] = {}


def fault(name: str, line: str, **found_by: Check) -> Callable[[Any], Any]:
    """Add a planting to the catalogue; a check's name may be followed by `__` and on what it is made."""

    def add(plant: Any) -> Any:
        FAULTS[name] = Fault(name, line, contextlib.contextmanager(plant), found_by)
        return plant

    return add


def on(check: Callable[..., Any], case: str) -> Check:
    """The check on one case, in a folder of its own where it needs one."""

    def run() -> None:
        made = checks.cases()[case]
        if check in (checks.kept_rows, checks.ledger):
            with tempfile.TemporaryDirectory() as folder:
                check(made, Path(folder))
        else:
            check(made)

    return run


def game(solver: str, runs: int, **fields: Any) -> Check:
    """A distinguishing game of the audit, with a fixed seed; it accuses a correct mechanism less often than ALARM."""

    def run() -> None:
        with mock.patch.object(games, "ALARM", ALARM):
            result = games.play(games.Game(solver, audit_plan(solver, **fields)), runs=runs, seed=1)
        assert result.verdict == "holds", (
            f"{result.verdict}: {result.measured:.2f} measured, {result.claimed:.2f} claimed"
        )

    return run


patch = mock.patch.object


# ------------------------------------------------------------------------------------------------ noise


@fault(
    "noise halved",
    "the gate draws Gaussian noise of half the planned scale",
    scale=on(checks.scale, "gradient, central"),
    audit_game=game("gradient", 400, rounds=3),
)
def _(real: Any = mechanisms.rounded_gaussian) -> Iterator[None]:
    with patch(gates, "rounded_gaussian", lambda scale, size, source: real(scale / 2, size, source)):
        yield


@fault(
    "noise of kept rows halved",
    "rows are kept with half the planned noise",
    scale=on(checks.scale, "admm, columns"),
)
def _(real: Any = mechanisms.rounded_gaussian) -> Iterator[None]:
    with patch(rows, "rounded_gaussian", lambda scale, size, source: real(scale / 2, size, source)):
        yield


@fault(
    "Gumbel scale halved",
    "choices are twice as sharp as their price",
    scale=on(checks.scale, "frank-wolfe, central"),
    scale__by_rows=on(checks.scale, "greedy-cd, rows"),
)
def _(select: Any = mechanisms.select, signed: Any = mechanisms.select_signed) -> Iterator[None]:
    with (
        patch(gates, "select", lambda scores, rate, source: select(scores, 2 * rate, source)),
        patch(gates, "select_signed", lambda values, rate, source, stay: signed(values, 2 * rate, source, stay)),
    ):
        yield


@fault(
    "float noise instead of the grid",
    "value + std * Z leaves in float64, whose low bits tell the value",
    metadata=on(checks.metadata, "gradient, central"),
    support=on(checks.support, "gradient, central"),
)
def _() -> Iterator[None]:
    def noisy(self: Gate, query: Any, round_: int, block: Any, *said: Any) -> Released:
        release = self._releases[query.name]
        value = query.value(block, *said)
        value = value + release.std * np.random.default_rng(round_).normal(size=value.shape)
        return Released(query.name, round_, {"value": value}, seal=gates._SEAL)

    with patch(Gate, "gaussian", noisy):
        yield


@fault(
    "weights counted twice",
    "entries that weigh more get too little noise",
    scale=on(checks.scale, "newton, central"),
)
def _(real: Any = Gate._noise) -> Iterator[None]:
    with patch(Gate, "_noise", lambda self, release, weights, size: real(self, release, weights * weights, size)):
        yield


@fault(
    "one draw for all entries",
    "a vector gets one number as noise",
    rank=on(checks.rank, "newton, central"),
)
def _(real: Any = Gate._noise) -> Iterator[None]:
    def spread(self: Gate, release: Release, weights: Any, size: int) -> Any:
        return np.repeat(real(self, release, 1.0, 1), size, axis=1)

    with patch(Gate, "_noise", spread):
        yield


@fault(
    "noise repeated in every round",
    "the generator starts anew with each message",
    fresh=on(checks.fresh, "gradient, central"),
    rank=on(checks.rank, "gradient, central"),
)
def _(real: Any = mechanisms.rounded_gaussian) -> Iterator[None]:
    with patch(gates, "rounded_gaussian", lambda scale, size, source: real(scale, size, SeededRandomness(0))):
        yield


@fault(
    "noise scaled by the data",
    "the scale of the noise is computed from the rows",
    rank=on(checks.rank, "gradient, central"),
)
def _(real: Any = Gate._noise, door: Any = Gate.gaussian) -> Iterator[None]:
    largest = [1.0]

    def gaussian(self: Gate, query: Any, round_: int, block: Any, *said: Any) -> Released:
        largest[0] = 1.0 + float(np.trace(block.gram()))
        return door(self, query, round_, block, *said)

    def scaled(self: Gate, release: Release, weights: Any, size: int) -> Any:
        return real(self, release, weights / largest[0], size)

    with patch(Gate, "gaussian", gaussian), patch(Gate, "_noise", scaled):
        yield


@fault(
    "noise in the span of the columns",
    "ADMM sharing as printed: degenerate noise in place of noise on every score",
    rank=on(checks.rank, "admm, columns"),
    metadata=on(checks.metadata, "admm, columns"),
)
def _() -> Iterator[None]:
    with patch(checks, "audit_plan", functools.partial(audit_plan, calibration="paper")):
        yield


@fault(
    "seed reused between parties",
    "all parties of a seeded federation draw the same noise",
    own_randomness=checks.own_randomness,
)
def _() -> Iterator[None]:
    with patch(federation, "SeededRandomness", lambda seed, *labels: SeededRandomness(seed)):
        yield


# ------------------------------------------------------------------------------------------------ sensitivity


@fault(
    "clipping dropped",
    "slopes are not cut to their bound",
    sensitivity=on(checks.sensitivity, "gradient, central"),
)
def _() -> Iterator[None]:
    with patch(queries, "clipped_derivative", lambda loss, bound, bits: loss.derivative):
        yield


@fault(
    "dual steps cut too late",
    "a dual step is cut at twice the clip that was charged",
    sensitivity=on(checks.sensitivity, "scd, rows"),
)
def _(real: Any = scd.move) -> Iterator[None]:
    def wider(*arguments: Any, **options: Any) -> Any:
        return real(*arguments, **{**options, "clip": 2 * options["clip"]})

    with patch(scd, "move", wider):
        yield


@fault(
    "rows longer than declared",
    "rows are scaled to twice the declared norm",
    sensitivity=on(checks.sensitivity, "newton, central"),
    sensitivity__by_columns=on(checks.sensitivity, "fdml, columns"),
)
def _(real: Any = blocks._scaled) -> Iterator[None]:
    def longer(raw: Any, usable: Any, recipe: Any) -> Any:
        return 2.0 * real(raw, usable, recipe)

    with patch(blocks, "_scaled", longer):
        yield


@fault(
    "sensitivity of the wrong relation",
    "a gradient under replace-one is bounded as under zero-out",
    sensitivity=on(checks.sensitivity, "gradient, central"),
    composition=on(checks.composition, "gradient, central"),
)
def _() -> Iterator[None]:
    with patch(queries.GradientSum, "sensitivity", lambda self, relation: self.slope_bound * self.row_norm):
        yield


@fault(
    "charge of the wrong relation",
    "a plan under replace-one pays what it costs under zero-out",
    composition=on(checks.composition, "newton, rows"),
    composition__of_choices=on(checks.composition, "frank-wolfe, central"),
)
def _(real: Any = Release.event) -> Iterator[None]:
    with patch(Release, "event", lambda self, relation, **options: real(self, "zero-out", **options)):
        yield


@fault(
    "N taken from the data",
    "a gradient is averaged over the usable records there are",
    sensitivity=on(checks.sensitivity, "gradient, central"),
)
def _(real: Any = queries.GradientSum.value) -> Iterator[None]:
    def mean(self: Any, block: Any, *said: Any) -> Any:
        return real(self, block, *said) * len(block) / max(int(block.usable.sum()), 1)

    with patch(queries.GradientSum, "value", mean):
        yield


@fault(
    "null rows count in the intercept",
    "a null row has a 1 in the constant column",
    sensitivity=on(checks.sensitivity, "admm, columns, logistic"),
)
def _() -> Iterator[None]:
    with patch(parts, "usable_rows", lambda block: np.ones(len(block))):
        yield


@fault(
    "inner steps not counted",
    "a walk of many coordinates is bounded as one step",
    sensitivity=on(checks.sensitivity, "cd, central"),
    composition=on(checks.composition, "cd, central"),
)
def _() -> Iterator[None]:
    with patch(cd.CoordinateWalk, "sensitivity", lambda self, relation: 2.0 if relation == "replace-one" else 1.0):
        yield


@fault(
    "grid rounding not charged",
    "what rounding to the grid adds to a sensitivity is left out",
    gate=on(checks.once, "gradient, central"),
)
def _(real: Any = Release.of.__func__) -> Iterator[None]:  # type: ignore[attr-defined]
    def bare(cls: Any, query: Any, *arguments: Any, **options: Any) -> Release:
        made = real(cls, query, *arguments, **options)
        charges = {f"charged_{r.replace('-', '_')}": query.sensitivity(r) for r in checks.RELATIONS}
        return Release.model_validate(made.model_dump() | charges)

    with patch(Release, "of", classmethod(bare)):
        yield


# ------------------------------------------------------------------------------------------------ sampling


@fault(
    "duals visible",
    "DP-SCD as printed: noise on the sampled duals alone shows who was sampled",
    support=on(checks.support, "scd, central"),
)
def _() -> Iterator[None]:
    with patch(checks, "audit_plan", functools.partial(audit_plan, calibration="paper")):
        yield


@fault(
    "sampled set visible in sizes",
    "a message has a number for each record of the batch",
    support=on(checks.support, "sgd, central"),
    support__of_dual_steps=on(checks.support, "scd, rows"),
)
def _(drawn: Any = Gate._drawn, keep: Any = Gate._keep) -> Iterator[None]:
    sizes = [0]

    def watched(self: Gate, release: Release, block: Any) -> Iterator[Any]:
        for batch in drawn(self, release, block):
            sizes[0] = len(batch)
            yield batch

    def longer(self: Gate, released: Released, unordered: bool) -> Released:
        arrays = {**released.arrays, "steps": np.zeros(sizes[0])}
        return keep(self, Released(released.query, released.round, arrays, seal=gates._SEAL), unordered)

    with patch(Gate, "_drawn", watched), patch(Gate, "_keep", longer):
        yield


@fault(
    "empty batch skipped",
    "a party whose batch is empty sends nothing",
    support=on(checks.support, "sgd, rows"),
)
def _(real: Any = queries.GradientSum.value) -> Iterator[None]:
    def nothing(self: Any, block: Any, *said: Any) -> Any:
        return real(self, block, *said) if len(block) else np.zeros(0)

    with patch(queries.GradientSum, "value", nothing):
        yield


@fault(
    "coins of the first records",
    "records in front are drawn more often than those behind",
    coins=on(checks.coins, "sgd, central"),
)
def _(real: Any = mechanisms.poisson_sample) -> Iterator[None]:
    def in_front(count: int, rate: float, source: Any) -> Any:
        return np.unique(real(count, rate, source) * 2 // 3)

    with patch(gates, "poisson_sample", in_front):
        yield


@fault(
    "batches of one size",
    "as many records are drawn as on average, not each by its own coin",
    coins=on(checks.coins, "sgd, central"),
)
def _() -> Iterator[None]:
    def fixed(count: int, rate: float, source: Any) -> Any:
        order = np.argsort(mechanisms.words(source, count))
        return np.sort(order[: round(rate * count)])

    with patch(gates, "poisson_sample", fixed):
        yield


# ------------------------------------------------------------------------------------------------ cost


@fault(
    "composition over parties forgotten",
    "by columns the largest party's cost counts, not the sum",
    composition=on(checks.composition, "admm, columns, fresh"),
    composition__of_scores=on(checks.composition, "score, columns"),
)
def _() -> Iterator[None]:
    def largest(self: Any, relation: Any) -> float:
        return max(query.sensitivity(relation) for query in self.queries)

    with patch(parts.Joint, "sensitivity", largest):
        yield


@fault(
    "rounds not counted",
    "a plan pays for one release of each kind",
    composition=on(checks.composition, "gradient, rows"),
)
def _() -> Iterator[None]:
    with patch(Release, "total", property(lambda self: 1)):
        yield


@fault(
    "replace-one accounted as zero-out",
    "sampled rounds are composed under the weaker relation",
    accountant=checks.accountant,
)
def _(real: Any = accounting._loss_distribution_epsilon, mu: Any = accounting._unsampled_mu) -> Iterator[None]:
    def weaker(sampled: Any, gaussian: float, delta: float, relation: Any, step: float) -> float:
        return real(sampled, gaussian, delta, "zero-out", step)

    accounting.noise_multiplier_for.cache_clear()
    with (
        patch(accounting, "_loss_distribution_epsilon", weaker),
        patch(accounting, "_unsampled_mu", lambda event, relation: mu(event, "zero-out")),
    ):
        yield
    accounting.noise_multiplier_for.cache_clear()


@fault(
    "second draw under one key",
    "who asks again gets new noise, uncharged",
    once=on(checks.once, "gradient, central"),
    once__for_choices=on(checks.once, "frank-wolfe, central"),
)
def _() -> Iterator[None]:
    with patch(Gate, "_stored", lambda self, query, round_, unordered: None):
        yield


@fault(
    "budget not charged on retry",
    "a second run of a plan has the name of the first, so its charge is taken for paid",
    ledger=on(checks.ledger, "gradient, central"),
)
def _(real: Any = Plan.digest) -> Iterator[None]:
    def nameless(self: Plan) -> bytes:
        return bytes(real.func(self if self.run == "" else self.model_copy(update={"run": ""})))

    with patch(Plan, "digest", property(nameless)):
        yield


@fault(
    "kept rows taken for paid",
    "an account is not charged for rows that it sees for the first time",
    ledger=on(checks.ledger, "admm, columns"),
)
def _(real: Any = rows.bill) -> Iterator[None]:
    def free(plan: Plan, paid: Any) -> Any:
        owed, noted = real(plan, paid)
        return dict.fromkeys(owed, 0.0), noted

    with patch(party, "bill", free):
        yield


@fault(
    "world tier where scores are read",
    "scores are centred by their own mean, which tells of every record, and the world is charged for gradients alone",
    world=on(checks.world, "admm, columns"),
    world__fdml=on(checks.world, "fdml, columns"),
)
def _() -> Iterator[None]:
    def centred(self: Any, plan: Plan, round_: int, views: Mapping[str, Any]) -> Any:
        weights = {name: {"weights": view.weights[: view.width]} for name, view in views.items()}
        noisy = yield Ask("scores", {}, round=round_, each=weights)
        std = plan.release("rows").std
        away = {name: noisy[name] - float(noisy[name].mean()) for name in views}
        return away, {name: std * math.sqrt(view.size) for name, view in views.items()}

    with patch(own_gradients.KeptRows, "hear", centred):
        yield


# ------------------------------------------------------------------------------------------------ kept rows


@fault(
    "row noise redrawn every round",
    "rows are drawn anew for every message, so that their mean is the row",
    persistence=on(checks.persistence, "admm, columns"),
)
def _(real: Any = Gate.keep) -> Iterator[None]:
    def anew(self: Gate, query: Any, block: Any, *said: Any) -> Any:
        self._kept.pop(query.name, None)
        return real(self, query, block, *said)

    with patch(Gate, "keep", anew):
        yield


@fault(
    "kept rows reused for changed values",
    "a record that changed is taken for the one that the rows were drawn for",
    kept_rows=on(checks.kept_rows, "admm, columns"),
)
def _() -> Iterator[None]:
    with patch(rows.Stock, "changed", lambda self, digests: np.zeros(len(digests), dtype=np.bool_)):
        yield


@fault(
    "kept noise reused for changed values",
    "a record that changed gets its new values under its old noise",
    kept_rows=on(checks.kept_rows, "admm, columns"),
)
def _(real: Any = rows.Stock.carried) -> Iterator[None]:
    clean: dict[str, Any] = {}

    def remembered(value: Any, std: float, step: float, source: Any, draw: Any = rows.draw) -> Any:
        drawn = draw(value, std, step, source)
        clean.setdefault("noise", drawn.grid - np.trunc(value / step).astype(np.int64))
        return drawn

    def carried(self: Any, name: str, digests: Any, value: Any, source: Any) -> Any:
        made = real(self, name, digests, value, source)
        old = [
            dataclasses.replace(c, grid=(np.trunc(value / c.step) + clean["noise"]).astype(np.int32))
            for c in made.copies
        ]
        return dataclasses.replace(made, copies=tuple(old))

    with patch(rows, "draw", remembered), patch(rows.Stock, "carried", carried):
        yield


@fault(
    "kept rows reused under other bounds",
    "rows by other bounds are taken for rows by these",
    kept_rows=on(checks.kept_rows, "fdml, columns"),
)
def _() -> Iterator[None]:
    with patch(party, "recipe_of", lambda recipe, query, *, secure: "0" * 32):
        yield


# ------------------------------------------------------------------------------------------------ messages and labels


@fault(
    "nonsense not refused",
    "a coordinator's NaN and huge weights are answered",
    nonsense=on(checks.nonsense, "gradient, central"),
)
def _() -> Iterator[None]:
    with patch(Algorithm, "objection", lambda self, plan, query, round_, arrays: None):
        yield


@fault(
    "labels broadcast",
    "the holder of the labels sends them as they are",
    metadata=on(checks.metadata, "admm, columns, labels held"),
    support=on(checks.support, "admm, columns, labels held"),
)
def _(real: Any = own_gradients.OwnGradients.answer) -> Iterator[None]:
    def plain(self: Any, plan: Plan, query: Any, block: Any, gate: Any, round_: int, *rest: Any) -> Released:
        if query.name != "labels" or not isinstance(gate, Gate):
            return real(self, plan, query, block, gate, round_, *rest)
        return Released("labels", round_, {"value": np.array(block.labels)}, seal=gates._SEAL)

    with patch(own_gradients.OwnGradients, "answer", plain):
        yield


@fault(
    "held labels known to all",
    "parties that should not know the labels weigh their rows by them",
    labels=on(checks.labels, "admm, columns, labels held"),
)
def _(real: Any = blocks.Preparation.labels, answer: Any = own_gradients.OwnGradients.answer) -> Iterator[None]:
    def known(self: Any, y: Any) -> Any:
        return real(dataclasses.replace(self, labelled=True), y)

    def used(
        self: Any, plan: Plan, query: Any, block: Any, gate: Any, round_: int, arrays: Any, memory: Any
    ) -> Released:
        told = {name: array for name, array in arrays.items() if name != "labels"}
        return answer(self, plan, query, block, gate, round_, told, memory)

    with patch(blocks.Preparation, "labels", known), patch(own_gradients.OwnGradients, "answer", used):
        yield


def table() -> str:
    """The catalogue as a table for the documentation."""
    lines = ["| fault | what is wrong | caught by |", "|---|---|---|"]
    for each in FAULTS.values():
        found = dict.fromkeys(key.split("__")[0].replace("_", " ") for key in each.found_by)
        lines.append(f"| {each.name} | {each.line} | {', '.join(found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
