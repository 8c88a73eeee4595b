from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

LONG = ("test_three_organisations.py", "faults", "test_the_demo", "test_membership.py", "test_site.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: else one worker has it at the end, while the others have nothing to do."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the collector of garbage need not look at them again and again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of public data sets; tests that need it are skipped where it is not there."""
    folder = Path(os.environ.get("SOTTOVOCE_DATA") or Path(__file__).parents[1].parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no public data sets at {folder}; set SOTTOVOCE_DATA to the folder that has them")
    return folder
