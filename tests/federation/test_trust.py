"""Parties and a hostile coordinator: plans that differ, unearned models, keys in another's place; and lost ends."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plans
import sottovoce as sv
from pairing import NO_OFFERS, impostor
from serving import answered, draw_data
from sottovoce import algorithms
from sottovoce.errors import InputError, RefusedError
from sottovoce.estimators import model_file
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.federation import Federation
from sottovoce.federation.models import Models, PartialModel, kept_beside
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import COORDINATOR, Request, add_words, read_masked, read_scores
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.plan.plan import Plan
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.secure.pair_keys import OFFERS, RunKey
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess
from sottovoce.transports.identity import PLAN, PREDICTION_KEY, Local, local_identities
from support import declared, forged, renewed

NAMES = ("a", "b")
PEOPLE = 8
serials = itertools.count(1)


def data(people: int = PEOPLE) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    columns = {"a": np.round(rng.uniform(-1, 1, (people, 3)), 3), "b": rng.uniform(-1, 1, (people, 1))}
    return columns, rng.uniform(-1, 1, people)


def plan_for(solver: str = "admm", **changes: Any) -> Plan:
    columns, y = data()
    federation = Federation.by_columns(list(columns.values()), y, names=NAMES)
    usual: dict[str, Any] = {"epsilon": 1e-3, "delta": 1e-9, "label_bound": 1.0, "entry_bound": 1.0}
    return sv.PrivateRidge(**declared(solver, **usual | {"fit_intercept": False, "rounds": 3} | changes)).plan(
        federation
    )


def party_of(name: str = "a", account: Account | None = None, **policy: Any) -> Party:
    columns, y = data()
    usual: dict[str, Any] = {"max_epsilon": 1.0, "predict_training": True}
    return Party(name, columns[name], y, account=account, policy=Policy(**usual | policy))


def send(party: Party, kind: str, plan: bytes = b"", **fields: Any) -> Frame:
    return decode(party.handle(encode(Frame(kind, next(serials), plan, **fields))).data)


def said(frame: Frame) -> str:
    told = json.loads(frame.text)
    return str(told.get("refused", told))


def opened(party: Party, plan: Plan, identities: Mapping[str, Local]) -> None:
    """A plan that every party has charged and signed."""
    party.identify(identities[party.name])
    assert send(party, "plan", plan.digest, text=plan.to_json()).kind == "accept"
    assert started(party, plan.digest, signatures(identities, plan.digest)).kind == "accept"


def signatures(identities: Mapping[str, Local], digest: bytes) -> dict[str, str]:
    return {name: identity.sign(PLAN, digest) for name, identity in identities.items()}


def started(party: Party, digest: bytes, signed: Any) -> Frame:
    return send(party, "plan", digest, query="start", text=signed if isinstance(signed, str) else json.dumps(signed))


# One plan for all.


def test_a_free_check_gives_no_signature_and_a_charge_does(tmp_path: Path) -> None:
    """Else signatures on two plans could be had for nothing, and one be run at each party."""
    account = Ledger.create(tmp_path / "a.db").open("people", 1.0, 1e-5)
    party, plan, known = party_of(account=account), plan_for(), local_identities(NAMES)
    party.identify(known["a"])
    assert json.loads(send(party, "plan", plan.digest, query="check", text=plan.to_json()).text) == {"accepted": True}
    assert account.balance().plans == 0
    accepted = json.loads(send(party, "plan", plan.digest, text=plan.to_json()).text)
    assert account.balance().plans == 1
    known["b"].verify("a", PLAN, plan.digest, accepted["signature"])
    again = json.loads(send(party, "plan", plan.digest, text=plan.to_json()).text)
    known["b"].verify("a", PLAN, plan.digest, again["signature"])
    assert "do not agree" in said(send(party, "plan", bytes(32), text=plan.to_json()))
    assert account.balance().plans == 1


def spoilt(known: Mapping[str, Local], plan: Plan) -> Iterator[tuple[str, Any, str]]:
    """What is shown instead of the signatures of all, and what the refusal says."""
    good, strangers = signatures(known, plan.digest), local_identities(NAMES)
    other = plan_for(rounds=4)
    yield "nothing", {}, "the signature of a on it is missing"
    yield "no text", "", "the signature of a on it is missing"
    yield "a list", [good["a"], good["b"]], "the signature of a on it is missing"
    yield "deep", "[" * 50_000, "the signature of a on it is missing"
    yield "its own alone", {"a": good["a"]}, "the signature of b on it is missing"
    yield "a number", good | {"b": 3}, "the signature of b on it is missing"
    yield "the same twice", good | {"b": good["a"]}, "the signature of b is wrong"
    yield "of a stranger", good | {"b": strangers["b"].sign(PLAN, plan.digest)}, "the signature of b is wrong"
    yield "of another plan", good | {"b": known["b"].sign(PLAN, other.digest)}, "the signature of b is wrong"
    yield "of a key", good | {"b": known["b"].sign(PREDICTION_KEY, plan.digest)}, "the signature of b is wrong"


def test_nothing_is_answered_before_every_party_has_signed_the_same_plan() -> None:
    plan, known = plan_for("score"), local_identities(NAMES)
    for how, shown, reason in spoilt(known, plan):
        party = party_of()
        party.identify(known["a"])
        assert started(party, plan.digest, shown).kind == "unknown-plan"
        assert send(party, "plan", plan.digest, text=plan.to_json()).kind == "accept"
        assert reason in said(started(party, plan.digest, shown)), how
        assert not list(answered(party, plan)), how
        assert "every party of it signed it" in said(send(party, "ask", plan.digest, query="gram")), how
        assert started(party, plan.digest, signatures(known, plan.digest)).kind == "accept"
        assert send(party, "ask", plan.digest, query="gram").kind == "answer", how


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_two_plans_at_two_parties_get_no_answer(split: str) -> None:
    """Each party would pay for what it was shown, and the record for both."""
    columns, y = data()
    names = ["a", "b"]
    if split == "columns":
        federation, model = Federation.by_columns(list(columns.values()), y, names=names), by_name("score", rounds=2)
    else:
        federation = Federation.by_rows([(columns["a"], y), (columns["a"], y)], names=names)
        model = by_name("gradient", rounds=2)
    ridge = sv.PrivateRidge(epsilon=1.0, delta=1e-3, label_bound=1.0, entry_bound=1.0, solver=model)
    plans = [ridge.plan(federation) for _ in names]
    assert plans[0].digest != plans[1].digest
    wire, gathered = federation.transport, {}
    for name, plan in zip(names, plans, strict=True):
        frame = encode(Frame("plan", next(serials), plan.digest, text=plan.to_json()))
        gathered[name] = json.loads(decode(wire.exchange({name: frame})[name]).text)["signature"]
    for name, other, plan in zip(names, names[::-1], plans, strict=True):
        frame = encode(Frame("plan", next(serials), plan.digest, query="start", text=json.dumps(gathered)))
        answer = decode(wire.exchange({name: frame})[name])
        assert f"the signature of {other} is wrong" in said(answer)
        asked = encode(Frame("ask", next(serials), plan.digest, query=plan.releases[0].query))
        assert decode(wire.exchange({name: asked})[name]).kind == "refuse"
    ridge.fit(federation)  # negative control: one plan for both is answered


def test_a_party_that_no_wire_has_told_who_it_is_takes_plans_of_its_own_alone() -> None:
    plan = plan_for()
    for query in ("check", ""):
        refused = send(party_of(), "plan", plan.digest, query=query, text=plan.to_json())
        assert "was not told who it is" in said(refused)
    columns, y = data()
    alone = Party("data", columns["a"], y)
    own = sv.PrivateRidge(label_bound=1.0, row_norm=1.0, delta=1e-3).plan(Federation.central(columns["a"], y))
    assert json.loads(send(alone, "plan", own.digest, text=own.to_json()).text) == {"accepted": True}
    assert list(answered(alone, own))


def test_a_restarted_party_is_shown_the_signatures_again(tmp_path: Path) -> None:
    accounts = {name: Ledger.create(tmp_path / f"{name}.db").open("people", 1.0, 1e-5) for name in NAMES}
    plan = plan_for("score")
    wire = InProcess([party_of(name, accounts[name]) for name in NAMES])
    rounds = itertools.count()

    def restart(*_: int) -> None:
        if next(rounds) == 2:
            renewed(wire, party_of("a", accounts["a"]))

    coordinator = Coordinator(wire)
    coordinator.run(plan, algorithms.of(plan), restart)
    assert coordinator.missing == {}
    assert [account.balance().plans for account in accounts.values()] == [1, 1]


# Models are earned, and signed off.

SPELLING = np.array([1.0, 2.0**14, 2.0**28])


def spelled(scores: np.ndarray) -> np.ndarray:
    """The columns that a score with these coefficients spells out, of three digits each."""
    found, rest = np.empty((len(scores), 3)), scores.copy()
    for place in (2, 1, 0):
        found[:, place] = np.round(rest / SPELLING[place], 3)
        rest -= found[:, place] * SPELLING[place]
    return found


class Attack:
    """A hostile coordinator: one plan of any small epsilon, coefficients of its choice, a key in another's place."""

    def __init__(self, recipient: str, *, asks: bool, **policy: Any) -> None:
        self.plan, self.known, self.recipient = plan_for(), local_identities(NAMES), recipient
        self.party = party_of(predict_for=(recipient,), **policy)
        opened(self.party, self.plan, self.known)
        if asks:
            assert list(answered(self.party, self.plan))
        arrays = {"coef": SPELLING, "intercept": np.zeros(1)}
        self.kept = send(self.party, "done", self.plan.digest, arrays=arrays)
        self.key = RunKey()

    def predict(self, signed: str) -> Frame:
        """Ask for the scores, with the coordinator's key as that of b and this text as b's signature."""
        own = json.loads(send(self.party, "hello", query="predict").text)
        keys = {"a": own["public_key"], "b": self.key.public}
        signed_by = {"a": own["signature"], "b": signed}
        request = self.request = Request.new(self.plan.digest, self.recipient, keys, signed_by)
        offers = send(self.party, "predict", self.plan.digest, query=self.recipient, text=request.text)
        if offers.kind == "refuse":
            return offers
        self.pairs = impostor(self.key, request, "b", offers.arrays[OFFERS])
        return send(self.party, "predict", self.plan.digest, query=self.recipient, text=request.text, arrays=NO_OFFERS)

    def columns(self, answer: Frame) -> np.ndarray:
        """What the coordinator reads with the key that it put in b's place."""
        masks = self.request.masks("b", self.pairs, PEOPLE)
        return spelled(read_scores(add_words(read_masked(answer, PEOPLE), masks)))


@pytest.mark.parametrize("recipient", [COORDINATOR, "b"])
def test_rows_of_the_training_do_not_leave_through_predictions(recipient: str) -> None:
    """Coefficients that nobody earned or approved, or a key that is not the other party's: each is refused."""
    unasked = Attack(recipient, asks=False)
    assert "it has not been asked for everything" in said(unasked.kept)
    assert "keeps no model" in said(unasked.predict(unasked.known["b"].sign(PREDICTION_KEY, b"")))

    unseen = Attack(recipient, asks=True)
    assert unseen.kept.kind == "done"
    assert "not approved" in said(unseen.predict(unseen.known["b"].sign(PREDICTION_KEY, b"")))
    model = unseen.party.predictor.models.get(unseen.plan.digest)
    assert model is not None
    assert len(model.doubts()) == 2

    trusted = Attack(recipient, asks=True, approve_models=True)
    other = local_identities(NAMES)["b"]
    for signed in (
        "",
        other.sign(PREDICTION_KEY, bytes.fromhex(trusted.key.public)),
        trusted.known["b"].sign(PREDICTION_KEY, bytes(32)),
        trusted.known["b"].sign(PLAN, bytes.fromhex(trusted.key.public)),
    ):
        assert "the signature of b" in said(trusted.predict(signed))

    asked = Attack(recipient, asks=True, approve_models=True, predict_training=False)
    assert "no people of a training" in said(asked.predict(""))


@pytest.mark.parametrize("recipient", [COORDINATOR, "b"])
def test_without_the_fences_the_rows_are_read(recipient: str) -> None:
    """Negative control: where b itself signs the coordinator's key and the holder approves, the columns are there."""
    attack = Attack(recipient, asks=True, approve_models=True)
    answer = attack.predict(attack.known["b"].sign(PREDICTION_KEY, bytes.fromhex(attack.key.public)))
    np.testing.assert_array_equal(attack.columns(answer), data()[0]["a"])


def test_a_model_is_kept_once_everything_was_answered_also_after_a_restart(tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "a.db").open("people", 1.0, 1e-5)
    plan, known = plan_for("score"), local_identities(NAMES)
    arrays = {"coef": np.ones(3), "intercept": np.zeros(1)}
    for own in (None, account):
        party = party_of(account=own)
        opened(party, plan, known)
        asks = list(answered_but(party, plan, "products"))
        assert asks
        assert "has not been asked for everything" in said(send(party, "done", plan.digest, arrays=arrays))
        assert party.predictor.models.get(plan.digest) is None
    restarted = party_of(account=account)
    opened(restarted, plan, known)
    list(answered(restarted, plan))
    again = party_of(account=account)
    assert send(again, "done", plan.digest, arrays=arrays).kind == "unknown-plan"
    opened(again, plan, known)
    assert send(again, "done", plan.digest, arrays=arrays).kind == "done"
    assert (
        send(party_of(account=account), "done", plan.digest, arrays=arrays).kind == "done"
    )  # once more, as it is kept
    other = arrays | {"coef": np.zeros(3)}
    assert "another one" in said(send(party_of(account=account), "done", plan.digest, arrays=other))
    kept = again.predictor.models.get(plan.digest)
    assert kept is not None
    np.testing.assert_array_equal(kept.coef, np.ones(3))


def answered_but(party: Party, plan: Plan, query: str) -> Iterator[Any]:
    """Everything that a party answers, but one query, which it is not asked."""

    class Unasked:
        name = party.name

        def handle(self, request: bytes) -> Any:
            frame = decode(request)
            return party.handle(encode(Frame("ask", frame.serial, bytes(32))) if frame.query == query else request)

    return answered(Unasked(), plan)  # type: ignore[arg-type]


def test_an_approval_is_of_exactly_the_coefficients_that_were_looked_at(tmp_path: Path) -> None:
    plan = plan_for()
    seen, other = (PartialModel(plan, "a", np.array([1.0, 0.3, last]), 0.0) for last in (0.2, np.nextafter(0.2, 1)))
    for models in (Models(), Models.beside(tmp_path / "a.db", "a")):
        models.keep(plan.digest, seen)
        assert not models.approved(plan.digest)
        with pytest.raises(InputError, match="no such model"):
            models.approve(plan.digest, other)
        with pytest.raises(InputError, match="no such model"):
            models.approve(bytes(32), seen)
        assert not models.approved(plan.digest)
        models.approve(plan.digest, seen)
        assert models.approved(plan.digest)
    folder = tmp_path / "a.db.models"
    assert Models.beside(tmp_path / "a.db", "a").approved(plan.digest)  # it lasts
    assert not Models.beside(tmp_path / "a.db", "b").approved(plan.digest)
    (kept,) = kept_beside(tmp_path / "a.db")
    assert kept.approved
    (path,) = folder.glob("*.json")
    path.write_text(path.read_text().replace("0.3", "0.30000000000000004"))
    assert not Models.beside(tmp_path / "a.db", "a").approved(plan.digest)
    (mark,) = folder.glob("*.approved")
    assert mark.stat().st_mode & 0o077 == 0
    mark.write_bytes(b"\xff")
    assert not Models.beside(tmp_path / "a.db", "a").approved(plan.digest)


DOUBTS: dict[str, tuple[list[float], int]] = {
    "a fit": ([0.123456789012345, -0.0712345678901234, 0.9012345678901234], 0),
    "nothing": ([0.0, 0.0, 0.0], 0),
    "spelling": (SPELLING.tolist(), 2),
    "one column": ([0.0, 0.3123456789012345, 0.0], 1),
    "apart": ([0.3123456789012345, 312.3456789012345e3, 0.1], 1),
    "by hand": ([0.5, 0.75, 0.25], 1),
}


@pytest.mark.parametrize(("coef", "count"), DOUBTS.values(), ids=DOUBTS)
def test_coefficients_that_spell_out_columns_raise_doubts(coef: list[float], count: int) -> None:
    model = PartialModel(plan_for(entry_bound=[2.0, 1.0, 0.5, 1.0]), "a", np.array(coef), 0.0)
    assert len(model.doubts()) == count
    np.testing.assert_allclose(model.contributions, np.abs(coef) * [2.0, 1.0, 0.5])


def test_contributions_are_those_of_the_declared_ranges() -> None:
    plan = plan_for(entry_bound=None, feature_ranges=([0, -5, 2, 0], [1, 5, 4, 1]))
    model = PartialModel(plan, "a", np.array([1.0, 2.0, 0.0]), 0.0)
    np.testing.assert_allclose(model.contributions, [0.5, 10.0, 0.0])  # about the middle of each range
    assert np.isinf(PartialModel(plan_for(epsilon=np.inf, entry_bound=None), "a", np.ones(3), 0.0).contributions).all()


def fits() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """A private fit by every form over columns."""
    logistic: dict[str, Any] = {"classes": (0, 1)}
    for labels in ("shared", "held"):
        yield (
            f"score {labels}",
            sv.PrivateLogisticRegression,
            {"solver": by_name("score", rounds=3), "labels": labels} | logistic,
        )
        for rows in ("persistent", "fresh"):
            solver = by_name("admm", rounds=3, rows=rows)
            yield f"admm {rows} {labels}", sv.PrivateLogisticRegression, {"solver": solver, "labels": labels} | logistic
        yield (
            f"fdml {labels}",
            sv.PrivateLogisticRegression,
            {"solver": by_name("fdml", rounds=3), "labels": labels} | logistic,
        )
        solver = by_name("frank-wolfe", rounds=5)
        yield f"frank-wolfe {labels}", sv.PrivateLasso, {"solver": solver, "radius": 1.0, "labels": labels}
        yield f"one-shot {labels}", sv.PrivateRidge, {"solver": by_name("one-shot"), "labels": labels}
    solver = by_name("frank-wolfe", rounds=5)
    yield "frank-wolfe paper", sv.PrivateLasso, {"solver": solver, "radius": 1.0, "calibration": "paper"}
    solver = by_name("admm", rounds=3, unit="feature", column_norm=3.0)
    yield "feature", sv.PrivateLogisticRegression, {"solver": solver, "labels": "public", "alpha": 0.1} | logistic


FITS = {name: (kind, options) for name, kind, options in fits()}


def fitted(name: str, tmp_path: Path) -> tuple[Any, Federation]:
    """A model, and parties in this process that count as remote: with ledgers, and a policy that approves nothing."""
    kind, options = FITS[name]
    options = dict(options)
    labels = options.pop("labels", "shared")
    columns, y = data(40)
    y = (y > 0).astype(int) if "classes" in options else y
    parties = [
        Party(
            who,
            X,
            y if labels != "held" or who == "a" else None,
            account=None if name in ("feature", "frank-wolfe paper") else account,
            policy=Policy(allow_without_privacy=True, predict_for=(COORDINATOR,), trains=True),
        )
        for (who, X), account in zip(
            columns.items(),
            [Ledger.create(tmp_path / f"{who}.db").open("people", 8.0, 1e-3) for who in NAMES],
            strict=True,
        )
    ]
    bound = {} if "classes" in options else {"label_bound": 1.0}
    federation = Federation.connect(InProcess(parties), split="columns", labels=labels)
    model = kind(epsilon=5.0, delta=1e-3, entry_bound=1.0, **bound, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.fit(federation), federation


@pytest.mark.parametrize("name", FITS)
def test_every_form_over_columns_leaves_a_model_at_every_party(name: str, tmp_path: Path) -> None:
    """What a run always asks is what earns a model: neither less nor more."""
    model, federation = fitted(name, tmp_path)
    assert model.missing_parts_ == {}
    for party in federation.transport._endpoints.values():  # type: ignore[attr-defined]
        digest = bytes.fromhex(model.charged_as_)
        kept = party.predictor.models.get(digest)
        assert kept is not None
        assert not party.predictor.models.approved(digest)


def test_people_of_the_training_need_a_permission_of_their_own(tmp_path: Path) -> None:
    model, federation = fitted("score shared", tmp_path)
    parties: list[Party] = list(federation.transport._endpoints.values())  # type: ignore[attr-defined]
    digest = bytes.fromhex(model.charged_as_)
    with pytest.raises(RefusedError, match=r"a has rows that may be trained on, .*Policy\(predict_training=True\)"):
        model.predict(federation)
    for party in parties:
        party.policy = Policy(predict_for=(COORDINATOR,), predict_training=True)
    with pytest.raises(RefusedError, match=rf"a has a model of plan {model.charged_as_[:12]} .* not approved"):
        model.predict(federation)
    for party in parties:
        kept = party.predictor.models.get(digest)
        assert kept is not None
        party.predictor.models.approve(digest, kept)
    columns, _ = data(40)
    joined = model.decision_function(np.hstack(list(columns.values())))
    np.testing.assert_allclose(model.decision_function(federation), joined, rtol=0, atol=1e-9)


# The last message of a run.


class Lossy(InProcess):
    """A wire on which a party is restarted just before the end of a run is said."""

    restart: Callable[[], None] = staticmethod(lambda: None)

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        frame = decode(next(iter(messages.values())))
        if frame.kind == "done" and frame.plan and "b" in messages:
            self.restart()
        return super().exchange(messages)


@pytest.mark.parametrize("solver", ["score", "admm"])
def test_a_party_that_was_restarted_at_the_end_has_its_part_of_the_model(solver: str, tmp_path: Path) -> None:
    accounts = {name: Ledger.create(tmp_path / f"{name}.db").open("people", 1.0, 1e-5) for name in NAMES}
    wire = Lossy([party_of(name, accounts[name]) for name in NAMES])
    times = itertools.count()
    wire.restart = lambda: renewed(wire, party_of("b", accounts["b"])) if next(times) == 0 else None
    plan, coordinator = plan_for(solver), Coordinator(wire)
    coordinator.run(plan, algorithms.of(plan))
    assert coordinator.missing == {}
    for name in NAMES:
        assert Models.beside(tmp_path / f"{name}.db", name).get(plan.digest) is not None
    assert accounts["b"].balance().plans == 1


def test_a_fit_says_who_has_no_part_of_the_model_and_why(tmp_path: Path) -> None:
    columns, y = data()
    wire = Lossy([party_of(name) for name in NAMES])  # without ledgers: a restart forgets everything
    times = itertools.count()
    wire.restart = lambda: renewed(wire, party_of("b")) if next(times) == 0 else None
    ridge = sv.PrivateRidge(
        epsilon=1.0, delta=1e-3, label_bound=1.0, entry_bound=1.0, solver=by_name("score", rounds=2)
    )
    with pytest.warns(UserWarning, match=r"joint predictions over columns are not possible: b \(b keeps no model"):
        ridge.fit(Federation.connect(wire, split="columns"))
    assert list(ridge.missing_parts_) == ["b"]
    assert np.isfinite(ridge.coef_).all()
    ridge.save(tmp_path / "model.json")
    assert model_file.load_model(tmp_path / "model.json").missing_parts_ == ridge.missing_parts_
    assert list(ridge.fit(Federation.by_columns(list(columns.values()), y, names=NAMES)).missing_parts_) == []


def test_by_rows_a_restart_at_the_end_is_no_loss() -> None:
    columns, y = data()
    wire = Lossy([Party(name, columns["a"], y) for name in NAMES])
    wire.restart = lambda: renewed(wire, Party("b", columns["a"], y))
    ridge = sv.PrivateRidge(
        epsilon=1.0, delta=1e-3, label_bound=1.0, row_norm=1.0, solver=by_name("gradient", rounds=2)
    )
    assert ridge.fit(Federation.connect(wire)).missing_parts_ == {}


@pytest.mark.parametrize("back", [True, False])
def test_a_party_that_is_killed_before_the_last_message(
    back: bool, sites_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes and real TLS: one that comes back is told again, one that does not is named."""
    sites = sites_of(NAMES)
    columns, y = data(200)
    for name in NAMES:
        sites.save(name, X=columns[name], y=y)
        Ledger.create(sites.folder / f"{name}.db").open(name, epsilon=1.5, delta=1e-5)
        sites.start(name, ledger=True)
    sites.wire.wait_for_parties(60)
    end = Coordinator.end

    def killed(self: Coordinator, *arguments: Any) -> Any:
        os.kill(sites.processes["a"].pid, signal.SIGKILL)
        sites.processes["a"].wait()
        sites.wire._timeout = 60.0 if back else 3.0
        if back:
            threading.Thread(target=sites.start, args=("a",), kwargs={"ledger": True}).start()
        return end(self, *arguments)

    monkeypatch.setattr(Coordinator, "end", killed)
    ridge = sv.PrivateRidge(epsilon=1.0, label_bound=1.0, entry_bound=1.0, solver=by_name("score", rounds=2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ridge.fit(Federation.connect(sites.wire, split="columns"))
    assert list(ridge.missing_parts_) == ([] if back else ["a"])
    assert len([one for one in caught if "joint predictions over columns are not possible: a" in str(one.message)]) == (
        0 if back else 1
    )
    kept = {name: len(list(kept_beside(sites.folder / f"{name}.db"))) for name in NAMES}
    assert kept == {"a": int(back), "b": 1}
    assert sites.processes["b"].wait(20) == 0


@pytest.mark.parametrize("which", [*plans.PLANS, *plans.SECURE])
def test_a_plan_that_leaves_out_what_its_form_needs_is_refused(which: str) -> None:
    """Else a model could be kept for which nothing was released, and nothing charged."""
    form, split, more = {**plans.PLANS, **plans.SECURE}[which]
    plan = plans.plan_for(form, split, **more)
    name = plan.names[0]
    for gone in plan.releases:
        if gone.query == "curvatures":  # which may be declared
            continue
        left = [release.model_dump(mode="json") for release in plan.releases if release is not gone]
        X, y = draw_data(plan)[name]
        labels = y if plan.part(name).preparation.labelled else None
        policy = Policy(allow_without_privacy=True, predict_for=("coordinator",), approve_models=True, secure=True)
        party = Party(name, X, labels, policy=policy)
        party.identify(local_identities(plan.names)[name])
        digest, text = forged(plan, releases=left)
        answer = decode(party.handle(encode(Frame("plan", 1, digest, text=text))).data)
        assert answer.kind == "refuse", (gone.query, answer.text)
        assert not plan.aggregation or "cannot do without" in answer.text
