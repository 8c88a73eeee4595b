"""A solver that shows all kept rows, and a run of it: `kept_rows.py FOLDER STD RUN [KILL]`.

FOLDER has data.npz and the parties' ledgers. The rows that came back are written to FOLDER/RUN.npz. KILL names a place
in the storing of rows where the process kills itself, after so many calls: "file:2", say.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import Algorithm, Ask, Problem, Solution, make_plan
from sottovoce.algorithms.base import Coordination, Design
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.door import noisy_rows as rows
from sottovoce.door.gate import Gate, Released
from sottovoce.federation.federation import Federation
from sottovoce.plan.plan import Named, Plan, Release, Split
from sottovoce.privacy import ledger_file
from sottovoce.privacy.accounting import Event, Relation
from sottovoce.privacy.ledger import Account, Ledger

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """A party's prepared rows."""

    norm: float
    width: int
    name: ClassVar[str] = "rows"
    weights: ClassVar[float] = 1.0

    @property
    def entries(self) -> float:
        return float(self.width)

    def sensitivity(self, relation: Relation) -> float:
        return self.norm * (2.0 if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        del arguments
        return np.asarray(block.rows, dtype=np.float64)


class Scores:
    """Kept rows times weights."""

    name = "scores"

    def derive(self, rows: NDArray[Any], weights: Array) -> Array:
        return np.asarray(rows @ weights, dtype=np.float64)


@dataclass(frozen=True)
class Total:
    """The sum of the first column."""

    name: ClassVar[str] = "total"
    weights: ClassVar[float] = 1.0
    entries: ClassVar[float] = 1.0

    def sensitivity(self, relation: Relation) -> float:
        return 2.0 if relation == "replace-one" else 1.0

    def value(self, block: Block, *arguments: Any) -> Array:
        del arguments
        return np.array([block.rows[:, 0].sum(dtype=np.float64)])


class Shows(Algorithm):
    """Asks for the kept rows, one column a round."""

    name: ClassVar[str] = "shows"
    title: ClassVar[str] = "shows the kept rows"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    layout = "entries"
    keeps_rows: ClassVar[bool] = True

    def design(self, problem: Problem) -> Design:
        raise NotImplementedError

    def queries(self, plan: Plan) -> Mapping[str, Any]:
        return self.queries_of(plan, plan.parties[0][0])

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Any]:
        part = plan.part(party)
        norm = part.preparation.bounds.row_norm
        assert norm is not None
        return {"rows": Rows(norm / plan.unit, part.stop - part.start), "scores": Scores(), "total": Total()}

    def coordinate(self, plan: Plan) -> Coordination:
        yield Ask("total", {"weights": np.zeros(1)}, round=0)
        columns: dict[str, list[Array]] = {name: [] for name, _ in plan.parties}
        for j in range(max(plan.columns)):
            each = {
                name: {"weights": np.eye(max(plan.columns))[j, :width]}
                for (name, _), width in zip(plan.parties, plan.columns, strict=True)
            }
            for name, value in (yield Ask("scores", each=each, round=j)).items():
                columns[name].append(value)
        shown = {
            name: np.column_stack(columns[name][:width])
            for (name, _), width in zip(plan.parties, plan.columns, strict=True)
        }
        return Solution(np.zeros(plan.dimension), model=shown)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        return None

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
        if query.name == "total":
            return gate.gaussian(query, round_, block)
        kept = gate.keep(memory, block)
        return gate.derived(query, round_, kept, arrays["weights"])

    def remember(self, plan: Plan, block: Block) -> Any:
        (party,) = [name for name, _ in plan.parties if plan.part(name).stop - plan.part(name).start == block.dimension]
        return self.queries_of(plan, party)["rows"]

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        std = plan.release("rows").std
        return self.dues(plan, relation, party, {name: std**-2 if std else np.inf for name, _ in plan.parties})

    def dues(self, plan: Plan, relation: Relation, party: str, owed: Mapping[str, float]) -> tuple[Event, ...]:
        sensitivities = {name: self.queries_of(plan, name)["rows"].sensitivity(relation) for name, _ in plan.parties}
        total = plan.release("total").event(relation, count=len(plan.parties))
        return (rows.row_event(sensitivities, owed), total)


SOLVER = Shows()


def planned(
    federation: Federation,
    *,
    std: float,
    row_norm: float = 1.0,
    columns: tuple[int, ...],
    records: int,
    kept: tuple[tuple[str, float], ...] | None = None,
    relation: Relation = "zero-out",
) -> Plan:
    """A plan of the solver; `kept` is what a coordinator would claim instead of asking for it."""
    coordinator = federation.coordinator()
    problem = Problem(
        loss=Named(name="logistic"),
        regulariser=Named(name="none"),
        split="columns",
        parties=tuple((name, records) for name in federation.transport.parties),
        features=sum(columns),
        bounds=Bounds.declare(row_norm=row_norm),
        epsilon=5.0,
        delta=1e-5,
        relation=relation,
        fit_intercept=False,
        classes=(0, 1),
        columns=columns,
        norms=tuple(federation.party_norms(row_norm)),
    )
    step = 2.0**-16
    releases = (
        Release.of(Rows(1.0, max(columns)), 0, 1, std, step, mechanism="kept"),
        Release.of(Total(), 0, 1, 100.0, 2.0**-10),
        Release.derived("scores", 0, max(columns)),
    )
    plan = make_plan("shows", problem, Design(1, {}, releases, layout="entries"), run=os.urandom(8).hex(), coin="c")
    return plan.model_copy(update={"kept": coordinator.kept(plan) if kept is None else kept})


def federation_of(parts: list[Any], y: Any, accounts: list[Account | None]) -> Federation:
    return Federation.by_columns(parts, y, ledgers=accounts, names=[f"party{k}" for k in range(len(parts))])


def run(parts: list[Any], y: Any, accounts: list[Account | None], std: float, **options: Any) -> dict[str, Array]:
    """The kept rows of all parties, as the coordinator sees them."""
    federation = federation_of(parts, y, accounts)
    try:
        columns, records = tuple(X.shape[1] for X in parts), parts[0].shape[0]
        plan = planned(federation, std=std, columns=columns, records=records, **options)
        solution, _ = federation.coordinator().run(plan, Shows())
    except (sv.LedgerError, sv.WireError):
        federation.raise_failure()
        raise
    shown: dict[str, Array] = solution.model
    return shown


def accounts_in(folder: Path) -> list[Account]:
    return [Ledger(folder / f"party{k}.ledger").open("people", 50.0, 1e-5, composition="gaussian") for k in range(2)]


def kill_at(place: str, calls: int) -> None:
    """Make this process kill itself at the start of that call."""
    owner: Any
    owner, name = {
        "reserve": (Account, "reserve"),  # nothing is charged
        "drawn": (rows, "draw"),  # charged, nothing drawn
        "record": (Account, "record_rows"),  # drawn, nothing written
        "file": (rows, "_write"),  # under the lock
        "sync": (os, "fsync"),  # written, not durable
        "rename": (Path, "replace"),  # durable, not in its place
        "entry": (ledger_file, "append"),  # the file is there, the entry is not
        "used": (rows.Copy, "values"),  # all is durable
    }[place]
    original: Callable[..., Any] = getattr(owner, name)
    left = [calls]

    def killing(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(owner, name, killing)


if __name__ == "__main__":
    algorithms.REGISTRY[SOLVER.name] = SOLVER
    folder, noise, label, *kill = sys.argv[1:]
    data = np.load(Path(folder) / "data.npz")
    own = accounts_in(Path(folder))
    if kill:
        where, _, which = kill[0].partition(":")
        if where == "race":
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.readline()
        else:
            kill_at(where, int(which))
    found = run([data["part0"], data["part1"]], data["y"], list(own), float(noise))
    np.savez(Path(folder) / f"{label}.npz", **found)
