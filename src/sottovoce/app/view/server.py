"""The page for operators over HTTP, for this machine alone: 127.0.0.1, a token in the address, GET and nothing else.

It is rendered here, for a browser with scripts or without; a script only asks for it again. Everything that others
wrote is escaped. Style and script are in the page, which loads nothing from elsewhere; the policy in the header names
them by their hashes.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sottovoce import algorithms, systems
from sottovoce.app.texts import read, readable_size, render
from sottovoce.app.view.events import METRICS_TYPE
from sottovoce.errors import InputError
from sottovoce.estimators import privacy_report
from sottovoce.plan.plan import Plan

if TYPE_CHECKING:
    from sottovoce.app.view.watched import Watch

Document = Mapping[str, Any]

HOST: Final = "127.0.0.1"
_HOSTS: Final = (HOST, "localhost")
_MOST: Final = 32  # connections at a time; for a new one the oldest has to go
_PATIENCE: Final = 10.0  # seconds for a request, from its connection to the end of its answer
_ATTENTION: Final = 3.0  # seconds after which a page counts as closed
_LINGERING: Final = 1.5  # seconds for an open page to ask once more
_TEXTS: Final = {403: "forbidden: the address has the token", 404: "not found", 405: "GET is all that is answered"}
_STYLE: Final = read("style.css") + read("view.css")
_SCRIPT: Final = read("view.js")
_STANDINGS: Final[Mapping[str, str]] = {
    "expected": "not yet connected",
    "connected": "connected",
    "back": "connected, back after a loss",
    "lost": "LOST",
    "left": "LEFT",
    "absent": "no connection",
    "done": "done",
}


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def render_page(document: Document, plan: Plan | None, template: str = "view.html") -> str:
    """The whole page, or by "view-parts.html" what changes of it, each part an element with an id.

    A plan that the document does not name is not shown.
    """
    state, mood = _describe_state(document)
    shown = plan if plan and document["plan"] and plan.digest.hex() == document["plan"]["plan"] else None
    seconds, left = document["progress"]["seconds_left"], ""
    if seconds >= 0.0 and document["phase"] not in ("done", "failed", "stopped"):
        left = f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
        left = f"{max(round(seconds), 1)} s" if seconds < 90 else left
    return render(
        template,
        seen=document,
        state=state,
        mood=mood,
        left=left,
        standings=_STANDINGS,
        plan=shown,
        **({} if shown is None else _describe_plan(shown)),
        size=readable_size,
        now=time.time(),
        utc=lambda at: datetime.fromtimestamp(at, UTC),
        style=_STYLE,
        script=_SCRIPT,
    )


@functools.lru_cache(maxsize=4)
def _describe_plan(plan: Plan) -> dict[str, Any]:
    """What leaves by a plan and what is promised: all of it follows from the plan."""
    report = privacy_report(plan, seeded=False)
    views = report.views(several=plan.split.several)
    return {
        "form": algorithms.of(plan),
        "titles": algorithms.titles(plan),
        "promises": [view.sentence() for view in views],
        "assumptions": report.assumptions,
    }


def _describe_state(document: Document) -> tuple[str, str]:
    """The state in a few words, and whether that is good, bad or neither."""
    away = [end["name"] for end in document["ends"] if end["standing"] in ("lost", "left", "absent")]
    phase, progress = document["phase"], document["progress"]
    if document["role"] != "coordinator" and phase in ("waiting", "done") and not document["ready"]:
        return "waiting for the coordinator", ""
    if phase in ("failed", "stopped", "done"):
        return f"{phase}", {"failed": "bad", "done": "good"}.get(phase, "")
    if away:
        return f"{', '.join(away)} not connected", "bad"
    if missing := [end["name"] for end in document["ends"] if end["standing"] == "expected"]:
        return f"waiting for {', '.join(missing)}", ""
    if phase == "running":
        of = f" of {progress['of']:,}" if progress["of"] else ""
        what = "round" if document["role"] == "coordinator" else "answer"
        return f"{what} {progress['done']:,}{of}", "good"
    return ("a plan is agreed to" if document["signatures"] else phase), ""


class ViewServer(ThreadingHTTPServer):
    """Serves the page; a connection that is too slow, or one too many, is ended."""

    daemon_threads = True
    allow_reuse_address = systems.POSIX  # elsewhere it would let another process take the port

    def __init__(self, port: int, watch: Watch, token: str) -> None:
        self.watch, self.token = watch, token
        self.looked = -_ATTENTION  # when a page was last shown anew
        self._open: dict[Any, float] = {}  # by connection, the oldest first: when it has to be over
        self._one_at_a_time = threading.Lock()
        super().__init__((HOST, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Whoever is slow gives way: a new connection is always served."""
        with self._one_at_a_time:
            for oldest in list(self._open)[: len(self._open) + 1 - _MOST]:
                self._end(oldest)
            self._open[request] = time.monotonic() + _PATIENCE
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._one_at_a_time:
                self._open.pop(request, None)

    def service_actions(self) -> None:
        """Called between requests, several times a second: those that take too long are ended."""
        with self._one_at_a_time:
            for request, until in list(self._open.items()):
                if until < time.monotonic():
                    self._end(request)

    def _end(self, request: Any) -> None:
        """Its thread, which reads or writes, finds that nobody is there."""
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    server_version = "sottovoce"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer from what the watch has seen."""
        watch, path = self.server.watch, self.path.partition("?")[0]
        if self.headers.get("Host", "").rpartition(":")[0] not in _HOSTS and self.headers.get("Host") not in _HOSTS:
            self.send_error(403)  # a name that somebody made point here
        elif path == "/healthz":
            self._answer(200, "text/plain", "ok\n")
        elif path == "/readyz":
            ready = watch.ready
            self._answer(200 if ready else 503, "text/plain", "ok\n" if ready else "not ready\n")
        else:
            given, _, name = path[1:].partition("/")
            own, borne = self.server.token.encode(), self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), own):
                given, name = "", path[1:]
                if not hmac.compare_digest(borne.encode(), own):
                    self.send_error(403)
                    return
            self._show(watch, name, slash=not given or path.endswith("/"))

    def _show(self, watch: Watch, name: str, *, slash: bool) -> None:
        """One of the four things that there are to see; the page has relative addresses, so it ends with a slash."""
        if name == "" and slash:
            self._answer(200, "text/html", render_page(*watch.seen()))
        elif name == "parts":
            self.server.looked = time.monotonic()
            self._answer(200, "text/html", render_page(*watch.seen(), "view-parts.html"))
        elif name == "state.json":
            self._answer(200, "application/json", json.dumps(watch.seen()[0]) + "\n")
        elif name == "metrics":
            self._answer(200, METRICS_TYPE, watch.measured())
        else:
            self.send_error(404)

    def send_error(self, code: int, *_: Any) -> None:
        """A fixed text, also of what `http.server` refuses by itself."""
        code = 405 if code == 501 else code
        self._answer(code, "text/plain", _TEXTS.get(code, "bad request") + "\n")

    def _answer(self, code: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(code)
        if code == 405:
            self.send_header("Allow", "GET")
        self.send_header("Content-Type", kind if "charset" in kind else f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing: the address has the token."""


@contextlib.contextmanager
def serve_view(watch: Watch, port: int, token: str) -> Iterator[str]:
    """Serve the page at a port, 0 for a free one; yields its address.

    A free one is never that of the coordinator, who may not yet listen at it.
    """
    try:
        server = ViewServer(port, watch, token)
        if port == 0 and watch.meets_at.endswith(f":{server.server_address[1]}"):
            taken, server = server, ViewServer(port, watch, token)  # another one, as long as that is taken
            taken.server_close()
    except (OSError, OverflowError):
        raise InputError(
            f"view.port={port} cannot be listened on at {HOST}; give a free one, 0 for any, or --no-view."
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="sottovoce-view", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/{token}/"
    finally:
        looked, now = server.looked, time.monotonic()  # a page that is open, if there is one, sees how it ended
        while looked > now - _ATTENTION and server.looked == looked and time.monotonic() < now + _LINGERING:
            time.sleep(0.02)
        server.shutdown()
        server.server_close()
        thread.join(1.0)


def read_token(path: Path) -> str:
    """The token that a file keeps for the next start; if there is no file, a new token in one for its owner alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        try:
            if systems.others_may_read(path, group=False):  # a group may be the monitor's
                raise InputError(
                    f"view.token: everybody may read {path}, and then the page; chmod 640 it, or remove it."
                ) from None
            token = path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            raise InputError(f"view.token: {path} cannot be read ({error.strerror}); give another path.") from None
        if len(token) < 16 or not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
            raise InputError(
                f"view.token: {path} has no token of 16 or more letters, digits, - and _; remove it, and one is made."
            ) from None
        return token
    except OSError as error:
        raise InputError(f"view.token: {path} cannot be written ({error.strerror}); give another path.") from None
    token = new_token()
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(token + "\n")
    return token


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(24)
