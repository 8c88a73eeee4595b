"""A party takes a plan, charges it and signs it, answers under it round by round, and at the end keeps its model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Algorithm
from sottovoce.algorithms.description import Described
from sottovoce.algorithms.evaluation import Evaluated, score_recipe
from sottovoce.data.beside import columns_beside, labels_of
from sottovoce.data.block import Block, Matrix, Preparation, RecordRows, is_sparse, prepare_rows
from sottovoce.data.dataset import Dataset
from sottovoce.errors import InputError, LedgerError, RefusedError
from sottovoce.federation.answering import ACCEPTED, CHECKS, EARLY, check_plan_size, read_plan, unknown_plan
from sottovoce.federation.models import PartialModel, own_part
from sottovoce.federation.policy import Known, charge_of, check_plan, check_samplers, part_of_fit
from sottovoce.federation.replies import RECEIPT, unpack_receipt
from sottovoce.federation.run_keys import PAIR, check_start, known_keys
from sottovoce.federation.secure_columns.party import ColumnRun
from sottovoce.gate.frames import Frame
from sottovoce.gate.gate import Gate, Memory
from sottovoce.gate.outgoing import Declared, Outgoing, Released, Share, declare_public, reply
from sottovoce.gate.query import ForgottenError, MessageArrays, Query, Round
from sottovoce.gate.secure_gate import SecureGate, UsedLabels
from sottovoce.plan.plan import FAMILIES, Plan
from sottovoce.plan.split import assumed
from sottovoce.privacy.ledger import Ledger, Receipt
from sottovoce.queries.pricing import answers_due
from sottovoce.secure.sums import Call, ColumnMasker, Masker
from sottovoce.transports.identity import PLAN

if TYPE_CHECKING:
    from sottovoce.federation.party import Party

Stored = tuple[Any, Memory | None]  # what a form remembers at the holder between rounds, and its files
MOST_PREPARED: Final = 8  # times that the rows of a data set are prepared for one plan


@dataclass(eq=False, repr=False)
class PartyRun:
    """A plan that was charged, and what its party needs to answer under it.

    Each value leaves by itself, with all of its noise. With a `SecureGate` shares of sums leave instead and, by
    `columns`, masked messages for the other parties.
    """

    _holder: Party
    plan: Plan
    form: Algorithm
    queries: Mapping[str, Query]
    rows: Block
    memory: Any  # what the form remembers between rounds
    gate: Gate
    columns: ColumnRun | None
    started: bool = False  # whether every party of the plan is known to have charged it

    def release(self, query: Query, message: MessageArrays, frame: Frame) -> Released | Share:
        round_ = Round(self.plan, frame.round, message, self.rows, self.memory)
        if self.columns is not None:
            return self.columns.share(query, round_, frame)
        if isinstance(self.gate, SecureGate):
            return self.gate.share(query, round_, Call.read(frame.text))
        return self.gate.release(query, round_)

    def query_of(self, frame: Frame) -> Query | None:
        """The query of a message, if the form has it; refused unless it is this party's turn in that round."""
        query, number = self.queries.get(frame.query), frame.round
        if query is None:
            return None
        turn = self.plan.has(query.name)
        if turn:
            release = self.plan.release(query.name)
            turn = release.mechanism != "kept" and release.first <= number < release.first + release.count
        if not turn or not query.answered_by(self.plan, self._holder.name, number):
            raise _not_in_turn(frame)
        return query

    def restore_memory(self) -> bool:
        """Make the memory again as it was after the last release that was stored; whether that was possible."""
        memory = self.form.remember(self.plan, self.rows)
        if self.form.lasting(memory):
            if self.gate.memory is None or self._holder.account is None:
                return False
            found = recall_state(self._holder, self.form, self.plan, memory, self.gate.memory)
            if found is None:
                return False
            (memory,) = found
        self.memory = memory
        return True


def recall_state(holder: Party, form: Algorithm, plan: Plan, fresh: Any, files: Memory) -> tuple[Any] | None:
    """The memory as it was after the last release of a plan that was stored; None if that is lost."""
    last = None if holder.account is None else holder.account.last_release(plan.digest.hex())
    if last is None:
        return (fresh,)
    number, query, release = last
    state = files.read((number, query), release)
    return None if state is None else (form.recall(fresh, state),)


def answered_all(form: Algorithm, plan: Plan, party: str, given: Mapping[str, int]) -> bool:
    """Whether a party has given every answer that each run of the plan has from it."""
    return Counter(answers_due(form, plan, party)) <= Counter(given)


def leaves_model(plan: Plan) -> bool:
    """Whether parties keep their parts of a model at the end: of a fit, or of what over secure columns ends one."""
    return plan.algorithm in FAMILIES or plan.secure_columns


def _not_in_turn(frame: Frame) -> RefusedError:
    return RefusedError(f"query {frame.query!r} in round {frame.round} is not this party's turn in the plan.")


@dataclass(eq=False, repr=False)
class Training:
    """Answers "plan", "ask" and, over secure columns, "secure" under a plan that has started, and "done" at its end.

    Guarantee: nothing is answered under a plan before every party of it has signed it, which a party does once it has
    charged it. Proof: privacy/proofs/ledger.md.
    """

    _holder: Party
    seen: set[bytes] = field(default_factory=set)  # plans that were charged
    _prepared: Counter[bytes] = field(default_factory=Counter)  # by plan, of a data set
    _checked: tuple[bytes, Matrix, Any] | None = None  # a plan that was only checked, a table, its prepared rows

    def take_plan(self, frame: Frame) -> Outgoing:
        """First "check", then offers of keys where sums are secure, then the charge, then "start"."""
        own = self._holder
        if frame.query == PAIR:
            return own.keys.answer(frame)
        if frame.query == "start":
            run = own.run
            if run is None or run.plan.digest != frame.plan:
                return unknown_plan(frame)
            check_start(run.plan, own.name, own.identity, frame.text)
            run.started = True
            return reply("accept", frame, ACCEPTED)
        content = self.accept(frame) + own.receipt(frame)
        if own.account is not None and own.policy.tell_budget and frame.query not in CHECKS:
            # What the account had before the plan and has with it.
            book = own.account.book()
            others = tuple(known for known in book.reservations if known.plan != frame.plan.hex())
            balances = (dataclasses.replace(book, reservations=others).balance(), book.balance())
            numbers = [float(number) for balance in balances for number in dataclasses.astuple(balance)[:8]]
            content += (declare_public("budget", numbers, reason="the holder tells it"),)
        return reply("accept", frame, content)

    def accept(self, frame: Frame) -> tuple[Declared, ...]:
        """Check the plan against this party's policy and ledger, prepare the rows, charge the plan's whole cost; sign.

        A frame with a query of `CHECKS` ends before the charge, without a signature: so a coordinator learns that one
        party refuses before another has paid, and with `EARLY` before anybody learns scores. A holder who runs the job
        in this process is refused there also for rows that cannot be used. A signature says that this party has charged
        the plan.
        """
        own = self._holder
        if RECEIPT in frame.arrays:
            self._check_receipt(unpack_receipt(frame.arrays[RECEIPT]))
        plan = read_plan(frame.text, frame.plan)
        if own.run is not None and own.run.plan.digest == frame.plan:
            return self.sign(plan)
        matrix, labels, recipe = self._select_rows(plan, scored=frame.query != EARLY)
        alone = plan.names == (own.name,)
        if own.identity is None and not alone:
            raise RefusedError(
                f"{own.name} was not told who it is, and so takes only plans of which it is the only party; serve it "
                "over a wire (InProcess, serve_party)."
            )
        known = Known(own.identity, unaligned=own.identifiers is not None and not own.aligned)
        form, queries = check_plan(plan, own, known)
        # All parties sign the digest of the alignment: so all serve the same people, in one order. Identifiers are
        # compared with nobody: whoever could test a list could test guesses.
        if plan.secure_columns and plan.channel.aggregation.aligned != own.aligned:
            mine = "the records of an alignment" if own.aligned else "no aligned records"
            other = "records of another one" if plan.channel.aggregation.aligned else "records that were not aligned"
            raise RefusedError(
                f"{own.name} serves {mine}, and the plan is about {other}. Align all parties again, each with `id` "
                "(`sottovoce align`); nothing was charged."
            )
        masker = self._make_masker(plan) if plan.channel.secure else None
        checked, self._checked = self._checked, None
        if frame.query in CHECKS:
            own.keys.hold(plan)
            self._check_charge(form, plan)
            if own.resources.holder == "elsewhere" or isinstance(own.rows, Dataset) or frame.query == EARLY:
                return ACCEPTED
        elif masker is not None:
            own.keys.check_agreed(plan)
        described = isinstance(plan.numbers, Described)
        if described or isinstance(own.rows, Dataset):  # which are read now
            self._check_charge(form, plan)  # to prepare its rows may take an hour
            if self._prepared[plan.digest] == MOST_PREPARED:  # it is charged once, however often it is proposed
                raise RefusedError(
                    f"{own.name} has prepared its rows {MOST_PREPARED} times for this plan; it does so again once it "
                    "is started anew."
                )
            self._prepared[plan.digest] += 1
        matrix = own.codes() if described else matrix
        labels = self._with_groups(plan, labels)
        beside = None if own.account is None else own.account.path.parent
        kinds = {RecordRows} if plan.secure_columns else set(map(attrgetter("needs"), queries.values()))
        kept = checked[2] if checked and checked[0] == plan.digest and checked[1] is matrix else None
        try:
            rows = (
                prepare_rows(matrix, labels, recipe, own.resources, kinds=kinds, beside=beside)
                if kept is None
                else kept
            )
        except InputError as error:  # of other parties, and of other plans of the fit, it is not known here
            sure = alone and plan.within is None and not own.charged(plan)
            error.args = (f"{error} Nothing was charged.",) if sure else error.args
            raise
        if frame.query in CHECKS:
            self._checked = plan.digest, matrix, rows
            return ACCEPTED
        own.run = self._begin(plan, form, queries, rows, masker)
        own.run.started = alone
        return self.sign(plan)

    def sign(self, plan: Plan) -> tuple[Declared, ...]:
        """The acknowledgement of a plan that was charged, with this party's signature on its digest for the others."""
        own = self._holder
        if own.identity is None or plan.names == (own.name,):
            return ACCEPTED
        signature = own.identity.sign(PLAN, plan.digest)
        return (*ACCEPTED, declare_public("signature", signature, reason="over the plan's digest"))

    def _check_receipt(self, known: Receipt) -> None:
        """Refuse to go on with a ledger that does not have the entry of the receipt that the coordinator has."""
        own = self._holder
        try:
            if own.account is None:
                raise LedgerError(f"party {own.name} has no ledger, and had one in an earlier run.")
            Ledger(own.account.path).check_receipt(known)
        except LedgerError as error:
            raise RefusedError(
                f"{own.name} refuses: its ledger does not have the entry of the receipt that it gave in an earlier "
                "run. It was set back, cut or replaced; nothing was charged. If the party serves another data set now, "
                "remove its receipt (of a job: in NAME.receipts.json)."
            ) from error

    def _select_rows(self, plan: Plan, *, scored: bool) -> tuple[Matrix, NDArray[Any], Preparation]:
        """The rows and labels that a plan is about and how they become a block, or a refusal.

        They are this party's or, of an evaluation by columns at the holder of the labels, the scores that it received
        as the recipient of predictions; codes, of a description, are made later. Columns of other parties are in such
        a score. They let this one learn it (`Policy.predict_for`); that counts of it are released each of them allows
        by charging the plan and signing it. Before it has them (`scored`) its own rows stand in, and a plan is only
        checked. No cell is looked at: what a plan asks of rows is checked first.
        """
        own, rows = self._holder, self._holder.rows
        if not own.policy.trains:
            what = {"model": "training"}.get(plan.numbers.result, plan.numbers.result)
            raise RefusedError(f"{own.name} takes part in predictions only, and in no {what} on these people.")
        if plan.digest in self.seen and own.account is None:
            raise RefusedError(
                "this plan was run before, and a party without a ledger does not remember what it released."
            )
        described, count = isinstance(plan.numbers, Described), rows.shape[0] if plan.split.same_people else own.records
        whose = own.of_people or (plan.most_records and plan.split.same_people and plan.label_party_name != own.name)
        if (plan.most_records is not None) != bool(whose):  # as declared, whatever the identifiers are
            mine = "knows whose record each is" if own.of_people else "was not told whose record each is (person)"
            other = "no people with several records" if own.of_people else "people with several records"
            raise RefusedError(f"{own.name} {mine}, and the plan is about {other} (most_records).")
        check_plan_size(plan, own.name, own.codes_shape() if described else (count, rows.shape[1]))
        if scores := self._of_scores(plan):
            found = own.predictor.scored(bytes.fromhex(plan.numbers.scores), plan.names)
            if found is None and scored:
                raise RefusedError(f"{own.name} has received no joint predictions of that model; ask for them first.")
            rows = rows if found is None else found[:, None]
        try:
            recipe = score_recipe(plan) if scores else plan.part(own.name).preparation
        except InputError as error:
            raise RefusedError(f"{own.name} refuses: {error}") from None
        if described:  # the label is a column like any other
            return rows, own.labels, dataclasses.replace(recipe, labelled=False)
        if plan.layout == "raw" and is_sparse(own.rows):
            raise RefusedError(f"{own.name} has a sparse matrix, of which no ranges are estimated; declare them.")
        if recipe.labelled != own.labelled:
            knows = "knows the labels" if own.labelled else "does not know the labels"
            raise RefusedError(f"{own.name} {knows}, and the plan says otherwise (labels={plan.labels!r}).")
        groups = plan.numbers.groups if isinstance(plan.numbers, Evaluated) else None
        if groups is None:
            return rows, own.labels, recipe
        counts = scores or not plan.split.same_people
        if counts and not groups.places and "group" not in columns_beside(own.labels):
            raise RefusedError(
                f"{own.name} has no groups beside its labels, by which the plan evaluates; give the party "
                "sv.labels_with(y, group=...)."
            )
        return rows, own.labels, dataclasses.replace(recipe, also=("group",))

    def _of_scores(self, plan: Plan) -> bool:
        """Whether a plan evaluates scores that this party was told, as the holder of the labels."""
        told = isinstance(plan.numbers, Evaluated) and plan.numbers.scores != ""
        return told and plan.split.same_people and plan.label_party_name == self._holder.name

    def _with_groups(self, plan: Plan, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels with the groups that features tell beside them, where the rows are scores and do not tell those."""
        groups = plan.numbers.groups if isinstance(plan.numbers, Evaluated) else None
        if groups is None or not groups.places:
            return labels
        own, part, plain = self._holder, plan.part(self._holder.name), labels_of(labels)
        if not self._of_scores(plan):
            return plain
        block = Block.prepare(own.rows, plain, part.preparation, resources=own.resources)
        return np.asarray(groups.beside(plain, block, part.start))

    def _make_masker(self, plan: Plan) -> Masker:
        """The own side of secure sums; a plan that has another key for it is refused."""
        own = self._holder
        pins = own.policy.needs_pins(plan)
        peers = known_keys(own.name, plan.keys, own.identity, pins=pins, dealer=plan.channel.aggregation.dealer)
        remedy = "Start a new fit."
        if own.account is not None:
            nothing = "It has charged nothing for this plan; start the fit again."
            remedy = "What was released stays charged; start a new fit." if own.charged(plan) else nothing
        pairs = own.keys.pairs(plan, peers, remedy)
        return (ColumnMasker if plan.split.same_people else Masker)(plan, own.name, pairs)

    def recall_memory(self, form: Algorithm, plan: Plan, rows: Block) -> Stored:
        """What the form remembers between rounds and where it is stored, or a refusal if that is lost."""
        own, memory = self._holder, form.remember(plan, rows)
        noisy = "kept" in map(attrgetter("mechanism"), plan.releases)
        if own.account is None or not (form.lasting(memory) or noisy):
            return memory, None
        files = Memory(own.account.path, own.name, plan.digest, rows.digest())
        files.clear(own=False, others=True)
        found = recall_state(own, form, plan, memory, files)
        if found is not None:
            return found[0], files
        shared = plan.split.same_people and plan.models == "shared"  # the one thing left may be the model
        if not (shared and answered_all(form, plan, own.name, own.account.answers(plan.digest.hex()))):
            raise RefusedError(
                f"{own.name} was stopped in the middle of this run and what {plan.algorithm} keeps at the holder "
                "between rounds is lost, or of other records than it has now; what was released stays charged. "
                "Start a new fit."
            )
        return memory, None

    def _check_charge(self, form: Algorithm, plan: Plan) -> None:
        """Refuse a plan that the ledger could not pay now; nothing is charged."""
        own = self._holder
        if own.account is None:
            return
        cost = charge_of(form, plan, own.name)
        own.account.check(plan.digest.hex(), cost, delta=plan.delta, within=part_of_fit(plan), unit=plan.protects)
        check_samplers(own.account, form, plan, own.name, cost)

    def _begin(
        self, plan: Plan, form: Algorithm, queries: Mapping[str, Query], rows: Block, masker: Masker | None
    ) -> PartyRun:
        """The run of a plan, once its key is bound to the prepared rows, and its whole cost is reserved in the ledger.

        A plan whose run is over is refused. Over secure columns the file of used labels is there from before the
        charge until the run is over: a restarted party goes on, and a copy of it from before the plan does not run it
        a second time with the same keys.
        """
        own = self._holder
        memory, files = self.recall_memory(form, plan, rows)
        if masker is not None:
            masker.records = rows.digest()
        registered = own.account is not None and plan.secure_columns
        used = own.keys.labels(plan) if registered else UsedLabels()
        new = registered and used.begin()
        try:
            if registered and new and own.charged(plan):
                raise RefusedError(
                    "this plan was run before, and a party over secure columns runs a plan once; start a new fit."
                )
            if masker is not None:
                own.keys.bind(plan, masker.records, charged=own.charged(plan))
            if own.account is not None:
                cost = charge_of(form, plan, own.name)
                check_samplers(own.account, form, plan, own.name, cost)
                own.account.reserve(
                    plan.digest.hex(),
                    cost,
                    delta=plan.delta,
                    summary=f"{plan.algorithm}, {plan.loss.name}, {plan.rounds} rounds",
                    about=plan.about.texts(),
                    within=part_of_fit(plan),
                    rests_on=assumed(plan),
                    unit=plan.protects,
                )
        except BaseException:
            if new:
                used.end()
            raise
        own.keys.keep(plan)
        self.seen.add(plan.digest)
        columns: ColumnRun | None = None
        if masker is None:
            gate = Gate(plan, own.randomness, own.account)
        else:
            gate = secure = SecureGate(plan, own.randomness, own.account, masker)
            if isinstance(masker, ColumnMasker):
                secure.used = used
                columns = ColumnRun(plan, masker, rows, secure, own.randomness)
        gate.memory, gate.lasting = files, form.lasting
        return PartyRun(own, plan, form, queries, rows, memory, gate, columns)

    def answer(self, frame: Frame) -> Outgoing:
        if frame.kind == "done":
            return self._end(frame)
        own, run = self._holder, self._holder.run
        if run is None or run.plan.digest != frame.plan:
            return unknown_plan(frame)
        if frame.kind == "secure":
            if not run.started or run.columns is None:
                raise RefusedError(f"{own.name} has no run over secure columns that has started under this plan.")
            masked = run.columns.stage(frame, run.query_of(frame))
            return reply("accept", frame, ACCEPTED) if masked is None else reply("answer", frame, masked)
        if not run.started:
            raise RefusedError(
                f"{own.name} answers nothing under this plan before it has seen that every party of it signed it: "
                "send the signatures first, in a frame that starts the plan."
            )
        query = run.query_of(frame)
        if query is None:
            raise _not_in_turn(frame)
        message = frame.arrays  # what the coordinator sent to all parties alike
        if run.columns is not None:
            said = Call.read(frame.text).said
            message = {name: array for name, array in message.items() if name in said}
        query.check_message(frame.round, message)
        if run.gate.behind() and not run.restore_memory():
            own.run = None
            return unknown_plan(frame)
        try:
            released = run.release(query, message, frame)
        except ForgottenError:
            return unknown_plan(frame)
        finally:
            # The memory may have followed a value that never left: on it nothing later may depend.
            if run.gate.unreleased:
                own.run = None
                if (run.columns is None or run.memory is None) and run.restore_memory():
                    own.run = run
        return reply("answer", frame, released)

    def _end(self, frame: Frame) -> Outgoing:
        """The run of the frame's plan is over; by columns the party keeps its part of the model, or asks for the plan.

        Without a plan it is the whole conversation that is over.
        """
        own, run = self._holder, self._holder.run
        other = bool(frame.plan) and (run is None or run.plan.digest != frame.plan)
        if other:
            kept = self._holder.predictor.models.get(frame.plan)  # said before, and the acknowledgement was lost
            if kept is not None or not own.keys.goes_on(frame.plan):  # else it keeps its part of the model first
                own.keys.end(frame.plan)
            if kept is None:
                return unknown_plan(frame)
            if kept.plan.models == "shared":
                self._keep_shared(frame, kept.plan)
        else:
            own.run = None
            try:
                if frame.plan and run is not None and run.plan.split.same_people and leaves_model(run.plan):
                    self._keep_model(run, frame)
            finally:
                own.keys.forget()
        if own.account is not None:  # of another plan that may go on nothing is deleted
            Memory(own.account.path, own.name, frame.plan).clear(own=True, others=not other)
        return reply("done", frame, ACCEPTED + own.receipt(frame))

    def _keep_model(self, run: PartyRun, frame: Frame) -> None:
        """Keep what this party needs of the model to predict: its own weights of the run, or what comes with its end.

        A model is earned: under a plan with noise it is kept only after this party gave every answer of the plan. An
        evaluation leaves none.
        """
        name, plan = self._holder.name, run.plan
        if isinstance(plan.numbers, Evaluated):
            return
        answered = not plan.private or answered_all(run.form, plan, name, run.gate.answers())
        if not (run.started and answered) and ("coef" in frame.arrays or plan.models == "kept"):
            raise RefusedError(
                f"{name} keeps no model of this plan: it has not been asked for everything that the plan has it "
                "answer, so nothing that it released can have given one."
            )
        if plan.models == "shared":
            self._keep_shared(frame, plan)
            return
        if run.gate.behind() and not run.restore_memory():
            raise RefusedError(f"{name} keeps no model of this plan: what it remembered of the run is lost.")
        weights = run.form.own_weights(run.memory)
        if weights is not None:
            self._holder.predictor.keep(frame.plan, own_part(plan, name, weights))

    def _keep_shared(self, frame: Frame, plan: Plan) -> None:
        """Keep the coefficients of a frame, if it has some; another model of the same plan is refused."""
        arrays = frame.arrays
        if "coef" in arrays and arrays.get("intercept", np.zeros(0)).shape == (1,):
            coef, intercept = arrays["coef"].astype(np.float64), float(arrays["intercept"][0])
            self._holder.predictor.keep(frame.plan, PartialModel(plan, self._holder.name, coef, intercept))
