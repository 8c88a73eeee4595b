"""`sottovoce coefficients`, and jobs with `standard_errors = true`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.privacy.ledger import Ledger


def test_a_job_buys_standard_errors_and_the_table_is_shown(folder: Path, write_job: Any, invoke: Any) -> None:
    """The plan tells what the fit then does: releases, the total epsilon, the ledger's charge."""
    rng = np.random.default_rng(2)
    rows = rng.uniform(-1, 1, (600, 3))
    labels = np.where(rows @ [1.0, -2.0, 0.5] + rng.logistic(size=600) > 0, "yes", "no")
    lines = [",".join([*map(str, row), label]) for row, label in zip(rows.tolist(), labels, strict=True)]
    (folder / "soft.csv").write_text("\n".join(["a,b,c,out", *lines]) + "\n")
    account = Ledger.create(folder / "all.ledger").open("all", epsilon=30.0, delta=1e-5)
    job = write_job(
        model={"estimator": '"logistic"', "standard_errors": "true"},
        privacy={"epsilon": "20.0"},
        data={"file": '"soft.csv"', "label": '"out"', "ledger": '"all.ledger"'},
    )
    planned = json.loads(invoke("plan", job, "--json").stdout)
    assert "squares of the slopes of the loss at the fitted model" in invoke("plan", job).stdout
    invoke("fit", job, "--quiet")
    report = json.loads((folder / "job.privacy.json").read_text())
    assert report["epsilon"] == planned["privacy"]["epsilon"] <= 20.0
    assert report["releases"] == planned["releases"]
    assert planned["cost"]["rounds"] == report["communication"]["rounds"]
    assert abs(account.balance().left - planned["ledgers"][0]["after"]["left"]) < 1e-9
    assert account.balance().plans == 2
    assert "of a step without damping" in (folder / "job.privacy.html").read_text()
    lines = invoke("coefficients", folder / "job.json").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["estimate", "a", "b", "c", "intercept"]
    found = json.loads(invoke("coefficients", folder / "job.json", "--json").stdout)
    assert found["b"]["low"] < found["b"]["estimate"] < found["b"]["high"] < 0
    assert found["b"]["odds_ratio"] < 1


def test_an_account_without_room_for_both_is_told_before(folder: Path, write_job: Any, invoke: Any) -> None:
    Ledger.create(folder / "all.ledger").open("all", epsilon=0.99, delta=1e-5)
    job = write_job(
        model={"estimator": '"logistic"', "standard_errors": "true"},
        data={"file": '"all.csv"', "label": '"out"', "ledger": '"all.ledger"'},
    )
    assert "would fit" in invoke("fit", job, code=3).stderr
    assert Ledger(folder / "all.ledger").account("all").balance().spent == 0


def test_a_model_without_them_says_so(folder: Path, write_job: Any, invoke: Any) -> None:
    invoke("fit", write_job(), "--quiet")
    said = invoke("coefficients", folder / "job.json", code=2).stderr
    assert "standard_errors=True" in said
    assert (
        "standard_errors"
        in invoke("fit", write_job(model={"estimator": '"svm"', "standard_errors": "true"}), code=2).stderr
    )
