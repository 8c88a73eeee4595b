from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of public data sets; tests that need it are skipped where it is not there."""
    folder = Path(os.environ.get("SOTTOVOCE_DATA") or Path(__file__).parents[1].parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no public data sets at {folder}; set SOTTOVOCE_DATA to the folder that has them")
    return folder
