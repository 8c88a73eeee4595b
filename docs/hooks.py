"""The proofs beside the code as pages, formulas as formulas, and tables made from the classes."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

from formulas import formula
from mkdocs.structure.files import File, Files
from tables import inserted

SOURCE = Path(__file__).parent.parent / "src" / "sottovoce"

# A fenced block, or indented lines after an empty one.
_BLOCK = re.compile(r"(^ *```.*?^ *```$|(?<=\n\n)(?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)

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
    """Indented lines are formulas; in proofs, and in pages that read like one, the text has indices and powers too."""
    like_a_proof = page.file.abs_src_path in map(str, _proofs()) or page.file.name == "papers"
    made = ""
    for place, part in enumerate(_BLOCK.split(inserted(markdown) + "\n")):
        if place % 2:
            made += part if part.lstrip().startswith("```") else formula(dedent(part).rstrip())
        else:
            made += "\n".join(map(typeset, part.split("\n"))) if like_a_proof else part
    return made


def typeset(line: str) -> str:
    """`x_i^{2}` with a lowered i and a raised 2, outside code and links."""
    parts = _CODE.split(line)
    return "".join(part if place % 2 else _SCRIPT.sub(_raised, part) for place, part in enumerate(parts))


def _raised(found: re.Match[str]) -> str:
    tag = "sub" if found[1] == "_" else "sup"
    return f"<{tag}>{found[2].removeprefix('{').removesuffix('}')}</{tag}>"
