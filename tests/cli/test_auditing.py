"""`sottovoce audit`: what it prints, and that a broken claim is an exit code."""

from __future__ import annotations

import json

import pytest

from sottovoce.gate import gate


def test_a_game_is_shown_with_claim_bound_and_verdict(invoke):
    result = invoke("audit", "--only", "scd-primal", "--processes", 1)
    line, _published = (line for line in result.stdout.splitlines() if line.startswith("scd-primal"))
    assert "2.08" in line
    assert "holds" in line
    assert "2 of 2 claims that should hold do" in result.stdout


def test_a_broken_claim_ends_with_code_1(invoke, monkeypatch):
    real = gate.rounded_gaussian
    monkeypatch.setattr(gate, "rounded_gaussian", lambda scale, size, drawn: real(scale / 4, size, drawn))
    result = invoke("audit", "--only", "scd-primal", "--processes", 1, "--json", code=1)
    shown = json.loads(result.stdout)
    assert shown["broken"] == ["scd-primal"]
    assert shown["games"][0]["measured"] > shown["games"][0]["claimed"]


def test_the_plan_of_a_job_is_attacked_without_its_data(write_job, invoke, tmp_path):
    pytest.importorskip("matplotlib")
    path = write_job(
        solver={"name": '"gradient"', "rounds": "3"},
        data={"file": '"not-there.csv"', "records": "900", "features": "4"},
    )
    picture = tmp_path / "audit.svg"
    result = invoke("audit", path, "--processes", 1, "--json", "--plot", picture)
    (game,) = json.loads(result.stdout)["games"]
    assert game["name"] == "gradient, your plan"
    assert game["claimed"] == pytest.approx(2.0, rel=0.05)
    assert 0 < game["measured"] < 2.0
    assert picture.exists()


def test_an_unknown_game_is_bad_input(invoke):
    assert "names no game" in invoke("audit", "--only", "nothing", code=2).stderr
