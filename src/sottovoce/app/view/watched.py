"""Ends of a wire that are watched: what passes them becomes events, by headings and public texts alone.

Both look at frames, since these are all that an end says or hears. Of an array they see how many numbers it has.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from sottovoce import algorithms
from sottovoce.app.view import events as happened
from sottovoce.app.view.watch import Reader, Watch
from sottovoce.door.frames import Frame, heading, numbers_in, peek
from sottovoce.door.outgoing import Outgoing
from sottovoce.errors import WireError
from sottovoce.federation.helper import Helper
from sottovoce.federation.party import Party
from sottovoce.federation.replies import Accepted
from sottovoce.federation.replies import Refused as RefusedFacts
from sottovoce.files import write_text
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealed_words import assumed, broken
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.ledger import Account, Balance
from sottovoce.privacy.relation import inside
from sottovoce.queries.messages import rounds_of
from sottovoce.queries.pricing import answers_due
from sottovoce.transports.base import Change, Communication, Transport
from sottovoce.transports.identity import Identity
from sottovoce.transports.in_process import InProcess

_HELLO: Final[Mapping[str, str]] = {
    "": "public facts: records, features, names",
    "classes": "public facts: records, features, names, class labels",
    "rows": "which rows with noise are kept",
    "seal": "a public key for sealed sums",
    "predict": "a public key for a joint prediction",
}
_BUDGET: Final = (0, 1, 2, 5, 9, 10, 13)  # of the two balances that a party tells: total, spent, left, share
_PLANS: Final[Mapping[str, str]] = {
    "": "to charge a plan and sign it",
    "check": "to check a plan",
    "start": "to start a plan that all have signed",
}


def planned(plan: Plan, rounds: int, epsilon: float) -> happened.Planned:
    """What a plan is, in a few public numbers."""
    return happened.Planned(
        plan=plan.digest.hex(),
        algorithm=plan.algorithm,
        split=str(plan.split),
        parties=tuple(plan.names),
        records=int(plan.records),
        features=int(plan.features),
        rounds=rounds,
        epsilon=float(epsilon),
        delta=float(plan.delta),
        relation=plan.relation,
    )


def budget_of(party: str, before: Balance, after: Balance) -> happened.Budget:
    """What an account had and has."""
    numbers = (before.total, before.spent, before.left, before.share, after.spent, after.left, after.share)
    return happened.Budget(party, *map(float, numbers))


class WatchedEnd:
    """A party or a helper whose holder is told what was asked, what left, what was agreed to and what was refused.

    `predictions` is the file for those that the party is the recipient of.
    """

    def __init__(
        self, end: Party | Helper, watch: Watch, account: Account | None = None, predictions: Path | None = None
    ) -> None:
        self.name = end.name
        self._end, self._watch, self._account, self._predictions = end, watch, account, predictions
        self._plan: Plan | None = None
        self._titles: Mapping[str, str] = {}
        self._balance: Balance | None = None
        if account is not None:
            self._balance = account.balance()
            watch.tell(budget_of(end.name, self._balance, self._balance))

    def identify(self, identity: Identity) -> None:
        """Pass it on."""
        self._end.identify(identity)

    def handle(self, request: bytes) -> Outgoing:
        """Pass the frame on; the answer tells what happened."""
        outgoing = self._end.handle(request)
        if peek(outgoing.data)[0] in ("accept", "answer") and peek(request)[0] == "predict":
            self._predicted(heading(request))
        with self._watch.guard():
            self._tell(request, outgoing.data)
        return outgoing

    def _tell(self, request: bytes, reply: bytes) -> None:
        """What was asked and what came of it."""
        try:
            asked = heading(request)
        except WireError:
            self._watch.tell(happened.Failed(self.name, "what is no message", "WireError"))
            return
        said = heading(reply)
        if said.kind == "refuse":
            own = json.loads(said.text)  # it may quote what UTF-8 cannot express
            self._watch.tell(happened.Refused(self.name, self._words(asked), own["error"], own["refused"]))
        elif said.kind == "error":
            error = type(self._end.failure).__name__ if self._end.failure is not None else ""
            self._watch.tell(happened.Failed(self.name, self._words(asked), error))
        else:
            self._served(asked, said, numbers_in(reply), (len(reply), len(request)))

    def _served(self, asked: Frame, said: Frame, numbers: int, sizes: tuple[int, int]) -> None:
        """What was not refused: first of all what it led to, then what left."""
        if said.kind == "accept" and asked.kind == "plan" and asked.query == "":
            self._agreed(Plan.from_json(asked.text))
        elif said.kind == "accept" and asked.kind == "plan" and asked.query == "start" and self._plan is not None:
            for name in self._plan.channel.signers:  # whose signatures it has just checked
                self._watch.tell(happened.Signed(self._plan.digest.hex(), name, True))
        left, noise = self._left(asked, said)
        where = (asked.plan.hex(), asked.round, asked.kind == "ask" and said.kind == "answer")
        self._watch.tell(happened.Answer(*where, self._words(asked), left, numbers, noise, *sizes))
        if said.kind == "done":
            self._done(asked.plan)

    def _agreed(self, plan: Plan) -> None:
        self._plan, self._titles = plan, algorithms.titles(plan)
        digest, watch = plan.digest.hex(), self._watch
        form = algorithms.of(plan)
        watch.shows(plan)
        if self.name not in plan.names:  # a helper
            watch.tell(planned(plan, 0, max(algorithms.epsilons(plan).values())))
            return
        events = form.pricing.events(form, plan, plan.relation, self.name)
        epsilon = float(epsilon_of(events, inside(plan.delta), plan.relation))
        watch.tell(planned(plan, sum(answers_due(form, plan, self.name).values()), epsilon))
        left = -1.0
        if self._account is not None and self._balance is not None:
            balance = self._account.balance()
            watch.tell(budget_of(self.name, self._balance, balance))
            left = float(balance.left)
        watch.tell(happened.Agreed(digest, plan.algorithm, epsilon, float(plan.delta), plan.relation, left))
        if rests := assumed(plan):
            watch.tell(happened.Rests(digest, rests, broken(plan, algorithms.pooled(plan))))

    def _words(self, asked: Frame) -> str:
        """What was asked, in words; of a query its title."""
        if asked.kind == "hello":
            return _HELLO.get(asked.query, "public facts")
        if asked.kind == "plan":
            return _PLANS.get(asked.query, "a plan")
        if asked.kind == "predict":
            return "a joint prediction"
        if asked.kind in ("ask", "seal"):
            return self._titles.get(asked.query, "words for the other parties")
        if asked.kind == "align":
            return "to find the people that all parties have"
        return "to end the run" if asked.kind == "done" else "another thing"

    def _left(self, asked: Frame, said: Frame) -> tuple[str, float]:
        """What kind of thing left, and the noise that the plan has for it."""
        plan = self._plan
        if said.kind == "facts":
            return "public facts", -1.0
        if said.kind != "answer":
            return {"unknown-plan": "that it does not know the plan"}.get(said.kind, "an acknowledgement"), -1.0
        if asked.kind == "predict":
            return "words under pads, for the recipient", -1.0
        if asked.kind == "align":
            return "words of a private set intersection", -1.0
        if asked.kind == "seal":
            return "words under pads, for the other parties", -1.0
        if plan is None or not plan.has(asked.query):
            return "a value", -1.0
        release = plan.release(asked.query)
        if plan.channel.secure:
            return "a share of a sealed sum", float(release.std)
        if release.mechanism == "derived":
            return "a function of rows with noise", -1.0
        return "a value with noise" if release.std > 0.0 else "a value WITHOUT noise", float(release.std)

    def _done(self, plan: bytes) -> None:
        """The end of a run and, by columns, the model that it left."""
        ledger = ""
        if plan and self._account is not None and isinstance(self._end, Party):
            models = self._end.predictor.models
            if models.get(plan) is not None and not models.approved(plan):
                ledger = str(self._account.path)
        self._watch.tell(happened.Done(plan.hex(), ledger))

    def _predicted(self, asked: Frame) -> None:
        """A joint prediction; where this party is the recipient it is written down, and then acknowledged."""
        from sottovoce.app.cli.prediction import csv_text

        found = self._end.predictions if isinstance(self._end, Party) else None
        if asked.query != self.name:
            self._watch.tell(happened.Predicted(asked.plan.hex(), asked.query, ""))
        elif found is not None and self._predictions is not None:
            ids = self._end.ids if isinstance(self._end, Party) else None
            table = {} if ids is None else {"id": list(ids)}
            table |= found.table(proba=found.plan.loss.name == "logistic")
            write_text(self._predictions, csv_text(table), "party.predictions")
            self._watch.tell(happened.Predicted(asked.plan.hex(), asked.query, str(self._predictions)))


class WatchedWire:
    """The coordinator's end of a wire, and the rounds that are run over it."""

    def __init__(self, watch: Watch, say: Callable[[str], None] = happened.nothing) -> None:
        self._watch, self._say = watch, say
        self._wire: Transport = InProcess(())
        self._plan: Plan | None = None
        self._titles: Mapping[str, str] = {}
        self._query = ""
        self._since = time.perf_counter()

    def over(self, wire: Transport) -> Transport:
        """The wire, watched."""
        self._wire = wire
        return self

    def hear(self, text: str) -> None:
        """What the wire tells: a change of a connection, or a text for the terminal."""
        if isinstance(text, Change):
            self._watch.changed(text)
        else:
            self._say(text)

    @property
    def parties(self) -> tuple[str, ...]:
        """As the wire has them."""
        return self._wire.parties

    @property
    def connected(self) -> tuple[str, ...]:
        """The same."""
        return self._wire.connected

    @property
    def communication(self) -> Communication:
        """As the wire counts it."""
        return self._wire.communication

    def close(self) -> None:
        """Pass it on."""
        self._wire.close()

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        """Pass it on; of plans, signatures and refusals the watch is told."""
        said = heading(next(iter(messages.values()))) if messages else Frame("error", 0)
        if said.kind == "plan" and said.query != "start" and (self._plan is None or said.plan != self._plan.digest):
            with self._watch.guard():
                self._show(Plan.from_json(said.text))
        replies = self._wire.exchange(messages)
        if said.kind in ("ask", "seal"):
            self._query = said.query
        for name, reply in replies.items():
            with contextlib.suppress(WireError, ValidationError):  # which the coordinator finds, and names
                self._told(name, said, reply)
        if said.kind == "done" and said.plan and said.plan == (self._plan and self._plan.digest):
            self._watch.tell(happened.Done(said.plan.hex()))
        return replies

    def progress(self, also: Callable[[int, int], None] = happened.nothing) -> Callable[[int, int], None]:
        """What a run calls after each round."""

        def advance(done: int, total: int) -> None:
            also(done, total)
            said, now = self._wire.communication, time.perf_counter()
            digest = "" if self._plan is None else self._plan.digest.hex()
            title = self._titles.get(self._query, self._query)
            sizes = (said.downlink_bytes, said.uplink_bytes)
            took = -1.0 if self._watch.data_here else now - self._since
            self._watch.tell(happened.Round(digest, done, total, self._query, title, *sizes, took))
            self._since = now

        return advance

    def _show(self, plan: Plan) -> None:
        self._plan, self._titles, self._since = plan, algorithms.titles(plan), time.perf_counter()
        self._watch.shows(plan)
        rounds = rounds_of(plan, algorithms.of(plan)) if plan.private else 0
        self._watch.tell(planned(plan, rounds, max(algorithms.epsilons(plan).values())))

    def _told(self, name: str, asked: Frame, reply: bytes) -> None:
        if peek(reply)[0] == "answer":
            return
        said = heading(reply)
        if said.kind == "refuse":
            facts = RefusedFacts.model_validate_json(said.text)
            code = facts.error if facts.error in happened.CODES else "refused"  # as the coordinator takes it
            self._watch.tell(happened.Refused(name, _asked(asked), code, facts.refused))
        elif said.kind == "error":
            self._watch.tell(happened.Failed(name, _asked(asked), ""))
        elif said.kind == "accept" and asked.kind == "plan" and asked.query == "":
            accepted = Accepted.model_validate_json(said.text)
            self._watch.tell(happened.Signed(asked.plan.hex(), name, bool(accepted.signature)))
            if accepted.budget is not None:
                numbers = [accepted.budget[place] for place in _BUDGET]
                self._watch.tell(happened.Budget(name, *numbers))


def _asked(frame: Frame) -> str:
    return f"{frame.kind} {frame.query}".strip()


def told_at(say: Callable[[str], None], role: str = "party") -> Reader:
    """A reader that says at the terminal of a party, helper or coordinator what is for it."""

    def reader(_: float, event: happened.Event) -> None:
        if role in event.told:
            for line in event.text.splitlines():
                say(line)

    return reader
