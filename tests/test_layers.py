"""Each layer of the package imports only those below it."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "sottovoce"

# From the bottom up; packages of one line may import one another.
LAYERS = (
    ("errors", "systems", "files", "formats", "arguments", "notebooks", "numerals"),
    ("losses", "penalties"),
    ("data",),
    ("privacy",),
    ("plan",),
    ("secure",),
    ("gate",),
    ("queries",),
    ("solvers",),
    ("algorithms",),
    ("transports",),
    ("federation",),
    ("estimators",),
    ("app", "lab"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The packages of sottovoce that a module imports, anywhere in it and also for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sottovoce":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("sottovoce.")}
    return found


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or layer(path) in LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_module_imports_only_the_layers_below_it(path: Path) -> None:
    own = LEVEL[layer(path)]
    above = {name for name in imported(path) - {"__version__", layer(path)} if LEVEL[name] > own}
    assert not above, f"{layer(path)} is below {', '.join(sorted(above))}"


def test_every_package_has_its_layer() -> None:
    assert {layer(path) for path in SOURCE.rglob("*.py")} - {"__init__", "__main__"} == set(LEVEL)


@pytest.mark.parametrize("path", sorted((SOURCE / "algorithms").rglob("*.py")), ids=lambda path: path.stem)
def test_an_algorithm_leaves_matrices_to_the_block(path: Path) -> None:
    """Whether rows are dense or sparse is the block's affair; sparse matrices of public numbers are an algorithm's."""
    text = path.read_text(encoding="utf-8")
    for mark in ("is_sparse", "issparse", "indptr", "block.rows", "block.whole.rows", ".chunks("):
        assert mark not in text, f"{mark} belongs into data/block.py"


@pytest.mark.parametrize("name", ["secure", "gate", "queries", "solvers", "algorithms", "lab"])
def test_splits_and_channels_are_asked_and_not_compared(name: str) -> None:
    """What differs between them is in `plan/split.py`."""
    compared = re.compile(r"""split (==|!=) ["'](central|rows|columns)|secure aggregation is (not )?None""")
    assert compared.search('if plan.split == "columns":')
    found = [path for path in (SOURCE / name).rglob("*.py") if compared.search(path.read_text(encoding="utf-8"))]
    assert found == []
