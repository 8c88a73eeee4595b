"""A party takes a plan: it checks it, agrees on keys, charges its whole cost, signs it, and starts once all have."""

from __future__ import annotations

import dataclasses
from collections import Counter

from sottovoce.algorithms import Algorithm
from sottovoce.algorithms.evaluation import Evaluated, score_recipe
from sottovoce.data import devices
from sottovoce.data.block import Block, Matrix, Preparation, SumRows, is_sparse
from sottovoce.data.dataset import Dataset
from sottovoce.errors import InputError, LedgerError, RefusedError
from sottovoce.federation import limits
from sottovoce.federation.answering import acknowledged, plan_of, unknown_plan
from sottovoce.federation.demands import Known
from sottovoce.federation.holder import Handler, Holder
from sottovoce.federation.plan_checks import charge_of, check_samplers, checked, part_of_fit
from sottovoce.federation.prediction import Predictor
from sottovoce.federation.receipts import RECEIPT, unpacked
from sottovoce.federation.run_keys import PAIR, check_start, known_keys
from sottovoce.federation.training import Stored, answered_all, begin_run, recall_state
from sottovoce.gate.frames import Frame
from sottovoce.gate.memory import Memory
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.gate.secure_gate import UsedLabels
from sottovoce.plan.plan import Plan
from sottovoce.plan.secure_text import assumed
from sottovoce.privacy.ledger import Ledger
from sottovoce.secure.sums import ColumnMasker, Masker
from sottovoce.transports.identity import PLAN

MOST_PREPARED = 8  # times that the rows of a data set are prepared for one plan


class Plans(Handler):
    """Answers "plan": first "check", then offers of keys where sums are secure, then the charge, then "start".

    Guarantee: nothing is answered under a plan before every party of it has signed it, which a party does once it has
    charged it. Proof: privacy/proofs/ledger.md.
    """

    def __init__(self, holder: Holder, predictor: Predictor) -> None:
        super().__init__(holder, predictor)
        self.seen: set[bytes] = set()  # plans that were charged
        self._prepared: Counter[bytes] = Counter()  # by plan, of a data set

    def answer(self, frame: Frame) -> Outgoing:
        own = self._holder
        if frame.query == PAIR:
            return own.keys.answer(frame)
        if frame.query != "start":
            return reply("accept", frame, self.accept(frame) + own.receipt(frame) + self._balances(frame))
        run = own.run_of(frame)
        if run is None:
            return unknown_plan(frame)
        check_start(run.plan, own.name, own.identity, frame.text)
        run.started = True
        return reply("accept", frame, acknowledged(True))

    def accept(self, frame: Frame) -> tuple[Declared, ...]:
        """Check the plan against this party's policy and ledger, prepare the rows, charge the plan's whole cost; sign.

        A frame with the query "check" ends before the charge, without a signature: so a coordinator learns that one
        party refuses before another has paid. A signature says that this party has charged the plan.
        """
        own = self._holder
        self._check_receipt(frame)
        plan = plan_of(frame)
        if own.run_of(frame) is not None:
            return self.sign(plan)
        self._check_new(plan)
        matrix, recipe = self._rows_of(plan)
        alone = plan.names == (own.name,)
        if own.identity is None and not alone:
            raise RefusedError(
                f"{own.name} was not told who it is, and so takes only plans of which it is the only party; serve it "
                "over a wire (InProcess, serve_party)."
            )
        known = Known(own.identity, unaligned=own.ids is not None and not own.aligned)
        form, queries = checked(plan, own, known)
        self.check_aligned(plan)
        masker = self._masker(plan)
        if frame.query == "check":
            own.keys.hold(plan)
            self._check_charge(form, plan)
            return acknowledged(True)
        own.keys.check_agreed(plan)
        if isinstance(own.rows, Dataset):
            self._check_charge(form, plan)  # to prepare its rows may take an hour
            if self._prepared[plan.digest] == MOST_PREPARED:  # it is charged once, however often it is proposed
                raise RefusedError(
                    f"{own.name} has prepared its rows {MOST_PREPARED} times for this plan; it does so again once it "
                    "is started anew."
                )
            self._prepared[plan.digest] += 1
        beside = None if own.account is None else own.account.path.parent
        sums = all(query.needs is SumRows for query in queries.values())
        rows = devices.prepare_rows(matrix, own.labels, recipe, own.resources, sums=sums, beside=beside)
        memory = self.recall_memory(form, plan, rows)
        if masker is not None:
            masker.records = rows.digest()
        used = self._charge(form, plan, masker)
        own.keys.keep(plan)
        self.seen.add(plan.digest)
        own.run = begin_run(own, (plan, form, queries), rows, memory, (masker, used))
        own.run.started = alone
        return self.sign(plan)

    def sign(self, plan: Plan) -> tuple[Declared, ...]:
        """The acknowledgement of a plan that was charged, with this party's signature on its digest for the others."""
        own = self._holder
        if own.identity is None or plan.names == (own.name,):
            return acknowledged(True)
        signature = own.identity.sign(PLAN, plan.digest)
        return (*acknowledged(True), declare_public("signature", signature, reason="over the plan's digest"))

    def check_aligned(self, plan: Plan) -> None:
        """Refuse a plan over secure columns that is not of the alignment whose records this party serves.

        All parties sign the plan, with the digest of the alignment in it: so all serve the same people, in one order.
        Identifiers themselves are compared with nobody: whoever could test a list could test guesses.
        """
        own = self._holder
        if not plan.secure_columns or plan.channel.aggregation.aligned == own.aligned:
            return
        mine = "the records of an alignment" if own.aligned else "no aligned records"
        other = "records of another one" if plan.channel.aggregation.aligned else "records that were not aligned"
        raise RefusedError(
            f"{own.name} serves {mine}, and the plan is about {other}. Align all parties again, each with `id` "
            "(`sottovoce align`); nothing was charged."
        )

    def _check_receipt(self, frame: Frame) -> None:
        """Refuse to go on with a ledger that does not have the entry of the receipt that the coordinator has."""
        own, receipt = self._holder, frame.arrays.get(RECEIPT)
        if receipt is None:
            return
        try:
            if own.account is None:
                raise LedgerError(f"party {own.name} has no ledger, and had one in an earlier run.")
            Ledger(own.account.path).check_receipt(unpacked(receipt))
        except LedgerError as error:
            raise RefusedError(
                f"{own.name} refuses: its ledger does not have the entry of the receipt that it gave in an earlier "
                "run. It was set back, cut or replaced; nothing was charged. If the party serves another data set now, "
                "remove its receipt (of a job: in NAME.receipts.json)."
            ) from error

    def _check_new(self, plan: Plan) -> None:
        own = self._holder
        if not own.policy.trains:
            what = "evaluation" if plan.algorithm == "evaluation" else "training"
            raise RefusedError(f"{own.name} takes part in predictions only, and in no {what} on these people.")
        if plan.digest in self.seen and own.account is None:
            raise RefusedError(
                "this plan was run before, and a party without a ledger does not remember what it released."
            )

    def _rows_of(self, plan: Plan) -> tuple[Matrix, Preparation]:
        """The rows that a plan is about and how they become a block, or a refusal.

        They are this party's or, of an evaluation by columns at the holder of the labels, the scores that it received
        as the recipient of predictions. Columns of other parties are in such a score. They let this one learn it
        (`Policy.predict_for`); that counts of it are released each of them allows by charging the plan and signing it.
        """
        own, rows = self._holder, self._holder.rows
        limits.check_size(plan, own.name, rows.shape)
        scored = isinstance(plan.numbers, Evaluated) and plan.numbers.scores != ""
        scored = scored and plan.split.same_people and plan.label_party_name == own.name
        if scored:
            scores = self._predictor.scored(bytes.fromhex(plan.numbers.scores), plan.names)
            if scores is None:
                raise RefusedError(f"{own.name} has received no joint predictions of that model; ask for them first.")
            rows = scores[:, None]
        try:
            recipe = score_recipe(plan) if scored else plan.part(own.name).preparation
        except InputError as error:
            raise RefusedError(f"{own.name} refuses: {error}") from None
        if plan.layout == "raw" and is_sparse(own.rows):
            raise RefusedError(f"{own.name} has a sparse matrix, of which no ranges are estimated; declare them.")
        if recipe.labelled != own.labelled:
            knows = "knows the labels" if own.labelled else "does not know the labels"
            raise RefusedError(f"{own.name} {knows}, and the plan says otherwise (labels={plan.labels!r}).")
        return rows, recipe

    def _masker(self, plan: Plan) -> Masker | None:
        """The own side of secure sums; a plan that has another key for it is refused."""
        own = self._holder
        if not plan.channel.secure:
            return None
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
        noisy = any(release.mechanism == "kept" for release in plan.releases)
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
        own.account.check(plan.digest.hex(), cost, delta=plan.delta, within=part_of_fit(plan))
        check_samplers(own.account, form, plan, own.name, cost)

    def _charge(self, form: Algorithm, plan: Plan, masker: Masker | None) -> UsedLabels:
        """Bind the key of a plan to the prepared rows, and reserve its whole cost, durably, where there is a ledger.

        A plan whose run is over is refused. Over secure columns the file of used labels is there from before the
        charge until the run is over: a restarted party goes on, and a copy of it from before the plan does not run it
        a second time with the same keys.
        """
        own = self._holder
        registered = own.account is not None and plan.secure_columns
        used = own.keys.labels(plan) if registered else UsedLabels()
        new = used.begin()
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
                )
        except BaseException:
            if new:
                used.end()
            raise
        return used

    def _balances(self, frame: Frame) -> tuple[Declared, ...]:
        """What the account had before the plan and has with it, where the holder tells that."""
        own = self._holder
        if own.account is None or not own.policy.tell_budget or frame.query == "check":
            return ()
        book = own.account.book()
        others = tuple(known for known in book.reservations if known.plan != frame.plan.hex())
        balances = (dataclasses.replace(book, reservations=others).balance(), book.balance())
        numbers = [float(number) for balance in balances for number in dataclasses.astuple(balance)[:8]]
        return (declare_public("budget", numbers, reason="the holder tells it"),)
