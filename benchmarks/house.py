"""The size and the shape of the code, as numbers: `python benchmarks/house.py`.

Lines of the algorithms, methods that an algorithm implements, parameters of functions and of estimators, and import
cycles between packages. `duplicates src` beside it counts repeated passages, where that command is installed.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.algorithms.base import Algorithm
from sottovoce.transports.certificates import Credentials, create_authority, issue
from sottovoce.transports.grpc_wire import GrpcCoordinator, serve_party

SOURCE = Path(sv.__file__).parent


def modules() -> dict[str, ast.Module]:
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def parameters(function: ast.FunctionDef) -> int:
    given = function.args
    named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"]))


def cycles() -> list[set[str]]:
    """Packages that import one another, directly or by way of others; imports for types and in functions count."""
    edges: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules().items():
        own = path.split("/")[0].removesuffix(".py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sottovoce"):
                parts = (node.module or "").split(".")[1:]
                edges[own] |= {parts[0]} if parts else {alias.name for alias in node.names}
        edges[own].discard(own)

    def reached(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            for name in edges.get(left.pop(), set()) - found:
                found.add(name)
                left.append(name)
        return found

    reach = {name: reached(name) for name in edges}
    knots = {frozenset(other for other in reach[name] if name in reach.get(other, set())) for name in edges}
    return [set(knot) for knot in knots if len(knot) > 1]


def connected(parts: list[tuple[Any, Any]], folder: str) -> sv.Federation:
    """Parties in threads, each with its certificate, over TLS."""
    create_authority(folder)
    names = [f"party-{place}" for place in range(len(parts))]
    for name in ("coordinator", *names):
        issue(folder, name)
    wire = GrpcCoordinator("localhost:0", names, Credentials.load(folder, "coordinator"))
    for name, (X, y) in zip(names, parts, strict=True):
        end = sv.Party(name, X, y), f"localhost:{wire.port}", Credentials.load(folder, name)
        threading.Thread(target=serve_party, args=end, daemon=True).start()
    wire.wait_for_parties()
    return sv.Federation.connect(wire)


def walk() -> None:
    """Three fits: which functions and files of the package run, how many plans are made, how often facts are asked."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 4))
    y = (X @ [1.0, -1.0, 0.5, 0.0] > 0).astype(int)
    halves, columns = [(X[::2], y[::2]), (X[1::2], y[1::2])], [X[:, :2], X[:, 2:]]
    fits = {
        "central newton": ("newton", lambda _: sv.Federation.central(X, y)),
        "by rows gradient over gRPC": ("gradient", lambda folder: connected(halves, folder)),
        "by columns score": ("score", lambda _: sv.Federation.by_columns(columns, y)),
    }
    for name, (solver, made) in fits.items():
        ran, counts = set[tuple[str, str]](), Counter[str]()

        def note(frame: Any, event: str, _: Any, ran: Any = ran, counts: Any = counts) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(str(SOURCE)):
                ran.add((code.co_filename, code.co_qualname))
                counts[code.co_qualname] += 1

        model = sv.PrivateLogisticRegression(1.0, 1e-4, entry_bound=1.0, classes=(0, 1), solver=solver)
        threading.setprofile(note)  # of the parties' threads, which start with their wire
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(made(folder)) as federation:
            sys.setprofile(note)
            model.fit(federation)
            sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        files = len({path for path, _ in ran})
        asked, plans = counts["Coordinator.facts"], counts["Plan.of"]
        print(f"{name}: {len(ran)} functions in {files} files; {plans} plan made, facts asked {asked} time(s)")


def main() -> None:
    lines = {path: len((SOURCE / path).read_text().splitlines()) for path in modules()}
    algorithms = sum(count for path, count in lines.items() if path.startswith("algorithms/"))
    print(f"lines of algorithms/: {algorithms} (all of src: {sum(lines.values())})")
    hooks = [name for name, value in vars(Algorithm).items() if inspect.isfunction(value) and not name.startswith("__")]
    print(f"methods of an algorithm: {len(hooks)} ({', '.join(hooks)})")
    estimators = [name for name in sv.__all__ if name.startswith("Private")]
    counts = {name: len(inspect.signature(getattr(sv, name)).parameters) for name in estimators}
    print(f"parameters of an estimator: {max(counts.values())} at most ({counts})")
    wide = [
        (path, node.name, parameters(node))
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and parameters(node) > 5
    ]
    kernels = sum("kernels" in path for path, *_ in wide)
    print(f"functions with more than five parameters: {len(wide)}, {kernels} of them loops in numba")
    for path, name, count in sorted(wide, key=lambda each: -each[2]):
        print(f"    {count:2d}  {path}: {name}")
    print(f"packages that import one another: {cycles() or 'none'}")
    walk()


if __name__ == "__main__":
    main()
