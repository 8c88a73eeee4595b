"""Faults that are planted on purpose, and the checks that must find each: running this file prints them.

A fault is a context in which the real code, or a plan, is wrong in one way. Its checks pass without it.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import io
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
import checks

from sottovoce.algorithms import Ask, evaluation, sgd
from sottovoce.algorithms import sgd as named
from sottovoce.algorithms.cd import walk as cd
from sottovoce.algorithms.evaluation import groups
from sottovoce.algorithms.scd import private as scd
from sottovoce.algorithms.score import queries as score
from sottovoce.algorithms.sharing import gradients as own_gradients
from sottovoce.data import block as blocks
from sottovoce.data import matrix as row_slopes
from sottovoce.data import preparation, projection
from sottovoce.data.files import csv as csv_files
from sottovoce.data.files import format as formats
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.federation import federation, models, policy, prediction, training
from sottovoce.gate import gate as gates
from sottovoce.gate import query as queries
from sottovoce.gate.gate import Gate
from sottovoce.gate.outgoing import GATE, Released
from sottovoce.gate.query import Query, Round
from sottovoce.lab.audit import games
from sottovoce.lab.audit.runner import EVALUATED, LABELS, ORDERED, audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy import accounting, calibration, events, guarantee, ledger_file, mechanisms
from sottovoce.privacy.ledger import Account
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries import parts, pricing, sums
from sottovoce.queries.pricing import Pricing
from sottovoce.queries.sums import GradientSum, ProjectedGradient
from sottovoce.transports import identity
from support import play

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


def planted(name: str, line: str, plant: Callable[[], Any], **found_by: Check) -> None:
    """Add a fault that is a patch alone."""
    FAULTS[name] = Fault(name, line, plant, found_by)


def on(check: Callable[..., Any], case: str) -> Check:
    """The check on one case, in a folder of its own where it needs one."""

    def run() -> None:
        made = (checks.cases() | checks.published())[case]
        if check in (checks.kept_rows, checks.ledger, checks.served):
            with tempfile.TemporaryDirectory() as folder:
                check(made, Path(folder))
        else:
            check(made)

    return run


def game(solver: str, runs: int, records: Any = (), **fields: Any) -> Check:
    """A distinguishing game of the audit, with a fixed seed; it accuses a correct mechanism less often than ALARM."""

    def run() -> None:
        with mock.patch.object(games, "ALARM", ALARM):
            result = play(games.Game(solver, audit_plan(solver, **fields), records=records), runs=runs, seed=1)
        assert result.verdict == "holds", (
            f"{result.verdict}: {result.measured:.2f} measured, {result.claimed:.2f} claimed"
        )

    return run


patch = mock.patch.object


@contextlib.contextmanager
def everywhere(real: Any, instead: Any) -> Iterator[None]:
    """A function replaced in every module of the package that has taken its name."""
    with contextlib.ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith("sottovoce")]:
            for name, value in list(vars(module).items()):
                if value is real:
                    stack.enter_context(patch(module, name, instead))
        yield


# ------------------------------------------------------------------------------------------------ evaluation


@fault(
    "a record in two groups",
    "who is in one group counts in the cells of the next one too",
    sensitivity=on(checks.sensitivity, "evaluation, central, numbers by groups"),
    game=game("evaluation", 1500, relation="zero-out", **EVALUATED["numbers by groups"]),
)
def _(real: Any = groups.ByGroup._cells) -> Iterator[None]:
    def twice(self: Any, rows: Any) -> Any:
        found = real(self, rows)
        return found + np.roll(found, self.query.length)

    with patch(groups.ByGroup, "_cells", twice):
        yield


@fault(
    "groups charged as one of them",
    "that a record may move from a group to another is left out of the charge",
    game=game("evaluation", 300, **EVALUATED["classes by groups"]),
)
def _(real: Any = groups.ByGroup.__init__) -> Iterator[None]:
    def short(self: Any, query: Any, of: Any) -> None:
        real(self, query, of)
        self.replacement = 0.5

    with patch(groups.ByGroup, "__init__", short):
        yield


@fault(
    "ordered classes charged without their losses",
    "of ordered classes the counts alone are charged",
    sensitivity=on(checks.sensitivity, "evaluation, central, ordered classes"),
    game=game("evaluation", 600, **ORDERED, records=LABELS),
)
def _(real: Any = evaluation.ClassCells.__init__) -> Iterator[None]:
    def short(self: Any, weights: Any, loss: Any) -> None:
        real(self, weights, loss)
        self.bound = 0.5

    with patch(evaluation.ClassCells, "__init__", short):
        yield


@fault(
    "losses not counted in the bound",
    "counts and losses of test records are charged as if counts alone left",
    sensitivity=on(checks.sensitivity, "evaluation, central, several classes"),
    sensitivity__by_rows=on(checks.sensitivity, "evaluation, rows, several classes"),
)
def _(real: Any = evaluation.ClassCells.__init__) -> Iterator[None]:
    def short(self: Any, weights: Any, loss: Any) -> None:
        real(self, weights, loss)
        self.bound = 1.0

    with patch(evaluation.ClassCells, "__init__", short):
        yield


@fault(
    "test records counted twice",
    "the share of a record's second cell is added to the next one too",
    sensitivity=on(checks.sensitivity, "evaluation, rows, classes"),
    sensitivity__numbers=on(checks.sensitivity, "evaluation, central"),
)
def _(real: Any = evaluation.cells) -> Iterator[None]:
    def twice(rows_: Any, places: Any, t: Any, count: int) -> Any:
        found = real(rows_, places, t, count)
        return found + np.roll(found, 1)

    with patch(evaluation, "cells", twice):
        yield


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
    "noise of kept rows halved", "rows are kept with half the planned noise", scale=on(checks.scale, "admm, columns")
)
def _(real: Any = mechanisms.rounded_gaussian) -> Iterator[None]:
    def halved(value: Any, std: float, step: float, source: Any, draw: Any = gates.draw_rows) -> Any:
        with patch(gates, "rounded_gaussian", lambda scale, size, source: real(scale / 2, size, source)):
            return draw(value, std, step, source)

    with patch(gates, "draw_rows", halved):
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
    def noisy(self: Gate, query: Query, round: Round) -> Released:
        release = self._plan.release(query.name)
        value = query.value(round)
        value = value + release.std * np.random.default_rng(round.number).normal(size=value.shape)
        return Released(query.name, round.number, {"value": value}, made_by=GATE)

    with patch(Gate, "release", noisy):
        yield


@fault(
    "weights counted twice", "entries that weigh more get too little noise", scale=on(checks.scale, "newton, central")
)
def _(real: Any = Gate._noise) -> Iterator[None]:
    with patch(Gate, "_noise", lambda self, release, weights, size: real(self, release, weights * weights, size)):
        yield


@fault("one draw for all entries", "a vector gets one number as noise", rank=on(checks.rank, "newton, central"))
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
def _(real: Any = Gate._noise, door: Any = Gate.release) -> Iterator[None]:
    largest = [1.0]

    def release(self: Gate, query: Query, round: Round) -> Any:
        largest[0] = 1.0 + float(np.trace(round.rows.gram()))
        return door(self, query, round)

    def scaled(self: Gate, release: Release, weights: Any, size: int) -> Any:
        return real(self, release, weights / largest[0], size)

    with patch(Gate, "release", release), patch(Gate, "_noise", scaled):
        yield


planted(
    "noise in the span of the columns",
    "ADMM sharing as printed: degenerate noise in place of noise on every score",
    lambda: patch(checks, "audit_plan", functools.partial(audit_plan, calibration="paper")),
    rank=on(checks.rank, "admm, columns"),
    metadata=on(checks.metadata, "admm, columns"),
)

planted(
    "seed reused between parties",
    "all parties of a seeded federation draw the same noise",
    lambda: patch(federation, "SeededRandomness", lambda seed, *labels: SeededRandomness(seed)),
    own_randomness=checks.own_randomness,
)


# ------------------------------------------------------------------------------------------------ sensitivity


planted(
    "clipping dropped",
    "slopes are not clipped to their bound",
    lambda: patch(sums, "clipped_derivative", lambda loss, bound, bits: loss.derivative),
    sensitivity=on(checks.sensitivity, "gradient, central"),
)


@fault(
    "clipping dropped from the fused loop",
    "a fused loop is told a bound of slopes that is far above the one that was charged",
    sensitivity=on(checks.sensitivity, "gradient, central"),
)
def _(real: Any = row_slopes.Slope.__dict__["numbers"]) -> Iterator[None]:
    def uncut(self: Any) -> Any:
        numbers = real.func(self).copy()
        numbers[4] *= 1e3
        return numbers

    with patch(row_slopes.Slope, "numbers", property(uncut)):
        yield


@fault(
    "dual steps cut too late",
    "a dual step is clipped at twice the clip that was charged",
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
def _(real: Any = preparation.prepare_dense) -> Iterator[None]:
    def longer(raw: Any, columns: Any, numbers: Any, *told: Any) -> None:
        real(raw, columns, (2.0 * numbers[0], *numbers[1:]), *told)

    with patch(preparation, "prepare_dense", longer):
        yield


planted(
    "whitened rows not cut",
    "a whitened row that is longer than the cut is left as long",
    lambda: patch(projection.Projected, "_find", lambda self, _: setattr(self, "lengths", np.zeros(len(self._block)))),
    sensitivity=on(checks.sensitivity, "whitened, central"),
)


@fault(
    "whitened sums of longer rows",
    "a sum of whitened rows is multiplied by twice the matrix that the lengths were taken with",
    sensitivity=on(checks.sensitivity, "whitened, central"),
)
def _(real: Any = projection.exact_product) -> Iterator[None]:
    with patch(projection, "exact_product", lambda matrix, *told, **more: real(2.0 * matrix, *told, **more)):
        yield


@fault(
    "slopes of whitened rows cut too late",
    "slopes are clipped at twice what was told, and the sum is divided by what was told",
    sensitivity=on(checks.sensitivity, "whitened, rows"),
)
def _(real: Any = ProjectedGradient.value) -> Iterator[None]:
    def wider(self: Any, round: Round) -> Any:
        return 2.0 * real(self, round._replace(told={**round.told, "slope": 2.0 * round.told["slope"]}))

    with patch(ProjectedGradient, "value", wider):
        yield


@fault(
    "slopes of several classes cut one by one",
    "each entry of a row of slopes is clipped to the bound, and not the length of the row",
    sensitivity=on(checks.sensitivity, "gradient, central, several classes"),
    sensitivity__whitened=on(checks.sensitivity, "whitened, central, one-vs-rest"),
)
def _() -> Iterator[None]:
    def each(loss: Any, most: float, scores: Any, labels: Any) -> Any:
        return np.clip(loss.derivative(scores, labels) / most, -1.0, 1.0)

    with everywhere(row_slopes.clip_rows, each):
        yield


planted(
    "sensitivity of the wrong relation",
    "a gradient under replace-one is bounded as under zero-out",
    lambda: patch(GradientSum, "sensitivity", lambda self, relation: self.slope_bound),
    sensitivity=on(checks.sensitivity, "gradient, central"),
    composition=on(checks.composition, "gradient, central"),
)


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
def _(real: Any = GradientSum.value) -> Iterator[None]:
    def mean(self: Any, round: Round) -> Any:
        return real(self, round) * len(round.rows) / max(int(round.rows.usable_rows.sum()), 1)

    with patch(GradientSum, "value", mean):
        yield


planted(
    "null rows count in the intercept",
    "a null row has a 1 in the constant column",
    lambda: patch(blocks.Block, "usable_rows", property(lambda block: np.ones(len(block), dtype=np.bool_))),
    sensitivity=on(checks.sensitivity, "admm, columns, logistic"),
)

planted(
    "inner steps not counted",
    "a walk of many coordinates is bounded as one step",
    lambda: patch(cd.CoordinateWalk, "sensitivity", lambda self, relation: queries.distance(relation)),
    sensitivity=on(checks.sensitivity, "cd, central"),
    composition=on(checks.composition, "cd, central"),
)


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


planted(
    "duals visible",
    "DP-SCD as printed: noise on the sampled duals alone shows who was sampled",
    lambda: patch(checks, "audit_plan", functools.partial(audit_plan, calibration="paper")),
    support=on(checks.support, "scd, central"),
)


@fault(
    "sampled set visible in sizes",
    "a message has a number for each record of the batch",
    support=on(checks.support, "sgd, central"),
    support__of_dual_steps=on(checks.support, "scd, rows"),
)
def _(drawn: Any = Gate._drawn, store: Any = Gate._store) -> Iterator[None]:
    sizes = [0]

    def watched(self: Gate, release: Release, round: Any) -> Iterator[Any]:
        for batch in drawn(self, release, round):
            sizes[0] = len(batch)
            yield batch

    def longer(self: Gate, released: Released, unordered: bool, memory: Any) -> Released:
        arrays = {**released.arrays, "steps": np.zeros(sizes[0])}
        return store(self, Released(released.query, released.round, arrays, made_by=GATE), unordered, memory)

    with patch(Gate, "_drawn", watched), patch(Gate, "_store", longer):
        yield


@fault("empty batch skipped", "a party whose batch is empty sends nothing", support=on(checks.support, "sgd, rows"))
def _(real: Any = GradientSum.value) -> Iterator[None]:
    def nothing(self: Any, round: Round) -> Any:
        return real(self, round) if len(round.rows) else np.zeros(0)

    with patch(GradientSum, "value", nothing):
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

    with patch(queries.Together, "sensitivity", largest):
        yield


planted(
    "rounds not counted",
    "a plan pays for one release of each kind",
    lambda: patch(queries.Turn, "rounds", lambda self, plan, party, first, count: 1),
    composition=on(checks.composition, "gradient, rows"),
    served=on(checks.served, "gradient, rows"),
)


@fault(
    "batches not counted",
    "a message of several batches costs what one of them costs",
    composition=on(checks.composition, "scd, central"),
    served=on(checks.served, "scd, central"),
)
def _(real: Any = Release.event) -> Iterator[None]:
    def one(self: Release, *arguments: Any, **options: Any) -> Any:
        return real(self.model_copy(update={"batches": 1}), *arguments, **options)

    with patch(Release, "event", one):
        yield


planted(
    "uses undercounted",
    "a record pays for one of the rounds that it is in",
    lambda: patch(Query, "uses", lambda self, times: min(times, 1)),
    composition=on(checks.composition, "gradient, rows"),
    served=on(checks.served, "newton, central"),
)

planted(
    "named records undercounted",
    "a record that a coin names several times pays for one of them",
    lambda: patch(named.RecordGradient, "uses", lambda self, times: min(times, 1)),
    served=on(checks.served, "sgd, rows, as published"),
)


@fault(
    "coin averaged",
    "a record named by the coordinator's coin is priced as if nobody had the coin",
    told=on(checks.told, "sgd, rows, as published"),
)
def _() -> Iterator[None]:
    def averaged(self: Any, form: Any, plan: Plan, kind: Any) -> dict[str, Any]:
        once = plan.releases[0].charged(kind) / plan.releases[0].std
        found = guarantee.Profile.of(lambda d: calibration.visible_uses_epsilon(once, 1 / plan.records, plan.rounds, d))
        return dict.fromkeys(("world", "coordinator", "parties"), found)

    with patch(named.NamedRecordPricing, "profiles", averaged):
        yield


planted(
    "curve without the samplers",
    "the trade-off is that of ideal samplers, and nothing is set aside for their errors",
    lambda: everywhere(guarantee.with_errors, lambda missed, alarms, error: missed(alarms)),
    told=on(checks.told, "gradient, central"),
)

planted(
    "scores taken for sums",
    "a report says that sums alone left, and a score of every person left",
    lambda: patch(score.ScoreValues, "each_person", False),
    declared_people=on(checks.declared_people, "score, columns"),
)

planted(
    "everybody's turn",
    "every party answers in every round, though the plan names one and charges for its rounds",
    lambda: patch(queries.Scheduled, "__call__", lambda self, plan, party, number: True),
    served=on(checks.served, "sgd, rows, one party a round"),
    ledger=on(checks.ledger, "sgd, rows, one party a round"),
)


@fault(
    "everybody's turn, not recounted",
    "likewise, and the party does not count what it would serve",
    served=on(checks.served, "sgd, rows, one party a round"),
)
def _() -> Iterator[None]:
    with (
        patch(queries.Scheduled, "__call__", lambda self, plan, party, number: 0 <= number < plan.rounds),
        patch(Pricing, "check_served", lambda self, form, plan, party: None),
    ):
        yield


planted(
    "one party's answer taken for a sum",
    "the world is charged for the noise of all parties, and one of them answers",
    lambda: patch(sgd.NamedGradient, "world_sees", "sum"),
    world=on(checks.world, "sgd, rows, one party a round"),
)


@fault(
    "world told nothing",
    "the world is not charged for gradients, of which the model is made",
    world=on(checks.world, "gradient, rows"),
    world__central=on(checks.world, "newton, central"),
    world__by_columns=on(checks.world, "admm, columns"),
)
def _() -> Iterator[None]:
    with patch(GradientSum, "world_sees", "nothing"), patch(parts.PartGradient, "world_sees", "nothing"):
        yield


@fault(
    "answers not priced together",
    "by columns what one party's answers move counts for all of them",
    composition=on(checks.composition, "fdml, columns"),
    served=on(checks.served, "score, columns"),
)
def _(real: Any = pricing.Together) -> Iterator[None]:
    with patch(pricing, "Together", lambda several: real(several[:1])):
        yield


@fault(
    "together dropped",
    "a release that covers all parties' answers is charged for each of them",
    budget=on(checks.budget, "score, columns"),
    ledger=on(checks.ledger, "score, columns"),
)
def _() -> Iterator[None]:
    with patch(score.OwnQuery, "together", False), patch(score.OwnGram, "together", False):
        yield


planted(
    "distance of the wrong relation",
    "a record that is replaced moves a sum as far as one that is left out",
    lambda: everywhere(events.distance, lambda relation: 1.0),
    sensitivity=on(checks.sensitivity, "gradient, central"),
    composition=on(checks.composition, "gradient, central"),
)

planted(
    "samplers' share spent",
    "events use all of delta, and nothing is left for the samplers' errors",
    lambda: everywhere(events.inside, lambda delta: delta),
    budget=on(checks.budget, "gradient, central"),
    budget__of_choices=on(checks.budget, "frank-wolfe, central"),
    budget__of_samples=on(checks.budget, "sgd, rows"),
)


@fault(
    "replace-one accounted as zero-out",
    "sampled rounds are composed under the weaker relation",
    accountant=checks.accountant,
)
def _(real: Any = accounting._loss_distribution_epsilon, mu: Any = accounting._unsampled_mu) -> Iterator[None]:
    def weaker(sampled: Any, gaussian: float, delta: float, relation: Any, step: float) -> float:
        return real(sampled, gaussian, delta, "zero-out", step)

    calibration.noise_multiplier_for.cache_clear()
    with (
        patch(accounting, "_loss_distribution_epsilon", weaker),
        patch(accounting, "_unsampled_mu", lambda event, relation: mu(event, "zero-out")),
    ):
        yield
    calibration.noise_multiplier_for.cache_clear()


planted(
    "second draw under one key",
    "who asks again gets new noise, uncharged",
    lambda: patch(Gate, "_stored", lambda self, query, number: None),
    once=on(checks.once, "gradient, central"),
    once__for_choices=on(checks.once, "frank-wolfe, central"),
)


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
    "kept rows not charged",
    "an account is not charged for the rows that get noise once",
    ledger=on(checks.ledger, "admm, columns"),
)
def _(real: Any = policy.charge_of) -> Iterator[None]:
    def free(form: Any, plan: Plan, name: str) -> Any:
        kept = [release.mechanism == "kept" for release in plan.releases if release.mechanism != "derived"]
        return lambda relation: tuple(
            event for event, free in zip(real(form, plan, name)(relation), kept, strict=True) if not free
        )

    with patch(training, "charge_of", free):
        yield


@fault(
    "world tier where scores are read",
    "scores are centred by their own mean, which tells of every record, and the world is charged for gradients alone",
    world=on(checks.world, "admm, columns"),
    world__fdml=on(checks.world, "fdml, columns"),
)
def _() -> Iterator[None]:
    def centred(self: Any, plan: Plan, number: int, parts: Mapping[str, Any]) -> Any:
        weights = {name: {"weights": part.weights[: part.width]} for name, part in parts.items()}
        noisy = yield Ask("scores", {}, round=number, each=weights)
        std = plan.release("rows").std
        away = {name: noisy[name] - float(noisy[name].mean()) for name in parts}
        return away, {name: std * float(np.linalg.norm(part.weights[: part.width])) for name, part in parts.items()}

    with patch(own_gradients.NoisyRowScores, "scores_of_others", centred):
        yield


# ------------------------------------------------------------------------------------------------ kept rows


@fault(
    "row noise redrawn every round",
    "rows are drawn anew for every message, so that their mean is the row",
    persistence=on(checks.persistence, "admm, columns"),
)
def _(real: Any = Gate._derived) -> Iterator[None]:
    def anew(self: Gate, query: Any, round: Round) -> Any:
        self._rows.clear()
        return real(self, query, round)

    with patch(Gate, "_derived", anew):
        yield


@fault(
    "row noise redrawn after a restart",
    "a party that is started again draws its rows anew under the same charge",
    kept_rows=on(checks.kept_rows, "admm, columns"),
)
def _(real: Any = Account.release) -> Iterator[None]:
    def unrecorded(self: Account, *key: Any, kind: str = "release") -> Any:
        return key[-1] if kind == "rows" else real(self, *key)

    with patch(Account, "release", unrecorded):
        yield


planted(
    "kept rows reused for changed values",
    "a plan goes on with the rows of other records than it began with",
    lambda: patch(blocks.Block, "digest", lambda self: bytes(32)),
    kept_rows=on(checks.kept_rows, "admm, columns"),
)


@fault(
    "row noise used for two plans",
    "the noise of a plan's rows is that of the plan before",
    kept_rows=on(checks.kept_rows, "fdml, columns"),
)
def _(real: Any = gates.draw_rows) -> Iterator[None]:
    def same(value: Any, std: float, step: float, source: Any) -> Any:
        del source
        return real(value, std, step, SeededRandomness(1))

    with patch(gates, "draw_rows", same):
        yield


# ------------------------------------------------------------------------------------------------ messages and labels


planted(
    "nonsense not refused",
    "a coordinator's NaN and huge weights are answered",
    lambda: patch(Query, "objection", lambda self, number, told: None),
    nonsense=on(checks.nonsense, "gradient, central"),
)


@fault(
    "NaN taken for a number",
    "a message fits if its shape does, whatever its numbers are",
    nonsense=on(checks.nonsense, "gradient, central"),
    nonsense__by_columns=on(checks.nonsense, "admm, columns"),
)
def _(real: Any = queries.misfit) -> Iterator[None]:
    def lenient(takes: Any, told: Any) -> Any:
        return real(takes, {name: np.nan_to_num(array, posinf=0.0, neginf=0.0) for name, array in told.items()})

    with patch(queries, "misfit", lenient):
        yield


@fault(
    "numbers of any size",
    "a message fits however large its numbers are",
    nonsense=on(checks.nonsense, "newton, central"),
    nonsense__of_places=on(checks.nonsense, "frank-wolfe, columns"),
)
def _(real: Any = queries.Reals.fits) -> Iterator[None]:
    def wide(self: Any, array: Any) -> bool:
        return bool(real(dataclasses.replace(self, least=-math.inf, most=math.inf), array))

    with patch(queries.Reals, "fits", wide):
        yield


@fault(
    "labels broadcast",
    "the holder of the labels sends them as they are",
    metadata=on(checks.metadata, "admm, columns, labels held"),
    support=on(checks.support, "admm, columns, labels held"),
)
def _(real: Any = Gate.release) -> Iterator[None]:
    def plain(self: Gate, query: Any, round: Round) -> Released:
        if query.name != "labels":
            return real(self, query, round)
        return Released("labels", round.number, {"value": np.array(round.rows.labels)}, made_by=GATE)

    with patch(Gate, "release", plain):
        yield


@fault(
    "held labels known to all",
    "parties that should not know the labels weigh their rows by them",
    labels=on(checks.labels, "admm, columns, labels held"),
)
def _(real: Any = preparation.Preparation.labels, slopes: Any = parts.PartSlopes.at) -> Iterator[None]:
    def known(self: Any, y: Any) -> Any:
        return real(dataclasses.replace(self, labelled=True), y)

    def used(self: Any, round: Round) -> Any:
        told = {name: array for name, array in round.told.items() if name != "labels"}
        return slopes(self, round._replace(told=told))

    with patch(preparation.Preparation, "labels", known), patch(parts.PartSlopes, "at", used):
        yield


planted(
    "integrity check skipped",
    "the structures of a ledger's file are taken as sound",
    lambda: patch(ledger_file, "_check_structure"),
    damaged_index=checks.damaged_index,
)


@fault(
    "index trusted",
    "an entry that the index of a ledger does not have is taken as never written",
    flipped_bits=checks.flipped_bits,
)
def _() -> Iterator[None]:
    def by_index(self: ledger_file.Entries, *key: Any) -> ledger_file.EntryRow | None:
        names = ", ".join(ledger_file.EntryRow._fields)
        condition = "kind = ? AND dataset = ? AND plan = ? AND round = ? AND query = ?"
        query = f"SELECT {names} FROM entries INDEXED BY entry_key WHERE {condition}"
        found = self._connection.execute(query, ledger_file.Key(*key)).fetchone()
        return None if found is None else ledger_file.EntryRow._make(found)

    with patch(ledger_file.Entries, "find", by_index):
        yield


@fault("chain not checked", "the entries of a ledger are taken as they are read", flipped_bits=checks.flipped_bits)
def _() -> Iterator[None]:
    def taken(self: ledger_file.Entries, number: int) -> ledger_file.EntryRow:
        return next(ledger_file._rows(self._connection, "number = ?", number))

    with patch(ledger_file, "_check_next"), patch(ledger_file.Entries, "row", taken):
        yield


# ------------------------------------------------------------------------------------------------ signatures and models


@fault(
    "an unsigned plan",
    "a party answers as soon as it has charged the plan, whoever else has signed it",
    signed=on(checks.signed, "gradient, rows"),
    signed__by_columns=on(checks.signed, "score, columns"),
)
def _(real: Any = training.Training.accept) -> Iterator[None]:
    def at_once(self: Any, frame: Any) -> Any:
        answer = real(self, frame)
        if self._holder.run is not None:
            self._holder.run.started = True
        return answer

    with patch(training.Training, "accept", at_once):
        yield


planted(
    "signatures not verified",
    "a signature counts if it is there, whatever was signed and by whom",
    lambda: patch(identity.Local, "verify", lambda self, name, purpose, message, text: None),
    signed=on(checks.signed, "newton, rows"),
    earned=on(checks.earned, "score, columns"),
)


@fault(
    "a plan signed before it is charged",
    "a party signs the plans that it is asked to check",
    signed=on(checks.signed, "admm, columns"),
)
def _(real: Any = training.Training.accept) -> Iterator[None]:
    def eager(self: Any, frame: Any) -> Any:
        answer = real(self, frame)
        return self.sign(training.read_plan(frame.text, frame.plan)) if frame.query == "check" else answer

    with patch(training.Training, "accept", eager):
        yield


planted(
    "a model that nobody earned",
    "a party keeps the coefficients that it is told, whatever it was asked before",
    lambda: patch(training, "answered_all", lambda *_: True),
    earned=on(checks.earned, "admm, columns"),
    earned__by_choices=on(checks.earned, "frank-wolfe, columns"),
)

planted(
    "a model that nobody approved",
    "a party predicts with whatever a run left",
    lambda: patch(models.Models, "approved", lambda self, digest: True),
    earned=on(checks.earned, "one-shot, columns"),
)

planted(
    "keys of the coordinator's choice",
    "the public keys of a prediction are taken from the coordinator",
    lambda: patch(prediction.Request, "check_signatures", lambda self, party, identity: None),
    earned=on(checks.earned, "fdml, columns"),
)


# ---------------------------------------------------------------------------------------------- records


@fault("a cell ends the run", "a reader refuses a file for one cell that is no number", lines=checks.lines)
def _(real: Any = csv_files.read_each_number) -> Iterator[None]:
    def strict(cells: Any) -> Any:
        found, numeric = real(cells)
        if not numeric.all():
            raise InputError("a column is not numeric.")
        return found, numeric

    with patch(csv_files, "read_each_number", strict):
        yield


@fault("an open quote goes on", "a quote that is never closed swallows the lines after it", lines=checks.lines)
def _() -> Iterator[None]:
    @contextlib.contextmanager
    def joined(path: Any) -> Iterator[Any]:
        with Path(path).open(encoding="utf-8") as text:
            rows = [",".join(cells).replace("\n", " ") for cells in csv.reader(text)]
        yield io.BytesIO("\n".join(rows).encode())

    with patch(formats, "open_data", joined):
        yield


@fault(
    "bounds as units",
    "rows of a run without privacy are divided by the declared bounds",
    bounds_without_privacy=checks.bounds_without_privacy,
)
def _(real: Any = preparation.Preparation.__dict__["scale"]) -> Iterator[None]:
    def scaled(self: Any) -> Any:
        return 1.0 / (self.bounds.norm(self.features) or 1.0) if not self.scaled else real.func(self)

    with patch(preparation.Preparation, "scale", property(scaled)):
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
