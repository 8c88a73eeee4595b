"""A party: the holder of raw rows. They never leave this object; values leave through its gate alone."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithms import Algorithm, served
from sottovoce.algorithms.evaluation import Evaluated, score_recipe
from sottovoce.data import devices
from sottovoce.data.block import Block, Matrix, Preparation, RecordRows, SumRows, is_sparse
from sottovoce.data.dataset import Dataset
from sottovoce.data.identifiers import identifiers
from sottovoce.data.progress import Hear, heard_by
from sottovoce.data.threads import check_jobs, using
from sottovoce.door.frames import Frame
from sottovoce.door.gate import Gate
from sottovoce.door.memory import Memory
from sottovoce.door.outgoing import Declared, Outgoing, Released, Share, declare_public, reply
from sottovoce.door.query import ForgottenError, Query, Round
from sottovoce.door.sealed_gate import SealedGate
from sottovoce.door.used_labels import UsedLabels, ran_before
from sottovoce.errors import InputError, LedgerError, RefusedError
from sottovoce.federation import limits
from sottovoce.federation.alignment.file import AlignmentFile
from sottovoce.federation.alignment.party import Aligner
from sottovoce.federation.announcements import check_pinned, check_start, known_keys, read_invitation
from sottovoce.federation.answering import Answering, acknowledged, plan_of
from sottovoce.federation.demands import Known, left_out
from sottovoce.federation.models import Models, PartialModel, own_part
from sottovoce.federation.plan_checks import charge_of, check_samplers, checked, part_of_fit
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import Predictions, Predictor
from sottovoce.federation.receipts import RECEIPT, unpacked
from sottovoce.federation.records import MOST_READ, check_rows, column_names, label_values
from sottovoce.federation.run_keys import PAIR, RunKeys
from sottovoce.federation.sealed_columns.party import ColumnRun
from sottovoce.plan.families import FAMILIES
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealed_words import assumed
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.randomness import Randomness, SystemRandomness
from sottovoce.queries.pricing import answers_due
from sottovoce.sealed.sums import Call, ColumnSealer, Sealer
from sottovoce.transports.identity import PLAN, Identity

_log = logging.getLogger("sottovoce.holder")

MOST_PREPARED = 8  # times that the rows of a data set are prepared for one plan


@dataclass
class _Run:
    plan: Plan
    form: Algorithm
    queries: Mapping[str, Query]
    rows: Block
    gate: Gate
    memory: Any  # what the algorithm keeps at the holder between rounds
    columns: ColumnRun | None = None  # where columns are sealed
    started: bool = False  # whether every party of the plan is known to have charged it


class Party(Answering):
    """Answers a coordinator's frames. `handle` is the only way in and `Outgoing` the only way out.

    Guarantee: every reply is a `Released` value, a declared public one, or a prediction for whom the policy names; an
    error that the rows could have caused travels as a fixed text. Nothing is answered under a plan before every party
    of it has signed it, which a party does once it has charged it. Edges: a repeated request gets the stored release;
    an unknown plan is asked for again; a party that no wire has told who it is takes only plans of its own alone.
    `y=None`: a holder of columns that does not know the labels. `models` has the partial models that runs over columns
    leave here; by default they are in a folder beside the ledger, or in memory. `ids` identify the records, one each:
    by sealed columns they are aligned with those of the other parties before a plan is taken. The alignment is kept in
    `aligned`; the party then serves the common records alone, in the common order. `n_jobs` is how
    many threads sum over its rows: None is 1, or what the estimator says that runs in the same process; no answer
    depends on it. `device` likewise says where: "cpu", or "cuda".
    """

    def __init__(  # noqa: PLR0913
        self,
        name: str,
        X: Matrix,
        y: ArrayLike | None,
        *,
        account: Account | None = None,
        policy: Policy | None = None,
        randomness: Randomness | None = None,
        feature_names: tuple[str, ...] = (),
        models: Models | None = None,
        ids: Sequence[Any] | NDArray[Any] | None = None,
        id_rule: str = "usual",
        aligned: AlignmentFile | None = None,
        n_jobs: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        check_jobs(n_jobs)
        devices.check_device(device)
        self.n_jobs, self.device = n_jobs, device
        self.hear: Hear | None = None  # who is told how far long work on its rows has come
        self.name = name
        self._labelled = X.labelled if isinstance(X, Dataset) else y is not None
        self._rows, self._labels = check_rows(X, y, name)
        self._whole = self._rows, self._labels  # also those that an alignment leaves out
        known = None if ids is None else identifiers(ids, int(self._rows.shape[0]), name, id_rule)
        self.aligner = Aligner(name, known, id_rule, aligned or AlignmentFile())
        self._places: NDArray[np.int64] | None = None  # of the records that it serves, if not all
        self._aligned = ""  # the digest of the alignment whose records it serves
        self._account = account
        if account is not None:
            account.book()  # the whole file is checked before anything is served
        self._policy, self._agreed = policy or Policy(), policy is not None
        self.randomness: Randomness = randomness or SystemRandomness()
        self._feature_names = feature_names or column_names(X)
        if models is None:
            models = Models() if account is None else Models.beside(account.path, name)
        self.predictor = Predictor(name, models, self._feature_names)
        self._identity: Identity | None = None
        self._run: _Run | None = None
        self._seen: set[bytes] = set()
        self._prepared: Counter[bytes] = Counter()  # by plan, of a data set
        self._keys = RunKeys(account, name)
        self.aligner.file.check(known, id_rule)
        if (kept := self.aligner.file.kept) is not None:
            self.use(kept.places, kept.digest)

    @property
    def features(self) -> int:
        """How many columns it has; public."""
        return int(self._rows.shape[1])

    def use(self, places: NDArray[np.int64], digest: str) -> None:
        """Serve these records alone, in this order, from now on: an alignment of that digest has found them.

        The digest is random to all who lack the scalars of a single party: it goes into plans, and no other function of
        identifiers does.
        """
        rows, labels = self._whole
        if isinstance(rows, Dataset):
            raise InputError(f"{self.name}: a Dataset cannot be aligned, whose rows are not in memory; give arrays.")
        all_in_order = np.array_equal(places, np.arange(rows.shape[0]))  # then nothing is copied
        self._rows, self._labels = (rows, labels) if all_in_order else (rows[places], labels[places])
        self._places, self._aligned = places, digest
        self._run = None
        self.predictor.renew(digest)

    @property
    def ids(self) -> tuple[str, ...] | None:
        """The identifiers of the records that it serves, in their order; for the holder's eyes."""
        known = self.aligner.ids
        if known is None:
            return None
        return tuple(known) if self._places is None else tuple(known.at(self._places))

    @property
    def labelled(self) -> bool:
        """Whether it knows the labels."""
        return self._labelled

    def same_labels(self, other: Party) -> bool:
        """Whether another party of the same holder has the same labels in the same order; the labels stay inside."""
        mine, theirs = self._labels.tolist(), other._labels.tolist()
        return len(mine) == len(theirs) and all(str(one) == str(two) for one, two in zip(mine, theirs, strict=True))

    @property
    def predictions(self) -> Predictions | None:
        """The last joint predictions that this party was the recipient of; for the holder's eyes."""
        return self.predictor.received

    def identify(self, identity: Identity) -> None:
        """How this party signs and knows the others; told by its own end of a wire."""
        self._identity = self.predictor.identity = identity

    def permit(self, *, without_privacy: bool, predict_for: tuple[str, ...] = ()) -> None:
        """What the holder may do with its own rows in its process: read the classes, run without privacy, predict.

        A policy that was given holds as it is.
        """
        if not self._agreed:
            self._policy = Policy(
                allow_without_privacy=without_privacy,
                tell_classes=True,
                predict_for=predict_for,
                predict_training=True,
                approve_models=True,
                sealed=True,
                curious=1,
            )
        if self._run is not None and not self._run.plan.private and not self._policy.allow_without_privacy:
            self._run = None  # what an interrupted run was allowed, the next one is not

    def handle(self, request: bytes) -> Outgoing:
        """Answer one frame, by the party's own number of threads."""
        with using(self.n_jobs), devices.on(self.device), heard_by(self.hear):
            return super().handle(request)

    def _answer(self, frame: Frame) -> Outgoing:
        """By the kind of the frame."""
        limits.check_text(frame.text, self.features)
        if frame.kind == "hello":
            return reply("facts", frame, self._introduced(frame))
        if frame.kind == "plan" and frame.query == "start":
            return self._start(frame)
        if frame.kind == "plan" and frame.query == PAIR:
            return self._keys.answer(frame)
        if frame.kind == "plan":
            return reply("accept", frame, self._accept(frame) + self._receipt(frame) + self._budget(frame))
        if frame.kind == "predict":
            disclosed = self.predictor.answer(frame, self._rows, self._policy)
            if disclosed is not None:
                return reply("answer", frame, disclosed)
        elif frame.kind == "done":
            return self._end(frame)
        elif frame.kind == "ask":
            return self._asked(frame)
        elif frame.kind == "seal":
            return self._stage(frame)
        elif frame.kind == "align":
            return self._align(frame)
        else:
            raise RefusedError(f"a party does not answer frames of kind {frame.kind!r}.")
        return reply("accept", frame, acknowledged(True))

    def _align(self, frame: Frame) -> Outgoing:
        """A message of an alignment; at its end the common records are served in the place of all."""
        if frame.query == "invite":
            return reply("facts", frame, self.aligner.invited(frame, self._policy, self._identity))
        masked = self.aligner.answer(frame, self._policy, self._identity)
        if (found := self.aligner.finished()) is not None:
            self.use(found.places, found.digest)
            self._keys.forget()  # of a plan that is about other records
        return reply("accept", frame, acknowledged(True)) if masked is None else reply("answer", frame, masked)

    def _receipt(self, frame: Frame) -> tuple[Declared, ...]:
        """How far the ledger goes, with every acceptance and at the end of a run: a copy set back is found by it."""
        if self._account is None or not frame.plan or frame.query == "check":
            return ()
        reason = "entries follow from plans; the hash is by a key of the ledger"
        number, hash_ = self._account.receipt()
        return (declare_public("receipt", f"{number:012}:{hash_}", reason=reason),)  # as long as any other

    def _budget(self, frame: Frame) -> tuple[Declared, ...]:
        """What the account had before the plan and has with it, where the holder tells that."""
        if self._account is None or not self._policy.tell_budget or frame.query == "check":
            return ()
        book = self._account.book()
        others = tuple(known for known in book.reservations if known.plan != frame.plan.hex())
        balances = (dataclasses.replace(book, reservations=others).balance(), book.balance())
        numbers = [float(number) for balance in balances for number in dataclasses.astuple(balance)[:8]]
        return (declare_public("budget", numbers, reason="the holder tells it"),)

    def _check_receipt(self, frame: Frame) -> None:
        """Refuse to go on with a ledger that does not have the entry of the receipt that the coordinator has."""
        told = frame.arrays.get(RECEIPT)
        if told is None:
            return
        try:
            if self._account is None:
                raise LedgerError(f"party {self.name} has no ledger, and had one in an earlier run.")
            Ledger(self._account.path).check_receipt(unpacked(told))
        except LedgerError as error:
            self.failure = error
            _log.error("party %s: %s", self.name, error)
            raise RefusedError(
                f"{self.name} refuses: its ledger does not have the entry of the receipt that it gave in an earlier "
                "run. It was set back, cut or replaced; nothing was charged. If the party serves another data set now, "
                "remove its receipt (of a job: in NAME.receipts.json)."
            ) from None

    def _introduced(self, frame: Frame) -> tuple[Declared, ...]:
        """Public facts and, as the frame asks, the class labels or a public key."""
        if frame.query == "seal":
            if not self._policy.sealed:
                raise RefusedError(f"{self.name} takes no part in sealed sums; its holder can, by Policy(sealed=True).")
            return self._announced(read_invitation(frame.text))
        facts = self.facts(classes=frame.query == "classes")
        if frame.query == "predict":
            facts += (
                declare_public("public_key", self.predictor.public_key, reason="random, made to be told"),
                declare_public("signature", self.predictor.signature, reason="over the public key"),
            )
        return facts

    def _announced(self, members: tuple[str, ...]) -> tuple[Declared, ...]:
        """A key for a run of sealed sums; by columns only with ends that this party knows by itself."""
        check_pinned(self.name, members, self._identity)
        if members and (reason := left_out(self._policy, members, self.name, self._identity)):
            raise RefusedError(f"{self.name} refuses: {reason}.")
        return (declare_public("public_key", self._keys.new(), reason="random, made to be told"), *self._alignment())

    def _end(self, frame: Frame) -> Outgoing:
        """The run of the frame's plan is over; by columns the party keeps its part of the model, or asks for the plan.

        Without a plan it is the whole conversation that is over.
        """
        run = self._run
        if frame.plan and (run is None or run.plan.digest != frame.plan):
            kept = self.predictor.models.get(frame.plan)  # said before, and the acknowledgement was lost
            if kept is not None or not self._keys.goes_on(frame.plan):  # else it keeps its part of the model first
                self._keys.end(frame.plan)
            if kept is None:
                return reply("unknown-plan", frame, acknowledged(False))
            if kept.plan.models == "shared":
                self._keep_told(frame, kept.plan)
            if self._account is not None:  # it may have been stopped before all was deleted; another plan may go on
                Memory(self._account.path, self.name, frame.plan).clear(own=True, others=False)
        else:
            self._run = None
            fitted = run is not None and run.plan.split == "columns" and run.plan.algorithm in FAMILIES
            try:
                if frame.plan and run is not None and fitted:
                    self._keep_model(run, frame)
            finally:
                self._keys.forget()
            if self._account is not None:
                Memory(self._account.path, self.name, frame.plan).clear(own=True, others=True)
        return reply("done", frame, acknowledged(True) + self._receipt(frame))

    def _asked(self, frame: Frame) -> Outgoing:
        """The answer to a query, if it is this party's turn and the message carries what the query takes."""
        run = self._run
        if run is None or run.plan.digest != frame.plan:
            return reply("unknown-plan", frame, acknowledged(False))
        if not run.started:
            raise RefusedError(
                f"{self.name} answers nothing under this plan before it has seen that every party of it signed it: "
                "send the signatures first, in a frame that starts the plan."
            )
        query = run.queries.get(frame.query)
        if query is None or not self._turn(run.plan, query, frame.round):
            raise RefusedError(f"query {frame.query!r} in round {frame.round} is not this party's turn in the plan.")
        told = frame.arrays
        if run.columns is not None:
            told = {name: array for name, array in told.items() if name in Call.read(frame.text).said}
        reason = query.objection(frame.round, told)
        if reason is not None:
            raise RefusedError(f"query {frame.query!r} in round {frame.round} {reason}.")
        if run.gate.behind() and not self._made_again(run):
            self._run = None
            return reply("unknown-plan", frame, acknowledged(False))
        round = Round(run.plan, frame.round, told, run.rows, run.memory)
        released: Released | Share
        try:
            if run.columns is not None:
                released = run.columns.share(query, round, frame)
            elif isinstance(run.gate, SealedGate):
                released = run.gate.share(query, round, Call.read(frame.text))
            else:
                released = run.gate.release(query, round)
        except ForgottenError:
            return reply("unknown-plan", frame, acknowledged(False))
        finally:
            # The memory may have followed a value that never left: on it nothing later may depend.
            if run.gate.unreleased:
                self._run = None
                if (run.columns is None or run.memory is None) and self._made_again(run):
                    self._run = run
        return reply("answer", frame, released)

    def _made_again(self, run: _Run) -> bool:
        """Whether the memory of a run could be made again, as it was after the last release that was stored."""
        fresh = run.form.remember(run.plan, run.rows)
        if run.form.lasting(fresh):
            if run.gate.memory is None or self._account is None:
                return False
            found = self._recalled(run.form, run.plan, fresh, run.gate.memory)
            if found is None:
                return False
            (fresh,) = found
        run.memory = fresh
        return True

    def _recalled(self, form: Algorithm, plan: Plan, fresh: Any, kept: Memory) -> tuple[Any] | None:
        """The memory as it was after the last release of a plan that was stored; None if that is lost."""
        last = None if self._account is None else self._account.last_release(plan.digest.hex())
        if last is None:
            return (fresh,)
        number, query, release = last
        state = kept.read((number, query), release)
        return None if state is None else (form.recall(fresh, state),)

    def _remembered(self, form: Algorithm, plan: Plan, rows: Block) -> tuple[Any, Memory | None]:
        """What the form keeps between rounds and where it is stored, or a refusal if that is lost."""
        fresh = form.remember(plan, rows)
        noisy = any(release.mechanism == "kept" for release in plan.releases)
        if self._account is None or not (form.lasting(fresh) or noisy):
            return fresh, None
        kept = Memory(self._account.path, self.name, plan.digest, rows.digest())
        kept.clear(own=False, others=True)
        found = self._recalled(form, plan, fresh, kept)
        if found is None:
            told = plan.split == "columns" and plan.models == "shared"  # the one thing left may be the model
            if not (told and self._answered_all(form, plan, self._account.answers(plan.digest.hex()))):
                raise RefusedError(
                    f"{self.name} was stopped in the middle of this run and what {plan.algorithm} keeps at the holder "
                    "between rounds is lost, or of other records than it has now; what was released stays charged. "
                    "Start a new fit."
                )
            return fresh, None
        return found[0], kept

    def _stage(self, frame: Frame) -> Outgoing:
        """A message between the parties of a plan over sealed columns, as it passes the coordinator."""
        run = self._run
        if run is None or run.plan.digest != frame.plan:
            return reply("unknown-plan", frame, acknowledged(False))
        if not run.started or run.columns is None:
            raise RefusedError(f"{self.name} has no run over sealed columns that has started under this plan.")
        query = run.queries.get(frame.query)
        if query is not None and not self._turn(run.plan, query, frame.round):
            raise RefusedError(f"query {frame.query!r} in round {frame.round} is not this party's turn in the plan.")
        masked = run.columns.stage(frame, query)
        return reply("accept", frame, acknowledged(True)) if masked is None else reply("answer", frame, masked)

    def _knows(self) -> Known:
        """What it knows by itself, for the check of a plan."""
        return Known(self._identity, unaligned=self.aligner.ids is not None and not self._aligned)

    def _check_aligned(self, plan: Plan) -> None:
        """Refuse a plan over sealed columns that is not of the alignment whose records this party serves.

        All parties sign the plan, with the digest of the alignment in it: so all serve the same people, in one order.
        Identifiers themselves are compared with nobody: whoever could test a list could test guesses.
        """
        if plan.sealing is None or not plan.sealed_columns:
            return
        if plan.sealing.aligned != self._aligned:
            own = "the records of an alignment" if self._aligned else "no aligned records"
            other = "records of another one" if plan.sealing.aligned else "records that were not aligned"
            raise RefusedError(
                f"{self.name} serves {own}, and the plan is about {other}. Align all parties again, each with `id` "
                "(`sottovoce align`); nothing was charged."
            )

    def _turn(self, plan: Plan, query: Query, number: int) -> bool:
        """Whether the plan has this party answer the query in that round."""
        if not plan.has(query.name):
            return False
        release = plan.release(query.name)
        in_time = release.mechanism != "kept" and release.first <= number < release.first + release.count
        return in_time and query.answered_by(plan, self.name, number)

    def _keep_model(self, run: _Run, frame: Frame) -> None:
        """What this party needs of the model to predict: kept from the run, or told with its end.

        A model is earned: under a plan with noise it is kept only after this party gave every answer of the plan. An
        evaluation leaves none.
        """
        if isinstance(run.plan.numbers, Evaluated):
            return
        answered = not run.plan.private or self._answered_all(run.form, run.plan, run.gate.answers())
        if not (run.started and answered) and ("coef" in frame.arrays or run.plan.models == "kept"):
            raise RefusedError(
                f"{self.name} keeps no model of this plan: it has not been asked for everything that the plan has it "
                "answer, so nothing that it released can have given one."
            )
        if run.plan.models == "shared":
            self._keep_told(frame, run.plan)
            return
        if run.gate.behind() and not self._made_again(run):
            raise RefusedError(f"{self.name} keeps no model of this plan: what it remembered of the run is lost.")
        weights = run.form.own_weights(run.memory)
        if weights is not None:
            self.predictor.keep(frame.plan, own_part(run.plan, self.name, weights))

    def _keep_told(self, frame: Frame, plan: Plan) -> None:
        """Keep the coefficients of a frame, if it has some; another model of the same plan is refused."""
        arrays = frame.arrays
        if "coef" in arrays and arrays.get("intercept", np.zeros(0)).shape == (1,):
            coef, intercept = arrays["coef"].astype(np.float64), float(arrays["intercept"][0])
            self.predictor.keep(frame.plan, PartialModel(plan, self.name, coef, intercept))

    def _answered_all(self, form: Algorithm, plan: Plan, given: Counter[str]) -> bool:
        """Whether this party has given every answer that each run of the plan has from it."""
        return all(given[query] >= count for query, count in answers_due(form, plan, self.name).items())

    def facts(self, *, classes: bool) -> tuple[Declared, ...]:
        """Public facts, each with its reason. Row counts do not differ between neighbours."""
        facts = [
            declare_public("records", int(self._rows.shape[0]), reason="the count is the same for neighbours"),
            declare_public("features", int(self._rows.shape[1]), reason="the schema is public"),
            declare_public("feature_names", [str(name) for name in self._feature_names], reason="the schema is public"),
        ]
        facts += self._alignment()
        kind = devices.kind_of_rows(by_pieces=isinstance(self._rows, Dataset))
        if kind is not RecordRows:
            reason = "where the rows lie is the holder's choice"
            facts.append(declare_public("solvers", list(served(kind)), reason=reason))
        if classes and self._labelled and not self._policy.tell_classes:
            raise RefusedError(
                f"{self.name} does not tell which labels occur in its data; declare them with classes=(one, other)."
            )
        if classes:
            found = label_values(self._known_labels()) if self._labelled else []
            facts.append(declare_public("classes", found, reason="not declared, so read and made public"))
        return tuple(facts)

    def _alignment(self) -> tuple[Declared, ...]:
        """Of which alignment its records are, if of one."""
        reason = "a hash by keys that are forgotten, the same at all parties"
        return (declare_public("aligned", self._aligned, reason=reason),) if self._aligned else ()

    def _known_labels(self) -> NDArray[Any]:
        """The labels, of a data set each once."""
        return self._rows.distinct_labels(MOST_READ) if isinstance(self._rows, Dataset) else self._labels

    def _accept(self, frame: Frame) -> tuple[Declared, ...]:
        """Check the plan against this party's policy and ledger, prepare the rows, charge the plan's whole cost; sign.

        A frame with the query "check" ends before the charge, without a signature: so a coordinator learns that one
        party refuses before another has paid. A signature says that this party has charged the plan.
        """
        self._check_receipt(frame)
        plan = plan_of(frame.text)
        if plan.digest != frame.plan:
            raise RefusedError("the plan's text and its digest do not agree.")
        if self._run is not None and self._run.plan.digest == plan.digest:
            return self._signed(plan)
        self._check_trains(plan)
        if plan.digest in self._seen and self._account is None:
            raise RefusedError(
                "this plan was run before, and a party without a ledger does not remember what it released."
            )
        recipe = self._recipe(plan)
        alone = plan.names == (self.name,)
        if self._identity is None and not alone:
            raise RefusedError(
                f"{self.name} was not told who it is, and so takes only plans of which it is the only party; serve it "
                "over a wire (InProcess, serve_party)."
            )
        form, queries = checked(plan, self.name, self._rows, self._policy, self._knows())
        self._check_aligned(plan)
        sealer = self._sealer(plan)
        if frame.query == "check":
            self._keys.hold(plan)
            self._check_charge(form, plan)
            return acknowledged(True)
        self._keys.check_agreed(plan)
        if isinstance(self._rows, Dataset):
            self._check_charge(form, plan)  # to prepare its rows may take an hour
            self._count_preparing(plan)
        beside = None if self._account is None else self._account.path.parent
        sums = all(query.needs is SumRows for query in queries.values())
        rows = devices.prepared(self._rows_of(plan), self._labels, recipe, sums=sums, beside=beside)
        memory, kept = self._remembered(form, plan, rows)
        if sealer is not None:
            sealer.records = rows.digest()
        used = self._begun(form, plan, sealer)
        self._keys.keep(plan)
        self._seen.add(plan.digest)
        gate, columns = Gate(plan, self.randomness, self._account), None
        if sealer is not None:
            gate = sealed = SealedGate(plan, self.randomness, self._account, sealer)
            if isinstance(sealer, ColumnSealer):
                sealed.used = used
                columns = ColumnRun(plan, sealer, rows, sealed, self.randomness)
        gate.memory, gate.lasting = kept, form.lasting
        self._run = _Run(plan, form, queries, rows, gate, memory, columns, started=alone)
        return self._signed(plan)

    def _check_charge(self, form: Algorithm, plan: Plan) -> None:
        """Refuse a plan that the ledger could not pay now; nothing is charged."""
        if self._account is None:
            return
        cost = charge_of(form, plan, self.name)
        self._account.check(plan.digest.hex(), cost, delta=plan.delta, within=part_of_fit(plan))
        check_samplers(self._account, form, plan, self.name, cost)

    def _count_preparing(self, plan: Plan) -> None:
        """Refuse a plan that is proposed again and again after its end: it is charged once, and may take hours."""
        if self._prepared[plan.digest] == MOST_PREPARED:
            raise RefusedError(
                f"{self.name} has prepared its rows {MOST_PREPARED} times for this plan; it does so again once it is "
                "started anew."
            )
        self._prepared[plan.digest] += 1

    def _begun(self, form: Algorithm, plan: Plan, sealer: Sealer | None) -> UsedLabels:
        """Bind the key of a plan to the prepared rows, and charge the plan; one whose run is over is refused.

        Over sealed columns the file of its labels is there from before the charge until the run is over. So who was
        restarted goes on, and a copy of this party from before the plan runs it no second time, with the same keys.
        """
        registered = self._account is not None and plan.sealed_columns
        used = self._keys.labels(plan) if registered else UsedLabels()
        new = used.begin()
        try:
            if registered and new and self._charged(plan):
                raise ran_before()
            if sealer is not None:
                self._keys.bind(plan, sealer.records, charged=self._charged(plan))
            self._charge(form, plan)
        except BaseException:
            if new:
                used.end()
            raise
        return used

    def _charged(self, plan: Plan) -> bool:
        """Whether the ledger has the plan."""
        return self._account is not None and self._account.book().find(plan.digest.hex()) is not None

    def _charge(self, form: Algorithm, plan: Plan) -> None:
        """Reserve the plan's whole cost, durably, if this party has a ledger; what cannot go on is refused first."""
        if self._account is None:
            return
        summary = f"{plan.algorithm}, {plan.loss.name}, {plan.rounds} rounds"
        cost = charge_of(form, plan, self.name)
        check_samplers(self._account, form, plan, self.name, cost)
        self._account.reserve(
            plan.digest.hex(),
            cost,
            delta=plan.delta,
            summary=summary,
            about=plan.about.texts(),
            within=part_of_fit(plan),
            rests_on=assumed(plan),
        )

    def _sealer(self, plan: Plan) -> Sealer | None:
        """The own side of a plan's sealed sums; a plan that has another key for it is refused."""
        if plan.sealing is None:
            return None
        kind = ColumnSealer if plan.split == "columns" else Sealer
        pins = self._policy.needs_pins(plan)
        peers = known_keys(self.name, plan.keys, self._identity, pins=pins, dealer=plan.sealing.dealer)
        what = "Start a new fit."
        if self._account is not None:
            nothing = "It has charged nothing for this plan; start the fit again."
            what = "What was released stays charged; start a new fit." if self._charged(plan) else nothing
        return kind(plan, self.name, self._keys.pairs(plan, peers, what))

    def _signed(self, plan: Plan) -> tuple[Declared, ...]:
        """The acknowledgement of a plan that was charged, with this party's signature on its digest for the others."""
        if self._identity is None or plan.names == (self.name,):
            return acknowledged(True)
        signature = self._identity.sign(PLAN, plan.digest)
        return (*acknowledged(True), declare_public("signature", signature, reason="over the plan's digest"))

    def _start(self, frame: Frame) -> Outgoing:
        """Answer under the plan from now on, if every party of it, and its helper, has signed this very digest.

        Guarantee: whoever answers under a plan knows that every party has charged it. Proof: privacy/proofs/ledger.md.
        """
        run = self._run
        if run is None or run.plan.digest != frame.plan:
            return reply("unknown-plan", frame, acknowledged(False))
        check_start(run.plan, self.name, self._identity, frame.text)
        run.started = True
        return reply("accept", frame, acknowledged(True))

    @property
    def has_ledger(self) -> bool:
        """Whether an account pays for what this party releases."""
        return self._account is not None

    def _check_trains(self, plan: Plan) -> None:
        if not self._policy.trains:
            what = "evaluation" if plan.algorithm == "evaluation" else "training"
            raise RefusedError(f"{self.name} takes part in predictions only, and in no {what} on these people.")

    def _recipe(self, plan: Plan) -> Preparation:
        """How this party's rows become a block, or a refusal of a plan that is about other rows."""
        limits.check_size(plan, self.name, self._rows.shape)
        self._rows_of(plan)
        try:
            recipe = score_recipe(plan) if self._counts_scores(plan) else plan.part(self.name).preparation
        except InputError as error:
            raise RefusedError(f"{self.name} refuses: {error}") from None
        if plan.layout == "raw" and is_sparse(self._rows):
            raise RefusedError(f"{self.name} has a sparse matrix, of which no ranges are bought; declare them.")
        if recipe.labelled != self._labelled:
            knows = "knows the labels" if self._labelled else "does not know the labels"
            raise RefusedError(f"{self.name} {knows}, and the plan says otherwise (labels={plan.labels!r}).")
        return recipe

    def _rows_of(self, plan: Plan) -> Matrix:
        """The rows that a plan is about: this party's, or the scores that it received as the recipient of predictions.

        Columns of other parties are in such a score. They let this one learn it (`Policy.predict_for`); that counts of
        it are released each of them allows by charging the plan and signing it.
        """
        if not self._counts_scores(plan):
            return self._rows
        scores = self.predictor.scored(bytes.fromhex(plan.numbers.scores), plan.names)
        if scores is None:
            raise RefusedError(f"{self.name} has received no joint predictions of that model; ask for them first.")
        return scores[:, None]

    def _counts_scores(self, plan: Plan) -> bool:
        """Whether the plan is an evaluation by columns that this party, as the holder of the labels, answers."""
        scored = isinstance(plan.numbers, Evaluated) and plan.numbers.scores != ""
        return scored and plan.split == "columns" and plan.label_party_name == self.name
