"""Programs in processes of their own, forked from one that has imported the library, which takes over a second."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ("sottovoce.federation.federation", "sottovoce.transports.grpc_party")
_CONTEXT.set_forkserver_preload(list(_PRELOADED))


def preload(module: Path) -> None:
    """Have programs forked from a process that has imported this file too; one that runs already begins anew."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    _CONTEXT.set_forkserver_preload([*_PRELOADED, module.stem])
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(module.parent), known]))  # it is told no other way
    try:
        forkserver.ensure_running()  # type: ignore[attr-defined]
    finally:
        os.environ.pop("PYTHONPATH") if known is None else os.environ.update(PYTHONPATH=known)


def _run(
    arguments: list[str],
    environment: dict[str, str],
    folder: Path,
    output: Connection | Path | None,
    before: tuple[Any, ...] = (),
) -> None:
    """Be the program: its arguments, environment and folder, and its output where that is read."""
    if before:
        before[0](*before[1:])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if output is not None:
        opened = output.open("ab") if isinstance(output, Path) else output
        os.dup2(opened.fileno(), 1)
        os.dup2(opened.fileno(), 2)
        opened.close()
    sys.argv = arguments[1:] if arguments[0] == "-m" else arguments
    if arguments[0] == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


class Program:
    """`python ARGUMENTS` where these are a file, or -m and a module; it says of it what `subprocess.Popen` does.

    Both its outputs go to one pipe, `stdout`, if they are ``read``, or to the file `log`. `before`: a function of a
    module, and its arguments, that the process calls first.
    """

    def __init__(
        self,
        *arguments: object,
        read: bool = False,
        folder: Path | None = None,
        log: Path | None = None,
        before: tuple[Any, ...] = (),
    ) -> None:
        reader, writer = _CONTEXT.Pipe(duplex=False) if read else (None, None)
        told = (
            [str(argument) for argument in arguments],
            dict(os.environ),
            Path.cwd() if folder is None else folder,
            log or writer,
            before,
        )
        self._process: Any = _CONTEXT.Process(target=_run, args=told)
        self._process.start()
        self.pid: int = self._process.pid
        self.stdout: Any = None
        if reader is not None and writer is not None:
            writer.close()
            self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
            reader.close()

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError(f"{self._process} still runs after {timeout} s")
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All that is left of its output, once it has ended; a pipe has room for what our programs say."""
        self.wait(timeout)
        if self.stdout is None or self.stdout.closed:
            return "", None
        with self.stdout:
            return self.stdout.read(), None
