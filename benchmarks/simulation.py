"""Simulated against true loss of accuracy, adult by its schema alone: `python benchmarks/simulation.py`.

With `SOTTOVOCE_DATA` set. Simulated: `sv.simulate` of the schema and the number of records, which reads no record, and
of half of the test part as a public look-alike. True: fits of the training part, scored on the test part, with the same
stand-in for no privacy. Means and standard deviations over the runs.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import numpy as np
from tables import ADULT

import sottovoce as sv
from sottovoce.data.cells import table_columns
from sottovoce.lab.simulation import EPSILONS, PLAIN, measure_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # a seed voids the guarantee, and says so
    folder = Path(os.environ["SOTTOVOCE_DATA"]) / "adult"
    train, test = (table_columns(folder / f"{part}.csv.xz") for part in ("train", "test"))
    half = {name: cells[::2] for name, cells in test.items()}
    records, answers = len(train["income"]), ADULT.labels(test)
    estimator = sv.PrivateLogisticRegression(schema=ADULT)
    for title, like in (("made-up records of the schema", None), ("a look-alike, half of the test part", half)):
        found = sv.simulate(estimator, records, epsilon=arguments.epsilon, like=like, runs=arguments.runs)
        print(f"simulated on {title}\n{found}\n")

    def fitted(epsilon: float, seed: int) -> dict[str, float]:
        model = sv.PrivateLogisticRegression(epsilon, schema=ADULT, insecure_seed=seed)
        return measure_model(model.fit(train), test, answers)

    plain = fitted(PLAIN, 0)
    print(f"true: {records:,} records, without privacy {plain}")
    for epsilon in arguments.epsilon:
        runs = [fitted(epsilon, seed) for seed in range(arguments.runs)]
        for name, sign in (("accuracy", -1), ("log_loss", 1)):
            worse = sign * (np.array([run[name] for run in runs]) - plain[name])
            print(f"epsilon {epsilon:g}: {name} worse by {worse.mean():.4f} ± {worse.std():.2g}")


if __name__ == "__main__":
    main()
