"""Fits of JAX Privacy, run by its own interpreter: `python run_jax_privacy.py REQUEST.json DATA.npz ANSWER.json`.

The library has no linear model; this is the one of its example `dp_logistic_regression.py`, or the same for the squared
loss: 500 rounds of DP-BandMF with four bands, batches of 1,000 in the mean, clip 1. Its plan protects a record that is
blanked.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy.batch_selection import pad_to_multiple_of
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from resident import peak_mb

BANDS, BATCH, ROUNDS = 4, 1000, 500


def fitted(X: np.ndarray, y: np.ndarray, fit: dict, regression: bool) -> tuple[np.ndarray, float]:
    """One fit, its calibration included."""

    def loss(params: tuple, rows: jax.Array, labels: jax.Array) -> jax.Array:
        scores = rows @ params[0] + params[1]
        return jnp.mean((scores - labels) ** 2 / 2 if regression else jax.nn.softplus(-labels * scores))

    plan = BandMFExecutionPlanConfig.default(
        num_bands=BANDS,
        iterations=ROUNDS,
        epsilon=fit["epsilon"],
        delta=fit["delta"],
        sampling_prob=min(1.0, BATCH / len(y) * BANDS),
        l2_clip_norm=fit["clip"],
        normalize_by=BATCH,
        noise_seed=fit["seed"],
    ).plan
    gradient = plan.clipped_grad(loss, batch_argnums=(1, 2))
    optimizer, noise = optax.sgd(fit["rate"]), plan.noise_addition_transform

    @jax.jit
    def step(params: tuple, rows: jax.Array, labels: jax.Array, padded: jax.Array, states: tuple) -> tuple:
        noisy, first = noise.update(gradient(params, rows, labels, is_padding_example=padded), states[0])
        change, second = optimizer.update(noisy, states[1])
        return optax.apply_updates(params, change), (first, second)

    params = (jnp.zeros(X.shape[1]), jnp.array(0.0))
    states = (noise.init(params), optimizer.init(params))
    for chosen in plan.batch_selection_strategy.batch_iterator(len(y), rng=fit["seed"]):
        places = pad_to_multiple_of(chosen, 128)
        params, states = step(params, X[places], y[places], places == -1, states)
    return np.asarray(params[0], dtype=float), float(params[1])


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    data = np.load(sys.argv[2])
    X, y = data["X"].astype(np.float32), data["y"].astype(np.float32)
    before = peak_mb()
    fits = []
    for fit in request["fits"]:
        rows = fit.get("rows", len(y))
        start, used = time.perf_counter(), time.process_time()
        coef, intercept = fitted(X[:rows], y[:rows], fit, request["regression"])
        seconds, used = time.perf_counter() - start, time.process_time() - used
        fits.append({"coef": coef.tolist(), "intercept": intercept, "seconds": seconds, "cpu": used})
    answer = {"fits": fits, "peak_mb": peak_mb(), "loaded_mb": before}
    Path(sys.argv[3]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
