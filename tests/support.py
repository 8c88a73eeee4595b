"""What tests of algorithms share: plans of a problem, a query's value, prices."""

import functools
import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce import algorithms, penalties
from sottovoce.algorithms import Algorithm
from sottovoce.data.block import Block
from sottovoce.errors import SottovoceError
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode, peek
from sottovoce.gate.outgoing import Outgoing
from sottovoce.gate.query import Query, Reals, Round, Wholes
from sottovoce.lab.audit.games import Game, Result, source, verdict
from sottovoce.lab.audit.runner import evaluation_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.privacy.events import Event, Relation
from sottovoce.queries.pricing import queries_of
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess
from sottovoce.transports.identity import PLAN, Local, local_identities


def plan_of(problem: Problem, solver: str, *, run: str = "run", coin: str = "coin", **options: Any) -> Plan:
    """The plan of a problem by a solver with these options, or of the evaluation of some model."""
    if solver == "evaluation":
        return evaluation_plan(problem, run=run, coin=coin)
    return algorithms.make_plan(problem, by_name(solver, **options), run=run, coin=coin)


def give_scores(party: Party, plan: Plan) -> Party:
    """The party as it is after a joint prediction with it as the recipient, if the plan evaluates such scores."""
    if scored := getattr(plan.numbers, "scores", ""):
        scores = np.linspace(-3.0, 3.0, plan.records)
        party.predictor._scored = (plan, bytes.fromhex(scored), scores)
    return party


def query_of(plan: Plan, name: str, party: str | None = None) -> Any:
    """A party's query of that name; the first party's unless another is named."""
    return queries_of(algorithms.of(plan), plan, party or plan.names[0])[name]


def at(
    query: Query, rows: Block, *, plan: Any = None, number: int = 0, memory: Any = None, **told: Any
) -> NDArray[Any]:
    """The value of a query on rows, told these arrays."""
    arrays = {name: np.asarray(value) for name, value in told.items()}
    return query.value(Round(plan, number, arrays, rows, memory))


def events_of(plan: Plan, relation: Relation | None = None, party: str | None = None) -> tuple[Event, ...]:
    """What a record of a party pays against whoever sees each message."""
    form: Algorithm = algorithms.of(plan)
    return form.pricing.events(form, plan, relation or plan.relation, party or plan.names[0])


def world_events_of(plan: Plan, relation: Relation | None = None, party: str | None = None) -> tuple[Event, ...]:
    """What it pays against the world."""
    form = algorithms.of(plan)
    return form.pricing.world_events(form, plan, relation or plan.relation, party or plan.names[0])


def epsilons_of(plan: Plan, relation: Relation | None = None) -> dict[str, float]:
    """The true epsilon against each adversary."""
    form = algorithms.of(plan)
    return form.pricing.epsilons(form, plan, relation or plan.relation)


def declared(solver: str, **arguments: Any) -> dict[str, Any]:
    """The arguments of an estimator; those that are options of the solver go into its object."""
    own = {name: arguments.pop(name) for name in by_name(solver).names() if name in arguments}
    return {**arguments, "solver": by_name(solver, **own)}


def forged(plan: Plan, **fields: Any) -> tuple[bytes, str]:
    """Digest and text of the plan with other fields, which nobody has checked."""
    told = json.loads(plan.to_json()) | fields
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).digest(), text


REGULARISERS = (  # a penalty or a ball of each kind that a step in a metric knows
    penalties.get_penalty("none"),
    penalties.get_penalty("l2", alpha=0.3),
    penalties.get_penalty("l1", alpha=0.2),
    penalties.get_penalty("elastic_net", alpha=0.3),
    penalties.get_penalty("l2_ball", radius=0.4),
)

IDENTITIES: dict[tuple[str, ...], dict[str, Local]] = {}  # of the parties of a plan, by their names


@functools.lru_cache(maxsize=4)
def plan_in(text: str) -> Plan | None:
    """The plan that a text is, if it is one: each party of a plan is sent the same text."""
    try:
        return Plan.from_json(text)
    except (SottovoceError, ValueError, RecursionError):
        return None


def handle(party: Party, request: bytes) -> Outgoing:
    """A party's answer to one frame, where the test is its wire, and the other parties sign every plan at once."""
    try:
        said = decode(request) if peek(request)[0] == "plan" else None
    except SottovoceError:  # whatever is wrong is the party's to say
        said = None
    plan = None if said is None else plan_in(said.text)
    if said is None or plan is None:
        return party.handle(request)
    names = plan.names
    if names not in IDENTITIES:
        IDENTITIES[names] = local_identities(names)
    party.identify(IDENTITIES[names].get(party.name) or local_identities([party.name])[party.name])
    answer = party.handle(request)
    if len(names) > 1 and said.query == "" and kind_of(answer) == "accept":
        start(party, said.plan, names)
    return answer


def kind_of(answer: Outgoing) -> str:
    """What kind of frame an answer is."""
    return peek(answer.data)[0]


def start(party: Party, digest: bytes, names: tuple[str, ...]) -> None:
    """Show a party the signatures of all."""
    signatures = {name: identity.sign(PLAN, digest) for name, identity in IDENTITIES[names].items()}
    frame = Frame("plan", 2**60, digest, query="start", text=json.dumps(signatures))
    assert kind_of(party.handle(encode(frame))) == "accept"


def renewed(wire: InProcess, party: Party) -> None:
    """Put a restarted party in the place of the one of its name, with the identity that the others know."""
    before: Any = wire._endpoints[party.name]
    party.identify(before.identity if isinstance(before, Party) else before._identity)
    wire._endpoints[party.name] = party


def neighbour(X: np.ndarray, y: np.ndarray, relation: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One record blanked (a row that is no number becomes a null row), or replaced by a far one."""
    rng = np.random.default_rng(seed)
    place = int(rng.integers(len(y)))
    X, y = X.copy(), y.copy()
    if relation == "zero-out":
        X[place] = math.nan
    else:
        X[place] *= -(10.0 ** rng.integers(-1, 3))
        y[place] = -y[place]
    return X, y


def told_to(query: Query, rng: np.random.Generator, number: int = 0) -> dict[str, np.ndarray]:
    """Anything that a coordinator may tell in a round of a query."""
    found = {}
    for name, wanted in query.takes_at(number).items():
        size = 10.0 ** rng.choice([-3, 0, 1, 3])
        drawn = size * rng.standard_normal(wanted.largest)
        if wanted.least > 0:
            drawn = np.abs(drawn) + 1e-9
        if isinstance(wanted, Wholes):
            drawn = np.rint(1e3 * drawn).astype(np.int64)
        found[name] = np.clip(drawn, wanted.least, wanted.most).astype(wanted.dtype)
    return found


def forgeries(wanted: Reals, array: np.ndarray) -> dict[str, np.ndarray | None]:
    """What a message must not carry in place of an array that it must."""

    def spoiled(number: float) -> np.ndarray:
        changed = np.array(array)
        changed.flat[-1] = number
        return changed

    whole = isinstance(wanted, Wholes)
    found: dict[str, np.ndarray | None] = {
        "missing": None,
        "another dimension": array[None],
        "another kind of number": array.astype(np.float64 if whole else np.int64),
    }
    if None not in wanted.shape:
        found["longer"] = np.concatenate([array, np.zeros((*array.shape[:-1], 1), dtype=array.dtype)], axis=-1)
        if array.shape[-1]:
            found["shorter"] = array[..., :-1]
    if array.size and not whole:
        beyond = {"NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf}
        found |= {name: spoiled(number) for name, number in beyond.items()}
        found["above"] = spoiled(math.nextafter(wanted.most, math.inf))
        found["below"] = spoiled(math.nextafter(wanted.least, -math.inf))
    if array.size and whole:
        beyond = {"above": wanted.most + 1, "below": wanted.least - 1}
        found |= {name: spoiled(number) for name, number in beyond.items() if abs(number) < 2**62}
    return found


def check_price_by_rows(central: Plan, rows: Plan) -> None:
    """Both cost a whole epsilon of 1; by rows each party releases the same, and who sees the sum alone learns less."""
    assert central.releases == rows.releases
    assert epsilons_of(central)["coordinator"] == pytest.approx(1.0, rel=1e-3)
    assert epsilons_of(rows)["coordinator"] == epsilons_of(central)["coordinator"] <= 1.0
    assert epsilons_of(rows)["world"] < epsilons_of(central)["world"]


def play(game: Game, runs: int | None = None, seed: int | None = None) -> Result:
    """The whole game in this process."""
    first, second = (game.statistics(which, runs or game.runs, source(seed, game.name, which)) for which in (0, 1))
    return verdict(game, game.claim(), first, second, 0.0)
