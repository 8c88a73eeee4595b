"""The papers, re-run: one page with every figure, table and verdict, which needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sottovoce.app.page import svg_of
from sottovoce.app.texts import render
from sottovoce.estimators.plots import picture
from sottovoce.files import write_data, write_text
from sottovoce.lab.reproduce import Reproduction
from sottovoce.lab.reproduce.pictures import draw_tables

POINTS = 12  # of a curve in a table


def write_pages(folder: Path, papers: Sequence[Reproduction], *, quick: bool) -> None:
    """`index.html`, and each figure as NAME-FIGURE.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for paper in papers:
        pictures = []
        for name, tables in paper.pictures.items():
            figure = draw_tables(tables)
            path = folder / f"{paper.name}-{name.replace(' ', '-')}.svg"
            write_data(path, picture(figure, ".svg"), "a figure")
            shown = [(table, *table.cells(POINTS)) for table in tables]
            pictures.append((name, svg_of(figure, fonttype="none"), shown))
        parts.append((paper, pictures))
    text = render("papers.html", title="The papers, re-run", parts=parts, quick=quick)
    write_text(folder / "index.html", text, "the page")
