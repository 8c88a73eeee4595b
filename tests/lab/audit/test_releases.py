"""A fit's own releases under attack: what is proved is below what is promised, and not far below; a fault is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce.app.cli import app
from sottovoce.errors import InputError
from sottovoce.gate import gate
from sottovoce.lab.audit.releases import attack_releases
from sottovoce.privacy.attack import Attack
from sottovoce.privacy.guarantee import PrivacyReport

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (600, 3))
Y = (X @ [2.0, -1.0, 0.5] + 0.5 * RNG.logistic(size=600) > 0).astype(int)
GAMES = 40_000


def estimator(**changes: Any) -> sv.PrivateLogisticRegression:
    fields: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-6, "entry_bound": 1.0, "classes": (0, 1)}
    return sv.PrivateLogisticRegression(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 0.85),
        ({"relation": "replace-one"}, 0.85),
        ({"solver": "newton"}, 0.85),
        ({"solver": "cd"}, 0.8),
        ({"standard_errors": True}, 0.85),
        ({"solver": sv.solvers.Whitened(prior=([1.0, 0.0, 0.0], 0.0))}, 0.85),
    ],
    ids=["whitened", "replace-one", "newton", "cd", "two plans", "a prior"],
)
def test_nearly_all_of_the_promise_is_attained(changes: dict[str, Any], share: float) -> None:
    """Seeded; a correct plan is above its promise with probability 1e-4 at most."""
    plans = estimator(**changes).fit(X, Y).plans_
    attack = attack_releases(plans, games=GAMES, seed=1)
    assert share * 3.0 < attack.epsilon < 3.0
    assert attack == attack_releases(plans, games=GAMES, seed=1)
    assert attack.games == 2 * GAMES


@pytest.mark.parametrize("less", [1.25, 2.0])
def test_less_noise_than_charged_is_found(monkeypatch: pytest.MonkeyPatch, less: float) -> None:
    """The negative control."""
    model, real = estimator().fit(X, Y), gate.rounded_gaussian
    monkeypatch.setattr(gate, "rounded_gaussian", lambda scale, size, drawn: real(scale / less, size, drawn))
    attack = sv.audit(model, games=GAMES, seed=1)
    assert attack.epsilon > 1.1 * 3.0
    assert "THE PROMISE IS BROKEN" in str(model.privacy_)


def test_by_rows_the_coordinator_attacks_one_party() -> None:
    model = estimator().fit(sv.Federation.by_rows([(X[:300], Y[:300]), (X[300:], Y[300:])]))
    assert 0.85 * 3.0 < sv.audit(model, games=GAMES, seed=1).epsilon < 3.0


def test_the_report_has_it_and_so_has_a_saved_model(tmp_path: Path) -> None:
    model = estimator().fit(X, Y)
    assert "Attacked" not in str(model.privacy_)
    attack = sv.audit(model, games=GAMES, seed=1)
    said = f"epsilon at least {attack.epsilon:.2f} at delta = 1e-06, as 80,000 games"
    assert said in str(model.privacy_)
    assert said in model.privacy_._repr_html_()
    model.save(tmp_path / "model.json")
    assert sv.load_model(tmp_path / "model.json").privacy_.attack == attack
    told = model.privacy_.to_dict()
    assert PrivacyReport.from_dict(told).attack == attack
    with pytest.raises(ValueError, match="valid integer"):
        PrivacyReport.from_dict(told | {"attack": {**told["attack"], "games": "many"}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"solver": "sgd"}, "solver='sgd': an attack at a plan's own noise"),
        ({"epsilon": float("inf")}, "no claim to audit"),
        ({"insecure_seed": 0}, "no claim to audit"),
    ],
)
def test_what_it_does_not_serve_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sv.audit(estimator(**changes).fit(X, Y))


def test_secure_sums_and_columns_are_for_whole_games() -> None:
    rows = sv.Federation.by_rows([(X[:300], Y[:300]), (X[300:], Y[300:])], sums="secure")
    columns = sv.Federation.by_columns([X[:, :2], X[:, 2:]], Y, labels="shared", products="none")
    for federation in (rows, columns):
        with pytest.raises(InputError, match="attacks any plan, at less noise"):
            sv.audit(estimator().fit(federation))
    with pytest.raises(InputError, match="games=10 must be"):
        sv.audit(estimator().fit(X, Y), games=10)


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = estimator().fit(X, Y), CliRunner()
    model.save(tmp_path / "model.json")
    shown = run.invoke(app, ["audit", "--plan", str(tmp_path / "model.json"), "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert not found["broken"]
    assert found["model"] == model.charged_as_
    card = tmp_path / "model.card.md"
    assert run.invoke(app, ["card", str(tmp_path / "model.json"), "--output", str(card)]).exit_code == 0
    assert f"Attacked: epsilon at least {found['epsilon']:.2f}" in card.read_text()
    told = json.loads((tmp_path / "model.audit.json").read_text())
    for lie in ({"model": "0" * 64}, {"epsilon": "none"}, {"more": 1}):
        (tmp_path / "model.audit.json").write_text(json.dumps(told | lie))
        refused = run.invoke(app, ["card", str(tmp_path / "model.json"), "--overwrite"])
        assert refused.exit_code == 2, lie
    real = gate.rounded_gaussian
    monkeypatch.setattr(gate, "rounded_gaussian", lambda scale, size, drawn: real(scale / 2, size, drawn))
    assert run.invoke(app, ["audit", "--plan", str(tmp_path / "model.json")]).exit_code == 1
    assert run.invoke(app, ["audit", "--plan", str(tmp_path / "model.json"), "--only", "cd"]).exit_code == 2


def test_the_sentence() -> None:
    attack = Attack(epsilon=0.78, delta=1e-6, mu=0.19, games=200_000)
    assert attack.sentence(1.0).endswith("at most 1 is promised.")
    assert attack.sentence(0.7).endswith("THE PROMISE IS BROKEN.")
    assert replace(attack, epsilon=1.0).sentence(1.0).endswith("is promised.")
