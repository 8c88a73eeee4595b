"""Upper bounds for all that `make` installs: below the next version that may break something.

`python tests/constraints.py` writes constraints.txt anew, from what is installed in its environment.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

FILE = Path(__file__).parent.parent / "constraints.txt"
HEAD = "# What `make` installs stays below these. Renewed by `python tests/constraints.py`; CONTRIBUTING.md says when."
OWN = {"sottovoce", "pip", "setuptools", "wheel"}


def plain(name: str) -> str:
    """A name as registries compare names.

    >>> plain("Typing_Extensions")
    'typing-extensions'
    """
    return name.lower().replace("_", "-").replace(".", "-")


def bound(version: str) -> str:
    """The next version that may break something: the next major one, below 1 the next minor one.

    >>> bound("2.4.6"), bound("0.68.1"), bound("0.0.6")
    ('3', '0.69', '0.1')
    """
    major, minor = (int(part) for part in (*version.split("."), "0")[:2])
    return str(major + 1) if major else f"0.{minor + 1}"


def installed() -> dict[str, str]:
    found = {plain(each.name): each.version for each in importlib.metadata.distributions()}
    return {name: version for name, version in sorted(found.items()) if name not in OWN}


def bounds() -> dict[str, str]:
    """The bounds of the file, by name."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return dict(line.split("<") for line in lines if line and not line.startswith("#"))


if __name__ == "__main__":
    FILE.write_text("\n".join([HEAD, *(f"{name}<{bound(version)}" for name, version in installed().items())]) + "\n")
