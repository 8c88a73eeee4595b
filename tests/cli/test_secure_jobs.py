"""Secure sums in job files, in what commands print, and in ledgers."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import sottovoce as sv
from sottovoce.app.cli.console import show_summary
from sottovoce.app.jobs import load_evaluation_job, load_job, load_party_job
from sottovoce.app.page import ledger_page
from sottovoce.app.previews import plan_job
from sottovoce.errors import InputError
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

FEDERATION = """
[federation]
listen = "127.0.0.1:0"
certificates = "certificates"
parties = ["north", "south", "west"]
records = { north = 400, south = 300, west = 300 }
features = 3
"""
PEOPLE = FEDERATION.replace("400", "300").replace("features = 3", "features = { north = 2, south = 1, west = 1 }")
COLUMNS = "\n[columns]\n"
APART = "the coordinator colludes with no party, and is run by none"


def test_the_keys_of_secure_sums_are_read(write_job) -> None:
    job = load_job(
        write_job(data=None, more=f'{FEDERATION}sums = "secure"\ncolluding = 1\ndropouts = 1\nretries = 2\n')
    )
    assert job.federation is not None
    assert (job.federation.sums, job.federation.colluding, job.federation.dropouts) == ("secure", 1, 1)
    aggregation = plan_job(job).plan.aggregation
    assert aggregation is not None
    assert (aggregation.colluding, aggregation.dropouts, aggregation.retries, aggregation.colluding_with_dealer) == (
        1,
        1,
        2,
        0,
    )
    assert plan_job(load_job(write_job(data=None, more=FEDERATION))).plan.aggregation is None
    named = load_job(write_job(data=None, more=f'{PEOPLE}products = "secure"\ndealer = "notary"{COLUMNS}'))
    assert named.federation is not None
    assert named.federation.dealer == "notary"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('sums = "masked"', 'federation.sums = .masked. is not allowed: give by rows: "secure"'),
        ('sumz = "secure"', "no key 'sumz'; did you mean 'sums'"),
        ('products = "secure"', "federation.products = 'secure' does not go with data split by rows"),
        ("colluding_with_dealer = 1", "federation.colluding_with_dealer = 1 is for secure sums; set sums"),
        ('dealer = "notary"', "federation.dealer = 'notary' is for secure sums"),
        ('sums = "secure"\ncolluding_with_dealer = -1', "federation.colluding_with_dealer = -1 is not allowed"),
        ('sums = "secure"\ncolluding_with_dealer = 3', "leave none of 3 parties to rely on"),
        ('sums = "secure"\ncolluding = 3', "leave none of 3 parties to rely on"),
        ('sums = "secure"\nretries = 1', "federation.retries = 1 is for sums without parties that left"),
        ('sums = "secure"\ndealer = "south"', "federation.dealer = 'south' is a party or the coordinator"),
    ],
)
def test_keys_by_rows_that_cannot_be(write_job, keys: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_job(write_job(data=None, more=f"{FEDERATION}{keys}\n"))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('sums = "secure"', "federation.sums = 'secure' does not go with data split by columns"),
        (
            'products = "secure"\ncolluding_with_dealer = 1',
            "federation.colluding_with_dealer = 1 is for data split by rows; by columns a dealer",
        ),
        ('products = "none"\ncolluding = 1', "federation.colluding = 1 is for secure sums; set products"),
    ],
)
def test_keys_by_columns_that_cannot_be(write_job, keys: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_job(write_job(data=None, more=f"{PEOPLE}{keys}\n{COLUMNS}"))


def test_one_party_secures_nothing_and_evaluations_have_no_such_keys(write_job, folder) -> None:
    alone = FEDERATION.replace('["north", "south", "west"]', '["north"]').replace(", south = 300, west = 300", "")
    with pytest.raises(InputError, match="sums are secure over two or more"):
        load_job(write_job(data=None, more=f'{alone}sums = "secure"\n'))
    (folder / "test.toml").write_text(f'[privacy]\nepsilon = 1.0\n{FEDERATION}sums = "secure"\n')
    with pytest.raises(InputError, match="no key 'sums'"):
        load_evaluation_job(folder / "test.toml")


def test_a_dealer_is_in_the_plan_and_is_no_party(write_job) -> None:
    plan = plan_job(load_job(write_job(data=None, more=f'{FEDERATION}sums = "secure"\ndealer = "notary"\n'))).plan
    assert (plan.aggregation.dealer, plan.names) == ("notary", ("north", "south", "west"))
    assert [name for name, _ in plan.keys] == [*plan.names, "notary"]


def test_a_holder_decides_in_its_file(tmp_path) -> None:
    path = tmp_path / "north.toml"
    text = (
        '[party]\nname = "north"\nfile = "north.csv"\nlabel = "out"\nledger = "north.db"\n'
        '[federation]\ncoordinator = "localhost:1"\ncertificates = "c"\n'
    )
    path.write_text(text)
    assert not load_party_job(path).policy.secure
    path.write_text(f"{text}[policy]\nsecure = true\nmax_epsilon_colluding = 4.0\n")
    assert (load_party_job(path).policy.secure, load_party_job(path).policy.max_epsilon_colluding) == (True, 4.0)
    path.write_text(f"{text}[policy]\nsecure = 1\n")
    with pytest.raises(InputError, match=r"policy\.secure = 1 is not allowed: give true: accept secure aggregation"):
        load_party_job(path)


def test_a_plan_of_secure_rows_says_everything_without_asking_anybody(write_job, invoke) -> None:
    path = write_job(data=None, more=f'{FEDERATION}sums = "secure"\n')
    text = " ".join(invoke("plan", path).stdout.split())
    assert f"This holds against anybody who cannot break the encryption, and if {APART}; if" in text
    assert "If the coordinator colludes with 1 party, or is run by one, epsilon is" in text
    assert "Epsilon against those who collude: coordinator and 1 party" in text
    assert "Noise of a sum over that of data in one place" in text
    assert "Secure: a party sends" in text
    assert "dealt" not in text
    told = json.loads(invoke("plan", path, "--json").stdout)
    assert told["privacy"]["against"]["coordinator"]["assumes"][0] == APART
    assert told["privacy"]["colluding"]["coordinator"] == told["privacy"]["epsilon"]
    plain = json.loads(invoke("plan", write_job(data=None, more=FEDERATION), "--json").stdout)
    assert "colluding" not in plain["privacy"]


def test_a_plan_of_secure_columns_says_what_is_dealt_and_what_is_left_open(write_job, invoke) -> None:
    solver = {"name": '"newton"', "rounds": "4"}
    text = " ".join(
        invoke("plan", write_job(data=None, more=f'{PEOPLE}products = "secure"{COLUMNS}', solver=solver)).stdout.split()
    )
    assert "it can read that party's and every other party's columns" in text
    assert "coordinator and 1 party infinite (in the clear)" in text
    assert "is dealt by the coordinator" in text
    assert "nobody was asked: this is as if" not in text
    left_open = invoke("plan", write_job(data=None, more=f"{PEOPLE}{COLUMNS}", solver=solver)).stdout
    assert "nobody was asked: this is as if every party took part in secure sums" in " ".join(left_open.split())


RNG = np.random.default_rng(4)
X = RNG.uniform(-1, 1, (90, 2))
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture
def fitted(tmp_path) -> tuple[Any, Ledger]:
    """A secure fit over three parties, and the ledger of the first."""
    ledgers = [Ledger.create(tmp_path / f"{k}.db") for k in range(3)]
    accounts = [ledger.open("people", 3.0, 1e-5) for ledger in ledgers]
    parts = [(X[k::3], Y[k::3]) for k in range(3)]
    federation = sv.Federation.by_rows(parts, ledgers=accounts, sums="secure")
    model = sv.PrivateLogisticRegression(1.0, entry_bound=1.0, classes=(0, 1), solver=sv.solvers.Newton(rounds=2))
    return model.fit(federation), ledgers[0]


def test_a_summary_of_a_fit_never_has_an_epsilon_alone(fitted) -> None:
    model, _ = fitted
    out = io.StringIO()
    show_summary(model, {}, {}, 1.0, Console(file=out, width=200))
    weakest = model.privacy_.weakest
    text = " ".join(out.getvalue().split())
    assert f"which rests on secure sums: {APART}" in text
    assert f"and {len(weakest.assumes) - 1} further assumptions, which the page lists" in text
    assert " ".join(weakest.if_broken.split()) in text


def test_a_ledger_marks_plans_of_secure_sums_and_its_balance_says_what_all_rest_on(fitted, invoke) -> None:
    model, ledger = fitted
    account = ledger.account()
    assert account.balance().rests_on == model.privacy_.weakest.assumes
    account.reserve("noise-alone", (Gaussian(0.1),))
    assert account.balance().rests_on == model.privacy_.weakest.assumes
    shown = " ".join(invoke("ledger", "show", ledger.path).stdout.split())
    assert (
        f"people: 1 of its plans rests on secure sums. What is spent holds against anybody who cannot break the "
        f"encryption, and if {APART}; if" in shown
    )
    assert "what is left of the budget repairs none of them" in shown
    told = json.loads(invoke("ledger", "show", ledger.path, "--json").stdout)
    assert told["accounts"]["people"]["rests_on"][0] == APART
    lines = json.loads(invoke("ledger", "history", ledger.path, "--json").stdout)["entries"]
    charges = [line["details"].get("rests_on") for line in lines if line["kind"] == "reservation"]
    assert [bool(each) for each in charges] == [True, False]
    assert "rests on secure sums" in " ".join(invoke("ledger", "history", ledger.path).stdout.split())
    assert "1 of its plans rests on secure sums" in ledger_page(ledger)
    assert ledger.verify() > 0


def test_an_account_above_says_it_too_and_assumptions_are_united(tmp_path) -> None:
    ledger = Ledger.create(tmp_path / "team.db")
    above = ledger.open("people", 3.0, 1e-5)
    account = ledger.open("anna", 2.0, 1e-5, under="people")
    account.reserve("one", (Gaussian(0.1),), rests_on=("a", "b"))
    account.reserve("two", (Gaussian(0.1),), rests_on=("c", "b"))
    assert account.balance().rests_on == above.balance().rests_on == ("a", "b", "c")
    assert account.reserve("one", (Gaussian(0.1),), rests_on=("a", "b")).rests_on == ("a", "b")


def test_a_ledger_without_the_mark_reads_and_says_nothing(tmp_path, invoke) -> None:
    ledger = Ledger.create(tmp_path / "old.db")
    account = ledger.open("people", 3.0, 1e-5)
    account.reserve("one", (Gaussian(0.1),))
    assert "rests_on" not in account.history()[-1].details
    assert account.balance().rests_on == ()
    assert "secure" not in invoke("ledger", "show", ledger.path).stdout
    assert "secure" not in ledger_page(ledger)
