"""The largest resident size of this process. The standard library alone: interpreters of the peers import it too."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_mb() -> float:
    """In MB. `ru_maxrss` would count the parent too, as it was before this program took its place; so the kernel's own
    count of this program is used, where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
