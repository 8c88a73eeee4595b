"""Whatever charges has the state of its job to itself: a second start is refused, names the first, charges nothing."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

import sottovoce
from sottovoce.errors import InputError
from sottovoce.federation.journal import Journal
from sottovoce.privacy.ledger import Account, Ledger

pytestmark = pytest.mark.slow

APP = Path(sottovoce.__file__).parent / "app"
TELLING = "cli/fitted.py"
DEMO = "demo.py"  # makes its own folder, ledgers and parties for each start


OPENING = {"open_job", "open_test", "open_federation"}


def charging(source: str, telling: str) -> list[bool]:
    """Of each place that opens what can charge: whether the state of its job is held around it.

    `telling` has `Telling.once`, which calls the function that it is given: so what is in one is held if it holds.
    """
    found = list[bool]()

    def names(node: ast.AST, module: str) -> set[str]:
        called = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
        return {
            func.attr
            for func in called
            if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == module
        }

    def walk(node: ast.AST, *, held: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inside = held or (isinstance(child, ast.FunctionDef) and child.name in given)
            if isinstance(node, ast.With) and child in node.body:
                inside = inside or any("hold_run" in names(item, "outputs") for item in node.items)
            if isinstance(child, ast.withitem | ast.Expr | ast.Assign) and names(child, "runs") & OPENING:
                found.append(inside)
            walk(child, held=inside)

    tree = ast.parse(source)
    given = set[str]()
    if asks_under_the_lock(telling):
        told = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and is_once(each.func)]
        given = {each.id for call in told for each in call.args if isinstance(each, ast.Name)}
        # a function that is called here too, or handed on, is held by nobody
        used = [each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
        assert used.count("ask") == len(told) + (source == telling)
    walk(tree, held=False)
    return found


def is_once(func: ast.expr) -> bool:
    """Whether it is `Telling(...).once`."""
    if not (isinstance(func, ast.Attribute) and func.attr == "once" and isinstance(func.value, ast.Call)):
        return False
    return ast.unparse(func.value.func) == "Telling"


def asks_under_the_lock(telling: str) -> bool:
    """Whether `once` calls what it is given while the state is held, and nowhere else."""
    once = next(
        each for each in ast.walk(ast.parse(telling)) if isinstance(each, ast.FunctionDef) and each.name == "once"
    )

    def asked(node: ast.AST) -> int:
        return sum(isinstance(each, ast.Name) and each.id == "ask" for each in ast.walk(node))

    holding = [
        each
        for each in ast.walk(once)
        if isinstance(each, ast.With) and any("outputs.hold_run(" in ast.unparse(item) for item in each.items)
    ]
    return sum(map(asked, holding)) == asked(once) == 1


def test_every_place_that_opens_what_can_charge_holds_the_state_of_its_job() -> None:
    telling = (APP / TELLING).read_text()
    places = {path.relative_to(APP).as_posix(): charging(path.read_text(), telling) for path in APP.rglob("*.py")}
    found = {path: held for path, held in places.items() if held}
    assert set(found) == {"cli/training.py", TELLING, "cli/starting.py", "flare.py", DEMO}
    assert all(all(held) for path, held in found.items() if path != DEMO)
    for path in sorted(set(found) - {DEMO}):  # planted: the same without the lock
        texts = [(APP / path).read_text(), telling]
        assert not any(charging(*(text.replace("outputs.hold_run(", "unlocked.hold_run(") for text in texts)))


def test_python_opens_no_journal_but_by_its_lock() -> None:
    """Entries are read by one method, of a file that `_have` has locked."""
    tree = ast.parse(APP.with_name("federation").joinpath("journal.py").read_text())
    opens = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("os.open", "open", "path.open", "path.read_bytes")
    ]
    assert opens == ["_have"]


@pytest.fixture
def locked_when_charged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states that were held, by another look at them, whenever an account was charged."""
    held, plain = list[str](), Account.reserve

    def reserve(self: Account, *arguments: Any, **options: Any) -> Any:
        for path in sorted(self.path.parent.glob("*.run")):
            with pytest.raises(InputError, match=rf"\(process {os.getpid()} on "):
                Journal(path)
            held.append(path.name)
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Account, "reserve", reserve)
    return held


def test_fits_and_evaluations_are_charged_under_the_lock(
    folder: Path, write_job: Any, open_ledger: Any, invoke: Any, locked_when_charged: list[str]
) -> None:
    ledger: Ledger = open_ledger("all.db", 50.0)
    job = write_job(data={"ledger": '"all.db"'})
    invoke("fit", job, "--quiet")
    table = '[data]\nfile = "north.csv"\nlabel = "out"\nledger = "all.db"\n'
    (folder / "test.toml").write_text(f"[privacy]\nepsilon = 1.0\n{table}")
    evaluation = ("evaluate", folder / "job.json", folder / "test.toml", "--output", folder / "found.json")
    invoke(*evaluation)
    assert locked_when_charged == ["job.run", "test.run"]
    assert "is there already" in invoke(*evaluation, code=2).stderr
    with Path(folder / "test.run").open("ab"):
        other = Journal(folder / "test.run")
        said = invoke(*evaluation, "--overwrite", code=2).stderr
        assert f"another process is at this run now (process {os.getpid()} on " in said
        other.close()
    assert ledger.account().balance().plans == 2
    assert not list(folder.glob("*.run"))
