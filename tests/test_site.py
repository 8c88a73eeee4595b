"""The documentation builds without a warning, and its pages work without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

# What a browser loads by itself: scripts, styles, fonts, images, frames. Not what a reader may click.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*?\bhref=["']?([^"'\s>]+)"""
)
_STYLED = re.compile(r"""(?:url\(|@import )["']?([^"')\s]+)""")


def outside(text: str) -> list[str]:
    """The addresses on other hosts that a page or a style sheet loads."""
    found = [address for groups in _LOADED.findall(text) for address in groups] + _STYLED.findall(text)
    return [address for address in found if re.match(r"(?:\w+:)?//", address)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert outside(text) == [], page.name
        assert 'class="mermaid"' not in text  # the theme would fetch a script for it


def test_what_comes_from_elsewhere_is_seen() -> None:
    assert outside('<script src="https://a.example/x.js"></script>') == ["https://a.example/x.js"]
    assert outside('<link rel="stylesheet" href="//a.example/x.css">') == ["//a.example/x.css"]
    assert outside("@font-face { src: url(https://a.example/x.woff2) }") == ["https://a.example/x.woff2"]
    assert outside('<img src="images/gate.svg"><a href="https://a.example">') == []


def test_search_works_from_files(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert '<script src="iframe-worker.js">' in page
    assert 'type="text" class="md-search__input"' in page
    assert "sensitivity" in (site / "search" / "search_index.js").read_text(encoding="utf-8")


def test_pages_are_light_and_dark_with_a_switch(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'data-md-color-scheme="(\w+)"', page) == ["default", "default", "slate"]


def test_proofs_have_formulas(site: Path) -> None:
    assert "<math>" in (site / "algorithms" / "newton" / "proof.html").read_text(encoding="utf-8")


def test_reference_has_the_tables_of_the_classes(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    for name in ("fit_intercept", "class_weight", "gram_share", "world_epsilon"):  # parameters, options
        assert f"<td><code>{name}</code></td>" in page
    assert "<!-- insert" not in page
