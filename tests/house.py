"""The size and the shape of the code, counted in its files and along runs: what tests/test_house.py limits.

`python benchmarks/house.py` prints every figure. A walk is the set of functions of the package that one run passes
through, in a second run and a third, since the first also imports and compiles, and since once in many runs noise
falls so near a boundary that it is settled in more digits. Python 3.12 and later run a comprehension inside the
function around it, so that they count fewer than 3.11.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
import tempfile
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce.app.cli import app
from sottovoce.gate.query import Query
from sottovoce.plan.plan import FAMILIES, OTHERS, family
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator

SOURCE = Path(sv.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"
LONG = 500  # lines of a file
BY_VALUE = re.compile(r"split (==|!=) [\"']|split in \(|aggregation is (not )?None")
ABOUT = re.compile(r"\balgorithm\b|\bsolver\b(?!,)|(?<!frame)\.query\b|\.name\b")
BY_NAME = {"release", "has", "noise_of", "by_name", "forms", "find", "check", "choose"}
# Besides the families their list, and the audit's games, of which each solver has some.
FAMILY_FOLDERS = ("algorithms/", "queries/", "solvers/", "plan/plan.py", "lab/audit/runner.py")
UNNAMED = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>"}


@cache
def texts() -> Mapping[str, str]:
    """The modules of the package, by their paths in it."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def trees() -> Mapping[str, ast.Module]:
    return {path: ast.parse(text) for path, text in texts().items()}


def package_of(path: str) -> str:
    return path.split("/")[0] if "/" in path else "."


def lines() -> dict[str, int]:
    """Lines of each package, and under "." those of the modules beside them."""
    counts = Counter[str]()
    for path, text in texts().items():
        counts[package_of(path)] += len(text.splitlines())
    return dict(counts)


def long_files() -> dict[str, int]:
    counts = {path: len(text.splitlines()) for path, text in texts().items()}
    return {path: count for path, count in counts.items() if count > LONG}


def repeated(*kinds: type[ast.stmt]) -> dict[str, list[str]]:
    """Names of top-level statements of these kinds that stand in several modules, and in which."""
    places = defaultdict[str, list[str]](list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, kinds):
                places[node.name].append(path)  # type: ignore[attr-defined]
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def query_names(kind: type[Query] = Query) -> set[str]:
    """The names of all queries that were imported."""
    return {vars(kind).get("name", "")}.union(*(query_names(each) for each in kind.__subclasses__())) - {""}


def solver_and_query_names() -> set[str]:
    for name in (*FAMILIES, *OTHERS):
        family(name)  # imports its queries
    return {*FAMILIES, *OTHERS, *query_names()}


def named(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """What compares a solver or a query with one of these names, or asks for one by it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ABOUT.search(ast.unparse(node)):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in BY_NAME:
            parts = list(node.args)
        else:
            continue
        if names & {leaf.value for part in parts for leaf in ast.walk(part) if isinstance(leaf, ast.Constant)}:
            yield ast.unparse(node)


def named_outside_families() -> list[str]:
    names = solver_and_query_names()
    others = ((path, tree) for path, tree in trees().items() if not path.startswith(FAMILY_FOLDERS))
    return [f"{path}: {text}" for path, tree in others for text in named(tree, names)]


def repeated_classes() -> dict[str, list[str]]:
    return repeated(ast.ClassDef)


def repeated_functions() -> dict[str, list[str]]:
    return repeated(ast.FunctionDef, ast.AsyncFunctionDef)


def unused_arguments() -> int:
    """How often an argument that nobody reads is allowed by a comment."""
    return sum(text.count("noqa: ARG") for text in texts().values())


def compared_by_value() -> int:
    """How often a split or a channel is compared with a name, instead of asked."""
    return sum(len(BY_VALUE.findall(text)) for text in texts().values())


def constructor_parameters() -> dict[str, int]:
    """Of each estimator."""
    names = [name for name in sv.__all__ if name.startswith("Private")]
    return {name: len(getattr(sv, name)._get_param_names()) for name in names}


def words_of_docs() -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in DOCS.glob("*.md"))


def longest_coordinate() -> tuple[int, str]:
    """Lines of the longest algorithm's text, without its docstring, and its module."""
    found = [(0, "")]
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "coordinate":
                first = node.body[ast.get_docstring(node) is not None :]
                found.append((first[-1].end_lineno - first[0].lineno + 1 if first else 0, path))  # type: ignore[operator]
    return max(found)


class Walk(NamedTuple):
    """The functions that a run passes through, as (path in the package, qualified name)."""

    passed: frozenset[tuple[str, str]]

    @property
    def functions(self) -> int:
        return len(self.passed)

    @property
    def named(self) -> int:
        """Without comprehensions and lambdas."""
        return sum(name.split(".")[-1] not in UNNAMED for _, name in self.passed)

    @property
    def files(self) -> int:
        return len({path for path, _ in self.passed})

    def by_package(self) -> dict[str, int]:
        return dict(Counter(package_of(path) for path, _ in self.passed).most_common())


def trace(work: Callable[[], object], *, threads: bool = True) -> Walk:
    """What `work` passes through, in this thread and in those that it starts, or in this one alone."""
    passed = set[tuple[str, str]]()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            passed.add((code.co_filename[len(str(SOURCE)) + 1 :], code.co_qualname))

    if threads:
        threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return Walk(frozenset(passed))


@cache
def records() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 8))
    return X, (X @ rng.normal(size=8) > 0).astype(int)


def estimator() -> Any:
    return sv.PrivateLogisticRegression(epsilon=1.0, row_norm=3.0, classes=(0, 1))


@contextlib.contextmanager
def connected() -> Iterator[sv.Federation]:
    """Two parties with rows, in threads, each with its certificate, over TLS."""
    X, y = records()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        create_authority(folder)
        for name in ("coordinator", "north", "south"):
            issue(folder, name)
        wire = GrpcCoordinator("localhost:0", ["north", "south"], Credentials.load(folder, "coordinator"))
        for place, name in enumerate(("north", "south")):
            party = sv.Party(name, X[place::2], y[place::2])
            end = party, f"localhost:{wire.port}", Credentials.load(folder, name)
            threading.Thread(target=serve_party, args=end, daemon=True).start()
        wire.wait_for_parties()
        yield stack.enter_context(contextlib.closing(sv.Federation.connect(wire)))


JOB = """
[model]
estimator = "logistic"

[privacy]
epsilon = 1.0
delta = 1e-5

[bounds]
classes = [0, 1]
feature_ranges = { a = [-1, 1], b = [-1, 1] }

[data]
file = "people.csv"
label = "y"
"""


def fit_job() -> None:
    """`sottovoce fit job.toml` in a new folder."""
    X, y = records()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        table = np.column_stack([X[:, :2], y])
        header = {"header": "a,b,y", "comments": "", "delimiter": ",", "fmt": "%.6f,%.6f,%d"}
        np.savetxt(Path(folder) / "people.csv", table, **header)  # type: ignore[call-overload]
        (Path(folder) / "job.toml").write_text(JOB)
        os.chdir(folder)
        try:
            done = CliRunner().invoke(app, ["fit", "job.toml"])
        finally:
            os.chdir(before)
    assert done.exit_code == 0, done.output


def central_walk() -> Walk:
    return second(lambda: estimator().fit(*records()))


def rows_walk() -> Walk:
    """By rows over gRPC: the coordinator's thread."""

    def fit() -> Walk:
        with connected() as federation, warnings.catch_warnings(action="ignore"):
            return trace(lambda: estimator().fit(federation), threads=False)

    fit()
    return both(fit)


def columns_walk() -> Walk:
    """By columns, with secure products."""
    X, y = records()
    parts = [X[:, :4], X[:, 4:]]
    return second(lambda: estimator().fit(sv.Federation.by_columns(parts, y, labels="held", products="secure")))


def job_walk() -> Walk:
    return second(fit_job)


def evaluation_walk() -> Walk:
    with warnings.catch_warnings(action="ignore"):
        model = estimator().fit(*records())
    return second(lambda: sv.evaluate(model, *records(), epsilon=1.0))


def second(work: Callable[[], object]) -> Walk:
    """The walk of a run that is not the first."""
    with warnings.catch_warnings(action="ignore"):
        work()
        return both(lambda: trace(work))


def both(walk: Callable[[], Walk]) -> Walk:
    """What two runs both pass through."""
    return Walk(walk().passed & walk().passed)


WALKS: dict[str, Callable[[], Walk]] = {
    "central fit": central_walk,
    "by rows over gRPC, coordinator": rows_walk,
    "by columns, secure products": columns_walk,
    "sottovoce fit job.toml": job_walk,
    "evaluate": evaluation_walk,
}
