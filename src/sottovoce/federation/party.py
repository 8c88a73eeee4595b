"""A party: the holder of raw rows. They never leave this object; values leave through its gate alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithms import served
from sottovoce.data.beside import columns_beside, labels_of
from sottovoce.data.block import RecordRows, kind_of_rows
from sottovoce.data.cells import MISSING, is_class, label_array, label_key, no_numbers, number_rows
from sottovoce.data.coded import Coded
from sottovoce.data.dataset import Dataset
from sottovoce.data.identifiers import Identifiers, as_written, identifiers
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.people import count_people, read_whole
from sottovoce.data.resources import Resources, check_resources
from sottovoce.data.schema import TableCodes
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.alignment import Aligner, AlignmentFile
from sottovoce.federation.answering import CHECKS, Answering, check_text
from sottovoce.federation.models import Models, Predictor
from sottovoce.federation.policy import Policy, left_out
from sottovoce.federation.prediction import Predictions
from sottovoce.federation.run_keys import RunKeys, check_pinned
from sottovoce.federation.training import PartyRun, Training
from sottovoce.gate.frames import Frame, decode
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Account
from sottovoce.privacy.mechanisms import Randomness, SystemRandomness
from sottovoce.secure.pair_keys import RunKey
from sottovoce.transports.identity import Identity

Array = NDArray[np.float64]

MOST_READ: Final = 20  # classes that are read from labels which nobody declared


class Party(Answering):
    """Answers a coordinator's frames. `handle` is the only way in and `Outgoing` the only way out.

    Guarantee: every reply is a `Released` value, a declared public one, or a prediction for whom the policy names; an
    error that the rows could have caused travels as a fixed text. Nothing is answered under a plan before every party
    of it has signed it, which a party does once it has charged it. Edges: a repeated request gets the stored release;
    an unknown plan is asked for again; a party that no wire has identified takes only plans of its own alone.
    `y=None`: a holder of columns that does not know the labels. `models` has the partial models that runs over columns
    leave here; by default they are in a folder next to the ledger, or in memory. `ids` identify the records, one each:
    by secure columns they are aligned with those of the other parties before a plan is taken. The alignment is kept in
    `aligned`; the party then serves the common records alone, in the common order. `n_jobs` is how
    many threads sum over its rows: None is 1, or what the estimator says that runs in the same process; no answer
    depends on it. `device` likewise says where: "cpu", or "cuda". `codes` makes those of its table
    (`Schema.codes_of_table`), which a description counts.
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
        codes: TableCodes | None = None,
    ) -> None:
        super().__init__()
        check_resources(Resources(n_jobs, device))
        self.name, self.resources = name, Resources(n_jobs, device)  # for work on its rows
        self.rows, self.labels = self.all_rows = check_rows(X, y, name)  # all: also those that an alignment leaves out
        self._codes = codes
        # What stands beside its labels, by name, public; None if that is known once they are read.
        self.beside = X.beside if isinstance(X, Dataset) else tuple(columns_beside(self.labels))
        self.of_people = "person" in columns_beside(self.labels)  # whether it was told whose record each is; public
        # How many records it serves or, where people have several, how many people; public.
        self.records = count_people(self.labels) if self.of_people else int(self.rows.shape[0])
        self.labelled = X.labelled if isinstance(X, Dataset) else y is not None
        self.feature_names = feature_names or tuple(map(str, getattr(X, "columns", ())))
        if account is not None:
            account.book()  # the whole file is checked before anything is served
        self.account, self.keys = account, RunKeys(account, name)
        self.policy, self.agreed = policy or Policy(), policy is not None  # agreed: the policy is the holder's own
        self.randomness: Randomness = randomness or SystemRandomness()
        self.identity: Identity | None = None
        self.run: PartyRun | None = None  # the plan that it has charged and answers under, if there is one
        self.training = Training(self)
        self.identifiers: Identifiers | None = None  # of all rows
        self.written: Identifiers | None = None  # the same as they were given
        if ids is not None:
            self.written = as_written(ids)
            self.identifiers = identifiers(ids, int(self.rows.shape[0]), name, id_rule)
        self.places: NDArray[np.int64] | None = None  # of the records that it serves, if not all
        self.aligned = ""  # the digest of the alignment whose records it serves
        self._models, self._alignment = models, (aligned, id_rule)
        if aligned is not None and (kept := aligned.kept) is not None:
            aligned.check(self.identifiers, id_rule)
            self.use(kept.places, kept.digest)

    @cached_property
    def aligner(self) -> Aligner:
        file, rule = self._alignment
        return Aligner(self, rule, file or AlignmentFile(), self.use)

    @cached_property
    def predictor(self) -> Predictor:
        """Its side of joint predictions, made when first needed: only runs over columns leave models."""
        models = self._models or Models()
        if self._models is None and self.account is not None:
            models = Models.beside(self.account.path, self.name)
        return Predictor(self, self.name, models, self.aligned)

    def _answer(self, frame: Frame) -> Outgoing:
        check_text(frame.text, int(self.rows.shape[1]))
        if frame.kind == "hello":
            return self._introduce(frame)
        if frame.kind == "plan":
            return self.training.take_plan(frame)
        if frame.kind in ("ask", "secure", "done"):
            return self.training.answer(frame)
        if frame.kind == "align":
            return self.aligner.answer(frame)
        if frame.kind == "predict":
            return self.predictor.answer(frame)
        raise RefusedError(f"a party does not answer frames of kind {frame.kind!r}.")

    def _introduce(self, frame: Frame) -> Outgoing:
        """Public facts and, as the query asks, the class labels or a public key.

        A key for secure sums is told by columns only among ends whose keys this party has pinned.
        """
        if frame.query == "secure":
            if not self.policy.secure:
                raise RefusedError(f"{self.name} takes no part in secure sums; its holder can, by Policy(secure=True).")
            try:
                members = tuple(json.loads(frame.text)["members"])
            except (ValueError, TypeError, KeyError, RecursionError):
                members = (None,)
            if not set(map(type, members)) <= {str}:
                raise RefusedError("a key of secure sums is asked for with the members of the run.")
            check_pinned(self.name, members, self.identity)
            if members and (reason := left_out(self.policy, members, self.name, self.identity)):
                raise RefusedError(f"{self.name} refuses: {reason}.")
            key = declare_public("public_key", self.keys.new(), reason="random, made to be told")
            return reply("facts", frame, (key, *self.alignment_fact()))
        facts = self.facts(classes=frame.query == "classes")
        if frame.query == "predict":
            facts += (
                declare_public("public_key", self.predictor.public_key, reason="random, made to be told"),
                declare_public("signature", self.predictor.signature, reason="over the public key"),
            )
        return reply("facts", frame, facts)

    def facts(self, *, classes: bool) -> tuple[Declared, ...]:
        """Public facts, each with its reason; with `classes` also which labels occur.

        Row counts do not differ between neighbours.
        """
        facts = [
            declare_public("records", self.records, reason="the count is the same for neighbours"),
            declare_public("features", int(self.rows.shape[1]), reason="the schema is public"),
            declare_public("feature_names", list(map(str, self.feature_names)), reason="the schema is public"),
            *self.alignment_fact(),
        ]
        if self.of_people and self.policy.tell_records:
            reason = "its holder lets them be told; over columns they are the same for neighbours"
            facts.append(declare_public("all_records", int(self.rows.shape[0]), reason=reason))
        kind = kind_of_rows(self.resources, by_pieces=isinstance(self.rows, Dataset))
        if kind is not RecordRows:
            reason = "where the rows lie is the holder's choice"
            facts.append(declare_public("solvers", list(served(kind)), reason=reason))
        if classes and self.labelled and not self.policy.tell_classes:
            raise RefusedError(
                f"{self.name} does not tell which labels occur in its data; declare them with classes=(one, other)."
            )
        if classes:
            labels = self.rows.distinct_labels(MOST_READ) if isinstance(self.rows, Dataset) else self.labels
            values = label_values(labels) if self.labelled else []
            facts.append(declare_public("classes", values, reason="not declared, so read and made public"))
        return tuple(facts)

    def alignment_fact(self) -> tuple[Declared, ...]:
        """The digest of the alignment whose records it serves, if there was one."""
        reason = "a hash by keys that are forgotten, the same at all parties"
        return (declare_public("aligned", self.aligned, reason=reason),) if self.aligned else ()

    def charged(self, plan: Plan) -> bool:
        """Whether the ledger has the plan."""
        return self.account is not None and self.account.book().find(plan.digest.hex()) is not None

    def receipt(self, frame: Frame) -> tuple[Declared, ...]:
        """How far the ledger goes, with every acceptance and at the end of a run: it shows a ledger that was set back.

        A plan that is only checked gets none.
        """
        if self.account is None or not frame.plan or frame.query in CHECKS:
            return ()
        reason = "entries follow from plans; the hash is by a key of the ledger"
        number, hash_ = self.account.receipt()
        return (declare_public("receipt", f"{number:012}:{hash_}", reason=reason),)  # as long as any other

    def identify(self, identity: Identity) -> None:
        """Set by its own end of a wire: how this party signs, and knows the others."""
        self.identity = identity

    def permit(self, *, without_privacy: bool, predict_for: tuple[str, ...] = (), tell_records: bool = False) -> None:
        """What the holder may do with its own rows in its process: read the classes, run without privacy, predict.

        `tell_records` is for columns. A policy that was given holds as it is.
        """
        if not self.agreed:
            self.policy = Policy(
                allow_without_privacy=without_privacy,
                tell_classes=True,
                tell_records=tell_records,
                predict_for=predict_for,
                predict_training=True,
                approve_models=True,
                secure=True,
                colluding=1,
            )
        if self.run is not None and not self.run.plan.private and not self.policy.allow_without_privacy:
            self.run = None  # what an interrupted run was allowed, the next one is not

    def use(self, places: NDArray[np.int64], digest: str) -> None:
        """Serve these records alone, in this order, from now on: an alignment of that digest has found them.

        The digest is random to all who lack the scalars of a single party: it goes into plans, and no other function of
        identifiers does.
        """
        rows, labels = self.all_rows
        if isinstance(rows, Dataset):
            raise InputError(f"{self.name}: a Dataset cannot be aligned: its rows are not in memory; give arrays.")
        all_in_order = np.array_equal(places, np.arange(rows.shape[0]))  # then nothing is copied
        self.rows, self.labels = (rows, labels) if all_in_order else (rows[places], labels[places])
        self.places, self.aligned, self.run, self.records = places, digest, None, count_people(self.labels)
        if "predictor" in vars(self):  # else it is made for these records
            self.predictor.renew(digest)

    @property
    def features(self) -> int:
        """How many columns it has; public."""
        return int(self.rows.shape[1])

    def codes_shape(self) -> tuple[int, int]:
        """How many records it serves, and codes of each; public. Without a table and its schema there are none."""
        if self._codes is None:
            raise RefusedError(
                f"{self.name} has no table with a schema whose columns could be described, or one that is read piece "
                "by piece; nothing was charged."
            )
        if not self._codes.unchanged():
            raise RefusedError(
                f"{self.name} serves a file that was written again, or replaced, after its rows were read; its holder "
                "has to start the party anew."
            )
        return self.records, self._codes.widths[self.labelled]

    def codes(self) -> Array:
        """Those of the records that it serves, in their order."""
        width = self.codes_shape()[1]
        assert self._codes is not None, "it has a shape"  # noqa: S101
        codes = self._codes.make(labels_of(self.all_rows[1]) if self.labelled else None)
        self.codes_shape()  # the file may have been written meanwhile
        if codes.shape != (self.all_rows[0].shape[0], width):
            raise RefusedError(f"{self.name} has a table that was changed after its rows were read.")
        return codes if self.places is None else codes[self.places]

    @property
    def ids(self) -> tuple[str, ...] | None:
        """The identifiers of the records that it serves, in their order; for the holder's eyes."""
        return self._served(self.identifiers)

    @property
    def written_ids(self) -> tuple[str, ...] | None:
        """The same as its file has them: to be joined with it."""
        return self._served(self.written)

    def _served(self, known: Identifiers | None) -> tuple[str, ...] | None:
        places = self.places
        return None if known is None else tuple(known if places is None else known.at(places))

    @property
    def predictions(self) -> Predictions | None:
        """The last joint predictions that this party was the recipient of; for the holder's eyes."""
        return self.predictor.received if "predictor" in vars(self) else None


@dataclass
class StandIn:
    """An endpoint without rows, in the place of a party of which only public facts are known.

    A plan can be made for it, and nothing be run.
    """

    name: str

    def identify(self, identity: Identity) -> None:
        """It signs nothing."""

    def handle(self, request: bytes) -> Outgoing:
        """A key that nobody has; there is nothing else to ask it for."""
        key = declare_public("public_key", RunKey().public, reason="a stand-in, nobody was asked")
        return reply("facts", decode(request), (key,))


def label_values(labels: np.ndarray[Any, Any]) -> list[Any]:
    """The distinct labels of a classification, at most a few; missing ones do not count."""
    labels = labels_of(labels)
    if labels.dtype.kind not in "fiub":
        present = {
            value if isinstance(value, str | int | float) else label_key(value)  # as a plan has it
            for value in labels.tolist()
            if is_class(value) and not (isinstance(value, str) and value.strip().lower() in MISSING)
        }
        values = sorted(present, key=lambda value: (str(type(value)), value))
    else:
        values = list(np.unique(labels[np.isfinite(labels)]).tolist())
    if len(values) > 2 and not (
        len(values) <= MOST_READ  # texts and whole numbers name a class; of other numbers there are as many as people
        and all(isinstance(one, str) or (isinstance(one, int | float) and float(one).is_integer()) for one in values)
    ):
        raise RefusedError(
            f"the labels have more than {MOST_READ} distinct values, or numbers that are not whole; declare those to "
            "tell apart with classes=(one, other, ...)."
        )
    return values


def check_rows(X: Matrix, y: ArrayLike | None, name: str) -> tuple[Matrix, np.ndarray[Any, Any]]:
    """Shapes, for the holder's eyes: two-dimensional rows, one label each, at least one of both.

    `y=None`, of a holder that does not know the labels, gives a 0 for each row. A `Dataset` has its own labels.
    """
    if isinstance(X, Dataset):
        if y is not None:
            raise InputError(f"{name}: y must be None where X is a Dataset, which has its own labels.")
        whole = read_whole(X)
        return (X, np.zeros(0)) if whole is None else whole
    try:
        rows = X if isinstance(X, Coded) else number_rows(X)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    rows = rows if is_sparse(rows) or isinstance(rows, Coded) else np.asarray(rows)
    labels = label_array(np.zeros(rows.shape[:1] or 1) if y is None else y)
    if rows.ndim != 2 or labels.ndim != 1:
        raise InputError(
            f"{name}: X must be two-dimensional and y one-dimensional; they are {rows.shape} and {labels.shape}."
        )
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise InputError(f"{name}: X is empty, with shape {rows.shape}; give at least one row and one feature.")
    if rows.shape[0] != labels.shape[0]:
        raise InputError(f"{name}: X has {rows.shape[0]} rows and y {labels.shape[0]} labels; give one label per row.")
    if rows.dtype.kind not in "fiub":
        raise InputError(f"{name}: {no_numbers()}")
    return rows, labels
