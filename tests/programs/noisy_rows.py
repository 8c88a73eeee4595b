"""A solver that shows all noisy rows, and a run of it: `noisy_rows.py FOLDER RUN [KILL]`.

FOLDER has data.npz, the parties' ledgers and plan.json. The rows that came back are written to FOLDER/RUN.npz, and the
hash of the rows that each answer was made of to FOLDER/used.txt. KILL names a call in the storing of rows at which the
process kills itself, by its number: "file:2", say.
"""

from __future__ import annotations

import hashlib
import operator
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.algorithms import Algorithm, Ask, Solution
from sottovoce.algorithms.base import Coordination
from sottovoce.data.bounds import Bounds
from sottovoce.federation.federation import Federation
from sottovoce.gate import gate
from sottovoce.gate.query import Derived, MessageArrays, NoisyRows, Query, Reals, Round
from sottovoce.plan.plan import FAMILIES, Design, Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.release import Release
from sottovoce.privacy import ledger_file
from sottovoce.privacy.events import Relation
from sottovoce.privacy.ledger import Account, Ledger

Array = NDArray[np.float64]


def used(rows: NDArray[Any]) -> None:
    """Called for the rows of every answer; a process of its own writes down which they are."""


class Rows(NoisyRows):
    """A party's prepared rows."""

    name = "rows"
    title: ClassVar[str] = "rows"

    def __init__(self, norm: float, width: int) -> None:
        self.bound, self.width, self.rounding_entries = norm, width, float(width)

    def value(self, round: Round) -> Array:
        return np.asarray(round.rows.rows, dtype=np.float64)


class Scores(Derived):
    """Noisy rows times weights."""

    name = "scores"
    title: ClassVar[str] = "scores"

    def __init__(self, source: Rows, records: int) -> None:
        self.source, self.length = source, records
        self.takes = {"weights": Reals((source.width,))}

    def derive(self, rows: NDArray[Any], told: MessageArrays) -> Array:
        used(rows)
        return np.asarray(rows @ told["weights"], dtype=np.float64)


class Total(Query):
    """The sum of the first column."""

    name = "total"
    title: ClassVar[str] = "a sum"
    bound = 1.0
    rounding_entries = 1.0
    length = 1

    def value(self, round: Round) -> Array:
        return np.array([round.rows.rows[:, 0].sum(dtype=np.float64)])


class Shows(Algorithm):
    """Asks for the noisy rows, one column a round."""

    name: ClassVar[str] = "shows"
    form: ClassVar[str] = "rows"
    title: ClassVar[str] = "shows the noisy rows"
    splits: ClassVar[tuple[str, ...]] = ("columns",)
    layout = "entries"

    def design(self, problem: Problem, options: Any) -> Design:
        raise NotImplementedError

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        part = plan.part(party)
        norm = part.preparation.bounds.row_norm
        assert norm is not None
        own = Rows(norm / plan.preparation.unit, part.stop - part.start)
        return own, Scores(own, plan.records), Total()

    def coordinate(self, plan: Plan) -> Coordination:
        yield Ask("total", round=0)
        columns: dict[str, list[Array]] = {name: [] for name in plan.names}
        for j in range(max(plan.columns)):
            each = {
                name: {"weights": np.eye(max(plan.columns))[j, :width]}
                for name, width in zip(plan.names, plan.columns, strict=True)
            }
            for name, value in (yield Ask("scores", each=each, round=j)).items():
                columns[name].append(value)
        shown = {
            name: np.column_stack(columns[name][:width]) for name, width in zip(plan.names, plan.columns, strict=True)
        }
        return Solution(np.zeros(plan.dimension), model=shown)


SOLVER = Shows()
FORMS = (SOLVER,)  # this file is the family of the solver


def register(patch: Callable[[Any, str, Any], None] = operator.setitem) -> None:
    """Make the solver known to this process; `patch` may take it back later."""
    patch(FAMILIES, SOLVER.name, __name__)


def planned(
    federation: Federation,
    *,
    std: float,
    row_norm: float = 1.0,
    columns: tuple[int, ...],
    records: int,
    relation: Relation = "zero-out",
) -> Plan:
    """A plan of the solver."""
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
        layout="entries",
    )
    step = 2.0**-16
    releases = (
        Release.of(Rows(1.0, max(columns)), 0, 1, std, step, mechanism="kept"),
        Release.of(Total(), 0, 1, 100.0, 2.0**-10),
        Release.derived("scores", 0, max(columns)),
    )
    design = Design(rounds=1, releases=releases)
    return Plan(
        **problem.fields(),
        **design.fields(),
        run=os.urandom(8).hex(),
        coin="c",
        algorithm=SOLVER.name,
        form=SOLVER.form,
    )


def federation_of(parts: list[Any], y: Any, accounts: list[Account | None]) -> Federation:
    return Federation.by_columns(parts, y, ledgers=accounts, names=[f"party{k}" for k in range(len(parts))])


def run(parts: list[Any], y: Any, accounts: list[Account | None], plan: Plan | float) -> dict[str, Array]:
    """The noisy rows of all parties, as the coordinator sees them; of a new plan with that noise, or of one made."""
    federation = federation_of(parts, y, accounts)
    try:
        columns, records = tuple(X.shape[1] for X in parts), parts[0].shape[0]
        if not isinstance(plan, Plan):
            plan = planned(federation, std=plan, columns=columns, records=records)
        solution, _ = federation.coordinator().run(plan, Shows())
    except (sv.LedgerError, sv.WireError):
        federation.raise_failure()
        raise
    shown: dict[str, Array] = solution.model
    return shown


def accounts_in(folder: Path) -> list[Account]:
    paths = [folder / f"party{k}.ledger" for k in range(2)]
    ledgers = [Ledger(path) if path.exists() else Ledger.create(path) for path in paths]
    return [ledger.open("people", 50.0, 1e-5, composition="gaussian") for ledger in ledgers]


def kill_at(place: str, calls: int) -> None:
    """Make this process kill itself at the start of that call."""
    owner: Any
    owner, name = {
        "reserve": (Account, "reserve"),  # nothing is charged
        "draw": (gate, "draw_rows"),  # charged, nothing drawn
        "file": (gate.Memory, "write_rows"),  # drawn, nothing written
        "sync": (os, "fsync"),  # written, not durable
        "rename": (Path, "replace"),  # durable, not in its place
        "entry": (ledger_file.Entries, "append"),  # the file is there, the entry is not
        "read": (gate.Memory, "read_rows"),  # all is durable
        "answer": (Scores, "derive"),
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
    register()
    folder, label, *kill = sys.argv[1:]
    data = np.load(Path(folder) / "data.npz")
    made = Plan.from_json((Path(folder) / "plan.json").read_text())

    def used(rows: NDArray[Any]) -> None:
        with (Path(folder) / "used.txt").open("a") as file:
            file.write(f"{rows.shape[1]} {hashlib.sha256(rows.tobytes()).hexdigest()}\n")

    if kill:
        where, _, which = kill[0].partition(":")
        kill_at(where, int(which))
    found = run([data["part0"], data["part1"]], data["y"], list(accounts_in(Path(folder))), made)
    np.savez(Path(folder) / f"{label}.npz", **found)
