"""Commands and ends of a wire that are watched: what passes an end becomes events, by headings and public texts alone.

Both ends look at frames, since these are all that an end says or hears. Of an array they see how many numbers it has.
A watch tells the state, and readers such as a terminal and a log with lines of JSON. What the loggers of a holder say
is for the holder's eyes, at the terminal: it may count rows, and an error of another library may quote a cell. A log
has only the logger, the level, the place in the code and the class of the error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from pydantic import ValidationError

from sottovoce import __version__, algorithms
from sottovoce.app.job_file import ViewTable
from sottovoce.app.jobs import Job
from sottovoce.app.sources import accounts_of
from sottovoce.app.view.events import CODES, Event, State, metric_lines, nothing
from sottovoce.app.view.server import new_token, read_token, serve_view
from sottovoce.errors import BudgetError, InputError, RefusedError, WireError
from sottovoce.estimators.model_file import plain
from sottovoce.federation.answering import CHECK, EARLY
from sottovoce.federation.party import Party
from sottovoce.federation.replies import Accepted, RefusedFacts
from sottovoce.federation.secure_columns.dealer import Dealer
from sottovoce.files import open_to_append, write_text
from sottovoce.gate.frames import Frame, heading, numbers_in, peek
from sottovoce.gate.outgoing import Outgoing
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import assumed, broken
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import inside
from sottovoce.privacy.ledger import Account, Balance
from sottovoce.queries.pricing import answers_due, rounds_of
from sottovoce.transports.base import Change, Communication, InProcess, Transport

Reader = Callable[[float, Event], None]
_OPEN: Final = ("sottovoce.transports.", "sottovoce.kernels")  # these loggers never see rows
_ENCODER: Final = json.JSONEncoder(allow_nan=False, check_circular=False)


class Watch:
    """Takes what happens in a run and passes it on. Whatever a reader does, the run goes on.

    Where data are, at their holder or in a fit of files here, times are whole seconds and nothing has a duration: how
    long an answer took depends on its rows.
    """

    def __init__(
        self,
        role: str,
        end: str,
        *,
        data_here: bool | None = None,
        meets_at: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state, self._lock, self._clock = State(), threading.Lock(), clock
        self._readers: list[Reader] = []
        self.plan: Plan | None = None  # the one that the page describes: public, as all plans are
        self.role, self.meets_at = role, meets_at  # the address at which the parties find the coordinator
        self.data_here = role != "coordinator" if data_here is None else data_here
        self._started = self.tell("started", role=role, end=end, version=__version__)

    def add(self, reader: Reader) -> None:
        """Tell this one too, from now on, and that it started."""
        with self._lock:
            reader(self._state.started, self._started)
            self._readers.append(reader)

    def tell(self, name: str, /, **fields: Any) -> Event:
        event = Event(name, **fields)
        with self._lock:
            now = float(int(self._clock())) if self.data_here else self._clock()
            self._state.take(now, event)
            for reader in tuple(self._readers):
                try:
                    reader(now, event)
                except Exception:  # a full disk, a closed terminal
                    self._readers.remove(reader)
        return event

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Whatever goes wrong inside, the run goes on; the log has the class of it."""
        try:
            yield
        except Exception as error:
            words = f"what was to be told could not be ({type(error).__name__})"
            self.tell("logged", logger="sottovoce.app.view.watch", severity="error", words=words)

    def changed(self, change: Change) -> None:
        self.tell("connection", end=change.end, change=change.kind, words=str(change))

    def seen(self) -> tuple[dict[str, Any], Plan | None]:
        """What is known now: the state as a document, and the plan."""
        with self._lock:
            return plain(self._state.document()), self.plan

    def measured(self) -> str:
        with self._lock:
            return "".join(metric_lines(self._state))

    @property
    def ready(self) -> bool:
        with self._lock:
            return self._state.ready


def say_event(say: Callable[[str], None], role: str, _: float, event: Event) -> None:
    """Say at the terminal of a party, dealer or coordinator what is for it."""
    if role in event.kind.told:
        for line in event.text.splitlines():
            say(line)


def write_event(stream: TextIO, at: float, event: Event) -> None:
    """Write a line of JSON: time, level, event, its words, its fields."""
    when = f"{datetime.fromtimestamp(int(at), UTC):%Y-%m-%dT%H:%M:%S}.{int(1000 * (at % 1)):03}Z"
    line = {"time": when, "level": event.level, "event": event.name, "text": event.text, **event.fields}
    try:
        text = _ENCODER.encode(line)
    except ValueError:  # an infinite epsilon is a text
        text = _ENCODER.encode(plain(line))
    stream.write(text + "\n")
    stream.flush()


class LogForwarder(logging.Handler):
    """Passes what the package's loggers say to a watch, made safe."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the message of a logger that never sees rows; of any other its place, and the class of an error."""
        if record.name.startswith(_OPEN):
            words = record.getMessage()
        else:
            values = record.args if isinstance(record.args, tuple) else ()
            raised = [type(value).__name__ for value in values if isinstance(value, BaseException)]
            if record.exc_info and record.exc_info[0] is not None:
                raised.append(record.exc_info[0].__name__)
            what = f" ({', '.join(raised)})" if raised else ""
            words = f"a remark for the holder's eyes, at the terminal: {record.module}:{record.lineno}{what}"
        self._watch.tell("logged", logger=record.name, severity=record.levelname.lower(), words=words)


_BUDGET: Final = (0, 1, 2, 5, 9, 10, 13)  # of the two balances that a party tells: total, spent, left, share
_BUDGET_FIELDS: Final = ("total", "spent_before", "left_before", "share_before", "spent", "left", "share")
_ASKED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {  # by the kind of a message: in words, and by its query
    "hello": (
        "public facts",
        {
            "": "public facts: records, features, names",
            "classes": "public facts: records, features, names, class labels",
            "rows": "which rows with noise are kept",
            "secure": "a public key for secure sums",
            "predict": "a public key for a joint prediction",
        },
    ),
    "plan": (
        "a plan",
        {
            "": "to charge a plan and sign it",
            CHECK: "to check a plan",
            EARLY: "to check a plan before anybody learns scores",
            "start": "to start a plan that all have signed",
        },
    ),
    "predict": ("a joint prediction", {}),
    "align": ("to find the people that all parties have", {}),
    "done": ("to end the run", {}),
}
_LEFT: Final[Mapping[str, str]] = {  # what an answer to a message of this kind is; to "ask" the plan says it
    "predict": "words under masks, for the recipient",
    "align": "words of a private set intersection",
    "secure": "words under masks, for the other parties",
}


def describe_plan(plan: Plan, rounds: int, epsilon: float) -> dict[str, Any]:
    """A plan in a few public numbers, as events have it."""
    return {
        "plan": plan.digest.hex(),
        "algorithm": plan.algorithm,
        "split": str(plan.split),
        "parties": tuple(plan.names),
        "records": int(plan.records),
        "features": int(plan.features),
        "rounds": rounds,
        "epsilon": float(epsilon),
        "delta": float(plan.delta),
        "relation": plan.relation,
    }


def describe_budget(before: Balance, after: Balance) -> dict[str, float]:
    """What an account had and has, as events have it."""
    numbers = (before.total, before.spent, before.left, before.share, after.spent, after.left, after.share)
    return dict(zip(_BUDGET_FIELDS, map(float, numbers), strict=True))


class WatchedEnd:
    """A party or a dealer that tells its holder what was asked, what left, what was agreed to and what was refused.

    `predictions` is the file for those that the party is the recipient of.
    """

    def __init__(
        self, end: Party | Dealer, watch: Watch, account: Account | None = None, predictions: Path | None = None
    ) -> None:
        self.name, self.identify = end.name, end.identify
        self._end, self._watch, self._account, self._predictions = end, watch, account, predictions
        self._plan: Plan | None = None
        self._titles: Mapping[str, str] = {}
        self._balance: Balance | None = None
        if account is not None:
            self._balance = account.balance()
            watch.tell("budget", party=end.name, **describe_budget(self._balance, self._balance))

    def handle(self, request: bytes) -> Outgoing:
        """Pass the frame on; the answer shows what happened."""
        outgoing = self._end.handle(request)
        if peek(outgoing.data)[0] in ("accept", "answer") and peek(request)[0] == "predict":
            self._tell_prediction(heading(request))
        with self._watch.guard():
            self._tell(request, outgoing.data)
        return outgoing

    def _tell(self, request: bytes, reply: bytes) -> None:
        try:
            asked = heading(request)
        except WireError:
            self._watch.tell("failed", end=self.name, asked="what is no message", error="WireError")
            return
        answer = heading(reply)
        other, by_query = _ASKED.get(asked.kind, ("another thing", {}))
        text = by_query.get(asked.query, other)
        if asked.kind in ("ask", "secure"):
            text = self._titles.get(asked.query, "words for the other parties")
        if answer.kind == "refuse":
            own = json.loads(answer.text)  # it may quote what UTF-8 cannot express
            self._watch.tell("refused", end=self.name, asked=text, code=own["error"], why=own["refused"])
        elif answer.kind == "error":
            error = type(self._end.failure).__name__ if self._end.failure is not None else ""
            self._watch.tell("failed", end=self.name, asked=text, error=error)
        else:
            if (answer.kind, asked.kind, asked.query) == ("accept", "plan", ""):
                self._tell_agreement(Plan.from_json(asked.text))
            elif (answer.kind, asked.kind, asked.query) == ("accept", "plan", "start") and self._plan is not None:
                for name in self._plan.channel.signers:  # it has just checked the signatures of all
                    self._watch.tell("signed", plan=self._plan.digest.hex(), party=name, signed=True)
            left, noise = self._describe_left(asked, answer)
            self._watch.tell(
                "answer",
                plan=asked.plan.hex(),
                round=asked.round,
                counted=asked.kind == "ask" and answer.kind == "answer",
                asked=text,
                left=left,
                numbers=numbers_in(reply),
                noise=noise,
                sent_bytes=len(reply),
                received_bytes=len(request),
            )
            if answer.kind == "done":  # by columns with the model that it left
                ledger = ""
                if asked.plan and self._account is not None and isinstance(self._end, Party):
                    models = self._end.predictor.models
                    if models.get(asked.plan) is not None and not models.approved(asked.plan):
                        ledger = str(self._account.path)
                self._watch.tell("done", plan=asked.plan.hex(), ledger=ledger)

    def _tell_agreement(self, plan: Plan) -> None:
        self._plan, self._titles = plan, algorithms.titles(plan)
        watch, form = self._watch, algorithms.of(plan)
        watch.plan = plan
        if self.name not in plan.names:  # a dealer
            watch.tell("planned", **describe_plan(plan, 0, max(algorithms.epsilons(plan).values())))
            return
        events = form.pricing.events(form, plan, plan.relation, self.name)
        epsilon = float(epsilon_of(events, inside(plan.delta), plan.relation))
        numbers = describe_plan(plan, sum(answers_due(form, plan, self.name).values()), epsilon)
        watch.tell("planned", **numbers)
        left = -1.0
        if self._account is not None and self._balance is not None:
            balance = self._account.balance()
            watch.tell("budget", party=self.name, **describe_budget(self._balance, balance))
            left = float(balance.left)
        shared = {name: numbers[name] for name in ("plan", "algorithm", "epsilon", "delta", "relation")}
        watch.tell("agreed", **shared, left=left)
        if rests := assumed(plan):
            watch.tell("rests", plan=numbers["plan"], holds_if=rests, broken=broken(plan, algorithms.colluding(plan)))

    def _describe_left(self, asked: Frame, answer: Frame) -> tuple[str, float]:
        """What kind of thing left, and the noise that the plan has for it; -1 where it names none."""
        plan = self._plan
        if answer.kind != "answer":
            others = {"facts": "public facts", "unknown-plan": "that it does not know the plan"}
            return others.get(answer.kind, "an acknowledgement"), -1.0
        if asked.kind in _LEFT:
            return _LEFT[asked.kind], -1.0
        if plan is None or not plan.has(asked.query):
            return "a value", -1.0
        release = plan.release(asked.query)
        if plan.channel.secure:
            return "a share of a secure sum", float(release.std)
        if release.mechanism == "derived":
            return "a function of rows with noise", -1.0
        return "a value with noise" if release.std > 0.0 else "a value WITHOUT noise", float(release.std)

    def _tell_prediction(self, asked: Frame) -> None:
        """A joint prediction; where this party is the recipient it is written down, and then acknowledged."""
        from sottovoce.app.cli.fitted import csv_text

        file, party = "", self._end
        if asked.query == self.name:
            if not isinstance(party, Party) or party.predictions is None or self._predictions is None:
                return
            table = {} if party.written_ids is None else {"id": list(party.written_ids)}
            table |= party.predictions.table(proba=party.predictions.plan.loss.name == "logistic")
            write_text(self._predictions, csv_text(table), "party.predictions")
            file = str(self._predictions)
        self._watch.tell("predicted", plan=asked.plan.hex(), recipient=asked.query, file=file)


class WatchedWire:
    """The coordinator's end of a wire, and the rounds that are run over it."""

    def __init__(self, watch: Watch, say: Callable[[str], None] = nothing) -> None:
        self._watch, self._say = watch, say
        self._wire: Transport = InProcess(())
        self._plan: Plan | None = None
        self._titles: Mapping[str, str] = {}
        self._query = ""
        self._since = time.perf_counter()

    def over(self, wire: Transport) -> Transport:
        self._wire = wire
        return self

    def hear(self, text: str) -> None:
        """Take from the wire a change of a connection, or a text for the terminal."""
        if isinstance(text, Change):
            self._watch.changed(text)
        else:
            self._say(text)

    @property
    def parties(self) -> tuple[str, ...]:
        return self._wire.parties

    @property
    def connected(self) -> tuple[str, ...]:
        return self._wire.connected

    @property
    def communication(self) -> Communication:
        return self._wire.communication

    def close(self) -> None:
        self._wire.close()

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        """Pass it on; plans, signatures and refusals are told to the watch."""
        asked = heading(next(iter(messages.values()))) if messages else Frame("error", 0)
        if asked.kind == "plan" and asked.query != "start" and (self._plan is None or asked.plan != self._plan.digest):
            with self._watch.guard():
                self._plan = plan = Plan.from_json(asked.text)
                self._titles, self._since, self._watch.plan = algorithms.titles(plan), time.perf_counter(), plan
                rounds = rounds_of(plan, algorithms.of(plan)) if plan.private else 0
                self._watch.tell("planned", **describe_plan(plan, rounds, max(algorithms.epsilons(plan).values())))
        replies = self._wire.exchange(messages)
        if asked.kind in ("ask", "secure"):
            self._query = asked.query
        request = f"{asked.kind} {asked.query}".strip()
        for name, reply in replies.items():
            with contextlib.suppress(WireError, ValidationError):  # which the coordinator finds, and names
                if peek(reply)[0] == "answer":
                    continue
                answer = heading(reply)
                if answer.kind == "refuse":
                    facts = RefusedFacts.model_validate_json(answer.text)
                    code = facts.error if facts.error in CODES else "refused"  # as the coordinator takes it
                    self._watch.tell("refused", end=name, asked=request, code=code, why=facts.refused)
                elif answer.kind == "error":
                    self._watch.tell("failed", end=name, asked=request, error="")
                elif answer.kind == "accept" and asked.kind == "plan" and asked.query == "":
                    accepted = Accepted.model_validate_json(answer.text)
                    self._watch.tell("signed", plan=asked.plan.hex(), party=name, signed=bool(accepted.signature))
                    if accepted.budget is not None:
                        numbers = [accepted.budget[place] for place in _BUDGET]
                        self._watch.tell("budget", party=name, **dict(zip(_BUDGET_FIELDS, numbers, strict=True)))
        if asked.kind == "done" and asked.plan and asked.plan == (self._plan and self._plan.digest):
            self._watch.tell("done", plan=asked.plan.hex())
        return replies

    def advance(self, done: int, total: int, also: Callable[[int, int], None] = nothing) -> None:
        """What a run calls after each round, with whoever else is told."""
        also(done, total)
        sizes, now = self._wire.communication, time.perf_counter()
        self._watch.tell(
            "round",
            plan="" if self._plan is None else self._plan.digest.hex(),
            done=done,
            of=total,
            query=self._query,
            title=self._titles.get(self._query, self._query),
            sent_bytes=sizes.downlink_bytes,
            received_bytes=sizes.uplink_bytes,
            seconds=-1.0 if self._watch.data_here else now - self._since,
        )
        self._since = now


@contextlib.contextmanager
def watched_fit(job: Job, table: ViewTable, say: Callable[[str], None]) -> Iterator[WatchedWire]:
    """Have a fit watched: who is waited for, and what ledgers of this process have before and after."""
    meets_at = "" if job.federation is None else job.federation.listen or ""
    watch = Watch("coordinator", job.path.stem, data_here=job.federation is None, meets_at=meets_at)
    with watching(watch, table, job.resolve, say, "done"):
        if job.federation is not None:
            watch.tell("expected", ends=job.federation.ends)
        accounts = {party: (account, account.balance()) for party, account in accounts_of(job).items()}
        for party, (_, before) in accounts.items():
            watch.tell("budget", party=party, **describe_budget(before, before))
        yield WatchedWire(watch, say)
        for party, (account, before) in accounts.items():
            watch.tell("budget", party=party, **describe_budget(before, account.balance()))


@contextlib.contextmanager
def watching(
    watch: Watch, table: ViewTable, resolve: Callable[[str], Path], say: Callable[[str], None], ending: str = "stopped"
) -> Iterator[Watch]:
    """Have a command watched: at the terminal, in a log, on a page. How it ends is told, then all of that ends too."""
    watch.add(functools.partial(say_event, say, watch.role))
    with contextlib.ExitStack() as stack:
        if table.log is not None:
            try:
                stream = sys.stdout if table.log == "-" else open_to_append(resolve(table.log))
                if table.log != "-":
                    stack.callback(_close_log, stream)
                watch.add(functools.partial(write_event, stream))
            except OSError as error:
                raise InputError(
                    f"view.log={table.log!r} cannot be written ({error.strerror}); give another path."
                ) from None
        handler, logger = LogForwarder(watch), logging.getLogger("sottovoce")
        logger.addHandler(handler)
        stack.callback(logger.removeHandler, handler)
        if not table.off:
            token = new_token() if table.token is None else read_token(resolve(table.token))
            try:
                say(f"for operators, in a browser here: {stack.enter_context(serve_view(watch, table.port, token))}")
            except InputError:
                if "port" in table.model_fields_set:  # it was asked for
                    raise
                say("no page for operators: this machine has no address 127.0.0.1 to listen on")
        try:
            yield watch
        except KeyboardInterrupt:
            watch.tell("ended", outcome="stopped")
            raise
        except BaseException as error:
            # The text of an error is safe where it is made from plans, policies, ledgers or the wire.
            why = str(error) if isinstance(error, BudgetError | RefusedError | WireError) else ""
            watch.tell("ended", outcome="failed", error=type(error).__name__, why=why)
            raise
        watch.tell("ended", outcome=ending)


def _close_log(stream: TextIO) -> None:
    """If the disk is full, what could not be written is tried once more; the run does not fail for it."""
    with contextlib.suppress(OSError):
        stream.close()
