"""A helper: a process that deals random numbers to the parties of sealed sums, and has no data.

    by rows      it is one more member of every roster, with the value 0 and the noise of the top-up
    by columns   it deals, in boxes that the party alone can read which they are for

It learns the plan and the public numbers of each round, nothing else. Without it the coordinator deals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from sottovoce import algorithms
from sottovoce.algorithms.registry import check_sums
from sottovoce.door.dealing import DealingGate
from sottovoce.door.frames import Frame
from sottovoce.door.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.door.query import Query, Told
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.federation import limits
from sottovoce.federation.announcements import check_start, known_keys
from sottovoce.federation.answering import Answering, acknowledged, plan_of
from sottovoce.federation.run_keys import PAIR, RunKeys
from sottovoce.federation.sealed_columns.dealer import LocalDeals
from sottovoce.federation.sealed_columns.messages import DEALT_WORDS, Stage, Wholes, dealt_for, pieces_of
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import COORDINATOR
from sottovoce.privacy.randomness import Randomness, SystemRandomness
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointSum
from sottovoce.queries.pricing import queries_of
from sottovoce.sealed.pads import WHOLE, Piece
from sottovoce.sealed.streams import hash_of
from sottovoce.sealed.sums import Call, Sealer
from sottovoce.transports.identity import PLAN, Identity

MOST_WORDS: Final = 2**29  # of pads, for all columns of all records: 4 GiB


@dataclass
class _Run:
    plan: Plan
    queries: Mapping[str, Query]
    gate: DealingGate
    sealer: Sealer | None  # by rows
    deals: LocalDeals | None  # by columns
    started: bool = False


class Helper(Answering):
    """An end of a wire without rows and without a ledger: it deals under plans that name it.

    Guarantee: it deals under a plan once every party of it has signed it, each number once; asked again, it sends the
    same bytes. Restarted, it has lost its keys and refuses the plan. Run it apart from the coordinator and from all
    parties: by columns a helper that pools with a party reads all columns, by rows it takes its noise away.
    """

    def __init__(self, name: str, *, randomness: Randomness | None = None) -> None:
        if not name or name == COORDINATOR:
            raise InputError(f"name={name!r} is no name of a helper; take one that no party and no coordinator has.")
        super().__init__()
        self.name = name
        self.randomness: Randomness = randomness or SystemRandomness()
        self._identity: Identity | None = None
        self._keys = RunKeys(None, name)
        self._seen: set[bytes] = set()
        self._run: _Run | None = None

    def identify(self, identity: Identity) -> None:
        """How it signs, and knows the parties; told by its own end of a wire."""
        self._identity = identity

    def _answer(self, frame: Frame) -> Outgoing:
        limits.check_text(frame.text, 0)
        if frame.kind == "hello" and frame.query == "seal":
            key = declare_public("public_key", self._keys.new(), reason="random, made to be told")
            return reply("facts", frame, (key,))
        if frame.kind == "plan" and frame.query == PAIR:
            return self._keys.answer(frame)
        if frame.kind == "plan" and frame.query != "start":
            return reply("accept", frame, self._accept(frame))
        if frame.kind == "done":
            self._run, self._keys = None, RunKeys(None, self.name)
            return reply("done", frame, acknowledged(True))
        if frame.kind not in ("plan", "seal", "ask"):
            raise RefusedError(f"{self.name} is a helper: it has no records, and answers no {frame.kind!r}.")
        run = self._run
        if run is None or run.plan.digest != frame.plan:
            return reply("unknown-plan", frame, acknowledged(False))
        if frame.kind == "plan":
            return self._start(run, frame)
        if not run.started:
            raise RefusedError(f"{self.name} deals nothing under this plan before every party of it has signed it.")
        return self._asked(run, frame) if frame.kind == "ask" else self._dealt(run, frame)

    def _accept(self, frame: Frame) -> tuple[Declared, ...]:
        """Sign a plan that names it as the dealer and has its key; with the query "check" only say what it would."""
        plan = plan_of(frame.text)
        if plan.digest != frame.plan:
            raise RefusedError("the plan's text and its digest do not agree.")
        if self._run is None or self._run.plan.digest != plan.digest:
            run = self._checked(plan)
            if frame.query == "check":
                self._keys.hold(plan)
                return acknowledged(True)
            self._keys.check_agreed(plan)
            self._keys.keep(plan)
            self._run = run
            self._seen.add(plan.digest)
        if self._identity is None:
            raise RefusedError(f"{self.name} was not told who it is; serve it over a wire (InProcess, serve_party).")
        signature = self._identity.sign(PLAN, plan.digest)
        return (*acknowledged(True), declare_public("signature", signature, reason="over the plan's digest"))

    def _checked(self, plan: Plan) -> _Run:
        """What it would deal under a plan, or a refusal."""
        if plan.sealing is None or plan.sealing.dealer != self.name:
            raise RefusedError(f"the plan does not name {self.name} as its helper.")
        if plan.digest in self._seen:
            raise RefusedError(f"{self.name} has dealt under this plan before, and does not remember what; fit anew.")
        lost = "Start a new fit; where the plan was charged, it stays charged."
        keys = self._keys.pairs(plan, known_keys(self.name, plan.keys, None, pins=False), lost)
        columns = plan.split == "columns"
        large = len(plan.releases) > limits.MOST_RELEASES or plan.features > limits.MOST_COLUMNS
        if large or (columns and 2 * plan.records * plan.dimension > MOST_WORDS):
            raise RefusedError(f"the plan has more records, columns or releases than {self.name} deals for.")
        try:
            form = algorithms.of(plan)
            queries = queries_of(form, plan, plan.names[0])
            if missing := [release.query for release in plan.releases if release.query not in queries]:
                raise RefusedError(f"the plan releases {missing[0]!r}, which {plan.algorithm} does not have.")
            limits.check_answers(plan, queries)
            check_sums(form, plan, queries)
        except (InputError, LeakError) as error:
            raise RefusedError(f"{self.name} refuses: {error}") from None
        return _Run(
            plan,
            queries,
            DealingGate(plan, self.randomness),
            None if columns else Sealer(plan, self.name, keys),
            LocalDeals(plan, keys, self.randomness) if columns else None,
        )

    def _start(self, run: _Run, frame: Frame) -> Outgoing:
        """Deal from now on, if every party has signed this very digest."""
        check_start(run.plan, self.name, self._identity, frame.text)
        run.started = True
        return reply("accept", frame, acknowledged(True))

    def _asked(self, run: _Run, frame: Frame) -> Outgoing:
        """By rows: its part of a sum."""
        if run.sealer is None:
            raise RefusedError(f"by columns {self.name} deals, and is asked for no part of a sum.")
        query = self._query(run, frame, frame.arrays)
        return reply(
            "answer", frame, run.gate.top_up(query, frame.round, Call.read(frame.text), frame.arrays, run.sealer)
        )

    def _dealt(self, run: _Run, frame: Frame) -> Outgoing:
        """By columns: what single parties need for a sum."""
        stage, deals, number = Stage.read(frame.text), run.deals, frame.round
        if deals is None:
            raise RefusedError(f"by rows {self.name} adds noise to sums, and deals nothing.")
        told = {name: array for name, array in frame.arrays.items() if name in stage.said}
        query, made = self._query(run, frame, told), partial(_made, deals, run.plan, number, told)
        if stage.name != dealt_for(query):
            raise RefusedError(f"nothing is dealt for {frame.query!r} under {stage.name!r}.")
        if stage.piece not in (pieces_of(run.plan, query, told) if isinstance(query, JointSum) else (WHOLE,)):
            raise RefusedError("the records of a look-up are cut as the plan has it.")
        label = [stage.name, number, *stage.piece]
        dealt = run.gate.dealt(label, frame.query + hash_of(told), lambda: made(query, stage.piece))
        return reply("answer", frame, dealt)

    def _query(self, run: _Run, frame: Frame, told: Told) -> Query:
        """The query of a frame, if the plan has it in that round and the message has what it takes."""
        query, number = run.queries.get(frame.query), frame.round
        release = run.plan.release(frame.query)
        if query is None or not release.first <= number < release.first + release.count:
            raise RefusedError(f"query {frame.query!r} in round {number} is not in the plan; nothing was dealt.")
        reason = query.objection(run.plan, number, told)
        if reason is not None:
            raise RefusedError(f"query {frame.query!r} in round {number} {reason}.")
        return query


def _made(  # noqa: PLR0913  # one message
    deals: LocalDeals, plan: Plan, number: int, told: Told, query: Query, piece: Piece
) -> dict[str, Wholes]:
    """What is dealt for a query, by the place of the party that it is for and what it is."""
    if isinstance(query, JointSum):
        dealt = deals.lookup(number, query, told, piece)
    else:
        words = deals.gram(query) if isinstance(query, GramMatrix) else deals.own(number, query, told)
        dealt = {name: {DEALT_WORDS: own} for name, own in words.items()}
    places = {name: place for place, name in enumerate(plan.names)}
    return {f"{places[name]} {what}": words for name, own in dealt.items() for what, words in own.items()}
