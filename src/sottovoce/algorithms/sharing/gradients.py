"""Training over columns by gradients that each party releases of its own columns: what `admm` and `fdml` share.

The coordinator knows all weights. Each party m makes slopes r_i, one for each record, of its own clean scores x_m'w_m
and of noisy scores of the other parties, and releases sum_i r_i x_m with noise. The slopes are cut to +-G: so a record
moves the gradient by its own term alone, and noise of a central kind suffices. What remains is how the others' scores
are told: as scores of rows that carry noise once and for all (`KeptRows`), or once, cut, with noise of their own
(`admm_fresh`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    TailAverage,
    draft,
    is_held,
    option,
    problem_loss,
    slope_bound,
)
from sottovoce.algorithms.sharing.parts import (
    Joint,
    PartGradient,
    PartLabels,
    PartQuery,
    PartRows,
    RowScores,
    exact_scores,
    usable,
)
from sottovoce.algorithms.sharing.updates import check_penalty
from sottovoce.data.block import Block, Layout
from sottovoce.door.gate import Gate, Released
from sottovoce.door.noisy_rows import row_event
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError, RefusedError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Part, Plan, Release, Split
from sottovoce.privacy.accounting import SAMPLER_SHARE, Event, Relation, mu_for

Array = NDArray[np.float64]
Views = Generator[Ask, dict[str, Array], dict[str, "View"]]
Hearing = Generator[Ask, dict[str, Array], tuple[dict[str, Array], dict[str, float]]]

LABEL_SHARE = 0.3  # of mu^2, where one party alone knows the labels
WIDER = 1 / 3  # a party whose others are barely heard lets its own columns speak for them, by so much for each
RIDGE = 2e-6  # N B^2 times this is added to the penalty: it keeps the noise of the rows out of the weights
SPREAD = {"classification": 2.0, "regression": 0.1}  # mean square of the scores that noisy labels leave to be found


class OwnGradients(Algorithm):
    """Rounds of gradients; the forms say how scores are told and what a step is.

    The slopes of party m are taken at s = a_m + c_m x_m'w_m + theta_m sum_{k != m} (noisy, centred scores of party k),
    theta_m = min(1, G / the standard deviation of their noise): what is mostly noise is turned down, to where it stays
    within the slopes' bound. Scores are centred by released means, and c_m = 1 + (1 - theta_m) (M - 1) / 3 lets a
    party's own columns, with which those of the others go along, stand for what it does not hear.

    Guarantee: mu^2 = (cost of what tells the scores) + sum_m [(cost of `view`) + T (B_m / std_gradient)^2]
    (+ 1 / std_labels^2 for held labels) against the coordinator and the parties, B_m^2 = b_m^2 + 1 and b_m the bound of
    a part; against the world, who sees the model alone, gradients and views without the rest (`proof.md`).
    Replace-one doubles the sensitivities.
    Edges: a holder that is stopped has lost the run.
    """

    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    options: ClassVar[tuple[str, ...]] = ("rounds", "slope_bound", "row_share", "world_epsilon")
    kinds: ClassVar[Mapping[str, str]] = {"scores": "scores", "gradient": "gradients", "gram": "means", "sums": "means"}
    resumes: ClassVar[bool] = False
    layout: ClassVar[Layout] = "entries"
    samples: ClassVar[bool] = False

    mechanisms: ClassVar[Mapping[str, str]] = {}  # of releases that are not Gaussian
    row_share: ClassVar[float] = 0.6  # of mu^2, for what tells the scores
    view_share: ClassVar[float]  # of what that leaves

    @abstractmethod
    def view(self, plan: Plan, part: Part) -> PartQuery:
        """What a party tells of its columns before the first round."""

    @abstractmethod
    def views(self, plan: Plan) -> Views:
        """The parties' weights and how they move."""

    @abstractmethod
    def message(self, plan: Plan, part: Part) -> tuple[PartQuery, ...]:
        """What tells a party's scores: first the query that has their cost."""

    @abstractmethod
    def message_releases(self, plan: Plan, mu: float, relation: Relation, rounds: int) -> list[Release]:
        """Its releases, for mu in all."""

    @abstractmethod
    def message_event(self, plan: Plan, relation: Relation, owed: Mapping[str, float]) -> Event:
        """What the scores of all parties cost."""

    @abstractmethod
    def hear(self, plan: Plan, round_: int, views: Mapping[str, View]) -> Hearing:
        """Each party's noisy scores, centred, and the standard deviation of their noise."""

    @abstractmethod
    def rounds_of(self, problem: Problem, signal: float) -> int:
        """How many rounds, by a public rule; `signal` = N / (std of a mean gradient's noise)."""

    @abstractmethod
    def slopes(self, plan: Plan, scores: Array, labels: Array, memory: Memory, *, blurred: bool) -> Array:
        """What a party weighs its rows by."""

    def design(self, problem: Problem) -> Design:
        """Shares of mu^2: what tells the scores, view, gradients and, if they are held, labels."""
        return self.designed(problem, {})

    def designed(self, problem: Problem, extra: Mapping[str, float]) -> Design:
        """The design, with numbers that a form adds."""
        check_penalty(problem, self.name)
        plan = draft(problem, extra, "entries")
        loss, mu = problem_loss(problem), problem.mu
        label_share = LABEL_SHARE if is_held(problem) else 0.0
        world = self._world_share(problem) / (1 - label_share)
        bound = slope_bound(problem)
        numbers = {"slope_bound": bound, "held_bound": bound, "blur": 0.0, **extra}
        releases = []
        if label_share:
            labels = PartLabels(plan, plan.part(plan.holder_name))
            releases.append(Release.at_mu(labels, 0, 1, mu * math.sqrt(label_share), problem.relation))
            blur = releases[0].std * (0.5 if loss.kind == "classification" else 1.0)  # of a slope
            numbers |= {"blur": blur, "held_bound": math.hypot(bound, 0.5 * blur)}
        rest = mu * math.sqrt(1 - label_share)
        views, gradients = self.joint(plan, self.view), unit_gradients(plan)
        shares = (1 - world, world * self.view_share, world * (1 - self.view_share))
        single = gradients.sensitivity(problem.relation) / (rest * math.sqrt(shares[2]))
        rounds = option(problem, "rounds", self.rounds_of(problem, problem.records / single), low=2, whole=True)
        releases += [
            *self.message_releases(plan, rest * math.sqrt(shares[0]), problem.relation, rounds),
            Release.at_mu(views, 0, 1, rest * math.sqrt(shares[1]), problem.relation),
            Release.at_mu(gradients, 0, rounds, rest * math.sqrt(shares[2]), problem.relation),
        ]
        return Design(rounds, numbers, tuple(releases), layout="entries")

    def _world_share(self, problem: Problem) -> float:
        """The part of mu^2 that the model may cost against the world."""
        share: float = 1 - option(problem, "row_share", self.row_share, low=0.01, high=0.99)
        world = problem.options.get("world_epsilon")
        if world is None:
            return share * (1 - (LABEL_SHARE if is_held(problem) else 0.0))
        if problem.options.get("row_share") is not None:
            raise InputError("row_share and world_epsilon both say how much noise the rows get; give one of them.")
        world = option(problem, "world_epsilon", 1.0, low=1e-6)
        part = (mu_for(world, problem.delta * (1 - SAMPLER_SHARE)) / problem.mu) ** 2
        most = 0.99 * (1 - (LABEL_SHARE if is_held(problem) else 0.0))
        if not part <= most:
            raise InputError(
                f"world_epsilon={world!r} leaves nothing for the rows, which the coordinator and the parties see; take "
                f"less, well below epsilon={problem.epsilon:g}."
            )
        return part

    def joint(self, plan: Plan, make: Any) -> Joint:
        """The queries of all parties."""
        return Joint([make(plan, plan.part(name)) for name, _ in plan.parties])

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.holder_name)

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Any]:
        """What tells the scores, the view, gradients and, where they are held, labels."""
        for release in plan.releases:
            noise = release.std > 0.0 and release.mechanism == "derived"
            if noise or release.mechanism != self.mechanisms.get(release.query, "gaussian"):
                raise RefusedError(f"the plan has {release.query!r} as {release.mechanism!r}, which this form has not.")
        part = plan.part(party)
        gradient = PartGradient(plan, part, bound_of(plan, party))
        labels = {"labels": PartLabels(plan, part)} if is_held(plan) else {}
        made = (*self.message(plan, part), self.view(plan, part), gradient)
        return {query.name: query for query in made} | labels

    def coordinate(self, plan: Plan) -> Coordination:
        """Everything here is a function of released values."""
        held: dict[str, Array] = {}
        if is_held(plan):
            (held["labels"],) = (yield Ask("labels", {}, (plan.holder_name,), 0)).values()
        views = yield from self.views(plan)
        bound = plan["slope_bound"]
        for t in range(plan.rounds):
            deviations, stds = yield from self.hear(plan, t, views)
            total = np.asarray(sum(deviations.values()))
            said: dict[str, dict[str, NDArray[Any]]] = {}
            for name, view in views.items():
                noise = math.hypot(*(std for other, std in stds.items() if other != name), 0.0)
                heard = min(1.0, bound / noise) if noise > 0.0 else 1.0
                view.wider = 1 + (1 - heard) * WIDER * (len(views) - 1)
                offset = heard * (total - deviations[name]) + view.level - view.wider * view.centre
                said[name] = {"weights": view.wider * view.weights[: view.width], "offset": offset}
                if held and t == 0 and name != plan.holder_name:
                    said[name] |= held
            gradients = yield Ask("gradient", {}, round=t, each=said)
            for name, view in views.items():
                view.move(t, gradients[name])
        return Solution(joined(plan, views))

    def remember(self, plan: Plan, block: Block) -> Memory:  # noqa: ARG002
        """Nothing yet."""
        return Memory()

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Any,
    ) -> Released:
        """Scores, or a noisy sum over the rows."""
        if "weights" in arrays and len(arrays["weights"]) != query.width:
            raise RefusedError(f"query {query.name!r} needs {query.width} weights, one for each column of the party.")
        if query.name == "scores":
            return self.tell(query, block, gate, round_, arrays)
        if query.name != "gradient":
            return gate.gaussian(query, round_, block)
        if round_ > memory.round:  # asked again, it is what was said
            memory.round = round_
            if "labels" in arrays:
                memory.labels = np.array(arrays["labels"])
            blurred = memory.labels is not None
            labels = memory.labels if blurred else block.labels
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                scores = exact_scores(block, query.width, arrays["weights"]) + arrays["offset"]
                memory.slopes = self.slopes(plan, scores, labels, memory, blurred=blurred)
        return gate.gaussian(query, round_, block, memory.slopes)

    @abstractmethod
    def tell(self, query: Any, block: Block, gate: Gate, round_: int, arrays: Mapping[str, NDArray[Any]]) -> Released:
        """A party's scores, for the others."""

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """Weights of the party's columns, and a number for each record."""
        if query not in ("scores", "gradient"):
            return None
        width = np.size(arrays.get("weights", ()))
        fits = width in plan.columns and usable(arrays, "weights", width)
        if query == "scores" and "centre" in arrays:
            fits = fits and usable(arrays, "centre", 1)
        if query == "gradient":
            fits = fits and usable(arrays, "offset", plan.records)
            fits = fits and ("labels" not in arrays or (is_held(plan) and usable(arrays, "labels", plan.records)))
        if fits:
            return None
        return f"query {query!r} in round {round_} needs float64 weights of the columns and offsets of the records."

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """The labels are for their holder."""
        return super().serves(plan, party, query, round_) and (query != "labels" or party == plan.holder_name)

    def conversation(self, plan: Plan) -> Iterable[tuple[Ask, int]]:
        """Each party is asked with weights of its own width; held labels go out with the first gradients."""
        offset, first = np.zeros(plan.records), int(is_held(plan))
        own = {name: {"weights": np.zeros(width)} for (name, _), width in zip(plan.parties, plan.columns, strict=True)}
        slopes = {name: said | {"offset": offset} for name, said in own.items()}
        told = {name: said | ({} if name == plan.holder_name else {"labels": offset}) for name, said in slopes.items()}
        for release in plan.releases:
            if release.query == "scores":
                centre = {} if release.mechanism == "derived" else {"centre": np.zeros(1)}
                yield Ask("scores", centre, each=own), release.count
            elif release.query == "gradient":
                yield Ask("gradient", each=told), first
                yield Ask("gradient", each=slopes), release.count - first
            elif release.mechanism != "kept":
                yield Ask(release.query, {}, (plan.holder_name,) if release.query == "labels" else None), 1

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """The model is a function of views and gradients; scores enter it through the slopes, cut, alone."""
        view = self.view(plan, plan.part(plan.holder_name)).name
        gradients = unit_gradients(plan)
        return (
            self.joint(plan, self.view).event(plan.release(view), relation),
            gradients.event(plan.release("gradient"), relation),
        )

    def dues(self, plan: Plan, relation: Relation, party: str, owed: Mapping[str, float]) -> tuple[Event, ...]:  # noqa: ARG002
        """Rows as far as they are owed, and everything else."""
        events = (self.message_event(plan, relation, owed), *self.world_events(plan, relation))
        if not is_held(plan):
            return events
        labels = Joint([PartLabels(plan, plan.part(plan.holder_name))])
        return (*events, labels.event(plan.release("labels"), relation))

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        """All parties' scores in full, whoever paid for kept rows before."""
        std = plan.release(self.message(plan, plan.part(party))[0].name).std
        precision = std**-2 if std > 0.0 else math.inf
        return self.dues(plan, relation, party, {name: precision for name, _ in plan.parties})


class KeptRows(OwnGradients):
    """Scores are told of rows X~_m that carry noise once and for all: a party draws it once and keeps the rows.

    They never leave it; X~_m w_m, a function of them and of public weights, does, in every round.

    Guarantee: the rows cost (b_m / std_rows)^2 for each party, whatever is made of them. Rows that an account has paid
    for cost it nothing more in later runs.
    Edges: a holder that is stopped keeps its rows.
    """

    keeps_rows: ClassVar[bool] = True
    mechanisms: ClassVar[Mapping[str, str]] = {"rows": "kept", "scores": "derived"}

    def message(self, plan: Plan, part: Part) -> tuple[PartQuery, ...]:
        """The rows, and their scores."""
        return PartRows(plan, part), RowScores(plan, part)

    def message_releases(self, plan: Plan, mu: float, relation: Relation, rounds: int) -> list[Release]:
        """Noise once; scores in every round."""
        rows = Release.at_mu(self.joint(plan, PartRows), 0, 1, mu, relation, "kept")
        return [rows, Release.derived("scores", 0, rounds)]

    def message_event(self, plan: Plan, relation: Relation, owed: Mapping[str, float]) -> Event:
        """As much of the rows as is owed."""
        parts = {name: PartRows(plan, plan.part(name)) for name, _ in plan.parties}
        return row_event({name: query.sensitivity(relation) for name, query in parts.items()}, owed)

    def hear(self, plan: Plan, round_: int, views: Mapping[str, View]) -> Hearing:
        """One ask in every round."""
        weights = {name: {"weights": view.weights[: view.width]} for name, view in views.items()}
        noisy = yield Ask("scores", {}, round=round_, each=weights)
        std = plan.release("rows").std
        deviations = {name: noisy[name] - view.centre for name, view in views.items()}
        return deviations, {name: std * math.sqrt(view.size) for name, view in views.items()}

    def tell(self, query: Any, block: Block, gate: Gate, round_: int, arrays: Mapping[str, NDArray[Any]]) -> Released:
        """Of the kept rows."""
        return gate.derived(query, round_, gate.keep(query.rows, block), arrays["weights"])


class Memory:
    """What a party keeps: the slopes of the last round, noisy labels that it was told, and the duals of `admm`."""

    def __init__(self) -> None:
        self.round = -1
        self.slopes = np.zeros(0)
        self.labels: Array | None = None
        self.duals: Array | None = None
        self.copies: Array | None = None


class View:
    """One party's weights [w_m, a_m], known to the coordinator, and the mean of its rows."""

    def __init__(self, plan: Plan, mean: Array) -> None:
        self.width, self.mean = len(mean), mean
        self.weights = np.zeros(self.width + plan.fit_intercept)
        self.wider = 1.0
        self.told: Array | None = None  # scores with noise that the others go on hearing
        self._half = plan.rounds // 2
        self._early = TailAverage(len(self.weights), self._half // 2)
        self._tail = TailAverage(len(self.weights), self._half)

    @property
    def size(self) -> float:
        """|w_m|^2."""
        return float(self.weights[: self.width] @ self.weights[: self.width])

    @property
    def centre(self) -> float:
        """The mean of the party's scores."""
        return float(self.mean @ self.weights[: self.width])

    @property
    def level(self) -> float:
        """The mean of all scores, as this party sees it."""
        return self.centre + (float(self.weights[-1]) if len(self.weights) > self.width else 0.0)

    def move(self, round_: int, gradient: Array) -> None:
        """A step against a gradient."""
        self.weights = self.step(gradient)
        if round_ < self._half:
            self._early.add(round_, self.weights)
        self._tail.add(round_, self.weights)

    def step(self, gradient: Array) -> Array:
        """The next weights."""
        raise NotImplementedError

    def spread(self, weights: Array) -> float:
        """How far the party's scores vary."""
        raise NotImplementedError

    @property
    def early(self) -> Array:
        """The mean of the second quarter of the weights."""
        return self._early.value

    @property
    def answer(self) -> Array:
        """The mean of the second half of the weights."""
        return self._tail.value


def joined(plan: Plan, views: Mapping[str, View]) -> Array:
    """All weights, and the level of the party whose scores vary most: its intercept is the nearest."""
    weights = np.zeros(plan.dimension)
    for name, view in views.items():
        part = plan.part(name)
        weights[part.start : part.stop] = view.answer[: view.width]
    if plan.fit_intercept:
        widest = max(views.values(), key=lambda view: view.spread(view.answer))
        centres = sum(float(view.mean @ view.answer[: view.width]) for view in views.values() if view is not widest)
        weights[plan.features] = float(widest.answer[-1]) - centres
    return weights


def shrinkage(plan: Plan, name: str) -> float:
    """N B^2 RIDGE, and for labels with noise what a ridge regression adds for them."""
    parts = {party: PartRows(plan, plan.part(party)).norm for party, _ in plan.parties}
    ridge = RIDGE * plan.records * sum(norm**2 for norm in parts.values())
    if is_held(plan) and name != plan.holder_name:
        loss = plan.scaled_loss
        ridge += (plan["blur"] * parts[name]) ** 2 / (bend(loss) * SPREAD[loss.kind])
    return ridge


def unit_gradients(plan: Plan) -> Joint:
    """The gradients of all parties, each in units of its own bound."""
    return Joint([PartGradient(plan, plan.part(name), 1.0) for name, _ in plan.parties])


def bound_of(plan: Plan, name: str) -> float:
    """G of a party: larger where labels with noise make the slopes."""
    return plan["held_bound" if is_held(plan) and name != plan.holder_name else "slope_bound"]


def bend(loss: Loss) -> float:
    """The curvature that steps reckon with: the loss's, at most 1."""
    return min(loss.curvature_bound, 1.0)
