"""What the conversations of one party share: its rows, who it is, what its holder allows, and what pays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.dataset import Dataset
from sottovoce.data.identifiers import Identifiers
from sottovoce.data.matrix import Matrix
from sottovoce.data.resources import NO_RESOURCES
from sottovoce.errors import InputError
from sottovoce.federation.policy import Policy
from sottovoce.federation.records import check_rows, column_names
from sottovoce.federation.run_keys import RunKeys
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Account
from sottovoce.privacy.randomness import Randomness, SystemRandomness
from sottovoce.transports.identity import Identity

if TYPE_CHECKING:
    from sottovoce.federation.prediction import Predictor
    from sottovoce.federation.training import Run


class Holder:
    """The state of one party. `run` is the plan that it has charged and answers under, if there is one."""

    def __init__(
        self, name: str, X: Matrix, y: ArrayLike | None, account: Account | None, policy: Policy | None
    ) -> None:
        self.name = name
        self.labelled = X.labelled if isinstance(X, Dataset) else y is not None
        self.rows, self.labels = check_rows(X, y, name)
        self.all_rows = self.rows, self.labels  # also those that an alignment leaves out
        self.feature_names = column_names(X)
        self.ids: Identifiers | None = None  # of all rows
        self.places: NDArray[np.int64] | None = None  # of the records that it serves, if not all
        self.aligned = ""  # the digest of the alignment whose records it serves
        self.account = account
        if account is not None:
            account.book()  # the whole file is checked before anything is served
        self.policy, self.agreed = policy or Policy(), policy is not None
        self.randomness: Randomness = SystemRandomness()
        self.identity: Identity | None = None
        self.keys = RunKeys(account, name)
        self.run: Run | None = None
        self.resources = NO_RESOURCES  # for work on its rows

    def use(self, places: NDArray[np.int64], digest: str) -> None:
        rows, labels = self.all_rows
        if isinstance(rows, Dataset):
            raise InputError(f"{self.name}: a Dataset cannot be aligned: its rows are not in memory; give arrays.")
        all_in_order = np.array_equal(places, np.arange(rows.shape[0]))  # then nothing is copied
        self.rows, self.labels = (rows, labels) if all_in_order else (rows[places], labels[places])
        self.places, self.aligned = places, digest
        self.run = None

    def run_of(self, frame: Frame) -> Run | None:
        """The run of a message's plan; None after a restart, or if there is no such run."""
        return self.run if self.run is not None and self.run.plan.digest == frame.plan else None

    def charged(self, plan: Plan) -> bool:
        """Whether the ledger has the plan."""
        return self.account is not None and self.account.book().find(plan.digest.hex()) is not None

    def receipt(self, frame: Frame) -> tuple[Declared, ...]:
        """How far the ledger goes, with every acceptance and at the end of a run: it shows a ledger that was set back.

        A plan that is only checked gets none.
        """
        if self.account is None or not frame.plan or frame.query == "check":
            return ()
        reason = "entries follow from plans; the hash is by a key of the ledger"
        number, hash_ = self.account.receipt()
        return (declare_public("receipt", f"{number:012}:{hash_}", reason=reason),)  # as long as any other

    def same_labels(self, other: Holder) -> bool:
        """Whether another party of the same process has the same labels in the same order; they stay inside."""
        mine: list[Any] = self.labels.tolist()
        theirs: list[Any] = other.labels.tolist()
        return len(mine) == len(theirs) and all(str(one) == str(two) for one, two in zip(mine, theirs, strict=True))


class Handler(ABC):
    """A party's side of one conversation."""

    def __init__(self, holder: Holder, predictor: Predictor) -> None:
        self._holder, self._predictor = holder, predictor

    @abstractmethod
    def answer(self, frame: Frame) -> Outgoing:
        """What a message of the conversation is answered with, or a refusal."""
