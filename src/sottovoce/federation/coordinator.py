"""The coordinator runs an algorithm's text over a transport. It sees released values and public facts, nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Algorithm, Ask, Solution
from sottovoce.algorithms.base import Rounds
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import BudgetError, LedgerError, RefusedError, WireError
from sottovoce.federation.alignment import AlignmentResult, AlignmentRun
from sottovoce.federation.answering import CHECK
from sottovoce.federation.journal import Journal
from sottovoce.federation.models import parts_of
from sottovoce.federation.prediction import COORDINATOR, check_aligned, predict_jointly
from sottovoce.federation.replies import (
    RECEIPT,
    CheckedReply,
    check_reply,
    count_rows,
    crossed_offers,
    pack_receipt,
    read_answer,
)
from sottovoce.federation.rounds import Answers, Each, Queries, Resumed, make_sums
from sottovoce.federation.run_keys import PAIR, key_purpose, known_keys
from sottovoce.gate.frames import Frame, encode
from sottovoce.gate.intersection import AlignmentTerms
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.ledger import Balance, Receipt
from sottovoce.privacy.mechanisms import Randomness, SystemRandomness
from sottovoce.queries.pricing import queries_of, rounds_of
from sottovoce.secure.pair_keys import OFFERS, PUBLIC, PUBLIC_KEYS, PairKeys, RunKey, fingerprint_of, packed_rows
from sottovoce.transports.base import Transport

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
Keys = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SeenMessage:
    """One message as the coordinator saw it."""

    round: int
    sender: str
    name: str
    payload: Any


@dataclass
class PlainAnswers(Answers):
    """Each party's answer by itself, with all of its noise."""

    _coordinator: Coordinator
    _plan: Plan

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        message = Frame("ask", 0, self._plan.digest, number, ask.query, ask.arrays)
        replies, values = self._coordinator.ask(self._plan, message, ask, queries), dict[str, Array]()
        for name, query in queries.items():
            told = {**ask.arrays, **ask.each.get(name, {})}
            values[name] = read_answer(name, self._plan, query, told, replies[name])
        return values


class Coordinator:
    """One conversation with the parties of a transport and with a dealer, the end that deals and holds no data."""

    def __init__(  # noqa: PLR0913
        self,
        transport: Transport,
        *,
        record: bool = False,
        receipts: dict[str, Receipt] | None = None,
        randomness: Randomness | None = None,
        dealer: str | None = None,
        journal: Journal | None = None,
        remote: bool = True,
    ) -> None:
        self._transport, self._dealer, self._parties = transport, dealer, tuple(transport.parties)
        if dealer is not None:
            self._parties = tuple(name for name in transport.parties if name != dealer)
        self._serial = secrets.randbits(62)
        self._origin = (0, 0)  # from where on bytes are counted
        self.uplink: Counter[str] = Counter()  # bytes of the answers by query
        self.helped = (0, 0)  # bytes from a dealer, and to it
        self.transcript: list[SeenMessage] | None = [] if record else None
        self.journal = journal or Journal()
        self.remote = remote  # whether the ends outlive this process
        self.randomness = randomness or SystemRandomness()  # of what it deals alone
        self.receipts = {} if receipts is None else receipts  # by party, the last one; shown to it at the next run
        self.budgets: dict[str, tuple[Balance, Balance]] = {}  # by party: before the first plan, and with the last
        self.begun: set[bytes] = set()  # plans under which a party may have released something
        self.asked: Counter[str] = Counter()  # rounds by query
        self.missing: dict[str, str] = {}  # by party: why it has no part of the last run's model
        self.left: dict[str, int] = {}  # of secure sums: who left, and in which round
        self.away: set[str] = set()  # in this run: an exchange would wait for them
        self._lasts = False  # whether the form keeps something at a party between rounds
        self._signatures: dict[str, str] = {}
        self._publics: dict[str, str] = {}  # public keys of the members of plans, by fingerprint
        self.run_keys: dict[Keys, RunKey] = {}  # by the keys of a plan, where this end adds noise or deals
        self._deal_pairs: dict[bytes, PairKeys] = {}  # by plan

    def exchange(self, parties: Iterable[str], message: Frame, each: Each | None = None) -> dict[str, CheckedReply]:
        """One frame to each party, with arrays of its own in `each`, and its checked reply."""
        self._serial += 1
        message = dataclasses.replace(message, serial=self._serial)
        requests, common = dict[str, bytes](), b""
        for name in parties:
            if own := each.get(name) if each else None:
                requests[name] = encode(dataclasses.replace(message, arrays={**message.arrays, **own}))
            else:
                requests[name] = common = common or encode(message)
        replies: dict[str, CheckedReply] = {}
        for name, data in self._transport.exchange(requests).items():
            if name == self._dealer:
                self.helped = self.helped[0] + len(data), self.helped[1] + len(requests[name])
            elif message.kind in ("ask", "secure"):
                self.uplink[message.query or "columns"] += len(data)
            reply = replies[name] = check_reply(name, message, data, alone=len(self._parties) == 1)
            if self.transcript is not None and reply.facts:
                self.transcript.append(SeenMessage(message.round, name, reply.frame.kind, reply.facts))
        return replies

    def restart_counts(self, up: int = 0, down: int = 0) -> None:
        """Count the bytes of a fit from here on, of which so many were sent before."""
        self._origin = (0, 0)
        now = self.byte_counts
        self._origin = now[0] - up, now[1] - down

    @property
    def byte_counts(self) -> tuple[int, int]:
        """Bytes from the parties, and to them, of the whole fit, without those of a dealer."""
        wire = self._transport.communication
        up, down = wire.uplink_bytes - self.helped[0], wire.downlink_bytes - self.helped[1]
        return up - self._origin[0], down - self._origin[1]

    @property
    def counts(self) -> dict[str, Any]:
        return {"uplink": dict(self.uplink), "helped": self.helped, "bytes": self.byte_counts}

    def facts(self, *, classes: bool, columns: bool = False) -> dict[str, dict[str, Any]]:
        """What each party declares public: records, features, names and, if asked for, its class labels.

        Over columns records are rows, whoever they are of, and `people` says how many these are.
        """
        replies = self.exchange(self._parties, Frame("hello", 0, query="classes" if classes else ""))
        found = dict(zip(replies, map(attrgetter("facts"), replies.values()), strict=True))
        return {name: count_rows(facts) for name, facts in found.items()} if columns else found

    def settle(self, made: Plan) -> Plan:
        """The plan that is about to be shown, proposed and run: of an interrupted run of this fit, the one that it had.

        A new one is stored, so that it comes back if the fit is interrupted.
        """
        plan = None if self.journal.path is None else self.journal.next_plan(made)
        if plan is not None:
            if plan.channel.secure and plan.channel.separate_dealer is None and not self.journal.ended:
                self.run_keys[plan.keys] = RunKey(bytes.fromhex(self.journal.keys_of(plan, "key")["key"]))
            publics = self.journal.of(plan).made["public_keys"]
            self._publics |= {fingerprint_of(public): public for public in publics}
            return plan
        plan = made if made.aggregation is None else self._with_keys(made, made.aggregation)
        if self.journal.path is not None:
            if (key := self.run_keys.get(plan.keys)) is not None:
                self.journal.keep_keys(plan, {"key": key.private_bytes().hex()})
            self.journal.add_plan(plan, public_keys=[self._publics[known] for _, known in plan.keys])
        return plan

    def _with_keys(self, plan: Plan, aggregation: SecureAggregation) -> Plan:
        """The plan with the public keys that its parties made for it, and the alignment whose records they serve."""
        members, columns = plan.channel.signers, plan.split.same_people
        invitation = json.dumps({"members": members if columns else ()})
        replies = self.exchange(members, Frame("hello", 0, query="secure", text=invitation))
        own, publics = RunKey(), {name: replies[name].facts["public_key"] for name in members}
        if columns and aggregation.separate_dealer is None:
            publics[aggregation.dealer] = own.public
        keys = tuple(zip(publics, map(fingerprint_of, publics.values()), strict=True))
        self._publics |= zip(map(itemgetter(1), keys), publics.values(), strict=True)
        if aggregation.separate_dealer is None:
            self.run_keys[keys] = own
        if columns:
            facts = {name: replies[name].facts for name in plan.names}
            check_aligned(facts)
            aggregation = aggregation.changed(aligned=facts[plan.names[0]].get("aligned", ""))
        return plan.model_copy(update={"keys": keys, "aggregation": aggregation})

    def refusal_to_secure(self, reason: str | None) -> str | None:
        """Why sums are not secure, where that was left open: a `reason`, or a party takes no part in them; None if not.

        An interrupted fit goes on as it began. Nothing is charged.
        """
        if self.journal.plans:
            secure = self.journal.plans[0].channel.secure
            return reason if secure else reason or "a party refused it when this fit began"
        ends = self._parties if self._dealer is None else (*self._parties, self._dealer)
        try:
            if not reason:
                self.exchange(self._parties, Frame("hello", 0, query="secure", text=json.dumps({"members": ends})))
        except RefusedError as error:
            return str(error)
        return reason or None

    def check(self, plan: Plan, query: str = CHECK) -> None:
        """Raise what a party would answer to a plan; nothing is charged.

        Then every two members of a plan of secure sums agree on a key: by offers, which nobody else can read.
        """
        members = plan.channel.signers
        self.propose(plan, members, query)
        if not plan.channel.secure:
            return
        names, prints = zip(*plan.keys, strict=True)
        publics = packed_rows(list(map(bytes.fromhex, map(self._publics.__getitem__, prints))), PUBLIC)
        each: Each = {}
        for round_ in (0, 1):
            said = Frame("plan", 0, plan.digest, round_, PAIR, {PUBLIC_KEYS: publics})
            replies = self.exchange(members, said, each)
            if forgot := _forgot(replies):  # who was restarted checks the plan again first
                self.propose(plan, forgot, query)
                replies |= self.exchange(forgot, said, each)
            if round_ == 0:
                each = crossed_offers(names, {name: reply.frame.arrays for name, reply in replies.items()})
        if (own := self.dealer_keys(plan)) is not None:
            own.agree(publics, each[COORDINATOR][OFFERS])

    def dealer_keys(self, plan: Plan) -> PairKeys | None:
        """The keys that this end shares with each party, where it deals."""
        key = self.run_keys.get(plan.keys)
        if key is None or COORDINATOR not in dict(plan.keys):
            return None
        if plan.digest not in self._deal_pairs:
            peers = known_keys(COORDINATOR, plan.keys, None, pins=False)
            self._deal_pairs[plan.digest] = PairKeys(key, tuple(dict(plan.keys)), peers, key_purpose(plan))
        return self._deal_pairs[plan.digest]

    def run(
        self, plan: Plan, form: Algorithm, progress: Progress | None = None, *, last: bool = True
    ) -> tuple[Solution, int]:
        """(solution, rounds) of the algorithm under the plan. Every party has charged the plan before round 0.

        With `last=False` the parties are not told that it is over: the next plan of the same fit follows. A run that
        was interrupted first takes the answers in its journal, then asks on.
        """
        self.away, self._signatures, self._lasts = set(), {}, bool(form.lasts)
        if self.journal.begun:
            self.journal.begin()
        text, rounds = form.coordinate(plan), Rounds(plan, form)
        queries = dict.fromkeys(plan.names, queries_of(form, plan, plan.names[0]))  # by rows all may be asked the same
        for name in plan.names[1:] if plan.split.same_people else ():
            queries[name] = queries_of(form, plan, name)
        answers = make_sums(self, plan) if plan.channel.secure else PlainAnswers(self, plan)
        resumed = None if self.journal.path is None else Resumed(self, plan, answers)
        total = rounds_of(plan, form) if progress is not None and plan.private else 0
        round_ = 0
        ask = next(text)
        try:
            while True:
                number, parties = rounds.assign(ask)
                asked = dict(zip(parties, map(itemgetter(ask.query), map(queries.__getitem__, parties)), strict=True))
                if resumed is None and round_ == 0:  # with a journal, once the stored answers are used up
                    self.charge(plan)
                values = (resumed or answers).values(number, ask, asked)
                if self.transcript is not None:
                    self.transcript += [SeenMessage(number, name, ask.query, value) for name, value in values.items()]
                self.asked[ask.query] += 1
                round_ += 1
                if progress is not None:
                    progress(round_, total)
                ask = text.send(values)
        except StopIteration as stop:
            result = stop.value
        except WireError as error:
            if not self.journal.begun:
                raise
            spending = [f"{name} {after.spent:.4g} of {after.total:g}" for name, (_, after) in self.budgets.items()]
            spent = f" (epsilon spent in all: {', '.join(spending)})" if spending else ""
            raise WireError(
                f"{error} The run stops in round {round_}. The plan's cost, epsilon {plan.epsilon:g} at delta "
                f"{plan.delta:g}, was charged once and stays spent{spent}. Its state is in {self.journal.path}: start "
                "the same run again once all parties are there, and it goes on from here at no further cost.",
                error.parties,
            ) from None
        solution = result if isinstance(result, Solution) else Solution(result)
        if last:
            shared = _share_model(plan, solution) if plan.split.same_people and plan.models != "kept" else {}
            if resumed is None:
                self.missing = self.end(plan, shared)
            else:
                resumed.finish(shared)
        return solution, round_

    def ask(self, plan: Plan, message: Frame, ask: Ask, parties: Iterable[str]) -> dict[str, CheckedReply]:
        """The replies to an ask. Restarted parties are proposed the plan again, charged once, and asked again."""
        self.begun.add(plan.digest)
        replies = self.exchange(parties, message, ask.each)
        if forgot := _forgot(replies):
            if lost := [name for name in forgot if self._lasts and name not in self.receipts]:
                raise WireError(
                    f"{lost[0]!r} was stopped and has no ledger: what {plan.algorithm} keeps there between rounds is "
                    "lost. Start a new fit."
                )
            self.open(plan, forgot)
            reminded = dataclasses.replace(message, arrays={**message.arrays, **ask.reminder})
            replies |= self.exchange(forgot, reminded, ask.each)
        return replies

    def charge(self, plan: Plan) -> None:
        """Have every party charge the plan and sign it. Who has no ledger and was restarted has lost its key."""
        begun = self.journal.begun  # an earlier process may have had it charged
        try:
            if len(plan.names) > 1:
                self.check(plan)  # one refusal, and nobody has paid
            if self.journal.path is not None:
                self.journal.begin()
            begun = True
            self.open(plan, plan.channel.signers)
        except RefusedError as error:
            if not (begun and plan.secure_columns):
                raise
            raise RefusedError(
                f"{error} Parties may have charged the plan, and what was charged stays charged. A job is started "
                "again with: sottovoce fit --restart."
            ) from None

    @property
    def state(self) -> dict[str, Any]:
        """What the parties said of themselves, as a journal has it."""
        return {
            "signatures": self._signatures,
            "receipts": {name: str(receipt) for name, receipt in self.receipts.items()},
            "budgets": {name: [dataclasses.astuple(b)[:8] for b in both] for name, both in self.budgets.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take in the `state` of an interrupted run; of receipts the newest."""
        self._signatures = dict(state["signatures"])
        for name, text in state["receipts"].items():
            self.receipts[name] = max(Receipt.read(text), self.receipts.get(name, Receipt(0, "")))
        for name, (before, after) in state["budgets"].items():
            self.budgets[name] = (_balance(before), _balance(after))

    def align(self, terms: AlignmentTerms, progress: Progress | None = None) -> AlignmentResult:
        """Have the parties find whom they have in common, or count them."""
        return AlignmentRun(self.exchange, progress).run(terms)

    def predict(self, plan: Plan, digest: bytes, recipient: str) -> Array | None:
        """Joint scores by the model that the parties have of a plan; None if the recipient is one of them."""
        return predict_jointly(self.exchange, self._parties, plan, digest, recipient)

    def dismiss(self) -> None:
        """Say that there is nothing more to ask: a party that serves over a network then ends its connection."""
        with contextlib.suppress(WireError):
            ends = [name for name in self._transport.parties if name not in self.away]  # the dealer too
            self.exchange(ends, Frame("done", 0))

    def leave(self, plan: Plan, solution: Solution) -> None:
        """Say that nothing follows a plan, as a party refused what was to; by columns with the model that it left."""
        if plan.split.same_people and plan.models != "kept":
            self.missing = self.end(plan, _share_model(plan, solution))
        else:
            self.dismiss()

    def propose(self, plan: Plan, parties: Iterable[str], query: str = "") -> dict[str, CheckedReply]:
        each = {name: {RECEIPT: pack_receipt(receipt)} for name, receipt in self.receipts.items()}
        replies = self.exchange(parties, Frame("plan", 0, plan.digest, query=query, text=plan.to_json()), each)
        self._keep_receipts(replies)
        return replies

    def _keep_receipts(self, replies: Mapping[str, CheckedReply]) -> None:
        """How far each party's ledger goes, and what is on its account; parties without one say neither."""
        for name, reply in replies.items():
            if told := reply.facts.get("receipt"):
                self.receipts[name] = Receipt.read(told)
            if numbers := reply.facts.get("budget"):
                before = self.budgets[name][0] if name in self.budgets else _balance(numbers[:8])
                self.budgets[name] = (before, _balance(numbers[8:]))

    def open(self, plan: Plan, parties: Iterable[str]) -> None:
        """Have these parties charge the plan and sign it; then show each the signatures of all.

        To a party that was restarted the plan is opened again: it is charged once, by its digest, and the others'
        signatures still hold.
        """
        if not set(plan.channel.signers) <= set(self._signatures):
            parties = plan.channel.signers
        for name, reply in self.propose(plan, parties).items():
            self._signatures[name] = reply.facts.get("signature", "")
        if len(plan.names) > 1 and (forgot := self.start(plan, parties)):
            self.propose(plan, forgot)  # restarted since it signed: charged once, and its signature holds
            self.start(plan, forgot)

    def start(self, plan: Plan, parties: Iterable[str]) -> list[str]:
        """Show these parties the signatures of all; those that do not know the plan, having been restarted."""
        signers = plan.channel.signers
        text = json.dumps(dict(zip(signers, map(self._signatures.__getitem__, signers), strict=True)))
        return _forgot(self.exchange(parties, Frame("plan", 0, plan.digest, query="start", text=text)))

    def end(self, plan: Plan, shared: Mapping[str, Mapping[str, Array]]) -> dict[str, str]:
        """Say that the run is over; by party, why it has no part of the model, where it should.

        The result is here, and nothing that a party says now changes it. By columns each party is told by itself, so
        that one that is gone hides nobody's answer, and once more after a restart.
        """
        said, missing = Frame("done", 0, plan.digest), dict[str, str]()
        if plan.channel.separate_dealer is not None:
            with contextlib.suppress(WireError, RefusedError):
                self.exchange([plan.channel.separate_dealer], said)
        if not plan.split.same_people:
            with contextlib.suppress(WireError, RefusedError, BudgetError, LedgerError):
                replies = self.exchange([name for name in plan.names if name not in self.away], said)
                self._keep_receipts(replies)
                if forgot := _forgot(replies):
                    self.exchange(forgot, Frame("done", 0))
            for name in set(self.left) & set(self._transport.connected):  # who is back deletes its key of the run
                with contextlib.suppress(WireError, RefusedError, LedgerError):
                    self.exchange([name], said)
            return missing
        for name in plan.names:
            if plan.models == "shared" and not shared:
                missing[name] = f"a coefficient is beyond {LARGEST:g}, and no party keeps such a model."
            try:
                replies = self.exchange([name], said, shared)
                if replies[name].frame.kind == "unknown-plan":
                    self.open(plan, [name])
                    replies = self.exchange([name], said, shared)
                    if replies[name].frame.kind == "unknown-plan":
                        missing[name] = f"{name} was restarted at the end of the run, and again."
                self._keep_receipts(replies)
            except WireError as error:
                missing[name] = str(error)
            except (RefusedError, BudgetError, LedgerError) as error:
                missing[name] = str(error)
                with contextlib.suppress(WireError):  # it is there, and need not wait for more
                    self.exchange([name], Frame("done", 0))
        return missing


def _forgot(replies: Mapping[str, CheckedReply]) -> list[str]:
    """Ends that do not know the plan, having been restarted."""
    return [name for name, reply in replies.items() if reply.frame.kind == "unknown-plan"]


def _balance(numbers: Sequence[float]) -> Balance:
    total, spent, left, delta, delta_left, share, plans, released = numbers
    return Balance(total, spent, left, delta, delta_left, share, int(plans), released)


def _share_model(plan: Plan, solution: Solution) -> dict[str, dict[str, Array]]:
    """By columns: each party's own part of a model, for later predictions; none of one with huge coefficients."""
    (coef, intercept), shared = plan.unprepare(solution.weights), {}
    huge = not np.all(np.abs(np.append(coef, intercept)) <= LARGEST)
    for name, part in () if huge else parts_of(plan, coef, intercept).items():
        shared[name] = {"coef": part.coef, "intercept": np.array([part.intercept])}
    return shared
