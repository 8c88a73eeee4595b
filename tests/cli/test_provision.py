"""From nothing to sites: what `provision`, `request`, `sign` and `certificates` make, other commands read."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sottovoce.app import provisioning
from sottovoce.app.jobs import load_dealer_job, load_job, load_party_job
from sottovoce.errors import InputError
from sottovoce.transports.certificates import Credentials, pin_in


def test_every_organisation_gets_a_folder_that_reads(tmp_path: Path, invoke: Any) -> None:
    sites = tmp_path / "sites"
    said = invoke("provision", sites, "north", "south", "--host", "trials.example.org", "--port", 9000).stdout
    assert f"made {sites / 'south'}" in said
    job = load_job(sites / "coordinator/job.toml")
    assert job.federation is not None
    assert job.federation.parties == ("north", "south")
    Credentials.load(sites / "coordinator/certificates", "coordinator")
    for name, other in (("north", "south"), ("south", "north")):
        party = load_party_job(sites / name / "party.toml")
        assert party.federation.coordinator == "trials.example.org:9000"
        assert party.peers == dict([pin_in(sites / other / "certificates" / f"{other}.pem")])
        assert (party.policy.max_epsilon, party.policy.secure) == (1.0, False)
        Credentials.load(sites / name / "certificates", name)
        assert stat.S_IMODE((sites / name / "certificates" / f"{name}.key").stat().st_mode) == 0o600
        assert stat.S_IMODE((sites / name).stat().st_mode) == 0o700
        guide = (sites / name / "GUIDE.md").read_text()
        assert len(guide.splitlines()) < 60
        assert "sottovoce doctor --job party.toml" in guide
    keys = sorted(path.relative_to(sites).as_posix() for path in sites.rglob("*.key"))
    assert keys == [
        "authority/authority.key",
        "coordinator/certificates/coordinator.key",
        "north/certificates/north.key",
        "south/certificates/south.key",
    ]


def test_keys_at_the_parties_by_columns_with_a_dealer(tmp_path: Path, invoke: Any) -> None:
    sites, ends = tmp_path / "sites", ("clinic", "lab", "notary")
    made = json.loads(
        invoke(
            "provision", sites, "clinic", "lab", "--split", "columns", "--dealer", "notary", "--label-party", "lab",
            "--requests", "--json",
        ).stdout
    )  # fmt: skip
    assert made["made"] == ["coordinator", *ends]
    assert not [path for path in sites.rglob("*.key") if path.stem in ends]
    job = load_job(sites / "coordinator/job.toml")
    assert job.federation is not None
    assert (job.split, job.label_party, job.federation.dealer) == ("columns", "lab", "notary")
    lab, clinic = (load_party_job(sites / name / "party.toml").party for name in ("lab", "clinic"))
    assert (lab.label, clinic.label, clinic.id) == ("outcome", None, "id")
    assert load_dealer_job(sites / "notary/dealer.toml").dealer.name == "notary"
    pins = {}
    for name in ends:
        own = sites / name / "certificates"
        pins[name] = json.loads(invoke("request", name, "--folder", own, "--json").stdout)["pin"]
        signed = invoke("sign", sites / "authority", own / f"{name}.csr").stdout
        assert f'{name} = "{pins[name]}"' in signed
        (own / f"{name}.pem").write_bytes((sites / "authority" / f"{name}.pem").read_bytes())
        Credentials.load(own, name)
    listing = invoke("certificates", sites / "authority").stdout
    assert all(f'{name} = "{pin}"' in listing for name, pin in pins.items())
    told = json.loads(invoke("certificates", sites / "authority", "--json").stdout)["certificates"]
    assert {one["name"]: one["pin"] for one in told if one["name"] in ends} == pins


def test_what_was_made_is_left_as_it_is_and_one_more_is_added(tmp_path: Path, invoke: Any) -> None:
    sites = tmp_path / "sites"
    invoke("provision", sites, "north", "south")
    (sites / "north/party.toml").write_text("changed")
    for path in sorted((sites / "south").rglob("*"), reverse=True):  # given away
        path.rmdir() if path.is_dir() else path.unlink()
    (sites / "south").rmdir()
    before = (sites / "authority/south.pem").read_bytes()
    said = invoke("provision", sites, "north", "south", "east").stdout
    assert "made before, and left as they are: coordinator, north, south" in said
    assert "add to federation.parties of the coordinator's job: east" in said
    assert (sites / "north/party.toml").read_text() == "changed"
    assert (sites / "authority/south.pem").read_bytes() == before
    assert not (sites / "south").exists()
    assert set(load_party_job(sites / "east/party.toml").peers) == {"north", "south"}


def test_a_site_is_there_whole_or_not_at_all(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = tmp_path / "sites"
    assert "ask for fewer days" in invoke("provision", sites, "north", "--days", 99999, code=2).stderr
    texts = provisioning._texts

    def full(name: str, *rest: Any) -> dict[str, str]:
        if name == "north":
            raise InputError("no space is left")
        return texts(name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(provisioning, "_texts", full)
        invoke("provision", sites, "north", code=2)
    assert not (sites / "north").exists()
    said = json.loads(invoke("provision", sites, "north", "--json").stdout)
    assert (said["made"], said["kept"]) == (["coordinator", "north"], [])
    load_party_job(sites / "north/party.toml")
    Credentials.load(sites / "coordinator/certificates", "coordinator")
    assert sorted(path.name for path in sites.iterdir()) == ["authority", "coordinator", "north"]


def test_a_site_that_is_completed_by_another_call_has_the_key_that_others_pin(
    tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped_then_completed(sites: Path) -> bool:
        """Whether the key of south is the one that north pinned."""
        invoke("provision", sites, "north", "south", "--split", "columns")
        (sites / "south").rename(sites / ".south.new")  # as after a kill before it got its name
        invoke("provision", sites, "north", "south", "--split", "columns", "--port", 8443)
        assert "8443" in (sites / "south/party.toml").read_text()
        Credentials.load(sites / "south/certificates", "south")
        pinned = load_party_job(sites / "north/party.toml").peers["south"]
        return pinned == pin_in(sites / "south/certificates/south.pem")[1]

    assert stopped_then_completed(tmp_path / "one")
    monkeypatch.setattr(provisioning, "_keeps_key", lambda *_: False)  # planted fault
    assert not stopped_then_completed(tmp_path / "two")


def test_names_with_dots_are_keys_in_quotes(tmp_path: Path, invoke: Any) -> None:
    sites, names = tmp_path / "sites", ("north.example", "south.example")
    for split in ("rows", "columns"):
        invoke("provision", sites / split, *names, "--split", split)
        assert set(load_party_job(sites / split / names[0] / "party.toml").peers) == {names[1]}
        job = sites / split / "coordinator/job.toml"
        job.write_text(job.read_text().replace("# records =", "records =").replace("# features =", "features ="))
        assert load_job(job).federation is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["north", "north"], "name='north' is there twice"),
        (["coordinator"], "coordinator's"),
        (["north", "--dealer", "north"], "twice"),
        (["../north"], "is not allowed"),
        (["north", "--label-party", "north"], "split by columns"),
        (["north", "--split", "columns", "--label-party", "nord"], "did you mean 'north'"),
        (["north", "--port", "0"], "from 1 to 65535"),
        (["north", "--host", 'a"\nmax_epsilon = "inf'], "is not allowed"),
        (["north", "--host", "z\u00fcrich.example"], "in ASCII"),
        (["north", "--host", ""], "name at least one host"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    arguments: list[str], words: str, tmp_path: Path, invoke: Any
) -> None:
    result = invoke("provision", tmp_path / "sites", *arguments, code=2)
    assert words in result.stderr
    assert not (tmp_path / "sites").exists()


def test_a_rotation_with_a_new_key_says_that_pins_change(tmp_path: Path, invoke: Any) -> None:
    sites, own = tmp_path / "sites", tmp_path / "sites/north/certificates"
    invoke("provision", sites, "north", "south")
    assert "as it was; it stays here" in invoke("request", "north", "--folder", own).stdout
    kept = invoke("sign", sites / "authority", own / "north.csr").stdout
    assert "replaced: north, serial" in kept
    assert "another key" not in kept
    before = (sites / "authority/north.pem").read_bytes()
    invoke("request", "north", "--folder", own.with_name("certificates-2"))
    changed = invoke("sign", sites / "authority", own.with_name("certificates-2") / "north.csr", "--revoke").stdout
    assert "replaced and revoked: north, serial" in changed
    assert "pins of north no longer fit" in changed
    (own / "revoked.pem").write_bytes((sites / "authority/revoked.pem").read_bytes())
    (own / "north.pem").write_bytes(before)
    with pytest.raises(InputError, match="was revoked"):
        Credentials.load(own, "north")
    again = invoke("sign", sites / "authority", own.with_name("certificates-2") / "north.csr", "--revoke", code=2)
    assert "ask for one with a new key" in again.stderr
    assert "revoked" not in invoke("certificates", sites / "authority").stdout


def kills(tmp_path: Path, *before: str, numbers: tuple[int, ...] = ()) -> list[tuple[str, list[str]]]:
    """Before what the making of sites was killed, each time, and what was wrong once they were made again."""
    program = Path(__file__).parents[1] / "programs" / "kill_provision.py"
    arguments = ["", str(tmp_path), *map(str, numbers)]
    told = "; ".join([*before, "import runpy, sys", f"sys.argv = {arguments!r}"])
    run = [sys.executable, "-c", f"{told}; runpy.run_path({str(program)!r}, run_name='__main__')"]
    said = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return [tuple(json.loads(line)) for line in said.splitlines()]


@pytest.mark.slow
def test_sites_whose_making_was_killed_before_any_write_are_completed_by_the_same_call(tmp_path: Path) -> None:
    """Under a umask of 0: every folder is its owner's alone, and every file that is no certificate."""
    found = kills(tmp_path)
    assert len(found) > 60
    assert sum("authority/authority.pem" in before for before, _ in found) >= 3
    assert [each for each in found if each[1]] == []


PLANTED = {
    (
        "authority.key exists",
        1,
        12,
    ): "create = made.create_authority; made.create_authority = lambda folder: (_ for _ in ())"
    ".throw(made.InputError('authority.key exists')) if (folder / 'authority.key').exists() else create(folder)",
    ("another key of", 70): "made._keeps_key = lambda *_: False",
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted[0])
def test_sites_that_are_not_completed_are_found(planted: tuple[Any, ...], tmp_path: Path) -> None:
    """A key without a certificate is refused; a site that others have pinned is made anew."""
    fault, *numbers = planted
    how = ("from sottovoce.app import provisioning as made", PLANTED[planted])
    found = kills(tmp_path, *how, numbers=tuple(numbers))
    assert any(fault in said for _, wrong in found for said in wrong), found
