"""The proofs beside the code as pages, and formulas as formulas."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parent.parent / "src" / "sottovoce"

# What is left alone in a line: code, links, tags. Then a letter, or a bracket that ends, with an index or a power;
# digits that are raised already (\u00b2, \u2070 to \u207f) end an index.
_CODE = re.compile(r"(`[^`]*`|\]\([^)]*\)|<[^>]*>)")
_WORD = r"(?:(?![\u00b2\u00b3\u00b9\u2070-\u207f\u1d43-\u1dbf])\w)+"
_SCRIPT = re.compile(rf"(?<=[\w)\]}}\u2032\u221e|>])([_^])(\{{[^{{}}]*\}}|[\u2212-]?{_WORD}(?:[,\u2032]{_WORD})*)")


def _proofs() -> list[Path]:
    return sorted([*SOURCE.glob("*/proofs/*.md"), *SOURCE.glob("algorithms/*/proof.md")])


def on_config(config: Any) -> Any:
    """Put every proof into the navigation, by its own first line."""
    section = next(entry["Proofs"] for entry in config.nav if "Proofs" in entry)
    for proof in _proofs():
        title = proof.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").split(":")[0]
        section.append({title: proof.relative_to(SOURCE).as_posix()})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add every proof as a page."""
    for proof in _proofs():
        files.append(File.generated(config, proof.relative_to(SOURCE).as_posix(), abs_src_path=str(proof)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Typeset the formulas of a proof, without scripts: indices, powers, and lines that stand alone."""
    if not re.search(r"(^|/)proofs?(/|\.md$)", page.file.src_uri) or page.file.src_uri == "proofs.md":
        return markdown
    parts = re.split(r"((?:^    \S.*\n(?:    .*\n)*))(?=\n|\Z)", markdown.rstrip("\n") + "\n", flags=re.MULTILINE)
    return "".join(_formula(part) if place % 2 else _text(part) for place, part in enumerate(parts))


def _formula(block: str) -> str:
    """Lines that stand alone, as they are spaced."""
    lines = [typeset(html.escape(line[4:])) for line in block.rstrip("\n").split("\n")]
    code = re.sub(r"`([^`]*)`", r"<code>\1</code>", "\n".join(lines))
    return f'<div class="formula">{code}</div>\n'


def _text(part: str) -> str:
    return "\n".join(line if line.startswith("    ") else typeset(line) for line in part.split("\n"))


def typeset(line: str) -> str:
    """`x_i^{2}` with a lowered i and a raised 2, outside code and links."""
    parts = _CODE.split(line)
    return "".join(part if place % 2 else _SCRIPT.sub(_raised, part) for place, part in enumerate(parts))


def _raised(found: re.Match[str]) -> str:
    tag = "sub" if found[1] == "_" else "sup"
    return f"<{tag}>{found[2].removeprefix('{').removesuffix('}')}</{tag}>"

