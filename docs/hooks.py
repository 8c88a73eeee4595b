"""Shows the proofs that stand beside the code as pages, at the same relative paths, so that their links hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parent.parent / "src" / "sottovoce"


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
