# ruff: noqa: E402 (the numerical libraries read their thread count when they are imported)
"""Golden transcripts: what every solver says on every split, recorded once and compared for ever after.

    python tests/golden/transcripts.py --check [--only SUBSTRING]   compare with the record
    python tests/golden/transcripts.py --bits                       record the last bits of this processor as well
    python tests/golden/transcripts.py --accept                     record only what may change where it is stated
    python tests/golden/transcripts.py --write                      record anew

A case is one run in this process with a known seed. The record has two parts.

    transcripts.json    what no processor changes, exactly: messages and their order, kinds, queries, names, shapes and
                        types of arrays, releases, events, rounds, texts; and for all numbers one (`sketch`)
    bits-HASH.json      hashes of frames, releases, events, epsilons and models, of one processor with its libraries

Where there are bits of this processor and these libraries (`arithmetic`), a case is compared to the last bit. Elsewhere
it is compared with transcripts.json: all that is exact has to be equal, and numbers agree to `TOLERANCE`. Nothing is
skipped.

The bytes of whole frames (they hold the plan's digest), their number, masks of secure sums, what is said in words and
the texts of errors are compared too, and reported apart: they may change where a change of format or of wording is
stated. `--normalise OLD=NEW` compares what is called NEW now with what the record calls OLD.
"""

from __future__ import annotations

import os

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # read when the libraries are imported

import argparse
import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import secrets
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import scipy
import scipy.sparse as sp
from scipy import fft, special

sys.path.insert(0, str(Path(__file__).parents[1]))
import sottovoce as sv

# ----- The adapter: everything below that depends on how the library is built inside is in this section. -----
from sottovoce import algorithms
from sottovoce.algorithms import newton
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.plan.problem import Named
from sottovoce.privacy.events import event_to_json
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.secure import streams
from sottovoce.secure.pair_keys import PairKeys, RunKey
from sottovoce.secure.sums import Opener
from sottovoce.solvers import by_name
from support import handle

RELATIONS: tuple[Any, ...] = ("zero-out", "replace-one")


def estimator(kind: str, solver: str, options: Mapping[str, Any], **parameters: Any) -> Any:
    """An estimator of the library by the name of its class, with a solver by name and the solver's options."""
    box = parameters.pop("box", None)
    chosen = by_name(solver, **options) if options else solver
    model = getattr(sv, kind)(solver=chosen, **parameters)
    if box is not None:  # no estimator offers a box; plans do
        model._regulariser = lambda split: Named(name="box", parameters=dict(box))
    return model


def frame_of(data: bytes) -> Any:
    """A frame with kind, serial, plan, round, query, arrays and text."""
    return decode(data)


def frame_bytes(kind: str, serial: int, **fields: Any) -> bytes:
    """An encoded frame; fields are plan (a digest), round, query, arrays and text."""
    return encode(Frame(kind, serial, **fields))


def solver_of(plan: Any) -> str:
    """The name of a plan's solver."""
    return str(plan.algorithm)


def releases_of(plan: Any) -> list[dict[str, Any]]:
    """What a party may release under the plan, as plain numbers."""
    names = ("query", "first", "count", "std", "step", "mechanism", "rate", "batches")
    found = []
    for release in plan.releases:
        plain = {name: getattr(release, name) for name in names}
        plain["query"] = called(plain["query"])
        found.append(plain | {relation: release.charged(relation) for relation in RELATIONS})
    return found


def events_of(plan: Any) -> dict[str, Any]:
    """What each party's releases cost under both relations."""
    form = algorithms.of(plan)
    found: dict[str, Any] = {}
    for relation in RELATIONS:
        for name, _ in plan.parties:
            events = form.pricing.events(form, plan, relation, name)
            found[f"{relation} {name}"] = [event_to_json(event) for event in events]
    return found


def message_of(plan: Any) -> tuple[bytes, str]:
    """A plan as it is proposed: digest and text."""
    return plan.digest, plan.to_json()


def forge(plan: Any, **changes: Any) -> tuple[bytes, str]:
    """A plan with other fields, checked by nobody: digest and text. A change may be a function of the old value."""
    fields = json.loads(plan.to_json())
    for name, change in changes.items():
        fields[name] = change(fields[name]) if callable(change) else change
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).digest(), text


def _quieter(releases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [release | {"charged_zero_out": release["charged_zero_out"] / 2} for release in releases]


def _finer(releases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [release | {"step": release["step"] * 0.75} for release in releases]


def _silent(releases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [release | {"std": 0.0} for release in releases]


def _renamed(releases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [release | {"query": "rows"} for release in releases]


def _sampled(releases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [release | {"rate": 2.0} for release in releases]


# Of a plan by "gradient" for the parties "anna" and "ben".
FORGERIES: dict[str, dict[str, Any]] = {
    "less charged than moved": {"releases": _quieter},
    "a grid that is no power of two": {"releases": _finer},
    "no noise": {"releases": _silent},
    "a query that the solver does not have": {"releases": _renamed},
    "a rate above one": {"releases": _sampled},
    "a release twice": {"releases": lambda releases: releases * 2},
    "no party": {"parties": []},
    "a party twice": {"parties": [["anna", 40], ["anna", 40]]},
    "other records": {"parties": [["anna", 41], ["ben", 60]]},
    "other features": {"features": 9},
    "another layout": {"layout": "entries"},
    "an unknown solver": {"algorithm": "adam"},
    "a solver of columns": {"algorithm": "score"},
    "an unknown loss": {"loss": {"name": "zero-one", "parameters": {}}},
    "no numbers": {"numbers": []},
    "a negative epsilon": {"epsilon": -1.0},
    "a delta of one": {"delta": 1.0},
    "an unknown field": {"surprise": 1},
    "another format": {"format": 99},
    "held labels": {"split": "columns", "columns": [2, 2], "labels": "held", "label_party": 1},
}


def seeded_party(name: str, X: Any, y: Any, **options: Any) -> Any:
    """A party with known noise."""
    return sv.Party(name, X, y, randomness=SeededRandomness(5, name), **options)


def told_in(frame: Any) -> frozenset[str] | None:
    """Of a request in a secure sum: names of the arrays that everybody is told, all others are masked; else None."""
    if frame.query == "pair":  # offers of keys
        return frozenset()
    secure = frame.kind == "secure" or (frame.kind == "ask" and frame.text)
    return frozenset(json.loads(frame.text)["said"]) if secure else None


def random_in(frame: Any) -> bool:
    """Whether a request, or its reply, has keys or masks that the system draws."""
    return frame.kind == "predict" or frame.query in ("predict", "pair")


@contextlib.contextmanager
def known_masks() -> Iterator[list[Any]]:
    """Masks of secure sums that follow from names, queries and rounds alone; yields what is opened: query, round, sum.

    A score over secure columns is rounded by the low bits of its masks, and these follow from the plan's digest and
    from all bits of what was told. Here they do not: another format or processor gives the same sums.
    """
    opened: list[Any] = []
    agreed_on, open_sum = PairKeys.__getitem__, Opener.open

    def pair_key(keys: Any, name: str) -> bytes:
        agreed_on(keys, name)  # refuses where there is none
        return hashlib.sha256(json.dumps(sorted([keys._own, name])).encode()).digest()

    def own_key(key: Any, purpose: str, of: Any) -> bytes:
        return hashlib.sha256(purpose.encode()).digest()

    def open_and_note(opener: Any, shares: Any, noise: Any, label: Any) -> Any:
        opened.append((called(label[1]), label[2], open_sum(opener, shares, noise, label)))
        return opened[-1][2]

    changes = [(PairKeys, "__getitem__", pair_key), (RunKey, "own", own_key)]
    changes += [(streams, "hash_of", lambda told: ",".join(sorted(told))), (Opener, "open", open_and_note)]
    with contextlib.ExitStack() as stack:
        for target, name, value in changes:
            stack.enter_context(mock.patch.object(target, name, value))
        yield opened


def perturb(patch: Callable[[Any, str, Any], None]) -> None:
    """For a negative control: a little more of the budget for the first release of "newton"."""
    rules = {kind: replace(rule, gram_share=1.01 * rule.gram_share) for kind, rule in newton.RULES.items()}
    patch(newton, "RULES", rules)


# ----- The end of the adapter. -----

HERE = Path(__file__).parent
STORE = HERE / "transcripts.json"
SEED = 11
INF = math.inf
TRAIL = 12  # frames that are told apart one by one where a transcript differs
TOLERANCE = 2e-5  # of a sketch
SMALL = 1e-3  # arrays that are smaller than that all over are compared as if one entry were so large
HUGE = 1e200  # numbers from here on stand for something else, and are compared exactly
ON_GRID, GRID = 2**12, 2**22  # whole numbers from the first on may be rounded otherwise: they are shares of the second
MANY = 100  # numbers whose rounding errors do not add up to much
SKETCHED = ("frames", "opened", "releases", "events", "model", "certificates", "extra")
EXACT = ("refused", "n_iter", "rounds")
LOOSE = ("texts", "error", "warnings")
LOOSE_BITS = ("bytes", "masks", "communication", "rest")
AFTER_TIES = ("model", "certificates", "extra", "n_iter", "rounds", "texts", "warnings")
FACTS = (*SKETCHED, "epsilons", "head", *EXACT, *LOOSE)  # in transcripts.json
BITS = (*SKETCHED, "epsilons", "trail", *LOOSE_BITS)  # in bits-HASH.json
LAST_BITS = ("frames", "model", "certificates", "trail", "bytes")
TAKEN = ("nothing", "accept", "answer", "facts")  # what says that a bad input was taken
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
NAMES: dict[str, str] = {}  # what the record calls kinds, queries and arrays that have another name now
Record = dict[str, Any]


def called(name: str) -> str:
    """The name in the record of what has this name now."""
    return NAMES.get(name, name)


def digest(value: Any) -> str:
    """A short hash of bytes, or of anything that JSON can hold."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:10]


def array_hash(value: Any) -> str:
    """A short hash of dtype, shape and bytes."""
    array = np.ascontiguousarray(value)
    return digest(repr((array.dtype.str, array.shape)).encode() + array.tobytes())


def hash_of(value: Any) -> str:
    """A short hash of anything that JSON and arrays can hold, to the last bit."""
    return digest(json.dumps(value, sort_keys=True, default=array_hash).encode())


def is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iuf"


def shape_of(value: Any, group: str, arrays: dict[str, list[Any]], logarithms: list[float]) -> Any:
    """The value without its numbers, which are put into the lists: arrays by the last name on the way to them."""
    if isinstance(value, dict):
        return {name: shape_of(part, str(name), arrays, logarithms) for name, part in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [shape_of(part, group, arrays, logarithms) for part in value]
    if is_real(value):
        numbers = value.ravel()
        odd = ~(np.abs(numbers) < HUGE)
        arrays.setdefault(group, []).append(np.where(odd, 0, numbers))
        return [value.dtype.str, value.shape, [[int(place), repr(numbers[place])] for place in np.flatnonzero(odd)]]
    if isinstance(value, float | np.floating) and 0.0 < abs(value) < HUGE:
        logarithms.append(math.log(abs(value)))
        return "positive" if value > 0 else "negative"
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


def sketch(value: Any) -> str:
    """A hash of all but the numbers, and sum_k c_k x_k for them, with another c_k from 1 to 2 for each place.

    Arrays are divided by the largest entry of their name, whose logarithm is added, and more than MANY numbers by the
    square root of how many hundreds they are; of a number by itself the logarithm is taken. So a number that moves by
    1e-4 of the largest of its name moves the sum by 1e-4, or by TOLERANCE where it is one of 2500. Other processors
    move it by less than a quarter of that: most of it where scores are computed in single precision.
    """
    arrays: dict[str, list[Any]] = {}
    logarithms: list[float] = []
    shape = digest(shape_of(value, "", arrays, logarithms))
    groups = [np.array(logarithms)]
    for several in arrays.values():
        numbers = np.concatenate(several)
        largest = float(np.abs(numbers).max(initial=0))
        least = GRID if numbers.dtype.kind in "iu" and largest >= ON_GRID else SMALL
        scale = max(largest, least)
        groups.append(np.append(numbers / scale / math.sqrt(max(1.0, len(numbers) / MANY)), math.log(scale)))
    numbers = np.concatenate(groups)
    places = np.arange(1, len(numbers) + 1)
    return f"{shape} {(1 + places * GOLDEN_RATIO % 1) @ numbers:.7f}"


def near(one: str | None, other: str | None) -> bool:
    """Whether two sketches, or the epsilons of two runs, agree."""
    if one is None or other is None:
        return one == other
    pairs = itertools.zip_longest(one.split(), other.split(), fillvalue="")
    return all(a == b or abs(number_of(a) - number_of(b)) <= TOLERANCE for a, b in pairs)


def number_of(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def arithmetic() -> str:
    """A hash of what processor and libraries make of a few sums: equal where the last bits can be compared."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((60, 7)), rng.standard_normal(60)
    gram = A.T @ A
    values = [gram, A @ b[:7], np.linalg.solve(gram, A.T @ b), np.linalg.eigh(gram)[1], np.exp(A), np.log1p(np.exp(b))]
    values += [np.tanh(A), np.array([math.exp(x) for x in b]), np.array([abs(x) ** 0.3 for x in b]), A.sum(axis=0)]
    values += [np.linalg.norm(A, axis=1), np.sqrt(np.einsum("ij,ij->i", A, A)), sp.csr_matrix(A) @ b[:7]]
    values += [fft.irfft(fft.rfft(b) ** 5), special.log_ndtr(A), special.erfcx(b)]
    return digest([array_hash(value) for value in values] + machine())


def machine() -> list[str]:
    """The processor that loops are compiled for, and the libraries."""
    libraries = [f"{library.__name__} {library.__version__}" for library in (np, scipy, numba, llvmlite)]
    return [numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(), *libraries]


class Counter:
    """Stands in for the secrets module: every call gets the next of a known series."""

    def __init__(self) -> None:
        self._calls = 0

    def token_bytes(self, count: int | None = None) -> bytes:
        self._calls += 1
        size = 32 if count is None else count
        return hashlib.shake_256(f"golden {self._calls}".encode()).digest(size)

    def token_hex(self, count: int | None = None) -> str:
        return self.token_bytes(count).hex()

    def randbits(self, count: int) -> int:
        return int.from_bytes(self.token_bytes(count // 8 + 1), "big") >> (8 * (count // 8 + 1) - count)

    def randbelow(self, bound: int) -> int:
        return int.from_bytes(self.token_bytes(32), "big") % bound


class Seen(NamedTuple):
    """What a run shows beside its conversation."""

    warnings: list[str]
    opened: list[Any]  # sums of secure aggregation


@contextlib.contextmanager
def known() -> Iterator[Seen]:
    """Names and numbers of a run that are random otherwise; what it yields is complete at the end."""
    counter, said = Counter(), list[str]()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.ExitStack() as stack:
            for name in ("token_bytes", "token_hex", "randbits", "randbelow"):
                stack.enter_context(mock.patch.object(secrets, name, getattr(counter, name)))
            opened = stack.enter_context(known_masks())
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            stack.enter_context(np.errstate(all="ignore"))
            warnings.simplefilter("always")
            yield Seen(said, opened)
            said += [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    finally:
        logging.disable(logging.NOTSET)


# The record of a conversation.


class Tape:
    """All frames of a federation, in both directions and in order."""

    def __init__(self, federation: Any) -> None:
        self.frames: list[tuple[Any, ...]] = []
        self.texts: list[Any] = []
        self.bytes = hashlib.sha256()
        self.masks = hashlib.sha256()
        self.random = self.secure = False  # whether there were frames with keys or masks, and secure sums
        self._exchange = federation.transport.exchange
        federation.transport.exchange = self

    def __call__(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        for party, data in messages.items():
            self._note("to", party, data, frame_of(data))
        replies: dict[str, bytes] = self._exchange(messages)
        for party, data in replies.items():
            self._note("from", party, data, frame_of(messages[party]))
            self.texts.append([party, plain_text(frame_of(data).text)])
            self.random |= '"receipt"' in frame_of(data).text  # of a ledger, which has a key and times of its own
        return replies

    def _note(self, way: str, party: str, data: bytes, request: Any) -> None:
        frame, told, drawn = frame_of(data), told_in(request), random_in(request)
        kind, query = called(frame.kind), called(frame.query)
        arrays: dict[str, Any] = {}
        for name, array in frame.arrays.items():
            plain = not drawn and (told is None or (way == "to" and name in told))
            arrays[f"{way} {query} {called(name)}"] = array if plain else f"masked {array.dtype.str} {array.shape}"
            if not plain and not drawn:
                self.masks.update(array.tobytes())
        self.frames.append((way, party, kind, frame.round, query, arrays))
        self.bytes.update(struct.pack("<Q", len(data)) + data)
        self.random |= drawn
        if told is not None:
            self.secure = True
            if way == "to":
                self.texts.append([party, frame.text])

    def record(self) -> Record:
        found = {"frames": self.frames, "texts": self.texts, "asks": sum(frame[2] == "ask" for frame in self.frames)}
        found |= {} if self.random else {"bytes": self.bytes.hexdigest()[:10]}
        return found | ({"masks": self.masks.hexdigest()[:10]} if self.secure else {})


def plain_text(text: str) -> Any:
    """What a party declares, less random keys and signatures and less names that come from the plan's digest."""
    if not text:
        return ""
    said = json.loads(text)
    if isinstance(said, dict):
        said.pop("public_key", None)
        said.pop("receipt", None)
        said.pop("signature", None)
        if "refused" in said:
            said = {"refused": True}  # its wording is in the error that is raised
    return said


def plan_record(plan: Any) -> Record:
    events = {who: sorted(several, key=str) for who, several in events_of(plan).items()}
    return {"releases": releases_of(plan), "events": events}


def model_record(model: Any) -> Record:
    """What a fitted estimator shows."""
    plan = model.plan_
    found = plan_record(plan)
    report = model.privacy_
    found["epsilons"] = [report.against(name).epsilon for name in ("world", "coordinator", "parties")]
    found["epsilons"].append(report.claimed_epsilon)
    if hasattr(model, "coef_"):
        found["model"] = {"coef": np.asarray(model.coef_), "intercept": np.asarray(model.intercept_)}
        found["head"] = " ".join(f"{value:.6g}" for value in np.ravel(model.coef_)[:2])
    said = model.communication_
    found["n_iter"] = model.n_iter_
    found["rounds"] = [said.rounds, sorted(said.uplink)]
    found["communication"] = [said.uplink_bytes, said.downlink_bytes, said.rounds, dict(sorted(said.uplink.items()))]
    if model.certificates_:
        found["certificates"] = {name: np.array(float(value)) for name, value in model.certificates_.items()}
    return found


# Data.


@dataclass(frozen=True)
class Data:
    X: np.ndarray
    y: np.ndarray
    classes: np.ndarray


def make_data(records: int = 120, features: int = 6, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(records, features))
    X[rng.random(X.shape) < 0.3] = 0.0
    weights = np.linspace(1.5, -1.0, features)
    y = X @ weights + 0.3 + 0.2 * rng.standard_normal(records)
    return Data(X, y, (y > 0.3).astype(np.int64))


def counts_of(data: Data) -> np.ndarray:
    return np.maximum(0.0, np.rint(1.0 + data.y))


DATA = make_data()
COUNTS = counts_of(DATA)
WHOSE = np.arange(len(DATA.y)) // 5  # of people with several records
SPOILT = DATA.X.copy()
SPOILT[[3, 77], [1, 5]] = np.nan, np.inf
ROWS = {2: (70, 50), 3: (50, 40, 30)}
COLUMNS = {1: (6,), 2: (4, 2), 3: (3, 2, 1), 5: (2, 1, 1, 1, 1)}


def federation_of(
    split: str,
    y: Any,
    *,
    X: Any = None,
    sparse: bool = False,
    labels: str = "shared",
    aggregation: Mapping[str, int] | None = None,
    dealer: str | None = None,
    **options: Any,
) -> Any:
    """The data in one place, by rows ("rows2": of two parties, else of three) or by columns ("columns2")."""
    X = DATA.X if X is None else X
    X = sp.csr_matrix(X) if sparse else X
    if dealer is not None:
        options["dealer"] = sv.Dealer(dealer)
    if split == "central":
        return sv.Federation.central(X, y, **options)
    if split.startswith("rows"):
        ends = np.cumsum((0, *ROWS[int(split.removeprefix("rows") or 3)]))
        federation = sv.Federation.by_rows([(X[a:b], y[a:b]) for a, b in itertools.pairwise(ends)], **options)
    else:
        X, ends = X.tocsc() if sparse else X, np.cumsum((0, *COLUMNS[int(split.removeprefix("columns"))]))
        parts = [X[:, a:b] for a, b in itertools.pairwise(ends)]
        federation = sv.Federation.by_columns(parts, y, labels=labels, **options)
    return federation if aggregation is None else federation.secure_aggregation(**aggregation)


# Cases.


def declared(loss: str, penalty: str) -> tuple[str, dict[str, Any]]:
    """Class and parameters of an estimator with that loss and that penalty."""
    by: dict[str, Any] = {"none": {"alpha": 0.0}, "l2": {"alpha": 0.02}, "l1": {"alpha": 0.02}}
    by |= {"elastic_net": {"alpha": 0.02}, "l1_ball": {"radius": 1.5}, "l2_ball": {"radius": 1.0}}
    by |= {"box": {"box": {"low": -0.4, "high": 0.5}}}
    given = dict(by[penalty])
    if loss in ("squared", "huber"):
        kinds = {"l1": "PrivateLasso", "l1_ball": "PrivateLasso", "elastic_net": "PrivateElasticNet"}
        kind = kinds.get(penalty, "PrivateRidge")
        if loss == "huber":
            given |= {"loss": "huber", "threshold": 0.8}
        return kind, given | {"label_bound": 3.0}
    given["classes"] = (0, 1)
    if loss == "logistic":
        if penalty not in ("none", "box"):
            given["l1_ratio"] = {"l2": 0, "l1": 1, "elastic_net": 0.5}[penalty.removesuffix("_ball")]
        return "PrivateLogisticRegression", given
    return "PrivateLinearSVC", given | {"loss": loss}


@dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    solver: str
    split: str
    loss: str = "squared"
    penalty: str = "l2"
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    federation: Mapping[str, Any] = field(default_factory=dict)

    def play(self) -> Record:
        """Fit, and say what was seen."""
        regression = self.loss in ("squared", "huber")
        y = DATA.y if regression else DATA.classes
        with known() as seen:
            federation = federation_of(self.split, y, **self.federation)
            tape = Tape(federation)
            kind, given = declared(self.loss, self.penalty)
            base: dict[str, Any] = {"epsilon": 2.0, "entry_bound": 1.0, "insecure_seed": SEED}
            found: Record = {}
            try:
                model = estimator(kind, self.solver, self.options, **base | given | dict(self.parameters))
                model.fit(federation)
            except Exception as error:
                found = {"refused": True, "error": [type(error).__name__, str(error)]}
            found = tape.record() | (found or model_record(model))
        return finished(found, seen)


def finished(found: Record, seen: Seen) -> Record:
    """A refusal is its error alone, unless a party was asked for something before."""
    if found.get("refused"):
        keep = ("refused", "error") if found["asks"] == 0 else ("refused", "error", "frames")
        found = {name: found[name] for name in keep}
    found.pop("asks", None)
    if seen.warnings:
        found["warnings"] = seen.warnings
    if seen.opened:
        found["opened"] = [[query, round_, {query: value}] for query, round_, value in seen.opened]
    return found


SOLVERS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "newton": (("central", "rows"), {"rounds": 4}),
    "gradient": (("central", "rows"), {"rounds": 5}),
    "sgd": (("central", "rows"), {"rounds": 6}),
    "whitened": (("central", "rows"), {"rounds": 4}),
    "scd": (("central", "rows"), {"rounds": 5, "rate": 0.2}),
    "scd-primal": (("central",), {"rounds": 6, "lot": 2}),
    "scd-sequential": (("central", "rows"), {"rounds": 2, "lot": 20}),
    "cd": (("central", "rows"), {"inner": 14}),
    "greedy-cd": (("central", "rows"), {"rounds": 6}),
    "frank-wolfe": (("central", "columns2", "columns3"), {"rounds": 6}),
    "admm": (("columns2", "columns3"), {"rounds": 3}),
    "fdml": (("columns2", "columns3"), {"rounds": 3}),
    "score": (("columns2", "columns3"), {"rounds": 4}),
    "one-shot": (("columns2", "columns3"), {"sketch_size": 2}),
}
PAPER = ("gradient", "sgd", "scd", "scd-primal", "scd-sequential", "cd", "frank-wolfe", "admm", "one-shot")
PENALTY = {"frank-wolfe": "l1_ball", "cd": "l1", "greedy-cd": "l1"}
LABELS = ("public", "shared", "held")
CALIBRATIONS: dict[str, dict[str, Any]] = {"tight": {}, "paper": {"calibration": "paper"}, "inf": {"epsilon": INF}}


def label_modes(split: str) -> tuple[str | None, ...]:
    return LABELS if split.startswith("columns") else (None,)


def main_cases() -> Iterator[Case]:
    """Every solver, split, calibration, relation and way to know the labels, for the squared and the logistic loss."""
    for solver, (splits, options) in SOLVERS.items():
        penalty = PENALTY.get(solver, "l2")
        for split, loss, (how, parameters) in itertools.product(splits, ("squared", "logistic"), CALIBRATIONS.items()):
            if how == "paper" and solver not in PAPER:
                continue
            for labels, relation in itertools.product(label_modes(split), RELATIONS):
                if relation == "replace-one" and (how == "inf" or loss == "logistic"):
                    continue
                if loss == "logistic" and split == "columns3" and labels != "shared":
                    continue
                where = {} if labels is None else {"labels": labels}
                if labels == "held":
                    where["label_party"] = 1
                name = "/".join(filter(None, (solver, split, labels, loss, how, relation)))
                given = dict(parameters) | {"relation": relation}
                yield Case(name, solver, split, loss, penalty, options, given, where)


def base_of(solver: str, how: str = "tight") -> dict[str, Any]:
    """The few rounds of a solver's cases."""
    options = dict(SOLVERS[solver][1])
    if solver == "admm" and how == "inf":
        options["rounds"] = 12
    return options


def places(solver: str) -> tuple[str, ...]:
    """The splits of a solver, columns once."""
    return tuple(split for split in SOLVERS[solver][0] if split != "columns3")


def other_losses() -> Iterator[Case]:
    """Losses beside the squared and the logistic one; a solver that cannot says so."""
    for solver, loss, how in itertools.product(
        SOLVERS, ("huber", "hinge", "smoothed_hinge", "sigmoid"), ("tight", "inf")
    ):
        penalty = "l2_ball" if solver == "frank-wolfe" else "l2"
        for split in places(solver):
            name = f"loss/{solver}/{split}/{loss}/{how}"
            yield Case(name, solver, split, loss, penalty, base_of(solver, how), CALIBRATIONS[how])
    for loss in ("hinge", "smoothed_hinge", "sigmoid"):
        for solver, labels in itertools.product(("admm", "fdml"), ("held", "public")):
            where = {"labels": labels}
            yield Case(
                f"loss/{solver}/columns3/{loss}/{labels}", solver, "columns3", loss, "l2", base_of(solver), {}, where
            )
        options = {"rounds": 3, "rows": "fresh"}
        yield Case(f"loss/admm/columns2/{loss}/fresh", "admm", "columns2", loss, "l2", options)


def penalties() -> Iterator[Case]:
    """Every penalty with every solver; one that cannot says so."""
    names = ("none", "l2", "l1", "elastic_net", "l1_ball", "l2_ball", "box")
    for solver, penalty in itertools.product(SOLVERS, names):
        own = penalty == PENALTY.get(solver, "l2")
        for split, how in itertools.product(places(solver), ("tight", "inf")):
            if not own and not (solver == "one-shot" and how == "inf"):
                name = f"penalty/{solver}/{split}/{penalty}/{how}"
                yield Case(name, solver, split, "squared", penalty, base_of(solver, how), CALIBRATIONS[how])
    for solver, penalty in itertools.product(("newton", "gradient", "cd", "greedy-cd", "admm", "score"), names):
        split = places(solver)[0]
        yield Case(f"penalty/{solver}/{split}/{penalty}/logistic", solver, split, "logistic", penalty, base_of(solver))


RANGES = ([-1.0, -1.0, -2.0, -1.0, -1.5, -1.0], [1.0, 1.0, 1.0, 2.0, 1.0, 1.0])
FORMS: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "sparse": (("tight", "inf"), {}, {"sparse": True}),
    "no intercept": (("tight", "inf", "paper"), {"fit_intercept": False}, {}),
    "row norm": (("tight",), {"entry_bound": None, "row_norm": 1.5}, {}),
    "both bounds": (("tight",), {"row_norm": 1.5}, {}),
    "ranges": (("tight", "inf"), {"entry_bound": None, "feature_ranges": RANGES}, {}),
    "unit ranges": (("tight",), {"entry_bound": None, "feature_ranges": RANGES, "rescale": "unit"}, {}),
    "columns apart": (("tight",), {"entry_bound": [1.0, 0.5, 2.0, 1.0, 1.0, 4.0]}, {}),
    "labels between": (("tight",), {"label_bound": (-2.0, 3.0)}, {}),
    "small budget": (("tight",), {"epsilon": 0.1, "delta": 1e-7}, {}),
}


def forms() -> Iterator[Case]:
    """Sparse rows, no intercept, other bounds, another budget."""
    for (form, (hows, parameters, where)), solver in itertools.product(FORMS.items(), SOLVERS):
        penalty = PENALTY.get(solver, "l2")
        for split, how in itertools.product(places(solver), hows):
            if (how == "paper" and solver not in PAPER) or (solver == "one-shot" and how == "inf"):
                continue
            given = {**CALIBRATIONS[how], **parameters}
            name = f"form/{solver}/{split}/{form}/{how}"
            yield Case(name, solver, split, "squared", penalty, base_of(solver, how), given, where)
    for solver in SOLVERS:
        for split in places(solver):
            where = {"X": SPOILT}
            name = f"form/{solver}/{split}/null rows"
            yield Case(name, solver, split, "squared", PENALTY.get(solver, "l2"), base_of(solver), {}, where)
    for solver in ("newton", "scd", "cd", "admm", "score"):
        for split in places(solver):
            where = {"sparse": True}
            name = f"form/{solver}/{split}/sparse/logistic"
            yield Case(name, solver, split, "logistic", PENALTY.get(solver, "l2"), base_of(solver), {}, where)


def defaults() -> Iterator[Case]:
    """What a solver chooses where no option is given."""
    for solver, loss in itertools.product(SOLVERS, ("squared", "logistic")):
        for split, relation in itertools.product(places(solver), RELATIONS):
            if solver == "one-shot" and loss == "logistic":
                continue
            given = {"relation": relation, "epsilon": 1.0}
            name = f"defaults/{solver}/{split}/{loss}/{relation}"
            yield Case(name, solver, split, loss, PENALTY.get(solver, "l2"), {}, given)


SQUARES = [0.25, 0.2, 0.3, 0.25, 0.25, 0.2]
# solver, loss, calibration, federation, then options (added to the solver's few rounds)
VARIANTS: tuple[tuple[str, str, str, dict[str, Any], tuple[dict[str, Any], ...]], ...] = (
    ("newton", "squared", "tight", {}, ({"gram_share": 0.3}, {"slope_bound": 0.8}, {"rounds": 2})),
    ("newton", "squared", "inf", {}, ({"rounds": 1}, {"slope_bound": 0.2})),
    ("gradient", "logistic", "tight", {}, ({"step": 0.2}, {"slope_bound": 0.8}, {"rounds": 1})),
    ("gradient", "squared", "inf", {}, ({"step": 0.2},)),
    (
        "sgd",
        "squared",
        "tight",
        {},
        ({"rate": 0.3}, {"rate": 1.0}, {"step": 0.1}, {"slope_bound": 0.8}, {"schedule": "one-party"}),
    ),
    ("sgd", "logistic", "tight", {}, ({"schedule": "one-party", "rate": 0.2}, {"schedule": "all"})),
    ("sgd", "squared", "inf", {}, ({"rate": 0.5}, {"schedule": "one-party"})),
    ("sgd", "squared", "paper", {}, ({"schedule": "one-party"}, {"rate": 0.1}, {"step": 0.01})),
    ("scd", "logistic", "tight", {}, ({"dual_step": "slope"}, {"dual_step": "exact"}, {"dual_step": "newton"})),
    ("scd", "logistic", "paper", {}, ({"clip": 0.3},)),
    ("scd", "logistic", "inf", {}, ({"dual_step": "exact"}, {"dual_step": "newton"})),
    ("scd", "squared", "tight", {}, ({"clip": 0.3}, {"rate": 1.0}, {"rate": 0.05, "rounds": 9})),
    ("scd-primal", "squared", "tight", {}, ({"lot": 1}, {"lot": 7}, {"clip": 0.1})),
    ("scd-primal", "logistic", "tight", {}, ({"lot": 3},)),
    ("scd-sequential", "squared", "tight", {}, ({"lot": 7, "rounds": 1}, {"clip": 0.2})),
    ("scd-sequential", "logistic", "tight", {}, ({"dual_step": "exact"}, {"dual_step": "newton"})),
    (
        "cd",
        "squared",
        "tight",
        {},
        (
            {"order": "cyclic"},
            {"order": "shuffled"},
            {"order": "random"},
            {"curvatures": SQUARES},
            {"curvature_share": 0.2},
            {"averaged": 0.0},
            {"averaged": 1.0},
            {"rounds": 2, "inner": 7},
            {"step": 0.3},
            {"clip": 0.4},
        ),
    ),
    ("cd", "logistic", "tight", {}, ({"order": "random", "curvatures": SQUARES},)),
    ("cd", "squared", "inf", {}, ({"order": "shuffled"}, {"rounds": 3})),
    ("cd", "squared", "paper", {}, ({"counted": "all"}, {"counted": "outer", "rounds": 2}, {"curvatures": SQUARES})),
    (
        "greedy-cd",
        "squared",
        "tight",
        {},
        (
            {"rule": "GS-r"},
            {"rule": "GS-s"},
            {"rule": "GS-q"},
            {"curvatures": SQUARES},
            {"curvature_share": 0.3},
            {"choice_share": 0.3},
            {"step": 0.3},
            {"clip": 0.4},
        ),
    ),
    ("greedy-cd", "squared", "inf", {}, ({"rule": "GS-s"}, {"rule": "GS-q"})),
    ("greedy-cd", "logistic", "tight", {}, ({"rule": "GS-q"},)),
    ("frank-wolfe", "squared", "tight", {}, ({"slope_bound": 1.5}, {"rounds": 1})),
    ("frank-wolfe", "logistic", "tight", {}, ({"slope_bound": 0.4},)),
    (
        "frank-wolfe",
        "squared",
        "tight",
        {"labels": "held"},
        (
            {"choice_share": 0.3},
            {"cap": 2},
            {"cap": 1, "sketch": "count"},
            {"sketch": "rademacher"},
            {"sketch_size": 40},
        ),
    ),
    ("frank-wolfe", "squared", "paper", {"labels": "shared"}, ({"candidates": 1}, {"sketch_size": 40})),
    ("frank-wolfe", "squared", "inf", {"labels": "shared"}, ({"step": "printed"},)),
    (
        "admm",
        "squared",
        "tight",
        {},
        (
            {"rows": "persistent"},
            {"rows": "fresh"},
            {"rows": "fresh", "clip": 0.4},
            {"rows": "fresh", "row_share": 0.3},
            {"row_share": 0.3},
            {"world_epsilon": 0.5},
            {"slope_bound": 0.3},
            {"rounds": 2},
        ),
    ),
    ("admm", "squared", "tight", {"labels": "held", "label_party": 1}, ({"rows": "fresh"}, {"world_epsilon": 0.3})),
    ("admm", "squared", "tight", {"labels": "public"}, ({"rows": "fresh"}, {"unit": "feature"})),
    (
        "admm",
        "logistic",
        "tight",
        {"labels": "public"},
        (
            {"unit": "feature"},
            {"unit": "feature", "rho": 0.5},
            {"unit": "feature", "column_norm": 5.0},
            {"unit": "feature", "slope_bound": 0.4},
            {"rows": "fresh", "clip": 1.0},
        ),
    ),
    (
        "admm",
        "squared",
        "inf",
        {},
        ({"models": "kept"}, {"rho": 2.0}, {"proximal": 0.5}, {"relaxation": 1.0}, {"tolerance": 0.1}),
    ),
    ("admm", "logistic", "inf", {"labels": "public"}, ({"models": "kept"}, {"rho": 0.3, "relaxation": 1.2})),
    ("admm", "squared", "paper", {}, ({"rho": 2.0},)),
    ("fdml", "squared", "tight", {}, ({"row_share": 0.3}, {"world_epsilon": 0.5}, {"slope_bound": 0.3})),
    ("fdml", "logistic", "tight", {"labels": "held"}, ({"row_share": 0.5}, {"world_epsilon": 0.2})),
    ("fdml", "squared", "inf", {}, ({"rate": 0.5}, {"step": 0.2})),
    ("score", "squared", "tight", {}, ({"slope_bound": 0.8}, {"rounds": 2})),
    ("score", "logistic", "tight", {"labels": "held", "label_party": 1}, ({"slope_bound": 0.8}, {"rounds": 3})),
    ("one-shot", "squared", "tight", {}, ({"sketch": "count"}, {"sketch": "rademacher"}, {"sketch_size": 1})),
    ("one-shot", "squared", "tight", {"labels": "held", "label_party": 1}, ({"sketch_size": 16},)),
)


def variants() -> Iterator[Case]:
    """Every option of every solver."""
    for solver, loss, how, where, rows in VARIANTS:
        for options, split in itertools.product(rows, SOLVERS[solver][0]):
            if (where or "candidates" in options) and not split.startswith("columns"):
                continue
            said = ",".join(f"{name}={'given' if name == 'curvatures' else value}" for name, value in options.items())
            name = f"option/{solver}/{split}/{loss}/{how}/{'/'.join(map(str, (*where.values(), said)))}"
            given = base_of(solver, how) | options
            yield Case(name, solver, split, loss, PENALTY.get(solver, "l2"), given, CALIBRATIONS[how], where)
    for relation, labels in itertools.product(RELATIONS, LABELS):
        where = {"labels": labels}
        for solver, options in (
            ("admm", {"rows": "fresh"}),
            ("admm", {"unit": "feature"}),
            ("admm", {"world_epsilon": 0.4}),
        ):
            name = f"option/{solver}/columns3/{relation}/{labels}/{'='.join(map(str, *options.items()))}"
            given = base_of(solver) | options
            yield Case(name, solver, "columns3", "squared", "l2", given, {"relation": relation}, where)
    for solver, split in itertools.product(
        ("admm", "fdml", "frank-wolfe", "score", "one-shot"), ("columns1", "columns5")
    ):
        yield Case(f"parties/{solver}/{split}", solver, split, "squared", PENALTY.get(solver, "l2"), base_of(solver))
    for solver in ("admm", "fdml", "frank-wolfe", "score", "one-shot"):
        where = {"norms": (1.2, 0.9)}
        given = {"row_norm": 1.5}
        name = f"parties/{solver}/norms"
        yield Case(name, solver, "columns2", "squared", PENALTY.get(solver, "l2"), base_of(solver), given, where)


# Secure aggregation: sums by rows, products by columns.
SECURE = {"rows": ("newton", "gradient", "sgd", "whitened", "cd"), "columns": ("newton", "gradient", "whitened")}
# splits, parameters, federation
SECURE_FORMS: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "no intercept": (("rows", "columns2"), {"fit_intercept": False}, {}),
    "row norm": (("rows", "columns2"), {"entry_bound": None, "row_norm": 1.5}, {}),
    "ranges": (("columns2",), {"entry_bound": None, "feature_ranges": RANGES}, {}),
    "norms": (("columns2",), {"row_norm": 1.5}, {"norms": (1.2, 0.9)}),
    "small budget": (("rows", "columns2"), {"epsilon": 0.1, "delta": 1e-7}, {}),
    "inf": (("rows", "columns2"), {"epsilon": INF}, {}),
    "sparse": (("rows", "columns2"), {}, {"sparse": True}),
    "null rows": (("rows", "columns3"), {}, {"X": SPOILT}),
    "dealer": (("rows", "columns2", "columns3"), {}, {"dealer": "notary"}),
    "colluding_with_dealer": (("rows", "columns3"), {}, {"aggregation": {"colluding_with_dealer": 1}}),
    "colluding": (("rows", "columns3"), {}, {"aggregation": {"colluding": 1}}),
    "dropouts": (("rows", "columns3"), {}, {"aggregation": {"dropouts": 1, "retries": 2}}),
    "absent, dealer": (
        ("rows",),
        {},
        {"aggregation": {"dropouts": 1, "retries": 1, "colluding_with_dealer": 1}, "dealer": "notary"},
    ),
}


def secure_in(split: str) -> tuple[str, dict[str, Any]]:
    """Rows or columns, and how a federation is told."""
    return ("rows", {"sums": "secure"}) if split.startswith("rows") else ("columns", {"products": "secure"})


def secure_cases() -> Iterator[Case]:
    """Every solver that serves secure sums; one that does not says so."""
    for split, loss in itertools.product(("rows2", "rows", "columns2", "columns3"), ("squared", "logistic")):
        kind, where = secure_in(split)
        for solver, labels, relation in itertools.product(SECURE[kind], label_modes(split), RELATIONS):
            if relation == "replace-one" and (loss == "logistic" or labels in ("public", "held")):
                continue
            given = where if labels is None else where | {"labels": labels}
            given = given | {"label_party": 1} if labels == "held" else given
            name = "/".join(filter(None, ("secure", solver, split, labels, loss, relation)))
            penalty = PENALTY.get(solver, "l2")
            yield Case(name, solver, split, loss, penalty, base_of(solver), {"relation": relation}, given)
    for split, solver in itertools.product(("rows", "columns2"), ("auto", *SOLVERS)):
        kind, where = secure_in(split)
        for loss in ("squared", "logistic") if solver in ("auto", *SECURE[kind]) else ("squared",):
            name, given = f"secure/defaults/{solver}/{split}/{loss}", {"epsilon": 1.0}
            yield Case(name, solver, split, loss, PENALTY.get(solver, "l2"), {}, given, where)
    for split in ("rows", "columns2"):
        kind, where = secure_in(split)
        for solver, loss in itertools.product(SECURE[kind], ("huber", "hinge", "smoothed_hinge", "sigmoid")):
            name = f"secure/loss/{solver}/{split}/{loss}"
            yield Case(name, solver, split, loss, "l2", base_of(solver), {}, where)
        for solver, penalty in itertools.product(
            ("newton", "gradient", "whitened"), ("none", "l1", "elastic_net", "l1_ball", "l2_ball", "box")
        ):
            name = f"secure/penalty/{solver}/{split}/{penalty}"
            yield Case(name, solver, split, "squared", penalty, base_of(solver), {}, where)
    for form, (splits, parameters, more) in SECURE_FORMS.items():
        for split in splits:
            kind, where = secure_in(split)
            for solver in ("newton", "whitened") if kind == "rows" else SECURE[kind]:
                loss = "squared" if solver == "newton" else "logistic"
                name = f"secure/form/{solver}/{split}/{form}"
                yield Case(name, solver, split, loss, "l2", base_of(solver), parameters, where | more)


# Scenes: more than one fit.


@dataclass(frozen=True)
class Scene:
    """A named function that makes a record."""

    name: str
    act: Callable[[], Record]

    def play(self) -> Record:
        """The record of the scene."""
        with known() as seen:
            try:
                found = self.act()
            except Exception as error:
                found = {"refused": True, "error": [type(error).__name__, str(error)], "asks": 0}
        return finished(found, seen)


def regressor(solver: str = "auto", kind: str = "PrivateRidge", options: Any = None, **parameters: Any) -> Any:
    base = {"epsilon": 2.0, "entry_bound": 1.0, "label_bound": 3.0, "insecure_seed": SEED}
    return estimator(kind, solver, options or {}, **base | parameters)


def classifier(solver: str = "auto", options: Any = None, **parameters: Any) -> Any:
    base = {"epsilon": 2.0, "entry_bound": 1.0, "classes": (0, 1), "insecure_seed": SEED}
    return estimator("PrivateLogisticRegression", solver, options or {}, **base | parameters)


def counter(options: Any = None, **parameters: Any) -> Any:
    base = {"epsilon": 9.0, "entry_bound": 1.0, "label_bound": (0, 6), "insecure_seed": SEED}
    return estimator("PrivatePoissonRegressor", "whitened", options or {"rounds": 4}, **base | parameters)


def path_scene(where: str, **parameters: Any) -> Record:
    X, y = DATA.X, DATA.y
    data: tuple[Any, ...] = (X, y) if where == "arrays" else (federation_of(where, y),)
    alphas = parameters.pop("alphas")
    options = {"rounds": 4}
    model = regressor("newton", "PrivateLasso", options, **{"alpha": 1e-3} | parameters)
    tape = None if where == "arrays" else Tape(data[0])
    path = model.path(*data, alphas=alphas)
    found = {} if tape is None else tape.record()
    found |= model_record(path.fitted)
    one = path.model(0.02)
    values = [path.alphas, path.coefs, path.intercepts, one.coef_, one.intercept_, one.predict(X[:9])]
    return found | {"extra": [np.asarray(value) for value in values]}


def arrays_scene(model: Any, y: Any, *, sparse: bool = False) -> Record:
    X = sp.csr_matrix(DATA.X) if sparse else DATA.X
    model.fit(X, y)
    seen = [model.predict(X), model.score(X, y)]
    for name in ("decision_function", "predict_proba", "predict_log_proba"):
        if hasattr(model, name):
            seen.append(getattr(model, name)(X))
    seen += [model.sparse_coef_.toarray(), list(model.selected_features_.values())]
    return model_record(model) | {"extra": [*(np.asarray(value) for value in seen), str(model.privacy_)]}


def ledger_scene(
    make: Callable[[], Any], split: str, y: Any, runs: int, composition: str = "renyi", **where: Any
) -> Record:
    """Fits that are charged to ledgers of their own, then what the ledgers say."""
    with tempfile.TemporaryDirectory() as folder:
        count = 3 if split == "rows" else int(split.removeprefix("columns") or 1)
        accounts = [
            sv.Ledger.create(Path(folder) / f"{k}.ledger").open("people", 9.0, 1e-4, composition=composition)
            for k in range(count)
        ]
        found: list[Record] = []
        for _ in range(runs):
            federation = federation_of(split, y, ledgers=accounts, **where)
            tape = Tape(federation)
            model = make().fit(federation)
            found.append(tape.record() | model_record(model))
        books = []
        for account in accounts:
            balance = account.balance()
            kinds = [(entry.kind, entry.round, entry.query) for entry in account.history() if entry.kind != "rows"]
            books.append([balance.total, balance.left, balance.spent, balance.plans, kinds])
    strict = [{part: run.get(part) for part in (*SKETCHED, "epsilons", *EXACT)} for run in found]
    return found[-1] | {"extra": [strict, books]}


def prediction_scene(model: Any, y: Any, split: str, recipient: str | None, **where: Any) -> Record:
    """A fit by columns, then joint predictions for other people."""
    federation = federation_of(split, y, **where)
    model.fit(federation)
    found = model_record(model)
    new = make_data(30, 6, seed=3).X
    new[4, 1] = np.nan
    ends = np.cumsum((0, *COLUMNS[int(split.removeprefix("columns"))]))
    people = federation.people([new[:, a:b] for a, b in itertools.pairwise(ends)])
    tape = Tape(people)
    scores = getattr(model, "decision_function", model.predict)
    if recipient is None:
        seen = scores(people)
    else:
        model.predict_for(people, recipient)
        seen = people.predictions[recipient].scores
    return found | tape.record() | {"extra": np.asarray(seen)}


class Leaving(Tape):
    """A conversation in which a party is gone from some round on."""

    def __init__(self, federation: Any, party: str, round_: int) -> None:
        super().__init__(federation)
        self._party, self._round, self._gone = party, round_, False

    def __call__(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        frames = [frame_of(data) for data in messages.values()]
        self._gone |= any(frame.kind == "ask" and frame.round == self._round for frame in frames)
        there = {name: data for name, data in messages.items() if not (self._gone and name == self._party)}
        replies = super().__call__(there)
        if len(there) < len(messages):
            raise sv.WireError(f"no answer of {self._party!r}", [self._party])
        return replies


def leaving_scene(model: Any, y: Any, **where: Any) -> Record:
    federation = federation_of("rows", y, sums="secure", **where)
    tape = Leaving(federation, "party-2", 2)
    try:
        model.fit(federation)
    except sv.WireError as error:
        return tape.record() | {"refused": True, "error": [type(error).__name__, str(error)]}
    return tape.record() | model_record(model)


def fields_of(rows: Iterable[Any]) -> list[list[Any]]:
    """The fields of dataclasses, numbers as arrays: they may be as good as 0."""
    found = [dataclasses.astuple(row) for row in rows]
    return [[np.array(value) if isinstance(value, float) else value for value in row] for row in found]


def bought_scene(model: Any, split: str, y: Any, **where: Any) -> Record:
    """A fit of several plans, with what each of them releases and what was bought."""
    federation = federation_of(split, y, **where)
    tape = Tape(federation)
    model.fit(federation)
    table = fields_of(model.coefficients()) if hasattr(model, "coefficients_") else []
    extra = [[plan_record(plan) for plan in model.plans_], table, getattr(model, "alpha_", None), str(model.privacy_)]
    return tape.record() | model_record(model) | {"extra": extra}


def fit_scene(model: Any, split: str, y: Any, *, most_records: int | None = None, **where: Any) -> Record:
    """A fit to labels that other cases do not have: counts, or records of people who have several."""
    federation = federation_of(split, y, **where)
    tape = Tape(federation)
    model.fit(federation, most_records=most_records)
    return tape.record() | model_record(model) | {"extra": [model.plan_.form, str(model.privacy_)]}


def evaluation_scene(model: Any, split: str, y: Any, *, people: str = "others", **where: Any) -> Record:
    """A fit, then its evaluation on other people."""
    model.fit(federation_of(split, y, **where))
    other = make_data(seed=4)
    labels = other.y if y is DATA.y else counts_of(other) if y is COUNTS else other.classes
    test = federation_of(split, labels, X=other.X, **where)
    tape = Tape(test)
    found = sv.evaluate(model, test, epsilon=1.0, people=people, insecure_seed=SEED)
    extra = [
        plan_record(found.plan_),
        list(found.metrics),
        fields_of(found.metrics.values()),
        found.cells,
        found.with_fit,
    ]
    return tape.record() | model_record(model) | {"extra": [*extra, str(found.privacy_)]}


def search_scene() -> Record:
    search = sv.PrivateRandomizedSearch(
        regressor(insecure_seed=None), {"alpha": [0.001, 0.1]}, epsilon=2.0, mean_trials=2.0, insecure_seed=SEED
    )
    search.fit(DATA.X, DATA.y)
    extra = [search.best_params_, float(search.best_score_), str(search.privacy_)]
    return model_record(search.best_estimator_) | {"extra": extra}


def auto_scene(model: Any, federation: Any) -> Record:
    plan = model.plan(federation)
    return plan_record(plan) | {"extra": solver_of(plan)}


def scenes() -> Iterator[Scene]:
    """Paths, arrays, ledgers, joint predictions."""
    for where in ("arrays", "central", "rows"):
        for how, given in (("tight", {}), ("inf", {"epsilon": INF}), ("replace-one", {"relation": "replace-one"})):
            yield Scene(f"path/{where}/{how}", lambda w=where, g=given: path_scene(w, alphas=5, **g))
    yield Scene("path/central/given", lambda: path_scene("central", alphas=[0.3, 0.01, 0.1]))
    yield Scene("path/central/no intercept", lambda: path_scene("central", alphas=4, fit_intercept=False))
    few = {"rounds": 4}
    for sparse in (False, True):
        name = "sparse" if sparse else "dense"
        yield Scene(
            f"arrays/ridge/{name}", lambda s=sparse: arrays_scene(regressor("newton", options=few), DATA.y, sparse=s)
        )
        yield Scene(
            f"arrays/logistic/{name}", lambda s=sparse: arrays_scene(classifier("newton", few), DATA.classes, sparse=s)
        )
    yield Scene("arrays/texts", lambda: arrays_scene(classifier(classes=None), np.where(DATA.classes, "yes", "no")))
    yield Scene("arrays/auto/ridge", lambda: arrays_scene(regressor(alpha=0.02), DATA.y))
    yield Scene("arrays/auto/inf", lambda: arrays_scene(regressor(epsilon=INF), DATA.y))
    yield Scene("ledger/newton/rows", lambda: ledger_scene(lambda: regressor("newton", options=few), "rows", DATA.y, 2))
    for rule in ("basic", "gaussian"):
        yield Scene(
            f"ledger/newton/rows/{rule}",
            lambda c=rule: ledger_scene(lambda: regressor("newton", options=few), "rows", DATA.y, 2, c),
        )
    yield Scene("ledger/sgd/rows", lambda: ledger_scene(lambda: regressor("sgd", options=few), "rows", DATA.y, 1))
    yield Scene(
        "ledger/greedy-cd/rows",
        lambda: ledger_scene(lambda: regressor("greedy-cd", "PrivateLasso", few), "rows", DATA.y, 1),
    )
    yield Scene(
        "ledger/score/columns2", lambda: ledger_scene(lambda: classifier("score", few), "columns2", DATA.classes, 1)
    )
    for recipient in (None, "party-1", "party-2"):
        whom = recipient or "coordinator"
        yield Scene(
            f"predict/score/columns2/{whom}",
            lambda r=recipient: prediction_scene(classifier("score", few), DATA.classes, "columns2", r),
        )
        yield Scene(
            f"predict/admm/columns3/{whom}",
            lambda r=recipient: prediction_scene(regressor("admm", options={"rounds": 3}), DATA.y, "columns3", r),
        )
        yield Scene(
            f"predict/admm/columns2/kept/{whom}",
            lambda r=recipient: prediction_scene(
                regressor("admm", options={"rounds": 9, "models": "kept"}, epsilon=INF), DATA.y, "columns2", r
            ),
        )
        yield Scene(
            f"predict/admm/columns3/feature/{whom}",
            lambda r=recipient: prediction_scene(
                regressor("admm", options={"rounds": 3, "unit": "feature"}, alpha=0.02),
                DATA.y,
                "columns3",
                r,
                labels="public",
            ),
        )


def secure_scenes() -> Iterator[Scene]:
    """A party that leaves, ledgers and joint predictions, of secure sums."""
    few, retries = {"rounds": 4}, {"dropouts": 1, "retries": 1}
    for solver, options in (("newton", few), ("whitened", few), ("sgd", {"rounds": 6}), ("cd", {"inner": 14})):
        kind = "PrivateLasso" if solver == "cd" else "PrivateRidge"
        yield Scene(
            f"secure/leaving/{solver}",
            lambda s=solver, k=kind, o=options: leaving_scene(regressor(s, k, o), DATA.y, aggregation=retries),
        )
    yield Scene(
        "secure/leaving/dealer",
        lambda: leaving_scene(classifier("newton", few), DATA.classes, aggregation=retries, dealer="notary"),
    )
    yield Scene("secure/leaving/nothing spare", lambda: leaving_scene(classifier("newton", few), DATA.classes))
    for split, solver in (("rows", "newton"), ("rows", "sgd"), ("columns2", "whitened"), ("columns3", "gradient")):
        _, where = secure_in(split)
        yield Scene(
            f"secure/ledger/{solver}/{split}",
            lambda s=solver, w=split, o=where: ledger_scene(lambda: classifier(s, few), w, DATA.classes, 2, **o),
        )
    for split, recipient in (("columns2", None), ("columns3", None), ("columns3", "party-2")):
        yield Scene(
            f"secure/predict/whitened/{split}/{recipient or 'coordinator'}",
            lambda w=split, r=recipient: prediction_scene(
                classifier("whitened", few), DATA.classes, w, r, products="secure"
            ),
        )
    for split in ("columns2", "columns3"):
        held: dict[str, Any] = {"products": "secure", "labels": "held", "label_party": 1}
        people = {"most_records": 8, **held}
        for name, (make, y) in {
            "numbers": (lambda: regressor("whitened", options=few, epsilon=9.0), DATA.y),
            "classes": (lambda: classifier("whitened", few, epsilon=9.0), DATA.classes),
        }.items():
            of_people = sv.labels_with(y, person=WHOSE)
            yield Scene(
                f"secure/people/whitened/{split}/{name}",
                lambda m=make, n=of_people, w=split, o=people: fit_scene(m(), w, n, **o),
            )
        yield Scene(
            f"secure/counts/whitened/{split}/poisson", lambda w=split, o=held: fit_scene(counter(), w, COUNTS, **o)
        )
        yield Scene(
            f"secure/counts/evaluation/{split}", lambda w=split, o=held: evaluation_scene(counter(), w, COUNTS, **o)
        )


def purchases() -> Iterator[Scene]:
    """Several classes, class weights, and what is bought beside a fit: ranges, alpha, errors, evaluations, a search."""
    several = (DATA.y > -0.3).astype(np.int64) + (DATA.y > 0.8)
    weights = {0: 1, 1: 3}
    for split, where in (
        ("central", {}),
        ("rows", {}),
        ("rows", {"sums": "secure"}),
        ("columns2", {"products": "secure"}),
    ):
        said = f"{split}/secure" if where else split
        for solver in ("newton", "gradient", "sgd", "whitened"):
            yield Scene(
                f"weights/{solver}/{said}",
                lambda s=solver, w=split, o=where: bought_scene(
                    classifier(s, base_of(s), class_weight=weights), w, DATA.classes, **o
                ),
            )
        for solver, epsilon in itertools.product(("gradient", "whitened"), (2.0, INF)):
            yield Scene(
                f"classes/{solver}/{said}/{epsilon:g}",
                lambda s=solver, w=split, o=where, e=epsilon: bought_scene(
                    classifier(s, base_of(s), classes=(0, 1, 2), epsilon=e), w, several, **o
                ),
            )
        given = {"entry_bound": None, "feature_ranges": "private", "epsilon": 200.0}
        models: dict[str, tuple[Callable[[], Any], Any]] = {
            "ranges": (lambda g=given: classifier(**g), DATA.classes),
            "alpha": (lambda: regressor(kind="PrivateLasso", alpha="auto"), DATA.y),
            "errors": (lambda: classifier(standard_errors=True), DATA.classes),
            "errors, numbers": (lambda: regressor(standard_errors=True), DATA.y),
            "errors, inf": (lambda: regressor(standard_errors=True, epsilon=INF), DATA.y),
            "ranges, errors": (lambda g=given: classifier(standard_errors=True, **g), DATA.classes),
        }
        for name, (make, y) in models.items():
            yield Scene(f"bought/{name}/{said}", lambda m=make, w=split, n=y, o=where: bought_scene(m(), w, n, **o))
        for people, (make, y) in itertools.product(
            ("others", "same"),
            ((lambda: classifier("gradient", {"rounds": 4}), DATA.classes), (lambda: regressor(alpha=0.02), DATA.y)),
        ):
            yield Scene(
                f"evaluation/{said}/{people}/{'numbers' if y is DATA.y else 'classes'}",
                lambda m=make, w=split, n=y, p=people, o=where: evaluation_scene(m(), w, n, people=p, **o),
            )
    yield Scene("search", search_scene)


def autos() -> Iterator[Scene]:
    """What "auto" chooses; no row is touched."""
    wide, wider = np.zeros((80, 320)), np.zeros((40, 2001))

    def by(split: str, y: Any, model: Any, **where: Any) -> Callable[[], Record]:
        return lambda: auto_scene(model(), federation_of(split, y, **where))

    def on(X: Any, model: Any) -> Callable[[], Record]:
        y = np.arange(len(X)) % 2
        return lambda: auto_scene(model(), sv.Federation.central(X, y))

    def svc(**given: Any) -> Any:
        return estimator("PrivateLinearSVC", "auto", {}, entry_bound=1.0, classes=(0, 1), insecure_seed=SEED, **given)

    uneven = [1.0, 1.0, 1.0, 1.0, 1.0, 9.0]
    y, classes = DATA.y, DATA.classes
    problems: dict[str, Callable[[], Record]] = {
        "ridge, weak": by("central", y, lambda: regressor(alpha=0.1)),
        "ridge, strong": by("central", y, lambda: regressor(alpha=0.1, epsilon=1e4)),
        "ridge, no penalty": by("rows", y, regressor),
        "ridge, uneven columns": by("central", y, lambda: regressor(entry_bound=uneven)),
        "ridge, ball": by("rows", y, lambda: regressor(radius=1.0)),
        "ridge, inf": by("rows", y, lambda: regressor(epsilon=INF)),
        "lasso, few features": by("central", y, lambda: regressor(kind="PrivateLasso")),
        "lasso, many features": on(wide, lambda: regressor(kind="PrivateLasso")),
        "lasso, ball of many": on(wide, lambda: regressor(kind="PrivateLasso", radius=1.0)),
        "lasso, more than many": on(wider, lambda: regressor(kind="PrivateLasso")),
        "elastic net, many": on(wide, lambda: regressor(kind="PrivateElasticNet")),
        "ridge, more than many": on(wider, lambda: regressor(alpha=0.1)),
        "none, more than many": on(wider, regressor),
        "logistic": by("central", classes, classifier),
        "logistic, l2": by("rows", classes, lambda: classifier(alpha=0.1)),
        "hinge": by("central", classes, lambda: svc(loss="hinge")),
        "hinge, l2": by("central", classes, lambda: svc(loss="hinge", alpha=0.1)),
        "sigmoid": by("central", classes, lambda: svc(loss="sigmoid")),
        "columns": by("columns2", y, regressor),
        "columns, held": by("columns2", y, regressor, labels="held"),
        "columns, inf": by("columns3", y, lambda: regressor(epsilon=INF)),
        "columns, five": by("columns5", y, regressor),
        "columns, one": by("columns1", y, regressor),
        "columns, ball": by("columns2", y, lambda: regressor(kind="PrivateLasso", radius=1.0)),
        "columns, logistic ball": by("columns2", classes, lambda: classifier(radius=1.0)),
        "columns, hinge": by("columns2", classes, lambda: svc(loss="hinge")),
        "replace-one": by("rows", y, lambda: regressor(alpha=0.1, epsilon=200.0, relation="replace-one")),
    }
    for name, act in problems.items():
        yield Scene(f"auto/{name}", act)


def all_cases() -> dict[str, Any]:
    """By name: whatever has `play`."""
    found: dict[str, Any] = {}
    makers = (main_cases, other_losses, penalties, forms, defaults, variants, secure_cases)
    makers += (scenes, secure_scenes, purchases, autos)
    for case in itertools.chain.from_iterable(make() for make in makers):
        if case.name in found:
            raise ValueError(f"two cases are called {case.name!r}.")
        found[case.name] = case
    return found


# Bad inputs: each with the error that answers it.


@dataclass(frozen=True)
class Bad:
    """Something that must be refused; `act` raises, or gives what a party says."""

    name: str
    act: Callable[[], Any]

    def play(self) -> list[str]:
        """Kind and text of the error."""
        with known() as seen:
            try:
                found = self.act()
            except Exception as error:
                return [type(error).__name__, str(error).replace(str(HERE), "")]
        if isinstance(found, list):
            return found
        return ["warning", *seen.warnings] if seen.warnings else ["nothing", ""]


def fit_bad(
    kind: str, parameters: Mapping[str, Any], solver: str, options: Mapping[str, Any], split: str, **where: Any
) -> None:
    regression = "label_bound" not in parameters and kind in ("PrivateRidge", "PrivateLasso", "PrivateElasticNet")
    base: dict[str, Any] = {"epsilon": 2.0, "entry_bound": 1.0, "insecure_seed": SEED}
    base |= {"label_bound": 3.0} if regression else {}
    y = DATA.y if kind in ("PrivateRidge", "PrivateLasso", "PrivateElasticNet") else DATA.classes
    estimator(kind, solver, options, **base | dict(parameters)).fit(federation_of(split, y, **where))


NAN = math.nan
# class, parameter, values
WRONG: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("PrivateRidge", "epsilon", (0, -1.0, NAN, "1", None, True)),
    ("PrivateRidge", "delta", (0, 1, NAN, "1e-5")),
    ("PrivateRidge", "relation", ("add-remove",)),
    ("PrivateRidge", "calibration", ("loose", "paper")),
    ("PrivateRidge", "rescale", ("unitary",)),
    ("PrivateRidge", "row_norm", (0.0, NAN, INF, "1")),
    ("PrivateRidge", "entry_bound", (0.0, "1", [1.0, 2.0], None)),
    ("PrivateRidge", "label_bound", (NAN, "5", (2.0, 1.0), (1, 2, 3), None)),
    ("PrivateRidge", "feature_ranges", (3, ([0] * 4, [1] * 4), ([1] * 6, [1] * 6))),
    ("PrivateRidge", "alpha", (-1.0, NAN, INF, "1")),
    ("PrivateRidge", "radius", (0, -1.0, "1")),
    ("PrivateRidge", "insecure_seed", (-1, 0.5, True)),
    ("PrivateRidge", "loss", ("absolute", "huber")),
    ("PrivateRidge", "threshold", (1.0,)),
    ("PrivateRidge", "ledger", (3, "nowhere.ledger")),
    ("PrivateElasticNet", "l1_ratio", (2.0,)),
    ("PrivateElasticNet", "radius", (1.0,)),
    ("PrivateLogisticRegression", "l1_ratio", (2.0,)),
    ("PrivateLinearSVC", "loss", ("squared",)),
    ("PrivateLinearSVC", "classes", ((1,), "ab", (1, 1), (5, 6))),
)
# solver, split, class, options, parameters
REFUSED: tuple[tuple[str, str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("adam", "central", "PrivateRidge", {}, {}),
    ("adam", "columns2", "PrivateLogisticRegression", {}, {}),
    ("newton", "central", "PrivateRidge", {"rounds": 0}, {}),
    ("newton", "central", "PrivateRidge", {"rounds": 2.5}, {}),
    ("newton", "central", "PrivateRidge", {"rounds": "many"}, {}),
    ("newton", "central", "PrivateRidge", {"gram_share": 1.0}, {}),
    ("newton", "central", "PrivateRidge", {"slope_bound": -1.0}, {}),
    ("newton", "central", "PrivateRidge", {"rate": 0.1}, {}),
    ("newton", "central", "PrivateRidge", {}, {"calibration": "paper"}),
    ("newton", "columns2", "PrivateRidge", {}, {}),
    ("newton", "central", "PrivateLinearSVC", {}, {"loss": "hinge"}),
    ("newton", "central", "PrivateLinearSVC", {}, {"loss": "sigmoid"}),
    ("gradient", "central", "PrivateRidge", {"step": -1.0}, {}),
    ("gradient", "central", "PrivateRidge", {"schedule": "all"}, {}),
    ("sgd", "central", "PrivateRidge", {"rate": 2.0}, {}),
    ("sgd", "rows", "PrivateRidge", {"schedule": "most"}, {}),
    ("sgd", "central", "PrivateRidge", {"gram_share": 0.1}, {}),
    ("sgd", "central", "PrivateRidge", {"rounds": 6}, {"calibration": "paper", "epsilon": INF}),
    ("scd", "central", "PrivateRidge", {}, {}),
    ("scd", "central", "PrivateLasso", {}, {"alpha": 0.1}),
    ("scd", "central", "PrivateRidge", {"dual_step": "long"}, {"alpha": 0.1}),
    ("scd", "central", "PrivateRidge", {"clip": 0.0}, {"alpha": 0.1}),
    ("scd", "central", "PrivateLinearSVC", {}, {"loss": "sigmoid", "alpha": 0.1}),
    ("scd-primal", "rows", "PrivateRidge", {}, {}),
    ("scd-primal", "central", "PrivateLasso", {}, {}),
    ("scd-primal", "central", "PrivateRidge", {"lot": 9}, {}),
    ("scd-sequential", "central", "PrivateRidge", {"lot": 0}, {"alpha": 0.1}),
    ("scd-sequential", "central", "PrivateRidge", {"lot": 20}, {"alpha": 0.0}),
    ("cd", "central", "PrivateLasso", {"order": "sorted"}, {}),
    ("cd", "central", "PrivateLasso", {"inner": 0}, {}),
    ("cd", "central", "PrivateLasso", {"averaged": 2.0}, {}),
    ("cd", "central", "PrivateLasso", {"curvatures": [1.0]}, {}),
    ("cd", "central", "PrivateLasso", {"curvatures": "all"}, {}),
    ("cd", "central", "PrivateLasso", {"curvatures": [0.2] * 6, "curvature_share": 0.1}, {}),
    ("cd", "central", "PrivateLasso", {"counted": "none"}, {"calibration": "paper"}),
    ("cd", "central", "PrivateLasso", {"inner": 2**20, "rounds": 2**20}, {}),
    ("cd", "central", "PrivateRidge", {}, {"radius": 1.0}),
    ("cd", "columns2", "PrivateLasso", {}, {}),
    ("greedy-cd", "central", "PrivateLasso", {"rule": "GS-x"}, {}),
    ("greedy-cd", "central", "PrivateLasso", {"choice_share": 1.0}, {}),
    ("greedy-cd", "central", "PrivateLasso", {"rounds": 10**9}, {}),
    ("frank-wolfe", "central", "PrivateLasso", {}, {}),
    ("frank-wolfe", "central", "PrivateRidge", {}, {"radius": 1.0}),
    ("frank-wolfe", "rows", "PrivateLasso", {}, {"radius": 1.0}),
    ("frank-wolfe", "central", "PrivateLasso", {"cap": 1}, {"radius": 1.0}),
    ("frank-wolfe", "columns2", "PrivateLasso", {"sketch": "gaussian"}, {"radius": 1.0}),
    ("frank-wolfe", "columns2", "PrivateLasso", {"sketch_size": 2}, {"radius": 1.0}),
    ("frank-wolfe", "columns2", "PrivateLasso", {"candidates": 1}, {"radius": 1.0}),
    ("admm", "central", "PrivateRidge", {}, {}),
    ("admm", "columns2", "PrivateRidge", {"rows": "stale"}, {}),
    ("admm", "columns2", "PrivateRidge", {"unit": "row"}, {}),
    ("admm", "columns2", "PrivateRidge", {"unit": "feature"}, {"alpha": 0.1}),
    ("admm", "columns2", "PrivateRidge", {"rho": 1.0}, {}),
    ("admm", "columns2", "PrivateRidge", {"clip": 1.0}, {}),
    ("admm", "columns2", "PrivateRidge", {"models": "kept"}, {}),
    ("admm", "columns2", "PrivateRidge", {"models": "lost"}, {"epsilon": INF}),
    ("admm", "columns2", "PrivateRidge", {"rho": 0.0}, {"epsilon": INF}),
    ("admm", "columns2", "PrivateRidge", {"relaxation": 3.0}, {"epsilon": INF}),
    ("admm", "columns2", "PrivateRidge", {"row_share": 0.5, "world_epsilon": 0.5}, {}),
    ("admm", "columns2", "PrivateRidge", {"world_epsilon": 5.0}, {}),
    ("admm", "columns2", "PrivateRidge", {"rounds": 1}, {}),
    ("admm", "columns2", "PrivateLinearSVC", {"rho": 0.01}, {"loss": "sigmoid", "epsilon": INF}),
    ("fdml", "rows", "PrivateRidge", {}, {}),
    ("fdml", "columns2", "PrivateRidge", {"rate": 0.5}, {}),
    ("fdml", "columns2", "PrivateRidge", {"step": 1e9}, {"epsilon": INF}),
    ("score", "columns1", "PrivateRidge", {}, {}),
    ("score", "columns2", "PrivateLinearSVC", {}, {}),
    ("score", "columns2", "PrivateRidge", {"rate": 0.5}, {}),
    ("one-shot", "columns2", "PrivateLogisticRegression", {}, {}),
    ("one-shot", "columns2", "PrivateRidge", {}, {"epsilon": INF}),
    ("one-shot", "columns2", "PrivateRidge", {"sketch_size": 0}, {}),
    ("one-shot", "columns2", "PrivateRidge", {"sketch": "fine"}, {}),
)


def bad_parameters() -> Iterator[Bad]:
    """Values that a parameter or an option does not take."""
    for kind, name, values in WRONG:
        for value in values:
            given = {name: value}
            yield Bad(
                f"parameter/{kind}/{name}={value!r}",
                lambda k=kind, g=given: fit_bad(
                    k, g, "gradient" if "calibration" not in g else "newton", {}, "central"
                ),
            )
    for solver, split, kind, options, parameters in REFUSED:
        said = ", ".join(f"{name}={value!r}" for name, value in (options | parameters).items())
        yield Bad(
            f"option/{solver}/{split}/{kind}/{said}",
            lambda s=solver, w=split, k=kind, o=options, g=parameters: fit_bad(k, g, s, o, w),
        )


def bad_data() -> Iterator[Bad]:
    """Rows, labels and federations that nobody can use."""
    X, y, classes = DATA.X, DATA.y, DATA.classes
    by_rows, by_columns = sv.Federation.by_rows, sv.Federation.by_columns
    parts = [X[:, :4], X[:, 4:]]

    acts: dict[str, Callable[[], Any]] = {
        "no labels": lambda: regressor().fit(X),
        "labels beside a federation": lambda: regressor().fit(federation_of("central", y), y),
        "a ledger beside a federation": lambda: regressor(ledger="x").fit(federation_of("central", y)),
        "fewer labels": lambda: regressor().fit(X, y[1:]),
        "one dimension": lambda: regressor().fit(X[:, 0], y),
        "no records": lambda: regressor().fit(X[:0], y[:0]),
        "words": lambda: regressor().fit(X.astype(str), y),
        "labels of words": lambda: regressor().fit(X, np.where(classes, "a", "b")),
        "complex numbers": lambda: regressor().fit(X.astype(complex), y),
        "sample weights": lambda: regressor().fit(X, y, sample_weight=np.ones(len(y))),
        "an unknown argument of fit": lambda: regressor().fit(X, y, weights=1),
        "an unknown parameter": lambda: regressor(learning_rate=1.0),
        "three classes": lambda: classifier(classes=None, solver="newton").fit(X, np.arange(len(y)) % 3),
        "one class": lambda: classifier(classes=None).fit(X, np.ones(len(y), dtype=int)),
        "classes by rows, many": lambda: classifier(classes=None).fit(by_rows([(X, np.arange(len(y)))])),
        "numbers as classes": lambda: classifier(classes=None).fit(X, y),
        "other features at prediction": lambda: regressor().fit(X, y).predict(X[:, :4]),
        "predict before fit": lambda: regressor().predict(X),
        "no parties": lambda: by_rows([]),
        "one name for two": lambda: by_rows([(X, y), (X, y)], names=["a", "a"]),
        "no pairs": lambda: by_rows([X, X]),
        "other columns by rows": lambda: by_rows([(X, y), (X[:, :4], y)]),
        "ledgers for fewer": lambda: by_rows([(X, y), (X, y)], ledgers=[None]),
        "other people by columns": lambda: by_columns([X[:, :4], X[1:, 4:]], y),
        "labels known to none": lambda: by_columns(parts, y, labels="secret"),
        "a holder who is not there": lambda: by_columns(parts, y, labels="held", label_party=2),
        "norms of words": lambda: by_columns(parts, y, norms=["a", "b"]),
        "norms for fewer": lambda: regressor(row_norm=1.0).fit(by_columns(parts, y, norms=[1.0])),
        "norms without a row norm": lambda: regressor().fit(by_columns(parts, y, norms=[1.0, 1.0])),
        "people without labels": lambda: regressor().fit(by_columns(parts, None)),
        "people of central data": lambda: federation_of("central", y).people([X]),
        "a joint prediction by rows": lambda: (
            regressor().fit(federation_of("rows", y)).predict(federation_of("rows", y))
        ),
        "predictions for a stranger": lambda: stranger(),
        "coefficients that are kept": lambda: kept_model().predict(X),
        "chosen features that are kept": lambda: kept_model().selected_features_,
        "path by another solver": lambda: regressor("cd", "PrivateLasso").path(X, y),
        "path in a ball": lambda: regressor("newton", "PrivateLasso", radius=1.0).path(X, y),
        "path of no alphas": lambda: regressor("newton", "PrivateLasso").path(X, y, alphas=0),
        "path of negative alphas": lambda: regressor("newton", "PrivateLasso").path(X, y, alphas=[-1.0]),
        "path down to zero": lambda: regressor("newton", "PrivateLasso", alpha=0.0).path(X, y),
        "a delta of one record": lambda: regressor("gradient", options={"rounds": 2}, delta=0.01).fit(X, y) and None,
        "an unknown adversary": lambda: regressor("gradient").fit(X, y).privacy_.against("aliens"),
        "a budget that is spent": spent,
        "a ledger with another relation": other_relation,
        "a ledger twice": twice,
        "a policy with a limit": limited,
        "a policy for predictions": untrained,
    }
    for name, act in acts.items():
        yield Bad(f"data/{name}", act)


def kept_model() -> Any:
    return regressor("admm", options={"rounds": 4, "models": "kept"}, epsilon=INF).fit(
        federation_of("columns2", DATA.y)
    )


def stranger() -> None:
    federation = federation_of("columns2", DATA.y)
    model = regressor("score", options={"rounds": 3}).fit(federation)
    model.predict_for(federation.people([DATA.X[:, :4], DATA.X[:, 4:]]), "nobody")


@contextlib.contextmanager
def account(epsilon: float = 1.0, relation: str = "zero-out") -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        yield sv.Ledger.create(Path(folder) / "own.ledger").open("people", epsilon, 1e-4, relation=relation)


def spent() -> None:
    with account() as own:
        regressor("newton", options={"rounds": 3}, epsilon=1.5, ledger=own).fit(DATA.X, DATA.y)


def other_relation() -> None:
    with account(9.0, "replace-one") as own:
        model = regressor("newton", options={"rounds": 3}, epsilon=6.0, ledger=own)
        model.fit(DATA.X, DATA.y)


def twice() -> None:
    with account() as own:
        sv.Federation.by_rows([(DATA.X, DATA.y), (DATA.X, DATA.y)], ledgers=[own, own])


def limited() -> None:
    federation = federation_of("rows", DATA.y, policy=sv.Policy(max_epsilon=0.5))
    regressor("newton", options={"rounds": 3}).fit(federation)


def untrained() -> None:
    federation = federation_of("rows", DATA.y, policy=sv.Policy(trains=False))
    regressor("newton", options={"rounds": 3}).fit(federation)


class Stage:
    """A party that was proposed a plan, and what it says to forged messages."""

    def __init__(self, solver: str, options: Mapping[str, Any], *, split: str = "rows", name: str = "anna") -> None:
        small = make_data(100, 4, seed=1)
        X, y = small.X, small.classes
        if split == "rows":
            parts = {"anna": (X[:40], y[:40]), "ben": (X[40:], y[40:])}
            federation = sv.Federation.by_rows(list(parts.values()), names=list(parts))
        else:
            parts = {"anna": (X[:, :2], y), "ben": (X[:, 2:], None)}
            columns = [part[0] for part in parts.values()]
            federation = sv.Federation.by_columns(columns, y, labels="held", names=list(parts))
        penalty: dict[str, Any] = {"radius": 1.0} if solver == "frank-wolfe" else {"alpha": 0.02}
        self.plan = classifier(solver, options, **penalty).plan(federation)
        self.party = seeded_party(name, *parts[name])
        self.digest, self.text = message_of(self.plan)
        self._serials = itertools.count(1)

    def raw(self, data: bytes) -> list[str]:
        """Kind and text of the answer."""
        answer = frame_of(handle(self.party, data).data)
        return [answer.kind, answer.text]

    def send(self, kind: str, **fields: Any) -> list[str]:
        return self.raw(frame_bytes(kind, next(self._serials), **fields))

    def propose(self) -> Stage:
        self.send("plan", plan=self.digest, text=self.text)
        return self

    def ask(self, query: str, round_: int = 0, **arrays: Any) -> list[str]:
        return self.send("ask", plan=self.digest, round=round_, query=query, arrays=arrays)


def gradient_stage(name: str = "anna") -> Stage:
    return Stage("gradient", {"rounds": 5}, name=name)


def forged_plan(changes: Mapping[str, Any]) -> list[str]:
    stage = gradient_stage()
    digest_, text = forge(stage.plan, **changes)
    return stage.send("plan", plan=digest_, text=text)


def poisoned() -> list[str]:
    """A NaN, which the encoder would refuse, put into the bytes."""
    stage = gradient_stage().propose()
    fields: dict[str, Any] = {"plan": stage.digest, "round": 0, "query": "gradient"}
    data = frame_bytes("ask", 1, **fields, arrays={"weights": np.zeros(5)})
    return stage.raw(data[:-8] + struct.pack("<d", NAN))


def broken_frame(change: Callable[[bytes], bytes]) -> list[str]:
    return gradient_stage().raw(change(frame_bytes("hello", 1, text="x")))


def earlier_round() -> list[str]:
    stage = gradient_stage().propose()
    stage.ask("gradient", 1, weights=np.zeros(5))
    return stage.ask("gradient", 0, weights=np.zeros(5))


def proposed_again() -> list[str]:
    stage = gradient_stage().propose()
    stage.send("done", plan=stage.digest)
    return stage.send("plan", plan=stage.digest, text=stage.text)


def bad_messages() -> Iterator[Bad]:
    """Plans and messages of a coordinator that does not follow the protocol."""
    for name, changes in FORGERIES.items():
        yield Bad(f"plan/{name}", lambda c=changes: forged_plan(c))
    yield Bad("plan/no plan", lambda: gradient_stage().send("plan", plan=bytes(32), text="{}"))
    yield Bad("plan/no JSON", lambda: gradient_stage().send("plan", plan=bytes(32), text="plan"))
    yield Bad("plan/another digest", lambda: other_digest())
    yield Bad("plan/once more", proposed_again)
    yield Bad("plan/without privacy", without_privacy)
    kinds: dict[str, tuple[np.ndarray, ...]] = {
        "four weights": (np.zeros(4),),
        "a matrix": (np.zeros((5, 1)),),
        "whole numbers": (np.zeros(5, dtype=np.int64),),
        "huge numbers": (np.full(5, 1e101),),
        "no weights": (),
    }
    for name, given in kinds.items():
        arrays = {"weights": given[0]} if given else {}
        yield Bad(f"message/gradient/{name}", lambda a=arrays: gradient_stage().propose().ask("gradient", 0, **a))
    five = np.zeros(5)
    acts: dict[str, Callable[[], Any]] = {
        "gradient/NaN": poisoned,
        "gradient/a round after the last": lambda: gradient_stage().propose().ask("gradient", 5, weights=five),
        "gradient/a negative round": lambda: gradient_stage().propose().ask("gradient", -1, weights=five),
        "gradient/an earlier round": earlier_round,
        "gradient/a query not in the plan": lambda: gradient_stage().propose().ask("gram", 0, weights=five),
        "gradient/before the plan": lambda: gradient_stage().ask("gradient", 0, weights=five),
        "kind/facts": lambda: gradient_stage().send("facts"),
        "kind/answer": lambda: gradient_stage().send("answer"),
        "hello/classes": lambda: gradient_stage().send("hello", query="classes"),
        "predict/nobody may": lambda: gradient_stage().send("predict", plan=bytes(32), query="coordinator", text="{}"),
        "bytes/none": lambda: gradient_stage().raw(b""),
        "bytes/another magic": lambda: broken_frame(lambda data: b"none" + data[4:]),
        "bytes/another version": lambda: broken_frame(lambda data: data[:4] + b"\x09" + data[5:]),
        "bytes/an unknown kind": lambda: broken_frame(lambda data: data[:5] + b"\x63" + data[6:]),
        "bytes/cut": lambda: broken_frame(lambda data: data[:-3]),
        "bytes/longer": lambda: broken_frame(lambda data: data + bytes(8)),
        "encode/NaN": lambda: frame_bytes("ask", 1, arrays={"weights": np.array([NAN])}),
        "encode/float32": lambda: frame_bytes("ask", 1, arrays={"weights": np.zeros(2, dtype=np.float32)}),
        "encode/an unknown kind": lambda: frame_bytes("shout", 1),
        "encode/a short digest": lambda: frame_bytes("ask", 1, plan=b"x"),
    }
    curvatures = np.ones(5)

    def greedy(name: str, query: str, round_: int, **arrays: Any) -> Callable[[], list[str]]:
        return lambda: Stage("greedy-cd", {"rounds": 6}, name=name).propose().ask(query, round_, **arrays)

    def columns(
        solver: str, options: Any, name: str, query: str, round_: int, **arrays: Any
    ) -> Callable[[], list[str]]:
        return lambda: Stage(solver, options, split="columns", name=name).propose().ask(query, round_, **arrays)

    def sampled(name: str, round_: int) -> Callable[[], list[str]]:
        options = {"rounds": 6, "rate": 0.2, "schedule": "one-party"}
        return lambda: Stage("sgd", options, name=name).propose().ask("gradient", round_, weights=five)

    acts |= {
        "greedy-cd/not its turn": greedy("ben", "choice", 1, weights=five, curvatures=curvatures),
        "greedy-cd/no curvatures": greedy("anna", "choice", 1, weights=five),
        "greedy-cd/negative curvatures": greedy("anna", "choice", 1, weights=five, curvatures=-curvatures),
        "greedy-cd/huge weights": greedy("anna", "choice", 1, weights=five + 1e90, curvatures=curvatures),
        "greedy-cd/no index": greedy("anna", "coordinates", 1, weights=five, curvatures=curvatures),
        "greedy-cd/index of no column": greedy(
            "anna", "coordinates", 1, weights=five, curvatures=curvatures, index=np.array([9])
        ),
        "greedy-cd/index as a float": greedy(
            "anna", "coordinates", 1, weights=five, curvatures=curvatures, index=np.array([1.0])
        ),
        "cd/no curvatures": lambda: Stage("cd", {"inner": 8}).propose().ask("coordinates", 1, weights=five),
        "scd/no weights": lambda: Stage("scd", {"rounds": 4, "rate": 0.2}).propose().ask("steps", 0),
        "frank-wolfe/no atoms": columns("frank-wolfe", {"rounds": 4}, "anna", "atom", 1),
        "frank-wolfe/a feature of another": columns("frank-wolfe", {"rounds": 4}, "anna", "feature", 1),
        "admm/labels of another": columns("admm", {"rounds": 3}, "ben", "labels", 0),
        "admm/no weights": columns("admm", {"rounds": 3}, "anna", "scores", 1),
        "admm/rows": columns("admm", {"rounds": 3}, "anna", "rows", 0),
        "admm/many weights": columns("admm", {"rounds": 3}, "anna", "scores", 1, weights=np.zeros(7)),
        "score/not its turn": columns("score", {"rounds": 3}, "ben", "gradient", 99, weights=np.zeros(3)),
        "score/labels of another": columns("score", {"rounds": 3}, "ben", "labels", 0),
        "score/scores of the holder": columns("score", {"rounds": 3}, "anna", "scores", 0),
    }
    for name, act in acts.items():
        yield Bad(f"message/{name}", act)
    for round_ in range(2):
        yield Bad(f"message/sgd/not its turn in round {round_}", sampled("ben", round_))


def other_digest() -> list[str]:
    stage = gradient_stage()
    return stage.send("plan", plan=bytes(32), text=stage.text)


def without_privacy() -> list[str]:
    small = make_data(100, 4, seed=1)
    parts = [(small.X[:40], small.classes[:40]), (small.X[40:], small.classes[40:])]
    plan = classifier("gradient", {"rounds": 3}, epsilon=INF).plan(sv.Federation.by_rows(parts, names=["anna", "ben"]))
    stage = gradient_stage()
    digest_, text = message_of(plan)
    return stage.send("plan", plan=digest_, text=text)


def all_bad() -> dict[str, Bad]:
    """By name."""
    found: dict[str, Bad] = {}
    for case in itertools.chain(bad_parameters(), bad_data(), bad_messages()):
        if case.name in found:
            raise ValueError(f"two bad inputs are called {case.name!r}.")
        found[case.name] = case
    return found


# The store.


def facts_of(record: Record, name: str) -> Record:
    """What transcripts.json has of a run."""
    found = {part: sketch(record[part]) for part in SKETCHED if part in record}
    if "frames" in found:
        frames = record["frames"]
        found["frames"] = f"{len(before_ties(frames, name))}:{sketch(before_ties(frames, name))}"
    if "epsilons" in record:
        found["epsilons"] = " ".join("None" if value is None else f"{value:.9g}" for value in record["epsilons"])
    if "texts" in record:
        found["texts"] = digest(record["texts"])
    return found | {part: record[part] for part in FACTS if part in record and part not in found}


def bits_of(record: Record, name: str) -> Record:
    """What bits-HASH.json has of a run."""
    found = {part: hash_of(record[part]) for part in SKETCHED if part in record}
    if "frames" in found:
        found["trail"] = "".join(hash_of(frame)[0] for frame in record["frames"][:TRAIL])
    if "epsilons" in record:
        found["epsilons"] = digest(["None" if value is None else f"{value:.13g}" for value in record["epsilons"]])
    found |= {part: record[part] for part in LOOSE_BITS if part in record}
    if tied(name):
        found["rest"] = digest([record.get(part) for part in AFTER_TIES if part not in SKETCHED])
    return {part: value for part, value in found.items() if not (part in LAST_BITS and reordered(name))}


class Difference(NamedTuple):
    """Parts of a run that are not as they were: those that may not change, and those that may where it is stated."""

    strict: list[str]
    loose: list[str]
    by_bits: bool  # whether it was compared to the last bit
    where: str = ""


def difference(name: str, record: Record, stored: Record, bits: Record | None) -> Difference:
    """A run beside its record; `bits` are those of this processor, None where there are none."""
    facts, now = facts_of(record, name), bits_of(record, name)
    strict = []
    for part in (*SKETCHED, "epsilons"):
        if bits is not None and not (part in LAST_BITS and reordered(name)):
            same = bits.get(part) == now.get(part)
        else:
            same = near(stored.get(part), facts.get(part)) or (part in AFTER_TIES and tied(name))
        strict += [] if same else [part]
    others = [part for part in (*EXACT, *LOOSE) if stored.get(part) != facts.get(part)]
    others = [part for part in others if not (part in AFTER_TIES and tied(name))]
    strict, loose = [*strict, *(part for part in others if part in EXACT)], [part for part in others if part in LOOSE]
    if bits is None:
        return Difference(strict, loose, False)
    loose += [part for part in LOOSE_BITS if bits.get(part) != now.get(part)]
    where = first_difference(bits, now) if "frames" in strict else ""
    return Difference(strict, loose, not (reordered(name) and "model" in facts), where)


def reordered(name: str) -> bool:
    """Whether a run's sums are inexact and compiled with leave to reorder: of columns, without privacy.

    Their last bits depend on what was compiled before in the process: they are compared by their sketches everywhere.
    """
    return "inf" in name.split("/") and not {"cd", "greedy-cd", "scd-primal"}.isdisjoint(name.split("/"))


def tied(name: str) -> bool:
    """Whether rounding errors decide what a run does: of Frank-Wolfe without privacy.

    After a step that decreases the objective most, the slope along it is 0 but for rounding, and its sign says which
    atom is left. On another processor such a run is compared as far as the answers before the first such choice.
    """
    return "frank-wolfe/" in name and "inf" in name.split("/")


def before_ties(frames: list[Any], name: str) -> list[Any]:
    """The frames up to the first choice that rounding errors decide."""
    return list(itertools.takewhile(lambda frame: frame[3] < 2, frames)) if tied(name) else frames


def first_difference(stored: Record, played: Record) -> str:
    """The first frame that is another one, as far as the trail tells."""
    trails = stored.get("trail", ""), played.get("trail", "")
    for place, (one, other) in enumerate(itertools.zip_longest(*trails)):
        if one != other:
            return f"; frame {place}"
    return "; a later frame"


class Store:
    """A file with a line for each case, whose values are in the order of its fields."""

    def __init__(self, path: Path, fields: tuple[str, ...]) -> None:
        self.path, self.fields = path, fields
        self.head: dict[str, Any] = {}
        self.cases: dict[str, Record] = {}
        self.bad: dict[str, list[str]] = {}
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            for name, values in stored.pop("cases").items():
                found = dict(zip(stored["fields"], values, strict=False))
                self.cases[name] = {part: value for part, value in found.items() if value is not None}
            self.bad = stored.pop("bad", {})
            self.head = stored

    def save(self) -> None:
        """In the order in which cases are played; a file without a case is deleted."""
        if not self.cases:
            self.path.unlink(missing_ok=True)
            return
        rows = {}
        for name in [name for name in all_cases() if name in self.cases]:
            values = [self.cases[name].get(part) for part in self.fields]
            while values and values[-1] is None:
                values.pop()
            rows[name] = values
        head = {**self.head, "fields": self.fields}
        parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        parts.append(f'"cases": {{\n{_lines(rows)}\n}}')
        if self.bad:
            parts.append(f'"bad": {{\n{_lines({name: self.bad[name] for name in all_bad() if name in self.bad})}\n}}')
        self.path.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def _lines(found: Mapping[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in found.items())


def load() -> Store:
    """What no processor changes."""
    return Store(STORE, FACTS)


def load_bits() -> Store:
    """The last bits of this processor with its libraries; no case if they were never recorded."""
    store = Store(HERE / f"bits-{arithmetic()}.json", BITS)
    store.head = {"machine": machine()}
    return store


def other_bits() -> list[Store]:
    """Those of other processors."""
    own = load_bits().path
    return [Store(path, BITS) for path in sorted(HERE.glob("bits-*.json")) if path != own]


def write(cases: Mapping[str, Any], inputs: Mapping[str, Bad]) -> None:
    """Record what is played. Other processors have other bits, which are not known: theirs are deleted."""
    store, bits = load(), load_bits()
    for name, case in cases.items():
        record = case.play()
        store.cases[name], bits.cases[name] = facts_of(record, name), bits_of(record, name)
    store.bad |= {name: bad.play() for name, bad in inputs.items()}
    for other in other_bits():
        other.cases = {name: found for name, found in other.cases.items() if name not in cases}
        other.save()
    store.save()
    bits.save()
    say(f"{len(cases)} cases and {len(inputs)} bad inputs: {STORE.name} and {bits.path.name}.")


def check_bad(inputs: Mapping[str, Bad], stored: dict[str, list[str]], *, accept: bool) -> tuple[int, int]:
    """How many bad inputs are refused no more, and how many are answered otherwise."""
    let, other = 0, 0
    for name, given in inputs.items():
        was, now = stored.get(name), given.play()
        if was == now:
            continue
        if was is None or (now[0] in TAKEN and was[0] not in TAKEN):
            let += 1
            say(f"{'NEW     ' if was is None else 'TAKEN   '} {name}: {' '.join(now)}")
            continue
        other += 1
        say(f"TEXT     {name}\n  was    {one_line(was)}\n  is     {one_line(now)}")
        if accept:
            stored[name] = now
    return let, other


def check(cases: Mapping[str, Any], inputs: Mapping[str, Bad], *, accept: bool = False, record: bool = False) -> int:
    """Play and compare; 1 if anything differs that may not."""
    store, bits = load(), load_bits()
    differ, by_bits, loose_counts, errors = 0, 0, dict.fromkeys((*LOOSE, *LOOSE_BITS), 0), []
    for name, case in cases.items():
        played = case.play()
        if name not in store.cases:
            differ += 1
            say(f"NEW      {name}")
            continue
        stored = store.cases[name]
        found = difference(name, played, stored, bits.cases.get(name))
        by_bits += found.by_bits and not found.strict
        if found.strict:
            differ += 1
            say(f"DIFFERS  {name}: {', '.join(found.strict)}{found.where}")
            if played.get("error") and "refused" in found.strict:
                say(f"         now {': '.join(played['error'])}")
        for part in found.loose:
            loose_counts[part] += 1
        if "error" in found.loose and "refused" not in found.strict:
            was, now = (one_line(each.get("error", ["no error"])) for each in (stored, played))
            errors.append(f"TEXT     {name}\n  was    {was}\n  is     {now}")
        if accept and not found.strict:
            facts = facts_of(played, name)
            strict = {part: value for part, value in stored.items() if part not in LOOSE}
            store.cases[name] = strict | {part: facts[part] for part in LOOSE if part in facts}
        if (accept or record) and not found.strict and (record or name in bits.cases):
            bits.cases[name] = bits_of(played, name)
    gone = [*sorted(set(store.cases) - set(all_cases())), *sorted(set(store.bad) - set(all_bad()))]
    for line in [*(f"GONE     {name}" for name in gone), *errors]:
        say(line)
    let, other = check_bad(inputs, store.bad, accept=accept)
    if accept:
        store.save()
        for another in other_bits():
            forget(another, cases)
    if accept or record:
        bits.save()
    loose = ", ".join(f"{count} cases differ in {part}" for part, count in loose_counts.items())
    say(f"To be stated: {loose}, {other} bad inputs in their texts.")
    say(f"{len(inputs)} bad inputs: {let} are refused no more; {len(gone)} cases or inputs are gone.")
    equal = len(cases) - differ
    say(f"{len(cases)} cases: {equal} equal, {by_bits} by bits and {equal - by_bits} by tolerance; {differ} differ.")
    return int(differ + let + len(gone) > 0)


def forget(bits: Store, cases: Iterable[str]) -> None:
    """Delete what may have changed with what is accepted."""
    for name in set(cases) & set(bits.cases):
        bits.cases[name] = {part: bits.cases[name][part] for part in bits.cases[name] if part not in LOOSE_BITS}
    bits.save()


def one_line(error: list[str]) -> str:
    """An error on one line."""
    return ": ".join(error).replace("\n", " ")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Golden transcripts.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="record every case anew")
    what.add_argument("--check", action="store_true", help="compare every case with the record")
    what.add_argument("--bits", action="store_true", help="record the last bits of this processor, if the rest agrees")
    what.add_argument("--accept", action="store_true", help="record bytes, masks and texts, if the rest agrees")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases whose names have it")
    parser.add_argument("--normalise", action="append", default=[], metavar="OLD=NEW", help="a name that was changed")
    given = parser.parse_args()
    NAMES.update(reversed(pair.split("=", 1)) for pair in given.normalise)
    cases = {name: case for name, case in all_cases().items() if given.only in name}
    inputs = {name: case for name, case in all_bad().items() if given.only in f"bad/{name}"}
    if given.write:
        write(cases, inputs)
        return 0
    return check(cases, inputs, accept=given.accept, record=given.bits)


if __name__ == "__main__":
    sys.exit(main())
