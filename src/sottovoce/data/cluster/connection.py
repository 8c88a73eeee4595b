"""A Dask cluster: who is there, what is sent to whom, and for how long an answer is waited for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from sottovoce import __version__
from sottovoce.errors import InputError, SottovoceError, WireError

TIMEOUT: Final = "10 minutes"  # for an answer, or for a source to be read: Dask's setting sottovoce.timeout
NOBODY: Final = "1 minute"  # for a worker to be there at all: sottovoce.no-workers-timeout
TICK: Final = 1.0  # seconds between looks at who is there
AWAKE: Final = 30.0  # seconds after which a task tells the scheduler that it is not idle

_log = logging.getLogger("sottovoce.holder")


def distributed() -> Any:
    """Dask's package, or an error that says what is missing."""
    try:
        import distributed as found
    except ImportError:
        raise InputError('a cluster needs Dask: pip install "sottovoce[cluster]"') from None
    return found


def seconds(name: str, usual: str) -> float:
    """A time limit of Dask's own settings."""
    import dask
    from dask.utils import parse_timedelta

    return float(parse_timedelta(dask.config.get(f"sottovoce.{name}", usual)))


class Cluster:
    """A scheduler and its workers, as a client of the holder's sees them.

    Guarantee: no call waits for ever; a limit that is reached names itself. A worker that dies is no error: what it had
    is read again elsewhere, by the scheduler, and asked again.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._spoken = time.monotonic()
        tell_in_the_clear(self.address)
        for address, found in self.send(dict.fromkeys(self.workers()), version).items():
            if found not in (None, __version__):  # None: it is gone
                raise InputError(
                    f"cluster: the worker {address} has sottovoce {found}, and this process {__version__}; install the "
                    "same at all of them."
                )

    @classmethod
    def of(cls, cluster: Any) -> Cluster:
        """By the address of a scheduler, a client, or (None) the client that this process has."""
        package = distributed()
        if isinstance(cluster, Cluster):
            return cluster
        if cluster is None:
            try:
                return cls(package.get_client())
            except ValueError:
                raise InputError(
                    'cluster=None: this process has no Dask client; give one, or the address "tls://..." of one.'
                ) from None
        if isinstance(cluster, str):
            return _connect(cluster)
        if not isinstance(cluster, package.Client) or cluster.asynchronous:
            raise InputError(
                f"cluster={cluster!r} must be the address of a scheduler or a distributed.Client that is not "
                "asynchronous."
            )
        return cls(cluster)

    @property
    def address(self) -> str:
        return str(self.client.scheduler.address)

    def compute(self, tasks: Sequence[Any]) -> list[Any]:
        """Futures of Dask's delayed tasks; the scheduler knows how to compute them again."""
        self._spoken = time.monotonic()
        return list(self.client.compute(list(tasks)))

    def results(self, tasks: Sequence[Any]) -> list[Any]:
        futures = self.compute(tasks)
        self.where(futures)
        limit = seconds("timeout", TIMEOUT)
        try:
            return list(self.client.submit(list, futures, pure=False).result(timeout=limit))
        except TimeoutError:
            self._late(limit)
        except Exception as error:
            self._fail(error)

    def where(self, futures: Sequence[Any]) -> list[str]:
        """The worker that has each of the results, once all of them are there."""
        clock, pause = Clock(self), 0.01
        while True:
            told = self._soon(self.client.who_has, futures)
            places = [min(told.get(future.key) or [""]) for future in futures]
            if all(places):
                return places
            for future in futures:
                if future.status == "error":
                    self._fail(future.exception())
                if future.status == "cancelled":
                    self._unreachable(None)
            clock.check(len(places) - places.count(""))
            time.sleep(pause)
            pause = min(2 * pause, TICK)

    def send(self, messages: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
        """What a function at each worker makes of its message; None of a worker that is gone."""
        if time.monotonic() - self._spoken > AWAKE:  # messages are no tasks, without which a scheduler may stop
            self._spoken = time.monotonic()
            self.client.submit(int, pure=False)
        limit = seconds("timeout", TIMEOUT)
        try:
            found: dict[str, Any] = self.client.sync(self._sent, messages, function, limit, callback_timeout=2 * limit)
        except (TimeoutError, OSError) as error:
            self._unreachable(error)
        return found

    async def _sent(self, messages: Mapping[str, Any], function: Any, limit: float) -> dict[str, Any]:
        asked = {
            address: asyncio.ensure_future(self._one(address, message, function))
            for address, message in messages.items()
        }
        waiting, started = set(asked.values()), time.monotonic()
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, timeout=min(TICK, limit))
                if waiting and time.monotonic() - started > limit:
                    self._late(limit)
                there = await self.client.nthreads() if waiting else {}
                for address, task in asked.items():
                    if task in waiting and address not in there:
                        task.cancel()
        finally:
            for task in waiting:
                task.cancel()
        return {address: None if task.cancelled() else task.result() for address, task in asked.items()}

    async def _one(self, address: str, message: Any, function: Any) -> Any:
        found = await self.client.run(function, message, workers=[address], on_error="return")
        reply = found.get(address)
        if isinstance(reply, OSError | asyncio.TimeoutError):
            return None
        if isinstance(reply, Exception):
            self._fail(reply)
        return reply

    def workers(self) -> list[str]:
        return list(self._soon(self.client.nthreads))

    def _soon(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the scheduler answers, or an error if it does not or has lost the rows."""

        async def asked() -> Any:
            return await function(*arguments)

        try:
            return self.client.sync(asked, callback_timeout=seconds("timeout", TIMEOUT))
        except (TimeoutError, OSError, CancelledError) as error:  # cancelled: by another scheduler in its place
            self._unreachable(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """Raise what is of this package as it is, and of anything else the kind alone: its text may have data."""
        if isinstance(error, SottovoceError):
            raise error
        if isinstance(error, CancelledError):
            self._unreachable(error)
        raise InputError(
            f"cluster: work at the workers of {self.address} failed ({type(error).__name__}); the worker's log has the "
            "reason. A source must be readable at every worker, and every worker have the packages that this "
            "process has."
        ) from None

    def _late(self, limit: float) -> NoReturn:
        raise WireError(
            f"the cluster at {self.address} did not answer in {limit:g} s, the limit (Dask's setting "
            "sottovoce.timeout). What was charged stays charged."
        )

    def _unreachable(self, error: BaseException | None) -> NoReturn:
        _log.error("the scheduler at %s: %s", self.address, "closed" if error is None else type(error).__name__)
        raise WireError(
            f"the scheduler of the cluster at {self.address} does not answer, or is another one than it was. What was "
            "charged stays charged."
        ) from None


class Clock:
    """Time that passes without an answer, and without anybody who could give one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._done = cluster, -1
        self._since = self._looked = self._met = time.monotonic()

    def check(self, done: int) -> None:
        """Raise where a limit is reached; `done` is how much there is."""
        now = time.monotonic()
        if done != self._done:
            self._done, self._since = done, now
        if now - self._looked < TICK:
            return
        self._looked = now
        if self._cluster.workers():
            self._met = now
        nobody, limit = seconds("no-workers-timeout", NOBODY), seconds("timeout", TIMEOUT)
        if now - self._met > nobody:
            raise WireError(
                f"the cluster at {self._cluster.address} had no worker for {nobody:g} s, the limit (Dask's setting "
                "sottovoce.no-workers-timeout). What was charged stays charged; start workers and fit again."
            )
        if now - self._since > limit:
            self._cluster._late(limit)


async def version(_: Any) -> str:
    """That of this package, at a worker."""
    return __version__


def tell_in_the_clear(address: str) -> None:
    """Tell the holder of a connection to another machine that anybody between can read, and alter."""
    parsed = urlsplit(address)
    if parsed.scheme in ("tcp", "ws") and parsed.hostname not in ("127.0.0.1", "localhost", "::1"):
        _log.warning(
            "the cluster at %s is not reached by TLS: who can listen on the network can read the rows, and who can "
            "reach the scheduler can run code here; use tls:// with certificates, or a network that is only yours",
            address,
        )


_CONNECTED: Final[dict[str, Cluster]] = {}  # one for each address, as long as this process lives


def _connect(address: str) -> Cluster:
    known = _CONNECTED.get(address)
    if known is not None and known.client.status == "running":
        return known
    if "://" not in address:
        raise InputError(f'cluster={address!r} must be the address of a scheduler, such as "tls://scheduler:8786".')
    try:
        client = distributed().Client(address, set_as_default=False)
    except (TimeoutError, OSError, ValueError, TypeError) as error:
        raise WireError(
            f"cluster={address!r}: no scheduler answers there ({type(error).__name__}); see that it runs and, with "
            "tls://, that Dask's settings name the certificates (distributed.comm.tls)."
        ) from None
    made = _CONNECTED[address] = Cluster(client)
    return made
