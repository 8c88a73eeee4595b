# ruff: noqa: E402 (the numerical libraries read their thread count when they are imported)
"""Frames that are wrong, at a party; replies that are wrong, at a coordinator. A short run of both is in the tests.

    python tests/programs/fuzz.py frames --count 200000 [--seed 1]
    python tests/programs/fuzz.py replies --count 2000 [--seed 1]

A party of every form of every solver gets mutated frames of genuine runs, plans with strange numbers among them. It
must answer each, raise nothing but the project's own errors, release nothing beyond what it charged, and stay below
1 GiB above what it had: the process is started with that limit. A coordinator gets one mutated reply a
run: either the run goes on, or an error of the project ends it; an answer of another type, shape, name, kind, round,
query or plan never gets through, and its error names the party.
"""

from __future__ import annotations

import os

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # read when the libraries are imported

import argparse
import hashlib
import itertools
import json
import logging
import math
import random
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import serving
from plans import PLANS, plan_for
from sottovoce import algorithms
from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError, SottovoceError, WireError
from sottovoce.federation import coordinator, training
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import KINDS, Frame, decode, encode
from sottovoce.gate.gate import value_of
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.pricing import queries_of
from sottovoce.transports.base import InProcess
from support import give_scores

ALLOWED = (WireError, RefusedError, BudgetError, LedgerError, InputError)
MOST_MEMORY = 2**30  # bytes, as `federation/answering.py` states it
LIFE = 500  # frames that one party gets
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 64, 1000, 10**6, 2**24, 2**31 - 1, 2**31, 2**62, 2**63, 10**30, True, False),
    *(0.5, -0.0, 1e-300, 1e-9, 1e9, 1e300, -1e308, math.nan, math.inf, -math.inf),
    *(None, "", "x", "party 1", "\ud7ff", [], {}, [[]], "9" * 400),
)


def parties_of(plan: Plan, folder: Path | None = None, seed: int = 0) -> list[Party]:
    """The parties of a plan, who allow what it needs; with a folder each has an account that takes every price."""
    names = ("coordinator", *plan.names)
    policy = Policy(
        allow_without_privacy=True, tell_classes=True, predict_for=names, predict_training=True, approve_models=True
    )
    found = []
    for name, (X, y) in serving.draw_data(plan).items():
        known = y if plan.part(name).preparation.labelled else None
        account = None if folder is None or not plan.private else serving.InMemory(folder, f"{name} {seed}")
        kind = Party if account is None else serving.ForTheRun
        models = serving.Models()
        randomness = SeededRandomness(seed, name)
        party = kind(name, X, known, policy=policy, account=account, randomness=randomness, models=models)
        found.append(give_scores(party, plan))
    return found


def converse(plan: Plan, wire: InProcess) -> None:
    """All that a coordinator has to say: facts, a run and, over columns, a prediction."""
    coordinator = Coordinator(wire)
    coordinator.facts(classes=False)
    coordinator.run(plan, algorithms.of(plan))
    if plan.split == "columns" and plan.algorithm != "evaluation":
        coordinator.predict(plan, plan.digest, plan.names[-1])
        coordinator.predict(plan, plan.digest, "coordinator")


class Believing:
    """An identity that takes every signature: what signatures are worth is tested elsewhere."""

    def sign(self, purpose: str, message: bytes) -> str:
        return "{}"

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """Nothing is refused."""


class Tape(InProcess):
    """A wire that keeps what passes: (party, request, reply)."""

    def __init__(self, parties: list[Party]) -> None:
        super().__init__(parties)
        self.passed: list[tuple[str, bytes, bytes]] = []

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        found = super().exchange(messages)
        self.passed += [(name, messages[name], reply) for name, reply in found.items()]
        return found


# ----- Mutations -----


def bytes_of(data: bytes, dice: random.Random) -> bytes:
    """Bits flipped, ends cut or added, or something else altogether."""
    mutable = bytearray(data)
    how = dice.randrange(6)
    if how <= 1:
        for _ in range(1 + 3 * how):
            mutable[dice.randrange(len(mutable))] ^= 1 << dice.randrange(8)
    elif how == 2:
        del mutable[dice.randrange(len(mutable)) :]
    elif how == 3:
        mutable += dice.randbytes(dice.randrange(1, 200))
    elif how == 4:
        mutable = bytearray(dice.randbytes(dice.randrange(300)))
    else:
        mutable[dice.randrange(len(mutable)) :] = dice.randbytes(dice.randrange(100))
    return bytes(mutable)


def array_of(array: Any, dice: random.Random) -> tuple[Any, str]:
    """An array of another shape or type, or with other numbers in it; and which of them."""
    flat = array.ravel()
    how = dice.choice(("one", "short", "long", "matrix", "empty", "scalar", "type", "huge", "numbers", "minus"))
    shapes: dict[str, Callable[[], Any]] = {
        "one": lambda: flat[:1],
        "short": lambda: flat[:-1],
        "long": lambda: np.append(flat, flat[:1]) if flat.size else np.zeros(3, dtype=array.dtype),
        "matrix": lambda: np.stack([array, array]),
        "empty": lambda: flat[:0],
        "scalar": lambda: np.array(flat[0] if flat.size else 0, dtype=array.dtype),
        "type": lambda: array.astype(np.float64 if array.dtype == np.int64 else np.int64),
        "minus": lambda: -array - 1,
    }
    if how in shapes:
        made = np.ascontiguousarray(shapes[how]()) if how != "scalar" else shapes[how]()
        same = made.shape == array.shape and made.dtype == array.dtype
        return made, "numbers" if same else "shape"
    made = np.array(array)
    if made.size:
        large = (2**63 - 1, -(2**63), 2**62, 10**9) if array.dtype == np.int64 else (1e308, -1e308, 1e101, 1e-320)
        value = dice.choice((*large, 0, 1, -1))
        if how == "huge":
            made[...] = value
        else:
            made.reshape(-1)[dice.randrange(made.size)] = value
    return made, "numbers"


def json_of(value: Any, dice: random.Random) -> Any:
    """JSON with one value, anywhere in it, that is another, gone, or there many times."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        if dice.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: json_of(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.8:
        place = dice.randrange(len(value))
        if dice.random() < 0.2:
            return value * dice.choice((0, 2, 50)) if dice.random() < 0.5 else value[:place]
        return [json_of(each, dice) if k == place else each for k, each in enumerate(value)]
    if isinstance(value, int | float) and not isinstance(value, bool) and dice.random() < 0.4:
        return value * dice.choice((2, 50, 0, -1, 0.5))
    return dice.choice(NUMBERS)


def text_of(text: str, dice: random.Random) -> str:
    """A text with something else in it."""
    how = dice.randrange(10)
    if how == 0:
        return text[: dice.randrange(len(text) + 1)]
    if how == 1:
        return dice.choice(("", "[]", "3", "null", '"x"', "{}", "[" * 5000, '{"a":' * 5000, "1" * 5000, "NaN", "[1,]"))
    try:
        value = json.loads(text)
    except ValueError:
        return text
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        value = json_of(value, dice)
    return json.dumps(value)


@dataclass
class Mutation:
    """A mutated frame, and whether it says something that no genuine one says in its place."""

    data: bytes
    what: str
    wrong: bool


def frame_of(data: bytes, dice: random.Random) -> Mutation:
    """A frame in which one thing is another."""
    frame = decode(data)
    fields = {"kind": frame.kind, "plan": frame.plan, "round": frame.round, "query": frame.query, "text": frame.text}
    arrays = dict(frame.arrays)
    what = dice.choice(
        ["bytes", "kind", "round", "query", "plan"] + ["text"] * 6 * bool(frame.text) + ["array"] * 8 * bool(arrays)
    )
    wrong = what in ("kind", "round", "query", "plan")
    if what == "bytes":
        return Mutation(bytes_of(data, dice), what, False)
    if what == "array":
        name = dice.choice(list(arrays))
        if dice.random() < 0.15:
            arrays[dice.choice(("value", "grid", "other"))] = arrays.pop(name)
            what, wrong = "array name", set(arrays) != set(frame.arrays)
        else:
            arrays[name], how = array_of(arrays[name], dice)
            what, wrong = f"array {how}", how == "shape"
    elif what == "kind":
        fields["kind"] = dice.choice([kind for kind in KINDS if kind != frame.kind])
    elif what == "round":
        fields["round"] = dice.choice(
            [n for n in (frame.round + 1, frame.round - 1, -1, 2**31 - 1, -(2**31)) if n != frame.round]
        )
    elif what == "query":
        fields["query"] = dice.choice(
            [q for q in ("", "x", "gram", "gradient", "rows", "classes", "check") if q != frame.query]
        )
    elif what == "plan":
        fields["plan"] = dice.choice([p for p in (b"", bytes(32), dice.randbytes(32)) if p != frame.plan])
    else:
        fields["text"] = text_of(frame.text, dice)
        if frame.kind == "plan":  # a digest that fits lets the party look further
            try:
                fields["plan"] = Plan.from_json(str(fields["text"])).digest
            except Exception:
                fields["plan"] = hashlib.sha256(str(fields["text"]).encode()).digest()
    try:
        return Mutation(encode(Frame(serial=frame.serial, arrays=arrays, **fields)), what, wrong)  # type: ignore[arg-type]
    except (WireError, RecursionError):
        return Mutation(data, "none", False)


# ----- A party -----


@dataclass
class Found:
    """What came of it."""

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")

    def took(self, seconds: float, what: str) -> None:
        self.slowest = max(self.slowest, (seconds, what))

    def __str__(self) -> str:
        lines = [f"{self.tried} tried; {dict(self.outcomes.most_common())}"]
        lines += [f"FAULT {count} x {what}" for what, count in self.faults.most_common()]
        lines.append(f"slowest {self.slowest[0]:.2f} s: {self.slowest[1]}; most memory {peak():.0f} MiB")
        return "\n".join(lines)


def fuzz_frames(count: int, seed: int, folder: Path, only: str = "") -> Found:
    """`count` frames, shared among the forms."""
    found, dice = Found(), random.Random(seed)
    names = [name for name in PLANS if only in name]
    used = names[: -(-count // LIFE)]  # a short run does not come to all of them
    corpora = {name: genuine(name) for name in used}
    sizes = {name: itertools.cycle(large(plan)) for name, (plan, _) in corpora.items()}
    limit_memory()
    for name in itertools.cycle(names):
        if found.tried >= count:
            return found
        plan, frames = corpora[name]
        place = dice.randrange(len(plan.names))
        party = parties_of(plan, folder, seed=found.tried)[place]
        party.identify(Believing())
        own = [request for who, request, _ in frames if who == party.name]
        said: list[tuple[Frame, Frame]] = []
        plain = [data for data in own if decode(data).kind in ("plan", "ask")]
        for number in range(min(LIFE, count - found.tried)):
            if number % 10 == 0:  # the genuine plan, checked, charged and started, so that there is something to ask
                data = plain[min(number // 10 % 3, len(plain) - 1)]
            elif number % 10 == 1:
                data = dice.choice(plain)
            elif number % 10 == 2:
                data = next(sizes[name])
            else:
                data = frame_of(dice.choice(own), dice).data
            began = time.monotonic()
            try:
                reply = decode(party.handle(data).data)
            except BaseException as error:
                found.faults[f"{name}: handle raised {type(error).__name__}: {error}"] += 1
                continue
            finally:
                found.tried += 1
                found.took(time.monotonic() - began, f"{name}, frame {found.tried}")
            found.outcomes[reply.kind] += 1
            if party.failure is not None and not isinstance(party.failure, SottovoceError):
                found.faults[f"{name}: {describe(party.failure)}"] += 1
            party.failure = None
            if reply.kind == "answer" and decode(data).kind == "ask":
                said.append((decode(data), reply))
        for fault in overspent(party, said, plan):
            found.faults[f"{name}: {fault}"] += 1
    return found


def genuine(name: str) -> tuple[Plan, list[tuple[str, bytes, bytes]]]:
    """The plan of that name, and all that is said when it is run."""
    form, split, more = PLANS[name]
    plan = plan_for(form, split, **more)
    wire = Tape(parties_of(plan))
    converse(plan, wire)
    return plan, wire.passed


def large(plan: Plan) -> list[bytes]:
    """The plan with each of its whole numbers, and those that go together, as large as they can be read."""
    known = json.loads(plan.to_json())
    made: list[dict[str, Any]] = []

    def each(value: Any, put: Callable[[Any], dict[str, Any]]) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                each(inner, lambda new, key=key: put({**value, key: new}))
        elif isinstance(value, list):
            for place, inner in enumerate(value):
                each(inner, lambda new, place=place: put([*value[:place], new, *value[place + 1 :]]))
        elif isinstance(value, int) and not isinstance(value, bool):
            made.extend(put(size) for size in (2**31 - 1, 2**24, 2**20))

    each(known, lambda new: new)
    for size in (2**31 - 1, 2**24, 2**20, 2**12):
        releases = [release | {"count": size} for release in known["releases"]]
        made.append(known | {"rounds": size, "releases": releases})
        names = [*known["parties"], *([f"p{k}", known["parties"][0][1]] for k in range(min(size, 2**12)))]
        made.append(known | {"parties": names})
        made.append(known | {"parties": [known["parties"][0], *([name, size] for name, _ in known["parties"][1:])]})
        for place in range(len(known["columns"])):
            columns = [width if k == place else size for k, width in enumerate(known["columns"])]
            made.append(known | {"columns": columns, "features": sum(columns)})
    frames = []
    for fields in made:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        try:
            digest = Plan.from_json(text).digest
        except (ValueError, SottovoceError):
            digest = bytes(32)
        frames.append(encode(Frame("plan", next(serving.serials), digest, query="check", text=text)))
    return frames


def overspent(party: Party, said: list[tuple[Frame, Frame]], genuine_plan: Plan) -> Iterator[str]:
    """Answers that were not charged for, or that differ though their key is the same."""
    account = party.account
    if not isinstance(account, serving.InMemory):
        if genuine_plan.private and said:
            yield "answers of a party without an account"
        return
    plans: dict[bytes, Plan] = party.accepted  # type: ignore[attr-defined]
    first: dict[tuple[bytes, int, str], bytes] = {}
    answers: dict[bytes, list[serving.Answer]] = {}
    for asked, reply in said:
        plan = plans.get(asked.plan)
        if plan is None:
            yield "an answer under a plan that it did not accept"
            continue
        query = queries_of(algorithms.of(plan), plan, party.name)[asked.query]
        release = plan.release(asked.query)
        key = (asked.plan, asked.round, asked.query)
        payload = encode(Frame("answer", 0, arrays=reply.arrays))
        if release.mechanism == "derived":
            continue
        if first.setdefault(key, payload) != payload:
            yield f"two answers in round {asked.round} of {asked.query}"
        elif len(answers.setdefault(asked.plan, [])) < 10_000 and not any(
            (a.number, a.query.name) == (asked.round, asked.query) for a in answers[asked.plan]
        ):
            record = int(asked.arrays["index"][0]) if type(query).__name__ == "RecordGradient" else None
            answers[asked.plan].append(serving.Answer(party.name, query, release, asked.round, record))
    charged = {reservation.plan: reservation.cost for reservation in account.reservations}
    for digest, several in answers.items():
        events = serving.spent(plans[digest], several, account.relation)
        price = account.terms().price("", events, plans[digest].delta, "").cost
        if not price <= charged.get(digest.hex(), 0.0) * (1 + 1e-9):
            yield f"answers that cost {price:.6g}, charged {charged.get(digest.hex(), 0.0):.6g}"


# ----- A coordinator -----


class Liar(InProcess):
    """A wire on which the reply number `at` is another."""

    def __init__(self, parties: list[Party], at: int, dice: random.Random) -> None:
        super().__init__(parties)
        self.at, self.dice, self.count = at, dice, 0
        self.mutation = Mutation(b"", "none", False)

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        found = super().exchange(messages)
        for name, reply in found.items():
            if self.count == self.at:
                self.mutation = frame_of(reply, self.dice)
                found[name] = self.mutation.data
                self.mutation.what += f" of {decode(reply).kind} {decode(reply).query}"
            self.count += 1
        return found


def fuzz_replies(count: int, seed: int, only: str = "") -> Found:
    """`count` runs with one mutated reply each, shared among the forms."""
    found, dice = Found(), random.Random(seed)
    plans = {name: genuine(name) for name in PLANS if only in name}
    for name in itertools.cycle(plans):
        if found.tried >= count:
            return found
        plan, frames = plans[name]
        last = len(frames) - 1
        at = dice.randrange(min(last, dice.choice((8, 40, last))) + 1)  # early ones more often
        wire = Liar(parties_of(plan, seed=found.tried), at, dice)
        began = time.monotonic()
        try:
            converse(plan, wire)
            found.outcomes["went on"] += 1
            if wire.mutation.wrong and " of done" not in wire.mutation.what:  # the model is made by then
                found.faults[f"{name}: {wire.mutation.what} got through"] += 1
        except ALLOWED as error:
            found.outcomes[type(error).__name__] += 1
            told = str(error)
            if isinstance(error, InputError) and wire.mutation.wrong:
                found.faults[f"{name}: {wire.mutation.what}: {describe(error)}"] += 1
            if wire.mutation.wrong and not any(party in told for party in plan.names):
                found.faults[f"{name}: {wire.mutation.what}: no party is named: {told[:80]}"] += 1
        except BaseException as error:
            found.faults[f"{name}: {wire.mutation.what}: {describe(error)}"] += 1
        found.tried += 1
        found.took(time.monotonic() - began, f"{name}: {wire.mutation.what}")
    return found


# ----- The process -----


def describe(error: BaseException) -> str:
    """The error and the line of the library that raised it."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f"{Path(code.co_filename).name}:{trace.tb_lineno}" if "sottovoce" in code.co_filename else where
        trace = trace.tb_next
    return f"{type(error).__name__} at {where}: {str(error)[:100]}"


def limit_memory() -> None:
    """From here on the process gets `MOST_MEMORY` more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def peak() -> float:
    """The most memory that the process had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class _Remembering(serving.ForTheRun):
    """A party that remembers which plans it accepted, for the count of what they cost."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.accepted: dict[bytes, Plan] = {}

    def _answer(self, frame: Frame) -> Any:
        answer = super()._answer(frame)
        if frame.kind == "plan" and self.run is not None:
            self.accepted[self.run.plan.digest] = self.run.plan
        return answer


serving.ForTheRun = _Remembering  # type: ignore[misc]


PLANTED: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {  # faults that must be found
    "an unchecked reply": (
        coordinator,
        "read_answer",
        lambda name, plan, query, said, reply: value_of(reply.frame.arrays, 1.0),
    ),
    "a plan that allocates before it compares": (training, "check_plan_size", lambda *_: None),
}


def main() -> int:
    """Fuzz, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("frames", "replies"))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="forms whose name has this in it")
    parser.add_argument("--plant", choices=PLANTED, help="a fault, which is to be found")
    given = parser.parse_args()
    if given.plant:
        setattr(*PLANTED[given.plant])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if given.what == "frames":
        found = fuzz_frames(given.count, given.seed, Path("nowhere").resolve(), given.only)
    else:
        found = fuzz_replies(given.count, given.seed, given.only)
    sys.stdout.write(f"{found}\n")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
