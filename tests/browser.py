"""A real browser, driven by its debugging protocol over two pipes."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab. `asked` has the addresses that it loaded, `complaints` what its console says."""

    def __init__(self, program: str, folder: Path) -> None:
        hears, self._to = os.pipe()
        self._from, says = os.pipe()

        def connect() -> None:  # it reads from 3 and writes to 4
            os.dup2(hears, 63)
            os.dup2(says, 64)
            os.dup2(63, 3)
            os.dup2(64, 4)

        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
        )
        os.close(hears)
        os.close(says)
        os.set_blocking(self._from, False)
        self._numbers, self._rest, self._answers = itertools.count(1), b"", dict[int, Any]()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the protocol, to the tab."""
        return self._send(method, self._session, **parameters)

    def open(
        self, address: str, *, width: int = 1200, height: int = 900, scale: float = 1.0, dark: bool = False
    ) -> None:
        """Show a page in a window of this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What an expression gives in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str, patience: float = 20.0) -> None:
        """Wait until an expression is true in the page."""
        deadline = time.monotonic() + patience
        while not self.value(expression):
            assert time.monotonic() < deadline, f"{expression} is still not so: {self.value('document.body.innerText')}"
            time.sleep(0.05)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """The page as PNG, down to its end or as the window shows it."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def printed(self, path: Path) -> None:
        """The page as PDF."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def close(self) -> None:
        """End it."""
        os.close(self._to)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        number = next(self._numbers)
        said = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(said).encode() + b"\0")
        deadline = time.monotonic() + 60
        while number not in self._answers:
            assert time.monotonic() < deadline, f"the browser did not answer {method}"
            self._hear()
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        return answer["result"]

    def _hear(self) -> None:
        try:
            heard = os.read(self._from, 1 << 16)
        except BlockingIOError:
            time.sleep(0.005)
            return
        assert heard, "the browser has ended"
        *whole, self._rest = (self._rest + heard).split(b"\0")
        for each in map(json.loads, whole):
            if "id" in each:
                self._answers[each["id"]] = each
            elif each["method"] == "Network.requestWillBeSent":
                self.asked.append(each["params"]["request"]["url"])
            elif each["method"] == "Log.entryAdded":
                self.complaints.append(each["params"]["entry"]["text"])
            elif each["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(each["params"]))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    assert PROGRAM is not None, "there is no chromium on this machine"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Browser(PROGRAM, Path(folder))
        try:
            yield made
        finally:
            made.close()
