"""Imported by the process from which roles are forked: all that the commands import, and kernels that are compiled."""

from __future__ import annotations

import role  # noqa: F401

from sottovoce import algorithms
from sottovoce.data import readers  # noqa: F401

algorithms.every_form()
