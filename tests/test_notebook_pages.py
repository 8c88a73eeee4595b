"""Pages as notebooks: they are the pages of today, and run in a kernel."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
DOCS = Path(__file__).parent.parent / "docs"


def made() -> Any:
    spec = importlib.util.spec_from_file_location("notebooks", DOCS / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = made().PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_its_page(page: Path) -> None:
    written = DOCS / "notebooks" / f"{page.stem}.ipynb"
    assert written.read_text(encoding="utf-8") == made().text_of(page), "python docs/notebooks.py makes them anew"
    nbformat.validate(nbformat.read(written, 4))
    cells = json.loads(written.read_text(encoding="utf-8"))["cells"]
    assert {cell["cell_type"] for cell in cells} == {"code", "markdown"}
    assert not any("](" in "".join(cell["source"]) for cell in cells)


def test_no_notebook_is_without_a_page() -> None:
    assert {path.stem for path in (DOCS / "notebooks").glob("*")} == {page.stem for page in PAGES}


@pytest.mark.slow
def test_a_notebook_runs_in_a_kernel_and_shows_results(tmp_path: Path) -> None:
    """One of them; the code of all runs page by page in tests of the documentation."""
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(DOCS / "notebooks" / "table.ipynb", 4)
    notebook.cells.append(nbformat.v4.new_code_cell("model.privacy_"))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in data for data in shown)
    assert "<table" in shown[-1]["text/html"]
    assert (tmp_path / "table.png").exists()
