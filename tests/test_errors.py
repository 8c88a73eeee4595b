from __future__ import annotations

import importlib
import pkgutil
import re

import sottovoce
from sottovoce import errors
from sottovoce.errors import SottovoceError


def tree(kind: type, depth: int = 0) -> list[tuple[int, str]]:
    ours = (child for child in kind.__subclasses__() if child.__module__.startswith("sottovoce."))
    children = (child for child in ours if not child.__name__.startswith("_"))  # which nobody else can name
    return [(depth, kind.__name__), *(line for child in children for line in tree(child, depth + 1))]


def test_the_tree_in_the_docstring_is_that_of_the_classes() -> None:
    for module in pkgutil.walk_packages(sottovoce.__path__, "sottovoce."):
        if not module.name.endswith(("__main__", "nvflare_wire", "app.flare")):  # FLARE is an extra
            importlib.import_module(module.name)
    drawn = re.findall(r"^( *)[*+-] (\w+)", errors.__doc__ or "", re.MULTILINE)
    assert [(len(indent) // 2, name) for indent, name in drawn] == tree(SottovoceError)


def test_every_error_says_when_it_is_raised_and_what_to_do() -> None:
    for _, name in tree(SottovoceError):
        kind = getattr(errors, name, None)
        if kind is not None:
            assert "When: " in kind.__doc__
            assert kind is SottovoceError or "What to do: " in kind.__doc__
