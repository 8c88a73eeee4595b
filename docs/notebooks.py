"""Make the notebooks anew: `python docs/notebooks.py`. Each is a page: its text, and its program in cells.

What a cell prints last shows itself. Files that a page names are written by a cell, commands and links are text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
FOLDER = DOCS / "notebooks"
PAGES = [DOCS / "quickstart.md", *sorted(set((DOCS / "gallery").glob("*.md")) - {DOCS / "gallery" / "index.md"})]

_CODE = re.compile(r"^```python\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)")
_PRINTED = re.compile(r"^print\((\w+(?:\.\w+(?:\([^()]*\))?)*)\)$")


def notebook_of(page: Path) -> dict[str, Any]:
    """The notebook of a page, in the form of Jupyter (nbformat 4.5)."""
    cells: list[dict[str, Any]] = []
    for place, part in enumerate(_CODE.split(page.read_text(encoding="utf-8"))):
        text = (part if place % 2 else _LINK.sub(r"\1", _PICTURE.sub("", part))).strip()
        if not text:
            continue
        kind = {"cell_type": "markdown", "metadata": {}}
        if place % 2:
            *lines, last = text.split("\n")
            text = "\n".join([*lines, _PRINTED.sub(r"\1", last)])
            kind = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
        cells.append({"id": f"cell-{len(cells)}", **kind, "source": text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def text_of(page: Path) -> str:
    """The notebook's file."""
    return json.dumps(notebook_of(page), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        (FOLDER / f"{page.stem}.ipynb").write_text(text_of(page), encoding="utf-8")


if __name__ == "__main__":
    main()
