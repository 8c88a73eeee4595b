"""People with several records over secure columns: weights of records, and how far those of a person move sums."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.secure.test_columns_wire import Sites

import sottovoce as sv
from dealing import Run
from neighbours import Draw, Table, Terms, draw, table_of
from secure_plans import plan_for
from sottovoce.algorithms.whitened.columns import ColumnsPeople
from sottovoce.data.beside import NOBODY, labels_with
from sottovoce.data.block import Block
from sottovoce.data.people import ROOT_BITS, root_weights
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.secure_columns.coordinator import NULL, ColumnSums, ProgramPiece, Stage, envelope_of
from sottovoce.federation.secure_columns.party import round_to_integers
from sottovoce.gate.query import Round
from sottovoce.queries.pricing import queries_of
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure import columns
from sottovoce.secure.ring import ROW_BITS
from sottovoce.solvers import Whitened

U = 2**ROOT_BITS
COUNTS = (1, 2, 3, 4, 7, 16, 40)  # records of people
WHOSE = np.repeat(np.arange(1, len(COUNTS) + 1), COUNTS)


class TestWeights:
    def test_those_of_a_person_add_up_to_1_at_most(self) -> None:
        for count in range(1, 1025):
            (root,) = set(root_weights(np.full(count, 5), 2000).tolist())
            assert count * root**2 <= U**2 < count * (root + 1) ** 2
        assert root_weights(np.arange(1, 9), 1).tolist() == [U] * 8

    def test_the_first_that_count_and_none_of_nobody(self) -> None:
        person = np.array([3, NOBODY, 3, 8, 3, NOBODY])
        assert root_weights(person, 2).tolist() == [45, 0, 45, 64, 0, 0]
        assert root_weights(np.zeros(4, dtype=np.int64), 2).tolist() == [0] * 4
        assert len(root_weights(np.zeros(0, dtype=np.int64), 2)) == 0

    def test_another_person_changes_none(self) -> None:
        rng = np.random.default_rng(0)
        person = rng.integers(1, 30, 500)
        roots, kept = root_weights(person, 8), person != 4
        assert np.array_equal(root_weights(person[kept], 8), roots[kept])
        assert np.array_equal(root_weights(-person * 7, 8), roots)  # whatever the names are

    def test_of_a_block_they_follow_from_no_cell(self) -> None:
        plan = people_plan(6)
        part = plan.part(plan.label_party_name)
        y, X = labels_with(np.ones(6), person=list("aabbbc")), np.zeros((6, 3))
        whole = Block.prepare(X, y, part.preparation)
        y["label"][:3], X[2:5] = math.nan, math.nan
        blank = Block.prepare(X, y, part.preparation)
        assert np.array_equal(whole.shares, blank.shares)
        assert np.allclose(whole.shares * U**2, np.array([45, 45, 36, 36, 36, 64]) ** 2)
        other = plan.part(plan.names[0]).preparation
        assert Block.prepare(np.zeros((6, 2)), np.zeros(6), other).shares is None


def people_plan(records: int = 200, **about: Any) -> Any:
    return plan_for(records, (2, 1, 3), Whitened(rounds=4), form=ColumnsPeople(), most_records=8, **about)


class PeopleTerms(Terms):
    """The same of records with weights, which every party gives its own rows."""

    def __init__(self, told: Draw, table: Table, roots: np.ndarray) -> None:
        self.told, self.roots = told, roots
        about: dict[str, Any] = {"null": table.null, "holder": told.holder, "seed": told.seed}
        self.run = Run(table.rows, table.labels, told.widths, **about, classes=told.classes, bits=48)
        rng, light = np.random.default_rng([told.seed, 9]), (roots / U)[:, None]
        weighed = []
        for place, (name, norm) in enumerate(zip(self.run.names, told.norms, strict=True)):
            most = np.floor(math.floor(4**ROW_BITS * norm**2 * (1 + 1e-12)) * light[:, 0] ** 2)
            own: Any = self.run.rows[:, self.run.part(place)]
            rows = round_to_integers(own, light[:, 0], most, Coins(rng))  # type: ignore[arg-type]
            self.run.parties[name].weigh((0, len(roots)), roots, rows)
            weighed.append(rows)
        self.weighed = np.hstack(weighed)
        self.run.exchange().share_null().share_factor(told.projection, 5)

    def all(self) -> Any:
        """Each record's term has its weight; and the sum of them is what was opened."""
        plain, roots = self.run.rows, self.roots[:, None]
        self.run.rows = self.weighed
        try:
            for query, step, terms, opened in super().all():
                bits, factor = ROOT_BITS, roots
                if isinstance(query, GramMatrix):
                    bits, factor = 0, np.ones_like(roots)
                elif query.name in ("score", "square", "rescale", "length"):
                    bits, factor = 2 * ROOT_BITS, roots**2
                if query.by_person or isinstance(query, GramMatrix):
                    yield query, step * 2.0**-bits, terms * factor, opened
        finally:
            self.run.rows = plain


class Coins:
    def __init__(self, rng: np.random.Generator) -> None:
        self.bytes = rng.bytes


def moved(seed: int, kind: str) -> dict[str, float]:
    """By query: how far all records of some person move it at most, over the bound."""
    told, roots = draw(seed), root_weights(WHOSE, 64)
    table, found = table_of(told, len(WHOSE)), dict[str, float]()
    alike = (
        np.searchsorted(WHOSE, WHOSE) if seed % 2 else np.arange(len(WHOSE))
    )  # half of the time a person's are alike
    table = Table(*(part[alike] for part in table))
    rows, labels, null = (part.copy() for part in table)
    if kind == "zero-out":
        null[:, [seed // 2 % len(told.widths)] if seed % 3 else slice(None)] = True
    else:
        sign = np.random.default_rng(seed).choice([-1, 1])
        rows, labels = (sign * rows, labels) if sign < 0 else (rows, -labels)
    for one, other in zip(
        PeopleTerms(told, table, roots).all(), PeopleTerms(told, Table(rows, labels, null), roots).all(), strict=True
    ):
        query, step, terms, opened = one
        assert np.array_equal(terms.sum(axis=0), opened), f"{query.name}: a sum is not that of its terms"
        starts = np.cumsum((0, *COUNTS[:-1]))
        change = np.add.reduceat((other[2] - terms).astype(object), starts).astype(float) * step * query.noise_weights
        most = np.linalg.norm(change, axis=1).max() / query.sensitivity(kind)
        found[query.name] = max(found.get(query.name, 0.0), float(most))
    return found


def furthest(seeds: Any) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for seed, kind in itertools.product(seeds, ("zero-out", "replace-one")):
        for name, most in moved(seed, kind).items():
            found[name, kind] = max(found.get((name, kind), 0.0), most)
    return found


NAMES = ("gram", "length", "gradient", "score", "square", "rescale")


@pytest.mark.slow
def test_no_person_moves_a_sum_further_than_the_bound_and_some_do_as_far() -> None:
    """All records of people with 1 to 40 of them, blank at one party or at all, or replaced; coins and masks stay."""
    found = furthest(range(24))
    for name, kind in itertools.product(NAMES, ("zero-out", "replace-one")):
        assert found[name, kind] <= 1 + 1e-9, (name, kind)
        if not (name in ("gram", "length", "square") and kind == "replace-one"):  # which only others' rows move
            assert found[name, kind] >= 0.97, (name, kind)


@pytest.mark.parametrize("what", ["scores", "rows", "lengths"])
def test_a_sum_without_weights_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: what the weights do not touch, each record of a person moves."""
    whole = columns.Columns.look_up if what != "lengths" else columns.Columns.length

    def unweighed(self: Any, asked: Any, piece: Any, lookup: Any, *more: Any) -> Any:
        roots = self._roots
        if what == "lengths" or (lookup.matrix == "one") == (what == "scores"):
            self._roots = np.where(roots > 0, U, 0)
        try:
            return (yield from whole(self, asked, piece, lookup, *more))
        finally:
            self._roots = roots

    monkeypatch.setattr(columns.Columns, whole.__name__, unweighed)
    name = {"scores": "score", "rows": "gradient", "lengths": "length"}[what]
    with pytest.raises(AssertionError, match=f"{name}: a sum is not that of its terms"):
        moved(3, "zero-out")


def test_numbers_of_the_holder_are_weighed() -> None:
    """`label`, `residual`, `amount` of a person with eight records: 1 at most, and as far."""
    about: dict[str, Any] = {"loss": {"name": "squared"}, "classes": None, "fit_intercept": True}
    plan = people_plan(9, **about)
    holder = plan.label_party_name
    found = queries_of(ColumnsPeople(), plan, holder)
    person = ["a"] * 8 + ["b"]
    told = {"weights": np.zeros(plan.dimension)}

    def value(name: str, labels: Any) -> float:
        y = labels_with(np.append(np.broadcast_to(labels, 8), 0.3), person=person)
        rows = Block.prepare(np.zeros((9, 3)), y, plan.part(holder).preparation)
        told_one = told if name == "residual" else {}
        return float(found[name].value(Round(plan, plan.release(name).first, told_one, rows, {}))[0])

    for name, most in (("label", 2.0), ("residual", 1.0), ("amount", 1.0)):
        values = [value(name, each) for each in (1.0, -1.0, 0.0, math.nan, [1.0, -1.0] * 4)]
        reached = max(values) - min(values)
        assert 0.94 * most <= reached <= most, name  # 8 u^2 = 3872 of 4096
    assert plan.release("amount").charged_zero_out >= 1.0
    assert plan.protects == "person"


@pytest.mark.parametrize(("records", "bits"), [(2_000, 40), (3_000_000, 48)])
def test_grids_of_weighed_sums_have_room(records: int, bits: int) -> None:
    from sottovoce.secure.ring import exponent_of, ring_bits

    plan = people_plan(records)
    assert ring_bits(plan) == bits
    assert 10 <= exponent_of(plan) <= 30
    assert plan.release("score").step == 2.0**-20


def visits(people: int = 1500, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), 1 + rng.integers(0, 6, people))
    X = rng.uniform(-1, 1, (len(who), 4))
    return X, (rng.random(len(who)) < 1 / (1 + np.exp(-X @ [3.0, -2.0, 1.0, 0.0]))).astype(int), who


def federation(X: Any, y: Any, who: Any, **about: Any) -> sv.Federation:
    labels = sv.labels_with(y, person=who)
    return sv.Federation.by_columns([X[:, :2], X[:, 2:3], X[:, 3:]], labels, **{"labels": "held", **about})


def model(**about: Any) -> sv.PrivateLogisticRegression:
    declared = {"epsilon": 3.0, "delta": 1e-6, "entry_bound": 1.0, "classes": (0, 1)}
    return sv.PrivateLogisticRegression(**{**declared, **about})


@pytest.mark.slow
def test_reports_accounts_and_the_model_are_of_people(tmp_path: Path) -> None:
    X, y, who = visits()
    books = [sv.Ledger.create(tmp_path / name).open("visits", epsilon=9.0, delta=1e-4) for name in "abc"]
    fitted = model().fit(federation(X, y, who, ledgers=books, dealer=sv.Dealer("notary")), most_records=8)
    plan = fitted.plan_
    assert (plan.form, plan.protects, plan.most_records) == ("columns-people", "person", 8)
    report = fitted.privacy_
    assert report.weakest.unit == "person"
    assert "all records of that person" in str(report)
    assert any("how many records each person has" in line for line in report.weakest.assumes)
    assert any("how many records each person has" in line for line in books[0].balance().rests_on)
    assert not any("with one party" in line for line in report.assumptions)
    for book in books:
        assert book.balance().spent > 0
        with pytest.raises(sv.BudgetError, match="people"):
            model(ledger=book).fit(X[:200], y[:200])
    alone = model().fit(X, y, person=who, most_records=8)
    assert np.abs(fitted.coef_ - [3.0, -2.0, 1.0, 0.0]).max() < 0.6
    assert np.abs(alone.coef_ - fitted.coef_).max() < 0.7


@pytest.mark.slow
def test_copies_of_records_are_one_record() -> None:
    """Four copies of each, whose weights are 1/4 exactly, are as good as one; as records of their own they are not."""
    X, y, _ = visits(1200)
    X, y = X[:2000], y[:2000]
    copies = np.repeat(np.arange(2000), 4)
    once = model(epsilon=1.0, insecure_seed=3).fit(federation(X, y, np.arange(2000)), most_records=1)
    four = model(epsilon=1.0, insecure_seed=3).fit(federation(X[copies], y[copies], copies), most_records=8)
    assert all(1.0 <= each.plan_.release("gram").charged_zero_out < 1.001 for each in (once, four))
    for fitted in (once, four):
        assert np.abs(fitted.coef_ - [3.0, -2.0, 1.0, 0.0]).max() < 1.2
    assert four.plan_.people == 2000
    assert four.plan_.signal == once.plan_.signal


@pytest.mark.slow
def test_every_role_a_process(tmp_path: Path) -> None:
    """Two holders and a dealer, over gRPC with mutual TLS; the first tells the weights."""
    X, y, who = visits(400)
    sites = Sites(tmp_path, table=(X, y, who))
    try:
        fitted = model(epsilon=8.0).fit(sites.federation().declare_columns("held", 0, None), most_records=8)
        assert fitted.plan_.protects == "person"
        assert np.abs(fitted.coef_ - [3.0, -2.0, 1.0, 0.0]).max() < 1.5
        assert [account.balance().plans for account in sites.accounts] == [1, 1]
    finally:
        sites.stop()


def told(self: Any, piece: Any, roots: Any) -> Any:
    """Of a holder that tells what a party has to refuse."""
    return self._gate.roots(
        columns.SET_UP.label("roots", piece), np.broadcast_to(np.int64(roots), (piece[1] - piece[0],))
    )


@pytest.mark.parametrize("roots", [-1, U + 1, 3000])
def test_weights_beyond_1_are_refused(roots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from sottovoce.federation.secure_columns.party import ColumnRun

    monkeypatch.setattr(ColumnRun, "_tell_roots", lambda self, piece: told(self, piece, roots))
    with pytest.raises(RefusedError, match="roots of weights are from 0 to 64"):
        model().fit(federation(*visits(30)), most_records=8)


def test_columns_without_their_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ColumnSums._say

    def say(self: Any, names: Any, stage: Any, work: Any = None, each: Any = None, told: Any = None) -> Any:
        if stage.name == "columns":
            each = {name: {what: sent[what] for what in sent if what != "roots"} for name, sent in each.items()}
        return whole(self, names, stage, each=each, told=told, **({} if work is None else {"work": work}))

    monkeypatch.setattr(ColumnSums, "_say", say)
    with pytest.raises(RefusedError, match="leave with their weights"):
        model().fit(federation(*visits(30)), most_records=8)


def test_others_do_not_tell_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ColumnSums, "set_up", lambda self: self._say(self._plan.names[1:], Stage("roots", (0, 91))))
    with pytest.raises(RefusedError, match="envelopes before all else"):
        model().fit(federation(*visits(30)), most_records=8)


def test_a_party_that_may_not_tell_takes_no_such_plan() -> None:
    X, y, who = visits(30)
    parties = [
        sv.Party("a", X[:, :2], sv.labels_with(y, person=who), policy=sv.Policy(secure=True, dealer="coordinator")),
        sv.Party("b", X[:, 2:], None, policy=sv.Policy(secure=True, dealer="coordinator")),
    ]
    wire: Any = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y).transport.__class__(parties)
    remote = sv.Federation.connect(wire, split="columns", labels="held", products="secure")
    with pytest.raises(sv.SottovoceError):  # it tells how many people there are, and b how many records
        model().fit(remote, most_records=8)
    own = sv.Federation("columns", wire, parties=parties).declare_columns("held", 0, None)._secure("products", "secure")
    own.declared = {
        name: {"records": len(y), "features": 2, "feature_names": [], "classes": [0, 1]} for name in ("a", "b")
    }
    with pytest.raises(RefusedError, match="tell_records=True"):
        model().fit(own, most_records=8)


@pytest.mark.parametrize(
    ("about", "fit", "changed", "text"),
    [
        ({"products": "none"}, {"most_records": 8}, {}, "products='secure'"),
        ({}, {}, {}, "knows whose record each is"),
        ({}, {"most_records": 8}, {"solver": "newton"}, "those that bound people"),
        ({}, {"most_records": 8}, {"standard_errors": True}, "no rule for people"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(about: Any, fit: Any, changed: Any, text: str) -> None:
    with pytest.raises((InputError, RefusedError), match=text):
        model(**changed).fit(federation(*visits(40), **about), **fit)


def test_nothing_is_said_of_records_that_have_no_weights_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that leaves the columns out: without weights a person would move a sum by all records."""
    monkeypatch.setattr(ColumnSums, "set_up", without_columns)
    with pytest.raises(RefusedError, match="no weights yet"):
        model().fit(federation(*visits(30)), most_records=8)


def without_columns(self: Any) -> None:
    """The key of the group at all parties, and then the first program."""
    names, holder = self._plan.names, self._plan.label_party_name
    keys = self._say([holder], Stage("group"))[holder].frame.arrays
    for place, name in enumerate(names):
        if name != holder:
            sent = {name: {"group": envelope_of(holder, keys, str(place))}}
            with pytest.raises(RefusedError, match="were not told"):  # it has opened the key by then
                self._say([name], Stage("columns", (0, self._plan.records)), each=sent)
    self._play(ProgramPiece(NULL))


@pytest.mark.parametrize("alike", [True, False])
def test_a_party_that_knows_whose_records_are_whose_compares_weights(alike: bool) -> None:
    X, y, who = visits(40)
    others = who if alike else np.arange(len(who)) // 4
    policy = sv.Policy(secure=True, dealer="coordinator", tell_classes=True, colluding=1, tell_records=True)
    parties = [
        sv.Party(name, part, sv.labels_with(y, person=own), policy=policy)
        for name, part, own in (("a", X[:, :2], who), ("b", X[:, 2:], others))
    ]
    wire: Any = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y).transport.__class__(parties)
    remote = sv.Federation.connect(wire, split="columns", labels="shared", products="secure")
    if alike:
        assert model(insecure_seed=None).fit(remote, most_records=8).plan_.people == 40
        return
    with pytest.raises(RefusedError, match="other people's records"):
        model(insecure_seed=None).fit(remote, most_records=8)


def test_who_tells_how_many_records_there_are_takes_no_plan_about_people_with_whole_rows() -> None:
    X, y, who = visits(60)
    for tells, told in ((False, set()), (True, {len(who)})):
        own = sv.Party("a", X, sv.labels_with(y, person=who), policy=sv.Policy(tell_records=tells, tell_classes=True))
        facts = {fact.name: fact.value for fact in own.facts(classes=False)}
        assert (facts["records"], {facts[name] for name in facts if name == "all_records"}) == (60, told)
        wire: Any = sv.Federation.central(X, y).transport.__class__([own])
        if tells:
            with pytest.raises(RefusedError, match="tell_records tells it"):
                model(insecure_seed=None).fit(sv.Federation.connect(wire), most_records=8)
        else:
            assert model(insecure_seed=None).fit(sv.Federation.connect(wire), most_records=8).plan_.records == 60
