"""A federation: who holds what. Central training is one party in the same process."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter, itemgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.arguments import is_whole
from sottovoce.data.bounds import party_norms
from sottovoce.data.cells import table_columns
from sottovoce.data.dataset import Dataset
from sottovoce.data.misfits import rows_told
from sottovoce.data.resources import Resources, too_large
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.journal import Journal
from sottovoce.federation.models import PartialModel
from sottovoce.federation.party import Party, check_rows
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import COORDINATOR, Predictions, check_people
from sottovoce.federation.secure_columns.dealer import Dealer
from sottovoce.plan.plan import About
from sottovoce.plan.problem import Labels
from sottovoce.plan.split import SPLITS, SecureAggregation
from sottovoce.privacy.ledger import Account, Ledger, Receipt
from sottovoce.privacy.mechanisms import SeededRandomness, SystemRandomness
from sottovoce.transports.base import InProcess, Transport


class Federation:
    """Parties, how the data are split among them, and the wire to reach them.

    Made by `central`, `by_rows`, `by_columns` (all in this process) or `connect` (parties elsewhere).
    """

    def __init__(  # noqa: PLR0913
        self,
        split: str,
        transport: Transport,
        *,
        parties: Sequence[Party] = (),
        record: bool = False,
        dealer: Dealer | str | None = None,
        journal: str | PathLike[str] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self.split = SPLITS[split]
        self.transport = transport
        self.record = record
        self._parties = tuple(parties)
        self.dealer = dealer.name if isinstance(dealer, Dealer) else dealer  # who deals, and is no party
        self._ends: tuple[Party | Dealer, ...] = (*parties, dealer) if isinstance(dealer, Dealer) else self._parties
        self.names = tuple(transport.parties)  # of the parties, as on the wire
        self.remote = not self._parties
        # Whether each has a ledger; remote ones always have.
        self.counted = None not in map(attrgetter("account"), self._parties)
        if COORDINATOR in transport.parties:
            raise InputError(f"names: {COORDINATOR!r} is no party's name; choose another.")
        if self.dealer is not None:
            if self.dealer not in transport.parties:
                raise InputError(f"dealer={self.dealer!r} is not on the wire of {', '.join(transport.parties)}.")
            self.names = tuple(name for name in transport.parties if name != self.dealer)
        self.labels: Labels = "shared"
        self.label_party = 0
        self.norms: tuple[float, ...] | None = None
        self.secure = False  # whether sums over the parties are secure
        self.why = ""  # by columns, where it was left open: why they are, or are not
        self.undecided = False  # whether it was left open
        self._aggregation: dict[str, Any] = {}
        self.schema = schema  # what made the features of parties of this process
        # Where fits keep what they need to go on: a file that each has while it lasts, or what the caller has of one.
        self.journal: Path | Journal | None = None if journal is None else Path(journal)
        if journal is not None and not self.counted:
            raise InputError(f"journal={str(journal)!r}: a fit goes on where every party has a ledger; give ledgers.")
        self.receipts: dict[str, Receipt] = {}  # by party, how far its ledger went when it last said so
        self.declared: Mapping[str, Mapping[str, Any]] = {}  # by party, what is public, where it need not be asked for
        self.feature_names: tuple[str, ...] | None = None  # those of the user's own table, where there is one
        self.holder: Literal["elsewhere", "here", "caller"] = "elsewhere"  # as if it were
        self.about = About()  # who runs plans here, on which data and what for; a plan carries it

    @classmethod
    def central(  # noqa: PLR0913
        cls,
        X: Any,
        y: ArrayLike | None = None,
        *,
        ledger: Any = None,
        record: bool = False,
        policy: Policy | None = None,
        schema: Schema | None = None,
        journal: str | PathLike[str] | None = None,
    ) -> Federation:
        """All rows in one place: arrays, or a table with its schema, which names the label column where y is not given.

        A fit that is interrupted goes on from the file `journal`, which it keeps from its first charge on.
        """
        if isinstance(X, Dataset) and X.schema is not None:
            schema = X.schema
        rows, labels, table = _open_part(X, y, schema, "data")
        party = Party("data", rows, labels, account=as_account(ledger), policy=policy, **table)
        return cls("central", InProcess([party]), parties=[party], record=record, journal=journal, schema=schema)

    @classmethod
    def by_rows(  # noqa: PLR0913
        cls,
        parts: Sequence[Any],
        *,
        names: Sequence[str] | None = None,
        ledgers: Sequence[Any] | None = None,
        policy: Policy | None = None,
        record: bool = False,
        schema: Schema | None = None,
        sums: Literal["plain", "secure"] = "plain",
        dealer: Dealer | None = None,
        journal: str | PathLike[str] | None = None,
    ) -> Federation:
        """Each party has some people, nobody is in two: `parts` is a list of (X, y), or of tables with their schema.

        `sums="secure"`: only sums over all parties are opened, with little more noise than data in one place need
        (`secure_aggregation`). A `dealer` tops up the noise instead of the coordinator. `journal` as in `connect`.
        """
        names = _party_names(names, len(parts))
        schema = next((part.schema for part in parts if isinstance(part, Dataset) and part.schema is not None), schema)
        pairs = [
            part
            if isinstance(part, tuple | list) or (schema is None and not isinstance(part, Dataset))
            else (part, None)
            for part in parts
        ]
        if not all(isinstance(part, tuple | list) and len(part) == 2 for part in pairs):
            raise InputError(
                "parts must be a list of pairs (X, y), one for each party, of tables with a schema, or of Datasets."
            )
        accounts = _open_accounts(ledgers, len(parts))
        opened = [_open_part(X, y, schema, name) for name, (X, y) in zip(names, pairs, strict=True)]
        parties = [
            Party(name, X, y, account=account, policy=policy, **table)
            for name, account, (X, y, table) in zip(names, accounts, opened, strict=True)
        ]
        if len(widths := {party.features for party in parties}) != 1:
            raise InputError(f"the parties have {sorted(widths)} features; by rows every party has the same columns.")
        made = cls._in_process("rows", parties, dealer, record=record, journal=journal, schema=schema)
        return made._secure("sums", sums, "plain")

    @classmethod
    def by_columns(  # noqa: PLR0913
        cls,
        parts: Sequence[Any],
        y: ArrayLike | None = None,
        *,
        labels: Labels = "shared",
        label_party: int = 0,
        norms: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        ledgers: Sequence[Any] | None = None,
        policy: Policy | None = None,
        record: bool = False,
        schema: Schema | None = None,
        products: Literal["auto", "none", "secure"] = "auto",
        dealer: Dealer | None = None,
        ids: Sequence[Sequence[Any]] | None = None,
        journal: str | PathLike[str] | None = None,
    ) -> Federation:
        """Each party has some features of the same people, in the same order.

        `labels="public"`: everybody may know them. `"shared"`: all parties know them, nobody else does.
        `"held"`: only the party with the number `label_party` does. `norms` are the bounds of the parties' parts of a
        row; by default they follow the number of columns. A person is in every party, so each party's ledger is charged
        what all of them release. `y=None`: people to predict for, whose labels nobody knows; with a schema, which is of
        the columns of all parties together, the label column of the tables.

        `products="secure"`: only sums over the whole table are opened (`secure_aggregation`). `"none"`: each party adds
        noise to all that it says, which is far less accurate. "auto" takes the first where all policies and the model
        allow it. A `dealer` deals in the coordinator's place. `ids` identify the records of each party: lists that
        differ are refused. `journal` as in `connect`.
        """
        names, accounts = _party_names(names, len(parts)), _open_accounts(ledgers, len(parts))
        rows, parties, tables = dict[str, Any](), list[Party](), list[dict[str, Any]]()
        for X in parts:
            if isinstance(X, Dataset):
                raise InputError("a Dataset serves data in one place and by rows; by columns give arrays or tables.")
            tables.append({"feature_names": tuple(map(str, getattr(X, "columns", ())))})
        if schema is not None:
            parts, tables, y = _open_column_parts(parts, y, schema, names)
        for name, X in zip(names, parts, strict=True):
            rows[name] = check_rows(X, None, name)[0]
        check_people(dict(zip(names, map(itemgetter(0), map(attrgetter("shape"), rows.values())), strict=True)))
        lists = [None] * len(parts) if ids is None else list(ids)
        if len(lists) != len(parts):
            raise InputError(f"ids has {len(lists)} lists for {len(parts)} parties; give one each.")
        for place, (name, account, table) in enumerate(zip(names, accounts, tables, strict=True)):
            knows = y is not None and (labels != "held" or place == label_party)
            own_y = check_rows(rows[name], y, name)[1] if knows else None
            parties.append(Party(name, rows[name], own_y, account=account, policy=policy, ids=lists[place], **table))
        if ids is not None:
            _align(parties)
        made = cls._in_process("columns", parties, dealer, record=record, journal=journal, schema=schema)
        return made.declare_columns(labels, label_party, norms)._secure("products", products, "none", "auto")

    @classmethod
    def _in_process(cls, split: str, parties: Sequence[Party], dealer: Dealer | None, **options: Any) -> Federation:
        """Parties of this process, and their dealer, which has a name of its own."""
        if dealer is not None and any(party.name == dealer.name for party in parties):
            raise InputError(f"dealer={dealer.name!r} has the name of a party; it holds no data, and has its own name.")
        wire = InProcess(parties if dealer is None else [*parties, dealer])
        return cls(split, wire, parties=parties, dealer=dealer, **options)

    @classmethod
    def connect(  # noqa: PLR0913
        cls,
        transport: Transport,
        *,
        split: Literal["rows", "columns"] = "rows",
        labels: Labels = "shared",
        label_party: int = 0,
        norms: Sequence[float] | None = None,
        record: bool = False,
        sums: Literal["plain", "secure"] = "plain",
        products: Literal["auto", "none", "secure"] = "auto",
        dealer: str | None = None,
        journal: str | PathLike[str] | None = None,
    ) -> Federation:
        """Parties elsewhere, reached over a transport such as `GrpcCoordinator`.

        They are split by rows, or by columns: then `labels`, `label_party` (a place in the transport's list of
        parties) and `norms` are as in `by_columns`. `dealer` is the name on the wire of one that deals and is no party.

        `journal` is a file for what a private fit needs to go on: plans, and answers before they are used. A fit that
        was stopped goes on from it with the same plan, at no further cost. The file stays after the fit: remove it once
        the model is saved. Until then the same fit gives the same model again.
        """
        if split not in ("rows", "columns"):
            raise InputError(
                f"split={split!r} must be 'rows' (each party has some people) or 'columns' (some features)."
            )
        if split == "rows" and (labels, label_party, norms) != ("shared", 0, None):
            raise InputError(
                "labels, label_party and norms are for split='columns'; by rows each party has its own labels."
            )
        made = cls(split, transport, record=record, dealer=dealer, journal=journal)
        made.declare_columns(labels, label_party, norms)
        if split == "rows":
            return made._secure("sums", sums, "plain")
        return made._secure("products", products, "none", "auto")

    def _secure(self, name: str, value: str, *others: str) -> Federation:
        if value not in ("secure", *others):
            raise InputError(f"{name}={value!r} must be 'secure' or {' or '.join(map(repr, others))}.")
        self.secure, self.undecided = value == "secure", value == "auto"
        if self.dealer is not None and value not in ("secure", "auto"):
            raise InputError(f"dealer={self.dealer!r} deals for secure sums, and {name}={value!r}; take 'secure'.")
        return self

    def secure_where_allowed(self, coordinator: Coordinator, reason: str | None) -> None:
        """By columns, where it was left open: sums are secure unless there is a `reason` not to, or a party refuses."""
        reason = coordinator.refusal_to_secure(reason)
        self.secure = reason is None
        self.why = f"each party adds its own noise: {reason}" if reason else "secure: every party allows it"

    def secure_aggregation(
        self, *, colluding_with_dealer: int = 0, colluding: int | None = None, dropouts: int = 0, retries: int = 0
    ) -> Federation:
        """Against whom the noise of secure sums is made, and who may leave in the middle of a run.

        `colluding_with_dealer` parties may collude with the coordinator (by columns none), `colluding` with one another
        (by default all others). By rows `dropouts` parties may leave, and `retries` more releases are paid for, so
        that sums can be asked again without them.
        """
        if not self.secure and not self.undecided:
            raise InputError("secure_aggregation() is for federations with sums='secure' or products='secure'.")
        numbers = {
            "colluding_with_dealer": colluding_with_dealer,
            "colluding": colluding,
            "dropouts": dropouts,
            "retries": retries,
        }
        for name, value in numbers.items():
            if value is not None and not (is_whole(value) and value >= (1 if name == "colluding" else 0)):
                raise InputError(f"{name}={value!r} must be a whole number that is not negative.")
        self._aggregation = {name: value for name, value in numbers.items() if value is not None}
        return self

    def aggregation(self) -> SecureAggregation | None:
        """The public numbers of secure sums, or None where each party adds all of its noise."""
        if not self.secure:
            return None
        dealer = {} if self.dealer is None else {"dealer": self.dealer}
        return SecureAggregation(**{"colluding": len(self.names) - 1, **self._aggregation, **dealer})

    def people(self, parts: Sequence[Any]) -> Federation:
        """The same parties of this process with other people's rows, to predict for; they have the models they kept."""
        if self.remote or not self.split.same_people or len(parts) != len(self._parties):
            raise InputError(
                f"people needs one matrix for each of the {len(self._parties)} parties of this process, split by "
                "columns; remote parties have their own."
            )
        names = [party.name for party in self._parties]
        federation = Federation.by_columns(parts, None, names=names, record=self.record, schema=self.schema)
        for mine, theirs in zip(self._parties, federation._parties, strict=True):
            theirs.predictor.models = mine.predictor.models
        return federation

    def called(self, holder: Literal["here", "caller"] = "caller") -> Federation:
        """The same, run by the holder of its rows in this process, who is told of what is of no use."""
        self.holder = holder
        return self

    def learn(self, digest: bytes, models: Mapping[str, PartialModel]) -> None:
        """Give the parties of this process their parts of a model; remote ones have what they were told in its run."""
        for party in self._parties:
            if party.name in models:
                party.predictor.learn(digest, models[party.name])

    @property
    def predictions(self) -> dict[str, Predictions]:
        """By party of this process: the last joint predictions that it was the recipient of."""
        return {party.name: party.predictions for party in self._parties if party.predictions is not None}

    def declare_columns(self, labels: Labels, label_party: int, norms: Sequence[float] | None) -> Federation:
        """Who knows the labels, and the bounds of the parties' parts of a row."""
        if labels not in ("public", "shared", "held"):
            raise InputError(f"labels={labels!r} must be 'public', 'shared' or 'held'.")
        parties = len(self.names)
        if isinstance(label_party, bool) or label_party not in range(parties):
            raise InputError(f"label_party={label_party!r} must be the number of a party, 0 to {parties - 1}.")
        self.labels, self.label_party = labels, int(label_party)
        try:
            self.norms = None if norms is None else tuple(float(norm) for norm in norms)
        except (TypeError, ValueError):
            raise InputError(f"norms={norms!r} must be one positive number per party ({parties}).") from None
        return self

    @property
    def unlabelled(self) -> bool:
        """Whether no party of this process knows the labels: then there are people to predict for, none to train on."""
        return bool(self._parties) and not any(map(attrgetter("labelled"), self._parties))

    def check_labels(self) -> None:
        """Refuse parties of this process that know different labels: their records are in different orders.

        Whoever runs several parties in one process holds the records of all of them.
        """
        for first, other in itertools.pairwise(party for party in self._parties if party.labelled):
            if list(map(str, first.labels.tolist())) != list(map(str, other.labels.tolist())):
                raise InputError(
                    f"parties {first.name!r} and {other.name!r} have different labels; by columns every party has the "
                    "same people in the same order. Align the records first. Nothing was charged."
                )

    def party_norms(self, row_norm: float, columns: Sequence[int] | None = None) -> list[float]:
        """By columns: party m's part of a row is clipped to B_m, and the squares of the B_m sum to row_norm^2.

        `columns` are the numbers of the parties' columns, known here for parties of this process.
        """
        columns = columns or [party.features for party in self._parties]
        return party_norms(row_norm, columns, self.norms, overlap=True)  # the plan says whether they may

    def coordinator(
        self, *, insecure_seed: int | None = None, without_privacy: bool = False, fits: bool = False
    ) -> Coordinator:
        """A conversation with the parties; a seed and a run without privacy are for parties in this process only.

        One that `fits` goes on with a fit that was interrupted, where the federation has a journal of it.
        """
        if self.remote and insecure_seed is not None:
            raise InputError("insecure_seed cannot be set for remote parties; each draws its own noise.")
        for end in self._ends:
            end.randomness = SystemRandomness() if insecure_seed is None else SeededRandomness(insecure_seed, end.name)
        for party in self._parties:
            others = (COORDINATOR, *self.names)
            party.permit(without_privacy=without_privacy, predict_for=others, tell_records=self.split.same_people)
        own = SystemRandomness() if insecure_seed is None else SeededRandomness(insecure_seed, COORDINATOR)
        journal = self.journal if fits and insecure_seed is None else None
        return Coordinator(
            self.transport,
            record=self.record,
            receipts=self.receipts,
            randomness=own,
            dealer=self.dealer,
            journal=journal if isinstance(journal, Journal) else Journal(journal),
            remote=self.remote,
        )

    @contextmanager
    def lend(self, resources: Resources) -> Iterator[None]:
        """Resources for the parties of this process that have none of their own, for as long as it lasts."""
        own = list[tuple[Party, Resources]]()
        try:
            for party in self._parties:
                own.append((party, party.resources))
                party.resources = party.resources.over(replace(resources, holder=self.holder))
            yield
        finally:
            for party, before in own:
                party.resources = before

    def raise_failure(self) -> None:
        """Raise what went wrong inside a party of this process: here its holder is the caller."""
        for end in self._ends:
            if end.failure is not None:
                failure, end.failure = end.failure, None
                raise failure

    def dismiss(self) -> None:
        """Tell the parties that nothing more will be asked: `serve_party` then returns at each."""
        Coordinator(self.transport).dismiss()

    def close(self) -> None:
        self.transport.close()


def as_account(ledger: Any) -> Account | None:
    """An account from None, an `Account`, a `Ledger` with one account, or the path of such a ledger."""
    if ledger is None or isinstance(ledger, Account):
        return ledger
    return (ledger if isinstance(ledger, Ledger) else Ledger(ledger)).account()


def _open_part(X: Any, y: Any, schema: Schema | None, name: str) -> tuple[Any, Any, dict[str, Any]]:
    """(rows, labels, what else a party knows of its table) of one holder: as they are, or by its schema."""
    if schema is None and y is not None and too_large(X):
        X, y = Dataset.from_arrays(X, y), None
    if isinstance(X, Dataset):
        if not X.labelled:
            raise InputError(f"{name}: the Dataset has no labels; name their column, label=..., or in its schema.")
        if schema not in (None, X.schema):
            raise InputError(f"{name}: schema: the Dataset has its own; leave it out here.")
        return X, y, {"feature_names": X.feature_names}
    known: dict[str, Any] = {}  # or those of a data frame
    if schema is not None:
        cells = table_columns(X)
        known = schema.of_party(cells)
        X, y = rows_told(schema, cells, name), schema.labels(cells) if y is None else y
    if y is None:
        where = "" if schema is None else ", or name the label column in the schema and have it in the table"
        raise InputError(f"{name}: y=None; give the labels{where}.")
    return X, y, known


def _open_column_parts(
    tables: Sequence[Any], y: ArrayLike | None, schema: Schema, names: Sequence[str]
) -> tuple[list[Any], list[dict[str, Any]], ArrayLike | None]:
    """By columns: the rows of each party, what else it knows of its table by its part of the schema, and the labels."""
    held = [table_columns(table) for table in tables]
    places = {name: [place for place, cells in enumerate(held) if name in cells] for name in schema.columns}
    for name, found in places.items():
        if len(found) != 1:
            raise InputError(
                f"schema: the column {name!r} is with {len(found)} parties; by columns each is with exactly one."
            )
    parts = [schema.part(cells) for cells in held]
    if y is None:
        y = next((labels for cells in held if (labels := schema.labels(cells)) is not None), None)
    rows = [rows_told(part, cells, name) for part, cells, name in zip(parts, held, names, strict=True)]
    return rows, [part.of_party(cells, schema.target) for part, cells in zip(parts, held, strict=True)], y


def _align(parties: Sequence[Party]) -> None:
    """Refuse lists of identifiers that differ; all are in this process. Parties with one list count as aligned."""
    for party in parties[1:]:
        if party.ids is None or party.ids != parties[0].ids:
            raise InputError(
                f"ids: the lists of {parties[0].name} and {party.name} differ, in people or in their order; give every "
                "party the same people in the same order."
            )
    digest = secrets.token_hex(32)
    for party in parties:
        party.use(np.arange(len(parties[0].ids or ())), digest)


def _open_accounts(ledgers: Sequence[Any] | None, count: int) -> list[Account | None]:
    accounts = list(map(as_account, [None] * count if ledgers is None else ledgers))
    if len(accounts) != count:
        raise InputError(f"ledgers has {len(accounts)} entries for {count} parties; give one each.")
    if len(set(accounts) - {None}) < len(accounts) - accounts.count(None):
        raise InputError(
            "ledgers names one account twice; an account is of one data set, and a second party on it would repeat "
            "what the first released. Give each party its own."
        )
    return accounts


def _party_names(names: Sequence[str] | None, count: int) -> list[str]:
    if count == 0:
        raise InputError("parts is empty; a federation needs at least one party.")
    chosen = list(map("party-{}".format, range(1, count + 1))) if names is None else list(names)
    if len(chosen) != count or len(set(chosen)) != count:
        raise InputError(f"names={names!r} must have {count} different names, one per party.")
    return chosen
