"""A coordinator of real parties over secure columns that need not follow the protocol: it can say what it likes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairing import members_of
from sottovoce import algorithms
from sottovoce.federation.party import Party
from sottovoce.federation.replies import crossed_offers
from sottovoce.federation.run_keys import key_purpose
from sottovoce.federation.secure_columns.coordinator import ProgramPiece, Stage, adder_of, cut_records, widths_of
from sottovoce.federation.secure_columns.dealer import LocalDeals
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR, SecureAggregation
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.joint import JointSum
from sottovoce.queries.pricing import queries_of
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.pair_keys import OFFERS, PUBLIC, PUBLIC_KEYS, PairKeys, RunKey, fingerprint_of, packed_rows
from sottovoce.secure.ring import ring_bits
from sottovoce.secure.streams import WHOLE, Piece, column_pieces
from sottovoce.secure.sums import Call, from_ring
from sottovoce.transports.identity import PLAN, local_identities

Arrays = Mapping[str, NDArray[Any]]
NOTHING: Arrays = {}


def secure_plan(solver: str = "newton", split: Any = "columns", parties: int = 2, **fields: Any) -> Plan:
    """A small plan whose sums are secure."""
    aggregation = SecureAggregation(colluding=parties - 1).changed(**fields.pop("aggregation", {}))
    return audit_plan(solver, split, parties, **{"aggregation": aggregation, "labels": "held", **fields})


class Hostile:
    """Parties with run keys of their own, and whatever a coordinator says to them."""

    def __init__(
        self, plan: Plan, data: Mapping[str, tuple[Any, Any]], seed: int = 0, accounts: Mapping[str, Any] = NOTHING
    ) -> None:
        self.parties = {
            name: Party(
                name,
                X,
                y if plan.split == "rows" or name == plan.label_party_name else None,
                account=accounts.get(name),
            )
            for name, (X, y) in data.items()
        }
        self.identities = local_identities(plan.names)
        for name, party in self.parties.items():
            party.identify(self.identities[name])
            party.randomness = SeededRandomness(seed, name)
            party.permit(without_privacy=False)
        self.serial = itertools.count(1)
        self.deal_key = RunKey()
        self.plan = self.keyed(plan)
        self.seed = seed
        self.deals: LocalDeals | None = None
        self.queries = {name: queries_of(algorithms.of(plan), self.plan, name) for name in plan.names}

    def keyed(self, plan: Plan) -> Plan:
        invited = json.dumps({"members": plan.names if plan.columns else ()})
        keys = {name: self.fact(name, Frame("hello", 0, query="secure", text=invited)) for name in plan.names}
        if plan.split == "columns":
            keys[COORDINATOR] = self.deal_key.public
        self.publics = packed_rows([bytes.fromhex(public) for public in keys.values()], PUBLIC)
        return plan.model_copy(update={"keys": tuple((name, fingerprint_of(key)) for name, key in keys.items())})

    def pair(self, plan: Plan) -> Hostile:
        """The parties have checked the plan, and agreed on keys, also with the dealer."""
        said = Frame("plan", 0, plan.digest, query="pair", arrays={PUBLIC_KEYS: self.publics})
        for name in plan.names:
            checked = self.said(name, Frame("plan", 0, plan.digest, query="check", text=plan.to_json()))
            assert checked.kind == "accept", checked.text
        offers = {name: self.said(name, said).arrays for name in plan.names}
        each = crossed_offers([name for name, _ in plan.keys], offers)
        for name in plan.names:
            told = dataclasses.replace(said, round=1, arrays={**said.arrays, **each[name]})
            assert self.said(name, told).kind == "accept"
        if plan.columns:
            keys = PairKeys(self.deal_key, *members_of(plan.keys, COORDINATOR), key_purpose(plan))
            keys.agree(self.publics, each[COORDINATOR][OFFERS])
            self.deals = LocalDeals(plan, keys, SeededRandomness(self.seed, COORDINATOR))
        return self

    def fact(self, name: str, frame: Frame) -> str:
        return str(json.loads(self.said(name, frame).text)["public_key"])

    def said(self, name: str, frame: Frame) -> Frame:
        told = Frame(frame.kind, next(self.serial), frame.plan, frame.round, frame.query, frame.arrays, frame.text)
        return decode(self.parties[name].handle(encode(told)).data)

    def open(self, plan: Plan | None = None) -> Hostile:
        """The plan is charged, signed and started."""
        plan = plan or self.plan
        self.pair(plan)
        for name in plan.names:
            reply = self.said(name, Frame("plan", 0, plan.digest, text=plan.to_json()))
            assert reply.kind == "accept", reply.text
        signatures = {name: identity.sign(PLAN, plan.digest) for name, identity in self.identities.items()}
        for name in plan.names:
            self.said(name, Frame("plan", 0, plan.digest, query="start", text=json.dumps(signatures)))
        return self

    def stage(self, name: str, stage: Stage, query: str = "", number: int = 0, arrays: Arrays = NOTHING) -> Frame:
        """What a party answers to a message of the protocol."""
        return self.said(name, Frame("secure", 0, self.plan.digest, number, query, dict(arrays), stage.text))

    def all(
        self, stage: Stage, query: str = "", number: int = 0, each: Mapping[str, Arrays] = NOTHING, **told: Any
    ) -> Any:
        """The envelopes of all parties, as they are passed on to each other party."""
        found = {n: self.stage(n, stage, query, number, {**told, **each.get(n, {})}) for n in self.plan.names}
        for name, frame in found.items():
            assert frame.kind in ("answer", "accept"), f"{name}: {frame.text}"
        if not all("envelope" in frame.arrays for frame in found.values()):
            return {name: {} for name in found}
        places = {name: str(place) for place, name in enumerate(self.plan.names)}
        return {n: {places[o]: f.arrays["envelope"] for o, f in found.items() if o != n} for n in found}

    def set_up(self) -> Hostile:
        """Keys of the group, masked columns, which records are null."""
        plan, holder = self.plan, self.plan.label_party_name
        envelopes = self.stage(holder, Stage("group")).arrays
        group = {n: {"group": envelopes[str(place)]} for place, n in enumerate(plan.names) if n != holder}
        for piece in column_pieces(plan.records, widths_of(plan)):
            self.all(Stage("receive", piece), each=self.all(Stage("columns", piece), each=group))
            group = {}
        self.program("null", "", 0, {}, ended=True)
        return self

    def query(self, name: str) -> Any:
        """The first party's query of that name."""
        return self.queries[self.plan.names[0]][name]

    def work(self, program: str, query: str, number: int, told: Arrays, piece: Piece = WHOLE) -> ProgramPiece:
        """What is said and dealt in turn."""
        return ProgramPiece(program, number, self.query(query) if query else None, told, piece)

    def dealt(self, work: ProgramPiece) -> dict[str, dict[str, NDArray[Any]]]:
        """Of a program and piece, by party."""
        assert self.deals is not None
        receiver, words = self.deals.deal(work)
        return {receiver: {"dealt": words}}

    def said_in(self, work: ProgramPiece, message: int, each: Mapping[str, Arrays]) -> Any:
        """A message of all parties, as it is passed on to each: others' envelopes, or the sum from who adds."""
        told = {} if message else work.told
        stage = Stage("say", work.piece, tuple(told), work.program, message)
        envelopes = self.all(stage, work.name, work.number, each, **told)
        adder = adder_of(self.plan.names, work.number, message)
        if adder is None:
            return envelopes
        total = self.stage(
            adder, Stage("add", work.piece, (), work.program, message), work.name, work.number, envelopes[adder]
        )
        assert total.kind == "answer", total.text
        return {name: {} if name == adder else {"total": total.arrays["envelope"]} for name in self.plan.names}

    def messages(self, work: ProgramPiece, until: int | None = None) -> Any:
        """The messages of a program over a piece, all or so many; what each party is sent next."""
        each: Any = self.dealt(work)
        for message in range(work.messages(self.plan) if until is None else until):
            each = self.said_in(work, message, each)
        return each

    def program(self, program: str, query: str, number: int, told: Arrays, *, ended: bool = False) -> Any:
        """Over all pieces; what each party is sent at the end of the last, unless that is `ended`."""
        pieces = cut_records(self.plan)
        for piece in pieces:
            work = self.work(program, query, number, told, piece)
            each = self.messages(work)
            if ended or piece != pieces[-1]:
                last = Stage("end", piece, (), program, work.messages(self.plan) - 1)
                self.all(last, query, number, each)
        return each

    def look_up(self, query: str, number: int, told: Arrays) -> Any:
        """All before the last exchange: what each party is sent with that."""
        return self.program("look-up", query, number, told)

    def gram(self) -> NDArray[np.int64]:
        """The opened Gram matrix."""
        return self.shares("gram", 0, {}, self.dealt(self.work("gram", "gram", 0, {})))

    def own(self, query: str, number: int, told: Arrays) -> NDArray[np.int64]:
        """An opened sum of what each party has by itself."""
        return self.shares(query, number, told, self.dealt(self.work("own", query, number, told)))

    def until(self, query: str) -> tuple[int, Arrays]:
        """All sums of the plan's own text, opened, up to the first of a query: its round, and what it is told."""
        text, number = algorithms.of(self.plan).coordinate(self.plan), 0
        ask = next(text)
        while ask.query != query:
            ask = text.send({"sum": self.sum(number, ask.query, ask.arrays) * self.plan.release(ask.query).step})
            number += 1
        return number, ask.arrays

    def sum(self, number: int, name: str, told: Arrays) -> NDArray[np.int64]:
        """An opened sum of any kind, in the order of the parties' columns."""
        query = self.query(name)
        if isinstance(query, GramMatrix):
            return self.gram()
        if not isinstance(query, JointSum):
            return self.own(name, number, told)
        if query.factored and number == self.plan.release(name).first:
            self.program("factor", name, number, told, ended=True)
        return self.shares(name, number, told, self.program(query.program, name, number, told))

    def ask(self, name: str, query: str, number: int, call: Call, arrays: Arrays = NOTHING) -> Frame:
        """What a party answers to a request for its share."""
        return self.said(
            name, Frame("ask", 0, self.plan.digest, number, query, dict(arrays), json.dumps(call._asdict()))
        )

    def shares(self, query: str, number: int, told: Arrays, each: Mapping[str, Arrays]) -> NDArray[np.int64]:
        """The sum of all parties' shares, opened, without a look at its size."""
        call = Call(self.plan.names, said=tuple(told))
        total: Any = 0
        for name in self.plan.names:
            reply = self.ask(name, query, number, call, {**told, **each.get(name, {})})
            assert reply.kind == "answer", reply.text
            total = total + reply.arrays["share"].view(np.uint64)
        opened = from_ring(np.asarray(total), ring_bits(self.plan))
        assert opened is not None, "shares do not belong together"
        return opened
