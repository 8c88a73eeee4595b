"""Run the quickstart as printed, Python and commands, with the `sottovoce` of this Python alone, in an empty folder.

    python release/quickstart.py docs/quickstart.md

The table adult comes from `SOTTOVOCE_DATA`, or is drawn from its documentation, so that no network is needed.
"""

from __future__ import annotations

import csv
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sottovoce.lab import datasets


def draw_adult(folder: Path) -> None:
    """Files with the columns of adult, whose cells are made up."""
    folder.mkdir(parents=True)
    rng = random.Random(0)
    for part, rows in (("train", 32_561), ("test", 16_281)):
        table = {
            name: [rng.randint(low, high) for _ in range(rows)] for name, (low, high) in datasets.ADULT_NUMBERS.items()
        }
        for name, levels in datasets.ADULT_CATEGORIES.items():
            missing = [""] * (name in ("workclass", "occupation", "native-country"))
            table[name] = rng.choices([*levels.split(), *missing], k=rows)
        table["income"] = rng.choices(["<=50K", ">50K"], k=rows)
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([table, *zip(*table.values(), strict=True)])


def main(page: Path) -> None:
    blocks = re.findall(r"^```(python|console)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    folder = Path(tempfile.mkdtemp(prefix="quickstart-"))
    os.chdir(folder)
    if "SOTTOVOCE_DATA" not in os.environ:
        draw_adult(folder / "data" / "adult")
        os.environ["SOTTOVOCE_DATA"] = str(folder / "data")
    program = "\n".join(text for language, text in blocks if language == "python")
    scope: dict[str, object] = {"__name__": "quickstart"}
    exec(compile(program, str(page), "exec"), scope)
    # The page asks its reader to fill the draft in, as its Python does.
    filled: Any = scope["schema"]
    lines = "".join(text for language, text in blocks if language == "console").splitlines()
    for words in (shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ sottovoce")):
        print("$", *words, flush=True)
        subprocess.run([str(Path(sys.executable).parent / words[0]), *words[1:], *again(words)], check=True)
        if words[1] == "schema":
            filled.to_toml("schema.toml")
    print("the quickstart ran in", folder)


def again(words: list[str]) -> list[str]:
    """The page drafts its schema twice: once by itself, once among all commands."""
    return ["--overwrite"] if words[1] == "schema" and Path("schema.toml").exists() else []


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
