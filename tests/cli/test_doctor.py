"""`sottovoce doctor`: a healthy site passes, and each broken one is told what is wrong with it and nothing else."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sottovoce.app import doctor, provisioning
from sottovoce.app.doctor import examine
from sottovoce.federation.journal import Journal
from sottovoce.privacy import ledger_file
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports import certificates
from sottovoce.transports.authority import create_authority, issue, revoke_certificate
from sottovoce.transports.certificates import Credentials, peer_line, pin_in
from sottovoce.transports.grpc_wire import GrpcCoordinator

LINES = ["id,age,dose,outcome", *(f"p{k},{k % 7 / 7},{k % 5 / 5},{k % 2}" for k in range(40))]


class Sites(SimpleNamespace):
    """The sites of a federation whose coordinator listens, and a healthy party `north` in them."""

    folder: Path
    wire: GrpcCoordinator


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("sites")
    provisioning.make_sites(folder, provisioning.Sites(("north", "south"), hosts=("localhost", "trials.example.org")))
    wire = GrpcCoordinator(
        "localhost:0", ["north"], Credentials.load(folder / "coordinator/certificates", "coordinator")
    )
    north = folder / "north"
    change(north / "party.toml", "localhost:7443", f"localhost:{wire.port}")
    (north / "records.csv").write_text("\n".join(LINES) + "\n")
    Ledger.create(north / "budget.ledger").open("people", 3.0, 1e-6)
    yield Sites(folder=folder, wire=wire)
    wire.close()


@pytest.fixture
def north(sites: Sites, tmp_path: Path) -> Path:
    """A copy of the healthy party, to break."""
    return Path(shutil.copytree(sites.folder / "north", tmp_path / "north"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_healthy_site_passes_and_nothing_is_charged_or_left(north: Path, sites: Sites) -> None:
    before = {path: path.read_bytes() for path in north.rglob("*") if path.is_file()}
    findings = examine(north / "party.toml")
    assert [finding.check for finding in findings] == [
        "settings", "certificate", "network", "clock", "data", "ledger", "disk", "policy",
    ]  # fmt: skip
    assert {finding.state for finding in findings} == {"ok"}, findings
    assert {path: path.read_bytes() for path in north.rglob("*") if path.is_file()} == before
    assert sites.wire.communication.uplink_bytes == 0
    assert not sites.wire._connections


def others_read_the_key(north: Path, sites: Sites) -> None:
    (north / "certificates/north.key").chmod(0o644)


def another_authority(north: Path, sites: Sites) -> None:
    create_authority(north / "other")
    issue(north / "other", "north")
    for name in ("north.pem", "north.key"):
        shutil.copy(north / "other" / name, north / "certificates" / name)


def unsigned(north: Path, sites: Sites) -> None:
    (north / "certificates/north.pem").unlink()


def in_another_time(days: int) -> Callable[[Path, Sites], None]:
    def break_it(north: Path, sites: Sites) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(certificates, "now", lambda: datetime.now(UTC) + timedelta(days=days))
            authority = Path(shutil.copytree(sites.folder / "authority", north / "authority"))
            issue(authority, "north", days=30)
        for name in ("north.pem", "north.key"):
            shutil.copy(authority / name, north / "certificates" / name)

    return break_it


def taken_back(north: Path, sites: Sites) -> None:
    authority = Path(shutil.copytree(sites.folder / "authority", north / "authority"))
    revoke_certificate(authority, "north")
    shutil.copy(authority / "revoked.pem", north / "certificates/revoked.pem")


def no_such_host(north: Path, sites: Sites) -> None:
    change(north / "party.toml", "localhost:", "nowhere.invalid:")


def another_host_name(north: Path, sites: Sites) -> None:
    change(north / "party.toml", "localhost:", "127.0.0.1:")


def not_on_the_list(north: Path, sites: Sites) -> None:
    shutil.copytree(sites.folder / "south/certificates", north / "certificates", dirs_exist_ok=True)
    (north / "certificates/north.key").unlink()
    change(north / "party.toml", 'name = "north"', 'name = "south"')
    own, north_pin = (pin_in(sites.folder / name / f"certificates/{name}.pem") for name in ("south", "north"))
    change(north / "party.toml", peer_line(*own), peer_line(*north_pin))


def an_entry_of_tomorrow(north: Path, sites: Sites) -> None:
    (north / "budget.ledger").unlink()
    tomorrow = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(days=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_file, "datetime", tomorrow)
        Ledger.create(north / "budget.ledger").open("people", 3.0, 1e-6)


def no_label(north: Path, sites: Sites) -> None:
    change(north / "records.csv", "outcome", "result")


def a_person_twice(north: Path, sites: Sites) -> None:
    change(north / "records.csv", "p7,", "P 8,")


def a_schema_of_another_file(north: Path, sites: Sites) -> None:
    change(north / "party.toml", 'label = "outcome"', "")
    with (north / "party.toml").open("a") as file:
        file.write('[schema]\nlabel = "outcome"\n[schema.columns]\nweight = { range = [0, 200] }\n')


def a_schema_that_is_not_there(north: Path, sites: Sites) -> None:
    change(north / "party.toml", 'label = "outcome"', "")
    with (north / "party.toml").open("a") as file:
        file.write('[schema]\nfile = "columns.toml"\n')


def others_read_a_ledger(north: Path, sites: Sites) -> None:
    (north / "budget.ledger").chmod(0o644)


def a_byte_of_the_ledger(north: Path, sites: Sites) -> None:
    data = bytearray((north / "budget.ledger").read_bytes())
    place = data.index(b'"epsilon": 3.0')
    data[place + 11] ^= 4
    (north / "budget.ledger").write_bytes(data)


def no_ledger(north: Path, sites: Sites) -> None:
    (north / "budget.ledger").unlink()


def a_full_disk(north: Path, sites: Sites) -> None:
    """No disk can be filled here: what the system says of it is."""


def a_pin_that_is_none(north: Path, sites: Sites) -> None:
    change(north / "party.toml", "sha256:", "sha1:")


def a_mistyped_key(north: Path, sites: Sites) -> None:
    change(north / "party.toml", "max_epsilon", "max_epsilom")


BROKEN = [
    (others_read_the_key, "certificate", "chmod 600"),
    (another_authority, "certificate", "was not issued by the authority"),
    (unsigned, "certificate", "no certificate north.pem; send north.csr"),
    (in_another_time(-100), "certificate", "expired on"),
    (taken_back, "certificate", "was revoked; ask for another one"),
    (no_such_host, "network", "no machine has the name 'nowhere.invalid'; correct federation.coordinator"),
    (another_host_name, "network", "must name the host as the coordinator's certificate does"),
    (not_on_the_list, "network", "Its job must name this end in federation.parties"),
    (an_entry_of_tomorrow, "clock", "which is before the last entry of budget.ledger"),
    (no_label, "data", "label='outcome' is no column"),
    (a_person_twice, "data", "some identifiers in 'id' are empty, or occur twice by the rule 'usual'"),
    (a_schema_of_another_file, "data", "weight"),
    (a_schema_that_is_not_there, "data", "columns.toml"),
    (others_read_a_ledger, "ledger", "chmod 600"),
    (a_byte_of_the_ledger, "ledger", "cannot be trusted"),
    (no_ledger, "ledger", "sottovoce ledger create"),
    (a_full_disk, "disk", "free some space"),
    (a_pin_that_is_none, "policy", "is no pin; `sottovoce pin south.pem` prints it"),
    (a_mistyped_key, "settings", "did you mean 'max_epsilon'"),
]


@pytest.mark.parametrize(("broken", "check", "words"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_site_is_told_what_is_wrong_and_what_to_do(
    broken: Callable[[Path, Sites], None],
    check: str,
    words: str,
    north: Path,
    sites: Sites,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(north, sites)
    if check == "disk":
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    failing = [finding for finding in examine(north / "party.toml") if finding.state == "fails"]
    # A certificate that is of no use cannot be shown to the coordinator, and damage is where the clock looks too.
    follows = {"ledger": {"clock"}}.get(check, set())
    assert {finding.check for finding in failing} - follows == {check}, failing
    assert words in " ".join(finding.text for finding in failing)


def test_a_clock_that_is_behind_is_told_by_the_certificate_too(north: Path, sites: Sites) -> None:
    in_another_time(100)(north, sites)
    texts = {finding.check: finding.text for finding in examine(north / "party.toml") if finding.state == "fails"}
    assert "check the clock" in texts["certificate"]
    assert "is before the start of north.pem" in texts["clock"]


def test_a_coordinator_whose_clock_differs_is_told(north: Path, sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    from sottovoce.transports import grpc_wire

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(minutes=9)

    monkeypatch.setattr(grpc_wire, "datetime", Ahead)
    (failing,) = [finding for finding in examine(north / "party.toml") if finding.state == "fails"]
    assert failing.check == "clock"
    assert "9 min behind the coordinator's" in failing.text


def test_something_else_at_the_port_is_told(north: Path, sites: Sites) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def answer() -> None:
            for _ in range(2):  # one looks whether the port is open, one speaks TLS
                connection, _ = server.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        change(north / "party.toml", f"localhost:{sites.wire.port}", f"localhost:{port}")
        (failing,) = [finding for finding in examine(north / "party.toml") if finding.state == "fails"]
    assert failing.check == "network"
    assert "omething else" in failing.text or "Is it a coordinator of sottovoce" in failing.text


def test_what_a_site_may_live_with_is_a_warning(north: Path, sites: Sites) -> None:
    in_another_time(-25)(north, sites)
    shutil.copy(sites.folder / "authority/authority.key", north / "certificates")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    change(north / "party.toml", f"localhost:{sites.wire.port}", f"localhost:{port}")
    change(north / "party.toml", "max_epsilon = 1.0", "max_epsilon = 5.0")
    change(north / "party.toml", "secure = false", "secure = true")
    change(north / "party.toml", "[peers]\nsouth", "[peers]\n# south")
    change(north / "party.toml", "# count_shared", "count_shared")
    change(north / "records.csv", f"p3,{3 / 7}", "p3,many")
    findings = examine(north / "party.toml")
    warned = {finding.check: finding.text for finding in findings if finding.state == "warning"}
    assert not [finding for finding in findings if finding.state == "fails"]
    assert "nobody listens on port" in warned["network"]
    assert "those above 3 will be refused" in warned["ledger"]
    assert "few records are of no use and count for nothing; age has texts: declare a [schema]" in warned["data"]
    texts = " ".join(finding.text for finding in findings)
    assert "[peers] is empty" in texts
    assert "compared with south, whose keys [peers] lacks" in texts
    assert "it ends soon; `sottovoce request north`" in texts
    assert "authority.key with who keeps the authority" in texts


def test_no_finding_holds_a_value_of_the_data(north: Path, invoke: Any) -> None:
    secret = "x-secret-77"
    change(north / "records.csv", "p7,", f"{secret},")
    change(north / "records.csv", "p8,", f"{secret},")
    change(north / "records.csv", f"p3,{3 / 7}", f"p3,{secret}")
    result = invoke("doctor", "--job", north / "party.toml", code=1)
    assert "occur twice by" in result.stdout
    assert secret not in result.stdout + result.stderr
    (north / "records.csv").write_text("\n".join(LINES[1:]).replace("p0", secret))
    result = invoke("doctor", "--job", north / "party.toml", code=1)
    assert secret not in result.stdout + result.stderr


def test_the_command_says_it_in_lines_and_in_json(north: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "this site can run; 0 warnings" in invoke("doctor", "--job", north / "party.toml").stdout
    no_ledger(north, Sites())
    monkeypatch.setenv("SOTTOVOCE_JOB", str(north / "party.toml"))
    assert "cannot run: 1 of 8 checks fail" in invoke("doctor", code=1).stdout
    said = json.loads(invoke("doctor", "--json", code=1).stdout)
    assert said["ready"] is False
    assert [check["check"] for check in said["checks"] if check["state"] == "fails"] == ["ledger"]


@pytest.fixture
def coordinator(sites: Sites, tmp_path: Path) -> Path:
    site = Path(shutil.copytree(sites.folder / "coordinator", tmp_path / "coordinator"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    change(site / "job.toml", "0.0.0.0:7443", f"0.0.0.0:{port}")
    change(site / "job.toml", "# records", "records")
    change(site / "job.toml", "# features", "features")
    change(site / "job.toml", '"say ', '"here is ')
    return site


def test_a_coordinator_is_looked_at_too(coordinator: Path) -> None:
    findings = examine(coordinator / "job.toml")
    assert [finding.check for finding in findings] == [
        "settings", "certificate", "parties", "network", "clock", "plan", "outputs", "disk",
    ]  # fmt: skip
    assert {finding.state for finding in findings} == {"ok"}, findings
    assert "reach it as localhost, trials.example.org" in findings[3].text
    with contextlib.closing(Journal(coordinator / "job.run")) as state:
        said = [f.text for f in examine(coordinator / "job.toml") if f.state != "ok"]
        assert len(said) == 1
        assert "another process is at this run now (process" in said[0]
        state.begin()
    assert "a fit was stopped" in next(f.text for f in examine(coordinator / "job.toml") if f.state == "warning")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = coordinator / "job.toml"
        text = path.read_text()
        listen = next(line for line in text.splitlines() if line.startswith("listen"))
        path.write_text(text.replace(listen, f'listen = "127.0.0.1:{taken.getsockname()[1]}"\n'))
        failing = [finding for finding in examine(path) if finding.state == "fails"]
    assert [(finding.check, "another program has the port" in finding.text) for finding in failing] == [
        ("network", True)
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0.0.0.0:", "127.0.0.1:", "it listens on 127.0.0.1, and its certificate is for localhost"),
        ('"south"', '"coordinator"', "'coordinator' is no party's name"),
    ],
)
def test_a_coordinator_that_no_party_reaches_is_told(coordinator: Path, old: str, new: str, words: str) -> None:
    change(coordinator / "job.toml", old, new)
    assert words in " ".join(finding.text for finding in examine(coordinator / "job.toml") if finding.state != "ok")


def test_outputs_that_cannot_be_written_and_a_job_without_a_plan_are_told(coordinator: Path) -> None:
    with (coordinator / "job.toml").open("a") as file:
        file.write('[output]\nmodel = "nowhere/model.json"\n')
    change(coordinator / "job.toml", "entry_bound = 1.0", "")
    failing = {finding.check: finding.text for finding in examine(coordinator / "job.toml") if finding.state == "fails"}
    assert set(failing) == {"plan", "outputs", "disk"}
    assert "nowhere" in failing["outputs"]
    assert "bound" in failing["plan"]


def test_a_job_with_its_data_here_is_looked_at_too(write_job: Any, open_ledger: Any) -> None:
    open_ledger("all.db", 0.5)
    job = write_job(data={"file": '"all.csv"', "label": '"out"', "ledger": '"all.db"'})
    findings = examine(job)
    states = {finding.check: finding.state for finding in findings}
    assert states == {
        "settings": "ok", "data": "ok", "ledger": "warning", "plan": "ok", "outputs": "ok", "disk": "ok",
    }  # fmt: skip
    job.with_name("all.csv").unlink()
    assert "data" in {finding.check for finding in examine(job) if finding.state == "fails"}


def test_a_dealer_is_looked_at_too(tmp_path: Path) -> None:
    asked = provisioning.Sites(("north", "south"), split="columns", dealer="notary")
    provisioning.make_sites(tmp_path, asked)
    wire = GrpcCoordinator(
        "localhost:0", ["notary"], Credentials.load(tmp_path / "coordinator/certificates", "coordinator")
    )
    change(tmp_path / "notary/dealer.toml", "localhost:7443", f"localhost:{wire.port}")
    findings = examine(tmp_path / "notary/dealer.toml")
    wire.close()
    assert [(finding.check, finding.state) for finding in findings] == [
        ("settings", "ok"), ("certificate", "ok"), ("network", "ok"), ("clock", "ok"),
    ]  # fmt: skip


def test_people_to_predict_for_are_looked_at_on_both_ends(tmp_path: Path) -> None:
    provisioning.make_sites(tmp_path, provisioning.Sites(("clinic", "lab"), split="columns", hosts=("a.example",)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    change(tmp_path / "coordinator/people.toml", ":7443", f":{port}")
    there = examine(tmp_path / "coordinator/people.toml")
    assert [(finding.check, finding.state) for finding in there] == [
        ("settings", "ok"), ("certificate", "ok"), ("parties", "ok"), ("network", "ok"), ("clock", "ok"),
    ]  # fmt: skip
    Ledger.create(tmp_path / "lab/budget.ledger").open("people", 3.0, 1e-6)
    (tmp_path / "lab/people.csv").write_text("id,dose\np1,0.5\np2,0.25\n")
    change(tmp_path / "lab/people.toml", "a.example:7443", f"localhost:{port}")
    here = {finding.check: finding for finding in examine(tmp_path / "lab/people.toml")}
    assert here.pop("network").state == "warning"  # nobody listens
    assert {finding.state for finding in here.values()} == {"ok"}, here
    assert "no training: these people are predicted for, for clinic; pinned: clinic" in here["policy"].text
