"""What a coordinator needs to go on after it was stopped: plans, answers and counts of one fit, in a file of its own.

    entry   length of the body | SHA-256 of (hash before, body) | check of these two | body

A body is a line of JSON and the bytes of its arrays. The file is only appended to, and is synced before an answer is
used. Whoever reads it has locked it before, and keeps it until the fit is over. It holds public texts and released
values. Where the coordinator tops up secure sums, or deals for secure columns, its keys of the run are in another
file, `NAME.run.keys`, which is on disk before the plan is and is deleted when the run is over. Both are readable by
their owner alone.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import socket
import stat
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce import systems
from sottovoce.errors import InputError
from sottovoce.files import read_plain, write_durably
from sottovoce.formats import JOURNAL
from sottovoce.plan.plan import Plan

_MAGIC: Final = b"sottovoce run %d\n" % JOURNAL.number
_OTHER: Final = re.compile(rb"sottovoce run ([0-9]{1,9})\n")
_HEAD: Final = struct.Struct("<Q32s8s")
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class JournalEntry:
    """One entry: its kind, the digest of its plan if it has one, what it says, and its arrays."""

    kind: str
    plan: str
    said: Mapping[str, Any]
    arrays: Arrays


@dataclass
class Stored:
    """What is stored of one plan: whether its parties opened it, who left, and the answers that were not yet used."""

    made: Mapping[str, Any] = field(default_factory=dict)
    opened: Mapping[str, Any] | None = None
    left: Mapping[str, Any] | None = None
    ended: Mapping[str, Any] | None = None
    rounds: deque[JournalEntry] = field(default_factory=deque)


@dataclass(eq=False, repr=False)
class _Content:
    """What is known of one fit: of a file that is there, what it says."""

    about: dict[str, Any]  # what the first entry says
    outputs: dict[str, str] = field(default_factory=dict)
    solved: bool = False  # of the last plan: all is answered
    ended: bool = False  # of the last plan: every party was told that it is over
    answered: int = 0
    begun: bool = False  # whether the file has a beginning: something may have been charged
    plans: list[Plan] = field(default_factory=list)
    _writes: bool = False  # whether this process has begun, or gone on
    _end: int = 0  # of what is whole in the file
    _hash: bytes = b""
    _pending: list[bytes] = field(default_factory=list)  # plans that were made, before the file is written to
    _keys: dict[str, Any] = field(default_factory=dict)  # by plan
    _plans: deque[Plan] = field(default_factory=deque)
    _runs: dict[str, Stored] = field(default_factory=dict)


class Journal(_Content):
    """The state of one fit in the file `path`; without a path nothing is kept.

    Guarantee: from here to `close` no other process has the file, so what was read is what there is. What `note` was
    given with `sync` is on disk when it returns. A last entry that was torn by a crash is dropped; any other damage is
    an `InputError`. Edges: the lock of a process that died is gone with it. Until a fit is about to be charged the file
    names its process and no more, and `close` removes it. With `restart` what the file has is given up.
    """

    def __init__(
        self, path: Path | None = None, about: Mapping[str, Any] | None = None, *, restart: bool = False
    ) -> None:
        super().__init__(dict(about or {}))
        self.path = path
        self._file: int | None = None
        self.given_up: tuple[Plan, ...] = ()  # by `restart`: plans that may be charged
        if path is not None:
            self._have(path)
            try:
                self._read(about or {}, restart=restart)
            except BaseException:
                self._let_go()
                raise

    def next_plan(self, made: Plan) -> Plan | None:
        """The plan that an interrupted run had in this place, if any; it asks the same as the one `made` now."""
        if not self._plans:
            return None
        known = self._plans.popleft()
        if _meaning(known) != _meaning(made):
            raise self.unusable(
                "the plan that this fit makes is not the one that it has; the data's public facts, the "
                "arguments or the version of sottovoce changed"
            )
        return known

    def keep_keys(self, plan: Plan, keys: Mapping[str, Any]) -> None:
        """Keep the coordinator's keys of a plan until the fit has ended: on disk before an entry that needs them."""
        if self.path is None or self._keys.get(plan.digest.hex()) == keys:
            return
        self._keys[plan.digest.hex()] = dict(keys)
        if self._writes:
            try:
                self._write_keys()
            except OSError as error:
                raise self._stops(error) from None

    def keys_of(self, plan: Plan, *needed: str) -> Mapping[str, Any]:
        """These keys of a plan that is stored; without them its run does not go on."""
        known: Mapping[str, Any] = self._keys.get(plan.digest.hex(), {})
        if not set(needed) <= set(known):
            raise self.unusable(
                f"{self._key_path}, the coordinator's keys of that run, is lost or older, and with new keys a sum that "
                "was opened before would get a second noise"
            )
        return known

    def _write_keys(self) -> None:
        if self._keys:
            write_durably(self._key_path, json.dumps(self._keys).encode(), mode=0o600)

    def _delete_keys(self) -> None:
        """Also what a killed process was writing."""
        self._keys = {}
        path = self._key_path
        for each in path.parent.glob(f"{glob.escape(path.name)}*"):
            with contextlib.suppress(OSError):
                each.unlink()

    @property
    def _key_path(self) -> Path:
        return Path(f"{self.path}.keys")

    def add_plan(self, plan: Plan, **said: Any) -> None:
        """Take in a new plan: on disk with the next entry that is synced."""
        self.plans.append(plan)
        self._append(_pack_entry("plan", plan.digest.hex(), {"text": plan.to_json(), **said}, {}), sync=False)

    def of(self, plan: Plan) -> Stored:
        return self._runs.setdefault(plan.digest.hex(), Stored())

    def charged(self, plan: Plan) -> bool:
        """Whether a plan of the file may be charged: it was opened, asked for, or is the last that was made."""
        run = self.of(plan)
        return run.opened is not None or bool(run.rounds) or plan is self.plans[-1]

    @property
    def gone(self) -> set[str]:
        """Who left secure sums, and is not asked any more."""
        return {name for run in self._runs.values() if run.left is not None for name in run.left["left"]}

    def begin(self) -> None:
        """All that is known so far is durable: the next thing that is done may be to charge."""
        if self.path is None:
            return
        try:
            if self._writes:
                os.fsync(self._handle)
                return
            if not self._is_ours():
                raise self.unusable("it was removed or replaced meanwhile; start again")
            if not self.begun:
                self._write(_pack_entry("begun", "", self.about, {}))
            pending, self._pending, self.begun, self._writes = self._pending, [], True, True
            self._write_keys()
            for body in pending:
                self._write(body)
            os.fsync(self._handle)
            systems.sync_folder(self.path.parent)
        except OSError as error:
            self._let_go()
            raise self._unwritable(error) from None

    def note(self, kind: str, plan: Plan, said: Mapping[str, Any], arrays: Arrays | None = None, *, sync: bool) -> None:
        """Append an entry of a plan; with `sync` it is on disk when this returns."""
        if self._writes:
            self._append(_pack_entry(kind, plan.digest.hex(), said, arrays or {}), sync=sync)
        if kind == "ended" and self.path is not None:
            self._delete_keys()

    def keep_outputs(self, texts: Mapping[str, str]) -> None:
        """The results of the fit, on disk before they are put in their places."""
        if self.begun:
            self.begin()
            self._append(_pack_entry("outputs", "", dict(texts), {}), sync=True)

    def remove(self) -> None:
        """The fit has ended and its results are durable."""
        self.begun = False
        self.close()

    def close(self) -> None:
        """Let go of the file, which stays if a fit has begun."""
        if self._file is None or self.path is None:
            return
        if not self.begun:
            with contextlib.suppress(OSError):
                if self._is_ours():
                    self._delete_keys()
                    if not systems.POSIX:  # no file that is open can be removed
                        self._let_go()
                    self.path.unlink()
                    systems.sync_folder(self.path.parent)
        self._let_go()

    def _let_go(self) -> None:
        self._writes = False
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def _handle(self) -> int:
        if self._file is None:
            raise self.unusable("it was closed; start again")
        return self._file

    def _append(self, body: bytes, *, sync: bool) -> None:
        if not self._writes:
            self._pending.append(body)
            return
        try:
            self._write(body)
            if sync:
                os.fsync(self._handle)
        except OSError as error:
            raise self._stops(error) from None

    def _stops(self, error: OSError) -> InputError:
        self._let_go()  # what was torn is dropped when the run goes on
        return InputError(
            f"the state of the run cannot be written to {self.path} ({error.strerror}), and the run stops. What was "
            "charged stays charged; free some space and start the same command again: it goes on from here."
        )

    def _write(self, body: bytes) -> None:
        hash_ = hashlib.sha256(self._hash + body).digest()
        data = memoryview(_HEAD.pack(len(body), hash_, _check_of_head(len(body), hash_)) + body)
        self._hash, self._end = hash_, self._end + len(data)
        while data:
            data = data[os.write(self._handle, data) :]

    def _have(self, path: Path) -> None:
        """Open and lock the file, made if there is none; one that was removed or replaced until then is not the one."""
        while True:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | systems.PLAIN, 0o600)
            except OSError as error:
                if path.exists() or path.is_symlink():
                    raise self.unusable(f"it cannot be read ({error.strerror})") from None
                raise self._unwritable(error) from None
            try:
                if not stat.S_ISREG(os.fstat(self._file).st_mode):
                    raise self.unusable("it is no plain file")
                self._lock()
                if self._is_ours():
                    return
            except BaseException:
                self._let_go()
                raise
            self._let_go()

    def _lock(self) -> None:
        try:
            systems.lock(self._handle)
        except BlockingIOError:
            whose = ""  # as far as one can read that without having the file
            with contextlib.suppress(OSError, InputError, ValueError, KeyError, TypeError):
                for entry, _ in self._entries(self._data(), len(_MAGIC)):
                    if entry.kind == "process":
                        whose = f" (process {entry.said['id']} on {entry.said['host']}, since {entry.said['since']})"
            raise InputError(
                f"{self.path}: another process is at this run now{whose}; let it end, or stop it first. This one has "
                "charged nothing."
            ) from None
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be locked ({error.strerror}), and two starts of one job would be charged twice; "
                "put the job on a disk of this machine."
            ) from None

    def _is_ours(self) -> bool:
        """Whether the file that is open is still the one of that name."""
        try:
            return self.path is not None and os.path.samestat(os.fstat(self._handle), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _data(self) -> bytes:
        with os.fdopen(os.dup(self._handle), "rb") as file:
            file.seek(0)
            return file.read()

    def _read(self, about: Mapping[str, Any], *, restart: bool) -> None:
        try:
            data = self._data()
        except OSError as error:
            raise self.unusable(f"it cannot be read ({error.strerror})") from None
        if not (_OTHER.match(data) or _MAGIC.startswith(data.rstrip(b"\0"))):  # nor is it given up with `restart`
            raise InputError(
                f"{self.path} is no state of a run, and a job keeps its own there; it is left as it is. Move that file "
                "away, or give the job another name."
            )
        try:
            if data.startswith(_MAGIC):
                self._end = len(_MAGIC)
                for entry, end in self._entries(data, self._end):
                    self._take(entry)
                    self._end = end
            elif other := _OTHER.match(data):
                raise self.unusable(JOURNAL.refusal("it", int(other[1])).removesuffix("."))
        except InputError:
            if not restart:
                raise
            super().__init__(dict(about))
        if restart:
            self.given_up = tuple(plan for plan in self.plans if self.charged(plan))
        if restart or not self.begun:  # what has no beginning was stopped before anything was charged
            super().__init__(dict(about))
        self._sign()
        if self.begun and not self.ended:
            with contextlib.suppress(OSError, ValueError):
                keys = json.loads(read_plain(self._key_path))
                self._keys = keys if isinstance(keys, dict) else {}
        else:
            self._delete_keys()

    def _sign(self) -> None:
        """Say whose the file is now, for who comes second; without room for that a run goes on, and none begins."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        whose = {"id": os.getpid(), "host": socket.gethostname(), "since": since}
        try:
            systems.make_own(self._handle)  # a copy that was put back may have another
            os.truncate(self._handle, self._end)  # less an entry that was torn
            if not self._end:
                self._end = os.write(self._handle, _MAGIC)
            before = self._end, self._hash
            try:
                self._write(_pack_entry("process", "", whose, {}))
            except OSError:
                if not self.begun:
                    raise
                self._end, self._hash = before
                os.truncate(self._handle, self._end)
        except OSError as error:
            self.close()
            raise self._unwritable(error) from None

    def _entries(self, data: bytes, start: int) -> Iterator[tuple[JournalEntry, int]]:
        """The entries and where each ends, up to one that was torn."""
        written = len(data.rstrip(b"\0"))  # what a crash left unwritten may read as zeros
        while start < written:
            if written < start + _HEAD.size:
                return
            length, hash_, check = _HEAD.unpack_from(data, start)
            if check != _check_of_head(length, hash_):
                raise self.unusable(f"it is damaged at byte {start}")
            end = start + _HEAD.size + length
            body = data[start + _HEAD.size : end]
            if len(body) < length:
                return
            if hashlib.sha256(self._hash + body).digest() != hash_:
                if written < end:
                    return
                raise self.unusable(f"it is damaged at byte {start}")
            self._hash = hash_
            yield _unpack_entry(body), end
            start = end

    def _take(self, entry: JournalEntry) -> None:
        run = self._runs.setdefault(entry.plan, Stored())
        if entry.kind == "process":
            return
        if entry.kind == "begun":
            self.begun, self.about = True, dict(entry.said)
        elif entry.kind == "plan":
            self.plans.append(Plan.from_json(entry.said["text"]))
            self._plans.append(self.plans[-1])
            run.made = entry.said
        elif entry.kind == "round":
            run.rounds.append(entry)
            self.answered += 1
            self.solved = False
        elif entry.kind == "outputs":
            self.outputs = dict(entry.said)
        elif entry.kind == "solved":
            self.solved = True
        else:
            setattr(run, entry.kind, entry.said)
            self.ended = self.ended or entry.kind == "ended"

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"the state of the run cannot be written to {self.path} ({error.strerror}), and nothing is charged "
            "without it; give a folder that this user may write."
        )

    def unusable(self, why: str) -> InputError:
        """Why the state of an interrupted run cannot be used, and what to do."""
        return InputError(
            f"{self.path}, the state of an interrupted run, cannot be used: {why}. Put right what changed, or restore "
            "the file; or give the run up, with --restart or by removing the file: what it was charged stays spent."
        )


def _check_of_head(length: int, hash_: bytes) -> bytes:
    """Of a head, so that a damaged length is not taken for a torn end."""
    return hashlib.sha256(b"head" + length.to_bytes(8, "little") + hash_).digest()[:8]


def _pack_entry(kind: str, plan: str, said: Mapping[str, Any], arrays: Arrays) -> bytes:
    found = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    shapes = [[name, array.dtype.newbyteorder("<").str, array.shape] for name, array in found.items()]
    line = json.dumps({"kind": kind, "plan": plan, "said": said, "arrays": shapes}).encode()
    numbers = (array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() for array in found.values())
    return b"".join([line, b"\n", *numbers])


def _unpack_entry(body: bytes) -> JournalEntry:
    line, numbers = body.split(b"\n", 1)
    read, arrays, start = json.loads(line), dict[str, NDArray[Any]](), 0
    for name, kind, shape in read["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(numbers, np.dtype(kind), count, start).reshape(shape)
        start += arrays[name].nbytes
    return JournalEntry(read["kind"], read["plan"], read["said"], arrays)


def _meaning(plan: Plan) -> dict[str, Any]:
    """A plan without what is drawn anew each time, and what its parties answered to."""
    found = plan.model_dump(mode="json", exclude={"run", "coin", "keys"})
    if found.get("within"):
        found["within"] = found["within"]["mu"]
    if found.get("aggregation"):
        found["aggregation"].pop("aligned", None)
    return found
