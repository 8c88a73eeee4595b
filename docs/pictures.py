"""Draw the pictures of the gallery anew: `python docs/pictures.py`, or with the names of pages, `lasso epsilon`.

A page's blocks run as one program, in a folder of their own; the picture that it saves is put beside it. The noise is
new each time, so the pictures change a little.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

GALLERY = Path(__file__).parent / "gallery"


def main(names: list[str]) -> None:
    """Run the pages of these names, or all."""
    pages = [GALLERY / f"{name}.md" for name in names] or sorted(set(GALLERY.glob("*.md")) - {GALLERY / "index.md"})
    for page in pages:
        code = "\n".join(
            re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        )
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            exec(compile(code, str(page), "exec"), {"__name__": "__main__"})  # noqa: S102
            shutil.copy(f"{page.stem}.png", GALLERY)
            os.chdir(GALLERY)


if __name__ == "__main__":
    main(sys.argv[1:])
