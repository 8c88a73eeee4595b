"""Play games side by side, in as many processes as asked for; a plan of one's own becomes games too."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import forms, make_plan, plan_by
from sottovoce.algorithms.evaluation import Subject, score_weights
from sottovoce.algorithms.evaluation.groups import Groups
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError
from sottovoce.estimators.plots import new_figure
from sottovoce.files import check_no_ledger
from sottovoce.lab.audit.games import Game, Result, source, verdict
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SPLITS, SecureAggregation
from sottovoce.privacy.events import RELATIONS, Relation
from sottovoce.solvers import by_name

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
    progress: Progress = lambda *_: None,
) -> list[Result]:
    """Play every game, those whose names begin as `only` says, or those of a plan; results in order.

    A correct mechanism is accused with probability 1e-4 at most. `seed` is for tests of the audit itself.
    """
    known: Mapping[str, Game | Callable[[], Game]] = catalogue() if plan is None else make_own_games(plan)
    # "scd" is not "scd-primal".
    meant = [name for name in known for start in only if name == start or name.startswith((f"{start},", f"{start} "))]
    chosen = [name for name in known if not only or name in meant]
    if not chosen:
        raise InputError(f"only={list(only)!r} names no game; there are: {'; '.join(known)}.")
    games = [made if isinstance(made, Game) else made() for made in map(known.__getitem__, chosen)]
    # New processes, since one that has threads is not safely copied; one process is this one.
    pool: Executor = ThreadPoolExecutor(1)
    if processes != 1:
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    with pool:
        claims = [pool.submit(game.claim) for game in games]
        played = [
            [
                pool.submit(_play_runs, game, which, range(start, min(start + CHUNK, runs)), seed)
                for start in range(0, runs, CHUNK)
            ]
            for game, runs in ((game, game.runs * (THOROUGH if thorough else 1)) for game in games)
            for which in (0, 1)
        ]
        futures: list[Future[Any]] = [*claims, *itertools.chain(*played)]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()  # an error ends the audit
            progress(done, len(futures))
    results = []
    for place, game in enumerate(games):
        sides = [[piece.result() for piece in side] for side in played[2 * place : 2 * place + 2]]
        first, second = (np.concatenate([found for found, _ in side]) for side in sides)
        seconds = math.fsum(taken for side in sides for _, taken in side)
        results.append(verdict(game, claims[place].result(), first, second, seconds))
    return results


def _play_runs(game: Game, which: int, runs: range, seed: int | None) -> tuple[Array, float]:
    """The statistics of some runs on one side, and how much computing they took."""
    begun = time.process_time()
    found = game.statistics(which, len(runs), source(seed, game.name, which, runs.start))
    return found, time.process_time() - begun


def make_own_games(plan: Plan) -> dict[str, Game]:
    """The plan against the coordinator and against the world, at audit scale; as many runs as time allows.

    A plan that secures its sums is attacked by all other parties too, and on accounts under both relations.
    """
    scaled = at_audit_scale(plan)
    views: list[dict[str, Any]] = [{}]
    if plan.split.several and plan.protects == "record":
        views.append({"adversary": "world", "sees": "model"})
    found: dict[str, Game] = {}
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
    figure = new_figure()
    figure.set_size_inches(6.4, 5.2)
    axes = figure.add_subplot()
    kinds = {
        "ours": ("o", "tab:blue", [r for r in results if not r.published]),
        "published, the claim holds": ("^", "tab:gray", [r for r in results if r.published and r.expected]),
        "published, the claim cannot hold": ("s", "tab:red", [r for r in results if r.published and not r.expected]),
    }
    for label, (marker, colour, chosen) in kinds.items():
        if chosen:
            x, y = [r.claimed for r in chosen], [r.measured for r in chosen]
            axes.scatter(x, y, marker=marker, color=colour, alpha=0.7, label=label)
    for r in results:
        if r.measured > r.claimed:
            axes.annotate(r.name, (r.claimed, r.measured), (5, 3), textcoords="offset points", fontsize=7)
    most = max(max(r.claimed, r.measured) for r in results) * 1.05
    axes.plot([0, most], [0, most], color="black", linewidth=0.8)
    axes.set(xlim=(0, most), ylim=(-0.03 * most, most), ylabel="measured lower bound, same unit")
    axes.set_xlabel("claimed (mu, or epsilon of a published claim)")
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    check_no_ledger(path)
    figure.savefig(path)


RECORDS = 8
EPSILON, DELTA = 8.0, 1e-3  # mu = 2.1: attacks have most power there
MANY, SOME, FEW = 400, 240, 160  # runs of each side, as a run is short or long

RIDGE = Named(name="l2", parameters={"alpha": 0.01})
STIFF = Named(name="l2", parameters={"alpha": 0.2})  # the weights follow slowly
NONE = Named(name="none")
BALL = Named(name="l1_ball", parameters={"radius": 0.5})
UNIT_BALL = Named(name="l1_ball", parameters={"radius": 1.0})
ENTRIES = Bounds.declare(entry_bound=1.0, label_bound=1.0)
NORM = Bounds.declare(row_norm=1.0, label_bound=1.0)
DECLARED = {"stiff": STIFF, "ball": BALL, "unit ball": UNIT_BALL, "entries": ENTRIES}  # as games.toml calls them
GAMES: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("games.toml").read_text(encoding="utf-8"))
SCORED = "5c" * 32  # by columns: the plan of a model whose scores are evaluated
COUNTED = ((1.0, 0.0, 9.0), (-1.0, 0.0, 0.0), (math.nan, math.nan, 1.0))
ORDERED = {"loss": Named(name="ordinal", parameters={"classes": 3.0}), "classes": (0, 1, 2)}
TIMES = Named(name="hazard", parameters={"periods": [0.0, 1.0, 2.0, 4.0]})
LABELS = ((1.0, 0.0, 2.0), (1.0, 0.0, 0.0), (math.nan, math.nan, 0.0))  # the last class and the first
SIDES = Groups(column="side", names=("right", "left"), places=(1, -1))  # of the first feature
EVALUATED: Mapping[str, Mapping[str, Any]] = {  # what is told of a model decides what is counted
    "numbers": {},
    "classes": {"loss": Named(name="logistic"), "classes": (-1, 1)},
    "several classes": {"loss": Named(name="softmax", parameters={"classes": 3.0}), "classes": (0, 1, 2)},
    "ordered classes": ORDERED,
    "counts": {"loss": Named(name="poisson"), "bounds": Bounds.declare(row_norm=1.0, label_bound=(0, 9))},
    "times": {"loss": TIMES, "bounds": Bounds.declare(row_norm=1.0)},
    "numbers by groups": {"groups": SIDES},
    "classes by groups": {"loss": Named(name="logistic"), "classes": (-1, 1), "groups": SIDES},
}


def audit_plan(  # noqa: PLR0913
    solver: str,
    split: str = "central",
    parties: int | tuple[int, ...] = 1,
    features: int = 2,
    records: int = RECORDS,
    coin: str = "audit",
    **changes: Any,
) -> Plan:
    """A small plan of a squared loss; `features` are those of a party where the split is by columns.

    `parties` is how many, or the records of each. `changes` are fields of a problem, and options of the solver. With
    "evaluation" in the place of a solver some model is evaluated.
    """
    for key in ("bounds", "regulariser"):
        if isinstance(changes.get(key), str):
            changes[key] = DECLARED[changes[key]]
    fields = {key: changes.pop(key) for key in tuple(changes) if key in Problem.model_fields}
    counts = (records,) * parties if isinstance(parties, int) else parties
    columns = (features,) * len(counts) if SPLITS[split].same_people else ()
    problem = Problem(
        **{
            "loss": Named(name="squared"),
            "regulariser": RIDGE,
            "split": split,
            "parties": tuple((f"party {m + 1}", count) for m, count in enumerate(counts)),
            "features": sum(columns) if columns else features,
            "bounds": ENTRIES if columns else NORM,
            "epsilon": EPSILON,
            "delta": DELTA,
            "relation": "replace-one",
            "fit_intercept": False,
            "columns": columns,
            **fields,
        }
    )
    if solver == "evaluation":
        return evaluation_plan(problem, run="audit", coin=coin, **changes)
    return make_plan(problem, by_name(solver, **changes), run="audit", coin=coin)


def evaluation_plan(problem: Problem, *, run: str, coin: str, groups: Groups | None = None) -> Plan:
    """The plan of an evaluation of a model with large weights: scores lie at the nodes, where a record tells most."""
    loss = problem.scaled_loss
    fits = (form for form in forms("evaluation") if form.takes_scores(loss))
    form = next(form for form in fits if all(need.met(loss) for need in form.needs))
    weights = 9.0 * np.random.default_rng(0).standard_normal((loss.outputs, problem.dimension))
    subject = Subject(weights if form.several else weights[0], groups=groups)
    if problem.split.same_people:
        subject = Subject(score_weights(problem), scores=SCORED, groups=groups)
    return plan_by(form, problem, subject, run=run, coin=coin)


def catalogue() -> Mapping[str, Callable[[], Game]]:
    """Games by name, each made when it is asked for. A name begins with the solver's."""
    made: dict[str, Callable[[], Game]] = {}

    def game(name: str, plan: Mapping[str, Any], **fields: Any) -> None:
        made[name] = lambda: Game(name, audit_plan(**plan), **fields)

    for solver, plan in GAMES["central"].items():
        runs = FEW if solver in ("frank-wolfe", "greedy-cd") else MANY
        for relation in ("replace-one", "zero-out"):
            # A choice tells most where the others make both coordinates as good.
            second = (math.nan, math.nan) if relation == "zero-out" else (-1.0, 1.0)
            records = ((1.0, -1.0), second, (1.0, 1.0)) if solver == "greedy-cd" else ()
            game(f"{solver}, {relation}", {"solver": solver, **plan, "relation": relation}, runs=runs, records=records)
    people = {"solver": "whitened", **GAMES["central"]["whitened"], "most_records": 3}
    game("whitened, all records of a person", people, runs=SOME)
    ordered = {"solver": "whitened", **GAMES["central"]["whitened"], **ORDERED, "fit_intercept": True}
    game("whitened of ordered classes, replace-one", {**ordered, "regulariser": NONE}, runs=SOME, records=LABELS)
    game("scd-primal", {"solver": "scd-primal", "rounds": 3, "clip": 0.1, "features": 1}, runs=MANY)
    # Two holders: whoever sees each message, and the world, for whom their noises add.
    for solver in ("newton", "whitened", "gradient", "sgd", "scd", "cd"):
        plan = {"solver": solver, "split": "rows", "parties": 2, "relation": "zero-out", **GAMES["central"][solver]}
        game(f"{solver} by rows", plan, runs=MANY if solver in ("sgd", "scd") else SOME)
        game(f"{solver} by rows, model", plan, adversary="world", sees="model", runs=MANY)
    _add_by_columns(game)
    _add_secure(game)
    # A model is told by its plan; what leaves is one vector of cells.
    for what, fields in EVALUATED.items():
        plan, both = {"solver": "evaluation", **fields}, ((1.0, 0.0, 1.0), (1.0, 0.0, -1.0), (math.nan, math.nan, 1.0))
        others = {"numbers": both, "counts": COUNTED, "ordered classes": LABELS}.get(what, ())  # labels tell too
        game(f"evaluation of {what}, replace-one", plan, runs=MANY, records=others)
        game(f"evaluation of {what}, zero-out", {**plan, "relation": "zero-out"}, runs=MANY)
        game(f"evaluation of {what} by rows", {**plan, "split": "rows", "parties": 2}, runs=SOME, records=others)
    for name, published in GAMES["published"].items():
        game(name, {**published["plan"], "calibration": "paper"}, **published["game"])
    return made


def _add_by_columns(game: Callable[..., None]) -> None:
    """Two holders of a column each; a person is with both."""
    for name, options in GAMES["columns"].items():
        solver = name.split()[0]
        plan = {"solver": solver, "split": "columns", "parties": 2, "features": 1, "relation": "zero-out", **options}
        fields: dict[str, Any] = {"runs": FEW if solver == "score" else SOME}
        if solver == "frank-wolfe":  # the others make an atom as good as to stay, so that choices tell
            fields = {"runs": FEW, "records": ((1.0, 1.0), (math.nan, math.nan), (1.0, 1.0))}
        game(f"{name} by columns", plan, **fields)
        if name == "admm":
            game(f"{name} by columns, replace-one", {**plan, "relation": "replace-one"}, **fields)
        if name in ("frank-wolfe", "admm", "score"):
            game(f"{name} by columns, labels held", {**plan, "labels": "held"}, **fields)
        if solver in ("admm", "fdml", "score"):
            game(f"{name} by columns, model", plan, adversary="world", sees="model", **fields)
    feature = {"unit": "feature", "labels": "public", "rounds": 2, "slope_bound": 0.3, "regulariser": STIFF}
    plan = {"solver": "admm", "split": "columns", "parties": 2, "features": 1, **feature}
    game("admm by columns, a feature", plan, runs=MANY)


def _add_secure(game: Callable[..., None]) -> None:
    """Three holders whose sums are secure, and two whose products are; a party knows its own column."""
    plan: dict[str, Any]
    # A coalition beyond the promise has a third of the noise.
    for solver in ("newton", "whitened", "gradient", "sgd", "cd"):
        plan = {"solver": solver, "split": "rows", "parties": 3, "relation": "zero-out"}
        plan |= {**GAMES["central"][solver], "aggregation": SecureAggregation(colluding=2)}
        views = GAMES["secure"] if solver == "gradient" else {"coordinator": {}}
        for view, fields in views.items():
            for name, account in accounts("zero-out") if fields.get("holds", True) else [("", None)]:
                game(f"{solver} by rows, secure, {view}{name}", plan, runs=SOME, account=account, **fields)
    for solver in ("newton", "whitened", "gradient"):
        plan = {"solver": solver, "split": "columns", "parties": 2, "features": 1}
        plan |= {**GAMES["central"][solver], "aggregation": SecureAggregation(colluding=1), "labels": "held"}
        seen = ("world", "coordinator", "parties") if solver == "gradient" else ("coordinator",)
        for view, relation in itertools.product(seen, RELATIONS):
            said = f"{solver} by columns, secure, {view}{', replace-one' if relation == 'replace-one' else ''}"
            for name, account in accounts(relation):
                fields = GAMES["known_part"][account or relation] if view == "parties" else {"adversary": view}
                game(said + name, {**plan, "relation": relation}, runs=SOME, account=account, **fields)


def accounts(relation: Relation) -> Iterator[tuple[str, Relation | None]]:
    """Those that are charged for a plan of that relation: under the same one, and under another, with a name for it."""
    yield "", None
    yield from ((f", charged under {other}", other) for other in RELATIONS if other != relation)
