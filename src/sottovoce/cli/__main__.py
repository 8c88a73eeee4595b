"""`python -m sottovoce.cli`: the command line of this very interpreter."""

from __future__ import annotations

from sottovoce.cli import main

main()
