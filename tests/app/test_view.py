"""What operators see: events of plain public fields; a page, metrics and a log that have no value of the data."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.client
import io
import json
import logging
import math
import re
import socket
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sottovoce as sv
from browser import PROGRAM, browser
from sottovoce.app.view import server
from sottovoce.app.view.events import KINDS, Event, State
from sottovoce.app.view.server import HOST, new_token, read_token, render_page, serve_view
from sottovoce.app.view.watched import LogForwarder, Watch, WatchedEnd, WatchedWire, write_event
from sottovoce.errors import InputError, LeakError, RefusedError, WireError
from sottovoce.estimators.fits import Fit
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import Frame, encode
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.mechanisms import SystemRandomness
from sottovoce.transports.base import Change, InProcess

OPERATORS = Path(__file__).parents[2] / "docs" / "operations.md"
TOKEN = new_token()
ROUNDS = 6
MARKS = ("123456.789", "Marker-Jane", "31337")


# ----- Events -----


def test_the_kinds_of_events_and_their_fields_are_those_of_the_documentation() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]*) \|", OPERATORS.read_text(encoding="utf-8"), re.MULTILINE)
    told = {name: tuple(re.findall(r"`(\w+)`", fields)) for name, fields in rows}
    assert {name: tuple(kind.fields.replace("=", "").split()) for name, kind in KINDS.items()}.items() <= told.items()


@pytest.mark.parametrize("value", [np.float64(0.5), np.arange(3.0), {"a": 1}, [1.0], (1.0,), None, b"x"])
def test_an_event_takes_no_array_and_no_object(value: Any) -> None:
    with pytest.raises(LeakError, match="no event has such"):
        Event("expected", ends=value)


def test_a_reader_that_fails_does_not_stop_a_run() -> None:
    watch, heard = Watch("party", "north"), list[str]()
    closed = io.StringIO()
    watch.add(functools.partial(write_event, closed))
    watch.add(lambda _, event: heard.append(event.name))
    closed.close()
    watch.tell("done", plan="")
    watch.tell("done", plan="")
    assert heard == ["started", "done", "done"]


def test_a_defect_of_the_watch_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, north=Policy())
    monkeypatch.setattr("sottovoce.app.view.watched.describe_plan", lambda *_: 1 / 0)
    run.fit()
    for name in ("fit", "north"):
        assert any("(ZeroDivisionError)" in line["text"] for line in run.lines(name))


def test_a_holder_has_times_in_whole_seconds_and_a_coordinator_exact_ones() -> None:
    clock = lambda: 1700000000.789  # noqa: E731
    for role, at in (("party", 1700000000.0), ("dealer", 1700000000.0), ("coordinator", 1700000000.789)):
        seen, _ = Watch(role, "north", clock=clock).seen()
        assert {each["at"] for each in seen["log"]} == {at}
        assert seen["started"] == at


def test_the_time_left_does_not_follow_one_round_in_which_a_party_was_away() -> None:
    state, sizes = State(), {"sent_bytes": 1, "received_bytes": 1}
    round_of = functools.partial(Event, "round", plan="ab", of=100, query="gradient", title="gradients", **sizes)
    for done in range(1, 21):
        state.take(0.0, round_of(done=done, seconds=300.0 if done == 15 else 0.5))
    assert state.seconds_left == pytest.approx(40.0)
    assert state.document()["counts"]["round_seconds"] == pytest.approx(309.5)


# ----- Real runs -----


class Troubled(SystemRandomness):
    """Bits that end with an error whose text has a value of the data."""

    def bytes(self, count: int) -> bytes:
        raise ValueError(f"could not convert string to float: {MARKS[0]!r} of {MARKS[1]}")


class Run:
    """Parties with ledgers and a coordinator in this process, each end watched and logged."""

    def __init__(self, folder: Path, **policies: Policy) -> None:
        rng = np.random.default_rng(3)
        self.logs: dict[str, io.StringIO] = {}
        self.coordinator = self._watch("coordinator", "fit")
        self.watches, ends = dict[str, Watch](), []
        self.parties: dict[str, Party] = {}
        for name, policy in policies.items():
            rows, labels = rng.uniform(-1, 1, (60, 3)), np.array(["no", "yes"] * 30, dtype=object)
            rows[:7], labels[7:9] = float(MARKS[0]), MARKS[1]
            rows[9] = np.nan
            account = Ledger.create(folder / f"{name}.db").open("people", 2.0, 1e-5)
            self.parties[name] = Party(name, rows, labels, account=account, policy=policy)
            self.watches[name] = self._watch("party", name)
            ends.append(WatchedEnd(self.parties[name], self.watches[name], account))
        self.wire = WatchedWire(self.coordinator)
        self.federation = Federation.connect(self.wire.over(InProcess(ends)))

    def _watch(self, role: str, name: str) -> Watch:
        watch, self.logs[name] = Watch(role, name), io.StringIO()
        watch.add(functools.partial(write_event, self.logs[name]))
        return watch

    def fit(self, epsilon: float = 1.0) -> None:
        solver = sv.solvers.Gradient(rounds=ROUNDS)
        model = sv.PrivateLogisticRegression(epsilon=epsilon, entry_bound=1.0, solver=solver, classes=("no", "yes"))
        Fit(model, self.federation, runs=True).run(self.wire.advance)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.logs[name].getvalue().splitlines()]

    def all_texts(self) -> str:
        """Every text that an operator, a log or a monitor gets."""
        watches = (self.coordinator, *self.watches.values())
        shown = [render_page(*watch.seen()) + json.dumps(watch.seen()[0]) for watch in watches]
        return "".join([*shown, *(watch.measured() for watch in watches), *self.texts_of_logs()])

    def texts_of_logs(self) -> Iterator[str]:
        return (log.getvalue() for log in self.logs.values())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, north=Policy(max_epsilon=1.2, tell_budget=True), south=Policy(max_epsilon=1.2))


@pytest.fixture
def forwarded(run: Run) -> Iterator[None]:
    """What loggers say is passed to the watches, as the commands have it."""
    handlers, logger = (
        [LogForwarder(watch) for watch in (run.coordinator, *run.watches.values())],
        logging.getLogger("sottovoce"),
    )
    for handler in handlers:
        logger.addHandler(handler)
    yield
    for handler in handlers:
        logger.removeHandler(handler)


def test_both_ends_see_a_run(run: Run) -> None:
    run.fit()
    seen, plan = run.coordinator.seen()
    assert plan is not None
    assert seen["phase"] == "done"
    assert seen["plan"]["plan"] == plan.digest.hex()
    assert seen["signatures"] == {"north": True, "south": True}
    assert seen["progress"]["done"] == seen["progress"]["of"] == ROUNDS
    assert seen["bytes"]["received"] <= run.federation.transport.communication.uplink_bytes
    [budget] = seen["budgets"]  # south keeps to itself what it has
    assert budget["party"] == "north"
    assert budget["left"] < budget["left_before"] == pytest.approx(2.0)

    there, _ = run.watches["south"].seen()
    [asked] = [each for each in there["answers"] if each["numbers"]]
    release = plan.releases[0]
    assert asked == {
        "asked": "gradients of the loss",
        "left": "a value with noise",
        "numbers": 4,
        "noise": release.std,
        "times": ROUNDS,
        "sent_bytes": asked["sent_bytes"],
        "last_round": ROUNDS - 1,
        "last": asked["last"],
    }
    assert there["signatures"] == {"north": True, "south": True}
    assert there["budgets"][0]["left_before"] == pytest.approx(2.0)
    events = [line["event"] for line in run.lines("south")]
    assert events.count("answer") == sum(each["times"] for each in there["answers"])
    assert "agreed" in events
    assert events[-1] == "done"


def test_no_value_of_the_data_is_in_page_metrics_or_log(run: Run, forwarded: None) -> None:
    run.fit()
    with pytest.raises(RefusedError):
        run.fit(1.5)  # more than a policy allows
    run.parties["north"].randomness, good = Troubled(), run.parties["north"].randomness
    with pytest.raises(WireError):
        run.fit(0.1)
    run.parties["north"].randomness = good
    with pytest.raises(sv.errors.BudgetError):
        run.fit(), run.fit(), run.fit()
    assert isinstance(run.parties["north"].failure, ValueError)
    assert MARKS[0] in str(run.parties["north"].failure)  # the holder can see it
    counts = run.watches["north"].seen()[0]["counts"]
    assert counts["failures"] == 1
    assert counts["refusals"]["refused"] >= 1
    assert counts["refusals"]["budget"] >= 1

    text = run.all_texts()
    assert not [mark for mark in MARKS if mark in text]
    assert "Traceback" not in text
    assert "(ValueError)" in text
    assert "a remark for the holder's eyes" in text  # rows that cannot be used were logged, and how many is not said
    assert "rows cannot be used" not in text
    # A leak that is planted is found: a text of a logger that is trusted, and one in a field.
    logging.getLogger("sottovoce.transports.grpc_wire").warning("peer %s", MARKS[1])
    run.coordinator.tell("refused", end="north", asked="ask", code="refused", why=f"row {MARKS[2]}")
    text = run.all_texts()
    assert [mark for mark in MARKS if mark in text] == [MARKS[1], MARKS[2]]


def test_the_document_has_these_keys_and_no_others(run: Run) -> None:
    run.fit()
    for watch in (run.coordinator, *run.watches.values()):
        seen, _ = watch.seen()
        assert set(seen) == {
            *("role", "end", "version", "started", "ready", "phase", "why", "ends", "plan", "signatures", "progress"),
            *("bytes", "budgets", "answers", "refusals", "log", "counts"),
        }
        json.dumps(seen, allow_nan=False)


# ----- Metrics -----


def test_metrics_are_read_by_the_parser_of_prometheus(run: Run) -> None:
    run.coordinator.tell("expected", ends=("north", 'so"uth\\'))
    run.coordinator.changed(Change("connected", "north", "north has connected"))
    run.coordinator.changed(Change("lost", "north", "north was lost"))
    run.coordinator.changed(Change("back", "north", "north is back"))
    run.fit()
    found = {}
    for family in text_string_to_metric_families(run.coordinator.measured()):
        assert family.documentation
        for sample in family.samples:
            found[sample.name, *sample.labels.values()] = sample.value
    assert found["sottovoce_rounds_total",] == ROUNDS
    assert found["sottovoce_connections_total", "north"] == 2
    assert found["sottovoce_losses_total", "north"] == 1
    assert found["sottovoce_connected", 'so"uth\\'] == 0
    assert found["sottovoce_round_seconds_count",] == found["sottovoce_round_seconds_bucket", "+Inf"] == ROUNDS
    assert found["sottovoce_epsilon_left", "north"] < found["sottovoce_epsilon_budget", "north"] == 2.0
    assert found["sottovoce_frame_bytes_total", "received"] > 0
    told = set(re.findall(r"`(sottovoce_\w+)`", OPERATORS.read_text(encoding="utf-8")))
    both = run.coordinator.measured() + run.watches["north"].measured()
    assert told == set(re.findall(r"^# TYPE (\w+)", both, re.MULTILINE))


# ----- The server -----


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


@pytest.fixture
def port(run: Run) -> Iterator[int]:
    with serve_view(run.coordinator, 0, TOKEN) as address:
        yield int(re.fullmatch(rf"http://127\.0\.0\.1:(\d+)/{TOKEN}/", address)[1])


@pytest.mark.parametrize("name", ["", "parts", "state.json", "metrics"])
def test_only_who_has_the_token_sees_anything(port: int, name: str) -> None:
    assert ask(port, f"/{TOKEN}/{name}")[0] == 200
    assert ask(port, f"/{name}", Authorization=f"Bearer {TOKEN}")[0] == 200
    for path in (f"/{name}", f"/{TOKEN[:-1]}/{name}", f"/{TOKEN}x/{name}", f"//{name}", f"/?token={TOKEN}"):
        code, text, _ = ask(port, path)
        assert (code, text) == (403, "forbidden: the address has the token\n")
    assert ask(port, f"/{name}", Authorization="Bearer x")[0] == 403
    assert ask(port, f"/{name}", Authorization="Bearer ")[0] == 403


def test_other_names_methods_and_paths_are_refused(port: int) -> None:
    assert ask(port, f"/{TOKEN}/", Host=f"evil.example:{port}")[0] == 403  # a name that was made to point here
    assert ask(port, "/healthz", Host="evil.example")[0] == 403
    assert ask(port, f"/{TOKEN}/", Host=f"127.0.0.1.evil.example:{port}")[0] == 403
    assert ask(port, f"/{TOKEN}/", Host=f"localhost:{port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        code, _, headers = ask(port, f"/{TOKEN}/", method)
        assert (code, headers["Allow"]) == (405, "GET")
    assert ask(port, f"/{TOKEN}/nothing")[0] == 404
    assert ask(port, f"/{TOKEN}")[0] == 404
    _, _, headers = ask(port, f"/{TOKEN}/state.json")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Access-Control-Allow-Origin"] is None
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_health_and_readiness_say_that_and_nothing_more(run: Run, port: int) -> None:
    assert ask(port, "/healthz")[:2] == (200, "ok\n")
    run.coordinator.tell("expected", ends=("north",))
    assert ask(port, "/readyz")[:2] == (503, "not ready\n")
    run.coordinator.changed(Change("connected", "north", "north has connected"))
    assert ask(port, "/readyz")[:2] == (200, "ok\n")
    run.coordinator.changed(Change("lost", "north", "north was lost"))
    assert ask(port, "/readyz")[0] == 503


@pytest.fixture
def slow(port: int) -> Iterator[list[socket.socket]]:
    """Clients that begin a request and do not end it: more than there are places."""
    with contextlib.ExitStack() as sockets:
        clients = [sockets.enter_context(socket.create_connection((HOST, port), timeout=60)) for _ in range(64)]
        for client in clients:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        yield clients


def test_slow_clients_keep_nobody_from_the_page_and_its_health(port: int, slow: list[socket.socket]) -> None:
    assert len(slow) > server._MOST
    for path in ("/healthz", f"/{TOKEN}/", f"/{TOKEN}/metrics", "/healthz"):
        assert ask(port, path)[0] == 200


@pytest.fixture
def waiting_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the server of before, at which a place is taken until its owner gives it up."""

    def process_request(self: Any, request: Any, client_address: Any) -> None:
        if len(self._open) >= server._MOST:
            self.shutdown_request(request)
            return
        self._open[request] = math.inf
        ThreadingHTTPServer.process_request(self, request, client_address)

    monkeypatch.setattr(server.ViewServer, "process_request", process_request)


def test_a_server_at_which_slow_clients_stay_is_found_out(
    waiting_room: None, port: int, slow: list[socket.socket]
) -> None:
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(port, "/healthz")


def test_a_request_has_one_deadline_for_all_its_bytes(
    monkeypatch: pytest.MonkeyPatch, run: Run, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(server, "_PATIENCE", 0.5)
    port = request.getfixturevalue("port")
    with socket.create_connection((HOST, port), timeout=0.1) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
        for _ in range(600):  # a line each tenth of a second, for a minute
            try:
                client.sendall(b"X-Slow: 1\r\n")
                if client.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("a request that never ends was never ended")


def test_a_port_that_is_taken_is_said(run: Run, port: int) -> None:
    with (
        pytest.raises(InputError, match=rf"view.port={port} cannot be listened on"),
        serve_view(run.coordinator, port, TOKEN),
    ):
        pass


def test_a_refusal_that_quotes_half_a_letter_is_shown_too() -> None:
    """Else who asks could have a refusal that nobody sees."""
    rows, watch, lines = np.zeros((2, 1)), Watch("party", "north"), io.StringIO()
    watch.add(functools.partial(write_event, lines))
    party = Party("north", rows, rows[:, 0], ids=["1", "2"], policy=Policy(align=("south",)))
    InProcess([party])
    asked = Frame("align", 1, query="invite", text='["run", ["north", "\\ud800"], "coordinator", "order"]')
    WatchedEnd(party, watch).handle(encode(asked))
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert (last["event"], last["code"]) == ("refused", "refused")
    assert "does not align with \\ud800" in render_page(*watch.seen())


def test_a_token_in_a_file_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "view.token"
    token = read_token(path)
    assert len(token) == 32
    assert read_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    with pytest.raises(InputError, match="has no token of 16 or more"):
        read_token(path)
    path.write_bytes(b"\xff" * 32)
    with pytest.raises(InputError, match="has no token of 16 or more"):
        read_token(path)
    path.write_text(token)
    path.chmod(0o644)
    with pytest.raises(InputError, match="everybody may read"):
        read_token(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_token(tmp_path)


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.found += [str(value)] if name in ("src", "href", "action", "srcset", "data", "poster") else []
            self.inline += [name] if name == "style" or name.startswith("on") else []


def test_the_page_loads_nothing_from_elsewhere_and_its_policy_names_what_it_has(run: Run, port: int) -> None:
    run.fit()
    hostile = "<script>alert(1)</script><img src=https://evil.example/x>"
    run.coordinator.tell("refused", end=hostile, asked=hostile, code="refused", why=hostile)
    _, text, headers = ask(port, f"/{TOKEN}/")
    parser = _Addresses()
    parser.feed(text)
    assert sorted(parser.found) == ["data:,", "metrics", "state.json"]
    assert parser.inline == []
    assert text.count("<script>") == 1
    assert not re.search(r"url\(|@import|//\w+\.\w", text.replace("&lt;", "").split("<main>")[0])
    for tag in ("style", "script"):
        inside = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in headers["Content-Security-Policy"]
    for wanted in (
        "gradients of the loss",
        "whatever is concluded about a person",
        "Charged and signed by",
        "<progress",
    ):
        assert wanted in text


# ----- A real browser -----


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")
def test_a_browser_shows_a_run_while_it_goes_on(run: Run) -> None:
    state = "document.getElementById('state').textContent"
    with browser() as tab:
        with serve_view(run.coordinator, 0, TOKEN) as address:
            run.coordinator.tell("expected", ends=("north", "south"))
            tab.open(address, width=360, height=740)
            tab.until(f"{state} === 'waiting for north, south'")
            for party in ("north", "south"):
                run.coordinator.changed(Change("connected", party, f"{party} has connected"))
            run.coordinator.changed(Change("lost", "south", "south was lost; missing: south"))
            tab.until(f"{state} === 'south not connected'")
            run.coordinator.changed(Change("back", "south", "south is back"))
            tab.until("document.getElementById('ends').textContent.includes('back after a loss')")
            run.fit()
            run.coordinator.tell("ended", outcome="done")
        tab.until(f"{state} === 'done'")
        assert tab.value("document.documentElement.scrollWidth") <= 360
        assert f"{ROUNDS} of {ROUNDS}" in tab.value("document.getElementById('top').textContent")
        assert tab.complaints == []
        assert {each.partition("?")[0] for each in tab.asked} <= {address, f"{address}parts", "data:,", "about:blank"}
        tab.until("document.getElementById('lost').textContent.startsWith('No answer since')")


@pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")
def test_a_page_that_nobody_looks_at_costs_no_time_at_the_end(run: Run) -> None:
    begin = time.monotonic()
    with serve_view(run.coordinator, 0, TOKEN):
        pass
    assert time.monotonic() - begin < 1.0


def test_a_free_port_is_never_that_of_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts later finds it free: a page that is opened before would be in its place."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        wanted = found.getsockname()[1]
    made, ports = server.ViewServer, [wanted]
    monkeypatch.setattr(server, "ViewServer", lambda port, *more: made(ports.pop() if ports else port, *more))
    with server.serve_view(Watch("party", "north", meets_at=f"localhost:{wanted}"), 0, "token") as address:
        assert f":{wanted}/" not in address
        with socket.create_server(("127.0.0.1", wanted)):
            pass
    ports.append(wanted)  # planted: a page that does not know where the parties meet
    with server.serve_view(Watch("party", "north"), 0, "token") as address:
        assert f":{wanted}/" in address
