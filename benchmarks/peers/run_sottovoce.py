"""Our fits in a process of their own, as peers have it: `python run_sottovoce.py REQUEST.json DATA.npz ANSWER.json`."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from resident import peak_mb

import sottovoce as sv


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    data = np.load(sys.argv[2])
    X, y = data["X"], data["y"]
    if "shape" in data:
        X = sp.csr_matrix((X, data["indices"], data["indptr"]), shape=tuple(data["shape"]))
    models = (sv.PrivateRidge, sv.PrivateLogisticRegression)  # imported with all they need
    before = peak_mb()
    fits = []
    for fit in request["fits"]:
        options = {
            "epsilon": fit["epsilon"],
            "delta": fit["delta"],
            "row_norm": 1.0,
            "solver": sv.solvers.Newton(rounds=fit["rounds"]) if "rounds" in fit else fit.get("solver", "auto"),
        }
        own = {"label_bound": 1.0} if request["regression"] else {"classes": (-1, 1)}
        model = models[0 if request["regression"] else 1](**options, **own)
        parties, split = fit.get("parties", 1), fit.get("split", "central")
        start, used = time.perf_counter(), time.process_time()  # as for the peers: from arrays to a model
        if split == "rows":
            model.fit(sv.Federation.by_rows([(X[k::parties], y[k::parties]) for k in range(parties)]))
        elif split == "columns":
            edges = np.linspace(0, X.shape[1], parties + 1).astype(int)
            parts = [X[:, low:high] for low, high in itertools.pairwise(edges)]
            model.fit(sv.Federation.by_columns(parts, y))
        else:
            model.fit(X, y)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        fits.append(
            {
                "coef": np.ravel(model.coef_).tolist(),
                "intercept": float(np.ravel(model.intercept_)[0]),
                "seconds": seconds,
                "cpu": used,
                "solver": model.plan_.algorithm,
                "rounds": model.plan_.rounds,
                "bytes": model.communication_.uplink_bytes + model.communication_.downlink_bytes,
            }
        )
    answer = {"fits": fits, "peak_mb": peak_mb(), "loaded_mb": before}
    Path(sys.argv[3]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
