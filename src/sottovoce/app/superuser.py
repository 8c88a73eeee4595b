"""A warning for whoever runs an end of a federation as root: a defect in it would then have the whole machine."""

from __future__ import annotations

import logging
import os
from typing import Final

AS_ROOT: Final = (
    "this runs as root: a defect would have the whole machine, and its files are root's. Run it as a user of its own "
    "(deploy/ has a service that does)."
)
_LOG: Final = logging.getLogger(__name__)
_user = getattr(os, "geteuid", lambda: -1)  # not every system has such users


def is_root() -> bool:
    """Whether this process may do everything; False where there is no such user."""
    return bool(_user() == 0)


def warn_as_root() -> None:
    """One line, by the log."""
    if is_root():
        _LOG.warning("%s", AS_ROOT)
