"""ADMM sharing without privacy over columns (Hu et al. 2019). Scores of every record are sent as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    choice,
    option,
    problem_loss,
    summed,
)
from sottovoce.algorithms.sharing.updates import XUpdate, check_exact, nearest, part_regulariser, square_of
from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk, WithoutBound
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Part, Plan, Release, Split

Array = NDArray[np.float64]

ROUNDS = 2000
TOLERANCE = 1e-8  # of scores and slopes, root mean square
CHECK = 10  # epochs from one look at the residuals to the next
PATIENCE = 50  # looks without a fall of the Lyapunov function by a hundredth
RELAXATION = 1.6
MARGIN, RESIDUAL, NOT_CONVEX = 0.2, 0.5, 4.0  # what rho is of the loss's curvature


class ExactSharing(Algorithm):
    """An epoch: the holder of the labels updates z and y and says v = y + rho (S - z); every party says D_m x_m.

    The updates are those of `sharing`, with S replaced by relaxation S + (1 - relaxation) z in those of z and y. One
    vector of N numbers goes to every party and one comes back from each. rho=1, proximal=0, relaxation=1, tolerance=0
    is the published method; its first epoch, which leaves x = 0, is not run.

    It ends when both residuals, root mean squares over the records, are at most `tolerance`: |S - z| (scores) and
    rho (1 + p) |D_m x_m - D_m x_m before| over all parties (slopes). At 0 each x_m is optimal for the true slopes. It
    also ends when the Lyapunov function of the paper, sum_m |x_m - prox(x_m - D_m'v)|^2 + (1 + rho^2) |S - z|^2, has
    not fallen for long: the published update of many similar parties stalls so. The last values are the certificates.

    Guarantee: none; a party answers only where its holder allows runs without privacy. Labels that one party alone
    knows are refused: y_i = l'(z_i, label_i) is told to all, and its sign is the label.
    Edges: a ball or a box bounds the weights of each party on its own; a record that is unusable at one party counts
    there as zeros. With models="kept" no party says its weights. Residuals are in units of labels scaled to [-1, 1].
    """

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "ADMM sharing over columns, without privacy"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    options: ClassVar[tuple[str, ...]] = ("rounds", "rho", "proximal", "relaxation", "tolerance", "models")
    kinds: ClassVar[Mapping[str, str]] = {"scores": "scores", "dual": "slopes", "weights": "weights"}
    resumes: ClassVar[bool] = False
    layout: ClassVar[Layout] = "entries"
    samples: ClassVar[bool] = False

    def design(self, problem: Problem) -> Design:
        """The rule of `defaults`, unless options say otherwise."""
        check_exact(problem, self.name)
        loss = problem_loss(problem)
        rho, proximal, relaxation = defaults(loss, len(problem.parties))
        numbers = {
            "rho": option(problem, "rho", rho, low=1e-9, high=1e9),
            "proximal": option(problem, "proximal", proximal, low=0.0, high=1e6),
            "relaxation": option(problem, "relaxation", relaxation, low=0.1, high=1.99),
            "tolerance": option(problem, "tolerance", TOLERANCE, low=0.0),
        }
        if not loss.convex and not numbers["rho"] > loss.curvature_bound:
            raise InputError(
                f"rho={numbers['rho']:.4g} must be above {loss.curvature_bound:.4g}, the curvature of the loss "
                f"{loss.name!r}, which is not convex; leave it out for the default rule."
            )
        rounds = option(problem, "rounds", ROUNDS, low=1, whole=True)
        counts = {"dual": rounds, "residuals": rounds}
        if choice(problem, "models", ("shared", "kept")) == "shared":
            counts["weights"] = 1
        counts["scores"] = rounds  # last: they count the epochs
        releases = tuple(Release.of(WithoutBound(name), 0, count, 0.0, 1.0) for name, count in counts.items())
        return Design(rounds, numbers, releases, layout="entries")

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.holder_name)

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:
        """Each with the party's own part."""
        part = plan.part(party)
        return {
            "dual": Dual(plan),
            "scores": Scores(plan, part),
            "residuals": Residuals(plan, part),
            "weights": Weights(),
        }

    def coordinate(self, plan: Plan) -> Coordination:
        """Epochs until a rule or `rounds` ends them."""
        scores = np.zeros(plan.records)
        least, waited = math.inf, 0
        for t in range(plan.rounds):
            (dual,) = (yield Ask("dual", {"scores": scores}, (plan.holder_name,), t)).values()
            parts = yield Ask("scores", {"dual": dual}, round=t)
            scores = np.zeros(plan.records)
            for part in parts.values():
                scores += part
            if not max(scores.max(), -scores.min()) <= LARGEST:
                raise InputError(
                    f"rho={plan['rho']:.4g}, proximal={plan['proximal']:.4g}, relaxation={plan['relaxation']:.4g}: the "
                    f"scores diverge; leave proximal out, or take {len(plan.parties) - 1}, the parties less one."
                )
            last = t == plan.rounds - 1
            if last or (plan["tolerance"] > 0.0 and t % CHECK == CHECK - 1):
                found = certificates(plan, (yield Ask("residuals", {}, round=t)))
                fell = found["lyapunov"] < 0.99 * least
                least, waited = (found["lyapunov"], 0) if fell else (least, waited + 1)
                if waited >= PATIENCE or max(found["primal_residual"], found["dual_residual"]) <= plan["tolerance"]:
                    break
        if plan.models == "kept":
            return Solution(np.zeros(0), found)
        weights = np.zeros(plan.dimension)
        for name, values in (yield Ask("weights", {}, round=0)).items():
            own = plan.part(name)
            weights[own.start : own.stop] = values[: own.stop - own.start]
            if own.constant:
                weights[plan.features] = values[-1]
        return Solution(weights, found)

    def remember(self, plan: Plan, block: Block) -> State:  # noqa: ARG002
        """Everything is 0 at first."""
        return State(block)

    def kept_weights(self, plan: Plan, memory: Any) -> Array:  # noqa: ARG002
        """x_m."""
        return np.asarray(memory.weights)

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
        """Plain values."""
        del plan
        return gate.gaussian(query, round_, block, arrays, memory)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """Nothing is protected; a message that cannot be read is refused with a reason."""
        name = {"dual": "scores", "scores": "dual"}.get(query)
        if name is None:
            return None
        vector = arrays.get(name)
        if vector is not None and vector.dtype == np.float64 and vector.shape == (plan.records,):
            return None
        return f"query {query!r} in round {round_} needs a float64 number of each record, called {name!r}."

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """Duals come from the holder of the labels."""
        mine = query != "dual" or party == plan.holder_name
        return super().serves(plan, party, query, round_) and mine

    def example(self, plan: Plan, query: str) -> Ask:
        """The vector that an ask carries."""
        said = {"dual": "scores", "scores": "dual"}.get(query)
        arrays = {} if said is None else {said: np.zeros(plan.records)}
        return Ask(query, arrays, (plan.holder_name,) if query == "dual" else None)


class State:
    """What a party keeps from round to round: its part of the model and, at the holder of the labels, z and y."""

    def __init__(self, block: Block) -> None:
        self.rows, self.back = block.rows, block.rows.T
        self.update: XUpdate | None = None  # made for the first round
        self.weights = self.weights_before = self.gradient = np.zeros(block.dimension)
        self.told = self.copies = self.kept = np.zeros(len(block))  # S, z and y / rho + (1 - relaxation) z


class Dual(WithoutBound):
    """v = y + rho (S - z), after z and y were updated.

    z minimises l(z) + (rho / 2) (z - t)^2 at t = relaxation S + (1 - relaxation) z + y / rho, and then y = rho (t - z).
    So the last two terms of the next t are t - relaxation z.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__("dual")
        self.loss, self.rho, self.relaxation = plan.scaled_loss, plan["rho"], plan["relaxation"]

    def value(self, block: Block, *arguments: Any) -> Array:
        """One equation for each record."""
        arrays, state = arguments
        points = self.relaxation * arrays["scores"]
        points += state.kept
        state.told = arrays["scores"]
        state.copies = nearest(self.loss, points, block.labels, self.rho, state.copies)
        state.kept = points - self.relaxation * state.copies
        points -= state.copies
        points += state.told
        points -= state.copies
        points *= self.rho
        return np.asarray(points)


class Scores(WithoutBound):
    """D_m x_m, after x_m was updated."""

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__("scores")
        self.regulariser, self.records, self.factor = part_regulariser(plan, part), plan.records, factor(plan)

    def value(self, block: Block, *arguments: Any) -> Array:
        """A product with the columns and one with their transpose."""
        arrays, state = arguments
        if state.update is None:
            state.update = XUpdate(square_of(block.rows), self.regulariser, self.records, self.factor)
        state.weights_before = state.weights
        state.gradient = np.asarray(state.back @ arrays["dual"])
        state.weights = state.update(state.weights, state.gradient)
        return np.asarray(state.rows @ state.weights)


class Residuals(WithoutBound):
    """|x_m - prox(x_m - D_m'v)|^2 before the last update, |D_m (x_m - x_m before)|^2 and, at the holder, |S - z|^2."""

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__("residuals")
        self.regulariser, self.records = part_regulariser(plan, part), float(plan.records)

    def value(self, block: Block, *arguments: Any) -> Array:
        """Three numbers."""
        del block
        state = arguments[1]
        near = self.regulariser.prox(state.weights_before - state.gradient, self.records)
        moved = state.rows @ (state.weights - state.weights_before)
        vectors = (state.weights_before - near, moved, state.told - state.copies)
        return np.array([float(vector @ vector) for vector in vectors])


class Weights(WithoutBound):
    """x_m."""

    def __init__(self) -> None:
        super().__init__("weights")

    def value(self, block: Block, *arguments: Any) -> Array:
        """As they are."""
        del block
        return np.array(arguments[1].weights)


def factor(plan: Plan) -> float:
    """Rho (1 + p)."""
    return plan["rho"] * (1 + plan["proximal"])


def certificates(plan: Plan, squares: Mapping[str, Array]) -> dict[str, float]:
    """The residuals, root mean squares over the records, and the Lyapunov function."""
    steps, moves, apart = summed(squares).tolist()
    return {
        "primal_residual": math.sqrt(apart / plan.records),
        "dual_residual": factor(plan) * math.sqrt(moves / plan.records),
        "lyapunov": steps + (1 + plan["rho"] ** 2) * apart,
    }


def defaults(loss: Loss, parties: int) -> tuple[float, float, float]:
    """(rho, p, relaxation): rho (1 + p) is a share of the loss's curvature, p = M - 1.

    A loss that is not convex has a rho above twice its curvature, as its convergence needs, and no relaxation.
    """
    if not loss.convex:
        return NOT_CONVEX * loss.curvature_bound, parties - 1.0, 1.0
    share = MARGIN if loss.kind == "classification" else RESIDUAL
    return share * min(loss.curvature_bound, 1.0) / parties, parties - 1.0, RELAXATION
