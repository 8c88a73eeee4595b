"""Private Frank-Wolfe over columns, after Lou and Cheung (2018): a sound form with few messages up."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    choice,
    draft,
    is_held,
    make_plan,
    option,
    problem_loss,
    public_coin,
    usable_numbers,
)
from sottovoce.algorithms.frank_wolfe.atoms import (
    ROOM,
    BallAlgorithm,
    Iterate,
    add_column,
    check_choices,
    column,
    column_dots,
    radius_of,
)
from sottovoce.algorithms.frank_wolfe.sketches import SKETCHES, Sketch, sketch_of
from sottovoce.data.block import Block, toward_zero
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk, clipped_derivative
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.plan.plan import Part, Plan, Release
from sottovoce.privacy.accounting import SAMPLER_SHARE, Event, Relation, rho_for

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

SHORTEST = 40  # a step is at most that of a run of so many rounds
MOST = 2**24  # rounds, and numbers of a sketch: what a holder will draw because a plan says so


class ColumnFrankWolfe(BallAlgorithm):
    """What both forms share: the parties' columns, sketched; the joint cost at every party."""

    def remember(self, plan: Plan, block: Block) -> Sketch:  # noqa: ARG002
        """The sketch, which is public."""
        return sketch_of(plan)

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.holder_name)


class SketchedFrankWolfe(ColumnFrankWolfe):
    """Each round a public coin names a party; it chooses one of its atoms +-radius e_j, or to stay where the point is.

    An atom is added, w + a atom, while that stays in the ball; else w is shrunk for it, (1 - a) w + a atom. The choice
    is by the exponential mechanism on -<atom, g> / radius; staying has the score 0 while the ball has room for any
    atom, and -<w, g> / radius where it has not. Here g_j = sum_i r_i x_ij and r_i = l'(score_i, y_i) cut to
    |r_i| <= omega. The scores are the party's own columns times their weights plus theta J'q, q the sum of the other
    parties' released sketches times theirs and theta <= 1 a public factor that keeps their noise near omega. A feature
    chosen for the first time is released once, as J a_j + N(0, tau^2), and kept. Since a party may stay, no party has
    to move the point where that does not help, and the limit is the solution on the whole ball:
    E h_T <= exp(-reach / (2 K)) h_0 + sum_t a_t^2 C / 2 for exact scores.

    Guarantee: a person is in every party, so the costs of all parties add: rho = T (omega / std)^2 / 2 for T choices,
    plus what the features cost: with a cap of S for each of K parties K S / (2 tau^2), with a row norm B at most
    B^2 / (2 tau^2), whichever is smaller, plus 1 / (2 tau_y^2) if one party alone holds the labels and releases
    J y + N(0, tau_y^2) (`proof.md`). Replace-one doubles every sensitivity.
    Edges: a party whose cap is used up chooses among what it has released; the intercept is a column of ones inside
    the ball, with the holder of the labels, and its sketch is public.
    """

    options: ClassVar[tuple[str, ...]] = ("rounds", "slope_bound", "choice_share", "cap", "sketch", "sketch_size")

    def design(self, problem: Problem) -> Design:
        """Rounds, cap, sketch, clip and shares by public rules."""
        if problem_loss(problem).name not in ("squared", "logistic"):
            raise InputError(f"solver={self.name!r} over columns needs the squared or the logistic loss.")
        radius, parties = radius_of(self.name, problem), len(problem.parties)
        rho = rho_for(problem.epsilon, problem.delta * (1 - SAMPLER_SHARE))
        rule = Rule(problem, rho)
        rounds = option(problem, "rounds", rule.rounds, low=1, high=MOST, whole=True)
        cap = option(problem, "cap", rule.cap, low=1, whole=True)
        row = math.inf if problem.bounds.row_norm is None else problem.bounds.row_norm / draft(problem).unit
        by_norm = row**2 < cap * parties
        numbers = {
            "radius": radius,
            "reach": max(2.0, 0.4 * math.log(rounds)) / max(rounds, SHORTEST) * rounds,
            "sketch": SKETCHES.index(choice(problem, "sketch", SKETCHES[:2])),
            "sketch_size": self._sketch_size(problem, rounds),
            "slope_bound": option(problem, "slope_bound", 1.0, low=SMALLEST, high=LARGEST),
            "blurred_bound": 1.0,
            "cap": 0.0 if by_norm else cap,
        }
        share = option(problem, "choice_share", rule.choice_share, low=0.01, high=0.99) * (1 - rule.label_share)
        mus = [math.sqrt(2 * rho * part) for part in (share, 1 - rule.label_share - share, rule.label_share)]
        plan = draft(problem, numbers, "entries")
        feature, releases = FeatureSketch(plan, None), []
        if by_norm:
            releases.append(Release.at_mu(feature, 0, 1, mus[1], problem.relation).times(max(problem.columns)))
        else:
            releases.append(Release.at_mu(feature, 0, cap * parties, mus[1], problem.relation).times(cap))
        if rule.label_share:
            releases.append(Release.at_mu(LabelSketch(plan), 0, 1, mus[2], problem.relation))
            noise = releases[-1].std ** 2 + 0.3 * problem.records / numbers["sketch_size"]
            numbers["blurred_bound"] = max(1.0, math.sqrt(noise))
        scores = PartScores(draft(problem, numbers, "entries"), plan.part(plan.holder_name))
        releases.insert(0, Release.at_mu(scores, 0, rounds, mus[0], problem.relation, "selection"))
        design = Design(rounds, numbers, tuple(releases), layout="entries")
        self.check_samplers(
            make_plan(self.name, problem, design, run="draft", coin="draft"), problem.relation, problem.delta
        )
        return design

    def _sketch_size(self, problem: Problem, rounds: int) -> int:
        least = least_size(rounds)
        size = problem.options.get("sketch_size")
        if size is not None and isinstance(size, int | float) and not size >= least:
            raise InputError(
                f"sketch_size={size!r} must be at least {least} for {rounds} rounds (8 log rounds, and 16): a smaller "
                "sketch tells the inner products of columns with errors as large as themselves."
            )
        most = min(max(problem.records, least), MOST)
        return int(option(problem, "sketch_size", min(max(16 * rounds, least), most), low=least, high=most, whole=True))

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:
        """Choices, features and, where one party holds the labels, its sketch of them."""
        check_numbers(plan, "reach")
        part = plan.part(party)
        return {"atom": PartScores(plan, part), "feature": FeatureSketch(plan, part), "labels": LabelSketch(plan)}

    def coordinate(self, plan: Plan) -> Coordination:
        """Ask the party of the round; ask for its feature if it is new; move."""
        parts = {name: plan.part(name) for name, _ in plan.parties}
        point, sketches, slots = Iterate(plan["radius"]), dict[int, Array](), dict.fromkeys(parts, 0)
        if plan.fit_intercept:
            sketches[plan.features] = sketch_of(plan).apply(np.ones(plan.records))
        labels: dict[str, Array] = {}
        if is_held(plan):
            (labels["labels"],) = (yield Ask("labels", {}, (plan.holder_name,), 0)).values()
        for t, party in enumerate(turns(plan)):
            part = parts[party]
            places = np.array(point.places, dtype=np.int64)
            said: dict[str, NDArray[Any]] = {"places": places, "values": point.values}
            others = sum(
                (
                    value * sketches[place]
                    for place, value in zip(point.places, point.values, strict=True)
                    if part.local(place, plan.features) is None
                ),
                np.zeros(int(plan["sketch_size"])),
            )
            own = {} if party == plan.holder_name else labels
            (code,) = (yield Ask("atom", {**said, "sketch": others, **own}, (party,), t)).values()
            if not code[0]:
                continue
            local = int(candidates(plan, part, places)[abs(int(code[0])) - 1])
            place = part.place(local, plan.features)
            if place not in sketches:
                slot = slots[party] if plan["cap"] else local
                slots[party] += 1
                asked = {"place": np.array([local], dtype=np.int64)}
                (sketches[place],) = (yield Ask("feature", asked, (party,), slot)).values()
            point.move((place + 1) * (1 if code[0] > 0 else -1), step(plan), added=True)
        return Solution(point.dense(plan.dimension))

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
        """A choice, a feature or the labels."""
        del plan
        if query.name == "atom":
            return gate.select_signed(query, round_, block, arrays, memory)
        if query.name == "labels":
            return gate.gaussian(query, round_, block, memory)
        return gate.gaussian(query, round_, block, int(arrays["place"][0]), memory)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """The point, the sketch of the other parties' part of the scores, and which feature is meant."""
        if query == "labels":
            return None
        if query == "feature":
            place = arrays.get("place", np.zeros(0))
            fits = place.dtype == np.int64 and place.shape == (1,) and 0 <= place[0] < max(plan.columns)
            if fits and (plan["cap"] or place[0] == round_):
                return None
            return f"query {query!r} in round {round_} needs the place of one of the party's features."
        places, values = arrays.get("places", np.zeros(0)), arrays.get("values", np.zeros(0, dtype=np.int64))
        fits = places.dtype == np.int64 and places.ndim == 1 and len(np.unique(places)) == len(places)
        fits = fits and bool(np.all((places >= 0) & (places < plan.dimension)))
        if not fits or not usable_numbers(values, len(places)) or np.abs(values).sum() > plan["radius"] * (1 + 1e-9):
            return f"query {query!r} needs a point of the ball, as places and values."
        told = "labels" in arrays or (is_held(plan) and turns(plan)[round_] != plan.holder_name)
        for name in ("sketch", "labels") if told else ("sketch",):
            if not usable_numbers(arrays.get(name, np.zeros(0)), int(plan["sketch_size"])):
                size = int(plan["sketch_size"])
                return f"query {query!r} needs {name} of {size} float64 numbers, none above {LARGEST:g}."
        return None

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """A choice is for the party that the coin names, the labels for their holder."""
        if not super().serves(plan, party, query, round_):
            return False
        if query == "atom":
            return bool(turns(plan)[round_] == party)
        return query != "labels" or party == plan.holder_name

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """What all parties release together: everybody's record is with each of them."""
        counts = {
            release.query: len(plan.parties) * release.count if plan["cap"] else 1
            for release in plan.releases
            if release.query == "feature"
        }
        return tuple(release.event(relation, count=counts.get(release.query)) for release in plan.releases)

    def check_samplers(self, plan: Plan, relation: Relation, delta: float, epsilon: float = 0.0) -> None:
        """The Gumbel variables of all choices."""
        check_choices(plan, self.events(plan, relation, plan.parties[0][0]), relation, delta, epsilon)

    def conversation(self, plan: Plan) -> Iterable[tuple[Ask, int]]:
        """At most, whatever the coin says: as if every choice were of a new feature while the caps allow."""
        holder, sketch = plan.holder_name, np.zeros(int(plan["sketch_size"]))
        sent = {
            name: min(plan.rounds, width, int(plan["cap"]) or width)
            for (name, _), width in zip(plan.parties, plan.columns, strict=True)
        }
        most = sum(sent.values()) + plan.fit_intercept
        told = {"sketch": sketch, "labels": sketch} if is_held(plan) else {"sketch": sketch}
        for length, count in Counter(min(t, most) for t in range(plan.rounds)).items():
            said = {"places": np.zeros(length, dtype=np.int64), "values": np.zeros(length), **told}
            yield Ask("atom", said, (holder,)), count
        for name, count in sent.items():
            yield Ask("feature", {"place": np.zeros(1, dtype=np.int64)}, (name,)), count
        if is_held(plan):
            yield Ask("labels", {}, (holder,)), 1


class Rule:
    """Defaults over columns from public numbers; N mu is the signal, mu halved for replace-one.

    T = (N mu)^(2/3) / 4 rounds, 20 features in all (a party's cap at most its columns), sketches of 16 T numbers;
    0.4 of the budget for the choices (held labels: 0.2 for their sketch). The constants were chosen on synthetic
    problems (`docs/benchmarks.md`).
    """

    def __init__(self, problem: Problem, rho: float) -> None:
        mu = math.sqrt(2 * rho) / (2.0 if problem.relation == "replace-one" else 1.0)
        self.rounds = max(4, math.ceil((problem.records * min(mu, 1e100)) ** (2 / 3) / 4))
        self.cap = min(math.ceil(20 / len(problem.parties)), max(problem.columns))
        self.choice_share = 0.5 if problem.labels == "held" else 0.4
        self.label_share = 0.2 if problem.labels == "held" and len(problem.parties) > 1 else 0.0


class PartScores:
    """-sum_i r_i x_ij / omega for a party's candidates j, then the score of staying.

    That is -sum_i r_i p_i / omega with p_i = score_i / radius cut to +-1 or, while there is room in the ball, 0; plus
    std (log(2 candidates) + log T), so that noise alone moves the point about once in a run. r_i = l'(score_i, y_i).

    Guarantee: |r_i| <= omega, |x_ij| <= 1 and |p_i| <= 1, each a function of record i, of public numbers and of
    released ones; so zero-out moves each by at most 1, replace-one by 2. All sums are exact.
    Edges: a null row adds 0 everywhere.
    """

    name = "atom"
    weights = 1.0
    entries = 1.0
    stays = True

    def __init__(self, plan: Plan, part: Part) -> None:
        if plan.layout != "entries":
            raise LeakError("the rows were not prepared for steps on the l1 ball.")
        self.plan, self.part = plan, part
        self.bound = plan["slope_bound"] if part.preparation.labelled else plan["blurred_bound"]
        for name in ("slope_bound", "blurred_bound", "radius"):
            if not SMALLEST <= plan[name] <= LARGEST:
                raise InputError(f"{name}={plan[name]!r} must be a positive finite number.")

    def sensitivity(self, relation: Relation) -> float:
        """1, or 2."""
        return (2.0 if relation == "replace-one" else 1.0) * ROOM

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the party's columns."""
        arrays, sketch = arguments
        plan, radius = self.plan, self.plan["radius"]
        mine = [self.part.local(place, plan.features) for place in arrays["places"].tolist()]
        others = float(sum(v**2 for v, local in zip(arrays["values"].tolist(), mine, strict=True) if local is None))
        scores = sketch.back(trust(plan, others, self.bound) * arrays["sketch"])
        for local, value in zip(mine, arrays["values"].tolist(), strict=True):
            if local is not None:
                add_column(scores, block, local, value)
        slopes = clipped_slopes(plan, block, scores, arrays.get("labels"), sketch, self.bound)
        stay = 0.0
        if np.abs(arrays["values"]).sum() + step(plan) * radius > radius:
            ratio = toward_zero(np.clip(scores / radius, -1.0, 1.0), block.bits or 0)
            ratio[null_rows(block)] = 0.0
            stay = float(slopes @ ratio)
        chosen = candidates(plan, self.part, arrays["places"])
        found = np.append(column_dots(block, slopes)[chosen], stay) / -self.bound
        found[-1] += plan.release("atom").std * (math.log(2 * len(chosen)) + math.log(plan.rounds))
        return found


def trust(plan: Plan, squares: float, bound: float) -> float:
    """Theta = min(1, 0.7 omega / sigma), sigma^2 = (tau^2 + N / m) |w of the other parties|^2 the noise of J'q."""
    noise = (plan.release("feature").std ** 2 + plan.records / plan["sketch_size"]) * squares
    return min(1.0, 0.7 * bound / math.sqrt(noise)) if noise > 0 else 1.0


class FeatureSketch:
    """J a_j for one column a_j of a party.

    Guarantee: an entry moves by at most 1 and a column of J has norm one, so zero-out moves one sketch by at most 1,
    replace-one by 2. If no party has a cap: all sketches of a party together by at most its part of the row norm B
    (2 B), each released once, in the round of its place, so in any order.
    """

    name = "feature"

    def __init__(self, plan: Plan, part: Part | None) -> None:
        self.plan, self.part = plan, part
        self.unordered = not plan["cap"]
        self.weights = np.ones(int(plan["sketch_size"]))
        size = 1.0 if SKETCHES[int(plan["sketch"])] == "count" else plan["sketch_size"]
        self.entries = float(size if plan["cap"] else size * plan.features)
        self.norm = column_norm(plan)
        if not plan["cap"]:
            if plan.bounds.row_norm is None:
                raise InputError("cap=0: features without a cap need a declared row_norm.")
            self.norm *= min(plan.bounds.row_norm / plan.unit, math.sqrt(plan.features))

    def sensitivity(self, relation: Relation) -> float:
        """1 or B, with room for the floating point of a dense sketch."""
        room = sketch_room(self.plan, 1 if self.plan["cap"] else self.plan.features)
        return self.norm * (2.0 if relation == "replace-one" else 1.0) * room

    def value(self, block: Block, *arguments: Any) -> Array:
        """One column; the constant one, no part of the row norm, only where each column is charged by itself."""
        place, sketch = arguments
        constant = self.part is not None and self.part.constant and self.plan["cap"] > 0
        if self.part is None or place >= self.part.stop - self.part.start + constant:
            raise RefusedError(f"the party has no feature {place}.")
        return np.asarray(sketch.apply(*column(block, place)))


class LabelSketch:
    """J y. Guarantee: zero-out moves it by at most 1, replace-one by 2, for labels within [-1, 1]."""

    name = "labels"

    def __init__(self, plan: Plan) -> None:
        self.norm = column_norm(plan) * sketch_room(plan)
        self.weights = np.ones(int(plan["sketch_size"]))
        self.entries = 1.0 if SKETCHES[int(plan["sketch"])] == "count" else plan["sketch_size"]

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return self.norm * (2.0 if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        """A null row has no label."""
        (sketch,) = arguments
        labels = np.where(null_rows(block), 0.0, block.labels)
        return np.asarray(sketch.apply(toward_zero(labels, block.bits or 0)))


def column_norm(plan: Plan) -> float:
    """The largest norm of a column of the sketch: 1 but for the Gaussian one of the published form."""
    return sketch_of(plan).norm if SKETCHES[int(plan["sketch"])] == "gaussian" else 1.0


def sketch_room(plan: Plan, columns: int = 1) -> float:
    """For the floating point of J a, of so many columns: sums are exact, and each is divided by sqrt m once."""
    return 1.0 + 2.0**-30 + plan.records * math.sqrt(columns) * 2.0**-49


def check_numbers(plan: Plan, schedule: str) -> None:
    """Refuse a plan whose numbers say no sketch or no schedule; its cost follows from its releases in any case."""
    plan[schedule]  # a plan that lacks it is refused before it is charged
    kind, size, release = plan["sketch"], plan["sketch_size"], plan.release("atom")
    if kind not in range(len(SKETCHES)) or not (1 <= size <= MOST and size == int(size)):
        raise InputError(f"sketch={kind!r}, sketch_size={size!r}: the plan names no sketch of at most {MOST} numbers.")
    if plan.rounds > MOST or release.first + release.count > plan.rounds:
        raise InputError(f"rounds={plan.rounds}: the plan has choices beyond its rounds, or more than {MOST} rounds.")


def null_rows(block: Block) -> NDArray[np.bool_]:
    """Which rows are null rows."""
    if block.usable is None:
        raise LeakError("a batch does not know which of its rows are null rows.")
    return ~block.usable


def clipped_slopes(
    plan: Plan, block: Block, scores: Array, labels: Array | None, sketch: Sketch, bound: float
) -> Array:
    """l'(score_i, y_i) cut to +-omega, on the grid; from the released sketch of the labels where they are not known.

    Both losses have slopes that are affine in the label: u - y, and (tanh(u / 2) - y) / 2 for y = +-1.
    """
    loss = plan.scaled_loss
    if labels is None:
        return np.asarray(clipped_derivative(loss, bound, block.bits)(scores, block.labels))
    decoded = sketch.back(labels)
    slopes = scores - decoded if loss.name == "squared" else (np.tanh(scores / 2) - decoded) / 2
    np.clip(slopes, -bound, bound, out=slopes)
    return toward_zero(slopes, (block.bits or 0) - math.ceil(math.log2(bound)))


def candidates(plan: Plan, part: Part, places: Integers) -> Integers:
    """The columns a party may choose, by their place with it: all, or what it has released once its cap is used up."""
    width = part.stop - part.start
    everything = np.arange(width + part.constant)
    mine = [local for place in places.tolist() if (local := part.local(place, plan.features)) is not None]
    if not plan["cap"] or len([local for local in mine if local < width]) < plan["cap"]:
        return everything
    return np.array(sorted({*mine, *([width] if part.constant else [])}), dtype=np.int64)


@functools.lru_cache(maxsize=16)
def turns(plan: Plan) -> list[str]:
    """The party of each round, by a public coin."""
    named = public_coin(plan, "turns").integers(len(plan.parties), size=plan.rounds)
    return [plan.parties[place][0] for place in named]


def step(plan: Plan) -> float:
    """The same in every round."""
    return min(plan["reach"] / plan.rounds, 1.0)


def least_size(rounds: int) -> int:
    """The smallest sketch that is allowed."""
    return max(16, math.ceil(8 * math.log(rounds + 1)))


def _held(plan: Plan) -> bool:
    return plan.labels == "held" and len(plan.parties) > 1
