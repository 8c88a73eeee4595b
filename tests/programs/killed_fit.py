"""A fit whose process is killed at the instant when it says success: `killed_fit.py JOB RECORD`.

RECORD gets a line for each file that is synced and each that is put in its place, and for the success, in order.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from sottovoce.app.cli import console, main

if __name__ == "__main__":
    job, record = sys.argv[1:]
    sys.argv = ["sottovoce", "fit", job]
    log = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fsync, replace, link = os.fsync, os.replace, os.link

    def note(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    def synced(handle: int) -> None:
        fsync(handle)
        note("synced", Path(f"/proc/self/fd/{handle}").resolve())

    def replaced(old: Any, new: Any) -> None:
        replace(old, new)
        note("placed", Path(old).resolve(), Path(new).resolve())

    def linked(old: Any, new: Any) -> None:
        link(old, new)
        note("placed", Path(old).resolve(), Path(new).resolve())

    def success(*_: object) -> None:
        note("success")
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync, os.replace, os.link = synced, replaced, linked  # type: ignore[assignment]
    console.show_summary = success  # type: ignore[assignment]
    main()
