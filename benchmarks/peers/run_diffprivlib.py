"""Fits of diffprivlib, run by its own interpreter: `python run_diffprivlib.py REQUEST.json DATA.npz ANSWER.json`.

The rows have norm 1 at most and the labels are -1 and 1, or in [-1, 1]; `entry_bound` of the request bounds an entry.
Its models are pure epsilon: delta is not used.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from diffprivlib.models import LinearRegression, LogisticRegression
from resident import peak_mb

warnings.simplefilter("ignore")  # of scikit-learn, about its own future, and of L-BFGS that stops at its 100 steps


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    data = np.load(sys.argv[2])
    X, y = data["X"], data["y"]
    if "shape" in data:
        X = sp.csr_matrix((X, data["indices"], data["indptr"]), shape=tuple(data["shape"]))
    before = peak_mb()
    fits = []
    for fit in request["fits"]:
        common = {"epsilon": fit["epsilon"], "random_state": fit["seed"]}
        if request["regression"]:
            bound = request["entry_bound"]
            model = LinearRegression(bounds_X=(-bound, bound), bounds_y=(-1.0, 1.0), **common)
        else:
            model = LogisticRegression(data_norm=1.0, C=fit.get("C", 1.0), **common)
        rows = fit.get("rows", len(y))
        start, used = time.perf_counter(), time.process_time()
        model.fit(X[:rows], y[:rows])
        seconds, used = time.perf_counter() - start, time.process_time() - used
        fits.append(
            {
                "coef": np.ravel(model.coef_).tolist(),
                "intercept": float(np.ravel(model.intercept_)[0]),
                "seconds": seconds,
                "cpu": used,
            }
        )
    answer = {"fits": fits, "peak_mb": peak_mb(), "loaded_mb": before}
    Path(sys.argv[3]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
