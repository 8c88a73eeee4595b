"""What `deploy/` has: a unit that systemd takes, and a container file whose parts are there and run."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from sottovoce.app.cli import app
from sottovoce.app.cli.console import JOB
from sottovoce.app.job_file import read_environment
from sottovoce.app.jobs import DealerJob, Job, PartyJob

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "deploy" / "sottovoce-party@.service"
CONTAINER = ROOT / "deploy" / "Containerfile"


def parses(arguments: list[str]) -> None:
    command: Any = get_command(app)
    command.commands[arguments[0]].make_context("sottovoce", arguments[1:])


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"\b(SOTTOVOCE_\w+)=(\S+)", text))


def test_the_unit_may_write_its_site_alone_and_starts_what_there_is() -> None:
    lines = [line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    has = dict(lines)
    assert has["ExecStart"].split()[0] == "/opt/sottovoce/bin/sottovoce"
    parses(has["ExecStart"].split()[1:])
    assert (has["ProtectSystem"], has["ReadWritePaths"]) == ("strict", "/var/lib/sottovoce/%i")
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictSUIDSGID"):
        assert has[key] == "yes"
    assert (has["CapabilityBoundingSet"], has["UMask"], has["User"]) == ("", "0077", "sottovoce")
    assert has["Restart"] == "on-failure"
    assert settings(UNIT.read_text()).keys() >= {JOB}
    kinds = (Job, PartyJob, DealerJob)
    for kind in kinds:  # every name in it, also in what it says, is a key of some file
        read_environment(kind, kinds, settings(UNIT.read_text()))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not there")
@pytest.mark.parametrize("fault", ["", "ProtectSystem=strict\nExecStrat=x"])
def test_systemd_takes_the_unit(fault: str, tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/sottovoce/bin/sottovoce", shutil.which("true") or "/bin/true")
    path = tmp_path / "sottovoce-party@north.service"
    path.write_text(text.replace("ProtectSystem=strict", fault) if fault else text)
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert ("sottovoce-party" in done.stderr) == bool(fault), done.stderr


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", CONTAINER.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_container_copies_what_is_there_and_runs_as_nobody_special() -> None:
    found = instructions()
    assert found[0][0] == "FROM"
    assert {word.split()[0] for kind, word in found if kind == "FROM"} == {
        "docker.io/library/python:3.11-slim-bookworm"
    }
    for kind, words in found:
        if kind == "COPY" and not words.startswith("--from"):
            assert all((ROOT / source).exists() for source in words.split()[:-1])
    kinds = [kind for kind, _ in found]
    last = dict(found)
    assert last["USER"] == "10001"
    assert kinds.index("USER") < kinds.index("ENTRYPOINT")
    assert json.loads(last["ENTRYPOINT"]) == ["sottovoce"]
    parses(json.loads(last["CMD"]))
    assert settings(CONTAINER.read_text()) == {JOB: "/site/party.toml"}


class _Health(BaseHTTPRequestHandler):
    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def healthy(code: int) -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), type("Answer", (_Health,), {"code": code})) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(("code", "fine"), [(200, True), (503, False), (None, False)])
def test_the_health_check_tells_a_healthy_party_from_none(code: int | None, fine: bool) -> None:
    said = next(words for kind, words in instructions() if kind == "HEALTHCHECK")
    _, option, program = json.loads(said.partition("CMD ")[2])
    port = json.loads(dict(instructions())["CMD"])[-1]
    assert (option, f":{port}/" in program) == ("-c", True)
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(healthy(code)) if code else 9
        program = program.replace(f":{port}/", f":{there}/")
        done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, check=False)
    assert (done.returncode == 0) == fine
