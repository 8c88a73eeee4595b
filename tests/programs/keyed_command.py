"""The command line with noise that is a function of what is released: `keyed_command.py SEED ARGUMENTS`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from interrupting import keyed
from sottovoce.app.cli import main

if __name__ == "__main__":
    keyed(int(sys.argv[1]), secure=sys.argv[1].startswith("0"))
    sys.argv = ["sottovoce", *sys.argv[2:]]
    main()
