"""Frank-Wolfe without privacy over columns: dFW (Bellet et al. 2015), with pairwise steps. Raw columns are sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Ask, Coordination, Design, Problem, Solution, draft, option
from sottovoce.algorithms.frank_wolfe.atoms import BallAlgorithm, column, column_dots, radius_of
from sottovoce.data.block import Block
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk, WithoutBound
from sottovoce.errors import RefusedError
from sottovoce.plan.plan import Part, Plan, Release

Array = NDArray[np.float64]

ROUNDS = 5000
TOLERANCE = 1e-6  # of the first duality gap


class DistributedFrankWolfe(BallAlgorithm):
    """Every party offers the column of its steepest coordinate; the steepest of all moves the point, and is sent once.

    The point is a mean of atoms +-radius e_j and 0. A round moves weight from the worst atom of the mean to the best of
    all (pairwise steps, Lacoste-Julien and Jaggi 2015), as far as decreases the objective most. Two numbers per party,
    the steepest slope and the sum of w_j g_j, give the duality gap sum_j w_j g_j + radius max_j |g_j|, the certificate.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    def design(self, problem: Problem) -> Design:
        """As many rounds as it takes, up to ROUNDS."""
        numbers = {"radius": radius_of(self.name, problem)}
        rounds = option(problem, "rounds", ROUNDS, low=1, whole=True)
        plan = draft(problem, numbers, "entries")
        names = ("slopes", "column", "gap") if plan.split == "columns" and plan.labels == "held" else ("column", "gap")
        releases = tuple(Release.of(WithoutBound(name), 0, rounds, 0.0, 1.0) for name in names)
        return Design(rounds, numbers, releases, layout="entries")

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:
        """Offers, columns and, where one party alone has the labels, its slopes."""
        part = plan.part(party)
        return {"gap": Offer(plan, part), "column": Column(), "slopes": Slopes(plan)}

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.parties[plan.holder if plan.split == "columns" else 0][0])

    def coordinate(self, plan: Plan) -> Coordination:
        """Until the duality gap closes."""
        radius, loss = plan["radius"], plan.scaled_loss
        atoms: dict[int, float] = {0: 1.0}  # the weight of each atom in the mean; 0 is the origin
        columns: dict[int, Array] = {0: np.zeros(plan.records)}
        scores = np.zeros(plan.records)
        gap = first = math.inf
        for t in range(plan.rounds):
            said = {"scores": scores, "places": _places(atoms), "values": _values(atoms, radius)}
            if plan.split == "columns" and plan.labels == "held":
                holder = plan.holder_name
                (slopes,) = (yield Ask("slopes", said, to=(holder,), round=t)).values()
                said = said | {"slopes": slopes}
            offers = yield Ask("gap", said, round=t)
            best, slope, party = max((abs(offer[1]), offer[1], name) for name, offer in offers.items())
            gap = sum(offer[2] for offer in offers.values()) + radius * best
            first = gap if t == 0 else first
            if gap <= TOLERANCE * first:
                break
            place = plan.part(party).place(int(offers[party][0]), plan.features)
            good = (place + 1) * (-1 if slope > 0 else 1)
            worst, bad = max([(offer[3], int(offer[4])) for offer in offers.values()])
            if atoms.get(0, 0.0) > 0.0 and worst <= 0.0:
                worst, bad = 0.0, 0
            if good not in columns:
                (entries,) = (yield Ask("column", {"place": offers[party][:1].astype(np.int64)}, (party,), t)).values()
                columns[good], columns[-good] = (
                    math.copysign(radius, good) * entries,
                    math.copysign(radius, -good) * entries,
                )
            move = columns[good] - columns[bad]
            bend = loss.curvature_bound * float(move @ move) / plan.records
            most = atoms[bad]
            step = min(most, (worst + radius * best) / bend) if bend > 0 else most
            atoms[bad] = most - step if step < most else 0.0
            atoms[good] = atoms.get(good, 0.0) + step
            atoms = {code: weight for code, weight in atoms.items() if weight > 0.0}
            scores = scores + step * move
        weights = np.zeros(plan.dimension)
        np.add.at(weights, _places(atoms), _values(atoms, radius))
        half = plan.bounds.label_scale(fit_intercept=plan.fit_intercept)[1] if loss.kind == "regression" else 1.0
        return Solution(weights, {"duality_gap": float(gap * half**2)})

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
        del plan, memory
        return gate.gaussian(query, round_, block, arrays)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """Nothing is protected; a message that cannot be read is refused with a reason."""
        if query == "column":
            place = arrays.get("place", np.zeros(0))
            fits = place.dtype == np.int64 and place.shape == (1,) and 0 <= place[0] < plan.dimension
            reason = f"query {query!r} in round {round_} needs the place of one of the party's features."
            return None if fits else reason
        places, values = arrays.get("places", np.zeros(0)), arrays.get("values", np.zeros(0, dtype=np.int64))
        vectors = [arrays.get("scores", np.zeros(0)), *([arrays["slopes"]] if "slopes" in arrays else [])]
        fits = places.dtype == np.int64 and values.dtype == np.float64 and places.shape == values.shape
        fits = fits and all(vector.dtype == np.float64 and vector.shape == (plan.records,) for vector in vectors)
        if fits and places.ndim == 1:
            return None
        return f"query {query!r} needs the point, as places and values, and a float64 score of each record."

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """Slopes come from the holder of the labels."""
        mine = query != "slopes" or party == plan.holder_name
        return super().serves(plan, party, query, round_) and mine


class Offer(WithoutBound):
    """Of a party's columns: the steepest j, its slope g_j, sum_j w_j g_j, the worst atom's <atom, g> and its code.

    g is the gradient of the mean loss.
    """

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__("gap")
        self.plan, self.part = plan, part

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the columns."""
        (arrays,) = arguments
        slopes = arrays.get("slopes")
        if slopes is None:
            slopes = self.plan.scaled_loss.derivative(arrays["scores"], block.labels)
        gradient = column_dots(block, np.ascontiguousarray(slopes)) / self.plan.records
        best = int(np.argmax(np.abs(gradient)))
        along, worst, bad = 0.0, -math.inf, 0
        for place, value in zip(arrays["places"].tolist(), arrays["values"].tolist(), strict=True):
            local = self.part.local(place, self.plan.features)
            if local is None:
                continue
            along += value * gradient[local]
            here = math.copysign(self.plan["radius"], value) * gradient[local]
            if here > worst:
                worst, bad = here, (place + 1) * (1 if value > 0 else -1)
        return np.array([best, gradient[best], along, max(worst, -1e300), bad])


class Column(WithoutBound):
    """The entries of one column."""

    def __init__(self) -> None:
        super().__init__("column")

    def value(self, block: Block, *arguments: Any) -> Array:
        """As they are prepared."""
        (arrays,) = arguments
        place = int(arrays["place"][0])
        if place >= block.rows.shape[1]:
            raise RefusedError(f"the party has no feature {place}.")
        values, records = column(block, place)
        if records is None:
            return values
        found = np.zeros(len(block))
        found[records] = values
        return found


class Slopes(WithoutBound):
    """l'(score_i, y_i) of every record, from the holder of the labels."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("slopes")
        self.loss = plan.scaled_loss

    def value(self, block: Block, *arguments: Any) -> Array:
        """Null rows have labels of their own and no entries."""
        (arrays,) = arguments
        return self.loss.derivative(arrays["scores"], block.labels)


def _places(atoms: Mapping[int, float]) -> NDArray[np.int64]:
    return np.array([abs(code) - 1 for code in atoms if code], dtype=np.int64)


def _values(atoms: Mapping[int, float], radius: float) -> Array:
    return np.array([math.copysign(radius, code) * weight for code, weight in atoms.items() if code], dtype=np.float64)
