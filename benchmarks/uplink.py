"""What parties with columns send up as the number of people grows: `python benchmarks/uplink.py`.

10,000 features at four parties, 1,000 to 1,000,000 people, an l1 ball of radius 1, the squared loss, labels that all
parties know. `frank-wolfe` sends an index a round and each chosen feature once, as a CountSketch of 16 numbers a round;
a public cap (`--cap`, for each party) says how many features. Its rounds follow (n mu)^(2/3). Beside it:

* all that the cap reserves, sent: an upper bound that does not depend on the data;
* the published rule, K T (index + feature) with T = (n epsilon)^(2/3) and m = log((n epsilon)^(1/3)) / zeta^2 numbers a
  feature, run at the first size to check the count, computed elsewhere: a Gaussian sketch of a million people would
  have half a billion entries;
* the one-shot sketch, 16 numbers for each person and party, run up to `--largest` people and computed beyond.

Two kinds of data. "rare": every feature is +-1 for 100 people and 0 for all others, and two features of each party make
the labels. One feature then moves a score by at most 100 whatever n is, and at these budgets that is below the noise of
a choice: what is chosen, is chosen by noise, about once a run by design. "common": one feature of each party is +-1 for
everybody, a copy of one trait with a tenth of the signs turned, and the trait makes the labels; the others are rare.
Those four are chosen at every size (at 1,000 people a party may not get a turn). Means over runs with fixed seeds: of
"rare" few features are sent in a run, so its slope varies by about 0.04. Bytes are those of the frames of the answers.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.federation.federation import Federation
from sottovoce.lab.reproduce.frank_wolfe import PARTIES, answer_bytes, draw_people, published_bytes
from sottovoce.plan.plan import Plan

Array = NDArray[Any]

RECORDS = (1_000, 10_000, 100_000, 1_000_000)
RUNS = {1_000: 40, 10_000: 40, 100_000: 20}  # runs at a size; beyond, 6
LIMIT = 0.72  # the slope that is asked of frank-wolfe
LINES = {
    "measured": "frank-wolfe, sent",
    "reserved": "frank-wolfe, all that its cap allows",
    "paper": "published rule",
    "one_shot": "one-shot sketch",
}


def model(arguments: argparse.Namespace, seed: int, **options: Any) -> sv.PrivateLasso:
    declared = {"radius": 1.0, "entry_bound": 1.0, "label_bound": 1.0, "fit_intercept": False}
    return sv.PrivateLasso(
        epsilon=arguments.epsilon, delta=arguments.delta, insecure_seed=seed, **{**declared, **options}
    )


def reserved(plan: Plan) -> int:
    """The answers of frank-wolfe if every party sends as many features as it may."""
    features = PARTIES * plan.numbers.cap * answer_bytes("feature", plan.numbers.sketch_size)
    return plan.rounds * answer_bytes("atom", 1) + features


def checked(name: str, said: dict[str, int], computed: int) -> int:
    """The measured bytes, which must be those computed."""
    if sum(said.values()) != computed:
        raise RuntimeError(f"{name}: {sum(said.values())} bytes were sent and {computed} computed.")
    return computed


def measure(arguments: argparse.Namespace, kind: str, records: int) -> dict[str, Any]:
    """One row of the table."""
    parts, y = draw_people(kind, records)
    federation = Federation.by_columns(parts, y)
    runs = arguments.runs or RUNS.get(records, 6)
    sent: list[dict[str, int]] = []
    features, start = [], time.perf_counter()
    for seed in range(runs):
        fitted = model(arguments, seed, solver=sv.solvers.FrankWolfe(cap=arguments.cap, sketch="count")).fit(federation)
        sent.append(fitted.communication_.uplink)
        features.append(sent[-1].get("features", 0) // answer_bytes("feature", fitted.plan_.numbers.sketch_size))
    seconds = (time.perf_counter() - start) / runs
    plan = fitted.plan_
    row: dict[str, Any] = {
        "data": kind,
        "records": records,
        "rounds": plan.rounds,
        "sketch_size": plan.numbers.sketch_size,
        "runs": runs,
        "seconds": seconds,
        "sent_features": float(np.mean(features)),
        "indices": float(np.mean([said["indices"] for said in sent])),
        "features": float(np.mean([said.get("features", 0) for said in sent])),
        "reserved": reserved(plan),
    }
    row["measured"] = row["indices"] + row["features"]
    row["paper"] = published_bytes(records, arguments.epsilon)
    if records == RECORDS[0] and kind == "rare":
        paper = model(arguments, 0, solver="frank-wolfe", calibration="paper").fit(federation)
        checked("the published rule", paper.communication_.uplink, row["paper"])
    shot = model(arguments, 0, solver="one-shot")
    numbers = shot.plan(federation).numbers.sketch_size
    row["one_shot"] = PARTIES * answer_bytes("rows", records * numbers) + answer_bytes("labels", records)
    if records <= arguments.largest and kind == "rare":
        checked("one-shot", shot.fit(federation).communication_.uplink, row["one_shot"])
    return row


def slope(rows: list[dict[str, Any]], key: str) -> float:
    """Of log bytes against log records."""
    return float(np.polyfit(np.log([row["records"] for row in rows]), np.log([row[key] for row in rows]), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=RECORDS, help="numbers of people, from 100")
    parser.add_argument("--data", nargs="+", choices=("rare", "common"), default=("rare", "common"))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-7)
    parser.add_argument("--cap", type=int, default=2, help="features that each party may send")
    parser.add_argument("--runs", type=int, help="runs of frank-wolfe at every size")
    parser.add_argument("--largest", type=int, default=100_000, help="people up to which the one-shot sketch is run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="draw bytes against people to this PNG file (needs the extra `plots`)")
    arguments = parser.parse_args()
    if arguments.json:
        rows = [measure(arguments, kind, records) for kind in arguments.data for records in arguments.records]
        print(json.dumps(rows, indent=2))
    else:
        rows = table(arguments)
    if arguments.plot:
        draw(rows, arguments.plot)


def table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and print, row by row, then the slopes."""
    rows: list[dict[str, Any]] = []
    print(f"epsilon {arguments.epsilon:g}, delta {arguments.delta:g}, cap {arguments.cap} features a party; bytes\n")
    head = ("data", "people", "rounds", "m", "sent", "indices", "features", *LINES, "s/fit", "ms/round")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for kind in arguments.data:
        for records in arguments.records:
            row = measure(arguments, kind, records)
            rows.append(row)
            cells = [f"{row[key]:,.0f}" for key in ("indices", "features", *LINES)]
            sent, pace = f"{row['sent_features']:.2f}", f"{1000 * row['seconds'] / row['rounds']:.1f}"
            first = [kind, f"{records:,}", str(row["rounds"]), str(row["sketch_size"]), sent]
            print("| " + " | ".join([*first, *cells, f"{row['seconds']:.2f}", pace]) + " |", flush=True)
    for kind in arguments.data if len(arguments.records) > 1 else ():
        mine = [row for row in rows if row["data"] == kind]
        print(f"\nslopes of log bytes against log people, {kind}:")
        for key, label in LINES.items():
            found = slope(mine, key)
            asked = f" (at most {LIMIT}: {'yes' if found <= LIMIT else 'no'})" if "frank-wolfe" in label else ""
            print(f"  {label}: {found:.3f}{asked}")
    return rows


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """One panel for each kind of data, one line a method, its slope in the legend."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = plt.subplots(1, len(kinds), figsize=(4.4 * len(kinds), 3.6), squeeze=False, sharey=True)
    styles = dict(zip(LINES, ("o-", "o:", "s-", "^-"), strict=True))
    for axis, kind in zip(axes.flat, kinds, strict=True):
        mine = [row for row in rows if row["data"] == kind]
        for key, label in LINES.items():
            x, bytes_ = [row["records"] for row in mine], [row[key] for row in mine]
            width = 2.2 if key == "measured" else 1.2
            text = f"{label} ({slope(mine, key):.2f})" if len(mine) > 1 else label
            axis.loglog(x, bytes_, styles[key], ms=4, lw=width, label=text)
        axis.set_title(f"{kind} features (slopes in brackets)", fontsize=9)
        axis.set_xlabel("people")
        axis.set_ylim(top=3e10)
        axis.legend(fontsize=7, loc="upper left")
    axes.flat[0].set_ylabel("bytes from the parties")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
