"""A party: the holder of raw rows. They never leave this object; values leave through its gate alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.block import Matrix
from sottovoce.data.identifiers import identifiers
from sottovoce.data.resources import Resources, check_device, check_jobs
from sottovoce.errors import RefusedError
from sottovoce.federation import limits
from sottovoce.federation.alignment.file import AlignmentFile
from sottovoce.federation.alignment.party import Aligner
from sottovoce.federation.answering import Answering
from sottovoce.federation.holder import Handler, Holder
from sottovoce.federation.introduction import Introduction
from sottovoce.federation.models import Models
from sottovoce.federation.plans import Plans
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import Predictions, Predictor
from sottovoce.federation.training import Training
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Declared, Outgoing
from sottovoce.privacy.ledger import Account
from sottovoce.privacy.randomness import Randomness
from sottovoce.transports.identity import Identity


class Party(Answering):
    """Answers a coordinator's frames. `handle` is the only way in and `Outgoing` the only way out.

    Guarantee: every reply is a `Released` value, a declared public one, or a prediction for whom the policy names; an
    error that the rows could have caused travels as a fixed text. Nothing is answered under a plan before every party
    of it has signed it, which a party does once it has charged it. Edges: a repeated request gets the stored release;
    an unknown plan is asked for again; a party that no wire has told who it is takes only plans of its own alone.
    `y=None`: a holder of columns that does not know the labels. `models` has the partial models that runs over columns
    leave here; by default they are in a folder beside the ledger, or in memory. `ids` identify the records, one each:
    by secure columns they are aligned with those of the other parties before a plan is taken. The alignment is kept in
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
        check_device(device)
        self.name = name
        self.holder = Holder(name, X, y, account, policy)
        self.holder.resources = Resources(n_jobs, device)
        self.holder.feature_names = feature_names or self.holder.feature_names
        self.holder.randomness = randomness or self.holder.randomness
        if ids is not None:
            self.holder.ids = identifiers(ids, int(self.holder.rows.shape[0]), name, id_rule)
        if models is None:
            models = Models() if account is None else Models.beside(account.path, name)
        self.predictor = Predictor(self.holder, models)
        self.introduction = Introduction(self.holder, self.predictor)
        self.plans = Plans(self.holder, self.predictor)
        self.training = Training(self.holder, self.predictor)
        self.aligner = Aligner(self.holder, id_rule, aligned or AlignmentFile(), self.use)
        self._handlers: Mapping[str, Handler | Aligner | Predictor] = {
            "hello": self.introduction,
            "align": self.aligner,
            "plan": self.plans,
            "ask": self.training,
            "secure": self.training,
            "done": self.training,
            "predict": self.predictor,
        }

    def _answer(self, frame: Frame) -> Outgoing:
        limits.check_text(frame.text, self.features)
        handler = self._handlers.get(frame.kind)
        if handler is None:
            raise RefusedError(f"a party does not answer frames of kind {frame.kind!r}.")
        return handler.answer(frame)

    def identify(self, identity: Identity) -> None:
        """How this party signs and knows the others; told by its own end of a wire."""
        self.holder.identity = identity

    def permit(self, *, without_privacy: bool, predict_for: tuple[str, ...] = ()) -> None:
        """What the holder may do with its own rows in its process: read the classes, run without privacy, predict.

        A policy that was given holds as it is.
        """
        own = self.holder
        if not own.agreed:
            own.policy = Policy(
                allow_without_privacy=without_privacy,
                tell_classes=True,
                predict_for=predict_for,
                predict_training=True,
                approve_models=True,
                secure=True,
                colluding=1,
            )
        if own.run is not None and not own.run.plan.private and not own.policy.allow_without_privacy:
            own.run = None  # what an interrupted run was allowed, the next one is not

    def use(self, places: NDArray[np.int64], digest: str) -> None:
        """Serve these records alone, in this order, from now on: an alignment of that digest has found them.

        The digest is random to all who lack the scalars of a single party: it goes into plans, and no other function of
        identifiers does.
        """
        self.holder.use(places, digest)
        self.predictor.renew(digest)

    def facts(self, *, classes: bool) -> tuple[Declared, ...]:
        """What it declares public of itself, each with its reason; with `classes` also which labels occur."""
        return self.introduction.facts(classes=classes)

    @property
    def randomness(self) -> Randomness:
        return self.holder.randomness

    @randomness.setter
    def randomness(self, randomness: Randomness) -> None:
        self.holder.randomness = randomness

    @property
    def features(self) -> int:
        """How many columns it has; public."""
        return int(self.holder.rows.shape[1])

    @property
    def ids(self) -> tuple[str, ...] | None:
        """The identifiers of the records that it serves, in their order; for the holder's eyes."""
        known, places = self.holder.ids, self.holder.places
        return None if known is None else tuple(known if places is None else known.at(places))

    @property
    def labelled(self) -> bool:
        """Whether it knows the labels."""
        return self.holder.labelled

    @property
    def has_ledger(self) -> bool:
        """Whether an account pays for what this party releases."""
        return self.holder.account is not None

    @property
    def predictions(self) -> Predictions | None:
        """The last joint predictions that this party was the recipient of; for the holder's eyes."""
        return self.predictor.received
