"""Every solver while processes are killed and stopped, wires are cut, disks are full and clocks jump.

What must be true is in `history`, what may stop in `trials.expected`. The schedules are drawn from a fixed seed, by
points that processes pass rather than by time; `run.py` has more of them.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import ALONE, CASES, COORDINATOR
from cluster import Outcome, can_mount
from history import Entry, History, violations
from nemesis import DOUBLES, SECOND, Fault, draw
from run import ROLES, Campaign
from trials import EQUAL, Trials, lacks_part

pytestmark = pytest.mark.slow

# Of some solvers `run.py` has more cases.
MORE = (
    "sgd, one party a round, rows",
    "sgd, rows, secure",
    "scd-sequential, rows",
    "whitened, rows, secure",
    "cd, rows, secure",
    "admm, fresh, columns",
    "newton, columns, secure, notary",
)
NAMES = [name for name in CASES if name not in MORE]
PLAN = "d1"


def said(role: str, what: str, asked: str, **more: Any) -> dict[str, Any]:
    """A line of a history."""
    known = {"what": what, "role": role, "who": role, "life": 0, "asked": asked, "kind": "answer", "plan": PLAN}
    return {**known, "round": 0, "query": "", "stage": "", "words": "", "stored": "", "derived": [], **more}


def answer(**more: Any) -> dict[str, Any]:
    """That the party has let a release out."""
    return said("north", "left", "ask", **{"query": "gram", "words": "w", "stored": "w", **more})


GOOD = History(
    events=(
        said("north", "left", "plan", kind="accept"),
        answer(),
        answer(),  # asked again
        said(COORDINATOR, "came", "ask", who="north", query="gram", words="w"),
    ),
    ledgers={
        "north": (
            Entry(1, "opening", "", 0, ""),
            Entry(2, "reservation", PLAN, 0, ""),
            Entry(3, "release", PLAN, 0, "gram", "w"),
        )
    },
    spent={"north": 1.0},
    model="m",
    parts={"north": "p"},
    files={"north/ledger.db": 0o600, "coordinator/job.json": 0o644},
)
OPENING, CHARGE, RELEASE = GOOD.ledgers["north"]


def ledger(*entries: Entry) -> dict[str, Any]:
    """Other entries of the ledger."""
    return {"ledgers": {"north": entries}}


PLANTED: dict[str, dict[str, Any]] = {
    "two answers to one question": {"events": (*GOOD.events, answer(words="v", stored="v"))},
    "an answer came that never left": {
        "events": (*GOOD.events, said(COORDINATOR, "came", "ask", who="north", query="x"))
    },
    "left before it was stored": {"events": (*GOOD.events, answer(stored=""))},
    "left, and not what the ledger has": ledger(OPENING, CHARGE, replace(RELEASE, words="v")),
    "released twice": ledger(OPENING, CHARGE, RELEASE, replace(RELEASE, number=4)),
    "released before it was charged": ledger(OPENING, replace(RELEASE, number=2), replace(CHARGE, number=3)),
    "charged twice": ledger(OPENING, CHARGE, RELEASE, replace(CHARGE, number=4)),
    "left without a charge": ledger(OPENING, RELEASE),
    "answered under a plan that it had not accepted": {"events": (GOOD.events[0], answer(life=1))},
    "north: the file is damaged": {"broken": ("north: the file is damaged",)},
    "another model, or none": {"model": ""},
    "another part of the model at north": {"parts": {"north": "q"}},
    "north was charged for 2 plans": ledger(*GOOD.ledgers["north"], Entry(4, "reservation", "d2", 0, "")),
    "north has spent 2.0": {"spent": {"north": 2.0}},
    "the ledger of north has other entries": ledger(*GOOD.ledgers["north"], Entry(4, "release", PLAN, 1, "gram", "w")),
    "left behind: north/ledger.db.secure/k.key": {"files": {**GOOD.files, "north/ledger.db.secure/k.key": 0o600}},
    "left behind: north/ledger.db.secure/k.labels": {"files": {**GOOD.files, "north/ledger.db.secure/k.labels": 0o600}},
    "left behind: north/ledger.db.secure/": {
        "events": (*GOOD.events, said("north", "left", "done", kind="done")),
        "files": {**GOOD.files, f"north/ledger.db.secure/{PLAN}.x.labels": 0o600},
    },
    "left behind: north/ledger.db-journal": {"files": {**GOOD.files, "north/ledger.db-journal": 0o600}},
    "north/ledger.db has the mode 644": {"files": {"north/ledger.db": 0o644}},
}


def test_a_history_in_order_has_no_violation() -> None:
    assert violations(GOOD, GOOD) == []


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    found = violations(replace(GOOD, **PLANTED[fault]), GOOD)
    assert any(said.startswith(fault) for said in found), found


def test_labels_of_a_run_whose_end_nobody_told_stay() -> None:
    assert violations(replace(GOOD, files={**GOOD.files, f"north/ledger.db.secure/{PLAN}.x.labels": 0o600}), GOOD) == []


def test_a_refusal_ends_what_was_accepted() -> None:
    refused = said("north", "left", "plan", kind="refuse")
    found = violations(replace(GOOD, events=(GOOD.events[0], refused, *GOOD.events[1:])), GOOD)
    assert [said.partition(":")[0] for said in found] == ["answered under a plan that it had not accepted"] * 2


def test_runs_that_were_given_up_may_cost_a_plan_each_and_no_more() -> None:
    more = (*GOOD.ledgers["north"], Entry(4, "reservation", "d2", 0, ""))
    twice = replace(GOOD, ledgers={"north": more}, spent={"north": 1.5})
    assert violations(twice, GOOD, given_up=1) == []
    dearer = replace(twice, ledgers={"north": (*more[:-1], replace(more[-1], cost=2.0))})
    assert any("was charged {" in said for said in violations(dearer, GOOD, given_up=1))
    thrice = replace(twice, ledgers={"north": (*more, Entry(5, "reservation", "d3", 0, ""))})
    assert any("2 plans more" in said for said in violations(thrice, GOOD, given_up=1))


def test_a_part_of_the_model_may_be_lacking_where_a_disk_was_full_and_the_fit_says_so() -> None:
    told = "note: joint predictions are not possible, north has no part of the model: its disk is full"
    lacking = "another part of the model at north"

    def accepted(name: str, what: str, said: str) -> bool:
        return lacks_part(Outcome(CASES[name], Path(), [{"what": what, "whom": "north"}], [(0, said)], 1.0), lacking)

    assert accepted("admm, columns", "disk", told)
    assert not accepted("admm, columns", "disk", "model: job.json")  # nobody was told
    assert not accepted("admm, columns", "disk", told.replace("north", "south"))
    assert not accepted("admm, columns", "kill", told)  # it is told again, and keeps it
    assert not accepted("newton, rows", "disk", told)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("faults") / "trials", 1, NAMES)


def test_every_solver_while_things_fail(campaign: Campaign) -> None:
    """All runs end with the model of the unbroken one, or by a second plan where the first was lost as it may be."""
    campaign.run({}, several=3)
    table = campaign.table()
    assert [str(verdict) for verdict in campaign.verdicts if verdict.found] == [], table
    assert len(campaign.verdicts) == len(NAMES)
    assert len(set(MORE) & set(CASES)) == len(MORE)
    assert campaign.count("kill") >= len(NAMES), table
    assert campaign.count("cut") >= len(NAMES) / 2, table
    assert campaign.count("double") >= len(NAMES) / 2, table
    assert sum(verdict.word == EQUAL for verdict in campaign.verdicts) >= len(NAMES) - 5, table


FIRST_HALF = [(ALONE, 1), (ALONE, 6), ("rows", 1), ("rows", 12)]


@pytest.mark.parametrize("how", DOUBLES)
@pytest.mark.parametrize(("split", "after"), FIRST_HALF)
def test_a_second_start_is_refused_while_the_first_goes_on(
    split: str, after: int, how: str, campaign: Campaign
) -> None:
    """Before the charge and after it; the first waits until the second has ended, and has one charge."""
    verdict = campaign.trials.judge(CASES[f"newton, {split}"], [Fault(COORDINATOR, after, how, COORDINATOR, 60.0)])
    assert (verdict.found, verdict.word) == ([], EQUAL), str(verdict)
    ((code, said),) = verdict.outcome.doubles
    assert code == 2
    assert "another process is at this run now (process " in " ".join(said.split())


def test_a_fit_that_reads_its_state_before_it_has_it_is_found(campaign: Campaign) -> None:
    """Negative control: the second has read while the first ran, and goes on when that has ended."""
    second = Fault(COORDINATOR, 1, "double", COORDINATOR, 60.0)
    schedule = [second, Fault(SECOND, 25, "stop", SECOND, 600.0)]  # once it has tried to write
    verdict = campaign.trials.judge(CASES["newton, central"], schedule, broken="locks late")
    assert verdict.outcome.faults[1]["at"]["what"] == "before an exchange"
    found = verdict.found
    assert "coordinator was charged for 2 plans" in found, found


def test_a_coordinator_that_dies_before_it_has_said_start_says_it_when_it_goes_on(campaign: Campaign) -> None:
    """A party that was killed has accepted the plan again, and nobody has told it that all have signed."""
    case = CASES["newton, rows"]
    half = campaign.trials.unbroken(case)[1]["north"] // 2
    accepted = 8  # points after which a new process has made its answer to the plan
    schedule = [Fault("north", half, "kill", "north"), Fault("north", accepted, "kill", COORDINATOR)]
    verdict = campaign.trials.judge(case, schedule)
    assert verdict.outcome.faults[1]["at"]["what"] == "plan  0 is answered"
    assert (verdict.found, verdict.word) == ([], EQUAL), str(verdict)


def test_a_party_that_answers_before_it_has_stored_is_found(campaign: Campaign) -> None:
    """Negative control: the program itself is broken; a kill between its answer and its ledger loses the release."""
    case = CASES["gradient, rows"]
    after = Fault("north", 30, "kill", "north")
    found = campaign.trials.judge(case, [after], broken="answers first").found
    assert any(said.startswith("left before it was stored") for said in found), found


def test_a_party_that_forgets_what_its_solver_keeps_is_found(campaign: Campaign) -> None:
    """Negative control: the duals of a party that was killed begin anew, and the model is another one."""
    case = CASES["scd, rows"]
    half = campaign.trials.unbroken(case)[1]["north"] // 2
    found = campaign.trials.judge(case, [Fault("north", half, "kill", "north")], broken="forgets").found
    assert "another model, or none" in found, found


@pytest.mark.parametrize("broken", ["", "draws anew"])
def test_a_party_of_secure_columns_that_was_killed_comes_back(campaign: Campaign, broken: str) -> None:
    """With the model of the unbroken run; negative control: one that draws anew says other bytes, and is refused."""
    case = CASES["whitened, columns, secure, notary"]
    half = campaign.trials.unbroken(case)[1]["north"] // 2
    verdict = campaign.trials.judge(case, [Fault("north", half, "kill", "north")], broken=broken)
    assert (verdict.word == EQUAL) == (not broken), str(verdict)


@pytest.mark.parametrize("kind", ROLES)
def test_kills_of_a_kind_of_role_meet_no_other(kind: str) -> None:
    case = CASES["whitened, columns, secure, notary"]
    faults = draw(random.Random(1), case, dict.fromkeys(case.roles, 10), ["kill"] * 20, kind)
    assert {(fault.what, case.kind_of(fault.whom)) for fault in faults} == {("kill", kind)}


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small disk")
@pytest.mark.parametrize("whom", [COORDINATOR, "north"])
def test_a_full_disk_stops_a_run_and_it_goes_on_once_there_is_room(campaign: Campaign, whom: str) -> None:
    case = CASES["newton, rows"]
    points = campaign.trials.unbroken(case)[1][whom]
    verdict = campaign.trials.judge(case, [Fault(whom, points // 2, "disk", whom, 0.3)])
    assert (verdict.found, verdict.word) == ([], EQUAL), str(verdict)
    assert len(verdict.outcome.stops) == 1


def test_a_schedule_follows_from_its_seed(campaign: Campaign) -> None:
    case, kinds = CASES["newton, rows"], ["kill", "cut", "stop", "clock"]
    first, again = (campaign.trials.schedule(case, random.Random(5), kinds) for _ in range(2))
    assert first == again
    assert {fault.what for fault in first} >= {"kill", "stop", "clock"}
    assert isinstance(campaign.trials, Trials)
