"""Peers in virtual environments of their own, which are made when first asked for, and questions to them.

`SOTTOVOCE_PEERS` names the folder of the environments (default `benchmarks/.peers`). `SOTTOVOCE_PEERS_PIP` has options
for pip, for example `--find-links FOLDER` or `--extra-index-url ADDRESS` with the CPU build of torch; without it pip
takes what it finds first, and on Linux that is the larger build for graphics cards, which serves as well.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.block import is_sparse

HERE = Path(__file__).parent
THREADS = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
REQUIREMENTS = {
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn<1.8"),
    "opacus": ("torch==2.13.0", "opacus==1.6.0"),
    "interpret": ("interpret-core==0.7.8",),
    "jax_privacy": ("jax-privacy==2.0.0",),
}


class MissingPeerError(RuntimeError):
    """A peer that could not be installed here."""


def interpreter(peer: str) -> Path:
    """The peer's own Python; its environment is made if it is not there. Ours is this one."""
    if peer == "sottovoce":
        return Path(sys.executable)
    folder = Path(os.environ.get("SOTTOVOCE_PEERS", HERE.parent / ".peers")) / peer
    python, done = folder / "bin" / "python", folder / ".installed"
    if done.exists():
        return python
    print(f"making an environment for {peer} in {folder}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    options = shlex.split(os.environ.get("SOTTOVOCE_PEERS_PIP", ""))
    command = [str(python), "-m", "pip", "install", "--quiet", *options, *REQUIREMENTS[peer]]
    if subprocess.run(command, check=False).returncode:
        raise MissingPeerError(f"pip could not install {' '.join(REQUIREMENTS[peer])}; set SOTTOVOCE_PEERS_PIP.")
    done.touch()
    return python


def ask(peer: str, X: Any, y: Any, fits: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """Run fits in a process of the peer's: {"fits": [{coef, intercept, seconds}], "peak_mb", "loaded_mb"}.

    "loaded_mb" is the peak when libraries and data were loaded and no fit had begun.
    """
    python = interpreter(peer)
    with tempfile.TemporaryDirectory() as folder:
        request, data, answer = (Path(folder) / name for name in ("request.json", "data.npz", "answer.json"))
        request.write_text(json.dumps({"fits": fits, **facts}), encoding="utf-8")
        if is_sparse(X):
            X = X.tocsr()
            np.savez(data, X=X.data, indices=X.indices, indptr=X.indptr, shape=np.array(X.shape), y=y)
        else:
            np.savez(data, X=X, y=y)
        command = [str(python), str(HERE / f"run_{peer}.py"), str(request), str(data), str(answer)]
        subprocess.run(command, check=True, env=os.environ | THREADS)
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found
