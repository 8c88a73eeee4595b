"""The coordinator runs an algorithm's text over a transport. It sees released values and public facts, nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Algorithm, Ask, Solution
from sottovoce.algorithms.base import Rounds
from sottovoce.data.bounds import LARGEST
from sottovoce.door.frames import Frame, encode
from sottovoce.door.intersection import Terms
from sottovoce.door.query import Query
from sottovoce.door.sealed_gate import noise_of
from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError, WireError
from sottovoce.federation import replies as checks
from sottovoce.federation.alignment.coordinator import AlignmentResult, AlignmentRun
from sottovoce.federation.announcements import invitation, known_keys
from sottovoce.federation.boxes import crossed_offers
from sottovoce.federation.journal import Journal, Stored
from sottovoce.federation.models import parts_of
from sottovoce.federation.prediction import COORDINATOR, MASKED, Request, added, scores_of
from sottovoce.federation.receipts import RECEIPT, packed
from sottovoce.federation.replies import Reply
from sottovoce.federation.run_keys import PAIR, run_of
from sottovoce.federation.sealed_columns.coordinator import ColumnSums
from sottovoce.federation.sealed_columns.dealer import Deals, LocalDeals, RemoteDeals
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import signers
from sottovoce.privacy.ledger import Balance, Receipt
from sottovoce.privacy.randomness import Randomness, SystemRandomness
from sottovoce.queries.messages import rounds_of
from sottovoce.queries.pricing import queries_of
from sottovoce.sealed.pair_keys import (
    OFFERS,
    PUBLIC,
    PUBLIC_KEYS,
    PairKeys,
    RunKey,
    fingerprint_of,
    packed_rows,
)
from sottovoce.sealed.sums import Call, Opener, label_of
from sottovoce.transports.base import Transport

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
Each = Mapping[str, Mapping[str, NDArray[Any]]]
Keys = tuple[tuple[str, str], ...]
Answers = Callable[[int, Ask, Mapping[str, Query]], dict[str, Array]]
_LOST = "The run is lost; what was charged stays charged. Start a new fit."
Recall = Callable[[int, Ask, Mapping[str, Query], Mapping[str, Array]], None]


@dataclass(frozen=True)
class Message:
    """One message as the coordinator saw it."""

    round: int
    sender: str
    name: str
    payload: Any


class Coordinator:
    """One conversation with the parties of a transport."""

    def __init__(  # noqa: PLR0913
        self,
        transport: Transport,
        *,
        record: bool = False,
        receipts: dict[str, Receipt] | None = None,
        randomness: Randomness | None = None,
        helper: str | None = None,
        journal: Journal | None = None,
        remote: bool = True,
    ) -> None:
        self._transport = transport
        self.journal = journal or Journal()
        self._remote = remote  # whether the ends outlive this process
        self._helper = helper  # an end of the wire that deals, and is no party
        self._parties = tuple(name for name in transport.parties if name != helper)
        self._randomness = randomness or SystemRandomness()  # of top-ups alone
        self.receipts = {} if receipts is None else receipts  # by party, the last one; shown to it at the next run
        self.budgets: dict[str, tuple[Balance, Balance]] = {}  # by party: before the first plan, and with the last
        self._serial = secrets.randbits(62)
        self._origin = (0, 0)  # from where on bytes are counted
        self._stored = Stored()  # of the plan that runs, what an interrupted run left
        self._is_open = self._keeps = False
        self._known_counts: Mapping[str, Any] | None = None
        self.begun: set[bytes] = set()  # plans of which something was asked: a party may have released
        self.asked: Counter[str] = Counter()  # rounds by query
        self.uplink: Counter[str] = Counter()  # bytes of the answers by query
        self.helped = (0, 0)  # bytes from a helper, and to it
        self.missing: dict[str, str] = {}  # by party: why it has no part of the last run's model
        self.transcript: list[Message] | None = [] if record else None
        self.left: dict[str, int] = {}  # of sealed sums: who left, and in which round
        self._away: set[str] = set()
        self._signatures: dict[str, str] = {}
        self._publics: dict[str, str] = {}  # public keys of the members of plans, by fingerprint
        self._run_keys: dict[Keys, RunKey] = {}  # by the keys of a plan, where this end tops up or deals
        self._deal_pairs: dict[bytes, PairKeys] = {}  # by plan

    def facts(self, *, classes: bool) -> dict[str, dict[str, Any]]:
        """What each party declares public: records, features, names and, if asked for, its class labels."""
        replies = self._exchange(self._parties, Frame("hello", 0, query="classes" if classes else ""))
        return {name: reply.facts for name, reply in replies.items()}

    def stored_plan(self, made: Plan) -> Plan | None:
        """The plan that an interrupted run of this fit had in the place of the one `made` now."""
        found = self.journal.next_plan(made)
        if found is not None:
            known = self.journal.of(found).made
            if found.sealing is not None and found.sealing.helper is None and not self.journal.ended:
                self._run_keys[found.keys] = RunKey(bytes.fromhex(self.journal.keys_of(found, "key")["key"]))
            self._publics |= {fingerprint_of(public): public for public in known["public_keys"]}
        return found

    def settled(self, plan: Plan) -> Plan:
        """A plan that is about to be shown, proposed and run: kept, so that it comes back if the fit is interrupted."""
        if (key := self._run_keys.get(plan.keys)) is not None:
            self.journal.keep_keys(plan, {"key": key.private_bytes().hex()})
        self.journal.add_plan(plan, public_keys=[self._publics[known] for _, known in plan.keys])
        return plan

    @property
    def sealed_before(self) -> bool | None:
        """Whether an interrupted run of this fit sealed its sums; None if there is none."""
        plans = self.journal.plans
        return plans[0].sealing is not None if plans else None

    def with_keys(self, plan: Plan) -> Plan:
        """The plan with the public keys that its parties made for it, and the alignment whose records they serve."""
        sealing, members, columns = plan.sealing, signers(plan), plan.split == "columns"
        if sealing is None:
            return plan
        asked = Frame("hello", 0, query="seal", text=invitation(members if columns else ()))
        replies = self._exchange(members, asked)
        publics = {name: replies[name].facts["public_key"] for name in members}
        own = RunKey()
        if columns and sealing.helper is None:
            publics[sealing.dealer] = own.public
        keys = tuple((name, fingerprint_of(public)) for name, public in publics.items())
        self._publics |= {fingerprint_of(public): public for public in publics.values()}
        if sealing.helper is None:
            self._run_keys[keys] = own
        if columns:
            facts = {name: replies[name].facts for name in plan.names}
            check_aligned(facts)
            sealing = sealing.changed(aligned=facts[plan.names[0]].get("aligned", ""))
        return plan.model_copy(update={"keys": keys, "sealing": sealing})

    def refusal_to_seal(self) -> str | None:
        """Why a party takes no part in sealed sums, or None; nothing is charged."""
        ends = self._parties if self._helper is None else (*self._parties, self._helper)
        try:
            self._exchange(self._parties, Frame("hello", 0, query="seal", text=invitation(ends)))
        except RefusedError as error:
            return str(error)
        return None

    def check(self, plan: Plan) -> None:
        """Raise what a party would answer to a plan; nothing is charged."""
        self._propose(plan, signers(plan), "check")
        self._pair(plan)

    def _pair(self, plan: Plan) -> None:
        """Have every two members of a plan of sealed sums agree on a key: by offers, which nobody else can read."""
        if plan.sealing is None:
            return
        names, members = [name for name, _ in plan.keys], signers(plan)
        publics = packed_rows([bytes.fromhex(self._publics[known]) for _, known in plan.keys], PUBLIC)
        said = Frame("plan", 0, plan.digest, query=PAIR, arrays={PUBLIC_KEYS: publics})
        replies = self._retold(plan, members, said)
        each = crossed_offers(names, {name: reply.frame.arrays for name, reply in replies.items()})
        self._retold(plan, members, dataclasses.replace(said, round=1), each)
        if (own := self._dealt_with(plan)) is not None:
            own.agree(publics, each[COORDINATOR][OFFERS])

    def _retold(self, plan: Plan, parties: Iterable[str], said: Frame, each: Each | None = None) -> dict[str, Reply]:
        """The replies to a message about a plan that is not charged yet; who was restarted checks it again first."""
        replies = self._exchange(parties, said, each)
        if forgot := [name for name, reply in replies.items() if reply.frame.kind == "unknown-plan"]:
            self._propose(plan, forgot, "check")
            replies |= self._exchange(forgot, said, each)
        return replies

    def _dealt_with(self, plan: Plan) -> PairKeys | None:
        """The keys that this end shares with each party, where it deals."""
        key = self._run_keys.get(plan.keys)
        if key is None or COORDINATOR not in dict(plan.keys):
            return None
        if plan.digest not in self._deal_pairs:
            peers = known_keys(COORDINATOR, plan.keys, None, pins=False)
            self._deal_pairs[plan.digest] = PairKeys(key, tuple(dict(plan.keys)), peers, run_of(plan))
        return self._deal_pairs[plan.digest]

    def run(
        self, plan: Plan, form: Algorithm, progress: Progress | None = None, *, last: bool = True
    ) -> tuple[Solution, int]:
        """(solution, rounds) of the algorithm under the plan. Every party has charged the plan before round 0.

        With `last=False` the parties are not told that it is over: the next plan of the same fit follows. Of a run that
        was interrupted the answers that are stored are taken first; then asking goes on.
        """
        self._stored, self._is_open, self._away, self._signatures = self.journal.of(plan), False, set(), {}
        if self.journal.begun:
            self.journal.begin()
        text, queries = form.coordinate(plan), _queries(form, plan)
        self._keeps, rounds = bool(form.lasts), Rounds(plan, form)
        answers, recall = self._way(plan)
        total = rounds_of(plan, form) if progress is not None and plan.private else 0
        round_ = 0
        ask = next(text)
        try:
            while True:
                number, parties = rounds.assign(ask)
                asked = {name: queries[name][ask.query] for name in parties}
                values = self._taken(plan, number, ask)
                if values is not None:
                    recall(number, ask, asked, values)
                else:
                    self._open_once(plan)
                    values = answers(number, ask, asked)
                    said = {"round": number, "query": ask.query, "names": list(values), **self._counts()}
                    arrays = {str(place): value for place, value in enumerate(values.values())}
                    self.journal.note("round", plan, said, arrays, sync=True)
                self._show(number, ask.query, values)
                self.asked[ask.query] += 1
                round_ += 1
                if progress is not None:
                    progress(round_, total)
                ask = text.send(values)
        except StopIteration as stop:
            found = stop.value
        except WireError as error:
            if not self.journal.begun:
                raise
            raise self._stopped(plan, round_, error) from None
        solution = found if isinstance(found, Solution) else Solution(found)
        if last:
            self._finish(plan, _shared(plan, solution))
        return solution, round_

    def align(self, terms: Terms, progress: Progress | None = None) -> AlignmentResult:
        """Have the parties find whom they have in common, or count them."""
        return AlignmentRun(self._exchange, progress).run(terms)

    def _way(self, plan: Plan) -> tuple[Answers, Recall]:
        """How the answers of a round are got, of each party or as a sealed sum, and what is made of stored ones."""
        if plan.sealing is None:
            return functools.partial(self._ask, plan), _nothing_to_recall
        if self._stored.made and self.journal.ended:
            return self._asks_no_more, _nothing_to_recall
        key, left = self._run_keys.get(plan.keys), self._stored.left
        opener = Opener(plan, self._randomness if key is None else key.noise(plan.digest, self._randomness))
        if self.journal.path is not None:
            opener.roster.advice = ""  # it can go on (`_stopped`)
        if left is not None:
            opener.roster.restore(left["left"], left["again"])
            self.left |= left["left"]
            self._away |= set(left["left"])
        if plan.split == "columns":
            columns = self._columns(opener)
            return columns.values, columns.recall
        return functools.partial(self._sum, opener), _nothing_to_recall

    def _asks_no_more(self, number: int, ask: Ask, _: Mapping[str, Query]) -> dict[str, Array]:
        """Of a run that is over, whose keys are gone."""
        raise self.journal.unusable(f"its run is over, and has no answer to {ask.query!r} in round {number}")

    def _taken(self, plan: Plan, number: int, ask: Ask) -> dict[str, Array] | None:
        """The values of a round as an interrupted run stored them, if it did."""
        if not self._stored.rounds:
            return None
        entry = self._stored.rounds.popleft()
        if (entry.said["round"], entry.said["query"]) != (number, ask.query):
            raise self.journal.unusable("its answers are to other questions than this version asks")
        self.begun.add(plan.digest)
        self._known_counts = entry.said
        return {name: np.array(entry.arrays[str(place)]) for place, name in enumerate(entry.said["names"])}

    def _open_once(self, plan: Plan) -> None:
        """Before the first question of this process: every party has charged the plan, now or earlier."""
        if self._is_open:
            return
        known = self._stored.opened
        if known is None:
            self._have_charged(plan)
            if self._remote:  # in one process all ends are new after an interruption
                if (own := self._dealt_with(plan)) is not None:
                    self.journal.keep_keys(plan, own.state)
                self.journal.note("opened", plan, self._told(), sync=False)
        else:
            self._take_told(known)
            if (own := self._dealt_with(plan)) is not None:
                own.restore(self.journal.keys_of(plan, "pairs"))
            with contextlib.suppress(RefusedError):  # one that refuses says so when it is asked
                self._start(plan, self._there(signers(plan)))  # who accepted it again may not have been told to start
        self._take_counts()
        self._is_open = True

    def _have_charged(self, plan: Plan) -> None:
        """Have every party charge the plan and sign it. Who has no ledger and was restarted has lost its key."""
        begun = self.journal.begun  # an earlier process may have had it charged
        try:
            if len(plan.names) > 1:
                self.check(plan)  # one refusal, and nobody has paid
            self.journal.begin()
            begun = True
            self._open(plan, signers(plan))
        except RefusedError as error:
            if not (begun and plan.sealed_columns):
                raise
            raise RefusedError(
                f"{error} Parties may have charged the plan, and what was charged stays charged. A job is started "
                "again with: sottovoce fit --restart."
            ) from None

    def _told(self) -> dict[str, Any]:
        """What the parties told of themselves."""
        return {
            "signatures": self._signatures,
            "receipts": {name: str(receipt) for name, receipt in self.receipts.items()},
            "budgets": {name: [dataclasses.astuple(b)[:8] for b in both] for name, both in self.budgets.items()},
        }

    def _take_told(self, told: Mapping[str, Any]) -> None:
        self._signatures = dict(told["signatures"])
        for name, text in told["receipts"].items():
            self.receipts[name] = max(Receipt.read(text), self.receipts.get(name, Receipt(0, "")))  # the newest
        for name, (before, after) in told["budgets"].items():
            self.budgets[name] = (_balance(before), _balance(after))

    def count_anew(self) -> None:
        """Count the bytes of a fit from here on."""
        up, down = self._said
        self._origin = up - self.helped[0], down - self.helped[1]

    @property
    def counted(self) -> tuple[int, int]:
        """Bytes from the parties, and to them, of the whole fit; a helper's are not of theirs."""
        up, down = self._said
        return up - self.helped[0] - self._origin[0], down - self.helped[1] - self._origin[1]

    @property
    def _said(self) -> tuple[int, int]:
        wire = self._transport.communication
        return wire.uplink_bytes, wire.downlink_bytes

    def _counts(self) -> dict[str, Any]:
        return {"uplink": dict(self.uplink), "helped": self.helped, "bytes": self.counted}

    def _take_counts(self) -> None:
        """Count what was said up to the last stored answer as an unbroken run would, and what followed it once."""
        if (known := self._known_counts) is not None:
            self._known_counts = None
            self.uplink, self.helped = Counter(known["uplink"]), tuple(known["helped"])
            (up, down), (stored_up, stored_down) = self._said, known["bytes"]
            self._origin = up - self.helped[0] - stored_up, down - self.helped[1] - stored_down

    def _show(self, number: int, query: str, values: Mapping[str, Array]) -> None:
        if self.transcript is not None:
            self.transcript += [Message(number, name, query, value) for name, value in values.items()]

    def _finish(self, plan: Plan, shared: Mapping[str, Mapping[str, Array]]) -> None:
        """Tell the parties that the run is over, once it is kept that all is answered."""
        self._take_counts()
        if (known := self._stored.ended) is not None:
            self._take_told(known)
            self.missing = dict(known["missing"])
            self._known_counts = known
            self._take_counts()
            return
        if not self._is_open and self._stored.opened is not None:
            self._take_told(self._stored.opened)
        self.journal.note("solved", plan, {}, sync=True)
        self.missing = self._end(plan, shared)
        self.journal.note("ended", plan, {"missing": self.missing, **self._told(), **self._counts()}, sync=True)

    def _stopped(self, plan: Plan, number: int, error: WireError) -> WireError:
        """The end of a run in which a party did not answer: what was spent, and that it can go on."""
        known = [f"{name} {after.spent:.4g} of {after.total:g}" for name, (_, after) in self.budgets.items()]
        spent = f" (epsilon spent in all: {', '.join(known)})" if known else ""
        return WireError(
            f"{error} The run stops in round {number}. The plan's cost, epsilon {plan.epsilon:g} at delta "
            f"{plan.delta:g}, was charged once and stays spent{spent}. Its state is in {self.journal.path}: start the "
            "same run again once all parties are there, and it goes on from here at no further cost.",
            error.parties,
        )

    def predict(self, plan: Plan, digest: bytes, recipient: str) -> Array | None:
        """Joint scores by the model that the parties have of a plan; None if the recipient is one of them.

        No weights are sent. A recipient among the parties gets the sum of the others' answers, unreadable here.
        """
        parties = plan.names
        if recipient not in (COORDINATOR, *parties):
            raise InputError(f"recipient={recipient!r} must be {COORDINATOR!r} or one of {', '.join(parties)}.")
        if set(parties) != set(self._parties):
            raise InputError(
                f"the model is of the parties {', '.join(parties)} and the federation of "
                f"{', '.join(self._parties)}; a joint prediction needs the same parties, by their names."
            )
        replies = self._exchange(parties, Frame("hello", 0, query="predict"))
        counts = {name: reply.facts["records"] for name, reply in replies.items()}
        check_people(counts)
        check_aligned({name: reply.facts for name, reply in replies.items()})
        keys, signatures = (
            {name: reply.facts[what] for name, reply in replies.items()} for what in ("public_key", "signature")
        )
        request = Request.new(digest, recipient, keys, signatures)
        said = Frame("predict", 0, digest, query=recipient, text=request.text)
        offers = {name: reply.frame.arrays for name, reply in self._exchange(parties, said).items()}
        pairs = crossed_offers(sorted(parties), offers)
        others = [name for name in parties if name != recipient]
        people = counts[parties[0]]
        each = [checks.masked(name, reply, people) for name, reply in self._exchange(others, said, pairs).items()]
        total = functools.reduce(added, each) if each else np.zeros((people, 2), dtype=np.uint64)
        if recipient == COORDINATOR:
            return scores_of(total)
        self._exchange([recipient], dataclasses.replace(said, arrays={MASKED: total.view(np.int64)}), pairs)
        return None

    def dismiss(self) -> None:
        """Say that there is nothing more to ask: a party that serves over a network then ends its connection."""
        with contextlib.suppress(WireError):
            self._exchange(self._there(self._transport.parties), Frame("done", 0))  # the helper too

    def _there(self, parties: Iterable[str]) -> list[str]:
        """Without those who left in this run: an exchange would wait for them."""
        return [name for name in parties if name not in self._away]

    def _propose(self, plan: Plan, parties: Iterable[str], query: str = "") -> dict[str, Reply]:
        each = {name: {RECEIPT: packed(receipt)} for name, receipt in self.receipts.items()}
        replies = self._exchange(parties, Frame("plan", 0, plan.digest, query=query, text=plan.to_json()), each)
        self._keep_receipts(replies)
        return replies

    def _keep_receipts(self, replies: Mapping[str, Reply]) -> None:
        """How far each party's ledger goes, and what is on its account; parties without one say neither."""
        for name, reply in replies.items():
            if told := reply.facts.get("receipt"):
                self.receipts[name] = Receipt.read(told)
            if numbers := reply.facts.get("budget"):
                before = self.budgets[name][0] if name in self.budgets else _balance(numbers[:8])
                self.budgets[name] = (before, _balance(numbers[8:]))

    def _open(self, plan: Plan, parties: Iterable[str]) -> None:
        """Have these parties charge the plan and sign it; then show each the signatures of all.

        To a party that was restarted the plan is opened again: it is charged once, by its digest, and the others'
        signatures still hold.
        """
        if not set(signers(plan)) <= set(self._signatures):
            parties = signers(plan)
        for name, reply in self._propose(plan, parties).items():
            self._signatures[name] = reply.facts.get("signature", "")
        if forgot := self._start(plan, parties):
            self._propose(plan, forgot)  # restarted since it signed: charged once, and its signature holds
            self._start(plan, forgot)

    def _start(self, plan: Plan, parties: Iterable[str]) -> list[str]:
        """Show these parties the signatures of all; those that do not know the plan, having been restarted."""
        if len(plan.names) == 1:
            return []
        told = json.dumps({name: self._signatures[name] for name in signers(plan)})
        replies = self._exchange(parties, Frame("plan", 0, plan.digest, query="start", text=told))
        return [name for name, reply in replies.items() if reply.frame.kind == "unknown-plan"]

    def _end(self, plan: Plan, shared: Mapping[str, Mapping[str, Array]]) -> dict[str, str]:
        """Say that the run is over; by party, why it has no part of the model, where it should.

        The result is here, and nothing that a party says now changes it. By columns each party is told apart, so that
        one that is gone hides nobody's answer, and once more after a restart.
        """
        said, missing = Frame("done", 0, plan.digest), dict[str, str]()
        if plan.sealing is not None and plan.sealing.helper is not None:
            with contextlib.suppress(WireError, RefusedError):
                self._exchange([plan.sealing.helper], said)
        if plan.split != "columns":
            with contextlib.suppress(WireError, RefusedError, BudgetError, LedgerError):
                replies = self._exchange(self._there(plan.names), said)
                self._keep_receipts(replies)
                if forgot := [name for name, reply in replies.items() if reply.frame.kind != "done"]:
                    self._exchange(forgot, Frame("done", 0))
            for name in set(self.left) & set(self._transport.connected):  # who is back deletes its key of the run
                with contextlib.suppress(WireError, RefusedError, LedgerError):
                    self._exchange([name], said)
            return missing
        for name in plan.names:
            if plan.models == "shared" and not shared:
                missing[name] = f"a coefficient is beyond {LARGEST:g}, and no party keeps such a model."
            try:
                replies = self._exchange([name], said, shared)
                if replies[name].frame.kind == "unknown-plan":
                    self._open(plan, [name])
                    replies = self._exchange([name], said, shared)
                    if replies[name].frame.kind == "unknown-plan":
                        missing[name] = f"{name} was restarted at the end of the run, and again."
                self._keep_receipts(replies)
            except WireError as error:
                missing[name] = str(error)
            except (RefusedError, BudgetError, LedgerError) as error:
                missing[name] = str(error)
                with contextlib.suppress(WireError):  # it is there, and need not wait for more
                    self._exchange([name], Frame("done", 0))
        return missing

    def _columns(self, opener: Opener) -> ColumnSums:
        """The sums of sealed columns, once the parties have what they need of one another."""
        plan = opener.plan

        def exchange(parties: Iterable[str], said: Frame, each: Each) -> dict[str, Reply]:
            self.begun.add(plan.digest)
            try:
                return self._exchange(parties, said, each)
            except WireError as error:
                self._away |= set(error.parties)
                if self.journal.begun:
                    raise
                raise WireError(f"{error} {_LOST}", error.parties) from error

        def reopen(names: Sequence[str]) -> None:
            try:
                self._open(plan, names)
            except RefusedError as error:
                raise RefusedError(f"{error} {_LOST} A job is started again with: sottovoce fit --restart.") from None

        deals: Deals
        if plan.sealing is not None and plan.sealing.helper is not None:
            deals = RemoteDeals(plan, plan.sealing.helper, exchange)
        elif (keys := self._dealt_with(plan)) is not None:
            deals = LocalDeals(plan, keys, self._randomness)
        else:
            raise InputError("the plan names a key for this coordinator that it does not have; make a new plan.")
        return ColumnSums(plan, exchange, deals, opener, reopen)

    def _sum(self, opener: Opener, number: int, ask: Ask, queries: Mapping[str, Query]) -> dict[str, Array]:
        """A sealed sum over the parties of the roster, the only value that a round of such a plan has."""
        plan, query = opener.plan, next(iter(queries.values()))
        helper = signers(plan)[len(plan.names) :]  # it tops up, as one more of the roster
        left, attempt = self._stored.left, 0
        if left is not None and (left["round"], left["query"]) == (number, ask.query):
            attempt = left["attempt"]  # it was asked again, of fewer, before the run was interrupted
        call = Call(opener.roster.of((*queries, *helper)), attempt, tuple(ask.arrays))
        if ask.reminder:
            ask = dataclasses.replace(ask, each=dict.fromkeys(helper, ask.reminder))  # a helper keeps no numbers
        replies: dict[str, Reply] = {}
        while not replies:
            said = Frame("ask", 0, plan.digest, number, ask.query, ask.arrays, call.text)
            try:
                replies = self._answers(plan, said, ask, call.roster)
            except WireError as error:
                self._away |= set(error.parties)
                call = opener.roster.without(call, error, number)
                self.left |= opener.roster.left
                gone = {"left": opener.roster.left, "again": opener.roster.again}
                said_of = {"round": number, "query": ask.query, "attempt": call.attempt}
                self.journal.note("left", plan, gone | said_of, sync=True)
        shares = {name: checks.share(name, query.length, replies[name]) for name in call.roster}
        label = label_of(ask.query, number, call, {**ask.reminder, **ask.arrays})
        return {"sum": opener.open(shares, noise_of(query, plan), label)}

    def _answers(self, plan: Plan, said: Frame, ask: Ask, parties: Iterable[str]) -> dict[str, Reply]:
        """The replies to an ask. Restarted parties are proposed the plan again, charged once, and asked again."""
        self.begun.add(plan.digest)
        replies = self._exchange(parties, said, ask.each)
        forgot = [name for name, reply in replies.items() if reply.frame.kind == "unknown-plan"]
        if forgot:
            if lost := [name for name in forgot if self._keeps and name not in self.receipts]:
                raise WireError(
                    f"{lost[0]!r} was stopped and has no ledger: what {plan.algorithm} keeps there between rounds is "
                    "lost. Start a new fit."
                )
            self._open(plan, forgot)
            reminded = dataclasses.replace(said, arrays={**said.arrays, **ask.reminder})
            replies |= self._exchange(forgot, reminded, ask.each)
        return replies

    def _ask(self, plan: Plan, number: int, ask: Ask, queries: Mapping[str, Query]) -> dict[str, Array]:
        said = Frame("ask", 0, plan.digest, number, ask.query, ask.arrays)
        replies = self._answers(plan, said, ask, queries)
        values: dict[str, Array] = {}
        for name, query in queries.items():
            told = {**said.arrays, **ask.each.get(name, {})}
            values[name] = checks.answered(name, plan, query, told, replies[name])
        return values

    def _exchange(
        self, parties: Iterable[str], said: Frame, each: Mapping[str, Mapping[str, NDArray[Any]]] | None = None
    ) -> dict[str, Reply]:
        """One frame to each party, with arrays of its own in `each`, and its checked reply."""
        self._serial += 1

        def frame_of(own: Mapping[str, NDArray[Any]]) -> bytes:
            arrays = {**said.arrays, **own}
            return encode(Frame(said.kind, self._serial, said.plan, said.round, said.query, arrays, said.text))

        if each:
            requests = {name: frame_of(each.get(name, {})) for name in parties}
        else:
            requests = dict.fromkeys(parties, frame_of({}))
        found: dict[str, Reply] = {}
        for name, data in self._transport.exchange(requests).items():
            if name == self._helper:
                self.helped = self.helped[0] + len(data), self.helped[1] + len(requests[name])
            elif said.kind in ("ask", "seal"):
                self.uplink[said.query or "columns"] += len(data)
            reply = found[name] = checks.checked(name, said, data, alone=len(self._parties) == 1)
            if self.transcript is not None and reply.facts:
                self.transcript.append(Message(said.round, name, reply.frame.kind, reply.facts))
        return found


def _nothing_to_recall(number: int, ask: Ask, queries: Mapping[str, Query], values: Mapping[str, Array]) -> None:
    """Where each round is asked by itself."""
    del number, ask, queries, values


def _queries(form: Algorithm, plan: Plan) -> Mapping[str, Mapping[str, Query]]:
    """What each party may be asked; by rows all of them the same, of which one copy is kept."""
    if plan.split == "columns":
        return {name: queries_of(form, plan, name) for name in plan.names}
    return dict.fromkeys(plan.names, queries_of(form, plan, plan.names[0]))


def _balance(numbers: Sequence[float]) -> Balance:
    total, spent, left, delta, delta_left, share, plans, released = numbers
    return Balance(total, spent, left, delta, delta_left, share, int(plans), released)


def _shared(plan: Plan, solution: Solution) -> dict[str, dict[str, Array]]:
    """By columns: each party's own part of a model that is shared, for later predictions."""
    if plan.split != "columns" or plan.models == "kept":
        return {}
    coef, intercept = plan.unprepare(solution.weights)
    if not np.all(np.abs(np.append(coef, intercept)) <= LARGEST):
        return {}
    parts = parts_of(plan, coef, intercept)
    return {name: {"coef": part.coef, "intercept": np.array([part.intercept])} for name, part in parts.items()}


def check_people(counts: Mapping[str, int]) -> None:
    """By columns all parties have the same people; nobody can tell more than their number."""
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(
            f"the parties have {sorted(set(counts.values()))} rows ({each}); by columns every party has the same "
            "people in the same order. Align the records first (`sottovoce align` does that without showing the rest)."
        )


def check_aligned(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """By columns all parties serve the records of one alignment, or none does."""
    digests = {name: fact.get("aligned") for name, fact in facts.items()}
    if len(set(digests.values())) > 1:
        each = ", ".join(f"{name} {digest[:12] if digest else 'of none'}" for name, digest in digests.items())
        raise InputError(
            f"the parties serve records of different alignments ({each}): one was aligned anew, or its file of the "
            "alignment was deleted. Align all of them again (`sottovoce align`)."
        )
