"""Fits of Opacus, run by its own interpreter: `python run_opacus.py REQUEST.json DATA.npz ANSWER.json`.

A linear layer with bias, DP-SGD with Poisson sampling, the PRV accountant of the library, one thread. The loader hands
over whole batches; `"loader": "plain"` of a fit takes the loader of the library's tutorials, one record at a time.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from resident import peak_mb
from torch.utils.data import DataLoader, Dataset, TensorDataset

warnings.simplefilter("ignore")  # of the library: no secure generator, and hooks of its own
torch.set_num_threads(1)


class Batches(Dataset):
    """A TensorDataset that is asked for a batch at once."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor) -> None:
        self.X, self.y = X, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.X[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(self.X[indices], self.y[indices])] if indices else []


def whole(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    return list(batch[0])


def fitted(X: torch.Tensor, y: torch.Tensor, fit: dict, regression: bool, noises: dict) -> torch.nn.Linear:
    """One fit; the noise of a setting is computed once, unless the fit is timed with its calibration."""
    torch.manual_seed(fit["seed"])
    model = torch.nn.Linear(X.shape[1], 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    plain = fit.get("loader") == "plain"
    optimizer = torch.optim.SGD(model.parameters(), lr=fit["rate"])
    loader = (
        DataLoader(TensorDataset(X, y), batch_size=fit["batch"])
        if plain
        else DataLoader(Batches(X, y), batch_size=fit["batch"], collate_fn=whole)
    )
    epsilon, delta, epochs = fit["epsilon"], fit["delta"], fit["epochs"]
    key = (epsilon, delta, epochs, len(loader))
    if key not in noises or plain:
        noises[key] = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=1 / len(loader), epochs=epochs, accountant="prv"
        )
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noises[key], max_grad_norm=fit["clip"]
    )
    for _ in range(epochs):
        for rows, labels in loader:
            optimizer.zero_grad()
            scores = private(rows)[:, 0]
            if regression:
                loss = torch.nn.functional.mse_loss(scores, labels) / 2
            else:
                loss = torch.nn.functional.softplus(-labels * scores).mean()
            loss.backward()
            optimizer.step()
    return model


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    data = np.load(sys.argv[2])
    X, y = torch.tensor(data["X"], dtype=torch.float32), torch.tensor(data["y"], dtype=torch.float32)
    before = peak_mb()
    fits, noises = [], {}
    for fit in request["fits"]:
        rows = fit.get("rows", len(y))
        start, used = time.perf_counter(), time.process_time()
        model = fitted(X[:rows], y[:rows], fit, request["regression"], noises)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        weight, bias = model.weight.detach().double(), model.bias.detach().double()
        fits.append({"coef": weight.ravel().tolist(), "intercept": float(bias[0]), "seconds": seconds, "cpu": used})
    answer = {"fits": fits, "peak_mb": peak_mb(), "loaded_mb": before}
    Path(sys.argv[3]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
