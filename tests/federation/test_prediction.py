"""Joint prediction over columns: as on joined rows, for its recipient alone, and only by models that a run left."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sottovoce as sv
from processes import Program
from sottovoce import algorithms
from sottovoce import solvers as options_module
from sottovoce.algorithms import Algorithm, Ask, Solution
from sottovoce.algorithms.base import Coordination
from sottovoce.data.block import Block, Layout
from sottovoce.errors import InputError, LeakError, RefusedError, WireError
from sottovoce.estimators import model_file
from sottovoce.federation.federation import Federation
from sottovoce.federation.models import Models, PartialModel, kept_beside, own_part, parts_of
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import COORDINATOR, Request, add_words, encode_scores, read_scores
from sottovoce.federation.replies import MASKED, crossed_offers
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import disclose, reply
from sottovoce.gate.query import Plain, Query, Round
from sottovoce.plan.plan import Design, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.pricing import queries_of
from sottovoce.secure.pair_keys import OFFERS
from sottovoce.solvers import Options, by_name
from sottovoce.solvers.options import OneOf
from sottovoce.transports.base import InProcess
from support import declared, handle

NAMES = ("anna", "ben", "carl")
WIDTHS = (3, 2, 1)
PEOPLE = 60
serials = itertools.count(1)
PROGRAM = Path(__file__).parent.parent / "programs" / "predict_party.py"


def rows(seed: int = 0, count: int = PEOPLE) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (count, 6))
    return X, np.where(X @ [3.0, 0, 0, -2.0, 0, 1.0] > 0, 1, 0)


def split(X: Any, widths: tuple[int, ...] = WIDTHS) -> list[Any]:
    edges = np.cumsum([0, *widths])
    return [X[:, a:b] for a, b in itertools.pairwise(edges)]


def federation_of(seed: int = 0, **options: Any) -> Federation:
    X, y = rows(seed)
    return Federation.by_columns(split(X), y, **{"names": NAMES} | options)


def model_of(**options: Any) -> Any:
    usual: dict[str, Any] = {"radius": 4.0, "epsilon": math.inf, "classes": (0, 1)}
    if not {"entry_bound", "feature_ranges"} & set(options):
        usual["row_norm"] = 1.0
    return sv.PrivateLogisticRegression(**declared("frank-wolfe", **usual | options))


def send(party: Party, kind: str, **fields: Any) -> Frame:
    return decode(handle(party, encode(Frame(kind, next(serials), **fields))).data)


def said(frame: Frame) -> dict[str, Any]:
    text: dict[str, Any] = json.loads(frame.text)
    return text


class Tapped(InProcess):
    """A wire in this process whose frames are kept."""

    def __init__(self, parties: Any) -> None:
        super().__init__(parties)
        self.down: list[tuple[str, Frame]] = []
        self.up: list[tuple[str, Frame]] = []

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        self.down += [(name, decode(data)) for name, data in messages.items()]
        replies = super().exchange(messages)
        self.up += [(name, decode(data)) for name, data in replies.items()]
        return replies


def trained(**options: Any) -> tuple[Any, Federation]:
    """A model, and the federation that trained it."""
    federation = federation_of()
    fitted = model_of(**options).fit(federation)
    assert np.count_nonzero(fitted.coef_) > 1
    return fitted, federation


def elsewhere(federation: Federation, X: Any, recipient: str = COORDINATOR) -> tuple[Federation, list[Party], Tapped]:
    """Parties that count as remote: the models of a training, other people, and a policy for one recipient."""
    policy = Policy(predict_for=(recipient,), trains=False, approve_models=True)
    parties = [
        Party(party.name, part, None, policy=policy, models=party.predictor.models)
        for party, part in zip(federation._parties, split(X), strict=True)
    ]
    wire = Tapped(parties)
    return Federation.connect(wire, split="columns"), parties, wire


# The sums are those of the joined rows.

FITS: dict[str, dict[str, Any]] = {
    "row norm": {},
    "private": {"epsilon": 15.0, "delta": 1e-3, "rounds": 8, "insecure_seed": 3},
    "no intercept": {"fit_intercept": False},
    "entries": {"entry_bound": 0.3},
    "an entry bound each": {"entry_bound": [0.1, 0.2, 0.3, 0.1, 0.2, 0.3], "row_norm": 0.4},
    "ranges": {"feature_ranges": ([-1, 0, -0.2, -3, 0, 0.1], [0, 2, 0.2, 5, 1, 0.4])},
    "unit": {"feature_ranges": ([0, 0, 0, 0, 0, 0], [1, 2, 0.2, 5, 1, 0.4]), "rescale": "unit"},
}


@pytest.mark.parametrize("holder", [0, 2])
@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def test_joint_scores_are_those_of_joined_rows(options: dict[str, Any], holder: int) -> None:
    fitted = model_of(**options).fit(federation_of(label_party=holder))
    assert np.any(fitted.coef_)
    X, y = rows(1, 200)
    X[:20] *= 50  # beyond all bounds: cut by each party as in training
    new = Federation.by_columns(split(X), None, names=NAMES)
    np.testing.assert_allclose(fitted.decision_function(new), fitted.decision_function(X), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(fitted.predict(new), fitted.predict(X))
    np.testing.assert_allclose(fitted.predict_proba(new), fitted.predict_proba(X), rtol=0, atol=1e-9)
    assert fitted.score(new, y) == fitted.score(X, y)
    for recipient in NAMES:
        fitted.predict_for(new, recipient)
        np.testing.assert_allclose(new.predictions[recipient].scores, fitted.decision_function(X), rtol=0, atol=1e-9)
    sparse = Federation.by_columns([sp.csr_matrix(part) for part in split(X)], None, names=NAMES)
    np.testing.assert_allclose(fitted.decision_function(sparse), fitted.decision_function(X), rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        fitted.decision_function(sp.csr_matrix(X)), fitted.decision_function(X), rtol=0, atol=1e-12
    )


def test_rows_are_cut_party_by_party_also_where_they_are_joined() -> None:
    """Negative control: the cut of a whole row to its whole norm is another one."""
    fitted, _ = trained()
    X = 50 * rows(1)[0]
    coef, intercept = fitted.coef_.ravel(), float(fitted.intercept_[0])
    whole = fitted.plan_.preparation.scores(X, coef, intercept)
    assert np.abs(whole - fitted.decision_function(X)).max() > 1e-3


@pytest.mark.parametrize("offset", [0.0, 3e11])
@pytest.mark.parametrize("parties", [1, 2, 8])
def test_numbers_of_any_size(parties: int, offset: float) -> None:
    rng = np.random.default_rng(parties)
    X = rng.uniform(-1, 1, (80, 8))
    y = offset + 1e-3 * X[:, 0]
    widths = (8,) if parties == 1 else (5, 3) if parties == 2 else (1,) * 8
    names = [f"p{k}" for k in range(parties)]
    lasso = sv.PrivateLasso(epsilon=math.inf, radius=1e12, solver=by_name("frank-wolfe", rounds=40))
    lasso.fit(Federation.by_columns(split(X, widths), y, names=names))
    new = Federation.by_columns(split(X, widths), None, names=names)
    np.testing.assert_allclose(lasso.predict(new), lasso.predict(X), rtol=1e-14, atol=1e-11)


def test_a_record_that_a_party_cannot_use_has_no_score() -> None:
    fitted, _ = trained()
    X, _ = rows(1)
    expected = fitted.decision_function(X)
    X[3, 0] = X[5, 4] = np.nan
    X[7, [0, 4]] = np.inf, np.nan  # two parties at once
    new = Federation.by_columns(split(X), None, names=NAMES)
    expected[[3, 5, 7]] = np.nan
    np.testing.assert_allclose(fitted.decision_function(new), expected, rtol=0, atol=1e-9)
    assert np.isnan(fitted.predict_proba(new)[[3, 5, 7]]).all()
    with pytest.raises(InputError, match=r"3 of 60 people .* the first is row 3; leave them out"):
        fitted.predict(new)
    fitted.predict_for(new, "ben")
    table = new.predictions["ben"].table(proba=True)
    assert list(table) == ["prediction", "probability of 0", "probability of 1"]
    assert [place for place, value in enumerate(table["prediction"]) if value is None] == [3, 5, 7]
    known = [value for value in table["prediction"] if value is not None]
    assert known == [int(score > 0) for score in expected if not math.isnan(score)]
    assert table["probability of 1"][0] == pytest.approx(1 / (1 + math.exp(-expected[0])))


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 8), st.integers(1, 5)),
        elements=st.floats(-1e9, 1e9) | st.floats(-1e-6, 1e-6) | st.just(math.nan),
    )
)
def test_sums_of_words_are_sums_of_scores(each: np.ndarray) -> None:
    total = encode_scores(each[0])
    for scores in each[1:]:
        total = add_words(total, encode_scores(scores))
    np.testing.assert_allclose(read_scores(total), each.sum(axis=0), rtol=1e-14, atol=len(each) * 2.0**-44)


def test_the_largest_and_smallest_scores() -> None:
    scores = np.array([2.0**61, -(2.0**61), 2.0**-44, -(2.0**-44), 0.0, -1.0, 2.0**20 + 0.25, -(2.0**20) - 2.0**-30])
    np.testing.assert_array_equal(read_scores(encode_scores(scores)), scores)
    np.testing.assert_array_equal(read_scores(encode_scores(np.array([1e300, -math.inf]))), [2.0**62, -(2.0**62)])


# Nobody but the recipient can read anything.


def high_bits(words: np.ndarray) -> float:
    """The share of ones in the highest bit of the numbers."""
    return float((words[:, 1] >> np.uint64(63)).mean())


@pytest.mark.parametrize("recipient", [COORDINATOR, "ben"])
def test_an_answer_is_hidden_by_masks_and_only_the_whole_sum_is_not(recipient: str) -> None:
    """Of 4096 masks 1/2 have the highest bit set, within 6 standard deviations: a false alarm in 5e8."""
    fitted, federation = trained()
    X = np.full((4096, 6), 0.1)
    remote, parties, wire = elsewhere(federation, X, recipient)
    fitted.predict_for(remote, recipient)
    answers = {
        name: f.arrays[MASKED].view(np.uint64) for name, f in wire.up if f.kind == "answer" and MASKED in f.arrays
    }
    assert set(answers) == set(NAMES) - {recipient}
    truth = fitted.decision_function(X)
    partial = {party.name: party.predictor.models.get(bytes.fromhex(fitted.charged_as_)) for party in parties}
    for name, words in answers.items():
        own = partial[name]
        assert own is not None
        bare = encode_scores(own.scores(split(X)[NAMES.index(name)]))
        assert high_bits(bare) in (0.0, 1.0)  # what no mask hides is all alike here
        assert abs(high_bits(words) - 0.5) < 6 / (2 * 64)
        assert not np.any(np.all(words == bare, axis=1))
        assert len(np.unique(words[:, 0])) == len(words)
    several = [add_words(answers[a], answers[b]) for a, b in itertools.combinations(answers, 2)]
    total = answers["anna"]
    for name in list(answers)[1:]:
        total = add_words(total, answers[name])
    if recipient == COORDINATOR:
        np.testing.assert_allclose(read_scores(total), truth, rtol=0, atol=1e-9)
        assert all(abs(high_bits(two) - 0.5) < 6 / (2 * 64) for two in several)
    else:  # the sum that the coordinator passes on is unreadable to it
        assert abs(high_bits(total) - 0.5) < 6 / (2 * 64)
        passed = [frame for name, frame in wire.down if name == recipient and MASKED in frame.arrays]
        assert len(passed) == 1  # the sum of the others, not what each said
        np.testing.assert_array_equal(passed[0].arrays[MASKED].view(np.uint64), total)
        assert [said(frame) for name, frame in wire.up if name == recipient and frame.text][-1] == {"accepted": True}
        received = parties[1].predictions
        assert received is not None
        np.testing.assert_allclose(received.scores, truth, rtol=0, atol=1e-9)
        assert parties[0].predictions is parties[2].predictions is None


def test_two_requests_have_other_masks_and_one_request_has_the_same() -> None:
    fitted, federation = trained()
    remote, parties, wire = elsewhere(federation, rows(1)[0])
    for _ in range(2):
        fitted.decision_function(remote)
    answers = [f.arrays[MASKED] for name, f in wire.up if name == "anna" and MASKED in f.arrays]
    assert not np.any(answers[0] == answers[1])
    first, last = [f for name, f in wire.down if name == "anna" and f.kind == "predict" and OFFERS in f.arrays]
    for asked, answer in zip((first, last), answers, strict=True):
        repeated = decode(handle(parties[0], encode(asked)).data)
        np.testing.assert_array_equal(repeated.arrays[MASKED], answer)


def test_no_pad_is_on_scores_of_two_models_or_orders() -> None:
    """Whatever a holder gives in its own process: a request of before is answered alike, or no more."""
    fitted, federation = trained()
    remote, parties, wire = elsewhere(federation, rows(1)[0])
    fitted.decision_function(remote)
    asked = next(f for name, f in wire.down if name == "anna" and OFFERS in f.arrays)

    def again() -> Frame:
        return decode(handle(parties[0], encode(asked)).data)

    anna = parties[0].predictor
    model = anna.models.get(asked.plan)
    assert model is not None
    assert again().kind == "answer"
    anna.learn(asked.plan, model)
    assert again().kind == "refuse"  # that it is the one of before is not looked at
    fitted.decision_function(remote)
    asked = [f for name, f in wire.down if name == "anna" and OFFERS in f.arrays][-1]
    first = again().arrays[MASKED]
    anna.learn(asked.plan, model)
    np.testing.assert_array_equal(again().arrays[MASKED], first)
    anna.learn(asked.plan, dataclasses.replace(model, coef=model.coef + 1.0))
    assert "another public key for this party" in said(again())["refused"]
    key = anna.public_key
    anna.renew("of another order")
    assert anna.public_key != key


def test_a_party_that_is_told_a_new_model_has_a_new_key() -> None:
    """So copies of it that are told two models of a plan put no mask on the scores of both."""
    fitted, _ = trained()
    plan: Plan = fitted.plan_
    part = parts_of(plan, *plan.unprepare(np.ones(plan.dimension)))["anna"]
    anna = Party("anna", np.zeros((1, 1)), None, models=Models()).predictor
    before = anna.public_key
    anna.keep(plan.digest, part)
    kept = anna.public_key
    assert kept != before
    anna.keep(plan.digest, part)
    assert anna.public_key == kept
    with pytest.raises(RefusedError, match="it is another one"):
        anna.keep(plan.digest, dataclasses.replace(part, coef=2 * part.coef))
    assert anna.public_key == kept


def test_parties_that_were_shown_different_keys_do_not_agree() -> None:
    """A coordinator that changes one key for some gets no sum: all keys are part of every key of a pair."""
    fitted, federation = trained()
    remote, parties, wire = elsewhere(federation, rows(1)[0])
    fitted.decision_function(remote)
    asked = next(f for _, f in wire.down if f.kind == "predict")
    stranger = Party("carl", rows(1)[0][:, 5:], None)
    other = json.loads(asked.text)
    stranger.identify(wire._endpoints["carl"].identity)  # type: ignore[attr-defined]
    other["keys"]["carl"] = stranger.predictor.public_key
    other["signatures"]["carl"] = stranger.predictor.signature
    texts = dict(zip(NAMES, (json.dumps(other), asked.text, asked.text), strict=True))

    def told(party: Party, arrays: Any) -> Frame:
        return send(party, "predict", plan=asked.plan, query=asked.query, text=texts[party.name], arrays=arrays)

    offers = {party.name: told(party, {}).arrays for party in parties}
    for party, each in zip(parties, crossed_offers(NAMES, offers).values(), strict=True):
        answer = told(party, each)
        if party.name == "anna":  # who comes first takes no offer
            assert MASKED in answer.arrays
        else:
            assert "was altered" in said(answer)["refused"]


def unmarked(total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The marks of a sum of answers, and what a curious recipient finds below them."""
    marks = (total[:, 1] + np.uint64(1 << 51)) >> np.uint64(52)
    rest = total.copy()
    rest[:, 1] -= marks << np.uint64(52)
    return marks, read_scores(rest)


def test_a_record_that_one_party_cannot_use_does_not_show_what_the_others_say() -> None:
    """Below the marks, 4096 times, numbers of either sign alike, within 6 standard deviations: 2e-9 for a false alarm.

    They reach from -2^71 to 2^71; the scores of the party that has the records are below 1.
    """
    fitted, federation = trained()
    X = np.full((4096, 6), 0.1)
    X[:, 0] = X[:, 5] = math.nan  # of three parties, ben alone has records
    remote, parties, wire = elsewhere(federation, X)
    assert np.isnan(fitted.decision_function(remote)).all()
    answers = [(name, frame) for name, frame in wire.up if MASKED in frame.arrays]
    words = {name: frame.arrays[MASKED].view(np.uint64) for name, frame in answers}
    total = add_words(add_words(words["anna"], words["ben"]), words["carl"])
    _, found = unmarked(total)
    assert np.abs(found).min() > 2.0**30
    assert abs((found > 0).mean() - 0.5) < 6 / (2 * 64)
    # negative control: without random numbers in the place of the two scores, the third is there to be read
    model = parties[1].predictor.models.get(bytes.fromhex(fitted.charged_as_))
    assert model is not None
    own = model.scores(X[:, 3:5])
    bare = add_words(add_words(encode_scores(X[:, 0]), encode_scores(own)), encode_scores(X[:, 5]))
    marks, read = unmarked(bare)
    assert np.all(marks == 2)
    np.testing.assert_allclose(read, own, rtol=0, atol=1e-12)
    # and a request that is repeated shows no new ones, which would tell whose record cannot be used
    asked = next(f for name, f in wire.down if name == "anna" and OFFERS in f.arrays)
    again = decode(handle(parties[0], encode(asked)).data)
    np.testing.assert_array_equal(again.arrays[MASKED].view(np.uint64), words["anna"])


def test_a_recipient_answers_alike_whether_or_not_masks_cancel() -> None:
    """Else a coordinator that shifts one person's sum finds the score by bisection, from who is refused."""
    fitted, federation = trained()
    remote, parties, wire = elsewhere(federation, rows(1)[0], "ben")
    fitted.predict_for(remote, "ben")
    assert parties[1].predictions is not None
    asked = next(f for name, f in wire.down if name == "ben" and MASKED in f.arrays)
    shifted = asked.arrays[MASKED].copy()
    shifted[5, 1] ^= 1 << 62
    replies = [
        send(
            parties[1], "predict", plan=asked.plan, query="ben", text=asked.text, arrays={**asked.arrays, MASKED: words}
        )
        for words in (asked.arrays[MASKED], shifted)
    ]
    assert [(reply.kind, reply.text) for reply in replies] == [("accept", replies[0].text)] * 2
    assert parties[1].predictions is None
    assert parties[1].failure is None


# A party predicts for whom its holder allows, with what it kept.


def test_a_remote_party_predicts_for_nobody_by_default() -> None:
    fitted, federation = trained()
    parties = [
        Party(n, p, None, models=o.predictor.models)
        for n, p, o in zip(NAMES, split(rows(1)[0]), federation._parties, strict=True)
    ]
    remote = Federation.connect(InProcess(parties), split="columns")
    with pytest.raises(RefusedError, match=r"anna: it takes no part in predictions for 'coordinator'; .*predict_for"):
        fitted.predict(remote)
    for party in parties:
        party.policy = Policy(predict_for=("ben",), trains=False, approve_models=True)
    with pytest.raises(RefusedError, match="no part in predictions for 'coordinator'"):
        fitted.predict(remote)
    with pytest.raises(RefusedError, match="no part in predictions for 'carl'"):
        fitted.predict_for(remote, "carl")
    fitted.predict_for(remote, "ben")
    parties[1].policy = Policy(predict_for=("anna",), trains=False)  # not even itself
    with pytest.raises(RefusedError, match="ben: it takes no part in predictions for 'ben'"):
        fitted.predict_for(remote, "ben")


def test_the_gate_discloses_to_named_recipients_and_hidden_numbers_only() -> None:
    words = np.zeros((2, 2), dtype=np.int64)
    with pytest.raises(RefusedError, match="no part"):
        disclose(MASKED, words, recipient="ben", allowed=("anna",))
    with pytest.raises(LeakError, match="whole numbers under masks"):
        disclose(MASKED, np.zeros((2, 2)), recipient="ben", allowed=("ben",))  # type: ignore[arg-type]
    disclosed = disclose(MASKED, words, recipient="ben", allowed=("ben",))
    with pytest.raises(LeakError):
        disclosed.recipient = "anna"
    with pytest.raises(ValueError, match="read-only"):
        disclosed.arrays[MASKED][:] = 1
    assert decode(reply("answer", Frame("predict", 1, query="ben"), disclosed).data).arrays[MASKED].shape == (2, 2)
    with pytest.raises(LeakError, match="answers no request for another"):
        reply("answer", Frame("predict", 1, query="anna"), disclosed)
    with pytest.raises(LeakError, match="made by the gate"):
        type(disclosed)("ben", {MASKED: words})  # type: ignore[call-arg]


def test_people_to_predict_for_are_not_trained_on() -> None:
    fitted, federation = trained()
    remote, parties, _ = elsewhere(federation, rows(1)[0])
    parties[0].labelled = parties[1].labelled = parties[2].labelled = True
    with pytest.raises(RefusedError, match="anna takes part in predictions only"):
        model_of().fit(remote)
    with pytest.raises(InputError, match="nobody of the federation knows the labels"):
        fitted.fit(Federation.by_columns(split(rows(1)[0]), None, names=NAMES))


def test_weights_in_a_request_are_not_looked_at() -> None:
    """A coordinator that could choose the weights would read columns by unit vectors."""
    fitted, federation = trained()
    remote, parties, wire = elsewhere(federation, rows(1)[0])
    fitted.decision_function(remote)
    asked = next(f for name, f in wire.down if name == "anna" and OFFERS in f.arrays)
    assert set(asked.arrays) == {OFFERS}
    chosen = {"coef": np.array([1.0, 0.0, 0.0]), "intercept": np.zeros(1)}
    same = decode(handle(parties[0], encode(asked)).data)
    both = chosen | asked.arrays
    other = send(parties[0], "predict", plan=asked.plan, query=asked.query, text=asked.text, arrays=both)
    np.testing.assert_array_equal(same.arrays[MASKED], other.arrays[MASKED])
    # nor can a model be put in the place of the one that the run left behind, or of none
    replaced = send(parties[0], "done", plan=asked.plan, arrays=chosen)
    assert "the plan has a model already, and it is another one" in said(replaced)["refused"]
    assert send(parties[0], "done", plan=bytes(32), arrays=chosen).kind == "unknown-plan"
    after = decode(handle(parties[0], encode(asked)).data)
    np.testing.assert_array_equal(same.arrays[MASKED], after.arrays[MASKED])
    assert (
        "keeps no model of that plan" in said(send(parties[0], "predict", plan=bytes(32), query=COORDINATOR))["refused"]
    )


def test_a_plan_has_one_model(tmp_path: Path) -> None:
    fitted, federation = trained()
    digest = fitted.plan_.digest
    part = federation._parties[0].predictor.models.get(digest)
    assert part is not None
    other = PartialModel(part.plan, part.party, part.coef + 1, part.intercept)
    for models in (Models(), Models(tmp_path / "models")):
        models.keep(digest, part)
        models.keep(digest, part)
        with pytest.raises(RefusedError, match="has a model already"):
            models.keep(digest, other)
    (again,) = (tmp_path / "models").iterdir()
    assert stat.S_IMODE(again.stat().st_mode) == 0o600
    assert stat.S_IMODE(again.parent.stat().st_mode) == 0o700
    assert fitted.plan_.coin not in again.read_text()
    found = Models(tmp_path / "models").get(digest)
    assert found is not None
    np.testing.assert_array_equal(found.coef, part.coef)
    with pytest.raises(RefusedError, match="has a model already"):
        Models(tmp_path / "models").keep(digest, other)
    assert Models(tmp_path / "models").get(bytes(32)) is None
    again.write_text(again.read_text().replace('"coef"', '"coof"'))
    with pytest.raises(InputError, match="is no partial model"):
        Models(tmp_path / "models").get(digest)


def test_parties_with_accounts_in_one_ledger_keep_a_model_each(tmp_path: Path) -> None:
    ledger = sv.Ledger.create(tmp_path / "all.db")
    federation = federation_of(ledgers=[ledger.open(name, 15.0, 1e-3) for name in NAMES])
    fitted = model_of(epsilon=15.0, delta=1e-3, rounds=8, insecure_seed=3).fit(federation)
    for party, coef in zip(federation._parties, split(fitted.coef_), strict=True):
        kept = Models.beside(tmp_path / "all.db", party.name).get(fitted.plan_.digest)
        assert kept is not None
        assert kept.party == party.name
        np.testing.assert_array_equal(kept.coef, coef.ravel())


def asked_everything(party: Party, plan: Plan) -> None:
    """Have a party answer every atom of a plan by Frank-Wolfe, as if nothing had been chosen before."""
    query = queries_of(algorithms.of(plan), plan, party.name)["atom"]
    for number in range(plan.rounds):
        wanted = query.takes_at(number).items()
        told = {name: np.resize(array.example(), [size or 0 for size in array.shape]) for name, array in wanted}
        send(party, "ask", plan=plan.digest, round=number, query="atom", arrays=told)


def test_what_a_run_tells_at_its_end_is_checked() -> None:
    federation = federation_of()
    plan = model_of(epsilon=1.0, rounds=6).plan(federation)

    def ready() -> Party:
        party = Party("anna", split(rows()[0])[0], rows()[1])
        assert send(party, "plan", plan=plan.digest, text=plan.to_json()).kind == "accept"
        asked_everything(party, plan)
        return party

    bad: list[dict[str, Any]] = [
        {"coef": np.zeros(2), "intercept": np.zeros(1)},
        {"coef": np.zeros((3, 1)), "intercept": np.zeros(1)},
        {"coef": np.full(3, 1e200), "intercept": np.zeros(1)},
        {"coef": np.zeros(3), "intercept": np.array([1e200])},
    ]
    for arrays in bad:
        party = ready()
        assert "a partial model has" in said(send(party, "done", plan=plan.digest, arrays=arrays))["refused"]
        assert party.predictor.models.get(plan.digest) is None
    for arrays in ({}, {"coef": np.zeros(3)}, {"coef": np.zeros(3), "intercept": np.zeros(2)}):
        party = ready()
        assert send(party, "done", plan=plan.digest, arrays=arrays).kind == "done"
        assert party.predictor.models.get(plan.digest) is None
    party = ready()
    assert send(party, "done", plan=plan.digest, arrays={"coef": np.ones(3), "intercept": np.zeros(1)}).kind == "done"
    assert party.predictor.models.get(plan.digest) is not None


REQUESTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no text": (lambda _: "", "no request"),
    "a list": (lambda _: "[]", "no request"),
    "no keys": (lambda r: {"number": r["number"]}, "no request"),
    "keys that are no table": (lambda r: r | {"keys": [1]}, "no request"),
    "no hexadecimal": (lambda r: r | {"keys": r["keys"] | {"ben": "zz"}}, "no request"),
    "a number": (lambda r: r | {"number": 3}, "the public key of each party"),
    "a party less": (
        lambda r: r | {"keys": {n: r["keys"][n] for n in ("anna", "ben")}},
        "the public key of each party",
    ),
    "a party more": (lambda r: r | {"keys": r["keys"] | {"dora": "00" * 32}}, "the public key of each party"),
    "one key twice": (lambda r: r | {"keys": r["keys"] | {"ben": r["keys"]["carl"]}}, "the public key of each party"),
    "a short key": (lambda r: r | {"keys": r["keys"] | {"ben": "00" * 31}}, "the public key of each party"),
    "a key of nothing": (lambda r: r | {"keys": r["keys"] | {"ben": "00" * 1216}}, "the signature of ben is wrong"),
    "a key of somebody else": (
        lambda r: r | {"keys": r["keys"] | {"ben": "77" * 1216}},
        "the signature of ben is wrong",
    ),
    "no signatures": (lambda r: {k: v for k, v in r.items() if k != "signatures"}, "no request"),
    "a signature less": (
        lambda r: r | {"signatures": {"carl": r["signatures"]["carl"]}},
        "signature of ben is missing",
    ),
    "another's signature": (
        lambda r: r | {"signatures": r["signatures"] | {"ben": r["signatures"]["carl"]}},
        "the signature of ben is wrong",
    ),
    "another key of its own": (
        lambda r: r | {"keys": r["keys"] | {"anna": "11" * 1216}},
        "another public key for this party",
    ),
}


@pytest.mark.parametrize(("change", "reason"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_that_is_none_is_refused(change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    fitted, federation = trained()
    _, parties, _ = elsewhere(federation, rows(1)[0])
    keys = {party.name: party.predictor.public_key for party in parties}
    signatures = {party.name: party.predictor.signature for party in parties}
    digest = bytes.fromhex(fitted.charged_as_)
    request = json.loads(Request.new(digest, COORDINATOR, keys, signatures).text)
    assert send(parties[0], "predict", plan=digest, query=COORDINATOR, text=json.dumps(request)).kind == "answer"
    changed = change(request)
    text = changed if isinstance(changed, str) else json.dumps(changed)
    answer = send(parties[0], "predict", plan=digest, query=COORDINATOR, text=text)
    assert answer.kind == "refuse"
    assert reason in said(answer)["refused"]


def test_other_columns_are_refused() -> None:
    fitted, federation = trained()
    digest = bytes.fromhex(fitted.charged_as_)
    models = federation._parties[0].predictor.models
    policy = Policy(predict_for=(COORDINATOR, "dora"), trains=False, approve_models=True)
    X = rows(1)[0]
    wide = Party("anna", X[:, :4], None, models=models, policy=policy)
    assert (
        "anna has 4 columns here and the model 3"
        in said(send(wide, "predict", plan=digest, query=COORDINATOR))["refused"]
    )
    thief = Party("ben", X[:, 3:5], None, models=models, policy=policy)  # the model of somebody else
    assert "ben keeps no model" in said(send(thief, "predict", plan=digest, query=COORDINATOR))["refused"]
    own = Party("anna", X[:, :3], None, models=models, policy=policy)
    text = Request.new(digest, "dora", dict.fromkeys(NAMES, own.predictor.public_key), {}).text
    assert send(own, "predict", plan=digest, query="dora", text=text).kind == "refuse"


def test_columns_in_another_order_are_refused_where_they_have_names() -> None:
    class Frames(np.ndarray):
        columns: Any = ()

    def named(part: np.ndarray, names: str) -> Any:
        frame = part.view(Frames)
        frame.columns = list(names)
        return frame

    X, y = rows()
    parts = [named(p, n) for p, n in zip(split(X), ("abc", "de", "f"), strict=True)]
    federation = Federation.by_columns(parts, y, names=NAMES)
    fitted = model_of().fit(federation)
    assert fitted.predict(Federation.by_columns(parts, None, names=NAMES)).shape == (PEOPLE,)
    assert fitted.predict(Federation.by_columns(split(X), None, names=NAMES)).shape == (PEOPLE,)  # arrays have no names
    turned = [named(parts[0][:, ::-1], "cba"), *parts[1:]]
    with pytest.raises(RefusedError, match="anna has other columns, or in another order"):
        fitted.predict(Federation.by_columns(turned, None, names=NAMES))


def test_a_federation_that_does_not_fit_the_model() -> None:
    fitted, federation = trained()
    X, y = rows(1)
    with pytest.raises(InputError, match=r"parties anna, ben, carl and the federation of anna, ben\b"):
        fitted.predict(Federation.by_columns(split(X)[:2], None, names=NAMES[:2]))
    with pytest.raises(InputError, match="by columns; where a party has whole rows"):
        fitted.predict(Federation.by_rows([(X, y)]))
    with pytest.raises(InputError, match="recipient='dora' must be 'coordinator' or one of anna, ben, carl"):
        fitted.predict_for(federation, "dora")
    with pytest.raises(InputError, match="'coordinator' is no party's name"):
        Federation.by_columns(split(X), y, names=("anna", COORDINATOR, "carl"))
    few = [Party(n, p[: 9 - place], None) for place, (n, p) in enumerate(zip(NAMES, split(X), strict=True))]
    with pytest.raises(InputError, match="Align the records first"):
        fitted.predict(Federation.connect(InProcess(few), split="columns"))
    with pytest.raises(InputError, match="people needs one matrix for each of the 3 parties"):
        federation.people(split(X)[:2])
    turned = Federation.by_columns(split(X)[::-1], None, names=NAMES[::-1])  # by their names, in any order
    np.testing.assert_allclose(fitted.decision_function(turned), fitted.decision_function(X), rtol=0, atol=1e-9)


def test_a_saved_model_predicts_jointly(tmp_path: Path) -> None:
    fitted, federation = trained()
    fitted.save(tmp_path / "model.json")
    again = model_file.load_model(tmp_path / "model.json")
    X, _ = rows(1)
    remote, _, _ = elsewhere(federation, X)
    for people in (Federation.by_columns(split(X), None, names=NAMES), remote):
        np.testing.assert_allclose(again.decision_function(people), fitted.decision_function(X), rtol=0, atol=1e-9)


def test_an_error_of_the_rows_is_told_as_a_fixed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, federation = trained()
    remote, parties, wire = elsewhere(federation, rows(1)[0])

    def fail(*_: Any) -> Any:
        raise ValueError("row 7 is 171.5")

    monkeypatch.setattr(PartialModel, "scores", fail)
    with pytest.raises(WireError, match="its own log has the reason"):
        fitted.predict(remote)
    assert not any("171.5" in frame.text for _, frame in wire.up)
    with pytest.raises(ValueError, match=r"171\.5"):  # in one process the holder is the caller
        fitted.predict(Federation.by_columns(split(rows(1)[0]), None, names=NAMES))
    assert isinstance(parties[0].failure, ValueError)


# Models that the parties keep.


class _Nothing(Plain):
    """A query that says nothing."""

    name, title = "nothing", "nothing"
    bound, rounding_entries = 0.0, 1.0

    def value(self, round: Round) -> np.ndarray:
        return np.zeros(1)


class KeepingOptions(Options):
    """The options of the solver below."""

    name: ClassVar[str] = "keeping"
    models: str | None = field(default=None, metadata={"check": OneOf(("shared", "kept"))})


class Keeping(Algorithm):
    """Every party's weights are 1, 2, ... on its prepared columns; nobody else is told."""

    name: ClassVar[str] = "keeping"
    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "a solver of the tests"
    splits: ClassVar[tuple[str, ...]] = ("columns",)
    private: ClassVar[bool | None] = False
    layout: ClassVar[Layout] = "rows"

    def design(self, problem: Problem, options: KeepingOptions) -> Design:
        del problem
        release = Release.of(_Nothing(), 0, 1, 0.0, 1.0)
        models: Any = options.models or "shared"
        return Design(rounds=1, releases=(release,), models=models)

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        del plan, party
        return (_Nothing(),)

    def coordinate(self, plan: Plan) -> Coordination:
        del plan
        yield Ask("nothing")
        return Solution(np.zeros(0))

    def remember(self, plan: Plan, rows: Block) -> Any:
        del plan
        return np.arange(1.0, rows.dimension + 1)

    def own_weights(self, memory: Any) -> Any:
        return memory


class KeepingEntries(Keeping):
    layout: ClassVar[Layout] = "entries"


@pytest.fixture(params=["rows", "entries"])
def keeping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = Keeping() if request.param == "rows" else KeepingEntries()
    monkeypatch.setitem(sys.modules, "keeping", SimpleNamespace(FORMS=(solver,)))  # type: ignore[arg-type]
    monkeypatch.setitem(algorithms.SOLVERS, "keeping", "keeping")
    monkeypatch.setitem(options_module.SOLVERS, "keeping", KeepingOptions)  # type: ignore[arg-type]


def kept_scores(plan: Plan, X: np.ndarray) -> np.ndarray:
    """What the parties' weights give on prepared rows, in the units of the labels."""
    total = np.zeros(len(X))
    for name, part in zip(NAMES, split(X), strict=True):
        block = Block.prepare(part, np.zeros(len(X)), plan.part(name).preparation)
        total += np.asarray(block.rows) @ np.arange(1.0, block.dimension + 1)
    centre, half = plan.preparation.label_scale
    return total * half + centre * plan.fit_intercept


KEPT: dict[str, dict[str, Any]] = {
    "a row norm": {"row_norm": 1.0},
    "no intercept": {"row_norm": 1.0, "fit_intercept": False},
    "ranges": {"feature_ranges": ([-1, 0, -0.2, -3, 0, 0.1], [0, 2, 0.2, 5, 1, 0.4])},
}


@pytest.mark.parametrize("options", KEPT.values(), ids=KEPT)
@pytest.mark.usefixtures("keeping")
def test_a_model_that_is_kept_predicts_jointly_and_is_nowhere_else(options: dict[str, Any], tmp_path: Path) -> None:
    X, y = rows()
    federation = Federation.by_columns(split(X), y, names=NAMES, label_party=1, record=True)
    ridge = sv.PrivateRidge(epsilon=math.inf, solver=KeepingOptions(models="kept"), label_bound=(-3, 10), **options)
    wire = Tapped(federation._parties)
    federation.transport = wire
    ridge.coef_ = np.ones(6)  # of an earlier fit
    ridge.fit(federation)
    assert not hasattr(ridge, "coef_")
    assert not hasattr(ridge, "intercept_")
    assert not any(frame.arrays for _, frame in wire.down if frame.kind == "done")
    assert all(np.all(array == 0) for _, frame in wire.up for array in frame.arrays.values())
    new, _ = rows(1)
    people = federation.people(split(new))
    np.testing.assert_allclose(ridge.predict(people), kept_scores(ridge.plan_, new), rtol=0, atol=1e-9)
    ridge.predict_for(people, "carl")
    np.testing.assert_allclose(people.predictions["carl"].scores, ridge.predict(people), rtol=0, atol=0)
    for use in (ridge.predict, lambda _: ridge.sparse_coef_, lambda _: ridge.selected_features_):
        with pytest.raises(InputError, match=r"models='kept': .* Federation\.by_columns of the people"):
            use(new)
    ridge.save(tmp_path / "model.json")
    again = model_file.load_model(tmp_path / "model.json")
    np.testing.assert_allclose(again.predict(people), ridge.predict(people), rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="models='kept'"):
        again.predict(new)
    with pytest.raises(RefusedError, match="anna keeps no model of that plan"):
        ridge.predict(Federation.by_columns(split(new), None, names=NAMES))


@pytest.mark.usefixtures("keeping")
def test_a_solver_without_kept_models_says_so() -> None:
    with pytest.raises(InputError, match="'models' is no option of solver='frank-wolfe'"):
        by_name("frank-wolfe", models="kept")
    with pytest.raises(InputError, match="models='mine' must be one of 'shared', 'kept'"):
        by_name("keeping", models="mine")


@pytest.mark.usefixtures("keeping")
def test_weights_of_another_length_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ridge = sv.PrivateRidge(epsilon=math.inf, solver=KeepingOptions(models="kept"), label_bound=1.0)
    for wrong in (np.zeros(2), np.full(4, math.nan)):
        monkeypatch.setattr(Keeping, "own_weights", lambda *_, wrong=wrong: wrong)
        federation = federation_of()
        with pytest.warns(UserWarning, match=r"joint predictions over columns are not possible: anna \(.*part"):
            ridge.fit(federation)
        assert "anna" in ridge.missing_parts_
        with pytest.raises(RefusedError, match="anna keeps no model of that plan"):
            ridge.predict(federation.people(split(rows(1)[0])))


def test_parts_of_a_model_and_weights_of_a_party_are_one() -> None:
    """With the constant column at the holder alone, weights on prepared rows give the parts of the whole model."""
    fitted, _ = trained(feature_ranges=([-1, 0, -0.2, -3, 0, 0.1], [0, 2, 0.2, 5, 1, 0.4]))
    plan: Plan = fitted.plan_
    weights = np.arange(1.0, plan.dimension + 1)
    whole = parts_of(plan, *plan.unprepare(weights))
    X, _ = rows(1)
    total = np.zeros(len(X))
    for name, part in zip(NAMES, split(X), strict=True):
        span = plan.part(name)
        own = [weights[span.place(local, plan.features)] for local in range(span.preparation.dimension)]
        total += own_part(plan, name, np.array(own)).scores(part)
    joined = sum(whole[name].scores(part) for name, part in zip(NAMES, split(X), strict=True))
    np.testing.assert_allclose(total, joined, rtol=0, atol=1e-9)


# Over the network.


@pytest.mark.parametrize("recipient", [COORDINATOR, "ben"])
def test_remote_parties_predict_for_new_people_after_a_restart(recipient: str, sites_of: Callable[..., Any]) -> None:
    sites = sites_of(NAMES)
    X, y = rows(0, 20_000)
    new, _ = rows(1, 300)
    for name, part in zip(NAMES, split(X), strict=True):
        sites.save(name, X=part, y=y)
        sv.Ledger.create(sites.folder / f"{name}.db").open(name, epsilon=1.5, delta=1e-5)
        sites.start(name, ledger=True)
    remote = Federation.connect(sites.wire, split="columns")
    sites.wire.wait_for_parties(30)
    fitted = model_of(epsilon=1.0, rounds=8).fit(remote)
    assert np.count_nonzero(fitted.coef_) > 1
    for process in sites.processes.values():
        assert process.wait(20) == 0  # the holders of the training are gone; what they kept lies beside their ledgers
    for name, part in zip(NAMES, split(new), strict=True):
        sites.save(f"{name}-new", X=part)
        where = (sites.folder / f"{name}-new.npz", f"localhost:{sites.wire.port}", sites.folder)
        sites.processes[name] = Program(PROGRAM, name, *where, sites.folder / f"{name}.db", recipient)
    sites.wire.wait_for_parties(30)
    expected = fitted.decision_function(new)
    with pytest.raises(RefusedError, match=r"anna has a model .* not approved\. .*sottovoce models approve"):
        fitted.predict_for(remote, recipient)
    for name in NAMES:
        (kept,) = kept_beside(sites.folder / f"{name}.db")
        Models.beside(sites.folder / f"{name}.db", name).approve(kept.digest, kept.model)
    if recipient == COORDINATOR:
        np.testing.assert_allclose(fitted.decision_function(remote), expected, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(fitted.predict(remote), fitted.predict(new))
        with pytest.raises(RefusedError, match="no part in predictions for 'ben'"):
            fitted.predict_for(remote, "ben")
    else:
        fitted.predict_for(remote, recipient)
        with pytest.raises(RefusedError, match="no part in predictions for 'coordinator'"):
            fitted.predict(remote)
    remote.dismiss()
    for process in sites.processes.values():
        assert process.wait(20) == 0
    written = {path.stem for path in sites.folder.glob("*.npy")}
    assert written == ({recipient} - {COORDINATOR})
    if recipient != COORDINATOR:
        np.testing.assert_allclose(np.load(sites.folder / f"{recipient}.npy"), expected, rtol=0, atol=1e-9)
