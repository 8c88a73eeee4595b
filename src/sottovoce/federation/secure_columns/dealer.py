"""The dealer of secure sums, which has no data: in the coordinator's process, or in a process of its own (`Dealer`).

    by rows      in its own process it is one more member of every roster, with the value 0 and the noise of the top-up
    by columns   it gives random numbers to the parties, in envelopes that only the party they are for can read

It learns the plan and the public numbers of each round, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sottovoce import algorithms
from sottovoce.algorithms import check_sums
from sottovoce.errors import InputError, LeakError, RefusedError, WireError
from sottovoce.federation.answering import (
    ACCEPTED,
    CHECKS,
    MOST_COLUMNS,
    MOST_RELEASES,
    Answering,
    check_answer_sizes,
    check_text,
    read_plan,
    unknown_plan,
)
from sottovoce.federation.replies import Envelopes, Exchange, envelope_of
from sottovoce.federation.run_keys import PAIR, RunKeys, check_start, known_keys
from sottovoce.federation.secure_columns.coordinator import (
    DEALT,
    FACTOR,
    GRAM,
    LENGTH,
    OWN,
    ProgramPiece,
    RestartedError,
    Stage,
    Wholes,
    place_of,
    split_told,
)
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.gate.query import MessageArrays, Query
from sottovoce.gate.secure_gate import DealingGate, UsedLabels, noise_of
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.mechanisms import Randomness, SystemRandomness, wide_gaussian
from sottovoce.queries.pricing import queries_of
from sottovoce.secure.dealer import ColumnDealer
from sottovoce.secure.pair_keys import PairKeys
from sottovoce.secure.ring import ring_bits
from sottovoce.secure.streams import Fields, Label, TranscriptHash, labelled, pack_fields, seal_envelope
from sottovoce.secure.sums import Call, Masker, packed_envelope
from sottovoce.transports.identity import PLAN, Identity

MOST_WORDS: Final = 2**29  # of masks, for all columns of all records: 4 GiB


class LocalDeals:
    """The dealer in this process: the coordinator's own, or a dealer's.

    Guarantee: what has a label has one content. Asked again, the same envelope is given; for other numbers it is
    refused, by what `used` has. All that is dealt, noise and coins too, follows from the keys and what was told so far,
    which a label has: it is the same envelopes in every process, copy and backup, and no envelope opens for a party
    that was told other numbers, for which noise and tables could be too small.
    """

    def __init__(self, plan: Plan, keys: PairKeys, randomness: Randomness, used: UsedLabels | None = None) -> None:
        self._plan = plan
        self._randomness = keys.key.noise(plan.digest, randomness)
        self._keys = keys  # that it shares with each party; there once the members have agreed
        self._dealer: ColumnDealer | None = None  # from then on
        self._transcript = TranscriptHash()
        self._factors: dict[str, MessageArrays] = {}  # by query, what its factor was told
        self._used = used or UsedLabels()
        self._last: tuple[str, tuple[str, Wholes]] = ("", ("", np.zeros(0, dtype=np.int64)))

    def recall(self, work: ProgramPiece) -> None:
        work.labels(self._transcript)

    def deal(self, work: ProgramPiece) -> tuple[str, Wholes]:
        """One envelope; the top-up is in that of the first piece."""
        work.check(self._plan)
        labels, piece, program, query = work.labels(self._transcript), work.piece, work.program, work.query
        label = labels.label(program if program in (GRAM, OWN) else f"{program} {DEALT}", piece)
        if self._last[0] == json.dumps(label):
            return self._last[1]
        if self._dealer is None:
            names = self._plan.names
            seeds = dict(zip(names, map(self._keys.__getitem__, names), strict=True))
            self._dealer = ColumnDealer(seeds, place_of(self._plan, names[0]), self._plan.records)
        dealer = self._dealer
        if query is None:
            receiver, fields = dealer.null(labels, piece)
        elif program == FACTOR:
            self._factors[work.name] = work.told
            receiver, fields = dealer.factor(labels, piece, work.projection(self._plan))
        else:
            noise: Any = self._noise(query, labelled(self._randomness, label)) if piece[0] == 0 else 0
            coins = labelled(self._randomness, ["coins", *label])  # of the bits that are looked up
            if program in (GRAM, OWN):
                receiver, fields = dealer.gram(labels, noise) if program == GRAM else dealer.own(labels, noise)
            elif program == LENGTH:
                receiver, fields = dealer.length(labels, piece, work.projection(self._plan), noise, coins)
            elif (lookup := work.lookup(self._plan, self._factors)) is not None:
                receiver, fields = dealer.look_up(labels, piece, lookup, noise, coins)
            else:
                raise RefusedError(f"nothing is dealt for {program!r}.")
        words = self._enveloped(receiver, label, fields)
        self._used.use(json.dumps([receiver, *label[:-1]]), words.tobytes())
        self._last = json.dumps(label), (receiver, words)
        return self._last[1]

    def _noise(self, query: Query, randomness: Randomness) -> Wholes:
        top_up = self._plan.channel.aggregation.top_up(len(self._plan.names))
        if top_up == 0.0:
            return np.zeros(query.length, dtype=np.int64)
        return wide_gaussian(noise_of(query, self._plan).steps(top_up), query.length, randomness)

    def _enveloped(self, receiver: str, label: Label, fields: Fields) -> Wholes:
        data = pack_fields(fields, ring_bits(self._plan))
        return packed_envelope(seal_envelope(self._keys[receiver], label, self._plan.channel.aggregation.dealer, data))


@dataclass(frozen=True)
class RemoteDeals:
    """A dealer elsewhere, as the coordinator asks it to deal."""

    _plan: Plan
    _dealer: str
    _exchange: Exchange

    def deal(self, work: ProgramPiece) -> tuple[str, Wholes]:
        envelopes = self._ask("deal", work)
        (place, *more) = envelopes or ("",)
        if more or place not in map(str, range(len(self._plan.names))):
            raise WireError(f"dealer {self._dealer!r} dealt to {len(envelopes)} parties in place of one.")
        return self._plan.names[int(place)], envelope_of(self._dealer, envelopes, place)

    def recall(self, work: ProgramPiece) -> None:
        self._ask("recall", work)

    def _ask(self, name: str, work: ProgramPiece) -> Envelopes:
        stage = Stage(name, work.piece, tuple(work.told), work.program)
        frame = Frame("secure", 0, self._plan.digest, work.number, work.name, work.told, stage.text)
        found = self._exchange([self._dealer], frame, {})[self._dealer].frame
        if found.kind == "unknown-plan":
            raise RestartedError([self._dealer])
        return found.arrays


Deals = LocalDeals | RemoteDeals


@dataclass
class _Run:
    plan: Plan
    queries: Mapping[str, Query]
    gate: DealingGate
    masker: Masker | None  # by rows
    deals: LocalDeals | None  # by columns
    started: bool = False


class Dealer(Answering):
    """An end of a wire without rows and without a ledger: it deals under plans that name it.

    Guarantee: it deals under a plan once every party of it has signed it; asked again, it sends the same bytes, and for
    other numbers it refuses. Restarted, it has lost its keys and refuses the plan, unless they are in a folder that it
    was told to `keep` them in until the run is over: then it goes on. Whoever reads that folder and has the view of one
    party has all columns. Run a dealer apart from the coordinator and from all parties: by columns one that colludes
    with a party reads all columns, by rows it takes its noise away.
    """

    def __init__(self, name: str, *, randomness: Randomness | None = None, keep: Path | None = None) -> None:
        if not name or name == COORDINATOR:
            raise InputError(f"name={name!r} is no name of a dealer; take one that no party and no coordinator has.")
        super().__init__()
        self.name = name
        self.randomness: Randomness = randomness or SystemRandomness()
        self._identity: Identity | None = None
        self._keys = RunKeys(None, name, keep)
        self._keeps = keep is not None
        self._run: _Run | None = None

    def identify(self, identity: Identity) -> None:
        """How it signs, and knows the parties; told by its own end of a wire."""
        self._identity = identity

    def _answer(self, frame: Frame) -> Outgoing:
        check_text(frame.text, 0)
        if frame.kind == "hello" and frame.query == "secure":
            key = declare_public("public_key", self._keys.new(), reason="random, made to be told")
            return reply("facts", frame, (key,))
        if frame.kind == "plan" and frame.query == PAIR:
            return self._keys.answer(frame)
        if frame.kind == "plan" and frame.query != "start":
            return reply("accept", frame, self._accept(frame))
        if frame.kind == "done":
            self._run = None
            self._keys.forget()
            return reply("done", frame, ACCEPTED)
        if frame.kind not in ("plan", "secure", "ask"):
            raise RefusedError(f"{self.name} is a dealer: it has no records, and answers no {frame.kind!r}.")
        run = self._run
        if run is None or run.plan.digest != frame.plan:
            return unknown_plan(frame)
        if frame.kind == "plan":  # to deal from now on, if every party has signed this very digest
            check_start(run.plan, self.name, self._identity, frame.text)
            run.started = True
            return reply("accept", frame, ACCEPTED)
        if not run.started:
            raise RefusedError(f"{self.name} deals nothing under this plan before every party of it has signed it.")
        if frame.kind == "secure":
            return self._dealt(run, frame)
        if run.masker is None:
            raise RefusedError(f"by columns {self.name} deals, and is asked for no part of a sum.")
        query, call = self._query(run, frame, frame.arrays), Call.read(frame.text)
        return reply("answer", frame, run.gate.top_up(query, frame.round, call, frame.arrays, run.masker))

    def _accept(self, frame: Frame) -> tuple[Declared, ...]:
        """Sign a plan that names it as the dealer and has its key; with a query of `CHECKS` only say what it would."""
        plan = read_plan(frame.text, frame.plan)
        if self._run is None or self._run.plan.digest != plan.digest:
            run = self._checked(plan)
            if frame.query in CHECKS:
                self._keys.hold(plan)
                return ACCEPTED
            self._keys.check_agreed(plan)
            self._keys.labels(plan).begin()
            self._keys.keep(plan)
            self._run = run
        if self._identity is None:
            raise RefusedError(f"{self.name} was not told who it is; serve it over a wire (InProcess, serve_party).")
        signature = self._identity.sign(PLAN, plan.digest)
        return (*ACCEPTED, declare_public("signature", signature, reason="over the plan's digest"))

    def _checked(self, plan: Plan) -> _Run:
        if plan.channel.separate_dealer != self.name:
            raise RefusedError(f"the plan does not name {self.name} as its dealer.")
        lost = "Start a new fit; where the plan was charged, it stays charged."
        if not self._keeps:
            lost += " A dealer that is started with a folder to keep its keys in (--keep) goes on after a restart."
        keys = self._keys.pairs(plan, known_keys(self.name, plan.keys, None, pins=False), lost)
        columns = plan.secure_columns
        large = len(plan.releases) > MOST_RELEASES or plan.features > MOST_COLUMNS
        if large or (columns and plan.records * plan.dimension > MOST_WORDS):
            raise RefusedError(f"the plan has more records, columns or releases than {self.name} deals for.")
        try:
            form = algorithms.of(plan)
            queries = queries_of(form, plan, plan.names[0])
            if missing := [release.query for release in plan.releases if release.query not in queries]:
                raise RefusedError(f"the plan releases {missing[0]!r}, which {plan.algorithm} does not have.")
            check_answer_sizes(plan, queries)
            check_sums(form, plan, queries)
        except (InputError, LeakError) as error:
            raise RefusedError(f"{self.name} refuses: {error}") from None
        used = self._keys.labels(plan)
        return _Run(
            plan,
            queries,
            DealingGate(plan, self.randomness, used),
            None if columns else Masker(plan, self.name, keys),
            LocalDeals(plan, keys, self.randomness, used) if columns else None,
        )

    def _dealt(self, run: _Run, frame: Frame) -> Outgoing:
        """By columns: what single parties need for a sum."""
        stage, deals = Stage.read(frame.text), run.deals
        if deals is None:
            raise RefusedError(f"by rows {self.name} adds noise to sums, and deals nothing.")
        told, _ = split_told(frame.arrays, stage.said)
        query = self._query(run, frame, told) if frame.query else None
        work = ProgramPiece(stage.program, frame.round, query, told, stage.piece)
        if stage.name == "recall":
            deals.recall(work)
            return reply("accept", frame, ACCEPTED)
        if stage.name != "deal":
            raise RefusedError(f"{self.name} deals, and has no stage {stage.name!r}.")
        receiver, words = deals.deal(work)
        return reply("answer", frame, run.gate.dealt({str(run.plan.names.index(receiver)): words}))

    def _query(self, run: _Run, frame: Frame, told: MessageArrays) -> Query:
        """The query of a frame, if the plan has it in that round and the message has what it takes."""
        query, number = run.queries.get(frame.query), frame.round
        release = run.plan.release(frame.query)
        if query is None or not release.first <= number < release.first + release.count:
            raise RefusedError(f"query {frame.query!r} in round {number} is not in the plan; nothing was dealt.")
        query.check_message(number, told)
        return query
