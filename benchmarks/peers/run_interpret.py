"""Fits of DP-EBM, run by its own interpreter: `python run_interpret.py REQUEST.json DATA.npz ANSWER.json`.

The first `train` rows are fitted on, the others only scored. `ranges` of the request has the public range of each
column, null for one of levels, which comes as whole numbers. Labels are 0 and 1, or in the range `labels`.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor
from resident import peak_mb

warnings.simplefilter("ignore")


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    data = np.load(sys.argv[2])
    train, ranges = request["train"], request["ranges"]
    X, y = data["X"], data["y"][:train]
    facts = {
        "feature_types": ["nominal" if pair is None else "continuous" for pair in ranges],
        "privacy_bounds": {place: pair for place, pair in enumerate(ranges) if pair is not None},
        "n_jobs": 1,
    }
    before = peak_mb()
    fits = []
    for fit in request["fits"]:
        common = facts | {"epsilon": fit["epsilon"], "delta": fit["delta"], "random_state": fit["seed"]}
        if request["labels"]:
            low, high = request["labels"]
            model = DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **common)
        else:
            model, y = DPExplainableBoostingClassifier(**common), y.astype(int)
        start, used = time.perf_counter(), time.process_time()
        model.fit(X[:train], y)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        scores = model.predict(X[train:]) if request["labels"] else model.decision_function(X[train:])
        fits.append({"scores": np.ravel(scores).tolist(), "seconds": seconds, "cpu": used})
    answer = {"fits": fits, "peak_mb": peak_mb(), "loaded_mb": before}
    Path(sys.argv[3]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
