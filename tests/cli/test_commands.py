"""The other commands, help, exit codes and start-up."""

from __future__ import annotations

import html.parser
import itertools
import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sottovoce import __version__
from sottovoce.app import cli, demo
from sottovoce.app.cli.console import seconds_text
from sottovoce.app.jobs import load_job
from sottovoce.errors import BudgetError, InputError, LeakError, LedgerError, RefusedError, WireError
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Ledger


def test_version_and_help(invoke):
    assert invoke("--version").stdout == f"sottovoce {__version__}\n"
    text = invoke("--help").stdout
    for word in ("plan", "fit", "predict", "ledger", "certificates", "party", "demo", "Exit codes"):
        assert word in text
    for command in ("plan", "fit", "predict", "certificates", "party", "demo"):
        assert f"sottovoce {command}" in invoke(command, "--help").stdout
    for command in ("open", "show", "history", "verify"):
        assert f"sottovoce ledger {command}" in invoke("ledger", command, "--help").stdout


def test_wrong_usage_is_bad_input(invoke):
    invoke("fit", code=2)
    invoke("nonsense", code=2)
    invoke("ledger", "open", "x.db", code=2)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(InputError, 2), (BudgetError, 3), (RefusedError, 3), (WireError, 4), (LedgerError, 5), (LeakError, 1)],
)
def test_exit_codes(kind, code, monkeypatch, invoke):
    def fail(*_):
        raise kind("x")

    monkeypatch.setattr("sottovoce.app.jobs.load_job", fail)
    assert invoke("plan", "job.toml", code=code).stderr == "error: x\n"


def test_an_unexpected_error_is_one_line(monkeypatch, capsys):
    def fail() -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: unexpected RuntimeError: the disk is on fire\n"


def test_start_up_loads_nothing_heavy():
    heavy = "numpy", "sklearn", "scipy", "grpc", "pydantic", "dp_accounting", "cryptography"
    script = f"import sys, sottovoce.app.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "less than a second"), (12.3, "about 12 s"), (300, "about 5 min"), (9000, "about 2.5 h")],
)
def test_times_are_readable(seconds, text):
    assert seconds_text(seconds) == text


class TestLedger:
    def test_open_show_history_verify(self, invoke, tmp_path):
        path = tmp_path / "budget.db"
        opened = invoke("ledger", "create", path, "--dataset", "people", "--epsilon", 2, "--delta", 1e-6)
        assert "'people'" in opened.stdout
        Ledger(path).account().reserve("a" * 64, [Gaussian(mu=0.2)], summary="a test plan")
        shown = invoke("ledger", "show", path).stdout
        assert "people" in shown
        assert "%" in shown
        listed = invoke("ledger", "history", path).stdout
        assert "a test plan" in listed
        assert "opened" in listed
        assert "is sound: 2 entries" in invoke("ledger", "verify", path).stdout

    def test_opening_is_not_creating(self, invoke, tmp_path):
        path = tmp_path / "budget.db"
        terms = ["--dataset", "people", "--epsilon", 2]
        assert "sottovoce ledger create budget.db" in invoke("ledger", "open", path, *terms, code=5).stderr
        assert not path.exists()
        invoke("ledger", "create", path, *terms)
        assert "never replaces" in invoke("ledger", "create", path, *terms, code=5).stderr
        path.write_bytes(b"")
        assert "emptied" in invoke("ledger", "show", path, code=5).stderr
        assert "emptied" in invoke("ledger", "open", path, *terms, code=5).stderr

    @pytest.fixture
    def year(self, invoke, tmp_path):
        """A total with parts for two analysts; one of them may spend a little a month."""
        path = tmp_path / "budget.db"
        invoke("ledger", "create", path, "--dataset", "people", "--epsilon", 2, "--composition", "gaussian")
        for name, allowance in (("anna", []), ("ben", ["--allowance", "0.25/month"])):
            invoke("ledger", "open", path, "--dataset", name, "--epsilon", 1, "--under", "people", *allowance)
        about = {"analyst": "anna", "purpose": "readmissions", "note": "<b>first</b>"}
        account = Ledger(path).account("anna")
        account.reserve("a" * 64, [Gaussian(mu=0.1)], summary="newton, logistic, 9 rounds", about=about)
        account.release("a" * 64, 0, "gradient", b"x")
        Ledger(path).account("ben").reserve("b" * 64, [Gaussian(mu=0.05)], summary="score", about={"analyst": "ben"})
        return path

    def test_history_says_who_and_what_for_in_80_columns(self, invoke, year, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        listed = invoke("ledger", "history", year).stdout
        now = datetime.now(UTC)
        assert listed.count(f"{now:%Y-%m-%d}") == 7  # whole dates, whatever else is wrapped
        assert max(map(len, listed.splitlines())) <= 80
        assert "readmissions" in listed
        monkeypatch.setenv("COLUMNS", "200")
        assert "under people" in invoke("ledger", "show", year).stdout
        only = invoke("ledger", "history", year, "--analyst", "ben").stdout
        assert "score" in only
        assert "readmissions" not in only
        tomorrow = (now + timedelta(days=1)).date()
        told = json.loads(invoke("ledger", "history", year, "--since", tomorrow, "--json").stdout)["entries"]
        assert told == []
        whole = json.loads(invoke("ledger", "history", year, "--since", now.date(), "--json").stdout)["entries"]
        assert [line["kind"] for line in whole].count("under") == 2
        assert not any("receipt_key" in line["details"] for line in whole)

    def test_a_receipt_is_checked(self, invoke, year):
        receipt = Ledger(year).account("anna").receipt()
        assert "has the entry of the receipt" in invoke("ledger", "verify", year, "--receipt", receipt).stdout
        other = f"{receipt.number}:{'0' * 64}"
        assert "set back" in invoke("ledger", "verify", year, "--receipt", other, code=5).stderr
        assert "receipt='7'" in invoke("ledger", "verify", year, "--receipt", "7", code=2).stderr

    def test_the_report_is_a_page_that_needs_nothing_else(self, invoke, year):
        invoke("ledger", "report", year)
        page = year.with_suffix(".html").read_text()
        for text in ("people", "under people", "readmissions", "0.25 a month", "newton, logistic", "stroke-dasharray"):
            assert text in page
        assert "<b>first" not in page
        assert "&lt;b&gt;first" in page
        assert not any(link in page for link in ("http", "<script", "src="))
        assert Ledger(year).account("ben").receipt().hash in page
        html.parser.HTMLParser().feed(page)

    @pytest.mark.parametrize("allowance", ["0.25", "x/month", "0.25/moon", "9/month"])
    def test_bad_allowances(self, invoke, tmp_path, allowance):
        options = ["--dataset", "people", "--epsilon", 1, "--allowance", allowance]
        assert "allowance=" in invoke("ledger", "create", tmp_path / "budget.db", *options, code=2).stderr
        assert list(tmp_path.iterdir()) == []

    def test_json(self, invoke, tmp_path):
        path = tmp_path / "budget.db"
        options = ["--epsilon", 2, "--relation", "replace-one", "--composition", "gaussian", "--json"]
        opened = json.loads(invoke("ledger", "create", path, "--dataset", "people", *options).stdout)
        assert (opened["epsilon"], opened["relation"], opened["composition"]) == (2, "replace-one", "gaussian")
        shown = json.loads(invoke("ledger", "show", path, "--json").stdout)["accounts"]["people"]
        assert (shown["total"], shown["spent"], shown["left"], shown["plans"]) == (2, 0, 2, 0)
        assert json.loads(invoke("ledger", "history", path, "--json").stdout)["entries"][0]["kind"] == "opening"
        assert json.loads(invoke("ledger", "verify", path, "--json").stdout)["sound"] is True

    def test_bad_terms(self, invoke, tmp_path):
        path = tmp_path / "budget.db"
        result = invoke("ledger", "create", path, "--dataset", "people", "--epsilon", 0, code=2)
        assert "epsilon=0.0" in result.stderr
        assert not path.exists()
        invoke("ledger", "create", path, "--dataset", "people", "--epsilon", 1)
        result = invoke("ledger", "open", path, "--dataset", "people", "--epsilon", 9, code=5)
        assert "never change" in result.stderr

    @pytest.mark.parametrize("command", ["show", "history", "verify"])
    def test_a_ledger_that_is_none(self, invoke, tmp_path, command):
        path = tmp_path / "budget.db"
        assert "no such file" in invoke("ledger", command, path, code=5).stderr
        assert not path.exists()
        path.write_bytes(b"nonsense" * 100)
        assert "not a SQLite file" in invoke("ledger", command, path, code=5).stderr

    def test_a_changed_entry_is_found(self, invoke, tmp_path):
        path = tmp_path / "budget.db"
        invoke("ledger", "create", path, "--dataset", "people", "--epsilon", 1)
        path.write_bytes(path.read_bytes().replace(b'"epsilon": 1.0', b'"epsilon": 9.0'))
        assert "cannot be trusted" in invoke("ledger", "verify", path, code=5).stderr


class TestPredict:
    @pytest.fixture
    def model(self, write_job, invoke, folder):
        invoke("fit", write_job(), "--quiet")
        return folder / "job.json"

    def test_columns_are_matched_by_name(self, invoke, folder, model):
        first = invoke("predict", model, folder / "all.csv")
        assert "ignored: out" in first.stderr
        lines = [line.split(",") for line in (folder / "all.csv").read_text().splitlines()]
        (folder / "mixed.csv").write_text("\n".join(f"{c},id,{b},{a}" for a, b, c, _ in lines) + "\n")
        assert invoke("predict", model, folder / "mixed.csv").stdout == first.stdout
        assert first.stdout.splitlines()[0] == "prediction"
        truth = [line[-1] for line in lines[1:]]
        hits = [line == label for line, label in zip(first.stdout.splitlines()[1:], truth, strict=True)]
        assert sum(hits) > 0.8 * len(hits)

    def test_probabilities(self, invoke, folder, model):
        header, *lines = invoke("predict", model, folder / "all.csv", "--proba").stdout.splitlines()
        assert header == "prediction,probability of no,probability of yes"
        for line in lines:
            prediction, no, yes = line.split(",")
            assert float(no) + float(yes) == pytest.approx(1.0)
            assert prediction == ("yes" if float(yes) > 0.5 else "no")

    def test_output_and_json(self, invoke, folder, model):
        plain = invoke("predict", model, folder / "all.csv").stdout
        written = invoke("predict", model, folder / "all.csv", "--output", folder / "out.csv")
        assert written.stdout == ""
        assert (folder / "out.csv").read_text() == plain
        answer = json.loads(invoke("predict", model, folder / "all.csv", "--json").stdout)
        assert answer["prediction"] == plain.splitlines()[1:]

    def test_bad_input(self, invoke, folder, model):
        (folder / "short.csv").write_text("a,b\n1,2\n")
        assert "lacks 1 of the model's columns: c" in invoke("predict", model, folder / "short.csv", code=2).stderr
        (folder / "gap.csv").write_text("a,b,c\n1,2,3\n1,,3\n")
        assert "the first is record 2" in invoke("predict", model, folder / "gap.csv", code=2).stderr
        (folder / "text.csv").write_text("a,b,c\n1,red,3\n")
        assert "missing, infinite or no numbers" in invoke("predict", model, folder / "text.csv", code=2).stderr
        assert "no such file" in invoke("predict", model, folder / "none.csv", code=2).stderr
        result = invoke("predict", model, folder / "all.csv", "-o", folder / "no" / "out.csv", code=2)
        assert "--output" in result.stderr

    def test_no_model(self, invoke, folder):
        assert "cannot be read" in invoke("predict", folder / "none.json", folder / "all.csv", code=2).stderr
        assert "is not a model file" in invoke("predict", folder / "all.csv", folder / "all.csv", code=2).stderr

    def test_a_svm_has_no_probabilities(self, write_job, invoke, folder):
        invoke("fit", write_job(model={"estimator": '"svm"'}), "--quiet")
        result = invoke("predict", folder / "job.json", folder / "all.csv", "--proba", code=2)
        assert "--proba" in result.stderr


class TestCertificates:
    def test_authority_coordinator_and_parties(self, invoke, tmp_path):
        folder = tmp_path / "certs"
        result = invoke("certificates", folder, "north", "south")
        assert "coordinator, north, south" in result.stdout
        names = {path.name for path in folder.iterdir()}
        assert names == {f"{n}.{e}" for n in ("authority", "coordinator", "north", "south") for e in ("pem", "key")}
        authority, server = (folder / "authority.pem").read_bytes(), (folder / "coordinator.pem").read_bytes()
        issued = json.loads(invoke("certificates", folder, "east", "--json").stdout)["issued"]
        assert issued == ["east"]
        assert (folder / "authority.pem").read_bytes() == authority
        assert (folder / "coordinator.pem").read_bytes() == server
        issued = json.loads(invoke("certificates", folder, "west", "--host", "h.example.org", "--json").stdout)
        assert issued["issued"] == ["coordinator", "west"]

    def test_bad_names_make_nothing(self, invoke, tmp_path):
        assert "'a/b'" in invoke("certificates", tmp_path / "certs", "north", "a/b", code=2).stderr
        assert not (tmp_path / "certs").exists()


class TestParty:
    def test_options_are_checked(self, invoke, folder):
        assert "--job FILE" in invoke("party", code=2).stderr
        assert "not both" in invoke("party", "--job", folder / "p.toml", "--name", "north", code=2).stderr
        options = ["--name", "north", "--file", folder / "north.csv", "--label", "out", "--coordinator", "localhost:1"]
        result = invoke("party", *options, "--certificates", folder, code=2)
        assert "a restart would forget what was released" in result.stderr
        assert "lacks federation.certificates" in invoke("party", *options, code=2).stderr

    def test_the_ledger_must_exist(self, invoke, folder):
        invoke("certificates", folder / "certs", "north")
        options = ["--name", "north", "--file", folder / "north.csv", "--label", "out", "--coordinator", "localhost:1"]
        ledger = ["--certificates", folder / "certs", "--ledger", folder / "north.db"]
        assert "no such file" in invoke("party", *options, *ledger, code=5).stderr


class Clinic:
    """A process of the demonstration; it ends with a code, or never."""

    def __init__(self, returncode: int | None = None) -> None:
        self.returncode = returncode

    def poll(self) -> int | None:
        return self.returncode


def test_a_demonstration_waits_for_clinics_as_long_as_they_run(
    write_job: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with other work a start takes minutes; a clock, here an hour at each look, does not end it."""
    job, looks = load_job(write_job()), [0]
    hours = itertools.count(step=3600)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(hours)))
    (folder / "clinic-1.log").touch()

    def sleep(_: float) -> None:
        looks[0] += 1
        if looks[0] == 3:
            (folder / "clinic-1.log").write_text("clinic-1: connecting to 127.0.0.1:20000; Ctrl-C stops\n")

    monkeypatch.setattr(time, "sleep", sleep)
    demo._wait_for_start({"clinic-1": Clinic()}, job)  # type: ignore[dict-item]
    assert looks == [3]
    (folder / "clinic-1.log").write_text("")
    with pytest.raises(WireError, match="the process of clinic-1 ended with code 5"):
        demo._wait_for_start({"clinic-1": Clinic(5)}, job)  # type: ignore[dict-item]


def test_a_demonstration_meets_at_a_port_that_nobody_is_given() -> None:
    ports = [demo._free_port() for _ in range(20)]
    assert len(set(ports)) > 10
    given = [int(number) for number in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()]
    if given[0] < demo._PORTS[-1]:
        pytest.skip("this system gives lower ports too")
    assert not any(given[0] <= port <= given[1] for port in ports)
