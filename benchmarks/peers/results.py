"""Results that can be made in pieces, and pages made from them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks" / "results"
NONE = "\u2013"  # a dash: not run, or not of this kind
PAGE = ROOT / "docs" / "evidence.md"


class Results:
    """A JSON file of cells by name, written after every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def put(self, key: str, cell: Any) -> None:
        self.cells[key] = cell
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ordered = {name: self.cells[name] for name in sorted(self.cells)}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in ordered.items())
        self.path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def shorter(values: list[float]) -> list[float]:
    """Six digits, which is more than the spread over runs leaves."""
    return [float(f"{value:.6g}") for value in values]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def into_page(name: str, text: str) -> None:
    """Replace the text between the comments `begin NAME` and `end NAME` of the page."""
    old = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{PAGE} has no place for {name!r}.")
    PAGE.write_text(pattern.sub(lambda found: found[1] + "\n" + text + "\n\n" + found[2], old), encoding="utf-8")


def parser(about: str | None, name: str) -> argparse.ArgumentParser:
    """The options that every one of these commands has."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--results", type=Path, default=FOLDER / f"{name}.json")
    made.add_argument("--table", action="store_true", help="run nothing; print the tables and update the page")
    made.add_argument("--plot", type=Path, help="run nothing; draw to this file (needs matplotlib)")
    return made


def shown(
    name: str,
    arguments: argparse.Namespace,
    kept: Results,
    tables: Callable[[dict[str, Any]], tuple[list[str], list[str]]],
    plot: Callable[[dict[str, Any], Path], None] | None = None,
) -> bool:
    """Print or draw stored results if that was asked for; then nothing is run.

    `tables` returns those of the page (of some commands none) and those that are printed only.
    """
    if arguments.table:
        first, others = tables(kept.cells)
        print("\n\n".join([*first, *others]))
        if first:
            into_page(name, "\n\n".join(first))
    if arguments.plot and plot:
        plot(kept.cells, arguments.plot)
    return bool(arguments.table or arguments.plot)
