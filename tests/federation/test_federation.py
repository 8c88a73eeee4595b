from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms.base import Rounds
from sottovoce.errors import BudgetError, InputError, RefusedError, WireError
from sottovoce.federation.coordinator import Coordinator, SeenMessage
from sottovoce.federation.federation import Federation, as_account
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import declare_public, reply
from sottovoce.plan.plan import Plan
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.mechanisms import SeededRandomness, SystemRandomness
from sottovoce.transports.base import InProcess
from support import declared

MakePlan = Callable[..., Plan]


def people(count: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.where(X @ [2.0, -1.0, 0.5] + 0.3 * rng.standard_normal(count) > 0, 1, 0)


def parts(*counts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [people(count, seed) for seed, count in enumerate(counts)]


def model(solver: str = "newton", **options: Any) -> sv.PrivateLogisticRegression:
    """By six rounds of a solver, `solver="auto"` by the rounds that the rules say."""
    fields = {"epsilon": 1.0, "row_norm": 1.0, "classes": (0, 1)}
    if solver == "auto":
        return sv.PrivateLogisticRegression(**fields | options)
    return sv.PrivateLogisticRegression(**declared(solver, **fields | {"rounds": 6} | options))


X, Y = people(10)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: Federation.by_rows([]), "parts is empty"),
        (lambda: Federation.by_columns([], Y), "parts is empty"),
        (lambda: Federation.by_rows([X, X]), "pairs"),
        (lambda: Federation.by_rows([(X, Y, Y)]), "pairs"),
        (lambda: Federation.by_rows([(X, Y), (X[:0], Y[:0])]), "party-2: X is empty"),
        (lambda: Federation.by_rows([(X, Y), (X[:, :2], Y)]), r"\[2, 3\] features"),
        (lambda: Federation.by_rows([(X, Y[:5])]), "10 rows and y 5 labels"),
        (lambda: Federation.by_rows([(X, Y)] * 2, names=["anna"]), "2 different names"),
        (lambda: Federation.by_rows([(X, Y)] * 2, names=["anna", "anna"]), "2 different names"),
        (lambda: Federation.by_rows([(X, Y)] * 2, ledgers=[None]), "1 entries for 2 parties"),
        (lambda: Federation.by_columns([X, X[:7]], Y), r"\[7, 10\] rows.*same people"),
        (lambda: Federation.by_columns([X, X], Y[:7]), "10 rows and y 7 labels"),
        (lambda: Federation.by_columns([X, X], Y, labels="secret"), "'public', 'shared' or 'held'"),  # type: ignore[arg-type]
        (lambda: Federation.by_columns([X, X], Y, labels="held", label_party=2), "0 to 1"),
        (lambda: Federation.by_columns([X, X], Y, label_party=-1), "0 to 1"),
        (lambda: Federation.by_columns([X, X], Y, names=["a", "b", "c"]), "2 different names"),
        (lambda: Federation.by_columns([X, X], Y, ledgers=[None] * 3), "3 entries for 2 parties"),
        (lambda: Federation.by_columns([X[:, 0], X], Y), "two-dimensional"),
        (lambda: Federation.by_columns([X[:, :0], X], Y), "empty"),
        (lambda: Federation.central(X[:0], Y[:0]), "empty"),
        (lambda: Federation.central(X, X), "one-dimensional"),
    ],
)
def test_bad_input_is_told_by_name(make: Callable[[], Federation], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        make()


def test_lists_sparse_matrices_and_frames_are_taken() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["age", "height", "weight"])
    for rows in (X.tolist(), sp.csr_matrix(X), np.asfortranarray(X), frame):
        facts = Federation.by_rows([(rows, Y.tolist()), (rows, Y)]).coordinator().facts(classes=True)
        assert [fact["records"] for fact in facts.values()] == [10, 10]
        assert [fact["features"] for fact in facts.values()] == [3, 3]
        assert facts["party-1"]["classes"] == [0, 1]
        by_columns = Federation.by_columns([rows, rows], Y)
        assert [party.features for party in by_columns._parties] == [3, 3]
        assert [fact["features"] for fact in by_columns.coordinator().facts(classes=True).values()] == [3, 3]
    assert facts["party-2"]["feature_names"] == ["age", "height", "weight"]


def test_names_are_kept() -> None:
    federation = Federation.by_rows(parts(20, 30), names=["anna", "ben"])
    assert federation.transport.parties == ("anna", "ben")
    assert Federation.by_rows(parts(20, 30)).transport.parties == ("party-1", "party-2")


def test_one_account_serves_one_party(tmp_path: Path) -> None:
    account = sv.Ledger.create(tmp_path / "a.db").open("rows", epsilon=1.0, delta=1e-5)
    for twice in ([account, account], [account, tmp_path / "a.db"], [sv.Ledger(account.path), account]):
        with pytest.raises(InputError, match="one account twice"):
            Federation.by_rows(parts(20, 30), ledgers=twice)
    other = sv.Ledger(tmp_path / "a.db").open("others", epsilon=1.0, delta=1e-5)
    Federation.by_rows(parts(20, 30), ledgers=[account, other])


def test_an_account_is_found_from_a_ledger_or_its_path(tmp_path: Path) -> None:
    ledger = sv.Ledger.create(tmp_path / "a.db")
    account = ledger.open("rows", epsilon=1.0, delta=1e-5)
    assert as_account(None) is None
    assert as_account(account) == as_account(ledger) == as_account(str(ledger.path)) == account
    with pytest.raises(sv.LedgerError):
        as_account(tmp_path / "missing.db")
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("row_norm", [1e-9, 1.0, 7.5])
def test_by_columns_the_squares_of_the_parts_sum_to_the_whole(row_norm: float) -> None:
    federation = Federation.by_columns([X, X[:, :1], X[:, :2]], Y)
    norms = federation.party_norms(row_norm)
    assert math.fsum(norm**2 for norm in norms) == pytest.approx(row_norm**2, rel=1e-12)
    assert norms[0] ** 2 == pytest.approx(3 * norms[1] ** 2)


@pytest.mark.parametrize("labels", ["public", "shared", "held"])
def test_only_those_who_know_the_labels_have_them(labels: Any) -> None:
    federation = Federation.by_columns([X, X, X], Y, labels=labels, label_party=1)
    assert federation.labels == labels
    assert federation.label_party == 1
    known = [bool(np.any(party.labels)) for party in federation._parties]
    assert known == ([False, True, False] if labels == "held" else [True, True, True])
    assert [party.labelled for party in federation._parties] == known


@pytest.mark.parametrize(
    "solver",
    [name for name in algorithms.SOLVERS if all("columns" not in form.splits for form in algorithms.forms(name))],
)
def test_a_solver_that_does_not_serve_columns_says_so(solver: str) -> None:
    federation = Federation.by_columns([X, X], Y, products="none")
    with pytest.raises(InputError, match=f"solver='{solver}' does not serve data split by columns"):
        model(solver=solver).fit(federation)
    assert federation.transport.communication.uplink_bytes == 0


@pytest.mark.parametrize("options", [{}, {"radius": 1.0, "l1_ratio": 0}, {"l1_ratio": 1}])
def test_frank_wolfe_without_an_l1_ball_is_told_how_to_have_one(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"'frank-wolfe' needs the l1 ball, not .*radius and l1_ratio=1"):
        model("frank-wolfe", rounds=None, **options).fit(Federation.by_columns([X, X], Y))


@pytest.mark.parametrize(
    ("labels", "options", "solver"),
    [
        ("shared", {}, "score"),
        ("shared", {"radius": 1.0, "l1_ratio": 0}, "score"),
        ("shared", {"l1_ratio": 1, "alpha": 0.01}, "score"),
        ("shared", {"epsilon": math.inf}, "admm"),
        ("held", {}, "admm"),
    ],
)
def test_by_columns_a_solver_is_chosen_by_public_facts(labels: Any, options: dict[str, Any], solver: str) -> None:
    plan = model("auto", **options).plan(Federation.by_columns([X, X], Y, labels=labels, products="none"))
    assert plan.algorithm == solver
    assert plan.aggregation is None


@pytest.mark.parametrize(
    "estimator",
    [
        sv.PrivateLogisticRegression(classes=(0, 1)),
        sv.PrivateLinearSVC(classes=(0, 1)),
        sv.PrivateRidge(label_bound=1.0),
        sv.PrivateLasso(alpha=0.01, label_bound=1.0),
        sv.PrivateRidge(loss="huber", threshold=0.2, label_bound=1.0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_by_columns_sums_are_secure_where_nobody_objects(estimator: Any) -> None:
    federation = Federation.by_columns([X, X], Y)
    made = estimator.set_params(delta=1e-6, entry_bound=1.0).plan(federation)
    assert made.aggregation is not None, federation.why
    assert federation.why == "secure: every party allows it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (sv.Policy(), "Policy(secure=True)"),
        (sv.Policy(secure=True), "Policy(colluding=1)"),
        (sv.Policy(secure=True, colluding=2), "Policy(colluding=1)"),
        (sv.Policy(secure=True, dealer="notary"), "Policy(dealer='coordinator')"),
        (sv.Policy(secure=True, colluding=1), ""),
    ],
)
def test_a_policy_that_was_given_holds_in_this_process_too(
    policy: sv.Policy, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def secure() -> bool:
        federation = Federation.by_columns([X, X, X], Y, policy=policy).secure_aggregation(colluding=1)
        try:
            aggregation, said = (
                model("auto", row_norm=None, entry_bound=1.0).fit(federation).plan_.aggregation,
                federation.why,
            )
        except RefusedError as error:
            aggregation, said = None, str(error)
        assert aggregation is not None or reason in said
        return aggregation is not None

    assert secure() == (not reason)
    for party in Federation.by_columns([X, X, X], Y, policy=policy)._parties:
        party.permit(without_privacy=True, predict_for=("coordinator",))
        assert party.policy is policy
    permit = Party.permit

    def overwrites(party: Party, **leave: Any) -> None:  # planted fault
        party.agreed = False
        permit(party, **leave)

    monkeypatch.setattr(Party, "permit", overwrites)
    assert secure()


def test_a_radius_is_that_of_the_l1_ball_by_columns() -> None:
    fitted = model("auto", radius=1.0).fit(Federation.by_columns([X, X], Y, products="none"))
    assert fitted.plan_.algorithm == "frank-wolfe"
    assert fitted.plan_.regulariser.name == "l1_ball"
    assert np.abs(fitted.coef_).sum() <= 1.0 + 1e-9


SOLVERS = {
    "gradient": {"solver": "gradient"},
    "newton": {"solver": "newton"},
    "sgd": {"solver": "sgd", "rate": 0.3},
    "one party": {"solver": "sgd", "rate": 0.3, "schedule": "one-party"},
    "scd": {"solver": "scd", "alpha": 0.01},
    "scd-sequential": {"solver": "scd-sequential", "alpha": 0.01, "rounds": 1, "lot": 20},
    "cd": {"solver": "cd", "rounds": 2, "inner": 4},
    "greedy-cd": {"solver": "greedy-cd"},
}


@pytest.mark.parametrize("options", SOLVERS.values(), ids=SOLVERS)
def test_a_transcript_has_every_message_and_replays_to_the_model(options: dict[str, Any]) -> None:
    federation = Federation.by_rows(parts(90, 110), names=["anna", "ben"], record=True)
    fitted = model(**options).fit(federation)
    transcript: list[SeenMessage] = fitted.transcript_
    assert {message.sender for message in transcript} == {"anna", "ben"}
    numbers = [message for message in transcript if isinstance(message.payload, np.ndarray)]
    words = [message for message in transcript if not isinstance(message.payload, np.ndarray)]
    assert {message.name for message in words} == {"facts", "accept", "done"}
    public = {"records", "features", "feature_names", "accepted", "signature"}
    assert all(set(message.payload) <= public for message in words)
    alone = {"gradient"} if options.get("schedule") else {"choice"}
    expected = sum(release.count * (1 if release.query in alone else 2) for release in fitted.plan_.releases)
    assert len(numbers) == expected
    asked: dict[tuple[int, str], dict[str, np.ndarray]] = {}  # in the order of the run; two queries may share a round
    for message in numbers:
        asked.setdefault((message.round, message.name), {})[message.sender] = message.payload
    form = algorithms.of(fitted.plan_)
    text, rounds = form.coordinate(fitted.plan_), Rounds(fitted.plan_, form)
    question = next(text)
    for (round_, query), values in asked.items():
        assert (question.query, rounds.assign(question)[0]) == (query, round_)
        try:
            question = text.send(values)
        except StopIteration as stop:
            weights = getattr(stop.value, "weights", stop.value)
    coef, intercept = fitted.plan_.preparation.unprepare(weights)
    np.testing.assert_array_equal(coef, fitted.coef_.ravel())
    assert intercept == fitted.intercept_[0]


def test_without_record_nothing_is_kept() -> None:
    federation = Federation.by_rows(parts(90, 110))
    assert federation.coordinator().transcript is None
    assert model().fit(federation).transcript_ is None


class Recorded(InProcess):
    """A wire that keeps what passes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.up: list[bytes] = []
        self.down: list[bytes] = []

    def exchange(self, messages: Any) -> dict[str, bytes]:
        replies = super().exchange(messages)
        self.down += messages.values()
        self.up += replies.values()
        return replies


@pytest.mark.parametrize("options", SOLVERS.values(), ids=SOLVERS)
def test_communication_counts_every_byte_and_round(options: dict[str, Any]) -> None:
    federation = Federation.by_rows(parts(90, 110))
    wire = Recorded(federation._parties)
    federation.transport = wire
    fitted = model(**options).fit(federation)
    said = fitted.communication_
    # from the proposal of the plan on: the facts were asked for to make it
    assert said.uplink_bytes == sum(len(data) for data in wire.up if decode(data).kind != "facts")
    assert said.downlink_bytes == sum(len(data) for data in wire.down if decode(data).kind != "hello")
    assert wire.communication.uplink_bytes == sum(map(len, wire.up))
    assert wire.communication.downlink_bytes == sum(map(len, wire.down))
    assert said.rounds == sum(release.count for release in fitted.plan_.releases)
    again = model(**options).fit(federation)
    assert again.communication_.uplink_bytes == pytest.approx(said.uplink_bytes, rel=0.01)
    # what a party says has one length for each query, whatever its rows
    lengths: dict[str, set[int]] = {}
    for frame in map(decode, wire.up):
        if frame.kind == "answer":
            lengths.setdefault(frame.query, set()).add(len(encode(frame)))
    assert all(len(seen) == 1 for seen in lengths.values())


def test_two_data_sets_make_transcripts_of_one_shape() -> None:
    def shape(seed: int) -> list[tuple[Any, ...]]:
        rows, labels = people(120, seed)
        if seed:
            rows[:60] = np.nan
        federation = Federation.by_rows([(rows[:50], labels[:50]), (rows[50:], labels[50:])], record=True)
        fitted = model(solver="sgd", rate=0.05, insecure_seed=seed).fit(federation)
        return [(m.round, m.sender, m.name, np.shape(m.payload), type(m.payload)) for m in fitted.transcript_]

    assert shape(0) == shape(1)


def test_split_and_central_are_one_algorithm() -> None:
    (X1, y1), (X2, y2) = parts(90, 110)
    together = Federation.central(np.vstack([X1, X2]), np.concatenate([y1, y2]))
    split = Federation.by_rows([(X1, y1), (X2, y2)])
    one, other = (model(epsilon=math.inf, rounds=20).fit(federation) for federation in (together, split))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(one.intercept_, other.intercept_, rtol=0, atol=1e-9)


def test_noise_comes_from_the_system_unless_a_seed_is_given() -> None:
    federation = Federation.by_rows(parts(90, 110))
    federation.coordinator()
    assert all(isinstance(party.randomness, SystemRandomness) for party in federation._parties)
    federation.coordinator(insecure_seed=3)
    streams = [party.randomness.bytes(16) for party in federation._parties]
    assert all(isinstance(party.randomness, SeededRandomness) for party in federation._parties)
    assert streams[0] != streams[1]
    federation.coordinator()
    assert all(party.randomness.secure for party in federation._parties)


@pytest.mark.filterwarnings("ignore:.*has not converged")
def test_a_permission_ends_with_the_run_it_was_given_for() -> None:
    federation = Federation.by_rows(parts(90, 110))
    model(epsilon=math.inf).fit(federation)
    plan = model(epsilon=math.inf).plan(federation)
    with pytest.raises(RefusedError, match="without noise"):
        federation.coordinator().run(plan, algorithms.of(plan))


def test_remote_parties_draw_their_own_noise_and_keep_their_own_policy() -> None:
    inside = Federation.by_rows(parts(90, 110))
    remote = Federation.connect(InProcess(inside._parties))
    assert remote.remote
    assert not inside.remote
    with pytest.raises(InputError, match="each draws its own noise"):
        remote.coordinator(insecure_seed=1)
    with pytest.raises(RefusedError, match="without noise"):
        model(epsilon=math.inf).fit(remote)
    with pytest.raises(RefusedError, match="does not tell which labels"):
        model(classes=None).fit(remote)
    assert np.isfinite(model().fit(remote).coef_).all()


def test_one_refusal_and_nobody_has_paid(tmp_path: Path, small_plan: MakePlan) -> None:
    accounts = [sv.Ledger.create(tmp_path / f"{name}.db").open(name, 2.0, 1e-5) for name in ("anna", "ben")]
    accounts[1].reserve("earlier", [Gaussian(0.4)])
    federation = Federation.by_rows(parts(40, 60), names=["anna", "ben"], ledgers=accounts)
    with pytest.raises(BudgetError, match="'ben'"):
        model(epsilon=1.8).fit(federation)
    assert accounts[0].balance().plans == 0


def test_the_fit_of_a_federation_is_charged_to_every_party(tmp_path: Path) -> None:
    accounts = [sv.Ledger.create(tmp_path / f"{name}.db").open(name, 1.0, 1e-5) for name in ("anna", "ben")]
    federation = Federation.by_rows(parts(90, 110), ledgers=[account.path for account in accounts])
    fitted = model(epsilon=0.8).fit(federation)
    for account in accounts:
        assert account.balance().spent == pytest.approx(0.8, rel=2e-3)
        stored = [entry for entry in account.history() if entry.kind == "release"]
        assert len(stored) == sum(release.count for release in fitted.plan_.releases)
    with pytest.raises(BudgetError):
        model(epsilon=0.8).fit(federation)


def test_nothing_of_the_rows_is_in_what_a_federation_shows() -> None:
    rows, labels = people(50)
    rows[7] = 170.2531415926
    federation = Federation.by_rows([(rows, labels)])
    for thing in (federation, federation.coordinator(), federation.transport, *federation._parties):
        assert "170.2" not in repr(thing) + str(thing)


class Liar:
    """A party that answers what it likes; the gate's key is not its own, so it only says what may be said."""

    def __init__(self, kind: str, query: str | None = None) -> None:
        self.name = "anna"
        self.kind, self.query = kind, query

    def identify(self, identity: Any) -> None: ...

    def handle(self, request: bytes) -> Any:
        frame = decode(request)
        if frame.kind in ("hello", "plan"):
            return reply("accept", frame, (declare_public("accepted", True, reason="an acknowledgement"),))
        said = Frame(frame.kind, frame.serial, frame.plan, frame.round, self.query or frame.query)
        return reply(self.kind, said, (declare_public("accepted", True, reason="an acknowledgement"),))


@pytest.mark.parametrize("liar", [Liar("answer"), Liar("facts"), Liar("accept"), Liar("answer", query="gram")])
def test_an_answer_that_is_none_is_a_wire_error(liar: Liar, small_plan: MakePlan) -> None:
    plan = small_plan(parties=(("anna", 40),), split="central")
    with pytest.raises(WireError, match="'anna'"):
        Coordinator(InProcess([liar])).run(plan, algorithms.of(plan))


def test_a_party_that_keeps_forgetting_its_plan_ends_the_run(small_plan: MakePlan) -> None:
    plan = small_plan(parties=(("anna", 40),), split="central")
    with pytest.raises(WireError, match="'anna' forgot the plan again"):
        Coordinator(InProcess([Liar("unknown-plan")])).run(plan, algorithms.of(plan))


def test_messages_are_plain_and_public() -> None:
    federation = Federation.by_rows(parts(90, 110), record=True)
    fitted = model().fit(federation)
    for message in fitted.transcript_:
        if isinstance(message.payload, np.ndarray):
            assert np.isfinite(message.payload).all()
        else:
            json.dumps(message.payload)


def test_declared_norms_of_the_parts_are_kept_if_they_make_up_the_whole() -> None:
    federation = Federation.by_columns([X, X], Y, norms=[0.6, 0.8])
    assert federation.party_norms(1.0) == [0.6, 0.8]
    for row_norm, norms in ((2.0, [0.6, 0.8]), (1.0, [1.0]), (1.0, [-0.6, 0.8]), (1.0, [1.0, 0.0])):
        with pytest.raises(InputError, match=r"norms=.*one positive number per party \(2\).*row_norm squared"):
            Federation.by_columns([X, X], Y, norms=norms).party_norms(row_norm)
