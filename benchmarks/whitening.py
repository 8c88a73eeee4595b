"""What whitening does to the noise, as a picture: `python benchmarks/whitening.py --plot docs/images/whitening.png`.

Along each direction of the rows, the error that one release of the gradient leaves in the scores: with noise alike in
every direction of the rows, and with noise alike in every direction of the whitened rows. The same budget for both, and
moments as they are (in a fit they are released too). The dotted line is the deviation that scores have along the
direction before anything is known: what lies above it cannot be learned.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from peers.baselines import extended
from peers.data import CASES, dense

from sottovoce import losses
from sottovoce.algorithms.whitened import rule
from sottovoce.privacy.calibration import mu_for

Array = NDArray[np.float64]
DELTA = 1e-5


def errors(name: str, epsilon: float) -> dict[str, Array]:
    """Deviations of the scores along the directions, from the longest to the shortest."""
    rows = dense(extended(CASES[name]().X))
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    units = rule.Units.of(losses.get("logistic"), 0.0)
    moments = rule.Moments(np.maximum(values, 1e-9)[::-1], vectors[:, ::-1], 0.0)
    noise = 1 / (mu_for(epsilon, DELTA) * len(rows))
    q = rule.whitening(moments, units, noise)
    length = float(np.linalg.norm(rows @ moments.vectors * np.sqrt(q), axis=1).mean())
    roots, k = np.sqrt(moments.values), units.curvature
    return {
        "noise alike in every direction of the rows": noise * units.slope / (k * roots),
        "noise alike in every direction of whitened rows": noise
        * units.slope
        * rule.CUT
        * length
        / (k * roots * np.sqrt(q)),
        "scores before anything is known": roots * math.sqrt(rule.prior(moments, units)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["adult", "phishing", "electricity"], choices=list(CASES))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    found = {name: errors(name, arguments.epsilon) for name in arguments.only}
    for name, lines in found.items():
        plain, white, known = lines.values()
        total = [float(np.sqrt(np.sum(np.minimum(line, known) ** 2))) for line in (plain, white)]
        print(
            f"{name:12s} error of the scores, no direction worse than unknown: {total[0]:.3f} plain,"
            f" {total[1]:.3f} whitened"
        )
    if arguments.plot is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(4.2 * len(found), 3.4), squeeze=False, layout="constrained")
    for axis, (name, lines) in zip(axes[0], found.items(), strict=True):
        for (label, line), style in zip(lines.items(), ("C3-", "C0-", "k:"), strict=True):
            axis.semilogy(1 + np.arange(len(line)), line, style, label=label)
        axis.set_title(f"{name}, epsilon = {arguments.epsilon:g}")
        axis.set_xlabel("direction, from the longest to the shortest")
    axes[0][0].set_ylabel("deviation of the scores")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(arguments.plot, dpi=110)


if __name__ == "__main__":
    main()
